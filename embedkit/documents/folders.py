"""Which files a command's inputs name, and the names that the ids of their documents begin with.

The name of a file is its path below the *root*: the folder that was given, or the one that all inputs share. An index
remembers its root, so a file has the same name whatever working folder or form of its path a later command uses.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from .errors import InputError
from .sources import STDIN, format_of, listed_formats, names_of

__all__ = ["Files", "NamedBy", "Patterns", "find_files", "walk"]

NamedBy = Literal["root", "base", "none"]
"""Paths below the root; as before indexes had one (`names_of`); files have no name: the root is not known."""

_MOST_NAMED = 5
_ANY_FOLDERS = re.compile(r"(?<![^/])(?:\*\*/)+")


@dataclass(frozen=True, slots=True)
class Patterns:
    """Which files below a folder are read.

    A pattern with ``*``, ``?`` or ``[`` is compared with a file's path below the folder and with its name; one of a
    folder's name or path means all that is in it. ``**/`` stands for no folder as well, and a leading ``./`` for none.

    Attributes:
        include: patterns of which a file must match one; empty: all files.
        exclude: patterns of which a file may match none.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __call__(self, name: str) -> bool:
        """Whether the file ``name``, a path below the folder, is read."""
        return (not self.include or _matches(name, self.include)) and not _matches(name, self.exclude)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    if not patterns:
        return False
    parts = name.split(os.sep)
    paths = [name, *parts, *(os.sep.join(parts[:depth]) for depth in range(2, len(parts)))]
    return any(pattern.match(path) for pattern in _compiled(patterns) for path in paths)


@lru_cache(maxsize=8)
def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """The patterns as `fnmatch` has them, except that ``**/`` means no folder as well."""
    plain = (pattern.rstrip(os.sep).removeprefix(f".{os.sep}") for pattern in patterns)
    # No path has a NUL, which `fnmatch` leaves as it is.
    return tuple(
        re.compile(fnmatch.translate(_ANY_FOLDERS.sub("\0", pattern)).replace("\0", "(?:.*?/)??"))
        for pattern in plain
    )


@dataclass(slots=True)
class Files:
    """The files that inputs name.

    Attributes:
        paths: in order.
        names: of each path, what the default ids of its documents begin with; empty: it has none.
        root: the absolute folder that ``names`` are relative to; ``None``: they are base names, or paths as given.
        whole: whether they are all files of ``root``, which ``sync`` can follow.
        left_out: paths below the given folders that are not read: of unknown type, hidden, by a pattern, or an
            index. A folder stands for all that is in it.
    """

    paths: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    root: str | None = None
    whole: bool = False
    left_out: list[str] = field(default_factory=list)

    def told(self) -> str:
        """``left_out``, counted and named, for a command's last line; empty if nothing was."""
        if not self.left_out:
            return ""
        named = ", ".join(self.left_out[:_MOST_NAMED])
        more = ", …" if len(self.left_out) > _MOST_NAMED else ""
        count = len(self.left_out)
        return f"{count:,} file{'' if count == 1 else 's'} left out ({named}{more})"


def walk(
    folder: str, patterns: Patterns, left_out: list[str], *, any_type: bool = False
) -> list[os.DirEntry[str]]:
    """The files below ``folder`` that are read, by path; the others are appended to ``left_out``.

    A link to a file that is read is left out. ``any_type``: their format is given, so that those that ``include``
    names are read whatever their own names.

    Raises:
        InputError: a folder cannot be read.
    """
    prefix = len(folder.rstrip(os.sep)) + 1
    any_type = any_type and bool(patterns.include)

    def visit(path: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(path) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            raise InputError(path, f"cannot be read: {error.strerror or error}") from None
        for entry in entries:
            name = entry.path[prefix:]
            if entry.is_dir(follow_symlinks=False):
                if entry.name.startswith(".") or _matches(name, patterns.exclude) or is_index(entry.path):
                    left_out.append(name + os.sep)
                else:
                    yield from visit(entry.path)
            elif (
                entry.name.startswith(".") or not (any_type or format_of(entry.name)[0]) or not patterns(name)
            ):
                left_out.append(name)
            elif _is_file(entry):
                yield entry
            else:
                left_out.append(name)

    found = list(visit(folder.rstrip(os.sep) or os.sep))
    links = [entry for entry in found if entry.is_symlink()]
    if not links:
        return found
    own = {entry.inode() for entry in found if not entry.is_symlink()}
    device = os.stat(folder).st_dev
    targets: set[tuple[int, int]] = set()
    twice = set()
    for entry in links:  # of what is read under its own name, or by an earlier link
        target = entry.stat()
        place = (target.st_dev, target.st_ino)
        if place in targets or (target.st_dev == device and target.st_ino in own):
            twice.add(entry.path)
            left_out.append(entry.path[prefix:])
        targets.add(place)
    return [entry for entry in found if entry.path not in twice]


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Also through a link; False for one that leads to itself or to what may not be seen."""
    try:
        return entry.is_file()
    except OSError:
        return False


def is_index(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is an index, as likely as not the very one that is built of the folder around it."""
    if os.path.isfile(os.path.join(path, "CURRENT")):
        return os.path.isdir(os.path.join(path, "manifests"))
    # a first build that was interrupted
    return os.path.isfile(os.path.join(path, "build.journal")) and os.path.isdir(
        os.path.join(path, "segments")
    )


def index_around(path: str | os.PathLike[str]) -> str | None:
    """The index in whose folder a file would lie; such an index refuses every change."""
    folder = os.path.dirname(os.path.abspath(path))
    while not is_index(folder):
        if folder == os.path.dirname(folder):
            return None
        folder = os.path.dirname(folder)
    return folder


def find_files(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    root: str | None = None,
    named_by: NamedBy = "root",
    patterns: Patterns | None = None,
    any_type: bool = False,
) -> Files:
    """The files that ``inputs`` name: files, folders (all files of a known type below them), patterns, ``-``.

    Args:
        inputs: as given by the caller.
        root: the folder that names are relative to; ``None``: the folder given, or the one that all inputs share.
        named_by: what files are named by.
        patterns: which files below a folder are read; ``None``: all of a known type.
        any_type: as for `walk`.

    Raises:
        InputError: a folder holds no such file, or a pattern (with ``*``, ``?`` or ``[``) matches none.
    """
    files = Files()
    patterns = patterns or Patterns()
    tops: list[str] = []
    unnamed = {STDIN}
    for given in inputs:
        item = os.fspath(given)
        if item == STDIN:
            files.paths.append(item)
        elif os.path.isdir(item):
            if is_index(item):
                raise InputError(
                    item,
                    "is an index, not documents: `embedkit-index merge` joins indexes, `reembed` encodes one again",
                )
            left_out: list[str] = []
            found = [entry.path for entry in walk(item, patterns, left_out, any_type=any_type)]
            files.left_out += left_out
            if not found:
                reason = f"the folder holds no files that embedkit reads ({listed_formats()})"
                told = Files(left_out=left_out).told()
                raise InputError(item, f"{reason}; {told}" if told else reason)
            files.paths += found
            tops.append(item)
        elif not os.path.lexists(item) and glob.has_magic(item):
            matches = sorted(glob.glob(item, recursive=True))
            found = [name for name in matches if os.path.isfile(name)]
            if "**" not in item:  # which names what is in folders; a shell names folders one by one
                for folder in filter(os.path.isdir, matches):
                    if is_index(folder):
                        files.left_out.append(folder + os.sep)
                    else:
                        found += [
                            entry.path for entry in walk(folder, patterns, files.left_out, any_type=any_type)
                        ]
            if not found:
                found_none = (
                    "only folders without files that embedkit reads match" if matches else "no file matches"
                )
                raise InputError(item, f"{found_none} the pattern")
            files.paths += found
            tops.append(_plain_part(item))
        else:
            files.paths.append(item)
            if _is_descriptor(item):
                unnamed.add(item)
            else:
                tops.append(os.path.dirname(item))
    if named_by == "none":
        files.names = [path if path in unnamed else "" for path in files.paths]
        return files
    if named_by == "base":
        named = iter(names_of([path for path in files.paths if path not in unnamed]))
        files.names = [path if path in unnamed else next(named) for path in files.paths]
        return files
    if root is not None:
        files.root = os.path.realpath(root)
    elif tops and not any("\0" in top for top in tops):
        files.root = os.path.commonpath([os.path.realpath(top or os.curdir) for top in tops])
    files.whole = len(inputs) == 1 and os.path.isdir(inputs[0]) and os.path.realpath(inputs[0]) == files.root
    files.names = [
        path if path in unnamed or files.root is None else _below(path, files.root) for path in files.paths
    ]
    if (
        root is not None
        and not os.path.isdir(root)
        and any(name.startswith(os.pardir) for name in files.names)
    ):
        raise InputError(
            root,
            "the folder that the index's names of files are relative to is not there; if it was moved, name it: "
            "--root FOLDER, or embedkit-index sync --moved",
        )
    return files


def _is_descriptor(path: str) -> bool:
    """Whether it names an open file of this process, as a shell's ``<(command)`` does: no folder of a later one."""
    folder = os.path.dirname(path)
    return "\0" not in folder and os.path.realpath(folder or os.curdir) == os.path.realpath("/dev/fd")


def _plain_part(pattern: str) -> str:
    """The folder that a pattern begins with."""
    while glob.has_magic(pattern):
        pattern = os.path.dirname(pattern)
    return pattern


def _below(path: str, root: str) -> str:
    folder, name = os.path.split(path)
    # a link keeps its own name, but its folder is the same however it was reached
    return os.path.relpath(os.path.join(os.path.realpath(folder or os.curdir), name), root)
