"""Each built-in recipe, from its file: three steps on tiny models and small data of the same shape.

With EMBEDKIT_RECIPE_LOSSES=FILE the loss of each step is appended to that file, without dropout and in fp32, so that
two machines can be compared (benchmarks/gpu_training.py); EMBEDKIT_RECIPE_STEPS sets the number of steps.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tensorboard")
pytest.importorskip("sklearn")
yaml = pytest.importorskip("yaml")

from embedkit.training import cli, vocabulary
from embedkit.training.recipe import find_recipe, list_recipes

from embedkit import Encoder

_STEPS = int(os.environ.get("EMBEDKIT_RECIPE_STEPS", "3"))
_LOSSES = os.environ.get("EMBEDKIT_RECIPE_LOSSES")
_NLI = ("entailment", "neutral", "contradiction")
_HANZI = "天地人你我他上下左右大小多少来去好怎么样可以吗不是有没在家学校北京上海手机电脑水果"
_MINILM = "sentence-transformers/all-MiniLM-L6-v2"
_MPNET = "sentence-transformers/all-mpnet-base-v2"
_BERT = "google-bert/bert-base-uncased"
_E5 = "intfloat/multilingual-e5-small"
_ROFORMER = "junnyu/roformer_chinese_char_base"
_VOCABULARY = "runs/zh-char-small"
_RESULTS = {  # the recipes whose models other recipes start or learn from, by the path those name
    "runs/cross-encoder-nli-1/model": "cross-encoder-nli",
    "runs/cross-encoder-nli-bert/model": "cross-encoder-nli",
    "runs/cross-encoder-stsb-1/model": "cross-encoder-stsb",
    "runs/dvbert-1/model": "dvbert",
    "runs/roformer-sim-1/model": "roformer-sim",
    "runs/roformer-sim-ft-1/model": "roformer-sim-ft",
}


class Texts:
    """Distinct random texts, and the labels 0, 1, 2, ... in turn."""

    def __init__(self, words: Sequence[str], space: str) -> None:
        self._random = random.Random(0)
        self._words, self._space = words, space
        self._known: set[str] = set()
        self._count = 0

    def __call__(self) -> str:
        while True:
            text = self._space.join(self._random.choices(self._words, k=self._random.randint(5, 9)))
            if text not in self._known:
                self._known.add(text)
                return text

    def label(self, classes: Sequence[Any]) -> Any:
        self._count += 1
        return classes[self._count % len(classes)]


def _write(path: Path, columns: str, rows: Iterable[Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [columns.split(), *rows]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines("\t".join(map(str, line)) + "\n" for line in lines)


def write_data(root: Path) -> None:
    """The files that the recipes name, with the columns, sources, splits and labels of the real ones."""
    words = "the people see water and find many long days when weather is lovely not today".split()  # noqa: SIM905
    en, zh = Texts(words, " "), Texts(_HANZI, "")
    nli = ("snli_sub20k", "mnli_nyu25k", "lingnli_baseline", "lingnli_LitL", "lingnli_LotS")
    nli += ("cad_orig", "cad_revised", "mnli_taxinli", "breaking_nli")
    _write(
        root / "nli_en/nli_en_train.tsv.gz",
        "source split premise hypothesis label",
        [(source, "train", en(), en(), en.label(_NLI)) for source in nli for _ in range(36)],
    )
    _write(
        root / "nli_en/nli_en_dev_test.tsv.gz",
        "source split premise hypothesis label",
        [("snli", split, en(), en(), en.label(_NLI)) for split in ("dev", "test") for _ in range(6)],
    )
    for name, sources in (("train", nli), ("snli_devtest", ("snli",))):
        _write(
            root / f"nli_en/nli_en_triplets_{name}.tsv.gz",
            "source sent0 sent1 hard_neg",
            [(source, en(), en(), en()) for source in sources for _ in range(8)],
        )
    _write(
        root / "corpus_en/sentences_en.tsv.gz",
        "source text",
        [(source, en()) for source in ("nli_snli", "multi30k") for _ in range(200)],
    )
    tasks = [("STSB", split) for split in ("train", "dev", "test")]
    tasks += [(name, "test") for name in ("STS12", "STS13", "STS14", "STS15", "STS16", "SICKR")]
    _write(
        root / "sts_en/sts_en.tsv.gz",
        "task subset split score sentence1 sentence2",
        [(task, "all", split, score, en(), en()) for task, split in tasks for score in (0, 1.5, 3, 4, 5)],
    )
    splits = ("train", "dev", "test")
    _write(
        root / "minbert/sst5.tsv.gz",
        "split id sentence label",
        [(split, "id", en(), en.label(range(5))) for split in splits for _ in range(10)],
    )
    _write(
        root / "minbert/quora_dev.tsv.gz",
        "id text1 text2 label",
        [("id", en(), en(), en.label((0, 1))) for _ in range(8)],
    )
    _write(
        root / "minbert/sts_cs224n.tsv.gz",
        "split id sentence1 sentence2 score",
        [(split, "id", en(), en(), score) for split in splits for score in (0, 1.5, 3, 4, 5)],
    )
    _write(
        root / "quora/quora_pairs.tsv.gz",
        "source split text1 text2 label",
        [
            (source, split, en(), en(), en.label((0, 1)))
            for source, split in (("qqp_bal10k", "dev"), ("qqp_norm15k", "train"), ("minbert_dev", "dev"))
            for _ in range(24)
        ],
    )
    pairs = [("LCQMC", split) for split in splits] + [("BQ", "dev"), ("BQ", "test")]
    pairs += [("PAWSX", "dev"), ("PAWSX", "test"), ("AFQMC", "dev"), ("ATEC", "train")]
    _write(
        root / "zh/zh_pairs.tsv.gz",
        "source split text1 text2 label",
        [(*pair, zh(), zh(), label) for pair in pairs for label in (0, 1) for _ in range(10)],
    )
    zh_nli = [
        ("OCNLI", "train"),
        ("OCNLI", "dev"),
        ("CMNLI", "dev"),
        ("CNSD_SNLI", "dev"),
        ("xnli_zh", "dev"),
    ]
    _write(
        root / "zh/zh_nli.tsv.gz",
        "source split premise hypothesis label",
        [(*pair, zh(), zh(), zh.label(_NLI)) for pair in zh_nli for _ in range(6)],
    )
    _write(
        root / "zh/zh_sts.tsv.gz",
        "task subset split score sentence1 sentence2",
        [("CNSD_STSB", "all", s, score, zh(), zh()) for s in splits for score in (0, 1.5, 3, 4, 5)],
    )
    _write(
        root / "wordnet/synsets.tsv.gz",
        "ss_type offset lemmas hypernyms gloss",
        [("n", "01", "weather|climate", "", ""), ("v", "02", "find|discover", "", "")],
    )
    _write(
        root / "wordnet/index.tsv.gz",
        "lemma pos n_tagged_senses offsets_in_sense_order",
        [("weather", "n", 3, "01"), ("find", "v", 5, "02")],
    )
    _write(root / "wordnet/exceptions.tsv.gz", "form pos lemmas", [("found", "v", "find")])


def write_roformer(folder: Path, vocabulary: Path) -> None:
    """A pre-trained RoFormer of the published kind: weights with an MLM head, and the tokenizer's files."""
    known = transformers.AutoConfig.from_pretrained(vocabulary)
    config = transformers.RoFormerConfig(
        vocab_size=known.vocab_size,
        hidden_size=32,
        embedding_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    torch.manual_seed(0)
    transformers.RoFormerForMaskedLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (folder / name).write_bytes((vocabulary / name).read_bytes())


def losses(folder: Path) -> list[float]:
    """The loss of each step of a run."""
    accumulator = import_module("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return [event.value for event in events.Scalars("train/loss")]


class Workshop:
    """A folder with data and models in which recipes are trained by the command line, each once."""

    def __init__(self, root: Path, models: dict[str, Path]) -> None:
        self._root = root
        self._models = models
        self._done: set[str] = set()

    def run(self, recipe: str) -> Path:
        """Train a recipe, and first those that it needs; the folder of the run."""
        output = self._root / "runs" / recipe
        if recipe in self._done:
            return output
        text = find_recipe(recipe).read_text(encoding="utf-8")
        for path, model in self._folders(text).items():
            text = text.replace(path, str(model))
        content = yaml.safe_load(text)
        file = self._root / f"{recipe}.yaml"
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        overrides = [f"training.eval_steps={_STEPS}", "training.logging_steps=1", "training.batch_size=8"]
        if "postprocess" not in content:
            overrides.append(f"training.max_steps={_STEPS}")
            if _LOSSES:
                overrides += ["model.dropout=0.0", "training.precision=fp32"]
                # drawn on the device, whose random numbers are others than a CPU's
                overrides += {
                    "minbert": ["objective.dropout=0.0"],
                    "roformer_sim": ["objective.noised_texts=0.0"],
                }.get(content["objective"]["name"], [])
        if "mini_batch_size" in content.get("training", {}):
            overrides.append("training.mini_batch_size=4")
        if "holdout" in content["evaluation"]:
            overrides.append("evaluation.holdout=20")
        command = [str(file), *overrides, "--data", str(self._root / "data"), "--output", str(output)]
        assert cli.main([*command, "--cache", str(self._root / "cache"), "--quiet"]) == 0
        self._done.add(recipe)
        if _LOSSES and "postprocess" not in content:
            with open(_LOSSES, "a", encoding="utf-8") as file:
                file.write(json.dumps({"recipe": recipe, "losses": losses(output / "tensorboard")}) + "\n")
        return output

    def _folders(self, text: str) -> dict[str, Path]:
        """The models that a recipe names, and their replacements."""
        found = {path: model for path, model in self._models.items() if path in text}
        return found | {path: self.run(name) / "model" for path, name in _RESULTS.items() if path in text}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory, make_model: Callable[..., Path]) -> Iterator[Workshop]:
    root = tmp_path_factory.mktemp("recipes")
    write_data(root / "data")
    # the command that roformer-sim.yaml gives
    zh = [
        "zh_pairs.tsv.gz:text1,text2",
        "zh_nli.tsv.gz:premise,hypothesis",
        "zh_sts.tsv.gz:sentence1,sentence2",
    ]
    command = [*(f"zh/{name}" for name in zh), "--split", "train", "--size", "8000"]
    folder = root / _VOCABULARY
    assert vocabulary.main([*command, "--output", str(folder), "--data", str(root / "data")]) == 0
    write_roformer(root / "roformer", folder)
    models = {
        # as wide as the recipes' maps and projections need: 128 of the student, 384 of the teachers
        _MINILM: make_model(hidden=128, layers=6, max_positions=128, normalize=True),
        _MPNET: make_model(hidden=384, layers=1, max_positions=128, seed=1, normalize=True),
        _BERT: make_model(hidden=32, layers=6, max_positions=128, seed=3),
        _E5: make_model(hidden=32, layers=1, max_positions=128, seed=2),
        _VOCABULARY: folder,
        _ROFORMER: root / "roformer",
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logger = logging.getLogger("embedkit")
    handlers, level = list(logger.handlers), logger.level
    sts: Any = import_module("embedkit.training.evaluate.sts")  # the package has a function of this name
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_STS", "_STS_DEV", "_CHINESE_STS"):
            patch.setattr(sts, name, {k: one._replace(pairs=5) for k, one in getattr(sts, name).items()})
        patch.setattr(
            sts, "_CHINESE_PAIRS", {k: one._replace(pairs=20) for k, one in sts._CHINESE_PAIRS.items()}
        )
        yield Workshop(root, models)
    torch.set_num_threads(threads)
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.mark.parametrize("recipe", list_recipes())
def test_three_steps(recipe: str, workshop: Workshop) -> None:
    output = workshop.run(recipe)
    result = json.loads((output / "result.json").read_text())
    content = yaml.safe_load(find_recipe(recipe).read_text(encoding="utf-8"))
    assert result["steps"] == (0 if "postprocess" in content else _STEPS)
    assert (output / "model" / "README.md").is_file()
    assert (output / "curve.png").is_file()
    evaluation = content["evaluation"]
    scored = {name.partition("_")[0] for name in result["dev"]}
    assert scored >= set(evaluation.get("dev", {})) | ({"stsb"} if evaluation.get("sts_dev") else set())
    assert evaluation.get("select") is None or evaluation["select"] in result["dev"]
    assert set(result["test"]) == set(evaluation.get("test", []))
    assert all(np.isfinite(score) for scores in result["test"].values() for score in scores.values())
    what = content.get("postprocess") or content["objective"]
    if what["name"] != "cross_encoder":
        dimension = content["model"].get("projection", what).get("dimension")
        with Encoder(output / "model") as encoder:
            vectors = encoder.encode(["the weather today", "北京天"])
        assert np.isfinite(vectors).all()
        assert dimension in (None, vectors.shape[1])
