# SPDX-License-Identifier: Apache-2.0
"""Client against the real store, by both back ends."""

import gc
import json
import os
import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone

import pytest

import stint
from stint import Client

CONFIG = """
types:
  echo: {run: [cat]}
  fail: {run: [sh, -c, "echo broken >&2; exit 65"]}
  large: {run: [sh, -c, "printf '\\"'; head -c 100000 /dev/zero | tr '\\\\0' x; printf '\\"'"]}
"""


@pytest.fixture(params=["library", "program"])
def backend(request):
    return request.param


@pytest.fixture
def store(tmp_path, monkeypatch):
    for name in ("STINT_STORE", "STINT_CONFIG", "DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return f"sqlite:{tmp_path}/jobs.db"


@pytest.fixture
def client(store, backend, stint_bin, stint_lib):
    with Client(store, backend=backend) as c:
        assert c.backend == backend
        yield c


@pytest.fixture
def work(tmp_path, store, stint_bin):
    """Runs everything that is due."""

    def run():
        config = tmp_path / "work.yaml"
        config.write_text(CONFIG)
        subprocess.run(
            [stint_bin, "worker", "--once", "--store", store, "--config", config],
            check=True,
            capture_output=True,
            timeout=60,
        )

    return run


# ---- enqueue -----------------------------------------------------------------------------


def test_a_job_is_enqueued_run_and_waited_for(client, work):
    job = client.enqueue("echo", {"name": "Ada", "n": [1, 2.5, None]})
    assert job.duplicate is False
    assert client.get(job.id)["state"] == "pending"
    work()
    done = client.wait(job.id)
    assert done["state"] == "succeeded"
    assert done["result"] == {"name": "Ada", "n": [1, 2.5, None]}
    assert client.get(job.id) == done
    assert client.wait(job)["id"] == job.id  # what enqueue gave will do as well


def test_everything_a_job_may_be_given_arrives(client):
    job = client.enqueue(
        "mail",
        {"to": "ä€😀"},
        queue="out.fast",
        priority=-7,
        delay=timedelta(hours=1),
        max_attempts=5,
        timeout="90s",
        key="k-1",
        unique="forever",
        id="my/id ä",
        meta={"by": "me"},
    )
    assert job == stint.Enqueued("my/id ä", False)
    seen = client.get("my/id ä")
    assert seen["type"] == "mail"
    assert seen["payload"] == {"to": "ä€😀"}
    assert seen["queue"] == "out.fast"
    assert seen["priority"] == -7
    assert seen["state"] == "scheduled"
    assert seen["max_attempts"] == 5
    assert seen["timeout"] == "1m30s"
    assert seen["key"] == "k-1"
    assert seen["meta"] == {"by": "me"}
    created = datetime.fromisoformat(seen["created_at"].replace("Z", "+00:00"))
    run_at = datetime.fromisoformat(seen["run_at"].replace("Z", "+00:00"))
    assert run_at - created == timedelta(hours=1)


@pytest.mark.parametrize(
    "at",
    [
        datetime(2040, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc),
        datetime(2040, 1, 2, 5, 4, 5, 678901, tzinfo=timezone(timedelta(hours=2))),
        "2040-01-02T03:04:05.678901Z",
        "2040-01-02T05:04:05.678901+02:00",
        datetime(2040, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc).timestamp(),
    ],
)
def test_a_time_may_be_given_in_several_ways(client, at):
    job = client.enqueue("x", at=at)
    assert client.get(job.id)["run_at"] == "2040-01-02T03:04:05.678901Z"


@pytest.mark.parametrize("delay", [5400, 5400.0, "1h30m", timedelta(minutes=90), "90m"])
def test_a_duration_may_be_given_in_several_ways(client, delay):
    job = client.enqueue("x", timeout=delay)
    assert client.get(job.id)["timeout"] == "1h30m"


def test_no_timeout_and_no_limit_of_attempts_are_zero(client):
    seen = client.get(client.enqueue("x", timeout=0, max_attempts=0).id)
    assert seen["timeout"] is None and seen["max_attempts"] == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1.10, "b":123456789012345678901234567890}',
        "[\n1,\r\n 2\n]",
        '"\\ud800"',
        '"a\\u0000b"',
    ],
)
def test_bytes_are_json_already_and_are_kept(client, work, text):
    job = client.enqueue("echo", text.encode())
    work()
    done = client.wait(job.id, timeout=30)
    assert done["result"] == json.loads(text)


def test_a_payload_of_lone_surrogates_goes_through(client, work):
    job = client.enqueue("echo", {"s": "\ud800"})
    work()
    assert client.wait(job.id, timeout=30)["result"] == {"s": "\ud800"}


def test_the_payload_may_be_left_out(client):
    assert client.get(client.enqueue("x").id)["payload"] is None


def test_a_key_that_is_held_makes_a_duplicate(client):
    first = client.enqueue("mail", {"n": 1}, key="k")
    again = client.enqueue("mail", {"n": 2}, key="k")
    assert again == stint.Enqueued(first.id, True)


@pytest.mark.parametrize("unique", [True, "active", "forever", "10m", 600, timedelta(minutes=10)])
def test_unique_alone_means_the_same_work(client, unique):
    first = client.enqueue("mail", {"n": 1}, unique=unique)
    assert client.enqueue("mail", {"n": 1}, unique=unique) == stint.Enqueued(first.id, True)
    assert client.enqueue("mail", {"n": 2}, unique=unique).duplicate is False


def test_repeating_an_id_adds_nothing(client):
    client.enqueue("x", 1, id="same")
    assert client.enqueue("x", 1, id="same").id == "same"
    with pytest.raises(stint.AlreadyExists):
        client.enqueue("y", 2, id="same")


def test_ids_made_here_are_uuid_7_and_grow(client):
    import uuid

    a, b = uuid.UUID(client.enqueue("x").id), uuid.UUID(client.enqueue("x").id)
    assert a.version == b.version == 7 and a.variant == uuid.RFC_4122
    assert a.int >> 80 <= b.int >> 80


def test_many_jobs_are_added_in_one_go(client):
    jobs = client.enqueue_many(
        [{"type": "x", "payload": n, "id": f"many-{n}", "priority": n} for n in range(300)]
    )
    gc.collect()
    assert [j.id for j in jobs] == [f"many-{n}" for n in range(300)]
    assert client.get("many-299")["payload"] == 299
    assert client.get("many-7")["priority"] == 7
    assert client.enqueue_many([]) == []


def test_many_jobs_are_added_all_or_none(client):
    with pytest.raises(stint.InvalidRequest):
        client.enqueue_many([{"type": "x", "id": "good"}, {"type": "no good type\n"}])
    client.enqueue("x")
    with pytest.raises(stint.NotFound):
        client.get("good")


@pytest.mark.parametrize(
    "change, why",
    [
        ({"type": ""}, None),
        ({"type": 7}, "is no text"),
        ({"type": "a\0b"}, "zero character"),
        ({"type": "\ud800"}, "no Unicode"),
        ({"payload": {1, 2}}, "cannot be written as JSON"),
        ({"payload": float("nan")}, "cannot be written as JSON"),
        ({"payload": b"not json"}, "not JSON"),
        ({"payload": b"NaN"}, "not JSON"),
        ({"payload": b"\xff"}, "not JSON"),
        ({"payload": "x" * (2 << 20)}, "limit"),
        ({"priority": 40000}, "priority"),
        ({"priority": "high"}, "no whole number"),
        ({"priority": True}, "no whole number"),
        ({"delay": "5"}, "no duration"),
        ({"delay": "-5s"}, "no duration"),
        ({"delay": "1m1h"}, "no duration"),
        ({"delay": ""}, "no duration"),
        ({"delay": -1}, "negative"),
        ({"delay": float("nan")}, "out of range"),
        ({"delay": timedelta(days=40000)}, "36500d"),
        ({"delay": [5]}, "no duration"),
        ({"delay": 1, "at": 1}, "one of them"),
        ({"at": datetime(2040, 1, 1)}, "no time zone"),
        ({"at": "tomorrow"}, "RFC 3339"),
        ({"at": -1}, "before 1970"),
        ({"at": None, "timeout": "soon"}, "no duration"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"meta": ["list"]}, "no dict"),
        ({"meta": {"x": object()}}, "cannot be written as JSON"),
        ({"unique": "sometimes"}, "no duration"),
        ({"unique": 0}, "window"),
        ({"id": ""}, "empty"),
        ({"id": "x" * 129}, None),
        ({"queue": "no good queue\n"}, None),
    ],
)
def test_what_is_wrong_is_refused_with_its_reason(client, change, why):
    with pytest.raises(stint.InvalidRequest, match=why) as caught:
        client.enqueue(**{"type": "x", **change})
    assert caught.value.code == "EINVAL"
    assert isinstance(caught.value, ValueError)


def test_an_unknown_argument_in_a_batch_is_named_with_its_job(client):
    with pytest.raises(stint.InvalidRequest, match="job 2: there is no argument 'prio'"):
        client.enqueue_many([{"type": "x"}, {"type": "x", "prio": 1}])
    with pytest.raises(stint.InvalidRequest, match="no dict with a type"):
        client.enqueue_many([{"payload": 1}])


# ---- look, wait, cancel ------------------------------------------------------------------


def test_a_failed_job_is_waited_for_like_any_other(client, work):
    job = client.enqueue("fail")
    work()
    done = client.wait(job.id, timeout="30s")
    assert done["state"] == "failed"
    assert done["error"]["kind"] == "permanent"


def test_a_wait_ends_when_the_job_does(client, work):
    job = client.enqueue("echo", 1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(client.wait(job.id)["state"]))
    thread.start()
    work()
    thread.join(30)
    assert seen == ["succeeded"]


@pytest.mark.parametrize("timeout", [0, "30ms", timedelta(milliseconds=300)])
def test_a_wait_may_have_its_time(client, timeout):
    job = client.enqueue("x")
    with pytest.raises(stint.WaitTimeout) as caught:
        client.wait(job.id, timeout)
    assert isinstance(caught.value, TimeoutError)


def test_a_large_result_is_read_from_its_file(client, work):
    job = client.enqueue("large")
    work()
    done = client.wait(job.id, timeout=30)
    assert done["result_ref"] and done["result"] == "x" * 100_000
    os.unlink(done["result_ref"])
    assert client.get(job.id)["result"] is None


def test_cancel_ends_a_waiting_job_once(client):
    job = client.enqueue("x")
    client.cancel(job.id)
    assert client.wait(job.id)["state"] == "cancelled"
    with pytest.raises(stint.WrongState):
        client.cancel(job.id)


@pytest.mark.parametrize("call", ["get", "wait", "cancel"])
def test_a_job_that_is_not_there_is_not_found(client, call):
    client.enqueue("x")
    for id in ("nobody", "--help", "-"):
        with pytest.raises(stint.NotFound) as caught:
            getattr(client, call)(id)
        assert isinstance(caught.value, LookupError)


def test_a_store_that_cannot_be_opened_is_unavailable(backend, stint_bin, stint_lib):
    with pytest.raises(stint.StoreUnavailable):
        Client("sqlite:/nonexistent/jobs.db", backend=backend).enqueue("x")


def test_a_file_that_is_no_store_is_unavailable(tmp_path, backend, stint_bin, stint_lib):
    (tmp_path / "text").write_text("no database at all\n" * 1000)
    with pytest.raises(stint.StoreUnavailable):
        Client(f"sqlite:{tmp_path}/text", backend=backend).enqueue("x")


def test_a_url_of_no_store_is_an_invalid_request(backend, stint_bin, stint_lib):
    with pytest.raises((stint.InvalidRequest, stint.StoreUnavailable)):
        Client("gopher://x", backend=backend).enqueue("x")


def test_a_closed_client_says_so(client):
    client.enqueue("x")
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.enqueue("x")


def test_threads_share_a_client(client):
    per_thread, failed = 20, []

    def enqueue(n):
        try:
            for i in range(per_thread):
                client.enqueue("x", id=f"{n}-{i}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=enqueue, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    for n in range(4):
        assert client.get(f"{n}-{per_thread - 1}")["state"] == "pending"


# ---- which store, which back end ---------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "store: sqlite:named.db",
        'store: "sqlite:named.db"  # here',
        "store:   'sqlite:named.db'",
        "store: sqlite:named.db # x",
    ],
)
def test_without_a_url_stint_yaml_names_the_store(
    store, backend, stint_bin, stint_lib, tmp_path, line
):
    (tmp_path / "stint.yaml").write_text(f"types:\n  echo: {{run: [cat]}}\n{line}\n")
    Client(backend=backend).enqueue("x", id="there")
    assert (tmp_path / "named.db").exists()
    assert not (tmp_path / "stint.db").exists()


def test_without_a_url_the_environment_comes_before_stint_yaml(
    store, backend, stint_bin, stint_lib, tmp_path, monkeypatch
):
    (tmp_path / "stint.yaml").write_text("store: sqlite:other.db\n")
    monkeypatch.setenv("STINT_STORE", "sqlite:mine.db")
    Client(backend=backend).enqueue("x")
    assert (tmp_path / "mine.db").exists()
    assert not (tmp_path / "other.db").exists()


def test_without_anything_it_is_stint_db_here(store, backend, stint_bin, stint_lib, tmp_path):
    Client(backend=backend).enqueue("x")
    assert (tmp_path / "stint.db").exists()


def test_the_library_is_preferred_and_the_program_stands_in(
    store, stint_bin, stint_lib, monkeypatch
):
    assert Client(store).backend == "library"
    monkeypatch.setenv("STINT_LIB", "")
    assert Client(store).backend == "program"


def test_without_both_it_says_what_to_do(store, monkeypatch):
    monkeypatch.setenv("STINT_LIB", "")
    monkeypatch.setenv("STINT_BIN", "/nonexistent/stint")
    with pytest.raises(stint.NotInstalled, match="STINT_BIN"):
        Client(store)
    monkeypatch.setenv("STINT_LIB", "/nonexistent/libstint.so")
    with pytest.raises(stint.NotInstalled, match="STINT_LIB"):
        Client(store)
    with pytest.raises(stint.InvalidRequest, match="no backend"):
        Client(store, backend="magic")


def test_a_process_forked_after_the_first_call_goes_on_by_the_program(store, stint_bin, stint_lib):
    script = """
import os, sys, stint
client = stint.Client(sys.argv[1], backend="library")
client.enqueue("x", id="parent")
pid = os.fork()
if pid == 0:
    try:
        client.enqueue("x", id="child")
        assert client.get("parent")["id"] == "parent"
        client.close()
        os._exit(0)
    finally:
        os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
assert client.get("child")["id"] == "child"
if os.fork() == 0:
    os.environ["STINT_BIN"] = "/nonexistent"
    client._backend._instead = None
    try:
        client.enqueue("x")
    except stint.StoreUnavailable as error:
        assert "forked" in str(error)
        os._exit(0)
    os._exit(1)
assert os.wait()[1] == 0
"""
    subprocess.run([sys.executable, "-c", script, store], check=True, timeout=60)


# ---- outcomes a healthy store does not show ----------------------------------------------

FAKE = """#!/bin/sh
cat >/dev/null
{body}
"""


@pytest.mark.parametrize(
    "body, error, why",
    [
        ("echo 'usage' >&2; exit 2", stint.InvalidRequest, "usage"),
        ("exit 3", stint.NotFound, "exit code 3"),
        ("exit 4", stint.StoreUnavailable, "exit code 4"),
        ("exit 5", stint.WaitTimeout, None),
        ("exit 6", stint.OutcomeUnknown, None),
        ("kill -9 $$", stint.OutcomeUnknown, "signal 9"),
        ("exit 99", stint.StintError, "exit code 99"),
        ("echo garbage", stint.StintError, "exit code 0"),
        (
            """echo '{"error":{"code":"EUNKNOWN","message":"m","remedy":"r"}}'; exit 6""",
            stint.OutcomeUnknown,
            r"m \(r\)",
        ),
        (
            """echo '{"error":{"code":"ESTORE","message":"full"}}'; exit 4""",
            stint.StoreUnavailable,
            "full",
        ),
        ("""echo '{"error":{"code":"ENOMEM","message":"m"}}'; exit 4""", stint.StintError, "m"),
    ],
)
def test_exit_codes_of_the_program_become_exceptions(tmp_path, monkeypatch, body, error, why):
    fake = tmp_path / "stint"
    fake.write_text(FAKE.format(body=body))
    fake.chmod(0o755)
    monkeypatch.setenv("STINT_BIN", str(fake))
    with pytest.raises(error, match=why) as caught:
        Client("sqlite:x.db", backend="program").enqueue("x", id="mine")
    assert type(caught.value) is error
    if error is stint.OutcomeUnknown:
        assert caught.value.ids == ["mine"]


LIBRARY = r"""
#include <string.h>
#include <stint.h>
/* A store that never answers. */
const char *stint_code_name(stint_code c) { return c == STINT_EUNKNOWN ? "EUNKNOWN" : "ENOMEM"; }
const char *stint_version(void) { return "0.0.0"; }
stint_code stint_open(const char *u, int t, stint **out, stint_error *e)
{ (void)u; (void)t; (void)e; *out = (stint *)1; return STINT_OK; }
void stint_close(stint *s) { (void)s; }
stint_code stint_enqueue(stint *s, const stint_job *j, size_t n, stint_enqueued *o, stint_error *e)
{ (void)s; (void)j; (void)n; (void)o;
  strcpy(e->message, "no answer"); strcpy(e->remedy, "again"); strcpy(e->detail, "57P01");
  return STINT_EUNKNOWN; }
stint_code stint_get(stint *s, const char *i, char **j, stint_error *e)
{ (void)s; (void)i; (void)j; strcpy(e->message, "no memory"); return STINT_ENOMEM; }
stint_code stint_wait(stint *s, const char *i, int t, const char **st, stint_error *e)
{ (void)s; (void)i; (void)t; (void)st; strcpy(e->message, "no memory"); return STINT_ENOMEM; }
stint_code stint_cancel(stint *s, const char *i, stint_error *e)
{ (void)s; (void)i; strcpy(e->message, "no memory"); return STINT_ENOMEM; }
void stint_free(void *p) { (void)p; }
"""


def test_an_unknown_outcome_of_the_library_names_the_ids(tmp_path, monkeypatch):
    import shutil
    from pathlib import Path

    cc = shutil.which(os.environ.get("CC", "cc"))
    include = Path(os.environ.get("STINT_INCLUDE", Path(__file__).parents[3] / "include"))
    if not cc or not (include / "stint.h").exists():
        pytest.skip("needs a C compiler and stint.h (STINT_INCLUDE)")
    (tmp_path / "fake.c").write_text(LIBRARY)
    subprocess.run(
        [cc, "-shared", "-fPIC", "-I", include, "-o", tmp_path / "fake.so", tmp_path / "fake.c"],
        check=True,
    )
    monkeypatch.setenv("STINT_LIB", str(tmp_path / "fake.so"))
    with Client("sqlite:x.db", backend="library") as client:
        with pytest.raises(stint.OutcomeUnknown) as caught:
            client.enqueue_many([{"type": "x", "id": "a"}, {"type": "x", "id": "b"}])
        assert caught.value.ids == ["a", "b"]
        assert (caught.value.remedy, caught.value.detail) == ("again", "57P01")
        for call in (client.get, client.wait, client.cancel):
            with pytest.raises(stint.StintError, match="no memory") as caught:
                call("a")
            assert caught.value.code == "ENOMEM"


def test_the_structures_are_those_of_the_header(tmp_path):
    """ctypes' idea of the sizes and places is the C compiler's."""
    import ctypes
    import shutil
    from pathlib import Path

    from stint import _library

    cc = shutil.which(os.environ.get("CC", "cc"))
    include = Path(os.environ.get("STINT_INCLUDE", Path(__file__).parents[3] / "include"))
    if not cc or not (include / "stint.h").exists():
        pytest.skip("needs a C compiler and stint.h (STINT_INCLUDE)")
    ours = {
        "stint_job": _library._Job,
        "stint_error": _library._Error,
        "stint_enqueued": _library._Enqueued,
    }
    prints = "".join(
        f'printf("{c} %zu\\n", sizeof({c}));'
        + "".join(f'printf("{c}.{f[0]} %zu\\n", offsetof({c}, {f[0]}));' for f in struct._fields_)
        for c, struct in ours.items()
    )
    (tmp_path / "p.c").write_text(
        "#include <stdio.h>\n#include <stddef.h>\n#include <stint.h>\nint main(void){"
        + prints
        + "}"
    )
    subprocess.run([cc, "-I", include, "-o", tmp_path / "p", tmp_path / "p.c"], check=True)
    said = dict(
        line.split() for line in subprocess.check_output([tmp_path / "p"], text=True).splitlines()
    )
    for c, struct in ours.items():
        assert int(said[c]) == ctypes.sizeof(struct)
        for f in struct._fields_:
            assert int(said[f"{c}.{f[0]}"]) == getattr(struct, f[0]).offset
