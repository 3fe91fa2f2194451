/* sizes.h: sizes of a call from which both its workspace and its grids follow. */
#ifndef LUATTN_RUNTIME_SIZES_H
#define LUATTN_RUNTIME_SIZES_H

#include "common/call/pairs.h"
#include "runtime/call/args_call.h"

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* The entry of a role; NULL: the image has none. */
const manifest_entry *sizes_entry(const image_manifest *m, luattn_role role);

/* FORWARD or DKDV; NULL: the image has neither. */
const manifest_entry *sizes_main(const image_manifest *m);

/* Checks that a launch can have `batch` batch entries; `name` is the tensor with this size. */
luattn_status sizes_batch(const args_call *c, const char *name, int64_t batch);

/* Errors: LUATTN_INVALID (more blocks along an axis than CUDA allows, on every architecture so far). */
luattn_status sizes_grid(const args_call *c, const manifest_entry *entry, const int64_t size[3]);

/* Rows of packed outputs that no sequence has are written where kernels have nothing else to do, too: then by one
 * block. */
void sizes_add_padding(const args_call *c, const LuattnCallParams *all, int64_t size[3]);

/* Bytes of an element of q. */
size_t sizes_elem(const image_manifest *m);

/* The shape of one stat: the axes before the input's last, flattened to rows, and the blocks of the last. */
void sizes_of_stat(const image_manifest *m, const LuattnParams *p, uint32_t stat, int64_t *num_rows, int64_t *blocks);

/* Whether kv tiles are taken from a work counter, as the sm90 backward does. */
bool sizes_draws_kv(const image_manifest *m);

/* Blocks of a cluster, and those for all kv tiles of a head. */
int64_t sizes_blocks_together(const image_manifest *m, const manifest_entry *dkdv);
int64_t sizes_kv_blocks(const image_manifest *m, const manifest_entry *dkdv, const LuattnParams *p);

/* The tile bitmap's size: rows of tiles of a head, and 32-bit words of each (work/tile_walk.cuh, Visits). */
void sizes_of_tile_bitmap(const image_manifest *m, const LuattnParams *p, int64_t *rows, int64_t *words);

/* What common/call/pairs.h asks of an input. */
pairs_sizes sizes_of_pairs(const image_manifest *m, uint32_t input, const LuattnParams *p);

#endif
