# SPDX-License-Identifier: Apache-2.0
"""The enqueue side: Client, over libstint or over the program ``stint``.

What a job is made of is checked and put into one form here; a back end (_library, _program)
only carries it. Both give the same answers and raise the same exceptions.
"""

import json
import os
import re
import secrets
import time
from datetime import datetime, timedelta, timezone
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, TypedDict, Union

from ._durations import Duration, milliseconds
from ._errors import InvalidRequest

Time = Union[datetime, int, float, str]
"""A datetime with a time zone, seconds since 1970, or an RFC 3339 text."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_INT_MAX = 2**31 - 1


class Enqueued(NamedTuple):
    """What :meth:`Client.enqueue` answers."""

    id: str  #: the new job's, or that of the job which holds the unique key
    duplicate: bool  #: True: nothing was added, such a job is there already


class _NewJob(TypedDict):
    type: str


class NewJob(_NewJob, total=False):
    """One job for :meth:`Client.enqueue_many`: the arguments of :meth:`Client.enqueue`."""

    payload: Any
    queue: Optional[str]
    priority: int
    delay: Optional[Duration]
    at: Optional[Time]
    max_attempts: Optional[int]
    timeout: Optional[Duration]
    key: Optional[str]
    unique: Union[None, bool, Duration]
    id: Optional[str]
    meta: Optional[Mapping[str, Any]]


class Spec(NamedTuple):
    """A new job in the form back ends take."""

    type: str
    payload: bytes
    queue: Optional[str]
    id: str
    priority: int
    delay_ms: int
    at_us: int  # 0 = use delay_ms
    max_attempts: int  # -1 = by the type's configuration
    timeout_ms: int  # -1 = by the type's configuration, 0 = none
    key: Optional[str]
    unique: Optional[str]
    meta: Optional[bytes]


class Backend:
    """What carries requests to the store. May be used by several threads."""

    name = ""

    def enqueue(self, specs: List[Spec]) -> List[Enqueued]:
        raise NotImplementedError

    def get(self, id: str) -> bytes:
        """The job's document."""
        raise NotImplementedError

    def wait(self, id: str, timeout_ms: int) -> None:
        """Until the job has ended; -1 = for ever."""
        raise NotImplementedError

    def cancel(self, id: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Client:
    """Enqueues jobs and looks after them. It may be shared by threads.

    ``url`` names the store, such as ``"sqlite:/var/lib/app/stint.db"``. Without it the rule of
    the program holds: ``STINT_STORE``, then ``store:`` in stint.yaml (``STINT_CONFIG``, else
    ./stint.yaml), then ``DATABASE_URL``, ``REDIS_URL``, ``sqlite:stint.db``.

    ``timeout`` is how long a call may wait for a busy or absent store.

    The work is done by libstint (``STINT_LIB``, beside this package, or where the system finds
    it), or by the program ``stint`` (``STINT_BIN``, or in PATH). ``backend`` insists on one of
    them: ``"library"`` or ``"program"``. The library is much quicker.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        *,
        timeout: Duration = 5,
        backend: Optional[str] = None,
    ) -> None:
        if url is not None:
            _text(url, "url")
        timeout_ms = max(1, milliseconds(timeout, "timeout"))
        if timeout_ms > _INT_MAX:
            raise InvalidRequest(f"timeout: {timeout!r} is too long")
        self._backend = _open(url or _default_url(), timeout_ms, backend)

    @property
    def backend(self) -> str:
        """``"library"`` or ``"program"``."""
        return self._backend.name

    def enqueue(
        self,
        type: str,
        payload: Any = None,
        *,
        queue: Optional[str] = None,
        priority: int = 0,
        delay: Optional[Duration] = None,
        at: Optional[Time] = None,
        max_attempts: Optional[int] = None,
        timeout: Optional[Duration] = None,
        key: Optional[str] = None,
        unique: Union[None, bool, Duration] = None,
        id: Optional[str] = None,
        meta: Optional[Mapping[str, Any]] = None,
    ) -> Enqueued:
        """Adds a job; when it returns, the job is in the store and will not be lost.

        ``type`` says which handler runs it; ``payload`` is what the handler gets: anything
        ``json`` can write, or bytes that hold JSON already and are kept as they are.

        ``queue`` is ``"default"`` unless given; a higher ``priority`` (-32768 to 32767) runs first.

        ``delay`` and ``at``: not before so long from now, or before this time.

        ``max_attempts`` (0 = no limit) and ``timeout`` (0 = none) override the type's
        configuration.

        ``key`` makes the job unique: while the key is held, another enqueue of the type with the
        same key adds nothing and answers with the job that is there. ``unique`` says how long:
        ``"active"`` (the default: until the job has ended), ``"forever"``, or a duration. With
        ``unique`` alone the key is made of type, payload and queue.

        ``id`` names the job yourself (1 to 128 bytes); enqueueing the same id again adds nothing.

        ``meta`` is an object that is kept with the job.

        Raises :class:`InvalidRequest`, :class:`StoreUnavailable` (nothing was added) or
        :class:`OutcomeUnknown` (repeat it with ``id=error.ids[0]``).
        """
        job: NewJob = {
            "type": type,
            "payload": payload,
            "queue": queue,
            "priority": priority,
            "delay": delay,
            "at": at,
            "max_attempts": max_attempts,
            "timeout": timeout,
            "key": key,
            "unique": unique,
            "id": id,
            "meta": meta,
        }
        return self._backend.enqueue([_spec(job)])[0]

    def enqueue_many(self, jobs: Iterable[NewJob]) -> List[Enqueued]:
        """Adds all of the jobs or none; much quicker than one by one.

        Each is a dict with the arguments of :meth:`enqueue`:
        ``[{"type": "mail", "payload": {"to": "ada"}}, ...]``.
        """
        specs = []
        for n, job in enumerate(jobs, 1):
            try:
                specs.append(_spec(job))
            except InvalidRequest as error:
                raise InvalidRequest(f"job {n}: {error.message}", remedy=error.remedy) from None
        return self._backend.enqueue(specs) if specs else []

    def get(self, id: str) -> Dict[str, Any]:
        """The job, as ``stint job show --json`` prints it: ``state``, ``result``, ``error``, ...

        A large result that the worker keeps in a file is read, if that can be done from here;
        otherwise ``result`` is None and ``result_ref`` says where it is.
        """
        return _document(self._backend.get(_id(id)))

    def wait(self, id: str, timeout: Optional[Duration] = None) -> Dict[str, Any]:
        """Waits until the job has ended and gives it; ``state`` says how: ``"succeeded"``,
        ``"failed"`` or ``"cancelled"``. :class:`WaitTimeout` if ``timeout`` passes first."""
        ms = -1 if timeout is None else milliseconds(timeout, "timeout")
        self._backend.wait(_id(id), min(ms, _INT_MAX))
        return self.get(id)

    def cancel(self, id: str) -> None:
        """Cancels a waiting job; a running one is asked to stop, which may take a while.

        :class:`WrongState` if it has ended already.
        """
        self._backend.cancel(_id(id))

    def close(self) -> None:
        """Lets go of the store. The client cannot be used any more."""
        self._backend.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<stint.Client by {self.backend}>"


def _open(url: Optional[str], timeout_ms: int, backend: Optional[str]) -> Backend:
    from . import _library, _program

    if backend not in (None, "library", "program"):
        raise InvalidRequest(f"there is no backend {backend!r}, only 'library' and 'program'")
    if backend != "program":
        library = _library.find(required=backend == "library")
        if library is not None:
            return _library.Library(library, url, timeout_ms)
    return _program.Program(_program.find(), url, timeout_ms)


# ---- the store's name ----

_STORE_LINE = re.compile(
    r"""^store:[ \t]+(?:"([^"\\]*)"|'([^']*)'|([^\s#"']\S*))[ \t]*(?:#.*)?$""", re.M
)


def _default_url() -> Optional[str]:
    """The store that stint.yaml names, unless the environment does."""
    if os.environ.get("STINT_STORE"):
        return None
    try:
        with open(os.environ.get("STINT_CONFIG") or "stint.yaml", encoding="utf-8") as file:
            match = _STORE_LINE.search(file.read())
    except (OSError, UnicodeDecodeError):
        return None
    return next(filter(None, match.groups()), None) if match else None


# ---- a job's parts ----

_FIELDS = frozenset(NewJob.__annotations__) | {"type"}


def _spec(job: Mapping[str, Any]) -> Spec:
    if not isinstance(job, Mapping) or "type" not in job:
        raise InvalidRequest(f"{job!r} is no dict with a type")
    unknown = set(job) - _FIELDS
    if unknown:
        raise InvalidRequest(f"there is no argument {sorted(map(str, unknown))[0]!r}")
    delay, at, timeout = job.get("delay"), job.get("at"), job.get("timeout")
    if delay is not None and at is not None:
        raise InvalidRequest("both delay and at are given; one of them is enough")
    attempts = job.get("max_attempts")
    return Spec(
        type=_text(job["type"], "type"),
        payload=_payload(job.get("payload")),
        queue=_optional(job.get("queue"), "queue"),
        id=_new_id() if job.get("id") is None else _id(job["id"]),
        priority=_int(job.get("priority", 0), "priority", -32768, 32767),
        delay_ms=0 if delay is None else milliseconds(delay, "delay"),
        at_us=0 if at is None else _microseconds(at),
        max_attempts=-1 if attempts is None else _int(attempts, "max_attempts", 0, _INT_MAX),
        timeout_ms=-1 if timeout is None else milliseconds(timeout, "timeout"),
        key=_optional(job.get("key"), "key"),
        unique=_unique(job.get("unique")),
        meta=_meta(job.get("meta")),
    )


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{what}: {value!r} is no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what}: {value!r} is no Unicode text") from None
    if "\0" in value:
        raise InvalidRequest(f"{what}: {value!r} has a zero character in it")
    return value


def _optional(value: Any, what: str) -> Optional[str]:
    return None if value is None else _text(value, what)


def _id(value: Any) -> str:
    if isinstance(value, Enqueued):
        value = value.id
    id = _text(value, "id")
    if not id:
        raise InvalidRequest("the id is empty")
    return id


def _int(value: Any, what: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{what}: {value!r} is no whole number")
    if not low <= value <= high:
        raise InvalidRequest(f"{what}: {value} is not in {low}..{high}")
    return value


def _json(value: Any, what: str) -> bytes:
    try:
        try:
            return json.dumps(
                value, ensure_ascii=False, allow_nan=False, separators=(",", ":")
            ).encode()
        except UnicodeEncodeError:  # lone surrogates: as escapes
            return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what} cannot be written as JSON: {error}") from None


def _payload(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        return _json(value, "the payload")
    data = bytes(value)
    try:
        json.loads(data.decode(), parse_constant=_no_constant, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"the payload's bytes are not JSON: {error}",
            remedy="give the value itself, and it is written as JSON",
        ) from None
    return data


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _meta(value: Any) -> Optional[bytes]:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"meta: {value!r} is no dict")
    return _json(dict(value), "meta")


def _unique(value: Any) -> Optional[str]:
    if value is None or value is False:
        return None
    if value is True:
        return "active"
    if value in ("active", "forever"):
        return str(value)
    return f"{milliseconds(value, 'unique')}ms"


def _microseconds(at: Any) -> int:
    """Since 1970; never 0, which means something else."""
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at.replace("Z", "+00:00").replace("z", "+00:00"))
        except ValueError:
            raise InvalidRequest(f"at: {at!r} is no RFC 3339 time") from None
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidRequest(
                f"at: {at.isoformat()} has no time zone",
                remedy="use datetime.now(timezone.utc) or .astimezone()",
            )
        us = (at - _EPOCH) // timedelta(microseconds=1)
    elif isinstance(at, (int, float)) and not isinstance(at, bool) and abs(at) < 1e11:
        us = round(at * 1_000_000)
    else:
        raise InvalidRequest(f"at: {at!r} is no time")
    if us < 0:
        raise InvalidRequest(f"at: {at!r} is before 1970")
    return us or 1


def _new_id() -> str:
    """A UUIDv7: made here, so that an enqueue of unknown outcome can be repeated."""
    ms = time.time_ns() // 1_000_000
    value = (ms & (1 << 48) - 1) << 80 | 7 << 76 | 2 << 62
    value |= secrets.randbits(12) << 64 | secrets.randbits(62)
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


# ---- a job's document ----


def _document(text: bytes) -> Dict[str, Any]:
    job: Dict[str, Any] = json.loads(text)
    if job.get("result") is None and job.get("result_ref"):
        try:
            with open(job["result_ref"], "rb") as file:
                data = file.read()
        except OSError:
            return job
        try:
            job["result"] = json.loads(data)
        except ValueError:
            job["result"] = data.decode(errors="replace")
    return job
