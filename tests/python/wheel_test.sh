#!/usr/bin/env bash
# wheel_test.sh WHEEL: what its library needs; and, where it is for this machine, that it installs into a bare venv without a network,
# and computes there on the CPU. Of another machine it computes by qemu, where LUATTN_EMULATED_ROOT names a root of that machine with a Python.
set -euo pipefail
examples=$(cd "$(dirname "$0")/../.." && pwd)/examples
wheel=$(readlink -f "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset LUATTN_LIBRARY PYTHONPATH
fail() { echo "$wheel: $*" >&2; exit 1; }

[[ $wheel =~ py3-none-manylinux_2_17_(x86_64|aarch64).whl$ ]] || fail 'its name has no tag py3-none-manylinux_2_17_MACHINE'
machine=${BASH_REMATCH[1]}
size=$(stat -c %s "$wheel")
[ "$size" -le 4000000 ] || fail "has $size bytes, expected 4000000 at most: a library and a program that has one of its own"
python3 -m zipfile -e "$wheel" "$folder/files"
for name in libluattn libluattn_jax; do
  library=$folder/files/luattn/$name.so
  readelf -h "$library" | grep -qi "Machine:.*${machine/_/.}" || fail "its $name is not for $machine"
  newest=$(readelf -V "$library" | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -n 1)
  [ "$(printf '%s\nGLIBC_2.17\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.17 ] || fail "its $name needs $newest, later than GLIBC_2.17"
  others=$(readelf -d "$library" | grep NEEDED | grep -vE '\[(libc|libm|libdl|libpthread|ld-linux-.*)\.so' || true)
  [ -z "$others" ] || fail "its $name needs others: $others"
done
root=${LUATTN_EMULATED_ROOT:-}
if [ "$machine" = "$(uname -m)" ]; then
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
  cd "$folder"
  python=(venv/bin/python)
  venv/bin/luattn info >info.txt || fail "luattn info: $(cat info.txt)"
  check=(venv/bin/luattn check gemma2)
elif [ -n "$root" ]; then # a root of that machine, with a Python: its programs run by qemu
  cd "$folder/files"
  emulate=("qemu-$machine-static" -L "$root")
  python=(env "PYTHONPATH=$PWD" "${emulate[@]}" "$(ls "$root"/usr/bin/python3.[0-9]*)")
  chmod +x luattn/bin/luattn # zipfile forgets it
  check=("${emulate[@]}" luattn/bin/luattn check "$examples/gemma2.lua")
else
  exit 0
fi
"${check[@]}" --device cpu >check.txt || fail "luattn check gemma2: $(tail -n 3 check.txt)"
"${python[@]}" - "$examples" <<'PYTHON'
import ctypes
import os
import sys

import luattn
from luattn import _capi as capi
from luattn._call import give_back, take_frame
from luattn.engine import engine_of

assert luattn.__file__.startswith((sys.prefix, os.getcwd())), luattn.__file__
gemma2 = luattn.attention(f"{sys.argv[1]}/gemma2.lua")
assert repr(gemma2) == "<luattn.Attention gemma2(q, k, v, cap=50)>", gemma2
assert gemma2.mask(128, 128).rows == [[1, 0], [2, 1]]

# Two queries of one head, without NumPy and torch: the first sees the first key alone, the second the mean of both.
kept = []


def fill(tensor, at):
    numbers, shape = tensor
    kept.append((ctypes.c_int64 * len(shape))(*shape))
    capi.DLTensor.from_address(at).__init__(
        ctypes.addressof(numbers), capi.DLDevice(1, 0), len(shape), capi.DLDataType(2, 32, 1),
        ctypes.cast(kept[-1], ctypes.POINTER(ctypes.c_int64)), None, 0,
    )


def tensor(values, *shape):
    return (ctypes.c_float * len(values))(*values), shape


spec = luattn.attention(f"{sys.argv[1]}/causal.lua")._spec
q, k, v, o = (tensor(x, 1, 1, 2, 2) for x in ([0] * 4, [1] * 4, [1, 2, 3, 4], [0] * 4))
frame = take_frame(spec)
frame.set(fill, (q, k, v, o, tensor([0] * 2, 1, 1, 2), None))
frame.set_numbers(0.0, [])
frame.run(engine_of(capi.CPU), None)
give_back(frame)
assert list(o[0]) == [1, 2, 2, 3], list(o[0])
PYTHON
