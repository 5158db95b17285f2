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
