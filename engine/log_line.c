#include "engine/log_line.h"

#include <string.h>

#include "common/host.h"

static const char *origin(const luattn_compile_report *report) {
  if (report->cache_hit) return "from the cache";
  return strncmp(report->plan, "from pack", strlen("from pack")) == 0 ? "from a pack" : "compiled";
}

void log_line(const kernel_key *key, const luattn_compile_report *report, double ms, char *out, size_t size) {
  static const char *const dtype[] = {"f64", "f32", "bf16", "f16"};
  luattn_spec_info info;
  char dims[32];
  luattn_spec_get_info(key->spec, &info);
  host_format(dims, sizeof dims, key->head_dim == key->head_dim_v ? "%d" : "%d and %d", key->head_dim, key->head_dim_v);
  host_format(out, size, "%s: %s, %s, head dim %s, %s%s%s%s%s%s%s: %s in %.0f ms", info.name,
              key->pass == LUATTN_FORWARD ? "forward" : "backward", dtype[key->dtype], dims,
              report->every_length             ? "every length"
              : key->lengths == LUATTN_SHORT ? "short lengths"
                                               : "long lengths",
              key->many_rows ? ", few queries of many rows" : key->decode ? ", few queries" : "", key->weights ? ", weights" : "", key->packed ? ", packed" : "", key->pages ? ", pages" : "", key->offsets != LUATTN_OFFSET_NONE ? ", part of a whole" : "", key->keys_modified ? ", keys modified" : "",
              origin(report), ms);
}
