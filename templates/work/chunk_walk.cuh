// work/chunk_walk.cuh: walks over tensors that are chunks of the whole (LuattnOffsets): those of work/tile_walk.cuh, chunk by
// chunk. A mask's range of positions is cut to each chunk, whose tiles then are classified by their own positions.
//
// Chunks come in the order of their rows. A walk has a Site of its own, since a kernel that prefetches is still in the
// chunk of the tile before.
#pragma once
#include "work/sequence.cuh"
#include "work/tile_walk.cuh"

template <class Spec, int TileM, int TileN>
struct ChunkKvTiles {
  int q0, q1, end;  // end: the first row behind the chunk that the walk is in
  Site at;
  Range todo;

  // Requires q_tile * TileM < q_len.
  template <class Sequence>
  __device__ __forceinline__ ChunkKvTiles(const LuattnParams &p, const Sequence &s, int q_tile) : at(s) {
    q0 = q_tile * TileM;
    q1 = min_of(q0 + TileM, at.q_len) - 1;
    at.enter_queries(p, q0);
    todo = {0, end = 0};
  }

  __device__ __forceinline__ Tile next(const LuattnParams &p, const Site &) {
    for (;; ++todo.lo) {
      while (todo.lo >= todo.hi) {
        if (end >= at.kv_len) return Tile{-1, false};
        at.enter_keys(p, end);
        end = at.kv_chunk.hi;
        todo = tiles_of(kept_keys<Spec>(p, at, q0, q1), at.kv_len, TileN);
      }
      const int kv0 = todo.lo * TileN, kv1 = min_of(kv0 + TileN, at.kv_len) - 1;
      const TileClass c = class_of<Spec>(p, at, q0, q1, kv0, kv1);
      if (c != TILE_EMPTY) return Tile{todo.lo++, c == TILE_PARTIAL || kv0 + TileN > at.kv_len};
    }
  }
};

template <class Spec, int TileM, int TileN>
struct ChunkQTiles {
  int kv0, kv1, end;
  bool ragged;
  Site at;
  Range todo;

  // Requires kv_tile * TileN < kv_len.
  template <class Sequence>
  __device__ __forceinline__ ChunkQTiles(const LuattnParams &p, const Sequence &s, int kv_tile) : at(s) {
    kv0 = kv_tile * TileN;
    kv1 = min_of(kv0 + TileN, at.kv_len) - 1;
    ragged = kv0 + TileN > at.kv_len;
    at.enter_keys(p, kv0);
    todo = {0, end = 0};
  }

  __device__ __forceinline__ Tile next(const LuattnParams &p, const Site &) {
    for (;; ++todo.lo) {
      while (todo.lo >= todo.hi) {
        if (end >= at.q_len) return Tile{-1, false};
        at.enter_queries(p, end);
        end = at.q_chunk.hi;
        todo = tiles_of(kept_queries<Spec>(p, at, kv0, kv1), at.q_len, TileM);
      }
      const int q0 = todo.lo * TileM, q1 = min_of(q0 + TileM, at.q_len) - 1;
      const TileClass c = class_of<Spec, true>(p, at, q0, q1, kv0, kv1);
      if (c != TILE_EMPTY) return Tile{todo.lo++, c == TILE_PARTIAL || ragged || q0 + TileM > at.q_len};
    }
  }
};

template <class Spec, int TileM, int TileN>
struct KvTilesKind<Spec, DenseSequence, TileM, TileN> {
  using type = ChunkKvTiles<Spec, TileM, TileN>;
};
template <class Spec, int TileM, int TileN>
struct QTilesKind<Spec, DenseSequence, TileM, TileN> {
  using type = ChunkQTiles<Spec, TileM, TileN>;
};
#ifdef LUATTN_PACKED_CHUNKS
template <class Spec, int TileM, int TileN>
struct KvTilesKind<Spec, PackedSequence, TileM, TileN> {
  using type = ChunkKvTiles<Spec, TileM, TileN>;
};
template <class Spec, int TileM, int TileN>
struct QTilesKind<Spec, PackedSequence, TileM, TileN> {
  using type = ChunkQTiles<Spec, TileM, TileN>;
};
#endif
