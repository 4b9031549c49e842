"""Cells and captions that the tables of readme.py share."""

import json
from typing import Any

import common

__all__ = ["built_in", "machine", "named", "rate"]

#: Family and model of processors that share a name -> their generation.
_GENERATIONS = {"23/49": "Zen 2, ", "25/17": "Zen 4, ", "26/2": "Zen 5, "}


def built_in(result: dict[str, Any]) -> str:
    """What a table calls the built-in model of a result: "former" if another one ships today."""
    stamp = common.ROOT / "embedkit" / "models" / "embedkit-256-int8" / "embedkit.json"
    present = json.loads(stamp.read_text(encoding="utf-8"))["fingerprint"]
    return "built-in" if result.get("built_in") == present else "former built-in"


def machine(result: dict[str, Any]) -> str:
    """The processor, its generation where known, its best instruction set, and the day."""
    about = result["machine"]
    generation = _GENERATIONS.get(about.get("cpu_family_model"), "")
    flags = [f for f in ("amx_int8", "avx512_vnni", "avx_vnni", "avx2", "asimd") if f in about["cpu_flags"]]
    return (
        f"{about['cpu']} ({generation}{flags[0] if flags else 'unknown vector flags'}), {result['date'][:10]}"
    )


def named(result: dict[str, Any], packages: tuple[str, ...]) -> str:
    """The version of the first of ``packages`` that the result has, after a space."""
    found = result["versions"]
    return next((f" {found[p]}" for p in packages if p in found), "")


def rate(value: float) -> str:
    """Without decimals, or with two digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
