"""The arithmetic of the roofline model, by hand."""

from importlib import import_module
from types import ModuleType

import pytest


@pytest.fixture
def roofline() -> ModuleType:
    return import_module("roofline")


def test_terms_of_minilm_by_hand(roofline: ModuleType) -> None:
    terms = {term.name: term for term in roofline.model(roofline.Shape(), 16384, 16, roofline.GPUS["H200"])}
    assert terms["QKV"].flops == 2 * 16384 * 384 * 1152
    assert terms["QKV"].bytes == 16384 * (384 + 1152) * 2
    assert terms["QKV"].seconds == pytest.approx(
        6 * (terms["QKV"].flops / (989e12 * roofline.PRODUCTS) + roofline.LAUNCH)
    )
    assert terms["FFN1"].flops == terms["FFN2"].flops == 4 * terms["out"].flops
    # Two norms: each reads two rows and writes one.
    assert terms["norms"].bytes == 2 * 3 * 16384 * 384 * 2
    assert terms["norms"].seconds == pytest.approx(
        6 * (terms["norms"].bytes / (4.8e12 * roofline.MEMORY) + 2 * roofline.LAUNCH)
    )
    assert (terms["norms"].bound, terms["QKV"].bound) == ("memory", "products")
    # 256 tiles of 64 tokens, each 64 x 64 scores of 12 heads, 32 multiply-adds each, twice.
    assert terms["attention"].flops == 4 * 256 * 64 * 64 * 12 * 32
    assert 0.9e-3 < roofline.total(terms.values()) < 1.3e-3


def test_less_memory_bandwidth_slows_what_it_bounds(roofline: ModuleType) -> None:
    fast, slow = (
        roofline.model(roofline.Shape(), 16384, 16, roofline.GPUS[name]) for name in ("H200", "H100")
    )
    slower = {a.name for a, b in zip(fast, slow, strict=True) if b.seconds > a.seconds}
    assert {"norms", "attention"} <= slower and "FFN1" not in slower


@pytest.mark.parametrize(("length", "flops"), [(128, 2), (64, 1), (512, 8), (16, 1)])
def test_attention_grows_with_the_length_beyond_a_tile(length: int, flops: int, roofline: ModuleType) -> None:
    term = next(
        t
        for t in roofline.model(roofline.Shape(), 16384, length, roofline.GPUS["H200"])
        if t.name == "attention"
    )
    assert term.flops == flops * 4 * 256 * 64 * 64 * 12 * 32


def test_kernels_in_order_are_the_terms(roofline: ModuleType) -> None:
    layer = ["gemm", "forward", "gemm", "residual", "gemm", "gemm", "residual"]
    kernels = [
        ("fill", 1.0),
        ("embed", 2.0),
        *((name, 1.0) for name in layer * 2),
        ("pool", 3.0),
        ("norm", 4.0),
    ]
    found = roofline.classify(kernels, 2)
    assert found == {
        "embeddings": 3.0, "QKV": 2.0, "attention": 2.0, "out": 2.0, "norms": 4.0, "FFN1": 2.0, "FFN2": 2.0,
        "pooling": 7.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match="5 kernels are not those of 2 layers: fill, embed"):
        roofline.classify(kernels[:5], 2)


def test_the_table_says_what_is_not_measured(roofline: ModuleType) -> None:
    terms = roofline.model(roofline.Shape(), 16384, 16, roofline.GPUS["H200"])
    shown = roofline.rows(terms, None)
    assert len(shown) == 7 and all(len(row) == len(roofline.HEADERS) for row in shown)
    assert {row[-1] for row in shown} == {"not measured yet"}
    measured = {"embeddings": 2e-6, **{term.name: 1e-5 for term in terms}, "pooling": 3e-6}
    shown = roofline.rows(terms, measured)
    assert all(len(row) == len(roofline.HEADERS) for row in shown)
    assert [(row[0], row[-1]) for row in shown] == [
        *((term.name, "10") for term in terms),
        *[("the layers", "60"), ("embeddings", "2"), ("pooling", "3"), ("all", "65")],
    ]
