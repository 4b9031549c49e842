"""Faiss files in and out of an index, and documents with vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest
from faiss_kinds import needs_lists_of_quantizers
from fake_encoder import FakeEncoder

from embedkit.documents.readers import Corpus
from embedkit.index import (
    Document,
    Index,
    IndexExistsError,
    InputError,
)
from embedkit.index.build import transfer
from embedkit.index.storage.manifest import Metric


def vectors(rows: int, dimension: int = 32) -> np.ndarray:
    array = np.random.default_rng(0).standard_normal((rows, dimension)).astype(np.float32)
    return array / np.linalg.norm(array, axis=1, keepdims=True)


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_faiss_file_with_nan_is_refused(
    tmp_path: Path, encoder: FakeEncoder, metric: Metric, wrong: float
) -> None:
    array = vectors(1000)
    array[777, 3] = wrong
    raw = faiss.IndexFlatIP(32)
    raw.add(array)
    faiss.write_index(raw, str(tmp_path / "in.faiss"))
    with pytest.raises(InputError, match="vector 777 holds NaN or infinity"):
        Index.import_faiss(tmp_path / "index", tmp_path / "in.faiss", encoder, metric=metric)


def test_a_faiss_file_is_imported_for_the_model_of_a_folder(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_model()
    texts = [Document("a cat", "cat"), Document("two dogs", "dogs")]
    with Index.build(tmp_path / "index", texts, folder) as index:
        index.export_faiss(tmp_path / "out.faiss")
    with Index.import_faiss(tmp_path / "again", tmp_path / "out.faiss", str(folder), texts) as index:
        assert index.search("two dogs", k=1, hybrid=False)[0][0].id == "dogs"


@pytest.mark.parametrize("refined", [False, True])
def test_codes_alone_of_a_faiss_file_cannot_be_rescored(
    tmp_path: Path, encoder: FakeEncoder, refined: bool
) -> None:
    array = vectors(400)
    raw = faiss.index_factory(32, "PQ4x4,Refine(SQ8)" if refined else "PQ4x4", faiss.METRIC_INNER_PRODUCT)
    raw.train(array)
    raw.add(array)
    faiss.write_index(raw, str(tmp_path / "in.faiss"))
    with Index.import_faiss(tmp_path / "index", tmp_path / "in.faiss", encoder) as index:
        if refined:
            assert index.search_vectors(array[:20], 1, rescore=400)[1][:, 0].tolist() == list(range(20))
            index.set_search_defaults(rescore=8)
            return
        with pytest.raises(
            ValueError,
            match=r"rescore does not apply: the index is imported and keeps .*; build one of its documents with",
        ):
            index.search_vectors(array[:20], 5, rescore=20)
        with pytest.raises(ValueError, match="rescore does not apply"):
            index.set_search_defaults(rescore=8)
        index.add([Document("a text", "a")])
        index.set_search_defaults(rescore=8)


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat", "HNSW8", "IVF4,SQ8", "PCA16,Flat"])
def test_a_faiss_file_is_imported_and_exported(tmp_path: Path, encoder: FakeEncoder, factory: str) -> None:
    array = vectors(400)
    raw = faiss.index_factory(32, factory, faiss.METRIC_INNER_PRODUCT)
    raw.train(array)
    raw.add(array)
    faiss.write_index(raw, str(tmp_path / "in.faiss"))
    texts = [Document(f"text {n}", f"key {n}") for n in range(400)]
    with Index.import_faiss(tmp_path / "index", tmp_path / "in.faiss", encoder, texts) as index:
        scores, rows = index.search_vectors(array[:20], 5)
        expected = raw.search(array[:20], 5)
        np.testing.assert_array_equal(rows, expected[1])
        np.testing.assert_allclose(scores, expected[0], atol=1e-6)
        assert index.search(array[7], k=1)[0][0].text == "text 7"
        assert index.export_faiss(tmp_path / "out.faiss") == 400
        out = faiss.read_index(str(tmp_path / "out.faiss"))
        np.testing.assert_array_equal(out.search(array[:20], 5)[1], expected[1])
        index.delete(["key 7"])
        assert index.export_faiss(tmp_path / "less.faiss") == 399
        keys = [json.loads(line) for line in (tmp_path / "less.faiss.ids.jsonl").read_text().splitlines()]
        assert keys == [f"key {n}" for n in range(400) if n != 7]
        assert faiss.read_index(str(tmp_path / "less.faiss")).ntotal == 399
        with pytest.raises(IndexExistsError, match=r"out\.faiss: already exists"):
            index.export_faiss(tmp_path / "out.faiss")
        index.add([Document("more", "more")])
        assert index.compact()
        assert len(index) == 400


@pytest.mark.parametrize(
    "factory",
    [
        "RQ4x4",
        "LSQ4x4",
        "NSG16",
        pytest.param("IVF4,RQ4x4", marks=needs_lists_of_quantizers),
        "RR32,PRQ2x2x4",
    ],
)
def test_imported_kinds_that_cannot_leave_out_rows_are_searched_after_a_deletion(
    tmp_path: Path, encoder: FakeEncoder, factory: str
) -> None:
    array = vectors(300)
    raw = faiss.index_factory(32, factory, faiss.METRIC_INNER_PRODUCT)
    raw.train(array)
    raw.add(array)
    faiss.write_index(raw, str(tmp_path / "in.faiss"))
    with Index.import_faiss(tmp_path / "index", tmp_path / "in.faiss", encoder) as index:
        rows = index.search_vectors(array[:20], 5)[1]
        index.delete(["7"])
        after = index.search_vectors(array[:20], 4)[1]
        for line, found in zip(rows.tolist(), after.tolist(), strict=True):
            assert found == [row for row in line if row != 7][:4]


def test_ids_of_a_faiss_file_become_the_documents_ids(tmp_path: Path, encoder: FakeEncoder) -> None:
    array = vectors(50)
    raw = faiss.IndexIDMap2(faiss.IndexFlatIP(32))
    raw.add_with_ids(array, np.arange(1000, 1050))
    faiss.write_index(raw, str(tmp_path / "in.faiss"))
    with Index.import_faiss(tmp_path / "plain", tmp_path / "in.faiss", encoder) as index:
        assert [hit.id for hit in index.search(array[3], k=1)[0]] == ["1003"]
        index.verify(sample=10)
    shuffled = [
        Document(f"text {n}", str(n)) for n in np.random.default_rng(0).permutation(np.arange(1000, 1050))
    ]
    with Index.import_faiss(tmp_path / "texts", tmp_path / "in.faiss", encoder, shuffled) as index:
        assert index.search(array[3], k=1)[0][0].text == "text 1003"
    with pytest.raises(InputError, match="holds the id 1049, which no document has"):
        missing = [document for document in shuffled if document.id != "1049"]
        Index.import_faiss(tmp_path / "x", tmp_path / "in.faiss", encoder, [*missing, Document("x", "y")])


@pytest.mark.parametrize("factory", ["IVF4,Flat", "IVF4,SQ8", "PCAR32,IVF4,SQ8"])
@pytest.mark.parametrize("first", [0, 100, 1000])
def test_ids_in_the_lists_of_a_faiss_file_become_the_documents_ids(
    tmp_path: Path, encoder: FakeEncoder, factory: str, first: int
) -> None:
    array, order = vectors(400), np.random.default_rng(1).permutation(400)
    raw = faiss.index_factory(32, factory, faiss.METRIC_INNER_PRODUCT)
    raw.train(array)
    faiss.extract_index_ivf(raw).nprobe = 4
    raw.add_with_ids(array[order], order + first)
    faiss.write_index(raw, str(tmp_path / "in.faiss"))
    texts = [f"text {n}" for n in range(400)]
    with Index.import_faiss(tmp_path / "index", tmp_path / "in.faiss", encoder, texts) as index:
        assert [(hit.id, hit.text) for hit in index.search(array[7], k=1)[0]] == [(str(7 + first), "text 7")]
        index.delete([str(7 + first)])
        index.add([Document("more", "more")])
        assert index.compact()
        assert [hit.text for hit in index.search(array[9], k=1)[0]] == ["text 9"]


@pytest.mark.parametrize("first", [0, 1000])
def test_lists_in_a_file_of_their_own_are_imported_with_their_vectors(
    tmp_path: Path, encoder: FakeEncoder, first: int
) -> None:
    array = vectors(400)
    raw = faiss.index_factory(32, "IVF4,Flat", faiss.METRIC_INNER_PRODUCT)
    raw.train(array)
    file = tmp_path / "lists.ivfdata"
    on_disk = faiss.OnDiskInvertedLists(raw.nlist, raw.code_size, str(file))
    raw.replace_invlists(on_disk)
    raw.add_with_ids(array, np.arange(first, first + 400))
    raw.nprobe = 4
    faiss.write_index(raw, str(tmp_path / "in.faiss"))
    content = file.read_bytes()
    file.chmod(0o444)
    Index.import_faiss(tmp_path / "index", tmp_path / "in.faiss", encoder).close()
    assert file.read_bytes() == content
    file.unlink()
    with Index.open(tmp_path / "index", encoder) as index:
        scores, rows = index.search_vectors(array[:20], 5)
        expected = np.argsort(-(array[:20] @ array.T), axis=1)[:, :5]
        np.testing.assert_array_equal(rows, expected)
        np.testing.assert_allclose(
            scores, np.take_along_axis(array[:20] @ array.T, expected, axis=1), atol=1e-6
        )
        assert [hit.id for hit in index.search(array[7], k=1)[0]] == [str(first + 7)]


@pytest.mark.parametrize("factory", ["IVF16,Flat", "PCA16,Flat"])
def test_what_is_left_of_an_index_is_exported(tmp_path: Path, encoder: FakeEncoder, factory: str) -> None:
    documents = [Document(f"text {n}", str(n), vector=vector) for n, vector in enumerate(vectors(64))]
    with Index.build(tmp_path / "index", documents, encoder, factory=factory) as index:
        index.delete([str(n) for n in range(10, 64)])
        assert index.export_faiss(tmp_path / "out.faiss") == 10
    out = faiss.read_index(str(tmp_path / "out.faiss"))
    np.testing.assert_array_equal(out.search(vectors(64)[:10], 1)[1][:, 0], np.arange(10))


def test_exported_ids_are_imported(tmp_path: Path, encoder: FakeEncoder) -> None:
    texts = [Document(f"text {n}", f"key\u2028{n}") for n in range(20)]
    file, ids = tmp_path / "out.faiss", tmp_path / "out.faiss.ids.jsonl"
    with Index.build(tmp_path / "index", texts, encoder) as index:
        index.delete(["key\u20283"])
        index.export_faiss(file)
    with Index.import_faiss(tmp_path / "back", file, encoder) as back:
        assert [document.id for document in back] == [f"key\u2028{n}" for n in range(20) if n != 3]
        (hits,) = back.search("text 7", k=2)
        assert (hits[0].id, hits[0].text) == ("key\u20287", "")
    given = [Document(f"given {n}", str(n)) for n in range(19)]
    with Index.import_faiss(tmp_path / "texts", file, encoder, given) as index:
        assert [document.id for document in index] == [str(n) for n in range(19)]
    with Index.import_faiss(
        tmp_path / "by-id", file, encoder, [texts[n] for n in range(19, -1, -1) if n != 3]
    ) as index:
        assert index.search("text 7", k=1)[0][0].id == "key\u20287"
        index.verify(sample=19)
    (tmp_path / "lines.txt").write_text("".join(f"line {n}\n" for n in range(19)))
    with Index.import_faiss(tmp_path / "lines", file, encoder, Corpus([tmp_path / "lines.txt"])) as index:
        assert [document.id for document in index] == [f"key\u2028{n}" for n in range(20) if n != 3]
        assert index["key\u20284"].text == "line 3"
    with pytest.raises(InputError, match="holds the id key\u20280, which no document has"):
        Index.import_faiss(tmp_path / "wrong", file, encoder, texts[1:])
    for lines, message in (
        (b'"a"\n' * 3, r"ids\.jsonl: holds 3 ids, and .*out\.faiss 19 vectors"),
        (b'"a"\n{"id": "b"}\n', r"ids\.jsonl:2: the line is not a JSON string"),
        (b'"a"\n"\xff"\n', r"ids\.jsonl:2: the line is not a JSON string"),
        (b'"a"\n' * 19, "the id 'a' was used before"),
    ):
        ids.write_bytes(lines)
        with pytest.raises(InputError, match=message):
            Index.import_faiss(tmp_path / "wrong", file, encoder)
    ids.unlink()
    with Index.import_faiss(tmp_path / "numbers", file, encoder) as index:
        assert "18" in index


def test_an_index_without_documents_takes_another_model(tmp_path: Path) -> None:
    new = FakeEncoder("new", truncate_dim=20)
    with Index.build(tmp_path / "index", [Document("text", "a")], FakeEncoder()) as index:
        index.delete(["a"])
        assert index.reembed(new).documents == 0
    with Index.open(tmp_path / "index", new) as index:
        index.add([Document("text", "b")])
        assert [hit.id for hit in index.search("text", k=2)[0]] == ["b"]


def test_faiss_files_that_cannot_be_imported(tmp_path: Path, encoder: FakeEncoder) -> None:
    cases = {
        "l2": faiss.IndexFlatL2(32),
        "narrow": faiss.IndexFlatIP(8),
        "long": faiss.IndexFlatIP(32),
    }
    for index in cases.values():
        index.add(vectors(5, index.d) * 3)
    cases["empty"] = faiss.IndexFlatIP(32)
    for name, index in cases.items():
        faiss.write_index(index, str(tmp_path / name))
    cases["fast"] = faiss.index_factory(32, "IVF1,PQ8x4fs", faiss.METRIC_INNER_PRODUCT)
    cases["fast"].train(vectors(700))
    cases["fast"].add(vectors(700))
    faiss.write_index(cases["fast"], str(tmp_path / "fast"))
    cases["dedup"] = faiss.index_factory(32, "IVF1,FlatDedup", faiss.METRIC_INNER_PRODUCT)
    cases["dedup"].train(vectors(50))
    cases["dedup"].add(vectors(50))
    faiss.write_index(cases["dedup"], str(tmp_path / "dedup"))
    cases["mapped"] = faiss.index_factory(32, "PCA16,IDMap,Flat", faiss.METRIC_INNER_PRODUCT)
    cases["mapped"].train(vectors(50))
    cases["mapped"].add_with_ids(vectors(50), np.arange(1000, 1050))
    faiss.write_index(cases["mapped"], str(tmp_path / "mapped"))
    cases["rotated"] = faiss.index_factory(32, "ITQ16,SQ8", faiss.METRIC_INNER_PRODUCT)
    cases["rotated"].train(vectors(50))
    cases["rotated"].add(vectors(50))
    faiss.write_index(cases["rotated"], str(tmp_path / "rotated"))
    (tmp_path / "garbage").write_bytes(b"garbage")
    for name, message in (
        ("l2", "its metric is not the inner product"),
        ("narrow", "its vectors have 8 dimensions, the encoder's have 32"),
        ("long", "has length 3, but cosine needs length 1; normalize the vectors"),
        ("empty", "contains no vectors"),
        ("fast", "cannot reconstruct the vectors of IndexIVFPQFastScan"),
        ("dedup", "its IndexIVFFlatDedup lists equal vectors once"),
        ("mapped", r"ids are mapped within its index \(IDMap\), .*; wrap the whole index as IDMap"),
        ("rotated", "Faiss cannot reconstruct its vectors .*; import an index of another kind"),
        ("garbage", "Faiss cannot read it"),
        ("none", "no such file"),
    ):
        with pytest.raises(InputError, match=message):
            Index.import_faiss(tmp_path / "index", tmp_path / name, encoder)
        assert not (tmp_path / "index").exists()
    with Index.import_faiss(tmp_path / "index", tmp_path / "long", encoder, metric="dot") as index:
        assert len(index) == 5
    with pytest.raises(InputError, match="holds 5 vectors, and 2 documents are given"):
        Index.import_faiss(tmp_path / "two", tmp_path / "long", encoder, ["a", "b"], metric="dot")


def test_documents_with_vectors(tmp_path: Path, encoder: FakeEncoder) -> None:
    array = vectors(300) * 5
    made = [Document(f"text {n}", str(n), vector=array[n]) for n in range(0, 300, 2)]
    mixed = sorted(
        [*made, *(Document(f"text {n}", str(n)) for n in range(1, 300, 2))], key=lambda d: int(d.id)
    )
    with Index.build(tmp_path / "index", mixed, encoder) as index:
        stored = index.generation.vectors(np.arange(300))
        np.testing.assert_allclose(stored[::2], array[::2] / 5, atol=1e-6)
        odd = encoder.encode_document([f"text {n}" for n in range(1, 300, 2)], normalize_embeddings=True)
        np.testing.assert_allclose(stored[1::2], odd, atol=1e-6)
    for vector, message in (
        (np.ones(5), r"its vector has shape \(5,\); the encoder's have \(32,\)"),
        (np.full(32, np.nan), "its vector contains NaN or infinity"),
    ):
        with pytest.raises(InputError, match=message):
            Index.build(tmp_path / "bad", [Document("x", "x", vector=vector)], encoder)


def test_blank_texts_that_came_with_vectors_are_not_encoded_again(
    tmp_path: Path, encoder: FakeEncoder
) -> None:
    array = vectors(3)
    documents = [Document(text, f"k{n}", vector=array[n]) for n, text in enumerate(["", " ", "\n"])]
    for document in documents:
        with Index.build(tmp_path / "index", [document], encoder, overwrite=True) as index:
            with pytest.raises(
                InputError, match=f"document {document.id}: the index holds its vector without a text"
            ):
                index.reembed(FakeEncoder("other"))
            assert index.verify(sample=1)["encoded"] == 0


def test_vectors_without_texts_are_not_encoded_again(tmp_path: Path, encoder: FakeEncoder) -> None:
    raw = faiss.IndexFlatIP(32)
    raw.add(vectors(20))
    faiss.write_index(raw, str(tmp_path / "in.faiss"))
    with Index.import_faiss(tmp_path / "index", tmp_path / "in.faiss", encoder) as index:
        with pytest.raises(InputError, match="holds its vector without a text"):
            index.reembed(encoder)
        assert index.search_vectors(vectors(20), 1)[1][:, 0].tolist() == list(range(20))


@pytest.mark.parametrize("name", ["out.faiss", "out.faiss.ids.jsonl", "out.parquet"])
def test_an_export_neither_replaces_nor_removes_what_another_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder: FakeEncoder, name: str
) -> None:
    export = Index.export_parquet if name.endswith(".parquet") else Index.export_faiss
    path = tmp_path / name.removesuffix(".ids.jsonl")
    with Index.build(tmp_path / "index", ["one", "two"], encoder) as index:
        monkeypatch.setattr(transfer, "_check_target", lambda target: None)  # it came after the check
        (tmp_path / name).write_text("of another")
        with pytest.raises(IndexExistsError, match="already exists; name another file"):
            export(index, path)
        assert (tmp_path / name).read_text() == "of another"
        assert sorted(file.name for file in tmp_path.iterdir()) == ["index", name]
