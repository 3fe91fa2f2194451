// ops/hook_types.cuh: what hooks are given, and what they give beyond numbers.
#pragma once
#include "arch/types.cuh"
#include "abi/params.h"

enum TileClass { TILE_EMPTY = 0, TILE_PARTIAL = 1, TILE_FULL = 2 };

// Half-open range of positions along one sequence axis.
struct Range { int lo, hi; };

// A position on a sequence axis, base + offset. base is one value for all elements of a thread in a tile,
// and offset a constant once the kernel's loops are unrolled. Generated code converts what is linear in
// positions as Real(part of the bases) + Real(part of the offsets): the first is one conversion a tile, the
// second a constant. So it costs an addition an element, no conversion and no register per column; and what
// depends on a distance alone is computed once for all elements at that distance, because the compiler sees
// that they are equal. Any other split is right as well, and slower.
struct Position {
  int base, offset;
  __device__ __forceinline__ operator int() const { return base + offset; }
};

// The places of a gradient along its last axis. `index`, which may lie outside the axis, is where the
// asker's q and kv add their sum times `factor`. Of the whole gradient, `before` elements come before
// `row`, the axis's first, and `after` from there on. The line of q + 1 begins `pitch` elements further on,
// where all do.
template <class Real> struct GradRow {
  Real *row;  // nullptr: not wanted
  int index, size;
  i64 before, after;
  Real factor;
  i64 pitch;
};

// The places of an input along its last axis, `stride` elements apart. `index`, which may lie outside the
// axis, is where the asker's q and kv read; a place outside stands for the nearest end. The line of q + 1
// begins `pitch` elements further on, where all do.
template <class Stored> struct InputRow {
  const Stored *row;  // the axis's first
  int index, size;
  i64 stride, pitch;
};

// Where a block works. `h` is the query head, or the kv head in key_mod and value_mod.
struct Site { int b, h, q_len, kv_len; };
