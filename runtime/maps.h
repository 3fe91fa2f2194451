/* maps.h: tensor maps, by which the copy engine of sm_90 finds q, k and v. */
#ifndef LUATTN_RUNTIME_MAPS_H
#define LUATTN_RUNTIME_MAPS_H

#include "runtime/args.h"
#include "runtime/driver.h"
#include "templates/params.h"

/* Maps of the q, k and v that *p names, in boxes as params.h says. No device is asked, but libcuda wants
 * a current context. Errors: LUATTN_UNSUPPORTED (libcuda older than CUDA 12), LUATTN_INVALID (a stride that
 * no map can hold). */
luattn_status maps_fill(const luattn_driver *d, const args_call *c, const LuattnParams *p,
                        LuattnTensorMaps *out);

#endif
