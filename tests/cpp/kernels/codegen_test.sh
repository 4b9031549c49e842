#!/bin/sh
# Looks at the machine code of the files that are compiled for one instruction set (arguments: nm, objdump, object
# files).
#  1. They define no weak symbol: the linker could keep such a copy of an inline function for the whole program, and
#     it would fault on a machine without the instruction set.
#  2. The register-blocked kernels keep their accumulators in registers: nothing wide is stored to the stack. Those on
#     tiles (tile_sums) store no tile and do not touch the stack at all.
#  3. Each multiplies with its own instruction, in the encoding that its machines have.
set -eu
nm=$1
objdump=$2
shift 2
status=0
seen=0
for object in "$@"; do
  forbidden='^$'
  also='' tiles=0
  case "$object" in
    *kernels/avx2.cc.o | *kernels/avx2_split.cc.o) wanted='vpmaddubsw .*ymm' forbidden='vpdpbusd|%zmm|%k[0-7]' ;;
    *kernels/avx2_vnni.cc.o) wanted='\{vex\} vpdpbusd .*ymm' forbidden='%zmm|%k[0-7]|[xy]mm(1[6-9]|[23][0-9])' ;;
    *kernels/avx2_vnni_evex.cc.o) wanted='vpdpbusd .*ymm' forbidden='\{vex\}|%zmm' ;;
    *kernels/avx512_vnni.cc.o) wanted='vpdpbusd .*zmm' ;;
    *kernels/avx512_bf16.cc.o) wanted='vdpbf16ps .*zmm' ;;
    *kernels/amx.cc.o) wanted='tdpbusd .*tmm' also='tdpbf16ps ldtilecfg tilerelease' tiles=12 ;;
    *kernels/amx_emulated.cc.o) wanted='%zmm' forbidden='tdp|tilezero|tileloadd|ldtilecfg' ;;
    *kernels/amx_emulated_avx2.cc.o) wanted='%ymm' forbidden='%zmm|%k[0-7]|[xy]mm(1[6-9]|[23][0-9])' ;;
    *kernels/neon.cc.o) wanted='sdot' forbidden='usdot|smmla' ;;
    *) continue ;;
  esac
  weak=$("$nm" -C --defined-only "$object" | awk '$2 ~ /^[WVwvu]$/')
  if [ -n "$weak" ]; then
    printf '%s defines weak symbols:\n%s\n' "$object" "$weak"
    status=1
  fi
  code=$("$objdump" -dC "$object")
  spills=$(printf '%s\n' "$code" | awk -v tiles=$tiles '
    /^[0-9a-f]+ <.*>:$/ { kernel = $0 ~ /((int8|bf16|score|mix)_tile|[^_]tile)</; sums = $0 ~ /tile_sums<.*AmxTiles/; name = $0 }
    kernel { total++ }
    sums && /[[:space:]]tdp/ { tiles-- }
    sums && (/tilestored/ || /\(%r[sb]p/) { print name ": " $0 }
    kernel && /vmov[a-z0-9]* +%[yz]mm[0-9]+,-?(0x[0-9a-f]+)?\(%r[sb]p/ { print name ": " $0 }
    kernel && /[[:space:]]st[pr][[:space:]]+q[0-9]+,.*\[sp/ { print name ": " $0 }
    END {
      if (total < 100) print "no kernels found: only " total " instructions"
      if (tiles != 0) print "tile_sums multiplies " tiles " times less than is written"
    }')
  if [ -n "$spills" ]; then
    printf '%s spills:\n%s\n' "$object" "$spills"
    status=1
  fi
  printf '%s\n' "$code" | grep -Eq "$wanted" || { echo "$object does not multiply by $wanted"; status=1; }
  for word in $also; do
    printf '%s\n' "$code" | grep -q "$word" || { echo "$object lacks $word"; status=1; }
  done
  if printf '%s\n' "$code" | grep -E "$forbidden" | grep -v '^$' | head -3 | grep .; then
    echo "$object holds instructions that its machines may not have ($forbidden)"
    status=1
  fi
  seen=$((seen + 1))
done
[ "$seen" -gt 0 ] || { echo "no object file of an instruction set was given"; status=1; }
exit $status
