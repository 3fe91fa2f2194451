// entry/entries_fwd.cuh: the small kernels before attention that the spec needs, for the .cu file of any
// image. LUATTN_PART selects what is compiled. 1: only the image's main kernels, which take long to compile.
// 2: the others. Undefined: all.
#pragma once
#include "spec.cuh"
#include "work/sequence.cuh"

// Reading these headers and compiling two empty kernels takes 10 of 300 ms for a forward image.
#if !defined(LUATTN_NO_STATS) && LUATTN_PART != 1
#include "around/before/block_bounds.cuh"
extern "C" __global__ void __launch_bounds__(stats_threads) luattn_stats(const __grid_constant__ ParamsOf<Config> p) {
  aux_stats<Spec>(p);
}
#endif
#if defined(LUATTN_TILE_BITS) && LUATTN_PART != 1
#include "around/before/tile_bits.cuh"
extern "C" __global__ void __launch_bounds__(tile_bits_threads)
    luattn_tile_bits(const __grid_constant__ ParamsOf<Config> p) {
  find_tile_bits<Spec, Config>(p);
}
#include "around/before/tile_order.cuh"
extern "C" __global__ void __launch_bounds__(tile_order_threads)
    luattn_tile_order(const __grid_constant__ ParamsOf<Config> p) {
  find_tile_order<Config>(p, Spec::has_grad);
}
#endif
#if defined(LUATTN_BLOCK_TABLE) && LUATTN_PART != 1
#include "around/before/block_table.cuh"
extern "C" __global__ void __launch_bounds__(block_table_threads)
    luattn_block_table(const __grid_constant__ LuattnBlockTable p) {
  write_block_table(p);
}
#endif
#if defined(LUATTN_TILE_TABLE) && LUATTN_PART != 1
#include "around/before/tile_table.cuh"
extern "C" __global__ void __launch_bounds__(tile_table_threads)
    luattn_tile_table(const __grid_constant__ ParamsOf<Config> p) {
  write_tile_table<Config>(p);
}
#endif
#if defined(LUATTN_APPEND) && LUATTN_PART != 1
#ifdef LUATTN_APPEND_MODS
#include "around/cache/append_modified.cuh"
extern "C" __global__ void __launch_bounds__(append_threads)
    luattn_append(const __grid_constant__ LuattnAppendParams p) {
  append_rows<AppendMods, Config>(p);
}
#else
#include "around/cache/append.cuh"
extern "C" __global__ void __launch_bounds__(append_threads) luattn_append(const __grid_constant__ LuattnAppend p) {
  append_rows<Config>(p);
}
#endif
#endif
#if defined(LUATTN_FAR_PLACES) && LUATTN_PART != 1
#include "around/before/grid_copies.cuh"
extern "C" __global__ void __launch_bounds__(aux_threads) luattn_copy_in(const __grid_constant__ LuattnFarParams p) {
  aux_copy_in<Spec, Config>(p);
}
#ifdef LUATTN_COPY_OUT
extern "C" __global__ void __launch_bounds__(aux_threads) luattn_copy_out(const __grid_constant__ LuattnFarParams p) {
  aux_copy_out<Spec, Config>(p);
}
#endif
#endif
#if !defined(LUATTN_NO_MODS) && LUATTN_PART != 1
#ifdef LUATTN_TANGENTS
#include "around/before/dual_mods.cuh"
extern "C" __global__ void __launch_bounds__(aux_threads) luattn_mod(const __grid_constant__ TangentModParams p) {
  aux_dual_mod<Spec, Config>(p);
}
#else
#include "around/before/input_mods.cuh"
extern "C" __global__ void __launch_bounds__(aux_threads) luattn_mod(const __grid_constant__ ParamsOf<Config> p) {
  aux_mod<Spec, Config>(p);
}
#endif
#endif
