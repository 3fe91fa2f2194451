// around/after/finish_grouped.cuh: luattn_finish of the sm90 family for tensors without a mod: writes dq, dk and dv
// from accumulators in the layout of ResultGroups.
#pragma once
#include "arch/mma.cuh"
#include "arch/wgmma.cuh"
#include "around/after/finish.cuh"
#include "sink/dq_acc.cuh"

struct WrittenGroups : ResultGroups {
  static constexpr bool writes = true;

  // Writes rows of dq, dk or dv. `claim` comes from dq_first_store_of. Tensors of one width share this
  // function, which would otherwise take long to compile.
  template <class Config>
  LUATTN_FN void write(const LuattnParams &p, int which, int b, const u32 *first_store) {
    const bool is_q = which == WHICH_Q, is_v = which == WHICH_V;
    const LuattnTensor to = is_q ? p.tensors.dq : is_v ? p.tensors.dv : p.tensors.dk;
    const float *acc = static_cast<const float *>(is_q ? p.scratch.dq_acc : is_v ? p.scratch.dv_acc : p.scratch.dk_acc);
    using Sequence = SequenceOf<Config>;
    const int heads = is_q ? Sequence::heads(p) : Sequence::heads_kv(p),
              len = is_q ? Sequence::q_end(p) : Sequence::kv_end(p), h = int(blockIdx.y),
              splits = is_q ? 1 : QShare::count(p), row0 = int(blockIdx.x) * aux_tile + int(threadIdx.x) / 32 * 16;
    const float scale = is_v ? 1.f : float(p.scale);
    if (acc == nullptr || to.data == nullptr || h >= heads || row0 >= len) return;
    if constexpr (!Sequence::is_line)
      write_apart<Config>(p, which, acc, heads, len, b, h, row0, splits, scale, first_store);
    else if constexpr (Config::head_dim == Config::head_dim_v)
      write_rows<Config, Config::head_dim>(p, to, acc, heads, len, b, h, row0, splits, scale, first_store);
    else if (is_v)
      write_rows<Config, Config::head_dim_v>(p, to, acc, heads, len, b, h, row0, splits, scale, first_store);
    else
      write_rows<Config, Config::head_dim>(p, to, acc, heads, len, b, h, row0, splits, scale, first_store);
  }

  // Writes rows of dq of one head of a packed entry.
  template <class Config>
  LUATTN_FN void write_packed(const LuattnParams &p, const SequenceOf<Config> &site, int first,
                              const u32 *first_store) {
    constexpr int D = Config::head_dim;
    const int row0 = first + int(threadIdx.x) / 32 * 16;
    if (!site.has_query(p, row0)) return;
    LuattnTensor to = p.tensors.dq;  // from the entry's first row of this head on
    to.data = site.template q_row<GradOf<Config>>(p, to, 0);
    const float *acc = site.template q_acc_head<ResultGroups, D, const float>(p, p.scratch.dq_acc, site.b, site.h);
    write_rows<Config, D>(p, to, acc, 1, site.queries(p), 0, 0, row0, 1, float(p.scale), first_store);
  }

 private:
  // Where rows of queries and of keys are not addressed alike: `to` of write_rows is then the rows of a head. A Sequence
  // knows the call's tensors by their places in `p`.
  template <class Config>
  LUATTN_FN void write_apart(const LuattnParams &p, int which, const float *acc, int heads, int len, int b, int h,
                             int row0, int splits, float scale, const u32 *first_store) {
    using Grad = GradOf<Config>;
    constexpr int D = Config::head_dim, DV = Config::head_dim_v;
    const SequenceOf<Config> site(p, b, h);
    if (which == WHICH_Q)
      write_rows<Config, D>(p, site.template q_rows<Grad>(p, p.tensors.dq), acc, heads, len, b, h, row0, splits, scale,
                            first_store);
    else if (which == WHICH_K)
      write_rows<Config, D>(p, site.template kv_rows<Grad>(p, p.tensors.dk, h), acc, heads, len, b, h, row0, splits,
                            scale, first_store);
    else
      write_rows<Config, DV>(p, site.template kv_rows<Grad>(p, p.tensors.dv, h), acc, heads, len, b, h, row0, splits,
                             scale, first_store);
  }
  // A warp writes 16 rows of a head, 128 channels at a time. It reads them all before it writes the first, to
  // have as many loads in flight as possible. For dk and dv it adds up, in order, the parts of blocks that
  // shared the queries. It also reads q tiles without a first store, and only afterwards their state: waiting
  // for the state first would take longer.
  template <class Config, int D, class To>
  LUATTN_FN void write_rows(const LuattnParams &p, const To &to, const float *acc, int heads, int len, int b, int h,
                            int row0, int splits, float scale, const u32 *first_store) {
    using Grad = GradOf<Config>;
    constexpr int groups = D / 8, padded = groups < 16 ? (groups + 3) / 4 * 4 : 16;
    const int lane = int(threadIdx.x) % 32, rows = head_rows(len);
    const i64 plane = i64(SequenceOf<Config>::batch(p)) * heads * rows * (D / 4);
    const float4 *head = reinterpret_cast<const float4 *>(acc + ((i64(b) * heads + h) * rows + row0) * D);
#pragma unroll 1
    for (int first = 0; first < groups; first += padded) {
      float4 x[padded];
#pragma unroll
      for (int n = 0; n < padded; ++n) x[n] = head[min_of(first + n, groups - 1) * 32 + lane];
      const bool none = first_store != nullptr && *first_store == 0;
#pragma unroll 1
      for (int split = 1; split < splits; ++split) {
#pragma unroll
        for (int n = 0; n < padded; ++n) {
          const float4 more = head[split * plane + min_of(first + n, groups - 1) * 32 + lane];
          x[n].x += more.x, x[n].y += more.y, x[n].z += more.z, x[n].w += more.w;
        }
      }
#pragma unroll
      for (int n = 0; n < padded; n += 4) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if constexpr (sizeof(Grad) == 4) {
            const int row = row0 + half * 8 + lane / 4;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int d = (first + n + i) * 8 + lane % 4 * 2;
              const float2 two = half == 0 ? make_float2(x[n + i].x, x[n + i].y) : make_float2(x[n + i].z, x[n + i].w);
              if constexpr (same_type<To, LuattnTensor>::value) {
                if (row < len && d < D)
                  *reinterpret_cast<float2 *>(row_of<Grad>(to, b, h, row) + d) =
                      none ? make_float2(0.f, 0.f) : make_float2(two.x * scale, two.y * scale);
              } else {
                if (to.has(row) && d < D)
                  *reinterpret_cast<float2 *>(to.row(row) + d) =
                      none ? make_float2(0.f, 0.f) : make_float2(two.x * scale, two.y * scale);
              }
            }
          } else {
            u32 w[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
              w[i] = none        ? 0
                     : half == 0 ? pack<Grad>(x[n + i].x * scale, x[n + i].y * scale)
                                 : pack<Grad>(x[n + i].z * scale, x[n + i].w * scale);
            gather_columns(w, lane);
            const int row = row0 + half * 8 + lane / 4, d = (first + n + lane % 4) * 8;
            if constexpr (same_type<To, LuattnTensor>::value) {
              if (row < len && d < D)
                *reinterpret_cast<uint4 *>(row_of<Grad>(to, b, h, row) + d) = make_uint4(w[0], w[1], w[2], w[3]);
            } else {
              if (to.has(row) && d < D)
                *reinterpret_cast<uint4 *>(to.row(row) + d) = make_uint4(w[0], w[1], w[2], w[3]);
            }
          }
        }
      }
    }
  }
};
