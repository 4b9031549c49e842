"""Recipes: errors and their messages, overrides, and all built-in recipes."""

from __future__ import annotations

import dataclasses
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
yaml = pytest.importorskip("yaml")

from embedkit.training.hub import push_to_hub
from embedkit.training.recipe import TrainingOptions, find_recipe, list_recipes, load_recipe, recipe_of
from embedkit.training.trainer import train

CONTENT: dict[str, Any] = {
    "description": "one line",
    "objective": {"name": "sbert"},
    "model": {"path": "folder"},
    "data": {"nli": {"path": "train.tsv"}},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(CONTENT))
    return path


def test_defaults_and_what_is_resolved(file: Path) -> None:
    recipe = load_recipe(file)
    assert (recipe.name, recipe.description, recipe.license) == ("mine", "one line", "other")
    assert recipe.training == TrainingOptions()
    resolved = recipe.resolved()
    assert yaml.safe_load(yaml.safe_dump(resolved)) == resolved
    assert recipe_of(resolved, "mine", "again") == recipe  # so a printed recipe can be run


def test_a_recipe_is_loaded_and_trained_by_paths_as_text(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(str(file))
    assert recipe == load_recipe(file)
    with pytest.raises(FileNotFoundError, match=r"train\.tsv"):
        train(recipe, str(tmp_path / "run"), data_root=str(tmp_path), cache=str(tmp_path / "cache"))
    assert (tmp_path / "run").is_dir()
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "train.tsv")):
        train(recipe, "~/other", data_root="~", cache="~/kept")
    assert (tmp_path / "other").is_dir() and (tmp_path / "kept").is_dir()
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        push_to_hub(str(tmp_path), "me/mine")


def test_sources_become_plain(tmp_path: Path) -> None:
    source = {"path": (tmp_path / "a.tsv", "b.tsv"), "limit": np.int64(3), "where": {"day": date(2026, 1, 2)}}
    given = {**CONTENT, "data": {"nli": source}, "evaluation": {"pairs": {"sts": {"path": Path("c.tsv")}}}}
    recipe = recipe_of(given, "mine", "call")
    plain = {"path": [f"{tmp_path}/a.tsv", "b.tsv"], "limit": 3, "where": {"day": date(2026, 1, 2)}}
    assert recipe.data == {"nli": plain} and type(recipe.data["nli"]["limit"]) is int
    assert recipe.evaluation.pairs == {"sts": {"path": "c.tsv"}}
    resolved = recipe.resolved()
    assert yaml.safe_load(yaml.safe_dump(resolved)) == resolved
    given["data"] = {"nli": {"path": "a.tsv", "where": {"source": [object()]}}}
    with pytest.raises(ValueError, match=r"call: data\.nli\.where\.source\[0\] must be text, a number"):
        recipe_of(given, "mine", "call")


def test_an_override_changes_no_other_source(tmp_path: Path) -> None:
    """YAML's aliases and merges share what they repeat."""
    text = """
    objective: {name: hpd, teachers: [{path: t}]}
    model: {path: m}
    data:
      one: &one {path: a.tsv, columns: {text: s}, where: {source: [x]}}
      two: {<<: *one, path: b.tsv}
    """
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    data = load_recipe(tmp_path / "recipe.yaml", ["data.two.where.source=[y]"]).data
    assert (data["one"]["where"], data["two"]["where"]) == ({"source": ["x"]}, {"source": ["y"]})


@pytest.mark.parametrize("name", sorted(list_recipes()))
def test_every_built_in_recipe_loads(name: str) -> None:
    recipe = load_recipe(find_recipe(name))
    assert recipe.name == name
    assert 10 < len(recipe.description) <= 120
    assert "\n" not in recipe.description
    assert recipe_of(recipe.resolved(), name, "again") == recipe


@pytest.mark.parametrize(
    ("overrides", "section", "expected"),
    [
        (["training.learning_rate=2e-5"], "training", {"learning_rate": 2e-5}),
        (["training.learning_rate=1"], "training", {"learning_rate": 1.0}),
        (["training.seed=7", "training.batch_size=32"], "training", {"seed": 7, "batch_size": 32}),
        (["training.seed=7", "training.seed=8"], "training", {"seed": 8}),
        (["training.early_stopping=null"], "training", {"early_stopping": None}),
        (["training.mini_batch_size=~"], "training", {"mini_batch_size": None}),
        (["model.layers=3"], "model", {"layers": 3}),
        (["model.layers=[0, 2, 5]"], "model", {"layers": [0, 2, 5]}),
        (["model.config.hidden_size=12"], "model", {"config": {"hidden_size": 12}}),
        (["model.normalize=true"], "model", {"normalize": True}),
        (["model.path=a=b"], "model", {"path": "a=b"}),
        (["model.projection={dimension: 8, activation: tanh}"], "model", {}),
        (["evaluation.test=[sts, retrieval]"], "evaluation", {"test": ["sts", "retrieval"]}),
        (["evaluation.test=[]"], "evaluation", {"test": []}),
    ],
)
def test_overrides(file: Path, overrides: list[str], section: str, expected: dict[str, Any]) -> None:
    options = getattr(load_recipe(file, overrides), section)
    assert {key: getattr(options, key) for key in expected} == expected
    if "projection" in overrides[0]:
        assert dataclasses.asdict(options.projection) == {"dimension": 8, "activation": "tanh"}
    assert load_recipe(file, ["data.nli.limit=5"]).data == {"nli": {"path": "train.tsv", "limit": 5}}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.batchsize=3"], "unknown training key 'batchsize'; did you mean 'batch_size'"),
        (["trainig.seed=3"], "unknown section 'trainig'; did you mean 'training'"),
        (["model.qqqq=3"], "unknown model key 'qqqq'; expected one of path, layers"),
        (["objective.name=sbret"], "unknown objective.name 'sbret'; did you mean 'sbert'"),
        (["objective.margn=1"], "unknown objective key 'margn'; did you mean 'margin'"),
        (["model.pooling=meen"], "unknown model.pooling 'meen'; did you mean 'mean'"),
        (["model.projection.dim=3"], "unknown model.projection key 'dim'"),
        (["model.projection={activation: tanh}"], "model.projection.dimension is missing"),
        (["training.seed=x"], "training.seed must be an integer, not 'x'"),
        (["training.seed=true"], "training.seed must be an integer, not True"),
        (
            ["training.seed=5000000000"],
            "training.seed must be from 0 to 4294967295, but is 5000000000",
        ),
        (["training.seed=1.5"], "training.seed must be an integer, not 1.5"),
        (["training.learning_rate=fast"], "training.learning_rate must be a number, not 'fast'"),
        (["training.learning_rate=.nan"], "training.learning_rate must be a number, not nan"),
        (["training.learning_rate=inf"], "training.learning_rate must be a number, not 'inf'"),
        (["training.learning_rate=-1"], "training.learning_rate must be positive, not -1.0"),
        (["training.mini_batch_size=0"], "training.mini_batch_size must be positive, not 0"),
        (["training.max_steps=-5"], "training.max_steps must be positive, or -1 for epochs, not -5"),
        (["training.schedule=annealed"], "annealed needs more than one epoch; use proportional"),
        (["training.weight_decay=-1"], "training.weight_decay must not be negative"),
        (["training.scheduler=linaer"], "unknown training.scheduler 'linaer'; did you mean 'linear'"),
        (
            ["training.schedule=sequence"],
            "unknown training.schedule 'sequence'; did you mean 'sequential'",
        ),
        (["training.precision=fp8"], "training.precision must be auto, fp32, bf16 or fp16, not 'fp8'"),
        (["training.workers=-1"], "training.workers must not be negative"),
        (["model.lora.rank=0"], "model.lora.rank must be positive, not 0"),
        (["evaluation.holdout=-1"], "evaluation.holdout must not be negative"),
        (
            ["evaluation.retrieval.mine={queries: q.tsv}"],
            "retrieval.mine: a collection has queries, documents",
        ),
        (["evaluation.pairs.mine={paths: a.tsv}"], "evaluation.pairs.mine: a source has no key 'paths'"),
        (["data.nli.weighted_fraction=2"], "weighted_fraction is 2; give a number above 0 and up to 1"),
        (["data.nli.prompts=[a]"], "prompts is .*; give a mapping of our field to a text"),
        (["training.warmup_ratio=1"], "training.warmup_ratio"),
        (["training.early_stopping=2"], "training.early_stopping needs evaluation.select"),
        (["model.normalize=1"], "model.normalize must be true or false, not 1"),
        (["model.layers=[a]"], r"model.layers\[0\] must be an integer, not 'a'"),
        (["model.path=[]"], r"model.path must be a string, not \[\]"),
        (["model=5"], "model must be a mapping, not 5"),
        (["training=null"], "training must be a mapping, not None"),
        (["data={}"], "data has no task"),
        (["data.nli=file.tsv"], "data.nli must be a mapping, not 'file.tsv'"),
        (["evaluation.test=[st]"], "unknown evaluation.test 'st'; did you mean 'sts'"),
        (
            ["postprocess={name: linear_map, method: pca, dimension: 8}"],
            "either an objective, which is trained, or a postprocess step",
        ),
        (["training.seed"], "'training.seed' is not an override; write section.key=value"),
        (["=3"], "'=3' is not an override"),
        (["model.path=[a"], "the value is not valid YAML"),
        (["model.path=!!python/object/apply:os.getcwd []"], "the value is not valid YAML"),
    ],
)
def test_what_is_wrong_is_named(file: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe(file, overrides)


def test_a_key_that_comes_twice_is_refused(file: Path) -> None:
    file.write_text(file.read_text() + "\nmodel: {path: other}\n")
    with pytest.raises(ValueError, match=r"mine.yaml: not valid YAML: the key 'model' comes twice"):
        load_recipe(file)
    merged = "data: {a: &a {path: x.txt, limit: 3}, b: {<<: *a, limit: 4}}"
    file.write_text(f"{merged}\nobjective: {{name: simcse}}\nmodel: {{path: m}}\n")
    assert load_recipe(file).data["b"] == {"path": "x.txt", "limit": 4}


def test_the_file_is_named(file: Path) -> None:
    with pytest.raises(ValueError, match=r"mine.yaml: unknown training key"):
        load_recipe(file, ["training.x=1"])


@pytest.mark.parametrize(
    "content",
    [
        b"model: !!python/object/apply:os.system ['true']",
        b"!!python/object:embedkit.Encoder {}",
        b"a: [1",
        b"model: \xff",
        b"",
        b"- a list",
        b"just text",
    ],
)
def test_files_that_are_not_recipes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.yaml"):
        load_recipe(path)


def test_a_recipe_is_found_by_path_or_name(file: Path, tmp_path: Path) -> None:
    assert find_recipe(str(file)) == file
    assert find_recipe("sbert").name == "sbert.yaml"
    with pytest.raises(FileNotFoundError, match="unknown recipe 'sbret'; did you mean 'sbert'"):
        find_recipe("sbret")
    with pytest.raises(FileNotFoundError, match=r"no file .*away\.yaml"):
        find_recipe(str(tmp_path / "away.yaml"))
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no file .*folder\.yaml"):
        find_recipe(str(tmp_path / "folder.yaml"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.nli.limt=5", "data.nli: a source has no key 'limt'.*'limit'"),
        ("data.nli={1: 2}", "data.nli: a source has no key 1; keys"),
        (
            "data.nli=&own {path: a.tsv, exclude: *own}",
            "sbert.yaml: a value is nested too deeply, or holds itself",
        ),
        ("evaluation.dev.nli.labels=yes", r"evaluation\.dev\.nli: labels is"),
        (
            "evaluation.dev.nli.weighted_fraction=0.5",
            r"evaluation\.dev\.nli: weighted_fraction is of training data",
        ),
    ],
)
def test_sources_are_checked_with_the_recipe(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe(find_recipe("sbert"), [override])


def test_a_postprocess_step_is_not_trained(tmp_path: Path) -> None:
    content = {name: value for name, value in CONTENT.items() if name != "objective"}
    content["postprocess"] = {"name": "linear_map", "dimension": 8}
    recipe = recipe_of(content, "mine", "mine")
    assert recipe.training.epochs == 0 and "objective" not in recipe.resolved()
    for section, options, message in (
        ("training", {"epochs": 1}, "trains nothing: leave out training.epochs"),
        ("training", {"max_steps": 5}, "trains nothing"),
        ("data", {"t": {"path": "x.txt", "prompts": {"anchor": "q: "}}}, "prompts names 'anchor'"),
        (
            "data",
            {"t": {"path": "x.txt", "weighted_fraction": 0.5, "labels": ["a", "b"]}},
            "use balanced_fraction",
        ),
        ("evaluation", {"dev": {"nli": {"path": "dev.tsv"}}}, "use sts_dev or test"),
        ("evaluation", {"select": "stsb_dev"}, "evaluation.select chooses among checkpoints"),
        ("postprocess", {"name": "linearmap"}, "did you mean 'linear_map'"),
        ("postprocess", {"name": ["linear_map"]}, r"postprocess\.name"),
        ("postprocess", {"name": "linear_map", "dimension": 8, "samples": 1}, "postprocess.samples"),
    ):
        with pytest.raises(ValueError, match=message):
            recipe_of({**content, section: options}, "mine", "mine")
    with pytest.raises(ValueError, match="evaluators select checkpoints"):
        train(recipe, tmp_path, evaluators={"own": lambda encoder: 1.0})
