"""A table's results as Markdown, for `training.py` and the documentation; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["claim_lines", "note_text", "table_lines"]


def table_lines(results: Mapping[str, Any]) -> list[str]:
    """The rows, part by part: mean ± standard deviation over the seeds, beside them what the paper has."""
    lines: list[str] = []
    for part in dict.fromkeys(row["part"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["part"] == part]
        shown = [column for column in rows[0]["scores"] if any(row["scores"].get(column) for row in rows)]
        published = [column for column in shown if any(column in row.get("paper", {}) for row in rows)]
        headers = [part, "seeds", *shown, *(f"{column}, paper" for column in published)]
        lines += ["", f"| {' | '.join(headers)} |", "|---" * len(headers) + "|"]
        for row in rows:
            missing = len(row["of"]) - len(row["seeds"])
            cells = [
                row["name"].replace("|", r"\|"),  # of (u, v, |u-v|)
                f"{len(row['seeds'])}" + (f" of {len(row['of'])}" if missing else ""),
                *(_score(row["scores"].get(column), len(row["seeds"])) for column in shown),
                *(
                    f"{row['paper'][column]:.2f}" if column in row.get("paper", {}) else ""
                    for column in published
                ),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def claim_lines(results: Mapping[str, Any]) -> list[str]:
    """What the table claims, as a list: the mean differences, with their significance."""
    names = {row["run"]: row["name"] for row in results["rows"]}
    lines = []
    for claim in results.get("claims", []):
        steps = [
            f"{names[one['above']]} against {names[one['below']]} {one['difference']:+.2f}{_significance(one)}"
            for one in claim["differences"]
        ]
        if steps:
            lines.append(f"- {claim['text']} ({claim['column']}): {'; '.join(steps)}")
    return ["What it shows, as mean differences over the seeds that both have:", "", *lines] if lines else []


def note_text(results: Mapping[str, Any]) -> str:
    """The note, and which rows have runs that were trained in fp32, if others were in bf16."""
    made = {(key.rpartition("-")[0], run.get("precision")) for key, run in results["runs"].items()}
    names = [row["name"] for row in results["rows"] if (row["run"], "fp32") in made]
    note = str(results["note"])
    if not names or all(precision != "bf16" for _, precision in made):
        return note
    return f"{note} In fp32, on a processor without bf16: {'; '.join(names)}."


def _significance(difference: Mapping[str, Any]) -> str:
    if difference["seeds"] == 1:
        return " (one seed)"
    if difference["p"] is None:
        return ""
    verdict = "" if difference["p"] < 0.05 else "not significant: "
    return f" ({verdict}p = {difference['p']:.2g}, paired t-test over {difference['seeds']} seeds)"


def _score(score: Mapping[str, float] | None, seeds: int) -> str:
    if score is None:
        return ""
    return f"{score['mean']:.2f} ± {score['sd']:.2f}" if seeds > 1 else f"{score['mean']:.2f}"
