"""The machine code of the 8-bit products for several GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from embedkit.kernels import layernorm_triton, quantized_linear_triton
from embedkit.kernels import quantized_linear as host
from embedkit.kernels.blocks import _TABLE as table
from embedkit.kernels.blocks import blocks, override
from embedkit.kernels.layernorm import row_blocks
from triton_harness import check_usage, compiled

# The first tensor cores for e4m3 are those of sm_89.
TARGETS = [("int8", 80), ("int8", 86), ("int8", 89), ("int8", 90), ("fp8", 89), ("fp8", 90)]
TARGETS += [(products, capability) for products in ("int8", "fp8") for capability in (100, 120)]
# Outputs, inputs, groups in, groups out: query, key and value; the two of the feed-forward part; odd sizes.
SHAPES = [(1152, 384, False, False), (1536, 384, False, True), (384, 1536, True, False)]


@pytest.mark.parametrize(("products", "capability"), TARGETS)
@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "to-groups", "from-groups"])
@pytest.mark.parametrize("tokens", [16, 16384], ids=["few", "many"])
def test_compiles_without_a_spill(
    *,
    products: str,
    capability: int,
    shape: tuple[int, int, bool, bool],
    tokens: int,
    tmp_path: Path,
    record_property: Any,
) -> None:
    outputs, inputs, grouped, quantize = shape
    eight = "*i8" if products == "int8" else "*fp8e4nv"
    types = {
        "x_ptr": eight, "x_scale_ptr": "*fp32", "weight_ptr": eight, "weight_scale_ptr": "*fp32",
        "weight_sums_ptr": "*fp32", "bias_ptr": "*bf16", "tokens": "i32",
        "out_ptr": eight if quantize else "*bf16",
    }  # fmt: skip
    types |= {"out_scale_ptr": "*fp32"} if quantize else {}
    shift = products == "int8" and not grouped
    types |= {"x_shift_ptr": "*fp32"} if shift else {}
    constants = host._options(tokens, outputs, capability, programs=132)
    constants |= {
        "N": outputs, "K": inputs, "PRODUCTS": products, "GROUPS": grouped, "SHIFT": shift, "BIAS": True,
        "ACTIVATION": "gelu" if quantize else "identity", "QUANTIZE": quantize,
    }  # fmt: skip
    code = compiled(quantized_linear_triton.forward, types, constants, capability)
    check_usage(code, tmp_path, record_property)
    instructions = {90: ("wgmma.mma_async",), 100: ("tcgen05.mma", "mma.sync")}.get(capability, ("mma.sync",))
    assert any(one in code.asm["ptx"] for one in instructions), "the tensor cores are not used"


@pytest.mark.parametrize(("products", "capability"), TARGETS)
def test_layer_norms_compile_without_a_spill(
    products: str, capability: int, tmp_path: Path, record_property: Any
) -> None:
    names = ("x_ptr", "residual_ptr", "x_bias_ptr", "weight_ptr", "bias_ptr", "out_ptr")
    types = {**dict.fromkeys(names, "*bf16"), "tokens": "i32", "eps": "fp32", "scale_ptr": "*fp32"}
    types |= {"q_ptr": "*i8", "shift_ptr": "*fp32"} if products == "int8" else {"q_ptr": "*fp8e4nv"}
    constants = {"H": 384, "X_BIAS": True, "QUANTIZE": products, **row_blocks(384, capability)}
    check_usage(compiled(layernorm_triton.residual, types, constants, capability), tmp_path, record_property)


def test_the_table_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table, "quantized_linear", {80: {"num_stages": 3}, 90: {"num_stages": 4}})
    stages = [blocks("quantized_linear", capability)["num_stages"] for capability in (75, 80, 89, 90, 100)]
    assert stages == [3, 3, 3, 4, 4]
    assert blocks("layernorm", 70, num_warps=4) == {"VALUES": 2048, "num_warps": 4}
    with override("layernorm", {"num_warps": 2}), override("layernorm", {"VALUES": 1024}):
        assert blocks("layernorm", 90, num_warps=4) == {"VALUES": 1024, "num_warps": 4}
    assert blocks("layernorm", 90, num_warps=4)["num_warps"] == 4
    with pytest.raises(ValueError, match="no kernel 'softmax'"), override("softmax", {}):
        pass


def test_a_gpu_without_the_tensor_cores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "capability_of", lambda _: 80)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "an A100")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    host.check_products("int8", torch.device("cuda"))
    with pytest.raises(
        ValueError, match=r"need compute capability 8\.9; an A100 has 8\.0\. Use int8 or none"
    ):
        host.check_products("fp8", torch.device("cuda"))
    with pytest.raises(ValueError, match="unknown products 'int4'"):
        host.check_products("int4", torch.device("cuda"))
