// config.cuh: an example of the file that gen/emit writes for a plan, for editors and for nvcc (-I
// templates/example -I templates). Each constant may be set with -D.
#pragma once
#include "arch/types.cuh"

#ifndef EXAMPLE_ELEM
#define EXAMPLE_ELEM bf16_t
#endif
#ifndef EXAMPLE_HEAD_DIM
#define EXAMPLE_HEAD_DIM 128
#endif
#ifndef EXAMPLE_HEAD_DIM_V
#define EXAMPLE_HEAD_DIM_V EXAMPLE_HEAD_DIM
#endif
#ifndef EXAMPLE_TILE_M
#define EXAMPLE_TILE_M 128
#endif
#ifndef EXAMPLE_TILE_N
#define EXAMPLE_TILE_N 64
#endif
#ifndef EXAMPLE_THREADS
#define EXAMPLE_THREADS 128
#endif
#ifndef EXAMPLE_STAGES
#define EXAMPLE_STAGES 2
#endif
#ifndef EXAMPLE_WARPS_N
#define EXAMPLE_WARPS_N 4
#endif
#ifndef EXAMPLE_CHUNK_M
#define EXAMPLE_CHUNK_M 32
#endif

#ifndef EXAMPLE_DETERMINISTIC
#define EXAMPLE_DETERMINISTIC false
#endif
#ifndef EXAMPLE_DQ_FIRST_STORE
#define EXAMPLE_DQ_FIRST_STORE false
#endif

struct Config {
  using Elem = EXAMPLE_ELEM;
  static constexpr int head_dim = EXAMPLE_HEAD_DIM;
  static constexpr int head_dim_v = EXAMPLE_HEAD_DIM_V;
  static constexpr int tile_m = EXAMPLE_TILE_M;
  static constexpr int tile_n = EXAMPLE_TILE_N;
  static constexpr int threads = EXAMPLE_THREADS;
  static constexpr int stages = EXAMPLE_STAGES;
  static constexpr int sm80_warps_n = EXAMPLE_WARPS_N;
  static constexpr int sm80_chunk_m = EXAMPLE_CHUNK_M;
  static constexpr bool fast_math = sizeof(Elem) == 2;
  static constexpr bool wants_dq = true;
  static constexpr bool wants_dk = true;
  static constexpr bool wants_dv = true;
  static constexpr bool wants_inputs = true;
  static constexpr bool wants_scalars = true;
  static constexpr bool accumulates_dq = sizeof(Elem) == 2;
  static constexpr bool deterministic = EXAMPLE_DETERMINISTIC;
  static constexpr bool dq_first_store = EXAMPLE_DQ_FIRST_STORE;
  static constexpr bool packed = false;
  static constexpr bool paged = false;
  static constexpr bool tile_bits = false;
  static constexpr int offsets = 0;
  static constexpr int dropout_keep = 256;
  static constexpr bool draws = false;
#ifdef EXAMPLE_SHARED_BYTES  // otherwise left open
  static constexpr int shared_bytes = EXAMPLE_SHARED_BYTES;
#endif
};
