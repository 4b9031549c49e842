"""SimCSE against its formula, over several processes, in mini-batches, and a run that learns."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from embedkit.training.data.readers import Table
from embedkit.training.data.store import TextStore
from embedkit.training.model import ModelOptions, Projection, SentenceModel, pack
from embedkit.training.objectives.simcse import SimCse, SimCseOptions, contrastive_loss
from embedkit.training.recipe import find_recipe, list_recipes, load_recipe
from embedkit.training.trainer import train
from objective_fixtures import _NOUNS, _VERBS, losses, make_recipe

from embedkit import Encoder

MakeModel = Callable[..., Path]


def formula(anchors: Any, positives: Any, negatives: Any, temperature: float) -> float:
    """Equation 1 of HPD, term by term in double precision."""

    def sim(a: Any, b: Any) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) / temperature

    total = 0.0
    for i, anchor in enumerate(anchors):
        bottom = sum(np.exp(sim(anchor, positive)) for positive in positives)
        if negatives is not None:
            bottom += sum(np.exp(sim(anchor, negative)) for negative in negatives)
        total -= np.log(np.exp(sim(anchor, positives[i])) / bottom)
    return total / len(anchors)


@pytest.mark.parametrize("hard", [True, False])
def test_loss_is_the_formula(hard: bool) -> None:
    a, p, n = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64).unbind()
    loss = contrastive_loss(a, p, n if hard else None, 0.3)
    want = formula(a.numpy(), p.numpy(), n.numpy() if hard else None, 0.3)
    assert loss.item() == pytest.approx(want, rel=1e-12)


def test_matryoshka_is_the_mean_of_both_widths(make_model: MakeModel, texts: list[str]) -> None:
    options = SimCseOptions(temperature=0.3, matryoshka=[5])
    model = SentenceModel.load(
        ModelOptions(str(make_model()), dropout=0.0, projection=Projection(8), max_length=32)
    )
    tables = {"t": Table({"anchor": texts[:4], "positive": texts[4:8], "negative": texts[8:12]})}
    vectors = model.encode(texts[:12]).astype(np.float64).reshape(3, 4, 8)
    want = np.mean([formula(*vectors[..., :width], 0.3) for width in (5, 8)])
    store = TextStore(model.tokenizer_folder, texts[:12], 32)
    ids = [store.ids(row) for row in store.rows]
    with torch.no_grad():
        loss = SimCse(model, options, tables).eval()(torch.tensor(0), *pack(ids))["loss"]
    assert loss.item() == pytest.approx(want, rel=1e-5)
    with pytest.raises(ValueError, match=r"must be less than the 8"):
        SimCse(model, SimCseOptions(matryoshka=[8]), tables)
    with pytest.raises(ValueError, match="positive dimensions"):
        SimCseOptions(matryoshka=[0])


def test_gradients() -> None:
    vectors = torch.randn(3, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = [x.clone().requires_grad_() for x in vectors]
    assert torch.autograd.gradcheck(lambda a, p, n: contrastive_loss(a, p, n, 0.5), inputs)


_WORKER = """
import os
import sys
import torch
from embedkit.training.objectives.simcse import contrastive_loss

torch.set_num_threads(1)
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
weight = torch.load(f"{folder}/weight.pt").requires_grad_()
own = torch.load(f"{folder}/x.pt")[:, rank * 4 : rank * 4 + 4] @ weight
loss = contrastive_loss(*own, 0.1)
loss.backward()
torch.distributed.all_reduce(weight.grad)  # as DistributedDataParallel: the mean over the processes
mean = loss.detach().clone()
torch.distributed.all_reduce(mean)
torch.save((mean / 2, weight.grad / 2), f"{folder}/out{rank}.pt")
torch.distributed.destroy_process_group()
os._exit(0)  # what is tested is saved; torch's threads sometimes abort a process that ends in the usual way
"""


def test_two_processes_train_like_one(tmp_path: Path) -> None:
    """The same loss and gradients as one process with the whole batch."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 8, 6, generator=generator, dtype=torch.float64)
    weight = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    torch.save(x, tmp_path / "x.pt")
    torch.save(weight, tmp_path / "weight.pt")
    workers = [
        subprocess.Popen([sys.executable, "-c", _WORKER, str(rank), str(tmp_path)]) for rank in range(2)
    ]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    weight.requires_grad_()
    loss = contrastive_loss(*(x @ weight), 0.1)
    loss.backward()
    for rank in range(2):
        mean, gradient = torch.load(tmp_path / f"out{rank}.pt")
        torch.testing.assert_close(mean, loss.detach())
        torch.testing.assert_close(gradient, weight.grad)


def test_mini_batches_equal_the_whole_batch(make_model: MakeModel, texts: list[str]) -> None:
    """GradCache: loss and gradients do not depend on how many texts are encoded together."""
    tables = {"t": Table({name: texts[:8] for name in ("anchor", "positive", "negative")})}
    options = ModelOptions(str(make_model()), dropout=0.0, projection=Projection(8), max_length=32)
    torch.manual_seed(0)
    objective = SimCse(SentenceModel.load(options), SimCseOptions(), tables)
    ids = [np.array([2, *range(5 + i, 8 + 2 * i), 3], np.int32) for i in range(24)]
    found = []
    for size in (None, 2, 3):
        objective.mini_batch_size = size
        objective.zero_grad()
        loss = objective(torch.tensor(0), *pack(ids))["loss"]
        loss.backward()
        gradient = objective.encoder.backbone.embeddings.word_embeddings.weight.grad
        found.append((loss.detach(), gradient.clone()))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-5, rtol=1e-4)


def write_triplets(path: Path, rows: int, seed: int) -> dict[str, Any]:
    """Anchor and positive share their noun; the hard negative has the anchor's verb and another noun."""
    choose = random.Random(seed)
    lines = ["sent0\tsent1\thard_neg"]
    for _ in range(rows):
        noun, other = choose.sample(_NOUNS, 2)
        verb, another = choose.sample(_VERBS, 2)
        lines.append(f"the {noun} {verb}\tmany {noun} {another}\tthe {other} {verb}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"path": str(path), "columns": {"anchor": "sent0", "positive": "sent1", "negative": "hard_neg"}}


def test_it_learns_and_the_folder_loads(
    make_model: MakeModel, reference: Callable[[Path], Any], tmp_path: Path
) -> None:
    data, dev = write_triplets(tmp_path / "t.tsv", 320, 1), write_triplets(tmp_path / "d.tsv", 60, 2)
    recipe = make_recipe(
        {"name": "simcse"}, make_model(), {"t": data}, {"t": dev}, "t_accuracy", epochs=4, mini_batch_size=8
    )
    recipe = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, projection=Projection(8)))
    result = train(recipe, tmp_path / "run")
    history = losses(tmp_path / "run")
    assert np.mean(history[-5:]) < 0.8 * np.mean(history[:5])
    assert result["dev"]["t_accuracy"] > 90  # it starts below 50: the negative shares more words
    texts = [f"the {noun} look" for noun in _NOUNS]
    vectors = Encoder(tmp_path / "run" / "model", precision="fp32").encode(texts)
    assert vectors.shape == (10, 8)
    np.testing.assert_allclose(vectors, reference(tmp_path / "run" / "model").encode(texts), atol=2e-5)


def test_pairs_without_hard_negatives(make_model: MakeModel, tmp_path: Path) -> None:
    data = write_triplets(tmp_path / "t.tsv", 40, 1)
    del data["columns"]["negative"]
    recipe = make_recipe({"name": "simcse", "hard_negatives": False}, make_model(), {"t": data}, max_steps=3)
    assert train(recipe, tmp_path / "run")["steps"] == 3
    held = make_recipe(
        {"name": "simcse", "hard_negatives": False}, make_model(), {"t": data}, {"t": data}, max_steps=3
    )
    with pytest.raises(ValueError, match=r"evaluation\.dev\.t .*: simcse with these options has no score"):
        train(held, tmp_path / "held")


@pytest.mark.parametrize(
    "name", [name for name in list_recipes() if name.startswith(("simcse", "projection", "hpd"))]
)
def test_recipes_are_read(name: str) -> None:
    recipe = load_recipe(find_recipe(name))
    assert recipe.evaluation.select == "stsb_dev"
    assert recipe.evaluation.test == ["sts"]


def test_options() -> None:
    with pytest.raises(ValueError, match="temperature must be positive"):
        SimCseOptions(temperature=0)


@pytest.mark.parametrize("hard", [True, False])
def test_each_process_scores_dev_sets_alone(hard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several processes a dev batch belongs to one: nothing is gathered, and its rows start at 0."""
    anchors, positives, negatives = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
    arguments = (anchors, positives, negatives if hard else None, 0.05)
    want = contrastive_loss(*arguments).item()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    with torch.inference_mode():
        assert contrastive_loss(*arguments).item() == want
