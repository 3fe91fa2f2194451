// sm80/fwd_sm80.cuh: the forward kernel of the sm80 family: f16 or bf16, mma.sync with f32 accumulation, any
// GPU from sm_80 on.
//
// Grid (ceil(q_len / tile_m), heads, batch). A block takes tile_m queries of one head and walks the kv tiles
// that the mask leaves. Each warp owns 16 or 32 whole rows, so that a row's statistics never leave its four
// threads:
//   load     loads Q once, then K and V tile by tile with cp.async, one tile ahead
//   compute  S = Q K^T; S becomes P in registers, the A operand of O += P V
//   finish   scales O by the rows' factors and stores it from the fragments
//
// Config: head_dim and head_dim_v are multiples of 8 up to LUATTN_MAX_HEAD_DIM, in any combination; they are padded with
// zeros to multiples of 16 in shared memory. threads is a multiple of 32; tile_m = 16 or 32 times the warps;
// tile_n is a multiple of 16; stages is 1 or 2. stages = 2 loads the next K and V tile while a tile is
// computed (one barrier a tile). stages = 1 loads V during Q K^T and the next K during P V (two barriers,
// half the memory). Dynamic shared memory: FwdSm80Layout of abi/shared_memory.h. Pointers and strides of q,
// k, v and o must be multiples of 8 elements (16 bytes): the runtime refuses others.
//
// Good tiles, by the larger of the padded head dims and the shared memory of a block. A warp with 32 rows
// holds Dv + tile_n accumulators per thread, so warps have 16 rows if head dims are large.
//   head dim   227 KB (9.0, 10.0)        163 KB (8.0, 8.7)         99 KB (8.6, 8.9, 12.0)
//   <=  64     128 x 64, 128 thr, 2 st   the same                  the same
//   <=  96     128 x 64, 128 thr, 2 st   the same                  128 x 64, 128 thr, 1 st
//   <= 128     128 x 64, 128 thr, 2 st   128 x 64, 128 thr, 1 st   128 x 32, 128 thr, 1 st
//   <= 192     128 x 64, 256 thr, 2 st   64 x 64, 128 thr, 1 st    64 x 64, 128 thr, 1 st
//   <= 256     128 x 64, 256 thr, 2 st   128 x 64, 256 thr, 1 st   64 x 64, 128 thr, 1 st
#pragma once
#include "score/distance_terms.cuh"
#include "score/dropout.cuh"
#include "score/flag_lines.cuh"
#include "score/fragment.cuh"
#include "score/mask_runs.cuh"
#include "score/online_rows.cuh"
#include "sink/padding.cuh"
#include "sink/row_numbers.cuh"
#include "sm80/o_mma.cuh"
#include "source/cp_async_tile.cuh"
#include "work/tile_scheduler.cuh"
#include "work/tile_walk.cuh"
#ifdef LUATTN_FREE_BOXES
#include "sm80/fwd_boxes_sm80.cuh"
#else
template <class Spec, class Config>
struct ForwardBoxesSm80 {  // along a line
  static constexpr int axes = 0, displacements = 0;
};
#endif

// What a kernel computes of a tile, here S = Q K^T and O += P V. sums: accumulators like O; q_parts: tiles of Q that K is
// multiplied by; tangents: as in LayoutSizes. sm80/fwd_jvp_sm80.cuh has another.
template <class Spec>
struct PlainSm80 {
  static constexpr int sums = 1, q_parts = 1, tangents = 0;
  template <int Rows, int Cols, class Fragment>
  using Online = OnlineRows<Spec, Rows, Cols, Fragment::row_lanes, Fragment::adjacent>;
};

template <class Spec, class Config, class Products = PlainSm80<Spec>>
struct ForwardSm80 {
  static_assert(ForwardSpec<Spec>);
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  using Sequence = SequenceOf<Config>;
  using Tile = TileOf<typename Sequence::KeyTile>;
  using Key = typename Sequence::Key;
  using KeyPlace = typename Sequence::KeyPlace;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;
  using Col = typename Spec::Col;
  using State = typename Spec::State;
  static_assert(same_type<typename Spec::Real, float>::value && sizeof(Elem) == 2, "f16 or bf16, accumulated in f32");

  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, threads = Config::threads,
                       stages = Config::stages;
  static constexpr int dim = padded_dim(Config::head_dim), dim_v = padded_dim(Config::head_dim_v);
  static constexpr int warp_rows = tile_m / (threads / 32);
  static constexpr int m_tiles = warp_rows / 16, n_tiles = tile_n / 8,
                       v_tiles = dim_v / 8;  // fragments of a warp
  static constexpr int q_tiles = m_tiles * Products::q_parts;
  static constexpr int v_blocks = v_tiles / 2;  // of O (sm80/o_mma.cuh), for each row of fragments
  static constexpr int rows = Fragment::rows(warp_rows), cols = Fragment::columns(tile_n);  // scores of a thread
  static_assert(threads % 32 == 0 && tile_m == warp_rows * (threads / 32) && (warp_rows == 16 || warp_rows == 32));
  static_assert(tile_n % 16 == 0 && (stages == 1 || stages == 2) && dim <= LUATTN_MAX_HEAD_DIM &&
                dim_v <= LUATTN_MAX_HEAD_DIM);

  // Q stays in registers if that leaves enough of them for addresses and temporaries.
  static constexpr int accumulators = Products::sums * m_tiles * (n_tiles + v_tiles) * 4,
                       q_registers = q_tiles * dim / 4;
  static constexpr bool q_in_registers = accumulators + q_registers <= 176;
  static constexpr bool copies_anew = accumulators >= 160;         // see load
  static constexpr bool rolls = !q_in_registers && dim % 64 == 0;  // see dots
  static constexpr int wanted_registers = accumulators + (q_in_registers ? q_registers : 0) + 56;
  static constexpr int fitting_blocks = 65536 / (threads * wanted_registers);
  static constexpr int blocks = fitting_blocks < 1 ? 1 : fitting_blocks > 4 ? 4 : fitting_blocks;  // per multiprocessor

  using QTile = SharedTile<dim>;
  using VTile = SharedTile<dim_v>;
  using Boxes = ForwardBoxesSm80<Spec, Config>;
  static constexpr bool has_terms = Boxes::displacements > 0;  // by displacement
  static constexpr FwdSm80Layout layout = fwd_sm80_layout(layout_sizes<Config>(
      {.displacements = Boxes::displacements, .row_axes = Boxes::axes, .tangents = Products::tangents}));
  static constexpr int q_bytes = layout.q, k_bytes = layout.k, v_bytes = layout.v;
  static_assert(has_shared<Config, layout.bytes>());

  const LuattnParams &p;
  Sequence site;
  const int q_tile, lane, warp_row;  // the warp's first row in the tile
  const u32 q_shared, k_shared, v_shared;
  const int kv_head;
  Head head;
  Row row[rows];
  typename Products::template Online<rows, cols, Fragment> online;
  using Drops = Dropout<Config>;
  Drops dropout;
  u32 q_frag[q_in_registers ? dim / 16 : 1][q_tiles][4];

  __device__ __forceinline__ ForwardSm80(const LuattnParams &params, u32 shared, const BlockSite &block)
      : p(params),
        site(params, block.b, block.h),
        q_tile(block.q_tile),
        lane(int(threadIdx.x) % 32),
        warp_row(int(threadIdx.x) / 32 * warp_rows),
        q_shared(shared),
        k_shared(shared + q_bytes),
        v_shared(k_shared + stages * k_bytes),
        kv_head(block.h_kv) {}

  __device__ __forceinline__ void begin() {
    if constexpr (has_chunks) site.enter_queries(p, q_tile * tile_m);
    head = Spec::head(p, site);
#pragma unroll
    for (int r = 0; r < rows; ++r)
      row[r] = Spec::only_keep_reads_row ? Row{} : Spec::row(p, site, head, query(r, lane));
    online.init(p, site, head, row);
    if constexpr (!Sequence::is_line) Boxes::store_ranges(*this);
    if constexpr (Drops::any) dropout.enter_head(p, site);
    declare_out();
    declare_weights();
    zero_out<m_tiles * v_blocks>();
  }

  // The position of row r of a lane's thread. `query` clamps it to the last query.
  __device__ __forceinline__ Position position(int r, int lane) const {
    return {q_tile * tile_m + warp_row + Fragment::row(lane), Fragment::row_of(r)};
  }
  __device__ __forceinline__ int query(int r, int lane) const { return site.clamped_query(p, position(r, lane)); }

  // ---- load ----

  // Where registers are short, each copy recomputes its addresses from the thread's number and the head. Both
  // are opaque to the compiler, which would otherwise keep all addresses through the loop, so that fragment
  // loads could not run ahead of the products.
  static __device__ __forceinline__ int copier() { return copies_anew ? thread_anew() : int(threadIdx.x); }

  // Loads tiles. Whole and ragged tiles use the same code. Q, which a block loads once, is copied in a rolled
  // loop and is a commit group of its own.
  enum Operand { K, V };
  template <Operand first, Operand last>
  __device__ __forceinline__ void load(Tile tile, int slot, bool with_q) const {
    if (with_q) {
      const auto rows = site.template q_rows<const Elem>(p, p.tensors.q);
      copy_rows_async<Config::head_dim, threads>(q_shared, rows, tile_m, q_tile * tile_m, copier());
      cp_async_commit();
    }
    if (tile.valid()) {
      if constexpr (first == K) copy_tile<Config::head_dim>(k_shared + slot * k_bytes, p.tensors.k, tile);
      if constexpr (last == V) copy_tile<Config::head_dim_v>(v_shared + slot * v_bytes, p.tensors.v, tile);
    }
    cp_async_commit();
  }
  template <int Dim>
  __device__ __forceinline__ void copy_tile(u32 to, const LuattnTensor &t, Tile tile) const {
    const int h = copies_anew ? anew(kv_head) : kv_head;
    copy_tile_async<tile_n, Dim, threads>(to, site.template kv_rows<const Elem>(p, t, h), first_key(tile), copier());
  }

  // The row of fragment m behind the warp's first: other parts of Q are as many tiles further.
  LUATTN_FN constexpr int q_row(int m) { return m / m_tiles * tile_m + m % m_tiles * 16; }
  template <int M>
  __device__ __forceinline__ void read_q(int step, u32 (&a)[M][4]) const {
    const LanePointer<dim, false> pointer{u32(lane)};
#pragma unroll
    for (int m = 0; m < M; ++m) ldmatrix_x4(a[m], pointer.at(q_shared + warp_row * (dim * 2), q_row(m), step * 16));
  }
  __device__ __forceinline__ void keep_q() {
    if constexpr (q_in_registers) {
      cp_async_wait<1>();
      __syncthreads();
#pragma unroll
      for (int step = 0; step < dim / 16; ++step) read_q(step, q_frag[step]);
    }
  }

  // ---- compute ----

  // Computes S = Q K^T. Fragments are loaded ahead of their products: K one step, Q one round of 16 channels.
  // If Q comes from shared memory, an iteration of a rolled loop takes two rounds. `at` then maps the address
  // of a row's first channels to that of a round's channels by an exclusive or, within as many channels as
  // the swizzle and the alignment of rows allow.
  __device__ __forceinline__ void dots(float (&s)[m_tiles][n_tiles][4], int slot) const {
    zero(s);
    add_dots<0, m_tiles>(s, k_shared + slot * k_bytes);
  }
  template <int N>
  LUATTN_FN void zero(float (&s)[N][n_tiles][4]) {
#pragma unroll
    for (int m = 0; m < N; ++m)
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][n][i] = 0;
  }
  // s[First + m] += the first M fragments of Q times K.
  template <int First, int M, int N>
  __device__ __forceinline__ void add_dots(float (&s)[N][n_tiles][4], u32 k_tile) const {
    constexpr int per_round = n_tiles / 2, rounds = dim / 16, unit = rolls ? 2 : rounds;
    const LanePointer<dim, true> pointer{u32(lane)};
    const u32 q_tile = q_shared + warp_row * (dim * 2);
    const u32 k_first = pointer.at(k_tile, 0, 0), q_first = LanePointer<dim, false>{u32(lane)}.at(q_tile, 0, 0);
    u32 a[2][M][4], b[2][4];
#pragma unroll(rolls ? 1 : rounds)
    for (int first = 0; first < rounds; first += unit) {
      const auto get_q = [&](int i) {
        if constexpr (!q_in_registers && rolls) {
#pragma unroll
          for (int m = 0; m < M; ++m) ldmatrix_x4(a[i % 2][m], at(q_first, first + i) + q_row(m) * (2 * dim));
        } else if constexpr (!q_in_registers) {
          read_q(i, a[i % 2]);
        }
      };
      const auto get_k = [&](int step) {
        const int i = step / per_round, row = step % per_round * 16;
        ldmatrix_x4(b[step % 2], rolls ? at(k_first, first + i) + row * (2 * dim) : pointer.at(k_tile, row, i * 16));
      };
      get_q(0);
      get_k(0);
#pragma unroll
      for (int i = 0; i < unit; ++i) {
        if (i + 1 < unit) get_q(i + 1);
#pragma unroll
        for (int j = 0; j < per_round; ++j) {
          const int step = i * per_round + j;
          if (step + 1 < unit * per_round) get_k(step + 1);
          if constexpr (q_in_registers)
            multiply<First>(s, 2 * j, q_frag[i], b[step % 2]);
          else
            multiply<First>(s, 2 * j, a[i % 2], b[step % 2]);
        }
      }
    }
  }
  LUATTN_FN u32 at(u32 first, int round) {
    const u32 bytes = u32(round) * 32;
    return (dim & (dim - 1)) == 0 ? first ^ bytes : (first ^ (bytes & 127)) + (bytes & ~127u);
  }
  template <int First, int N, int M>
  LUATTN_FN void multiply(float (&s)[N][n_tiles][4], int n, const u32 (&a)[M][4], const u32 (&b)[4]) {
    if constexpr (First == 0 && N == M) {
      mma_16_columns<Elem>(s, n, a, b);
    } else {
      mma_16x8x16<Elem>(s[First][n], a[0], b[0], b[1]);
      mma_16x8x16<Elem>(s[First][n + 1], a[0], b[2], b[3]);
    }
  }

  LUATTN_FN Key first_key(const Tile &tile) { return Sequence::template first_key<tile_n>(tile.index); }

  // Turns dot products into scores. If only some tiles are masked, their masked elements are scored like the
  // others: a position outside the lengths reads a clamped element of an input, and the result is dropped.
  __device__ __forceinline__ void score(const float (&s)[m_tiles][n_tiles][4], const Key &kv0, int slot,
                                        float (&x)[rows][cols]) const {
    if constexpr (has_terms) {
      const typename Boxes::template Terms<ForwardSm80> terms(*this, slot);
      score_with(terms, s, kv0, x);
    } else {
      const DistanceTerms<Spec, Fragment, rows, cols / 2> terms(p, site, head, distance(kv0), lane);
      score_with(terms, s, kv0, x);
    }
  }
  template <class Terms>
  __device__ __forceinline__ void score_with(const Terms &terms, const float (&s)[m_tiles][n_tiles][4], const Key &kv0,
                                             float (&x)[rows][cols]) const {
#pragma unroll
    for (int j = 0; j < cols; ++j) {
      const KeyPlace kv = column(kv0, j);
      const Col col = score_col<Spec>(p, site, head, kv);
#pragma unroll
      for (int r = 0; r < rows; ++r)
        x[r][j] = score_of<Spec>(p, site, head, row[r], col, s[r / 2][j / 2][Fragment::element(r % 2, j % 2)],
                                 position(r, lane), kv, terms.get(r, j / 2, j % 2));
    }
  }
  __device__ __forceinline__ KeyPlace column(const Key &kv0, int j) const {
    return {kv0 + Fragment::column(lane), Fragment::column_of(j)};
  }
  // From the warp's last row to the tile's first key.
  static_assert(Sequence::is_line || !Spec::has_distance_term, "distances lie along lines");
  __device__ __forceinline__ int distance(const Key &kv0) const {
    if constexpr (Sequence::is_line)
      return kv0 - (q_tile * tile_m + warp_row + warp_rows - 1);
    else
      return 0;
  }

  // Evaluates the mask in a rolled loop over columns: it may be a long expression, and few tiles are masked.
  // Row values that only the mask uses are recomputed here, so that they take no registers elsewhere.
  __device__ __forceinline__ void find_kept(const Key &kv0, KeepBits<cols> (&keep)[rows]) const {
    const int lane = lane_anew();
    if constexpr (!Sequence::is_line && Spec::row_intervals > 0) return Boxes::find_kept(*this, kv0, lane, keep);
#pragma unroll
    for (int r = 0; r < rows; ++r) keep[r] = KeepBits<cols>::none();
    Row row_here[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r)
      row_here[r] = Spec::only_keep_reads_row ? Spec::row(p, site, head, query(r, lane)) : row[r];
    if constexpr (Spec::has_flag_line && tile_n % 64 == 0 && Sequence::is_line)
      if (site.has_keys(p, kv0, tile_n) && flags_are_wide<Spec>(p, kv0 + tile_n))
        return read_flag_lines(kv0, lane, row_here, keep);
    if constexpr (Spec::keep_by_column && Sequence::is_line)
      if (ask_runs(kv0, lane, row_here, keep)) return;
    ask_all<false>(kv0, lane, row_here, keep);
  }
  // Asks once for each run of keys. False: there are too many.
  __device__ __forceinline__ bool ask_runs(int kv0, int lane, const Row (&row_here)[rows],
                                           KeepBits<cols> (&keep)[rows]) const {
    const int behind = Fragment::column(lane);
    const auto col = [&](int i) { return Spec::col(p, site, head, site.clamped_key(p, kv0 + i)); };
    const auto runs = MaskRuns<tile_n>::find(lane, [&](int i) { return !Spec::same_column(col(i), col(i - 1)); });
    if (!runs.template few<Fragment::row_lanes>()) return false;
    constexpr int of_word = columns_of_word<Fragment>;
    runs.each([&](int first, int end) {
      const int kv = site.clamped_key(p, kv0 + first), lo = first - behind,
                hi = min_of(end, site.keys(p) - kv0) - behind;
      const Col of_run = Spec::col(p, site, head, kv);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        if (!keeps<false>(row_here[r], of_run, query(r, lane), kv)) continue;
#pragma unroll
        for (int w = 0; w < (cols + 31) / 32; ++w)
          keep[r].word[w] |= columns_between<Fragment>(lo - of_word * w, hi - of_word * w, tile_n - of_word * w);
      }
    });
    return true;
  }
  // Beside: only the part of the mask that is no flag.
  template <bool Beside>
  __device__ __forceinline__ void ask_all(const Key &kv0, int lane, const Row (&row_here)[rows],
                                          KeepBits<cols> (&keep)[rows]) const {
#pragma unroll
    for (int w = 0; w < (cols + 31) / 32; ++w) {
#pragma unroll 1
      for (int bit = 0; bit < 32 && 32 * w + bit < cols; ++bit) {
        const int j = 32 * w + bit;
        const Key at = kv0 + Fragment::pair_of(j / 2) + Fragment::column(lane) + j % 2, kv = site.clamped_key(p, at);
        const Col col = Spec::col(p, site, head, kv);
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          const bool kept = keeps<Beside>(row_here[r], col, query(r, lane), kv);
          keep[r].word[w] |= u32(kept && site.has_key(p, at)) << bit;
        }
      }
    }
  }
  // In a tile inside the lengths.
  __device__ __forceinline__ void read_flag_lines(int kv0, int lane, const Row (&row_here)[rows],
                                                  KeepBits<cols> (&keep)[rows]) const {
#pragma unroll
    for (int r = 0; r < rows; r += 2) {
      u32 bits[tile_n / 64];
      flags_of_two_rows<Fragment>(Spec::flag_line(p, site, head, query(r, lane)) + u32(kv0),
                                  Spec::flag_line(p, site, head, query(r + 1, lane)) + u32(kv0), lane, bits);
#pragma unroll
      for (int i = 0; i < tile_n / 64; ++i) {
        keep[r].word[i / 2] |= (bits[i] & 0xffffu) << i % 2 * 16;
        keep[r + 1].word[i / 2] |= bits[i] >> 16 << i % 2 * 16;
      }
    }
    if constexpr (Spec::has_keep_beside) {
      KeepBits<cols> beside[rows];
#pragma unroll
      for (int r = 0; r < rows; ++r) beside[r] = KeepBits<cols>::none();
      ask_all<true>(kv0, lane, row_here, beside);
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int w = 0; w < (cols + 31) / 32; ++w) keep[r].word[w] &= beside[r].word[w];
    }
  }
  template <bool Beside>
  __device__ __forceinline__ bool keeps(const Row &row, const Col &col, int q, const Key &kv) const {
    if constexpr (Beside)
      return Spec::keep_beside(p, site, head, row, col, q, kv);
    else if constexpr (Spec::has_mask)
      return Spec::keep(p, site, head, row, col, q, kv);
    else
      return true;
  }
  // Replaces scores that the mask drops by -inf, or by 0 without Spec::mask_by_inf.
  LUATTN_FN void mask(const KeepBits<cols> (&keep)[rows], float (&x)[rows][cols]) {
    const float gone = Spec::mask_by_inf ? -infinity<float>() : 0.f;  // also for mask_by_zero
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int j = 0; j < cols; j += 4)
        keep_4(x[r][j], x[r][j + 1], x[r][j + 2], x[r][j + 3], keep[r].word[j / 32] >> j % 32, gone);
  }

  // Multiplies O by the rows' factors. After a few tiles, often no row of the warp has a new maximum, and all
  // factors are 1.
  __device__ __forceinline__ void rescale(const float (&scale)[rows]) {
    if constexpr (Spec::has_rescale) {
      bool changed = false;
#pragma unroll
      for (int r = 0; r < rows; ++r) changed |= scale[r] != 1.f;
      if (!__any_sync(0xffffffffu, changed)) return;
      scale_out<0, v_blocks>(scale[0], scale[1]);
      if constexpr (m_tiles > 1) scale_out<v_blocks, v_blocks>(scale[2], scale[3]);
    }
  }

  // Zeroes the weights that dropout drops.
  __device__ __forceinline__ void drop(const Key &kv0, float (&x)[rows][cols]) const {
    using Kept = DroppedKind<Config, Fragment, false, tile_n / 16>;
    if constexpr (!Sequence::is_line) {
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        u32 kept[Kept::words];
        Kept::draw_keys(kept, dropout, p, int(position(r, lane)), kv0 + Fragment::column(lane));
#pragma unroll
        for (int j = 0; j < cols; ++j) x[r][j] = (kept[j / 32] >> j % 32 & 1u) != 0 ? x[r][j] : 0.f;
      }
      return;
    } else {
      drop_blocks<Kept>(kv0, x);
    }
  }
  template <class Kept>
  __device__ __forceinline__ void drop_blocks(const Key &kv0, float (&x)[rows][cols]) const {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
      const auto kept = Kept::draw(dropout, q_tile * tile_m + warp_row + m * 16 + dropout.first_q(p, site),
                                   kv0 + dropout.first_kv(p, site), lane);
#pragma unroll
      for (int j = 0; j < cols; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) x[m * 2 + half][j] = kept.get(j, half) ? x[m * 2 + half][j] : 0.f;
    }
  }

  // Adds P V to O.
  __device__ __forceinline__ void add_values(const float (&x)[rows][cols], int slot) {
    const LanePointer<dim_v, false> pointer{u32(lane)};
    const u32 tile = v_shared + slot * v_bytes;
#pragma unroll
    for (int step = 0; step < tile_n / 16; ++step) {
      round_probs<Elem, 0>(x[0] + step * 4, x[1] + step * 4);
      if constexpr (m_tiles > 1) round_probs<Elem, 1>(x[2] + step * 4, x[3] + step * 4);
      add_products<0>(pointer, tile, step * 16);
    }
  }
  template <int N>
  LUATTN_FN void add_products(const LanePointer<dim_v, false> &pointer, u32 tile, int row) {
    if constexpr (N < v_blocks) {
      add_values_16<Elem, m_tiles, N, v_blocks>(pointer.at(tile, row, N * 16));
      add_products<N + 1>(pointer, tile, row);
    }
  }

  // The tiles that a loop handles: without a mask, with one, or both. One loop for both takes half the time
  // to compile; a masked tile then differs only in a branch that replaces masked scores by -inf or 0. If
  // masked scores cannot be replaced, the rest of the step differs as well, and two loops are faster: at the
  // join of a longer branch all accumulators would be moved.
  enum Kind { OPEN, MASKED, MIXED };
  static constexpr bool one_loop = Spec::mask_by_inf || Spec::mask_by_zero;

  template <Kind kind>
  __device__ __forceinline__ void absorb(const float (&s)[m_tiles][n_tiles][4], Tile tile, int slot) {
    float x[rows][cols], scale[rows];
    const Key kv0 = first_key(tile);
    score(s, kv0, slot, x);
    online.enter_tile(column(kv0, 0));
    if constexpr (kind == MIXED) {
      bool some = true;
      if (__any_sync(0xffffffffu, tile.masked)) {  // the vote tells the compiler that the
                                                   // warp stays converged
        KeepBits<cols> keep[rows];
        find_kept(kv0, keep);
        mask(keep, x);
        const u32 kept = online.kept_rows(keep);
        online.kept.bits |= kept;
        some = kept != 0;
      } else {
        online.kept.bits = online.all;
      }
      // With two stages has_work decides this, but over a grid, where it knows of no part of a box.
      if ((stages == 1 || !Sequence::is_line) && !__any_sync(0xffffffffu, some)) return;
      online.step_by_inf(p, site, head, row, x, scale);
    } else {
      KeepBits<cols> keep[rows];
      if constexpr (kind == MASKED) {
        find_kept(kv0, keep);
        mask(keep, x);
      }
      online.template step<kind == MASKED>(p, site, head, row, x, keep, scale);
    }
    rescale(scale);
    if constexpr (Drops::any) drop(kv0, x);
    add_values(x, slot);
  }

  // Whether a tile keeps anything of this warp's rows (used with two stages). The rows may lie beyond q_len,
  // and a masked tile may be empty for them. The walk has already applied block statistics to the tile. The
  // vote tells the compiler that the warp stays converged.
  __device__ __forceinline__ bool has_work(Tile tile) const {
    const int first = q_tile * tile_m + warp_row, last = site.last_query(p, first, warp_rows);
    bool work = tile.valid() && first <= last;
    if constexpr (Sequence::is_line)
      if (work && tile.masked) {
        const int kv0 = tile.index * tile_n, kv1 = site.last_key(p, kv0, tile_n);
        if constexpr (Spec::num_block_bounds > 0) {
          const Range kept = kept_keys<Spec>(p, site, first, last);
          work = kept.lo <= kv1 && kv0 < kept.hi;
        } else {
          work = class_of<Spec>(p, site, first, last, kv0, kv1) != TILE_EMPTY;
        }
      }
    return __any_sync(0xffffffffu, work);
  }

  // This thread's numbers of a tile's table of terms by displacement, and their stores.
  struct NoNumbers {};
  __device__ __forceinline__ auto numbers_of(const Tile &tile) const {
    if constexpr (has_terms)
      return Boxes::numbers(*this, tile);
    else
      return NoNumbers{};
  }
  template <class Numbers>
  __device__ __forceinline__ void store_numbers(const Numbers &numbers, const Tile &tile, int slot) const {
    if constexpr (has_terms)
      if (tile.valid()) numbers.store(Boxes::table(*this, slot), int(threadIdx.x));
  }

  // Runs one iteration over tiles: finds and loads the next tile, and computes the current one. The first
  // iteration has no current tile, so that the code of both has one copy for all tiles. With one stage the
  // scores are those of the previous iteration, and must not depend on has_work: a branch around everything
  // that uses them adds a tenth to the compile time.
  struct Iteration {
    KvTilesOf<Spec, Sequence, tile_m, tile_n> walk;
    Tile tile;
    int slot;
  };
  template <Kind kind>
  __device__ __forceinline__ void iterate(Iteration &t, float (&s)[m_tiles][n_tiles][4]) {
    const Tile next = t.walk.next(p, site);
    if constexpr (has_chunks)
      if (t.tile.valid()) site.enter_keys(p, t.tile.index * tile_n);
    if constexpr (stages == 2) {
      const bool work = has_work(t.tile);
      if (t.tile.valid()) {
        cp_async_wait<0>();
        __syncthreads();  // this tile has been loaded, and the previous one is free
      }
      load<K, V>(next, t.slot ^ 1, !t.tile.valid());
      if (!t.tile.valid()) keep_q();
      const auto next_terms = numbers_of(next);
      if (work) {
        dots(s, t.slot);
        store_numbers(next_terms, next, t.slot ^ 1);
        absorb<kind>(s, t.tile, t.slot);
      } else {
        store_numbers(next_terms, next, t.slot ^ 1);
      }
      t.slot ^= 1;
    } else {
      load<K, K>(next, 0, !t.tile.valid());
      if (!t.tile.valid()) keep_q();
      if (t.tile.valid()) absorb<kind>(s, t.tile, 0);
      if (next.valid()) {
        cp_async_wait<0>();
        __syncthreads();  // K has been loaded, V is free
        load<V, V>(next, 0, false);
        const auto next_terms = numbers_of(next);
        dots(s, 0);
        store_numbers(next_terms, next, 0);
        cp_async_wait<0>();
        __syncthreads();  // V has been loaded, K is free
      }
    }
    t.tile = next;
  }

  __device__ __forceinline__ void run() {
    Iteration t{{p, site, q_tile}, {Tile::none(), false}, 1};
    float s[m_tiles][n_tiles][4];
    begin();
    if constexpr (one_loop) {
#pragma unroll 1
      do iterate<MIXED>(t, s);
      while (t.tile.valid());
    } else {
#pragma unroll 1
      do {
#pragma unroll 1
        do iterate<OPEN>(t, s);
        while (t.tile.valid() && !t.tile.masked);
#pragma unroll 1
        while (t.tile.valid() && t.tile.masked) iterate<MASKED>(t, s);
      } while (t.tile.valid());
    }
  }

  // ---- finish ----

  // Every lane of a row has the row's state, so each lane handles one of the rows that they share.
  __device__ __forceinline__ void finish() {
    online.finish();
    const int mine = Fragment::lane_in_row(lane);
    Row my_row = row[0];
    State my_state = online.state[0];
#pragma unroll
    for (int r = 1; r < rows; ++r)
      if (mine == r) {
        my_row = row[r];
        my_state = online.state[r];
      }
    const bool kept = online.kept[mine];
    float my_scale = kept ? Spec::out_scale(p, site, head, my_row, my_state) : 0.f;
    if constexpr (Drops::any) my_scale *= float(Drops::factor);
    const int at = position(mine, lane);
    if (mine < rows && site.has_query(p, at)) write_row<Spec>(p, site, head, my_row, my_state, at, kept);
    float scale[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) scale[r] = __shfl_sync(0xffffffffu, my_scale, r, Fragment::row_lanes);
    write_output<0>(p.tensors.o, scale);
    cp_async_wait<0>();  // a block without tiles has not waited for Q
  }

  // Stores O directly from registers. Stores through shared memory would be wider and fill whole cache lines,
  // but they are no faster: L2 merges the lines.
  // From fragment First on.
  template <int First>
  __device__ __forceinline__ void write_output(const LuattnTensor &to, const float (&scale)[rows]) const {
    using Out = OutOf<Config>;
    const auto out = site.template q_rows<Out>(p, to);
    OutRow row[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const int at = position(r, lane);
      row[r] = {__cvta_generic_to_global(out.element(at, Fragment::column(lane))), scale[r], out.has(at)};
    }
    store_out<Out, First, Config::head_dim_v>(row[0], row[1]);
    if constexpr (m_tiles > 1) store_out<Out, First + v_tiles, Config::head_dim_v>(row[2], row[3]);
  }
};

template <class Spec, class Config>
LUATTN_FN void fwd_sm80(const LuattnParams &p, void *shared) {
  using Kernel = ForwardSm80<Spec, Config>;
  Kernel kernel(p, shared_address(shared), BlockSite::of_block<Spec::has_tile_bits>(p));
  if (kernel.site.packed && !kernel.site.has_query(p, kernel.q_tile * Config::tile_m)) return;  // as in fwd_simt
  kernel.run();
  kernel.finish();
}
