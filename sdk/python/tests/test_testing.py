# SPDX-License-Identifier: Apache-2.0
"""stint.testing: handlers without a worker."""

import json
import os
import subprocess
import sys
from decimal import Decimal

import pytest

import stint
from stint.testing import Outcome, reset, run_task


def test_a_function_is_run_and_its_result_told():
    @stint.task
    def greet(payload):
        return {"hello": payload["name"]}

    outcome = run_task(greet, {"name": "Ada"})
    assert outcome == Outcome(result={"hello": "Ada"})
    assert outcome.ok and not outcome.cancelled


def test_a_function_need_not_be_registered():
    assert run_task(lambda payload: payload, 5).result == 5


def test_a_task_may_be_named():
    @stint.task("mail.send")
    def send(payload):
        return stint.current().type

    assert run_task("mail.send").result == "mail.send"
    assert run_task(send).result == "mail.send"
    with pytest.raises(Exception, match="no handler for type 'other'"):
        run_task("other")


def test_payload_and_result_pass_through_json():
    seen = []
    outcome = run_task(lambda p: seen.append(p) or (1, {2: "x"}), (1, 2))
    assert seen == [[1, 2]]
    assert outcome.result == [1, {"2": "x"}]
    assert "cannot be written as JSON" in run_task(lambda p: {1}).error
    with pytest.raises(TypeError):
        run_task(lambda p: p, {1})


def test_an_exception_is_an_outcome():
    outcome = run_task(lambda p: 1 / 0)
    assert not outcome.ok and not outcome.retry
    assert "ZeroDivisionError" in outcome.error
    assert isinstance(outcome.exception, ZeroDivisionError)


def test_a_retry_is_an_outcome():
    def busy(payload):
        raise stint.Retry("busy", after="2m")

    outcome = run_task(busy)
    assert (outcome.error, outcome.retry, outcome.retry_after) == ("busy", True, 120)


def test_the_context_comes_from_load_or_from_the_test():
    @stint.load
    def load():
        return {"model": "real"}

    def f(payload, ctx):
        return ctx

    assert run_task(f).result == {"model": "real"}
    assert run_task(f, ctx={"model": "fake"}).result == {"model": "fake"}
    assert run_task(f, ctx=None).result is None
    reset()
    with pytest.raises(RuntimeError, match="wants a context"):
        run_task(f)


def test_the_current_task_is_what_the_test_says():
    def f(payload):
        job = stint.current()
        return [job.attempt, job.retry_count, job.id, job.queue, job.max_retry, job.fence]

    outcome = run_task(f, attempt=3, id="j", queue="q", max_retry=9, fence=4)
    assert outcome.result == [3, 2, "j", "q", 9, 4]


def test_progress_is_collected():
    def f(payload):
        stint.progress(0.5)
        stint.progress((1, 2))

    assert run_task(f).progress == [0.5, [1, 2]]


def test_a_task_may_be_cancelled_at_its_first_or_a_later_check():
    steps = []

    def f(payload):
        steps.clear()
        while True:
            stint.check()
            steps.append(1)

    outcome = run_task(f, cancel=True)
    assert outcome.cancelled and not outcome.ok and steps == []
    run_task(f, cancel=3)
    assert len(steps) == 2
    assert run_task(lambda p: stint.current().cancelled, cancel=True).result is True
    assert run_task(lambda p: stint.current().cancelled).result is False


def test_the_words_of_run_may_be_given():
    outcome = run_task(lambda p: Decimal("1.10") + p, 1, default=str)
    assert outcome.result == "2.10"
    assert run_task(lambda p: str(p), 1.5, parse_float=Decimal).result == "1.5"


def test_no_task_is_left_behind():
    run_task(lambda p: p)
    with pytest.raises(RuntimeError):
        run_task(lambda p: p) and stint.current()


def test_modules_with_a_task_each_may_be_imported_side_by_side():
    @stint.task
    def one(payload):
        return 1

    @stint.task
    def two(payload):
        return 2

    assert (run_task(one).result, run_task(two).result) == (1, 2)


# ---- from the shell ----------------------------------------------------------------------

TASKS = """
import stint
print("imported")

@stint.task
def greet(payload):
    print("greeting")
    stint.progress(1)
    return {"hello": payload, "attempt": stint.current().attempt}

@stint.task("named.task")
def later(payload):
    raise stint.Retry("later", after=1)

def fails(payload):
    raise ValueError("no")

stint.run()
"""


@pytest.fixture
def shell(tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS)

    def run(*args, stdin=""):
        return subprocess.run(
            [sys.executable, "-m", "stint.testing", *args],
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env=dict(os.environ),
        )

    return run


def test_the_shell_prints_the_outcome_and_only_that(shell):
    done = shell("tasks:greet", '"ä"', "--attempt", "2")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "result": {"hello": "ä", "attempt": 2},
        "error": None,
        "retry": False,
        "retry_after": None,
        "progress": [1],
    }
    assert done.stderr == "imported\ngreeting\n"


def test_the_shell_prints_text_that_no_utf_8_has(shell):
    done = shell("tasks:greet", '"\\ud800"')
    assert done.returncode == 0
    assert json.loads(done.stdout)["result"]["hello"] == "\ud800"


def test_the_shell_reads_the_payload_from_stdin(shell):
    assert json.loads(shell("tasks.py:greet", "-", stdin="[1]").stdout)["result"]["hello"] == [1]


@pytest.mark.parametrize("what, code", [("fails", 65), ("later", 75), ("named.task", 75)])
def test_the_exit_code_tells_the_outcome(shell, what, code):
    assert shell(f"tasks:{what}").returncode == code


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["tasks"],
        ["nothing:here"],
        ["tasks:missing"],
        ["tasks:greet", "{"],
        ["tasks:greet", "1", "2"],
        ["--help"],
    ],
)
def test_wrong_usage_is_2_and_says_how(shell, args):
    done = shell(*args)
    assert done.returncode == 2
    assert "usage: python -m stint.testing" in done.stderr
    assert "Traceback" not in done.stderr
