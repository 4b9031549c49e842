"""The encoder that adapters share: one for the same files, and another one for others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from embedkit import Encoder
from embedkit.integrations.opening import open_encoder


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Encoder(truncate_dim=32).save("model")


def test_callers_with_the_same_files_share_it(tmp_path: Path) -> None:
    encoder = open_encoder("model", {})
    assert open_encoder("model", {}) is encoder
    assert open_encoder(str(tmp_path / "model"), {}) is encoder
    assert open_encoder("model", {"truncate_dim": 8}) is not encoder
    assert open_encoder(None, {}) is not encoder


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
    assert second is not first


def test_a_closed_one_is_not_handed_out() -> None:
    encoder = open_encoder("model", {})
    encoder.close()
    assert open_encoder("model", {}).encode("a").shape == (32,)
