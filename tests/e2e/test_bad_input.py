# SPDX-License-Identifier: Apache-2.0
"""Bad input: a message that names the thing and the remedy, a documented exit code, nothing half-written."""

import os
import sqlite3

import pytest

from kit import until


@pytest.mark.parametrize("payload", ['{"a":', "nope", "{'a':1}", '{"a":1}}', "[1,]", '"\\ud800"x', "01", "NaN"])
def test_a_payload_that_is_not_json_is_refused(stint, payload):
    stint.refuses("enqueue", "t", payload, code=2, says="JSON", json_code="EINVAL")
    assert stint.list_all() == []


def test_a_payload_over_the_limit_is_refused_and_one_at_the_limit_is_not(stint):
    limit = 1 << 20
    fits = '"' + "x" * (limit - 2) + '"'
    id = stint.enqueue("t", "-", input=fits)
    stint.refuses("enqueue", "t", "-", input=fits[:-1] + 'x"', code=2, json_code="EINVAL",
                  says=["the payload has more than 1048576 bytes, the limit is 1048576", "raise limits.payload"])
    assert [job["id"] for job in stint.list_all()] == [id]


def test_the_payload_limit_can_be_configured(stint):
    stint.config(limits={"payload": "1KiB"})
    stint.enqueue("t", '"' + "x" * 1000 + '"')
    stint.refuses("enqueue", "t", '"' + "x" * 1100 + '"', code=2,
                  says=["the payload has 1102 bytes, the limit is 1024", "raise limits.payload"])


@pytest.mark.parametrize("args, word", [
    (["--priority", "32768"], "32767"),
    (["--priority", "-32769"], "-32768"),
    (["--priority", "high"], "priority"),
    (["--queue", "two words"], "queue"),
    (["--queue", ""], "queue"),
    (["--queue", "a..b"], "queue"),
    (["--queue", "x" * 129], "128"),
    (["--delay", "90"], "delay"),
    (["--delay", "-5s"], "delay"),
    (["--delay", "5 parsecs"], "delay"),
    (["--at", "tomorrow"], "at"),
    (["--at", "2025-13-01T00:00:00Z"], "at"),
    (["--at", "2099-01-01T00:00:00Z", "--delay", "5s"], "delay"),
    (["--max-attempts", "-2"], "max-attempts"),
    (["--max-attempts", "many"], "max-attempts"),
    (["--max-attempts", "1000001"], "1000000"),
    (["--timeout", "soon"], "timeout"),
    (["--unique", "sometimes"], "unique"),
    (["--key", ""], "key"),
    (["--key", "k" * 513], "512"),
    (["--colour", "red"], "colour"),
])
def test_a_wrong_option_is_refused_and_named(stint, args, word):
    stint.refuses("enqueue", "t", "{}", *args, code=2, says=word)
    assert stint.list_all() == []


@pytest.mark.parametrize("type", ["", "two words", "a*", "x" * 129, 'qu"ote', "tab\tbed"])
def test_a_wrong_type_name_is_refused(stint, type):
    stint.refuses("enqueue", type, "{}", code=2, says="type")


def test_an_unknown_state_is_refused_with_the_states_there_are(stint):
    stint.enqueue("t")
    stint.refuses("job", "list", "--state", "sleeping", code=2, says=["sleeping", "pending"])


@pytest.mark.parametrize("args", [["job", "show"], ["job", "wait"], ["job", "cancel"], ["job", "retry"],
                                  ["job", "logs"], ["dead", "show"], ["dead", "retry"], ["dead", "discard"],
                                  ["explain"]])
def test_a_job_that_is_not_there_is_exit_3(stint, args):
    stint.enqueue("t")
    stint.refuses(*args, "no-such-job", code=3, says="no-such-job", json_code="ENOTFOUND")


def test_an_unknown_command_or_verb_says_what_was_meant(stint):
    stint.refuses("enqeue", "t", code=2, says=["enqeue", "enqueue"])
    stint.refuses("job", "shwo", "x", code=2, says=["shwo", "show"])
    assert stint(check=2).code == 2


def test_missing_and_extra_arguments_are_usage_errors(stint):
    stint.refuses("enqueue", code=2, says="TYPE")
    stint.refuses("job", "show", code=2)
    stint.refuses("job", "show", "a", "b", "c", code=2)
    stint.refuses("backup", code=2)


def test_slots_have_one_limit_wherever_they_are_given(stint):
    stint.config()
    stint.refuses("worker", "--once", "--slots", "4097", code=2, says=["--slots", "4096"])
    stint.refuses("bench", "--slots", "4097", code=2, says=["--slots", "4096"])
    stint.refuses("worker", "--once", code=2, says=["STINT_SLOTS", "4096"], env={"STINT_SLOTS": "4097"})


@pytest.mark.parametrize("parts", ["nonsense", "drain,nonsense", "", "drain,", "enqueue batch", "batches", "drai"])
def test_bench_knows_its_parts_by_their_whole_names(stint, parts):
    stint.refuses("bench", "--only", parts, code=2, says=["--only", "enqueue, batch, drain, pickup and idle"])
    assert list(stint.dir.iterdir()) == []


def test_a_negative_number_is_an_argument_and_no_option(stint):
    for number in ("-5", "-0.5", "-1e3", "-12"):
        id = stint.json("enqueue", "-p", "-3", "t", number)["id"]
        assert (stint.show(id)["payload"], stint.show(id)["priority"]) == (float(number), -3)
    assert stint.show(stint("enqueue", "t", "--", "-7").text.strip())["payload"] == -7
    stint.refuses("enqueue", "t", "-5x", code=2, says="unknown option '-5x'")


# ---- stint.yaml ----


def write(stint, text):
    (stint.dir / "stint.yaml").write_text(text)


@pytest.mark.parametrize("text, line, word", [
    ("worker:\n  slots: 4\n  slotz: 3\n", 3, "slotz"),
    ("nonsense: 1\n", 1, "nonsense"),
    ("worker:\n  lease: 60\n", 2, "lease"),
    ("worker:\n  lease: soon\n", 2, "lease"),
    ("worker:\n  slots: -1\n", 2, "slots"),
    ("worker:\n  slots: many\n", 2, "slots"),
    ("types:\n  t:\n    run: [\n", 4, ""),
    ("types:\n  t:\n    run: []\n", 3, "run"),
    ("types:\n  t:\n    run: [/bin/echo, '{payload}']\n", 3, "add `payload: argument`"),
    ("types:\n  t:\n    timeout: 3s\n", 2, "run"),
    ("types:\n  t:\n    run: [/bin/true]\n    retry: {backoff: sideways}\n", 4, "sideways"),
    ("types:\n  t:\n    run: [/bin/true]\n    payload: telepathy\n", 4, "telepathy"),
    ("types:\n  two words:\n    run: [/bin/true]\n", 2, "two words"),
    ("limits:\n  payload: huge\n", 2, "payload"),
    ("retention:\n  succeeded: 7\n", 2, "succeeded"),
    ("worker: {slots: 1}\nworker: {slots: 2}\n", 2, "worker"),
    ("- a list\n", 1, ""),
])
def test_a_wrong_configuration_is_refused_with_file_and_line(stint, text, line, word):
    write(stint, text)
    stint.refuses("worker", "--once", code=2, says=[f"stint.yaml:{line}", word])


def test_a_configuration_that_was_asked_for_and_is_not_there_is_refused(stint):
    stint.refuses("worker", "--once", "--config", "elsewhere.yaml", code=2, says="elsewhere.yaml")


def test_a_program_that_is_missing_is_named_with_file_and_line(stint):
    write(stint, "types:\n  t:\n    run: [no-such-program-here]\n")
    stint.refuses("worker", "--once", code=2, says=["stint.yaml:3", "no-such-program-here"])
    write(stint, "types:\n  t:\n    run: [./not-there.sh]\n")
    stint.refuses("worker", "--once", code=2, says=["stint.yaml:3", "not-there.sh"])


def test_a_program_that_may_not_be_executed_is_named(stint):
    (stint.dir / "script.sh").write_text("#!/bin/sh\n")
    write(stint, "types:\n  t:\n    run: [./script.sh]\n")
    stint.refuses("worker", "--once", code=2, says=["stint.yaml:3", "script.sh"])


@pytest.mark.parametrize("name, value", [("STINT_SLOTS", "many"), ("STINT_POLL", "5"), ("STINT_QUEUES", "a b"),
                                         ("STINT_LOG_LEVEL", "loud"), ("STINT_LOG_FORMAT", "xml")])
def test_a_wrong_variable_is_refused_and_named(stint, name, value):
    stint.config()
    stint.refuses("worker", "--once", code=2, says=name, env={name: value})


# ---- the store ----


def test_a_file_that_is_not_sqlite_is_refused_and_left_alone(stint):
    text = "Dear diary, " * 1000
    (stint.dir / "diary").write_text(text)
    for args in (["enqueue", "t", "{}"], ["job", "list"], ["queue", "list"], ["migrate", "status"]):
        stint.refuses(*args, "--store", "sqlite:diary", code=4, says="diary", json_code="ESTORE")
    assert (stint.dir / "diary").read_text() == text
    assert not list(stint.dir.glob("diary-*"))


def test_a_database_that_is_not_ours_is_refused_and_left_alone(stint):
    with sqlite3.connect(stint.dir / "app.db") as db:
        db.execute("CREATE TABLE users (name)")
    stint.refuses("enqueue", "t", "{}", "--store", "sqlite:app.db", code=4, says="app.db", json_code="ESTORE")
    with sqlite3.connect(stint.dir / "app.db") as db:
        assert [row[0] for row in db.execute("SELECT name FROM sqlite_master")] == ["users"]


def test_a_schema_newer_than_the_program_is_refused(stint):
    id = stint.enqueue("t")
    with sqlite3.connect(stint.dir / "stint.db") as db:
        (was,) = db.execute("PRAGMA user_version").fetchone()
        db.execute("PRAGMA user_version = 9999")
    stint.refuses("enqueue", "t", "{}", code=4, says="9999", json_code="ESTORE")
    stint.refuses("job", "list", code=4, says="9999", json_code="ESTORE")
    for verb in ([], ["up"], ["status"]):
        stint.refuses("migrate", *verb, code=4, says=["9999", "use a newer stint"], json_code="ESTORE")
    with sqlite3.connect(stint.dir / "stint.db") as db:
        db.execute(f"PRAGMA user_version = {was}")
    assert [job["id"] for job in stint.list_all()] == [id]


def test_reading_a_store_that_is_not_there_makes_none(stint):
    stint.refuses("job", "show", "x", code=4, says="stint.db", json_code="ESTORE")
    assert not (stint.dir / "stint.db").exists()


@pytest.mark.parametrize("env, flags, says", [
    ({}, ["--store", "mysql://u:secret@localhost/x"], ["--store", "kind mysql", "sqlite:PATH"]),
    ({"STINT_STORE": "amqp://:secret@h"}, [], ["STINT_STORE", "kind amqp", "sqlite:PATH"]),
    ({"DATABASE_URL": "mysql://u:secret@h/x"}, [],
     ["DATABASE_URL", "kind mysql", "STINT_STORE=sqlite:stint.db, or `store: sqlite:stint.db`"]),
    ({"REDIS_URL": "memcached://:secret@h"}, [], ["REDIS_URL", "kind memcached", "STINT_STORE=sqlite:stint.db"]),
])
def test_a_store_of_a_kind_that_is_not_there_says_where_it_came_from(stint, env, flags, says):
    for args in (["enqueue", "t", "{}"], ["job", "list"]):
        error = stint.refuses(*args, *flags, code=2, says=says, env=env)
        assert "secret" not in str(error)
    done = stint("doctor", *flags, env=env, check=1)
    assert all(word in done.text for word in says) and "secret" not in done.text


def test_a_store_of_a_kind_that_is_not_there_in_the_configuration_has_its_line(stint):
    write(stint, "worker:\n  slots: 1\nstore: mysql://u:secret@localhost/x\n")
    error = stint.refuses("job", "list", code=2, says=["stint.yaml:3:8: store", "kind mysql"])
    assert "secret" not in str(error)


def test_a_store_in_a_directory_that_is_not_there_is_given_up_after_the_store_timeout(stint):
    for args in (["enqueue", "t", "{}"], ["job", "list"]):
        stint.refuses(*args, "--store", "sqlite:no/such/dir/stint.db", "--store-timeout", "50ms", code=4,
                      says=["no/such/dir", "make the directory"], json_code="EAGAIN")


def test_a_worker_waits_for_the_directory_of_its_store_and_then_works(stint):
    stint.config({"big": stint.sh("head -c 70000 /dev/zero | tr '\\0' x")})
    store = ["--store", "sqlite:later/stint.db"]
    with stint.worker(*store, wait=False) as worker:
        worker.said("store.away")
        assert "there is no directory later for the store" in worker.log
        (stint.dir / "later").mkdir()
        worker.said("store.back")
        id = stint.enqueue("big", "{}", *store)
        until(lambda: stint.json("job", "show", id, *store)["state"] == "succeeded", "the job to run")
        job = stint.json("job", "show", id, *store)
        assert job["result_ref"].startswith(str(stint.dir / "later" / "stint-results") + "/")
        worker.stop()


def test_a_read_only_directory_is_named_and_nothing_is_written(stint, read_only_dir):
    stint.refuses("enqueue", "t", "{}", "--store", f"sqlite:{read_only_dir}/stint.db", code=4,
                  says=str(read_only_dir), json_code="ESTORE")
    assert os.listdir(read_only_dir) == []


def test_a_read_only_store_refuses_to_write_and_keeps_its_jobs(stint, small_disk, remount):
    where = f"sqlite:{small_disk}/stint.db"
    id = stint.enqueue("t", "{}", "--store", where)
    remount("ro")
    error = stint.refuses("enqueue", "t", "{}", "--store", where, code=4, json_code="ESTORE")
    assert "read" in error["message"] + error["remedy"]
    remount("rw")
    assert [job["id"] for job in stint.list_all("--store", where)] == [id]


def test_the_store_file_is_private(stint):
    stint.enqueue("t")
    for file in stint.dir.glob("stint.db*"):
        assert file.stat().st_mode & 0o777 == 0o600, file


def test_output_that_cannot_be_written_is_a_failure(stint):
    stint.enqueue("t")
    with open("/dev/full", "wb") as full:
        process = stint.start("job", "list", stdout=full, stderr=full)
        assert process.wait(60) != 0


# ---- remedies ----


@pytest.mark.parametrize("args, remedy", [
    (["t", "{bad"], "in double quotes"),
    (["t", "bad"], "double quotes inside the shell's"),
    (["t", "{}", "--id", ""], "1 to 128 bytes"),
    (["t", "{}", "--id", "x" * 129], "shorten it"),
    (["t", "{}", "--id", "a\tb"], "without control characters"),
    (["t", "{}", "--id", "taken"], "another --id"),
    (["t", "{}", "--key", ""], "1 to 512 bytes"),
    (["t", "{}", "--key", "k" * 513], "shorten it"),
    (["t", "{}", "--meta", "[1]"], "write an object"),
    (["t", "{}", "--meta", "{bad"], "write an object"),
    (["t", "{}", "--queue", ""], "1 to 128 bytes"),
    (["t", "{}", "--unique", "0s"], "forever"),
    (["t", "{}", "--store", ""], "--store sqlite:PATH"),
    (["t", "{}", "--log-level", "loud"], "debug, info, warn, error, off"),
    (["t", "{}", "--color", "red"], "auto, always, never"),
    (["--batch", "not-there"], "- for stdin"),
    (["--batch", ".", "t"], "may read"),
])
def test_a_refused_enqueue_says_what_to_do(stint, args, remedy):
    stint.enqueue("other", "{}", "--id", "taken")
    assert remedy in stint.refuses("enqueue", *args, code=2)["remedy"]


@pytest.mark.parametrize("line, remedy", [
    ("{", "one object"),
    ("[]", "one object"),
    ("{}", 'add "type"'),
    ('{"type":7}', "in double quotes"),
    ('{"type":"t","priority":"high"}', "digits without quotes"),
    ('{"type":"t","priority":40000}', "between -32768 and 32767"),
    ('{"type":"t","max_attempts":-1}', "between 0 and 1000000"),
    ('{"type":"t","delay":"1s","at":"2030-01-01T00:00:00Z"}', "one of them is enough"),
    ('{"type":"t","delay":5}', '"90s"'),
    ('{"type":"t","meta":3}', "{"),
    ('{"type":"t","id":""}', "1 to 128 bytes"),
    ('{"type":"t","key":""}', "1 to 512 bytes"),
    ('{"type":"t","type":"u"}', "keep one"),
    ('{"type":"t","colour":"red"}', "members are"),
    ('{"type":"t","id":"taken"}', "an id of its own"),
])
def test_a_refused_line_of_a_batch_says_what_to_do(stint, line, remedy):
    stint.enqueue("other", "{}", "--id", "taken")
    error = stint.refuses("enqueue", "--batch", "-", input='{"type":"t"}\n' + line, code=2, says="line 2: ")
    assert remedy in error["remedy"]


@pytest.mark.parametrize("name, value, remedy", [
    ("STINT_LOG_LEVEL", "loud", "debug, info, warn, error, off"),
    ("STINT_LOG_FORMAT", "xml", "logfmt, json"),
    ("STINT_SLOTS", "many", "such a number"),
    ("STINT_POLL", "5", "units"),
    ("STINT_POLL", "1ms", "in that range"),
    ("STINT_WORKER_ID", "a\tb", "without control characters"),
])
def test_a_refused_variable_says_what_to_do(stint, name, value, remedy):
    stint.config()
    assert remedy in stint.refuses("worker", "--once", code=2, says=name, env={name: value})["remedy"]


@pytest.mark.parametrize("text, remedy", [
    ("worker: {slots: many}", "between 1 and 4096"),
    ("worker: {slots: 0}", "between 1 and 4096"),
    ("worker: {notify: maybe}", "true or false"),
    ("worker: {slotz: 3}", "the keys here are id, slots"),
    ("worker: [", "correct the YAML"),
    ("types: {t: {run: []}}", "run: [program, argument, ...]"),
    ("types: {t: {run: [/bin/true], cwd: /no/such/dir}}", "make the directory"),
    ("types: {t: {run: [/bin/true], cwd: /etc/passwd}}", "make the directory"),
    ("types: {t: {run: [/bin/true], retry: {jitter: lots}}}", "between 0 and 1"),
    ("types: {t: {run: [/bin/true], retry: {jitter: 2}}}", "between 0 and 1"),
    ("types: {t: {run: [/bin/true], retry: {backoff: sideways}}}", "exponential, linear, fixed, asynq or list"),
    ("types: {t: {run: [/bin/true], retry: {backoff: list}}}", "delays: [10s"),
    ("types: {t: {run: [/bin/true]}}\nqueues: {q: {type: u}}", "under `types:`"),
    ("limits: {payload: huge}", "KiB"),
])
def test_a_refused_configuration_says_what_to_do(stint, text, remedy):
    write(stint, text)
    assert remedy in stint.refuses("worker", "--once", code=2, says="stint.yaml:")["remedy"]


def test_a_store_that_is_busy_says_what_to_do_and_nothing_of_its_insides(stint):
    stint.enqueue("t")
    db = sqlite3.connect(stint.dir / "stint.db", isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    try:
        error = stint.refuses("enqueue", "t", "{}", "--store-timeout", "50ms", code=4, json_code="EAGAIN")
        assert "--store-timeout" in error["remedy"] and "(" not in error["message"]
    finally:
        db.execute("ROLLBACK")
        db.close()
