"""Reports the registers of the compiled Triton kernels at the end of a run."""

from __future__ import annotations

from collections import defaultdict
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A line per kernel: registers per thread, the minimum and maximum over its cases, for each GPU."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for report in terminalreporter.stats.get("passed", []):
        properties = dict(report.user_properties)
        if "registers" in properties:
            found[properties["kernel"], properties["capability"]].append(properties["registers"])
    if not found:
        return
    terminalreporter.section("registers of the Triton kernels, nothing spilled")
    for kernel in dict.fromkeys(name for name, _ in found):
        of_each = (
            f"sm_{capability} {min(counts)}-{max(counts)} ({len(counts)} cases)"
            for (name, capability), counts in sorted(found.items())
            if name == kernel
        )
        terminalreporter.write_line(f"{kernel}: {', '.join(of_each)}")
