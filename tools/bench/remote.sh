#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote.sh [BACKEND...] - remote.py with a real server each: dir, http (nginx), s3 (moto),
# mooncake (through its gateway).
. "$(dirname "$0")/../../tests/mount/lib"
tools=$(realpath "$(dirname "$0")")
here=$tools/../../tests/mount
. "$here/tiers"
memory=$(mktemp -d /dev/shm/kvfs-bench.XXXXXX)
trap 'end_servers; cleanup; rm -rf "$memory"' EXIT

serve_dir() { # replaces that of tiers, a mount that faults can hit
	mkdir -p "$T/remote"
	url=dir:$T/remote
}

[ $# -gt 0 ] || set -- dir http s3 mooncake
for kind; do
	OWNED=3072 serve "$kind" || { echo "$kind: not to be had here"; continue; }
	"$([ "$kind" = s3 ] && echo "$B/moto/bin/python" || echo "${python:-python3}")" \
		"$tools/remote.py" "$kind" "$url" "$B" "$T" "$memory" "${gateway:-}" "127.0.0.1:${port:-}" || fail "$kind"
	end_servers
	rm -rf "$T/remote" "$T/web"
done
