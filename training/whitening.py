"""Model folders with a computed projection: whitening (Su et al. 2021, arXiv:2103.15316) and PCA.

The map y = W^T (x - mean) of `embedkit.training.linear_map` becomes the last module of the folder, a Dense
layer without an activation whose bias is -W^T mean: `embedkit.Encoder` and sentence-transformers load it.
The recipe whitening-128 (objective `linear_map`) does it to any folder: a teacher's, or one that HPD trained.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .. import Encoder
from .linear_map import LinearMap, fit

__all__ = ["append_projection", "project_model"]

_SEED = 0  # of the sample


def project_model(
    model: str,
    texts: Sequence[str],
    dimension: int,
    output: Path,
    *,
    method: str = "whitening",
    samples: int = 100_000,
) -> LinearMap:
    """Fit a map on the vectors of texts and write the model with it.

    Args:
        model: folder or Hub name of an fp32 model that `embedkit.Encoder` loads.
        texts: sentences of the model's domain; repeated ones count once.
        dimension: of the new vectors.
        output: the new folder; must not exist or be empty. It appears whole or not at all.
        method: ``whitening`` or ``pca``.
        samples: most texts that are used, drawn without replacement.

    Raises:
        FileExistsError: ``output`` is not empty.
        FileNotFoundError, ValueError: the model is not there, or an argument does not fit it.
    """
    distinct = list(dict.fromkeys(texts))
    if len(distinct) > samples:
        drawn = np.random.default_rng(_SEED).choice(len(distinct), samples, replace=False)
        distinct = [distinct[i] for i in np.sort(drawn)]
    with Encoder(model) as encoder:
        _check_empty(output)
        fitted = fit(encoder.encode(distinct), dimension, method)
        append_projection(encoder, fitted, output)
    return fitted


def append_projection(encoder: Encoder, linear_map: LinearMap, output: Path) -> None:
    """Write the encoder's model with ``linear_map`` as its last module.

    Raises:
        FileExistsError: ``output`` is not empty.
        ValueError: the map does not take the encoder's vectors, or its weights are int8.
    """
    from safetensors.numpy import save_file

    width, dimension = linear_map.weight.shape
    if width != encoder.get_embedding_dimension():
        raise ValueError(
            f"the map takes {width} dimensions, the model gives {encoder.get_embedding_dimension()}; "
            "fit it on this model's vectors"
        )
    if encoder.truncate_dim is not None:
        raise ValueError("the model truncates its vectors; open it with all dimensions: truncate_dim is set")
    _check_empty(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    work = output.parent / f".{output.name}.{secrets.token_hex(8)}"
    try:
        encoder.save(work, precision="fp32")
        (work / "embedkit.json").unlink()  # the fingerprint in it is that of the model without the map
        modules = json.loads((work / "modules.json").read_text(encoding="utf-8"))
        name = f"{len(modules)}_Dense"
        modules.append(
            {
                "idx": len(modules),
                "name": str(len(modules)),
                "path": name,
                "type": "sentence_transformers.models.Dense",
            }
        )
        _write_json(work / "modules.json", modules)
        (work / name).mkdir()
        _write_json(
            work / name / "config.json",
            {
                "in_features": width,
                "out_features": dimension,
                "bias": True,
                "activation_function": "torch.nn.modules.linear.Identity",
            },
        )
        tensors = {"linear.weight": np.ascontiguousarray(linear_map.weight.T), "linear.bias": linear_map.bias}
        save_file(tensors, work / name / "model.safetensors")
        if output.exists():
            output.rmdir()
        work.rename(output)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _check_empty(output: Path) -> None:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"{output} exists and is not empty; remove it or give another folder")


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
