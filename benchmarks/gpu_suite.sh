#!/usr/bin/env bash
# All measurements and tests on a GPU in one call of under 10 minutes: see gpu_suite.py beside this.
exec "${PYTHON:-python3}" "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/gpu_suite.py" "$@"
