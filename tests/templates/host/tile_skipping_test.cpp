// tile_skipping_test.cpp: compares the tiles that luattn_tile_bitmap skips (around/before/tile_skipping.cuh) with all scores in
// double. In forward the skipped P of a row must sum to less than 2^-24 of the row sum; in backward no
// skipped P may exceed 2^-24 / n. Some tiles must be skipped, but only for heads with steep slopes.
#include "host_cuda.hpp"

static float fast_sqrt(float x) { return sqrtf(x) * 1.000001f; }  // with the largest error of ops/math.cuh's

#include "ops/interval.cuh"
#include "around/before/tile_skipping.cuh"

enum { HEADS = 6, HEADS_KV = 2, BATCH = 2, DIM = 24 };
static const float slopes[HEADS] = {4, 1, 0.3f, 0.002f, 0, -1};
static bool masked;  // causal, bottom-right aligned

struct Config {
  using Elem = float;
  static constexpr int head_dim = DIM, tile_m = 64, tile_n = 48;
  static constexpr bool packed = false, paged = false;
};
enum { TILE_KV = 2 * Config::tile_n };  // backward's kv tile

struct Spec {
  using Real = float;
  struct Head {};
  struct Row {};
  struct Col {};
  static constexpr bool has_tile_bits = false, has_mask = true, has_score_bounds = true, has_row_shift = true;
  static constexpr int num_block_bounds = 0;
  static int last_key(const Site &s, int q) { return masked ? q + s.kv_len - s.q_len : s.kv_len - 1; }
  static Range kv_range(const LuattnParams &, const Site &s, int, int q1) {
    return {0, max_of(min_of(last_key(s, q1) + 1, s.kv_len), 0)};
  }
  static TileClass tile_class(const LuattnParams &, const Site &s, int q0, int q1, int kv0, int kv1) {
    return kv1 <= last_key(s, q0) ? TILE_FULL : kv0 > last_key(s, q1) ? TILE_EMPTY : TILE_PARTIAL;
  }
  static Head head(const LuattnParams &, const Site &) { return {}; }
  static Row row(const LuattnParams &, const Site &, const Head &, int) { return {}; }
  static Col col(const LuattnParams &, const Site &, const Head &, int) { return {}; }
  static float score(const LuattnParams &, const Site &, const Head &, const Row &, const Col &, float dot, Position,
                     Position) {
    return dot;
  }
  static float row_shift(const LuattnParams &, const Site &s, const Head &, const Row &, Position q, Position kv) {
    return -slopes[s.h] * float(abs(int(q) + s.kv_len - s.q_len - int(kv)));
  }
  static iv score_bounds(const LuattnParams &, const Site &s, int q0, int q1, int kv0, int kv1, double least,
                         double most) {
    const ivi far = ivi_abs(ivi_sub(ivi_add(ivi_make(q0, q1), ivi_point(s.kv_len - s.q_len)), ivi_make(kv0, kv1)));
    return iv_sub(iv_make(least, most, !(most < IV_INF)), iv_mul(iv_point(slopes[s.h]), ivi_to_real(far)));
  }
};

static uint64_t state = 88172645463325252ull;
static unsigned random_below(unsigned n) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return unsigned((state >> 32) % n);
}

// Queries and keys of all heads.
struct Problem {
  LuattnParams p{};
  std::vector<float> q, k, norm_q, norm_k, lse, least_lse;
  std::vector<unsigned> visits;
  int skipped[HEADS] = {};  // number of skipped tiles per head

  double score(int b, int h, int i, int j) const {  // -inf: masked
    const Site s{b, h, p.shape.q_len, p.shape.kv_len};
    if (j > Spec::last_key(s, i)) return -INFINITY;
    const float *x = &q[((size_t(b) * HEADS + size_t(h)) * size_t(p.shape.q_len) + size_t(i)) * DIM];
    const float *y =
        &k[((size_t(b) * HEADS_KV + size_t(h / p.shape.group)) * size_t(p.shape.kv_len) + size_t(j)) * DIM];
    double dot = 0;
    for (int d = 0; d < DIM; ++d) dot += double(x[d]) * double(y[d]);
    return p.scale * dot - double(slopes[h]) * abs(i + p.shape.kv_len - p.shape.q_len - j);
  }
  bool visited(int b, int h, int row, int rows, int tiles, int tile) const {
    return TileBitmap<Spec>(p, Site{b, h, p.shape.q_len, p.shape.kv_len}, row, rows, tiles).has(tile);
  }
};

static LuattnTensor tensor(std::vector<float> &x, int heads, int len, int dim) {
  x.resize(size_t(BATCH) * size_t(heads) * size_t(len) * size_t(dim));
  return {x.data(), (long long)heads * len * dim, (long long)len * dim, dim};
}

static void make(Problem &x, int q_len, int kv_len, float loud) {
  LuattnParams &p = x.p;
  p.shape.batch = BATCH, p.shape.heads = HEADS, p.shape.heads_kv = HEADS_KV, p.shape.group = HEADS / HEADS_KV;
  p.shape.q_len = q_len, p.shape.kv_len = kv_len, p.schedule.num_splits = 1, p.scale = 0.2;
  p.tensors.q = tensor(x.q, HEADS, q_len, DIM), p.tensors.k = tensor(x.k, HEADS_KV, kv_len, DIM);
  for (float &v : x.q) v = float(random_below(2001)) / 500 - 2;
  for (float &v : x.k) v = float(random_below(2001)) / 500 - 2;
  for (int b = 0; b < BATCH * HEADS_KV; ++b)  // a distant key with a large norm
    for (int d = 0; d < DIM; ++d) x.k[(size_t(b) * size_t(kv_len) + 7) * DIM + size_t(d)] *= loud;
  const size_t q_groups = size_t(ceil_div(q_len, norm_rows)), kv_groups = size_t(ceil_div(kv_len, norm_rows));
  x.norm_q.resize(BATCH * HEADS * q_groups), x.least_lse.resize(BATCH * HEADS * q_groups);
  x.norm_k.resize(BATCH * HEADS_KV * kv_groups);
  x.visits.assign(size_t(BATCH * HEADS) * 4096, 0xdeadbeefu);
  p.scratch.norm_q = x.norm_q.data(), p.scratch.norm_k = x.norm_k.data(), p.scratch.least_lse = x.least_lse.data();
  p.scratch.tile_bitmap = x.visits.data();
}

static void check_row(Problem &x, int b, int h, int i) {
  const int q_tiles = ceil_div(x.p.shape.q_len, Config::tile_m), tiles = ceil_div(x.p.shape.kv_len, Config::tile_n);
  double best = -INFINITY, sum = 0, left_out = 0;
  for (int j = 0; j < x.p.shape.kv_len; ++j) best = fmax(best, x.score(b, h, i, j));
  for (int j = 0; j < x.p.shape.kv_len; ++j) {
    const double weight = exp(x.score(b, h, i, j) - best);
    sum += weight;
    if (!x.visited(b, h, i / Config::tile_m, q_tiles, tiles, j / Config::tile_n)) left_out += weight;
  }
  if (left_out > 0x1p-24 * sum) host_fail("a row lost more than 2^-24 of its weights");
  x.lse[size_t((b * HEADS + h) * x.p.shape.q_len + i)] = float(best + log(sum));
}

static void check_forward(Problem &x) {
  const LuattnParams &p = x.p;
  const unsigned q_tiles = unsigned(ceil_div(p.shape.q_len, Config::tile_m));
  const int tiles = ceil_div(p.shape.kv_len, Config::tile_n);
  launch(find_norms<Config, false>, dim3(unsigned(ceil_div(p.shape.kv_len, norm_threads)), HEADS_KV, BATCH),
         norm_threads, 0, p);
  launch(find_tile_bitmap_fwd<Spec, Config>, dim3(q_tiles, HEADS, BATCH), Config::tile_m, 0, p);
  x.lse.resize(size_t(BATCH * HEADS * p.shape.q_len));
  for (int b = 0; b < BATCH; ++b)
    for (int h = 0; h < HEADS; ++h) {
      for (int i = 0; i < p.shape.q_len; ++i)
        if (!masked || Spec::last_key({b, h, p.shape.q_len, p.shape.kv_len}, i) >= 0) check_row(x, b, h, i);
      for (int t = 0; t < int(q_tiles) * tiles; ++t)
        x.skipped[h] += !x.visited(b, h, t / tiles, int(q_tiles), tiles, t % tiles);
    }
}

static void check_backward(Problem &x) {
  LuattnParams &p = x.p;
  const int kv_tiles = ceil_div(p.shape.kv_len, TILE_KV), q_tiles = ceil_div(p.shape.q_len, Config::tile_m);
  const int longest = max_of(p.shape.q_len, p.shape.kv_len), words = ceil_div(q_tiles, 32);
  p.tensors.lse = {x.lse.data(), (long long)HEADS * p.shape.q_len, p.shape.q_len, 1};
  launch(find_norms<Config, true>, dim3(unsigned(ceil_div(longest, norm_threads)), HEADS, 2 * BATCH), norm_threads, 0,
         p);
  launch(find_tile_bitmap_bwd<Spec, Config, TILE_KV>, dim3(unsigned(ceil_div(kv_tiles * words, 4)), HEADS, BATCH),
         tile_bitmap_threads, 0, p);
  for (int b = 0; b < BATCH; ++b)
    for (int h = 0; h < HEADS; ++h)
      for (int i = 0; i < p.shape.q_len; ++i)
        for (int j = 0; j < p.shape.kv_len; ++j) {
          const double weight = exp(x.score(b, h, i, j) - double(x.lse[size_t((b * HEADS + h) * p.shape.q_len + i)]));
          const bool visited = x.visited(b, h, j / TILE_KV, kv_tiles, q_tiles, i / Config::tile_m);
          if (!visited && weight > 0x1p-24 / longest) host_fail("a weight was left out that matters");
        }
}

int main() {
  static const int lengths[][2] = {{200, 200}, {130, 700}, {300, 90}, {65, 1601}, {1, 500}};
  for (int i = 0; i < 20; ++i) {
    const int *n = lengths[i % 5];
    const bool loud = i >= 10;
    Problem x;
    masked = i / 5 % 2 == 0;
    descending = i % 2 != 0;
    make(x, n[0], n[1], loud ? 300.0f : 1.0f);
    x.lse.assign(size_t(BATCH * HEADS * n[0]), -INFINITY);
    check_forward(x);
    check_backward(x);
    if (n[1] < 400 || masked) continue;  // empty tiles of the mask count as skipped
    for (int h = 0; h < HEADS; ++h)
      if ((x.skipped[h] > 0) != (fabsf(slopes[h]) > 0.1f))
        host_fail("a steep head visits all tiles, or a flat one does not");
  }
  puts("what is left out does not matter");
}
