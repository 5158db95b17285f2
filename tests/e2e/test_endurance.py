# SPDX-License-Identifier: Apache-2.0
"""A worker that was paused, doubled, starved or told to stop at a bad moment."""

import resource
import signal
import time

import pytest

from kit import alive, until


def lease_over(stint, id):
    """Is the lease the store has for this job past?"""
    until_text = stint.json("job", "show", id)["lease_until"]
    return until_text is None or until_text < time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())


def test_nothing_a_lone_worker_prefetched_is_stranded_when_it_was_paused(stint):
    """Prefetched jobs wait behind a long one; the worker is stopped past all its leases."""
    stint.config({"quick": stint.sh("true"), "slow": stint.probe("hold")},
                 worker={"slots": 1, "lease": "1s", "renew": "300ms", "poll": "200ms"})
    stint.batch([{"type": "quick", "priority": 9}] * 200 + [{"type": "slow", "priority": 5, "id": "long"}]
                + [{"type": "quick", "priority": 1}] * 30)
    with stint.worker() as worker:
        stint.until_started("long")
        worker.signal(signal.SIGSTOP)
        until(lambda: lease_over(stint, "long"), "the lease to pass")
        worker.signal(signal.SIGCONT)
        stint.go()

        def left():
            counts = stint.json("queue", "list")["queues"][0]["counts"]
            return sum(counts.get(s, 0) for s in ("pending", "claimed", "running"))
        until(lambda: left() == 0, "every job to be run or to wait for its retry")


def test_of_two_workers_that_start_under_one_id_one_is_refused(stint):
    stint.config({"t": stint.sh("true")})
    stint("enqueue", "t")
    for _ in range(3):
        pair = [stint.start("worker", env={"STINT_WORKER_ID": "twin"}) for _ in range(2)]
        try:
            until(lambda: any(p.poll() is not None for p in pair), "one of the two to give up")
            codes = sorted(str(p.poll()) for p in pair)
            assert codes == ["2", "None"], codes
        finally:
            for p in pair:
                if p.poll() is None:
                    p.terminate()
                p.wait()


def test_a_worker_ends_when_told_though_its_store_is_away(stint):
    stint.config({"t": stint.probe("hold")}, worker={"slots": 4, "shutdown_timeout": "1s"})
    id = stint.enqueue("t")
    with stint.worker() as worker:
        stint.until_started(id)
        (stint.dir / "stint.db").rename(stint.dir / "away.db")
        stint.go()
        worker.said("store.away")
        worker.signal(signal.SIGTERM)
        worker.ended(4)  # the outcome could not be written, and that is said
    (stint.dir / "away.db").rename(stint.dir / "stint.db")
    assert stint.json("job", "show", id)["state"] == "running"  # until its lease is over


def test_a_worker_short_of_descriptors_does_not_spin(stint):
    stint.config({"t": stint.sh("sleep 0.2")}, worker={"slots": 10})
    stint.batch([{"type": "t"}] * 20)
    log = stint.dir / "short.log"
    with open(log, "w") as out:
        process = stint.start("worker", stderr=out, preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_NOFILE, (28, 28)))
        try:
            until(lambda: "job.not_started" in log.read_text(), "descriptors to run out")
            until(lambda: log.read_text().count("job.not_started") >= 4, "it to try again a few times")
            assert log.read_text().count("job.released") < 500
        finally:
            process.terminate()
            process.wait()


def test_once_ends_after_the_worker_went_quiet(stint):
    stint.config({"t": stint.probe("hold")}, worker={"slots": 1})
    first = stint.enqueue("t")
    second = stint.enqueue("t")
    with stint.worker("--once") as worker:
        stint.until_started(first)
        worker.signal(signal.SIGTSTP)
        worker.said("worker.quiet")
        stint.go()
        worker.ended(0)
    assert stint.json("job", "show", first)["state"] == "succeeded"
    assert stint.json("job", "show", second)["state"] == "pending"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_is_heeded(stint, number):
    stint.config({"t": stint.sh("true")})
    for delay in (0.0, 0.005, 0.02):
        process = stint.start("worker", "--log-level", "off")
        time.sleep(delay)  # anywhere in the start: no outcome depends on where
        process.send_signal(number)
        code = process.wait(30)
        assert code in (0, -number), code  # -number: before main had begun
        assert not alive(process.pid)


def test_a_minder_that_was_stopped_does_not_keep_a_job_running(stint):
    """A job may stop its parent: its timeout holds all the same, and the worker goes on with a new minder."""
    stint.config({"t": {**stint.sh("kill -STOP $PPID; sleep 600"), "timeout": "5s", "grace": "200ms",
                        "retry": {"max_attempts": 1}}, "u": stint.sh("echo 1")})
    bad = stint.enqueue("t")
    with stint.worker() as worker:
        job = stint.until_state(bad, "failed")
        assert job["error"]["kind"] in ("timeout", "child_crashed"), job["error"]
        worker.said("minder.stopped")
        assert stint.until_state(stint.enqueue("u"), "succeeded")["result"] == 1
        worker.stop()
