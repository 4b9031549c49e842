"""The arithmetic of every kernel, against plain torch: under Triton's interpreter, and on a GPU if there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton_harness import INTERPRETED, run_cases

CASES = sorted(Path(__file__).parent.glob("*_cases.py"))


@pytest.fixture(params=CASES, ids=lambda path: path.stem.removesuffix("_cases"))
def cases(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    if path.stem == "forward_cases":
        pytest.importorskip("transformers")
    return path


def test_interpreted(cases: Path) -> None:
    run_cases(cases, **INTERPRETED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu(cases: Path) -> None:
    run_cases(cases, TRITON_INTERPRET="0")
