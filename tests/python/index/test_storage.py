"""Files on disk: killed builds, full disks, damaged and hostile files."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from fake_encoder import FakeEncoder
from peak_memory import PEAK_KIB, needs_peak

from embedkit.index import BuildError, Document, Index, IndexDamagedError, IndexNotFoundError
from embedkit.index.build.resume import resumable_rows
from embedkit.index.storage.layout import Writer

TESTS = Path(__file__).parents[1]


@pytest.fixture
def root(tmp_path: Path, encoder: FakeEncoder) -> Path:
    root = tmp_path / "index"
    Index.build(root, ["a cat", "a dog", "a bird"], encoder).close()
    return root


def manifest_path(root: Path) -> Path:
    return root / "manifests" / (root / "CURRENT").read_text().strip()


def segment_file(root: Path, name: str) -> Path:
    (segment,) = (root / "segments").iterdir()
    return segment / name


def run(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    prelude = f"import sys; sys.path.insert(0, {str(TESTS)!r})\nfrom fake_encoder import FakeEncoder\n"
    return subprocess.run(
        [sys.executable, "-c", prelude + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        **options,
    )


def test_the_folder_is_as_designed(root: Path) -> None:
    manifest = json.loads(manifest_path(root).read_bytes())
    assert (manifest["format"], manifest["format_version"]) == ("embedkit-index", 2)
    assert sorted(path.name for path in root.iterdir()) == [
        "CURRENT",
        "LOCK",
        "manifests",
        "segments",
        "tombstones",
    ]
    (segment,) = manifest["segments"]
    assert sorted(segment["files"]) == ["documents.sqlite", "keys", "vectors.faiss"]
    with sqlite3.connect(segment_file(root, "documents.sqlite")) as db:
        assert db.execute("SELECT * FROM documents").fetchall()[1] == (1, "1", "a dog", None)


# The child kills itself at the n-th event of a kind: each point where the disk changes.
KILLED_BUILD = """
import os, signal
from embedkit.index import Index
where, number, index, overwrite = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "1"
seen = 0
def hook(event, arguments):
    global seen
    if event == where:
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
encoder = FakeEncoder()
encode = encoder.encode_document
def encode_document(sentences, **options):
    sys.audit("test.encode")
    return encode(sentences, **options)
encoder.encode_document = encode_document
import faiss
sys.addaudithook(hook)
Index.build(index, [f"new text {n}" for n in range(5000)], encoder, overwrite=overwrite)
"""


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize(
    ("event", "number"),
    [
        ("test.encode", 2),
        ("os.remove", 1),
        ("os.rename", 1),
        ("os.rename", 2),
        ("os.rename", 3),
        ("os.remove", 9),
    ],
)
def test_a_killed_build_leaves_the_old_generation_or_none(
    tmp_path: Path, encoder: FakeEncoder, event: str, number: int, existing: bool
) -> None:
    root = tmp_path / "index"
    if existing:
        Index.build(root, ["old text"], encoder).close()
    killed = run(KILLED_BUILD, event, number, root, int(existing))
    switched = (root / "CURRENT").exists() and len(Index.open(root)) == 5000
    if not switched:
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    if existing or switched:
        with Index.open(root, encoder) as index:
            index.verify()
            assert len(index) == (5000 if switched else 1)
    else:
        with pytest.raises(
            IndexNotFoundError,
            match="a build of this index has ended before it was finished; run it again",
        ):
            Index.open(root)
    options = {"overwrite": existing or switched, "restart": True}
    with Index.build(root, ["rebuilt"], encoder, **options) as index:
        assert [hit.text for hit in index.search("x")[0]] == ["rebuilt"]
    assert len(list((root / "segments").iterdir())) == 1
    assert len(list((root / "manifests").iterdir())) == 1
    assert not (root / "build.journal").exists()


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("limit", [3_000, 20_000, 200_000, 700_000, 900_000])
def test_a_full_disk_fails_the_build_and_keeps_encoded_vectors(
    tmp_path: Path, encoder: FakeEncoder, limit: int, existing: bool
) -> None:
    root = tmp_path / "index"
    if existing:
        Index.build(root, ["old text"], encoder).close()
    # A limit on the size of a file fails every kind of write here: SQLite's, Python's and Faiss'.
    failed = run(
        "import resource\nfrom embedkit.index import BuildError, Index\nimport faiss\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
        "try: Index.build(sys.argv[1], [f'text {n}' for n in range(5000)], FakeEncoder(), overwrite=True,"
        " factory='HNSW16')\n"
        "except BuildError as error: print(error)\n",
        root,
        limit,
    )
    assert failed.returncode == 0, failed.stderr
    rows = resumable_rows(root)
    if rows:
        assert f"{rows:,} documents are encoded, and the same command resumes from there" in failed.stdout
    else:
        assert f"{root}: the build failed and was undone: " in failed.stdout
        assert root.exists() == existing
    if existing:
        with Index.open(root, encoder) as index:
            index.verify()
            assert len(index) == 1
    calls = []
    encode = encoder.encode_document
    encoder.encode_document = lambda texts, **options: calls.append(len(texts)) or encode(texts, **options)
    with Index.build(
        root, [f"text {n}" for n in range(5000)], encoder, overwrite=True, factory="HNSW16"
    ) as index:
        index.verify()
        assert len(index) == 5000
    assert sum(calls) == 5000 - rows


def test_a_second_writer_is_refused(root: Path, encoder: FakeEncoder) -> None:
    before = sorted(root.rglob("*"))
    with Writer(root), Index.open(root, encoder) as index:
        for write in (
            lambda: Index.build(root, ["a"], encoder, overwrite=True),
            lambda: index.add([Document("a", "a")]),
            lambda: index.delete(["0"]),
            index.compact,
        ):
            with pytest.raises(BlockingIOError, match="this process is writing to this index; wait"):
                write()
    assert sorted(root.rglob("*")) == before


def test_a_reader_finds_a_whole_generation_while_another_process_replaces_it(
    tmp_path: Path, encoder: FakeEncoder
) -> None:
    root = tmp_path / "index"
    Index.build(root, ["generation 0", "more 0"], encoder).close()
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
            "from fake_encoder import FakeEncoder\nfrom embedkit.index import Index\n"
            "for n in range(1, 25):\n"
            "    texts = [f'generation {n}', f'more {n}']\n"
            "    Index.build(sys.argv[1], texts, FakeEncoder(), overwrite=True).close()\n",
            str(root),
        ]
    )
    seen = set()
    while writer.poll() is None:
        with Index.open(root, encoder) as index:
            numbers = {hit.text.split()[1] for hit in index.search("generation", k=2)[0]}
            assert len(numbers) == 1
            seen |= numbers
    assert writer.returncode == 0
    assert len(seen) > 1


def test_no_index(tmp_path: Path) -> None:
    with pytest.raises(IndexNotFoundError, match="no such index; build one with: embedkit-index build"):
        Index.open(tmp_path / "none")
    with pytest.raises(IndexNotFoundError, match="not an index"):
        Index.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(IndexNotFoundError, match="not an index, which is a folder"):
        Index.open(tmp_path / "file")


@pytest.mark.parametrize("content", ["", "../../etc/passwd", "000001.json/../../x", "\xff", "000009.json"])
def test_a_wrong_current(root: Path, content: str) -> None:
    (root / "CURRENT").write_text(content, "latin-1")
    with pytest.raises(IndexDamagedError, match=r"CURRENT.*build the index again|000009.json: missing"):
        Index.open(root)


def edit(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = manifest_path(root)
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_text(json.dumps(manifest))


BITS = {"file": "x.bits", "deleted": 3, "size": 1, "sha256": "0" * 64}


def set_file(manifest: dict[str, Any], field: str, value: object) -> None:
    manifest["segments"][0]["files"]["keys"][field] = value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format="other"), "not the manifest of an embedkit index"),
        (
            lambda m: m.update(format_version=3),
            "format version 3, and this embedkit reads version 2; open",
        ),
        (lambda m: m.update(format_version=1), "format version 1, and this embedkit reads version 2; open"),
        (lambda m: m.update(format_version=True), "format version True"),
        (lambda m: m.update(kept="fp64"), "field 'kept' is 'fp64', not one of none, fp32, int8"),
        (lambda m: m["segments"][0].update(parts=[]), "the parts of segment .* do not make 3 rows"),
        (lambda m: m["segments"][0].update(parts=[7]), "a part is not an object"),
        (lambda m: m["segments"][0]["parts"][0].update(file="../vectors.faiss"), "part name '../vec"),
        (lambda m: m["segments"][0].update(raw="fp32"), "must list exactly"),
        (lambda m: m["segments"][0].update(tombstones=BITS | {"file": "../../x.bits"}), "tombstones name"),
        (lambda m: m["segments"][0].update(tombstones=BITS | {"size": 2}), "do not fit 3 rows"),
        (lambda m: m["segments"][0].update(tombstones=BITS | {"deleted": 4}), "do not fit 3 rows"),
        (lambda m: m["segments"][0].update(tombstones=BITS | {"deleted": 1}), "do not add up"),
        (lambda m: m.pop("dimension"), "field 'dimension' is missing"),
        (lambda m: m.update(dimension="32"), "field 'dimension' is missing or not of type int"),
        (lambda m: m.update(dimension=True), "field 'dimension'"),
        (lambda m: m.update(dimension=-1), "field 'dimension' is out of range"),
        (lambda m: m.update(dimension=10**30), "field 'dimension' is out of range"),
        (lambda m: m.update(dimension=33), "where|but the manifest says 3 of 33"),
        (lambda m: m.update(metric="l2"), "field 'metric' is 'l2', not one of cosine, dot"),
        (lambda m: m.update(documents=4), "do not add up"),
        (lambda m: m.update(generation=7), "says it is generation 7"),
        (lambda m: m.update(segments=[]), "do not add up"),
        (lambda m: m.update(segments=[5]), "a segment is not an object"),
        (lambda m: m.update(segments=m["segments"] * 2, documents=6), "a segment is named twice"),
        (lambda m: m.update(encoder={}), "field 'model' is missing"),
        (lambda m: m["segments"][0].update(name="../../etc"), "segment name '../../etc' is not allowed"),
        (lambda m: m["segments"][0].update(name="/etc"), "segment name '/etc' is not allowed"),
        (lambda m: m["segments"][0].update(name="gone"), "missing, though the index lists it"),
        (lambda m: m["segments"][0]["files"].update({"../x": {}}), "must list exactly"),
        (lambda m: set_file(m, "size", 1), "bytes, but the manifest says 1; build the index again"),
        (lambda m: set_file(m, "sha256", "zz"), "not 64 hexadecimal digits"),
    ],
)
def test_a_hostile_manifest_is_named(
    root: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(root, change)
    with pytest.raises(IndexDamagedError, match=message) as caught:
        Index.open(root)
    assert str(root) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b" " * (17 << 20)])
def test_a_manifest_that_is_not_json(root: Path, content: bytes) -> None:
    manifest_path(root).write_bytes(content)
    with pytest.raises(IndexDamagedError, match=r"000001\.json"):
        Index.open(root)


@pytest.mark.parametrize("name", ["vectors.faiss", "keys", "documents.sqlite"])
def test_damaged_files_are_named(root: Path, encoder: FakeEncoder, name: str) -> None:
    path = segment_file(root, name)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(IndexDamagedError, match=f"{name}: {len(content) - 1} bytes, but the manifest says"):
        Index.open(root)
    flipped = bytearray(content)
    flipped[-1] ^= 1
    path.write_bytes(flipped)
    # Faiss' files are compared when they are opened
    with (
        pytest.raises(IndexDamagedError, match=f"{name}: the content does not match its SHA-256"),
        Index.open(root, encoder) as index,
    ):
        index.verify()
    path.unlink()
    with pytest.raises(IndexDamagedError, match=f"{name}: missing, though the index lists it"):
        Index.open(root)


@pytest.mark.parametrize("name", ["vectors.faiss", "keys", "documents.sqlite"])
def test_files_of_the_right_size_with_other_content(root: Path, name: str) -> None:
    path = segment_file(root, name)
    path.write_bytes(b"\xaa" * path.stat().st_size)
    with pytest.raises(IndexDamagedError, match=rf"{name}: .*build the index again"):
        Index.open(root)


def test_id_offsets_outside_the_file(root: Path) -> None:
    path = segment_file(root, "keys")
    content = bytearray(path.read_bytes())
    table = struct.unpack_from("<Q", content, 16)[0]
    struct.pack_into("<Q", content, table + 8, 1 << 60)
    path.write_bytes(content)
    with (
        Index.open(root) as index,
        pytest.raises(IndexDamagedError, match="keys: the id of row 0 lies outside"),
    ):
        index.ids([0])


def test_a_missing_row_is_named(root: Path, encoder: FakeEncoder) -> None:
    path = segment_file(root, "documents.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM documents WHERE row = 1")
    size = path.stat().st_size
    edit(root, lambda m: m["segments"][0]["files"]["documents.sqlite"].update(size=size))
    with Index.open(root, encoder) as index, pytest.raises(IndexDamagedError, match="row 1 is missing"):
        index.search("dog", k=3)


@pytest.mark.parametrize(
    "change", ["key = x'00'", "text = 5", "metadata = '[]'", "metadata = '{'", "metadata = 7", "text = NULL"]
)
def test_a_row_of_other_types_is_damaged(root: Path, encoder: FakeEncoder, change: str) -> None:
    path = segment_file(root, "documents.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_schema SET sql = replace(replace(sql, 'NOT NULL', ''), 'TEXT', '')")
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE documents SET {change} WHERE row = 1")
    db.close()
    size = path.stat().st_size
    edit(root, lambda m: m["segments"][0]["files"]["documents.sqlite"].update(size=size))
    with Index.open(root, encoder) as index, pytest.raises(IndexDamagedError, match=r"documents\.sqlite"):
        index.search("dog", k=3)


def test_several_segments_are_searched_as_one(tmp_path: Path, encoder: FakeEncoder) -> None:
    texts = [f"text number {number}" for number in range(60)]
    whole = Index.build(tmp_path / "whole", texts, encoder)
    Index.build(tmp_path / "index", texts[:25], encoder).close()
    Index.build(tmp_path / "other", texts[25:], encoder).close()
    (other,) = (tmp_path / "other" / "segments").iterdir()
    shutil.copytree(other, tmp_path / "index" / "segments" / "second")
    entry = json.loads(manifest_path(tmp_path / "other").read_bytes())["segments"][0] | {"name": "second"}
    edit(tmp_path / "index", lambda m: m.update(documents=60, segments=[*m["segments"], entry]))
    queries = encoder.encode_query(texts[20:30], normalize_embeddings=True)
    with Index.open(tmp_path / "index", encoder) as index:
        scores, rows = index.search_vectors(queries, k=40)
        expected, _ = whole.search_vectors(queries, k=40)
        np.testing.assert_array_equal(scores, expected)
        assert rows[:, 0].tolist() == list(range(20, 30))
        assert [hits[0].text for hits in index.search(texts[20:30], k=1)] == texts[20:30]
        assert index.ids([24, 25]) == ["24", "0"]
    whole.close()


def test_a_read_only_index_opens(root: Path, encoder: FakeEncoder) -> None:
    for path in (*root.rglob("*"), root):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        with Index.open(root, encoder) as index:
            assert index.search("a dog", k=1)[0][0].text == "a dog"
    finally:
        for path in (root, *root.rglob("*")):
            path.chmod(0o755)


@needs_peak
def test_a_corpus_larger_than_the_memory_it_takes(tmp_path: Path) -> None:
    # 200,000 texts of 1,000 characters are 200 MB; the peak above what is imported stays far below.
    measured = run(
        "from embedkit.index import Index\nimport faiss\n"
        "class Constant(FakeEncoder):\n"
        "    def encode_document(self, sentences, *, normalize_embeddings=False):\n"
        "        import numpy as np\n"
        "        return np.ones((len(sentences), self.dimension), np.float32)\n"
        f"peak = lambda: {PEAK_KIB}\n"
        "Index.build(sys.argv[1] + '/small', ['x'] * 10, Constant()).close()\n"
        "before = peak()\n"
        "texts = (f'{n} ' + 'abcdefghi ' * 100 for n in range(200_000))\n"
        "index = Index.build(sys.argv[1] + '/large', texts, Constant(truncate_dim=8), factory='Flat')\n"
        "print(len(index), (peak() - before) // 1024)\n",
        tmp_path,
    )
    assert measured.returncode == 0, measured.stderr
    count, megabytes = map(int, measured.stdout.split())
    assert count == 200_000
    assert megabytes < 120, f"{megabytes} MB"


def test_enospc_says_what_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("embedkit.index.storage.layout.os.fsync", full)
    with pytest.raises(BuildError, match="index: the build failed and was undone: No space left on device"):
        Index.build(tmp_path / "index", ["a"], FakeEncoder())
    assert not (tmp_path / "index").exists()


def test_a_full_disk_at_the_last_bytes_of_the_vectors_keeps_the_old_index(
    tmp_path: Path, encoder: FakeEncoder
) -> None:
    root = tmp_path / "index"
    Index.build(root, [f"text {n}" for n in range(200)], encoder).close()
    size = segment_file(root, "vectors.faiss").stat().st_size
    failed = run(
        "import resource\nfrom embedkit.index import BuildError, Index\nimport faiss\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
        "try: Index.build(sys.argv[1], [f'new {n}' for n in range(200)], FakeEncoder(), overwrite=True)\n"
        "except BuildError as error: print(error)\n",
        root,
        size - 5,
    )
    assert (failed.returncode, failed.stderr) == (0, "")
    assert failed.stdout == (
        f"{root}: the build failed: File too large; 200 documents are encoded, "
        "and the same command resumes from there\n"
    )
    with Index.open(root, encoder) as index:
        index.verify()


def test_an_index_without_words_gets_them_by_a_compaction(root: Path, encoder: FakeEncoder) -> None:
    edit(root, lambda m: m["segments"][0].update(keywords=False, words=None))
    with Index.open(root, encoder) as index:
        with pytest.raises(
            ValueError, match=r"words of the texts, which this index lacks; embedkit-index compact"
        ):
            index.search("a dog", hybrid=True)
        assert index.compact()
        assert index.search("a dog", k=1, hybrid=True)[0][0].text == "a dog"


def test_more_than_999_parts_have_names(root: Path, encoder: FakeEncoder) -> None:
    segment_file(root, "vectors.faiss").rename(segment_file(root, "vectors-1000.faiss"))
    path = manifest_path(root)
    path.write_text(path.read_text().replace("vectors.faiss", "vectors-1000.faiss"))
    with Index.open(root, encoder) as index:
        assert index.search("a dog", k=1)[0][0].text == "a dog"
