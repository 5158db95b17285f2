# SPDX-License-Identifier: Apache-2.0
"""Installing: the program, the library as C and C++ programs use it, the Makefile's manners."""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess

import pytest

from kit import ROOT

EXAMPLES = ROOT / "examples" / "c"
COMPILERS = [("cc", "c", "c11"), ("c++", "c++", "c++11")]


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


def build(installed, source, program, compiler, language, standard, *more):
    """Compiles as a stranger would: pedantically, with what pkg-config says."""
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    subprocess.run([compiler, "-x", language, f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror", *more, source,
                    "-o", program, *flags(installed, "--cflags", "--libs")], check=True)
    (library,) = installed.glob("**/libstint.so.0")
    return {"LD_LIBRARY_PATH": str(library.parent)}


@pytest.mark.parametrize("compiler, language, standard", COMPILERS)
def test_a_program_builds_against_the_installed_library_and_adds_a_job(installed, stint, compiler, language, standard):
    program = stint.dir / "enqueue"
    env = build(installed, EXAMPLES / "enqueue.c", program, compiler, language, standard)
    stint.config({"t": stint.sh("cat")})
    with stint.worker():
        out = subprocess.run([program, "sqlite:stint.db", "t", '{"n":1}', "60000"], cwd=stint.dir, check=True,
                             env={**stint.env, **env}, stdout=subprocess.PIPE, text=True).stdout.split()
    assert out[1] == "succeeded" and stint.show(out[0])["result"] == {"n": 1}


@pytest.mark.parametrize("compiler, language, standard", COMPILERS)
def test_a_program_of_a_page_adds_a_job_and_works(installed, stint, compiler, language, standard):
    source = EXAMPLES / "greet.c"
    assert len(source.read_text().splitlines()) < 60
    program = stint.dir / "greet"
    env = build(installed, source, program, compiler, language, standard)
    out = subprocess.run([program, "sqlite:stint.db", "Ada"], cwd=stint.dir, check=True, timeout=60,
                         env={**stint.env, **env}, stdout=subprocess.PIPE, text=True).stdout
    assert [line.split() for line in out.splitlines()] == [
        ["worker_started"], ["attempt_started"], ["attempt_failed", "pending"], ["attempt_started"],
        ["attempt_completed", "succeeded"], ["worker_stopping"], ["worker_stopped"]]
    (job,) = stint.json("job", "list")["jobs"]
    assert stint.show(job["id"])["result"] == "Hello, Ada!" and stint.show(job["id"])["attempt"] == 2


@pytest.mark.parametrize("compiler, language, standard", COMPILERS)
def test_each_header_stands_alone(installed, tmp_path, compiler, language, standard):
    for header, use in {"stint.h": "stint_version()", "stint_sqlite.h": "stint_sqlite_tx(0)",
                        "stint_pq.h": "stint_pq_tx(0)"}.items():
        source = tmp_path / "alone.c"
        source.write_text(f"#include <{header}>\nint main(void) {{ return !{use}; }}\n")
        build(installed, source, tmp_path / "alone", compiler, language, standard)


@pytest.mark.parametrize("compiler, language, standard", COMPILERS)
def test_the_programs_of_the_documentation_compile(installed, tmp_path, compiler, language, standard):
    blocks = re.findall(r"```c\n(.*?)```", (ROOT / "docs" / "library.md").read_text(), re.S)
    assert len(blocks) > 4
    names = re.findall(r"^static stint_code (\w+)\(", "".join(blocks), re.M)
    source = tmp_path / "blocks.c"
    source.write_text("#include <poll.h>\n#include <stdio.h>\n#include <time.h>\n#include <sqlite3.h>\n"
                      "#include <stint_sqlite.h>\n" + "\n".join(blocks) +
                      "int main(void) { return " + " + ".join(f"!{name}" for name in names) + "; }\n")
    build(installed, source, tmp_path / "blocks", compiler, language, standard, "-c", "-Wno-address")


def test_the_shared_library_shows_what_its_headers_promise_and_nothing_else(installed):
    (library,) = installed.glob("**/libstint.so.0")
    out = subprocess.run(["nm", "-D", "--defined-only", library], check=True, stdout=subprocess.PIPE, text=True).stdout
    shown = {line.split()[-1].partition("@")[0] for line in out.splitlines()}
    text = "".join((installed / "include" / name).read_text() for name in ("stint.h", "stint_pq.h", "stint_sqlite.h"))
    promised = set(re.findall(r"STINT_API [^;(]*?(stint_\w+)\(", text))
    assert "stint_worker_run" in promised and "stint_sqlite_enqueue" in promised
    assert shown == promised


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
