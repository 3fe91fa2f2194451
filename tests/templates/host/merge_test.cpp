// merge_test.cpp: runs luattn_merge's kernel (around/after/merge.cuh) on partial results of softmax in double, and
// compares with the row in one step: any number of splits, parts and rows that keep nothing, whose numbers are poison,
// scores of -inf, packed sequences, and head dims that fill several warps or a part of one.
#include "host_cuda.hpp"

static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a > b ? a : b; }
static unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
  return n % 32 == 0 ? high : high << n % 32 | low >> (32 - n % 32);
}

#include "abi/philox.h"
#include "spec.cuh"

#include "around/after/merge.cuh"

struct Merge : Hoisted {
  static constexpr bool has_merge = true, merge_weighs = true;
  LUATTN_FN Real merge_factor(const LuattnParams &, const Site &, const Head &, const Row &, const Online::State &mine,
                              const Online::State &theirs) {
    return exp(mine.x[0] - max_of(mine.x[0], theirs.x[0]));
  }
  LUATTN_FN Online::State merge(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
                                const Online::State &mine, const Online::State &theirs) {
    return {{max_of(mine.x[0], theirs.x[0]), mine.x[1] * merge_factor(p, s, head, row, mine, theirs) +
                                                 theirs.x[1] * merge_factor(p, s, head, row, theirs, mine)}};
  }
};
struct MergingSpec : Mask, Score, Online, Grad, NoMods, Merge {};
static_assert(ForwardSpec<MergingSpec> && ValidMerge<MergingSpec>);

template <int Dv, bool Packed>
struct MergeConfig : Config {
  static constexpr int head_dim_v = Dv;
  static constexpr bool packed = Packed;
};

static double uniform() { return random_below(1 << 20) / double(1 << 20); }

enum { BATCH = 2, HEADS = 3, KEYS = 4 };  // KEYS: of each split

struct Case {
  int q_len, rows, splits, dim;
  std::vector<double> part_o, part_state, o, lse, want_o, want_lse;

  // A row's keys, split by split: values, and scores of which some are -inf or not kept.
  void fill_row(int row) {
    std::vector<double> sum(dim, 0.0);
    double largest = -1e37, total = 0;
    bool any = false;
    const int empty = random_below(5);  // 0: all splits; 1: all but one; else some
    struct Key {
      double score;
      std::vector<double> v;
    };
    std::vector<Key> all;
    for (int split = 0; split < splits; ++split) {
      double m = -1e37, l = 0;
      std::vector<double> part(dim, 0.0);
      const bool none = empty == 0 || (empty == 1 && split != splits / 2) || random_below(4) == 0;
      std::vector<Key> keys;
      for (int k = 0; k < KEYS && !none; ++k) {
        keys.push_back({random_below(9) == 0 ? -HUGE_VAL : 30 * uniform() - 15, {}});
        for (int d = 0; d < dim; ++d) keys[k].v.push_back(uniform() - 0.5);
        m = fmax(m, keys[k].score);
      }
      for (const Key &key : keys) {
        l += exp(key.score - m);
        for (int d = 0; d < dim; ++d) part[d] += exp(key.score - m) * key.v[d];
      }
      const size_t plane = size_t(splits) * rows, at = size_t(split) * rows + row;
      part_state[2 * plane + at] = none ? 0 : 1;
      if (none) continue;  // the rest stays poison
      part_state[at] = m, part_state[plane + at] = l;
      for (int d = 0; d < dim; ++d) part_o[at * dim + d] = part[d];
      all.insert(all.end(), keys.begin(), keys.end());
      any = true;
    }
    for (const Key &key : all) largest = fmax(largest, key.score);
    for (const Key &key : all) {
      total += exp(key.score - largest);
      for (int d = 0; d < dim; ++d) sum[d] += exp(key.score - largest) * key.v[d];
    }
    want_lse[row] = any ? largest + log(total) : -HUGE_VAL;
    for (int d = 0; d < dim; ++d) want_o[size_t(row) * dim + d] = any ? sum[d] * (1 / total) : 0;
  }
  Case(int q_len, int rows, int splits, int dim)
      : q_len(q_len),
        rows(rows),
        splits(splits),
        dim(dim),
        part_o(size_t(splits) * rows * dim, NAN),
        part_state(size_t(3) * splits * rows, NAN),
        o(size_t(rows) * dim, NAN),
        lse(rows, NAN),
        want_o(o),
        want_lse(lse) {
    for (int row = 0; row < rows; ++row) fill_row(row);
  }
  void check(const char *what) const {
    for (int row = 0; row < rows; ++row) {
      bool ok = lse[row] == want_lse[row] || fabs(lse[row] - want_lse[row]) < 1e-12;
      ok = ok || (lse[row] < -1e30 && want_lse[row] < -1e30);  // only scores of -inf
      for (int d = 0; d < dim && ok; ++d) {
        const double got = o[size_t(row) * dim + d], want = want_o[size_t(row) * dim + d];
        ok = fabs(got - want) < 1e-12 || (isnan(got) && isnan(want));
      }
      if (ok) continue;
      printf("%s: %d splits, head dim %d, row %d: lse %.17g, expected %.17g\n", what, splits, dim, row, lse[row],
             want_lse[row]);
      exit(1);
    }
  }
};

static int merged;

template <int Dv>
static void run_dense(int q_len, int splits) {
  Case c(q_len, BATCH * HEADS * q_len, splits, Dv);
  LuattnParams p{};
  p.shape = {BATCH, HEADS, HEADS, 1, q_len, 7};
  p.scale = 1;
  p.tensors.o = {c.o.data(), (long long)HEADS * q_len * Dv, (long long)q_len * Dv, Dv};
  p.tensors.lse = {c.lse.data(), (long long)HEADS * q_len, q_len, 1};
  const LuattnSplits parts{c.part_o.data(), c.part_state.data(), splits, 0};
  using C = MergeConfig<Dv, false>;
  launch([&](const LuattnParams &p) { merge_splits<MergingSpec, C>(p, parts); }, dim3(q_len, HEADS, BATCH),
         merge_threads<C>, 0, p);
  c.check("equal lengths");
  merged += c.rows;
}

// Sequences of 3, 0 and q_len rows, in a grid for the longest one.
template <int Dv>
static void run_packed(int q_len, int splits) {
  static int starts[4];
  const int total = 3 + q_len, most = q_len > 3 ? q_len : 3;
  starts[1] = starts[2] = 3, starts[3] = total;
  Case c(most, HEADS * total, splits, Dv);
  LuattnSplitListParams p{};
  p.shape = {3, HEADS, HEADS, 1, most, 7};
  p.scale = 1;
  p.packed = {starts, starts, total, total};
  p.tensors.o = {c.o.data(), 0, Dv, (long long)HEADS * Dv};
  p.tensors.lse = {c.lse.data(), 0, total, 1};
  // o is [total, heads, dim]; rows are [heads][total].
  const LuattnSplits parts{c.part_o.data(), c.part_state.data(), splits, 0};
  using C = MergeConfig<Dv, true>;
  launch([&](const LuattnSplitListParams &p) { merge_splits<MergingSpec, C>(p, parts); }, dim3(most, HEADS, 3),
         merge_threads<C>, 0, p);
  std::vector<double> by_rows(c.o.size());
  for (int t = 0; t < total; ++t)
    for (int h = 0; h < HEADS; ++h)
      for (int d = 0; d < Dv; ++d) by_rows[(size_t(h) * total + t) * Dv + d] = c.o[(size_t(t) * HEADS + h) * Dv + d];
  c.o = by_rows;
  c.check("packed");
  merged += c.rows;
}

int main() {
  for (int splits : {1, 2, 3, 8, 9, 31, 32, 33, 70}) {
    run_dense<24>(2, splits);
    run_dense<5>(3, splits);
    run_packed<24>(4, splits);
  }
  run_dense<132>(2, 11);
  run_packed<256>(1, 5);
  printf("%d rows were merged\n", merged);
}
