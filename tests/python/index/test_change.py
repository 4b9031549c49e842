"""Adding, deleting, compacting, merging and verifying."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import faiss
import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit.index import (
    BuildError,
    Document,
    Index,
    IndexDamagedError,
    IndexExistsError,
    InputError,
    ModelMismatchError,
    ResumeError,
)
from embedkit.index.build import change, transfer
from embedkit.index.storage import ids as storage_ids
from embedkit.index.storage.generation import Generation, open_generation
from embedkit.index.storage.ids import Ids, shared_id
from embedkit.index.storage.layout import current_name
from embedkit.index.storage.manifest import hash_file
from embedkit.index.storage.raw import FaissVectors
from embedkit.index.storage.segment import Segment


def documents(begin: int, end: int, word: str = "text") -> list[Document]:
    return [Document(f"{word} {n} of {n % 11}", f"k{n}", {"n": n}) for n in range(begin, end)]


def test_what_a_closed_index_refuses_is_not_written(tmp_path: Path, encoder: FakeEncoder) -> None:
    index = Index.build(tmp_path / "closed", documents(0, 5), encoder)
    index.close()
    calls: list[Callable[[], object]] = [
        lambda: index.upsert([Document("new", "k1")]),
        lambda: index.add([Document("new", "new")]),
        lambda: index.delete(["k1"]),
        lambda: index.compact(factory="HNSW16"),
        lambda: index.set_search_defaults(nprobe=2),
    ]
    before = current_name(index.path)
    for call in calls:
        with pytest.raises(ValueError, match="the index is closed"):
            call()
        assert current_name(index.path) == before


def test_an_index_that_another_has_encoded_again_is_not_changed(tmp_path: Path, encoder: FakeEncoder) -> None:
    with Index.build(tmp_path / "index", documents(0, 5), encoder) as index:
        index.search("text")
        with Index.open(index.path, encoder) as other:
            other.reembed(FakeEncoder("new", truncate_dim=20))
        before = current_name(index.path)
        for call in (lambda: index.delete(["k1"]), lambda: index.compact(language="german")):
            with pytest.raises(ModelMismatchError):
                call()
            assert current_name(index.path) == before


def test_an_interrupted_reembed_keeps_its_documents(tmp_path: Path, encoder: FakeEncoder) -> None:
    class Stopped(FakeEncoder):
        def encode_document(self, sentences: list[str], **options: Any) -> Any:
            if len(sentences) < 2048:
                raise KeyboardInterrupt
            return super().encode_document(sentences, **options)

    with Index.build(tmp_path / "index", documents(0, 3000), encoder, factory="PQ4x4") as index:
        with pytest.raises(KeyboardInterrupt):
            index.reembed(Stopped("new", truncate_dim=20))
        with pytest.raises(ValueError, match="the new model do not fit the index"):
            index.reembed(FakeEncoder("other", truncate_dim=22), restart=True)
        with pytest.raises(
            ResumeError, match=r"an interrupted 'reembed' has encoded .* documents and needs them all"
        ):
            index.delete(["k7"])
        assert index.reembed(FakeEncoder("new", truncate_dim=20)).resumed > 0
        assert index.delete(["k7"]) == 1


LONG = " ".join(f"word number {n} of a text." for n in range(2500))  # more than the first chunk holds


@pytest.mark.parametrize(("passages", "first"), [(None, LONG), ("60:0", "a text")])
def test_a_document_at_which_reembed_fails_can_be_deleted(
    tmp_path: Path, passages: str | None, first: str
) -> None:
    class Tokenizing(FakeEncoder):
        max_seq_length = 64

        def tokenize(self, texts: list[str]) -> dict[str, list[list[int]]]:
            return {"input_ids": [[0] * (2 + len(text.split())) for text in texts]}

    class Failing(Tokenizing):
        def encode_document(self, sentences: list[str], **options: Any) -> np.ndarray:
            vectors = super().encode_document(sentences, **options)
            vectors[["bad" in text for text in sentences]] = np.nan
            return vectors

    several = [Document(first, "a"), Document(f"{LONG} A bad one.", "b"), Document("another text", "c")]
    with Index.build(tmp_path / "index", several, Tokenizing(), passages=passages) as index:
        for restart in (False, True):
            with pytest.raises(BuildError, match="returned NaN"):
                index.reembed(Failing("new"), restart=restart)
        with pytest.raises(ResumeError, match="needs them all"):
            index.delete(["a", "b"])
        assert index.delete(["b"]) == 1
        written = index.reembed(Failing("new"))
        assert (written.documents, written.resumed) == (2, 1)
        index.verify(sample=2)


def test_compact_of_no_documents_changes_what_comes_later(tmp_path: Path, encoder: FakeEncoder) -> None:
    with Index.build(tmp_path / "index", documents(0, 5), encoder) as index:
        index.delete(where="true")
        index.compact()
        assert index.compact(factory="HNSW16", language="german") and index.info()["factory"] == "HNSW16"
        assert not index.compact(factory="HNSW16")
        index.add(documents(0, 5))
        assert index.info()["factory"] == "Flat"
        assert index.compact(factory="HNSW16") and index.info()["factory"] == "HNSW16"
        assert index.compact(factory="HNSW16") is False
        assert [entry.words.language for entry in index.generation.manifest.segments if entry.words] == [
            "german"
        ]


@pytest.fixture
def index(tmp_path: Path, encoder: FakeEncoder) -> Iterator[Index]:
    with Index.build(tmp_path / "index", documents(0, 500), encoder) as index:
        yield index


def ids(index: Index, query: str = "text", k: int = 1000, **options: Any) -> set[str]:
    return {hit.id for hit in index.search(query, k=k, **options)[0]}


def files(root: Path) -> dict[Path, os.stat_result]:
    return {path: path.stat() for path in root.rglob("*") if path.is_file()}


def test_adding_writes_what_is_added(index: Index) -> None:
    before = files(index.path / "segments")
    assert index.add(documents(500, 510)).documents == 10
    after = files(index.path / "segments")
    assert all(after[path].st_mtime_ns == stat.st_mtime_ns for path, stat in before.items())
    assert sum(stat.st_size for path, stat in after.items() if path not in before) < 60_000
    assert ids(index) == {f"k{n}" for n in range(510)}
    assert index.search("text 505 of 10", k=1)[0][0].id == "k505"


def test_deleting_writes_a_bitmap(index: Index) -> None:
    before = files(index.path / "segments")
    assert index.delete([f"k{n}" for n in range(0, 500, 5)]) == 100
    assert files(index.path / "segments").keys() == before.keys()
    (bits,) = (index.path / "tombstones").iterdir()
    assert bits.stat().st_size == 63
    assert ids(index) == {f"k{n}" for n in range(500) if n % 5}
    assert index.delete(where="n < 10") == 8
    assert len(list((index.path / "tombstones").iterdir())) == 1
    info = index.info()
    assert (info["documents"], info["deleted"]) == (392, 108)
    index.verify()


def test_rows_and_ids_are_stable_under_deletions(index: Index) -> None:
    _, rows = index.search_vectors(index.encoder.encode_query(["text 77 of 0"]), 1)
    index.delete(["k3"])
    index.add(documents(500, 503))
    _, again = index.search_vectors(index.encoder.encode_query(["text 77 of 0"]), 1)
    assert rows.tolist() == again.tolist()
    assert index.ids(again[0]) == ["k77"]


def test_a_reader_keeps_its_generation_until_it_refreshes(index: Index, encoder: FakeEncoder) -> None:
    with Index.open(index.path, encoder) as reader:
        index.delete(where="n >= 5")
        index.add(documents(500, 502))
        index.compact()
        assert len(reader) == 500
        assert len(ids(reader, where="n >= 0")) == 500
        assert len(reader.search("text 9", k=3, hybrid=True)[0]) == 3
        assert reader.refresh()
        assert not reader.refresh()
        assert ids(reader) == {"k0", "k1", "k2", "k3", "k4", "k500", "k501"}


def test_a_reader_sees_an_index_that_was_built_anew(tmp_path: Path, encoder: FakeEncoder) -> None:
    Index.build(tmp_path / "index", documents(0, 5), encoder).close()
    with Index.open(tmp_path / "index", encoder) as reader:
        shutil.rmtree(tmp_path / "index")
        Index.build(tmp_path / "index", documents(5, 8), encoder).close()  # its generation is the first, too
        assert reader.refresh()
        assert not reader.refresh()
        assert ids(reader) == {"k5", "k6", "k7"}


def test_threads_search_while_the_index_changes(index: Index) -> None:
    failures = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                hits = index.search("text 7 of 7", k=50, where="n >= 0")[0]
                if len(hits) != 50 or any(hit.id != f"k{hit.metadata['n']}" for hit in hits):
                    failures.append(hits)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(4):
        index.upsert(documents(400, 600 + step))
        index.delete([f"k{step}"])
    index.compact()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_everything_can_be_deleted_and_added_again(index: Index) -> None:
    assert index.delete(where="n >= 0") == 500
    assert (len(index), index.search("text"), index.info()["segments"]) == (0, [[]], 0)
    assert index.search(["text", "x"], where="n = 1", hybrid=True) == [[], []]
    assert index.verify(sample=5)["documents"] == 0
    assert not index.compact()
    index.add(documents(0, 3))
    assert ids(index) == {"k0", "k1", "k2"}


def test_upsert_of_an_id_twice_keeps_the_last(index: Index) -> None:
    written = index.upsert([*documents(0, 2), Document("first", "x"), Document("second", "x")])
    # the first two are in the index as they are
    assert (written.documents, written.replaced, written.unchanged) == (1, 0, 2)
    assert [hit.text for hit in index.search("second", k=600)[0] if hit.id == "x"] == ["second"]
    assert len(index) == 501
    index.verify(sample=501)
    index.compact()
    assert len(ids(index)) == 501


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda index: index.add([Document("x", "k5")]),
            "the id 'k5' is already in the index; upsert replaces",
        ),
        (lambda index: index.add(["x"]), "document 0: a document that is added needs an id"),
        (
            lambda index: index.upsert([{"id": "k"}]),
            r"document 0: .* Document\(text, id, metadata\), not dict",
        ),
        (
            lambda index: index.add([Document("x", "new"), Document("y", "new")]),
            "the id 'new' was used before",
        ),
        (
            lambda index: index.delete(["k1", "nobody"]),
            "no document with the id 'nobody'; nothing was deleted",
        ),
    ],
)
def test_wrong_changes_change_nothing(index: Index, change: Callable[[Index], object], message: str) -> None:
    before = files(index.path)
    with pytest.raises(InputError, match=message):
        change(index)
    after = files(index.path)
    assert {path: stat.st_ino for path, stat in after.items()} == {
        path: stat.st_ino for path, stat in before.items()
    }
    assert len(index) == 500


def test_arguments_of_delete(index: Index) -> None:
    for arguments in ({}, {"ids": ["k1"], "where": "n = 1"}):
        with pytest.raises(ValueError, match="give either the ids of the documents to delete or a condition"):
            index.delete(**arguments)
    with pytest.raises(ValueError, match="condition"):
        index.delete(where="n = ")
    assert index.delete(["k1", "nobody", "k1"], missing_ok=True) == 1
    assert index.delete(where="n = 123456") == 0
    assert index.add([]).documents == 0


def test_another_model_may_not_add(index: Index) -> None:
    with (
        pytest.warns(UserWarning, match="may be meaningless"),
        Index.open(index.path, FakeEncoder("other"), force=True) as other,
        pytest.raises(ModelMismatchError),
    ):
        other.add(documents(500, 501))


@pytest.mark.parametrize("factory", ["Flat", "IVF8,SQ8", "HNSW8"])
def test_compaction_folds_without_encoding(tmp_path: Path, factory: str) -> None:
    encoder = FakeEncoder()
    with Index.build(tmp_path / "index", documents(0, 600), encoder, factory=factory) as index:
        index.add(documents(600, 700))
        index.upsert(documents(50, 60, "new"))
        index.delete(where="n % 7 = 0")
        options = {
            "where": "n >= 0",
            "hybrid": False,
        }  # which compares all of these few: a graph may miss some
        before = index.search(["text 3 of 3", "new 55 of 0"], k=700, **options)
        encoder.encode_document = None
        assert index.compact()
        info = index.info()
        assert (info["segments"], info["deleted"], info["factory"]) == (1, 0, factory)
        after = index.search(["text 3 of 3", "new 55 of 0"], k=700, **options)
        assert [{hit.id: (hit.text, hit.metadata) for hit in hits} for hits in before] == [
            {hit.id: (hit.text, hit.metadata) for hit in hits} for hits in after
        ]
        np.testing.assert_allclose(
            [[hit.score for hit in hits] for hits in after],
            [[hit.score for hit in hits] for hits in before],
            atol=1e-5,
        )
        assert not index.compact()
        assert index.compact(factory="SQfp16")
        assert index.info()["factory"] == "SQfp16"
        index.verify()
        with pytest.raises(ValueError, match="factory"):
            index.compact(factory="bogus")


@pytest.mark.parametrize("factory", ["HNSW16", "IVF8,SQ8", "IVF8,PQ4x4", "SQ8"])
def test_an_index_stays_of_its_kind(tmp_path: Path, encoder: FakeEncoder, factory: str) -> None:
    def kind(index: Index) -> str:
        index.verify()
        return str(index.info()["factory"])

    with Index.build(tmp_path / "index", documents(0, 300), encoder, factory=factory) as index:
        index.upsert(documents(0, 300, "new"))
        assert kind(index) == "Flat"  # all of it was added
        assert index.compact() and kind(index) == factory
        assert not index.compact() and not index.compact(factory=factory)
        index.reembed(FakeEncoder("other", truncate_dim=24))
        assert kind(index) == factory
        assert not index.compact()
        index.delete(where="n >= 7")
        assert index.compact() and len(index) == 7
        assert kind(index) == (factory if factory in ("HNSW16", "SQ8") else "Flat")
        assert not index.compact()
        index.reembed(encoder)
        index.add(documents(7, 300))
        assert index.compact() and kind(index) == factory


def test_an_imported_index_is_compacted_if_asked_to(tmp_path: Path, encoder: FakeEncoder) -> None:
    with Index.build(tmp_path / "index", documents(0, 100), encoder, factory="HNSW16") as index:
        index.export_faiss(tmp_path / "vectors.faiss")
    with Index.import_faiss(tmp_path / "imported", tmp_path / "vectors.faiss", encoder) as imported:
        assert not imported.compact()
        assert imported.compact(factory="auto") and imported.info()["factory"] == "Flat"


def test_merging_shares_files_and_leaves_the_sources(tmp_path: Path, encoder: FakeEncoder) -> None:
    for name, begin in (("a", 0), ("b", 300), ("c", 600)):
        Index.build(tmp_path / name, documents(begin, begin + 300), encoder).close()
    with Index.open(tmp_path / "b", encoder) as b:
        b.delete(where="n < 350")
    with Index.merge(tmp_path / "all", [tmp_path / name for name in "abc"]) as merged:
        assert len(merged) == 850
        assert merged.info()["segments"] == 3
        shared = merged.path / "segments"
        assert all(path.stat().st_nlink == 2 for path in shared.rglob("*") if path.is_file())
    with Index.open(tmp_path / "all", encoder) as merged:
        merged.verify(sample=850)
        shutil.rmtree(tmp_path / "a")
        merged.compact()
        assert ids(merged) == {f"k{n}" for n in range(900) if not 300 <= n < 350}
    with Index.open(tmp_path / "b", encoder) as b:
        b.verify(sample=50)


def test_what_cannot_be_merged(tmp_path: Path, encoder: FakeEncoder) -> None:
    Index.build(tmp_path / "a", documents(0, 10), encoder).close()
    Index.build(tmp_path / "b", documents(5, 20), encoder).close()
    Index.build(tmp_path / "c", documents(30, 40), FakeEncoder("other")).close()
    Index.build(tmp_path / "d", documents(30, 40), encoder, metric="dot").close()
    Index.build(tmp_path / "e", documents(30, 40), FakeEncoder(truncate_dim=16)).close()
    for other, error, message in (
        ("b", InputError, "the id 'k5' is in .*a and in .*b; delete it from one of them"),
        ("c", ModelMismatchError, "only indexes of one model can be merged"),
        ("d", ModelMismatchError, r"has another metric than .*a \(dot, not cosine\)"),
        ("e", ModelMismatchError, r"has another dimension than .* \(16, not"),
    ):
        with pytest.raises(error, match=message):
            Index.merge(tmp_path / "out", [tmp_path / "a", tmp_path / other])
        assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="at least two"):
        Index.merge(tmp_path / "out", [tmp_path / "a"])
    Index.build(tmp_path / "f", documents(50, 60), encoder).close()
    with pytest.raises(IndexExistsError, match="an index exists there"):
        Index.merge(tmp_path / "d", [tmp_path / "a", tmp_path / "f"])


def test_ids_are_compared_in_one_pass_of_all_indexes(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, many = [], Ids.many
    monkeypatch.setattr(Ids, "many", lambda self, rows: (read.extend(rows), many(self, rows))[1])
    for number in range(5):
        Index.build(tmp_path / str(number), documents(10 * number, 10 * number + 10), encoder).close()
    Index.merge(tmp_path / "all", [tmp_path / str(number) for number in range(5)]).close()
    assert len(read) == 50
    with Index.open(tmp_path / "all", encoder) as merged:
        merged.verify()
    assert len(read) == 100


@pytest.mark.parametrize("at_once", [1 << 24, 7])
@pytest.mark.parametrize("hashed", ["well", "badly"])
def test_a_shared_id_is_found(monkeypatch: pytest.MonkeyPatch, at_once: int, hashed: str) -> None:
    monkeypatch.setattr(storage_ids, "_HASHES_AT_ONCE", at_once)
    monkeypatch.setattr(storage_ids, "_REPEATED_AT_ONCE", 2)
    if hashed == "badly":
        monkeypatch.setattr(storage_ids, "hash", lambda name: len(name) - 2, raising=False)

    def found(*sources: list[str]) -> tuple[str, int, int] | None:
        several = [partial(iter, [source[:3], [], source[3:]]) for source in sources]
        return shared_id(several, sum(map(len, sources)))

    names = [f"k{n}" for n in range(200)]
    assert found(names[:90], names[90:150], names[150:]) is None
    assert found(names[:90], names[90:150], [*names[150:], "k33"]) == ("k33", 0, 2)
    assert found(names[:90], [*names[90:150], "k199"], names[150:]) == ("k199", 1, 2)
    assert found([], ["a", "a", "b"], ["c"]) is None
    assert found([], []) is None


def test_verify_encodes_some_again(index: Index) -> None:
    assert index.verify(sample=40) == {
        "files": 3,
        "documents": 500,
        "encoded": 40,
        "agreement": pytest.approx(1.0, abs=1e-5),
    }
    encode = index.encoder.encode_document
    index.encoder.encode_document = lambda texts, **options: encode(
        [text + " changed words" for text in texts], **options
    )
    with pytest.raises(
        IndexDamagedError, match=r"the vector of the document 'k\d+' is not the one the model computes"
    ):
        index.verify(sample=40)


def test_verify_finds_an_id_in_two_segments(index: Index) -> None:
    index.add([Document("x", "zz")])
    segment = index.path / "segments" / index.generation.manifest.segments[1].name
    keys, texts = segment / "keys", segment / "documents.sqlite"
    keys.write_bytes(keys.read_bytes().replace(b"zz", b"k1"))
    with contextlib.closing(sqlite3.connect(texts, isolation_level=None)) as db:
        db.execute("UPDATE documents SET key = 'k1'")
    with (
        Index.open(index.path) as damaged,
        pytest.raises(IndexDamagedError, match="does not match its SHA-256"),
    ):
        damaged.verify()
    manifest = index.path / "manifests" / current_name(index.path)
    content = json.loads(manifest.read_bytes())
    content["segments"][1]["files"] |= {file.name: asdict(hash_file(file)) for file in (keys, texts)}
    manifest.write_text(json.dumps(content))
    with (
        Index.open(index.path) as damaged,
        pytest.raises(IndexDamagedError, match=r"the id 'k1' is in .* and in .*; build the index again"),
    ):
        damaged.verify()


def test_damaged_tombstones_are_named(index: Index, encoder: FakeEncoder) -> None:
    index.delete(["k1"])
    (bits,) = (index.path / "tombstones").iterdir()
    content = bits.read_bytes()
    bits.write_bytes(content[:-1])
    with pytest.raises(IndexDamagedError, match=r"\.bits: 62 bytes, but the manifest says 63"):
        Index.open(index.path)
    bits.write_bytes(content)
    with Index.open(index.path) as opened:
        for altered in (bytes(len(content)), bytes([4]) + content[1:]):
            bits.write_bytes(altered)
            with pytest.raises(IndexDamagedError, match=r"\.bits: the content does not match its SHA-256"):
                Index.open(index.path)
            with pytest.raises(IndexDamagedError, match=r"\.bits: the content does not match its SHA-256"):
                opened.verify()
    bits.unlink()
    with pytest.raises(IndexDamagedError, match="missing, though the index lists it"):
        Index.open(index.path)


def test_a_build_that_needs_more_memory_than_one_part_searches_all(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("embedkit.index.build.build_parts.faiss_budget", lambda bound: 64 * 32 * 8)
        built = Index.build(tmp_path / "index", documents(0, 500), encoder)
    with built as index:
        (segment,) = index.generation.segments
        assert [part.rows for part in segment.parts] == [64] * 7 + [52]
        index.delete(where="n % 3 = 0")
        index.verify(sample=100)
        assert ids(index, where="n < 100") == {f"k{n}" for n in range(100) if n % 3}
        exact = (
            encoder.encode_query(["text 7 of 7"], normalize_embeddings=True)
            @ segment.raw.gather(np.arange(500)).T
        )
        exact[0, ::3] = -9
        scores, _ = index.search_vectors(encoder.encode_query(["text 7 of 7"]), 20)
        np.testing.assert_allclose(scores[0], np.sort(exact[0])[::-1][:20], atol=1e-5)
        assert index.compact()
        assert len(index.generation.segments[0].parts) == 1


def test_threads_share_the_vectors_of_a_segment(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FaissVectors] = []

    class Slow(FaissVectors):
        def __init__(self, *args: Any) -> None:
            time.sleep(0.05)
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr("embedkit.index.storage.segment.FaissVectors", Slow)
    with Index.open(index.path) as opened, ThreadPoolExecutor(4) as pool:
        segment = opened.generation.segments[0]
        assert len({id(vectors) for vectors in pool.map(lambda _: segment.raw, range(4))}) == len(made) == 1


def test_full_disk_while_changing_leaves_the_generation(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("embedkit.index.storage.layout.os.fsync", full)
    for command in (lambda: index.delete(["k1"]), lambda: index.add(documents(600, 601))):
        with pytest.raises((OSError, BuildError), match="No space left"):
            command()
    monkeypatch.undo()
    assert len(index) == 500
    with Index.open(index.path) as again:
        again.verify()
        assert len(again) == 500


def test_a_change_of_type_is_a_change(index: Index) -> None:
    index.upsert([Document("typed", "t", {"n": 1, "nested": {"on": 1}})])
    assert index.upsert([Document("typed", "t", {"n": 1, "nested": {"on": 1}})]).unchanged == 1
    assert index.upsert([Document("typed", "t", {"n": 1.0, "nested": {"on": True}})]).replaced == 1
    (stored,) = index.get("t")
    assert repr(stored.metadata) == "{'n': 1.0, 'nested': {'on': True}}"


def test_a_null_character_ends_no_id(index: Index) -> None:
    before = len(index)
    assert index.delete(["k1\0b"], missing_ok=True) == 0
    assert not index.get("k1\0b")
    assert len(index) == before


def test_what_reads_while_another_compacts(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "index"
    index = Index.build(path, documents(0, 40), encoder)
    index.add(documents(40, 60))
    copy = pickle.loads(pickle.dumps(index))
    with Index.open(path, encoder) as other:
        other.compact()
    assert copy.search("text 7", k=1)[0][0].id == "k7"
    Index.build(tmp_path / "b", documents(60, 70), encoder).close()

    def compacting(root: Path, *arguments: Any, **options: Any) -> Generation:
        opened = open_generation(root, *arguments, **options)
        if root == path and not monkeypatched:
            monkeypatched.append(root)
            with Index.open(path, encoder) as other:
                other.delete(["k9"])
                other.compact()
        return opened

    monkeypatched: list[Path] = []
    monkeypatch.setattr(change, "open_generation", compacting)
    with Index.merge(tmp_path / "all", [path, tmp_path / "b"]) as merged:
        assert len(merged) == 69
    monkeypatched.clear()
    monkeypatch.setattr(change, "open_generation", open_generation)
    monkeypatch.setattr(transfer, "open_generation", compacting)
    with Index.open(path, encoder) as other:
        other.add([Document("text 9", "k9")])
        other.compact()
        assert other.export_faiss(tmp_path / "out.faiss") == 60
    assert faiss.read_index(str(tmp_path / "out.faiss")).ntotal == 60
    assert sorted(one.name for one in tmp_path.glob("out*")) == ["out.faiss", "out.faiss.ids.jsonl"]


def test_a_model_whose_vectors_the_index_cannot_hold_is_refused_before_the_work(tmp_path: Path) -> None:
    class Unused(FakeEncoder):
        def encode_document(self, sentences: list[str], **_: Any) -> np.ndarray:
            raise AssertionError("a text was encoded")

    texts = [f"text {n}" for n in range(300)]
    with Index.build(tmp_path / "index", texts, FakeEncoder(), factory="PQ8") as index:
        with pytest.raises(
            ValueError, match=r"do not fit .*'PQ8' for 20 dimensions.* compact .*--factory auto"
        ):
            index.reembed(Unused("new", truncate_dim=20))
        index.add([Document("one more", "300")])
        index.compact(factory="auto")
        assert index.reembed(FakeEncoder("new", truncate_dim=20)).documents == 301
        assert index.dimension == 20


def test_many_documents_are_looked_up_in_blocks(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant in (
        "build.change._AT_ONCE",
        "build.publish._IDS_AT_ONCE",
        "storage.document_store._MATCHES_AT_ONCE",
    ):
        monkeypatch.setattr(f"embedkit.index.{constant}", 8)
    assert ids(index, where="n % 7 = 0") == {f"k{n}" for n in range(0, 500, 7)}
    assert index.delete([f"k{n}" for n in range(30)]) == 30
    with pytest.raises(InputError, match="no document with the id 'k29'"):
        index.delete([f"k{n}" for n in range(59, 28, -1)])
    written = index.upsert(documents(30, 60, "new"))
    assert (written.documents, written.replaced) == (30, 30)
    assert {one.id for one in index if one.text.startswith("new")} == {f"k{n}" for n in range(30, 60)}
    assert len(index) == 470
    index.verify()


@pytest.mark.parametrize("bound", ["rows", "characters"])
def test_documents_are_copied_in_blocks_without_deleted_ones(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    if bound == "rows":
        monkeypatch.setattr(Segment.scan, "__defaults__", (8,))
        monkeypatch.setattr(transfer, "_ROWS_OF_A_GROUP", 8)
    else:
        monkeypatch.setattr("embedkit.index.storage.segment.CHARACTERS_AT_ONCE", 150)
    kept = [one for one in documents(0, 60) if int(str(one.id)[1:]) % 9 not in (0, 4, 5)]
    vectors = encoder.encode_document([one.text for one in kept], normalize_embeddings=True)
    with Index.build(tmp_path / "index", documents(0, 60), encoder) as index:
        index.delete(where="n % 9 in (0, 4, 5)")
        assert index.export_parquet(tmp_path / "all.parquet") == len(kept)
        table = parquet.read_table(tmp_path / "all.parquet")
        assert table["id"].to_pylist() == [one.id for one in kept]
        np.testing.assert_allclose(np.stack(table["vector"].to_numpy()), vectors, atol=1e-6)
        assert index.compact()
        assert [(one.id, one.text) for one in index] == [(one.id, one.text) for one in kept]
        np.testing.assert_allclose(
            index.generation.vectors(index.generation.living_rows()), vectors, atol=1e-6
        )
        index.verify(sample=60)


def test_ids_of_deleted_documents_are_free_in_every_block(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedkit.index.storage.segment._IDS_AT_ONCE", 8)
    Index.build(tmp_path / "b", documents(10, 30), encoder).close()
    with Index.build(tmp_path / "a", documents(0, 60), encoder) as a:
        a.delete(where="n >= 10 and n < 29")
        with pytest.raises(InputError, match="the id 'k29' is in"):
            Index.merge(tmp_path / "all", [tmp_path / "a", tmp_path / "b"])
        a.delete("k29")
        assert [one for block in a.generation.living_ids() for one in block] == [
            f"k{n}" for n in range(60) if not 10 <= n < 30
        ]
    with Index.merge(tmp_path / "all", [tmp_path / "a", tmp_path / "b"]) as merged:
        assert len(merged) == 60
        merged.verify()
