# SPDX-License-Identifier: Apache-2.0
"""Servers for the tests of the Redis store: real ones, each in a folder of its own, all gone afterwards.

    Pen      a folder for servers.  A guardian beside us ends what is left in it and removes it, however we end
    Server   a redis-server on a unix socket, with an append-only file unless told otherwise
    Client   the protocol, as far as tests need it: commands and answers on one connection

STINT_REDIS_SERVER names the program; without it, it is the first redis-server in PATH.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kit import alive, until  # noqa: E402

SETTINGS = {"appendonly": "yes", "appendfsync": "everysec", "save": "", "maxmemory-policy": "noeviction"}


def find_server():
    program = os.environ.get("STINT_REDIS_SERVER") or shutil.which("redis-server", path=os.environ.get("PATH", "") + ":/usr/bin")
    assert program, "redis-server is not installed; run `scripts/deps test`, or set STINT_REDIS_SERVER"
    return program


def tail(path, size=2000):
    return path.read_text(errors="replace")[-size:] if path.exists() else "(no log)"


# ---- a folder, and who cleans it ---------------------------------------------------------------------------


class Pen:
    def __init__(self):
        self.program, self.n = find_server(), 0
        self.top = Path(tempfile.mkdtemp(prefix="stint-redis-", dir="/tmp"))  # a socket's path has at most 107 bytes
        self.guard = subprocess.Popen([sys.executable, "-B", __file__, self.top], stdin=subprocess.PIPE, start_new_session=True)

    def folder(self):
        path = self.top / str(self.n)
        self.n += 1
        path.mkdir()
        return path

    def close(self):
        self.guard.stdin.close()
        self.guard.wait(60)
        assert not self.top.exists(), f"{self.top} is left"


def ours(pid_file):
    """The process a pid file names, if it runs in that folder."""
    try:
        pid = int(pid_file.read_text())
        return pid if Path(f"/proc/{pid}/cwd").resolve() == pid_file.parent else None
    except (OSError, ValueError):
        return None


def clean(top):
    found = [pid for file in top.glob("*/pid") if (pid := ours(file))]
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in found) and time.monotonic() < deadline:
        time.sleep(0.02)
    shutil.rmtree(top, ignore_errors=True)


def guard_main(top):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()  # nobody writes: it returns when our maker is gone or has had enough
    clean(Path(top))


# ---- the protocol --------------------------------------------------------------------------------------------


class Refused(Exception):
    """An error the server answers."""


class Client:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rb")

    def send(self, *words):
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))

    def read(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("the server has gone")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise Refused(rest.decode())
        if kind == b"+":
            return rest.decode()
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        return None if rest == b"-1" else [self.read() for _ in range(int(rest))]

    def __call__(self, *words):
        self.send(*words)
        return self.read()

    def close(self):
        self.file.close()
        self.socket.close()


# ---- a server --------------------------------------------------------------------------------------------------


class Server:
    def __init__(self, pen, **settings):
        self.pen, self.top, self.process = pen, pen.folder(), None
        self.settings = {**SETTINGS, **{name.replace("_", "-"): value for name, value in settings.items()}}
        self.start()

    @property
    def path(self):
        return self.top / "s"

    def url(self, user=None, **options):
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"redis+unix://{user + '@' if user else ''}{self.path}{'?' + query if query else ''}"

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    def start(self, **settings):
        self.settings.update(settings)
        given = [word for name, value in self.settings.items() for word in (f"--{name}", value)]
        with open(self.top / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self.pen.program, "--port", "0", "--unixsocket", str(self.path), "--dir", str(self.top), "--pidfile",
                 str(self.top / "pid"), "--daemonize", "no", "--set-proc-title", "no", *given],
                cwd=self.top, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        (self.top / "pid").write_text(str(self.process.pid))
        until(self.answers, lambda: f"redis-server to start: {tail(self.top / 'log')}")

    def answers(self):
        assert self.running, f"redis-server has ended: {tail(self.top / 'log')}"
        with contextlib.suppress(OSError, Refused):
            return self("PING") == "PONG"

    def stop(self, how=signal.SIGTERM):
        if self.running:
            self.process.send_signal(how)
            self.process.wait(60)

    def __call__(self, *words):
        """One command on a connection of its own."""
        client = Client(self.path)
        try:
            return client(*words)
        finally:
            client.close()

    def client(self):
        return contextlib.closing(Client(self.path))

    def info(self, name):
        for line in self("INFO").decode().splitlines():
            if line.startswith(name + ":"):
                return line.partition(":")[2]
        return None

    def set(self, name, value):
        assert self("CONFIG", "SET", name, value) == "OK"


if __name__ == "__main__":
    guard_main(sys.argv[1])
