# SPDX-License-Identifier: Apache-2.0
"""`doctor`: one test per finding, with the condition really created."""

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import tempfile

import pytest


def findings(stint, severity, *flags, env=None, **popen):
    """What doctor has found of that severity, as "area: what -> remedy"."""
    process = stint.start("doctor", "--json", *flags, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **popen)
    out, err = process.communicate(timeout=60)
    report = json.loads(out)
    assert set(report) == {"ok", "findings"}
    assert all(set(f) == {"severity", "area", "what", "remedy"} for f in report["findings"])
    bad = any(f["severity"] == "error" for f in report["findings"])
    assert (process.returncode, report["ok"]) == ((1, False) if bad else (0, True)), err
    return "\n".join(f"{f['area']}: {f['what']} -> {f['remedy']}" for f in report["findings"]
                     if f["severity"] == severity)


@pytest.fixture
def healthy(stint):
    """A configuration and a store that doctor has nothing to say against."""
    stint.config({"t": stint.sh("true")})
    stint.enqueue("t")
    return stint


def sql(stint, *statements):
    with sqlite3.connect(stint.dir / "stint.db") as db:
        for statement in statements:
            db.execute(statement)
    db.close()


def test_doctor_finds_nothing_wrong_where_nothing_is(healthy):
    assert findings(healthy, "error") == ""
    fine = findings(healthy, "ok")
    for area in ("configuration", "store", "clock", "limits", "caps", "directories"):
        assert f"{area}: " in fine
    text = healthy("doctor").text
    assert "0 errors" in text and "schema version" in text
    assert "1 type, 10 slots" in text and "sqlite SQLite" not in text


def test_doctor_changes_nothing(healthy):
    before = healthy.list_all()
    healthy("doctor")
    assert healthy.list_all() == before and not (healthy.dir / "stint-results").exists()


# ---- configuration ----


def test_doctor_finds_no_configuration(stint):
    assert "no stint.yaml" in findings(stint, "warning")


def test_doctor_finds_a_wrong_key_with_its_line(healthy):
    (healthy.dir / "stint.yaml").write_text("worker:\n  slotz: 3\n")
    assert "stint.yaml:2" in findings(healthy, "error")


def test_doctor_finds_a_wrong_variable(healthy):
    assert "STINT_SLOTS" in findings(healthy, "error", env={"STINT_SLOTS": "many"})


def test_doctor_finds_a_configuration_without_types(healthy):
    healthy.config({})
    assert "no types" in findings(healthy, "warning")


def test_doctor_finds_a_missing_program_and_directory_and_goes_on(healthy):
    healthy.config({"a": {"run": ["no-such-program"]}, "b": {"run": ["./not-there"]},
                    "c": {"run": ["/bin/true"], "cwd": "nowhere"}, "d": {"run": ["/bin/true"]}})
    found = findings(healthy, "error")
    for word in ("no-such-program", "not-there", "nowhere", "stint.yaml:"):
        assert word in found
    assert "type d" in findings(healthy, "ok")


def test_doctor_finds_worker_types_that_are_not_configured_or_left_out(healthy):
    healthy.config({"a": {"run": ["/bin/true"]}, "b": {"run": ["/bin/true"]}}, worker={"types": ["a", "ghost"]})
    found = findings(healthy, "warning")
    assert "ghost" in found and "type b" in found and "type a" not in found


def test_doctor_finds_a_queue_that_is_shadowed(healthy):
    healthy.config({"t": {"run": ["/bin/true"]}}, worker={"queues": ["mail", "mail.fast"]})
    assert "mail.fast is shadowed" in findings(healthy, "warning")


# ---- store ----


def test_doctor_finds_no_store_and_makes_none(stint):
    assert "no store" in findings(stint, "warning")
    assert not (stint.dir / "stint.db").exists()


def test_doctor_finds_that_the_directory_of_the_store_is_missing(stint):
    assert "store: there is no directory no/such" in findings(stint, "error", "--store", "sqlite:no/such/stint.db")


def test_doctor_finds_a_file_that_is_not_a_store(healthy):
    (healthy.dir / "diary").write_text("Dear diary, " * 1000)
    assert "diary" in findings(healthy, "error", "--store", "sqlite:diary")


def test_doctor_finds_a_schema_that_is_too_new(healthy):
    sql(healthy, "PRAGMA user_version = 9999")
    assert "9999" in findings(healthy, "error")


def test_doctor_finds_a_schema_that_is_too_old(healthy):
    (healthy.dir / "empty.db").touch()
    assert "schema version 0" in findings(healthy, "warning", "--store", "sqlite:empty.db")
    assert "schema version 0" in findings(healthy, "warning", "--store", "sqlite:empty.db")


def test_doctor_finds_a_damaged_file(stint):
    stint.config({"t": stint.sh("true")})
    stint.batch([{"type": "t", "payload": "x" * 3000}] * 100)
    path = stint.dir / "stint.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    data = bytearray(path.read_bytes())
    for at in range(8 * 4096, len(data) - 4096, 7 * 4096):
        data[at:at + 64] = b"\xa5" * 64
    path.write_bytes(data)
    found = findings(stint, "error")
    assert "store: " in found


def test_doctor_finds_a_missing_index(healthy):
    (name,) = sqlite3.connect(healthy.dir / "stint.db").execute(
        "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL LIMIT 1").fetchone()
    sql(healthy, f"DROP INDEX {name}")
    assert "index" in findings(healthy, "error")


def test_doctor_finds_counts_that_are_wrong(healthy):
    sql(healthy, "UPDATE count SET n = n + 5")
    assert "counts" in findings(healthy, "error")


def test_doctor_finds_a_key_that_belongs_to_no_job(healthy):
    id = healthy.enqueue("t", "1", "--key", "k")
    sql(healthy, f"UPDATE ukey SET job = 'nobody' WHERE job = '{id}'")
    assert "key" in findings(healthy, "error")


def test_doctor_finds_a_disk_that_is_nearly_full(healthy, small_disk):
    where = f"sqlite:{small_disk}/stint.db"
    healthy.enqueue("t", "{}", "--store", where)
    assert "MiB free" in findings(healthy, "warning", "--store", where)


def test_doctor_finds_a_store_that_others_can_read(healthy):
    (healthy.dir / "stint.db").chmod(0o644)
    assert "can be read by others" in findings(healthy, "warning")


def test_doctor_finds_that_acknowledged_jobs_may_be_undone(healthy):
    assert "power cut" in findings(healthy, "warning", "--store", "sqlite:stint.db?sync=normal")


@pytest.mark.long
def test_doctor_finds_a_log_that_a_long_read_keeps_large(healthy):
    reader = sqlite3.connect(healthy.dir / "stint.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    line = json.dumps({"type": "t", "payload": "x" * 1_000_000}) + "\n"
    for _ in range(5):
        healthy("enqueue", "--batch", "-", input=line * 55)
    assert "write-ahead log" in findings(healthy, "warning")
    reader.close()
    (healthy.dir / "stint.db").unlink()


# ---- the machine ----


def test_doctor_finds_too_few_descriptors_for_the_slots(healthy):
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    found = findings(healthy, "error", env={"STINT_SLOTS": "500"}, preexec_fn=few)
    assert "open files" in found and "ulimit -n" in found


def test_doctor_finds_too_few_processes_for_the_slots(healthy):
    """The limit does not bind root: there the program runs as somebody else."""
    def few():
        resource.setrlimit(resource.RLIMIT_NPROC, (64, 64))
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)

    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        program = shutil.copy(healthy.binary, place)
        os.chmod(program, 0o755)
        process = subprocess.Popen([program, "doctor", "--json"], cwd=place, env={**healthy.env, "STINT_SLOTS": "500"},
                                   preexec_fn=few, stdout=subprocess.PIPE)
        out, _ = process.communicate(timeout=60)
    assert any("processes" in f["what"] and f["severity"] == "warning" for f in json.loads(out)["findings"])


def test_doctor_says_whether_processes_can_be_capped(healthy):
    assert "caps: " in findings(healthy, "ok")


@pytest.mark.parametrize("key, word", [("results_dir", "results"), ("logs_dir", "logs")])
def test_doctor_finds_directories_that_cannot_be_used(healthy, key, word):
    (healthy.dir / "file").touch()
    for path in ("file", "no/such/place"):
        healthy.config({"t": healthy.sh("true")}, worker={key: path})
        assert f"directories: {word}" in findings(healthy, "error")


def test_doctor_finds_a_directory_that_cannot_be_written(healthy, read_only_dir):
    healthy.config({"t": healthy.sh("true")}, worker={"logs_dir": str(read_only_dir)})
    assert str(read_only_dir) in findings(healthy, "error")


def test_doctor_finds_a_temporary_directory_that_is_not_there(healthy):
    """Nobody makes it, though its parent can be written to."""
    for path in ("/no/such/place", str(healthy.dir / "place")):
        assert "temporary" in findings(healthy, "error", env={"TMPDIR": path})
