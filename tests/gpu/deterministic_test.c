/* deterministic_test.c: tests that a deterministic backward gives the same bits in each of 20 runs, and in
 * another process.
 *
 * usage: gpu_deterministic [--examples DIR] [--only SUBSTRING] [--digests] Prints a line for each case: the
 * number of runs that gave the same bits as the first, and a digest of these bits. Then runs itself once more
 * (--digests) and compares the lines. Elements that are not written count as different. Exit: 0, 1, or 77
 * without a GPU. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/gpu.h"

enum { RUNS = 20, LINE = 512 };

/* Cases have enough blocks that several of a head run at once, in a different order each time: a fast
 * backward differs from run to run in nearly all of them. Others have few blocks, which share queries.
 * Gradients include scalars, tables that are read per element, mods, and rows. */
static const struct {
  const char *spec, *dtype, *family, *shape;
} cases[] = {
    {"full", "bf16", "sm90", "2,16,16,1024,1024,64"},
    {"full", "f16", "sm90", "1,16,16,1500,2100,128"},
    {"causal", "bf16", "sm90", "2,16,4,1300,1300,128"},
    {"causal", "f16", "sm90", "1,16,16,2100,1900,64,32"},
    {"sliding_window", "bf16", "sm90", "1,8,8,3000,3000,64"},
    {"document", "bf16", "sm90", "2,8,8,1500,1500,128"},
    {"longformer", "bf16", "sm90", "1,8,8,2000,2000,64"},
    {"alibi", "bf16", "sm90", "2,8,8,1300,1300,64"},
    {"alibi", "bf16", "sm90", "1,8,4,2100,2300,128"},
    {"gemma2", "bf16", "sm90", "2,8,8,1024,1100,64"},
    {"t5_relative_bias", "bf16", "sm90", "1,8,8,1100,1024,64"},
    {"xpos", "bf16", "sm90", "1,8,8,1024,1024,64"},
    {"causal", "bf16", "sm90", "1,32,4,2048,2048,128"},
    {"document", "f16", "sm90", "1,16,1,1500,1500,64"},
    {"full", "bf16", "sm80", "2,16,16,1024,1024,64"},
    {"causal", "bf16", "sm80", "1,16,4,1300,1300,128"},
    {"causal", "f16", "sm80", "1,16,16,1024,1024,256"},
    {"gemma2", "f16", "sm80", "2,8,8,1024,1100,64"},
    {"t5_relative_bias", "bf16", "sm80", "1,8,8,1100,1024,64"},
    {"attention_sink", "bf16", "sm80", "1,8,8,1100,1024,64"},
    {"causal", "bf16", "sm90", "1,8,8,1500,1500,192,128"},
    {"causal", "bf16", "sm90", "1,16,4,1300,1300,256"},
    {"full", "f16", "sm90", "2,8,8,1000,1100,64,256"},
    {"document", "bf16", "sm90", "1,8,8,2000,2000,136"},
    {"alibi", "bf16", "sm90", "1,8,8,2100,2300,256"},
    {"t5_relative_bias", "bf16", "sm90", "1,8,8,1100,1024,128"},
    {"../bench/specs/relative_bias", "bf16", "sm90", "2,8,8,700,700,64"},
    {"../bench/specs/alibi_slopes", "bf16", "sm90", "2,8,8,1024,1100,64"},
    {"../bench/specs/bias_of_pair", "bf16", "sm90", "2,8,8,500,640,64"},
    {"../bench/specs/bias_of_pair", "bf16", "sm80", "1,8,8,500,600,128"},
    {"../bench/specs/bias_of_pair", "f16", "sm90", "4,4,4,300,300,128"},
    {"../bench/specs/bias_of_pair", "bf16", "sm90", "3,16,8,500,700,128"}, /* batch entries in sequence */
    {"../bench/specs/bias_of_pair", "bf16", "sm90", "5,8,8,400,700,256"},
    {"../bench/specs/relative_bias", "f16", "sm90", "2,8,4,700,700,256"},
    {"../bench/specs/bias_of_query", "bf16", "sm90", "2,8,8,700,700,256"},
    {"../bench/specs/bias_of_key", "bf16", "sm90", "2,8,8,700,700,64,192"},
    {"../bench/specs/alibi_slopes", "bf16", "sm90", "2,8,8,700,700,192"},
    {"t5_relative_bias", "bf16", "sm90", "1,8,8,1100,1024,256"},
    {"../tests/specs/capped_pair_bias", "bf16", "sm90", "3,16,8,500,700,64"},
    {"../tests/specs/capped_pair_bias", "f16", "sm90", "5,8,8,500,700,128"},
    {"../tests/specs/mask_between_tiles", "bf16", "sm90", "2,16,16,1500,1500,128"},
    {"gemma2", "f32", "simt", "1,8,8,700,600,64"},
    {"t5_relative_bias", "f32", "simt", "1,8,8,700,600,64"},
    {"gemma2", "f64", "simt", "1,4,4,300,300,32"},
};

typedef struct bits {
  unsigned char *first, *now; /* all outputs, concatenated; 0xff before a run */
  size_t size;
} bits;

static luattn_status take(gpu_buffers *b, const DLTensor *from, unsigned char *to, size_t *used, luattn_error *err) {
  if (from == NULL || from->data == NULL) return LUATTN_OK;
  size_t size = from->dtype.bits / 8u;
  for (int i = 0; i < from->ndim; i++) size *= (size_t)from->shape[i];
  const size_t at = *used;
  *used += size;
  if (to == NULL) return LUATTN_OK;
  TRY(luattn_copy_to_host(b->g->driver, b->g->device, to + at, from->data, size, err));
  /* reveals elements that the next run does not write */
  return luattn_device_fill(b->g->driver, b->g->device, from->data, 0xff, size, NULL, err);
}

static luattn_status take_all(gpu_buffers *b, const luattn_args *a, unsigned char *to, size_t *size,
                              luattn_error *err) {
  *size = 0;
  TRY(take(b, a->dq, to, size, err));
  TRY(take(b, a->dk, to, size, err));
  TRY(take(b, a->dv, to, size, err));
  for (size_t i = 0; i < a->num_inputs; i++) TRY(take(b, a->inputs[i].grad, to, size, err));
  return take(b, a->scalar_grads, to, size, err);
}

/* Returns whether no output is four bytes of 0xff, a NaN that arithmetic never gives. */
static bool is_written(const bits *x) {
  for (size_t i = 0; i + 4 <= x->size; i += 4)
    if ((x->first[i] & x->first[i + 1] & x->first[i + 2] & x->first[i + 3]) == 0xff) return false;
  return true;
}

static uint64_t digest_of(const bits *x) {
  uint64_t h = 14695981039346656037u;
  for (size_t i = 0; i < x->size; i++) h = (h ^ x->first[i]) * 1099511628211u;
  return h;
}

static luattn_status run(gpu_buffers *b, const cli_problem *p, const cli_result *r, bits *x, int *same,
                         luattn_error *err) {
  gpu_args d;
  TRY(gpu_upload(b, p, r, true, &d, err));
  luattn_args forward = gpu_forward_args(p, &d.args);
  TRY(gpu_workspace(b, p, LUATTN_FORWARD, &forward, err));
  TRY(luattn_forward(b->g->engine, p->spec, &forward, NULL, err));
  TRY(gpu_workspace(b, p, LUATTN_BACKWARD, &d.args, err));
  TRY(take_all(b, &d.args, NULL, &x->size, err));
  x->first = malloc(x->size), x->now = malloc(x->size);
  if (x->first == NULL || x->now == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "out of host memory");
  *same = 0;
  TRY(take_all(b, &d.args, x->first, &x->size, err)); /* also fills the outputs */
  for (int i = 0; i < RUNS; i++) {
    if (d.args.workspace_size > 0)
      TRY(luattn_device_fill(b->g->driver, b->g->device, d.args.workspace, (unsigned char)(0xff - i),
                             d.args.workspace_size, NULL, err));
    TRY(luattn_backward(b->g->engine, p->spec, &d.args, NULL, err));
    TRY(luattn_synchronize(b->g->driver, b->g->device, NULL, err));
    TRY(take_all(b, &d.args, i == 0 ? x->first : x->now, &x->size, err));
    *same += i == 0 ? is_written(x) : memcmp(x->first, x->now, x->size) == 0;
  }
  return LUATTN_OK;
}

/* Runs a case and writes its result to `line`. */
static luattn_status run_case(size_t number, const char *examples, char line[LINE], bool *failed, luattn_error *err) {
  cli_options o = {.dtype = cases[number].dtype,
                   .family = cases[number].family,
                   .shape = cases[number].shape,
                   .seed = 7,
                   .deterministic = true,
                   .no_tuned = true};
  char path[4096];
  const DLDataType real = dtype_dl(strcmp(o.dtype, "f64") == 0 ? LUATTN_F64 : LUATTN_F32);
  luattn_spec *spec = NULL;
  cli_problem p = {0};
  cli_result r = {0};
  cli_gpu *gpu = NULL;
  bits x = {0};
  int same = 0;
  snprintf(path, sizeof path, "%s/%s.lua", examples, cases[number].spec);
  luattn_status status = luattn_spec_load(path, NULL, &spec, err);
  if (status == LUATTN_OK) status = problem_read(spec, &o, true, &p, err);
  if (status == LUATTN_OK) status = result_new(&p, dtype_dl(p.dtype), real, true, &r, err);
  if (status == LUATTN_OK) status = gpu_open(&o, &gpu, err);
  if (status == LUATTN_OK) {
    gpu_buffers b = {.g = gpu};
    status = run(&b, &p, &r, &x, &same, err);
    gpu_buffers_free(&b);
  }
  if (status == LUATTN_OK) {
    snprintf(line, LINE, "%s %s %s %s: %d of %d runs alike, %016" PRIx64 " of %zu bytes\n", cases[number].spec, o.dtype,
             o.family != NULL ? o.family : "any", o.shape, same, RUNS, digest_of(&x), x.size);
    *failed |= same != RUNS;
  }
  free(x.first);
  free(x.now);
  gpu_close(gpu);
  result_free(&r);
  problem_free(&p);
  luattn_spec_free(spec);
  return status;
}

/* Returns the output lines of another process. */
static char *ask_another(const char *examples, const char *only) {
  char command[9000], self[4096];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n < 0) return NULL;
  self[n] = 0;
  snprintf(command, sizeof command, "'%s' --digests --examples '%s' --only '%s'", self, examples, only);
  FILE *f = popen(command, "r");
  char *text = calloc(1, 1 << 16);
  if (f != NULL && text != NULL) (void)!fread(text, 1, (1 << 16) - 1, f);
  if (f != NULL) pclose(f);
  return text;
}

int main(int argc, char **argv) {
  const char *examples = "examples", *only = "";
  bool digests = false, failed = false;
  luattn_driver *driver;
  luattn_error err;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--digests") == 0)
      digests = true;
    else if (i + 1 < argc && strcmp(argv[i], "--examples") == 0)
      examples = argv[++i];
    else if (i + 1 < argc && strcmp(argv[i], "--only") == 0)
      only = argv[++i];
    else
      return 2;
  }
  if (luattn_driver_open(&driver, &err) != LUATTN_OK) {
    printf("skipped: %s\n", err.message);
    return 77;
  }
  /* Keeps the device's context alive between cases. */
  void *held = NULL;
  if (luattn_device_alloc(driver, 0, 1, &held, &err) != LUATTN_OK) printf("%s\n", err.message);
  static char text[sizeof cases / sizeof *cases * LINE];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char line[LINE];
    if (strstr(cases[i].spec, only) == NULL) continue;
    const luattn_status status = run_case(i, examples, line, &failed, &err);
    if (status != LUATTN_OK)
      snprintf(line, LINE, "%s %s %s: %.300s\n", cases[i].spec, cases[i].dtype, cases[i].shape, err.message);
    /* On a device without the family there is nothing to test. */
    failed |= status != LUATTN_OK && status != LUATTN_UNSUPPORTED;
    printf("%s", line);
    fflush(stdout);
    strcat(text, line);
  }
  if (!digests) {
    char *other = ask_another(examples, only);
    const bool alike = other != NULL && strcmp(other, text) == 0;
    printf("another process: %s\n", alike ? "the same" : other);
    failed |= !alike || text[0] == 0;
    free(other);
  }
  luattn_device_free(driver, 0, held, NULL);
  luattn_driver_close(driver);
  return failed;
}
