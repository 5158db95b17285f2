# SPDX-License-Identifier: Apache-2.0
"""libstint by ctypes: include/stint.h, as far as a client needs it.

A handle belongs to one thread at a time: calls borrow one and give it back, and open another
when all are out. The library has threads of its own, which do not survive a fork; a process
that was forked after the library had opened a store goes on with the program instead.
"""

import ctypes
import ctypes.util
import os
import threading
import time
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Callable, List, Optional

from ._client import Backend, Enqueued, Spec
from ._errors import NotInstalled, OutcomeUnknown, StoreUnavailable, error_of

_WAIT_MS = 250  # one wait in the library; between two of them Python sees signals
_OK = 0
_opened_in: Optional[int] = None  # the process in which the library first opened a store


class _Error(ctypes.Structure):
    _fields_ = [
        ("code", c_int),
        ("detail", c_char * 16),
        ("message", c_char * 240),
        ("remedy", c_char * 200),
    ]


class _Job(ctypes.Structure):
    _fields_ = [
        ("type", c_char_p),
        ("payload", c_char_p),
        ("payload_len", c_size_t),
        ("queue", c_char_p),
        ("id", c_char_p),
        ("priority", c_int),
        ("delay_ms", c_int64),
        ("at_us", c_int64),
        ("max_attempts", c_int),
        ("timeout_ms", c_int64),
        ("key", c_char_p),
        ("unique", c_char_p),
        ("meta", c_char_p),
    ]


class _Enqueued(ctypes.Structure):
    _fields_ = [("id", c_char * 129), ("duplicate", c_int)]


_FUNCTIONS = {
    "stint_code_name": (c_char_p, [c_int]),
    "stint_version": (c_char_p, []),
    "stint_open": (c_int, [c_char_p, c_int, POINTER(c_void_p), POINTER(_Error)]),
    "stint_close": (None, [c_void_p]),
    "stint_enqueue": (
        c_int,
        [c_void_p, POINTER(_Job), c_size_t, POINTER(_Enqueued), POINTER(_Error)],
    ),
    "stint_get": (c_int, [c_void_p, c_char_p, POINTER(c_void_p), POINTER(_Error)]),
    "stint_wait": (c_int, [c_void_p, c_char_p, c_int, POINTER(c_char_p), POINTER(_Error)]),
    "stint_cancel": (c_int, [c_void_p, c_char_p, POINTER(_Error)]),
    "stint_free": (None, [c_void_p]),
}


def find(required: bool) -> Optional[ctypes.CDLL]:
    """The library, or None if it is not there and not required."""
    named = os.environ.get("STINT_LIB")
    if named == "" and not required:
        return None
    try:
        return _load(named) if named else _search()
    except (OSError, AttributeError) as error:
        if named or required:
            raise NotInstalled(
                f"libstint cannot be loaded: {error}",
                remedy="install it, or let STINT_LIB name the file",
            ) from None
    return None


def _search() -> ctypes.CDLL:
    beside = sorted(Path(__file__).parent.glob("libstint.so*"))
    for name in [*map(str, beside), "libstint.so.0"]:
        try:
            return _load(name)
        except OSError:
            pass
    name = ctypes.util.find_library("stint") or ""
    if not name:
        raise OSError("it was not found")
    return _load(name)


def _load(path: str) -> ctypes.CDLL:
    lib = ctypes.CDLL(path)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class Library(Backend):
    """Stores through libstint."""

    name = "library"

    def __init__(self, lib: ctypes.CDLL, url: Optional[str], timeout_ms: int) -> None:
        self._lib = lib
        self._url = url
        self._timeout_ms = timeout_ms
        self._lock = threading.Lock()
        self._free: List[c_void_p] = []
        self._closed = False
        self._instead: Optional[Backend] = None  # in a forked process

    # ---- handles ----

    def _borrow(self) -> c_void_p:
        global _opened_in
        with self._lock:
            if self._closed:
                raise ValueError("the client is closed")
            if self._free:
                return self._free.pop()
            _opened_in = _opened_in or os.getpid()
        handle, error = c_void_p(), _Error()
        url = self._url.encode() if self._url is not None else None
        self._check(self._lib.stint_open(url, self._timeout_ms, byref(handle), byref(error)), error)
        return handle

    def _give_back(self, handle: c_void_p) -> None:
        with self._lock:
            if not self._closed:
                self._free.append(handle)
                return
        self._lib.stint_close(handle)

    def _use(self, call: Callable[[c_void_p], Any]) -> Any:
        handle = self._borrow()
        try:
            return call(handle)
        finally:
            self._give_back(handle)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            handles, self._free = self._free, []
        if _opened_in == os.getpid():
            for handle in handles:
                self._lib.stint_close(handle)

    def __del__(self) -> None:
        if getattr(self, "_free", None):
            self.close()

    def _forked(self) -> Optional[Backend]:
        """In a process forked after a store was opened: the program. Else None."""
        if _opened_in is None or _opened_in == os.getpid():
            return None
        if self._instead is None:
            from . import _program

            try:
                self._instead = _program.Program(_program.find(), self._url, self._timeout_ms)
            except NotInstalled:
                raise StoreUnavailable(
                    "this process was forked after libstint had opened a store",
                    remedy="make the client's first call after the fork, or install `stint` too",
                ) from None
        return self._instead

    # ---- calls ----

    def _check(self, code: int, error: _Error) -> None:
        if code != _OK:
            raise error_of(
                self._lib.stint_code_name(code).decode(),
                error.message.decode(errors="replace"),
                error.remedy.decode(errors="replace"),
                error.detail.decode(errors="replace"),
            )

    def enqueue(self, specs: List[Spec]) -> List[Enqueued]:
        instead = self._forked()
        if instead:
            return instead.enqueue(specs)
        jobs = (_Job * len(specs))(*map(_job, specs))
        added, error = (_Enqueued * len(specs))(), _Error()

        def call(handle: c_void_p) -> None:
            code = self._lib.stint_enqueue(handle, jobs, len(specs), added, byref(error))
            self._check(code, error)

        try:
            self._use(call)
        except OutcomeUnknown as unknown:
            unknown.ids = [spec.id for spec in specs]
            raise
        return [Enqueued(a.id.decode(), bool(a.duplicate)) for a in added]

    def get(self, id: str) -> bytes:
        instead = self._forked()
        if instead:
            return instead.get(id)
        text, error = c_void_p(), _Error()

        def call(handle: c_void_p) -> None:
            code = self._lib.stint_get(handle, id.encode(), byref(text), byref(error))
            self._check(code, error)

        self._use(call)
        try:
            return ctypes.string_at(text)
        finally:
            self._lib.stint_free(text)

    def wait(self, id: str, timeout_ms: int) -> None:
        instead = self._forked()
        if instead:
            return instead.wait(id, timeout_ms)
        end = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000

        def call(handle: c_void_p) -> None:
            state, error = c_char_p(), _Error()
            while True:
                left = _WAIT_MS if end is None else round((end - time.monotonic()) * 1000)
                ms = max(0, min(left, _WAIT_MS))
                code = self._lib.stint_wait(handle, id.encode(), ms, byref(state), byref(error))
                if code == _OK:
                    return
                if left <= _WAIT_MS and end is not None:
                    self._check(code, error)
                if self._lib.stint_code_name(code) != b"ETIMEOUT":
                    self._check(code, error)

        self._use(call)

    def cancel(self, id: str) -> None:
        instead = self._forked()
        if instead:
            return instead.cancel(id)
        error = _Error()

        def call(handle: c_void_p) -> None:
            self._check(self._lib.stint_cancel(handle, id.encode(), byref(error)), error)

        self._use(call)


def _job(spec: Spec) -> _Job:
    return _Job(
        spec.type.encode(),
        spec.payload,
        len(spec.payload),
        _bytes(spec.queue),
        spec.id.encode(),
        spec.priority,
        spec.delay_ms,
        spec.at_us,
        spec.max_attempts,
        spec.timeout_ms,
        _bytes(spec.key),
        _bytes(spec.unique),
        spec.meta,
    )


def _bytes(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else text.encode()
