#!/bin/sh
# run.sh LIBCUDA NVRTC COMMAND ..: runs a program that needs a GPU on the PTX machine. Where a seed draws tests (tests/drawn.sh), ptxas does
# not run, which takes half of their time: it gets kernels of templates.compile_all, gen.compile and specs_compile. LUATTN_PTX_SASS decides, too.
LUATTN_PTX_NVRTC=${LUATTN_NVRTC-} LUATTN_LIBCUDA=$1 LUATTN_NVRTC=$2 LUATTN_CACHE_DIR=
[ -z "${LUATTN_TEST_SEED-}" ] || : "${LUATTN_PTX_SASS=0}"
export LUATTN_PTX_NVRTC LUATTN_LIBCUDA LUATTN_NVRTC LUATTN_CACHE_DIR LUATTN_PTX_SASS
shift 2
exec "$@"
