# SPDX-License-Identifier: Apache-2.0
"""What the measurements share: the programs, stores that are copied for each run, medians and tables.

Two sides that are compared run in turns, each on a fresh copy of a store that was closed cleanly, so that
both start alike and a machine that gets slower or faster meets both.  A copy is on the disk before it is used:
otherwise the first commit would pay for it.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Bench:
    """The built programs and a folder on the repository's disk that goes away in the end."""

    def __init__(self, build, folder):
        self.stint_path = build / "src" / "cli" / "stint"
        self.programs = build / "bench"
        self.limit_path = self.program("sqlite_limit")
        self.folder = Path(folder)
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith("STINT_") and k not in ("DATABASE_URL", "REDIS_URL")}

    def program(self, name):
        """One of those in bench/meson.build."""
        return self.programs / name

    def run(self, *argv, stdin=None):
        done = subprocess.run([str(a) for a in argv], cwd=self.folder, env=self.env, input=stdin,
                              capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"bench: {' '.join(str(a) for a in argv)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def json(self, *argv, stdin=None):
        return json.loads(self.run(*argv, stdin=stdin))

    def stint(self, *args, stdin=None):
        return self.json(self.stint_path, *args, "--json", stdin=stdin)

    def drain(self, db, batch, sync="full", limit=None):
        more = ("--limit", limit) if limit else ()
        return self.stint("bench", "--only", "drain", "--batch", batch, "--store", f"sqlite:{db}?sync={sync}", *more)

    def fill(self, db, jobs, batch=500, sync="normal"):
        """Waiting jobs of the kind that a drain takes."""
        return self.stint("bench", "--only", "batch", "--jobs", jobs, "--batch", batch,
                          "--store", f"sqlite:{db}?sync={sync}")

    def limit(self, db, batch, *args):
        return self.json(self.limit_path, db, "--batch", batch, *args)

    def counts(self, db):
        """{queue: {state: n}}"""
        queues = self.stint("queue", "list", "--store", f"sqlite:{db}")["queues"]
        return {q["name"]: q["counts"] for q in queues}

    @contextlib.contextmanager
    def copy(self, db):
        to = self.folder / "copy.db"
        shutil.copyfile(db, to)
        with open(to, "rb+") as f:
            os.fsync(f.fileno())
        os.sync()
        try:
            yield to
        finally:
            remove(to)


def remove(db):
    for end in ("", "-wal", "-shm"):
        Path(f"{db}{end}").unlink(missing_ok=True)


@contextlib.contextmanager
def session(build):
    build = Path(build).resolve()
    programs = ("src/cli/stint", "bench/sqlite_limit", "bench/postgres_limit", "bench/redis_limit")
    for program in (build / p for p in programs):
        if not program.exists():
            sys.exit(f"bench: {program} is missing; run bench/run, which builds it")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=build) as folder:
        yield Bench(build, folder)


median = statistics.median


def table(head, rows):
    """Markdown: the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(str(c) for c in row) + " |" for row in rows]
    return "\n".join(lines)


def rate(v):
    return f"{v:,.0f}"


def met(ok):
    return "met" if ok else "**missed**"
