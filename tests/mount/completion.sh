#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# completion.sh - bash, and zsh if that is installed, complete the commands of kvfs, their options
# and the names of spaces.
. "$(dirname "$0")/lib"
start
PATH=$B:$PATH
completion=$(realpath "$here/../../tools/completion")
. "$completion/kvfs.bash" || fail "the completion is not accepted"
timeout() { command timeout 60 "${@:2}"; } # two seconds are too few on a busy machine
# Print what TAB offers for these words.
in_bash() {
	COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
	_kvfs
	printf '%s\n' "${COMPREPLY[@]}" | sort | xargs
}
# Type the words and TAB in a zsh at a terminal, which puts all matches into the line.
cat >"$T/.zshrc" <<'END'
PS1= fpath=($COMPLETION $fpath)
autoload -Uz compinit && compinit -D -u
zstyle ':completion:*' completer _all_matches _complete
zstyle ':completion:*' insert true
line() { print -r -- "<<$BUFFER>>"; exit }
zle -N line
timeout() { command timeout 60 $@[2,-1] }
bindkey '^X' line
bindkey '^I' complete-word
print ready
END
cat >"$T/type.zsh" <<'END'
zmodload zsh/zpty
zpty terminal zsh -di
zpty -r terminal text '*ready*' || exit 1
before=${(j: :)${(q)@[1,-2]}}
zpty -w -n terminal "$before $@[-1]"$'\t\x18'
zpty -r terminal text '*<<*>>*' || exit 1
text=${${text##*<<}%%>>*}
print -r -- "${text#$before}"
END
in_zsh() { COMPLETION=$completion ZDOTDIR=$T timeout 30 zsh -f "$T/type.zsh" "$@" | tr ' ' '\n' | sort | xargs; }

# Other users choose names of spaces, which a shell must not run.
mkdir "$M/qwen" "$M/quota" "$M/llama" "$M/"'q$(>pwned)' "$M/"'q`>pwned`' "$M/q;>pwned" "$M/q two" "$M/q"$'\n>pwned' || fail mkdir
words=$(sed -n '/^} words\[\]/,/};/p' "$here/../../fs/main.c" |
	grep -oE '"[a-z]+"' | tr -d '"' | sort | xargs)
cd "$T" || exit 1
for offered in in_bash $(command -v zsh >/dev/null && echo in_zsh); do
	eq "$offered: all commands" "$($offered kvfs '')" "$words"
	eq "$offered: one command" "$($offered kvfs tr)" tree
	eq "$offered: options" "$($offered kvfs du -)" "--help --json -h -p -u"
	eq "$offered: options of a program" "$($offered kvfs bench -)" "--build --dir --json --only --quick"
	eq "$offered: an option of a program" "$($offered kvfs replay --j)" --json
	eq "$offered: spaces" "$($offered kvfs tree -p "$SOCK" q)" "quota qwen"
	absent "$offered: a command in a name" "$T/pwned"
done
eq "none" "$(in_bash kvfs xyz)" ""
eq "a path" "$(in_bash kvfs ls -p "")" ""
eq "no daemon" "$(in_bash kvfs tree -p "$T/nothing" q)" ""
complete -p kvfs | grep -q -- '-F _kvfs' || fail "the completion is not registered"
stop
