# SPDX-License-Identifier: Apache-2.0
"""run() and run_once(): this process as a child of the worker.

start --load failed--> {"status":"error"}, exit 1
  |
  `--> {"status":"ready"} --> serving --EOF-----> all that came is done --> the end
                                `------SIGTERM--> what runs is finished --> the end
"""

import os
import sys
from typing import Optional

from ._child import Child
from ._codec import Codec, Default, ParseFloat
from ._registry import registry
from ._signals import Signals
from ._wire import Wire

THREADS_MAX = 1024


def run(
    threads: Optional[int] = None, *, default: Default = None, parse_float: ParseFloat = None
) -> None:
    """Serves tasks until stdin ends or SIGTERM comes: ``mode: resident`` in stint.yaml.

    Calls the ``@load`` function, says it is ready, then runs one task per line. It returns when
    the worker closes stdin, after everything received is done, or after SIGTERM or SIGINT, after
    what runs is done. A second signal ends the process at once.

    ``threads`` is how many tasks run at the same time; without it, ``STINT_MAX_IN_FLIGHT`` from
    the environment says, and without that it is 1: tasks run in the main thread, one by one.

    ``default`` and ``parse_float`` are handed to ``json``: ``default=str`` writes what json does
    not know, ``parse_float=decimal.Decimal`` reads 1.10 as it was written.
    """
    if not registry.inert:
        _serve(_thread_count(threads), None, Codec(default, parse_float))


def run_once(*, default: Default = None, parse_float: ParseFloat = None) -> None:
    """Serves one task and returns: ``mode: oneshot-lines`` in stint.yaml.

    The same as :func:`run` for a process that is started anew for each task.
    """
    if not registry.inert:
        _serve(1, 1, Codec(default, parse_float))


def _thread_count(threads: Optional[int]) -> int:
    if threads is None:
        text = os.environ.get("STINT_MAX_IN_FLIGHT", "")
        threads = int(text) if text.isascii() and text.isdigit() else 1
        return max(1, min(threads, THREADS_MAX))
    if not 1 <= threads <= THREADS_MAX:
        raise ValueError(f"threads is {threads}, not between 1 and {THREADS_MAX}")
    return threads


def _serve(threads: int, limit: Optional[int], codec: Codec) -> None:
    wire = Wire.take_over()
    signals = Signals(wire.inbox.fd)
    try:
        child = Child(registry, codec, wire, signals)
        _start(child, codec, wire, signals)
        if threads == 1:
            child.serve(limit)
        else:
            child.serve_with(threads)
        wire.outbox.drain()
        if wire.outbox.broken:
            sys.exit(1)
    finally:
        signals.restore()
        wire.close()


def _start(child: Child, codec: Codec, wire: Wire, signals: Signals) -> None:
    """Loads and says ready, or says why not and exits with 1."""
    problem = registry.problem()
    if not problem:
        try:
            child.load()
        except BaseException as error:
            import traceback

            traceback.print_exc()
            problem = f"@load failed: {type(error).__name__}: {error}"
    if not problem:
        signals.serving = True  # whoever reads the next line may send one
        wire.outbox.put(b'{"status":"ready","cancel":true}\n')
        return
    print(f"stint: {problem}", file=sys.stderr)
    wire.outbox.put(codec.line({"status": "error", "error": problem}))
    wire.outbox.drain()
    sys.exit(1)
