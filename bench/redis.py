#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""redis.py - the Redis store beside the raw loop and beside other queues, on a server that is thrown away (appendonly everysec).

    drain      one worker process; in turns with bench/limits/redis_limit.c and with the peers of bench/peers/
    enqueue    batches, in turns with the raw loop's
    pickup     from the acknowledgement of a stock asynq client to our handler's start in another, idle process
    idle       what a worker without work uses
    intake     RQ messages that name jobs in PostgreSQL, in turns with bench/limits/rq_limit.c

Things that are compared run in turns on the same server, emptied before each, and ratios are taken within a round.  `CPU` is what the
server used per job: it moves less than the clock when the machine does something else too.
Takes the programs from a build made by bench/run.  The report goes to standard output.
"""

import argparse
import json
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import measure  # noqa: E402
import redisserver  # noqa: E402
from measure import median, met, rate, say, table  # noqa: E402

HERE = Path(__file__).resolve().parent
peers = SourceFileLoader("peers_run", str(HERE / "peers" / "run")).load_module()

PARTS = ("drain", "enqueue", "pickup", "idle", "intake")
LIMIT_BAR, PEER_BAR, INTAKE_BAR, IDLE_BAR = 0.50, 3.0, 0.50, 0.2
BAR_PEERS = ("asynq", "bullmq")  # the bar is about these; the others stand beside them
BATCHES = (100, 500)
QUICK = {"jobs": 10000, "repeats": 1, "samples": 50, "idle_seconds": 2, "intake_jobs": 300}


class Lab:
    """A server and the programs."""

    def __init__(self, b, redis):
        self.b, self.redis = b, redis

    def stint(self, *args):
        return self.b.stint("bench", "--store", self.redis.url(), *args)

    def limit(self, *args):
        return self.b.json(self.b.program("redis_limit"), self.redis.path, *args)

    def filled(self, jobs):
        """Ours, which both sides can drain."""
        self.redis.empty()
        self.stint("--only", "batch", "--jobs", jobs, "--batch", 500)
        self.redis.settle()

    def cpu(self, call):
        before = self.redis.children_us()
        out = call()
        return out, self.redis.children_us() - before


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
    return {"per_s": per_s, "cpu_us": us / jobs, "client_cpu_us": r.get("drain_cpu_us_per_job", r.get("cpu_us_per_job", 0))}


def drain_limits(lab, opt):
    out = []
    sides = ("batch", "calls", "stint")
    for batch in BATCHES:
        say(f"drain against the limit: batches of {batch}")
        rounds = [{side: drain_side(lab, side, batch, opt.jobs) for side in sides} for _ in range(opt.repeats)]
        best = [max(r["batch"]["per_s"], r["calls"]["per_s"]) for r in rounds]
        cpu = [min(r["batch"]["cpu_us"], r["calls"]["cpu_us"]) for r in rounds]
        out.append({"batch": batch, **{f"{s}_per_s": median(r[s]["per_s"] for r in rounds) for s in sides},
                    **{f"{s}_cpu_us": median(r[s]["cpu_us"] for r in rounds) for s in sides},
                    "share": median(r["stint"]["per_s"] / x for r, x in zip(rounds, best)),
                    "cpu_share": median(x / r["stint"]["cpu_us"] for r, x in zip(rounds, cpu)), "rounds": rounds})
    return out


def drain_table(results):
    rows = [(r["batch"], rate(r["batch_per_s"]), rate(r["calls_per_s"]), rate(r["stint_per_s"]), f"{r['share']:.2f}",
             f"{r['batch_cpu_us']:.1f} / {r['calls_cpu_us']:.1f} / {r['stint_cpu_us']:.1f}", f"{r['cpu_share']:.2f}",
             met(r["share"] >= LIMIT_BAR)) for r in results]
    return table(("batch", "limit/s, n a script", "limit/s, one a script", "stint/s", "stint to the better",
                  "server CPU us/job, the three", "the same by CPU", f"at least {LIMIT_BAR:.2f}"), rows)


def peer_options(opt):
    return argparse.Namespace(jobs=opt.jobs, slow_jobs=max(200, opt.jobs // 50), batch=1000, single=min(2000, opt.jobs // 10),
                              samples=max(30, opt.samples // 10), repeats=1)


def peer_rounds(lab, opt):
    """Rounds of ours and every peer."""
    known = peers.peers(set(peers.REDIS_NAMES))
    options = peer_options(opt)
    rounds = []
    for i in range(opt.repeats):
        say(f"drain beside the peers: round {i + 1} of {opt.repeats}")
        r = {"stint": drain_side(lab, "stint", 500, opt.jobs)["per_s"]}
        for name, peer in known.items():
            r[name] = peers.measure_drain(lab.redis, peer, options)["drain_per_s"]
        rounds.append(r)
    full = [peers.measure_peer(lab.redis, name, peer, options) for name, peer in known.items()]
    for f in full:
        f["drain_per_s"] = median([r[f["peer"]] for r in rounds] + [f["drain_per_s"]])
    ratios = {name: median(r["stint"] / r[name] for r in rounds) for name in known}
    return {"rounds": rounds, "peers": full, "ratios": ratios, "stint_per_s": median(r["stint"] for r in rounds)}


def peer_text(r):
    rows = [(name, f"{ratio:.1f}", met(ratio >= PEER_BAR) if name in BAR_PEERS else "") for name, ratio in r["ratios"].items()]
    return (peers.markdown(r["peers"], "AOF") + f"\n\nStint beside them, batches of 500, results kept: {rate(r['stint_per_s'])} jobs/s.\n\n" +
            table(("peer", "stint's drain to its", f"at least {PEER_BAR:.0f}"), rows))


# ---- enqueue ---------------------------------------------------------------------------------------------


def enqueue_side(lab, side, batch, jobs):
    lab.redis.empty()
    if side == "stint":
        r, us = lab.cpu(lambda: lab.stint("--only", "batch", "--jobs", jobs, "--batch", batch))
        return {"per_s": r["enqueue_batch_per_s"], "cpu_us": us / jobs}
    r, us = lab.cpu(lambda: lab.limit("--enqueue", jobs, "--batch", batch))
    return {"per_s": r["per_s"], "cpu_us": us / jobs}


def enqueue_limits(lab, opt):
    out = []
    for batch in (1, 100, 500):
        say(f"enqueue against the raw loop: batches of {batch}")
        jobs = max(100, opt.jobs // 20) if batch == 1 else opt.jobs
        rounds = [{side: enqueue_side(lab, side, batch, jobs) for side in ("limit", "stint")} for _ in range(opt.repeats)]
        out.append({"batch": batch, **{f"{s}_{k}": median(r[s][k] for r in rounds) for s in rounds[0] for k in ("per_s", "cpu_us")},
                    "share": median(r["stint"]["per_s"] / r["limit"]["per_s"] for r in rounds)})
    return out


def enqueue_table(results):
    rows = [(r["batch"], rate(r["limit_per_s"]), rate(r["stint_per_s"]), f"{r['share']:.2f}",
             f"{r['limit_cpu_us']:.1f} / {r['stint_cpu_us']:.1f}") for r in results]
    return table(("batch", "raw EVALSHA/s", "stint/s", "stint to raw", "server CPU us/job, both"), rows)


# ---- pickup and idle ---------------------------------------------------------------------------------------


def pickup(lab, opt):
    """asynq's own client enqueues; our worker says when its handler begins."""
    say("pickup with a stock asynq producer")
    lab.redis.empty()
    producer = peers.peers({"asynq"})["asynq"]
    worker = {"argv": [lab.b.program("pickup_worker"), lab.redis.url(), "default"]}
    ms, rss = peers.pickup(worker, lab.redis.env(), opt.samples, producer=producer)
    return {"samples": len(ms), "p50_ms": ms[len(ms) // 2], "p99_ms": ms[len(ms) * 99 // 100], "max_ms": ms[-1], "rss_kb": rss}


def pickup_table(r):
    return table(("what", "figure", "bar", ""), [
        (f"pickup p50 of {r['samples']}, asynq's client", f"{r['p50_ms']:.2f} ms", "under 1 ms", met(r["p50_ms"] < 1)),
        ("pickup p99", f"{r['p99_ms']:.2f} ms", "under 5 ms", met(r["p99_ms"] < 5)),
        ("the longest", f"{r['max_ms']:.2f} ms", "", "")])


def idle(lab, opt):
    say("idle")
    lab.redis.empty()
    before = lab.redis.children_us()
    r = lab.stint("--only", "idle", "--idle-seconds", opt.idle_seconds)
    r["server_percent"] = (lab.redis.children_us() - before) / 1e6 / opt.idle_seconds * 100
    return r


def idle_table(r):
    return table(("what", "figure", "bar", ""), [
        ("idle worker, CPU", f"{r['idle_cpu_percent']:.3f}%", f"under {IDLE_BAR}%", met(r["idle_cpu_percent"] < IDLE_BAR)),
        ("the server meanwhile", f"{r['server_percent']:.3f}%", "", ""),
        ("idle worker, private memory", f"{r['idle_private_kb'] / 1024:.2f} MiB", "", ""),
        ("idle worker, resident", f"{r['idle_rss_kb'] / 1024:.1f} MiB", "", "")])


# ---- intake ------------------------------------------------------------------------------------------------


def intake(lab, opt):
    """Has servers of its own."""
    say("runs that RQ announces")
    return lab.b.json(sys.executable, "-B", HERE / "intake.py", "--build", lab.b.programs.parent, "--jobs", opt.intake_jobs,
                      "--rounds", opt.repeats)


def intake_table(r):
    return table(("raw loop/s", "stint/s", "stint to raw", f"at least {INTAKE_BAR:.2f}"),
                 [(rate(r["raw"]), rate(r["intake"]), f"{r['ratio']:.2f}", met(r["ratio"] >= INTAKE_BAR))])


# ---- the report --------------------------------------------------------------------------------------------


def report(b, opt):
    """Markdown, in parts, and everything that was measured."""
    parts, raw = [], {}
    wanted = opt.parts.split(",")
    with redisserver.server() as redis:
        lab = Lab(b, redis)
        parts.append(f"## Redis\n\nRedis {redis.version()}, appendonly everysec, on a unix socket; client and server share the machine.  Payloads of "
                     "60 bytes, results kept for a day.")
        if "drain" in wanted:
            raw["drain"] = drain_limits(lab, opt)
            parts += ["### Drain against the limit (Redis)",
                      "`bench/limits/redis_limit.c` makes the same moves of asynq's keys on one connection, in turns with `stint bench --only "
                      f"drain`; {opt.jobs:,} jobs, medians of {opt.repeats}; one round trip finishes a batch and claims the next.",
                      drain_table(raw["drain"])]
            if not opt.no_peers:
                raw["peers"] = peer_rounds(lab, opt)
                parts += ["### Drain beside other queues (Redis)", peer_text(raw["peers"])]
        if "enqueue" in wanted:
            raw["enqueue"] = enqueue_limits(lab, opt)
            parts += ["### Enqueue against raw EVALSHA", f"{opt.jobs:,} jobs, one caller, medians of {opt.repeats}.",
                      enqueue_table(raw["enqueue"])]
        if "pickup" in wanted and not opt.no_peers:
            raw["pickup"] = pickup(lab, opt)
            parts += ["### Pickup from idle, enqueued by asynq", pickup_table(raw["pickup"])]
        if "idle" in wanted:
            raw["idle"] = idle(lab, opt)
            parts += ["### An idle worker on Redis", idle_table(raw["idle"])]
        if "intake" in wanted:
            raw["intake"] = intake(lab, opt)
            parts += ["### RQ intake in front of PostgreSQL",
                      f"{opt.intake_jobs:,} messages whose runs are there, {raw['intake']['slots']} slots; `bench/limits/rq_limit.c` pops, acquires "
                      f"and finishes as many in Redis and PostgreSQL, one after the other, without a worker; medians of {opt.repeats}.",
                      intake_table(raw["intake"])]
    return parts, raw


def add_options(p):
    p.add_argument("--jobs", type=int, default=100000, help="jobs per drain and batch enqueue (100000)")
    p.add_argument("--repeats", type=int, default=5, help="rounds (5)")
    p.add_argument("--samples", type=int, default=2000, help="pickups (2000)")
    p.add_argument("--idle-seconds", type=int, default=20, help="how long an idle worker is watched (20)")
    p.add_argument("--intake-jobs", type=int, default=5000, help="RQ messages (5000)")
    p.add_argument("--parts", default=",".join(PARTS), help="some of " + ",".join(PARTS))
    p.add_argument("--no-peers", action="store_true", help="leave the peers out (they are installed from npm, Go and PyPI), and the pickup with asynq")


def defaults(**over):
    p = argparse.ArgumentParser()
    add_options(p)
    opt = p.parse_args([])
    vars(opt).update(over)
    return opt


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(p)
    p.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    p.add_argument("--build", default=measure.ROOT / "build-release", help="the build to measure (build-release)")
    p.add_argument("--json", metavar="FILE", help="write everything measured there too")
    opt = p.parse_args()
    if set(opt.parts.split(",")) - set(PARTS):
        p.error(f"--parts knows {', '.join(PARTS)}")
    if opt.quick:
        vars(opt).update(QUICK)
    with measure.session(opt.build) as b:
        parts, raw = report(b, opt)
    print("\n\n".join(parts))
    if opt.json:
        Path(opt.json).write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
