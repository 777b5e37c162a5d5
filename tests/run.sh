#!/bin/bash
# run.sh TEST... - run unit test programs and scripts, and count.
# Each runs in a fresh directory on the build's own filesystem.  A script exits
# 77 to be skipped.  Output is shown only of what fails, and after all else, where
# the reader of a cut log still finds it.
passed=0 failed=0 skipped=0
B=$(realpath "${B:-build}")
export B
run=$(mktemp -d "$B/run.XXXXXX") || exit 1
trap 'rm -rf "$run"' EXIT
for t in "$@"; do
	name=${t#build*/}
	t=$(realpath "$t")
	start=$SECONDS
	mkdir -p "$run/dir"
	(cd "$run/dir" && exec timeout -k 10 1200 "$t") \
		>"$run/log" 2>&1 </dev/null
	rc=$?
	rm -rf "$run/dir"
	case $rc in
	0) verdict=ok; passed=$((passed + 1)) ;;
	77) verdict="skip: $(tail -n 1 "$run/log")"; skipped=$((skipped + 1)) ;;
	*) verdict="FAILED ($rc)"; failed=$((failed + 1)) ;;
	esac
	printf '%-44s %4ds  %s\n' "$name" $((SECONDS - start)) "$verdict"
	[ "$rc" = 0 ] || [ "$rc" = 77 ] || {
		echo "$name: FAILED ($rc)"
		tail -n 60 "$run/log" | sed 's/^/    /'
	} >>"$run/failures"
done
[ "$failed" = 0 ] || cat "$run/failures"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
