# SPDX-License-Identifier: Apache-2.0
"""Background jobs: write handlers for the stint worker, and enqueue jobs.

A handler, as a resident child of the worker::

    import stint

    @stint.task
    def greet(payload):
        return {"hello": payload["name"]}

    if __name__ == "__main__":
        stint.run()

A job for it::

    client = stint.Client("sqlite:stint.db")
    job = client.enqueue("greet", {"name": "Ada"})
    print(client.wait(job.id)["result"])

``stint.testing`` runs handlers without a worker.
"""

from typing import TYPE_CHECKING, Any, List

from ._errors import (
    AlreadyExists,
    Cancelled,
    InvalidRequest,
    NotFound,
    NotInstalled,
    OutcomeUnknown,
    Retry,
    StintError,
    StoreUnavailable,
    WaitTimeout,
    WrongState,
)
from ._job import Job, check, current, progress
from ._registry import load, task
from ._run import run, run_once

if TYPE_CHECKING:
    from ._client import Client, Enqueued, NewJob

__version__ = "0.1.0"

#: The name this exception has in runqy-python; the same class as :class:`Retry`.
RetryableError = Retry

__all__ = [
    "AlreadyExists",
    "Cancelled",
    "Client",
    "Enqueued",
    "InvalidRequest",
    "Job",
    "NewJob",
    "NotFound",
    "NotInstalled",
    "OutcomeUnknown",
    "Retry",
    "RetryableError",
    "StintError",
    "StoreUnavailable",
    "WaitTimeout",
    "WrongState",
    "check",
    "current",
    "load",
    "progress",
    "run",
    "run_once",
    "task",
]


def __getattr__(name: str) -> Any:
    # The client needs ctypes and subprocess; a child that is started for one job does not.
    if name in ("Client", "Enqueued", "NewJob"):
        from . import _client

        return getattr(_client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted(set(globals()) | set(__all__))
