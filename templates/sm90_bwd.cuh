// sm90_bwd.cuh: what the producer and the consumers of the sm90 backward kernel agree on. As sm90.cuh for the
// forward kernel, whose rings and barriers it shares.
#pragma once
#include "aux.cuh"
#include "copy.cuh"
#include "sm90.cuh"
#include "turns.cuh"

// The walk of QTiles (tiles.cuh) for a whole warp, whose lanes classify 32 tiles at a time, over a share of
// the tiles.
template <class Spec, int TileM, int TileN>
struct WarpQTiles {
  int kv0, kv1, base;
  bool ragged;
  u32 present, masked, alike;  // of the tiles base .. base + 31 that are still to come
  Range todo;

  __device__ __forceinline__ WarpQTiles(const LuattnParams &p, const Site &s, int kv_tile, QShare share) {
    kv0 = kv_tile * TileN;
    kv1 = min_of(kv0 + TileN, s.kv_len) - 1;
    ragged = kv0 + TileN > s.kv_len;
    todo = share.of(p, tiles_of(Spec::q_range(p, s, kv0, kv1), s.q_len, TileM), s.h);
    present = masked = alike = 0;
    base = 0;
  }

  __device__ __forceinline__ Tile next(const LuattnParams &p, const Site &s) {
    while (present == 0) {
      if (todo.lo >= todo.hi) return Tile{-1, false};
      base = todo.lo;
      const int tile = base + int(threadIdx.x) % 32, q0 = tile * TileM;
      TileClass c = TILE_EMPTY;
      if (tile < todo.hi) c = class_of<Spec>(p, s, q0, min_of(q0 + TileM, s.q_len) - 1, kv0, kv1);
      present = __ballot_sync(0xffffffffu, c != TILE_EMPTY);
      masked = __ballot_sync(0xffffffffu, c == TILE_PARTIAL || ragged || q0 + TileM > s.q_len);
      if constexpr (Spec::may_be_alike)
        alike = __ballot_sync(0xffffffffu,
                              kv0 < kv1 && Spec::alike(p, s, q0, min_of(q0 + TileM, s.q_len) - 1, kv0, kv1));
      todo.lo += 32;
    }
    const int i = __ffs(int(present)) - 1;
    present &= present - 1;
    return Tile{base + i, ((masked >> i) & 1u) != 0, ((alike >> i) & 1u) != 0};
  }
};

// What the producer tells of a q tile, before it arrives at `q_full`: what Tile says, the q head, and whether
// it is this head's last. END: there are no more.
struct TileNote {
  u32 bits, head;
  LUATTN_FN TileNote of(Tile tile, bool last, int head) {
    return {u32(tile.index) << 3 | u32(tile.alike) << 2 | u32(tile.masked) << 1 | u32(last), u32(head)};
  }
  LUATTN_FN TileNote end() { return {~0u, 0}; }
  __device__ __forceinline__ bool is_end() const { return bits == ~0u; }
  __device__ __forceinline__ int index() const { return int(bits >> 3); }
  __device__ __forceinline__ bool alike() const { return (bits & 4) != 0; }
  __device__ __forceinline__ bool masked() const { return (bits & 2) != 0; }
  __device__ __forceinline__ bool last() const { return (bits & 1) != 0; }

  __device__ __forceinline__ void store(u32 address) const {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(bits), "r"(head) : "memory");
  }
  LUATTN_FN TileNote load(u32 address) {
    TileNote x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.bits), "=r"(x.head) : "r"(address) : "memory");
    return {uniform(x.bits), uniform(x.head)};
  }
};

// Shared memory: K and V of the block; slots for Q and dO, in boxes of 64 channels by tile_m rows; slots for
// dS, in boxes of 64 keys by tile_m queries; each consumer warp's part of dQ in f32, 16 rows in the
// order of dq_acc.cuh; row numbers of each slot; and in the last 256 bytes the barriers and notes.
template <class Spec, class Config>
struct SharedBwdSm90 {
  using Row = typename Spec::Row;
  using BwdRow = typename Spec::BwdRow;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, stages = Config::stages;
  static constexpr bool turns = Needs<Spec, Config>::turns;
  static constexpr int groups = tile_n / 64, warps = groups * 4;  // of consumers
  static constexpr int boxes = ceil_div(Config::head_dim, 64), boxes_v = ceil_div(Config::head_dim_v, 64);
  static constexpr int k_bytes = boxes * tile_n * 128, v_bytes = boxes_v * tile_n * 128;
  static constexpr int q_bytes = boxes * tile_m * 128, do_bytes = boxes_v * tile_m * 128;
  static constexpr int ds_bytes = tile_m * tile_n * 2, dq_bytes = tile_m * boxes * 64 * 4 / warps;
  static constexpr bool has_rows = !__is_empty(Row);
  static constexpr int bwd_bytes = tile_m * int(sizeof(BwdRow)),
                       row_bytes = bwd_bytes + (has_rows ? tile_m * int(sizeof(SharedRow<Row>)) : 0);
  // One slot of dS more than stages, if a block can have it together with 1024 bytes for sums: dQ of a tile
  // then comes a tile later. Without, two.
  static constexpr int most_bytes = 232448, fixed_bytes = Spec::num_acc > 0 ? 1024 : 0;
  static constexpr int other_bytes =
      k_bytes + v_bytes + stages * (q_bytes + do_bytes + row_bytes) + warps * dq_bytes + 15 + 256;
  static constexpr bool lags = other_bytes + (stages + 1) * ds_bytes + fixed_bytes <= most_bytes;
  static constexpr int ds_slots = lags ? stages + 1 : 2;
  static constexpr int at_v = k_bytes, at_q = at_v + v_bytes, at_do = at_q + stages * q_bytes,
                       at_ds = at_do + stages * do_bytes, at_dq = at_ds + ds_slots * ds_bytes,
                       at_rows = at_dq + warps * dq_bytes,
                       at_barriers = (at_rows + stages * row_bytes + 15) / 16 * 16;
  static_assert(tile_m % 64 == 0 && tile_n % 64 == 0 && Config::threads == 128 + 2 * tile_n);
  // A consumer's part of dQ: with tile_m = 128 each of them computes 64 rows, with 64 half of the columns.
  static constexpr bool splits_rows = tile_m == 128;
  static constexpr int dq_cols = splits_rows ? boxes * 64 : boxes * 32;
  // Some parameters' gradients are sums of rows of dS, for which two warps read what consumers share:
  // SummerBwdSm90.
  static constexpr bool sums = Needs<Spec, Config>::parameters && (Spec::sums & SUM_ROW) != 0;
  static constexpr int summers = sums ? 2 * 32 : 0;  // threads
  static_assert(stages * 32 + (sums ? 2 : 1) * ds_slots * 8 + 40 <= 256);

  unsigned char *memory;
  u32 start;  // its address in shared memory, a multiple of 1024

  __device__ __forceinline__ u32 k() const { return start; }
  __device__ __forceinline__ u32 v() const { return start + at_v; }
  __device__ __forceinline__ u32 q(int slot) const { return start + at_q + slot * q_bytes; }
  __device__ __forceinline__ u32 dout(int slot) const { return start + at_do + slot * do_bytes; }
  __device__ __forceinline__ u32 ds(int slot) const { return start + at_ds + slot * ds_bytes; }
  __device__ __forceinline__ u32 dq(int warp) const { return start + at_dq + warp * dq_bytes; }
  __device__ __forceinline__ float *numbers(int slot) const {  // BwdRow::x[i] of row r at [i * tile_m + r]
    return reinterpret_cast<float *>(memory + at_rows + slot * row_bytes);
  }
  __device__ __forceinline__ SharedRow<Row> *rows(int slot) const {
    return reinterpret_cast<SharedRow<Row> *>(memory + at_rows + slot * row_bytes + bwd_bytes);
  }

  __device__ __forceinline__ u32 q_full(int slot) const { return start + at_barriers + slot * 32; }
  __device__ __forceinline__ u32 do_full(int slot) const { return q_full(slot) + 8; }
  __device__ __forceinline__ u32 empty(int slot) const { return q_full(slot) + 16; }
  __device__ __forceinline__ u32 note(int slot) const { return q_full(slot) + 24; }
  __device__ __forceinline__ u32 ds_full(int slot) const { return q_full(stages) + slot * 8; }
  __device__ __forceinline__ u32 kv_full() const { return ds_full(ds_slots); }
  // Of a deterministic kernel: see sm90_turns.cuh.
  __device__ __forceinline__ u32 dq_full() const { return kv_full() + 8; }
  __device__ __forceinline__ u32 dq_empty() const { return kv_full() + 16; }

  // What the block works on. A deterministic kernel's blocks draw it, and leave it in shared memory.
  __device__ __forceinline__ KvBlock *drawn() const {
    return reinterpret_cast<KvBlock *>(memory + at_barriers + stages * 32 + ds_slots * 8 + 24);
  }
  __device__ __forceinline__ int kv_tile() const { return turns ? drawn()->tile : int(blockIdx.x); }
  __device__ __forceinline__ int kv_head() const { return turns ? drawn()->h : int(blockIdx.y); }
  __device__ __forceinline__ int batch(const LuattnParams &p) const {
    return turns ? drawn()->b : int(blockIdx.z) / p.num_splits;
  }
  __device__ __forceinline__ int split(const LuattnParams &p) const {
    return turns ? drawn()->split : int(blockIdx.z) % p.num_splits;
  }
  // Behind what a deterministic kernel keeps here.
  __device__ __forceinline__ u32 ds_empty(int slot) const { return kv_full() + 40 + slot * 8; }

  // Arrivals that end a phase. Every lane that has read a slot's row numbers, or written a Row, arrives for
  // itself: ptxas leaves out a __syncwarp before the arrival of one for all. Summers, too, and ds_empty is
  // theirs.
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < stages; ++i) {
      barrier_init(q_full(i), 1);
      barrier_init(do_full(i), has_rows ? 1 + 32 : 1);
      barrier_init(empty(i), warps * 32 + summers);
    }
    for (int i = 0; i < ds_slots; ++i) {
      barrier_init(ds_full(i), warps);
      if constexpr (sums) barrier_init(ds_empty(i), summers);
    }
    barrier_init(kv_full(), 1);
    if constexpr (turns) {
      barrier_init(dq_full(), warps * 32);
      barrier_init(dq_empty(), 1);
    }
    barrier_init_done();
  }
};
