// linear/sm90/linear_column_values.cuh: dv = w dR of a chunk, and dw, the sum over channels of v dR (linear_columns_sm90.cuh): four
// rows of each warp, a lane for 4 channels. Loads of v come first, while others are waited for.
#pragma once
#include "linear/sm90/columns_pipeline.cuh"

template <class Spec, class Config>
struct ColumnValues {
  using Shared = SharedColumns<Spec, Config>;
  using Elem = typename Config::Elem;
  using Tiles = BlockTiles<Elem, Shared::row_bytes, Shared::k_dim>;
  static constexpr int lanes = Shared::v_dim / 4, rows = 32 / lanes, tokens = LUATTN_CHUNK / Shared::warps,
                       loads = tokens / rows;  // lanes: of a row; rows: at once

  const LuattnLinearParams &p;
  const Shared shared;
  const LinearChain<Config> &chain;
  const int chunk, warp, lane;

  __device__ __forceinline__ int channel() const { return lane % lanes * 4; }
  __device__ __forceinline__ int token(int i) const { return warp * tokens + i * rows + lane / lanes; }
  __device__ __forceinline__ int time(int i) const { return chunk * LUATTN_CHUNK + token(i); }
  __device__ __forceinline__ bool has(int i) const { return chain.has(time(i)) && channel() < Config::v_dim; }
  __device__ __forceinline__ i64 place(const LuattnTensor &x, int i) const {
    return (Config::packed ? 0 : chain.entry * x.batch) + chain.site.hv * x.head + i64(chain.start + time(i)) * x.seq +
           channel();
  }
  __device__ __forceinline__ void load(u64 (&v)[loads]) const {
#pragma unroll
    for (int i = 0; i < loads; ++i)
      v[i] =
          has(i)
              ? __ldg(reinterpret_cast<const unsigned long long *>(static_cast<const Elem *>(p.v.data) + place(p.v, i)))
              : 0;
  }
  __device__ __forceinline__ void make_dv(const u64 (&v)[loads]) const {
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      const u64 r = load_four_halves(shared.at(COLUMN_GRAD_VALUES, token(i), channel()) + channel() % 8 * 2);
      const float write = load_number(shared.factors() + FACTOR_WRITE + token(i) * 4);
      float sum = 0;
      if (has(i)) {
        const float by[4] = {write, write, write, write};
#pragma unroll
        for (int n = 0; n < 4; ++n) sum += to_real(Elem{u16(r >> 16 * n)}) * to_real(Elem{u16(v[i] >> 16 * n)});
        *reinterpret_cast<u64 *>(static_cast<Elem *>(p.dv.data) + place(p.dv, i)) = Tiles::scaled(r, by);
      }
#pragma unroll
      for (int n = lanes / 2; n > 0; n /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, n);
      if (p.sums.write != nullptr && channel() == 0 && chain.has(time(i))) p.sums.write[chain.token(p, time(i))] = sum;
    }
  }
};
