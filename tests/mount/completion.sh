#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# completion.sh - bash completes the commands of kvfs, their options and the names of spaces.
. "$(dirname "$0")/lib"
start
PATH=$B:$PATH
. "$here/../../tools/completion/kvfs.bash" || fail "the completion is not accepted"
# Print what TAB offers for these words.
offered() {
	COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
	_kvfs
	printf '%s\n' "${COMPREPLY[@]}" | sort | xargs
}
mkdir "$M/qwen" "$M/quota" "$M/llama"
words=$(sed -n '/^static const char \*const programs/,/^static bool/p' "$here/../../fs/main.c" |
	grep -oE '"[a-z]+"' | tr -d '"' | sort | xargs)
eq "all commands" "$(offered kvfs '')" "$words"
eq "one command" "$(offered kvfs tr)" tree
eq "none" "$(offered kvfs xyz)" ""
eq "options" "$(offered kvfs du -)" "--help --json -h -p -u"
eq "spaces" "$(offered kvfs tree -p "$SOCK" q)" "quota qwen"
eq "a path" "$(offered kvfs ls -p "")" ""
eq "no daemon" "$(offered kvfs tree -p "$T/nothing" q)" ""
complete -p kvfs | grep -q -- '-F _kvfs' || fail "the completion is not registered"
stop
