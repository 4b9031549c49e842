"""The code shared by the benchmarks: a wrong percentile or a repeated text would make every figure wrong."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
Modules = tuple[ModuleType, ModuleType, ModuleType]  # common, shapes, peers.base


@pytest.fixture
def modules() -> Modules:
    import common
    import shapes
    from peers import base

    return common, shapes, base


def test_texts_are_distinct_and_in_order(modules: Modules, tmp_path: Path) -> None:
    common, *_ = modules
    (tmp_path / "a.txt").write_text("one\ntwo\n\none\nthree\n", encoding="utf-8")
    with gzip.open(tmp_path / "b.tsv.gz", "wt", encoding="utf-8") as file:
        file.write('left\tright\nthree\ta "quoted\nfour\tfive\n')
    (tmp_path / "c.jsonl").write_text(json.dumps({"left": "six", "right": "one"}) + "\n", encoding="utf-8")
    assert common.read_texts([tmp_path / "a.txt"]) == ["one", "two", "three"]
    both = common.read_texts([tmp_path / "b.tsv.gz", tmp_path / "c.jsonl"], ["left", "right"])
    assert both == ["three", 'a "quoted', "four", "five", "six", "one"]
    assert common.read_texts([tmp_path / "a.txt"], limit=2) == ["one", "two"]


def test_a_missing_column_is_named_with_the_available_ones(modules: Modules, tmp_path: Path) -> None:
    common, *_ = modules
    (tmp_path / "a.csv").write_text("id,body\n1,x\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"no column 'text'; it has id, body"):
        common.read_texts([tmp_path / "a.csv"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "id\ttext\n1\tone\n\n2\n", "a.tsv:4: no text 'text'"),
        ("a.jsonl", '{"text": "one"}\n\n{"body": "two"}\n', "a.jsonl:3: no text 'text'"),
        ("a.jsonl", '{"text": "one"}\n{"text": "tw', "a.jsonl:2: Unterminated string"),
        ("a.jsonl", '["one"]\n', "a.jsonl:1: no text 'text'"),
    ],
)
def test_a_line_without_a_text_is_named(
    modules: Modules, name: str, content: str, message: str, tmp_path: Path
) -> None:
    common, *_ = modules
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit, match=message):
        common.read_texts([tmp_path / name])


def test_blank_lines_are_no_texts(modules: Modules, tmp_path: Path) -> None:
    common, *_ = modules
    (tmp_path / "a.jsonl").write_text('\n{"text": "one"}\n  \n', encoding="utf-8")
    assert common.read_texts([tmp_path / "a.jsonl"]) == ["one"]


@pytest.mark.parametrize("percent", [1, 50, 95, 99, 100])
def test_percentile_is_nearest_rank(modules: Modules, percent: float) -> None:
    common, *_ = modules
    values = np.random.default_rng(0).standard_normal(137).tolist()
    assert common.percentile(values, percent) == np.percentile(values, percent, method="inverted_cdf")


def test_alternate_reverses_the_order(modules: Modules) -> None:
    common, *_ = modules
    calls: list[str] = []
    runs = {name: (lambda n=name: calls.append(n) or float(len(calls))) for name in "ab"}
    assert common.alternate(runs, 2) == {"a": [1.0, 4.0], "b": [2.0, 3.0]}
    assert calls == ["a", "b", "b", "a"]


def test_histogram_counts_every_text_once(modules: Modules) -> None:
    common, *_ = modules
    lengths = [1, 8, 9, 16, 17, 600]
    histogram = common.length_histogram(lengths)
    assert histogram["counts"] == {"1-8": 2, "9-16": 2, "17-32": 1, ">512": 1}
    assert (histogram["texts"], histogram["tokens"], histogram["max"]) == (6, sum(lengths), 600)


def test_table_is_rectangular(modules: Modules) -> None:
    common, *_ = modules
    lines = common.table(["", "b"], [["long name", 1], ["x", 22]]).splitlines()
    assert len({len(line) for line in lines}) == 1


def test_an_unfinished_result_replaces_no_finished_one(modules: Modules, tmp_path: Path) -> None:
    common, *_ = modules
    file = tmp_path / "cpu.json"
    common.write_json(file, {"cases": [1, 2]})
    common.write_json(file, {"cases": [3]}, finished=False)
    assert json.loads(file.read_text()) == {"cases": [1, 2]}
    assert json.loads(common.part_of(file).read_text()) == {"cases": [3]}
    common.write_json(file, {"cases": [3, 4]})
    assert json.loads(file.read_text()) == {"cases": [3, 4]}
    assert list(tmp_path.iterdir()) == [file]


def test_operations_of_a_token(modules: Modules, tmp_path: Path) -> None:
    _, shapes, _ = modules
    config = {"num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert shapes.flops_per_token(tmp_path) == 6 * 2 * (4 * 384 * 384 + 2 * 384 * 1536)


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_a_random_shape_is_a_folder_that_transformers_loads_in_full(
    modules: Modules, tmp_path: Path, mode: str
) -> None:
    transformers = pytest.importorskip("transformers")
    _, shapes, base = modules
    config = {"vocab_size": 30, "max_position_embeddings": 16, "type_vocab_size": 2, "layer_norm_eps": 1e-12}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = f"layers=2,hidden=8,heads=2,intermediate=16,pooling={mode}"
    folder = shapes.build(shape, tokenizer_of=tmp_path, folder=tmp_path)
    _, info = transformers.AutoModel.from_pretrained(folder, output_loading_info=True, local_files_only=True)
    assert not any(info.values()), info
    assert base.pooling(folder, "mean", "cls") == mode
    assert base.max_length(folder) == 16


def test_a_peer_refuses_a_pooling_that_it_does_not_know(modules: Modules, tmp_path: Path) -> None:
    _, _, base = modules
    types = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"]
    (tmp_path / "modules.json").write_text(json.dumps([{"type": kind} for kind in types]))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    assert base.pooling(tmp_path, "mean", "cls", "lasttoken") == "lasttoken"
    with pytest.raises(ValueError, match="knows only mean or cls pooling"):
        base.pooling(tmp_path, "mean", "cls")


def test_conversions_of_models_of_one_name_are_kept_apart(modules: Modules, tmp_path: Path) -> None:
    common, shapes, _ = modules
    config = {"vocab_size": 30, "max_position_embeddings": 16, "type_vocab_size": 2, "layer_norm_eps": 1e-12}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = []
    for heads, inner in ((2, 16), (4, 16), (2, 32), (2, 16)):
        shape = f"layers=2,hidden=8,heads={heads},intermediate={inner},pooling=mean"
        folder = shapes.build(shape, tokenizer_of=tmp_path, folder=tmp_path)
        found.append(common.conversions(tmp_path / "cache", folder))
    assert len(set(found)) == 3 and found[0] == found[3]
    assert found[0].is_dir()


def test_a_shape_that_lacks_a_part_is_refused(modules: Modules, tmp_path: Path) -> None:
    _, shapes, _ = modules
    with pytest.raises(SystemExit, match="give each of"):
        shapes.build("layers=2", tokenizer_of=tmp_path, folder=tmp_path)


def test_tables_of_the_readme_are_those_of_the_results() -> None:
    script = [sys.executable, str(BENCHMARKS / "readme.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
