/* packs.h: makes a pack for a test, in a separate folder. */
#ifndef LUATTN_TESTS_PACKS_H
#define LUATTN_TESTS_PACKS_H

#include "luattn/pack.h"
#include "tests/support/problem.h"

extern char dir[24], path[40]; /* paths of the folder, and of the pack in it */
int make_dir(void **state);
int remove_dir(void **state);

/* Creates an image of the sample problem for an architecture: PTX if `ptx` is set and there is no suffix. */
luattn_image *make_image(luattn_pass pass, unsigned arch, const char *suffix, int ptx, unsigned wants);

#define SPEC_TEXT "return attention { name = 'demo' } -- return attention { name = 'demo' }"

/* Creates the same of forward, for packed sequences, pages and few queries as the members of luattn_pack_query say. */
luattn_image *make_variant(unsigned arch, const char *suffix, int packed, int pages, int decode);
/* The same with an o, or of backward with gradients, in float32. */
luattn_image *make_out_f32(unsigned arch, const char *suffix, int out_f32);
luattn_image *make_grad_f32(unsigned arch, const char *suffix);

typedef struct sample {
  luattn_pack_item item[8];
  size_t count;
} sample;

void add_image(sample *s, luattn_image *image);
extern int sample_version; /* of the pack's format. 1: as below; 2: the image for 8.0 is for few queries; 3: its o is
                              * float32 */
/* A spec, and images for 8.0, 8.6 as PTX, 9.0a forward and 9.0a backward. */
void sample_open(sample *s);
void sample_close(sample *s);

void write_sample(void);
luattn_pack *open_sample(void);
unsigned char *read_file(size_t *size); /* caller frees */
void write_file(const void *bytes, size_t size, const char *mode);

#endif
