#!/usr/bin/env bash
# install_test.sh ROOT BUILD FAKE_CUDA PACK SYSTEM_LUA: uses an installed luattn in a folder outside of the
# tree: the project of docs/install.md by CMake, shared and static; by pkg-config; in C++; the runtime alone.
# Moves the prefix first, because packages can be moved.
set -euo pipefail
root=$1 build=$2 fake_cuda=$3 pack=$4 system_lua=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'install_test: %s\n' "$*" >&2; exit 1; }
has() { [ -n "$(grep "$@")" ]; } # reads all input; with grep -q the writer may fail on a closed pipe

cmake --install "$build" --prefix "$work/built" >/dev/null
mv "$work/built" "$work/prefix"
prefix=$work/prefix
lib=$(dirname "$(find "$prefix" -name 'libluattn.so')")

# the project of docs/install.md, unchanged
mkdir "$work/tiny"
sed -n '/^```cmake$/,/^```$/{/^```/d;p}' "$root/docs/install.md" >"$work/tiny/CMakeLists.txt"
sed -n '/^```c$/,/^```$/{/^```/d;p}' "$root/docs/install.md" >"$work/tiny/tiny.c"
lines=$(cat "$work/tiny/CMakeLists.txt" "$work/tiny/tiny.c" | wc -l)
[ "$lines" -ge 20 ] && [ "$lines" -le 40 ] || fail "docs/install.md's project has $lines lines"
build_tiny() { # folder
  cmake -S "$work/$1" -B "$work/$1/build" -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 &&
    cmake --build "$work/$1/build" >>"$work/log" 2>&1 || { cat "$work/log"; fail "docs/install.md's project does not build ($1)"; }
  [[ $("$work/$1/build/tiny") == 'o[3] = '[0-9].[0-9][0-9][0-9]\ * ]] || fail "docs/install.md's project does not run ($1)"
}
build_tiny tiny
cp -r "$work/tiny" "$work/static" && rm -r "$work/static/build"
sed -i 's/luattn::luattn)/luattn::luattn_static)/' "$work/static/CMakeLists.txt"
build_tiny static
ldd "$work/tiny/build/tiny" | has "$prefix.*libluattn.so.0" || fail "docs/install.md's project does not use the installed library"
! ldd "$work/static/build/tiny" | has libluattn || fail "the static build uses a shared library"

# the transport over NCCL is beside the library, and says what it lacks
printf '%s\n' '#include <stdio.h>' '#include "luattn/nccl.h"' 'int main(void) { luattn_transport t = {sizeof t}; luattn_error e; int comm;' \
  'luattn_nccl_open(&comm, &t, &e); puts(e.message); }' >"$work/nccl.c"
cc -std=c11 "$work/nccl.c" $(PKG_CONFIG_PATH=$lib/pkgconfig pkg-config --cflags --libs luattn) -lluattn_nccl -o "$work/nccl"
LD_LIBRARY_PATH=$lib LUATTN_NCCL=/nonexistent "$work/nccl" | has 'luattn_nccl_open: cannot load /nonexistent: .*LUATTN_NCCL' ||
  fail "libluattn_nccl does not say what it lacks"

# pkg-config with the full library, and with only the runtime, on a fake libcuda
export PKG_CONFIG_PATH=$lib/pkgconfig LD_LIBRARY_PATH=$lib
cc -std=c11 -D_POSIX_C_SOURCE=200809L "$root/examples/use_pack.c" $(pkg-config --cflags --libs luattn_runtime) -o "$work/use_pack"
LUATTN_LIBCUDA=$fake_cuda "$work/use_pack" "$pack" causal | has 'O.* = 0.000000' || fail "use_pack does not run"
! ldd "$work/use_pack" | has -E 'liblua5|libnvrtc|libcuda' || fail "use_pack needs Lua or CUDA"
cc -std=c11 "$root/examples/quickstart.c" $(pkg-config --cflags --libs luattn) -o "$work/quickstart"
LUATTN_LIBCUDA=/nonexistent "$work/quickstart" | has 'CPU: O' || fail "quickstart does not run"
[ "$(pkg-config --modversion luattn)" = "$("$prefix/bin/luattn" --version | cut -d' ' -f2)" ] || fail "versions differ"

# Lua and zstd are built in and not required by the packages, unless the build uses the system's
for name in luattn luattn_runtime; do
  [ "$(pkg-config --print-requires "$name")" = '' ] || fail "$name.pc: has Requires, but its headers need none"
done
if [ "$system_lua" = ON ]; then
  pkg-config --static --libs luattn | has -- '-llua5.4.*-lzstd' || fail "pkg-config --static lacks Lua or zstd"
else
  for name in luattn luattn_runtime; do
    ! pkg-config --static --libs "$name" | has -E -- '-llua5|-lzstd' || fail "pkg-config --static asks for Lua or zstd ($name)"
    [ "$(pkg-config --print-requires-private "$name")" = '' ] || fail "$name.pc: has Requires.private, but all is built in"
  done
  for program in "$work/tiny/build/tiny" "$work/static/build/tiny" "$work/quickstart" "$prefix/bin/luattn"; do
    ! ldd "$program" | has -E 'liblua5|libzstd' || fail "$program: needs the system's Lua or zstd"
  done
  cc -std=c11 "$root/examples/quickstart.c" $(pkg-config --cflags luattn) "$lib/libluattn.a" \
    $(pkg-config --static --libs luattn | sed 's/-lluattn//') -o "$work/quickstart_static"
  LUATTN_LIBCUDA=/nonexistent "$work/quickstart_static" | has 'CPU: O' || fail "quickstart does not run (static)"
fi

# licences
doc=$prefix/share/doc/luattn
cmp -s "$root/LICENSE" "$doc/LICENSE" || fail "LICENSE is not installed"
for name in luattn luattn_runtime; do
  has 'License: Apache-2.0' "$lib/pkgconfig/$name.pc" || fail "$name.pc names no licence"
done
notices=('xxHash' 'Yann Collet' 'THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS')
[ "$system_lua" = ON ] || notices+=('Lua.org, PUC-Rio' 'Permission is hereby granted, free of charge' 'For Zstandard software' 'Yuta Mori')
for notice in "${notices[@]}"; do has "$notice" "$doc/THIRD_PARTY" || fail "THIRD_PARTY lacks '$notice'"; done

# C++
if command -v c++ >/dev/null; then
  (cd "$prefix/include" && printf '#include <%s>\n' luattn/*.h) >"$work/all.cpp"
  echo 'int main() { luattn_error err; luattn_pack *p; return luattn_pack_open("/nonexistent", &p, &err) == LUATTN_IO ? 0 : 1; }' >>"$work/all.cpp"
  c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror "$work/all.cpp" $(pkg-config --cflags --libs luattn_runtime) -o "$work/all"
  "$work/all" || fail "the C++ program does not run"
fi

# without libdlpack-dev, the compiler's error names the missing package
mkdir "$work/bare" && ln -s /usr/include/* "$work/bare" && rm -f "$work/bare/dlpack"
bare=(-nostdinc -isystem "$(cc -print-file-name=include)" -isystem "$work/bare" -isystem "$work/bare/$(cc -print-multiarch)" -I"$prefix/include")
echo '#include <luattn/engine.h>' >"$work/bare.c"
! cc -fsyntax-only "${bare[@]}" "$work/bare.c" 2>"$work/log" || fail "the headers do without dlpack.h"
has 'error.*install libdlpack-dev' <"$work/log" || { cat "$work/log"; fail "the headers do not name libdlpack-dev"; }
printf '#include "%s"\n#include <luattn/engine.h>\n' /usr/include/dlpack/dlpack.h >"$work/bare.c" # program with its own dlpack.h
cc -fsyntax-only "${bare[@]}" "$work/bare.c" || fail "the headers do not take the dlpack.h of the program"

# the manual
page=$prefix/share/man/man1/luattn.1
[ -s "$page" ] || fail "there is no manual page"
for word in pack warm cache LUATTN_CACHE_DIR 'head\\-dim' 'Apache License'; do grep -q -- "$word" "$page" || fail "the manual does not mention $word"; done
if command -v groff >/dev/null; then
  [ -z "$(groff -man -ww -z "$page" 2>&1)" ] || fail "groff warns of the manual page"
fi
"$prefix/bin/luattn" check "$prefix/share/luattn/examples/causal.lua" --device cpu --shape 1,1,1,16,16,8 >/dev/null || fail "the installed luattn does not run"
echo "installed, moved, and used"
