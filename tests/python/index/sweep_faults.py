"""Run by test_faults.py with failing_disk.c loaded: changes of an index, with a fault at each of their writes in turn.

    python sweep_faults.py LIBRARY FOLDER STEP    (1: at every write)

Prints a line of JSON for each fault that was not told as it should be, and the number of faults in the end.
"""

from __future__ import annotations

import ctypes
import errno
import json
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import faiss  # noqa: F401  (loaded before the first fault)
from fake_encoder import FakeEncoder

from embedkit.index import BuildError, Document, Index, IndexNotFoundError

DOCUMENTS = [Document(f"text {n} of some words", str(n), {"title": f"title {n}", "n": n}) for n in range(60)]
OTHERS = [Document(f"another text {n}", str(n)) for n in range(50, 70)]

Ids = set[str]
EVERY = {document.id for document in DOCUMENTS}
CHANGES: dict[str, tuple[Callable[[Index], object], Ids]] = {
    "add": (
        lambda index: index.add([one for one in OTHERS if one.id not in EVERY]),
        EVERY | {one.id for one in OTHERS},
    ),
    "upsert": (lambda index: index.upsert(OTHERS), EVERY | {one.id for one in OTHERS}),
    "delete": (lambda index: index.delete(["3", "4"]), EVERY - {"3", "4"}),
    "compact": (lambda index: index.compact(factory="SQ8"), EVERY),
}


def wrong(error: BaseException, path: Path) -> str | None:
    """What is wrong with the way a fault was told."""
    told = isinstance(error, BuildError) and path.name in str(error)
    return None if told else "".join(traceback.format_exception(error))[-1500:]


def state(path: Path) -> Ids:
    """The ids of an index that verifies and answers."""
    with Index.open(path, FakeEncoder()) as index:
        index.verify()
        index.search("some words of text 3")
        return {document.id for document in index}


def build_at(path: Path) -> None:
    """A new index."""
    Index.build(path, DOCUMENTS, FakeEncoder()).close()


class Faults:
    """Makes the disk fail."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.remaining.restype = ctypes.c_long

    def run(
        self, call: Callable[[], object], at: int, number: int, *, forever: bool
    ) -> tuple[bool, BaseException | None]:
        """Whether the fault was met, and what ``call`` raised."""
        error: BaseException | None = None
        self._library.fail_after(ctypes.c_long(at), number, int(forever))
        try:
            call()
        except BaseException as raised:
            error = raised
        met = self._library.remaining() == 0
        self._library.fail_after(ctypes.c_long(0), 0, 0)
        return met, error


def main() -> None:
    """Sweep."""
    faults, folder, step = Faults(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")  # a change that is live, and not confirmed to be on the disk
    base = folder / "base"
    build_at(base)
    assert state(base) == EVERY
    met = 0

    def report(name: str, at: int, number: int, what: str) -> None:
        print(
            json.dumps({"change": name, "at": at, "error": errno.errorcode[number], "what": what}), flush=True
        )

    for number, forever in ((errno.ENOSPC, True), (errno.EIO, False)):
        for name, (change, after) in CHANGES.items():
            for at in range(1, 2000, step):
                path = folder / f"{name}-{at}"
                shutil.copytree(base, path)
                with Index.open(path, FakeEncoder()) as index:
                    hit, error = faults.run(partial(change, index), at, number, forever=forever)
                if error is not None and (what := wrong(error, path)):
                    report(name, at, number, what)
                try:
                    found = state(path)
                except Exception:
                    report(name, at, number, "damaged: " + traceback.format_exc()[-1500:])
                else:
                    if found != (after if error is None else EVERY):
                        report(name, at, number, f"{len(found)} documents, and {error!r}")
                shutil.rmtree(path)
                met += hit
                if not hit:
                    break
        for at in range(1, 2000, step):
            path = folder / f"build-{at}"
            build = partial(build_at, path)
            hit, error = faults.run(build, at, number, forever=forever)
            if error is not None and (what := wrong(error, path)):
                report("build", at, number, what)
            try:
                if error is not None:
                    build()  # goes on, or starts anew
                if state(path) != EVERY:
                    report("build", at, number, "not all documents")
            except IndexNotFoundError:
                report("build", at, number, "no index")
            except Exception:
                report("build", at, number, f"{error!r}: " + traceback.format_exc()[-1500:])
            shutil.rmtree(path, ignore_errors=True)
            met += hit
            if not hit:
                break
    print(met)


if __name__ == "__main__":
    main()
