"""Names of folders that are not UTF-8, and locales that are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_encoder import FakeEncoder

from embedkit import Index
from embedkit.documents.readers import Corpus
from embedkit.index.build.settings import BuildSettings

ROOT = Path(__file__).parents[1]


def test_an_index_whose_name_is_not_utf8_is_refused_before_encoding(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "encode_document", None)
    root = tmp_path / os.fsdecode(b"index-\xff")
    with pytest.raises(ValueError, match=r"index-\\udcff': the name is not valid UTF-8.*rename it"):
        Index.build(root, ["a text"], encoder)
    assert not root.exists()


def test_the_folder_of_the_files_need_not_be_named_in_utf8(tmp_path: Path, encoder: FakeEncoder) -> None:
    folder = tmp_path / os.fsdecode(b"notes-\xff")
    folder.mkdir()
    (folder / "one.txt").write_text("a cat\n", encoding="utf-8")
    settings = BuildSettings(root=str(folder), factory="Flat")
    index = Index.build_with(tmp_path / "index", Corpus([str(folder)]), encoder, settings)
    assert index.search("cat", k=1)[0][0].text == "a cat"
    assert index.generation.manifest.root == str(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="sets the locale of a process")
def test_an_index_is_built_in_a_locale_without_unicode(tmp_path: Path) -> None:
    code = "import sys; from fake_encoder import FakeEncoder; from embedkit import Index\n"
    code += "index = Index.build(sys.argv[1], ['a cat'], FakeEncoder()); print(index.search('cat', k=1)[0][0].text)"
    done = subprocess.run(
        [sys.executable, "-c", code, os.fsencode(tmp_path / "Käse")],
        env={
            **os.environ,
            "LC_ALL": "C",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
    )
    assert done.stdout == "a cat\n", done.stderr
