# SPDX-License-Identifier: Apache-2.0
"""celery_peer.py - Celery with two processes (prefork), results off, a prefetch of 100 each: what its page on optimizing says for
short tasks.  Many at once: one producer's pool of connections, one message each; it has no call for many."""

import contextlib
import os
import signal
import sys
import threading
import time

from celery import Celery
from redis import Redis

import redispeer

app = Celery("celery_peer", broker=f"redis+socket://{redispeer.SOCKET}")
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=100, worker_concurrency=2, worker_redirect_stdouts=False,
                worker_hijack_root_logger=False, broker_connection_retry_on_startup=True, worker_send_task_events=False)
ARGS = ["--quiet", "worker", "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR", "--pool", "prefork"]


@app.task(name="noop")
def noop(i, p):
    if os.environ.get("PEER_SAY"):
        redispeer.began(i)


class Peer:
    def one(self, i):
        noop.apply_async(kwargs=redispeer.payload(i))

    def bulk(self, first, last):
        with app.producer_pool.acquire(block=True) as producer:
            for i in range(first, last):
                noop.apply_async(kwargs=redispeer.payload(i), producer=producer)

    def drain(self, n):
        def empty():
            redis = Redis(unix_socket_path=redispeer.SOCKET)
            while redis.llen("celery") or redis.hlen("unacked"):
                time.sleep(0.005)

        self.serve(lambda: redispeer.timed(n, empty))

    def work(self):
        os.environ["PEER_SAY"] = "1"
        redispeer.say("ready")
        self.serve(redispeer.until_closed)

    def serve(self, during):
        """The worker has the main thread, for its signals; it ends when during() has."""
        threading.Thread(target=lambda: (during(), os.kill(os.getpid(), signal.SIGTERM)), daemon=True).start()
        with contextlib.suppress(SystemExit):
            app.worker_main(ARGS)


if __name__ == "__main__":
    sys.modules["celery_peer"] = sys.modules["__main__"]
    redispeer.main(Peer())
