#!/usr/bin/env bash
# run.sh [NAME...]: test the adapters NAME (default: all) against the real libraries, each in a fresh environment with the
# wheel and the extra NAME. NAME.txt lists further requirements of the tests.
#
#   WHEEL=FILE   the wheel to test; default: build one from the checkout
#   VENVS=DIR    keep the environments in DIR and reuse them; default: a temporary folder
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venvs=${VENVS:-$work}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTEST_ADDOPTS="-p no:cacheprovider ${PYTEST_ADDOPTS:-}"
# The tests use no network.
export HF_HUB_OFFLINE=1 ANONYMIZED_TELEMETRY=False HAYSTACK_TELEMETRY_ENABLED=False LANGCHAIN_TRACING_V2=false
export RAY_USAGE_STATS_ENABLED=0

if [ $# -eq 0 ]; then
  set -- sklearn langchain llama-index haystack chroma mteb ray serve-clients vector-stores
fi
if [ -z "${WHEEL:-}" ]; then
  python3 -m pip wheel -q --no-deps -w "$work/wheel" "$root"
  WHEEL=$(echo "$work"/wheel/embedkit-*.whl)
fi
WHEEL=$(realpath "$WHEEL")

for name in "$@"; do
  begin=$SECONDS
  requirements=$here/$name.txt
  if [ ! -f "$requirements" ]; then
    echo "run.sh: there is no adapter $name" >&2
    exit 2
  fi
  python=$venvs/$name/bin/python
  [ -x "$python" ] || python3 -m venv "$venvs/$name"
  extra=$name
  [ "$name" != serve-clients ] || extra=serve
  [ "$name" != vector-stores ] || extra=parquet  # vector stores load exports of an index, without an adapter
  "$python" -m pip install -q --no-compile -c "$root/constraints.txt" "$WHEEL[cpu,$extra]" -r "$requirements"
  "$python" -m pip install -q --no-compile --no-deps --force-reinstall "$WHEEL"
  installed=$((SECONDS - begin))
  options=()
  if [ "$name" = langchain ]; then  # some of its standard tests are asynchronous
    options=(-o asyncio_mode=auto -o asyncio_default_fixture_loop_scope=function)
  fi
  # Run outside the checkout, so that only the wheel is tested.
  (cd "$work" && timeout 1200 "$python" -m pytest -q -c "$root/pyproject.toml" --rootdir "$root" "${options[@]}" \
    "$here/test_${name//-/_}.py")
  echo "$name: installed in $installed s, tested in $((SECONDS - begin - installed)) s"
  [ -n "${VENVS:-}" ] || rm -rf "${venvs:?}/$name"
done
