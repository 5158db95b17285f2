# SPDX-License-Identifier: Apache-2.0
"""`explain ID`: one test per reason, with the condition really created."""

import signal

import pytest

from kit import until

SHORT = {"lease": "2s", "renew": "500ms", "poll": "200ms"}


def codes(stint, id):
    done = stint.json("explain", id)
    assert set(done) == {"id", "state", "reasons"} and done["id"] == id and done["reasons"]
    assert all(set(reason) == {"code", "text", "remedy"} for reason in done["reasons"])
    return [reason["code"] for reason in done["reasons"]]


def text(stint, id):
    return stint("explain", id).text


def test_explain_a_job_that_is_not_due(stint):
    id = stint.enqueue("t", "{}", "--delay", "1h")
    assert "not_due" in codes(stint, id)
    assert "not due until" in text(stint, id)


def test_explain_a_job_that_waits_for_its_next_try(stint):
    stint.config({"t": stint.sh("echo broken pipe >&2; exit 3", retry={"initial": "1h"})})
    id = stint.enqueue("t")
    stint.work_off()
    assert "retrying" in codes(stint, id)
    assert "broken pipe" in text(stint, id)


def test_explain_a_paused_queue_and_a_paused_parent(stint):
    a = stint.enqueue("t", "{}", "--queue", "mail")
    b = stint.enqueue("t", "{}", "--queue", "mail.fast")
    stint("queue", "pause", "mail")
    for id in (a, b):
        assert "queue_paused" in codes(stint, id)
        assert "stint queue resume mail" in text(stint, id)
    stint("queue", "resume", "mail")
    assert "queue_paused" not in codes(stint, a)


def test_explain_tells_every_reason_at_once(stint):
    id = stint.enqueue("t", "{}", "--delay", "1h")
    stint("queue", "pause", "default")
    assert codes(stint, id) == ["not_due", "queue_paused", "no_worker"]


def test_explain_a_store_without_any_worker(stint):
    id = stint.enqueue("t")
    assert codes(stint, id) == ["no_worker"]
    assert "stint worker" in text(stint, id)


@pytest.mark.long
def test_explain_workers_that_have_not_been_heard_of(stint):
    stint.config({"t": stint.sh("true")})
    with stint.worker() as worker:
        worker.kill()
    id = stint.enqueue("t")
    until(lambda: codes(stint, id) == ["no_worker"], "the dead worker to count as not live", 90)
    assert "none heard of" in text(stint, id)


def test_explain_no_worker_for_the_queue(stint):
    stint.config({"t": stint.sh("true")})
    id = stint.enqueue("t", "{}", "--queue", "mail")
    with stint.worker("--queues", "images"):
        assert codes(stint, id) == ["no_worker_for_queue"]
        assert "mail" in text(stint, id)


def test_explain_no_worker_for_the_type(stint):
    stint.config({"t": stint.sh("true")})
    id = stint.enqueue("u")
    with stint.worker():
        assert codes(stint, id) == ["no_worker_for_type"]
        assert "type u" in text(stint, id)


def test_explain_workers_that_are_all_quiet(stint):
    stint.config({"t": stint.sh("true")}, worker=SHORT)
    with stint.worker() as worker:
        worker.signal(signal.SIGTSTP)
        worker.said("worker.quiet")
        id = stint.enqueue("t")
        until(lambda: codes(stint, id) == ["workers_quiet"], "the worker to say that it is quiet")


def test_explain_workers_that_are_all_busy(stint):
    stint.config({"hold": stint.probe("hold"), "t": stint.sh("true")}, worker={"slots": 1, **SHORT})
    held = stint.enqueue("hold")
    with stint.worker() as worker:
        stint.until_started(held)
        until(lambda: worker.row["running"] == 1, "the worker to say that it is busy")
        worker.signal(signal.SIGSTOP)  # so that it fetches nothing ahead
        id = stint.enqueue("t")
        assert codes(stint, id) == ["workers_busy"]
        worker.signal(signal.SIGCONT)
        stint.go()
        stint.until_state(id, "succeeded")


def test_explain_a_job_that_is_about_to_run(stint):
    stint.config({"t": stint.sh("true")})
    with stint.worker() as worker:
        worker.signal(signal.SIGSTOP)
        id = stint.enqueue("t")
        assert codes(stint, id) == ["soon"]
        worker.signal(signal.SIGCONT)
        stint.until_state(id, "succeeded")


def test_explain_a_job_that_is_held_by_a_worker(stint):
    stint.config({"t": stint.probe("hold")})
    id = stint.enqueue("t")
    with stint.worker() as worker:
        stint.until_started(id)
        until(lambda: codes(stint, id) == ["running"], "the job to be running")
        assert f"held by worker {worker.row['id']} until" in text(stint, id)
        stint.go()


def test_explain_a_job_that_was_fetched_ahead(stint):
    """Caught by stopping the worker again and again while it works through short jobs."""
    stint.config({"t": {"run": ["/bin/true"]}}, worker={"slots": 1})
    stint.batch([{"type": "t"}] * 5000)

    def caught():
        worker.signal(signal.SIGSTOP)
        ahead = stint.json("job", "list", "--state", "claimed", "--limit", "1")["jobs"]
        if not ahead:
            worker.signal(signal.SIGCONT)
        return ahead

    with stint.worker() as worker:
        (job,) = until(caught, "a job that was fetched ahead")
        assert codes(stint, job["id"]) == ["claimed"]
        assert "when a slot is free" in text(stint, job["id"])


def test_explain_a_job_whose_lease_has_expired(stint):
    stint.config({"t": stint.probe("hold")}, worker=SHORT)
    id = stint.enqueue("t")
    with stint.worker() as worker:
        stint.until_started(id)
        worker.kill()
    until(lambda: codes(stint, id) == ["lease_expired"], "the lease to expire")


def test_explain_a_job_that_was_asked_to_stop(stint):
    stint.config({"t": stint.probe("hold")})
    id = stint.enqueue("t")
    with stint.worker() as worker:
        stint.until_started(id)
        stint.until_state(id, "running")
        worker.signal(signal.SIGSTOP)
        stint("job", "cancel", id)
        assert codes(stint, id) == ["running", "cancel_requested"]
        worker.signal(signal.SIGCONT)
        stint.until_state(id, "cancelled")


def test_explain_jobs_that_have_ended(stint):
    stint.config({"ok": stint.sh("true"), "bad": stint.sh("echo no such thing >&2; exit 65"),
                  "spent": stint.sh("exit 1", retry={"max_attempts": 1})})
    ok, bad, spent, gone = (stint.enqueue(t) for t in ("ok", "bad", "spent", "other"))
    stint("job", "cancel", gone)
    stint.work_off()
    assert codes(stint, ok) == ["succeeded"] and "--replay" in text(stint, ok)
    assert codes(stint, bad) == ["failed"] and "no such thing" in text(stint, bad)
    assert codes(stint, spent) == ["failed"] and "1 of 1 attempts" in text(stint, spent)
    assert codes(stint, gone) == ["cancelled"] and "job retry" in text(stint, gone)
