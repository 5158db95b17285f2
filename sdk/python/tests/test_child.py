# SPDX-License-Identifier: Apache-2.0
"""run() and run_once() as a worker sees them."""

import json
import os
import signal

import pytest
from kit import request, succeeded

ECHO = """
@stint.task
def echo(payload):
    return payload
stint.run()
"""


def test_answers_come_in_the_order_of_requests_and_the_child_ends_at_eof(worker):
    w = worker(ECHO)
    w.send(*(request(f"t{n}", {"n": n}) for n in range(1000)))
    assert w.lines(1000) == [succeeded(f"t{n}", {"n": n}) for n in range(1000)]
    w.end()
    assert w.stderr == ""


def test_requests_read_before_eof_are_all_answered(worker):
    w = worker(ECHO)
    w.send(*(request(f"t{n}") for n in range(500)))
    w.close_stdin()
    assert [a["task_id"] for a in w.lines(500)] == [f"t{n}" for n in range(500)]
    assert w.line() is None
    assert w.wait() == 0


def test_a_last_line_without_its_newline_is_a_request(worker):
    w = worker(ECHO)
    w.send(json.dumps(request("last", 1)).encode())
    w.close_stdin()
    assert w.line() == succeeded("last", 1)
    assert w.wait() == 0


def test_empty_lines_and_carriage_returns_are_no_matter(worker):
    w = worker(ECHO)
    w.send(
        b"\n  \n\r\n", json.dumps(request("t", 1)).encode() + b"\r\n", b"  " + b'{"task_id":"u"}\n'
    )
    assert w.line() == succeeded("t", 1)
    assert w.line() == succeeded("u", {})
    w.end()


@pytest.mark.parametrize(
    "payload",
    [
        None,
        True,
        0,
        -1.5,
        "",
        [],
        {},
        'ä€😀\u2028\u0000\n"\\',
        {"ключ": ["значение", None]},
        2**64,
        10**29 + 1,
        -(2**63),
        {"a": [1, {"b": [2.5, "x"]}]},
    ],
)
def test_a_value_goes_through_unchanged(worker, payload):
    w = worker(ECHO)
    answer = w.ask(payload)
    assert answer == succeeded("t", payload)
    assert type(answer["result"]) is type(payload)
    w.end()


def test_results_are_utf_8_and_not_escapes(worker):
    w = worker(ECHO)
    w.send(request("t", "ä€"))
    assert "ä€".encode() in w.raw_line()


def test_lone_surrogates_go_through_as_escapes(worker):
    w = worker(ECHO)
    w.send(b'{"task_id":"t","payload":{"\\udc00":"\\ud800"}}\n')
    line = w.raw_line()
    assert json.loads(line)["result"] == {"\udc00": "\ud800"}
    assert line.isascii()
    w.end()


def test_a_payload_of_one_mebibyte_goes_through(worker):
    w = worker(ECHO)
    text = "0123456789abcdeä" * (1 << 16)
    assert w.ask(text)["result"] == text
    w.end()


def test_a_line_of_exactly_16_mebibytes_is_read_and_one_byte_more_is_refused(worker):
    w = worker("@stint.task\ndef size(payload):\n    return len(payload)\nstint.run()\n")
    head, tail = b'{"task_id":"big","payload":"', b'"}'
    room = (16 << 20) - len(head) - len(tail)
    w.send(head + b"x" * room + tail + b"\n")
    assert w.line() == succeeded("big", room)
    w.send(head + b"x" * (room + 1) + tail + b"\n")
    answer = w.line()
    assert answer["task_id"] == "big"
    assert "longer than 16777216 bytes" in answer["error"]
    w.send(head + b"x" * (room * 2) + tail + b"\n")
    assert w.line()["task_id"] == "big"
    w.send(request("after", "abc"))
    assert w.line() == succeeded("after", 3)
    w.end()


def test_a_result_too_large_for_a_line_fails_the_task_alone(worker):
    w = worker("@stint.task\ndef f(payload):\n    return 'x' * payload\nstint.run()\n")
    assert "the limit is 16777216" in w.ask(17 << 20)["error"]
    assert w.ask(3)["result"] == "xxx"


def test_deep_nesting_fails_the_task_or_goes_through_but_never_ends_the_child(worker):
    w = worker(ECHO)
    w.send(b'{"task_id":"deep","payload":' + b"[" * 500 + b"]" * 500 + b"}\n")
    assert w.line()["error"] is None
    w.send(b'{"task_id":"deeper","payload":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n")
    answer = w.line()
    assert answer["task_id"] == "deeper"
    assert "cannot be read" in answer["error"]
    assert w.ask(1)["result"] == 1
    w.end()


def test_a_result_nested_too_deep_is_a_clear_error(worker):
    w = worker(
        """
        @stint.task
        def f(payload):
            out = []
            for _ in range(payload):
                out = [out]
            return out
        stint.run()
        """
    )
    assert "cannot be written as JSON" in w.ask(200_000)["error"]
    assert w.ask(1)["result"] == [[]]


@pytest.mark.parametrize(
    "line, task_id",
    [
        (b"garbage\n", "unknown"),
        (b"[1]\n", "unknown"),
        (b'"text"\n', "unknown"),
        (b'{"task_id":["list"],"payload":1}\n', ["list"]),
        (b'{"task_id":"t","payload":\n', "t"),
        (b'{"task_id":"t","payload":"\xff"}\n', "t"),
        (b'{"task_id":"t","payload":NaN,}\n', "t"),
        (b'{"task_id":"t","type":["x"],"payload":1}\n', "t"),
    ],
)
def test_a_request_that_cannot_be_read_is_answered(worker, line, task_id):
    w = worker(ECHO)
    w.send(line)
    answer = w.line()
    assert answer["task_id"] == task_id
    assert "cannot be read" in answer["error"]
    assert answer["retry"] is False
    assert w.ask(5)["result"] == 5
    w.end()


def test_a_number_of_too_many_digits_fails_its_task_alone(worker):
    w = worker(ECHO)
    w.send(b'{"task_id":"t","payload":' + b"9" * 100_000 + b"}\n")
    answer = w.line()
    assert answer["task_id"] == "t"
    assert answer["error"] is None or "digits" in answer["error"]
    assert w.ask(5)["result"] == 5


# ---- noise -------------------------------------------------------------------------------


def test_nothing_a_handler_prints_reaches_the_protocol(worker):
    w = worker(
        """
        import ctypes, os, subprocess, sys
        early = sys.stdout
        print("while loading the module")
        sys.stdout.write("no newline")

        @stint.load
        def load():
            print("while loading")
            os.system("echo from a shell while loading")

        @stint.task
        def noisy(payload):
            print("print")
            print("early object", file=early)
            os.write(1, b"descriptor 1\\n")
            sys.__stdout__.write("dunder\\n")
            sys.stdout.buffer.write(b"buffer\\n")
            libc = ctypes.CDLL(None)
            libc.puts(b"puts")
            libc.fflush(None)
            subprocess.run(["sh", "-c", "echo from a child"], check=True)
            return "quiet"
        stint.run()
        """
    )
    for _ in range(3):
        assert w.ask()["result"] == "quiet"
    w.end()
    said = w.stderr
    for text in (
        "while loading the module",
        "no newline",
        "from a shell while loading",
        "print",
        "early object",
        "descriptor 1",
        "dunder",
        "buffer",
        "puts",
        "from a child",
    ):
        assert text in said


def test_text_that_utf_8_cannot_carry_may_be_printed(worker):
    w = worker("@stint.task\ndef f(p):\n    print(p)\n    return 1\nstint.run()\n")
    assert w.ask("\ud800")["result"] == 1
    w.end()
    assert w.stderr == "\\ud800\n"


def test_a_handler_cannot_eat_requests_from_stdin(worker):
    w = worker(
        """
        import subprocess, sys
        @stint.task
        def hungry(payload):
            cat = subprocess.run(["cat"], stdout=subprocess.PIPE)
            return [sys.stdin.read(), cat.stdout.decode()]
        stint.run()
        """
    )
    w.send(request("a"), request("b"))
    assert w.lines(2) == [succeeded("a", ["", ""]), succeeded("b", ["", ""])]
    w.end()


def test_a_closed_stderr_is_no_matter(worker, tmp_path):
    w = worker(
        "import os\nos.close(2)\n" + ECHO.replace("    return", "    print('x')\n    return")
    )
    assert w.ask(1)["result"] == 1
    w.end()


def test_a_forked_process_neither_answers_nor_keeps_the_pipe_and_can_be_terminated(worker):
    w = worker(
        """
        import os, signal, sys
        @stint.task
        def forks(payload):
            here, there = os.pipe()
            pid = os.fork()
            if pid == 0:
                if payload == "return":
                    return "from the child"
                stint.progress(1)
                os.write(there, b".")
                signal.pause()
            if payload == "terminate":
                os.read(here, 1)
                os.kill(pid, signal.SIGTERM)
            if payload != "leave":
                return os.waitpid(pid, 0)[1]
            return pid
        stint.run()
        """
    )
    assert w.ask("terminate")["result"] == signal.SIGTERM
    assert w.ask("return")["result"] >> 8 == 1
    left = w.ask("leave")["result"]
    w.end()  # the pipe ends although that process lives
    os.kill(left, signal.SIGKILL)


# ---- outcomes ----------------------------------------------------------------------------


def test_an_exception_is_a_permanent_failure_with_the_handlers_traceback(worker):
    w = worker(
        """
        def inner():
            raise ValueError("wrong number: \\ud800")
        @stint.task
        def f(payload):
            inner()
        stint.run()
        """
    )
    answer = w.ask()
    assert answer["retry"] is False and answer["result"] is None
    assert answer["error"].startswith("Traceback (most recent call last):")
    assert "in inner" in answer["error"] and "ValueError: wrong number" in answer["error"]
    assert "_child.py" not in answer["error"]


@pytest.mark.parametrize(
    "text",
    [
        "sys.exit(3)",
        "sys.exit()",
        "raise KeyboardInterrupt",
        "raise GeneratorExit",
        "raise Odd",
        "raise stint.Cancelled",
        "(lambda f: f(f))(lambda f: f(f))",
        "payload['missing']",
        "f()",
    ],
)
def test_whatever_a_handler_raises_the_child_goes_on(worker, text):
    w = worker(
        f"""
        import sys
        class Odd(BaseException):
            def __str__(self):
                raise TypeError
        @stint.task
        def f(payload):
            if payload == {{}}:
                {text}
            return payload
        stint.run()
        """
    )
    answer = w.ask({})
    assert answer["error"] and answer["retry"] is False
    assert w.ask(2)["result"] == 2
    w.end()


@pytest.mark.parametrize(
    "text, error, after",
    [
        ("raise stint.Retry('busy')", "busy", None),
        ("raise stint.Retry()", "Retry", None),
        ("raise stint.Retry('', after=0)", "Retry", 0),
        ("raise stint.Retry(after=2.5)", "Retry", 2.5),
        ("raise stint.Retry(after='5m')", "Retry", 300),
        ("raise stint.Retry(after=datetime.timedelta(hours=1))", "Retry", 3600),
        ("raise stint.RetryableError('as in runqy')", "as in runqy", None),
        ("raise Busy('mine')", "mine", None),
        ("raise Bare()", "Bare", None),
        ("raise stint.Retry() from OSError('down')", "OSError: down", None),
        ("raise stint.Retry(after=1) from None", "Retry", 1),
    ],
)
def test_retry_is_asked_for_by_raising_it(worker, text, error, after):
    w = worker(
        f"""
        import datetime
        class Busy(stint.Retry):
            pass
        class Bare(stint.Retry):
            def __init__(self):
                pass
        @stint.task
        def f(payload):
            {text}
        stint.run()
        """
    )
    expected = {"task_id": "t", "result": None, "error": error, "retry": True}
    if after is not None:
        expected["retry_after"] = after
    assert w.ask() == expected


@pytest.mark.parametrize(
    "text, why",
    [
        ("{1, 2}", "set is not JSON serializable"),
        ("object()", "object is not JSON serializable"),
        ("float('nan')", "JSON compliant"),
        ("[float('inf')]", "JSON compliant"),
        ("{(1, 2): 3}", "keys must be"),
        ("b'bytes'", "bytes is not JSON serializable"),
        ("__import__('decimal').Decimal('1.10')", "Decimal is not JSON serializable"),
        ("circle", "ircular"),
    ],
)
def test_a_result_that_is_no_json_is_a_clear_error(worker, text, why):
    w = worker(
        f"""
        circle = []
        circle.append(circle)
        @stint.task
        def f(payload):
            return {text}
        stint.run()
        """
    )
    answer = w.ask()
    assert answer["error"].startswith("the result cannot be written as JSON: ")
    assert why in answer["error"]
    assert answer["retry"] is False


def test_default_and_parse_float_are_those_of_json(worker):
    w = worker(
        """
        from decimal import Decimal
        @stint.task
        def f(payload):
            assert payload == Decimal("1.10") and str(payload) == "1.10"
            return {"sum": payload}
        stint.run(default=str, parse_float=Decimal)
        """
    )
    w.send(b'{"task_id":"t","payload":1.10}\n')
    assert w.line() == succeeded("t", {"sum": "1.10"})


def test_a_very_long_error_is_cut_in_the_middle(worker):
    w = worker(
        "@stint.task\ndef f(p):\n    raise ValueError('x' * (20 << 20) + 'end')\nstint.run()\n"
    )
    error = w.ask()["error"]
    assert len(error) < 70_000
    assert error.startswith("Traceback") and "characters left out" in error and "end" in error[-10:]


# ---- types, context, the current task ----------------------------------------------------


def test_handlers_are_chosen_by_type_and_the_unnamed_one_serves_the_rest(worker):
    w = worker(
        """
        @stint.task("add")
        def add(payload):
            return payload + 1
        @stint.task("double")
        def double(payload):
            return payload * 2
        @stint.task
        def other(payload):
            return stint.current().type
        stint.run()
        """
    )
    assert w.ask(5, type="add")["result"] == 6
    assert w.ask(5, type="double")["result"] == 10
    assert w.ask(5, type="more")["result"] == "more"
    w.end()


def test_a_type_without_a_handler_fails_for_good(worker):
    w = worker(
        """
        @stint.task("a")
        def a(payload):
            return 1
        @stint.task("b")
        def b(payload):
            return 2
        stint.run()
        """
    )
    answer = w.ask(type="c")
    assert answer["error"] == "there is no handler for type 'c' here, only for a, b"
    assert answer["retry"] is False
    w.send(b'{"task_id":"t","payload":1}\n')
    assert "there is no handler" in w.line()["error"]


@pytest.mark.parametrize(
    "load, handler, result",
    [
        ("return 7", "def f(payload, ctx): return ctx", 7),
        ("return 7", "def f(payload): return 'none'", "none"),
        ("return None", "def f(payload, ctx): return ctx", None),
        ("return None", "def f(payload, verbose=False): return verbose", False),
        ("return 7", "def f(payload, verbose=False): return verbose", 7),
        ("return 7", "def f(*args): return len(args)", 2),
        ("return 7", "class C:\n    def __call__(self, payload, ctx): return ctx\nf = C()", 7),
        (
            "return 7",
            "import functools\ndef g(x, p, ctx): return [x, ctx]\nf = functools.partial(g, 1)",
            [1, 7],
        ),
    ],
)
def test_the_context_is_what_load_returned(worker, load, handler, result):
    w = worker(
        "loads = []\n@stint.load\ndef setup():\n    loads.append(1)\n    "
        + load
        + "\n"
        + handler
        + "\nstint.task(f)\nstint.task('loads')(lambda payload: len(loads))\nstint.run()\n"
    )
    assert w.ask()["result"] == result
    assert w.ask()["result"] == result
    assert w.ask(type="loads")["result"] == 1


def test_the_current_task_shows_what_the_worker_said(worker):
    w = worker(
        """
        import datetime
        @stint.task
        def f(payload):
            j = stint.current()
            assert j.deadline == datetime.datetime(2030, 1, 1, 12, tzinfo=datetime.timezone.utc)
            return [j.id, j.type, j.queue, j.attempt, j.retry_count, j.max_retry, j.fence,
                    j.traceparent, j.payload, j.cancelled]
        stint.run()
        """
    )
    answer = w.ask(
        "p",
        attempt=3,
        retry_count=2,
        fence=2**53,
        traceparent="00-ab-cd-01",
        deadline="2030-01-01T12:00:00.000000Z",
        queue="a.b",
    )
    assert answer["result"] == ["t", "test", "a.b", 3, 2, 2, 2**53, "00-ab-cd-01", "p", False]


def test_a_request_of_runqys_form_is_enough(worker):
    w = worker(
        """
        @stint.task
        def f(payload):
            j = stint.current()
            return [payload, j.attempt, j.deadline, j.fence]
        stint.run()
        """
    )
    w.send({"task_id": "t", "payload": 1, "retry_count": 4})
    assert w.line()["result"] == [1, 5, None, None]
    w.send({"task_id": "t"})
    assert w.line()["result"] == [{}, 1, None, None]


def test_the_fence_comes_back_with_everything_that_is_said(worker):
    w = worker(
        """
        @stint.task
        def f(payload):
            stint.progress(1)
            if payload == "fail":
                raise stint.Retry("no", after=1)
            return {1} if payload == "set" else payload
        stint.run()
        """
    )
    for payload in ("ok", "fail", "set", "\ud800"):
        w.send(request("t", payload, fence=2**60))
        assert w.line() == {"task_id": "t", "progress": 1, "fence": 2**60}
        assert w.line()["fence"] == 2**60
    w.send(request("t", "ok"))
    assert w.line() == {"task_id": "t", "progress": 1}
    assert w.line() == succeeded("t", "ok")


def test_a_payload_that_is_no_json_comes_as_bytes(worker):
    w = worker(
        """
        @stint.task
        def f(payload):
            raw = stint.current().payload_bytes
            return [payload, raw and raw.hex()]
        stint.run()
        """
    )
    assert w.ask(None, payload_base64="/wA=")["result"] == [None, "ff00"]
    assert w.ask(None)["result"] == [None, None]


# ---- progress and cancel -----------------------------------------------------------------


def test_progress_lines_come_before_the_answer(worker):
    w = worker(
        """
        @stint.task
        def f(payload):
            stint.progress(0.5)
            stint.progress({"done": 1, "of": "ä"})
            try:
                stint.progress({1})
            except TypeError:
                return "told"
        stint.run()
        """
    )
    w.send(request("t"))
    assert w.line() == {"task_id": "t", "progress": 0.5}
    assert w.line() == {"task_id": "t", "progress": {"done": 1, "of": "ä"}}
    assert w.line() == succeeded("t", "told")


CANCELLABLE = """
import time
@stint.task
def f(payload):
    if payload == "quick":
        return "quick"
    stint.progress("started")
    try:
        while True:
            stint.check()
            time.sleep(0.001)
    except Exception:
        return "swallowed"
    finally:
        stint.progress("cleaned up")
stint.run({threads})
"""


@pytest.mark.parametrize("threads", ["", "4"])
def test_a_cancel_line_stops_the_task_at_its_next_check(worker, threads):
    w = worker(CANCELLABLE.format(threads=threads))
    w.send(request("c", 1))
    assert w.line()["progress"] == "started"
    w.send({"task_id": "other", "cancel": True}, {"task_id": "c", "cancel": True})
    assert w.line()["progress"] == "cleaned up"
    assert w.line() == {"task_id": "c", "result": None, "error": "cancelled", "retry": False}
    assert w.ask("quick")["result"] == "quick"
    w.end()


def test_a_handler_may_look_at_the_flag_itself(worker):
    w = worker(
        """
        import threading, time
        @stint.task
        def f(payload):
            job = stint.current()
            stint.progress("started")
            seen = []
            def look():
                while not job.cancelled:
                    time.sleep(0.001)
                seen.append(job.cancelled)
            t = threading.Thread(target=look)
            t.start()
            t.join()
            return ["stopped early", *seen]
        stint.run()
        """
    )
    w.send(request("t"))
    assert w.line()["progress"] == "started"
    w.send({"task_id": "t", "cancel": True})
    assert w.line()["result"] == ["stopped early", True]


def test_a_request_cancelled_while_it_waits_is_not_run(worker):
    w = worker(CANCELLABLE.format(threads=""))
    w.send(request("a", 1))
    assert w.line()["progress"] == "started"
    w.send(request("b", 1), request("c", "quick"), {"task_id": "b", "cancel": True})
    w.send({"task_id": "a", "cancel": True})
    assert w.line()["progress"] == "cleaned up"
    assert w.line()["error"] == "cancelled"
    assert w.line() == {"task_id": "b", "result": None, "error": "cancelled", "retry": False}
    assert w.line() == succeeded("c", "quick")
    w.end()


def test_a_request_cancelled_behind_a_task_that_never_looks_is_not_run(worker, tmp_path):
    w = worker(
        """
        import os, time
        @stint.task
        def f(payload):
            stint.progress("started")
            while not os.path.exists(payload):
                time.sleep(0.001)
            time.sleep(0.002)  # not a quick one
            return "done"
        stint.run()
        """
    )
    gate = tmp_path / "gate"
    w.send(request("a", str(gate)), request("b", str(gate)))
    assert w.line()["progress"] == "started"
    w.send({"task_id": "b", "cancel": True})
    gate.write_text("")
    assert w.line() == succeeded("a", "done")
    assert w.line() == {"task_id": "b", "result": None, "error": "cancelled", "retry": False}


def test_a_late_cancel_does_not_hit_the_next_attempt(worker):
    w = worker(CANCELLABLE.format(threads=""))
    assert w.ask("quick")["result"] == "quick"
    w.send({"task_id": "t", "cancel": True})
    assert w.ask("quick", attempt=2)["result"] == "quick"


def test_a_payload_that_speaks_of_cancel_is_a_payload(worker):
    w = worker(ECHO)
    assert w.ask({"cancel": True})["result"] == {"cancel": True}
    w.send(b'{"task_id":"t","cancel":true,"payload":1}\n')
    assert w.line() == succeeded("t", 1)


def test_outside_of_a_task_progress_and_check_do_nothing():
    import stint

    stint.progress(1)
    stint.check()
    with pytest.raises(RuntimeError, match="no task runs here"):
        stint.current()


# ---- threads -----------------------------------------------------------------------------

REVERSE = """
import threading
gates = {{n: threading.Event() for n in range(4)}}
@stint.task
def f(payload):
    stint.progress("here")
    if payload:
        gates[payload].wait()
    if payload < 3:
        gates[payload + 1].set()
    return [payload, stint.current().id]
stint.run({threads})
"""


@pytest.mark.parametrize("threads, env", [("4", None), ("threads=4", None), ("", "4")])
def test_threads_answer_in_any_order(worker, threads, env):
    w = worker(REVERSE.format(threads=threads), env={"STINT_MAX_IN_FLIGHT": env} if env else None)
    for n in (3, 2, 1):
        w.send(request(f"t{n}", n))
        assert w.line() == {"task_id": f"t{n}", "progress": "here"}
    w.send(request("t0", 0))
    assert w.line()["progress"] == "here"
    assert {(a["task_id"], tuple(a["result"])) for a in w.lines(4)} == {
        (f"t{n}", (n, f"t{n}")) for n in range(4)
    }
    w.end()


def test_threads_answer_each_request_once(worker):
    w = worker("@stint.task\ndef echo(p):\n    return p\nstint.run(8)\n")
    w.send(*(request(f"t{n}", n) for n in range(5000)))
    answers = {a["task_id"]: a["result"] for a in w.lines(5000)}
    assert answers == {f"t{n}": n for n in range(5000)}
    w.end()


def test_threads_wait_for_each_other_after_many_quick_requests(worker):
    """Quick ones are left to one thread; those that wait must get theirs all the same."""
    w = worker(
        """
        import threading
        all_there = threading.Barrier(4)
        @stint.task
        def f(payload):
            if payload == "wait":
                all_there.wait()
            return payload
        stint.run(4)
        """
    )
    for _ in range(3):
        w.send(*(request(f"t{n}", n) for n in range(3000)), *(request(f"w{n}", "wait") for n in range(4)))
        assert {a["task_id"] for a in w.lines(3004)} >= {f"w{n}" for n in range(4)}
        w.send(*(request(f"w{n}", "wait") for n in range(4)))
        assert {a["task_id"] for a in w.lines(4)} == {f"w{n}" for n in range(4)}
    w.end()


def test_a_quick_answer_does_not_wait_for_a_slow_handler(worker):
    w = worker(
        """
        import threading
        @stint.task
        def f(payload):
            if payload == "slow":
                stint.progress("started")
                stint.current()  # goes on until it is cancelled
                while not stint.current().cancelled:
                    threading.Event().wait(0.01)
            return payload
        stint.run()
        """
    )
    w.send(*(request(f"t{n}", n) for n in range(20)), request("s", "slow"))
    assert [a["task_id"] for a in w.lines(20)] == [f"t{n}" for n in range(20)]
    assert w.line()["progress"] == "started"
    w.send({"task_id": "s", "cancel": True})
    assert w.line() == succeeded("s", "slow")


def test_a_held_answer_goes_out_although_the_next_handler_says_nothing(worker, tmp_path):
    w = worker(
        """
        import os, time
        @stint.task
        def f(payload):
            while payload and not os.path.exists(payload):
                time.sleep(0.001)
            return "done"
        stint.run()
        """
    )
    for n in range(3):
        gate = tmp_path / f"gate{n}"
        w.send(request("quick"), request("slow", str(gate)))
        assert w.line() == succeeded("quick", "done")
        gate.write_text("")
        assert w.line() == succeeded("slow", "done")


# ---- start -------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["run", "run_once"])
@pytest.mark.parametrize(
    "script, why",
    [
        (
            "@stint.load\ndef f():\n    raise OSError('no model \\u00e4')\n" + ECHO,
            "@load failed: OSError: no model ä",
        ),
        (
            "import sys\n@stint.load\ndef f():\n    sys.exit('no GPU')\n" + ECHO,
            "@load failed: SystemExit: no GPU",
        ),
        ("stint.run()\n", "there is no handler"),
        (
            "@stint.task\ndef f(payload, ctx): pass\nstint.run()\n",
            "f wants a context, but there is no @load",
        ),
        ("@stint.task\ndef f(p): pass\n" + ECHO, "@task is on both __main__.f and __main__.echo"),
        (
            "@stint.task('x')\ndef f(p): pass\n@stint.task('x')\ndef g(p): pass\nstint.run()\n",
            "@task('x') is on both",
        ),
        ("@stint.load\ndef f(): pass\n@stint.load\ndef g(): pass\n" + ECHO, "@load is on both"),
    ],
)
def test_a_child_that_cannot_start_says_why(worker, run, script, why):
    w = worker(script.replace("stint.run()", f"stint.{run}()"), ready=False)
    line = w.line()
    assert line["status"] == "error"
    assert why in line["error"]
    assert w.line() is None
    assert w.wait() == 1
    assert why in w.stderr


def test_the_traceback_of_load_is_in_the_log(worker):
    w = worker("@stint.load\ndef bad_load():\n    1 / 0\n" + ECHO, ready=False)
    assert w.line()["error"] == "@load failed: ZeroDivisionError: division by zero"
    w.wait()
    assert "in bad_load" in w.stderr


def test_an_async_handler_is_refused_at_once(worker):
    w = worker("@stint.task\nasync def f(p): pass\nstint.run()\n", ready=False)
    assert w.line() is None
    assert w.wait() == 1
    assert "asyncio.run() inside" in w.stderr


def test_the_name_of_a_type_must_be_text():
    import stint

    with pytest.raises(TypeError):
        stint.task(7)


# ---- the end -----------------------------------------------------------------------------

SLOW = """
import os, time
@stint.task
def f(payload):
    stint.progress("started")
    while not os.path.exists(payload):
        time.sleep(0.001)
    return "finished"
stint.run({threads})
print("after run")
"""


@pytest.mark.parametrize("threads", ["", "3"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_finish_and_starts_nothing_more(worker, tmp_path, threads, number):
    w = worker(SLOW.format(threads=threads))
    gate = tmp_path / "gate"
    many = int(threads or 1)
    w.send(*(request(f"t{n}", str(gate)) for n in range(many)))
    assert all(a["progress"] == "started" for a in w.lines(many))
    w.send(request("never", str(gate)))
    w.term(number)
    gate.write_text("")
    ids = set()
    for answer in iter(w.line, None):
        assert answer.get("result", "finished") == "finished"
        ids.add(answer["task_id"])
    assert {f"t{n}" for n in range(many)} <= ids
    if many == 1:  # of several threads, one may be quicker than the main thread and the signal
        assert "never" not in ids
    assert w.wait() == 0
    assert w.stderr == "after run\n"


@pytest.mark.parametrize("threads", ["", "3"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_waiting_child_quietly(worker, threads, number):
    w = worker(SLOW.format(threads=threads))
    w.term(number)
    assert w.line() is None
    assert w.wait() == 0
    assert w.stderr == "after run\n"


@pytest.mark.parametrize("threads", ["", "3"])
def test_a_second_signal_ends_the_child_at_once(worker, threads):
    w = worker(
        f"""
        import signal
        @stint.task
        def f(payload):
            stint.progress("started")
            while True:
                signal.pause() if {threads!r} == "" else __import__("time").sleep(1)
                stint.progress("woken")
        stint.run({threads})
        """
    )
    w.send(request("t"))
    assert w.line()["progress"] == "started"
    w.term()
    w.term()
    # two signals at once may be taken as one
    while w.child.poll() is None:
        w.term()
        try:
            w.child.wait(0.05)
        except Exception:
            pass
    assert w.wait() == -signal.SIGTERM
    assert "Traceback" not in w.stderr


def test_a_signal_while_loading_ends_the_child_quietly(worker, tmp_path):
    w = worker(
        """
        import os, signal
        @stint.load
        def load():
            os.write(2, b"loading")
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        """
        + "\n"
        + ECHO.replace("\n", "\n        "),
        ready=False,
    )
    assert w.line() is None
    assert w.wait() == -signal.SIGTERM
    assert w.stderr == "loading"


def test_a_child_whose_worker_is_gone_ends_without_noise(worker):
    w = worker(ECHO)
    w.child.stdout.close()
    os.write(w._in, json.dumps(request("t")).encode() + b"\n")
    assert w.wait() == 1
    assert w.stderr == ""


@pytest.mark.parametrize("threads", ["", "3"])
def test_a_signal_ends_a_child_whose_handler_ran_an_event_loop(worker, threads):
    w = worker(
        f"""
        import asyncio, signal
        async def main():
            loop = asyncio.get_running_loop()
            try:
                loop.add_signal_handler(signal.SIGUSR1, print)
                loop.remove_signal_handler(signal.SIGUSR1)
            except (RuntimeError, ValueError):
                pass  # not in the main thread
            await asyncio.sleep(0)
            return stint.current().id
        @stint.task
        def f(payload):
            return asyncio.run(main())
        stint.run({threads})
        """
    )
    assert w.ask()["result"] == "t"
    w.term()
    assert w.line() is None
    assert w.wait() == 0
    assert w.stderr == ""


def test_a_signal_of_the_handlers_own_does_not_end_the_wait(worker):
    w = worker(
        """
        import signal
        seen = []
        @stint.load
        def load():
            signal.signal(signal.SIGUSR1, lambda *a: seen.append(1))
        @stint.task
        def f(payload):
            return bool(seen)
        stint.run()
        """
    )
    for _ in range(3):
        w.term(signal.SIGUSR1)
    assert w.ask()["result"] is True
    w.end()


def test_a_handlers_own_signal_handlers_stay(worker):
    w = worker(
        """
        import signal
        @stint.load
        def load():
            signal.signal(signal.SIGTERM, lambda *a: None)
            return signal.getsignal(signal.SIGTERM)
        @stint.task
        def f(payload, mine):
            return signal.getsignal(signal.SIGTERM) is mine
        stint.run()
        """
    )
    assert w.ask()["result"] is True
    w.end()


# ---- run_once ----------------------------------------------------------------------------

ONCE = ECHO.replace("stint.run()", "stint.run_once()")


def test_run_once_serves_one_request_and_ends_with_stdin_still_open(worker):
    w = worker(ONCE)
    w.send(request("t", 1), request("u", 2))
    assert w.line() == succeeded("t", 1)
    assert w.line() is None
    assert w.wait() == 0


def test_run_once_with_stdin_closed_after_the_request(worker):
    w = worker(ONCE)
    w.send(request("t", 1))
    w.close_stdin()
    assert w.line() == succeeded("t", 1)
    assert w.line() is None
    assert w.wait() == 0


def test_run_once_without_a_request_just_ends(worker):
    worker(ONCE).end()


def test_run_once_answers_a_request_it_cannot_read_and_ends(worker):
    w = worker(ONCE)
    w.send(b"\n", b"garbage\n")
    assert "cannot be read" in w.line()["error"]
    assert w.line() is None
    assert w.wait() == 0


def test_run_once_ends_well_after_a_failure(worker):
    w = worker("@stint.task\ndef f(p):\n    raise stint.Retry('later')\nstint.run_once()\n")
    assert w.ask()["retry"] is True
    assert w.line() is None
    assert w.wait() == 0


def test_a_child_that_serves_one_task_imports_little(worker):
    w = worker(
        """
        import sys
        @stint.task
        def f(payload):
            return [m for m in payload if m in sys.modules]
        stint.run_once()
        """
    )
    heavy = [
        "ctypes",
        "subprocess",
        "inspect",
        "dataclasses",
        "asyncio",
        "stint._client",
        "stint.testing",
    ]
    assert w.ask(heavy)["result"] == []
