# SPDX-License-Identifier: Apache-2.0
"""Requests in, handlers called, answers out.

With one thread, the main thread reads, runs and writes in turn; a handler that asks whether it
is cancelled makes it read on. With several, the main thread only reads, and decides how many of
the others are woken (_Pace).

Invariants:
  (1) a request that was started is answered, once;
  (2) an answer waits while another handler runs for at most a moment (see _wire);
  (3) whatever a handler raises, sys.exit() too, ends its task and not the process.
"""

import re
import threading
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple

from ._codec import LINE_MAX, Codec
from ._errors import Cancelled
from ._job import Host, Job, running
from ._registry import Handler, NoHandler, Registry, wants_context
from ._signals import Signals
from ._wire import Wire

LOOK_MS = 1  # how soon it is noticed that one thread does not get on
QUICK_S = 0.001  # after a handler that took longer, no answer is held back
BACKLOG_MAX = 1024  # requests read ahead for the sake of cancel lines
REFUSED_MAX = 10_000
TYPES_MAX = 10_000
_ID = re.compile(rb'\s*\{\s*"task_id"\s*:\s*("(?:[^"\\]|\\.){0,1024}")')


class _Pace:
    """Should many threads be woken for many requests, or is one better?

    Handlers that only compute, and not for long, share one interpreter: waking a thread for each
    costs more than they do. So as long as the process is busy and gets quick ones done, one
    thread takes them all; when it waits for something, or one takes long, all are woken.
    """

    def __init__(self) -> None:
        self.many = True
        self.done = 0  # counted without a lock: one too few does no harm
        self._done = 0
        self._at = time.perf_counter()
        self._cpu = time.process_time()

    def look(self, waiting: bool) -> None:
        """Decides anew, if there is something to decide by; waiting: are there requests?"""
        now = time.perf_counter()
        took, done = now - self._at, self.done - self._done
        if took < LOOK_MS / 1000 or not (waiting or done):
            return
        cpu = time.process_time()
        self.many = done <= 0 or took > done * QUICK_S or cpu - self._cpu < took / 2
        self._at, self._cpu, self._done = now, cpu, self.done


class Child(Host):
    """Serves the handlers of a registry over a wire."""

    def __init__(self, registry: Registry, codec: Codec, wire: Wire, signals: Signals) -> None:
        self._registry = registry
        self._codec = codec
        self._inbox = wire.inbox
        self._outbox = wire.outbox
        self._signals = signals
        self._ctx: Any = None
        self._tasks: Dict[Optional[str], Tuple[Handler, bool]] = {}  # and: does it take ctx?
        self._seq = 0  # lines read so far
        self._backlog: Deque[Tuple[int, bytes]] = deque()  # requests not yet started, by number
        self._live: Dict[Any, Job] = {}  # those that run, by id
        self._refused: Dict[Any, int] = {}  # cancelled before they ran: id, number of the line
        self._reading = threading.Lock()  # held by whoever reads
        self._work = threading.Condition()  # more in the backlog, or it has ended
        self._ended = False  # nothing more will come into the backlog
        self._threaded = False
        self._resting = 0  # threads that wait for work
        self._pace = _Pace()

    def load(self) -> None:
        """Calls the load function, if there is one."""
        if self._registry.loader is not None:
            self._ctx = self._registry.loader()

    # ---- read ----

    def _read(self, timeout_ms: Optional[int] = None) -> None:
        """Waits for more requests, or a signal, or the end."""
        with self._reading:
            if self._signals.wait(timeout_ms):
                self._accept(self._inbox.read())

    def listen(self) -> None:
        """Takes in what has come already. A handler asks for it; it may read its own end."""
        if self._threaded or not self._reading.acquire(blocking=False):
            return  # another thread reads
        try:
            inbox = self._inbox
            while not inbox.eof and len(self._backlog) < BACKLOG_MAX and inbox.ready():
                self._accept(inbox.read())
        finally:
            self._reading.release()

    def _accept(self, lines: List[bytes]) -> None:
        for line in lines:
            self._seq += 1
            if len(line) < 1024 and b'"cancel"' in line and self._cancel(line):
                continue
            self._backlog.append((self._seq, line))

    def _cancel(self, line: bytes) -> bool:
        """Is this a cancel line? Then it is obeyed.

        It means the requests that came before it. It is noted first, then the live jobs are
        looked at; a job that starts does it the other way round, so that one of the two sees it.
        """
        try:
            request = self._codec.decode(line)
            if "payload" in request or request.get("cancel") is not True:
                return False
            task_id = request["task_id"]
            if len(self._refused) >= REFUSED_MAX:
                self._refused.clear()
            self._refused[task_id] = self._seq
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            return False
        job = self._live.get(task_id)
        if job is not None:
            job._cancelled = True
            self._refused.pop(task_id, None)
        return True

    # ---- serve ----

    def serve(self, limit: Optional[int] = None) -> None:
        """In this thread, one by one; at most `limit` requests."""
        inbox, backlog, outbox, signals = self._inbox, self._backlog, self._outbox, self._signals
        handle, clock = self._handle, time.perf_counter
        left = -1 if limit is None else limit
        now = 0.0
        while left and not (signals.stopping or outbox.broken):
            if not backlog:
                self._rest()
                if inbox.eof:
                    break
                self._read()
                now = clock()
                continue
            seq, request = backlog.popleft()
            line = handle(seq, request)
            started, now = now, clock()
            left -= bool(line)
            if now - started >= QUICK_S:
                outbox.put(line)
                self.listen()
            elif backlog:
                outbox.hold(line)
            else:
                outbox.put(line)

    def serve_with(self, threads: int) -> None:
        """In so many threads; this one reads."""
        self._threaded = True
        workers = [
            threading.Thread(target=self._serve_in_thread, name=f"stint-{n}", daemon=True)
            for n in range(1, threads + 1)
        ]
        for worker in workers:
            worker.start()
        pace = self._pace
        while not (self._inbox.eof or self._outbox.broken or self._signals.stopping):
            self._read(LOOK_MS if self._backlog and not pace.many else None)
            pace.look(bool(self._backlog))
            with self._work:
                if pace.many:
                    self._work.notify(len(self._backlog))
                elif self._backlog and self._resting == threads:
                    self._work.notify()
        with self._work:
            self._ended = True
            self._work.notify_all()
        for worker in workers:
            worker.join()

    def _serve_in_thread(self) -> None:
        clock = time.perf_counter
        while True:
            request = self._next()
            if request is None:
                return
            started = clock()
            line = self._handle(*request)
            self._pace.done += 1
            if self._backlog and clock() - started < QUICK_S:
                self._outbox.hold(line)
            else:
                self._outbox.put(line)

    def _next(self) -> Optional[Tuple[int, bytes]]:
        """The next request; waits for it. None: there are no more."""
        while not (self._signals.stopping or self._outbox.broken):
            try:
                return self._backlog.popleft()
            except IndexError:
                pass
            self._rest()
            with self._work:
                if not self._backlog:
                    if self._ended:
                        return None
                    self._resting += 1
                    self._work.wait()
                    self._resting -= 1
        return None

    def _rest(self) -> None:
        """Before waiting: what is held goes out, what is no longer needed goes."""
        self._outbox.flush()
        running.set(None)

    # ---- one request ----

    def _handle(self, seq: int, line: bytes) -> bytes:
        """Runs a request and gives the answer; nothing for an empty line."""
        codec = self._codec
        try:
            if len(line) > LINE_MAX:
                raise ValueError
            request = codec.decode(line)
            task_id = request.get("task_id", "unknown")
            fence = request.get("fence")
            type_ = request.get("type")
            fn, takes_ctx = self._tasks.get(type_) or self._find(type_)
            self._live[task_id] = job = Job(request, self)
        except Exception as error:
            return self._unfit(line, error)
        running.set(job)
        try:
            if self._refused and self._refused.pop(task_id, 0) > seq:
                raise Cancelled("cancelled")
            payload = request.get("payload", {})
            result = fn(payload, self._ctx) if takes_ctx else fn(payload)
            return codec.result(task_id, fence, result)
        except BaseException as error:
            return self._failed(task_id, fence, error)
        finally:
            if self._live.get(task_id) is job:  # not a later attempt of the same
                self._live.pop(task_id, None)

    def _find(self, type_: Optional[str]) -> Tuple[Handler, bool]:
        fn = self._registry.find(type_)
        task = fn, wants_context(fn, self._registry.loader is not None, self._ctx)
        if len(self._tasks) < TYPES_MAX:
            self._tasks[type_] = task
        return task

    def _failed(self, task_id: Any, fence: Any, error: BaseException) -> bytes:
        return self._codec.failure(task_id, fence, error)

    def _unfit(self, line: bytes, error: Exception) -> bytes:
        """The answer to a request that cannot be run: its job is to fail, not to hang."""
        if not line.strip():
            return b""
        if len(line) > LINE_MAX:
            why = f"the request is longer than {LINE_MAX} bytes"
        elif isinstance(error, NoHandler):
            why = str(error)
        else:
            why = f"the request cannot be read: {error}"
        return self._codec.error(self._id_of(line), None, why)

    def _id_of(self, line: bytes) -> Any:
        """The id of a request that may be broken, as long as it starts with it."""
        try:
            return self._codec.decode(line).get("task_id", "unknown")
        except Exception:
            match = _ID.match(line[:8192])
        try:
            return self._codec.decode(match.group(1)) if match else "unknown"
        except ValueError:
            return "unknown"

    def progress(self, job: Job, value: Any) -> None:
        self._outbox.put(self._codec.progress(job.id, job.fence, value))
