"""Recipes: a training in one YAML file; every key is checked before anything runs."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .data.readers import check_not_drawn, check_source
from .data.sampler import Schedule
from .evaluate.collection import check_collection
from .model import ModelOptions
from .objectives import OBJECTIVES, objective_class
from .postprocess import MapStep
from .scores import EVALUATIONS

if TYPE_CHECKING:
    import yaml

__all__ = [
    "EvaluationOptions",
    "Recipe",
    "TrainingOptions",
    "find_recipe",
    "list_recipes",
    "load_recipe",
    "made_by",
]

_T = TypeVar("_T")
_FOLDER = Path(__file__).parent / "recipes"
_SCHEDULERS = ("linear", "cosine", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt")


@dataclass(frozen=True)
class TrainingOptions:
    """The ``training`` section of a recipe.

    Attributes:
        batch_size: examples per step over all processes, not counting gradient accumulation.
        batch_tokens: mean tokens of a step's batch, in place of ``batch_size``: batches of long texts then have fewer
            of them, a multiple of the number of processes, so that they depend on it; None for batches of
            ``batch_size`` examples, which do not (but the last, partial one of a pass).
        mini_batch_size: with GradCache (Gao et al. 2021), examples whose activations are held at once; in-batch
            negatives still come from the whole batch. None computes the whole batch at once.
        gradient_accumulation: batches per optimizer step.
        epochs, max_steps: length of the training; ``max_steps`` takes precedence. With 0 epochs nothing is trained.
        learning_rate, scheduler, warmup_ratio, weight_decay, max_grad_norm: as in ``transformers.Trainer``
            (AdamW).
        head_learning_rate: of the layers after the backbone (projection, heads); None for ``learning_rate``.
        schedule: the order of the batches of several tasks: ``proportional``, ``round_robin``,
            ``sequential``, ``annealed``.
        precision: ``fp32``, or ``bf16`` or ``fp16`` for mixed precision (autocast; the weights stay fp32; fp16 scales
            the loss), or ``auto``: bf16 where the processor or the GPU has instructions for it, else fp32.
        gradient_checkpointing: compute each layer's activations again in the backward pass, to save memory.
        no_duplicates: no batch holds a text twice, since in-batch negatives would be wrong; a text that is in more
            examples than there are batches is warned of.
        workers: processes that prepare batches ahead; 0 prepares them between the steps.
        eval_steps: steps between dev scores and between checkpoints, or a fraction of the training if below 1.
        early_stopping: stop after this number of dev scores (``evaluation.select``) without improvement; None
            never stops.
        logging_steps: steps between entries of the learning curve.
        seed: of initialization, order, dropout and noise; samples of the data have their own seeds.
    """

    batch_size: int = 16
    batch_tokens: int | None = None
    mini_batch_size: int | None = None
    gradient_accumulation: int = 1
    epochs: float = 1.0
    max_steps: int = -1
    learning_rate: float = 2e-5
    head_learning_rate: float | None = None
    scheduler: str = "linear"
    warmup_ratio: float = 0.1
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    schedule: str = "proportional"
    precision: str = "fp32"
    gradient_checkpointing: bool = False
    no_duplicates: bool = False
    workers: int = 0
    eval_steps: float = 0.25
    early_stopping: int | None = None
    logging_steps: int = 50
    seed: int = 1

    def __post_init__(self) -> None:
        for name in (
            "batch_size",
            "gradient_accumulation",
            "logging_steps",
            "learning_rate",
            "eval_steps",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"training.{name} must be positive, not {getattr(self, name)}")
        for name in ("epochs", "weight_decay", "max_grad_norm", "workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"training.{name} must not be negative, but is {getattr(self, name)}")
        if self.batch_tokens is not None and self.no_duplicates:
            raise ValueError("training.batch_tokens needs training.no_duplicates to be false")
        if self.max_steps < -1 or self.max_steps == 0:
            raise ValueError(f"training.max_steps must be positive, or -1 for epochs, not {self.max_steps}")
        for name in ("batch_tokens", "mini_batch_size", "early_stopping", "head_learning_rate"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"training.{name} must be positive, not {value}")
        if self.scheduler not in _SCHEDULERS:
            raise ValueError(_unknown("training.scheduler", self.scheduler, _SCHEDULERS))
        if not 0 <= self.seed < 2**32:  # NumPy takes no others
            raise ValueError(f"training.seed must be from 0 to {2**32 - 1}, but is {self.seed}")
        if self.schedule not in typing.get_args(Schedule):
            raise ValueError(_unknown("training.schedule", self.schedule, typing.get_args(Schedule)))
        if self.schedule == "annealed" and self.max_steps <= 0 and self.epochs <= 1:
            raise ValueError("training.schedule annealed needs more than one epoch; use proportional")
        if self.precision not in ("auto", "fp32", "bf16", "fp16"):
            raise ValueError(f"training.precision must be auto, fp32, bf16 or fp16, not {self.precision!r}")
        if not 0 <= self.warmup_ratio < 1:
            raise ValueError(f"training.warmup_ratio must be from 0 to below 1, not {self.warmup_ratio}")


@dataclass(frozen=True)
class EvaluationOptions:
    """The ``evaluation`` section of a recipe.

    Attributes:
        dev: name -> source, scored by the objective itself (accuracy, Spearman, ...) at every ``eval_steps``;
            the task of the same name in ``data`` provides the head.
        sts_dev: also score the encoder on the STS-B dev pairs that are in no STS test set (Spearman x 100) at every
            ``eval_steps``.
        pairs: name -> source with the fields ``text1``, ``text2`` and ``label``, a score or 0 and 1: Spearman x 100 of
            the cosine, ``NAME_spearman``, whatever the objective. A set with ``prompts`` is read with these alone, any
            other with the model's default prompt.
        retrieval: name -> files ``queries``, ``documents`` and ``judgments``, see
            `embedkit.training.evaluate.collection`: ``NAME_ndcg`` and ``NAME_mrr`` at rank 10, x 100.
        holdout: examples of each task of ``data`` to hold out of training, with all that share a text with them, as
            dev sets of the objective; 0 for none.
        select: the logged dev score that selects the best checkpoint (``stsb_dev``, ``nli_accuracy``): the highest, or
            the lowest perplexity of an objective; None keeps the last. No two dev scores may have one name.
        test: evaluations of the final model: ``sts``, ``chinese``, ``retrieval``,
            ``minimal_pairs``.
    """

    dev: dict[str, dict[str, Any]] = field(default_factory=dict)
    sts_dev: bool = False
    pairs: dict[str, dict[str, Any]] = field(default_factory=dict)
    retrieval: dict[str, dict[str, Any]] = field(default_factory=dict)
    holdout: int = 0
    select: str | None = None
    test: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in self.test:
            if name not in EVALUATIONS:
                raise ValueError(_unknown("evaluation.test", name, EVALUATIONS))
        if self.holdout < 0:
            raise ValueError(f"evaluation.holdout must not be negative, but is {self.holdout}")

    @property
    def of_vectors(self) -> bool:
        """Whether sentence vectors are scored, which a cross-encoder does not have."""
        return bool(self.sts_dev or self.pairs or self.retrieval or self.test)


@dataclass(frozen=True)
class Recipe:
    """A recipe.

    Attributes:
        name: the file's name without its suffix.
        description: one line, shown by ``embedkit-train --list``.
        license: of the trained weights, an SPDX name or "other".
        objective_name: the objective; empty for a recipe with a post-processing step, which trains nothing.
        objective: the options of the objective, an instance of its ``Options``; None with a post-processing step.
        postprocess_name: the post-processing step; empty for a recipe with an objective.
        postprocess: the step.
        model: the encoder.
        data: task name -> source, as `embedkit.training.data.readers.read` takes it.
        training: the optimizer and the loop.
        evaluation: dev and test scores.
    """

    name: str
    description: str
    license: str
    objective_name: str
    objective: Any
    postprocess_name: str
    postprocess: MapStep | None
    model: ModelOptions
    data: dict[str, dict[str, Any]]
    training: TrainingOptions
    evaluation: EvaluationOptions

    def resolved(self) -> dict[str, Any]:
        """All keys, defaults included, as plain values for YAML and JSON."""
        return {
            "description": self.description,
            "license": self.license,
            **self._what(),
            "model": dataclasses.asdict(self.model),
            "data": self.data,
            "training": dataclasses.asdict(self.training),
            "evaluation": dataclasses.asdict(self.evaluation),
        }

    def _what(self) -> dict[str, Any]:
        if self.postprocess is None:
            return {"objective": {"name": self.objective_name, **dataclasses.asdict(self.objective)}}
        return {"postprocess": {"name": self.postprocess_name, **dataclasses.asdict(self.postprocess)}}


def list_recipes() -> dict[str, str]:
    """Name -> description of the built-in recipes."""
    import yaml

    return {
        path.stem: str(yaml.safe_load(path.read_text(encoding="utf-8")).get("description", ""))
        for path in sorted(_FOLDER.glob("*.yaml"))
    }


def made_by(folder: str) -> str | None:
    """The command that makes a folder from which a built-in recipe starts or learns; ``None`` for another folder."""
    run = folder.removesuffix("/model")
    for path in _FOLDER.glob("*.yaml"):  # a comment has the command where it is no plain run of a recipe
        comment = re.sub(r"\\\n# *", "", path.read_text(encoding="utf-8"))
        if told := re.search(rf"^# +(.* --output {re.escape(run)})$", comment, re.MULTILINE):
            return told[1]
    name = run.removeprefix("runs/").removesuffix("-1")
    return (
        f"embedkit-train {name} --data DATA" if run == f"runs/{name}-1" and name in list_recipes() else None
    )


def find_recipe(name: str) -> Path:
    """The file of a recipe, given by its path or the name of a built-in recipe.

    Raises:
        FileNotFoundError: neither exists; suggests a similar name.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise FileNotFoundError(f"there is no file {path}")
    known = {path.stem: path for path in _FOLDER.glob("*.yaml")}
    if name in known:
        return known[name]
    raise FileNotFoundError(_unknown("recipe", name, sorted(known)))


def _loader() -> type[yaml.SafeLoader]:
    """YAML's safe loader, which refuses a key that comes twice: the first one would not count."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            keys = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
            for at, key in enumerate(keys):
                if any(key.value == before.value for before in keys[:at]):
                    raise yaml.MarkedYAMLError(
                        None, None, f"the key {key.value!r} comes twice", key.start_mark
                    )
            return node

    return Loader


def load_recipe(path: str | os.PathLike[str], overrides: typing.Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: the YAML file.
        overrides: ``section.key=value``; the value is read as YAML.

    Raises:
        ValueError: a key is unknown (a similar one is suggested), or a value has the wrong type or range.
    """
    try:
        return _load(Path(path), overrides)
    except RecursionError:
        raise ValueError(
            f"{path}: a value is nested too deeply, or holds itself (an alias *NAME in the value of &NAME)"
        ) from None


def _load(path: Path, overrides: typing.Sequence[str]) -> Recipe:
    import yaml

    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _loader())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected the sections {', '.join(_SECTIONS)}")
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ValueError(
                f"{override!r} is not an override; write section.key=value, e.g. training.seed=2"
            )
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"{override!r}: the value is not valid YAML: {error}") from None
        _set(content, key.split("."), value)
    return recipe_of(content, path.stem, str(path))


_SECTIONS = ("description", "license", "objective", "postprocess", "model", "data", "training", "evaluation")
_STEPS: dict[str, type[Any]] = {"linear_map": MapStep}


def recipe_of(content: dict[str, Any], name: str, where: str) -> Recipe:
    """Check the content of a recipe file; ``where`` is its name in messages."""
    try:
        for key in content:
            if key not in _SECTIONS:
                raise ValueError(_unknown("section", key, _SECTIONS))
        objective_name, objective = _named("objective", content, OBJECTIVES, objective_class)
        postprocess_name, postprocess = _named("postprocess", content, _STEPS, _STEPS.__getitem__)
        if (objective is None) == (postprocess is None):
            raise ValueError("a recipe has either an objective, which is trained, or a postprocess step")
        training = _mapping("training", content.get("training", {}))
        if postprocess is not None:
            training = {"epochs": 0, **training}
        data = _plain(_mapping("data", content.get("data")), "data")
        evaluation = _plain(_mapping("evaluation", content.get("evaluation", {})), "evaluation")
        if not data:
            raise ValueError("data has no task")
        recipe = Recipe(
            name=name,
            description=str(content.get("description", "")),
            license=str(content.get("license", "other")),
            objective_name=objective_name,
            objective=objective,
            postprocess_name=postprocess_name,
            postprocess=postprocess,
            model=build(ModelOptions, _mapping("model", content.get("model")), "model"),
            data={str(task): _mapping(f"data.{task}", source) for task, source in data.items()},
            training=build(TrainingOptions, training, "training"),
            evaluation=build(EvaluationOptions, evaluation, "evaluation"),
        )
        _check_sources(recipe)
        if postprocess is not None:
            _check_postprocess(recipe)
        for own, collection in recipe.evaluation.retrieval.items():
            try:
                check_collection(collection)
            except ValueError as error:
                raise ValueError(f"evaluation.retrieval.{own}: {error}") from None
        if recipe.training.early_stopping is not None and recipe.evaluation.select is None:
            raise ValueError("training.early_stopping needs evaluation.select, the dev score to watch")
        return recipe
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _check_sources(recipe: Recipe) -> None:
    """Refuse a source of data or dev sets that cannot be read."""
    for section, sources in (
        ("data", recipe.data),
        ("evaluation.dev", recipe.evaluation.dev),
        ("evaluation.pairs", recipe.evaluation.pairs),
    ):
        for task, source in sources.items():
            try:
                check_source(source)
                if section != "data":
                    check_not_drawn(source)
            except ValueError as error:
                raise ValueError(f"{section}.{task}: {error}") from None


def _check_postprocess(recipe: Recipe) -> None:
    """Refuse what is only of a training."""
    if recipe.training.epochs > 0 or recipe.training.max_steps > 0:
        raise ValueError(
            "a postprocess step trains nothing: leave out training.epochs and training.max_steps"
        )
    for task, source in recipe.data.items():
        if other := sorted(set(source.get("prompts") or {}) - {"text"}):
            raise ValueError(f"data.{task}: prompts names {other[0]!r}; a postprocess step reads text")
        if source.get("weighted_fraction") is not None:
            raise ValueError(f"data.{task}: weighted_fraction is for training; use balanced_fraction")
    if recipe.evaluation.dev or recipe.evaluation.holdout:
        raise ValueError(
            "evaluation.dev is scored by an objective, and the recipe has none; use sts_dev or test"
        )
    if recipe.evaluation.select is not None:
        raise ValueError(
            "evaluation.select chooses among checkpoints, and a postprocess step has none; remove it"
        )


def _named(
    section: str, content: dict[str, Any], known: Collection[str], load: Callable[[str], type[Any]]
) -> tuple[str, Any]:
    """The name and the checked options of the section's objective or step; ("", None) without the section."""
    if section not in content:
        return "", None
    options = dict(_mapping(section, content[section]))
    name = options.pop("name", None)
    if not isinstance(name, str) or name not in known:
        raise ValueError(_unknown(f"{section}.name", name, sorted(known)))
    kind = load(name)
    return name, build(getattr(kind, "Options", kind), options, section)


def _set(content: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = content.get(key)
        content[key] = dict(inner) if isinstance(inner, dict) else {}  # a copy: YAML's aliases share one
        content = content[key]
    content[keys[-1]] = value


def _mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a mapping, not {value!r}")
    return value


def _plain(value: Any, where: str) -> Any:
    """``value`` in the types that the files of a run can hold: a path as text, a scalar of NumPy as Python's."""
    if isinstance(value, Mapping):
        return {key: _plain(one, f"{where}.{key}") for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, f"{where}[{i}]") for i, one in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, str | int | float | date):  # YAML has dates
        return value
    raise ValueError(f"{where} must be text, a number, a list or a mapping, not {value!r:.80}")


def build(kind: type[_T], values: dict[str, Any], where: str) -> _T:
    """An options dataclass from a mapping; every key and type is checked."""
    hints = typing.get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            raise ValueError(_unknown(f"{where} key", key, names))
    for f in dataclasses.fields(kind):  # type: ignore[arg-type]
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and f.name not in values:
            raise ValueError(f"{where}.{f.name} is missing")
    return kind(**{key: _convert(value, hints[key], f"{where}.{key}") for key, value in values.items()})


def _convert(value: Any, hint: Any, where: str) -> Any:
    """``value`` converted to the annotated type; numbers may be integers or in scientific notation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(_unknown(where, value, arguments))
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        kinds = [one for one in arguments if one is not type(None)]
        for one in kinds[:-1]:
            if isinstance(value, typing.get_origin(one) or one) and not isinstance(value, bool):
                return _convert(value, one, where)
        return _convert(value, kinds[-1], where)
    if origin is dict:
        return {str(k): _convert(v, arguments[1], f"{where}.{k}") for k, v in _mapping(where, value).items()}
    if origin is list:
        if not isinstance(value, list):
            raise ValueError(f"{where} must be a list, not {value!r}")
        return [_convert(one, arguments[0], f"{where}[{i}]") for i, one in enumerate(value)]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, _mapping(where, value), where)
    if hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)  # YAML reads 2e-5, without a point, as a string
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{where} must be a number, not {value!r}")
        return number
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise ValueError(f"{where} must be {_NAMES.get(hint, hint)}, not {value!r}")


_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def _unknown(what: str, name: Any, known: typing.Iterable[str]) -> str:
    known = list(known)
    nearest = difflib.get_close_matches(str(name), known, 1, 0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"unknown {what} {name!r}{hint or '; expected one of ' + ', '.join(known)}"
