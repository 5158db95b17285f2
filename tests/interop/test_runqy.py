# SPDX-License-Identifier: Apache-2.0
"""A task written with the published runqy-python runs unchanged, resident and by lines."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from kit import once  # noqa: E402

STINT = os.environ.get("STINT_BIN", str(Path(__file__).resolve().parents[2] / "build" / "stint"))

TASK = """
from runqy_python import load, run, run_once, task, RetryableError
import sys

@load
def setup():
    return {"loaded": 1}

@task
def handle(payload, ctx):
    print("a print of the task's own")
    ctx["loaded"] += 1
    if payload == "bad":
        raise ValueError("no use")
    if isinstance(payload, dict) and payload.get("flaky"):
        raise RetryableError("not yet")
    return {"got": payload, "nth": ctx["loaded"]}

if __name__ == "__main__":
    run_once() if "--once" in sys.argv else run()
"""


def install_runqy(venv):
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    done = subprocess.run([venv / "bin" / "pip", "install", "-q", "--disable-pip-version-check", "runqy-python"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        print("\n*** SKIPPED: runqy-python cannot be installed: is the package registry there?\n" + done.stderr[-500:])
        pytest.skip("runqy-python cannot be installed: is the package registry there?")


@pytest.fixture(scope="session")
def runqy(tmp_path_factory):
    """A Python that has runqy-python."""
    return str(once(tmp_path_factory, "runqy", install_runqy) / "bin" / "python")


@pytest.fixture
def stint(tmp_path, runqy):
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "stint.yaml").write_text(json.dumps({"types": {
        "stay": {"run": [runqy, str(tmp_path / "task.py")], "mode": "resident",
                 "retry": {"max_attempts": 2, "backoff": "fixed", "initial": "1h"}},
        "once": {"run": [runqy, str(tmp_path / "task.py"), "--once"], "mode": "oneshot-lines"}}}))

    def run(*args):
        done = subprocess.run([STINT, *args], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                              env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
        assert done.returncode == 0, (args, done)
        return json.loads(done.stdout) if "--json" in args else done.stdout
    return run


def enqueue(stint, type, payload):
    return stint("enqueue", type, json.dumps(payload), "--json")["id"]


def show(stint, id):
    return stint("job", "show", id, "--json")


def test_run_serves_many_tasks_in_one_process(stint):
    ids = [enqueue(stint, "stay", {"n": n}) for n in range(3)]
    stint("worker", "--once")
    jobs = [show(stint, id) for id in ids]
    assert [j["state"] for j in jobs] == ["succeeded"] * 3
    assert sorted(j["result"]["nth"] for j in jobs) == [2, 3, 4]
    assert [j["result"]["got"] for j in jobs] == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_its_errors_are_permanent_and_its_retryable_ones_are_not(stint):
    bad, flaky = enqueue(stint, "stay", "bad"), enqueue(stint, "stay", {"flaky": True})
    stint("worker", "--once")
    job = show(stint, bad)
    assert job["state"] == "failed" and job["attempt"] == 1 and "no use" in job["error"]["message"]
    assert show(stint, flaky)["state"] == "retrying"


def test_run_once_serves_one_task_per_process(stint):
    ids = [enqueue(stint, "once", [n]) for n in range(2)]
    stint("worker", "--once")
    assert [show(stint, id)["result"] for id in ids] == [{"got": [0], "nth": 2}, {"got": [1], "nth": 2}]
