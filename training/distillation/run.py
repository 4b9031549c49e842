"""From teachers and texts to a small int8 student: the recipe of HPD (Zhao et al. 2022, arXiv:2203.07687), extended.

1. The distinct texts are written to ``texts.jsonl``, so that a run that was stopped goes on with the same ones.
2. The student starts from some of a teacher's layers (`embedkit.training.distillation.start`), or is a folder of its
   own, with the ridge regression to the teachers' principal components as its projection.
3. It learns these components: 1 - cosine, and the squared error of the cosines of a batch, in all dimensions and in
   each prefix (`embedkit.training.objectives.hpd`).
4. Its columns are turned to its principal components, partly whitened (`DistillOptions.whiten`).
5. Its int8 form, and a card with teacher and student side by side, measured on texts that were held out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import AutoConfig

from ...documents.errors import InputError
from ...documents.folders import find_files
from ...documents.readers import Corpus
from ...documents.sources import STDIN
from ...encoder import Encoder
from ...files import expanded
from ...inputs import check_unicode
from ...model_folder.folder import SETTINGS_FILE, open_folder
from ...model_folder.json_file import read_json, write_json
from ...model_folder.saving import compose_dense
from .. import backbone
from ..data.readers import read, root_folder
from ..data.texts import Selection, TextWriter, distinct, text_keys
from ..dev import DevSets
from ..linear_map import whiten_partly
from ..processes import process_rank, world_size
from ..recipe import Recipe, recipe_of
from ..run_folder import alone, check_own, claim, file_digest, finished, last_checkpoint
from ..teacher import TeacherOptions
from ..trainer import train
from ..whole_file import write_text, write_whole
from .options import DistillOptions
from .report import compare, write_report
from .start import choose_layers

__all__ = ["distill"]

_LOG = logging.getLogger("embedkit")
_LEAST = 64  # texts: fewer teach nothing
_WARMUP = 0.02  # of the steps: the student starts close to the teacher
_SAMPLE = 20_000  # texts at most, for ranges and whitening
_HELD_OUT = 2000  # texts at most; a tenth of fewer than 20,000


def distill(
    teachers: str | Sequence[str],
    texts: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    options: DistillOptions | None = None,
    *,
    text_field: str = "text",
) -> dict[str, Any]:
    """Train a small student of ``teachers`` on ``texts``, or go on with a run that was stopped.

    Args:
        teachers: folders or Hub names of encoders that `embedkit.Encoder` loads; the vectors of several are joined.
        texts: files or folders, as `embedkit-index build` reads them; labels are not needed.
        output: receives ``model/`` (the int8 student), ``float/`` (the student in fp32, which sentence-transformers
            loads), ``report.json`` and ``report.png``, and the run itself under ``run/``.
        options: see `DistillOptions`.
        text_field: the field or column of the text.

    Returns:
        The content of ``report.json``: quality, speed and size of teachers and student on texts that were held out.

    Raises:
        BlockingIOError: another distillation runs in ``output``.
        FileExistsError: ``output`` holds the run of other teachers or options, or files that no run wrote there.
        FileNotFoundError: the distillation is finished, but its ``model/`` or ``float/`` is gone.
        FileNotFoundError, ValueError: a teacher, the texts or an option is missing or wrong; the message names it.
    """
    options = options or DistillOptions()
    named = [teachers] if isinstance(teachers, str) else list(teachers)
    if not named:
        raise ValueError("give at least one teacher: the folder or Hub name of an encoder")
    learned = options.teachers(named)
    output, paths = expanded(output), [texts] if isinstance(texts, str | os.PathLike) else list(texts)
    _check_output(output, paths)
    with alone(output, "report.json"):
        return _distill(named, learned, paths, output, options, text_field=text_field)


def _distill(
    named: Sequence[str],
    learned: Sequence[TeacherOptions],
    paths: Sequence[str | os.PathLike[str]],
    output: Path,
    options: DistillOptions,
    *,
    text_field: str,
) -> dict[str, Any]:
    """`distill` in a folder of its own."""
    if not _begun(output):  # before the texts are read and encoded
        _check(learned, options, output)
    train_file, held_file = _texts(paths, output, text_field, options)
    _check_enough(train_file, options.dimension)
    layers = None if options.student is not None else _layers(learned[0], options, train_file, output)
    files = _as_begun(output, (train_file, held_file))
    recipe = _recipe(learned, options, layers, files, name=output.resolve().name)
    done = _reported(output, recipe, options)
    if done is not None:
        return done if process_rank() == 0 else {}
    result = train(recipe, output / "run")
    if not result:  # another process than the first of a data-parallel run
        return {}
    trained = output / "run" / "model"
    with Encoder(trained, precision="fp32") as student:
        vectors = student.encode(_sample(train_file, result["examples"]["texts"]))
    if options.whiten:
        turned = whiten_partly(vectors, options.whiten)
        vectors = vectors @ turned
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        trained = _composed(trained, turned, output / "run" / "whitened")
    ranges = np.stack([vectors.min(axis=0), vectors.max(axis=0)])  # of each column: for int8 vectors
    with Encoder(trained, precision="fp32") as student:
        for name, precision in (("float", "fp32"), ("model", "int8")):
            shutil.rmtree(output / name, ignore_errors=True)  # of a call that was stopped before its report
            student.save(output / name, precision, ranges=ranges)
            settings = read_json(output / name / SETTINGS_FILE)
            write_json(
                output / name / SETTINGS_FILE, {**settings, "index_precision": options.index_precision}
            )
    held = list(read({"path": str(held_file)}, root=Path(), folder=output).texts("text"))
    found = compare(learned, options, output, held)
    report = {
        "teachers": named,
        "layers": layers,
        "steps": result["steps"],
        "train_seconds": result["train_seconds"],
        "machine": result["machine"],
        "texts": result["examples"]["texts"],
        "held_out": len(held),
        "counted": "readings" if options.query_prompt else "texts",  # by the two counts above
        "index_precision": options.index_precision,
        "whiten": options.whiten,
        "dev": result["dev"],
        **found,
    }
    write_report(output, recipe, report)
    return report


def _reported(output: Path, recipe: Recipe, options: DistillOptions) -> dict[str, Any] | None:
    """The content of ``report.json``; None if the distillation is not finished. Its run's own model may be gone."""
    if not (output / "run" / "result.json").is_file():
        return None
    claim(output / "run", recipe, root_folder(None))
    report = finished(output, "report.json", ("model", "float"))
    if report is None:
        return None
    if report["index_precision"] != options.index_precision:
        raise FileExistsError(
            f"{output} holds a student whose vectors are stored in {report['index_precision']}, not "
            f"{options.index_precision}; choose another output, or remove it"
        )
    if (whitened := report.get("whiten", 0.0)) != options.whiten:
        raise FileExistsError(
            f"{output} holds a student of --whiten {whitened:g}, not {options.whiten:g}; choose another output, "
            "or remove it"
        )
    return report


def _check_output(output: Path, paths: Sequence[str | os.PathLike[str]]) -> None:
    """Refuse an output with files that are the user's own, or with the texts, which would be left out as its own.

    Texts from standard input are refused in a data-parallel run.
    """
    check_own(output, ["texts.jsonl", "held_out.jsonl", "report.json"], (output / "texts.json").is_file())
    begun = (output / "run" / "recipe.json").is_file()
    check_own(output, ["model", "float"], begun)
    check_own(output / "run", ["checkpoints"], begun)
    if STDIN in paths and world_size() > 1:
        raise ValueError("several processes cannot share one standard input; give the texts as a file")
    for path in paths:
        if path != STDIN and Path(path).resolve().is_relative_to(output.resolve()):
            raise ValueError(f"the texts {path} lie in the output {output}; choose another output (-o)")


def _check(teachers: Sequence[TeacherOptions], options: DistillOptions, output: Path) -> None:
    """Refuse dev sets that cannot be read, and options that do not fit the teachers or that a recipe does not take."""
    given = list(options.layers) if isinstance(options.layers, Sequence) else None
    files = (output / "texts.jsonl", output / "held_out.jsonl")
    recipe = _recipe(teachers, options, given, files, name=output.resolve().name)
    DevSets(recipe.evaluation, root_folder(None))
    start = backbone.transformer_folder(recipe.model.path)
    config = AutoConfig.from_pretrained(start)
    backbone.check_length("max_length", options.max_length, config, start)
    if given is not None and options.student is None:
        backbone.layer_numbers("layers", given, config.num_hidden_layers)
    folders = [open_folder(backbone.root_folder(teacher.path)) for teacher in teachers]
    most = sum(folder.truncate_dim or folder.dimension for folder in folders)
    if options.dimension > most:
        raise ValueError(
            f"dimension is {options.dimension}, but the vectors of the teachers have {most} dimensions; choose "
            "at most so many (--dim), or add a teacher"
        )


def _sample(train_file: Path, count: int) -> list[str]:
    """At most `_SAMPLE` of the ``count`` texts to learn from, evenly spread."""
    texts = read({"path": str(train_file)}, root=Path(), folder=train_file.parent).texts("text")
    return list(islice(texts, 0, None, -(-count // _SAMPLE)))


def _composed(model: Path, turned: npt.NDArray[np.float32], target: Path) -> Path:
    """A copy of a model folder whose projection is followed by the map ``turned``; replaces ``target``, returns it."""
    shutil.rmtree(target, ignore_errors=True)  # of a call that was stopped
    shutil.copytree(model, target)
    compose_dense(target, turned.T)
    return target


def _texts(
    paths: Sequence[str | os.PathLike[str]],
    output: Path,
    text_field: str,
    options: DistillOptions,
) -> tuple[Path, Path]:
    """The distinct texts as the student reads them: those to train on, and those that are held out. Written once."""
    train_file, held_file, about_file = (
        output / name for name in ("texts.jsonl", "held_out.jsonl", "texts.json")
    )
    about: dict[str, Any] = {"texts": [os.path.abspath(path) for path in paths], "text_field": text_field}
    if options.query_prompt:
        about |= {"query_prompt": options.query_prompt, "prompt_words": options.prompt_words}
    content = _content(paths, output)
    if train_file.is_file():
        before = json.loads(about_file.read_text(encoding="utf-8"))
        if content is not None and content == before.get("content"):  # the same texts, wherever they are now
            before["texts"] = about["texts"]
        was = before.pop("content", content)  # earlier versions wrote none
        if before == about and content in (was, None):
            return train_file, held_file
        if _begun(output):
            raise FileExistsError(
                f"{output} holds a run of other texts or another query prompt (see its texts.json); choose another "
                "output, or remove it"
            )
        (output / "layers.json").unlink(missing_ok=True)  # chosen on these texts
        train_file.unlink(missing_ok=True)  # another process of a data-parallel run may be faster
    write_text(about_file, json.dumps({**about, "content": content}, indent=2) + "\n")
    written = TextWriter(output)
    for document in Corpus(_inputs(paths, output), text_field=text_field, options=("--text-field",)):
        check_unicode(document.origin or f"document {document.id}", document.text)
        written.append(document.text)
    found = written.close()
    first, _ = distinct(text_keys(found))
    if len(first) < _LEAST:
        raise ValueError(f"{len(first)} distinct texts are too few to learn from; give at least {_LEAST}")
    every = max(10, -(-len(first) // _HELD_OUT))
    held, kept = first[::every], first[np.arange(len(first)) % every > 0]
    _LOG.info("%d distinct texts: %d to learn from, %d held out", len(first), len(kept), len(held))
    _write(held_file, options.readings(Selection(found, held)))
    _write(train_file, options.readings(Selection(found, kept)))  # last: it says that both are whole
    return train_file, held_file


def _check_enough(train_file: Path, dimension: int) -> None:
    """Refuse texts too few for the principal components to learn, before the teachers encode them."""
    with train_file.open("rb") as lines:
        count = sum(1 for _ in islice(lines, dimension + 1))
    if count <= dimension:
        least = -(-10 * (dimension + 1) // 9)  # one in ten is held out
        raise ValueError(
            f"{count} texts to learn from are too few for --dim {dimension}: give at least {least} distinct texts, or "
            f"a --dim of at most {count - 1}"
        )


def _begun(output: Path) -> bool:
    """Whether there is something to go on with: a checkpoint, or what came of the training."""
    done = (output / "report.json", output / "run" / "result.json")
    return any(file.is_file() for file in done) or last_checkpoint(output / "run" / "checkpoints") is not None


def _inputs(paths: Sequence[str | os.PathLike[str]], output: Path) -> list[str]:
    """The files that are found there, without those of the run itself."""
    own = output.resolve()
    return [
        path
        for path in find_files(paths).paths
        if path == STDIN or not Path(path).resolve().is_relative_to(own)
    ]


def _content(paths: Sequence[str | os.PathLike[str]], output: Path) -> str | None:
    """What tells the files that are found there from others; None if one is gone: a finished run needs it no more."""
    try:
        found = _inputs(paths, output)
    except InputError:
        return None
    digests = [file_digest(Path(path)) for path in found]
    if None in digests:
        return None
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def _write(path: Path, texts: Iterable[str]) -> None:
    lines = (json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in texts)
    write_whole(path, lambda file: file.writelines(lines))


def _layers(teacher: TeacherOptions, options: DistillOptions, train_file: Path, output: Path) -> list[int]:
    """The layers to start from: those given, or those that `choose_layers` chose, once for a run."""
    if isinstance(options.layers, Sequence):
        return list(options.layers)
    kept = output / "layers.json"
    about: dict[str, Any] = {"teacher": teacher.path, "count": options.layers}
    about |= {
        name: getattr(teacher, name) for name in ("precision", "prompt", "prompt_words", "query_prompt")
    }
    about |= {"dimension": options.dimension, "max_length": options.max_length}
    if kept.is_file():
        stored: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        # an earlier version kept the teacher and the count alone; its runs go on
        if all(stored.get(name, value) == value for name, value in about.items()):
            layers: list[int] = stored["layers"]
            return layers
    texts = read({"path": str(train_file)}, root=Path(), folder=output).texts("text")
    choice = choose_layers(teacher, options.layers, options, texts)
    write_text(kept, json.dumps({**about, **choice}, indent=2) + "\n")
    return list(choice["layers"])


def _as_begun(output: Path, files: tuple[Path, Path]) -> tuple[Path, Path]:
    """The files of texts as the recipe of the run names them; the run may have been moved since.

    A run that is not finished reads them, so that its recipe names them where they are now.
    """
    run = output / "run"
    if not (run / "recipe.json").is_file():
        return files
    path = read_json(run / "recipe.json").get("data", {}).get("texts", {}).get("path")
    if not isinstance(path, str):  # a run of another recipe, which `claim` refuses
        return files
    before = Path(path).with_name(files[0].name), Path(path).with_name(files[1].name)
    if (run / "result.json").is_file():
        return before
    for kept in (run / "data.json", run / "recipe.json"):  # last the one that says where the texts were
        if not kept.is_file():  # earlier versions wrote no data.json
            continue
        content = moved = kept.read_text(encoding="utf-8")
        for old, new in zip(before, files, strict=True):
            moved = moved.replace(json.dumps(str(old)), json.dumps(str(new.resolve())))
        if moved != content:
            write_text(kept, moved)
    return files


def _recipe(
    teachers: Sequence[TeacherOptions],
    options: DistillOptions,
    layers: list[int] | None,
    files: tuple[Path, Path],
    *,
    name: str,
) -> Recipe:
    """The run as a recipe, which ``run/recipe.json`` keeps."""
    sources: list[Mapping[str, Any]] = [
        {"path": str(path.resolve()), "columns": {"text": "text"}} for path in files
    ]
    given = options.evaluation
    evaluation = {
        "select": "held_out_cosine",
        **given,
        "dev": {"held_out": sources[1], **given.get("dev", {})},
    }
    return recipe_of(
        {
            "description": f"A student of {' and '.join(Path(one.path).name for one in teachers)}",
            "license": options.license,
            "objective": {
                "name": "hpd",
                "teachers": [asdict(one) for one in teachers],
                "center": options.center,
                "reduction": "cosine",
                "similarity": 2.0,
                "matryoshka": options.nested(),
                "start": "least_squares",
            },
            "model": {
                "path": options.student or teachers[0].path,
                "layers": layers,
                "pooling": "mean",
                "projection": {"dimension": options.dimension, "activation": "identity"},
                "normalize": True,
                "max_length": options.max_length,
                "dropout": 0.0,
                "prompts": {"query": options.query_prompt, "document": ""} if options.query_prompt else {},
                "keep_prompts": False,  # a teacher's would come with its layers
                "freeze_embeddings": True,
            },
            "data": {"texts": sources[0]},
            "training": {
                "batch_tokens": options.batch_tokens,
                "epochs": options.epochs,
                "max_steps": options.max_steps,
                "learning_rate": options.learning_rate,
                "head_learning_rate": options.head_learning_rate,
                "precision": options.precision,
                "eval_steps": options.eval_steps,
                "warmup_ratio": _WARMUP,
                "early_stopping": options.early_stopping,
                "seed": options.seed,
            },
            "evaluation": evaluation,
        },
        name,
        "distill",
    )
