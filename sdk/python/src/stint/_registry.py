# SPDX-License-Identifier: Apache-2.0
"""Which functions this process offers: ``@task`` and ``@load``.

A second handler under the same name is a mistake that only matters when the process is to run
tasks: it is remembered here and reported by :func:`Registry.problem`, so that tests may import
several task modules side by side.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar, Union, overload

Handler = Callable[..., Any]
F = TypeVar("F", bound=Handler)


class NoHandler(Exception):
    """No function is registered for a type."""


class Registry:
    """Handlers by type; the one without a name serves every other type."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.named: Dict[str, Handler] = {}
        self.default: Optional[Handler] = None
        self.loader: Optional[Callable[[], Any]] = None
        self.clashes: List[str] = []
        self.inert = False  #: run() and run_once() return at once: the module is only looked at

    def add_task(self, name: Optional[str], fn: Handler) -> None:
        _refuse_async(fn, "@task")
        if name is None:
            self._clash("@task", self.default, fn)
            self.default = fn
        else:
            self._clash(f"@task({name!r})", self.named.get(name), fn)
            self.named[name] = fn

    def add_loader(self, fn: Callable[[], Any]) -> None:
        _refuse_async(fn, "@load")
        self._clash("@load", self.loader, fn)
        self.loader = fn

    def _clash(self, what: str, old: Optional[Handler], new: Handler) -> None:
        if old is not None and _full_name(old) != _full_name(new):
            self.clashes.append(f"{what} is on both {_full_name(old)} and {_full_name(new)}")

    def problem(self) -> Optional[str]:
        """Why this process cannot run tasks, or None."""
        if self.clashes:
            return self.clashes[0]
        if self.default is None and not self.named:
            return "there is no handler: put @stint.task on a function"
        if self.loader is None:
            for fn in self.handlers():
                if arity(fn)[0] >= 2:
                    return f"{_full_name(fn)} wants a context, but there is no @load function"
        return None

    def handlers(self) -> List[Handler]:
        return ([self.default] if self.default else []) + list(self.named.values())

    def find(self, type_: Optional[str]) -> Handler:
        fn = self.named.get(type_) if type_ is not None else None
        if fn is None:
            fn = self.default
        if fn is None and type_ is None and len(self.named) == 1:
            (fn,) = self.named.values()
        if fn is None:
            known = ", ".join(sorted(self.named))
            raise NoHandler(f"there is no handler for type {type_!r} here, only for {known}")
        return fn


def _full_name(fn: Handler) -> str:
    module = getattr(fn, "__module__", None) or "?"
    return f"{module}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"


def _refuse_async(fn: Handler, what: str) -> None:
    code = getattr(fn, "__code__", None)
    if code is not None and code.co_flags & 0x280:  # CO_COROUTINE | CO_ASYNC_GENERATOR
        raise TypeError(f"{what} takes no async function: call asyncio.run() inside a plain one")


def arity(fn: Handler) -> Tuple[int, int]:
    """How many positional arguments it needs, and how many it can take."""
    code = getattr(fn, "__code__", None)
    if code is not None and not hasattr(fn, "__wrapped__"):  # inspect is slow to import
        n = code.co_argcount
        return n - len(fn.__defaults__ or ()), n + (100 if code.co_flags & 0x04 else 0)
    import inspect

    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return 1, 2
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in by_position)
    more = 100 if any(p.kind is p.VAR_POSITIONAL for p in parameters) else 0
    return needed, len(by_position) + more


def wants_context(fn: Handler, has_loader: bool, ctx: Any) -> bool:
    """Is it called as fn(payload, ctx)?

    An optional second argument gets the context only if there is one: without, a function such
    as ``def f(payload, verbose=False)`` keeps its own default.
    """
    needed, most = arity(fn)
    return needed >= 2 or (has_loader and ctx is not None and most >= 2)


registry = Registry()


@overload
def task(fn: F) -> F: ...
@overload
def task(fn: Optional[str] = None) -> Callable[[F], F]: ...
def task(fn: Union[F, str, None] = None) -> Union[F, Callable[[F], F]]:
    """Marks the function that handles tasks.

    ``@task`` alone serves every type that has no function of its own; ``@task("name")`` serves
    the jobs of that type, and there may be several. The function gets the payload, decoded from
    JSON, and where it takes a second argument, what the ``@load`` function returned. What it
    returns is the job's result and must be something ``json`` can write. To fail for good,
    raise any exception; to be tried again, raise :class:`stint.Retry`.
    """
    if callable(fn):
        registry.add_task(None, fn)
        return fn
    name = fn
    if name is not None and not isinstance(name, str):
        raise TypeError(f"@task takes the name of a type, not {name!r}")

    def mark(function: F) -> F:
        registry.add_task(name, function)
        return function

    return mark


def load(fn: F) -> F:
    """Marks the function that is called once at start, before any task.

    Its return value is the context that handlers get as their second argument. If it raises,
    the worker is told why and the process ends with 1.
    """
    registry.add_loader(fn)
    return fn
