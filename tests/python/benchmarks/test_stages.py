"""The core's stage clocks, and the table and plot of `benchmarks/throughput.py --profile`."""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embedkit import Encoder, _core

STAGES = ["tokenize", "quantize", "products", "attention", "element-wise", "pool", "hand-over", "wait"]
TEXTS = ["the weather is lovely today", "people look", "a", "sunny day in the stadium and out"] * 200


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("threads", [1, 2])
def test_stages_cover_the_call(precision: str, threads: int, make_model: Callable[..., Path]) -> None:
    encoder = Encoder(make_model(), precision=precision, threads=threads)
    engine = encoder._engine
    tokenizer = engine.tokenizer
    options = _core.EncodeOptions(
        threads=threads,
        prefix_ids=list(tokenizer.prefix_ids),
        suffix_ids=list(tokenizer.suffix_ids),
        max_length=64,
    )
    for texts in (TEXTS, TEXTS[:1]):  # batches per thread, and one batch for all workers
        plain, without = engine.core.encode(texts, tokenizer.core, options)
        assert "stages" not in without
        start = time.perf_counter()
        vectors, stats = engine.core.encode(texts, tokenizer.core, options.replace(profile=True))
        elapsed = time.perf_counter() - start
        np.testing.assert_array_equal(vectors, plain)
        stages = stats["stages"]
        assert list(stages) == STAGES
        assert min(stages.values()) >= 0
        assert 0 < sum(stages.values()) <= threads * elapsed
        for name in ("tokenize", "products", "attention", "element-wise", "pool"):
            assert stages[name] > 0, name
        assert (stages["quantize"] > 0) == (precision == "int8")


def test_the_report(make_model: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import stages

    model = make_model()
    result = stages.run(argparse.Namespace(threads=1, rounds=2), model, TEXTS)
    assert result["model"] == model.name
    text = stages.show(result)
    assert all(name in text for name in (*STAGES, "call without clocks", "int8 ms", "fp32 ms"))
    stages.plot(result, tmp_path / "stages.png")
    assert (tmp_path / "stages.png").stat().st_size > 1000
