#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""postgres.py - the PostgreSQL store beside the raw loop and beside other queues, on a server that is thrown away.

    drain      one worker process; in turns with bench/limits/postgres_limit.c and with the peers of bench/peers/
    enqueue    batches, in turns with raw multi-row INSERTs of the same rows
    pickup     from another process's acknowledgement to the handler's start
    cost       bytes of log and commits per job, enqueue included
    pinned     a snapshot is held all through; jobs/s by fifths
    flat       the same drain alone and beside millions of others, in turns; pages looked at are the counter that is not time
    scale      slots and worker processes

Things that are compared run in turns on the same server, and ratios are taken within a round.  `CPU` is what the
server's processes used per job: it moves less than the clock when the machine does something else too.
Takes the programs from a build made by bench/run.  The report goes to standard output.
"""

import argparse
import contextlib
import json
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import measure  # noqa: E402
import pgserver  # noqa: E402
from measure import median, met, rate, say, table  # noqa: E402

HERE = Path(__file__).resolve().parent
peers = SourceFileLoader("peers_run", str(HERE / "peers" / "run")).load_module()

PARTS = ("drain", "enqueue", "pickup", "cost", "pinned", "flat", "types", "scale")
LIMIT_BAR, PEER_BAR, ENQUEUE_BAR, PIN_BAR, FLAT_BAR, CLAIM_BAR, SCALE_BAR = 0.70, 1.5, 0.80, 0.90, 1.10, 1.5, 0.90
WAL_BAR, COMMITS_BAR, CONNECTIONS_BAR = 1.2 * 1024, 0.02, 4
GROWING, HOT = ("entry", "ended", "ready", "tally"), ("lease", "grp")
DEPTHS = {"waiting": 5000000, "scheduled": 1000000, "history": 5000000, "unserved": 1000000, "paused": 1000000}
TYPES = (1, 2, 5, 20)
SLOTS, WORKERS = (4, 10, 50, 200, 1000), (1, 2, 4, 8, 16)
MARGIN = 4000  # more than a worker prefetches: a drain with a limit does not run dry
CLAIM_BATCH = 20  # many claims, for a p99 of them
QUICK = {"jobs": 10000, "repeats": 1, "samples": 50, "pin_jobs": 20000, "divide": 500, "flat_jobs": 4000, "claim_jobs": 1000,
         "pairs": 1, "scale_jobs": 30000}


# ---- the server and the programs -----------------------------------------------------------------------


class Lab:
    """A server, one database with the store in it, and the programs."""

    def __init__(self, b, pg):
        self.b, self.pg = b, pg
        self.limit_path = b.stint_path.parent.parent.parent / "bench" / "postgres_limit"
        self.db = self.make()

    def make(self):
        """A database whose store has been used: its hot tables are empty and have pages, as on any server that works."""
        db = self.pg.database()
        self.stint("--only", "batch,drain", "--jobs", 5000, db=db)
        return db

    def stint(self, *args, db=None):
        return self.b.stint("bench", "--store", self.pg.url(db or self.db), *args)

    def limit(self, *args):
        return self.b.json(self.limit_path, self.pg.conninfo(self.db), *args)

    def sql(self, text, db=None):
        return self.pg.sql(text, db or self.db)

    def settle(self, db=None):
        """What a vacuum comes to sooner or later, and nothing left to write."""
        self.sql("VACUUM " + ", ".join(f"stint.{t}" for t in (*HOT, "ready", "tally")), db)
        self.pg.settle()

    def empty(self):
        """No jobs; the hot tables stay as they are, used."""
        self.sql("TRUNCATE " + ", ".join(f"stint.{t}" for t in GROWING))
        if self.sql("SELECT count(*) FROM stint.lease") != "0":
            sys.exit("bench: the drain before has left leases behind")
        self.sql("DELETE FROM stint.grp")  # some stay until a reaper looks at them
        self.settle()

    def fill(self, jobs, *args, db=None):
        return self.stint("--only", "batch", "--jobs", jobs, "--batch", 500, *args, db=db)

    def filled(self, jobs, *args):
        self.empty()
        self.fill(jobs, *args)
        self.settle()

    def cpu(self, call):
        """What call() returns, and the microseconds of CPU that the server's processes took, those that have ended."""
        before = self.pg.children_us()
        out = call()
        return out, self.pg.children_us() - before


# ---- drain ---------------------------------------------------------------------------------------------


def drain_side(lab, side, batch, jobs):
    lab.filled(jobs)
    if side == "stint":
        r, us = lab.cpu(lambda: lab.stint("--only", "drain", "--batch", batch))
        done, per_s = r["drained"], r["drain_per_s"]
    else:
        r, us = lab.cpu(lambda: lab.limit("--batch", batch, "--variant", side))
        done, per_s = r["jobs"], r["per_s"]
    if done != jobs:
        sys.exit(f"bench: {side} drained {done} of {jobs} jobs: {r}")
    return {"per_s": per_s, "cpu_us": us / jobs, "client_cpu_us": r.get("drain_cpu_us_per_job", 0)}


def drain_limits(lab, opt):
    """Rounds of the two forms of the limit and ours, for each batch."""
    out = []
    for batch in (100, 500, 1000):
        say(f"drain against the limit: batches of {batch}")
        rounds = [{side: drain_side(lab, side, batch, opt.jobs) for side in ("plain", "functions", "stint")}
                  for _ in range(opt.repeats)]
        best = [max(r["plain"]["per_s"], r["functions"]["per_s"]) for r in rounds]
        cpu = [min(r["plain"]["cpu_us"], r["functions"]["cpu_us"]) for r in rounds]
        out.append({"batch": batch, **{f"{side}_per_s": median(r[side]["per_s"] for r in rounds) for side in rounds[0]},
                    **{f"{side}_cpu_us": median(r[side]["cpu_us"] for r in rounds) for side in rounds[0]},
                    "share": median(r["stint"]["per_s"] / x for r, x in zip(rounds, best)),
                    "cpu_share": median(x / r["stint"]["cpu_us"] for r, x in zip(rounds, cpu)), "rounds": rounds})
    return out


def drain_table(results):
    rows = [(r["batch"], rate(r["plain_per_s"]), rate(r["functions_per_s"]), rate(r["stint_per_s"]), f"{r['share']:.2f}",
             f"{r['plain_cpu_us']:.1f} / {r['functions_cpu_us']:.1f} / {r['stint_cpu_us']:.1f}", f"{r['cpu_share']:.2f}",
             met(r["share"] >= LIMIT_BAR)) for r in results]
    return table(("batch", "limit/s, plain statements", "limit/s, our functions", "stint/s", "stint to the better",
                  "server CPU us/job, the three", "the same by CPU", f"at least {LIMIT_BAR:.2f}"), rows)


def peer_rounds(lab, opt):
    """Rounds of ours and every peer; each peer in a database of its own."""
    known = peers.peers(set(peers.NAMES))
    opt_peer = argparse.Namespace(jobs=opt.jobs, slow_jobs=max(200, opt.jobs // 20), batch=1000, single=min(2000, opt.jobs // 10),
                                  samples=max(30, opt.samples // 2), repeats=1)
    rounds, used = [], []
    for i in range(opt.repeats):
        say(f"drain beside the peers: round {i + 1} of {opt.repeats}")
        ours = drain_side(lab, "stint", 500, opt.jobs)
        used.append((ours["cpu_us"], ours["client_cpu_us"]))
        r = {"stint": ours["per_s"]}
        for name, peer in known.items():
            r[name] = peers.measure_drain(lab.pg, peer, opt_peer)["drain_per_s"]
        rounds.append(r)
    full = [peers.measure_peer(lab.pg, name, peer, opt_peer) for name, peer in known.items()]
    for f in full:
        f["drain_per_s"] = median([r[f["peer"]] for r in rounds] + [f["drain_per_s"]])
    ratio = median(r["stint"] / max(v for k, v in r.items() if k != "stint") for r in rounds)
    fastest = max(known, key=lambda name: median(r[name] for r in rounds))
    return {"rounds": rounds, "peers": full, "ratio": ratio, "fastest": fastest,
            "stint_per_s": median(r["stint"] for r in rounds), "server_cpu_us": median(u[0] for u in used),
            "client_cpu_us": median(u[1] for u in used)}


def peer_text(r):
    return (f"{peers.markdown(r['peers'])}\n\nStint beside them, batches of 500, history kept: {rate(r['stint_per_s'])} jobs/s, "
            f"{r['server_cpu_us']:.0f} + {r['client_cpu_us']:.0f} us of CPU per job, "
            f"{r['ratio']:.2f} times the fastest in the same round (mostly {r['fastest']}); "
            f"at least {PEER_BAR}: {met(r['ratio'] >= PEER_BAR)}.")


# ---- enqueue -------------------------------------------------------------------------------------------


def enqueue_side(lab, side, batch, jobs):
    lab.empty()
    if side == "stint":
        r, us = lab.cpu(lambda: lab.stint("--only", "batch", "--jobs", jobs, "--batch", batch))
        return {"per_s": r["enqueue_batch_per_s"], "cpu_us": us / jobs}
    r, us = lab.cpu(lambda: lab.limit("--enqueue", jobs, "--batch", batch, "--variant", side))
    return {"per_s": r["per_s"], "cpu_us": us / jobs}


def enqueue_limits(lab, opt):
    out = []
    for batch in (1, 100, 500, 1000):
        say(f"enqueue against raw INSERT: batches of {batch}")
        jobs = max(100, opt.jobs // 50) if batch == 1 else opt.jobs
        rounds = [{side: enqueue_side(lab, side, batch, jobs) for side in ("values", "unnest", "stint")}
                  for _ in range(opt.repeats)]
        out.append({"batch": batch, **{f"{side}_per_s": median(r[side]["per_s"] for r in rounds) for side in rounds[0]},
                    **{f"{side}_cpu_us": median(r[side]["cpu_us"] for r in rounds) for side in rounds[0]},
                    "share": median(r["stint"]["per_s"] / r["values"]["per_s"] for r in rounds),
                    "share_unnest": median(r["stint"]["per_s"] / r["unnest"]["per_s"] for r in rounds)})
    return out


def enqueue_table(results):
    rows = [(r["batch"], rate(r["values_per_s"]), rate(r["unnest_per_s"]), rate(r["stint_per_s"]), f"{r['share']:.2f}",
             f"{r['share_unnest']:.2f}", f"{r['values_cpu_us']:.1f} / {r['unnest_cpu_us']:.1f} / {r['stint_cpu_us']:.1f}",
             met(r["share"] >= ENQUEUE_BAR) if r["batch"] > 1 else "") for r in results]
    return table(("batch", "INSERT ... VALUES/s", "INSERT ... unnest/s", "stint/s", "stint to VALUES", "stint to unnest",
                  "server CPU us/job, the three", f"VALUES: at least {ENQUEUE_BAR:.2f}"), rows)


# ---- pickup and cost -----------------------------------------------------------------------------------


def pickup(lab, opt):
    say("pickup")
    lab.empty()
    return lab.stint("--only", "pickup", "--samples", opt.samples)


def pickup_table(r):
    return table(("what", "figure", "bar", ""), [
        (f"pickup p50 of {r['pickup_samples']}", f"{r['pickup_p50_ms']:.2f} ms", "under 2 ms", met(r["pickup_p50_ms"] < 2)),
        ("pickup p99", f"{r['pickup_p99_ms']:.2f} ms", "under 10 ms", met(r["pickup_p99_ms"] < 10))])


def cost(lab, opt):
    out = []
    for batch in (100, 500):
        say(f"cost per job: batches of {batch}")
        lab.empty()
        out.append(lab.stint("--only", "batch,drain", "--jobs", opt.jobs, "--batch", batch))
    return out


def cost_table(results):
    rows = []
    for r in results:
        e, d = r["postgres_enqueue"], r["postgres_drain"]
        wal = e["wal_bytes_per_job"] + d["wal_bytes_per_job"]
        commits = e["writing_commits_per_job"] + d["writing_commits_per_job"]
        every = e["commits_per_job"] + d["commits_per_job"]
        rows.append((r["batch"], f"{e['wal_bytes_per_job']:,.0f} + {d['wal_bytes_per_job']:,.0f} = {wal:,.0f}",
                     met(wal <= WAL_BAR), f"{commits:.4f}", f"{every:.4f}", met(every <= COMMITS_BAR) if r["batch"] == 500 else "",
                     f"{d['buffers_per_job']:.1f}", rate(d["dead_tuples"]), d["connections"]))
    return table(("batch", "log bytes/job, enqueue + drain", f"at most {WAL_BAR:,.0f}", "writing commits/job", "all commits/job",
                  f"at most {COMMITS_BAR}", "pages/job, drain", "dead rows after", "connections"), rows)


# ---- pinned --------------------------------------------------------------------------------------------


def pinned(lab, opt):
    out = []
    for batch in (100, 500):
        for side in ("limit", "stint"):
            say(f"pinned horizon: {side}, batches of {batch}, {opt.pin_jobs} jobs")
            lab.filled(opt.pin_jobs)
            if side == "stint":
                r, us = lab.cpu(lambda: lab.stint("--only", "drain", "--pin", "--batch", batch))
                fifths, per_s = r["drain_fifths_per_s"], r["drain_per_s"]
            else:
                r, us = lab.cpu(lambda: lab.limit("--pin", "--batch", batch))
                fifths, per_s = r["fifths"], r["per_s"]
            out.append({"side": side, "batch": batch, "fifths": fifths, "per_s": per_s, "cpu_us": us / opt.pin_jobs,
                        "last_to_first": fifths[-1] / fifths[0] if fifths[0] else 0})
    lab.empty()
    return out


def pinned_table(results):
    rows = [(f"{r['side']}, {r['batch']}", rate(r["per_s"]), " ".join(f"{v / 1000:.1f}k" for v in r["fifths"]),
             f"{r['last_to_first']:.2f}", f"{r['cpu_us']:.1f}",
             met(r["last_to_first"] >= PIN_BAR) if r["side"] == "stint" else "") for r in results]
    return table(("who, batch", "jobs/s", "by fifths", "last to first", "server CPU us/job", f"at least {PIN_BAR:.2f}"), rows)


# ---- flat ----------------------------------------------------------------------------------------------


def flat_run(lab, db, opt):
    """One drain in large batches for the pace, one in small ones for the claims."""
    lab.fill(opt.flat_jobs + opt.claim_jobs, db=db)
    lab.settle(db)
    pace, us = lab.cpu(lambda: lab.stint("--only", "drain", "--batch", 500, "--limit", opt.flat_jobs, db=db))
    claims = lab.stint("--only", "drain", "--batch", CLAIM_BATCH, "--limit", opt.claim_jobs, db=db)
    return {"us": 1e6 / pace["drain_per_s"], "cpu_us": us / pace["drained"],
            "buffers": pace["postgres_drain"]["buffers_per_job"], "claim_p99": claims["claim_p99_ms"],
            "claim_p50": claims["claim_p50_ms"]}


def flat_case(lab, empty, case, depth, opt):
    say(f"preparing {depth} {case}")
    db = lab.make()
    lab.stint("--only", "batch", "--jobs", MARGIN, "--preload", f"{case}={depth}", db=db)
    say(f"measuring {case}: {opt.pairs} pairs")
    pairs = []
    for i in range(opt.pairs):
        order = (empty, db) if i % 2 == 0 else (db, empty)
        both = {d: flat_run(lab, d, opt) for d in order}
        pairs.append((both[empty], both[db]))
    lab.pg.drop(db)
    return {"case": case, "depth": depth, "pairs": pairs,
            **{f"{k}_ratio": median(b[k] / a[k] for a, b in pairs) for k in pairs[0][0]},
            **{f"{k}_alone": median(a[k] for a, _ in pairs) for k in pairs[0][0]},
            **{k: median(b[k] for _, b in pairs) for k in pairs[0][0]}}


def flat(lab, opt):
    lab.sql("ALTER SYSTEM SET autovacuum = off")  # its pages would be counted as ours
    lab.sql("SELECT pg_reload_conf()")
    empty = lab.make()
    lab.fill(MARGIN, db=empty)
    out = [flat_case(lab, empty, case, max(10000, depth // opt.divide), opt) for case, depth in DEPTHS.items()]
    lab.pg.drop(empty)
    lab.sql("ALTER SYSTEM RESET autovacuum")
    lab.sql("SELECT pg_reload_conf()")
    return out


def flat_table(results):
    rows = [(f"{r['depth']:,} {r['case']}", f"{r['us_alone']:.1f}", f"{r['us']:.1f}", f"{r['us_ratio']:.3f}",
             f"{r['cpu_us_ratio']:.3f}", f"{r['buffers_alone']:.1f}", f"{r['buffers']:.1f}", f"{r['buffers_ratio']:.3f}",
             met(r["us_ratio"] <= FLAT_BAR and r["buffers_ratio"] <= FLAT_BAR),
             f"{r['claim_p99_alone']:.2f}", f"{r['claim_p99']:.2f}", f"{r['claim_p99_ratio']:.2f}",
             met(r["claim_p99_ratio"] <= CLAIM_BAR)) for r in results]
    return table(("beside", "us/job alone", "us/job", "ratio", "CPU ratio", "pages/job alone", "pages/job", "ratio",
                  f"within {FLAT_BAR}", "claim p99 ms alone", "ms", "ratio", f"within {CLAIM_BAR}"), rows)


# ---- types ---------------------------------------------------------------------------------------------


def types_drain(lab, types, batch, jobs):
    lab.filled(jobs, "--types", types)
    r, us = lab.cpu(lambda: lab.stint("--only", "drain", "--batch", batch))
    if r["drained"] != jobs:
        sys.exit(f"bench: {r['drained']} of {jobs} jobs were drained")
    return {"per_s": r["drain_per_s"], "cpu_us": us / jobs, "wal": r["postgres_drain"]["wal_bytes_per_job"]}


def types(lab, opt):
    """Jobs of several types, in turns, in one queue and of one priority."""
    out = []
    for batch in (100, 500):
        rounds = []
        for i in range(opt.repeats):
            say(f"types, batches of {batch}: round {i + 1} of {opt.repeats}")
            rounds.append([types_drain(lab, n, batch, opt.jobs) for n in TYPES])
        for i, n in enumerate(TYPES):
            one = {k: median(r[i][k] for r in rounds) for k in rounds[0][i]}
            out.append({"batch": batch, "types": n, **one, "to_one": median(r[i]["per_s"] / r[0]["per_s"] for r in rounds)})
    return out


def types_table(results):
    rows = [(r["batch"], r["types"], rate(r["per_s"]), f"{r['to_one']:.2f}", f"{r['cpu_us']:.1f}", f"{r['wal']:,.0f}") for r in results]
    return table(("batch", "types", "jobs/s", "to one type", "server CPU us/job", "log bytes/job, drain"), rows)


# ---- scale ---------------------------------------------------------------------------------------------


def scale(lab, option, values, jobs, opt):
    rounds = []
    for i in range(opt.repeats):
        say(f"{option} {', '.join(map(str, values))}: round {i + 1} of {opt.repeats}")
        r = []
        for v in values:
            lab.filled(jobs)
            one = lab.stint("--only", "drain", f"--{option}", v)
            if one["drained"] != jobs:
                sys.exit(f"bench: {one['drained']} of {jobs} jobs were drained")
            r.append(one)
        rounds.append(r)
    out = []
    for i, v in enumerate(values):
        worst = [r[i]["drain_per_s"] / max(x["drain_per_s"] for x in r[:i]) for r in rounds] if i else [1.0]
        per_process = max(r[i]["postgres_drain"]["connections"] for r in rounds) / (v if option == "workers" else 1)
        out.append({option: v, "per_s": median(r[i]["drain_per_s"] for r in rounds), "to_best_smaller": median(worst),
                    "connections_per_process": per_process,
                    "wal_per_job": median(r[i]["postgres_drain"]["wal_bytes_per_job"] for r in rounds),
                    "claim_p99_ms": median(r[i]["claim_p99_ms"] for r in rounds)})
    return out


def scale_table(results, option):
    rows = [(r[option], rate(r["per_s"]), f"{r['to_best_smaller']:.2f}", met(r["to_best_smaller"] >= SCALE_BAR),
             f"{r['connections_per_process']:.1f}", met(r["connections_per_process"] <= CONNECTIONS_BAR),
             f"{r['wal_per_job']:,.0f}", f"{r['claim_p99_ms']:.1f}") for r in results]
    return table(({"slots": "slots", "workers": "worker processes"}[option], "jobs/s", "to the best smaller",
                  f"at least {SCALE_BAR:.2f}", "connections per process", f"at most {CONNECTIONS_BAR}", "log bytes/job",
                  "claim p99 ms"), rows)


# ---- the report ------------------------------------------------------------------------------------------


def conditions(lab):
    return (f"PostgreSQL {lab.pg.version()}, a server of its own on this machine over its unix socket: fsync and "
            "synchronous_commit on, shared_buffers 1 GB, max_wal_size 8 GB; jobs that do nothing, payloads of 60 bytes, history "
            "kept, 10 slots and batches of 500 where nothing else is said.  Before each run the hot tables have been used and vacuumed: "
            "a planner that trusts their emptiness must not be able to do harm.")


def report(b, opt):
    """Markdown, in parts, and everything that was measured."""
    parts, raw = [], {}
    wanted = opt.parts.split(",")
    with pgserver.server() as pg:
        lab = Lab(b, pg)
        parts.append("## PostgreSQL\n\n" + conditions(lab))
        if "drain" in wanted:
            raw["drain"] = drain_limits(lab, opt)
            parts += ["### Drain against the limit",
                      f"`bench/limits/postgres_limit.c` moves the same rows through the same tables on one connection, in turns with "
                      f"`stint bench --only drain`; {opt.jobs:,} jobs, medians of {opt.repeats}; one transaction finishes a batch and "
                      "claims the next.", drain_table(raw["drain"])]
            if not opt.no_peers:
                raw["peers"] = peer_rounds(lab, opt)
                parts += ["### Drain beside other queues", peer_text(raw["peers"])]
        if "enqueue" in wanted:
            raw["enqueue"] = enqueue_limits(lab, opt)
            parts += ["### Enqueue against raw INSERT", f"{opt.jobs:,} jobs, one caller, medians of {opt.repeats}.",
                      enqueue_table(raw["enqueue"])]
        if "pickup" in wanted:
            raw["pickup"] = pickup(lab, opt)
            parts += ["### Pickup from idle", pickup_table(raw["pickup"])]
        if "cost" in wanted:
            raw["cost"] = cost(lab, opt)
            parts += ["### Log and commits per job", "Enqueue and drain in batches of the same size.  At 100 a batch costs two "
                      "commits: 0.02.", cost_table(raw["cost"])]
        if "pinned" in wanted:
            raw["pinned"] = pinned(lab, opt)
            parts += ["### Pinned horizon", f"A REPEATABLE READ snapshot is held all through {opt.pin_jobs:,} jobs.",
                      pinned_table(raw["pinned"])]
        if "flat" in wanted:
            raw["flat"] = flat(lab, opt)
            parts += ["### Cost per job beside others",
                      f"{opt.flat_jobs:,} jobs are drained in batches of 500, and {opt.claim_jobs:,} in batches of {CLAIM_BATCH} for the "
                      f"claims, alone and beside others, in turns; ratios are medians of {opt.pairs} pairs.", flat_table(raw["flat"])]
        if "types" in wanted:
            raw["types"] = types(lab, opt)
            parts += ["### Several types", f"{opt.jobs:,} jobs of so many types, in turns, in one queue; medians of {opt.repeats}.",
                      types_table(raw["types"])]
        if "scale" in wanted:
            raw["slots"] = scale(lab, "slots", opt.slots, opt.scale_jobs // 3, opt)
            raw["workers"] = scale(lab, "workers", opt.workers, opt.scale_jobs, opt)
            parts += ["### Slots and processes", f"{opt.scale_jobs // 3:,} jobs for slots, {opt.scale_jobs:,} for processes, so that starting "
                      f"16 of them (0.8 s of server CPU) is not what is measured; medians of {opt.repeats}.",
                      scale_table(raw["slots"], "slots"), scale_table(raw["workers"], "workers")]
    return parts, raw


def add_options(p):
    p.add_argument("--jobs", type=int, default=200000, help="jobs per drain and batch enqueue (200000)")
    p.add_argument("--repeats", type=int, default=5, help="rounds (5)")
    p.add_argument("--samples", type=int, default=2000, help="pickups (2000)")
    p.add_argument("--pin-jobs", type=int, default=500000, help="jobs drained under a pinned horizon (500000)")
    p.add_argument("--flat-jobs", type=int, default=20000, help="jobs drained beside others (20000)")
    p.add_argument("--claim-jobs", type=int, default=10000, help="jobs drained in small batches for the claims (10000)")
    p.add_argument("--pairs", type=int, default=9, help="pairs of runs for the flatness (9)")
    p.add_argument("--divide", type=int, default=1, help="divide the depths of the flatness by this (1)")
    p.add_argument("--scale-jobs", type=int, default=1800000, help="jobs per drain for worker processes, a third for slots (1800000: starting 16 of them is not to be what is measured)")
    p.add_argument("--parts", default=",".join(PARTS), help="some of " + ",".join(PARTS))
    p.add_argument("--no-peers", action="store_true", help="leave the peers out (they are installed from npm, Go and PyPI)")


def defaults(**over):
    p = argparse.ArgumentParser()
    add_options(p)
    opt = p.parse_args([])
    vars(opt).update({"slots": SLOTS, "workers": WORKERS, **over})
    return opt


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(p)
    p.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    p.add_argument("--build", default=measure.ROOT / "build-release", help="the build to measure (build-release)")
    p.add_argument("--json", metavar="FILE", help="write everything measured there too")
    p.add_argument("--huge-pages", action="store_true", help="the server's memory in huge pages, reserved meanwhile (root)")
    opt = p.parse_args()
    if set(opt.parts.split(",")) - set(PARTS):
        p.error(f"--parts knows {', '.join(PARTS)}")
    opt.slots, opt.workers = SLOTS, WORKERS
    if opt.quick:
        vars(opt).update({**QUICK, "slots": SLOTS[:2], "workers": WORKERS[:2]})
    with pgserver.huge_pages() if opt.huge_pages else contextlib.nullcontext(), measure.session(opt.build) as b:
        parts, raw = report(b, opt)
    print("\n\n".join(parts))
    if opt.json:
        Path(opt.json).write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
