"""`embedkit-index eval`: figures against scikit-learn and numpy, judgments from files, and the command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit.cli.main import main
from embedkit.index import Document, Index, InputError
from embedkit.index.evaluate import Search, evaluate, mrr, ndcg, read_judgments, read_pairs, recall
from embedkit.index.evaluate.plot import plot_quality


def rankings_and_gains(seed: int) -> tuple[list[list[str]], list[dict[str, float]], list[np.ndarray]]:
    """Rankings of 40 documents for 30 queries, gains, and the gains in the order of the ranking."""
    random = np.random.default_rng(seed)
    rankings, gains, ordered = [], [], []
    for _ in range(30):
        order = random.permutation(40)
        gain = np.where(random.random(40) < 0.2, random.integers(1, 4, 40), 0).astype(float)
        gain[random.integers(40)] = 1.0
        rankings.append([f"d{row}" for row in order])
        gains.append({f"d{row}": value for row, value in enumerate(gain) if value})
        ordered.append(gain[order])
    return rankings, gains, ordered


def test_what_cannot_be_judged_is_named(tmp_path: Path) -> None:
    queries, qrels, pairs = (tmp_path / name for name in ("q.jsonl", "r.tsv", "p.jsonl"))
    qrels.write_text("query-id\tcorpus-id\tscore\nq1\td1\tinf\n")
    queries.write_text('{"_id": "q1", "text": "soup"}\n')
    with pytest.raises(InputError, match=r"r\.tsv:2: the relevance 'inf' is not a number"):
        read_judgments(queries, qrels)
    qrels.write_text("q1\td1\t1\n")
    queries.write_text('{"_id": "q1", "text": "soup"}\n{"_id": "q1", "text": "mail"}\n')
    with pytest.raises(InputError, match=r"q\.jsonl:2: a second query has the id 'q1'"):
        read_judgments(queries, qrels)
    pairs.write_text('{"query": "soup", "id": " d 1"}\nmail\t d2 \n')
    assert read_pairs(pairs).gains == [{" d 1": 1.0}, {"d2": 1.0}]


@pytest.mark.parametrize("seed", range(5))
def test_figures_are_those_of_independent_implementations(seed: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rankings, gains, ordered = rankings_and_gains(seed)
    scores = -np.arange(40.0)[None]
    expected = [metrics.ndcg_score(one[None], scores, k=10) for one in ordered]
    assert ndcg(rankings, gains, 10) == pytest.approx(np.mean(expected))
    expected = [one[:10].astype(bool).sum() / one.astype(bool).sum() for one in ordered]
    assert recall(rankings, gains, 10) == pytest.approx(np.mean(expected))
    firsts = [np.flatnonzero(one)[0] + 1 for one in ordered]
    assert mrr(rankings, gains, 10) == pytest.approx(np.mean([1 / r if r <= 10 else 0 for r in firsts]))


def test_figures_are_those_of_trec_eval() -> None:
    pytrec_eval = pytest.importorskip("pytrec_eval")
    rankings, gains, _ = rankings_and_gains(9)
    qrels = {str(n): {id: int(value) for id, value in gain.items()} for n, gain in enumerate(gains)}
    run = {str(n): {id: -float(rank) for rank, id in enumerate(line)} for n, line in enumerate(rankings)}
    found = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.10", "recip_rank"}).evaluate(run)
    for name, value in (
        ("ndcg_cut_10", ndcg(rankings, gains, 10)),
        ("recall_10", recall(rankings, gains, 10)),
        ("recip_rank", mrr(rankings, gains, 40)),
    ):
        assert value == pytest.approx(np.mean([one[name] for one in found.values()]))


def test_short_rankings_count_as_they_are() -> None:
    assert ndcg([[]], [{"a": 1.0}], 10) == mrr([[]], [{"a": 1.0}], 10) == recall([[]], [{"a": 1.0}], 10) == 0
    assert ndcg([["a", "b"]], [{"a": 1e308, "b": 1e308, "c": 1e308}], 2) == pytest.approx(1)
    assert ndcg([["a"]], [{"a": 2.0}], 10) == mrr([["a"]], [{"a": 2.0}], 10) == 1
    assert mrr([["x", "a"]], [{"a": 1.0}], 1) == 0


@pytest.mark.parametrize(
    "qrels",
    [
        "q1 0 d1 2\nq1 0 d2 0\nq2 0 d3 1\n",
        "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td3\t1\n",
        '{"query_id": "q1", "doc_id": "d1", "relevance": 2}\n{"query_id": "q2", "doc_id": "d3"}\n',
        "q1 \td1\t 2\nq2\t0\td3 \t1\nq1\td1\t2.0\n",  # a blank around a tab; the same grade twice
    ],
)
@pytest.mark.parametrize("id_field", ["id", "_id", "query_id"])
def test_judgments_come_in_three_formats(tmp_path: Path, qrels: str, id_field: str) -> None:
    queries = tmp_path / "queries.jsonl"
    queries.write_text(
        "".join(json.dumps({id_field: f"q{n}", "text": f"query {n}"}) + "\n" for n in (1, 2, 3))
    )
    (tmp_path / "qrels").write_text(qrels)
    judgments = read_judgments(queries, tmp_path / "qrels")
    assert judgments.queries == ["query 1", "query 2"]
    assert judgments.gains == [{"d1": 2.0}, {"d3": 1.0}]
    assert judgments.left_out == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q9 0 d1 1\n", "no query with the id 'q9'"),
        ("q1 d1\n", "qrels:1: expected"),
        ("q1 0 d1 1\nq1 0 d2 x\n", "qrels:2: the relevance 'x' is not a number"),
        ("q1 0 d1 0\n", "no query has a relevant document"),
        ('{"doc_id": "d1"}\n', "expected the fields query_id"),
        ("{\n", "not valid JSON"),
        ("q1 0 d1 3\nq1 0 d1 0\n", "qrels:2: the relevance of 'd1' to the query 'q1' is 0, and was 3 before"),
        (
            "q2 0 d1 1\n",
            "no query with the id 'q2' in {folder}/queries.jsonl, which has blank lines or texts (1)",
        ),
    ],
)
def test_malformed_judgments_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "queries.jsonl").write_text('{"id": "q1", "text": "query"}\n{"id": "q2", "text": " "}\n')
    (tmp_path / "qrels").write_text(content)
    with pytest.raises(InputError, match=re.escape(message.replace("{folder}", str(tmp_path)))):
        read_judgments(tmp_path / "queries.jsonl", tmp_path / "qrels")


def test_pairs(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text('a query\td1\na query\td2\n{"query": "other", "id": 3}\n')
    judgments = read_pairs(path)
    assert judgments.queries == ["a query", "other"]
    assert judgments.gains == [{"d1": 1.0, "d2": 1.0}, {"3": 1.0}]
    path.write_text('{braces} q\td1\n{"query":\t"a", "id": "d2"}\n')
    assert read_pairs(path).queries == ["{braces} q", "a"]
    path.write_text('{"query": "a\tb", "id": "d2"}\n')
    with pytest.raises(InputError, match="not valid JSON"):
        read_pairs(path)
    path.write_text("only a query\n")
    with pytest.raises(InputError, match="expected a query and a document's id"):
        read_pairs(path)
    path.write_text("a query\td1\n\n\nonly a query\n")
    with pytest.raises(InputError, match=r"pairs\.tsv:4: expected"):
        read_pairs(path)


def test_an_index_is_measured(tmp_path: Path) -> None:
    texts = [f"text number {n}" for n in range(50)]
    (tmp_path / "pairs.tsv").write_text("".join(f"number {n}\t{n}\n" for n in range(20)))
    with Index.build(tmp_path / "index", texts, FakeEncoder()) as index:
        judgments = read_pairs(tmp_path / "pairs.tsv")
        searches = [Search("vectors", hybrid=False), Search("hybrid", hybrid=True)]
        vectors, hybrid = evaluate(index, judgments, searches, ks=(1, 5))
        found = [[hit.id for hit in hits] for hits in index.search(judgments.queries, 10, hybrid=False)]
        assert vectors.ndcg == pytest.approx(ndcg(found, judgments.gains, 10))
        assert vectors.recall[1] == np.mean([line[0] == str(n) for n, line in enumerate(found)])
        assert hybrid.ndcg == hybrid.mrr == hybrid.recall[1] == 1.0
        assert vectors.queries == 20 and vectors.ms > 0
        (tmp_path / "pairs.tsv").write_text("number 1\tnowhere\n")
        with pytest.raises(
            InputError, match="1 of 1 judged documents are not in the index, such as 'nowhere'"
        ):
            evaluate(index, read_pairs(tmp_path / "pairs.tsv"), searches)


def test_some_judged_documents_may_be_missing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As trec_eval, which knows no index; BEIR's collections have documents with a blank text."""
    with (folder / "docs.jsonl").open("a") as file:
        file.write('{"id": "k60", "title": "a title", "text": ""}\n')
    with (folder / "pairs.tsv").open("a") as file:
        file.write("number 60\tk60\n")
    assert main(["eval", "docs.jsonl", "--pairs", "pairs.tsv", "--model", "a", "--model", "b", "--json"]) == 0
    out, err = capsys.readouterr()
    found = {row["search"]: row["recall@10"] for row in map(json.loads, out.splitlines())}
    assert found["hybrid"] == pytest.approx(20 / 21, abs=1e-4)
    assert err.count("1 of 21 judged documents are not in the index, such as 'k60', as blank texts") == 1
    (folder / "pairs.tsv").write_text("number 1\tk1\nnumber 2\t2\nnumber 3\t3\n")
    assert main(["eval", "docs.jsonl", "--pairs", "pairs.tsv"]) == 2
    assert "2 of 3 judged documents are not in the index, such as '2'; blank" in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("embedkit.Encoder", FakeEncoder, raising=False)
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"id": f"k{n}", "text": f"text number {n}"}) + "\n" for n in range(60)]
    (tmp_path / "docs.jsonl").write_text("".join(lines))
    (tmp_path / "pairs.tsv").write_text("".join(f"number {n}\tk{n}\n" for n in range(20)))
    return tmp_path


def test_a_plot_names_indexes_as_they_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    shown = []
    monkeypatch.setattr(
        "embedkit.index.evaluate.plot.save_figure",
        lambda figure, path: shown.extend(text.get_text() for text in figure.axes[0].get_legend().texts),
    )
    points = [("a$x_{$b", "vectors", 1, 0.5), ("_b", "vectors", 2, 0.6)]
    plot_quality(tmp_path / "out.png", points, title="two")
    assert shown == [r"a\$x_{\$b", "\u200b_b", "vectors"]


def test_the_command_compares_models_precisions_and_kinds(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["eval", "docs.jsonl", "--pairs", "pairs.tsv", "--model", "a", "--model", "b"]
    arguments += ["--factory", "Flat", "--factory", "HNSW8", "-k", "5"]
    assert main([*arguments, "--json", "--plot", "out.png"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["model"], row["factory"], row["search"]) for row in rows] == [
        (model, factory, search)
        for model in "ab"
        for factory in ("Flat", "HNSW8")
        for search in ("vectors", "hybrid")
    ]
    assert all(row["documents"] == 60 and row["bytes"] > 0 and row["documents_per_s"] > 0 for row in rows)
    assert all(row["recall@5"] == 1.0 for row in rows if row["search"] == "hybrid")
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["ndcg@10", "mrr@10", "recall@5", "ms/query"]
    assert len(lines) == 10 and lines[-1].startswith("20 queries, 60 documents; best nDCG@10 1.0000")


def test_the_command_measures_an_index_as_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "docs.jsonl", "-o", "index"]) == 0
    capsys.readouterr()
    assert main(["eval", "index", "--pairs", "pairs.tsv", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["search"] for row in rows] == ["vectors", "hybrid"]
    assert all(row["documents_per_s"] is None for row in rows)
    for option, value in {
        "--language": "english",
        "--text-field": "body",
        "--id-field": "key",
        "--format": "txt",
        "--precision": "int8",
        "--factory": "Flat",
        "--max-memory": "1GiB",
    }.items():
        assert main(["eval", "index", "--pairs", "pairs.tsv", option, value]) == 2
        assert f"{option} does not apply: index is an index" in capsys.readouterr().err
    assert main(["eval", "index", "--pairs", "pairs.tsv", "--model", "a", "--model", "b"]) == 2
    assert "give --model once: index is an index" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["docs.jsonl"], "give --queries and --qrels, or --pairs"),
        (["docs.jsonl", "--queries", "docs.jsonl"], "give --queries and --qrels, or --pairs"),
        (["docs.jsonl", "--pairs", "pairs.tsv", "--factory", "Nonsense"], "Nonsense"),
        (["docs.jsonl", "--pairs", "pairs.tsv", "--plot", "x.gif"], ".png"),
        (["docs.jsonl", "--pairs", "missing.tsv"], "missing.tsv"),
    ],
)
def test_wrong_usage_of_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["eval", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_kind_for_which_there_are_too_few_documents_is_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--factory", "IVF500,Flat", "--factory", "Flat", "--json"]
    assert main(["eval", "docs.jsonl", "--pairs", "pairs.tsv", *options]) == 0
    out, err = capsys.readouterr()
    assert {json.loads(line)["factory"] for line in out.splitlines()} == {"Flat"}
    assert "IVF500,Flat: left out" in err


def test_each_kind_is_made_of_the_vectors_as_they_were_encoded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, np.ndarray] = {}

    def watched(index: Index, *arguments: Any, **options: Any) -> Any:
        seen[index.info()["factory"]] = index.generation.vectors(index.generation.living_rows())
        return evaluate(index, *arguments, **options)

    monkeypatch.setattr("embedkit.cli.evaluate.evaluate", watched)
    options = [word for kind in ("auto-int6", "SQ8", "Flat") for word in ("--factory", kind)]
    assert main(["eval", "docs.jsonl", "--pairs", "pairs.tsv", *options]) == 0
    texts = [f"text number {n}" for n in range(60)]
    encoded = FakeEncoder().encode_document(texts, normalize_embeddings=True)
    assert list(seen) == ["SQ6", "SQ8", "Flat"]
    np.testing.assert_allclose(seen["Flat"], encoded, atol=1e-6)
    np.testing.assert_allclose(seen["SQ8"], encoded, atol=1e-6)  # kept beside the codes
    assert np.abs(seen["SQ6"] - encoded).max() > 1e-4


def test_reranking_is_measured(tmp_path: Path) -> None:
    class Reranker:
        """Prefers the text that ends with the query's last word."""

        num_labels = 1

        def predict(self, pairs: list[tuple[str, str]], **options: object) -> np.ndarray:
            return np.array([float(text.split()[-1] == query.split()[-1]) for query, text in pairs])

    with Index.build(
        tmp_path / "index", [Document(f"text number {n}", str(n)) for n in range(60)], FakeEncoder()
    ) as index:
        (tmp_path / "pairs.tsv").write_text("".join(f"text {n}\t{n}\n" for n in range(20)))
        search = Search("reranked", hybrid=True, reranker=Reranker())  # type: ignore[arg-type]
        (measured,) = evaluate(index, read_pairs(tmp_path / "pairs.tsv"), [search])
        assert measured.mrr == 1.0
