# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests stand on: the program, its workers, and waiting for facts.

Nothing here sleeps for a fixed time: `until` looks at something that can be seen, again and again,
and gives up loudly at its deadline.  Every test has a directory, a store and an environment of its own.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = float(os.environ.get("STINT_PATIENCE", "60"))  # seconds until a wait is a failure

JOB_KEYS = {
    "id", "type", "queue", "state", "priority", "attempt", "max_attempts", "created_at", "run_at",
    "started_at", "finished_at", "payload", "result", "result_ref", "error", "errors", "worker",
    "lease_until", "key", "spec_hash", "timeout", "deadline", "fence", "progress", "meta", "attempts",
}
ATTEMPT_KEYS = {
    "n", "fence", "worker", "started_at", "ended_at", "outcome", "kind", "message", "exit_code",
    "signal", "max_rss", "log",
}
WORKER_KEYS = {
    "id", "host", "pid", "slots", "running", "queues", "types", "healthy", "last_beat", "name",
    "leader", "epoch", "quiet", "note",
}


def until(fact, what, seconds=PATIENCE):
    """Calls fact() until it is truthy and returns that; fails naming `what` (or what()) at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        value = fact()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {seconds:.0f} s for: {what() if callable(what) else what}")
        time.sleep(0.02)


def alive(pid):
    """Is the process there and not a zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def once(tmp_path_factory, name, make):
    """A folder that make(folder) has filled, once for all the processes that run tests side by side."""
    top = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        top = top.parent  # each process has one of its own in there
    folder = top / f"once-{name}"
    with open(top / f"once-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".made").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / ".made").touch()
    return folder


def long_first(items):
    """Side by side, the longest should not be the last one standing, nor should one process have all of them: xdist begins
    with giving each so many in their order."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    chunk = max(len(items) // processes // 4, 2)
    long = [item for item in items if item.get_closest_marker("long")]
    short = [item for item in items if item not in long]
    order = []
    for n in range(processes):
        mine = long[n::processes]
        fill = max(chunk - len(mine), 0)
        order += mine + short[:fill]
        short = short[fill:]
    return order + short


class Done:
    """A command that has ended."""

    def __init__(self, args, code, out, err):
        self.args, self.code, self.out, self.err = args, code, out, err

    @property
    def text(self):
        return self.out.decode()

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def error(self):
        """The error object of --json."""
        assert set(self.json) == {"error"}, self
        return self.json["error"]

    def __repr__(self):
        return (f"`stint {' '.join(map(str, self.args))}` ended with {self.code}\n"
                f"stdout: {self.out[-2000:]!r}\nstderr: {self.err[-4000:].decode(errors='replace')}")


class Worker:
    """A `stint worker` in the background; leaving the context kills it, whatever state it is in."""

    def __init__(self, kit, process, log):
        self.kit, self.process, self.log_path = kit, process, log

    @property
    def pid(self):
        return self.process.pid

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    @property
    def row(self):
        """Its entry in `stint workers`, or None."""
        done = self.kit.run("workers", "--json")
        rows = done.json["workers"] if done.code == 0 else []  # the store may not be there yet
        return next((row for row in rows if row["pid"] == self.pid), None)

    def ready(self):
        until(lambda: self.row or not alive(self.pid), lambda: f"a worker to register:\n{self.log}")
        assert alive(self.pid), f"the worker ended at once:\n{self.log}"
        return self

    def signal(self, number):
        self.process.send_signal(number)

    def said(self, text):
        until(lambda: text in self.log, lambda: f"the worker's log to say {text!r}; it says:\n{self.log}")

    def beats(self, times=2):
        """Waits until it has written so many beats from now on: it has been round its loop."""
        for _ in range(times):
            last = self.row["last_beat"]
            until(lambda: self.row["last_beat"] != last, "the worker's next beat")

    def ended(self, code=0, seconds=PATIENCE):
        try:
            got = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end within {seconds} s:\n{self.log}") from None
        assert got == code, f"the worker ended with {got}, not {code}:\n{self.log}"

    def stop(self, code=0):
        self.signal(signal.SIGTERM)
        self.ended(code)

    def kill(self):
        """SIGKILL, also of a stopped one."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Stint:
    """The program in a directory of its own, with a clean environment; store: a URL, or None for stint.db there."""

    def __init__(self, directory, binary, probe, store=None):
        self.dir, self.binary, self.probe_path, self.store = directory, binary, probe, store
        self.workers = []
        self.env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(directory),  # children keep it: that is how leftovers() knows ours
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "TMPDIR": str(directory),
        }
        if store:
            self.env["STINT_STORE"] = store
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
            if name in os.environ:
                self.env[name] = os.environ[name]

    # ---- running it ----

    def start(self, *args, env=None, cwd=None, **popen):
        return subprocess.Popen([self.binary, *map(str, args)], cwd=cwd or self.dir,
                                env={**self.env, **(env or {})}, **popen)

    def run(self, *args, input=None, env=None, cwd=None, timeout=PATIENCE):
        """Runs it to its end, whatever that is."""
        if isinstance(input, str):
            input = input.encode()
        process = self.start(*args, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             stdin=subprocess.DEVNULL if input is None else subprocess.PIPE)
        try:
            out, err = process.communicate(input, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"`stint {' '.join(map(str, args))}` hangs: {process.communicate()}") from None
        return Done(args, process.returncode, out, err)

    def __call__(self, *args, check=0, **how):
        """Runs it and checks its exit code (None: any)."""
        done = self.run(*args, **how)
        assert check is None or done.code == check, f"expected exit {check}: {done!r}"
        return done

    def json(self, *args, **how):
        return self(*args, "--json", **how).json

    def refuses(self, *args, code, says=(), json_code=None, input=None, env=None, cwd=None):
        """The command fails with `code`, in words for people and as JSON, and says all of `says`."""
        says = [says] if isinstance(says, str) else says
        text = self(*args, check=code, input=input, env=env, cwd=cwd)
        assert text.out == b"", f"an error belongs on stderr: {text!r}"
        for word in says:
            assert word in text.err.decode(), f"nothing of {word!r}: {text!r}"
        done = self(*args, "--json", check=code, input=input, env=env, cwd=cwd)
        assert set(done.error) == {"code", "message", "remedy"}, repr(done)
        assert done.error["remedy"], f"every error has a remedy: {done!r}"
        for word in says:
            assert word in done.error["message"] + done.error["remedy"], f"nothing of {word!r}: {done!r}"
        if json_code:
            assert done.error["code"] == json_code, repr(done)
        return done.error

    # ---- jobs ----

    def enqueue(self, type, payload="{}", *flags, **how):
        return self.json("enqueue", type, payload, *flags, **how)["id"]

    def batch(self, jobs, *flags, **how):
        lines = "".join(json.dumps(job) + "\n" for job in jobs)
        return self.json("enqueue", "--batch", "-", *flags, input=lines, **how)["jobs"]

    def show(self, id, **how):
        return self.json("job", "show", id, **how)

    def state(self, id):
        return self.show(id)["state"]

    def until_state(self, id, *states):
        return until(lambda: (job := self.show(id))["state"] in states and job,
                     lambda: f"job {id} to be {' or '.join(states)}; it is {self.show(id)}")

    def until_started(self, id, attempt=1, suffix=""):
        """Waits until the probe has announced itself; its pid."""
        path = self.dir / f"started.{id}.{attempt}{suffix}"
        until(path.exists, f"attempt {attempt} of {id} to start")
        return int(path.read_text())

    def go(self):
        """Lets every held probe end."""
        (self.dir / "go").touch()

    def counts(self, queue="default"):
        for row in self.json("queue", "list")["queues"]:
            if row["name"] == queue:
                return {state: n for state, n in row["counts"].items() if n}
        return {}

    def list_all(self, *flags):
        """Every job, page by page; a store that was never made has none."""
        jobs, after = [], []
        if not flags and not self.store and not (self.dir / "stint.db").exists():
            return jobs
        while True:
            page = self.json("job", "list", *flags, *after)
            jobs += page["jobs"]
            if not page["next"]:
                return jobs
            after = ["--after", page["next"]]

    # ---- configuration ----

    def config(self, types=None, **sections):
        """Writes stint.yaml (JSON is YAML).  Leases are short, retries at once, unless said otherwise."""
        worker = {"poll": "200ms", "lease": "30s", **sections.pop("worker", {})}
        text = json.dumps({"worker": worker, "types": types or {}, **sections}, indent=1)
        (self.dir / "stint.yaml").write_text(text)

    def probe(self, verb, *args, **conf):
        """A type that runs the probe; paths default to the test's directory."""
        if not args and verb in ("hold", "stubborn", "family"):
            args = (self.dir,)
        return self.type([self.probe_path, verb, *args], **conf)

    def sh(self, script, **conf):
        """A type that runs a shell script; $D is the test's directory."""
        conf["env"] = {"D": str(self.dir), **conf.get("env", {})}
        return self.type(["/bin/sh", "-c", script], **conf)

    @staticmethod
    def type(run, **conf):
        retry = {"backoff": "fixed", "initial": "50ms", "jitter": 0, **conf.pop("retry", {})}
        return {"run": [str(word) for word in run], "retry": retry, **conf}

    # ---- workers ----

    @contextlib.contextmanager
    def worker(self, *flags, env=None, wait=True, **popen):
        log = self.dir / f"worker-{len(self.workers)}.log"
        with open(log, "wb") as err:
            process = self.start("worker", *flags, env=env, stdin=subprocess.DEVNULL, stdout=err,
                                 stderr=err, **popen)
        worker = Worker(self, process, log)
        self.workers.append(worker)
        try:
            yield worker.ready() if wait else worker
        finally:
            worker.kill()

    def work_off(self, *flags, **how):
        """`worker --once`: everything that is due now."""
        return self("worker", "--once", *flags, **how)

    def leftovers(self):
        """Pids of processes that carry a job id and our home."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                env = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = b"HOME=" + os.fsencode(self.dir) in env
            if ours and any(e.startswith(b"STINT_JOB_ID=") for e in env) and alive(entry.name):
                found.append(int(entry.name))
        return found

    def until_no_leftovers(self):
        until(lambda: not self.leftovers(), lambda: f"every child to be gone; left: {self.leftovers()}")

    def close(self):
        """After a test: no worker and no child may be left."""
        for worker in self.workers:
            worker.kill()
        self.go()
        try:
            self.until_no_leftovers()
        finally:
            for pid in self.leftovers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
