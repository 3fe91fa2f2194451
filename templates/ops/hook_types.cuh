// ops/hook_types.cuh: the types of hooks' parameters and results, other than numbers.
#pragma once
#include "arch/types.cuh"
#include "abi/params.h"

enum TileClass { TILE_EMPTY = 0, TILE_PARTIAL = 1, TILE_FULL = 2 };

// Half-open range of positions along one sequence axis.
struct Range {
  int lo, hi;
};

// A position on a sequence axis, base + offset. base is one value for all elements of a thread in a tile.
// offset is a constant once the kernel's loops are unrolled. Generated code converts linear functions of
// positions as Real(part of the bases) + Real(part of the offsets). The first part is one conversion per
// tile, the second a constant, so an element costs an addition, no conversion, and no register per column. A
// function of the distance is computed once for all elements at that distance, because the compiler sees that
// they are equal. Any other split is correct as well, but slower.
struct Position {
  int base, offset;
  __device__ __forceinline__ operator int() const { return base + offset; }
};

// A gradient row: the gradients of an input along its last axis. The caller's position (q, kv) adds its sum
// times `factor` at `index`, which may lie outside the axis. The whole gradient has `before` elements before
// `row`, the first element of the axis, and `after` from there on. The row of q + 1 begins `pitch` elements
// further on, if all rows do.
template <class Real>
struct GradRow {
  Real *row;  // nullptr: the gradient is not wanted
  int index, size;
  i64 before, after;
  Real factor;
  i64 pitch;
};

// An input row: the elements of an input along its last axis, `stride` elements apart. The caller's position
// (q, kv) reads at `index`, which is clamped if it lies outside the axis. The row of q + 1 begins `pitch`
// elements further on, if all rows do.
template <class Stored>
struct InputRow {
  const Stored *row;  // first element of the axis
  int index, size;
  i64 stride, pitch;
};

// What an input mod reads of its row besides its own element: for each table of its QueryRow, KeyRow or
// ValueRow, the element, in backward the gradient that the table gives, and the channel.
template <class Real, int Count>
struct RowValues {
  Real x[Count], g[Count];
  int d[Count];
};

// The batch entry and head of a block. `h` is the query head, or the kv head in key_mod and value_mod.
struct Site {
  int b, h, q_len, kv_len;
#ifdef LUATTN_OFFSET_ARRAYS
  int q_offset, kv_offset;  // of load_offsets
#endif
#ifdef LUATTN_CHUNKS
  int q_offset, kv_offset;  // of the chunks that the kernel is in (enter_queries, enter_keys)
  Range q_chunk, kv_chunk;  // their rows
#endif
#ifdef LUATTN_PACKED_INPUTS
  int first_q, first_kv;  // of a PackedSequence: for ops/packed_inputs.cuh and chunks alone
#endif
#ifdef LUATTN_PACKED_CHUNKS
  int whole_q, whole_kv;  // lengths of the entry in the whole
#endif

  Site() = default;
  __device__ __forceinline__ Site(int b, int h, int q_len, int kv_len) : b(b), h(h), q_len(q_len), kv_len(kv_len) {}

  // Loads the entry's offsets from arrays on the device: once for a Site, and not where a hook reads them. A load under
  // a condition is not shared between calls, and a hook that is called for each element would load for each.
  __device__ __forceinline__ void load_offsets(const LuattnParams &p) {
#ifdef LUATTN_OFFSET_ARRAYS
    const LuattnOffsets &given = static_cast<const LuattnOffsetParams &>(p).offsets;
    q_offset = offset_of(given.q_offsets, given.q_offset, given.most_q - q_len);
    kv_offset = offset_of(given.kv_offsets, given.kv_offset, given.most_kv - kv_len);
#endif
#ifdef LUATTN_CHUNKS
    // Positions far from all, so that a kernel that enters no chunk is seen to be wrong.
    q_offset = kv_offset = -(1 << 29);
    q_chunk = kv_chunk = {0, 0};
#endif
#ifdef LUATTN_PACKED_CHUNKS
    const LuattnOffsets &given = static_cast<const LuattnOffsetParams &>(p).offsets;
    whole_q = whole_of(given.q_offsets, given.q_offset, given.most_q, q_len);
    whole_kv = whole_of(given.kv_offsets, given.kv_offset, given.most_kv, kv_len);
#endif
  }
  // Goes on to the chunk that has these rows, of a tile: tensors are chunks of the whole (LuattnOffsets), and hooks see
  // the positions of one chunk of queries and one of keys. Nothing of images without chunks.
  __device__ __forceinline__ void enter_queries(const LuattnParams &p, int row) {
#ifdef LUATTN_CHUNKS
    const LuattnOffsets &given = static_cast<const LuattnOffsetParams &>(p).offsets;
#ifdef LUATTN_PACKED_CHUNKS
    q_offset = enter(given.q_offsets, given.q_offset, given.most_q, q_len, row, q_chunk, first_q, p.shape.batch);
#else
    q_offset = enter(given.q_offsets, given.q_offset, given.most_q, q_len, row, q_chunk);
#endif
#endif
  }
  __device__ __forceinline__ void enter_keys(const LuattnParams &p, int row) {
#ifdef LUATTN_CHUNKS
    const LuattnOffsets &given = static_cast<const LuattnOffsetParams &>(p).offsets;
#ifdef LUATTN_PACKED_CHUNKS
    kv_offset = enter(given.kv_offsets, given.kv_offset, given.most_kv, kv_len, row, kv_chunk, first_kv, p.shape.batch);
#else
    kv_offset = enter(given.kv_offsets, given.kv_offset, given.most_kv, kv_len, row, kv_chunk);
#endif
#endif
  }
  __device__ __forceinline__ void enter(const LuattnParams &p, int q_row, int kv_row) {
    enter_queries(p, q_row);
    enter_keys(p, kv_row);
  }
#ifdef LUATTN_CHUNKS
  // What is added to rows of the chunk for its positions. Clamped as offset_of. before: the rows of the tensor before the
  // entry's, whole chunks of packed sequences, of which each has rows of one entry; skipped: the numbers of `first` before those of
  // chunks (common/call/packed_chunks.h).
  __device__ __forceinline__ int enter(const int *first, int rows, int most, int len, int row, Range &chunk,
                                       int before = 0, int skipped = 0) const {
    chunk = {0, len};
    if (first == nullptr) return rows;  // one chunk, at this offset
    if (len <= 0) return 0;
    const int c =
        (max_of(min_of(row, len - 1), 0) + before) / rows;  // of rows past an end, which do not exist, the last one
    chunk = {c * rows - before, min_of((c + 1) * rows - before, len)};
    return max_of(min_of(__ldg(first + skipped + c), most - (chunk.hi - chunk.lo)), 0) - chunk.lo;
  }
#endif
#ifdef LUATTN_PACKED_CHUNKS
  __device__ __forceinline__ int whole_of(const int *lengths, int offset, int most, int len) const {
    return lengths == nullptr ? offset + len : max_of(min_of(__ldg(lengths + b), most), 0);
  }
#endif
#ifdef LUATTN_OFFSET_ARRAYS
  // Clamps values from the device, so that no position of the whole leaves the range for which the spec's arithmetic is
  // exact.
  __device__ __forceinline__ int offset_of(const int *of_batch, int number, int most) const {
    return of_batch == nullptr ? number : max_of(min_of(__ldg(of_batch + b), most), 0);
  }
#endif

  LUATTN_FN int heads(const LuattnParams &p) { return p.shape.heads; }
  LUATTN_FN int heads_kv(const LuattnParams &p) { return p.shape.heads_kv; }
  // The lengths of the longest entry.
  LUATTN_FN int longest_q(const LuattnParams &p) { return p.shape.q_len; }
  LUATTN_FN int longest_kv(const LuattnParams &p) { return p.shape.kv_len; }
};

// Whether tensors are chunks of the whole.
#ifdef LUATTN_CHUNKS
enum : bool { has_chunks = true };
#else
enum : bool { has_chunks = false };
#endif
// A Site, or a Sequence, in the chunks of a query and a key: a copy, so that it is still where it was.
template <class S>
LUATTN_FN S in_chunks(const LuattnParams &p, S s, int q_row, int kv_row) {
  s.enter(p, q_row, kv_row);
  return s;
}
