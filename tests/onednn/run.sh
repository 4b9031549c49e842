#!/usr/bin/env bash
# The build with oneDNN (-DEMBEDKIT_WITH_ONEDNN=ON), in an environment of its own: the C++ tests, then vectors.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
if ! grep -q avx512_vnni /proc/cpuinfo; then
  echo "oneDNN: left out, its products are offered on processors with AVX-512 VNNI"
  exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
export PATH="$work/venv/bin:$PATH"
pip install -q -c "$root/constraints.txt" onednn-devel-cpu-gomp==2023.2.0 cmake ninja pytest
cmake -S "$root" -B "$work/build" -G Ninja -DEMBEDKIT_BUILD_EXTENSION=OFF -DEMBEDKIT_BUILD_TESTS=ON \
  -DEMBEDKIT_WITH_ONEDNN=ON -Ddnnl_DIR="$work/venv/lib/cmake/dnnl" > "$work/build.log"
cmake --build "$work/build" >> "$work/build.log" || { tail -30 "$work/build.log"; exit 1; }
ctest --test-dir "$work/build" --output-on-failure
pip install -q -c "$root/constraints.txt" -Ccmake.define.EMBEDKIT_WITH_ONEDNN=ON \
  -Ccmake.define.dnnl_DIR="$work/venv/lib/cmake/dnnl" "$root"
cd "$work"  # the checkout must not stand in for the installed package
pytest -c "$root/pyproject.toml" --rootdir "$root" -p no:cacheprovider --confcutdir "$root/tests/onednn" \
  "$root/tests/onednn"
