#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""web.py PORT FAULTS - a web server that keeps objects in memory.  Each line of the file
FAULTS, read anew with every request, is METHOD WORD ACTION [N]: what happens to requests of
that METHOD (* any) with WORD in the path, or to one of N of them at random.  ACTION: hang (as
long as the line is there), late:SECONDS, or a status (507:WORDS with a reason).  GET
/objects/ lists the paths of all objects."""
import http.server
import random
import sys
import time

objects = {}


def fault(method, path):
    """Return the action for a request; "": none."""
    try:
        with open(sys.argv[2], encoding="ascii") as file:
            lines = [line.split() for line in file if line.strip()]
    except FileNotFoundError:
        return ""
    for of, word, action, *n in lines:
        if of in ("*", method) and word in path and (not n or random.randrange(int(n[0])) == 0):
            return action
    return ""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b"", reason=None):
        self.send_response(status, reason)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_request(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/objects/":
            self.answer(200, "".join(path + "\n" for path in sorted(objects)).encode())
            return
        while (action := fault(self.command, self.path)) == "hang":
            time.sleep(0.1)
        if action.startswith("late:"):
            time.sleep(float(action[5:]))
        elif action:
            status, _, reason = action.partition(":")
            self.answer(int(status), b"", reason or None)
            return
        if self.command == "PUT":
            objects[self.path] = body
            self.answer(201)
        elif self.command == "DELETE":
            below = self.path.endswith("/")
            gone = [path for path in objects if path == self.path or (below and path.startswith(self.path))]
            for path in gone:
                objects.pop(path, None)
            self.answer(204 if gone else 404)
        else:
            there = objects.get(self.path)
            self.answer(404 if there is None else 200, there or b"")

    do_GET = do_HEAD = do_PUT = do_DELETE = handle_request

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
