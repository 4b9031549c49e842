"""``benchmarks/papers`` and the scripts that use it can be imported."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
