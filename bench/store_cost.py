#!/usr/bin/env python3
"""What a rendezvous store's server spends on a question, by its own CPU time: libtorch's TCPStore
(Debian's python3-torch) and a Redis server (Debian's redis-server).

Speaks both protocols over plain sockets, so that N connections can all have a question open
("full") or one at a time ("single"). Needs no idle machine: the server's CPU time is read from
/proc, in ticks of 10 ms.

    /usr/bin/python3 bench/store_cost.py [CONNECTIONS...]
"""
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

ADD = 3  # c10d::detail::QueryType of libtorch 1.13
KEY = b"barrier"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class TcpStore:
    question = struct.pack("<BQ", ADD, len(KEY)) + KEY + struct.pack("<q", 1)

    def __init__(self):
        self.port = free_port()
        ready, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            import torch.distributed as dist
            store = dist.TCPStore("127.0.0.1", self.port, None, True, timedelta(seconds=300),
                                  wait_for_workers=False)
            os.write(tell, b"x")
            time.sleep(3600)
            os._exit(store is None)
        os.read(ready, 1)

    @staticmethod
    def answer(connection):
        connection.recv(8, socket.MSG_WAITALL)

    def end(self):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


class Redis:
    question = b"*4\r\n$7\r\nHINCRBY\r\n$3\r\njob\r\n$7\r\nbarrier\r\n$1\r\n1\r\n"

    def __init__(self):
        self.port = free_port()
        self.folder = tempfile.TemporaryDirectory()
        self.server = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--save", "", "--appendonly", "no",
             "--maxclients", "20000", "--dir", self.folder.name], stdout=subprocess.DEVNULL)
        self.pid = self.server.pid
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.05)

    @staticmethod
    def answer(connection):
        while not connection.recv(64).endswith(b"\r\n"):
            pass

    def end(self):
        self.server.kill()
        self.server.wait()


def spent_per_question(server, connections, is_full, questions):
    before = cpu_seconds(server.pid)
    asked = 0
    while asked < questions:
        if is_full:
            for connection in connections:
                connection.sendall(server.question)
            for connection in connections:
                server.answer(connection)
        else:
            for connection in connections:
                connection.sendall(server.question)
                server.answer(connection)
        asked += len(connections)
    return (cpu_seconds(server.pid) - before) / asked * 1e6


def main(counts):
    limit = 16384
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    print("store  connections  join us  full us  single us")
    for kind in (TcpStore, Redis):
        for count in counts:
            server = kind()
            before = cpu_seconds(server.pid)
            connections = []
            for _ in range(count):
                connections.append(socket.create_connection(("127.0.0.1", server.port)))
            time.sleep(0.2)
            join = (cpu_seconds(server.pid) - before) / count * 1e6
            full = spent_per_question(server, connections, True, 100_000)
            single = spent_per_question(server, connections, False, 10_000)
            print(f"{kind.__name__:8} {count:9} {join:8.1f} {full:8.1f} {single:10.1f}", flush=True)
            for connection in connections:
                connection.close()
            server.end()


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [8, 64, 512, 2048])
