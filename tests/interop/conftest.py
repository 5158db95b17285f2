# SPDX-License-Identifier: Apache-2.0
"""The tests with programs of others run side by side: each has servers and stores of its own, and what is fetched is fetched once."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from kit import long_first  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "long: waits for long and is started first")


def pytest_collection_modifyitems(items):
    items[:] = long_first(items)
