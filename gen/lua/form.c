#include "gen/lua/form.h"

static const form_axis of_attention[] = {
    {"b", LUATTN_AXIS_B, COUNTS_BATCH, "b", "b"},
    {"h", LUATTN_AXIS_H, COUNTS_HEADS, "h", "h * (heads // heads_kv)"},
    {"hkv", LUATTN_AXIS_HKV, COUNTS_HEADS_KV, "h // (heads // heads_kv)", "h"},
    {"q", LUATTN_AXIS_Q, COUNTS_POSITIONS, "q_idx", "pos"},
    {"kv", LUATTN_AXIS_KV, COUNTS_POSITIONS, "kv_idx", "pos"},
    {NULL, 0, COUNTS_OTHER, NULL, NULL},
};

static const axis_synonym synonyms_of_attention[] = {
    {"batch", "b"},      {"B", "b"},          {"head", "h"},   {"heads", "h"},   {"H", "h"},
    {"heads_kv", "hkv"}, {"kv_heads", "hkv"}, {"h_kv", "hkv"}, {"Hkv", "hkv"},   {"q_idx", "q"},
    {"q_len", "q"},      {"Q", "q"},          {"Sq", "q"},     {"kv_idx", "kv"}, {"kv_len", "kv"},
    {"KV", "kv"},        {"Skv", "kv"},       {"k", "kv"},     {NULL, NULL},
};

static const form_axis of_linear[] = {
    {"b", LUATTN_AXIS_B, COUNTS_BATCH, "b", "b"},
    {"t", LUATTN_AXIS_T, COUNTS_TOKENS, "t", "t"},
    {"h", LUATTN_AXIS_H, COUNTS_HEADS, "h", "h // (heads_v // heads)"},
    {"hv", LUATTN_AXIS_HV, COUNTS_HEADS_KV, "h * (heads_v // heads)", "h"},
    {"d", LUATTN_AXIS_D, COUNTS_CHANNELS, "d", "d"},
    {"dv", LUATTN_AXIS_DV, COUNTS_CHANNELS_V, "d", "d"},
    {NULL, 0, COUNTS_OTHER, NULL, NULL},
};

static const axis_synonym synonyms_of_linear[] = {
    {"batch", "b"},    {"B", "b"},        {"head", "h"},    {"heads", "h"},       {"H", "h"},        {"hkv", "hv"},
    {"heads_v", "hv"}, {"v_heads", "hv"}, {"h_v", "hv"},    {"HV", "hv"},         {"Hv", "hv"},      {"q", "t"},
    {"kv", "t"},       {"T", "t"},        {"seq_len", "t"}, {"q_idx", "t"},       {"kv_idx", "t"},   {"q_len", "t"},
    {"kv_len", "t"},   {"k", "d"},        {"K", "d"},       {"D", "d"},           {"head_dim", "d"}, {"v", "dv"},
    {"V", "dv"},       {"Dv", "dv"},      {"DV", "dv"},     {"head_dim_v", "dv"}, {NULL, NULL},
};

static const form_row forms[] = {
    [LUATTN_FORM_ATTENTION] = {"attention",
                               HOOK_SCORE_MOD,
                               HOOK_VALUE_MOD,
                               of_attention,
                               "\"b\", \"h\", \"hkv\", \"q\", \"kv\"",
                               synonyms_of_attention,
                               {[COUNTS_BATCH] = "the batch",
                                [COUNTS_HEADS] = "the query head",
                                [COUNTS_HEADS_KV] = "the kv head",
                                [COUNTS_POSITIONS] = "a position"}},
    [LUATTN_FORM_LINEAR] = {"linear_attention",
                            HOOK_LINEAR_QUERY,
                            HOOK_LINEAR_SKIP,
                            of_linear,
                            "\"b\", \"t\", \"h\", \"hv\", \"d\", \"dv\"",
                            synonyms_of_linear,
                            {[COUNTS_BATCH] = "the batch",
                             [COUNTS_HEADS] = "the head of q",
                             [COUNTS_HEADS_KV] = "the value head",
                             [COUNTS_TOKENS] = "the token",
                             [COUNTS_CHANNELS] = "a channel of q and k",
                             [COUNTS_CHANNELS_V] = "a channel of v"}},
};

const form_row *form_of(lua_State *L) { return &forms[front_of(L)->spec->form]; }

const form_axis *form_axis_of(lua_State *L, int32_t axis) {
  const form_axis *row = form_of(L)->axis;
  while (row->axis != axis) row++;
  return row;
}
