/* compiler.h: from a spec in Lua to an image, and the CPU path. Needs Lua; NVRTC is loaded when the first image is compiled.
 *
 * Thread safety: a luattn_spec is immutable once loaded and may be compiled from several threads at once.
 */
#ifndef LUATTN_COMPILER_H
#define LUATTN_COMPILER_H

#include "luattn/image.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct luattn_spec luattn_spec;

/* Loads, traces and differentiates a spec. `name` replaces the file in messages. `allocator` may be NULL.
 * Errors: LUATTN_SPEC (message starts with name:line, and with the name alone where no one line is to blame, as of a
 * file without attention {..} or of an online function whose result depends on the tiles; of a long name its last 200
 * bytes, with control characters as '?'), LUATTN_IO, LUATTN_NO_MEMORY. A spec that takes more than 10 s of the thread's
 * CPU time to run is an error. One whose backward cannot be derived is loaded, and runs forward only
 * (luattn_spec_info.has_backward). */
LUATTN_API luattn_status luattn_spec_load(const char *path, const luattn_allocator *allocator, luattn_spec **spec,
                                          luattn_error *err);
LUATTN_API luattn_status luattn_spec_load_text(const char *name, const char *text, size_t size,
                                               const luattn_allocator *allocator, luattn_spec **spec, luattn_error *err);
LUATTN_API void luattn_spec_free(luattn_spec *spec);

/* The spec's declarations; valid as long as the spec. */
typedef struct luattn_spec_info {
  const char *name;
  size_t num_inputs, num_scalars, num_saved;
  const luattn_input_info *inputs;
  const char *const *scalar_names; /* sorted */
  const double *scalar_defaults;
  int has_lse, has_mask;
  uint64_t hash[2]; /* of the spec's text and luattn's standard library: names a spec in packs */
  const char *const *axis_names; /* axis_names[4 * i + j]: how the spec writes axis j of inputs[i]: "b", "h", "hkv", "q", "kv", a
                                  * size such as "16", or of a free axis (LUATTN_AXIS_FREE) the name that the spec gave it */
  int has_backward; /* 0: the spec runs forward only, and calls that need its backward are LUATTN_UNSUPPORTED */
  const char *why_no_backward; /* the message of these calls: the term that prevents a backward, and how to write it; NULL: there is one */
} luattn_spec_info;
/* spec NULL: all zero. */
LUATTN_API void luattn_spec_get_info(const luattn_spec *spec, luattn_spec_info *info);

/* Gradients that a backward image computes; fewer are faster. */
typedef enum luattn_wants {
  LUATTN_WANT_DQ = 1, LUATTN_WANT_DK = 2, LUATTN_WANT_DV = 4, LUATTN_WANT_INPUTS = 8, LUATTN_WANT_SCALARS = 16,
  LUATTN_WANT_ALL = 31
} luattn_wants;
/* All gradients that the spec has. 0: it has no backward, or spec is
 * NULL. */
LUATTN_API unsigned luattn_spec_wants(const luattn_spec *spec);

/* The lengths for which the tiles of an image are chosen; the image runs at every length. The length that counts is that of the
 * grid: q_len in forward, kv_len in backward. */
typedef enum luattn_lengths { LUATTN_LONG, LUATTN_SHORT } luattn_lengths;
#define LUATTN_SHORT_MAX 2048
static inline luattn_lengths luattn_lengths_of(luattn_pass pass, int64_t q_len, int64_t kv_len) {
  return (pass == LUATTN_FORWARD ? q_len : kv_len) <= LUATTN_SHORT_MAX ? LUATTN_SHORT : LUATTN_LONG;
}

/* The tiles of a pass's main kernel, threads of a block and stages of its pipeline. */
typedef struct luattn_tiles {
  int tile_m, tile_n, threads, stages;
  int warps_n, chunk_m; /* backward of the sm80 family, else 0: templates/sm80/bwd_sm80.cuh says what they are */
} luattn_tiles;

/* Which offsets a luattn_batch may have: none, so that the image costs nothing for them; numbers, which are operands in the
 * kernels' constant memory; or arrays on the device as well, which kernels load. */
typedef enum luattn_offsets { LUATTN_OFFSET_NONE, LUATTN_OFFSET_NUMBERS, LUATTN_OFFSET_ARRAYS } luattn_offsets;

/* Everything that is fixed at compile time. Lengths, batch, heads, strides, scalars and inputs are not. Zero means default. */
typedef struct luattn_target {
  size_t struct_size;
  luattn_pass pass;
  luattn_dtype dtype;
  int head_dim, head_dim_v; /* 1 .. 256; head_dim_v 0 = head_dim */
  int arch;                 /* 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121 */
  unsigned wants;           /* luattn_wants; 0 = all. Ignored by forward */
  int family;               /* 0: the plan chooses; else 1 + luattn_family */
  int tile_m, tile_n;       /* 0: the plan chooses; an impossible size is refused by name before compiling */
  const char *cache_dir;    /* NULL: LUATTN_CACHE_DIR, else $XDG_CACHE_HOME/luattn, else ~/.cache/luattn; "": no disk cache */
  const char *nvrtc;        /* path of a libnvrtc.so, and no other is tried. NULL: LUATTN_NVRTC likewise, else the usual names and
                             * places: the first that can be loaded, that knows arch, and whose code driver_version loads. What
                             * was passed over is in luattn_compile_report.plan */
  luattn_lengths lengths;
  const char *device;       /* its luattn_device_info.name: tiles that were measured on it and remembered beside the cache are used
                             * (luattn_tuned_store); NULL: none */
  const luattn_tiles *tiles; /* exactly these, one of luattn_plan_candidates; refused where they spill registers. NULL: the plan
                             * chooses */
  int ptx;                  /* 1: an image with PTX for arch in place of a cubin: it runs on later architectures too, where the
                             * driver compiles it when it is loaded; of 90 on 9.0 alone, as sm_90a's */
  int deterministic;        /* 1: backward gives the same bits in every run and process: dq, dk, dv and the gradients of inputs
                             * and scalars. On one GPU model, with one image: tiles of the other class of lengths, or tuned ones,
                             * may give others. Forward always does */
  int one_code;             /* 1: all kernels in one code (a cubin or PTX), for tools that read one, and for packs: one module to load.
                             * Else the main kernel in the first and the others in a second one, which compile side by side, in
                             * the time of the first; the image is another one, with a key of its own in the cache */
  int64_t driver_version;   /* of the driver that will load the image, as luattn_driver_version gives it: 1000 * major + 10 *
                             * minor; an NVRTC whose code it cannot load is not used. 0: any */
  int packed;               /* 1: sequences of their own lengths, packed one after the other: luattn_args.cu_seqlens_q. The image
                             * takes no others, and no pack holds it. LUATTN_UNSUPPORTED: backward; a spec with a query_mod,
                             * key_mod, value_mod, or an input with an axis q or kv. No tile is skipped for want of weight.
                             * LUATTN_INVALID: neither 0 nor 1 */
  luattn_offsets offsets;   /* not LUATTN_OFFSET_NONE: q, k and v are parts of a whole, whose positions, heads and lengths hooks
                             * see (luattn_args.batch). No pack holds such an image. LUATTN_INVALID: no luattn_offsets */
  uint64_t input_types;     /* of the inputs whose dtype is LUATTN_INPUT_ANY: 1 + luattn_input_dtype of input i at bits 4 * i to
                             * 4 * i + 3, and 0 for all others. LUATTN_INVALID: an input of any type without one, or another with
                             * one (names the input) */
} luattn_target;

/* Report of a compilation, for people and tests. */
typedef struct luattn_compile_report {
  int cache_hit;
  int is_kept; /* the image is in the disk cache now; if it should be and is not, *err has a warning */
  double trace_ms, plan_ms, nvrtc_ms, cache_ms; /* of a cache_hit, plan_ms and nvrtc_ms are 0 */
  char plan[4096]; /* family, tiles, shared memory and the reason for each, one line per fact */
  luattn_tiles tiles;
  int every_length; /* the other target.lengths has the same tiles, so that one image will do */
} luattn_compile_report;

/* Compiles (or takes from the cache) one pass, in this thread and one that it starts and waits for: NVRTC runs in both, with
 * 4 MB of stack at least. `report` may be NULL. Caller frees *image with luattn_image_free.
 * Errors: LUATTN_INVALID and LUATTN_UNSUPPORTED (target), LUATTN_COMPILE (log in the message; source kept beside the cache). */
LUATTN_API luattn_status luattn_compile(const luattn_spec *spec, const luattn_target *target, luattn_image **image,
                                        luattn_compile_report *report, luattn_error *err);

/* Version of the NVRTC that would be used, for any driver and architecture. `nvrtc` as in luattn_target. Errors: LUATTN_COMPILE
 * (there is none). */
LUATTN_API luattn_status luattn_nvrtc_version(const char *nvrtc, int *major, int *minor, luattn_error *err);

/* Text of one stage: "ir", "grad", "mask", "plan", "spec", "config", "ptx". From "plan" on as chosen before
 * compiling, which may end with a later choice: luattn_compile_report.plan says which. Caller frees *text with
 * luattn_text_free. */
LUATTN_API luattn_status luattn_emit(const luattn_spec *spec, const luattn_target *target, const char *stage, char **text,
                                     luattn_error *err);
/* The generated CUDA that `image` was compiled from, with this spec and target. Free it likewise. */
LUATTN_API luattn_status luattn_emit_source(const luattn_spec *spec, const luattn_target *target, const luattn_image *image,
                                            char **text, luattn_error *err);
LUATTN_API void luattn_text_free(char *text);

/* The CPU path: any spec, in double precision, tiled, no array of q_len x kv_len. All tensors on the CPU (kDLCPU), of any
 * luattn_dtype (converted on the way in and out; o and gradients may be float64 whatever q is). args->workspace is not used.
 * Gathers clamp their index into the input, as the kernels do. */
LUATTN_API luattn_status luattn_cpu_forward(const luattn_spec *spec, const luattn_args *args, luattn_error *err);
LUATTN_API luattn_status luattn_cpu_backward(const luattn_spec *spec, const luattn_args *args, luattn_error *err);

/* The same with every intermediate tensor (scores, probabilities, their gradients) rounded to `precision`: what a plain
 * implementation in that type computes. Half-precision kernels are held against its error. LUATTN_F64 rounds nothing. */
LUATTN_API luattn_status luattn_cpu_forward_in(const luattn_spec *spec, const luattn_args *args, luattn_dtype precision,
                                               luattn_error *err);
LUATTN_API luattn_status luattn_cpu_backward_in(const luattn_spec *spec, const luattn_args *args, luattn_dtype precision,
                                                luattn_error *err);

/* Classes of the tiles of one (b, h): out[i * ceil(kv_len / tile_n) + j] = 0 empty, 1 partial, 2 full. args gives lengths (q, k)
 * and the inputs that the mask reads (on the CPU); the data of q and k do not matter. */
LUATTN_API luattn_status luattn_mask_tiles(const luattn_spec *spec, const luattn_args *args, int b, int h, int tile_m,
                                           int tile_n, unsigned char *out, luattn_error *err);

/* How many of the batch * heads * q_len * kv_len scores the mask keeps, exactly: full tiles by their size, partial ones by
 * evaluating the mask. args as above. */
LUATTN_API luattn_status luattn_mask_count(const luattn_spec *spec, const luattn_args *args, int64_t *kept, luattn_error *err);

/* Tuning. The plan's tiles for these lengths, and the bytes that a pass needs, with luattn_args.num_splits = 1. */
typedef struct luattn_memory_estimate { size_t input, internal, output, total; } luattn_memory_estimate;
typedef struct luattn_problem { int batch, heads, heads_kv, q_len, kv_len; } luattn_problem;
LUATTN_API luattn_status luattn_plan_tiles(const luattn_spec *spec, const luattn_target *target, int *tile_m, int *tile_n,
                                           luattn_error *err);
LUATTN_API luattn_status luattn_estimate_memory(const luattn_spec *spec, const luattn_target *target,
                                                const luattn_problem *problem, luattn_memory_estimate *estimate,
                                                luattn_error *err);

/* Lists candidate tiles for tuning: first those of the built-in table of tiles, then neighbouring sizes that fit shared memory and
 * registers. Writes at most `most`; *count receives the number written. */
LUATTN_API luattn_status luattn_plan_candidates(const luattn_spec *spec, const luattn_target *target, luattn_tiles *out,
                                                int most, int *count, luattn_error *err);
/* Remembers target->tiles beside the cache, for target->device, target->lengths and all else in the target. tiles NULL: forgets
 * what was remembered. `gain` is how many times as fast they are as the plan's own, for people. path[size], may be NULL: the file.
 * Errors: LUATTN_INVALID (no device, no cache on disk, no candidate), LUATTN_IO. */
LUATTN_API luattn_status luattn_tuned_store(const luattn_spec *spec, const luattn_target *target, double gain, char *path,
                                            size_t size, luattn_error *err);

#ifdef __cplusplus
}
#endif
#endif
