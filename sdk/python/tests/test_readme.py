# SPDX-License-Identifier: Apache-2.0
"""What the README shows, works."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit import succeeded

import stint

README = (Path(__file__).parents[1] / "README.md").read_text()


def block(first_line):
    """The code block that starts with this line."""
    match = re.search(r"```\w+\n(" + re.escape(first_line) + r"\n.*?)```", README, re.S)
    assert match, f"no block starts with {first_line}"
    return match.group(1)


def test_the_task_in_five_lines_runs(worker):
    w = worker(block("# tasks.py"))
    assert w.ask({"name": "Ada"}) == succeeded("t", {"hello": "Ada"})
    w.end()


def test_every_block_of_python_is_python():
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) > 5
    for text in blocks:
        compile(text, "README.md", "exec")


def test_every_exception_of_the_table_is_there():
    names = re.findall(r"^\| `(\w+)`", README, re.M)
    assert len(names) == 8
    for name in names:
        assert issubclass(getattr(stint, name), stint.StintError)


@pytest.mark.parametrize("run, mode", [("run", "resident"), ("run_once", "oneshot-lines")])
def test_a_worker_runs_the_task_in_five_lines(tmp_path, stint_bin, stint_lib, run, mode):
    (tmp_path / "tasks.py").write_text(block("# tasks.py").replace("stint.run()", f"stint.{run}()"))
    config = block("# stint.yaml").replace("python3", sys.executable).replace("resident", mode)
    (tmp_path / "stint.yaml").write_text(config)
    store = f"sqlite:{tmp_path}/stint.db"
    client = stint.Client(store)
    jobs = client.enqueue_many([{"type": "greet", "payload": {"name": n}} for n in ("Ada", "Alan")])
    done = subprocess.run(
        [stint_bin, "worker", "--once", "--store", store],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "is not in this version of stint yet" in done.stderr:
        pytest.skip(f"this stint has no `mode: {mode}`")
    assert done.returncode == 0, done.stderr
    assert [client.wait(j.id, timeout=30)["result"] for j in jobs] == [
        {"hello": "Ada"},
        {"hello": "Alan"},
    ]


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    try:
        installed = version("stint")
    except Exception:
        pytest.skip("not installed")
    assert installed == stint.__version__
