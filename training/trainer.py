"""Trains a recipe: ``transformers.Trainer`` with packed batches, dev scores of the objective, and a model folder."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers.trainer_callback import TrainerCallback, TrainerState

from .. import Encoder
from ..files import expanded
from ..model_folder.families import architecture_of
from ..model_folder.json_file import read_json
from .callbacks import Clock, EarlyStopping, Milestones, Progress
from .data.checks import check
from .data.holdout import hold_out, leave_out
from .data.readers import Table, read, root_folder
from .data.sampler import TaskRows, TaskSampler, balanced_weights
from .data.texts import Chain
from .dataset import Examples, Repeated
from .dev import DevSets, Evaluator, add_scores
from .loop import Batches, Loop, check_reports, optimizer, trainer_arguments
from .model import ModelOptions, quiet
from .objectives import objective_class
from .objectives.base import Arrays, Objective
from .postprocess import MapStep, fit_map
from .precision import check_launcher, precision_for
from .processes import process_rank, world_size
from .recipe import Recipe
from .run_folder import alone, claim, facts, finish, finished, last_checkpoint
from .scores import evaluation_pairs
from .whole_file import write_text

__all__ = ["train"]

_LOG = logging.getLogger("embedkit")
_AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def train(
    recipe: Recipe,
    output: str | os.PathLike[str],
    *,
    data_root: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    evaluators: Mapping[str, Evaluator] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    report_to: Sequence[str] = (),
) -> dict[str, Any]:
    """Train a recipe, or resume an earlier call that was stopped in the same folder.

    Args:
        recipe: from `load_recipe`, or `recipe_of` a mapping.
        output: receives ``model/`` (the model folder), ``result.json`` (scores, data, seconds), ``curve.png``,
            ``tensorboard/`` and, during training, ``checkpoints/``.
        data_root: folder to which the recipe's data paths are relative; None for EMBEDKIT_DATA or the current folder.
        cache: folder of teachers' outputs, which runs can share; None for ``output/cache``.
        evaluators: name -> function of the encoder in training, which returns a dev score, or several by name; the
            recipe's ``evaluation.select`` and early stopping take them as they take its own (``name``, ``name_key``).
        callbacks: of transformers, called after embedkit's own.
        report_to: integrations of transformers (``wandb``, ``mlflow``, ...), beside TensorBoard.

    Returns:
        The content of ``result.json``.

    Raises:
        BlockingIOError: another training runs in ``output``.
        FileExistsError: ``output`` holds the run of another recipe or of other data, or a ``model/`` or
            ``checkpoints/`` that no run wrote there.
        FileNotFoundError: the run is finished, but its ``model/`` is gone.
        FileNotFoundError, ValueError: the data, the model or an option is missing or wrong; the message names it.
    """
    if recipe.postprocess is not None and evaluators:
        raise ValueError("evaluators select checkpoints, and a postprocess step has none; remove them")
    check_launcher()
    check_reports(report_to)
    output = expanded(output).absolute()  # checkpoints refer to each other by path
    with alone(output):
        return _train(
            recipe,
            output=output,
            root=root_folder(data_root),
            cache=None if cache is None else expanded(cache),
            evaluators=evaluators,
            callbacks=callbacks,
            report_to=report_to,
        )


def _train(
    recipe: Recipe,
    *,
    output: Path,
    root: Path,
    cache: Path | None,
    evaluators: Mapping[str, Evaluator] | None,
    callbacks: Sequence[TrainerCallback],
    report_to: Sequence[str],
) -> dict[str, Any]:
    """`train` in a folder of its own."""
    claim(output, recipe, root)
    done = finished(output)
    if done is not None:
        if process_rank() == 0:  # a kill may have left them
            shutil.rmtree(output / "checkpoints", ignore_errors=True)
        return done if process_rank() == 0 else {}
    transformers.set_seed(recipe.training.seed)
    cache = cache or output / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    tables = {task: read(source, root=root, folder=cache) for task, source in recipe.data.items()}
    dev = {task: read(source, root=root, folder=cache) for task, source in recipe.evaluation.dev.items()}
    if recipe.evaluation.holdout and (both := sorted(tables.keys() & dev.keys())):
        raise ValueError(f"evaluation.holdout makes a dev set of {both[0]}; remove evaluation.dev.{both[0]}")
    _check_dev(tables, dev)
    if recipe.postprocess is not None:
        if process_rank() != 0:
            return {}
        return _postprocess(recipe, recipe.postprocess, tables, output=output, root=root)
    kind = objective_class(recipe.objective_name)
    encoder = kind.load_encoder(recipe.model, recipe.objective, tables)
    if recipe.evaluation.holdout:
        with torch.random.fork_rng(devices=[]):  # of an objective that only names its fields
            fields_of = kind(encoder, recipe.objective, tables).fields_of
        tables, held = hold_out(tables, recipe.evaluation.holdout, fields_of)
        dev |= held
    whole = kind.expand(recipe.objective, tables, root, cache)
    if recipe.evaluation.holdout:  # a copy of a text may be one that is held out
        grown = {task: table for task, table in whole.items() if table is not tables.get(task)}
        whole |= leave_out(grown, held, fields_of)
    tables = whole
    if (recipe.evaluation.of_vectors or evaluators) and not hasattr(encoder, "encode"):
        raise ValueError(
            f"evaluation.sts_dev and evaluation.test score sentence vectors, but {recipe.objective_name} trains a "
            "model without sentence vectors; remove them, and evaluation.pairs, evaluation.retrieval and evaluators"
        )
    if recipe.evaluation.test:  # `Encoder` computes these scores in the end: say now if it cannot
        raw = read_json(encoder.tokenizer_folder / "config.json")
        if architecture_of(raw) is None:
            raise ValueError(
                f"evaluation.test is computed by Encoder, which does not run model_type {raw.get('model_type')!r}; "
                "remove it"
            )
    sets = DevSets(recipe.evaluation, root, evaluators)
    if recipe.training.mini_batch_size is not None and not hasattr(encoder, "encode"):
        raise ValueError(
            f"training.mini_batch_size is for sentence vectors, but {recipe.objective_name} trains a model without "
            "sentence vectors; use a smaller batch_size and gradient_accumulation"
        )
    objective = kind(encoder, recipe.objective, tables)
    if objective.similarity is not None:
        encoder.settings = dataclasses.replace(encoder.settings, similarity_fn_name=objective.similarity)
    for section, given in (("data", tables), ("evaluation.dev", dev)):
        for task, table in given.items():
            objective.check(f"{section}.{task}", task, table)
    objective.check_scale(tables)
    checks = _check_data(
        recipe, objective.fields_of, tables, dev, root=root, sets=sets
    )  # before teachers run for hours
    with_all = _Given(tables, dev, sets, callbacks, report_to)
    run = _Run(recipe, objective, with_all, output=output, cache=cache)
    history = run.train()
    if not run.is_main:
        return {}
    result = facts(recipe, tables, checks, run.device) | {
        "precision": run.precision,
        **_dev_pairs(sets),
        "steps": run.trainer.state.global_step,
        "train_seconds": round(run.clock.seconds, 2),
        "best_step": run.best_step,
        "dev": run.kept_scores(history),
        "majority": run.majority,
        "curve": _curve(history),
    }
    finish(recipe, objective.save, result, history, output=output, root=root)
    return result


def _postprocess(
    recipe: Recipe, step: MapStep, tables: Mapping[str, Table], *, output: Path, root: Path
) -> dict[str, Any]:
    """Apply the post-processing step of a recipe, then score and write the model."""
    sets = DevSets(recipe.evaluation, root)
    checks = _check_data(recipe, lambda task, table: ("text",), tables, {}, root=root, sets=sets)
    prompts = [(source.get("prompts") or {}).get("text", "") for source in recipe.data.values()]
    texts = Chain((table.texts("text") for table in tables.values()), prompts)
    if recipe.model != ModelOptions(path=recipe.model.path):
        raise ValueError("postprocess linear_map takes a model folder as it is; set only model.path")
    with tempfile.TemporaryDirectory(prefix="embedkit-") as scratch:
        folder = Path(scratch) / "model"
        # texts that have their prompts already are read without the model's own
        fit_map(recipe.model.path, texts, folder, step, prompt="" if any(prompts) else None)
        result = facts(recipe, tables, checks, "cpu") | {
            **_dev_pairs(sets),
            "steps": 0,
            "train_seconds": 0.0,
            "best_step": None,
            "dev": sets.scores(Encoder(folder, threads=torch.get_num_threads())),
            "majority": {},
        }
        copy = functools.partial(shutil.copytree, folder, dirs_exist_ok=True)
        finish(recipe, copy, result, [], output=output, root=root)
    return result


def _dev_pairs(sets: DevSets) -> dict[str, int]:
    """For ``result.json``: the number of STS-B dev pairs that are in no test set, by which the best is selected."""
    if sets.sts_pairs is None:
        return {}
    _LOG.info("STS-B dev: %s pairs are in no STS test set", f"{sets.sts_pairs:,}")
    return {"sts_dev_pairs": sets.sts_pairs}


def _scores_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The dev scores of an entry of the log; empty if it has none."""
    return {key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_")}


def _curve(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    """The dev scores of each evaluation, with its step."""
    return [
        {"step": entry["step"]}
        | {name: round(value, 4) for name, value in scores.items() if isinstance(value, int | float)}
        for entry in history
        if (scores := _scores_of(entry))
    ]


def _tell_crowded(task: str, texts: npt.NDArray[np.integer[Any]], batches: int) -> None:
    """Warn where ``training.no_duplicates`` cannot be kept in the ``batches`` of a pass."""
    rows = np.sort(texts, 1)
    first = np.ones(rows.shape, bool)
    first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    crowded = int((np.bincount(rows[first]) > batches).sum())
    if crowded:
        _LOG.warning(
            "data.%s: %s texts are in more examples than there are batches (%s), so that some batch holds them twice, "
            "whatever no_duplicates says; use a smaller training.batch_size",
            task,
            f"{crowded:,}",
            f"{batches:,}",
        )


@dataclass(frozen=True)
class _Given:
    """The data and the listeners of a training."""

    tables: Mapping[str, Table]
    dev: Mapping[str, Table]
    sets: DevSets
    callbacks: Sequence[TrainerCallback]
    report_to: Sequence[str]


class _Run:
    """The state of one training."""

    def __init__(
        self, recipe: Recipe, objective: Objective, given: _Given, *, output: Path, cache: Path
    ) -> None:
        self.recipe, self.objective, self.output = recipe, objective, output
        self._dev_tables, self._sets = given.dev, given.sets
        options, length = recipe.training, recipe.model.max_length
        folder = objective.encoder.tokenizer_folder
        prompts = {task: source.get("prompts") or {} for task, source in recipe.data.items()}
        dev_prompts = {  # a dev set without prompts of its own has those of the data of its name
            task: source["prompts"]
            for task, source in recipe.evaluation.dev.items()
            if source.get("prompts") is not None
        }
        if any(prompts.values()) and not getattr(objective.encoder, "include_prompt", True):
            raise ValueError(
                f"{recipe.model.path} leaves prompts out of its pooling, which training does not; remove the prompts"
            )
        self.examples = Examples(objective, given.tables, folder, length, cache, prompts=prompts)
        self.dev = None
        if given.dev:
            self.dev = Examples(
                objective, given.dev, folder, length, cache, prompts={**prompts, **dev_prompts}
            )
        objective.prepared()
        objective.mini_batch_size = options.mini_batch_size
        if options.gradient_checkpointing:
            objective.encoder.backbone.gradient_checkpointing_enable({"use_reentrant": False})
        self.sampler, steps = self._sampler(given.tables)
        self._evaluated = bool(given.dev) or bool(given.sets)
        if recipe.evaluation.select is not None and not self._evaluated:
            raise ValueError("evaluation.select names a dev score, but there is none: set sts_dev or dev")
        minimized = {f"{task}_{name}" for task in given.dev for name in objective.minimized}
        arguments = trainer_arguments(
            options,
            recipe.evaluation,
            output,
            steps,
            evaluated=self._evaluated,
            minimized=minimized,
            report_to=given.report_to,
        )
        self.precision = precision_for(arguments.device, options.precision)
        objective.encoder.autocast = _AUTOCAST[self.precision]
        self.clock = Clock()
        callbacks = [self.clock, Progress(objective), Milestones(self._evaluated)]
        self.stopping = None
        if options.early_stopping is not None:
            self.stopping = EarlyStopping(options.early_stopping)
            callbacks.append(self.stopping)
        self.trainer = Loop(
            objective,
            arguments,
            Batches(self.examples, self.sampler, options.workers),
            self.dev_scores,
            select=recipe.evaluation.select,
            callbacks=[*callbacks, *given.callbacks],
            optimizer=optimizer(objective, options, arguments.device) if self.trained else None,
            tensorboard=output / "tensorboard",
        )
        if self.precision == "fp16":
            self.trainer.scale_losses()
        _LOG.info(
            "%s: %d steps in %s, %s examples",
            recipe.name,
            steps,
            self.precision,
            {name: len(table) for name, table in given.tables.items()},
        )
        for task, accuracy in self.majority.items():
            _LOG.info("%s (dev): the majority class has an accuracy of %.1f", task, accuracy)
        if self.examples.truncated:
            _LOG.warning(
                "%d texts are longer than max_length=%d tokens and are cut", self.examples.truncated, length
            )

    @property
    def majority(self) -> dict[str, float]:
        """The accuracy (x 100) of always predicting the most frequent class, for each dev set with classes."""
        return {
            task: 100 * float(np.bincount(table["label"]).max()) / len(table)
            for task, table in self._dev_tables.items()
            if table.labels and "label" in table.names
        }

    @property
    def trained(self) -> bool:
        """Whether anything is trained: with 0 epochs the model stays as it is."""
        return self.recipe.training.epochs > 0 or self.recipe.training.max_steps > 0

    @property
    def is_main(self) -> bool:
        return bool(self.trainer.is_world_process_zero())

    @property
    def device(self) -> str:
        return str(self.trainer.args.device)

    @property
    def best_step(self) -> int | None:
        """The step whose weights are kept; None for the last."""
        best = self.trainer.state.best_model_checkpoint
        return int(best.rpartition("-")[2]) if best else None

    def _sampler(self, tables: Mapping[str, Table]) -> tuple[Repeated, int]:
        """The batches of this process, and the optimizer steps of the run."""
        options = self.recipe.training
        epochs = max(1, math.ceil(options.epochs))
        rows = {task: self._rows(task, table) for task, table in tables.items()}
        one = TaskSampler(
            self.examples.lengths,
            rows,
            options.batch_size,
            options.schedule,  # type: ignore[arg-type]  # checked by TrainingOptions
            epochs=epochs,
            seed=options.seed,
            drop_last=self.objective.drop_last,
            rank=process_rank(),
            world_size=world_size(),
            batch_tokens=options.batch_tokens,
        )
        for task, drawn in rows.items():
            if drawn.texts is not None and drawn.weights is None and process_rank() == 0:
                _tell_crowded(task, drawn.texts, one.batches[task])
        steps = math.ceil(options.epochs * len(one) / options.gradient_accumulation)
        if options.max_steps > 0:
            steps = options.max_steps
            one.epochs = epochs = math.ceil(steps * options.gradient_accumulation / len(one))
            if options.schedule == "annealed" and epochs == 1:
                raise ValueError(
                    f"training.schedule annealed needs more than one epoch, and training.max_steps {steps} is at most "
                    "one; use proportional"
                )
        return Repeated(one, epochs), max(1, steps)

    def _rows(self, task: str, table: Table) -> TaskRows:
        """How the examples of a task are drawn."""
        span = self.examples.tasks[task]
        texts = self.examples.text_numbers(task) if self.recipe.training.no_duplicates else None
        fraction = self.recipe.data[task].get("weighted_fraction")
        if fraction is None:
            return TaskRows(np.arange(span.start, span.stop), texts=texts)
        weights = balanced_weights(table["label"])
        draws = max(1, round(fraction * len(table)))
        return TaskRows(np.arange(span.start, span.stop), weights, draws, texts)

    def train(self) -> list[dict[str, Any]]:
        """Train to the end, from the last complete checkpoint if there is one; returns the log."""
        if not self.trained:
            return []
        last = last_checkpoint(self.output / "checkpoints")
        if last is not None:
            _name_best(last)
            if self._restored(last):
                return list(self.trainer.state.log_history)
        # scores the untrained model and checks that evaluation.select is a dev score
        self.trainer.args.eval_on_start = last is None and self._evaluated
        if last is not None:
            _LOG.info("resuming from step %s", last.name.rpartition("-")[2])
        with quiet():  # silences Trainer's messages on checkpoints, not its progress bar
            self.trainer.train(resume_from_checkpoint=None if last is None else str(last))
        history: list[dict[str, Any]] = self.trainer.state.log_history
        return history

    def _restored(self, last: Path) -> bool:
        """Whether the training was over at this checkpoint; then its state and the weights to keep are loaded."""
        state = TrainerState.load_from_json(str(last / "trainer_state.json"))
        stopped = self.stopping is not None and self.stopping.is_over(self.trainer.args, state)
        if state.global_step < self.trainer.args.max_steps and not stopped:
            return False
        self.trainer.state = state
        self.clock.restore(state)
        self.trainer._load_from_checkpoint(state.best_model_checkpoint or str(last))
        return True

    def kept_scores(self, history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The dev scores of the weights that are kept: those of their step in the log, computed if it has none."""
        step = self.trainer.state.global_step if self.best_step is None else self.best_step
        for entry in reversed(history):
            if (scores := _scores_of(entry)) and entry["step"] == step:
                return scores
        return self.dev_scores()

    def dev_scores(self) -> dict[str, float]:
        """Scores of the objective's tasks, and those that do not depend on it."""
        scores: dict[str, float] = {}
        if self.dev is not None:
            for task in self.dev.tasks:
                try:
                    scored = self.objective.score(task, self._outputs(task), self.dev.arrays(task))
                except ValueError as error:
                    raise ValueError(f"evaluation.dev.{task}: {error}") from None
                if not scored:
                    raise ValueError(
                        f"evaluation.dev.{task} (or evaluation.holdout): {self.recipe.objective_name} with these "
                        "options has no score of its own; remove it, and score with sts_dev, pairs or retrieval"
                    )
                add_scores(scores, {f"{task}_{name}": value for name, value in scored.items()})
            add_scores(scores, self.objective.summary(scores))
        add_scores(scores, self._sets.scores(self.objective.encoder))
        return scores

    def _outputs(self, task: str) -> Arrays:
        """The objective's outputs for all examples of a dev task, in order."""
        assert self.dev is not None
        span = self.dev.tasks[task]
        order = span.start + np.argsort(self.dev.lengths[span.start : span.stop], kind="stable")
        size, parts = 64, []
        self.objective.eval()
        with torch.inference_mode():
            for start in range(0, len(order), size):
                batch = self.dev.batch(order[start : start + size].tolist())
                # a dev task uses the head of the training task of the same name
                batch["task"] = torch.tensor(
                    self.objective.tasks.index(task) if task in self.objective.tasks else 0
                )
                outputs = self.objective(**{name: value.to(self.device) for name, value in batch.items()})
                parts.append({k: v.float().cpu().numpy() for k, v in outputs.items() if k != "loss"})
        self.objective.train()
        back = np.argsort(order, kind="stable")
        return {name: np.concatenate([part[name] for part in parts])[back] for name in parts[0]}


def _name_best(last: Path) -> None:
    """Let a checkpoint name the best one where it is now, which Trainer would not find in a run that was moved."""
    file = last / "trainer_state.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    best = state["best_model_checkpoint"]
    if best is not None and Path(best).parent != last.parent:
        state["best_model_checkpoint"] = str(last.with_name(Path(best).name))
        write_text(file, json.dumps(state, indent=2, sort_keys=True) + "\n")


def _check_dev(tables: Mapping[str, Table], dev: Mapping[str, Table]) -> None:
    """Refuse a dev set whose class ids differ from those of the training task of the same name."""
    for name in dev.keys() & tables.keys():
        found, trained = dev[name].labels, tables[name].labels
        if len(trained) > 1 and any(found.index(x) != trained.index(x) for x in trained if x in found):
            raise ValueError(
                f"evaluation.dev.{name}: its labels are {', '.join(found)} and those of data.{name} "
                f"{', '.join(trained)}; give both the same `labels`, in one order"
            )


def _check_data(
    recipe: Recipe,
    fields_of: Callable[[str, Table], tuple[str, ...]],
    tables: Mapping[str, Table],
    dev: Mapping[str, Table],
    *,
    root: Path,
    sets: DevSets,
) -> dict[str, Any]:
    """Count duplicates in the training data and overlap with the evaluation data."""
    evaluation = recipe.evaluation
    own = sets.texts()
    for task, table in dev.items():  # a task and other sets may share a name
        own.setdefault(task, []).extend(_texts(table, fields_of(task, table)))
    evaluations = {f"{name} (dev)": pairs for name, pairs in own.items()}
    if evaluation.test or evaluation.sts_dev:
        evaluations |= evaluation_pairs(evaluation.test, evaluation.sts_dev, root)
    reports = {}
    for task, table in tables.items():
        report = check(table, evaluations, fields_of(task, table))
        for line in report.lines():
            _LOG.info("%s: %s", task, line)
        reports[task] = report.summary()
    return reports


def _texts(table: Table, fields: tuple[str, ...]) -> list[tuple[str, str]]:
    """The first two texts of each example; a single text is used for both."""
    return list(zip(table.texts(fields[0]), table.texts(fields[min(1, len(fields) - 1)]), strict=True))
