"""An index that is used in a forked child, where OpenMP's threads are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_encoder import FakeEncoder

from embedkit.index import Document, Index

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
import os, sys, threading, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")
from fake_encoder import FakeEncoder
from embedkit import forking
from embedkit.index import Document, Index

forking._PATIENCE = float(sys.argv[4])
documents = [Document(f"the whales sing {n} " + "a" * 100, f"d{n}", {"n": n}) for n in range(200)]
index = Index.build(sys.argv[2], documents, FakeEncoder(), language="german")
parent, stop = os.getpid(), threading.Event()
began = threading.Event()

def search():
    while not stop.is_set():
        began.set()
        index.search(f"whales {os.urandom(2).hex()}", 3, where=f"text like '{sys.argv[3]}' or n = {os.urandom(2)[0]}")

threads = [threading.Thread(target=search) for _ in range(2)]
[thread.start() for thread in threads]
began.wait()
codes = []
for _ in range(8):
    if (child := os.fork()) == 0:
        assert index.search("whales", 3, where="n = 12")[0][0].id == "d12"
        assert index.search("whales singing", 3) and index.get("d3")
        sys.exit()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
[thread.join() for thread in threads]
print(codes)
"""


@pytest.mark.parametrize(
    ("pattern", "patience"),
    [("%whale", 1.0), ("%a%a%a%b", 0.0)],  # calls of a millisecond, and conditions of seconds
)
def test_a_child_searches_that_is_forked_while_other_threads_search(
    tmp_path: Path, pattern: str, patience: float
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SEARCHING, str(TESTS), str(tmp_path / "index"), pattern, str(patience)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        pytest.fail("a child hangs")
    assert out == f"{[0] * 8}\n", err
