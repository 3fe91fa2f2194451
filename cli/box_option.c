/* box_option.c: reads extents of boxes from command lines. */
#include "cli/cli.h"

static luattn_status read_box(const char *option, const char *text, uint64_t *out, luattn_error *err) {
  int extent[LUATTN_MAX_AXES];
  if (text == NULL) return LUATTN_OK;
  const int count = parse_sizes(text, LUATTN_MAX_AXES, extent);
  bool possible = count >= 1;
  *out = 0;
  for (int a = 0; a < count && possible; a++) {
    possible = extent[a] >= 1 && extent[a] <= 256;
    *out = *out << 16 | (uint64_t)extent[a];
  }
  if (possible) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "%s: '%s' has no extents of a box; give one for each axis of the grid, 1 to 256, as 16,8", option,
                     text);
}

luattn_status box_options(const cli_options *o, uint64_t *query_tile_size, uint64_t *key_tile_size, luattn_error *err) {
  TRY(read_box("--query-tile-size", o->query_tile_size, query_tile_size, err));
  return read_box("--key-tile-size", o->key_tile_size, key_tile_size, err);
}
