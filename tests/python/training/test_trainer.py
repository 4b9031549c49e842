"""The trainer: what it computes, that a stopped run resumes exactly, and that two processes train like one."""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tensorboard")
yaml = pytest.importorskip("yaml")

import in_batch  # noqa: F401  # registers its objective
from embedkit.training import callbacks, loop, run_folder, trainer
from embedkit.training.data.readers import read
from embedkit.training.model import ModelOptions, SentenceModel
from embedkit.training.objectives import objective_class
from embedkit.training.recipe import Recipe, recipe_of
from embedkit.training.trainer import train
from objective_fixtures import logged, losses, make_recipe, nli_source, sts_source, write_nli, write_sts
from safetensors.torch import load_file
from tiny_families import tiny

PROCESS = Path(__file__).with_name("trainer_process.py")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def content(make_model: Callable[..., Path], tmp_path: Path) -> dict[str, Any]:
    """A recipe over NLI pairs, as in a file."""
    return {
        "license": "apache-2.0",
        "description": "A test.",
        "objective": {"name": "sbert"},
        "model": {"path": str(make_model()), "dropout": 0.0, "max_length": 64},
        "data": {"nli": nli_source(write_nli(tmp_path / "train.tsv", 96, 1))},
        "training": {"batch_size": 8, "learning_rate": 1e-3, "logging_steps": 1},
        "evaluation": {"dev": {"nli": nli_source(write_nli(tmp_path / "dev.tsv", 30, 2))}},
    }


def make(content: dict[str, Any], **training: Any) -> Recipe:
    return recipe_of({**content, "training": {**content["training"], **training}}, "test", "test")


def weights(output: Path) -> dict[str, Any]:
    tensors: dict[str, Any] = load_file(output / "model" / "model.safetensors")
    return tensors


def process(arguments: list[str], launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(PROCESS), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def saved_log(output: Path) -> dict[int, float]:
    """Step -> loss, over all participating processes."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    steps = {}
    for file in sorted((output / "tensorboard").iterdir(), key=lambda path: path.stat().st_mtime):
        log = EventAccumulator(str(file))
        log.Reload()
        if "train/loss" in log.Tags()["scalars"]:
            steps.update({event.step: event.value for event in log.Scalars("train/loss")})
    return steps


def test_what_a_run_leaves(
    content: dict[str, Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "embedkit")
    content["evaluation"]["select"] = "nli_accuracy"
    output = tmp_path / "run"
    result = train(make(content, eval_steps=5), output)
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")
    assert {path.name for path in output.iterdir()} == {
        *("cache", "curve.png", "data.json", "lock", "model", "recipe.json", "result.json", "tensorboard")
    }
    assert result == json.loads((output / "result.json").read_text())
    assert result["steps"] == 12
    assert result["examples"] == {"nli": 96}
    assert result["best_step"] in (5, 10, 12)
    assert result["train_seconds"] > 0
    assert (output / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(losses(output)) == 12
    card = (output / "model" / "README.md").read_text()
    for part in ("license: apache-2.0", "A test.", "train.tsv, 96 examples", "dev nli_accuracy", "```yaml"):
        assert part in card, part
    assert yaml.safe_load(card.split("```yaml")[1].split("```")[0]) == make(content, eval_steps=5).resolved()
    assert "12 steps" in caplog.text

    before = (output / "result.json").stat().st_mtime_ns
    assert train(make(content, eval_steps=5), output) == result  # finished: nothing is done again
    assert (output / "result.json").stat().st_mtime_ns == before
    with pytest.raises(FileExistsError, match="another recipe"):
        train(make(content, eval_steps=5, seed=2), output)


def test_texts_in_more_examples_than_batches_are_told(caplog: pytest.LogCaptureFixture) -> None:
    texts = np.array([[0, 1], [0, 2], [0, 0], [3, 4]])
    trainer._tell_crowded("pairs", texts, 4)
    assert not caplog.messages
    trainer._tell_crowded("pairs", texts, 2)
    (message,) = caplog.messages
    assert message.startswith("data.pairs: 1 texts are in more examples than there are batches (2)")


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_that_is_dropped_takes_no_text(
    drop_last: bool,
    make_model: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two of 6 examples have one text: of batches of 4 each holds it once, or the only whole one twice."""
    monkeypatch.setattr(objective_class("in_batch"), "drop_last", drop_last)
    rows = [f"{'the water' if i < 2 else f'a {i}'}\tday {i}\t1" for i in range(6)]
    (tmp_path / "sts.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    source = sts_source(tmp_path / "sts.tsv")
    recipe = make_recipe(
        {"name": "in_batch"}, make_model(), {"sts": source}, batch_size=4, no_duplicates=True
    )
    train(recipe, tmp_path / "run")
    crowded = [
        message for message in caplog.messages if "more examples than there are batches (1)" in message
    ]
    assert len(crowded) == drop_last


def test_the_precision_of_the_launcher_is_refused(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``accelerate launch --mixed_precision bf16`` would compute heads and losses in bf16."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(
        ValueError, match=r"mixed precision is bf16 .* training\.precision .* --mixed_precision no"
    ):
        train(make(content), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert train(make(content, max_steps=1), tmp_path / "run")["precision"] == "fp32"


def test_a_change_far_down_in_the_data_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_bytes(b"x" * 3_000_000)
    before = run_folder.file_digest(path)
    with path.open("r+b") as file:
        file.seek(2_500_000)
        file.write(b"y")
    assert run_folder.file_digest(path) != before


def test_a_run_keeps_to_its_data(content: dict[str, Any], tmp_path: Path) -> None:
    """Another --data is refused, of a finished run and of one that was stopped; moved folders are not."""
    content["data"]["nli"]["path"], content["evaluation"] = "train.tsv", {}
    first, second, moved, run = (tmp_path / name for name in ("first", "second", "moved", "run"))
    for folder, seed in ((first, 1), (second, 2)):
        folder.mkdir()
        write_nli(folder / "train.tsv", 24, seed)
    recipe = make(content)
    result = train(recipe, run, data_root=first)
    first.rename(moved)
    run = run.rename(tmp_path / "run2")
    assert train(recipe, run, data_root=moved) == result
    for stopped in (False, True):
        if stopped:
            (run / "checkpoints" / "checkpoint-1").mkdir(parents=True)
            (run / "checkpoints" / "checkpoint-1" / "trainer_state.json").write_text("{}")
            (run / "result.json").unlink()
        with pytest.raises(
            FileExistsError, match=r"other data: .*second/train\.tsv is not what .*first/train"
        ):
            train(recipe, run, data_root=second)
        with pytest.raises(FileExistsError, match=r"give the same data \(--data\)"):
            train(recipe, run, data_root=tmp_path / "nothing")
    run_folder.claim(run, recipe, moved)
    (moved / "train.tsv").rename(first)  # what a finished run answers needs no data
    (run / "result.json").write_text(json.dumps(result))
    (run / "data.json").write_text(
        (run / "data.json").read_text().replace(str(tmp_path / "first"), str(moved))
    )
    assert train(recipe, run, data_root=moved) == result
    (run / "data.json").unlink()  # of an earlier version
    assert train(recipe, run, data_root=second) == result


def test_the_best_is_kept(content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if it is not the last; the untrained model does not count."""
    scores = iter([99.0, 10.0, 30.0, 20.0, 30.0])  # start, steps 3, 6, 9, 12; those of the kept one are known
    seen: list[tuple[int, dict[str, Any]]] = []

    def dev_scores(run: Any) -> dict[str, float]:
        seen.append(
            (run.trainer.state.global_step, {k: v.clone() for k, v in run.objective.state_dict().items()})
        )
        return {"nli_accuracy": next(scores)}

    monkeypatch.setattr(trainer._Run, "dev_scores", dev_scores)
    content["evaluation"]["select"] = "nli_accuracy"
    result = train(make(content, eval_steps=3), tmp_path / "run")
    assert [step for step, _ in seen] == [0, 3, 6, 9, 12]
    assert result["best_step"] == 6
    for name, tensor in weights(tmp_path / "run").items():
        assert torch.equal(tensor, seen[2][1][f"encoder.backbone.{name}"])


def test_the_last_step_is_evaluated(content: dict[str, Any], tmp_path: Path) -> None:
    history: list[Any] = []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_folder, "write_curve", lambda path, recipe, log: history.extend(log))
        result = train(make(content, max_steps=7, eval_steps=3, logging_steps=5), tmp_path / "run")
    assert [entry["step"] for entry in history if "eval_nli_accuracy" in entry] == [0, 3, 6, 7]
    # logged every 5 steps, and before each checkpoint
    assert [entry["step"] for entry in history if "loss" in entry] == [3, 5, 6, 7]
    last = [entry["eval_nli_accuracy"] for entry in history if "eval_nli_accuracy" in entry][-1]
    assert result["dev"]["nli_accuracy"] == last
    assert result["best_step"] is None


@pytest.mark.parametrize("resumed", [False, True])
def test_early_stopping(
    resumed: bool, content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = {0: 99.0, 1: 10.0, 2: 40.0, 3: 30.0, 4: 40.0, 5: 39.0, 6: 80.0}

    def dev_scores(run: Any) -> dict[str, float]:
        step = run.trainer.state.global_step
        if resumed and step == 4 and not (tmp_path / "stopped").exists():
            (tmp_path / "stopped").touch()
            raise KeyboardInterrupt
        return {"nli_accuracy": course[step]}

    monkeypatch.setattr(trainer._Run, "dev_scores", dev_scores)
    content["evaluation"]["select"] = "nli_accuracy"
    recipe = make(content, eval_steps=1, early_stopping=3)
    if resumed:
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "run")
    result = train(recipe, tmp_path / "run")
    assert (result["steps"], result["best_step"]) == (5, 2)


def test_of_perplexities_the_lowest_is_best(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = {0: 1.0, 1: 5.0, 2: 3.0, 3: 4.0, 4: 8.0, 5: 2.0}
    monkeypatch.setattr(
        trainer._Run,
        "dev_scores",
        lambda run: {"nli_perplexity": course[run.trainer.state.global_step]},
    )
    content["evaluation"]["select"] = "nli_perplexity"
    recipe = make(content, eval_steps=1, early_stopping=2)
    result = train(
        recipe, tmp_path / "evaluator"
    )  # sbert has no perplexity: an evaluator's score, of which more is better
    assert (result["steps"], result["best_step"]) == (3, 1)
    monkeypatch.setattr(objective_class("sbert"), "minimized", ("perplexity",))
    result = train(recipe, tmp_path / "run")
    assert (result["steps"], result["best_step"]) == (4, 2)


def test_test_scores_of_what_encoder_does_not_run_fail_before_training(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "architecture_of", lambda raw: None)
    with pytest.raises(ValueError, match="Encoder, which does not run model_type 'bert'"):
        train(recipe_of({**content, "evaluation": {"test": ["sts"]}}, "test", "test"), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_an_unknown_select_fails_before_training(content: dict[str, Any], tmp_path: Path) -> None:
    content["evaluation"]["select"] = "nli_spearman"
    with pytest.raises(ValueError, match=r"evaluation.select 'nli_spearman' .* nli_accuracy"):
        train(make(content), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("checkpoint-*"))


def test_an_older_checkpoint_that_was_being_removed_does_not_stop_a_run(tmp_path: Path) -> None:
    for step in (9, 10, 20):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text("{}")
        if step != 10:
            (folder / "rng_state.pth").touch()
    assert run_folder.last_checkpoint(tmp_path) == tmp_path / "checkpoint-20"


def test_two_processes_do_not_train_in_one_folder(content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with (
        run_folder.alone(tmp_path / "run"),
        pytest.raises(BlockingIOError, match="another training runs in this folder; wait for it"),
    ):
        train(make(content), tmp_path / "run")


def test_a_worker_that_lives_on_does_not_hold_the_folder(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    over = fork.Event()
    with run_folder.alone(tmp_path):
        worker = fork.Process(target=over.wait)
        worker.start()
    with run_folder.alone(tmp_path):
        over.set()
    worker.join(60)


def test_dev_labels_in_another_order_are_refused(content: dict[str, Any], tmp_path: Path) -> None:
    content["evaluation"]["dev"]["nli"]["labels"] = ["neutral", "entailment", "contradiction"]
    with pytest.raises(ValueError, match=r"evaluation.dev.nli: .* one order"):
        train(make(content), tmp_path / "run")


def stop_in_writing(recipe: Recipe, output: Path) -> None:
    """Leave the second checkpoint as if the run had been killed while writing its last file."""
    original = loop.Loop._save_checkpoint

    def save_checkpoint(self: Any, *arguments: Any, **others: Any) -> None:
        original(self, *arguments, **others)
        if self.state.global_step == 12:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.Loop, "_save_checkpoint", save_checkpoint)
        patch.setattr("transformers.trainer.rotate_checkpoints", lambda *_a, **_k: None, raising=False)
        patch.setattr(loop.Loop, "_rotate_checkpoints", lambda *_a, **_k: None, raising=False)
        train(recipe, output)
    state = output / "checkpoints" / "checkpoint-12" / "trainer_state.json"
    state.write_text(state.read_text()[:40])


@pytest.mark.parametrize("where", ["step", "save"])
def test_a_killed_run_resumes_exactly(where: str, content: dict[str, Any], tmp_path: Path) -> None:
    content["model"]["dropout"] = 0.2
    content["data"]["other"] = nli_source(write_nli(tmp_path / "other.tsv", 52, 5))
    content["training"] |= {"gradient_accumulation": 2, "epochs": 2, "eval_steps": 6, "schedule": "annealed"}
    content["evaluation"]["select"] = "nli_accuracy"
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(content))
    output, whole = tmp_path / "killed", tmp_path / "whole"
    if where == "step":
        killed = process([str(tmp_path / "test.yaml"), str(output), "10"])
        assert killed.returncode == -9, killed.stderr
    else:
        stop_in_writing(make(content), output)
    names = {path.name for path in (output / "checkpoints").iterdir()}
    assert names == ({"checkpoint-6"} if where == "step" else {"checkpoint-6", "checkpoint-12"})

    result = train(make(content), output)
    expected = train(make(content), whole)
    assert result["steps"] == expected["steps"] == 19
    assert result["dev"] == expected["dev"]
    assert result["best_step"] == expected["best_step"]
    found = weights(output)
    for name, tensor in weights(whole).items():
        assert torch.equal(found[name], tensor), name
    assert saved_log(output) == saved_log(whole)
    assert sorted(saved_log(whole)) == list(range(1, 20))


def test_shared_weights_are_in_checkpoints(content: dict[str, Any], tmp_path: Path) -> None:
    """T5's vectors have two names, which safetensors refuses to write as one."""
    (tmp_path / "t5").mkdir()
    content["model"] = {"path": str(tiny(tmp_path / "t5", "t5")), "dropout": 0.0, "max_length": 32}
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    original = loop.Loop._save_checkpoint

    def stop(self: Any, *arguments: Any, **others: Any) -> None:
        original(self, *arguments, **others)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.Loop, "_save_checkpoint", stop)
        train(make(content, eval_steps=6), stopped)
    result = train(make(content, eval_steps=6), stopped)
    assert result["dev"] == train(make(content, eval_steps=6), whole)["dev"]
    found = weights(stopped)
    for name, tensor in weights(whole).items():
        assert torch.equal(found[name], tensor), name


def test_a_checkpoint_that_cannot_be_written_is_named(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")

    monkeypatch.setattr("torch.save", full)
    with pytest.raises(OSError, match=r"run/checkpoints: the checkpoint of step 6 could .*; free space"):
        train(make(content, eval_steps=6), tmp_path / "run")


@pytest.mark.parametrize("changed", ["p.tsv", "wordnet/index.tsv.gz"])
def test_what_augments_a_run_is_data_of_it(
    changed: str, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    teacher = str(make_model())
    (tmp_path / "wordnet").mkdir()
    (tmp_path / "wordnet" / "index.tsv.gz").write_bytes(b"of one version")
    (tmp_path / "texts.tsv").write_text("text\n" + "\n".join(f"a day {n}" for n in range(12)) + "\n")
    (tmp_path / "p.tsv").write_text("text\tparaphrase\na day 1\tthe day\n")
    recipe = recipe_of(
        {
            "objective": {
                "name": "hpd",
                "teachers": [{"path": teacher}],
                "augment": {"paraphrases": "p.tsv", "wordnet": 0.2},
            },
            "model": {"path": teacher, "max_length": 32},
            "data": {"t": {"path": "texts.tsv", "columns": {"text": "text"}}},
            "training": {"batch_size": 4, "max_steps": 2},
        },
        "test",
        "test",
    )
    (tmp_path / "run").mkdir()
    run_folder.claim(tmp_path / "run", recipe, tmp_path)
    (tmp_path / "run" / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "checkpoint-1" / "trainer_state.json").write_text("{}")
    with (tmp_path / changed).open("a") as file:
        file.write("a day 2\tthat day\n")
    with pytest.raises(FileExistsError, match=f"other data: .*{re.escape(changed)}"):
        run_folder.claim(tmp_path / "run", recipe, tmp_path)


@pytest.mark.parametrize(
    ("name", "failed_before"), [("model", False), ("model", True), ("checkpoints", False)]
)
def test_a_folder_that_no_run_wrote_is_not_replaced(
    content: dict[str, Any], tmp_path: Path, name: str, failed_before: bool
) -> None:
    """``-o .`` beside the model to start from."""
    output, base = tmp_path / "here", content["model"]["path"]
    content["model"]["path"] = str(output / name)
    if failed_before:
        with pytest.raises(FileNotFoundError, match="here/model"):
            train(make(content), output)
    shutil.copytree(base, output / name)
    before = {path.name: path.read_bytes() for path in (output / name).glob("*.*")}
    with pytest.raises(
        FileExistsError, match=f"here/{name} exists and is not of a run in .*choose another output"
    ):
        train(make(content), output)
    assert {path.name: path.read_bytes() for path in (output / name).glob("*.*")} == before


def test_a_run_killed_in_its_first_checkpoint_has_not_begun(content: dict[str, Any], tmp_path: Path) -> None:
    """Nothing of it is left to go on from, so the folder takes another recipe."""
    (tmp_path / "checkpoints" / "checkpoint-6").mkdir(parents=True)
    (tmp_path / "recipe.json").write_text("{}")
    assert train(make(content), tmp_path)["steps"] == 12


def test_a_run_killed_before_its_result_is_finished(content: dict[str, Any], tmp_path: Path) -> None:
    recipe = make(content, epochs=0)  # without checkpoints
    result = train(recipe, tmp_path)
    (tmp_path / "result.json").rename(tmp_path / "result.json.new")
    assert train(recipe, tmp_path)["steps"] == result["steps"] == 0
    assert (tmp_path / "result.json").is_file() and not (tmp_path / "result.json.new").exists()


def test_a_finished_run_without_its_model_is_told(content: dict[str, Any], tmp_path: Path) -> None:
    recipe = make(content, epochs=0)
    train(recipe, tmp_path)
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(
        FileNotFoundError, match=r"finished, but its model/ is gone; .*remove result\.json to make it"
    ):
        train(recipe, tmp_path)
    (tmp_path / "result.json").unlink()
    train(recipe, tmp_path)
    assert (tmp_path / "model" / "modules.json").is_file()


def test_a_run_stopped_after_its_last_step_is_finished(content: dict[str, Any], tmp_path: Path) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    for select in (None, "nli_accuracy"):
        content["evaluation"]["select"] = select
        output, recipe = tmp_path / f"run-{select}", make(content, eval_steps=4)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(run_folder, "write_card", stop)
            train(recipe, output)
        result = train(recipe, output)
        assert result["steps"] == 12
        expected = train(recipe, tmp_path / f"whole-{select}")
        assert result["dev"] == expected["dev"]
        for name, tensor in weights(tmp_path / f"whole-{select}").items():
            assert torch.equal(weights(output)[name], tensor), name


@pytest.mark.parametrize(
    ("options", "course"),
    [
        ({"eval_steps": 3}, ({0: 1, 3: 90, 6: 30, 9: 20, 12: 10}, 12)),  # the best is early
        ({"eval_steps": 3, "max_steps": 7, "scheduler": "constant"}, ({0: 1, 3: 5, 6: 9, 7: 7}, 7)),
        ({"eval_steps": 2, "early_stopping": 2}, ({0: 99, 2: 40, 4: math.nan, 6: 20, 8: 80}, 6)),
    ],
)
def test_a_run_that_is_over_is_trained_no_further(
    options: dict[str, Any],
    course: tuple[dict[int, float], int],
    content: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed after its last checkpoint: the best one may be an earlier, and early stopping had decided."""
    scores, steps = course

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a step was trained again")

    monkeypatch.setattr(
        trainer._Run, "dev_scores", lambda run: {"nli_accuracy": scores[run.trainer.state.global_step]}
    )
    content["evaluation"]["select"] = "nli_accuracy"
    recipe = make(content, **options)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_folder, "write_card", stop)
        train(recipe, tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Loop, "training_step", refuse)
        result = train(recipe, tmp_path / "run")
    expected = train(recipe, tmp_path / "whole")
    assert result["steps"] == expected["steps"] == steps
    assert (
        result["best_step"]
        == expected["best_step"]
        == max(
            (step for step in scores if 0 < step <= steps and not math.isnan(scores[step])),
            key=lambda s: scores[s],
        )
    )
    assert result["train_seconds"] > 0
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(weights(tmp_path / "run")[name], tensor), name


def test_two_processes_train_like_one(
    content: dict[str, Any], tmp_path: Path, make_model: Callable[..., Path]
) -> None:
    """For a loss of single pairs, and for two that compare with the texts of the other process."""
    recipes = {}
    content["training"] |= {"batch_size": 16, "epochs": 2}
    content["evaluation"]["select"] = "nli_accuracy"
    recipes["sbert"] = content
    sts = {"sts": sts_source(write_sts(tmp_path / "sts.tsv", 64, 3))}
    recipes["in_batch"] = {
        **content,
        "objective": {"name": "in_batch"},
        "data": sts,
        "evaluation": {"dev": sts, "select": "sts_cosine"},
    }
    texts = {"sts": {"path": sts["sts"]["path"], "columns": {"left": "sentence1", "right": "sentence2"}}}
    recipes["hpd"] = {
        **content,
        "objective": {
            "name": "hpd",
            "teachers": [{"path": str(make_model(seed=3))}],
            "similarity": 1.0,
            "projective": 0.0,
        },
        "data": texts,
        "evaluation": {},
    }
    for name, recipe in recipes.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    files = ",".join(str(tmp_path / f"{name}.yaml") for name in recipes)
    done = process([files, str(tmp_path / "two")], launcher)
    assert done.returncode == 0, done.stderr
    for name, recipe in recipes.items():
        one = train(make(recipe), tmp_path / "one" / name)
        two = json.loads((tmp_path / "two" / name / "result.json").read_text())
        assert (two["steps"], two["best_step"]) == (one["steps"], one["best_step"])
        for key, score in one["dev"].items():
            assert two["dev"][key] == pytest.approx(score, abs=1e-4)
        expected, found = saved_log(tmp_path / "one" / name), saved_log(tmp_path / "two" / name)
        assert list(found) == list(expected)
        np.testing.assert_allclose(list(found.values()), list(expected.values()), atol=1e-5)
        assert len(list((tmp_path / "two" / name / "tensorboard").iterdir())) == 1  # of rank 0 alone


def test_accumulated_batches_equal_one(content: dict[str, Any], tmp_path: Path) -> None:
    def collect(name: str, **training: Any) -> list[float]:
        # of a single step, a warmup would have no learning rate
        train(make(content, max_steps=1, learning_rate=1e-3, warmup_ratio=0.0, **training), tmp_path / name)
        return [*logged(tmp_path / name, "loss"), *logged(tmp_path / name, "grad_norm")]

    # 8 examples, so that both see the same ones in their only step
    content["data"]["nli"] = nli_source(write_nli(tmp_path / "eight.tsv", 8, 1))
    one, two = collect("one", batch_size=8), collect("two", batch_size=4, gradient_accumulation=2)
    assert one == pytest.approx(two, rel=1e-4)
    for key, tensor in weights(tmp_path / "one").items():
        if key.endswith("key.bias"):  # its gradient is 0: each query adds the same to all of its products
            continue
        # Adam's first step is lr · g / (|g| + eps): below eps, g does not count as a gradient
        close = (weights(tmp_path / "two")[key] - tensor).abs() < 1e-5
        assert close.float().mean() > 0.98, key


def batch_of(objective: Any, table: Any, folder: Path) -> Any:
    from embedkit.training.dataset import Examples

    examples = Examples(objective, {"sts": table}, objective.encoder.tokenizer_folder, 64, folder)
    return examples.batch(list(range(len(table))))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradcache_has_the_gradients_of_the_whole_batch(
    dropout: float, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    table = read(sts_source(write_sts(tmp_path / "sts.tsv", 13, 3)))
    kind = objective_class("in_batch")
    encoder = SentenceModel.load(ModelOptions(str(make_model()), max_length=64, dropout=dropout))
    objective = kind(encoder, kind.Options(), {"sts": table}).train()
    batch = batch_of(objective, table, tmp_path)

    def gradients() -> tuple[float, list[Any]]:
        objective.zero_grad()
        torch.manual_seed(0)
        loss = objective(**batch)["loss"]
        loss.backward()
        return loss.item(), [parameter.grad.clone() for parameter in objective.parameters()]

    # with dropout, the same mini-batches without recomputation draw the same masks
    pieces = []
    if dropout:
        objective.mini_batch_size = 4
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("torch.utils.checkpoint.checkpoint", lambda f, *a, use_reentrant: f(*a))
            pieces = [gradients()]
    else:
        pieces = [gradients()]
    objective.mini_batch_size = 4
    calls = []
    hook = encoder.register_forward_hook(lambda _m, args, _o: calls.append(len(args[1]) - 1))
    loss, found = gradients()
    hook.remove()
    assert calls[:4] == [8, 8, 8, 2]
    assert math.isfinite(loss)
    assert loss == pytest.approx(pieces[0][0], abs=1e-6)
    for one, other in zip(found, pieces[0][1], strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_auto_precision_is_what_the_processor_is_made_for(
    content: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = [("fp32", "fp32"), ("bf16", "bf16"), ("auto", None)]
    for has, auto in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(
            torch.cpu, "get_capabilities", lambda has=has: {"avx512_bf16": has}, raising=False
        )
        for precision, runs in asked:
            caplog.clear()
            result = train(make(content, precision=precision, max_steps=1), tmp_path / f"{precision}-{has}")
            assert result["precision"] == (runs or auto)
            assert ("has no instruction for it" in caplog.text) == (precision == "bf16" and not has)


def test_bf16_trains(content: dict[str, Any], tmp_path: Path) -> None:
    train(make(content, precision="bf16", max_steps=3), tmp_path / "run")
    train(make(content, max_steps=3), tmp_path / "fp32")
    found, expected = losses(tmp_path / "run"), losses(tmp_path / "fp32")
    assert found != expected
    assert found == pytest.approx(expected, abs=0.05)
    assert all(tensor.dtype == torch.float32 for tensor in weights(tmp_path / "run").values())


@pytest.mark.parametrize("logging_steps", [1, 50])
def test_a_nan_loss_stops_the_run(
    logging_steps: int, content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = objective_class("sbert")
    original = kind.forward
    calls = []

    def forward(self: Any, **batch: Any) -> Any:
        outputs = original(self, **batch)
        if torch.is_grad_enabled():
            calls.append(1)
            outputs["loss"] = outputs["loss"] * (math.nan if len(calls) == 5 else 1)
        return outputs

    monkeypatch.setattr(kind, "forward", forward)
    steps = "5 to 5" if logging_steps == 1 else "4 to 6"
    with pytest.raises(FloatingPointError, match=f"steps {steps} is nan; lower training.learning_rate"):
        train(make(content, logging_steps=logging_steps, eval_steps=3), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["checkpoint-3"]


def test_another_number_of_processes_is_refused(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run" / "checkpoints" / "checkpoint-3"
    folder.mkdir(parents=True)
    recipe = make(content)
    (tmp_path / "run" / "recipe.json").write_text(
        json.dumps(recipe.resolved(), indent=2, sort_keys=True, default=str) + "\n"
    )
    (folder / "trainer_state.json").write_text("{}")
    for rank in range(4):
        (folder / f"rng_state_{rank}.pth").touch()
    with pytest.raises(ValueError, match="is not of 1 process: its run had another number of processes"):
        train(recipe, tmp_path / "run")
    monkeypatch.setattr(run_folder, "world_size", lambda: 2)  # whose states are there
    with pytest.raises(ValueError, match="is not of 2 processes: its run had another number of processes"):
        run_folder.last_checkpoint(folder.parent)
    monkeypatch.setattr(run_folder, "world_size", lambda: 4)
    assert run_folder.last_checkpoint(folder.parent) == folder


def test_texts_that_are_cut_are_told(
    content: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content["model"]["max_length"] = 4
    content["evaluation"] = {}
    train(make(content, epochs=0), tmp_path / "run")
    assert re.search(r"\d+ texts are longer than max_length=4 tokens and are cut", caplog.text)
    caplog.clear()
    content["model"]["max_length"] = 64
    train(make(content, epochs=0), tmp_path / "whole")
    assert "are cut" not in caplog.text


def test_prompts_are_refused_where_the_model_leaves_them_out(
    content: dict[str, Any], tmp_path: Path, make_model: Callable[..., Path]
) -> None:
    content["model"]["path"] = str(make_model(include_prompt=False))
    content["evaluation"] = {}
    train(make(content, epochs=0), tmp_path / "plain")
    content["data"]["nli"]["prompts"] = {"text1": "query: "}
    with pytest.raises(ValueError, match=r"leaves prompts out of its pooling.* remove the prompts"):
        train(make(content, epochs=0), tmp_path / "prompted")


def test_the_seconds_before_a_resume_count(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 103.0, 104.5])
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: next(times)))
    log = [{"train_seconds": 2.0}, {"train_seconds": 7.0}, {"loss": 1.0, "step": 2}]
    state = SimpleNamespace(log_history=log, global_step=2)
    clock = callbacks.Clock()
    clock.on_train_begin(None, state, None)
    clock.on_log(None, state, None, {"loss": 1.0})
    assert log[-1]["train_seconds"] == 10.0
    clock.on_train_end(None, state, None)
    assert clock.seconds == 11.5
