/* seeds.c: fuzz_seeds FOLDER writes FOLDER/image/.. and FOLDER/pack/.., the initial corpora of these targets.
 * Every build makes them again, because an image of an old format would fail at its version. Each image is
 * launched here to make sure that mutations of it can reach the launch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/pack.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/pages.h"
#include "tests/support/problem.h"

enum {
  PACKED_SEEDS = 10,
  SEEDS = 12,
  RANDOM = 7,
  DECODE = 8,
  IN_PAGES = 9,
  WEIGHTS = 10,
  APPENDS = 11
}; /* packs do not hold the last two */

static luattn_error err;
static void check(luattn_status status, const char *what) {
  if (status == LUATTN_OK) return;
  fprintf(stderr, "fuzz_seeds: %s: %s\n", what, err.message);
  exit(1);
}

static void write_seed(const char *folder, const char *kind, const char *name, const void *bytes, size_t size) {
  char path[1024];
  const int n = snprintf(path, sizeof path, "%s/%s/%s", folder, kind, name);
  FILE *f = (size_t)n < sizeof path ? fopen(path, "wb") : NULL;
  const int written = f != NULL && fwrite(bytes, 1, size, f) == size;
  if ((f != NULL && fclose(f) != 0) || !written) {
    fprintf(stderr, "fuzz_seeds: %s: cannot be written\n", path);
    exit(1);
  }
}

static manifest_entry *insert_entry(image_manifest *m, uint32_t at, const char *name, luattn_role role) {
  manifest_entry *e = &m->entry[at];
  memmove(e + 1, e, (m->num_entries++ - at) * sizeof *e);
  *e = (manifest_entry){.role = role, .threads = 128, .tile_m = 64, .tile_n = 64};
  memcpy(e->name, name, strlen(name) + 1);
  return e;
}

/* Adds features of the sm90 family: a work counter, tile skipping, blocks that share a kv tile. */
static void make_sm90(image_manifest *m) {
  const uint32_t main = m->pass == LUATTN_FORWARD ? 2 : 3;
  m->family = LUATTN_SM90;
  m->draws_tiles = m->pass == LUATTN_FORWARD;
  m->can_split = m->has_mask = m->pass == LUATTN_BACKWARD;
  insert_entry(m, main, "luattn_tile_bitmap", LUATTN_ROLE_TILE_BITMAP);
  insert_entry(m, main, "luattn_norms", LUATTN_ROLE_NORMS);
}

/* The kernel for few queries: its blocks share keys. */
static void make_decode(image_manifest *m) {
  m->decode = 1;
  m->num_state[0] = 2;
  m->params_bytes = LUATTN_PARAMS_THROUGH(splits);
  insert_entry(m, m->num_entries, "luattn_merge", LUATTN_ROLE_MERGE);
}

/* Keys that go through a mod as they are written to a cache. */
static void make_appends(image_manifest *m) {
  m->keys_modified = 1;
  m->append_mods[0] = (manifest_append_mods){.key_mod = 1};
  insert_entry(m, 0, "luattn_append", LUATTN_ROLE_APPEND)->tile_n = 4;
}

static luattn_image *make_image(int seed) {
  problem p;
  luattn_batch *batch = NULL;
  if (seed == IN_PAGES || seed == APPENDS)
    pages_open(&p, &batch);
  else
    problem_open(&p, (seed % 2 == 0 && seed < 6) || seed >= RANDOM ? LUATTN_FORWARD : LUATTN_BACKWARD);
  if (seed == 2 || seed == 3) make_sm90(&p.info);
  if (seed == 4) p.info.is_ptx = 1;
  if (seed == 5) {
    p.info.deterministic = 1;
    insert_entry(&p.info, p.info.num_entries, "luattn_round", LUATTN_ROLE_ROUND);
  }
  if (seed == 6) p.info.second_code = 256;
  static const image_plan plan = {"simt: 64 x 64\n", {64, 64, 128, 2, 0, 0}, true};
  if (seed == RANDOM) p.info.random = 1, p.info.params_bytes = LUATTN_PARAMS_THROUGH(random);
  if (seed == DECODE) make_decode(&p.info);
  if (seed == WEIGHTS)
    p.info.weights = 1, p.info.family = LUATTN_SIMT, p.info.params_bytes = LUATTN_PARAMS_THROUGH(weights);
  if (seed == APPENDS) make_appends(&p.info);
  if (seed % 3 == 0) p.plan = &plan;
  luattn_image *image = problem_image(&p);
  problem_close(&p);
  luattn_batch_close(batch);
  return image;
}

/* Loads and launches an image as fuzz_image does. */
static void launch(luattn_driver *driver, const luattn_image *image) {
  static const luattn_random random = {.struct_size = sizeof random, .seed = 1};
  problem p;
  luattn_kernel *kernel;
  luattn_batch *batch = NULL;
  luattn_append_args rows;
  if (image_get_manifest(image)->paged)
    pages_open(&p, &batch), pages_append(&p, image_get_manifest(image), &rows);
  else
    problem_open(&p, (luattn_pass)image_get_manifest(image)->pass);
  p.args.random = &random;
  check(luattn_kernel_load(driver, 0, image, &kernel, &err), "load");
  if (image_get_manifest(image)->weights) {
    tensor to;
    tensor_set(&p, &to, kDLFloat, 32, 4, BATCH, HEADS, Q_LEN, KV_LEN);
    check(luattn_launch_weights(kernel, &p.args, &to.t, NULL, &err), "launch of weights");
  } else {
    check(luattn_launch(kernel, &p.args, NULL, &err), "launch");
  }
  luattn_kernel_unload(kernel);
  problem_close(&p);
  luattn_batch_close(batch);
}

static void write_pack(const char *folder, const char *name, const luattn_pack_item *item, size_t count) {
  char path[1024];
  snprintf(path, sizeof path, "%s/pack/%s", folder, name);
  check(luattn_pack_write(path, "13.0", item, count, &err), "pack");
}

int main(int argc, char **argv) {
  static const char *const names[SEEDS] = {"forward", "backward", "sm90_forward", "sm90_backward",
                                           "ptx",     "ordered",  "two_codes",    "random",
                                           "decode",  "pages",    "weights",      "appends"};
  static const char text[] = "return attention { name = 'demo' }";
  luattn_pack_item item[SEEDS + 2];
  luattn_driver *driver;
  size_t size;
  if (argc != 2) return 2;
  check(luattn_driver_open(&driver, &err), "driver");
  for (int i = 0; i < SEEDS; ++i) {
    luattn_image *image = make_image(i);
    launch(driver, image);
    const void *bytes = luattn_image_bytes(image, &size);
    write_seed(argv[1], "image", names[i], bytes, size);
    item[i] = (luattn_pack_item){.kind = LUATTN_PACK_IMAGE, .image = image, .spec_hash = {7, 8}};
    if (i == 0) write_seed(argv[1], "pack", "image", bytes, size);
  }
  for (int i = PACKED_SEEDS; i < SEEDS; ++i) luattn_image_free((luattn_image *)(uintptr_t)item[i].image);
  item[PACKED_SEEDS] = (luattn_pack_item){
      .kind = LUATTN_PACK_SPEC, .spec_name = "demo", .spec_hash = {7, 8}, .text = text, .text_size = sizeof text - 1};
  item[PACKED_SEEDS + 1] =
      (luattn_pack_item){.kind = LUATTN_PACK_SOURCE, .image = item[0].image, .text = "// source", .text_size = 9};
  write_pack(argv[1], "empty", item, 0);
  write_pack(argv[1], "one", item, 1);
  write_pack(argv[1], "earlier", item, DECODE); /* version 1 of the format */
  write_pack(argv[1], "all", item, PACKED_SEEDS + 2);
  for (int i = 0; i < PACKED_SEEDS; ++i) luattn_image_free((luattn_image *)(uintptr_t)item[i].image);
  luattn_driver_close(driver);
  return 0;
}
