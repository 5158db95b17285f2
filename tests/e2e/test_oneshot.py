# SPDX-License-Identifier: Apache-2.0
"""One-shot commands: what goes in, what comes out, and what must not leak."""

import base64
import json
import os
import re
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kit import PATIENCE, alive, until


def ran(stint, type, payload="{}", *flags, **how):
    """Enqueues one job, works it off, and shows it."""
    id = stint.enqueue(type, payload, *flags, **how)
    stint.work_off()
    return stint.show(id)


# ---- results ----


@pytest.mark.parametrize("script, result", [
    ("""printf '{"a": [1, 2]}'""", {"a": [1, 2]}),
    ("echo 42", 42),
    ("echo hello", "hello"),
    ("printf 'two\\nlines\\n\\n'", "two\nlines\n"),
    ("true", None),
    ("echo null", None),
    ("""printf '"quoted"'""", "quoted"),
    ("printf '{broken'", "{broken"),
])
def test_stdout_is_the_result_as_json_or_as_text(stint, script, result):
    stint.config({"t": stint.sh(script)})
    job = ran(stint, "t")
    assert (job["state"], job["result"], job["error"]) == ("succeeded", result, None)


def test_a_json_result_is_kept_byte_for_byte(stint):
    text = '{"big": 123456789012345678901234567890, "x": 1.10, "x": 2}'
    stint.config({"t": stint.sh(f"printf '%s' '{text}'")})
    id = stint.enqueue("t")
    stint.work_off()
    assert text in stint("job", "show", id, "--json").text


def test_a_result_that_is_not_utf8_comes_back_as_base64(stint):
    stint.config({"t": stint.sh("printf '\\377\\000\\376'")})
    job = ran(stint, "t")
    assert base64.b64decode(job["result_base64"]) == b"\xff\x00\xfe"
    assert job.get("result") is None


def test_a_payload_that_is_not_utf8_cannot_be_enqueued_as_json(stint):
    stint.refuses("enqueue", "t", "-", code=2, says="JSON", input=b'"\xff"')


def test_a_result_above_64_kib_goes_to_a_file(stint):
    stint.config({"t": stint.probe("fill", 65537)})
    job = ran(stint, "t")
    assert job["state"] == "succeeded" and job["result"] is None
    data = (stint.dir / job["result_ref"]).read_bytes()
    assert data == bytes(97 + i % 26 for i in range(65537))


def test_a_result_of_64_kib_stays_in_the_store(stint):
    stint.config({"t": stint.probe("fill", 65534)})
    job = ran(stint, "t")
    assert job["result_ref"] is None and len(job["result"]) == 65534


def test_result_files_go_to_the_configured_directory_under_safe_names(stint):
    stint.config({"t": stint.probe("fill", 70000)}, worker={"results_dir": "out"})
    job = ran(stint, "t", "{}", "--id", "../../escape/%00")
    files = [p for p in (stint.dir / "out").rglob("*") if p.is_file()]
    assert len(files) == 1 and files[0].stat().st_size == 70000
    assert (stint.dir / job["result_ref"]).samefile(files[0])


def test_a_result_above_the_limit_fails_the_attempt(stint):
    stint.config({"t": stint.probe("fill", 5000)}, limits={"result": "4KiB"})
    job = ran(stint, "t", "{}", "--max-attempts", "1")
    assert (job["state"], job["error"]["kind"]) == ("failed", "result_too_large")
    assert job["result"] is None and job["result_ref"] is None


# ---- the envelope ----


def test_an_envelope_that_says_ok_gives_its_return_value(stint):
    stint.config({"t": stint.sh("""echo '{"ok": true, "return": {"n": 1}}'""")})
    assert ran(stint, "t")["result"] == {"n": 1}


def test_an_envelope_that_says_not_ok_fails_the_attempt_with_its_message(stint):
    envelope = {"ok": False, "exception_class": "ValueError", "message": "no such user", "traceback": "..."}
    stint.config({"t": stint.sh(f"echo '{json.dumps(envelope)}'")})
    job = ran(stint, "t", "{}", "--max-attempts", "1")
    assert (job["state"], job["error"]["kind"]) == ("failed", "app_error")
    assert "ValueError" in job["error"]["message"] and "no such user" in job["error"]["message"]


def test_an_object_with_ok_alone_is_an_ordinary_result(stint):
    stint.config({"t": stint.sh("""echo '{"ok": true}'""")})
    assert ran(stint, "t")["result"] == {"ok": True}


# ---- how it ends ----


def test_exit_65_fails_for_good_with_attempts_left(stint):
    stint.config({"t": stint.sh("echo wrong data >&2; exit 65")})
    job = ran(stint, "t")
    assert (job["state"], job["attempt"], job["error"]["kind"]) == ("failed", 1, "permanent")
    assert "wrong data" in job["error"]["message"]
    assert job["attempts"][0]["exit_code"] == 65


def test_exit_75_is_tried_again(stint):
    stint.config({"t": stint.sh("[ $STINT_ATTEMPT = 2 ] || exit 75")})
    id = stint.enqueue("t")
    with stint.worker():
        job = stint.until_state(id, "succeeded")
    assert job["attempt"] == 2 and [a["exit_code"] for a in job["attempts"]] == [75, 0]


def test_another_exit_code_is_tried_again_until_the_budget_is_spent(stint):
    stint.config({"t": stint.sh("echo attempt $STINT_ATTEMPT >&2; exit 3", retry={"max_attempts": 3})})
    id = stint.enqueue("t")
    with stint.worker():
        job = stint.until_state(id, "failed")
    assert job["attempt"] == job["max_attempts"] == 3
    assert job["error"]["kind"] == "exit" and "3" in job["error"]["message"]
    assert len(job["errors"]) == 3
    assert [a["outcome"] for a in job["attempts"]] == ["retry", "retry", "failed"]


def test_a_failed_attempt_waits_as_its_policy_says(stint):
    stint.config({"t": stint.sh("exit 1", retry={"backoff": "fixed", "initial": "1h"})})
    job = ran(stint, "t")
    assert (job["state"], job["attempt"]) == ("retrying", 1)
    assert job["run_at"] > job["attempts"][0]["ended_at"]


def test_a_job_killed_by_a_signal_says_which(stint):
    stint.config({"t": stint.sh("kill -9 $$")})
    job = ran(stint, "t", "{}", "--max-attempts", "1")
    assert (job["state"], job["error"]["kind"]) == ("failed", "killed")
    assert job["attempts"][0]["signal"] == 9


def test_max_attempts_0_is_no_limit(stint):
    stint.config({"t": stint.sh("[ $STINT_ATTEMPT -ge 6 ]", retry={"initial": "1ms"})})
    id = stint.enqueue("t", "{}", "--max-attempts", "0")
    with stint.worker():
        assert stint.until_state(id, "succeeded", "failed")["attempt"] == 6


def test_a_program_that_went_away_is_a_failed_attempt_and_the_worker_goes_on(stint):
    program = stint.dir / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    stint.config({"t": stint.type(["./program"]), "other": stint.sh("true")})
    with stint.worker():
        program.unlink()
        lost = stint.enqueue("t", "{}", "--max-attempts", "1")
        other = stint.enqueue("other")
        stint.until_state(other, "succeeded")
        job = stint.until_state(lost, "failed")
    assert "program" in job["error"]["message"]


# ---- timeouts ----


def test_a_timeout_stops_the_job_and_is_its_error(stint):
    stint.config({"t": stint.probe("hold", grace="5s")})
    id = stint.enqueue("t", "{}", "--timeout", "300ms", "--max-attempts", "1")
    with stint.worker():
        pid = stint.until_started(id)
        job = stint.until_state(id, "failed")
    assert job["error"]["kind"] == "timeout" and not alive(pid)


def test_a_timeout_kills_what_is_deaf_to_term_and_its_whole_family(stint):
    stint.config({"deaf": stint.probe("stubborn", grace="200ms"), "kin": stint.probe("family", grace="200ms")})
    deaf = stint.enqueue("deaf", "{}", "--timeout", "500ms", "--max-attempts", "1")
    kin = stint.enqueue("kin", "{}", "--timeout", "500ms", "--max-attempts", "1")
    with stint.worker():
        for id in (deaf, kin):
            assert stint.until_state(id, "failed")["error"]["kind"] == "timeout"
        assert stint.leftovers() == []


def test_the_types_timeout_holds_and_the_jobs_own_goes_before_it(stint):
    stint.config({"t": stint.probe("hold", timeout="300ms", grace="1s", retry={"max_attempts": 1})})
    short = stint.enqueue("t")
    long = stint.enqueue("t", "{}", "--timeout", "10m")
    with stint.worker():
        assert stint.until_state(short, "failed")["error"]["kind"] == "timeout"
        stint.until_started(long)
        shown = stint.until_state(long, "running")
        assert shown["deadline"] > shown["started_at"]
        stint.go()
        stint.until_state(long, "succeeded")


def test_a_child_that_leaves_a_daemon_behind_does_not_keep_the_job(stint):
    stint.config({"t": stint.sh("(setsid sleep 1000 &) ; echo done", grace="200ms")})
    assert ran(stint, "t")["result"] == "done"
    assert stint.leftovers() == []


# ---- payload ----


def test_a_payload_by_file_is_appended_or_put_where_asked(stint):
    stint.config({
        "append": {"run": ["/bin/cat"], "payload": "file"},
        "placed": stint.sh('cat "$1"; echo " $2"', payload="file"),
    })
    config = json.loads((stint.dir / "stint.yaml").read_text())
    config["types"]["placed"]["run"] += ["sh", "{payload_file}", "{id}/{attempt}"]
    (stint.dir / "stint.yaml").write_text(json.dumps(config))
    a = stint.enqueue("append", '{"n": 1}')
    b = stint.enqueue("placed", "7", "--id", "me")
    stint.work_off()
    assert stint.show(a)["result"] == {"n": 1}
    assert stint.show(b)["result"] == "7 me/1"


def test_payload_files_are_private_and_gone_afterwards(stint):
    stint.config({"t": {"run": ["/bin/sh", "-c", 'stat -c "%a %n" "$0"'], "payload": "file"}})
    job = ran(stint, "t", '"secret"')
    mode, path = job["result"].split(" ", 1)
    assert mode == "600" and not os.path.exists(path)


def test_a_payload_by_argument_is_appended_or_put_where_asked(stint):
    stint.config({
        "append": {"run": ["/bin/echo", "-n"], "payload": "argument"},
        "placed": {"run": ["/bin/echo", "-n", "<{payload}>", "{attempt}"], "payload": "argument"},
    })
    a = stint.enqueue("append", '{"n":  1}')
    b = stint.enqueue("placed", '"x y; $(id)"')
    stint.work_off()
    assert stint.show(a)["result"] == {"n": 1}
    assert stint.show(b)["result"] == '<"x y; $(id)"> 1'


def test_an_argument_over_128_kib_is_refused_at_start(stint):
    stint.config({"t": {"run": ["/bin/echo"], "payload": "argument", "retry": {"max_attempts": 1}}})
    job = ran(stint, "t", "-", input=json.dumps("x" * 140_000))
    assert job["state"] == "failed" and "argument" in job["error"]["message"]


def test_a_large_payload_on_stdin_arrives_and_one_nobody_reads_does_no_harm(stint):
    stint.config({"reads": stint.sh("wc -c"), "deaf": stint.sh("echo fine")})
    payload = json.dumps("x" * 900_000)
    a = stint.enqueue("reads", "-", input=payload)
    b = stint.enqueue("deaf", "-", input=payload)
    stint.work_off()
    assert stint.show(a)["result"] == len(payload)
    assert stint.show(b)["result"] == "fine"


# ---- nothing leaks ----


def test_only_the_promised_variables_reach_a_child(stint):
    stint.config({
        "bare": {"run": ["/usr/bin/env"]},
        "dressed": {"run": ["/usr/bin/env"], "env": {"COLOUR": "red"}, "inherit_env": ["WANTED"]},
        "all": {"run": ["/usr/bin/env"], "inherit_env": "all"},
    })
    ids = {name: stint.enqueue(name, "{}", "--queue", "q.sub") for name in ("bare", "dressed", "all")}
    stint.work_off(env={"SECRET": "1", "WANTED": "2", "STINT_STORE": stint.store or "sqlite:stint.db"})

    def env(name):
        return dict(line.split("=", 1) for line in stint.show(ids[name])["result"].splitlines())

    own = {"STINT_JOB_ID", "STINT_TYPE", "STINT_QUEUE", "STINT_ATTEMPT", "STINT_FENCE", "STINT_DEADLINE"}
    may = own | {"PATH", "HOME", "LANG", "TZ", "TMPDIR", "TRACEPARENT"}
    bare = env("bare")
    assert own <= set(bare) <= may
    assert (bare["STINT_JOB_ID"], bare["STINT_TYPE"]) == (ids["bare"], "bare")
    assert (bare["STINT_QUEUE"], bare["STINT_ATTEMPT"]) == ("q.sub", "1")
    assert int(bare["STINT_FENCE"]) > 0
    assert set(env("dressed")) - may == {"COLOUR", "WANTED"}
    assert env("all")["SECRET"] == "1"


def test_no_descriptor_leaks_into_a_child(stint):
    stint.config({"t": stint.probe("fds")})
    ids = [stint.enqueue("t") for _ in range(5)]
    read, write = os.pipe()
    try:
        with stint.worker("--slots", "5", pass_fds=(read, write)):
            for id in ids:
                assert stint.until_state(id, "succeeded")["result"] == [0, 1, 2]
    finally:
        os.close(read)
        os.close(write)


def test_a_child_runs_in_the_configured_directory(stint):
    (stint.dir / "there").mkdir()
    stint.config({"t": {"run": ["/bin/pwd"], "cwd": "there"}, "default": {"run": ["/bin/pwd"]}})
    assert ran(stint, "t")["result"] == str(stint.dir / "there")
    assert ran(stint, "default")["result"] == str(stint.dir)


def test_a_child_has_default_signals_and_nothing_blocked(stint):
    stint.config({"t": stint.sh("grep -E '^Sig(Blk|Ign):' /proc/self/status")})
    lines = ran(stint, "t")["result"].splitlines()
    assert [line.split()[1].strip("0") for line in lines] == ["", ""]


# ---- logs ----


def test_job_logs_shows_what_went_to_stderr(stint):
    stint.config({"t": stint.sh("echo to the log >&2; echo result")})
    id = stint.enqueue("t")
    stint.work_off()
    done = stint("job", "logs", id)
    assert (done.text, done.err) == ("to the log\n", b"")
    assert stint.json("job", "logs", id) == {"id": id, "attempt": 1, "log": None, "cut": False, "text": "to the log\n"}


def test_job_logs_without_a_directory_keeps_the_last_16_kib(stint):
    stint.config({"t": stint.sh("i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done >&2")})
    id = stint.enqueue("t")
    stint.work_off()
    done = stint("job", "logs", id)
    assert done.text.endswith("line 4999\n") and "line 0\n" not in done.text
    assert len(done.text) <= 16384 + 200
    assert b"the beginning is missing" in done.err and b"logs_dir" in done.err
    assert stint.json("job", "logs", id)["cut"] is True


def test_a_logs_directory_keeps_one_file_per_attempt(stint):
    stint.config({"t": stint.sh("echo attempt $STINT_ATTEMPT >&2; [ $STINT_ATTEMPT = 2 ]")},
                 worker={"logs_dir": "logs"})
    id = stint.enqueue("t")
    with stint.worker():
        job = stint.until_state(id, "succeeded")
    logs = [stint.dir / a["log"] for a in job["attempts"]]
    assert ["attempt 1" in logs[0].read_text(), "attempt 2" in logs[1].read_text()] == [True, True]
    assert "attempt 2" in stint("job", "logs", id).text


GATED = "echo one; echo two >&2; until [ -e \"$GATE-$STINT_ATTEMPT\" ]; do sleep 0.01; done; echo three >&2; exit {code}"


def follow(stint, *args):
    """`job logs --follow`, and a function that reads its next line."""
    process = stint.start("job", "logs", *args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    patience = threading.Timer(PATIENCE, process.kill)  # a line that never comes is then an empty one
    patience.daemon = True
    patience.start()
    return process, lambda: process.stdout.readline().decode()


def until_looking(process):
    """Waits until it has been round its loop a few times: it sleeps in between."""
    def naps():
        status = Path(f"/proc/{process.pid}/status").read_text()
        return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.M)[1])

    for _ in range(4):
        last = naps()
        time.sleep(0.1)
        until(lambda: naps() > last, "it to look again")


def gated(stint, code=0, **worker):
    gate = stint.dir / "gate"
    stint.config({"t": stint.sh(GATED.format(code=code), env={"GATE": str(gate)},
                                retry={"backoff": "fixed", "initial": "1ms"})}, worker=worker)
    return gate


def open_gate(gate, attempt):
    gate.with_name(f"gate-{attempt}").touch()


def test_a_log_can_be_followed_while_it_is_written(stint):
    gate = gated(stint, logs_dir="logs")
    id = stint.enqueue("t")
    process, line = follow(stint, id, "--follow")  # it has not run yet
    with stint.worker():
        assert {line() for _ in range(4)} == {"STDOUT:\n", "one\n", "STDERR:\n", "two\n"}
        assert stint.state(id) == "running"
        assert "two" in stint("job", "logs", id).text
        assert "two" in stint.json("job", "logs", id)["text"]
        open_gate(gate, 1)
        out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == (b"three\n", b"", 0)


def test_following_goes_on_with_the_next_attempts(stint):
    gate = gated(stint, code=75, logs_dir="logs")
    id = stint.enqueue("t", "{}", "--max-attempts", "2")
    process, line = follow(stint, id, "-f")
    with stint.worker():
        for attempt in (1, 2):
            assert "two\n" in [line() for _ in range(4)]
            open_gate(gate, attempt)
            assert line() == "three\n"
        out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == (b"", b"attempt 2:\n", 0)
    one = stint("job", "logs", id, "-f", "-a", "1")
    assert one.text == (stint.dir / stint.show(id)["attempts"][0]["log"]).read_text()


def test_following_without_a_log_file_shows_each_attempt_at_its_end(stint):
    gate = gated(stint, code=75)
    id = stint.enqueue("t", "{}", "--max-attempts", "2")
    process, line = follow(stint, id, "-f")
    with stint.worker():
        until_looking(process)
        open_gate(gate, 1)
        assert [line(), line()] == ["two\n", "three\n"]
        assert process.poll() is None
        open_gate(gate, 2)
        out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == (b"two\nthree\n", b"attempt 2:\n", 0)


def test_following_what_never_runs_ends_with_the_job(stint):
    stint.config({"t": stint.sh("true")})
    id = stint.enqueue("t")
    process, _ = follow(stint, id, "-f")
    stint("job", "cancel", id)
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == (b"", 1) and f"job {id} has ended without having run" in err.decode()
    assert b"attempt 7" in stint("job", "logs", id, "-f", "-a", "7", check=3).err
    assert b"nobody" in stint("job", "logs", "nobody", "-f", check=3).err


def test_following_is_for_text(stint):
    assert stint("job", "logs", "x", "-f", "--json", check=2).code == 2


def test_output_over_the_cap_is_cut_and_says_so(stint):
    stint.config({"t": stint.sh("head -c 20000 /dev/zero | tr '\\0' x >&2; echo end >&2; echo fine")},
                 worker={"logs_dir": "logs"}, limits={"output": "10KiB"})
    job = ran(stint, "t")
    assert job["result"] == "fine"
    text = (stint.dir / job["attempts"][0]["log"]).read_text()
    assert 10_000 <= len(text) < 11_000 and "cut" in text


def test_payloads_are_never_logged(stint):
    stint.config({"t": stint.sh("echo hush-result; exit 1", retry={"max_attempts": 1})})
    stint.enqueue("t", '"hush-payload"')
    done = stint.work_off("--log-level", "debug")
    assert b"hush-payload" not in done.err and b"hush-result" not in done.err
    assert b"job" in done.err


def test_a_job_may_use_every_slot_at_once(stint):
    stint.config({"t": stint.probe("hold")})
    ids = [stint.enqueue("t") for _ in range(4)]
    with stint.worker("--slots", "3"):
        until(lambda: len(list(stint.dir.glob("started.*.1"))) == 3, "three at once")
        assert stint.counts().get("running") == 3
        stint.go()
        for id in ids:
            stint.until_state(id, "succeeded")
