# SPDX-License-Identifier: Apache-2.0
"""The published asynq and stint on one Redis: each runs what the other enqueued, and each sees what the other did.

`asynq` is its Go module behind a command line (asynq/main.go): client, server and Inspector are the real ones.
"""

import collections
import hashlib
import json
import random
import signal
import subprocess
import time

import pytest

from asynqkit import asynq, asynq_program, probe, redis, stint, until  # noqa: F401 - fixtures

ECHO = "cat"  # the payload is the result
LEASE_LOST = "asynq: task lease expired"


def dead(stint):
    return {job["id"]: job for job in stint.json("dead", "list")["jobs"]}


# ---- asynq enqueues, we run -------------------------------------------------------------------------


def test_a_plain_task_is_run_and_gone_as_asynq_has_it(stint, asynq):
    stint.config({"t": stint.sh(ECHO + " > $D/out")})
    id = asynq.enqueue("t", '{"a": 1}')
    assert stint.state(id) == "pending"
    stint.work_off()
    assert (stint.dir / "out").read_text() == '{"a": 1}'
    assert asynq.is_gone(id), "no retention was asked for"
    stint("job", "show", id, check=3)
    assert asynq.queue()["processed"] == 1 and asynq.queue()["size"] == 0


def test_a_task_with_retention_keeps_its_result(stint, asynq):
    stint.config({"t": stint.sh(ECHO)})
    id = asynq.enqueue("t", '{"a":  1}', "-retention", "1h")
    before = int(time.time())
    stint.work_off()
    task = asynq.task(id)
    assert (task["state"], task["result"], task["retried"], task["retention"]) == ("completed", '{"a":  1}', 0, 3600)
    assert before <= task["completed_at"] <= time.time() + 1
    assert [t["id"] for t in asynq.tasks("completed")] == [id]
    job = stint.show(id)
    assert (job["state"], job["result"], job["attempt"]) == ("succeeded", {"a": 1}, 1)


@pytest.mark.parametrize("payload", ["", "no JSON at all", '"text"', "null"])
def test_any_payload_gets_to_the_handler_to_the_byte(stint, asynq, payload):
    stint.config({"t": stint.sh(ECHO + " > $D/out")})
    id = asynq.enqueue("t", payload, "-retention", "1h") if payload else asynq.enqueue("t", "-retention", "1h")
    stint.work_off()
    assert asynq.task(id)["state"] == "completed"
    assert (stint.dir / "out").read_text() in ({"", "null"} if not payload else {payload})


def test_a_scheduled_task_is_run_when_it_is_due_though_no_asynq_server_is_there(stint, asynq):
    stint.config({"t": stint.sh(ECHO)})
    late = asynq.enqueue("t", "{}", "-in", "1h", "-retention", "1h")
    soon = asynq.enqueue("t", "{}", "-in", "1s", "-retention", "1h")
    assert stint.state(late) == asynq.task(soon)["state"] == "scheduled"
    with stint.worker():
        asynq.until_state(soon, "completed")
    assert stint.state(late) == "scheduled" and asynq.task(late)["state"] == "scheduled"


def test_a_task_of_its_own_timeout_is_stopped_then(stint, asynq):
    stint.config({"t": stint.probe("hold", timeout="1h", grace="100ms")})
    id = asynq.enqueue("t", "{}", "-timeout", "1s", "-max-retry", "0")
    stint.work_off()
    task = asynq.task(id)
    assert task["state"] == "archived" and "time" in task["last_error"].lower(), task
    assert dead(stint)[id]["error"]["kind"] == "timeout"


def test_a_task_whose_deadline_has_passed_is_not_run_for_long(stint, asynq):
    stint.config({"t": stint.probe("hold", timeout="1h", grace="100ms")})
    id = asynq.enqueue("t", "{}", "-deadline", "2s", "-max-retry", "0")
    stint.work_off()
    assert asynq.task(id)["state"] == "archived"


def test_a_batch_is_run_whole_and_counted(stint, asynq):
    stint.config({"t": stint.probe("ledger", stint.dir / "ledger")})
    added = asynq("enqueue", "-count", 200, "-retention", "1h", "t", "{}")
    stint.work_off()
    ran = collections.Counter(line.split()[0] for line in (stint.dir / "ledger").read_text().splitlines())
    assert ran == {task["id"]: 1 for task in added}
    assert {t["id"] for t in asynq.tasks("completed")} == set(ran)
    today = asynq("inspect", "history", "default")[0]
    assert (today["processed"], today["failed"]) == (200, 0)
    assert stint.counts() == {"succeeded": 200}


def test_max_retry_headers_and_the_rest_of_the_message_outlive_our_retries(stint, asynq):
    stint.config({"t": stint.sh("echo no luck >&2; exit 1", retry={"max_attempts": 1})})
    id = asynq.enqueue("t", '{"n": 1}', "-max-retry", "2", "-header", "trace=abc", "-header", "user=7", "-retention", "2h",
                       "-timeout", "77s")
    with stint.worker():
        task = asynq.until_state(id, "archived")
    assert (task["retried"], task["max_retry"]) == (2, 2), "the task's own number, not the type's"
    assert task["headers"] == {"trace": "abc", "user": "7"}
    assert (task["payload"], task["retention"], task["timeout"]) == ('{"n": 1}', 7200, 77)
    assert "no luck" in task["last_error"] or "exit" in task["last_error"], task
    today = asynq("inspect", "history", "default")[0]
    assert (today["processed"], today["failed"]) == (3, 3)


def test_our_retry_is_shown_by_the_inspector_and_hurried_by_it(stint, asynq):
    script = 'if [ "$STINT_ATTEMPT" = 1 ]; then echo not yet >&2; exit 1; fi; echo "$STINT_ATTEMPT"'
    stint.config({"t": stint.sh(script, retry={"initial": "1h"})})
    id = asynq.enqueue("t", "{}", "-retention", "1h")
    with stint.worker():
        task = asynq.until_state(id, "retry")
        assert task["retried"] == 1 and task["last_error"] and task["last_failed_at"] > time.time() - 60
        assert 3000 < task["next_process_at"] - time.time() < 4000
        job = stint.show(id)
        assert job["state"] == "retrying" and job["attempt"] == 1
        asynq("run", "default", id)
        task = asynq.until_state(id, "completed")
    assert task["result"].strip() == "2"


def test_a_type_that_nobody_here_handles_is_not_lost(stint, asynq):
    stint.config({"t": stint.sh(ECHO)})
    id = asynq.enqueue("unheard.of", "{}", "-retention", "1h")
    with stint.worker():
        task = asynq.until_state(id, "retry")
    assert task["retried"] == 0 and "handler" in task["last_error"], "it is not charged"
    asynq("run", "default", id)
    with asynq.server():
        asynq.until_state(id, "completed")


# ---- we enqueue, asynq runs -------------------------------------------------------------------------


def test_an_asynq_server_runs_what_we_enqueue(stint, asynq):
    ledger = stint.dir / "ledger"
    plain = stint.enqueue("t", '{"result": "{\\"x\\": 1}"}')
    late = stint.enqueue("t", '{"result": "7"}', "--delay", "1s")
    own = stint.enqueue("t", "{}", "--id", "order-42", "--timeout", "90s", "--max-attempts", "5", "--queue", "mail.high")
    assert asynq.task(plain)["state"] == "pending" and asynq.task(late)["state"] == "scheduled"
    task = asynq.task(own, "mail.high")
    assert (task["id"], task["max_retry"], task["timeout"]) == ("order-42", 4, 90)
    with asynq.server("-ledger", ledger, "-queues", "default,mail.high"):
        done = stint.json("job", "wait", plain)
        assert (done["state"], done["result"]) == ("succeeded", {"x": 1})
        assert stint.json("job", "wait", late)["result"] == 7
        assert stint.json("job", "wait", own)["state"] == "succeeded"
    assert {line.split()[1] for line in ledger.read_text().splitlines()} == {plain, late, own}
    assert [j["state"] for j in stint.list_all()] == ["succeeded"] * 3


def test_a_failure_in_asynq_is_seen_by_us(stint, asynq):
    id = stint.enqueue("t", '{"fail": 1}')
    with asynq.server("-retry-delay", "1h"):
        job = stint.until_state(id, "retrying")
        assert job["attempt"] == 1 and job["error"]["message"] == "asked to fail"
    stint.config({"t": stint.sh(ECHO)})
    asynq("run", "default", id)
    stint.work_off()
    job = stint.show(id)
    assert (job["state"], job["attempt"]) == ("succeeded", 2)


def test_what_asynq_archives_is_our_dead_letter_and_can_be_retried(stint, asynq):
    failed = stint.enqueue("t", '{"skip": true}')
    put_away = asynq.enqueue("t", "{}", "-in", "1h", "-retention", "1h")
    asynq("archive", "default", put_away)
    with asynq.server():
        asynq.until_state(failed, "archived")
    assert set(dead(stint)) == {failed, put_away}
    assert "not again" in dead(stint)[failed]["error"]["message"]
    stint.config({"t": stint.sh(ECHO)})
    stint("dead", "retry", failed, put_away)
    assert {t["id"] for t in asynq.tasks("pending")} == {failed, put_away}
    assert asynq.tasks("archived") == []
    stint.work_off()
    assert stint.state(failed) == "succeeded" and asynq.task(put_away)["state"] == "completed"


def test_what_we_archive_can_be_run_and_deleted_by_asynq(stint, asynq):
    stint.config({"t": stint.sh("exit 1", retry={"max_attempts": 1})})
    again, away = stint.enqueue("t", "{}"), stint.enqueue("t", "{}")
    stint.work_off()
    assert {t["id"] for t in asynq.tasks("archived")} == {again, away} == set(dead(stint))
    asynq("run", "default", again)
    asynq("delete", "default", away)
    with asynq.server():
        assert stint.json("job", "wait", again)["state"] == "succeeded"
    stint("job", "show", away, check=3)
    assert dead(stint) == {}


def test_waiting_for_a_task_that_asynq_deletes_ends(stint, asynq):
    id = stint.enqueue("t", "{}", "--delay", "1h")
    waiting = stint.start("job", "wait", id, "--json")
    time.sleep(0.5)
    asynq("delete", "default", id)
    assert waiting.wait(30) == 3


# ---- steering from either side ------------------------------------------------------------------------


def test_a_pause_from_either_side_holds_for_both(stint, asynq):
    stint.config({"t": stint.sh(ECHO)})
    id = asynq.enqueue("t", "{}", "-retention", "1h")
    asynq("pause", "default")
    assert stint.json("queue", "list")["queues"][0]["paused"] is True
    with stint.worker():
        other = asynq.enqueue("t", "{}", "-retention", "1h", "-queue", "other")
        asynq.until_state(other, "completed", "other")  # so it has been round
        assert asynq.task(id)["state"] == "pending"
        stint("queue", "resume", "default")
        asynq.until_state(id, "completed")
    stint("queue", "pause", "default")
    assert asynq.queue()["paused"] is True
    id = stint.enqueue("t", "{}")
    with asynq.server():
        time.sleep(1)  # five of its rounds; it has nothing to be asked for them
        assert asynq.task(id)["state"] == "pending"
        asynq("unpause", "default")
        assert stint.json("job", "wait", id)["state"] == "succeeded"


def heard(redis, who):
    """A cancellation is told once: waits until somebody listens, which may be a moment after the first job has begun."""
    until(lambda: int(redis.cli("PUBSUB", "NUMSUB", "asynq:cancel").split()[-1]), f"{who} to listen")


def test_asynqs_cancel_stops_our_job(stint, asynq, redis):
    stint.config({"t": stint.probe("hold", grace="100ms")})
    id = asynq.enqueue("t", "{}", "-retention", "1h")
    with stint.worker():
        stint.until_started(id)
        heard(redis, "our worker")
        asynq("cancel", id)
        job = stint.until_state(id, "cancelled")
    assert job["attempt"] == 1 and asynq.task(id)["state"] == "archived"


def test_our_cancel_stops_a_handler_of_asynq(stint, asynq, redis):
    ledger = stint.dir / "ledger"
    id = stint.enqueue("t", '{"hang": true}', "--max-attempts", "1")
    with asynq.server("-ledger", ledger):
        until(lambda: ledger.exists() and "start" in ledger.read_text(), "it to start")
        heard(redis, "asynq's server")
        stint("job", "cancel", id)
        until(lambda: "stopped" in ledger.read_text(), "it to be told")
        asynq.until_state(id, "archived")
    waiting = stint.enqueue("t", "{}", "--delay", "1h")
    stint("job", "cancel", waiting)
    assert stint.state(waiting) == "cancelled"


def test_a_unique_lock_holds_across_both(stint, asynq):
    payload = '{"a":1}'
    key = hashlib.md5(payload.encode()).hexdigest()
    theirs = asynq.enqueue("t", payload, "-unique", "1m")
    for flags in (["--key", key, "--unique", "1m"], ["--unique", "1m"], ["--unique", "active"]):
        assert stint.json("enqueue", "t", payload, *flags) == {"id": theirs, "duplicate": True}
    assert asynq.enqueue("t", payload, "-unique", "1m") == "duplicate"
    with asynq.server():  # which lets go of it
        until(lambda: asynq.is_gone(theirs), "it to be run")
    ours = stint.json("enqueue", "t", payload, "--key", key)
    assert ours["duplicate"] is False
    assert asynq.enqueue("t", payload, "-unique", "1m") == "duplicate"
    stint.config({"t": stint.sh(ECHO)})
    stint.work_off()
    assert stint.state(ours["id"]) == "succeeded"
    theirs = asynq.enqueue("t", payload, "-unique", "1m")
    assert theirs != "duplicate", "ours has let go of it"
    stint.work_off()
    assert asynq.enqueue("t", payload, "-unique", "1m") != "duplicate", "and of theirs too"


def test_of_a_hundred_producers_of_both_kinds_one_gets_the_lock(stint, asynq):
    payload = '{"a":1}'
    flags = [asynq.program, "enqueue", "-count", "40", "-unique", "1m", "t", payload]
    theirs = [subprocess.Popen(flags, env=asynq.env, stdout=subprocess.PIPE) for _ in range(2)]
    ours = [stint.start("enqueue", "t", payload, "--unique", "1m", "--json", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for _ in range(20)]
    answers = [a for p in theirs for a in json.loads(p.communicate(timeout=60)[0])]
    answers += [json.loads(p.communicate(timeout=60)[0]) for p in ours]
    assert len(answers) == 100
    winners = [a for a in answers if not a.get("duplicate") and not a.get("error")]
    assert len(winners) == 1
    assert [t["id"] for t in asynq.tasks("pending")] == [winners[0]["id"]]
    assert {a["id"] for a in answers if "id" in a} == {winners[0]["id"]}, "each of ours is told who has it"


def test_a_task_in_a_group_is_left_there_until_it_is_told_to_run(stint, asynq):
    stint.config({"t": stint.sh(ECHO)})
    grouped = asynq.enqueue("t", "{}", "-group", "g", "-retention", "1h")
    plain = asynq.enqueue("t", "{}", "-retention", "1h")
    with stint.worker():
        asynq.until_state(plain, "completed")
        assert asynq.task(grouped)["state"] == "aggregating" and asynq.queue()["aggregating"] == 1
        asynq("run", "default", grouped)
        assert asynq.until_state(grouped, "completed")["group"] == "g"


def test_the_inspector_sees_our_worker_and_what_it_does(stint, asynq):
    stint.config({"t": stint.probe("hold", timeout="5m")}, worker={"slots": 7, "queues": {"default": 3, "mail": 1}})
    id = asynq.enqueue("t", '{"a": 1}', "-retention", "1h", "-timeout", "10m")
    with stint.worker() as worker:
        stint.until_started(id)
        server = until(lambda: (s := asynq.our_server(worker.pid)) and s["workers"] and s, "our worker among asynq's servers")
        assert (server["concurrency"], set(server["queues"]), server["status"]) == (7, {"default", "mail"}, "active")
        assert time.time() - 60 < server["started"] <= time.time()
        doing = server["workers"][0]
        assert (doing["task_id"], doing["task_type"], doing["queue"]) == (id, "t", "default")
        assert doing["started"] < doing["deadline"] <= time.time() + 600
        assert asynq.task(id)["orphaned"] is False
        stint.go()
        asynq.until_state(id, "completed")
        worker.stop()
    assert asynq.our_server(worker.pid) is None, "it said goodbye"


@pytest.mark.parametrize("queues, strict, weights", [
    ("high=6,low=1", False, {"high": 6, "low": 1}),
    ("high,low", True, {"high": 2, "low": 1}),
])
def test_the_inspector_sees_in_which_order_queues_are_served(stint, asynq, queues, strict, weights):
    stint.config({"t": stint.sh(ECHO)})
    with stint.worker("--queues", queues) as w:
        w.ready()
        seen = until(lambda: asynq.our_server(w.pid), "our worker among asynq's servers")
        assert (seen["strict"], seen["queues"]) == (strict, weights)


def test_we_see_asynqs_servers_and_they_do_not_disturb_us(stint, asynq):
    with asynq.server() as server:
        until(lambda: asynq.our_server(server.pid), "asynq to see itself")
        assert stint("workers", "--json").code == 0
        assert stint("doctor", check=None).code in (0, 1)


# ---- things go wrong --------------------------------------------------------------------------------------


def test_kill_9_of_our_worker_is_attempt_two(stint, asynq):
    stint.config({"t": stint.probe("hold")}, worker={"lease": "2s", "renew": "500ms"})
    id = asynq.enqueue("t", "{}", "-retention", "1h")
    with stint.worker() as first:
        stint.until_started(id)
        first.kill()
    stint.go()
    with stint.worker():
        task = asynq.until_state(id, "completed")
    assert task["retried"] == 1 and task["result"] == "2"
    assert stint.show(id)["attempt"] == 2


def test_a_late_outcome_of_ours_is_refused(stint, asynq):
    stint.config({"t": stint.probe("hold")}, worker={"lease": "2s", "renew": "500ms"})
    id = asynq.enqueue("t", "{}", "-retention", "1h")
    with stint.worker() as slow:
        stint.until_started(id)
        slow.signal(signal.SIGSTOP)
        with stint.worker() as other:
            stint.until_started(id, attempt=2)
            slow.signal(signal.SIGCONT)
            slow.said("taken_by_another_worker")
            assert asynq.task(id)["state"] == "active", "the second one goes on"
            stint.go()
            task = asynq.until_state(id, "completed")
            assert task["result"] == "2"
            other.stop()
        assert asynq.queue()["processed_total"] - asynq.queue()["failed_total"] == 1


def test_a_late_outcome_of_ours_is_refused_after_asynq_took_the_task(stint, asynq, redis):
    """asynq's recoverer comes 30 s after a lease has ended: the lease is put back by hand instead of waiting for it."""
    ledger = stint.dir / "ledger"
    stint.config({"t": stint.probe("hold")}, worker={"lease": "1h"})
    id = asynq.enqueue("t", '{"hang": true}', "-retention", "1h")
    with stint.worker() as slow:
        stint.until_started(id)
        slow.signal(signal.SIGSTOP)
        redis.cli("ZADD", "asynq:{default}:lease", "XX", int(time.time()) - 60, id)
        with asynq.server("-ledger", ledger):
            until(lambda: ledger.exists() and f"{id} 1 start" in ledger.read_text(), "asynq to have it")
            stint.go()
            slow.signal(signal.SIGCONT)
            slow.said("taken_by_another_worker")
            task = asynq.task(id)
            assert (task["state"], task["retried"], task["last_error"], task["result"]) == ("active", 1, LEASE_LOST, "")
            slow.kill()


def test_a_task_of_a_killed_asynq_server_is_recovered_by_us(stint, asynq, redis):
    ledger = stint.dir / "ledger"
    id = stint.enqueue("t", '{"hang": true}')
    with asynq.server("-ledger", ledger) as server:
        until(lambda: ledger.exists() and "start" in ledger.read_text(), "asynq to have it")
        asynq.end(server, signal.SIGKILL)
    assert stint.state(id) == "running"
    redis.cli("ZADD", "asynq:{default}:lease", "XX", int(time.time()) - 60, id)  # a minute later
    stint.config({"t": stint.sh('echo "$STINT_ATTEMPT"')}, worker={"lease": "3s", "renew": "1s"})
    with stint.worker():
        asynq.until_state(id, "retry")
        asynq("run", "default", id)  # the delay is asynq's, too long for a test
        job = stint.until_state(id, "succeeded")
    assert (job["attempt"], job["result"]) == (2, 2)
    assert asynq.task(id)["retried"] == 1 and asynq.task(id)["last_error"] == LEASE_LOST


class Herd:
    """Workers of one kind; now and then one is killed and another comes."""

    def __init__(self, start, kill):
        self.start, self.kill = start, kill
        self.open = []

    def add(self):
        context = self.start()
        self.open.append((context, context.__enter__()))

    def shoot(self):
        context, worker = self.open.pop(random.randrange(len(self.open)))
        self.kill(worker)
        context.__exit__(None, None, None)
        self.add()

    def close(self):
        for context, _ in self.open:
            context.__exit__(None, None, None)


SIDE_BY_SIDE = 400


def enqueue_both(stint, asynq):
    """Half by each; both kinds of handler can run them."""
    order = '{"sleep": 20}'
    theirs = {t["id"] for t in asynq("enqueue", "-count", SIDE_BY_SIDE // 2, "-retention", "1h", "t", order)}
    ours = {j["id"] for j in stint.batch([{"type": "t", "payload": json.loads(order), "max_attempts": 20}] * (SIDE_BY_SIDE // 2))}
    assert len(theirs | ours) == SIDE_BY_SIDE
    return theirs | ours


def rewind(asynq, redis, pid_alive):
    """Leases that dead asynq servers left end now: nobody waits a minute for them in a test."""
    held = {w["task_id"] for s in asynq("inspect", "servers") for w in s["workers"] if pid_alive(s["pid"])}
    for task in asynq.tasks("active"):
        if task["id"] not in held:
            redis.cli("ZADD", "asynq:{default}:lease", "XX", int(time.time()) - 60, task["id"])


@pytest.mark.long
def test_both_side_by_side_lose_nothing_while_workers_are_killed(stint, asynq, redis):
    ledger = stint.dir / "ledger"
    script = 'echo "stint $STINT_JOB_ID $STINT_ATTEMPT start" >> $D/ledger; sleep 0.02; echo "stint $STINT_JOB_ID $STINT_ATTEMPT done" >> $D/ledger'
    stint.config({"t": stint.sh(script, retry={"max_attempts": 20})}, worker={"lease": "2s", "renew": "500ms", "slots": 3})
    ids = enqueue_both(stint, asynq)
    ours = Herd(stint.worker, lambda w: w.kill())
    theirs = Herd(lambda: asynq.server("-ledger", ledger, "-concurrency", 2), lambda p: asynq.end(p, signal.SIGKILL))
    try:
        for herd in (ours, theirs):
            herd.add()
            herd.add()
        for _ in range(4):
            time.sleep(0.3)  # so that they are in the middle of something
            ours.shoot()
            theirs.shoot()
        living = {p.pid for _, p in theirs.open} | {w.pid for _, w in ours.open}
        until(lambda: asynq.queue()["pending"] == 0, "the backlog to be gone")
        until(lambda: asynq.queue()["completed"] == SIDE_BY_SIDE or time.sleep(3) or rewind(asynq, redis, living.__contains__),
              lambda: f"all to be completed: {asynq.queue()}", seconds=150)
    finally:
        ours.close()
        theirs.close()

    assert {t["id"] for t in asynq.tasks("completed")} == ids, "nothing is lost"
    queue = asynq.queue()
    assert queue["processed_total"] - queue["failed_total"] == SIDE_BY_SIDE, "and nothing has ended twice"
    done = collections.Counter(line.split()[1] for line in ledger.read_text().splitlines() if line.endswith("done"))
    assert set(done) == ids
    who = {line.split()[0].split("-")[0] for line in ledger.read_text().splitlines()}
    assert who == {"stint", "asynq"}, "both took part"
    assert stint.counts() == {"succeeded": SIDE_BY_SIDE}
