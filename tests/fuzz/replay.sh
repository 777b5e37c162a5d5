#!/bin/bash
# replay.sh - every fuzz target on its corpus: what was found once stays fixed.
here=$(dirname "$(realpath "$0")")
for source in "$here"/*.c; do
	target=$(basename "$source" .c)
	echo "$target"
	"$B/tests/fuzz/$target" "$here/corpus/$target"/* || exit 1
done
