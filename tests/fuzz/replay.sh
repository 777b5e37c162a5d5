#!/bin/bash
# replay.sh - run every fuzz target on its corpus, which has the inputs of fixed
# bugs.
here=$(dirname "$(realpath "$0")")
for source in "$here"/*.c; do
	target=$(basename "$source" .c)
	echo "$target"
	"$B/tests/fuzz/$target" "$here/corpus/$target"/* || exit 1
done
