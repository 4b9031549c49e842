"""Readers, checks and augmentation, on small files written here."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from embedkit.training.augment import WordNet, augment_wordnet, read_paraphrases
from embedkit.training.data.checks import check
from embedkit.training.data.files import named_rows
from embedkit.training.data.readers import Table, read

ROWS = [("snli", 'A "b', "c", "neutral"), ("med", "d", "é", "entailment"), ("snli", "f", "g", "entailment")]
NAMES = ("source", "premise", "hypothesis", "label")
COLUMNS = {"text1": "premise", "text2": "hypothesis", "label": "label"}
LABELS = ["entailment", "neutral"]


def write(folder: Path, name: str) -> str:
    path = folder / name
    if name.endswith(".parquet"):
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")

        columns = zip(NAMES, zip(*ROWS, strict=True), strict=True)
        parquet.write_table(pyarrow.table({n: list(values) for n, values in columns}), path)
        return name
    if ".jsonl" in name:
        content = "".join(json.dumps(dict(zip(NAMES, row, strict=True))) + "\n" for row in ROWS)
    elif ".csv" in name:
        quoted = (['"' + value.replace('"', '""') + '"' for value in row] for row in ROWS)
        content = "".join(",".join(row) + "\r\n" for row in [NAMES, *quoted])
    else:
        content = "".join("\t".join(row) + "\n" for row in [NAMES, *ROWS])
    data = content.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return name


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "a.csv", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_every_format_gives_the_same_table(tmp_path: Path, name: str) -> None:
    spec = {"path": write(tmp_path, name), "columns": COLUMNS, "labels": LABELS}
    table = read(spec, root=tmp_path)
    assert table.names == ("text1", "text2", "label")
    assert list(table["text1"]) == ['A "b', "d", "f"]
    assert list(table["text2"]) == ["c", "é", "g"]
    assert table["label"].tolist() == [1, 0, 0]
    assert table["label"].dtype == np.int64
    filtered = read({**spec, "where": {"source": ["snli", "x"], "label": "entailment"}}, root=tmp_path)
    assert list(filtered["text1"]) == ["f"]


def test_rows_with_blank_texts_are_skipped_if_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        {"a": "x", "b": "y", "score": 1},
        {"a": " ", "b": "y", "score": 2},
        {"a": "x", "b": None, "score": 3},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {**rows[0], "score": 4}]))
    with pytest.raises(ValueError, match=r"a\.jsonl:2: column 'a': the text is empty; .*`skip_blank: true`"):
        read({"path": str(path)})
    with caplog.at_level("INFO", "embedkit"):
        table = read({"path": str(path), "skip_blank": True})
    assert (list(table["a"]), list(table["b"]), list(table["score"])) == (["x", "x"], ["y", "y"], [1, 4])
    assert caplog.messages == [f"{path}: 2 rows with a blank text are left out"]
    with pytest.raises(ValueError, match="skip_blank is 1; give true or false"):
        read({"path": str(path), "skip_blank": 1})


def test_a_row_of_json_without_a_text_is_blank(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "x", "b": "y"}\n{"a": "z"}\n{"a": "u", "b": "v"}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl:2: no field 'b', .*`skip_blank: true`"):
        read({"path": str(path)})
    assert list(read({"path": str(path), "skip_blank": True})["b"]) == ["y", "v"]


def test_tables_as_spreadsheets_write_them(tmp_path: Path) -> None:
    """Columns without a name, empty lines at the end, and true in lower case."""
    (tmp_path / "a.csv").write_text("a,b,,\nx,true,,\ny,false,,\n")
    table = read({"path": str(tmp_path / "a.csv"), "where": {"b": True}})
    assert (table.names, list(table["a"])) == (("a", "b"), ["x"])
    (tmp_path / "a.tsv").write_text("a\tb\nx\ty\n\n")
    assert list(read({"path": str(tmp_path / "a.tsv")})["a"]) == ["x"]


def test_root_txt_several_files_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("\ufeffone\n\ntwo\r\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("three", encoding="utf-8")
    monkeypatch.setenv("EMBEDKIT_DATA", str(tmp_path))
    spec = {"path": ["a.txt", "b.txt"]}
    assert list(read(spec)["text"]) == ["one", "two", "three"]
    draws = {tuple(read({**spec, "limit": 2, "seed": seed})["text"]) for seed in range(9)}
    assert len(draws) > 2
    again = [list(read({**spec, "limit": 2, "seed": 3})["text"]) for _ in range(2)]
    assert again[0] == again[1]
    assert len(read({**spec, "limit": 9})) == 3


@pytest.mark.parametrize(
    ("content", "spec", "message"),
    [
        ("a\tscore\nx\t1\ny\n", {}, "a.tsv:3: 1 columns where the header has 2"),
        ("a\tscore\nx\t9\n", {"max_score": 5}, "a.tsv:2: column 'score': 9.0 is not within -inf and 5.0"),
        ("a\tscore\nx\tnan\n", {}, "a.tsv:2: column 'score': 'nan' is not a finite number"),
        ("a\tscore\n \t1\n", {}, "a.tsv:2: column 'a': the text is empty"),
        ("a\tlabel\nx\tno\n", {"labels": ["yes"]}, "a.tsv:2: column 'label': unknown label 'no'"),
        (
            "premise\nx\n",
            {"columns": {"text1": "premises"}},
            "no column 'premises' (did you mean 'premise'?)",
        ),
        ("a\nx\n", {"where": {"b": 1}}, "no column 'b'"),
        ("a\nx\n", {"where": {"a": "y"}}, "no row is left; loosen `where`"),
        ("a\tb\n \tx\n", {"skip_blank": True}, "no row is left; 1 have a blank text"),
        ("a\nx\n", {"colums": {}}, "no key 'colums' (did you mean 'columns'?)"),
        ("a\nx\n", {"limit": 0}, "limit is 0"),
        ("a\nx\n", {"streaming": "yes"}, "streaming is 'yes'; give true or false"),
        ("a\nx\n", {"streaming": True}, "streaming is for a `dataset`"),
        (
            "a\nx\n",
            {"split": "dev"},
            "split is for a `dataset`; to take some rows of a file, give where: {split: dev}",
        ),
        ("a\nx\n", {"config": "b"}, "config is for a `dataset`"),
        ("", {}, "the file is empty"),
        (b"a\nx\n\xff\n", {}, "a.tsv:3: not valid UTF-8"),
        ("a\ta\nx\ty\n", {}, "a.tsv: two columns are named 'a'; rename one"),
    ],
)
def test_errors_name_file_line_and_remedy(
    tmp_path: Path, content: str | bytes, spec: dict[str, Any], message: str
) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "a.tsv").write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(message)):
        read({"path": "a.tsv", **spec}, root=tmp_path)


@pytest.mark.parametrize("named", [True, False])
def test_a_stream_is_read_no_further_than_the_limit(monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    """A stand-in for the `datasets` package, whose streams may not name their columns."""
    asked: list[Any] = []
    taken: list[int] = []

    class Stream:
        column_names = ["text", "label"] if named else None

        def select_columns(self, names: list[str]) -> Stream:
            return self

        def __iter__(self) -> Iterator[dict[str, Any]]:
            for number in range(1000):
                taken.append(number)
                yield {"text": f"text {number}", "label": number % 2}

    def load_dataset(*given: Any, **options: Any) -> Stream:
        asked.append((given, options))
        return Stream()

    exceptions = SimpleNamespace(DatasetsError=RuntimeError)
    package = SimpleNamespace(load_dataset=load_dataset, exceptions=exceptions)
    monkeypatch.setitem(sys.modules, "datasets", package)
    spec = {"dataset": "me/texts", "config": "en", "split": "train", "streaming": True}
    table = read({**spec, "where": {"label": 1}, "limit": 3})
    assert asked == [(("me/texts", "en"), {"split": "train", "streaming": True})]
    assert list(table.texts("text")) == ["text 1", "text 3", "text 5"]
    assert table["label"].tolist() == [1, 1, 1]
    assert max(taken) == 5
    assert len(read(spec)) == 1000


def test_streams_of_the_datasets_package(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    write(tmp_path, "a.jsonl")
    spec = {"dataset": str(tmp_path), "split": "train", "columns": COLUMNS, "labels": LABELS}
    for streaming in (True, False):
        table = read({**spec, "streaming": streaming})
        assert list(table.texts("text1")) == ['A "b', "d", "f"]
        assert table["label"].tolist() == [1, 0, 0]
    assert list(read({**spec, "streaming": True, "limit": 1}).texts("text2")) == ["c"]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_damaged_data_set_is_named(tmp_path: Path, streaming: bool) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "a.csv").write_text("text,b\nx,1\ny,3,4,5\n")
    with pytest.raises(ValueError, match=r"the data set '.*' cannot be loaded \(.*line 3.*Repair its files"):
        read({"dataset": str(tmp_path), "split": "train", "streaming": streaming})


@pytest.mark.parametrize("of_datasets", [True, False])
def test_only_the_columns_that_are_needed_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_datasets: bool
) -> None:
    pytest.importorskip("datasets" if of_datasets else "pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    source = {"path": write(tmp_path, "a.parquet")}
    if of_datasets:
        import datasets

        asked: list[Any] = []
        select = datasets.Dataset.select_columns
        monkeypatch.setattr(
            datasets.Dataset, "select_columns", lambda data, names: asked.append(names) or select(data, names)
        )
        source = {"dataset": str(tmp_path), "split": "train"}
    else:
        asked, iterate = [], parquet.ParquetFile.iter_batches
        monkeypatch.setattr(
            parquet.ParquetFile,
            "iter_batches",
            lambda file, columns: asked.append(columns) or iterate(file, columns=columns),
        )
    spec = {**source, "columns": {"text1": "premise", "text2": "premise"}, "where": {"source": "snli"}}
    assert list(read(spec, root=tmp_path).texts("text2")) == ['A "b', "f"]
    assert asked == [["source", "premise"]]


def test_parquet_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="two columns are named 'text'; rename one"):
        read({"path": "a.parquet"}, root=tmp_path)


def test_csv_rows(tmp_path: Path) -> None:
    """Cells of any length, line breaks within quotes, and empty lines."""
    long = "x" * 200_000
    (tmp_path / "a.csv").write_text(f'\ntext,b\n{long},1\n\n"two\nlines",2\n')
    table = read({"path": "a.csv"}, root=tmp_path)
    assert list(table.texts("text")) == [long, "two\nlines"]
    (tmp_path / "a.csv").write_text('text,b\nx,1\n"unclosed,2\n')
    with pytest.raises(ValueError, match=r"a\.csv:3: a quoted field .* never closes; repair the file"):
        read({"path": "a.csv"}, root=tmp_path)


def test_other_errors(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"b\.tsv: no such file$"
    ):  # named by another command than a recipe
        next(named_rows(tmp_path / "b.tsv", ["text"]))
    with pytest.raises(FileNotFoundError, match=r"b\.tsv: no such file.*EMBEDKIT_DATA"):
        read({"path": "b.tsv"}, root=tmp_path)
    with pytest.raises(ValueError, match="either `path` or `dataset`"):
        read({})
    (tmp_path / "s.jsonl").write_text('{"a": "\\ud800"}\n')
    with pytest.raises(ValueError, match=r"s\.jsonl:1: column 'a': a lone surrogate"):
        read({"path": "s.jsonl"}, root=tmp_path)
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress(b"a\n" + b"x\n" * 9999)[:-20])
    with pytest.raises(ValueError, match=r"t\.tsv\.gz:\d+: the gzip data is damaged"):
        read({"path": "t.tsv.gz"}, root=tmp_path)


def test_excluded_texts_are_those_of_an_objective(tmp_path: Path) -> None:
    """An id or a source before or after them is no text; (left, right) are no names of an objective's."""
    for texts, others in (
        ("text1\ttext2", "text1\ttext2"),
        ("anchor\tpositive", "text1\ttext2"),
        ("left\tright", ""),
    ):
        names = others or texts
        lead = "" if not others else "id\t"
        rows = [f"the day {i}\tmany {i}" for i in range(4)]
        ids = [f"{i}\t" if lead else "" for i in range(8)]
        train = [f"{ids[i]}{row}\ta" for i, row in enumerate(rows)]
        tested = [f"{ids[7 - i]}{row}\tb" for i, row in enumerate(rows[:3])]
        (tmp_path / "train.tsv").write_text(f"{lead}{texts}\tsource\n" + "\n".join(train) + "\n")
        (tmp_path / "test.tsv").write_text(f"{lead}{names}\tsource\n" + "\n".join(tested) + "\n")
        table = read({"path": "train.tsv", "exclude": {"path": "test.tsv"}}, root=tmp_path)
        assert list(table.texts(texts.split("\t")[0])) == ["the day 3"]
    for path, name, rows in (("train.tsv", "text", ["a", "b"]), ("test.tsv", "text", ["A"])):
        content = "".join(f"{path}{i}\t{row}\n" for i, row in enumerate(rows))
        (tmp_path / path).write_text(f"id\t{name}\n{content}")
    table = read({"path": "train.tsv", "exclude": {"path": "test.tsv"}}, root=tmp_path)
    assert list(table.texts("text")) == ["b"]


def test_excluded_texts_are_compared_with_texts(tmp_path: Path) -> None:
    """Another column does not make a text a pair."""
    (tmp_path / "corpus.tsv").write_text("source\ttext\nx\tone\nx\ttwo\n")
    (tmp_path / "pairs.tsv").write_text("text1\ttext2\none\ttwo\n")
    with pytest.raises(ValueError, match="compared by text1, text2, those of the source by text;"):
        read({"path": "corpus.tsv", "exclude": {"path": "pairs.tsv"}}, root=tmp_path)
    (tmp_path / "texts.tsv").write_text("text\nONE\n")
    table = read({"path": "corpus.tsv", "exclude": {"path": "texts.tsv"}}, root=tmp_path)
    assert list(table.texts("text")) == ["two"]


def test_excluded_pairs(tmp_path: Path) -> None:
    """Left out in either order and whatever the case, before the limit is drawn."""
    columns = {"text1": "a", "text2": "b"}
    (tmp_path / "train.tsv").write_text("a\tb\tpart\none\ttwo\tx\nTwo\tone\tx\none\tthree\tx\ntwo\tfour\tx\n")
    (tmp_path / "test.tsv").write_text("a\tb\tpart\ntwo\tONE\ttest\none\tthree\tdev\n")
    tested = {"path": "test.tsv", "columns": columns, "where": {"part": "test"}}
    spec = {"path": "train.tsv", "columns": columns, "exclude": tested, "limit": 2}
    table = read(spec, root=tmp_path)
    assert sorted(zip(table.texts("text1"), table.texts("text2"), strict=True)) == [
        ("one", "three"),
        ("two", "four"),
    ]
    for exclude, message in (
        ({"path": "train.tsv", "columns": columns}, "every row of the source is excluded"),
        (
            {"path": "test.tsv", "columns": {"text": "a"}},
            "by text, those of the source by text1, text2",
        ),
        ({"pth": "test.tsv"}, "exclude: a source has no key 'pth'"),
        (True, "exclude is True; give a source"),
        (
            {"path": "test.tsv", "labels": ["x"], "weighted_fraction": 0.5},
            "exclude: weighted_fraction is of training data",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            read(spec | {"exclude": exclude}, root=tmp_path)


def test_table() -> None:
    table = Table({"text": ["a", "b", "c"], "score": np.array([1.0, 2.0, 3.0])})
    assert list(table.select([2, 0])["text"]) == ["c", "a"]
    assert table.select([2, 0])["score"].tolist() == [3, 1]
    with pytest.raises(ValueError, match="did you mean 'score'"):
        table["scores"]
    with pytest.raises(ValueError, match="different lengths"):
        Table({"a": ["x"], "b": []})


def test_check() -> None:
    first = ["A cat.", "b", "ﬁne  Day", "q", "STRASSE"]
    second = ["Dog", "c", "x", "r", "y"]
    table = Table({"text1": [*first, "dog"], "text2": [*second, "a CAT."]})
    evaluations = {"sts": [("X", "fine day"), ("straße", "none"), ("m", "n")]}
    report = check(table, evaluations)
    assert (report.rows, report.duplicates, report.examples) == (6, 1, (("dog", "a CAT."),))
    found = report.overlaps["sts"]
    assert (found.pairs, found.leaked_pairs, found.sentences, found.seen_sentences) == (3, 1, 6, 3)
    assert found.examples == (("ﬁne  Day", "x"),)
    assert any("50.0%" in line for line in report.lines())
    assert check(table, evaluations, ["text1"]).overlaps["sts"].leaked_pairs == 0
    # a pair is the first two texts, but a hard negative also counts as seen
    negatives = Table({"text1": table["text1"], "text2": table["text2"], "no": ["none", *"vwstu"]})
    found = check(negatives, evaluations, negatives.names).overlaps["sts"]
    assert (found.leaked_pairs, found.seen_sentences) == (1, 4)
    assert check(negatives, {}, negatives.names).duplicates == 0  # one pair with two negatives


@pytest.fixture(scope="module")
def wordnet(tmp_path_factory: pytest.TempPathFactory) -> WordNet:
    folder = tmp_path_factory.mktemp("wordnet")
    tables = {
        "synsets": [
            "ss_type\toffset\tlemmas\thypernyms\tgloss",
            "n\t1\tauto|car|motor vehicle\t\t",
            "v\t2\tbegin|start\t\t",
            "s\t3\tbig|large\t\t",
            "v\t4\ttake|grab\t\t",
            "v\t5\tstop|halt\t\t",
        ],
        "index": [
            "lemma\tpos\tn_tagged_senses\toffsets_in_sense_order",
            *("auto\tn\t0\t1", "car\tn\t2\t1|9", "begin\tv\t3\t2", "start\tv\t4\t2", "start\tn\t1\t9"),
            *("big\ta\t5\t3", "large\ta\t4\t3", "take\tv\t9\t4", "grab\tv\t2\t4", "halt\tv\t2\t5"),
        ],
        "exceptions": [
            "form\tpos\tlemmas",
            *("began\tv\tbegin", "begun\tv\tbegin", "beginning\tv\tbegin", "took\tv\ttake"),
            *("taken\tv\ttake", "grabbed\tv\tgrab", "stopped\tv\tstop"),
        ],
    }
    for name, lines in tables.items():
        (folder / f"{name}.tsv.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return WordNet(folder)


@pytest.mark.parametrize(
    ("word", "synonyms"),
    [
        ("car", ["auto"]),
        ("cars", ["autos"]),
        ("starting", ["beginning"]),
        ("starts", ["begins"]),
        ("started", []),  # began or begun
        ("took", ["grabbed"]),
        ("large", ["big"]),
        ("halted", ["stopped"]),
        ("began", ["started"]),
        ("the", []),
        ("zzz", []),
    ],
)
def test_synonyms_keep_the_inflection(wordnet: WordNet, word: str, synonyms: list[str]) -> None:
    assert wordnet.synonyms(word) == synonyms


def test_augment_wordnet(wordnet: WordNet) -> None:
    assert augment_wordnet(["Cars are large!", "zzz the"], wordnet, rate=1.0) == ["Autos are big!", None]
    assert augment_wordnet(["a car", "THE CAR", "my Car"], wordnet) == [None, "THE AUTO", None]
    text = "large car starts, large cars took a large car"
    one = augment_wordnet([text], wordnet, seed=1)[0]
    assert one is not None
    assert sum(a != b for a, b in zip(text.split(), one.split(), strict=True)) == 2  # of 8
    assert augment_wordnet(["car", text], wordnet, seed=1)[1] == one
    assert len({augment_wordnet([text], wordnet, seed=seed)[0] for seed in range(9)}) > 2
    with pytest.raises(ValueError, match="rate=0"):
        augment_wordnet([], wordnet, rate=0)


def test_missing_or_damaged_wordnet(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="synsets"):
        WordNet(tmp_path)
    (tmp_path / "synsets.tsv.gz").write_bytes(gzip.compress(b"x\ty\n1\t2\n"))
    with pytest.raises(ValueError, match=r"synsets\.tsv\.gz:1: no column 'ss_type'"):
        WordNet(tmp_path)


def test_read_paraphrases(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.write_text("text\tparaphrase\na\tb\nc\td\na\te\na\tb\nc\tc\n")
    assert list(read_paraphrases(path)) == [("a", ["b", "e"]), ("c", ["d"])]
