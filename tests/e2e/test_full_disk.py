# SPDX-License-Identifier: Apache-2.0
"""A full disk: said clearly, nothing lost, and all well again when there is room."""

import errno
import os

from kit import alive, until


def fill(disk, leave=0):
    """Writes a file until there is no room, then gives back `leave` bytes."""
    path = disk / "ballast"
    with open(path, "ab", buffering=0) as f:
        size = 65536
        while size:
            try:
                f.write(b"x" * size)
            except OSError as e:
                assert e.errno == errno.ENOSPC
                size //= 2
    if leave:
        os.truncate(path, max(0, path.stat().st_size - leave))
    return path


def test_an_enqueue_on_a_full_disk_says_so_and_nothing_is_lost(stint, small_disk):
    where = ("--store", f"sqlite:{small_disk}/stint.db")
    ids = [stint.enqueue("t", "{}", *where) for _ in range(5)]
    ballast = fill(small_disk)
    refused = None
    for n in range(200):  # what room the files themselves still have is used up first
        done = stint("enqueue", "t", '"' + "x" * 4000 + '"', "--id", f"job-{n}", "--json", *where, check=None)
        if done.code != 0:
            refused = done
            break
        ids.append(f"job-{n}")
    assert refused and refused.code == 4 and refused.error["code"] == "ESTORE", repr(refused)
    assert "full" in refused.error["message"] and refused.error["remedy"]
    text = stint("enqueue", "t", '"' + "x" * 4000 + '"', *where, check=4)
    assert b"full" in text.err
    batch = "".join(f'{{"type":"t","payload":"{"y" * 3000}"}}\n' for _ in range(50))
    stint("enqueue", "--batch", "-", *where, input=batch, check=4)

    ballast.unlink()
    assert {job["id"] for job in stint.list_all("--limit", "1000", *where)} == set(ids)
    after = stint.enqueue("t", "{}", *where)
    assert stint.json("job", "show", after, *where)["state"] == "pending"


def test_a_worker_survives_a_full_disk_and_finishes_when_there_is_room(stint, small_disk):
    where = ("--store", f"sqlite:{small_disk}/stint.db")
    stint.config({"t": stint.sh("until [ -e $D/go ]; do sleep 0.05; done; printf '%4000s' x")},
                 worker={"lease": "60s", "poll": "200ms", "results_dir": str(stint.dir / "results")},
                 store=f"sqlite:{small_disk}/stint.db")
    ids = [stint.enqueue("t", "{}", *where) for _ in range(8)]
    with stint.worker("--slots", "8") as worker:
        until(lambda: stint.counts() == {"running": 8}, "all to run")
        ballast = fill(small_disk)
        stint.go()
        worker.said("full")
        assert alive(worker.pid)
        ballast.unlink()
        for id in ids:
            job = stint.until_state(id, "succeeded")
            assert (job["attempt"], len(job["result"])) == (1, 4000)
        assert alive(worker.pid)
