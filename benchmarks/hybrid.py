"""Hybrid search on development collections: the figures from which its parameters were chosen.

    python benchmarks/hybrid.py --data DIR --json OUT.json

`embedkit.Index` of each collection (Cranfield, MED and CACM; `retrieval` and `retrieval_dev` of the data folder), built
with the built-in model. nDCG@10 of vectors alone, of BM25 alone with and without stems and stop words, of reciprocal
ranks, and of fused scores for several weights, depths and weights of titles; for all queries, and for the shorter and
the longer half of each collection's queries by their number of words, and for the queries cut to their three rarest
words. `--model` takes another model.

The second part is about Chinese (`zh` of the data folder): questions are stored as pairs of letters (what embedkit
does), as FTS5's trigrams, and as unicode61 leaves them. For words of one to four letters, the share of the texts with
the word that are found, and of the found ones that have it; for paraphrases, recall@10 of BM25; the size of the tables.
"""

import re
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np
from judged import Judged, read_judged

from embedkit.index.evaluate import ndcg

COLLECTIONS = ("cranfield", "med", "cacm")
K = 10
CANDIDATES = 400  # of each ranking, cut to the depth that is tried
WEIGHTS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
DEPTHS = (50, 100, 200, 400)
TITLE_WEIGHTS = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
Pairs = list[tuple[int, float]]


def collections_of(data: Path) -> dict[str, Judged]:
    """The development collections by name; a document without a text has its title for one."""
    found = read_judged(data / "retrieval", data / "retrieval_dev")
    for judged in found.values():
        judged.texts = [text or title for title, text in zip(judged.titles, judged.texts, strict=True)]
    return {name: found[name] for name in COLLECTIONS}


def plain_words(query: str) -> list[str]:
    """The distinct words of ``query``."""
    return list(dict.fromkeys(re.findall(r"\w+", query.lower())))


def phrase(word: str) -> str:
    """What asks FTS5 for ``word``, or for all that begin with it if it ends in "*"."""
    quoted = '"' + word.removesuffix("*").replace('"', '""') + '"'
    return f"{quoted} *" if word.endswith("*") else quoted


class Words:
    """A full-text index in memory, made with one set of rules."""

    def __init__(
        self,
        judged: Judged,
        tokenizer: str,
        text: Callable[[str], str],
        words: Callable[[str], Iterable[str]],
    ) -> None:
        self._words = words
        self._db = sqlite3.connect(":memory:")
        self._db.execute(f'CREATE VIRTUAL TABLE t USING fts5(title, text, tokenize="{tokenizer}")')
        rows = [
            (row, text(title), text(body))
            for row, (title, body) in enumerate(zip(judged.titles, judged.texts, strict=True))
        ]
        self._db.executemany("INSERT INTO t(rowid, title, text) VALUES (?, ?, ?)", rows)

    def search(self, query: str, title_weight: float = 0.0) -> Pairs:
        """Rows and scores, best first; the text alone counts unless there is a weight of the title."""
        match = " OR ".join(map(phrase, self._words(query)))
        if not match:
            return []
        if not title_weight:
            match = f"text: ({match})"
        return self._db.execute(
            f"SELECT rowid, -bm25(t, {title_weight}, 1.0) AS score FROM t WHERE t MATCH ? "
            "ORDER BY score DESC, rowid LIMIT ?",
            (match, CANDIDATES),
        ).fetchall()

    def rare(self, query: str) -> float:
        """What the rarest words of a query would score, see `embedkit.index.search.hybrid.attainable`."""
        from embedkit.index.search.hybrid import attainable
        from embedkit.index.storage.words import common_from

        count = "SELECT count(*) FROM t WHERE t MATCH ?"
        rows = self._db.execute("SELECT count(*) FROM t").fetchone()[0]
        counts = [self._db.execute(count, (phrase(one),)).fetchone()[0] for one in self._words(query)]
        return attainable([one for one in counts if one < common_from(rows)], rows)


def fused(vector: Pairs, words: Pairs, weight: float, depth: int, rare: float = 0.0) -> list[int]:
    """Rows by fused score, as `embedkit.index.search.hybrid` computes it."""
    from embedkit.index.search.hybrid import fuse

    return [row for row, _, _ in fuse(vector, words, weight, K, rare, depth=depth)]


def reciprocal(vector: Pairs, words: Pairs, depth: int = 100) -> list[int]:
    """Rows by reciprocal ranks, 1 / (60 + rank)."""
    scores: Counter[int] = Counter()
    for ranking in (vector[:depth], words[:depth]):
        for rank, (row, _) in enumerate(ranking, 1):
            scores[row] += 1 / (60 + rank)  # type: ignore[assignment]
    return [row for row, _ in sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:K]]


def keywords_of(judged: Judged, stops: frozenset[str]) -> list[str]:
    """Each query cut to its three words that are in the fewest texts (but in one)."""
    word = re.compile(r"[a-z0-9]+")
    counts: Counter[str] = Counter()
    for text in judged.texts:
        counts.update(set(word.findall(text.lower())))
    cut = []
    for query in judged.queries:
        words = dict.fromkeys(one for one in word.findall(query.lower()) if counts[one] and one not in stops)
        rare = set(sorted(words, key=lambda one: counts[one])[:3])
        cut.append(" ".join(one for one in words if one in rare) or query)
    return cut


def explore(judged: Judged, encoder: Any) -> dict[str, dict[str, float]]:
    """nDCG@10 of every setting: by all queries, the shorter half, the longer half, and three keywords."""
    from embedkit.index.words.analyzer import Analyzer
    from embedkit.index.words.languages import stop_words

    english = Analyzer("english")
    stops = stop_words("english")
    plain = "unicode61 remove_diacritics 2"
    tables = {
        "BM25": Words(judged, plain, lambda text: text, plain_words),
        "BM25, stems": Words(judged, f"porter {plain}", lambda text: text, plain_words),
        "BM25, stems, stop words": Words(judged, english.tokenizer, english.text, english.words),
    }
    documents = np.asarray(encoder.encode_document(judged.texts, normalize_embeddings=True))
    lengths = [len(query.split()) for query in judged.queries]
    short = np.array(lengths) <= np.median(lengths)
    scores: dict[str, dict[str, float]] = {}
    for kind, queries in (("as given", judged.queries), ("3 keywords", keywords_of(judged, stops))):
        cosines = np.asarray(encoder.encode_query(queries, normalize_embeddings=True)) @ documents.T
        vectors: list[Pairs] = [
            [(int(row), float(line[row])) for row in np.argsort(-line, kind="stable")[:CANDIDATES]]
            for line in cosines
        ]
        rankings: dict[str, list[list[int]]] = {"vectors": [[row for row, _ in line] for line in vectors]}
        words = {name: [table.search(query) for query in queries] for name, table in tables.items()}
        best = words["BM25, stems, stop words"]
        for name, lists in words.items():
            rankings[name] = [[row for row, _ in line] for line in lists]
            rankings[f"reciprocal ranks, {name}"] = [
                reciprocal(a, b) for a, b in zip(vectors, lists, strict=True)
            ]
            for weight in WEIGHTS if lists is best else (0.6,):
                rankings[f"fused {weight:g}, {name}"] = [
                    fused(a, b, weight, 200) for a, b in zip(vectors, lists, strict=True)
                ]
        rare = [tables["BM25, stems, stop words"].rare(query) for query in queries]
        for weight in WEIGHTS:
            rankings[f"fused {weight:g}, rarest words"] = [
                fused(a, b, weight, 200, c) for a, b, c in zip(vectors, best, rare, strict=True)
            ]
        for depth in DEPTHS:
            rankings[f"fused 0.6, depth {depth}"] = [
                fused(a, b, 0.6, depth) for a, b in zip(vectors, best, strict=True)
            ]
        if any(judged.titles):
            for weight in TITLE_WEIGHTS:
                titled = [tables["BM25, stems, stop words"].search(query, weight) for query in queries]
                rankings[f"BM25, title {weight:g}"] = [[row for row, _ in line] for line in titled]
                rankings[f"fused 0.6, title {weight:g}"] = [
                    fused(a, b, 0.6, 200) for a, b in zip(vectors, titled, strict=True)
                ]
        for name, lines in rankings.items():
            entry = scores.setdefault(name, {})
            entry["all" if kind == "as given" else kind] = ndcg(lines, judged.gains, K)
            if kind == "as given":
                for half, chosen in (("shorter", short), ("longer", ~short)):
                    entry[half] = ndcg(
                        [line for line, one in zip(lines, chosen, strict=True) if one],
                        [gain for gain, one in zip(judged.gains, chosen, strict=True) if one],
                        K,
                    )
    return scores


def measured(judged: Judged, encoder: Any, folder: Path, passages: str | None = None) -> dict[str, float]:
    """nDCG@10 and the median milliseconds of a query of an `embedkit.Index` of a collection, hybrid and not."""
    from embedkit.index import Document, Index

    documents = [
        Document(text, str(row), {"title": title} if title else None)
        for row, (title, text) in enumerate(zip(judged.titles, judged.texts, strict=True))
    ]
    result: dict[str, float] = {}
    with Index.build(folder, documents, encoder, passages=passages) as index:
        result["rows"] = len(index)
        for hybrid, name in ((False, "vectors"), (None, "hybrid")):
            ranked, taken = [], []
            for query in judged.queries:
                begin = time.perf_counter()
                (hits,) = index.search(query, K, hybrid=hybrid, per_document=passages is not None)
                taken.append((time.perf_counter() - begin) * 1e3)
                ranked.append([int(hit.id.partition("#")[0]) for hit in hits])
            result[name] = round(ndcg(ranked, judged.gains, K), 4)
            result[f"{name}_ms"] = round(float(np.median(taken)), 2)
    return result


# ---------------------------------------------------------------------------------------------------- Chinese


def chinese(data: Path, stored: int, asked: int) -> list[dict[str, Any]]:
    """Pairs of letters, trigrams, and unicode61, on questions of LCQMC."""
    from embedkit.index.words.analyzer import Analyzer

    pairs = [
        (row["text1"], row["text2"])
        for row in common.records(data / "zh" / "zh_pairs.tsv.gz")
        if row["source"] == "LCQMC" and row["label"] == "1" and row["text1"] != row["text2"]
    ]
    second = dict.fromkeys(text for _, text in pairs)
    texts = list(second)[:stored]
    row_of = {text: row for row, text in enumerate(texts)}
    queries = [(one, row_of[two]) for one, two in pairs if two in row_of and one not in row_of][:asked]
    random = np.random.default_rng(0)
    samples: dict[int, list[str]] = {}
    for letters in (1, 2, 3, 4):
        found: dict[str, None] = {}
        while len(found) < 200:
            text = texts[int(random.integers(len(texts)))]
            at = int(random.integers(max(1, len(text) - letters)))
            if re.fullmatch(rf"[一-鿿]{{{letters}}}", text[at : at + letters]):
                found[text[at : at + letters]] = None
        samples[letters] = list(found)
    none = Analyzer("none")

    def trigrams(query: str) -> list[str]:
        return list(dict.fromkeys(query[at : at + 3] for at in range(max(1, len(query) - 2))))

    ways: dict[str, tuple[str, Callable[[str], str], Callable[[str], list[str]]]] = {
        "unicode61 (before)": ("unicode61 remove_diacritics 2", lambda text: text, lambda query: [query]),
        "trigram": ("trigram", lambda text: text, trigrams),
        "pairs of letters": (none.tokenizer, none.text, none.words),
    }
    rows = []
    for name, (tokenizer, prepare, words_of) in ways.items():
        with tempfile.TemporaryDirectory() as work:
            path = Path(work) / "words.sqlite"
            db = sqlite3.connect(path)
            begin = time.perf_counter()
            db.execute(f"CREATE VIRTUAL TABLE t USING fts5(text, content='', tokenize=\"{tokenizer}\")")
            with db:
                db.executemany(
                    "INSERT INTO t(rowid, text) VALUES (?, ?)",
                    ((row, prepare(text)) for row, text in enumerate(texts)),
                )
                db.execute("INSERT INTO t(t) VALUES ('optimize')")
            seconds = time.perf_counter() - begin
            db.execute("VACUUM")
            row: dict[str, Any] = {
                "name": name,
                "texts": len(texts),
                "bytes": path.stat().st_size,
                "text_bytes": sum(len(text.encode()) for text in texts),
                "build_s": round(seconds, 2),
            }
            for letters, some in samples.items():
                recalls, precisions = [], []
                for word in some:
                    truth = {number for number, text in enumerate(texts) if word in text}
                    expression = " OR ".join(map(phrase, words_of(word)))
                    every = db.execute("SELECT rowid FROM t WHERE t MATCH ?", (expression,)).fetchall()
                    best = db.execute(
                        "SELECT rowid FROM t WHERE t MATCH ? ORDER BY bm25(t), rowid LIMIT ?",
                        (expression, len(truth)),
                    ).fetchall()
                    recalls.append(len(truth & {one for (one,) in every}) / len(truth))
                    precisions.append(len(truth & {one for (one,) in best}) / len(truth))
                row[f"recall_{letters}"] = round(float(np.mean(recalls)), 4)
                row[f"r_precision_{letters}"] = round(float(np.mean(precisions)), 4)
            hits, taken = [], []
            for query, wanted in queries:
                begin = time.perf_counter()
                ranked = db.execute(
                    "SELECT rowid FROM t WHERE t MATCH ? ORDER BY bm25(t), rowid LIMIT ?",
                    (" OR ".join(map(phrase, words_of(query))), K),
                ).fetchall()
                taken.append((time.perf_counter() - begin) * 1e3)
                hits.append((wanted,) in ranked)
            row["paraphrase_recall_10"] = round(float(np.mean(hits)), 4)
            row["query_ms"] = round(float(np.median(taken)), 3)
            db.close()
        rows.append(row)
    return rows


def mean_table(scores: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The mean over the collections that have a setting, as a table."""
    names = list(dict.fromkeys(name for entry in scores.values() for name in entry))
    kinds = ("all", "shorter", "longer", "3 keywords")
    cells = []
    for name in names:
        entries = [entry[name] for entry in scores.values() if name in entry]
        own = [f"{scores[one][name]['all']:.4f}" if name in scores[one] else "" for one in scores]
        cells.append([name, *own, *(f"{np.mean([entry[kind] for entry in entries]):.4f}" for kind in kinds)])
    return common.table(["nDCG@10", *scores, *(f"mean, {kind}" for kind in kinds)], cells)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = common.parser(__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with retrieval/, retrieval_dev/ and zh/"
    )
    common.add_model(parser)
    parser.add_argument("--threads", type=common.positive, default=1)
    parser.add_argument(
        "--zh-stored", type=common.positive, default=50_000, help="Chinese questions to store"
    )
    parser.add_argument("--zh-queries", type=common.positive, default=1000, help="Chinese questions to ask")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args(argv)
    machine, found = common.machine_info(), common.versions(("embedkit", "numpy", "faiss-cpu"))
    from embedkit import Encoder

    encoder = Encoder(options.model, device="cpu", threads=options.threads)
    scores, own = {}, {}
    with tempfile.TemporaryDirectory() as work:
        for name, judged in collections_of(options.data).items():
            scores[name] = explore(judged, encoder)
            own[name] = measured(judged, encoder, Path(work) / name)
    print(mean_table(scores))
    print(
        "\nembedkit.Index\n"
        + common.table(
            ["", "vectors", "ms", "hybrid", "ms"],
            [
                [name, *(f"{one[key]:.4f}" for key in ("vectors", "vectors_ms", "hybrid", "hybrid_ms"))]
                for name, one in own.items()
            ],
        )
    )
    zh = chinese(options.data, options.zh_stored, options.zh_queries)
    print("\nChinese\n" + common.table(list(zh[0]), [list(row.values()) for row in zh]))
    if options.json:
        rounded = {
            name: {
                setting: {kind: round(value, 4) for kind, value in entry.items()}
                for setting, entry in each.items()
            }
            for name, each in scores.items()
        }
        common.write_json(
            options.json,
            common.report(
                "hybrid",
                machine=machine,
                versions={**found, "sqlite": sqlite3.sqlite_version},
                **common.built_in(options.model),
                ndcg_at_10=rounded,
                index=own,
                chinese=zh,
            ),
        )


if __name__ == "__main__":
    main()
