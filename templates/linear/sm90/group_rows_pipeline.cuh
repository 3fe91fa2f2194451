// linear/sm90/group_rows_pipeline.cuh: shared memory and mbarriers of luattn_linear_group_rows, the warp that loads, the one that
// makes numbers of tokens, and the one that adds up.
//
// A block takes chunks of heads of q and k in turns, and of each the value heads that read these, one after another: a step.
//
// | barrier | a phase ends with | who waits |
// | `rows_full` | the bytes of a chunk's q and k | pairs, columns |
// | `rows_empty` | the pairs' warps have read them; dq and dk, which take their place, have been stored | the producer |
// | `full`, `empty` of a stage | the bytes of a step's v, do and both states; warps have read them | who reads; the producer |
// | `numbers_full`, `numbers_empty` | the lanes that have written a step's numbers; warps have read them | who reads; that warp |
// | `pairs_full`, `pairs_empty` | all threads of the pairs have written P; warps have read it | columns; pairs |
// | `sums_full`, `sums_empty` | warps have stored a step's sums; these are added up | GroupSums; these warps |
#pragma once
#include "arch/warp.cuh"
#include "linear/sm90/chunk_loads.cuh"
#include "linear/sm90/linear_numbers.cuh"
#include "linear/sm90/linear_ways.cuh"

// Boxes of a stage.
enum { GROUP_V = 0, GROUP_DOUT = 1, GROUP_STATE = 2, GROUP_GRAD_STATE = 4 };

// Numbers of a step's tokens, arrays of LUATTN_CHUNK floats; and of the chunk.
enum {
  STEP_SUM = 0,       // G, to the base of 2
  STEP_WRITE = 256,   // w
  STEP_QUERY = 512,   // scale e^G
  STEP_KEY = 768,     // w e^(GC - G)
  STEP_UNTIL = 1024,  // e^(GC - G)
  STEP_CHUNK = 1280   // e^GC
};

// Sums of a step, arrays of LUATTN_CHUNK floats: of each half of k's channels, ways to a query and from a key; over ways of
// pairs, of 4 warps and on the diagonal (PairWayParts); of 8 warps, between the states.
enum {
  STEP_TO_QUERY = 0,
  STEP_FROM_KEY = 2 * 256,
  STEP_OF_WAYS = 4 * 256,
  STEP_OF_DIAGONAL = 8 * 256,
  STEP_ACROSS = 9 * 256
};

template <class Spec, class Config>
struct SharedGroup {
  static constexpr int box = LINEAR_BOX, threads = 512, stages = LINEAR_GROUP_STAGES,
                       number_stages = LINEAR_GROUP_NUMBER_STAGES;
  static constexpr bool has_gates = Spec::decay_of != DECAY_NONE;
  // What skips, where dv is to have it.
  static constexpr bool skips = SkipIsAdded<Spec, Config>;
  using Skip = typename SkipOf<Spec, skips>::Type;
  static_assert(Skip::sums == 0 && 16 * Skip::runs <= LINEAR_GROUP_RUNS);
  static_assert(LinearSpec<Spec> && Spec::decay_of != DECAY_CHANNEL && !Spec::erases && !Spec::has_value_mod);
  static_assert(!Spec::has_query_factor && !Spec::has_key_factor, "gradients of factors have no place here");
  static_assert(Config::pass == LINEAR_ROWS && Config::k_dim % 8 == 0 && Config::v_dim % 8 == 0);
  static_assert(Config::k_dim > 64 && Config::k_dim <= 128 && Config::v_dim <= 64);
  static_assert(LINEAR_GROUP_BYTES <= LUATTN_SM90_SHARED_BYTES);

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ u32 q() const { return start; }
  __device__ __forceinline__ u32 k() const { return start + 2 * box; }
  __device__ __forceinline__ u32 at(int stage, int tensor) const {
    return start + u32(4 + stage * LINEAR_GROUP_STAGE_BOXES + tensor) * box;
  }
  __device__ __forceinline__ u32 pairs(int which) const { return at(stages, 0) + u32(which) * box; }
  __device__ __forceinline__ u32 dv(int group) const { return pairs(2 + group); }
  __device__ __forceinline__ u32 numbers(int stage) const { return pairs(4) + u32(stage) * LINEAR_GROUP_NUMBERS; }
  __device__ __forceinline__ u32 sums(int which) const {
    return numbers(number_stages) + u32(which) * LINEAR_GROUP_SUMS;
  }
  // Of a warpgroup of columns, sums of its warps over rows.
  __device__ __forceinline__ u32 runs(int group) const { return sums(2) + u32(group) * LINEAR_GROUP_RUNS; }
  __device__ __forceinline__ u32 barrier(int number) const { return runs(2) + u32(number) * 8; }
  __device__ __forceinline__ u32 rows_full() const { return barrier(0); }
  __device__ __forceinline__ u32 rows_empty() const { return barrier(1); }
  __device__ __forceinline__ u32 pairs_full(int which) const { return barrier(2 + which); }
  __device__ __forceinline__ u32 pairs_empty(int which) const { return barrier(4 + which); }
  __device__ __forceinline__ u32 sums_full(int which) const { return barrier(6 + which); }
  __device__ __forceinline__ u32 sums_empty(int which) const { return barrier(8 + which); }
  __device__ __forceinline__ u32 full(int stage) const { return barrier(10 + stage); }
  __device__ __forceinline__ u32 empty(int stage) const { return barrier(10 + stages + stage); }
  __device__ __forceinline__ u32 numbers_full(int stage) const { return barrier(10 + 2 * stages + stage); }
  __device__ __forceinline__ u32 numbers_empty(int stage) const {
    return barrier(10 + 2 * stages + number_stages + stage);
  }

  // Warps: 8 of columns, 4 of pairs.
  __device__ __forceinline__ void init_barriers() const {
    barrier_init(rows_full(), 1), barrier_init(rows_empty(), 4 + 2);
    for (int i = 0; i < 2; ++i) {
      barrier_init(pairs_full(i), 128), barrier_init(pairs_empty(i), 8);
      barrier_init(sums_full(i), 12), barrier_init(sums_empty(i), 1);
    }
    for (int i = 0; i < stages; ++i) barrier_init(full(i), 1), barrier_init(empty(i), 12);
    for (int i = 0; i < number_stages; ++i) barrier_init(numbers_full(i), 32), barrier_init(numbers_empty(i), 12);
    barrier_init_done();
  }
};

// Calls `begin` with each chunk of heads of q and k that the block has, its number in its entry, and how many the block has had;
// then `step` with the chain of each value head, and how many steps the block has had; then `end`, as `begin`.
template <class Config, class Begin, class Step, class End>
__device__ __forceinline__ void for_each_step(const LuattnLinearParams &p, const Begin &begin, const Step &step,
                                              const End &end) {
  int done = 0, steps = 0;
#pragma unroll 1
  for (RowChunks<Config, true> at(p); at.more(); at.next()) {
    LinearChain<Config> chain = at.chain();
    const int chunk = at.chunk(chain);
    if (chunk >= chain.end || chain.state_row(p) < 0) continue;
    begin(chain, chunk, done);
#pragma unroll 1
    for (int i = 0; i < p.group; ++i, ++steps, ++chain.site.hv) step(chain, chunk, steps, i);
    chain.site.hv -= p.group;
    end(chain, chunk, done++);
  }
}
struct NoStep {
  template <class Chain>
  __device__ __forceinline__ void operator()(const Chain &, int, int) const {}
};

template <class Spec, class Config>
struct GroupProducer {
  using Shared = SharedGroup<Spec, Config>;
  using Chain = LinearChain<Config>;

  const LuattnLinearParams &p;
  const LuattnLinearRowMaps &maps;
  const Shared shared;

  __device__ __forceinline__ void load_rows(const Chain &chain, int chunk, int done) const {
    const auto box = chain.box(chunk);
    barrier_wait(shared.rows_empty(), u32(done + 1) & 1);
    barrier_arrive_expect(shared.rows_full(), 4 * Shared::box);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      tensor_load(shared.q() + i * Shared::box, maps.q, shared.rows_full(), i * 64, box, chain.site.h);
      tensor_load(shared.k() + i * Shared::box, maps.k, shared.rows_full(), i * 64, box, chain.site.h);
    }
  }
  __device__ __forceinline__ void load_kept(u32 to, const void *kept, i64 slot, u32 full) const {
    constexpr int bytes = 2 * Shared::box;
    bulk_load(to, static_cast<const unsigned char *>(kept) + slot * bytes, bytes, full);
  }
  __device__ __forceinline__ void load_step(const Chain &chain, int chunk, int n) const {
    const int stage = n % Shared::stages;
    const u32 full = shared.full(stage);
    const auto box = chain.box(chunk);
    const i64 slot = chain.slot(p, chunk);
    barrier_wait(shared.empty(stage), u32(n / Shared::stages + 1) & 1);
    barrier_arrive_expect(full, LINEAR_GROUP_STAGE_BOXES * Shared::box);
    tensor_load(shared.at(stage, GROUP_V), maps.v, full, 0, box, chain.site.hv);
    tensor_load(shared.at(stage, GROUP_DOUT), maps.dout, full, 0, box, chain.site.hv);
    load_kept(shared.at(stage, GROUP_STATE), p.kept.states, slot, full);
    load_kept(shared.at(stage, GROUP_GRAD_STATE), p.kept.grad_states, slot, full);
  }
  // The first step of a chunk is loaded while the one before still has q and k.
  __device__ __forceinline__ void run() const {
    if (!elected()) return;
    int chunks = 0;
    for_each_step<Config>(
        p, NoStep{},
        [&](const Chain &chain, int chunk, int n, int i) {
          load_step(chain, chunk, n);
          if (i == 0) load_rows(chain, chunk, chunks++);
        },
        NoStep{});
  }
};

template <class Spec, class Config>
struct GroupNumbers {
  using Shared = SharedGroup<Spec, Config>;
  using Chain = LinearChain<Config>;

  const LuattnLinearParams &p;
  const Shared shared;
  const int lane;

  __device__ __forceinline__ void step(const Chain &chain, int chunk, int n) const {
    constexpr bool decays = Shared::has_gates;
    const int stage = n % Shared::number_stages;
    const auto x = TokenNumbers<Spec, Config>{p, chain, lane}.of_tokens(chunk);
    const float total = decays ? __shfl_sync(0xffffffffu, x.sum[1], 31) : 0.f;
    float query[2], key[2], until[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      until[i] = decays ? fast_exp2(total - x.sum[i]) : 1.f;
      query[i] = x.row[i] * (decays ? fast_exp2(x.sum[i]) : 1.f), key[i] = x.column[i] * until[i];
    }
    barrier_wait(shared.numbers_empty(stage), u32(n / Shared::number_stages + 1) & 1);
    const u32 to = shared.numbers(stage), at = to + 8 * u32(lane);
    store_pair(at + STEP_SUM, x.sum), store_pair(at + STEP_WRITE, x.column), store_pair(at + STEP_QUERY, query);
    store_pair(at + STEP_KEY, key), store_pair(at + STEP_UNTIL, until);
    if (lane == 0) store_number(to + STEP_CHUNK, decays ? fast_exp2(total) : 1.f);
    barrier_arrive(shared.numbers_full(stage));
  }
  __device__ __forceinline__ void run() const {
    for_each_step<Config>(
        p, NoStep{}, [&](const Chain &chain, int chunk, int n, int) { step(chain, chunk, n); }, NoStep{});
  }
};

// The warp that adds up gradients of decays (linear_ways.cuh).
template <class Spec, class Config>
struct GroupSums {
  using Shared = SharedGroup<Spec, Config>;
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;

  const LuattnLinearParams &p;
  const Shared shared;
  const int lane;

  __device__ __forceinline__ static float2 both(u32 at) {
    const float2 x = load_pair(at), y = load_pair(at + 256);
    return {x.x + y.x, x.y + y.y};
  }
  __device__ __forceinline__ void step(const Chain &chain, int chunk, int n) const {
    const u32 sums = shared.sums(n % 2), at = sums + 8 * u32(lane);
    const int t = chunk * LUATTN_CHUNK + 2 * lane;
    barrier_wait(shared.sums_full(n % 2), u32(n / 2) & 1);
    const TokenSums tokens{lane};
    const float2 to = tokens.suffix(both(at + STEP_TO_QUERY)), from = tokens.prefix(both(at + STEP_FROM_KEY)),
                 pairs = PairWayParts::total(lane, sums + STEP_OF_WAYS, sums + STEP_OF_DIAGONAL);
    float across = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) across += load_number(sums + STEP_ACROSS + 4 * i);
    __syncwarp();
    if (elected()) barrier_arrive(shared.sums_empty(n % 2));
    float *const dg = p.sums.decay;
    if (dg != nullptr && chain.has(t)) dg[chain.token(p, t)] = to.x + from.x + pairs.x + across;
    if (dg != nullptr && chain.has(t + 1)) dg[chain.token(p, t + 1)] = to.y + from.y + pairs.y + across;
  }
  __device__ __forceinline__ void run() const {
    for_each_step<Config>(
        p, NoStep{}, [&](const Chain &chain, int chunk, int n, int) { step(chain, chunk, n); }, NoStep{});
  }
};
