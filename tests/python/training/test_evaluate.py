"""Evaluation against formulas written out here and scikit-learn, on tables made for the purpose."""

from __future__ import annotations

import gzip
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy", reason="scipy (extra train) is not installed")

from embedkit.training import evaluate
from embedkit.training.evaluate.retrieval import rank_quality
from embedkit.training.evaluate.tables import read_table
from embedkit.training.evaluate.vectors import highest

STS_HEADER = "task\tsubset\tsplit\tscore\tsentence1\tsentence2"
COUNTS = {
    "STS12": 3108,
    "STS13": 1500,
    "STS14": 3750,
    "STS15": 3000,
    "STS16": 1186,
    "STSB": 1379,
    "SICKR": 4927,
}


class Angles:
    """Texts are angles in degrees: the cosine of a pair is that of the difference."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def encode(self, sentences: list[str]) -> np.ndarray:
        self.calls.append(sentences)
        angles = np.radians([float(text) for text in sentences])
        return 3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)  # not of length 1


class Table:
    """An encoder of known vectors."""

    def __init__(self, vectors: dict[str, list[float]]) -> None:
        self.vectors = vectors

    def encode(self, sentences: list[str]) -> np.ndarray:
        return np.array([self.vectors[text] for text in sentences])


def write(path: Path, lines: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode("utf-8"), 1))
    return path


def ranks(values: list[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    return [sum(v < x for v in values) + (values.count(x) + 1) / 2 for x in values]


def spearman_by_hand(a: list[float], b: list[float]) -> float:
    """Pearson's correlation of the ranks, written out."""
    x, y = ranks(a), ranks(b)
    mx, my = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((p - mx) * (q - my) for p, q in zip(x, y, strict=True))
    return covariance / math.sqrt(sum((p - mx) ** 2 for p in x) * sum((q - my) ** 2 for q in y))


def sts_rows() -> list[str]:
    """All seven sets at full count; STS12 of two subsets that disagree about what a cosine means."""
    rows = []
    for task, count in COUNTS.items():
        for i in range(count):
            distance = i % 90
            if task == "STS12":
                # in each subset the order is perfect, but the second is scored far lower throughout
                first = i < 1554
                score = (5 if first else 2) - distance / 90
                rows.append(f"{task}\t{'a' if first else 'b'}\ttest\t{score:.4f}\t0\t{distance}")
            else:
                rows.append(f"{task}\tx\ttest\t{5 - distance / 18:.4f}\t0\t{distance}")
    rows += [f"STSB\tx\tdev\t{i % 6}\t1\t{91 - i % 7}" for i in range(1500)]
    return [STS_HEADER, *rows]


def test_spearman_with_ties() -> None:
    a, b = [1.0, 2.0, 2.0, 3.0, 0.5, 2.0], [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    assert evaluate.spearman(a, b) == pytest.approx(spearman_by_hand(a, b), abs=1e-12)
    assert evaluate.spearman([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(1 - 6 * 2 / (4 * 15))


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1, 1, 1], [1, 2, 3], "all values of predicted are 1"),
        ([1, 2, 3], [2, 2, 2], "all values of gold are 2"),
        ([1, math.nan], [1, 2], r"predicted\[1\] is not finite"),
        ([1], [1], "two or more"),
        ([1, 2], [1, 2, 3], "two or more values on both sides"),
    ],
)
def test_what_cannot_be_ranked_is_refused(a: list[float], b: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate.spearman(a, b)


def test_a_year_is_one_list_not_a_mean_of_subsets(tmp_path: Path) -> None:
    write(tmp_path / "sts_en" / "sts_en.tsv.gz", sts_rows())
    encoder = Angles()
    result = evaluate.sts(encoder, tmp_path)
    assert list(result.sets) == ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]
    rows = [line.split("\t") for line in sts_rows() if line.startswith("STS12")]
    together = spearman_by_hand([-float(r[5]) for r in rows], [float(r[3]) for r in rows])
    assert together < 0.7  # the mean of the subsets would be 1
    assert result.sets["STS12"].spearman == pytest.approx(100 * together, abs=1e-6)
    assert result.sets["STS-B"].spearman == pytest.approx(100)
    assert result.average == pytest.approx((600 + 100 * together) / 7)
    assert {name: one.pairs for name, one in result.sets.items()} == dict(
        zip(result.sets, COUNTS.values(), strict=True)
    )
    assert len(encoder.calls) == 1 and max(Counter(encoder.calls[0]).values()) == 1
    dev = [line.split("\t") for line in sts_rows() if "\tdev\t" in line]
    expected = spearman_by_hand([-float(r[5]) for r in dev], [float(r[3]) for r in dev])
    assert evaluate.sts_dev(encoder, tmp_path) == pytest.approx(100 * expected, abs=1e-6)


def test_dev_pairs_of_a_test_set_do_not_select(tmp_path: Path) -> None:
    """In either order, and whatever the case and the white space."""
    rows = [row for row in sts_rows() if "\tdev\t" not in row]
    rows[1:4] = [
        f"STS12\ta\ttest\t1\t{left}\t{right}" for left, right in [("A cat", "A Dog"), ("x", "y"), ("u", "v")]
    ]
    dev = [("A dog ", "a  CAT"), ("X", "y"), ("v", "u"), ("0", "7"), ("x", "x"), ("1", "7"), ("a cat", "y")]
    dev += [("1", f"{i}") for i in range(100, 1593)]
    rows += [f"STSB\tx\tdev\t{i % 6}\t{left}\t{right}" for i, (left, right) in enumerate(dev)]
    write(tmp_path / "sts_en" / "sts_en.tsv.gz", rows)
    (one,) = evaluate.sts_dev_sets(tmp_path).values()
    assert [(pair.left, pair.right) for pair in one.pairs[:3]] == [("x", "x"), ("1", "7"), ("a cat", "y")]
    assert len(one.pairs) == 1496
    assert one.source.endswith("STSB dev, without pairs of the test sets")

    train = [("p", "q"), ("U ", "v"), *((f"{i}", "w") for i in range(2232))]  # (u, v) is in STS12's test
    lines = [f"STS12\tx\ttrain\t{i % 6}\t{left}\t{right}" for i, (left, right) in enumerate(train)]
    write(tmp_path / "sts_en" / "sts12_train.tsv.gz", [STS_HEADER, *lines])
    unseen = evaluate.sts_unseen_sets(tmp_path)
    whole = {name: len(one.pairs) for name, one in evaluate.sts_sets(tmp_path).items()}
    assert {("a cat", "a dog"), ("x", "y"), ("u", "v")}.isdisjoint(
        (pair.left.lower(), pair.right.lower()) for pair in unseen["STS12"].pairs
    )
    assert len(unseen["STS12"].pairs) == whole["STS12"] - 3 - sum(
        (pair.left, pair.right) in {("0", "7"), ("1", "7")}
        for pair in evaluate.sts_sets(tmp_path)["STS12"].pairs
    )
    assert unseen["STS12"].source.endswith("without pairs of STS-B dev and STS12 train")

    with pytest.raises(ValueError, match="STSB train"):  # whose pairs are not in the table yet
        evaluate.sts_wide_dev_sets(tmp_path)
    for task, split, count in (("STSB", "train", 5749), ("SICKR", "train", 4500), ("SICKR", "dev", 500)):
        rows += [f"{task}\tx\t{split}\t{i % 6}\tt{i}\t{'w' if i else 'x'}" for i in range(count - 1)]
        rows.append(f"{task}\tx\t{split}\t1\tV\tu")
    write(tmp_path / "sts_en" / "sts_en.tsv.gz", rows)
    wide = evaluate.sts_wide_dev_sets(tmp_path)
    assert {name: len(one.pairs) for name, one in wide.items()} == {
        "STS-B dev": 1496,
        "STS-B train": 5748,
        "SICK train": 4499,
        "SICK dev": 499,
        "STS12 train": 2233,
    }


def test_chinese_sets_and_their_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {("AFQMC", "dev"): 4316, ("BQ", "test"): 10000, ("LCQMC", "test"): 12500, ("PAWSX", "test"): 2000}
    rows = [
        f"{source}\t{split}\t0\t{i % 90}\t{int(i % 90 < 45)}"
        for (source, split), count in {**sizes, ("BQ", "dev"): 3}.items()
        for i in range(count)
    ]
    write(tmp_path / "zh" / "zh_pairs.tsv.gz", ["source\tsplit\ttext1\ttext2\tlabel", *rows])
    rows = [f"CNSD_STSB\tsts-b\ttest\t{i % 6}\t0\t{9 - i % 6}" for i in range(1361)]
    write(tmp_path / "zh" / "zh_sts.tsv.gz", [STS_HEADER, *rows])
    monkeypatch.setenv(evaluate.DATA_VARIABLE, str(tmp_path))
    result = evaluate.chinese(Angles())
    assert list(result.sets) == ["AFQMC dev", "BQ", "LCQMC", "PAWS-X", "STS-B"]
    assert result.sets["AFQMC dev"].source.endswith("AFQMC dev")
    assert result.sets["STS-B"].spearman == pytest.approx(100)
    expected = spearman_by_hand([-(i % 90) for i in range(2000)], [float(i % 90 < 45) for i in range(2000)])
    assert result.sets["PAWS-X"].spearman == pytest.approx(100 * expected, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda r: [*r[:-1], "STSB\tx\tdev\t5.2\ta\tb"],
            r"sts_en\.tsv\.gz:\d+: score is '5\.2'; expected .* 0 to 5",
        ),
        (lambda r: [r[0], "STSB\tx\tdev\tnan\ta\tb", *r[1:]], r"sts_en\.tsv\.gz:2: score is 'nan'"),
        (lambda r: [r[0], "STSB\tx\tdev\t\ta\tb", *r[1:]], r":2: score is ''"),
        (lambda r: [r[0], "STSB\tx\tdev\t1\ta", *r[1:]], r":2: 5 columns where the header has 6"),
        (lambda r: [r[0], "STSB\tx\tdev\t1\ta\t ", *r[1:]], r":2: sentence2 is blank"),
        (lambda r: r[:-1], r"1499 pairs of STSB dev, expected 1500"),
        (lambda r: [r[0].replace("score", "points"), *r[1:]], r":1: no column 'score'; there are task, "),
    ],
)
def test_errors_of_a_table_name_file_and_line(
    tmp_path: Path, change: Callable[[list[str]], list[str]], message: str
) -> None:
    write(tmp_path / "sts_en" / "sts_en.tsv.gz", change(sts_rows()))
    with pytest.raises(ValueError, match=message):
        evaluate.sts_dev(Angles(), tmp_path)


def test_a_cut_file_and_quotation_marks(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv.gz", ["a\tb", '"x\ty"', *(f"{i}\t{i * i}" for i in range(5000))])
    row = next(iter(read_table(path, ("a", "b"))))
    assert (row["a"], row["b"], row.origin) == ('"x', 'y"', f"{path}:2")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"t\.tsv\.gz:\d+: the gzip data is damaged"):
        list(read_table(path, ("a",)))


def test_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(evaluate.DATA_VARIABLE, raising=False)
    with pytest.raises(ValueError, match=r"set EMBEDKIT_DATA to a folder with sts_en/sts_en\.tsv\.gz"):
        evaluate.data_folder()
    with pytest.raises(FileNotFoundError, match="nothing"):
        evaluate.data_folder(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"sts_en\.tsv\.gz: no such file"):
        evaluate.sts(Angles(), tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    assert evaluate.data_folder("~/data") == tmp_path / "data"
    monkeypatch.setenv(evaluate.DATA_VARIABLE, "~/data")
    assert evaluate.data_folder() == tmp_path / "data"


@pytest.mark.parametrize(
    ("bad", "message"),
    [([0.0, 0.0], "is zero"), ([math.nan, 1.0], "NaN or infinity"), ([math.inf, 1.0], "NaN or infinity")],
)
def test_an_unusable_vector_names_model_and_text(bad: list[float], message: str) -> None:
    pair = evaluate.Pair("good", "bad one", 1.0)
    encoder = Table({"good": [1.0, 0.0], "bad one": bad})
    with pytest.raises(ValueError, match=rf"Table: the vector of texts\[1\] .*{message}.*'bad one'"):
        evaluate.score_pairs(encoder, {"x": evaluate.PairSet([pair], "made here")})


def test_ranking_against_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    queries, documents = (random.standard_normal((n, 8)).astype(np.float32) for n in (300, 60))
    gains = [{int(d): float(random.integers(1, 4)) for d in random.choice(60, 5)} for _ in queries]
    gains[7] = {}
    dense = np.array([[one.get(d, 0.0) for d in range(60)] for one in gains])
    similarity = queries @ documents.T
    kept = [q for q in range(300) if q != 7]
    result = rank_quality(queries, documents, gains)
    assert result.queries == 299
    assert result.ndcg_at_10 == pytest.approx(metrics.ndcg_score(dense[kept], similarity[kept], k=10))
    reciprocal = []
    for q in kept:
        rank = 1 + next(i for i, d in enumerate(np.argsort(-similarity[q])) if dense[q, d])
        reciprocal.append(1 / rank if rank <= 10 else 0)
    assert result.mrr_at_10 == pytest.approx(np.mean(reciprocal))


def test_equal_values_are_taken_in_their_order() -> None:
    assert highest(np.zeros(1000, np.float32), 5).tolist() == [0, 1, 2, 3, 4]
    assert highest(np.float32([]), 3).tolist() == []
    assert highest(np.float32([1, np.nan, 3, 2]), 2).tolist() == [2, 3]
    values = np.float32([1, 2, 1, 3, 1, 2])
    assert highest(values, 4).tolist() == [3, 1, 5, 0]
    assert highest(values, 9).tolist() == [3, 1, 5, 0, 2, 4]
    same = np.ones((300, 2), np.float32)
    assert rank_quality(same[:1], same, [{0: 1.0}]).ndcg_at_10 == 1


def test_quora_leaves_the_query_out_and_skips_the_tokenized_split(tmp_path: Path) -> None:
    rows = [
        "a\tdev\t0\t40\t1",
        "a\tdev\t0\t10\t0",
        "a\ttest\t90\t80\t1",
        "a\ttrain\t0\t1\t1",
        "a\tdev\t40\t0\t1",
    ]
    write(tmp_path / "quora" / "quora_pairs.tsv.gz", ["source\tsplit\ttext1\ttext2\tlabel", *rows])
    result = evaluate.quora_duplicates(Angles(), tmp_path)
    # 0 finds 10 before 40; 90 finds 80 first; 40 finds 10 (30 away) before 0 and 80 (both 40 away)
    assert (result.queries, result.documents) == (3, 5)
    assert result.mrr_at_10 == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)


def test_cranfield_reads_its_tables(tmp_path: Path) -> None:
    folder = tmp_path / "retrieval"
    write(folder / "docs.tsv.gz", ["doc_id\ttitle\ttext", "d0\tt\t", "d1\tt\t10", "d2\tt\t50"])
    write(folder / "queries.tsv.gz", ["query_id\tsplit\ttext", "q1\ttest\t45"])
    write(folder / "qrels.tsv.gz", ["query_id\tdoc_id\trel", "q1\td1\t1", "q1\td2\t0"])
    result = evaluate.cranfield(Angles(), tmp_path)  # which has no vector of a blank text
    assert result.documents == 3
    assert result.mrr_at_10 == 0.5 and result.ndcg_at_10 == pytest.approx(1 / math.log2(3))
    write(folder / "qrels.tsv.gz", ["query_id\tdoc_id\trel", "q1\td1\t1", "q1\td9\t1"])
    with pytest.raises(ValueError, match=r"qrels\.tsv\.gz:3: there is no doc_id 'd9'"):
        evaluate.cranfield(Angles(), tmp_path)
    write(
        tmp_path / "quora" / "quora_pairs.tsv.gz",
        ["split\ttext1\ttext2\tlabel", "dev\t0\t4\t1", "train\t0\t1\t1"],
    )
    assert evaluate.retrieval_pairs(tmp_path) == {"Cranfield": [("45", "45")], "Quora": [("0", "4")]}


def test_minimal_pairs_are_many_and_all_different() -> None:
    path = Path(evaluate.__file__).with_name("minimal_pairs.tsv")
    items = list(read_table(path, ("language", "category", "anchor", "paraphrase", "changed")))
    counts = Counter(item["language"] for item in items)
    assert set(counts) == {"en", "zh"} and min(counts.values()) >= 40
    assert {item["category"] for item in items} == {"negation", "colour"}
    texts = [item[role] for item in items for role in ("anchor", "paraphrase", "changed")]
    assert len(set(texts)) == len(texts)
    # an encoder that knows the paraphrases only of English, and there only of colour
    vectors = {text: [1.0, 0.0] for text in texts}
    for item in items:
        wrong = "changed" if (item["language"], item["category"]) == ("en", "colour") else "paraphrase"
        vectors[item[wrong]] = [0.6, 0.8]
    result = evaluate.minimal_pairs(Table(vectors)).languages
    assert (result["en"]["colour"].accuracy, result["en"]["negation"].accuracy) == (1, 0)
    assert result["zh"]["all"].accuracy == 0 and result["zh"]["all"].items == counts["zh"]
    assert result["en"]["colour"].cosine_changed == pytest.approx(0.6)


FIGURES = {
    "EMBEDKIT_TEST_MODEL": ((72.37, 80.60, 75.60, 85.39, 78.99, 82.03, 77.15), 78.87),  # all-MiniLM-L6-v2
    "EMBEDKIT_TEST_MPNET": ((72.63, 83.49, 78.01, 85.66, 80.02, 83.42, 80.48), 80.53),  # all-mpnet-base-v2
}


@pytest.mark.model
@pytest.mark.parametrize("variable", FIGURES)
def test_published_figures(variable: str, shared_data: Path) -> None:
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} does not name a model folder")
    from embedkit import Encoder

    scores, average = FIGURES[variable]
    result = evaluate.sts(Encoder(folder, precision="fp32"), shared_data)
    measured = [one.spearman for one in result.sets.values()]
    assert measured == pytest.approx(scores, abs=0.02)
    assert result.average == pytest.approx(average, abs=0.02)
