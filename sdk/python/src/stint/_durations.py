# SPDX-License-Identifier: Apache-2.0
"""Durations as Python has them (timedelta, seconds) and as stint writes them ("1h30m")."""

import re
from datetime import timedelta
from typing import Union

from ._errors import InvalidRequest

Duration = Union[int, float, str, timedelta]
"""A timedelta, a number of seconds, or a text with units such as ``"90s"`` or ``"1h30m"``."""

_TEXT = re.compile(r"(?=\d)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+)s)?(?:(\d+)ms)?", re.ASCII)
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1000, 1)
_MAX_MS = 36_500 * 86_400_000


def milliseconds(value: Duration, what: str) -> int:
    """``value`` in whole milliseconds; ``what`` names it in the error."""
    if isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if not match:
            raise InvalidRequest(
                f"{what}: {value!r} is no duration",
                remedy="write numbers with units d, h, m, s, ms, such as 90s, 1h30m or 250ms",
            )
        ms = sum(int(n) * unit for n, unit in zip(match.groups(), _UNITS_MS) if n)
    elif isinstance(value, timedelta):
        ms = round(value / timedelta(milliseconds=1))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if not abs(value) <= _MAX_MS:  # NaN and infinity too
            raise InvalidRequest(f"{what}: {value!r} is out of range")
        ms = round(value * 1000)
    else:
        raise InvalidRequest(
            f"{what}: {value!r} is no duration",
            remedy='give a timedelta, seconds, or a text such as "5m"',
        )
    if ms < 0:
        raise InvalidRequest(f"{what}: {value!r} is negative")
    if ms > _MAX_MS:
        raise InvalidRequest(f"{what}: {value!r} is longer than 36500d")
    return ms


def seconds(value: Duration, what: str) -> float:
    """``value`` in seconds, an int where it is whole."""
    ms = milliseconds(value, what)
    return ms / 1000 if ms % 1000 else ms // 1000
