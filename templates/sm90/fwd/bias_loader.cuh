// sm90/fwd/bias_loader.cuh: the bias loaders of the sm90 forward. They are warps of the producer's warpgroup
// that stage the inputs that scores read (sm90/fwd/bias_staging.cuh): three warps if there are bias rows, one
// if there are only columns. The producer sends them a message for each kv tile before it waits for a free
// stage for K.
#pragma once
#include "sm90/fwd/bias_staging.cuh"
#include "tma/forward_messages.cuh"
#include "tma/mbarrier.cuh"
#include "tma/stages.cuh"
#include "work/sequence.cuh"

// Loads Col of a tile's keys into the buffer of K's stage. The lanes share the keys.
template <class Spec, class Config>
struct ColumnLoader {
  using Shared = SharedSm90<Spec, Config>;
  using Col = typename Spec::Col;
  static constexpr int tile_n = Config::tile_n, words = int(sizeof(Col)) / 4;
  PipelineState<Config::stages> k;

  __device__ __forceinline__ ColumnLoader() : k(1) {}
  __device__ __forceinline__ void load(const LuattnParams &p, const Shared &shared, const Site &site,
                                       const typename Spec::Head &head, int kv0, int lane) {
    barrier_wait(shared.k_empty(k.stage), k.parity);
    fill(p, site, head, kv0, lane, shared.cols(k.stage));
    barrier_arrive(shared.k_full(k.stage));
    k.advance();
  }
  LUATTN_FN void fill(const LuattnParams &p, const Site &site, const typename Spec::Head &head, int kv0, int lane,
                      u32 start) {
#pragma unroll
    for (int i = 0; i < tile_n; i += 32) {
      if (tile_n % 32 != 0 && i + lane >= tile_n) break;
      const Col col = Spec::col(p, site, head, kv0 + i + lane);
      u32 word[words];
      memcpy(word, &col, sizeof col);
#pragma unroll
      for (int w = 0; w < words; ++w) store_shared(start + ((i + lane) * words + w) * 4, word[w]);
    }
  }
};

// Loads one bias loader's share of the bias rows of all consumers. Rows are copied in groups of 1, 2 or 4: as
// many as one instruction of the warp copies in words of 16 bytes. Each of the three loaders takes every
// third group.
//   BY_16        all rows begin at multiples of 16 bytes, have every key, and end at a whole word
//   BY_4         all rows have every key, with stride 1
//   BY_ELEMENTS  all other cases
template <class Spec, class Config, int Groups>
struct BiasRowLoader {
  static_assert(SequenceOf<Config>::is_line, "copies of bias rows end at kv_len");
  using Head = typename Spec::Head;
  using Layout = BiasRowLayout<Spec, Config>;
  static constexpr int tile_n = Config::tile_n, size = Layout::size, pitch = Layout::pitch, bias_loaders = 3;
  static constexpr int words = tile_n * size / 16, rows = words <= 8 ? 4 : words <= 16 ? 2 : 1;
  static constexpr int packs = 64 / rows, lanes = 32 / rows;
  static constexpr int most = ceil_div(packs, bias_loaders) * rows;  // of one consumer, at most
  static_assert(most <= 32);
  enum How { BY_16, BY_4, BY_ELEMENTS };

  const int bias_loader, lane;
  u64 first;             // address of the first row's key 0
  int distance[Groups];  // from there to this lane's row of each consumer, in elements
  How how;

  __device__ __forceinline__ BiasRowLoader(int f, int l) : bias_loader(f), lane(l) {}

  // The position, among a consumer's 64 staged rows, of this loader's row i.
  __device__ __forceinline__ int place(int i) const {
    return (bias_loader + i / rows * bias_loaders) * rows + i % rows;
  }
  LUATTN_FN typename Layout::Row row_at(const LuattnParams &p, const Site &site, const Head &head, int q0, int place,
                                        int kv0) {
    return Layout::row_at(p, site, head, q0 + place / 16 * 16 + Layout::row_of(place % 16), kv0);
  }
  // Starts a q tile at q0.
  __device__ __forceinline__ void begin(const LuattnParams &p, const Site &site, const Head &head, int q0) {
    bool whole = true, aligned = true;
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      const auto mine = row_at(p, site, head, q0 + g * 64, min_of(place(lane), 63), 0);
      const u64 at = Layout::begin_of(mine);
      if (g == 0) first = __shfl_sync(0xffffffffu, at, 0);
      const i64 apart = i64(at - first) / size, left = i64(mine.size) - mine.index;
      distance[g] = int(apart);
      whole = whole && mine.stride == 1 && mine.index >= 0 && left >= site.kv_len && apart == distance[g];
      aligned = aligned && ((at | u64(left * size)) & 15) == 0;
    }
    how = !__all_sync(0xffffffffu, whole) ? BY_ELEMENTS : __all_sync(0xffffffffu, aligned) ? BY_16 : BY_4;
  }
  // Loads the rows of consumer g. Returns whether copies are in flight, which the barrier must then await.
  __device__ __forceinline__ bool load(const LuattnParams &p, const Site &site, const Head &head, int q0, int kv0,
                                       int g, u32 start) const {
    int own = distance[0];
#pragma unroll
    for (int i = 1; i < Groups; ++i) own = g == i ? distance[i] : own;
    if (how == BY_4) return copy_4(own, kv0, site.kv_len, start);
    if (how == BY_16)
      copy_16(own, kv0, site.kv_len, start);
    else
      copy_elements(p, site, head, q0 + g * 64, kv0, start);
    return how == BY_16;
  }
  // Shuffles for a whole batch before it issues the copies: several shuffles take no longer than one.
  template <int From, int Count>
  LUATTN_FN void batch_16(int own, int row, u64 base, u32 to, bool there) {
    int apart[Count];
#pragma unroll
    for (int i = 0; i < Count; ++i) apart[i] = __shfl_sync(0xffffffffu, own, (From + i) * rows + row);
#pragma unroll
    for (int i = 0; i < Count; ++i)
      bias_copy_16(to + (From + i) * (bias_loaders * rows * pitch), base + i64(apart[i]) * size, there);
  }
  __device__ __forceinline__ void copy_16(int own, int kv0, int kv_len, u32 start) const {
    constexpr int each = 16 / size, all = packs / bias_loaders;  // per loader; the first ones have one more
    static_assert(all == 21 || all == 10 || all == 5);
    const int lane = opaque(this->lane), row = lane / lanes;
#pragma unroll
    for (int w = 0; w < words; w += lanes) {  // a second pass if a row has more than 32 words
      const int word = w + lane % lanes, key = kv0 + word * each;
      const bool there = word < words && key < kv_len;
      const u64 base = first + u64(u32(key)) * size;
      const u32 to = start + (bias_loader * rows + row) * pitch + word * 16;
      batch_16<0, 5>(own, row, base, to, there);
      if constexpr (all > 5) batch_16<5, 5>(own, row, base, to, there);
      if constexpr (all > 10) batch_16<10, 6>(own, row, base, to, there);
      if constexpr (all > 16) batch_16<16, 5>(own, row, base, to, there);
      if (bias_loader < packs % bias_loaders) batch_16<all, 1>(own, row, base, to, there);
    }
  }
  // Copies words of 4 bytes. If a row of 16-bit elements ends in the middle of a word, that word includes the
  // element after the tile, if there is one. Returns whether copies are in flight.
  __device__ __forceinline__ bool copy_4(int own, int kv0, int kv_len, u32 start) const {
    constexpr bool halves = size == 2;
    constexpr int chunks = ceil_div((tile_n + halves) * size, 128), batch = 2;
    const int lane = opaque(this->lane);
    const u64 base = first + u64(u32(kv0)) * size;
    const int bytes = min_of(kv_len - kv0, tile_n + halves) * size;
#pragma unroll 1
    for (int i = 0; i < most; i += batch) {
      int apart[batch];
#pragma unroll
      for (int k = 0; k < batch; ++k) apart[k] = __shfl_sync(0xffffffffu, own, i + k);
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        const u64 at = base + i64(apart[k]) * size;
        const int before = Layout::is_second(at) ? 2 : 0, left = bytes + before - lane * 4;
        const bool exists = i + k < most && place(i + k) < 64;
        const u32 to = start + place(i + k) * pitch + lane * 4;
#pragma unroll
        for (int c = 0; c < chunks; ++c)
          bias_copy_4(to + c * 128, at + (lane * 4 - before) + c * 128, exists && left >= c * 128 + 4);
      }
    }
    if (!halves || kv_len - kv0 > tile_n) return true;
    bias_copy_wait();
    copy_last_half(base + i64(own) * size, bytes, start);
    return false;
  }
  // Copies the last 16-bit element of this lane's row if it is alone in its word. The row's keys in the tile
  // take `bytes` bytes from `at` on.
  __device__ __forceinline__ void copy_last_half(u64 at, int bytes, u32 start) const {
    const int before = Layout::is_second(at) ? 2 : 0, end = bytes + before;
    if (lane < most && place(lane) < 64 && end % 4 != 0)
      bias_copy_2(start + place(lane) * pitch + (end - 2), at - before + (end - 2));
  }
  __device__ __forceinline__ void copy_elements(const LuattnParams &p, const Site &site, const Head &head, int q0,
                                                int kv0, u32 start) const {
    const int lane = opaque(this->lane);
#pragma unroll 1
    for (int i = 0; i < most; ++i) {
      if (place(i) >= 64) break;
      copy_bias_row<Layout, tile_n>(row_at(p, site, head, q0, place(i), kv0), start + place(i) * pitch, lane);
    }
  }
};

template <class Spec, class Config>
struct BiasLoaderSm90 {
  using Shared = SharedSm90<Spec, Config>;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, groups = Shared::groups;

  const LuattnParams &p;
  const Shared shared;
  const int bias_loader, lane;
  BiasRowLoader<Spec, Config, Shared::groups> bias_rows;
  ColumnLoader<Spec, Config> columns;
  PipelineState<Config::stages> messages;
  u32 parity;  // of the bias rows' barriers

  __device__ __forceinline__ BiasLoaderSm90(const LuattnParams &params, const Shared &s, int f)
      : p(params), shared(s), bias_loader(f), lane(int(threadIdx.x) % 32), bias_rows(f, lane), messages(0), parity(1) {}

  __device__ __forceinline__ LoaderMessage next_message() {
    barrier_wait(shared.messages_full(messages.stage), messages.parity);
    const LoaderMessage message = LoaderMessage::load(shared.loader_message(messages.stage));
    if (lane == 0) barrier_arrive(shared.messages_empty(messages.stage));
    messages.advance();
    return message;
  }
  __device__ __forceinline__ void load_rows(const Site &site, const typename Spec::Head &head, int q0, int kv0) {
#pragma unroll 1
    for (int g = 0; g < groups; ++g) {
      barrier_wait(shared.bias_empty(g), parity);
      if (bias_rows.load(p, site, head, q0, kv0, g, shared.bias_rows(g)))
        bias_copies_arrive(shared.bias_full(g));
      else
        barrier_arrive(shared.bias_full(g));
    }
    parity ^= 1;
  }
  __device__ __forceinline__ void run() {
    SequenceOf<Config> site(p, 0, 0);
    typename Spec::Head head;
#pragma unroll 1
    for (LoaderMessage message = next_message(); !message.is_end(); message = next_message()) {
      const int q0 = message.q_tile * tile_m, kv0 = message.kv_tile() * tile_n;
      if (message.first()) {
        site = {p, message.b, message.h};
        head = Spec::head(p, site);
        if constexpr (has_chunks) site.enter_queries(p, q0);
        if constexpr (Shared::has_bias_rows) bias_rows.begin(p, site, head, q0);
      }
      if constexpr (has_chunks) site.enter_keys(p, kv0);
      if constexpr (Shared::has_cols)
        if (bias_loader == Shared::bias_loaders - 1) columns.load(p, shared, site, head, kv0, lane);
      if constexpr (Shared::has_bias_rows) load_rows(site, head, q0, kv0);
    }
  }
};
