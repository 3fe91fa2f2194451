#!/usr/bin/env bash
# offset_loads_test.sh: checks that kernels load offsets in arrays for an entry, not for each score. The environment names
# LUATTN (the program) and EXAMPLES.
set -eu
export LUATTN_CACHE_DIR=

loads() { # spec, pass, main kernel: loads of 32 bits from constant arrays, of which these specs have no others
  "$LUATTN" emit "$EXAMPLES/$1.lua" --stage ptx --arch sm_90a --dtype bf16 --pass "$2" --head-dim 128 --offsets arrays >ptx ||
    { [ "$(grep -c 'libnvrtc' log)" != 0 ] && exit 77; exit 1; }
  awk -v entry="$3(" '/^\.visible \.entry/ { on = index($0, entry) } on' ptx | grep -c 'ld.global.nc.[bsu]32' || true
}

cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
for case in 'alibi backward luattn_dkdv' 'alibi forward luattn_fwd' 'causal backward luattn_dkdv'; do
  # shellcheck disable=SC2086
  n=$(loads $case 2>log) || { code=$?; cat log >&2; exit $code; }
  if [ "$n" -lt 2 ] || [ "$n" -gt 24 ]; then
    echo "$case: loads offsets in $n places, expected 2 to 24" >&2
    exit 1
  fi
  echo "$case: $n"
done
