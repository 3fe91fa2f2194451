/* part_rule.h: luattn_spec_parts: has forward save what a merge of finished parts needs, and derives that merge.
 *
 * merge.h merges unscaled sums of prob * v. A finished part has O = scale(state) * sum, so its share of the whole O is
 *
 *     w = factor of its sum * scale(state of all parts) / scale(state of the part)
 *
 * and forward stays as it is, but for what it saves: the state, and every other number of the row that these
 * expressions read. A merge then reads no input, scalar or position.
 */
#ifndef LUATTN_GEN_PART_RULE_H
#define LUATTN_GEN_PART_RULE_H

#include "gen/spec.h"

/* Makes `spec` the spec of its parts, and sets spec->parts; both live in spec->a, and nodes are added to its graph. A
 * part has an lse: 0 if the online function has none, and so -inf where a row keeps nothing. It has no backward.
 * `scratch` stays valid until the call returns. Errors: LUATTN_UNSUPPORTED (no merge was found; a part whose O lost its
 * sum; more numbers than forward saves), LUATTN_NO_MEMORY. */
luattn_status part_rule_take(arena *scratch, struct luattn_spec *spec, luattn_error *err);

#endif
