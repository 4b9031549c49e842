"""Reading documents from parquet files."""

from __future__ import annotations

import datetime
import decimal
import re
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder
from read_files import read, write

from embedkit.documents import Document, InputError
from embedkit.documents.readers import Corpus
from embedkit.index import Index
from embedkit.index.storage.manifest import Metric


def write_parquet(path: Path, columns: dict[str, Any]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path, row_group_size=3)
    return path


def test_parquet(tmp_path: Path) -> None:
    day = datetime.date(2024, 2, 29)
    columns = {
        "id": ["a", "b", "c", "d", "e"],
        "text": ["eins", "zwei", " ", "vier", "fünf"],
        "day": [day, None, day, day, day],
        "tags": [["x"], [], ["y", "z"], None, ["w"]],
        "raw": [b"\x00\xff"] * 5,
    }
    path = write_parquet(tmp_path / "x.parquet", columns)
    corpus = Corpus([path])
    with pytest.warns(UserWarning, match=r"x.parquet: left out, as they hold bytes: raw$"):
        found = list(corpus)
    assert [document.id for document in found] == ["a", "b", "d", "e"]
    assert corpus.blank == 1
    assert found[0].metadata == {"day": "2024-02-29", "tags": ["x"]}
    assert found[2].metadata == {"day": "2024-02-29", "tags": None}
    assert found[-1].position == corpus.total_bytes
    numbers = write_parquet(tmp_path / "n.parquet", {"id": [1, 2], "text": ["a", None], "x": [0.5, 1.5]})
    assert read(numbers, on_error="skip") == [("1", "a", {"x": 0.5})]
    with pytest.raises(InputError, match=r"n.parquet:2: the field 'text' is null, not a string"):
        read(numbers)
    with pytest.raises(InputError, match=r"no column 'title' \(the columns are: id, text, x\); name it with"):
        read(numbers, text_field="title")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"x.parquet:1: the parquet data is damaged"):
        read(path)


def test_two_parquet_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"x\.parquet: two columns are named 'text'; rename one"):
        read(tmp_path / "x.parquet")


def test_views_of_bytes_are_bytes(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", "16")
    view = pyarrow.array([b"\xff"], pyarrow.binary_view())
    path = write_parquet(tmp_path / "x.parquet", {"text": ["a"], "view": view})
    with pytest.warns(UserWarning, match="left out, as they hold bytes: view$"):
        assert read(path) == [("x.parquet:1", "a", {})]


def test_a_vector_may_come_without_a_text(tmp_path: Path) -> None:
    path = write(tmp_path, "x.jsonl", '{"text": "", "v": [1, 2]}\n')
    corpus = Corpus([path], vector_field="v")
    assert [document.text for document in corpus] == [""] and corpus.blank == 0


def test_vectors_of_a_parquet_column_or_a_json_field(tmp_path: Path) -> None:
    vectors = [[1.0, 2.0], [3.0, 4.5]]
    path = write_parquet(tmp_path / "x.parquet", {"text": ["a", "b"], "vector": vectors})
    assert [document.vector.tolist() for document in Corpus([path], vector_field="vector")] == vectors
    lines = write(
        tmp_path, "x.jsonl", '{"text": "a", "v": [1, 2]}\n{"text": "b", "v": "no"}\n{"text": "c"}\n'
    )
    problems = []
    found = list(Corpus([lines], vector_field="v", on_error=problems.append))
    assert [document.vector.tolist() for document in found] == [[1, 2]]
    assert found[0].metadata == {}
    assert [problem.reason for problem in problems] == [
        "the field 'v' is not a list of numbers",
        "no field 'v' (the fields are: none)",
    ]


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.txt", "x.md", "x.html"])
def test_a_file_without_fields_for_vectors_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    lines = write(tmp_path, "a.jsonl", '{"text": "a", "v": [1, 2]}\n')
    table = write(tmp_path, name, "text,v\na,1\n")
    with pytest.raises(
        InputError, match=rf"{name}: vectors are read only from fields of json, jsonl and parquet"
    ):
        Corpus([lines, table], vector_field="v")


def test_vectors_of_an_array_in_json(tmp_path: Path) -> None:
    path = write(tmp_path, "x.json", '[{"text": "a", "v": [1, 2]}, "b"]')
    problems = []
    found = list(Corpus([path], vector_field="v", on_error=problems.append))
    assert [document.vector.tolist() for document in found] == [[1, 2]]
    assert [problem.reason for problem in problems] == ["element 2 is a string, not a JSON object"]
    assert read(path) == [("x.json:1", "a", {"v": [1, 2]}), ("x.json:2", "b", None)]


def test_numbers_and_ids_of_parquet_are_not_rounded(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    whole, fraction = 9_007_199_254_740_993, decimal.Decimal("12345678901234567.89")
    table = pyarrow.table(
        {
            "id": pyarrow.array([whole, whole + 1], pyarrow.decimal128(38, 0)),
            "text": ["a", "b"],
            "n": pyarrow.array([whole, None], pyarrow.decimal128(38, 0)),
            "x": pyarrow.array([fraction, decimal.Decimal("0.25")], pyarrow.decimal128(38, 2)),
        }
    )
    parquet.write_table(table, tmp_path / "x.parquet")
    assert read(tmp_path / "x.parquet") == [
        (str(whole), "a", {"n": whole, "x": str(fraction)}),
        (str(whole + 1), "b", {"n": None, "x": 0.25}),
    ]
    if hasattr(pyarrow, "uuid"):
        keys = [uuid.UUID(int=n) for n in (1, 2)]
        ids = pyarrow.array([key.bytes for key in keys], pyarrow.uuid())
        parquet.write_table(pyarrow.table({"id": ids, "text": ["a", "b"], "of": ids}), tmp_path / "u.parquet")
        assert read(tmp_path / "u.parquet") == [
            (str(key), text, {"of": str(key)}) for key, text in zip(keys, "ab", strict=True)
        ]


def test_an_export_keeps_fields_named_as_its_columns(tmp_path: Path, encoder: FakeEncoder) -> None:
    pytest.importorskip("pyarrow")
    metadata = {"id": "inner", "text": "short title", "vector": "v", "line": 3, "metadata": {"a": 1}}
    with Index.build(tmp_path / "index", [Document("body", "1", metadata)], encoder) as index:
        index.export_parquet(tmp_path / "x.parquet")
    assert read(tmp_path / "x.parquet") == [("1", "body", metadata)]


@pytest.mark.parametrize(("metric", "length"), [("cosine", 1), ("dot", 3)])
def test_exported_vectors_are_normalized_if_the_metric_is_cosine(
    tmp_path: Path, encoder: FakeEncoder, metric: Metric, length: int
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    vectors = encoder.encode_document([f"text {n}" for n in range(40)], normalize_embeddings=True) * 3
    documents = [Document(f"text {n}", str(n), vector=vector) for n, vector in enumerate(vectors)]
    with Index.build(
        tmp_path / "index", documents, encoder, factory="SQ8", kept="none", metric=metric
    ) as index:
        index.export_parquet(tmp_path / "x.parquet")
    exported = np.stack(parquet.read_table(tmp_path / "x.parquet")["vector"].to_numpy())
    np.testing.assert_allclose(
        np.linalg.norm(exported, axis=1), length, atol=1e-6 if metric == "cosine" else 0.1
    )


def test_what_json_does_not_have_in_parquet(tmp_path: Path) -> None:
    nan, infinite = float("nan"), float("inf")
    columns = {
        "text": ["a", "b", "c"],
        "x": [0.5, nan, infinite],
        "many": [[nan, 1.0], [], None],
        "image": [{"bytes": b"\xff", "path": "p"}] * 3,
        "raws": [[b"\xff"], [], None],
    }
    path = write_parquet(tmp_path / "x.parquet", columns)
    with pytest.warns(UserWarning, match="left out, as they hold bytes: image, raws$"):
        found = list(Corpus([path], on_error="skip"))
    assert [document.metadata for document in found] == [
        {"x": 0.5, "many": [None, 1.0]},
        {"x": None, "many": []},
    ]
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(InputError, match=r"x.parquet:3: the field 'x' is inf, which JSON does not have"),
    ):
        list(Corpus([path]))


def test_rows_of_parquet_with_values_that_python_does_not_have(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    times = pyarrow.array([0, 10**12, 1, 10**12], pyarrow.timestamp("s"))
    path = write_parquet(tmp_path / "x.parquet", {"text": ["a", "b", "c", "d"], "t": times})
    rejected: list[InputError] = []
    found = list(Corpus(path, on_error=rejected.append))
    assert [(d.id, d.metadata) for d in found] == [
        ("x.parquet:1", {"t": "1970-01-01T00:00:00"}),
        ("x.parquet:3", {"t": "1970-01-01T00:00:01"}),
    ]
    assert [error.origin for error in rejected] == [f"{path}:2", f"{path}:4"]
    for kind, value in ((pyarrow.date32(), 10**8), (pyarrow.timestamp("us", tz="Foo/Bar"), 1)):
        values = pyarrow.array([value], kind)
        path = write_parquet(tmp_path / "y.parquet", {"text": ["a"], "t": values})
        with pytest.raises(
            InputError, match=rf"y.parquet:1: the field 't', {re.escape(str(kind))}, holds no usable value"
        ):
            list(Corpus(path))


def test_maps_in_parquet_are_objects(tmp_path: Path, encoder: FakeEncoder) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    day = datetime.date(2024, 2, 29)
    by_name = pyarrow.map_(pyarrow.string(), pyarrow.float64())
    columns = {
        "text": ["a", "b", "c"],
        "scores": pyarrow.array([[("x", 0.5), ("y", float("nan"))], [], None], by_name),
        "names": pyarrow.array([[(day, "leap")], [], None], pyarrow.map_(pyarrow.date32(), pyarrow.string())),
        "days": pyarrow.array([[(1, day)], [], None], pyarrow.map_(pyarrow.int32(), pyarrow.date32())),
        "deep": pyarrow.array(
            [[{"m": [("x", 1.0)]}, None], [], None], pyarrow.list_(pyarrow.struct([("m", by_name)]))
        ),
    }
    path = write_parquet(tmp_path / "x.parquet", columns)
    expected = [
        {
            "scores": {"x": 0.5, "y": None},
            "names": {"2024-02-29": "leap"},
            "days": {"1": "2024-02-29"},
            "deep": [{"m": {"x": 1.0}}, None],
        },
        {"scores": {}, "names": {}, "days": {}, "deep": []},
        {"scores": None, "names": None, "days": None, "deep": None},
    ]
    assert [metadata for _, _, metadata in read(path)] == expected
    with Index.build(tmp_path / "index", Corpus([path]), encoder) as index:
        hits = {hit.text: hit.metadata for hit in index.search("a", k=3)[0]}
    assert [hits[text] for text in "abc"] == expected


def test_texts_in_bytes_are_utf8(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", {"id": [b"a", b"b"], "text": ["é".encode(), b"\xff"]})
    with pytest.raises(InputError, match=r"x.parquet:2: the field 'text' holds bytes that are not UTF-8"):
        list(Corpus([path]))
    assert [(document.id, document.text) for document in Corpus([path], on_error="skip")] == [("a", "é")]
