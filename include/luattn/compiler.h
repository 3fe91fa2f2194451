/* compiler.h: compiles a spec in Lua to an image; also the CPU path. Needs Lua; NVRTC is loaded when the first image is
 * compiled.
 *
 * Thread safety: a luattn_spec is immutable once loaded and may be compiled from several threads at
 * once. */
#ifndef LUATTN_COMPILER_H
#define LUATTN_COMPILER_H

#include "luattn/image.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct luattn_spec luattn_spec;

/* Loads, traces and differentiates a spec. `name` replaces the file in messages. `allocator` may be NULL.
 * Errors: LUATTN_SPEC (the message starts with name:line, or with the name alone if no single line is wrong, such as in
 * a file without attention {..}; a long name is cut to its last 200 bytes, and control characters become '?'),
 * LUATTN_IO, LUATTN_NO_MEMORY. A spec that runs for more than 10 s of the thread's CPU time is an error. A spec whose
 * backward cannot be derived loads, but runs forward only (luattn_spec_info.has_backward). */
LUATTN_API luattn_status luattn_spec_load(const char *path, const luattn_allocator *allocator, luattn_spec **spec,
                                          luattn_error *err);
LUATTN_API luattn_status luattn_spec_load_text(const char *name, const char *text, size_t size,
                                               const luattn_allocator *allocator, luattn_spec **spec,
                                               luattn_error *err);
LUATTN_API void luattn_spec_free(luattn_spec *spec);

/* What a spec describes: the form that its file returns. Functions that take a luattn_args are of attention; those of
 * luattn/linear.h of linear attention. */
typedef enum luattn_form { LUATTN_FORM_ATTENTION, LUATTN_FORM_LINEAR } luattn_form;
LUATTN_API luattn_form luattn_spec_form(const luattn_spec *spec); /* spec NULL: LUATTN_FORM_ATTENTION */

/* The spec's declarations; valid as long as the spec. */
typedef struct luattn_spec_info {
  const char *name;
  size_t num_inputs, num_scalars, num_saved;
  const luattn_input_info *inputs;
  const char *const *scalar_names; /* sorted */
  const double *scalar_defaults;
  int has_lse, has_mask;
  uint64_t hash[2]; /* of the spec's text and luattn's standard library; identifies the spec in packs */
  const char *const
      *axis_names;  /* axis_names[4 * i + j]: axis j of inputs[i] as the spec writes it: "b", "h", "hkv", "q", "kv",
                     * of linear attention "t", "hv", "d", "dv", a size such as "16", or the spec's name for a free axis (LUATTN_AXIS_FREE) */
  int has_backward; /* 0: the spec runs forward only, and calls that need its backward are LUATTN_UNSUPPORTED */
  const char *why_no_backward;   /* the error message of such calls: names the term that has no backward, and how to
                                  * rewrite it; NULL if there is a backward */
  size_t num_saved_large_scores; /* num_saved of kernels and calls with large_scores */
} luattn_spec_info;
/* spec NULL: all zero. */
LUATTN_API void luattn_spec_get_info(const luattn_spec *spec, luattn_spec_info *info);

/* 1: calls of this spec draw random numbers, for dropout or where hooks call random(), and need luattn_args.random; 0:
 * none, or spec is NULL. */
LUATTN_API int luattn_spec_draws(const luattn_spec *spec);
/* 1: hooks of this spec compute with the batch entry's number b, other than to read an input along its axis b, or read it
 * there at another entry, so that entries cannot be put into another batch; 0: they do not, or spec is NULL. */
LUATTN_API int luattn_spec_reads_batch(const luattn_spec *spec);
/* 1: the spec has a key_mod or value_mod, which luattn_args.keys_modified is about; 0: neither, or spec is NULL. */
LUATTN_API int luattn_spec_modifies_keys(const luattn_spec *spec);

/* The axes of the spec's grid, 1 to LUATTN_MAX_AXES, the last one innermost, and in *names (which may be NULL) their
 * names, valid as long as the spec; 0: it declares none, or is NULL. With more than one, tensors have them in place of
 * the axis q_len or kv_len (luattn/tensors.h). */
LUATTN_API int luattn_spec_grid(const luattn_spec *spec, const char *const **names);

/* How often backward goes through a row before it computes gradients (docs/numerics.md): 0, but for functions that need
 * it. A backward that does needs all keys of a row in one call. */
LUATTN_API int luattn_spec_row_passes(const luattn_spec *spec);

/* Gradients that a backward image computes; fewer are faster. */
typedef enum luattn_wants {
  LUATTN_WANT_DQ = 1,
  LUATTN_WANT_DK = 2,
  LUATTN_WANT_DV = 4,
  LUATTN_WANT_INPUTS = 8,
  LUATTN_WANT_SCALARS = 16,
  LUATTN_WANT_ALL = 31
} luattn_wants;
/* Returns all gradients that the spec has; 0 if it has no backward or is NULL. */
LUATTN_API unsigned luattn_spec_wants(const luattn_spec *spec);

/* What an input or a scalar does in a spec, where a call has a part of the keys (luattn/merge.h). */
typedef enum luattn_parameter {
  LUATTN_PARAMETER_MASKS = 1,     /* block_mask reads it */
  LUATTN_PARAMETER_OF_SCORES = 2, /* its gradient is a sum over scores: add up those of all parts */
  LUATTN_PARAMETER_OF_ROWS = 4    /* a sum over rows, as a sink's is: it is whole in each part */
} luattn_parameter;
/* For parameter i: of luattn_spec_info.inputs, then of its scalars. 0 if there is none, or spec is NULL. */
LUATTN_API unsigned luattn_spec_parameter(const luattn_spec *spec, size_t i);

typedef enum luattn_mask_differs { LUATTN_MASK_BY_BATCH = 1, LUATTN_MASK_BY_HEAD = 2 } luattn_mask_differs;
/* Whether the mask may differ between batch entries, and between heads; 0 if it does not, or spec is NULL. */
LUATTN_API unsigned luattn_spec_mask_differs(const luattn_spec *spec);

/* The class of lengths for which an image's tiles are chosen; the image runs at every length. The length that counts is
 * the one that the grid tiles: q_len in forward, kv_len in backward. */
typedef enum luattn_lengths { LUATTN_LONG, LUATTN_SHORT } luattn_lengths;
#define LUATTN_SHORT_MAX 2048
static inline luattn_lengths luattn_lengths_of(luattn_pass pass, int64_t q_len, int64_t kv_len) {
  return (pass == LUATTN_FORWARD ? q_len : kv_len) <= LUATTN_SHORT_MAX ? LUATTN_SHORT : LUATTN_LONG;
}

/* The tiles of a pass's main kernel, threads of a block and stages of its pipeline. */
typedef struct luattn_tiles {
  int tile_m, tile_n, threads, stages;
  int warps_n, chunk_m; /* backward of the sm80 family, else 0: described in templates/sm80/bwd_sm80.cuh */
} luattn_tiles;

/* Which offsets a luattn_batch may have: none, at no cost; numbers, which kernels read from constant memory; or also
 * arrays on the device, which kernels load; or chunks (luattn_batch_options.q_chunks), of which kernels look up that of
 * each tile. */
typedef enum luattn_offsets {
  LUATTN_OFFSET_NONE,
  LUATTN_OFFSET_NUMBERS,
  LUATTN_OFFSET_ARRAYS,
  LUATTN_OFFSET_CHUNKS
} luattn_offsets;

/* The extents of a box over a grid as one number, the innermost axis last; of axes that a grid lacks, the first ones, 0. */
#define LUATTN_BOX(a, t, y, x) ((uint64_t)(a) << 48 | (uint64_t)(t) << 32 | (uint64_t)(y) << 16 | (uint64_t)(x))

/* Bits of luattn_target.tangents: q, k, v, the input number i of luattn_spec_info, and the scalar number i. */
#define LUATTN_TANGENT_Q UINT64_C(1)
#define LUATTN_TANGENT_K UINT64_C(2)
#define LUATTN_TANGENT_V UINT64_C(4)
#define LUATTN_TANGENT_INPUT(i) (UINT64_C(8) << (i))
#define LUATTN_TANGENT_SCALAR(i) (UINT64_C(65536) << (i))
/* Of backward alone. */
#define LUATTN_TANGENT_DOUT (UINT64_C(1) << 48)
#define LUATTN_TANGENT_DLSE (UINT64_C(1) << 49)

/* Everything that is fixed at compile time. Lengths, batch, heads, strides, scalars and inputs are not. Zero means
 * default. */
typedef struct luattn_target {
  size_t struct_size;
  luattn_pass pass;
  luattn_dtype dtype;
  int head_dim, head_dim_v; /* 1 .. 256; head_dim_v 0 = head_dim */
  int arch;                 /* 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121 */
  unsigned wants;           /* luattn_wants; 0 = all. Ignored by forward */
  int family;               /* 0: the plan chooses; else 1 + luattn_family */
  int tile_m, tile_n;       /* 0: the plan chooses; an impossible size is refused by name before compiling */
  const char
      *cache_dir;    /* NULL: LUATTN_CACHE_DIR, else $XDG_CACHE_HOME/luattn, else ~/.cache/luattn; "": no disk cache */
  const char *nvrtc; /* path of the only libnvrtc.so to try. NULL: the path in LUATTN_NVRTC, else the first library
                      * under the usual names and paths that can be loaded, knows arch, and compiles code that
                      * driver_version loads. luattn_compile_report.plan lists the rejected ones */
  luattn_lengths lengths;
  const char *device; /* a luattn_device_info.name: tiles that were tuned on that device and stored with the cache are
                       * used (luattn_tuned_store); NULL: none */
  const luattn_tiles *tiles; /* exactly these tiles, out of luattn_plan_candidates; an error if they spill registers.
                              * NULL: the plan chooses */
  int ptx;           /* 1: the image holds PTX for arch instead of a cubin, and the driver compiles it when it is
                      * loaded. It also runs on later architectures, except that PTX for 90 (sm_90a) runs only on 9.0 */
  int deterministic; /* 1: backward gives the same bits in every run and process: dq, dk, dv and the gradients of inputs
                      * and scalars. This holds for one image on one GPU model; other tiles (tuned ones, or those of the
                      * other class of lengths) may give other bits. Forward is always deterministic. With `decode`, 1:
                      * an entry's bits do not depend on the others of its batch either (num_splits 0): its keys are cut
                      * into blocks of 2048, or 64 blocks, whatever keeps the GPU busy */
  int one_code; /* 1: all kernels in one cubin (or PTX), for packs and for tools that read a single module. 0: the main
                 * kernel in one cubin and the other kernels in a second, compiled in parallel. The two settings give
                 * different images, with different cache keys */
  int64_t driver_version; /* version of the driver that will load the image, as luattn_driver_version returns it (12080
                           * is 12.8). An NVRTC whose code this driver cannot load is not used. 0: any */
  int packed; /* 1: sequences of different lengths, packed one after another: luattn_args.batch has cu_seqlens. The
               * image takes only packed tensors. Its kernels cannot skip tiles (luattn_args.skip). LUATTN_INVALID:
               * neither 0 nor 1 */
  luattn_offsets offsets; /* not LUATTN_OFFSET_NONE: q, k and v are parts of a whole, whose positions, heads and lengths
                           * the hooks see (luattn_args.batch). Packs do not store such an image. LUATTN_INVALID: not a
                           * luattn_offsets */
  uint64_t input_types;   /* types of the inputs whose dtype is LUATTN_INPUT_ANY: 1 + luattn_input_dtype of input i in
                           * bits 4 *   i to 4 * i + 3, and 0 for all other inputs. LUATTN_INVALID (names the input): an
                           * input of any type has no type here, or another input has one */
  int large_scores; /* 1: P of scores that are large, up to 1e9, keeps its accuracy: forward subtracts a row's maximum
                     * exactly, and writes it and log l to luattn_args.saved, for backward (docs/numerics.md).
                     * luattn_kernel_description.num_saved is 2 more where backward reads an lse; other specs save
                     * nothing more. Takes two instructions a score more. No pack holds such
                     * an image. LUATTN_UNSUPPORTED: an online function whose lse is not log(l) + m or the like, with m
                     * a running maximum, or whose backward uses it otherwise than in exp(score - lse). LUATTN_INVALID:
                     * neither 0 nor 1 */
  int decode; /* 1: forward's kernel for few queries and many keys, as in decoding, of any arch: the query heads of a kv
               * head are rows of one tile, of 16 with LUATTN_SHORT, else of 32, or of 64 with many_rows (above head dim
               * 128 of 16), and blocks share the keys (luattn_args.num_splits), so that K and V are read once for these
               * rows, at the speed of memory. 2: the same where that is no error; else the kernel for all lengths,
               * short ones, and luattn_compile_report.plan says why. It runs at every length, and gives what the other
               * kernel gives up to rounding. LUATTN_UNSUPPORTED: a dtype other than bf16 and f16; a family other than
               * sm80; an online function of which no merge of the parts of a row was found (luattn emit --stage merge
               * says why). LUATTN_INVALID: not 0 to 2; a backward target */
  int64_t pages;     /* Not 0: keys are in pages, or entries of a cache of which a part is used: luattn_args.batch has
                      * seqused_k, with or without block_table. Forward alone. 1: pages of any size; 8: page sizes are
                      * multiples of 8, or no entry has more than one page, as the sm90 family needs (with 1, family 0
                      * takes sm80 instead). LUATTN_UNSUPPORTED: backward; a spec with key_mod or value_mod without
                      * keys_modified, except on the CPU; family sm90 with 1. LUATTN_INVALID: not 0, 1 or 8 */
  int weights;       /* 1: forward's kernel that writes the weights of V instead of o, for luattn_launch_weights: of any
                      * dtype and arch, in the simt family, which computes in f32 (f64 for f64). Correct, not fast. No pack
                      * holds such an image. LUATTN_UNSUPPORTED: a family other than simt; pages; head dims of bf16 and
                      * f16 that are no multiples of 8. LUATTN_INVALID: neither 0 nor 1; a backward target; beside
                      * decode or large_scores */
  int keys_modified; /* 1: k and v are as key_mod and value_mod leave them: attention does not apply these again, and
                      * with `pages` luattn_append applies them to new rows, before it writes them to the cache
                      * (luattn/batch.h). query_mod is applied as ever. Changes nothing for a spec that has neither.
                      * Forward alone. Packs do not store such an image. LUATTN_UNSUPPORTED: backward; with `pages` a
                      * key_mod or value_mod that reads q_len, kv_len, heads, random() or an input with an axis q or h,
                      * which a new row has not. LUATTN_INVALID: neither 0 nor 1 */
  int many_rows; /* 1: a decode kernel for more than LUATTN_DECODE_MANY rows of a kv head, which has tiles of 64 rows
                  * where they are faster (LUATTN_LONG, head dims 65 to 128). It runs with fewer too. Changes nothing
                  * for other kernels, and packs do not tell it. LUATTN_INVALID: neither 0 nor 1 */
  int out_f32; /* 1: o is float32, while q, k, v and dout are bf16 or f16: forward stores what it has summed, unrounded,
                  * and backward reads such an o. For o of parts, which are merged. LUATTN_UNSUPPORTED: f32 and f64,
                  * whose o has their own type. LUATTN_INVALID: neither 0 nor 1; beside weights */
  int grad_f32; /* 1: dq, dk and dv are float32, while q, k and v are bf16 or f16, for gradients that are added up over
                  * parts. Gradients of inputs and scalars are float32 in any case. LUATTN_UNSUPPORTED: f32 and f64.
                  * LUATTN_INVALID: neither 0 nor 1; a forward target */
  int boxes; /* Of a spec over a grid of several axes: which of the pairs of boxes, 1 to 3, that the kernel's calls choose
              * from by their extents (an engine does); 0: the first one. The pair that is taken may be another where
              * registers or shared memory do not suffice. Other kernels ignore it */
  uint64_t query_tile_size,
      key_tile_size; /* Of a spec over a grid, of one axis too: exactly this box of queries, and of keys: LUATTN_BOX of its
                      * extents, in place of tile_m and tile_n. 0: the plan chooses. LUATTN_INVALID: a box that no kernel
                      * has, with those that there are, or a spec without a grid */
  uint64_t
      tangents; /* Not 0: forward's kernel that also computes the tangents of o and lse, along those of what these bits
                 * say (LUATTN_TANGENT_Q, ..) and of nothing else, for luattn_launch_jvp; of backward, the one that
                 * computes tangents of gradients. The family sm90 has forward's for head
                 * dims up to 128, sm80 backward's for the same, and simt both for every type and head dim, in f32 or
                 * f64. No pack holds such an image.
                 * LUATTN_UNSUPPORTED: another family; pages; large_scores; a spec with a grid of several axes, with
                 * query_mod, key_mod or value_mod, or whose maximum does not drop out of its derivative; a backward that
                 * takes a row pass; head dims of bf16 and f16 that are no multiples of 8. LUATTN_INVALID: beside decode, weights,
                 * keys_modified; a bit of an input that the spec has not or that is not real, or of a scalar that it
                 * has not */
} luattn_target;

/* Describes a compilation, for people and tests. */
typedef struct luattn_compile_report {
  int cache_hit;
  int is_kept; /* the image is in the disk cache now; if it could not be stored, *err has a warning */
  double trace_ms, plan_ms, nvrtc_ms, cache_ms; /* on a cache_hit, plan_ms and nvrtc_ms are 0 */
  char plan[4096]; /* family, tiles, shared memory and the reason for each, one line per fact */
  luattn_tiles tiles;
  int every_length; /* both values of target.lengths have the same tiles, so one image is enough */
} luattn_compile_report;

/* Compiles one pass, or takes it from the cache. NVRTC runs in this thread and in a second one, which the call starts
 * and joins, each with at least 4 MB of stack. `report` may be NULL. Caller frees *image with luattn_image_free.
 * Errors: LUATTN_INVALID and LUATTN_UNSUPPORTED (target), LUATTN_COMPILE (log in the message; source kept beside the
 * cache). */
LUATTN_API luattn_status luattn_compile(const luattn_spec *spec, const luattn_target *target, luattn_image **image,
                                        luattn_compile_report *report, luattn_error *err);

/* Returns the version of the NVRTC that would be used, for any driver and architecture. `nvrtc` is as in luattn_target.
 * Errors: LUATTN_COMPILE (no NVRTC was found). */
LUATTN_API luattn_status luattn_nvrtc_version(const char *nvrtc, int *major, int *minor, luattn_error *err);

/* Prints one stage: "ir", "grad", "merge", "mask", "plan", "spec", "config", "ptx"; "merge_spec": the spec of kernels
 * that merge parts of a row (struct Merge). The stages from "plan" on show the first choice of tiles. Compiling may end
 * with a later choice, which luattn_compile_report.plan names. The caller frees *text with luattn_text_free. */
LUATTN_API luattn_status luattn_emit(const luattn_spec *spec, const luattn_target *target, const char *stage,
                                     char **text, luattn_error *err);
/* Prints the generated CUDA that `image` was compiled from, with this spec and target. The caller frees *text
 * likewise. */
LUATTN_API luattn_status luattn_emit_source(const luattn_spec *spec, const luattn_target *target,
                                            const luattn_image *image, char **text, luattn_error *err);
LUATTN_API void luattn_text_free(char *text);

/* The CPU path runs any spec in double precision, in tiles, without an array of q_len x kv_len. All tensors are on the
 * CPU (kDLCPU) and have any luattn_dtype (they are converted on input and output; o and gradients may be float64
 * whatever q's type). args->workspace is not used. Gathers clamp their index into the input, as the kernels do. */
LUATTN_API luattn_status luattn_cpu_forward(const luattn_spec *spec, const luattn_args *args, luattn_error *err);
LUATTN_API luattn_status luattn_cpu_backward(const luattn_spec *spec, const luattn_args *args, luattn_error *err);

/* Forward, and the tangents of o and lse along args->tangents. Those of a maximum are those of the element that it is
 * (of several their mean, as luattn_cpu_backward shares gradients among them), of a select those of the arm that it
 * takes; dropout drops the same weights. Works for every online function, also where it has no backward. args are those of
 * luattn_cpu_forward, but that o may be NULL. Errors besides: LUATTN_UNSUPPORTED (keys in pages, keys_modified,
 * large_scores, and skip and decode with _ALWAYS). */
LUATTN_API luattn_status luattn_cpu_forward_jvp(const luattn_spec *spec, const luattn_args *args, luattn_error *err);

/* Tangents of the gradients that luattn_cpu_backward has, along args->tangents: the product of the second derivatives with
 * the tangents of q, k, v, inputs and scalars, and what tangents of dout and dlse add. With dout = b and dlse those of the
 * tangents of o and lse, and tangents.dout = a those of o and lse, it is the gradient of luattn_cpu_forward_jvp: the
 * gradients themselves are those of its tangents, and their tangents those of q, k, v, .. themselves. Of args it reads q, k,
 * v, inputs, scalars, dout and dlse, and it writes what args->tangents has; o, lse and saved are computed anew. On one
 * thread. Errors besides those of luattn_cpu_forward_jvp: LUATTN_UNSUPPORTED (packed sequences, which luattn_backward_jvp
 * takes; a backward that the spec lacks). */
LUATTN_API luattn_status luattn_cpu_backward_jvp(const luattn_spec *spec, const luattn_args *args, luattn_error *err);

/* The same with q.k, probabilities and their gradients rounded to `precision`, as an unfused implementation in that
 * type does, and constants and operations of hooks to float32. `luattn check` compares the error of kernels with its
 * error. LUATTN_F64 rounds nothing. */
LUATTN_API luattn_status luattn_cpu_forward_in(const luattn_spec *spec, const luattn_args *args, luattn_dtype precision,
                                               luattn_error *err);
LUATTN_API luattn_status luattn_cpu_backward_in(const luattn_spec *spec, const luattn_args *args,
                                                luattn_dtype precision, luattn_error *err);

/* Forward, and the weights of V: weights [batch, heads, q_len, kv_len], of any luattn_dtype, on the CPU, overlapping no
 * other tensor of the call. They are those without dropout, times -1 where dropout drops them, and 0 where the mask
 * does: for tests and pictures, as FlashAttention's return_softmax. args are those of luattn_cpu_forward, but that o
 * may be NULL; not of packed sequences, whose weights an engine on the CPU computes (luattn_weights). */
LUATTN_API luattn_status luattn_cpu_weights(const luattn_spec *spec, const luattn_args *args, const DLTensor *weights,
                                            luattn_error *err);

/* Classifies the tiles of one (b, h) as kernels do: out[i * ceil(kv_len / tile_n) + j] = 0 empty, 1 partial, 2 full.
 * args gives the lengths (by q and k, whose data are not read) and the inputs that the mask reads (on the CPU). A mask
 * from data has the classes of its cells (LUATTN_MASK_CELLS), as in a launch that evaluates it, or with args->skip =
 * LUATTN_SKIP_NEVER those that ranges and minima leave. */
LUATTN_API luattn_status luattn_mask_tiles(const luattn_spec *spec, const luattn_args *args, int b, int h, int tile_m,
                                           int tile_n, unsigned char *out, luattn_error *err);

/* Classes of tiles, as a picture has them. */
typedef struct luattn_mask_picture {
  const char *title;
  const unsigned char *classes; /* as luattn_mask_tiles wrote them */
  int q_len, kv_len, tile_m, tile_n;
} luattn_mask_picture;

/* Draws classes of tiles as an SVG with axes in positions and a legend, the same text for the same classes. The caller
 * frees *out with luattn_text_free. Errors: LUATTN_INVALID (sizes below 1, a class that is none). */
LUATTN_API luattn_status luattn_mask_svg(const luattn_mask_picture *picture, char **out, luattn_error *err);

/* Over a grid of several axes: which keys one query keeps, and the classes of the boxes of keys beside the box of queries
 * that it is in. Boxes lie on a lattice from the first place on, and those at the ends of axes may be smaller. */
typedef struct luattn_mask_places {
  size_t struct_size;
  int batch, head;
  int query[LUATTN_MAX_AXES];                          /* coordinates */
  int q_box[LUATTN_MAX_AXES], kv_box[LUATTN_MAX_AXES]; /* extents; the first 0: of 64 places, 8 x 8 or 4 x 4 x 4 */
  unsigned char *places; /* of each key, in row-major order: 1 if it is kept, and twice the class of its box, 0 empty, 1
                          * partial, 2 full. NULL: the sizes below alone are filled */
  int axes, q_extent[LUATTN_MAX_AXES], kv_extent[LUATTN_MAX_AXES]; /* filled, as the boxes are */
  int boxes[3];                                                    /* filled: how many have each class */
} luattn_mask_places;

/* args as for luattn_mask_tiles. Errors: LUATTN_INVALID (the spec has no such grid; a query that is not on it). */
LUATTN_API luattn_status luattn_mask_places_of(const luattn_spec *spec, const luattn_args *args,
                                               luattn_mask_places *places, luattn_error *err);
/* Draws them as an SVG: the grid of keys, of more than two axes in slices along the outer ones in which boxes are not
 * empty. names: of the axes (luattn_spec_grid). The caller frees *out with luattn_text_free. */
LUATTN_API luattn_status luattn_mask_places_svg(const luattn_mask_places *places, const char *const *names,
                                                const char *title, char **out, luattn_error *err);

/* By what means kernels find which tiles of a mask to compute (docs/what_is_skipped.md). */
typedef enum luattn_mask_means {
  LUATTN_MASK_NONE,   /* there is no mask: all tiles are full */
  LUATTN_MASK_RANGES, /* ranges in closed form, and interval arithmetic: arithmetic on positions. What the mask reads of
                       * data is taken to be anything */
  LUATTN_MASK_MINIMA, /* the same, with minima and maxima of integers in blocks of positions */
  LUATTN_MASK_CELLS   /* the mask is evaluated on the device for cells of 64 x 64 scores: exact, whatever the data */
} luattn_mask_means;

/* Tiles and scores of all batch entries and heads. Where there are too many to evaluate, numbers are those of a sample,
 * and an error is two of its standard deviations; 0: exact. */
typedef struct luattn_mask_counts {
  size_t struct_size;
  luattn_mask_means means;
  int may_evaluate; /* 1: kernels can evaluate the mask (LUATTN_MASK_CELLS), whether or not it pays here */
  int tile_m, tile_n;
  double scores, kept, kept_error;             /* kept: by the mask */
  double tiles, full, partial, computed_error; /* kernels compute `full` without mask code, `partial` with it, none of
                                                * the others; computed_error: of full + partial */
  double needed, needed_error;                 /* tiles in which the mask keeps something */
  /* Over a grid of several axes, of a target and a mask that is a product of one interval along each: tiles are of boxes
   * of these extents, those that its kernels take. 0: of the places' row-major numbers. */
  int q_box[LUATTN_MAX_AXES], kv_box[LUATTN_MAX_AXES];
} luattn_mask_counts;

/* Counts the tiles that kernels compute, by what means, and those that the mask needs; about a second at any length.
 * args as above. `target`: the kernels, whose plan decides whether args->skip = LUATTN_SKIP_AUTO evaluates the mask in
 * one launch at these lengths without a luattn_batch that holds its tile bits, and which gives the tiles if tile_m is
 * 0. NULL: kernels that evaluate a mask from data where they can; tile_m must then be given. Over a grid of several axes
 * the target's boxes are counted, those of target->boxes where it is not 0, whatever tile_m is, and of masks with a
 * dilation that boxes do not step by `needed` is what ranges along the axes leave. Set only out->struct_size before the call. */
LUATTN_API luattn_status luattn_mask_survey(const luattn_spec *spec, const luattn_target *target,
                                            const luattn_args *args, int tile_m, int tile_n, luattn_mask_counts *out,
                                            luattn_error *err);

/* Counts the tiles of 128 x 128 scores that kernels compute for each chunk of chunk_rows queries and each of as many keys
 * (the last may be shorter), the mean over batch entries and heads: out[ceil(q_len / chunk_rows)][ceil(kv_len /
 * chunk_rows)]. Over a grid they are chunks of its places in row-major order. A mask from data is evaluated, of very long
 * sequences in a sample of tiles; args and args->skip as for luattn_mask_tiles. 0 says that no call needs those keys for
 * those queries: a sample leaves more than 0 wherever it did not look. For luattn/parallel.h. Errors: LUATTN_INVALID
 * (chunk_rows no multiple of 128). */
LUATTN_API luattn_status luattn_mask_chunks(const luattn_spec *spec, const luattn_args *args, int chunk_rows,
                                            float *out, luattn_error *err);

/* Counts exactly how many of the batch * heads * q_len * kv_len scores the mask keeps: it adds the size of full tiles
 * and evaluates the mask in partial ones. args as above. */
LUATTN_API luattn_status luattn_mask_count(const luattn_spec *spec, const luattn_args *args, int64_t *kept,
                                           luattn_error *err);

/* For tuning: the plan's tiles for these lengths, and the bytes that a pass needs with luattn_args.num_splits =
 * 1. */
typedef struct luattn_memory_estimate {
  size_t input, internal, output, total;
} luattn_memory_estimate;
typedef struct luattn_problem {
  int batch, heads, heads_kv, q_len, kv_len;
  int q_extent[LUATTN_MAX_AXES], kv_extent[LUATTN_MAX_AXES]; /* over a grid of several axes, in place of both lengths */
} luattn_problem;
LUATTN_API luattn_status luattn_plan_tiles(const luattn_spec *spec, const luattn_target *target, int *tile_m,
                                           int *tile_n, luattn_error *err);
LUATTN_API luattn_status luattn_estimate_memory(const luattn_spec *spec, const luattn_target *target,
                                                const luattn_problem *problem, luattn_memory_estimate *estimate,
                                                luattn_error *err);

/* Lists candidate tiles for tuning: first those of the built-in table, then neighbouring sizes that fit shared memory
 * and registers. Writes at most `most`, and their number to *count. */
LUATTN_API luattn_status luattn_plan_candidates(const luattn_spec *spec, const luattn_target *target, luattn_tiles *out,
                                                int most, int *count, luattn_error *err);
/* Stores target->tiles with the cache, for target->device, target->lengths and all other members of the target. tiles
 * NULL: removes the record. `gain`, for people, is the speed relative to the plan's own tiles. path[size] (may be NULL)
 * receives the file's name. Errors: LUATTN_INVALID (no device, no cache on disk, no candidate), LUATTN_IO. */
LUATTN_API luattn_status luattn_tuned_store(const luattn_spec *spec, const luattn_target *target, double gain,
                                            char *path, size_t size, luattn_error *err);

/* A pair of boxes over a grid of several axes, and what a kernel with them computes of one head. */
typedef struct luattn_box_pair {
  uint64_t query_tile_size, key_tile_size; /* as luattn_target has them */
  int boxes;   /* luattn_target.boxes of a pair that calls choose from by themselves, counted from 1; 0: of another */
  double kept; /* scores that the mask keeps */
  double computed;  /* scores in pairs of boxes of which one may be kept */
  double full;      /* the share of these pairs of boxes of which all are kept: no mask is evaluated there */
  double predicted; /* time, over that of the pair that calls take by themselves */
} luattn_box_pair;

/* Lists pairs of boxes for calls with the extents and heads of args->q and args->k, whose data are not read: first the one
 * that calls take by themselves, then the others that they choose from, then others that the kernel can run, the fastest by
 * its predicted time first; at most `most`, and 24. *count: how many. A mask is taken at batch entry 0, head 0, with the
 * defaults of scalars and inputs of 0, as the choice of a call takes it. Needs no GPU. Errors: LUATTN_INVALID (a spec
 * without a grid of several axes, tensors that do not have its axes), LUATTN_UNSUPPORTED (a family whose boxes are those of
 * its tiles). */
LUATTN_API luattn_status luattn_plan_box_pairs(const luattn_spec *spec, const luattn_target *target,
                                               const luattn_args *args, luattn_box_pair *out, int most, int *count,
                                               luattn_error *err);
/* Remembers target->query_tile_size and key_tile_size with the cache, for target->device, the extents and heads of args and
 * all other members of the target but lengths: engines on that device take them for such calls. Both 0: removes the record.
 * gain, path, size and errors as for luattn_tuned_store. */
LUATTN_API luattn_status luattn_tuned_boxes_store(const luattn_spec *spec, const luattn_target *target,
                                                  const luattn_args *args, double gain, char *path, size_t size,
                                                  luattn_error *err);

#ifdef __cplusplus
}
#endif
#endif
