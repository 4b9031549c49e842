"""`TokenWindow.pack`: a GPU batch in the caller's memory, against numpy and the readable tiles."""

from __future__ import annotations

import numpy as np
import pytest
from embedkit.kernels.attention_tiles import HEADER, attention_tiles, max_attention_tiles
from hypothesis import example, given, settings
from hypothesis import strategies as st

from embedkit import _core

SKIP = 3


def window_of(lengths: list[int], skip: int = 0) -> _core.TokenWindow:
    """Sequences of ids 5, 6, …, the first ``skip`` of which are not pooled."""
    ids = [list(range(5, 5 + length)) for length in lengths]
    options = _core.EncodeOptions(
        threads=1, prefix_ids=[], suffix_ids=[], max_length=1000, pool_skip=skip,
    )  # fmt: skip
    return _core.tokenize_window_ids(ids, options)


@given(
    lengths=st.lists(st.integers(0, 30) | st.integers(0, 300), max_size=60),
    block=st.sampled_from([16, 32, 64, 128]),
    idle=st.integers(0, 200),
    spare=st.integers(0, 4),
    skips=st.booleans(),
)
@example(lengths=[1, *[17, 1] * 50], block=16, idle=0, spare=0, skips=False)  # the most tiles
@example(lengths=[0, 0, 17, 0], block=16, idle=1, spare=1, skips=True)
@settings(deadline=None, max_examples=200)
def test_a_batch_is_that_of_numpy(lengths: list[int], block: int, idle: int, spare: int, skips: bool) -> None:
    window = window_of(lengths, SKIP)
    order = np.arange(len(lengths))[::-1].copy()
    packed = np.array(lengths, dtype=np.int32)[order]
    tokens = int(packed.sum()) + idle
    # Earlier content must not show.
    ids, positions = (np.full(tokens, -7, dtype=np.int32) for _ in range(2))
    bounds = np.full((2 if skips else 1) * (len(lengths) + spare) + 1, -7, dtype=np.int32)
    tiles = np.full((max_attention_tiles(tokens, block), HEADER + block), -7, dtype=np.int32)
    used = window.pack(order, ids, bounds, positions, tiles, skips=skips, vocab_size=400)

    assert used == tokens - idle
    np.testing.assert_array_equal(tiles, attention_tiles(packed, block, tokens=tokens, tiles=len(tiles)))
    within = np.concatenate([np.arange(length) for length in [*packed, 0]]).astype(np.int32)
    np.testing.assert_array_equal(positions, np.pad(within, (0, idle)))
    np.testing.assert_array_equal(ids, np.pad(within + 5, (0, idle)))
    ends = np.cumsum([*packed, *[0] * spare])
    if skips:
        begins = ends - [*packed, *[0] * spare] + np.minimum([*packed, *[0] * spare], SKIP)
        ends = np.stack([begins, ends], axis=1).ravel()
    np.testing.assert_array_equal(bounds, [0, *ends])


def test_only_the_first_window_of_a_text_has_the_prompt() -> None:
    options = _core.EncodeOptions(
        threads=1, prefix_ids=[], suffix_ids=[], max_length=4, pool_skip=2, overflow="window",
    )  # fmt: skip
    window = _core.tokenize_window_ids([[5] * 7, [5]], options)
    bounds = np.empty(7, dtype=np.int32)
    window.pack(np.arange(3), np.empty(8, dtype=np.int32), bounds, skips=True, vocab_size=9)
    assert bounds.tolist() == [0, 2, 4, 4, 7, 8, 8]


def test_what_does_not_fit_is_refused() -> None:
    window = window_of([17, 1, 17])
    order, ids, bounds = np.arange(3), np.empty(35, dtype=np.int32), np.empty(7, dtype=np.int32)
    few = np.empty((4, HEADER + 16), dtype=np.int32)
    with pytest.raises(ValueError, match="the batch has more tiles than the 4 that tiles has room for"):
        window.pack(order, ids, bounds, tiles=few, vocab_size=99)
    with pytest.raises(ValueError, match="more tiles than the 0 that"):
        window.pack(order, ids, bounds, tiles=few[:0], vocab_size=99)
    with pytest.raises(ValueError, match="cu_seqlens has room for 5 bounds, 3 sequences have 7"):
        window.pack(order, ids, bounds[:5], skips=True, vocab_size=99)
    with pytest.raises(ValueError, match="cu_seqlens has room for 8 bounds"):
        window.pack(order, ids, np.empty(8, dtype=np.int32), skips=True, vocab_size=99)
    for bad in (few.ravel(), few.astype(np.int64), few[:, 1:]):
        with pytest.raises(TypeError, match="tiles must be a writable, contiguous int32 array of 2 dim"):
            window.pack(order, ids, bounds, tiles=bad, vocab_size=99)
    with pytest.raises(ValueError, match="tiles has 4 columns; it must have more than 4"):
        window.pack(order, ids, bounds, tiles=np.empty((9, 4), dtype=np.int32), vocab_size=99)
