# SPDX-License-Identifier: Apache-2.0
"""Fixtures: `stint` is the built program in a directory of its own; see kit.py.

STINT_TEST_STORE=postgres runs the tests whose subject is the program and not the SQLite file on PostgreSQL, and those of
PostgreSQL itself: each has a schema of its own on a server that is thrown away (pgkit.py).  STINT_TEST_STORE=redis does the same with
Redis (rediskit.py): each test has an empty server.  Which are left out, and why, is below.
"""

import itertools
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import pgkit  # noqa: E402
import rediskit  # noqa: E402
from kit import ROOT, Stint, long_first  # noqa: E402

STORE = os.environ.get("STINT_TEST_STORE", "sqlite")
OWN = {"postgres": "test_postgres", "redis": "test_redis"}  # how the names of their files begin
ON_ALL = ("test_dev", "test_endurance", "test_enqueue", "test_explain", "test_oneshot", "test_recovery", "test_shapes", "test_signal",
           "test_steering", "test_upkeep")
# The others: bad_input, doctor, full_disk, install: about files.  resident: about children.  exactly_once: many jobs; test_postgres
# has fewer and more workers.
A_FILE = "it does something to the file stint.db"
NAMED = "it names a SQLite store on the command line"
SQLITE_ONLY = {
    "test_a_backup_does_not_overwrite_a_file": "PostgreSQL has backups of its own",
    "test_a_backup_taken_under_load_opens_and_has_the_jobs": "PostgreSQL has backups of its own",
    "test_a_backup_that_cannot_be_made_names_the_file_that_was_asked_for": "PostgreSQL has backups of its own",
    "test_a_batch_cut_off_by_kill_9_is_there_whole_or_not_at_all": "it watches the WAL grow; test_postgres_chaos cuts enqueues",
    "test_a_flag_goes_before_the_environment_and_that_before_the_file": NAMED,
    "test_a_second_process_may_write_for_long_while_a_worker_runs": "it locks the file; PostgreSQL has no such lock",
    "test_a_store_that_this_program_cannot_speak_to_is_named": NAMED,
    "test_a_worker_ends_when_told_though_its_store_is_away": A_FILE + "; test_postgres stops the server",
    "test_a_worker_prunes_by_itself": "it takes a minute, and the store's part is in the store's own suite",
    "test_a_worker_waits_for_a_store_that_is_busy_for_long": A_FILE + "; test_postgres stops the server",
    "test_bench_measures_what_it_promises_and_leaves_nothing_behind": "without --store, bench measures a SQLite store",
    "test_bench_takes_a_plain_path_and_runs_only_the_parts_that_are_named": NAMED,
    "test_dev_goes_on_until_it_is_told_to_stop_and_takes_jobs_of_others": A_FILE,
    "test_dev_once_may_be_repeated": NAMED,
    "test_dev_once_runs_the_examples_and_ends_with_a_summary": NAMED,
    "test_dev_pays_no_heed_to_the_database_of_another_program": A_FILE,
    "test_job_list_tells_how_long_the_last_attempt_took_and_not_all_of_them": A_FILE,
    "test_programs_in_different_directories_meet_in_the_store_of_one_file": NAMED,
    "test_the_examples_are_short_enough_to_read_in_a_minute": "it uses no store",
}
# What asynq's layout has no place for: the store refuses it in words, which test_redis sees, or does it in asynq's way.
PRIORITY = "lacks PRIORITY: no numbers within a queue"
TYPE_FILTER = "lacks TYPE_FILTER: a job whose type nobody here handles is put off for 30 s, as asynq does, and does not stay pending"
NOT_ON_REDIS = {
    "test_a_batch_takes_every_field_and_the_flags_are_defaults": PRIORITY,
    "test_a_key_held_forever_outlives_its_job": "lacks UNIQUE_FOREVER",
    "test_a_list_of_queues_is_strict_and_the_first_wins": PRIORITY,
    "test_a_type_nobody_handles_stays_where_it_is": TYPE_FILTER,
    "test_counts_use_the_states_people_see": TYPE_FILTER,
    "test_dead_discard_removes_one_a_filter_or_all": TYPE_FILTER,
    "test_explain_no_worker_for_the_type": TYPE_FILTER,
    "test_higher_priority_runs_first_and_equals_in_the_order_they_were_due": PRIORITY,
    "test_nothing_a_lone_worker_prefetched_is_stranded_when_it_was_paused": PRIORITY,
    "test_replay_of_a_succeeded_job_is_a_new_job": PRIORITY,
    "test_without_a_key_the_same_work_is_the_same_key": "the key of a job that is given none is asynq's: of the payload's bytes",
}
NOT_REDIS_MODULES = ("test_signal",)  # wake-ups of stores that have none of their own through Redis


def pytest_configure(config):
    config.addinivalue_line("markers", "long: waits for long and is started first")


def is_chosen(item):
    module, name = item.module.__name__, item.originalname
    whose = next((store for store, prefix in OWN.items() if module.startswith(prefix)), None)
    if whose or STORE == "sqlite":
        return whose == STORE or (whose is None and STORE == "sqlite")
    if STORE == "redis" and (name in NOT_ON_REDIS or module in NOT_REDIS_MODULES):
        return False
    return module in ON_ALL and name not in SQLITE_ONLY


def pytest_terminal_summary(terminalreporter):
    if STORE == "redis":
        for name, why in sorted(NOT_ON_REDIS.items()):
            terminalreporter.write_line(f"left out on Redis: {name}: {why}")


def pytest_collection_modifyitems(config, items):
    left_out = [item for item in items if not is_chosen(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = long_first([item for item in items if is_chosen(item)])


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
def stint(request, tmp_path, binary, probe):
    fixture = {"postgres": "pg", "redis": "redis_store"}.get(STORE)
    kit = Stint(tmp_path, binary, probe, request.getfixturevalue(fixture).url() if fixture else None)
    yield kit
    kit.close()


@pytest.fixture(scope="session")
def pen():
    """Where servers are made; when it is closed they are gone."""
    pen = pgkit.Pen()
    yield pen
    pen.close()


@pytest.fixture(scope="session")
def cluster(pen):
    """The server of this process's tests, one after the other: they may stop and start it."""
    return pgkit.Cluster(pen)


numbers = itertools.count()


@pytest.fixture
def pg(cluster):
    """A schema of the test's own."""
    if not cluster.running:  # a test has failed in the middle of something
        cluster.start()
    db = pgkit.Db(cluster, f"t_{next(numbers)}")
    yield db
    db.drop()


@pytest.fixture(scope="session")
def redis_pen():
    """Where Redis servers are made; when it is closed they are gone."""
    pen = rediskit.Pen()
    yield pen
    pen.close()


@pytest.fixture(scope="session")
def redis_server(redis_pen):
    """The server of this process's tests, one after the other: they may stop and start it."""
    return rediskit.Server(redis_pen)


@pytest.fixture
def redis_store(redis_server):
    """That server, empty."""
    if not redis_server.running:
        redis_server.start()
    redis_server("FLUSHALL")
    return redis_server


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


def mounted(disk, user, group):
    """Mounts a small tmpfs for that user, for as long as the fixture lives."""
    disk.mkdir()
    options = f"size=4m,uid={user},gid={group},mode=700"
    if not as_root("mount", "-t", "tmpfs", "-o", options, "stint-test", disk):
        pytest.skip("a small disk needs mount: run as root or with sudo")
    yield disk
    as_root("mount", "-o", "remount,rw", disk)
    assert as_root("umount", "-l", disk)


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a small tmpfs and gives its path; remount(options) changes it."""
    yield from mounted(tmp_path / "disk", os.geteuid(), os.getegid())


@pytest.fixture
def server_disk(pen):
    """One for a PostgreSQL server.  Not below tmp_path: every pytest that starts closes that to other users, also for those
    that run already."""
    yield from mounted(pen.folder() / "disk", pen.who.get("user", os.geteuid()), pen.who.get("group", os.getegid()))


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
