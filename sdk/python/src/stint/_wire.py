# SPDX-License-Identifier: Apache-2.0
"""The two pipes to the worker.

``Wire.take_over`` moves both away from descriptors 0 and 1, so that nothing but this module can
read requests or write answers: 0 becomes /dev/null and 1 becomes stderr, for Python, for C
code and for programs that a handler starts.

Inbox: bytes become lines; the longest is LINE_MAX.

Outbox: answers may be held back while more requests wait, so that many go out in one write.
A held answer is written as soon as

  - nothing more waits, or the handler turns out not to be quick (the caller flushes), or
  - HOLD_S has passed: a thread, started when the first answer is held, sees to that.

Invariants:
  (1) one thread writes at a time, and whole lines only;
  (2) once the pipe is broken everything is dropped and `broken` says so;
  (3) a process forked from this one has neither pipe.
"""

import fcntl
import os
import select
import sys
import threading
import time
from collections import deque
from typing import Deque, List, Optional

from ._codec import LINE_MAX

READ_SIZE = 1 << 16  # what a pipe holds; larger buffers cost an mmap each
HOLD_S = 0.005
HELD_MAX = 512  # lines held at most
HELD_BYTES = 1 << 16  # a line of this size is not held


class Inbox:
    """Reads lines from a descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.eof = False
        self._parts: List[bytes] = []  # of a line whose end has not come
        self._size = 0
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def ready(self) -> bool:
        """Can it be read without waiting?"""
        return bool(self._poll.poll(0))

    def read(self) -> List[bytes]:
        """The lines that came with the next bytes; waits for some. Sets eof at the end."""
        chunk = os.read(self.fd, READ_SIZE)
        if not chunk:
            self.eof = True
            last = b"".join(self._parts)
            self._parts = []
            return [last] if last else []
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            self._keep(chunk)
            return []
        if self._parts:
            self._keep(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts = []
            self._size = 0
        rest = lines.pop()
        if rest:
            self._keep(rest)
        return lines

    def _keep(self, part: bytes) -> None:
        """A line that is too long keeps its start and one byte too many: enough to refuse it."""
        room = LINE_MAX + 1 - self._size
        if room > 0:
            part = part[:room]
            self._parts.append(part)
            self._size += len(part)


class Outbox:
    """Writes lines to a descriptor, from any thread."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.broken = False
        self._lines: Deque[bytes] = deque()  # appended to without the lock
        self._lock = threading.Lock()
        self._writing = False
        self._done = threading.Condition(self._lock)  # no longer writing
        self._draining = 0  # how many wait for that
        self._armed = False  # the timer runs
        self._timer: Optional[threading.Event] = None

    def put(self, line: bytes) -> None:
        """Writes a line, after those that were held."""
        self._lines.append(line)
        self.flush()
        if len(self._lines) >= HELD_MAX:  # a writer is stuck: so are we, until the worker reads
            self.drain()

    def hold(self, line: bytes) -> None:
        """Keeps a line for a moment."""
        if len(self._lines) >= HELD_MAX - 1 or len(line) >= HELD_BYTES:
            self.put(line)
            return
        self._lines.append(line)
        if not self._armed:
            self._arm()

    def flush(self) -> None:
        """Writes what is there. Returns if another thread is at it: that one writes ours too."""
        if not self._lines:
            return
        with self._lock:
            if self._writing:
                return
            data = self._take()
            self._writing = bool(data)
        while data:
            self._write(data)
            with self._lock:
                data = self._take()
                if not data:
                    self._writing = False
                    if self._draining:
                        self._done.notify_all()

    def _take(self) -> bytes:
        lines = self._lines
        if len(lines) == 1:
            return lines.popleft()
        return b"".join([lines.popleft() for _ in range(len(lines))])

    def drain(self) -> None:
        """Returns when everything is written."""
        self.flush()
        with self._lock:
            self._draining += 1
            self._done.wait_for(lambda: not self._writing)
            self._draining -= 1

    def _write(self, data: bytes) -> None:
        if self.broken:
            return
        try:
            done = os.write(self.fd, data)
            while done < len(data):
                done += os.write(self.fd, memoryview(data)[done:])
        except OSError:  # the worker is gone: nobody wants to know any more
            self.broken = True

    def _arm(self) -> None:
        self._armed = True
        if self._timer is None:
            self._timer = threading.Event()
            threading.Thread(target=self._run_timer, name="stint-flush", daemon=True).start()
        self._timer.set()

    def _run_timer(self) -> None:
        assert self._timer is not None
        while True:
            self._timer.wait()
            self._timer.clear()
            time.sleep(HOLD_S)
            self._armed = False  # what is held from here on arms it anew
            self.flush()


class Wire:
    """Both pipes, taken over from descriptors 0 and 1."""

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self.inbox = Inbox(fd_in)
        self.outbox = Outbox(fd_out)

    @classmethod
    def take_over(cls) -> "Wire":
        try:
            wire = cls(_move(0), _move(1))
        except OSError:
            raise RuntimeError(
                "stdin or stdout is closed: this process is to be started by a worker"
            ) from None
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        try:
            os.fstat(2)
        except OSError:
            os.dup2(null, 2)
        os.dup2(2, 1)
        if null > 2:
            os.close(null)
        _point_stdout_to_stderr()
        os.register_at_fork(after_in_child=wire.forget)
        return wire

    def forget(self) -> None:
        """In a forked process: it must neither answer nor keep the pipes open."""
        self.outbox.broken = True
        self.inbox.eof = True
        self.close()

    def close(self) -> None:
        """The worker sees the end of our answers."""
        for box in (self.inbox, self.outbox):
            if box.fd >= 0:
                os.close(box.fd)
                box.fd = -1


def _move(fd: int) -> int:
    """A copy that is not in the way of stdin, stdout and stderr, even if one is closed."""
    copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.set_blocking(copy, True)
    return copy


def _point_stdout_to_stderr() -> None:
    old = sys.stdout
    if old is not None:
        try:
            old.flush()  # what was printed before goes to stderr too: descriptor 1 is that by now
            old.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        except (AttributeError, OSError, ValueError):
            pass
    if sys.stderr is not None:
        sys.stdout = sys.stderr
