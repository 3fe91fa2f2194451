// dq_finish.cuh: luattn_finish of the sm90 family where q has no mod: dq from sums in the order of
// ResultGroups.
#pragma once
#include "dq_acc.cuh"
#include "mma.cuh"
#include "wgmma.cuh"

struct WrittenGroups : ResultGroups {
  static constexpr bool writes = true;

  // A warp writes 16 rows of a head. It reads them all before it writes the first, so that as much as can be
  // is on its way.
  template <class Config>
  LUATTN_FN void write(const LuattnParams &p, int b, int h, int row0) {
    using Elem = typename Config::Elem;
    constexpr int D = Config::head_dim, groups = D / 8, padded = (groups + 3) / 4 * 4;
    const int lane = int(threadIdx.x) % 32, rows = head_rows(p.q_len);
    if (row0 >= rows || p.dq.data == nullptr) return;
    const float scale = float(p.scale);
    const float4 *from =
        reinterpret_cast<const float4 *>(acc_row<D, const float>(p.dq_acc, p.heads, rows, b, h, row0));
    float4 x[padded];
#pragma unroll
    for (int n = 0; n < padded; ++n) x[n] = from[min_of(n, groups - 1) * 32 + lane];
#pragma unroll
    for (int n = 0; n < groups; n += 4) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32 w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          w[i] = half == 0 ? pack<Elem>(x[n + i].x * scale, x[n + i].y * scale)
                           : pack<Elem>(x[n + i].z * scale, x[n + i].w * scale);
        gather_columns(w, lane);
        const int q = row0 + half * 8 + lane / 4, d = (n + lane % 4) * 8;
        if (q < p.q_len && d < D)
          *reinterpret_cast<uint4 *>(row_of<Elem>(p.dq, b, h, q) + d) = make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
  }
};
