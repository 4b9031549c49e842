"""What the student of a distillation is like, and how it learns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..teacher import TeacherOptions

__all__ = ["DistillOptions"]


@dataclass(frozen=True)
class DistillOptions:
    """What the student is like, and how it learns.

    Attributes:
        layers: of the first teacher that the student keeps: their number, or their indices. Ignored with ``student``.
        student: folder or Hub name of a smaller encoder to start from instead.
        dimension: of the student's vectors, at most that of the teachers' together.
        prefixes: dimensions to which vectors may be truncated; None for the halves of ``dimension`` down to 64.
        prompt: that the teachers read each text with, as in their cards; a list has one for each teacher, "" for none.
        prompt_words: the prompt precedes only texts of at most this many words, which read like queries; None for all.
        query_prompt: that the student reads queries with, saved in its folder for `Encoder.encode_query`. It learns the
            texts of at most ``prompt_words`` words twice: with this prompt, what the teachers say of them with theirs,
            and without any. "" for none: the student reads queries as other texts, and learns one vector of each text.
        max_length: maximum number of tokens in a text, special tokens included.
        epochs, max_steps: length of the training; ``max_steps`` takes precedence.
        batch_tokens: mean tokens of a step's batch, whose texts are of similar length.
        eval_steps: steps between checkpoints with their dev scores, or a fraction of the training if below 1. A run
            that is stopped goes on from the last.
        learning_rate, head_learning_rate: of the layers and of the projection.
        precision: ``fp32``, ``bf16`` for mixed precision, or ``auto``: bf16 where the processor or the GPU has
            instructions for it.
        teacher_precision: ``fp32``, ``int8``, or ``auto`` for that of a teacher's folder.
        teacher_weights: of each of several teachers, whose vectors are scaled to the same variance first; None for
            equal weights. A better teacher of higher weight keeps more of its components.
        center: subtract the mean of the teachers' vectors, so that the student's cosines are no longer theirs: an
            average pair of texts has cosine 0. The components then find slightly more.
        whiten: how far the student's vectors are whitened at the end, from 0, not at all, to 1; in between, directions
            of large variance count less in a cosine, which finds more (.3 in the built-in model), but cosines are
            no longer the teachers'. The columns become the student's principal components, the largest first.
        early_stopping: stop after this number of dev scores without improvement.
        evaluation: further dev sets, as in a recipe's ``evaluation`` section; with ``select``, one of them selects the
            best checkpoint, rather than the mean cosine to the teacher on the texts that were held out.
        index_precision: how an index stores the student's vectors by default: ``int6``, six bits a column, ``int8``, a
            byte, or ``fp32``.
        license: of the student, an SPDX name or "other"; that of the teachers and texts limits it.
        seed: of order and dropout.
    """

    layers: int | Sequence[int] = 6
    student: str | None = None
    dimension: int = 256
    prefixes: list[int] | None = None
    prompt: str | list[str] = ""
    prompt_words: int | None = None
    query_prompt: str = ""
    max_length: int = 256
    epochs: float = 1.0
    max_steps: int = -1
    batch_tokens: int = 3072
    eval_steps: float = 0.1
    learning_rate: float = 3e-4
    head_learning_rate: float = 5e-4
    precision: str = "fp32"
    teacher_precision: str = "auto"
    teacher_weights: list[float] | None = None
    center: bool = False
    whiten: float = 0.0
    early_stopping: int | None = None
    evaluation: dict[str, Any] = field(default_factory=dict)
    index_precision: str = "int8"
    license: str = "other"
    seed: int = 1

    def __post_init__(self) -> None:
        """Check what a recipe does not, or only later."""
        # an array is no Sequence, and its integers are not JSON's
        object.__setattr__(self, "layers", np.asarray(self.layers).tolist())
        if wrong := [width for width in self.prefixes or () if not 0 < width < self.dimension]:
            raise ValueError(
                f"prefixes: {wrong[0]} must be from 1 to below the {self.dimension} dimensions of the vectors"
            )
        if self.index_precision not in ("int6", "int8", "fp32"):
            raise ValueError(f"index_precision must be int6, int8 or fp32, not {self.index_precision!r}")
        if not 0 <= self.whiten <= 1:
            raise ValueError(f"whiten must be from 0 to 1, not {self.whiten:g}")
        if "held_out" in self.evaluation.get("dev", {}):
            raise ValueError(
                "evaluation.dev.held_out is the name of the texts that are held out; choose another"
            )

    def teachers(self, paths: Sequence[str]) -> list[TeacherOptions]:
        """The teachers, each with its prompt and weight.

        Raises:
            ValueError: there are fewer or more prompts or weights than teachers.
        """
        prompts = [self.prompt] * len(paths) if isinstance(self.prompt, str) else self.prompt
        weights: Sequence[float | None] = [None] if len(paths) == 1 else [1.0] * len(paths)
        if self.teacher_weights is not None:
            weights = self.teacher_weights
        for name, given in (("prompt", prompts), ("teacher_weights", weights)):
            if len(given) != len(paths):
                raise ValueError(f"{name}: {len(given)} for {len(paths)} teachers")
        return [
            TeacherOptions(
                path,
                self.teacher_precision,
                None,
                prompt,
                self.prompt_words,
                self.query_prompt or None,
                weight,
            )
            for path, prompt, weight in zip(paths, prompts, weights, strict=True)
        ]

    def readings(self, texts: Iterable[str]) -> Iterator[str]:
        """The texts as the student reads them: each of them, and the short ones as queries as well."""
        words = self.prompt_words
        for text in texts:
            yield text
            if self.query_prompt and (words is None or len(text.split(None, words)) <= words):
                yield self.query_prompt + text

    def nested(self) -> list[int]:
        """The prefixes, the widest first."""
        if self.prefixes is not None:
            return sorted(set(self.prefixes), reverse=True)
        widths, width = [], self.dimension // 2
        while width >= 64:
            widths.append(width)
            width //= 2
        return widths
