"""Factory strings: those accepted, and those refused because Faiss would crash, hang or fill the memory."""

from __future__ import annotations

import time

import numpy as np
import pytest

from embedkit.index.storage.factory import check_factory
from embedkit.index.storage.faiss_index import create_index, train


@pytest.mark.parametrize(
    "factory",
    [
        "Flat",
        "IVF1024,Flat",
        "IVF16_HNSW8,Flat",
        "IVF16,SQ8",
        "IVF16,SQfp16",
        "IVF16,PQ48",
        "IVF16,PQ48x4fs,RFlat",
        "HNSW32",
        "HNSW16,SQ8",
        "PQ48",
        "PQ48x4fs",
        "SQ8",
        "RaBitQ",
        "IVF16,RaBitQ",
        "PCA64,IVF16,Flat",
        "RR16,IVF16,Flat",
        "OPQ16_64,IVF1024,PQ16x4fs",
        "IVF16,Flat,RFlat",
        "IVF16,SQ4,Refine(Flat)",
    ],
)
def test_valid_factories(factory: str) -> None:
    check_factory(factory, 384)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("HNSW0", "has 0 neighbors of HNSW, expected 2 to 256"),
        ("HNSW1", "has 1 neighbors"),
        ("HNSW1000000", "has 1000000 neighbors"),
        ("IVF10_HNSW0,Flat", "has 0 neighbors"),
        ("IVF0,Flat", "has 0 lists of IVF"),
        ("IVF99999999999999999999,Flat", "lists of IVF, expected 1 to 16777216"),
        ("PQ16x0", "has 0 bits of PQ, expected 1 to 8"),
        ("IVF16,PQ48x11", "has 11 bits of PQ"),
        ("PQ0", "has 0 subvectors of PQ, expected 1 to 384"),
        ("PCA0,Flat", "has 0 dimensions after the transform"),
        ("PCA385,Flat", "expected 1 to 384"),
        ("NSG0", "unknown factory 'NSG0'; use 'auto', 'Flat', 'IVF1024,Flat'"),
        ("", "unknown factory ''"),
        ("garbage", "unknown factory 'garbage'"),
        ("IDMap,Flat", "unknown factory"),
        ("Flat\n", "unknown factory"),
    ],
)
def test_invalid_factories(factory: str, message: str) -> None:
    with pytest.raises(ValueError, match="factory") as refused:
        check_factory(factory, 384)
    assert message in str(refused.value)


def test_training_codes_takes_no_time_for_what_is_not_searched() -> None:
    sample = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
    for factory in ("PQ8", "PCA32,PQ8", "PQ8,RFlat", "IVF4,PQ8", "OPQ8_32,IVF4,PQ8,RFlat"):
        index = create_index(factory, 64)
        begin = time.process_time()
        train(index, sample)
        assert index.is_trained and time.process_time() - begin < 5  # 12 s with polysemous training
