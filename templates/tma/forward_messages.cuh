// tma/forward_messages.cuh: tile messages from the forward producer to consumers and loaders.
//
// Tile messages lie next to the stages. The producer writes a message before it arrives at `full`, so the
// message is visible to whoever has waited for `full`. Only lane 0 of a warp reads it, because only lane 0
// tells the producer that the stage is free.
#pragma once
#include "arch/mma.cuh"
#include "arch/warp.cuh"
#include "work/tile_walk.cuh"
#ifdef LUATTN_FREE_BOXES
#include "ops/free_boxes.cuh"
#endif

// The message of a q tile: its index, head and batch, and whether the mask leaves it any kv tile. EMPTY: no K
// and V follow, and Q is not copied. END: there are no more q tiles.
struct QTileMessage {
  enum State { END, EMPTY, SOME };
  int q_tile, h, b;
  u32 state;

  __device__ __forceinline__ void store(u32 address) const {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(q_tile), "r"(h), "r"(b), "r"(state)
                 : "memory");
  }
  LUATTN_FN QTileMessage load(u32 address) {
    u32 x[4] = {0, 0, 0, 0};
    if (threadIdx.x % 32 == 0)
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(address)
                   : "memory");
    return {int(uniform(x[0])), int(uniform(x[1])), int(uniform(x[2])), uniform(x[3])};
  }
};

// The message to loaders (sm90/fwd/bias_loader.cuh, sm90/fwd/term_loader.cuh, tma/page_loads.cuh): a kv tile, whether
// it is the first of its q tile, and that q tile. END: there are no more kv tiles.
struct LoaderMessage {
  enum { END = -1 };
  int q_tile, h, b;
  u32 bits;

  LUATTN_FN LoaderMessage of(int q_tile, int h, int b, int kv_tile, bool first) {
    return {q_tile, h, b, u32(kv_tile) << 1 | u32(first)};
  }
  // Of tiles that are no numbers there are no messages.
  template <class KeyTile>
  LUATTN_FN LoaderMessage of(int, int, int, const KeyTile &, bool) {
    return end();
  }
#ifdef LUATTN_FREE_BOXES
  LUATTN_FN LoaderMessage of(int q_tile, int h, int b, const NumberedBox &box, bool first) {
    return of(q_tile, h, b, box.number, first);
  }
#endif
  LUATTN_FN LoaderMessage end() { return {END, 0, 0, 0}; }
  __device__ __forceinline__ bool is_end() const { return q_tile == END; }
  __device__ __forceinline__ int kv_tile() const { return int(bits >> 1); }
  __device__ __forceinline__ bool first() const { return (bits & 1) != 0; }
  __device__ __forceinline__ void store(u32 address) const { QTileMessage{q_tile, h, b, bits}.store(address); }
  LUATTN_FN LoaderMessage load(u32 address) {
    const QTileMessage x = QTileMessage::load(address);
    return {x.q_tile, x.h, x.b, x.state};
  }
};

// The message of a kv tile: the members of TileOf<KeyTile>, and whether it is the last kv tile of its q tile. It is
// stored with K's stage; V's stage has no message.
template <class KeyTile>
struct KvTileMessage {
  static constexpr int bytes = 16, words = int(sizeof(KeyTile)) / 4;
  static_assert(words <= 3 && sizeof(KeyTile) % 4 == 0, "a message has three numbers for the tile");
  u32 at[3], bits;
  LUATTN_FN KvTileMessage of(TileOf<KeyTile> tile, bool last) {
    KvTileMessage x{{0, 0, 0}, u32(tile.by_range) << 2 | u32(tile.masked) << 1 | u32(last)};
    memcpy(x.at, &tile.index, sizeof(KeyTile));
    return x;
  }
  LUATTN_FN KvTileMessage before() { return {{0, 0, 0}, ~1u}; }
  LUATTN_FN KvTileMessage none() { return {{0, 0, 0}, 1}; }
  __device__ __forceinline__ bool before_first() const { return bits == ~1u; }
  __device__ __forceinline__ KeyTile tile() const {
    KeyTile x;
    memcpy(&x, at, sizeof(KeyTile));
    return x;
  }
  __device__ __forceinline__ bool by_range() const { return (bits & 4) != 0; }
  __device__ __forceinline__ bool masked() const { return (bits & 2) != 0; }
  __device__ __forceinline__ bool last() const { return (bits & 1) != 0; }

  __device__ __forceinline__ void store(u32 address) const {
    QTileMessage{int(at[0]), int(at[1]), int(at[2]), bits}.store(address);
  }
  LUATTN_FN KvTileMessage load(u32 address) {
    u32 x[4] = {0, 0, 0, 0};
    if (threadIdx.x % 32 == 0)
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(address)
                   : "memory");
    return {{x[0], x[1], x[2]}, x[3]};
  }
  __device__ __forceinline__ KvTileMessage shared() const {
    return {{uniform(at[0]), uniform(at[1]), uniform(at[2])}, uniform(bits)};
  }
};
// Of a tile that is a number.
template <>
struct KvTileMessage<int> {
  static constexpr int bytes = 4;
  u32 bits;
  LUATTN_FN KvTileMessage of(Tile tile, bool last) {
    return {u32(tile.index) << 3 | u32(tile.by_range) << 2 | u32(tile.masked) << 1 | u32(last)};
  }
  // Placeholders for a consumer that has read no kv tile yet: `before` if kv tiles follow, `none` if the q
  // tile has none.
  LUATTN_FN KvTileMessage before() { return {~1u}; }
  LUATTN_FN KvTileMessage none() { return {1}; }
  __device__ __forceinline__ bool before_first() const { return bits == ~1u; }
  __device__ __forceinline__ int tile() const { return int(bits >> 3); }
  __device__ __forceinline__ bool by_range() const { return (bits & 4) != 0; }
  __device__ __forceinline__ bool masked() const { return (bits & 2) != 0; }
  __device__ __forceinline__ bool last() const { return (bits & 1) != 0; }

  __device__ __forceinline__ void store(u32 address) const { store_shared(address, bits); }
  // Reads the message in lane 0. shared() broadcasts it later, once the load has completed.
  LUATTN_FN KvTileMessage load(u32 address) {
    u32 x = 0;
    if (threadIdx.x % 32 == 0) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return {x};
  }
  __device__ __forceinline__ KvTileMessage shared() const { return {uniform(bits)}; }
};

#ifdef LUATTN_FREE_BOXES
// Of a box among those of a range: its number, as that of a tile, and where it begins, which consumers read only where
// they mask.
template <>
struct KvTileMessage<NumberedBox> : KvTileMessage<int> {
  using Number = KvTileMessage<int>;
  static constexpr int bytes = 16;
  FreeBox at;  // of a message that is stored
  KvTileMessage() = default;
  __device__ __forceinline__ KvTileMessage(const Number &x) : Number(x) {}
  LUATTN_FN KvTileMessage of(const TileOf<NumberedBox> &tile, bool last) {
    KvTileMessage x = Number::of(Tile{tile.index.number, tile.masked}, last);
    x.at = tile.index.box;
    return x;
  }
  __device__ __forceinline__ void store(u32 address) const {
    QTileMessage{int(at.at[0]), int(at.at[1]), 0, bits}.store(address);
  }
  // Reads the box in lane 0. Volatile, so that nothing is read for boxes that are kept whole.
  LUATTN_FN FreeBox load_box(u32 address) {
    FreeBox x{{0, 0}};
    if (threadIdx.x % 32 == 0)
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.at[0]), "=r"(x.at[1]) : "r"(address));
    return x;
  }
  LUATTN_FN KvTileMessage before() { return Number::before(); }
  LUATTN_FN KvTileMessage none() { return Number::none(); }
  __device__ __forceinline__ NumberedBox tile() const { return {FreeBox::none(), Number::tile()}; }
  LUATTN_FN KvTileMessage load(u32 address) { return Number::load(address + 12); }
  __device__ __forceinline__ KvTileMessage shared() const { return Number::shared(); }
};
#endif
