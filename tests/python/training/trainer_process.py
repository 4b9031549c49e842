"""Trains recipes in a separate process: ``FILE,FILE OUTPUT``; ``FILE OUTPUT STEP`` is killed before that step."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import in_batch  # noqa: F401  # registers its objective
import torch
from embedkit.training import callbacks, cli, trainer
from embedkit.training.recipe import load_recipe

torch.set_num_threads(1)


def kill_at(step: int) -> None:
    """Kill this process before a step, as a power failure would."""
    original = callbacks.Progress.on_step_begin

    def on_step_begin(self: Any, args: Any, state: Any, control: Any, **others: Any) -> None:
        original(self, args, state, control, **others)
        if state.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    callbacks.Progress.on_step_begin = on_step_begin  # type: ignore[method-assign]


if __name__ == "__main__":
    files, output, *stop = sys.argv[1:]
    if stop:
        kill_at(int(stop[0]))
        sys.exit(cli.main([files, "--output", output]))
    for file in files.split(","):
        trainer.train(load_recipe(Path(file)), Path(output) / Path(file).stem)
    if (
        "RANK" in os.environ
    ):  # all is saved; torch's threads sometimes abort a process that ends in the usual way
        os._exit(0)
