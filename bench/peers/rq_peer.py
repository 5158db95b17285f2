# SPDX-License-Identifier: Apache-2.0
"""rq_peer.py - RQ with SimpleWorker: jobs run in the worker's own process, several times faster than a fork for each.  Results are
not kept (result_ttl 0)."""

import logging
import os
import sys
import threading

from redis import Redis
from rq import Queue, SimpleWorker

import redispeer

logging.getLogger("rq").setLevel(logging.ERROR)


def noop(i, p):
    if os.environ.get("PEER_SAY"):
        redispeer.began(i)


class Peer:
    def __init__(self):
        self.redis = Redis(unix_socket_path=redispeer.SOCKET)
        self.queue = Queue(connection=self.redis)

    def one(self, i):
        self.queue.enqueue("rq_peer.noop", kwargs=redispeer.payload(i), result_ttl=0)

    def bulk(self, first, last):
        self.queue.enqueue_many([Queue.prepare_data("rq_peer.noop", kwargs=redispeer.payload(i), result_ttl=0)
                                 for i in range(first, last)])

    def worker(self):
        return SimpleWorker([self.queue], connection=self.redis)

    def drain(self, n):
        redispeer.timed(n, lambda: self.worker().work(burst=True, logging_level="ERROR"))
        assert self.redis.llen(self.queue.key) == 0

    def work(self):
        os.environ["PEER_SAY"] = "1"
        threading.Thread(target=lambda: (redispeer.until_closed(), os._exit(0)), daemon=True).start()
        redispeer.say("ready")
        self.worker().work(logging_level="ERROR")


if __name__ == "__main__":
    sys.modules["rq_peer"] = sys.modules["__main__"]
    redispeer.main(Peer())
