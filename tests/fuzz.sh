#!/bin/bash
# fuzz.sh [--merge] [TARGET...] - build the targets in tests/fuzz/ with libFuzzer,
# ASan and UBSan, and run each for FUZZ_SECONDS (20).
# New inputs go to $B/corpus/TARGET, where the next run continues, and failing inputs to
# $B/findings.  --merge: instead, make the committed corpus anew from both, as few files as
# reach every branch.
set -u
tests/need.sh clang libclang-rt-dev || exit 1
B=${B:-build-fuzz}
seconds=${FUZZ_SECONDS:-20}
merge=
[ "${1:-}" != --merge ] || { merge=1; shift; }
targets=${*:-$(basename -s .c tests/fuzz/*.c)}
# Check for leaks at the end only: libFuzzer reports false leaks while threads run.
options="-max_len=4096 -timeout=25 -rss_limit_mb=4096 -detect_leaks=0"
mkdir -p "$B/findings" || exit 1
make --no-print-directory -s CC="${CC:-clang}" B="$B" SAN=fuzzer,address,undefined \
	$(printf "$B/tests/fuzz/%s " $targets) || exit 1

run() { # run TARGET: fuzz it for $seconds, from the corpus
	mkdir -p "$B/corpus/$1"
	"$B/tests/fuzz/$1" $options -max_total_time="$seconds" -print_final_stats=1 \
		-artifact_prefix="$B/findings/$1-" \
		"$B/corpus/$1" "tests/fuzz/corpus/$1" >"$B/$1.log" 2>&1
}

minimise() { # minimise TARGET: make its corpus anew, of few files
	rm -rf "$B/merged" && mkdir -p "$B/merged" "$B/corpus/$1"
	"$B/tests/fuzz/$1" $options -use_counters=0 -merge=1 "$B/merged" \
		"tests/fuzz/corpus/$1" "$B/corpus/$1" >"$B/$1.log" 2>&1 || return
	rm -rf "tests/fuzz/corpus/$1" && mv "$B/merged" "tests/fuzz/corpus/$1"
}

failed=0
for t in $targets; do
	if [ -n "$merge" ]; then
		minimise "$t" || failed=1
		echo "$t: $(ls "tests/fuzz/corpus/$t" | wc -l) files," \
			"$(du -sb "tests/fuzz/corpus/$t" | cut -f 1) bytes"
		continue
	fi
	run "$t" || { failed=1; tail -n 50 "$B/$t.log"; }
	printf '%-10s %10s executions  %5s of %5s edges\n' "$t" \
		"$(sed -n 's/stat::number_of_executed_units: *//p' "$B/$t.log")" \
		"$(grep -o 'cov: [0-9]*' "$B/$t.log" | tail -n 1 | cut -d ' ' -f 2)" \
		"$(sed -n 's/.*PC tables (\([0-9]*\) PCs).*/\1/p' "$B/$t.log")"
done
[ "$failed" = 0 ] || echo "something was found: see $B/findings"
exit $failed
