# SPDX-License-Identifier: Apache-2.0
"""How a child is told to stop."""

import os
import signal
import threading
from typing import Any, Dict


class Stop(Exception):
    """Leaves a read that waits."""


class Signals:
    """SIGTERM and SIGINT: the first one stops, the second one ends the process at once.

    While the load function runs there is nothing to finish, so the first one ends it.
    """

    def __init__(self) -> None:
        self.serving = False
        self.stopping = False
        self.may_raise = False  #: the main thread waits for input: leave it by Stop
        self._old: Dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._old[number] = signal.signal(number, self._on_signal)
            os.register_at_fork(after_in_child=self._forked)

    def _on_signal(self, number: int, frame: Any) -> None:
        if self.stopping or not self.serving:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.stopping = True
        if self.may_raise:
            raise Stop

    def _forked(self) -> None:
        """In a forked process SIGTERM must end it, or multiprocessing could not."""
        self._put_back(dict.fromkeys(self._old, signal.SIG_DFL))

    def restore(self) -> None:
        self._put_back(self._old)
        self._old = {}

    def _put_back(self, actions: Dict[int, Any]) -> None:
        for number, action in actions.items():
            try:
                if signal.getsignal(number) == self._on_signal:
                    signal.signal(number, action)
            except (TypeError, ValueError):  # not the main thread; not set from Python
                pass
