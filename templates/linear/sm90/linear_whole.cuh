// linear/sm90/linear_whole.cuh: where updates erase and entries are not cut, T of each chunk is made beside P, so that no kernel
// comes before, and T does not go through memory: by a warpgroup of its own, of two chunks at once, up to two chunks ahead of the
// values', while the first warpgroup loads chunks, makes numbers of tokens, and P.
//
// Blocks of 16 x 16 above the diagonal of P and of T are 0 from the beginning on, and no warp computes them.
#pragma once
#include "linear/sm90/linear_numbers.cuh"
#include "linear/sm90/linear_producer.cuh"
#include "linear/sm90/linear_scores.cuh"
#include "linear/sm90/linear_solver.cuh"

template <class Config>
struct WholeConfig : Config {
  static constexpr bool makes_inverse = true;
  static constexpr int stages = LINEAR_WHOLE_KEY_STAGES;
};

// What both warpgroups do.
template <class Spec, class Config>
struct WholeRole {
  using Shared = SharedLinear<Spec, Config>;
  using Elem = typename Config::Elem;

  const LuattnLinearParams &p;
  const LuattnTensorMaps &maps;
  const Shared shared;
  const LinearChain<Config> &chain;
  const int warp;
  int lane;
  PipelineState<Config::stages> in{0};
  PipelineState<Shared::number_stages> of_tokens{0};
  PipelineState<Shared::pair_stages> out{1};

  __device__ __forceinline__ void clear(u32 from, int bytes) const {
#pragma unroll 1
    for (int i = int(threadIdx.x % 128) * 16; i < bytes; i += 128 * 16) store_shared_16(from + i, 0, 0, 0, 0);
  }
  // s = rows k', under way
  __device__ __forceinline__ void begin(float (&s)[32], u32 rows) const {
    const u64 a = wgmma_operand(rows, 0), b = wgmma_operand(shared.k(in.stage), 0);
    wgmma_fence();
    if constexpr (Shared::k_dim == 128)
      Wgmma<Elem, 64>::first128(s, a, b);
    else
      Wgmma<Elem, 64>::first64(s, a, b);
    wgmma_commit();
  }
  __device__ __forceinline__ void await_numbers() const {
    barrier_wait(shared.numbers_full(of_tokens.stage), of_tokens.parity);
  }
  __device__ __forceinline__ void finish(float (&s)[32]) const {
    wgmma_wait<0>();
    wgmma_arrived(s);
  }
  template <bool OfQueries>
  __device__ __forceinline__ BlockWeights<Spec, Config, OfQueries> weights() const {
    return {shared.numbers(of_tokens.stage), warp, lane};
  }
  // Of a chunk: its keys, and numbers of its tokens.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (elected()) barrier_arrive(shared.empty(in.stage)), barrier_arrive(shared.numbers_empty(of_tokens.stage));
    in.advance(), of_tokens.advance();
  }
};

// The warpgroup that makes T, of two chunks at once.
template <class Spec, class Config>
struct WholeInverses : WholeRole<Spec, Config> {
  using Base = WholeRole<Spec, Config>;
  using Base::shared, Base::chain, Base::warp, Base::lane, Base::in, Base::out;
  using typename Base::Elem, typename Base::Shared;
  static constexpr int barrier = 1 + Shared::groups;  // behind those of o's stores
  static_assert(Shared::pair_stages == 2);            // a pair of chunks has both

  __device__ __forceinline__ void sync() const { named_sync(barrier, 128); }
  __device__ __forceinline__ ChunkSolver<Elem> solver() const {
    return {shared.solver(), shared.made_inverse(0), barrier, warp, lane};
  }
  // What r' k of tokens is multiplied by, of the lane's rows.
  __device__ __forceinline__ void load_reads(float (&reads)[2]) const {
    const u32 at = shared.numbers(this->of_tokens.stage) + (16 * warp + MmaFragment::row(lane)) * 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reads[r] = load_number(at + OF_READ_ROW + r * 32);
      if constexpr (Shared::has_column_factor) reads[r] *= load_number(at + OF_COLUMN + r * 32);
    }
  }
  // Whether r' k of each token of the warp's, whose block is s, lies in [0, 1], but for roundings of keys to Elem.
  __device__ __forceinline__ bool is_tame(const float (&s)[8], const float (&reads)[2]) const {
    const int token = MmaFragment::row(lane);
    bool good = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float even = s[MmaFragment::element(r, 2 * r)], odd = s[MmaFragment::element(r, 2 * r + 1)];
      const float x = (token % 2 == 0 ? even : odd) * reads[r];
      good = good & (x >= 0) & (x <= 1.0625f);
    }
    return __all_sync(0xffffffffu, good | (token / 2 != MmaFragment::column(lane) / 2));
  }
  __device__ __forceinline__ u32 words() const { return shared.solver() + 2 * LINEAR_SOLVER_CHUNK; }
  // A' of a chunk, of which T is made; whether the warp's tokens are tame. Numbers that wait for no product are made beside it.
  __device__ __forceinline__ bool take(int which, bool both) {
    float a[32], reads[2], own[8];
    float2 columns[2][2];  // of blocks 1 and 2: there are no registers for more
    this->begin(a, shared.k(in.stage));
    if (which == 0) sync();  // all have read what T of the chunks before was made of
    this->await_numbers();
    const auto weights = this->template weights<false>();
    load_reads(reads);
    weights.own_weights(own);
#pragma unroll
    for (int block = 1; block < 3; ++block)
      if (block > warp)
#pragma unroll
        for (int j = 0; j < 2; ++j) columns[block - 1][j] = weights.column_weights(block, 2 * j);
    if (which == 0 && both)
      barrier_wait(shared.full(in.stage + 1), in.parity);  // a pair's stages are 0 and 1, or 2 and 3
    this->finish(a);
    bool tame = true;
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      if (block < warp) continue;
      float(&s)[8] = reinterpret_cast<float(&)[8]>(a[8 * block]);
      if (block == warp) {
        tame = is_tame(s, reads);
        weights.scale_own(s, own);
      } else if (block > 0) {
#pragma unroll
        for (int j = 0; j < 2; ++j)
          weights.scale(s, 2 * j, block < 3 ? columns[block - 1][j] : weights.column_weights(block, 2 * j));
      }
      solver().take(which, s, block);
    }
    this->release();
    return tame;
  }
  // Whether not all warps' tokens are tame.
  __device__ __forceinline__ bool meet(bool tame) const {
    if (lane == 0) store_number(words() + 4 * warp, tame ? 1.f : 0.f);
    sync();
    float all[4];
    load_four(all, words());
    return all[0] + all[1] + all[2] + all[3] != 4;
  }
  // Of the last pair there may be no second chunk: what there was before takes its place, and nobody waits for that.
  __device__ __forceinline__ void step(bool both) {
    lane = lane_anew();
    barrier_wait(shared.full(in.stage), in.parity);
    bool tame = true;
#pragma unroll 1
    for (int which = 0; which < 1 + both; ++which) tame = take(which, both) && tame;
    const bool exact = meet(tame);
    solver().invert_diagonals(exact);
    barrier_wait(shared.inverse_read(1), out.parity);  // the first chunk's T has been read before
    solver().join(exact);
    fence_async();
    __syncwarp();
    if (elected()) barrier_arrive(shared.inverse_told(0)), barrier_arrive(shared.inverse_told(1));
    out.parity ^= 1;
  }
  __device__ __forceinline__ void run() {
    this->clear(shared.made_inverse(0), 2 * Shared::box);
    this->clear(shared.solver(), LINEAR_SOLVER_BYTES);
    sync();
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); n += 2) step(n + 1 < chain.chunks());
  }
};

// The warpgroup that loads, and makes numbers of tokens and P.
template <class Spec, class Config>
struct WholePairs : WholeRole<Spec, Config> {
  using Base = WholeRole<Spec, Config>;
  using Base::p, Base::maps, Base::shared, Base::chain, Base::warp, Base::lane, Base::in, Base::out;
  using typename Base::Elem, typename Base::Shared;
  static constexpr int barrier = 2 + Shared::groups, ahead = 4;  // numbers: chunks before they are wanted
  using Producer = LinearProducer<Spec, Config, false>;

  // A chunk's place is free once the values have done the last chunk there, with which they are when P of chunk n + 1 is made;
  // that of q and v once they have read them.
  __device__ __forceinline__ void load_keys(int n) const {
    if (warp != 0 || n >= chain.chunks()) return;
    barrier_wait(shared.empty(n % Config::stages), u32(n / Config::stages + 1) & 1);
    if (elected()) Producer{p, maps, shared, chain}.load_keys(n);
  }
  __device__ __forceinline__ void load_rows(int n) const {
    if (warp != 0 || n >= chain.chunks()) return;
    barrier_wait(shared.rows_empty(n % 2), u32(n / 2 + 1) & 1);
    if (elected()) Producer{p, maps, shared, chain}.load_rows(n);
  }
  __device__ __forceinline__ void make_numbers(int n) const {
    if (warp != 1 + n % LinearNumbers<Spec, Config>::warps || n >= chain.chunks()) return;
    LinearNumbers<Spec, Config>{{p, chain, lane}, shared, 0}.step(n);
  }
  __device__ __forceinline__ void make_pairs() {
    float s[32];
    barrier_wait(shared.full(in.stage), in.parity);
    barrier_wait(shared.rows_full(out.stage), out.parity ^ 1);
    this->begin(s, shared.q(out.stage));
    this->await_numbers();
    const auto weights = this->template weights<true>();
    this->finish(s);
    __syncwarp();
    if (elected()) barrier_arrive(shared.rows_empty(out.stage));
    barrier_wait(shared.read(out.stage), out.parity);
    const u32 to = shared.pairs(out.stage);
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      if (block > warp) continue;
      float *const x = s + 8 * block;
      if (block == warp)
        weights.apply_own(x);
      else
        weights.apply(x, block);
      stmatrix_x4(to + box_place(16 * warp + lane % 16, 16 * block + lane / 16 * 8), pack<Elem>(x[0], x[1]),
                  pack<Elem>(x[2], x[3]), pack<Elem>(x[4], x[5]), pack<Elem>(x[6], x[7]));
    }
    fence_async();
    __syncwarp();
    if (elected()) barrier_arrive(shared.told(out.stage));
    this->release();
    out.advance();
  }
  __device__ __forceinline__ void step(int n) {
    lane = lane_anew();
    if (n >= 1) load_rows(n + 1);
    make_pairs();
    if (n >= 1) load_keys(n + 3);
    make_numbers(n + ahead);
  }
  __device__ __forceinline__ void run() {
    for (int n = 0; n < 2; ++n) load_keys(n), load_rows(n);
    for (int n = 2; n < 4; ++n) load_keys(n);
    for (int n = 0; n < ahead; ++n) make_numbers(n);
    this->clear(shared.pairs(0), 2 * Shared::box);
    named_sync(barrier, 128);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) step(n);
  }
};
