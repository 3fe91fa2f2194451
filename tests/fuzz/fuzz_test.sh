#!/usr/bin/env bash
# fuzz_test.sh ROOT BUILD SECONDS [-runs=N] [pack image npy spec calls]: builds these fuzz targets (all of them) with clang and fuzzes each for
# SECONDS, starting from its corpus.
# For each finding, stores the input in BUILD/findings and prints its name. Add the input to the corpus with
# the fix.
set -euo pipefail
root=$1 build=$2 seconds=$3 runs=-runs=-1
shift 3
case ${1-} in -runs=*) runs=$1 && shift ;; esac
[ $# -gt 0 ] || set -- pack image npy spec calls
command -v clang >/dev/null || { echo 'skipped: there is no clang, whose libFuzzer this needs'; exit 77; }
echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return n > 9 && d[0] == d[9]; }' >/tmp/luattn-fuzz-$$.c
trap 'rm -f /tmp/luattn-fuzz-$$.c /tmp/luattn-fuzz-$$' EXIT
clang -fsanitize=fuzzer,address,undefined /tmp/luattn-fuzz-$$.c -o /tmp/luattn-fuzz-$$ 2>/dev/null ||
  { echo 'skipped: clang has no libFuzzer (Debian: libclang-rt-dev)'; exit 77; }

cmake -S "$root" -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=RelWithDebInfo -DLUATTN_FUZZ=ON \
  -DCMAKE_C_FLAGS_RELWITHDEBINFO='-O1 -g1' ${LUATTN_CMAKE_OPTIONS:-} >/dev/null
cmake --build "$build" --target "${@/#/fuzz_}" fuzz_seeds luattn_fake_cuda | tail -1
export LUATTN_LIBCUDA=$build/tests/support/libluattn_fake_cuda.so LUATTN_CACHE_DIR=
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
mkdir -p "$build/findings" "$build/seeds/image" "$build/seeds/pack"
"$build/tests/fuzz/fuzz_seeds" "$build/seeds"

# The slowest inputs, specs that are refused after tracing 4096 paths, take 7 s under ASan; a busy machine may
# take ten times as long.
run() { # target, further seeds
  local name=$1 corpus=$build/corpus/$1 seeds=$build/seeds/$1 status=0
  [ -d "$seeds" ] || seeds=$root/tests/fuzz/corpus/$name
  shift
  mkdir -p "$corpus"
  (cd "$build/findings" && timeout $((seconds + 120)) "$build/tests/fuzz/fuzz_$name" "$corpus" "$seeds" "$@" \
    -max_total_time="$seconds" "$runs" -rss_limit_mb=4096 -malloc_limit_mb=2048 -timeout=100 -artifact_prefix="$name-" \
    -print_final_stats=1 >"$build/$name.log" 2>&1) || status=$?
  printf '%-6s %s executions, %s units in the corpus\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log")" \
    "$(ls "$corpus" | wc -l)"
  [ "$status" = 0 ] && return 0
  tail -25 "$build/$name.log"
  return 1
}
failed=0
for target; do
  more=()
  [ "$target" = npy ] && more=(-max_len=4096)
  [ "$target" = spec ] && more=("$root/examples" "$root/tests/specs" -max_len=3000 -dict="$root/tests/fuzz/spec.dict")
  run "$target" "${more[@]}" || failed=1
done
exit $failed
