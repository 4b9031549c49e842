"""Reading documents from files of every format, and the errors for malformed ones."""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_encoder import FakeEncoder
from read_files import read, write

from embedkit.documents import InputError, sources
from embedkit.documents.readers import Corpus
from embedkit.index import Index

CONTENTS = {
    "txt": (
        "eins\n\nzwei, drei\r\n\u3000\n日本",
        [("NAME:1", "eins"), ("NAME:3", "zwei, drei"), ("NAME:5", "日本")],
    ),
    "jsonl": (
        '{"id": "a", "text": "eins", "n": 1}\n{"text": "zwei\\n"}\n\n{"id": 17, "text": "\\ud83d\\ude00"}\n',
        [("a", "eins", {"n": 1}), ("NAME:2", "zwei\n", {}), ("17", "😀", {})],
    ),
    "csv": (
        'id,text,more\r\na,"eins, ""zwei""",x\r\nb,"two\nlines",\nc,5" wide,y\n',
        [
            ("a", 'eins, "zwei"', {"more": "x"}),
            ("b", "two\nlines", {"more": ""}),
            ("c", '5" wide', {"more": "y"}),
        ],
    ),
    "tsv": ('text\tid\n"eins"\ta\n zwei \tb', [('"eins"', "a"), (" zwei ", "b")]),
}


@pytest.mark.parametrize("format", CONTENTS)
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_each_format_round_trips_through_an_index(
    tmp_path: Path, encoder: FakeEncoder, format: str, ending: str, bom: str
) -> None:
    content, expected = CONTENTS[format]
    path = write(tmp_path, f"x.{format}{ending}", bom + content)
    if format == "tsv":
        expected = [(key, text, {}) for text, key in expected]
    expected = [
        (key.replace("NAME", path.name), text, *(metadata or [None])) for key, text, *metadata in expected
    ]
    assert read(path) == expected
    with Index.build(tmp_path / "index", Corpus([path]), encoder) as index:
        hits = {hit.id: hit for hit in index.search("eins", k=10)[0]}
    assert {(key, text, json.dumps(metadata or {})) for key, text, metadata in expected} == {
        (key, hit.text, json.dumps(hit.metadata)) for key, hit in hits.items()
    }


def test_blank_texts_are_counted(tmp_path: Path) -> None:
    corpus = Corpus(
        [
            write(tmp_path, "a.txt", "\n \nx\n"),
            write(tmp_path, "b.jsonl", '\n{"text": " "}\n{"text": "y"}'),
            write(tmp_path, "c.csv", "text,n\n,1\n\nz,2\n"),
        ]
    )
    assert [document.text for document in corpus] == ["x", "y", "z"]
    assert corpus.blank == 6


def test_positions_add_up_to_the_total(tmp_path: Path) -> None:
    paths = [
        write(tmp_path, "a.txt", "one\n" * 1000),
        write(tmp_path, "b.txt.gz", "two\n" * 1000),
        write(tmp_path, "c.csv", "text\nthree\n"),
    ]
    corpus = Corpus(paths)
    positions = [document.position for document in corpus]
    assert positions == sorted(positions)
    assert positions[0] == 4
    assert positions[-1] == corpus.total_bytes == sum(path.stat().st_size for path in paths)


def test_fields_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "x.jsonl", '{"title": "t", "key": "k", "text": 1}')
    assert read(path, text_field="title", id_field="key") == [("k", "t", {"text": 1})]
    path = write(tmp_path, "x.csv", "title,key,id\nt,k,i")
    assert read(path, text_field="title", id_field="key") == [("k", "t", {"id": "i"})]
    assert read(path, text_field="id") == [("x.csv:2", "i", {"title": "t", "key": "k"})]


def test_files_of_one_name_get_ids_with_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in "ab":
        os.mkdir(folder)
        write(tmp_path / folder, "x.txt", "text\n")
    assert [document.id for document in Corpus(["a/x.txt", "b/x.txt"])] == ["a/x.txt:1", "b/x.txt:1"]


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    path = write(tmp_path, "data.bin", '{"text": "x"}')
    assert read(path, format="jsonl") == [("data.bin:1", "x", {})]
    path = write(tmp_path, "data.gz", "plain")
    assert read(path, format="txt") == [("data.gz:1", "plain", None)]


def test_a_very_long_line(tmp_path: Path) -> None:
    text = "a long line " * 500_000
    assert read(write(tmp_path, "x.txt", text))[0][1] == text
    assert read(write(tmp_path, "x.csv", f'text\n"{text}"'))[0][1] == text


MALFORMED = {
    "json": ("jsonl", b'{"text": "a"', "2: not valid JSON: Expecting ',' delimiter at column 13"),
    "json constant": ("jsonl", b'{"text": "a", "x": NaN}', "2: not valid JSON: NaN is not a JSON value"),
    "json control": ("jsonl", b'{"text": "a\x00"}', "2: not valid JSON: Invalid control character at"),
    "json integer": (
        "jsonl",
        b'{"text": "a", "n": ' + b"9" * 5000 + b"}",
        "2: not valid JSON: Exceeds the limit",
    ),
    "json depth": ("jsonl", b'{"text": "a", "n": ' + b"[" * 200_000, "2: not usable JSON: nested too deeply"),
    "json array": ("jsonl", b'["a"]', "2: the line is an array, not a JSON object"),
    "no text": ("jsonl", b'{"title": "a", "id": 1}', r"2: no field 'text' \(the fields are: title, id\)"),
    "empty object": ("jsonl", b"{}", r"2: no field 'text' \(the fields are: none\)"),
    "text number": ("jsonl", b'{"text": 5}', "2: the field 'text' is a number, not a string"),
    "text null": ("jsonl", b'{"text": null}', "2: the field 'text' is null, not a string"),
    "text array": ("jsonl", b'{"text": ["a"]}', "2: the field 'text' is an array, not a string"),
    "id object": (
        "jsonl",
        b'{"text": "a", "id": {}}',
        "2: the field 'id' is an object, not a string or an integer",
    ),
    "id boolean": (
        "jsonl",
        b'{"text": "a", "id": true}',
        "2: the field 'id' is a boolean, not a string or an int",
    ),
    "id empty": ("jsonl", b'{"text": "a", "id": ""}', "2: the id is empty"),
    "id twice": (
        "jsonl",
        b'{"text": "a", "id": "first"}',
        "2: the id 'first' was used before; ids must be unique",
    ),
    "surrogate": (
        "jsonl",
        b'{"text": "a\\ud800"}',
        r"2: the text holds a lone surrogate \(U\+D800\) at character 1",
    ),
    "surrogate in id": ("jsonl", b'{"text": "a", "id": "\\udfff"}', "2: the id holds a lone surrogate"),
    "surrogate in metadata": (
        "jsonl",
        b'{"text": "a", "x": "\\udfff"}',
        "2: the metadata field 'x' holds a lone surr",
    ),
    "infinite number": ("jsonl", b'{"text": "a", "x": 1e999}', "2: the metadata field 'x' holds inf"),
    "escaped NUL": ("jsonl", b'{"text": "a\\u0000"}', "2: the text holds a NUL character"),
    "json UTF-8": ("jsonl", b'{"text": "\xe4"}', "2: not valid UTF-8: byte 0xe4 at byte 11"),
    "UTF-8": ("txt", b"caf\xe9", "2: not valid UTF-8: byte 0xe9 at byte 4"),
    "encoded surrogate": ("txt", b"\xed\xa0\x80", "2: not valid UTF-8: byte 0xed at byte 1"),
    "NUL": ("txt", b"a\x00b", "2: the text holds a NUL character"),
    "few columns": ("csv", b"only", "2: 1 columns, but the first row has 3"),
    "many columns": ("csv", b"a,b,c,d", "2: 4 columns, but the first row has 3"),
    "after quote": ("csv", b'x,"quoted" tail,z', r"2: text follows a closing quote \(column 11 of line 2\)"),
    "csv UTF-8": ("csv", b'x,"a\nb\xff\nc",z', "3: not valid UTF-8: byte 0xff at byte 2"),
    "tsv columns": ("tsv", b"a\tb", "2: 2 columns, but the first row has 3"),
}
FIRST = {"jsonl": b'{"id": "first", "text": "x"}', "txt": b"x", "csv": b"id,text,n", "tsv": b"id\ttext\tn"}
LAST = {"jsonl": b'{"id": "last", "text": "y"}', "txt": b"y", "csv": b'last,"y",1', "tsv": b"last\ty\t1"}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_line_stops_or_is_skipped_and_counted(
    tmp_path: Path, encoder: FakeEncoder, name: str
) -> None:
    format, line, message = MALFORMED[name]
    path = write(tmp_path, f"x.{format}", b"\n".join((FIRST[format], line, LAST[format], b"")))
    with pytest.raises(InputError, match=f"^{path}:{message}"):
        Index.build(tmp_path / "index", Corpus([path]), encoder)
    assert not (tmp_path / "index").exists()
    problems = []
    corpus = Corpus([path], on_error=problems.append)
    with Index.build(tmp_path / "index", corpus, encoder, on_error=problems.append) as index:
        texts = {hit.text for hit in index.search("x", k=9)[0]}
    assert texts == ({"y"} if format in ("csv", "tsv") else {"x", "y"})
    assert len(problems) == 1


def test_csv_reads_what_the_standard_library_writes(tmp_path: Path) -> None:
    choose = random.Random(0)
    rows = [["text", "a", "b"]] + [
        ["x" + "".join(choose.choices('ab ,"\n;é日\t', k=choose.randrange(12))) for _ in range(3)]
        for _ in range(2000)
    ]
    path = tmp_path / "x.csv"
    for terminator in ("\n", "\r\n"):
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator=terminator).writerows(rows)
        assert [[text, *metadata.values()] for _, text, metadata in read(path)] == rows[1:]


def test_tags_of_a_json_object_are_no_records(tmp_path: Path) -> None:
    path = write(tmp_path, "x.json", '{"title": "t", "body": "b", "tags": ["vegan", "quick"]}')
    with pytest.raises(InputError, match=r"x.json:1: no field 'text' \(the fields are: title, body, tags\)"):
        read(path)
    assert read(path, text_field="body") == [("x.json:1", "b", {"title": "t", "tags": ["vegan", "quick"]})]
    assert read(write(tmp_path, "x.json", '{"all": ["a", "b"]}')) == [
        ("x.json:1", "a", None),
        ("x.json:2", "b", None),
    ]
    assert read(write(tmp_path, "x.json", '{"count": 1, "all": [{"text": "a"}]}')) == [("x.json:1", "a", {})]
    assert read(write(tmp_path, "x.json", '{"count": 0, "all": []}')) == []


def test_json_lines_and_an_array_under_each_others_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.json:1: .*; if it is JSON Lines: --format jsonl"):
        read(write(tmp_path, "x.json", '{"text": "a"}\n{"text": "b"}\n'))
    with pytest.raises(InputError, match=r"x\.jsonl:1: .*; if it is one JSON array: --format json"):
        read(write(tmp_path, "x.jsonl", '[{"text": "a"},\n{"text": "b"}]\n'))


def test_an_unclosed_quote_names_its_row(tmp_path: Path) -> None:
    path = write(tmp_path, "x.csv", 'text\nfine\n"open\nto the\nend')
    with pytest.raises(InputError, match=rf"{path}:3: a quoted field that opens in this row never closes"):
        read(path)
    assert [text for _, text, _ in read(path, on_error="skip")] == ["fine", "to the", "end"]


@pytest.mark.parametrize(
    ("rows", "problems", "found"),
    [
        # never closed
        (
            ["1,a", '2,"open', "3,c", "4,d"],
            ["3: a quoted field that opens in this row never closes"],
            "1 3 4",
        ),
        (['1,"""open', "2,b"], ["2: .* never closes"], "2"),
        # closed where another opens
        (
            ['1,"open', "2,b", '3,"c', 'c"', "4,d"],
            [r"2: .* does not close before another opens \(column 3 of line 4\)"],
            "2 3 4",
        ),
        (['1,"open', '"2","b"', "3,c"], [r"2: .* before another opens \(column 1 of line 3\)"], "2 3"),
        (['1,"open', '2,"""b"" c"', "3,c"], ["2: .* before another opens"], "2 3"),
        (['1,"open', '2,"open', "3,c"], ["2: .* before another opens", "3: .* never closes"], "3"),
        # closed in the middle of a field: a row of two lines
        (['1,"a', 'b" tail', "2,c"], [r"2: text follows a closing quote \(column 3 of line 3\)"], "2"),
    ],
)
def test_rows_behind_an_unclosed_quote_are_read(
    tmp_path: Path, rows: list[str], problems: list[str], found: str
) -> None:
    path = write(tmp_path, "x.csv", "\n".join(["id,text", *rows, ""]))
    seen: list[InputError] = []
    assert [document_id for document_id, _, _ in read(path, on_error=seen.append)] == found.split()
    assert len(seen) == len(problems)
    for error, expected in zip(seen, problems, strict=True):
        assert re.match(f"{path}:{expected}", str(error))


@pytest.mark.parametrize("format", ["txt", "csv"])
def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    monkeypatch.setattr(sources, "MAX_RECORD_BYTES", 1000)
    path = write(tmp_path, f"x.{format}", "text\n" + "x" * 5000 + "\nlast\n")
    with pytest.raises(InputError, match=f"{path}:2: the line is longer than"):
        read(path)
    assert [text for _, text, _ in read(path, on_error="skip")][-1] == "last"


def test_a_quoted_record_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_RECORD_BYTES", 1000)
    path = write(tmp_path, "x.csv", 'text\n"' + "x\n" * 1500 + "last\n")
    with pytest.raises(InputError, match=f"{path}:2: a quoted field does not close within"):
        read(path)
    assert read(path, on_error="skip")[-1][1] == "last"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"id,body\n1,x\n",
            r"x.csv:1: no column 'text' \(the columns are: id, body\); name it with --text-field",
        ),
        (b"id;text\n1;x\n", "x.csv:1: its columns are separated by ';', and .csv is read with commas"),
        (b"text,text\n1,x\n", "x.csv:1: two columns are named 'text'"),
        (b"\xfftext\nx\n", "x.csv:1: not valid UTF-8: byte 0xff at byte 1; convert it: iconv"),
        (b'"text\nx\n', "x.csv:1: a quoted field that opens in this row never closes"),
        (
            b"text,id\rone,1\rtwo,2\r",
            r"x.csv:1: the header holds a carriage return \(\\r\) within the line; save",
        ),
        (b'"text","id"\r"one","1"\r', r"x.csv:1: the header holds a carriage return"),
    ],
)
def test_a_bad_header_cannot_be_skipped(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = write(tmp_path, "x.csv", content)
    with pytest.raises(InputError, match=message):
        read(path, on_error="skip")


def test_carriage_returns_within_texts_are_kept(tmp_path: Path) -> None:
    assert read(write(tmp_path, "x.csv", 'text\r\n"a\rb"\r\n')) == [("x.csv:2", "a\rb", {})]
    with pytest.raises(InputError, match=r"x.tsv:1: the header holds a carriage return"):
        read(write(tmp_path, "x.tsv", "text\tid\rone\t1\r"), on_error="skip")


def test_a_named_id_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no column 'key' \(the columns are: text\); name it with --id-field"
    ):
        read(write(tmp_path, "x.csv", "text\nx"), id_field="key")
    with pytest.raises(InputError, match=r"x.jsonl:1: no field 'key'"):
        read(write(tmp_path, "x.jsonl", '{"text": "x", "id": "i"}'), id_field="key")


def test_utf16_is_recognized(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the file looks like UTF-16: convert it"):
        read(write(tmp_path, "x.txt", "text\n".encode("utf-16")))


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"plain", lambda data: data[:30] + b"\0" * 9]
)
def test_damaged_gzip_stops_always(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "x.txt.gz"
    path.write_bytes(damage(gzip.compress(b"some lines\nof text\n" * 50)))
    with pytest.raises(InputError, match=rf"{path}:\d+: the gzip data is damaged"):
        read(path, on_error="skip")


def test_unusable_inputs_are_named_before_anything_is_read(tmp_path: Path) -> None:
    text = write(tmp_path, "a.txt", "x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"none.txt: cannot be read: No such file"):
        Corpus([text, tmp_path / "none.txt"])
    with pytest.raises(InputError, match="the folder holds no files that embedkit reads"):
        Corpus([tmp_path / "empty"])
    with pytest.raises(
        InputError,
        match=r"a.odt: unknown file type; embedkit reads .txt, .md, .html, .json, .jsonl, .ndjson, .csv, .tsv, ",
    ):
        Corpus([write(tmp_path, "a.odt", "x")])
    with pytest.raises(InputError, match=r"a.txt: the input is given twice"):
        Corpus([text, tmp_path / "." / "a.txt"])
    with pytest.raises(InputError, match=r"-: the input is given twice"):
        Corpus(["-", "-"])
    with pytest.raises(InputError, match="no input files given"):
        Corpus([])
    with pytest.raises(InputError, match=r"cannot be read: .*embedded null"):
        Corpus(["a\0.txt"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_input(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "x")
    path.chmod(0)
    with pytest.raises(InputError, match=r"a.txt: cannot be read: Permission denied"):
        Corpus([path])


def test_a_named_pipe_is_read(tmp_path: Path) -> None:
    import threading

    path = tmp_path / "pipe.txt"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_text("one\ntwo\n"))
    writer.start()
    corpus = Corpus([path])
    assert [document.text for document in corpus] == ["one", "two"]
    assert corpus.total_bytes is None
    writer.join()


def test_vectors_of_a_npy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.documents.readers._VECTORS_AT_ONCE", 4)
    array = np.random.default_rng(0).standard_normal((11, 3)).astype(np.float16)
    np.save(tmp_path / "x.npy", array)
    path = write(tmp_path, "x.txt", "".join(f"text {n}\n" for n in range(11)))
    found = list(Corpus([path], vectors=tmp_path / "x.npy"))
    np.testing.assert_array_equal([document.vector for document in found], array.astype(np.float32))
    shorter = write(tmp_path, "short.txt", "a\nb\n")
    with pytest.raises(InputError, match=r"x.npy: holds 11 vectors for 2 documents"):
        list(Corpus([shorter], vectors=tmp_path / "x.npy"))
    longer = write(tmp_path, "long.txt", "a\n" * 12)
    with pytest.raises(InputError, match=r"long.txt:12: .*x.npy holds 11 vectors, none for this document"):
        list(Corpus([longer], vectors=tmp_path / "x.npy"))
    blank = write(tmp_path, "blank.txt", "a\n\nb\n")
    with pytest.raises(
        InputError, match=r"blank\.txt:2: the text is blank, but vectors are given by position"
    ):
        list(Corpus([blank], vectors=tmp_path / "x.npy"))
    with pytest.raises(InputError, match="malformed lines cannot be skipped"):
        Corpus([path], vectors=tmp_path / "x.npy", on_error="skip")
    for wrong in (np.ones(3), np.ones((2, 2), int), np.asfortranarray(np.ones((5, 4)))):
        np.save(tmp_path / "wrong.npy", wrong)
        with pytest.raises(
            InputError, match=r"wrong.npy: holds .*, expected floats \(documents, dimension\) in C order"
        ):
            Corpus([path], vectors=tmp_path / "wrong.npy")
    (tmp_path / "wrong.npy").write_bytes(b"garbage")
    for name in ("wrong.npy", "none.npy"):
        with pytest.raises(
            InputError, match=f"{name}: (is not a .npy file of numbers|cannot be read: No such file)"
        ):
            Corpus([path], vectors=tmp_path / name)


def test_zstd(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    content = "".join(f"line {n}\n" for n in range(1000)).encode()
    packed = pyarrow.compress(content, codec="zstd", asbytes=True)
    path = tmp_path / "x.txt.zst"
    path.write_bytes(packed + pyarrow.compress(b"the second frame\n", codec="zstd", asbytes=True))
    corpus = Corpus([path])
    found = list(corpus)
    assert [document.text for document in found[-2:]] == ["line 999", "the second frame"]
    assert found[-1].position == corpus.total_bytes
    path.write_bytes(packed[:-5])
    with pytest.raises(InputError, match=r"x.txt.zst:\d+: the zstd data is damaged: "):
        list(Corpus([path]))
    path.write_bytes(b"no zstd")
    with pytest.raises(InputError, match=r"x.txt.zst:1: the zstd data is damaged: "):
        list(Corpus([path]))


def test_folders_and_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("d/b.txt", "d/a.jsonl", "d/sub/c.csv.gz", "d/.hidden.txt", "d/notes.odt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        content = {"a.jsonl": '{"text": "a"}', "c.csv.gz": "text\nc\n"}.get(name.rsplit("/", 1)[-1], "b")
        write(tmp_path, name, content)
    assert [document.text for document in Corpus(["d"])] == ["a", "b", "c"]
    assert [document.text for document in Corpus(["d/*.txt"])] == ["b"]
    assert [document.text for document in Corpus(["d/**/*.csv.gz", "d/b.txt"])] == ["c", "b"]
    with pytest.raises(InputError, match="no file matches the pattern"):
        Corpus(["d/*.none"])
    with pytest.raises(InputError, match="unknown file type"):
        Corpus(["d/*.odt"])
    with pytest.raises(InputError, match="the input is given twice"):
        Corpus(["d", "d/b.txt"])


def test_what_needs_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("x.parquet", "x.txt.zst"):
        (tmp_path / name).write_bytes(b"")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(
            ImportError, match=r"needs pyarrow, which is not installed: pip install 'embedkit\[parquet\]'"
        ):
            Corpus([tmp_path / name])


def test_a_page_says_its_encoding(tmp_path: Path) -> None:
    page = '<html><head><meta charset="iso-8859-1"></head><p>caf\xe9</p></html>'
    (found,) = Corpus([write(tmp_path, "a.html", page.encode("latin-1"))])
    assert found.text == "café"
    for wrong in (b'<meta charset="nothing"><p>\xe9', b'<meta charset="utf-16"><p>\xe9', b"<p>\xe9"):
        with pytest.raises(InputError, match="not valid UTF-8"):
            list(Corpus([write(tmp_path, "b.html", wrong)]))
