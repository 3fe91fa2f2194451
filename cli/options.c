/* options.c: one table for both the parser and the help. */
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "common/real.h"

typedef enum option_kind { TEXT, PAIR_INPUT, PAIR_SET, REAL, WHOLE, SWITCH } option_kind;

typedef struct option {
  const char *name;
  option_kind kind;
  size_t offset;
  int commands;
  const char *value, *help;
} option;

#define GRID (CLI_PACK | CLI_WARM)
#define ARRAYS (CLI_RUN | CLI_CHECK | CLI_BENCH | CLI_MASK | CLI_TUNE | CLI_PLAN)
#define AT(field) offsetof(cli_options, field)

/* "|simt|sm80|sm90", and likewise. */
static const char families[] =
#define KERNEL_FAMILY(id, text) "|" text
#include "abi/kernel_facts.def"
    ;
static const char dtypes[] =
#define KERNEL_DTYPE(id, text, input, code, bits, unit) "|" text
#include "abi/kernel_facts.def"
    ;
static const char dtypes_of_grid[] =
    "of q, k, v, o:"
#define KERNEL_DTYPE(id, text, input, code, bits, unit) " " text
#include "abi/kernel_facts.def"
    " (default bf16)";

static const option options[] = {
    {"--shape", TEXT, AT(shape), CLI_RUN | CLI_EMIT | CLI_MASK | CLI_BENCH | CLI_PLAN, "B,H,Hkv,Sq,Skv,D[,Dv]",
     "sizes of random q, k, v (default 1,2,2,256,256,64); over a grid extents for Sq and Skv, as 24x32"},
    {"--shape", TEXT, AT(shape), CLI_CHECK, "B,H,Hkv,Sq,Skv,D[,Dv]",
     "sizes of random q, k, v (default 1,2,2,256,256,64; beside plain Lua 2,2,1,19,23,6,5); over a grid extents for Sq "
     "and Skv, as 24x32"},
    {"--shape", TEXT, AT(shape), CLI_RUN | CLI_CHECK, "B,T,H,HV,K[,V]",
     "of linear attention (default 1,256,2,2,64; check 2,200,1,2,64,64, beside plain Lua 2,19,1,2,6,5)"},
    {"--shape", TEXT, AT(shape), CLI_TUNE, "B,H,Hkv,Sq,Skv,D[,Dv]",
     "the one shape to measure (default: see --lengths); over a grid, where it has to be given, extents for Sq and "
     "Skv, as "
     "24x32"},
    {"--shape", TEXT, AT(shape), CLI_WARM, "B,H,Hkv,Sq,Skv,D[,Dv]",
     "the sizes to compile for: their head dims, and the tiles for their lengths (default: see --head-dim)"},
    {"--head-dim", TEXT, AT(head_dim), CLI_RUN | CLI_CHECK | CLI_EMIT | CLI_BENCH, "D[,Dv]",
     "head dims, in place of those of --shape's default"},
    {"--head-dim", TEXT, AT(head_dim), CLI_TUNE, "D[,Dv]", "head dims for --lengths (default 64)"},
    {"--lengths", TEXT, AT(lengths), CLI_TUNE, "short|long|S,S,..",
     "q_len = kv_len to measure, up to 8 (short 1024, long 8192; default both), with B x S of 8k tokens and "
     "H x D "
     "= 2048"},
    {"--q", TEXT, AT(q), CLI_RUN | CLI_CHECK, "q.npy", "q from a file; likewise the next four"},
    {"--k", TEXT, AT(k), CLI_RUN | CLI_CHECK, "k.npy", NULL},
    {"--v", TEXT, AT(v), CLI_RUN | CLI_CHECK, "v.npy", NULL},
    {"--dout", TEXT, AT(dout), CLI_RUN | CLI_CHECK, "do.npy", "gradient of o; asks for backward"},
    {"--dlse", TEXT, AT(dlse), CLI_RUN, "dlse.npy", "gradient of lse, for --dout or --backward"},
    {"--dlse", TEXT, AT(dlse), CLI_CHECK, "dlse.npy", "gradient of lse"},
    {"--lengths", TEXT, AT(lengths), CLI_RUN | CLI_CHECK | CLI_BENCH, "short|long|S",
     "kernels with the tiles for such lengths (default: as q_len says, backward kv_len: short up to 2048)"},
    {"--lengths", TEXT, AT(lengths), CLI_EMIT, "short|long|S",
     "the tiles for such lengths (default: as --shape says, backward by Skv: short up to 2048; long without "
     "it)"},
    {"--lengths", TEXT, AT(lengths), CLI_WARM, "short|long|S",
     "only the tiles for such lengths (default: as --shape says; both without it)"},
    {"--backward", SWITCH, AT(backward), CLI_EMIT, NULL, "the same as --pass backward"},
    {"--backward", SWITCH, AT(backward), CLI_RUN | CLI_BENCH | CLI_TUNE, NULL,
     "run backward too (a random dout unless --dout)"},
    {"--input", PAIR_INPUT, 0, ARRAYS, "NAME=x.npy", "an extra input from a file (default: random)"},
    {"--set", PAIR_SET, 0, ARRAYS, "NAME=VALUE", "a scalar of the spec"},
    {"--dropout", REAL, AT(dropout), CLI_RUN | CLI_CHECK | CLI_BENCH, "P",
     "dropout(P, ..) around the spec's online function: drops weights with this probability, in steps of 1/256"},
    {"--seed", WHOLE, AT(seed), CLI_RUN | CLI_CHECK | CLI_BENCH, "N",
     "seed of the random arrays, and of the numbers that kernels draw (default 1)"},
    {"--seed", WHOLE, AT(seed), CLI_MASK | CLI_TUNE | CLI_PLAN, "N", "seed of the random arrays (default 1)"},
    {"-o", TEXT, AT(pack), CLI_PACK, "FILE", "the pack to write"},
    {"--list", SWITCH, AT(list), CLI_PACK, NULL, "check a pack and print what is in it; it is named as FILE"},
    {"--out", TEXT, AT(out), CLI_PACK, "DIR", "with --list: write the specs and sources that it carries to DIR"},
    {"--arch", TEXT, AT(arch), GRID, "sm_80,sm_90a,..", "architectures, compute_80 for PTX (default: the GPUs here)"},
    {"--device", TEXT, AT(device), GRID, "cuda[:N]", "for this GPU of those here"},
    {"--dtype", TEXT, AT(dtype), GRID, "bf16,f16,..", dtypes_of_grid},
    {"--head-dim", TEXT, AT(head_dim), GRID, "64,192x128,..", "head dims, DxDv where v has another (default 128)"},
    {"--pass", TEXT, AT(pass), GRID, "forward|backward", "one of them alone (default: both)"},
    {"--family", TEXT, AT(family), GRID, families + 1, "kernel family (default: the plan's choice)"},
    {"--jobs", WHOLE, AT(jobs), GRID, "N", "threads that compile (default: as many as there are processors)"},
    {"--with-specs", SWITCH, AT(with_specs), CLI_PACK, NULL, "carry the specs along, for people to read"},
    {"--with-sources", SWITCH, AT(with_sources), CLI_PACK, NULL, "carry the generated CUDA along"},
    {"--layout", TEXT, AT(layout), CLI_RUN, "bhsd|bshd",
     "order of q, k, v, dout, out, dq, dk, dv in memory and in .npy files (lse is B,H,S in either)"},
    {"--layout", TEXT, AT(layout), CLI_CHECK, "bhsd|bshd", "order of q, k, v, dout in memory and in .npy files"},
    {"--layout", TEXT, AT(layout), CLI_BENCH | CLI_TUNE, "bhsd|bshd", "order of q, k, v, o in memory"},
    {"--dtype", TEXT, AT(dtype), CLI_RUN | CLI_CHECK | CLI_BENCH | CLI_EMIT | CLI_TUNE, dtypes + 1,
     "of q, k, v, o (default f32; bench and tune bf16)"},
    {"--dtype", TEXT, AT(dtype), CLI_MASK, dtypes + 1,
     "of q, k, v, o: whose kernels are asked for --skip auto (default bf16)"},
    {"--family", TEXT, AT(family), CLI_MASK, families + 1, "their family (default: the plan's choice)"},
    {"--pass", TEXT, AT(pass), CLI_MASK, "forward|backward", "their pass (default forward)"},
    {"--arch", TEXT, AT(arch), CLI_MASK, "sm_90a", "their architecture, as for emit (default sm_90a)"},
    {"--family", TEXT, AT(family), CLI_RUN | CLI_CHECK | CLI_BENCH | CLI_EMIT | CLI_TUNE, families + 1,
     "kernel family (default: the plan's choice)"},
    {"--cu-seqlens", TEXT, AT(cu_seqlens), CLI_RUN | CLI_CHECK | CLI_BENCH, "0,100,356|cu.npy",
     "packed sequences: 0, and where each ends; q, k, v, dout, out, .. are rows x heads x head_dim, lse is heads x "
     "rows"},
    {"--cu-seqlens-q", TEXT, AT(cu_seqlens_q), CLI_RUN | CLI_CHECK | CLI_BENCH, "0,100,356|cu.npy",
     "of queries, beside the next, where the lengths of queries and keys differ"},
    {"--cu-seqlens-k", TEXT, AT(cu_seqlens_k), CLI_RUN | CLI_CHECK | CLI_BENCH, "0,200,456|cu.npy", NULL},
    {"--scale", REAL, AT(scale), CLI_RUN | CLI_CHECK | CLI_BENCH | CLI_TUNE, "X",
     "softmax scale, a positive number (default head_dim^-1/2)"},
    {"--splits", WHOLE, AT(splits), CLI_RUN | CLI_CHECK | CLI_BENCH, "N",
     "blocks that share the queries of 128 keys in backward of sm90, or the keys with --decode (default: what keeps "
     "the GPU busy)"},
    {"--skip", TEXT, AT(skip), CLI_MASK, "auto|always|never",
     "whether kernels evaluate a mask from data, cell by cell (default auto: where it pays in one launch)"},
    {"--skip", TEXT, AT(skip), CLI_RUN | CLI_CHECK | CLI_BENCH, "auto|always|never",
     "tiles that norms of q and k prove to be without weight, or masks from data to be empty (default auto: where it "
     "pays)"},
    {"--device", TEXT, AT(device), CLI_RUN | CLI_CHECK, "cpu|cuda[:N]", "default: cuda if there is one, else cpu"},
    {"--device", TEXT, AT(device), CLI_BENCH | CLI_TUNE, "cuda[:N]", "which GPU to measure on (default cuda:0)"},
    {"--device", TEXT, AT(device), CLI_EMIT, "cuda[:N]",
     "as for this GPU: its architecture, and the tiles that tune remembered for it"},
    {"--full", SWITCH, AT(full), CLI_CHECK, NULL,
     "also compare with plain Lua, one score at a time (slow; default on the CPU)"},
    {"--weights", SWITCH, AT(weights), CLI_RUN, NULL,
     "also the weights of v, B,H,Sq,Skv, negative where dropout drops them; of --cu-seqlens Sq and Skv are the longest "
     "sequences'"},
    {"--tangents", SWITCH, AT(tangents), CLI_RUN, NULL,
     "also tangents of out and lse along random ones of q, k, v, real inputs and scalars (on the CPU)"},
    {"--jvp", SWITCH, AT(jvp), CLI_CHECK, NULL,
     "also tangents: the CPU path's against differences of plain Lua, and against backward; on a GPU kernels' against "
     "the CPU path's; not for packed sequences"},
    {"--out", TEXT, AT(out), CLI_RUN, "DIR",
     "where out.npy, lse.npy, dq.npy, .. go, as --layout orders them (default: print a summary only)"},
    {"--stage", TEXT, AT(stage), CLI_EMIT, "NAME",
     "ir, grad, tangent, merge, mask, plan (before compiling), spec, config, ptx or cubin (all kernels in one; "
     "tells their plan)"},
    {"--pass", TEXT, AT(pass), CLI_EMIT, "forward|backward", "default forward"},
    {"--wants", TEXT, AT(wants), CLI_EMIT, "dq,dk,..",
     "which gradients backward computes: dq, dk, dv, inputs, scalars (default: all)"},
    {"--along", TEXT, AT(along), CLI_EMIT, "q,k,v,..",
     "forward with tangents along those of q, k, v, inputs and scalars of these names (luattn_target.tangents)"},
    {"--arch", TEXT, AT(arch), CLI_EMIT, "sm_80",
     "sm_80, 86, 87, 89, 90, 100, 101, 103, 110, 120 or 121; compute_80 for PTX (default sm_80)"},
    {"--tile", TEXT, AT(tile), CLI_MASK | CLI_EMIT, "M,N",
     "tile size (mask: default 64,64, over a grid boxes of queries and keys, as 8x8,8x16; emit: default the plan's)"},
    {"--query", TEXT, AT(query), CLI_MASK, "Y,X",
     "over a grid: the coordinates of the query whose keys are drawn (default its middle)"},
    {"--query-tile-size", TEXT, AT(query_tile_size), CLI_RUN | CLI_CHECK | CLI_BENCH | CLI_EMIT, "Y,X",
     "over a grid, the box of queries, in emit of either pass, else of forward (luattn_target.query_tile_size)"},
    {"--key-tile-size", TEXT, AT(key_tile_size), CLI_RUN | CLI_CHECK | CLI_BENCH | CLI_EMIT, "Y,X", "likewise of keys"},
    {"--batch", WHOLE, AT(batch), CLI_MASK, "N", "which batch entry to draw, counted from 0 (default 0)"},
    {"--head", WHOLE, AT(head), CLI_MASK, "N", "which query head to draw, counted from 0 (default 0)"},
    {"--svg", TEXT, AT(svg), CLI_MASK, "out.svg", "draw the picture into a file"},
    {"--json", TEXT, AT(json), CLI_MASK, "out.json", "write the means and the counts into a file"},
    {"--ranks", WHOLE, AT(ranks), CLI_PLAN, "N", "GPUs, 1 to 1024"},
    {"--node", WHOLE, AT(node), CLI_PLAN, "N", "those of them that NVLink joins (default 8)"},
    {"--dtype", TEXT, AT(dtype), CLI_PLAN, dtypes + 1, "of q, k, v, o (default bf16)"},
    {"--repeat", WHOLE, AT(repeat), CLI_BENCH | CLI_TUNE, "N",
     "launches to take the median of, 1 to 1000 (default 30; tune: at most, of each candidate in turn)"},
    {"--time-limit", WHOLE, AT(time_limit), CLI_TUNE, "SECONDS",
     "stop compiling at half of it, and measuring at all of it (default 300)"},
    {"--dry-run", SWITCH, AT(dry_run), CLI_TUNE, NULL,
     "list what would be measured, without a GPU: tiles, or over a grid pairs of boxes with what each computes"},
    {"--arch", TEXT, AT(arch), CLI_TUNE, "sm_90a", "with --dry-run: for this architecture (default sm_90a)"},
    {"--no-tuned", SWITCH, AT(no_tuned), CLI_RUN | CLI_CHECK | CLI_BENCH | CLI_EMIT | CLI_WARM, NULL,
     "the plan's own tiles, even where tune has remembered better ones"},
    {"--deterministic", SWITCH, AT(deterministic), CLI_RUN | CLI_CHECK | CLI_BENCH | CLI_EMIT | CLI_TUNE | GRID, NULL,
     "backward that gives the same bits in every run"},
    {"--offsets", TEXT, AT(offsets), CLI_EMIT, "numbers|arrays|chunks",
     "kernels for q, k and v that are parts of a whole (luattn/batch.h), and what may say which"},
    {"--large-scores", SWITCH, AT(large_scores), CLI_RUN | CLI_CHECK | CLI_BENCH | CLI_EMIT, NULL,
     "P accurate for scores up to 1e9, with the maximum and log l of a row saved (luattn_args.large_scores)"},
    {"--out-f32", SWITCH, AT(out_f32), CLI_RUN | CLI_CHECK | CLI_BENCH | CLI_EMIT, NULL,
     "o in f32 beside q, k, v of bf16 or f16, for parts that are merged (luattn_args.out_f32)"},
    {"--grad-f32", SWITCH, AT(grad_f32), CLI_RUN | CLI_CHECK | CLI_BENCH | CLI_EMIT, NULL,
     "dq, dk, dv in f32 beside q, k, v of bf16 or f16 (luattn_args.grad_f32)"},
    {"--out-f32", SWITCH, AT(out_f32), GRID, NULL,
     "also the kernels whose o is f32, of bf16 and f16 (luattn_target.out_f32)"},
    {"--grad-f32", SWITCH, AT(grad_f32), GRID, NULL,
     "also backward's kernels whose dq, dk, dv are f32, of bf16 and f16 (luattn_target.grad_f32)"},
    {"--own-backward", SWITCH, AT(own_backward), CLI_CHECK, NULL,
     "accept that the spec's own backward is not the gradient of its forward, as with a detached normaliser"},
    {"--decode", SWITCH, AT(decode), CLI_RUN | CLI_CHECK | CLI_BENCH | CLI_EMIT | CLI_TUNE, NULL,
     "forward by the kernel for few queries and many keys (luattn_target.decode)"},
    {"--no-decode", SWITCH, AT(no_decode), CLI_RUN | CLI_CHECK | CLI_BENCH, NULL,
     "forward by the kernel for all lengths (default: by the one that a model predicts to be faster)"},
    {"--decode", SWITCH, AT(decode), GRID, NULL,
     "also forward's kernels for few queries and many keys (luattn_target.decode)"},
    {"--packed", SWITCH, AT(packed), GRID, NULL, "also the kernels for packed sequences (luattn_target.packed)"},
    {"--pages", TEXT, AT(pages), GRID, "1|8",
     "also forward's kernels for keys in pages of any size, or of multiples of 8 (luattn_target.pages)"},
    {"--keys-modified", SWITCH, AT(keys_modified), CLI_RUN | CLI_CHECK | CLI_BENCH | CLI_EMIT, NULL,
     "k and v have been through key_mod and value_mod, as rows of a cache (luattn_args.keys_modified); forward alone"},
    {"--cache-dir", TEXT, AT(cache_dir), CLI_RUN | CLI_CHECK | CLI_BENCH | CLI_CACHE | CLI_EMIT | CLI_TUNE | GRID,
     "DIR", "default: LUATTN_CACHE_DIR, else ~/.cache/luattn"},
    {"--max-bytes", TEXT, AT(max_bytes), CLI_CACHE, "SIZE",
     "prune: keep at most this much, as in 500M (default: LUATTN_CACHE_SIZE, else 1G)"},
};
#define NUM_OPTIONS ((int)(sizeof options / sizeof *options))

void options_print(FILE *to, int command) {
  for (int i = 0; i < NUM_OPTIONS; i++) {
    if (!(options[i].commands & command)) continue;
    char left[64];
    snprintf(left, sizeof left, "%s %s", options[i].name, options[i].value != NULL ? options[i].value : "");
    fprintf(to, "  %-32s %s\n", left, options[i].help != NULL ? options[i].help : "");
  }
}

static luattn_status parse_pair(const option *o, char *text, cli_options *out, luattn_error *err) {
  char *equals = strchr(text, '=');
  int *count = o->kind == PAIR_INPUT ? &out->num_inputs : &out->num_sets;
  cli_pair *pairs = o->kind == PAIR_INPUT ? out->input : out->set;
  if (equals == NULL || equals == text) {
    return luattn_fail(err, LUATTN_INVALID, "%s: '%s' is not of the form %s; give %s %s", o->name, text, o->value,
                       o->name, o->value);
  }
  *equals = 0;
  for (int i = 0; i < *count; i++) {
    if (strcmp(pairs[i].name, text) == 0) {
      return luattn_fail(err, LUATTN_INVALID, "%s: '%s' is given twice, as '%s' and '%s'; keep one", o->name, text,
                         pairs[i].value, equals + 1);
    }
  }
  if (*count == CLI_MAX_PAIRS) {
    return luattn_fail(err, LUATTN_INVALID, "%s: '%s' is one more than the %d that a spec can have", o->name, text,
                       CLI_MAX_PAIRS);
  }
  pairs[(*count)++] = (cli_pair){text, equals + 1};
  return LUATTN_OK;
}

static luattn_status out_of_range(const option *o, const char *text, luattn_error *err) {
  if (o->kind == WHOLE)
    return luattn_fail(err, LUATTN_INVALID, "%s: '%s' is out of range; give a whole number from %ld to %ld", o->name,
                       text, LONG_MIN, LONG_MAX);
  return luattn_fail(err, LUATTN_INVALID, "%s: '%s' is out of range; give a number from %g to %g", o->name, text,
                     DBL_MIN, DBL_MAX);
}

static luattn_status parse_value(const option *o, char *text, cli_options *out, luattn_error *err) {
  char *at = (char *)out + o->offset, *end = text;
  errno = 0;
  switch (o->kind) {
    case TEXT:
      *(const char **)(void *)at = text;
      return LUATTN_OK;
    case REAL:
      *(double *)(void *)at = real_read(text, &end);
      out->has_scale |= o->offset == AT(scale), out->has_dropout |= o->offset == AT(dropout);
      break;
    case WHOLE:
      *(long *)(void *)at = strtol(text, &end, 10);
      break;
    default:
      return parse_pair(o, text, out, err);
  }
  if (*text != 0 && *end == 0 && errno == ERANGE) return out_of_range(o, text, err);
  if (*text == 0 || *end != 0 || errno != 0) {
    return luattn_fail(err, LUATTN_INVALID, "%s: '%s' is not a %snumber; give %s %s", o->name, text,
                       o->kind == WHOLE ? "whole " : "", o->name, o->value);
  }
  return LUATTN_OK;
}

/* Finds an option of `command`. */
static const option *find_option(const char *name, size_t size, int command) {
  for (int i = 0; i < NUM_OPTIONS; i++) {
    const option *o = &options[i];
    if ((o->commands & command) && strlen(o->name) == size && memcmp(o->name, name, size) == 0) return o;
  }
  return NULL;
}

luattn_status options_parse(int argc, char **argv, int command, const char *name, cli_options *out, luattn_error *err) {
  *out = (cli_options){.seed = 1, .repeat = 30, .time_limit = 300};
  for (int i = 0; i < argc; i++) {
    char *word = argv[i];
    if (word[0] != '-' || word[1] == 0) {
      const int words = command & GRID ? CLI_MAX_SPECS : 1;
      if (out->num_specs == words || command == CLI_DEVICES) {
        return luattn_fail(err, LUATTN_INVALID, "%s: '%s' is one argument too many; see luattn %s --help", name, word,
                           name);
      }
      if (out->spec == NULL) out->spec = word;
      out->specs[out->num_specs++] = word;
      continue;
    }
    char *equals = strchr(word, '=');
    const option *o = find_option(word, equals != NULL ? (size_t)(equals - word) : strlen(word), command);
    if (o == NULL) {
      return luattn_fail(err, LUATTN_INVALID, "%s: '%s' is not one of its options; see luattn %s --help", name, word,
                         name);
    }
    if (o->kind == SWITCH) {
      if (equals != NULL)
        return luattn_fail(err, LUATTN_INVALID, "%s: takes no value, got '%s'; leave it out", o->name, equals + 1);
      *(bool *)(void *)((char *)out + o->offset) = true;
      continue;
    }
    char *value = equals != NULL ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
    if (value == NULL)
      return luattn_fail(err, LUATTN_INVALID, "%s: its value is missing; give %s %s", o->name, o->name, o->value);
    TRY(parse_value(o, value, out, err));
  }
  return LUATTN_OK;
}

int parse_sizes(const char *text, int most, int *out) {
  for (int n = 0; n < most;) {
    char *end;
    if (*text < '0' || *text > '9') return 0; /* strtol would take spaces and signs */
    errno = 0;
    const long x = strtol(text, &end, 10);
    if (errno != 0 || x > INT32_MAX) return 0;
    out[n++] = (int)x;
    if (*end == 0) return n;
    if (*end != ',') return 0;
    text = end + 1;
  }
  return 0;
}

bool parse_head_dim(const char *text, int out[2]) {
  char both[40];
  if (strlen(text) >= sizeof both) return false;
  snprintf(both, sizeof both, "%s", text);
  char *times = strchr(both, 'x');
  if (times != NULL) *times = ',';
  const int n = parse_sizes(both, 2, out);
  if (n == 1) out[1] = out[0];
  return n > 0 && out[0] > 0 && out[1] > 0;
}
