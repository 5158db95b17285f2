# SPDX-License-Identifier: Apache-2.0
"""procrastinate_peer.py - procrastinate with asynchronous tasks, 20 at once, woken by NOTIFY.  History is kept."""

import asyncio
import json
import logging
import os
import sys
import time

import procrastinate
import psycopg

SIZE = 60
LEFT = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
CONCURRENCY = int(os.environ.get("PEER_CONCURRENCY", "20"))

logging.getLogger("procrastinate").setLevel(logging.ERROR)
app = procrastinate.App(connector=procrastinate.PsycopgConnector(min_size=4, max_size=CONCURRENCY + 4))
handler = lambda i: None  # noqa: E731 - set by the command


@app.task(name="noop")
async def noop(i, p):
    handler(i)


def payload(i):
    head = f'{{"i":{i},"p":"'
    return {"i": i, "p": "x" * max(0, SIZE - len(head) - 2)}


def say(text):
    print(text, flush=True)


def report(jobs, start):
    say(json.dumps({"jobs": jobs, "seconds": time.monotonic() - start}))


async def fill(n, step):
    start = time.monotonic()
    for done in range(0, n, step):
        if step == 1:
            await noop.defer_async(**payload(done))
        else:
            await noop.batch_defer_async(*(payload(i) for i in range(done, min(done + step, n))))
    report(n, start)


async def drain(n):
    start = time.monotonic()
    await app.run_worker_async(wait=False, concurrency=CONCURRENCY, install_signal_handlers=False)
    async with await psycopg.AsyncConnection.connect() as c:
        while (await (await c.execute(LEFT)).fetchone())[0] > 0:
            await asyncio.sleep(0.002)
    report(n, start)


async def lines():
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().strip():
        yield line


async def produce():
    say("ready")
    async for line in lines():
        await noop.defer_async(**payload(int(line)))
        say(f"{line} {time.monotonic_ns()}")


async def work():
    global handler
    handler = lambda i: say(f"{i} {time.monotonic_ns()}")  # noqa: E731
    w = asyncio.create_task(app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False))
    say("ready")
    async for _ in lines():
        pass
    w.cancel()


async def main(what, n="0", step="1"):
    async with app.open_async():
        if what == "setup":
            await app.schema_manager.apply_schema_async()
        elif what in ("one", "bulk"):
            await fill(int(n), int(step))
        elif what == "drain":
            await drain(int(n))
        elif what == "produce":
            await produce()
        elif what == "work":
            await work()
    sys.stdout.flush()
    os._exit(0)


asyncio.run(main(*sys.argv[1:]))
