#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh TEST... - run unit test programs and scripts, $JOBS at a time, and count.
# Each test runs in a fresh directory on the build's own filesystem.  A test whose source
# has a line "run.sh: alone" in a comment runs after the others, with nothing beside it;
# one with "run.sh: long" starts first.  A script exits 77 to be skipped; a test program
# calls skip().  Skips are counted and listed; with KVFS_STRICT=1 they are failures.  The
# output of failed tests is shown at the end, where a reader of a cut log still finds it.
# KVFS_RETRY=1 (CI, whose machines are shared): a test that fails runs once more, alone.
# If it passes then, it is listed and counted as unsteady, not as failed; if more than
# two do so, the run fails.
B=$(realpath "${B:-build}")
export B
apart=$(dirname "$(realpath "$0")")/apart
jobs=${JOBS:-$(($(nproc) * 3))} # tests wait more than they compute
run=$(mktemp -d "$B/run.XXXXXX") || exit 1
trap 'rm -rf "$run"' EXIT
trap 'kill $(jobs -p) 2> /dev/null; exit 1' INT TERM
passed=0 failed=0 skipped=0 unsteady=0
declare -A test_of name_of log_of began

begin() { # begin TEST: start it in the background, in a folder of its own
	local at log=$run/${1//\//_}$retrying
	at=$(realpath "$1")
	mkdir "$log.dir"
	(cd "$log.dir" && exec timeout -k 10 1200 "$apart" "$at") > "$log" 2>&1 < /dev/null &
	test_of[$!]=$1 name_of[$!]=${1#build*/} log_of[$!]=$log began[$!]=$SECONDS
}
end() { # wait for one test, and count it
	local pid rc verdict log name missed
	wait -n -p pid
	rc=$?
	log=${log_of[$pid]} name=${name_of[$pid]}
	rm -rf "$log.dir"
	missed=$(grep -c '^\[  SKIPPED \] [a-z]' "$log")
	case $rc in
	0) verdict=ok passed=$((passed + 1)) ;;
	77) verdict="skip: $(tail -n 1 "$log")" missed=1 ;;
	*) verdict="FAILED ($rc)" failed=$((failed + 1)) ;;
	esac
	if [ -n "$retrying" ]; then # its run beside others was counted as failed
		failed=$((failed - 1))
		[ $rc != 0 ] || unsteady=$((unsteady + 1)) verdict="ok, alone"
	fi
	[ $rc != 0 ] || [ "$missed" = 0 ] || verdict="ok, but for skipped tests"
	if [ "$missed" != 0 ]; then
		skipped=$((skipped + 1))
		echo "$name: $verdict" >> "$run/skips"
	fi
	printf '%-44s %4ds  %s\n' "$name" $((SECONDS - began[$pid])) "$verdict"
	case $rc in 0 | 77) return ;; esac
	[ -n "$retrying" ] || again+=("${test_of[$pid]}")
	echo "$name: FAILED ($rc)" >> "$run/failures"
	tail -n 60 "$log" | sed 's/^/    /' >> "$run/failures"
}

retrying= again=() long=() together=() alone=()
for t in "$@"; do
	case $t in *.sh) source=$t ;; *) source=tests/${t##*/tests/}.c ;; esac
	case $(grep -m 1 -o 'run\.sh: [a-z]*' "$source") in
	*alone) alone+=("$t") ;;
	*long) long+=("$t") ;;
	*) together+=("$t") ;;
	esac
done
for t in "${long[@]}" "${together[@]}"; do
	while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do end; done
	begin "$t"
done
while [ -n "$(jobs -p)" ]; do end; done
for t in "${alone[@]}"; do
	begin "$t"
	end
done
if [ "${KVFS_RETRY:-0}" = 1 ]; then
	retrying=.again
	for t in "${again[@]}"; do
		begin "$t"
		end
	done
fi
[ "$skipped" = 0 ] || { echo "skipped:"; sed 's/^/    /' "$run/skips"; }
[ ! -e "$run/failures" ] || cat "$run/failures"
echo "$passed passed ($unsteady of them only alone), $failed failed, $skipped with skipped tests, $SECONDS s"
[ "$failed" = 0 ] && [ "$unsteady" -le 2 ] && { [ "${KVFS_STRICT:-0}" != 1 ] || [ "$skipped" = 0 ]; }
