"""Building an index, exact and approximate search, and what both refuse."""

from __future__ import annotations

import pickle
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit import Encoder
from embedkit.index import BuildError, Document, Index, IndexExistsError, InputError, ModelMismatchError
from embedkit.model_folder.folder import BUILTIN

WORDS = (
    "red",
    "green",
    "blue",
    "cat",
    "dog",
    "bird",
    "runs",
    "sits",
    "flies",
    "over",
    "under",
    "fast",
    "slow",
    "old",
    "new",
    "house",
    "tree",
    "road",
)


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [f"{' '.join(rng.choice(WORDS, 6))} {number}" for number in range(count)]


class Vectors(FakeEncoder):
    """Returns prepared vectors: the i-th for text number i."""

    def __init__(self, vectors: np.ndarray) -> None:
        super().__init__(truncate_dim=vectors.shape[1])
        self.vectors = vectors

    def encode_document(self, sentences: list[str], *, normalize_embeddings: bool = False) -> np.ndarray:
        return self.vectors[[int(text) for text in sentences]]

    encode_query = encode_document


def random_vectors(rows: int, dimension: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((rows, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_flat_search_equals_numpy(tmp_path: Path, encoder: FakeEncoder) -> None:
    texts = sentences(500)
    queries = sentences(20, seed=1)
    with Index.build(tmp_path / "index", texts, encoder) as index:
        found = index.search(queries, k=7, hybrid=False)
        assert index.info()["factory"] == "Flat"
        assert len(index) == 500
    documents = encoder.encode_document(texts, normalize_embeddings=True)
    scores = encoder.encode_query(queries, normalize_embeddings=True) @ documents.T
    for hits, row in zip(found, scores, strict=True):
        assert [hit.rank for hit in hits] == list(range(1, 8))
        np.testing.assert_allclose([hit.score for hit in hits], np.sort(row)[::-1][:7], atol=1e-5)
        for hit in hits:
            assert hit.text == texts[int(hit.id)]
            assert abs(row[int(hit.id)] - hit.score) < 1e-5


def test_dot_metric_does_not_normalize(tmp_path: Path) -> None:
    vectors = np.array([[1, 0], [3, 0], [0, 2]], np.float32)
    with Index.build(tmp_path / "index", ["0", "1", "2"], Vectors(vectors), metric="dot") as index:
        assert [(hit.id, hit.score) for hit in index.search(np.array([2.0, 0.5]), k=3)[0]] == [
            ("1", 6.0),
            ("0", 2.0),
            ("2", 1.0),
        ]


def test_vector_queries_are_normalized_for_cosine(tmp_path: Path) -> None:
    with Index.build(tmp_path / "index", ["0", "1"], Vectors(np.eye(2, dtype=np.float32))) as index:
        assert index.search(np.array([[10.0, 0.0]]), k=1)[0][0].score == pytest.approx(1.0)
        assert index.search(np.zeros((1, 2)), k=1)[0][0].score == 0.0


@pytest.mark.parametrize("factory", ["IVF16,Flat", "RR16,IVF16,Flat", "IVF16,SQfp16", "IVF16,Flat,RFlat"])
def test_ivf_with_every_list_is_exact(tmp_path: Path, factory: str) -> None:
    vectors = random_vectors(1500, 16)
    texts = [str(number) for number in range(len(vectors))]
    with Index.build(tmp_path / "index", texts, Vectors(vectors), factory=factory) as index:
        assert (index.info()["nlist"], index.info()["nprobe"]) == (16, 8)
        _, rows = index.search_vectors(vectors[:50], k=1, nprobe=16)
        assert (rows[:, 0] == np.arange(50)).mean() > 0.95
        if factory.endswith("Flat"):
            _, rows = index.search_vectors(vectors[:50], k=5, nprobe=16)
            exact = np.argsort(-(vectors[:50] @ vectors.T), axis=1)[:, :5]
            assert np.mean([len(set(a) & set(b)) / 5 for a, b in zip(rows, exact, strict=True)]) > 0.99
        narrow, _ = index.search_vectors(vectors[:50], k=5, nprobe=1)
        assert narrow.shape == (50, 5)


def test_auto_is_an_inverted_file_from_20000_on(tmp_path: Path) -> None:
    vectors = random_vectors(20_000, 8)
    texts = [str(number) for number in range(len(vectors))]
    with Index.build(tmp_path / "ivf", texts, Vectors(vectors)) as index:
        info = index.info()
        assert (info["factory"], info["nlist"], info["nprobe"]) == ("IVF512,Flat", 512, 32)
        _, rows = index.search_vectors(vectors[:200], k=1)
        assert (rows[:, 0] == np.arange(200)).all()
        exact = np.argsort(-(vectors[:50] @ vectors.T), axis=1)[:, :10]
        _, found = index.search_vectors(vectors[:50], k=10, nprobe=512)
        np.testing.assert_array_equal(found, exact)
        assert index.ids([7, 19_999]) == ["7", "19999"]
    with Index.build(tmp_path / "flat", texts[:-1], Vectors(vectors)) as index:
        assert index.info()["factory"] == "Flat"


def test_a_scalar_quantizer_gives_a_usable_index(tmp_path: Path, encoder: FakeEncoder) -> None:
    texts = sentences(300)
    with Index.build(tmp_path / "index", texts, encoder, factory="SQ8") as index:
        assert index.search(texts[5], k=1)[0][0].text == texts[5]


def test_k_above_the_count_gives_all(tmp_path: Path, encoder: FakeEncoder) -> None:
    with Index.build(tmp_path / "index", ["a cat", "a dog"], encoder) as index:
        assert len(index.search("cat", k=1000)[0]) == 2
        scores, rows = index.search_vectors(encoder.encode_query(["cat"]), k=1000)
        assert scores.shape == rows.shape == (1, 2)


def test_documents_keep_id_text_and_metadata(tmp_path: Path, encoder: FakeEncoder) -> None:
    documents = [
        Document("Ein Text über Äpfel", "äpfel", {"lang": "de", "n": [1, None], "deep": {"a": 1.5}}),
        Document("日本語のテキスト", "ja/1"),
        "a plain text",
    ]
    with Index.build(tmp_path / "index", documents, encoder) as index:
        hits = {hit.id: hit for hit in index.search("text", k=3)[0]}
    assert hits["äpfel"].metadata == {"lang": "de", "n": [1, None], "deep": {"a": 1.5}}
    assert hits["ja/1"].text == "日本語のテキスト"
    assert hits["2"].text == "a plain text"
    assert hits["2"].metadata == {}


def test_no_queries_no_hits(tmp_path: Path, encoder: FakeEncoder) -> None:
    with Index.build(tmp_path / "index", ["a"], encoder) as index:
        assert index.search([]) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be at least 1, not 0"),
        ({"nprobe": 0}, "nprobe must be at least 1, not 0"),
        ({"nprobe": 5}, "nprobe must be from 1 to 4, the lists of this index, not 5"),
    ],
)
def test_limits_are_checked(
    tmp_path: Path, encoder: FakeEncoder, arguments: dict[str, Any], message: str
) -> None:
    with (
        Index.build(tmp_path / "index", sentences(200), encoder, factory="IVF4,Flat") as index,
        pytest.raises(ValueError, match=message),
    ):
        index.search("red", **arguments)


def test_wrong_queries_are_refused(tmp_path: Path, encoder: FakeEncoder) -> None:
    with Index.build(tmp_path / "index", ["a"], encoder) as index:
        with pytest.raises(ValueError, match="nprobe does not apply: the index is Flat"):
            index.search("a", nprobe=1)
        with pytest.raises(ValueError, match=r"shape \(1, 3\), the index needs \(n, 32\)"):
            index.search(np.zeros((1, 3)))
        with pytest.raises(ValueError, match="NaN or infinity"):
            index.search(np.full((1, 32), np.nan))
        with pytest.raises(TypeError, match="query 1 is int"):
            index.search(["a", 3])
        for neither in (5, None):
            with pytest.raises(TypeError, match="expected a text, several texts or vectors, got"):
                index.search(neither)  # type: ignore[arg-type]
        for empty in ("", " \n"):
            with pytest.raises(ValueError, match="query 1 is empty; give a text to look for"):
                index.search(["a", empty])
            with pytest.raises(ValueError, match="query 0 is empty"):
                index.search(empty, hybrid=False)
            with pytest.raises(ValueError, match="query 1 is empty"):
                list(index.search_stream([["a", empty]]))
        with pytest.raises(IndexError, match="row 1 is not in the index of 1 documents"):
            index.ids([1])
    with pytest.raises(ValueError, match="the index is closed"):
        index.search(np.zeros((1, 32)))


def test_closing_an_index_that_is_in_use_is_no_damage(tmp_path: Path, encoder: FakeEncoder) -> None:
    Index.build(tmp_path / "index", sentences(5000), encoder).close()
    uses: list[Callable[[Index], Iterator[Any]]] = [
        iter,
        lambda index: index.search_stream([[f"red {n}"] for n in range(100)]),
    ]
    for use in uses:
        with Index.open(tmp_path / "index", encoder) as index:
            iterator = use(index)
            next(iterator)
        with pytest.raises(ValueError, match="the index is closed"):
            list(iterator)
    with Index.open(tmp_path / "index", encoder) as index:
        generation = index.generation
    reads: list[Callable[[], object]] = [
        lambda: generation.find_passages(["0"]),
        lambda: generation.choose("id = '0'"),
        lambda: generation.keywords(generation.asked("red"), 5, None),
    ]
    for read in reads:
        with pytest.raises(ValueError, match="the index is closed"):
            read()


def test_a_failing_disk_is_no_damage(tmp_path: Path, encoder: FakeEncoder) -> None:
    class Failing:
        def execute(self, *_: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        def interrupt(self) -> None:
            pass

        close = interrupt

    with Index.build(tmp_path / "index", ["a", "b"], encoder) as index:
        documents = index.generation.segments[0].documents
        whole = documents._db, documents._conditions
        documents._db = documents._conditions = Failing()
        for search in (lambda: index.search("a"), lambda: index.search("a", where="id = 'a'")):
            with pytest.raises(OSError, match=r"documents\.sqlite: disk I/O error; check the disk, and try"):
                search()
        documents._db, documents._conditions = whole
        assert len(index.search("a")[0]) == 2


def test_a_relative_path_is_that_of_the_folder_where_it_was_given(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Index.build("index", ["a"], encoder) as index, Index.open("index", encoder) as other:
        monkeypatch.chdir("elsewhere")
        assert other.verify() == index.verify()
        index.add([Document("b", "b")])
        assert other.refresh() and len(other) == 2
        assert index.path == tmp_path / "index"


def test_the_folder_of_a_model_is_that_of_the_folder_where_it_was_opened(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(make_model(), tmp_path / "models" / "mini[1]")
    (tmp_path / "elsewhere").mkdir()
    for given, where in (("mini[1]", folder.parent), (".", folder), ("../models/mini[1]/", folder.parent)):
        monkeypatch.chdir(where)
        encoder = Encoder(given)
        monkeypatch.chdir(tmp_path / "elsewhere")
        with Index.build("index", ["a"], encoder, overwrite=True) as index:
            assert index.info()["model"] == str(folder)


def test_a_model_of_the_hub_is_recorded_by_its_name(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    cached, commit = tmp_path / "cache" / "models--org--mini", "0123456789" * 4
    shutil.copytree(make_model(), cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    monkeypatch.chdir(tmp_path)
    encoder = Encoder("org/mini", cache_folder=tmp_path / "cache", local_files_only=True)
    (tmp_path / "org" / "mini").mkdir(parents=True)
    with Index.build("index", ["a"], encoder) as index:
        assert index.info()["model"] == "org/mini"


def test_a_folder_named_as_the_built_in_model_is_another_model(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(make_model(), tmp_path / BUILTIN.name)
    monkeypatch.chdir(tmp_path)
    Index.build("built-in", ["a"]).close()
    Index.build("folder", ["a"], BUILTIN.name).close()
    for name, model in (("built-in", BUILTIN.name), ("folder", str(folder))):
        with Index.open(name) as index:
            assert index.info()["model"] == model and index.search("a", 1)
    with Index.open("folder", BUILTIN.name) as index:
        assert index.search("a", 1)
    with (
        Index.open("built-in", BUILTIN.name) as index,
        pytest.raises(ModelMismatchError, match=f"reembed .*built-in --model {folder}"),
    ):
        index.search("a", 1)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (17, "document 1: the text is a number, not a string"),
        (None, "document 1: the text is null, not a string"),
        ("a\x00b", "document 1: the text holds a NUL character"),
        ("a\ud800b", r"document 1: the text holds a lone surrogate \(U\+D800\) at character 1"),
        (Document("x", "0"), r"^document 1 \('0'\): the id '0' was used before; ids must be unique"),
        (Document("x", ""), r"^document 1 \(''\): the id is empty"),
        (Document("x", 5), r"^document 1 \(5\): the id is a number, not a string"),
        (Document("x", "a\x00"), "the id holds a NUL"),
        (
            Document("x", "a", {"f": float("nan")}),
            r"^document 1 \('a'\): the metadata field 'f' holds nan, which JSON does not have",
        ),
        (Document("x", "a", {"e": 1, "f": object()}), "the metadata field 'f' cannot be written as JSON: "),
        (
            Document("x", "a", {"e": 1, "f": {"g": float("nan")}}),
            "the metadata field 'f' cannot be written as JSON",
        ),
        (Document("x", "a", [1]), r"^document 1 \('a'\): the metadata is an array, not a dict of fields"),
        (Document("x", None, "a"), "^document 1: the metadata is a string, not a dict of fields"),
        (Document("x", "a", {"f": "\udc00"}), "the metadata field 'f' holds a lone surrogate"),
        (
            Document("x", "a", {"e": "\\u0000", "f": [{"g": "\\\0"}]}),
            "the metadata field 'f' holds a NUL character",
        ),
        (Document("x", "a", {"f\0": 1}), r"the metadata field 'f\\x00' holds a NUL character"),
    ],
)
def test_an_unusable_document_stops_or_is_skipped(
    tmp_path: Path, encoder: FakeEncoder, document: Any, message: str
) -> None:
    documents = ["first", document, "last"]
    with pytest.raises(InputError, match=message):
        Index.build(tmp_path / "index", documents, encoder)
    assert not (tmp_path / "index").exists()
    problems = []
    with Index.build(tmp_path / "index", documents, encoder, on_error=problems.append) as index:
        assert [hit.id for hit in index.search("first last", k=9)[0]] in (["0", "2"], ["2", "0"])
    assert len(problems) == 1
    with Index.build(tmp_path / "skipped", documents, encoder, on_error="skip") as index:
        assert len(index) == 2


def test_metadata_with_a_nul_of_an_earlier_version_are_kept(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("embedkit.index.storage.document_store._holds_nul", lambda _: False)
        Index.build(tmp_path / "index", [Document("x", name, {"f": "\0"}) for name in "ab"], encoder).close()
    with Index.open(tmp_path / "index", encoder) as index:
        index.delete("a")
        assert index.compact() and index.reembed(FakeEncoder("other")).documents == 1
        assert index["b"].metadata == {"f": "\0"}


@pytest.mark.parametrize("empty", [[], iter(())])
def test_an_empty_corpus_is_an_error(tmp_path: Path, encoder: FakeEncoder, empty: Iterable[str]) -> None:
    with pytest.raises(InputError, match="no documents to index"):
        Index.build(tmp_path / "index", empty, encoder)
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_unusable_vectors_are_refused_by_document(tmp_path: Path, value: float) -> None:
    vectors = random_vectors(10, 4)
    vectors[6, 2] = value
    with pytest.raises(BuildError, match="document 6: the encoder returned NaN or infinity"):
        Index.build(tmp_path / "index", [str(number) for number in range(10)], Vectors(vectors))
    assert not (tmp_path / "index").exists()


def test_huge_but_finite_vectors_are_taken(tmp_path: Path) -> None:
    vectors = np.full((4, 4), 3e38, np.float32)
    with Index.build(tmp_path / "index", list("0123"), Vectors(vectors), metric="dot") as index:
        assert len(index) == 4


def test_a_wrong_shape_is_an_error(tmp_path: Path, encoder: FakeEncoder) -> None:
    encoder.get_embedding_dimension = lambda: 5
    with pytest.raises(BuildError, match=r"returned an array \(1, 32\) for 1 texts, not \(1, 5\)"):
        Index.build(tmp_path / "index", ["a"], encoder)


@pytest.mark.parametrize(
    "factory", ["bogus", "", "IVF0,Flat", "IDMap,Flat", "PQ7", "IVF99999999999999,Flat", "LSH"]
)
def test_a_bad_factory_is_refused_before_reading(tmp_path: Path, encoder: FakeEncoder, factory: str) -> None:
    def documents() -> Iterator[str]:
        pytest.fail("the input was read")
        yield ""

    with pytest.raises(ValueError, match="factory"):
        Index.build(tmp_path / "index", documents(), encoder, factory=factory)


def test_too_few_documents_for_the_factory(tmp_path: Path, encoder: FakeEncoder) -> None:
    with pytest.raises(
        BuildError, match=r"cannot build 'IVF64,Flat' from 10 vectors: Number of training points"
    ):
        Index.build(tmp_path / "index", iter(sentences(10)), encoder, factory="IVF64,Flat")
    encoder.encode_document = None  # encoded documents are not encoded again for another factory
    with Index.build(tmp_path / "index", sentences(10), encoder, factory="Flat") as index:
        assert len(index) == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": "l2"}, "metric must be 'cosine' or 'dot'"),
        ({"on_error": "ignore"}, "on_error must be 'stop', 'skip' or a callable"),
        ({"threads": 0}, "threads must be a positive integer, not 0"),
    ],
)
def test_bad_arguments(tmp_path: Path, encoder: FakeEncoder, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Index.build(tmp_path / "index", ["a"], encoder, **arguments)


def test_an_index_is_not_replaced_without_overwrite(tmp_path: Path, encoder: FakeEncoder) -> None:
    Index.build(tmp_path / "index", ["old"], encoder).close()
    with pytest.raises(IndexExistsError, match="pass --overwrite"):
        Index.build(tmp_path / "index", ["new"], encoder)
    with Index.build(tmp_path / "index", ["new"], encoder, overwrite=True) as index:
        assert index.search("x", k=1)[0][0].text == "new"
        assert index.info()["generation"] == 2


def test_other_folders_are_left_alone(tmp_path: Path, encoder: FakeEncoder) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(IndexExistsError, match=r"holds other things \(thesis.txt\)"):
        Index.build(tmp_path, ["a"], encoder, overwrite=True)
    with pytest.raises(IndexExistsError, match="is not a folder"):
        Index.build(tmp_path / "thesis.txt", ["a"], encoder, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_empty_folder_is_used_and_kept(tmp_path: Path, encoder: FakeEncoder) -> None:
    with pytest.raises(InputError):
        Index.build(tmp_path, [], encoder)
    assert list(tmp_path.iterdir()) == []
    with Index.build(tmp_path, ["a"], encoder) as index:
        assert len(index) == 1


def test_another_encoder_is_refused(tmp_path: Path) -> None:
    Index.build(tmp_path / "index", ["a"], FakeEncoder("one")).close()
    other = FakeEncoder("two")
    with pytest.raises(ModelMismatchError) as caught:
        Index.open(tmp_path / "index", other)
    assert FakeEncoder("one").fingerprint in str(caught.value)
    assert other.fingerprint in str(caught.value)
    with pytest.raises(ModelMismatchError, match="32 dimensions, but the encoder returns 16"):
        Index.open(tmp_path / "index", FakeEncoder("one", truncate_dim=16))
    with Index.open(tmp_path / "index", FakeEncoder("one", precision="int8")) as index:
        assert index.encoder.precision == "int8"


def test_calling_the_class_names_the_ways_to_an_index(tmp_path: Path) -> None:
    for arguments in ((), (tmp_path,), (tmp_path, "model")):
        with pytest.raises(TypeError, match=r"Index\.open\(path\) opens an index, Index\.build"):
            Index(*arguments)


def test_the_encoder_is_loaded_when_first_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Index.build(tmp_path / "index", ["a cat"], FakeEncoder("one", precision="int8")).close()
    made = []

    def make(model: str, **options: Any) -> FakeEncoder:
        made.append((model, options))
        return FakeEncoder(model, **options)

    monkeypatch.setattr("embedkit.Encoder", make, raising=False)
    with Index.open(tmp_path / "index", threads=1) as index:
        index.search(np.ones((1, 32)))
        assert made == []
        assert index.search("cat")[0][0].text == "a cat"
        index.search("cat")
        with Index.open(tmp_path / "index", "elsewhere") as moved, pytest.raises(ModelMismatchError):
            moved.search("cat")
    options = {"device": "cpu", "precision": "int8", "threads": 1}
    assert made == [("one", options), ("elsewhere", options | {"threads": None})]
    monkeypatch.setattr("embedkit.Encoder", lambda *_, **__: FakeEncoder("changed"), raising=False)
    with Index.open(tmp_path / "index") as index, pytest.raises(ModelMismatchError):
        index.search("cat")


def test_a_generator_runs_on_the_callers_thread(tmp_path: Path, encoder: FakeEncoder) -> None:
    threads = set()

    def documents() -> Iterator[str]:
        for text in sentences(10):
            threads.add(threading.get_ident())
            yield text

    Index.build(tmp_path / "index", documents(), encoder).close()
    assert threads == {threading.get_ident()}


def test_errors_of_the_source_and_of_the_encoder_reach_the_caller(
    tmp_path: Path, encoder: FakeEncoder
) -> None:
    def documents() -> Iterator[str]:
        yield "a"
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        Index.build(tmp_path / "index", documents(), encoder)

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise KeyboardInterrupt

    encoder.encode_document = fail
    with pytest.raises(KeyboardInterrupt):
        Index.build(tmp_path / "index", sentences(5000), encoder)
    assert not (tmp_path / "index").exists()
    assert not [thread for thread in threading.enumerate() if thread.name == "embedkit-prefetch"]


def test_progress_counts_documents(tmp_path: Path, encoder: FakeEncoder) -> None:
    seen = []
    Index.build(
        tmp_path / "index", sentences(5000), encoder, factory="IVF4,Flat", progress=seen.append
    ).close()
    done = [step.done for step in seen if step.stage == "encode"]
    assert (done[0], done[-1]) == (0, 5000) and all(0 < step <= 2048 for step in np.diff(done))
    assert {step.stage for step in seen} == {"encode", "train", "add"}
    assert seen[-1].done == seen[-1].total == 5000


def test_threads_search_at_once(tmp_path: Path, encoder: FakeEncoder) -> None:
    texts = sentences(800)
    with Index.build(tmp_path / "index", texts, encoder, factory="IVF8,Flat") as index:
        expected = {nprobe: index.search(texts[:40], k=5, nprobe=nprobe) for nprobe in (1, 8)}
        failures = []

        def work(nprobe: int) -> None:
            for _ in range(15):
                if index.search(texts[:40], k=5, nprobe=nprobe) != expected[nprobe]:
                    failures.append(nprobe)

        workers = [threading.Thread(target=work, args=(nprobe,)) for nprobe in (1, 8, 1, 8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert failures == []


def test_a_reader_keeps_its_generation_while_the_index_is_replaced(
    tmp_path: Path, encoder: FakeEncoder
) -> None:
    root = tmp_path / "index"
    with Index.build(root, ["old one", "old two"], encoder) as reader:
        Index.build(root, ["new one"], encoder, overwrite=True).close()
        found = []
        thread = threading.Thread(target=lambda: found.extend(reader.search("old", k=5)[0]))
        thread.start()
        thread.join()
        assert {hit.text for hit in found} == {"old one", "old two"}
        assert sorted(reader.ids([0, 1])) == ["0", "1"]
    with Index.open(root, encoder) as reader:
        assert [hit.text for hit in reader.search("old", k=5)[0]] == ["new one"]
    assert len(list((root / "segments").iterdir())) == 1
    assert [path.name for path in (root / "manifests").iterdir()] == ["000002.json"]


def test_faiss_missing_names_the_extra(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(ImportError, match=r"pip install 'embedkit\[cpu\]'"):
        Index.build(tmp_path / "index", ["a"], encoder)


def test_a_folder_given_as_encoder_is_found_from_another_working_directory(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(make_model(), tmp_path / "model")
    Index.build(tmp_path / "index", ["people"], Encoder(tmp_path / "model")).close()
    monkeypatch.chdir(tmp_path)
    for given in ("model", Path("model")):
        with Index.open("index", given) as index:
            packed = pickle.dumps(index)
            monkeypatch.chdir("elsewhere")
            assert len(index.search("people")) == 1
            with pickle.loads(packed) as copy:
                assert len(copy.search("people")) == 1
        monkeypatch.chdir(tmp_path)
