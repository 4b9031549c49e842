"""Reading safetensors files: equal to the safetensors package, and hostile files are refused by name."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from embedkit.model_folder.safetensors_file import SafetensorsFile, write_errors


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return path


def entry(dtype: str, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_what_cannot_be_written_is_an_error_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "t.safetensors"
    with pytest.raises(FileNotFoundError) as caught, write_errors(path):
        save_file({"a": np.zeros(1, np.float32)}, path)
    assert caught.value.filename == str(path)
    with pytest.raises(OSError, match="odd") as caught, write_errors(path):
        raise SafetensorError("odd")
    assert caught.value.errno == errno.EIO


def test_reads_what_safetensors_wrote(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    tensors = {
        "f32": generator.standard_normal((3, 5), dtype=np.float32),
        "i8": generator.integers(-127, 128, (4, 2), dtype=np.int8),
        "empty": np.zeros((0, 7), np.float32),
        "scalar": np.array(3.5, np.float32),
    }
    save_file(tensors, tmp_path / "t.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "t.safetensors")
    assert set(file) == set(tensors) and len(file) == 4
    for name, tensor in tensors.items():
        assert file.shape(name) == tensor.shape
        np.testing.assert_array_equal(file[name], tensor)
        assert file[name].dtype == tensor.dtype
    assert not file["f32"].flags.writeable and not file["f32"].flags.owndata  # a view of the file


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_become_the_same_float32_values(tmp_path: Path, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)  # every value of 16 bits
    tensor = bits.view(getattr(torch, dtype))
    save_torch({"all": tensor}, tmp_path / "t.safetensors")
    read = SafetensorsFile(tmp_path / "t.safetensors")["all"]
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, tensor.float().numpy())


def test_unaligned_data_is_copied(tmp_path: Path) -> None:
    values = np.arange(4, dtype=np.float32)
    header = json.dumps({"t": entry("F32", [4], 0, 16)}).encode()
    path = write(tmp_path / "t.safetensors", header + b" " * (1 - (8 + len(header)) % 2), values.tobytes())
    read = SafetensorsFile(path)["t"]
    assert read.flags.aligned
    np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"{", b"", "not valid JSON"),
        (b"\xff\xfe{}", b"", "not valid JSON"),
        (b"[" * 100_000, b"", "not valid JSON"),
        (b"[]", b"", "not a JSON object"),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":1}', b"x", "occurs twice"),
        ({"a": 5}, b"", "'a' is not an object"),
        ({"a": entry("F99", [1], 0, 4)}, b"1234", "'a' has the unknown type 'F99'"),
        ({"a": entry(["F32"], [1], 0, 4)}, b"1234", r"'a' has the unknown type \['F32'\]"),
        ({"a": entry({}, [1], 0, 4)}, b"1234", "'a' has the unknown type {}"),
        ({"a": entry("F32", [1] * 100_000, 0, 4)}, b"1234", r"'a' has the shape \[1, 1, .{,80}\. The file"),
        ({"a": entry("F32", [1] * 33, 0, 4)}, b"1234", r"'a' has the shape \[1, 1, "),
        ({"a": entry("F32", [10**4000] * 9, 0, 4)}, b"1234", r"'a' has the shape \[1000"),
        ({"a": entry("F32", [-1], 0, 4)}, b"1234", r"'a' has the shape \[-1\]"),
        ({"a": entry("F32", None, 0, 4)}, b"1234", "'a' has the shape None"),
        ({"a": entry("F32", [True], 0, 4)}, b"1234", r"'a' has the shape \[True\]"),
        ({"a": entry("F32", [1], 0, 8)}, b"1234", r"'a' lies at \[0, 8\] of 4 bytes"),
        ({"a": entry("F32", [1], 4, 0)}, b"1234", r"'a' lies at \[4, 0\]"),
        ({"a": entry("F32", [1], 0, 2)}, b"12", "needs 4 bytes, but has 2"),
        ({"a": entry("F32", [1 << 62, 1 << 62], 0, 4)}, b"1234", "but has 4"),
        ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, b"123456", "'b' overlaps"),
        ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [2], 5, 7)}, b"1234567", "'b' leaves a hole"),
        ({"a": entry("U8", [4], 0, 4)}, b"123456", "2 bytes at the end belong to no tensor"),
    ],
)
def test_inconsistent_files_are_refused(tmp_path: Path, header: Any, data: bytes, message: str) -> None:
    path = write(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(ValueError, match=message) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value) and "fetch it again" in str(caught.value)


def test_header_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    with pytest.raises(ValueError, match=rf"claims {1 << 60} bytes of a file of 10"):
        SafetensorsFile(path)


@pytest.mark.parametrize("size", [0, 7])
def test_file_without_a_header_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(b"\0" * size)
    with pytest.raises(ValueError, match=f"{size} bytes is too short"):
        SafetensorsFile(path)


def test_every_truncation_of_a_real_file_is_refused(tmp_path: Path) -> None:
    save_file({"a": np.ones((2, 3), np.float32), "b": np.ones(5, np.int8)}, tmp_path / "t.safetensors")
    whole = (tmp_path / "t.safetensors").read_bytes()
    path = tmp_path / "cut.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="fetch it again"):
            SafetensorsFile(path)


def test_other_types_are_listed_but_not_read(tmp_path: Path) -> None:
    save_file({"ids": np.arange(3)}, tmp_path / "t.safetensors")
    file = SafetensorsFile(tmp_path / "t.safetensors")
    assert file.dtype("ids") == "I64"
    with pytest.raises(ValueError, match="'ids' is stored as I64; embedkit reads F32, F16, BF16 and I8"):
        file["ids"]
