// linear/sm90/rows_pipeline.cuh: shared memory and mbarriers of luattn_linear_rows, the warp that loads, and the one that
// makes numbers of tokens.
//
// Each tensor of a chunk has a place of its own, and is loaded again as soon as the chunk before has been read there:
// `full` and `empty` in the order of RowTensor. Places of v, do and dR become those of dv, dq and dk.
#pragma once
#include "linear/sm90/chunk_loads.cuh"
#include "linear/sm90/linear_numbers.cuh"

enum RowTensor { ROW_Q, ROW_K, ROW_DOUT, ROW_VALUES, ROW_GRAD_VALUES, ROW_V, ROW_STATE, ROW_GRAD_STATE, ROW_TENSORS };

// Numbers of a chunk's tokens, arrays of LUATTN_CHUNK floats; and of the chunk.
enum {
  ROW_SUM = 0,      // G, to the base of 2
  ROW_QUERY = 256,  // scale and q's factor
  ROW_KEY = 512,    // k's factor
  ROW_READ = 768,   // r / k
  ROW_WRITE = 1024,
  ROW_CHUNK = 1280  // GC, to the base of 2
};
// Sums over ways of dg (linear_ways.cuh), arrays of LUATTN_CHUNK floats: from the state before the chunk to a query, to a
// key that reads; from a key to the state behind it; between pairs, of each of 8 warps; of 4 warps, between the states.
enum { WAYS_TO_QUERY = 0, WAYS_TO_READ = 256, WAYS_FROM_KEY = 512, WAYS_OF_PAIRS = 768, WAYS_ACROSS = 11 * 256 };

template <class Spec, class Config>
struct SharedRows {
  static constexpr int box = LINEAR_BOX, boxes_k = ceil_div(Config::k_dim, 64), boxes_v = ceil_div(Config::v_dim, 64),
                       k_dim = boxes_k * 64, v_dim = boxes_v * 64;
  static constexpr LinearRowsLayout layout = linear_rows_layout(Config::k_dim, Config::v_dim);
  static constexpr int bytes = layout.bytes, threads = 384;
  static constexpr bool has_gates = Spec::decay_of != DECAY_NONE;
  static_assert(LinearSpec<Spec> && Spec::erases && !Spec::has_value_mod && !Spec::has_skip);
  static_assert(Config::pass == LINEAR_ROWS && Config::k_dim % 8 == 0 && Config::v_dim % 8 == 0);
  static_assert(k_dim <= 128 && v_dim <= 128, "more than 128 channels have no kernel of this family yet");
  static_assert(bytes <= LUATTN_SM90_SHARED_BYTES);

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ static constexpr int size(int tensor) {
    return tensor == ROW_Q || tensor == ROW_K ? layout.qk : tensor >= ROW_STATE ? layout.state : layout.v;
  }
  __device__ __forceinline__ u32 at(int tensor) const {
    constexpr int places[] = {layout.at_q,           layout.at_k, layout.at_dout,  layout.at_values,
                              layout.at_grad_values, layout.at_v, layout.at_state, layout.at_grad_state};
    return start + places[tensor];
  }
  // Gradients of pairs, of q k' and k k', a row for each query.
  __device__ __forceinline__ u32 pairs(int which) const { return start + layout.at_pairs + which * box; }
  __device__ __forceinline__ u32 numbers(int stage) const {
    return start + layout.at_numbers + stage * LINEAR_ROW_NUMBERS;
  }
  __device__ __forceinline__ u32 ways() const { return start + layout.at_sums; }
  __device__ __forceinline__ u32 full(int tensor) const { return start + layout.at_barriers + tensor * 16; }
  __device__ __forceinline__ u32 empty(int tensor) const { return full(tensor) + 8; }
  __device__ __forceinline__ u32 numbers_full(int stage) const { return full(ROW_TENSORS + stage); }
  __device__ __forceinline__ u32 numbers_empty(int stage) const { return numbers_full(stage) + 8; }
  __device__ __forceinline__ u32 ways_full() const { return full(ROW_TENSORS + 2); }
  __device__ __forceinline__ u32 ways_empty() const { return ways_full() + 8; }

  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < ROW_TENSORS; ++i) {
      barrier_init(full(i), 1);
      // Of those whose places become results, a thread that has stored them; it has waited for all others.
      barrier_init(empty(i), i == ROW_DOUT || i == ROW_GRAD_VALUES || i == ROW_V ? 1 : 8);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(numbers_full(i), 32);
      barrier_init(numbers_empty(i), 8);
    }
    barrier_init(ways_full(), 8), barrier_init(ways_empty(), 1);
    barrier_init_done();
  }
};

template <class Spec, class Config>
struct RowProducer : ChunkLoads<Config, SharedRows<Spec, Config>, LuattnLinearRowMaps> {
  using Shared = SharedRows<Spec, Config>;
  using Loads = ChunkLoads<Config, Shared, LuattnLinearRowMaps>;
  using Chain = typename Loads::Chain;
  using Loads::load, Loads::load_kept, Loads::maps, Loads::p;

  // In the order in which places become free.
  __device__ __forceinline__ void load_chunk(const Chain &chain, int chunk, int done) const {
    constexpr int k = Shared::boxes_k, v = Shared::boxes_v;
    const i64 slot = chain.slot(p, chunk);
    load(ROW_K, maps.k, chain, chunk, chain.site.h, k, done);
    load(ROW_Q, maps.q, chain, chunk, chain.site.h, k, done);
    load_kept(ROW_VALUES, p.kept.values, slot, done);
    load(ROW_DOUT, maps.dout, chain, chunk, chain.site.hv, v, done);
    load_kept(ROW_GRAD_VALUES, p.kept.grad_values, slot, done);
    load_kept(ROW_STATE, p.kept.states, slot, done);
    load_kept(ROW_GRAD_STATE, p.kept.grad_states, slot, done);
    load(ROW_V, maps.v, chain, chunk, chain.site.hv, v, done);
  }
  __device__ __forceinline__ void run() const {
    this->each([&](const Chain &chain, int chunk, int done) { load_chunk(chain, chunk, done); });
  }
};

template <class Spec, class Config>
struct RowNumbers {
  using Shared = SharedRows<Spec, Config>;
  using Chain = LinearChain<Config>;

  const LuattnLinearParams &p;
  const Shared shared;
  const int lane;

  __device__ __forceinline__ void run() const {
    for_each_chunk<Config>(p, [&](const Chain &chain, int chunk, int done) {
      const auto x = TokenNumbers<Spec, Config>{p, chain, lane}.of_tokens(chunk);
      const u32 to = shared.numbers(done % 2), at = to + 8 * u32(lane);
      barrier_wait(shared.numbers_empty(done % 2), u32(done / 2 + 1) & 1);
      store_pair(at + ROW_SUM, x.sum), store_pair(at + ROW_QUERY, x.row), store_pair(at + ROW_KEY, x.column);
      store_pair(at + ROW_READ, x.read), store_pair(at + ROW_WRITE, x.write);
      if (lane == 31) store_number(to + ROW_CHUNK, Shared::has_gates ? x.sum[1] : 0.f);
      barrier_arrive(shared.numbers_full(done % 2));
    });
  }
};
