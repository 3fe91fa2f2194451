// sm90/fwd/bias_loader.cuh: loads biases ahead of the scores (sm90 forward): warps of the producer's
// warpgroup that bring what scores read from memory to strips (sm90/fwd/bias_staging.cuh), three for
// lines, one for columns alone. The producer tells them of a kv tile before it waits for a stage for its
// K.
#pragma once
#include "sm90/fwd/bias_staging.cuh"
#include "work/sequence.cuh"

// Col of a tile's keys, each lane some, into the strip of K's stage.
template <class Spec, class Config>
struct ColumnLoader {
  using Shared = SharedSm90<Spec, Config>;
  using Col = typename Spec::Col;
  static constexpr int tile_n = Config::tile_n, words = int(sizeof(Col)) / 4;
  PipelineState<Config::stages> k;

  __device__ __forceinline__ ColumnLoader() : k(1) {}
  __device__ __forceinline__ void fetch(const LuattnParams &p, const Shared &shared, const Site &site,
                                        const typename Spec::Head &head, int kv0, int lane) {
    barrier_wait(shared.k_empty(k.stage), k.parity);
    fill(p, site, head, kv0, lane, shared.cols(k.stage));
    barrier_arrive(shared.k_full(k.stage));
    k.advance();
  }
  LUATTN_FN void fill(const LuattnParams &p, const Site &site, const typename Spec::Head &head, int kv0,
                      int lane, u32 start) {
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

// A bias loader's part of the lines of all consumers: 1, 2 or 4 lines at a time, which an instruction can
// bring by words of 16 bytes, and of these every third.
//   by 16 bytes   where all lines begin at multiples of 16 bytes, have every key, and end behind a whole word
//   by 4 bytes    where they have every key, one behind the other
//   by elements   else
template <class Spec, class Config, int Groups>
struct LineFetch {
  using Head = typename Spec::Head;
  using Places = Lines<Spec, Config>;
  static constexpr int tile_n = Config::tile_n, size = Places::size, pitch = Places::pitch, bias_loaders = 3;
  static constexpr int words = tile_n * size / 16, rows = words <= 8 ? 4 : words <= 16 ? 2 : 1;
  static constexpr int packs = 64 / rows, lanes = 32 / rows;
  static constexpr int most = ceil_div(packs, bias_loaders) * rows;  // of a consumer's lines
  static_assert(most <= 32);
  enum How { BY_16, BY_4, BY_ELEMENTS };

  const int bias_loader, lane;
  u64 first;            // where the first line has key 0
  int further[Groups];  // how many elements further on lane's line of each consumer has it
  How how;

  __device__ __forceinline__ LineFetch(int f, int l) : bias_loader(f), lane(l) {}

  // Which of a consumer's 64 places the bias loader's line i has.
  __device__ __forceinline__ int place(int i) const {
    return (bias_loader + i / rows * bias_loaders) * rows + i % rows;
  }
  LUATTN_FN typename Places::Line line(const LuattnParams &p, const Site &site, const Head &head, int q0,
                                       int place, int kv0) {
    return Places::line(p, site, head, q0 + place / 16 * 16 + Places::row_of(place % 16), kv0);
  }
  // Of a q tile that begins at q0.
  __device__ __forceinline__ void begin(const LuattnParams &p, const Site &site, const Head &head, int q0) {
    bool whole = true, aligned = true;
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      const auto mine = line(p, site, head, q0 + g * 64, min_of(place(lane), 63), 0);
      const u64 at = Places::begin_of(mine);
      if (g == 0) first = __shfl_sync(0xffffffffu, at, 0);
      const i64 apart = i64(at - first) / size, left = i64(mine.size) - mine.index;
      further[g] = int(apart);
      whole = whole && mine.stride == 1 && mine.index >= 0 && left >= site.kv_len && apart == further[g];
      aligned = aligned && ((at | u64(left * size)) & 15) == 0;
    }
    how = !__all_sync(0xffffffffu, whole) ? BY_ELEMENTS : __all_sync(0xffffffffu, aligned) ? BY_16 : BY_4;
  }
  // Of consumer g: has what it may leave to the copies, which are to be waited for.
  __device__ __forceinline__ bool fetch(const LuattnParams &p, const Site &site, const Head &head, int q0,
                                        int kv0, int g, u32 start) const {
    int own = further[0];
#pragma unroll
    for (int i = 1; i < Groups; ++i) own = g == i ? further[i] : own;
    if (how == BY_4) return copy_4(own, kv0, site.kv_len, start);
    if (how == BY_16)
      copy_16(own, kv0, site.kv_len, start);
    else
      copy_elements(p, site, head, q0 + g * 64, kv0, start);
    return how == BY_16;
  }
  // Copies come in batches, for which lanes are asked first: one answer takes as long as several.
  template <int From, int Count>
  LUATTN_FN void batch_16(int own, int row, u64 base, u32 to, bool there) {
    int apart[Count];
#pragma unroll
    for (int i = 0; i < Count; ++i) apart[i] = __shfl_sync(0xffffffffu, own, (From + i) * rows + row);
#pragma unroll
    for (int i = 0; i < Count; ++i)
      strip_copy_16(to + (From + i) * (bias_loaders * rows * pitch), base + i64(apart[i]) * size, there);
  }
  __device__ __forceinline__ void copy_16(int own, int kv0, int kv_len, u32 start) const {
    constexpr int each = 16 / size, all = packs / bias_loaders;  // of each bias loader; the first have one more
    static_assert(all == 21 || all == 10 || all == 5);
    const int lane = opaque(this->lane), row = lane / lanes;
#pragma unroll
    for (int w = 0; w < words; w += lanes) {  // more than once where a line has more than 32
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
  // By whole words, the last one with the half behind the tile's, where there is one. Says whether it leaves
  // anything to the copies.
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
        const int before = Places::is_second(at) ? 2 : 0, left = bytes + before - lane * 4;
        const bool exists = i + k < most && place(i + k) < 64;
        const u32 to = start + place(i + k) * pitch + lane * 4;
#pragma unroll
        for (int c = 0; c < chunks; ++c)
          strip_copy_4(to + c * 128, at + (lane * 4 - before) + c * 128, exists && left >= c * 128 + 4);
      }
    }
    if (!halves || kv_len - kv0 > tile_n) return true;
    strip_wait();
    copy_last_half(base + i64(own) * size, bytes, start);
    return false;
  }
  // Of lane's line, whose keys in the tile take `bytes` bytes from `at` on, the last half, if it has a word
  // of its own.
  __device__ __forceinline__ void copy_last_half(u64 at, int bytes, u32 start) const {
    const int before = Places::is_second(at) ? 2 : 0, end = bytes + before;
    if (lane < most && place(lane) < 64 && end % 4 != 0)
      strip_copy_2(start + place(lane) * pitch + (end - 2), at - before + (end - 2));
  }
  __device__ __forceinline__ void copy_elements(const LuattnParams &p, const Site &site, const Head &head,
                                                int q0, int kv0, u32 start) const {
    const int lane = opaque(this->lane);
#pragma unroll 1
    for (int i = 0; i < most; ++i) {
      if (place(i) >= 64) break;
      copy_line<Places, tile_n>(line(p, site, head, q0, place(i), kv0), start + place(i) * pitch, lane);
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
  LineFetch<Spec, Config, Shared::groups> lines;
  ColumnLoader<Spec, Config> columns;
  PipelineState<Config::stages> notes;
  u32 parity;  // of lines

  __device__ __forceinline__ BiasLoaderSm90(const LuattnParams &params, const Shared &s, int f)
      : p(params), shared(s), bias_loader(f), lane(int(threadIdx.x) % 32), lines(f, lane), notes(0), parity(1) {}

  __device__ __forceinline__ BiasMessage next_message() {
    barrier_wait(shared.messages_full(notes.stage), notes.parity);
    const BiasMessage message = BiasMessage::load(shared.bias_message(notes.stage));
    if (lane == 0) barrier_arrive(shared.messages_empty(notes.stage));
    notes.advance();
    return message;
  }
  __device__ __forceinline__ void fetch_lines(const Site &site, const typename Spec::Head &head, int q0,
                                              int kv0) {
#pragma unroll 1
    for (int g = 0; g < groups; ++g) {
      barrier_wait(shared.lines_empty(g), parity);
      if (lines.fetch(p, site, head, q0, kv0, g, shared.lines(g)))
        strip_copies_arrive(shared.lines_full(g));
      else
        barrier_arrive(shared.lines_full(g));
    }
    parity ^= 1;
  }
  __device__ __forceinline__ void run() {
    SequenceOf<Config> site(p, 0, 0);
    typename Spec::Head head;
#pragma unroll 1
    for (BiasMessage message = next_message(); !message.is_end(); message = next_message()) {
      const int q0 = message.q_tile * tile_m, kv0 = message.kv_tile() * tile_n;
      if (message.first()) {
        site = {p, message.b, message.h};
        head = Spec::head(p, site);
        if constexpr (Shared::has_lines) lines.begin(p, site, head, q0);
      }
      if constexpr (Shared::has_cols)
        if (bias_loader == Shared::bias_loaders - 1) columns.fetch(p, shared, site, head, kv0, lane);
      if constexpr (Shared::has_lines) fetch_lines(site, head, q0, kv0);
    }
  }
};
