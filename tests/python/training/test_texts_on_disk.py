"""Columns of texts that lie in a file, against lists."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from embedkit.training.data import texts as module
from embedkit.training.data.texts import Chain, KeyIndex, Selection, TextWriter, distinct, text_keys

GIVEN = ["a", "", "läßt", "苹果 🍎", "a\nb\t\0c", "x" * 5000, "a", "läßt"]


def written(folder: Path, texts: list[str]) -> module.TextFile:
    writer = TextWriter(folder)
    for text in texts:
        writer.append(text)
    return writer.close()


def same(column: module._Column, expected: list[str]) -> None:
    """Every way to read a column gives what the list gives."""
    count = len(expected)
    assert len(column) == count
    assert list(column) == expected
    assert [column[i] for i in range(-count, count)] == [expected[i] for i in range(-count, count)]
    for cut in (slice(None), slice(1, -1), slice(None, None, -2), slice(5, 2), slice(-3, 100)):
        assert list(column[cut]) == expected[cut]
        assert [column[cut][i] for i in range(len(expected[cut]))] == expected[cut]
    for outside in (count, -count - 1):
        with pytest.raises(IndexError, match=f"text {outside} of {count}"):
            column[outside]


def test_columns_read_as_lists(tmp_path: Path) -> None:
    same(written(tmp_path, GIVEN), GIVEN)
    same(written(tmp_path, []), [])
    same(written(tmp_path, ["", ""]), ["", ""])
    same(Selection(written(tmp_path, GIVEN), [3, 0, 3]), [GIVEN[3], GIVEN[0], GIVEN[3]])
    same(Chain([]), [])
    columns = [written(tmp_path, GIVEN), [], ["b"], written(tmp_path, GIVEN[:2])]
    same(Chain(columns), [*GIVEN, "b", *GIVEN[:2]])
    expected = ["p: " + text for text in GIVEN] + ["b"] + ["q" + text for text in GIVEN[:2]]
    same(Chain(columns, ["p: ", "-", "", "q"]), expected)
    assert list(tmp_path.iterdir()) == []  # the files have no name


def test_distinct_texts_are_those_of_a_dict() -> None:
    given = random.Random(0).choices(["", "a", "b", "ä", "苹果", "a ", "A"], k=200)
    first, rows = distinct(text_keys(given))
    assert [given[i] for i in first] == list(dict.fromkeys(given))
    assert first.tolist() == [given.index(text) for text in dict.fromkeys(given)]
    assert [given[first[row]] for row in rows] == given
    first, rows = distinct(text_keys([]))
    assert (len(first), len(rows)) == (0, 0)


def test_keys_are_found_also_beside_equal_halves() -> None:
    """Hashes with an equal first half are told apart by the second; no two texts at hand have such hashes."""
    keys = np.random.default_rng(0).integers(0, 3, (500, 2), np.uint64).view(np.uint8)  # many repeated
    asked = np.random.default_rng(1).integers(0, 4, (300, 2), np.uint64).view(np.uint8)
    first: dict[bytes, int] = {}
    for row, key in enumerate(keys):
        first.setdefault(key.tobytes(), row)
    found = KeyIndex(keys).find(asked)
    assert found.tolist() == [first.get(key.tobytes(), -1) for key in asked]
    assert KeyIndex(keys[:0]).find(asked).tolist() == [-1] * len(asked)
    assert KeyIndex(keys).find(asked[:0]).tolist() == []


def test_the_hash_is_blake2b() -> None:
    expected = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in GIVEN]
    assert [key.tobytes() for key in text_keys(GIVEN)] == expected


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        for folder, place, remedy in (
            (tmp_path, tmp_path, "choose another output or cache"),
            (None, tempfile.gettempdir(), "set TMPDIR to another folder"),
        ):
            for texts in (["x" * 100_000], ["x" * 100] * 60):  # written by `append`, by `close`
                writer, message = (
                    TextWriter(folder),
                    rf"^{place} has no room for the texts \(.+\); free space, or {remedy}$",
                )
                with pytest.raises(OSError, match=message):
                    for text in texts:
                        writer.append(text)
                    writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


_READ = """
import re, sys
from pathlib import Path
from embedkit.training.data.checks import check
from embedkit.training.data.readers import read
from embedkit.training.data.store import TextStore

def private():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

folder, tokenizer = Path(sys.argv[1]), sys.argv[2]
before = private()
table = read({"path": "texts.jsonl"}, root=folder, folder=folder)
check(table, {}, ("text",))
store = TextStore(tokenizer, table.texts("text"), 16, folder)
print(len(store), private() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads /proc")
def test_memory_holds_no_texts(tmp_path: Path) -> None:
    """120 MB of texts are read, checked and tokenized in 60, which tokenizing four million characters takes."""
    from embedkit import Encoder

    Encoder().save(tmp_path / "model")
    count, filler = 20_000, "word " * 1200
    with (tmp_path / "texts.jsonl").open("w") as file:
        file.writelines(f'{{"text": "{number} {filler}"}}\n' for number in range(count))
    assert (tmp_path / "texts.jsonl").stat().st_size > 120e6
    done = subprocess.run(
        [sys.executable, "-P", "-c", _READ, str(tmp_path), str(tmp_path / "model")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    distinct_texts, grown = map(int, done.stdout.split())
    assert distinct_texts == count
    assert grown < 60e6, f"{grown / 1e6:.0f} MB"
