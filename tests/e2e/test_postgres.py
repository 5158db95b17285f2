# SPDX-License-Identifier: Apache-2.0
"""The PostgreSQL store as a user meets it: its schema, its connections, its wake-ups, and what it says when it cannot.

What goes wrong on purpose under load is in test_postgres_chaos.py; the rest of the program runs on PostgreSQL by
STINT_TEST_STORE=postgres (see conftest.py).
"""

import collections
import contextlib
import json
import signal
import subprocess
import time
import urllib.parse

import pytest

from kit import alive, until
from pgkit import Cluster, PgBouncer, Proxy, SqlError, Where, url_of

IDLE = {"poll": "60s", "lease": "60s", "renew": "20s"}  # whoever is quick with this was woken
QUICK = 10  # seconds: far from any poll, and enough for a busy machine
SECRET = "hush-5ecret"


def picked_up(stint, add):
    """Seconds from the return of add(), which gives an id, until that job has started."""
    id = add()
    added = time.monotonic()
    stint.until_started(id)
    return time.monotonic() - added


def asleep(pg, n=1):
    """Waits until n workers have gone to sleep: they hold their lock."""
    until(lambda: int(pg.value("SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"))
          >= n, f"{n} worker(s) to be asleep")


def commits(pg):
    return int(pg.value("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"))


# ---- the schema ----


def test_the_first_command_makes_the_schema(stint, pg):
    assert pg.value("SELECT to_regnamespace('{s}')") is None
    id = stint.enqueue("t")
    assert pg.value("SELECT count(*) FROM {s}.schema_version") >= "1"
    assert stint.state(id) == "pending"


def test_the_first_worker_makes_the_schema(stint, pg):
    stint.config({"t": stint.sh("true")})
    with stint.worker():
        assert stint.until_state(stint.enqueue("t"), "succeeded")


def test_programs_that_all_come_first_make_one_schema(stint):
    first = [stint.start("enqueue", "t", str(n), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for n in range(6)]
    for process in first:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert stint.counts() == {"pending": 6}


def test_migrate_status_up_and_down(stint, pg):
    status = stint.json("migrate", "status")
    assert status["have"] == 0 < status["want"] and status["pending"] == list(range(1, status["want"] + 1))
    assert "stint migrate up" in stint("migrate", "status").text
    assert pg.value("SELECT to_regnamespace('{s}')") is None, "status only looks"
    up = stint.json("migrate", "up")
    assert (up["before"], up["have"], up["pending"]) == (0, up["want"], [])
    assert "nothing to do" in stint("migrate").text
    stint.enqueue("t")
    stint.refuses("migrate", "down", "--to", "0", code=2, says=["every job", "--yes"])
    assert stint.counts() == {"pending": 1}
    assert stint.json("migrate", "down", "--to", "0", "--yes")["have"] == 0
    stint.refuses("job", "list", code=4, says=["no store", "stint migrate up"], json_code="ESTORE")
    stint("migrate", "up")
    assert stint.list_all() == []


def test_a_table_of_somebody_else_beside_ours_is_told_and_not_taken_away(stint, pg):
    stint("migrate", "up")
    pg.sql("CREATE TABLE {s}.orders (id text)")
    hit, = [f for f in stint.json("doctor", check=None)["findings"] if "orders" in f["what"]]
    assert hit["severity"] == "warning"
    stint.refuses("migrate", "down", "--to", "0", "--yes", code=1, says=["orders", "SET SCHEMA public"])
    assert pg.value("SELECT count(*) FROM {s}.orders") == "0"
    status = stint.json("migrate", "status")
    assert status["have"] == status["want"], "nothing was taken away"
    pg.cluster.sql(hit["remedy"])
    stint("migrate", "down", "--to", "0", "--yes")
    pg.cluster.sql("DROP TABLE public.orders")


def test_what_migrate_sql_prints_makes_the_schema(stint, pg):
    text = stint("migrate", "sql").text
    assert pg.value("SELECT to_regnamespace('{s}')") is None
    pg.sql(text)
    status = stint.json("migrate", "status")
    assert status["have"] == status["want"]
    assert "nothing to do" in stint("migrate", "sql").text
    stint.config({"t": stint.sh("true")})
    id = stint.enqueue("t")
    stint.work_off()
    assert stint.state(id) == "succeeded"


def test_programs_refuse_an_older_schema_and_say_the_command(stint):
    stint.config({"t": stint.sh("true")})
    assert stint.json("migrate", "up")["have"] > 1
    assert stint.json("migrate", "down", "--to", "1", "--yes")["have"] == 1
    for command in (["worker", "--once"], ["worker"], ["enqueue", "t", "{}"], ["job", "list"]):
        stint.refuses(*command, code=4, says=["schema version 1", "stint migrate up"], json_code="ESTORE")
    assert stint.json("migrate", "status")["pending"] == list(range(2, stint.json("migrate", "status")["want"] + 1))
    found = [f for f in stint("doctor", "--json", check=None).json["findings"] if "schema version 1" in f["what"]]
    assert [(f["severity"], f["remedy"]) for f in found] == [("error", "run `stint migrate up`")]
    stint("migrate", "up")
    stint.work_off()


def test_a_worker_role_that_would_migrate_down_is_sent_to_the_owner(stint, pg):
    stint("migrate", "up")
    with pg.cluster.session() as session:
        session(f"CREATE ROLE hand_{pg.schema} LOGIN IN ROLE {pg.schema}_worker")
    error = stint.refuses("migrate", "down", "--yes", "--store", pg.url(user=f"hand_{pg.schema}"), code=4,
                          says="permission denied", json_code="ESTORE")
    assert "owner" in error["remedy"] and "GRANT" not in error["remedy"]


def test_who_may_not_connect_is_told_the_grant(stint, pg):
    user, database = f"out_{pg.schema}", f"shut_{pg.schema}"
    with pg.cluster.session() as session:
        session(f"CREATE ROLE {user} LOGIN")
        session(f"CREATE DATABASE {database}")
        session(f"REVOKE CONNECT ON DATABASE {database} FROM PUBLIC")
        url = pg.cluster.url(pg.schema, user=user, database=database)
        error = stint.refuses("job", "list", "--store", url, code=4, says="permission denied", json_code="ESTORE")
        grant = error["remedy"].partition(": ")[2]
        assert grant == f'GRANT CONNECT ON DATABASE "{database}" TO "{user}"'
        session(grant)
    stint.refuses("job", "list", "--store", url, code=4, says="there is no store")
    pg.sql(f"DROP DATABASE {database}")


def test_a_running_worker_waits_for_a_schema_that_it_knows(stint, pg):
    """What it has open goes on; on a new connection it looks again, and says what is wrong until it is right."""
    stint.config({"t": stint.sh("true")}, worker={"poll": "200ms"})
    with stint.worker() as worker:
        stint.until_state(stint.enqueue("t"), "succeeded")
        stint("migrate", "down", "--to", "1", "--yes")
        pg.cluster.terminate()
        worker.said("store.away")
        worker.said("stint migrate up")
        stint("migrate", "up")
        assert stint.until_state(stint.enqueue("t"), "succeeded")
        worker.stop()


@pytest.mark.parametrize("compat, accepted", [(0, True), (1, False)])
def test_a_worker_beside_a_newer_schema(stint, pg, compat, accepted):
    """One that the newer schema was made to bear goes on; another one is told to be replaced."""
    want = stint.json("migrate", "up")["want"]
    pg.sql(f"INSERT INTO {{s}}.schema_version(version, compat) VALUES ({want + 1}, {want + compat})")
    stint.config({"t": stint.sh("true")})
    if accepted:
        id = stint.enqueue("t")
        stint.work_off()
        assert stint.state(id) == "succeeded"
        assert "newer than this program" in stint("migrate", "status").text
        return
    for command in (["worker", "--once"], ["worker"], ["enqueue", "t", "{}"], ["migrate", "up"]):
        done = stint(*command, check=4)
        assert f"schema version {want + 1}" in done.err.decode() and "newer stint" in done.err.decode(), done


def test_a_database_that_lacks_a_character_holds_up_no_worker(stint, pg):
    said = json.dumps({"ok": False, "exception_class": "E", "message": "caf\u00e9 \u65e5\u672c"}, ensure_ascii=False)
    stint.config({"bad": stint.sh(f"echo '{said}'", retry={"max_attempts": 1}), "t": stint.sh("true")})
    pg.cluster.sql("DROP DATABASE IF EXISTS narrow")
    pg.cluster.sql("CREATE DATABASE narrow ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    stint.env["STINT_STORE"] = pg.cluster.url(database="narrow")
    ids = [stint.enqueue("bad"), stint.enqueue("t", '"\u65e5"')]
    stint.work_off()
    assert [stint.state(id) for id in ids] == ["failed", "succeeded"]
    assert stint.show(ids[0])["error"]["message"].endswith("caf? ??")
    assert stint.show(ids[1])["payload"] == "\u65e5"
    stint.refuses("enqueue", "t", "--key", "\u65e5", code=4, says="LATIN1")
    assert any("LATIN1" in f["what"] for f in stint.json("doctor", check=None)["findings"] if f["severity"] == "warning")


def test_a_worker_may_have_names_that_its_database_lacks(stint, pg):
    """No job can have them there; it is seen and woken all the same."""
    stint.config({"t": stint.sh("true"), "\u65e5": stint.sh("true")}, worker={"poll": "60s", "queues": ["\u65e5", "default"]})
    pg.cluster.sql("DROP DATABASE IF EXISTS narrow")
    pg.cluster.sql("CREATE DATABASE narrow ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    stint.env["STINT_STORE"] = pg.cluster.url(database="narrow")
    with stint.worker() as worker:
        until(lambda: len(stint.json("workers")["workers"]) == 1, "its row")
        assert "?" in json.dumps(stint.json("workers")["workers"][0])
        until(lambda: pg.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'",
                               database="narrow") != "0", "it to sleep")
        stint.until_state(stint.enqueue("t"), "succeeded")
        worker.stop()


def test_two_stores_in_one_database_know_nothing_of_each_other(stint, pg):
    stint.config({"t": stint.sh("true")})
    other = pg.url().replace(f"schema={pg.schema}", f"schema={pg.schema}_b")
    try:
        stint.enqueue("t", "{}", "--id", "one")
        stint.enqueue("t", "{}", "--id", "two", "--store", other)
        stint.work_off("--store", other)
        assert stint.state("one") == "pending" and stint.json("job", "show", "two", "--store", other)["state"] == "succeeded"
        assert stint.refuses("job", "show", "two", code=3)
    finally:
        pg.sql('DROP SCHEMA IF EXISTS "{s}_b" CASCADE')


def test_tables_of_another_program_are_left_alone(stint, pg):
    stint.config({"t": stint.sh("true")})
    pg.sql("CREATE SCHEMA {s}; CREATE TABLE {s}.users(name text)")
    for command in (["enqueue", "t", "{}"], ["worker", "--once"], ["migrate", "up"]):
        stint.refuses(*command, code=4, says=[pg.schema, "another program"], json_code="ESTORE")
    assert pg.value("SELECT count(*) FROM pg_class WHERE relnamespace = '{s}'::regnamespace AND relkind = 'r'") == "1"


# ---- workers ----


def test_once_works_off_what_is_due_and_counts_what_stays(stint):
    stint.config({"ok": stint.sh("echo $STINT_ATTEMPT"), "bad": stint.sh("exit 65")})
    ids = [stint.enqueue("ok") for _ in range(3)]
    stint.enqueue("bad")
    stint.enqueue("ok", "{}", "--delay", "1h")
    report = stint.json("worker", "--once")
    assert (report["succeeded"], report["failed"], report["scheduled"]) == (3, 1, 1)
    assert {stint.show(id)["result"] for id in ids} == {1}
    assert stint.json("workers")["workers"] == []


def test_many_workers_on_one_queue_run_each_job_once(stint, pg):
    jobs, ledger = 600, stint.dir / "ledger"
    stint.config({"t": stint.probe("ledger", ledger)}, worker={"slots": 3, "claim_batch": 10})
    ids = {job["id"] for job in stint.batch([{"type": "t", "payload": n} for n in range(jobs)])}
    workers = [stint.start("worker", "--once", "--name", f"w{n}", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE) for n in range(5)]
    until(lambda: any(worker.poll() is not None for worker in workers), "the first to end", 120)
    assert pg.value("SELECT count(*) FROM {s}.ready") == "0", "it ended while jobs were due: others were quicker, not the last"
    for worker in workers:
        _, err = worker.communicate(timeout=120)
        assert worker.returncode == 0, err
    runs = collections.Counter(line.split()[0] for line in ledger.read_text().splitlines())
    assert set(runs) == ids and set(runs.values()) == {1}
    assert stint.counts() == {"succeeded": jobs}
    assert pg.value("SELECT count(*) FROM {s}.lease") == pg.value("SELECT count(*) FROM {s}.ready") == "0"


def test_a_worker_has_at_most_four_connections(stint, pg):
    stint.config({"t": stint.sh("sleep 0.01")}, worker={"slots": 12, "lease": "2s", "renew": "300ms"})
    stint.batch([{"type": "t"}] * 400)
    until(lambda: not pg.cluster.backends(), "the commands of this test to have left")
    seen = []
    with stint.worker(wait=False) as worker, pg.cluster.session() as session:  # no command of ours beside it
        def busy():
            rows = session("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stint'")
            seen.append(int(rows[0][0]))
            return session(f'SELECT count(*) FROM "{pg.schema}".ready')[0][0] == "0"
        until(busy, "all jobs to be taken")
        asleep(pg)  # with its LISTEN connection
        for _ in range(20):
            busy()
            time.sleep(0.02)
        worker.stop()
    assert 1 <= max(seen) <= 4, seen
    until(lambda: not pg.cluster.backends(), "every connection to be closed with its process")


def test_connections_of_ours_are_not_inherited_by_jobs(stint):
    stint.config({"t": stint.probe("fds")})
    id = stint.enqueue("t")
    stint.work_off()
    assert stint.show(id)["result"] == [0, 1, 2]


# ---- wake-ups ----


def test_a_sleeping_worker_is_woken_by_an_enqueue(stint, pg):
    stint.config({"t": stint.probe("hold")}, worker=IDLE)
    stint.go()
    with stint.worker():
        for _ in range(3):
            asleep(pg)
            assert picked_up(stint, lambda: stint.enqueue("t")) < QUICK


def test_a_sleeping_worker_is_woken_by_an_enqueue_in_sql(stint, pg):
    stint.config({"t": stint.probe("hold")}, worker=IDLE)
    stint.go()
    with stint.worker():
        for _ in range(3):
            asleep(pg)
            assert picked_up(stint, lambda: pg.value("SELECT {s}.enqueue('t', '{}')")) < QUICK


def test_only_workers_of_the_queue_are_woken_and_of_its_parent(stint, pg):
    stint.config({"t": stint.probe("hold")}, worker=IDLE)
    stint.go()
    with stint.worker("--queues", "mail"), stint.worker("--queues", "other") as other:
        asleep(pg, 2)
        assert picked_up(stint, lambda: stint.enqueue("t", "{}", "--queue", "mail.fast")) < QUICK
        assert "job.succeeded" not in other.log


def test_a_worker_of_very_many_queues_leaves_the_server_its_locks(stint, pg):
    stint.config({"t": stint.probe("hold")}, worker={**IDLE, "queues": [f"q{n}" for n in range(9000)]})
    stint.go()
    with stint.worker() as worker:
        asleep(pg)
        assert int(pg.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")) < 64
        assert picked_up(stint, lambda: stint.enqueue("t", "{}", "--queue", "q8999")) < QUICK
        assert "store.listen_lost" not in worker.log


def test_jobs_due_later_need_no_poll(stint, pg):
    stint.config({"t": stint.probe("hold")}, worker=IDLE)
    stint.go()
    with stint.worker():
        asleep(pg)
        assert picked_up(stint, lambda: stint.enqueue("t", "{}", "--delay", "1s")) < QUICK


SET_FORWARD = """
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *ts)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int r = real(id, ts);
    if (id == CLOCK_REALTIME && access(getenv("SET_FORWARD"), F_OK) == 0)
        ts->tv_sec += 7200;
    return r;
}
"""


def test_a_worker_whose_clock_is_set_forward_waits_for_a_due_time_as_before(stint, pg, tmp_path):
    (tmp_path / "set.c").write_text(SET_FORWARD)
    subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", "set.so", "set.c", "-ldl"], cwd=tmp_path, check=True)
    stint.env.update(SET_FORWARD=str(tmp_path / "now"), LD_PRELOAD=str(tmp_path / "set.so"))
    stint.config({"t": stint.sh("true")}, worker={"poll": "10m"})
    stint.enqueue("t", "{}", "--delay", "1h")
    with stint.worker():
        asleep(pg)
        (tmp_path / "now").touch()
        first = stint.enqueue("t")
        stint.until_state(first, "succeeded")
        time.sleep(1)
        before = commits(pg)
        time.sleep(2)
        assert commits(pg) - before < 100, "it asks again and again for a job that is not due"


def test_a_cancel_reaches_a_running_job_at_once(stint):
    stint.config({"t": stint.probe("hold", grace="5s")}, worker=IDLE)
    id = stint.enqueue("t")
    with stint.worker():
        child = stint.until_started(id)
        asked = time.monotonic()
        assert stint.json("job", "cancel", id)["jobs"][0]["asked"]
        until(lambda: not alive(child), "the command to be stopped")
        assert time.monotonic() - asked < 5
        assert stint.until_state(id, "cancelled")["error"]["kind"] == "cancelled"


@pytest.mark.parametrize("how", ["url", "config"])
def test_without_notify_a_worker_polls(stint, pg, how):
    stint.config({"t": stint.probe("hold")}, worker={"poll": "300ms", **({"notify": "off"} if how == "config" else {})})
    stint.go()
    store = pg.url(notify="off") if how == "url" else pg.url()
    with stint.worker("--store", store):
        assert picked_up(stint, lambda: stint.enqueue("t")) < 10
        channels = pg.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stint' AND query LIKE '%LISTEN%'")
        assert channels == "0"


def test_a_lost_listen_connection_is_made_again(stint, pg):
    stint.config({"t": stint.probe("hold")}, worker=IDLE)
    stint.go()
    with stint.worker():
        asleep(pg)
        old = set(pg.cluster.backends())
        pg.cluster.terminate()
        until(lambda: not old & set(pg.cluster.backends()), "the old connections to be gone, and their locks")
        asleep(pg)
        assert picked_up(stint, lambda: stint.enqueue("t")) < QUICK


# ---- poolers ----


@pytest.fixture
def pooler(pen, cluster):
    with PgBouncer(pen, cluster) as pooler:
        yield pooler


def test_behind_a_pooler_everything_works_by_polling(stint, pg, pooler):
    stint.config({"t": stint.sh("echo $STINT_ATTEMPT"), "held": stint.probe("hold", grace="5s")},
                 worker={"poll": "200ms", "lease": "3s", "renew": "500ms"})
    stint.env["STINT_STORE"] = pg.url(pooler)
    id = stint.enqueue("t")
    held = stint.enqueue("held")
    with stint.worker() as worker:
        assert stint.until_state(id, "succeeded")["result"] == 1
        worker.said("store.no_listen")
        assert "listen=" in worker.log
        later = stint.enqueue("t")
        assert stint.until_state(later, "succeeded")
        stint.until_started(held)
        stint("job", "cancel", held)
        stint.until_state(held, "cancelled")
        worker.stop()
    batch = stint.batch([{"type": "t", "key": f"k{n}"} for n in range(50)])
    stint.work_off()
    assert stint.counts()["succeeded"] == len(batch) + 2


def test_behind_a_pooler_a_direct_url_for_listen_gives_wake_ups(stint, pg, pooler):
    stint.config({"t": stint.probe("hold")}, worker=IDLE)
    stint.go()
    stint.env["STINT_STORE"] = pg.url(pooler, listen=urllib.parse.quote(pg.cluster.url(), safe=""))
    with stint.worker() as worker:
        asleep(pg)
        assert picked_up(stint, lambda: stint.enqueue("t")) < QUICK
        assert "store.no_listen" not in worker.log
        listening = pg.cluster.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stint'")
        assert int(listening) <= 1 + 20, "one of its own, and the pooler's"


# ---- several hosts ----


class Nowhere(Where):
    """A folder without a server."""

    def __init__(self, folder):
        self.host = folder


def test_of_several_hosts_the_one_that_answers_is_used(stint, pen, pg):
    stint.config({"t": stint.sh("true")})
    nowhere = Nowhere(pen.folder())
    for places in ([nowhere, pg.cluster], [pg.cluster, nowhere], [nowhere, nowhere, pg.cluster]):
        stint.env["STINT_STORE"] = url_of(places, pg.schema)
        id = stint.enqueue("t")
        stint.work_off()
        assert stint.state(id) == "succeeded"


def test_a_host_that_is_silent_does_not_use_up_the_time_of_the_next(stint, pen, pg):
    with Proxy(pen, pg.cluster) as silent:
        silent.hold()
        stint.env["STINT_STORE"] = url_of([silent, pg.cluster], pg.schema)
        assert stint.enqueue("t", "{}", "--store-timeout", "4s")


# ---- what it says when it cannot ----


def test_a_server_that_is_away_is_exit_4_and_says_which(stint, pg):
    stint.config({"t": stint.sh("true")})
    stint.enqueue("t")
    pg.cluster.stop()
    began = time.monotonic()
    for command in (["enqueue", "t", "{}"], ["job", "list"], ["worker", "--once"], ["queue", "list"]):
        if command[0] == "worker":
            continue  # it waits for ever: the next test
        error = stint.refuses(*command, "--store-timeout", "300ms", code=4, says=str(pg.cluster.host), json_code="EAGAIN")
        assert "start the server" in error["remedy"]
    assert time.monotonic() - began < 30
    pg.cluster.start()
    assert stint.counts() == {"pending": 1}


def test_a_worker_waits_for_a_server_that_is_away(stint, pg):
    stint.config({"t": stint.sh("true")}, worker={"poll": "200ms"})
    id = stint.enqueue("t")
    pg.cluster.stop()
    with stint.worker(wait=False) as worker:
        worker.said("store.away")
        assert alive(worker.pid)
        pg.cluster.start()
        stint.until_state(id, "succeeded")
        worker.said("store.back")
        worker.stop()


def test_a_worker_ends_when_told_though_the_server_is_away(stint, pg):
    stint.config({"t": stint.probe("hold")}, worker={"slots": 4, "shutdown_timeout": "1s"})
    id = stint.enqueue("t")
    with stint.worker() as worker:
        stint.until_started(id)
        pg.cluster.stop()
        stint.go()
        worker.said("store.away")
        worker.signal(signal.SIGTERM)
        worker.ended(4)  # the outcome could not be written, and that is said
    pg.cluster.start()
    assert stint.state(id) == "running"  # until its lease is over


def test_a_server_that_does_not_answer_is_exit_4_in_time(stint, pen, pg):
    stint.enqueue("t")
    with Proxy(pen, pg.cluster) as proxy:
        proxy.hold()
        began = time.monotonic()
        stint.refuses("enqueue", "t", "{}", "--store", pg.url(proxy), "--store-timeout", "500ms", code=4, json_code="EAGAIN",
                      says="does not answer")
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("wrong, remedy", [
    ({"sslmode": "require"}, "check sslmode"),
    ({"service": "nowhere"}, "pg_service.conf"),
    ({"target_session_attrs": "standby"}, "target_session_attrs"),
])
def test_a_url_that_does_not_fit_the_server_says_what_to_change(stint, pen, pg, wrong, remedy):
    with Proxy(pen, pg.cluster, tcp=True) as proxy:
        error = stint.refuses("job", "list", "--store", pg.url(proxy, **wrong), "--store-timeout", "1s", code=4, json_code="EAGAIN")
        assert remedy in error["remedy"]


def test_a_pooler_without_a_connection_left_is_what_is_told(stint, pen, pg):
    stint.enqueue("t")
    with PgBouncer(pen, pg.cluster, max_client_conn=3) as pooler, contextlib.ExitStack() as sessions:
        with contextlib.suppress(SqlError):
            while True:
                sessions.enter_context(pooler.session())
        error = stint.refuses("job", "list", "--store", pg.url(pooler), "--store-timeout", "300ms", code=4, json_code="EAGAIN")
        assert "max_client_conn" in error["remedy"]


@pytest.fixture
def locked(pg):
    """A user with a password, and a URL with another one."""
    with pg.cluster.session() as session:
        try:
            session("CREATE ROLE locked LOGIN PASSWORD 'right'")
        except SqlError as why:  # by a test before this one
            assert "already exists" in str(why)
    return pg.url(user=f"locked:{SECRET}")


def test_a_wrong_password_is_refused_and_printed_nowhere(stint, locked):
    stint.config({"t": stint.sh("true")})
    for command in (["enqueue", "t", "{}"], ["job", "list"], ["worker", "--once"], ["worker"], ["migrate", "status"], ["doctor"],
                    ["dev", "--once"], ["bench", "--jobs", "1", "--only", "batch"]):
        done = stint.run(*command, "--log-level", "debug", "--store", locked)
        assert SECRET not in done.out.decode() + done.err.decode(), done
        assert done.code == (1 if command == ["doctor"] else 4), done
    error = stint.refuses("enqueue", "t", "{}", "--store", locked, code=4, says="password", json_code="ESTORE")
    assert "locked" in error["message"] and "PGPASSWORD" in error["remedy"]


def test_a_right_password_is_printed_nowhere_either(stint, pg, locked):
    pg.sql(f"ALTER ROLE locked PASSWORD '{SECRET}'; GRANT CREATE ON DATABASE postgres TO locked")
    try:
        stint.config({"t": stint.sh("true")})
        for command in (["enqueue", "t", "{}"], ["job", "list"], ["worker", "--once"], ["migrate", "status"], ["doctor"],
                        ["workers"], ["dev", "--once"], ["backup", "x"], ["bench", "--jobs", "10", "--only", "batch"]):
            done = stint.run(*command, "--log-level", "debug", "--store", locked)
            assert SECRET not in done.out.decode() + done.err.decode(), done
        pg.cluster.stop()
        done = stint("enqueue", "t", "{}", "--store", locked, "--store-timeout", "100ms", check=4)
        assert SECRET not in done.err.decode()
        pg.cluster.start()
    finally:
        pg.sql("ALTER ROLE locked PASSWORD 'right'")
        pg.drop()
        pg.sql("REVOKE CREATE ON DATABASE postgres FROM locked")


def test_a_wrong_database_or_schema_is_said(stint, pg):
    stint.config({"t": stint.sh("true")})
    nowhere = pg.url(database="nowhere")
    stint.refuses("enqueue", "t", "{}", "--store", nowhere, code=4, says=["nowhere", "createdb"], json_code="ESTORE")
    stint.refuses("worker", "--once", "--store", nowhere, code=4, says="nowhere", json_code="ESTORE")
    stint.refuses("job", "list", code=4, says=[f"no store in schema {pg.schema}", "stint migrate up"], json_code="ESTORE")
    assert pg.value("SELECT to_regnamespace('{s}')") is None


@pytest.mark.parametrize("url, word", [
    ("postgres://u:{p}@h/x?schema=it's", "schema"),
    ("postgres://u:{p}@h/x?schema=pg_jobs", "schema"),
    ("postgres://u:{p}@h/x?schema=", "schema"),
    ("postgres://u:{p}@h/x?notify=maybe", "notify"),
    ("postgres://u:{p}@h/x?listen=elsewhere", "listen"),
    ("postgres://u:{p}@h/x?nonsense=1", "nonsense"),
    ("postgres://u:{p}@h:port/x", "port"),
    ("postgres://u:{p}%@h/x", "URL"),
    ("postgres://u:my@{p}@h/x", "@"),
    ("postgres://u:my/{p}@h/x", "@"),
    ("postgres://u:{p}/x", "port"),
    ("postgres://h/x?schema=a$b", "schema"),
])
def test_a_url_that_is_wrong_is_exit_2_and_keeps_its_password(stint, url, word):
    error = stint.refuses("enqueue", "t", "{}", "--store", url.format(p=SECRET), code=2, says=word, json_code="EINVAL")
    assert SECRET not in error["message"] + error["remedy"]


def test_a_user_who_may_not_make_the_schema_is_told_what_to_grant(stint, pg):
    with pg.cluster.session() as session:
        session(f"CREATE ROLE guest_{pg.schema} LOGIN")
    url = pg.url(user=f"guest_{pg.schema}")
    says = f'GRANT CREATE ON DATABASE "postgres" TO "guest_{pg.schema}"'
    error = stint.refuses("enqueue", "t", "{}", "--store", url, code=4, says=says, json_code="ESTORE")
    assert "migrate sql" in error["remedy"]
    stint.enqueue("t")
    error = stint.refuses("enqueue", "t", "{}", "--store", url, code=4, says="GRANT", json_code="ESTORE")


def test_a_standby_is_refused_with_the_remedy(stint, pen, pg):
    primary, standby = (Cluster(pen, start=False) for _ in range(2))
    try:
        primary.start()
        stint.enqueue("t", "{}", "--store", primary.url(pg.schema))
        standby.follow(primary)
        until(lambda: standby.value(f"SELECT to_regclass('{pg.schema}.entry') IS NOT NULL") == "t", "the standby to follow")
        error = stint.refuses("enqueue", "t", "{}", "--store", standby.url(pg.schema), code=4, says="read-only")
        assert "target_session_attrs" in error["remedy"]
        both = url_of([standby, primary], pg.schema, target_session_attrs="read-write")
        stint.enqueue("t", "{}", "--store", both)
    finally:
        for server in (standby, primary):
            server.stop(signal.SIGQUIT)
