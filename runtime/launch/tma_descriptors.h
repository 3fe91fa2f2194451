/* tma_descriptors.h: TMA descriptors of q, k, v and o (backward: dout). */
#ifndef LUATTN_RUNTIME_TMA_DESCRIPTORS_H
#define LUATTN_RUNTIME_TMA_DESCRIPTORS_H

#include "abi/params.h"
#include "runtime/call/args_call.h"
#include "runtime/device/descriptor_cache.h"
#include "runtime/device/driver.h"

/* Encodes or recalls descriptors of the q, k, v and o (or dout) that *p names, with the boxes of params.h.
 * Over a grid fills the units of all->grid, too. Uses no device, but libcuda needs a current context. Any number of
 * threads may share `cache`. Errors: LUATTN_UNSUPPORTED (libcuda older than CUDA 12), LUATTN_INVALID (a stride that no
 * descriptor can hold). */
luattn_status descriptors_fill(const luattn_driver *d, descriptor_cache *cache, const args_call *c,
                               LuattnCallParams *all, const LuattnPaging *paging, LuattnTensorMaps *out);

/* Adds those of whole pages, after descriptors_fill; zeros where `paging` has no steps. */
luattn_status descriptors_fill_pages(const luattn_driver *d, descriptor_cache *cache, const args_call *c,
                                     const LuattnParams *p, const LuattnPaging *paging, LuattnPagedMaps *out);

/* Those of a forward kernel with tangents, whose tensors all->tangents has. */
luattn_status descriptors_fill_tangents(const luattn_driver *d, descriptor_cache *cache, const args_call *c,
                                        LuattnCallParams *all, LuattnTangentMaps *out);

struct linear_call;
struct LuattnLinearRowMaps;
/* Those of a pass of linear attention, with boxes of 64 tokens by 64 channels. */
luattn_status descriptors_fill_linear(const luattn_driver *d, descriptor_cache *cache, const struct linear_call *l,
                                      int pass, LuattnTensorMaps *out);
/* Those of luattn_linear_rows. */
luattn_status descriptors_fill_linear_rows(const luattn_driver *d, descriptor_cache *cache, const struct linear_call *l,
                                           struct LuattnLinearRowMaps *out);

#endif
