"""A static model from an encoder: Model2Vec's method (Tulkens and van Dongen 2024, https://github.com/MinishLab/model2vec).

1. Each token of the vocabulary goes through the encoder alone, between the special tokens of a text; its vector is the
   mean of the last hidden states.
2. The principal components of these vectors: fewer dimensions, and all directions count alike more than before.
3. A token of rank r (vocabularies are sorted by frequency) is taken to have the probability p = (1 / (r + 1)) / Σ by
   Zipf's law, and its row is scaled by a / (a + p), the smooth inverse frequency of Arora et al. (2017), equation 1.

No texts and no training are needed. The folder is Model2Vec's, which sentence-transformers reads, too.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _core
from ...backends.core_engine import load_core
from ...backends.engine import tokenizer_of
from ...backends.opening import default_threads
from ...files import expanded
from ...model_folder.folder import BUILTIN, ModelFolder, open_folder
from ...model_folder.hub import resolve
from ...model_folder.json_file import present, read_json, write_json
from ...model_folder.modules import Pooling
from ...model_folder.rebuilt import rebuild
from ...model_folder.safetensors_file import write_errors
from ...model_folder.saving import check_new_folder, check_one_route, new_folder
from ...model_folder.tokenizer_files import TokenizerSettings
from ...model_folder.weights import weights_file

__all__ = ["StaticOptions", "distill_static"]

_LOG = logging.getLogger("embedkit")
_DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class StaticOptions:
    """What the static model is like.

    Attributes:
        dimension: of its vectors, at most the encoder's hidden size; None for that size.
        sif: the coefficient a of the smooth inverse frequency; None for rows as they are.
        dtype: of the table: ``"float32"``, or ``"float16"``, which halves the folder.
        unused: a regular expression of tokens that no text has; their rows are zeros, and they have no rank.
        threads: for the encoder; None for as many as the process may use.
    """

    dimension: int | None = 256
    sif: float | None = 1e-4
    dtype: str = "float32"
    unused: str = r"\[unused\d+\]"
    threads: int | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: one is out of range.
        """
        if self.dimension is not None and self.dimension < 1:
            raise ValueError(f"dimension must be positive, not {self.dimension}")
        if self.sif is not None and not 0 < self.sif < 1:
            raise ValueError(f"sif must be between 0 and 1, not {self.sif}")
        if self.dtype not in _DTYPES:
            raise ValueError(f"unknown dtype {self.dtype!r}; expected one of {', '.join(_DTYPES)}")
        try:
            re.compile(self.unused)
        except re.error as error:
            raise ValueError(f"unused {self.unused!r} is no regular expression: {error}") from None


def distill_static(
    model: str | os.PathLike[str] | None, output: str | os.PathLike[str], options: StaticOptions | None = None
) -> Path:
    """Make a static model from an encoder.

    Args:
        model: folder or Hub name of a transformer; None for the built-in model.
        output: the folder to write; it must not exist or be empty.
        options: what the model is like.

    Returns:
        ``output``.

    Raises:
        FileExistsError: the output exists and is not empty.
        FileNotFoundError: the model or its weights are missing.
        ValueError: the model is static already, has a Router, no tokenizer.json, or fewer dimensions than wanted.
    """
    options = options or StaticOptions()
    path = BUILTIN if model is None else resolve(model)
    folder = open_folder(path)
    check_one_route(folder)
    tokenizer_path = folder.transformer / "tokenizer.json"
    if folder.static is not None:
        raise ValueError(f"{path} is a static model already")
    weights_file(folder.transformer, folder.precision)
    if not present(tokenizer_path):
        raise ValueError(
            f"{path} has no tokenizer.json, which a static model needs: save the tokenizer with transformers first"
        )
    if options.dimension is not None and options.dimension > folder.hidden_size:
        raise ValueError(
            f"{path}: hidden_size is {folder.hidden_size}; a static model of it has at most as many dimensions, "
            f"not {options.dimension}"
        )
    target = expanded(output)
    check_new_folder(target)
    begin = time.perf_counter()
    vectors = _vocabulary_vectors(folder, options.threads)
    _LOG.info("%d tokens through %s in %.1f s", len(vectors), path, time.perf_counter() - begin)
    content = _tokenizer(folder)
    kept = _kept(content, len(vectors), options.unused)
    rows = np.zeros((len(vectors), options.dimension or folder.hidden_size), np.float32)
    rows[kept] = _components(vectors[kept], rows.shape[1])
    if options.sif is not None:
        rows[kept] *= sif_weights(len(kept), options.sif)[:, None]
    with new_folder(target) as work:
        _write(work, rows.astype(options.dtype), content, str(model or "the built-in model"), options)
    _LOG.info("%s: %d x %d in %.1f s", target, *rows.shape, time.perf_counter() - begin)
    return target


def sif_weights(count: int, coefficient: float) -> npt.NDArray[np.float32]:
    """The factors of tokens by rank, the most frequent first: a / (a + p), p by Zipf's law from rank 2 on."""
    inverse = 1 / np.arange(2, count + 2)
    return (coefficient / (coefficient + inverse / inverse.sum())).astype(np.float32)


def _tokenizer(folder: ModelFolder) -> dict[str, Any]:
    """The content of tokenizer.json with what the settings beside it change, which a static model does not read."""
    path = folder.transformer / "tokenizer.json"
    content, settings = read_json(path), TokenizerSettings(folder.transformer)
    made = rebuild(content, settings, settings.class_of_transformers, path)
    content |= {name: made.get(name) for name in ("normalizer", "pre_tokenizer")}
    if folder.do_lower_case:
        own = [content["normalizer"]] if content.get("normalizer") else []
        content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *own]}
    return content


def _vocabulary_vectors(folder: ModelFolder, threads: int | None) -> npt.NDArray[np.float32]:
    """(tokens, hidden_size): the mean hidden state of each token between the special tokens."""
    tokenizer = tokenizer_of(folder)
    core = load_core(replace(folder, pooling=Pooling(), head=()), [], folder.precision)
    around = len(tokenizer.prefix_ids) + len(tokenizer.suffix_ids)
    options = _core.EncodeOptions(
        threads=default_threads(threads),
        prefix_ids=list(tokenizer.prefix_ids),
        suffix_ids=list(tokenizer.suffix_ids),
        max_length=around + 1,
    )
    vectors, _ = core.encode_ids([[i] for i in range(tokenizer.vocab_size)], options)
    return np.asarray(vectors)


def _kept(content: dict[str, Any], count: int, unused: str) -> npt.NDArray[np.int64]:
    """The ids of the tokens that texts have, sorted; special tokens and those of the pattern are left out."""
    vocabulary = content["model"]["vocab"]
    names = (
        {i: token for i, (token, *_) in enumerate(vocabulary)}
        if isinstance(vocabulary, list)
        else {i: token for token, i in vocabulary.items()}
    )
    special = {token["id"] for token in content.get("added_tokens") or [] if token.get("special")}
    pattern = re.compile(unused)
    kept = [i for i in range(count) if i not in special and not pattern.fullmatch(names.get(i, ""))]
    if not kept:
        raise ValueError(f"the pattern {unused!r} of unused tokens leaves none")
    return np.array(kept)


def _components(vectors: npt.NDArray[np.float32], dimension: int) -> npt.NDArray[np.float32]:
    """The first principal components of the rows; centred, not whitened."""
    from sklearn.decomposition import PCA

    if dimension > len(vectors):
        raise ValueError(
            f"{len(vectors)} tokens have no {dimension} principal components; give a smaller dimension"
        )
    transformed = PCA(n_components=dimension, svd_solver="full" if len(vectors) < 500 else "covariance_eigh")
    return np.asarray(transformed.fit_transform(vectors), dtype=np.float32)


def _write(
    work: Path, rows: npt.NDArray[Any], content: dict[str, Any], name: str, options: StaticOptions
) -> None:
    from safetensors.numpy import save_file

    tokenizer = {**content, "post_processor": None, "truncation": None, "padding": None}
    (work / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    with write_errors(work / "model.safetensors"):
        save_file({"embeddings": rows}, work / "model.safetensors")
    shutil.copymode(work / "tokenizer.json", work / "model.safetensors")  # save_file's are their owner's only
    write_json(
        work / "config.json",
        {
            "model_type": "model2vec",
            "architectures": ["StaticModel"],
            "tokenizer_name": Path(name).name,
            "apply_pca": rows.shape[1],
            "sif_coefficient": options.sif,
            "hidden_dim": rows.shape[1],
            "seq_length": 1_000_000,
            "normalize": True,
            "max_length": 512,
            "embedding_dtype": options.dtype,
        },
    )
    kinds = (("StaticEmbedding", "."), ("Normalize", "1_Normalize"))
    write_json(
        work / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(kinds)
        ],
    )
    (work / "README.md").write_text(
        "---\nlibrary_name: model2vec\ntags: [embeddings, static-embeddings, sentence-transformers]\n---\n\n"
        f"A static model, distilled from {Path(name).name} by embedkit with Model2Vec's method: "
        f"{rows.shape[0]} tokens, {rows.shape[1]} dimensions. embedkit, model2vec and sentence-transformers open it.\n",
        encoding="utf-8",
    )
