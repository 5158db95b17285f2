// SPDX-License-Identifier: Apache-2.0
//
// graphile.mjs - graphile-worker with the settings of its own page on performance: a local queue of 500, completions in
// batches, 24 jobs at once.  Finished jobs are deleted: there is no history.

import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { main } from "./peer.mjs";

const logger = new Logger(() => () => {});
const preset = {
  worker: {
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    connectionString: "postgres:///" + process.env.PGDATABASE,
  },
};

await main({
  left: "SELECT count(*) AS n FROM graphile_worker._private_jobs",
  async setup() {
    const utils = await makeWorkerUtils({ preset, logger });
    await utils.migrate();
    await utils.release();
  },
  async producer() {
    const utils = await makeWorkerUtils({ preset, logger });
    return {
      one: (job) => utils.addJob("noop", job),
      bulk: (jobs) => utils.addJobs(jobs.map((job) => ({ identifier: "noop", payload: job }))),
      close: () => utils.release(),
    };
  },
  async worker(handler) {
    const runner = await run({ preset, logger, noHandleSignals: true, taskList: { noop: (job) => handler(job) } });
    return { stop: () => runner.stop() };
  },
});
