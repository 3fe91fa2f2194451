// sums_test.cpp: compares, with plain loops over the tile, which element of a tile each lane of each warp
// handles in sums of dS (grads/parameter_grads.cuh, sm80/parameter_grads_sm80.cuh,
// simt/parameter_grads_simt.cuh) and in per-distance computations (score/distance_terms.cuh, DistanceTable),
// for each tile shape that a plan may choose. Instructions of a whole warp are emulated. Values are small
// integers, whose sums need no rounding.
#include "host_cuda.hpp"

#include <algorithm>

using std::max;
using std::min;

#define mma_16x8x16 device_mma_16x8x16
#define ldmatrix_x4 device_ldmatrix_x4
#define ldmatrix_x4_turned device_ldmatrix_x4_turned
#define pack device_pack
#define select device_select
#include "arch/mma.cuh"
#undef mma_16x8x16
#undef ldmatrix_x4
#undef ldmatrix_x4_turned
#undef pack
#undef select

// ---- a warp's instructions ----

static float select(bool first, float a, float b) { return first ? a : b; }

static unsigned short bits_of(float x) { return (unsigned short)(std::bit_cast<uint32_t>(x) >> 16); }
static float real_of(uint32_t pair, int half) { return std::bit_cast<float>(pair >> half * 16 << 16); }
template <class Elem>
static u32 pack(float lo, float hi) {
  return bits_of(lo) | u32(bits_of(hi)) << 16;
}

// The operands of each lane of a block for the current instruction, readable until the warp continues.
static u32 handed[8 * 32][6];
static u32 (*hand(std::initializer_list<u32> mine))[6] {
  __syncwarp();
  u32 *to = handed[threadIdx.x];
  for (u32 x : mine) *to++ = x;
  __syncwarp();
  return handed + threadIdx.x / 32 * 32;
}

// Emulates ldmatrix. Lane 8 * j + i has the address of row i of matrix j. A lane gets the pair at (lane / 4,
// lane % 4 * 2) of each matrix, or of its transpose if `turned`.
static void load_parts(u32 (&r)[4], u32 address, bool turned) {
  const int lane = int(threadIdx.x) % 32;
  const u32(*const of)[6] = hand({address});
  for (int j = 0; j < 4; ++j) {
    r[j] = 0;
    for (int i = 0; i < 2; ++i) {
      const int row = turned ? lane % 4 * 2 + i : lane / 4, column = turned ? lane / 4 : lane % 4 * 2 + i;
      unsigned short x;
      memcpy(&x, dynamic_shared + of[j * 8 + row][0] + column * 2, 2);
      r[j] |= u32(x) << i * 16;
    }
  }
}
static void ldmatrix_x4(u32 (&r)[4], u32 address) { load_parts(r, address, false); }
static void ldmatrix_x4_turned(u32 (&r)[4], u32 address) { load_parts(r, address, true); }

template <class Elem>
static void mma_16x8x16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const int lane = int(threadIdx.x) % 32;
  const u32(*const of)[6] = hand({a[0], a[1], a[2], a[3], b0, b1});
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int pair = k % 8 / 2;
      c[i] += real_of(of[row % 8 * 4 + pair][row / 8 + k / 8 * 2], k % 2) *
              real_of(of[column * 4 + pair][4 + k / 8], k % 2);
    }
  }
}

#include "score/distance_terms.cuh"
#include "simt/parameter_grads_simt.cuh"
#include "sm80/parameter_grads_sm80.cuh"

// ---- a spec ----

constexpr int most = 1024;
static double at_distance[2 * most], at_row[most], at_column[most];

struct Spec {
  using Real = float;
  struct Head {};
  struct Acc {};
  static constexpr int parameter_sums = SUM_DISTANCE | SUM_ROW | SUM_COL;
  static constexpr bool has_distance_term = true, has_query_mod = false, has_key_mod = false, has_value_mod = false;
  static float distance_term(const LuattnParams &, const Site &, const Head &, Position q, Position kv) {
    return float(int(q) - int(kv));
  }
  static void add_distance(const LuattnParams &, const Site &, const Head &, int q, int kv, float g, Acc &) {
    __syncwarp();  // all lanes arrive
    if (q - kv <= -most || q - kv >= most) host_fail("a distance that no tile has");
    at_distance[most + q - kv] += g;
  }
  static void add_row(const LuattnParams &p, const Site &, const Head &, int q, float g, Acc &) {
    if (q >= p.shape.q_len) host_fail("a row past q_len");
    at_row[q] += g;
  }
  static void add_col(const LuattnParams &p, const Site &, const Head &, int kv, float g, Acc &) {
    if (kv >= p.shape.kv_len) host_fail("a column past kv_len");
    at_column[kv] += g;
  }
};

template <int M, int N, int Threads, class Type>
struct Tiles {
  using Elem = Type;
  static constexpr int tile_m = M, tile_n = N, threads = Threads, head_dim = 64, head_dim_v = 64, stages = 2;
  static constexpr bool wants_dq = true, wants_dk = true, wants_dv = true, wants_inputs = true, wants_scalars = false,
                        accumulates_dq = true, deterministic = false, dq_first_store = false, packed = false,
                        paged = false;
};

static void expect(double got, double want, const char *what) {
  if (got != want) host_fail(what);
}

// ---- checks ----

// dS^T of one tile, with zeros past the lengths.
struct Problem {
  LuattnParams p;
  int q0, kv0;
  float ds[256][256];  // of key n and query m
};

// Sums in the simt family, which uses dS untransposed. Also checks terms of all distances.
template <class Config>
static void sum_tile_simt(const Problem &x) {
  using Sums = SumsSimt<Spec, Config>;
  const Simt<Spec, Config> t;
  const SequenceOf<Config> site(x.p, 0, 0);
  const Spec::Head head;
  Spec::Acc acc;
  float *const ds = t.weights(0);
  const DistanceTable<Spec, Config> terms{t.weights(1)};
  if (threadIdx.x == 0)
    for (int m = 0; m < t.tile_m; ++m)
      for (int n = 0; n < t.tile_n; ++n) ds[m * t.weight_stride + n] = x.ds[n][m];
  terms.fill(x.p, site, head, x.q0, x.kv0);
  __syncthreads();
  Sums sums;
  sums.enter_head();
  sums.add(t, {x.p, site, head, acc, x.q0, x.kv0, ds});
  __syncthreads();
  sums.leave_head({x.p, site, head, acc, 0, x.kv0, nullptr});
  for (int r = 0; r < t.rows; ++r)
    for (int c = 0; c < t.cols; ++c)
      expect(terms.get(t.row_at(r), t.col_at(c)), x.q0 + t.row_at(r) - (x.kv0 + t.col_at(c)),
             "a term of another distance in a table");
}

template <class Config>
static void sum_tile(const Problem &x) {
  constexpr int M = Config::tile_m, N = Config::tile_n;
  using Sums = SumsSm80<Spec, Config>;
  if (threadIdx.x == 0)
    for (int n = 0; n < N; ++n)
      for (int m = 0; m < M; ++m) {
        const unsigned short b = bits_of(x.ds[n][m]);
        memcpy(dynamic_shared + SharedTile<M>::offset(u32(n), u32(m / 8)) + m % 8 * 2, &b, 2);
      }
  __syncthreads();
  const SequenceOf<Config> site(x.p, 0, 0);
  const Spec::Head head;
  Spec::Acc acc;
  const typename Sums::At at{x.p, site, head, acc, x.q0, x.kv0, int(threadIdx.x) / 32, int(threadIdx.x) % 32, 0};
  Sums sums;
  sums.enter_head();
  sums.add(at);
  __syncthreads();
  sums.leave_head(at);
}

// With only dS in shared memory, or with a kernel's complete layout.
template <int M, int N, int Threads>
static void sum(const Problem &x, bf16_t) {
  launch(sum_tile<Tiles<M, N, Threads, bf16_t>>, dim3(1), Threads, M * N * 2, x);
}
template <int M, int N, int Threads>
static void sum(const Problem &x, float) {
  const int bytes = 2 * 144 * (M + N) + 4 * M * (N + 4) + 4 * (M + N);
  launch(sum_tile_simt<Tiles<M, N, Threads, float>>, dim3(1), Threads, bytes, x);
}

template <int M, int N, int Threads, class Elem = bf16_t>
static void check_tile() {
  for (int i = 0; i < 3; ++i) {
    static Problem x;
    static double distance[2 * most], row[most], column[most];
    for (auto *of : {distance, at_distance}) memset(of, 0, sizeof distance);
    for (auto *of : {row, column, at_row, at_column}) memset(of, 0, sizeof row);
    x.q0 = random_below(4) * M, x.kv0 = random_below(4) * N;
    x.p.shape.q_len = x.q0 + (i == 0 ? M : 1 + random_below(M)),
    x.p.shape.kv_len = x.kv0 + (i == 0 ? N : 1 + random_below(N));
    for (int n = 0; n < N; ++n)
      for (int m = 0; m < M; ++m) {
        const bool there = x.q0 + m < x.p.shape.q_len && x.kv0 + n < x.p.shape.kv_len;
        const float ds = x.ds[n][m] = there ? float(random_below(15) - 7) : 0.f;
        distance[most + x.q0 + m - x.kv0 - n] += ds;
        row[x.q0 + m] += ds;
        column[x.kv0 + n] += ds;
      }
    descending = i % 2 != 0;
    sum<M, N, Threads>(x, Elem{});
    for (int d = 0; d < 2 * most; ++d) expect(at_distance[d], distance[d], "a sum at a distance");
    for (int d = 0; d < most; ++d) expect(at_row[d], row[d], "a sum of a row");
    for (int d = 0; d < most; ++d) expect(at_column[d], column[d], "a sum of a column");
  }
}

// Position of a warp's first row and of the tile's first column.
struct Place {
  int row, column;
};
template <int Rows, int Octets, bool Turned>
static void check_terms(const Place &at) {
  const int lane = int(threadIdx.x);
  const DistanceTerms<Spec, MmaFragment, Rows, Octets, Turned> terms({}, {}, {}, at.column - (at.row + 8 * Rows - 1),
                                                                     lane);
  for (int r = 0; r < Rows; ++r)
    for (int octet = 0; octet < Octets; ++octet)
      for (int odd = 0; odd < 2; ++odd) {
        const int row = at.row + r * 8 + lane / 4, column = at.column + octet * 8 + lane % 4 * 2 + odd;
        expect(terms.get(r, octet, odd), Turned ? column - row : row - column, "a term of another distance");
      }
}
template <int Rows, int Octets>
static void check_distances() {
  for (int i = 0; i < 4; ++i) {
    const Place at{random_below(500), random_below(500)};
    launch(check_terms<Rows, Octets, false>, dim3(1), 32, 0, at);
    launch(check_terms<Rows, Octets, true>, dim3(1), 32, 0, at);
  }
}

// Checks sums over 64 queries, which lanes 4g hold.
static void check_queries(const Problem &x) {
  const int lane = int(threadIdx.x), g = lane / 4, t = lane % 4;
  u32 ds[4][4];
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      const float *const key = x.ds[g + j % 2 * 8] + i * 16 + j / 2 * 8 + t * 2;
      ds[i][j] = pack<bf16_t>(key[0], key[1]);
    }
  const QuerySums<bf16_t, 64, false> sums(ds, lane);
  for (int half = 0; half < 2; ++half) {
    double sum = 0;
    for (int m = 0; m < 64; ++m) sum += x.ds[g + half * 8][m];
    expect(sums.sum[half], t == 0 ? sum : 0, "a sum over queries");
  }
}

int main() {
  check_tile<128, 128, 128>();
  check_tile<64, 128, 128>();
  check_tile<64, 128, 256>();
  check_tile<32, 128, 256>();
  check_tile<64, 64, 256>();
  check_tile<32, 32, 128>();
  check_tile<32, 64, 256>();
  check_tile<16, 128, 128>();
  check_tile<64, 64, 128, float>();
  check_tile<64, 64, 256, float>();
  check_tile<32, 32, 128, float>();
  check_tile<16, 32, 256, float>();
  check_tile<64, 32, 512, float>();
  check_tile<16, 64, 32, float>();
  check_tile<256, 16, 128, float>();
  check_distances<2, 2>();
  check_distances<2, 8>();
  check_distances<2, 16>();
  check_distances<4, 2>();
  check_distances<4, 4>();
  static Problem x;
  for (auto &key : x.ds)
    for (float &ds : key) ds = float(random_below(15) - 7);
  launch(check_queries, dim3(1), 32, 0, x);
  puts("every element is summed where it belongs");
}
