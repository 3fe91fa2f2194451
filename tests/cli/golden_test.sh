#!/usr/bin/env bash
# golden_test.sh CASES_DIR [I/N | CASE..]: runs the command lines of each case in a folder of its own and compares what they say. I/N: every
# N-th case, from the I-th, of which a tree runs half (tests/draw.awk), and of those that say "one tree in 3" in their first line a sixth.
#
# A case is a text file: comments with #, shell lines with $, then `exit N` for the last of them, then all that stderr said, with
# folders and times replaced. The environment names LUATTN (the program), EXAMPLES, FAKE_NVRTC and FAKE_CUDA. UPDATE=1 rewrites the
# cases with what is said today, to be read before it is committed.
set -u
cases=$(cd "$1" && pwd) here=$(dirname "$0")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C EXAMPLES FAKE_NVRTC FAKE_CUDA
for name in $(env | sed -n 's/^\(LUATTN_[A-Z_]*\)=.*/\1/p'); do [ "$name" = LUATTN_TEST_SEED ] || unset "$name"; done
export ASAN_OPTIONS=allocator_may_return_null=1 # as without ASan
export LUATTN_LIBCUDA=/nonexistent/libcuda.so.1 # no GPU, unless a case says so

# What the shell lines of a case may use.
cat >"$work/functions" <<'FUNCTIONS'
luattn() { "$LUATTN" "$@"; }
# npy FILE DESCR SHAPE BYTES [ORDER]: an array of BYTES zero bytes under that header
npy() {
  local header="{'descr': $2, 'fortran_order': ${5:-False}, 'shape': $3, }"
  while [ $(((10 + ${#header} + 1) % 64)) != 0 ]; do header+=' '; done
  printf "\\x93NUMPY\\x01\\x00\\x$(printf %02x $(((${#header} + 1) % 256)))\\x00%s\n" "$header" >"$1"
  head -c "$4" /dev/zero >>"$1"
}
FUNCTIONS

run_case() { # name
  local file=$cases/$1 folder=$work/$1 status
  mkdir "$folder"
  sed -n 's/^\$ //p' "$file" >"$folder.sh"
  (cd "$folder" && LUATTN_CACHE_DIR=$folder/cache bash -c '. "$0"; . "$1"' "$work/functions" "$folder.sh" >"$folder.out" 2>"$folder.err")
  status=$?
  grep '^[#$]' "$file" >"$folder.got"
  {
    printf 'exit %d\n' "$status"
    sed -e "s|$folder|FOLDER|g" -e "s|$EXAMPLES|EXAMPLES|g" -e "s|$FAKE_NVRTC|FAKE_NVRTC|g" -e 's/[0-9][0-9.]* ms/N ms/g' \
      -e '/^==.*WARNING: AddressSanitizer/d' -e '/^ *#[0-9]/d' \
      -e 's|/[0-9a-f]\{2\}/[0-9a-f]\{32\}|/HASH|g' "$folder.err"
  } >>"$folder.got"
  if [ "${UPDATE:-0}" = 1 ]; then cp "$folder.got" "$file"; fi
  cmp -s "$file" "$folder.got" && return 0
  printf '%s\n' "--- $1"
  diff "$file" "$folder.got"
  return 1
}

here=$(cd "$here" && pwd) failed=0 count=0 left_out=0
case ${1-} in
  [0-9]*/[0-9]*)
    names=$(cd "$cases" && ls | awk -v part="${1%/*}" -v parts="${1#*/}" '(NR - 1) % parts == part')
    all=$(wc -w <<<"$names")
    if [ -n "${LUATTN_TEST_SEED-}" ]; then
      names=$(cd "$cases" && awk 'FNR == 1 { print (/^# one tree in 3: / ? 6 : 2), FILENAME }' $names |
        awk -v seed="$LUATTN_TEST_SEED" -f "$here/../draw.awk" <(echo '0 golden .*') -) || exit 1
    fi
    set -- $names
    left_out=$((all - $#))
    ;;
  '') set -- $(cd "$cases" && ls) ;;
esac
for name in "$@"; do
  run_case "$name" || failed=$((failed + 1))
  count=$((count + 1))
done
printf '%d cases, %d failed, %d not drawn\n' "$count" "$failed" "$left_out"
[ "$failed" = 0 ] && [ "$count" -gt 0 ]
