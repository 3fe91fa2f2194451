// linear/sm90/linear_quarter_maker.cuh: what the chain of linear_quarter_chain.cuh takes of a quarter of a chunk, 16 tokens, made
// by two warps. With G the sum of a channel's decays from the quarter's beginning, and E that of all of them:
//
//     q e^G     k e^G     k e^(E - G)     e^E     P = tril(q e^G (k e^-G)')     (I + A)^-1, A = (r / k) stril(k e^G (k e^-G)')
//
// Factors of rows of q and r are for the chain.
//
// A warp has 64 channels of all tokens, a lane two of them, whose sums stay in registers. Then one makes P, the other the inverse.
// k e^-G is out of range where a channel decays by more than a limit: then pairs are of rows as they came, cut into triangles.
// Maps: of a map of the state, which has no queries (linear_quarter_map.cuh).
#pragma once
#include "linear/sm90/linear_inverse.cuh"
#include "linear/sm90/linear_quarters.cuh"
#include "linear/sm90/linear_triangles.cuh"
#include "source/cp_async_tile.cuh"

template <class Spec, class Config, bool Maps>
struct QuarterMaker {
  using Shared = SharedQuarters<Spec, Config>;
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  using Fragment = MmaFragment;
  static constexpr int tokens = LINEAR_QUARTER, row_bytes = 512;
  // To the base of 2: e^70 times keys up to 10^8 is in the range of bf16, and e^7 times keys up to 59 in that of half_t.
  static constexpr float limit = (same_type<Elem, half_t>::value ? 7.f : 70.f) * op_log2_e;
  using Triangles = LinearTriangles<Config, row_bytes, Shared::rows_box>;

  const LuattnLinearParams &p;
  const Shared shared;
  const Chain &chain;
  const int quarter, half, lane;

  __device__ __forceinline__ int channel() const { return half * 64 + 2 * lane; }
  // Which warp of a quarter makes P: in turns, as the other one has more to do, and schedulers have every fourth warp.
  __device__ __forceinline__ bool of_pairs() const { return (half ^ quarter / 2 & 1) == 0; }
  __device__ __forceinline__ bool has_pairs() const { return !Maps || !of_pairs(); }
  __device__ __forceinline__ void sync() const { named_sync(QUARTER_PAIR + quarter, 64); }

  // ---- load ----

  // Factors of token number lane % 16: of rows of q and r, of keys, and w.
  struct Factors {
    float query, read, key, write;
  };
  __device__ __forceinline__ const Elem *row_of(const LuattnTensor &from, int t) const {
    return static_cast<const Elem *>(from.data) + (Config::packed ? 0 : chain.entry * from.batch) +
           chain.site.h * from.head + i64(chain.start + t) * from.seq;
  }
  // The warp's channels of 16 rows, as they come, where tiles of them are made.
  __device__ __forceinline__ void copy_rows(u32 to, const LuattnTensor &from, int first) const {
    constexpr int at_once = 32 / 8;
    const int channel = half * 64 + lane % 8 * 8, row = lane / 8,
              count = channel < Config::k_dim ? chain.tokens - first - row : 0;
    const Elem *at = row_of(from, first + row) + channel;
#pragma unroll
    for (int i = 0; i < tokens; i += at_once, at += at_once * from.seq)
      cp_async_16(to + box_place(row + i, lane % 8 * 8), at, i < count);
  }
  __device__ __forceinline__ void copy(int slot, int first) const {
    const u32 rows = shared.rows(slot) + half * Shared::rows_box;
    copy_rows(rows, p.k, first);
    if constexpr (!Maps) copy_rows(rows + tokens * 128, p.q, first);
    cp_async_commit();
  }
  // Decays of the lane's two channels. Whole: all tokens and channels exist.
  template <bool Whole>
  __device__ __forceinline__ void load_decays(float (&g)[tokens][2], int first) const {
#pragma unroll
    for (int i = 0; i < tokens; ++i)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int t = first + i, d = channel() + n;
        const float x = Whole ? Spec::decay(p, chain.site, t, d)
                              : Spec::decay(p, chain.site, chain.clamped(t), min_of(d, Config::k_dim - 1));
        g[i][n] = Whole || (chain.has(t) && d < Config::k_dim) ? x : 0.f;
      }
  }
  // The same of elements of an input whose channels lie side by side, in pairs; returns whether they do.
  __device__ __forceinline__ bool load_pairs(float (&g)[tokens][2], int first) const {
    if constexpr (DecayHasPlace<Spec>) {
      constexpr i64 most = (1 << 30) / tokens;
      const float *const at = Spec::decay_place(p, chain.site, first, channel());
      const i64 step = Spec::decay_place(p, chain.site, first + 1, channel()) - at;
      const bool in_pairs = Spec::decay_place(p, chain.site, first, channel() + 1) - at == 1 && step % 2 == 0 &&
                            step < most && step > -most && reinterpret_cast<u64>(at) % 8 == 0;
      if (!__all_sync(0xffffffffu, in_pairs)) return false;
      const int apart = int(step) * int(sizeof(float));
#pragma unroll
      for (int i = 0; i < tokens; ++i) {
        const float2 x =
            __ldg(reinterpret_cast<const float2 *>(reinterpret_cast<const unsigned char *>(at) + i64(i) * apart));
        g[i][0] = x.x, g[i][1] = x.y;
      }
      return true;
    }
    return false;
  }
  __device__ __forceinline__ void load_decays(float (&g)[tokens][2], int first) const {
    if (Config::k_dim == Shared::k_dim && chain.has(first + tokens - 1)) {
      if (!load_pairs(g, first)) load_decays<true>(g, first);
    } else {
      load_decays<false>(g, first);
    }
  }
  // They become sums, to the base of 2.
  __device__ __forceinline__ static void sum_up(float (&g)[tokens][2]) {
#pragma unroll
    for (int i = 0; i < tokens; ++i)
#pragma unroll
      for (int n = 0; n < 2; ++n) g[i][n] = decay_within(g[i][n]) * op_log2_e + (i > 0 ? g[max_of(i - 1, 0)][n] : 0.f);
  }
  __device__ __forceinline__ Factors load_factors(int first) const {
    const int at = first + lane % tokens, t = chain.clamped(at);
    const bool has = chain.has(at);
    Factors x = {p.scale, 0, 1, 1};
    if constexpr (Spec::has_query_factor) x.query *= has ? float(Spec::query_factor(p, chain.site, t)) : 1.f;
    if constexpr (Spec::has_key_factor) x.key = has ? float(Spec::key_factor(p, chain.site, t)) : 1.f;
    if constexpr (Spec::has_write) x.write = has ? float(Spec::write(p, chain.site, t)) : 1.f;
    x.read = has ? float(Spec::read(p, chain.site, t)) * x.key : 0.f;
    return x;
  }
  __device__ __forceinline__ static float of_token(float x, int i) { return __shfl_sync(0xffffffffu, x, i); }

  // ---- tiles ----

  // The lane's place in row i of a box of its channels.
  __device__ __forceinline__ u32 place(int i) const {
    const int first = 2 * lane;
    return box_place(i, first) + u32(first % 8 * 2);
  }
  __device__ __forceinline__ static u32 scaled(u32 two, float low, float high) {
    return pack<Elem>(half_of<Elem>(two, 0) * low, half_of<Elem>(two, 1) * high);
  }
  // Rows become tiles in place, some at once. Narrow: pairs are made of tiles.
  template <bool Narrow>
  __device__ __forceinline__ void make_tiles(const float (&sum)[tokens][2], const Factors &factors, int slot) const {
    constexpr int at_once = 8;
    const float(&all)[2] = sum[tokens - 1], left[2] = {fast_exp2(all[0]), fast_exp2(all[1])};
#pragma unroll
    for (int i = 0; i < tokens; i += at_once) {
      const u32 rows = shared.rows(slot) + half * Shared::rows_box;
      u32 q[at_once], k[at_once];
#pragma unroll
      for (int n = 0; n < at_once; ++n) {
        k[n] = load_shared(rows + place(i + n));
        q[n] = Maps ? 0 : load_shared(rows + tokens * 128 + place(i + n));
      }
#pragma unroll
      for (int n = 0; n < at_once; ++n) make_row<Narrow>(i + n, q[n], k[n], sum[i + n], all, left, factors, slot);
    }
    store_pair(shared.left(slot) + channel() * 4, left);
    if (half == 0 && lane < tokens) {
      store_number(shared.writes(slot) + lane * 4, factors.write);
      store_number(shared.reads(slot) + lane * 4, factors.read);
      store_number(shared.queries(slot) + lane * 4, factors.query);
    }
    fence_async();
  }
  template <bool Narrow>
  __device__ __forceinline__ void make_row(int i, u32 q, u32 k, const float (&sum)[2], const float (&all)[2],
                                           const float (&left)[2], const Factors &factors, int slot) const {
    const u32 rows = shared.rows(slot) + half * Shared::rows_box, keys = shared.keys(slot) + half * Shared::keys_box,
              pair_keys = shared.pair_keys(quarter) + half * Shared::keys_box, at = place(i);
    const float since[2] = {fast_exp2(sum[0]), fast_exp2(sum[1])};
    const float by = Spec::has_key_factor ? of_token(factors.key, i) : 1.f;
    if constexpr (!Maps) store_shared(rows + tokens * 128 + at, scaled(q, since[0], since[1]));
    store_shared(rows + at, scaled(k, since[0], since[1]));
    float key[2] = {half_of<Elem>(k, 0) * by, half_of<Elem>(k, 1) * by};
#pragma unroll
    for (int n = 0; n < 2; ++n) key[n] *= fast_exp2(Narrow ? -sum[n] : all[n] - sum[n]);
    if constexpr (Narrow) store_shared(pair_keys + at, pack<Elem>(key[0], key[1]));
    store_shared(keys + at, Narrow ? pack<Elem>(key[0] * left[0], key[1] * left[1]) : pack<Elem>(key[0], key[1]));
  }
  __device__ __forceinline__ void store_sums(const float (&sum)[tokens][2]) const {
    const u32 to = shared.decays(quarter) + channel() * 4;
#pragma unroll
    for (int i = 0; i < tokens; ++i) store_pair(to + i * row_bytes, sum[i]);
  }

  // ---- pairs ----

  // s = rows of r, or of q, times keys.
  __device__ __forceinline__ void multiply(float (&s)[8], int slot) const {
    const u32 a_at = shared.rows(slot) + (of_pairs() ? tokens * 128 : 0) + box_place(lane % 16, lane / 16 * 8),
              b_at = shared.pair_keys(quarter) + box_place(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8);
    float more[8] = {};
#pragma unroll
    for (int step = 0; step < Shared::k_dim / 16; ++step) {
      const u32 turn = u32(step % 4 * 32);  // of swizzled channels
      u32 a[4], b[4];
      ldmatrix_x4(a, (a_at ^ turn) + step / 4 * Shared::rows_box);
      ldmatrix_x4(b, (b_at ^ turn) + step / 4 * Shared::keys_box);
      float(&to)[8] = step % 2 ? more : s;
      mma_16x8x16<Elem>(reinterpret_cast<float(&)[4]>(to[0]), a, b[0], b[1]);
      mma_16x8x16<Elem>(reinterpret_cast<float(&)[4]>(to[4]), a, b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i] += more[i];
  }
  // The same of rows as they came.
  __device__ __forceinline__ void multiply_wide(float (&s)[8], const Factors &factors, int slot) const {
    const u32 keys = shared.rows(slot);
    Triangles{of_pairs() ? keys + tokens * 128 : keys, keys, shared.decays(quarter), 0, lane}.add_block(s);
    if constexpr (Spec::has_key_factor)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float column = of_token(factors.key, Fragment::column(lane, j));
#pragma unroll
        for (int r = 0; r < 2; ++r) s[Fragment::element(r, j)] *= column;
      }
  }
  // 0 above the diagonal, or on it, too; rows have factors.
  template <bool Below>
  __device__ __forceinline__ void select(float (&s)[8], const float (&factor)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float &e = s[Fragment::element(r, j)];
        e = Fragment::column(lane, j) + Below <= Fragment::row(lane, r) ? e * factor[r] : 0.f;
      }
  }
  // Rows of 16 numbers of Elem.
  __device__ __forceinline__ void store_pairs(const float (&s)[8], u32 to) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const int e = Fragment::element(r, j);
        store_shared(to + Fragment::row(lane, r) * 32 + Fragment::column(lane, j) * 2, pack<Elem>(s[e], s[e + 1]));
      }
  }
  // A lane has a column of the inverse; lanes from 16 on have the same ones, and store the rows below.
  __device__ __forceinline__ void store_inverse(const float (&t)[16], u32 to) const {
    const u32 at = to + lane / 16 * 256 + lane % 16 * 2;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const u32 two = pack<Elem>(t[i], t[i + 8]);
      asm volatile("st.shared.b16 [%0], %1;" ::"r"(at + i * 32), "h"(u16(lane < 16 ? two : two >> 16)) : "memory");
    }
  }
  __device__ __forceinline__ void finish(float (&s)[8], int slot) const {
    if (of_pairs()) {
      constexpr float none[2] = {1, 1};
      select<false>(s, none);
      store_pairs(s, shared.pairs(slot));
    } else {
      const ChunkInverse<Spec, Config, Shared> inverse{shared, quarter, lane};
      float t[16];
      const u32 reads = shared.reads(slot) + Fragment::row(lane) * 4;
      const float factor[2] = {load_number(reads), load_number(reads + 32)};
      select<true>(s, factor);
      inverse.store_diagonal(s);
      inverse.substitute(t, quarter);
      store_inverse(t, shared.inverse(slot));
    }
  }

  // ---- a quarter ----

  // Whether e^-E of all channels is in range, by both warps. They are done with the quarter before, then.
  __device__ __forceinline__ bool is_narrow(const float (&all)[2]) const {
    const bool mine = __all_sync(0xffffffffu, all[0] >= -limit && all[1] >= -limit);
    if (lane == 0) store_shared(shared.flag(quarter, half), mine);
    sync();
    return mine && load_shared(shared.flag(quarter, half ^ 1)) != 0;
  }
  __device__ __forceinline__ int slot(int n) const { return n % 2 * 4 + quarter; }
  __device__ __forceinline__ int first(int n) const { return chain.at(n) * LUATTN_CHUNK + quarter * tokens; }
  // Copies rows of chunk number n, if their place is empty already, or waits for that.
  __device__ __forceinline__ bool copy(int n, bool waits) const {
    const u32 empty = shared.empty(slot(n)), parity = u32(n / 2 + 1) & 1;
    if (waits)
      barrier_wait(empty, parity);
    else if (!__all_sync(0xffffffffu, barrier_test(empty, parity)))
      return false;
    copy(slot(n), first(n));
    return true;
  }
  // sum, factors: decays and factors of chunk number n, of the next one then. copied: whether rows are on their way; returns that
  // of the next one.
  __device__ __forceinline__ bool step(float (&sum)[tokens][2], Factors &factors, int n, bool copied) const {
    const bool more = n + 1 < chain.chunks();
    float s[8] = {};
    if (!copied) copy(n, true);
    sum_up(sum);
    cp_async_wait<0>();
    const bool narrow = is_narrow(sum[tokens - 1]);
    if (narrow) {
      make_tiles<true>(sum, factors, slot(n));
    } else {
      store_sums(sum);
      sync();
      if (has_pairs()) multiply_wide(s, factors, slot(n));
      sync();
      make_tiles<false>(sum, factors, slot(n));
    }
    if (more) {
      factors = load_factors(first(n + 1));
      load_decays(sum, first(n + 1));
      copied = copy(n + 1, false);
    }
    sync();
    if (narrow && has_pairs()) multiply(s, slot(n));
    if (has_pairs()) finish(s, slot(n));
    __syncwarp();
    if (elected()) barrier_arrive(shared.full(slot(n)));
    return copied;
  }
  __device__ __forceinline__ void run() const {
    float sum[tokens][2];
    Factors factors = {};
    bool copied = false;
    if (chain.chunks() > 0) factors = load_factors(first(0)), load_decays(sum, first(0));
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n)
      copied = QuarterMaker{p, shared, chain, quarter, half, lane_anew()}.step(sum, factors, n, copied);
  }
};
