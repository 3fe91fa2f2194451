// score/box_bits.cuh: turns what a mask over a grid keeps along each axis into bits for a thread's columns of a fragment.
//
// A column of a tile of keys is a position of a box, the innermost axis fastest, so its coordinate on an axis repeats: it
// stays the same for `pitch` columns, and comes again after pitch * extent. An interval of coordinates therefore is a run
// of columns, repeated, and so it is among a lane's columns. A row's bits are the AND of its axes' runs: some six
// instructions an axis, whatever the mask is made of, in place of a predicate for each score.
#pragma once
#include "score/mask_intervals.cuh"

// The extents of a tile's box, the innermost axis last.
template <int... Extents>
struct GridBox {
  static constexpr int axes = sizeof...(Extents), size = (Extents * ...);
  LUATTN_FN constexpr int extent(int axis) {
    constexpr int all[] = {Extents...};
    return all[axis];
  }
  // Columns from one coordinate on an axis to the next.
  LUATTN_FN constexpr int pitch(int axis) {
    constexpr int all[] = {Extents...};
    int n = 1;
    for (int a = axis + 1; a < axes; ++a) n *= all[a];
    return n;
  }
};

// The larger one of x and 0; x, or the nearest number in [0, most]. NVVM would turn these into comparisons without sign,
// which take three times as many instructions.
LUATTN_FN int at_least_0(int x) {
#ifdef __CUDA_ARCH__
  int y;
  asm("max.s32 %0, %1, 0;" : "=r"(y) : "r"(x));
  return y;
#else
  return max_of(x, 0);
#endif
}
LUATTN_FN int clamped(int x, int most) {
#ifdef __CUDA_ARCH__
  int y;
  asm("min.s32 %0, %1, %2;" : "=r"(y) : "r"(at_least_0(x)), "r"(most));
  return y;
#else
  return min_of(at_least_0(x), most);
#endif
}

// A number with a bit for each of a lane's columns.
template <int Words>
struct BoxWord {
  using Type = u32;
  LUATTN_FN u32 run(int first, int count) { return bit_run(first, count); }
};
template <>
struct BoxWord<2> {
  using Type = u64;
  LUATTN_FN u64 run(int first, int count) { return count == 0 ? 0 : ~0ull >> (64 - count) << first; }
};

// Bits for a lane's columns of a Box.
template <class Fragment, class Box>
struct BoxBits {
  static constexpr int count = Fragment::columns(Box::size), words = (count + 31) / 32;
  static_assert(words <= 2, "a box of more columns than a tile has");
  static_assert(Box::size % (Fragment::row_lanes * Fragment::adjacent) == 0, "lanes have different numbers of columns");
  using Word = BoxWord<words>;
  using Bits = typename Word::Type;

  // The lane's columns whose coordinate on `Axis` lies in [lo, hi), both counted from the box's start.
  template <int Axis>
  static __device__ __forceinline__ Bits of_axis(int lane, int lo, int hi) {
    constexpr int extent = Box::extent(Axis), pitch = Box::pitch(Axis), period = extent * pitch;
    if constexpr (same_type<Fragment, MmaFragment>::value && is_power_of_two(extent) && is_power_of_two(pitch))
      return of_lanes_axis<extent, pitch>(lane, lo, hi);
    constexpr int repeat = least_common_multiple(period, row_columns);
    const int from = min_of(max_of(lo, 0), extent), to = min_of(max_of(hi, from), extent);
    Bits kept = 0;
#pragma unroll
    for (int first = 0; first < repeat && first < Box::size; first += period) {
      const int begin = below<pitch>(lane, first, from);
      kept |= Word::run(begin, below<pitch>(lane, first, to) - begin);
    }
    return kept * copies(Fragment::columns(repeat));
  }

  // The lane's columns of a row that keeps [lo[a], hi[a]) along each axis a.
  static __device__ __forceinline__ void of_row(int lane, const int (&lo)[Box::axes], const int (&hi)[Box::axes],
                                                u32 (&word)[words]) {
    const Bits kept = of_axes<0>(lane, lo, hi);
#pragma unroll
    for (int w = 0; w < words; ++w)
      word[w] = u32(kept >> 32 * w) & ~0u >> (32 * w + 32 > count ? 32 * w + 32 - count : 0);
  }

 private:
  // Columns after which a lane has adjacent ones again.
  static constexpr int row_columns = Fragment::row_lanes * Fragment::adjacent;

  LUATTN_FN constexpr bool is_power_of_two(int n) { return (n & (n - 1)) == 0; }
  // The same of powers of two in an MmaFragment, where a lane's columns have the coordinates a, a + step, a + 2 step, .., of
  // which those below one are counted.
  template <int Extent, int Pitch>
  static __device__ __forceinline__ Bits of_lanes_axis(int lane, int lo, int hi) {
    if constexpr (Extent == 1) {
      return lo <= 0 && hi > 0 ? ~Bits(0) : 0;
    } else if constexpr (Pitch == 1) {  // two adjacent ones of each eight
      constexpr int runs = Extent > 8 ? Extent / 8 : 1, of_run = Extent < 2 ? Extent : 2;
      const int a = Fragment::column(lane) % (Extent < 8 ? Extent : 8);
      Bits kept = 0;
#pragma unroll
      for (int u = 0; u < runs; ++u) {
        const int from = clamped(lo - a - 8 * u, of_run), to = clamped(hi - a - 8 * u, of_run);
        kept |= Word::run(2 * u + from, at_least_0(to - from));
      }
      return kept * copies(2 * runs);
    } else {
      constexpr int step = Pitch < 8 ? 8 / Pitch : 1, each = Pitch < 8 ? 2 : Fragment::columns(Pitch),
                    steps = Extent > step ? Extent / step : 1;
      const int a = Pitch < 8 ? Fragment::column(lane) / Pitch % (Extent < step ? Extent : step) : 0;
      // Rounds up; an arithmetic shift rounds down.
      const int from = clamped((lo - a + step - 1) >> log2_of(step), steps),
                to = clamped((hi - a + step - 1) >> log2_of(step), steps);
      return Word::run(from * each, at_least_0(to - from) * each) * copies(steps * each);
    }
  }
  LUATTN_FN constexpr int log2_of(int n) { return n < 2 ? 0 : 1 + log2_of(n / 2); }

  LUATTN_FN constexpr int least_common_multiple(int a, int b) {
    int n = a;
    while (n % b != 0) n += a;
    return n;
  }
  // One bit for each copy of a pattern of so many bits.
  LUATTN_FN constexpr Bits copies(int bits) {
    Bits ones = 0;
    for (int i = 0; i < count; i += bits) ones |= Bits(1) << i;
    return ones;
  }
  // How many of a lane's columns lie below coordinate `at`, of the coordinates that begin at column `first`.
  template <int Pitch>
  static __device__ __forceinline__ int below(int lane, int first, int at) {
    if constexpr (Pitch % row_columns == 0)
      return Fragment::columns(first) + at * Fragment::columns(Pitch);
    else
      return Fragment::columns_below(max_of(first + at * Pitch - Fragment::column(lane), 0));
  }
  template <int Axis>
  static __device__ __forceinline__ Bits of_axes(int lane, const int (&lo)[Box::axes], const int (&hi)[Box::axes]) {
    const Bits kept = of_axis<Axis>(lane, lo[Axis], hi[Axis]);
    if constexpr (Axis + 1 < Box::axes)
      return kept & of_axes<Axis + 1>(lane, lo, hi);
    else
      return kept;
  }
};
