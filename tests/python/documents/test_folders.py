"""Folders of files of every kind, what is left out of them, and ids that do not depend on how they are named."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from embedkit.cli.main import main
from embedkit.documents import InputError, sources, whole
from embedkit.documents.folders import Patterns, find_files
from embedkit.documents.readers import Corpus, Names
from embedkit.index import Index

PAGE = """<!doctype html><html><head><title>A &amp; B</title><style>x</style></head><body>
<h1>Top</h1><p>First <b>bold</b> text.</p><script>var hidden;</script><ul><li>one</li><li>two</li></ul></body></html>"""
NOTE = "---\ntitle: From the front\ntags: [a, b]\nday: 2024-05-01\n---\n\n# Heading\n\nText of the note.\n"


def pdf(path: Path, lines: list[str]) -> None:
    from reportlab.pdfgen.canvas import Canvas

    canvas = Canvas(str(path))
    canvas.setTitle("The title")
    for line in lines:
        canvas.drawString(72, 700, line)
        canvas.showPage()
    canvas.save()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "col"
    files = {
        "a/x.txt": "one\ntwo\n",
        "b/x.txt": "three\n",
        "b/note.md": NOTE,
        "b/page.html": PAGE,
        "list.json": '[{"id": "j1", "text": "four", "n": 1}, "five"]',
        "held.json": json.dumps({"count": 1, "items": [{"text": "six"}]}),
        "lines.ndjson": '{"text": "seven"}\n',
        "image.png": "no text",
        "b/.hidden.txt": "hidden",
        ".git/config": "hidden",
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    (root / "b" / "packed.md.gz").write_bytes(gzip.compress(b"# Packed\n\neight"))
    return root


def test_the_id_of_a_note_may_be_in_its_front_matter(tmp_path: Path) -> None:
    for name, given in {"a": "intro", "b": "", "c": "7"}.items():
        (tmp_path / f"{name}.md").write_text(f"---\nid: {given}\n---\ntext {name}\n")
    assert [document.id for document in Corpus([tmp_path], id_field="id")] == ["intro", "b.md", "7"]
    for wrong in ("[a]", "true"):
        (tmp_path / "b.md").write_text(f"---\nid: {wrong}\n---\ntext\n")
        with pytest.raises(InputError, match=r"b\.md:1: the field 'id' is .*, not a string or an integer"):
            list(Corpus([tmp_path], id_field="id"))


def test_every_file_of_a_folder_is_read_or_named(folder: Path) -> None:
    corpus = Corpus([folder])
    found = {document.id: (document.text, document.metadata) for document in corpus}
    assert found == {
        "a/x.txt:1": ("one", None),
        "a/x.txt:2": ("two", None),
        "b/x.txt:1": ("three", None),
        "b/note.md": (
            "# Heading\n\nText of the note.\n",
            {"title": "From the front", "tags": ["a", "b"], "day": "2024-05-01"},
        ),
        "b/packed.md.gz": ("# Packed\n\neight", {"title": "Packed"}),
        "b/page.html": ("# Top\n\nFirst bold text.\n\none\n\ntwo", {"title": "A & B"}),
        "j1": ("four", {"n": 1}),
        "list.json:2": ("five", None),
        "held.json:1": ("six", {}),
        "lines.ndjson:1": ("seven", {}),
    }
    assert sorted(corpus.files.left_out) == [".git/", "b/.hidden.txt", "image.png"]
    assert corpus.files.told() == "3 files left out (.git/, b/.hidden.txt, image.png)"


def test_patterns_choose_files(folder: Path) -> None:
    def read(*include: str, exclude: tuple[str, ...] = ()) -> set[str | None]:
        return {
            document.id for document in Corpus([folder], names=Names(patterns=Patterns(include, exclude)))
        }

    assert read("*.md") == {"b/note.md"}
    assert read("a", "b/page.html") == {"a/x.txt:1", "a/x.txt:2", "b/page.html"}
    assert read(exclude=("b", "*.json", "*.ndjson")) == {"a/x.txt:1", "a/x.txt:2"}
    (folder / "top.md").write_text("top")
    assert read("**/*.md") == {"b/note.md", "top.md"}
    assert read("./**/b/*.md", exclude=("./a",)) == {"b/note.md"} == read("*.md", exclude=("**/top.md",))
    assert read("b/**/*.md") == {"b/note.md"} == read("**/b/**/**/note.md")
    assert not Patterns(("**/" + "*/**/" * 30 + "*.md",))("b/note.md")
    assert Patterns(("a*/**/b*c*.md",))("ax/bc/b.md") and not Patterns(("a/**b/*.md",))("a/x/c/x.md")
    with pytest.raises(InputError, match=r"holds no files .*left out"):
        read("*.none")


def test_with_a_format_a_file_that_is_included_may_have_any_name(folder: Path) -> None:
    (folder / "b" / "server.log").write_text("first\nsecond\n")
    (folder / "b" / ".hidden.log").write_text("hidden\n")
    included = Names(patterns=Patterns(("*.log",)))
    read = [document.id for document in Corpus([folder], format="txt", names=included)]
    assert read == ["b/server.log:1", "b/server.log:2"]
    with pytest.raises(InputError, match="holds no files"):
        Corpus([folder], names=included)
    everything = [document.id for document in Corpus([folder], format="txt")]
    assert "a/x.txt:1" in everything and not {"b/server.log:1", "image.png:1"} & set(everything)


def test_whole_text_files(folder: Path) -> None:
    names = Names(patterns=Patterns(("a",)), whole_text=True)
    assert [(found.id, found.text) for found in Corpus([folder], names=names)] == [("a/x.txt", "one\ntwo\n")]
    (folder / "notes.log").write_text("one\ntwo\n")
    named = Corpus([folder / "notes.log"], format="txt", names=Names(whole_text=True))
    assert [found.text for found in named] == ["one\ntwo\n"]


@pytest.mark.parametrize("whole", [False, True])
def test_standard_input_is_one_text_where_that_is_asked_for(whole: bool) -> None:
    reader = f"from embedkit.documents.readers import Corpus, Names; names = Names(None, 'root', None, True, {whole})"
    command = [sys.executable, "-c", f"{reader}; print([one.text for one in Corpus('-', names=names)])"]
    done = subprocess.run(command, input="one\ntwo\n", capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(["one\ntwo\n"] if whole else ["one", "two"])


def test_patterns_that_match_folders_alone_read_what_is_in_them(folder: Path) -> None:
    (folder / "p" / "x" / "docs").mkdir(parents=True)
    (folder / "p" / "x" / "docs" / "a.txt").write_text("a")
    (folder / "p" / "x" / "docs" / "b.png").write_bytes(b"b")
    corpus = Corpus([f"{folder}/p/*/docs"])
    assert [found.id for found in corpus] == ["x/docs/a.txt:1"]
    assert [os.path.basename(name) for name in corpus.files.left_out] == ["b.png"]
    (folder / "p" / "y").mkdir()
    with pytest.raises(InputError, match="only folders without files that embedkit reads match the pattern"):
        Corpus([f"{folder}/p/y*"])


def test_an_index_is_no_documents(folder: Path) -> None:
    (folder / "p" / "index" / "manifests").mkdir(parents=True)
    (folder / "p" / "index" / "CURRENT").write_text("1.json")
    (folder / "p" / "index" / "manifests" / "1.json").write_text("{}")
    (folder / "p" / "a.txt").write_text("a")
    with pytest.raises(InputError, match="index: is an index, not documents: `embedkit-index merge` joins"):
        Corpus([folder / "p" / "index"])
    for given in (folder / "p", f"{folder}/p/*"):
        corpus = Corpus([given])
        assert [found.text for found in corpus] == ["a"]
        assert len(corpus.files.left_out) == 1


def test_a_first_build_that_was_interrupted_is_no_documents(folder: Path) -> None:
    index = folder / "p" / "index"
    for name in ("manifests", "segments"):
        (index / name).mkdir(parents=True)
    (index / "build.journal").write_text("")
    (index / "manifests" / "000001.json").write_text("{}")
    (folder / "p" / "a.txt").write_text("a")
    assert [found.text for found in Corpus([folder / "p"])] == ["a"]


@pytest.mark.parametrize(
    "given",
    [
        lambda root: [root],
        lambda root: [f"{root}/"],
        lambda root: [os.path.relpath(root)],
        lambda root: [f"{root}/a/../../col"],
        lambda root: [f"{root}/**/*.txt"],
        lambda root: [f"{root}/a", f"{root}/b"],
        lambda root: [f"{root}/[ab]"],
        lambda root: [f"{root}/a/x.txt", f"{root}/b/x.txt"],
    ],
)
def test_ids_do_not_depend_on_the_form(folder: Path, given: Callable[[Path], list[str]]) -> None:
    names = Names(patterns=Patterns(("*.txt",)))
    assert [document.id for document in Corpus(given(folder), names=names)] == [
        "a/x.txt:1",
        "a/x.txt:2",
        "b/x.txt:1",
    ]


def run(*words: str) -> None:
    assert main(list(words)) == 0


def ids(index: Path) -> list[str]:
    with Index.open(index) as opened:
        return sorted(opened.ids(range(opened.generation.rows)[i] for i in opened.generation.living_rows()))


def test_a_later_command_names_files_as_the_build_did(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = str(tmp_path / "index")
    monkeypatch.chdir(folder)
    run("build", "a/x.txt", "-o", index)
    run("upsert", index, "b/x.txt")
    assert ids(tmp_path / "index") == ["../b/x.txt:1", "x.txt:1", "x.txt:2"]
    run("build", str(folder), "-o", index, "--overwrite", "--include", "*.txt")
    monkeypatch.chdir(folder / "a")
    (folder / "a" / "x.txt").write_text("changed\ntwo\n")
    run("upsert", index, "x.txt")
    assert ids(tmp_path / "index") == ["a/x.txt:1", "a/x.txt:2", "b/x.txt:1"]
    with Index.open(index) as opened:
        assert opened.get("a/x.txt:1")[0].text == "changed"
        assert opened.info()["root"] == str(folder)


def test_an_index_of_an_earlier_version_keeps_its_names(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = tmp_path / "index"
    run("build", str(folder / "a" / "x.txt"), "-o", str(index))
    (manifest,) = (index / "manifests").iterdir()
    fields = json.loads(manifest.read_text())
    for name in ("root", "passages", "max_length"):
        del fields[name]
    for segment in fields["segments"]:
        del segment["truncated"]
    manifest.write_text(json.dumps(fields))
    for _ in range(2):
        run("upsert", str(index), str(folder / "a" / "x.txt"))
        assert "2 unchanged" in capsys.readouterr().out
        run("add", str(index), str(folder / "b" / "x.txt"), "--root", str(folder))
        assert ids(index) == ["b/x.txt:1", "x.txt:1", "x.txt:2"]
        run("delete", str(index), "b/x.txt:1")
        capsys.readouterr()


def test_merged_indexes_of_an_earlier_version_name_no_files(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Base names are those of other files of another folder."""
    indexes = [str(tmp_path / name) for name in ("i1", "i2")]
    for index, name in zip(indexes, ("a/x.txt", "b/note.md"), strict=True):
        run("build", str(folder / name), "-o", index)
        (manifest,) = (Path(index) / "manifests").iterdir()
        fields = json.loads(manifest.read_text())
        del fields["root"]
        manifest.write_text(json.dumps(fields))
    both = str(tmp_path / "both")
    run("merge", *indexes, "-o", both)
    assert main(["upsert", both, str(folder / "b" / "x.txt")]) == 2
    assert "the index has no root" in capsys.readouterr().err
    assert ids(Path(both)) == ["note.md", "x.txt:1", "x.txt:2"]


def test_files_are_not_named_by_the_roots_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an index that has no root, `upsert a/s` took `s/x.md` for the `x.md` of `a`, and replaced that."""
    monkeypatch.chdir(tmp_path)
    for name in ("a/x.md", "a/s/x.md", "a/s/z.md", "b/y.md"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(f"the text of {name}")
    run("build", "a", "-o", "i1")
    run("build", "b", "-o", "i2")
    capsys.readouterr()
    run("merge", "i1", "i2", "-o", "both")
    assert capsys.readouterr().out.endswith("need --root for files whose documents have no ids\n")
    for command in ("add", "upsert"):
        assert main([command, "both", "a/s"]) == 2
        told = capsys.readouterr().err
        assert "a/s/x.md: a document has no id, and the index has no root" in told
        assert (
            "--root FOLDER, or --id-field, if another field holds the ids; nothing was written to both"
            in told
        )
    assert main(["add", "both", "a", "--on-error", "skip"]) == 2
    run("upsert", "both", "a", "--root", "a")
    assert "0 documents added, 3 unchanged" in capsys.readouterr().out
    Path("more.jsonl").write_text('{"id": "one", "text": "of its own id"}\n{"text": "of none"}\n')
    assert main(["add", "both", "more.jsonl"]) == 2
    told = capsys.readouterr().err
    assert "more.jsonl:2: a document has no id, and the index has no root" in told
    assert "holds the ids (--on-error skip leaves it out); nothing was written" in told
    run("add", "both", "more.jsonl", "--on-error", "skip")
    assert "1 document added" in (told := capsys.readouterr().out)
    assert "1 unusable document skipped" in told
    assert ids(Path("both")) == ["one", "s/x.md", "s/z.md", "x.md", "y.md"]


def test_pdf_and_word(tmp_path: Path) -> None:
    import docx

    pdf(tmp_path / "a.pdf", ["First page", "Second page"])
    word = docx.Document()
    word.add_heading("Chapter", 1)
    word.add_paragraph("A paragraph.")
    word.add_table(1, 2).rows[0].cells[1].text = "cell"
    word.save(str(tmp_path / "b.docx"))
    found = {document.id: document for document in Corpus([tmp_path])}
    assert found["a.pdf"].text.split() == ["First", "page", "Second", "page"]
    assert found["a.pdf"].metadata == {"pages": 2, "title": "The title"}
    assert found["b.docx"].text == "# Chapter\n\nA paragraph.\n\n\tcell"


def test_pdf_and_word_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import docx

    monkeypatch.setattr(sources, "MAX_RECORD_BYTES", 100)
    monkeypatch.setattr(whole, "_MOST_KEPT", 0)
    (tmp_path / "library").mkdir()
    pdf(tmp_path / "library" / "a.pdf", ["First page", "Second page"])
    word = docx.Document()
    word.add_paragraph("A paragraph.")
    word.save(str(tmp_path / "library" / "b.docx"))
    found = {document.id: document for document in Corpus([tmp_path / "library"])}
    assert found["a.pdf"].text.split() == ["First", "page", "Second", "page"]
    assert found["a.pdf"].metadata == {"pages": 2, "title": "The title"}
    assert found["b.docx"].text == "A paragraph."


@pytest.mark.parametrize("name", ["x.pdf", "x.docx", "x.md", "x.json"])
def test_a_damaged_file_can_be_skipped(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"---\n[\n---\n\xff\xfe")
    (tmp_path / "y.txt").write_text("kept\n")
    with pytest.raises(InputError, match=rf"{name}:1: .*(damaged|not valid)"):
        list(Corpus([tmp_path]))
    assert [document.text for document in Corpus([tmp_path], on_error="skip")] == ["kept"]


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name, module in (("x.pdf", "pypdf"), ("x.docx", "docx")):
        (tmp_path / name).write_bytes(b"")
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=r"pip install 'embedkit\[files\]'"):
            Corpus([tmp_path / name])


def test_build_reports_passages_and_what_was_cut(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "long.md").write_text("# Long\n\n" + "This is a sentence of the long note. " * 200)
    index = str(tmp_path / "index")
    run("build", str(folder), "-o", index, "--max-length", "32")
    told = capsys.readouterr().out
    assert "1 text longer than the model takes and cut" in told
    assert "3 files left out (" in told
    run("build", str(folder), "-o", index, "--overwrite", "--passages", "40:10")
    assert "passages of 10 documents" in capsys.readouterr().out
    run("query", index, "the long note", "--per-document", "--json", "-k", "3")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len({line["passage"]["document"] for line in lines}) == 3
    long = next(line["passage"] for line in lines if line["passage"]["document"] == "long.md")
    assert long["heading"] == "Long"
    assert (long["before"], long["after"]) == (
        f"long.md#{long['number'] - 1}" if long["number"] > 1 else None,
        f"long.md#{long['number'] + 1}" if long["number"] < long["count"] else None,
    )


def test_links_to_files_that_are_read_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "2026.md").write_text("notes")
    (folder / "latest.md").symlink_to("2026.md")
    (tmp_path / "outside.md").write_text("of elsewhere")
    (folder / "one.md").symlink_to("../outside.md")
    (folder / "two.md").symlink_to("../outside.md")
    corpus = Corpus([folder])
    assert [document.text for document in corpus] == ["notes", "of elsewhere"]
    assert corpus.files.left_out == ["latest.md", "two.md"]
    (folder / "2026.md").unlink()  # the link leads nowhere now
    (folder / "self.md").symlink_to("self.md")
    assert [document.text for document in Corpus([folder])] == ["of elsewhere"]


def test_names_of_files_below_a_root_that_has_gone_are_refused(tmp_path: Path) -> None:
    """They would be other names, of documents that the index has already."""
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.txt").write_text("a")
    with pytest.raises(InputError, match="is not there; if it was moved, name it: --root FOLDER"):
        find_files([tmp_path / "new"], root=str(tmp_path / "old"))
    assert find_files([tmp_path / "new"], root=str(tmp_path / "new")).names == ["a.txt"]


def test_a_file_of_a_descriptor_has_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a shell names the output of a command: ``build <(command)``."""
    monkeypatch.chdir(tmp_path)
    lines = '{"text": "one"}\n{"text": "two"}\n'
    Path("more.jsonl").write_text(lines)
    reader, writer = os.pipe()
    os.write(writer, lines.encode())
    os.close(writer)
    try:
        assert main(["build", f"/dev/fd/{reader}", "--format", "jsonl", "-o", "index"]) == 0
    finally:
        os.close(reader)
    assert main(["add", "index", "more.jsonl"]) == 2
    assert "more.jsonl:1: a document has no id, and the index has no root" in capsys.readouterr().err
    assert main(["add", "index", "more.jsonl", "--root", "."]) == 0, capsys.readouterr().err
    with Index.open("index") as index:
        assert index.generation.manifest.root is None
        assert len(index) == 4
    assert find_files([f"/dev/fd/{reader}", "more.jsonl"], named_by="base").names == [
        f"/dev/fd/{reader}",
        "more.jsonl",
    ]
    here = str(tmp_path)
    assert find_files([f"/dev/fd/{reader}", "more.jsonl"], root=here).names == [
        f"/dev/fd/{reader}",
        "more.jsonl",
    ]
