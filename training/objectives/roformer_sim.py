"""RoFormer-Sim (Su 2021, kexue.fm/archives/8454): one RoFormer that embeds and generates.

Each pair (a, b) is learned in both directions, [CLS] a [SEP] b [SEP] and [CLS] b [SEP] a [SEP], under UniLM's mask.
With x_i the 2n vectors at [CLS] of a batch of n pairs, scaled to length 1, and j(i) the other text of i's pair:

    stage 1   -mean log p(target token | text, tokens before it)
              - mean_i log( exp(s x_i.x_j(i)) / sum_{k != i} exp(s x_i.x_k) ),   s = 20
    stage 2   -mean log p(target token | ...) + 100 mean_{i,k} (x_i.x_k - t_i.t_k)^2,   t the teacher's vectors

The first mean is over the tokens of all targets. In training, half of the texts (not the targets) are noised as in
MLM, while the targets stay clean (BART): of 15 % of the tokens, 80 % become [MASK], 10 % a random token, and 10 % stay.
The released code draws words from a word segmenter; here tokens are drawn, which for Chinese are characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from ...model_folder.json_file import read_json
from ..data.readers import Table
from ..data.store import TextStore
from ..data.texts import Chain
from ..model import ModelOptions
from ..teacher import VectorStore, open_encoder
from ..unilm import UnilmModel, pack_pairs
from .base import Arrays, Batch, Objective, first_row, gather, spearman_percent, to_tensors

__all__ = ["RoformerSim", "RoformerSimOptions", "contrastive_loss", "noised", "similarity_distillation"]

_REPLACED, _RANDOM = (
    0.8,
    0.1,
)  # shares of the noised tokens that become [MASK] or a random token; the rest stays


@dataclass(frozen=True)
class RoformerSimOptions:
    """Options of `RoformerSim`.

    Attributes:
        scale: of the cosines in the similarity loss (the inverse of a temperature).
        noised_texts: share of the texts that are noised in training.
        noise: share of their tokens that are masked, replaced or kept for prediction.
        teacher: folder or Hub name of the model whose similarities are distilled (stage 2); None for stage 1.
        distillation_weight: of the mean squared difference of similarities.
    """

    scale: float = 20.0
    noised_texts: float = 0.5
    noise: float = 0.15
    teacher: str | None = None
    distillation_weight: float = 100.0

    def __post_init__(self) -> None:
        for name in ("noised_texts", "noise"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"objective.{name} must be from 0 to 1, not {getattr(self, name)}")
        for name in ("scale", "distillation_weight"):
            if getattr(self, name) <= 0:
                raise ValueError(f"objective.{name} must be positive, not {getattr(self, name)}")


class RoformerSim(Objective):
    """Generation and similarity, learned together."""

    Options: ClassVar[type[Any]] = RoformerSimOptions
    minimized: ClassVar[tuple[str, ...]] = ("perplexity",)
    drop_last: ClassVar[bool] = True
    options: RoformerSimOptions
    encoder: UnilmModel

    def __init__(self, encoder: UnilmModel, options: RoformerSimOptions, tables: Mapping[str, Table]) -> None:
        """Wrap a model with its own head."""
        super().__init__(encoder, options, tables)
        self._mask_id = _mask_id(encoder.tokenizer_folder) if options.noised_texts and options.noise else 0

    @classmethod
    def load_encoder(cls, model: ModelOptions, options: Any, tables: Mapping[str, Table]) -> UnilmModel:
        """A RoFormer with its head."""
        del options, tables
        return UnilmModel.load(model)

    def prepare(self, task: str, table: Table, cache: Path) -> Arrays:
        """The label or score, if any, for dev scores; of training data a teacher's vectors (n, 2, dimension)."""
        arrays: Arrays = {name: table[name] for name in ("label", "score") if name in table.names}
        if self.options.teacher is not None and self.is_training(table):
            arrays["teacher"] = _pair_vectors(
                self.options.teacher, table.texts("text1"), table.texts("text2"), cache
            )
        return arrays

    def collate(self, store: TextStore, texts: npt.NDArray[np.int64], arrays: Arrays) -> Batch:
        """Both directions of each pair: first all (a, b), then all (b, a)."""
        start = len(store.prefix_ids)
        both = np.concatenate([texts, texts[:, ::-1]])
        input_ids, cu_seqlens, prefix = pack_pairs(
            [store.ids(row) for row in both[:, 0]], [store.ids(row)[start:] for row in both[:, 1]]
        )
        return {
            "input_ids": input_ids,
            "cu_seqlens": cu_seqlens,
            "prefix": prefix,
            **to_tensors(arrays),
        }

    def forward(
        self, task: Tensor, input_ids: Tensor, cu_seqlens: Tensor, **targets: Tensor
    ) -> dict[str, Tensor]:
        """See `Objective.forward`; ``prefix (2 n,)`` comes with the batch. ``nll`` is summed over ``tokens``."""
        prefix = targets["prefix"]
        if self.training and self._mask_id:
            input_ids = noised(
                input_ids,
                cu_seqlens,
                prefix,
                texts=self.options.noised_texts,
                rate=self.options.noise,
                mask_id=self._mask_id,
                vocab_size=int(self.encoder.backbone.config.vocab_size),
            )
        vectors, nll = self._sequences(input_ids, cu_seqlens, prefix)
        unit = functional.normalize(vectors, dim=-1)
        count = cu_seqlens.diff() - prefix
        # a mean over the tokens of all processes, as in one process with the whole batch
        counts = gather(count)
        share = counts.sum() * len(count) / len(counts)
        loss = nll.sum() / share
        if "teacher" in targets:
            teacher = functional.normalize(targets["teacher"], dim=-1).transpose(0, 1).flatten(0, 1)
            loss = loss + self.options.distillation_weight * similarity_distillation(unit, teacher)
        elif self.options.teacher is None:
            loss = loss + contrastive_loss(unit, self.options.scale)
        first, second = unit.chunk(2)
        return {
            "loss": loss,
            "cosine": (first * second).sum(-1),
            "nll": nll.view(2, -1).sum(0),
            "tokens": count.view(2, -1).sum(0),
        }

    def _sequences(self, input_ids: Tensor, cu_seqlens: Tensor, prefix: Tensor) -> tuple[Tensor, Tensor]:
        """`UnilmModel.sequences`, in pieces of ``2 * mini_batch_size`` sequences; see `Objective.encode`."""
        size, n = 2 * (self.mini_batch_size or len(prefix)), len(prefix)
        if size >= n or not torch.is_grad_enabled():
            return self.encoder.sequences(input_ids, cu_seqlens, prefix)
        from torch.utils.checkpoint import checkpoint

        parts = []
        for start in range(0, n, size):
            cut = cu_seqlens[start : start + size + 1]
            parts.append(
                checkpoint(
                    self.encoder.sequences,
                    input_ids[cut[0] : cut[-1]],
                    cut - cut[0],
                    prefix[start : start + size],
                    use_reentrant=False,
                )
            )
        vectors, losses = zip(*parts, strict=True)
        return torch.cat(vectors), torch.cat(losses)

    def score(self, task: str, outputs: Arrays, arrays: Arrays) -> dict[str, float]:
        """Spearman x 100 of the cosine, and the perplexity per token of the paraphrases (label 1)."""
        scores: dict[str, float] = {}
        gold = arrays.get("label", arrays.get("score"))
        if gold is not None and len(np.unique(gold)) > 1:
            scores["spearman"] = spearman_percent(outputs["cosine"], gold)
        same = arrays["label"] == 1 if "label" in arrays else np.ones(len(outputs["nll"]), bool)
        if "score" not in arrays and same.any():
            scores["perplexity"] = float(np.exp(outputs["nll"][same].sum() / outputs["tokens"][same].sum()))
        return scores


def contrastive_loss(unit: Tensor, scale: float) -> Tensor:
    """Cross-entropy of finding the other text of the pair among all other texts of all processes' batches.

    Args:
        unit: (2 n, dimension) of length 1: the first texts of n pairs, then the second ones.
        scale: of the cosines.
    """
    own = torch.arange(len(unit), device=unit.device)
    offset = first_row(len(unit))
    similarities = unit @ gather(unit).t() * scale
    similarities = similarities.index_put((own, own + offset), similarities.new_tensor(float("-inf")))
    return functional.cross_entropy(similarities, own.roll(len(unit) // 2) + offset)


def similarity_distillation(unit: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of two matrices of cosines, over all processes' batches.

    Args:
        unit: (m, dimension) of length 1.
        teacher: (m, its dimension) of length 1, of the same texts.
    """
    return functional.mse_loss(unit @ gather(unit).t(), teacher @ gather(teacher).t())


def noised(
    input_ids: Tensor,
    cu_seqlens: Tensor,
    prefix: Tensor,
    *,
    texts: float,
    rate: float,
    mask_id: int,
    vocab_size: int,
) -> Tensor:
    """Add noise to some of the prefixes in ``input_ids``, except [CLS] and [SEP]; random as dropout is.

    Args:
        input_ids, cu_seqlens, prefix: as for `UnilmModel.sequences`.
        texts: share of the prefixes to noise.
        rate: share of their tokens to noise.
        mask_id: of [MASK].
        vocab_size: random tokens are drawn from 1 up to it: not [PAD].
    """
    device, lengths = input_ids.device, cu_seqlens.diff()
    position = torch.arange(len(input_ids), device=device) - cu_seqlens[:-1].repeat_interleave(lengths)
    inside = (position > 0) & (position < (prefix - 1).repeat_interleave(lengths))
    of_text = (torch.rand(len(prefix), device=device) < texts).repeat_interleave(lengths)
    draw = torch.rand(len(input_ids), device=device)
    other = torch.randint(1, vocab_size, input_ids.shape, device=device)
    drawn = inside & of_text
    noisy = torch.where(drawn & (draw < rate * _REPLACED), mask_id, input_ids)
    replaced = drawn & (draw >= rate * _REPLACED) & (draw < rate * (_REPLACED + _RANDOM))
    return torch.where(replaced, other, noisy)


def _pair_vectors(
    teacher: str, first: Sequence[str], second: Sequence[str], cache: Path
) -> npt.NDArray[np.float32]:
    """The teacher's vectors (n, 2, dimension) of n pairs, in a file of the cache; each text is encoded once."""
    with open_encoder(teacher) as encoder:
        store = VectorStore.of(encoder, cache, "float32")
        store.add(Chain((first, second)), encoder)
    return store.mapped((first, second))


def _mask_id(folder: Path) -> int:
    """The id of [MASK] in tokenizer.json or vocab.txt."""
    path = folder / "tokenizer.json"
    if path.is_file():
        content = read_json(path)
        for token in content.get("added_tokens", []):
            if token["content"] == "[MASK]":
                return int(token["id"])
        vocabulary = content["model"]["vocab"]
    else:
        path = folder / "vocab.txt"
        lines = path.read_text(encoding="utf-8").split("\n")
        vocabulary = {token: i for i, token in enumerate(lines)}
    if "[MASK]" not in vocabulary:
        raise ValueError(f"{path} has no [MASK]; set objective.noised_texts=0 to train without noise")
    return int(vocabulary["[MASK]"])
