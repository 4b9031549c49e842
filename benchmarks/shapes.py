"""Model folders of any shape with random weights, and the operations of a shape."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import family_shapes
import numpy as np

__all__ = ["build", "describe", "flops", "flops_per_token", "hidden_size", "parameters", "project"]


def flops_per_token(folder: Path) -> float:
    """Operations of the matrix products with weights: 2·(4·H² + 2·H·F) per layer, 3·H·F with gates.

    Attention's own products are not counted: they grow with the length of the text, and at 16 tokens add 1 %.
    """
    config = json.loads((folder / "config.json").read_text())
    if (gated := family_shapes.flops_per_token(config)) is not None:
        return gated
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    return 2.0 * (4 * hidden**2 + 2 * hidden * inner) * config["num_hidden_layers"]


def flops(folder: Path, lengths: Sequence[int]) -> float:
    """Operations of all products for texts of ``lengths`` tokens, including attention (4·H·n² per layer)."""
    config = json.loads((folder / "config.json").read_text())
    attention = 4.0 * config["hidden_size"] * config["num_hidden_layers"] * sum(n * n for n in lengths)
    return flops_per_token(folder) * sum(lengths) + attention


def hidden_size(folder: Path) -> int:
    """Hidden size of the transformer: the dimension of its vectors without a projection."""
    return int(json.loads((folder / "config.json").read_text())["hidden_size"])


def parameters(folder: Path) -> int:
    """Number of parameters in the folder's safetensors files, without the pooler, which no sentence encoder uses."""
    from safetensors import safe_open

    count = 0
    for file in sorted(folder.rglob("*.safetensors")):
        with safe_open(file, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - safe_open has no iteration
                if not name.startswith("pooler."):
                    count += int(np.prod(tensors.get_slice(name).get_shape()))
    return count


def project(source: Path, dimension: int, folder: Path) -> Path:
    """Copy a model folder and add a random projection to ``dimension`` after the pooling; return its path."""
    from safetensors.numpy import save_file

    target = folder / f"{source.name}-{dimension}"
    shutil.copytree(source, target, dirs_exist_ok=True)
    hidden = hidden_size(source)
    dense = target / "2_Dense"
    dense.mkdir(exist_ok=True)
    options = {
        "in_features": hidden,
        "out_features": dimension,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    (dense / "config.json").write_text(json.dumps(options, indent=1))
    random = np.random.default_rng(0)
    weight = random.standard_normal((dimension, hidden), dtype=np.float32) * np.float32(hidden**-0.5)
    tensors = {"linear.weight": weight, "linear.bias": np.zeros(dimension, dtype=np.float32)}
    save_file(tensors, dense / "model.safetensors", metadata={"format": "pt"})
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}
    (target / "3_Normalize").mkdir(exist_ok=True)
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (target / "modules.json").write_text(json.dumps(entries, indent=1))
    return target


def describe(folder: Path) -> str:
    """For example "6 layers, hidden size 384, 12 heads, intermediate size 1536"."""
    config = json.loads((folder / "config.json").read_text())
    random = f"random weights, {config['model_type']}, " if folder.name.startswith("random-") else ""
    return random + (
        f"{config['num_hidden_layers']} layers, hidden size {config['hidden_size']}, "
        f"{config['num_attention_heads']} heads, intermediate size {config['intermediate_size']}"
    )


def build(shape: str, tokenizer_of: Path, folder: Path) -> Path:
    """Write a BERT model folder with random weights and another folder's tokenizer; return its path.

    Args:
        shape: "layers=12,hidden=768,heads=12,intermediate=3072,pooling=cls"; pooling is mean or cls. Or a name of
            `family_shapes.SHAPES`.
        tokenizer_of: the folder whose tokenizer, vocabulary size and maximum length are used.
        folder: where the new folder is made.
    """
    if shape in family_shapes.SHAPES:
        return family_shapes.build(shape, tokenizer_of, folder)
    if "=" not in shape:
        raise SystemExit(f"--shape {shape!r}: no such shape; there are {', '.join(family_shapes.SHAPES)}")
    given = dict(part.split("=", 1) for part in shape.split(","))
    wanted = {"layers", "hidden", "heads", "intermediate", "pooling"}
    if set(given) != wanted or given["pooling"] not in ("mean", "cls"):
        raise SystemExit(
            f"--shape {shape!r}: give each of {', '.join(sorted(wanted))}; pooling is mean or cls"
        )
    layers, hidden, inner = (int(given[k]) for k in ("layers", "hidden", "intermediate"))
    target = folder / f"random-{layers}x{hidden}-{given['pooling']}"
    target.mkdir(parents=True, exist_ok=True)

    config = json.loads((tokenizer_of / "config.json").read_text())
    config |= {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": inner}
    config |= {
        "num_attention_heads": int(given["heads"]),
        "model_type": "bert",
        "architectures": ["BertModel"],
    }
    (target / "config.json").write_text(json.dumps(config, indent=1))
    _write_weights(target / "model.safetensors", config)

    names = ["tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"]
    for name in [*names, "sentence_bert_config.json"]:
        if (tokenizer_of / name).exists():
            shutil.copy(tokenizer_of / name, target / name)
    modules = ["Transformer", "Pooling", "Normalize"]
    entries = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if i == 0 else f"{i}_{name}",
            "type": f"sentence_transformers.models.{name}",
        }
        for i, name in enumerate(modules)
    ]
    (target / "modules.json").write_text(json.dumps(entries, indent=1))
    for i, name in list(enumerate(modules))[1:]:
        (target / f"{i}_{name}").mkdir(exist_ok=True)
    pooling = {
        "word_embedding_dimension": hidden,
        "pooling_mode_cls_token": given["pooling"] == "cls",
        "pooling_mode_mean_tokens": given["pooling"] == "mean",
    }
    (target / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=1))
    return target


def _write_weights(path: Path, config: dict[str, int]) -> None:
    from safetensors.numpy import save_file

    random = np.random.default_rng(0)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    tensors: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        tensors[name] = random.standard_normal((rows, columns), dtype=np.float32) * np.float32(0.05)

    def linear(name: str, rows: int, columns: int) -> None:
        matrix(f"{name}.weight", rows, columns)
        tensors[f"{name}.bias"] = random.standard_normal(rows, dtype=np.float32) * np.float32(0.02)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = np.ones(hidden, dtype=np.float32)
        tensors[f"{name}.bias"] = np.zeros(hidden, dtype=np.float32)

    matrix("embeddings.word_embeddings.weight", config["vocab_size"], hidden)
    matrix("embeddings.position_embeddings.weight", config["max_position_embeddings"], hidden)
    matrix("embeddings.token_type_embeddings.weight", config["type_vocab_size"], hidden)
    norm("embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", hidden, hidden)
        linear(f"{layer}.attention.output.dense", hidden, hidden)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", inner, hidden)
        linear(f"{layer}.output.dense", hidden, inner)
        norm(f"{layer}.output.LayerNorm")
    linear("pooler.dense", hidden, hidden)  # unused, but transformers warns if it is missing
    save_file(tensors, path, metadata={"format": "pt"})
