#!/bin/sh
# layers.sh - fail on an #include or a link dependency that goes up:
#   fs -> cache -> index -> the shared files at the root;  kernels -> the shared
#   files;  tools -> kvfs.h alone, but kvfs-fsck, kvfs-bench -> index and
#   kvfs-replay -> the policies and the monitor in cache.
cd "$(dirname "$0")/.." || exit 1
bad=0
forbid() { # FOLDER/GLOB PATTERN, whose group is open
	# shellcheck disable=SC2086
	if grep -nE "#include \"($2" $1 2>/dev/null; then bad=1; fi
}
forbid '*.[ch]' 'fs|cache|index|kernels|tools|tests)/'
forbid 'index/*.[ch]' 'fs|cache|kernels|tools|tests)/'
forbid 'cache/*.[ch]' 'fs|kernels|tools|tests)/'
forbid 'fs/*.[ch]' 'index|kernels|tools|tests)/'
forbid 'kernels/*.[ch]' 'fs|cache|index|tools|tests)/|"kernels/cuda/'
forbid 'kernels/cuda/*.[ch]' 'fs|cache|index|tools|tests)/'
for tool in tools/*/; do
	case $tool in
	tools/fsck/) forbid "$tool*.[ch]" 'fs|cache|kernels|tests)/' ;;
	tools/bench/) forbid "$tool*.[ch]" 'fs|cache|tests)/' ;;
	tools/replay/) forbid "$tool*.[ch]" 'fs|index|tests)/|"cache/[^dgmp]' ;;
	*) forbid "$tool*.[ch]" 'fs|cache|index|tests)/' ;;
	esac
done
if grep -nE '#include <(fuse|fuse_lowlevel|fuse3/.*)\.h>' cache/*.[ch] index/*.[ch] kernels/*.[ch] *.[ch]; then bad=1; fi
if grep -nE '#include <lmdb\.h>' fs/*.[ch] cache/*.[ch] kernels/*.[ch] *.[ch]; then bad=1; fi
if grep -nE '#include <liburing\.h>' fs/*.[ch] index/*.[ch] kernels/*.[ch] *.[ch]; then bad=1; fi

# Links: what a folder's objects leave undefined must not be defined above it.
B=${B:-build}
defined() { nm -g --defined-only "$@" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u; }
wanted() { nm -u "$@" 2>/dev/null | awk '/ U / { print $2 }' | sort -u; }
up() { # LOWER HIGHER...
	low=$1; shift
	[ -d "$B/$low" ] || return 0
	for high in "$@"; do
		[ -d "$B/$high" ] || continue
		hits=$( { wanted "$B/$low"/*.o > "$B/w"; defined "$B/$high"/*.o > "$B/d"; comm -12 "$B/w" "$B/d"; } )
		if [ -n "$hits" ]; then echo "$low links up to $high: $hits"; bad=1; fi
	done
	rm -f "$B/w" "$B/d"
}
up index cache fs kernels
up cache fs kernels
up kernels fs cache index
up fs kernels
exit $bad
