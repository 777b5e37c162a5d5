#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""stall.py PORT FILE - a web server that keeps objects in memory, and does not answer a
request for an object whose path contains a word of FILE."""
import http.server
import sys
import time

objects = {}


def stalls(path):
    try:
        with open(sys.argv[2]) as file:
            return any(word in path for word in file.read().split())
    except FileNotFoundError:
        return False


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        while stalls(self.path):
            time.sleep(0.2)
        body = objects.get(self.path)
        self.answer(404 if body is None else 200, body or b"")

    do_HEAD = do_GET

    def do_PUT(self):
        objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(201)

    def do_MOVE(self):
        to = "/" + self.headers["Destination"].split("/", 3)[3]
        if to in objects:
            self.answer(412)
        else:
            objects[to] = objects.pop(self.path)
            self.answer(201)

    def do_DELETE(self):
        self.answer(404 if objects.pop(self.path, None) is None else 204)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
