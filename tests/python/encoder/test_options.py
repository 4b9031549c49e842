"""The options of the compiled core: frozen, checked when created, and no key is ignored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embedkit import _core

NEEDED: dict[str, Any] = {"threads": 1, "prefix_ids": [1], "suffix_ids": [2], "max_length": 6}
CONFIG: dict[str, Any] = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 9,
    "max_position_embeddings": 12, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
}  # fmt: skip


def test_options_read_back() -> None:
    options = _core.EncodeOptions(**NEEDED, overflow="window", truncation_side="left")
    assert (options.threads, options.prefix_ids, options.max_length) == (1, [1], 6)
    assert (options.overflow, options.truncation_side) == ("window", "left")
    assert (options.batch_size, options.normalize, options.pair) == (0, False, None)
    changed = options.replace(first_text=7, profile=True)
    assert (changed.first_text, changed.profile, changed.overflow) == (7, True, "window")
    assert options.first_text == 0 and "max_length=6" in repr(options)
    with pytest.raises(AttributeError):
        options.threads = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"max_lenght": 7}, TypeError, "EncodeOptions has no option 'max_lenght'; it has threads, "),
        ({"max_length": "6"}, TypeError, "EncodeOptions: max_length is '6'"),
        ({"batch_size": -1}, TypeError, "EncodeOptions: batch_size is -1"),
        ({"pair": {"typed": False}}, TypeError, "EncodeOptions: pair is {'typed': False}"),
        ({"overflow": "cut"}, ValueError, "overflow is 'cut'; expected one of truncate, error, window"),
        ({"max_length": 2}, ValueError, "max_length is 2; it must exceed the 2 special tokens"),
        ({"threads": 0}, ValueError, "threads is 0; it must be at least 1"),
    ],
)
def test_bad_options_are_named(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _core.EncodeOptions(**{**NEEDED, **changes})
    with pytest.raises(error, match=message):
        _core.EncodeOptions(**NEEDED).replace(**changes)


def test_a_missing_option_is_named() -> None:
    with pytest.raises(TypeError, match="EncodeOptions lacks 'threads'"):
        _core.EncodeOptions(**{name: value for name, value in NEEDED.items() if name != "threads"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_place": "pre", "embedding_size": 4}, "take no projected embeddings"),
        (
            {"norm_place": "pre", "num_hidden_layers": 2, "num_hidden_groups": 1, "embedding_norm": True},
            "only if no layer is used twice",
        ),
        ({"position_buckets": 15, "max_relative_positions": 40}, "position_buckets is 15.*must be even"),
        ({"position_buckets": 2, "max_relative_positions": 2}, "the latter more than half of it plus 1"),
        (
            {"embedding_norm": False},
            "embeddings that are not normalized need layers that normalize their input",
        ),
    ],
)
def test_layers_that_no_path_computes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.EncoderConfig(**{**CONFIG, **changes})


def test_a_misspelt_key_of_a_config_or_a_module_is_named() -> None:
    assert _core.EncoderConfig(**CONFIG).padding_idx == -1
    with pytest.raises(TypeError, match="EncoderConfig has no option 'pading_idx'"):
        _core.EncoderConfig(**CONFIG, pading_idx=1)
    with pytest.raises(ValueError, match="hidden_size 8 is not a multiple of 3 heads"):
        _core.EncoderConfig(**{**CONFIG, "num_attention_heads": 3})
    large = {
        "hidden_size": 64,
        "num_attention_heads": 64,
        "max_position_embeddings": 1_000_000,
        "alibi": True,
    }
    with pytest.raises(ValueError, match="the table of distances for 64 heads would be too large"):
        _core.EncoderConfig(**{**CONFIG, **large})
    with pytest.raises(TypeError, match="HeadModule has no option 'weights'"):
        _core.HeadModule(type="dense", weights=np.eye(2, dtype=np.float32))  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="a dense module or a norm lacks its weight"):
        _core.HeadModule(type="dense")
    with pytest.raises(TypeError, match="AddedToken lacks 'id'"):
        _core.AddedToken(content="x")  # type: ignore[call-arg]
