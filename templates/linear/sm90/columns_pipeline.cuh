// linear/sm90/columns_pipeline.cuh: shared memory and mbarriers of luattn_linear_columns, and the warps that load.
//
// Each tensor of a chunk has a place of its own: `full` and `empty` in the order of ColumnTensor.
#pragma once
#include "linear/sm90/linear_gates.cuh"

enum ColumnTensor { COLUMN_K, COLUMN_Q, COLUMN_V, COLUMN_DOUT, COLUMN_STATE, COLUMN_GRAD_STATE, COLUMN_TENSORS };

// Numbers of a chunk's tokens, arrays of LUATTN_CHUNK floats: scale and q's factor; k's factor and w.
enum { COLUMN_QUERY = 0, COLUMN_KEY = 256 };
// Sums over blocks of 16 tokens, arrays of 128 floats: of what is added up from behind, and from before; of 8 warps: of
// products of both states.
enum { TOTAL_BEHIND = 0, TOTAL_BEFORE = 4 * 512, TOTAL_ACROSS = 8 * 512 };

template <class Spec, class Config>
struct SharedColumns {
  static constexpr int box = LINEAR_BOX, boxes_k = ceil_div(Config::k_dim, 64), boxes_v = ceil_div(Config::v_dim, 64),
                       k_dim = boxes_k * 64, v_dim = boxes_v * 64, warps = 8, parts = 4 * boxes_k;
  static constexpr LinearColumnsLayout layout = linear_columns_layout(Config::k_dim, Config::v_dim);
  static constexpr int bytes = layout.bytes, row_bytes = layout.row, threads = 384;
  static_assert(LinearSpec<Spec> && Spec::decay_of == DECAY_CHANNEL);
  static_assert(!Spec::erases && !Spec::has_value_mod && !Spec::has_skip && !Spec::has_query_factor &&
                    !Spec::has_key_factor && !Spec::has_write,
                "gradients of decays of channels have a kernel of plain additive updates alone yet");
  static_assert(Config::pass == LINEAR_ROWS && Config::k_dim % 8 == 0 && Config::v_dim % 8 == 0);
  static_assert(k_dim <= 128 && v_dim <= 128, "more than 128 channels have no kernel of this family yet");
  static_assert(bytes <= LUATTN_SM90_SHARED_BYTES);

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ static constexpr int size(int tensor) {
    return tensor == COLUMN_Q || tensor == COLUMN_K ? layout.qk : tensor >= COLUMN_STATE ? layout.state : layout.v;
  }
  __device__ __forceinline__ u32 at(int tensor) const {
    constexpr int places[] = {layout.at_k,    layout.at_q,     layout.at_v,
                              layout.at_dout, layout.at_state, layout.at_grad_state};
    return start + places[tensor];
  }
  // The place of 8 elements of a row: of tensors of tokens, and of states, whose rows are value channels.
  __device__ __forceinline__ u32 at(int tensor, int row, int channel) const {
    return at(tensor) + channel / 64 * box + box_place(row, channel % 64);
  }
  __device__ __forceinline__ u32 at_state(int tensor, int value, int channel) const {
    return at(tensor) + (value / 64 * boxes_k + channel / 64) * box + box_place(value % 64, channel % 64);
  }
  __device__ __forceinline__ u32 gates() const { return start + layout.at_gates; }
  __device__ __forceinline__ u32 ways() const { return start + layout.at_ways; }
  __device__ __forceinline__ u32 pairs() const { return start + layout.at_pairs; }
  __device__ __forceinline__ u32 totals() const { return start + layout.at_totals; }
  __device__ __forceinline__ u32 numbers(int stage) const {
    return start + layout.at_numbers + stage * LINEAR_COLUMN_NUMBERS;
  }
  __device__ __forceinline__ u32 full(int tensor) const { return start + layout.at_barriers + tensor * 16; }
  __device__ __forceinline__ u32 empty(int tensor) const { return full(tensor) + 8; }
  __device__ __forceinline__ u32 gates_full() const { return full(COLUMN_TENSORS); }
  __device__ __forceinline__ u32 gates_empty() const { return gates_full() + 8; }

  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < COLUMN_TENSORS; ++i) barrier_init(full(i), 1), barrier_init(empty(i), warps);
    barrier_init(gates_full(), 32 * (parts + 1)), barrier_init(gates_empty(), warps);
    barrier_init_done();
  }
};

template <class Spec, class Config>
struct ColumnProducer {
  using Shared = SharedColumns<Spec, Config>;
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
  __device__ __forceinline__ void run() const {
    for_each_chunk<Config>(p, [&](const Chain &chain, int chunk, int done) {
      if (elected()) {
        load(COLUMN_K, maps.k, chain, chunk, chain.site.h, Shared::boxes_k, done);
        load(COLUMN_Q, maps.q, chain, chunk, chain.site.h, Shared::boxes_k, done);
        load(COLUMN_V, maps.v, chain, chunk, chain.site.hv, Shared::boxes_v, done);
        load(COLUMN_DOUT, maps.dout, chain, chunk, chain.site.hv, Shared::boxes_v, done);
        load_kept(COLUMN_STATE, p.kept.states, chain.slot(p, chunk), done);
        load_kept(COLUMN_GRAD_STATE, p.kept.grad_states, chain.slot(p, chunk), done);
      }
      __syncwarp();
    });
  }
};

// Three warps that write sums of decays, and numbers of tokens.
template <class Spec, class Config>
struct ColumnGates {
  using Shared = SharedColumns<Spec, Config>;
  using Chain = LinearChain<Config>;
  static constexpr int warps = 3;

  const LuattnLinearParams &p;
  const Shared shared;
  const int turn, lane;

  __device__ __forceinline__ void write_numbers(const Chain &chain, int chunk, int done) const {
    const auto x = TokenNumbers<Spec, Config>{p, chain, lane}.of_tokens(chunk);
    const u32 at = shared.numbers(done % 2) + 8 * u32(lane);
    barrier_wait(shared.gates_empty(), u32(done + 1) & 1);
    store_pair(at + COLUMN_QUERY, x.row), store_pair(at + COLUMN_KEY, x.column);
    barrier_arrive(shared.gates_full());
  }
  __device__ __forceinline__ void run() const {
    for_each_chunk<Config>(p, [&](const Chain &chain, int chunk, int done) {
      const GateSums<Spec, Config, Shared::row_bytes, 16> sums{p, chain, lane};
#pragma unroll 1
      for (int part = turn; part < Shared::parts; part += warps) {
        sums.write(shared.gates(), chunk, part, shared.gates_empty(), u32(done + 1) & 1);
        barrier_arrive(shared.gates_full());
      }
      if (turn == warps - 1) write_numbers(chain, chunk, done);
    });
  }
};
