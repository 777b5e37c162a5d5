#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""gateway.py URL [not-atomic] - check that an HTTP gateway does what kvfs's remote tier needs.

URL is http://HOST[:PORT][/PREFIX] or http+unix:SOCKET[:/PREFIX].  The test makes objects below
the tenant "gateway-test" and removes them.  Each check is printed; status 1 if one fails.
"not-atomic": the store replaces an object in place, so a reader may get a mixture of the old and
the new one.  kvfs finds that by the digest and counts a damaged object.
"""
import hashlib
import http.client
import socket
import sys
import threading
import urllib.parse
from typing import Callable

TENANT = "gateway-test"
CONNECTIONS = 128
failures = 0


class UnixConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(path)


if sys.argv[2:] not in ([], ["not-atomic"]) or len(sys.argv) < 2:
    sys.exit(__doc__)
scheme, _, rest = sys.argv[1].partition(":")
if scheme == "http+unix":
    path, _, prefix = rest.partition(":")
elif scheme == "http":
    host, _, prefix = rest.removeprefix("//").partition("/")
else:
    sys.exit(__doc__)
prefix = "/" + prefix.strip("/") + ("/" if prefix.strip("/") else "")


def connect() -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, timeout=60)
    return UnixConnection("localhost", timeout=60)


def call(connection: http.client.HTTPConnection, verb: str, name: str,
         body: bytes | None = None) -> tuple[int, bytes, int]:
    """Return the status, the body and the Content-Length of the gateway's answer."""
    connection.request(verb, prefix + urllib.parse.quote(name), body)
    answer = connection.getresponse()
    return answer.status, answer.read(), int(answer.getheader("Content-Length") or 0)


def check(what: str, good: bool) -> None:
    global failures
    failures += not good
    print("ok    " if good else "FAILED", what)


def content(seed: int, size: int) -> bytes:
    return hashlib.shake_128(str(seed).encode()).digest(size)


def name(space: str, number: int) -> str:
    return f"{TENANT}/2-{space}/{number:032x}"


def at_once(count: int, function: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=function, args=[i]) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def objects() -> None:
    c = connect()
    check("HEAD of the prefix: 200, or 403, 404 or 405 of a server without listings",
          call(c, "HEAD", "")[0] in (200, 204, 403, 404, 405))
    check("GET of an absent object: 404", call(c, "GET", name("a", 0))[0] == 404)
    check("HEAD of an absent object: 404", call(c, "HEAD", name("a", 0))[0] == 404)
    check("DELETE of an absent object: 404 or 204",
          call(c, "DELETE", name("a", 0))[0] in (204, 404))
    for size in (1, 4096, 131072, 2359296):
        body = content(size, size)
        check(f"PUT of {size} bytes", call(c, "PUT", name("a", size), body)[0] in (200, 201, 204))
        check("HEAD returns their number", call(c, "HEAD", name("a", size))[2] == size)
        check("GET returns them", call(c, "GET", name("a", size))[:2] == (200, body))
    check("a second PUT replaces the object", call(c, "PUT", name("a", 1), b"xy")[0] < 300 and
          call(c, "GET", name("a", 1))[1] == b"xy")
    check("DELETE of an object", call(c, "DELETE", name("a", 1))[0] < 300 and
          call(c, "GET", name("a", 1))[0] == 404)


def whole() -> None:
    """A reader beside a writer gets one whole version, and a client that ends in the middle of
    a PUT changes nothing."""
    size, torn = 1 << 20, []
    versions = [content(i, size) for i in (1, 2)]
    call(connect(), "PUT", name("a", 7), versions[0])

    def one(i: int) -> None:
        c = connect()
        for n in range(20):
            if i == 0:
                call(c, "PUT", name("a", 7), versions[n % 2])
                continue
            status, body, _ = call(c, "GET", name("a", 7))
            if status not in (200, 404, 503) or (status == 200 and body not in versions):
                torn.append(status)
    at_once(4, one)
    if "not-atomic" in sys.argv:
        torn = [status for status in torn if status != 200]
    check(f"a reader beside a writer gets a whole object, 404 or 503 {torn or ''}", not torn)
    call(connect(), "PUT", name("a", 7), versions[0])
    c = connect()
    c.putrequest("PUT", prefix + name("a", 7))
    c.putheader("Content-Length", str(size))
    c.endheaders(content(3, size // 2))
    c.close()
    check("half a PUT changes nothing", call(connect(), "GET", name("a", 7))[1] == versions[0])


def crowd() -> None:
    wrong = []

    def one(i: int) -> None:
        try:
            c, body = connect(), content(i, 65536)
            for _ in range(3):
                if call(c, "PUT", name("b", i), body)[0] >= 300 or \
                        call(c, "GET", name("b", i))[1] != body:
                    wrong.append(i)
        except (OSError, http.client.HTTPException) as error:
            wrong.append(error)
    at_once(CONNECTIONS, one)
    check(f"{CONNECTIONS} connections at once: PUT and GET", not wrong)


def spaces() -> None:
    c = connect()
    call(c, "PUT", name("bb", 1), b"other")
    check("DELETE of a space", call(c, "DELETE", f"{TENANT}/2-b/")[0] < 300)
    check("its objects are gone",
          all(call(c, "HEAD", name("b", i))[0] == 404 for i in range(CONNECTIONS)))
    check("a space whose name is longer stays", call(c, "GET", name("bb", 1))[1] == b"other")
    check("DELETE of a space without objects: 404 or 204",
          call(c, "DELETE", f"{TENANT}/2-none/")[0] in (204, 404))
    for space in ("a", "bb"):
        call(c, "DELETE", f"{TENANT}/2-{space}/")
    check("the test leaves nothing", call(c, "GET", name("a", 7))[0] == 404)


for part in (objects, whole, crowd, spaces):
    part()
sys.exit(failures > 0)
