# SPDX-License-Identifier: Apache-2.0
"""pgserver.py - a PostgreSQL server that is thrown away: its own folder, a unix socket, no port, durable.

    with pgserver.server() as pg:
        pg.sql("SELECT 1")
        subprocess.run(..., env=pg.env())

As root it runs as the user postgres, since initdb refuses root.  The folder is below /var/tmp, which is a disk and can be reached by
that user; another is named by `where` or STINT_PG_DIR.  `fsync` and `synchronous_commit` stay on.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTINGS = {
    "listen_addresses": "''", "shared_buffers": "1GB", "max_wal_size": "8GB", "min_wal_size": "1GB", "fsync": "on",
    "synchronous_commit": "on", "full_page_writes": "on", "checkpoint_timeout": "15min", "max_connections": "300",
    "logging_collector": "off", "log_min_messages": "error",
}


def find_bin():
    """The newest server that is installed; STINT_PG_BIN names another."""
    if os.environ.get("STINT_PG_BIN"):
        return Path(os.environ["STINT_PG_BIN"])
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: float(p.parts[-3]))
    if found:
        return found[-1].parent
    where = shutil.which("initdb")
    if not where:
        sys.exit("bench: no PostgreSQL server is installed; run `make deps` (apt: postgresql)")
    return Path(where).resolve().parent


class Server:
    def __init__(self, folder, settings):
        self.folder = Path(folder)
        self.data = self.folder / "data"
        self.bin = find_bin()
        self.settings = {**SETTINGS, **settings}
        self.as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        self.databases = 0

    def call(self, *argv):
        done = subprocess.run([*self.as_user, *map(str, argv)], cwd="/", capture_output=True, text=True)
        if done.returncode != 0:
            log = self.folder / "log"
            more = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            sys.exit(f"bench: {argv[0]}: exit {done.returncode}\n{done.stdout}{done.stderr}{more}")

    def start(self):
        self.folder.chmod(0o700)
        if self.as_user:
            shutil.chown(self.folder, "postgres", "postgres")
        self.call(self.bin / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "--no-instructions",
                  "-E", "UTF8", "--locale=C.UTF-8")
        lines = [f"{name} = {value}" for name, value in self.settings.items()]
        lines.append(f"unix_socket_directories = '{self.folder}'")
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        self.call(self.bin / "pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "-t", "60", "start")
        if self.as_user:  # root connects through a socket in a folder of postgres
            self.folder.chmod(0o755)

    def stop(self):
        subprocess.run([*self.as_user, str(self.bin / "pg_ctl"), "-D", str(self.data), "-m", "immediate", "-w", "stop"],
                       cwd="/", capture_output=True)

    # ---- talking to it -----------------------------------------------------------------------------

    def env(self, database="postgres"):
        return {**os.environ, "PGHOST": str(self.folder), "PGPORT": "5432", "PGUSER": "postgres", "PGDATABASE": database,
                "PGSSLMODE": "disable"}

    def url(self, database="postgres"):
        return f"postgres:///{database}?host={self.folder}&user=postgres"

    def conninfo(self, database="postgres"):
        return f"host={self.folder} user=postgres dbname={database}"

    def psql(self, database, *args, stdin=None):
        done = subprocess.run([str(self.bin / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", *args], input=stdin, text=True,
                              capture_output=True, env=self.env(database))
        if done.returncode != 0:
            sys.exit(f"bench: psql: {done.stderr}")
        return done.stdout.strip()

    def sql(self, text, database="postgres"):
        return self.psql(database, stdin=text)

    def database(self, prefix="bench"):
        """A new, empty one."""
        self.databases += 1
        name = f"{prefix}_{self.databases}"
        self.sql(f"CREATE DATABASE {name}")
        return name

    def drop(self, name):
        self.sql(f"DROP DATABASE {name} WITH (FORCE)")

    def wal(self):
        """Bytes of log ever written."""
        return int(self.sql("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8"))

    def settle(self):
        """What the last measurement left to write is written, so that the next does not pay for it."""
        self.sql("CHECKPOINT")

    def clients(self, pid):
        """Are there connections, or processes that have ended and are not yet counted?"""
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                title = Path(f"/proc/{child}/cmdline").read_bytes()
                if not title or b"[local]" in title:
                    return True
        return False

    def children_us(self):
        """CPU that the server's processes have used, those that have ended; waits for connections to end."""
        pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        for _ in range(300):
            if not self.clients(pid):
                break
            time.sleep(0.01)
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[13]) + int(fields[14])) * 1e6 / os.sysconf("SC_CLK_TCK")

    def version(self):
        return self.sql("SHOW server_version")


@contextlib.contextmanager
def huge_pages(megabytes=1280):
    """So much memory in huge pages, as PostgreSQL's documentation recommends for many connections; needs root."""
    knob = Path("/proc/sys/vm/nr_hugepages")
    size = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Hugepagesize"))
    was, want = knob.read_text(), megabytes * 1024 // size
    try:
        knob.write_text(str(want))
        if int(knob.read_text()) < want:
            sys.exit(f"bench: the kernel gives {knob.read_text().strip()} huge pages of {size} kB, not {want}: free some memory")
        yield
    except PermissionError:
        sys.exit("bench: huge pages are for root to reserve")
    finally:
        with contextlib.suppress(PermissionError):
            knob.write_text(was)


@contextlib.contextmanager
def server(where=None, **settings):
    where = Path(where or os.environ.get("STINT_PG_DIR") or "/var/tmp")
    folder = tempfile.mkdtemp(prefix="stint-pg-", dir=where)
    s = Server(folder, {k: str(v) for k, v in settings.items()})
    try:
        s.start()
        yield s
    finally:
        s.stop()
        shutil.rmtree(folder, ignore_errors=True)
