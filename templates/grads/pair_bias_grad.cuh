// grads/pair_bias_grad.cuh: gradients of a pair bias whose gradient rows lie a pitch apart
// (contract/grad.cuh), in the sm90 backward kernels. The gradients of adjacent keys are adjacent in memory.
// Many additions are issued, and a branch would make each of them wait. So the code is branch-free and also
// adds zeros; zeros for queries past the end are added to the last query's gradients.
#pragma once
#include "contract/contract.cuh"
#include "grads/pair_bias_stores.cuh"
#include "score/fragment.cuh"

// Returns whether zeros stay zeros when multiplied by the factor. A factor that is not finite would turn them
// into NaN; elements are then added one by one, without the zeros.
LUATTN_FN bool keeps_zeros(const GradRow<float> &line) {
  return (__float_as_uint(line.factor) & 0x7f800000u) != 0x7f800000u;
}
// Returns whether the gradients of `keys` keys, from the row's index on, lie inside the axis, and each four
// of them are aligned to 16 bytes, in this row and in all others.
LUATTN_FN bool lies_in_quads(const GradRow<float> &line, int keys) {
  return line.index >= 0 && line.index <= line.size - keys && line.size % 4 == 0 &&
         reinterpret_cast<u64>(line.row + line.index) % 16 == 0;
}

// Returns whether no other score adds to the gradients of a tile of `rows` queries from q0 on. They are then
// stored instead of added, which is twice as fast. A tile that ends past the queries does not qualify,
// because it also adds zeros to the last query's gradients.
template <class Spec, class Sequence>
LUATTN_FN bool may_store(const LuattnParams &p, const Sequence &site, int q0, int rows) {
  static_assert(Sequence::is_line, "a tile's queries all exist if the last one does");
  return (p.inputs.alone >> Spec::pair_grads_input & 1) != 0 && q0 + rows <= site.q_len;
}

// Adds a warp's dS (16 keys from kv0 on by TileM queries).
template <class Spec, class Config, class Sequence, class Fragment, int TileM>
struct PairSums {
  static_assert(same_type<Fragment, MmaFragment>::value, "lanes exchange octets");
  static_assert(Sequence::is_line, "queries and keys exist up to q_len and kv_len");
  const LuattnParams &p;
  const Sequence &site;
  const typename Spec::Head &head;
  const int q0, kv0, lane;

  // Returns the gradient row of a query of the tile, clamped to the last query.
  __device__ __forceinline__ float *at_query(float *first, i64 pitch, int query) const {
    return first + i64(min_of(query, site.q_len - 1 - q0)) * pitch;
  }

  // Exchanges dS so that each lane has four adjacent keys of one query: four lanes share four keys of two
  // queries, and the same eight keys further on. An instruction then adds to 16 adjacent gradients for each
  // of 8 queries. Returns false if the gradients are not aligned in fours.
  __device__ __forceinline__ bool add_quads(const float (&ds)[TileM / 2]) const {
    GradRow<float> line = Spec::pair_grad_row(p, site, head, q0, kv0);
    // Past the last key dS is zero. The zeros are added to the last 16 gradients of the row, which are
    // then never stored, because nothing orders the store and the addition. A deterministic kernel adds one
    // by one and has no such additions.
    constexpr bool skips_zeros = Config::deterministic;
    if (!skips_zeros) line.index = kv0 < site.kv_len ? line.index : line.size - 16;
    if (line.row == nullptr) return true;
    if (!lies_in_quads(line, 16) || !keeps_zeros(line)) return skips_zeros && kv0 >= site.kv_len;
    if (may_store<Spec>(p, site, q0, TileM) && (skips_zeros || line.index <= line.size - 32))
      put_quads<true>(line, ds);
    else
      put_quads<false>(line, ds);
    return true;
  }
  template <bool Store>
  __device__ __forceinline__ void put_quads(const GradRow<float> &line, const float (&ds)[TileM / 2]) const {
    const bool upper = (lane & 8) != 0, odd = (lane & 4) != 0;
    const int query = Fragment::column(lane) + (Fragment::row(lane) & 1), key = (lane & 8) + lane / 16 * 4;
    float *first = line.row + line.index + key;
#pragma unroll
    for (int octet = 0; octet < TileM / 8; ++octet) {
      float low[2], high[2];  // of the keys of two lanes that differ in bit 3, at queries that differ in bit
                              // 2
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int j = 2 * octet + k;
        const float a = ds[Fragment::element(0, j)], b = ds[Fragment::element(1, j)];
        const float other = __shfl_xor_sync(0xffffffffu, upper ? a : b, 8);
        low[k] = upper ? other : a;
        high[k] = upper ? b : other;
      }
      const float other_low = __shfl_xor_sync(0xffffffffu, odd ? low[0] : low[1], 4),
                  other_high = __shfl_xor_sync(0xffffffffu, odd ? high[0] : high[1], 4);
      const float x[4] = {odd ? other_low : low[0], odd ? low[1] : other_low, odd ? other_high : high[0],
                          odd ? high[1] : other_high};
      put_four<Store>(at_query(first, line.pitch, query + octet * 8), x, line.factor);
    }
  }
  // Adds one by one; clamps an index outside the axis. Returns false if zeros would not stay zeros.
  __device__ __forceinline__ bool add_singles(const float (&ds)[TileM / 2]) const {
    const GradRow<float> line = Spec::pair_grad_row(p, site, head, q0, kv0 + Fragment::row(lane));
    if (!keeps_zeros(line)) return false;
    float *first[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      first[half] = line.row + max_of(min_of(line.index + Fragment::row_of(half), line.size - 1), 0);
#pragma unroll
    for (int j = 0; j < TileM / 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        add_global(at_query(first[half], line.pitch, Fragment::column(lane, j)), ds[Fragment::element(half, j)],
                   line.factor);
    return true;
  }
};
