# SPDX-License-Identifier: Apache-2.0
"""Installing: the program, the library as C and C++ programs use it, the Makefile's manners."""

import contextlib
import fcntl
import os
import shutil
import subprocess

import pytest

from kit import ROOT

SOURCE = ROOT / "examples" / "c" / "enqueue.c"


@contextlib.contextmanager
def one_at_a_time():
    """There is one build directory."""
    with open(ROOT / "build" / "install.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(*args, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", "-C", str(ROOT), *args], env={**clean, **(env or {})}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """What `make install` puts under DESTDIR."""
    root = tmp_path_factory.mktemp("destdir")
    with one_at_a_time():
        done = make("install", f"DESTDIR={root}")
    assert done.returncode == 0, done.stdout
    return root / "usr" / "local"


def flags(installed, *what):
    (pc,) = installed.glob("**/pkgconfig/stint.pc")
    env = {**os.environ, "PKG_CONFIG_PATH": str(pc.parent), "PKG_CONFIG_SYSROOT_DIR": str(installed.parents[1]),
           "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS": "1", "PKG_CONFIG_ALLOW_SYSTEM_LIBS": "1"}
    return subprocess.run(["pkg-config", *what, "stint"], env=env, check=True, stdout=subprocess.PIPE,
                          text=True).stdout.split()


def test_the_installed_program_runs(installed, tmp_path):
    program = installed / "bin" / "stint"
    out = subprocess.run([program, "version"], cwd=tmp_path, stdout=subprocess.PIPE, check=True).stdout
    assert b"0." in out


@pytest.mark.parametrize("compiler, language", [("cc", "c"), ("c++", "c++")])
def test_a_program_builds_against_the_installed_library_and_adds_a_job(installed, stint, compiler, language):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    program = stint.dir / "enqueue"
    subprocess.run([compiler, "-x", language, "-Wall", "-Wextra", "-Werror", SOURCE, "-o", program,
                    *flags(installed, "--cflags", "--libs")], check=True)
    (library,) = installed.glob("**/libstint.so.0")
    stint.config({"t": stint.sh("cat")})
    with stint.worker():
        out = subprocess.run([program, "sqlite:stint.db", "t", '{"n":1}', "60000"], cwd=stint.dir, check=True,
                             env={**stint.env, "LD_LIBRARY_PATH": str(library.parent)}, stdout=subprocess.PIPE,
                             text=True).stdout.split()
    assert out[1] == "succeeded" and stint.show(out[0])["result"] == {"n": 1}


def test_the_shared_library_shows_only_its_public_names(installed):
    (library,) = installed.glob("**/libstint.so.0")
    out = subprocess.run(["nm", "-D", "--defined-only", library], check=True, stdout=subprocess.PIPE, text=True).stdout
    names = {line.split()[-1].partition("@")[0] for line in out.splitlines()}
    assert names and all(name.startswith("stint_") for name in names), names


def test_make_run_once_runs_the_examples_on_the_embedded_store(tmp_path):
    with one_at_a_time():
        done = make("run", "ARGS=--once", env={"STINT_STORE": f"sqlite:{tmp_path}/run.db", "DATABASE_URL": "postgres://x",
                                               "REDIS_URL": "redis://x"})
    assert done.returncode == 0, done.stdout
    assert "ended as planned" in done.stdout


def test_make_help_lists_the_targets():
    out = make("help").stdout
    for target in ("run", "test", "bench", "install", "format", "deps", "clean"):
        assert f"make {target}" in out


def test_deps_says_what_to_install_where_there_is_no_apt(tmp_path):
    for tool in ("bash", "printf", "id", "env", "dirname"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    done = subprocess.run(["bash", str(ROOT / "scripts" / "deps"), "build", "test"], env={"PATH": str(tmp_path)},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 1
    for package in ("libuv1-dev", "libsqlite3-dev", "meson", "libcmocka-dev", "python3-pytest"):
        assert package in done.stdout
