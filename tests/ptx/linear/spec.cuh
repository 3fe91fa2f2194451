// spec.cuh: for linear_test.c: a Spec of linear attention by hand. Inputs are float: 0 decays, of a head [hv], of a token
// [b, hv, t] or of a channel [b, hv, t, d]; 1 what a token writes [b, hv, t]; 2 factors of q, 3 of k [b, hv, t]; 4 what is skipped [hv].
#pragma once
#include "contract/linear.cuh"

LUATTN_FN float number(const LuattnInput &in, const LinearSite &s, int t, bool packed, int d = 0) {
  return __ldg(static_cast<const float *>(in.data) + (packed ? 0 : s.b) * in.stride[0] + s.hv * in.stride[1] +
               s.row(t) * in.stride[2] + d);
}

struct HeadDecay {
  static constexpr DecayOf decay_of = DECAY_HEAD;
  LUATTN_FN float decay(const LuattnLinearParams &p, const LinearSite &s, int) {
    return __ldg(static_cast<const float *>(p.inputs.input[0].data) + s.hv);
  }
};
struct TokenDecay {
  static constexpr DecayOf decay_of = DECAY_TOKEN;
  LUATTN_FN float decay(const LuattnLinearParams &p, const LinearSite &s, int t) {
    return number(p.inputs.input[0], s, t, PACKED);
  }
};
struct ChannelDecay {
  static constexpr DecayOf decay_of = DECAY_CHANNEL;
  LUATTN_FN float decay(const LuattnLinearParams &p, const LinearSite &s, int t, int d) {
    return number(p.inputs.input[0], s, t, PACKED, d);
  }
};
struct Writes {
  static constexpr bool has_write = true, erases = false;
  LUATTN_FN float write(const LuattnLinearParams &p, const LinearSite &s, int t) {
    return number(p.inputs.input[1], s, t, PACKED);
  }
};
struct DeltaRule {
  static constexpr bool has_write = true, erases = true;
  LUATTN_FN float write(const LuattnLinearParams &p, const LinearSite &s, int t) {
    return number(p.inputs.input[1], s, t, PACKED);
  }
  LUATTN_FN float read(const LuattnLinearParams &p, const LinearSite &s, int t) { return write(p, s, t); }
};
struct RowFactors {
  static constexpr bool has_query_factor = true, has_key_factor = true, has_value_mod = false;
  LUATTN_FN float query_factor(const LuattnLinearParams &p, const LinearSite &s, int t) {
    return number(p.inputs.input[2], s, t, PACKED);
  }
  LUATTN_FN float key_factor(const LuattnLinearParams &p, const LinearSite &s, int t) {
    return number(p.inputs.input[3], s, t, PACKED);
  }
};
struct Factors : RowFactors {
  static constexpr bool has_value_mod = true;
  LUATTN_FN float value_mod(const LuattnLinearParams &, const LinearSite &, float x, int t, int d) {
    return x + 0.125f * float((t + d) % 3);
  }
};
struct Skips {
  static constexpr bool has_skip = true;
  LUATTN_FN float skip(const LuattnLinearParams &p, const LinearSite &s, float x, int, int) {
    return x * __ldg(static_cast<const float *>(p.inputs.input[4].data) + s.hv);
  }
};

struct Spec : DECAY, UPDATE, MODS, SKIP {};
