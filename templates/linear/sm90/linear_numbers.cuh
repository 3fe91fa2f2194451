// linear/sm90/linear_numbers.cuh: three warps that are up to four chunks ahead of all others, in turns: decays and factors of
// a chunk's tokens, for which hooks load inputs, and prefix sums.
#pragma once
#include "linear/sm90/linear_pipeline.cuh"
#include "ops/math.cuh"

// A warp's numbers of a chunk's tokens.
template <class Spec, class Config>
struct TokenNumbers {
  static constexpr bool decays = Spec::decay_of == DECAY_HEAD || Spec::decay_of == DECAY_TOKEN,
                        mirrored = LinearChain<Config>::mirrored;

  const LuattnLinearParams &p;
  const LinearChain<Config> &chain;
  const int lane;

  // What a lane has of tokens 2 lane and 2 lane + 1.
  struct Pair {
    float sum[2];  // G, to the base of 2
    float row[2],
        column[2];  // scale and q's factor; k's factor, of additive updates also w. Backwards the other way round
    float read[2], write[2];  // of erasing updates: r / k, and w
  };

  // Tokens past the end decay nothing: their rows of q, k and v are 0. Hooks are asked for one that exists, without a branch, so
  // that loads of both tokens are under way together.
  __device__ __forceinline__ Pair of_tokens(int chunk) const {
    Pair x;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = chunk * LUATTN_CHUNK + 2 * lane + i, t = chain.clamped(at);
      const bool has = chain.has(at);
      float query = 1, key = 1, write = 1;
      x.sum[i] = 0, x.read[i] = 0;
      if constexpr (decays) {
        const float decay = decay_within(float(Spec::decay(p, chain.site, t))) * op_log2_e;
        x.sum[i] = has ? decay : 0.f;
      }
      if constexpr (Spec::has_query_factor) query = Spec::query_factor(p, chain.site, t);
      if constexpr (Spec::has_key_factor) key = Spec::key_factor(p, chain.site, t);
      if constexpr (Spec::has_write) write = Spec::write(p, chain.site, t);
      if constexpr (Spec::erases) {
        const float read = Spec::read(p, chain.site, t);
        x.read[i] = has ? read : 0.f;
      }
      query = has ? query : 1.f, key = has ? key : 1.f, write = has ? write : 1.f;
      x.write[i] = write;
      if constexpr (Spec::has_write && !Spec::erases) key *= write;
      query *= p.scale;
      x.row[i] = mirrored ? key : query, x.column[i] = mirrored ? query : key;
    }
    if constexpr (decays) sum_up(x.sum);
    return x;
  }
  // Turns decays into sums of all decays up to them.
  __device__ __forceinline__ void sum_up(float (&sum)[2]) const {
    float all = sum[0] + sum[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, all, step);
      if (lane >= step) all += other;
    }
    const float before = __shfl_up_sync(0xffffffffu, all, 1);
    sum[1] = all;
    sum[0] += lane > 0 ? before : 0.f;
  }
};

template <class Spec, class Config>
struct LinearNumbers : TokenNumbers<Spec, Config> {
  using Shared = SharedLinear<Spec, Config>;
  using Tokens = TokenNumbers<Spec, Config>;
  using Tokens::chain, Tokens::decays, Tokens::lane, Tokens::mirrored;
  using typename Tokens::Pair;
  static constexpr int warps = 3;

  const Shared shared;
  const int turn;

  __device__ __forceinline__ void tell(const Pair &x, u32 to) const {
    const float total = decays ? __shfl_sync(0xffffffffu, x.sum[1], 31) : 0.f;
    float sum[2], query[2], key[2], read_row[2], read[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float since = decays ? fast_exp2(x.sum[i]) : 1.f, until = decays ? fast_exp2(total - x.sum[i]) : 1.f;
      sum[i] = mirrored ? -x.sum[i] : x.sum[i];
      query[i] = x.row[i] * (mirrored ? until : since);
      key[i] = x.column[i] * (mirrored ? since : until);
      read_row[i] = x.read[i] * x.column[i], read[i] = read_row[i] * since;
    }
    const u32 at = to + 8 * u32(lane);
    store_pair(at + OF_SUM, sum), store_pair(at + OF_ROW, x.row), store_pair(at + OF_COLUMN, x.column);
    store_pair(at + OF_QUERY, query), store_pair(at + OF_KEY, key);
    if constexpr (Spec::erases) {
      store_pair(at + OF_READ_ROW, read_row), store_pair(at + OF_READ, read), store_pair(at + OF_WRITE, x.write);
    }
    const float left[2] = {fast_exp2(total), total};
    if (lane == 0) store_pair(to + OF_CHUNK, left);
  }
  __device__ __forceinline__ void step(int n) const {
    const int stage = n % Shared::number_stages;
    const Pair x = this->of_tokens(chain.at(n));
    barrier_wait(shared.numbers_empty(stage), u32(n / Shared::number_stages + 1) & 1);
    tell(x, shared.numbers(stage));
    barrier_arrive(shared.numbers_full(stage));
  }
  // Number n of those of two heads, in turns. A warp has all of one head: what reads these may be two chunks behind what reads the
  // other one's, and a warp that goes from head to head would take a phase of a barrier for one that has its parity.
  __device__ __forceinline__ void step_of_two(int n) const {
    LinearChain<Config> own = chain;
    own.site.hv += n % 2;
    const int stage = n % Shared::number_stages;
    const Pair x = Tokens{this->p, own, lane}.of_tokens(chain.at(n / 2));
    barrier_wait(shared.numbers_empty(stage), u32(n / Shared::number_stages + 1) & 1);
    tell(x, shared.numbers(stage));
    barrier_arrive(shared.numbers_full(stage));
  }
  __device__ __forceinline__ void run() const {
    if constexpr (Shared::two_heads) {
      if (turn < 2)
#pragma unroll 1
        for (int n = turn; n < 2 * chain.chunks(); n += 2) step_of_two(n);
    } else {
#pragma unroll 1
      for (int n = turn; n < chain.chunks(); n += warps) step(n);
    }
  }
};
