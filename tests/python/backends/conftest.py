"""The harness of the Triton kernels is shared."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "kernels"))
