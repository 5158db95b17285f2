# SPDX-License-Identifier: Apache-2.0
"""What is left when a worker dies, sleeps or is told to stop."""

import json
import os
import re
import signal
import sqlite3
import subprocess

import pytest

from kit import alive, until

SHORT = {"lease": "2s", "renew": "500ms", "poll": "200ms"}


def test_a_job_whose_worker_was_killed_runs_again_and_the_attempt_is_charged(stint):
    stint.config({"t": stint.probe("hold")}, worker=SHORT)
    id = stint.enqueue("t")
    with stint.worker("--name", "first") as first:
        stint.until_started(id)
        stint.until_state(id, "running")
        first.kill()
        with stint.worker("--name", "second"):
            stint.until_started(id, attempt=2)
            stint.go()
            job = stint.until_state(id, "succeeded")
    assert job["attempt"] == 2 and job["result"] == 2
    assert [a["outcome"] for a in job["attempts"]] == ["lease_expired", "succeeded"]
    assert job["attempts"][0]["kind"] == "lease_expired"
    assert job["attempts"][1]["fence"] > job["attempts"][0]["fence"]


def test_a_job_that_kills_its_workers_ends_as_failed(stint):
    stint.config({"t": stint.probe("hold")}, worker=SHORT)
    id = stint.enqueue("t", "{}", "--max-attempts", "2")
    for attempt in (1, 2):
        with stint.worker() as worker:
            stint.until_started(id, attempt)
            worker.kill()
    with stint.worker():
        job = stint.until_state(id, "failed")
    assert (job["attempt"], job["error"]["kind"]) == (2, "lease_expired")


def test_the_outcome_of_a_worker_that_slept_past_its_lease_is_refused(stint):
    """Its child even finished; the second attempt's outcome is the one that counts."""
    stint.config({"t": stint.sh("""
        echo $$ >$D/tmp.$STINT_ATTEMPT; mv $D/tmp.$STINT_ATTEMPT $D/started.$STINT_JOB_ID.$STINT_ATTEMPT
        until [ -e $D/go.$STINT_ATTEMPT ]; do sleep 0.05; done; echo $STINT_ATTEMPT""")}, worker=SHORT)
    id = stint.enqueue("t")
    with stint.worker("--name", "sleeper") as sleeper:
        child = stint.until_started(id)
        sleeper.signal(signal.SIGSTOP)
        with stint.worker("--name", "heir") as heir:
            stint.until_started(id, attempt=2)
            (stint.dir / "go.1").touch()
            until(lambda: not alive(child), "the first child to end")
            sleeper.signal(signal.SIGCONT)
            until(lambda: re.search(r"taken_by_another_worker|ELOST|lost|lease_expired", sleeper.log),
                  "the sleeper to learn that the job is not its own")
            assert stint.state(id) == "running"
            (stint.dir / "go.2").touch()
            job = stint.until_state(id, "succeeded")
            assert alive(sleeper.pid) and alive(heir.pid)
    assert job["result"] == 2
    assert [a["outcome"] for a in job["attempts"]] == ["lease_expired", "succeeded"]


def test_a_worker_that_slept_past_its_lease_stops_its_child(stint):
    stint.config({"t": stint.probe("hold", grace="1s")}, worker=SHORT)
    id = stint.enqueue("t")
    with stint.worker("--name", "sleeper") as sleeper:
        child = stint.until_started(id)
        sleeper.signal(signal.SIGSTOP)
        with stint.worker("--name", "heir"):
            second = stint.until_started(id, attempt=2)
            sleeper.signal(signal.SIGCONT)
            until(lambda: not alive(child), "the first child to be stopped")
            assert alive(second)
            stint.go()
            assert stint.until_state(id, "succeeded")["result"] == 2
        sleeper.stop()


def test_children_and_their_daemons_are_gone_after_kill_9_of_their_worker(stint):
    stint.config({"t": stint.probe("family")})
    id = stint.enqueue("t")
    with stint.worker() as worker:
        pids = [stint.until_started(id, suffix=s) for s in ("", ".child", ".grandchild")]
        assert all(map(alive, pids))
        worker.kill()
        until(lambda: not any(map(alive, pids)), f"all of {pids} to be gone")


def test_kill_9_loses_nothing_whoever_is_killed_and_whenever(stint):
    """Workers are killed every so many outcomes; each job still ends exactly once."""
    stint.config({"t": stint.probe("ledger", stint.dir / "ledger", retry={"initial": "1ms", "max_attempts": 0})},
                 worker=SHORT)
    stint.batch([{"type": "t", "id": f"job-{n}"} for n in range(300)])
    ledger = stint.dir / "ledger"
    for target in (20, 60, 120, 180):
        with stint.worker("--slots", "4") as worker:
            until(lambda: ledger.exists() and ledger.read_text().count("\n") >= target, f"{target} runs")
            worker.kill()
    with stint.worker("--slots", "4"):
        until(lambda: stint.counts() == {"succeeded": 300}, "every job to succeed")
    assert {line.split()[0] for line in ledger.read_text().splitlines()} == {f"job-{n}" for n in range(300)}


# ---- signals ----


def test_term_waits_for_what_runs(stint):
    stint.config({"t": stint.probe("hold")}, worker={"shutdown_timeout": "10m"})
    id = stint.enqueue("t")
    with stint.worker() as worker:
        stint.until_started(id)
        later = stint.enqueue("t")
        stint.until_started(later)
        worker.signal(signal.SIGTERM)
        worker.said("worker.stopping")
        third = stint.enqueue("t")
        stint.go()
        worker.ended(0)
    assert stint.state(id) == stint.state(later) == "succeeded"
    assert (stint.state(third), stint.show(third)["attempt"]) == ("pending", 0)
    assert stint.json("workers")["workers"] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_graceful_stop_in_mid_job_costs_no_attempt(stint, number):
    stint.config({"t": stint.probe("hold", grace="5s")}, worker={"shutdown_timeout": "200ms"})
    id = stint.enqueue("t", "{}", "--max-attempts", "1")
    with stint.worker() as worker:
        child = stint.until_started(id)
        worker.signal(number)
        worker.ended(0)
    assert not alive(child)
    job = stint.show(id)
    assert (job["state"], job["attempt"]) == ("pending", 0)
    assert job["attempts"][-1]["outcome"] == "released"
    assert stint.json("workers")["workers"] == []
    (stint.dir / f"started.{id}.1").unlink()
    stint.go()
    stint.work_off()
    job = stint.show(id)
    assert (job["state"], job["attempt"]) == ("succeeded", 1)
    assert job["fence"] > job["attempts"][0]["fence"]


def test_a_stop_gives_back_what_was_only_claimed(stint):
    stint.config({"t": stint.probe("hold", grace="5s")}, worker={"shutdown_timeout": "200ms"})
    ids = [job["id"] for job in stint.batch([{"type": "t"}] * 50)]
    with stint.worker("--slots", "1") as worker:
        until(lambda: list(stint.dir.glob("started.*.1")), "the first to start")
        worker.stop()
    assert stint.counts() == {"pending": 50}
    assert {stint.show(id)["attempt"] for id in ids[:3] + ids[-3:]} == {0}


def test_a_second_term_stops_at_once(stint):
    stint.config({"t": stint.probe("stubborn", grace="10m")}, worker={"shutdown_timeout": "10m", **SHORT})
    id = stint.enqueue("t")
    with stint.worker() as worker:
        child = stint.until_started(id)
        worker.signal(signal.SIGTERM)
        worker.said("worker.stopping")
        worker.signal(signal.SIGTERM)
        assert worker.process.wait(60) is not None
    until(lambda: not alive(child), "the child to be gone")
    stint.go()
    with stint.worker():
        stint.until_state(id, "succeeded")


@pytest.mark.long
def test_tstp_makes_a_worker_quiet_and_what_runs_goes_on(stint):
    stint.config({"t": stint.probe("hold"), "quick": stint.sh("true")}, worker=SHORT)
    id = stint.enqueue("t")
    with stint.worker() as quiet:
        stint.until_started(id)
        quiet.signal(signal.SIGTSTP)
        quiet.said("worker.quiet")
        others = [stint.enqueue("quick") for _ in range(5)]
        quiet.beats(2)
        assert {stint.state(other) for other in others} == {"pending"}
        stint.go()
        stint.until_state(id, "succeeded")
        assert alive(quiet.pid)
        with stint.worker():
            for other in others:
                stint.until_state(other, "succeeded")
        quiet.stop()


@pytest.mark.long
def test_hup_reads_the_configuration_again(stint):
    stint.config({"old": stint.sh("echo old")}, worker=SHORT)
    with stint.worker() as worker:
        new = stint.enqueue("new")
        old = stint.enqueue("old")
        assert stint.until_state(old, "succeeded")["result"] == "old"
        stint.config({"old": stint.sh("echo changed"), "new": stint.sh("echo new")}, worker=SHORT)
        worker.signal(signal.SIGHUP)
        assert stint.until_state(new, "succeeded")["result"] == "new"
        old = stint.enqueue("old")
        assert stint.until_state(old, "succeeded")["result"] == "changed"


def test_hup_says_which_changes_need_a_restart(stint):
    stint.config({"t": stint.sh("echo fine")}, worker=SHORT)
    with stint.worker() as worker:
        stint.config({"t": stint.sh("echo fine")}, worker={**SHORT, "notify": False}, store="sqlite:other.db")
        worker.signal(signal.SIGHUP)
        worker.said("worker.reload_partly key=store")
        worker.said("worker.reload_partly key=worker.notify")
        worker.said("worker.reloaded")


def test_hup_with_a_wrong_configuration_changes_nothing_and_says_so(stint):
    stint.config({"t": stint.sh("echo fine")}, worker=SHORT)
    with stint.worker() as worker:
        (stint.dir / "stint.yaml").write_text("types:\n  t: {rum: [x]}\n")
        worker.signal(signal.SIGHUP)
        worker.said("rum")
        (stint.dir / "stint.yaml").rename(stint.dir / "wrong.yaml")
        id = stint.enqueue("t")
        assert stint.until_state(id, "succeeded")["result"] == "fine"


# ---- the store goes away ----


def test_a_worker_waits_for_a_store_that_is_busy_for_long(stint):
    stint.config({"t": stint.sh("true")})
    id = stint.enqueue("t")
    lock = sqlite3.connect(stint.dir / "stint.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    with stint.worker("--store-timeout", "200ms", wait=False) as worker:
        worker.said("store.away")
        assert alive(worker.pid) and stint.state(id) == "pending"
        lock.execute("COMMIT")
        lock.close()
        stint.until_state(id, "succeeded")
        worker.stop()


def test_a_second_process_may_write_for_long_while_a_worker_runs(stint):
    """Another program holds the write lock: nobody sees `database is locked`, nothing is lost."""
    stint.config({"t": stint.sh("echo $STINT_ATTEMPT")}, worker={"poll": "200ms"})
    with stint.worker() as worker:
        first = stint.enqueue("t")
        stint.until_state(first, "succeeded")
        lock = sqlite3.connect(stint.dir / "stint.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        done = stint("enqueue", "t", "{}", "--json", "--store-timeout", "300ms", check=4)
        assert done.error["code"] == "EAGAIN" and "locked" not in done.error["message"]
        waiting = stint.start("enqueue", "t", "{}", "--json", "--store-timeout", "60s", stdout=subprocess.PIPE)
        lock.execute("COMMIT")
        lock.close()
        out, _ = waiting.communicate(timeout=60)
        assert waiting.returncode == 0
        assert stint.until_state(json.loads(out)["id"], "succeeded")["attempt"] == 1
        assert "database is locked" not in worker.log and os.path.exists(stint.dir / "stint.db")
