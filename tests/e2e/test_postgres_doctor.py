# SPDX-License-Identifier: Apache-2.0
"""`doctor` on PostgreSQL: one test per finding, with the condition really created on a real server.

The remedy that is printed is what mends it: the tests run it, and then doctor has nothing to say any more.
"""

import contextlib
import itertools
import json
import socket
import subprocess
import threading

import pytest

from kit import Stint, until
from pgkit import Cluster, Db, PgBouncer, Where, url_of

SECRET = "hush-5ecret"
numbers = itertools.count()


@pytest.fixture(scope="module")
def server(pen):
    """One that doctor has nothing to say against."""
    cluster = Cluster(pen, fsync="on", full_page_writes="on", max_prepared_transactions="5")
    yield cluster
    cluster.stop()


@pytest.fixture
def db(server):
    db = Db(server, f"d_{next(numbers)}")
    yield db
    db.drop()


def make(tmp_path, binary, probe, db):
    """A store with a job that waits, one that has succeeded and one that has failed."""
    kit = Stint(tmp_path, binary, probe, db.url())
    kit.config({"ok": kit.sh("true"), "bad": kit.sh("exit 65")})
    kit.enqueue("ok")
    kit.enqueue("bad")
    kit.work_off()
    kit.enqueue("later", "{}", "--delay", "1h")
    return kit


@pytest.fixture
def stint(tmp_path, binary, probe, db):
    kit = make(tmp_path, binary, probe, db)
    yield kit
    kit.close()


def findings(stint, *severities, store=None, env=None):
    """What doctor has to say about the store."""
    done = stint("doctor", "--json", *(["--store", store] if store else []), check=None, env=env)
    errors = [f for f in done.json["findings"] if f["severity"] == "error"]
    assert done.code == (1 if errors else 0), done
    assert all(f["remedy"] for f in done.json["findings"] if f["severity"] != "ok"), done
    return [f for f in done.json["findings"] if f["area"] == "store" and f["severity"] in (severities or ("warning", "error"))]


def finding(stint, severity, *words, **how):
    """The one of this severity that has all these words; None = there is none."""
    hits = [f for f in findings(stint, severity, **how) if all(word in f["what"] for word in words)]
    assert len(hits) <= 1, hits
    return hits[0] if hits else None


def found(stint, severity, *words, **how):
    """The same, and it must be there: statistics take a moment."""
    return until(lambda: finding(stint, severity, *words, **how),
                 lambda: f"doctor to find {words}; it has {json.dumps(findings(stint, **how), indent=1)}")


def mend(stint, where, hit, *words, **how):
    """Does what doctor said, and sees that it helped."""
    if "$f$" in hit["remedy"] or "$views$" in hit["remedy"]:
        statements = [hit["remedy"]]
    else:
        statements = hit["remedy"].split("; ")
    def run():
        with where.session() as session:
            for statement in statements:
                session(statement)

    def content():
        if not finding(stint, hit["severity"], *words, **how):
            return True
        if statements[0].startswith("VACUUM"):  # it gives way to others
            run()
        return False

    run()
    until(content,
          lambda: f"doctor to be content after {hit['remedy']}; it has {json.dumps(findings(stint, **how), indent=1)}")


def burn(where, n):
    """Uses up transaction numbers."""
    where.sql(f"DO $$ BEGIN FOR i IN 1..{n} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")


# ---- nothing wrong ----


def test_doctor_finds_nothing_wrong_where_nothing_is(stint):
    assert findings(stint) == []
    said = "\n".join(f["what"] for f in findings(stint, "ok"))
    for word in ("schema version", "no table is missing", "no index is missing", "no function is missing", "no session holds an old snapshot", "NOTIFY",
                 "fsync, full_page_writes, synchronous_commit and autovacuum are on", "transaction number", "connections are in use",
                 "grants it needs", "counts are right", "every job is in its place", "tested with", "LISTEN", "clock"):
        assert word in said, word


def test_doctor_finds_nothing_wrong_while_jobs_come_and_go(stint):
    stint.config({"ok": stint.sh("true")}, worker={"poll": "50ms", "slots": 4})
    with stint.worker():
        for _ in range(5):
            stint.batch([{"type": "ok", "payload": {}} for _ in range(40)])
            assert findings(stint) == []


@pytest.mark.parametrize("table", ["paused", "tally", "ended_7"])
def test_doctor_finds_a_missing_table(stint, db, table):
    db.sql(f"ALTER TABLE {{s}}.{table} RENAME TO away")
    found(stint, "error", f"the table {table} is missing")
    db.sql(f"ALTER TABLE {{s}}.away RENAME TO {table}")
    assert finding(stint, "ok", "no table is missing")
    assert findings(stint) == []


def test_doctor_changes_nothing(stint, db):
    before = stint.list_all(), db.value("SELECT count(*) FROM {s}.tally")
    stint("doctor")
    assert (stint.list_all(), db.value("SELECT count(*) FROM {s}.tally")) == before


# ---- roles ----


@contextlib.contextmanager
def role(db, *grants):
    """A user with these grants; {s} and {r} are filled in."""
    name = f"r_{next(numbers)}"
    db.sql(f"CREATE ROLE {name} LOGIN")
    for grant in grants:
        db.sql(grant.replace("{r}", name))
    try:
        yield name
    finally:
        db.sql(f"DROP OWNED BY {name}; DROP ROLE {name}")


WORKER = ("GRANT USAGE ON SCHEMA {s} TO {r}", "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA {s} TO {r}",
          "GRANT USAGE ON ALL SEQUENCES IN SCHEMA {s} TO {r}", "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {s} TO {r}")


def test_doctor_finds_no_error_for_a_worker_that_is_no_superuser(stint, db):
    with role(db, *WORKER) as name:
        how = {"store": db.url(user=name)}
        hit = found(stint, "warning", "cannot see what other sessions do", **how)
        assert findings(stint, **how) == [hit]
        assert hit["remedy"] == f"GRANT pg_monitor TO {name}"
        mend(stint, db.cluster, hit, "cannot see what other sessions do", **how)
        assert findings(stint, **how) == []


@pytest.mark.parametrize("what, told", [
    ("INSERT, DELETE ON {s}.lease", "may not DELETE, INSERT on"), ("TRUNCATE ON {s}.ended_7", "may not TRUNCATE on"),
    ("USAGE ON SEQUENCE {s}.grp_seq", "may not USAGE on ALL SEQUENCES"), ("EXECUTE ON FUNCTION {s}._look", "may not EXECUTE on ALL FUNCTIONS")])
def test_doctor_finds_a_missing_grant(stint, db, what, told):
    with role(db, *WORKER, "GRANT pg_monitor TO {r}", f"REVOKE {what} FROM {{r}}") as name:
        how = {"store": db.url(user=name)}
        hit = found(stint, "error", f"the role {name} {told}", **how)
        mend(stint, db.cluster, hit, "may not", **how)
        assert findings(stint, **how) == []


def test_doctor_finds_a_role_that_may_only_look(stint, db):
    with role(db, "GRANT pg_monitor TO {r}", WORKER[0], "GRANT SELECT ON ALL TABLES IN SCHEMA {s} TO {r}") as name:
        how = {"store": db.url(user=name)}
        hit = found(stint, "warning", "may not work or enqueue", **how)
        assert [f for f in findings(stint, **how) if f["severity"] == "error"] == []
        assert hit["remedy"].startswith("GRANT SELECT, INSERT")  # the roles are not made unasked
        mend(stint, db.cluster, hit, "may not work or enqueue", **how)
        assert findings(stint, **how) == []


def test_doctor_names_the_role_that_lets_one_work_if_it_is_there(stint, db):
    stint("migrate", "up")
    with role(db, "GRANT pg_monitor TO {r}", f"GRANT {db.schema}_read TO {{r}}") as name:
        how = {"store": db.url(user=name)}
        hit = found(stint, "warning", "may not work or enqueue", **how)
        assert hit["remedy"] == f"GRANT {db.schema}_worker TO {name}"
        mend(stint, db.cluster, hit, "may not work or enqueue", **how)


# ---- what pins the horizon ----


@pytest.mark.long
def test_doctor_finds_who_keeps_dead_rows_and_shows_no_literal(stint, db):
    with db.cluster.session() as reader, db.cluster.session() as sleeper:
        reader("SET application_name = 'report'")
        reader("BEGIN ISOLATION LEVEL REPEATABLE READ")
        pid = reader(f"SELECT  pg_backend_pid(), 4711, '{SECRET}'")[0][0]
        sleeper(f"BEGIN; CREATE TABLE t_{next(numbers)}(x int); PREPARE TRANSACTION 'left-{db.schema}'")
        assert finding(stint, "warning", "keeps dead rows") is None, "a minute is nothing"
        hit = until(lambda: finding(stint, "warning", f"pid {pid} "), "the session to be found", 90)
        assert "report" in hit["what"] and "SELECT pg_backend_pid(), ?, ?" in hit["what"] and "idle in transaction" in hit["what"]
        assert SECRET not in stint("doctor", "--json").text
        assert hit["remedy"] == f"SELECT pg_terminate_backend({pid})"
        mend(stint, db.cluster, hit, f"pid {pid} ")
        hit = found(stint, "warning", "prepared transaction", f"left-{db.schema}")
        assert hit["remedy"] == f"ROLLBACK PREPARED 'left-{db.schema}' -- or COMMIT PREPARED 'left-{db.schema}'"
        mend(stint, db.cluster, hit, "prepared transaction")
    assert findings(stint) == []


def test_doctor_finds_a_replication_slot_that_nobody_uses(stint, db):
    name = f"lost_{db.schema}"
    db.sql(f"SELECT pg_create_physical_replication_slot('{name}', true)")
    hit = found(stint, "warning", f"replication slot {name}", "WAL")
    mend(stint, db.cluster, hit, "replication slot")


@pytest.mark.long
def test_doctor_finds_replicas_that_are_not_waited_for_or_hold_us_up(pen, tmp_path, binary, probe):
    primary = Cluster(pen, start=False)
    standby = Cluster(pen, start=False, hot_standby_feedback="on", wal_receiver_status_interval="1s", max_standby_streaming_delay="-1")
    primary.start()
    standby.follow(primary)
    db = Db(primary, "stint")
    stint = make(tmp_path, binary, probe, db)
    hit = found(stint, "warning", "1 replicas, and none of them is waited for")
    mend(stint, primary, hit, "none of them is waited for")
    until(lambda: standby.value("SELECT to_regclass('stint.tally')"), "the standby to have it all")
    with standby.session() as query:
        query("BEGIN ISOLATION LEVEL REPEATABLE READ")
        query("SELECT 1")
        until(lambda: primary.value("SELECT backend_xmin FROM pg_stat_replication"), "the standby's feedback")
        burn(primary, 101000)
        hit = found(stint, "warning", "the replica standby", "hot_standby_feedback")
        assert "hot_standby_feedback = off" in hit["remedy"]
    until(lambda: not finding(stint, "warning", "hot_standby_feedback"), "the feedback to move on")
    # and the same question to the standby itself
    assert "target_session_attrs" in found(stint, "error", "is a standby", store=standby.url("stint"))["remedy"]
    assert finding(stint, "error", "is a standby", store=url_of([standby, primary], "stint", target_session_attrs="read-write")) is None
    stint.close()
    standby.stop()
    primary.stop()


# ---- what is left lying about ----


def test_doctor_finds_dead_rows(stint, db):
    with db.cluster.session() as reader:
        reader("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader("SELECT 1")
        db.sql("INSERT INTO {s}.tally(lane, waiting) SELECT 2, 1 FROM generate_series(1, 120000)")
        db.sql("DELETE FROM {s}.tally WHERE lane = 2")
        hit = found(stint, "warning", "tally has 120", "dead rows")
    mend(stint, db.cluster, hit, "tally has")


@pytest.mark.long
def test_doctor_finds_a_table_and_an_index_that_are_large_for_nothing(stint, db):
    db.sql("INSERT INTO {s}.ready(lane, key, fence, attempt, slot, skips, keyed, id) SELECT 2, i, 0, 0, 16, 0, false,"
           " convert_to(lpad(i::text, 480, 'x'), 'UTF8') FROM generate_series(1, 160000) i")
    db.sql("DELETE FROM {s}.ready WHERE lane = 2")
    db.sql("VACUUM {s}.ready")
    mend(stint, db.cluster, found(stint, "warning", "ready takes"), "ready takes")
    for index in ("ready_id", "ready_pkey"):
        mend(stint, db.cluster, found(stint, "warning", f"the index {index} takes"), f"the index {index} takes")
    assert findings(stint) == []


# ---- the schema ----


@pytest.mark.parametrize("index", ["ready_id", "ended_dead", "grp_look", "ukey_until", "entry_newest"])
def test_doctor_finds_a_missing_index(stint, db, index):
    db.sql(f"DROP INDEX {{s}}.{index}")
    hit = found(stint, "error", f"the index {index} is missing")
    assert hit["remedy"].startswith("CREATE")
    mend(stint, db.cluster, hit, "missing")
    assert findings(stint) == []


@pytest.mark.parametrize("table", ["worker", "lease", "ended"])
def test_doctor_finds_a_missing_primary_key(stint, db, table):
    db.sql(f"ALTER TABLE {{s}}.{table} DROP CONSTRAINT {table}_pkey")
    mend(stint, db.cluster, found(stint, "error", f"the table {table} has lost its primary key"), "primary key")


@pytest.mark.parametrize("function", ["_claim", "_held", "_ring_step"])
def test_doctor_finds_a_missing_function_and_prints_it(stint, db, function):
    signature = db.value(f"SELECT p.oid::regprocedure FROM pg_proc p WHERE p.proname = '{function}' AND p.pronamespace = '{{s}}'::regnamespace")
    db.sql(f"DROP FUNCTION {signature} CASCADE")
    mend(stint, db.cluster, found(stint, "error", f"the function {function} is missing"), "missing")
    stint.enqueue("ok")
    stint.work_off()


@pytest.mark.parametrize("view", ["model_runs", "live", "dead"])
def test_doctor_finds_a_missing_view(stint, db, view):
    db.sql(f"DROP VIEW {{s}}.{view}")
    mend(stint, db.cluster, found(stint, "error", f"the view {view} is missing"), "missing")
    db.sql(f"SELECT * FROM {{s}}.{view}")


def pasted(stint):
    """The remedies of what is missing, as doctor's text shows them, without its margin."""
    taken, remedies = False, []
    for line in stint("doctor", check=1).text.split("\n"):
        if line.startswith("           -> ") and taken:
            remedies.append([line[14:]])
        elif line.startswith("              ") and taken:
            remedies[-1].append(line[14:])
        else:
            taken = line.endswith("is missing")
    return ["\n".join(lines) for lines in remedies]


def test_what_doctor_shows_can_be_pasted(stint, db):
    """Functions of several thousand bytes with comments in them, and views that others are made from."""
    db.sql("DROP VIEW {s}._job CASCADE")
    db.sql("DROP FUNCTION {s}._claim CASCADE")
    for remedy in sorted(pasted(stint), key=lambda text: ("FUNCTION" in text, "$views$" not in text)):
        db.cluster.sql(remedy)
    assert findings(stint) == []
    id = stint.enqueue("ok")
    stint.work_off()
    assert db.value(f"SELECT state FROM {{s}}.get('{id}')") == "succeeded"


@pytest.mark.parametrize("drop, told, who, may", [
    ("FUNCTION {s}.cancel(text)", "everybody who may use the schema may call", "read", ("has_function_privilege", "cancel(text)", "EXECUTE", "f")),
    ("VIEW {s}.queue", "_read may not read queue", "read", ("has_table_privilege", "queue", "SELECT", "t")),
])
def test_doctor_finds_what_was_made_anew_without_grants(stint, db, drop, told, who, may):
    stint("migrate", "up")
    assert finding(stint, "ok", "our roles may do what they are for")
    db.sql(f"DROP {drop}")
    mend(stint, db.cluster, found(stint, "error", "is missing"), "missing")
    hit = found(stint, "error", told)
    assert "`stint migrate up`" in hit["remedy"]
    stint("migrate", "up")
    assert not finding(stint, "error", "may")
    has, thing, verb, answer = may
    assert db.value(f"SELECT {has}('{db.schema}_{who}', '{{s}}.{thing}', '{verb}')") == answer


def test_doctor_finds_an_index_that_is_not_valid(stint, db):
    db.sql("UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{s}.lease_cancel'::regclass")
    mend(stint, db.cluster, found(stint, "error", "lease_cancel is not valid"), "not valid")


def test_doctor_finds_what_an_interrupted_reindex_has_left(stint, db):
    with db.cluster.session() as writer, db.cluster.session() as operator:
        writer("BEGIN")
        writer(f"DELETE FROM {db.schema}.ready")
        operator("SET lock_timeout = '300ms'")
        with pytest.raises(Exception, match="lock timeout"):
            operator(f"REINDEX INDEX CONCURRENTLY {db.schema}.ready_id")
    hit = found(stint, "warning", "ready_id_ccnew", "interrupted REINDEX")
    mend(stint, db.cluster, hit, "interrupted REINDEX")


# ---- the server ----


def test_doctor_finds_a_notify_queue_that_fills_up(stint, db):
    with db.cluster.session() as listener, db.cluster.session() as other:
        listener("LISTEN nothing")
        listener("BEGIN")
        pid = listener("SELECT pg_backend_pid()")[0][0]
        size = int(other("SELECT current_setting('max_notify_queue_pages', true)")[0][0] or 0) or 1048576  # of 8 KiB
        for _ in range(8):
            other(f"SELECT pg_notify('nothing', repeat('x', 7900) || i) FROM generate_series(1, {size // 400}) i")
        hit = found(stint, "warning", "the NOTIFY queue is")
        assert hit["remedy"] == f"SELECT pg_terminate_backend({pid})"
        mend(stint, db.cluster, hit, "the NOTIFY queue is")


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit", "autovacuum", "track_counts"])
def test_doctor_finds_a_setting_that_is_off(stint, db, setting):
    db.sql(f"ALTER SYSTEM SET {setting} = off")
    db.sql("SELECT pg_reload_conf()")
    hit = found(stint, "warning", f"{setting} is off:")
    mend(stint, db.cluster, hit, f"{setting} is off")
    assert findings(stint) == []


@pytest.mark.parametrize("where", ["ROLE postgres", "DATABASE postgres", "ROLE postgres IN DATABASE postgres", "ROLE ALL"])
def test_doctor_says_where_a_setting_was_made(stint, db, where):
    db.sql(f"ALTER {where} SET synchronous_commit = off")
    hit = found(stint, "warning", "synchronous_commit is off:")
    mend(stint, db.cluster, hit, "synchronous_commit is off")
    assert findings(stint) == []


def test_doctor_finds_autovacuum_off_for_a_table(stint, db):
    db.sql("ALTER TABLE {s}.ended_3 SET (autovacuum_enabled = off)")
    mend(stint, db.cluster, found(stint, "warning", "autovacuum is off for ended_3"), "autovacuum is off for")


def test_doctor_finds_few_connections_left(pen, tmp_path, binary, probe):
    server = Cluster(pen, max_connections="20")
    stint = make(tmp_path, binary, probe, Db(server, "stint"))
    assert finding(stint, "warning", "connections are in use") is None
    with contextlib.ExitStack() as stack:
        for _ in range(14):
            stack.enter_context(server.session())
        hit = found(stint, "warning", "of 17 connections are in use")
        assert "max_connections = 40" in hit["remedy"]
    stint.close()
    server.stop()


@pytest.mark.long
def test_doctor_finds_that_transaction_numbers_are_not_given_back(pen, tmp_path, binary, probe):
    server = Cluster(pen, autovacuum_freeze_max_age="100000")
    stint = make(tmp_path, binary, probe, Db(server, "stint"))
    with server.session() as old:  # else the server helps itself
        old("BEGIN")
        old("SELECT pg_current_xact_id()")
        burn(server, 121000)
        assert found(stint, "warning", "the oldest transaction number is 12")["remedy"].startswith("VACUUM (FREEZE) ")
    stint.close()
    server.stop()


def encoded(url):
    return url.replace("%", "%25").replace("&", "%26").replace("?", "%3F").replace("/", "%2F").replace(":", "%3A")


def test_doctor_finds_a_pooler_without_listen(pen, stint, db):
    with PgBouncer(pen, db.cluster) as pooler:
        hit = found(stint, "warning", "a pooler stands before the server", store=db.url(pooler))
        assert "listen=" in hit["remedy"]
        for more in ({"listen": encoded(db.cluster.url())}, {"notify": "off"}):
            assert findings(stint, store=db.url(pooler, **more)) == []


def test_doctor_finds_a_listen_that_leads_elsewhere(pen, stint, db):
    """To another database of the server, to the pooler itself, to nobody."""
    with PgBouncer(pen, db.cluster) as pooler:
        for listen, what in ((db.cluster.url(database="template1"), "is not where the store is"), (pooler.url(), "to a pooler"),
                             ("postgres://127.0.0.1:1/test", "does not lead to the server")):
            hit = found(stint, "warning", "listen=", what, store=db.url(pooler, listen=encoded(listen)))
            assert hit["remedy"]


def test_what_others_have_put_on_the_search_path_is_not_run(pen, stint, db):
    """An operator whose types fit better than the server's own, and one that comes before it."""
    db.sql("""CREATE SCHEMA trap; CREATE SEQUENCE trap.hits;
        CREATE FUNCTION trap.more(float8, numeric) RETURNS bool LANGUAGE sql AS 'SELECT nextval(''trap.hits'') < 0';
        CREATE OPERATOR public.> (leftarg = float8, rightarg = numeric, procedure = trap.more);
        CREATE FUNCTION trap.same(bytea, bytea) RETURNS bool LANGUAGE sql AS 'SELECT nextval(''trap.hits'') < 0';
        CREATE OPERATOR trap.= (leftarg = bytea, rightarg = bytea, procedure = trap.same)""")
    try:
        with PgBouncer(pen, db.cluster) as pooler:
            assert stint("doctor", "--json", "--store", db.url(pooler, notify="off")).json["findings"]
        job = stint.enqueue("ok")
        with db.cluster.session() as session:
            session("SET search_path = trap, pg_catalog")
            assert session(f"SELECT id FROM {db.schema}.get('{job}')") == [[job]]
        assert db.value("SELECT is_called FROM trap.hits") == "f"
    finally:
        db.sql("DROP SCHEMA trap CASCADE")


# ---- clocks and versions ----

SHIFT = """
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *ts)
{
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int r = real(id, ts);
    if (id == CLOCK_REALTIME)
        ts->tv_sec += 90;
    return r;
}
"""


def test_doctor_finds_clocks_that_differ(stint, tmp_path):
    (tmp_path / "shift.c").write_text(SHIFT)
    subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", "shift.so", "shift.c", "-ldl"], cwd=tmp_path, check=True)
    hit = found(stint, "warning", "clock and this machine's differ", env={"LD_PRELOAD": str(tmp_path / "shift.so")})
    assert "NTP" in hit["remedy"]


class Disguise(Where):
    """Stands before a server and gives out another version for its own."""

    def __init__(self, pen, server, major):
        self.host, self.server = pen.folder(), server
        self.old = b"server_version\0" + server.value("SHOW server_version").split(".")[0].encode()
        self.new = b"server_version\0" + str(major).encode()
        self.listener = socket.socket(socket.AF_UNIX)
        path = self.host / f".s.PGSQL.{self.port}"
        self.listener.bind(str(path))
        path.chmod(0o777)
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(f"{self.server.host}/.s.PGSQL.{self.server.port}")
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    def pump(self, a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                b.sendall(data.replace(self.old, self.new))
            b.shutdown(socket.SHUT_WR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def test_doctor_finds_a_server_newer_than_it_knows(pen, stint, db):
    with Disguise(pen, db.cluster, 77) as disguise:
        found(stint, "warning", "PostgreSQL 77 is newer", store=db.url(disguise))


def test_doctor_refuses_a_server_that_is_too_old(pen, stint, db):
    with Disguise(pen, db.cluster, 12) as disguise:
        assert "13" in found(stint, "error", "PostgreSQL 12", "too old", store=db.url(disguise))["remedy"]


# ---- the jobs ----


def test_doctor_finds_wrong_counts(stint, db):
    before = stint.counts()
    db.sql("INSERT INTO {s}.tally(lane, waiting, succeeded) SELECT lane, 2, 5 FROM {s}.lane LIMIT 1")
    assert stint.counts() != before
    mend(stint, db.cluster, found(stint, "error", "the counts of 1 lanes"), "the counts")
    assert stint.counts() == before and findings(stint) == []


def test_doctor_finds_jobs_that_are_nowhere(stint, db):
    id = stint.enqueue("ok")
    db.sql("DELETE FROM {s}.ready WHERE key = (SELECT min(key) FROM {s}.ready)")
    mend(stint, db.cluster, found(stint, "error", "1 jobs are nowhere"), "nowhere")
    assert findings(stint) == []
    stint.work_off()
    assert stint.state(id) == "succeeded"


def test_a_job_that_was_nowhere_goes_on_behind_the_fence_that_was_lost(stint, db):
    stint.config({"hold": stint.probe("hold")})
    id = stint.enqueue("hold")
    with stint.worker():
        stint.until_started(id)
    with stint.worker() as worker:  # it takes over from the one that was killed
        stint.until_started(id, 2)
        lost = stint.show(id)["fence"]
        db.sql("DELETE FROM {s}.lease; DELETE FROM {s}.grp")
        worker.kill()
    mend(stint, db.cluster, found(stint, "error", "1 jobs are nowhere"), "nowhere")
    stint.go()
    with stint.worker():
        stint.until_state(id, "succeeded")
    assert stint.show(id)["fence"] > lost


def test_doctor_finds_rows_that_wait_without_a_job(stint, db):
    db.sql("INSERT INTO {s}.ready(lane, key, fence, attempt, slot, skips, keyed, id) VALUES (2, 1, 0, 0, 16, 0, false, '\\x0142')")
    mend(stint, db.cluster, found(stint, "error", "1 rows wait without a job"), "without a job")
    assert findings(stint) == []


def test_doctor_finds_held_jobs_that_nobody_would_reap(stint, db):
    stint.config({"hold": stint.probe("hold")}, worker={"lease": "2s", "renew": "500ms", "poll": "100ms"})
    id = stint.enqueue("hold")
    with stint.worker() as worker:
        stint.until_started(id)
        db.sql("DELETE FROM {s}.grp")
        hit = found(stint, "error", "1 jobs are held by nobody")
        worker.kill()
    mend(stint, db.cluster, hit, "held by nobody")
    assert findings(stint) == []
    stint.go()
    with stint.worker():
        stint.until_state(id, "succeeded")


def test_doctor_finds_a_job_that_waits_and_is_held(stint, db):
    stint.config({"hold": stint.probe("hold")})
    id = stint.enqueue("hold")
    with stint.worker():
        stint.until_started(id)
        db.sql("INSERT INTO {s}.ready SELECT lane, due, fence, attempt, slot, skips, keyed, id FROM {s}.lease")
        mend(stint, db.cluster, found(stint, "error", "1 jobs wait, and are held at once"), "held at once")
        stint.go()
        assert [a["outcome"] for a in stint.until_state(id, "succeeded")["attempts"]] == ["succeeded"]
    assert findings(stint) == []


def test_doctor_finds_a_job_that_is_there_twice(stint, db):
    id = stint.enqueue("ok")
    db.sql("INSERT INTO {s}.entry SELECT lane, seq, created, due, timeout, max_attempts, 16, umode, id, key, payload, meta "
           f"FROM {{s}}.entry WHERE id = {{s}}.id_key('{id}')")
    mend(stint, db.cluster, found(stint, "error", "1 jobs are there twice"), "there twice")
    stint.work_off()
    assert stint.state(id) == "succeeded" and findings(stint) == []
