"""`embedkit-train distill`: the choice of layers, the loss, a run that learns, its resume and its report."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("sklearn")

from embedkit.training import DistillOptions, StaticOptions, distill, distill_static, trainer
from embedkit.training.cli import main
from embedkit.training.data.readers import read
from embedkit.training.distillation import report as report_module
from embedkit.training.distillation import run as distill_run
from embedkit.training.distillation.report import agreement, labels
from embedkit.training.distillation.start import candidates, choose_layers, explained
from embedkit.training.model import ModelOptions, SentenceModel
from embedkit.training.objectives.hpd import projective_loss
from embedkit.training.run_folder import alone
from embedkit.training.teacher import TeacherOptions
from objective_fixtures import _NOUNS, _VERBS
from tiny_families import tiny

from embedkit import Encoder

MakeModel = Callable[..., Path]


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    choose = random.Random(0)
    made = [" ".join(choose.choices(_NOUNS + _VERBS, k=choose.randint(2, 9))) for _ in range(600)]
    return list(dict.fromkeys(made))


def test_candidates_are_distinct_sorted_and_of_the_size_asked_for() -> None:
    assert [0, 3, 6, 9, 10, 11] in candidates(12, 6)
    assert [0, 2, 4, 6, 8, 10] in candidates(12, 6)
    for total in range(1, 14):
        for kept in range(1, total + 1):
            for layers in candidates(total, kept):
                assert layers == sorted(set(layers))
                assert len(layers) == kept
                assert 0 <= layers[0] <= layers[-1] < total
    with pytest.raises(ValueError, match="from 1 to 4"):
        candidates(4, 5)


def test_explained_is_measured_on_rows_that_were_not_fitted() -> None:
    generator = np.random.default_rng(0)
    known = generator.normal(size=(400, 8))
    assert explained(known, known @ generator.normal(size=(8, 5))) > 0.99
    assert explained(known, generator.normal(size=(400, 5))) < 0.05


def test_cosine_loss() -> None:
    generator = np.random.default_rng(1)
    student, teacher = generator.normal(size=(2, 6, 5))
    cosines = [s @ t / np.linalg.norm(s) / np.linalg.norm(t) for s, t in zip(student, teacher, strict=True)]
    got = projective_loss(torch.tensor(student), torch.tensor(teacher), "cosine")
    assert got.item() == pytest.approx(1 - np.mean(cosines), rel=1e-12)


def test_agreement_against_loops() -> None:
    generator = np.random.default_rng(2)
    teacher = generator.normal(size=(30, 6))
    student = teacher + 0.5 * generator.normal(size=(30, 6))
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (teacher, student)]
    shared = 0
    for i in range(30):
        near = [set(sorted((j for j in range(30) if j != i), key=lambda j: -x[i] @ x[j])[:10]) for x in unit]
        shared += len(near[0] & near[1])
    found = agreement(*unit)
    assert found["neighbors"] == pytest.approx(shared / 300, abs=1e-4)
    ranks = [np.argsort(np.argsort([x[i] @ x[j] for i in range(30) for j in range(i)])) for x in unit]
    assert found["spearman"] == pytest.approx(100 * np.corrcoef(*ranks)[0, 1], abs=0.01)
    assert agreement(unit[0], unit[0]) == {"neighbors": 1.0, "spearman": 100.0}


def test_teachers_of_one_name_have_labels_of_their_own() -> None:
    assert labels(["a/small", "b/large"]) == ["small", "large"]
    assert labels(["a/model", "b/model", "a/model"]) == [
        "model, teacher 1",
        "model, teacher 2",
        "model, teacher 3",
    ]


def test_the_best_layers_are_chosen(make_model: MakeModel, sentences: list[str]) -> None:
    teacher = str(make_model(layers=4))
    options = DistillOptions(dimension=8, max_length=32)
    choice = choose_layers(TeacherOptions(teacher), 2, options, sentences)
    assert choice["explained"][" ".join(map(str, choice["layers"]))] == max(choice["explained"].values())
    everything = choose_layers(TeacherOptions(teacher), 4, options, sentences)
    assert everything["layers"] == [0, 1, 2, 3]
    assert list(everything["explained"].values()) == pytest.approx([1.0], abs=0.02)


@pytest.mark.parametrize("kind", ["modernbert", "t5-gated"])
def test_layers_that_need_the_first_keep_it(kind: str, sentences: list[str], tmp_path: Path) -> None:
    teacher = TeacherOptions(str(tiny(tmp_path, kind)))
    options = DistillOptions(dimension=8, max_length=32)
    assert choose_layers(teacher, 1, options, sentences)["layers"] == [0]
    assert all(names[0] == "0" for names in choose_layers(teacher, 2, options, sentences)["explained"])


def test_a_student_learns_resumes_and_is_reported(
    make_model: MakeModel, sentences: list[str], tmp_path: Path
) -> None:
    teacher, folder = str(make_model(layers=4)), tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(sentences[:300]), encoding="utf-8")
    (folder / "b.jsonl").write_text(
        "\n".join(json.dumps({"text": text}) for text in sentences[300:]), encoding="utf-8"
    )
    options = DistillOptions(
        layers=2, dimension=16, prefixes=[8], max_length=32, epochs=3, batch_tokens=256, learning_rate=2e-3
    )
    report = distill(teacher, folder, tmp_path / "out", options)
    assert report["layers"] == json.loads((tmp_path / "out" / "layers.json").read_text())["layers"]
    history = json.loads((tmp_path / "out" / "run" / "result.json").read_text())
    assert history["examples"]["texts"] + report["held_out"] == len(sentences)
    rows = report["rows"]
    assert rows["student, int8"]["dimension"] == 16
    assert rows["student, int8, first 8"]["dimension"] == 8
    stored = rows["student, int8, stored in int8"]
    assert stored["spearman"] == pytest.approx(rows["student, int8"]["spearman"], abs=0.5)
    assert rows["student, fp32"]["spearman"] > 50
    student, again = Encoder(tmp_path / "out" / "model"), Encoder(tmp_path / "out" / "float")
    assert student.describe()["precision"] == "int8"
    assert student.get_embedding_dimension() == 16
    assert student.describe()["index_precision"] == again.describe()["index_precision"] == "int8"
    cosines = (student.encode(sentences[:50]) * again.encode(sentences[:50])).sum(axis=1)
    assert cosines.mean() > 0.99
    coded = student.encode(sentences[:50], output_dtype="int8")  # with the ranges of the folder
    assert coded.dtype == np.int8 and coded.min() < -100 and coded.max() > 100
    card = (tmp_path / "out" / "model" / "README.md").read_text(encoding="utf-8")
    assert f"from {report['texts']:,} texts without labels: " in card
    assert f"On {report['held_out']:,} texts that were held out" in card
    assert report["counted"] == "texts"
    assert "held_out_cosine" in report["dev"] and "r2" not in report["dev"]
    assert (tmp_path / "out" / "report.png").stat().st_size > 5000
    assert distill(teacher, folder, tmp_path / "out", options) == report
    with pytest.raises(FileExistsError, match="another recipe"):
        distill(teacher, folder, tmp_path / "out", DistillOptions(layers=2, dimension=12, max_length=32))


def test_a_student_starts_from_the_first_of_two_prompted_teachers(
    make_model: MakeModel, sentences: list[str], tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(sentences[:200]), encoding="utf-8")
    options = DistillOptions(
        layers=1, dimension=8, max_length=32, max_steps=2, prompt=["query: ", ""], teacher_weights=[1.0, 2.0]
    )
    teachers = [str(make_model(seed=1, prompts={"query": "query: "})), str(make_model(seed=2))]
    report = distill(teachers, tmp_path / "texts.txt", tmp_path / "out", options)
    assert report["teachers"] == teachers
    assert [name for name in report["rows"] if not name.startswith("student")] == labels(teachers)
    assert json.loads((tmp_path / "out" / "layers.json").read_text())["teacher"] == teachers[0]
    assert not any(Encoder(tmp_path / "out" / "model").prompts.values())  # not those of the layers


def test_a_student_learns_a_query_prompt_of_its_own(
    make_model: MakeModel, sentences: list[str], tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(sentences[:300]), encoding="utf-8")
    teacher = str(make_model(layers=2))
    options = DistillOptions(
        layers=2,
        dimension=8,
        prefixes=[],
        prompt=sentences[0] + " ",
        prompt_words=6,
        query_prompt="find ",
        max_length=32,
        max_steps=2,
    )
    report = distill(teacher, tmp_path / "texts.txt", tmp_path / "out", options)
    lines = [
        json.loads(line)["text"]
        for name in ("texts.jsonl", "held_out.jsonl")
        for line in (tmp_path / "out" / name).read_text(encoding="utf-8").splitlines()
    ]
    asked = [text for text in sentences[:300] if len(text.split()) <= 6]
    assert sorted(lines) == sorted(sentences[:300] + ["find " + text for text in asked])
    assert report["texts"] + report["held_out"] == len(lines)
    assert report["counted"] == "readings"
    card = (tmp_path / "out" / "model" / "README.md").read_text(encoding="utf-8")
    assert f"from {report['texts']:,} readings of texts without labels (each text, and" in card
    assert f"On {report['held_out']:,} readings of texts that were held out" in card
    with Encoder(tmp_path / "out" / "float") as student, Encoder(teacher, precision="fp32") as big:
        assert student.prompts == {"query": "find ", "document": ""}
        np.testing.assert_array_equal(
            student.encode_query(sentences[:9]), student.encode(["find " + text for text in sentences[:9]])
        )
        # all layers are kept, so that the least-squares start alone shows which vectors it has learned
        ours, theirs = student.encode_query(asked), big.encode([sentences[0] + " " + text for text in asked])
        plain = big.encode(asked)
    assert agreement(theirs, ours)["spearman"] > agreement(plain, ours)["spearman"]


def test_a_student_is_partly_whitened(make_model: MakeModel, sentences: list[str], tmp_path: Path) -> None:
    teacher, texts, output = str(make_model()), tmp_path / "a.txt", tmp_path / "out"
    texts.write_text("\n".join(sentences), encoding="utf-8")
    options = DistillOptions(
        layers=[0], dimension=16, prefixes=[8], max_length=32, max_steps=4, query_prompt="find ", whiten=0.5
    )
    report = distill(teacher, texts, output, options)
    assert report["whiten"] == 0.5
    learned = [json.loads(line)["text"] for line in (output / "texts.jsonl").open(encoding="utf-8")]
    before, after = Encoder(output / "run" / "model"), Encoder(output / "float")
    x = before.encode(learned).astype(np.float64)
    variances, directions = np.linalg.eigh(np.cov(x.T))
    expected = (x @ directions) * variances**-0.25  # the order and the signs of columns change no cosine
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = after.encode(learned)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-4)
    assert found[:, 0].var() > 1.5 * found[:, -1].var()  # the largest components come first
    assert after.prompts["query"] == "find " and after.describe()["index_precision"] == "int8"
    assert Encoder(output / "model").fingerprint != before.fingerprint
    assert distill(teacher, texts, output, options) == report
    with pytest.raises(FileExistsError, match=r"--whiten 0\.5, not 0; choose another output"):
        distill(teacher, texts, output, replace(options, whiten=0.0))
    with pytest.raises(ValueError, match="whiten must be from 0 to 1, not 2"):
        replace(options, whiten=2)


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_run_keeps_to_its_texts(
    make_model: MakeModel, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, first, second = str(make_model()), tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("\n".join(sentences[:150]), encoding="utf-8")
    second.write_text("\n".join(sentences[150:300]), encoding="utf-8")
    options = DistillOptions(layers=(0,), dimension=8, max_length=32, max_steps=2, query_prompt="find ")
    output = tmp_path / "out"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(distill_run, "train", stop)  # before its first checkpoint
        distill(teacher, first, output, options)
    distill(teacher, second, output, options)  # so that other texts may still be given
    learned = (output / "texts.jsonl").read_text(encoding="utf-8")
    assert json.dumps(sentences[150], ensure_ascii=False) in learned + (output / "held_out.jsonl").read_text(
        "utf-8"
    )
    assert sentences[0] not in learned
    for texts, changed in (
        (first, options),
        (second, replace(options, query_prompt="search for ")),
        (second, replace(options, index_precision="int6")),
    ):
        with pytest.raises(FileExistsError, match="choose another output"):
            distill(teacher, texts, output, changed)
    assert Encoder(output / "model").prompts["query"] == "find "


def test_a_trained_student_without_a_report_keeps_to_its_texts(
    make_model: MakeModel, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints are gone by then; other texts must not get the student of these."""
    teacher, first, second = str(make_model()), tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("\n".join(sentences[:150]), encoding="utf-8")
    second.write_text("\n".join(sentences[150:300]), encoding="utf-8")
    options = DistillOptions(layers=[0], dimension=8, prefixes=[], max_length=32, max_steps=2)
    output = tmp_path / "out"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(distill_run, "compare", stop)
        distill(teacher, first, output, options)
    assert (output / "run" / "result.json").is_file() and not (output / "report.json").exists()
    with pytest.raises(FileExistsError, match="a run of other texts"):
        distill(teacher, second, output, options)
    report = distill(teacher, first, output, options)
    assert report["texts"] + report["held_out"] == 150


@pytest.mark.parametrize("given", [(0, 3), range(0, 4, 3), np.array([0, 3])])
def test_indices_of_layers_may_be_an_array(given: Any) -> None:
    layers = DistillOptions(layers=given).layers
    assert isinstance(layers, list)
    assert json.dumps([layers, DistillOptions(layers=given[1]).layers]) == "[[0, 3], 3]"


def test_layers_are_chosen_anew_for_what_the_choice_depends_on(
    make_model: MakeModel, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, first, second = str(make_model(layers=4)), tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("\n".join(sentences[:150]), encoding="utf-8")
    second.write_text("\n".join(sentences[150:300]), encoding="utf-8")
    options = DistillOptions(layers=2, dimension=8, max_length=32)
    chosen: list[str] = []

    def choose(_: TeacherOptions, count: int, __: DistillOptions, texts: Sequence[str]) -> dict[str, object]:
        chosen.append(texts[0])
        return {"layers": list(range(count)), "explained": {}}

    monkeypatch.setattr(distill_run, "choose_layers", choose)
    monkeypatch.setattr(distill_run, "train", stop)
    for texts, changed, count in (
        (first, options, 1),
        (first, options, 1),  # the same call goes on
        (first, replace(options, learning_rate=1e-5), 1),  # which the choice does not depend on
        (second, options, 2),
        (second, replace(options, dimension=4), 3),
        (second, replace(options, dimension=4, prompt="query: "), 4),
        (second, replace(options, dimension=4, prompt="query: ", prompt_words=3), 5),
        (second, replace(options, dimension=4, max_length=16), 6),
        (second, replace(options, dimension=4, max_length=16, teacher_precision="fp32"), 7),
    ):
        with pytest.raises(KeyboardInterrupt):
            distill(teacher, texts, tmp_path / "out", changed)
        assert len(chosen) == count
    assert chosen[0] in sentences[:150] and chosen[1] in sentences[150:300]
    kept = {"teacher": teacher, "count": 2, "layers": [0, 3], "explained": {}}  # of an earlier version
    (tmp_path / "out" / "layers.json").write_text(json.dumps(kept))
    with pytest.raises(KeyboardInterrupt):
        distill(teacher, second, tmp_path / "out", options)
    assert len(chosen) == 7


def test_a_student_of_two_teachers_from_the_command_line(
    make_model: MakeModel, sentences: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(sentences[:200]), encoding="utf-8")
    command = ["distill", "-q", "--teacher", str(make_model(seed=1)), "--teacher", str(make_model(seed=2))]
    command += ["--texts", str(tmp_path / "texts.txt"), "--student", str(make_model(seed=3)), "--dim", "24"]
    command += ["--max-steps", "4", "--max-length", "32", "--bytes", "96", "-o", str(tmp_path / "out")]
    command += ["--teacher-weights", "1,1.6", "--prompt", "query: ", "--prompt", "", "--prompt-words", "5"]
    command += ["--center"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "student, int8" in printed
    assert not (tmp_path / "out" / "layers.json").exists()
    recipe = json.loads((tmp_path / "out" / "run" / "recipe.json").read_text(encoding="utf-8"))
    assert [
        (teacher["weight"], teacher["prompt"], teacher["prompt_words"])
        for teacher in recipe["objective"]["teachers"]
    ] == [(1.0, "query: ", 5), (1.6, "", 5)]
    assert recipe["objective"]["center"]
    assert Encoder(tmp_path / "out" / "model").describe()["index_precision"] == "fp32"


class Told:
    """An encoder whose vectors are given; a text is the number of its row."""

    vectors: ClassVar[dict[str, np.ndarray]] = {}

    def __init__(self, path: str | Path, precision: str = "auto") -> None:
        self._name = Path(path).name

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get_embedding_dimension(self) -> int:
        return self.vectors[self._name].shape[1]

    def encode(self, texts: Sequence[str], prompt: str = "") -> np.ndarray:
        return self.vectors[self._name][[int(text) for text in texts]]

    def describe(self) -> dict[str, str]:
        return {"path": "unused"}


def test_the_report_weighs_teachers_as_the_student_learns_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    better, other = (random.normal(size=(60, 8)).astype(np.float32) for _ in range(2))
    student = better / np.linalg.norm(better, axis=1, keepdims=True)
    monkeypatch.setattr(Told, "vectors", {"a": 7 * better, "b": other, "float": student, "model": student})
    monkeypatch.setattr(report_module, "Encoder", Told)
    texts = [str(i) for i in range(60)]
    stored = {}
    for precision in ("fp32", "int8", "int6"):
        options = DistillOptions(teacher_weights=[1.0, 0.01], index_precision=precision, prefixes=[])
        rows = report_module.compare(options.teachers(["a", "b"]), options, tmp_path, texts)["rows"]
        assert rows["student, fp32"]["spearman"] > 99.9
        stored |= {name: row["spearman"] for name, row in rows.items() if "stored" in name}
    assert list(stored) == ["student, int8, stored in int8", "student, int8, stored in int6"]
    assert 99 < stored["student, int8, stored in int6"] < stored["student, int8, stored in int8"]
    equal = DistillOptions(prefixes=[])
    rows = report_module.compare(equal.teachers(["a", "b"]), equal, tmp_path, texts)["rows"]
    assert rows["student, fp32"]["spearman"] < 90


def test_further_dev_sets_stand_beside_the_texts_that_were_held_out() -> None:
    options = DistillOptions(evaluation={"dev": {"mine": {"path": "mine.jsonl"}}})
    files = Path("texts.jsonl"), Path("held_out.jsonl")
    recipe = distill_run._recipe(options.teachers(["a"]), options, [0], files, name="student")
    assert list(recipe.evaluation.dev) == ["held_out", "mine"]
    assert recipe.evaluation.select == "held_out_cosine"
    with pytest.raises(ValueError, match=r"evaluation\.dev\.held_out is the name of"):
        DistillOptions(evaluation={"dev": {"held_out": {"path": "mine.jsonl"}}})


def test_a_changed_file_of_texts_is_noticed(
    make_model: MakeModel, sentences: list[str], tmp_path: Path
) -> None:
    teacher, texts, output = str(make_model()), tmp_path / "a.txt", tmp_path / "out"
    options = DistillOptions(layers=[0], dimension=8, prefixes=[], max_length=32, max_steps=1)
    texts.write_text("\n".join(sentences[:90]), encoding="utf-8")
    with pytest.raises(ValueError, match="layers"):
        distill(teacher, texts, output, replace(options, layers=99))
    texts.write_text("\n".join(sentences[:110]), encoding="utf-8")
    report = distill(teacher, texts, output, options)  # nothing was trained: the new file counts
    assert report["texts"] + report["held_out"] == 110
    assert distill(teacher, texts, output, options) == report
    texts.write_text("\n".join(sentences[:120]), encoding="utf-8")
    with pytest.raises(FileExistsError, match="holds a run of other texts"):
        distill(teacher, texts, output, options)
    texts.unlink()  # a finished run needs it no more
    assert distill(teacher, texts, output, options) == report


@pytest.mark.parametrize("name", ["model", "float", "run/checkpoints", "texts.jsonl", "held_out.jsonl"])
def test_what_no_run_wrote_is_not_replaced(
    make_model: MakeModel, sentences: list[str], tmp_path: Path, name: str
) -> None:
    output, texts = tmp_path / "here", tmp_path / "a.txt"
    texts.write_text("\n".join(sentences[:90]), encoding="utf-8")
    (output / name / "checkpoint-5").mkdir(parents=True)
    with pytest.raises(
        FileExistsError, match=f"here/{name} exists and is not of a run in .*choose another output"
    ):
        distill(str(make_model()), texts, output, DistillOptions(layers=[0], dimension=8, max_length=32))
    assert [path.name for path in output.rglob("*") if not path.name.startswith("run")] == [
        Path(name).name,
        "checkpoint-5",
    ]


def test_texts_in_the_output_are_refused(make_model: MakeModel, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "mine"}\n', encoding="utf-8")
    (tmp_path / "texts.json").write_text("{}", encoding="utf-8")
    for given in (tmp_path, tmp_path / "texts.jsonl"):
        with pytest.raises(
            ValueError, match=r"the texts .* lie in the output .*choose another output \(-o\)"
        ):
            distill(str(make_model()), given, tmp_path)
    assert "mine" in (tmp_path / "texts.jsonl").read_text(encoding="utf-8")


def test_data_parallel_processes_do_not_share_standard_input(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="several processes cannot share one standard input; give the texts"):
        distill(str(make_model()), "-", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_processes_do_not_distill_into_one_folder(
    make_model: MakeModel, sentences: list[str], tmp_path: Path
) -> None:
    """The second leaves the texts and the checkpoint that the first is writing."""
    texts, output = tmp_path / "a.txt", tmp_path / "out"
    texts.write_text("\n".join(sentences[:90]), encoding="utf-8")
    unfinished = output / "run" / "checkpoints" / "checkpoint-5"
    unfinished.mkdir(parents=True)
    for name in ("run/recipe.json", "texts.json", "texts.jsonl"):
        (output / name).write_text("{}")
    with (
        alone(output, "report.json"),
        pytest.raises(BlockingIOError, match="another training runs in this folder; wait for it"),
    ):
        distill(str(make_model()), texts, output, DistillOptions(layers=[0], dimension=8, max_length=32))
    assert unfinished.is_dir()
    assert (output / "texts.jsonl").read_text() == (output / "texts.json").read_text() == "{}"


def test_the_run_of_a_recipe_is_no_distillation(
    make_model: MakeModel, sentences: list[str], tmp_path: Path
) -> None:
    texts, run = tmp_path / "a.txt", tmp_path / "out" / "run"
    texts.write_text("\n".join(sentences[:90]), encoding="utf-8")
    options = DistillOptions(layers=[0], dimension=8, max_length=32)
    (run / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    for name in ("checkpoints/checkpoint-1/trainer_state.json", "checkpoints/checkpoint-1/rng_state.pth"):
        (run / name).write_text("{}", encoding="utf-8")
    for data in ({"nli": {"path": "a.tsv"}}, {"texts": {"path": ["a.tsv", "b.tsv"]}}):
        (run / "recipe.json").write_text(json.dumps({"data": data}), encoding="utf-8")
        with pytest.raises(FileExistsError, match="holds a run of another recipe"):
            distill(str(make_model()), texts, run.parent, options)


def test_a_finished_run_may_be_moved_and_lose_its_model(
    make_model: MakeModel, sentences: list[str], tmp_path: Path
) -> None:
    teacher, texts = str(make_model()), tmp_path / "a.txt"
    texts.write_text("\n".join(sentences[:90]), encoding="utf-8")
    options = DistillOptions(layers=[0], dimension=8, prefixes=[], max_length=32, max_steps=1)
    report = distill(teacher, texts, tmp_path / "first", options)
    (tmp_path / "first").rename(tmp_path / "second")
    assert distill(teacher, texts, tmp_path / "second", options) == report
    for name in ("float", "model"):
        shutil.rmtree(tmp_path / "second" / name)
        with pytest.raises(
            FileNotFoundError, match=rf"its {name}/ is gone; .*remove report\.json to make it anew"
        ):
            distill(teacher, texts, tmp_path / "second", options)
        (tmp_path / "second" / "report.json").unlink()
        report = distill(teacher, texts, tmp_path / "second", options)
        assert (tmp_path / "second" / name / "modules.json").is_file()
    shutil.rmtree(tmp_path / "second" / "run" / "model")  # from which the others were made
    assert distill(teacher, texts, tmp_path / "second", options) == report
    (tmp_path / "second" / "report.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"run: .*its model/ is gone; .*remove result\.json"):
        distill(teacher, texts, tmp_path / "second", options)
    (tmp_path / "second" / "run" / "result.json").unlink()
    assert distill(teacher, texts, tmp_path / "second", options).keys() == report.keys()
    with pytest.raises(FileExistsError, match="another recipe"):
        distill(teacher, texts, tmp_path / "second", replace(options, dimension=4))


def test_a_run_that_was_stopped_may_be_moved_with_its_texts(
    make_model: MakeModel, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, texts, output = str(make_model()), tmp_path / "first" / "a.txt", tmp_path / "first" / "out"
    texts.parent.mkdir()
    texts.write_text("\n".join(sentences[:90]), encoding="utf-8")
    options = DistillOptions(
        layers=[0], dimension=8, prefixes=[], max_length=32, max_steps=3, eval_steps=1, batch_tokens=64
    )
    scores = {0: 0.0, 1: 3.0, 2: 1.0, 3: 2.0}
    stops = [2]

    def dev_scores(run: Any) -> dict[str, float]:
        step = run.trainer.state.global_step
        if step in stops:
            stops.remove(step)
            raise KeyboardInterrupt
        return {"held_out_cosine": scores[step]}

    monkeypatch.setattr(trainer._Run, "dev_scores", dev_scores)
    with pytest.raises(KeyboardInterrupt):
        distill(teacher, texts, output, options)
    recipe = output / "run" / "recipe.json"
    written = recipe.stat().st_ino
    files = output / "texts.jsonl", output / "held_out.jsonl"
    assert distill_run._as_begun(output, files) == files
    assert recipe.stat().st_ino == written  # another process may be reading it
    output.parent.rename(tmp_path / "second")
    texts, output = tmp_path / "second" / "a.txt", tmp_path / "second" / "student"
    (tmp_path / "second" / "out").rename(output)
    best = load_file(output / "run" / "checkpoints" / "checkpoint-1" / "model.safetensors")
    assert distill(teacher, texts, output, options)["steps"] == 3
    assert json.loads((output / "run" / "result.json").read_text())["best_step"] == 1
    kept = load_file(output / "run" / "model" / "model.safetensors")
    assert all(np.array_equal(tensor, best[f"encoder.backbone.{name}"]) for name, tensor in kept.items())
    assert str(tmp_path / "first") not in (output / "run" / "recipe.json").read_text()


def test_a_student_may_lie_beside_its_texts(
    make_model: MakeModel, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = set()

    def read_in(*given: Any, folder: Path | None = None, **options: Any) -> Any:
        folders.add(folder)
        return read(*given, folder=folder, **options)

    monkeypatch.setattr(distill_run, "read", read_in)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text("\n".join(sentences[:90]), encoding="utf-8")
    options = DistillOptions(layers=[0], dimension=8, prefixes=[], max_length=32, max_steps=1)
    teacher = str(make_model())
    report = distill(teacher, tmp_path, tmp_path / "out", options)
    assert report["texts"] + report["held_out"] == 90
    assert folders == {tmp_path / "out"}  # and not the system's, which may be small
    assert distill(teacher, tmp_path, "~/out", options) == report


def test_wrong_input_is_named(
    make_model: MakeModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = tmp_path / "few.txt"
    few.write_text("one\ntwo\n", encoding="utf-8")
    teacher = str(make_model(hidden=64))
    command = ["distill", "--teacher", teacher, "-o", str(tmp_path / "out"), "--max-length", "32", "--texts"]
    assert main([*command, str(few), "--dim", "8"]) == 2
    assert "2 distinct texts are too few" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "nothing"), "--dim", "8"]) == 2
    assert "nothing" in capsys.readouterr().err
    assert main([*command, str(few), "--bytes", "200"]) == 2
    assert "--bytes 200 with --dim 256: give 192, 256 or 1024" in capsys.readouterr().err
    few.write_text("\n".join(map(str, range(65))), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(
            "embedkit.training.teacher.Teachers.__init__", None
        )  # the teacher would encode them first
        assert main([*command, str(few), "--layers", "0", "--dim", "64", "--bytes", "64"]) == 2
    told = "58 texts to learn from are too few for --dim 64: give at least 73 distinct texts, or a --dim of at most 57"
    assert told in capsys.readouterr().err
    assert main([*command, str(few), "--dev-queries", "q.tsv"]) == 2
    assert "--dev-documents and --dev-judgments" in capsys.readouterr().err
    with pytest.raises(ValueError, match="at least one teacher"):
        distill([], few, tmp_path / "out")
    assert main([*command, str(few), "--teacher-weights", "1,2"]) == 2
    assert "teacher_weights: 2 for 1 teachers" in capsys.readouterr().err
    assert main([*command, str(few), "--prompt", "a: ", "--prompt", ""]) == 2
    assert "prompt: 2 for 1 teachers" in capsys.readouterr().err
    width = Encoder(teacher).get_embedding_dimension()
    for options, message in (
        (["--dim", "512"], f"dimension is 512, but the vectors of the teachers have {width} dimensions"),
        (["--prefixes", "64,300"], "prefixes: 300 must be from 1 to below the 256 dimensions"),
        (["--max-length", "2"], "max_length must leave room for a token"),
        (["--early-stopping", "0"], "early_stopping must be positive, not 0"),
        (["--epochs", "-1"], "training.epochs must not be negative"),
        (["--dim", "8", "--dev-pairs", "none.tsv"], "none.tsv"),
        (["--dim", "8", "--max-length", "600"], "embedkit-train: max_length is 600, and"),
        (
            ["--dim", "8", "--layers", "1,0"],
            "embedkit-train: layers [1, 0] must choose from the backbone's 2",
        ),
    ):
        assert main([*command, str(few), *options]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["StaticEmbedding", "Router"])
def test_what_is_no_transformer_is_not_trained(
    kind: str, make_model: MakeModel, sentences: list[str], tmp_path: Path
) -> None:
    model, texts = tmp_path / "model", tmp_path / "a.txt"
    texts.write_text("\n".join(sentences[:90]), encoding="utf-8")
    if kind == "StaticEmbedding":
        distill_static(make_model(), model, StaticOptions(dimension=None))
    else:
        models = pytest.importorskip("sentence_transformers.models")
        parts = [models.Transformer(str(make_model())), models.Pooling(32)]
        routes = models.Router.for_query_document(query_modules=parts, document_modules=parts)
        pytest.importorskip("sentence_transformers").SentenceTransformer(modules=[routes]).save(str(model))
    with pytest.raises(
        ValueError, match=rf"the kind {kind}, .* name one \(model\.path; --student of distill\)"
    ):
        distill(str(model), texts, tmp_path / "out", DistillOptions(layers=1, dimension=8, prefixes=[]))
    assert not (tmp_path / "out" / "texts.jsonl").exists()
    with pytest.raises(ValueError, match=f"the kind {kind}, and training starts from a transformer"):
        SentenceModel.load(ModelOptions(str(model)))
