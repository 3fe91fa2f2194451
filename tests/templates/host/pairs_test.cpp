// pairs_test.cpp: tests which elements of a pair bias gradient a warp of the sm90 backward adds its dS to
// (grads/pair_bias_grad.cuh). Gradient rows begin anywhere, are longer or shorter than the keys, and have the
// strides of the input's other axes. Tiles end past the queries or the keys, and have their own elements or
// share them. Covers deterministic (EXAMPLE_DETERMINISTIC) and other kernels. Instructions are emulated:
// misaligned writes, and writes outside of the gradient, fail.
#include "host_cuda.hpp"

#include <algorithm>
#include <climits>
#include <cmath>
#include <map>

using std::max;
using std::min;
struct Config {
  static constexpr bool deterministic = EXAMPLE_DETERMINISTIC != 0;
};
#include "ops/input.cuh"

// ---- the gradient's memory ----

// The gradient has no memory, because an axis between queries and keys may set queries further apart than any
// memory allows. A map holds the written elements.
struct Place {
  float value;
  int adds, stores;
};
struct Written {
  float sum;  // sum of a tile's values
  int times;
  bool operator==(const Written &) const = default;
};
static u64 grad_begin, grad_end;
static std::map<i64, Place> memory;
static std::map<i64, Written> written;  // elements that a tile wrote
static int fours_stored, fours_added, singles;

static i64 element_at(const float *to, u64 bytes) {
  const u64 at = u64(to);
  if (at % bytes != 0) host_fail("a misaligned write");
  if (at < grad_begin || at + bytes > grad_end) host_fail("a write outside the gradient");
  return i64(at - grad_begin) / 4;
}
// If a tile stores an element, no other tile may add to the element, not even zero: the two are unordered.
static void write(i64 element, float x, bool store) {
  Place &place = memory[element];
  if (place.stores > 0 || (store && place.adds > 0)) host_fail("an element is stored that another write has, too");
  place.value = store ? x : place.value + x;
  ++(store ? place.stores : place.adds);
  written[element].sum += x;
  ++written[element].times;
}

#define LUATTN_PAIR_BIAS_STORES_CUH
template <bool Store>
static void put_four(float *to, const float (&x)[4], float factor) {
  const i64 first = element_at(to, 16);
  ++(Store ? fours_stored : fours_added);
  for (int i = 0; i < 4; ++i) write(first + i, x[i] * factor, Store);
}
static void add_global(float *to, float x, float factor) {
  ++singles;
  write(element_at(to, 4), x * factor, false);
}
#include "work/positions.cuh"
#include "grads/pair_bias_grad.cuh"

// ---- an input ----

// The axes of an input. The last axis is keys: key kv adds to element kv + shift.
enum Layout {
  HEADS,    // heads, queries
  BATCHES,  // batches, heads, queries
  SHARED,   // queries; all heads add to the same elements
  APART     // heads, queries, and an axis on which each head has one index
};
// A deterministic kernel has another path for elements that are not aligned in fours.
constexpr bool one_by_one = !Config::deterministic;
constexpr int input_of(Layout layout) { return layout == BATCHES ? 2 : 0; }
constexpr int axes_of(Layout layout) { return layout == SHARED ? 2 : layout == BATCHES || layout == APART ? 4 : 3; }

struct Given {
  LuattnParams p;
  Layout layout;
  int shift, third;  // third: the head's index on the additional axis of APART
  float factor;
  bool unwanted;
  LuattnInput &input() { return p.inputs.input[input_of(layout)]; }
  const LuattnInput &input() const { return p.inputs.input[input_of(layout)]; }
  int lines() const { return input().size[axes_of(layout) - 1]; }  // length of a gradient row
};

// The hook, as gen/emit writes it.
template <Layout L>
struct Spec {
  struct Head {
    int shift, third;
    float factor;
  };
  static constexpr int pair_grads_input = input_of(L);
  static GradRow<float> pair_grad_row(const LuattnParams &p, const Site &s, const Head &head, int q, int kv) {
    const LuattnInput &in = p.inputs.input[pair_grads_input];
    const float factor = head.factor;
    const int key = kv + head.shift;
    if constexpr (L == HEADS) return grad_row<float, 1>(in, factor, s.h, q, key);
    if constexpr (L == BATCHES) return grad_row<float, 2>(in, factor, s.b, s.h, q, key);
    if constexpr (L == SHARED) return grad_row<float, 0>(in, factor, q, key);
    if constexpr (L == APART) return grad_row<float, 1>(in, factor, s.h, q, head.third, key);
  }
};

// ---- what is expected ----

static float ds_of(const Given &x, const Site &site, int q, int kv) {
  if (q >= x.p.shape.q_len || kv >= x.p.shape.kv_len) return 0;
  const u64 element = ((u64(site.b) * 64 + site.h) * 4096 + q) * 4096 + kv;
  const int number = int((element * 0x9e3779b97f4a7c15ull >> 40) % 511) - 255;
  return float(number == 0 ? 256 : number);
}

static int to_axis(int i, int size) { return i < 0 ? 0 : i >= size ? size - 1 : i; }

// Returns the element of a query and an index in its row. Queries past the end use the last query's row.
static i64 element_of(const Given &x, const Site &site, int q, int place) {
  const LuattnInput &in = x.input();
  const int key = to_axis(place, x.lines());
  const i64 h = site.h;
  switch (x.layout) {
    case SHARED:
      return i64(min(q, x.p.shape.q_len - 1)) * in.size[1] + key;
    case BATCHES:
      return ((i64(site.b) * in.size[1] + h) * in.size[2] + min(q, x.p.shape.q_len - 1)) * in.size[3] + key;
    case APART:
      return ((h * in.size[1] + min(q, x.p.shape.q_len - 1)) * in.size[2] + x.third) * in.size[3] + key;
    default:
      return (h * in.size[1] + min(q, x.p.shape.q_len - 1)) * in.size[2] + key;
  }
}

// Returns the index of the tile's first key for additions in fours. Past the last key it is clamped.
static int first_four(const Given &x, int kv0) {
  return Config::deterministic || kv0 < x.p.shape.kv_len ? kv0 + x.shift : x.lines() - 16;
}
// A gradient with exact sums has no gradient rows in a deterministic kernel.
static bool has_lines(const Given &x) { return !Config::deterministic || x.input().exact == nullptr; }

enum Way { NOTHING, STORES, FOURS, ONE_BY_ONE, REFUSED };
static Way way_of(const Given &x, int q0, int rows, int kv0) {
  const int first = first_four(x, kv0), size = x.lines();
  if (x.input().grad == nullptr) return NOTHING;
  const bool inside = first >= 0 && first <= size - 16, finite = std::isfinite(x.factor),
             quads = size % 4 == 0 && (grad_begin / 4 + u64(first)) % 4 == 0;
  if (!inside || !quads || !finite || !has_lines(x))
    return Config::deterministic && kv0 >= x.p.shape.kv_len ? NOTHING : one_by_one && finite ? ONE_BY_ONE : REFUSED;
  const bool alone = (x.p.inputs.alone >> input_of(x.layout)) % 2 != 0 && (Config::deterministic || first <= size - 32);
  return alone && rows <= x.p.shape.q_len - q0 ? STORES : FOURS;
}

// ---- a tile ----

struct Tile {
  const Given *given;
  LineSite site;
  int q0, kv0;
};
static int lanes_in_quads;

// The kernel's path if it does not add one by one.
template <class Spec>
static void add_per_element(const Tile &t, const typename Spec::Head &head, int q, int kv, float ds) {
  const GradRow<float> line = Spec::pair_grad_row(t.given->p, t.site, head, q, kv);
  if (ds != 0) add_global(line.row + to_axis(line.index, line.size), ds, line.factor);
}

template <Layout L, int TileM>
static void add_tile(const Tile &t) {
  const Given &x = *t.given;
  const int lane = int(threadIdx.x);
  const typename Spec<L>::Head head{x.shift, x.third, x.factor};
  const auto q_of = [&](int i) { return t.q0 + i / 4 * 8 + lane % 4 * 2 + i % 2; };
  const auto kv_of = [&](int i) { return t.kv0 + lane / 4 + i / 2 % 2 * 8; };
  float ds[TileM / 2];
  for (int i = 0; i < TileM / 2; ++i) ds[i] = ds_of(x, t.site, q_of(i), kv_of(i));
  const PairSums<Spec<L>, Config, LineSite, MmaFragment, TileM> pairs{x.p, t.site, head, t.q0, t.kv0, lane};
  if (pairs.add_quads(ds)) {
    ++lanes_in_quads;
    return;
  }
  if (!written.empty()) host_fail("fours are written, and refused");
  __syncwarp();  // all lanes have checked
  if (!has_lines(x)) return;
  if constexpr (one_by_one)
    if (pairs.add_singles(ds)) return;
  for (int i = 0; i < TileM / 2; ++i) add_per_element<Spec<L>>(t, head, q_of(i), kv_of(i), ds[i]);
}

// Checks that each value of the tile, including zeros, was added to its element once, by the expected path.
static void check_written(const Tile &t, int rows, Way way) {
  const Given &x = *t.given;
  const int numbers = !has_lines(x) || way == NOTHING ? 0 : rows * 16;
  const bool quads = way == NOTHING || way == STORES || way == FOURS;
  if (lanes_in_quads != (quads ? 32 : 0)) host_fail("another way is taken");
  if (fours_stored != (way == STORES ? numbers / 4 : 0) || fours_added != (way == FOURS ? numbers / 4 : 0))
    host_fail("fours are written in another way");
  std::map<i64, Written> expected;
  int nonzero = 0;
  for (int i = 0; i < numbers; ++i) {
    const int q = t.q0 + i / 16, kv = t.kv0 + i % 16;
    const float ds = ds_of(x, t.site, q, kv);
    nonzero += ds != 0;
    if (way == REFUSED && ds == 0) continue;
    const int place = (quads ? first_four(x, t.kv0) : t.kv0 + x.shift) + i % 16;
    Written &element = expected[element_of(x, t.site, q, place)];
    element.sum += ds * x.factor;
    ++element.times;
  }
  if (singles != (way == ONE_BY_ONE ? numbers : way == REFUSED ? nonzero : 0))
    host_fail("numbers are added one by one in another way");
  if (written != expected) host_fail("a number has gone to another element");
}

template <Layout L, int TileM>
static Way check_tile(const Tile &t) {
  written.clear();
  fours_stored = fours_added = singles = lanes_in_quads = 0;
  descending = !descending;
  launch(add_tile<L, TileM>, dim3(1), 32, 0, t);
  const Way way = way_of(*t.given, t.q0, TileM, t.kv0);
  check_written(t, TileM, way);
  return way;
}

// ---- a gradient ----

// Finally each element must be the sum of its scores' contributions. An element with a single contribution
// that may be stored is stored, unless its tile ends past the queries (`write` checks that no other write
// follows).
static void check_sums(const Given &x) {
  std::map<i64, float> sums;
  for (int b = 0; b < x.p.shape.batch; ++b)
    for (int h = 0; h < x.p.shape.heads; ++h)
      for (int q = 0; q < x.p.shape.q_len; ++q)
        for (int kv = 0; kv < x.p.shape.kv_len; ++kv) {
          const LineSite site{b, h, x.p.shape.q_len, x.p.shape.kv_len};
          sums[element_of(x, site, q, kv + x.shift)] += ds_of(x, site, q, kv) * x.factor;
        }
  for (const auto &[element, sum] : sums)
    if (memory.count(element) == 0) host_fail("an element of a score is left out");
  for (const auto &[element, place] : memory)
    if (place.value != (sums.count(element) != 0 ? sums[element] : 0)) host_fail("another sum");
}

// The paths that tiles of a layout have taken, to check that every path was tested.
static bool taken[REFUSED + 1];

// If tiles have keys of several warps, some warps have only keys past the end.
template <Layout L, int TileM>
static void check_gradient(const Given &x) {
  memory.clear();
  for (int b = 0; b < x.p.shape.batch; ++b)
    for (int h = 0; h < x.p.shape.heads; ++h)
      for (int q0 = 0; q0 < x.p.shape.q_len; q0 += TileM)
        for (int kv0 = 0; kv0 < x.p.shape.kv_len + 16; kv0 += 16)
          taken[check_tile<L, TileM>({&x, {b, h, x.p.shape.q_len, x.p.shape.kv_len}, q0, kv0})] = true;
  check_sums(x);
}

static void set_sizes(Given &x, int queries, int size) {
  LuattnInput &in = x.input();
  const auto set = [&](int a, int b, int c, int d) { in.size[0] = a, in.size[1] = b, in.size[2] = c, in.size[3] = d; };
  switch (x.layout) {
    case SHARED:
      return set(queries, size, 0, 0);
    case BATCHES:
      return set(x.p.shape.batch, x.p.shape.heads, queries, size);
    case APART:
      return set(x.p.shape.heads, queries, x.third + 1 + random_below(9), size);
    default:
      return set(x.p.shape.heads, queries, size, 0);
  }
}
// Places the gradient `begin` elements after a multiple of 16 bytes.
static void place_gradient(Given &x, int begin) {
  u64 count = 1;
  for (int axis = 0; axis < axes_of(x.layout); ++axis) count *= u64(x.input().size[axis]);
  grad_begin = (1ull << 56) + u64(begin) * 4;
  grad_end = grad_begin + count * 4;
  x.input().grad = x.unwanted ? nullptr : reinterpret_cast<void *>(grad_begin);
}

// Sets whether no two scores add to one element (common/call/pairs.h). Ignores other inputs.
static void set_alone(Given &x) {
  const int shared_by = (x.layout == BATCHES ? 1 : x.p.shape.batch) * (x.layout == SHARED ? x.p.shape.heads : 1);
  const bool alone = x.shift == 0 && shared_by == 1 && x.lines() >= x.p.shape.kv_len;
  x.p.inputs.alone = unsigned(random_below(8)) & ~(1u << input_of(x.layout));
  if (alone) x.p.inputs.alone |= 1u << input_of(x.layout);
}

static Given random_input(Layout layout, int tile_m) {
  const float factors[] = {1, 1, 2, -3, 0.5f};
  Given x{};
  x.layout = layout;
  x.p.shape.batch = 1 + random_below(4) / 3, x.p.shape.heads = 1 + random_below(2);
  x.p.shape.q_len = 1 + random_below(2 * tile_m + 20), x.p.shape.kv_len = 1 + random_below(60);
  x.factor = factors[random_below(5)];
  int size = random_below(4) != 0 ? x.p.shape.kv_len + random_below(40) : 1 + random_below(x.p.shape.kv_len);
  if (random_below(4) != 0) size = (size + 3) / 4 * 4;
  const int far = random_below(4) == 0 ? size + 70 : 20, shift = random_below(2 * far) - far;
  x.shift = random_below(2) == 0 ? 0 : random_below(2) == 0 ? shift / 4 * 4 : shift;
  x.third = random_below(2) == 0 ? random_below(5) : (1 << 27) + random_below(5);
  set_sizes(x, x.p.shape.q_len, size);
  place_gradient(x, random_below(4) != 0 ? 0 : random_below(4));
  set_alone(x);
  return x;
}

template <Layout L, int TileM>
static void check_random() {
  std::fill(taken, taken + REFUSED + 1, false);
  for (int i = 0; i < 60; ++i) check_gradient<L, TileM>(random_input(L, TileM));
  if (!taken[FOURS] || !taken[STORES] || taken[ONE_BY_ONE] != one_by_one || taken[REFUSED] == one_by_one)
    host_fail("no tile takes one of the ways");
}

// ---- which path ----

// Keys 16 to 31 of the first q tile fulfil all conditions for fours, or all but one.
template <Layout L, int TileM>
static void check_ways() {
  Given whole{};
  whole.layout = L;
  whole.p.shape.batch = 1, whole.p.shape.heads = 2, whole.p.shape.q_len = TileM, whole.p.shape.kv_len = 32;
  whole.factor = 1, whole.p.inputs.alone = 1u << input_of(L);
  const auto way = [](Given x, int size, int begin, Way expected) {
    set_sizes(x, x.p.shape.q_len, size);
    place_gradient(x, begin);
    memory.clear();
    if (check_tile<L, TileM>({&x, {0, 1, x.p.shape.q_len, x.p.shape.kv_len}, 0, 16}) != expected)
      host_fail("not the way that the input is made for");
  };
  const bool exact_too = Config::deterministic;
  const Way last = exact_too ? STORES : FOURS, others = one_by_one ? ONE_BY_ONE : REFUSED;
  way(whole, 32, 0, last);  // other tiles may add zeros there
  way(whole, 44, 0, last);
  way(whole, 48, 0, STORES);
  for (int lack = 1; lack < 4; ++lack) {
    way(whole, 32 - lack, 0, others), way(whole, 32 + lack, 0, others);
    way(whole, 32, lack, others);
  }
  way(whole, 28, 0, others);
  way(whole, 16, 0, others);
  Given x = whole;
  x.p.shape.q_len -= 1;  // of the input too
  way(x, 32, 0, FOURS);
  x = whole;
  x.p.inputs.alone = ~x.p.inputs.alone;
  way(x, 32, 0, FOURS);
  x.shift = 1;
  way(x, 36, 0, others);
  way(x, 36, 3, FOURS);
  x.shift = 4;
  way(x, 36, 0, FOURS), way(x, 32, 0, others);
  x.shift = -16;
  way(x, 16, 0, FOURS);
  x.shift = -20;
  way(x, 32, 0, others);
  x = whole;
  x.unwanted = true;
  way(x, 32, 0, NOTHING);
  x = whole;
  x.factor = INFINITY, x.p.shape.q_len -= 3;  // its product with 0 is NaN
  way(x, 32, 0, REFUSED), way(x, 33, 0, REFUSED);
  x = whole;
  x.p.shape.kv_len = 16;  // none of the tile's keys exists
  way(x, 32, 0, last), way(x, 16, 0, exact_too ? NOTHING : FOURS);
  x = whole;
  unsigned long long exact;
  x.input().exact = &exact;
  way(x, 32, 0, exact_too ? others : last);
}

// Checks tiles of Keys keys: 16, or 64 as in the d256 kernel.
template <int Keys>
static void check_quads() {
  for (int begin = 0; begin < 4; ++begin)
    for (int size = 1; size < Keys + 12; ++size)
      for (int index = -20; index < Keys + 20; ++index) {
        bool expected = true;
        for (int row = 0; row < 4; ++row)
          for (int four = index; four < index + Keys; four += 4)
            expected &= four >= 0 && four + 3 < size && (begin + row * size + four) % 4 == 0;
        GradRow<float> line{};
        line.row = reinterpret_cast<float *>((1ull << 56) + u64(begin) * 4);
        line.index = index, line.size = size;
        if (lies_in_quads(line, Keys) != expected) host_fail("fours that lie otherwise");
      }
  for (int index : {INT_MIN, INT_MIN + 16, INT_MAX - 63, INT_MAX - 15, INT_MAX - 3, INT_MAX}) {
    GradRow<float> line{};
    line.row = reinterpret_cast<float *>((1ull << 56) - i64(index) * 4);
    line.index = index, line.size = 128;
    if (lies_in_quads(line, Keys)) host_fail("places far outside the axis");
  }
}

template <Layout L>
static void check_layout() {
  check_ways<L, 64>();
  check_ways<L, 128>();
  check_random<L, 64>();
  check_random<L, 128>();
}

int main() {
  check_quads<16>();
  check_quads<64>();
  check_layout<HEADS>();
  check_layout<BATCHES>();
  check_layout<SHARED>();
  check_layout<APART>();
  puts("every number of dS goes to its own element");
}
