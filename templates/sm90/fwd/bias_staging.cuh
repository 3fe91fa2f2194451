// sm90/fwd/bias_staging.cuh: stages what scores read from memory besides K in shared memory (sm90
// forward).
//
// Read score by score it would come behind the wait for the scores' product, a latency of memory for each few
// of them. So bias loaders bring it ahead, tile by tile (sm90/fwd/bias_loader.cuh), to strips:
//
//   columns   what scores read for each key alone: Col of the tile's keys, for all consumers. It comes with
//             K, whose stages have a strip each, and is given back with it
//   lines     one input that scores read along the keys, and which differs from query to query, a bias for
//             each pair: tile_n elements for each of a consumer's 64 queries, a strip for each consumer
//
// Strips are there where shared memory has room for all of them beside the tiles (SharedSm90); elsewhere
// scores read memory themselves. A thread has the keys 8 * octet + lane % 4 * 2 and the next, as in products.
#pragma once
#include "sm90/fwd/bias_copies.cuh"
#include "sm90/pipeline.cuh"

template <class Col>
struct ColumnStrip {
  static constexpr int words = int(sizeof(Col)) / 4;
  struct Two {
    Col col[2];
  };
  static __device__ __forceinline__ Two get(u32 start, int octet, int lane) {
    u32 word[words][2];
#pragma unroll
    for (int w = 0; w < words; ++w)
      strip_load(word[w], start + lane % 4 * (words * 8) + octet * (words * 32) + w * 8);
    Two x;
    memcpy(&x, word, sizeof x);
    return x;
  }
};

// A line, element by element, by a warp. An index outside the axis stands for its nearest end.
template <class Places, int TileN>
__device__ __forceinline__ void copy_line(const typename Places::Line &x, u32 to, int lane) {
  to += Places::is_second(Places::begin_of(x)) ? 2 : 0;
#pragma unroll 1
  for (int key = lane; key < TileN; key += 32)
    strip_store(to + key * Places::size, x.row[i64(max_of(min_of(x.index + key, x.size - 1), 0)) * x.stride]);
}

// How a consumer's 64 lines lie: 16 for each of its warps, with 16 bytes more than they need, and in such an
// order that the four rows that a warp reads at once, which lie two lines apart, are in different banks. A
// line of halves begins at the second half of its first word if it does so in memory: consumers move those.
template <class Spec, class Config>
struct Lines {
  using Stored = typename Spec::BiasElem;
  using Line = InputRow<Stored>;
  static constexpr int size = int(sizeof(Stored)), pitch = Config::tile_n * size + 16;
  static_assert(size == 2 || size == 4);
  LUATTN_FN u32 place_of(u32 row) { return row / 8 * 8 + row % 4 * 2 + row / 4 % 2; }
  LUATTN_FN int row_of(int place) { return place / 8 * 8 + place % 2 * 4 + place % 8 / 2; }
  LUATTN_FN Line line(const LuattnParams &p, const Site &site, const typename Spec::Head &head, int q,
                      int kv0) {
    return Spec::bias_row(p, site, head, min_of(q, site.q_len - 1), kv0);
  }
  // Where it has key `index`, before it is clamped.
  LUATTN_FN u64 begin_of(const Line &x) { return u64(__cvta_generic_to_global(x.row + x.index)); }
  LUATTN_FN bool is_second(u64 at) { return size == 2 && (at & 2) != 0; }
};

// A consumer peeks when the scores' product is under way, awaits, reads, and releases; every tile, also one
// that it leaves out. Those of a q tile's last kv tile it releases when the weights are good. `again` reads
// other tiles' lines that are released, in whose place the next ones are, or come: the warp then fetches its
// lines itself, those of that tile and once more the next ones. Next ones of another q tile might come only
// after this one: hence the last tile's exception.
template <class Spec, class Config>
struct LineStrip {
  enum { FULL = 2 };  // a peek, beside the consumers' own
  using Stored = typename Spec::BiasElem;
  using Head = typename Spec::Head;
  using Places = Lines<Spec, Config>;
  static constexpr int tile_n = Config::tile_n, size = Places::size, pitch = Places::pitch;
  u32 start, full, parity;  // of the warp, of the consumer
  u32 second;               // rows of the warp whose lines begin at second halves
  int own;                  // lines that the warp fetches itself: 2, of the tile at hand and the next; 1

  __device__ __forceinline__ LineStrip(const SharedSm90<Spec, Config> &s, int warp)
      : start(s.lines(0) + warp * (16 * pitch)), full(s.lines_full(warp / 4)), parity(0), own(0) {}
  __device__ __forceinline__ void begin(const LuattnParams &p, const Site &site, const Head &head,
                                        int first_row, int lane) {
    if constexpr (size == 2)
      second = __ballot_sync(0xffffffffu, lane < 16 && Places::is_second(Places::begin_of(Places::line(
                                                           p, site, head, first_row + lane % 16, 0))));
  }
  __device__ __forceinline__ void peek() const { barrier_peek<FULL>(full, parity); }
  __device__ __forceinline__ void await(const LuattnParams &p, const Site &site, const Head &head,
                                        int first_row, int kv0, int lane) const {
    barrier_wait_peeked<FULL>(full, parity);
    if (own > 0) fetch(p, site, head, first_row, kv0, lane);
    if constexpr (size == 2)
      if (second != 0) move_lines(lane);
  }
  __device__ __forceinline__ void rescore(const LuattnParams &p, const Site &site, const Head &head,
                                        int first_row, int kv0, int lane) {
    own = 2;
    peek();
    await(p, site, head, first_row, kv0, lane);
  }
  __device__ __forceinline__ void leave_out() {
    barrier_wait(full, parity);
    release();
  }
  __device__ __forceinline__ void release() {
    if (own < 2) {
      barrier_arrive(full + 8);
      parity ^= 1;
    } else {
      __syncwarp();  // all its lanes have read
    }
    own = max_of(own - 1, 0);
  }
  __device__ __forceinline__ void fetch(const LuattnParams &p, const Site &site, const Head &head,
                                        int first_row, int kv0, int lane) const {
#pragma unroll 1
    for (int row = 0; row < 16; ++row) {
      const auto line = Places::line(p, site, head, first_row + row, kv0);
      copy_line<Places, tile_n>(line, start + Places::place_of(row) * pitch, lane);
    }
    __syncwarp();
  }
  // Lines that begin at second halves, some at a time, of which the last may be one several times.
  __device__ __forceinline__ void move_lines(int lane) const {
    constexpr int chunks = ceil_div(tile_n / 2, 32), beside = chunks > 2 ? 2 : 4;
    u32 todo = second;
#pragma unroll 1
    while (todo != 0) {
      u32 at[beside], low[beside][chunks], high[beside][chunks];
#pragma unroll
      for (int k = 0; k < beside; ++k) {
        at[k] = start + Places::place_of(__ffs(int(todo)) - 1) * pitch + lane * 4;
        const u32 left = todo & (todo - 1);
        todo = left != 0 || k == beside - 1 ? left : todo;
      }
#pragma unroll
      for (int k = 0; k < beside; ++k)
#pragma unroll
        for (int c = 0; c < chunks; ++c)
          if (c * 64 + lane * 2 < tile_n)
            low[k][c] = load_shared(at[k] + c * 128), high[k][c] = load_shared(at[k] + c * 128 + 4);
      __syncwarp();
#pragma unroll
      for (int k = 0; k < beside; ++k)
#pragma unroll
        for (int c = 0; c < chunks; ++c)
          if (c * 64 + lane * 2 < tile_n) store_shared(at[k] + c * 128, low[k][c] >> 16 | high[k][c] << 16);
    }
    __syncwarp();
  }
  // Of the warp's row lane / 4 + 8 * r.
  __device__ __forceinline__ void get(float (&x)[2], int r, int octet, int lane) const {
    const u32 at =
        start + Places::place_of(lane / 4) * pitch + lane % 4 * (2 * size) + r * 8 * pitch + octet * 8 * size;
    u32 two[size / 2];
    strip_load(two, at);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if constexpr (size == 4)
        x[i] = __uint_as_float(two[i]);
      else
        x[i] = to_real(Stored{(unsigned short)(two[0] >> 16 * i)});
  }
};
template <class Spec, class Config>
struct NoLines {
  __device__ __forceinline__ NoLines(const SharedSm90<Spec, Config> &, int) {}
};

template <class Spec, class Config, bool There = SharedSm90<Spec, Config>::has_lines>
struct LinesOf {
  using type = NoLines<Spec, Config>;
};
template <class Spec, class Config>
struct LinesOf<Spec, Config, true> {
  using type = LineStrip<Spec, Config>;
};
