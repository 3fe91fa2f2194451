// linear/sm90/linear_scores.cuh: the warpgroup that is a chunk ahead of the states': decays, numbers of tokens, and
//
//     P_ij = scale q_i k_j' w_j e^(G_i - G_j)     for j <= i, rounded
//
// of erasing updates without w, and (I + A)^-1, rounded, where A_ij = r_i k_j' e^(G_i - G_j) for j < i.
#pragma once
#include "arch/mma.cuh"
#include "arch/stmatrix.cuh"
#include "arch/wgmma.cuh"
#include "linear/sm90/linear_inverse.cuh"
#include "ops/math.cuh"
#include "score/fragment.cuh"
#include "source/cp_async_tile.cuh"

// What lane i of a warp has of tokens 2 i and 2 i + 1.
struct TokenPair {
  float sum[2];             // G, to the base of 2
  float query[2];           // scale and q's factor
  float key[2];             // k's factor, of additive updates also w
  float read[2], write[2];  // of erasing updates: r's factor, and w
};

template <class Spec, class Config, bool OnlyState>
struct LinearScores {
  using Shared = SharedLinear<Spec, Config>;
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  static constexpr bool decays = Spec::decay_of != DECAY_NONE;

  const LuattnLinearParams &p;
  const Shared shared;
  const LinearChain<Config> &chain;
  int warp, lane;
  float head_decay;  // of a token, where it is the head's

  __device__ __forceinline__ float decay_of(int t) const {
    if constexpr (Spec::decay_of == DECAY_TOKEN)
      return max_of(float(Spec::decay(p, chain.site, t)), least_decay) * op_log2_e;
    else
      return head_decay;
  }
  // Tokens past the end decay nothing: their rows of q, k and v are 0.
  __device__ __forceinline__ TokenPair tokens(int chunk) const {
    TokenPair x;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = chunk * LUATTN_CHUNK + 2 * lane + i;
      const bool exists = chain.has(t);
      x.sum[i] = 0, x.query[i] = p.scale, x.key[i] = x.write[i] = 1, x.read[i] = 0;
      if (exists) {
        if constexpr (decays) x.sum[i] = decay_of(t);
        if constexpr (Spec::has_query_factor) x.query[i] *= Spec::query_factor(p, chain.site, t);
        if constexpr (Spec::has_key_factor) x.key[i] = Spec::key_factor(p, chain.site, t);
        if constexpr (Spec::has_write) x.write[i] = Spec::write(p, chain.site, t);
        if constexpr (Spec::erases) x.read[i] = x.key[i] * Spec::read(p, chain.site, t);
        if constexpr (Spec::has_write && !Spec::erases) x.key[i] *= x.write[i];
      }
    }
    if constexpr (decays) sum_up(x.sum);
    return x;
  }
  // Turns decays into sums of all decays up to them.
  __device__ __forceinline__ void sum_up(float (&sum)[2]) const {
    float all = sum[0] + sum[1], before = 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, all, step);
      if (lane >= step) all += other;
    }
    before = __shfl_up_sync(0xffffffffu, all, 1);
    sum[1] = all;
    sum[0] += lane > 0 ? before : 0.f;
  }

  __device__ __forceinline__ void tell_numbers(const TokenPair &x, int stage) const {
    const u32 to = shared.numbers(stage);
    const float total = decays ? __shfl_sync(0xffffffffu, x.sum[1], 31) : 0.f;
    float query[2], key[2], read[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float since = decays ? fast_exp2(x.sum[i]) : 1.f;
      query[i] = x.query[i] * since;
      key[i] = decays ? x.key[i] * fast_exp2(total - x.sum[i]) : x.key[i];
      read[i] = x.read[i] * since;
    }
    store_pair(to + OF_QUERY + 8 * lane, query);
    store_pair(to + OF_KEY + 8 * lane, key);
    if constexpr (Spec::erases) {
      store_pair(to + OF_READ + 8 * lane, read);
      store_pair(to + OF_WRITE + 8 * lane, x.write);
    }
    if (decays && lane == 0) store_number(to + OF_CHUNK, fast_exp2(total));
  }

  // ---- products ----

  // s = rows k'
  __device__ __forceinline__ void multiply(float (&s)[32], u32 rows, int stage) const {
    const u64 a = wgmma_operand(rows, 0), b = wgmma_operand(shared.k(stage), 0);
    wgmma_fence();
    if constexpr (Config::k_dim == 128)
      Wgmma<Elem, 64>::first128(s, a, b);
    else
      Wgmma<Elem, 64>::first64(s, a, b);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(s);
  }
  // Applies decays, and factors of rows and columns, to pairs up to the diagonal, or below it. Pairs are selected, never
  // multiplied by 0.
  template <bool Below>
  __device__ __forceinline__ void weigh(float (&s)[32], const TokenPair &x, const float (&of_rows)[2]) const {
    constexpr bool by_column = Spec::has_key_factor || (Spec::has_write && !Spec::erases);
    float row_sum[2], row_factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = 16 * warp + Fragment::row(lane, r);
      row_sum[r] = of_token(x.sum, token), row_factor[r] = of_token(of_rows, token);
    }
    const int behind = 16 * warp + Fragment::row(lane) - Fragment::column(lane);  // of the first row and column
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const int from = Fragment::column(lane) / 2 + Fragment::column_of(j) / 2;
      const float sum = __shfl_sync(0xffffffffu, x.sum[j % 2], from);
      const float factor = by_column ? __shfl_sync(0xffffffffu, x.key[j % 2], from) : 1.f;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float &e = s[Fragment::element(r, j)];
        float weight = row_factor[r] * factor;
        if constexpr (decays) weight *= fast_exp2(row_sum[r] - sum);
        e = Fragment::column_of(j) - 8 * r + Below <= behind ? e * weight : 0.f;
      }
    }
  }
  __device__ __forceinline__ float of_token(const float (&x)[2], int token) const {
    const float even = __shfl_sync(0xffffffffu, x[0], token / 2), odd = __shfl_sync(0xffffffffu, x[1], token / 2);
    return token % 2 == 0 ? even : odd;
  }
  __device__ __forceinline__ void store(const float (&s)[32], u32 to) const {
    const int row = 16 * warp + lane % 16;
#pragma unroll
    for (int n = 0; n < 4; ++n)
      stmatrix_x4(to + box_place(row, 16 * n + lane / 16 * 8), pack<Elem>(s[8 * n], s[8 * n + 1]),
                  pack<Elem>(s[8 * n + 2], s[8 * n + 3]), pack<Elem>(s[8 * n + 4], s[8 * n + 5]),
                  pack<Elem>(s[8 * n + 6], s[8 * n + 7]));
  }

  __device__ __forceinline__ void release(PipelineState<Config::stages> &in) const {
    if (elected()) barrier_arrive(shared.empty(in.stage));
    in.advance();
  }
  // Behind a loop, a wait, after each product: ptxas would shuffle numbers while products hold registers.
  __device__ __forceinline__ void products(const TokenPair &x, PipelineState<Config::stages> &in,
                                           const PipelineState<Shared::pair_stages> &out) {
    float s[32];
    barrier_wait(shared.full(in.stage), in.parity);
    multiply(s, shared.q(in.stage), in.stage);
    if constexpr (!Spec::erases) release(in);
    barrier_wait(shared.read(out.stage), out.parity);
    weigh<false>(s, x, x.query);
    store(s, shared.pairs(out.stage));
    if (warp == 0) tell_numbers(x, out.stage);
    if constexpr (Spec::erases) {
      multiply(s, shared.k(in.stage), in.stage);
      release(in);
      barrier_wait(shared.read(out.stage), out.parity);
      lane = lane_anew();
      weigh<true>(s, x, x.read);
      ChunkInverse<Spec, Config>{shared, thread_anew() / 32 % 4, lane_anew()}.run(s, shared.inverse(out.stage));
    }
  }
  __device__ __forceinline__ void run() {
    PipelineState<Config::stages> in(0);
    PipelineState<Shared::pair_stages> out(1);
    if constexpr (Spec::decay_of == DECAY_HEAD)
      head_decay = max_of(float(Spec::decay(p, chain.site, 0)), least_decay) * op_log2_e;
    float total = 0;
#pragma unroll 1
    for (int chunk = chain.begin; chunk < chain.end; ++chunk) {
      // What derives from the thread's number is computed anew: the loop has no registers to keep it.
      lane = lane_anew();
      const TokenPair x = tokens(chunk);
      if constexpr (OnlyState) {
        barrier_wait(shared.read(out.stage), out.parity);
        if (warp == 0) tell_numbers(x, out.stage);
      } else {
        products(x, in, out);
      }
      fence_async();
      barrier_arrive(shared.told(out.stage));
      out.advance();
      if constexpr (OnlyState) total += __shfl_sync(0xffffffffu, x.sum[1], 31);
    }
    if constexpr (OnlyState && decays)
      if (warp == 0 && lane == 0 && chain.first_value == 0) p.segments.decays[chain.number(p, chain.segment)] = total;
  }
};
