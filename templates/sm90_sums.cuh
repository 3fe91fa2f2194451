// sm90_sums.cuh: gradients of parameters that are sums of dS (contract.cuh, SumKind), in the sm90 backward
// kernel.
//
// Sums over scores at one distance are made by the consumers from their registers, a warp its own. For sums
// of rows two warps beside the producer (SummerBwdSm90) read the tile of dS that the consumers leave in
// shared memory for dQ, 64 keys each, rounded as dQ and dK see it, and say by a barrier when they have. All
// sums are made in a fixed order.
#pragma once
#include "mma.cuh"
#include "sm90_bwd.cuh"

// From a warp's dS, 16 keys by Octets * 8 queries as wgmma leaves S^T, to sums along its diagonals.
//
// Lane 4g + t has keys g and g + 8, and of each octet of queries 2t and 2t + 1. Blocks of 8 x 8 lie on
// diagonals of blocks: what a lane has of those is added up first. The 8 distances from 8n on are shared by
// the diagonals of blocks n and n + 1; `part` picks a lane's two columns from either, and adds them. Their
// sums over all lanes that have a distance are made for four such rows of distances at a time, so that lane t
// of a quad ends with row t: one number a lane for 32 distances.
template <int Octets>
struct DistanceSums {
  static constexpr int count = (Octets + 5) / 4;  // numbers a lane, of distances from -16 on
  float x[count];

  // Of the lane's number i, how far its queries are behind its keys, first to first.
  LUATTN_FN int distance(int i, int lane) {
    return i * 32 - 16 + lane % 4 * 8 + ((lane % 4 * 2 - lane / 4) & 7);
  }

  LUATTN_FN float pick(bool first, float a, float b) { return first ? a : b; }
  // Element of column 2t + i on diagonal n of blocks.
  template <class Get>
  LUATTN_FN float on_diagonal(const Get &ds, int n, int i) {
    return (n >= 0 && n < Octets ? ds(n, 0, i) : 0.f) + (n >= -1 && n < Octets - 1 ? ds(n + 1, 1, i) : 0.f);
  }
  template <class Get>
  LUATTN_FN float part(const Get &ds, int n, int lane) {
    const int g = lane / 4, t = lane % 4;
    const float left = pick(2 * t >= g, on_diagonal(ds, n, 0), on_diagonal(ds, n + 1, 0));
    const float right = pick(2 * t + 1 >= g, on_diagonal(ds, n, 1), on_diagonal(ds, n + 1, 1));
    return left + __shfl_sync(0xffffffffu, right, (lane + 4) & 31);
  }
  // p0 .. p3: parts of four rows.
  LUATTN_FN float gather(float p0, float p1, float p2, float p3, int lane) {
    const bool low = lane % 4 < 2, even = lane % 2 == 0;
    p0 = pick(low, p0, p2) + __shfl_xor_sync(0xffffffffu, pick(low, p2, p0), 18);
    p1 = pick(low, p1, p3) + __shfl_xor_sync(0xffffffffu, pick(low, p3, p1), 18);
    return pick(even, p0, p1) +
           __shfl_sync(0xffffffffu, pick(even, p1, p0), (even ? lane + 9 : lane - 9) & 31);
  }
  // ds(octet, half, i): of key g + 8 * half, query 8 * octet + 2t + i.
  template <class Get>
  __device__ __forceinline__ DistanceSums(const Get &ds, int lane) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int n = 4 * i - 2;
      const bool whole = n + 2 < Octets;  // the last rows may be past all queries
      x[i] = gather(part(ds, n, lane), part(ds, n + 1, lane), whole ? part(ds, n + 2, lane) : 0.f,
                    whole ? part(ds, n + 3, lane) : 0.f, lane);
    }
  }
  __device__ __forceinline__ float get(int i) const {
    float y = x[0];
#pragma unroll
    for (int k = 1; k < count; ++k) y = i == k ? x[k] : y;
    return y;
  }
};

template <class Spec, class Config>
struct SummerBwdSm90 {
  using Shared = SharedBwdSm90<Spec, Config>;
  using Elem = typename Config::Elem;
  using Acc = typename Spec::Acc;
  static constexpr int tile_m = Config::tile_m;

  const LuattnParams &p;
  const Shared shared;
  const int group, lane;
  Site site;
  typename Spec::Head head;
  Acc acc;
  unsigned turn;  // q tiles so far: which slots hold this one, and their phase

  __device__ __forceinline__ SummerBwdSm90(const LuattnParams &params, const Shared &s, int g)
      : p(params),
        shared(s),
        group(g),
        lane(int(threadIdx.x % 32)),
        site{s.batch(), 0, params.q_len, params.kv_len},
        acc(zero_acc<Acc>()),
        turn(0) {}

  // The tile of its keys, from query `row` of the tile on, in rows of 128 bytes whose chunks of 16 are
  // permuted as the copy engine and wgmma have it.
  __device__ __forceinline__ u32 rows_from(int row) const {
    return shared.ds(int(turn % Shared::ds_slots)) + u32(group * tile_m * 128 + row * 128);
  }
  // Where a lane points ldmatrix.x4 at the first two chunks of 16 rows; other chunks are an exclusive or
  // away.
  __device__ __forceinline__ u32 block_pointer(u32 rows) const {
    return rows + u32(lane) % 16 * 128 + ((u32(lane) / 16 ^ u32(lane) % 8) << 4);
  }
  // By products with ones.
  __device__ __forceinline__ void sum_rows(int q0) {
    const u32 ones = pack<Elem>(1.f, 1.f);
#pragma unroll 1
    for (int row = 0; row < tile_m; row += 32) {
      const u32 from = block_pointer(rows_from(row));
      float sum[2][4] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (u32 chunk = 0; chunk < 8; chunk += 2) {
          u32 a[4];
          ldmatrix_x4(a, (from ^ chunk << 4) + i * 16 * 128);
          mma_16x8x16<Elem>(sum[i], a, ones, ones);
        }
      const float all = lane % 4 < 2    ? lane % 2 == 0 ? sum[0][0] : sum[0][2]
                           : lane % 2 == 0 ? sum[1][0]
                                        : sum[1][2];
      if (all != 0.f) Spec::add_row(p, site, head, q0 + row + lane % 4 * 8 + lane / 4, all, acc);
    }
  }

  // ---- a q tile, a head ----

  __device__ __forceinline__ TileNote await_tile() {
    const int slot = int(turn % Config::stages);
    barrier_wait(shared.q_full(slot), turn / Config::stages & 1);
    const TileNote note = TileNote::load(shared.note(slot));
    barrier_arrive(shared.empty(slot));
    return note;
  }
  __device__ __forceinline__ void sum_tile(int q0) {
    barrier_wait(shared.ds_full(int(turn % Shared::ds_slots)), turn / Shared::ds_slots & 1);
    sum_rows(q0);
    barrier_arrive(shared.ds_empty(int(turn % Shared::ds_slots)));
    ++turn;
  }
  __device__ __forceinline__ void run() {
    for (TileNote tile = await_tile(); !tile.is_end(); tile = await_tile()) {
      site.h = int(tile.head);
      head = Spec::head(p, site);
#pragma unroll 1
      for (;;) {
        sum_tile(tile.index() * tile_m);
        if (tile.last()) break;
        tile = await_tile();
      }
    }
  }
};
