"""Tables of a paper: checks, the order of runs, and how results become rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
yaml = pytest.importorskip("yaml")

from embedkit.training.recipe import find_recipe, load_recipe
from objective_fixtures import nli_source, write_nli
from papers import plots
from papers import table as module
from papers.table import collect, list_tables, load_table, markdown, measure, specs

CONTENT: dict[str, Any] = {
    "title": "A table",
    "note": "What it is of.",
    "set": ["training.max_steps=2"],
    "runs": {
        "teacher": {"recipe": "cross-encoder-nli", "seeds": [5]},
        "plain": {"name": "plain", "recipe": "sbert", "seeds": [1, 2]},
        "taught": {
            "name": "taught",
            "part": "own",
            "recipe": "sbert",
            "set": ["model.path={teacher}"],
            "seeds": [1, 5],
        },
    },
    "columns": {"dev": "dev.nli_accuracy", "STS-B": "test.sts.STS-B"},
    "plot": "dev",
}


def write(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump({**CONTENT, **changes}, sort_keys=False))
    return path


def finish(work: Path, spec: module.Spec, dev: float) -> None:
    """Leave the files of a finished training."""
    folder = work / spec.folder
    folder.mkdir(parents=True)
    recipe = load_recipe(find_recipe(spec.recipe), spec.overrides)
    (folder / "recipe.json").write_text(json.dumps(recipe.resolved()))
    result = {"dev": {"nli_accuracy": dev}, "test": {}, "majority": {"nli": 34.0}}
    (folder / "result.json").write_text(json.dumps(result))


@pytest.mark.parametrize("name", sorted(list_tables()))
def test_every_built_in_table_loads(name: str, tmp_path: Path) -> None:
    table = load_table(list_tables()[name])
    assert "{" not in collect(table, tmp_path, {})["note"]  # its counts name runs of the table
    assert table.title
    assert all(run.seeds for run in table.runs.values())


def test_counts_in_a_note_are_those_of_the_results(tmp_path: Path) -> None:
    note = (
        "{plain.examples.nli} pairs. Taught on {taught.examples.nli} more, of {plain.examples.nli}. One seed."
    )
    table = load_table(write(tmp_path / "table.yaml", note=note))
    known = {
        spec.folder: {"set": spec.told, "examples": {"nli": 12345}}
        for spec in specs(table, tmp_path)
        if spec.key == "plain"
    }
    assert (
        module.collect(table, tmp_path, known)["note"] == "12,345 pairs. One seed."
    )  # taught is not run yet
    for unknown in ("{plain.examples.sts}", "{other.examples.nli}"):
        wrong = load_table(write(tmp_path / "table.yaml", note=unknown))
        with pytest.raises(ValueError, match="the note names"):
            module.collect(wrong, tmp_path, known)


def test_the_trainings_of_a_table(tmp_path: Path) -> None:
    found = specs(load_table(write(tmp_path / "table.yaml")), tmp_path)
    assert [spec.folder for spec in found] == ["teacher-5", "plain-1", "plain-2", "taught-1", "taught-5"]
    assert found[1].overrides == ("training.max_steps=2", "training.seed=1")
    assert [spec.needs for spec in found[3:]] == [("teacher-5",), ("teacher-5",)]
    assert f"model.path={tmp_path / 'teacher-5' / 'model'}" in found[3].overrides
    assert "model.path={teacher}" in found[3].told  # the same on every machine


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"titel": "x"}, "unknown table key 'titel'; did you mean 'title'"),
        ({"columns": None}, "table.columns must be a mapping"),
        ({"plot": "dve"}, "plot 'dve' is none of the columns dev, STS-B"),
        ({"set": ["training.max_step=2"]}, "training key 'max_step'"),
        ({"runs": {"a": {"recipe": "sbret"}}}, "unknown recipe 'sbret'; did you mean 'sbert'"),
        ({"runs": {"a": {"recipe": "sbert", "set": ["model.path={b}"]}}}, r"there is no run 'b' for \{b\}"),
        ({"runs": {"a": {"recipe": "sbert", "seeds": []}}}, "a: give at least one seed"),
        ({"runs": {"a": {"recipe": "sbert", "paper": {"x": 1}}}}, "a: paper names 'x', which is no column"),
        (
            {
                "runs": {
                    "a": {"recipe": "sbert", "set": ["model.path={b}"]},
                    "b": {"recipe": "sbert", "set": ["model.path={a}"]},
                }
            },
            "a-1 needs b-1 needs a-1",
        ),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as error:
        load_table(write(tmp_path / "table.yaml", **changes))
    assert "table.yaml" in str(error.value)


@pytest.mark.parametrize("text", ["a: [", "", "- x", "title: !!python/object/apply:os.getcwd []"])
def test_files_that_are_not_tables(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"bad\.yaml"):
        load_table(tmp_path / "bad.yaml")


def test_results_become_rows(tmp_path: Path) -> None:
    table = load_table(write(tmp_path / "table.yaml"))
    all_specs = {spec.folder: spec for spec in specs(table, tmp_path)}
    for name, dev in (("plain-1", 60.0), ("plain-2", 64.0), ("taught-5", 70.0)):
        finish(tmp_path, all_specs[name], dev)
    results = collect(table, tmp_path, {})
    rows = {row["run"]: row for row in results["rows"]}
    assert list(rows) == ["majority", "plain", "taught"]  # the teacher has no name, so no row
    assert rows["plain"]["scores"]["dev"] == {"mean": 62.0, "sd": pytest.approx(8**0.5)}
    assert rows["plain"]["scores"]["STS-B"] is None
    text = markdown(results)
    assert text.splitlines() == [
        "**A table**",
        "",
        "| nothing learned | seeds | dev |",
        "|---|---|---|",
        "| the majority class | 1 | 34.00 |",
        "",
        "|  | seeds | dev |",
        "|---|---|---|",
        "| plain | 2 | 62.00 ± 2.83 |",
        "",
        "| own | seeds | dev |",
        "|---|---|---|",
        "| taught | 1 of 2 | 70.00 |",
        "",
        "What it is of.",
    ]
    plots.plot(results, "dev", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    # results of another machine replace missing ones if their settings are the same
    elsewhere = {"taught-1": {"set": all_specs["taught-1"].told, "dev": {"nli_accuracy": 72.0}}}
    assert collect(table, tmp_path, elsewhere)["rows"][-1]["seeds"] == [1, 5]
    elsewhere["taught-1"]["set"] = ["others"]
    assert collect(table, tmp_path, elsewhere)["rows"][-1]["seeds"] == [5]


def test_a_paper_stands_beside_ours_and_a_claim_has_its_significance(tmp_path: Path) -> None:
    runs = {
        "taught": {"name": "taught", "recipe": "sbert", "seeds": [1, 2, 3], "paper": {"dev": 72.5}},
        "plain": {"name": "plain", "recipe": "sbert", "seeds": [1, 2, 3, 4]},
        "start": {"name": "start", "recipe": "sbert"},
        "later": {"name": "later", "recipe": "sbert"},
    }
    claims = [
        {"text": "teachers help", "column": "dev", "order": ["taught", "plain", "start"]},
        {"text": "and more of them more", "column": "dev", "order": ["later", "taught", "plain"]},
    ]
    table = load_table(write(tmp_path / "table.yaml", runs=runs, claims=claims))
    scores = {"taught": (61.0, 62.0, 64.0), "plain": (60.0, 60.5, 62.0, 65.5), "start": (50.0,)}
    known = {
        spec.folder: {"set": spec.told, "dev": {"nli_accuracy": scores[spec.key][spec.seed - 1]}}
        for spec in specs(table, tmp_path)
        if spec.key in scores
    }
    results = collect(table, tmp_path, known)
    first, second = results["claims"][0]["differences"]
    # over the seeds 1 to 3: t = mean / (sd / sqrt(3)) = 1.5 / (0.5 / sqrt(3)), two degrees of freedom
    t = 1.5 / (0.5 / 3**0.5)
    assert first == {
        "above": "taught",
        "below": "plain",
        "difference": pytest.approx(1.5),  # as p, without the fourth seed
        "seeds": 3,
        "p": pytest.approx(1 - t / (t**2 + 2) ** 0.5),
    }
    assert (second["difference"], second["seeds"], second["p"]) == (10.0, 1, None)
    text = markdown(results).splitlines()
    assert text[2:7] == [
        "|  | seeds | dev | dev, paper |",
        "|---|---|---|---|",
        "| taught | 3 | 62.33 ± 1.53 | 72.50 |",
        "| plain | 4 | 62.00 ± 2.48 |  |",
        "| start | 1 | 50.00 |  |",
    ]
    assert text[8:12] == [
        "What it shows, as mean differences over the seeds that both have:",
        "",
        "- teachers help (dev): taught against plain +1.50 (p = 0.035, paired t-test over 3 seeds); "
        "plain against start +10.00 (one seed)",
        "",  # the other claim is about `later`, which is not measured
    ]


def test_a_claim_of_runs_without_a_common_seed_has_no_difference(tmp_path: Path) -> None:
    runs = {key: {"name": key, "recipe": "sbert", "seeds": [seed]} for key, seed in (("a", 1), ("b", 2))}
    claims = [{"text": "a is above b", "column": "dev", "order": ["a", "b"]}]
    table = load_table(write(tmp_path / "table.yaml", runs=runs, claims=claims))
    known = {
        spec.folder: {"set": spec.told, "dev": {"nli_accuracy": 60.0}} for spec in specs(table, tmp_path)
    }
    assert collect(table, tmp_path, known)["claims"][0]["differences"] == []


def test_a_result_is_stale_if_a_run_that_it_refers_to_has_changed(tmp_path: Path) -> None:
    runs = {
        "taught": {"name": "taught", "recipe": "sbert", "set": ["model.path={student}"]},
        "student": {"recipe": "sbert", "set": ["model.path={teacher}"]},
        "teacher": {"recipe": "cross-encoder-nli"},
        "plain": {"name": "plain", "recipe": "sbert"},
    }
    table = load_table(write(tmp_path / "table.yaml", runs=runs))
    known = {
        spec.folder: {"set": spec.told, "dev": {"nli_accuracy": 60.0}} for spec in specs(table, tmp_path)
    }
    del known["student-1"]  # not kept
    assert set(collect(table, tmp_path, known)["runs"]) == {"taught-1", "teacher-1", "plain-1"}
    runs["teacher"]["set"] = ["training.max_steps=3"]
    table = load_table(write(tmp_path / "table.yaml", runs=runs))
    assert set(collect(table, tmp_path, known)["runs"]) == {"plain-1"}
    missing = module._missing(table, tmp_path, known, lambda spec: True)
    assert [spec.key for spec in missing] == ["teacher", "student", "taught"]


def test_a_finished_run_with_other_settings_is_not_used(tmp_path: Path) -> None:
    table = load_table(write(tmp_path / "table.yaml"))
    finish(tmp_path, specs(table, tmp_path)[1], 60.0)
    other = load_table(write(tmp_path / "table.yaml", set=["training.max_steps=3"]))
    with pytest.raises(
        ValueError, match=r"plain-1 contains a run with other settings \(training.max_steps\)"
    ):
        collect(other, tmp_path, {})
    scored = load_table(write(tmp_path / "table.yaml", set=["training.max_steps=2", "evaluation.holdout=7"]))
    with pytest.raises(ValueError, match=r"other settings \(evaluation.holdout\)"):
        collect(scored, tmp_path, {})


def test_a_finished_run_with_other_settings_is_found_before_a_training_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = load_table(write(tmp_path / "table.yaml"))
    finish(tmp_path, specs(table, tmp_path)[1], 60.0)
    other = load_table(write(tmp_path / "table.yaml", set=["training.max_steps=3"]))
    monkeypatch.setattr(module, "_start", lambda *_: pytest.fail("a training was started"))
    with pytest.raises(ValueError, match="plain-1 contains a run with other settings"):
        measure(other, tmp_path, {}, data_root=None, workers=2, report=lambda _line: None)


def test_curves(tmp_path: Path) -> None:
    """Mean and deviation over the seeds that were scored at the same steps; rows without a curve are left out."""
    table = load_table(write(tmp_path / "table.yaml", curve="stsb_dev"))
    assert table.curve == "stsb_dev"
    by_name = {spec.folder: spec for spec in specs(table, tmp_path)}
    known = {}
    for folder, shift in (("plain-1", 0.0), ("plain-2", 2.0)):
        curve = [{"step": step, "stsb_dev": step + shift, "other": 1.0} for step in (0, 5, 10, 10)]
        known[folder] = {"set": by_name[folder].told, "dev": {"nli_accuracy": 60.0}, "curve": curve}
    known["taught-1"] = {"set": by_name["taught-1"].told, "dev": {"nli_accuracy": 70.0}}
    results = collect(table, tmp_path, known)
    assert plots._line(known["plain-2"]["curve"], "stsb_dev").tolist() == [[0, 2], [5, 7], [10, 12]]
    assert plots.plot_curves(results, "stsb_dev", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert not plots.plot_curves(results, "nli_accuracy", tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_what_is_missing_is_trained_in_order(tmp_path: Path, make_model: Callable[..., Path]) -> None:
    data = json.dumps(nli_source(write_nli(tmp_path / "train.tsv", 24, 1)))
    small = [f"data.nli={data}", f"evaluation={{dev: {{nli: {data}}}}}", "model.max_length=64"]
    from_scratch = [*small, f"model.path={make_model()}"]
    runs = {
        "later": {"name": "later", "recipe": "sbert", "set": [*small, "model.path={first}"]},
        "first": {"recipe": "sbert", "set": from_scratch},
        "away": {"name": "away", "recipe": "sbert", "set": from_scratch},
    }
    table = load_table(write(tmp_path / "table.yaml", runs=runs))
    known = {"away-1": {"set": specs(table, tmp_path)[2].told, "dev": {"nli_accuracy": 50.0}}}
    told: list[str] = []
    so_far: list[int] = []

    def finished() -> None:
        so_far.append(len(collect(table, tmp_path / "work", known)["runs"]))

    results = measure(
        table, tmp_path / "work", known, data_root=None, workers=2, report=told.append, finished=finished
    )
    assert so_far == [2, 3]  # results can be written after each training
    assert [line for line in told if line.endswith("started")] == ["first-1: started", "later-1: started"]
    assert len(told) == 4
    assert [row["run"] for row in results["rows"]] == ["majority", "later", "away"]
    again: list[str] = []
    assert measure(table, tmp_path / "work", known, data_root=None, workers=2, report=again.append) == results
    assert again == []


def test_a_failed_training_is_reported(tmp_path: Path) -> None:
    runs = {"a": {"name": "a", "recipe": "sbert", "set": [f"model.path={tmp_path / 'away'}"]}}
    table = load_table(write(tmp_path / "table.yaml", runs=runs))
    with pytest.raises(RuntimeError, match=r"a-1 failed; .*log.txt ends with"):
        measure(table, tmp_path / "work", {}, data_root=tmp_path, workers=1, report=lambda _line: None)
