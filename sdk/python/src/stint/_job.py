# SPDX-License-Identifier: Apache-2.0
"""The task that runs: what the worker said about it, its cancel flag, its progress."""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Dict, Optional, cast

from ._errors import Cancelled

if TYPE_CHECKING:
    from datetime import datetime


class Host:
    """What a job needs of whoever runs it; tests have their own."""

    __slots__ = ()

    def listen(self) -> None:
        """Reads what has come in; may set a job's cancel flag."""

    def progress(self, job: "Job", value: Any) -> None:
        """Passes a progress value on."""


class Job:
    """The running task, as :func:`current` gives it. It may be handed to other threads."""

    __slots__ = ("_request", "_host", "_cancelled")

    def __init__(self, request: Dict[str, Any], host: Host) -> None:
        self._request = request
        self._host = host
        self._cancelled = False

    @property
    def id(self) -> str:
        """The job's id."""
        return cast(str, self._request.get("task_id", "unknown"))

    @property
    def type(self) -> Optional[str]:
        return self._request.get("type")

    @property
    def queue(self) -> Optional[str]:
        return self._request.get("queue")

    @property
    def payload(self) -> Any:
        return self._request.get("payload", {})

    @property
    def payload_bytes(self) -> Optional[bytes]:
        """The payload's bytes if it is no JSON, which only libstint can enqueue; else None."""
        text = self._request.get("payload_base64")
        if text is None:
            return None
        import base64

        return base64.b64decode(text)

    @property
    def attempt(self) -> int:
        """Which attempt this is: 1 for the first."""
        attempt = self._request.get("attempt")
        return self.retry_count + 1 if attempt is None else attempt

    @property
    def retry_count(self) -> int:
        """How many attempts went before this one."""
        return self._request.get("retry_count") or 0

    @property
    def max_retry(self) -> Optional[int]:
        """How many attempts may follow the first; 2147483647 if there is no limit."""
        return self._request.get("max_retry")

    @property
    def fence(self) -> Optional[int]:
        """A number that only grows from attempt to attempt: hand it to systems that refuse
        writes with an older one."""
        return self._request.get("fence")

    @property
    def traceparent(self) -> Optional[str]:
        """The W3C trace context, if the job has one."""
        return self._request.get("traceparent")

    @property
    def deadline(self) -> "Optional[datetime]":
        """When the attempt's time is over, with its time zone, or None."""
        at = self._request.get("deadline")
        if not at:
            return None
        from datetime import datetime, timezone

        if isinstance(at, str):
            return datetime.fromisoformat(at.replace("Z", "+00:00"))
        return datetime.fromtimestamp(at, timezone.utc)

    @property
    def cancelled(self) -> bool:
        """Is this task to stop? Looks for the worker's word each time it is asked."""
        if not self._cancelled:
            self._host.listen()
        return self._cancelled

    def check(self) -> None:
        """Raises :class:`Cancelled` if this task is to stop."""
        if self.cancelled:
            raise Cancelled("cancelled")

    def progress(self, value: Any) -> None:
        """Tells the worker how far the task is: anything ``json`` can write."""
        self._host.progress(self, value)

    def __repr__(self) -> str:
        return f"<stint.Job {self.id} type={self.type} attempt={self.attempt}>"


running: "ContextVar[Optional[Job]]" = ContextVar("stint_job", default=None)


def current() -> Job:
    """The task that runs here. Outside of one: RuntimeError."""
    job = running.get()
    if job is None:
        raise RuntimeError("no task runs here; stint.testing.run_task() runs one without a worker")
    return job


def check() -> None:
    """Raises :class:`Cancelled` if the running task is to stop; call it between steps.

    Outside of a task it does nothing, so that handlers can be called directly.
    """
    job = running.get()
    if job is not None:
        job.check()


def progress(value: Any) -> None:
    """Tells the worker how far the running task is; the value is shown with the job.

    It is any value ``json`` can write, such as ``0.5`` or ``{"done": 10, "of": 200}``. Each call
    writes a line to the worker. Outside of a task it does nothing.
    """
    job = running.get()
    if job is not None:
        job.progress(value)
