# SPDX-License-Identifier: Apache-2.0
"""What the tests beside asynq stand on: a Redis that is thrown away, asynq's own module (the program in asynq/), and stint on both.

Where Go or Redis is missing the tests are skipped, loudly: a skip fails the run unless STINT_ALLOW_SKIP=1 (scripts/test).
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from kit import ROOT, Stint, once, until  # noqa: E402

GO_WANTED = (1, 21)  # that one fetches the newer toolchain which go.mod asks for


def skip(why):
    print(f"\n*** SKIPPED: {why}")
    pytest.skip(why)


def find_go():
    """A Go that can build asynq; Debian 12 has 1.19, which cannot."""
    for go in (shutil.which("go"), "/usr/local/go/bin/go"):
        if not go or not os.path.exists(go):
            continue
        said = subprocess.run([go, "version"], capture_output=True, text=True).stdout
        found = re.search(r"go(\d+)\.(\d+)", said)
        if found and tuple(map(int, found.groups())) >= GO_WANTED:
            return go
    return skip("asynq needs Go 1.21 or newer: unpack https://go.dev/dl/ into /usr/local/go, or "
                "`apt install -t bookworm-backports golang-go`")


def build_asynq(folder):
    env = {"GOFLAGS": "-buildvcs=false", **os.environ}
    done = subprocess.run([find_go(), "build", "-o", folder / "asynq", "."], cwd=HERE / "asynq", env=env, capture_output=True, text=True)
    if done.returncode != 0 and re.search(r"proxy|dial tcp|no such host|TLS|timeout", done.stderr):
        skip("asynq's module cannot be fetched: is the module proxy there?\n" + done.stderr[-500:])
    assert done.returncode == 0, done.stderr


class Redis:
    """A server on a unix socket, durable as asynq's documentation has it: appendonly, everysec."""

    def __init__(self):
        if not shutil.which("redis-server"):
            skip("there is no redis-server: run `make deps`")
        self.folder = Path(tempfile.mkdtemp(prefix="stint-redis-"))  # a socket's path must be short
        self.socket = self.folder / "s"
        self.url = f"redis-socket://{self.socket}"  # both programs know this form
        self.process = None
        self.start()

    def start(self):
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                ["redis-server", "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder), "--save", "",
                 "--appendonly", "yes", "--appendfsync", "everysec"], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until(lambda: self.ping() or self.process.poll() is not None, "redis-server to answer")
        assert self.process.poll() is None, (self.folder / "log").read_text()

    def ping(self):
        done = subprocess.run(["redis-cli", "-s", self.socket, "PING"], capture_output=True, text=True)
        return done.stdout.strip() == "PONG"

    def cli(self, *words):
        done = subprocess.run(["redis-cli", "-s", self.socket, "--raw", *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stdout.startswith(("ERR", "WRONGTYPE")), (words, done)
        return done.stdout.strip()

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Asynq:
    """The program in asynq/ on one Redis."""

    def __init__(self, program, redis, folder):
        self.program, self.folder = program, folder
        self.env = {"PATH": os.environ["PATH"], "HOME": str(folder), "ASYNQ_REDIS": redis.url}
        self.servers = []

    def __call__(self, *words, check=0):
        done = subprocess.run([self.program, *map(str, words)], env=self.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == check, (words, done)
        return json.loads(done.stdout) if done.stdout.strip() else None

    def enqueue(self, type, *words):
        """asynq.enqueue("t", PAYLOAD, "-flag", VALUE...): the id of one task, or why it was refused."""
        payload, flags = ([words[0]], words[1:]) if words and not str(words[0]).startswith("-") else ([], words)
        got = self("enqueue", *flags, type, *payload)
        return got[0].get("id") or got[0]["error"]

    def task(self, id, queue="default"):
        return self("inspect", "task", queue, id)

    def is_gone(self, id, queue="default"):
        done = subprocess.run([self.program, "inspect", "task", queue, id], env=self.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 or "not found" in done.stderr, done
        return done.returncode != 0

    def until_state(self, id, state, queue="default"):
        return until(lambda: (t := self.task(id, queue))["state"] == state and t,
                     lambda: f"task {id} to be {state}; it is {self.task(id, queue)}")

    def tasks(self, state, queue="default"):
        return self("inspect", "tasks", queue, state)

    def queue(self, name="default"):
        return self("inspect", "queues")[name]

    def our_server(self, pid):
        return next((s for s in self("inspect", "servers") if s["pid"] == pid), None)

    @contextlib.contextmanager
    def server(self, *flags):
        """`asynq serve`; leaving the context kills it."""
        with open(self.folder / f"asynq-{len(self.servers)}.log", "wb") as log:
            p = subprocess.Popen([self.program, "serve", *map(str, flags)], env=self.env, stdout=subprocess.PIPE, stderr=log)
        self.servers.append(p)
        assert p.stdout.readline().strip() == b"ready"
        try:
            yield p
        finally:
            self.end(p, signal.SIGKILL)

    @staticmethod
    def end(p, number=signal.SIGTERM):
        if p.poll() is None:
            p.send_signal(number)
            p.wait(30)
        p.stdout.close()

    def close(self):
        for p in self.servers:
            self.end(p, signal.SIGKILL)


# ---- fixtures: imported by the tests --------------------------------------------------------------


@pytest.fixture(scope="session")
def asynq_program(tmp_path_factory):
    return once(tmp_path_factory, "asynq", build_asynq) / "asynq"


@pytest.fixture(scope="session")
def probe(tmp_path_factory):
    path = tmp_path_factory.mktemp("probe") / "probe"
    subprocess.run([os.environ.get("CC", "cc"), "-O1", "-D_GNU_SOURCE", "-o", path, HERE.parent / "e2e" / "probe.c"], check=True)
    return path


@pytest.fixture
def redis():
    server = Redis()
    yield server
    server.close()


@pytest.fixture
def asynq(asynq_program, redis, tmp_path):
    kit = Asynq(asynq_program, redis, tmp_path)
    yield kit
    kit.close()


@pytest.fixture
def stint(tmp_path, redis, probe):
    binary = Path(os.environ.get("STINT_BIN", ROOT / "build" / "stint")).absolute()
    kit = Stint(tmp_path, binary, probe, redis.url)
    yield kit
    kit.close()
