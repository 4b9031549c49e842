"""Texts that overflow the type of a GPU's model, on a simulated device."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from eager_device import PlainModel, packed

import embedkit.encoder
from embedkit import Encoder

Make = Callable[..., Path]
pytestmark = pytest.mark.filterwarnings("ignore:.*longer than max_length")


class Narrow(PlainModel):
    """Texts with the token ``beyond`` overflow."""

    def __init__(self, folder: Path, beyond: int) -> None:
        super().__init__(folder)
        self.beyond = beyond

    def hidden(self, batch: Any) -> Any:
        hidden = super().hidden(batch)
        ends = [end for end in batch.cu_seqlens.tolist() if end]
        for start, end in zip([0, *ends], ends, strict=False):
            if (batch.input_ids[start:end] == self.beyond).any():
                hidden[start:end] = float("inf")
        return hidden


@pytest.fixture
def folder(make_model: Make, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.set_num_threads(1)
    monkeypatch.setattr(embedkit.encoder, "_WINDOW", 130)
    return make_model()


@pytest.fixture
def beyond(folder: Path) -> int:
    encoder = Encoder(folder)
    return int(encoder.tokenize(["water"])["input_ids"][0][1])


def mixed(texts: list[str]) -> list[str]:
    """Every seventh text overflows."""
    return ["water " + text if i % 7 == 3 else text.replace("water", "day") for i, text in enumerate(texts)]


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int8", "ubinary"])
def test_they_are_encoded_in_a_wider_type(
    folder: Path, texts: list[str], beyond: int, dtype: Any, tensor: bool
) -> None:
    loaded = []

    def wider() -> PlainModel:
        loaded.append(PlainModel(folder))
        return loaded[-1]

    encoder, _, narrow = packed(folder, model=Narrow(folder, beyond), wider=wider)
    given = mixed(texts)
    ranges = np.stack([np.full(32, -0.5), np.full(32, 0.5)]) if dtype == "int8" else None
    options: dict[str, Any] = {"output_dtype": dtype, "ranges": ranges}
    expected = Encoder(folder).encode(given, **options)
    with pytest.warns(UserWarning, match="overflow fp32 and are encoded in bf16") as seen:
        for _ in range(3):  # the last time from graphs
            result = np.asarray(encoder.encode(given, convert_to_tensor=tensor, **options))
            if dtype == "float32":
                np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)
            else:
                assert (result != expected).mean() < 0.002
    assert len([one for one in seen if "encoded in bf16" in str(one.message)]) == len(loaded) == 1
    assert encoder.describe()["overflowed"] == 3 * len(given[3::7])
    # Only those that overflow are encoded twice.
    tokens = {ids: all_ for ids, all_ in loaded[0].batches}
    assert sum(used for used, _ in loaded[0].batches) < sum(used for used, _ in narrow.batches) / 3, tokens


def test_token_embeddings(folder: Path, texts: list[str], beyond: int) -> None:
    encoder, _, _ = packed(folder, model=Narrow(folder, beyond), wider=lambda: PlainModel(folder))
    given = mixed(texts[:40])
    expected = Encoder(folder).encode(given, output_value="token_embeddings")
    for of_tensors in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = encoder.encode(given, output_value="token_embeddings", convert_to_tensor=of_tensors)
        for got, want in zip(result, expected, strict=True):
            np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*overflow fp32")
def test_token_embeddings_beside_texts_without_tokens(folder: Path, beyond: int, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    tokenizer = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    (copy / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}), encoding="utf-8")
    encoder, _, _ = packed(copy, model=Narrow(copy, beyond), wider=lambda: PlainModel(copy))
    core = Encoder(copy)
    for given in (["", "the day", " ", "sunny water", "", "day"], ["", "water"], ["water", ""], ["", " "]):
        result = encoder.encode(given, output_value="token_embeddings")
        expected = core.encode(given, output_value="token_embeddings")
        assert [len(one) for one in result] == [len(one) for one in core.tokenize(given)["input_ids"]]
        for got, want in zip(result, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*overflow fp32")
def test_a_text_that_overflows_every_type_is_named(folder: Path, texts: list[str], beyond: int) -> None:
    encoder, _, _ = packed(
        folder, model=Narrow(folder, beyond), wider=lambda: Narrow(folder, beyond), on_overflow="window"
    )
    given = [text.replace("water", "day") for text in texts]
    given[200] = "sunny water"
    with pytest.raises(ValueError, match=r"texts\[200\]: its embedding is not finite"):
        encoder.encode(given)
    with pytest.raises(ValueError, match=r"texts\[200\]: its embedding is not finite"):
        list(encoder.encode_iter(given, block_size=60))
    expected = Encoder(folder, on_overflow="window").encode(given[:200])
    np.testing.assert_allclose(encoder.encode(given[:200]), expected, rtol=0, atol=1e-5)


def test_no_memory_for_the_wider_type(folder: Path, texts: list[str], beyond: int) -> None:
    def wider() -> PlainModel:
        raise torch.OutOfMemoryError("CUDA out of memory")

    encoder, _, _ = packed(folder, model=Narrow(folder, beyond), wider=wider)
    with pytest.raises(MemoryError, match="open the Encoder with precision='bf16'"):
        encoder.encode(mixed(texts))
