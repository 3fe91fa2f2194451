/* linear_params.h: the parameters of the kernels of linear attention, for host and device. Strides are in elements. A field
 * is null or zero if the kernel does not use it. */
#ifndef LUATTN_ABI_LINEAR_PARAMS_H
#define LUATTN_ABI_LINEAR_PARAMS_H

#include "abi/params.h"
#include "abi/shared_memory.h"

#define LUATTN_CHUNK 64 /* tokens that a kernel computes at once */
#define LUATTN_MAX_SEGMENTS 32

enum { LINEAR_JOIN_VALUES = 16, LINEAR_JOIN_THREADS = 256 }; /* of a block of luattn_linear_join */

/* The types of states. */
enum { LUATTN_STATE_F32, LUATTN_STATE_BF16, LUATTN_STATE_F16, LUATTN_STATE_F64 };
ABI_FN int linear_state_bytes(int type) { return type == LUATTN_STATE_F64 ? 8 : type == LUATTN_STATE_F32 ? 4 : 2; }

/* States [rows, heads_v, V, K] or [rows, heads_v, K, V]: the strides of the last two say which. */
typedef struct LuattnStates {
  void *data; /* null: the first state is 0; the last one is not wanted */
  long long row, head, value, key;
  int type;
  int unused;
} LuattnStates;

/* One entry's tokens are cut into `count` segments of whole chunks that run side by side. The state at the beginning of
 * segment i is made of those of the segments before it, which luattn_linear_states writes. */
typedef struct LuattnSegments {
  int count; /* 1: entries are not cut */
  int unused;
  float *states; /* [entries][heads_v][count][V][K]: the first state; then what each segment but the last adds to 0 (the
                  * first one: to the first state) */
  float *maps;   /* where updates erase: [entries][heads_v][count][K][K]: what each segment but the first and the last
                  * multiplies a state by; luattn_linear_join makes states of these and of what is added */
  float *
      decays; /* [entries][heads_v][count]: the logarithm, to the base of 2, of what is left over a segment. Where decays
                  * differ between channels: [..][count][K], what is left. Of updates that erase, either way: [..][count],
                  * 0 where a map counts as 0 (linear_segment_end.cuh, linear_tile_segments.cuh) */
} LuattnSegments;

/* What the backward kernels of updates that erase hand on, of each chunk of each value head (linear_chunk_slot): the state
 * before it, U, the gradient of the state behind it, and that of R. In boxes of 64 tokens, or value channels, by 64 channels,
 * as TMA swizzles them, of Elem; states: for each box of value channels those of k. */
typedef struct LuattnLinearKept {
  void *states, *values, *grad_states, *grad_values;
  void *tiles; /* where decays differ between channels, of each chunk: LinearTilesLayout */
} LuattnLinearKept;

/* Gradients of numbers of tokens, [rows of all entries][heads_v]. Null: not wanted. */
typedef struct LuattnLinearSums {
  float *decay, *write, *read, *query_factor, *key_factor;
} LuattnLinearSums;

/* Rows around the main kernels (templates/linear/around). Row r of a tensor is token r of all entries, [entries][tokens] or
 * packed. Rows that are made are contiguous, [rows][heads][dim]. */
enum { LUATTN_FINISH_ROWS = 128, LUATTN_LINEAR_TENSORS = 3, LUATTN_PREPARE_ROWS = 4 /* of a warp */ };
typedef struct LuattnLinearRows {
  LuattnTensor
      from[LUATTN_LINEAR_TENSORS]; /* the caller's q, k and v; main kernels read rows that luattn_linear_prepare
                                             * makes of some */
  LuattnTensor dout, grad[LUATTN_LINEAR_TENSORS]; /* backward: of the caller; data null: not wanted */
  LuattnTensor made[LUATTN_LINEAR_TENSORS];       /* gradients that main kernels write, of each value head; the caller's
                                             * itself: there is nothing to finish but rows of no entry */
  unsigned
      blocks[LUATTN_LINEAR_TENSORS + 1]; /* of luattn_linear_finish: those of q, k, v and numbers, one after another */
} LuattnLinearRows;

/* Decoding behind a checkpoint, the first state: rows of the tokens since. Of a row of the states and a value head: `seq`
 * is the stride of rows. */
typedef struct LuattnRing {
  LuattnTensor k, e; /* [.., K]; e where the update has `erase` */
  LuattnTensor u, y; /* [.., V]: what was written, and what r read */
  LuattnTensor sums; /* float, [.., 1] or [.., K]: of the logarithms of decays since the checkpoint */
  const int *used;   /* [entries]: rows that count */
  int count, type;   /* rows that there are; of k, e, u and y, as LuattnStates */
} LuattnRing;

/* Where a ring's kernel has rows in shared memory (templates/linear/recurrent/ring_rows.cuh), in numbers: `row` of each new
 * token first; then old rows of k, e, u and y as they are in memory; u and y of new ones; sums of decays of old and of new ones;
 * products of new rows' q and r with k and with e; a barrier. */
typedef struct LinearRingPlaces {
  int k, e, u, y, new_u, new_y, sums, new_sums, read, query, read_e, query_e,
      numbers; /* numbers: all, a multiple of 4 */
} LinearRingPlaces;

/* k_dim, width: of a row of k and of sums, padded. */
ABI_FN LinearRingPlaces linear_ring_places(int tokens, int row, int count, int k_dim, int v_block, int width, int reads,
                                           int erases) {
  LinearRingPlaces l = {0};
  const int pairs = tokens * count;
  l.k = tokens * row;
  l.e = l.k + count * k_dim;
  l.u = l.e + erases * count * k_dim;
  l.y = l.u + count * v_block;
  l.new_u = l.y + erases * count * v_block;
  l.new_y = l.new_u + tokens * v_block;
  l.sums = l.new_y + erases * tokens * v_block;
  l.new_sums = l.sums + count * width;
  l.read = l.new_sums + tokens * width;
  l.query = l.read + reads * pairs;
  l.read_e = l.query + pairs;
  l.query_e = l.read_e + erases * pairs;
  l.numbers = layout_ceil(l.query_e + erases * pairs, 4) * 4 + 4;
  return l;
}

/* Kernels that take states of bf16 along K by tensor cores: value channels of a warp, threads and blocks at once. */
enum { LINEAR_RING_PAIR_VALUES = 32, LINEAR_RING_PAIR_THREADS = 128, LINEAR_RING_PAIR_BLOCKS = 4 };

/* They have q and r of each new token behind those places, each as three rows of bf16, so many bytes apart, that begin in other
 * banks. */
enum { LINEAR_RING_SPLITS = 6 };
ABI_FN int linear_ring_split_pitch(int k_dim) { return 2 * k_dim + (k_dim % 64 == 0 ? 64 : 0); }
ABI_FN int linear_ring_pair_bytes(int tokens, int k_dim) {
  return tokens * LINEAR_RING_SPLITS * linear_ring_split_pitch(k_dim);
}

/* States before every `every` tokens of an entry: number of entry * count + n, or of packed sequences as linear.h says. */
typedef struct LuattnStatesBetween {
  LuattnStates states; /* data null: not wanted; row: from one to the next */
  int every, count;
} LuattnStatesBetween;

/* What the kernels of backward token by token hand on (templates/linear/recurrent/reverse_recurrent.cuh), numbers of the type that
 * they compute in. */
typedef struct LuattnReverse {
  void *starts;  /* [runs of all][heads_v][V][K]: the state before each run of tokens */
  void *states;  /* of the tokens of a run, for each block */
  void *keys;    /* [rows of all][heads_v][..][K]: gradients of rows along K behind hooks */
  void *written; /* [rows of all][heads_v][V]: of what is written */
  void *sums;    /* [rows of all][heads_v]: what o is divided by */
  LuattnStates dlast, dfirst;
  int parts; /* of an entry's tokens, which have a block of luattn_linear_hooks for each head of q */
  int unused;
} LuattnReverse;

/* How blocks of luattn_linear_step divide their shared memory (templates/linear/recurrent/step_parts.cuh): barriers; slots, of rows
 * of tokens; stages, of parts of states, which TMA copies as lines along K, or along V. */
enum { LINEAR_STEP_BARRIERS = 256, LINEAR_STEP_SLOTS = 3, LINEAR_STEP_STAGES = 6 };
/* Blocks of luattn_linear_part and luattn_linear_part_half (templates/linear/recurrent/step_part.cuh), whose states are of f32
 * and of 16 bits: value channels, and how many a multiprocessor has at once; threads; the most channels of K. */
enum { LINEAR_PART_VALUES = 32, LINEAR_PART_BLOCKS = 7, LINEAR_PART_HALF_VALUES = 64, LINEAR_PART_HALF_BLOCKS = 4 };
enum { LINEAR_PART_THREADS = 128, LINEAR_PART_KEYS = 128 };
/* Blocks of luattn_linear_tokens and luattn_linear_tokens_more (templates/linear/recurrent/step_tokens.cuh): tokens, at most;
 * threads, turns of a warp, 16 value channels each, and how many blocks a multiprocessor has at once. */
enum { LINEAR_TOKENS_FEW = 4, LINEAR_TOKENS_MORE = 8 };
enum { LINEAR_TOKENS_THREADS = 128, LINEAR_TOKENS_TURNS = 2, LINEAR_TOKENS_BLOCKS = 5, LINEAR_TOKENS_MORE_BLOCKS = 4 };
enum { LINEAR_TOKENS_VALUES = LINEAR_TOKENS_THREADS / 32 * 16 * LINEAR_TOKENS_TURNS };
/* Their shared memory, in bytes: operands, r and q of tokens, and keys, rows of `pitch`, high halves first; keys of two tokens
 * channel by channel; decays; what is written, in whose place o is, and skips; barriers; the state. */
typedef struct LinearTokensPlaces {
  int pitch, key_pitch, turned_pitch, keys, turned, decays, written, skip, barriers, state, size;
} LinearTokensPlaces;
ABI_FN LinearTokensPlaces linear_tokens_places(int tokens, int k_dim, int skips) {
  LinearTokensPlaces l = {0};
  const int k = layout_ceil(k_dim, 32) * 32, columns = tokens > 4 ? 16 : 8, rows = 4 * tokens * LINEAR_TOKENS_VALUES;
  l.pitch = linear_ring_split_pitch(k);
  l.key_pitch = 4 * k + 16;
  l.turned_pitch = 4 * k + 32;
  l.keys = 2 * columns * l.pitch;
  l.turned = layout_ceil(l.keys + tokens * l.key_pitch, 16) * 16;
  l.decays = l.turned + tokens * l.turned_pitch;
  l.written = l.decays + 4 * tokens;
  l.skip = l.written + rows;
  l.barriers = l.skip + skips * rows;
  l.state = layout_ceil(l.barriers + LINEAR_TOKENS_VALUES / 2, 128) * 128;
  l.size = l.state + 2 * LINEAR_TOKENS_VALUES * k_dim;
  return l;
}
typedef struct LuattnLinearStep {
  int batch;         /* tokens of a slot */
  int slots, slot;   /* how many, and bytes of each */
  int stages, stage; /* likewise */
  int by_v;
  int whole; /* a block has all parts of a head, one after another, whose rows are in one slot */
} LuattnLinearStep;

typedef struct LuattnLinearParams {
  int entries;        /* batch entries, or packed sequences */
  int tokens;         /* of an entry; packed: of all */
  int heads, heads_v; /* of q and k; of v, o and states: a multiple */
  int group;          /* heads_v / heads */
  float scale;
  LuattnTensor q, k, v, o;
  const int *cu_seqlens; /* [entries + 1]: the first row of each, and the end; null unless packed */
  const int
      *state_rows; /* [entries]: the row of the pool that has an entry's state; negative: there is none, o of the entry
                          * is 0. null: row i is entry i's */
  LuattnStates first, last;
  int ahead; /* token by token: so many value heads on begin about when a block ends; 0: nothing is prefetched */
  LuattnSegments segments;
  LuattnRing ring;
  LuattnReverse reverse;
  LuattnInputs inputs;
  LuattnLinearKept kept;
  LuattnLinearSums sums;
  LuattnTensor dq, dk, dv; /* of luattn_linear_rows, whose o is do; dq and dk have heads_v heads */
  LuattnLinearRows rows;
  LuattnStatesBetween between;
  void *
      inverses; /* of updates that erase, decays not of channels: of each chunk of each value head (linear_chunk_slot), T
                   * (luattn_linear_inverses), a box of Elem */
  LuattnLinearStep step;
  float *
      chunk_decays; /* beside inverses, of each chunk: the logarithm, to the base of 2, of what decays leave of a state over it,
                        * or 1 where one of its updates may make a vector longer (linear_segment_end.cuh) */
  double wide_scale; /* scale, for kernels that compute in float64 */
} LuattnLinearParams;

/* Bytes of a line of a part of a state in shared memory: lines along V begin in other banks. */
ABI_FN int linear_step_pitch(int line, int by_v) { return line + (by_v ? 16 : 0); }

/* The number of the state before token t, a multiple of `every`, of an entry that begins at row `start`. */
ABI_FN long long linear_state_between(const LuattnStatesBetween *b, int entry, int start, int t, int packed) {
  return (packed ? (long long)(start / b->every + entry) : (long long)entry * b->count) + t / b->every;
}

/* The second parameter of luattn_linear_rows. */
typedef struct LuattnLinearRowMaps {
  LuattnTensorMap q, k, v, dout, dq, dk, dv;
} LuattnLinearRowMaps;

ABI_ASSERT((sizeof(LuattnLinearParams) + 63) / 64 * 64 <= 4096 - sizeof(LuattnLinearRowMaps),
           "a driver before CUDA 12.1 gives a kernel 4096 bytes of parameters");

/* Bytes of a row of sums of decays of channels: rows begin in other banks. */
ABI_FN int linear_gate_row(int k_dim) { return (k_dim + 63) / 64 * 256 + 16; }

/* Shared memory of the sm90 family's forward kernel: the stages of q, k and v, and of the inverse where an update erases; of
 * products of q and k; boxes of o for each warpgroup of 64 value channels, or those that it keeps of a chunk for backward;
 * where decays differ between channels, their sums, and factors of the state's columns; numbers of tokens; barriers. Boxes have
 * 64 tokens of 64 channels. */
typedef struct LinearLayout {
  int qk, v, stage, pairs, gates; /* bytes; stage: of q, k, v and all that comes with them */
  int boxes_o;                    /* of a warpgroup */
  int gate_stages;
  int at_pairs, at_o, at_gates, at_factors, at_numbers, at_barriers;
  int at_inverses, at_solver; /* of the kernel that makes T itself: boxes of it, and what it is made of */
  int at_q, at_v;             /* of the same: k begins at 0, and has more stages than these */
  int bytes;
} LinearLayout;

enum {
  LINEAR_BOX = LUATTN_CHUNK * 128,
  LINEAR_PAIR_STAGES = 2,
  LINEAR_NUMBER_STAGES = 4,
  LINEAR_NUMBERS = 2304,
  LINEAR_INVERSE_THREADS = 64,
  LINEAR_DIAGONAL = 4 * 16 * 80, /* the diagonal blocks, in float, with rows of 80 bytes */
  LINEAR_FACTORS = 3 * 128 * 4,  /* of a stage of pairs: three numbers of each channel */
  LINEAR_SOLVER_CHUNK = 18496,   /* what a chunk's T is made of (templates/linear/sm90/linear_solver.cuh) */
  LINEAR_SOLVER_BYTES = 2 * LINEAR_SOLVER_CHUNK + 32,
  LINEAR_WHOLE_KEY_STAGES = 4, /* of the kernel that makes T itself, of two chunks at once */
  LINEAR_WHOLE_NUMBER_STAGES = 6
};

/* by_channel: decays differ between channels; then updates add. */
ABI_FN LinearLayout linear_layout_of(int k_dim, int v_block, int stages, int erases, int by_channel, int boxes_o,
                                     int pair_stages) {
  LinearLayout l = {0};
  l.qk = layout_ceil(k_dim, 64) * LINEAR_BOX;
  l.v = layout_ceil(v_block, 64) * LINEAR_BOX;
  l.stage = 2 * l.qk + l.v + (erases ? LINEAR_BOX : 0);
  l.pairs = LINEAR_BOX;
  l.at_pairs = stages * l.stage;
  l.at_o = l.at_pairs + pair_stages * l.pairs;
  l.boxes_o = boxes_o;
  l.at_gates = l.at_o + l.boxes_o * layout_ceil(v_block, 64) * LINEAR_BOX;
  l.gates = by_channel ? LUATTN_CHUNK * linear_gate_row(k_dim) : 0;
  l.gate_stages = 2;
  l.at_factors = l.at_gates + l.gate_stages * l.gates;
  l.at_numbers = l.at_factors + (by_channel ? LINEAR_PAIR_STAGES * LINEAR_FACTORS + 16 : 0);
  l.at_barriers = l.at_numbers + LINEAR_NUMBER_STAGES * LINEAR_NUMBERS;
  l.bytes = l.at_barriers + 256;
  return l;
}
ABI_FN LinearLayout linear_layout(int k_dim, int v_block, int stages, int erases, int by_channel) {
  return linear_layout_of(k_dim, v_block, stages, erases, by_channel, 2, LINEAR_PAIR_STAGES);
}
enum { LINEAR_TWO_THREADS = 512 };
/* Of a block that has two value heads of one head of q and k, each with pairs of its own. */
ABI_FN LinearLayout linear_layout_two(int k_dim, int stages) {
  return linear_layout_of(k_dim, 128, stages, 0, 0, 2, 2 * LINEAR_PAIR_STAGES);
}
ABI_FN int linear_two_stages(int k_dim) {
  int stages = 4;
  while (stages > 2 && linear_layout_two(k_dim, stages).bytes > LUATTN_SM90_SHARED_BYTES) stages--;
  return stages;
}
/* The same where an update erases and the kernel makes T itself. */
ABI_FN LinearLayout linear_layout_whole(int k_dim, int v_block) {
  LinearLayout l = linear_layout_of(k_dim, v_block, 0, 0, 0, 1, LINEAR_PAIR_STAGES);
  l.at_q = LINEAR_WHOLE_KEY_STAGES * l.qk;
  l.at_v = l.at_q + LINEAR_PAIR_STAGES * l.qk;
  l.at_pairs = l.at_v + LINEAR_PAIR_STAGES * l.v;
  l.at_inverses = l.at_pairs + LINEAR_PAIR_STAGES * l.pairs;
  l.at_o = l.at_inverses + LINEAR_PAIR_STAGES * LINEAR_BOX;
  l.at_numbers = l.at_o + l.v;
  l.at_barriers = l.at_numbers + LINEAR_WHOLE_NUMBER_STAGES * LINEAR_NUMBERS;
  l.at_solver = l.at_barriers + 256;
  l.bytes = l.at_solver + LINEAR_SOLVER_BYTES;
  return l;
}
/* The stages of a pass for a gradient of an additive update. */
ABI_FN int linear_grad_stages(int k_dim, int v_block) {
  int stages = 4;
  while (stages > 2 && linear_layout(k_dim, v_block, stages, 0, 0).bytes > LUATTN_SM90_SHARED_BYTES) stages--;
  return stages;
}
/* Shared memory of luattn_linear_numbers: a chunk's q, k, v and do in boxes; both states; numbers of tokens; sums of warps;
 * barriers. */
typedef struct LinearNumbersLayout {
  int state; /* bytes */
  int at_k, at_v, at_dout, at_state, at_grad_state, at_numbers, at_sums, at_barriers;
  int bytes;
} LinearNumbersLayout;

enum { LINEAR_WAY_NUMBERS = 4 * 256, LINEAR_WAY_SUMS = 10 * 256 + 64 };

ABI_FN LinearNumbersLayout linear_numbers_layout(int k_dim, int v_dim) {
  LinearNumbersLayout l = {0};
  const int qk = layout_ceil(k_dim, 64) * LINEAR_BOX, v = layout_ceil(v_dim, 64) * LINEAR_BOX;
  l.state = layout_ceil(k_dim, 64) * v;
  l.at_k = qk;
  l.at_v = l.at_k + qk;
  l.at_dout = l.at_v + v;
  l.at_state = l.at_dout + v;
  l.at_grad_state = l.at_state + l.state;
  l.at_numbers = l.at_grad_state + l.state;
  l.at_sums = l.at_numbers + 2 * LINEAR_WAY_NUMBERS;
  l.at_barriers = l.at_sums + LINEAR_WAY_SUMS;
  l.bytes = l.at_barriers + 256;
  return l;
}
/* Shared memory of luattn_linear_inverses: boxes of k, in whose place T is made, as it is in float, then T; numbers of tokens; a
 * barrier. */
ABI_FN int linear_inverses_bytes(int k_dim) {
  return layout_ceil(k_dim, 64) * LINEAR_BOX + (k_dim > 64 ? 0 : LINEAR_BOX) + LINEAR_BOX + LINEAR_NUMBERS + 64;
}
/* Of kernels that keep states of chunks. */
ABI_FN LinearLayout linear_layout_kept(int k_dim, int v_block, int stages) {
  return linear_layout_of(k_dim, v_block, stages, 1, 0, layout_ceil(k_dim, 64) + 1, LINEAR_PAIR_STAGES);
}

/* Of kernels that keep states of additive updates: without places of q and of pairs. */
ABI_FN LinearLayout linear_layout_states(int k_dim, int v_block, int stages) {
  LinearLayout l = linear_layout_of(k_dim, v_block, stages, 0, 0, layout_ceil(k_dim, 64), LINEAR_PAIR_STAGES);
  const int less = stages * l.qk + LINEAR_PAIR_STAGES * l.pairs;
  l.stage -= l.qk;
  l.at_o -= less, l.at_gates -= less, l.at_factors -= less, l.at_numbers -= less, l.at_barriers -= less;
  l.bytes -= less;
  return l;
}

/* Chunks of all entries have slots, some of which stay empty where sequences are packed. */
ABI_FN int linear_chunk_slots(int entries, int tokens, int packed) {
  return packed ? tokens / LUATTN_CHUNK + entries : entries * layout_ceil(tokens, LUATTN_CHUNK);
}
/* The slot of an entry's first chunk. */
ABI_FN int linear_first_slot(int entry, int first_row, int tokens, int packed) {
  return packed ? first_row / LUATTN_CHUNK + entry : entry * layout_ceil(tokens, LUATTN_CHUNK);
}

/* Shared memory of luattn_linear_rows: a chunk's q, k, do, U, the gradient of R, v; both states; gradients of pairs, of q k'
 * and of k k'; numbers of tokens; sums; barriers. */
typedef struct LinearRowsLayout {
  int qk, v, state; /* bytes */
  int at_q, at_k, at_dout, at_values, at_grad_values, at_v, at_state, at_grad_state, at_pairs, at_numbers, at_sums,
      at_barriers;
  int bytes;
} LinearRowsLayout;

enum { LINEAR_ROW_NUMBERS = 1344, LINEAR_ROW_SUMS = 11 * 256 + 64 };

ABI_FN LinearRowsLayout linear_rows_layout(int k_dim, int v_dim) {
  LinearRowsLayout l = {0};
  l.qk = layout_ceil(k_dim, 64) * LINEAR_BOX;
  l.v = layout_ceil(v_dim, 64) * LINEAR_BOX;
  l.state = layout_ceil(k_dim, 64) * l.v;
  l.at_k = l.qk;
  l.at_dout = l.at_k + l.qk;
  l.at_values = l.at_dout + (l.qk > l.v ? l.qk : l.v);
  l.at_grad_values = l.at_values + l.v;
  l.at_v = l.at_grad_values + (l.qk > l.v ? l.qk : l.v);
  l.at_state = l.at_v + l.v;
  l.at_grad_state = l.at_state + l.state;
  l.at_pairs = l.at_grad_state + l.state;
  l.at_numbers = l.at_pairs + 2 * LINEAR_BOX;
  l.at_sums = l.at_numbers + 2 * LINEAR_ROW_NUMBERS;
  l.at_barriers = l.at_sums + LINEAR_ROW_SUMS;
  l.bytes = l.at_barriers + 256;
  return l;
}

/* Shared memory of luattn_linear_grads, whose tensors have two boxes of channels each: boxes, in the order of GradBox
 * (templates/linear/sm90/grads_pipeline.cuh); two stages of numbers of tokens; sums; barriers. */
enum {
  LINEAR_GRAD_BOXES = 27,
  LINEAR_GRAD_NUMBERS = 2304,
  LINEAR_GRAD_SUMS = 18 * 256,
  LINEAR_GRAD_BARRIERS = 512,
  LINEAR_GRADS_BYTES =
      LINEAR_GRAD_BOXES * LINEAR_BOX + 2 * LINEAR_GRAD_NUMBERS + LINEAR_GRAD_SUMS + LINEAR_GRAD_BARRIERS
};

/* Shared memory of luattn_linear_group_rows: two boxes of q and of k; stages of v, do and both states; two boxes of pairs, and two of
 * dv; stages of numbers of tokens; two of sums; sums over rows; barriers. */
enum {
  LINEAR_GROUP_STAGES = 3,
  LINEAR_GROUP_STAGE_BOXES = 6,
  LINEAR_GROUP_NUMBER_STAGES = 4,
  LINEAR_GROUP_NUMBERS = 5 * 256 + 64,
  LINEAR_GROUP_SUMS = 9 * 256 + 64,
  LINEAR_GROUP_RUNS = 256,
  LINEAR_GROUP_BYTES = (4 + LINEAR_GROUP_STAGES * LINEAR_GROUP_STAGE_BOXES + 4) * LINEAR_BOX +
                       LINEAR_GROUP_NUMBER_STAGES * LINEAR_GROUP_NUMBERS + 2 * LINEAR_GROUP_SUMS +
                       2 * LINEAR_GROUP_RUNS + 256
};

/* What luattn_linear_tiles makes of a chunk whose decays differ between channels, in boxes of Elem, with all factors of tokens:
 * pairs of q k'; q e^G; of updates that erase r e^G, and the inverse; k e^(GC - G); numbers: e^GC of each channel, w of each
 * token, and of each block of 16 tokens whether what they erase shrinks, and what its decays leave of a state at most: of each
 * token the logarithm, to the base of 2, of the channel that keeps most, added up. A chain that needs no o loads it from `at_reads` on.
 * For backward luattn_linear_columns loads factors of tokens, and rows of sums of decays. */
typedef struct LinearTilesLayout {
  int at_pairs, at_queries, at_reads, at_inverse, at_keys, at_numbers, at_factors;
  int bytes;
} LinearTilesLayout;

enum {
  LINEAR_TILE_NUMBERS = 1024,
  LINEAR_TILE_WRITES = 512,
  LINEAR_TILE_SHRINKS = 768,
  LINEAR_TILE_LEFT = 784,
  LINEAR_TILE_FACTORS = 4 * 256
};

/* Bytes of a row of these: those that a warp reads at once begin in other banks. */
ABI_FN int linear_sums_row(int k_dim) { return layout_ceil(k_dim, 64) * 256 + 32; }

ABI_FN LinearTilesLayout linear_tiles_layout(int k_dim, int erases, int backward) {
  LinearTilesLayout l = {0};
  const int qk = layout_ceil(k_dim, 64) * LINEAR_BOX;
  l.at_queries = LINEAR_BOX;
  l.at_reads = l.at_queries + qk;
  l.at_inverse = l.at_reads + (erases ? qk : 0);
  l.at_keys = l.at_inverse + (erases ? LINEAR_BOX : 0);
  l.at_numbers = l.at_keys + qk;
  l.at_factors = l.at_numbers + LINEAR_TILE_NUMBERS;
  l.bytes = l.at_factors + (backward ? LINEAR_TILE_FACTORS + LUATTN_CHUNK * linear_sums_row(k_dim) : 0);
  return l;
}

/* Shared memory of the kernel that makes them: q e^G and k e^G of blocks of 16 tokens; k of these as pairs with its own block and
 * with the next ones take it, in whose place the inverse is made; rows of sums of decays; of chunks in turns numbers of tokens, and
 * where a chunk lies. Pairs and the inverse take the place of tiles. */
typedef struct LinearMakerLayout {
  int qk, row; /* bytes; row: of sums */
  int at_reads, at_keys, at_sums, at_numbers, at_places;
  int bytes;
} LinearMakerLayout;

enum { LINEAR_KEY_TILES = 10, LINEAR_MAKER_BLOCKS = 2 }; /* blocks: of a multiprocessor */

ABI_FN LinearMakerLayout linear_maker_layout(int k_dim) {
  LinearMakerLayout l = {0};
  l.qk = layout_ceil(k_dim, 64) * LINEAR_BOX;
  l.row = linear_sums_row(k_dim);
  l.at_reads = l.qk;
  l.at_keys = 2 * l.qk;
  const int keys = LINEAR_KEY_TILES * (l.qk / 4), inverse = 2 * LINEAR_BOX + LINEAR_DIAGONAL;
  l.at_sums = l.at_keys + (keys > inverse ? keys : inverse);
  l.at_numbers = l.at_sums + LUATTN_CHUNK * l.row;
  l.at_places = l.at_numbers + 2 * LINEAR_TILE_FACTORS;
  l.bytes = l.at_places + 2 * 32;
  return l;
}

/* What a chain that takes tiles leaves of each chunk: the state, and values; the same backwards; or o. */
enum { LINEAR_CHAIN_STATES, LINEAR_CHAIN_BACK, LINEAR_CHAIN_OUT };

/* Shared memory of the chains that take tiles: stages of these and of v or do; of each warpgroup boxes of a state and of values,
 * or two of o; barriers. */
typedef struct LinearChainLayout {
  int tiles, stage; /* bytes of a stage, and of tiles in it */
  int boxes;        /* of a warpgroup */
  int at_kept, at_barriers;
  int bytes;
} LinearChainLayout;

ABI_FN LinearChainLayout linear_chain_layout(int k_dim, int v_block, int erases, int leaves) {
  const LinearTilesLayout t = linear_tiles_layout(k_dim, erases, 0);
  const int groups = layout_ceil(v_block, 64);
  LinearChainLayout l = {0};
  l.tiles = t.at_factors - (leaves == LINEAR_CHAIN_STATES ? t.at_reads : 0);
  l.stage = l.tiles + groups * LINEAR_BOX;
  l.boxes = leaves == LINEAR_CHAIN_OUT ? 2 : layout_ceil(k_dim, 64) + 1;
  l.at_kept = 2 * l.stage;
  l.at_barriers = l.at_kept + groups * l.boxes * LINEAR_BOX;
  l.bytes = l.at_barriers + 64;
  return l;
}

/* Shared memory of luattn_linear_columns: a chunk's q and k; do and v, or of updates that erase U and the gradient of R, in whose
 * place tiles are made; both states; of updates that add, tiles; factors of tokens and sums of decays; pairs; what is left of
 * decays; sums of blocks of tokens, and where gradients of decays go; numbers of tokens; barriers. */
typedef struct LinearColumnsLayout {
  int qk, v, state, row; /* bytes; row: of sums */
  int at_q, at_k, at_values, at_state, at_grad_state, at_tiles, at_factors, at_pairs, at_left, at_totals, at_numbers,
      at_barriers;
  int bytes;
} LinearColumnsLayout;

enum { LINEAR_COLUMN_NUMBERS = 5 * 256, LINEAR_COLUMN_TOTALS = 14 * 512, LINEAR_LEFT = 16 * 512 };

ABI_FN LinearColumnsLayout linear_columns_layout(int k_dim, int v_dim, int erases) {
  LinearColumnsLayout l = {0};
  const int places = erases ? 3 : 2;
  l.qk = layout_ceil(k_dim, 64) * LINEAR_BOX;
  l.v = layout_ceil(v_dim, 64) * LINEAR_BOX;
  l.state = layout_ceil(k_dim, 64) * l.v;
  l.row = linear_sums_row(k_dim);
  l.at_k = l.qk;
  l.at_values = l.at_k + l.qk;
  l.at_state = l.at_values + places * (l.qk > l.v ? l.qk : l.v);
  l.at_grad_state = l.at_state + l.state;
  l.at_tiles = erases ? l.at_values : l.at_grad_state + l.state;
  l.at_pairs = l.at_grad_state + l.state + (erases ? 0 : 2 * l.qk);
  l.at_factors = l.at_pairs + (erases ? 2 : 1) * LINEAR_BOX;
  l.at_left = l.at_factors + LINEAR_TILE_FACTORS + LUATTN_CHUNK * l.row;
  l.at_totals = l.at_left + LINEAR_LEFT;
  l.at_numbers = l.at_totals + LINEAR_COLUMN_TOTALS;
  l.at_barriers = l.at_numbers + LINEAR_COLUMN_NUMBERS;
  l.bytes = l.at_barriers + 256;
  return l;
}

/* Shared memory of the kernel that makes tiles of quarters of chunks, and has the chain that takes them: of each quarter of two
 * chunks rows of r and q, 32 of them, and keys; v and o of two chunks; keys of pairs, and what quarters that decay much need, of
 * each quarter of one; small numbers of each quarter of two; barriers. */
typedef struct LinearQuartersLayout {
  int rows, keys, slot; /* bytes */
  int at_v, at_o, at_pair_keys, at_small, at_sums, at_diagonals, at_flags, at_barriers;
  int bytes;
} LinearQuartersLayout;

enum { LINEAR_QUARTER = 16, LINEAR_QUARTER_SLOTS = 8, LINEAR_QUARTER_THREADS = 512, LINEAR_QUARTER_END_THREADS = 512 };
/* Small: the inverse, pairs, what is left over the quarter of each channel; of tokens w, and factors of rows of r and q. */
enum {
  LINEAR_QUARTER_PAIRS = 512,
  LINEAR_QUARTER_LEFT = 1024,
  LINEAR_QUARTER_WRITES = 1536,
  LINEAR_QUARTER_SMALL = 1728,
  LINEAR_QUARTER_SUMS = LINEAR_QUARTER * 512,
  LINEAR_QUARTER_DIAGONAL = LINEAR_QUARTER * 80
};

ABI_FN LinearQuartersLayout linear_quarters_layout(void) {
  LinearQuartersLayout l = {0};
  l.rows = LINEAR_BOX, l.keys = LINEAR_BOX / 2, l.slot = l.rows + l.keys;
  l.at_v = LINEAR_QUARTER_SLOTS * l.slot;
  l.at_o = l.at_v + 4 * LINEAR_BOX;
  l.at_pair_keys = l.at_o + 4 * LINEAR_BOX;
  l.at_sums = l.at_pair_keys + 2 * LINEAR_BOX;
  l.at_small = l.at_sums + 4 * LINEAR_QUARTER_SUMS;
  l.at_diagonals = l.at_small + LINEAR_QUARTER_SLOTS * LINEAR_QUARTER_SMALL;
  l.at_flags = l.at_diagonals + 4 * LINEAR_QUARTER_DIAGONAL;
  l.at_barriers = l.at_flags + 64;
  l.bytes = l.at_barriers + 192;
  return l;
}

#endif
