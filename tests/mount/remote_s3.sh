#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: long
# remote_s3.sh - the remote tier's backend in a bucket, on a real S3 server.
set -u
. "$(dirname "$(realpath "$0")")/moto"
get_moto
trap 'kill -KILL $moto; wait $moto 2>/dev/null' EXIT
start_moto
"$B/tests/cache/remote_s3" "http://127.0.0.1:$port" || { tail -n 40 moto.log; exit 1; }
