#include "tests/runtime/packs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

char dir[24] = "/tmp/luattn-pack-XXXXXX";
char path[40];

int make_dir(void **state) {
  (void)state;
  if (mkdtemp(dir) == NULL) return 1;
  snprintf(path, sizeof path, "%s/pack", dir);
  return 0;
}

int remove_dir(void **state) {
  (void)state;
  (void)unlink(path);
  return rmdir(dir);
}

luattn_image *make_image(luattn_pass pass, unsigned arch, const char *suffix, int ptx, unsigned wants) {
  problem p;
  problem_open(&p, pass);
  p.info.arch = arch;
  snprintf(p.info.arch_suffix, sizeof p.info.arch_suffix, "%s", suffix);
  p.info.is_ptx = (uint32_t)ptx;
  if (pass == LUATTN_BACKWARD) p.info.wants = wants;
  luattn_image *image = problem_image(&p);
  problem_close(&p);
  return image;
}

luattn_image *make_variant(unsigned arch, const char *suffix, int packed, int pages, int decode) {
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  p.info.arch = arch;
  snprintf(p.info.arch_suffix, sizeof p.info.arch_suffix, "%s", suffix);
  p.info.packed = (uint32_t)packed;
  p.info.paged = pages != 0, p.info.paged_layout[0] = (uint32_t)pages;
  p.info.decode = (uint32_t)decode, p.info.num_state[0] = 2;
  luattn_image *image = problem_image(&p);
  problem_close(&p);
  return image;
}

static luattn_image *make_f32(luattn_pass pass, unsigned arch, const char *suffix, int out_f32, int grad_f32) {
  problem p;
  problem_open(&p, pass);
  p.info.arch = arch;
  snprintf(p.info.arch_suffix, sizeof p.info.arch_suffix, "%s", suffix);
  p.info.out_f32 = (uint32_t)out_f32, p.info.grad_f32 = (uint32_t)grad_f32;
  luattn_image *image = problem_image(&p);
  problem_close(&p);
  return image;
}

luattn_image *make_out_f32(unsigned arch, const char *suffix, int out_f32) {
  return make_f32(LUATTN_FORWARD, arch, suffix, out_f32, 0);
}

luattn_image *make_grad_f32(unsigned arch, const char *suffix) { return make_f32(LUATTN_BACKWARD, arch, suffix, 0, 1); }

int sample_version = 1;

void add_image(sample *s, luattn_image *image) {
  s->item[s->count++] = (luattn_pack_item){.kind = LUATTN_PACK_IMAGE, .image = image, .spec_hash = {7, 8}};
}

void sample_open(sample *s) {
  *s = (sample){.count = 0};
  s->item[s->count++] = (luattn_pack_item){.kind = LUATTN_PACK_SPEC,
                                           .spec_name = "demo",
                                           .spec_hash = {7, 8},
                                           .text = SPEC_TEXT,
                                           .text_size = sizeof SPEC_TEXT - 1};
  add_image(s, sample_version == 3 ? make_out_f32(80, "", 1) : make_variant(80, "", 0, 0, sample_version == 2));
  add_image(s, make_image(LUATTN_FORWARD, 86, "", 1, 0));
  add_image(s, make_image(LUATTN_FORWARD, 90, "a", 0, 0));
  add_image(s, make_image(LUATTN_BACKWARD, 90, "a", 0, LUATTN_WANT_ALL));
}

void sample_close(sample *s) {
  for (size_t i = 0; i < s->count; ++i) luattn_image_free((luattn_image *)(uintptr_t)s->item[i].image);
}

void write_sample(void) {
  sample s;
  luattn_error err;
  sample_open(&s);
  if (luattn_pack_write(path, "13.0", s.item, s.count, &err) != LUATTN_OK) fail_msg("%s", err.message);
  sample_close(&s);
}

unsigned char *read_file(size_t *size) {
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  unsigned char *bytes = malloc(1 << 20);
  *size = fread(bytes, 1, 1 << 20, f);
  fclose(f);
  return bytes;
}

void write_file(const void *bytes, size_t size, const char *mode) {
  FILE *f = fopen(path, mode);
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, size, f), size);
  assert_int_equal(fclose(f), 0);
}

luattn_pack *open_sample(void) {
  luattn_pack *pack = NULL;
  luattn_error err;
  if (luattn_pack_open(path, &pack, &err) != LUATTN_OK) fail_msg("%s", err.message);
  return pack;
}
