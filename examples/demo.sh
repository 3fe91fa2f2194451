#!/usr/bin/env bash
# demo.sh BUILD_DIR: takes a spec from Lua to a kernel, and checks its results. `./bootstrap demo` runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: demo.sh BUILD_DIR}
luattn=$build/cli/luattn
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export LUATTN_CACHE_DIR=$out/cache
device=() # selects the CPU if there is no GPU, without a message on every command
"$luattn" devices >/dev/null 2>&1 || device=(--device cpu)

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() { printf '\033[2m$ luattn %s\033[0m\n' "$*"; "$luattn" "$@"; }

step '1. A spec: Gemma 2 attention, soft-capped scores in a causal sliding window'
cat examples/gemma2.lua

step '2. The plan for its kernels, bf16, head_dim 128, on Hopper (compute capability 9.0)'
show emit examples/gemma2.lua --stage plan --dtype bf16 --shape 1,8,8,4096,4096,128 --arch sm_90

step '3. Its mask: no array of q_len x kv_len, only a class for each tile (. empty, shaded partial, solid full)'
show mask examples/sliding_window.lua --shape 1,1,1,2048,2048,64

step '4. The CUDA that luattn wrote for one score and its gradient'
"$luattn" emit examples/gemma2.lua --stage spec --dtype bf16 --shape 1,8,8,4096,4096,128 --pass backward |
  sed -n '/Real score(/,/^  }/p; /void grad(/,/^  }/p'

step '5. Compiled by NVRTC for three architectures, forward and backward; then once more, from the cache'
for arch in sm_80 sm_90 sm_120; do
  for pass in forward backward; do
    printf '%-7s %-9s ' $arch $pass
    "$luattn" emit examples/gemma2.lua --stage cubin --dtype bf16 --arch $arch --pass $pass 2>&1 >"$out/$arch.$pass.cubin" | sed -n 1p | tr '\n' ' '
    printf '(%s bytes)\n' "$(stat -c %s "$out/$arch.$pass.cubin")"
  done
done
printf 'sm_80   forward   '
"$luattn" emit examples/gemma2.lua --stage cubin --dtype bf16 --arch sm_80 2>&1 >/dev/null | sed -n 1p | tr '\n' ' '

step '6. Run on arrays: outputs and every gradient as .npy'
show run examples/alibi.lua --device cpu --shape 1,4,2,192,192,32 --backward --out "$out/npy"
ls "$out/npy"

step '7. Is it right? Against plain Lua, one score at a time, and central differences; with a GPU, the kernels too'
for spec in gemma2 alibi attention_sink retention; do show check "examples/$spec.lua" "${device[@]}"; done
show check examples/sliding_window.lua --shape 1,1,1,290,290,8 "${device[@]}" # longer than its window of 256

step '8. What a mistake looks like'
printf 'return attention {\n  name = "oops",\n  score_mod = function(score, b, h, q_idx, kv_idx)\n    if h == 0 then return score end\n    return 2 * score\n  end,\n}\n' > "$out/oops.lua"
show check "$out/oops.lua" || true

if [ ${#device[@]} = 0 ]; then
  step '9. How fast is it here?'
  show bench examples/causal.lua --backward --shape 4,16,16,4096,4096,128
else
  step '9. No GPU here: `luattn bench SPEC` times the kernels where there is one'
fi
