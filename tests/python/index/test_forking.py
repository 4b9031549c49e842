"""An index that is used in a forked child, where OpenMP's threads are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit.index import Document, Index
from embedkit.index.storage.raw import FaissVectors

TESTS = Path(__file__).parents[1]

CODE = """
import os, sys, threading, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")
from fake_encoder import FakeEncoder
from embedkit.index import Document, Index

texts = [f"word{n % 97} cat{n % 31} dog{n}" for n in range(900)]
index = Index.build(sys.argv[2], texts, FakeEncoder(), factory=sys.argv[3], threads=4)
queries = [f"word{n} cat{n}" for n in range(40)]
before = [[hit.id for hit in hits] for hits in index.search(queries, 5)]
child = os.fork()
if child == 0:
    code = 1
    try:
        found = [[hit.id for hit in hits] for hits in index.search(queries, 5)]
        on_thread = []
        thread = threading.Thread(target=lambda: on_thread.append(index.search(queries, 5)))
        thread.start()
        thread.join()
        index.add([Document("a new text", "new")])
        code = 0 if found == before and on_thread and index.get("new") else 2
    finally:
        os._exit(code)
print(child, flush=True)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "HNSW8", "PQ4x4"])
def test_a_forked_child_searches_and_adds(tmp_path: Path, factory: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(TESTS), str(tmp_path / "index"), factory],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    begin = time.monotonic()
    try:
        out, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        out = process.communicate()[0]
        os.kill(int(out.split()[0]), signal.SIGKILL)
        pytest.fail(f"the child hangs ({time.monotonic() - begin:.0f} s)")
    assert out.split()[1:] == ["0"], err


WRITING = """
import os, sys
sys.path.insert(0, sys.argv[1])
from fake_encoder import FakeEncoder
from embedkit.index import Document, Index

class Forking(FakeEncoder):
    def encode_document(self, sentences, **options):
        if (child := os.fork()) == 0:  # while the index is locked
            if sentences == ["unwinds"]:
                raise KeyboardInterrupt
            os.read(ends[0], 1)
            os._exit(0)
        if sentences == ["unwinds"]:
            os.waitpid(child, 0)
            try:
                Index.open(sys.argv[2], FakeEncoder()).add([Document("other", "o")])
            except BlockingIOError:
                print("locked")
        return super().encode_document(sentences, **options)

Index.build(sys.argv[2], ["a cat"], FakeEncoder()).close()
ends = os.pipe()
index = Index.open(sys.argv[2], Forking())
index.add([Document("a dog", "d")])
Index.open(sys.argv[2], FakeEncoder()).add([Document("a hen", "h")])  # the child still sleeps
os.write(ends[1], b"x")
index.add([Document("unwinds", "u")])
print(len(index))
"""


def test_a_child_that_is_forked_while_an_index_is_written_keeps_no_lock(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WRITING, str(TESTS), str(tmp_path / "index")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["locked", "4"], done.stderr


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from fake_encoder import FakeEncoder
from embedkit.index import Document, Index

class Killed(FakeEncoder):
    def encode_document(self, sentences, **options):
        if (child := os.fork()) == 0:  # while the index is locked
            os.close(1), os.close(2)
            signal.pause()
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

Index.build(sys.argv[2], ["a cat"], FakeEncoder()).close()
Index.open(sys.argv[2], Killed()).add([Document("a dog", "d")])
"""


def test_a_killed_writer_gives_its_lock_back_though_a_forked_child_lives(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, str(TESTS), str(tmp_path / "index")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    try:
        with Index.open(tmp_path / "index", FakeEncoder()) as index:
            index.add([Document("a hen", "h")])
            assert len(index) == 2
    finally:
        os.kill(int(done.stdout), signal.SIGKILL)


SEARCHING = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
from fake_encoder import FakeEncoder
from embedkit import forking
from embedkit.index import Document, Index
from embedkit.index.storage import document_store

forking._PATIENCE = 50  # a child may hang if a fork did not wait, and this machine may be busy
document_store._MOST_SECONDS_LOST = 1000
documents = [Document(f"whales sing {n} " + "a" * 100, f"d{n}", {"n": n, "a": {"b": f"B{n}"}}) for n in range(200)]
index = Index.build(sys.argv[2], documents, FakeEncoder(), language="german")
parent, stop = os.getpid(), threading.Event()
began = threading.Event()

def search():
    while not stop.is_set():
        began.set()
        index.search(f"whales {os.urandom(2).hex()}", 3, where=f"{sys.argv[3]} or n = {os.urandom(2)[0]}")

def write():
    n = 0
    while not stop.is_set():
        began.set()
        index.add([Document(f"a new whale {n}", f"new{n}")])
        n += 1

targets = (search, search) if sys.argv[3] else (write,)
threads = [threading.Thread(target=target, daemon=True) for target in targets]
[thread.start() for thread in threads]
began.wait()
codes = []
for _ in range(4):
    if (child := os.fork()) == 0:
        assert index.search("whales", 3, where="n = 12")[0][0].id == "d12"
        assert index.search("whales singing", 3) and index.get("d3")
        sys.exit()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
[thread.join() for thread in threads]
print(codes)
"""


# A child that hangs says where, and ends, whoever still waits for it; on a slow machine others take a minute.
WATCHED = """
import faulthandler, os
os.register_at_fork(after_in_child=lambda: faulthandler.dump_traceback_later(240, exit=True))
"""


def run(code: str, *arguments: str) -> tuple[str, str]:
    """What Python ``code`` writes to its two outputs; it fails if it or its children hang."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", WATCHED + code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"a child hangs: {process.communicate()[1]}")


# calls of a millisecond, a condition that takes SQLite's memory again and again, and one that a fork interrupts
CONDITIONS = [
    "text like '%whale'",
    " and ".join(["lower(a.b) || upper(a.b) != ''"] * 400),
    "text like '%a%a%a%b'",
]


@pytest.mark.parametrize("condition", CONDITIONS, ids=["short", "of memory", "long"])
def test_a_child_searches_that_is_forked_while_other_threads_search(tmp_path: Path, condition: str) -> None:
    out, err = run(SEARCHING, str(TESTS), str(tmp_path / "index"), condition)
    assert out == f"{[0] * 4}\n", err


def test_a_child_searches_that_is_forked_while_another_thread_writes(tmp_path: Path) -> None:
    out, err = run(SEARCHING, str(TESTS), str(tmp_path / "index"), "")
    assert out == f"{[0] * 4}\n", err


NEW_LOCKS = """
import os, threading
from embedkit import forking

class Owner:
    def __init__(self):
        self.lock = forking.fork_lock(lose=self.lose)

    def lose(self):
        os._exit(3)

forking._PATIENCE = 20.0
owners = [Owner()]
began, waits = threading.Event(), threading.Event()
os.register_at_fork(before=waits.set)  # runs before those of `forking`

def work():
    with owners[0].lock:
        began.set()
        waits.wait()
        owners.append(Owner())
        owners[1].lock.acquire()
    threading.Event().wait(0.3)
    owners.append(Owner())
    with owners[2].lock:
        owners[1].lock.release()
        threading.Event().wait(0.3)

thread = threading.Thread(target=work)
thread.start()
began.wait()
if (child := os.fork()) == 0:
    os._exit(0)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_waits_for_locks_that_are_made_while_it_waits() -> None:
    out, err = run(NEW_LOCKS)
    assert out == "0\n", err


HIDDEN = """
import ctypes
ctypes.PyDLL = lambda name: object()
import embedkit.index
print("imported")
"""


def test_an_index_works_where_python_hides_the_names_of_sqlite() -> None:
    assert run(HIDDEN)[0] == "imported\n"


SLOW = """
import os, shutil, sys, threading, time
sys.path.insert(0, sys.argv[1])
from fake_encoder import FakeEncoder
from embedkit import forking
from embedkit.index import Document, Index, IndexDamagedError
from embedkit.index.storage import document_store

forking._PATIENCE = float(sys.argv[3])
document_store._MOST_SECONDS_LOST = 1000
begun, ended = [], threading.Event()

def slow(text, *_):
    if text == "whales 0":
        begun.append(text)
    if not ended.is_set():
        time.sleep(0.01)
    return text

def wait_for(times):
    while len(begun) < times:
        time.sleep(0.01)

document_store._replace = slow
index = Index.build(sys.argv[2], [Document(f"whales {n}", f"d{n}", {"n": n}) for n in range(6000)], FakeEncoder())
found = []
search = lambda: found.append(index.search("whales", where="replace(text, 'x', 'y') is not null and n > 5997"))
thread = threading.Thread(target=search)
thread.start()
wait_for(1)

def forked(child):
    begin = time.monotonic()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            code = child() or 0
        finally:
            os._exit(code)
    took = time.monotonic() - begin
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), took < 30)
"""

INTERRUPTED = """
def searches():
    assert {hit.id for hit in index.search("whales", where="n < 2")[0]} == {"d0", "d1"}
    assert index.get("d3")

for times, child in enumerate((lambda: None, searches, index.close), 2):
    forked(child)
    wait_for(times)
document_store._MOST_SECONDS_LOST = 0
forked(lambda: None)
wait_for(5)
forking._PATIENCE = 0.5
forked(lambda: None)
ended.set()
thread.join()
print(sorted(hit.id for hit in found[0][0]), len(begun))
"""


def test_a_condition_that_forks_interrupt_begins_again_but_not_forever(tmp_path: Path) -> None:
    out, err = run(SLOW + INTERRUPTED, str(TESTS), str(tmp_path / "index"), "50")
    assert out == "0 True\n" * 5 + "['d5998', 'd5999'] 5\n", err


LOST = """
def searches():
    assert index.get("d3") and len(index.search("whales", where="n < 2")[0]) == 2

def gone():
    for _ in range(2):
        try:
            index.get("d3")
        except IndexDamagedError as error:
            assert "gone since this process was forked" in str(error)
        else:
            return 2
    index.close()

forked(searches)
forked(index.close)
shutil.rmtree(sys.argv[2])
forked(gone)
ended.set()
"""


def test_a_child_opens_the_file_again_only_when_it_reads(tmp_path: Path) -> None:
    out, err = run(SLOW + LOST, str(TESTS), str(tmp_path / "index"), "0")
    assert out == "0 True\n" * 3, err


LOCKS = """
import os, threading
from embedkit import forking

class Owner:
    def __init__(self):
        self.free, self.busy = forking.fork_lock(), forking.fork_lock(lose=self.lose)
        self.lost = 0

    def lose(self):
        self.lost = 1

forking._PATIENCE = 20.0
owner, began, waits = Owner(), threading.Event(), threading.Event()
os.register_at_fork(before=waits.set)  # runs before those of `forking`

def work():
    with owner.busy:
        began.set()
        waits.wait()
        if not owner.free.acquire(timeout=10):
            os._exit(3)
        owner.free.release()

thread = threading.Thread(target=work)
thread.start()
began.wait()
if (child := os.fork()) == 0:
    os._exit(owner.lost)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_that_waits_for_a_lock_holds_no_free_one() -> None:
    out, err = run(LOCKS)
    assert out == "0\n", err


MANY = """
import os, threading, time
from contextlib import ExitStack
from embedkit import forking

forking._PATIENCE = 0.1
locks = [forking.fork_lock() for _ in range(60)]
began, ended = threading.Event(), threading.Event()

def work():
    with ExitStack() as stack:
        [stack.enter_context(lock) for lock in locks]
        began.set()
        ended.wait()

threading.Thread(target=work, daemon=True).start()
began.wait()
begin = time.monotonic()
if (child := os.fork()) == 0:
    os._exit(not all(lock.acquire(blocking=False) for lock in locks))
took = time.monotonic() - begin
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), took < 4)
"""


def test_a_fork_waits_no_longer_for_many_locks() -> None:
    out, err = run(MANY)
    assert out == "0 True\n", err


BRIEF = """
import os, threading, time
from embedkit import forking

class Owner:
    def __init__(self):
        self.lock = forking.fork_lock(self.hurry, self.lose)
        self.hurried = self.lost = 0

    def hurry(self):
        self.hurried += 1

    def lose(self):
        self.lost = 1

forking._PATIENCE = 0.1
long, brief = [Owner() for _ in range(3)], Owner()
began = threading.Barrier(5)

def hold(owner):
    with owner.lock:
        began.wait()
        threading.Event().wait()

def work():
    began.wait()
    while True:
        with brief.lock:
            time.sleep(0.002)

for owner in long:
    threading.Thread(target=hold, args=(owner,), daemon=True).start()
threading.Thread(target=work, daemon=True).start()
began.wait()
children = []
for _ in range(6):
    if (child := os.fork()) == 0:
        os._exit(2 if not all(owner.lost for owner in long) else brief.lost)
    children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(children.count(0) > 3, 2 in children, all(owner.hurried for owner in long))
"""


def test_a_fork_waits_for_a_lock_that_is_held_briefly_beside_others_held_long() -> None:
    out, err = run(BRIEF)
    assert out == "True False True\n", err


def test_a_map_that_a_fork_left_half_made_is_made_anew() -> None:
    faiss = pytest.importorskip("faiss")
    vectors = np.random.default_rng(0).random((300, 8), np.float32)
    index = faiss.index_factory(8, "IVF2,Flat")
    index.train(vectors)
    index.add(vectors)
    index.make_direct_map()
    positions = faiss.vector_to_array(index.direct_map.array)
    positions[150:] = -1
    faiss.copy_array_to_vector(positions, index.direct_map.array)
    assert np.array_equal(FaissVectors([index], [0, 300], 8).gather(np.arange(300)), vectors)
