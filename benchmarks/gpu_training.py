"""Each recipe of the package, 20 steps on tiny models: is the loss of every step on the GPU that on the CPU?

    python benchmarks/gpu_training.py [--recipes sbert,simcse] [--steps 20] [--dry-run] [--json OUT.json]

Runs tests/python/training/test_recipes_run.py on both at once, one process each, without dropout and in fp32.
``--dry-run`` compares the CPU with itself, three steps of two recipes.
"""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import common

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "python" / "training" / "test_recipes_run.py"
#: Largest difference of a loss, as a share of the larger: float32 in another order, after 20 steps of Adam.
TOLERANCE = 0.02

__all__ = ["compare"]


def losses(environment: dict[str, str], recipes: list[str], steps: int) -> dict[str, list[float]]:
    """The losses of each recipe in a process with ``environment`` added."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "losses.jsonl"
        command = [sys.executable, "-m", "pytest", "-q", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT]
        command += ["-p", "no:cacheprovider"]
        command += [f"{TESTS}::test_three_steps[{name}]" for name in recipes] or [str(TESTS)]
        added = {"EMBEDKIT_RECIPE_STEPS": str(steps), "EMBEDKIT_RECIPE_LOSSES": str(file)}
        done = subprocess.run(
            list(map(str, command)), env={**os.environ, **environment, **added}, check=False, cwd=scratch
        )
        if done.returncode != 0:
            raise SystemExit(f"the recipes do not run with {environment}; see above")
        lines = file.read_text(encoding="utf-8").splitlines()
    return {one["recipe"]: one["losses"] for one in map(json.loads, lines)}


def compare(one: dict[str, list[float]], other: dict[str, list[float]]) -> dict[str, float]:
    """The largest difference of each recipe, as a share of the larger loss; infinite where steps are missing."""
    result = {}
    for name, ours in one.items():
        theirs = other.get(name, [])
        if len(ours) != len(theirs) or not ours:
            result[name] = float("inf")
            continue
        result[name] = max(abs(a - b) / max(abs(a), abs(b), 1e-6) for a, b in zip(ours, theirs, strict=True))
    return result


def main() -> None:
    """Train, compare, print and write."""
    parser = common.parser(__doc__)
    parser.add_argument("--recipes", help="comma-separated (default: all)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    recipes = options.recipes.split(",") if options.recipes else []
    if options.dry_run:
        options.steps, recipes = 3, recipes or ["sbert-stsb", "simcse"]
    cpu = {"CUDA_VISIBLE_DEVICES": ""}
    with ThreadPoolExecutor(2) as pool:
        ours, theirs = pool.map(
            lambda added: losses(added, recipes, options.steps), (cpu, cpu if options.dry_run else {})
        )
    found = compare(ours, theirs)
    print(
        common.table(
            ["recipe", "steps", "largest difference"],
            [[n, len(ours[n]), f"{d:.1e}"] for n, d in found.items()],
        )
    )
    if options.json:
        about = {
            "machine": common.machine_info(),
            "versions": common.versions(["embedkit", "torch", "triton"]),
        }
        content = {"tolerance": TOLERANCE, "losses": ours, "differences": found}
        common.write_json(options.json, common.report("gpu-training", **about, **content))
    if bad := [name for name, difference in found.items() if not difference <= TOLERANCE]:
        raise SystemExit(f"the losses differ: {', '.join(bad)}")


if __name__ == "__main__":
    main()
