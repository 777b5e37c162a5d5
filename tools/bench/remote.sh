#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote.sh [BACKEND...] - remote.py with a real server each: dir, http (nginx), s3 (moto),
# mooncake, helper.
. "$(dirname "$0")/../../tests/mount/lib"
tools=$(realpath "$(dirname "$0")")
here=$tools/../../tests/mount
. "$here/tiers"
memory=$(mktemp -d /dev/shm/kvfs-bench.XXXXXX)
trap 'end_servers; cleanup; rm -rf "$memory"' EXIT

serve_dir() { # use the server that no test can harm
	mkdir -p "$T/remote"
	url=dir:$T/remote
}

[ $# -gt 0 ] || set -- dir http s3 mooncake helper
for kind; do
	OWNED=3072 serve "$kind" || { echo "$kind: not to be had here"; continue; }
	url=${url/landing=8M&/} # the tests use little landing memory
	"$([ "$kind" = s3 ] && echo "$B/moto/bin/python" || echo "${python:-python3}")" \
		"$tools/remote.py" "$kind" "$url" "$B" "$T" "$memory" || fail "$kind"
	end_servers
	rm -rf "$T/remote" "$T/web"
done
