# SPDX-License-Identifier: Apache-2.0
"""The references name every key that stint.yaml may have."""

import re

import pytest

from kit import ROOT

KEY = re.compile(r'^    \{"([a-z_]+)", *(?:st_conf|read)_', re.M)
KEYS = sorted({key for path in (ROOT / "src/cli").glob("config*.c") for key in KEY.findall(path.read_text())})


def test_the_keys_are_found():
    assert {"store", "slots", "line", "run", "caps", "rss", "max_attempts"} <= set(KEYS)


@pytest.mark.parametrize("page", ["docs/configuration.md", "docs/stint.yaml.5"])
def test_every_key_is_in_the_reference(page):
    text = (ROOT / page).read_text()
    row = r"\| `{0}`|[{{,|][^|]*\b{0}\b[^|]*\|" if page.endswith(".md") else r"Cm {0}\\&:|Cm {0}\b|\.Ss {0}\b"
    assert [key for key in KEYS if not re.search(row.format(key), text)] == []


@pytest.mark.parametrize("mode", ["oneshot", "oneshot-lines", "resident"])
def test_every_mode_is_in_the_manual(mode):
    line = re.search(r"^\.It Cm mode\\&: Cm (.*)$", (ROOT / "docs/stint.yaml.5").read_text(), re.M)
    assert mode in line[1].split(" | ")


def logged():
    """(level, event) of every call in the source whose level and event stand there as they are."""
    call = re.compile(r'st_log\(\s*ST_LOG_(INFO|WARN|ERROR),\s*"([a-z_]+\.[a-z_]+)"')
    return {(m[1].lower(), m[2]) for path in (ROOT / "src").rglob("*.c") for m in call.finditer(path.read_text())}


def test_every_event_above_debug_is_in_the_table_with_its_level():
    text = (ROOT / "docs/commands.md").read_text()
    table = {}
    for events, levels in re.findall(r"^\| ((?:`[a-z_]+\.[a-z_]+`(?:, )?)+) \| ([a-z, ]+) \|", text, re.M):
        names, levels = re.findall(r"`([^`]+)`", events), levels.split(", ")
        for n, name in enumerate(names):
            table[name] = levels[n] if len(levels) == len(names) else levels[0]
    assert {("info", "store.back"), ("warn", "log.failed"), ("error", "minder.lost")} <= logged()
    assert sorted((level, event) for level, event in logged() if table.get(event) != level) == []
