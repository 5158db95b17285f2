// SPDX-License-Identifier: Apache-2.0
//
// bullmq.mjs - BullMQ with 100 jobs at once in one worker.  Finished jobs are removed, which is less work than keeping them; with
// PEER_KEEP=1 they are kept, as BullMQ does when nothing is said.

import { Queue, Worker } from "bullmq";
import { main } from "./peer.mjs";

const connection = { path: process.env.PEER_REDIS, maxRetriesPerRequest: null };
const options = process.env.PEER_KEEP ? {} : { removeOnComplete: true };

async function left() {
  const queue = new Queue("noop", { connection });
  const counts = await queue.getJobCounts("waiting", "active", "delayed");
  await queue.close();
  return counts.waiting + counts.active + counts.delayed;
}

await main({
  left,
  async setup() {},
  async producer() {
    const queue = new Queue("noop", { connection });
    return {
      one: (job) => queue.add("noop", job, options),
      bulk: (jobs) => queue.addBulk(jobs.map((data) => ({ name: "noop", data, opts: options }))),
      close: () => queue.close(),
    };
  },
  async worker(handler) {
    const worker = new Worker("noop", async (job) => handler(job.data), {
      connection, concurrency: Number(process.env.PEER_CONCURRENCY ?? 100),
    });
    await worker.waitUntilReady();
    return { stop: () => worker.close(true) };
  },
});
