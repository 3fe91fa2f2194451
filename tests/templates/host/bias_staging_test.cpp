// bias_staging_test.cpp: tests which bias value and which Col a thread of the sm90 forward reads from staged
// biases (sm90/fwd/bias_staging.cuh) that bias loaders filled (sm90/fwd/bias_loader.cuh). Bias rows begin
// anywhere, are longer or shorter than the keys, and have the pitch of an input's strides; q tiles end past
// the queries; all tile widths are covered. Copies are emulated: their bytes arrive at the wait, and a copy
// from outside of the input fails.
// are waited for, and a copy from outside the input fails.
#include "host_cuda.hpp"

#include <algorithm>
#include <deque>

using std::max;
using std::min;

#define LUATTN_BIAS_COPIES_CUH
using u32 = unsigned;
using u64 = unsigned long long;
static const char *memory_begin, *memory_end;
static int copied_16, copied_4, stored;
static bool reads_lines;

static void check_source(u64 from, size_t bytes) {
  const char *x = reinterpret_cast<const char *>(from);
  if (x < memory_begin || x + bytes > memory_end) host_fail("a copy from outside the input");
}
static void bias_copy_16(u32 to, u64 from, bool there) {
  if (!there) return;
  check_source(from, 16);
  ++copied_16;
  copy_async<16>(to, reinterpret_cast<const void *>(from), true);
}
// The 4-byte word of a row's first bf16 may begin in the bf16 before it.
static std::deque<u32> short_words;
static void bias_copy_4(u32 to, u64 from, bool there) {
  if (!there) return;
  const size_t before = u64(memory_begin) == from + 2 ? 2 : 0;
  if (from % 4 != 0) host_fail("a misaligned word");
  check_source(from + before, 4 - before);
  ++copied_4;
  short_words.push_back(0);
  memcpy(reinterpret_cast<char *>(&short_words.back()) + before, reinterpret_cast<const char *>(from) + before,
         4 - before);
  copy_async<4>(to, &short_words.back(), true);
}
static void bias_copy_2(u32 to, u64 from) {
  check_source(from, 2);
  memcpy(dynamic_shared + to, reinterpret_cast<const void *>(from), 2);
}
static void bias_copy_wait() { wait_copies(); }
static void bias_copies_arrive(u32) {}
template <class Elem>
static void bias_store(u32 to, Elem x) {
  ++stored;
  memcpy(dynamic_shared + to, &x, sizeof x);
}
// A warp reads 4-byte words in one access, and half a warp reads 8-byte words. Each bank gives one word per
// access.
static u32 read_at[32];
template <int N>
static void bias_load(u32 (&x)[N], u32 at) {
  if (at % (4 * N) != 0) host_fail("a misaligned read");
  memcpy(x, dynamic_shared + at, sizeof x);
  const int lane = int(threadIdx.x), together = 32 / N;
  read_at[lane] = at;
  __syncwarp();
  for (int other = lane / together * together; other < lane; ++other)
    if (read_at[other] != at && read_at[other] / (4 * N) % together == at / (4 * N) % together && reads_lines)
      host_fail("two lanes read from one bank");
  __syncwarp();
}
#define store_shared device_store_shared
#define load_shared device_load_shared
#include "arch/mma.cuh"
#undef store_shared
#undef load_shared
#define barrier_peek device_barrier_peek
#define barrier_wait_peeked device_barrier_wait_peeked
#include "tma/mbarrier.cuh"
#undef barrier_peek
#undef barrier_wait_peeked
template <int Which>
static void barrier_peek(u32, u32) {}
template <int Which>
static void barrier_wait_peeked(u32, u32) {}
static void store_shared(u32 address, u32 x) { memcpy(dynamic_shared + address, &x, 4); }
static u32 load_shared(u32 address) {
  u32 x;
  memcpy(&x, dynamic_shared + address, 4);
  return x;
}
#include "sm90/fwd/bias_loader.cuh"

// ---- an input ----

// Element `place` of row q is at data[q * row_stride + place * stride]. Query q reads element kv + shift +
// (slanted ? q : 0) for key kv.
struct Given {
  int q_len, kv_len, q0, size, shift;
  i64 row_stride, stride;
  bool slanted;
  const void *data;
};
static const Given *given;
static int number_at(int q, int place) { return (q * 37 + place * 5) % 251; }

template <class Stored>
struct Spec {
  using BiasElem = Stored;
  struct Head {};
  struct Col {};
  static constexpr bool has_bias_row = true, reads_columns = false;
  static InputRow<Stored> bias_row(const LuattnParams &, const Site &, const Head &, int q, int kv) {
    if (q >= given->q_len) host_fail("a query past q_len");
    return {static_cast<const Stored *>(given->data) + q * given->row_stride,
            kv + given->shift + (given->slanted ? q : 0), given->size, given->stride};
  }
};
template <int N>
struct Tiles {
  using Elem = half_t;
  static constexpr int tile_m = 128, tile_n = N, head_dim = 64, head_dim_v = 64, stages = 2, threads = 384;
  static constexpr bool packed = false, paged = false;
};

// Each warp acts as each bias loader, and then as each consumer warp. If `own`, consumers load bias rows
// themselves.
template <class Stored, int N>
static void read_tile(const Given &x, int kv0, bool own) {
  using Shared = SharedSm90<Spec<Stored>, Tiles<N>>;
  using Fetch = BiasRowLoader<Spec<Stored>, Tiles<N>, 2>;
  const int lane = int(threadIdx.x);
  const Site site{0, 0, x.q_len, x.kv_len};
  const Shared shared{0u - Shared{0}.bias_rows(0)};
  for (int bias_loader = 0; bias_loader < Fetch::bias_loaders && !own; ++bias_loader) {
    Fetch load(bias_loader, lane);
    load.begin({}, site, {}, x.q0);
    for (int g = 0; g < 2; ++g)
      if (load.load({}, site, {}, x.q0, kv0, g, shared.bias_rows(g))) bias_copy_wait();
  }
  __syncwarp();
  for (int warp = 0; warp < Tiles<N>::tile_m / 16; ++warp) {
    StagedBiasRows<Spec<Stored>, Tiles<N>, MmaFragment> staged(shared, warp);
    const int first_row = x.q0 + warp * 16;
    staged.own = own;
    staged.begin({}, site, {}, first_row, lane);
    staged.await({}, site, {}, first_row, kv0, lane);
    for (int r = 0; r < 2; ++r)
      for (int octet = 0; octet < N / 8; ++octet) {
        float two[2];
        staged.get(two, r, octet, lane);
        for (int i = 0; i < 2; ++i) {
          const int q = first_row + lane / 4 + 8 * r, kv = kv0 + octet * 8 + lane % 4 * 2 + i;
          if (q >= x.q_len || kv >= x.kv_len) continue;
          const int at = kv + x.shift + (x.slanted ? q : 0), place = at < 0 ? 0 : at < x.size ? at : x.size - 1;
          if (two[i] != float(number_at(q, place))) host_fail("another element's number");
        }
      }
  }
  __syncwarp();
}
template <class Stored, int N>
static void read_lines(const Given &x) {
  for (int kv0 = (x.kv_len - 1) / N * N; kv0 >= 0; kv0 -= N) read_tile<Stored, N>(x, kv0, false);
  read_tile<Stored, N>(x, 0, true);
}

static void put(float &x, int number) { x = float(number); }
static void put(bf16_t &x, int number) { x.bits = (unsigned short)(std::bit_cast<uint32_t>(float(number)) >> 16); }

template <class Stored, int N>
static void check_input(Given x, int before) {
  std::vector<Stored> memory(size_t(before + x.q_len * x.row_stride + 16));
  short_words.clear();
  Stored *data = memory.data();
  while (uintptr_t(data) % 16 != 0) ++data;
  data += before;
  for (int q = 0; q < x.q_len; ++q)
    for (int place = 0; place < x.size; ++place) put(data[q * x.row_stride + place * x.stride], number_at(q, place));
  x.data = data;
  given = &x;
  memory_begin = reinterpret_cast<const char *>(data);
  memory_end = reinterpret_cast<const char *>(data + (x.q_len - 1) * x.row_stride + (x.size - 1) * x.stride + 1);
  copied_16 = copied_4 = stored = 0;
  launch(read_lines<Stored, N>, dim3(1), 32, 128 * (N * int(sizeof(Stored)) + 16), x);
}

template <class Stored, int N>
static void check_random() {
  Given x{};
  x.kv_len = 1 + random_below(300);
  x.q_len = 1 + random_below(200);
  x.q0 = random_below((x.q_len + 127) / 128) * 128;
  x.size = random_below(4) != 0 ? x.kv_len + random_below(64) : 1 + random_below(x.kv_len);
  x.shift = random_below(2) == 0 ? 0 : random_below(40) - 20;
  x.slanted = random_below(4) == 0;
  x.stride = 1 + random_below(4) / 3;
  x.row_stride = (x.size + random_below(9)) * x.stride;
  check_input<Stored, N>(x, random_below(8));
}

// Checks rows that are copied by 16 bytes, and rows that violate one condition for 16-byte or 4-byte copies.
template <class Stored, int N>
static void check_ways() {
  constexpr int word = 16 / int(sizeof(Stored));
  const Given whole{191, 75 * word, 128, 75 * word, 0, 75 * word, 1, false, nullptr};
  enum { BY_16, BY_4, BY_ELEMENTS };
  const auto way = [](const Given &x, int before, int expected) {
    check_input<Stored, N>(x, before);
    const int own = 128 * N;  // elements that the consumers load themselves
    if ((copied_16 > 0) != (expected == BY_16) || (copied_4 > 0) != (expected == BY_4) ||
        (stored > own) != (expected == BY_ELEMENTS))
      host_fail("copied in another way");
  };
  way(whole, 0, BY_16);
  Given x = whole;
  x.kv_len -= 3;  // the input has more
  way(x, 0, BY_16);
  x = whole;
  x.shift = word, x.kv_len -= word;
  way(x, 0, BY_16);
  x.shift = 1;
  way(x, 0, BY_4);
  x.shift = -word;
  way(x, 0, BY_ELEMENTS);
  way(whole, 1, BY_4);
  way(whole, 2, BY_4);
  x = whole;
  x.row_stride += 1;
  way(x, 0, BY_4);
  x = whole;
  x.size -= 1, x.kv_len -= 1;
  way(x, 0, BY_4);
  x = whole;
  x.kv_len += 1;
  way(x, 0, BY_ELEMENTS);
  x = whole;
  x.stride = 2, x.row_stride *= 2;
  way(x, 0, BY_ELEMENTS);
}

template <class Stored, int N>
static void check_lines() {
  reads_lines = true;
  check_ways<Stored, N>();
  for (int i = 0; i < 6; ++i) {
    descending = i % 2 != 0;
    check_random<Stored, N>();
  }
}

// ---- columns ----

template <int Words>
struct Columns {
  struct Head {};
  struct Col {
    float number[Words];
  };
  using BiasElem = float;
  static constexpr bool has_bias_row = false, reads_columns = true;
  static Col col(const LuattnParams &, const Site &, const Head &, int kv) {
    Col made;
    for (int i = 0; i < Words; ++i) made.number[i] = float(kv * 8 + i);
    return made;
  }
};
template <int Words, int N>
static void read_columns(const int &) {
  using Spec = Columns<Words>;
  const int lane = int(threadIdx.x);
  for (int kv0 = 3 * N; kv0 >= 0; kv0 -= N) {
    ColumnLoader<Spec, Tiles<N>>::fill({}, {}, {}, kv0, lane, 0);
    __syncwarp();
    for (int octet = 0; octet < N / 8; ++octet) {
      const auto two = StagedColumns<typename Spec::Col, MmaFragment>::get(0, octet, lane);
      for (int i = 0; i < 2; ++i)
        for (int w = 0; w < Words; ++w)
          if (two.col[i].number[w] != float((kv0 + octet * 8 + lane % 4 * 2 + i) * 8 + w))
            host_fail("another key's Col");
    }
    __syncwarp();
  }
}
template <int Words, int N>
static void check_columns() {
  reads_lines = false;
  for (descending = false;; descending = true) {
    launch(read_columns<Words, N>, dim3(1), 32, N * 4 * Words, 0);
    if (descending) break;
  }
}

template <int N>
static void check_width() {
  check_lines<float, N>();
  check_lines<bf16_t, N>();
  check_columns<1, N>();
  check_columns<2, N>();
  check_columns<3, N>();
}

int main() {
  check_width<16>();
  check_width<32>();
  check_width<48>();
  check_width<64>();
  check_width<80>();
  check_width<96>();
  check_width<112>();
  check_width<128>();
  check_width<144>();
  check_width<256>();
  puts("every score reads its own numbers");
}
