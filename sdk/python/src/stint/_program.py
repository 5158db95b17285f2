# SPDX-License-Identifier: Apache-2.0
"""The program ``stint`` with --json, for where libstint is not."""

import json
import os
import shutil
import subprocess
from datetime import datetime, timedelta, timezone
from typing import Any, Dict, List, Optional, Sequence

from ._client import Backend, Enqueued, Spec
from ._errors import NotInstalled, OutcomeUnknown, StintError, error_of

# For an exit without a document on stdout.
_CODES = {2: "EINVAL", 3: "ENOTFOUND", 4: "ESTORE", 5: "ETIMEOUT", 6: "EUNKNOWN"}


def find() -> str:
    """The program's path."""
    named = os.environ.get("STINT_BIN")
    path = shutil.which(named or "stint")
    if path is None:
        raise NotInstalled(
            f"{named} is no program" if named else "neither libstint nor the program stint is here",
            remedy="install stint, or let STINT_LIB or STINT_BIN name the file",
        )
    return path


class Program(Backend):
    """Stores through a process per call."""

    name = "program"

    def __init__(self, path: str, url: Optional[str], timeout_ms: int) -> None:
        self._path = path
        self._globals = ["--json", "--store-timeout", f"{timeout_ms}ms"]
        if url is not None:
            self._globals += ["--store", url]
        self._closed = False

    def _run(
        self, command: Sequence[str], args: Sequence[str] = (), stdin: bytes = b"", fine: int = 0
    ) -> Any:
        """Runs a command and gives its document; exit codes up to `fine` are no errors."""
        if self._closed:
            raise ValueError("the client is closed")
        try:
            done = subprocess.run(
                [self._path, *command, *self._globals, "--", *args],
                input=stdin,
                capture_output=True,
            )
        except OSError as error:
            raise NotInstalled(f"{self._path} cannot be run: {error}") from None
        try:
            document = json.loads(done.stdout)
        except ValueError:
            document = {}
        if 0 <= done.returncode <= fine and document and "code" not in _error_in(document):
            return document
        raise _error(done, document)

    def enqueue(self, specs: List[Spec]) -> List[Enqueued]:
        lines = b"".join(map(_line, specs))
        try:
            jobs = self._run(["enqueue", "--batch", "-"], stdin=lines)["jobs"]
        except OutcomeUnknown as unknown:
            unknown.ids = [spec.id for spec in specs]
            raise
        return [Enqueued(job["id"], job["duplicate"]) for job in jobs]

    def get(self, id: str) -> bytes:
        return json.dumps(self._run(["job", "show"], [id])).encode()

    def wait(self, id: str, timeout_ms: int) -> None:
        command = ["job", "wait"]
        if timeout_ms >= 0:
            command += ["--timeout", f"{timeout_ms}ms"]
        self._run(command, [id], fine=1)

    def cancel(self, id: str) -> None:
        self._run(["job", "cancel"], [id])

    def close(self) -> None:
        self._closed = True


def _error_in(document: Any) -> Dict[str, Any]:
    error = document.get("error") if isinstance(document, dict) else None
    return error if isinstance(error, dict) else {}


def _error(done: "subprocess.CompletedProcess[bytes]", document: Any) -> StintError:
    error = _error_in(document)
    if "code" in error:
        return error_of(error["code"], error.get("message", ""), error.get("remedy", ""))
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode < 0:  # killed: before or after it changed something
        return error_of("EUNKNOWN", said or f"stint was ended by signal {-done.returncode}")
    code = _CODES.get(done.returncode, "ERROR")
    return error_of(code, said or f"stint ended with exit code {done.returncode}")


def _line(spec: Spec) -> bytes:
    """A line of a batch; payload and meta go into it as they are."""
    parts: Dict[str, Any] = {
        "type": spec.type,
        "queue": spec.queue,
        "id": spec.id,
        "priority": spec.priority,
        "delay": f"{spec.delay_ms}ms" if spec.delay_ms else None,
        "at": _rfc3339(spec.at_us) if spec.at_us else None,
        "max_attempts": None if spec.max_attempts < 0 else spec.max_attempts,
        "timeout": None if spec.timeout_ms < 0 else f"{spec.timeout_ms}ms",
        "key": spec.key,
        "unique": spec.unique,
    }
    head = json.dumps({k: v for k, v in parts.items() if v is not None}).encode()
    meta = b',"meta":' + _one_line(spec.meta) if spec.meta else b""
    return head[:-1] + meta + b',"payload":' + _one_line(spec.payload) + b"}\n"


def _one_line(document: bytes) -> bytes:
    """JSON has line ends only between its parts, where a blank does as well."""
    return document.replace(b"\n", b" ").replace(b"\r", b" ")


def _rfc3339(us: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=us)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
