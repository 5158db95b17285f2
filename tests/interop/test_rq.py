# SPDX-License-Identifier: Apache-2.0
"""The published rq announces runs; stint's intake runs them, and rq's own tools see the truth.

Each test has a Redis server and a store of its own.  Where a test wants to see the intake at work, the grace is an hour: nothing
else would run the job.
"""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

import pgkit  # noqa: E402
from kit import alive, once, until  # noqa: E402

STINT = os.environ.get("STINT_BIN", str(Path(__file__).resolve().parents[2] / "build" / "stint"))

PRELUDE = """
import json, os, redis, rq, sys, time, uuid
from datetime import timedelta
from rq import Queue
from rq.command import send_kill_horse_command, send_shutdown_command, send_stop_job_command
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.suspension import resume, suspend
r = redis.Redis(unix_socket_path=sys.argv[1])
q = Queue('default', connection=r)
def out(x): print(json.dumps(x))
"""


def skip(why):
    print(f"\n*** SKIPPED: {why}\n")
    pytest.skip(why)


def install_rq(venv):
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    done = subprocess.run([venv / "bin" / "pip", "install", "-q", "--disable-pip-version-check", "rq"], capture_output=True, text=True)
    if done.returncode != 0:
        skip("rq cannot be installed: is the package registry there?\n" + done.stderr[-500:])


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """A Python that has rq."""
    return once(tmp_path_factory, "rq", install_rq) / "bin" / "python"


class Redis:
    def __init__(self, top, *settings):
        self.socket, self.top, self.settings, self.process = top / "redis", top, settings, None
        self.start()

    def start(self):
        self.process = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", self.socket, "--dir", self.top, "--save", "",
                                         *self.settings], stdout=subprocess.DEVNULL)
        until(lambda: self.cli("ping") == "PONG", "Redis to answer")

    def cli(self, *args):
        return subprocess.run(["redis-cli", "-s", self.socket, *map(str, args)], capture_output=True, text=True).stdout.strip()

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def redis():
    if not shutil.which("redis-server"):
        skip("there is no redis-server: install the package redis-server")
    top = Path(tempfile.mkdtemp(prefix="stint-rq-", dir="/tmp"))  # a socket's path has at most 107 bytes
    server = Redis(top, "--appendonly", "yes", "--appendfsync", "always")
    yield server
    server.stop()
    shutil.rmtree(top)


@pytest.fixture(scope="session")
def cluster():
    pen = pgkit.Pen()
    yield pgkit.Cluster(pen)
    pen.close()


@pytest.fixture(params=["sqlite", "postgres"])
def db(request):
    """None = a SQLite file in the test's folder."""
    if request.param == "sqlite":
        return None
    schema = "rq_" + "".join(c if c.isalnum() else "_" for c in request.node.name.lower())[:50]
    return pgkit.Db(request.getfixturevalue("cluster"), schema)


class Lab:
    """A store, a Redis server, rq, and workers between them."""

    def __init__(self, top, python, redis, db):
        self.top, self.python, self.redis, self.db, self.workers = top, python, redis, db, []
        self.env = {"PATH": os.environ["PATH"], "HOME": str(top), "STINT_STORE": db.url() if db else f"sqlite:{top}/stint.db"}
        self.configure()

    def configure(self, grace="1h", slots=2, poll="200ms", lease="60s", renew="20s", intake=None, retry=None, **types):
        mock = {"builtin": "mock", "retry": retry or {"max_attempts": 1}}
        hold = {"run": ["sh", "-c", "until test -e go; do sleep 0.05; done; echo '\"held\"'"], "cwd": str(self.top)}
        (self.top / "stint.yaml").write_text(json.dumps({
            "worker": {"slots": slots, "poll": poll, "lease": lease, "renew": renew, "results_dir": str(self.top / "results")},
            "intake": {"rq": f"redis+unix://{self.redis.socket}", "queues": ["default"], "grace": grace, **(intake or {})},
            "types": {"mock": mock, "hold": hold, **types}}))

    def go(self):
        """Lets every run of type hold end."""
        (self.top / "go").touch()

    def stint(self, *args, code=0):
        done = subprocess.run([STINT, *args], cwd=self.top, env=self.env, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, (args, done)
        return json.loads(done.stdout) if "--json" in args else done.stdout

    def run(self, id, payload=0, type="mock", **flags):
        more = [x for name, value in flags.items() for x in (f"--{name}", str(value))]
        self.stint("enqueue", type, json.dumps(payload), "--id", id, *more)

    def show(self, id):
        return self.stint("job", "show", id, "--json")

    @contextlib.contextmanager
    def store_held_up(self):
        """Whoever wants to write waits, for a few seconds at most."""
        if self.db:
            with self.db.cluster.session() as psql:
                psql(f'BEGIN; LOCK TABLE "{self.db.schema}".lease')
                yield
                psql("ROLLBACK")
        else:
            file = sqlite3.connect(self.top / "stint.db", isolation_level=None)
            file.execute("BEGIN IMMEDIATE")
            yield
            file.execute("ROLLBACK")
            file.close()

    def rq(self, code):
        """Runs it with rq; what it gives to out()."""
        done = subprocess.run([self.python, "-c", PRELUDE + code, str(self.redis.socket)], capture_output=True, text=True, timeout=120,
                              cwd=self.top)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]) if done.stdout else None

    def announce(self, *runs):
        """The ids of the messages."""
        return self.rq(f"out([q.enqueue('src.worker.execute_run', x).id for x in {list(runs)!r}])")

    def status(self, id):
        return self.redis.cli("hget", f"rq:job:{id}", "status")

    def until(self, id, status):
        until(lambda: self.status(id) == status, lambda: f"{id} to be {status}, not {self.status(id)}\n{self.logs()}")

    def value(self, id):
        return self.rq(f"out(Job.fetch({id!r}, connection=r).return_value())")

    def error(self, id):
        return self.rq(f"out(Job.fetch({id!r}, connection=r).latest_result().exc_string)")

    def worker(self, *args):
        log = self.top / f"worker-{len(self.workers)}.log"
        with log.open("w") as f:
            w = subprocess.Popen([STINT, "worker", *args], cwd=self.top, env=self.env, stderr=f, stdout=f)
        w.log = log
        self.workers.append(w)
        until(lambda: "intake.ready" in log.read_text() or w.poll() is not None, lambda: f"a worker:\n{log.read_text()}")
        return w

    def logs(self):
        return "\n".join(f"{w.log}:\n{w.log.read_text()}" for w in self.workers)

    def said(self, worker, text):
        until(lambda: text in worker.log.read_text(), lambda: f"{text!r} in\n{worker.log.read_text()}")

    def stop(self, w, code=0):
        w.terminate()
        assert w.wait(60) == code, w.log.read_text()


@pytest.fixture
def lab(tmp_path, python, redis, db):
    it = Lab(tmp_path, python, redis, db)
    yield it
    for w in it.workers:
        if w.poll() is None:
            w.kill()
            w.wait()


def test_a_run_is_run_and_its_result_comes_back(lab):
    lab.run("run-1")
    lab.worker()
    [id] = lab.announce("run-1")
    lab.until(id, "finished")
    value = lab.value(id)
    assert set(value) == {"n", "mean", "std", "min", "max", "seconds"} and value["n"] == 1000
    job = lab.show("run-1")
    assert job["state"] == "succeeded" and job["attempt"] == 1
    assert json.loads(Path(job["result_ref"]).read_text()) == value
    assert lab.redis.cli("zcard", "rq:wip:default") == "0"
    assert lab.redis.cli("zcard", "rq:finished:default") == "1"
    assert lab.redis.cli("llen", "rq:queue:default:intermediate") == "0"
    assert 0 < int(lab.redis.cli("ttl", f"rq:job:{id}")) <= 500


def test_values_of_all_kinds_are_what_python_would_have_returned(lab):
    values = {"a": None, "b": "x\u00e9\n", "c": 1.5, "d": -7, "e": 2**70, "f": [1, [2, {"k": True}]], "g": {}, "h": list(range(2500)),
              "i": {str(n): n for n in range(1500)}, "j": False, "k": 2**40}
    lab.configure(slots=4, echo={"run": ["cat"]})
    for name, value in values.items():
        lab.run(name, value, type="echo")
    lab.worker()
    ids = dict(zip(values, lab.announce(*values)))
    for name in values:
        lab.until(ids[name], "finished")
    got = lab.rq(f"out({{n: Job.fetch(i, connection=r).return_value() for n, i in {ids!r}.items()}})")
    assert got == values


def test_a_result_that_is_no_json_is_what_job_show_says(lab):
    scripts = {"text": "echo no JSON", "none": "true", "bytes": "printf '\\377'", "quoted": "printf 'a \"b\\001'"}
    lab.configure(slots=4, **{name: {"run": ["sh", "-c", script]} for name, script in scripts.items()})
    for name in scripts:
        lab.run(name, type=name)
    lab.worker()
    for name, id in zip(scripts, lab.announce(*scripts)):
        lab.until(id, "finished")
        assert lab.value(id) == lab.show(name).get("result"), name
    assert [lab.show(name).get("result") for name in scripts] == ["no JSON", None, None, 'a "b\x01']


def test_json_uuid_and_keyword_are_understood(lab):
    run = "12345678-1234-5678-1234-567812345678"
    for id in (run, "by-json", "by-keyword"):
        lab.run(id)
    lab.worker()
    ids = lab.rq(f"""
j = Queue('default', connection=r, serializer=JSONSerializer)
out([q.enqueue('execute_run', uuid.UUID({run!r})).id, j.enqueue('a.b.execute_run', 'by-json').id,
     q.enqueue('m.execute_run', kwargs={{'run_id': 'by-keyword'}}).id])""")
    for id in ids:
        lab.until(id, "finished")
    assert lab.value(ids[0])["n"] == 1000 and lab.value(ids[2])["n"] == 1000
    assert lab.rq(f"out(Job.fetch({ids[1]!r}, connection=r, serializer=JSONSerializer).return_value()['n'])") == 1000


def test_the_same_run_announced_twice_is_run_once(lab):
    lab.run("run-1", 1)
    w = lab.worker()
    ids = lab.announce("run-1", "run-1")
    for id in ids:
        lab.until(id, "finished")
    [late] = lab.announce("run-1")
    lab.until(late, "finished")
    assert sorted(bool(lab.value(id)) for id in [*ids, late]) == [False, False, True]
    assert len(lab.show("run-1")["attempts"]) == 1
    assert w.log.read_text().count("Lease acquisition failed") == 2


def test_a_message_that_is_there_twice_stays_started_while_it_runs(lab):
    lab.run("run-1", type="hold")
    [id] = lab.announce("run-1")
    lab.redis.cli("rpush", "rq:queue:default", id)
    w = lab.worker()

    def refused(times):
        """It is said before RQ's side is written: that is done when the message has left the intermediate list."""
        until(lambda: w.log.read_text().count("Lease acquisition failed") == times, lab.logs)
        until(lambda: lab.redis.cli("llen", "rq:queue:default:intermediate") == "0", lab.logs)
        assert lab.status(id) == "started"

    refused(1)
    lab.redis.cli("rpush", "rq:queue:default", id)
    refused(2)
    lab.go()
    lab.until(id, "finished")
    assert lab.value(id) == "held"
    assert lab.redis.cli("zcard", "rq:scheduled:default") == "0"


@pytest.mark.long
def test_a_message_is_taken_at_once_after_an_idle_while_and_between_polls(lab):
    lab.configure(poll="60s")
    lab.worker()
    for i in range(3):
        time.sleep(2.5)  # it looks once a second
        lab.run(f"run-{i}")
        [id] = lab.announce(f"run-{i}")
        at = time.monotonic()
        lab.until(id, "finished")
        assert time.monotonic() - at < 10


def test_a_run_that_is_not_there_fails_the_message_and_says_so(lab):
    lab.run("another")
    lab.worker()
    [id] = lab.announce("nobody")
    lab.until(id, "failed")
    assert "there is no run nobody in the store" in lab.error(id)
    assert lab.redis.cli("zcard", "rq:failed:default") == "1"


def test_hostile_data_is_refused_and_never_run(lab):
    lab.run("run-1")
    lab.worker()
    ids = lab.rq("""
class Evil:
    def __reduce__(self):
        return (os.system, ('touch pwned',))
out([q.enqueue('src.worker.execute_run', Evil()).id, q.enqueue('os.system', 'touch pwned').id,
     q.enqueue('src.worker.execute_run').id])
r.hset('rq:job:torn', mapping={'data': b'\\x80\\x05\\x8c', 'origin': 'default', 'status': 'queued', 'created_at': '2025-01-01T00:00:00Z'})
r.hset('rq:job:huge', mapping={'data': os.urandom(2 << 20), 'origin': 'default', 'status': 'queued', 'created_at': '2025-01-01T00:00:00Z'})
r.rpush('rq:queue:default', 'torn', 'gone', 'huge', 'x' * 600, b'a\\0b')
""")
    for id in [*ids, "torn", "huge"]:
        lab.until(id, "failed")
    assert ".system, and nothing is ever run from a pickle" in lab.error(ids[0])
    assert "takes calls of execute_run only" in lab.error(ids[1])
    assert "no run id" in lab.error(ids[2])
    assert "ends too soon" in lab.error("torn")
    assert "larger than 1 MiB" in lab.error("huge")
    assert not (lab.top / "pwned").exists()
    until(lambda: lab.redis.cli("llen", "rq:queue:default:intermediate") == "0", "the id without a hash to be dropped")
    [good] = lab.announce("run-1")
    lab.until(good, "finished")


def test_a_failed_attempt_is_scheduled_and_the_next_one_finishes_the_message(lab):
    lab.configure(flaky={"run": ["sh", "-c", "test -e tried || { touch tried; echo no luck >&2; exit 1; }; echo '\"luck\"'"],
                         "cwd": str(lab.top), "retry": {"max_attempts": 3, "backoff": "fixed", "initial": "100ms", "jitter": 0}})
    lab.run("run-1", type="flaky")
    lab.redis.cli("set", "rq:scheduler-lock:default", "x")  # a scheduler of RQ's own: what is due is left to it
    lab.worker()
    [id] = lab.announce("run-1")
    lab.until(id, "scheduled")
    lab.redis.cli("del", "rq:scheduler-lock:default")
    lab.until(id, "finished")
    assert lab.value(id) == "luck"
    assert [a["outcome"] for a in lab.show("run-1")["attempts"]] == ["retry", "succeeded"]


def test_a_key_of_the_wrong_kind_does_not_hold_up_the_others(lab):
    lab.run("run-1")
    lab.run("run-2")
    w = lab.worker()
    id = lab.rq("j = q.enqueue('execute_run', 'run-1', at_front=True, job_id='odd') if r.set('rq:results:odd', 'text') else None; out(j.id)")
    until(lambda: lab.show("run-1")["state"] == "succeeded", lab.logs)
    lab.said(w, "intake.not_told")
    [good] = lab.announce("run-2")
    lab.until(good, "finished")
    assert id == "odd"


def test_queues_and_jobs_of_the_wrong_kind_do_not_hold_up_the_other_queues(lab):
    lab.configure(intake={"queues": ["odd", "default"]})
    lab.redis.cli("set", "rq:queue:odd", "text")
    lab.redis.cli("set", "rq:queue:odd:intermediate", "text")
    lab.redis.cli("hset", "rq:scheduled:odd", "not", "sorted")
    for id in ("text-1", "text-2"):
        lab.redis.cli("set", f"rq:job:{id}", "text")
    lab.redis.cli("rpush", "rq:queue:default", "text-1")
    lab.redis.cli("zadd", "rq:scheduled:default", 1, "text-2")
    lab.run("run-1")
    w = lab.worker()
    [id] = lab.announce("run-1")
    lab.until(id, "finished")
    lab.said(w, "intake.odd_key")
    assert "intake.away" not in w.log.read_text()
    assert lab.redis.cli("llen", "rq:queue:default:intermediate") == "0"


def sent_by(redis):
    """Bytes."""
    return int(redis.cli("info", "stats").partition("total_net_output_bytes:")[2].split()[0])


def test_of_a_message_only_its_data_is_read(lab):
    lab.run("run-1")
    [id] = lab.rq("j = q.enqueue('execute_run', 'run-1'); x = 'x' * 2**22; r.hset(j.key, mapping={'started_at': x, 'stint': x}); out([j.id])")
    before = sent_by(lab.redis)
    lab.worker()
    lab.until(id, "finished")
    assert sent_by(lab.redis) - before < 2**20


@pytest.mark.parametrize("key", ["rq:executions:{}", "rq:results:{}", "rq:finished:default", "rq:job:{}:dependents", "rq:queue:odd"])
def test_a_key_of_another_kind_beside_a_message_does_not_hold_it_up(lab, key):
    lab.run("run-1")
    [id, later] = lab.rq("j = q.enqueue('execute_run', 'run-1'); k = Queue('odd', connection=r).enqueue('f', depends_on=j); "
                         "out([j.id, k.id])")
    key = key.format(id)
    lab.redis.cli("del", key)
    lab.redis.cli("hset", key, "not", "ours")
    w = lab.worker()
    lab.until(id, "finished")
    until(lambda: lab.redis.cli("ttl", f"rq:job:{id}") != "-1", "it to be kept for a while only")
    assert lab.redis.cli("zcard", "rq:wip:default") == "0"
    if "odd" in key:
        assert lab.status(later) == "deferred" and lab.redis.cli("sismember", f"rq:job:{id}:dependents", later) == "1"
    elif "dependents" not in key:
        assert lab.status(later) == "queued"
    if "executions" not in key:
        lab.said(w, "intake.not_told")


def test_a_started_job_of_a_very_long_name_is_dropped_unread(lab):
    lab.run("run-1")
    [id] = lab.announce("run-1")
    lab.rq(f"r.zadd('rq:wip:default', {{'{id}:' + 'x' * 2**22: 1}}); out([])")
    before = sent_by(lab.redis)
    lab.worker()
    lab.until(id, "finished")
    until(lambda: lab.redis.cli("zcard", "rq:wip:default") == "0", "it to be dropped")
    assert sent_by(lab.redis) - before < 2**20


def test_ids_without_a_job_are_dropped_a_few_at_a_time(lab):
    lab.rq("r.rpush('rq:queue:default', *['no-%d' % i for i in range(20000)]); out(0)")
    lab.run("run-1")
    w = lab.worker()
    [id] = lab.announce("run-1")
    lab.until(id, "finished")
    said = [line for line in w.log.read_text().splitlines() if "intake.dropped" in line]
    assert len(said) == 20 and all("messages=1000" in line for line in said)


def test_any_result_ttl_is_taken_for_what_it_can_mean(lab):
    lab.run("run-1")
    for ttl, left in (("1e400", -1), ("5000000000", -1), ("nan", -1), ("-1", -1), ("many", 500), ("99.5", 100)):
        lab.rq(f"j = q.enqueue('execute_run', 'run-1', job_id='j'); r.hset('rq:job:j', 'result_ttl', {ttl!r}); out(0)")
        w = lab.worker("--once")
        assert w.wait(60) == 0
        assert lab.status("j") == "finished" and "intake.not_told" not in w.log.read_text()
        assert left - 10 <= int(lab.redis.cli("ttl", "rq:job:j")) <= left


def test_a_job_without_data_fails(lab):
    lab.redis.cli("hset", "rq:job:bare", "status", "queued", "origin", "default")
    lab.redis.cli("rpush", "rq:queue:default", "bare")
    lab.worker()
    lab.until("bare", "failed")


def test_a_run_that_fails_for_good_fails_the_message_with_its_error(lab):
    lab.run("run-1", {"seconds": 0, "fail": "the model diverged"})
    lab.worker()
    [id] = lab.announce("run-1")
    lab.until(id, "failed")
    assert "app_error: the model diverged" in lab.error(id)
    assert lab.show("run-1")["state"] == "failed"


def test_what_nobody_announces_is_claimed_after_the_grace(lab):
    lab.configure(grace="1s")
    lab.run("run-1")
    lab.run("run-2")
    lab.worker()
    until(lambda: lab.show("run-1")["state"] == "succeeded", lab.logs)
    assert Path(lab.show("run-1")["result_ref"]).exists()
    until(lambda: lab.show("run-2")["state"] == "succeeded", lab.logs)
    [id] = lab.announce("run-2")
    lab.until(id, "finished")
    assert lab.value(id) is None


def test_other_queues_are_served_beside_the_announced_ones(lab):
    lab.configure()
    config = json.loads((lab.top / "stint.yaml").read_text())
    config["worker"]["queues"] = ["other", "default"]
    (lab.top / "stint.yaml").write_text(json.dumps(config))
    lab.run("mine", queue="other")
    lab.run("announced")
    lab.worker()
    until(lambda: lab.show("mine")["state"] == "succeeded", lab.logs)
    assert lab.show("announced")["state"] == "pending"
    [id] = lab.announce("announced")
    lab.until(id, "finished")


def test_slots_that_were_kept_for_messages_are_free_again_when_none_came(lab):
    lab.configure(grace="1s")
    lab.worker()
    lab.redis.cli("client", "pause", "3000")  # as soon as the worker asks for messages it keeps its slots for them until then
    lab.run("run-1")
    until(lambda: lab.show("run-1")["state"] == "succeeded", lab.logs)


def configure_slow(lab, grace):
    lab.configure(lease="2s", renew="500ms", grace=grace,
                  slow={"run": ["sh", "-c", "echo $STINT_ATTEMPT >> attempts; test $STINT_ATTEMPT != 1 || sleep 600; echo 2"],
                        "cwd": str(lab.top), "retry": {"max_attempts": 3, "backoff": "fixed", "initial": "100ms"}})


def test_a_killed_workers_run_is_run_once_more(lab):
    configure_slow(lab, grace="1h")  # however late the message is, the first attempt is its
    lab.run("run-1", type="slow")
    first = lab.worker()
    [id] = lab.announce("run-1")
    until(lambda: (lab.top / "attempts").exists(), lab.logs)
    lab.until(id, "started")
    first.kill()
    first.wait()
    # as if the minute and a half had passed after which a worker that says nothing is taken for lost
    for member in lab.redis.cli("zrange", "rq:wip:default", 0, -1).splitlines():
        lab.redis.cli("zadd", "rq:wip:default", 1, member)
    configure_slow(lab, grace="1s")
    second = lab.worker()
    until(lambda: lab.show("run-1")["state"] == "succeeded", lab.logs)
    job = lab.show("run-1")
    assert job["attempt"] == 2 and (lab.top / "attempts").read_text() == "1\n2\n"
    lab.until(id, "finished")
    lab.stop(second)


def test_a_message_of_a_worker_that_fell_silent_before_it_told_rq_of_the_start_waits_for_the_run(lab):
    configure_slow(lab, grace="1h")
    lab.run("run-1", type="slow")
    first = lab.worker()
    with lab.store_held_up():
        [id] = lab.announce("run-1")
        until(lambda: lab.redis.cli("llen", "rq:queue:default:intermediate") == "1", lab.logs)
        lab.redis.stop()
    until(lambda: (lab.top / "attempts").exists(), lab.logs)
    first.send_signal(signal.SIGSTOP)
    lab.redis.start()
    assert lab.status(id) == "queued"
    lab.redis.cli("set", f"rq:queue:default:intermediate:first_seen:{id}", "1000")  # a minute later
    lab.worker()
    lab.until(id, "finished")
    assert lab.value(id) == 2 and lab.show("run-1")["attempt"] == 2


@pytest.mark.long
def test_a_late_outcome_is_refused_and_does_not_touch_the_message(lab):
    configure_slow(lab, grace="1h")  # however late the message is, the first attempt is its
    lab.run("run-1", type="slow")
    first = lab.worker()
    [id] = lab.announce("run-1")
    lab.until(id, "started")
    until(lambda: (lab.top / "attempts").exists(), lab.logs)
    first.send_signal(signal.SIGSTOP)
    configure_slow(lab, grace="1s")
    lab.worker()
    until(lambda: lab.show("run-1")["state"] == "succeeded", lab.logs)
    first.send_signal(signal.SIGCONT)
    lab.until(id, "finished")
    job = lab.show("run-1")
    assert job["state"] == "succeeded" and job["attempt"] == 2 and job["fence"] > job["attempts"][0]["fence"]
    assert Path(job["result_ref"]).read_text() == "2"
    assert lab.redis.cli("zcard", "rq:wip:default") == "0"
    assert alive(first.pid)


def test_a_worker_that_was_given_up_changes_nothing_about_the_message(lab):
    configure_slow(lab, grace="1h")
    lab.run("run-1", type="slow")
    first = lab.worker()
    [id] = lab.announce("run-1")
    lab.until(id, "started")
    until(lambda: (lab.top / "attempts").exists(), lab.logs)
    first.send_signal(signal.SIGSTOP)
    [member] = lab.redis.cli("zrange", "rq:wip:default", 0, -1).splitlines()
    lab.redis.cli("zadd", "rq:wip:default", 1, member)  # it has been silent for long
    lab.worker()  # gives the message back to the queue, takes it, and runs the second attempt when the lease is over
    lab.until(id, "finished")
    first.send_signal(signal.SIGCONT)
    lab.stop(first)  # has told Redis what it had to tell
    assert lab.status(id) == "finished" and lab.value(id) == 2
    assert lab.redis.cli("zcard", "rq:scheduled:default") == "0"
    assert (lab.top / "attempts").read_text() == "1\n2\n"


def test_suspended_means_that_nothing_is_taken(lab):
    lab.run("run-1")
    w = lab.worker()
    lab.rq("suspend(r)")
    lab.said(w, "intake.suspended")
    [id] = lab.announce("run-1")
    until(lambda: lab.rq("out([w.get_state() for w in rq.Worker.all(connection=r)])") == ["suspended"], lab.logs)
    assert lab.status(id) == "queued"
    lab.rq("resume(r)")
    lab.until(id, "finished")


def test_a_run_that_ends_while_rq_is_suspended_leaves_a_suspended_worker(lab):
    lab.run("run-1", type="hold")
    w = lab.worker()
    [id] = lab.announce("run-1")
    lab.until(id, "started")
    lab.rq("suspend(r)")
    lab.said(w, "intake.suspended")
    lab.go()
    lab.until(id, "finished")
    until(lambda: lab.rq("w = rq.Worker.all(connection=r)[0]; out([w.get_state(), w.get_current_job_id()])") == ["suspended", None], lab.logs)


def test_a_worker_is_busy_as_long_as_it_has_a_run_suspended_or_not(lab):
    lab.run("run-1", type="hold")
    lab.run("run-2", type="hold")
    w = lab.worker()

    def shown():
        return lab.rq("w = rq.Worker.all(connection=r)[0]; out([w.get_state(), w.get_current_job_id()])")

    lab.rq("suspend(r)")
    lab.said(w, "intake.suspended")
    [id] = lab.announce("run-1")
    lab.rq("resume(r)")
    lab.said(w, "intake.resumed")
    lab.until(id, "started")
    assert shown() == ["busy", id]
    lab.rq("suspend(r)")
    until(lambda: w.log.read_text().count("intake.suspended") == 2, lab.logs)
    assert shown() == ["busy", id]
    lab.redis.stop()
    lab.said(w, "intake.away")
    shutil.rmtree(lab.redis.top / "appendonlydir", ignore_errors=True)
    lab.redis.start()
    until(lambda: lab.redis.cli("scard", "rq:workers") == "1", lab.logs, 15)
    until(lambda: shown() == ["busy", id], lab.logs)
    lab.go()


def test_stop_job_stops_the_run(lab):
    lab.run("run-1", 600)
    lab.run("run-2", 600)
    lab.worker()
    ids = lab.announce("run-1", "run-2")
    for id in ids:
        lab.until(id, "started")
    lab.rq(f"send_stop_job_command(r, {ids[0]!r})")
    lab.until(ids[0], "stopped")
    assert lab.show("run-1")["state"] == "cancelled" and lab.show("run-2")["state"] == "running"
    lab.rq("send_kill_horse_command(r, rq.Worker.all(connection=r)[0].name)")
    lab.until(ids[1], "stopped")
    assert lab.show("run-2")["state"] == "cancelled"


def test_shutdown_ends_the_worker_and_its_message_goes_back(lab):
    lab.configure()
    config = json.loads((lab.top / "stint.yaml").read_text())
    config["worker"]["shutdown_timeout"] = "100ms"
    (lab.top / "stint.yaml").write_text(json.dumps(config))
    lab.run("run-1", 600)
    w = lab.worker()
    [id] = lab.announce("run-1")
    lab.until(id, "started")
    lab.rq("send_shutdown_command(r, rq.Worker.all(connection=r)[0].name)")
    assert w.wait(60) == 0, w.log.read_text()
    assert lab.status(id) == "queued" and lab.redis.cli("lrange", "rq:queue:default", 0, -1) == id
    job = lab.show("run-1")
    assert job["state"] == "pending" and job["attempt"] == 0
    assert lab.rq("out(len(rq.Worker.all(connection=r)))") == 0


def test_rq_info_shows_the_worker_and_what_it_does(lab):
    lab.run("run-1", 600)
    w = lab.worker()
    info = [lab.python.parent / "rq", "info", "-u", f"unix://{lab.redis.socket}"]

    def shown(text):
        out = subprocess.run(info, capture_output=True, text=True).stdout
        return text in out
    until(lambda: shown("idle default. jobs: 0 finished, 0 failed"), "an idle worker")
    [id] = lab.announce("run-1")
    until(lambda: shown("busy default."), "a busy worker")
    until(lambda: shown("1 executing"), "an executing job")
    one = lab.rq("w = rq.Worker.all(connection=r)[0]; out([w.name, w.pid, w.ip_address, w.get_current_job_id()])")
    assert one == [lab.stint("workers", "--json")["workers"][0]["id"], w.pid, "unknown", id]
    assert lab.rq(f"out(len(Job.fetch({id!r}, connection=r).get_executions()))") == 1


def test_more_messages_than_slots_wait_in_their_queue(lab):
    names = [f"run-{n}" for n in range(5)]
    for name in names:
        lab.run(name, 600)
    lab.worker()
    ids = lab.announce(*names)
    for id in ids[:2]:
        lab.until(id, "started")
    assert [lab.status(id) for id in ids[2:]] == ["queued"] * 3
    assert lab.redis.cli("llen", "rq:queue:default") == "3"
    lab.rq(f"send_stop_job_command(r, {ids[0]!r})")
    lab.until(ids[2], "started")


def test_scheduled_and_dependent_jobs_need_no_worker_of_rqs_own(lab):
    for name in ("first", "second", "later"):
        lab.run(name)
    lab.worker()
    ids = lab.rq("""
a = q.enqueue_in(timedelta(hours=1), 'execute_run', 'first')
b = q.enqueue('execute_run', 'second', depends_on=a)
c = q.enqueue_in(timedelta(seconds=1), 'execute_run', 'later')
out([a.id, b.id, c.id])""")
    lab.until(ids[2], "finished")
    assert lab.status(ids[1]) == "deferred"
    lab.redis.cli("zadd", "rq:scheduled:default", 1, ids[0])  # its time has come
    for id in ids:
        lab.until(id, "finished")
    assert lab.value(ids[1])["n"] == 1000


def test_what_depends_on_a_run_is_released_as_rq_does_it(lab):
    lab.run("bad", {"seconds": 0, "fail": "no"})
    lab.run("stopped", 600)
    for name in ("after-bad", "strict", "after-stopped"):
        lab.run(name)
    lab.worker()
    ids = lab.rq("""
from rq.job import Dependency
def after(run, job, **how): return q.enqueue('execute_run', run, depends_on=Dependency(jobs=[job], **how)).id
far = timedelta(hours=1)
bad, stopped = q.enqueue_in(far, 'execute_run', 'bad'), q.enqueue_in(far, 'execute_run', 'stopped')
out([bad.id, stopped.id, after('after-bad', bad, allow_failure=True), after('strict', bad),
     after('after-stopped', stopped, allow_failure=True)])""")
    bad, stopped, after_bad, strict, after_stopped = ids
    for id in (bad, stopped):
        lab.redis.cli("zadd", "rq:scheduled:default", 1, id)  # their time has come
    lab.until(bad, "failed")
    lab.until(after_bad, "finished")
    lab.until(stopped, "started")
    lab.rq(f"send_stop_job_command(r, {stopped!r})")
    lab.until(stopped, "stopped")
    assert [lab.status(id) for id in (strict, after_stopped)] == ["deferred"] * 2


def test_messages_of_a_type_that_is_quarantined_hold_up_no_others(lab):
    lab.configure(bad={"run": ["sh", "-c", "kill -9 $$"], "retry": {"max_attempts": 1}})
    bad = [f"bad-{n}" for n in range(12)]
    for name in bad:
        lab.run(name, type="bad")
    lab.run("good")
    *ids, good = lab.announce(*bad, "good")
    lab.redis.cli("set", "rq:scheduler-lock:default", "x")  # what is put off stays so
    w = lab.worker()
    lab.said(w, "type.quarantined")
    lab.until(good, "finished")
    until(lambda: {lab.status(id) for id in ids} == {"failed", "scheduled"}, lab.logs)
    assert lab.redis.cli("llen", "rq:queue:default:intermediate") == "0"
    left = [name for name, id in zip(bad, ids) if lab.status(id) == "scheduled"]
    assert {(job["state"], job["attempt"]) for job in map(lab.show, left)} == {("pending", 0)}


def test_queues_are_taken_from_in_their_order(lab):
    lab.configure(slots=1, intake={"queues": ["high", "default"]}, note={"run": ["sh", "-c", "echo $STINT_JOB_ID >> order"], "cwd": str(lab.top)})
    for name in ("a", "b", "c"):
        lab.run(name, type="note")
    ids = lab.announce("a", "b") + lab.rq("out([Queue('high', connection=r).enqueue('execute_run', 'c').id])")
    lab.worker()
    for id in ids:
        lab.until(id, "finished")
    assert (lab.top / "order").read_text() == "c\na\nb\n"


def test_once_ends_when_the_queues_are_empty(lab):
    names = [f"run-{n}" for n in range(20)]
    for name in names:
        lab.run(name)
    ids = lab.announce(*names)
    w = lab.worker("--once")
    assert w.wait(60) == 0, w.log.read_text()
    assert [lab.status(id) for id in ids] == ["finished"] * 20


def test_a_message_that_a_dead_worker_took_comes_again(lab):
    lab.run("run-1")
    [id] = lab.announce("run-1")
    lab.redis.cli("lmove", "rq:queue:default", "rq:queue:default:intermediate", "left", "right")
    lab.redis.cli("set", f"rq:queue:default:intermediate:first_seen:{id}", "1000")
    lab.worker()
    lab.until(id, "finished")
    assert lab.value(id)["n"] == 1000


def test_what_others_left_started_does_not_hold_up_what_is_ours(lab):
    """More than is looked at in one go, before ours: calls of other functions, jobs that are gone, and a key that is no job."""
    lab.run("run-1")
    lab.rq("""
q.enqueue('src.worker.execute_run', 'run-1', job_id='mine')
for i in range(120):
    q.enqueue('other.thing', i, job_id='other-%d' % i)
r.delete('rq:queue:default')
r.hset('rq:job:mine', mapping={'status': 'started', 'started_at': '2025-01-01T00:00:00Z'})
r.set('rq:job:text', 'text')
r.zadd('rq:wip:default', {'text:e': 1, 'mine:e': 2, **{'other-%d:e' % i: 1 for i in range(120)}, **{'gone-%d:e' % i: 1 for i in range(120)}})
out(0)""")
    w = lab.worker()
    lab.until("mine", "finished")
    assert lab.redis.cli("zcard", "rq:wip:default") == "121"
    assert "event=intake.recovered messages=1" in w.log.read_text()
    assert "intake.odd_key" not in w.log.read_text()


def test_redis_may_go_and_come_back_while_a_run_runs(lab):
    lab.run("run-1", type="hold")
    lab.run("run-2")
    w = lab.worker()
    [id] = lab.announce("run-1")
    lab.until(id, "started")
    lab.redis.stop()
    lab.go()
    until(lambda: lab.show("run-1")["state"] == "succeeded", lab.logs)
    lab.said(w, "intake.away")
    lab.redis.start()
    lab.until(id, "finished")
    assert lab.value(id) == "held"
    [more] = lab.announce("run-2")
    lab.until(more, "finished")
    assert "intake.polling" not in w.log.read_text(), "it listens again"


def test_a_start_that_redis_did_not_hear_of_is_told_when_it_is_back(lab):
    lab.run("run-1", type="hold")
    lab.worker()
    with lab.store_held_up():
        [id] = lab.announce("run-1")
        until(lambda: lab.redis.cli("llen", "rq:queue:default:intermediate") == "1", lab.logs)
        lab.redis.stop()
    until(lambda: lab.show("run-1")["state"] == "running", lab.logs)
    lab.redis.start()
    lab.until(id, "started")
    assert lab.redis.cli("llen", "rq:queue:default:intermediate") == "0"
    lab.go()
    lab.until(id, "finished")
    assert lab.value(id) == "held"


@pytest.mark.long
def test_an_end_without_redis_waits_and_does_not_spin(lab):
    lab.run("run-1", 600)
    w = lab.worker()
    [id] = lab.announce("run-1")
    lab.until(id, "started")
    lab.redis.stop()
    lab.said(w, "intake.away")
    w.terminate()
    _, status, used = os.wait4(w.pid, 0)
    w.returncode = os.waitstatus_to_exitcode(status)
    assert used.ru_utime + used.ru_stime < 1.5, lab.logs()
    assert lab.show("run-1")["state"] == "pending"


@pytest.mark.long
def test_a_worker_that_redis_has_forgotten_registers_again(lab):
    lab.run("run-1", type="hold")
    w = lab.worker()
    [id] = lab.announce("run-1")
    lab.until(id, "started")
    lab.redis.cli("flushall")
    lab.go()
    until(lambda: lab.show("run-1")["state"] == "succeeded", lab.logs)
    lab.said(w, "intake.forgotten")
    until(lambda: lab.redis.cli("scard", "rq:workers") == "1", lab.logs)
    lab.run("run-2")
    [id] = lab.announce("run-2")
    lab.until(id, "finished")


def test_a_redis_that_comes_back_empty_knows_the_worker_at_once(lab):
    w = lab.worker()
    lab.redis.stop()
    lab.said(w, "intake.away")
    shutil.rmtree(lab.redis.top / "appendonlydir", ignore_errors=True)
    lab.redis.start()
    until(lambda: lab.redis.cli("scard", "rq:workers") == "1", lab.logs, 15)


def test_explain_and_doctor_know_of_the_intake(lab):
    lab.run("run-1")
    assert "announced" in [reason["code"] for reason in lab.stint("explain", "run-1", "--json")["reasons"]]
    assert "its queue is announced by RQ" in lab.stint("explain", "run-1")
    assert "answers" in lab.stint("doctor")
    lab.rq("suspend(r); out(0)")
    assert "RQ is suspended" in lab.stint("doctor")
    lab.redis.stop()
    assert "RQ's messages are not taken" in lab.stint("doctor", "--store-timeout", "1s")


def test_doctor_says_why_the_intake_would_take_nothing(lab):
    def doctor():
        done = lab.stint("doctor", "--json")
        return [f["what"] for f in done["findings"] if f["area"] == "intake" and f["severity"] != "ok" and f["remedy"]]

    assert doctor() == []
    lab.redis.cli("config", "set", "maxmemory", "1")
    assert "has used up its maxmemory" in doctor()[0]
    lab.redis.cli("config", "set", "maxmemory-policy", "allkeys-lru")
    lab.redis.cli("config", "set", "maxmemory", "200mb")
    assert "deletes messages when memory is short" in doctor()[0]
    lab.redis.cli("config", "set", "maxmemory", "0")
    lab.redis.cli("set", "rq:queue:default", "x")
    assert "rq:queue:default is a string and no list" in doctor()[0]
    lab.redis.cli("del", "rq:queue:default")
    lab.redis.cli("replicaof", "127.0.0.1", "1")
    assert "READONLY" in doctor()[0]
    lab.redis.cli("replicaof", "no", "one")
    lab.redis.cli("acl", "setuser", "few", "on", ">p", "~rq:*", "+@read")
    lab.configure(intake={"rq": f"redis+unix://few:p@{lab.redis.socket}"})
    assert "NOPERM" in doctor()[0]
    assert "RQ's stop commands are not heard" in doctor()[1]


def test_the_rights_that_doctor_proposes_for_the_intake_are_enough(lab):
    lab.redis.cli("acl", "setuser", "few", "on", ">p", "~rq:*", "resetchannels", "+@all", "-client|tracking")
    lab.configure(intake={"rq": f"redis+unix://few:p@{lab.redis.socket}"})
    [hit] = [f for f in lab.stint("doctor", "--json")["findings"] if f["area"] == "intake"]
    lab.run("run-1", 60)
    w = lab.worker()
    lab.said(w, "intake.polling")
    lab.stop(w)
    lab.redis.cli("acl", "deluser", "few")
    lab.redis.cli("acl", "log", "reset")
    words = hit["remedy"].split()
    lab.redis.cli("acl", "setuser", "few", "on", ">p", *words[words.index("NAME") + 1:])
    w = lab.worker()
    [id] = lab.announce("run-1")
    lab.until(id, "started")
    lab.rq(f"send_stop_job_command(r, {id!r}); out(0)")
    lab.until(id, "stopped")
    lab.stop(w)
    assert "answers" in lab.stint("doctor") and "intake.polling" not in w.log.read_text()
    assert lab.redis.cli("acl", "log") == ""  # nothing was asked for in vain


def test_a_paused_queue_keeps_its_messages_for_later(lab):
    lab.run("run-1")
    lab.stint("queue", "pause", "default")
    lab.worker()
    [id] = lab.announce("run-1")
    lab.until(id, "scheduled")
    lab.stint("queue", "resume", "default")
    lab.redis.cli("zadd", "rq:scheduled:default", 1, id)  # its time has come
    lab.until(id, "finished")


def test_a_parent_of_an_announced_queue_is_refused(lab):
    lab.configure(intake={"queues": ["mail.high"]})
    config = json.loads((lab.top / "stint.yaml").read_text())
    config["worker"]["queues"] = ["mail"]
    (lab.top / "stint.yaml").write_text(json.dumps(config))
    done = subprocess.run([STINT, "worker"], cwd=lab.top, env=lab.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "mail.high of intake.queues" in done.stderr, done


def test_an_intake_in_front_of_redis_itself_is_refused(lab):
    lab.env["STINT_STORE"] = f"redis+unix://{lab.redis.socket}"
    done = subprocess.run([STINT, "worker"], cwd=lab.top, env=lab.env, capture_output=True, text=True, timeout=60)
    assert done.returncode in (2, 4) and ("intake" in done.stderr or "kind" in done.stderr), done
