// around/before/tile_skipping.cuh: finds tiles in which P vanishes, for specs whose scores fall with positions, as
// with ALiBi (Spec::has_score_bounds). Two small kernels run before the main one of the sm90 family, which
// then computes only the remaining tiles (TileBitmap in work/tile_walk.cuh). README.md says which tiles are
// skipped, and bounds the error.
//
//     luattn_norms    for each norm_rows positions, an upper bound of |k| as the main kernel reads it; in
//                     backward also of |q|, and the least lse. One warp for each.
//                     grid (positions, heads_kv, batch), in backward (positions, heads, 2 * batch)
//     luattn_tile_bitmap    the tile bitmap: whether a weight of a tile may matter.
//                     forward: a block for each q tile, a warp for norm_rows queries of it.
//                     grid (q tiles, heads, batch)
//                     backward: a warp for 32 q tiles of a kv tile.
//                     grid (a head's, four to a block, heads, batch)
//
// |scale * q.k| is at most scale * |q| * |k|. So the norms of a tile bound its dot products, and the spec
// then bounds its scores. Backward compares the bounds with the row's lse. Forward computes, for each row,
// the scores of two keys that the row keeps and whose positions promise the best scores: the row's sum is at
// least their weights.
#pragma once
#include "abi/workspace.h"
#include "score/online_rows.cuh"
#include "arch/tensor.cuh"
#include "around/around.cuh"
#include "work/tile_walk.cuh"

static constexpr int norm_rows = LUATTN_NORM_ROWS, norm_threads = 128, tile_bitmap_threads = 128;
static_assert(norm_rows == 32, "a warp's lanes are the rows");

// ---- norms ----

// Returns an upper bound of the norm from a sum of squares. It is infinite if the sum is not finite, so that
// no score has a bound. It allows for errors of the sum and of the root, and for squares that are flushed to
// 0.
LUATTN_FN float norm_bound(float sum) {
  return sum < infinity<float>() ? fast_sqrt(sum) * 1.001f + 2e-18f : infinity<float>();
}

// The number of lanes that share a row, 8 channels each.
constexpr __device__ int lanes_of_row(int dim) {
  return dim > 128 ? 32 : dim > 64 ? 16 : dim > 32 ? 8 : dim > 16 ? 4 : dim / 8;
}

// Computes the norms of the warp's rows of one head.
template <class Elem, int Dim>
LUATTN_FN float largest_norm(const LuattnTensor &t, int b, int h, int first, int len) {
  constexpr int chunks = Dim / 8, lanes = lanes_of_row(Dim);
  constexpr int at_once = 32 / lanes;
  const u32 lane = threadIdx.x % 32, chunk = lane % lanes;
  const Elem *row = row_of<Elem>(t, b, h, first + int(lane / lanes)) + chunk * 8;
  float most = 0;
#pragma unroll 1
  for (int i = 0; i < norm_rows; i += at_once) {
    float sum = 0;
    if (chunk < chunks && first + i + int(lane / lanes) < len) {
      Pack<Elem, 8> x;
      x.load(row);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += to_real(x[j]) * to_real(x[j]);
    }
    sum = lanes_sum<lanes>(sum);
    most = max_of(most, norm_bound(sum));
    row += at_once * t.seq;
  }
  return lanes_max<32>(most);
}

// Returns the least lse of rows that keep something. A NaN gives -inf, so that nothing is skipped for it.
template <class Sequence>
LUATTN_FN float least_of_lse(const LuattnParams &p, int b, int h, int row) {
  float x = infinity<float>();
  if (row < Sequence::q_end(p))
    x = *(static_cast<const float *>(p.tensors.lse.data) + b * p.tensors.lse.batch + h * p.tensors.lse.head +
          row * p.tensors.lse.seq);
  if (x == -infinity<float>()) x = infinity<float>();
  return -lanes_max<32>(x == x ? -x : infinity<float>());
}

template <class Config, bool Backward>
LUATTN_FN void find_norms(const LuattnParams &p) {
  using Elem = typename Config::Elem;
  using Sequence = SequenceOf<Config>;
  static_assert(Sequence::is_line && !Sequence::packed && !Sequence::paged);
  const bool of_q = Backward && blockIdx.z % 2 == 0;
  const int b = int(Backward ? blockIdx.z / 2 : blockIdx.z), h = int(blockIdx.y),
            len = of_q ? Sequence::q_end(p) : Sequence::kv_end(p),
            heads = of_q ? Sequence::heads(p) : Sequence::heads_kv(p);
  const int group = int(blockIdx.x * (norm_threads / 32) + threadIdx.x / 32), first = group * norm_rows;
  if (h >= heads || first >= len) return;
  const float norm = largest_norm<Elem, Config::head_dim>(of_q ? p.tensors.q : p.tensors.k, b, h, first, len);
  const i64 at = (i64(b) * heads + h) * workspace_norms(len) + group;
  if (threadIdx.x % 32 == 0) (of_q ? p.scratch.norm_q : p.scratch.norm_k)[at] = norm;
  if (of_q) {
    const float least = least_of_lse<Sequence>(p, b, h, first + int(threadIdx.x % 32));
    if (threadIdx.x % 32 == 0) p.scratch.least_lse[at] = least;
  }
}

// ---- tile bitmap ----

// A function that is called, not inlined, because its double precision takes long to compile.
template <class Spec>
LUATTN_OUTLINED iv score_bounds(const LuattnParams &p, Site s, int q0, int q1, int kv0, int kv1, double least,
                                double most) {
  return Spec::score_bounds(p, s, q0, q1, kv0, kv1, least, most);
}

// Whether tiles of norm_rows rows lie within tiles for which the spec looks up block statistics.
template <class Spec, int TileN>
LUATTN_FN constexpr bool walks_norms() {
  if constexpr (Spec::num_block_bounds == 0)
    return true;
  else
    return Spec::walk_rows % norm_rows == 0 && TileN == Spec::walk_columns;
}

// For one query head.
template <class Spec, class Sequence, int TileN>
struct TileSkipping {
  static_assert(walks_norms<Spec, TileN>() && Sequence::is_line);
  const LuattnParams &p;
  const Sequence site;
  const float *norm_k;

  __device__ __forceinline__ TileSkipping(const LuattnParams &params, int b, int h)
      : p(params),
        site(params, b, h),
        norm_k(params.scratch.norm_k + (i64(b) * Sequence::heads_kv(params) + h / Sequence::group(params)) *
                                           workspace_norms(Sequence::kv_end(params))) {}
  // Whether the scores of these rows in the kv tile that begins at kv0 may come near `best`. All that is left
  // out of a row (in backward, of a column) adds up to less than 2^-24 of exp(best).
  __device__ __forceinline__ bool matters(int q0, int q1, float norm_q, int kv0, double best) const {
    const int kv1 = min_of(kv0 + TileN, Sequence::kv_end(p)) - 1, last = kv1 / norm_rows;
    const double margin = (24 + 32 - __clz(max_of(Sequence::q_end(p), Sequence::kv_end(p)))) * 0.69314718055994531;
    float k = 0;
#pragma unroll
    for (int i = 0; i <= ceil_div(TileN, norm_rows); ++i) k = max_of(k, norm_k[min_of(kv0 / norm_rows + i, last)]);
    const double most = p.scale * double(norm_q) * double(k);
    const iv score = score_bounds<Spec>(p, site, q0, q1, kv0, kv1, -most, most);
    return score.nan || !(score.hi < best - margin);
  }
};

// ---- forward ----

// Returns the score of row q for a dot product of 0, relative to others of this row. It only serves to choose
// a key, and proves nothing.
template <class Spec>
LUATTN_FN float rough_score(const LuattnParams &p, const Site &s, const typename Spec::Head &head,
                            typename Spec::Row row, int q, int key) {
  const Position at{q, 0}, kv{key, 0};
  float score = Spec::score(p, s, head, row, Spec::col(p, s, head, kv), 0.0f, at, kv);
  if constexpr (Spec::has_row_shift) score += Spec::row_shift(p, s, head, row, at, kv);
  return score;
}

// Finds a key that all of these rows keep, with the best rough score of a few probes: at 32 keys, then at 32
// around the best of them, and so on. Returns -1 if no probe found a key that all rows keep.
template <class Spec>
LUATTN_FN int best_key(const LuattnParams &p, const Site &s, int q0, int q1) {
  const Range keys = kept_keys<Spec>(p, s, q0, q1);
  const typename Spec::Head head = Spec::head(p, s);
  const typename Spec::Row row = Spec::row(p, s, head, q1);
  int step = max_of(ceil_div(keys.hi - keys.lo, 32), 1), from = keys.hi - 1 - 31 * step, best = -1;
#pragma unroll 1
  for (;;) {
    const int key = from + int(threadIdx.x % 32) * step;
    float score = -infinity<float>();
    if (key >= keys.lo && key < keys.hi && class_of<Spec>(p, s, q0, q1, key, key) == TILE_FULL)
      score = max_of(score, rough_score<Spec>(p, s, head, row, q1, key));
    const float most = lanes_max<32>(score);
    const u32 found = __ballot_sync(0xffffffffu, score == most && score > -infinity<float>());
    if (found != 0) best = from + (31 - __clz(int(found))) * step;
    if (best < 0 || step == 1) return best;
    step = ceil_div(step, 16);
    from = best - 16 * step;
  }
}

// For this lane's row (first + lane, at most the last row): its |q|, and its dot products with two keys.
struct RowDots {
  float norm, dot[2];
};
template <class Elem, int Dim, class Sequence>
LUATTN_FN RowDots two_dots_of_rows(const LuattnParams &p, const Sequence &s, int first, int last, const int (&key)[2]) {
  constexpr int lanes = lanes_of_row(Dim);
  const int lane = int(threadIdx.x % lanes), group = int(threadIdx.x % 32) - lane, channel = lane * 8;
  const bool inside = channel < Dim;
  float k[2][8];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    Pack<Elem, 8> x;
    if (inside) x.load(row_of<Elem>(p.tensors.k, s.b, s.kv_head(p), key[i]) + channel);
#pragma unroll
    for (int j = 0; j < 8; ++j) k[i][j] = inside ? to_real(x[j]) : 0.0f;
  }
  const Elem *q = row_of<Elem>(p.tensors.q, s.b, s.h, 0) + channel;
  RowDots mine = {0, {0, 0}};
#pragma unroll 1
  for (int i = 0; i < lanes; ++i) {
    float sum = 0, dot[2] = {0, 0};
    if (inside) {
      Pack<Elem, 8> x;
      x.load(q + i64(min_of(first + group + i, last)) * p.tensors.q.seq);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float y = to_real(x[j]);
        sum += y * y;
        dot[0] += y * k[0][j];
        dot[1] += y * k[1][j];
      }
    }
    sum = lanes_sum<lanes>(sum), dot[0] = lanes_sum<lanes>(dot[0]), dot[1] = lanes_sum<lanes>(dot[1]);
    if (lane == i) mine = {norm_bound(sum), {dot[0], dot[1]}};
  }
  return mine;
}

// Returns a lower bound of each row's best score: the better one of two keys.
template <class Spec, class Config, int TileN>
LUATTN_FN double score_of_rows(const TileSkipping<Spec, SequenceOf<Config>, TileN> &skipping, int q0, int q1,
                               float &norm) {
  const LuattnParams &p = skipping.p;
  const SequenceOf<Config> &s = skipping.site;
  const int found = best_key<Spec>(p, s, q0, q1);
  int key[2] = {max_of(found, 0), max_of(found - 1, 0)};
  if (class_of<Spec>(p, s, q0, q1, key[1], key[1]) != TILE_FULL) key[1] = key[0];
  const RowDots x = two_dots_of_rows<typename Config::Elem, Config::head_dim>(p, s, q0, q1, key);
  norm = lanes_max<32>(x.norm);
  if (found < 0) return -IV_INF;
  const bool second = x.dot[1] > x.dot[0];
  const int at = second ? key[1] : key[0], row = min_of(q0 + int(threadIdx.x % 32), q1);
  // the kernel adds in another order
  const double dot = p.scale * double(second ? x.dot[1] : x.dot[0]),
               error = p.scale * double(x.norm) * double(skipping.norm_k[at / norm_rows]) * 0x1p-12;
  const iv score = score_bounds<Spec>(p, s, row, row, at, at, dot - error, dot + error);
  return double(-lanes_max<32>(score.nan ? infinity<float>() : -float(score.lo)));
}

template <class Spec, class Config>
LUATTN_FN void find_tile_bitmap_fwd(const LuattnParams &p) {
  constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, warps = tile_m / norm_rows;
  __shared__ u32 part[warps];
  using Sequence = SequenceOf<Config>;
  const TileSkipping<Spec, Sequence, tile_n> skipping(p, int(blockIdx.z), int(blockIdx.y));
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int q0 = int(blockIdx.x * tile_m + warp * norm_rows), q1 = min_of(q0 + norm_rows, Sequence::q_end(p)) - 1;
  double best = 0;
  float norm = 0;
  Range keys = {0, 0};
  if (q0 < Sequence::q_end(p)) {
    best = score_of_rows<Spec, Config>(skipping, q0, q1, norm);
    keys = kept_keys<Spec>(p, skipping.site, q0, q1);
  }
  const int words = workspace_words(ceil_div(Sequence::kv_end(p), tile_n));
  u32 *out = p.scratch.tile_bitmap +
             ((i64(skipping.site.b) * Sequence::heads(p) + skipping.site.h) * gridDim.x + blockIdx.x) * words;
#pragma unroll 1
  for (int w = 0; w < words; ++w) {
    const int kv0 = (w * 32 + int(lane)) * tile_n;
    const bool computed = kv0 < keys.hi && kv0 + tile_n > keys.lo && skipping.matters(q0, q1, norm, kv0, best);
    const u32 bits = __ballot_sync(0xffffffffu, computed);
    if (lane == 0) part[warp] = bits;
    __syncthreads();
    if (threadIdx.x == 0) {
      u32 all = 0;
      for (int i = 0; i < warps; ++i) all |= part[i];
      out[w] = all;
    }
    __syncthreads();
  }
}

// ---- backward ----

// TileN is the size of the kv tiles that the main kernel walks.
template <class Spec, class Config, int TileN>
LUATTN_FN void find_tile_bitmap_bwd(const LuattnParams &p) {
  constexpr int tile_m = Config::tile_m;
  using Sequence = SequenceOf<Config>;
  const TileSkipping<Spec, Sequence, TileN> skipping(p, int(blockIdx.z), int(blockIdx.y));
  const u32 words = u32(workspace_words(ceil_div(Sequence::q_end(p), tile_m))),
            kv_tiles = u32(ceil_div(Sequence::kv_end(p), TileN)),
            index = blockIdx.x * (tile_bitmap_threads / 32) + threadIdx.x / 32, kv_tile = index / words;
  if (kv_tile >= kv_tiles) return;
  const i64 head = i64(skipping.site.b) * Sequence::heads(p) + skipping.site.h,
            groups = head * workspace_norms(Sequence::q_end(p));
  const int first = int((index - kv_tile * words) * 32 + threadIdx.x % 32) * tile_m;
  bool computed = false;
#pragma unroll 1
  for (int q0 = first; q0 < min_of(first + tile_m, Sequence::q_end(p)) && !computed; q0 += norm_rows) {
    const i64 group = groups + q0 / norm_rows;
    computed = skipping.matters(q0, min_of(q0 + norm_rows, Sequence::q_end(p)) - 1, p.scratch.norm_q[group],
                                int(kv_tile) * TileN, double(p.scratch.least_lse[group]));
  }
  const u32 bits = __ballot_sync(0xffffffffu, computed);
  if (threadIdx.x % 32 == 0) p.scratch.tile_bitmap[head * kv_tiles * words + index] = bits;
}
