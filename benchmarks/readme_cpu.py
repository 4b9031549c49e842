"""The table of readme.py of every package on one processor."""

import math
from typing import Any

import common
from peers import peer_class
from readme_cells import best_batch, machine, named, not_measured, note, rate

__all__ = ["processor"]


def processor(result: dict[str, Any]) -> str:
    """Sentences per second of every package on several models and two lengths, by precision."""
    cases = result["cases"]
    peers = {row["peer"]: row["name"] for case in cases for row in case["rows"]}
    speed = [{row["peer"]: row["sentences_per_s"]["median"] for row in case["rows"]} for case in cases]
    rows = []
    for precision, title in _CLASSES.items():
        own = [key for key in peers if key.startswith("embedkit") and peer_class(key).precision == precision]
        others = [key for key in peers if key not in own and peer_class(key).precision == precision]
        for key in sorted(own + others, key=lambda key: -max(one.get(key, 0) for one in speed)):
            cosines = [row["cosine"] for case in cases for row in case["rows"] if row["peer"] == key]
            cells = [
                peers[key] + named(result, peer_class(key).packages[:1]),
                title,
                *(rate(one[key]) if key in one else "" for one in speed),
                f"{min(cosines):.4f}",
            ]
            rows.append([f"**{c}**" if key in own and c else c for c in cells])
        if own and others:
            leads = [_lead(one, own, others) for one in speed]
            rows.append(["*fastest embedkit / fastest other*", title, *leads, ""])
    headers = [
        "",
        "",
        *(f"{case['model']}, {case['texts']['mean']:.0f} tokens" for case in cases),
        "cosine to fp32, lowest mean",
    ]
    best = (
        f"each package at {best_batch(row for case in cases for row in case['rows'])} and number of streams."
    )
    kept = ""
    if _settings_were_kept(cases):
        best = f"each package at the batch size and number of streams that were best on {cases[0]['model']}."
        kept = _too_few_texts(cases)
    return (
        f"Sentences per second, tokenization included; {result['threads']} threads, median of at least "
        f"{min(case['rounds'] for case in cases)} alternating runs,\n{best} {machine(result)}.\n"
        f"{note(result)}{not_measured(*cases)}{kept}\n"
        f"{common.table(headers, rows)}"
    )


def _settings_were_kept(cases: list[dict[str, Any]]) -> bool:
    """Whether settings were sought on the first model alone, as `processor.py` once did."""
    sought = {(case["case"], row["peer"]) for case in cases for row in case["rows"] if row["tried"]}
    return any(
        (case["case"], row["peer"]) in sought and not row["tried"] for case in cases for row in case["rows"]
    )


def _too_few_texts(cases: list[dict[str, Any]]) -> str:
    """A warning, and the packages whose streams did not get two batches each."""
    lines = []
    for case in cases:
        texts = case["texts"]
        few = [
            f"{row['name']} ({row['batch']})"
            for row in case["rows"]
            if "x" in row["batch"] and math.prod(map(int, row["batch"].split("x"))) > texts["texts"] / 2
        ]
        if few:
            title = f"{case['model']}, {texts['mean']:.0f} tokens, {texts['texts']} texts"
            lines.append(f"- {title}: {', '.join(few)}\n")
    return (
        "\nOther settings may be faster on the larger models, which had fewer texts, and embedkit's lead there smaller."
        "\nSome packages had fewer texts than two batches for each of their streams (batch size x streams):\n\n"
        + "".join(lines)
    )


_CLASSES = {"fp32": "lossless", "bf16": "nearly lossless", "int8": "8 bits"}


def _lead(speed: dict[str, float], own: list[str], others: list[str]) -> str:
    ours, theirs = (max((speed.get(key, 0) for key in keys), default=0) for keys in (own, others))
    return f"*{ours / theirs:.2f}*" if ours and theirs else ""
