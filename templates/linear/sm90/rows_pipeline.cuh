// linear/sm90/rows_pipeline.cuh: shared memory and mbarriers of luattn_linear_rows, the chunks that its blocks compute, the
// warp that loads, and the one that makes numbers of tokens.
//
// Each tensor of a chunk has a place of its own, and is loaded again as soon as the chunk before has been read there:
// `full` and `empty` in the order of RowTensor. Places of v, do and dR become those of dv, dq and dk.
#pragma once
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

// The chunks of all entries and value heads that a block computes, one after another. Roles that wait for others skip the
// same ones: slots without a chunk, and entries that are left alone, whose gradients are 0.
template <class Config>
struct RowChunks {
  const LuattnLinearParams &p;
  int number, count, steps = 0;  // steps: chunks done

  __device__ __forceinline__ explicit RowChunks(const LuattnLinearParams &p)
      : p(p), number(int(blockIdx.x)), count(linear_chunk_slots(p.entries, p.tokens, Config::packed) * p.heads_v) {}
  __device__ __forceinline__ bool more() const { return number < count; }
  __device__ __forceinline__ int head() const { return int(u32(number) % u32(p.heads_v)); }
  __device__ __forceinline__ int slot() const { return int(u32(number) / u32(p.heads_v)); }
  // The last entry whose slots begin at the chunk's, or before it.
  __device__ __forceinline__ int entry() const {
    if constexpr (!Config::packed) return int(u32(slot()) / u32(ceil_div(p.tokens, LUATTN_CHUNK)));
    int low = 0, high = p.entries - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_slot(middle) <= slot())
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  __device__ __forceinline__ LinearChain<Config> chain() const { return {p, entry(), head()}; }
  // The chunk's number in its entry; one past its end where the slot is empty.
  __device__ __forceinline__ int chunk(const LinearChain<Config> &chain) const {
    return slot() - linear_first_slot(chain.entry, chain.start, p.tokens, Config::packed);
  }
  __device__ __forceinline__ void next() { number += int(gridDim.x); }

 private:
  __device__ __forceinline__ int first_slot(int entry) const {
    const int first = max_of(min_of(__ldg(p.cu_seqlens + entry), p.tokens), 0);
    return linear_first_slot(entry, first, p.tokens, true);
  }
};

// Calls `step` with each chunk of the block: its chain, its number in it, and how many the block has done.
template <class Config, class Step>
__device__ __forceinline__ void for_each_chunk(const LuattnLinearParams &p, const Step &step) {
  int done = 0;
#pragma unroll 1
  for (RowChunks<Config> at(p); at.more(); at.next()) {
    const LinearChain<Config> chain = at.chain();
    const int chunk = at.chunk(chain);
    if (chunk >= chain.end || chain.state_row(p) < 0) continue;
    step(chain, chunk, done++);
  }
}

template <class Spec, class Config>
struct RowProducer {
  using Shared = SharedRows<Spec, Config>;
  using Chain = LinearChain<Config>;

  const LuattnLinearParams &p;
  const LuattnLinearRowMaps &maps;
  const Shared shared;

  __device__ __forceinline__ void expect(int tensor, int done) const {
    barrier_wait(shared.empty(tensor), u32(done + 1) & 1);
    barrier_arrive_expect(shared.full(tensor), Shared::size(tensor));
  }
  __device__ __forceinline__ void load(int tensor, const LuattnTensorMap &map, const Chain &chain, int chunk, int head,
                                       int boxes, int done) const {
    expect(tensor, done);
    for (int i = 0; i < boxes; ++i)
      tensor_load(shared.at(tensor) + i * Shared::box, map, shared.full(tensor), i * 64, chain.box(chunk), head);
  }
  __device__ __forceinline__ void load_kept(int tensor, const void *kept, i64 slot, int done) const {
    const int bytes = Shared::size(tensor);
    expect(tensor, done);
    bulk_load(shared.at(tensor), static_cast<const unsigned char *>(kept) + slot * bytes, bytes, shared.full(tensor));
  }
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
    for_each_chunk<Config>(p, [&](const Chain &chain, int chunk, int done) {
      if (elected()) load_chunk(chain, chunk, done);
      __syncwarp();
    });
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
