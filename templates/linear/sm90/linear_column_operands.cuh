// linear/sm90/linear_column_operands.cuh: what a warp of luattn_linear_columns reads of a chunk in shared memory: its tokens' rows and
// channels, sums of decays, factors, tiles and pairs (linear_columns_sm90.cuh).
#pragma once
#include "arch/wgmma.cuh"
#include "linear/sm90/columns_pipeline.cuh"
#include "score/fragment.cuh"

template <class Spec, class Config>
struct ColumnOperands {
  using Shared = SharedColumns<Spec, Config>;
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  using Tiles = BlockTiles<Elem, Shared::row_bytes, Shared::k_dim / Shared::shares>;
  static constexpr int block = 16, steps = Shared::k_dim / 16 / Shared::shares;  // steps: of a warp, 16 channels each

  const Shared shared;
  const int which, share, lane;  // which block of tokens; of the channels

  __device__ __forceinline__ int warp() const { return share * 4 + which; }
  __device__ __forceinline__ Tiles tiles() const { return {shared.gates(), shared.left(), lane, share * steps * 16}; }
  __device__ __forceinline__ int row(int r) const { return which * block + Fragment::row(lane, r); }
  // Two adjacent channels of each of the warp's tokens: of row number r and column number 2 j.
  __device__ __forceinline__ float2 load_two(int tensor, int i, int r, int j) const {
    const u32 own = own_channels(row(0), 0) + Fragment::column(lane) * 2;
    const u32 two = load_shared(shared.at(tensor) + (own ^ u32(2 * i + j) * 16) + r * 1024);
    return {to_real(Elem{u16(two)}), to_real(Elem{u16(two >> 16)})};
  }
  // The place of the warp's first channels in a row of boxes, and of those `channel` further; its next 8 are at ^ 16, and so on.
  __device__ __forceinline__ u32 own_channels(int row, int channel) const {
    const int first = share * steps * 16;
    return first / 64 * Shared::box + box_place(row, first % 64 + channel);
  }
  __device__ __forceinline__ float2 sums(int row, int step, int j) const {
    return load_pair(shared.gates() + row * Shared::row_bytes + (step * 16 + j * 8 + Fragment::column(lane)) * 4);
  }
  __device__ __forceinline__ float2 left(int what, int of, int step, int j) const {
    return tiles().of(what, of, step * 16 + j * 8 + Fragment::column(lane));
  }
  __device__ __forceinline__ float factor(int what, int r) const {
    return load_number(shared.factors() + what + row(r) * 4);
  }
  // A block of 16 tokens of a tile, turned as B.
  __device__ __forceinline__ void load_tile(u32 (&b)[4], int tile, int of, int step) const {
    const int channel = step * 16 + lane / 16 * 8;
    ldmatrix_x4_turned(
        b, shared.tile(tile) + channel / 64 * Shared::box + box_place(of * block + lane % 16, channel % 64));
  }
  // Gradients of pairs as A operands: of the warp's rows as queries with another block, and turned, as keys.
  __device__ __forceinline__ void load_pairs(u32 (&z)[4], int pairs, int of) const {
    ldmatrix_x4(z, shared.pairs(pairs) + box_place(which * block + lane % 16, of * block + lane / 16 * 8));
  }
  __device__ __forceinline__ void load_pairs_turned(u32 (&z)[4], int pairs, int of) const {
    ldmatrix_x4_turned(
        z, shared.pairs(pairs) + box_place(of * block + lane % 8 + lane / 16 * 8, which * block + lane / 8 % 2 * 8));
  }

  // The warpgroup's channels of a box of rows, as B.
  __device__ __forceinline__ u64 channels_of(u32 box) const {
    const int channel = share * steps * 16;
    return wgmma_operand(box + channel / 64 * Shared::box + channel % 64 * 2, 0);
  }
};
