# SPDX-License-Identifier: Apache-2.0
"""Upkeep: retention, backups, migrations, and where settings come from."""

import json
import os
import sqlite3
import subprocess

import pytest

from kit import ROOT, until


def test_prune_removes_what_its_retention_has_passed_and_its_files(stint):
    stint.config({"ok": stint.probe("fill", 70000), "bad": stint.sh("exit 65")}, worker={"logs_dir": "logs"})
    ok, bad, cancelled, live = (stint.enqueue(t) for t in ("ok", "bad", "ok", "other"))
    stint("job", "cancel", cancelled)
    stint.work_off()
    result = stint.dir / stint.show(ok)["result_ref"]
    assert result.exists()
    stint.config(retention={"succeeded": "1ms", "failed": "90d", "cancelled": "1ms"})  # a worker would prune by it
    until(lambda: stint("prune") and len(stint.list_all()) == 2, "the prune to find both past their retention")
    assert {job["id"] for job in stint.list_all()} == {bad, live}
    assert not result.exists()
    stint.refuses("job", "show", ok, code=3)


def test_prune_leaves_everything_within_its_retention(stint):
    stint.config({"t": stint.sh("true")})
    id = stint.enqueue("t")
    stint.work_off()
    stint("prune")
    assert stint.state(id) == "succeeded"


def test_a_dry_run_of_prune_counts_and_removes_nothing(stint):
    stint.config({"t": stint.sh("true")})
    id = stint.enqueue("t")
    stint.work_off()
    until(lambda: stint.json("prune", "--dry-run", "--succeeded", "1ms")["removed"] == 1, "the dry run to count one")
    assert stint("prune", "--dry-run", "--succeeded", "1ms").text.startswith("1 job would be removed")
    assert stint.json("prune", "--dry-run", "--succeeded", "1ms") == {"removed": 1, "dry_run": True}
    assert stint.state(id) == "succeeded"


@pytest.mark.long
def test_a_worker_prunes_by_itself(stint):
    stint.config({"t": stint.sh("true")}, retention={"succeeded": "1ms"},
                 worker={"poll": "200ms", "lease": "2s", "renew": "500ms"})
    id = stint.enqueue("t")
    with stint.worker():
        until(lambda: stint("job", "show", id, "--json", check=None).code == 3, "the job to be pruned", 90)


def test_a_backup_taken_under_load_opens_and_has_the_jobs(stint):
    stint.config({"t": stint.sh("true")})
    acked = stint.dir / "acked"
    loop = f"while :; do {stint.binary} enqueue t '{{}}' --json >>acked; done"
    with stint.worker():
        shell = subprocess.Popen(["/bin/sh", "-c", loop], cwd=stint.dir, env=stint.env, start_new_session=True)
        try:
            until(lambda: acked.exists() and acked.read_text().count("\n") >= 20, "some jobs")
            before = {json.loads(line)["id"] for line in acked.read_text().rpartition("\n")[0].splitlines()}
            stint("backup", "copy.db")
        finally:
            os.killpg(shell.pid, 9)
            shell.wait()
    with sqlite3.connect(stint.dir / "copy.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    have = {job["id"] for job in stint.list_all("--store", "sqlite:copy.db", "--limit", "1000")}
    assert before <= have
    assert (stint.dir / "copy.db").stat().st_mode & 0o777 == 0o600


def test_a_backup_does_not_overwrite_a_file(stint):
    stint.enqueue("t")
    (stint.dir / "precious").write_text("mine")
    stint.refuses("backup", "precious", code=2, says="precious")
    assert (stint.dir / "precious").read_text() == "mine"


def test_a_backup_that_cannot_be_made_names_the_file_that_was_asked_for(stint, read_only_dir):
    stint.enqueue("t")
    for target in (read_only_dir / "copy.db", stint.dir / "no" / "copy.db"):
        error = stint.refuses("backup", target, code=4, says=str(target))
        assert "tmp" not in error["message"].replace(str(target), "")


def test_migrate_says_which_schema_is_there_and_which_is_wanted(stint):
    stint.enqueue("t")
    status = stint.json("migrate", "status")
    assert status["have"] == status["want"] > 0
    assert str(status["want"]) in stint("migrate", "status").text


def test_migrate_up_makes_a_store(stint):
    stint("migrate", "up")
    assert stint.json("migrate", "status")["have"] > 0
    stint("migrate", "up")
    assert stint.list_all() == []


def test_a_flag_goes_before_the_environment_and_that_before_the_file(stint):
    stint.config({"t": stint.sh("true")}, worker={"slots": 2}, store="sqlite:from-file.db")
    stint("enqueue", "t")
    stint("enqueue", "t", env={"STINT_STORE": "sqlite:from-env.db"})
    stint("enqueue", "t", "--store", "sqlite:from-flag.db", env={"STINT_STORE": "sqlite:from-env.db"})
    names = {p.name for p in stint.dir.glob("from-*.db")}
    assert names == {"from-file.db", "from-env.db", "from-flag.db"}

    def slots(*flags, env=None):
        with stint.worker(*flags, env=env) as worker:
            got = worker.row["slots"]
            worker.stop()
            return got

    assert slots() == 2
    assert slots(env={"STINT_SLOTS": "3"}) == 3
    assert slots("--slots", "4", env={"STINT_SLOTS": "3"}) == 4


def test_programs_in_different_directories_meet_in_the_store_of_one_file(stint):
    (stint.dir / "elsewhere").mkdir()
    stint.config({"t": stint.sh("true")}, store=f"sqlite:{stint.dir}/one.db")
    id = stint.enqueue("t", "{}", "--config", stint.dir / "stint.yaml", cwd=stint.dir / "elsewhere")
    stint.work_off()
    assert stint.state(id) == "succeeded"


def test_a_store_that_this_program_cannot_speak_to_is_named(stint):
    for url in ("mysql://localhost/x", "amqp://localhost:1"):
        error = stint.refuses("enqueue", "t", "{}", code=2, env={"DATABASE_URL": url})
        assert url.split(":")[0] in error["message"]


def test_stint_config_names_the_file(stint):
    (stint.dir / "other.yaml").write_text("nonsense: 1\n")
    stint.refuses("worker", "--once", code=2, says="other.yaml:1", env={"STINT_CONFIG": "other.yaml"})


def test_version_says_a_version(stint):
    assert stint("version").text == stint("--version").text == f"stint {stint.json('version')['version']}\n"


def test_logs_are_one_json_object_per_line_when_asked_for(stint):
    stint.config({"t": stint.sh("true")})
    stint.enqueue("t")
    lines = stint.work_off("--log-format", "json").err.decode().splitlines()
    events = [json.loads(line) for line in lines if not line.startswith("done: ")]  # the summary is for people
    assert {"ts", "level", "event"} <= set(events[0])
    assert "job.succeeded" in {event["event"] for event in events}


def test_bench_takes_a_plain_path_and_runs_only_the_parts_that_are_named(stint):
    report = stint.json("bench", "--jobs", "20", "--only", "batch", "--store", "b.db")
    assert report["enqueue_batch_per_s"] > 0 and report["enqueue_per_s"] == report["drained"] == 0
    assert (stint.dir / "b.db").exists() and len(stint.list_all("--store", "b.db")) == 20


def test_bench_measures_what_it_promises_and_leaves_nothing_behind(stint):
    report = stint.json("bench", "--jobs", "500", "--samples", "20", "--idle-seconds", "1")
    for key in ("durability", "enqueue_per_s", "enqueue_batch_per_s", "drain_per_s", "pickup_p50_ms", "pickup_p99_ms",
                "idle_private_kb", "idle_cpu_percent"):
        assert report[key], key
    page = (ROOT / "docs/commands.md").read_text()
    sample = next(line for line in page.splitlines() if line.startswith('{"store":"sqlite","version"'))
    assert set(report) == set(json.loads(sample))
    assert list(stint.dir.iterdir()) == []
