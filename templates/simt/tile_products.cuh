// simt/tile_products.cuh: tile products on the FMA units, for the simt family (f32, f64).
//
// Two products cover forward and backward:
//
//     dot         S[m][n]  = sum over d of A[m][d] * B[n][d]      A, B: rows of two tensors
//     accumulate  C[r][d] += sum over k of W[r][k] * X[k][d]      W: P or dS in shared memory, or
//                                                                 their transpose;
//                                                                 X: rows of a tensor
//
// Operands that are tensors stream through two stages of shared memory, so that a block needs the same shared
// memory at every head dim: dot takes slices of d, accumulate slices of k. The stream continues across
// products: while the last slice of one is in use, `after` loads the first slice of the next.
//
// Threads: 16 lanes share a row (thread % 16); threads / 16 groups share the rows of a tile.
#pragma once
#include "arch/cp_async.cuh"
#include "score/online_rows.cuh"
#include "arch/tensor.cuh"
#include "work/sequence.cuh"
#include "work/tile_walk.cuh"
#ifdef LUATTN_GRID
#include "work/box_walk.cuh"
#endif

// Rows of one head (work/positions.cuh), starting at row `first`. Rows that do not exist read as zero.
template <class Rows>
struct SlabOf {
  Rows rows;
  int first;
  bool wide;  // 16-byte copies are allowed
};
// Whether each of the rows begins at a multiple of 16 bytes.
template <class Elem, class Rows>
LUATTN_FN bool are_wide(const Rows &rows, const LuattnTensor &t) {
  if constexpr (requires { rows.steps; })
    return allows_16_bytes<Elem>(t) && rows.steps_allow_16_bytes();
  else
    return allows_16_bytes<Elem>(t);
}
template <class Elem, class Rows>
LUATTN_FN SlabOf<Rows> slab_of(const Rows &rows, const LuattnTensor &t, int first) {
  return {rows, first, are_wide<Elem>(rows, t)};
}
// Make a slab of a query tensor, or of a key tensor.
template <class Elem, class Sequence>
LUATTN_FN auto q_slab(const LuattnParams &p, const Sequence &site, const LuattnTensor &t, int first) {
  return slab_of<Elem>(site.template q_rows<const Elem>(p, t), t, first);
}
template <class Elem, class Sequence>
LUATTN_FN auto kv_slab(const LuattnParams &p, const Sequence &site, const LuattnTensor &t, int h_kv, int first) {
  return slab_of<Elem>(site.template kv_rows<const Elem>(p, t, h_kv), t, first);
}

template <class T>
struct WithoutConst {
  using type = T;
};
template <class T>
struct WithoutConst<const T> {
  using type = T;
};
template <class T>
LUATTN_FN T pointee(T *);
// Copies and converts elements of another type, one by one. What waits for asynchronous copies, with a barrier, waits for
// these.
template <class Real, int Threads, int NumRows, int NumCols, int Stride, int Width, class Slab>
LUATTN_FN void convert_rows(Real *dst, const Slab &x, int row, int col) {
  constexpr int word = 16 / int(sizeof(Real)), cols = (NumCols + word - 1) / word * word;
#pragma unroll 1
  for (int i = int(threadIdx.x); i < NumRows * cols; i += Threads) {
    const int r = i / cols, c = i % cols, at = x.first + row + r;
    const bool in = x.rows.has(at) && col + c < Width;
    dst[r * Stride + c] = in ? to_real(x.rows.row(at)[col + c]) : Real(0);
  }
}

// Copies NumRows x NumCols elements of a slab of Width columns, starting at (x.first + row, col). Aligned and
// unaligned tensors share one loop: a kernel has up to nine such copies, a large part of its code.
template <class Real, int Threads, int NumRows, int NumCols, int Stride, int Width, class Slab>
LUATTN_FN void copy_rows(Real *dst, const Slab &x, int row, int col) {
  using Stored = typename WithoutConst<decltype(pointee(x.rows.data))>::type;
  if constexpr (!same_type<Stored, Real>::value) {
    convert_rows<Real, Threads, NumRows, NumCols, Stride, Width>(dst, x, row, col);
    return;
  } else {
    constexpr int word = 16 / int(sizeof(Real)), cols = (NumCols + word - 1) / word * word;
    const u32 base = u32(__cvta_generic_to_shared(dst));
    const bool wide = Width % word == 0 && x.wide;
    const u32 each = wide ? word : 1;
#pragma unroll 1
    for (u32 i = threadIdx.x * each; i < NumRows * cols; i += Threads * each) {
      const int r = int(i / cols), c = int(i % cols), at = x.first + row + r;
      const bool in = x.rows.has(at), valid = in && col + c < Width;
      const Real *from = x.rows.row_if(in, at) + col + c;
      const u32 to = base + u32(r * Stride + c) * u32(sizeof(Real));
      if (wide)
        copy_async<16>(to, from, valid);
      else
        copy_async<int(sizeof(Real))>(to, from, valid);
    }
  }
}

// Stores adjacent elements to global memory: as one vector, one by one, or not at all. Predicates replace
// branches, because a thread has up to 32 of these stores.
LUATTN_FN void store_vector(float *to, const float (&x)[4], bool at_once, bool one_by_one) {
  asm volatile(
      "{ .reg .pred v, e;\n setp.ne.s32 v, %5, 0;\n setp.ne.s32 e, %6, 0;\n"
      " @v st.global.v4.f32 [%0], {%1, %2, %3, %4};\n"
      " @e st.global.f32 [%0], %1;\n @e st.global.f32 [%0 + 4], %2;\n"
      " @e st.global.f32 [%0 + 8], %3;\n @e st.global.f32 [%0 + 12], %4; }" ::"l"(__cvta_generic_to_global(to)),
      "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(int(at_once)), "r"(int(one_by_one))
      : "memory");
}
LUATTN_FN void store_vector(float *to, const float (&x)[2], bool at_once, bool one_by_one) {
  asm volatile(
      "{ .reg .pred v, e;\n setp.ne.s32 v, %3, 0;\n setp.ne.s32 e, %4, 0;\n"
      " @v st.global.v2.f32 [%0], {%1, %2};\n"
      " @e st.global.f32 [%0], %1;\n @e st.global.f32 [%0 + 4], %2; }" ::"l"(__cvta_generic_to_global(to)),
      "f"(x[0]), "f"(x[1]), "r"(int(at_once)), "r"(int(one_by_one))
      : "memory");
}
LUATTN_FN void store_vector(double *to, const double (&x)[2], bool at_once, bool one_by_one) {
  asm volatile(
      "{ .reg .pred v, e;\n setp.ne.s32 v, %3, 0;\n setp.ne.s32 e, %4, 0;\n"
      " @v st.global.v2.f64 [%0], {%1, %2};\n"
      " @e st.global.f64 [%0], %1;\n @e st.global.f64 [%0 + 8], %2; }" ::"l"(__cvta_generic_to_global(to)),
      "d"(x[0]), "d"(x[1]), "r"(int(at_once)), "r"(int(one_by_one))
      : "memory");
}
template <class Real>
LUATTN_FN void store_vector(Real *to, const Real (&x)[1], bool at_once, bool one_by_one) {
  if (at_once || one_by_one) *to = x[0];
}

template <int N, class Real>
LUATTN_FN void read_vector(Real (&out)[N], const Real *shared) {
  Pack<Real, N> pack;
  pack.load(shared);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = pack[i];
}

// Slices of d in `dot` have equal size, at most 128 bytes of a row, padded with zeros to whole 16-byte words.
// The stride in shared memory is an odd number of such words, so that 8 rows lie in 8 different bank groups.
template <class Real, int D>
struct DepthSlices {
  static constexpr int word = 16 / int(sizeof(Real)), most = 128 / int(sizeof(Real));
  static constexpr int count = (D + most - 1) / most;
  static constexpr int size = ((D + count - 1) / count + word - 1) / word * word;
  static constexpr int stride = (size / word | 1) * word;
};

// Distributes the D columns of an accumulator over 16 lanes: each lane has vectors of `vec` adjacent columns,
// 16 * vec apart. Takes the widest vectors that need at most a quarter more columns than D.
LUATTN_FN constexpr int columns_per_lane(int width, int vec) { return (width + 16 * vec - 1) / (16 * vec) * vec; }
LUATTN_FN constexpr int widest_vector(int width, int vec) {
  while (vec > 1 && columns_per_lane(width, vec) * 4 > columns_per_lane(width, 1) * 5) vec /= 2;
  return vec;
}
template <class Real, int D>
struct LaneColumns {
  static constexpr int vec = widest_vector(D, 16 / int(sizeof(Real)));
  static constexpr int each = columns_per_lane(D, vec), padded = 16 * each;
};

LUATTN_FN constexpr int rows_that_fit(int rows, int row_size, int size) {
  while (rows * row_size > size) rows /= 2;
  return rows;
}

template <class Spec, class Config>
struct Simt {
  using Real = typename Spec::Real;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, threads = Config::threads;
  static constexpr int lanes = 16, groups = threads / lanes, word = 16 / int(sizeof(Real));
  static constexpr int rows = tile_m / groups, cols = tile_n / lanes, rows_n = tile_n / groups;
  static constexpr LayoutSizes sizes = layout_sizes<Config>({.has_terms = Spec::has_distance_term});
  static constexpr SimtLayout layout = simt_layout(sizes);  // in elements:
  static constexpr int stage_size = layout.slice / int(sizeof(Real));
  static constexpr int weight_stride = layout.weight_pitch / int(sizeof(Real));
  static constexpr int weight_size = layout.weight / int(sizeof(Real));
  // Bytes of shared memory with `weights` tiles of P. Distance terms follow (DistanceTable).
  LUATTN_FN constexpr int bytes(int weights) { return simt_bytes(sizes, weights); }
  static_assert(threads % 32 == 0 && threads <= 512, "simt: threads are a multiple of 32, at most 512");
  static_assert((tile_m & (tile_m - 1)) == 0 && tile_m >= 16 && (tile_n & (tile_n - 1)) == 0 && tile_n >= 16,
                "simt: tile_m and tile_n are powers of two, at least 16");
  static_assert(rows >= 1 && rows_n >= 1 && (groups & (groups - 1)) == 0,
                "simt: every group of 16 threads needs a row");

  Real *shared;
  int fill, read, lane, group;

  __device__ __forceinline__ Simt() {
    shared = reinterpret_cast<Real *>(dynamic_shared);
    fill = read = 0;
    lane = int(threadIdx.x) % lanes;
    group = int(threadIdx.x) / lanes;
  }
  __device__ __forceinline__ Real *stage(int i) const { return shared + i * stage_size; }
  __device__ __forceinline__ Real *weights(int i) const { return shared + 2 * stage_size + i * weight_size; }
  // Row and column, in the tile, of the thread's element [r][c] of a score tile. A warp owns its rows.
  __device__ __forceinline__ int row_at(int r) const { return group + groups * r; }
  __device__ __forceinline__ int col_at(int c) const { return lane + lanes * c; }
  // Sequence positions of that row and column, in tiles that begin at q0 and kv0.
  __device__ __forceinline__ Position q_at(int q0, int r) const { return {q0 + group, groups * r}; }
  __device__ __forceinline__ Position kv_at(int kv0, int c) const { return {kv0 + lane, lanes * c}; }

  // Waits until a requested slice is readable, and frees the slice before it. Called once per request. Also
  // serves as a block barrier that makes P, written before a product, visible in the product.
  __device__ __forceinline__ void arrive() {
    wait_copies();
    __syncthreads();
    read = fill;
    fill ^= 1;
  }

  template <int D, class A, class B>
  __device__ __forceinline__ void request_dot(const A &a, const B &b, int slice) const {
    static_assert(
        same_type<Real, typename Config::Elem>::value || HasAxes<Config> || requires { Spec::has_tangents; },
        "products are in the storage type: float or double");
    using S = DepthSlices<Real, D>;
    copy_rows<Real, threads, tile_m, S::size, S::stride, D>(stage(fill), a, 0, slice * S::size);
    copy_rows<Real, threads, tile_n, S::size, S::stride, D>(stage(fill) + tile_m * S::stride, b, 0, slice * S::size);
  }

  // Requires that the first slice has been requested. request(i) loads slice i or, past the last, the first
  // slice of the next product. Unroll: steps of 16 bytes per iteration.
  template <int D, int Unroll, class Request>
  __device__ __forceinline__ void dot_slices(Real (&s)[rows][cols], const Request &request) {
    using S = DepthSlices<Real, D>;
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int c = 0; c < cols; ++c) s[r][c] = Real(0);
#pragma unroll 1
    for (int slice = 0; slice < S::count; ++slice) {
      arrive();
      request(slice + 1);
      const Real *from_a = stage(read) + group * S::stride, *from_b = stage(read) + (tile_m + lane) * S::stride;
#pragma unroll(Unroll)
      for (int d = 0; d < S::size; d += word) {
        Real x[rows][word], y[cols][word];
#pragma unroll
        for (int r = 0; r < rows; ++r) read_vector(x[r], from_a + groups * r * S::stride + d);
#pragma unroll
        for (int c = 0; c < cols; ++c) read_vector(y[c], from_b + lanes * c * S::stride + d);
#pragma unroll
        for (int i = 0; i < word; ++i)
#pragma unroll
          for (int r = 0; r < rows; ++r)
#pragma unroll
            for (int c = 0; c < cols; ++c) s[r][c] += x[r][i] * y[c][i];
      }
    }
  }

  template <int D, class A, class B, class After>
  __device__ __forceinline__ void dot(Real (&s)[rows][cols], const A &a, const B &b, const After &after) {
    dot_slices<D, 1>(s, [&](int slice) {
      if (slice < DepthSlices<Real, D>::count)
        request_dot<D>(a, b, slice);
      else
        after();
    });
  }

  // Computes a * b^T and c * d^T one after the other and passes each result as put(0 or 1, s). If D == D2
  // both share their code, which compiles up to a tenth faster and leaves room for two steps per iteration.
  template <int D, int D2, class A, class B, class Put, class After>
  __device__ __forceinline__ void two_dots(const A &a, const B &b, const A &c, const B &d, const Put &put,
                                           const After &after) {
    Real s[rows][cols];
    if constexpr (D == D2) {
      A x = a;
      B y = b;
#pragma unroll 1
      for (int i = 0; i < 2; ++i) {
        dot_slices<D, 2>(s, [&](int slice) {
          const bool more = slice < DepthSlices<Real, D>::count;
          if (!more) x = c, y = d;
          if (more || i == 0)
            request_dot<D>(x, y, more ? slice : 0);
          else
            after();
        });
        put(i, s);
      }
    } else {
      dot<D>(s, a, b, [&] { request_dot<D2>(c, d, 0); });
      put(0, s);
      dot<D2>(s, c, d, after);
      put(1, s);
    }
  }

  // Rows of X per slice, for `accumulate` over Depth rows.
  template <int D, int Depth>
  static constexpr int slice_rows = rows_that_fit(Depth, LaneColumns<Real, D>::padded, stage_size);

  template <int D, int Depth, class Rows>
  __device__ __forceinline__ void request_rows(const Rows &x, int slice) const {
    constexpr int n = slice_rows<D, Depth>;
    copy_rows<Real, threads, n, D, LaneColumns<Real, D>::padded, D>(stage(fill), x, slice * n, 0);
  }

  // Adds row row_at(r) of W[tile_m][tile_n] * X to c[r].
  template <int D, class Rows, class After>
  __device__ __forceinline__ void accumulate(Real (&c)[rows][LaneColumns<Real, D>::each], const Real *w, const Rows &x,
                                             const After &after) {
    constexpr int n = slice_rows<D, tile_n>;
    static_assert(n >= word && n % word == 0, "simt: tile_m + tile_n is too small for this head dim");
#pragma unroll 1
    for (int slice = 0; slice < tile_n / n; ++slice) {
      arrive();
      if (slice + 1 < tile_n / n)
        request_rows<D, tile_n>(x, slice + 1);
      else
        after();
      const Real *from_w = w + group * weight_stride + slice * n;
#pragma unroll 1
      for (int k = 0; k < n; k += word) {
        Real a[rows][word];
#pragma unroll
        for (int r = 0; r < rows; ++r) read_vector(a[r], from_w + groups * r * weight_stride + k);
#pragma unroll
        for (int i = 0; i < word; ++i) {
          Real f[rows];
#pragma unroll
          for (int r = 0; r < rows; ++r) f[r] = a[r][i];
          add_outer<D>(c, f, k + i);
        }
      }
    }
  }

  // Adds row group * rows_n + r of W[tile_m][tile_n]^T * X to c[r].
  template <int D, class Rows, class After>
  __device__ __forceinline__ void accumulate_transposed(Real (&c)[rows_n][LaneColumns<Real, D>::each], const Real *w,
                                                        const Rows &x, const After &after) {
    constexpr int n = slice_rows<D, tile_m>, vec = rows_n < word ? rows_n : word,
                  unroll = LaneColumns<Real, D>::each < 16 ? 2 : 1;
    static_assert(n >= 1, "simt: tile_m + tile_n is too small for this head dim");
#pragma unroll 1
    for (int slice = 0; slice < tile_m / n; ++slice) {
      arrive();
      if (slice + 1 < tile_m / n)
        request_rows<D, tile_m>(x, slice + 1);
      else
        after();
      const Real *from_w = w + slice * n * weight_stride + group * rows_n;
#pragma unroll(unroll)
      for (int k = 0; k < n; ++k) {
        Real f[rows_n];
#pragma unroll
        for (int r = 0; r < rows_n; r += vec) {
          Real part[vec];
          read_vector(part, from_w + k * weight_stride + r);
#pragma unroll
          for (int i = 0; i < vec; ++i) f[r + i] = part[i];
        }
        add_outer<D>(c, f, k);
      }
    }
  }

  // Stores the thread's part of an accumulator row, times `factor`, into the D elements at `out`, if the row
  // exists.
  template <int D, class Elem>
    requires(!same_type<Elem, Real>::value)
  __device__ __forceinline__ void store(Elem *out, const Real (&c)[LaneColumns<Real, D>::each], Real factor, bool,
                                        bool is_row) const {
    using L = LaneColumns<Real, D>;
    const int end = is_row ? D : 0;
#pragma unroll
    for (int j = 0; j < L::each; ++j) {
      const int d = lanes * (j / L::vec * L::vec) + lane * L::vec + j % L::vec;
      if (d < end) out[d] = from_real<Elem>(c[j] * factor);
    }
  }
  template <int D>
  __device__ __forceinline__ void store(Real *out, const Real (&c)[LaneColumns<Real, D>::each], Real factor, bool wide,
                                        bool is_row) const {
    using L = LaneColumns<Real, D>;
    const int end = is_row ? D : 0;
#pragma unroll
    for (int j = 0; j < L::each; j += L::vec) {
      const int d = lanes * j + lane * L::vec;
      Real x[L::vec];
#pragma unroll
      for (int i = 0; i < L::vec; ++i) x[i] = c[j + i] * factor;
      if constexpr (D % L::vec == 0) {
        store_vector(out + d, x, wide && d < end, !wide && d < end);
      } else {
#pragma unroll
        for (int i = 0; i < L::vec; ++i)
          if (d + i < end) out[d + i] = x[i];
      }
    }
  }

 private:
  template <int D, int Rows>
  __device__ __forceinline__ void add_outer(Real (&c)[Rows][LaneColumns<Real, D>::each], const Real (&f)[Rows],
                                            int k) const {
    using L = LaneColumns<Real, D>;
    const Real *from_x = stage(read) + k * L::padded + lane * L::vec;
#pragma unroll
    for (int j = 0; j < L::each; j += L::vec) {
      Real v[L::vec];
      read_vector(v, from_x + lanes * j);
#pragma unroll
      for (int i = 0; i < L::vec; ++i)
#pragma unroll
        for (int r = 0; r < Rows; ++r) c[r][j + i] += f[r] * v[i];
    }
  }
};

// Distance terms of the scores of a tile, in shared memory: one number per distance. All threads share the
// computation of the table. Empty if the spec has no such term.
template <class Spec, class Config>
struct DistanceTable {
  using T = Simt<Spec, Config>;
  using Real = typename Spec::Real;
  static constexpr bool any = Spec::has_distance_term;
  static constexpr int M = T::tile_m, count = M + T::tile_n - 1;
  Real *term;  // tile_m + tile_n elements

  // The caller must place a barrier between `fill` and reads, and another before the next `fill`.
  __device__ __forceinline__ void fill(const LuattnParams &p, const Site &site, const typename Spec::Head &head, int q0,
                                       int kv0) const {
    if constexpr (any)
#pragma unroll 1
      for (int i = int(threadIdx.x); i < count; i += T::threads)
        term[i] = Spec::distance_term(p, site, head, Position{0, 0}, Position{kv0 - q0 - (M - 1) + i, 0});
  }
  // The term of row m and column n of the tile.
  __device__ __forceinline__ Real get(int m, int n) const {
    if constexpr (any) return term[n - m + M - 1];
    return Real(0);
  }
};

// Returns the blocks per multiprocessor for __launch_bounds__, which limits registers. `elements` is the size
// of a thread's score tiles and accumulators, `row_bytes` of its hoisted values per row, `bytes` of those per
// block. Without a limit ptxas takes all 255 registers to move loads far ahead, which leaves only 8 warps to
// hide other latencies; with too low a limit it spills.
template <class Config>
LUATTN_FN constexpr int simt_blocks(int elements, int row_bytes, int bytes) {
  const int size = int(sizeof(typename Config::Elem)), rows = Config::tile_m * 16 / Config::threads;
  const int fragments = (rows + Config::tile_n / 16) * 16, addresses = size == 8 ? 48 : 38;
  const int registers = (elements * size + fragments + rows * row_bytes + bytes) / 4 + addresses;
  const int bound = registers <= 124 ? 128 : registers <= 200 ? 168 : 255;
  const int blocks = 65536 / (bound * Config::threads);
  return blocks > 1 ? blocks : 1;
}

// Writes the thread's elements of a score tile to shared memory.
template <class T, class Real>
LUATTN_FN void put_tile(const T &t, Real *w, const Real (&x)[T::rows][T::cols]) {
#pragma unroll
  for (int r = 0; r < T::rows; ++r)
#pragma unroll
    for (int c = 0; c < T::cols; ++c) w[t.row_at(r) * T::weight_stride + t.col_at(c)] = x[r][c];
}
