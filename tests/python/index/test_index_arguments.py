"""Arguments of the wrong type, and conditions that fail or take too long: errors that say so."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit.documents.readers import Corpus
from embedkit.index import Document, Index, InputError
from embedkit.index.storage import document_store


@pytest.fixture
def index(tmp_path: Path, encoder: FakeEncoder) -> Iterator[Index]:
    documents = [Document(f"cat {n}", str(n), {"n": n}) for n in range(5)]
    with Index.build(tmp_path / "index", documents, encoder) as opened:
        yield opened


def test_k_is_any_integer(index: Index) -> None:
    assert len(index.search("cat", np.int64(3))[0]) == 3  # type: ignore[arg-type]
    wrong: Any
    for wrong in (1.5, "3", None):
        with pytest.raises(TypeError, match="k must be an integer"):
            index.search("cat", wrong)


@pytest.mark.parametrize("wrong", [-7, "x", 1.5, True])
def test_a_sample_is_a_number_of_documents(index: Index, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="sample must be a positive integer"):
        index.verify(wrong)


@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), -1, "2 GB"])
def test_memory_is_a_number_of_bytes(index: Index, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_memory must be a positive integer"):
        index.compact(max_memory=wrong)


@pytest.mark.parametrize("where", [["n", 3], 5])
def test_a_condition_is_a_string_or_a_dict(index: Index, where: Any) -> None:
    with pytest.raises(TypeError, match="a condition"):
        index.search("cat", where=where)
    with pytest.raises(TypeError, match="a condition"):
        index.delete(where=where)


def test_a_folder_in_the_home_folder(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Index.build("~/index", ["a cat", "a dog"], encoder) as built:
        assert built.path == tmp_path / "index"
        assert built.export_faiss("~/vectors.faiss") == 2
    with Index.open("~/index", encoder) as opened:
        assert len(opened) == 2
    Index.import_faiss(
        "~/imported", "~/vectors.faiss", encoder, [Document("a cow", "x"), Document("a hen", "y")]
    )
    Index.merge("~/both", ["~/index", "~/imported"])
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["both", "imported", "index"]


def test_an_encoder_is_no_number(tmp_path: Path) -> None:
    number: Any = 5
    with pytest.raises(TypeError, match=r"encoder must be .* not int"):
        Index.build(tmp_path / "other", ["a cat"], number)


def test_a_condition_is_not_damage(index: Index) -> None:
    with pytest.raises(ValueError, match="invalid condition"):
        index.search("cat", where="1 'malformed'")


def test_a_condition_that_takes_too_long_is_stopped(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_store, "_MOST_SECONDS", 0.2)
    monkeypatch.setattr(document_store, "_replace", lambda text, *_: time.sleep(0.05) or text)
    with Index.build(tmp_path / "index", [f"cat {n}" for n in range(400)], encoder) as index:
        for _ in range(2):
            begin = time.monotonic()
            with pytest.raises(ValueError, match="was stopped"):
                index.search("cat", where="replace(text, 'a', 'b') = 'x'")
            assert time.monotonic() - begin < 5
            assert len(index.search("cat", where="text = 'cat 7'")[0]) == 1
        monkeypatch.setattr(document_store, "_MOST_SECONDS", 60)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            index.search("cat", where="replace(text, 'a', 'b') = 'x'")
        assert len(index.search("cat", where="text = 'cat 7'")[0]) == 1


def test_a_condition_may_take_longer_in_more_documents_and_any_time_to_delete(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_store, "_MOST_SECONDS", 0.01)
    monkeypatch.setattr(document_store, "_replace", lambda text, *_: time.sleep(0.02) or text)
    where = "replace(text, 'a', 'b') = 'cat 7'"
    with Index.build(tmp_path / "index", [f"cat {n}" for n in range(100)], encoder) as index:
        with pytest.raises(ValueError, match=r"was stopped after 0 s; compare fields with values instead"):
            index.search("cat", where=where)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            index.delete(where=where)
        assert time.monotonic() - begin < 1.5
        assert index.delete(where=where) == 1
        assert len(index) == 99
        monkeypatch.setattr(document_store, "_MOST_SECONDS_OF_A_ROW", 1)
        assert not index.search("cat", where=where)[0]


def test_a_condition_takes_no_memory_for_each_match(index: Index) -> None:
    reader = index.generation.segments[0].documents
    rows = 100_000
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.execute("CREATE TABLE documents (row INTEGER PRIMARY KEY)")
    database.executemany("INSERT INTO documents VALUES (?)", ((row,) for row in range(rows)))
    reader._conditions, reader._rows = database, rows
    tracemalloc.start()
    assert reader.select("true").all()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * rows


def test_a_slow_condition_holds_up_no_other_search(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def slow(text: str, *_: str) -> str:
        begun.set()
        time.sleep(0.05)
        return text

    monkeypatch.setattr(document_store, "_replace", slow)
    index = Index.build(tmp_path / "index", [f"cat {n}" for n in range(400)], encoder)
    with ThreadPoolExecutor(1) as pool:
        slow_one = pool.submit(index.search, "cat", where="replace(text, 'a', 'b') = 'x'")
        assert begun.wait(10)
        assert len(index.search("cat 7", 3)[0]) == 3
        assert not slow_one.done()
        index.close()  # which ends it
        with pytest.raises(ValueError, match="the index is closed"):
            slow_one.result(10)


def test_what_a_condition_looks_for_is_bounded(index: Index) -> None:
    """SQLite compares a pattern, and looks for a text within one, at every place of the text, in one step."""
    with pytest.raises(ValueError, match="invalid condition"):
        index.search("cat", where="replace('aa', 'a', '" + "b" * 9000 + "') like 'b'")
    if sys.version_info >= (3, 11):
        with pytest.raises(ValueError, match="pattern too complex"):
            index.search("cat", where=f"text like '%{'a' * 1000}'")
    assert index.search("cat", where=f"text like '%{'a' * 900}'") == [[]]


def test_metadata_nested_too_deeply_is_refused(tmp_path: Path, encoder: FakeEncoder) -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    documents = [Document("a cat", "1"), Document("a dog", "2", deep)]
    with pytest.raises(InputError, match="cannot be written as JSON"):
        Index.build(tmp_path / "other", documents, encoder)


def test_a_stray_byte_is_not_utf_16(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\xff\xfe two\n")
    with pytest.raises(InputError, match="not valid UTF-8") as raised:
        list(Corpus(path))
    assert "UTF-16" not in str(raised.value)


def test_numbers_of_a_search_are_any_integers(tmp_path: Path, encoder: FakeEncoder) -> None:
    texts = [f"cat {n}" for n in range(200)]
    with Index.build(tmp_path / "index", texts, encoder, factory="HNSW8") as index:
        expected = index.search("cat 7", ef=16)
        assert index.search("cat 7", ef=np.int64(16)) == expected  # type: ignore[arg-type]
        assert index.search("cat 7", ef=2**31 - 1)[0][0].id == "7"  # Faiss would make room for so many
        wrong: Any
        for wrong in (2.5, "8", True):
            with pytest.raises(TypeError, match="ef must be an integer"):
                index.search("cat", ef=wrong)
            with pytest.raises(TypeError, match="rescore must be an integer"):
                index.search_vectors(np.ones(32), rescore=wrong)
        with pytest.raises(ValueError, match="ef must be at most"):
            index.search("cat", ef=2**31)


def test_rows_are_integers(index: Index) -> None:
    scores, rows = index.search_vectors(index.encoder.encode_query(["cat 1"], normalize_embeddings=True), 3)
    assert len(index.ids(rows[0])) == 3
    assert index.ids([]) == []
    assert index.ids(np.array([2, 0], dtype=object)) == ["2", "0"]
    wrong: Any
    for wrong in (scores[0], ["1"], rows, [True]):
        with pytest.raises(TypeError, match="rows must be integers in one dimension"):
            index.ids(wrong)


class Table:
    columns = ("text",)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


@pytest.mark.parametrize("unordered", [{"cat": 1}, {"cat"}, Table()])
def test_what_has_no_order_of_texts_is_refused(index: Index, unordered: Any) -> None:
    with pytest.raises(TypeError, match="an iterable of texts or Documents"):
        index.add(unordered)
    with pytest.raises(TypeError, match="a text, several texts or vectors"):
        index.search(unordered)


def test_an_array_of_texts_is_several_texts(index: Index) -> None:
    for array in (np.array(["cat 1", "cat 2"]), np.array(["cat 1", "cat 2"], dtype=object)):
        assert index.search(array) == index.search(["cat 1", "cat 2"])
    vectors = index.encoder.encode_query(["cat 1"], normalize_embeddings=True)
    assert index.search(vectors.astype(object)) == index.search(vectors)


def test_a_vector_that_is_none_is_left_out(tmp_path: Path, encoder: FakeEncoder) -> None:
    documents = [Document("a cat", "1", vector=[[1, 2], [3]]), Document("a dog", "2")]  # type: ignore[arg-type, list-item]
    problems: list[InputError] = []
    with Index.build(tmp_path / "index", documents, encoder, on_error=problems.append) as built:
        assert [document.id for document in built] == ["2"]
    assert [str(problem) for problem in problems] == ["document 0 ('1'): its vector is not a list of numbers"]
