# SPDX-License-Identifier: Apache-2.0
"""Run a handler without a worker, in a test or from the shell.

In a test::

    from stint.testing import run_task
    from tasks import greet

    def test_it_greets():
        assert run_task(greet, {"name": "Ada"}).result == {"hello": "Ada"}

From the shell::

    python -m stint.testing tasks:greet '{"name": "Ada"}'

It goes the way a task goes in a worker: the payload and the result pass through JSON,
``stint.current()``, ``progress()`` and ``check()`` work, and what the handler raises becomes an
outcome. Handlers may of course also be called directly, as the functions they are.
"""

import json
import sys
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Union, cast

from ._child import Child
from ._codec import Codec, Default, ParseFloat
from ._errors import Cancelled
from ._job import Job
from ._registry import Handler, Registry, registry

__all__ = ["Outcome", "reset", "run_task"]


class _LoadIt:
    """The default of ctx: what the load function returns."""

    def __repr__(self) -> str:
        return "<from @load>"


_LOAD_IT = _LoadIt()


@dataclass
class Outcome:
    """What came of a task, as the worker would be told."""

    result: Any = None  #: what the handler returned, after its way through JSON
    error: Optional[str] = None  #: None = it succeeded
    retry: bool = False  #: it failed and is to be tried again
    retry_after: Optional[float] = None  #: in so many seconds, if the handler said so
    progress: List[Any] = field(default_factory=list)  #: every value it reported
    exception: Optional[BaseException] = None  #: what the handler raised

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def cancelled(self) -> bool:
        return isinstance(self.exception, Cancelled)


class _TestChild(Child):
    """A child without pipes, for one task."""

    def __init__(self, reg: Registry, codec: Codec, cancel: Union[bool, int]) -> None:
        super().__init__(reg, codec, cast(Any, _NoWire), cast(Any, None))
        self.seen: List[Any] = []
        self.exception: Optional[BaseException] = None
        self._cancel_at = 1 if cancel is True else int(cancel)
        self._asked = 0

    def perform(self, request: Dict[str, Any], ctx: Any) -> bytes:
        if ctx is _LOAD_IT:
            self.load()
        else:
            self._ctx = ctx
        line = self._codec.line(request)
        return copy_context().run(self._handle, 0, line)  # the current task ends with it

    def listen(self) -> None:
        self._asked += 1
        if self._asked == self._cancel_at:
            for job in self._live.values():
                job._cancelled = True

    def progress(self, job: Job, value: Any) -> None:
        self.seen.append(json.loads(self._codec.progress(job.id, job.fence, value))["progress"])

    def _failed(self, task_id: Any, fence: Any, error: BaseException) -> bytes:
        self.exception = error
        return super()._failed(task_id, fence, error)


class _NoWire:
    inbox = outbox = None


def run_task(
    task: Union[Handler, str],
    payload: Any = None,
    *,
    ctx: Any = _LOAD_IT,
    attempt: int = 1,
    id: str = "test",
    queue: str = "default",
    max_retry: int = 2,
    cancel: Union[bool, int] = False,
    default: Default = None,
    parse_float: ParseFloat = None,
    **request: Any,
) -> Outcome:
    """Runs a handler once and tells what came of it. It raises nothing the handler raises.

    ``task`` is the function or the name of a type. ``ctx`` is handed to a handler that takes a
    context; without it the ``@load`` function is called, if there is one.

    ``attempt``, ``id``, ``queue``, ``max_retry`` and further words (``deadline``, ``fence``,
    ``traceparent``) are what ``stint.current()`` shows. ``cancel=True`` cancels the task when it
    first asks, by ``stint.check()`` or ``.cancelled``; ``cancel=3`` when it asks the third time.

    ``default`` and ``parse_float`` are those of :func:`stint.run`.
    """
    reg, type_ = _registry_for(task, ctx)
    problem = reg.problem()
    if problem:
        raise RuntimeError(problem)
    child = _TestChild(reg, Codec(default, parse_float), cancel)
    line = child.perform(
        {
            "task_id": id,
            "type": type_,
            "payload": payload,
            "retry_count": attempt - 1,
            "max_retry": max_retry,
            "queue": queue,
            "attempt": attempt,
            **request,
        },
        ctx,
    )
    answer = json.loads(line)
    return Outcome(
        result=answer["result"],
        error=answer["error"],
        retry=answer["retry"],
        retry_after=answer.get("retry_after"),
        progress=child.seen,
        exception=child.exception,
    )


def _registry_for(task: Union[Handler, str], ctx: Any) -> "tuple[Registry, str]":
    """The handlers to choose from, and the type to ask for."""
    if isinstance(task, str):
        registry.find(task)
        return registry, task
    reg = Registry()
    reg.add_task(None, task)
    reg.loader = registry.loader if ctx is _LOAD_IT else (lambda: ctx)
    names = [name for name, fn in registry.named.items() if fn is task]
    return reg, names[0] if names else str(getattr(task, "__name__", "test"))


def reset() -> None:
    """Forgets every ``@task`` and ``@load``, for tests that register their own."""
    registry.clear()


# ---- from the shell ----

_USAGE = """usage: python -m stint.testing MODULE:FUNCTION [JSON|-] [--attempt N]

Runs a handler once, with the JSON as its payload (- reads it from stdin, nothing is null), and
prints what came of it. FUNCTION may also be the name of a type. What the handler prints goes to
stderr.

Exit codes: 0 succeeded, 65 failed for good, 75 to be tried again, 2 wrong usage.
"""


def _find(where: str) -> Union[Handler, str]:
    import importlib

    module_name, colon, name = where.partition(":")
    if not colon or not module_name or not name:
        raise ValueError(f"{where!r} is not of the form MODULE:FUNCTION")
    registry.inert = True  # a run() at the module's end must not wait for requests
    module = importlib.import_module(
        module_name[:-3] if module_name.endswith(".py") else module_name
    )
    found: Optional[Callable[..., Any]] = getattr(module, name, None)
    if callable(found):
        return found
    if name in registry.named:
        return name
    raise ValueError(f"{module_name} has no function and no task {name!r}")


def _main(argv: List[str]) -> int:
    import contextlib

    attempt = 1
    try:
        if "--attempt" in argv:
            at = argv.index("--attempt")
            attempt = int(argv[at + 1])
            del argv[at : at + 2]
        if not 1 <= len(argv) <= 2 or argv[0].startswith("-"):
            raise ValueError("")
        text = argv[1] if len(argv) == 2 else "null"
        payload = json.loads(sys.stdin.read() if text == "-" else text)
        with contextlib.redirect_stdout(sys.stderr):
            task = _find(argv[0])
            outcome = run_task(task, payload, attempt=attempt)
    except (ValueError, IndexError, ImportError) as error:
        sys.stderr.write(f"stint.testing: {error}\n\n{_USAGE}" if str(error) else _USAGE)
        return 2
    said = {
        "result": outcome.result,
        "error": outcome.error,
        "retry": outcome.retry,
        "retry_after": outcome.retry_after,
        "progress": outcome.progress,
    }
    try:
        print(json.dumps(said, ensure_ascii=False, indent=2))
    except UnicodeEncodeError:  # a lone surrogate, or a terminal without UTF-8
        print(json.dumps(said, indent=2))
    return 0 if outcome.ok else 75 if outcome.retry else 65


if __name__ == "__main__":
    sys.path.insert(0, "")
    sys.exit(_main(sys.argv[1:]))
