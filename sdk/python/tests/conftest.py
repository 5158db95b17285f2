# SPDX-License-Identifier: Apache-2.0
"""Fixtures: `worker(script)` starts a child; `stint_bin` and `stint_lib` are the built ones."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kit import FakeWorker  # noqa: E402


@pytest.fixture
def worker(tmp_path):
    started = []

    def start(script, **options):
        directory = tmp_path / str(len(started))
        directory.mkdir()
        started.append(FakeWorker(directory, script, **options))
        return started[-1]

    yield start
    for fake in started:
        fake.kill()


@pytest.fixture(autouse=True)
def registry():
    """Every test registers its own handlers."""
    from stint import testing

    testing.reset()
    yield
    testing.reset()


def built(variable, name):
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{variable} does not name {name}; run_tests.sh sets it")
    return path


@pytest.fixture
def stint_bin():
    return built("STINT_BIN", "the program stint")


@pytest.fixture
def stint_lib():
    return built("STINT_LIB", "libstint")
