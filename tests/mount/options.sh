#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# options.sh - bad options on the command line are refused in one line that names the
# option, with an exit status, and no STORE is made.
. "$(dirname "$0")/lib"
refused() { # refused WORD ARGUMENTS...: fail unless kvfs prints one line with WORD, and exits with 1
	local word=$1
	shift
	"$B/kvfs" "$@" > "$T/out" 2> "$T/err" < /dev/null
	eq "kvfs $*: the status" $? 1
	eq "kvfs $*: nothing on stdout" "$(cat "$T/out")" ""
	eq "kvfs $*: one line" "$(wc -l < "$T/err")" 1
	grep -qF -e "$word" "$T/err" || fail "kvfs $*: '$(cat "$T/err")' does not name '$word'"
	absent "kvfs $*" "$S"
	eq "kvfs $*: nothing is mounted" "$(grep -c " $M " /proc/self/mountinfo)" 0
}
for v in "" -1 -64M 0 +64M 64MB 1.5G 0x10M 15M 99999999999999999999 18446744073709551616 17179869184G \
	0% 101% ' 64M' 64m abc 1000T; do
	refused dram -o "dram=$v" "$S" "$M"
done
for v in "" -1 +1G 1GB 1.5G 0x1 1M 99999999999999999999 200% -5%; do refused ssd -o "ssd=$v" "$S" "$M"; done
for v in "" 0 -1 7M 10% 64MB; do refused segment -o "segment=$v" "$S" "$M"; done
for v in "" -1 5% 1M/s; do refused scrub -o "scrub=$v" "$S" "$M"; done
for v in "" -1 5%; do refused ssd_write -o "ssd_write=$v" "$S" "$M"; done
for v in "" -1 5% 1M 1073741825 x; do refused why -o "why=$v" "$S" "$M"; done
refused hugepages -o hugepages=maybe "$S" "$M"
refused writeback -o writeback=some "$S" "$M"
refused evict -o evict=arc "$S" "$M"
"$B/kvfs" -o evict=arc "$S" "$M" 2>&1 | grep -q 'not one of lhd|flru|lru$' || fail "evict=arc: the policies are not listed"
refused arena -o arena=open "$S" "$M"
refused remote -o remote=file:///x "$S" "$M"
refused remote -o "remote=https://host?credentials=here" "$S" "$M"
refused remote -o "remote=s3://bucket?endpoint=https://host&ca=here" "$S" "$M"
refused "comma=/a,b: not one of dir:" -o 'remote=comma=/a\,b' "$S" "$M"
refused control -o control= "$S" "$M"
refused control -o "control=$T/$(printf 'x%.0s' $(seq 120))" "$S" "$M"
refused control -o "control=$M/sock" "$S" "$M"
ln -s "$M" "$T/there" && refused control -o "control=$T/there/sock" "$S" "$M"
refused control -o "control=$T/so"$'\n'"ck" "$S" "$M"
refused STORE -o dram=64M "$S"$'\nro=1' "$M"
mkdir "$T/m"$'\nx' && refused MOUNTPOINT -o dram=64M "$S" "$T/m"$'\nx'
refused uid -o uid=-1 "$S" "$M"
refused gid -o gid=users "$S" "$M"
refused umask -o umask=999 "$S" "$M"
refused ro -o ro=1 "$S" "$M"
refused "no store there" -o ro,dram=64M "$S" "$M"
refused bogus -o bogus "$S" "$M"
refused bogus -o dram=64M,bogus=1,ro "$S" "$M"
refused -x -x "$S" "$M"
refused MOUNTPOINT "$S"
refused STORE
refused "$T/x" "$S" "$M" "$T/x"
ok "help" "$B/kvfs" --help
MAN=$here/../../man/kvfs.1
for word in $("$B/kvfs" -h | sed -n '/^options:/,/^SIZE/p' | grep -v '^SIZE\|^options' ); do
	grep -qw -- "${word%%=*}" "$MAN" || fail "kvfs(1) does not know $word"
	case $word in evict=*) policies=${word#*=} ;; esac
done
for policy in ${policies//|/ }; do
	sed -n '/^\.BI evict=/,/^\.RE/p' "$MAN" | grep -qx "\.B $policy" || fail "kvfs(1) does not know evict=$policy"
	"$B/kvfs" -o "evict=$policy,dram=1" "$S" "$M" 2>&1 | grep -q dram=1 || fail "evict=$policy is not known"
	"$B/kvfs-replay" --help | grep -qw "$policy" || fail "kvfs-replay does not know $policy"
done
ok "version" "$B/kvfs" -V
stdout=$("$B/kvfs" -V)
case $stdout in "kvfs "[0-9]*) ;; *) fail "version: $stdout" ;; esac
