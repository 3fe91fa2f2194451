// work/recurrent_work.cuh: which part of a linear attention a block of the recurrent family walks over, and where its tokens lie.
#pragma once
#include "contract/linear_hooks.cuh"

// The block's entry and head, and its tokens.
template <class Config>
struct RecurrentPlace {
  LinearSite site;
  int entry, start, tokens;
  i64 row;                  // of states; negative: there is none
  int first_block, blocks;  // of value channels: it has first_block, and each one `blocks` further on

  __device__ __forceinline__ explicit RecurrentPlace(const LuattnLinearParams &p) {
    const int hv = int(blockIdx.x % u32(p.heads_v));
    entry = int(blockIdx.x / u32(p.heads_v));
    start = 0, tokens = p.tokens;
    if constexpr (Config::packed) {
      start = clamped(__ldg(p.cu_seqlens + entry), p.tokens);
      tokens = max_of(clamped(__ldg(p.cu_seqlens + entry + 1), p.tokens) - start, 0);
    }
    site = {entry, hv, hv / p.group, start};
    first_block = int(blockIdx.y), blocks = int(gridDim.y);
    row = p.state_rows == nullptr ? entry : __ldg(p.state_rows + entry);
  }
  // Token t's row of a head.
  template <class Elem>
  __device__ __forceinline__ Elem *at(const LuattnTensor &x, int head, int t) const {
    return static_cast<Elem *>(x.data) + (Config::packed ? 0 : entry) * x.batch + i64(start + t) * x.seq +
           head * x.head;
  }

 private:
  LUATTN_FN int clamped(int row, int total) { return max_of(min_of(row, total), 0); }
};
