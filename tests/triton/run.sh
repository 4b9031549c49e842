#!/usr/bin/env bash
# Compiles the kernels ahead of time with the oldest and the newest Triton that pyproject.toml admits; the tests do so with
# the pinned one. Usage: tests/triton/run.sh PYTHON, which has embedkit, torch, triton and pytest.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
cd "$work"  # the checkout must not stand in for the installed package
for version in 3.6.0 3.9.0; do
  begin=$SECONDS
  # Into a folder of its own, which comes before the installed one on the path.
  if ! "$python" -m pip install -q --no-deps --target "$version" "triton==$version" > "$version.log" 2>&1; then
    if grep -q "No matching distribution" "$version.log"; then
      echo "triton $version: skipped, the index has no such version"
      continue
    fi
    cat "$version.log"
    exit 1
  fi
  found=$(PYTHONPATH=$version "$python" -c "import triton; print(triton.__version__)")
  [ "$found" = "$version" ] || { echo "triton $version: $found is imported in its place" >&2; exit 1; }
  TRITON_CACHE_DIR=$work/cache PYTHONPATH=$work/$version "$python" -m pytest -q -c "$root/pyproject.toml" \
    --rootdir "$root" -p no:cacheprovider -k "compile and not 80 and not 86 and not 89" \
    "$root"/tests/python/kernels/test_{modern,bias_gelu,layernorm,varlen_attention,quantized_linear}.py
  echo "triton $version: compiled in $((SECONDS - begin)) s"
  rm -rf "$version" cache
done
