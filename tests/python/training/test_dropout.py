"""Dropout of the trainer against what defines it: how many elements stay, what they become, their gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from embedkit.training.dropout import Dropout, dropout, replace_dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_share_and_scale(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(997, 1001, dtype=dtype)
    found = dropout(x, p)
    kept = found != 0
    assert found.dtype == dtype and found.shape == x.shape
    assert kept.float().mean() == pytest.approx(1 - p, abs=0.002)  # 4 standard deviations
    for axis in (0, 1):  # no row or column is another's
        shares = kept.float().mean(axis)
        assert shares.std() == pytest.approx((p * (1 - p) / x.shape[axis]) ** 0.5, rel=0.15)
    assert found[kept].unique().tolist() == pytest.approx(
        [1 / (1 - p)], rel=1e-4 if dtype == torch.float32 else 0.01
    )


def test_gradients_pass_where_elements_stay() -> None:
    torch.manual_seed(1)
    x = torch.randn(64, 33, requires_grad=True)
    found = dropout(x, 0.3)
    found.sum().backward()
    torch.testing.assert_close(x.grad, found.detach() / x.detach())


def test_follows_the_seed_and_the_state_of_pytorch() -> None:
    x = torch.ones(1000)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, second = dropout(x, 0.1), dropout(x, 0.1)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.1), first)


def test_nothing_and_everything() -> None:
    x = torch.ones(5)
    assert dropout(x, 0.0) is x
    assert not dropout(x, 1.0).any()
    assert dropout(torch.ones(0), 0.5).shape == (0,)


def test_modules_are_replaced_and_rest_outside_training() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Dropout1d(0.5))
    replace_dropout(model)
    assert [type(module) for module in model[1:]] == [Dropout, torch.nn.Dropout1d]
    x = torch.ones(2, 4)
    assert model[1].eval()(x) is x
    assert (model[1].train()(torch.ones(1000)) == 0).any()
