"""Trainer callbacks: progress, milestones, early stopping and timing."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from transformers.trainer_callback import TrainerCallback

from .objectives.base import Objective

__all__ = ["Clock", "EarlyStopping", "Milestones", "Progress"]


class Progress(TrainerCallback):
    """Reports the progress of the training to the objective (teacher annealing)."""

    def __init__(self, objective: Objective) -> None:
        """Report to ``objective``."""
        self._objective = objective

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Before each optimizer step: 0 at the first, 1 at the last."""
        self._objective.progress = state.global_step / max(1, state.max_steps - 1)


class Milestones(TrainerCallback):
    """Logs, and so checks, the loss before each checkpoint, and evaluates the last step."""

    def __init__(self, evaluated: bool) -> None:
        """``evaluated``: whether there are dev scores."""
        self._evaluated = evaluated

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Runs after Trainer's own callback has decided what to do at this step."""
        control.should_evaluate |= self._evaluated and state.global_step >= state.max_steps
        control.should_log |= control.should_save


class EarlyStopping(TrainerCallback):
    """Stops after ``patience`` dev scores without a better one.

    It counts in the log, which checkpoints contain; the counter of transformers restarts after a resume.
    """

    def __init__(self, patience: int) -> None:
        """``patience``: dev scores without a better one."""
        self._patience = patience

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop if the patience is used up."""
        control.should_training_stop |= self.is_over(args, state)

    def is_over(self, args: Any, state: Any) -> bool:
        """Whether the patience is used up; scores before the first step, whose weights are not kept, do not count."""
        name = args.metric_for_best_model
        scores = [entry[name] for entry in state.log_history if name in entry and entry["step"] > 0]
        worst = -math.inf if args.greater_is_better else math.inf
        known = [worst if math.isnan(score) else score for score in scores]
        best = np.argmax if args.greater_is_better else np.argmin
        return bool(scores) and len(scores) - 1 - int(best(known)) >= self._patience


class Clock(TrainerCallback):
    """Counts the seconds of training across resumes, and stops a run whose loss is not finite."""

    def __init__(self) -> None:
        """Start at 0 seconds."""
        self.seconds = 0.0
        self._last = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Add the seconds before the resume."""
        self.restore(state)
        self._last = time.monotonic()

    def restore(self, state: Any) -> None:
        """Take the seconds that the log of an earlier call has."""
        self.seconds = next(
            (e["train_seconds"] for e in reversed(state.log_history) if "train_seconds" in e), 0.0
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Write the seconds to the log, which checkpoints contain."""
        self._tick()
        if state.log_history:
            state.log_history[-1]["train_seconds"] = round(self.seconds, 3)
        if logs and not math.isfinite(logs.get("loss", 0.0)):
            before = max((e["step"] for e in state.log_history[:-1] if "loss" in e), default=0)
            raise FloatingPointError(
                f"the mean loss of steps {before + 1} to {state.global_step} is {logs['loss']}; "
                "lower training.learning_rate, or check the data"
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Add the last seconds."""
        self._tick()

    def _tick(self) -> None:
        now = time.monotonic()
        self.seconds += now - self._last
        self._last = now
