#!/usr/bin/env bash
# pairs_test.sh LUATTN: checks that the kernels of a spec that iterates over a table are the same in every
# run, so that the cache finds them.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/pairs.lua" <<'SPEC'
local weight = { alpha = 0.5, beta = 0.25, gamma = 0.125, delta = 2.0, epsilon = 3.0, zeta = 5.0 }
return attention {
  score_mod = function(score, b, h, q_idx, kv_idx)
    for name, w in pairs(weight) do score = score * w + #name end
    return score
  end,
}
SPEC
for run in 1 2 3 4 5 6; do "$1" emit "$work/pairs.lua" --stage ir >"$work/$run"; done
for run in 2 3 4 5 6; do cmp "$work/1" "$work/$run"; done
[ "$(grep -c ' = mul ' "$work/1")" -ge 5 ] || { echo 'pairs_test: not the IR of this spec'; exit 1; }
echo 'six runs, one IR'
