"""Cells and captions that the tables of readme.py share."""

import json
from collections.abc import Iterable
from typing import Any

import common
from peers import REGISTRY, REGISTRY_CUDA, peer_class

__all__ = ["best_batch", "built_in", "machine", "named", "not_measured", "note", "rate"]

#: Family and model of processors that share a name -> their generation.
_GENERATIONS = {"23/49": "Zen 2, ", "25/17": "Zen 4, ", "26/2": "Zen 5, "}


def built_in(result: dict[str, Any]) -> str:
    """What a table calls the built-in model of a result: "former" if another one ships today."""
    stamp = common.ROOT / "embedkit" / "models" / "embedkit-256-int8" / "embedkit.json"
    present = json.loads(stamp.read_text(encoding="utf-8"))["fingerprint"]
    return "built-in" if result.get("built_in") == present else "former built-in"


def machine(result: dict[str, Any]) -> str:
    """The processor, its generation where known, its best instruction set, and the day or days."""
    about = result["machine"]
    generation = _GENERATIONS.get(about.get("cpu_family_model"), "")
    flags = [f for f in ("amx_int8", "avx512_vnni", "avx_vnni", "avx2", "asimd") if f in about["cpu_flags"]]
    days = sorted(one.get("date", result["date"])[:10] for one in result.get("cases", [result]))
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return f"{about['cpu']} ({generation}{flags[0] if flags else 'unknown vector flags'}), {when}"


def named(result: dict[str, Any], packages: tuple[str, ...]) -> str:
    """The version of the first of ``packages`` that the result has, after a space."""
    found = result["versions"]
    return next((f" {found[p]}" for p in packages if p in found), "")


def best_batch(rows: Iterable[dict[str, Any]]) -> str:
    """How a caption names the batch size: with the size from which on every package tried."""
    least = [min(int(one.partition("x")[0]) for one in row["tried"]) for row in rows if row["tried"]]
    return f"its best batch size (from {max(least)} up)" if least else "its best batch size"


def not_measured(*results: dict[str, Any]) -> str:
    """The packages that some ``results`` of `throughput.measure` have no row of, by reason; which, if not all."""
    registry = REGISTRY_CUDA if results[0]["benchmark"] == "throughput-cuda" else REGISTRY
    reasons: dict[str, list[str]] = {}
    for key in registry:
        missing: dict[str, list[str]] = {}
        for one in results:
            if all(row["peer"] != key for row in one["rows"]):
                case = f"{one['model']}, {one['texts']['mean']:.0f} tokens"
                missing.setdefault(one["left_out"].get(key, "not measured"), []).append(case)
        for reason, cases in missing.items():
            where = "" if len(cases) == len(results) else f" ({', and '.join(cases)})"
            reasons.setdefault(reason, []).append(peer_class(key).name + where)
    lines = [
        f"{reason[0].upper()}{reason[1:]}: {'; '.join(sorted(names))}.\n" for reason, names in reasons.items()
    ]
    return "".join(sorted(lines))


def note(result: dict[str, Any]) -> str:
    """What a reader must know of a result, written into it by hand after the run."""
    return f"{result['note']}\n" if "note" in result else ""


def rate(value: float) -> str:
    """Without decimals, or with two digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
