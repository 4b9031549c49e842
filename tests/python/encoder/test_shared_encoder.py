"""Encoders of adapters share the weights of the same files, and neither their settings nor those of other files."""

from __future__ import annotations

import copy
import gc
import os
import shutil
import weakref
from pathlib import Path

import pytest

from embedkit import Encoder
from embedkit.integrations.opening import open_encoder


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Encoder(truncate_dim=32).save("model")


def test_callers_with_the_same_files_share_the_weights(tmp_path: Path) -> None:
    engine = open_encoder("model", {})._engine
    assert open_encoder("model", {})._engine is engine
    assert open_encoder(str(tmp_path / "model"), {})._engine is engine
    assert open_encoder("model", {"truncate_dim": 8})._engine is not engine
    assert open_encoder(None, {})._engine is not engine


def test_weights_are_shared_while_any_caller_has_them() -> None:
    first = open_encoder("model", {})
    second = copy.deepcopy(open_encoder("model", {}))
    engine = weakref.ref(first._engine)
    del first
    gc.collect()
    assert open_encoder("model", {})._engine is second._engine is engine()
    del second
    gc.collect()
    assert engine() is None


def test_settings_are_each_callers_own() -> None:
    first, second = open_encoder("model", {}), open_encoder("model", {})
    before = second.encode("a b c d e f").tolist()
    first.max_seq_length, first.truncate_dim, first.prompts["query"] = 3, 8, "question: "
    first.encode("a")
    for other in (second, open_encoder("model", {})):
        assert other.encode("a b c d e f").tolist() == before
        assert other.prompts["query"] == ""
    assert second.describe()["texts"] == 2


def test_a_folder_that_was_written_again_is_opened_again() -> None:
    before = open_encoder("model", {})
    shutil.rmtree("model")
    Encoder(truncate_dim=8).save("model")
    assert open_encoder("model", {}).encode("a").shape == (8,)
    assert before.encode("a").shape == (32,)


def test_a_relative_path_is_that_of_the_working_directory(tmp_path: Path) -> None:
    first = open_encoder("model", {})
    Path("other").mkdir()
    os.chdir("other")
    Encoder(truncate_dim=8).save("model")
    second = open_encoder("model", {})
    assert second.describe()["path"] == str(tmp_path / "other" / "model")
    assert second._engine is not first._engine


def test_whoever_closes_one_closes_no_other() -> None:
    first, second = open_encoder("model", {}), open_encoder("model", {})
    first.close()
    assert second.encode("a").shape == (32,)
    second.close()
    assert open_encoder("model", {}).encode("a").shape == (32,)
