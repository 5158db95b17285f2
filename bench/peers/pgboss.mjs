// SPDX-License-Identifier: Apache-2.0
//
// pgboss.mjs - pg-boss: two workers with batches of 1,000, fetching on while batches are full, woken by NOTIFY.  History is kept.

import { PgBoss } from "pg-boss";
import { main } from "./peer.mjs";

const QUEUE = "noop";

async function start(worker) {
  const boss = new PgBoss({
    host: process.env.PGHOST, user: process.env.PGUSER, database: process.env.PGDATABASE, port: Number(process.env.PGPORT),
    useListenNotify: worker, supervise: worker, schedule: false,
  });
  boss.on("error", (e) => console.error(e));
  await boss.start();
  return boss;
}

await main({
  left: "SELECT count(*) AS n FROM pgboss.job WHERE name = 'noop' AND state < 'completed'",
  async setup() {
    const boss = await start(false);
    await boss.createQueue(QUEUE, { notify: true });
    await boss.stop();
  },
  async producer() {
    const boss = await start(false);
    return {
      one: (job) => boss.send(QUEUE, job),
      bulk: (jobs) => boss.insert(QUEUE, jobs.map((data) => ({ data }))),
      close: () => boss.stop({ graceful: false }),
    };
  },
  async worker(handler) {
    const boss = await start(true);
    const options = {
      batchSize: 1000, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true,
      localConcurrency: Number(process.env.PEER_CONCURRENCY ?? 2),
    };
    await boss.work(QUEUE, options, async (jobs) => {
      for (const job of jobs) handler(job.data);
    });
    return { stop: () => boss.stop({ graceful: false }) };
  },
});
