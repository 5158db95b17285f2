# SPDX-License-Identifier: Apache-2.0
"""Handlers and client with the real worker between them."""

import subprocess
import sys
import time

import pytest

import stint

PATIENCE_S = 60

TASKS = """
import threading
import stint

@stint.load
def load():
    print("loading")
    return {"lock": threading.Lock(), "met": threading.Barrier(3)}

@stint.task("echo")
def echo(payload):
    print("noise on stdout")
    return payload

@stint.task("flaky")
def flaky(payload):
    if stint.current().attempt < 3:
        raise stint.Retry("not yet", after=0.01)
    return stint.current().attempt

@stint.task("broken")
def broken(payload):
    raise LookupError("nothing here")

@stint.task("endless")
def endless(payload):
    stint.progress({"at": "work"})
    while True:
        stint.check()

@stint.task("meet")
def meet(payload, ctx):
    ctx["met"].wait(60)
    return threading.current_thread() is threading.main_thread()

stint.run()
"""

CONFIG = """
store: sqlite:jobs.db
types:
  "*":
    run: [{python}, tasks.py]
    mode: resident
    max_in_flight: {in_flight}
    inherit_env: [PYTHONPATH]
"""


@pytest.fixture
def worker(tmp_path, stint_bin, stint_lib, monkeypatch):
    """start(in_flight) starts a worker and gives a client of its store."""
    started = []

    def start(in_flight=1):
        monkeypatch.chdir(tmp_path)
        for name in ("STINT_STORE", "STINT_CONFIG", "DATABASE_URL", "REDIS_URL"):
            monkeypatch.delenv(name, raising=False)
        (tmp_path / "tasks.py").write_text(TASKS)
        config = CONFIG.format(python=sys.executable, in_flight=in_flight)
        (tmp_path / "stint.yaml").write_text(config)
        with open(tmp_path / "log", "wb") as log:
            started.append(subprocess.Popen([stint_bin, "worker"], stderr=log))
        return stint.Client()

    yield start
    for process in started:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def done(client, job):
    return client.wait(job.id, timeout=PATIENCE_S)


def test_values_go_through_unchanged_and_noise_does_not(worker):
    client = worker()
    values = [None, 1.5, "ä€😀\ud800", 10**29, {"a": [1, {"b": None}]}, "x" * 500_000]
    jobs = client.enqueue_many([{"type": "echo", "payload": v} for v in values])
    assert [done(client, j)["result"] for j in jobs] == values


def test_a_retry_comes_soon_and_a_failure_for_good(worker):
    client = worker()
    flaky, broken = client.enqueue("flaky", max_attempts=5), client.enqueue("broken")
    seen = done(client, flaky)
    assert (seen["state"], seen["result"], seen["attempt"]) == ("succeeded", 3, 3)
    assert [e["message"] for e in seen["errors"]] == ["not yet", "not yet"]
    seen = done(client, broken)
    assert (seen["state"], seen["attempt"]) == ("failed", 1)
    assert "LookupError: nothing here" in seen["error"]["message"]


@pytest.mark.parametrize("in_flight", [1, 3])
def test_a_running_job_shows_its_progress_and_is_cancelled_gently(worker, in_flight):
    client = worker(in_flight)
    job = client.enqueue("endless")
    end = time.monotonic() + PATIENCE_S
    while client.get(job.id)["progress"] != {"at": "work"}:
        assert time.monotonic() < end
        time.sleep(0.02)
    client.cancel(job.id)
    assert done(client, job)["state"] == "cancelled"
    # the child lives: it was asked, not ended
    assert done(client, client.enqueue("echo", 1))["result"] == 1


def test_jobs_in_flight_run_side_by_side_in_threads(worker):
    client = worker(3)
    jobs = client.enqueue_many([{"type": "meet"}] * 3)
    assert [done(client, j)["result"] for j in jobs] == [False] * 3
