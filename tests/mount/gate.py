#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""gate.py PORT SERVER_PORT FAULT [raw] - stand between clients and a real server, both
on this machine, and apply the fault that the file FAULT names, while it exists:

    slow        1 KiB a second each way of each connection
    refusing    403, and every other connection is reset
    full        every PUT is answered with 507
    late        every request is passed on 0.4 s later
    lying       half of all objects have a wrong byte, are short, or are an earlier answer,
                with its headers or without

For other protocols ("raw") only slow and refusing (a reset) are implemented.
"""
import random
import re
import socket
import struct
import sys
import threading
import time

server_port, fault_file, raw = int(sys.argv[2]), sys.argv[3], "raw" in sys.argv[4:]
last_got = (b"", b"")  # headers and body of the last answer to a GET


def fault():
    try:
        with open(fault_file) as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def reset(*sockets):
    for s in sockets:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def send(s, data):
    while data:
        slow = fault() == "slow"
        n = 102 if slow else 1 << 18
        s.sendall(data[:n])
        data = data[n:]
        if slow:
            time.sleep(0.1)


# ---- HTTP ----
def read_head(stream):
    """Read a request or an answer up to its body; return its lines, and its headers by name."""
    lines = []
    while (line := stream.readline()) not in (b"\r\n", b""):
        lines.append(line)
    headers = {name.strip().lower(): value.strip()
               for name, _, value in (line.partition(b":") for line in lines[1:])}
    return lines, headers


def lie(headers, body):
    global last_got
    kind, was = random.choice(("byte", "short", "body", "all", "", "", "", "")), last_got
    last_got = (headers, body)
    if kind == "byte" and body:
        at = random.randrange(len(body))
        body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1:]
    elif kind == "short":
        body = body[:len(body) // 2]
    elif kind == "body" and was[1]:
        body = was[1]
    elif kind == "all" and was[0]:
        headers, body = was
    return re.sub(rb"(?i)(content-length: *)\d+", rb"\g<1>%d" % len(body), headers), body


def answer_of_server(request, method):
    """Return the server's answer to a request: status line, headers and body."""
    with socket.create_connection(("127.0.0.1", server_port)) as server:
        send(server, request)
        stream = server.makefile("rb")
        lines, headers = read_head(stream)
        none = method == b"HEAD" or b" 204 " in lines[0] or b" 304 " in lines[0]
        length = headers.get(b"content-length")
        body = b"" if none else stream.read(int(length) if length else -1)
        return lines[0], b"".join(lines[1:]), body, none or length is not None


def exchange(client, stream):
    """Return False if the connection must be closed."""
    lines, headers = read_head(stream)
    if not lines:
        return False
    if headers.get(b"expect"):
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        lines = [line for line in lines if not line.lower().startswith(b"expect:")]
    body = stream.read(int(headers.get(b"content-length", 0)))
    method, now = lines[0].split()[0], fault()
    if now == "refusing" and random.random() < 0.5:
        reset(client)
        return False
    refusal = {"refusing": b"403 Forbidden", "full": method == b"PUT" and b"507 Full"}.get(now)
    if refusal:
        client.sendall(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % refusal)
        return True
    if now == "late":
        time.sleep(0.4)
    status, headers, body, goes_on = answer_of_server(b"".join(lines) + b"\r\n" + body, method)
    if now == "lying" and method == b"GET" and b" 200 " in status:
        headers, body = lie(headers, body)
    send(client, status + headers + b"\r\n" + body)
    return goes_on and b"connection: close" not in headers.lower() and b"/1.1" in status


def serve_http(client):
    stream = client.makefile("rb")
    try:
        while exchange(client, stream):
            pass
    except (OSError, IndexError):
        reset(client)  # the server has closed the connection
    stream.close()
    client.close()


# ---- protocols other than HTTP ----
def pump(source, sink):
    try:
        while data := source.recv(1 << 18):
            if fault() == "refusing":
                reset(source, sink)
                break
            send(sink, data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def serve_raw(client):
    if fault() == "refusing":
        reset(client)
        client.close()
        return
    try:
        server = socket.create_connection(("127.0.0.1", server_port))
    except OSError:
        client.close()
        return
    for s in (client, server):
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    back = threading.Thread(target=pump, args=(server, client), daemon=True)
    back.start()
    pump(client, server)
    back.join()
    client.close()
    server.close()


listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=128)
while True:
    connection, _ = listener.accept()
    threading.Thread(target=serve_raw if raw else serve_http, args=(connection,),
                     daemon=True).start()
