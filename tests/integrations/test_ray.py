"""`EncodeBatches` and ``build --engine ray`` on a local Ray cluster, with actors that die."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_raylet_start_wait_time_s", "30")

import numpy as np
import pyarrow
import pytest
import ray
import ray.data
from pyarrow import parquet
from ray.cluster_utils import Cluster

from embedkit import Encoder
from embedkit.cli.main import main
from embedkit.documents.document import Document
from embedkit.documents.readers import Corpus
from embedkit.index import BuildSettings, Index, InputError
from embedkit.index.build import check
from embedkit.index.build.settings import Progress
from embedkit.index.errors import IndexExistsError, ResumeError
from embedkit.integrations import ray_index, ray_shards
from embedkit.integrations.ray import EncodeBatches
from embedkit.integrations.ray_actor import EncodePieces, Job
from embedkit.integrations.ray_encoder import Description
from embedkit.integrations.ray_index import build_index
from embedkit.integrations.ray_plan import digest, files, pieces_of, source_of

WORDS = ["lentil", "soup", "server", "memory", "thread", "lock", "bread", "onion", "Paris", "Rome", "actor"]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    # Ray's own cluster for tests, without processes that these tests do not need: a raylet ends if its agents take
    # longer than 15 seconds to start, which they do on a busy machine. No setting changes that.
    options = {
        "num_cpus": 2,
        "object_store_memory": 80 << 20,
        "no_monitor": True,
        "include_log_monitor": False,
    }
    for attempt in range(6):
        try:
            cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
            break
        except Exception:
            if attempt == 5:
                raise
    ray.init(address=cluster.address, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()
    cluster.shutdown()


def texts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(2, 9))) for _ in range(count)]


def corpus(folder: Path) -> list[str]:
    """Three files: JSON Lines with and without ids, blank lines and texts; gzipped; parquet with odd row groups."""
    lines = []
    for number, text in enumerate(texts(300)):
        record: dict[str, Any] = {"text": "  " if number % 50 == 7 else text, "n": number}
        if number % 3 == 0:
            record |= {"id": f"doc {number}", "tags": ["é", number]}
        lines += [json.dumps(record), *([""] if number % 90 == 0 else [])]
    (folder / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")  # the last line has no line ending
    with gzip.open(folder / "b.jsonl.gz", "wt", encoding="utf-8") as packed:
        packed.writelines(json.dumps({"text": text}) + "\n" for text in texts(50, 1))
    table = pyarrow.table({"text": texts(260, 2), "year": list(range(260))})
    parquet.write_table(table, folder / "c.parquet", row_group_size=70)
    return [str(folder / name) for name in ("a.jsonl", "b.jsonl.gz", "c.parquet")]


def contents(path: Path) -> tuple[list[str], list[Any], np.ndarray]:
    with Index.open(path) as index:
        (segment,) = index.generation.segments
        pairs = list(segment.scan())
        documents = [document for some, _ in pairs for document in some]
        return (
            [file.sha256 for file in segment.entry.files.values()],
            documents,
            np.concatenate([vectors for _, vectors in pairs]),
        )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Any]:
    """The inputs, and their index built on a single machine."""
    folder = tmp_path_factory.mktemp("corpus")
    inputs = corpus(folder)
    assert main(["build", *inputs, "-o", str(folder / "alone"), "--factory", "IVF8,Flat"]) == 0
    return inputs, contents(folder / "alone")


def assert_same(path: Path, expected: Any) -> None:
    files, documents, vectors = contents(path)
    assert documents == expected[1]
    np.testing.assert_array_equal(vectors, expected[2])
    assert files == expected[0]


def dies_once() -> type[EncodeBatches]:
    # a class of a function is sent to the workers, which could not import this file
    class DiesOnce(EncodeBatches):
        """Kills its process at its second batch, once."""

        def __init__(self, mark: str) -> None:
            super().__init__(kind="query", vector_column="found", normalize_embeddings=True)
            self._mark = Path(mark)
            self._batches = 0

        def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            self._batches += 1
            if self._batches == 2 and not self._mark.exists():
                self._mark.touch()
                os._exit(1)
            assert self.encoder.describe()["threads"] == 1  # as many as the CPUs that Ray assigned
            return super().__call__(batch)

    return DiesOnce


def test_vectors_of_a_dataset_are_the_encoders_though_an_actor_dies(tmp_path: Path) -> None:
    given = [*texts(96), "", "ein Satz, länger als die anderen, mit Umlauten"]
    dataset = ray.data.from_items(
        [{"text": text, "n": number} for number, text in enumerate(given)], override_num_blocks=8
    ).map_batches(
        dies_once(),
        fn_constructor_args=(str(tmp_path / "died"),),
        batch_size=8,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=1),
    )
    rows = sorted(dataset.take_all(), key=lambda row: row["n"])
    assert (tmp_path / "died").exists()
    assert [row["text"] for row in rows] == given
    expected = Encoder().encode_query(given, normalize_embeddings=True)
    np.testing.assert_array_equal(np.stack([row["found"] for row in rows]), expected)


def test_batches_that_cannot_be_encoded() -> None:
    encode = EncodeBatches(text_column="body")
    with pytest.raises(ValueError, match="no column 'body' \\(the columns are: 'text'\\); name it with"):
        encode({"text": np.array(["x"], object)})
    with pytest.raises(TypeError, match="batch_format='numpy', Ray's default, not Table"):
        encode(pyarrow.table({"body": ["x"]}))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"texts\[1\] is NoneType"):
        encode({"body": np.array(["x", None], object)})
    empty = encode({"body": np.array([], object)})
    assert empty["vector"].shape == (0, 256)
    assert empty["vector"].dtype == np.float32
    with pytest.raises(ValueError, match="kind must be"):
        EncodeBatches(kind="passage")  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [1, 7, 100, 10_000])
def test_pieces_are_the_file(tmp_path: Path, rows: int) -> None:
    inputs = corpus(tmp_path)
    told = []
    for file in files(inputs)[0]:
        pieces = pieces_of(file, rows)
        assert len(pieces) == 1 or rows < 10_000
        for piece in pieces:
            told += list(Corpus.of_sources([source_of(piece, "stop")], text_field="text", id_field=None))
    whole = list(Corpus(inputs))
    assert [(one.id, one.text, one.metadata) for one in told] == [
        (one.id, one.text, one.metadata) for one in whole
    ]


def test_one_input_is_a_list_of_one(tmp_path: Path) -> None:
    path = corpus(tmp_path)[0]
    assert files(str(path)) == files(Path(path)) == files([path])


@pytest.mark.parametrize("name", ["encoders", "encoder_threads", "shard_rows"])
def test_a_cluster_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, not 0"):
        ray_index.Cluster(**{name: 0})


def test_files_of_several_folders_are_named_as_in_a_local_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        Path("corpus", folder).mkdir(parents=True)
        lines = [json.dumps({"text": text}) for text in texts(20, ord(folder))]
        Path("corpus", folder, "x.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, engine in {"alone": "local", "cluster": "ray"}.items():
        options = ["--engine", engine, "--factory", "auto-int8"]
        options += ["--query-prompt", "query: ", "--document-prompt", "passage: "]
        assert main(["build", "corpus", "-o", name, *options]) == 0
    with Index.open("alone") as alone, Index.open("cluster") as built:
        first, second = (index.generation.manifest for index in (alone, built))
        assert (first.root, first.reading, first.factory) == (second.root, second.reading, second.factory)
        assert first.encoder == second.encoder and first.encoder.document_prompt == "passage: "
        assert [document.id for document in built] == [document.id for document in alone]
        assert "b/x.jsonl:3" in built
    assert_same(tmp_path / "cluster", contents(tmp_path / "alone"))
    assert main(["sync", "corpus", "cluster"]) == 0
    assert main(["build", "corpus/a/x.jsonl", "-o", "one", "--engine", "ray"]) == 0
    assert main(["sync", "corpus/a", "one"]) == 2  # of one file


def test_the_digest_knows_how_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    Path("a/x.jsonl").write_text('{"text": "one"}\n', encoding="utf-8")
    plans = [files([path])[0] for path in ("a/x.jsonl", str(tmp_path / "a" / "x.jsonl"), ".")]
    assert [file.path for file in plans[0]] == [file.path for file in plans[2]]
    assert [plan[0].name for plan in plans] == ["x.jsonl", "x.jsonl", "a/x.jsonl"]  # as in a local build
    same, again, other = (digest([piece for file in plan for piece in pieces_of(file, 10)]) for plan in plans)
    assert same == again
    assert same != other  # whose documents have other ids


def _kill_an_actor() -> None:
    """Kill a process that has an encoder: a child of the raylet, which is a child of ours."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    for process, parent in parents.items():
        if parents.get(parent) == os.getpid():
            try:
                title = Path(f"/proc/{process}/cmdline").read_bytes()
            except OSError:  # it has ended
                continue
            if b"EncodePieces" in title:
                os.kill(process, signal.SIGKILL)
                return
    raise AssertionError("no actor runs")


def test_the_index_is_that_of_one_machine_though_an_actor_is_killed(
    alone: tuple[list[str], Any], tmp_path: Path
) -> None:
    inputs, expected = alone
    killed = []

    def kill(progress: Any) -> None:
        if progress.stage == "encode" and not killed:
            killed.append(progress.done)
            _kill_an_actor()

    built = build_index(
        tmp_path / "index",
        inputs,
        cluster=ray_index.Cluster(
            shards=f"file://{tmp_path}/shards", encoders=1, encoder_threads=1, shard_rows=20
        ),
        settings=BuildSettings("IVF8,Flat"),
        progress=kill,
    )
    assert killed and killed[0] < built.documents  # it had work to do
    assert built.documents == built.encoded == len(expected[1])
    assert built.blank == sum(
        1 for line in Path(inputs[0]).read_text().split("\n") if not line or '"  "' in line
    )
    assert_same(tmp_path / "index", expected)
    # the files that other stores load
    table = parquet.read_table(tmp_path / "shards" / "shards")
    assert table["id"].to_pylist() == [document.id for document in expected[1]]
    np.testing.assert_array_equal(np.stack(table["vector"].to_numpy()), expected[2])
    assert not list((tmp_path / "shards" / "shards").glob(".*"))


class StopError(Exception):
    pass


def test_a_restarted_job_leaves_out_finished_shards(
    alone: tuple[list[str], Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs, expected = alone
    path, shards = tmp_path / "index", tmp_path / "index.shards" / "shards"

    def stop(progress: Any) -> None:
        if progress.stage == "encode" and progress.done > 100:
            raise StopError

    with pytest.raises(StopError):
        build_index(
            path,
            inputs,
            cluster=ray_index.Cluster(encoders=1, encoder_threads=1, shard_rows=60),
            settings=BuildSettings("IVF8,Flat"),
            progress=stop,
        )
    before = {file.name: file.stat().st_mtime_ns for file in shards.glob("*.parquet")}
    assert before
    assert not path.exists()
    damaged = shards / sorted(before)[0]  # as left by a machine that dies while writing
    damaged.write_bytes(damaged.read_bytes()[:-20])
    left = sum(parquet.read_metadata(shards / name).num_rows for name in sorted(before)[1:])

    pieces = ray_index.Cluster(shard_rows=60)
    with pytest.raises(ResumeError, match="were made with another input"):
        build_index(path, inputs[:2], cluster=pieces)
    with pytest.raises(ResumeError, match="were made with another metric"):
        build_index(path, inputs, cluster=pieces, settings=BuildSettings(metric="dot"))

    # "encoders" does not affect the job
    monkeypatch.chdir(tmp_path)
    options = ["--shards", "index.shards", "--shard-rows", "60", "--encoder-threads", "2"]
    build = ["build", *inputs, "-o", str(path), "--factory", "IVF8,Flat", "--engine", "ray", *options]
    assert main(build) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    encoded = int(re.findall(r"([\d,]+) of them encoded now", line)[0].replace(",", ""))
    assert encoded == len(expected[1]) - left
    for name in sorted(before)[1:]:
        assert (shards / name).stat().st_mtime_ns == before[name]
    assert_same(path, expected)
    with pytest.raises(IndexExistsError, match="an index exists there"):
        build_index(path, inputs)
    # with all shards present, the only encoder opened is the one that describes the model
    assert main([*build, "--overwrite"]) == 0
    assert ", 0 of them encoded now" in capsys.readouterr().out
    assert_same(path, expected)


def test_a_text_that_the_encoder_refuses(tmp_path: Path) -> None:
    records = [{"text": text, "id": f"k{number}"} for number, text in enumerate(texts(20))]
    records[7]["text"] = "long " * 600
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    build = partial(
        build_index, tmp_path / "index", [tmp_path / "long.jsonl"], None, {"on_overflow": "error"}
    )
    with pytest.raises(InputError, match=r"long\.jsonl:8: the text has 602 tokens, more than the 512"):
        build()
    refused: list[InputError] = []
    assert build(settings=BuildSettings(on_error=refused.append)).documents == 19
    assert [one.origin.rpartition("/")[2] for one in refused] == ["long.jsonl:8"]


def test_long_texts_are_encoded_and_read_few_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "CHARACTERS_AT_ONCE", 1000)
    given = ["lentil soup " * 50, "bread", *["onion bread " * 30] * 5]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in given))
    encoder = Encoder(threads=1)
    (piece,) = pieces_of(files([tmp_path / "long.jsonl"])[0][0], 100)
    job = Job(None, {"threads": 1}, Description.of(encoder), str(tmp_path), "job", True, "text", None, False)
    (tmp_path / "shards").mkdir()
    shard = EncodePieces(job).encode(0, piece)
    written = parquet.ParquetFile(tmp_path / "shards" / "000000.parquet").metadata
    assert [written.row_group(number).num_rows for number in range(written.num_row_groups)] == [4, 3]
    batches = []
    documents_of = ray_shards._documents

    def noted(batch: pyarrow.RecordBatch) -> Iterator[tuple[Document, int]]:
        batches.append(batch.num_rows)
        return documents_of(batch)

    monkeypatch.setattr(ray_shards, "_documents", noted)
    found = list(ray_shards.ShardStore(str(tmp_path), "job").read(shard))
    assert batches == [4, 3]
    assert [document.text for document, _ in found] == given
    expected = encoder.encode_document(given, normalize_embeddings=True)
    np.testing.assert_array_equal(np.stack([document.vector for document, _ in found]), expected)


def test_how_long_texts_are_read_is_kept(tmp_path: Path) -> None:
    texts = [f"word{n} " * 30 + "lentil soup" for n in range(20)]
    lines = "".join(json.dumps({"id": str(n), "text": text}) + "\n" for n, text in enumerate(texts))
    (tmp_path / "in.jsonl").write_text(lines, encoding="utf-8")

    def stop(progress: Progress) -> None:
        if progress.stage == "encode":
            raise KeyboardInterrupt

    def build(options: dict[str, Any], **more: Any) -> None:
        cluster = ray_index.Cluster(encoders=1, encoder_threads=1, shard_rows=7)
        build_index(tmp_path / "index", [tmp_path / "in.jsonl"], options=options, cluster=cluster, **more)

    with pytest.raises(KeyboardInterrupt):
        build({"max_length": 16}, progress=stop)
    with pytest.raises(ResumeError, match="another max_length"):
        build({})
    build({"max_length": 16})
    with Index.open(tmp_path / "index", Encoder(max_length=16)) as index:
        assert index.generation.manifest.max_length == 16


def test_documents_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"text": text, "id": f"k{number}"} for number, text in enumerate(texts(40))]
    records[30]["text"] = "a NUL \0 in it"
    records[35]["id"] = "k1"
    lines = [json.dumps(record) for record in records]
    lines[12] = "{broken"
    lines[33] = '{"text": "lone \\ud800"}'
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join(lines) + "\n")
    ray_options = ["--engine", "ray", "--shard-rows", "10", "--encoders", "1", "--encoder-threads", "2"]
    assert main(["build", str(bad), "-o", str(tmp_path / "x"), *ray_options]) == 2
    stopped = capsys.readouterr().err
    assert re.search(r"bad\.jsonl:\d+: (not valid JSON|the text holds)", stopped)
    assert "--on-error skip" in stopped
    assert not (tmp_path / "x").exists()

    told = {}
    for name, options in (("ray", ray_options), ("local", [])):
        build = ["build", str(bad), "-o", str(tmp_path / name), "--on-error", "skip", *options]
        assert main(build) == 0
        out, err = capsys.readouterr()
        assert "4 unusable documents skipped" in out
        # on one machine a duplicate id is noticed at its line, on Ray when the index is built from the shards
        told[name] = sorted(line for line in err.splitlines() if "skipped: " in line)
        assert len(told[name]) == 4
    assert told["ray"] == told["local"]
    assert not (tmp_path / "ray.shards").exists()
    assert_same(tmp_path / "ray", contents(tmp_path / "local"))


def test_what_is_refused_before_anything_is_encoded(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\nx\n")
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "a.parquet").write_text("none")
    with pytest.raises(InputError, match=r"a\.csv: on Ray, embedkit reads \.jsonl"):
        build_index(tmp_path / "index", [tmp_path / "a.csv"])
    with pytest.raises(InputError, match="given twice"):
        build_index(tmp_path / "index", [tmp_path / "a.jsonl", tmp_path / "a.jsonl"])
    with pytest.raises(InputError, match="cannot be read: No such file"):
        build_index(tmp_path / "index", [tmp_path / "b.jsonl"])
    with pytest.raises(InputError, match=r"a\.parquet: the parquet data is damaged"):
        build_index(tmp_path / "index", [tmp_path / "a.parquet"])
    with pytest.raises(ValueError, match="the factory 'IVF0,Flat'"):
        build_index(tmp_path / "index", [tmp_path / "a.jsonl"], settings=BuildSettings("IVF0,Flat"))
    with pytest.raises(ValueError, match="Ray gives each encoder its own GPU"):
        build_index(tmp_path / "index", [tmp_path / "a.jsonl"], None, {"device": "cuda:1"})
    with pytest.raises(ValueError, match=r"the model cannot be loaded: .*no-model"):
        build_index(tmp_path / "index", [tmp_path / "a.jsonl"], tmp_path / "no-model")
    # the folder, too, before the model is looked for
    with pytest.raises(IndexExistsError, match="is not a folder"):
        build_index(tmp_path / "a.csv", [tmp_path / "a.jsonl"], tmp_path / "no-model")
    with pytest.raises(IndexExistsError, match="holds other things"):
        build_index(tmp_path, [tmp_path / "a.jsonl"], tmp_path / "no-model")
    assert not (tmp_path / "index").exists()
