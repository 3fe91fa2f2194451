// linear/sm90/grads_pipeline.cuh: shared memory and mbarriers of luattn_linear_grads, the warp that loads, and the one that
// makes numbers of tokens.
//
// | barrier | a phase ends with | who waits |
// | `full` of a tensor that is loaded | its bytes | who reads it |
// | `empty` of that | a thread of each warp that has read it, or of what is stored from its place | the producer |
// | `full(GRAD_OF_STATE)`, `empty` | both chains have staged dS; warps that add up have read it | GradSums; chains |
// | `full(GRAD_OF_R)` | all threads of the chains have staged dR | chains, pairs |
// | `full(GRAD_P)`, `empty` | P is written; its place, and that of pairs of q, have been read | chains; pairs |
// | `full(GRAD_PAIRS)` | all threads of the pairs have written gradients of pairs of q, and read do | chains |
// | `pairs_full` | likewise those of pairs of k | chains |
// | `full(GRAD_SUMS)`, `empty` | 12 warps, and one of GradSums, have stored a chunk's sums; GradSums has read | GradSums; these |
#pragma once
#include "linear/sm90/chunk_loads.cuh"
#include "linear/sm90/linear_numbers.cuh"
#include "linear/sm90/rows_pipeline.cuh"

// Places of tensors, as numbers of boxes. q and k have two stages. dq takes the place of do, dv that of v, dk that of dR; of
// pairs of k two boxes take those of P and T, once a chunk's chain has read these. Of additive updates U is v, and the place of
// dR has dv, that of v dk.
enum GradBox {
  GRAD_Q = 0,
  GRAD_K = 4,
  GRAD_DOUT = 8,
  GRAD_V = 10,
  GRAD_VALUES = 12,
  GRAD_OF_R = 14,
  GRAD_STATE = 16,
  GRAD_OF_STATE = 20,
  GRAD_INVERSE = 24,
  GRAD_P = 25,
  GRAD_PAIRS = 26,
  // of barriers alone
  GRAD_NUMBERS = 27,
  GRAD_SUMS = 29,
  GRAD_KEY_PAIRS = 30
};

// Numbers of a chunk's tokens behind those of RowTensor's kernel: what a row of do meets q with, scale and q's factor times e^G;
// what a row of dS' k is multiplied by, k's factor times e^(GC - G); what a row of dR joins the next state with; and of the chunk
// e^GC, and GC to the base of 2.
enum { GRAD_TO_QUERY = 1280, GRAD_TO_KEY = 1536, GRAD_TO_READ = 1792, GRAD_CHUNK = 2048 };

// Sums of a chunk, arrays of LUATTN_CHUNK floats: of each half of k's channels, ways to a query without its factor, to a key
// that reads without r, from a key; over pairs of a row of q without its factor, and of a row of k; over ways of pairs, of 4
// warps and on the diagonal (PairWayParts); of each half of v's channels dw, of k's the gradient of k's factor; of two warps,
// between the states.
enum {
  SUMS_TO_QUERY = 0,
  SUMS_TO_READ = 2 * 256,
  SUMS_FROM_KEY = 4 * 256,
  SUMS_OF_QUERY = 6 * 256,
  SUMS_OF_READ = 7 * 256,
  SUMS_OF_WAYS = 8 * 256,
  SUMS_OF_DIAGONAL = 12 * 256,
  SUMS_OF_WRITE = 13 * 256,
  SUMS_OF_FACTOR = 15 * 256,
  SUMS_ACROSS = 17 * 256
};

template <class Spec, class Config>
struct SharedGrads {
  static constexpr int box = LINEAR_BOX, boxes_k = 2, boxes_v = 2, k_dim = 128, v_dim = 128;
  static constexpr int bytes = LINEAR_GRADS_BYTES, threads = 512;
  static constexpr bool has_gates = Spec::decay_of != DECAY_NONE;
  // Whether k's factor, of additive updates with w, has a gradient.
  static constexpr bool has_factor = Spec::has_key_factor || (Spec::has_write && !Spec::erases);
  static_assert(LinearSpec<Spec> && Spec::decay_of != DECAY_CHANNEL && !Spec::has_value_mod && !Spec::has_skip);
  static_assert(Config::pass == LINEAR_GRAD_STATES && Config::k_dim % 8 == 0 && Config::v_dim % 8 == 0);
  static_assert(Config::k_dim > 64 && Config::k_dim <= 128 && Config::v_dim > 64 && Config::v_dim <= 128);
  static_assert(bytes <= LUATTN_SM90_SHARED_BYTES);

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ static constexpr int size(int tensor) {
    return tensor == GRAD_STATE ? 4 * box : tensor == GRAD_INVERSE ? box : 2 * box;
  }
  __device__ __forceinline__ u32 at(int tensor) const { return start + u32(tensor) * box; }
  // Gradients of pairs, of q k' and k k', a row for each query.
  __device__ __forceinline__ u32 pairs(int which) const { return at(which == 0 ? GRAD_PAIRS : GRAD_P); }
  __device__ __forceinline__ u32 numbers(int stage) const {
    return start + LINEAR_GRAD_BOXES * box + u32(stage) * LINEAR_GRAD_NUMBERS;
  }
  __device__ __forceinline__ u32 sums() const { return numbers(2); }
  __device__ __forceinline__ u32 full(int tensor) const { return sums() + LINEAR_GRAD_SUMS + u32(tensor) * 16; }
  __device__ __forceinline__ u32 empty(int tensor) const { return full(tensor) + 8; }
  __device__ __forceinline__ u32 pairs_full() const { return full(GRAD_KEY_PAIRS); }

  __device__ __forceinline__ void init(int tensor, int of_full, int of_empty) const {
    barrier_init(full(tensor), of_full), barrier_init(empty(tensor), of_empty);
  }
  // Warps: 8 of chains, 4 of pairs, 2 that add up.
  __device__ __forceinline__ void init_barriers() const {
    const int adding = has_gates ? 2 : 0;
    for (int stage = 0; stage < 2; ++stage) {
      init(GRAD_Q + 2 * stage, 1, 12);
      init(GRAD_NUMBERS + stage, 32, 14);
    }
    init(GRAD_DOUT, 1, 2), init(GRAD_V, 1, 2), init(GRAD_VALUES, 1, 12), init(GRAD_STATE, 1, 8 + adding);
    init(GRAD_INVERSE, 1, 8), init(GRAD_OF_STATE, 256, 2), init(GRAD_OF_R, 256, 1), init(GRAD_P, 128, 8);
    init(GRAD_PAIRS, 128, 1), init(GRAD_KEY_PAIRS, 128, 1), init(GRAD_SUMS, 13, 1);
    barrier_init_done();
  }
};

template <class Spec, class Config>
struct GradProducer : ChunkLoads<Config, SharedGrads<Spec, Config>, LuattnLinearRowMaps> {
  using Shared = SharedGrads<Spec, Config>;
  using Loads = ChunkLoads<Config, Shared, LuattnLinearRowMaps>;
  using Chain = typename Loads::Chain;
  using Loads::load, Loads::load_kept, Loads::maps, Loads::p, Loads::shared;

  __device__ __forceinline__ void load_rows(const Chain &chain, int n) const {
    const int q = GRAD_Q + n % 2 * 2;
    const auto box = chain.box(chain.at(n));
    barrier_wait(shared.empty(q), u32(n / 2 + 1) & 1);
    barrier_arrive_expect(shared.full(q), 4 * Shared::box);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      tensor_load(shared.at(q + i), maps.q, shared.full(q), i * 64, box, chain.site.h);
      tensor_load(shared.at(q + GRAD_K + i), maps.k, shared.full(q), i * 64, box, chain.site.h);
    }
  }
  // In the order in which places become free.
  __device__ __forceinline__ void load_chunk(const Chain &chain, int n) const {
    const int chunk = chain.at(n);
    const i64 slot = chain.slot(p, chunk);
    if constexpr (Spec::erases)
      load_kept(GRAD_VALUES, p.kept.values, slot, n);
    else
      load(GRAD_VALUES, maps.v, chain, chunk, chain.site.hv, 2, n);
    load_kept(GRAD_STATE, p.kept.states, slot, n);
    load(GRAD_DOUT, maps.dout, chain, chunk, chain.site.hv, 2, n);
    if constexpr (Spec::erases) load_kept(GRAD_INVERSE, p.inverses, slot, n);
    if (n + 1 < chain.chunks()) load_rows(chain, n + 1);
    if constexpr (Spec::erases) load(GRAD_V, maps.v, chain, chunk, chain.site.hv, 2, n);
  }
  __device__ __forceinline__ void run(const Chain &chain) const {
    if (!elected()) return;
    if (chain.chunks() > 0) load_rows(chain, 0);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) load_chunk(chain, n);
  }
};

template <class Spec, class Config>
struct GradNumbers {
  using Shared = SharedGrads<Spec, Config>;
  using Chain = LinearChain<Config>;

  const LuattnLinearParams &p;
  const Shared shared;
  const int lane;

  __device__ __forceinline__ void tell(const typename TokenNumbers<Spec, Config>::Pair &x, u32 to) const {
    constexpr bool decays = Shared::has_gates;
    const float total = decays ? __shfl_sync(0xffffffffu, x.sum[1], 31) : 0.f;
    const u32 at = to + 8 * u32(lane);
    float query[2], key[2], read[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float since = decays ? fast_exp2(x.sum[i]) : 1.f, until = decays ? fast_exp2(total - x.sum[i]) : 1.f;
      query[i] = x.row[i] * since, key[i] = x.column[i] * until, read[i] = x.read[i] * x.column[i] * since;
    }
    store_pair(at + ROW_SUM, x.sum), store_pair(at + ROW_QUERY, x.row), store_pair(at + ROW_KEY, x.column);
    store_pair(at + ROW_READ, x.read), store_pair(at + ROW_WRITE, x.write);
    store_pair(at + GRAD_TO_QUERY, query), store_pair(at + GRAD_TO_KEY, key), store_pair(at + GRAD_TO_READ, read);
    const float left[2] = {decays ? fast_exp2(total) : 1.f, total};
    if (lane == 0) store_pair(to + GRAD_CHUNK, left);
  }
  __device__ __forceinline__ void run(const Chain &chain) const {
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
      const auto x = TokenNumbers<Spec, Config>{p, chain, lane}.of_tokens(chain.at(n));
      barrier_wait(shared.empty(GRAD_NUMBERS + n % 2), u32(n / 2 + 1) & 1);
      tell(x, shared.numbers(n % 2));
      barrier_arrive(shared.full(GRAD_NUMBERS + n % 2));
    }
  }
};
