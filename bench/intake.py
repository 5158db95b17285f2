#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""intake.py [--build DIR] [--jobs N] [--slots N] [--rounds N] - runs announced by RQ, beside the raw loop over the same servers.

In turns, on one PostgreSQL server (durable) and one Redis server (appendonly everysec): `stint worker` with an intake and the handler
`mock` that does not sleep, and limits/rq_limit.c, which pops, acquires and finishes one after the other.  Both begin with all
messages waiting; ours ends when RQ's finished registry has them all.  One line of JSON: medians, per second.
"""

import argparse
import json
import os
import pickle
import shutil
import statistics
import subprocess
import tempfile
import time
import zlib
from pathlib import Path

import pgserver

ROOT = Path(__file__).resolve().parent.parent


class Redis:
    def __init__(self, top):
        self.socket = Path(top) / "redis"
        self.process = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", self.socket, "--dir", top, "--save", "",
                                         "--appendonly", "yes", "--appendfsync", "everysec"], stdout=subprocess.DEVNULL)
        while self.cli("ping") != "PONG":
            time.sleep(0.02)

    def cli(self, *args, stdin=None):
        return subprocess.run(["redis-cli", "-s", self.socket, *args], input=stdin, capture_output=True).stdout.decode().strip()


def command(*words):
    words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def announce(redis, n):
    """What rq's enqueue would write, in one stream."""
    out = []
    for i in range(n):
        data = zlib.compress(pickle.dumps(("src.worker.execute_run", None, (f"r{i}",), {}), 5))
        out.append(command("HSET", f"rq:job:j{i}", "data", data, "origin", "default", "status", "queued", "created_at",
                           "2025-01-01T00:00:00.000000Z"))
        out.append(command("RPUSH", "rq:queue:default", f"j{i}"))
    redis.cli("--pipe", stdin=b"".join(out))


def ours(stint, redis, url, top, n, slots):
    redis.cli("flushall")
    (top / "stint.yaml").write_text(json.dumps({
        "worker": {"slots": slots}, "intake": {"rq": f"redis+unix://{redis.socket}", "grace": "1h"},
        "types": {"mock": {"builtin": "mock"}}}))
    env = {"PATH": os.environ["PATH"], "HOME": str(top), "STINT_STORE": url, "STINT_LOG_LEVEL": "warn"}
    lines = [json.dumps({"id": f"r{i}", "payload": 0}) + "\n" for i in range(n)]
    for k in range(0, n, 1000):
        subprocess.run([stint, "enqueue", "mock", "--batch", "-"], input="".join(lines[k:k + 1000]), text=True, env=env, cwd=top,
                       stdout=subprocess.DEVNULL, check=True)
    announce(redis, n)
    worker = subprocess.Popen([stint, "worker", "--once"], cwd=top, env=env, stdout=subprocess.DEVNULL)
    while redis.cli("zcard", "rq:finished:default") in ("", "0"):
        time.sleep(0.002)
    began = time.monotonic()
    while int(redis.cli("zcard", "rq:finished:default")) < n:
        time.sleep(0.01)
    rate = n / (time.monotonic() - began)
    worker.wait(60)
    return rate


def raw(program, redis, conninfo, n):
    redis.cli("flushall")
    return float(subprocess.run([program, conninfo, redis.socket, str(n)], capture_output=True, text=True, check=True).stdout)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=str(ROOT / "build-release"))
    p.add_argument("--jobs", type=int, default=5000)
    p.add_argument("--slots", type=int, default=50)
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    build = Path(a.build).resolve()
    top = Path(tempfile.mkdtemp(prefix="stint-intake-", dir="/tmp"))
    rates = {"intake": [], "raw": []}
    redis = Redis(top)
    try:
        with pgserver.server() as pg:
            for _ in range(a.rounds):
                mine, theirs = pg.database(), pg.database()
                rates["intake"].append(ours(build / "src/cli/stint", redis, pg.url(mine), top, a.jobs, a.slots))
                rates["raw"].append(raw(build / "bench/rq_limit", redis, pg.conninfo(theirs), a.jobs))
                pg.drop(mine)
                pg.drop(theirs)
    finally:
        redis.process.kill()
        redis.process.wait()
        shutil.rmtree(top)
    out = {k: round(statistics.median(v)) for k, v in rates.items()}
    print(json.dumps({**out, "ratio": round(out["intake"] / out["raw"], 2), "jobs": a.jobs, "slots": a.slots}))


if __name__ == "__main__":
    main()
