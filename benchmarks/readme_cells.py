"""Cells and captions that the tables of readme.py share."""

from typing import Any

__all__ = ["machine", "named", "rate"]

#: Family and model of processors that share a name -> their generation.
_GENERATIONS = {"25/17": "Zen 4, ", "26/2": "Zen 5, "}


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
