"""Teachers' vectors: correct, computed once, shared, and intact after a kill."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("torch")

from embedkit.training import teacher
from embedkit.training.teacher import Reading, TeacherOptions, Teachers, VectorStore, encode_prompted
from embedkit.training.whole_file import write_array

from embedkit import Encoder

MakeModel = Callable[..., Path]


@pytest.fixture
def sentences(texts: list[str]) -> list[str]:
    """With repetitions."""
    return texts + texts[:20]


def encoded_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records every text that is encoded from now on."""
    seen: list[str] = []
    encode_iter = Encoder.encode_iter

    def counted(self: Encoder, sentences: Any, *args: Any, **options: Any) -> Any:
        given = list(sentences)
        seen.extend(given)
        return encode_iter(self, given, *args, **options)

    monkeypatch.setattr(Encoder, "encode_iter", counted)
    return seen


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("models", [1, 2])
def test_targets_are_the_projected_vectors(  # noqa: PLR0917
    make_model: MakeModel,
    reference: Callable[[Path], Any],
    sentences: list[str],
    tmp_path: Path,
    models: int,
    center: bool,
) -> None:
    from sklearn.decomposition import PCA

    folders = [make_model(normalize=True), make_model(hidden=16, seed=1)][:models]
    teachers = Teachers([TeacherOptions(str(folder), "fp32") for folder in folders], tmp_path, "float32")
    teachers.fit(sentences, 12, center=center)
    targets = teachers.targets(sentences[5:])
    assert isinstance(targets, np.memmap)
    vectors = np.concatenate([reference(folder).encode(sentences) for folder in folders], axis=1)
    distinct = vectors[[sentences.index(text) for text in dict.fromkeys(sentences)]]
    pca = PCA(12, svd_solver="full").fit(distinct)
    want = (vectors[5:] - pca.mean_ * center) @ pca.components_.T
    np.testing.assert_allclose(targets, want * np.sign((targets * want).sum(0)), atol=2e-3)


def test_weighted_teachers_have_their_share_of_the_variance(
    make_model: MakeModel, reference: Callable[[Path], Any], texts: list[str], tmp_path: Path
) -> None:
    """Of unit vectors, scaled to equal variance and then by their weights, regardless of their original lengths."""
    from sklearn.decomposition import PCA

    folders, parts = [make_model(), make_model(hidden=16, seed=1)], []
    options = [
        TeacherOptions(str(folder), "fp32", weight=w) for folder, w in zip(folders, (1, 0.5), strict=True)
    ]
    teachers = Teachers(options, tmp_path, "float32")
    teachers.fit(texts, 12, center=False)
    targets = teachers.targets(texts)
    for option in options:
        x = reference(Path(option.path)).encode(texts).astype(np.float64)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        distinct = x[[texts.index(text) for text in dict.fromkeys(texts)]]
        assert option.weight is not None
        parts.append(x * option.weight / np.sqrt(distinct.var(0).sum()))
    both = np.concatenate(parts, axis=1)
    pca = PCA(12, svd_solver="full").fit(both[[texts.index(text) for text in dict.fromkeys(texts)]])
    want = both @ pca.components_.T
    np.testing.assert_allclose(targets, want * np.sign((targets * want).sum(0)), atol=5e-3)
    with pytest.raises(ValueError, match="weight must be positive, not -1"):
        TeacherOptions("folder", weight=-1)


def test_prompt_precedes_each_text(make_model: MakeModel, texts: list[str], tmp_path: Path) -> None:
    with Encoder(make_model(), precision="fp32") as encoder:
        store = VectorStore.of(encoder, tmp_path, "float32", Reading("query: "))
        store.add(texts, encoder)
        prompted = encoder.encode(["query: " + text for text in texts])
        np.testing.assert_array_equal(store.read(store.rows(texts)), prompted)
        assert store.folder != VectorStore.of(encoder, tmp_path, "float32").folder


def test_prompt_precedes_short_texts_only(make_model: MakeModel, texts: list[str], tmp_path: Path) -> None:
    folder = make_model()
    words = sorted(len(text.split()) for text in texts)[len(texts) // 2]
    read = [("query: " if len(text.split()) <= words else "") + text for text in texts]
    assert 0 < sum(text.startswith("query: ") for text in read) < len(texts)
    with Encoder(folder, precision="fp32") as encoder:
        store = VectorStore.of(encoder, tmp_path, "float32", Reading("query: ", words))
        store.add(texts, encoder)
        want = encoder.encode(read)
        np.testing.assert_array_equal(store.read(store.rows(texts)), want)
        np.testing.assert_array_equal(
            encode_prompted(encoder, texts, TeacherOptions(str(folder), "fp32", None, "query: ", words)), want
        )
        assert store.folder != VectorStore.of(encoder, tmp_path, "float32", Reading("query: ")).folder
    with pytest.raises(ValueError, match="prompt_words must be positive, not 0"):
        TeacherOptions("folder", prompt_words=0)


def test_queries_of_the_student_are_read_with_the_teachers_prompt(
    make_model: MakeModel, texts: list[str], tmp_path: Path
) -> None:
    folder = make_model()
    given = texts + ["q: " + text for text in texts[::2]]
    options = TeacherOptions(str(folder), "fp32", prompt="search for: ", prompt_words=1, query_prompt="q: ")
    with Encoder(folder, precision="fp32") as encoder:
        want = encoder.encode(texts + ["search for: " + text for text in texts[::2]])
        store = VectorStore.of(encoder, tmp_path, "float32", options.reading)
        store.add(given, encoder)
        np.testing.assert_array_equal(store.read(store.rows(given)), want)
        np.testing.assert_array_equal(encode_prompted(encoder, given, options), want)
        assert store.folder != VectorStore.of(encoder, tmp_path, "float32", Reading("search for: ")).folder
    with pytest.raises(ValueError, match="query_prompt must not be empty"):
        TeacherOptions("folder", query_prompt="")


def test_texts_are_encoded_once(
    make_model: MakeModel, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [TeacherOptions(str(make_model()))]
    seen = encoded_texts(monkeypatch)
    teachers = Teachers(options, tmp_path)
    teachers.fit(sentences[:100], 8)
    first = np.array(teachers.targets(sentences[:100]))
    assert seen == list(dict.fromkeys(sentences[:100]))
    teachers.close()
    seen.clear()
    again = Teachers(options, tmp_path)
    again.fit(sentences[:100], 8)
    np.testing.assert_array_equal(again.targets(sentences[:100]), first)
    assert not seen
    again.targets(sentences[90:110])
    assert seen == sentences[100:110]
    assert again.targets(sentences[:9]).dtype == np.float16


def test_sample_is_drawn_from_distinct_texts(make_model: MakeModel, texts: list[str], tmp_path: Path) -> None:
    options = [TeacherOptions(str(make_model()), "fp32")]
    teachers = Teachers(options, tmp_path)
    few = teachers.fit(texts, 4, samples=50)
    assert np.abs(few.mean - teachers.fit(texts, 4).mean).max() > 1e-3
    np.testing.assert_array_equal(few.weight, teachers.fit(texts * 2, 4, samples=50).weight)


def test_too_many_dimensions(make_model: MakeModel, texts: list[str], tmp_path: Path) -> None:
    teachers = Teachers([TeacherOptions(str(make_model()))], tmp_path)
    with pytest.raises(ValueError, match="the teachers have 32 dimensions, fewer than the 33 to learn"):
        teachers.fit(texts, 33)


def test_a_half_written_block_is_written_again(
    make_model: MakeModel, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher, "_BLOCK", 64)
    with Encoder(make_model(), precision="fp32") as encoder:
        store = VectorStore(tmp_path, "float32")
        store.add(texts, encoder)
        assert len(store) == len(set(texts))
        (tmp_path / "000002.keys.npy").unlink()  # as if killed between the two files
        store = VectorStore(tmp_path, "float32")
        assert len(store) == 128
        store.add(texts, encoder)
        np.testing.assert_array_equal(store.read(store.rows(texts)), encoder.encode(texts))
        with pytest.raises(KeyError):
            store.rows(["never added"])


_CHILD = """
import os, signal, sys
from pathlib import Path
from embedkit import Encoder
from embedkit.training import teacher

write = teacher.VectorStore._write
def stop(self, *arguments):
    write(self, *arguments)
    if (self.folder / "000003.keys.npy").is_file():
        os.kill(os.getpid(), signal.SIGKILL)
teacher.VectorStore._write = stop
teacher._BLOCK = 8
texts = Path(sys.argv[3]).read_text().splitlines()
teacher.VectorStore(Path(sys.argv[2]), "float32").add(texts, Encoder(sys.argv[1], precision="fp32"))
"""


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match=r"no room for [\d,]+ bytes of teachers' vectors .*; free space"):
        teacher._written(tmp_path / "v.npy", ["a"], (1, 4), "<f4", lambda texts: np.ones((1, 4)))
    assert not list(tmp_path.glob("*.npy"))


def test_an_array_that_cannot_be_written_to_the_end_is_named(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"v\.npy: cannot be written to the end: 600 requested"):
            write_array(tmp_path / "v.npy", np.zeros(600))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_killed_and_resumed(make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 while blocks are written: complete blocks are kept, and nothing is encoded twice."""
    texts = [f"{word} number {i}" for i in range(700) for word in ("weather", "document")]
    (tmp_path / "texts").write_text("\n".join(texts))
    folder, store_path = make_model(), tmp_path / "store"
    command = [sys.executable, "-c", _CHILD, str(folder), str(store_path), str(tmp_path / "texts")]
    assert subprocess.run(command, check=False, timeout=600).returncode == -signal.SIGKILL
    store = VectorStore(store_path, "float32")
    done = len(store)
    assert done == 32
    seen = encoded_texts(monkeypatch)
    with Encoder(folder, precision="fp32") as encoder:
        store.add(texts, encoder)
        assert seen == texts[done:]
        np.testing.assert_array_equal(store.read(store.rows(texts)), encoder.encode(texts))


@pytest.mark.parametrize("runs_there", [True, False])
def test_a_teacher_is_opened_on_the_processs_gpu(
    runs_there: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    opened: list[dict[str, Any]] = []

    def encoder(path: str, **options: Any) -> str:
        opened.append(options)
        if "device" in options and not runs_there:
            raise ValueError("static models run on the CPU")
        return path

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(teacher, "Encoder", encoder)
    with caplog.at_level("INFO", "embedkit"):
        assert teacher.open_encoder("a/model", precision="auto", max_length=64) == "a/model"
    assert opened[0] == {"device": "cuda:3", "precision": "auto", "max_length": 64}
    assert opened[1:] == ([] if runs_there else [{"precision": "auto", "max_length": 64}])
    assert ("a/model encodes on the CPU: static models" in caplog.text) == (not runs_there)
