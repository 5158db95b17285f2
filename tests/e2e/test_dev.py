# SPDX-License-Identifier: Apache-2.0
"""`stint dev` and the examples."""

import json
import signal
import subprocess
from pathlib import Path

from kit import ROOT, until

EXAMPLES = ROOT / "examples"


def example_jobs():
    return [json.loads(line) for line in (EXAMPLES / "jobs.ndjson").read_text().splitlines()]


def test_dev_once_runs_the_examples_and_ends_with_a_summary(stint):
    done = stint("dev", "--once", "--config", EXAMPLES / "stint.yaml", "--store", "sqlite:dev.db",
                 env={"DATABASE_URL": "postgres://nowhere/x", "REDIS_URL": "redis://nowhere"})
    jobs = example_jobs()
    assert f"{len(jobs)} example jobs, {len(jobs)} ended as planned" in done.text
    shown = stint.list_all("--store", "sqlite:dev.db", "--limit", "100")
    assert len(shown) == len(jobs)
    retried = [job for job in shown if job["attempt"] > 1]
    assert [job["state"] for job in retried] == ["succeeded"]


def test_dev_pays_no_heed_to_the_database_of_another_program(stint):
    urls = {"DATABASE_URL": "postgres://x/y", "REDIS_URL": "redis://x"}
    done = stint("dev", "--once", env=urls)
    assert "ended as planned" in done.text
    assert list(stint.dir.glob("*.db"))


def test_dev_once_may_be_repeated(stint):
    for _ in range(2):
        stint("dev", "--once", "--config", EXAMPLES / "stint.yaml", "--store", "sqlite:dev.db")


def test_dev_once_fails_when_a_job_ends_otherwise_than_planned(stint):
    stint.config({"t": stint.sh("exit 65")})
    (stint.dir / "jobs.ndjson").write_text('{"type":"t"}\n')
    stint("dev", "--once", "--config", "stint.yaml", check=1)
    (stint.dir / "jobs.ndjson").write_text('{"type":"t","meta":{"expect":"failed"}}\n')
    stint("dev", "--once", "--config", "stint.yaml", "--store", "sqlite:again.db")


def test_dev_once_refuses_a_job_that_nothing_here_would_run(stint):
    stint.config({"t": stint.sh("true")})
    (stint.dir / "jobs.ndjson").write_text('{"type":"t"}\n\n{"type":"u"}\n')
    stint.refuses("dev", "--once", code=2, says=["jobs.ndjson: line 3: nothing here runs the type u", "types:"])
    stint.config({"t": stint.sh("true"), "u": stint.sh("true")}, worker={"types": ["t"]})
    stint.refuses("dev", "--once", code=2, says="line 3: nothing here runs the type u")
    stint.config({"t": stint.sh("true"), "u": stint.sh("true")}, worker={"queues": ["mail"]})
    stint.refuses("dev", "--once", code=2, says="line 1: nothing here serves the queue default")
    assert not list(stint.dir.glob("*.db"))


def test_one_example_job_is_called_so(stint):
    stint.config({"t": stint.sh("true")})
    (stint.dir / "jobs.ndjson").write_text('{"type":"t"}\n')
    done = stint("dev", "--once")
    assert "1 example job, 1 ended as planned" in done.text and b"1 example job enqueued" in done.err


def test_dev_goes_on_until_it_is_told_to_stop_and_takes_jobs_of_others(stint):
    stint.config({"t": stint.sh("echo fine")})
    (stint.dir / "jobs.ndjson").write_text('{"type":"t"}\n')
    log = open(stint.dir / "dev.log", "wb")
    dev = stint.start("dev", "--config", "stint.yaml", stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        until(lambda: dev.poll() is None and list(stint.dir.glob("*.db")), "dev to make its store")
        store = f"sqlite:{next(stint.dir.glob('*.db'))}"
        until(lambda: (done := stint.run("workers", "--json", "--store", store)).code == 0 and done.json["workers"],
              "dev's worker")
        id = stint.enqueue("t", "{}", "--store", store)
        until(lambda: stint.json("job", "show", id, "--store", store)["state"] == "succeeded", "our job to run")
        dev.send_signal(signal.SIGINT)
        assert dev.wait(60) == 0
    finally:
        dev.kill()
        dev.wait()
        log.close()


def test_the_examples_are_short_enough_to_read_in_a_minute():
    for path in (*EXAMPLES.glob("shell/*"), *EXAMPLES.glob("python/*.py"), *EXAMPLES.glob("c/*.c")):
        assert len(Path(path).read_text().splitlines()) <= 80, path
