// sm90/bwd/parameter_grads_sm90.cuh: parameter gradients from sums of dS (contract/grad.cuh), in the sm90
// backward kernel.
//
// Each consumer warp computes its own sums from registers (ParameterSums). Row sums are computed from the dS
// stage in shared memory (RowSums). All sums have a fixed order. In a deterministic kernel, consumers hand
// their distance sums to a warp that adds them (sm90/bwd/distance_grad_writer.cuh).
#pragma once
#include "arch/wgmma_transposed.cuh"
#include "grads/pair_bias_grad.cuh"
#include "grads/parameter_grads.cuh"
#include "score/fragment.cuh"
#include "sm90/bwd/bwd_pipeline.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/mbarrier.cuh"

// Adds a warp's dS of a tile to parameter gradients.
//
// Distance sums are computed along diagonals (DistanceSums). If a whole tile adds to one gradient
// (Spec::same_bucket), one sum serves this tile and the consecutive tiles that follow in the same bucket. If
// the gradients are adjacent in memory, TMA adds the sums, from the warp's dQ staging. Pair biases:
// grads/pair_bias_grad.cuh.
template <class Spec, class Config>
struct ParameterSums {
  using Need = Needs<Spec, Config>;
  using Fragment = MmaFragment;
  using Elem = typename Config::Elem;
  using Acc = typename Spec::Acc;
  static constexpr int tile_m = Config::tile_m;
  LUATTN_FN constexpr bool wants(int kind) { return Need::parameters && (Spec::parameter_sums & kind) != 0; }
  static constexpr bool cols = wants(SUM_COL), distances = wants(SUM_DISTANCE), here = wants(SUM_ELEMENT),
                        linear = wants(SUM_LINEAR);
  static constexpr bool any = cols || distances || here || linear;
  static constexpr bool over_grid = HasAxes<Config>;
  static_assert(SequenceOf<Config>::is_line || !((distances && !over_grid) || linear), "distances lie along lines");
  static constexpr bool same_bucket = distances && Spec::may_be_same_bucket;
  static constexpr bool hands = SharedBwdSm90<Spec, Config>::hands_sums;
  static constexpr bool in_line = distances && Spec::distance_step != 0 && !Config::deterministic;
  // Kinds of sums that read dS in f32, and that read dS rounded to Elem.
  static constexpr bool in_f32 = distances || here, rounded = cols || linear || same_bucket;

  // The warp's position. Passed to each call, because as a member it would keep the consumer out of
  // registers.
  struct At {
    const LuattnParams &p;
    const SequenceOf<Config> &site;
    const typename Spec::Head &head;
    Acc &acc;
    int kv0, lane;
    u32 slab;  // the warp's dQ staging in shared memory
    const SharedBwdSm90<Spec, Config> &shared;
    int stage;  // of Q

    // With `hands`: the row for this warp's sums, which the adding warp reads.
    __device__ __forceinline__ u32 line() const { return shared.line(int(threadIdx.x) / 32 - 4); }

    __device__ __forceinline__ Position kv_of(int half) const {
      return {kv0 + Fragment::row(lane), Fragment::row_of(half)};
    }
  };

  float col[2];
  float same;          // sum over the latest tiles in one bucket
  int same_q;          // first query of the last of them
  int line_first;      // first of the gradients that TMA adds to next, or no_line
  u32 num_handed = 0;  // rows handed over

  __device__ __forceinline__ void enter_head() {
    col[0] = col[1] = same = 0.f;
    same_q = 0;
  }
  __device__ __forceinline__ void leave_head(const At &at) {
    if constexpr (same_bucket && !hands) flush_same(at);
    if constexpr (cols) flush_columns(at);
  }
  __device__ __forceinline__ void flush_columns(const At &at) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = lanes_sum<Fragment::row_lanes>(col[half]);
      const int kv = at.kv_of(half);
      if (Fragment::first_in_row(at.lane) && at.site.reread().has_key(at.p, kv))
        Spec::add_col(at.p, at.site, at.head, kv, sum, at.acc);
    }
  }

  // ---- sums of dS in f32, after masks are applied ----

  __device__ __forceinline__ void add(const At &at, int q0, bool is_same_bucket, const float (&ds)[tile_m / 2]) {
    if constexpr (here) add_pairs(at, q0, ds);
    if constexpr (distances)
      if (!same_bucket || !is_same_bucket) {
        if constexpr (over_grid)
          add_displacements(at, ds);
        else
          add_distances(at, q0, ds);
      }
  }
  // Adds the gradients of a pair bias. If they are not adjacent in memory, adds each one by itself.
  __device__ __forceinline__ void add_pairs(const At &at, int q0, const float (&ds)[tile_m / 2]) {
    if constexpr (Spec::pair_grads_pitched) {
      const PairSums<Spec, Config, SequenceOf<Config>, Fragment, tile_m> pairs{at.p, at.site, at.head,
                                                                               q0,   at.kv0,  at.lane};
      if (pairs.add_quads(ds)) return;
      if constexpr (!Config::deterministic)
        if (pairs.add_singles(ds)) return;
    } else if constexpr (Spec::pair_grads_in_rows) {
      if (add_quads(at, q0, ds)) return;
    }
    add_per_element(at, q0, ds);
  }
  __device__ __forceinline__ void add_per_element(const At &at, int q0, const float (&ds)[tile_m / 2]) {
    const int q_base = opaque(q0 + Fragment::column(at.lane));  // distances are recomputed, not kept from the scores
#pragma unroll
    for (int j = 0; j < Fragment::columns(tile_m); ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        Spec::add_per_element(at.p, at.site, at.head, Position{q_base, Fragment::column_of(j)}, at.kv_of(half),
                              ds[Fragment::element(half, j)], at.acc);
  }

  __device__ __forceinline__ void add_distances(const At &at, int q0, const float (&ds)[tile_m / 2]) {
    using Sums = DistanceSums<tile_m / 8>;
    const Sums sums([&](int octet, int half, int i) { return ds[Fragment::element(half, 2 * octet + i)]; }, at.lane);
    if constexpr (hands) {
      await_line(at);
#pragma unroll
      for (int i = 0; i < Sums::count; ++i)
        store_shared(at.line() + (Sums::distance(i, at.lane) + 16) * 4, __float_as_uint(sums.x[i]));
      return hand_over(at);
    }
    if constexpr (in_line)
      if (line_up(at, q0, sums)) return;
#pragma unroll(Sums::count > 3 ? 1 : Sums::count)  // interleaved if there are few
    for (int i = 0; i < Sums::count; ++i)
      Spec::add_distance(at.p, at.site, at.head, q0 + Sums::distance(i, at.lane), at.kv0, sums.get(i), at.acc);
  }
  __device__ __forceinline__ void add_displacements(const At &at, const float (&ds)[tile_m / 2]) {
#ifdef LUATTN_GRID
    await_line(at);
    DisplacementSums<tile_m / 8>::store(
        [&](int octet, int half, int i) { return ds[Fragment::element(half, 2 * octet + i)]; }, at.line(), at.lane);
    hand_over(at);
#endif
  }
  // Over a grid, of a tile that the mask leaves empty for the consumer.
  __device__ __forceinline__ void skip(const At &at) {
#ifdef LUATTN_GRID
    if constexpr (hands) {
      await_line(at);
      DisplacementSums<tile_m / 8>::store_zeros(at.line(), at.lane);
      hand_over(at);
    }
#endif
  }
  // Waits until the reader has read the row's previous sums, so that the row can be written again.
  __device__ __forceinline__ void await_line(const At &at) const {
    const u32 tiles = Config::stages % 2 == 0 ? u32(at.stage) : num_handed;  // before this one, modulo 2
    barrier_wait(at.shared.sums_empty(), tiles & 1 ^ 1);
  }
  __device__ __forceinline__ void hand_over(const At &at) {
    barrier_arrive(at.shared.sums_full());
    ++num_handed;
  }
  // Writes the sums at distances from -15 to tile_m - 1 to the slab, in the order of their gradients in
  // memory, with zeros up to multiples of 16 bytes on either side. Returns false if a gradient lies outside
  // its axis, or a zero outside the gradient tensor.
  static constexpr int line_wide = tile_m + 15, line_count = (line_wide + 6) / 4 * 4, no_line = int(1u << 31);
  template <class Sums>
  __device__ __forceinline__ bool line_up(const At &at, int q0, const Sums &sums) {
    constexpr int step = Spec::distance_step, below = step > 0 ? 15 : tile_m - 1;
    const GradRow<float> line = Spec::distance_grad_row(at.p, at.site, at.head, q0, at.kv0);
    const int first = line.index - below, lead = int(reinterpret_cast<u64>(line.row + first) / 4 % 4);
    line_first = no_line;
    if (line.row == nullptr) return true;
    if (first < 0 || first > line.size - line_wide || first - lead < -line.before ||
        first - lead + line_count > line.after)
      return false;
    line_first = first - lead;
    bulk_wait_read();
    __syncwarp();
    const u32 zero_at = line_at(at) + (lead + below) * 4;  // of distance 0
#pragma unroll
    for (int i = 0; i < Sums::count; ++i)  // lanes also have distances past both ends, with zero sums
      store_shared(zero_at + step * 4 * Sums::distance(i, at.lane),
                   __float_as_uint(sums.x[i] != 0.f ? sums.x[i] * line.factor : 0.f));
    if (at.lane < 4) store_shared(zero_at - step * 4 * (17 + at.lane), 0);
    return true;
  }
  // The address in the slab, after room for zeros that TMA does not add.
  LUATTN_FN u32 line_at(const At &at) { return at.slab + 64; }
  // Called once the slab's stores are fenced.
  __device__ __forceinline__ void send_line(const At &at) const {
    const GradRow<float> line = Spec::distance_grad_row(at.p, at.site, at.head, 0, 0);
    bulk_add(line.row + line_first, line_at(at), line_count * 4, at.lane == 0 && line_first != no_line);
    bulk_commit();
  }

  // Works as PairSums, but locates each row by itself, so it skips zeros, whose row may not exist. Returns
  // false if a gradient lies outside its axis, or if four of them do not begin at a multiple of 16 bytes.
  __device__ __forceinline__ bool add_quads(const At &at, int q0, const float (&ds)[tile_m / 2]) {
    static_assert(SequenceOf<Config>::is_line, "rows of gradients lie along the keys");
    const GradRow<float> line = Spec::pair_grad_row(at.p, at.site, at.head, q0, at.kv0);
    if (line.row == nullptr) return true;
    if (line.index < 0 || line.index + min_of(16, at.site.kv_end(at.p) - at.kv0) > line.size || line.size % 4 != 0 ||
        reinterpret_cast<u64>(line.row + line.index) % 16 != 0)
      return false;
    const bool upper = (at.lane & 8) != 0, odd = (at.lane & 4) != 0;
    const int query = q0 + Fragment::column(at.lane) + (Fragment::row(at.lane) & 1),
              key = at.kv0 + (at.lane & 8) + at.lane / 16 * 4;
#pragma unroll
    for (int octet = 0; octet < tile_m / 8; ++octet) {
      float low[2], high[2];  // keys of two lanes that differ in bit 3, at queries that
                              // differ in bit 2
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
      add_quad(at, query + octet * 8, key, odd ? other_low : low[0], odd ? low[1] : other_low,
               odd ? other_high : high[0], odd ? high[1] : other_high);
    }
    return true;
  }
  // Adds the gradients of keys kv to kv + 3.
  __device__ __forceinline__ void add_quad(const At &at, int q, int kv, float x0, float x1, float x2, float x3) const {
    if (x0 == 0.f && x1 == 0.f && x2 == 0.f && x3 == 0.f) return;
    const GradRow<float> line = Spec::pair_grad_row(at.p, at.site, at.head, q, kv);
    const float f = line.factor;
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(line.row + line.index)),
                 "f"(x0 * f), "f"(x1 * f), "f"(x2 * f), "f"(x3 * f)
                 : "memory");
  }

  // ---- sums of rounded dS ----

  __device__ __forceinline__ void add_rounded(const At &at, int q0, bool is_same_bucket,
                                              const u32 (&ds)[tile_m / 16][4]) {
    if constexpr (cols || linear) {
      const QuerySums<Elem, tile_m, linear> sums(ds, at.lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (cols) col[half] += sums.sum[half];
        if constexpr (linear)
          Spec::add_linear(at.p, at.site, at.head, q0, at.kv_of(half), sums.sum[half], sums.by_query[half], at.acc);
      }
    }
    if constexpr (same_bucket && hands) {
      if (!is_same_bucket) return;
      const QuerySums<Elem, tile_m, false> sums(ds, at.lane);
      await_line(at);
      store_shared(at.line() + at.lane * 4, __float_as_uint(sums.sum[0] + sums.sum[1]));
      hand_over(at);
    } else if constexpr (same_bucket) {
      if (!is_same_bucket || q0 != same_q + tile_m) flush_same(at);
      if (!is_same_bucket) return;
      const QuerySums<Elem, tile_m, false> sums(ds, at.lane);
      same += sums.sum[0] + sums.sum[1];
      same_q = q0;
    }
  }
  __device__ __forceinline__ void flush_same(const At &at) {
    if (__any_sync(0xffffffffu, same != 0.f)) Spec::add_distance(at.p, at.site, at.head, same_q, at.kv0, same, at.acc);
    same = 0.f;
  }
};

// Row sums of a consumer's part of dS. They are products of the rounded dS in shared memory with ones, issued
// together with dQ's product, and one tile late if dQ is.
template <class Spec, class Config>
struct RowSums {
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  static constexpr bool wanted = Needs<Spec, Config>::parameters && (Spec::parameter_sums & SUM_ROW) != 0;
  float sum[wanted ? 4 : 1];

  // Issues the product. `ds` has 64 rows; their keys are in Boxes boxes that are `across` bytes apart.
  template <int Boxes>
  __device__ __forceinline__ void issue(u32 ds, int across, u32 ones) {
    const u64 a = wgmma_operand(ds, 0), b = u64(128 >> 4) << 16 | ones >> 4;
    WgmmaRowSums<Elem>::template sums64<true>(sum, a, b);
#pragma unroll
    for (int i = 1; i < Boxes; ++i) WgmmaRowSums<Elem>::template sums64<false>(sum, a + (i * across >> 4), b);
  }
  // Adds the sums of the warp's 16 rows from q0 on to memory. `head` belongs to site.h.
  __device__ __forceinline__ void add(const LuattnParams &p, SequenceOf<Config> site, const typename Spec::Head &head,
                                      int h, int q0, int lane, typename Spec::Acc &acc) const {
    // Every column is the sum, so each lane that shares the rows takes another one.
    const int mine = Fragment::lane_in_row(lane), q = q0 + mine * Fragment::row_of(1) + Fragment::row(lane);
    const float all = Fragment::first_in_row(lane) ? sum[Fragment::element(0, 0)] : sum[Fragment::element(1, 0)];
    if (q0 < 0 || !site.reread().has_query(p, q) || Fragment::lane_in_row(lane) >= 2 || all == 0.f) return;
    if (h == site.h) return Spec::add_row(p, site, head, q, all, acc);
    site.h = h;  // the previous head, of the same kv head
    Spec::add_row(p, site, Spec::head(p, site), q, all, acc);
  }
};
