// lines_test.cpp: tests which bias-row element a thread of the sm90 backward loads ahead for each score
// (BiasRowTerms), and which cache lines its producer prefetches (prefetch_bias_rows). Bias rows begin
// anywhere, are longer or shorter than the keys, and have an input's strides; tiles end past the queries; all
// numbers of parts that kernels use are covered. Instructions are emulated: misaligned reads, and reads
// outside of the input, fail.
#include "host_cuda.hpp"

#include <algorithm>
#include <set>

using std::max;
using std::min;

#define LUATTN_BIAS_ROW_LOADS_CUH
using u32 = unsigned;
using u64 = unsigned long long;
static u64 memory_begin, memory_end;
static int reads, asks;
static std::set<u64> pieces_read, pieces_asked;  // 128-byte lines

// The input has no memory, because its strides may exceed any memory. The value of an element is a function
// of its address; it is not 0, and is exact in float and in bf16.
static float number_at(u64 address) { return float(1 + (address * 0x9e3779b97f4a7c15ull >> 40) % 255); }

template <class Stored>
static u32 read_at(const Stored *from) {
  const u64 at = u64(from);
  if (at % sizeof(Stored) != 0) host_fail("a misaligned read");
  if (at < memory_begin || at + sizeof(Stored) > memory_end) host_fail("a read from outside the input");
  ++reads;
  pieces_read.insert(at / 128);
  return std::bit_cast<u32>(number_at(at)) >> (sizeof(Stored) == 2 ? 16 : 0);
}
template <class Stored>
static void read_stored(u32 &x, u32 &y, const Stored *from, const Stored *other, bool exist) {
  x = exist ? read_at(from) : 0;
  y = exist ? read_at(other) : 0;
}
static void prefetch_l2(u64 at) {
  if (at / 128 < memory_begin / 128 || at / 128 > (memory_end - 1) / 128)
    host_fail("a piece from outside the input is asked for");
  ++asks;
  pieces_asked.insert(at / 128);
}
#define LUATTN_NO_GRADIENTS
#include "ops/input.cuh"
#include "work/positions.cuh"
#include "score/bias_rows.cuh"

// ---- an input ----

// An input with axes heads, queries and keys, in this order. Key kv reads element kv + shift.
struct Given {
  LuattnParams p;
  LineSite site;
  int q0, kv0, shift;
  const LuattnInput &input() const { return p.inputs.input[0]; }
};

// The spec that gen/emit writes for an input with axes h, q and kv.
template <class Stored, bool Any = true>
struct Spec {
  using BiasElem = Stored;
  struct Head {
    int shift;
  };
  static constexpr bool has_bias_row = Any;
  static InputRow<Stored> bias_row(const LuattnParams &p, const Site &site, const Head &head, int q, int kv) {
    if (!Any) host_fail("a line where there is none");
    if (q < 0 || q >= site.q_len) host_fail("a query past q_len");
    return input_row<Stored, 1>(p.inputs.input[0], site.h, q, kv + head.shift);
  }
};

template <class Stored>
static u64 address_of(const Given &x, int q, int place) {
  const long long *stride = x.input().stride;
  return u64(x.input().data) + u64(x.site.h * stride[0] + q * stride[1] + place * stride[2]) * sizeof(Stored);
}

// ---- a tile ----

static std::set<u64> pieces_wanted;  // lines of elements that are read at an unclamped index

// Checks the element of column j, for query q and key kv.
template <class Stored, class Lines>
static void check_number(const Given &x, const Lines &lines, int half, int j, int q, int kv) {
  const int size = x.input().size[2], index = kv + x.shift, place = max(min(index, size - 1), 0);
  const float got = lines.get(half, j / 2, j % 2);
  if (q >= x.site.q_len) {
    if (std::bit_cast<u32>(got) != 0) host_fail("a number for a query past q_len");
    return;
  }
  const u64 at = address_of<Stored>(x, q, place);
  if (got != number_at(at)) host_fail("another element's number");
  if (index == place) pieces_wanted.insert(at / 128);
}

// Runs a lane of a warp, whose first key is kv0, in the kernels' order: loads the first part, and then, with
// each column j, the part that begins at column j + part, if there is one.
template <class Stored, int Octets, int Parts>
static void read_columns(const Given &x, int kv0, int lane) {
  constexpr int cols = 2 * Octets, part = cols / Parts;
  using Lines = BiasRowTerms<Spec<Stored>, MmaFragment, Octets, Parts>;
  static_assert(Lines::any && Lines::part == part);
  Lines lines;
  memset(&lines, 0x5a, sizeof lines);
  const auto q_of = [&](int j) { return x.q0 + j / 2 * 8 + lane % 4 * 2 + j % 2; };
  const auto load = [&](int first) {
    int expected = 0;
    for (int j = first; j < cols && j < first + part && first % part == 0; ++j)
      expected += q_of(j) < x.site.q_len ? 2 : 0;
    reads = 0;
    lines.load(x.p, x.site, {x.shift}, x.q0, kv0, lane, first);
    if (reads != expected) host_fail("other columns are read than those of the part");
  };
  load(0);
  for (int j = 0; j < cols; ++j) {
    load(j + part);
    for (int half = 0; half < 2; ++half) check_number<Stored>(x, lines, half, j, q_of(j), kv0 + lane / 4 + half * 8);
  }
}

// Runs the prefetch of the producer warp, and the reads of all consumer warps.
template <class Stored, int Octets, int Parts, int Keys>
static void read_tile(const Given &x) {
  const int lane = int(threadIdx.x);
  prefetch_bias_rows<Spec<Stored>, Octets * 8, Keys>(x.p, x.site, {x.shift}, x.q0, x.kv0, lane);
  for (int warp = 0; warp < Keys / 16; ++warp) read_columns<Stored, Octets, Parts>(x, x.kv0 + warp * 16, lane);
}

// A row entirely before or past the input's row reads a single clamped element, and need not be prefetched.
template <class Stored, int Octets, int Parts, int Keys>
static void check_tile(const Given &x) {
  asks = 0;
  pieces_asked.clear(), pieces_read.clear(), pieces_wanted.clear();
  launch(read_tile<Stored, Octets, Parts, Keys>, dim3(1), 32, 0, x);
  if (x.input().stride[2] != 1) {
    if (asks != 0) host_fail("lines that are not dense are asked for");
    return;
  }
  if (!std::includes(pieces_asked.begin(), pieces_asked.end(), pieces_wanted.begin(), pieces_wanted.end()))
    host_fail("a piece that is read is not asked for");
  if (!std::includes(pieces_read.begin(), pieces_read.end(), pieces_asked.begin(), pieces_asked.end()))
    host_fail("a piece that is not read is asked for");
  if (asks > Octets * 8 * (Keys * int(sizeof(Stored)) / 128 + 1)) host_fail("pieces of a line are asked for twice");
}

// ---- random inputs ----

// Chooses strides: dense; elements apart, backwards, or as far apart as possible; queries adjacent, or all
// with the same row. Queries may go backwards. An axis of one element has no stride, and an empty input has
// none at all.
static void lay_out(LuattnInput &x) {
  enum { APART, BACKWARDS, FAR, QUERIES_BESIDE, ONE_LINE, DENSE };
  const int kind = random_below(10);
  long long &head = x.stride[0], &pitch = x.stride[1], &stride = x.stride[2];
  stride = kind == APART            ? 2
           : kind == BACKWARDS      ? -1
           : kind == FAR            ? (1 << 28) + random_below(9)
           : kind == QUERIES_BESIDE ? x.size[1] + random_below(9)
                                    : 1;
  pitch = kind == QUERIES_BESIDE ? 1 : kind == ONE_LINE ? 0 : (x.size[2] + random_below(9)) * stride;
  if (random_below(4) == 0) pitch = -pitch;
  head = (x.size[1] + random_below(9)) * pitch;
  for (int axis = 0; axis < 3; ++axis)
    if (x.size[axis] <= 1 || x.size[2] == 0) x.stride[axis] = 0;
}

template <class Stored>
static void find_memory(const Given &x) {
  const LuattnInput &in = x.input();
  const int last_q = in.size[1] - 1, last = max(in.size[2] - 1, 0);
  const u64 corners[] = {address_of<Stored>(x, 0, 0), address_of<Stored>(x, 0, last), address_of<Stored>(x, last_q, 0),
                         address_of<Stored>(x, last_q, last)};
  memory_begin = *std::min_element(corners, corners + 4);
  memory_end = *std::max_element(corners, corners + 4) + sizeof(Stored);
}

template <class Stored>
static Given random_input() {
  Given x{};
  LuattnInput &in = x.p.inputs.input[0];
  x.site = {0, random_below(3), 1 + random_below(300), 1 + random_below(150) * 2};
  in.size[0] = 3, in.size[1] = x.site.q_len;
  in.size[2] = random_below(4) != 0    ? x.site.kv_len + random_below(64)
               : random_below(16) != 0 ? 1 + random_below(x.site.kv_len)
                                       : 0;
  x.p.shape.q_len = x.site.q_len, x.p.shape.kv_len = x.site.kv_len;
  lay_out(in);
  in.data = reinterpret_cast<const void *>((1ull << 56) + u64(random_below(128)) * sizeof(Stored));
  x.q0 = random_below(x.site.q_len);
  x.kv0 = random_below(x.site.kv_len);
  const int range = random_below(4) == 0 ? in.size[2] + 200 : 40;
  x.shift = random_below(3) == 0 ? 0 : random_below(2 * range) - range;
  find_memory<Stored>(x);
  return x;
}

template <int Octets, int Parts, int Keys>
static void check_parts() {
  for (int i = 0; i < 100; ++i) {
    check_tile<float, Octets, Parts, Keys>(random_input<float>());
    check_tile<bf16_t, Octets, Parts, Keys>(random_input<bf16_t>());
  }
}

static void check_without_line() {
  const Given x = random_input<float>();
  BiasRowTerms<Spec<float, false>, MmaFragment, 8, 2> lines;
  reads = 0;
  pieces_asked.clear();
  for (int first = 0; first < 16; ++first) lines.load(x.p, x.site, {0}, x.q0, x.kv0, 0, first);
  prefetch_bias_rows<Spec<float, false>, 64, 128>(x.p, x.site, {0}, x.q0, x.kv0, 0);
  if (lines.any || reads != 0 || !pieces_asked.empty()) host_fail("a line where there is none");
}

int main() {
  // Parts of the kernels for head dims up to 128 (sm90/bwd/bwd_sm90.cuh) ...
  check_parts<8, 1, 128>();
  check_parts<8, 2, 128>();
  check_parts<16, 1, 128>();
  // ... and above (sm90/bwd_d256/bwd_d256.cuh).
  check_parts<8, 8, 64>();
  // Other parts that BiasRowTerms supports.
  check_parts<8, 4, 64>();
  check_parts<16, 2, 128>();
  check_parts<16, 4, 64>();
  check_parts<16, 8, 128>();
  check_without_line();
  puts("every element reads its own number, and what is read was asked for");
}
