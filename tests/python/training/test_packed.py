"""Packed batches against transformers run on one text at a time, which needs neither padding nor a mask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from embedkit.training import packed
from embedkit.training.model import ModelOptions, Projection, SentenceModel, load_backbone, pack
from tiny_families import KINDS, tiny

LENGTHS = [5, 1, 17, 2, 40, 1, 23]  # 89 tokens: more than the 64 positions that a model has
ARCHITECTURES = ["bert", "roberta", "distilbert", "mpnet", "roformer"]


def save_random(folder: Path, kind: str) -> Path:
    """A small random model of an architecture, with weights that make every part affect the vectors."""
    sizes = {"vocab_size": 99, "max_position_embeddings": 66, "pad_token_id": 1 if kind != "bert" else 0}
    if kind == "distilbert":
        config = transformers.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, **sizes)
    else:
        layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        config = transformers.CONFIG_MAPPING[kind](hidden_size=32, **layers, **sizes)
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "LayerNorm" not in name and "layer_norm" not in name:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    return folder


def ids_of(seed: int = 0, end: int = 99) -> list[Any]:
    choose = np.random.default_rng(seed)
    return [choose.integers(5, end, length).astype(np.int32) for length in LENGTHS]


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_token_vectors_and_gradients_are_those_of_single_texts(kind: str, tmp_path: Path) -> None:
    folder = save_random(tmp_path, kind)
    options = ModelOptions(str(folder), max_length=64, dropout=0.0)
    model = SentenceModel.load(options).train()
    rows = ids_of()
    ids, cu_seqlens = pack(rows)
    weights = torch.randn(sum(LENGTHS), 32, generator=torch.Generator().manual_seed(1))
    found = model.hidden(ids, cu_seqlens)
    (found * weights).sum().backward()

    reference = load_backbone(options, folder).train()
    alone = [reference(input_ids=torch.from_numpy(row)[None].long()).last_hidden_state[0] for row in rows]
    expected = torch.cat(alone)
    (expected * weights).sum().backward()
    assert found.shape == (89, 32)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
    moved = 0
    for name, parameter in model.backbone.named_parameters():
        if gradients[name] is None:
            assert parameter.grad is None, name
            continue
        torch.testing.assert_close(parameter.grad, gradients[name], atol=5e-5, rtol=1e-4, msg=name)
        moved += 1
    assert moved > 20


@pytest.mark.parametrize(
    "kind,changes",
    [
        ("modernbert", {"local_attention": 16}),  # 40 tokens: far more than the window
        ("qwen3", {}),  # causal, three heads share keys
        ("qwen3", {"num_key_value_heads": 6}),  # causal alone
        ("gemma", {}),  # windows and one key head
    ],
)
def test_windows_causal_masks_and_shared_keys_are_kept(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    if not hasattr(transformers, KINDS[kind][0]):
        pytest.skip("this transformers lacks the model")
    folder = tiny(tmp_path, kind, **changes)
    options = ModelOptions(str(folder), max_length=64, dropout=0.0)
    model = SentenceModel.load(options).eval()
    rows = ids_of(end=18)
    reference = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = torch.cat(
            [reference(torch.from_numpy(row)[None].long()).last_hidden_state[0] for row in rows]
        )
        found = model.hidden(*pack(rows))
        saved = tmp_path / "saved"
        saved.mkdir()
        model.save(saved)
        again = model.hidden(*pack(rows))  # training goes on after a checkpoint
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(again, found, atol=0, rtol=0)


def test_blocks_hold_each_token_once_and_texts_of_like_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 300)
    cu_seqlens = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    grid = packed.blocks_of(cu_seqlens)
    x = torch.randn(int(lengths.sum()), 3)
    blocks = packed.spread(x, grid)
    assert torch.equal(packed.collect(blocks, grid), x)
    assert sum(len(block) for block in blocks) == 300 and len(blocks) < 12
    for values, (shape, mask) in zip(blocks, grid.blocks, strict=True):
        assert tuple(values.shape[:2]) == shape
        present = torch.ones(shape, dtype=torch.bool) if mask is None else mask[:, 0, 0]
        assert torch.equal(values.abs().sum(-1) > 0, present)
        assert shape[1] <= max(8, 1.5 * int(present.sum(1).min()))
    assert len(packed.grid_of(cu_seqlens).blocks) == 1


def test_passes_are_as_few_as_save_padding() -> None:
    choose = np.random.default_rng(0)
    for lengths, passes in (
        ([40], 1),
        ([40] * 50, 1),
        ([40] * 8 + [8] * 8, 1),  # 256 tokens of padding
        ([40] * 8 + [8] * 9, 2),
        ([300] + [10] * 90 + [30] * 90, 3),
        ([*choose.integers(1, 9, 16)], 1),
    ):
        mixed = choose.permutation(lengths)
        cu_seqlens = torch.from_numpy(np.concatenate([[0], np.cumsum(mixed)]))
        grid = packed.passes_of(cu_seqlens)
        assert len(grid.blocks) == passes, lengths
        x = torch.arange(1, int(mixed.sum()) + 1)
        ids = packed.pad(x, grid, 0)
        found = sorted([row[row > 0].tolist() for block in ids for row in block])
        assert found == [part.tolist() for part in x.split(mixed.tolist())]


@pytest.mark.parametrize("longest", [3, 40, 300])
def test_attention_in_bfloat16_is_that_of_fp32_on_the_same_values(longest: int) -> None:
    lengths = torch.tensor([longest, max(1, longest // 2), 2])
    mask = (torch.arange(longest) < lengths[:, None])[:, None, None, :]
    found, expected = [], []
    for dtype, values in ((torch.bfloat16, found), (torch.float32, expected)):
        torch.manual_seed(0)
        parts = [torch.randn(3, 4, longest, 32).bfloat16().to(dtype).requires_grad_() for _ in range(3)]
        weights = torch.randn(3, 4, longest, 32).bfloat16().to(dtype)
        if dtype == torch.bfloat16:
            mixed = packed._attend(*parts, mask=mask)
        else:
            mixed = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask)
        (mixed * weights).sum().backward()
        values += [mixed.float(), *(part.grad.float() for part in parts)]
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.linalg.vector_norm(ours - theirs) < 0.01 * torch.linalg.vector_norm(theirs)


def test_what_is_packed() -> None:
    """transformers 5 packs these; 4.48 has no attention interface, so all are padded."""
    configs = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    kinds = [transformers.BertConfig, transformers.MPNetConfig]
    bert, mpnet = (transformers.AutoModel.from_config(kind(**configs)) for kind in kinds)
    assert not packed.supports(mpnet)
    assert packed.supports(bert) == (int(transformers.__version__.split(".")[0]) >= 5)


def random_model(kind: str) -> Any:
    """A model of two layers of a family, as initialized, with all weights moved."""
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip("this transformers lacks the model")
    config = transformers.CONFIG_MAPPING[kind](
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=66,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    sizes = {"hidden_dim": 64, "embedding_size": 32, "num_key_value_heads": 4, "head_dim": 8}
    for name, value in sizes.items():
        if hasattr(config, name):
            setattr(config, name, value)
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model.get_input_embeddings().weight[1] = 0  # of padding, as MobileBERT needs
    return model


@pytest.mark.parametrize("kind", [*sorted(packed.FAMILIES), "mobilebert", "esm"])
def test_a_text_has_the_vectors_that_it_has_alone(kind: str, tmp_path: Path) -> None:
    backbone = random_model(kind)
    rows = ids_of(end=90)[:5]
    with torch.no_grad():
        alone = [backbone(input_ids=torch.from_numpy(row)[None].long()).last_hidden_state[0] for row in rows]
        model = SentenceModel(ModelOptions("unused"), tmp_path, backbone).eval()
        found = model.hidden(*pack(rows))
    torch.testing.assert_close(found, torch.cat(alone), atol=1e-5, rtol=1e-4)
    if kind not in packed.FAMILIES:
        assert not model._packed


def test_attention_dropout_only_in_training(make_model: Callable[..., Path]) -> None:
    options = ModelOptions(str(make_model()), max_length=64, config={"hidden_dropout_prob": 0.0})
    model = SentenceModel.load(options)
    batch = pack(ids_of())
    assert not torch.equal(model.train()(*batch), model(*batch))
    assert torch.equal(model.eval()(*batch), model(*batch))


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("activation", [None, "identity", "tanh"])
@pytest.mark.parametrize("normalize", [False, True])
def test_pooling_projection_normalize(
    pooling: str, activation: str | None, normalize: bool, make_model: Callable[..., Path]
) -> None:
    projection = None if activation is None else Projection(7, activation)
    options = ModelOptions(
        str(make_model()), max_length=64, pooling=pooling, projection=projection, normalize=normalize
    )
    torch.manual_seed(3)
    model = SentenceModel.load(options).eval()
    ids, cu_seqlens = pack(ids_of())
    with torch.no_grad():
        found = model(ids, cu_seqlens).numpy()
        hidden = model.hidden(ids, cu_seqlens).numpy().astype(np.float64)
    rows = np.split(hidden, cu_seqlens[1:-1].numpy())
    pools: dict[str, Callable[[Any], Any]] = {
        "mean": lambda x: x.mean(0),
        "max": lambda x: x.max(0),
        "cls": lambda x: x[0],
    }
    expected = np.stack([pools[pooling](row) for row in rows])
    if model.projection is not None:
        expected = expected @ model.projection.weight.detach().numpy().T.astype(np.float64)
        expected += model.projection.bias.detach().numpy()
        expected = np.tanh(expected) if activation == "tanh" else expected
    if normalize:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert found.shape == (7, model.dimension)
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_the_backbone_alone_is_refused(make_model: Callable[..., Path]) -> None:
    model = SentenceModel.load(ModelOptions(str(make_model()), max_length=64))
    if not packed.supports(model.backbone):
        pytest.skip("this transformers has no attention interface, batches are padded")
    with pytest.raises(ValueError, match="call SentenceModel"):
        model.backbone(input_ids=torch.ones(1, 3, dtype=torch.long))
