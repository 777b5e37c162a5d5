#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make.sh KVFS NAME - make NAME.tar.xz, a small store as the daemon KVFS writes
# it, and NAME.txt, what must be read from it for ever: digest and path of each
# block.  Run once for each format; never again for one that was released.
set -eu
kvfs=$(realpath "$1") name=$2
here=$(dirname "$(realpath "$0")")
T=$(mktemp -d)
trap 'umount -l "$T/mnt" 2>/dev/null; rm -rf "$T"' EXIT
mkdir "$T/mnt"
"$kvfs" -o dram=32M,ssd=32M,segment=8M,hugepages=off,scrub=0,control="$T/sock" "$T/store" "$T/mnt"
block() { # block SPACE KEY MKBLOCK-OPTIONS: save a block that mkblock.py makes
	local dir=$T/mnt/$1/${2:0:2}
	mkdir -p "$dir"
	python3 "$here/../mount/mkblock.py" "$T/block" "${@:3}"
	cp "$T/block" "$dir/$2"
}
long=$(printf 'c%.0s' {1..64})
mkdir -m 2750 "$T/mnt/plain"
chown 1234:4321 "$T/mnt/plain"
for i in 1 2 3; do block plain "$(printf 'aa%030x' $i)" --seed $i --bytes 3000; done
block plain "$long" --seed 4 --bytes 20
mkdir "$T/mnt/typed"
echo '{"tensors": [{"name": "k", "dtype": "U8", "shape": [2000]}], "tokens": 4}' > "$T/mnt/typed/.layout"
for i in 5 6; do block typed "$(printf 'bb%030x' $i)" --seed $i --tensor k:U8:2000:2000; done
block plain "$(printf 'dd%030x' 1)" --seed 7 --bytes 3000
block plain "$(printf 'aa%030x' 4)" --seed 8 --bytes 9000
mkdir "$T/mnt/told"
echo '{"tensors": [{"name": "k", "dtype": "U8", "shape": [2000]}], "tokens": 4, "token_ids": true}' > "$T/mnt/told/.layout"
for i in 8 9; do block told "$(printf 'ee%030x' $i)" --seed $i --tensor k:U8:2000:2000 --meta tokens=3 --meta "token_ids=$i,0,4294967295" --meta extras=0f; done
sync "$T/mnt/plain" "$T/mnt/typed" "$T/mnt/told"
setfattr -n user.kvfs.pin -v 1 "$T/mnt/plain/aa/$(printf 'aa%030x' 2)"
setfattr -n user.kvfs.quota.ssd -v 1G "$T/mnt/typed"
rm "$T/mnt/plain/dd/$(printf 'dd%030x' 1)"
(cd "$T/mnt" && find . -path ./.kvfs -prune -o -type f ! -name .layout -printf '%P\n' | LC_ALL=C sort | xargs xxh128sum) > "$here/$name.txt"
umount "$T/mnt"
while pgrep -f "$T/store" > /dev/null; do sleep 0.1; done
tar -C "$T" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cJf "$here/$name.tar.xz" store
ls -l "$here/$name.tar.xz"
