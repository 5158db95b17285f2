# SPDX-License-Identifier: Apache-2.0
"""Two workers and ten thousand jobs: each is run and finished exactly once."""

import collections
import json
import subprocess

import pytest

JOBS = 10_000


@pytest.mark.long
def test_two_workers_finish_ten_thousand_jobs_exactly_once(stint):
    ledger = stint.dir / "ledger"
    stint.config({"t": stint.probe("ledger", ledger)}, worker={"slots": 8, "lease": "60s"})
    lines = "".join(json.dumps({"type": "t", "payload": n}) + "\n" for n in range(JOBS))
    added = stint.json("enqueue", "--batch", "-", input=lines, timeout=120)["jobs"]
    ids = {job["id"] for job in added}
    assert len(ids) == JOBS and not any(job["duplicate"] for job in added)

    logs = [open(stint.dir / f"log-{n}", "wb") for n in range(2)]
    workers = [stint.start("worker", "--once", "--log-level", "warn", "--name", f"w{n}", stderr=log, stdout=log,
                           stdin=subprocess.DEVNULL) for n, log in enumerate(logs)]
    try:
        for worker in workers:
            assert worker.wait(240) == 0, [(stint.dir / f"log-{n}").read_text()[-2000:] for n in range(2)]
    finally:
        for worker, log in zip(workers, logs):
            if worker.poll() is None:
                worker.kill()
                worker.wait()
            log.close()

    runs = collections.Counter(line.split()[0] for line in ledger.read_text().splitlines())
    assert set(runs) == ids
    assert set(runs.values()) == {1}, "some ran more than once although nothing went wrong"
    assert stint.counts() == {"succeeded": JOBS}
    jobs = stint.list_all("--limit", "1000")
    assert {job["id"] for job in jobs} == ids
    assert {(job["state"], job["attempt"]) for job in jobs} == {("succeeded", 1)}
    assert len({job["worker"] for job in jobs}) == 2, "both workers took part"
