# SPDX-License-Identifier: Apache-2.0
"""Children that take jobs by lines, through the whole program."""

import signal

import pytest

from kit import alive, until

CHILD = """
import json, os, sys, time
d = os.environ["D"]
print("warming up")
print(json.dumps({"status": "ready", "cancel": True}), flush=True)
open(f"{d}/pid.{os.getpid()}", "w").close()
for line in sys.stdin:
    r = json.loads(line)
    if r.get("cancel"):
        print(json.dumps({"task_id": r["task_id"], "error": "cancelled"}), flush=True)
        continue
    p = r["payload"]
    if p == "die":
        os._exit(3)
    if p == "hold":
        print(json.dumps({"task_id": r["task_id"], "progress": {"at": 1}}), flush=True)
        continue
    if p == "permanent":
        a = {"error": "no use"}
    elif p == "again" and r["attempt"] == 1:
        a = {"error": "not yet", "retry": True, "retry_after": 0.1}
    else:
        a = {"result": {"pid": os.getpid(), "attempt": r["attempt"], "payload": p}, "error": None}
    print("noise {not json")
    print(json.dumps({"task_id": r["task_id"], **a}), flush=True)
"""


@pytest.fixture
def child(stint):
    path = stint.dir / "child.py"
    path.write_text(CHILD)

    def conf(**more):
        return {"run": ["python3", str(path)], "env": {"D": str(stint.dir)}, "mode": "resident", "grace": "1s", **more}
    return conf


def test_one_child_serves_many_jobs_and_says_noise_without_harm(stint, child):
    stint.config({"t": child(max_in_flight=4)})
    ids = [stint.enqueue("t", str(i)) for i in range(20)]
    stint("worker", "--once")
    results = [stint.json("job", "show", id)["result"] for id in ids]
    assert [r["payload"] for r in results] == list(range(20))
    assert len({r["pid"] for r in results}) == 1


def test_the_payload_goes_out_and_the_result_comes_back_byte_for_byte(stint):
    path = stint.dir / "cat.py"
    path.write_text('import sys,json\nprint(\'{"status":"ready"}\',flush=True)\n'
                    "for l in sys.stdin:\n"
                    "  i=l.index('\"payload\":')+10; j=l.index(',\"retry_count\"')\n"
                    "  t=json.loads(l)['task_id']\n"
                    "  print('{\"task_id\":\"%s\",\"result\":%s}' % (t, l[i:j]), flush=True)\n")
    stint.config({"t": {"run": ["python3", str(path)], "mode": "resident"}})
    payload = '{"b":1.10,"a":123456789012345678901234567890,"a":9223372036854775807,"s":"\\ud800"}'
    id = stint.enqueue("t", payload)
    stint("worker", "--once")
    assert payload.encode() in stint("job", "show", id, "--json").out
    assert b'"result":' + payload.encode() in stint("job", "show", id, "--json").out


def test_an_error_is_permanent_unless_it_says_retry(stint, child):
    stint.config({"t": child()})
    bad, again = stint.enqueue("t", '"permanent"'), stint.enqueue("t", '"again"')
    with stint.worker():
        job = stint.until_state(bad, "failed")
        assert (job["attempt"], job["error"]["kind"]) == (1, "app_error")
        assert stint.until_state(again, "succeeded")["attempt"] == 2


def test_a_child_that_dies_fails_what_it_had_and_is_replaced(stint, child):
    stint.config({"t": child()})
    bad = stint.enqueue("t", '"die"', "--max-attempts", "1")
    with stint.worker():
        job = stint.until_state(bad, "failed")
        assert job["error"]["kind"] == "child_crashed" and job["attempts"][0]["exit_code"] == 3
        assert stint.until_state(stint.enqueue("t", "1"), "succeeded")["result"]["payload"] == 1


def reason(stint, id):
    (found,) = stint.json("explain", id)["reasons"]
    return found["code"], found["text"]


def test_a_parked_type_makes_the_worker_unhealthy_and_explain_says_so(stint, child):
    stint.config({"pic": child(on_child_crash="park"), "pic.small": stint.sh("true"), "u": stint.sh("true")})
    bad = stint.enqueue("pic", '"die"')
    with stint.worker() as worker:
        stint.until_state(bad, "failed")
        until(lambda: worker.row["healthy"] is False, "the worker to say that it is not well")
        assert worker.row["note"].startswith("cannot run pic - a child crashed"), worker.row
        waiting = stint.enqueue("pic", "1")
        code, text = reason(stint, waiting)
        assert code == "workers_unhealthy" and "cannot run pic - a child crashed" in text
        assert stint.json("job", "show", waiting)["state"] == "pending"
        for other in "u", "pic.small":  # other types go on, and nothing is said against them
            assert stint.until_state(stint.enqueue(other), "succeeded")
            worker.signal(signal.SIGSTOP)
            assert reason(stint, stint.enqueue(other))[0] == "soon"
            worker.signal(signal.SIGCONT)


@pytest.mark.long
def test_a_type_whose_children_keep_crashing_is_named(stint):
    stint.config({"bad": stint.sh("echo no model >&2; exit 3", mode="resident"), "u": stint.sh("true")})
    id = stint.enqueue("bad")
    with stint.worker() as worker:
        until(lambda: worker.row["healthy"] is False, "the breaker to open", 120)
        assert worker.row["note"].startswith("cannot run bad - 5 crashes in 10m"), worker.row
        assert "no model" in worker.row["note"]
        job = stint.until_state(id, "pending")
        assert job["attempt"] == 0
        assert reason(stint, id)[0] == "workers_unhealthy"
        assert stint.until_state(stint.enqueue("u"), "succeeded")


def test_progress_is_seen_while_it_runs_and_a_cancel_line_ends_it(stint, child):
    stint.config({"t": child()}, worker={"lease": "2s", "renew": "500ms"})
    id = stint.enqueue("t", '"hold"')
    with stint.worker():
        until(lambda: stint.json("job", "show", id)["progress"] == {"at": 1}, "its progress")
        stint("job", "cancel", id)
        stint.until_state(id, "cancelled")
        pids = [int(p.name.split(".")[1]) for p in stint.dir.glob("pid.*")]
        assert any(alive(p) for p in pids)  # the child lives on: it understood


def test_children_are_gone_after_kill_9_of_their_worker(stint, child):
    stint.config({"t": child(processes=2)})
    id = stint.enqueue("t", "1")
    with stint.worker() as worker:
        stint.until_state(id, "succeeded")
        pids = [int(p.name.split(".")[1]) for p in stint.dir.glob("pid.*")]
        worker.kill()
        until(lambda: not any(alive(p) for p in pids), "its children to be gone")


def test_lines_mode_starts_a_fresh_child_for_every_job(stint, child):
    stint.config({"t": {**child(), "mode": "oneshot-lines"}})
    ids = [stint.enqueue("t", str(i)) for i in range(3)]
    stint("worker", "--once")
    assert len({stint.json("job", "show", id)["result"]["pid"] for id in ids}) == 3


def test_a_type_whose_attempts_are_killed_again_and_again_is_quarantined(stint):
    stint.config({"t": {**stint.sh("kill -9 $$"), "retry": {"max_attempts": 1}}})
    stint.batch([{"type": "t"}] * 8)
    with stint.worker("--slots", "1") as worker:
        worker.said("type.quarantined")
        until(lambda: worker.row["healthy"] is False, "the worker to say that it is not well")
        assert worker.row["note"].startswith("cannot run t - quarantined for 10m: 5 attempts in a row"), worker.row
        waiting = stint.json("job", "list", "--state", "pending", "--limit", "1")["jobs"][0]["id"]
        assert reason(stint, waiting)[0] == "workers_unhealthy"
        # what was fetched ahead is given back
        until(lambda: stint.counts() == {"failed": 5, "pending": 3}, lambda: f"5 failed and 3 to wait: {stint.counts()}")
        worker.signal(signal.SIGTERM)
        worker.ended(0)


@pytest.mark.parametrize("mode", ["resident", "oneshot-lines"])
def test_a_stop_does_not_wait_for_children_that_never_get_ready(stint, mode):
    conf = stint.sh(f"echo $$ > {stint.dir}/pid.tmp; mv {stint.dir}/pid.tmp {stint.dir}/pid; exec sleep 1000",
                    mode=mode, startup_timeout="1h")
    stint.config({"t": conf}, worker={"shutdown_timeout": "1h"})
    id = stint.enqueue("t")
    with stint.worker() as worker:
        until((stint.dir / "pid").exists, "the child to be there")
        worker.signal(signal.SIGTERM)
        worker.ended(0)
    job = stint.json("job", "show", id)
    assert (job["state"], job["attempt"]) == ("pending", 0)
    assert not alive(int((stint.dir / "pid").read_text()))
