# SPDX-License-Identifier: Apache-2.0
"""The exceptions: two that handlers raise, and those that the client raises."""

from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Type, Union

if TYPE_CHECKING:
    from datetime import timedelta


class Retry(Exception):
    """Raised by a handler: this attempt failed, another one may succeed.

    ``after`` says how long to wait before it: seconds, a timedelta, or a text such as ``"5m"``;
    without it the retry policy of the job's type decides. The number of attempts stays limited
    by ``max_attempts``.

    ``message`` becomes the attempt's error. Where it is empty, the exception that is being
    handled or that was given by ``raise Retry() from error`` speaks instead.
    """

    after: Optional[float] = None  #: seconds

    def __init__(
        self, message: object = "", *, after: "Union[None, float, str, timedelta]" = None
    ) -> None:
        from ._durations import seconds

        super().__init__(message)
        self.after = None if after is None else seconds(after, "after")

    def __str__(self) -> str:
        text = str(self.args[0]) if self.args else ""
        why = self.__cause__ or self.__context__
        if not text and why is not None:
            text = f"{type(why).__name__}: {why}"
        return text or type(self).__name__


class Cancelled(BaseException):
    """Raised by :func:`stint.check` when the running task is to stop.

    Like ``asyncio.CancelledError`` it is no ``Exception``, so that ``except Exception`` in a
    handler does not swallow it. Clean up with ``finally`` and let it pass.
    """


class StintError(Exception):
    """What the client could not do. ``code`` is libstint's, such as ``"EINVAL"``."""

    code = "ERROR"

    def __init__(
        self, message: str, *, code: Optional[str] = None, remedy: str = "", detail: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.remedy = remedy  #: what to do about it; may be empty
        self.detail = detail  #: SQLSTATE, SQLite's extended code, ...; may be empty

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class InvalidRequest(StintError, ValueError):
    """The request is wrong; do not send it again."""

    code = "EINVAL"


class NotFound(StintError, LookupError):
    """There is no such job."""

    code = "ENOTFOUND"


class WrongState(StintError):
    """Not possible in the state the job is in."""

    code = "ESTATE"


class AlreadyExists(StintError):
    """The id is taken by another job."""

    code = "EEXISTS"


class StoreUnavailable(StintError):
    """The store is busy, away, or cannot be used as it is; nothing was changed."""

    code = "EAGAIN"


class OutcomeUnknown(StintError):
    """The store may or may not have made the change.

    ``ids`` are those of the jobs that were to be added: enqueue them again with the same ids,
    which adds each of them at most once.
    """

    code = "EUNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        code: Optional[str] = None,
        remedy: str = "",
        detail: str = "",
        ids: Sequence[str] = (),
    ) -> None:
        super().__init__(message, code=code, remedy=remedy, detail=detail)
        self.ids: List[str] = list(ids)


class WaitTimeout(StintError, TimeoutError):
    """The time given to :meth:`stint.Client.wait` has passed; the job goes on."""

    code = "ETIMEOUT"


class NotInstalled(StintError):
    """Neither libstint nor the program ``stint`` was found."""

    code = "ENOTINSTALLED"


_BY_CODE: Dict[str, Type[StintError]] = {
    "EINVAL": InvalidRequest,
    "ENOTFOUND": NotFound,
    "ESTATE": WrongState,
    "EEXISTS": AlreadyExists,
    "EAGAIN": StoreUnavailable,
    "ESTORE": StoreUnavailable,
    "EUNKNOWN": OutcomeUnknown,
    "ETIMEOUT": WaitTimeout,
}


def error_of(code: str, message: str, remedy: str = "", detail: str = "") -> StintError:
    """The exception for one of libstint's codes."""
    kind = _BY_CODE.get(code, StintError)
    return kind(message, code=code, remedy=remedy, detail=detail)
