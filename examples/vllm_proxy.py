#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vllm_proxy.py PORT PREFILL DECODE - send each prompt to one vLLM server, and its answer's generation
to another.

    vllm_proxy.py 8000 127.0.0.1:8001 127.0.0.1:8002

The server PREFILL computes the prompt and one token; kvfs saves the prompt's blocks, and the answer
names the last one in kv_transfer_params.  The server DECODE gets the whole request with that name,
waits for the blocks, and generates.  Both servers have KvfsConnector with one daemon, or with
daemons that share a remote tier.

The hand-off only saves work.  If PREFILL does not answer, DECODE computes the prompt; if DECODE
cannot be reached, PREFILL generates.  An answer that breaks off is not repeated.
"""
import contextlib
import http.client
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LIMIT = 600  # a server that sends no byte for so many seconds is given up
GENERATE = ("/v1/completions", "/v1/chat/completions")
PASSED = ("Content-Type", "Authorization")


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(None)

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 9:
            self.send_error(411)
            return
        body = self.rfile.read(int(length))
        if self.path in GENERATE:
            body = self.prefilled(body)
        self.answer(body)

    def prefilled(self, body):
        """Have PREFILL compute the prompt, and return the request for DECODE.  Return @body if it is not a
        request, to which DECODE answers with an error, or if PREFILL does not name a block."""
        try:
            asked = json.loads(body)
            own = asked.get("kv_transfer_params") or {}
            prefill = {key: asked[key] for key in asked if key not in ("stream_options", "min_tokens", "n")}
            prefill |= {"stream": False, "max_tokens": 1, "kv_transfer_params": own | {"do_remote_decode": True}}
            if "max_completion_tokens" in asked:
                prefill["max_completion_tokens"] = 1
            connection, response = self.ask(PREFILL, json.dumps(prefill).encode())
            with contextlib.closing(connection):
                named = json.loads(response.read())["kv_transfer_params"]
            return json.dumps(asked | {"kv_transfer_params": named | own}).encode()
        except (OSError, http.client.HTTPException, ValueError, TypeError, AttributeError, KeyError, RecursionError):
            return body

    def ask(self, server, body):
        connection = http.client.HTTPConnection(server, timeout=LIMIT)
        try:
            connection.request(self.command, self.path, body,
                               {key: self.headers[key] for key in PASSED if key in self.headers})
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def answer(self, body):
        """Pass the request to DECODE, or else to PREFILL, and the answer on as it comes."""
        for server in DECODE, PREFILL:
            try:
                connection, response = self.ask(server, body)
                break
            except (OSError, http.client.HTTPException) as error:
                reason = error
        else:
            self.send_error(502, f"no server answers: {reason}")
            return
        with contextlib.closing(connection):
            self.send_response(response.status)
            self.send_header("Content-Type", response.getheader("Content-Type", "text/plain"))
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            try:
                while some := response.read1(65536):
                    self.wfile.write(some)
            except (OSError, http.client.HTTPException):
                self.log_error("%s or the client has gone", server)

    def log_request(self, *_):
        pass


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    PREFILL, DECODE = sys.argv[2:]
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Proxy).serve_forever()
