#!/bin/sh
# man.sh PAGE... - groff and man accept every page without a word.
for page in "$@"; do
	said=$( (groff -man -ww -Tutf8 -z "$page"; man --warnings=all -l "$page" > /dev/null) 2>&1)
	[ -z "$said" ] || { echo "$page: $said"; exit 1; }
done
