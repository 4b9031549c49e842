"""One encoder with an objective for each data set; several negatives; prompts; LoRA; fp16; checkpointing; workers."""

from __future__ import annotations

import multiprocessing
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tensorboard")

from embedkit.training import push_to_hub
from embedkit.training.data.readers import Table, read
from embedkit.training.data.sampler import TaskSampler
from embedkit.training.dataset import Examples, Repeated
from embedkit.training.loop import Batches
from embedkit.training.model import ModelOptions, SentenceModel
from embedkit.training.objectives.multi import Multi, MultiOptions
from embedkit.training.objectives.sbert import Sbert, SbertOptions
from embedkit.training.objectives.simcse import SimCse, SimCseOptions
from embedkit.training.recipe import recipe_of
from embedkit.training.trainer import train
from objective_fixtures import losses, make_recipe, nli_source, sts_source, write_nli, write_sts

from embedkit import Encoder

pytestmark = pytest.mark.usefixtures("one_thread")


def triplets(path: Path, negatives: int = 1) -> dict[str, Any]:
    names = ["negative"] if negatives == 1 else [f"negative_{i + 1}" for i in range(negatives)]
    rows = ["\t".join(["anchor", "positive", *names])]
    nouns = ("people", "water", "time", "day", "world", "weather", "night", "query")
    for noun in nouns:
        for verb in ("use", "find", "see", "make"):
            others = [f"not {verb} {nouns[(nouns.index(noun) + i + 1) % 8]}" for i in range(negatives)]
            rows.append("\t".join([f"the {noun} {verb}", f"many {noun} {verb}", *others]))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return {"path": str(path)}


def batch_of(objective: Any, task: str, source: dict[str, Any], rows: slice) -> dict[str, Any]:
    """A batch of some rows of a source, as the trainer makes it."""
    tables = {task: read(source)}
    examples = Examples(objective, tables, objective.encoder.tokenizer_folder, 64, Path())
    return examples.batch(list(range(32))[rows])


def test_each_task_has_its_loss(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """The loss of a batch is that of the task's objective alone; checkpoints hold one encoder."""
    nli = nli_source(write_nli(tmp_path / "nli.tsv", 96, 1))
    pairs = triplets(tmp_path / "t.tsv")
    sources = {"nli": nli, "t": pairs}
    tables = {task: read(source) for task, source in sources.items()}
    encoder = SentenceModel.load(ModelOptions(str(make_model()), dropout=0.0, max_length=64))
    options = MultiOptions({"nli": {"name": "sbert"}, "t": {"name": "simcse", "temperature": 0.1}})
    multi = Multi(encoder, options, tables)
    alone = {"nli": Sbert(encoder, SbertOptions(), {"nli": tables["nli"]})}
    alone["nli"].load_state_dict({**alone["nli"].state_dict(), **multi.losses["nli"].state_dict()})
    single = {"t": SimCse(encoder, SimCseOptions(temperature=0.1), {"t": tables["t"]}), **alone}
    for number, task in enumerate(sources):
        batch = batch_of(multi, task, sources[task], slice(8)) | {"task": torch.tensor(number)}
        expected = single[task](**{**batch, "task": torch.tensor(0)})["loss"]
        torch.testing.assert_close(multi(**batch)["loss"], expected)
    names = [name for name in multi.state_dict() if "embeddings.word" in name]
    assert names == ["encoder.backbone.embeddings.word_embeddings.weight"]

    recipe = make_recipe(
        {"name": "multi", "losses": options.losses}, make_model(), sources, sources, "nli_accuracy", epochs=2
    )
    result = train(recipe, tmp_path / "run")
    assert result["steps"] == 2 * (96 // 16 + 32 // 16)
    assert set(result["dev"]) == {"nli_accuracy", "t_accuracy"}
    assert Encoder(tmp_path / "run" / "model").encode(["a day"]).shape == (1, 32)


def test_what_multi_refuses(make_model: Callable[..., Path], tmp_path: Path) -> None:
    for losses_of, message in (
        ({}, "objective.losses is empty"),
        ({"a": {"name": "sbret"}}, r"unknown objective\.losses\.a\.name 'sbret'"),
        ({"a": {"name": "multi"}}, "unknown objective"),
        ({"a": {"name": "cross_encoder"}}, "does not train sentence vectors"),
        ({"a": {"name": "simcse", "temprature": 1}}, "did you mean 'temperature'"),
    ):
        with pytest.raises(ValueError, match=message):
            MultiOptions(losses_of)
    source = nli_source(write_nli(tmp_path / "nli.tsv", 24, 1))
    recipe = make_recipe(
        {"name": "multi", "losses": {"other": {"name": "sbert"}}}, make_model(), {"nli": source}
    )
    with pytest.raises(ValueError, match=r"objective\.losses are of other and data of nli"):
        train(recipe, tmp_path / "run")
    lines = [
        f"{number / 4}\ta {noun}\tthe {noun}" for number, noun in enumerate(("day", "car", "cat", "sun"))
    ]
    (tmp_path / "low.tsv").write_text("\n".join(["score\ta\tb", *lines]) + "\n")
    columns = {"text1": "a", "text2": "b", "label": "score"}
    recipe = make_recipe(
        {"name": "multi", "losses": {"s": {"name": "sbert", "loss": "regression"}}},
        make_model(),
        {"s": {"path": str(tmp_path / "low.tsv"), "columns": columns}},
    )
    with pytest.raises(ValueError, match=r"data\.s is above 0\.75, .* set objective\.losses\.s\.max_score=1"):
        train(recipe, tmp_path / "low")


def test_several_negatives(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """Cross-entropy over all positives and all k negatives of the batch, in numpy."""
    source = triplets(tmp_path / "t.tsv", 3)
    encoder = SentenceModel.load(ModelOptions(str(make_model()), dropout=0.0, max_length=64))
    objective = SimCse(encoder, SimCseOptions(negatives=3), {})
    batch = batch_of(objective, "t", source, slice(5))
    table = read(source)
    columns = ["anchor", "positive", "negative_1", "negative_2", "negative_3"]
    x = np.stack([encoder.encode(table.texts(name)[:5]) for name in columns]).astype(np.float64)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    logits = x[0] @ np.concatenate(list(x[1:])).T / 0.05
    expected = -(np.diag(logits[:, :5]) - np.log(np.exp(logits).sum(1))).mean()
    assert float(objective(**batch)["loss"]) == pytest.approx(expected, rel=1e-4)
    recipe = make_recipe({"name": "simcse", "negatives": 3}, make_model(), {"t": source}, {"t": source})
    assert train(recipe, tmp_path / "run")["dev"]["t_accuracy"] > 0


def test_prompts_are_trained_with_and_saved(make_model: Callable[..., Path], tmp_path: Path) -> None:
    source = triplets(tmp_path / "t.tsv")
    folder = make_model()
    content = {
        "objective": {"name": "simcse"},
        "model": {
            "path": str(folder),
            "dropout": 0.0,
            "max_length": 64,
            "prompts": {"query": "what is ", "document": "the document "},
            "default_prompt": "query",
        },
        "data": {"t": {**source, "prompts": {"anchor": "what is ", "positive": "the document "}}},
        "training": {"batch_size": 16, "logging_steps": 1, "max_steps": 2, "learning_rate": 1e-9},
    }
    recipe = recipe_of(content, "test", "test")
    train(recipe, tmp_path / "run")
    with Encoder(tmp_path / "run" / "model") as trained, Encoder(folder) as plain:
        assert trained.prompts["query"] == "what is "
        assert trained.default_prompt_name == "query"
        both = trained.encode_document(["a day"]), plain.encode(["the document a day"])
        np.testing.assert_allclose(*both, atol=1e-4)
    model = SentenceModel.load(recipe.model)
    np.testing.assert_allclose(model.encode_query(["a day"]), model.encode(["what is a day"], prompt=""))
    np.testing.assert_allclose(model.encode(["a day"]), model.encode_query(["a day"]))
    # the loss of the first step is that of the prefixed texts
    written = [line.split("\t") for line in (tmp_path / "t.tsv").read_text().splitlines()]
    prefixed = [written[0]] + [[f"what is {a}", f"the document {p}", n] for a, p, n in written[1:]]
    (tmp_path / "prefixed.tsv").write_text("\n".join("\t".join(row) for row in prefixed) + "\n")
    content["data"] = {"t": {"path": str(tmp_path / "prefixed.tsv")}}
    train(recipe_of(content, "test", "test"), tmp_path / "by-hand")
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(tmp_path / "by-hand"), rtol=1e-5)
    content["data"] = {"t": {**content["data"]["t"], "prompts": None}}
    content["evaluation"] = {"dev": {"t": content["data"]["t"]}}
    train(recipe_of(content, "test", "test"), tmp_path / "none")
    np.testing.assert_allclose(losses(tmp_path / "none"), losses(tmp_path / "by-hand"), rtol=1e-5)
    content["data"] = {"t": {**source, "prompts": {"question": "what is "}}}
    with pytest.raises(
        ValueError, match="prompts names 'question'; the fields are anchor, positive, negative"
    ):
        train(recipe_of(content, "test", "test"), tmp_path / "wrong")
    with pytest.raises(ValueError, match="default_prompt 'asked' is none of the prompts"):
        SentenceModel.load(ModelOptions(str(folder), default_prompt="asked", max_length=64))


@pytest.mark.parametrize(
    "option", [{"gradient_checkpointing": True}, {"workers": 2}], ids=lambda option: next(iter(option))
)
def test_options_that_change_no_result(
    option: dict[str, Any], make_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder, source = make_model(), sts_source(write_sts(tmp_path / "s.tsv", 64, 1))
    curves = []
    for name, chosen in (("plain", {}), ("with", option)):
        recipe = make_recipe({"name": "cosent"}, folder, {"s": source}, **chosen)
        train(recipe, tmp_path / name)
        curves.append(losses(tmp_path / name))
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-6)


def test_a_text_has_one_number_whatever_its_prompt(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """Of no text may a batch hold two, or it would be its own negative."""
    table = Table({"anchor": ["a", "b", "c"], "positive": ["b", "c", "d"]})
    encoder = SentenceModel.load(ModelOptions(str(make_model()), max_length=64))
    objective = SimCse(encoder, SimCseOptions(hard_negatives=False), {"t": table})
    folder = encoder.tokenizer_folder
    plain = Examples(objective, {"t": table}, folder, 64, tmp_path)
    prompted = Examples(objective, {"t": table}, folder, 64, tmp_path, prompts={"t": {"anchor": "the day "}})
    assert len(prompted.lengths) == 3
    np.testing.assert_array_equal(plain.text_numbers("t"), [[0, 1], [1, 2], [2, 3]])
    np.testing.assert_array_equal(prompted.text_numbers("t"), plain.text_numbers("t"))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_fork_where_other_processes_do_not(
    method: str, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    """As on macOS, and in Python 3.14: a tokenizer cannot be sent to another process."""
    tables = {"t": read(triplets(tmp_path / "t.tsv"))}
    encoder = SentenceModel.load(ModelOptions(str(make_model()), max_length=64))
    examples = Examples(
        SimCse(encoder, SimCseOptions(), tables), tables, encoder.tokenizer_folder, 64, tmp_path
    )
    sampler = Repeated(TaskSampler(examples.lengths, examples.tasks, 16, "sequential"), 1)
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(method, force=True)
    try:
        found = list(Batches(examples, sampler, 1).loader())
    finally:
        multiprocessing.set_start_method(before, force=True)
    for batch, expected in zip(found, Batches(examples, sampler, 0).loader(), strict=True):
        assert torch.equal(batch["input_ids"], expected["input_ids"])


def test_fp16_scales_the_loss(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """Losses near those of fp32; the loss scale is part of a checkpoint."""
    folder, source = make_model(), sts_source(write_sts(tmp_path / "s.tsv", 160, 1))
    curves = {}
    for precision in ("fp32", "fp16"):
        recipe = make_recipe(
            {"name": "cosent"}, folder, {"s": source}, precision=precision, learning_rate=1e-4
        )
        train(recipe, tmp_path / precision)
        curves[precision] = losses(tmp_path / precision)
    assert len(curves["fp16"]) == 10
    assert curves["fp16"] != curves["fp32"]
    np.testing.assert_allclose(curves["fp16"], curves["fp32"], rtol=0.02)


def test_lora_trains_additions_and_saves_merged_weights(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    folder, source = make_model(), sts_source(write_sts(tmp_path / "s.tsv", 160, 1))
    recipe = make_recipe({"name": "cosent"}, folder, {"s": source}, {"s": source}, epochs=3)
    recipe = recipe_of(
        {
            **recipe.resolved(),
            "model": {"path": str(folder), "dropout": 0.0, "max_length": 64, "lora": {"rank": 4}},
        },
        "test",
        "test",
    )
    model = SentenceModel.load(recipe.model)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    before = model.encode(["a day"])
    np.testing.assert_allclose(
        before, SentenceModel.load(ModelOptions(str(folder), max_length=64)).encode(["a day"]), atol=1e-6
    )
    result = train(recipe, tmp_path / "run")
    history = losses(tmp_path / "run")
    assert np.mean(history[-5:]) < np.mean(history[:5])
    assert not [path for path in (tmp_path / "run" / "model").rglob("*") if "adapter" in path.name]
    from embedkit.training.evaluate import Pair, PairSet, score_pairs

    table = read(source)
    rows = zip(table.texts("text1"), table.texts("text2"), table["label"].tolist(), strict=True)
    found = score_pairs(
        Encoder(tmp_path / "run" / "model"), {"s": PairSet([Pair(*row) for row in rows], "s")}
    )
    assert found.average == pytest.approx(result["dev"]["s_spearman"], abs=0.2)


def test_a_model_is_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a Hub that only records: no network in tests."""
    calls: list[tuple[str, dict[str, Any]]] = []

    class Api:
        def __init__(self, token: str | None = None) -> None:
            assert token == "secret"

        def create_repo(self, name: str, **options: Any) -> None:
            calls.append(("create", {"name": name, **options}))

        def create_branch(self, name: str, **options: Any) -> None:
            calls.append(("branch", options))

        def upload_folder(self, **options: Any) -> Any:
            calls.append(("upload", options))
            return types.SimpleNamespace(commit_url="https://hub/commit/1")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(HfApi=Api))
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        push_to_hub(tmp_path, "me/mine")
    (tmp_path / "config.json").write_text("{}")
    address = push_to_hub(tmp_path, "me/mine", private=True, revision="dev", token="secret")
    assert address == "https://hub/commit/1"
    assert [name for name, _ in calls] == ["create", "branch", "upload"]
    assert calls[0][1] == {"name": "me/mine", "private": True, "exist_ok": True}
    assert calls[2][1]["folder_path"] == tmp_path and calls[2][1]["revision"] == "dev"


def test_tasks_may_have_any_name(make_model: Callable[..., Path], tmp_path: Path) -> None:
    source = nli_source(write_nli(tmp_path / "nli.tsv", 24, 1))
    tasks = {name: {"name": "sbert"} for name in ("train", "a.b")}
    data = dict.fromkeys(tasks, source)
    recipe = make_recipe({"name": "multi", "losses": tasks}, make_model(), data, data, "train_accuracy")
    assert {"train_accuracy", "a.b_accuracy"} <= set(train(recipe, tmp_path / "run")["dev"])


def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "config.json").write_text("{}")

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("of the client")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", fails)
    with pytest.raises(OSError, match=r"me/x: not uploaded \(RuntimeError: of the client\); the model is in"):
        push_to_hub(tmp_path, "me/x")
