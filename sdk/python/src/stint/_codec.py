# SPDX-License-Identifier: Apache-2.0
"""The protocol's lines: requests decoded, answers and progress encoded.

A line is one JSON object in UTF-8. Numbers are Python's: integers of any size, floats for the
rest. What JSON has no word for (NaN, infinity) is refused. Lone surrogates, which UTF-8 cannot
carry, come and go as escapes.
"""

import json.encoder
from json import JSONDecoder, JSONEncoder
from json.encoder import encode_basestring as quote
from typing import Any, Callable, Dict, Optional

from ._errors import Cancelled, Retry

LINE_MAX = 16 << 20  # bytes
ERROR_MAX = 64 << 10  # characters of an error's text; the middle is left out

Default = Optional[Callable[[Any], Any]]
ParseFloat = Optional[Callable[[str], Any]]


class Codec:
    """``default`` and ``parse_float`` are those of the json module."""

    def __init__(self, default: Default = None, parse_float: ParseFloat = None) -> None:
        decoder = JSONDecoder(parse_float=parse_float)
        plain = JSONEncoder(
            ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default
        )
        ascii_only = JSONEncoder(allow_nan=False, separators=(",", ":"), default=default)
        self._raw_decode = decoder.raw_decode
        self._decode = decoder.decode
        self._encode = _quick_encode(plain)
        self._encode_ascii = ascii_only.encode

    def decode(self, line: bytes) -> Any:
        text = line.decode()
        try:
            value, end = self._raw_decode(text)
            if end == len(text):
                return value
        except ValueError:
            pass
        return self._decode(text)  # blanks around it, or an error worth reading

    def line(self, value: Dict[str, Any]) -> bytes:
        """Any object as a line."""
        try:
            return (self._encode(value) + "\n").encode()
        except UnicodeEncodeError:
            return (self._encode_ascii(value) + "\n").encode()

    def result(self, task_id: Any, fence: Any, result: Any) -> bytes:
        """The answer to a task that succeeded, or the failure to write its result."""
        try:
            if type(task_id) is str:
                end = f',"fence":{fence}}}\n' if type(fence) is int else "}\n"
                text = self._encode(result)
                line = (
                    f'{{"task_id":{quote(task_id)},"result":{text},"error":null,"retry":false{end}'
                ).encode()
            else:
                line = self._result(task_id, fence, result)
        except UnicodeEncodeError:
            line = self._result(task_id, fence, result)
        except BaseException as error:  # the user's `default` may raise anything
            why = f"the result cannot be written as JSON: {text_of(error)}"
            return self.error(task_id, fence, why)
        if len(line) > LINE_MAX:
            why = f"the result makes a line of {len(line)} bytes, the limit is {LINE_MAX}"
            return self.error(task_id, fence, why)
        return line

    def _result(self, task_id: Any, fence: Any, result: Any) -> bytes:
        return self._about(task_id, fence, {"result": result, "error": None, "retry": False})

    def failure(self, task_id: Any, fence: Any, error: BaseException) -> bytes:
        """The answer to a task that raised."""
        if isinstance(error, Retry):
            return self.error(task_id, fence, text_of(error), retry=True, after=error.after)
        if isinstance(error, Cancelled):
            return self.error(task_id, fence, text_of(error))
        return self.error(task_id, fence, trace_of(error))

    def error(
        self,
        task_id: Any,
        fence: Any,
        text: str,
        retry: bool = False,
        after: Optional[float] = None,
    ) -> bytes:
        answer: Dict[str, Any] = {"result": None, "error": text, "retry": retry}
        if isinstance(after, (int, float)) and 0 <= after < 1e10:
            answer["retry_after"] = after
        return self._about(task_id, fence, answer)

    def _about(self, task_id: Any, fence: Any, said: Dict[str, Any]) -> bytes:
        """A line about a task; the fence, if it has one, tells its attempts apart."""
        if type(fence) is int:
            said["fence"] = fence
        return self.line({"task_id": task_id, **said})

    def progress(self, task_id: Any, fence: Any, value: Any) -> bytes:
        """A progress line. Raises what json raises for a value it cannot write."""
        line = self._about(task_id, fence, {"progress": value})
        if len(line) > LINE_MAX:
            raise ValueError(f"the progress makes a line of {len(line)} bytes")
        return line


def _quick_encode(encoder: JSONEncoder) -> Callable[[Any], str]:
    """encoder.encode, without making json's C encoder anew for each call where it can be helped."""
    slow = encoder.encode
    try:
        chunks = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
            None, encoder.default, quote, None, ":", ",", False, False, False
        )
        if "".join(chunks({"k": [1.5, "\xe4"]}, 0)) != '{"k":[1.5,"\xe4"]}':
            return slow
    except Exception:  # not this Python's way
        return slow

    def encode(value: Any) -> str:
        try:
            return "".join(chunks(value, 0))
        except Exception:
            return slow(value)  # it says what is wrong in better words

    return encode


def text_of(error: BaseException) -> str:
    """Its message; never empty, because an empty error means success."""
    try:
        return _cut(str(error)) or type(error).__name__
    except Exception:
        return type(error).__name__


def trace_of(error: BaseException) -> str:
    """Its traceback from the handler on."""
    import traceback

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    try:
        return _cut("".join(traceback.format_exception(type(error), error, trace)))
    except Exception:
        return type(error).__name__


def _cut(text: str) -> str:
    if len(text) <= ERROR_MAX:
        return text
    half = ERROR_MAX // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
