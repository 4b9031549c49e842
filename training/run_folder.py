"""The folder of a training run: its recipe, what tells its data from other data, checkpoints, model and results."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from .. import Encoder
from ..files import file_sha256
from .augment import WordNet
from .card import write_card, write_curve
from .data.readers import Table
from .processes import process_rank, world_size
from .recipe import Recipe
from .scores import test_scores
from .whole_file import write_text

__all__ = ["alone", "check_own", "claim", "facts", "file_digest", "finish", "finished", "last_checkpoint"]

_UNFINISHED = "result.json.new"


@contextlib.contextmanager
def alone(output: Path, last: str = "result.json") -> Iterator[None]:
    """Keep others from training in a folder whose run is not finished; the lock of a process that dies is released.

    Args:
        output: the folder, which is made if there is none.
        last: its file that a run writes last.

    Raises:
        BlockingIOError: a training is at work there.
        FileExistsError: ``output`` is not a folder, or lies in a file.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FileExistsError(f"{output}: is not a folder, or lies in a file; name a new one") from None
    if process_rank() != 0 or (output / last).is_file():
        yield
        return
    with (output / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(
                f"{output}: another training runs in this folder; wait for it, or choose another output"
            ) from None
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # forked workers may still have the file open


def claim(output: Path, recipe: Recipe, root: Path) -> None:
    """Refuse a folder with the run of another recipe or of other data, or with what no run wrote.

    Otherwise this run is written to it. A run that failed before its first checkpoint, for example by a mistyped path,
    is overwritten. Data that was moved is still the same.

    Args:
        output: the run folder.
        recipe: of this call.
        root: folder to which its data paths are relative.
    """
    path, content = (
        output / "recipe.json",
        json.dumps(recipe.resolved(), indent=2, sort_keys=True, default=str) + "\n",
    )
    # A checkpoint without its last file is that of a run killed while it wrote the first; nothing can go on from it.
    begun = (output / "result.json").is_file() or any(
        output.glob("checkpoints/checkpoint-*/trainer_state.json")
    )
    same = path.is_file() and path.read_text(encoding="utf-8") == content
    if begun and path.is_file() and not same:
        raise FileExistsError(
            f"{output} holds a run of another recipe (see its recipe.json); choose another output, or remove it"
        )
    # The user's own: such a folder may be the model to start from. Of this run there may be one before its result.
    ends = (output / _UNFINISHED).is_file()
    check_own(output, ["checkpoints"], path.is_file())
    check_own(output, ["model"], (begun or ends) and path.is_file())
    data = output / "data.json"
    if begun and data.is_file():  # earlier versions wrote none
        _check_data(output, json.loads(data.read_text(encoding="utf-8")), root.resolve())
    if process_rank() != 0:
        return
    if not same:
        write_text(path, content)
    if not begun:
        files = {name: file_digest(root / name) for name in _data_files(recipe)}
        about = {"root": str(root.resolve()), "files": files}
        write_text(data, json.dumps(about, indent=2, sort_keys=True) + "\n")


def check_own(output: Path, names: Iterable[str], own: bool) -> None:
    """Refuse a folder that holds one of the names unless a run wrote it (``own``): it would be replaced or removed."""
    for name in () if own else names:
        if (output / name).exists():
            raise FileExistsError(
                f"{output / name} exists and is not of a run in {output}, which would replace it; choose another output"
            )


def _check_data(output: Path, kept: Mapping[str, Any], root: Path) -> None:
    """Refuse files that are not those of the run's beginning."""
    for name, digest in kept["files"].items():
        now, then = root / name, Path(kept["root"]) / name
        found = file_digest(now)
        if found is None and now == then:  # a finished run needs it no more, and reading it names it
            continue
        if found != digest:
            raise FileExistsError(
                f"{output} holds a run of other data: {now} is not what {then} was when it began; give the same data "
                "(--data), choose another output, or remove it"
            )


def _data_files(recipe: Recipe) -> Iterator[str]:
    """The files of a recipe's training and dev data, as it names them."""
    evaluation = recipe.evaluation
    sources: list[Any] = [*recipe.data.values(), *evaluation.dev.values(), *evaluation.pairs.values()]
    for collection in evaluation.retrieval.values():
        sources += [{"path": part} if isinstance(part, str) else part for part in collection.values()]
    while sources:
        source = sources.pop(0)
        paths = source.get("path", [])
        yield from map(str, paths if isinstance(paths, list) else [paths])
        if "exclude" in source:
            sources.append(source["exclude"])
    augmentation = getattr(recipe.objective, "augment", None)
    if augmentation is not None and augmentation.paraphrases is not None:
        yield augmentation.paraphrases
    if augmentation is not None and augmentation.wordnet:
        yield from (f"{augmentation.wordnet_folder}/{name}" for name in WordNet.FILES)


def file_digest(path: Path) -> str | None:
    """What tells a file's content from another; None if there is none."""
    if not path.is_file():
        return None
    return f"{path.stat().st_size} bytes, {file_sha256(path)}"


def facts(recipe: Recipe, tables: Mapping[str, Table], checks: dict[str, Any], device: str) -> dict[str, Any]:
    """The part of ``result.json`` that is known before training."""
    return {
        "recipe": recipe.name,
        "seed": recipe.training.seed,
        "examples": {task: len(table) for task, table in tables.items()},
        "data": checks,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {device}",
    }


def finish(
    recipe: Recipe,
    save: Callable[[Path], object],
    result: dict[str, Any],
    history: list[dict[str, Any]],
    *,
    output: Path,
    root: Path,
) -> None:
    """Write ``model/`` with its card, complete or not at all, the learning curve and ``result.json``.

    The test scores, which ``result`` gets here, are those of the folder as it will be used: by `embedkit.Encoder` in
    fp32.
    """
    work, target = output / ".model", output / "model"
    for folder in (work, target):
        shutil.rmtree(folder, ignore_errors=True)
    work.mkdir()
    save(work)
    result["test"] = {}
    if recipe.evaluation.test:
        encoder = Encoder(work, threads=torch.get_num_threads())
        result["test"] = test_scores(encoder, recipe.evaluation.test, root)
    write_card(work, recipe, result)
    write_curve(output / "curve.png", recipe, history)
    write_text(output / _UNFINISHED, json.dumps(result, indent=2) + "\n")
    work.rename(target)
    (output / _UNFINISHED).replace(output / "result.json")
    shutil.rmtree(output / "checkpoints", ignore_errors=True)


def finished(
    output: Path, last: str = "result.json", folders: Iterable[str] = ("model",)
) -> dict[str, Any] | None:
    """The content of the file that a run writes last; None if it is not finished.

    Raises:
        FileNotFoundError: one of the ``folders`` that it made is gone.
    """
    if not (output / last).is_file():
        return None
    for name in folders:
        if not (output / name).is_dir():
            raise FileNotFoundError(
                f"{output}: the run is finished, but its {name}/ is gone; put it back, or remove {last} to make it anew"
            )
    content: dict[str, Any] = json.loads((output / last).read_text(encoding="utf-8"))
    return content


def last_checkpoint(folder: Path) -> Path | None:
    """The last complete checkpoint; incomplete ones of a killed run are removed.

    An older one may be incomplete in another way: Trainer was killed while it removed it.
    """
    paths = sorted(folder.glob("checkpoint-*"), key=lambda path: -int(path.name.rpartition("-")[2]))
    whole = []
    for path in paths:
        try:
            json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))  # Trainer writes it last
        except (OSError, ValueError):
            if process_rank() == 0:
                shutil.rmtree(path)
            continue
        whole.append(path)
    if not whole:
        return None
    count = world_size()
    states = {f"rng_state_{rank}.pth" for rank in range(count)} if count > 1 else {"rng_state.pth"}
    if {path.name for path in whole[0].glob("rng_state*.pth")} != states:
        raise ValueError(
            f"{whole[0]} is not of {count} process{'es' * (count > 1)}: its run had another number of processes; "
            "resume with the same number, or choose another output"
        )
    return whole[0]
