# SPDX-License-Identifier: Apache-2.0
"""How a child is told to stop, and how a wait for input learns of it.

A signal that comes just before a blocking read would be seen only after it. So a wait looks
at two descriptors: the input, and a pipe that Python writes to whenever a signal comes.
"""

import os
import select
import signal
import threading
from typing import Any, Dict, Optional

_NUMBERS = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """SIGTERM and SIGINT: the first one stops, the second one ends the process at once.

    While the load function runs there is nothing to finish, so the first one ends it. Outside
    of the main thread signals cannot be had: then they do what they did before.
    """

    def __init__(self, fd: int) -> None:
        """fd is the input that will be waited for."""
        self.serving = False
        self.stopping = False
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._old: Dict[int, Any] = {}
        self._wake, self._wake_end = -1, -1
        self._old_wake_end = -1
        if threading.current_thread() is threading.main_thread():
            self._install()

    def _install(self) -> None:
        self._wake, self._wake_end = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._wake_end, False)
        self._poll.register(self._wake, select.POLLIN)
        self._old_wake_end = signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        for number in _NUMBERS:
            self._old[number] = signal.signal(number, self._on_signal)
        os.register_at_fork(after_in_child=self._forked)

    def _on_signal(self, number: int, frame: Any) -> None:
        if self.stopping or not self.serving:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.stopping = True

    def wait(self, timeout_ms: Optional[int] = None) -> bool:
        """Waits until the input can be read, a signal came, or time is up. True: it can be read."""
        if self._wake >= 0:
            # a handler may have run an event loop, which takes this for itself
            signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        if self.stopping:
            return False
        ready = self._poll.poll(timeout_ms)
        if not ready:
            return False
        if len(ready) == 1 and ready[0][0] == self._fd:
            return True
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            pass
        return len(ready) == 2

    def _forked(self) -> None:
        """In a forked process SIGTERM must end it, or multiprocessing could not."""
        self._put_back(dict.fromkeys(self._old, signal.SIG_DFL), -1)

    def restore(self) -> None:
        """As it was before."""
        self._put_back(self._old, self._old_wake_end)
        self._old = {}
        for fd in (self._wake, self._wake_end):
            if fd >= 0:
                os.close(fd)
        self._wake, self._wake_end = -1, -1

    def _put_back(self, actions: Dict[int, Any], wake_end: int) -> None:
        if not actions:
            return
        try:
            signal.set_wakeup_fd(wake_end)
        except (OSError, ValueError):  # it is closed; or not the main thread
            pass
        for number, action in actions.items():
            try:
                if signal.getsignal(number) == self._on_signal:
                    signal.signal(number, action)
            except (TypeError, ValueError):  # not set from Python; not the main thread
                pass
