# SPDX-License-Identifier: Apache-2.0
"""Fixtures: `stint` is the built program in a directory of its own; see kit.py."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kit import ROOT, Stint  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "long: waits for long and is started first")


def pytest_collection_modifyitems(items):
    """Side by side, the longest should not be the last one standing."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session")
def binary():
    path = Path(os.environ.get("STINT_BIN", ROOT / "build" / "stint")).absolute()
    assert path.exists(), f"{path} is not there: run `make`, or set STINT_BIN"
    return path


@pytest.fixture(scope="session")
def probe(tmp_path_factory):
    """The command most tests run as a job, compiled once."""
    path = tmp_path_factory.mktemp("probe") / "probe"
    source = Path(__file__).with_name("probe.c")
    subprocess.run([os.environ.get("CC", "cc"), "-O1", "-D_GNU_SOURCE", "-o", path, source], check=True)
    return path


@pytest.fixture
def stint(tmp_path, binary, probe):
    kit = Stint(tmp_path, binary, probe)
    yield kit
    kit.close()


def as_root(*command):
    """Runs a command as root, directly or by sudo.  False: it cannot be done here."""
    if os.geteuid() != 0:
        command = ("sudo", "-n", *command)
    try:
        return subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0
    except OSError as why:  # no sudo, or it may not be run: the tests that need it are skipped, and the summary says why
        warnings.warn(f"cannot run {' '.join(map(str, command))}: {why}", stacklevel=2)
        return False


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a small tmpfs and gives its path; remount(options) changes it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = f"size=4m,uid={os.geteuid()},gid={os.getegid()},mode=700"
    if not as_root("mount", "-t", "tmpfs", "-o", options, "stint-test", disk):
        pytest.skip("a small disk needs mount: run as root or with sudo")
    yield disk
    as_root("mount", "-o", "remount,rw", disk)
    assert as_root("umount", "-l", disk)


@pytest.fixture
def remount(small_disk):
    def change(options):
        assert as_root("mount", "-o", f"remount,{options}", small_disk)

    return change


@pytest.fixture
def read_only_dir(request, tmp_path):
    """A directory nobody may write to; root needs a read-only mount for that."""
    if os.geteuid() == 0:
        disk = request.getfixturevalue("small_disk")
        request.getfixturevalue("remount")("ro")
        return disk
    path = tmp_path / "read-only"
    path.mkdir(mode=0o555)
    return path
