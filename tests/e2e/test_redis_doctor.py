# SPDX-License-Identifier: Apache-2.0
"""`doctor` on Redis: one test per finding, with the condition really created on a real server; and what a worker says when it starts there.

Where the remedy is a command for the server the tests run it, and then doctor has nothing to say any more.
"""

import json
import os
import re
import signal
import socket
import subprocess

import pytest

from kit import Stint, until
from rediskit import Refused, Server

SECRET = "hush-5ecret"


@pytest.fixture
def server(redis_pen):
    """One that doctor has nothing to say against, and that nobody else has."""
    server = Server(redis_pen)
    yield server
    server.stop(signal.SIGKILL)  # one that has just begun an append-only file refuses to end


@pytest.fixture
def stint(tmp_path, binary, probe, server):
    """A store with a job that waits, one that has succeeded and one that has failed."""
    kit = Stint(tmp_path, binary, probe, server.url())
    kit.config({"ok": kit.sh("true"), "bad": kit.sh("exit 65")})
    kit.enqueue("ok")
    kit.enqueue("bad")
    kit.work_off()
    kit.enqueue("ok", "{}", "--delay", "1h")
    yield kit
    kit.close()


def findings(stint, *severities, store=None, env=None):
    """What doctor has to say about the store."""
    done = stint("doctor", "--json", *(["--store", store] if store else []), check=None, env=env)
    errors = [f for f in done.json["findings"] if f["severity"] == "error"]
    assert done.code == (1 if errors else 0), done
    assert all(f["remedy"] for f in done.json["findings"] if f["severity"] != "ok"), done
    assert SECRET.encode() not in done.out + done.err
    return [f for f in done.json["findings"] if f["area"] == "store" and f["severity"] in (severities or ("warning", "error"))]


def found(stint, severity, *words, **how):
    """The one of this severity that has all these words."""
    hits = [f for f in findings(stint, severity, **how) if all(word in f["what"] for word in words)]
    assert len(hits) == 1, f"doctor to find {words}; it has {json.dumps(findings(stint, 'ok', 'warning', 'error', **how), indent=1)}"
    return hits[0]


def mend(server, hit):
    """Runs the CONFIG SET of the remedy."""
    name, value = re.search(r"CONFIG SET (\S+) ([a-z]+)", hit["remedy"]).groups()
    server.set(name, value)


def test_doctor_has_nothing_against_a_server_that_keeps_what_it_is_given(stint):
    assert findings(stint) == []
    text = " ".join(f["what"] for f in findings(stint, "ok"))
    assert "Redis 7" in text or "Redis 6" in text or "Valkey" in text
    assert "up to 1 s" in text and "nothing is evicted" in text


def test_doctor_finds_a_server_that_evicts(stint, server):
    server.set("maxmemory-policy", "allkeys-lru")
    hit = found(stint, "warning", "maxmemory-policy is allkeys-lru", "once maxmemory is set")
    server.set("maxmemory", "200mb")
    found(stint, "error", "maxmemory-policy is allkeys-lru", "deleted silently")
    mend(server, hit)
    assert findings(stint) == []


def test_doctor_finds_a_server_that_evicts_what_has_a_time_to_live(stint, server):
    server.set("maxmemory", "200mb")
    server.set("maxmemory-policy", "volatile-ttl")
    mend(server, found(stint, "warning", "maxmemory-policy is volatile-ttl", "unique keys are deleted silently"))
    assert findings(stint) == []


def test_doctor_finds_that_keys_were_evicted(stint, server):
    server.set("maxmemory-policy", "allkeys-random")
    with server.client() as client:
        used = int(server.info("used_memory"))
        server.set("maxmemory", used + 100000)
        for n in range(400):
            client("SET", f"filler:{n}", "x" * 2000)
    assert int(server.info("evicted_keys")) > 0
    server.set("maxmemory", "0")
    server.set("maxmemory-policy", "noeviction")
    hit = found(stint, "warning", "keys were evicted")
    assert "CONFIG RESETSTAT" in hit["remedy"]
    server("CONFIG", "RESETSTAT")
    assert not [f for f in findings(stint) if "were evicted" in f["what"]]


def test_doctor_finds_ids_without_a_job(stint, server):
    id = stint.enqueue("ok")
    server("DEL", f"asynq:{{default}}:t:{id}")
    hit = found(stint, "warning", "queue default names 1 jobs that are gone")
    assert "eviction" in hit["remedy"]


OF_A_QUEUE = [("asynq", "pending"), ("asynq", "active"), ("asynq", "lease"), ("asynq", "scheduled"), ("asynq", "retry"), ("asynq", "completed"),
              ("asynq", "archived"), ("stint", "rules"), ("stint", "cancel"), ("stint", "cancelled")]


@pytest.mark.parametrize("owner, name", OF_A_QUEUE)
def test_doctor_names_the_key_of_a_queue_that_is_of_another_kind(stint, server, owner, name):
    id = stint.enqueue("ok", "{}", "--queue", "zzz")
    server("DEL", f"asynq:{{zzz}}:t:{id}")
    server("SADD", "asynq:queues", "broken")
    server("SET", f"{owner}:{{broken}}:{name}", "x")
    hit = found(stint, "error", f"{owner}:{{broken}}:{name} is a string and no ")
    assert "remove it" in hit["remedy"]
    found(stint, "warning", "queue zzz names 1 jobs that are gone")  # the others are looked at all the same
    server("DEL", f"{owner}:{{broken}}:{name}")
    assert findings(stint, "error") == []


@pytest.mark.parametrize("key", ["asynq:queues", "stint:{stint}:workers", "stint:{stint}:leader", "asynq:servers", "asynq:workers"])
def test_doctor_names_a_key_of_all_queues_that_is_of_another_kind(stint, server, key):
    server("SET", key, "x")
    found(stint, "error", f"{key} is a string and no ")


def test_doctor_finds_a_fence_that_is_none(stint, server):
    server("DEL", "stint:{default}:fence")
    server("SADD", "stint:{default}:fence", "x")
    found(stint, "error", "stint:{default}:fence is a set and no string")


def test_doctor_finds_queues_that_nobody_serves(stint, server):
    server("SADD", "asynq:queues", "q" * 300)
    server("SADD", "asynq:queues", "a\0b")
    found(stint, "warning", "2 queues are not served")


def test_an_outcome_that_a_key_of_another_kind_holds_up_is_told(stint, server):
    with stint.worker() as worker:
        server("DEL", "asynq:{default}:completed")
        server("SET", "asynq:{default}:completed", "x")
        id = stint.enqueue("ok")
        worker.said(f"event=job.outcome_waits job={id}")
        worker.said("event=queue.broken queue=default")
        server("DEL", "asynq:{default}:completed")
        stint.until_state(id, "succeeded")
        worker.stop()


def test_doctor_finds_active_jobs_that_nobody_would_take_up(stint, server):
    id = stint.enqueue("ok")
    server("LREM", "asynq:{default}:pending", 1, id)
    server("LPUSH", "asynq:{default}:active", id)
    server("HSET", f"asynq:{{default}}:t:{id}", "state", "active")
    found(stint, "warning", "1 active jobs without a lease")


def test_doctor_finds_memory_nearly_full(stint, server):
    used = int(server.info("used_memory"))
    server.set("maxmemory", int(used * 1.1))
    found(stint, "warning", "of maxmemory is in use")
    server.set("maxmemory", used // 2)
    found(stint, "error", "maxmemory is used up")


def test_doctor_finds_a_server_that_keeps_nothing(stint, server):
    server.set("appendonly", "no")
    server.set("save", "")
    hit = found(stint, "warning", "nothing is kept on disk")
    mend(server, hit)
    assert findings(stint) == []


def test_doctor_finds_a_server_with_snapshots_only(stint, server):
    server.set("appendonly", "no")
    server.set("save", "3600 1")
    mend(server, found(stint, "warning", "only snapshots are kept"))
    assert findings(stint) == []


def test_doctor_tells_how_much_a_power_cut_may_cost(stint, server):
    server.set("appendfsync", "no")
    mend(server, found(stint, "warning", "appendfsync is no"))
    found(stint, "ok", "up to 1 s of acknowledged jobs")
    server.set("appendfsync", "always")
    found(stint, "ok", "on disk before it is acknowledged")
    assert findings(stint) == []


def test_doctor_finds_a_snapshot_that_has_failed(stint, server):
    blocked = server.top / "dump.rdb"
    blocked.mkdir()  # a folder where the file should be
    server("BGSAVE")
    until(lambda: server.info("rdb_bgsave_in_progress") == "0", "the snapshot to end")
    assert server.info("rdb_last_bgsave_status") == "err"
    found(stint, "error", "the last snapshot has failed")
    blocked.rmdir()
    server("BGSAVE")
    until(lambda: server.info("rdb_last_bgsave_status") == "ok", "a good snapshot")
    assert findings(stint) == []


def test_doctor_finds_a_replica_and_tells_of_them(stint, server, redis_pen):
    port_server = Server(redis_pen, port="0")
    try:
        server.stop()
        port = free_port()
        server.start(port=str(port), bind="127.0.0.1")
        port_server("REPLICAOF", "127.0.0.1", port)
        until(lambda: port_server.info("master_link_status") == "up", "the replica to follow")
        found(stint, "error", "this server is a replica", store=port_server.url())
        found(stint, "ok", "1 replica, which follows")
    finally:
        port_server.stop(signal.SIGKILL)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def user_url(server):
    return server.url(user=f"app:{SECRET}")


@pytest.mark.parametrize("lack,severity,words", [
    ("-eval", "error", "run scripts"),
    ("-del", "error", "write stint:*"),
    ("-hset", "error", "run all that scripts need: HSET"),
    ("-zadd", "error", "run all that scripts need: ZADD"),
    ("-client", "warning", "CLIENT TRACKING"),
    ("-publish", "warning", "publish asynq:cancel"),
])
def test_doctor_finds_what_a_user_may_not_do(stint, server, lack, severity, words):
    server("ACL", "SETUSER", "app", "on", f">{SECRET}", "~*", "&*", "+@all", lack)
    hit = found(stint, severity, "this user may not", words, store=user_url(server))
    assert "ACL SETUSER" in hit["remedy"]


def test_the_rights_doctor_names_are_enough(stint, server):
    server("ACL", "SETUSER", "app", "on", f">{SECRET}", "~*", "&*", "+@all", "-eval")
    words = found(stint, "error", "run scripts", store=user_url(server))["remedy"].split()
    server("ACL", "DELUSER", "app")
    server("ACL", "LOG", "RESET")
    server("ACL", "SETUSER", "app", "on", f">{SECRET}", *words[words.index("NAME") + 1:])
    assert findings(stint, store=user_url(server)) == []
    stint.env["STINT_STORE"] = user_url(server)
    id = stint.enqueue("ok")
    with stint.worker() as worker:
        stint.until_state(id, "succeeded")
        assert "store.no_tracking" not in worker.log and "store.no_listen" not in worker.log
        worker.stop()
    assert server("ACL", "LOG") == []  # nothing was asked for in vain


def test_doctor_says_once_what_a_server_refuses_to_everybody(stint, server):
    server.set("min-replicas-to-write", "1")
    hit = found(stint, "error", "NOREPLICAS")
    assert "min-replicas-to-write" in hit["remedy"]
    server.set("min-replicas-to-write", "0")
    assert findings(stint) == []


@pytest.mark.parametrize("lack", ["-hset", "-lpush", "-zadd", "-lrem"])
def test_a_worker_with_too_few_rights_takes_no_job(stint, server, lack):
    ids = [stint.enqueue("ok") for _ in range(3)]
    server("ACL", "SETUSER", "app", "on", f">{SECRET}", "~*", "&*", "+@all", lack)
    with stint.worker("--store", user_url(server), wait=False) as worker:
        worker.said("store.away")
        worker.said(f"may not run all that scripts need: {lack[1:].upper()}")
        assert pending(server) == ids[::-1]
        server("ACL", "SETUSER", "app", "+@all")  # it was only waiting for that
        for id in ids:
            stint.until_state(id, "succeeded")
        worker.stop()


@pytest.mark.parametrize("lack", ["-hset", "-lpush", "-zadd"])
def test_a_claim_that_rights_break_off_leaves_the_jobs_where_they_are(stint, server, lack):
    server("ACL", "SETUSER", "app", "on", f">{SECRET}", "~*", "&*", "+@all")
    with stint.worker("--store", user_url(server)) as worker:
        server("ACL", "SETUSER", "app", lack)
        ids = [stint.enqueue("ok") for _ in range(3)]
        worker.said("store.away")
        assert pending(server) == ids[::-1]
        server("ACL", "SETUSER", "app", "+@all")
        for id in ids:
            stint.until_state(id, "succeeded")
        worker.stop()
    assert server("LLEN", "asynq:{default}:active") == 0


def pending(server):
    return [x.decode() for x in server("LRANGE", "asynq:{default}:pending", 0, -1)]


def test_doctor_says_what_it_may_not_see(stint, server):
    server("ACL", "SETUSER", "app", "on", f">{SECRET}", "~*", "&*", "+@all", "-info")
    found(stint, "warning", "does not say how it is set up", store=user_url(server))


SHIFT = """
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *ts)
{
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int r = real(id, ts);
    if (id == CLOCK_REALTIME)
        ts->tv_sec += 90;
    return r;
}
"""


def test_doctor_finds_clocks_that_differ(stint, tmp_path):
    (tmp_path / "shift.c").write_text(SHIFT)
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", "shift.so", "shift.c", "-ldl"], cwd=tmp_path,
                   check=True)
    hit = found(stint, "warning", "clock and this machine's differ", env={"LD_PRELOAD": str(tmp_path / "shift.so")})
    assert "NTP" in hit["remedy"]


def test_doctor_finds_many_connections(stint, server):
    server.set("maxclients", "40")
    clients = [server.client() for _ in range(34)]
    for client in clients:
        client.__enter__()("PING")
    found(stint, "warning", "of 40 connections are in use")
    for client in clients:
        client.__exit__(None, None, None)


# ---- a worker that starts there ----


def test_a_worker_warns_where_jobs_would_be_lost(stint, server):
    server.set("maxmemory-policy", "volatile-lru")
    server.set("appendonly", "no")
    with stint.worker() as worker:
        worker.said("store.evicts")
        worker.said("store.not_kept")
        assert worker.log.count("store.evicts") == 1
        worker.stop()


def test_a_worker_does_not_start_where_jobs_are_deleted_unless_told_so(stint, server):
    server.set("maxmemory-policy", "allkeys-lru")
    server.set("maxmemory", "200mb")
    refused = stint("worker", "--once", check=4)
    assert all(word in refused.err for word in (b"allkeys-lru", b"noeviction", b"may_lose=yes")), refused
    url = stint.store + ("&" if "?" in stint.store else "?") + "may_lose="
    assert b"may_lose=" in stint("worker", "--once", "--store", url + "perhaps", check=2).err
    assert b"store.evicts" in stint("worker", "--once", "--store", url + "yes").err


def test_a_worker_on_a_good_server_warns_of_nothing(stint):
    with stint.worker() as worker:
        worker.stop()
        assert "store.evicts" not in worker.log and "store.not_kept" not in worker.log


@pytest.mark.long
def test_a_worker_notices_that_the_store_was_emptied(stint, server):
    with stint.worker() as worker:
        server("FLUSHALL")
        worker.said("store.emptied")
        stint.until_state(stint.enqueue("ok"), "succeeded")  # and goes on
        worker.stop()


def test_a_server_that_is_full_says_so(stint, server):
    server.set("maxmemory", "100kb")
    with pytest.raises(Refused):
        server("SET", "x", "y")
    error = stint.refuses("enqueue", "ok", "{}", code=4)
    assert "memory" in error["message"].lower() or "OOM" in error["message"]
