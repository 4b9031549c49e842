"""Tokenization speed of the core and of the `tokenizers` package: WordPiece, byte-level BPE or Unigram.

    python benchmarks/tokenizer.py TEXTS.txt --model FOLDER --json benchmarks/results/tokenizer.json

Both are called from Python (lists of texts to lists of ids), on the texts of the command line and on generated
texts with accents and in Chinese. All texts are distinct, and the ids are compared before anything is timed. Each
number of threads runs in its own process, since `tokenizers` reads it from the environment. embedkit's tokenizer
has no threads of its own (the pipeline calls it from each worker), so a thread pool calls it here.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import common

WORDS_WITH_ACCENTS = """
    élève où naïveté cœur déjà garçon forêt château Straße Übung schön größer Ärger niño mañana
    corazón pingüino coração São não maçã città perché più zażółć gęślą jaźń źrebię příliš žluťoučký
    kůň őrült tűzoltó gyönyörű İstanbul ışık çocuk güldü ngôn ngữ Việt đường phố tiếng học rødgrød
    fløde smörgås þórður fjöllin ķēniņš ābols привет ещё чай йод Καλημέρα κόσμε ΐδιος ΰψος über
    façade résumé jalapeño Ångström
"""


def accented(count: int, seed: int = 1) -> list[str]:
    """Sentences of words with accents, about the length of a question."""
    rng = random.Random(seed)
    words = WORDS_WITH_ACCENTS.split()
    return [" ".join(rng.choices(words, k=rng.randint(6, 18))) + rng.choice(".?!") for _ in range(count)]


def chinese(count: int, seed: int = 2) -> list[str]:
    """Runs of ideographs with full-width punctuation."""
    rng = random.Random(seed)
    characters = [chr(c) for c in range(0x4E00, 0x5A00)] + list("，。？！、") * 40
    return ["".join(rng.choices(characters, k=rng.randint(8, 40))) for _ in range(count)]


def train(kind: str, texts: Sequence[str], folder: Path) -> None:
    """Write a tokenizer.json of BPE as ModernBERT has it or Unigram as SentencePiece has it, trained on the texts."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(vocab_size=30_000, initial_alphabet=alphabet, show_progress=False)
    else:
        tokenizer = Tokenizer(models.Unigram())
        steps = [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=30_000, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def batches(texts: Sequence[str], threads: int) -> list[list[str]]:
    """Slices for a pool, a few per thread, so that all threads finish together."""
    size = -(-len(texts) // (4 * threads))
    return [list(texts[i : i + size]) for i in range(0, len(texts), size)]


def measure(folder: Path, corpora: dict[str, list[str]], threads: int, rounds: int) -> dict[str, Any]:
    """Seconds of each tokenizer on each corpus, in this process."""
    from tokenizers import Tokenizer

    from embedkit.model_folder.tokenizer import load_tokenizer

    ours = load_tokenizer(folder)
    if ours.core is None:
        raise SystemExit(
            f"{folder}: the core does not know this tokenizer; embedkit uses `tokenizers` for it"
        )
    core = ours.core
    peer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    peer.no_truncation()
    peer.no_padding()
    results = {}
    with ThreadPoolExecutor(threads) as pool:
        for name, texts in corpora.items():
            ids = core.encode_batch(texts)
            expected = peer.encode_batch_fast(texts, add_special_tokens=False)
            if ids != [encoding.ids for encoding in expected]:
                raise SystemExit(f"{name}: the ids differ from those of `tokenizers`")
            parts = batches(texts, threads)

            def embedkit(texts: list[str] = texts, parts: list[list[str]] = parts) -> object:
                return core.encode_batch(texts) if threads == 1 else list(pool.map(core.encode_batch, parts))

            def slow(texts: list[str] = texts) -> object:
                return [e.ids for e in peer.encode_batch(texts, add_special_tokens=False)]

            def fast(texts: list[str] = texts) -> object:
                return [e.ids for e in peer.encode_batch_fast(texts, add_special_tokens=False)]

            candidates: dict[str, Callable[[], object]] = {
                "embedkit": embedkit,
                "tokenizers encode_batch": slow,
                "tokenizers encode_batch_fast": fast,
            }
            seconds = common.alternate({k: common.timed(v) for k, v in candidates.items()}, rounds)
            results[name] = {
                "texts": len(texts),
                "bytes": sum(len(text.encode()) for text in texts),
                "tokens": sum(map(len, ids)),
                "seconds": seconds,
            }
    return results


def summary(raw: dict[str, Any]) -> dict[str, Any]:
    """Texts and megabytes per second, and the speed-up over encode_batch_fast, by round."""
    seconds: dict[str, list[float]] = raw["seconds"]
    ratios = [
        b / a for a, b in zip(seconds["embedkit"], seconds["tokenizers encode_batch_fast"], strict=True)
    ]
    return {
        **{k: raw[k] for k in ("texts", "bytes", "tokens")},
        "texts_per_second": {k: common.Spread.of([raw["texts"] / s for s in v]) for k, v in seconds.items()},
        "megabytes_per_second": {
            k: common.Spread.of([raw["bytes"] / s / 1e6 for s in v]) for k, v in seconds.items()
        },
        "times_encode_batch_fast": common.Spread.of(ratios),
    }


def main() -> None:
    """Read the command line, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.add_text_arguments(parser, default_limit=20_000)
    parser.add_argument(
        "--model", type=Path, help="folder with a tokenizer.json (default: the built-in model)"
    )
    parser.add_argument(
        "--kind",
        choices=["wordpiece", "bpe", "unigram"],
        default="wordpiece",
        help="without --model: the built-in tokenizer, or one trained on the first 5,000 texts of each corpus",
    )
    parser.add_argument("--threads", type=common.positive, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=common.positive, default=7)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        json.dump(measure(options.model, json.load(sys.stdin), options.worker, options.rounds), sys.stdout)
        return
    trained = options.model is None and options.kind != "wordpiece"
    if options.model is None and not trained:
        from embedkit.model_folder.folder import BUILTIN

        options.model = BUILTIN

    machine = common.machine_info()
    found = common.versions(["embedkit", "tokenizers"])
    print(common.show_machine(machine, found))
    texts = common.texts_of(options)
    name = ", ".join(path.name for path in options.texts) or "sample corpus"
    corpora = {
        name: texts,
        "accented (generated)": accented(len(texts)),
        "Chinese (generated)": chinese(len(texts)),
    }
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if trained:
            options.model = Path(folder)
            train(options.kind, [text for part in corpora.values() for text in part[:5_000]], options.model)
        for threads in options.threads:
            raw = common.in_process(__file__, options, corpora, threads)
            results[str(threads)] = {corpus: summary(values) for corpus, values in raw.items()}
    rows = []
    for threads_name, by_corpus in results.items():
        for corpus, values in by_corpus.items():
            for tokenizer, speed in values["texts_per_second"].items():
                ratio = values["times_encode_batch_fast"] if tokenizer == "embedkit" else ""
                megabytes = values["megabytes_per_second"][tokenizer]
                rows.append((threads_name, corpus, tokenizer, speed, f"{megabytes.median:.1f}", ratio))
    print("\ntokenization speed, texts to lists of ids; the ids are equal; median (lowest-highest)")
    print(
        common.table(
            ["threads", "texts", "tokenizer", "texts/s", "MB/s", "speed-up over encode_batch_fast"], rows
        )
    )
    result = common.report(
        "tokenizer",
        machine=machine,
        versions=found,
        kind=options.kind,
        model="trained on the texts" if trained else options.model.name,
        rounds=options.rounds,
        threads=results,
    )
    common.write_json(options.json, result)


if __name__ == "__main__":
    main()
