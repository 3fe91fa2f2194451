/* manifest.h: describes an image's kernels: everything that launches, pack indices and compilation reports need.
 * Host only.
 *
 * Private: no installed header has it, so it may change from one luattn to the next. luattn_kernel_description
 * (luattn/image.h) is what programs see. abi/image.h says how it is stored.
 */
#ifndef LUATTN_ABI_MANIFEST_H
#define LUATTN_ABI_MANIFEST_H

#include "abi/kernel_facts.h"
#include "common/call/scalar_range.h"

/* The kind of an entry, from which the runtime derives its grid. */
typedef enum luattn_role {
  LUATTN_ROLE_STATS, /* block minima and maxima of an integer input; grid (blocks, rows, stat). Absent where
                        * PREPARE computes them */
  LUATTN_ROLE_MOD,   /* writes q', k', v' into the workspace; grid (positions, heads, batch * 3) */
  LUATTN_ROLE_NORMS, /* bounds of |k| into the workspace; grid (kv_len / tile_m, heads_kv, batch); in backward of |q|
                        * too, and of lse: (positions / tile_m, heads, batch * 2) */
  LUATTN_ROLE_TILE_BITMAP, /* bitmap of the tiles of FORWARD or DKDV that are not skipped; grid (q tiles, heads,
                        * batch), in backward (groups of 4 x 32 q tiles of a kv tile, 32 per warp; heads;
                        * batch); tile_m and tile_n are the main entry's */
  LUATTN_ROLE_FORWARD,     /* grid (ceil(q_len / tile_m), heads, batch) */
  LUATTN_ROLE_PREPARE,     /* backward rows; grid (ceil(q_len / tile_m), heads, batch) */
  LUATTN_ROLE_DKDV,        /* grid (ceil(kv_len / tile_n), heads_kv, batch), or the resident blocks of a
                        * persistent kernel; may add into dq_acc */
  LUATTN_ROLE_DQ,          /* grid (ceil(q_len / tile_m), heads, batch) */
  LUATTN_ROLE_FINISH, /* accumulators and mods' derivatives to dq, dk, dv; grid (positions / tile_m, heads, batch * 3)
                        */
  LUATTN_ROLE_ROUND,  /* exact sums to gradients of inputs and scalars; grid (elements / tile_m, inputs + 1, 1) */
  LUATTN_ROLE_TILE_BITS,  /* tile bits of a mask from data; grid (32 columns of cells, 8 rows of cells, sets) */
  LUATTN_ROLE_TILE_ORDER, /* the order of FORWARD's or DKDV's tiles by tile bits; grid (sets of the order, 1, 1); or all
                           * orders of a batch: (sets of bits, LUATTN_ORDERS, 1) */
  LUATTN_ROLE_BLOCK_TABLE, /* LuattnBlockTable; grid (block rows, heads, batch). A launch leaves it out */
  LUATTN_ROLE_TILE_TABLE,  /* LuattnTileTable; grid (sequences + 1, 1, 1) */
  LUATTN_ROLE_MERGE,       /* decode: what the blocks of a row leave becomes O; grid (q_len, heads, batch). tile_n above
                            * 1: it waits for FORWARD itself, so that it may be launched while that runs */
  LUATTN_ROLE_APPEND,      /* LuattnAppend; a thread has a vector of 16 bytes, or an element, of k or v for tile_n heads
                            * (tile_m: for one); grid (threads / tile_m, 2, 1). A launch leaves it out */
  LUATTN_ROLE_SPLIT_LIST, /* LuattnSplitList; grid (1, 1, 1). tile_m above 1: blocks of FORWARD take items until none is
                            * left; tile_n: from the lengths of how many entries they find items without a list */
  LUATTN_ROLE_LINEAR, /* linear attention; grid (entries * value heads * segments * blocks of value channels, 1, 1) */
  LUATTN_ROLE_LINEAR_STATES, /* its segments' states; the same grid without the last segment of each entry. Not launched
                              * where entries are whole; maps: with blocks of K's channels as well */
  LUATTN_ROLE_LINEAR_PREPARE, /* rows of q, k and v by their mods; grid (3 * ceil(rows * heads of most / tile_m), 1, 1) */
  LUATTN_ROLE_LINEAR_GRAD_Q_STATES, /* backward: passes for dq, dk, dv, as LINEAR and its states are for o */
  LUATTN_ROLE_LINEAR_GRAD_Q,
  LUATTN_ROLE_LINEAR_GRAD_K_STATES,
  LUATTN_ROLE_LINEAR_GRAD_K,
  LUATTN_ROLE_LINEAR_GRAD_V_STATES,
  LUATTN_ROLE_LINEAR_GRAD_V,
  LUATTN_ROLE_LINEAR_CHAIN,      /* backward of updates that erase: the chain that keeps states, */
  LUATTN_ROLE_LINEAR_GRAD_CHAIN, /* that of their gradients; grids as LINEAR */
  LUATTN_ROLE_LINEAR_ROWS,       /* and rows of all chunks; grid (multiprocessors, or fewer, 1, 1) */
  LUATTN_ROLE_LINEAR_WAYS,       /* gradients of numbers of tokens; grid as ROWS */
  LUATTN_ROLE_LINEAR_FINISH, /* gradients of rows and numbers to those of tensors, inputs and scalars; grid (the sum of
                              * LuattnLinearRows.blocks, 1, 1) */
  LUATTN_ROLE_LINEAR_RUNS, /* backward token by token: states before runs of tokens; grid (entries * value heads, 1, 1) */
  LUATTN_ROLE_LINEAR_REVERSE, /* gradients of rows behind hooks; the same grid */
  LUATTN_ROLE_LINEAR_HOOKS, /* those of tensors, inputs and scalars; grid (entries * heads * parts of their tokens, 1, 1) */
  LUATTN_ROLE_LINEAR_ROUND, /* exact sums to gradients of inputs and scalars; grid (elements / tile_m, inputs + 1, 1) */
  LUATTN_ROLE_LINEAR_JOIN, /* states of segments from maps; grid (entries * value heads * 16 value channels each, 1, 1) */
  LUATTN_ROLE_LINEAR_CHAIN_STATES, /* of both chains: what STATES and JOIN are to LINEAR */
  LUATTN_ROLE_LINEAR_CHAIN_JOIN,
  LUATTN_ROLE_LINEAR_GRAD_CHAIN_STATES,
  LUATTN_ROLE_LINEAR_GRAD_CHAIN_JOIN,
  LUATTN_ROLE_LINEAR_TILES, /* tiles with decays of channels, of all chunks; grid (chunks * value heads, or as many as are at once, 1, 1) */
  LUATTN_ROLE_COPY_IN, /* attention over a grid: LuattnFarPlaces' copies of q, k, v and dout; grid (rows of a head and the
                        * longest copy / tile_m, heads, batch * 4). Nothing where no extent asks for copies */
  LUATTN_ROLE_COPY_OUT,        /* its copy of o to the caller's o; grid (rows / tile_m, heads, batch) */
  LUATTN_ROLE_LINEAR_INVERSES, /* T of all chunks of updates that erase; grid (chunks * value heads, 1, 1) */
  LUATTN_ROLE_LINEAR_STEP, /* what LINEAR does, of a few tokens and states that TMA copies; grid (blocks at once, or fewer,
                            * 1, 1). A launch takes one of both */
  LUATTN_ROLE_LINEAR_PAIRS, /* a ring whose states are bf16 along K, by tensor cores; grid (entries * value heads, 1, 1) */
  LUATTN_ROLE_LINEAR_GRADS, /* backward: the chain of gradients and all that is made of it, in one; grid as LINEAR */
  LUATTN_ROLE_LINEAR_END, /* forward: how early segments begin, without TILES, STATES, JOIN and CHAIN; grid (entries * value heads *
                           * (segments - 1), 1, 1) */
  LUATTN_ROLE_LINEAR_GROUP_ROWS, /* backward of additive updates: what ROWS is, with dq and dk of all value heads that read a head
                                  * of q and k added up; grid as ROWS */
  LUATTN_ROLE_LINEAR_TWO, /* what LINEAR does, of two value heads a block. A launch takes one of both; grid (half as many, 1, 1) */
  LUATTN_ROLE_LINEAR_PART, /* LINEAR_STEP's work of one token, states of f32 along K; grid (entries * value heads * parts, 1, 1) */
  LUATTN_ROLE_LINEAR_PART_HALF, /* the same of states of 16 bits */
  LUATTN_ROLE_LINEAR_WHOLE, /* what INVERSES and LINEAR do, of entries that are not cut and keep nothing; grid as LINEAR. A launch
                             * takes one of both */
  LUATTN_ROLE_LINEAR_TOKENS, /* LINEAR_STEP's work of 2 to LINEAR_TOKENS_FEW tokens, states of bf16 along K; grid as PART */
  LUATTN_ROLE_LINEAR_TOKENS_MORE, /* of at most LINEAR_TOKENS_MORE */
  LUATTN_ROLE_COUNT
} luattn_role;

/* The main entry takes longest to compile. All others together take less; DQ of the simt family's backward
 * takes about as long. */
static inline int luattn_role_is_main(uint32_t role) {
  return role == LUATTN_ROLE_FORWARD || role == LUATTN_ROLE_DKDV || role == LUATTN_ROLE_LINEAR ||
         role == LUATTN_ROLE_LINEAR_GRAD_V || role == LUATTN_ROLE_LINEAR_ROWS || role == LUATTN_ROLE_LINEAR_REVERSE;
}

enum {
  MANIFEST_MAX_ENTRIES = 12,
  MANIFEST_MAX_INPUTS = 12,
  MANIFEST_MAX_SCALARS = 32,
  MANIFEST_MAX_STATS = 8,
  MANIFEST_MAX_ELSEWHERE = 48
};
enum { MANIFEST_MAX_PARAMS = 4096 }; /* bytes of parameters that any CUDA kernel may take */

typedef struct manifest_entry {
  char name[LUATTN_NAME_SIZE];     /* symbol in the image's code */
  uint32_t role;                   /* luattn_role */
  uint32_t threads, shared_bytes;  /* dynamic shared memory */
  uint32_t tile_m, tile_n;         /* rows and columns a block covers, as its role's grid needs */
  uint32_t registers, local_bytes; /* as ptxas reported; local_bytes > 0 means spills or a stack */
} manifest_entry;

/* Block minima and maxima of an integer input along one axis. */
typedef struct manifest_stat {
  uint32_t input, axis, block;
} manifest_stat;

/* An axis of an input, q, kv, h or hkv, that kernels read at other places than its own. */
typedef struct manifest_elsewhere {
  uint32_t input, axis;
} manifest_elsewhere;

/* A mask from data, which luattn_tile_bits evaluates. */
typedef struct manifest_tile_bits {
  uint32_t layout;            /* 0, or 1: luattn_tile_order also writes all orders of a batch */
  uint32_t by_batch, by_head; /* it differs between batch entries, between heads */
  uint32_t rows, columns;     /* evaluated once for so many queries by so many keys */
  uint32_t cost;              /* instructions of an evaluation, roughly */
  uint32_t inputs, scalars;   /* which it reads, a bit each */
  uint32_t reads_heads;       /* it reads the numbers of heads */
  uint32_t has_reals;         /* it computes with real numbers, for which float64 kernels have another precision */
  uint32_t spec[4];           /* luattn_spec_info.hash, low words first */
} manifest_tile_bits;

/* Row passes: forward passes with other weights that a backward launches before its own kernels, whose images are
 * sections of its own. */
enum { MANIFEST_MAX_PASSES = 2, MANIFEST_MAX_PASS_ROWS = 12 };
typedef struct manifest_row_passes {
  uint32_t count, num_sums; /* the first writes so many sums of a row to its saved */
  uint32_t
      num_rows[MANIFEST_MAX_PASSES]; /* the last inputs of each are numbers of a row along batch, head and query: */
  int32_t row[MANIFEST_MAX_PASSES][MANIFEST_MAX_PASS_ROWS]; /* -1: lse; i: row i of saved */
} manifest_row_passes;

/* What APPEND applies to new rows, and takes then: LuattnAppendParams instead of LuattnAppend. */
typedef struct manifest_append_mods {
  uint32_t key_mod, value_mod; /* whether there is one; always 0 where keys are not in pages */
  uint32_t inputs;             /* which they read, a bit each */
} manifest_append_mods;

/* The grid of a spec with several axes, the innermost last. */
enum { MANIFEST_AXIS_NAME = 16 };
typedef struct manifest_grid {
  uint32_t axes;
  uint32_t q_box[LUATTN_MAX_AXES], kv_box[LUATTN_MAX_AXES]; /* places of a tile along each; unused axes come first: 1 */
  uint32_t least_extent[LUATTN_MAX_AXES];                   /* of keys along the spec's axis; 0: any */
  char name[LUATTN_MAX_AXES][MANIFEST_AXIS_NAME];           /* of the spec's axes, for messages */
} manifest_grid;

/* From a place of a box to the next one along each axis; of unused axes, which come first, 1. Steps of a kernel with TMA
 * descriptors that are far (grid_step_is_far), along other axes than the outermost of four, need LuattnFarPlaces. */
enum { MANIFEST_STEP_MAX = 32767 };
typedef struct manifest_steps {
  uint32_t of[LUATTN_MAX_AXES];
} manifest_steps;

/* Where boxes of queries begin along each axis: so many places, of a group where boxes step, before the first one
 * (LuattnGridSide.first); of unused axes 0. */
typedef struct manifest_phases {
  uint32_t of[LUATTN_MAX_AXES];
} manifest_phases;

/* What the spec's library functions take scalars for. */
typedef struct manifest_scalar_ranges {
  scalar_range of[MANIFEST_MAX_SCALARS];
} manifest_scalar_ranges;

/* What tangents are along: luattn_target.tangents. */
typedef struct manifest_tangents {
  uint64_t bits;
} manifest_tangents;

/* Bits of q, k and v: which have tangents behind their mods, and of whose gradients backward keeps the values, too. */
typedef struct manifest_tangent_mods {
  uint32_t tangents, values;
} manifest_tangent_mods;

/* What a segment does to a state: it decays it and adds to it, or is a map of it. */
enum manifest_cuts { MANIFEST_WHOLE, MANIFEST_CUT_SUMS, MANIFEST_CUT_MAPS };

/* Linear attention, whose kernels take LuattnLinearParams (abi/linear_params.h). */
typedef struct manifest_linear {
  double scale;                     /* of o where a call gives none; 0: head_dim^-1/2 */
  uint32_t v_block;                 /* value channels of a block: the most */
  uint32_t cuts;                    /* entries may be cut into segments: a manifest_cuts */
  uint32_t v_warp;                  /* of a warp, where a launch may give blocks fewer warps; else 0 */
  uint32_t normalizes;              /* states have one channel of v more; a block has all of a value head */
  uint32_t ring, step;              /* the most rows of a ring, tokens of a step; 0: there is none */
  uint32_t ring_width, ring_erases; /* numbers of a row's sums of decays; whether it has e and y */
  uint32_t made;                    /* bits: rows of q, k and v that luattn_linear_prepare makes */
  uint32_t skips;                   /* o has what skips */
  uint32_t numbers;                 /* backward: bits: gradients of decays, of what is written */
  uint32_t alone;  /* backward: bits of inputs to an element of whose gradient one token and value head adds, where its
                     * axes are whole */
  uint32_t sole;   /* and of these of inputs to which there is nothing else to add: then kernels store it */
  uint32_t terms;  /* backward: bits: mods of q, k and v, and what skips, that inputs or scalars get gradients of */
  uint32_t decays; /* backward: numbers of a token's decay: 1, or the channels of k */
  uint32_t run, keys;    /* backward token by token: tokens of a run, 0: it is none; rows along K of a token */
  uint32_t numbers_kept; /* backward: of a state, by a thread; forward: of a token's rows, in shared memory */
  uint32_t room;  /* bytes of shared memory of a multiprocessor, of a ring's kernel: earlier runtimes ask for it */
  uint32_t early; /* bits of entries that wait for the one before themselves (arch/early_launch.cuh) */
} manifest_linear;

typedef struct image_manifest {
  /* Section "FACT", up to max_len. */
  char spec_name[LUATTN_NAME_SIZE];
  uint32_t pass, family, dtype; /* luattn_pass, luattn_family, luattn_dtype */
  uint32_t arch;                /* 80, 86, 90, ..; arch_suffix 'a' where the code runs on that
                                 * architecture only */
  char arch_suffix[4];
  uint32_t head_dim, head_dim_v;
  uint32_t num_saved, num_bwd_rows;
  uint32_t has_lse;
  uint32_t has_query_mod, has_key_mod, has_value_mod;
  uint32_t accumulates_dq; /* DKDV adds into dq_acc and FINISH writes dq */
  uint32_t wants;          /* gradients compiled in: luattn_wants */
  uint32_t draws_tiles;    /* FORWARD draws its tiles from a work counter
                            * (luattn_workspace_size) */
  uint32_t is_ptx;         /* PTX that the driver compiles, for this architecture and later ones;
                            * otherwise a cubin */
  uint32_t deterministic;  /* backward gives the same bits in every run */
  uint32_t can_split;      /* blocks of DKDV may share the queries of a kv tile: luattn_args.num_splits */
  uint32_t has_mask;       /* a mask exists: some kv tiles have more work than others */
  uint32_t second_code;    /* offset in the code of a second cubin (PTX), with all kernels except
                            * the main one; a multiple of 64, after at least 64 zeros; 0: there is
                            * only one */
  uint32_t reads_ahead;    /* scores read bias rows that were staged ahead of them */
  int64_t max_len;         /* longest q_len and kv_len for which 32-bit index arithmetic of the spec is exact */

  uint32_t params_version, params_bytes; /* section "PARM": the layout of the parameter block (abi/params.h),
                                          * and how many of its bytes, from the first, the kernels take */
  uint64_t source_hash[2];               /* section "HASH": the cache's key */
  /* Sections that some images have (abi/kernel_facts.def): whether they do, and what it holds. */
#define IMAGE_SECTION(tag, need, fact, when, takes, type, layout, range) \
  uint32_t fact;                                                         \
  type layout[1];
#include "abi/kernel_facts.def"
  uint32_t on_cpu; /* not stored in images: the CPU path computes, and there is no code */

  /* Sections "ENTR", "INPT", "SCAL" and "STAT": each has as many elements as its size says. */
  uint32_t num_entries, num_inputs, num_scalars, num_stats;
  uint32_t num_elsewhere; /* section "ELSE", which images without offsets lack */
  manifest_elsewhere elsewhere[MANIFEST_MAX_ELSEWHERE];
  manifest_entry entry[MANIFEST_MAX_ENTRIES]; /* in launch order */
  luattn_input_info input[MANIFEST_MAX_INPUTS];
  luattn_scalar_info scalar[MANIFEST_MAX_SCALARS]; /* sorted by name */
  manifest_stat stat[MANIFEST_MAX_STATS];
} image_manifest;

/* How an image's kernels are launched. Follows from the manifest, so that images of before have it too. */
typedef struct image_traits {
  bool takes_descriptors; /* reads tensors by TMA */
  bool is_resident;       /* blocks stay, and take one tile after another in an order that the launch gives */
  bool numbers_tiles;     /* forward's tiles are numbered in the launch's order */
  bool groups_rows;       /* rows of a head in accumulators and bwd_rows lie in groups of 16 */
  bool pairs_blocks;      /* backward's blocks of 64 keys work in pairs */
  bool prepares_sums;     /* luattn_prepare zeroes dq_acc and the counters */
  bool reads_tile_words;  /* walks take tile bits as words, of tiles of one or two cells; else the class of each tile */
  int vector_bits;        /* rows of elements of up to so many bits are moved 16 bytes at a time */
  int products;           /* multiply-adds in the time of an instruction of each lane, of which half of the most can be
                           * issued: an estimate that is good within a factor of two */
} image_traits;
extern const image_traits traits_of_weights, traits_of_decode, traits_of_family[KERNEL_FAMILIES];
static inline const image_traits *manifest_traits(const image_manifest *m) {
  return m->weights ? &traits_of_weights : m->decode ? &traits_of_decode : &traits_of_family[m->family];
}

/* Of linear attention behind a ring: bytes of shared memory that so many tokens and rows of the ring need. */
uint32_t manifest_ring_bytes(const image_manifest *m, int tokens, int rows);

/* The call that launches it, as messages begin: "forward", "backward", "weights", "forward_jvp", "backward_jvp". */
static inline const char *manifest_pass_name(const image_manifest *m) {
  if (m->tangents) return m->pass == LUATTN_FORWARD ? "forward_jvp" : "backward_jvp";
  return m->weights ? "weights" : kernel_pass_name(m->pass);
}

/* Checks every number and name that later code relies on. Errors: LUATTN_IMAGE, "image: " and what is
 * wrong. */
luattn_status manifest_check(const image_manifest *m, luattn_error *err);

/* Fills a luattn_kernel_description of any version. `functions`, filled by manifest_functions, and *m must
 * stay valid as long as the description is used. Error messages start with `place`. Errors: LUATTN_INVALID
 * (struct_size). */
void manifest_functions(const image_manifest *m, luattn_function_info functions[MANIFEST_MAX_ENTRIES]);
luattn_status manifest_describe(const image_manifest *m, const luattn_function_info *functions, const char *place,
                                luattn_kernel_description *out, luattn_error *err);

#endif
