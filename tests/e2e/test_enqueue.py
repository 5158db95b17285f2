# SPDX-License-Identifier: Apache-2.0
"""Adding jobs: ids, unique keys, batches, and what an acknowledgement is worth."""

import json
import os
import signal
import subprocess

import pytest

from kit import until


def test_an_enqueue_prints_the_id_for_people_and_for_programs(stint):
    text = stint("enqueue", "mail", '{"to":"ada"}').text
    assert text.count("\n") == 1 and stint.show(text.strip())["payload"] == {"to": "ada"}
    done = stint.json("enqueue", "mail", '{"to":"bob"}')
    assert set(done) == {"id", "duplicate"} and done["duplicate"] is False


def test_ids_are_version_7_uuids_and_sort_by_time(stint):
    ids = [stint.enqueue("t") for _ in range(5)]
    assert all(id[14] == "7" and len(id) == 36 for id in ids)
    assert ids == sorted(ids) and len(set(ids)) == 5


def test_a_payload_may_come_from_stdin(stint):
    id = stint.enqueue("t", "-", input='{"from": "stdin"}')
    assert stint.show(id)["payload"] == {"from": "stdin"}


def test_a_payload_is_kept_byte_for_byte(stint):
    payload = '{ "b" : 1.10, "a": 12345678901234567890123, "a": "\\u00e9" }'
    stint.config({"t": stint.sh("cat >$D/seen")})
    stint.enqueue("t", payload)
    stint.work_off()
    assert (stint.dir / "seen").read_text() == payload


def test_an_enqueue_without_a_payload_is_a_job_without_one(stint):
    stint.config({"t": stint.sh("cat >$D/seen")})
    id = stint.json("enqueue", "t")["id"]
    stint.work_off()
    assert stint.state(id) == "succeeded"
    assert (stint.dir / "seen").read_text() in ("", "null", "{}")


def test_repeating_an_enqueue_with_the_same_id_changes_nothing_and_answers_the_same(stint):
    first = stint.json("enqueue", "t", '{"n":1}', "--id", "order-42")
    before = stint.show("order-42")
    again = stint.json("enqueue", "t", '{"n":1}', "--id", "order-42")
    assert first["id"] == again["id"] == "order-42"
    assert stint.show("order-42") == before
    assert len(stint.list_all()) == 1


def test_repeating_an_id_works_after_the_job_has_ended(stint):
    stint.config({"t": stint.sh("exit 0")})
    stint.enqueue("t", "1", "--id", "a")
    stint.work_off()
    assert stint.enqueue("t", "1", "--id", "a") == "a"
    assert stint.state("a") == "succeeded"


def test_an_id_that_belongs_to_another_job_is_refused(stint):
    stint.enqueue("t", '{"n":1}', "--id", "a")
    stint.refuses("enqueue", "t", '{"n":2}', "--id", "a", code=2, says="a", json_code="EEXISTS")
    assert stint.show("a")["payload"] == {"n": 1}


def test_an_id_may_be_up_to_128_bytes_of_anything_a_file_name_could_not_hold(stint):
    id = "../" + "ä/" * 41 + "zz"
    assert len(id.encode()) == 128
    stint.config({"t": stint.probe("fill", 70000)})
    stint.enqueue("t", "{}", "--id", id)
    stint.work_off()
    job = stint.show(id)
    assert job["state"] == "succeeded" and os.path.getsize(stint.dir / job["result_ref"]) == 70000
    stint.refuses("enqueue", "t", "{}", "--id", id + "z", code=2, says="128")
    stint.refuses("enqueue", "t", "{}", "--id", "", code=2)


# ---- unique keys ----


def test_an_active_key_is_held_until_the_job_ends(stint):
    stint.config({"t": stint.sh("exit 0")})
    first = stint.json("enqueue", "t", "1", "--key", "k")
    second = stint.json("enqueue", "t", "2", "--key", "k")
    assert second == {"id": first["id"], "duplicate": True}
    stint.work_off()
    third = stint.json("enqueue", "t", "3", "--key", "k", "--unique", "active")
    assert third["duplicate"] is False and third["id"] != first["id"]


def test_a_duplicate_is_said_to_people_and_exits_0(stint):
    id = stint.enqueue("t", "1", "--key", "k")
    done = stint("enqueue", "t", "1", "--key", "k")
    assert id in done.text and "duplicate" in done.text + done.err.decode()


def test_a_key_held_forever_outlives_its_job(stint):
    stint.config({"t": stint.sh("exit 0")})
    first = stint.enqueue("t", "1", "--key", "k", "--unique", "forever")
    stint.work_off()
    assert stint.state(first) == "succeeded"
    assert stint.json("enqueue", "t", "2", "--key", "k", "--unique", "forever") == {"id": first, "duplicate": True}


def test_a_key_held_for_a_duration_is_free_afterwards(stint):
    stint.config({"t": stint.sh("exit 0")})
    long = stint.enqueue("t", "1", "--key", "long", "--unique", "1h")
    short = stint.enqueue("t", "1", "--key", "short", "--unique", "500ms")
    stint.work_off()
    assert stint.json("enqueue", "t", "2", "--key", "long", "--unique", "1h")["id"] == long
    until(lambda: stint.json("enqueue", "t", "2", "--key", "short", "--unique", "500ms")["id"] != short,
          "the short key to be free")


def test_keys_are_per_type(stint):
    assert stint.enqueue("a", "1", "--key", "k") != stint.enqueue("b", "1", "--key", "k")


def test_without_a_key_the_same_work_is_the_same_key(stint):
    first = stint.json("enqueue", "t", '{"a":1,"b":2}', "--unique", "active")
    same = stint.json("enqueue", "t", '{ "b": 2, "a": 1 }', "--unique", "active")
    other = stint.json("enqueue", "t", '{"a":1,"b":3}', "--unique", "active")
    elsewhere = stint.json("enqueue", "t", '{"a":1,"b":2}', "--unique", "active", "--queue", "q2")
    assert same == {"id": first["id"], "duplicate": True}
    assert not other["duplicate"] and not elsewhere["duplicate"]


def test_the_key_of_a_failed_job_is_free_and_its_retry_then_refused(stint):
    stint.config({"t": stint.sh("exit 65")})
    first = stint.enqueue("t", "1", "--key", "k")
    stint.work_off()
    second = stint.json("enqueue", "t", "1", "--key", "k")
    assert not second["duplicate"]
    stint.refuses("job", "retry", first, code=1, says="key", json_code="ESTATE")


def test_fifty_producers_with_one_key_make_one_job(stint):
    stint.enqueue("warm")  # the file is there
    producers = [stint.start("enqueue", "t", json.dumps(n), "--key", "k", "--json", "--store-timeout", "60s",
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) for n in range(50)]
    answers = []
    for producer in producers:
        out, err = producer.communicate(timeout=120)
        assert producer.returncode == 0, (out, err)
        answers.append(json.loads(out))
    assert len({a["id"] for a in answers}) == 1
    assert sorted(a["duplicate"] for a in answers) == [False] + [True] * 49


def test_fifty_producers_at_once_on_a_store_that_is_not_there_yet_all_succeed(stint):
    producers = [stint.start("enqueue", "t", str(n), "--json", "--store-timeout", "60s", stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE) for n in range(50)]
    ids = set()
    for producer in producers:
        out, err = producer.communicate(timeout=120)
        assert producer.returncode == 0, (out, err)
        ids.add(json.loads(out)["id"])
    assert len(ids) == 50 and stint.counts() == {"pending": 50}


# ---- batches ----


def test_a_batch_takes_every_field_and_the_flags_are_defaults(stint):
    jobs = stint.batch([
        {"payload": {"n": 1}},
        {"type": "other", "payload": [1, 2], "queue": "mail.fast", "priority": -5, "delay": "1h",
         "max_attempts": 7, "timeout": "90s", "key": "k", "unique": "forever", "id": "my-id", "meta": {"by": "ada"}},
        {"at": "2099-01-01T00:00:00Z"},
    ], "fallback", "--queue", "bulk", "--priority", "3")
    assert [set(job) for job in jobs] == [{"id", "duplicate"}] * 3
    plain, full, later = (stint.show(job["id"]) for job in jobs)
    assert (plain["type"], plain["queue"], plain["priority"], plain["payload"]) == ("fallback", "bulk", 3, {"n": 1})
    assert (full["type"], full["queue"], full["priority"]) == ("other", "mail.fast", -5)
    assert (full["max_attempts"], full["key"], full["id"], full["meta"]) == (7, "k", "my-id", {"by": "ada"})
    assert full["state"] == later["state"] == "scheduled"
    assert later["run_at"] == "2099-01-01T00:00:00.000000Z"


@pytest.mark.parametrize("bad, word", [
    ('{"type":"t","payload":{]}', "JSON"),
    ('{"type":"t","priority":40000}', "priority"),
    ('{"type":"t","queue":"two words"}', "queue"),
    ('{"type":"t","delay":"90"}', "delay"),
    ('{"type":"t","colour":"red"}', "colour"),
    ('{"payload":1}', "type"),
    ('["not an object"]', "object"),
    ('{"type":"t","meta":3}', "meta"),
    ('{"type":"t","unique":"sometimes"}', "unique"),
])
def test_a_batch_is_all_or_nothing_and_names_the_bad_line(stint, bad, word):
    stint.enqueue("there", "1", "--id", "first")
    lines = '{"type":"t"}\n{"type":"t"}\n' + bad + '\n{"type":"t"}\n'
    error = stint.refuses("enqueue", "--batch", "-", code=2, says=["3", word], input=lines)
    assert "line 3" in error["message"] or ":3" in error["message"]
    assert [job["id"] for job in stint.list_all()] == ["first"]


def test_a_batch_may_come_from_a_file_and_blank_lines_are_nothing(stint):
    (stint.dir / "jobs").write_text('{"type":"a"}\n\n{"type":"b"}')
    assert len(stint.json("enqueue", "--batch", "jobs")["jobs"]) == 2
    stint.refuses("enqueue", "--batch", "not-there", code=2, says="not-there")


def test_an_empty_batch_adds_nothing(stint):
    assert stint.json("enqueue", "--batch", "-", input="") == {"jobs": []}


def test_a_repeated_key_within_a_batch_is_a_duplicate_of_the_first(stint):
    jobs = stint.batch([{"type": "t", "key": "k"}, {"type": "t", "key": "k"}])
    assert jobs[0]["id"] == jobs[1]["id"] and [j["duplicate"] for j in jobs] == [False, True]


def test_a_batch_counts_duplicates_apart_and_claims_no_more_than_it_knows(stint):
    lines = '{"type":"t","id":"a","payload":1}\n{"type":"t","key":"k"}\n{"type":"t","key":"k"}\n'
    stint.enqueue("t", "1", "--id", "a")
    assert b"2 enqueued, 1 duplicate" in stint("enqueue", "--batch", "-", input=lines).err


def test_a_batch_repeated_with_its_ids_adds_nothing(stint):
    jobs = [{"type": "t", "payload": n, "id": f"job-{n}"} for n in range(100)]
    assert stint.batch(jobs) and stint.batch(jobs)
    assert stint.counts() == {"pending": 100}


def test_a_batch_names_the_line_whose_id_is_taken_in_the_store(stint):
    stint.enqueue("t", "1", "--id", "by")
    jobs = [{"type": "t", "id": "job"}, {"type": "t", "id": "by", "payload": 1}, {"type": "t", "id": "by", "payload": 2}]
    lines = "\n" + "".join(json.dumps(job) + "\n" for job in jobs)
    stint.refuses("enqueue", "--batch", "-", input=lines, code=2, json_code="EEXISTS",
                  says="line 4: the id by is taken by another job")
    assert [job["id"] for job in stint.list_all()] == ["by"]


def test_a_batch_names_both_lines_that_want_the_same_id(stint):
    lines = '{"type":"t","id":"a"}\n\n{"type":"t","id":"b"}\n{"type":"u","id":"a"}\n'
    stint.refuses("enqueue", "--batch", "-", input=lines, code=2, json_code="EEXISTS",
                  says="line 4: the id a is that of line 1 already")
    assert stint.list_all() == []


# ---- what an acknowledgement is worth ----


def test_every_id_acknowledged_before_a_kill_9_is_there_afterwards(stint):
    acked = stint.dir / "acked"
    loop = f"while :; do {stint.binary} enqueue t '{{}}' --json >>acked; done"
    seen = set()
    for _ in range(5):
        target = len(seen) + 10
        shell = subprocess.Popen(["/bin/sh", "-c", loop], cwd=stint.dir, env=stint.env, start_new_session=True)
        until(lambda: acked.exists() and acked.read_text().count("\n") >= target, "ten more acknowledgements")
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        whole = acked.read_text().rpartition("\n")[0].splitlines()
        seen = {json.loads(line)["id"] for line in whole if line.endswith("}")}
        have = {job["id"] for job in stint.list_all("--limit", "1000")}
        assert seen <= have, f"acknowledged and lost: {seen - have}"
    assert len(have) <= len(seen) + 5  # at most the one that was cut off each time


def test_a_batch_cut_off_by_kill_9_is_there_whole_or_not_at_all(stint):
    size = 2000
    lines = "".join(f'{{"type":"t","payload":{n},"id":"job-{n}"}}\n' for n in range(size)).encode()
    stint.enqueue("warm", "1", "--queue", "other")
    wal = stint.dir / "stint.db-wal"
    for grown in (0, 1, 1 << 16, 1 << 18):
        before = wal.stat().st_size if wal.exists() else 0
        process = stint.start("enqueue", "--batch", "-", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        process.stdin.write(lines)
        process.stdin.close()
        until(lambda: process.poll() is not None or grown == 0
              or (wal.exists() and wal.stat().st_size >= before + grown), "the WAL to grow")
        process.kill()
        process.wait()
        assert stint.counts() in ({}, {"pending": size})
    stint("enqueue", "--batch", "-", input=lines.decode())
    assert stint.counts() == {"pending": size}
