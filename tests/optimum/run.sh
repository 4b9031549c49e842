#!/usr/bin/env bash
# The interchange with Optimum, in an environment of its own: optimum-onnx needs an older transformers than the tests
# have. Usage: tests/optimum/run.sh [WHEEL]; without a wheel the checkout is built.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q -c "$root/tests/optimum/constraints.txt" \
  "embedkit[optimum] @ file://$(realpath "${1:-$root}")" pytest sentence-transformers
cd "$work"  # the checkout must not stand in for the installed package
PYTHONPATH="$root/tests/python" "$work/venv/bin/python" -P -m pytest -c "$root/pyproject.toml" --rootdir "$root" \
  -p conftest -p no:cacheprovider "$root/tests/optimum"
