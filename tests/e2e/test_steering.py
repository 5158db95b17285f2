# SPDX-License-Identifier: Apache-2.0
"""Steering: order, delays, pause, cancel, wait, retry, the dead letter."""

import signal
import subprocess

import pytest

from kit import alive, until


def ledger(stint):
    path = stint.dir / "ledger"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def with_ledger(stint, **worker):
    stint.config({"t": stint.probe("ledger", stint.dir / "ledger")}, worker={"slots": 1, **worker})


# ---- order ----


def test_higher_priority_runs_first_and_equals_in_the_order_they_were_due(stint):
    with_ledger(stint)
    for id, priority in (("a", 0), ("b", -1), ("c", 32767), ("d", 0), ("e", -32768), ("f", 5)):
        stint.enqueue("t", "{}", "--id", id, "--priority", priority)
    stint.work_off()
    assert ledger(stint) == ["c", "f", "a", "d", "b", "e"]


def test_a_list_of_queues_is_strict_and_the_first_wins(stint):
    with_ledger(stint)
    for n in range(3):
        for queue in ("low", "high", "mid"):
            stint.enqueue("t", "{}", "--id", f"{queue}-{n}", "--queue", queue, "--priority", 5 if queue == "low" else 0)
    stint.work_off("--queues", "high,mid,low")
    assert ledger(stint) == [f"{q}-{n}" for q in ("high", "mid", "low") for n in range(3)]


def test_queues_with_weights_all_get_their_share(stint):
    with_ledger(stint)
    stint.batch([{"type": "t", "queue": q, "id": f"{q}-{n}"} for q in ("a", "b") for n in range(200)])
    stint.work_off("--queues", "a=3,b=1")
    first = [id[0] for id in ledger(stint)[:200]]
    assert first.count("a") > first.count("b") > 10


def test_a_parent_queue_means_its_subs_too_and_others_are_left_alone(stint):
    with_ledger(stint)
    for queue in ("mail", "mail.fast", "mailbox", "other"):
        stint.enqueue("t", "{}", "--id", queue, "--queue", queue)
    stint.work_off("--queues", "mail")
    assert sorted(ledger(stint)) == ["mail", "mail.fast"]


def test_types_can_be_chosen_by_prefix(stint):
    stint.config({"*": stint.probe("ledger", stint.dir / "ledger")})
    for type in ("img.crop", "img.scale", "mail", "imgx"):
        stint.enqueue(type, "{}", "--id", type)
    stint.work_off("--types", "img.*,mail")
    assert sorted(ledger(stint)) == ["img.crop", "img.scale", "mail"]


def test_the_most_specific_type_pattern_wins(stint):
    stint.config({"*": stint.sh("echo any"), "img.*": stint.sh("echo img"), "img.crop": stint.sh("echo crop")})
    ids = [stint.enqueue(type) for type in ("img.crop", "img.scale", "mail")]
    stint.work_off()
    assert [stint.show(id)["result"] for id in ids] == ["crop", "img", "any"]


def test_a_type_nobody_handles_stays_where_it_is(stint):
    with_ledger(stint)
    other = stint.enqueue("other")
    stint.enqueue("t", "{}", "--id", "ours")
    stint.work_off()
    assert ledger(stint) == ["ours"]
    assert (stint.state(other), stint.show(other)["attempt"]) == ("pending", 0)


def test_a_delayed_job_waits_until_it_is_due(stint):
    with_ledger(stint)
    stint.enqueue("t", "{}", "--id", "later", "--delay", "1500ms")
    stint.enqueue("t", "{}", "--id", "never", "--at", "2099-01-01T00:00:00Z")
    stint.enqueue("t", "{}", "--id", "now")
    assert stint.state("later") == "scheduled"
    stint.work_off()
    with stint.worker():
        job = stint.until_state("later", "succeeded")
    assert ledger(stint) == ["now", "later"]
    assert job["started_at"] >= job["run_at"]
    assert stint.state("never") == "scheduled"


def test_once_ends_with_scheduled_and_retrying_jobs_left_and_counts_them(stint):
    stint.config({"bad": stint.sh("exit 1", retry={"initial": "1h"}), "t": stint.sh("true")})
    stint.enqueue("bad")
    stint.enqueue("t")
    stint.enqueue("t", "{}", "--delay", "1h")
    stint.work_off()
    assert stint.counts() == {"retrying": 1, "succeeded": 1, "scheduled": 1}


def test_an_idle_worker_picks_up_a_job_from_another_process_at_once(stint):
    with_ledger(stint, poll="10m")
    with stint.worker():
        for n in range(5):
            id = stint.enqueue("t")
            stint.until_state(id, "succeeded")


# ---- pause ----


def test_a_paused_queue_gives_nothing_until_it_is_resumed(stint):
    with_ledger(stint, poll="200ms")
    stint("queue", "pause", "mail")
    held = stint.enqueue("t", "{}", "--queue", "mail.fast")
    with stint.worker():
        other = stint.enqueue("t", "{}", "--queue", "other")
        stint.until_state(other, "succeeded")
        assert stint.state(held) == "pending"
        assert [q["paused"] for q in stint.json("queue", "list")["queues"] if q["name"] == "mail"] == [True]
        stint("queue", "resume", "mail")
        stint.until_state(held, "succeeded")


def test_resuming_a_sub_says_that_its_parent_is_still_paused(stint):
    stint.batch([{"type": "t", "queue": "mail.fast"}, {"type": "t", "queue": "other.slow"}])
    stint("queue", "pause", "mail", "mail.fast", "other.slow")
    done = stint("queue", "resume", "mail.fast", "other.slow")
    assert done.text == "mail.fast resumed, but its parent mail is paused\nother.slow resumed\n"
    assert stint.json("queue", "resume", "mail.fast", "other.slow") == {"queues": [
        {"name": "mail.fast", "paused": False, "paused_by_parent": "mail"},
        {"name": "other.slow", "paused": False, "paused_by_parent": None}]}
    assert stint("queue", "resume", "mail.fast", "mail").text == "mail.fast resumed\nmail resumed\n"


def test_the_list_of_queues_tells_who_is_paused_by_its_parent(stint):
    stint.batch([{"type": "t", "queue": q} for q in ("mail.fast", "mail.slow", "other.slow")])
    stint("queue", "pause", "mail", "mail.slow")
    rows = {q["name"]: (q["paused"], q["paused_by_parent"]) for q in stint.json("queue", "list")["queues"]}
    assert rows == {"mail": (True, None), "mail.fast": (False, "mail"), "mail.slow": (True, "mail"),
                    "other.slow": (False, None)}
    text = {line.split()[0]: line for line in stint("queue", "list").text.splitlines()[1:]}
    assert text["mail"].endswith("paused") and text["mail.slow"].endswith("paused")
    assert text["mail.fast"].endswith("paused (by mail)") and "paused" not in text["other.slow"]


def test_pausing_leaves_running_jobs_alone(stint):
    stint.config({"t": stint.probe("hold")})
    id = stint.enqueue("t")
    with stint.worker():
        stint.until_started(id)
        stint("queue", "pause", "default")
        stint.go()
        stint.until_state(id, "succeeded")


def test_a_queue_may_be_paused_before_it_has_jobs_and_a_wrong_name_is_refused(stint):
    stint.enqueue("t")
    stint("queue", "pause", "later")
    assert "later" in [q["name"] for q in stint.json("queue", "list")["queues"]]
    stint.refuses("queue", "pause", "two words", code=2, says="queue")


# ---- cancel ----


def test_a_waiting_job_is_cancelled_at_once(stint):
    with_ledger(stint)
    id = stint.enqueue("t")
    later = stint.enqueue("t", "{}", "--delay", "1h")
    stint("job", "cancel", id)
    stint("job", "cancel", later)
    assert stint.state(id) == stint.state(later) == "cancelled"
    stint.work_off()
    assert ledger(stint) == []


def test_a_cancelled_job_tells_so_in_error_and_errors_until_it_is_retried(stint):
    id = stint.enqueue("t")
    stint("job", "cancel", id)
    job = stint.show(id)
    assert job["error"] == {"kind": "cancelled", "message": "cancelled before it ran"}
    assert job["errors"] == [{**job["error"], "attempt": None, "at": job["finished_at"]}]
    assert "cancelled before it ran" in stint("job", "show", id).text
    stint("job", "retry", id)
    job = stint.show(id)
    assert (job["state"], job["error"], job["errors"]) == ("pending", None, [])
    assert stint.list_all()[0]["error"] is None
    assert "cancelled before it ran" not in stint("job", "show", id).text


@pytest.mark.parametrize("verb", ["hold", "family"])
def test_a_running_job_is_stopped_by_cancel_with_all_its_children(stint, verb):
    stint.config({"t": stint.probe(verb, grace="500ms")}, worker={"lease": "30s", "renew": "300ms"})
    id = stint.enqueue("t")
    with stint.worker() as worker:
        pid = stint.until_started(id)
        if verb == "family":
            stint.until_started(id, suffix=".grandchild")
        stint("job", "cancel", id)
        job = stint.until_state(id, "cancelled")
        assert not alive(pid) and stint.leftovers() == []
        assert alive(worker.pid)
    assert job["attempts"][0]["outcome"] == "cancelled"
    assert [(e["kind"], e["attempt"]) for e in job["errors"]] == [("cancelled", 1)]


def test_a_job_that_has_ended_cannot_be_cancelled(stint):
    with_ledger(stint)
    id = stint.enqueue("t")
    stint.work_off()
    stint.refuses("job", "cancel", id, code=1, says="succeeded", json_code="ESTATE")
    assert stint.state(id) == "succeeded"


# ---- wait ----


def test_job_wait_returns_when_the_job_ends(stint):
    stint.config({"t": stint.probe("hold")}, worker={"poll": "10m"})
    id = stint.enqueue("t")
    with stint.worker():
        stint.until_started(id)
        waiter = stint.start("job", "wait", id, "--json", stdout=subprocess.PIPE)
        stint.go()
        out, _ = waiter.communicate(timeout=60)
    assert waiter.returncode == 0 and b"succeeded" in out


def test_job_wait_on_a_job_that_has_ended_returns_at_once(stint):
    stint.config({"good": stint.sh("true"), "bad": stint.sh("exit 65")})
    good, bad, gone = stint.enqueue("good"), stint.enqueue("bad"), stint.enqueue("good", "{}", "--delay", "1h")
    stint("job", "cancel", gone)
    stint.work_off()
    stint("job", "wait", good)
    stint("job", "wait", bad, check=1)
    stint("job", "wait", gone, check=1)


def test_job_wait_gives_up_after_its_timeout_with_exit_5(stint):
    id = stint.enqueue("t")
    stint.refuses("job", "wait", id, "--timeout", "100ms", code=5, says=id, json_code="ETIMEOUT")


def test_job_wait_does_not_poll_in_a_tight_loop(stint):
    """What it costs to wait: hardly any system calls while nothing happens."""
    id = stint.enqueue("t")
    waiter = stint.start("job", "wait", id, stdout=subprocess.DEVNULL)
    try:
        def switches():
            with open(f"/proc/{waiter.pid}/status") as f:
                return int(next(line for line in f if line.startswith("voluntary")).split()[1])

        until(lambda: switches() > 0, "the waiter to run")
        for _ in range(3):  # three commands of ours that change nothing for it
            stint("job", "show", id)
        stint("job", "wait", id, "--timeout", "1s", check=5)  # where nothing tells of an end it looks often at first, and then ever more seldom
        before = switches()
        stint("job", "wait", id, "--timeout", "1s", check=5)
        assert switches() - before < 50
        stint("job", "cancel", id)
        assert waiter.wait(60) == 1
    finally:
        waiter.kill()
        waiter.wait()


# ---- retry and the dead letter ----


def broken(stint):
    """A type that fails for good until the file `fixed` is there."""
    stint.config({"t": stint.sh("[ -e $D/fixed ] || { echo broken >&2; exit 65; }"),
                  "u": stint.sh("[ -e $D/fixed ] || exit 65")})


def test_retry_runs_a_failed_job_again_with_a_fresh_budget_and_keeps_its_errors(stint):
    broken(stint)
    id = stint.enqueue("t")
    stint.work_off()
    before = stint.show(id)
    stint("job", "retry", id)
    job = stint.show(id)
    assert (job["state"], job["attempt"]) == ("pending", 0)
    assert job["errors"] == before["errors"] and len(job["errors"]) == 1
    (stint.dir / "fixed").touch()
    stint.work_off()
    job = stint.show(id)
    assert (job["state"], job["attempt"]) == ("succeeded", 1)
    assert len(job["attempts"]) == 2 and job["fence"] > before["fence"]


def test_a_cancelled_job_can_be_retried_and_a_waiting_or_succeeded_one_cannot(stint):
    stint.config({"t": stint.sh("true")})
    cancelled = stint.enqueue("t")
    stint("job", "cancel", cancelled)
    stint("job", "retry", cancelled)
    stint.refuses("job", "retry", cancelled, code=1, says="pending", json_code="ESTATE")
    stint.work_off()
    stint.refuses("job", "retry", cancelled, code=1, says="--replay", json_code="ESTATE")


def test_a_job_whose_key_another_live_one_holds_cannot_be_retried(stint):
    broken(stint)
    dead = stint.enqueue("t", "{}", "--key", "k")
    stint.work_off()
    gone = stint.enqueue("t", "{}", "--key", "k")
    stint("job", "cancel", gone)
    stint.enqueue("t", "{}", "--key", "k")
    for args in (["job", "retry", dead], ["job", "retry", gone], ["dead", "retry", dead]):
        stint.refuses(*args, code=1, says=["unique key", "cancel it"], json_code="ESTATE")
    assert (stint.state(dead), stint.state(gone)) == ("failed", "cancelled")


def test_replay_of_a_succeeded_job_is_a_new_job(stint):
    stint.config({"t": stint.sh("cat")})
    id = stint.enqueue("t", '{"n":1}', "--queue", "q", "--priority", "3")
    stint.work_off()
    done = stint.json("job", "retry", id, "--replay")
    new = next(job for job in stint.list_all() if job["id"] != id)
    assert new["id"] in str(done)
    shown = stint.show(new["id"])
    assert (shown["payload"], shown["queue"], shown["priority"], shown["state"]) == ({"n": 1}, "q", 3, "pending")
    assert stint.state(id) == "succeeded"


def test_dead_lists_and_shows_what_failed_and_only_that(stint):
    broken(stint)
    a, b = stint.enqueue("t"), stint.enqueue("u")
    stint.enqueue("other")
    stint.work_off()
    assert {job["id"] for job in stint.json("dead", "list")["jobs"]} == {a, b}
    assert {job["id"] for job in stint.json("dead", "list", "--type", "u")["jobs"]} == {b}
    assert stint.json("dead", "show", a)["error"]["message"].endswith("broken")
    assert a in stint("dead", "list").text


def test_dead_retry_takes_one_a_filter_or_all(stint):
    broken(stint)
    t = [stint.enqueue("t") for _ in range(3)]
    u = [stint.enqueue("u") for _ in range(3)]
    stint.work_off()
    stint("dead", "retry", t[0])
    assert [stint.state(id) for id in t + u] == ["pending"] + ["failed"] * 5
    stint("dead", "retry", "--type", "u")
    assert [stint.state(id) for id in t + u] == ["pending", "failed", "failed"] + ["pending"] * 3
    stint("dead", "retry", "--all")
    assert {stint.state(id) for id in t + u} == {"pending"}


def test_dead_retry_and_discard_without_saying_which_do_nothing(stint):
    broken(stint)
    id = stint.enqueue("t")
    stint.work_off()
    stint.refuses("dead", "retry", code=2, says="--all")
    stint.refuses("dead", "discard", code=2, says="--all")
    assert stint.state(id) == "failed"


def test_dead_discard_removes_one_a_filter_or_all(stint):
    broken(stint)
    t = [stint.enqueue("t") for _ in range(3)]
    u = [stint.enqueue("u") for _ in range(2)]
    live = stint.enqueue("other")
    stint.work_off()
    stint("dead", "discard", t[0])
    stint("dead", "discard", "--type", "u")
    assert {job["id"] for job in stint.list_all()} == {t[1], t[2], live}
    assert u[0] not in str(stint.list_all())
    stint("dead", "discard", "--all")
    assert {job["id"] for job in stint.list_all()} == {live}
    stint.refuses("dead", "discard", live, code=1, says="pending", json_code="ESTATE")


# ---- lists ----


def test_lists_go_on_where_the_last_one_ended(stint):
    ids = [job["id"] for job in stint.batch([{"type": "t"}] * 25)]
    page = stint.json("job", "list", "--limit", "10")
    assert len(page["jobs"]) == 10 and page["next"]
    assert {job["id"] for job in stint.list_all("--limit", "10")} == set(ids)
    assert stint.json("job", "list", "--limit", "100")["next"] is None


def test_lists_filter_by_state_queue_type_and_spec_hash(stint):
    stint.config({"t": stint.sh("true")})
    done = stint.enqueue("t")
    stint.work_off()
    waiting = stint.enqueue("t", '{"n":1}', "--queue", "mail.fast")
    later = stint.enqueue("img.crop", "{}", "--delay", "1h")

    def ids(*flags):
        return [job["id"] for job in stint.list_all(*flags)]

    assert ids("--state", "succeeded") == [done]
    assert ids("--state", "pending") == [waiting]
    assert ids("--state", "scheduled") == [later]
    assert ids("--queue", "mail") == [waiting]
    assert ids("--type", "img.*") == [later]
    assert ids("--spec-hash", stint.show(waiting)["spec_hash"]) == [waiting]
    assert set(ids()) == {done, waiting, later}


def test_the_golden_spec_hash_is_the_same_for_any_order_of_keys(stint):
    import json

    text = ('{"args":[1,{"nested":true}],"concurrency_key":"account:42","concurrency_limit":2,"exec":'
            '{"max_attempts":3,"timeout_seconds":900},"kwargs":{"amount":"12.34","notes":"hello","token":'
            '"123e4567-e89b-12d3-a456-426614174000"},"lock_key":"user:123","priority":5,"provenance":{"code_ref":'
            '"abc123","pip_lock_hash":"deadbeef"},"queue_name":"default","run_after":"2025-01-01T12:00:00+00:00",'
            '"takes_context":false,"task_path":"contracts.example_task","v":1}')
    turned = json.dumps(dict(reversed(json.loads(text).items())), indent=2)
    for payload in (text, turned):
        id = stint.enqueue("t", payload)
        assert stint.show(id)["spec_hash"] == "2d6721014757fa10799d528b6b15aee6c76a841b9ea74e187875f4abfcdbedd5"


def test_a_quiet_worker_says_so(stint):
    stint.config({"t": stint.sh("true")})
    with stint.worker() as worker:
        assert (worker.row["quiet"], worker.row["note"]) == (False, None)
        worker.signal(signal.SIGTSTP)
        row = until(lambda: (row := worker.row)["quiet"] and row, "the worker to be quiet")
        assert row["healthy"] is True
        assert "quiet" in stint("workers").text


def test_a_worker_is_seen_while_it_lives_and_not_after_it_stopped(stint):
    stint.config({"t": stint.sh("true")})
    with stint.worker("--name", "herbert", "--slots", "7", "--queues", "a,b") as worker:
        row = worker.row
        assert (row["name"], row["slots"], row["healthy"], row["queues"]) == ("herbert", 7, True, ["a", "b"])
        assert row["types"] == ["t"]
        assert "herbert" in stint("workers").text
        worker.signal(signal.SIGTERM)
        worker.ended(0)
    assert stint.json("workers") == {"workers": []}


@pytest.mark.long
def test_one_of_two_workers_leads_and_the_other_follows_when_it_stops(stint):
    stint.config({"t": stint.sh("true")}, worker={"lease": "2s", "renew": "500ms", "poll": "200ms"})
    with stint.worker() as first:
        until(lambda: first.row["leader"], "the first to lead")
        epoch = first.row["epoch"]
        with stint.worker() as second:
            assert not second.row["leader"]
            first.stop()
            until(lambda: second.row["leader"], "the second to lead")
            assert second.row["epoch"] > epoch
