"""An index as a mapping of ids, an iterable, and a pickle."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from fake_encoder import FakeEncoder

import embedkit
from embedkit.index import Index, ModelMismatchError, StoredDocument


@pytest.fixture
def index(tmp_path: Path) -> Index:
    documents = [embedkit.Document(f"text {n}", f"k{n}", {"n": n}) for n in range(5)]
    index = Index.build(tmp_path / "index", documents, FakeEncoder())
    index.delete("k3")
    return index


def test_ids_and_iteration(index: Index) -> None:
    assert index["k2"] == StoredDocument("k2", "text 2", {"n": 2})
    assert "k2" in index
    assert "k3" not in index
    assert 2 not in index
    assert [document.id for document in index] == ["k0", "k1", "k2", "k4"]
    with pytest.raises(KeyError, match="k3"):
        index["k3"]
    with pytest.raises(TypeError, match="ids are strings, not int"):
        index[2]  # type: ignore[index]


def test_a_pickle_opens_what_is_live(index: Index) -> None:
    packed = pickle.dumps(index)
    index.delete("k0")
    with pickle.loads(packed) as copy:
        assert [document.id for document in copy] == ["k1", "k2", "k4"]
        assert copy.search("text 4", k=1) == index.search("text 4", k=1)
        copy.add([embedkit.Document("text 9", "k9")])
    assert index.refresh()
    assert "k9" in index


def test_a_pickle_does_not_search_vectors_of_another_model(index: Index) -> None:
    packed = pickle.dumps(index)
    index.reembed(FakeEncoder("other"))
    with pytest.raises(ModelMismatchError, match="built with other"):
        pickle.loads(packed)


def test_a_pickle_of_an_index_that_was_forced_open_is_forced_open(index: Index) -> None:
    with pytest.warns(UserWarning, match="may be meaningless"):
        forced = Index.open(index.path, FakeEncoder("other"), force=True)
    with forced, pytest.warns(UserWarning, match="may be meaningless"):
        copy = pickle.loads(pickle.dumps(forced))
    with copy:
        assert len(copy.search("text 4", k=4)[0]) == 4


def test_the_names_that_info_prints_open_a_model(tmp_path: Path) -> None:
    first = Index.build(tmp_path / "a", ["one", "two"])
    name = first.info()["model"]
    with Index.build(tmp_path / "b", ["one", "two"], name) as second:
        assert second.info()["fingerprint"] == first.info()["fingerprint"]
    with Index.open(tmp_path / "a", name) as again:
        assert again.search("one", k=1)[0][0].text == "one"
