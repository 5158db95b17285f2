# SPDX-License-Identifier: Apache-2.0
"""A role or a database may have settings of its own, for other programs' sake: ours works all the same."""

import json
import subprocess
import time

import pytest

from kit import until
from pgkit import PgBouncer

SETTINGS = [
    "default_transaction_isolation = 'serializable'", "default_transaction_isolation = 'repeatable read'", "default_transaction_deferrable = on",
    "lock_timeout = '1ms'", "statement_timeout = '20ms'", "idle_in_transaction_session_timeout = '20ms'", "search_path = ''",
    "TimeZone = 'Asia/Kathmandu'", "DateStyle = 'SQL, DMY'", "IntervalStyle = 'sql_standard'", "bytea_output = 'escape'",
    "standard_conforming_strings = off", "client_encoding = 'LATIN1'", "extra_float_digits = -15", "array_nulls = off", "transform_null_equals = on",
    "plan_cache_mode = 'force_custom_plan'", "plan_cache_mode = 'force_generic_plan'", "enable_indexscan = off", "enable_nestloop = off",
    "enable_seqscan = off", "from_collapse_limit = 1", "jit_above_cost = 0", "row_security = off", "xmloption = 'document'",
    "synchronous_commit = off", "lo_compat_privileges = on", "check_function_bodies = off", "quote_all_identifiers = on",
    "client_min_messages = 'debug5'", "vacuum_cost_delay = '100ms'", "work_mem = '64kB'", "default_tablespace = ''",
]


@pytest.fixture
def set_up(stint, pg):
    """Makes us a user with these settings."""
    user = f"odd_{pg.schema}"
    pg.sql(f"CREATE ROLE {user} LOGIN SUPERUSER")

    def use(setting):
        pg.sql(f"ALTER ROLE {user} SET {setting}")
        stint.env["STINT_STORE"] = pg.url(user=user)

    return use


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_of_the_role_changes_nothing(stint, set_up, setting):
    set_up(setting)
    stint.config({"ok": stint.sh("cat"), "bad": stint.sh("test -e mended || exit 65")}, worker={"poll": "60s"})
    key, payload = ("--key", "it's \\ é"), {"a": "\\ 'é'"}
    first = stint.enqueue("ok", json.dumps(payload), *key)
    assert stint.enqueue("ok", "{}", *key) == first
    later = stint.enqueue("ok", "{}", "--delay", "1h")
    bad = stint.enqueue("bad")
    with stint.worker() as worker:
        stint.until_state(first, "succeeded")
        stint.until_state(bad, "failed")
        stint.until_state(stint.enqueue("ok"), "succeeded")  # it is woken
        stint("job", "cancel", later)
        (stint.dir / "mended").touch()
        stint("job", "retry", bad)
        stint.until_state(bad, "succeeded")
        worker.stop()
    assert stint.show(first)["payload"] == payload
    assert not [f for f in stint("doctor", "--json", check=None).json["findings"] if f["severity"] == "error"]
    assert stint.counts() == {"succeeded": 3, "cancelled": 1}


@pytest.mark.parametrize("setting", ["standard_conforming_strings = off", "default_transaction_isolation = 'repeatable read'", "search_path = ''",
                                     "DateStyle = 'SQL, DMY'", "bytea_output = 'escape'", "lock_timeout = '30ms'"])
def test_a_setting_of_the_database_changes_nothing_behind_a_pooler_either(stint, pen, pg, setting):
    """No setting of ours lasts there."""
    database = f"odd_{pg.schema}"
    pg.cluster.sql(f"CREATE DATABASE {database}")
    pg.cluster.sql(f"ALTER DATABASE {database} SET {setting}")
    stint.config({"ok": stint.sh("cat"), "bad": stint.sh("test -e mended || exit 65")})
    try:
        with PgBouncer(pen, pg.cluster) as pooler:
            stint.env["STINT_STORE"] = pooler.url(pg.schema, database=database)
            bad = stint.enqueue("bad", "{}", "--key", "it's \\ é")
            ids = [job["id"] for job in stint.batch([{"type": "ok", "payload": "\\ 'é'"}] * 20)]
            with stint.worker() as worker, stint.worker("--types", "ok"):
                stint.until_state(bad, "failed")
                for id in ids:
                    assert stint.until_state(id, "succeeded")["result"] == "\\ 'é'"
                (stint.dir / "mended").touch()
                stint("job", "retry", bad)
                stint.until_state(bad, "succeeded")
                worker.stop()
            assert not [f for f in stint("doctor", "--json", check=None).json["findings"] if f["severity"] == "error"]
            assert stint.counts() == {"succeeded": 21}
    finally:
        pg.cluster.sql(f"DROP DATABASE {database} WITH (FORCE)")


def test_a_role_that_may_not_write_is_told_which_setting_it_is(stint, pg, set_up):
    stint("migrate", "up")
    set_up("default_transaction_read_only = on")
    stint.refuses("enqueue", "t", "{}", code=4, says="default_transaction_read_only", json_code="ESTORE")
    stint.config({"t": stint.sh("true")})
    with stint.worker(wait=False) as worker:  # with nothing to do it only reads
        worker.said("worker.beat_failed")
        worker.said("default_transaction_read_only")
    error, = [f for f in stint("doctor", "--json", check=1).json["findings"] if f["severity"] == "error"]
    assert "default_transaction_read_only is on" in error["what"] and "RESET default_transaction_read_only" in error["remedy"]
    with pg.cluster.session(user=f"odd_{pg.schema}") as session:
        for statement in error["remedy"].split("; "):  # as that user: it is read-only for whoever pastes it
            session(statement)
    stint.enqueue("t")


def test_what_the_role_allows_for_a_lock_is_not_what_we_wait(stint, pg, set_up):
    stint("migrate", "up")
    set_up("lock_timeout = '1ms'")
    with pg.cluster.session() as psql:
        psql(f"BEGIN; LOCK TABLE {pg.schema}.entry")
        adding = stint.start("enqueue", "t", "{}", "--json", stdout=subprocess.PIPE)
        until(lambda: pg.value("SELECT count(*) FROM pg_locks WHERE NOT granted") != "0" or adding.poll() is not None, "it to wait")
        time.sleep(0.2)
        psql("ROLLBACK")
    out, _ = adding.communicate(timeout=60)
    assert adding.returncode == 0, out
