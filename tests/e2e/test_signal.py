# SPDX-License-Identifier: Apache-2.0
"""Wake-ups of a SQLite or PostgreSQL store through Redis.

The workers here poll once an hour: what they notice sooner they were told.
"""

import re
import subprocess

import pytest

from kit import PATIENCE, ROOT, until

NEVER = "1h"


class Redis:
    """A server that is thrown away; it lives as long as the input of the command beside it is open."""

    def __init__(self, note):
        script = 'env | grep ^STINT_TEST_REDIS >"$0.part" && mv "$0.part" "$0" && exec cat'
        self.process = subprocess.Popen([ROOT / "scripts" / "redis-test", "--", "sh", "-c", script, note], stdin=subprocess.PIPE,
                                        stdout=subprocess.DEVNULL)
        until(lambda: note.exists() or self.process.poll() is not None, "a Redis server")
        assert note.exists(), "there is no Redis server: run `scripts/deps test`"
        self.env = dict(line.split("=", 1) for line in note.read_text().splitlines())
        self.url = self.env["STINT_TEST_REDIS"]

    def ctl(self, *words):
        done = subprocess.run([self.env["STINT_TEST_REDIS_CTL"], *words], stdout=subprocess.PIPE, check=True, timeout=PATIENCE)
        return done.stdout.decode()

    def listeners(self, channel="stint:sched"):
        return int(self.ctl("cli", "1", "PUBSUB", "NUMSUB", channel).split()[-1])

    def close(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE)


@pytest.fixture
def redis(tmp_path):
    redis = Redis(tmp_path / "redis.env")
    yield redis
    redis.close()


def configure(stint, redis, poll=NEVER, **more):
    stint.config({"t": stint.sh("true"), "hold": stint.probe("hold"), **more.pop("types", {})}, signal=redis.url,
                 worker={"poll": poll, "lease": "1h", "renew": "20m", "slots": 1, **more})


def until_asleep(stint, redis):
    """It listens, and has worked off what was there."""
    until(redis.listeners, "the worker to listen")
    stint.until_state(stint.enqueue("t"), "succeeded")


def test_a_sleeping_worker_is_woken(stint, redis):
    configure(stint, redis)
    with stint.worker() as worker:
        until_asleep(stint, redis)
        for _ in range(5):
            stint.until_state(stint.enqueue("t"), "succeeded")
        ids = [job["id"] for job in stint.batch([{"type": "t", "queue": f"q{i % 3}"} for i in range(30)])]
        for id in ids:
            stint.until_state(id, "succeeded")
        assert "signal.lost" not in worker.log


def test_a_job_for_later_starts_when_it_is_due(stint, redis):
    configure(stint, redis)
    with stint.worker():
        until_asleep(stint, redis)
        stint.until_state(stint.enqueue("t", "{}", "--delay", "1s"), "succeeded")


def test_jobs_that_were_there_before_the_worker_are_not_forgotten(stint, redis):
    configure(stint, redis)
    id = stint.enqueue("t")
    with stint.worker():
        stint.until_state(id, "succeeded")


def test_a_running_job_hears_that_it_is_cancelled(stint, redis):
    configure(stint, redis)
    with stint.worker():
        until_asleep(stint, redis)
        id = stint.enqueue("hold")
        stint.until_started(id)
        stint("job", "cancel", id)
        stint.until_state(id, "cancelled")


def test_a_resumed_queue_and_a_retried_job_wake(stint, redis):
    configure(stint, redis, types={"odd": stint.sh("test -e $D/fine", retry={"max_attempts": 1})})
    with stint.worker():
        until_asleep(stint, redis)
        stint("queue", "pause", "default")
        id = stint.enqueue("t")
        stint("queue", "resume", "default")
        stint.until_state(id, "succeeded")
        id = stint.enqueue("odd")
        stint.until_state(id, "failed")
        (stint.dir / "fine").touch()
        stint("job", "retry", id)
        stint.until_state(id, "succeeded")


def test_without_redis_jobs_still_run_and_the_log_says_once_why_they_may_be_late(stint, redis):
    configure(stint, redis, poll="200ms")
    redis.ctl("stop")
    with stint.worker() as worker:
        worker.said("signal.lost")
        for _ in range(3):
            stint.until_state(stint.enqueue("t"), "succeeded")
        redis.ctl("start")
        until(redis.listeners, "the worker to listen again")
        until(lambda: worker.log.count("what=listening") >= 2, lambda: f"it to be said:\n{worker.log}")
        stint.until_state(stint.enqueue("t"), "succeeded")
        said = [re.search(r"event=(\S+)", line)[1] for line in worker.log.splitlines() if "what=listening" in line]
        assert said == ["signal.lost", "signal.back"], worker.log


def test_a_redis_that_dies_and_comes_back_is_listened_to_again(stint, redis):
    configure(stint, redis)
    with stint.worker() as worker:
        until_asleep(stint, redis)
        redis.ctl("kill")
        worker.said("signal.lost")
        redis.ctl("start")
        worker.said("signal.back")
        until_asleep(stint, redis)


def test_a_redis_that_hangs_holds_up_nobody(stint, redis):
    configure(stint, redis, poll="200ms")
    with stint.worker() as worker:
        until_asleep(stint, redis)
        redis.ctl("freeze")
        for _ in range(3):
            stint.enqueue("t")
        redis.ctl("thaw")
        until(lambda: stint.counts() == {"succeeded": 4}, lambda: f"all of them: {stint.counts()}")
        worker.stop()


def test_two_prefixes_do_not_hear_each_other(stint, redis):
    configure(stint, redis)
    other = {"STINT_SIGNAL": f"{redis.url}?prefix=other"}
    with stint.worker(env=other):
        until(lambda: redis.listeners("other:sched"), "the worker to listen")
        assert redis.listeners() == 0
        stint.until_state(stint.enqueue("t", env=other), "succeeded")


def test_what_is_no_signal_is_refused(stint):
    stint.config({}, signal="postgres://x")
    stint.refuses("enqueue", "t", code=2, says="not the URL of a Redis server")
    stint.config({})
    stint.refuses("enqueue", "t", code=2, says=["STINT_SIGNAL", "unknown option: zap"], env={"STINT_SIGNAL": "redis://x?zap=1"})


def test_doctor_looks_at_the_signal(stint, redis):
    configure(stint, redis)
    stint.enqueue("t")
    assert "signal:" not in stint("doctor", check=None).text
    redis.ctl("stop")
    assert "signal:" in stint("doctor", check=None).text
