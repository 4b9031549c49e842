"""Builds killed at any point resume, with the result of an uninterrupted build."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder
from peak_memory import PEAK_KIB, needs_peak

from embedkit import Encoder
from embedkit.index import BuildError, Document, Index, IndexExistsError, InputError, ResumeError
from embedkit.index.auto.result import Choice
from embedkit.index.build import build as building
from embedkit.index.build import encode, staging
from embedkit.index.build.memory import resident
from embedkit.index.build.resume import resumable_rows
from embedkit.index.build.settings import Progress
from embedkit.index.search import searcher
from embedkit.index.storage import layout
from embedkit.index.storage.document_store import DocumentReader, StoredDocument
from embedkit.index.storage.generation import Generation
from embedkit.index.storage.journal import Finished, Journal
from embedkit.index.storage.layout import Writer

TESTS = Path(__file__).parents[1]
Interrupted = tuple[Path, list[str]]  # the folder of an interrupted build and its texts

# Kills itself at the n-th of all events that Python audits (files opened, renamed, removed, …) and of those of
# the encoder; appends to a log the first text and the number of texts of each call of the encoder.
CHILD = f"""
import os, signal, sys
sys.path.insert(0, {str(TESTS)!r})
from fake_encoder import FakeEncoder
from embedkit.index import Document, Index
from embedkit.index.build import encode, staging
import faiss
staging.SHARD_ROWS, encode.CHUNK_TEXTS = 256, 128
kind, path, last, log = sys.argv[1], sys.argv[2], int(sys.argv[3]), open(sys.argv[4], "a")
seen = 0
def hook(event, arguments):
    global seen
    seen += 1
    if seen == last:
        os.kill(os.getpid(), signal.SIGKILL)
class Encoder(FakeEncoder):
    def encode_document(self, sentences, **options):
        for _ in range(4):
            sys.audit("test.encode")
        log.write(f"{{sentences[0].split()[1]}} {{len(sentences)}}\\n")
        log.flush()
        return super().encode_document(sentences, **options)
documents = [Document(f"text {{n}} of {{n % 17}}", f"key {{n}}", {{"n": n}}) for n in range(2000)]
if kind != "build":
    index = Index.open(path, Encoder())
sys.addaudithook(hook)
if kind == "build":
    Index.build(path, documents, Encoder(), factory="IVF8,SQ8").close()
else:
    index.upsert(documents[1000:])
print(seen)
"""


def child(kind: str, path: Path, last: int, log: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, kind, str(path), str(last), str(log)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def same(first: Path, second: Path) -> None:
    """Two indexes hold the same documents and find the same."""
    with Index.open(first, FakeEncoder()) as one, Index.open(second, FakeEncoder()) as two:
        one.verify(sample=50)
        assert len(one) == len(two)
        queries = [f"text {number} of 3" for number in range(0, 2000, 97)]
        for options in ({}, {"where": "n < 200"}, {"hybrid": True}, {"rescore": 4}):
            assert one.search(queries, k=20, **options) == two.search(queries, k=20, **options)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["build", "upsert"])
def test_a_build_that_is_killed_again_and_again(tmp_path: Path, kind: str, seed: int) -> None:
    whole, killed, log = tmp_path / "whole", tmp_path / "killed", tmp_path / "log"
    if kind == "upsert":
        for path in (whole, killed):
            documents = [Document(f"old text {n} of 5", f"key {n}", {"n": n}) for n in range(1500)]
            Index.build(path, documents, FakeEncoder(), factory="IVF8,SQ8").close()
    done = child(kind, whole, 0, tmp_path / "whole.log")
    assert done.returncode == 0, done.stderr
    events = int(done.stdout)
    choose = random.Random(seed * 7 + len(kind))
    kills = 0
    while True:
        rows = resumable_rows(killed)
        log.unlink(missing_ok=True)
        # the last run is not killed
        last = choose.randrange(1, events) if kills < 3 else 0
        run = child(kind, killed, last, log)
        encoded = (
            [tuple(map(int, line.split())) for line in log.read_text().splitlines()] if log.exists() else []
        )
        if encoded:  # nothing in the journal is encoded again, and nothing is missing
            assert encoded[0][0] == (1000 if kind == "upsert" else 0) + rows
        if run.returncode == 0:
            break
        assert run.returncode == -signal.SIGKILL, run.stderr
        kills += 1
        if kind == "build" and (killed / "CURRENT").exists() and not (killed / "build.journal").exists():
            break  # killed after the last step
    same(whole, killed)
    for name in ("vectors.faiss", "keys"):
        if kind == "build":
            (one,) = whole.glob(f"segments/*/{name}")
            (two,) = killed.glob(f"segments/*/{name}")
            assert one.read_bytes() == two.read_bytes()
    assert not (killed / "build.journal").exists()


class Failing(FakeEncoder):
    """Fails at a given call; counts the encoded texts."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.texts = 0

    def encode_document(self, sentences: list[str], **options: Any) -> np.ndarray:
        self.at -= 1
        if self.at == 0:
            raise KeyboardInterrupt
        self.texts += len(sentences)
        return super().encode_document(sentences, **options)


@pytest.fixture
def interrupted(tmp_path: Path) -> Interrupted:
    texts = [f"text {number}" for number in range(5000)]
    with pytest.raises(KeyboardInterrupt):
        Index.build(tmp_path / "index", texts, Failing(2))
    assert resumable_rows(tmp_path / "index") == 2048
    return tmp_path / "index", texts


def test_only_the_rest_is_encoded(interrupted: Interrupted) -> None:
    root, texts = interrupted
    encoder = Failing(0)
    steps = []
    with Index.build(root, texts, encoder, progress=steps.append) as index:
        assert encoder.texts == 5000 - 2048
        assert [step.done for step in steps if step.stage == "encode"] == [2048, 4096, 5000]
        assert index.search("text 17", k=1)[0][0].id == "17"


def test_nothing_else_is_put_where_an_interrupted_build_is(interrupted: Interrupted, tmp_path: Path) -> None:
    root, texts = interrupted
    for name in "ab":
        with Index.build(tmp_path / name, [Document(name, name)], FakeEncoder()) as index:
            index.export_faiss(tmp_path / f"{name}.faiss")
    refused = pytest.raises(IndexExistsError, match="an interrupted 'build' has encoded 2048 documents there")
    with refused:
        Index.merge(root, [tmp_path / "a", tmp_path / "b"])
    with refused:
        Index.import_faiss(root, tmp_path / "a.faiss", FakeEncoder())
    encoder = Failing(0)
    Index.build(root, texts, encoder).close()
    assert encoder.texts == 5000 - 2048


@pytest.mark.parametrize(
    "change",
    [
        lambda texts: [*texts[:7], "other", *texts[8:]],
        lambda texts: texts[1:],
        lambda texts: texts[:1000],
        lambda texts: [Document(text, f"x{number}") for number, text in enumerate(texts)],
        lambda texts: [Document(texts[0], "0", {"new": 1}), *texts[1:]],
    ],
)
def test_another_input_is_refused(interrupted: Interrupted, change: Callable[[list[str]], list[Any]]) -> None:
    root, texts = interrupted
    with pytest.raises(ResumeError, match=r"same input, or start over with --restart \(restart=True\)"):
        Index.build(root, change(texts), FakeEncoder())
    assert resumable_rows(root) == 2048
    with Index.build(root, change(texts), FakeEncoder(), restart=True) as index:
        assert len(index) == len(change(texts))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": FakeEncoder("other")}, r"with another model \(fake-"),
        ({"encoder": FakeEncoder(truncate_dim=16)}, r"with another dimension \(32, now 16\)"),
        ({"metric": "dot"}, r"with another metric \(cosine, now dot\)"),
    ],
)
def test_other_settings_are_refused(interrupted: Interrupted, options: dict[str, Any], message: str) -> None:
    root, texts = interrupted
    encoder = options.pop("encoder", FakeEncoder())
    with pytest.raises(ResumeError, match=f"an interrupted 'build' has encoded 2048 documents {message}"):
        Index.build(root, texts, encoder, **options)


def test_a_replaced_document_that_changes_is_not_lost(tmp_path: Path) -> None:
    root = tmp_path / "index"
    Index.build(root, ["old"], FakeEncoder()).close()
    new = [Document(f"new {n}", f"key {n % 1500}") for n in range(3000)]  # each id twice
    with Index.open(root, Failing(2)) as index, pytest.raises(KeyboardInterrupt):
        index.upsert(new)
    assert resumable_rows(root) == 2048
    with Index.open(root, FakeEncoder()) as index:
        with pytest.raises(ResumeError, match="not the one that was encoded before the interruption"):
            index.upsert([*new[:3], Document("other", "other"), *new[4:]])
        assert index.upsert(new).resumed == 2048
        assert len(index) == 1501


def test_what_an_interrupted_build_left_is_damaged(interrupted: Interrupted) -> None:
    root, texts = interrupted
    (store,) = root.rglob("documents.sqlite")
    store.write_bytes(b"lost" * 1000)
    with pytest.raises(
        ResumeError, match=r"documents.sqlite: .* is damaged .*; start over with --restart \(restart=True\)"
    ):
        Index.build(root, texts, FakeEncoder())
    with Index.build(root, texts, FakeEncoder(), restart=True) as index:
        assert len(index) == len(texts)


def test_what_was_rejected_is_rejected_again(tmp_path: Path) -> None:
    documents = [Document(f"text {number}", f"key {number % 4000}") for number in range(5000)]
    documents[3] = Document("bad\x00", "bad")
    problems = []
    with pytest.raises(KeyboardInterrupt):
        Index.build(tmp_path / "index", documents, Failing(2), on_error=problems.append)
    problems.clear()
    with Index.build(tmp_path / "index", documents, FakeEncoder(), on_error=problems.append) as index:
        assert len(index) == 4000
    assert len(problems) == 1 + 999
    assert str(problems[0]) == "document 3 ('bad'): the text holds a NUL character"


def test_an_id_of_the_index_is_rejected_again(tmp_path: Path) -> None:
    root = tmp_path / "index"
    Index.build(root, [Document("old", "old")], FakeEncoder()).close()
    documents = [Document(f"text {number}", f"key {number}") for number in range(3000)]
    documents[3] = Document("another", "old")
    problems: list[InputError] = []
    with Index.open(root, Failing(2)) as index, pytest.raises(KeyboardInterrupt):
        index.add(documents, on_error=problems.append)
    with Index.open(root, FakeEncoder()) as index:
        written = index.add(documents, on_error=problems.append)
        assert (written.documents, written.resumed) == (2999, 2048)
        assert index.get("old")[0].text == "old"
    assert [problem.document_id for problem in problems] == ["old", "old"]


def test_a_malformed_document_keeps_what_was_encoded(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(5000)]
    with pytest.raises(InputError, match="document 4500: the text is a number"):
        Index.build(tmp_path / "index", [*texts[:4500], 5, *texts[4501:]], FakeEncoder())
    encoder = Failing(0)
    with Index.build(tmp_path / "index", texts, encoder) as index:
        assert len(index) == 5000
    assert encoder.texts == 5000 - 4096


def test_deleting_and_adding_work_during_an_interrupted_upsert(tmp_path: Path) -> None:
    root = tmp_path / "index"
    Index.build(root, [Document(f"old {n}", f"key {n}") for n in range(10)], FakeEncoder()).close()
    new = [Document(f"new {n}", f"key {n}") for n in range(3000)]
    with Index.open(root, Failing(2)) as index, pytest.raises(KeyboardInterrupt):
        index.upsert(new)
    with Index.open(root, FakeEncoder()) as index:
        index.delete(["key 3"])
        with pytest.raises(ResumeError, match=r"an interrupted 'upsert' .* another command"):
            index.add([Document("x", "x")])
        assert resumable_rows(root) == 2048
        written = index.upsert(new)
        assert (written.documents, written.replaced, written.resumed) == (3000, 9, 2048)
        assert len(index) == 3000


def test_an_upsert_that_does_not_fit_the_index_any_more_says_so(tmp_path: Path) -> None:
    root = tmp_path / "index"
    old = [Document(f"old {n}", f"o{n}") for n in range(10)]
    Index.build(root, old, FakeEncoder()).close()
    new = [*old, *(Document(f"new {n}", f"n{n}") for n in range(3000))]
    with Index.open(root, Failing(2)) as index, pytest.raises(KeyboardInterrupt):
        index.upsert(new)
    with Index.open(root, FakeEncoder()) as index:
        with pytest.raises(ResumeError, match="not the one that was encoded before the interruption"):
            index.upsert(new[11:])
        index.delete(["o3"])  # which was left out, as the index held it
        with pytest.raises(
            ResumeError, match=r"or the index has changed .*1, now 2.*same input again, or, .* with --restart"
        ):
            index.upsert(new)
        assert resumable_rows(root) == 2048
        assert index.upsert(new, restart=True).documents == 3001


def test_a_document_that_comes_twice_is_another_input(tmp_path: Path) -> None:
    root = tmp_path / "index"
    Index.build(root, ["old"], FakeEncoder()).close()
    new = [Document(f"new {n}", f"key {n}") for n in range(3000)]
    skipped: list[InputError] = []
    with Index.open(root, Failing(2)) as index, pytest.raises(KeyboardInterrupt):
        index.upsert(new)
    with Index.open(root, FakeEncoder()) as index, pytest.raises(ResumeError, match="is not the one"):
        index.upsert([new[0], Document("another", "key 0"), *new[1:]], on_error=skipped.append)
    assert not skipped


class Killed(BaseException):
    pass


def killed(monkeypatch: pytest.MonkeyPatch, when: str, command: Callable[[], object]) -> None:
    """Run ``command``, which dies as it begins or ends to publish; its journal stays as a kill leaves it."""
    publish = Writer.publish

    def dies(self: Writer, *arguments: Any, **options: Any) -> None:
        if when == "after":
            publish(self, *arguments, **options)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "publish", dies)
        patch.setattr(Writer, "_discard", lambda self: None)
        with pytest.raises(Killed):
            command()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index.build(tmp_path / "index", [Document("text x", "x1")], FakeEncoder()) as index:
        yield index


def test_a_damaged_record_of_a_finished_segment_counts_as_not_written(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(monkeypatch, "before", lambda: index.add([Document("text a", "a1")]))
    journal = index.path / "build.journal"
    journal.write_text(re.sub(r'"rows": \d+, "parts"', '"rows": -5, "parts"', journal.read_text()))
    assert index.delete(["x1"]) == 1
    killed(monkeypatch, "before", lambda: index.add([Document("text a", "a1")]))
    assert '"rows": -5' not in journal.read_text()  # what is written after it would not be read
    index.add([Document("text a", "a1")])
    assert [found.id for found in index.get(["x1", "a1"])] == ["a1"]
    assert index.verify()["documents"] == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_finished_segment_accepts_only_its_documents(
    index: Index, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    killed(monkeypatch, when, lambda: index.add([Document("text a", "a1")]))
    with pytest.raises(ResumeError, match="these"):
        index.add([Document("text b", "b1"), Document("text c", "c1")])
    if when == "before":
        assert index.add([Document("text a", "a1")]).documents == 1
    index.add([Document("text b", "b1")])
    assert [found.id for found in index.get(["x1", "a1", "b1"])] == ["x1", "a1", "b1"]


def test_the_same_command_after_the_last_step_is_done(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(monkeypatch, "after", lambda: index.add([Document("text a", "a1")]))
    assert index.add([Document("text a", "a1")]).resumed == 1
    assert not (index.path / "build.journal").exists()
    index.refresh()
    assert len(index) == 2


def test_what_is_deleted_after_a_kill_does_not_come_back(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(monkeypatch, "after", lambda: index.add([Document("text a", "a1")]))
    index.refresh()
    assert index.delete(["a1"]) == 1
    index.add([Document("text b", "b1")])
    assert [found.id for found in index.get(["x1", "a1", "b1"])] == ["x1", "b1"]


def test_a_finished_segment_is_not_taken_for_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [Document(f"text {n}", str(n)) for n in range(30)]

    def build(factory: str) -> Index:
        return Index.build(tmp_path / "index", documents, FakeEncoder(), factory=factory)

    killed(monkeypatch, "before", lambda: build("Flat"))
    with pytest.raises(ResumeError, match="another factory"):
        build("HNSW16")
    with build("Flat") as index:
        assert len(index) == 30


@pytest.mark.parametrize(
    ("options", "message"),
    [({"dedup": "exact"}, "setting of dedup"), ({"passages": 8}, "setting of passages")],
)
def test_a_finished_segment_is_not_taken_for_other_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    def build(**options: Any) -> Index:
        return Index.build(
            tmp_path / "index", [Document("text", "a"), Document("text", "b")], encoder, **options
        )

    encoder = Encoder(threads=1)
    killed(monkeypatch, "before", lambda: build(**options))
    with pytest.raises(ResumeError, match=f"another {message}"):
        build()
    with build(restart=True) as index:
        assert sorted(document.id for document in index) == ["a", "b"]


@pytest.mark.parametrize("fails", ["publish", "manifest", "CURRENT"])
def test_what_was_chosen_survives_an_interruption_of_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    vectors = np.random.default_rng(0).standard_normal((1500, 16), np.float32)
    documents = [Document("text", str(n), vector=vector) for n, vector in enumerate(vectors)]
    choices: list[Choice] = []
    choose_for, write_atomically = building.choose_for, layout.write_atomically

    def once(*arguments: Any, **options: Any) -> Choice:  # what is fastest may differ from time to time
        if not choices:
            choices.append(choose_for(*arguments, **options))
        return choices[0]

    def full(path: Path, content: bytes) -> None:
        if path.name == "CURRENT" or fails == "manifest":
            raise OSError(errno.ENOSPC, "no space")
        write_atomically(path, content)

    def build(name: str) -> Index:
        return Index.build(tmp_path / name, documents, FakeEncoder(truncate_dim=16), target_recall=0.9)

    monkeypatch.setattr(building, "choose_for", once)
    if fails == "publish":
        killed(monkeypatch, "before", lambda: build("index"))
    else:
        with monkeypatch.context() as patch:
            patch.setattr(layout, "write_atomically", full)
            with pytest.raises(BuildError, match="no space"):
                build("index")
    with build("index") as index, build("whole") as whole:
        one, two = index.generation.manifest, whole.generation.manifest
        assert one.tuning is not None
        assert (one.factory, one.tuning) == (two.factory, two.tuning)
        assert one.factory == choices[0].chosen.factory
        assert not list(index.path.rglob("choice.json"))


def test_chunks_are_as_long_as_the_encoder_is_fast() -> None:
    """So that a build that is stopped loses seconds, however slow the model."""
    pace = encode.Pace()
    first = pace.characters
    pace.took(first, 0.01)
    assert pace.characters == encode.Chunk().limit
    pace.took(1_000_000, 10)
    assert pace.characters == 500_000
    pace.took(pace.characters, 3600)
    assert pace.characters == first


def test_an_interrupted_build_keeps_what_a_slow_encoder_has_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    class Slow(FakeEncoder):
        def encode_document(self, sentences: list[str], **options: Any) -> Any:
            calls.append(len(sentences))
            if len(calls) == 4:
                raise KeyboardInterrupt
            return super().encode_document(sentences, **options)

    monkeypatch.setattr(encode.Pace, "took", lambda *_: None)  # as of one that takes minutes
    texts = [f"text {n} " * 100 for n in range(200)]
    with pytest.raises(KeyboardInterrupt):
        Index.build(tmp_path / "index", texts, Slow())
    assert 0 < calls[0] < 50
    assert resumable_rows(tmp_path / "index") == sum(calls[:3])


def test_given_vectors_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "CHUNK_TEXTS", 4)
    vectors = np.random.default_rng(0).standard_normal((12, 32), np.float32)

    def documents(given: np.ndarray, stop: int | None = None) -> Iterator[Document]:
        for n, vector in enumerate(given):
            if n == stop:
                raise RuntimeError("the source broke")
            yield Document(f"text {n}", str(n), vector=vector)

    def build(documents: Iterator[Document]) -> Index:
        return Index.build(tmp_path / "index", documents, FakeEncoder())

    with pytest.raises(RuntimeError, match="the source broke"):
        build(documents(vectors, 9))
    assert resumable_rows(tmp_path / "index") == 8
    with pytest.raises(ResumeError, match="its vector is not the one from before"):
        build(documents(vectors[::-1]))
    with build(documents(vectors)) as index:
        assert len(index) == 12


def test_a_slow_refresh_does_not_restore_an_older_generation(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, go_on = threading.Event(), threading.Event()
    open_generation = searcher.open_generation

    def slow(*arguments: Any, **options: Any) -> Generation:
        generation = open_generation(*arguments, **options)
        if threading.current_thread() is thread:
            opened.set()
            go_on.wait(30)
        return generation

    with Index.open(index.path, FakeEncoder()) as other:
        other.add([Document("text a", "a1")])
    thread = threading.Thread(target=index.refresh)
    monkeypatch.setattr(searcher, "open_generation", slow)
    thread.start()
    assert opened.wait(60)
    adding = threading.Thread(target=lambda: index.add([Document("text b", "b1")]))
    adding.start()
    adding.join(1)
    go_on.set()
    thread.join()
    adding.join()
    assert len(index) == 3


def test_a_torn_journal_line_counts_as_not_written(interrupted: Interrupted) -> None:
    root, texts = interrupted
    journal = root / "build.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"rows": 4')
    assert resumable_rows(root) == 2048
    encoder = Failing(0)
    Index.build(root, texts, encoder).close()
    assert encoder.texts == 5000 - 2048


@pytest.mark.parametrize("content", [b"", b"garbage\n", b"[]\n", b'{"journal": 9}\n{"rows": 5}\n'])
def test_a_meaningless_journal_is_replaced(interrupted: Interrupted, content: bytes) -> None:
    root, texts = interrupted
    (root / "build.journal").write_bytes(content)
    assert resumable_rows(root) == 0
    encoder = Failing(0)
    Index.build(root, texts, encoder).close()
    assert encoder.texts == 5000


def test_shards_are_journaled_during_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "SHARD_ROWS", 4000)
    noted = []

    def look(step: Progress) -> None:
        noted.append((step.done, resumable_rows(tmp_path / "index")))

    Index.build(tmp_path / "index", [f"text {n}" for n in range(9000)], FakeEncoder(), progress=look).close()
    assert noted[:6] == [(0, 0), (2048, 0), (4096, 4096), (6144, 4096), (8192, 8192), (9000, 8192)]


@needs_peak
@pytest.mark.parametrize(
    ("factory", "parts"),
    [("Flat", 3), ("IVF64,Flat", 1), ("RR64,IVF64,Flat", 1)],
)
def test_the_peak_stays_below_the_bound(tmp_path: Path, factory: str, parts: int) -> None:
    rows = int(os.environ.get("EMBEDKIT_TEST_ROWS", "100000"))
    code = (
        f"import os, sys; sys.path.insert(0, {str(TESTS)!r})\n"
        "import numpy as np, faiss\nfrom fake_encoder import FakeEncoder\n"
        "from embedkit.index import Index\nfrom embedkit.index.build.memory import resident\n"
        "class Noise(FakeEncoder):\n"
        "    def encode_document(self, sentences, *, normalize_embeddings=False):\n"
        "        rng = np.random.default_rng(int(sentences[0]))\n"
        "        return rng.standard_normal((len(sentences), self.dimension), np.float32)\n"
        "    encode_query = encode_document\n"
        "path, factory, rows, dimension = sys.argv[1], sys.argv[2], int(sys.argv[3]), 128\n"
        "Index.build(path + 'x', ['1'], Noise(truncate_dim=dimension)).close()\n"
        "bound = resident() + (96 + rows // 6250 << 20)\n"  # of the vectors' 49 MB, or 488 of 1,000,000
        "mapped = int(open('/proc/self/statm').read().split()[2]) * os.sysconf('SC_PAGE_SIZE')\n"
        "texts = (f'{n}' for n in range(rows))\n"
        "index = Index.build(path, texts, Noise(truncate_dim=dimension), factory=factory, max_memory=bound,\n"
        "                    metric='dot')\n"
        f"peak = {PEAK_KIB} * 1024 - mapped\n"
        "index.verify()\n"
        "vectors = index.generation.vectors(np.arange(0, rows, 501))\n"
        "_, found = index.search_vectors(vectors, 1, nprobe=64 if 'IVF' in factory else None)\n"
        "right = (found[:, 0] == np.arange(0, rows, 501)).mean()\n"
        "print(len(index), len(index.generation.segments[0].parts), (peak - bound) >> 20, right)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "index"), factory, str(rows)],
        capture_output=True,
        text=True,
        timeout=max(300, rows // 500),
        check=False,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    )
    assert done.returncode == 0, done.stderr
    count, found_parts, over, right = done.stdout.split()
    assert int(count) == rows
    assert int(over) <= 0, f"{over} MiB above the bound"
    assert int(found_parts) >= parts if parts > 1 else int(found_parts) == 1
    assert float(right) > 0.95


@pytest.mark.parametrize("long", ["text", "metadata"])
@pytest.mark.parametrize("change", ["add", "upsert"])
def test_few_long_documents_are_held_at_once(tmp_path: Path, change: str, long: str) -> None:
    class Measured(FakeEncoder):
        peak = 0

        def encode_document(self, sentences: list[str], *, normalize_embeddings: bool = False) -> np.ndarray:
            self.peak = self.peak or tracemalloc.get_traced_memory()[1]
            return super().encode_document(sentences, normalize_embeddings=normalize_embeddings)

    def documents() -> Iterator[Document]:
        tracemalloc.start()  # not before: a manifest is read into a buffer of 64 MiB
        for number in range(40):
            content = f"{number}{'':1000000}"
            if long == "text":
                yield Document(content, f"d{number}")
            else:
                yield Document(f"{number}", f"d{number}", {"page": content})

    encoder = Measured()
    with Index.build(tmp_path / "index", ["a"], encoder) as index:
        encoder.peak = 0
        try:
            getattr(index, change)(documents())
            assert 0 < encoder.peak < 16_000_000  # of 40 million characters
            tracemalloc.reset_peak()
            assert (
                sum(len(stored) for segment in index.generation.segments for stored, _ in segment.scan())
                == 41
            )
            assert tracemalloc.get_traced_memory()[1] < 16_000_000
        finally:
            tracemalloc.stop()


def test_few_stored_texts_are_held_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[int] = []
    fetch = DocumentReader.fetch

    def counted(self: DocumentReader, rows: list[int]) -> dict[int, StoredDocument]:
        fetched.append(len(rows))
        return fetch(self, rows)

    with Index.build(
        tmp_path / "index", [Document("a", f"d{n}") for n in range(100)], FakeEncoder()
    ) as index:
        monkeypatch.setattr(DocumentReader, "fetch", counted)
        index.upsert(Document("b" if n % 2 else "a", f"d{n}") for n in range(100))
        assert sum(fetched) == 100 and max(fetched) <= 16
        assert [document.text for document in index.get(["d0", "d99"])] == ["a", "b"]


@needs_peak
def test_mapped_files_are_not_memory_of_the_process(tmp_path: Path) -> None:
    path, size = tmp_path / "file", 32 << 20
    path.write_bytes(bytes(size))
    before = resident()
    pages = np.memmap(path, np.uint8, "r")
    assert pages[::4096].sum() == 0
    assert resident() - before < size // 2
    assert len(pages) == size  # mapped until here


def test_too_little_memory_says_how_much_is_needed(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"within 1 MB is not possible: .*; set --max-memory .* to at least"):
        Index.build(tmp_path / "index", ["a"], FakeEncoder(), max_memory=1_000_000)
    assert not (tmp_path / "index").exists()


def test_the_journal_is_readable(interrupted: Interrupted) -> None:
    root, _ = interrupted
    lines = [json.loads(line) for line in (root / "build.journal").read_text().splitlines()]
    assert (lines[0]["journal"], lines[0]["mode"], lines[0]["dimension"]) == (1, "build", 32)
    assert lines[-1] == {"rows": 2048, "given": 0}
    assert np.fromfile(root / "segments" / ".building" / "vectors.f32", "<f4").shape == (2048 * 32,)


def test_a_finished_upsert_is_of_the_index_that_it_was_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Document("text a", "a"), Document("text b", "b")
    with Index.build(tmp_path / "index", [old], FakeEncoder()) as index:
        killed(monkeypatch, "before", lambda: index.upsert([old, new]))  # a is the same, and left out
        index.delete(["a"])
        with pytest.raises(ResumeError, match=r"index has changed since .*; discard it with --restart"):
            index.upsert([old, new])
        index.upsert([old, new], restart=True)
        assert len(index.get(["a", "b"])) == 2


@pytest.mark.parametrize(
    ("step", "name", "encoded"),
    [
        ("finished", "vectors.faiss", 0),
        ("finished", "keys", 0),
        ("finished", "documents.sqlite", 1),
        ("cleared", "vectors.faiss", 1),  # the spool is gone by then
        ("renamed", "vectors.faiss", 1),
    ],
)
def test_a_finished_segment_that_was_damaged_is_made_again(
    index: Index, monkeypatch: pytest.MonkeyPatch, step: str, name: str, encoded: int
) -> None:
    with monkeypatch.context() as patch:
        if step == "finished":
            patch.setattr("embedkit.index.build.publish.remove_all_but", lambda *_: None)
        killed(patch, "before", lambda: index.add([Document("text a", "a1")]))
    folder = index.path / "segments" / ".building"
    if step == "renamed":
        last = json.loads((index.path / "build.journal").read_text().splitlines()[-1])
        folder = folder.rename(folder.with_name(last["segment"]["name"]))
    (folder / name).write_bytes(bytes((folder / name).stat().st_size))  # pages that a power cut has lost
    encoder = Failing(0)
    with Index.open(index.path, encoder) as again:
        assert again.add(iter([Document("text a", "a1")])).documents == 1
        assert encoder.texts == encoded
        assert [found.id for found in again.get(["x1", "a1"])] == ["x1", "a1"]
        again.verify(sample=2)


def test_a_finished_segment_with_words_of_an_earlier_version_is_made_again(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("embedkit.index.build.publish.remove_all_but", lambda *_: None)
        killed(patch, "before", lambda: index.add([Document("text a", "a1")]))
    journal = index.path / "build.journal"
    lines = journal.read_text().splitlines()
    record = json.loads(lines[-1])
    record["segment"]["words"]["version"] = 5
    journal.write_text("\n".join([*lines[:-1], json.dumps(record)]) + "\n")
    encoder = Failing(0)
    with Index.open(index.path, encoder) as again:
        assert again.add([Document("text a", "a1")]).documents == 1
        assert encoder.texts == 0 and again.generation.has_words


def test_a_segment_is_on_disk_before_it_is_finished(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk, fsync, finished = set(), os.fsync, Journal.finished

    def noted(descriptor: int) -> None:
        on_disk.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def checked(self: Journal, record: Finished) -> None:
        folder = index.path / "segments" / ".building"
        assert {(folder / name).stat().st_ino for name in record.segment.files} <= on_disk
        finished(self, record)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Journal, "finished", checked)
    index.add([Document("text a", "a1")])


def test_a_finished_addition_is_made_again_for_an_index_of_another_kind(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(monkeypatch, "before", lambda: index.add([Document("text a", "a1")]))
    index.compact(factory="HNSW8")
    assert index.add([Document("text a", "a1")]).documents == 1
    assert (len(index), index.generation.manifest.factory) == (2, "HNSW8")
    index.verify(sample=2)
