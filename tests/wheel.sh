#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# wheel.sh [SUITE...] - install the wheel on a bare Debian 12 and 13 as an ordinary user,
# start a daemon without a mount, save and load blocks, reach a web server whose certificate the
# distribution trusts (wherever it keeps its file), start and share a daemon with the path "auto",
# also under the conditions of containers, and uninstall.  With ENGINES=FOLDER, an environment of
# connectors/tests/engines.sh, vLLM finds on Debian 12 what another vLLM has saved.  Exits 77 as
# bare.sh does.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/debian
wheel=$(echo "${B:-build}"/wheel/kvfs-*-manylinux_*.whl)
[ -f "$wheel" ] || fail "there is no wheel: run \"make wheel\""
T=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-wheel.XXXXXX") || exit 1
trap 'rm -rf --one-file-system "$T"' EXIT
trap 'exit 1' INT TERM
# apt drops its rights to a user of its own, which must reach the files below $T.
chmod 755 "$T"

openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout "$T/site.key" -out "$T/site.pem" -subj /CN=site \
	-addext subjectAltName=IP:127.0.0.1 2>"$T/out" || fail "openssl"
cat >"$T/blocks.py" <<'END'
import ctypes, sys, kvfs
with kvfs.open(sys.argv[1]) as session:
    assert session.connected
    layout = {"tensors": [{"name": "k", "dtype": "U8", "shape": [4096]}], "tokens": 16}
    space = session.space("test", layout, create=True)
    memory = ctypes.create_string_buffer(bytes(range(256)) * 16 * 2, 4 * 4096)
    view = kvfs.View("k", ctypes.addressof(memory), 4096, 4096)
    pool = session.pool(space, [view], 4, keep=memory)
    keys = space.chain(range(32))
    assert pool.save(space, keys, [0, 1]).wait() == 2
    assert space.match(keys) == 2
    with space.acquire(keys) as lease:
        assert lease.wait() == 2
        assert pool.load(lease, [2, 3]).wait() == 2
    assert memory.raw[:8192] == memory.raw[8192:] and memory.raw[255] == 255
END
# The program that refuses system calls runs on every Debian.
"${CC:-cc}" -static -O2 -D_GNU_SOURCE -o "$T/without" tests/crash/without.c || fail "without.c"
cat >"$T/auto.py" <<'END'
"""Two processes share the daemon that the first has started, which ends when it is idle; then a
daemon of another version is refused."""
import ctypes, glob, os, socket, struct, subprocess, sys, threading, time, kvfs
from kvfs import auto
auto.DRAM_MAX, auto.IDLE = 64 << 20, 2

def answer(listening):
    while True:
        connection = listening.accept()[0]
        asked = connection.recv(256)  # empty if the client closes at once, else the message HELLO of wire.h
        if len(asked) >= 24:
            kind, _, count, tag, *_ = struct.unpack_from("=HHIQIiQ", asked)
            connection.send(struct.pack("=HHIQIiQ IIQ16x", kind, 1, count, tag, 0, -93, 0, 99, 98, 0))
        connection.close()

def blocks(save):
    with kvfs.open() as session:
        assert session.connected
        layout = {"tensors": [{"name": "k", "dtype": "U8", "shape": [4096]}], "tokens": 16}
        space = session.space("test", layout, create=True)
        memory = ctypes.create_string_buffer(bytes(range(256)) * 32, 4 * 4096)
        pool = session.pool(space, [kvfs.View("k", ctypes.addressof(memory), 4096, 4096)], 4, keep=memory)
        keys = space.chain(range(32))
        if save:
            assert pool.save(space, keys, [0, 1]).wait() == 2
            subprocess.run([sys.executable, __file__, "find"], check=True)
        with space.acquire(keys) as lease:
            assert lease.wait() == 2 and pool.load(lease, [2, 3]).wait() == 2
        assert memory.raw[:8192] == memory.raw[8192:]
        return session.path

if sys.argv[1:]:
    print(blocks(sys.argv[1] == "save"))
    sys.exit()
first, second = subprocess.run([sys.executable, __file__, "save"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
assert first == second
end = time.monotonic() + 30
while glob.glob(f"{first}*"):
    assert time.monotonic() < end, "the daemon does not end"
    time.sleep(0.1)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
    listening.bind(first)
    listening.listen()
    threading.Thread(target=answer, args=(listening,), daemon=True).start()
    try:
        kvfs.open()
        raise SystemExit("a daemon of another version is used")
    except ValueError as error:
        assert "versions 98 to 99" in str(error), error
os.unlink(first)
print("shared:", open(f"{os.path.dirname(first)}/log").read())
END
cat >"$T/auto.sh" <<'END'
cd /
mount -t tmpfs -o mode=1777 tmpfs /tmp
root=/
as_user() { # run auto.py without capabilities, and with 64 KiB of locked memory
	(ulimit -l 64; rm -rf /tmp/kvfs-1000
	"$@" chroot $root setpriv --reuid 1000 --regid 1000 --clear-groups --bounding-set=-all --inh-caps=-all \
		env HOME=/home/user /home/user/env/bin/python /srv/auto.py)
}
as_user env
as_user /srv/without uring
as_user /srv/without nouring
as_user /srv/without mbind
as_user /srv/without nouring /srv/without mbind
mount -t tmpfs -o size=64M tmpfs /dev/shm
as_user env
mkdir /tmp/dev && cp -a /dev/null /dev/zero /dev/random /dev/urandom /tmp/dev/
mount --bind /tmp/dev /dev # a /dev without shm and fuse
as_user env
root=/mnt # read-only, but for /tmp
mount --bind / $root
mount -o remount,bind,ro $root
for folder in dev proc sys tmp; do mount --rbind /$folder $root/$folder; done
if touch $root/srv/x; then exit 1; fi
as_user env
as_user /srv/without uring /srv/without mbind
END
cat >"$T/engines.py" <<'END'
"""vLLM with the connector's defaults: the second engine loads what the first has saved."""
import os, subprocess, sys
sys.path.insert(0, "/srv")
if not sys.argv[1:]:
    subprocess.run([sys.executable, "/srv/models.py", "qwen", os.path.expanduser("~/model")], check=True)
    runs = [subprocess.run([sys.executable, __file__, "run"], check=True, stdout=subprocess.PIPE, text=True).stdout
            for _ in range(2)]
    (first, cached), (again, found) = (run.strip().split("\n")[-1].split(":") for run in runs)
    assert first == again and cached == "0" and int(found) >= 1000, runs
    print(f"vllm: {found} tokens of 1200 loaded")
    sys.exit()
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0")
import cpu
from vllm import LLM, SamplingParams
llm = LLM(model=os.path.expanduser("~/model"), skip_tokenizer_init=True, dtype="float32", enforce_eager=True, seed=0,
          max_model_len=2048, max_num_batched_tokens=2048, disable_log_stats=False, distributed_executor_backend="uni",
          kv_transfer_config={"kv_connector": "KvfsConnector", "kv_connector_module_path": "kvfs.vllm", "kv_role": "kv_both"})
got = llm.generate([{"prompt_token_ids": [i * i % 1000 + 3 for i in range(1200)]}],
                   SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False), use_tqdm=False)[0]
print(f"{list(got.outputs[0].token_ids)}:{got.num_cached_tokens}")
sys.stdout.flush()
llm.llm_engine.engine_core.shutdown()
END
cat >"$T/vllm.sh" <<'END'
cd ~
packages=$(echo ~/env/lib/python3.*/site-packages):$(echo /opt/engines/lib/python3.*/site-packages)
export PYTHONPATH=$packages PYTHONSAFEPATH=1
python3 -W ignore /srv/engines.py
sleep 1
END
cat >"$T/site.py" <<'END'
import http.server, ssl
server = http.server.HTTPServer(("127.0.0.1", 8443), http.server.SimpleHTTPRequestHandler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/srv/site.pem", "/srv/site.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
END
cat >"$T/user.sh" <<'END'
cd ~
python3 -m venv env
env/bin/pip install -q --no-cache-dir /srv/kvfs-*.whl
PATH=$HOME/env/bin:$PATH
kvfs --version
kvfs-bundle --version
kvfs-fsck --help >help
kvfs-replay --help >>help
kvfs-bench --help >>help
kvfs-remote-mooncake --help >>help
[ -s env/share/man/man1/kvfs.1 ]
[ -s env/share/zsh/site-functions/_kvfs ]
(. env/share/bash-completion/completions/kvfs; COMP_WORDS=(kvfs tr) COMP_CWORD=1; _kvfs; [ "$COMPREPLY" = tree ])
! ldd env/lib/python3*/site-packages/kvfs/bin/kvfs | grep 'not found'
options=dram=64M,ssd=128M,segment=8M,control=$HOME/run/control
kvfs -f -o $options ./store none 2>log &
until [ -S run/control ]; do sleep 0.1; kill -0 $!; done
kvfs --health run/control
kvfs status -p run/control
kvfs du -p run/control
kvfs bundle --version
kvfs forget nothing 2>&1 | grep 'nothing: No such file'
kvfs fsck --help
python3 /srv/blocks.py ~/run/control
kvfs-forget nothing 2>&1 | grep 'nothing: No such file'
kill $!
wait $!
cat log
kvfs-fsck store
# Nobody has vouched for this server.
python3 /srv/site.py 2>site.log &
until (exec 3<>/dev/tcp/127.0.0.1/8443) 2>none; do sleep 0.1; done
! kvfs -f -o $options,remote=https://127.0.0.1:8443/ ./store none 2>refused
cat refused
END
cat >"$T/trusted.sh" <<'END'
cd ~
python3 /srv/site.py 2>site.log &
until (exec 3<>/dev/tcp/127.0.0.1/8443) 2>none; do sleep 0.1; done
env/bin/kvfs -o dram=64M,ssd=128M,segment=8M,control=$HOME/run/control,remote=https://127.0.0.1:8443/ ./store none
env/bin/kvfs --health run/control
END
echo 'cd ~; env/bin/pip uninstall -q -y kvfs; ! find env -name "*kvfs*" | grep .' >"$T/uninstall.sh"

[ $# -gt 0 ] || set -- bookworm trixie
for suite; do
	R=$T/$suite
	debian $suite "$R" --include=python3-venv,ca-certificates${ENGINES:+,libnuma1} || fail "mmdebstrap $suite"
	cp "$wheel" "$T"/*.{py,sh} "$T"/site.{key,pem} "$R/srv"
	chmod 644 "$R"/srv/*
	cp "$T/without" "$R/srv"
	as_user() { # as_user SCRIPT: run a script as an ordinary user
		cp "$T/$1" "$R/srv/$1"
		echo "# $1 on $suite"
		inside "$R" 600 setpriv --reuid 1000 --regid 1000 --clear-groups env HOME=/home/user bash -eux "/srv/$1"
	}
	mkdir -p "$R/home/user" && chown 1000:1000 "$R/home/user"
	as_user user.sh >"$T/out" 2>&1 || fail "a command fails"
	grep -q certificate "$R/home/user/refused" || fail "an unknown certificate is not refused"
	# No bundle where Debian has it, but the site's certificate where others have theirs
	mv "$R/etc/ssl/certs/ca-certificates.crt" "$R/srv"
	for bundle in /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
		mkdir -p "$R${bundle%/*}" && cp "$T/site.pem" "$R$bundle"
		as_user trusted.sh >"$T/out" 2>&1 || fail "the certificate in $bundle is not trusted"
		rm "$R$bundle"
	done
	mv "$R/srv/ca-certificates.crt" "$R/etc/ssl/certs"
	echo "# auto.sh on $suite"
	inside "$R" 600 bash -eux /srv/auto.sh >"$T/out" 2>&1 || fail "path=auto fails"
	[ "$(grep -c '^shared:' "$T/out")" = 9 ] || fail "path=auto has not been tried under each condition"
	if [ $suite = bookworm ] && [ -n "${ENGINES:-}" ]; then
		cp connectors/tests/{models,cpu}.py "$T/engines.py" "$R/srv" && mkdir "$R/opt/engines" || fail "engines.py"
		mount --bind "$ENGINES" "$R/opt/engines" || fail "$ENGINES cannot be mounted"
		as_user vllm.sh >"$T/out" 2>&1
		rc=$?
		umount -l "$R/opt/engines"
		grep '^vllm: ' "$T/out" && [ $rc = 0 ] || fail "vLLM"
	fi
	as_user uninstall.sh >"$T/out" 2>&1 || fail "uninstall leaves files"
	echo "$(. "$R/etc/os-release" && echo "$PRETTY_NAME"): installed, used and uninstalled"
done
