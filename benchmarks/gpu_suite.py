"""All measurements and tests on a GPU, on a bare machine without network, in one call of under 10 minutes.

    python benchmarks/gpu_suite.py --out DIR [--bundle DIR] [--model FOLDER] [--texts FILE] [--dry-run] [STEP...]

The steps in their order, each with its seconds; without names, all of the first part:

    smoke 60        each kernel against float64, one encode against the CPU core
    tests 150       the GPU tests, in parallel where pytest-xdist is installed; left out without pytest
    throughput 150  embedkit in bf16 and fp16 beside sentence-transformers in fp16, alternating: sentences/s, without
                    tokenization, one query; also with FlashAttention where that is installed
    kernels 80      each kernel against its roofline and torch
    terms 20        the kernels of one batch, beside roofline.py's model
    mpnet 70        all-mpnet-base-v2's shape at 128 tokens, with random weights: speed only
    hpd 55          the shapes of HPD's Table 1
    compiled 70     sentence-transformers under torch.compile, last because it may not come back

The second part, by name (``second`` for all of it):

    memcheck 150, racecheck 150    compute-sanitizer on smoke's kernels
    ncu 60                         hardware counters of one batch
    training 150                   each objective 20 steps, the loss equal to the CPU's
    budgets 60                     sentences/s with batches of 8,192, 16,384 and 32,768 tokens
    lengths 140, tune 500          longer forms of throughput and kernels

``--bundle`` is the folder that gpu_prepare.py made. Without it, the core must be installed or be built here. Without
``--model`` and a bundle the built-in model is used; an int8 folder is multiplied out to fp32 first. Results go to
``--out``: suite.log and a JSON file for each step, written after each part of a step. Both sides of every comparison
are timed by the wall clock.

Needs Linux on x86-64, a CUDA device, torch 2.11 to 2.13, triton 3.6 to 3.9, a C compiler and Python.h for triton,
numpy, safetensors, tqdm, tokenizers; throughput and mpnet also transformers and sentence-transformers, training pytest
and the extra [train]. A step whose packages are missing is left out by name. ``--dry-run`` does the same on a CPU, on
tiny sizes, with the kernels under Triton's interpreter, so far as they run there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "benchmarks"
FIRST = {
    "smoke": 60, "tests": 150, "throughput": 150, "kernels": 80, "terms": 20, "mpnet": 70, "hpd": 55, "compiled": 70,
}  # fmt: skip
SECOND = {
    "memcheck": 150, "racecheck": 150, "ncu": 60, "training": 150, "budgets": 60, "lengths": 140, "tune": 500,
}  # fmt: skip
TOTAL = 570
#: What a step needs besides the packages of all.
MODULES = {
    "tests": ("pytest",),
    "throughput": ("transformers", "sentence_transformers"),
    "mpnet": ("transformers", "sentence_transformers"),
    "compiled": ("transformers", "sentence_transformers"),
    "training": (
        "pytest",
        "transformers",
        "accelerate",
        "tensorboard",
        "matplotlib",
        "pyarrow",
        "yaml",
        "sklearn",
    ),
}
MPNET = "layers=12,hidden=768,heads=12,intermediate=3072,pooling=mean"
BUILTIN = ROOT / "embedkit" / "models" / "embedkit-256-int8"
CONVERT = "import sys; from embedkit.cli.model import main; sys.exit(main(sys.argv[1:]))"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "steps", nargs="*", metavar="STEP", help="of the lists above; second: the second part"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--texts", type=Path, help="a text a line, or .tsv or .jsonl with a column text")
    parser.add_argument("--seconds", type=float, default=TOTAL, help=f"of the whole call (default: {TOTAL})")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    steps = [name for step in options.steps for name in (SECOND if step == "second" else [step])]
    if unknown := [name for name in steps if name not in {**FIRST, **SECOND}]:
        parser.error(f"unknown step {unknown[0]}; there are {', '.join({**FIRST, **SECOND})} and second")
    options.steps = steps or list(FIRST)
    return options


class Suite:
    """One call: its folders, its environment and its clock."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options, self.work = options, work
        self.out = options.out.resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic()
        self.failed: list[str] = []
        # Never ask a hub, and keep what triton compiles for the steps that follow.
        self.environment = {
            **os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true", "PYTHONUNBUFFERED": "1",
            "TRITON_CACHE_DIR": str(work / "triton"),
        }  # fmt: skip
        if options.dry_run:
            self.environment |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}

    def say(self, line: str) -> None:
        """To the terminal and to the log."""
        print(line, flush=True)
        with open(self.out / "suite.log", "a", encoding="utf-8") as log:
            log.write(line + "\n")

    @property
    def left(self) -> float:
        """Seconds of the whole call."""
        return float(self.options.seconds - (time.monotonic() - self.started))

    def run(self, name: str, limit: float, command: Sequence[str | Path]) -> bool:
        """Run a command within its limit and the time left; what it prints is shown and logged."""
        shown = " ".join(str(part).replace(f"{ROOT}/", "") for part in command)
        self.say(f"=== {name} ({time.monotonic() - self.started:.0f} s): {shown}")
        limit = min(limit, self.left)
        if limit < 10:
            self.say(f"=== {name}: no time left")
            return False
        process = subprocess.Popen(
            list(map(str, command)), cwd=self.work, env=self.environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        reader = threading.Thread(target=self._pass_on, args=(process,))
        reader.start()
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            self.say(f"=== {name}: ran past its {limit:.0f} s")
            code = 1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started, too
            process.wait()
            reader.join()
        return code == 0

    def _pass_on(self, process: subprocess.Popen[str]) -> None:
        """Show and log what a process prints."""
        assert process.stdout is not None
        with open(self.out / "suite.log", "a", encoding="utf-8") as log:
            for line in process.stdout:
                print(line, end="", flush=True)
                log.write(line)
                log.flush()

    def check(self) -> None:
        """Find the core, and everything else that would stop a step in its middle."""
        options, site = self.options, self.work / "site"
        cores = sorted((options.bundle / "core").glob("*")) if options.bundle else []
        if cores:
            (site / "embedkit").mkdir(parents=True)
            for part in [*(ROOT / "embedkit").iterdir(), ROOT / "kernels", ROOT / "training"]:
                (site / "embedkit" / part.name).symlink_to(part)
            for core in cores:
                wheel = core.suffix == ".whl"
                if wheel:
                    subprocess.run(
                        [sys.executable, "-m", "zipfile", "-e", core, self.work / "wheel"], check=True
                    )
                for compiled in (self.work / "wheel" / "embedkit").glob("_core*.so") if wheel else [core]:
                    shutil.copy(compiled, site / "embedkit")
            lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
            version = next(line.split('"')[1] for line in lines if line.startswith("version = "))
            about = site / f"embedkit-{version}.dist-info"
            about.mkdir()
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: embedkit\nVersion: {version}\n")
            self.environment["PYTHONPATH"] = os.pathsep.join(
                filter(None, [str(site), self.environment.get("PYTHONPATH")])
            )
        script = (
            "import embedkit._core, numpy, torch, triton, tokenizers, sys\n"
            "print('python', sys.version.split()[0], 'torch', torch.__version__, 'triton', triton.__version__)\n"
            "if not sys.argv[1]: print(torch.cuda.get_device_name(), torch.cuda.get_device_capability())"
        )
        if not self.run("check", 60, [sys.executable, "-c", script, "dry" if options.dry_run else ""]):
            raise SystemExit("gpu_suite.py: a package, the core (--bundle) or the GPU is missing; see above")
        if not options.dry_run:
            compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
            if compiler is None or not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
                raise SystemExit(
                    "gpu_suite.py: triton needs a C compiler (gcc, clang or CC) and Python.h (python3-dev)"
                )
        self.model = (options.model or (options.bundle / "model" if options.bundle else BUILTIN)).resolve()
        if not self.model.is_dir():
            self.model = BUILTIN
        if (self.model / "model.int8.safetensors").is_file():
            target = self.work / "model-fp32"
            if not self.run(
                "convert",
                60,
                [sys.executable, "-c", CONVERT, "convert", self.model, target, "--precision", "fp32"],
            ):
                raise SystemExit("gpu_suite.py: the int8 model could not be multiplied out; see above")
            self.model = target
        given = options.texts or (options.bundle / "texts.txt.gz" if options.bundle else None)
        self.texts = [] if given is None else [str(given.resolve()), "--column", "text"]

    def step(self, name: str) -> None:
        """One step."""
        limit = {**FIRST, **SECOND}[name]
        missing = [module for module in MODULES.get(name, ()) if importlib.util.find_spec(module) is None]
        if missing:
            self.say(f"=== {name}: left out, {', '.join(missing)} is not installed")
            return
        tool = {"memcheck": "compute-sanitizer", "racecheck": "compute-sanitizer", "ncu": "ncu"}.get(name)
        if tool and shutil.which(tool) is None:
            self.say(f"=== {name}: left out, there is no {tool}")
            return
        command = self.command(name)
        if command is None:
            self.say(f"=== {name}: left out, a dry run has no GPU for it")
        elif not self.run(name, limit, command):
            self.say(f"=== {name}: failed")
            self.failed.append(name)

    def command(self, name: str) -> list[str | Path] | None:
        """What a step runs; None for what a dry run cannot."""
        options, dry, python = self.options, self.options.dry_run, sys.executable
        write: list[str | Path] = ["--json", self.out / f"{name}.json"]
        threads = str(len(os.sched_getaffinity(0)))
        throughput: list[str | Path] = [
            python, HERE / "throughput.py", *self.texts, "--model", self.model, "--threads", threads,
            "--cache", self.work / "cache", "--device", "cpu" if dry else "cuda",
            "--rounds", "1" if dry else "3", *write,
        ]  # fmt: skip
        smoke: list[str | Path] = [python, HERE / "gpu_smoke.py", "--model", self.model]
        kernels: list[str | Path] = [python, HERE / "kernels.py", "--device", "cuda", *write]
        many, few = ("64", "32") if dry else ("32768", "8192")
        st = "sentence-transformers" + ("" if dry else "-cuda")
        if name == "smoke":
            return [*smoke, *(["--dry-run"] if dry else []), *write]
        if name == "tests":
            found: list[str | Path] = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            found += ["-c", ROOT / "pyproject.toml", "--rootdir", ROOT]
            tests = ROOT / "tests" / "python"
            if dry:
                return [*found, tests / "kernels" / "test_modern.py", "-k", "alibi or rotary"]
            found += [tests / "kernels", tests / "backends" / "test_cuda.py", "-m", "gpu"]
            return [*found, *(["-n", "8"] if importlib.util.find_spec("xdist") else [])]
        if name == "throughput":
            peers = (
                f"embedkit-fp32,{st}"
                if dry
                else f"embedkit-cuda-fp16,embedkit-cuda-bf16,{st}-fp16,{st}-flash"
            )
            pairs = options.bundle.resolve() / "sts.tsv.gz" if options.bundle else None
            scored: list[str | Path] = ["--sts", pairs] if pairs and pairs.is_file() and not dry else []
            return [*throughput, "--limit", many, "--peers", peers, *scored]
        if name == "kernels":
            return [*kernels, *(["--dry-run", "--op", "bias_gelu"] if dry else ["--no-compile"])]
        if name == "terms":
            measure: list[str | Path] = [] if dry else ["--measure", "--model", self.model, *write]
            return [python, HERE / "roofline.py", *measure]
        if name == "hpd":
            own = "embedkit-fp32" if dry else "embedkit-cuda-bf16"
            table = ["--table", "hpd", "--rows", "TinyBERT,MiniLM-L6"]
            return [*throughput, "--limit", few, "--peers", own, *table]
        if name in ("mpnet", "lengths"):
            own = "embedkit-fp32" if dry else f"embedkit-cuda-fp16,embedkit-cuda-fp8,{st}-fp16"
            shape = ["--shape", MPNET.replace("=12,h", "=1,h") if dry else MPNET] if name == "mpnet" else []
            sizes = "24" if dry else "128" if name == "mpnet" else "8-256"
            return [*throughput, *shape, "--limit", few, "--lengths", sizes, "--peers", own]
        if dry and name != "training":
            return None
        if name == "budgets":
            return [python, HERE / "gpu_budgets.py", *self.texts, "--model", self.model, *write]
        if name == "compiled":
            return [*throughput, "--limit", many, "--peers", f"{st}-compiled"]
        if name in ("memcheck", "racecheck"):
            return ["compute-sanitizer", "--tool", name, "--error-exitcode", "9", *smoke]
        if name == "ncu":
            return [
                "ncu", "--clock-control", "none", "--set", "basic", "--launch-skip", "100", "--launch-count", "60",
                "--csv", "--log-file", self.out / "ncu.csv", python, HERE / "roofline.py", "--measure",
                "--model", self.model,
            ]  # fmt: skip
        if name == "training":
            return [python, HERE / "gpu_training.py", *(["--dry-run"] if dry else []), *write]
        return [*kernels, "--tune", "--no-compile"]


def main() -> None:
    """Run the steps; exits with 1 if one failed."""
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="embedkit-gpu-") as scratch:
        suite = Suite(options, Path(scratch))
        suite.check()
        for name in options.steps:
            suite.step(name)
        suite.say(f"=== {time.monotonic() - suite.started:.0f} s; results in {suite.out}")
    if suite.failed:
        raise SystemExit(f"failed: {', '.join(suite.failed)}")


if __name__ == "__main__":
    main()
