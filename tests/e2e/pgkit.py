# SPDX-License-Identifier: Apache-2.0
"""Servers for the tests of the PostgreSQL store: real ones, each in a folder of its own, all gone afterwards.

    Pen         a folder for servers.  A guardian beside us ends what is left in it and removes it, however we end
    Cluster     a PostgreSQL server: unix socket, or a port of 127.0.0.1 too; a standby of another one
    PgBouncer   a pooler before one, in transaction mode
    Proxy       stands between a program and a server, knows the protocol, and is as bad a network as a test wants
    Db          a schema on a server, for one test
    Session     SQL, by libpq itself: one connection, which may be left in the middle of a transaction

STINT_PG_BIN names the folder of the server's programs; without it, it is the newest of /usr/lib/postgresql.
"""

import contextlib
import ctypes
import ctypes.util
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kit import alive, until  # noqa: E402

# Nothing here outlives the machine, so nothing is synced to a disk; a killed server loses nothing all the same.
SETTINGS = {
    "fsync": "off", "full_page_writes": "off", "synchronous_commit": "on", "max_connections": "100", "shared_buffers": "32MB",
    "max_wal_size": "256MB", "log_min_messages": "warning", "logging_collector": "off", "autovacuum_naptime": "10s",
    "timezone": "UTC", "log_timezone": "UTC", "log_line_prefix": "'%m [%p] %a '",
}
HBA = """local all locked scram-sha-256
host all locked 127.0.0.1/32 scram-sha-256
local all all trust
host all all 127.0.0.1/32 trust
local replication all trust
host replication all 127.0.0.1/32 trust
"""
BOUNCER = """[databases]
* = host={host} port={port} user=postgres
[pgbouncer]
listen_addr =
listen_port = {own}
unix_socket_dir = {top}
auth_type = any
pool_mode = transaction
max_client_conn = 200
default_pool_size = 20
ignore_startup_parameters = extra_float_digits
pidfile = {top}/pid
"""


def find_bin():
    given = os.environ.get("STINT_PG_BIN")
    if given:
        return Path(given)
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: float(p.parts[-3]))
    assert found, "no PostgreSQL server is installed; run `scripts/deps test`, or set STINT_PG_BIN"
    return found[-1].parent


def server_user():
    """initdb refuses root: who runs the servers, as Popen wants to know it."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            who = pwd.getpwnam(name)
            return {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
    raise AssertionError("there is neither a user postgres nor nobody to run the server as")


def clean_env():
    """Nothing of the caller's that steers a server or a client."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("PG")}, "LC_ALL": "C", "TZ": "UTC"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tail(path, size=3000):
    return path.read_text(errors="replace")[-size:] if path.exists() else "(no log)"


# ---- a folder, and who cleans it ----------------------------------------------------------------


class Pen:
    def __init__(self):
        self.bin, self.who, self.n = find_bin(), server_user(), 0
        self.top = Path(tempfile.mkdtemp(prefix="stint-e2e-", dir="/tmp"))  # a socket's path has at most 107 bytes
        self.top.chmod(0o755)
        self.guard = subprocess.Popen([sys.executable, "-B", __file__, self.top], stdin=subprocess.PIPE,
                                      start_new_session=True)
        self.template = self.folder() / "data"
        self.run("initdb", "-D", self.template, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N",
                 "--wal-segsize=4")
        (self.template / "pg_hba.conf").write_text(HBA)

    def folder(self):
        """A new one, in which servers may write."""
        path = self.top / str(self.n)
        self.n += 1
        path.mkdir(mode=0o755)
        if self.who:
            os.chown(path, self.who["user"], self.who["group"])
        return path

    def run(self, program, *args):
        done = subprocess.run([str(self.bin / program), *map(str, args)], cwd="/", env=clean_env(), **self.who,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, f"{program} ended with {done.returncode}: {done.stdout.decode(errors='replace')}"

    def close(self):
        self.guard.stdin.close()
        self.guard.wait(60)
        assert not self.top.exists(), f"{self.top} is left"


def ours(pid_file, top):
    """The process a pid file names, if it is one of this folder's."""
    try:
        pid = int(pid_file.read_text().split()[0])
        return pid if str(top).encode() in Path(f"/proc/{pid}/cmdline").read_bytes() else None
    except (OSError, ValueError, IndexError):
        return None


def clean(top):
    found = [(pid, file) for pattern in ("*/data/postmaster.pid", "*/pid") for file in top.glob(pattern)
             if (pid := ours(file, top))]
    for wave in (signal.SIGQUIT, signal.SIGKILL):
        for pid, _ in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, wave)
                os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 10
        while any(alive(pid) for pid, _ in found) and time.monotonic() < deadline:
            time.sleep(0.02)
    for _ in range(50):  # a backend may still be writing its last file
        shutil.rmtree(top, ignore_errors=True)
        if not top.exists():
            return
        time.sleep(0.1)


def guard_main(top):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()  # nobody writes: it returns when our maker is gone or has had enough
    clean(Path(top))


# ---- SQL -------------------------------------------------------------------------------------------


def load_libpq():
    lib = ctypes.CDLL(ctypes.util.find_library("pq") or "libpq.so.5")
    for name, result, *args in (
            ("PQconnectdb", ctypes.c_void_p, ctypes.c_char_p), ("PQstatus", ctypes.c_int, ctypes.c_void_p),
            ("PQerrorMessage", ctypes.c_char_p, ctypes.c_void_p), ("PQfinish", None, ctypes.c_void_p),
            ("PQexec", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p), ("PQresultStatus", ctypes.c_int, ctypes.c_void_p),
            ("PQntuples", ctypes.c_int, ctypes.c_void_p), ("PQnfields", ctypes.c_int, ctypes.c_void_p),
            ("PQgetisnull", ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
            ("PQgetvalue", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int), ("PQclear", None, ctypes.c_void_p)):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, args
    return lib


class SqlError(Exception):
    """The server, or the way to it, said no."""


class Session:
    libpq = None

    def __init__(self, conninfo):
        Session.libpq = Session.libpq or load_libpq()
        self.c = self.libpq.PQconnectdb(conninfo.encode())
        if self.libpq.PQstatus(self.c) != 0:
            why = self.libpq.PQerrorMessage(self.c).decode(errors="replace")
            self.close()
            raise SqlError(why)

    def __call__(self, sql):
        """Rows of texts (None = NULL) of the last statement."""
        pq, r = self.libpq, self.libpq.PQexec(self.c, sql.encode())
        try:
            if pq.PQresultStatus(r) not in (1, 2):  # PGRES_COMMAND_OK, PGRES_TUPLES_OK
                raise SqlError(f"{pq.PQerrorMessage(self.c).decode(errors='replace')}in: {sql}")
            return [[None if pq.PQgetisnull(r, i, k) else pq.PQgetvalue(r, i, k).decode() for k in range(pq.PQnfields(r))]
                    for i in range(pq.PQntuples(r))]
        finally:
            pq.PQclear(r)

    def close(self):
        if self.c:
            self.libpq.PQfinish(self.c)
        self.c = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


# ---- servers ------------------------------------------------------------------------------------------


class Where:
    """Anything that can be connected to: host is the folder of a unix socket, or an address."""

    host, port = None, 5432

    def url(self, schema=None, user="postgres", database="postgres", **more):
        if str(self.host).startswith("/"):
            url = f"postgres://{user}@/{database}?host={self.host}&port={self.port}"
        else:
            url = f"postgres://{user}@{self.host}:{self.port}/{database}?sslmode=disable"
        return url + "".join(f"&{k}={v}" for k, v in {**({"schema": schema} if schema else {}), **more}.items())

    def session(self, user="postgres", database="postgres"):
        return Session(f"host={self.host} port={self.port} user={user} dbname={database} sslmode=disable connect_timeout=10")

    def sql(self, text, **how):
        with self.session(**how) as session:
            return session(text)

    def value(self, text, **how):
        return self.sql(text, **how)[0][0]


def url_of(places, schema, **more):
    """One URL for several places, in this order."""
    hosts, ports = (",".join(str(getattr(place, name)) for place in places) for name in ("host", "port"))
    more = {"host": hosts, "port": ports, "sslmode": "disable", "schema": schema, **more}
    return "postgres://postgres@/postgres?" + "&".join(f"{k}={v}" for k, v in more.items())


class Cluster(Where):
    def __init__(self, pen, tcp=False, start=True, **settings):
        self.pen, self.top = pen, pen.folder()
        self.data, self.log, self.process = self.top / "data", self.top / "log", None
        self.settings = {**SETTINGS, **settings}
        if tcp:
            self.host, self.port = "127.0.0.1", free_port()
        else:
            self.host = self.top
        self.settings["listen_addresses"] = f"'{'127.0.0.1' if tcp else ''}'"
        subprocess.run(["cp", "-a", str(pen.template), str(self.data)], check=True)
        if start:
            self.start()

    def spawn(self):
        argv = [self.pen.bin / "postgres", "-D", self.data, "-k", self.top, "-p", self.port]
        conf = "".join(f"{name} = {value}\n" for name, value in self.settings.items())
        (self.data / "postgresql.auto.conf").write_text(conf)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(list(map(str, argv)), cwd="/", env=clean_env(), stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, start_new_session=True, **self.pen.who)

    def ready(self):
        """Does it take connections?  False also when it has ended."""
        try:
            lines = (self.data / "postmaster.pid").read_text().split("\n")
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self.process.pid) and lines[7].strip() in ("ready", "standby")

    def start(self, **settings):
        self.settings.update(settings)
        self.spawn()

        def up():
            if self.process.poll() is not None:  # what a killed one left may not be gone yet
                assert "still in use" in tail(self.log) or "lock file" in tail(self.log), f"no server:\n{tail(self.log)}"
                time.sleep(0.1)
                self.spawn()
            return self.ready()
        until(up, lambda: f"the server to start:\n{tail(self.log)}")

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    def stop(self, how=signal.SIGINT):
        """SIGINT fast, SIGQUIT immediate, SIGKILL as if the power were cut: no word to anybody."""
        if self.running:
            self.process.send_signal(how)
            self.process.wait(60)

    def restart(self, how=signal.SIGINT, **settings):
        self.stop(how)
        self.start(**settings)

    def backends(self, name="stint"):
        """Pids of the sessions of that application_name."""
        rows = self.sql(f"SELECT pid FROM pg_stat_activity WHERE application_name = '{name}' ORDER BY pid")
        return [int(row[0]) for row in rows]

    def terminate(self, name="stint"):
        """Ends those sessions; how many there were."""
        return int(self.value("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                              f"WHERE application_name = '{name}' AND pid <> pg_backend_pid()"))

    # ---- replication ----

    def follow(self, primary):
        """Becomes a standby of one that has never run: their folders are copies of each other."""
        host = primary.top if primary.host == primary.top else primary.host
        self.settings["primary_conninfo"] = f"'host={host} port={primary.port} user=postgres application_name=standby'"
        (self.data / "standby.signal").touch()
        self.start()

    def promote(self):
        self.sql("SELECT pg_promote(true, 30)")
        until(lambda: self.value("SELECT pg_is_in_recovery()") == "f", "the standby to be promoted")


class Db:
    """A schema of its own on a server; {s} in SQL stands for it."""

    def __init__(self, cluster, schema):
        self.cluster, self.schema = cluster, schema

    def url(self, where=None, **more):
        return (where or self.cluster).url(self.schema, **more)

    def sql(self, text, **how):
        return self.cluster.sql(text.replace("{s}", self.schema), **how)

    def value(self, text, **how):
        return self.sql(text, **how)[0][0]

    def drop(self):
        """Those who used it have been killed; their sessions may need a moment to notice."""
        if self.cluster.running:
            self.sql('SET client_min_messages = warning; DROP SCHEMA IF EXISTS "{s}" CASCADE')


def answers(path):
    """Does somebody listen on this unix socket?  It is there a moment before that."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


class PgBouncer(Where):
    """The pooler of a server, on a unix socket."""

    def __init__(self, pen, cluster, **settings):
        self.top = self.host = pen.folder()
        self.port = 6432
        program = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
        assert program, "pgbouncer is not installed; run `scripts/deps test`"
        ini = self.top / "pgbouncer.ini"
        ini.write_text(BOUNCER.format(host=cluster.host, port=cluster.port, own=self.port, top=self.top)
                       + "".join(f"{name} = {value}\n" for name, value in settings.items()))
        with open(self.top / "log", "wb") as log:
            self.process = subprocess.Popen([program, "-q", str(ini)], cwd="/", env=clean_env(), stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, start_new_session=True, **pen.who)
        until(lambda: answers(self.top / f".s.PGSQL.{self.port}"), lambda: f"pgbouncer to start: {tail(self.top / 'log')}")

    def close(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


# ---- a bad network ----------------------------------------------------------------------------------------

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
LAST_WORDS = b"SQHXp"  # after these a client waits for an answer, or leaves


class Cut:
    """The next `times` requests whose SQL has `word` end their connection.

    how: "before"  the server never sees it
         "during"  it is handed to the server, and both ends are closed at once: it may be done or not
         "after"   the server has done it, and not a byte of its answer arrives
         "late"    as "after", but the server sees it only when arrive() is called, however long the client is gone
    """

    def __init__(self, word, how, times):
        self.word, self.how, self.left, self.done = word.encode(), how, times, 0
        self.arrived, self.answered, self.answer = threading.Event(), threading.Event(), b""

    def arrive(self):
        """Lets a late one go on, and waits for what the server says to it."""
        self.arrived.set()
        until(self.answered.is_set, "the server's answer")
        return self.answer

    def stop(self):
        self.left = 0


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy, client):
        self.proxy, self.client, self.over = proxy, client, False
        self.server = socket.socket(socket.AF_UNIX if proxy.far[0] is None else socket.AF_INET)
        self.names = {}        # prepared statements: name -> SQL
        self.greeted = False   # the start-up packet is through
        self.bare = 0          # answers of one byte that are still to come
        self.deaf = None       # the cut whose answer is thrown away, up to its end

    def run(self):
        self.proxy.wait_open(self)
        try:
            self.server.connect(self.proxy.far[1])
        except OSError:
            self.close()
            return
        for work in (self.upward, self.downward):
            threading.Thread(target=self.guarded, args=(work,), daemon=True).start()

    def guarded(self, work):
        with contextlib.suppress(OSError, ValueError):  # either end has gone: that is what closing tells the other
            work()
        self.close()

    def close(self):
        self.over = True
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.proxy.forget(self)

    def chunk(self, end):
        data = end.recv(65536)
        self.proxy.wait_open(self)
        return data

    def upward(self):
        """Requests.  They go on when they are complete."""
        data, request, sql = b"", b"", []
        while more := self.chunk(self.client):
            data += more
            while (size := self.message_size(data)) and len(data) >= size:
                message, data = data[:size], data[size:]
                if not self.greeted:
                    self.greet(message)
                    continue
                request += message
                sql += self.sql_of(message)
                if message[0] in LAST_WORDS:
                    self.send_up(request, sql)
                    request, sql = b"", []

    def message_size(self, data):
        """0 = not known yet."""
        at = 1 if self.greeted else 0
        return at + struct.unpack_from("!i", data, at)[0] if len(data) >= at + 4 else 0

    def greet(self, message):
        """What comes first has a form of its own."""
        if struct.unpack_from("!i", message, 4)[0] in (SSL_REQUEST, GSS_REQUEST):
            self.bare += 1
        else:
            self.greeted = True
        self.server.sendall(message)

    def sql_of(self, message):
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return [body]
        if kind == b"P":
            name, text = body.split(b"\0")[:2]
            self.names[name] = text
            return [text]
        if kind == b"B":
            return [self.names.get(body.split(b"\0")[1], b"")]
        return []

    def send_up(self, request, sql):
        cut = self.proxy.cut_for(sql)
        if cut and cut.how == "before":
            raise OSError("cut")
        if cut and cut.how in ("after", "late"):  # and so it stays: more may be asked before the answer comes
            self.deaf = cut
        if cut and cut.how == "late":
            cut.arrived.wait()
        self.server.sendall(request)
        if cut and cut.how == "late":
            cut.answered.wait(30)  # the client has long gone: that must not end the link
        if cut and cut.how == "during":
            raise OSError("cut")

    def downward(self):
        """Answers: whole messages, so that the end of one can be seen."""
        data = b""
        while more := self.chunk(self.server):
            data += more
            out = b""
            while data and (self.bare or (len(data) >= 5 and len(data) > struct.unpack_from("!i", data, 1)[0])):
                size = 1 if self.bare else 1 + struct.unpack_from("!i", data, 1)[0]
                self.bare -= 1 if self.bare else 0
                out, last, data = out + data[:size], data[:1], data[size:]
                if self.deaf and last == b"Z":
                    self.deaf.answer += out
                    self.deaf.answered.set()
                    raise OSError("cut")
            if self.deaf:
                self.deaf.answer += out
            else:
                self.client.sendall(out)


class Proxy(Where):
    def __init__(self, pen, cluster, tcp=False):
        self.far = (None, f"{cluster.host}/.s.PGSQL.{cluster.port}") if str(cluster.host).startswith("/") else \
            (socket.AF_INET, (cluster.host, cluster.port))
        self.lock = threading.Condition()
        self.links, self.cuts, self.closed, self.listener = set(), [], False, None
        self.held, self.delay = False, 0.0
        self.accepted = 0
        if tcp:
            self.host, self.port = "127.0.0.1", free_port()
        else:
            self.host = pen.folder()
        self.mend()

    # ---- what a test can do to it ----

    def mend(self):
        """Connections are taken, and pass."""
        with self.lock:
            self.held = False
            self.lock.notify_all()
            if self.listener:
                return
            if self.host == "127.0.0.1":
                self.listener = socket.create_server((self.host, self.port), backlog=100)
            else:
                self.listener = socket.socket(socket.AF_UNIX)
                path = self.host / f".s.PGSQL.{self.port}"
                path.unlink(missing_ok=True)
                self.listener.bind(str(path))
                path.chmod(0o777)
                self.listener.listen(100)
            threading.Thread(target=self.accept, args=(self.listener,), daemon=True).start()

    def hold(self):
        """Not a byte passes, nobody is told: a network that has gone, or a firewall."""
        with self.lock:
            self.held = True

    def cut(self):
        """Every connection ends; new ones are refused until mend()."""
        with self.lock:
            listener, self.listener = self.listener, None
        if listener:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if self.host != "127.0.0.1":
            (self.host / f".s.PGSQL.{self.port}").unlink(missing_ok=True)
        self.drop()

    def drop(self):
        """Every connection ends; new ones are taken."""
        for link in list(self.links):
            link.close()

    def cut_next(self, word, how="after", times=1):
        cut = Cut(word, how, times)
        with self.lock:
            self.cuts.append(cut)
        return cut

    def close(self):
        self.closed = True
        for cut in self.cuts:
            cut.arrived.set()
        self.cut()
        with self.lock:
            self.lock.notify_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- for its links ----

    def accept(self, listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            link = Link(self, client)
            with self.lock:
                self.links.add(link)
                self.accepted += 1
            threading.Thread(target=link.run, daemon=True).start()

    def forget(self, link):
        with self.lock:
            self.links.discard(link)
            self.lock.notify_all()

    def wait_open(self, link):
        if self.delay:
            time.sleep(self.delay)
        with self.lock:
            while self.held and not self.closed and not link.over and not (link.deaf and link.deaf.arrived.is_set()):
                self.lock.wait()

    def cut_for(self, sql):
        with self.lock:
            for cut in self.cuts:
                if cut.left and any(cut.word in text for text in sql):
                    cut.left -= 1
                    cut.done += 1
                    return cut
        return None


if __name__ == "__main__":
    guard_main(sys.argv[1])
