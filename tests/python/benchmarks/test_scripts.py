"""The scripts fit the package: what they import exists, and those that no other test runs do run."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.rglob("*.py"))
OWN = {"embedkit", "papers", "peers", *(path.stem for path in SCRIPTS)}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(BENCHMARKS).as_posix())
def test_imports_resolve(path: Path) -> None:
    """Those within functions too, which importing the script does not reach."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] not in OWN:
            continue
        try:
            module = import_module(node.module or "")
            for name in node.names:
                if not hasattr(module, name.name):
                    import_module(f"{node.module}.{name.name}")
        except ImportError as error:
            missing = error.__cause__ or error
            if not isinstance(missing, ModuleNotFoundError) or (missing.name or "").partition(".")[0] in OWN:
                raise  # not a package that is not installed here


def test_auto_index_runs(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    sizes = {"rows": 2000, "queries": 100, "clusters": 20, "dimension": 16, "lists": 8, "seconds": 1}
    options = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    output = tmp_path / "auto_index.json"
    script = [sys.executable, str(BENCHMARKS / "auto_index.py"), *options, "--json", str(output)]
    subprocess.run(script, stdout=subprocess.DEVNULL, check=True, timeout=300)
    rows = json.loads(output.read_text(encoding="utf-8"))["results"]
    assert [row["name"] for row in rows] == ["auto", "IVF8,Flat"]
    assert all(row["recall_at_10"] > 0.5 and row["ms_per_query"]["median"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("throughput.py /none.txt --model MODEL", "there is no file /none.txt"),
        ("throughput.py --model MODEL --limit 0", "must be at least 1, not 0"),
        ("throughput.py --model /none", "/none is not the folder of a model"),
        ("throughput.py --model MODEL --lengths 0x8", "expected a number, a range or a list of token counts"),
        ("throughput.py --model MODEL --table hpd --isa avx2", "--table does not take --isa"),
        ("throughput.py --model MODEL --rounds 0", "--rounds: must be at least 1, not 0"),
        ("throughput.py --model MODEL --threads 0", "--threads: must be at least 1, not 0"),
        ("concurrency.py --model /none", "/none is not the folder of a model"),
        ("serve.py --model /none", "/none is not the folder of a model"),
        ("static.py --model MODEL", "is not a folder of Model2Vec"),
        ("training.py sbert --data /none --work OUT --results OUT", "--data /none is not a folder"),
        ("training_plan.py --data OUT", "no such file. Relative paths start at the folder of --data"),
        ("processor.py --models MODEL MODEL", "--models: two are called"),
        ("latency.py --model /none", "/none is not the folder of a model"),
        ("hybrid.py --data /none", "there is no file /none/retrieval/docs.tsv.gz"),
        ("sync.py --files 5 --changed 10", "there are only 5 files"),
        ("held_out.py /none -o OUT", "no collection in /none"),
        ("card.py a=/none --data . --work OUT", "a=/none: expected NAME=FOLDER"),
        ("card.py a=builtin --view b:64 --data . --work OUT", "--view b:64: expected NAME:VIEW"),
    ],
)
def test_a_wrong_argument_is_named(
    command: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    script, *options = command.replace("MODEL", str(tmp_path)).replace("OUT", str(tmp_path / "out")).split()
    monkeypatch.setattr(sys, "argv", [script, *options])
    with pytest.raises(SystemExit) as stopped:
        import_module(script.removesuffix(".py")).main()
    assert said in f"{stopped.value} {capsys.readouterr().err}"


def test_a_failed_training_is_named_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = import_module("training")

    def measure(*_: object, **__: object) -> None:
        raise RuntimeError("plain-1 failed; its log ends with: no such file")

    monkeypatch.setattr(training.tables, "measure", measure)
    command = ["training.py", "sbert", "--work", str(tmp_path), "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match="plain-1 failed"):
        training.main()


def test_the_data_of_a_training_may_be_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = import_module("training")

    def measure(*_: object, data_root: Path, **__: object) -> None:
        raise RuntimeError(f"read from {data_root}")

    monkeypatch.setattr(training.tables, "measure", measure)
    monkeypatch.setenv("HOME", str(tmp_path))
    command = ["training.py", "sbert", "--data=~", "--work", str(tmp_path), "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match=f"read from {tmp_path}"):
        training.main()


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (["runs/a/model", "runs/b/model/", "org/minilm"], ["a/model", "b/model", "minilm"]),
        (["a/x/model", "b/x/model", "y/model"], ["a/x/model", "b/x/model", "y/model"]),
        (["a/model", "./a/model"], ["model", "model"]),
    ],
)
def test_models_of_one_name_are_told_apart(models: list[str], names: list[str]) -> None:
    sts = import_module("sts")
    assert [sts.name_of(model, models) for model in models] == names


def test_help_of_the_sample_corpus_writes_nothing() -> None:
    script = BENCHMARKS.parent / "examples" / "make_corpus.py"
    before = script.with_name("corpus.jsonl").stat().st_mtime_ns
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, check=True)
    assert "sample corpus" in done.stdout
    assert script.with_name("corpus.jsonl").stat().st_mtime_ns == before


def test_every_document_that_shares_words_with_a_text_counts(tmp_path: Path) -> None:
    held_out = import_module("held_out")
    run = "one two three four five six seven eight"
    docs = [
        ("a", "1", "title", f"{run} nine"),
        ("a", "2", run, "another text"),
        ("b", "1", "title", f"zero, {run.title()}"),
        ("b", "2", "title", run.replace("four", "for")),
    ]
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"text": f"He counts: {run}."}), encoding="utf-8")
    assert held_out.shared(docs, texts) == {"a": 2, "b": 1}
