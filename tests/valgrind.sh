#!/bin/bash
# valgrind.sh [TEST...] - run the unit tests (tests/x/test_y; default: all suitable ones) under
# memcheck; fail for errors and definite leaks.
set -u
tests/need.sh valgrind || exit 1
export B=${B:-build}
B=$(realpath -m "$B")

# left_out TEST: print why the test cannot run under valgrind, or nothing.
left_out() {
	case $1 in
	*/test_alloc) echo "has malloc itself, as valgrind does" ;;
	tests/index/test_fault) echo "jumps out of LMDB, as the daemon does when \
a page cannot be read; what LMDB had allocated stays" ;;
	tests/index/test_check) echo "its children end without cleaning up" ;;
	tests/cache/test_ring_uring) echo "valgrind does not see what the kernel \
writes by io_uring" ;;
	tests/*/test_calls) echo "calls fail that valgrind itself makes" ;;
	tests/cache/test_policy | tests/cache/test_miss_curve) ;;
	tests/cache/* | tests/kernels/*) echo "too slow: its threads take turns; \
ASan and TSan run it" ;;
	esac
}

tests=${*:-$(ls tests/*/test_*.c | sed 's/\.c$//')}
make --no-print-directory -s -j2 B="$B" all $(printf "$B/%s " $tests) || exit 1
run=$(mktemp -d "$B/valgrind.XXXXXX") || exit 1
trap 'rm -rf "$run"' EXIT
failed=0
for t in $tests; do
	why=$([ $# -gt 0 ] || left_out "$t")
	[ -z "$why" ] || { printf '%-34s left out: %s\n' "$t" "$why"; continue; }
	start=$SECONDS
	mkdir -p "$run/dir"
	(cd "$run/dir" && exec timeout -k 10 900 valgrind -q --error-exitcode=99 \
		--leak-check=full --errors-for-leak-kinds=definite \
		--fair-sched=try "$B/$t") >"$run/log" 2>&1 </dev/null
	rc=$?
	rm -rf "$run/dir"
	printf '%-34s %4ds  %s\n' "$t" $((SECONDS - start)) \
		"$([ $rc = 0 ] && echo ok || echo "FAILED ($rc)")"
	[ $rc = 0 ] || { failed=1; tail -n 60 "$run/log" | sed 's/^/    /'; }
done
exit $failed
