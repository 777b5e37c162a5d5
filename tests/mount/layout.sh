#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# layout.sh - a space gets its .layout once, also from programs that restore a space; blocks
# that do not fit the layout are refused.
. "$(dirname "$0")/lib"
start
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]},
             {"name": "v", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16}
L
kv() { block "$@" --tensor k:BF16:4x16x64:8192 --tensor v:BF16:4x16x64:8192; }
kv "$T/good"
block "$T/other"
block "$T/swapped" --tensor v:BF16:4x16x64:8192 --tensor k:BF16:4x16x64:8192
block "$T/dtype" --tensor k:F16:4x16x64:8192 --tensor v:BF16:4x16x64:8192
block "$T/shape" --tensor k:BF16:16x4x64:8192 --tensor v:BF16:4x16x64:8192
block "$T/more" --tensor k:BF16:4x16x64:8192 --tensor v:BF16:4x16x64:8192 --tensor x:U8:8:8
mkdir "$M/s" "$M/s/01" || fail mkdir
absent "an untyped space has none" "$M/s/.layout"
for bad in x '{' '[]' '{}' '{"tensors": []}' '{"tensors": [{"name": "k"}]}' \
	'{"tensors": [{"name": "k", "dtype": "BF17", "shape": [1]}]}' \
	'{"tensors": [{"name": "k", "dtype": "BF16", "shape": [0]}]}' \
	'{"tensors": [{"name": "k", "dtype": "BF16", "shape": [1]}], "bogus": 1}'; do
	printf '%s' "$bad" > "$T/bad"
	not "layout $bad" "Invalid argument" cp "$T/bad" "$M/s/.layout"
	absent "layout $bad" "$M/s/.layout"
done
# The shell ignores the result of close(2), so the write itself must fail.
refused() { # refused REASON TEXT
	not "redirection of $2" "Invalid argument" bash -c 'printf %s "$1" >"$2"' sh "$2" "$M/s/.layout"
	absent "after redirection of $2" "$M/s/.layout"
	case $(xattr "$M/s" layout.error) in *"$1"*) ;; *) fail "reason of $2: $(xattr "$M/s" layout.error)" ;; esac
}
one='{"tensors": [{"name": "k", "dtype": "BF16", "shape": [1]}]'
refused 'line 1' x
refused 'must be an array' '{}'
refused 'tensor 0' '{"tensors": [{"name": "k", "dtype": "BF17", "shape": [1]}]}'
refused '"bogus"' "$one, \"bogus\": 1}"
refused 'sharing needs "seed"' "$one, \"share\": true}"
refused 'end of file expected' "$one}}"
refused 'end of file expected' "$one} junk"
for byte in 'x' '}'; do
	not "$byte behind a layout" "Invalid argument" bash -c \
		"{ printf '%s\n \n' '$one}'; env printf '$byte'; } >'$M/s/.layout'"
	absent "$byte behind a layout" "$M/s/.layout"
done
printf '%s' '{"tensors": [' >"$M/s/.layout" # the close fails, unseen
absent "half a layout" "$M/s/.layout"
case $(xattr "$M/s" layout.error) in line\ 1,*) ;; *) fail "reason of half a layout" ;; esac
not "set the reason" "Operation not permitted" setfattr -n user.kvfs.layout.error -v x "$M/s"
mkdir "$M/w" && { printf '%s ' "$one"; printf '}'; printf '\n'; printf ' \n'; } >"$M/w/.layout" || fail "in four writes"
[ -s "$M/w/.layout" ] || fail "a layout in four writes"
not "no reason" "No such attribute" getfattr -n user.kvfs.layout.error "$M/w"
not "another, by redirection" "File exists" bash -c 'echo "$1" >"$2"' sh "${one/BF16/F16}}" "$M/w/.layout"
rm -r "$M/w" || fail "rm"
head -c 70000 /dev/zero > "$T/bad"
not "a layout of 70000 bytes" "File too large" cp "$T/bad" "$M/s/.layout"
absent "after it" "$M/s/.layout"
eq "the reason" "$(xattr "$M/s" layout.error)" "it is longer than 60000 bytes"
not "by setfattr" "Invalid argument" setfattr -n user.kvfs.layout -v '{' "$M/s"
: > "$M/s/.layout"
absent "an empty one" "$M/s/.layout"
mkdir "$M/w" && : > "$M/w/.layout"
case $(xattr "$M/w" layout.error) in *"expected near end of file"*) ;; *) fail "reason of an empty one" ;; esac
ok "a close before the write" bash -c '{ sleep 0 & printf %s "$1"; wait; } > "$2"' sh "$one}" "$M/w/.layout"
not "no reason" "No such attribute" getfattr -n user.kvfs.layout.error "$M/w"
rm -r "$M/w" || fail "rm"

ok "make it" cp "$T/layout" "$M/s/.layout"
python3 -c "
import json, sys
l = json.load(open(sys.argv[1]))
assert [t['name'] for t in l['tensors']] == ['k', 'v'], l
assert l['tokens'] == 16 and l['reuse'] == 'prefix' and len(l['seed']) == 16, l
assert set(l) == {'tensors', 'tokens', 'reuse', 'fingerprint', 'seed', 'salt'}, l
" "$M/s/.layout" || fail "the layout as read"
eq "size" "$(stat -c %s "$M/s/.layout")" "$(wc -c < "$M/s/.layout")"
eq "it is listed first" "$(ls -Uf "$M/s" | grep -vx '\.\.*' | head -n 1)" .layout
eq "as an attribute" "$(xattr "$M/s" layout)" "$(cat "$M/s/.layout")"
cp "$M/s/.layout" "$T/canonical"
ok "the same again" cp "$T/layout" "$M/s/.layout"
ok "what was read again" cp "$T/canonical" "$M/s/.layout"
ok "by setfattr" setfattr -n user.kvfs.layout -v "$(cat "$T/canonical")" "$M/s"
sed 's/"tokens": *16/"tokens": 32/' "$T/canonical" > "$T/differs"
not "another" "File exists" cp "$T/differs" "$M/s/.layout"
not "another by setfattr" "File exists" setfattr -n user.kvfs.layout -v "$(cat "$T/differs")" "$M/s"
same "the first stays" "$T/canonical" "$M/s/.layout"
ok "rm of it" rm "$M/s/.layout"
same "does nothing" "$T/canonical" "$M/s/.layout"
ok "tar of the space" tar -C "$M/s" -cf "$T/s.tar" .layout
for again in once twice; do
	ok "tar over it, $again" timeout 60 tar -C "$M/s" -xf "$T/s.tar"
	same "changes nothing" "$T/canonical" "$M/s/.layout"
done
mkdir "$T/from" && cp "$T/canonical" "$T/from/.layout" && cp "$T/good" "$T/from/x" || fail cp
for where in s restored; do
	ok "rsync --delay-updates of a layout" rsync -a --delay-updates --exclude x "$T/from/" "$M/$where/"
	same "it is there" "$T/canonical" "$M/$where/.layout"
done
rmdir "$M/restored" || fail "rmdir of what rsync restored"
ok "install over it" timeout 60 install "$T/layout" "$M/s/.layout"
not "install of another over it" "File exists" timeout 60 install "$T/differs" "$M/s/.layout"
same "changes nothing" "$T/canonical" "$M/s/.layout"
not "rename of it" "Operation not permitted" mv -T "$M/s/.layout" "$M/s/.layout.x"

ok "a block of the layout" cp "$T/good" "$M/s/$(place 1)"
for f in other swapped dtype shape more; do
	not "a block with another layout: $f" "Bad message" cp "$T/$f" "$M/s/$(place 257)"
	absent "$f" "$M/s/$(place 257)"
done

mkdir "$M/u" "$M/u/01" || fail mkdir
cp "$T/good" "$M/u/$(place 1)" || fail "untyped"
cp "$T/other" "$M/u/$(place 257)" || fail "untyped"
not "a layout that a block there does not fit" "Bad message" cp "$T/layout" "$M/u/.layout"
absent "after it" "$M/u/.layout"
rm "$M/u/$(place 257)"
ok "one that all fit" cp "$T/layout" "$M/u/.layout"

ok "cp -r" cp -r "$M/s" "$M/s2"
ok "cp -a" cp -a "$M/s" "$M/s3"
ok "tar" sh -c "mkdir $M/s4 && tar -C $M/s -cf - . | tar -C $M/s4 -xf -"
ok "rsync" rsync -a "$M/s/" "$M/s5/"
ok "rsync again" rsync -a "$M/s/" "$M/s5/"
for s in s2 s3 s4 s5; do
	same "$s: layout" "$T/canonical" "$M/$s/.layout"
	same "$s: block" "$T/good" "$M/$s/$(place 1)"
done
restart
same "after a restart" "$T/canonical" "$M/s/.layout"
ok "rm -r of a typed space" rm -r "$M/s"
absent "rm -r" "$M/s"
stop
