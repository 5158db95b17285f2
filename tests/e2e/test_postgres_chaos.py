# SPDX-License-Identifier: Apache-2.0
"""Things go wrong while jobs are added and run: nothing is lost, nothing ends twice, and soon all is as before.

A producer adds jobs all the time; what it was told is there must be run.  Every run writes "id attempt fence" into a ledger.
"As before" means: the backlog is gone and new jobs are run as they come, 10 seconds after the trouble is over.
"""

import collections
import contextlib
import json
import math
import re
import signal
import threading
import time
import uuid
from pathlib import Path

import pytest

from kit import alive, until
from pgkit import Cluster, Db, Proxy, SqlError, url_of

STEADY = {"poll": "500ms", "lease": "30s", "renew": "10s", "slots": 4}  # nobody loses a lease
SHORT = {"poll": "500ms", "lease": "2s", "renew": "500ms", "slots": 4}
SOON = 10  # seconds


class Load:
    """Adds jobs until it is stopped.  A batch whose fate is not known is repeated with its ids, as a user would."""

    SIZE = 4

    def __init__(self, stint, store=None):
        self.stint, self.store = stint, store
        self.acked, self.codes, self.error = set(), collections.Counter(), None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def ids(self, n):
        """Some of our own choosing, some that carry the time."""
        if n % 2:
            return [f"job-{n}-{k}" for k in range(self.SIZE)]
        bits = [(int(time.time() * 1000) << 80) | (7 << 76) | (2 << 62) | (uuid.uuid4().int & (1 << 62) - 1)
                for _ in range(self.SIZE)]
        return [str(uuid.UUID(int=b)) for b in bits]

    def run(self):
        try:
            for n in range(1 << 30):
                self.add(self.ids(n))
                if self.over.wait(0.05):
                    return
        except Exception as why:  # told by stop()
            self.error = why

    def add(self, ids):
        lines = "".join(json.dumps({"type": "t", "id": id}) + "\n" for id in ids)
        flags = ["--store", self.store] if self.store else []
        deadline = time.monotonic() + 60
        while True:
            done = self.stint.run("enqueue", "--batch", "-", "--json", "--store-timeout", "2s", *flags, input=lines)
            self.codes[done.code] += 1
            if done.code == 0:
                self.acked.update(ids)
                return
            assert done.code in (4, 6) and done.error["code"] in ("EAGAIN", "EUNKNOWN", "ESTORE"), done
            assert time.monotonic() < deadline, f"the store does not come back: {done}"
            time.sleep(0.1)

    def __enter__(self):
        self.thread.start()
        return self

    def stop(self):
        self.over.set()
        self.thread.join(90)
        assert not self.thread.is_alive(), "the producer hangs"
        if self.error:
            raise self.error

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(90)


class Book:
    """The ledger: who has run."""

    def __init__(self, stint):
        self.path = stint.dir / "ledger"

    def runs(self):
        """(id, attempt, fence) of every run."""
        text = self.path.read_text() if self.path.exists() else ""
        return [tuple(line.split()) for line in text.splitlines()]

    def ids(self):
        return {run[0] for run in self.runs()}


class Trial:
    """A store, workers, a producer, and what must be true of them."""

    def __init__(self, stint, pg, worker=STEADY, **conf):
        self.stint, self.pg, self.book = stint, pg, Book(stint)
        stint.config({"t": stint.probe("ledger", self.book.path, retry={"initial": "1ms", "max_attempts": 0}), **conf},
                     worker=worker)
        stint("migrate", "up")

    def warm_up(self, load):
        self.goes_on(load, "the first jobs to be run", 60)

    def goes_on(self, load, what="all to be as before", seconds=SOON):
        """The backlog goes, and new jobs are run as they come."""
        goal = len(load.acked) + 5 * load.SIZE

        def fine():
            ids = self.book.ids()
            return len(ids) >= goal and len(load.acked - ids) <= 4 * load.SIZE

        until(fine, lambda: f"{what}: {len(load.acked)} acknowledged ({dict(load.codes)}), {len(self.book.ids())} of {goal} "
              f"run\n{self.logs()}", seconds)

    def logs(self):
        return "\n".join(f"--- {w.log_path.name} {'' if alive(w.pid) else '(gone)'}\n{quiet(w.log)[-3000:]}"
                         for w in self.stint.workers)

    def end(self, load, once=True):
        """Every acknowledged job has run and has succeeded once.  once: it has also run only once."""
        load.stop()
        until(lambda: not load.acked - self.book.ids(), lambda: f"every job to be run:\n{self.logs()}")
        until(lambda: self.pg.value("SELECT (SELECT count(*) FROM {s}.ready) + (SELECT count(*) FROM {s}.lease)") == "0",
              lambda: f"every outcome to be written:\n{self.logs()}")
        self.check(load.acked, once)

    def check(self, acked, once=True):
        runs = self.book.runs()
        twice = [claim for claim, n in collections.Counter((id, fence) for id, _, fence in runs).items() if n > 1]
        assert not twice, f"one claim ran twice: {twice}"
        rows = self.pg.sql("SELECT {s}._id(id), count(*) FILTER (WHERE outcome = 0), max(fence) FILTER (WHERE outcome = 0) "
                           "FROM {s}.ended GROUP BY id")
        wins = {id: int(n) for id, n, _ in rows}
        assert set(wins) == set(acked), "what is in the store is not what was acknowledged"
        assert set(wins.values()) == {1}, [id for id, n in wins.items() if n != 1]
        ran = {(id, fence) for id, _, fence in runs}
        assert {(id, fence) for id, _, fence in rows} <= ran, "an outcome was written that no run has had"
        assert self.stint.counts() == {"succeeded": len(acked)}
        if once:
            again = [id for id, n in collections.Counter(id for id, _, _ in runs).items() if n > 1]
            assert not again, f"ran more than once although no lease was lost: {again}\n{self.logs()}"


def quiet(log):
    """Without what every job says."""
    return "".join(line for line in log.splitlines(True) if "event=job.succeeded" not in line)


@pytest.fixture
def trial(stint, pg):
    return Trial(stint, pg)


# ---- somebody's open transaction ----


@pytest.mark.parametrize("end, state", [("ROLLBACK", "succeeded"), ("COMMIT", "succeeded")])
def test_an_open_cancel_of_a_running_job_holds_up_that_job_alone(trial, stint, pg, end, state):
    gate = stint.dir / "gate"
    stint.config({"t": stint.probe("ledger", trial.book.path), "held": stint.sh(f"while [ ! -e {gate} ]; do sleep 0.05; done")},
                 worker=STEADY)
    with stint.worker() as worker, pg.cluster.session() as psql:
        held = stint.enqueue("held")
        stint.until_state(held, "running")
        psql("BEGIN")
        psql(f"SELECT \"{pg.schema}\".cancel('{held}')")
        gate.touch()  # its outcome comes while the transaction is open
        until(lambda: "job.outcome_waits" in worker.log, lambda: f"the outcome to be held up:\n{worker.log}")
        for _ in range(3):  # others come and go meanwhile
            for id in [stint.enqueue("t") for _ in range(5)]:
                stint.until_state(id, "succeeded")
        assert stint.state(held) == "running"
        psql(end)
        stint.until_state(held, state)


def test_an_open_retry_of_a_job_whose_key_is_taken_holds_up_nobody(trial, stint, pg):
    gate = stint.dir / "gate"
    stint.config({"t": stint.probe("ledger", trial.book.path),
                  "k": stint.sh(f"grep -q bad && exit 65; while [ ! -e {gate} ]; do sleep 0.05; done")}, worker=STEADY)
    with stint.worker(), pg.cluster.session() as psql:
        bad = stint.enqueue("k", '"bad"', "--key", "one")
        stint.until_state(bad, "failed")
        good = stint.enqueue("k", '"good"', "--key", "one")
        stint.until_state(good, "running")
        psql("BEGIN")
        assert psql(f"SELECT \"{pg.schema}\".retry('{bad}')") == [["taken"]]
        gate.touch()
        stint.until_state(good, "succeeded")
        for id in [stint.enqueue("t") for _ in range(5)]:
            stint.until_state(id, "succeeded")
        psql("COMMIT")
        assert pg.value(f"SELECT {{s}}.retry('{bad}')") == "retried"


@pytest.mark.parametrize("what", ["LOCK TABLE {s}.ready", "LOCK TABLE {s}.lease", "LOCK TABLE {s}.entry, {s}.ended",
                                  "LOCK TABLE {s}.worker, {s}.leader", "LOCK TABLE {s}.lane, {s}.tally, {s}.grp"])
def test_a_table_is_locked_for_a_while(trial, stint, pg, what):
    with stint.worker(), stint.worker(), Load(stint) as load:
        trial.warm_up(load)
        with pg.cluster.session() as psql:
            psql("BEGIN; " + what.format(s=pg.schema))
            time.sleep(3)
            psql("ROLLBACK")
        trial.goes_on(load)
        trial.end(load)


def test_tables_are_rewritten_meanwhile(trial, stint, pg):
    with stint.worker(), stint.worker(), Load(stint) as load:
        trial.warm_up(load)
        for table in ("ready", "lease", "grp", "tally", "entry", "ended"):
            pg.sql(f"VACUUM FULL {{s}}.{table}")
        trial.goes_on(load)
        trial.end(load)


# ---- the server ----


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL], ids=["fast", "immediate", "kill-9"])
def test_the_server_is_restarted(trial, stint, pg, how):
    with stint.worker(), stint.worker(), Load(stint) as load:
        trial.warm_up(load)
        for pause in (0, 1.5):
            pg.cluster.stop(how)
            time.sleep(pause)
            pg.cluster.start()
            trial.goes_on(load)
        trial.end(load)


def test_every_backend_is_ended_again_and_again(trial, stint, pg):
    ended = 0
    with stint.worker(), stint.worker(), Load(stint) as load:
        trial.warm_up(load)
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            ended += pg.cluster.terminate()
            time.sleep(0.15)
        trial.goes_on(load)
        trial.end(load)
    assert ended >= 10


def test_there_are_no_connections_left_for_a_while(stint, pen):
    server = Cluster(pen, max_connections=14, superuser_reserved_connections=3, max_wal_senders=0)
    hogs = []
    try:
        server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app")
        stint.env["STINT_STORE"] = server.url("jobs", user="app")
        trial = Trial(stint, Db(server, "jobs"))
        with stint.worker(), stint.worker(), Load(stint) as load, server.session() as ours:
            trial.warm_up(load)
            deadline = time.monotonic() + 4
            while time.monotonic() < deadline:  # whoever loses a connection finds its place taken
                ours("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'stint'")
                with contextlib.suppress(SqlError):
                    while True:
                        hogs.append(server.session(user="app"))
            assert load.codes[4] > 0 and len(hogs) >= 8
            for hog in hogs:
                hog.close()
            trial.goes_on(load)
            trial.end(load)
    finally:
        for hog in hogs:
            hog.close()
        server.stop(signal.SIGQUIT)


def test_the_disk_is_full_for_a_while(stint, pen, server_disk):
    """Of the tables; what the server does without room for its log is what it does when it is killed."""
    server = Cluster(pen)
    try:
        server.sql(f"CREATE TABLESPACE small LOCATION '{server_disk}'")
        stint.env["STINT_STORE"] = server.url("jobs")
        trial = Trial(stint, Db(server, "jobs"))
        server.sql("DO $$ DECLARE t regclass; BEGIN FOREACH t IN ARRAY ARRAY['jobs.ready', 'jobs.lease', 'jobs.grp', 'jobs.tally']::regclass[]"
                   " LOOP EXECUTE format('ALTER TABLE %s SET TABLESPACE small', t); END LOOP; END $$")
        with stint.worker(), stint.worker(), Load(stint) as load:
            trial.warm_up(load)
            filler = server_disk / "filler"
            with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as f:
                while True:
                    f.write(bytes(4096))
            until(lambda: load.codes[4] > 0, lambda: f"the disk to be full: {load.codes}", 60)
            filler.unlink()
            trial.goes_on(load)
            trial.end(load)
    finally:
        server.stop(signal.SIGQUIT)


def test_the_standby_takes_over(stint, pen):
    """What was acknowledged is on both; a URL with two hosts is all that is needed."""
    primary, standby = (Cluster(pen, tcp=True, start=False) for _ in range(2))
    try:
        primary.start(synchronous_standby_names="standby")
        standby.follow(primary)
        stint.env["STINT_STORE"] = url_of([primary, standby], "jobs", target_session_attrs="read-write")
        trial = Trial(stint, Db(primary, "jobs"))
        with stint.worker(), stint.worker(), Load(stint) as load:
            trial.warm_up(load)
            primary.stop(signal.SIGKILL)
            time.sleep(1)
            standby.promote()
            trial.pg = Db(standby, "jobs")
            trial.goes_on(load)
            trial.end(load)
    finally:
        for server in (standby, primary):
            server.stop(signal.SIGQUIT)


def test_what_no_standby_has_is_not_acknowledged_by_asking_again(stint, pen):
    """Whoever cancels a commit that waits for a standby ends that wait: the primary alone has it, and shows it to everybody."""
    server = Cluster(pen)

    def wait_for(standby):
        server.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
        server.sql("SELECT pg_reload_conf()")
        until(lambda: server.value("SHOW synchronous_standby_names") == standby, "the setting to hold")

    def seen(id, state, which=""):
        server.sql(f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' {which}")
        return server.value(f"SELECT count(*) FROM jobs.job WHERE id = '{id}' AND state = '{state}'") == "1"

    try:
        stint.env["STINT_STORE"] = url_of([server], "jobs")
        stint.config({"t": stint.probe("hold")})
        stint("migrate", "up")
        wait_for("nobody")
        for args in (("--id", "id0"), ("--id", "id2", "--key", "k")):
            stint("enqueue", "t", "{}", *args, "--store-timeout", "1s", check=6)
            until(lambda: seen(args[1], "pending"), "the job to be seen")
            stint("enqueue", "t", "{}", *args, "--store-timeout", "1s", check=6)
        stint("enqueue", "t", "{}", "--key", "k", "--store-timeout", "1s", check=6)  # the key's job is not safe, either
        wait_for("")
        assert stint.enqueue("t", "{}", "--id", "id0") == "id0" and stint.enqueue("t", "{}", "--key", "k") == "id2"
        with stint.worker("--slots", "1") as worker:
            stint.until_started("id0")
            wait_for("nobody")
            stint.go()
            until(lambda: "store.away" in worker.log, "the worker to give up")
            until(lambda: seen("id0", "succeeded", "AND now() - query_start > interval '6 s'"), "what it wrote to be seen")
            until(lambda: server.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                                       " AND query LIKE '%_settle%'") != "0", "it to ask again")
            assert "job.succeeded" not in worker.log
            wait_for("")
            until(lambda: worker.log.count("job.succeeded") == 2, lambda: f"the outcomes to be acknowledged: {worker.log}")
        assert stint.counts() == {"succeeded": 2}
    finally:
        server.stop(signal.SIGQUIT)


# ---- the network ----


@pytest.fixture
def proxy(pen, pg):
    with Proxy(pen, pg.cluster) as proxy:
        yield proxy


def test_the_server_notices_when_a_worker_cannot_be_reached(stint, pen):
    """What only the first half of a pipeline has reached waits for the rest, and what it has locked with it."""
    server = Cluster(pen, tcp=True)

    def idle_for():
        """Seconds until the server asks whether the other side is there, per connection."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ours = [row for row in rows if int(row[1].split(":")[1], 16) == server.port and row[3] == "01"]
        return [int(row[5].split(":")[1], 16) / 100 if row[5].startswith("02:") else math.inf for row in ours]

    try:
        stint.env["STINT_STORE"] = url_of([server], "jobs", notify="off")
        stint.config({"t": stint.probe("hold")})
        stint("migrate", "up")
        with stint.worker():
            until(lambda: len(idle_for()) >= 2, "the worker's connections")
            until(lambda: max(idle_for()) <= 30, lambda: f"all of them to be watched: {idle_for()}")
    finally:
        server.stop(signal.SIGQUIT)


def test_the_network_is_silent_for_longer_than_any_call_waits(trial, stint, pg, proxy):
    stint.env["STINT_STORE"] = pg.url(proxy)
    with stint.worker(), stint.worker(), Load(stint) as load:
        trial.warm_up(load)
        proxy.hold()
        until(lambda: all("store.away" in w.log for w in stint.workers), "the workers to notice")
        proxy.mend()
        trial.goes_on(load)
        trial.end(load)


def test_the_network_is_cut_and_refuses(trial, stint, pg, proxy):
    stint.env["STINT_STORE"] = pg.url(proxy)
    with stint.worker(), stint.worker(), Load(stint) as load:
        trial.warm_up(load)
        for _ in range(3):
            proxy.cut()
            time.sleep(0.5)
            proxy.mend()
            trial.goes_on(load)
        trial.end(load)


HOW = ["before", "during", "after"]


@pytest.mark.parametrize("how", HOW)
def test_an_enqueue_is_cut_in_the_middle(stint, pg, proxy, how):
    """It is repeated with the same id, which adds nothing, and nobody notices."""
    stint("migrate", "up")
    lines = "".join(json.dumps({"type": "t", "id": f"b-{n}"}) + "\n" for n in range(50))
    for n, flags in enumerate([[], ["--key", "k"], ["--id", "x"], ["--unique", "forever"], ["--delay", "1h"], ["--batch", "-"]]):
        cut = proxy.cut_next("._enqueue", how)
        args = [] if "--batch" in flags else ["t", str(n)]
        done = stint("enqueue", *args, *flags, "--json", "--store", pg.url(proxy), input=lines if "--batch" in flags else None)
        assert cut.done == 1 and b'"duplicate":true' not in done.out
    assert stint.counts() == {"pending": 54, "scheduled": 1}
    assert len(stint.list_all("--limit", "1000")) == 55


@pytest.mark.parametrize("how", HOW)
def test_an_enqueue_whose_outcome_stays_unknown_can_be_repeated(stint, pg, proxy, how):
    stint("migrate", "up")
    id = None
    for _ in range(2):
        cut = proxy.cut_next("._enqueue", how, times=1 << 30)
        command = ["enqueue", "t", "1", *(["--id", id] if id else []), "--json", "--store", pg.url(proxy)]
        error = stint(*command, "--store-timeout", "300ms", check=6).error
        assert error["code"] == "EUNKNOWN" and cut.done >= 1
        id = error["remedy"].partition("--id ")[2].split(":")[0]
        assert id in error["message"]
        cut.stop()
    assert stint.json("enqueue", "t", "1", "--id", id, "--store", pg.url(proxy)) == {"id": id, "duplicate": False}
    assert [job["id"] for job in stint.list_all()] == [id]


@pytest.mark.parametrize("how", HOW)
def test_what_an_operator_does_is_cut_in_the_middle_and_repeated(stint, pg, proxy, how):
    """Exit code 6 or 0, never a wrong answer; done again it is done."""
    store = ["--store", pg.url(proxy)]
    stint.batch([{"type": "t", "id": f"job-{n}"} for n in range(3)])
    for word, command, states in (("._cancel(", ["job", "cancel"], {"cancelled"}), ("._retry(", ["job", "retry"], {"pending"})):
        for n in range(3):
            cut = proxy.cut_next(word, how)
            assert stint(*command, f"job-{n}", *store, check=None).code in (0, 6)
            assert cut.done == 1
            done = stint(*command, f"job-{n}", *store, check=None)
            assert done.code == 0 or b"already" in done.err or stint.state(f"job-{n}") in states, done
        assert {stint.state(f"job-{n}") for n in range(3)} == states
    cut = proxy.cut_next(".paused", how)
    assert stint("queue", "pause", "default", *store, check=None).code in (0, 6) and cut.done == 1
    stint("queue", "pause", "default", *store)
    assert stint.json("queue", "list")["queues"][0]["paused"] is True


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("what", ["_claim(", "_settle("])
def test_a_claim_or_an_outcome_is_cut_in_the_middle(trial, stint, pg, proxy, what, how):
    """A claim that nobody heard of is given back; an outcome that may have been written is written again."""
    jobs = {job["id"] for job in stint.batch([{"type": "t"}] * 60)}
    cuts = [proxy.cut_next(what, how)]
    with stint.worker("--store", pg.url(proxy)) as worker:
        for n in range(1, 4):
            until(lambda: cuts[-1].done and len(trial.book.runs()) >= n * 12, lambda: f"cut {n} to be made:\n{worker.log}")
            cuts.append(proxy.cut_next(what, how))
        # the last one may find nothing more to cut
        until(lambda: stint.counts() == {"succeeded": 60}, lambda: f"all jobs to end:\n{quiet(worker.log)}", 30)
        worker.stop()
    trial.check(jobs)


def test_a_claim_is_cut_while_an_outcome_is_held_up(trial, stint, pg, proxy):
    """The worker asks what it holds without knowing, and goes on; what it keeps the outcome of is not given back."""
    gate = stint.dir / "gate"
    stint.config({"t": stint.probe("ledger", trial.book.path), "held": stint.sh(f"while [ ! -e {gate} ]; do sleep 0.05; done")},
                 worker=STEADY)
    with stint.worker("--store", pg.url(proxy)) as worker, pg.cluster.session() as psql:
        held = stint.enqueue("held")
        stint.until_state(held, "running")
        psql("BEGIN")
        psql(f"SELECT \"{pg.schema}\".cancel('{held}')")
        gate.touch()
        until(lambda: "job.outcome_waits" in worker.log, lambda: f"the outcome to be held up:\n{worker.log}")
        cut = proxy.cut_next("_claim(", "after")
        for _ in range(3):
            for id in [stint.enqueue("t") for _ in range(5)]:
                stint.until_state(id, "succeeded")
        assert cut.done and stint.state(held) == "running"
        psql("ROLLBACK")
        assert [a["outcome"] for a in stint.until_state(held, "succeeded")["attempts"]] == ["succeeded"]


@pytest.mark.parametrize("how", HOW)
def test_a_renewal_is_cut_in_the_middle(stint, pg, proxy, how):
    stint.config({"t": stint.probe("hold")}, worker={"lease": "15s", "renew": "300ms"})
    ids = [job["id"] for job in stint.batch([{"type": "t"}] * 3)]
    with stint.worker("--store", pg.url(proxy)) as worker, stint.worker():
        for id in ids:
            stint.until_started(id)
        for _ in range(4):
            cut = proxy.cut_next("._renew(", how)
            until(lambda: cut.done, lambda: f"the next renewal:\n{worker.log}")
        stint.go()
        jobs = [stint.until_state(id, "succeeded") for id in ids]
    assert {job["attempt"] for job in jobs} == {1}, "a lease was lost though there was time to renew it"


GATED = """
    echo $$ >$D/tmp.$STINT_ATTEMPT; mv $D/tmp.$STINT_ATTEMPT $D/started.$STINT_JOB_ID.$STINT_ATTEMPT
    until [ -e $D/go.$STINT_ATTEMPT ]; do sleep 0.05; done; echo $STINT_ATTEMPT"""


def test_an_outcome_that_arrives_when_another_has_the_job_is_refused(stint, pg, proxy):
    """It was sent in time, and was under way for longer than the lease."""
    stint.config({"t": stint.sh(GATED, retry={"initial": "1ms"})}, worker=SHORT)
    id = stint.enqueue("t")
    late = proxy.cut_next("._settle(", "late")
    with stint.worker("--store", pg.url(proxy)) as old:
        stint.until_started(id)
        first = stint.show(id)["fence"]
        (stint.dir / "go.1").touch()
        until(lambda: late.done, "its outcome to be sent")
        proxy.hold()
        with stint.worker():
            stint.until_started(id, attempt=2)
            late.arrive()
            job = stint.show(id)
            assert (job["state"], job["fence"], job["attempt"]) == ("running", first + 1, 2)
            proxy.mend()
            until(lambda: re.search("outcome_refused|job.lost|job.dropped", old.log), lambda: f"it to hear of it:\n{old.log}")
            (stint.dir / "go.2").touch()
            job = stint.until_state(id, "succeeded")
    assert job["result"] == 2 and [a["outcome"] for a in job["attempts"]] == ["lease_expired", "succeeded"]


def test_what_a_late_claim_takes_for_one_who_asks_no_more_is_not_lost(stint, pg, proxy):
    trial = Trial(stint, pg, SHORT)
    with stint.worker("--store", pg.url(proxy)) as old:
        stint.until_state(stint.enqueue("t", "{}", "--id", "first"), "succeeded")
        late = proxy.cut_next("._claim(", "late")
        until(lambda: late.done, "its next claim")
        old.signal(signal.SIGSTOP)
        stint.enqueue("t", "{}", "--id", "second")
        late.arrive()
        assert stint.state("second") in ("running", "claimed"), "nobody but the late claim was there to take it"
        with stint.worker():
            until(lambda: stint.state("second") == "succeeded", lambda: f"it to be run:\n{trial.logs()}", SOON)
        old.signal(signal.SIGCONT)
        old.stop()
    trial.check({"first", "second"})


# ---- the workers ----


def test_workers_are_killed_again_and_again(stint, pg):
    trial = Trial(stint, pg, SHORT)
    with contextlib.ExitStack() as stack, stint.worker(), Load(stint) as load:
        trial.warm_up(load)
        victims = collections.deque(stack.enter_context(stint.worker(wait=False)) for _ in range(2))
        for _ in range(10):
            time.sleep(0.4)
            victims.popleft().kill()
            victims.append(stack.enter_context(stint.worker(wait=False)))
        trial.goes_on(load)
        trial.end(load, once=False)


def test_workers_sleep_past_their_lease_and_come_back(stint, pg):
    """What they were at has been done by others; what they say of it then is refused."""
    trial = Trial(stint, pg, SHORT, slow=stint.sh("until test -e $D/gate; do sleep 0.05; done; echo $STINT_ATTEMPT"))
    with stint.worker("--types", "t"), stint.worker("--name", "sleeper") as sleeper, Load(stint) as load:
        trial.warm_up(load)
        slow = stint.enqueue("slow")
        stint.until_state(slow, "running")
        for _ in range(2):
            sleeper.signal(signal.SIGSTOP)
            (stint.dir / "gate").touch()  # the first time its child ends while it sleeps
            time.sleep(3.5)  # its lease is 2 s
            until(lambda: stint.state(slow) != "running", "its lease to be over")
            sleeper.signal(signal.SIGCONT)
            trial.goes_on(load)
        assert stint.until_state(slow, "succeeded")["attempts"][0]["outcome"] == "lease_expired"
        assert alive(sleeper.pid)
        load.stop()
        load.acked.add(slow)
        with open(trial.book.path, "a") as book:
            job = stint.show(slow)
            book.write(f"{slow} {job['attempt']} {job['fence']}\n")
        trial.end(load, once=False)


# ---- the leader ----


class Watch:
    """Looks all the time who leads."""

    def __init__(self, pg):
        self.pg, self.seen = pg, {}

    def now(self):
        epoch, worker = self.pg.sql("SELECT epoch, CASE WHEN until > {s}._us(clock_timestamp()) THEN worker END FROM {s}.leader")[0]
        before = self.seen.setdefault(int(epoch), worker)
        assert worker is None or before in (None, worker), f"epoch {epoch} had two leaders: {before}, {worker}"
        self.seen[int(epoch)] = worker or before
        assert int(epoch) == max(self.seen), f"the epoch went back to {epoch}: {self.seen}"
        return int(epoch), worker

    def leads(self, worker, above=0, seconds=60):
        row = until(lambda: worker.row, "the worker's row")

        def does():
            epoch, who = self.now()
            return epoch if who == row["id"] and epoch > above else None
        return until(does, lambda: f"{row['id']} to lead: {self.seen}", seconds)


def only_leader(stint, worker):
    rows = stint.json("workers")["workers"]
    return [row["pid"] for row in rows if row["leader"]] == [worker.pid]


@pytest.mark.long
def test_a_leader_that_is_cut_off_is_replaced_and_its_late_writes_are_refused(trial, stint, pg, proxy):
    """It was about to prune what the new one wants to keep: that write arrives when another leads."""
    stint.config({"t": stint.probe("ledger", trial.book.path)}, worker=STEADY)
    kept = stint.enqueue("t")
    stint.work_off()
    stint.config({"t": stint.probe("ledger", trial.book.path)}, worker=STEADY, retention={"succeeded": "1ms"})
    watch, late = Watch(pg), proxy.cut_next("._prune(", "late")
    with stint.worker("--store", pg.url(proxy)) as old:
        epoch = watch.leads(old)
        until(lambda: late.done, "it to prune")
        proxy.hold()
        stint.config({"t": stint.probe("ledger", trial.book.path)}, worker=STEADY)
        with stint.worker() as new, Load(stint) as load:
            trial.goes_on(load)  # work needs no leader
            load.stop()
            later = watch.leads(new, above=epoch)
            answer = late.arrive()
            assert b"ST003" in answer, answer
            assert stint.state(kept) == "succeeded", "the old leader has pruned it"
            proxy.mend()
            id = stint.enqueue("t")
            new.signal(signal.SIGTSTP)
            stint.until_state(id, "succeeded")  # by the old one: it works again, and does not lead
            assert watch.now()[0] == later and only_leader(stint, new)
            assert old.log.count("leader.elected") == 1


@pytest.mark.long
def test_a_leader_that_is_frozen_is_replaced_and_steps_down(trial, stint, pg):
    watch = Watch(pg)
    with stint.worker() as old:
        epoch = watch.leads(old)
        with stint.worker() as new, Load(stint) as load:
            trial.warm_up(load)
            old.signal(signal.SIGSTOP)
            later = watch.leads(new, above=epoch)
            assert later == epoch + 1
            old.signal(signal.SIGCONT)
            trial.goes_on(load)
            trial.end(load, once=False)
            until(lambda: old.row and only_leader(stint, new), "the old one to be an ordinary worker")
            assert watch.now()[0] == later and old.log.count("leader.elected") == 1
            new.stop()  # gives it back: nobody waits for the end of a term
        epoch, leader = watch.now()
        assert leader is None or epoch > later, "the term of one that has gone goes on"
