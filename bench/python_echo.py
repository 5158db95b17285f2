#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast a Python handler is beside a bare Python loop over the same pipes.

    bench/python_echo.py [--jobs N] [--in-flight N] [--rounds N] [--threads N]

Three children answer the same requests, in turns, with many of them in flight:

    plain     the loop one writes first: for line in sys.stdin, json, print(..., flush=True)
    bare      a loop that does nothing but what it must: os.read, split, json, one os.write for
              all answers to one read. It guards nothing: a print() would break it.
    sdk       stint.run() with @stint.task on a function that returns its payload

The figure is sdk / bare, each the median of its rounds. Exit code 1 if it is below 0.80.
"""

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import time
from pathlib import Path

SDK = Path(__file__).resolve().parent.parent / "sdk" / "python" / "src"
BAR = 0.80

CHILDREN = {
    "plain": """
import json, sys
print('{"status":"ready"}', flush=True)
for line in sys.stdin:
    r = json.loads(line)
    print(json.dumps({"task_id": r["task_id"], "result": r["payload"],
                      "error": None, "retry": False}), flush=True)
""",
    "bare": """
import json, os
os.write(1, b'{"status":"ready"}\\n')
rest = b""
while True:
    data = os.read(0, 1 << 16)
    if not data:
        break
    lines = (rest + data).split(b"\\n")
    rest = lines.pop()
    out = []
    for line in lines:
        r = json.loads(line)
        out.append(json.dumps({"task_id": r["task_id"], "result": r["payload"],
                               "error": None, "retry": False}) + "\\n")
    data = "".join(out).encode()
    while data:
        data = data[os.write(1, data):]
""",
    "sdk": """
import stint
@stint.task
def echo(payload):
    return payload
stint.run()
""",
}


def requests(jobs):
    payload = json.dumps({"order": 4711, "text": "hello world", "items": [1, 2, 3]})
    return [
        (
            f'{{"task_id":"019a0000-0000-7000-8000-{n:012d}","type":"echo","payload":{payload},'
            f'"retry_count":0,"max_retry":2,"queue":"default","attempt":1,'
            f'"deadline":"2030-01-01T12:00:00.000000Z","fence":{n},"traceparent":null}}\n'
        ).encode()
        for n in range(jobs)
    ]


def measure(name, lines, in_flight, threads):
    """Answers per second."""
    env = dict(os.environ, PYTHONPATH=str(SDK), STINT_MAX_IN_FLIGHT=str(threads))
    child = subprocess.Popen(
        [sys.executable, "-c", CHILDREN[name]],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=env,
    )
    to, back = child.stdin.fileno(), child.stdout.fileno()
    os.set_blocking(to, False)
    assert b"ready" in os.read(back, 4096)
    sent = got = 0
    unsent = b""
    started = time.perf_counter()
    while got < len(lines):
        if not unsent and sent < len(lines):
            upto = min(len(lines), got + in_flight)
            unsent, sent = b"".join(lines[sent:upto]), max(sent, upto)
        if unsent:
            try:
                unsent = unsent[os.write(to, unsent):]
            except BlockingIOError:
                pass
        if unsent and not select.select([back], [to], [])[0]:
            continue
        data = os.read(back, 1 << 16)
        assert data, f"{name} has ended"
        got += data.count(b"\n")
    took = time.perf_counter() - started
    child.stdin.close()
    assert child.wait() == 0
    return len(lines) / took


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=30_000)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of the sdk")
    args = parser.parse_args()
    lines = requests(args.jobs)
    rates = {name: [] for name in CHILDREN}
    for _ in range(args.rounds):
        for name in CHILDREN:
            rates[name].append(measure(name, lines, args.in_flight, args.threads))
    rate = {name: statistics.median(values) for name, values in rates.items()}
    print(f"python {sys.version.split()[0]}, {args.jobs} jobs, {args.in_flight} in flight, "
          f"median of {args.rounds} rounds, sdk threads {args.threads}")
    for name, value in rate.items():
        print(f"{name:<6} {value:10,.0f} jobs/s")
    ratio = rate["sdk"] / rate["bare"]
    print(f"sdk / bare  {ratio:.2f}   (at least {BAR:.2f})")
    print(f"sdk / plain {rate['sdk'] / rate['plain']:.2f}")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
