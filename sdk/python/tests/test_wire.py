# SPDX-License-Identifier: Apache-2.0
"""The pipes, where a whole child cannot show it."""

import os
import threading
import time

from stint._codec import LINE_MAX
from stint._wire import HELD_MAX, Inbox, Outbox


def test_lines_wait_in_bounded_numbers_while_nobody_reads():
    here, there = os.pipe()
    box = Outbox(there)
    large = b"y" * (1 << 20) + b"\n"
    lines = [b"%07d\n" % n for n in range(5000)]
    most = []
    stuck = threading.Thread(target=box.put, args=(large,))
    stuck.start()
    while not box._writing:
        time.sleep(0)

    def produce():
        for line in lines:
            box.hold(line)
            most.append(len(box._lines))
        box.drain()
        os.close(there)

    thread = threading.Thread(target=produce)
    thread.start()
    while len(box._lines) < HELD_MAX:
        time.sleep(0)
    data = b""
    while True:
        chunk = os.read(here, 1 << 16)
        if not chunk:
            break
        data += chunk
    thread.join()
    stuck.join()
    os.close(here)
    assert data == large + b"".join(lines)
    assert max(most) <= HELD_MAX


def test_threads_write_whole_lines():
    here, there = os.pipe()
    box = Outbox(there)

    def produce(n):
        for i in range(300):
            (box.hold if i % 3 else box.put)(b"%d " % n + b"y" * (i * 20) + b"\n")

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
    got = []
    reader = threading.Thread(target=lambda: got.extend(os.fdopen(here, "rb").readlines()))
    for t in [reader, *threads]:
        t.start()
    for t in threads:
        t.join()
    box.drain()
    os.close(there)
    reader.join()
    for n in range(4):
        mine = [line for line in got if line.startswith(b"%d " % n)]
        assert mine == [b"%d " % n + b"y" * (i * 20) + b"\n" for i in range(300)]


def test_a_broken_pipe_is_remembered_and_nothing_hangs():
    here, there = os.pipe()
    os.close(here)
    box = Outbox(there)
    for _ in range(2000):
        box.hold(b"line\n")
    box.put(b"line\n")
    box.drain()
    assert box.broken
    os.close(there)


def read_all(pieces):
    here, there = os.pipe()
    inbox = Inbox(here)
    lines = []
    for piece in pieces:
        while piece:
            piece = piece[os.write(there, piece[:30_000]) :]
            lines += inbox.read()
    os.close(there)
    while not inbox.eof:
        lines += inbox.read()
    os.close(here)
    return lines


def test_lines_come_whole_however_the_bytes_are_cut():
    text = b"one\ntwo\n\n" + b"z" * 100_000 + b"\nlast"
    whole = text.split(b"\n")
    assert read_all([text]) == whole
    assert read_all([bytes([b]) for b in text[:20]]) == text[:20].split(b"\n")[:-1] + [text[9:20]]
    assert read_all([text[:2], text[2:8], text[8:50_000], text[50_000:]]) == whole
    assert read_all([]) == []
    assert read_all([b"a\n"]) == [b"a"]


def test_a_line_that_is_too_long_is_not_kept_whole():
    lines = read_all([b"before\n", b"x" * (LINE_MAX + 1_000_000), b"\nafter\n"])
    assert [lines[0], lines[2]] == [b"before", b"after"]
    assert len(lines[1]) == LINE_MAX + 1
