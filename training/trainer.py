"""Trains a recipe: ``transformers.Trainer`` with packed batches, dev scores of the objective, and a model folder."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils.data import DataLoader
from transformers.trainer_callback import PrinterCallback, TrainerCallback

from .callbacks import Clock, EarlyStopping, Milestones, Progress
from .data.checks import check
from .data.readers import Table, read, root_folder
from .data.sampler import TaskSampler
from .dataset import Examples, Repeated
from .evaluate import sts_dev, sts_dev_sets
from .model import quiet
from .objectives import objective_class
from .objectives.base import Arrays, Objective
from .postprocess import Step
from .recipe import Recipe, TrainingOptions
from .run_folder import claim, facts, finish, last_checkpoint, process_rank, world_size
from .scores import evaluation_pairs

__all__ = ["train"]

_LOG = logging.getLogger("embedkit")


def train(
    recipe: Recipe, output: Path, *, data_root: Path | None = None, cache: Path | None = None
) -> dict[str, Any]:
    """Train a recipe, or resume an earlier call that was stopped in the same folder.

    Args:
        recipe: from `load_recipe`.
        output: receives ``model/`` (the model folder), ``result.json`` (scores, data, seconds), ``curve.png``,
            ``tensorboard/`` and, during training, ``checkpoints/``.
        data_root: folder to which the recipe's data paths are relative; None for EMBEDKIT_DATA or the current folder.
        cache: folder of teachers' outputs, which runs can share; None for ``output/cache``.

    Returns:
        The content of ``result.json``.

    Raises:
        FileExistsError: ``output`` holds the run of another recipe.
        FileNotFoundError, ValueError: the data, the model or an option is missing or wrong; the message names it.
    """
    output = output.absolute()  # checkpoints refer to each other by path
    output.mkdir(parents=True, exist_ok=True)
    claim(output, recipe)
    finished = output / "result.json"
    if finished.is_file():
        done: dict[str, Any] = json.loads(finished.read_text(encoding="utf-8"))
        return done if process_rank() == 0 else {}
    transformers.set_seed(recipe.training.seed)
    root = root_folder(data_root)
    tables = {task: read(source, root=root) for task, source in recipe.data.items()}
    dev = {task: read(source, root=root) for task, source in recipe.evaluation.dev.items()}
    _check_dev(tables, dev)
    if recipe.postprocess is not None:
        if process_rank() != 0:
            return {}
        return _postprocess(recipe, recipe.postprocess, tables, output=output, root=root)
    kind = objective_class(recipe.objective_name)
    cache = cache or output / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    tables = kind.expand(recipe.objective, tables, root, cache)
    encoder = kind.load_encoder(recipe.model, recipe.objective, tables)
    if (recipe.evaluation.sts_dev or recipe.evaluation.test) and not hasattr(encoder, "encode"):
        raise ValueError(
            f"evaluation.sts_dev and evaluation.test score sentence vectors, but {recipe.objective_name} trains a "
            "model without sentence vectors; remove them"
        )
    if recipe.training.mini_batch_size is not None and not hasattr(encoder, "encode"):
        raise ValueError(
            f"training.mini_batch_size is for sentence vectors, but {recipe.objective_name} trains a model without "
            "sentence vectors; use a smaller batch_size and gradient_accumulation"
        )
    objective = kind(encoder, recipe.objective, tables)
    for section, given in (("data", tables), ("evaluation.dev", dev)):
        for task, table in given.items():
            objective.check(f"{section}.{task}", task, table)
    checks = _check_data(recipe, objective.fields_of, tables, dev, root)  # before teachers run for hours
    run = _Run(recipe, objective, tables, dev, output=output, root=root, cache=cache)
    history = run.train()
    if not run.is_main:
        return {}
    result = facts(recipe, tables, checks, run.device) | {
        **_dev_pairs(recipe, root),
        "steps": run.trainer.state.global_step,
        "train_seconds": round(run.clock.seconds, 1),
        "best_step": run.best_step,
        "dev": run.dev_scores(),
        "majority": run.majority,
    }
    finish(recipe, objective.save, result, history, output=output, root=root)
    return result


def _postprocess(
    recipe: Recipe, step: Step, tables: Mapping[str, Table], *, output: Path, root: Path
) -> dict[str, Any]:
    """Apply the post-processing step of a recipe, then score and write the model."""
    checks = _check_data(recipe, lambda task, table: ("text",), tables, {}, root)
    model = step.apply(recipe.model, [text for table in tables.values() for text in table.texts("text")])
    result = facts(recipe, tables, checks, "cpu") | {
        **_dev_pairs(recipe, root),
        "steps": 0,
        "train_seconds": 0.0,
        "best_step": None,
        "dev": {"stsb_dev": sts_dev(model, root)} if recipe.evaluation.sts_dev else {},
        "majority": {},
    }
    finish(recipe, model.save, result, [], output=output, root=root)
    return result


def _dev_pairs(recipe: Recipe, root: Path) -> dict[str, int]:
    """For ``result.json``: the number of STS-B dev pairs that are in no test set, by which the best is selected."""
    if not recipe.evaluation.sts_dev:
        return {}
    pairs = sum(len(one.pairs) for one in sts_dev_sets(root).values())
    _LOG.info("STS-B dev: %s pairs are in no STS test set", f"{pairs:,}")
    return {"sts_dev_pairs": pairs}


class _Run:
    """The state of one training."""

    def __init__(
        self,
        recipe: Recipe,
        objective: Objective,
        tables: Mapping[str, Table],
        dev: Mapping[str, Table],
        *,
        output: Path,
        root: Path,
        cache: Path,
    ) -> None:
        self.recipe, self.objective, self.output = recipe, objective, output
        self._dev_tables, self._root = dev, root
        options, length = recipe.training, recipe.model.max_length
        folder = objective.encoder.tokenizer_folder
        self.examples = Examples(objective, tables, folder, length, cache)
        self.dev = Examples(objective, dev, folder, length, cache) if dev else None
        objective.prepared()
        objective.mini_batch_size = options.mini_batch_size
        objective.encoder.autocast = torch.bfloat16 if options.precision == "bf16" else None
        self.sampler, steps = self._sampler()
        self._evaluated = bool(dev) or recipe.evaluation.sts_dev
        arguments = _arguments(options, output, steps, self._evaluated, recipe.evaluation.select)
        self.clock = Clock()
        callbacks = [self.clock, Progress(objective), Milestones(self._evaluated)]
        if options.early_stopping is not None:
            callbacks.append(EarlyStopping(options.early_stopping))
        self.trainer = _Trainer(self, arguments, callbacks)
        _LOG.info(
            "%s: %d steps, %s examples",
            recipe.name,
            steps,
            {name: len(table) for name, table in tables.items()},
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

    def _sampler(self) -> tuple[Repeated, int]:
        """The batches of this process, and the optimizer steps of the run."""
        options = self.recipe.training
        epochs = max(1, math.ceil(options.epochs))
        one = TaskSampler(
            self.examples.lengths,
            {task: np.arange(span.start, span.stop) for task, span in self.examples.tasks.items()},
            options.batch_size,
            options.schedule,  # type: ignore[arg-type]  # checked by TrainingOptions
            epochs=epochs,
            seed=options.seed,
            drop_last=self.objective.drop_last,
            rank=process_rank(),
            world_size=world_size(),
        )
        steps = math.ceil(options.epochs * len(one) / options.gradient_accumulation)
        if options.max_steps > 0:
            steps = options.max_steps
            one.epochs = epochs = math.ceil(steps * options.gradient_accumulation / len(one))
        return Repeated(one, epochs), max(1, steps)

    def train(self) -> list[dict[str, Any]]:
        """Train to the end, from the last complete checkpoint if there is one; returns the log."""
        if not self.trained:
            return []
        last = last_checkpoint(self.output / "checkpoints")
        # scores the untrained model and checks that evaluation.select is a dev score
        self.trainer.args.eval_on_start = last is None and self._evaluated
        if last is not None:
            _LOG.info("resuming from step %s", last.name.rpartition("-")[2])
        with quiet():  # silences Trainer's messages on checkpoints, not its progress bar
            self.trainer.train(resume_from_checkpoint=None if last is None else str(last))
        history: list[dict[str, Any]] = self.trainer.state.log_history
        return history

    def dev_scores(self) -> dict[str, float]:
        """Scores of the objective's tasks, and of STS-B dev."""
        scores: dict[str, float] = {}
        if self.dev is not None:
            for task in self.dev.tasks:
                try:
                    scored = self.objective.score(task, self._outputs(task), self.dev.arrays(task))
                except ValueError as error:
                    raise ValueError(f"evaluation.dev.{task}: {error}") from None
                scores.update({f"{task}_{name}": value for name, value in scored.items()})
            scores.update(self.objective.summary(scores))
        if self.recipe.evaluation.sts_dev:
            scores["stsb_dev"] = sts_dev(self.objective.encoder, self._root)
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


class _Trainer(transformers.Trainer):
    """Trainer with embedkit's batches and scores."""

    def __init__(self, run: _Run, arguments: Any, callbacks: list[TrainerCallback]) -> None:
        options, objective = run.recipe.training, run.objective
        self._run = run
        super().__init__(
            model=objective,
            args=arguments,
            train_dataset=run.examples,
            eval_dataset=run.examples,  # required, but `evaluate` is overridden
            callbacks=callbacks,
            optimizers=(_optimizer(objective, options, arguments.device) if run.trained else None, None),
        )
        # forward's **targets are not loss options; otherwise gradients of accumulated batches would be summed
        self.model_accepts_loss_kwargs = False
        self.remove_callback(PrinterCallback)
        if self.is_world_process_zero():
            from torch.utils.tensorboard import SummaryWriter
            from transformers.integrations import TensorBoardCallback  # type: ignore[attr-defined]  # not in __all__

            self.add_callback(TensorBoardCallback(SummaryWriter(run.output / "tensorboard")))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of this process, as chosen by the sampler."""
        examples = self._run.examples
        return DataLoader(examples, batch_sampler=self._run.sampler, collate_fn=examples.batch)  # type: ignore[arg-type]

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Dev scores, logged and passed to the callbacks under the names by which the best is selected."""
        scores = self._run.dev_scores()
        select = self._run.recipe.evaluation.select
        if select is not None and select not in scores:
            raise ValueError(
                f"evaluation.select {select!r} is not a dev score; available are {', '.join(scores)}"
            )
        metrics = {f"eval_{name}": value for name, value in scores.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def _arguments(
    options: TrainingOptions, output: Path, steps: int, evaluated: bool, select: str | None
) -> Any:
    every = options.eval_steps if options.eval_steps >= 1 else steps * options.eval_steps
    every = min(steps, max(1, round(every)))
    arguments = transformers.TrainingArguments(
        output_dir=str(output / "checkpoints"),
        per_device_train_batch_size=options.batch_size // world_size(),
        gradient_accumulation_steps=options.gradient_accumulation,
        max_steps=steps,
        lr_scheduler_type=options.scheduler,
        warmup_steps=math.ceil(options.warmup_ratio * steps),
        max_grad_norm=options.max_grad_norm,
        eval_strategy="steps" if evaluated else "no",
        eval_steps=every,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=1,
        load_best_model_at_end=select is not None,
        metric_for_best_model=None if select is None else f"eval_{select}",
        greater_is_better=not (select or "").endswith("perplexity"),
        logging_steps=options.logging_steps,
        logging_nan_inf_filter=False,
        disable_tqdm=sys.stderr is None or not sys.stderr.isatty() or not _LOG.isEnabledFor(logging.INFO),
        seed=options.seed,
        use_cpu=not torch.cuda.is_available(),
        ddp_find_unused_parameters=True if world_size() > 1 else None,  # the heads of other tasks
        remove_unused_columns=False,
        label_names=[],
        report_to="none",
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # DataParallel would split a packed batch at an arbitrary token
    return arguments


def _optimizer(objective: Objective, options: TrainingOptions, device: torch.device) -> torch.optim.Optimizer:
    """AdamW without decay of biases and norms; heads may have their own learning rate."""
    objective.to(device)
    groups: dict[tuple[bool, bool], list[torch.nn.Parameter]] = {}
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            # a cross-encoder's classifier is part of its transformers model
            of_backbone = name.startswith("encoder.backbone.") and "classifier" not in name
            key = (of_backbone, parameter.ndim > 1)
            groups.setdefault(key, []).append(parameter)
    if not groups:
        raise ValueError("no parameter is trained: all of the model is frozen, and the objective has no head")
    head_rate = options.head_learning_rate or options.learning_rate
    return torch.optim.AdamW(
        [
            {
                "params": parameters,
                "lr": options.learning_rate if of_backbone else head_rate,
                "weight_decay": options.weight_decay if decays else 0.0,
            }
            for (of_backbone, decays), parameters in groups.items()
        ],
        fused=device.type in ("cpu", "cuda"),
    )


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
    root: Path,
) -> dict[str, Any]:
    """Count duplicates in the training data and overlap with the evaluation data."""
    evaluation = recipe.evaluation
    evaluations = {f"{task} (dev)": _texts(table, fields_of(task, table)) for task, table in dev.items()}
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
