#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# deb.sh - run the autopkgtest of the Debian packages on a bare Debian 12, then boot it: both
# units start, serve another user, come back after SIGKILL and a hang, and keep the store
# through an upgrade and the removal of the package.  Exits 77 as bare.sh does.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/debian
D=${B:-build}/deb
ls "$D"/kvfs_*.deb >/dev/null 2>&1 || fail "there are no packages: run \"make deb\""
command -v systemd-nspawn >/dev/null || skip "no systemd-nspawn: run \"make deps FOR=deb\""
[ -w /dev/fuse ] || skip "no /dev/fuse"
T=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-deb.XXXXXX") || exit 1
trap 'rm -rf --one-file-system "$T"' EXIT
trap 'exit 1' INT TERM
# apt drops its rights to a user of its own, which must reach the files below $T.
chmod 755 "$T"
R=$T/root
debian bookworm "$R" --include=autopkgtest,dpkg-dev,systemd-sysv || fail "mmdebstrap"
cp "$D"/*.deb "$D"/*.dsc "$D"/*.tar.* "$R/srv"
rm "$R"/srv/*-dbgsym_*.deb # which would keep the packages from being removed
inside "$R" 1200 bash -exc 'cd /srv; apt-get update; autopkgtest --no-built-binaries *.deb *.dsc -- null' >"$T/out" 2>&1 ||
	fail "the autopkgtest fails"
grep '^quick-start *PASS' "$T/out" || fail "the autopkgtest did not run"

inside "$R" 300 bash -exc 'cd /srv; apt-get install -y ./*kvfs*_[0-9]*.deb
	dpkg-deb -R kvfs_*.deb new; sed -i "s/^Version: .*/&+new/" new/DEBIAN/control; dpkg-deb -b new new.deb' >"$T/out" 2>&1 ||
	fail "install"
cat >"$R/srv/blocks.py" <<'END'
"""Save or check two blocks as a user who is not the daemon's."""
import ctypes, sys, time, kvfs
with kvfs.open("/run/kvfs/main/control") as session:
    for _ in range(200):
        time.sleep(0 if session.connected else 0.1)
    assert session.connected
    layout = {"tensors": [{"name": "k", "dtype": "U8", "shape": [4096]}], "tokens": 16}
    space = session.space("test", layout, create=True)
    memory = ctypes.create_string_buffer(bytes(range(256)) * 32, 4 * 4096)
    view = kvfs.View("k", ctypes.addressof(memory), 4096, 4096)
    pool = session.pool(space, [view], 4, keep=memory)
    keys = space.chain(range(32))
    if sys.argv[1] == "save":
        assert pool.save(space, keys, [0, 1]).wait() == 2
        space.flush().wait()
    with space.acquire(keys) as lease:
        assert lease.wait() == 2 and pool.load(lease, [2, 3]).wait() == 2
    assert memory.raw[:8192] == memory.raw[8192:]
END
cat >"$R/srv/units.sh" <<'END'
for unit in kvfs@ kvfs-mount@; do
	mkdir -p "/etc/systemd/system/$unit.service.d"
	printf '[Service]\nEnvironment=OPTIONS=dram=64M,ssd=256M,segment=8M,hugepages=off\nWatchdogSec=5\nRestartSec=1\n' \
		>"/etc/systemd/system/$unit.service.d/test.conf"
done
systemctl daemon-reload
blocks() { setpriv --reuid 1234 --regid 1234 --clear-groups python3 /srv/blocks.py "$1"; }
pid() { systemctl show -P MainPID "$1"; }
restarts() { # UNIT N: wait until systemd has restarted it N times
	for _ in {1..600}; do
		[ "$(systemctl show -P NRestarts "$1")" != "$2" ] || ! systemctl -q is-active "$1" || return 0
		sleep 0.1
	done
	systemctl status --no-pager -l "$1"
	false
}
systemctl start kvfs@main
systemd-analyze security --threshold=20 kvfs@main >/srv/security
[ "$(stat -c %U "/proc/$(pid kvfs@main)")" = kvfs ]
blocks save
kill -KILL "$(pid kvfs@main)"
restarts kvfs@main 1
blocks check
kill -STOP "$(pid kvfs@main)" # the watchdog ends the stopped daemon
restarts kvfs@main 2
blocks check

systemctl start "kvfs-mount@$(systemd-escape --path /mnt/kv)"
systemd-analyze security --threshold=50 kvfs-mount@mnt-kv >/srv/security
mkdir /mnt/kv/demo
kill -KILL "$(pid kvfs-mount@mnt-kv)"
restarts kvfs-mount@mnt-kv 1
[ -d /mnt/kv/demo ]
kvfs --health /mnt/kv

before=$(pid kvfs@main)
dpkg -i /srv/new.deb
systemctl -q is-active kvfs@main kvfs-mount@mnt-kv
[ "$(pid kvfs@main)" != "$before" ]
blocks check
[ -d /mnt/kv/demo ]

dpkg -r kvfs
! pgrep -x kvfs
! mountpoint -q /mnt/kv
dpkg -P kvfs
dpkg -i /srv/kvfs_*.deb
systemctl start kvfs@main kvfs-mount@mnt-kv
blocks check
[ -d /mnt/kv/demo ]
systemctl stop kvfs@main kvfs-mount@mnt-kv
! journalctl -b --no-pager | grep 'kvfs.*: cannot\|audit.*SECCOMP'
echo units pass
END
cat >"$R/etc/systemd/system/units.service" <<'END'
[Service]
Type=oneshot
ExecStart=bash -euxc '. /srv/units.sh'
StandardOutput=file:/srv/out
StandardError=inherit
TimeoutStartSec=300
ExecStopPost=systemctl --no-block poweroff --force
[Install]
WantedBy=multi-user.target
END
ln -s ../units.service "$R/etc/systemd/system/multi-user.target.wants/"
timeout 600 unshare -m systemd-nspawn -q -D "$R" -b --register=no --keep-unit -M kvfs-test \
	--capability=CAP_IPC_LOCK,CAP_SYS_RESOURCE --bind=/dev/fuse --console=passive \
	>"$T/boot" 2>&1 </dev/null
cp "$R/srv/out" "$T/out" 2>/dev/null || cp "$T/boot" "$T/out"
grep -x 'units pass' "$T/out" || fail "a unit fails under systemd"
