#include "gen/lua/hook_rows.h"

#include <string.h>

#define SITE VAR_B, VAR_H, VAR_Q
#define TOKEN VAR_B, VAR_H, VAR_POS, VAR_D

static const hook_row rows[HOOK_COUNT] = {
    [HOOK_SCORE_MOD] = {"score_mod", "score, b, h, q_idx, kv_idx", 5, {VAR_SCORE, SITE, VAR_KV}},
    [HOOK_BLOCK_MASK] = {"block_mask", "b, h, q_idx, kv_idx", 4, {SITE, VAR_KV}},
    [HOOK_QUERY_MOD] = {"query_mod", "x, b, h, pos, d", 5, {VAR_X, VAR_B, VAR_H, VAR_POS, VAR_D}},
    [HOOK_KEY_MOD] = {"key_mod", "x, b, h, pos, d", 5, {VAR_X, VAR_B, VAR_H, VAR_POS, VAR_D}, HOOK_HEADS_KV},
    [HOOK_VALUE_MOD] = {"value_mod", "x, b, h, pos, d", 5, {VAR_X, VAR_B, VAR_H, VAR_POS, VAR_D}, HOOK_HEADS_KV},
    [HOOK_INIT] = {"online_rowscales", "b, h", 2, {VAR_B, VAR_H}},
    [HOOK_ONLINE_FWD] = {"online_fwd", "scores, rowscales, b, h, q_idx", 5, {VAR_SCORE, VAR_STATE, SITE}},
    [HOOK_EPILOGUE] = {"online_fwd_epilogue", "o, rowscales, b, h, q_idx", 5, {VAR_OUT, VAR_STATE, SITE}},
    [HOOK_FORWARD] = {"forward",
                      "scores, final_rowscales, b, h, q_idx, kv_idx",
                      6,
                      {VAR_SCORE, VAR_FINAL, SITE, VAR_KV}},
    [HOOK_BACKWARD] = {"backward",
                       "dp, p, final_rowscales, doosum, b, h, q_idx, kv_idx, scores",
                       9,
                       {VAR_DP, VAR_P, VAR_FINAL, VAR_DELTA, SITE, VAR_KV, VAR_SCORE}},
    [HOOK_LINEAR_QUERY] = {"query_mod", "x, b, h, t, d", 5, {VAR_X, TOKEN}, HOOK_CHANNELS_K},
    [HOOK_LINEAR_KEY] = {"key_mod", "x, b, h, t, d", 5, {VAR_X, TOKEN}, HOOK_CHANNELS_K},
    [HOOK_LINEAR_VALUE] = {"value_mod", "x, b, h, t, d", 5, {VAR_X, TOKEN}, HOOK_HEADS_KV | HOOK_CHANNELS_V},
    [HOOK_LINEAR_DECAY] = {"decay", "b, h, t, d", 4, {TOKEN}, HOOK_HEADS_KV | HOOK_CHANNELS_K},
    [HOOK_LINEAR_WRITE] = {"update.write", "b, h, t, d", 4, {TOKEN}, HOOK_HEADS_KV | HOOK_CHANNELS_V},
    [HOOK_LINEAR_READ] = {"update.read", "k, b, h, t, d", 5, {VAR_X, TOKEN}, HOOK_HEADS_KV | HOOK_CHANNELS_K},
    [HOOK_LINEAR_ERASE] = {"update.erase", "k, b, h, t, d", 5, {VAR_X, TOKEN}, HOOK_HEADS_KV | HOOK_CHANNELS_K},
    [HOOK_LINEAR_SKIP] = {"skip", "x, b, h, t, d", 5, {VAR_X, TOKEN}, HOOK_HEADS_KV | HOOK_CHANNELS_V},
};

const hook_row *hook_get(hook_id id) { return &rows[id]; }

bool hook_is_of_form(lua_State *L, hook_id id) {
  const front_state *s = front_of(L);
  const bool of_linear = id >= HOOK_LINEAR_QUERY;
  return s->mode == FRONT_LOADING || of_linear == (s->spec->form == LUATTN_FORM_LINEAR);
}

const hook_row *hook_running(lua_State *L) {
  const char *name = front_of(L)->hook;
  if (name != NULL && strcmp(name, "mask_mod") == 0) return &rows[HOOK_BLOCK_MASK];
  for (int id = 0; name != NULL && id < HOOK_COUNT; id++) {
    if (hook_is_of_form(L, id) && strcmp(rows[id].name, name) == 0) return &rows[id];
  }
  return NULL;
}
