"""RoFormer-Sim and -FT: losses against numpy, the model against transformers, tiny end-to-end trainings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from embedkit.training import generate
from embedkit.training.data.readers import Table
from embedkit.training.data.store import TextStore
from embedkit.training.generate import SimilarSentences, generate_similar, nucleus
from embedkit.training.lora import LoraOptions
from embedkit.training.model import ModelOptions, Projection, SentenceModel
from embedkit.training.objectives.base import check_scale
from embedkit.training.objectives.roformer_sim import (
    RoformerSim,
    RoformerSimOptions,
    contrastive_loss,
    noised,
    similarity_distillation,
)
from embedkit.training.objectives.roformer_sim_ft import (
    RoformerSimFt,
    RoformerSimFtOptions,
    cosine_loss,
    masked_logits,
)
from embedkit.training.recipe import recipe_of
from embedkit.training.trainer import train
from embedkit.training.unilm import UnilmModel, pack_pairs, unilm_mask
from embedkit.training.vocabulary import build_vocabulary, main
from objective_fixtures import losses

from embedkit import Encoder

_CONFIG = {
    "model_type": "roformer",
    "hidden_size": 32,
    "embedding_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
_THINGS = "苹果 香蕉 手机 电脑 汽车 老师 北京 音乐 足球 狗".split()  # noqa: SIM905
_FORMS = ("{}怎么样", "{}好不好", "请问{}如何")
_MAX_LENGTH = 16


def _pairs(same: bool) -> list[tuple[str, str]]:
    """Two questions about the same thing, or about different things."""
    count = len(_THINGS)
    return [
        (_FORMS[a].format(thing), _FORMS[b].format(_THINGS[i if same else (i + a + 2 * b + 1) % count]))
        for i, thing in enumerate(_THINGS)
        for a in range(len(_FORMS))
        for b in range(len(_FORMS))
        if a != b
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the vocabulary, pairs, scored pairs and NLI."""
    folder = tmp_path_factory.mktemp("roformer_sim")
    rows = [(a, b, 1) for a, b in _pairs(True)] + [(a, b, 0) for a, b in _pairs(False)]
    _table(folder / "pairs.tsv", ("text1", "text2", "label"), rows)
    _table(folder / "scored.tsv", ("text1", "text2", "score"), [(a, b, 4.5 * y + 0.2) for a, b, y in rows])
    nli = [(a, b, "entailment" if y else "neutral") for a, b, y in rows]
    nli += [(a, b + "不", "contradiction") for a, b in _pairs(True)]
    _table(folder / "nli.tsv", ("text1", "text2", "label"), nli)
    build_vocabulary((text for a, b, _ in nli for text in (a, b)), 200, folder / "vocabulary", config=_CONFIG)
    return folder


def _table(path: Path, names: tuple[str, ...], rows: list[Any]) -> None:
    lines = ["\t".join(map(str, row)) for row in [names, *rows]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _options(data: Path, **more: Any) -> ModelOptions:
    values: dict[str, Any] = {
        "path": str(data / "vocabulary"),
        "random": True,
        "pooling": "cls",
        "dropout": 0.0,
    }
    return ModelOptions(**{**values, "projection": Projection(24), "max_length": _MAX_LENGTH, **more})


def _recipe(data: Path, objective: dict[str, Any], tasks: dict[str, Any], **changes: Any) -> dict[str, Any]:
    content = {
        "objective": objective,
        "model": {
            "path": str(data / "vocabulary"),
            "random": True,
            "pooling": "cls",
            "projection": {"dimension": 24},
            "max_length": _MAX_LENGTH,
            "dropout": 0.0,
        },
        "data": tasks,
        "training": {
            "batch_size": 16,
            "epochs": 30,
            "learning_rate": 1e-2,
            "logging_steps": 4,
            "eval_steps": 1.0,
        },
        "evaluation": {"dev": {"dev": {"path": "pairs.tsv", "labels": ["0", "1"]}}},
    }
    for section, values in changes.items():
        content[section].update(values)
    return content


@pytest.fixture(scope="module")
def stage1(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a tiny stage 1."""
    output = tmp_path_factory.mktemp("stage1")
    tasks = {"pairs": {"path": "pairs.tsv", "where": {"label": "1"}}}
    train(recipe_of(_recipe(data, {"name": "roformer_sim"}, tasks), "sim", "test"), output, data_root=data)
    return output


@pytest.fixture(scope="module")
def model(data: Path) -> UnilmModel:
    """A random model; its weights are large, so that attention matters."""
    torch.manual_seed(0)
    made = UnilmModel.load(_options(data))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.ndim > 1 and "embed_positions" not in name:
                parameter.normal_(std=0.3)
    return made.eval()


def test_the_mask_is_bidirectional_in_the_prefix_and_causal_after_it() -> None:
    lengths, prefix, longest = [5, 3], [2, 1], 5
    mask = unilm_mask(torch.tensor(lengths), torch.tensor(prefix), longest)[:, 0]
    for text in range(2):
        for row in range(lengths[text]):
            for column in range(longest):
                in_prefix = column < prefix[text]
                target = prefix[text] <= column <= row and column < lengths[text]
                assert (mask[text, row, column] == 0) == (in_prefix or target)


def test_vectors_and_losses_are_those_of_transformers(model: UnilmModel) -> None:
    """The vector of the text alone, and a masked language model's logits under an explicit mask."""
    texts = [np.array([2, 7, 9, 11, 3], np.int32), np.array([2, 8, 3], np.int32)]
    targets = [np.array([12, 13, 3], np.int32), np.array([9, 14, 15, 16, 3], np.int32)]
    vectors, nll = model.sequences(*pack_pairs(texts, targets))
    reference = transformers.RoFormerForMaskedLM(model.backbone.config).eval()
    reference.roformer.load_state_dict(model.backbone.state_dict())
    head = reference.cls.predictions
    head.transform.dense.load_state_dict(model.transform.state_dict())
    head.transform.LayerNorm.load_state_dict(model.norm.state_dict())
    with torch.no_grad():
        for i, (text, target) in enumerate(zip(texts, targets, strict=True)):
            alone = model.backbone(torch.tensor(text[None].astype("int64"))).last_hidden_state[0, 0]
            np.testing.assert_allclose(vectors[i].detach(), model.projection(alone), atol=1e-5)
            ids = np.concatenate([text, target]).astype("int64")
            seen = np.tril(np.ones((len(ids), len(ids)), bool))
            seen[:, : len(text)] = True
            mask = torch.tensor(np.where(seen, 0.0, -1e30), dtype=torch.float32)[None, None]
            types = torch.tensor((np.arange(len(ids)) >= len(text)).astype("int64"))[None]
            hidden = reference.roformer.encoder(
                reference.roformer.embeddings(torch.tensor(ids)[None], types), attention_mask=mask
            )[0]
            transformed = head.transform(hidden)[0].numpy()
            logits = transformed @ model.backbone.embeddings.word_embeddings.weight.numpy().T
            logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
            expected = -sum(logits[j - 1, ids[j]] for j in range(len(text), len(ids)))
            assert float(nll[i]) == pytest.approx(expected, rel=1e-4)


def test_similarity_losses_are_the_formulas() -> None:
    random = np.random.default_rng(0)
    x, t = random.normal(size=(6, 4)), random.normal(size=(6, 5))
    x, t = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (x, t))
    expected = 0.0
    for i in range(6):
        others = [20 * x[i] @ x[k] for k in range(6) if k != i]
        expected -= (20 * x[i] @ x[(i + 3) % 6] - np.log(np.exp(others).sum())) / 6
    assert float(contrastive_loss(torch.tensor(x), 20.0)) == pytest.approx(expected)
    distilled = similarity_distillation(torch.tensor(x), torch.tensor(t))
    assert float(distilled) == pytest.approx(np.mean((x @ x.T - t @ t.T) ** 2))
    unit = torch.tensor(x, requires_grad=True)
    assert torch.autograd.gradcheck(lambda u: contrastive_loss(u, 2.0), unit)
    assert torch.autograd.gradcheck(lambda u: similarity_distillation(u, torch.tensor(t)), unit)


def test_cosine_losses_are_the_formulas() -> None:
    cosine, same = np.array([0.95, 0.3, -0.4, 0.05, 0.8]), np.array([1, 1, 1, 0, 0])
    formulas: dict[str, Callable[[float, int], float]] = {
        "cosine-zero": lambda c, t: t * (c - 1) ** 2 + (1 - t) * c**2,
        "cosine-minus": lambda c, t: t * (c - 1) ** 2 + (1 - t) * (c + 1) ** 2,
        "cosine-margin": lambda c, t: t * max(0.9 - c, 0) + (1 - t) * max(c - 0.1, 0),
    }
    for kind, formula in formulas.items():
        found = cosine_loss(torch.tensor(cosine), torch.tensor(same == 1), kind)
        assert float(found) == pytest.approx(
            np.mean([formula(c, t) for c, t in zip(cosine, same, strict=True)])
        )
        values = torch.tensor(cosine, requires_grad=True)
        assert torch.autograd.gradcheck(
            lambda c, kind=kind: cosine_loss(c, torch.tensor(same == 1), kind), values
        )


def test_the_head_of_five_is_two_heads() -> None:
    logits = torch.randn(3, 5, dtype=torch.float64)
    found = masked_logits(logits, torch.tensor([False, True, True])).softmax(-1)
    np.testing.assert_allclose(found[0, :2], logits[0, :2].softmax(-1))
    np.testing.assert_allclose(found[1:, 2:], logits[1:, 2:].softmax(-1))
    assert found[0, 2:].abs().sum() == found[1:, :2].abs().sum() == 0


def test_noise_is_in_half_of_the_texts_and_never_in_the_targets() -> None:
    torch.manual_seed(0)
    n, text, target, mask_id = 400, 52, 5, 4
    ids = torch.full((n * (text + target),), 9)
    prefix = torch.full((n,), text)
    found = noised(
        ids,
        torch.arange(n + 1) * (text + target),
        prefix,
        texts=0.5,
        rate=0.15,
        mask_id=mask_id,
        vocab_size=10_000,
    ).view(n, -1)
    assert bool((found[:, text - 1 :] == 9).all()) and bool((found[:, 0] == 9).all())
    inside = found[:, 1 : text - 1]
    touched = (inside != 9).any(1)
    assert 0.42 < float(touched.float().mean()) < 0.58
    assert float((inside[touched] == mask_id).float().mean()) == pytest.approx(0.12, abs=0.01)
    assert float((inside[touched] != 9).float().mean()) == pytest.approx(0.135, abs=0.01)


def test_nucleus_draws_from_the_fewest_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.log(torch.tensor([[0.1, 0.5, 0.15, 0.25]])).expand(4000, -1)
    counts = torch.bincount(nucleus(logits, 0.7, generator), minlength=4) / 4000
    np.testing.assert_allclose(counts, [0, 2 / 3, 0, 1 / 3], atol=0.03)
    assert nucleus(logits[:20], 1e-9, generator).tolist() == [1] * 20


def test_reading_token_by_token_gives_the_same_losses(model: UnilmModel) -> None:
    from embedkit.training.generate import _Decoder

    text, target = np.array([2, 7, 9, 11, 3], np.int32), np.array([12, 13, 14, 3], np.int32)
    with torch.no_grad():
        _, nll = model.sequences(*pack_pairs([text], [target]))
        decoder = _Decoder(model)
        hidden, total = decoder.prefix(torch.tensor(text[None].astype("int64"))).expand(2, -1), 0.0
        decoder.repeat(2)
        for token in target.tolist():
            total -= float(model.logits(hidden).log_softmax(-1)[1, token])
            hidden = decoder.step(torch.tensor([5, token]))
    assert total == pytest.approx(float(nll[0]), rel=1e-5)


def test_the_vocabulary_is_read_alike_by_all(data: Path) -> None:
    from embedkit.model_folder.tokenizer import load_tokenizer

    folder = data / "vocabulary"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["苹果怎么样?", "你觉得abc如何", "  ", "火车A"]
    own = load_tokenizer(folder).encode_batch(texts)
    assert own == [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert tokenizer.tokenize("苹果怎么样") == list("苹果怎么样")
    assert type(tokenizer).__name__.startswith("BertTokenizer")
    with pytest.raises(ValueError, match="no room"):
        build_vocabulary(texts, 5, data / "none")
    words = ["the quick brown fox jumps over a lazy dog near banks", "sphinx of black quartz judge my vow"]
    with pytest.raises(ValueError, match="take 54 entries; give a size of at least that"):
        build_vocabulary(words * 5, 40, data / "none")


def test_the_vocabulary_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = ["pairs.tsv:text1,text2", "--size", "60", "--data", str(data), "-o"]
    assert main([*source, str(tmp_path / "made")]) == 0
    lines = (tmp_path / "made" / "vocab.txt").read_text(encoding="utf-8").split()
    config = json.loads((tmp_path / "made" / "config.json").read_text(encoding="utf-8"))
    assert len(lines) == config["vocab_size"] <= 60
    for wrong, message in (
        (["pairs.tsv"], "'pairs.tsv' names no columns"),
        (["none.tsv:text"], "none.tsv"),
        (["pairs.tsv:text1", "--nix"], "unrecognized arguments: --nix"),
    ):
        assert main([*wrong, "--data", str(data), "-o", str(tmp_path / "other")]) == 2
        error = capsys.readouterr().err
        assert error.startswith("python -m embedkit.training.vocabulary: ") and message in error


def test_the_vocabulary_command_without_tokenizers(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert main(["pairs.tsv:text1", "--data", str(data), "-o", str(tmp_path / "made")]) == 1
    assert "needs tokenizers: pip install 'embedkit[train]'" in capsys.readouterr().err


def test_the_generate_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def similar(self: SimilarSentences, text: str, *options: Any, seed: int) -> list[tuple[str, float]]:
        if text == "stop":
            raise KeyboardInterrupt
        return [("as it", 0.5)]

    monkeypatch.setattr(SimilarSentences, "__init__", lambda self, folder: None)
    monkeypatch.setattr(SimilarSentences, "generate", similar)
    assert generate.main(["model", "like", "-k", "1", "this"]) == 0
    assert capsys.readouterr().out == "like\n  0.500  as it\nthis\n  0.500  as it\n"
    assert generate.main(["model", "stop"]) == 130
    assert capsys.readouterr().err == "python -m embedkit.training.generate: interrupted\n"
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1, encoding="utf-8") as gone, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", gone)
        assert generate.main(["model", "like"]) == 0  # as of `| head`
    assert capsys.readouterr().err == ""
    monkeypatch.undo()
    assert generate.main(["./none", "like"]) == 2
    assert "the model folder './none' does not exist" in capsys.readouterr().err


def test_stage_1_learns_to_embed_and_to_generate(stage1: Path) -> None:
    result = json.loads((stage1 / "result.json").read_text(encoding="utf-8"))
    history = losses(stage1)
    assert np.mean(history[-5:]) < 0.5 * np.mean(history[:5])
    assert result["dev"]["dev_spearman"] > 70
    assert result["dev"]["dev_perplexity"] < 6  # of about 50 characters
    found = generate_similar(stage1 / "model", "苹果怎么样", n=20, k=5, seed=1)
    assert 1 <= len(found) <= 5
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert "苹果怎么样" not in [text for text, _ in found]
    assert found == SimilarSentences(stage1 / "model").generate("苹果怎么样", 20, 5, seed=1)
    assert "苹果" in found[0][0]


def test_the_folder_loads_in_sentence_transformers(stage1: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from safetensors import safe_open

    texts = ["苹果怎么样", "请问火车如何", "狗"]
    model = UnilmModel.open(stage1 / "model")
    found = sentence_transformers.SentenceTransformer(str(stage1 / "model"), device="cpu").encode(texts)
    np.testing.assert_allclose(model.encode(texts), found, atol=1e-5)
    with safe_open(stage1 / "model" / "generator.safetensors", "np") as file:
        assert not [name for name in file.keys() if "word_embeddings" in name or "decoder" in name]  # noqa: SIM118


def test_the_folder_loads_in_the_encoder(stage1: Path) -> None:
    import embedkit
    from embedkit.model_folder.architectures import ARCHITECTURES

    if "roformer" not in ARCHITECTURES:
        pytest.skip("the compiled core does not run RoFormer yet")
    texts = ["苹果怎么样", "请问火车如何", "狗"]
    found = embedkit.Encoder(str(stage1 / "model")).encode(texts)
    np.testing.assert_allclose(UnilmModel.open(stage1 / "model").encode(texts), found, atol=1e-5)


def test_a_folder_without_generator_cannot_generate(data: Path, tmp_path: Path) -> None:
    SentenceModel.load(_options(data)).save(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"generator\.safetensors"):
        generate_similar(tmp_path, "苹果")


def test_prompts_are_saved(data: Path, stage1: Path, tmp_path: Path) -> None:
    options = _options(
        data, path=str(stage1 / "model"), random=False, prompts={"query": "问: "}, default_prompt="query"
    )
    UnilmModel.load(options).save(tmp_path)
    with Encoder(tmp_path) as encoder:
        assert (encoder.prompts["query"], encoder.default_prompt_name) == ("问: ", "query")


def _ft_tasks() -> dict[str, Any]:
    return {
        "pairs": {"path": "pairs.tsv", "labels": ["0", "1"]},
        "nli": {"path": "nli.tsv", "labels": ["entailment", "neutral", "contradiction"]},
        "scored": {"path": "scored.tsv"},
    }


def test_ft_learns_and_is_distilled_back(data: Path, stage1: Path, tmp_path: Path) -> None:
    """From random weights to a score above the start's; then a generator whose cosines are the teacher's."""
    round_robin = {"schedule": "round_robin", "epochs": 6, "learning_rate": 5e-3}
    recipe = _recipe(data, {"name": "roformer_sim_ft"}, _ft_tasks(), training=round_robin)
    result = train(recipe_of(recipe, "ft", "test"), tmp_path / "ft", data_root=data)
    history = losses(tmp_path / "ft")
    assert np.mean(history[-5:]) < 0.5 * np.mean(history[:5])
    assert result["dev"]["dev_spearman"] > 50
    assert result["dev"]["dev_accuracy"] > 80

    teacher = str(tmp_path / "ft" / "model")
    start = {"path": str(stage1 / "model"), "random": False}
    tasks = {"pairs": {"path": "pairs.tsv", "where": {"label": "1"}}}
    recipe = _recipe(data, {"name": "roformer_sim", "teacher": teacher}, tasks, model=start)
    result = train(recipe_of(recipe, "back", "test"), tmp_path / "back", data_root=data)
    assert result["dev"]["dev_perplexity"] < 6
    texts = [text for pair in _pairs(True)[::7] for text in pair]
    matrices = []
    for folder in (teacher, tmp_path / "back" / "model", stage1 / "model"):
        vectors = SentenceModel.load(_loaded(folder)).encode(texts)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        matrices.append(vectors @ vectors.T)
    before, after = (float(np.mean((matrices[0] - matrix) ** 2)) for matrix in (matrices[2], matrices[1]))
    assert after < before / 4


def _loaded(folder: str | Path) -> ModelOptions:
    from embedkit.training.model import options_of

    return options_of(str(folder))


@pytest.mark.parametrize("loss", ["cosine-zero", "cosine-minus", "cosine-margin"])
def test_the_controls_run(data: Path, tmp_path: Path, loss: str) -> None:
    steps = {"schedule": "round_robin", "max_steps": 3}
    recipe = _recipe(data, {"name": "roformer_sim_ft", "loss": loss}, _ft_tasks(), training=steps)
    result = train(recipe_of(recipe, "ft", "test"), tmp_path / "run", data_root=data)
    assert result["steps"] == 3 and "dev_spearman" in result["dev"]


def _batch_of_pairs(data: Path, teacher: str | None) -> tuple[RoformerSim, dict[str, Any]]:
    """An objective without noise, and a batch of six pairs."""
    texts = [text for pair in _pairs(True)[:6] for text in pair]
    table = Table({"text1": texts[::2], "text2": texts[1::2]})
    torch.manual_seed(0)
    options = RoformerSimOptions(noised_texts=0.0, teacher=teacher)
    objective = RoformerSim(UnilmModel.load(_options(data)), options, {"pairs": table})
    store = TextStore(data / "vocabulary", texts, _MAX_LENGTH)
    rows = store.rows.reshape(-1, 2).astype(np.int64)
    return objective, objective.collate(store, rows, objective.prepare("pairs", table, data / "cache"))


@pytest.mark.parametrize("distilled", [False, True])
def test_the_loss_is_a_mean_over_tokens_and_the_similarities(
    distilled: bool, data: Path, stage1: Path
) -> None:
    objective, batch = _batch_of_pairs(data, str(stage1 / "model") if distilled else None)
    assert len(batch["prefix"]) == 12  # each pair in both directions
    with torch.no_grad():
        found = objective.eval()(task=torch.tensor(0), **batch)
        vectors, nll = objective.encoder.sequences(batch["input_ids"], batch["cu_seqlens"], batch["prefix"])
    tokens = int((batch["cu_seqlens"].diff() - batch["prefix"]).sum())
    x = torch.nn.functional.normalize(vectors, dim=1).double().numpy()
    want = float(nll.sum()) / tokens
    if distilled:
        t = batch["teacher"].double().numpy().transpose(1, 0, 2).reshape(12, -1)
        t /= np.linalg.norm(t, axis=1, keepdims=True)
        want += 100 * np.mean((x @ x.T - t @ t.T) ** 2)
    else:
        scores = np.exp(20 * x @ x.T) * (1 - np.eye(12))
        want -= np.mean([np.log(scores[i, (i + 6) % 12] / scores[i].sum()) for i in range(12)])
    assert found["loss"].item() == pytest.approx(want, rel=1e-4)


def test_the_teacher_reads_training_data_alone(data: Path, stage1: Path) -> None:
    objective, batch = _batch_of_pairs(data, str(stage1 / "model"))
    assert batch["teacher"].shape == (6, 2, 24)
    dev = Table({"text1": ["苹果"], "text2": ["香蕉"], "label": np.array([1])})
    assert objective.prepare("pairs", dev, data / "cache").keys() == {"label"}


def test_labels_of_the_five_classes(data: Path) -> None:
    objective = RoformerSimFt(SentenceModel.load(_options(data)), RoformerSimFtOptions(), {})
    texts = {"text1": ["a"] * 3, "text2": ["b"] * 3}
    scored = objective.prepare("s", Table({**texts, "score": np.array([2.5, 2.6, 0.0])}), data)
    assert scored["label"].tolist() == [0, 1, 0]  # above 2.5 is yes
    low = {"s": Table({**texts, "score": np.array([1.0, 0.5, 0.0])})}
    with pytest.raises(
        ValueError, match=r"no score of data\.s is above 1, .*: set objective\.threshold below that"
    ):
        check_scale(objective.options, low)
    nli = Table({**texts, "label": np.array([0, 1, 2])}, ("neutral", "contradiction", "entailment"))
    assert objective.prepare("n", nli, data)["label"].tolist() == [4, 2, 3]
    assert objective.prepare("n", nli, data)["gold"].tolist() == [0, 0, 1]


def test_ft_starts_from_a_published_layer_on_cls(data: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    SentenceModel.load(_options(data, projection=None)).save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    width = next(iter(x for name, x in tensors.items() if "LayerNorm.bias" in name)).shape[0]
    layer = {"weight": torch.rand(width, width), "bias": torch.rand(width)}
    tensors |= {f"roformer.pooler.dense.{name}": x for name, x in layer.items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    options = _options(data, path=str(tmp_path), random=False, projection=Projection(width))
    encoder = RoformerSimFt.load_encoder(options, RoformerSimFtOptions(), {})
    assert encoder.projection is not None
    assert torch.equal(encoder.projection.weight, layer["weight"])
    assert torch.equal(encoder.projection.bias, layer["bias"])
    encoder.projection.weight.data.add_(1)
    (tmp_path / "trained").mkdir()
    encoder.save(tmp_path / "trained")  # with a Dense module
    save_file(tensors, tmp_path / "trained" / "model.safetensors", {"format": "pt"})  # beside the pooler
    options = replace(options, path=str(tmp_path / "trained"))
    again = RoformerSimFt.load_encoder(options, RoformerSimFtOptions(), {})
    assert again.projection is not None
    assert torch.equal(again.projection.weight, encoder.projection.weight)


def test_ft_tells_once_that_a_dense_is_no_start(
    make_model: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "embedkit")
    source = make_model(pooling=("mean", "max"), dense=[(12, "Identity", True)])
    RoformerSimFt.load_encoder(
        ModelOptions(str(source), max_length=64, projection=Projection(12)), RoformerSimFtOptions(), {}
    )
    assert caplog.text.count("the projection does not start from it") == 1


def test_gradients_do_not_depend_on_the_mini_batch(data: Path) -> None:
    objective, batch = _batch_of_pairs(data, None)
    gradients = []
    for size in (None, 2):
        objective.mini_batch_size = size
        objective.zero_grad()
        objective(task=torch.tensor(0), **batch)["loss"].backward()
        gradients.append(torch.cat([p.grad.flatten() for p in objective.parameters() if p.grad is not None]))
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-6)


def test_wrong_input_is_named(data: Path, make_model: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="needs a RoFormer"):
        UnilmModel.load(_options(data, path=str(make_model()), random=True))
    with pytest.raises(ValueError, match=r"pooling=cls"):
        UnilmModel.load(_options(data, pooling="mean"))
    with pytest.raises(ValueError, match=r"model\.lora"):
        UnilmModel.load(_options(data, lora=LoraOptions()))
    tasks = {"pairs": {"path": "pairs.tsv"}}
    for labels in ({}, {"labels": ["1", "0"]}):
        tasks["pairs"] |= labels
        recipe = recipe_of(_recipe(data, {"name": "roformer_sim_ft"}, tasks), "ft", "test")
        with pytest.raises(ValueError, match=r"data\.pairs\.labels"):
            train(recipe, data / f"refused{len(labels)}", data_root=data)
