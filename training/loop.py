"""The training loop: ``transformers.Trainer`` with packed batches, its settings, and the optimizer."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader
from transformers.trainer_callback import PrinterCallback, TrainerCallback

from .dataset import Examples, Repeated
from .objectives.base import Objective
from .processes import world_size
from .recipe import EvaluationOptions, TrainingOptions

__all__ = ["Batches", "Loop", "check_reports", "optimizer", "trainer_arguments"]

_LOG = logging.getLogger("embedkit")


class Batches:
    """The batches of this process, for a DataLoader."""

    def __init__(self, examples: Examples, sampler: Repeated, workers: int) -> None:
        """``workers``: processes that prepare batches ahead; 0 prepares them between the steps."""
        self.examples, self.sampler, self.workers = examples, sampler, workers

    def loader(self) -> DataLoader[Any]:
        """A DataLoader of the batches, in the order of the sampler whatever the number of workers."""
        return DataLoader(
            self.examples,  # type: ignore[arg-type]
            batch_sampler=self.sampler,
            collate_fn=self.examples.batch,
            num_workers=self.workers,
            # workers read the model's tokenizer and the mapped ids of this process, which cannot be sent to another
            multiprocessing_context="fork" if self.workers else None,
        )


class Loop(transformers.Trainer):
    """Trainer with embedkit's batches and scores."""

    def __init__(
        self,
        objective: Objective,
        arguments: Any,
        batches: Batches,
        scores: Callable[[], dict[str, float]],
        *,
        select: str | None,
        callbacks: Sequence[TrainerCallback],
        optimizer: torch.optim.Optimizer | None,
        tensorboard: Path,
    ) -> None:
        """Prepare to train.

        Args:
            objective: the model and its loss.
            arguments: see `trainer_arguments`.
            batches: of the training data.
            scores: computes the dev scores.
            select: the name of the one that selects the best checkpoint.
            callbacks: of transformers.
            optimizer: see `optimizer`; None if nothing is trained.
            tensorboard: folder for logs.
        """
        self._batches, self._scores, self._select = batches, scores, select
        super().__init__(
            model=objective,
            args=arguments,
            train_dataset=batches.examples,
            eval_dataset=batches.examples,  # required, but `evaluate` is overridden
            callbacks=list(callbacks),
            optimizers=(optimizer, None),
        )
        # forward's **targets are not loss options; otherwise gradients of accumulated batches would be summed
        self.model_accepts_loss_kwargs = False
        self.remove_callback(PrinterCallback)
        if self.is_world_process_zero():
            from torch.utils.tensorboard import SummaryWriter
            from transformers.integrations import TensorBoardCallback  # type: ignore[attr-defined]  # not in __all__

            self.add_callback(TensorBoardCallback(SummaryWriter(tensorboard)))

    def scale_losses(self) -> None:
        """Scale losses, as float16 needs. The model's own autocast stays the only one: losses are fp32."""
        from accelerate.utils import AutocastKwargs

        self.accelerator.state._mixed_precision = "fp16"
        self.accelerator.native_amp = True
        self.accelerator.autocast_handler = AutocastKwargs(enabled=False)
        self.accelerator.scaler = torch.amp.GradScaler(self.args.device.type)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Write each name's own copy of weights that two names share (T5's vectors): safetensors refuses them."""
        assert self.model is not None
        state: dict[str, Any] = {}
        seen: set[int] = set()
        for name, weight in (self.model.state_dict() if state_dict is None else state_dict).items():
            state[name] = weight.clone() if weight.data_ptr() in seen else weight
            seen.add(weight.data_ptr())
        super()._save(output_dir, state)

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> None:
        """Name the folder and the remedy if torch or safetensors cannot write."""
        from safetensors import SafetensorError

        try:
            super()._save_checkpoint(*arguments, **named)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, SafetensorError) as error:
            raise OSError(
                f"{self.args.output_dir}: the checkpoint of step {self.state.global_step} could not be written "
                f"({error}); free space if the disk is full: the same command goes on from the one before"
            ) from error

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of this process, as chosen by the sampler."""
        return self._batches.loader()

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Dev scores, logged and passed to the callbacks under the names by which the best is selected."""
        scores, select = self._scores(), self._select
        if select is not None and select not in scores:
            raise ValueError(
                f"evaluation.select {select!r} is not a dev score; available are {', '.join(scores) or 'none'}"
            )
        metrics = {f"eval_{name}": value for name, value in scores.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def trainer_arguments(
    options: TrainingOptions,
    evaluation: EvaluationOptions,
    output: Path,
    steps: int,
    *,
    evaluated: bool,
    minimized: Collection[str],
    report_to: Sequence[str] = (),
) -> Any:
    """The ``TrainingArguments`` of a run of ``steps`` optimizer steps.

    ``evaluated``: it has dev scores; ``minimized``: those of them of which the lowest is best.
    """
    every = options.eval_steps if options.eval_steps >= 1 else steps * options.eval_steps
    every = min(steps, max(1, round(every)))
    select = evaluation.select
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
        # the last beside the best: a stopped run goes on from it
        save_total_limit=1 if select is None else 2,
        load_best_model_at_end=select is not None,
        metric_for_best_model=None if select is None else f"eval_{select}",
        greater_is_better=select not in minimized,
        logging_steps=options.logging_steps,
        logging_nan_inf_filter=False,
        disable_tqdm=sys.stderr is None or not sys.stderr.isatty() or not _LOG.isEnabledFor(logging.INFO),
        seed=options.seed,
        use_cpu=not torch.cuda.is_available(),
        ddp_find_unused_parameters=True if world_size() > 1 else None,  # the heads of other tasks
        remove_unused_columns=False,
        label_names=[],
        report_to=list(report_to) or "none",
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # DataParallel would split a packed batch at an arbitrary token
    return arguments


def check_reports(names: Sequence[str]) -> None:
    """Check that integrations of transformers are known and installed, before anything is computed.

    Raises:
        ImportError: the package of one is not installed.
        ValueError: one is unknown.
    """
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    for name in names:
        (kind,) = get_reporting_integration_callbacks([name])
        try:
            kind()
        except RuntimeError as error:
            raise ImportError(str(error)) from None


def backbone_prefix(objective: Objective) -> str:
    """How the names of the backbone's parameters begin; the head of a cross-encoder is part of its model."""
    model = getattr(objective.encoder, "backbone", None)
    children = dict(model.named_children()) if isinstance(model, torch.nn.Module) else {}
    inner = getattr(model, "base_model_prefix", "")
    return f"encoder.backbone.{inner}." if inner in children else "encoder.backbone."


def optimizer(objective: Objective, options: TrainingOptions, device: torch.device) -> torch.optim.Optimizer:
    """AdamW without decay of biases and norms; heads may have their own learning rate."""
    objective.to(device)
    groups: dict[tuple[bool, bool], list[torch.nn.Parameter]] = {}
    body = backbone_prefix(objective)
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            of_backbone = name.startswith(body) and "classifier" not in name
            # the bias of relative positions is a matrix in MPNet and T5
            key = (of_backbone, parameter.ndim > 1 and "bias" not in name)
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
        # the scheduler polynomial ends at a share of this one
        lr=options.learning_rate,
        fused=device.type in ("cpu", "cuda") and options.precision != "fp16",
    )
