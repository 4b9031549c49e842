"""The search for a package's best batch size leaves no stream without work."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest


class _Worker:
    """A package whose speed depends on its setting alone; the fastest is the largest."""

    def __init__(self) -> None:
        self.streams = 1
        self.ran: set[tuple[int, int]] = set()

    def load(self, streams: int) -> None:
        self.streams = streams

    def texts(self, texts: list[str]) -> None:
        pass

    def run(self, batch: int) -> float:
        self.ran.add((batch, self.streams))
        return 1 / (batch * self.streams)


@pytest.mark.parametrize(
    ("texts", "streams", "whole"),
    [(128, {(8, 2), (16, 2), (32, 2)}, 64), (32, {(8, 2)}, 32), (31, set(), 32)],
)
def test_every_stream_gets_two_batches(texts: int, streams: set[tuple[int, int]], whole: int) -> None:
    from peers.base import Setting
    from peers.worker import best_setting

    worker = _Worker()
    settings = [Setting(batch, streams) for streams in (1, 2) for batch in (8, 16, 32, 64)]
    best, tried = best_setting(worker, ["text"] * texts, settings)
    assert {ran for ran in worker.ran if ran[1] == 2} == streams
    assert max(batch for batch, count in worker.ran if count == 1) == whole
    assert len(tried) == len(worker.ran)
    assert worker.streams == best.streams


def test_settings_that_fail_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    from peers.base import Setting
    from peers.worker import PeerFailed, best_setting

    class Peer(_Worker):
        key = "peer"

        def load(self, streams: int) -> None:
            if streams == 2:
                raise PeerFailed("peer", "Traceback\nMemoryError: two models")
            super().load(streams)

        def run(self, batch: int) -> float:
            if batch >= 8:
                raise PeerFailed("peer", "Traceback\nMemoryError: large")
            return super().run(batch)

    settings = [Setting(batch, streams) for streams in (1, 2) for batch in (4, 2, 8)]
    best, tried = best_setting(Peer(), ["text"] * 32, settings)
    assert best == Setting(4) and list(tried) == ["4", "2"]
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "peer: no batch 8: MemoryError: large",
        "peer: no batch 4x2, 2x2, 8x2: MemoryError: two models",
    ]
    with pytest.raises(PeerFailed, match="two models"):
        best_setting(Peer(), ["text"] * 32, settings[3:])


def test_a_worker_whose_process_ended_loads_in_another(tmp_path: Path) -> None:
    from peers.worker import PeerFailed, Worker

    with Worker("embedkit-int8", None, 1, tmp_path, sorted(os.sched_getaffinity(0))) as worker:
        worker.load(1)
        worker.texts(["text"])
        worker._process.kill()
        with pytest.raises(PeerFailed, match="the process ended"):
            worker.run(None)
        worker.load(1)
        worker.texts(["text"])
        assert worker.run(None) > 0


def test_a_package_that_fails_is_left_out_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hpd
    from peers.base import Setting
    from peers.worker import PeerFailed

    class Worker:
        def __init__(self, key: str, *_: object, **__: object) -> None:
            self.key, self.runs = key, 0

        def __enter__(self) -> Worker:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def convert(self) -> None:
            if self.key == "openvino-fp32":
                raise PeerFailed("openvino-fp32", "the process ended")

        def settings(self) -> list[Setting]:
            return [Setting(8)]

        def load(self, streams: int) -> None:
            pass

        def texts(self, texts: list[str]) -> None:
            pass

        def run(self, batch: int) -> float:
            self.runs += 1
            if self.key == "onnxruntime-fp32" and self.runs == 3:
                raise PeerFailed("onnxruntime-fp32", "Traceback\nMemoryError: all is full")
            return 1.0

    monkeypatch.setattr(hpd, "Worker", Worker)
    options = argparse.Namespace(device="cpu", threads=1, rounds=3)
    keys = ["embedkit-fp32", "onnxruntime-fp32", "openvino-fp32"]
    speeds, _, left_out = hpd._speeds(options, keys, tmp_path, tmp_path, texts=["one", "two"], counts=[3, 3])
    assert {key: speed.median for key, speed in speeds.items()} == {"embedkit-fp32": 2.0}
    assert left_out == {
        "openvino-fp32": "the process ended",
        "onnxruntime-fp32": "MemoryError: all is full",
    }


@pytest.mark.parametrize(
    ("code", "reason"), [("exit(1)", "the process failed"), ("exit('no\\nmemory')", "memory")]
)
def test_a_process_that_fails_may_tell_nothing(code: str, reason: str) -> None:
    import latency
    from peers.worker import PeerFailed

    with pytest.raises(PeerFailed) as failed:
        latency.python(code, 1)
    assert failed.value.reason == reason


def test_a_large_model_gets_enough_texts_for_all_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lengths
    import processor
    import throughput

    config = {"num_hidden_layers": 48, "hidden_size": 4096, "intermediate_size": 16384}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(throughput, "Tokenizer", lambda folder: lambda texts: [[1] * 16] * len(texts))
    monkeypatch.setattr(lengths, "texts_of_lengths", lambda folder, texts, counts: ["long"] * len(counts))
    found = processor.cases(tmp_path, [f"text {i}" for i in range(2000)], 150, threads=2)
    assert {name: len(texts) for name, texts in found.items()} == {"short": 128, "256": 32}
    assert len(set(found["short"])) == 128


def test_a_stopped_run_goes_on_where_nothing_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import common
    import processor

    def about(**changes: Any) -> dict[str, Any]:
        machine = {"cpu": "one", "load_before": [changes.pop("load", 0.1)]}
        inputs = {"minilm": {"fingerprint": "1", "texts": "2"}}
        return common.report("processor", machine=machine, versions={"torch": "2"}, inputs=inputs) | changes

    file, rows = tmp_path / "cpu.json", [{"sentences_per_s": common.Spread.of([1.0, 2.0])}]
    cases = [{"model": "minilm", "case": "short", "rows": rows}]
    assert processor.begun(file, about())["cases"] == []
    common.write_json(file, about(cases=cases, minutes=3.5), finished=False)
    assert processor.begun(file, about(load=0.2))["cases"] == cases
    assert "goes on from" in capsys.readouterr().out
    for changed in (
        {"versions": {"torch": "3"}},
        {"machine": {"cpu": "two", "load_before": [0.1]}},
        {"inputs": {"minilm": {"fingerprint": "3", "texts": "2"}}},
    ):
        assert processor.begun(file, about(**changed))["cases"] == []
        assert "begun anew" in capsys.readouterr().out


def test_models_and_texts_are_known_by_their_content(tmp_path: Path) -> None:
    import processor

    folders = [tmp_path / parent / "model" for parent in ("a", "b")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"of": folder.parent.name}))
    found = [processor.inputs([folder], texts) for folder in folders for texts in (["one"], ["two"])]
    assert all(one != other for i, one in enumerate(found) for other in found[:i])
    assert processor.inputs(folders[:1], ["one"]) == found[0]


def test_a_result_of_the_same_processor_keeps_its_other_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import common
    import processor

    def about(family: str = "25/17", openvino: str = "2", torch: str = "2") -> dict[str, Any]:
        machine = {"cpu_family_model": family, "cpu_flags": ["avx2"]}
        versions = {"openvino": openvino, "torch": torch}
        return common.report("processor", machine=machine, versions=versions, inputs={"bert": {"texts": "1"}})

    def case(model: str, case: str, rate: int) -> dict[str, Any]:
        return {"model": model, "case": case, "rows": [{"sentences_per_s": common.Spread.of([rate])}]}

    file = tmp_path / "cpu.json"
    assert processor.earlier(file, about(), 2)["cases"] == []
    old = [case(model, length, 1) for model in ("minilm", "bge") for length in ("short", "256")]
    common.write_json(file, about() | {"note": "by hand", "inputs": {}, "cases": old, "threads": 2})
    for other, threads in ((about(family="23/49"), 2), (about(openvino="3"), 2), (about(), 8)):
        assert processor.earlier(file, other, threads)["cases"] == []
        assert "will be replaced" in capsys.readouterr().out
    found = processor.earlier(file, about(torch="3"), 2)  # a result from before inputs were kept
    assert found["cases"] == old
    cases = [case(model, length, 2) for model in ("bert", "minilm") for length in ("short", "256")]
    new = about() | {"inputs": {"bert": {}, "minilm": {}}, "cases": cases}
    result = processor.merged(found, new)
    assert result["note"] == "by hand"
    assert "note" not in processor.merged(found, new | {"cases": [*cases, *old]})
    assert set(processor.merged(new, new | {"inputs": {"bge": {}}})["inputs"]) == {"bert", "minilm", "bge"}
    rates = [(one["model"], one["case"], one["rows"][0]["sentences_per_s"].median) for one in result["cases"]]
    assert rates == [
        (m, c, 1 if m == "bge" else 2) for m in ("minilm", "bge", "bert") for c in ("short", "256")
    ]
    inputs = {"minilm": {"texts": "1"}, "bge": {"texts": "2"}, "bert": {"texts": "2"}}
    common.write_json(file, about() | {"inputs": inputs, "cases": [*old, *cases], "threads": 2})
    found = processor.earlier(file, about(), 2)
    assert {one["model"] for one in found["cases"]} == {"minilm", "bert"}  # which is measured anew
    assert found["inputs"].keys() == {"minilm", "bert"}
    assert "bge were measured on other texts, and are left out" in capsys.readouterr().out
