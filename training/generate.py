"""Similar sentences from a RoFormer-Sim model, which both generates and ranks them.

Nucleus sampling (Holtzman et al. 2020, arXiv:1904.09751): the next token is drawn from the smallest set of tokens whose
probabilities sum to ``top_p``.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cli.common import EXIT_OK, Parser, run, show_result
from ..forking import cached_property
from .data.store import TextStore
from .unilm import UnilmModel, unilm_mask

__all__ = ["SimilarSentences", "generate_similar", "main", "nucleus"]

_PROGRAM = "python -m embedkit.training.generate"


def generate_similar(
    model_folder: str | Path, text: str, n: int = 100, k: int = 20, top_p: float = 0.95, *, seed: int = 0
) -> list[tuple[str, float]]:
    """The ``k`` most similar of ``n`` sampled sentences; see `SimilarSentences` for many texts."""
    return SimilarSentences(model_folder).generate(text, n, k, top_p, seed=seed)


class SimilarSentences:
    """A model folder with generator.safetensors, loaded once."""

    def __init__(self, model_folder: str | Path) -> None:
        """Load the model.

        Raises:
            FileNotFoundError: the folder does not exist, or has no generator.
        """
        self.model = UnilmModel.open(model_folder).eval()

    def generate(
        self, text: str, n: int = 100, k: int = 20, top_p: float = 0.95, *, seed: int = 0
    ) -> list[tuple[str, float]]:
        """Sentences with their cosine to ``text``, the most similar first.

        Args:
            text: the text to resemble; never returned itself.
            n: number of samples; duplicates count once.
            k: maximum number of results.
            top_p: probability mass from which tokens are drawn, above 0; 1 draws from all.
            seed: makes the result deterministic with the same version of torch.

        Raises:
            ValueError: a number is out of range.
        """
        if n < 1 or k < 1:
            raise ValueError(f"n and k must be positive, not {n} and {k}")
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {top_p}")
        candidates = [found for found in dict.fromkeys(self.sample(text, n, top_p, seed=seed)) if found]
        own = self._text(self._tokenizer(text)["input_ids"])  # as it would be drawn
        candidates = [found for found in candidates if found not in (text.strip(), own)]
        if not candidates:
            return []
        vectors = torch.nn.functional.normalize(
            torch.from_numpy(self.model.encode([text, *candidates])), dim=1
        )
        scores = vectors[1:] @ vectors[0]
        order = scores.argsort(descending=True, stable=True)[:k].tolist()
        return [(candidates[i], float(scores[i])) for i in order]

    @torch.inference_mode()
    def sample(self, text: str, n: int, top_p: float = 0.95, *, seed: int = 0) -> list[str]:
        """``n`` targets of ``text``, in the order of sampling, including repetitions."""
        store = TextStore(
            self.model.tokenizer_folder,
            [text],
            self.model.options.max_length,
            vectors=self.model.backbone.config.vocab_size,
            lowercase_first=self.model.lowercase_first,
        )
        end = store.suffix_ids[-1]
        generator = torch.Generator().manual_seed(seed)
        ids = torch.from_numpy(store.ids(0).astype("int64"))[None]
        decoder = _Decoder(self.model)
        hidden = decoder.prefix(ids).expand(n, -1)
        decoder.repeat(n)
        drawn: list[list[int]] = [[] for _ in range(n)]
        running = list(range(n))
        for _ in range(self.model.options.max_length - 1):
            logits = self.model.logits(hidden).float().index_fill(1, self._forbidden, float("-inf"))
            tokens = nucleus(logits, top_p, generator)
            kept = (tokens != end).nonzero()[:, 0]
            if not len(kept):
                break
            running = [running[i] for i in kept.tolist()]
            tokens = tokens[kept]
            for row, token in zip(running, tokens.tolist(), strict=True):
                drawn[row].append(token)
            decoder.keep(kept)
            hidden = decoder.step(tokens)
        return [self._text(row) for row in drawn]

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import BertTokenizer

        return BertTokenizer.from_pretrained(self.model.tokenizer_folder)

    @cached_property
    def _forbidden(self) -> Tensor:
        """Special tokens except the one that ends a sentence."""
        tokenizer = self._tokenizer
        return torch.tensor(sorted(set(tokenizer.all_special_ids) - {tokenizer.sep_token_id}))

    def _text(self, ids: list[int]) -> str:
        """The tokens as text, without spaces beside non-ASCII characters, as in Chinese."""
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        return re.sub(r"(?<=[^\x00-\x7f]) +| +(?=[^\x00-\x7f])", "", text).strip()


def nucleus(logits: Tensor, top_p: float, generator: torch.Generator) -> Tensor:
    """Draw one token (n,) per row of ``logits (n, vocab_size)`` from the smallest set that reaches ``top_p``."""
    probabilities, order = logits.softmax(-1).sort(-1, descending=True)
    before = probabilities.cumsum(-1) - probabilities
    probabilities = probabilities.masked_fill(before >= top_p, 0)
    drawn = torch.multinomial(probabilities, 1, generator=generator)
    return order.gather(-1, drawn)[:, 0]


class _Decoder:
    """A RoFormer that reads targets token by token and caches keys and values.

    transformers' own cache needs a causal model and differs between versions; the layers' modules do not. The prefix
    is read under UniLM's mask.
    """

    def __init__(self, model: UnilmModel) -> None:
        self._model = model
        self._layers = model.backbone.encoder.layer
        self._past: list[tuple[Tensor, Tensor]] = []
        self._position = 0

    def prefix(self, ids: Tensor) -> Tensor:
        """Read ``ids (1, tokens)``; the last token's hidden state, (1, hidden_size)."""
        count = torch.tensor([ids.shape[1]], device=ids.device)
        return self._read(ids, torch.zeros_like(ids), unilm_mask(count, count, ids.shape[1]))

    def repeat(self, n: int) -> None:
        """Continue with n copies of the sequence."""
        self._past = [(k.expand(n, -1, -1, -1), v.expand(n, -1, -1, -1)) for k, v in self._past]

    def keep(self, rows: Tensor) -> None:
        """Continue with some of the sequences."""
        self._past = [(k[rows], v[rows]) for k, v in self._past]

    def step(self, tokens: Tensor) -> Tensor:
        """Read one more token of each target, (n,); their hidden states, (n, hidden_size)."""
        ids = tokens[:, None]
        return self._read(ids, torch.ones_like(ids), None)

    def _read(self, ids: Tensor, types: Tensor, mask: Tensor | None) -> Tensor:
        hidden = self._model.embedded(ids, types)
        stop = self._position + ids.shape[1]
        angles = self._model.backbone.encoder.embed_positions.weight[self._position : stop]
        first = not self._past
        for number, layer in enumerate(self._layers):
            attention = layer.attention.self
            query, key, value = (
                self._heads(part(hidden)) for part in (attention.query, attention.key, attention.value)
            )
            query, key = attention.apply_rotary_position_embeddings(angles[None, None], query, key)
            if first:
                self._past.append((key, value))
            else:
                before = self._past[number]
                key, value = torch.cat([before[0], key], 2), torch.cat([before[1], value], 2)
                self._past[number] = (key, value)
            mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            attended = layer.attention.output(mixed.transpose(1, 2).flatten(2), hidden)
            hidden = layer.feed_forward_chunk(attended)
        self._position = stop
        return hidden[:, -1]

    def _heads(self, x: Tensor) -> Tensor:
        """(n, tokens, hidden_size) to (n, heads, tokens, head_size)."""
        heads = self._model.backbone.config.num_attention_heads
        return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    return run(_PROGRAM, lambda: _parse(arguments), usage=(ValueError, FileNotFoundError))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog=_PROGRAM,
        description="Sample sentences similar to the given ones (or to the lines of standard input).",
    )
    parser.set_defaults(run=_run)
    parser.add_argument("model", help="a model folder with generator.safetensors")
    parser.add_argument("texts", nargs="*")
    parser.add_argument("-n", type=int, default=100, help="samples per sentence (default: 100)")
    parser.add_argument("-k", type=int, default=5, help="results per sentence (default: 5)")
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_intermixed_args(arguments)


def _run(options: argparse.Namespace) -> int:
    similar = SimilarSentences(options.model)
    for text in options.texts or (line.strip() for line in sys.stdin if line.strip()):
        show_result(text)
        for found, score in similar.generate(text, options.n, options.k, options.top_p, seed=options.seed):
            show_result(f"  {score:.3f}  {found}")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
