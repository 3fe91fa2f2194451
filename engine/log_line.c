#include "engine/log_line.h"

#include <string.h>

#include "common/host.h"

static const char *origin(const luattn_compile_report *report) {
  if (report->cache_hit) return "from the cache";
  return strncmp(report->plan, "from pack", strlen("from pack")) == 0 ? "from a pack" : "compiled";
}

static void add_text(char *out, size_t size, const char *text) {
  const size_t used = strlen(out);
  host_format(out + used, size - used, ", %s", text);
}

void log_line(const kernel_key *key, const luattn_compile_report *report, double ms, char *out, size_t size) {
  luattn_spec_info info;
  char dims[32], variants[128] = "";
  luattn_spec_get_info(key->spec, &info);
  host_format(dims, sizeof dims, key->head_dim == key->head_dim_v ? "%d" : "%d and %d", key->head_dim, key->head_dim_v);
#define KERNEL_VARIANT(name, value, says)                  \
  do {                                                     \
    const int64_t x = (int64_t)key->name;                  \
    if (x != 0) add_text(variants, sizeof variants, says); \
  } while (0);
#include "abi/kernel_facts.def"
  host_format(out, size, "%s: %s, %s, head dim %s, %s%s%s: %s in %.0f ms", info.name, kernel_pass_name(key->pass),
              kernel_dtype_name(key->dtype), dims,
              report->every_length           ? "every length"
              : key->lengths == LUATTN_SHORT ? "short lengths"
                                             : "long lengths",
              key->many_rows ? ", many rows" : "", variants, origin(report), ms);
}
