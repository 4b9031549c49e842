"""Positions and position biases of the forward pass for GPUs."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from embedkit.kernels.forward import relative_bias, token_positions


def test_positions_skip_the_padding() -> None:
    ids, lengths = np.array([5, 1, 6, 7, 1]), np.array([3, 0, 2])
    assert token_positions(ids, lengths, 1).tolist() == [2, 1, 3, 2, 1]
    assert token_positions(ids, lengths, -1).tolist() == [0, 1, 2, 0, 1]


def test_relative_bias_has_the_buckets_of_transformers() -> None:
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    number = np.arange(32, dtype=np.float32)
    table = relative_bias(np.stack([number, -number], axis=1), 600)
    expected = MPNetEncoder.relative_position_bucket(torch.arange(-599, 600), num_buckets=32)
    np.testing.assert_array_equal(table[0], expected.numpy())
    np.testing.assert_array_equal(table[1], -expected.numpy())
