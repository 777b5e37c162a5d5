#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# container.sh - validate the manifests for Kubernetes against its schemas and the Pod Security
# standard "restricted", build packaging/Containerfile with podman on a bare Debian 12, and run
# the image with the arguments, users and rights of the manifests: engines in other containers
# save and load blocks, which outlive SIGKILL and the container.  Exits 77 as bare.sh does.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/debian
export B=${B:-$PWD/build}
# crun refuses control groups of both versions at once.
if mountpoint -q /sys/fs/cgroup/unified && unshare -m true 2>/dev/null; then
	exec unshare -m bash -c 'umount /sys/fs/cgroup/unified && exec "$0"' "$PWD/tests/container.sh"
fi
T=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-container.XXXXXX") || exit 1
export CONTAINERS_STORAGE_CONF=$T/storage.conf # containers of others are never seen
printf '[storage]\ndriver="vfs"\nrunroot="%s"\ngraphroot="%s"\n' "$T/runroot" "$T/graph" >"$T/storage.conf"
cleanup() {
	podman ps -aq 2>/dev/null | xargs -r podman rm -f >/dev/null 2>&1
	rm -rf --one-file-system "$T"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
chmod 755 "$T"

env=$B/kubernetes
[ -x "$env/bin/kubernetes-validate" ] || {
	python3 -m venv "$env" && "$env/bin/pip" install -q kubernetes-validate || skip "no kubernetes-validate from PyPI"
}
"$env/bin/kubernetes-validate" --strict packaging/kubernetes/*.yaml >"$T/out" 2>&1 || fail "a manifest is not valid"
cat >"$T/manifests.py" <<'END'
"""Check the controls of Pod Security, and write the arguments of kvfs with small sizes."""
import re, sys, yaml
def read(name):
    with open(f"packaging/kubernetes/{name}.yaml") as file:
        return yaml.safe_load(file)
def args(name, container):
    with open(f"{sys.argv[1]}/{name}.args", "w") as file:
        print(*(re.sub(r"dram=\w+,ssd=\w+", "dram=64M,ssd=256M,segment=8M", arg) for arg in container["args"]), file=file)
def hardened(container):
    security = container["securityContext"]
    assert security["allowPrivilegeEscalation"] is False and not security.get("privileged"), security
    assert security["capabilities"] == {"drop": ["ALL"]}, security
    assert not any("hostPort" in port for port in container.get("ports", [])), container
pod, node = read("sidecar")["spec"], read("daemonset")["spec"]["template"]["spec"]
for spec in pod, node:
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), spec
    assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    for container in spec.get("initContainers", []) + spec["containers"]:
        hardened(container)
security = pod["securityContext"]
assert security["runAsNonRoot"] is True and security["runAsUser"] > 0 and "sysctls" not in security
assert [kind for volume in pod["volumes"] for kind in volume if kind != "name"] == ["emptyDir"] * 2
assert ["hostPath" in volume for volume in node["volumes"]] == [True]
taints = [{"key": f"{vendor}.com/gpu", "value": "present", "effect": "NoSchedule"} for vendor in ("nvidia", "amd")]
for taint in taints:
    assert any(taint["key"] == toleration.get("key", taint["key"]) and toleration.get("operator") == "Exists" and
               toleration.get("effect", taint["effect"]) == taint["effect"] for toleration in node["tolerations"]), taint
args("sidecar", pod["initContainers"][0])
args("daemonset", node["containers"][0])
END
"$env/bin/python" "$T/manifests.py" "$T" >"$T/out" 2>&1 || fail "a manifest breaks a control of Pod Security"
echo "the manifests are valid"

command -v podman >/dev/null || skip "no podman: run \"make deps FOR=container\""
debian bookworm "$T/base.tar" || fail "mmdebstrap"
podman import -q "$T/base.tar" localhost/base >"$T/out" 2>&1 || fail "import"
rm "$T/base.tar"
podman build --isolation=chroot --network=host --build-arg BASE=localhost/base -f packaging/Containerfile -t kvfs:0.2 . \
	>"$T/out" 2>&1 || fail "the image cannot be built"
contained() { # NAME USER VOLUMES... -- ARGUMENTS: run the image, with the rights of the manifests
	local name=$1 user=$2 volumes=()
	shift 2
	while [ "$1" != -- ]; do
		volumes+=(-v "$1")
		shift
	done
	shift
	podman run --name "$name" --replace --network=none --cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 \
		--read-only --read-only-tmpfs=false --cap-drop=all --security-opt=no-new-privileges --user "$user" "${volumes[@]}" "${run[@]}" \
		kvfs:0.2 "$@"
}
serves() { # NAME SOCKET: wait until the daemon in the container answers
	local i
	for ((i = 0; i < 300; i++)); do
		podman exec "$1" kvfs --health "$2" >"$T/out" 2>&1 && return
		sleep 0.2
	done
	podman logs "$1"
	fail "$1 does not serve $2"
}
# each MANIFEST USER USER-OF-THE-ENGINE FOLDER VOLUMES...: FOLDER is where $T/MANIFEST is mounted
each() {
	local name=$1 user=$2 engine=$3 folder=$4 control=$4/control
	shift 4
	run=(-d)
	contained "$name" "$user" "$@" -- $(cat "$T/$name.args") >"$T/out" 2>&1 || fail "$name does not start"
	serves "$name" "$control"
	run=(--entrypoint /blocks)
	blocks() { contained engine "$engine" "$T/blocks:/blocks:ro" "$T/$name:$folder:ro" -- "$1" "$control" 0 24 >"$T/out" 2>&1; }
	blocks durable || fail "$name: an engine cannot save"
	podman kill "$name" >"$T/out" 2>&1 && podman wait "$name" >"$T/out" 2>&1
	podman start "$name" >"$T/out" 2>&1 || fail "$name does not start again: $(podman logs "$name" 2>&1)"
	serves "$name" "$control"
	blocks check && grep -q '\b24\b' "$T/out" || fail "$name: blocks are lost"
	podman exec "$name" kvfs status -p "$control" >"$T/out" 2>&1 || fail "$name: kvfs status"
	podman stop -t 60 "$name" >"$T/out" 2>&1
	[ "$(podman wait "$name")" = 0 ] || fail "$name does not end in order"
	[ ! -e "$T/$name/control" ] || fail "$name leaves its socket"
	echo "$name: an engine as user $engine saved and loaded 24 blocks"
}
cp "$B/tests/crash/blocks" "$T/blocks" && chmod 755 "$T/blocks"
install -d -m 2777 -g 64000 "$T/sidecar" "$T/store" # as an emptyDir with fsGroup
each sidecar 64000:64000 64000:64000 /run/kvfs "$T/sidecar:/run/kvfs" "$T/store:/var/lib/kvfs"
install -d -m 755 "$T/daemonset"
each daemonset 0:0 1234:1234 /var/lib/kvfs "$T/daemonset:/var/lib/kvfs"
run=(--entrypoint ls)
contained engine 1234:1234 "$T/daemonset:/var/lib/kvfs:ro" -- /var/lib/kvfs/store >"$T/out" 2>&1 && fail "an engine reads the store"
exit 0
