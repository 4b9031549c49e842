"""``embedkit-train``: its output and exit codes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tensorboard")
yaml = pytest.importorskip("yaml")

from embedkit.training import callbacks, cli
from embedkit.training.recipe import list_recipes
from objective_fixtures import nli_source, write_nli


@pytest.fixture(autouse=True)
def _logger() -> Iterator[None]:
    """The command line's changes to the logger end with the process; here, with the test."""
    logger = logging.getLogger("embedkit")
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.fixture
def recipe(make_model: Callable[..., Path], tmp_path: Path) -> Path:
    content = {
        "objective": {"name": "sbert"},
        "model": {"path": str(make_model()), "max_length": 64},
        "data": {"nli": nli_source(write_nli(tmp_path / "train.tsv", 24, 1))},
        "training": {"batch_size": 8, "eval_steps": 1},
        "evaluation": {"dev": {"nli": nli_source(write_nli(tmp_path / "dev.tsv", 12, 2))}},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(list_recipes())
    assert all(len(line.split()) > 2 for line in lines)


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    code = "import sys; from embedkit.training.cli import main; sys.exit(main(['--list']))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_show(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([str(recipe), "--show", "training.seed=5", "model.layers=[0]"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["training"]["seed"] == 5
    assert shown["training"]["learning_rate"] == 2e-5
    assert shown["model"]["layers"] == [0]


@pytest.mark.parametrize("order", [0, 1])
def test_a_run_and_its_end(
    order: int, recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    command = ["training.seed=2", "-o", str(output), "training.max_steps=2"]
    assert (
        cli.main([str(recipe), *command] if order else [*command[1:3], str(recipe), command[0], command[3]])
        == 0
    )
    shown = capfd.readouterr()
    assert shown.out.splitlines()[0].startswith(f"{output / 'model'}: 2 steps, ")
    assert "nli_accuracy" in shown.out.splitlines()[1]
    assert "seed: 2" in shown.err  # the resolved recipe
    assert "2 steps" in shown.err
    assert "\r" not in shown.err  # a progress bar belongs on a terminal
    assert cli.main([str(recipe), "-q", *command]) == 0
    assert capfd.readouterr().err == ""

    assert cli.main([str(recipe), "-o", str(output)]) == 2
    message = capfd.readouterr().err.splitlines()[-1]
    assert message.startswith(f"embedkit-train: {output} holds a run of another recipe")


def test_a_corrected_command_takes_the_folder_of_the_failed_one(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [str(recipe), "-q", "-o", str(tmp_path / "run"), "training.max_steps=1"]
    assert cli.main([*command, f"model.path={tmp_path / 'nowhere'}"]) == 2
    assert "nowhere" in capfd.readouterr().err
    assert cli.main(command) == 0


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        (
            "runs/zh-char-small",
            "python -m embedkit.training.vocabulary zh/zh_pairs.tsv.gz:text1,text2 zh/zh_nli.tsv.gz:premise,hypothesis "
            "zh/zh_sts.tsv.gz:sentence1,sentence2 --split train --size 8000 --data DATA --output runs/zh-char-small",
        ),
        ("runs/roformer-sim-1/model", "embedkit-train roformer-sim --data DATA"),
        (
            "runs/cross-encoder-nli-bert/model",
            "embedkit-train cross-encoder-nli --data DATA model.path=google-bert/bert-base-uncased "
            "--output runs/cross-encoder-nli-bert",
        ),
    ],
)
def test_what_makes_a_missing_folder_of_a_built_in_recipe_is_named(
    folder: str,
    command: str,
    *,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first one was looked for on the Hub."""
    monkeypatch.chdir(tmp_path)
    assert cli.main([str(recipe), "-q", "-o", "run", f"model.path={folder}"]) == 2
    told = f"embedkit-train: there is no folder {folder}, which this makes: {command}\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("elsewhere", [True, False])
def test_another_missing_file_is_not_taken_for_that_folder(
    *,
    elsewhere: bool,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = "runs/roformer-sim-1/model"
    if elsewhere:  # where it is
        (tmp_path / "elsewhere" / folder).mkdir(parents=True)
        folder = str(tmp_path / "elsewhere" / folder)
    monkeypatch.chdir(tmp_path)
    assert cli.main([str(recipe), "-q", "-o", "run", f"model.path={folder}", "data.nli.path=away.tsv"]) == 2
    told = capsys.readouterr().err
    assert "away.tsv" in told and "which this makes" not in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sbret"], "embedkit-train: unknown recipe 'sbret'; did you mean 'sbert'"),
        (["sbert", "training.sed=1"], "unknown training key 'sed'; did you mean 'seed'"),
        (["away.yaml"], "no file away.yaml"),
        (["MINE", "data.nli.path=away.tsv"], "away.tsv"),
        (["MINE", "model.path=./away"], "away"),
        (
            ["MINE", "model.config.hidden_act=foo"],
            "model.config: transformers makes no model of {'hidden_act': 'foo'}",
        ),
        (["MINE", "model.random=true", "model.config.hidden_size=abc"], "model.config: "),
        (
            ["MINE", "model.random=true", "model.config.vocab_size=9"],
            "vocab_size is 9; the files are of different",
        ),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    message: str,
    recipe: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    arguments = [str(recipe) if argument == "MINE" else argument for argument in arguments]
    assert cli.main([*arguments, "--quiet", "--output", str(tmp_path / "run")]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("embedkit-train: ")
    assert message in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["sbert", "-o", ""],
        ["mine", "pairs.tsv", ""],
        ["distill", "--teacher", "a", "--texts", "b", "-o", ""],
        ["distill-static", "a", "-o", ""],
    ],
)
def test_an_empty_output_is_not_the_current_folder(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert "output: it is empty; give a value" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a recipe, or --list"),
        (["--list", "sbert"], "--list is of all recipes; to see sbert: embedkit-train sbert --show"),
        (["sbert", "--show", "--push-to-hub", ""], "argument --push-to-hub: it is empty"),
        (["sbert", "--show", "--report-to", ""], "argument --report-to: it is empty"),
        (["sbert", "--show", "--private"], "--private is of the repository that --push-to-hub names"),
        (["sbert", "--margin", "1"], "unrecognized arguments: --margin"),
        (
            ["-q", "mine", "p.tsv", "o.tsv", "--margin", "1"],
            "put mine before the options: embedkit-train mine",
        ),
    ],
)
def test_options_that_do_not_go_together(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_the_same_command_again(
    recipe: Path,
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    original = callbacks.Progress.on_step_begin

    def on_step_begin(self: Any, args: Any, state: Any, control: Any, **others: Any) -> None:
        original(self, args, state, control, **others)
        if state.global_step == 2:
            os.kill(os.getpid(), number)

    command = [str(recipe), "--output", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr(callbacks.Progress, "on_step_begin", on_step_begin)
        assert cli.main(command) == (130 if number == signal.SIGINT else 143)
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "embedkit-train: stopped; the same command goes on from what is saved"
    assert cli.main(command) == 0
    shown = capfd.readouterr()
    assert "resuming from step 2" in shown.err
    assert ": 3 steps, " in shown.out


@pytest.mark.parametrize(
    ("command", "stopped_in"),
    [
        (["mine", "pairs.tsv", "out.tsv"], "embedkit.training.mine_command.run"),
        (["distill-static", "model", "-o", "out", "-q"], "embedkit.training.distillation.static_command.run"),
    ],
)
def test_a_command_without_checkpoints_does_not_promise_to_go_on(
    command: list[str],
    stopped_in: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(options: Any) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("not reached")

    monkeypatch.setattr(stopped_in, stop)
    assert cli.main(command) == 143
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "embedkit-train: stopped; the same command starts over: nothing is saved"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["training.max_steps=0"], "training.max_steps must be positive, or -1 for epochs, not 0"),
        (["model.layers=-1"], "model.layers -1 must choose from the backbone's 2 layers"),
        (
            ["objective={name: hpd, teachers: [{path: away}]}", "data.nli.columns={label: label}"],
            "data.nli has no column of texts; name one: data.nli.columns.text",
        ),
        (["--private"], "--private is of the repository that --push-to-hub names"),
        (["--push-to-hub", "bad name"], "bad name"),
        (["--push-to-hub", "mine"], "give USER/NAME"),
        (["data.nli.path=5"], "path is 5; name a file, or a list of files"),
        (["data.nli.path=null"], "path is None; name a file"),
        (["--report-to", "wnadb"], "wnadb is not supported"),
    ],
)
def test_mistakes_are_told_before_the_training(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    pytest.importorskip("huggingface_hub")
    assert cli.main([str(recipe), "-o", str(tmp_path / "run"), "-q", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_what_of_a_model_is_left_out_is_told(
    recipe: Path, make_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_model(pooling="cls", dense=((16, "Tanh", True),), normalize=True)
    command = [str(recipe), "-o", str(tmp_path / "run"), f"model.path={folder}", "training.max_steps=1"]
    assert cli.main(command) == 0
    kept = (
        "to keep what it had: model.pooling=cls model.projection.dimension=16 model.projection.activation=tanh "
        "model.normalize=true"
    )
    assert kept in capsys.readouterr().err
    command[2] = str(tmp_path / "shortened")
    assert cli.main([*command, "model.layers=[0]"]) == 0
    assert kept in capsys.readouterr().err
    for number, other in enumerate(("{dimension: 16}", "{dimension: 8, activation: tanh}")):
        command[2] = str(tmp_path / f"other-{number}")
        assert cli.main([*command, f"model.projection={other}"]) == 0
        assert "leaves out its pooling and projection and normalization; " in capsys.readouterr().err
    command[2] = str(tmp_path / "same")
    assert cli.main([*command, "model.projection={dimension: 16, activation: tanh}"]) == 0
    assert "leaves out its pooling and normalization; " in capsys.readouterr().err


def test_a_truncate_dim_that_is_left_out_is_told(
    recipe: Path, make_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(recipe), f"model.path={make_model(truncate_dim=8)}", "training.max_steps=1", "-o"]
    assert cli.main([*command, str(tmp_path / "run")]) == 0
    assert "truncate_dim; to keep what it had: Encoder(..., truncate_dim=8)" in capsys.readouterr().err
    assert cli.main([*command, str(tmp_path / "projected"), "model.projection.dimension=8"]) == 0
    assert "truncate_dim; " not in capsys.readouterr().err


def test_an_output_that_is_no_folder_is_refused(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for command in ([str(recipe)], ["distill", "--teacher", "a", "--texts", "b"]):
        for name in ("file", "file/run", "link"):
            assert cli.main([*command, "-o", str(tmp_path / name)]) == 2
            told = f"{name}: is not a folder, or lies in a file; name a new one\n"
            assert capsys.readouterr().err.endswith(told)


def test_options_of_distill_that_do_not_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = ["distill", "--teacher", "a", "--texts", "b", "-o", str(tmp_path / "o")]
    assert cli.main([*given, "--student", "c", "--layers", "2"]) == 2
    assert "give one of them" in capsys.readouterr().err
    assert cli.main([*given, "--prompt-words", "3"]) == 2
    assert "--prompt-words says before which texts" in capsys.readouterr().err
    assert cli.main([*given, "--layers", ""]) == 2
    assert "invalid numbers: ''" in capsys.readouterr().err
