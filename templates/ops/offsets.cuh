// ops/offsets.cuh: offsets of a call whose tensors are a part of larger tensors (abi/params.h,
// LuattnOffsets). Only images compiled with offsets use them. Kernels, tiles and inputs count positions and
// heads from the start of the call's tensors ("local"); a spec's expressions count from the start of the
// larger tensors ("global"). Generated code adds an offset where it reads a position, a head or a length, and
// subtracts it where it returns the range of kept positions or indexes an input.
#pragma once
#include "ops/hook_types.cuh"

struct Offsets {
  int q, kv, h, hkv;  // added to local positions and heads
  int q_len, kv_len, heads, heads_kv;
};

// Config::offsets, as luattn_offsets. Numbers are operands in the constant bank, and cost nothing; what arrays hold a
// Site has loaded (Site::load_offsets), and costs registers.
enum { OFFSET_NUMBERS = 1, OFFSET_ARRAYS = 2, OFFSET_CHUNKS = 3 };

// The runtime fills in `given` where the host knows offset and length.
LUATTN_FN int whole_length(int given, int offset, int length) {
  if constexpr (Config::offsets == OFFSET_NUMBERS && !Config::packed && !Config::paged) return given;
  return given != 0 ? given : offset + length;
}

LUATTN_FN Offsets offsets_of(const LuattnParams &p, const Site &s) {
  const LuattnOffsets &given = static_cast<const LuattnOffsetParams &>(p).offsets;
  Offsets made;
#if defined(LUATTN_OFFSET_ARRAYS) || defined(LUATTN_CHUNKS)
  made.q = s.q_offset;
  made.kv = s.kv_offset;
#else
  made.q = given.q_offset;
  made.kv = given.kv_offset;
#endif
  made.h = given.head_offset;
  made.hkv = given.kv_head_offset;
#ifdef LUATTN_PACKED_CHUNKS
  made.q_len = s.whole_q;
  made.kv_len = s.whole_kv;
#else
  made.q_len = whole_length(given.q_len, made.q, s.q_len);
  made.kv_len = whole_length(given.kv_len, made.kv, s.kv_len);
#endif
  made.heads = given.heads;
  made.heads_kv = given.heads_kv;
  return made;
}

// Converts a global index to a local index, which may lie outside of the axis. The offset of a chunk may be below 0.
LUATTN_FN int own_index(int index, int offset) {
  if constexpr (Config::offsets == OFFSET_CHUNKS) return index - offset;  // of the own row, or a hook without a tile
  return max_of(index, -2147483647 + offset) - offset;
}

// Converts global positions [lo, hi) to rows of a chunk.
LUATTN_FN Range chunk_range(int lo, int hi, int offset, Range chunk) {
  const int first = max_of(min_of(lo, chunk.hi + offset), chunk.lo + offset);
  return {first - offset, max_of(min_of(hi, chunk.hi + offset), first) - offset};
}

// Converts global positions [lo, hi) to local ones, clipped to [0, len).
LUATTN_FN Range own_range(int lo, int hi, int offset, int len) {
  const int first = max_of(min_of(lo, offset + len), offset);
  return {first - offset, max_of(min_of(hi, offset + len), first) - offset};
}
