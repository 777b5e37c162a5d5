#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""late_web.py PORT SECONDS - a web server that keeps objects in memory, and answers SECONDS
late, except for a mount's first request and for /objects/, which returns their number."""
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

objects = {}


class Late(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, status, body=b""):
        if self.path != "/objects/" and "kvfs-probe" not in self.path:
            time.sleep(float(sys.argv[2]))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command == "GET" else b"")

    def do_GET(self):
        if self.path == "/objects/":
            self.answer(200, b"%d" % sum(".digest" not in path for path in objects))
            return
        body = objects.get(self.path)
        self.answer(404 if body is None else 200, body or b"")

    def do_PUT(self):
        objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(201)

    def do_MOVE(self):
        self.answer(201)

    def do_DELETE(self):
        self.answer(204)

    do_HEAD = do_GET

    def log_message(self, *args):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Late).serve_forever()
