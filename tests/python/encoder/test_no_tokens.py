"""Texts without tokens: of a tokenizer that adds no special tokens, as those of some decoders."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
import sys
import numpy as np
from embedkit import Encoder
texts = ["", "the people", " ", "many days of water " * 20]
for precision in ("fp32", "bf16", "int8"):
    vectors = Encoder(sys.argv[1], precision=precision).encode(texts)
    assert not vectors[0].any() and not vectors[2].any() and vectors[1].any() and vectors[3].any(), precision
    assert np.array_equal(vectors[1], Encoder(sys.argv[1], precision=precision).encode(texts[1]))
"""


@pytest.mark.parametrize("isa", ["", "amx_emulated"])
def test_texts_without_tokens(make_model: Callable[..., Path], tmp_path: Path, isa: str) -> None:
    folder = Path(shutil.copytree(make_model(), tmp_path / "copy"))
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "post_processor": None}), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        check=True,
        timeout=300,
        env={**os.environ, **({"EMBEDKIT_ISA": isa} if isa else {})},
    )
