// linear/sm90/linear_pipeline.cuh: shared memory and mbarriers of linear attention's forward kernel.
//
// | barrier | a phase ends with | who waits |
// | `full` | the bytes of a chunk's q, k and v, and T | scores, values |
// | `empty` | a thread of each warp that has read them | the producer |
// | `numbers_full` | the lanes of a warp that have written numbers of a chunk's tokens | scores, values |
// | `numbers_empty` | a thread of each warp that has read them | the warps that write them |
// | `told` | all threads of the scores, of a kernel that makes T one of each warp: products of q and k are written | values |
// | `read` | a thread of each warp of the values, which has read those | scores |
// | `inverse_told`, `inverse_read` | the same of T, where the kernel makes it | values, who makes T |
// | `rows_full`, `rows_empty` | as `full` and `empty`, of q and v there, where these are of k | scores, values; the producer |
// | `gates_full` | the lanes of warps that have written sums of a chunk's decays, where these differ between channels | scores |
// | `gates_empty` | a thread of each warp that has read them | the warps that write them |
// | `tiled` | all threads of the scores: q and k have become tiles with decays, in place (LinearTiles) | values |
#pragma once
#include "tma/bulk_copies.cuh"
#include "tma/mbarrier.cuh"
#include "tma/stages.cuh"
#include "tma/warp_roles.cuh"
#include "work/linear_work.cuh"

// Numbers of a chunk's tokens, arrays of LUATTN_CHUNK floats; and of the chunk.
enum {
  OF_SUM = 0,          // G, to the base of 2; mirrored -G
  OF_ROW = 256,        // a row of P: scale and q's factor
  OF_COLUMN = 512,     // a column of P and of A: k's factor, of additive updates also w
  OF_QUERY = 768,      // what a row of q meets the state with: that of its row of P, e^G
  OF_KEY = 1024,       // what a row of U joins the next state with: that of its column, e^(GC - G)
  OF_READ_ROW = 1280,  // of erasing updates: a row of A, r's factor
  OF_READ = 1536,      // what a row of k reads the state with: that, e^G
  OF_WRITE = 1792,     // w
  OF_CHUNK = 2048      // e^GC, and GC to the base of 2
};

// Where decays differ between channels: what columns of the state are multiplied by, arrays of 128 floats, and behind those
// of all stages whether each warp's channels decay little.
enum {
  OF_BEFORE = 0,    // before it meets q and k
  OF_WITHIN = 512,  // before keys join it
  OF_AFTER = 1024,  // behind the last chunk; else it is in the next one's OF_BEFORE
  OF_NARROW = LINEAR_PAIR_STAGES * LINEAR_FACTORS
};

LUATTN_FN void store_pair(u32 to, const float (&x)[2]) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x[0]), "f"(x[1]) : "memory");
}
LUATTN_FN void store_number(u32 to, float x) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory"); }
LUATTN_FN float2 load_pair(u32 from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}
LUATTN_FN void load_four(float (&x)[4], u32 from) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(from)
               : "memory");
}
LUATTN_FN float load_number(u32 from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}

// Whether a pass of additive updates, of LINEAR_GRAD_V, keeps gradients of states, and nothing else.
template <class Config>
concept KeepsGradStates = requires { requires Config::keeps_grad_states; };

// Whether a multiprocessor runs two blocks at once, without a warpgroup of scores.
template <class Config>
concept SharesMultiprocessor = requires { requires Config::shares; };
// Whether a kernel makes T of its chunks itself (linear_whole.cuh).
template <class Config>
concept MakesInverse = requires { requires Config::makes_inverse; };

template <class Spec, class Config>
struct SharedLinear {
  static constexpr int stages = Config::stages,  // of k, where T is made here: q and v have those of P
      box = LINEAR_BOX;
  // With two heads a stage is that of one of them, in turns.
  static constexpr bool two_heads = TwoHeads<Config>;
  static constexpr int pair_stages = two_heads ? 2 * LINEAR_PAIR_STAGES : LINEAR_PAIR_STAGES;
  static constexpr int number_stages =
      Spec::erases && MakesInverse<Config> ? LINEAR_WHOLE_NUMBER_STAGES : LINEAR_NUMBER_STAGES;
  // Channels are padded to boxes, which TMA fills with 0, and clips where it stores.
  static constexpr int boxes_k = ceil_div(Config::k_dim, 64), k_dim = boxes_k * 64, groups = Config::v_block / 64;
  static constexpr bool by_channel = Spec::decay_of == DECAY_CHANNEL,
                        by_token = Spec::decay_of == DECAY_HEAD || Spec::decay_of == DECAY_TOKEN;
  // Whether T is made here, or comes with q, k and v.
  static constexpr bool makes_inverse = Spec::erases && MakesInverse<Config>,
                        takes_inverse = Spec::erases && !makes_inverse;
  static_assert(!Spec::erases || !by_channel, "chains of tiles have these (linear_tile_forward.cuh)");
  // Whether forward may be asked to keep, for backward, the state before each chunk, and U.
  static constexpr bool may_keep = takes_inverse && Config::pass == LINEAR_FORWARD && Config::v_dim <= 128 &&
                                   !Spec::has_value_mod && !Spec::has_skip;
  // Whether states of chunks, and U, are what a pass is for.
  static constexpr bool keeps =
      Config::pass == LINEAR_STATES || Config::pass == LINEAR_GRAD_STATES || KeepsGradStates<Config>;
  // Whether it is the state alone, without q.
  static constexpr bool keeps_sums = keeps && !Spec::erases;
  static constexpr LinearLayout layout =
      two_heads       ? linear_layout_two(Config::k_dim, stages)
      : keeps_sums    ? linear_layout_states(Config::k_dim, Config::v_block, stages)
      : keeps         ? linear_layout_kept(Config::k_dim, Config::v_block, stages)
      : makes_inverse ? linear_layout_whole(Config::k_dim, Config::v_block)
                      : linear_layout(Config::k_dim, Config::v_block, stages, Spec::erases, by_channel);
  static constexpr int gate_stages = by_channel ? layout.gate_stages : 0, gate_parts = 4 * boxes_k;  // of a warp each
  static constexpr int bytes = layout.bytes, threads = 128 * (2 - SharesMultiprocessor<Config> + groups);
  // Whether columns of P have factors. Mirrored, scale is one.
  static constexpr bool has_column_factor =
      LinearChain<Config>::mirrored || Spec::has_key_factor || (Spec::has_write && !Spec::erases);
  static_assert(LinearSpec<Spec>);
  static_assert(Config::pass == LINEAR_FORWARD || (!Spec::has_value_mod && !Spec::has_skip),
                "gradients of mods of v, and of what skips, have no kernel yet");
  static_assert(Config::pass == LINEAR_FORWARD || Config::pass == LINEAR_STATES || KeepsGradStates<Config> ||
                    (keeps == Spec::erases && !by_channel),
                "updates that erase have passes of their own, and decays of channels other kernels");
  static_assert(Config::k_dim % 8 == 0 && Config::k_dim >= 8 && k_dim <= 128,
                "q and k of more than 128 channels have no kernel of this family yet");
  static_assert(Config::v_dim % 8 == 0 && Config::v_dim >= 8 && (Config::v_block == 64 || Config::v_block == 128));
  static_assert(stages >= 2 && bytes <= LUATTN_SM90_SHARED_BYTES &&
                16 * (stages + (makes_inverse ? 3 : 2) * pair_stages + number_stages + gate_stages) <= 256);

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ u32 q(int stage) const {
    return start + (makes_inverse ? layout.at_q + stage * layout.qk : stage * layout.stage);
  }
  __device__ __forceinline__ u32 k(int stage) const {
    return makes_inverse ? start + stage * layout.qk : q(stage) + (keeps_sums ? 0 : layout.qk);
  }
  __device__ __forceinline__ u32 v(int stage) const {
    return makes_inverse ? start + layout.at_v + stage * layout.v : k(stage) + layout.qk;
  }
  __device__ __forceinline__ u32 pairs(int stage) const { return start + layout.at_pairs + stage * layout.pairs; }
  // Of a kernel that makes T itself: that of a stage of pairs, and what it is made of.
  __device__ __forceinline__ u32 made_inverse(int stage) const { return start + layout.at_inverses + stage * box; }
  __device__ __forceinline__ u32 solver() const { return start + layout.at_solver; }
  // Of erasing updates: the inverse that comes with a stage.
  __device__ __forceinline__ u32 taken_inverse(int stage) const { return v(stage) + layout.v; }
  __device__ __forceinline__ u32 o(int group, int which) const {
    return start + layout.at_o + (layout.boxes_o * group + which) * box;
  }
  // Sums of decays, rows of k_dim floats.
  __device__ __forceinline__ u32 gates(int stage) const { return start + layout.at_gates + stage * layout.gates; }
  __device__ __forceinline__ u32 factors(int stage) const { return start + layout.at_factors + stage * LINEAR_FACTORS; }
  // What a warpgroup keeps of a chunk: boxes of the state, and one of values.
  __device__ __forceinline__ u32 kept(int group, int which) const {
    return start + layout.at_o + (layout.boxes_o * group + which) * box;
  }
  __device__ __forceinline__ u32 numbers(int stage) const { return start + layout.at_numbers + stage * LINEAR_NUMBERS; }
  __device__ __forceinline__ u32 full(int stage) const { return start + layout.at_barriers + stage * 16; }
  __device__ __forceinline__ u32 empty(int stage) const { return full(stage) + 8; }
  __device__ __forceinline__ u32 told(int stage) const { return full(stages) + stage * 16; }
  __device__ __forceinline__ u32 read(int stage) const { return told(stage) + 8; }

  // Where T is made here, that of T, and of q and v, whose stages are those of P.
  __device__ __forceinline__ u32 inverse_told(int stage) const { return told(pair_stages) + stage * 16; }
  __device__ __forceinline__ u32 inverse_read(int stage) const { return inverse_told(stage) + 8; }
  __device__ __forceinline__ u32 rows_full(int stage) const { return told(2 * pair_stages) + stage * 16; }
  __device__ __forceinline__ u32 rows_empty(int stage) const { return rows_full(stage) + 8; }

  __device__ __forceinline__ u32 numbers_full(int stage) const {
    return told((makes_inverse ? 3 : 1) * pair_stages) + stage * 16;
  }
  __device__ __forceinline__ u32 numbers_empty(int stage) const { return numbers_full(stage) + 8; }
  __device__ __forceinline__ u32 gates_full(int stage) const { return numbers_full(number_stages) + stage * 16; }
  __device__ __forceinline__ u32 gates_empty(int stage) const { return gates_full(stage) + 8; }
  __device__ __forceinline__ u32 tiled(int stage) const { return gates_full(gate_stages) + stage * 8; }

  __device__ __forceinline__ void init_barriers(bool scores_read) const {
    const int makers = !scores_read ? 0 : makes_inverse ? 8 : 4, warps = 4 * groups + makers;
    for (int i = 0; i < stages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), warps);
    }
    for (int i = 0; i < pair_stages; ++i) {
      barrier_init(told(i), makes_inverse ? 4 : 128);
      barrier_init(read(i), two_heads ? 4 : 4 * groups);
      if constexpr (makes_inverse) {
        barrier_init(inverse_told(i), 4), barrier_init(inverse_read(i), 4 * groups);
        barrier_init(rows_full(i), 1), barrier_init(rows_empty(i), 4 * groups + 4);
      }
    }
    for (int i = 0; i < number_stages; ++i) {
      barrier_init(numbers_full(i), 32);
      barrier_init(numbers_empty(i), two_heads ? 4 + makers : warps);
    }
    for (int i = 0; i < gate_stages; ++i) {
      barrier_init(gates_full(i), 32 * gate_parts);
      barrier_init(gates_empty(i), 4);
    }
    if constexpr (by_channel)
      for (int i = 0; i < pair_stages; ++i) barrier_init(tiled(i), 128);
    barrier_init_done();
  }
};

// The place of 8 elements, 16 bytes, in a box of 64 channels: as TMA swizzles them.
LUATTN_FN u32 box_place(int token, int channel) { return u32(token * 128 + ((channel / 8 ^ token % 8) * 16)); }
