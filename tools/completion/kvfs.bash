# SPDX-License-Identifier: Apache-2.0
# kvfs.bash - completion of `kvfs COMMAND ...` in bash: commands, their options, and the
# names of spaces.  The daemon is that of -p, or the one that the command finds itself.
# compgen -W expands its words, and users choose names: others than plain ones are left out.
_kvfs() {
	local word=${COMP_WORDS[COMP_CWORD]} i path=() IFS=$' \t\n'
	COMPREPLY=()
	if [ "$COMP_CWORD" = 1 ]; then
		COMPREPLY=($(compgen -W "bench bundle du events exporter flame forget fsck ls pin replay rm set status top tree unpin warm why" -- "$word"))
		return
	fi
	for ((i = 2; i < COMP_CWORD; i++)); do
		[ "${COMP_WORDS[i]}" != -p ] || path=(-p "${COMP_WORDS[i + 1]}")
	done
	if [ "${COMP_WORDS[COMP_CWORD - 1]}" = -p ]; then
		return # a path: bash completes files
	fi
	case $word in
	-*)
		COMPREPLY=($(compgen -W "$(kvfs "${COMP_WORDS[1]}" --help 2>/dev/null |
			grep -oE '(^  |\[)(-[a-zA-Z], )?-?-[a-zA-Z-]+' | tr -s ',[ ' '\n' | sort -u)" -- "$word"))
		return ;;
	esac
	case ${COMP_WORDS[1]} in
	du | events | flame | ls | pin | rm | set | tree | unpin | warm | why)
		IFS=$'\n'
		COMPREPLY=($(compgen -W "$(timeout 2 kvfs ls "${path[@]}" 2>/dev/null |
			awk 'NR > 1 && NF == 6 && $6 ~ /^[A-Za-z0-9_.][A-Za-z0-9_.:@%+=,-]*$/ { print $6 }')" -- "$word"))
		IFS=$' \t\n' ;;
	esac
}
complete -o default -F _kvfs kvfs
