#!/usr/bin/env bash
# The whole measurement on a GPU, in under 10 minutes and without a network: the tests that need one, kernels.py and
# throughput.py. Everything it finds goes to $OUT: suite.log and a JSON file a step.
#
#   EMBEDKIT_BUILD=DIR EMBEDKIT_MODELS=DIR EMBEDKIT_TEXTS=FILE OUT=DIR benchmarks/gpu_suite.sh [--dry-run] [STEP...]
#
#   EMBEDKIT_BUILD   a folder with a wheel of embedkit for this Python (`pip wheel --no-deps -w DIR .`), or with its
#                    compiled _core*.so; without it the core is compiled here, which takes pip, g++, cmake, ninja,
#                    pybind11 and scikit-build-core
#   EMBEDKIT_MODELS  a folder with the folder all-MiniLM-L6-v2 and, if it is to be measured, all-mpnet-base-v2
#   EMBEDKIT_TEXTS   texts, .txt, .tsv or .jsonl, each also .gz; EMBEDKIT_COLUMN names the columns (default: text)
#   PYTHON           default: python3
#
# Besides: Linux on x86-64 and a CUDA device, torch 2.11 to 2.13 for CUDA 13, triton 3.6 or 3.7, numpy, safetensors,
# tqdm, tokenizers, transformers, sentence-transformers and pytest. A step is tests, kernels, throughput, lengths,
# mpnet or hpd (default: all). --dry-run does the same on a CPU: tiny, the kernels under Triton's interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
python=${PYTHON:-python3}
known=(tests kernels throughput lengths mpnet hpd)

die() {
  echo "gpu_suite.sh: $*" >&2
  exit 2
}

dry=
steps=()
for argument in "$@"; do
  if [ "$argument" = --dry-run ]; then
    dry=1
  elif [[ " ${known[*]} " == *" $argument "* ]]; then
    steps+=("$argument")
  else
    die "unknown step $argument; there are ${known[*]}"
  fi
done
[ ${#steps[@]} -gt 0 ] || steps=("${known[@]}")
[ -n "${OUT:-}" ] || die "set OUT to a folder for the results"
[ -n "${EMBEDKIT_MODELS:-}" ] || die "set EMBEDKIT_MODELS to a folder with all-MiniLM-L6-v2"
minilm=$EMBEDKIT_MODELS/all-MiniLM-L6-v2
mpnet=$EMBEDKIT_MODELS/all-mpnet-base-v2
[ -f "$minilm/model.safetensors" ] || die "no $minilm/model.safetensors"
[ -f "${EMBEDKIT_TEXTS:-}" ] || die "set EMBEDKIT_TEXTS to a file of texts"
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
exec > >(tee "$OUT/suite.log") 2>&1

# Nothing may be looked for on the Hub, and the compiled core must be found without an installation.
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=true PYTHONUNBUFFERED=1 TRITON_CACHE_DIR=$work/triton
site=$work/site
mkdir -p "$site"
shopt -s nullglob
if [ -n "${EMBEDKIT_BUILD:-}" ]; then
  wheels=("$EMBEDKIT_BUILD"/embedkit-*.whl)
  cores=("$EMBEDKIT_BUILD"/_core*.so)
  if [ ${#wheels[@]} -gt 0 ]; then
    "$python" -m zipfile -e "${wheels[-1]}" "$site"
  elif [ ${#cores[@]} -gt 0 ]; then
    mkdir "$site/embedkit"
    ln -s "$root"/embedkit/* "$root/kernels" "$root/training" "$site/embedkit/"
    cp "${cores[@]}" "$site/embedkit/"
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
    mkdir "$site/embedkit-$version.dist-info"
    printf 'Metadata-Version: 2.1\nName: embedkit\nVersion: %s\n' "$version" > "$site/embedkit-$version.dist-info/METADATA"
  else
    die "EMBEDKIT_BUILD=$EMBEDKIT_BUILD has no embedkit-*.whl and no _core*.so"
  fi
else
  "$python" -m pip install -q --no-index --no-build-isolation --no-deps --target "$site" . ||
    die "the core could not be compiled here; give EMBEDKIT_BUILD"
fi
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
# From elsewhere: the checkout's folder embedkit has no compiled core.
cd "$work"
"$python" - "${dry:-}" << 'CHECK' || exit 2
import sys
from importlib import import_module

needed = ["embedkit._core", "numpy", "torch", "triton", "tokenizers", "transformers", "sentence_transformers", "pytest"]
missing = []
for name in needed:
    try:
        import_module(name)
    except ImportError as error:
        missing.append(f"{name} ({error})")
if missing:
    sys.exit("gpu_suite.sh: cannot import " + ", ".join(missing))
import torch, triton

print(f"python {sys.version.split()[0]}, torch {torch.__version__} (CUDA {torch.version.cuda}), triton {triton.__version__}")
if not sys.argv[1]:
    if not torch.cuda.is_available():
        sys.exit("gpu_suite.sh: no CUDA device; --dry-run does without one")
    print(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
CHECK

# A step gets its limit or what is left of the whole, so that the later ones are not lost to a slow one unseen.
total=${EMBEDKIT_SUITE_SECONDS:-580}
failed=()
run() {
  local step=$1 limit=$2
  shift 2
  local left=$((total - SECONDS))
  if [ "$left" -lt 10 ]; then
    echo "=== $step: no time left"
    failed+=("$step")
    return
  fi
  echo "=== $step ($SECONDS s): ${*/#$root\//}"
  if ! timeout "$((limit < left ? limit : left))" "$@"; then
    echo "=== $step failed, or ran past its $limit s"
    failed+=("$step")
  fi
}

threads=$(nproc)
texts=("$EMBEDKIT_TEXTS" --column "${EMBEDKIT_COLUMN:-text}" --threads "$threads" --cache "$work/cache")
kernels=("$python" "$root/benchmarks/kernels.py" --device cuda --json "$OUT/kernels.json")
throughput=("$python" "$root/benchmarks/throughput.py" "${texts[@]}")
pytest=("$python" -m pytest -q -c "$root/pyproject.toml" --rootdir "$root" -p no:cacheprovider)
if [ -n "$dry" ]; then
  kernels+=(--dry-run)
  throughput+=(--device cpu --rounds 1)
  every=(--peers embedkit-fp32) two=(--peers embedkit-fp32) own=(--peers embedkit-fp32)
  many=64 few=32 long=(--lengths 24) mixed=(--lengths 4-32) hpd=(--rows "TinyBERT,MiniLM-L6")
  selected=("$root/tests/python/kernels/test_bias_gelu.py" -k "interpreted or gpu")
else
  throughput+=(--device cuda --rounds 3)
  # Every rival on the questions; elsewhere the usual one, and embedkit alone on the table's eight models: each
  # process of a rival takes some ten seconds to start.
  every=(--peers all) two=(--peers "embedkit-cuda-bf16,sentence-transformers-cuda-fp16") own=(--peers embedkit-cuda-bf16)
  many=32768 few=8192 long=(--lengths 128) mixed=(--lengths 8-256) hpd=()
  [ -f "$mpnet/model.safetensors" ] && hpd=(--mpnet "$mpnet")
  selected=("$root/tests/python" -m gpu)
  # Most of the tests' time is Triton's compiler, on one core a test.
  "$python" -c "import xdist" 2> /dev/null && selected+=(-n 8)
fi
mkdir -p "$work/cache"
for step in "${steps[@]}"; do
  case $step in
    tests) run tests 200 "${pytest[@]}" "${selected[@]}" ;;
    kernels) run kernels 150 "${kernels[@]}" ;;
    throughput)
      run throughput 200 "${throughput[@]}" "${every[@]}" --model "$minilm" --limit "$many" \
        --json "$OUT/minilm-questions.json"
      ;;
    lengths)
      small=("${throughput[@]}" "${two[@]}" --model "$minilm" --limit "$few")
      run lengths 70 "${small[@]}" "${long[@]}" --json "$OUT/minilm-128.json"
      run lengths 70 "${small[@]}" "${mixed[@]}" --json "$OUT/minilm-mixed.json"
      ;;
    mpnet)
      if [ -f "$mpnet/model.safetensors" ]; then
        run mpnet 90 "${throughput[@]}" "${two[@]}" --model "$mpnet" --limit "$few" "${long[@]}" \
          --json "$OUT/mpnet-128.json"
      else
        echo "=== mpnet: left out, no $mpnet"
      fi
      ;;
    hpd)
      run hpd 110 "${throughput[@]}" "${own[@]}" --model "$minilm" --limit "$few" --table hpd "${hpd[@]}" \
        --json "$OUT/hpd.json"
      ;;
  esac
done
echo "=== $SECONDS s; results in $OUT"
if [ ${#failed[@]} -gt 0 ]; then
  echo "=== failed: ${failed[*]}"
  exit 1
fi
