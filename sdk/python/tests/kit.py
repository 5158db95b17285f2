# SPDX-License-Identifier: Apache-2.0
"""A fake worker: starts a script as a child and speaks the protocol with it over real pipes."""

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time

PATIENCE_S = 30  # a test that needs longer has failed


class FakeWorker:
    """Lines to and from a child. Never sleeps: it waits for lines, for eof or for the exit."""

    def __init__(self, directory, script, *, ready=True, env=None):
        path = directory / "tasks.py"
        path.write_text("import stint\n" + textwrap.dedent(script))
        self.child = subprocess.Popen(
            [sys.executable, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(directory / "stderr", "wb"),
            bufsize=0,
            cwd=directory,
            env={**_environment(), **(env or {})},
        )
        self._stderr = directory / "stderr"
        self._in, self._out = self.child.stdin.fileno(), self.child.stdout.fileno()
        os.set_blocking(self._in, False)
        self._unread = b""
        if ready:
            assert self.line() == {"status": "ready", "cancel": True}

    # ---- lines ----

    def send(self, *requests):
        """Writes requests, or lines as they are; reads meanwhile, so that no pipe stays full."""
        data = b"".join(
            r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in requests
        )
        while data:
            readable, writable, _ = select.select([self._out], [self._in], [], PATIENCE_S)
            assert readable or writable, "the child takes no more"
            if readable:
                self._fill()
            if writable:
                try:
                    data = data[os.write(self._in, data) :]
                except BlockingIOError:
                    pass

    def _fill(self):
        chunk = os.read(self._out, 1 << 20)
        self._unread += chunk
        return bool(chunk)

    def raw_line(self):
        """The next line, None at the end."""
        end = time.monotonic() + PATIENCE_S
        while b"\n" not in self._unread:
            left = end - time.monotonic()
            assert left > 0 and select.select([self._out], [], [], left)[0], "no answer"
            if not self._fill():
                assert not self._unread, f"half a line at the end: {self._unread[:200]!r}"
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def line(self):
        line = self.raw_line()
        return None if line is None else json.loads(line)

    def lines(self, n):
        return [self.line() for _ in range(n)]

    def ask(self, payload=None, **more):
        """One request and its answer."""
        self.send(request("t", payload, **more))
        answer = self.line()
        assert answer["task_id"] == "t"
        return answer

    # ---- the end ----

    def close_stdin(self):
        self.child.stdin.close()

    def term(self, number=signal.SIGTERM):
        self.child.send_signal(number)

    def wait(self):
        return self.child.wait(PATIENCE_S)

    def end(self):
        """Closes stdin; the child is to end well and to say nothing more."""
        self.close_stdin()
        assert self.line() is None
        assert self.wait() == 0

    @property
    def stderr(self):
        return self._stderr.read_text(errors="replace")

    def kill(self):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            pipe.close()


def _environment():
    """This one, without what changes Python's buffers."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}


def request(task_id, payload=None, **more):
    return {
        "task_id": task_id,
        "type": "test",
        "payload": payload,
        "retry_count": 0,
        "max_retry": 2,
        "queue": "default",
        "attempt": 1,
        "deadline": None,
        "traceparent": None,
        **more,
    }


def succeeded(task_id, result):
    return {"task_id": task_id, "result": result, "error": None, "retry": False}
