// linear/sm90/linear_quarters.cuh: shared memory and mbarriers of the kernel that takes chunks by quarters, of 16 tokens, where
// decays differ between channels and updates erase (linear_quarter_kernel.cuh).
//
// | barrier | a phase ends with | who waits |
// | `full` | both warps that have made a quarter's tiles | values |
// | `empty` | a thread of each warp of values that has read them | these two |
// | `v_full` | the bytes of a warpgroup's values of a chunk | it |
#pragma once
#include "linear/sm90/linear_pipeline.cuh"

template <class Spec, class Config>
struct SharedQuarters {
  static constexpr LinearQuartersLayout layout = linear_quarters_layout();
  static constexpr int k_dim = 128, groups = Config::v_block / 64, makers = 8, threads = 32 * makers + 128 * groups,
                       slots = LINEAR_QUARTER_SLOTS, box = LINEAR_BOX, bytes = layout.bytes;
  static constexpr int rows_box = layout.rows / 2, keys_box = layout.keys / 2;  // of 64 channels
  static_assert(LinearSpec<Spec> && Spec::erases && Spec::decay_of == DECAY_CHANNEL && Config::pass == LINEAR_FORWARD);
  static_assert(Config::k_dim % 8 == 0 && Config::k_dim > 64 && Config::k_dim <= 128 && Config::v_dim % 8 == 0);
  static_assert(threads == LINEAR_QUARTER_THREADS && bytes <= LUATTN_SM90_SHARED_BYTES);

  u32 start;  // a multiple of 1024

  // Of a quarter: 16 rows k e^G and 16 rows q e^G, in one box for each 64 channels; k e^(E - G).
  __device__ __forceinline__ u32 rows(int slot) const { return start + slot * layout.slot; }
  __device__ __forceinline__ u32 keys(int slot) const { return rows(slot) + layout.rows; }
  __device__ __forceinline__ u32 inverse(int slot) const {
    return start + layout.at_small + slot * LINEAR_QUARTER_SMALL;
  }
  __device__ __forceinline__ u32 pairs(int slot) const { return inverse(slot) + LINEAR_QUARTER_PAIRS; }
  __device__ __forceinline__ u32 left(int slot) const { return inverse(slot) + LINEAR_QUARTER_LEFT; }
  __device__ __forceinline__ u32 writes(int slot) const { return inverse(slot) + LINEAR_QUARTER_WRITES; }
  __device__ __forceinline__ u32 reads(int slot) const { return writes(slot) + 64; }
  __device__ __forceinline__ u32 queries(int slot) const { return writes(slot) + 128; }
  // Of a quarter of the chunk that is being made: k e^-G, and where that is out of range sums of decays; A's block.
  __device__ __forceinline__ u32 pair_keys(int quarter) const {
    return start + layout.at_pair_keys + quarter * layout.keys;
  }
  __device__ __forceinline__ u32 decays(int quarter) const {
    return start + layout.at_sums + quarter * LINEAR_QUARTER_SUMS;
  }
  __device__ __forceinline__ u32 diagonal(int quarter) const {
    return start + layout.at_diagonals + quarter * LINEAR_QUARTER_DIAGONAL;
  }
  __device__ __forceinline__ u32 flag(int quarter, int half) const {
    return start + layout.at_flags + quarter * 8 + half * 4;
  }
  __device__ __forceinline__ u32 v(int group, int turn) const { return start + layout.at_v + (2 * group + turn) * box; }
  __device__ __forceinline__ u32 o(int group, int turn) const { return start + layout.at_o + (2 * group + turn) * box; }
  __device__ __forceinline__ u32 full(int slot) const { return start + layout.at_barriers + slot * 16; }
  __device__ __forceinline__ u32 empty(int slot) const { return full(slot) + 8; }
  __device__ __forceinline__ u32 v_full(int group, int turn) const { return full(slots) + (2 * group + turn) * 8; }

  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < slots; ++i) barrier_init(full(i), 2), barrier_init(empty(i), 4 * groups);
    for (int i = 0; i < 2 * groups; ++i) barrier_init(v_full(0, i), 1);
    barrier_init_done();
  }
};

// Named barriers: of each warpgroup of values, and of the two warps of each quarter.
enum { QUARTER_VALUES = 1, QUARTER_PAIR = 3 };

// Of a thread. A block has 128 each at its launch.
enum { QUARTER_MAKER_REGISTERS = 112, QUARTER_VALUE_REGISTERS = 144 };
static_assert(QUARTER_MAKER_REGISTERS + QUARTER_VALUE_REGISTERS <= 256, "registers_up would wait for ever");
