# SPDX-License-Identifier: Apache-2.0
"""The SQL API of the PostgreSQL store: functions, views, roles, and the examples of docs/postgres.md.

What is written in SQL here is what users write; {s} stands for the test's schema.
"""

import collections
import json
import re
import subprocess
import sys

import pytest

from kit import ROOT, until
from pgkit import PgBouncer, SqlError

ROLES = ("enqueue", "worker", "read")
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.fixture
def db(stint, pg):
    """The test's schema, made by the program."""
    stint("migrate", "up")
    return pg


@pytest.fixture
def users(db):
    """Users that have one of the roles each, and one that has none: users(role) is a session."""
    sessions = []
    for role in (*ROLES, "none"):
        db.sql(f"CREATE ROLE {{s}}_{role}_user LOGIN" + (f" IN ROLE {{s}}_{role}" if role in ROLES else ""))

    def connect(role, where=db.cluster):
        session = where.session(user=f"{db.schema}_{role}_user")
        sessions.append(session)
        return lambda sql: session(sql.replace("{s}", db.schema))

    yield connect
    for session in sessions:
        session.close()
    db.drop()
    for role in ROLES:
        db.sql(f"DROP OWNED BY {{s}}_{role}_user; DROP ROLE {{s}}_{role}_user; DROP OWNED BY {{s}}_{role}; DROP ROLE {{s}}_{role}")
    db.sql("DROP ROLE {s}_none_user")


def refused(db, call, sqlstate="ST001"):
    """Runs a call that must fail with this SQLSTATE; its message and hint."""
    sql = f"""DO $do$
        DECLARE v_hint text;
        BEGIN
            PERFORM {call};
        EXCEPTION WHEN SQLSTATE '{sqlstate}' THEN
            GET STACKED DIAGNOSTICS v_hint = PG_EXCEPTION_HINT;
            RAISE EXCEPTION '<%|%>', SQLERRM, v_hint;
        END $do$"""
    with pytest.raises(SqlError, match="<") as why:
        db.sql(sql)
    return re.search(r"<(.*)\|(.*)>", str(why.value), re.S).groups()


def row(db, view, where):
    """One row of a view as a dict of texts."""
    return json.loads(db.value(f"SELECT to_json(v) FROM {{s}}.{view} v WHERE {where}"))


# ---- enqueue ----


def test_a_job_enqueued_in_sql_runs_and_is_the_same_for_both(stint, db):
    stint.config({"mail": stint.sh("cat")})
    id = db.value("""SELECT {s}.enqueue('mail', '{"to":"ada"}', queue => 'post.fast', priority => 7, max_attempts => 5,
                     timeout => '90 seconds', meta => '{"by":"sql"}')""")
    assert UUID7.fullmatch(id)
    job = stint.show(id)
    assert (job["type"], job["queue"], job["priority"], job["max_attempts"]) == ("mail", "post.fast", 7, 5)
    assert job["timeout"] == "1m30s" and job["payload"] == {"to": "ada"} and job["meta"] == {"by": "sql"}
    stint.work_off()
    assert stint.show(id)["result"] == {"to": "ada"}
    assert db.value(f"SELECT result FROM {{s}}.get('{id}')") == '{"to":"ada"}'


def test_what_is_not_said_has_its_default(stint, db):
    job = stint.show(db.value("SELECT {s}.enqueue('t')"))
    assert (job["queue"], job["priority"], job["max_attempts"], job["payload"], job["meta"]) == ("default", 0, 3, None, None)
    job = stint.show(db.value("SELECT {s}.enqueue('t', NULL, queue => NULL, priority => NULL)"))
    assert (job["queue"], job["priority"], job["payload"]) == ("default", 0, None)


def test_a_payload_is_kept_byte_for_byte(stint, db):
    stint.config({"t": stint.sh('cat > "$D/got"')})
    text = '{"a":1.10, "a":2}'
    id = db.value(f"SELECT {{s}}.enqueue('t', '{text}')")
    assert db.value(f"SELECT payload FROM {{s}}.job WHERE id = '{id}'") == text
    stint.work_off()
    assert (stint.dir / "got").read_text() == text
    spaced = ' [ 1,\n\t"\\u00e4ä" ] '
    id = db.value(f"SELECT {{s}}.enqueue('t', E'{spaced.replace(chr(92), chr(92) * 2)}')")
    assert db.value(f"SELECT payload FROM {{s}}.get('{id}')") == spaced


def test_delay_and_run_at(stint, db):
    later = db.value("SELECT {s}.enqueue('t', delay => '1 hour')")
    assert stint.state(later) == "scheduled"
    assert db.value(f"SELECT due_at - created_at FROM {{s}}.get('{later}')") == "01:00:00"
    at = db.value("SELECT {s}.enqueue('t', run_at => '2100-01-02 03:04:05.000006+00')")
    assert stint.show(at)["run_at"] == "2100-01-02T03:04:05.000006Z"
    past = db.value("SELECT {s}.enqueue('t', run_at => now() - interval '1 day')")
    assert stint.state(past) == "pending"
    assert db.value("SELECT {s}.enqueue('t', timeout => '0')") and stint.show(past)["timeout"] == "1h"


def test_ids_ascend_and_many_keep_their_order(db):
    ids = [r[0] for r in db.sql("""SELECT {s}.enqueue_many('t', ARRAY(SELECT json_build_object('n', n)
                                   FROM generate_series(1, 500) n))""")]
    assert len(set(ids)) == 500 and ids == sorted(ids)
    rows = db.sql("SELECT id, payload::json ->> 'n' FROM {s}.job ORDER BY id")
    assert [r[0] for r in rows] == ids and [int(r[1]) for r in rows] == list(range(1, 501))
    one_by_one = [r[0] for r in db.sql("SELECT {s}.enqueue('t') FROM generate_series(1, 100)")]
    assert one_by_one == sorted(one_by_one) and one_by_one[0] > ids[-1]
    assert db.sql("SELECT {s}.enqueue_many('t', '{}')") == []


def test_a_rollback_takes_the_job_back(stint, db):
    with db.cluster.session() as session:
        def sql(text):
            return session(text.replace("{s}", db.schema))

        sql("BEGIN")
        id = sql("SELECT {s}.enqueue('t', key => 'k')")[0][0]
        assert stint("job", "show", id, check=3)  # nobody else sees it yet
        sql("SAVEPOINT a")
        sql("SELECT {s}.enqueue('t')")
        sql("ROLLBACK TO a")
        assert len(sql("SELECT FROM {s}.job")) == 1
        sql("ROLLBACK")
        stint("job", "show", id, check=3)
        again = sql("SELECT {s}.enqueue('t', key => 'k')")[0][0]
        assert again != id and stint.state(again) == "pending"
    assert stint.counts() == {"pending": 1}


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_enqueue_works_at_every_isolation_level(stint, db, level):
    db.sql(f"BEGIN ISOLATION LEVEL {level}; SELECT {{s}}.enqueue('t', key => 'a'), {{s}}.enqueue('t', key => 'a'); COMMIT")
    assert stint.counts() == {"pending": 1}


def test_a_trigger_enqueues(stint, db):
    stint.config({"welcome": stint.sh("cat")})
    db.sql("""CREATE TABLE {s}_people (name text PRIMARY KEY);
              CREATE FUNCTION {s}_welcome() RETURNS trigger LANGUAGE plpgsql AS $$
              BEGIN
                  PERFORM {s}.enqueue('welcome', row_to_json(NEW));
                  RETURN NULL;
              END $$;
              CREATE TRIGGER welcome AFTER INSERT ON {s}_people FOR EACH ROW EXECUTE FUNCTION {s}_welcome()""")
    try:
        db.sql("INSERT INTO {s}_people VALUES ('ada'), ('grace')")
        with pytest.raises(SqlError):
            db.sql("INSERT INTO {s}_people VALUES ('edsger'), ('ada')")
        stint.work_off()
        names = db.sql("SELECT result::json ->> 'name' FROM {s}.job WHERE state = 'succeeded' ORDER BY 1")
        assert names == [["ada"], ["grace"]]
    finally:
        db.sql("DROP TABLE {s}_people; DROP FUNCTION {s}_welcome()")


def test_a_key_that_is_held_answers_its_holder(stint, db):
    stint.config({"t": stint.sh("true")})
    first = db.value("SELECT {s}.enqueue('t', key => 'k')")
    assert db.value("SELECT {s}.enqueue('t', '1', key => 'k')") == first
    assert db.value("SELECT {s}.enqueue('other', key => 'k')") != first
    stint.work_off("--types", "t")
    assert db.value("SELECT {s}.enqueue('t', key => 'k')") != first  # active: only until it has ended
    for unique_for in ("forever", "1 day", "36h", "1h30m"):
        held = db.value(f"SELECT {{s}}.enqueue('t', key => '{unique_for}', unique_for => '{unique_for}')")
        stint.work_off("--types", "t")
        assert db.value(f"SELECT {{s}}.enqueue('t', key => '{unique_for}', unique_for => '{unique_for}')") == held
    many = [r[0] for r in db.sql("""SELECT {s}.enqueue_many('t', '{1,2,3}', keys => '{x,y,x}')""")]
    assert many[0] == many[2] != many[1]


def test_the_same_id_is_the_same_job(stint, db):
    assert db.value("SELECT {s}.enqueue('t', '[1]', id => 'order-42')") == "order-42"
    assert db.value("SELECT {s}.enqueue('t', '[1]', id => 'order-42')") == "order-42"
    assert stint.counts() == {"pending": 1}
    message, _ = refused(db, "{s}.enqueue('t', '[2]', id => 'order-42')", "ST002")
    assert "order-42" in message
    stint("enqueue", "t", "[1]", "--id", "order-42")  # the program agrees
    ids = db.sql("SELECT {s}.enqueue_many('t', '{1,2}', ids => '{a,b}')")
    assert ids == [["a"], ["b"]]


BAD = [
    ("enqueue('')", "the type name is empty"),
    ("enqueue(NULL)", "the type name is empty"),
    ("enqueue(repeat('x', 129))", "the type name has 129 bytes, the most is 128"),
    ("enqueue(repeat('ä', 65))", "the type name has 130 bytes, the most is 128"),
    ("enqueue('a b')", 'type name "a b" has a blank in it'),
    (r"enqueue(E'a\tb')", 'type name "a?b" has a control character'),
    (r"enqueue(E'a\u00a0b')", "has a blank in it"),
    ("enqueue('mail*')", 'type name "mail*" has a \'*\' in it'),
    ("enqueue('a,b')", "has a ',' in it"),
    ("enqueue('t', queue => 'q..r')", 'queue name "q..r" has an empty part'),
    ("enqueue('t', queue => '.q')", "has an empty part"),
    ("enqueue('t', queue => 'q.')", "has an empty part"),
    ("enqueue('t', queue => '')", "the queue name is empty"),
    ("enqueue('t', queue => '{q}')", "has a '{' in it"),
    ("enqueue('t', priority => 32768)", "priority 32768 is not in -32768..32767"),
    ("enqueue('t', max_attempts => -1)", "max_attempts -1 is negative"),
    ("enqueue('t', max_attempts => 1000001)", "max_attempts 1000001 is more than 1000000"),
    ("enqueue('t', delay => '-1 second')", "the delay is negative"),
    ("enqueue('t', delay => '40000 days')", "the delay is longer than 36500d"),
    ("enqueue('t', delay => '1s', run_at => now())", "both delay and run_at are given"),
    ("enqueue('t', run_at => '1969-12-31')", "the time to run at is before 1970"),
    ("enqueue('t', run_at => 'infinity')", "the time to run at is after the year 9999"),
    ("enqueue('t', timeout => '-1s')", "the timeout is negative"),
    ("enqueue('t', key => '')", "the unique key is empty"),
    ("enqueue('t', key => repeat('k', 513))", "the unique key has 513 bytes, the most is 512"),
    ("enqueue('t', unique_for => 'forever')", "unique_for is given without a key"),
    ("enqueue('t', key => 'k', unique_for => '10')", 'unique_for "10" has no unit'),
    ("enqueue('t', key => 'k', unique_for => 'always')", 'unique_for "always" is no duration'),
    ("enqueue('t', key => 'k', unique_for => '0s')", "a window of no time holds nothing"),
    ("enqueue('t', id => '')", "the id is empty"),
    ("enqueue('t', id => repeat('i', 129))", "the id has 129 bytes, more than 128"),
    (r"enqueue('t', id => E'a\nb')", "the id has a control character in it"),
    ("enqueue('t', meta => '[]')", "meta is not a JSON object"),
    ("enqueue('t', to_json(repeat('x', 1048576)))", "the payload has 1048578 bytes, the limit is 1048576"),
    ("enqueue('t', meta => json_build_object('x', repeat('x', 1048576)))", "meta has"),
    ("enqueue_many('t', '{1,2}', keys => '{a}')", "there are 2 payloads and 1 keys"),
    ("enqueue_many('t', '{1,2}', ids => '{a,b,c}')", "there are 2 payloads and 3 ids"),
    ("enqueue_many('t', '{1,2}', keys => '{a,NULL}')", "one of the keys is NULL"),
]


def test_bad_input_is_refused_with_a_hint_and_adds_nothing(stint, db):
    for call, message in BAD:
        said, hint = refused(db, f"{{s}}.{call}")
        assert message in said, (call, said)
        assert hint, f"every refusal has a hint: {call}"
    with pytest.raises(SqlError, match="invalid input syntax for type json"):
        db.sql("SELECT {s}.enqueue('t', '{not json')")
    assert db.value("SELECT count(*) FROM {s}.job") == "0"


def test_the_largest_of_everything_is_taken(stint, db):
    id = db.value("""SELECT {s}.enqueue(repeat('t', 128), to_json(repeat('x', 1048574)), queue => repeat('q', 128),
                     priority => -32768, max_attempts => 1000000, delay => '36500 days', key => repeat('k', 512),
                     id => repeat('i', 128))""")
    assert stint.show(id)["priority"] == -32768 and len(stint.show(id)["payload"]) == 1048574


def test_those_who_sleep_are_told_once_per_queue_and_transaction(db):
    """A stand-in for a worker: it holds the lock of one that sleeps, and listens."""
    psycopg2 = pytest.importorskip("psycopg2")
    listener = psycopg2.connect(f"host={db.cluster.host} port={db.cluster.port} user=postgres dbname=postgres")
    try:
        listener.autocommit = True
        heard = listener.cursor()
        heard.execute(f'LISTEN "{db.schema}"')

        def told():
            heard.execute("SELECT 1")
            got, listener.notifies[:] = [n.payload for n in listener.notifies], []
            return sorted(got)

        db.sql("SELECT {s}.enqueue('t')")
        assert told() == []  # nobody sleeps
        heard.execute(f"SELECT pg_advisory_lock_shared({db.schema}._sleeper(q)) FROM unnest(ARRAY['a', 'b']) q")
        db.sql("""BEGIN; SELECT {s}.enqueue('t', queue => 'a'), {s}.enqueue('t', queue => 'a'), {s}.enqueue('t', queue => 'b.c'),
                  {s}.enqueue('t', queue => 'nobody'); SELECT {s}.enqueue_many('t', '{1,2,3}', queue => 'a'); COMMIT""")
        assert told() == ["w a", "w b.c"]
        db.sql("BEGIN; SELECT {s}.enqueue('t', queue => 'a'); ROLLBACK")
        assert told() == []
    finally:
        listener.close()


def test_a_database_without_an_encoding_takes_names_of_any_language(stint, pg):
    """Its characters are bytes: half of one of ours is no blank there and no control character."""
    pg.cluster.sql("DROP DATABASE IF EXISTS bytes")
    pg.cluster.sql("CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
    stint.env["STINT_STORE"] = pg.cluster.url(pg.schema, database="bytes")
    stint.config({"*": stint.sh("cat")})
    stint("migrate", "up")
    with pg.cluster.session(database="bytes") as sql:
        id = sql(f"SELECT {pg.schema}.enqueue('t日', '\"à\"', queue => 'qà', id => '日', key => '日')")[0][0]
        assert id == "日" == stint.enqueue("t日", '"à"', "--queue", "qà", "--id", "日", "--key", "日")
        other = stint.enqueue("t", json.dumps("日"))  # an escape, of which jsonb there can make nothing
        for name in ("a b", "a\tb", "a\x7fb"):
            with pytest.raises(SqlError, match="blank|control"):
                sql(f"SELECT {pg.schema}.enqueue(E'{name}')")
        stint.work_off()
        assert [stint.show(i)["result"] for i in (id, other)] == ["à", "日"]
        for view in ("job", "live", "dead", "queue", "task_runs", "tasks", "workers", "model_runs"):
            sql(f"SELECT * FROM {pg.schema}.{view}")
        assert len(sql(f"SELECT parameters FROM {pg.schema}.model_runs")) == 2


# ---- steering ----


def test_a_call_that_is_cut_short_leaves_no_lock_behind(db):
    """Whoever wants to sleep would wait for it as long as the session lives."""
    with db.cluster.session() as sql:
        sql("SET statement_timeout = 60")
        for _ in range(100):
            with pytest.raises(SqlError, match="timeout"):
                sql(f"SELECT {db.schema}._wake(ARRAY(SELECT 'q' || n FROM generate_series(1, 50000) n))")
        sql("SET statement_timeout = 0")
        assert sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()") == [["0"]]


def test_cancel_says_what_became_of_it(stint, db):
    stint.config({"held": stint.probe("hold", grace="5s"), "t": stint.sh("true")})
    waiting = db.value("SELECT {s}.enqueue('t', delay => '1h')")
    assert db.value(f"SELECT {{s}}.cancel('{waiting}')") == "cancelled"
    assert db.value(f"SELECT {{s}}.cancel('{waiting}')") == "ended"
    assert db.value("SELECT {s}.cancel('nobody')") == "unknown"
    held = db.value("SELECT {s}.enqueue('held')")
    with stint.worker() as worker:
        stint.until_started(held)
        assert db.value(f"SELECT {{s}}.cancel('{held}')") == "asked"
        stint.until_state(held, "cancelled")
        worker.stop()
    assert db.value(f"SELECT state || ' ' || error_kind FROM {{s}}.get('{waiting}')") == "cancelled cancelled"


def test_retry_says_what_became_of_it(stint, db):
    stint.config({"t": stint.sh("exit 65")})
    id = db.value("SELECT {s}.enqueue('t', key => 'k')")
    assert db.value(f"SELECT {{s}}.retry('{id}')") == "refused"
    assert db.value("SELECT {s}.retry('nobody')") == "unknown"
    stint.work_off()
    assert stint.state(id) == "failed"
    other = db.value("SELECT {s}.enqueue('t', key => 'k')")
    assert db.value(f"SELECT {{s}}.retry('{id}')") == "taken"
    db.sql(f"SELECT {{s}}.cancel('{other}')")
    assert db.value(f"SELECT {{s}}.retry('{id}')") == "retried"
    assert (stint.show(id)["state"], stint.show(id)["attempt"]) == ("pending", 0)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_retry_that_has_missed_another_one_revives_nothing(stint, db, level, end):
    """Its snapshot is from before the job was retried, run and done."""
    stint.config({"t": stint.sh("test -e mended || exit 65")})
    id = db.value("SELECT {s}.enqueue('t')")
    if end == "cancelled":
        db.sql(f"SELECT {{s}}.cancel('{id}')")
    stint.work_off()
    assert stint.state(id) == end
    (stint.dir / "mended").touch()
    with db.cluster.session() as sql:
        sql(f"BEGIN ISOLATION LEVEL {level}")
        assert sql(f"SELECT state FROM {db.schema}.get('{id}')") == [[end]]
        assert db.value(f"SELECT {{s}}.retry('{id}')") == "retried"
        stint.work_off()
        done = stint.show(id)
        assert done["state"] == "succeeded"
        with pytest.raises(SqlError, match="could not serialize"):
            sql(f"SELECT {db.schema}.retry('{id}')")
        sql("ROLLBACK")
    stint.work_off()
    assert stint.show(id) == done, "it has run once more, under a fence that was given out before"


def test_fence_ok_holds_for_the_attempt_that_runs_and_no_other(stint, db):
    stint.config({"held": stint.probe("hold")})
    id = db.value("SELECT {s}.enqueue('held')")
    assert db.value(f"SELECT {{s}}.fence_ok('{id}', 1)") == "f"
    with stint.worker() as worker:
        stint.until_started(id)
        fence = stint.show(id)["fence"]
        assert db.value(f"SELECT {{s}}.fence_ok('{id}', {fence})") == "t"
        assert db.value(f"SELECT {{s}}.fence_ok('{id}', {fence - 1})") == "f"
        assert db.value(f"SELECT {{s}}.fence_ok('{id}', {fence + 1})") == "f"
        stint.go()
        stint.until_state(id, "succeeded")
        worker.stop()
    assert db.value(f"SELECT {{s}}.fence_ok('{id}', {fence})") == "f"


# ---- views ----

JOB_COLUMNS = """id type queue state priority attempt max_attempts timeout payload payload_base64 result result_base64 result_ref
    error_kind error_message created_at due_at started_at finished_at worker fence lease_until cancel_requested progress meta key
    unique_for seq id_key""".split()
COLUMNS = {
    "job": JOB_COLUMNS, "live": JOB_COLUMNS, "dead": JOB_COLUMNS,
    "queue": """queue paused scheduled pending retrying claimed running succeeded failed cancelled oldest_due""".split(),
    "task_runs": """id spec_hash queue_name status priority run_after leased_until worker_id payload_json result_json error_json
        attempt_count max_attempts created_at updated_at started_at completed_at job_id id_key""".split(),
    "tasks": """id type payload status priority idempotency_key worker_id created_at claimed_at started_at completed_at updated_at
        attempts max_retries last_error next_retry_at id_key""".split(),
    "workers": """id name hostname pid pool_size running queues types healthy quiet note started_at last_heartbeat is_leader
        leader_until leader_epoch""".split(),
    "model_runs": """id status parameters payload_hash created_at started_at finished_at attempt_count last_error result_ref
        lease_owner lease_expires_at heartbeat_at id_key""".split(),
}
WORDS = {  # as each state is called in job, task_runs, tasks, model_runs
    "scheduled": ("PENDING", "pending", "PENDING"),
    "pending": ("PENDING", "pending", "PENDING"),
    "retrying": ("RETRYING", "pending", "PENDING"),
    "claimed": ("RUNNING", "claimed", "RUNNING"),
    "running": ("RUNNING", "running", "RUNNING"),
    "succeeded": ("SUCCESSFUL", "completed", "SUCCEEDED"),
    "failed": ("FAILED", "dead_letter", "FAILED"),
    "cancelled": ("CANCELLED", "cancelled", "CANCELLED"),
}


def test_views_have_the_columns_that_are_documented(db):
    found = collections.defaultdict(list)
    for view, column in db.sql("""SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = '{s}'
                                  AND table_name IN (SELECT table_name FROM information_schema.views WHERE table_schema = '{s}')
                                  AND table_name NOT LIKE E'\\\\_%' ORDER BY ordinal_position"""):
        found[view].append(column)
    assert dict(found) == COLUMNS
    assert db.value("SELECT string_agg(table_name, ',') FROM information_schema.views WHERE table_schema = '{s}'"
                    " AND is_insertable_into = 'YES'") is None


@pytest.fixture
def one_of_each(stint, db):
    """A job in every state that there is; their ids by state."""
    stint.config({"ok": stint.sh("echo '{\"n\":1}'"), "bad": stint.sh("echo no >&2; exit 65"),
                  "again": stint.sh("exit 75", retry={"initial": "1h"}), "held": stint.probe("hold")},
                 worker={"lease": "60s", "renew": "20s", "poll": "200ms"})
    ids = {
        "succeeded": db.value("""SELECT {s}.enqueue('ok', '{"a":1}')"""),
        "failed": db.value("SELECT {s}.enqueue('bad', '[\"x\"]')"),
        "retrying": db.value("SELECT {s}.enqueue('again')"),
    }
    stint.work_off()
    ids["cancelled"] = db.value("SELECT {s}.enqueue('ok')")
    db.sql(f"SELECT {{s}}.cancel('{ids['cancelled']}')")
    ids["running"] = db.value("SELECT {s}.enqueue('held', key => 'k')")
    ids["claimed"] = db.value("SELECT {s}.enqueue('held')")
    with stint.worker(env={"STINT_WORKER_ID": "w1"}):
        stint.until_started(ids["running"])
        stint.until_started(ids["claimed"])
    stint.until_no_leftovers()
    db.sql(f"UPDATE {{s}}.lease SET started = NULL WHERE id = {{s}}.id_key('{ids['claimed']}')")  # as if prefetched
    ids["scheduled"] = db.value("SELECT {s}.enqueue('ok', delay => '1 day')")
    ids["pending"] = db.value("SELECT {s}.enqueue('ok')")
    return ids


def test_every_state_in_every_view(stint, db, one_of_each):
    ids = one_of_each
    assert set(ids) == set(WORDS)
    for state, id in ids.items():
        at = f"id_key = {{s}}.id_key('{id}')"
        assert row(db, "job", at)["state"] == state == stint.state(id)
        assert tuple(row(db, view, at)["status"] for view in ("task_runs", "tasks", "model_runs")) == WORDS[state], state
    live = {"scheduled", "pending", "retrying", "claimed", "running"}
    assert {r[0] for r in db.sql("SELECT state FROM {s}.live")} == live
    assert {r[0] for r in db.sql("SELECT state FROM {s}.dead")} == {"failed", "cancelled"}
    counts = row(db, "queue", "queue = 'default'")
    assert {k: counts[k] for k in WORDS} == dict.fromkeys(WORDS, 1) and stint.counts() == dict.fromkeys(WORDS, 1)
    pending = row(db, "job", f"id = '{ids['pending']}'")
    assert counts["oldest_due"] == pending["due_at"] and counts["paused"] is False
    newest = [r[0] for r in db.sql("SELECT id FROM {s}.recent(2)")]
    assert newest == [ids["pending"], ids["scheduled"]]


def test_views_say_what_the_program_says(stint, db, one_of_each):
    ids = one_of_each
    for id in ids.values():
        seen, job = row(db, "job", f"id = '{id}'"), stint.show(id)
        for name in ("id", "type", "queue", "state", "priority", "attempt", "max_attempts", "worker", "fence", "result_ref", "key"):
            assert seen[name] == job[name], name
        for ours, theirs in (("created_at", "created_at"), ("due_at", "run_at"), ("started_at", "started_at"),
                             ("finished_at", "finished_at"), ("lease_until", "lease_until")):
            assert (seen[ours] or "").split("+")[0].rstrip("0") == (job[theirs] or "").rstrip("Z").rstrip("0"), ours
        error = job["error"] or {"kind": None, "message": None}
        assert (seen["error_kind"], seen["error_message"]) == (error["kind"], error["message"])


def test_task_runs_tasks_and_model_runs_have_their_values(stint, db, one_of_each):
    def look(view, state):
        return row(db, view, f"id_key = {{s}}.id_key('{one_of_each[state]}')")

    run = look("task_runs", "succeeded")
    assert (run["payload_json"], run["result_json"], run["error_json"]) == ({"a": 1}, {"n": 1}, None)
    assert run["queue_name"] == "default" and run["attempt_count"] == 1 and run["completed_at"] and run["worker_id"]
    assert row(db, "task_runs", f"id = {run['id']}")["job_id"] == one_of_each["succeeded"]
    error = look("task_runs", "failed")["error_json"]
    assert error["kind"] == "permanent" and error["attempt"] == 1 and error["message"]
    assert look("task_runs", "retrying")["run_after"] > look("task_runs", "retrying")["created_at"]
    assert look("task_runs", "running")["leased_until"] and look("task_runs", "running")["worker_id"] == "w1"

    task = look("tasks", "running")
    assert (task["type"], task["idempotency_key"], task["attempts"], task["max_retries"]) == ("held", "k", 1, 3)
    assert task["started_at"] and look("tasks", "retrying")["next_retry_at"] and look("tasks", "failed")["last_error"]

    model = look("model_runs", "running")
    assert model["lease_owner"] == "w1" and model["heartbeat_at"] < model["lease_expires_at"] and model["finished_at"] is None
    ended = look("model_runs", "succeeded")
    assert ended["parameters"] == {"a": 1} and ended["lease_owner"] is None and len(ended["payload_hash"]) == 64


def test_workers_shows_who_works_and_who_leads(stint, db):
    stint.config({"t": stint.sh("true")})
    with stint.worker("--slots", "3", env={"STINT_WORKER_ID": "w1"}) as worker:
        until(lambda: row(db, "workers", "id = 'w1'")["is_leader"], "w1 to lead")
        w = row(db, "workers", "id = 'w1'")
        assert w["pool_size"] == 3 and w["last_heartbeat"] and w["leader_until"] > w["last_heartbeat"] and w["types"] == ["t"]
        worker.stop()


def test_bytes_that_are_no_text_do_not_break_a_view(stint, db):
    """Programs that use the library may enqueue any bytes; here the store's own function does it."""
    def add(id, payload):
        db.sql(f"""SELECT {{s}}._enqueue_one(0, 'default', 't', 0, {{s}}.id_key('{id}'), 0, 0, NULL, NULL, '{payload}', NULL, 0::int2,
                   NULL, NULL)""")

    stint.config({"t": stint.sh("printf '\\377\\376'")})
    add("odd", r"\xff007b")
    stint.work_off()
    job = row(db, "job", "id = 'odd'")
    assert (job["payload"], job["payload_base64"]) == (None, "/wB7")
    assert job["state"] == "succeeded" and (job["result"] is None) == (job["result_base64"] is not None)
    assert row(db, "task_runs", "job_id = 'odd'")["payload_json"] == {"base64": "/wB7"}
    assert row(db, "model_runs", "id = 'odd'")["parameters"] == {"base64": "/wB7"}
    add("text", "plain text")
    assert row(db, "task_runs", "job_id = 'text'")["payload_json"] == "plain text"
    nul = db.value("""SELECT {s}.enqueue('t', '{"a":"\\u0000"}')""")
    assert "u0000" in row(db, "tasks", f"id = '{nul}'")["payload"]
    for view in ("job", "task_runs", "tasks", "model_runs"):
        assert len(db.sql(f"SELECT * FROM {{s}}.{view}")) == 3


@pytest.mark.parametrize("query", [
    "SELECT * FROM {s}.get('{id}')",
    "SELECT * FROM {s}.job WHERE id_key = {s}.id_key('{id}')",
    "SELECT * FROM {s}.task_runs WHERE id_key = {s}.id_key('{id}')",
    "SELECT * FROM {s}.task_runs WHERE id = 7",
    "SELECT * FROM {s}.tasks WHERE id_key = {s}.id_key('{id}')",
    "SELECT * FROM {s}.model_runs WHERE id_key = {s}.id_key('{id}')",
])
def test_a_job_is_found_by_its_index(db, query):
    db.sql("SELECT {s}.enqueue_many('t', ARRAY(SELECT to_json(n) FROM generate_series(1, 30000) n)); ANALYZE {s}.entry")
    id = db.value("SELECT id FROM {s}.recent(1)")
    plan = "\n".join(r[0] for r in db.sql("EXPLAIN " + query.replace("{id}", id)))
    full = [line for line in plan.splitlines() if re.search(r"Seq Scan on (entry|ended|ready|lease)\w*", line)]
    read = [line for line in full if int(re.search(r"rows=(\d+)", line).group(1)) > 1000]
    assert not read and "Index" in plan, plan


# ---- roles ----


def test_migrate_up_says_that_it_made_the_roles_alone(stint, db):
    version = stint.json("migrate", "up")["have"]
    names = ", ".join(f"{db.schema}_{role}" for role in ("enqueue", "worker", "read"))
    db.sql(f"DROP OWNED BY {names}; DROP ROLE {names}")
    assert stint("migrate", "up").text == f"schema version {version}: its roles were made\n"
    assert db.value(f"SELECT count(*) FROM pg_roles WHERE rolname LIKE '{db.schema}\\_%'") >= "3"
    assert stint("migrate", "up").text == f"schema version {version}: nothing to do\n"


def test_a_producer_may_enqueue(stint, db, users):
    sql = users("enqueue")
    id = sql("SELECT {s}.enqueue('t', '{\"a\":1}', key => 'k')")[0][0]
    assert sql("SELECT {s}.enqueue('t', key => 'k')")[0][0] == id
    assert len(sql("SELECT {s}.enqueue_many('t', '{1,2}')")) == 2
    assert stint.counts() == {"pending": 3}


def test_a_reader_may_read_the_views(stint, db, users):
    db.sql("SELECT {s}.enqueue('t')")
    sql = users("read")
    for view in COLUMNS:
        sql(f"SELECT * FROM {{s}}.{view}")
    id = sql("SELECT id FROM {s}.job")[0][0]
    assert sql(f"SELECT state FROM {{s}}.get('{id}')") == [["pending"]]
    assert sql("SELECT id FROM {s}.recent()") == [[id]]
    assert sql("SELECT payload_json FROM {s}.task_runs WHERE id = 1") == [["null"]]


def test_a_worker_with_nothing_but_its_role_does_all_that_workers_do(stint, db, users):
    store = db.url(user=f"{db.schema}_worker_user")
    stint.env["STINT_STORE"] = store
    stint.config({"ok": stint.sh("true"), "bad": stint.sh("exit 65"), "again": stint.sh("test $STINT_ATTEMPT = 2"),
                  "held": stint.probe("hold", grace="2s")}, retention={"succeeded": "1s", "failed": "90d", "cancelled": "7d"})
    ok, bad, again, held = (stint.enqueue(t, "{}", "--key", t) for t in ("ok", "bad", "again", "held"))
    with stint.worker() as worker:
        stint.until_state(ok, "succeeded")
        first = stint.until_state(bad, "failed")["fence"]
        stint.until_state(again, "succeeded")
        stint.until_started(held)
        stint("job", "cancel", held)
        stint.until_state(held, "cancelled")
        stint("job", "retry", bad)
        until(lambda: stint.show(bad)["fence"] > first and stint.state(bad) == "failed", "the failed job to fail again")
        stint("queue", "pause", "default")
        stint("queue", "resume", "default")
        until(lambda: any(w["leader"] for w in stint.json("workers")["workers"]), "it to lead")
        worker.stop()
        assert "permission denied" not in worker.log
    until(lambda: stint.json("prune")["removed"] >= 0 and stint("job", "show", ok, check=None).code == 3, "retention to remove it")
    stint("dead", "list")
    doctor = stint.run("doctor")
    assert "permission denied" not in doctor.text and "may not" not in doctor.text, doctor


ENTRY = "(lane, created, due, slot, umode, id) VALUES (0, 0, 0, 0, 0, '\\x00')"
FORBIDDEN = {
    "enqueue": [
        "SELECT * FROM {s}.job", "SELECT * FROM {s}.queue", "SELECT * FROM {s}.task_runs", "SELECT * FROM {s}.entry",
        "SELECT * FROM {s}.ready", "SELECT * FROM {s}.worker", "SELECT nextval('{s}.entry_seq')",
        "INSERT INTO {s}.entry " + ENTRY, "INSERT INTO {s}.ready(lane, key, fence, attempt, slot, skips, keyed, id) VALUES"
        " (0, 0, 0, 0, 0, 0, false, '')", "DELETE FROM {s}.ready", "UPDATE {s}.ready SET key = 0", "TRUNCATE {s}.ready",
        "SELECT * FROM {s}.get('x')", "SELECT {s}.cancel('x')", "SELECT {s}.retry('x')", "SELECT {s}.fence_ok('x', 1)",
        "SELECT {s}._wake('{}')", "SELECT * FROM {s}._discard('{}')", "SELECT * FROM {s}._cancel(0, '{}')",
        "INSERT INTO {s}.paused VALUES ('default', 0)", "CREATE TABLE {s}.mine()",
        "CREATE FUNCTION {s}.enqueue(text, text) RETURNS text LANGUAGE sql AS 'SELECT 1'", "DROP TABLE {s}.ready",
    ],
    "read": [
        "SELECT * FROM {s}.entry", "SELECT * FROM {s}.ended", "SELECT * FROM {s}.ready", "SELECT * FROM {s}.lease",
        "SELECT * FROM {s}.ukey", "SELECT * FROM {s}._job", "SELECT nextval('{s}.entry_seq')", "SELECT {s}.enqueue('t')",
        "SELECT {s}.enqueue_many('t', '{1}')", "SELECT {s}.cancel('x')", "SELECT {s}.retry('x')", "SELECT {s}.fence_ok('x', 1)",
        "DELETE FROM {s}.job", "UPDATE {s}.queue SET paused = true", "INSERT INTO {s}.paused VALUES ('default', 0)",
        "TRUNCATE {s}.entry", "CREATE TABLE {s}.mine()", "DROP VIEW {s}.job",
    ],
    "worker": [
        "CREATE TABLE {s}.mine()", "CREATE FUNCTION {s}.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'", "DROP TABLE {s}.ready",
        "ALTER TABLE {s}.ready ADD x int", "TRUNCATE {s}.ready", "TRUNCATE {s}.ukey", "CREATE INDEX ON {s}.ready(fence)",
        "UPDATE {s}.schema_version SET version = 9", "INSERT INTO {s}.schema_version VALUES (9, 9)", "DROP SCHEMA {s} CASCADE",
        "CREATE OR REPLACE FUNCTION {s}.cancel(id text) RETURNS text LANGUAGE sql AS 'SELECT 1'",
        "ALTER FUNCTION {s}.enqueue SECURITY INVOKER", "CREATE ROLE mine", "COPY {s}.lane TO PROGRAM 'true'",
    ],
    "none": [
        "SELECT {s}.enqueue('t')", "SELECT {s}.cancel('x')", "SELECT * FROM {s}.job", "SELECT * FROM {s}.entry",
        "SELECT {s}.fence_ok('x', 1)", "SELECT {s}._id('')", "CREATE TABLE {s}.mine()",
    ],
}


@pytest.mark.parametrize("role", FORBIDDEN)
def test_nothing_but_what_a_role_is_for(db, users, role):
    sql = users(role)
    for statement in FORBIDDEN[role]:
        with pytest.raises(SqlError) as why:
            sql(statement)
        assert re.search("permission denied|must be (owner|superuser)|cannot (delete from|update) view|pg_execute_server_program",
                         str(why.value)), why.value


def test_a_role_with_usage_alone_can_call_nothing(db, users):
    db.sql("GRANT USAGE ON SCHEMA {s} TO {s}_none_user")
    sql = users("none")
    for call in ("{s}.enqueue('t')", "{s}.cancel('x')", "{s}.retry('x')", "{s}.fence_ok('x', 1)", "{s}._id('')"):
        with pytest.raises(SqlError, match="permission denied for function"):
            sql(f"SELECT {call}")


def test_a_producer_cannot_put_its_own_tables_before_ours(stint, db, users):
    sql = users("enqueue")
    for table in ("entry", "ready", "tally", "lane", "ukey", "paused"):
        sql(f"CREATE TEMP TABLE {table} (LIKE pg_class)")
    sql("SET search_path = pg_temp, public")
    id = sql("SELECT {s}.enqueue('t', key => 'k')")[0][0]
    assert stint.state(id) == "pending"


def test_enqueue_works_behind_a_pooler(stint, pen, db, cluster):
    with PgBouncer(pen, cluster) as pooler, pooler.session() as session:
        ids = session(f"SELECT {db.schema}.enqueue_many('t', '{{1,2,3}}')")
        session(f"BEGIN; SELECT {db.schema}.enqueue('t'); ROLLBACK")
        assert len(ids) == 3 and stint.counts() == {"pending": 3}


# ---- the version, and examples ----


def test_the_version_before_works_without_the_api(stint, db):
    stint.config({"t": stint.sh("true")})
    id = db.value("SELECT {s}.enqueue('t')")
    stint("migrate", "down", "--to", "1", "--yes")
    assert db.value("SELECT count(*) FROM information_schema.views WHERE table_schema = '{s}'") == "0"
    stint("migrate", "up")
    stint.work_off()
    assert db.value(f"SELECT state FROM {{s}}.get('{id}')") == "succeeded"


@pytest.fixture
def example(stint, cluster):
    """A database of its own, with the store in schema stint, as in the manual."""
    cluster.sql("CREATE DATABASE example")
    stint.env["STINT_STORE"] = cluster.url(database="example")
    stint("migrate", "up")
    yield cluster
    cluster.sql("DROP DATABASE example WITH (FORCE)")
    for role in (*(f"stint_{r}" for r in ROLES), "shop", "dashboard", "machine"):
        cluster.sql(f"DROP ROLE IF EXISTS {role}")


def test_the_sql_of_the_manual_runs(stint, example):
    text = (ROOT / "docs" / "postgres.md").read_text()
    blocks = re.findall(r"```sql\n(.*?)```", text, re.S)
    assert len(blocks) > 5
    with example.session(database="example") as session:
        for block in blocks:
            session(block)
        assert int(session("SELECT count(*) FROM stint.job")[0][0]) > 5
    stint.config({"receipt": stint.sh("true")})
    stint.work_off()


def test_the_psycopg_example_enqueues_with_the_order(stint, example):
    example.sql("CREATE TABLE orders (id text PRIMARY KEY)", database="example")
    command = [sys.executable, ROOT / "examples" / "python" / "enqueue_psycopg.py", example.url(database="example")]
    id = subprocess.run([*command, "42"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    job = stint.show(id)
    assert (job["type"], job["queue"], job["payload"]) == ("receipt", "mail", {"order": "42"})
    assert subprocess.run([*command, "42"], stderr=subprocess.DEVNULL).returncode != 0  # the order is there already
    assert example.value("SELECT count(*) FROM stint.job", database="example") == "1"
