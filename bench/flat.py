#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""flat.py - does a job cost the same, however many others there are?

Side A is a store that holds little more than the jobs that are drained.  Side B holds a million others too:

    waiting     the drained ones are the first of a million alike
    finished    the million has succeeded and is kept
    unserved    the million waits in the same queue, of a type nobody serves, with a higher priority
    paused      the million waits in a queue that is paused
    scheduled   the million is due tomorrow

For each case A and B drain the same number of jobs in turns (AB, BA, AB, ...), and the median of B/A over the
pairs is the answer in time.  The answer that does not depend on the machine's mood is the number of instructions
per job, counted by callgrind on a smaller drain (the kernel's are not in it).  Both must stay within 10%.

Takes the programs from a build made by bench/run.  Small sizes only show that it works:

    bench/flat.py --depth 20000 --jobs 4000 --pairs 3 --counter-jobs 1000 --counter-runs 1
"""

import argparse
import json
import re
import shutil
import sys

import measure
from measure import median, met, say, table

BATCH = 500
COUNTER_BATCH = 100  # what is prefetched when the limit is reached is given back: with small batches that is no noise
MARGIN = 4000  # more than a worker prefetches: neither side runs dry before its limit
CHUNK = 50000
BAR = 1.10

FOREIGN = {
    "unserved": {"type": "bench.unserved", "queue": "bench", "priority": 10},
    "paused": {"type": "bench.noop", "queue": "bench-paused"},
    "scheduled": {"type": "bench.noop", "queue": "bench", "delay": "24h"},
}
CASES = ("waiting", "finished", "unserved", "paused", "scheduled")


# ---- stores --------------------------------------------------------------------------------------


def enqueue_foreign(b, db, job, n):
    line = json.dumps({**job, "payload": int("1" + "0" * 59)}) + "\n"
    for done in range(0, n, CHUNK):
        b.run(b.stint_path, "enqueue", "--batch", "-", "--store", f"sqlite:{db}?sync=normal",
              stdin=line * min(CHUNK, n - done))


def check(b, db, case, depth, own):
    """The situation is really there."""
    counts = b.counts(db)
    bench = counts["bench"]
    want = {
        "waiting": bench["pending"] == depth,
        "finished": bench["succeeded"] == depth and bench["pending"] == own,
        "unserved": bench["pending"] == depth + own,
        "paused": bench["pending"] == own and counts.get("bench-paused", {}).get("pending") == depth,
        "scheduled": bench["scheduled"] == depth and bench["pending"] == own,
    }
    if not want[case]:
        sys.exit(f"bench: the store of case {case} is not as it should be: {counts}")


def prepare(b, case, depth, own):
    db = b.folder / f"{case}.db"
    say(f"preparing {case}: {depth} jobs")
    if case == "waiting":
        b.fill(db, depth)
    elif case == "finished":
        b.fill(db, depth)
        b.drain(db, BATCH, "normal")
    else:
        enqueue_foreign(b, db, FOREIGN[case], depth)
        if case == "paused":
            b.run(b.stint_path, "queue", "pause", "bench-paused", "--store", f"sqlite:{db}")
    if case != "waiting":
        b.fill(db, own)
    check(b, db, case, depth, own)
    return db


# ---- the two answers -----------------------------------------------------------------------------


def check_drained(report, limit):
    if not limit <= report["drained"] <= limit + MARGIN:
        sys.exit(f"bench: {report['drained']} jobs were drained, not {limit}")


def timed(b, db, limit, sync):
    """us per job: by the clock, and of CPU"""
    with b.copy(db) as copy:
        report = b.drain(copy, BATCH, sync, limit)
    check_drained(report, limit)
    return 1e6 / report["drain_per_s"], report["drain_cpu_us_per_job"]


def counted(b, db, limit, sync):
    """Instructions per job, all threads."""
    log = b.folder / "callgrind.log"
    with b.copy(db) as copy:
        report = b.json("valgrind", "--tool=callgrind", "--fair-sched=try", "--callgrind-out-file=/dev/null",
                        f"--log-file={log}", b.stint_path, "bench", "--only", "drain", "--batch", COUNTER_BATCH,
                        "--limit", limit, "--store", f"sqlite:{copy}?sync={sync}", "--json")
    check_drained(report, limit)
    return int(re.search(r"Collected : (\d+)", log.read_text()).group(1)) / report["drained"]


def in_turns(n, a, b):
    """n pairs of (a(), b()), the first of a pair by turns."""
    pairs = []
    for i in range(n):
        if i % 2 == 0:
            x = a()
            y = b()
        else:
            y = b()
            x = a()
        pairs.append((x, y))
    return pairs


def ratio(pairs):
    return median(y / x for x, y in pairs)


def measure_case(b, case, empty, db, opt):
    say(f"measuring {case}: {opt.pairs} pairs of {opt.jobs} jobs")
    both = in_turns(opt.pairs, lambda: timed(b, empty, opt.jobs, opt.sync), lambda: timed(b, db, opt.jobs, opt.sync))
    wall = [(x[0], y[0]) for x, y in both]
    cpu = [(x[1], y[1]) for x, y in both]
    out = {
        "case": case, "depth": opt.depth, "jobs": opt.jobs, "pairs": opt.pairs, "sync": opt.sync,
        "us_per_job_empty": median(x for x, _ in wall), "us_per_job": median(y for _, y in wall), "ratio": ratio(wall),
        "cpu_us_per_job_empty": median(x for x, _ in cpu), "cpu_us_per_job": median(y for _, y in cpu),
        "cpu_ratio": ratio(cpu), "all_us_per_job": wall,
    }
    if opt.counter_runs:
        say(f"counting {case}: {opt.counter_runs} pairs of {opt.counter_jobs} jobs")
        n = in_turns(opt.counter_runs, lambda: counted(b, empty, opt.counter_jobs, opt.sync),
                     lambda: counted(b, db, opt.counter_jobs, opt.sync))
        out |= {"counter_jobs": opt.counter_jobs, "instructions_per_job_empty": median(x for x, _ in n),
                "instructions_per_job": median(y for _, y in n), "instructions_ratio": ratio(n)}
    out["flat"] = out["ratio"] <= BAR and out.get("instructions_ratio", 1) <= BAR
    return out


def measure_all(b, opt):
    own = max(opt.jobs, opt.counter_jobs) + MARGIN
    if opt.depth < own:
        sys.exit(f"bench: --depth must be at least {own}: {MARGIN} more than are drained")
    if opt.counter_runs and not shutil.which("valgrind"):
        sys.exit("bench: valgrind is missing; install it, or give --counter-runs 0 and do without that answer")
    empty = b.folder / "empty.db"
    b.fill(empty, own)
    results = []
    for case in opt.cases.split(","):
        db = prepare(b, case, opt.depth, own)
        results.append(measure_case(b, case, empty, db, opt))
        measure.remove(db)
    measure.remove(empty)
    return results


def instructions(v):
    return f"{v:,.0f}" if v else "-"


def markdown(results):
    rows = [(f"{r['depth']:,} {r['case']}", f"{r['us_per_job_empty']:.2f}", f"{r['us_per_job']:.2f}", f"{r['ratio']:.3f}",
             f"{r['cpu_ratio']:.3f}",
             instructions(r.get("instructions_per_job_empty")), instructions(r.get("instructions_per_job")),
             f"{r['instructions_ratio']:.3f}" if "instructions_ratio" in r else "-", met(r["flat"])) for r in results]
    return table(("beside", "us/job alone", "us/job", "ratio", "CPU ratio", "instructions/job alone", "instructions/job",
                  "ratio", "both within 1.10"), rows)


# ---- the command -----------------------------------------------------------------------------------


def add_options(p):
    p.add_argument("--depth", type=int, default=1000000, help="how many other jobs there are (1000000)")
    p.add_argument("--jobs", type=int, default=20000, help="jobs drained per run (20000)")
    p.add_argument("--pairs", type=int, default=9, help="pairs of runs (9)")
    p.add_argument("--counter-jobs", type=int, default=5000, help="jobs drained under callgrind (5000)")
    p.add_argument("--counter-runs", type=int, default=3, help="pairs of runs under callgrind, 0 = none (3)")
    p.add_argument("--cases", default=",".join(CASES), help="some of " + ",".join(CASES))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(p)
    p.add_argument("--sync", choices=("full", "normal"), default="full", help="durability (full)")
    p.add_argument("--build", default=measure.ROOT / "build-release", help="the build to measure (build-release)")
    p.add_argument("--json", metavar="FILE", help="write everything measured there too")
    opt = p.parse_args()
    if set(opt.cases.split(",")) - set(CASES):
        p.error(f"--cases knows {', '.join(CASES)}")
    with measure.session(opt.build) as b:
        results = measure_all(b, opt)
    print(markdown(results))
    if opt.json:
        with open(opt.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)
    return 0 if all(r["flat"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
