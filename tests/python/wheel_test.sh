#!/usr/bin/env bash
# wheel_test.sh WHEEL: installs it into a bare venv without a network, and computes a mask and a plan there.
set -euo pipefail
spec=$(cd "$(dirname "$0")/../.." && pwd)/examples/gemma2.lua
wheel=$(readlink -f "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset LUATTN_LIBRARY PYTHONPATH
size=$(stat -c %s "$wheel")
[ "$size" -le 2000000 ] || { echo "$wheel: has $size bytes, expected 2000000 at most" >&2; exit 1; }
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
cd "$folder"
venv/bin/python - "$spec" <<'PYTHON'
import sys
import luattn

assert luattn.__file__.startswith(sys.prefix), luattn.__file__
gemma2 = luattn.attention(sys.argv[1])
assert repr(gemma2) == "<luattn.Attention gemma2(q, k, v, cap=50)>", gemma2
assert gemma2.mask(128, 128).rows == [[1, 0], [2, 1]]
PYTHON
