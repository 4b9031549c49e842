"""Weights: stored types, shards, names, quantization, and damaged checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedkit import Encoder
from embedkit.model_folder.architectures import TensorSpec
from embedkit.model_folder.folder import open_folder
from embedkit.model_folder.safetensors_file import to_bf16
from embedkit.model_folder.weights import core_head, core_tensors, quantize, stored_tensors

QUERY = "encoder.layer.1.attention.self.query.weight"


@pytest.fixture
def folder(make_model: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(make_model(dense=((24, "Tanh", True),)), tmp_path / "copy"))


def change(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_stored_types_are_read_exactly(make_model: Callable[..., Path], dtype: str) -> None:
    pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    folder = make_model(dtype=dtype)
    expected = load_torch(folder / "model.safetensors")
    tensors = core_tensors(open_folder(folder), "fp32")
    assert len(tensors) == 5 + 16 * 2
    for name, tensor in tensors.items():
        assert tensor.flags.c_contiguous
        kept = dtype == "bfloat16" and tensor.ndim == 2 and "token_type" not in name
        assert tensor.dtype == (np.uint16 if kept else np.float32)
        values = (tensor.astype(np.uint32) << 16).view(np.float32) if kept else tensor
        np.testing.assert_array_equal(values, expected[name].float().numpy())
    floats = dict(stored_tensors(open_folder(folder)))
    assert {tensor.dtype for tensor in floats.values()} == {np.dtype(np.float32)}


def test_rounding_to_bf16_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 100_000, np.uint32)
    ties = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    values = np.concatenate([bits, ties, bits & np.uint32(0x807FFFFF)]).view(
        np.float32
    )  # the last: subnormal
    values = values[np.isfinite(values)]
    expected = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    np.testing.assert_array_equal(to_bf16(values), expected)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_bf16_folder_gives_the_vectors_of_its_values_in_fp32(
    make_model: Callable[..., Path], tmp_path: Path, precision: str
) -> None:
    halves = make_model(dtype="bfloat16")
    floats = Path(shutil.copytree(halves, tmp_path / "floats"))
    save_file(dict(stored_tensors(open_folder(halves))), floats / "model.safetensors")
    texts = ["the people use water", "many days", ""]
    of_halves, of_floats = (Encoder(folder, precision=precision) for folder in (halves, floats))
    np.testing.assert_array_equal(of_halves.encode(texts), of_floats.encode(texts))


def test_bf16_halves_the_tables_of_embeddings(make_model: Callable[..., Path]) -> None:
    folder = open_folder(make_model())
    sizes = {
        precision: {name: tensor.nbytes for name, tensor in core_tensors(folder, precision).items()}
        for precision in ("fp32", "bf16")
    }
    for name in ("embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight"):
        assert 2 * sizes["bf16"][name] == sizes["fp32"][name]


def test_a_bf16_value_that_is_not_finite_is_named(make_model: Callable[..., Path], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    folder = Path(shutil.copytree(make_model(dtype="bfloat16"), tmp_path / "copy"))
    tensors = load_torch(folder / "model.safetensors")
    tensors[QUERY][3, 5] = torch.inf
    save_torch(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=rf"{re.escape(QUERY)}' holds inf at \[3, 5\]"):
        core_tensors(open_folder(folder), "fp32")


@pytest.mark.parametrize("prefix", ["bert.", ""])
def test_prefixes_and_old_layer_norm_names(folder: Path, prefix: str) -> None:
    expected = core_tensors(open_folder(folder), "fp32")
    expected = {name: tensor.copy() for name, tensor in expected.items()}

    def rename(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            )
            tensors[prefix + old] = tensors.pop(name)

    change(folder, rename)
    read = core_tensors(open_folder(folder), "fp32")
    assert list(read) == list(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(read[name], tensor)


def test_shards(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, part in shards.items():
        save_file({name: tensors[name] for name in part}, folder / shard)
    index = {"weight_map": {name: shard for shard, part in shards.items() for name in part}}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    read = core_tensors(open_folder(folder), "fp32")
    np.testing.assert_array_equal(read[QUERY], tensors[QUERY])

    for bad in ("../x.safetensors", "/x.safetensors", "x.bin", 5):
        path.write_text(json.dumps({"weight_map": {**index["weight_map"], QUERY: bad}}))
        with pytest.raises(ValueError, match="not a safetensors file in this folder"):
            core_tensors(open_folder(folder), "fp32")
    path.write_text(json.dumps({"weight_map": {**index["weight_map"], QUERY: "gone.safetensors"}}))
    with pytest.raises(
        FileNotFoundError, match=r"gone\.safetensors is missing; model\.safetensors\.index\.json"
    ):
        core_tensors(open_folder(folder), "fp32")
    path.write_text("{}")
    with pytest.raises(ValueError, match="weight_map is missing"):
        core_tensors(open_folder(folder), "fp32")


def test_missing_tensor(folder: Path) -> None:
    change(folder, lambda tensors: tensors.pop(QUERY))
    with pytest.raises(ValueError, match=rf"model\.safetensors: tensor '{QUERY}' is missing"):
        core_tensors(open_folder(folder), "fp32")


def test_missing_tensor_of_a_model_with_its_own_code(folder: Path) -> None:
    change(folder, lambda tensors: tensors.pop(QUERY))
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": {"AutoModel": "modeling.Model"}}))
    with pytest.raises(ValueError, match=r"is missing; the model has code of its own \(auto_map in config"):
        core_tensors(open_folder(folder), "fp32")


def test_wrong_shape(folder: Path) -> None:
    change(folder, lambda tensors: tensors.update({QUERY: np.zeros((32, 31), np.float32)}))
    with pytest.raises(
        ValueError, match=rf"'{QUERY}' has the shape \[32, 31\], config.json makes it \[32, 32\]"
    ):
        core_tensors(open_folder(folder), "fp32")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(folder: Path, value: float) -> None:
    change(folder, lambda tensors: tensors[QUERY].__setitem__((3, 4), value))
    with pytest.raises(ValueError, match=rf"'{QUERY}' holds -?(nan|inf) at \[3, 4\]; weights must be finite"):
        core_tensors(open_folder(folder), "fp32")


@pytest.mark.parametrize("dtype", [np.float64, np.int8])
def test_wrong_types(folder: Path, dtype: Any) -> None:
    change(folder, lambda tensors: tensors.update({QUERY: np.zeros((32, 32), dtype)}))
    with pytest.raises(ValueError, match=rf"'{QUERY}' is stored as (F64|I8)"):
        core_tensors(open_folder(folder), "fp32")


def test_dense_weights_are_checked(folder: Path) -> None:
    path = folder / "2_Dense" / "model.safetensors"
    save_file({"linear.weight": np.zeros((24, 32), np.float32)}, path)
    with pytest.raises(ValueError, match=r"2_Dense.*'linear\.bias' is missing"):
        core_head(open_folder(folder))
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"2_Dense.*is missing: the model has no weights"):
        core_head(open_folder(folder))


def test_pickles_are_refused_with_a_remedy(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"only as a pickle \(pytorch_model\.bin\).*save_pretrained"):
        core_tensors(open_folder(folder), "fp32")
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors is missing"):
        core_tensors(open_folder(folder), "fp32")


def test_quantization_is_symmetric_per_row_and_closest() -> None:
    generator = np.random.default_rng(0)
    weight = generator.standard_normal((50, 33), dtype=np.float32) * generator.lognormal(
        0, 4, (50, 1)
    ).astype("f4")
    weight[7] = 0
    weight[8] = np.float32(1e-45)  # its scale is nearly zero
    weight[9] = 3e38
    spec = TensorSpec((50, 33), quantized=True)
    result = dict(quantize({"w": spec}, iter([("w", weight)])))
    quantized, scale = result["w"], result["w_scale"]
    assert quantized.dtype == np.int8 and scale.dtype == np.float32 and scale.shape == (50,)
    assert quantized.min() >= -127 and (quantized[7] == 0).all() and np.isfinite(scale).all()
    ordinary = [row for row in range(50) if row not in (7, 8)]
    restored = quantized[ordinary].astype(np.float64) * scale[ordinary, None]
    error = np.abs(restored - weight[ordinary])
    assert (error <= scale[ordinary, None].astype(np.float64) * 0.5001).all()
    assert (np.abs(quantized[ordinary]).max(axis=1) == 127).all()  # each row uses its whole range


def test_what_is_quantized(folder: Path) -> None:
    model = open_folder(folder)
    tensors = core_tensors(model, "int8")
    int8 = {name for name, tensor in tensors.items() if tensor.dtype == np.int8}
    assert {name + "_scale" for name in int8} == {name for name in tensors if name.endswith("_scale")}
    assert int8 == {name for name, tensor in core_tensors(model, "fp32").items() if tensor.ndim == 2} - {
        "embeddings.token_type_embeddings.weight"
    }


@pytest.mark.parametrize("prefix", ["bert.", ""])
@pytest.mark.parametrize(
    "name", ["encoder.layer.2.output.dense.bias", "encoder.layer.x", "encoder.layer.-1.a"]
)
def test_layers_that_the_config_does_not_count_are_refused(folder: Path, prefix: str, name: str) -> None:
    change(folder, lambda tensors: tensors.update({prefix + name: np.zeros(32, np.float32)}))
    with pytest.raises(
        ValueError, match=f"holds '{prefix}{name}', config.json makes num_hidden_layers 2"
    ) as e:
        core_tensors(open_folder(folder), "fp32")
    assert str(folder / "model.safetensors") in str(e.value)


def test_fewer_layers_in_the_config_than_in_the_file_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    with pytest.raises(
        ValueError, match=r"holds 'encoder\.layer\.1\..* num_hidden_layers 1; the files are of"
    ):
        core_tensors(open_folder(folder), "fp32")


def test_tensors_outside_the_encoder_are_left_alone(folder: Path) -> None:
    expected = core_tensors(open_folder(folder), "fp32")
    extra = {name: np.zeros(4, np.float32) for name in ("pooler.dense.weight", "cls.predictions.bias")}
    change(folder, lambda tensors: tensors.update(extra))
    assert core_tensors(open_folder(folder), "fp32").keys() == expected.keys()
