#!/usr/bin/env bash
# tsan_test.sh ROOT BUILD: runs the tests with several threads again, built with ThreadSanitizer. Of those of the compiler, the ones whose
# compilation has two threads, or that compile in several.
set -euo pipefail
root=$1 build=$2
echo 'int main(void) { return 0; }' >/tmp/luattn-tsan-$$.c
trap 'rm -f /tmp/luattn-tsan-$$.c /tmp/luattn-tsan-$$' EXIT
cc -fsanitize=thread /tmp/luattn-tsan-$$.c -o /tmp/luattn-tsan-$$ 2>/dev/null && /tmp/luattn-tsan-$$ 2>/dev/null ||
  { echo 'skipped: the compiler has no ThreadSanitizer, or it does not run on this machine'; exit 77; }
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DLUATTN_TSAN=ON -DCMAKE_C_FLAGS_RELWITHDEBINFO='-O1 -g' \
  ${LUATTN_CMAKE_OPTIONS:-} >/dev/null
cmake --build "$build" --target engine_test engine_pack_test runtime_{tma_descriptors,work_counters}_test compile_{pipeline,concurrent}_test cpu_threads_test | tail -1
export LUATTN_LIBCUDA=$build/tests/support/libluattn_fake_cuda.so TSAN_OPTIONS=halt_on_error=1
for test in engine/engine engine/engine_pack runtime/runtime_tma_descriptors runtime/runtime_work_counters; do
  "$build/tests/${test}_test"
done
"$build/tests/gen/compile/compile_pipeline_test" 'test_*part*'
"$build/tests/gen/compile/compile_concurrent_test" test_threads
"$build/tests/gen/cpu/cpu_threads_test" 3
