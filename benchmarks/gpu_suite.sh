#!/usr/bin/env bash
# All measurements and tests on a GPU, without network access, in one call of under 10 minutes: kernels.py, throughput.py
# and the GPU tests, the most important figures first. Results go to $OUT: suite.log, and one JSON file per step, written
# after each part of the step, so that a failure or timeout loses only the rest of the step.
#
#   EMBEDKIT_BUILD=DIR EMBEDKIT_MODELS=DIR EMBEDKIT_TEXTS=FILE OUT=DIR benchmarks/gpu_suite.sh [--dry-run] [STEP...]
#
#   benchmarks/gpu_suite.sh                                      # throughput mpnet kernels hpd tests: at most 560 s
#   benchmarks/gpu_suite.sh throughput-all mpnet-questions lengths          # longer forms
#   benchmarks/gpu_suite.sh kernels-all hpd-all tinybert
#   benchmarks/gpu_suite.sh tune                                            # search for better block sizes
#
#   EMBEDKIT_BUILD   a folder with a wheel of embedkit for this Python (`pip wheel --no-deps -w DIR .`), or with its
#                    compiled _core*.so; without it the core is compiled, which needs pip, g++, cmake, ninja,
#                    pybind11 and scikit-build-core
#   EMBEDKIT_MODELS  a folder with the model folders all-MiniLM-L6-v2 and, optionally, all-mpnet-base-v2
#   EMBEDKIT_TEXTS   texts, .txt, .tsv or .jsonl, optionally .gz; EMBEDKIT_COLUMN names the columns (default: text)
#   EMBEDKIT_STS     optional scored pairs, to measure the quality of each precision: .tsv, optionally .gz, with the
#                    columns sentence1, sentence2, score and optionally task and split (dev is used, else test)
#   PYTHON           default: python3
#
# Requirements: Linux on x86-64 and a CUDA device, torch 2.11 to 2.13 for CUDA 13, triton 3.6 or 3.7, a C compiler and
# Python.h for triton, numpy, scipy, safetensors, tqdm, tokenizers, transformers, sentence-transformers and pytest.
# --dry-run does the same on a CPU, on tiny sizes, with the kernels under Triton's interpreter. EMBEDKIT_SUITE_SECONDS
# (default: 580) is the time limit of one call.
set -euo pipefail
# Resolve relative paths before the first cd, but not the link of a virtual environment's python.
for name in EMBEDKIT_BUILD EMBEDKIT_MODELS EMBEDKIT_TEXTS EMBEDKIT_STS OUT; do
  [ -z "${!name:-}" ] || printf -v "$name" %s "$(realpath -m -- "${!name}")"
done
python=${PYTHON:-python3}
[[ $python != */* ]] || python=$(realpath -s -- "$python")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
# Time limit of each step in seconds. The default steps take 560 s in all; the rest of 580 s is for setting up.
declare -A limits=([throughput]=195 [mpnet]=95 [kernels]=85 [hpd]=65 [tests]=120
  [throughput-all]=280 [mpnet-questions]=130 [lengths]=140 [kernels-all]=180 [hpd-all]=150 [tinybert]=60 [tune]=560)
default=(throughput mpnet kernels hpd tests)
known=("${default[@]}" throughput-all mpnet-questions lengths kernels-all hpd-all tinybert tune)

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
[ ${#steps[@]} -gt 0 ] || steps=("${default[@]}")
[ -n "${OUT:-}" ] || die "set OUT to a folder for the results"
[ -n "${EMBEDKIT_MODELS:-}" ] || die "set EMBEDKIT_MODELS to a folder with all-MiniLM-L6-v2"
minilm=$EMBEDKIT_MODELS/all-MiniLM-L6-v2
mpnet=$EMBEDKIT_MODELS/all-mpnet-base-v2
[ -f "$minilm/model.safetensors" ] || die "no $minilm/model.safetensors"
[ -f "${EMBEDKIT_TEXTS:-}" ] || die "set EMBEDKIT_TEXTS to a file of texts"
[ -z "${EMBEDKIT_STS:-}" ] || [ -f "$EMBEDKIT_STS" ] || die "no file $EMBEDKIT_STS (EMBEDKIT_STS)"
mkdir -p "$OUT"
work=$(mktemp -d)
# A second call appends to the log. At the end, wait for tee, or the last lines are lost.
exec > >(exec tee -a "$OUT/suite.log") 2>&1
tee=$!
trap 'rm -rf "$work"; exec >&- 2>&-; wait "$tee" || true' EXIT

# Never ask the Hub, and find the compiled core without an installation.
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
# Run from another folder: the checkout's embedkit has no compiled core.
cd "$work"
"$python" - "${dry:-}" << 'CHECK' || exit 2
import os
import shutil
import sys
import sysconfig
from importlib import import_module
from pathlib import Path

needed = ["embedkit._core", "numpy", "torch", "triton", "tokenizers", "transformers", "sentence_transformers", "pytest", "scipy"]
missing = []
for name in needed:
    try:
        import_module(name)
    except ImportError as error:
        missing.append(f"{name} ({error})")
if missing:
    sys.exit("gpu_suite.sh: cannot import " + ", ".join(missing))
if not sys.argv[1]:
    # Triton compiles its launchers with a C compiler; check for it now, not in the middle of a step.
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or shutil.which(compiler) is None:
        sys.exit("gpu_suite.sh: no C compiler for triton: install gcc or clang, or set CC")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        sys.exit(f"gpu_suite.sh: no {header} for triton: install the headers of this Python (python3-dev)")
import torch, triton

print(f"python {sys.version.split()[0]}, torch {torch.__version__} (CUDA {torch.version.cuda}), triton {triton.__version__}")
if not sys.argv[1]:
    if not torch.cuda.is_available():
        sys.exit("gpu_suite.sh: no CUDA device; --dry-run does without one")
    print(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
CHECK

# A step gets at most its limit and the time left, so that a slow step does not starve later ones.
total=${EMBEDKIT_SUITE_SECONDS:-580}
parts=1 # of a step, which share its limit
failed=()
run() {
  local step=$1 limit=$((limits[$1] / parts))
  shift
  local left=$((total - SECONDS))
  if [ "$left" -lt 10 ]; then
    echo "=== $step: no time left"
    failed+=("$step")
    return
  fi
  echo "=== $step ($SECONDS s): ${*/#$root\//}"
  if ! timeout -k 10 "$((limit < left ? limit : left))" "$@"; then
    echo "=== $step failed, or ran past its $limit s"
    failed+=("$step")
  fi
}

# The parts of a step become one file: {"part": output of throughput.py}.
merge() {
  local step=$1
  "$python" - "$OUT/$step.json" "$work/$step".*.json << 'MERGE'
import json
import sys
from pathlib import Path

target, *parts = map(Path, sys.argv[1:])
found = {part.name.split(".")[1]: json.loads(part.read_text(encoding="utf-8")) for part in parts}
if found:
    target.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
MERGE
}

threads=$(nproc)
texts=("$EMBEDKIT_TEXTS" --column "${EMBEDKIT_COLUMN:-text}" --threads "$threads" --cache "$work/cache")
kernels=("$python" "$root/benchmarks/kernels.py" --device cuda)
throughput=("$python" "$root/benchmarks/throughput.py" "${texts[@]}")
pytest=("$python" -m pytest -q -c "$root/pyproject.toml" --rootdir "$root" -p no:cacheprovider)
tinybert=layers=4,hidden=312,heads=12,intermediate=1200,pooling=mean
sts=() hpd=()
if [ -n "$dry" ]; then
  kernels+=(--dry-run)
  throughput+=(--device cpu --rounds 1)
  every=(--peers embedkit-fp32) main=("${every[@]}") two=("${every[@]}") own=("${every[@]}")
  many=64 few=32 fewest=16 long=(--lengths 24) mixed=(--lengths 4-32) rows=(--rows "TinyBERT,MiniLM-L6")
  selected=("$root/tests/python/kernels/test_bias_gelu.py" -k "interpreted or gpu")
else
  throughput+=(--device cuda --rounds 3)
  # A peer's process takes about ten seconds to start, and torch.compile more. So one call runs sentence-transformers in
  # all forms that may be fastest, on the questions; the others run its usual form, and on the table's models embedkit only.
  every=(--peers all)
  st=sentence-transformers-cuda
  main=(--peers "embedkit-cuda-bf16,embedkit-cuda-fp16,$st-fp16,$st-flash,$st-compiled")
  two=(--peers "embedkit-cuda-bf16,$st-fp16") own=(--peers embedkit-cuda-bf16)
  # More than one window of 8,192 texts, so that stages overlap; 8,192 texts of 128 tokens are 64 batches.
  many=32768 few=16384 fewest=8192 long=(--lengths 128) mixed=(--lengths 8-256) rows=(--rows "TinyBERT,MiniLM-L6")
  [ ! -f "$mpnet/model.safetensors" ] || hpd=(--mpnet "$mpnet")
  [ -z "${EMBEDKIT_STS:-}" ] || sts=(--sts "$EMBEDKIT_STS")
  # These files only: others need packages that may not be installed.
  selected=("$root/tests/python/kernels" "$root/tests/python/backends/test_cuda.py" -m gpu)
  # Most of the time goes into Triton's compiler, which uses one core per test.
  "$python" -c "import xdist" 2> /dev/null && selected+=(-n 8)
fi
mkdir -p "$work/cache"
for step in "${steps[@]}"; do
  parts=1
  if [[ $step == mpnet* && ! -f $mpnet/model.safetensors ]]; then
    echo "=== $step: left out, no $mpnet"
    continue
  fi
  case $step in
    throughput)
      run throughput "${throughput[@]}" "${main[@]}" --model "$minilm" --limit "$many" --json "$OUT/throughput.json"
      ;;
    throughput-all)
      run throughput-all "${throughput[@]}" "${every[@]}" "${sts[@]}" --model "$minilm" --limit "$many" \
        --json "$OUT/throughput-all.json"
      ;;
    mpnet)
      run mpnet "${throughput[@]}" "${two[@]}" --rounds 2 --model "$mpnet" --limit "$fewest" "${long[@]}" \
        --json "$OUT/mpnet.json"
      ;;
    mpnet-questions)
      run mpnet-questions "${throughput[@]}" "${two[@]}" --model "$mpnet" --limit "$many" \
        --json "$OUT/mpnet-questions.json"
      ;;
    kernels) run kernels "${kernels[@]}" --no-compile --json "$OUT/kernels.json" ;;
    kernels-all) run kernels-all "${kernels[@]}" --json "$OUT/kernels-all.json" ;;
    lengths)
      small=("${throughput[@]}" "${two[@]}" --model "$minilm" --limit "$few")
      parts=2
      run lengths "${small[@]}" "${long[@]}" --json "$work/lengths.long.json"
      run lengths "${small[@]}" "${mixed[@]}" --json "$work/lengths.mixed.json"
      merge lengths
      ;;
    tinybert)
      run tinybert "${throughput[@]}" "${two[@]}" --model "$minilm" --shape "$tinybert" --limit "$many" \
        --json "$OUT/tinybert.json"
      ;;
    hpd)
      run hpd "${throughput[@]}" "${own[@]}" "${rows[@]}" --model "$minilm" --limit "$few" --table hpd \
        --json "$OUT/hpd.json"
      ;;
    hpd-all)
      # The large shapes are too slow for a dry run.
      [ -n "$dry" ] || rows=()
      run hpd-all "${throughput[@]}" "${own[@]}" "${rows[@]}" --model "$minilm" --limit "$many" --table hpd \
        "${hpd[@]}" --json "$OUT/hpd-all.json"
      ;;
    tests) run tests "${pytest[@]}" "${selected[@]}" ;;
    tune) run tune "${kernels[@]}" --tune --no-compile --json "$OUT/tune.json" ;;
  esac
done
echo "=== $SECONDS s; results in $OUT"
if [ ${#failed[@]} -gt 0 ]; then
  echo "=== failed: ${failed[*]}"
  exit 1
fi
