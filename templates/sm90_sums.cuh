// sm90_sums.cuh: gradients of parameters that are sums of dS (contract.cuh, SumKind), in the sm90 backward
// kernel.
//
// The consumers make them from their registers, a warp its own (ParameterSums), and sums of rows from the
// tile of dS that they leave in shared memory for dQ (RowSums). All sums are made in a fixed order.
// A deterministic kernel's consumers hand theirs at distances to a warp that adds them
// (sm90_sums_writer.cuh).
#pragma once
#include "mma.cuh"
#include "sm90_bwd.cuh"
#include "wgmma_wide.cuh"

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

// Of a warp's dS, 16 keys by TileM queries, rounded for the products that follow: the sum over the queries of
// a key, and, WithQueries, of the query's number in the tile times dS. By products with ones, and with these
// numbers, which the half types have exactly. Lane 4g has those of keys g and g + 8, other lanes zeros.
template <class Elem, int TileM, bool WithQueries>
struct QuerySums {
  float sum[2], by_query[2];

  LUATTN_FN u32 add_pairs(u32 a, u32 b) {
    u32 c;
    if constexpr (same_type<Elem, half_t>::value)
      asm("add.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    else
      asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
  }
  __device__ __forceinline__ QuerySums(const u32 (&ds)[TileM / 16][4], int lane) {
    const int column = lane / 4;
    const float first = float(lane % 4 * 2);
    const u32 ones = pack<Elem>(1.f, 1.f), step = column == 1 ? pack<Elem>(16.f, 16.f) : 0;
    u32 b0 = column == 0 ? ones : 0, b1 = b0;
    if (WithQueries && column == 1)
      b0 = pack<Elem>(first, first + 1.f), b1 = pack<Elem>(first + 8.f, first + 9.f);
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < TileM / 16; ++i) {
      mma_16x8x16<Elem>(c, ds[i], b0, b1);
      if constexpr (WithQueries) b0 = add_pairs(b0, step), b1 = add_pairs(b1, step);
    }
    sum[0] = c[0], by_query[0] = c[1], sum[1] = c[2], by_query[1] = c[3];
  }
};

// What a warp adds to gradients of parameters from its dS of a tile.
//
// Sums at one distance are made along diagonals (DistanceSums). Where their places are one for the whole tile
// (Spec::alike), so they are for the tiles that follow without a gap, as far as they are alike: one sum
// serves them all. Where they lie side by side in memory, the copy engine adds them, from the warp's part of
// shared memory for dQ; where numbers for pairs do, an atomic addition takes four of them.
template <class Spec, class Config>
struct ParameterSums {
  using Need = Needs<Spec, Config>;
  using Elem = typename Config::Elem;
  using Acc = typename Spec::Acc;
  static constexpr int tile_m = Config::tile_m;
  LUATTN_FN constexpr bool wants(int kind) { return Need::parameters && (Spec::sums & kind) != 0; }
  static constexpr bool cols = wants(SUM_COL), distances = wants(SUM_DISTANCE), here = wants(SUM_HERE),
                        linear = wants(SUM_LINEAR);
  static constexpr bool any = cols || distances || here || linear;
  static constexpr bool alike = distances && Spec::may_be_alike;
  static constexpr bool hands = SharedBwdSm90<Spec, Config>::hands_sums;
  static constexpr bool in_line = distances && Spec::distance_step != 0 && !Config::deterministic;
  static constexpr bool in_quads = here && Spec::pairs_in_line;
  // Which read dS in f32, and which rounded.
  static constexpr bool in_f32 = distances || here, rounded = cols || linear || alike;

  // Where the warp is. Handed on to each call: kept here, it would keep the consumer out of registers.
  struct At {
    const LuattnParams &p;
    const Site &site;
    const typename Spec::Head &head;
    Acc &acc;
    int kv0, lane;
    u32 slab;  // its part of shared memory for dQ
    const SharedBwdSm90<Spec, Config> &shared;
    int slot;  // of Q

    // hands: where the warp's sums lie for who adds them.
    __device__ __forceinline__ u32 line() const { return shared.line(int(threadIdx.x) / 32 - 4); }

    __device__ __forceinline__ Position kv_of(int half) const { return {kv0 + lane / 4, half * 8}; }
  };

  float col[2];
  float same;          // of tiles that are alike, the last of which begins
  int same_q;          // here
  int line_first;      // of the places that the copy engine adds to next; no_line: nothing
  u32 num_handed = 0;  // of lines

  __device__ __forceinline__ void enter_head() {
    col[0] = col[1] = same = 0.f;
    same_q = 0;
  }
  __device__ __forceinline__ void leave_head(const At &at) {
    if constexpr (alike && !hands) flush_same(at);
    if constexpr (!cols) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = lanes_sum<4>(col[half]);
      const int kv = at.kv_of(half);
      if (at.lane % 4 == 0 && kv < at.p.kv_len) Spec::add_col(at.p, at.site, at.head, kv, sum, at.acc);
    }
  }

  // ---- in f32, once masks are applied ----

  __device__ __forceinline__ void add(const At &at, int q0, bool is_alike, const float (&ds)[tile_m / 2]) {
    if constexpr (here)
      if (!in_quads || !add_quads(at, q0, ds)) add_here(at, q0, ds);
    if constexpr (distances)
      if (!alike || !is_alike) add_distances(at, q0, ds);
  }
  __device__ __forceinline__ void add_here(const At &at, int q0, const float (&ds)[tile_m / 2]) {
    const int q_base =
        opaque(q0 + at.lane % 4 * 2);  // distances are computed again, not kept since the scores
#pragma unroll
    for (int j = 0; j < tile_m / 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        Spec::add_here(at.p, at.site, at.head, Position{q_base, j / 2 * 8 + j % 2}, at.kv_of(half),
                       ds[j / 2 * 4 + half * 2 + j % 2], at.acc);
  }

  __device__ __forceinline__ void add_distances(const At &at, int q0, const float (&ds)[tile_m / 2]) {
    using Sums = DistanceSums<tile_m / 8>;
    const Sums sums([&](int octet, int half, int i) { return ds[octet * 4 + half * 2 + i]; }, at.lane);
    if constexpr (hands) {
      await_line(at);
#pragma unroll
      for (int i = 0; i < Sums::count; ++i)
        store_shared(at.line() + (Sums::distance(i, at.lane) + 16) * 4, __float_as_uint(sums.x[i]));
      return hand_over(at);
    }
    if constexpr (in_line)
      if (line_up(at, q0, sums)) return;
#pragma unroll(Sums::count > 3 ? 1 : Sums::count)  // beside each other where they are few
    for (int i = 0; i < Sums::count; ++i)
      Spec::add_distance(at.p, at.site, at.head, q0 + Sums::distance(i, at.lane), at.kv0, sums.get(i),
                         at.acc);
  }
  // Until the line's last sums have been read; what has been written there is for who reads it.
  __device__ __forceinline__ void await_line(const At &at) const {
    const u32 tiles = Config::stages % 2 == 0 ? u32(at.slot) : num_handed;  // before this one, modulo 2
    barrier_wait(at.shared.sums_empty(), tiles & 1 ^ 1);
  }
  __device__ __forceinline__ void hand_over(const At &at) {
    barrier_arrive(at.shared.sums_full());
    ++num_handed;
  }
  // Sums at distances from -15 to tile_m - 1 to the slab, as their places lie in memory, with zeros up to
  // multiples of 16 bytes on either side. False: some place lies outside its axis, or a zero outside the
  // gradient.
  static constexpr int line_wide = tile_m + 15, line_count = (line_wide + 6) / 4 * 4, no_line = int(1u << 31);
  template <class Sums>
  __device__ __forceinline__ bool line_up(const At &at, int q0, const Sums &sums) {
    constexpr int step = Spec::distance_step, below = step > 0 ? 15 : tile_m - 1;
    const GradLine<float> line = Spec::distance_line(at.p, at.site, at.head, q0, at.kv0);
    const int first = line.index - below, lead = int(reinterpret_cast<u64>(line.row + first) / 4 % 4);
    line_first = no_line;
    if (line.row == nullptr) return true;
    if (first < 0 || first + line_wide > line.size || first - lead < -line.before ||
        first - lead + line_count > line.after)
      return false;
    line_first = first - lead;
    bulk_wait_read();
    __syncwarp();
    const u32 zero_at = line_at(at) + (lead + below) * 4;  // of distance 0
#pragma unroll
    for (int i = 0; i < Sums::count; ++i)  // lanes have distances past both ends, too, whose sums are zeros
      store_shared(zero_at + step * 4 * Sums::distance(i, at.lane),
                   __float_as_uint(sums.x[i] != 0.f ? sums.x[i] * line.factor : 0.f));
    if (at.lane < 4) store_shared(zero_at - step * 4 * (17 + at.lane), 0);
    return true;
  }
  // In the slab, behind room for zeros that are not needed.
  LUATTN_FN u32 line_at(const At &at) { return at.slab + 64; }
  // Once the slab's stores are fenced.
  __device__ __forceinline__ void send_line(const At &at) const {
    const GradLine<float> line = Spec::distance_line(at.p, at.site, at.head, 0, 0);
    bulk_add(line.row + line_first, line_at(at), line_count * 4, at.lane == 0 && line_first != no_line);
    bulk_commit();
  }

  // Of four lanes that have four keys of two queries in common, and as many eight keys further on, each takes
  // all four of one query: an instruction then adds to 16 neighbours for each of 8 queries. False: some place
  // lies outside its axis, or four of them do not begin at a multiple of 16 bytes.
  __device__ __forceinline__ bool add_quads(const At &at, int q0, const float (&ds)[tile_m / 2]) {
    const GradLine<float> line = Spec::pair_line(at.p, at.site, at.head, q0, at.kv0);
    if (line.row == nullptr) return true;
    if (line.index < 0 || line.index + min_of(16, at.p.kv_len - at.kv0) > line.size || line.size % 4 != 0 ||
        reinterpret_cast<u64>(line.row + line.index) % 16 != 0)
      return false;
    const bool upper = (at.lane & 8) != 0, odd = (at.lane & 4) != 0;
    const int query = q0 + at.lane % 4 * 2 + (at.lane / 4 & 1),
              key = at.kv0 + (at.lane & 8) + at.lane / 16 * 4;
#pragma unroll
    for (int octet = 0; octet < tile_m / 8; ++octet) {
      float low[2], high[2];  // of the keys of two lanes that differ in bit 3, at queries that do in bit 2
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float a = ds[octet * 4 + k], b = ds[octet * 4 + 2 + k];
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
  // Of keys kv to kv + 3.
  __device__ __forceinline__ void add_quad(const At &at, int q, int kv, float x0, float x1, float x2,
                                           float x3) const {
    if (x0 == 0.f && x1 == 0.f && x2 == 0.f && x3 == 0.f) return;
    const GradLine<float> line = Spec::pair_line(at.p, at.site, at.head, q, kv);
    const float f = line.factor;
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                     __cvta_generic_to_global(line.row + line.index)),
                 "f"(x0 * f), "f"(x1 * f), "f"(x2 * f), "f"(x3 * f)
                 : "memory");
  }

  // ---- rounded ----

  __device__ __forceinline__ void add_rounded(const At &at, int q0, bool is_alike,
                                              const u32 (&ds)[tile_m / 16][4]) {
    if constexpr (cols || linear) {
      const QuerySums<Elem, tile_m, linear> sums(ds, at.lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (cols) col[half] += sums.sum[half];
        if constexpr (linear)
          Spec::add_linear(at.p, at.site, at.head, q0, at.kv_of(half), sums.sum[half], sums.by_query[half],
                           at.acc);
      }
    }
    if constexpr (alike && hands) {
      if (!is_alike) return;
      const QuerySums<Elem, tile_m, false> sums(ds, at.lane);
      await_line(at);
      store_shared(at.line() + at.lane * 4, __float_as_uint(sums.sum[0] + sums.sum[1]));
      hand_over(at);
    } else if constexpr (alike) {
      if (!is_alike || q0 != same_q + tile_m) flush_same(at);
      if (!is_alike) return;
      const QuerySums<Elem, tile_m, false> sums(ds, at.lane);
      same += sums.sum[0] + sums.sum[1];
      same_q = q0;
    }
  }
  __device__ __forceinline__ void flush_same(const At &at) {
    if (__any_sync(0xffffffffu, same != 0.f))
      Spec::add_distance(at.p, at.site, at.head, same_q, at.kv0, same, at.acc);
    same = 0.f;
  }
};

// Sums of rows of dS over a consumer's part of it: by products with ones, beside dQ's, of dS as it lies in
// shared memory for that, rounded. They come with dQ, a tile late where that does.
template <class Spec, class Config>
struct RowSums {
  using Elem = typename Config::Elem;
  static constexpr bool wanted = Needs<Spec, Config>::parameters && (Spec::sums & SUM_ROW) != 0;
  float sum[wanted ? 4 : 1];

  // The product; ds: 64 rows, of keys in Boxes boxes that are `across` bytes apart.
  template <int Boxes>
  __device__ __forceinline__ void issue(u32 ds, int across, u32 ones) {
    const u64 a = wgmma_operand(ds, 0), b = u64(128 >> 4) << 16 | ones >> 4;
    WgmmaRowSums<Elem>::template sums64<true>(sum, a, b);
#pragma unroll
    for (int i = 1; i < Boxes; ++i) WgmmaRowSums<Elem>::template sums64<false>(sum, a + (i * across >> 4), b);
  }
  // To memory: of the warp's 16 rows from q0 on. `head` is that of site.h.
  __device__ __forceinline__ void add(const LuattnParams &p, Site site, const typename Spec::Head &head,
                                      int h, int q0, int lane, typename Spec::Acc &acc) const {
    const int q = q0 + lane % 4 * 8 + lane / 4;
    const float all = lane % 4 == 0 ? sum[0] : sum[2];
    if (q0 < 0 || q >= p.q_len || lane % 4 >= 2 || all == 0.f) return;
    if (h == site.h) return Spec::add_row(p, site, head, q, all, acc);
    site.h = h;  // the head before, of the same kv head
    Spec::add_row(p, site, Spec::head(p, site), q, all, acc);
  }
};
