# SPDX-License-Identifier: Apache-2.0
"""The program on Redis: what asynq's layout cannot do is refused in words, and what stock tools do is heard."""

import json
import subprocess

import pytest

from kit import until


@pytest.fixture
def server(redis_store):
    return redis_store


def test_a_priority_is_refused_and_says_what_to_do(stint):
    stint.refuses("enqueue", "t", "{}", "--priority", "3", code=2, says=["redis", "mail.high"], json_code="EINVAL")
    assert stint.list_all() == []


def test_a_key_for_ever_is_refused_and_says_what_to_do(stint):
    stint.refuses("enqueue", "t", "{}", "--key", "k", "--unique", "forever", code=2, says=["redis", "duration"], json_code="EINVAL")
    assert stint.list_all() == []


def test_a_backup_is_refused_and_says_what_to_do(stint):
    stint.enqueue("t")
    stint.refuses("backup", stint.dir / "copy", code=2, says=["redis", "BGSAVE"], json_code="EINVAL")


def test_a_batch_that_breaks_off_is_not_said_to_be_whole(stint, server):
    server("SET", "asynq:{broken}:pending", "x")
    jobs = [{"id": "one", "type": "t"}, {"id": "two", "type": "t", "queue": "broken"}]
    lines = "\n".join(json.dumps(job) for job in jobs)
    done = stint("enqueue", "--batch", "-", "--store-timeout", "200ms", "--json", check=6, input=lines)
    assert done.error["code"] == "EUNKNOWN" and "part of the batch" in done.error["message"] and "repeat it" in done.error["remedy"]
    server("DEL", "asynq:{broken}:pending")
    assert [job["id"] for job in stint.batch(jobs)] == ["one", "two"]
    assert sorted(job["id"] for job in stint.list_all()) == ["one", "two"]


def test_a_type_nobody_here_handles_is_put_off_and_not_charged(stint):
    stint.config({"known": stint.sh("true")})
    id = stint.enqueue("unknown")
    with stint.worker() as worker:
        job = stint.until_state(id, "retrying")
        assert job["attempt"] == 0 and job["error"]["kind"] == "no_handler"
        stint.until_state(stint.enqueue("known"), "succeeded")  # it stands in nobody's way
        worker.stop()


def test_asynqs_own_cancel_stops_a_job(stint, server):
    stint.config({"hold": stint.probe("hold")})
    id = stint.enqueue("hold")
    with stint.worker() as worker:
        stint.until_started(id)
        until(lambda: server("PUBLISH", "asynq:cancel", id) > 0, "the worker to listen: a moment after the first job, maybe")
        stint.until_state(id, "cancelled")
        worker.stop()


def test_a_running_worker_and_its_job_are_shown_to_asynqs_tools(stint, server):
    stint.config({"hold": stint.probe("hold")})
    id = stint.enqueue("hold")
    with stint.worker() as worker:
        stint.until_started(id)
        name = until(lambda: server("ZRANGE", "asynq:servers", 0, -1), "the server's entry")[0]
        assert name.startswith(b"asynq:servers:{") and str(worker.pid).encode() in name
        shown = name.replace(b"asynq:servers:", b"asynq:workers:")
        until(lambda: server("HKEYS", shown) == [id.encode()], "the running job in asynq's hash")
        stint.go()
        stint.until_state(id, "succeeded")
        worker.stop()
    assert server("ZCARD", "asynq:servers") == 0 and server("EXISTS", name) == 0


def test_a_job_that_was_deleted_ends_a_wait(stint, server):
    id = stint.enqueue("t")
    server("DEL", f"asynq:{{default}}:t:{id}")
    stint.refuses("job", "wait", id, code=3, says=id)


def test_a_job_that_is_deleted_under_a_wait_is_gone(stint, server):
    id = stint.enqueue("t")
    assert stint.state(id) == "pending"  # from now on the server knows the script
    waiters = [stint.start("job", "wait", id, *more, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for more in ([], ["--json"])]
    until(lambda: server("CLIENT", "LIST").count(b" cmd=evalsha ") == 2, "both to have seen it")
    server("DEL", f"asynq:{{default}}:t:{id}")
    said = [w.communicate(timeout=20) for w in waiters]
    assert [w.returncode for w in waiters] == [3, 3]
    assert f"job {id} is gone" in str(said[0])
    assert json.loads(said[1][0]) == {"id": id, "state": "gone"}


def test_a_job_that_vanished_holds_up_nobody(stint, server):
    stint.config({"ok": stint.sh("true")})
    gone, there = stint.enqueue("ok"), stint.enqueue("ok")
    server("DEL", f"asynq:{{default}}:t:{gone}")
    with stint.worker() as worker:
        stint.until_state(there, "succeeded")
        worker.said("job.vanished")
        worker.stop()


def test_a_job_that_vanished_is_told_of_its_queue(stint, server):
    stint.config({"ok": stint.sh("true")})
    for queue, n in {"a": 1, "b": 0, "c": 2}.items():
        stint.enqueue("ok", "{}", "--queue", queue)
        for _ in range(n):
            server("DEL", f"asynq:{{{queue}}}:t:{stint.enqueue('ok', '{}', '--queue', queue)}")
    with stint.worker("--queues", "a,b,c") as worker:
        worker.said("job.vanished jobs=1 queue=a")
        worker.said("job.vanished jobs=2 queue=c")
        worker.stop()
    assert "queue=b" not in "".join(line for line in worker.log.splitlines() if "vanished" in line)


def test_runqy_true_means_default_and_writes_the_way_to_a_job(stint, server):
    stint.config({"t": stint.sh("echo 42")}, runqy=True)
    id = stint.enqueue("t", "{}", "--queue", "inference")
    assert stint.show(id)["queue"] == "inference.default"
    assert server("HGET", f"asynq:t:{id}", "queue") == b"inference.default"
    stint.work_off()
    assert server("GET", f"asynq:result:{id}") == b"42"


def test_runqy_true_needs_a_redis_store(stint):
    stint.config({}, runqy=True)
    stint.refuses("queue", "list", "--store", "sqlite:other.db", code=2, says="runqy", json_code="EINVAL")
