"""An index of a model whose vectors take a byte a column, and one of a model that is built in no longer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit import Encoder
from embedkit.cli.main import main
from embedkit.index import Document, Index, ModelMismatchError
from embedkit.index.search import searcher
from embedkit.index.storage.faiss_index import resolve_factory
from embedkit.index.storage.generation import Generation
from embedkit.model_folder.folder import BUILTIN, FORMER_BUILTIN


class InBytes(FakeEncoder):
    """An encoder of a model that says so."""

    precision_of_index = "int8"

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "index_precision": self.precision_of_index}


class InSixBits(InBytes):
    """Vectors of which six bits a column are enough."""

    precision_of_index = "int6"


class Turned(FakeEncoder):
    """Another model: the vectors of FakeEncoder, turned round."""

    def __init__(self, model: str = "turned") -> None:
        super().__init__(model)

    def encode_document(self, sentences: list[str], *, normalize_embeddings: bool = False) -> np.ndarray:
        return -super().encode_document(sentences, normalize_embeddings=normalize_embeddings)

    encode_query = encode_document


def corpus(rows: int, dimension: int = 32) -> tuple[np.ndarray, list[Document]]:
    vectors = np.random.default_rng(1).standard_normal((rows, dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors, [
        Document(f"number {n}", f"k{n}", {"n": n}, vector=vector) for n, vector in enumerate(vectors)
    ]


def test_auto_in_bytes() -> None:
    assert resolve_factory("auto-int8", 500) == "SQ8"
    assert resolve_factory("auto-int8", 30_000) == resolve_factory("auto", 30_000).replace("Flat", "SQ8")
    assert resolve_factory("auto-int6", 500) == "SQ6"


def test_a_byte_a_column_by_default_and_said_so(tmp_path: Path) -> None:
    vectors, documents = corpus(2000)
    with Index.build(tmp_path / "a", documents, InBytes()) as index:
        about = index.info()
        assert (about["factory"], about["kept"]) == ("SQ8", "none")
        assert 32 <= about["bytes_per_vector"] < 33
        queries = vectors[:50]
        scores, rows = index.search_vectors(queries, 10)
        exact = queries @ vectors.T
        np.testing.assert_allclose(scores, np.take_along_axis(exact, rows, axis=1), atol=0.01)
        best = np.argsort(-exact, axis=1)[:, :10]
        assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows, best, strict=True)]) > 0.97
        # filters, additions and compaction work from the codes
        scores, rows = index.search_vectors(queries, 3, where="n % 50 = 7")
        assert (rows % 50 == 7).all()
        np.testing.assert_allclose(scores, np.sort(exact[:, 7::50], axis=1)[:, ::-1][:, :3], atol=0.01)
        index.add([Document("one more", "new")])
        index.delete(["k3"])
        assert index.compact()
        about = index.info()
        assert (about["factory"], about["documents"], about["segments"]) == ("SQ8", 2000, 1)
        assert index.verify()["documents"] == 2000
    with Index.build(tmp_path / "b", documents, InBytes(), factory="Flat") as index:
        assert index.info()["factory"] == "Flat"
    with Index.build(tmp_path / "c", documents, FakeEncoder()) as index:
        assert (index.info()["factory"], index.info()["bytes_per_vector"]) == (
            "Flat",
            pytest.approx(128, abs=1),
        )
        index.reembed(InBytes("other"))  # an automatic choice is made anew
        assert (index.info()["factory"], index.info()["kept"]) == ("SQ8", "none")
        index.reembed(FakeEncoder("third"))
        assert index.info()["factory"] == "Flat"


def test_six_bits_a_column(tmp_path: Path) -> None:
    vectors, documents = corpus(2000)
    exact = vectors[:50] @ vectors.T
    best = np.argsort(-exact, axis=1)[:, :10]
    with Index.build(tmp_path / "a", documents, InSixBits()) as index:
        about = index.info()
        assert (about["factory"], about["kept"]) == ("SQ6", "none")
        assert 24 <= about["bytes_per_vector"] < 25
        scores, rows = index.search_vectors(vectors[:50], 10)
        np.testing.assert_allclose(scores, np.take_along_axis(exact, rows, axis=1), atol=0.03)
        assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows, best, strict=True)]) > 0.9
        assert index.verify()["documents"] == 2000
        with pytest.raises(ValueError, match="rescore does not apply: the index is SQ6 and keeps no vectors"):
            index.search_vectors(vectors[:2], 10, rescore=4)


@pytest.mark.parametrize("encoder", [InBytes(), InSixBits()])
def test_codes_stay_as_they_are_however_often_they_are_compacted(tmp_path: Path, encoder: InBytes) -> None:
    vectors, documents = corpus(1000)
    with Index.build(tmp_path / "a", documents, encoder) as index:
        first = index.search_vectors(vectors, 10)
        for _ in range(4):
            index.upsert(documents[-1:])  # the last again, so that all rows stay in their order
            assert index.compact()
            again = index.search_vectors(vectors, 10)
            np.testing.assert_array_equal(again[1], first[1])
            np.testing.assert_allclose(again[0], first[0], atol=1e-5)


def test_many_documents_in_bytes(tmp_path: Path) -> None:
    vectors, documents = corpus(20_500, 16)
    encoder = InBytes(truncate_dim=16)
    with Index.build(tmp_path / "a", documents, encoder) as index:
        assert index.info()["factory"] == resolve_factory("auto-int8", 20_500)
        assert index.info()["bytes_per_vector"] < 30  # 8 of them the row's number, and the centroids' share
        _, rows = index.search_vectors(vectors[:100], 1, nprobe=64)
        assert (rows[:, 0] == np.arange(100)).mean() > 0.98


def test_codes_alone_must_be_readable(tmp_path: Path) -> None:
    vectors, documents = corpus(500)
    with Index.build(tmp_path / "a", documents, FakeEncoder(), factory="SQfp16", kept="none") as index:
        assert index.info()["kept"] == "none"
        index.delete(["k1"])
        assert index.compact(factory="SQ4")
        assert index.info()["kept"] == "int8"
    for factory in ("PQ8", "PCA16,SQ8", "OPQ8_16,Flat"):
        with pytest.raises(ValueError, match="kept 'none' needs codes that vectors can be read back from"):
            Index.build(tmp_path / "b", documents, FakeEncoder(), factory=factory, kept="none")
    for number, factory in enumerate(("OPQ8,SQ8", "PCA16,PQ8x4,RFlat")):  # nothing is lost
        with Index.build(
            tmp_path / str(number), documents, FakeEncoder(), factory=factory, kept="none"
        ) as index:
            stored = index.generation.vectors(np.arange(500))
            assert np.einsum("ij,ij->i", stored, vectors).min() > 0.99


def test_what_is_asked_for_is_kept_beside_the_codes(tmp_path: Path) -> None:
    _, documents = corpus(300)
    with Index.build(tmp_path / "a", documents, InBytes(), kept="fp32") as index:
        assert (index.info()["factory"], index.info()["kept"]) == ("SQ8", "fp32")
        index.delete(["k0"])
        assert index.compact(factory="auto")
        assert (index.info()["factory"], index.info()["kept"]) == ("SQ8", "fp32")
        index.reembed(InBytes("other"))
        assert (index.info()["factory"], index.info()["kept"]) == ("SQ8", "fp32")
        assert index.compact(factory="auto-int6")
        assert (index.info()["factory"], index.info()["kept"]) == ("SQ6", "fp32")
    with Index.build(tmp_path / "b", documents, FakeEncoder(), factory="auto-int8") as index:
        assert (index.info()["factory"], index.info()["kept"]) == ("SQ8", "none")
        assert index.compact(factory="Flat")
        assert index.compact(factory="auto-int6")
        assert (index.info()["factory"], index.info()["kept"]) == ("SQ6", "none")
        index.delete(["k0"])
        assert index.compact(factory="auto")  # as its build chose, not Flat
        assert index.info()["factory"] == "SQ6"
    with Index.build(tmp_path / "c", documents, InBytes(), kept="none") as index:
        assert (index.info()["factory"], index.info()["kept"]) == ("SQ8", "none")
        index.reembed(FakeEncoder("other"))  # what is kept by default is chosen anew
        assert index.generation.manifest.kept == "fp32"
    with Index.build(tmp_path / "d", documents, FakeEncoder(), factory="SQ8") as index:
        assert index.compact(factory="auto-int8")
        assert index.info()["kept"] == "fp32"
        index.search("number", rescore=4)
    with Index.build(tmp_path / "e", documents, FakeEncoder(), kept="int8") as index:
        assert index.compact(factory="auto-int6")
        assert index.info()["kept"] == "int8"


def test_codes_that_were_asked_for_are_kept_by_another_model(tmp_path: Path) -> None:
    documents = [Document(f"text {n}", str(n)) for n in range(50)]
    with Index.build(tmp_path / "a", documents, FakeEncoder(), factory="auto-int8") as index:
        index.reembed(FakeEncoder("other"))
        assert (index.info()["factory"], index.info()["kept"]) == ("SQ8", "none")
        index.reembed(InSixBits("third"))
        assert index.info()["factory"] == "SQ8"
    with Index.build(tmp_path / "b", documents, FakeEncoder()) as index:
        assert index.compact(factory="auto-int6")
        index.reembed(FakeEncoder("other"))
        assert index.info()["factory"] == "SQ6"


def test_eval_measures_what_build_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs.jsonl").write_text('{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n', "utf-8")
    (tmp_path / "pairs.tsv").write_text("one\ta\n", "utf-8")
    command = ["eval", str(tmp_path / "docs.jsonl"), "--pairs", str(tmp_path / "pairs.tsv"), "--json"]
    assert main([*command, "--factory", "auto", "--factory", "auto-int8"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    codes = {"int8": "SQ8", "int6": "SQ6"}[Encoder().describe()["index_precision"]]
    assert {row["factory"] for row in rows} == {codes, "SQ8"}


def test_a_folder_says_so(make_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_model()
    assert Encoder(folder).describe()["index_precision"] is None
    Encoder(folder).save(tmp_path / "a")
    path = tmp_path / "a" / "config_sentence_transformers.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**settings, "index_precision": "int8"}), encoding="utf-8")
    encoder = Encoder(tmp_path / "a")
    assert encoder.fingerprint == Encoder(folder).fingerprint
    encoder.save(tmp_path / "b", precision="int8")
    assert Encoder(tmp_path / "b").describe()["index_precision"] == "int8"
    with Index.build(tmp_path / "index", ["one text", "and another"], encoder) as index:
        assert index.info()["factory"] == "SQ8"
        assert [hit.id for hit in index.search(["one text"], 1)[0]] == ["0"]
    path.write_text(json.dumps({**settings, "index_precision": "int4"}), encoding="utf-8")
    with pytest.raises(ValueError, match="index_precision must be int6, int8 or fp32"):
        Encoder(tmp_path / "a")


def test_a_model_that_was_built_in_is_named_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    former = FakeEncoder(FORMER_BUILTIN[0])
    Index.build(tmp_path / "index", ["one text", "another text"], former).close()
    problem = r"built-in model of an earlier.*embedkit-index reembed"
    with Index.open(tmp_path / "index") as index, pytest.raises(ModelMismatchError, match=problem):
        index.search("one text")
    assert main(["query", str(tmp_path / "index"), "one text"]) != 0
    assert "embedkit-index reembed" in capsys.readouterr().err
    assert main(["reembed", str(tmp_path / "index")]) == 0
    with Index.open(tmp_path / "index") as index:
        assert index.info()["model"] == BUILTIN.name
        assert index.search(["one text"], 1)[0][0].id == "0"


def test_refresh_refuses_vectors_of_another_model(tmp_path: Path) -> None:
    Index.build(tmp_path / "index", ["one text", "another text"], FakeEncoder()).close()
    with Index.open(tmp_path / "index", FakeEncoder()) as index:
        before = index.search(["one text"], 1)
        with Index.open(tmp_path / "index", FakeEncoder()) as writer:
            writer.reembed(FakeEncoder("other"))
        with pytest.raises(ModelMismatchError, match="but the encoder is"):
            index.refresh()
        assert index.search(["one text"], 1) == before  # by the generation that is open


def test_a_search_while_the_index_is_encoded_again_asks_the_model_of_its_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    open_generation = searcher.open_generation

    def meanwhile(*arguments: Any, **options: Any) -> Generation:
        generation = open_generation(*arguments, **options)
        found.append(index.search("one text", 1, hybrid=False)[0][0])
        return generation

    with Index.build(tmp_path / "index", ["one text", "another text"], FakeEncoder()) as index:
        monkeypatch.setattr(searcher, "open_generation", meanwhile)
        index.reembed(Turned())
        assert index.encoder.describe()["model"] == "turned"
        found.append(index.search("one text", 1, hybrid=False)[0][0])
    assert [hit.id for hit in found] == ["0", "0"]
    assert [hit.score for hit in found] == pytest.approx([1, 1])


def test_a_model_loaded_during_a_refresh_is_that_of_the_vectors_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {"fake": FakeEncoder(), "turned": Turned()}
    monkeypatch.setattr(
        "embedkit.index.encoder.load_encoder", lambda manifest, *_: models[manifest.encoder.model]
    )
    Index.build(tmp_path / "index", ["one text", "another text"], FakeEncoder()).close()

    def queries() -> Iterator[str]:
        assert index.refresh()
        yield "one text"

    with Index.open(tmp_path / "index") as index:
        with Index.open(tmp_path / "index") as writer:
            writer.reembed(Turned())
        ((before,),) = index.search(queries(), 1, hybrid=False)  # of the generation before the refresh
        ((after,),) = index.search(["one text"], 1, hybrid=False)
    assert before.id == after.id == "0"
    assert [before.score, after.score] == pytest.approx([1, 1])
