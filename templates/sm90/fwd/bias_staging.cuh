// sm90/fwd/bias_staging.cuh: stages in shared memory the inputs that scores read (sm90 forward).
//
// If each score read its inputs itself, it would do so after the wait for QK^T, with one memory latency for
// every few scores. So bias loaders load the inputs ahead, tile by tile (sm90/fwd/bias_loader.cuh):
//
//   columns     Col, which scores read for each key. All consumers share the columns of a tile's keys. Each
//               stage of K has a buffer for them, which is filled and released together with K
//   bias rows   one input that scores read along the keys and that differs between queries, such as a pair
//               bias: tile_n elements for each of a consumer's 64 queries. Each consumer has one buffer
//
// Inputs are staged if shared memory has room for all of them next to the tiles (SharedSm90). Otherwise
// scores read memory themselves.
#pragma once
#include "score/fragment.cuh"
#include "sm90/fwd/bias_copies.cuh"
#include "sm90/pipeline.cuh"
#include "tma/mbarrier.cuh"
#include "work/sequence.cuh"

template <class Col, class Fragment>
struct StagedColumns {
  static constexpr int words = int(sizeof(Col)) / 4;
  struct Two {
    Col col[2];
  };
  static __device__ __forceinline__ Two get(u32 start, int octet, int lane) {
    u32 word[words][2];
#pragma unroll
    for (int w = 0; w < words; ++w)
      bias_load(word[w], start + Fragment::column(lane) * (words * 4) + octet * (words * 32) + w * 8);
    Two x;
    memcpy(&x, word, sizeof x);
    return x;
  }
};

// Copies a bias row with one warp, element by element. Clamps an index that is outside the axis.
template <class Layout, int TileN>
__device__ __forceinline__ void copy_bias_row(const typename Layout::Row &x, u32 to, int lane) {
  to += Layout::is_second(Layout::begin_of(x)) ? 2 : 0;
#pragma unroll 1
  for (int key = lane; key < TileN; key += 32)
    bias_store(to + key * Layout::size, x.row[i64(max_of(min_of(x.index + key, x.size - 1), 0)) * x.stride]);
}

// The layout of a consumer's 64 bias rows. Each warp has 16 of them, and each row is padded by 16 bytes. A
// warp reads four rows at once; their places in the buffer are two rows apart, so that they are in different
// banks. A row of 16-bit elements that is only 2-byte aligned in memory begins at the second half of its
// first word, and consumers shift it.
template <class Spec, class Config>
struct BiasRowLayout {
  static_assert(SequenceOf<Config>::is_line, "a query that does not exist is replaced by the last one");
  using Stored = typename Spec::BiasElem;
  using Row = InputRow<Stored>;
  static constexpr int size = int(sizeof(Stored)), pitch = Config::tile_n * size + 16;
  static_assert(size == 2 || size == 4);
  LUATTN_FN u32 place_of(u32 row) { return row / 8 * 8 + row % 4 * 2 + row / 4 % 2; }
  LUATTN_FN int row_of(int place) { return place / 8 * 8 + place % 2 * 4 + place % 8 / 2; }
  LUATTN_FN Row row_at(const LuattnParams &p, const Site &site, const typename Spec::Head &head, int q, int kv0) {
    return Spec::bias_row(p, site, head, min_of(q, site.q_len - 1), kv0);
  }
  // The address of key `index`, before it is clamped.
  LUATTN_FN u64 begin_of(const Row &x) { return u64(__cvta_generic_to_global(x.row + x.index)); }
  LUATTN_FN bool is_second(u64 at) { return size == 2 && (at & 2) != 0; }
};

// A consumer's view of its staged rows. For every kv tile, even one that it skips, the consumer waits for the
// rows and releases them; for a tile that it computes, it peeks at the barrier while QK^T is in flight. It
// releases the rows of a q tile's last kv tile once P is good, and other rows as soon as scores have read
// them. `rescore` needs rows that were released and may already be overwritten by those of the next tile. The
// warp then loads the rows of its tile itself, and also reloads those of the next tile once. This would fail
// for a q tile's last kv tile, because rows of the next q tile might arrive only after it: hence the later
// release.
template <class Spec, class Config, class Fragment>
struct StagedBiasRows {
  enum { FULL = 2 };  // index of a barrier peek; ConsumerSm90 uses 0 and 1
  using Stored = typename Spec::BiasElem;
  using Head = typename Spec::Head;
  using Layout = BiasRowLayout<Spec, Config>;
  static constexpr int tile_n = Config::tile_n, size = Layout::size, pitch = Layout::pitch;
  u32 start, full, parity;  // the warp's rows; the consumer's barrier and its parity
  u32 second;               // bit i: row i of the warp begins at a second half
  int own;                  // the warp itself loads the rows of 2: this tile and the next one,
                            // 1: this tile, 0: none

  __device__ __forceinline__ StagedBiasRows(const SharedSm90<Spec, Config> &s, int warp)
      : start(s.bias_rows(0) + warp * (16 * pitch)), full(s.bias_full(warp / 4)), parity(0), own(0) {}
  __device__ __forceinline__ void begin(const LuattnParams &p, const Site &site, const Head &head, int first_row,
                                        int lane) {
    if constexpr (size == 2)
      second = __ballot_sync(
          0xffffffffu,
          lane < 16 && Layout::is_second(Layout::begin_of(Layout::row_at(p, site, head, first_row + lane % 16, 0))));
  }
  __device__ __forceinline__ void peek() const { barrier_peek<FULL>(full, parity); }
  __device__ __forceinline__ void await(const LuattnParams &p, const Site &site, const Head &head, int first_row,
                                        int kv0, int lane) const {
    barrier_wait_peeked<FULL>(full, parity);
    if (own > 0) load(p, site, head, first_row, kv0, lane);
    if constexpr (size == 2)
      if (second != 0) shift_rows(lane);
  }
  __device__ __forceinline__ void rescore(const LuattnParams &p, const Site &site, const Head &head, int first_row,
                                          int kv0, int lane) {
    own = 2;
    peek();
    await(p, site, head, first_row, kv0, lane);
  }
  __device__ __forceinline__ void skip() {
    barrier_wait(full, parity);
    release();
  }
  __device__ __forceinline__ void release() {
    if (own < 2) {
      barrier_arrive(full + 8);
      parity ^= 1;
    } else {
      __syncwarp();  // all lanes of the warp have read
    }
    own = max_of(own - 1, 0);
  }
  __device__ __forceinline__ void load(const LuattnParams &p, const Site &site, const Head &head, int first_row,
                                       int kv0, int lane) const {
#pragma unroll 1
    for (int row = 0; row < 16; ++row) {
      const auto bias_row = Layout::row_at(p, site, head, first_row + row, kv0);
      copy_bias_row<Layout, tile_n>(bias_row, start + Layout::place_of(row) * pitch, lane);
    }
    __syncwarp();
  }
  // Shifts the rows that begin at second halves, several at a time. The last row may be done twice, with the
  // same result.
  __device__ __forceinline__ void shift_rows(int lane) const {
    constexpr int chunks = ceil_div(tile_n / 2, 32), beside = chunks > 2 ? 2 : 4;
    u32 todo = second;
#pragma unroll 1
    while (todo != 0) {
      u32 at[beside], low[beside][chunks], high[beside][chunks];
#pragma unroll
      for (int k = 0; k < beside; ++k) {
        at[k] = start + Layout::place_of(__ffs(int(todo)) - 1) * pitch + lane * 4;
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
  // Reads two adjacent keys of the thread's row r.
  __device__ __forceinline__ void get(float (&x)[2], int r, int octet, int lane) const {
    const u32 at = start + Layout::place_of(Fragment::row(lane)) * pitch + Fragment::column(lane) * size +
                   r * Fragment::row_of(1) * pitch + octet * 8 * size;
    u32 two[size / 2];
    bias_load(two, at);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if constexpr (size == 4)
        x[i] = __uint_as_float(two[i]);
      else
        x[i] = to_real(Stored{(unsigned short)(two[0] >> 16 * i)});
  }
};
template <class Spec, class Config>
struct NoStagedBiasRows {
  __device__ __forceinline__ NoStagedBiasRows(const SharedSm90<Spec, Config> &, int) {}
};

// The tables of terms by displacement (sm90/fwd/term_loader.cuh), and a thread's terms. If scores are dots and terms added up, the
// sums of QK^T begin at the terms, which are read before it is issued. Else terms are held apart, and read while QK^T is under
// way: behind it each load would wait for those of products.
template <class Spec, class Config>
struct StagedTerms {
  using Shared = SharedSm90<Spec, Config>;
  PipelineState<Shared::term_stages> table;
  int row, lane;  // the first row of the warp in its box
#ifdef LUATTN_FREE_BOXES
  using Pair = TileBoxPair<Config::tile_n>;
  using Terms = DisplacementTerms<MmaFragment, Pair, Config::tile_n / 8, false>;
  using Pairs = DisplacementPairs<Pair, Config::tile_n / 8>;
  typename Terms::Held held;
#endif
  __device__ __forceinline__ StagedTerms(const Shared &, int warp)
      : table(0), row(warp * 16), lane(int(threadIdx.x) % 32) {}
  __device__ __forceinline__ void await(const Shared &shared) const {
    barrier_wait(shared.terms_full(table.stage), table.parity);
  }
  __device__ __forceinline__ void hold(const Shared &shared) {
#ifdef LUATTN_FREE_BOXES
    held = typename Terms::Held(Terms(shared.terms(table.stage), row, lane));
#endif
  }
  __device__ __forceinline__ void begin(const Shared &shared, float (&sums)[Config::tile_n / 2]) const {
#ifdef LUATTN_FREE_BOXES
    Pairs(row, lane).read(shared.terms(table.stage), sums);
#endif
  }
  __device__ __forceinline__ void add(const Shared &shared, float (&sums)[Config::tile_n / 2]) const {
#ifdef LUATTN_FREE_BOXES
    Pairs(row, lane).add(shared.terms(table.stage), sums);
#endif
  }
  __device__ __forceinline__ void release(const Shared &shared) {
    barrier_arrive(shared.terms_empty(table.stage));
    table.advance();
  }
};

template <class Spec, class Config, class Fragment, bool There = SharedSm90<Spec, Config>::has_bias_rows>
struct StagedBiasRowsOf {
  using type = NoStagedBiasRows<Spec, Config>;
};
template <class Spec, class Config, class Fragment>
struct StagedBiasRowsOf<Spec, Config, Fragment, true> {
  using type = StagedBiasRows<Spec, Config, Fragment>;
};
