"""The protocol of `benchmarks/retrieval.py`: queries, stored questions, and metrics."""

import argparse
import gzip
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

Modules = tuple[ModuleType, ModuleType]  # retrieval, retrieval_data


@pytest.fixture
def modules() -> Modules:
    import retrieval
    import retrieval_data

    return retrieval, retrieval_data


PAIRS = [
    ("How do I cook rice?", "How is rice cooked?", True),
    ("how is rice cooked ?", "How do I boil rice?", True),  # the second question above, asked in lower case
    ("What is fire?", "what is FIRE", True),  # the same question
    ("Where is Rome?", "Who was Nero?", False),
    ("Who sings?", "Where is Rome?", False),
]


def test_queries_stored_questions_and_positives(modules: Modules) -> None:
    _, data = modules
    found = data.question_pairs(iter(PAIRS), stored=7)
    assert found.stored[:5] == [
        "How is rice cooked?",
        "How do I boil rice?",
        "What is fire?",
        "Who was Nero?",
        "Where is Rome?",
    ]
    # padded first with questions that are no queries
    assert found.stored[5:] == ["Who sings?", "How do I cook rice?"]
    assert found.queries == ["How do I cook rice?", "How is rice cooked?"]
    assert found.positives == [{0: 1.0}, {1: 1.0, 6: 1.0}]
    assert found.own_row.tolist() == [6, 0]
    assert found.notes["duplicate_pairs_of_identical_texts"] == 1
    assert found.notes["padding_that_also_searches"] == 1
    assert len(data.question_pairs(iter(PAIRS), stored=0).stored) == 5


def test_the_query_is_excluded_from_its_ranking(modules: Modules) -> None:
    retrieval, _ = modules
    found = np.array([[4, 2, 7], [1, -1, -1]])
    assert retrieval.ranked(found, np.array([4, -1]), 2) == [[2, 7], [1]]


def test_pairs_are_read_with_the_quoting_of_their_file(modules: Modules, tmp_path: Path) -> None:
    _, data = modules
    with gzip.open(tmp_path / "own.tsv.gz", "wt", encoding="utf-8") as file:
        file.write('text1\ttext2\tlabel\nWhat is "x?\tWhy?\t1\n')
    (tmp_path / "quora.tsv").write_text(
        '"id"\t"question1"\t"question2"\t"is_duplicate"\n"1"\t"What is ""x""?"\t"Two\nlines?"\t"0"\n',
        encoding="utf-8",
    )
    assert list(data.read_pairs(tmp_path / "own.tsv.gz")) == [('What is "x?', "Why?", True)]
    assert list(data.read_pairs(tmp_path / "quora.tsv")) == [('What is "x"?', "Two\nlines?", False)]
    (tmp_path / "bad.tsv").write_text("a\tb\n1\t2\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="needs the columns text1, text2, label or question1"):
        list(data.read_pairs(tmp_path / "bad.tsv"))
    (tmp_path / "label.tsv").write_text("text1\ttext2\tlabel\na\tb\tyes\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="row 2: the label is 'yes'"):
        list(data.read_pairs(tmp_path / "label.tsv"))


def test_a_blank_abstract_moves_no_row_and_counts_as_not_found(modules: Modules, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    from embedkit import Encoder

    retrieval, data = modules
    tables = {
        "docs": [
            "dataset\tdoc_id\ttitle\ttext",
            *(f"cranfield\t{n}\t\t{t}" for n, t in enumerate(["", "a", "", "b"])),
        ],
        "queries": ["dataset\tquery_id\ttext", "cranfield\tq\ta", "cranfield\tr\tb"],
        "qrels": [
            "dataset\tquery_id\tdoc_id\trel",
            "cranfield\tq\t1\t1",
            "cranfield\tr\t3\t1",
            "cranfield\tr\t2\t1",
        ],
    }
    (tmp_path / "retrieval").mkdir()
    for name, lines in tables.items():
        with gzip.open(tmp_path / "retrieval" / f"{name}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    collection = data.cranfield(tmp_path)
    assert collection.stored == ["a", "b"]
    vectors = np.eye(2, Encoder(device="cpu").get_embedding_dimension(), dtype=np.float32)
    options = argparse.Namespace(work=tmp_path)
    result = retrieval.judged(
        "model", collection, (vectors, vectors), Encoder(device="cpu", threads=1), options
    )
    assert result["embedkit"] == result["faiss"]
    # the second query finds one of its two relevant abstracts
    assert result["embedkit"] == {
        "ndcg_at_10": pytest.approx((1 + 1 / (1 + 1 / np.log2(3))) / 2, abs=1e-4),
        "recall_at_100": 0.75,
    }


class Counting:
    fingerprint = "f"

    def __init__(self) -> None:
        self.texts = 0

    def describe(self) -> dict[str, str]:
        return {"model": "counting", "precision": "fp32"}

    def get_embedding_dimension(self) -> int:
        return 2

    def encode(self, texts: list[str]) -> np.ndarray:
        self.texts += len(texts)
        return np.array([[len(text), 1.0] for text in texts], np.float32)


def test_vectors_are_cached_and_an_incomplete_cache_is_completed(modules: Modules, tmp_path: Path) -> None:
    _, data = modules
    encoder, texts = Counting(), ["a", "bb", "ccc"]
    expected = [[1, 1], [2, 1], [3, 1]]
    for _ in range(2):
        vectors = data.cached_vectors(tmp_path, encoder, texts, encoder.encode, "document")
        assert vectors.tolist() == expected
    assert encoder.texts == 3
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:12])  # a row and a half
    assert data.cached_vectors(tmp_path, encoder, texts, encoder.encode, "document").tolist() == expected
    assert encoder.texts == 5
    data.cached_vectors(tmp_path, encoder, texts, encoder.encode, "query")
    assert encoder.texts == 8


def test_truncated_vectors_have_norm_one(modules: Modules) -> None:
    _, data = modules
    vectors = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    short = data.truncated(vectors, 3)
    assert np.linalg.norm(short, axis=1) == pytest.approx(np.ones(5))
    assert np.allclose(short / short[:, :1], vectors[:, :3] / vectors[:, :1])
