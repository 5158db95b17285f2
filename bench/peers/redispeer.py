# SPDX-License-Identifier: Apache-2.0
"""redispeer.py - what the runners in Python on Redis share: the commands of bench/peers/run (see there), a payload, a clock."""

import json
import os
import sys
import time

SIZE = 60
SOCKET = os.environ["PEER_REDIS"]


def payload(i):
    head = f'{{"i":{i},"p":"'
    return {"i": i, "p": "x" * max(0, SIZE - len(head) - 2)}


def say(text):
    """One write, whatever the framework does to standard output."""
    os.write(1, f"{text}\n".encode())


def began(i):
    """A handler's start, for the pickup."""
    say(f"{i} {time.monotonic_ns()}")


def timed(jobs, call):
    start = time.monotonic()
    call()
    say(json.dumps({"jobs": jobs, "seconds": time.monotonic() - start}))


def produce(one):
    say("ready")
    for line in sys.stdin:
        one(int(line))
        say(f"{line.strip()} {time.monotonic_ns()}")


def until_closed():
    """The pickup's worker lives until its standard input ends.  sys.stdin would be locked in what is forked meanwhile."""
    while os.read(0, 4096):
        pass


def main(peer):
    """peer: one(i), bulk(first, last), drain(n), which reports, work()"""
    what, *numbers = sys.argv[1:]
    n, step = [*map(int, numbers), 0, 0][:2]
    if what == "one":
        timed(n, lambda: [peer.one(i) for i in range(n)])
    elif what == "bulk":
        timed(n, lambda: [peer.bulk(i, min(i + step, n)) for i in range(0, n, step)])
    elif what == "drain":
        peer.drain(n)
    elif what == "produce":
        produce(peer.one)
    elif what == "work":
        peer.work()
    os._exit(0)
