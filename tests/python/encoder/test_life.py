"""Copies, processes and threads."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import pickle
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from embedkit import Encoder, _core

Make = Callable[..., Path]
TEXTS = ["the weather is lovely today", "", "sunny day in the stadium", "über naïve café"] * 10


@pytest.mark.filterwarnings("ignore:.*longer than max_length")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_pickle(make_model: Make, precision: str) -> None:
    encoder = Encoder(
        make_model(), precision=precision, threads=1, max_length=9, prompts={"query": "the "}, truncate_dim=8
    )
    restored = pickle.loads(pickle.dumps(encoder))
    np.testing.assert_array_equal(restored.encode_query(TEXTS), encoder.encode_query(TEXTS))
    before, after = encoder.describe(), restored.describe()
    assert after.pop("texts") == 40 and before == {**after, "texts": 40}
    encoder.close()
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(encoder)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("on_overflow", ["error", "truncate"])
def test_warm_up_says_nothing_of_its_texts(make_model: Make, on_overflow: str) -> None:
    prompts = {"query": "the weather is lovely today "}
    encoder = Encoder(
        make_model(), max_length=3, on_overflow=on_overflow, prompts=prompts, default_prompt_name="query"
    )
    encoder.warm_up()
    assert encoder.describe()["on_overflow"] == on_overflow


def test_a_stream_ends_where_the_encoder_is_closed(make_model: Make) -> None:
    read = []
    for begun in (False, True):
        encoder = Encoder(make_model())
        blocks = encoder.encode_iter((read.append(text) or text for text in TEXTS), block_size=2)
        if begun:
            next(blocks)
        encoder.close()
        with pytest.raises(ValueError, match="closed"):
            next(blocks)
        assert read == TEXTS[: 2 * begun]


@pytest.mark.parametrize(
    "changed", [lambda texts: texts.__delitem__(slice(4, None)), lambda texts: texts.append("b")]
)
def test_texts_are_those_of_the_call(make_model: Make, changed: Callable[[list[str]], None]) -> None:
    """Another thread may change the list meanwhile."""

    class Changed(list[str]):
        def __getitem__(self, place):  # type: ignore[no-untyped-def,override]
            changed(self)
            return super().__getitem__(place)

    encoder = Encoder(make_model())
    np.testing.assert_array_equal(encoder.encode(Changed(TEXTS)), encoder.encode(TEXTS))


@pytest.mark.skipif(
    not Path("/proc/self/status").exists() or platform.libc_ver()[0] != "glibc",
    reason="it is glibc that keeps memory",
)
def test_a_closed_model_gives_its_memory_back(make_model: Make) -> None:
    folder = make_model(layers=4, hidden=512, intermediate=2048)
    script = """if True:
        import gc, sys
        from embedkit import Encoder, _core

        def used():
            lines = open("/proc/self/status").read().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

        before = used()
        for _ in range(4):
            encoder = Encoder(sys.argv[1], precision="int8", threads=1)
            encoder.encode("a")
            opened = used()
            encoder.close()
            gc.collect()
            print(opened - before, used() - before)
        """
    command = [sys.executable, "-c", script, str(folder)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    opened, closed = zip(*(map(float, line.split()) for line in out.splitlines()), strict=True)
    assert max(closed) < 12 and max(opened) < 1.3 * min(opened) + 4


def test_pickle_of_a_relative_path(make_model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model()
    monkeypatch.chdir(folder.parent)
    encoder = Encoder(folder.name)
    pickled = pickle.dumps(encoder)
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(pickle.loads(pickled).encode(TEXTS), encoder.encode(TEXTS))
    assert encoder.describe()["model"] == folder.name and encoder.describe()["path"] == str(folder)


def test_a_folder_that_has_changed_is_no_longer_the_model_in_memory(
    make_model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index would hold its vectors under another model's name, and `save` would write another model."""
    folder = Path(shutil.copytree(make_model(), tmp_path / "model"))
    first, second = Encoder(folder), Encoder(folder)
    known, pickled = second.fingerprint, pickle.dumps(second)
    other = make_model(seed=1)
    for file in other.rglob("*.safetensors"):
        shutil.copy(file, folder / file.relative_to(other))
    with pytest.raises(ValueError, match=r"has changed since the model was opened.*: open it again"):
        first.fingerprint  # noqa: B018
    with pytest.raises(ValueError, match="has changed since the model was opened"):
        first.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    assert first.describe()["fingerprint"] is None
    assert second.fingerprint == known == second.describe()["fingerprint"]  # of what it computes
    with Encoder(folder) as now, pickle.loads(pickled) as restored:
        assert now.fingerprint != known
        for again in (restored, pickle.loads(pickle.dumps(restored))):
            with pytest.raises(ValueError, match="the folder holds another model than where it was pickled"):
                again.fingerprint  # noqa: B018
            with pytest.raises(ValueError, match="the folder holds another model than where it was pickled"):
                again.describe()
    (folder / "README.md").write_text("A card is no part of the model.")
    with Encoder(folder) as again:
        again.save(tmp_path / "stamped")
    stamped = Encoder(tmp_path / "stamped")
    pickled = pickle.dumps(stamped)
    shutil.rmtree(tmp_path / "stamped")
    Encoder(make_model()).save(tmp_path / "stamped")
    with pytest.raises(ValueError, match="the folder holds another model than where it was pickled"):
        pickle.loads(pickled)


def test_a_pickle_runs_on_the_threads_of_its_receiver(
    make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_core, "default_threads", lambda: 3)
    pickled = [pickle.dumps(Encoder(make_model(), threads=given)) for given in (None, 2)]
    monkeypatch.setattr(_core, "default_threads", lambda: 1)
    assert [pickle.loads(one).describe()["threads"] for one in pickled] == [1, 2]


def test_a_pickle_does_not_open_another_model(make_model: Make, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(make_model(), tmp_path / "model"))
    pickled = pickle.dumps(Encoder(folder))
    for file in folder.rglob("*"):
        os.utime(file)
    assert pickle.loads(pickled).encode("a").shape == (32,)
    encoder = Encoder(folder)
    shutil.rmtree(folder)
    assert encoder.encode(TEXTS).shape == (40, 32)
    assert encoder.describe()["fingerprint"] is None and encoder.describe()["texts"] == 40
    shutil.copytree(make_model(layers=4), folder)
    with pytest.raises(ValueError, match="the folder holds another model than where it was pickled"):
        pickle.loads(pickled)


def test_files_that_the_model_does_not_read_may_change(make_model: Make, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(make_model(), tmp_path / "model"))
    (folder / "notes.txt").write_text("first")
    encoder = Encoder(folder)
    (folder / "notes.txt").write_text("of another length")
    for name in ("sentencepiece.bpe.model", "generation_config.json", "model.onnx"):
        (folder / name).write_text("{}")
    encoder.save(tmp_path / "saved")
    assert Encoder(tmp_path / "saved").verify() == encoder.fingerprint
    for name in ("added_tokens.json", "sentence_roberta_config.json"):
        encoder = Encoder(folder)
        (folder / name).write_text("{}")
        with pytest.raises(ValueError, match="has changed since the model was opened"):
            encoder.save(tmp_path / "changed")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_share_the_engine_and_have_their_own_prompts(
    make_model: Make, copied: Callable[[Encoder], Encoder]
) -> None:
    encoder = Encoder(make_model())
    other = copied(encoder)
    assert other._loaded is encoder._loaded
    other.prompts["q"] = "ask: "
    assert "q" not in encoder.prompts
    other.prompts["none"], other.prompts["odd"] = None, 3  # type: ignore[assignment]
    np.testing.assert_array_equal(other.encode("a", prompt_name="none"), encoder.encode("a"))
    with pytest.raises(TypeError, match=r"prompts\['odd'\] must be a str, not int"):
        other.encode("a", prompt_name="odd")


def test_deepcopy_has_its_own_settings(make_model: Make) -> None:
    encoder = Encoder(make_model())
    other = copy.deepcopy(encoder)
    other.max_seq_length = 5
    other.prompts["query"] = "the "
    assert encoder.max_seq_length == 64 and encoder.prompts["query"] == ""
    np.testing.assert_array_equal(other.encode("sunny day"), encoder.encode("sunny day"))
    encoder.close()
    assert other.encode("day").shape == (32,) and other.describe()["texts"] == 2


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_several_python_threads_at_once(make_model: Make, precision: str) -> None:
    encoder = Encoder(make_model(hidden=64), precision=precision, threads=2)
    expected = encoder.encode(TEXTS)
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda i: encoder.encode(TEXTS[i % 5 :]), range(60)))
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, expected[i % 5 :])
    assert encoder.describe()["texts"] == 40 + sum(40 - i % 5 for i in range(60))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
def test_fork(make_model: Make) -> None:
    script = """
import os, sys, warnings
import numpy as np
from embedkit import Encoder
encoder = Encoder(sys.argv[1], threads=2)
texts = ["the weather is lovely", "sunny"] * 50
expected = encoder.encode(texts)  # the core's threads have run
child = os.fork()
if not child:
    os._exit(0 if (encoder.encode(texts) == expected).all() else 1)
assert os.waitpid(child, 0)[1] == 0
assert (encoder.encode(texts) == expected).all()
"""
    subprocess.run([sys.executable, "-c", script, str(make_model())], check=True, timeout=60)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
def test_a_fork_while_another_thread_counts(make_model: Make) -> None:
    script = """
import os, sys, threading
from embedkit import Encoder
encoder = Encoder(sys.argv[1], threads=1)
began, ended = threading.Event(), threading.Event()

def count():
    with encoder._counts._lock:
        began.set()
        ended.wait()

thread = threading.Thread(target=count)
thread.start()
began.wait()
child = os.fork()
if not child:
    os._exit(0 if encoder.encode("sunny").shape == (32,) else 1)
ended.set()
thread.join()
assert os.waitpid(child, 0)[1] == 0
"""
    command = [sys.executable, "-W", "ignore", "-c", script, str(make_model())]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        assert process.wait(60) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_the_instruction_set_is_fixed_at_opening(make_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(make_model())
    before = encoder.describe()["isa"]
    monkeypatch.setenv("EMBEDKIT_ISA", "reference")
    assert Encoder(make_model()).describe()["isa"] == "reference"
    assert encoder.describe()["isa"] == before
    monkeypatch.setenv("EMBEDKIT_ISA", "sse9")
    assert encoder.describe()["isa"] == before and encoder.encode("day").shape == (32,)
    with pytest.raises(ValueError, match="EMBEDKIT_ISA is 'sse9'; this machine has reference"):
        Encoder(make_model())


def test_ctrl_c_stops_an_encoding(make_model: Make) -> None:
    script = """
import os, signal, sys, threading, time
from embedkit import Encoder
encoder = Encoder(sys.argv[1], threads=2)
texts = ["the weather is lovely today " * 4] * 10**5
late = []
for _ in range(5):
    def interrupt():
        global sent
        sent = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)
    threading.Timer(0.4, interrupt).start()
    try:
        encoder.encode(texts)
    except KeyboardInterrupt:
        late.append(time.perf_counter() - sent)
assert len(late) == 5 and min(late) <= 0.5, late
assert encoder.encode("day").shape == (384,)
"""
    folder = make_model(hidden=384, heads=12, layers=6, intermediate=1536, max_positions=128)
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True, timeout=60)


@pytest.mark.parametrize("call", ["encode", "tokenize"])
def test_ctrl_c_is_heard_beside_a_long_text(make_model: Make, call: str) -> None:
    """Whichever thread has it: the calling one waits for the others."""
    script = """
import os, signal, sys, threading, time
from embedkit import Encoder
encoder = Encoder(sys.argv[1], threads=2, on_overflow="window")
texts = ["day"] * 32 + ["the weather is lovely today " * (5 * 10**6)]
def interrupt():
    global sent
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(0.1, interrupt).start()
try:
    getattr(encoder, sys.argv[2])(texts)
except KeyboardInterrupt:
    late = time.monotonic() - sent
    sys.exit(0 if late < 5 else f"{late:.2f} s late")
sys.exit("it ended")
"""
    subprocess.run([sys.executable, "-c", script, str(make_model()), call], check=True, timeout=60)


def test_a_daemon_thread_does_not_keep_the_interpreter_from_ending(make_model: Make) -> None:
    script = """
import sys, threading
from embedkit import Encoder
from embedkit._core import release_freed_memory
encoder = Encoder(sys.argv[1], threads=2)
def forever(work, started):
    while True:
        work()
        started.set()
for work in (lambda: encoder.encode(["the weather is lovely today"] * 200), release_freed_memory):
    started = threading.Event()
    threading.Thread(target=forever, args=(work, started), daemon=True).start()
    assert started.wait(30)
"""
    for _ in range(3):
        command = [sys.executable, "-c", script, str(make_model())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (done.returncode, done.stderr)


def test_worker_processes_can_be_handed_an_encoder(make_model: Make) -> None:
    encoder = Encoder(make_model(), threads=1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result = pool.apply(encoder.encode, (TEXTS,))
    np.testing.assert_array_equal(result, encoder.encode(TEXTS))


def test_threads_do_not_change_vectors(make_model: Make) -> None:
    folder = make_model(hidden=64)
    expected = Encoder(folder, threads=1).encode(TEXTS)
    for threads in (2, 3, 8):
        np.testing.assert_array_equal(Encoder(folder, threads=threads).encode(TEXTS), expected)


def test_more_threads_than_processors_do_not_wait_for_each_other(make_model: Make) -> None:
    """Of few texts a thread, in each layer: 2,000 short texts took 17 s on two processors."""
    folder, texts = make_model(), ["the weather is lovely today and people stay"] * 2000
    encoder = Encoder(folder, threads=1024)
    expected = encoder.encode(texts)
    start = time.monotonic()
    np.testing.assert_array_equal(encoder.encode(texts), expected)
    assert time.monotonic() - start < 5


def test_describe(make_model: Make) -> None:
    folder = make_model(pooling=("mean", "cls"))
    report = Encoder(folder, threads=2).describe()
    assert report["model"] == report["path"] == str(folder)
    assert report["dimension"] == 64 and report["precision"] == "fp32" and report["device"] == "cpu"
    assert report["isa"] in _core.available_isas() and report["threads"] == 2
    assert report["products"] in ("fma", "scalar")
    assert report["max_length"] == 64 and report["pooling"] == ["mean", "cls"] and not report["normalizes"]
    assert len(report["fingerprint"]) == 64 and report["texts"] == report["truncated"] == 0
