# SPDX-License-Identifier: Apache-2.0
"""redisserver.py - a Redis that is thrown away: its own folder, a unix socket, no port, appendonly with everysec.

    with redisserver.server() as r:
        r.do("PING")
        subprocess.run(..., env=r.env())

The folder is below /var/tmp, which is a disk; another is named by `where` or STINT_REDIS_DIR, another server by STINT_REDIS_BIN.
The file is never rewritten meanwhile: a measurement would pay for the one before.  The calls that bench/peers/run makes of a
server (database, env, settle, wal, children_us, drop) are those of pgserver.py; a database here is the emptied server.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTINGS = {"port": "0", "appendonly": "yes", "appendfsync": "everysec", "save": "", "auto-aof-rewrite-percentage": "0",
            "maxmemory-policy": "noeviction"}


class RedisError(Exception):
    """The server said no."""


class Server:
    def __init__(self, folder, settings):
        self.folder = Path(folder)
        self.path = self.folder / "s"
        self.settings = {**SETTINGS, **settings, "unixsocket": str(self.path), "dir": str(self.folder)}
        self.process = self.link = self.file = None

    def start(self):
        program = os.environ.get("STINT_REDIS_BIN") or shutil.which("redis-server")
        if not program:
            sys.exit("bench: no redis-server is installed; run `make deps` (apt: redis-server)")
        args = [word for name, value in self.settings.items() for word in (f"--{name}", value)]
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen([program, *args], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for _ in range(500):
            if self.path.exists() and self.connect():
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        sys.exit("bench: redis-server does not start\n" + (self.folder / "log").read_text(errors="replace")[-2000:])

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()

    # ---- talking to it -----------------------------------------------------------------------------

    def connect(self):
        self.link = socket.socket(socket.AF_UNIX)
        try:
            self.link.connect(str(self.path))
        except OSError:
            return False
        self.file = self.link.makefile("rb")
        return True

    def answer(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RedisError(rest.decode())
        if kind == b"$":
            n = int(rest)
            return None if n < 0 else self.file.read(n + 2)[:-2]
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest

    def do(self, *words):
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        self.link.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        return self.answer()

    def info(self, section):
        lines = self.do("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def env(self, database=None):
        return {**os.environ, "PEER_REDIS": str(self.path), "ASYNQ_REDIS": f"redis-socket://{self.path}"}

    def url(self):
        return f"redis+unix://{self.path}"

    def database(self, prefix="bench"):
        """The emptied server."""
        self.empty()
        return prefix

    def drop(self, name):
        self.do("FLUSHALL", "SYNC")

    def settle(self):
        """What was written is on the disk."""
        os.sync()

    def empty(self):
        """No keys, and an append-only file that has forgotten them."""
        self.do("FLUSHALL", "SYNC")
        self.do("BGREWRITEAOF")
        while True:
            state = self.info("persistence")
            if state["aof_rewrite_in_progress"] == "0" and state["aof_rewrite_scheduled"] == "0":
                break
            time.sleep(0.01)
        self.settle()

    def wal(self):
        """Bytes that the append-only file has."""
        return int(self.info("persistence")["aof_current_size"])

    def children_us(self):
        """CPU that the server has used."""
        cpu = self.info("cpu")
        return (float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])) * 1e6

    def version(self):
        return self.info("server")["redis_version"]


@contextlib.contextmanager
def server(where=None, **settings):
    where = Path(where or os.environ.get("STINT_REDIS_DIR") or "/var/tmp")
    folder = tempfile.mkdtemp(prefix="stint-redis-", dir=where)
    s = Server(folder, {k.replace("_", "-"): str(v) for k, v in settings.items()})
    try:
        s.start()
        yield s
    finally:
        s.stop()
        shutil.rmtree(folder, ignore_errors=True)
