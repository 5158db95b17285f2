// SPDX-License-Identifier: Apache-2.0
//
// peer.mjs - what the runners in Node share: the commands of bench/peers/run (see there), a payload, a clock.

import { createInterface } from "node:readline";

export const SIZE = 60;

export function payload(i) {
  const head = `{"i":${i},"p":"`;
  return { i, p: "x".repeat(Math.max(0, SIZE - head.length - 2)) };
}

// CLOCK_MONOTONIC: the same in all processes of the machine
export const now = () => process.hrtime.bigint();

export const say = (line) => process.stdout.write(`${line}\n`);

function report(jobs, start) {
  say(JSON.stringify({ jobs, seconds: Number(now() - start) / 1e9 }));
}

// Waits until nothing is left: `left` counts what has not ended, by SQL or as a function.
async function untilNone(left) {
  const nap = () => new Promise((r) => setTimeout(r, 2));
  if (typeof left === "function") {
    while ((await left()) > 0) await nap();
    return;
  }
  const { default: pg } = await import("pg");
  const c = new pg.Client();
  await c.connect();
  while (Number((await c.query(left)).rows[0].n) > 0) await nap();
  await c.end();
}

async function lines(fn) {
  for await (const line of createInterface({ input: process.stdin })) await fn(line);
}

// peer: {setup(), producer() -> {one(payload), bulk(payloads), close()}, worker(handler) -> {stop()}, left: SQL or a function}
export async function main(peer) {
  const [what, count, size] = process.argv.slice(2);
  const n = Number(count);

  if (what === "setup") {
    await peer.setup();
  } else if (what === "one" || what === "bulk") {
    const step = what === "one" ? 1 : Number(size);
    const p = await peer.producer();
    const start = now();
    for (let done = 0; done < n; done += step) {
      if (what === "one") await p.one(payload(done));
      else await p.bulk(Array.from({ length: Math.min(step, n - done) }, (_, i) => payload(done + i)));
    }
    report(n, start);
    await p.close();
  } else if (what === "drain") {
    let seen = 0;
    let all;
    const done = new Promise((r) => (all = r));
    const start = now();
    const w = await peer.worker(() => {
      if (++seen === n) all();
    });
    await done;
    await untilNone(peer.left);
    report(n, start);
    await w.stop();
  } else if (what === "produce") {
    const p = await peer.producer();
    say("ready");
    await lines(async (line) => {
      await p.one(payload(Number(line)));
      say(`${line} ${now()}`);
    });
    await p.close();
  } else if (what === "work") {
    const w = await peer.worker((job) => say(`${job.i} ${now()}`));
    say("ready");
    await lines(() => {});
    await w.stop();
  }
  process.exit(0);
}
