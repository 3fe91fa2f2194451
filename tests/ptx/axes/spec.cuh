// spec.cuh: for axes_test.c: positions with two axes, y and x, under the kernels of the sm90 family, with nothing of
// these kernels changed. The functions are those of templates/example, the mask keeps keys within REACH_Y and REACH_X
// of a query.
//
// A tile is a box of the grid, x fastest: 8 x 8 for 64 positions, 8 x 16 for 128. Queries, and in backward keys, are
// counted by the boxes of a lattice from 0 on, which may reach past the grid on both axes. In forward the boxes of keys
// begin where the range of the q tile begins.
#pragma once
#include "score/online_rows.cuh"
#include "line_spec.cuh"  // templates/example/spec.cuh with the name LineSpec for its Spec
#include "tma/bulk_copies.cuh"
#include "tma/warp_q_tiles.cuh"
#include "work/sequence.cuh"

struct Place {
  int y, x;
};
LUATTN_FN constexpr int box_x(int size) { return size == 64 ? 8 : 16; }
LUATTN_FN constexpr int box_y(int size) { return size / box_x(size); }

// A grid in boxes of Size positions.
template <int Y, int X, int Size>
struct Lattice {
  static constexpr int across = (X + box_x(Size) - 1) / box_x(Size), down = (Y + box_y(Size) - 1) / box_y(Size);
  static constexpr int tiles = across * down, slots = tiles * Size;
  LUATTN_FN Place at(int slot) {
    const int tile = slot / Size, row = slot % Size;
    return {tile / across * box_y(Size) + row / box_x(Size), tile % across * box_x(Size) + row % box_x(Size)};
  }
  LUATTN_FN bool has(Place at) { return at.y < Y && at.x < X; }
  LUATTN_FN int row(Place at) { return at.y * X + at.x; }
};
using Queries = Lattice<Q_Y, Q_X, Config::tile_m>;
using KeysOfLattice = Lattice<K_Y, K_X, KEYS>;  // KEYS: of a tile of backward's walk

// ---- keys of forward ----

struct FreeBox {
  int y, x;  // where it begins; y -1: none
  __device__ __forceinline__ bool valid() const { return y >= 0; }
  LUATTN_FN constexpr FreeBox none() { return {-1, 0}; }
};
struct BoxKey {
  FreeBox box;
  int column;
  __device__ __forceinline__ BoxKey operator+(int more) const { return {box, column + more}; }
  __device__ __forceinline__ Place at() const {
    return {box.y + column / box_x(Config::tile_n), box.x + column % box_x(Config::tile_n)};
  }
  __device__ __forceinline__ operator int() const { return KeysOfLattice::row(at()); }  // for hooks that read none
};
struct BoxKeyPlace {
  BoxKey base;
  int offset;
  __device__ __forceinline__ operator Position() const { return {int(base), offset}; }
};

// ---- the Sequence ----

struct AxesBox {
  int y, x, entry;
};
struct AllQueries {};
LUATTN_FN bool operator<(int slot, AllQueries) { return Queries::has(Queries::at(slot)); }
struct KeysOfQuery {
  bool any;
};
LUATTN_FN bool operator<(int slot, KeysOfQuery keys) { return keys.any && KeysOfLattice::has(KeysOfLattice::at(slot)); }

template <class Elem, class Of>
struct AxesRows {
  enum : bool { is_line = false };
  Elem *data;
  i64 seq;
  int first;  // from which on slots are counted
  __device__ __forceinline__ bool has(int slot) const { return Of::has(Of::at(first + slot)); }
  __device__ __forceinline__ Elem *row(int slot) const { return data + Of::row(Of::at(first + slot)) * seq; }
  __device__ __forceinline__ Elem *row_if(bool exists, int slot) const { return exists ? row(slot) : data; }
  __device__ __forceinline__ int clamped(int slot) const { return has(slot) ? slot : -first; }  // slot 0 exists
  __device__ __forceinline__ Elem *element(int slot, int d, long long) const { return row(slot) + d; }
  __device__ __forceinline__ AxesRows from(int slot) const { return {data, seq, first + slot}; }
  __device__ __forceinline__ Elem *element(int slot, int d) const { return row(slot) + d; }
};

struct AxesSite : Site {
  enum : bool { is_line = false };
  using Site::Site;
  using KeyTile = FreeBox;
  using Key = BoxKey;
  using KeyPlace = BoxKeyPlace;
  template <int>
  LUATTN_FN Key first_key(KeyTile tile) {
    return {tile, 0};
  }

  LUATTN_FN bool has_query(const LuattnParams &, int slot) { return Queries::has(Queries::at(slot)); }
  LUATTN_FN bool has_key(const LuattnParams &, int slot) { return KeysOfLattice::has(KeysOfLattice::at(slot)); }
  LUATTN_FN bool has_key(const LuattnParams &, const Key &key) { return KeysOfLattice::has(key.at()); }
  // Of a tile, or of a part of one that is a box: its last position is the last one on both axes.
  LUATTN_FN bool has_queries(const LuattnParams &p, int first, int count) { return has_query(p, first + count - 1); }
  LUATTN_FN bool has_keys(const LuattnParams &p, int first, int count) { return has_key(p, first + count - 1); }
  LUATTN_FN int last_query(const LuattnParams &, int first, int count) { return first + count - 1; }
  LUATTN_FN int clamped_query(const LuattnParams &p, int slot) { return has_query(p, slot) ? slot : 0; }
  LUATTN_FN int clamped_key(const LuattnParams &p, int slot) { return has_key(p, slot) ? slot : 0; }
  LUATTN_FN Key clamped_key(const LuattnParams &p, const Key &key) { return has_key(p, key) ? key : Key{{0, 0}, 0}; }
  LUATTN_FN AllQueries queries(const LuattnParams &) { return {}; }
  LUATTN_FN KeysOfQuery keys_of(const LuattnParams &p, int slot) { return {has_query(p, slot)}; }
  __device__ __forceinline__ bool never() const { return q_len < 0; }
  LUATTN_FN int kept_q_end(const LuattnParams &) { return Queries::slots; }
  LUATTN_FN int kept_kv_end(const LuattnParams &) { return KeysOfLattice::slots; }
};

struct AxesSequence : DenseArrays<AxesSequence, AxesSite> {
  using Params = LuattnParams;
  enum : bool { packed = false, paged = false };
  enum : int { first_q = 0, first_kv = 0 };
  AxesSequence() = default;
  __device__ __forceinline__ AxesSequence(const LuattnParams &, int b, int h)
      : DenseArrays(b, h, Q_Y * Q_X, K_Y * K_X) {}
  __device__ __forceinline__ void move_to(const LuattnParams &, int entry, int head) { b = entry, h = head; }
  LUATTN_FN int q_end(const LuattnParams &) { return Queries::slots; }
  LUATTN_FN int kv_end(const LuattnParams &) { return KeysOfLattice::slots; }
  LUATTN_FN int longest_q(const LuattnParams &) { return Queries::slots; }
  __device__ __forceinline__ const AxesSequence &reread() const { return *this; }
  __device__ __forceinline__ AxesSequence of_head(const LuattnParams &p, int head) const { return {p, b, head}; }

  template <class Elem>
  __device__ __forceinline__ AxesRows<Elem, Queries> q_rows(const LuattnParams &, const LuattnTensor &t) const {
    return {static_cast<Elem *>(t.data) + b * t.batch + h * t.head, t.seq, 0};
  }
  template <class Elem>
  __device__ __forceinline__ AxesRows<Elem, KeysOfLattice> kv_rows(const LuattnParams &, const LuattnTensor &t,
                                                                   int h_kv) const {
    return {static_cast<Elem *>(t.data) + b * t.batch + h_kv * t.head, t.seq, 0};
  }
  template <class Elem>
  __device__ __forceinline__ Elem *q_row(const LuattnParams &p, const LuattnTensor &t, int slot) const {
    return q_rows<Elem>(p, t).row(slot);
  }
  template <class Elem>
  __device__ __forceinline__ Elem *nearest_q_row(const LuattnParams &p, const LuattnTensor &t,
                                                 const Position &slot) const {
    return q_row<Elem>(p, t, clamped_query(p, slot));
  }
  template <class Elem>
  __device__ __forceinline__ Elem *kv_row(const LuattnParams &p, const LuattnTensor &t, int h_kv, int slot) const {
    return kv_rows<Elem>(p, t, h_kv).row(slot);
  }
  template <class Elem>
  __device__ __forceinline__ Elem *kv_row(const LuattnParams &p, const LuattnTensor &t, int h_kv,
                                          const Key &key) const {
    return kv_rows<Elem>(p, t, h_kv).data + KeysOfLattice::row(key.at()) * t.seq;
  }
  __device__ __forceinline__ i64 q_index(const LuattnParams &p, int slot) const {
    return (i64(b) * heads(p) + h) * (Q_Y * Q_X) + Queries::row(Queries::at(slot));
  }
  __device__ __forceinline__ i64 q_count(const LuattnParams &p) const { return i64(batch(p)) * heads(p) * (Q_Y * Q_X); }
  __device__ __forceinline__ AxesBox q_box(const LuattnParams &, int slot) const {
    const Place at = Queries::at(slot);
    return {at.y, at.x, b};
  }
  __device__ __forceinline__ AxesBox kv_box(const LuattnParams &, int slot) const {
    const Place at = KeysOfLattice::at(slot);
    return {at.y, at.x, b};
  }
  __device__ __forceinline__ AxesBox kv_box(const LuattnParams &, const Key &key) const {
    return {key.at().y, key.at().x, b};
  }
};
template <>
struct SequenceKind<Config> {
  using type = AxesSequence;
};

// ---- the source: boxes by TMA, with the axes channel, x, y, head and entry ----

LUATTN_FN void tensor_load(u32 dst, const LuattnTensorMap &map, u32 barrier, int channel, AxesBox box, int head) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6, %7}], [%2];" ::"r"(dst),
      "l"(&map), "r"(barrier), "r"(channel), "r"(box.x), "r"(box.y), "r"(head), "r"(box.entry)
      : "memory");
}
LUATTN_FN void tensor_prefetch(const LuattnTensorMap &map, int channel, AxesBox box, int head) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(&map), "r"(channel),
               "r"(box.x), "r"(box.y), "r"(head), "r"(box.entry)
               : "memory");
}
LUATTN_FN void tensor_store(u32 src, const LuattnTensorMap &map, int channel, AxesBox box, int head) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
               "r"(src), "r"(channel), "r"(box.x), "r"(box.y), "r"(head), "r"(box.entry)
               : "memory");
}

// ---- the mask and the walks ----

LUATTN_FN bool is_near(Place q, Place kv) {
  return q.y - kv.y <= REACH_Y && kv.y - q.y <= REACH_Y && q.x - kv.x <= REACH_X && kv.x - q.x <= REACH_X;
}
// Positions lo .. hi - 1 of an axis: those within reach of some of `of`, and the classes of a pair of such ranges.
LUATTN_FN Range near(Range of, int reach, int extent) {
  return {max_of(of.lo - reach, 0), min_of(of.hi + reach, extent)};
}
LUATTN_FN bool all_near(Range a, Range b, int reach) { return a.hi - 1 - b.lo <= reach && b.hi - 1 - a.lo <= reach; }

// The positions of a box along each axis, those that exist.
struct Ranges {
  Range y, x;
};
template <int Y, int X, int Size>
LUATTN_FN Ranges ranges_at(Place first) {
  return {{first.y, min_of(first.y + box_y(Size), Y)}, {first.x, min_of(first.x + box_x(Size), X)}};
}
LUATTN_FN bool all_near(const Ranges &a, const Ranges &b) {
  return all_near(a.y, b.y, REACH_Y) && all_near(a.x, b.x, REACH_X);
}

// The kv tiles of a q tile: free boxes from the begin of its range on.
struct AxesKvWalk {
  static constexpr int size = Config::tile_n;
  Ranges q, kv;
  int across, count, next_tile;

  __device__ __forceinline__ AxesKvWalk(const LuattnParams &, const AxesSequence &, int q_tile)
      : q(ranges_at<Q_Y, Q_X, Config::tile_m>(Queries::at(q_tile * Config::tile_m))), next_tile(0) {
    kv = {near(q.y, REACH_Y, K_Y), near(q.x, REACH_X, K_X)};
    across = ceil_div(kv.x.hi - kv.x.lo, box_x(size));
    count = kv.y.lo < kv.y.hi && kv.x.lo < kv.x.hi ? across * ceil_div(kv.y.hi - kv.y.lo, box_y(size)) : 0;
  }
  __device__ __forceinline__ int most() const { return count; }
  __device__ __forceinline__ TileOf<FreeBox> next(const LuattnParams &, const Site &) {
    if (next_tile >= count) return {FreeBox::none(), false};
    const FreeBox box{kv.y.lo + next_tile / across * box_y(size), kv.x.lo + next_tile % across * box_x(size)};
    ++next_tile;
    const Ranges of = ranges_at<K_Y, K_X, size>({box.y, box.x});
    const bool inside = box.y + box_y(size) <= K_Y && box.x + box_x(size) <= K_X;
    return {box, !inside || !all_near(q, of)};
  }
};
// The q tiles of a kv tile of TileN keys, of the lattice.
template <int TileN>
struct AxesQWalk {
  static constexpr int size = Config::tile_m;
  using Lattice = ::Lattice<K_Y, K_X, TileN>;
  Ranges kv;
  Range down, across, todo;
  u32 halves;

  __device__ __forceinline__ AxesQWalk() : down{0, 0}, across{0, 0}, todo{0, 0}, halves(0) {}
  __device__ __forceinline__ explicit AxesQWalk(int kv_tile)
      : kv(ranges_at<K_Y, K_X, TileN>(Lattice::at(kv_tile * TileN))), halves(0) {
    const Range y = near(kv.y, REACH_Y, Q_Y), x = near(kv.x, REACH_X, Q_X);
    down = {y.lo / box_y(size), ceil_div(max_of(y.hi, 0), box_y(size))};
    across = {x.lo / box_x(size), ceil_div(max_of(x.hi, 0), box_x(size))};
    const bool any = y.lo < y.hi && x.lo < x.hi;
    todo = {0, any ? (down.hi - down.lo) * (across.hi - across.lo) : 0};
  }
  __device__ __forceinline__ AxesQWalk(const LuattnParams &p, const AxesSequence &s, int kv_tile, QShare share)
      : AxesQWalk(kv_tile) {
    todo = share.of(p, todo, s.h);
  }
  // Whether a q tile is one of them.
  LUATTN_FN bool has(const LuattnParams &, const AxesSequence &, int kv_tile, int q_tile) {
    const AxesQWalk walk(kv_tile);
    const int y = q_tile / Queries::across, x = q_tile % Queries::across;
    return walk.todo.hi > 0 && y >= walk.down.lo && y < walk.down.hi && x >= walk.across.lo && x < walk.across.hi;
  }
  __device__ __forceinline__ Tile next(const LuattnParams &, const Site &) {
    if (todo.lo >= todo.hi) return {-1, false};
    const int width = across.hi - across.lo, y = down.lo + todo.lo / width, x = across.lo + todo.lo % width;
    ++todo.lo;
    const Ranges q = ranges_at<Q_Y, Q_X, size>({y * box_y(size), x * box_x(size)});
    const bool inside = (y + 1) * box_y(size) <= Q_Y && (x + 1) * box_x(size) <= Q_X &&
                        kv.y.hi - kv.y.lo == box_y(TileN) && kv.x.hi - kv.x.lo == box_x(TileN);
    return {y * Queries::across + x, !inside || !all_near(q, kv)};
  }
};
template <class Spec, int TileM, int TileN>
struct KvTilesKind<Spec, AxesSequence, TileM, TileN> {
  using type = AxesKvWalk;
};
template <class Spec, int TileM, int TileN>
struct QTilesKind<Spec, AxesSequence, TileM, TileN> {
  using type = AxesQWalk<TileN>;
};
template <class Spec, int TileM, int TileN>
struct WarpKvTilesKind<Spec, AxesSequence, TileM, TileN> {
  using type = AxesKvWalk;
};
template <class Spec, int TileM, int TileN, bool Halves, bool Whole>
struct WarpQTilesKind<Spec, AxesSequence, TileM, TileN, Halves, Whole> {
  using type = AxesQWalk<TileN>;
};

// With INTERVALS: bits of a thread's keys for its two queries (forward), and of its queries for two keys (backward).
template <class Spec, class Fragment, int TileN, int Cols>
LUATTN_FN void find_kept_keys(const LuattnParams &p, const AxesSequence &s, const int (&query)[2], const BoxKey &first,
                              KeepBits<Cols> (&keep)[2]) {
#pragma unroll 1
  for (int j = 0; j < Cols; ++j) {
    const BoxKey key = first + Fragment::column_of(j);
#pragma unroll
    for (int r = 0; r < 2; ++r) keep[r].set(j, s.has_key(p, key) && is_near(Queries::at(query[r]), key.at()));
  }
}
template <class Spec, class Fragment, int TileM, int Cols>
LUATTN_FN void find_kept_queries(const LuattnParams &p, const AxesSequence &s, int key, int q0,
                                 KeepBits<Cols> (&keep)[2]) {
#pragma unroll 1
  for (int j = 0; j < Cols; ++j) {
    const int q = q0 + Fragment::column(int(threadIdx.x) % 32, j);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int kv = key + half * Fragment::row_of(1);
      keep[half].set(j, s.has_key(p, kv) && s.has_query(p, q) && is_near(Queries::at(q), KeysOfLattice::at(kv)));
    }
  }
}

struct NearMask : Hoisted, NoDataPart, NoBlockBounds, NoTileBits {
  static constexpr bool has_mask = true, keep_is_cheap = CHEAP, only_keep_reads_row = true, row_from_start = true;
  static constexpr int row_intervals = INTERVALS, row_period = 0, column_intervals = INTERVALS, column_period = 0;
  LUATTN_FN bool keep(const LuattnParams &, const Site &, const Head &, const Row &, const Col &, int q,
                      const BoxKey &kv) {
    return is_near(Queries::at(q), kv.at());
  }
  LUATTN_FN bool keep(const LuattnParams &, const Site &, const Head &, const Row &, const Col &, int q, int kv) {
    return is_near(Queries::at(q), KeysOfLattice::at(kv));
  }
  // No walk along a line asks these.
  LUATTN_FN TileClass tile_class(const LuattnParams &, const Site &, int, int, int, int) { return TILE_PARTIAL; }
  LUATTN_FN Range kv_range(const LuattnParams &, const Site &, int, int) { return {0, 0}; }
  LUATTN_FN Range q_range(const LuattnParams &, const Site &, int, int) { return {0, 0}; }
#if INTERVALS > 0
  LUATTN_FN Range row_interval(const LuattnParams &, const Site &, int) { return {0, 0}; }
  LUATTN_FN Range column_interval(const LuattnParams &, const Site &, int) { return {0, 0}; }
#endif
};
// Scores of backward are larger by SHIFT, and so is the lse that it is given. A query that does not exist has the numbers
// of an lse of 0, so its weights are no floats, and whoever takes it for one that exists gives NaN.
struct ShiftedGrad : Grad {
  template <bool WithInputs>
  LUATTN_FN void grad(const LuattnParams &, const Site &, const Head &head, const Row &, const Col &, const BwdRow &row,
                      Real dot, Real dp, Position, Position, Real, Real &prob, Real &ds, Acc &) {
    prob = power_of_two(dot * head.scale_log2 + Real(SHIFT * 1.4426950408889634) - row.x[0]);
    ds = prob * (dp - row.x[1]);
  }
};
struct Spec : NearMask, Score, Online, ShiftedGrad, NoMods {};
