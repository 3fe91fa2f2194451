// ops/offsets.cuh: the offsets of a call whose tensors are a part of a whole (abi/params.h, LuattnOffsets).
// For generated code of images that are compiled with offsets. Kernels, tiles and inputs use the tensors' own
// positions and heads, from 0 on; a spec's expressions use those of the whole. Generated code adds an offset
// where it reads a position, a head or a length, and subtracts it where it returns kept positions of the
// tensors, or indexes an input.
#pragma once
#include "ops/hook_types.cuh"

struct Offsets {
  int q, kv, h, hkv;  // added to the tensors' positions and heads
  int q_len, kv_len, heads, heads_kv;
};

// Values from the device are clamped, so that no position of the whole leaves the range for which the spec's
// arithmetic is exact.
LUATTN_FN int offset_of(const int *of_batch, int number, int b, int most, int length) {
  return of_batch == nullptr ? number : max(min(__ldg(of_batch + b), most - length), 0);
}

LUATTN_FN Offsets offsets_of(const LuattnParams &p, const Site &s) {
  const LuattnOffsets &given = static_cast<const LuattnOffsetParams &>(p).offsets;
  Offsets made;
  made.q = offset_of(given.q_offsets, given.q_offset, s.b, given.most_q, s.q_len);
  made.kv = offset_of(given.kv_offsets, given.kv_offset, s.b, given.most_kv, s.kv_len);
  made.h = given.head_offset;
  made.hkv = given.kv_head_offset;
  made.q_len = given.q_len != 0 ? given.q_len : made.q + s.q_len;
  made.kv_len = given.kv_len != 0 ? given.kv_len : made.kv + s.kv_len;
  made.heads = given.heads;
  made.heads_kv = given.heads_kv;
  return made;
}

// Converts an index of the whole to the tensors', which may lie outside of the axis.
LUATTN_FN int own_index(int index, int offset) { return max(index, -2147483647 + offset) - offset; }

// Converts positions [lo, hi) of the whole to the tensors', clipped to their `len`.
LUATTN_FN Range own_range(int lo, int hi, int offset, int len) {
  const int first = max(min(lo, offset + len), offset);
  return {first - offset, max(min(hi, offset + len), first) - offset};
}
