# SPDX-License-Identifier: Apache-2.0
"""The JSON that programs may rely on: exact sets of keys, formats of times, states as people see them."""

import os
import pty
import re
import sqlite3
import subprocess

import pytest

from kit import ATTEMPT_KEYS, JOB_KEYS, WORKER_KEYS, until

TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
STATES = {"blocked", "scheduled", "pending", "retrying", "claimed", "running", "succeeded", "failed", "cancelled"}


def test_job_show_of_a_waiting_job(stint):
    id = stint.enqueue("t", '{"a":1}', "--key", "k", "--timeout", "90s", "--max-attempts", "5")
    job = stint.show(id)
    assert set(job) == JOB_KEYS
    assert (job["id"], job["type"], job["queue"], job["state"]) == (id, "t", "default", "pending")
    assert (job["priority"], job["attempt"], job["max_attempts"]) == (0, 0, 5)
    assert TIME.match(job["created_at"]) and TIME.match(job["run_at"])
    for key in ("started_at", "finished_at", "result", "result_ref", "error", "worker", "lease_until", "deadline",
                "progress", "meta"):
        assert job[key] is None, key
    assert (job["errors"], job["attempts"], job["key"], job["payload"]) == ([], [], "k", {"a": 1})
    assert re.match(r"^[0-9a-f]{64}$", job["spec_hash"])
    assert job["fence"] == 0


def test_job_show_of_a_running_job(stint):
    stint.config({"t": stint.probe("hold", timeout="1h")})
    id = stint.enqueue("t", "{}", "--delay", "1ms")
    with stint.worker() as worker:
        stint.until_started(id)
        job = stint.until_state(id, "running")
        assert set(job) == JOB_KEYS
        assert job["worker"] == worker.row["id"]
        assert all(TIME.match(job[key]) for key in ("lease_until", "started_at", "deadline"))
        assert job["finished_at"] is None and job["fence"] > 0 and job["attempt"] == 1
        assert [set(a) for a in job["attempts"]] == [ATTEMPT_KEYS]
        assert job["attempts"][0]["outcome"] is None and job["attempts"][0]["ended_at"] is None
        stint.go()
        stint.until_state(id, "succeeded")


def test_job_show_of_a_job_that_failed_and_then_succeeded(stint):
    stint.config({"t": stint.sh("echo oops >&2; [ $STINT_ATTEMPT = 2 ] || exit 4; echo '[1]'")})
    id = stint.enqueue("t")
    with stint.worker():
        job = stint.until_state(id, "succeeded")
    assert set(job) == JOB_KEYS
    assert job["result"] == [1] and TIME.match(job["finished_at"])
    first, second = job["attempts"]
    assert set(first) == set(second) == ATTEMPT_KEYS
    assert (first["n"], first["outcome"], first["kind"], first["exit_code"]) == (1, "retry", "exit", 4)
    assert (second["n"], second["outcome"], second["kind"], second["exit_code"]) == (2, "succeeded", None, 0)
    assert first["signal"] is None and first["max_rss"] > 0 and first["log"] is None
    assert first["fence"] < second["fence"] == job["fence"]
    assert TIME.match(first["started_at"]) and TIME.match(first["ended_at"])
    assert len(job["errors"]) == 1 and {"kind", "message"} <= set(job["errors"][0])


def test_job_show_of_a_failed_job(stint):
    stint.config({"t": stint.sh("echo no >&2; exit 65")})
    id = stint.enqueue("t")
    stint.work_off()
    job = stint.show(id)
    assert set(job) == JOB_KEYS and set(job["error"]) == {"kind", "message"}
    assert job["worker"] and job["lease_until"] is None


def test_job_list(stint):
    stint.enqueue("t", '{"a":1}')
    page = stint.json("job", "list")
    assert set(page) == {"jobs", "next"} and page["next"] is None
    (job,) = page["jobs"]
    assert {"id", "type", "queue", "state", "priority", "attempt", "max_attempts", "created_at", "run_at"} <= set(job)
    assert set(job) <= JOB_KEYS
    assert stint.json("dead", "list") == {"jobs": [], "next": None}


def test_job_list_tells_how_long_the_last_attempt_took_and_not_all_of_them(stint):
    stint.config({"t": stint.sh("[ $STINT_ATTEMPT = 2 ]")})
    id = stint.enqueue("t")
    with stint.worker():
        stint.until_state(id, "succeeded")
    with sqlite3.connect(stint.dir / "stint.db") as db:
        db.execute("UPDATE job SET first_started = first_started - 36000000000, started = finished - 5000000")
    assert "took 5s" in stint("job", "list").text
    with sqlite3.connect(stint.dir / "stint.db") as db:
        db.execute("UPDATE job SET started = NULL")
    assert "took" not in stint("job", "list").text


def test_queue_list(stint):
    stint.enqueue("t", "{}", "--queue", "mail")
    stint.enqueue("t", "{}", "--queue", "mail", "--delay", "1h")
    (queue,) = stint.json("queue", "list")["queues"]
    assert set(queue) == {"name", "paused", "paused_by_parent", "counts", "oldest_due_seconds"}
    assert (queue["name"], queue["paused"], queue["paused_by_parent"]) == ("mail", False, None)
    assert set(queue["counts"]) <= STATES
    assert {k: v for k, v in queue["counts"].items() if v} == {"pending": 1, "scheduled": 1}
    assert queue["oldest_due_seconds"] >= 0


def test_queue_list_of_a_queue_where_nothing_is_due(stint):
    stint.enqueue("t", "{}", "--queue", "mail", "--delay", "1h")
    (queue,) = stint.json("queue", "list")["queues"]
    assert not queue["oldest_due_seconds"]


def test_workers(stint):
    stint.config({"t": stint.probe("hold")})
    id = stint.enqueue("t")
    with stint.worker() as worker:
        stint.until_started(id)
        row = until(lambda: (row := worker.row)["running"] == 1 and row, "a worker that says it runs one job")
        assert set(row) == WORKER_KEYS
        assert row["pid"] == worker.pid and row["healthy"] is True
        assert isinstance(row["queues"], list) and row["types"] == ["t"]
        assert TIME.match(row["last_beat"]) and isinstance(row["leader"], bool)
        stint.go()


def test_counts_use_the_states_people_see(stint):
    stint.config({"ok": stint.sh("true"), "bad": stint.sh("exit 65"), "again": stint.sh("exit 1", retry={"initial": "1h"}),
                  "hold": stint.probe("hold")})
    for type in ("ok", "bad", "again"):
        stint.enqueue(type)
    stint("job", "cancel", stint.enqueue("ok", "{}", "--delay", "1h"))
    stint.work_off()
    stint.enqueue("nobody")
    stint.enqueue("ok", "{}", "--delay", "1h")
    held = stint.enqueue("hold")
    with stint.worker():
        stint.until_started(held)
        want = dict.fromkeys(["succeeded", "failed", "retrying", "cancelled", "pending", "scheduled", "running"], 1)
        until(lambda: stint.counts() == want, lambda: f"counts to be {want}; they are {stint.counts()}")
        states = {job["state"] for job in stint.list_all()}
        assert states == set(want)
        stint.go()
        stint.until_state(held, "succeeded")


@pytest.mark.parametrize("args", [["version"], ["queue", "list"], ["job", "list"], ["workers"], ["dead", "list"],
                                  ["migrate", "status"], ["prune"], ["doctor"]])
def test_json_is_one_document_on_one_line_and_nothing_else(stint, args):
    stint.config({"t": stint.sh("true")})
    stint.enqueue("t")
    done = stint(*args, "--json", check=None)
    assert done.code in (0, 1) and done.out.count(b"\n") == 1
    assert isinstance(done.json, dict)


def test_times_are_utc_whatever_the_zone(stint):
    id = stint.enqueue("t", "{}", "--at", "2031-05-06T07:08:09.25+02:00", env={"TZ": "America/Lima"})
    assert stint.json("job", "show", id, env={"TZ": "Asia/Tokyo"})["run_at"] == "2031-05-06T05:08:09.250000Z"


def test_no_colour_and_no_bar_without_a_terminal(stint):
    stint.batch([{"type": "t"}] * 10)
    for args in (["job", "list"], ["queue", "list"], ["doctor"], ["prune"]):
        done = stint(*args, check=None)
        assert b"\x1b" not in done.out + done.err and b"\r" not in done.out + done.err


def test_a_batch_shows_a_bar_on_a_terminal_and_wipes_it(stint):
    (stint.dir / "jobs").write_text('{"type":"t"}\n' * 3000)
    ours, theirs = pty.openpty()
    process = stint.start("enqueue", "--batch", "jobs", stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    assert process.wait(60) == 0
    bars, _, rest = seen.rpartition(b"\r\x1b[K")
    assert b"KiB  " in bars and b"/3000 jobs  " in bars and b"3000 enqueued" in rest and b"[" not in rest


@pytest.mark.parametrize("args", [[], ["enqueue"], ["worker"], ["dev"], ["job"], ["job", "show"], ["job", "list"],
                                  ["job", "wait"], ["job", "cancel"], ["job", "retry"], ["job", "logs"], ["queue"],
                                  ["queue", "list"], ["queue", "pause"], ["queue", "resume"], ["dead"],
                                  ["dead", "list"], ["dead", "show"], ["dead", "retry"], ["dead", "discard"],
                                  ["workers"], ["prune"], ["backup"], ["migrate"], ["doctor"], ["explain"],
                                  ["bench"], ["version"]])
def test_every_command_has_help_that_says_how_it_is_used(stint, args):
    text = stint(*args, "--help").text
    assert "Usage:" in text and " ".join(args) in text
    assert " ".join(["  stint", *args]) in text.partition("Examples:")[2]
    assert max(len(line) for line in text.splitlines()) <= 120


def test_help_is_json_if_that_is_asked_for_wherever(stint):
    for args in (["help", "--json"], ["--json", "help"], ["--json", "--help"]):
        overview = stint(*args).json
        assert {"name": "enqueue", "summary": "add a job, or a batch of jobs"} in overview["commands"]
        assert "json" in [option["name"] for option in overview["global_options"]]
    for args in (["help", "job", "wait", "--json"], ["help", "--json", "job", "wait"], ["job", "wait", "--help", "--json"],
                 ["job", "--json", "wait", "--help"]):
        page = stint(*args).json
        assert (page["name"], page["usage"], page["verbs"]) == ("job wait", ["stint job wait ID [options]"], [])
        assert {"name": "timeout", "letter": None, "argument": "DURATION",
                "summary": "give up after so long [wait for ever]"} in page["options"]
    assert {"name": "show", "summary": "everything about one job"} in stint("help", "job", "--json").json["verbs"]


def test_without_a_command_there_is_an_error_object(stint):
    done = stint("--json", check=2)
    assert done.error == {"code": "EINVAL", "message": "no command is given", "remedy": "`stint help` lists the commands"}
    assert stint("help", "nonsense", "--json", check=2).error["code"] == "EINVAL"
