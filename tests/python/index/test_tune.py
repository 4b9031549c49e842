"""`Index.build(target_recall=…)`, `Index.tune` and their commands, on an index of fake vectors."""

from __future__ import annotations

import functools
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder

pytest.importorskip("faiss")

from embedkit.cli import main as cli
from embedkit.index import BuildError, Document, Index
from embedkit.index.build import change


@functools.cache
def _word(word: str, dimension: int) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(word.encode())).standard_normal(dimension)


class WordEncoder(FakeEncoder):
    """Each word is a Gaussian vector, so that no two texts are equally far from a third."""

    def encode_document(self, sentences: list[str], *, normalize_embeddings: bool = False) -> np.ndarray:
        vectors = np.zeros((len(sentences), self.dimension), np.float32)
        for row, text in enumerate(sentences):
            vectors[row] = sum(_word(word, self.dimension) for word in text.split())
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    encode_query = encode_document


WORDS = [f"w{number}" for number in range(300)]


def texts(count: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    topics = random.integers(0, 20, count)
    return [
        " ".join(WORDS[(topic * 13 + offset) % 300] for offset in random.integers(0, 25, 6)) + f" n{number}"
        for number, topic in enumerate(topics)
    ]


@pytest.fixture
def inverted(tmp_path: Path) -> Index:
    documents = [Document(text, f"d{number}") for number, text in enumerate(texts(3000))]
    return Index.build(tmp_path / "index", documents, WordEncoder(), factory="IVF32,Flat")


def recall(index: Index, queries: np.ndarray) -> float:
    generation = index.generation
    vectors = generation.vectors(generation.living_rows())
    truth = generation.living_rows()[np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :10]]
    _, found = index.search_vectors(queries, 10)
    return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, truth, strict=True)]))


def test_tune_stores_the_smallest_nprobe_that_reaches_the_target(inverted: Index) -> None:
    queries = WordEncoder().encode_query(texts(200, seed=1), normalize_embeddings=True)
    tuned = inverted.tune(0.9, queries)
    assert tuned is not None
    assert tuned.reached
    nprobe = tuned.point.parameters.nprobe
    assert inverted.info()["nprobe"] == nprobe
    assert recall(inverted, queries) == pytest.approx(tuned.point.recall)
    assert tuned.point.recall >= 0.9
    with Index.open(inverted.path) as again:
        assert again.info()["nprobe"] == nprobe
        assert again.info()["tuning"]["tuned"]["target_recall"] == 0.9
    assert min(point.sure_recall for point in tuned.points) < 0.9


def test_stored_vectors_are_left_out_of_their_own_hits_and_deleted_ones_of_all(inverted: Index) -> None:
    inverted.delete([f"d{number}" for number in range(0, 3000, 3)])
    tuned = inverted.tune(1.0, store=False)
    assert tuned is not None
    assert tuned.stored_queries
    assert tuned.to_dict()["stored_queries"]
    assert tuned.queries == 1000
    best = tuned.points[-1]
    assert best.parameters.nprobe <= 32
    assert best.recall == 1.0
    assert "tuned" not in (inverted.info()["tuning"] or {})


def test_of_repeated_texts_any_is_a_hit(tmp_path: Path) -> None:
    repeated = [text for text in texts(100) for _ in range(20)]
    documents = [Document(text, f"d{at}") for at, text in enumerate(texts(1000, seed=1) + repeated)]
    with Index.build(tmp_path / "index", documents, WordEncoder(), factory="IVF16,Flat") as index:
        tuned = index.tune(1.0, store=False)
        assert tuned is not None
        assert tuned.reached


def test_an_exact_index_has_nothing_to_tune(tmp_path: Path) -> None:
    with Index.build(tmp_path / "index", texts(50), WordEncoder(), factory="Flat") as index:
        assert index.tune(0.9) is None
        with pytest.raises(ValueError, match="target_recall must be above 0 and at most 1, not 5"):
            index.tune(5)


def test_a_build_with_a_target_stores_the_table_and_uses_its_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedkit.index.storage.faiss_index.AUTO_IVF_ROWS", 2000)
    monkeypatch.setattr(
        "embedkit.index.auto.choice.candidates",
        lambda rows, dimension: ["Flat", "RR32,IVF60,PQ16x4fsr,RFlat"],
    )
    with Index.build(tmp_path / "index", texts(3000), WordEncoder(), target_recall=0.8) as index:
        tuning = index.info()["tuning"]
        assert [one["factory"] for one in tuning["table"]] == ["Flat", "RR32,IVF60,PQ16x4fsr,RFlat"]
        assert index.info()["factory"] == tuning["chosen"]["factory"]
        assert tuning["reached"]
        part = index.generation.segments[0].parts[0]
        assert part.nprobe == tuning["chosen"]["setting"]["nprobe"]
        if part.nprobe is not None:
            assert part.index.k_factor == tuning["chosen"]["setting"]["k_factor"]
        assert {path.name for path in (tmp_path / "index" / "segments").rglob("choice.json")} == set()


def test_what_was_chosen_on_a_sample_is_measured_on_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedkit.index.storage.faiss_index.AUTO_IVF_ROWS", 400)
    monkeypatch.setattr("embedkit.index.auto.stored.SAMPLE_ROWS", 1500)
    monkeypatch.setattr("embedkit.index.auto.stored.QUERIES", 100)
    monkeypatch.setattr("embedkit.index.auto.choice.candidates", lambda rows, dimension: ["IVF60,Flat"])
    with Index.build(tmp_path / "index", texts(3000), WordEncoder(), target_recall=0.9) as index:
        tuning = index.info()["tuning"]
        assert tuning["sample_rows"] < tuning["rows"] == 3000
        assert tuning["tuned"]["point"]["sure_recall"] >= 0.9
        assert index.info()["nprobe"] == tuning["tuned"]["point"]["setting"]["nprobe"]


def test_a_search_visits_the_same_share_of_other_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedkit.index.storage.faiss_index.AUTO_IVF_ROWS", 400)
    documents = [Document(text, f"d{number}") for number, text in enumerate(texts(1600))]
    with Index.build(tmp_path / "index", documents[:800], WordEncoder()) as index:
        index.set_search_defaults(nprobe=10, tuning={"recall": 0.9})
        index.delete("d0")
        assert index.compact()
        assert (index.info()["nlist"], index.info()["nprobe"]) == (20, 10)
        assert index.info()["tuning"] == {"recall": 0.9}
        index.add(documents[800:])
        assert index.compact()
        assert (index.info()["nlist"], index.info()["nprobe"]) == (41, 21)
        assert index.info()["tuning"] is None
        index.delete([f"d{number}" for number in range(100, 1600)])
        assert index.compact()
        assert (index.info()["factory"], index.info()["nprobe"]) == ("Flat", None)


def test_a_target_belongs_to_auto(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"target_recall needs the factory 'auto', not 'Flat'"):
        Index.build(tmp_path / "index", ["a"], WordEncoder(), factory="Flat", target_recall=0.9)
    with pytest.raises(ValueError, match=r"above 0 and at most 1, not 2"):
        Index.build(tmp_path / "index", ["a"], WordEncoder(), target_recall=2)


@pytest.fixture
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.Encoder", WordEncoder)


@pytest.mark.usefixtures("_fake")
def test_the_command_tunes_plots_and_reports(
    inverted: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "tune.png"
    assert cli.main(["tune", str(inverted.path), "--target-recall", "0.9", "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "(chosen)" in out
    assert picture.read_bytes()[:4] == b"\x89PNG"
    inside = str(inverted.path / "tune.png")
    assert cli.main(["tune", str(inverted.path), "--target-recall", "0.9", "--plot", inside]) == 2
    assert "lies in the folder of the index" in capsys.readouterr().err
    inverted.refresh()
    stored = inverted.info()["tuning"]["tuned"]["point"]["setting"]["nprobe"]
    assert f"nprobe {stored}  (chosen)" in out
    assert cli.main(["tune", str(inverted.path), "--target-recall", "0.5", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target_recall"] == 0.5
    inverted.refresh()
    assert inverted.info()["tuning"]["tuned"]["target_recall"] == 0.9


@pytest.mark.usefixtures("_fake")
def test_the_command_builds_with_a_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(texts(500)) + "\n", encoding="utf-8")
    pytest.importorskip("matplotlib")
    picture = tmp_path / "auto.png"
    command = ["build", str(corpus), "-o", str(tmp_path / "index"), "--target-recall", "0.95"]
    assert cli.main([*command, "--plot", str(tmp_path / "auto.gif")]) == 2
    assert "a plot's file name must end in .png, .svg, .pdf" in capsys.readouterr().err
    assert cli.main([*command[:4], "--plot", str(picture)]) == 2
    assert "--plot draws what --target-recall measures" in capsys.readouterr().err
    assert not (tmp_path / "index").exists()
    assert cli.main([*command, "--plot", str(picture)]) == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"
    out = capsys.readouterr().out
    assert "recall@10 ≥ 0.95 of 50 held-out vectors, on all 500 vectors" in out
    assert "(chosen)" in out
    assert cli.main([*command, "--overwrite", "--factory", "Flat"]) == 2
    assert "leave out one of them" in capsys.readouterr().err
    assert cli.main(["tune", str(tmp_path / "index"), "--target-recall", "3"]) == 2


def test_defaults_that_could_not_be_read_again_are_refused(
    inverted: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: dict[str, Any]
    for wrong in ({"nprobe": 2.0}, {"nprobe": True}, {"rescore": False}, {"tuning": [1]}):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be an? (integer|dict), not"):
            inverted.set_search_defaults(**wrong)
    for wrong in ({"nprobe": 33}, {"rescore": -1}, {"rescore": 10**15}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            inverted.set_search_defaults(**wrong)
    for tuning, error, told in (
        ({"tuned": "yes"}, TypeError, r"tuning\['tuned'\] must be a dict, not 'yes'"),
        ({"chosen": None}, TypeError, r"tuning\['chosen'\] must be a dict, not None"),
        ({"a": float("nan")}, ValueError, "tuning must be JSON: .*not JSON compliant"),
        ({"a": np.float32(1)}, TypeError, "tuning must be JSON: Object of type float32"),
        ({"chosen": {"setting": {"nprobe": -5}}}, ValueError, "nprobe must be at least 1, not -5"),
    ):
        with pytest.raises(error, match=told):
            inverted.set_search_defaults(tuning=tuning)
    for target in ("0.9", None, [0.9]):
        with pytest.raises(TypeError, match="target_recall must be a number, not"):
            inverted.tune(target)  # type: ignore[arg-type]
    inverted.set_search_defaults(nprobe=np.int64(3), rescore=0)  # type: ignore[arg-type]
    manifest = inverted.generation.manifest
    monkeypatch.setattr(change, "dated", lambda manifest, _: replace(manifest, generation=-1))
    with pytest.raises(AssertionError, match="was not written"):
        inverted.delete("d1")
    with Index.open(inverted.path) as again:
        assert again.generation.manifest == manifest
        assert (manifest.nprobe, manifest.rescore) == (3, None)


def test_defaults_that_are_not_given_stay(inverted: Index) -> None:
    tuned = inverted.tune(0.9)
    assert tuned is not None
    for rescore in (4, None):
        inverted.set_search_defaults(rescore=rescore or 0)
        manifest = inverted.generation.manifest
        assert (manifest.nprobe, manifest.rescore) == (tuned.point.parameters.nprobe, rescore)
        assert manifest.tuning == {"tuned": tuned.to_dict()}
    inverted.set_search_defaults(nprobe=1)
    manifest = inverted.generation.manifest
    assert (manifest.nprobe, manifest.tuning) == (1, None)  # measured with another
    inverted.set_search_defaults()
    assert inverted.generation.manifest.nprobe is None


def test_a_default_of_0_that_an_earlier_version_wrote_is_read(inverted: Index) -> None:
    path = inverted.path / "manifests" / inverted.generation.manifest.filename
    path.write_text(path.read_text().replace('"rescore": null', '"rescore": 0'))
    with Index.open(inverted.path, WordEncoder()) as again:
        assert again.generation.manifest.rescore is None
        assert len(again.search("w1 w2")[0]) == 10


def test_an_encoder_whose_fingerprint_is_no_string(tmp_path: Path) -> None:
    class Numbered(FakeEncoder):
        fingerprint: Any = 5

    with pytest.raises(TypeError, match="fingerprint must be a string, not 5"):
        Index.build(tmp_path / "other", ["a cat"], Numbered())
    assert not (tmp_path / "other").exists()


def test_what_another_process_stores_during_a_tune_stays(inverted: Index) -> None:
    with Index.open(inverted.path) as other:
        other.set_search_defaults(rescore=3, tuning={"of": "another"})
    tuned = inverted.tune(0.9)  # of the generation before
    assert tuned is not None
    manifest = inverted.generation.manifest
    assert (manifest.nprobe, manifest.rescore) == (tuned.point.parameters.nprobe, 3)
    assert manifest.tuning == {"of": "another", "tuned": tuned.to_dict()}
    with Index.open(inverted.path) as other:
        other.compact(factory="IVF8,Flat")
    with pytest.raises(BuildError, match="another process has changed the kind of index"):
        inverted.tune(0.9)
    with pytest.raises(ValueError, match="nprobe must be from 1 to 8"):
        inverted.set_search_defaults(nprobe=20)
