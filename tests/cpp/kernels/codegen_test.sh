#!/bin/sh
# Looks at the machine code of the files that are compiled for one instruction set (arguments: object files).
#  1. They define no weak symbol: the linker could keep such a copy of an inline function for the whole program, and
#     it would fault on a machine without the instruction set.
#  2. The register-blocked kernels keep their accumulators in registers: nothing wide is stored to the stack.
set -eu
status=0
seen=0
for object in "$@"; do
  case "$object" in
    *kernels/avx2.cc.o | *kernels/avx512_vnni.cc.o) ;;
    *) continue ;;
  esac
  weak=$(nm -C --defined-only "$object" | awk '$2 ~ /^[WVwvu]$/')
  if [ -n "$weak" ]; then
    printf '%s defines weak symbols:\n%s\n' "$object" "$weak"
    status=1
  fi
  spills=$(objdump -dC "$object" | awk '
    /^[0-9a-f]+ <.*>:$/ { kernel = $0 ~ /(int8_tile|[^_]tile)</; name = $0 }
    kernel { total++ }
    kernel && /vmov[a-z0-9]* +%[yz]mm[0-9]+,-?(0x[0-9a-f]+)?\(%r[sb]p/ { print name ": " $0 }
    END { if (total < 1000) print "no kernels found: only " total " instructions" }')
  if [ -n "$spills" ]; then
    printf '%s spills:\n%s\n' "$object" "$spills"
    status=1
  fi
  seen=$((seen + 1))
done
[ "$seen" -eq 2 ] || { echo "expected 2 object files, found $seen"; status=1; }
exit $status
