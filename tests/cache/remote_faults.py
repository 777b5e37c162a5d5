#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The example helper, which breaks its word: helper:PATH?fault=NAME&at=N, at the
Nth request that it gets (from 1), and those after it with &on=1."""
import ctypes
import errno
import importlib.machinery
import importlib.util
import os
import socket
import sys
import threading
import time

here = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, here)
import kvfs_remote as remote  # noqa: E402

loader = importlib.machinery.SourceFileLoader("example", os.path.join(here, "kvfs-remote-dict"))
spec = importlib.util.spec_from_loader("example", loader)
example = importlib.util.module_from_spec(spec)
loader.exec_module(example)

DROP = None


def say(packet):
    remote._socket.send(packet)


class Faulty(example.Dict):
    def __init__(self, url, landing, tenant):
        super().__init__(url, landing, tenant)
        self.fault = self.options.get("fault", "")
        self.at = int(self.options.get("at", "1"))
        self.on = "on" in self.options
        self.count = 0
        self.tenant = tenant
        self.clears = "old" not in self.options
        if self.fault == "refuse":
            raise OSError(errno.EHOSTUNREACH, "nobody there")
        if self.fault == "paint":
            raise OSError(errno.EHOSTUNREACH, "two\nlines \x1b[31m\x7f")
        if self.fault == "mute":
            time.sleep(1000)
        if "brood" in self.options:
            self.brood()
        if self.fault == "hello":
            say(b"x" * 100)

    def begin(self, requests):
        for request in requests:
            self.count += 1
            wrong = self.fault and (self.count >= self.at if self.on else self.count == self.at)
            result = getattr(self, self.fault)(request) if wrong else self.do(request)
            if result is not DROP:
                remote.answer([(request, *result)])

    def brood(self):
        """What leaves the session lives on, unless it cannot."""
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.close(3)
                time.sleep(1000)
            os._exit(0)
        os.wait()

    # ---- one a fault: what it answers, if anything ----
    def crash(self, request):
        """A signal that it sent itself would not reach the first process of a namespace."""
        ctypes.string_at(0)

    def leave(self, request):
        os._exit(3)

    def stall(self, request):
        """None of its threads goes on: the interpreter's lock is held."""
        ctypes.PyDLL(None).sleep(1000)

    def hang(self, request):
        return DROP

    def foreign(self, request):
        """Nobody's objects but the tenant's; of a layout, nobody's helper but the node's."""
        own = self.tenant or request.name.endswith("/.layout") and request.name.split("/")[0]
        return self.do(request) if own == request.name.split("/")[0] else self.crash(request)

    def deaf(self, request):
        time.sleep(1000)

    def hang_up(self, request):
        remote._socket.shutdown(socket.SHUT_RDWR)
        time.sleep(1000)

    def slow(self, request):
        """Writes and answers when nobody waits any more."""
        def later():
            time.sleep(0.3)
            remote.answer([(request, *self.do(request))])
        threading.Thread(target=later).start()
        return DROP

    def lie(self, request):
        result = self.do(request)
        if request.call == remote.GET:
            self.landing[request.at + remote.NOTE] ^= 1
        return result

    def short(self, request):
        status, size = self.do(request)
        return status, max(size - 1, 0)

    def noteless(self, request):
        result = self.do(request)
        self.landing[request.at:request.at + remote.NOTE] = b"x" * remote.NOTE
        return result

    def swap(self, request):
        """The note of another object."""
        result = self.do(request)
        self.landing[request.at] ^= 1
        return result

    def long(self, request):
        result = self.do(request)
        name = request.name.rsplit("/")[-1]
        note = f"{name} {'0' * 32} {request.bytes + 1}\n".encode()
        self.landing[request.at:request.at + remote.NOTE] = note.ljust(remote.NOTE, b"\0")
        return result

    def positive(self, request):
        return 5, 0

    def strange(self, request):
        return -100000, 0

    def twice(self, request):
        remote.answer([(request, *self.do(request))] * 2)
        return DROP

    def unknown(self, request):
        return remote.answer([(request._replace(id=request.id + 1), 0, 0)])

    def garbage(self, request):
        return say(os.urandom(100))

    def empty(self, request):
        return say(b"\2")

    def large(self, request):
        return say(b"\2\0\1\0" + bytes(20000))

    def count_off(self, request):
        return say(remote._head.pack(remote.DO, 9, 0) + bytes(24))

    def hello_again(self, request):
        return remote._send_hello(0)

    def descriptors(self, request):
        """More of them than anybody wants, beside a true answer."""
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(50)]
        item = remote._answer.pack(request.id, self.do(request)[0], 0, 0)
        socket.send_fds(remote._socket, [remote._head.pack(remote.DO, 1, 0) + item], fds)
        for fd in fds:
            os.close(fd)
        return DROP

    def truncate(self, request):
        """The landing memory is of fixed size."""
        for fd in range(4, 20):
            try:
                os.ftruncate(fd, 0)
            except OSError:
                pass
        return self.do(request)


if __name__ == "__main__":
    remote.serve(Faulty)
