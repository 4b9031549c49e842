"""The figures of a model's card: any model folders side by side, with principal components, prefixes and BM25.

    python benchmarks/card.py small=FOLDER minilm=all-MiniLM-L6-v2 --view small:64 --view minilm:pca128 \\
        --data DIR --work CACHE --json OUT.json

A row is a model (``NAME=FOLDER``; ``NAME=FOLDER|PROMPT`` puts a prompt before queries) or a view of one: its first
columns (``NAME:64``), its first principal components (``NAME:pca128``), its vectors partly whitened
(``NAME:whiten0.3``) or in 8 or fewer bits a column (``NAME:int8``), or one of the former so (``NAME:336+int6``).
They are fitted on Cranfield's documents and sentences of the data, or on ``--texts``.

* STS: Spearman x 100 of the seven sets, also without pairs that are in a dev set too; STS-B dev.
* Pairs: average precision of the cosine on Quora's test pairs.
* Search: nDCG@10 on Cranfield, MED and CACM (development collections) and those of ``--held-out``, a folder of
  docs, queries and qrels like `retrieval_dev`; with vectors, with BM25, and with both (the default weight of hybrid
  search).
* Probes: logistic regression on vectors (accuracy of SST-5 and of the topics of WordNet's nouns), and k-means
  (V-measure of image captions by image, and of the topics).
* Speed: texts a second and the median of one query, on all threads, unless ``--no-speed``.

``--dev`` has only what may choose a model: STS-B dev, its mean with STS-B train, STS12 train, SICK train and dev, all
without pairs of the test sets, Quora's pairs outside the test set, the development collections, and of ``--held-out``
the National Physical Laboratory's, which became one.

The vectors are cached in --work.
"""

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np
from hybrid import Words, collections_of, fused
from judged import Judged, read_judged
from retrieval_data import Vectors, cached_vectors, truncated

from embedkit.index.evaluate import ndcg

K = 10
CANDIDATES = 400
_SAMPLE = 20_000  # texts on which principal components are fitted
_TOPICS = 25
_PER_TOPIC = 400
_IMAGES = 400


class View:
    """A model's vectors, as they are or changed.

    Args:
        encoder: an `embedkit.Encoder`.
        query_prompt: put before queries.
        work: folder of cached vectors.
        change: vectors -> vectors.
    """

    def __init__(
        self, encoder: Any, query_prompt: str, work: Path, change: Callable[[Vectors], Vectors] | None = None
    ) -> None:
        self._encoder, self._prompt, self._work, self._change = encoder, query_prompt, work, change

    def describe(self) -> dict[str, Any]:
        """As the encoder."""
        return dict(self._encoder.describe())

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors of texts, without a prompt."""
        return self._vectors(texts, "")

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors of queries."""
        return self._vectors(texts, self._prompt)

    def _vectors(self, texts: Sequence[str], prompt: str) -> Vectors:
        def encode(some: list[str]) -> Any:
            return self._encoder.encode(some, prompt=prompt, normalize_embeddings=True)

        vectors = cached_vectors(self._work, self._encoder, texts, encode, f"card{prompt}")
        return vectors if self._change is None else self._change(vectors)


_KIND = re.compile(r"int\d+|whiten\d*\.?\d+|pca\d+|\d+")


def changed(kind: str, sample: Callable[[], Vectors]) -> Callable[[Vectors], Vectors]:
    """What ``64``, ``pca128``, ``pca128+int8`` or ``int6`` does to vectors."""
    first, _, then = kind.partition("+")
    if then:
        one = changed(first, sample)
        two = changed(then, lambda: one(sample()))
        return lambda vectors: two(one(vectors))
    if first.startswith("int"):
        return in_bits(sample(), int(first[3:]))
    if first.startswith("whiten"):
        from embedkit.training.linear_map import whiten_partly

        turned = whiten_partly(sample(), float(first.removeprefix("whiten")))
        return lambda vectors: truncated(vectors @ turned, len(turned))
    if first.startswith("pca"):
        from embedkit.training.linear_map import fit

        components = fit(sample(), int(first[3:]), center=False)
        return lambda vectors: truncated(np.asarray(components(vectors), np.float32), int(first[3:]))
    return lambda vectors: truncated(vectors, int(first))


def in_bits(sample: Vectors, bits: int) -> Callable[[Vectors], Vectors]:
    """``bits`` a column between the least and greatest of ``sample``, as Faiss' SQ8 and SQ6."""
    low, high = sample.min(0), sample.max(0)
    most = (1 << bits) - 1
    step = np.maximum(high - low, 1e-12) / most
    return lambda vectors: np.asarray(
        low + np.clip(np.rint((vectors - low) / step), 0, most) * step, np.float32
    )


# ----------------------------------------------------------------------------------------------------- measures


def sts(view: View, data: Path) -> dict[str, Any]:
    """The seven sets, without pairs of dev sets, and STS-B dev."""
    from embedkit.training.evaluate import sts as whole
    from embedkit.training.evaluate.pairs import score_pairs
    from embedkit.training.evaluate.sts import sts_dev, sts_unseen_sets

    result = whole(view, data)
    return {
        "sets": {name: round(one.spearman, 2) for name, one in result.sets.items()},
        "average": round(result.average, 2),
        "unseen": round(score_pairs(view, sts_unseen_sets(data)).average, 2),
        "stsb_dev": round(sts_dev(view, data), 2),
    }


def quora(view: View, data: Path, *, test: bool) -> float:
    """Average precision (x 100) of the cosine of the test pairs, or of all others."""
    from sklearn.metrics import average_precision_score

    pairs = list(common.records(data / "quora" / "quora_pairs.tsv.gz"))
    rows = [row for row in pairs if (row["split"] == "test") == test]
    first, second = (view.encode([row[name] for row in rows]) for name in ("text1", "text2"))
    labels = [row["label"] == "1" for row in rows]
    return round(100 * float(average_precision_score(labels, (first * second).sum(1))), 2)


class Keywords:
    """BM25 over each collection, as embedkit's index has it."""

    def __init__(self, judged: Judged) -> None:
        from embedkit.index.words.analyzer import Analyzer

        english = Analyzer("english")
        words = Words(judged, english.tokenizer, english.text, english.words)
        self.found = [words.search(query) for query in judged.queries]
        self.rare = [words.rare(query) for query in judged.queries]


def search(view: View | None, judged: Judged, words: Keywords) -> dict[str, float]:
    """nDCG@10 of vectors and hybrid; of BM25 without a view."""
    if view is None:
        return {"bm25": round(ndcg([[row for row, _ in line] for line in words.found], judged.gains, K), 4)}
    from embedkit.index.search.hybrid import DEPTH, WORDS_WEIGHT

    cosines = view.queries(judged.queries) @ view.encode(judged.texts).T
    lines = [
        [(int(row), float(line[row])) for row in np.argsort(-line, kind="stable")[:CANDIDATES]]
        for line in cosines
    ]
    both = [
        fused(line, found, WORDS_WEIGHT, DEPTH, rare)
        for line, found, rare in zip(lines, words.found, words.rare, strict=True)
    ]
    return {
        "vectors": round(ndcg([[row for row, _ in line] for line in lines], judged.gains, K), 4),
        "hybrid": round(ndcg(both, judged.gains, K), 4),
    }


def held_out(folder: Path) -> dict[str, Judged]:
    """The collections of a folder by name; a text is read with its title."""
    found = read_judged(folder)
    for judged in found.values():
        judged.texts = [
            " ".join(filter(None, both)) for both in zip(judged.titles, judged.texts, strict=True)
        ]
    return found


def topics(data: Path) -> tuple[list[str], list[int]]:
    """Glosses of nouns, and which of the most common ancestors five steps below the root they have."""
    rows = {
        row["offset"]: row
        for row in common.records(data / "wordnet" / "synsets.tsv.gz")
        if row["ss_type"] == "n"
    }

    def ancestor(offset: str) -> str:
        path = [offset]
        while (parents := rows[path[-1]]["hypernyms"].split()) and len(path) < 40:
            parent = parents[0].lstrip("nvars")
            if parent not in rows:
                break
            path.append(parent)
        return path[-5] if len(path) >= 5 else ""

    members: dict[str, list[str]] = {}
    for offset, row in rows.items():
        members.setdefault(ancestor(offset), []).append(row["gloss"])
    members.pop("", None)
    largest = sorted(members.values(), key=len, reverse=True)[:_TOPICS]
    rng = np.random.default_rng(0)
    chosen = [[some[i] for i in rng.permutation(len(some))[:_PER_TOPIC]] for some in largest]
    return [text for some in chosen for text in some], [i for i, some in enumerate(chosen) for _ in some]


def probes(view: View, data: Path) -> dict[str, float]:
    """Accuracy of logistic regression, and V-measure of k-means, x 100."""
    from sklearn.cluster import KMeans
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import v_measure_score

    def accuracy(train: tuple[Vectors, Any], test: tuple[Vectors, Any]) -> float:
        model = LogisticRegression(max_iter=300, C=10.0).fit(*train)
        return round(100 * float(model.score(*test)), 2)

    def clusters(vectors: Vectors, labels: Sequence[int]) -> float:
        scores = []
        for seed in range(3):
            made = KMeans(len(set(labels)), n_init=1, random_state=seed, max_iter=50).fit(vectors)
            scores.append(v_measure_score(labels, made.labels_))
        return round(100 * float(np.mean(scores)), 2)

    sst = {
        split: [row for row in common.records(data / "minbert" / "sst5.tsv.gz") if row["split"] == split]
        for split in ("train", "test")
    }
    by_split = {
        split: (view.encode([row["sentence"] for row in rows]), [row["label"] for row in rows])
        for split, rows in sst.items()
    }
    texts, topic = topics(data)
    vectors, labels = view.encode(texts), np.array(topic)
    held = np.arange(len(labels)) % 4 == 3
    captions: dict[str, list[str]] = {}
    for row in common.records(data / "captions" / "captions_en.tsv.gz"):
        captions.setdefault(row["image"], []).append(row["caption"])
    images = list(captions.values())[:_IMAGES]
    return {
        "sst5": accuracy(by_split["train"], by_split["test"]),
        "topics": accuracy((vectors[~held], labels[~held]), (vectors[held], labels[held])),
        "topics_clustered": clusters(vectors, topic),
        "captions_clustered": clusters(
            view.encode([text for some in images for text in some]),
            [i for i, some in enumerate(images) for _ in some],
        ),
    }


def speed(encoder: Any, texts: Sequence[str], queries: Sequence[str]) -> dict[str, Any]:
    """Texts a second, the median of three, and the median milliseconds of one query; when and where: rows are kept."""
    encoder.encode(list(texts[:64]))
    rates = []
    for _ in range(3):
        begin = time.perf_counter()
        encoder.encode(list(texts))
        rates.append(len(texts) / (time.perf_counter() - begin))
    taken = []
    for query in queries:
        begin = time.perf_counter()
        encoder.encode([query])
        taken.append(1e3 * (time.perf_counter() - begin))
    return {
        "texts_per_s": round(statistics.median(rates), 1),
        "query_ms": round(statistics.median(taken), 3),
        "date": common.now(),
        "machine": common.machine_info(),
    }


# --------------------------------------------------------------------------------------------------------- main


def measure(view: View, collections: Mapping[str, tuple[Judged, Keywords]], data: Path) -> dict[str, Any]:
    """All figures of a view but its speed."""
    return {
        "sts": sts(view, data),
        "quora_ap": quora(view, data, test=True),
        "search": {name: search(view, *both) for name, both in collections.items()},
        "probes": probes(view, data),
    }


def measure_dev(view: View, collections: Mapping[str, tuple[Judged, Keywords]], data: Path) -> dict[str, Any]:
    """The figures of development sets."""
    from embedkit.training.evaluate.pairs import score_pairs
    from embedkit.training.evaluate.sts import sts_dev, sts_wide_dev_sets

    found = {name: search(view, *both) for name, both in collections.items()}
    mean = sum(one["vectors"] for one in found.values()) / len(found)
    return {
        "stsb_dev": round(sts_dev(view, data), 2),
        "sts_wide_dev": round(score_pairs(view, sts_wide_dev_sets(data)).average, 2),
        "quora_ap": quora(view, data, test=False),
        "search": {**found, "mean": round(mean, 4)},
    }


def main() -> None:
    """Measure, print and write."""
    parser = common.parser(__doc__)
    parser.add_argument(
        "models", nargs="+", metavar="NAME=FOLDER", help="'builtin' as FOLDER is the package's own"
    )
    parser.add_argument("--view", action="append", default=[], metavar="NAME:VIEW")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, help="folder of further collections")
    parser.add_argument("--texts", type=Path, help="JSON lines on which views are fitted")
    parser.add_argument("--work", type=Path, required=True, help="folder to cache vectors in")
    parser.add_argument("--no-speed", action="store_true")
    parser.add_argument("--dev", action="store_true", help="only the development sets; no speed")
    parser.add_argument("--json", type=Path, help="write the result to this file; rows that it has are kept")
    options = parser.parse_args()
    names = set()
    for given in options.models:
        name, _, rest = given.partition("=")
        folder = rest.partition("|")[0]
        if folder != "builtin" and not (folder and Path(folder).is_dir()):
            parser.error(f"{given}: expected NAME=FOLDER, where FOLDER exists or is 'builtin'")
        names.add(name)
    for view in options.view:
        of, _, kind = view.partition(":")
        if of not in names or not all(map(_KIND.fullmatch, kind.split("+"))):
            parser.error(
                f"--view {view}: expected NAME:VIEW, such as {min(names)}:64 or {min(names)}:pca128+int8"
            )

    import json

    from embedkit import Encoder

    judged = collections_of(options.data)
    for name, one in (held_out(options.held_out) if options.held_out else {}).items():
        if not options.dev or name in common.DEVELOPMENT:
            judged[name] = one
    collections = {name: (one, Keywords(one)) for name, one in judged.items()}
    rows: dict[str, Any] = {}
    if options.json is not None and options.json.is_file():
        rows = json.loads(options.json.read_text(encoding="utf-8"))["rows"]
    result = common.report("card", machine=common.machine_info(), rows=rows)
    result["rows"]["BM25"] = {"search": {name: search(None, *both) for name, both in collections.items()}}
    sentences = [row["text"] for row in common.records(options.data / "corpus_en" / "sentences_en.tsv.gz")]
    if options.texts is None:
        sample = [*judged["cranfield"].texts, *sentences[:: len(sentences) // _SAMPLE]]
    else:
        lines = list(options.texts.open(encoding="utf-8"))
        sample = [json.loads(line)["text"] for line in lines[:: -(-len(lines) // _SAMPLE)]]
    for given in options.models:
        name, _, rest = given.partition("=")
        folder, _, prompt = rest.partition("|")
        encoder = Encoder(None if folder == "builtin" else folder, precision=options.precision)
        plain = View(encoder, prompt, options.work)
        views = {name: plain}
        for view in options.view:
            of, _, kind = view.partition(":")
            if of == name:
                views[view] = View(
                    encoder, prompt, options.work, changed(kind, lambda v=plain: v.encode(sample))
                )
        for label, view in views.items():
            row = (measure_dev if options.dev else measure)(view, collections, options.data)
            row["dimension"] = int(view.encode(["a"]).shape[1])
            if label == name and not (options.no_speed or options.dev):
                row["speed"] = speed(
                    encoder, sentences[:: len(sentences) // 2000], judged["cranfield"].queries
                )
            result["rows"][label] = row
            print(f"{label}: {row}", flush=True) if options.dev else show(label, row)
            common.write_json(options.json, result)


def show(label: str, row: Mapping[str, Any]) -> None:
    """A line of figures."""
    found = ", ".join(
        f"{name} {one['vectors']:.3f}/{one['hybrid']:.3f}" for name, one in row["search"].items()
    )
    taken = row.get("speed")
    fast = f", {taken['texts_per_s']} texts/s, {taken['query_ms']} ms a query" if taken else ""
    print(
        f"{label}: STS {row['sts']['average']} (unseen {row['sts']['unseen']}, dev {row['sts']['stsb_dev']}), "
        f"Quora AP {row['quora_ap']}, {found}, {row['probes']}{fast}",
        flush=True,
    )


if __name__ == "__main__":
    main()
