#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_s3.sh - the remote tier in a bucket: a real S3 server, moto's, in a virtual
# environment below the build, which verifies every signature.
set -u
env=$B/moto
if ! [ -x "$env/bin/moto_server" ]; then
	rm -rf "$env"
	{ python3 -m venv "$env" && "$env/bin/pip" install -q 'moto[server]==5.2.5'; } >&2 ||
		{ rm -rf "$env"; echo "no moto, and no network to get it"; exit 77; }
fi
port=$(python3 -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
# The first four calls, which make who may do what, need no signature.
INITIAL_NO_AUTH_ACTION_COUNT=4 "$env/bin/moto_server" -p "$port" >moto.log 2>&1 &
server=$!
trap 'kill -KILL $server; wait $server 2>/dev/null' EXIT
for i in $(seq 300); do
	! curl -s -o answer "$url/moto-api/" || break
	kill -0 $server || { cat moto.log; exit 1; }
	sleep 0.1
done
umask 077
AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x AWS_DEFAULT_REGION=us-east-1 \
	"$env/bin/python" - "$url" <<'END' || exit 1
import boto3, json, sys
iam, s3 = (boto3.client(name, endpoint_url=sys.argv[1]) for name in ("iam", "s3"))
iam.create_user(UserName="kvfs")
key = iam.create_access_key(UserName="kvfs")["AccessKey"]
policy = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}}
iam.put_user_policy(UserName="kvfs", PolicyName="all", PolicyDocument=json.dumps(policy))
s3.create_bucket(Bucket="kvfs")
text = "[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n"
open("good", "w").write(text % (key["AccessKeyId"], key["SecretAccessKey"]))
open("bad", "w").write(text % (key["AccessKeyId"], "x" + key["SecretAccessKey"][1:]))
END
"$B/tests/cache/remote_s3" "$url" || { tail -n 40 moto.log; exit 1; }
