// linear/sm90/rows_left_alone.cuh: a warp of kernels over all chunks at once, for entries that are left alone.
#pragma once
#include "work/linear_work.cuh"

// Gradients of entries that are left alone: 0. AddsHeads: dq and dk have the heads of q and k.
template <class Spec, class Config, bool AddsHeads = false>
struct RowsLeftAlone {
  using Elem = typename Config::Elem;

  const LuattnLinearParams &p;
  const int lane;

  __device__ __forceinline__ void clear(const LuattnTensor &x, const LinearChain<Config> &chain, int head, int t,
                                        int dim) const {
    Elem *const row = static_cast<Elem *>(x.data) + (Config::packed ? 0 : chain.entry * x.batch) + head * x.head +
                      i64(chain.start + t) * x.seq;
    for (int d = lane; d < dim; d += 32) row[d] = Elem{0};
  }
  __device__ __forceinline__ void run() const {
    if (p.state_rows == nullptr) return;
    float *const sums[] = {p.sums.write, p.sums.read, p.sums.query_factor, p.sums.key_factor};
    constexpr int decays = Spec::decay_of == DECAY_CHANNEL ? Config::k_dim : 1;
#pragma unroll 1
    for (RowChunks<Config> at(p); at.more(); at.next()) {
      const LinearChain<Config> chain = at.chain();
      const int first = at.chunk(chain) * LUATTN_CHUNK;
      if (chain.state_row(p) >= 0) continue;
      for (int t = first; t < min_of(first + LUATTN_CHUNK, chain.tokens); ++t) {
        const int hv = chain.site.hv, h = AddsHeads ? chain.site.h : hv;
        if (!AddsHeads || hv % p.group == 0)
          clear(p.dq, chain, h, t, Config::k_dim), clear(p.dk, chain, h, t, Config::k_dim);
        clear(p.dv, chain, hv, t, Config::v_dim);
        for (int d = lane; p.sums.decay != nullptr && d < decays; d += 32)
          p.sums.decay[chain.token(p, t) * decays + d] = 0;
        for (float *sum : sums)
          if (sum != nullptr && lane == 0) sum[chain.token(p, t)] = 0;
      }
    }
  }
};
