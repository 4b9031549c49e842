"""Cross-encoders against the formulas in numpy, transformers and sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from embedkit.training import loop
from embedkit.training.data.readers import Table, read
from embedkit.training.lora import LoraOptions
from embedkit.training.model import ModelOptions
from embedkit.training.objectives.cross_encoder import CrossEncoder, CrossEncoderOptions, PairClassifier
from embedkit.training.recipe import TrainingOptions
from embedkit.training.trainer import train
from objective_fixtures import (
    NLI,
    losses,
    make_recipe,
    nli_source,
    sts_source,
    write_nli,
    write_sts,
)
from tiny_families import tiny

import embedkit

FIRST = ["the weather is lovely", "people use water", "a", "many words " * 40]
SECOND = ["people look", "the people of the world use the water of the day", "b", "two more " * 30]


@pytest.fixture
def classifier(make_model: Callable[..., Path]) -> PairClassifier:
    torch.manual_seed(0)
    model = PairClassifier.load(ModelOptions(str(make_model()), max_length=40), NLI)
    with torch.no_grad():
        model.backbone.classifier.weight.normal_()
    return model.eval()


def test_the_written_folder_loads_elsewhere_with_equal_scores(
    classifier: PairClassifier, tmp_path: Path
) -> None:
    classifier.save(tmp_path)
    found = classifier.predict(FIRST, SECOND, batch_tokens=50)
    assert found.shape == (4, 3)

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    inputs = tokenizer(FIRST, SECOND, truncation=True, padding=True, return_tensors="pt")
    assert inputs["input_ids"].shape[1] == 40
    with torch.no_grad():
        expected = model(**inputs).logits.softmax(-1).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.ptp(expected) > 0.1
    assert [model.config.id2label[i] for i in range(3)] == NLI

    reader = pytest.importorskip("sentence_transformers").CrossEncoder(str(tmp_path), device="cpu")
    pairs = list(zip(FIRST, SECOND, strict=True))
    np.testing.assert_allclose(reader.predict(pairs, apply_softmax=True), expected, atol=1e-6)

    again = PairClassifier.load(ModelOptions(str(tmp_path), max_length=40))
    assert again.labels == NLI
    np.testing.assert_allclose(again.predict(FIRST, SECOND), expected, atol=1e-6)


def test_another_number_of_classes_has_a_new_head(
    classifier: PairClassifier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    classifier.save(tmp_path)
    caplog.set_level("INFO", "embedkit")
    again = PairClassifier.load(ModelOptions(str(tmp_path), max_length=40), ["score"])
    assert again.labels == ["score"] and "classifier.weight is new" in caplog.text
    assert again.predict(["a"], ["b"]).shape == (1, 1)
    for name, tensor in classifier.backbone.base_model.state_dict().items():
        assert torch.equal(tensor, again.backbone.base_model.state_dict()[name])
    options = ModelOptions(str(tmp_path), max_length=40, config={"intermediate_size": 8})
    with pytest.raises(
        ValueError, match=r"the tensor .* has the shape .* model\.config must leave the sizes"
    ):
        PairClassifier.load(options, ["score"])


def test_classes_keep_their_rows_of_the_head(
    classifier: PairClassifier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    classifier.save(tmp_path)
    options = ModelOptions(str(tmp_path), max_length=40)
    expected = classifier.logits(FIRST, SECOND)
    for labels in (NLI[::-1], [name.upper() for name in NLI[::-1]]):
        turned = PairClassifier.load(options, labels)
        assert turned.labels == labels
        np.testing.assert_allclose(turned.logits(FIRST, SECOND)[:, ::-1], expected, atol=1e-5)

    assert "is new" not in caplog.text
    torch.manual_seed(0)
    other = PairClassifier.load(options, ["yes", "no", "unknown"])
    assert f"classifier is new, since it was of the classes {', '.join(NLI)}" in caplog.text
    assert not np.allclose(other.logits(FIRST, SECOND), expected, atol=0.1)

    config = json.loads((tmp_path / "config.json").read_text())
    for unnamed in ({"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, None):
        config |= {"id2label": unnamed, "num_labels": 3}
        (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
        same = PairClassifier.load(options, NLI[::-1])
        np.testing.assert_allclose(same.logits(FIRST, SECOND), expected, atol=1e-5)


def test_a_regression_predicts_what_sentence_transformers_does(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    model = PairClassifier.load(ModelOptions(str(make_model()), max_length=64), ["score"])
    model.save(tmp_path)
    reader = pytest.importorskip("sentence_transformers").CrossEncoder(str(tmp_path), device="cpu")
    found = model.predict(FIRST, SECOND)
    assert found.shape == (4, 1)
    assert ((found > 0) & (found < 1)).all()
    expected = reader.predict(list(zip(FIRST, SECOND, strict=True)))
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0.0"}},
    ],
)
def test_a_trained_folder_has_the_activation_of_the_training(
    make_model: Callable[..., Path], tmp_path: Path, settings: dict[str, Any]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    PairClassifier.load(ModelOptions(str(make_model()), max_length=64), ["score"]).save(first)
    config = json.loads((first / "config.json").read_text())
    del config["sentence_transformers"]
    (first / "config.json").write_text(json.dumps({**config, **settings}))
    assert embedkit.CrossEncoder(first).activation_fn == "identity"

    model = PairClassifier.load(ModelOptions(str(first), max_length=64), ["score"])
    model.save(second)
    expected = model.predict(FIRST[:3], SECOND[:3])[:, 0]
    pairs = list(zip(FIRST[:3], SECOND[:3], strict=True))
    np.testing.assert_allclose(embedkit.CrossEncoder(second).predict(pairs), expected, atol=1e-5)
    reader = pytest.importorskip("sentence_transformers").CrossEncoder(str(second), device="cpu")
    np.testing.assert_allclose(reader.predict(pairs), expected, atol=1e-6)


def test_losses_are_their_formulas(make_model: Callable[..., Path], tmp_path: Path) -> None:
    label = torch.tensor([2, 0, 1, 1])
    table = read(nli_source(write_nli(tmp_path / "nli.tsv", 6, 0)))
    scored = Table({name: table[name] for name in table.names})
    for loss, tables in (("classification", {"nli": table}), ("regression", {"nli": scored})):
        options = CrossEncoderOptions(loss=loss)
        model = ModelOptions(str(make_model()), max_length=40)
        objective = CrossEncoder(CrossEncoder.load_encoder(model, options, tables), options, tables).eval()
        store_texts = [*FIRST, *SECOND]
        from embedkit.training.data.store import TextStore

        store = TextStore(objective.encoder.tokenizer_folder, store_texts, 40)
        batch = objective.collate(
            store, store.rows.reshape(2, -1).T.astype(np.int64), {"label": label.numpy()}
        )
        q = objective.encoder.predict(FIRST, SECOND).astype(np.float64)
        outputs = objective(task=torch.tensor(0), **batch)
        if loss == "classification":
            expected = -np.log(q[np.arange(4), label.numpy()]).mean()
        else:
            target, q = label.numpy() / 5, q[:, 0]
            expected = -(target * np.log(q) + (1 - target) * np.log(1 - q)).mean()
        assert outputs["loss"].item() == pytest.approx(expected, rel=1e-5)


def test_it_learns(make_model: Callable[..., Path], tmp_path: Path) -> None:
    data = nli_source(write_nli(tmp_path / "train.tsv", 320, 1))
    dev = nli_source(write_nli(tmp_path / "dev.tsv", 60, 2))
    recipe = make_recipe(
        {"name": "cross_encoder"}, make_model(), {"nli": data}, {"nli": dev}, "nli_accuracy", epochs=3
    )
    result = train(recipe, tmp_path / "run")
    history = losses(tmp_path / "run")
    assert np.mean(history[-5:]) < 0.7 * np.mean(history[:5])
    assert result["dev"]["nli_accuracy"] > 33.4 + 25
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "from sentence_transformers import CrossEncoder" in card
    assert "pipeline_tag: text-classification" in card


def test_an_int8_encoder_is_a_start(
    classifier: PairClassifier, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    """Its folder has neither pooler nor classifier; one made of a cross-encoder is a trained one no more."""
    (tmp_path / "pairs").mkdir()
    classifier.save(tmp_path / "pairs")
    for name, source, holds in (
        ("a", make_model(), "BertModel"),
        ("b", tmp_path / "pairs", "int8 weights without a head"),
    ):
        with embedkit.Encoder(source, precision="fp32") as encoder:
            encoder.save(tmp_path / name, "int8")
        model = PairClassifier.load(ModelOptions(str(tmp_path / name), max_length=40), ["score"])
        started = model.backbone.bert.embeddings.word_embeddings.weight
        expected = classifier.backbone.bert.embeddings.word_embeddings.weight
        torch.testing.assert_close(started, expected, rtol=0, atol=expected.abs().max().item() / 100)
        with pytest.raises(ValueError, match=f"{name} holds {holds} and no trained cross-encoder"):
            PairClassifier.load(ModelOptions(str(tmp_path / name), max_length=40))


def test_regression_learns(make_model: Callable[..., Path], tmp_path: Path) -> None:
    data = sts_source(write_sts(tmp_path / "train.tsv", 320, 1))
    dev = sts_source(write_sts(tmp_path / "dev.tsv", 60, 2))
    objective = {"name": "cross_encoder", "loss": "regression"}
    recipe = make_recipe(objective, make_model(), {"sts": data}, {"sts": dev}, "sts_spearman", epochs=8)
    result = train(recipe, tmp_path / "run")
    history = losses(tmp_path / "run")
    assert np.mean(history[-5:]) < 0.9 * np.mean(history[:5])
    assert result["dev"]["sts_spearman"] > 60


def test_what_does_not_fit_is_refused(make_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_model()
    with pytest.raises(ValueError, match="no trained cross-encoder"):
        PairClassifier.load(ModelOptions(str(folder), max_length=64))
    with pytest.raises(ValueError, match=r"model\.normalize"):
        PairClassifier.load(ModelOptions(str(folder), max_length=64, normalize=True), NLI)
    with pytest.raises(ValueError, match=r"model\.lora"):
        PairClassifier.load(ModelOptions(str(folder), max_length=64, lora=LoraOptions()), NLI)
    for prompts in ({"prompts": {"query": "q: "}}, {"default_prompt": "query"}, {"keep_prompts": False}):
        with pytest.raises(
            ValueError, match=r"model\.prompts, model\.default_prompt and model\.keep_prompts"
        ):
            PairClassifier.load(ModelOptions(str(folder), max_length=64, **prompts), NLI)
    with pytest.raises(ValueError, match=r"objective\.loss"):
        CrossEncoderOptions(loss="triplet")
    source = nli_source(write_nli(tmp_path / "train.tsv", 32, 1))
    recipe = make_recipe({"name": "cross_encoder"}, folder, {"nli": source})
    object.__setattr__(recipe.evaluation, "sts_dev", True)
    with pytest.raises(ValueError, match="sentence vectors"):
        train(recipe, tmp_path / "run")
    in_pieces = make_recipe({"name": "cross_encoder"}, folder, {"nli": source}, mini_batch_size=4)
    with pytest.raises(ValueError, match=r"training\.mini_batch_size is for sentence vectors"):
        train(in_pieces, tmp_path / "run")


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_frozen_embeddings(kind: str, make_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_model() if kind == "bert" else tiny(tmp_path, kind)
    model = PairClassifier.load(ModelOptions(str(folder), max_length=64, freeze_embeddings=True), ["score"])
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen and frozen == {name for name, _ in model.named_parameters() if "embed" in name}


def test_the_classifier_has_the_heads_rate(make_model: Callable[..., Path]) -> None:
    options = TrainingOptions(learning_rate=1e-5, head_learning_rate=1e-3)
    encoder = PairClassifier.load(ModelOptions(str(make_model()), max_length=64), NLI)
    objective = CrossEncoder(encoder, CrossEncoderOptions(), {})
    groups = loop.optimizer(objective, options, torch.device("cpu")).param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    for name, parameter in objective.named_parameters():
        assert rates[id(parameter)] == (1e-3 if "classifier" in name else 1e-5), name


class Adapted(torch.nn.Module):
    """Has the attributes of what it wraps, as PEFT's model does."""

    base_model_prefix = "model"

    def __init__(self) -> None:
        super().__init__()
        self.base_model = torch.nn.ModuleDict({"model": torch.nn.Linear(2, 2)})

    @property
    def model(self) -> torch.nn.Module:
        return self.base_model["model"]


def test_adapters_have_the_backbones_rate() -> None:
    objective = torch.nn.Module()
    objective.encoder = torch.nn.Module()
    objective.encoder.backbone = Adapted()
    options = TrainingOptions(learning_rate=1e-5, head_learning_rate=1e-3)
    groups = loop.optimizer(objective, options, torch.device("cpu")).param_groups
    assert {group["lr"] for group in groups} == {1e-5}


def test_a_decoders_score_layer_has_the_heads_rate() -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1}
    config = transformers.Qwen3Config(num_hidden_layers=1, head_dim=8, vocab_size=10, num_labels=2, **sizes)
    objective = torch.nn.Module()
    objective.encoder = torch.nn.Module()
    objective.encoder.backbone = transformers.Qwen3ForSequenceClassification(config)
    options = TrainingOptions(learning_rate=1e-5, head_learning_rate=1e-3)
    groups = loop.optimizer(objective, options, torch.device("cpu")).param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    for name, parameter in objective.named_parameters():
        assert rates[id(parameter)] == (1e-3 if "score" in name else 1e-5), name
