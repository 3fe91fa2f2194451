// fwd_sm80.cuh: the forward kernel of the sm80 family.
#pragma once
#include "copy.cuh"
#include "rows.cuh"
#include "tiles.cuh"

template <class Spec, class Config> struct ForwardSm80 {
  using Elem = typename Config::Elem;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;
  using Col = typename Spec::Col;
  static_assert(same_type<typename Spec::Real, float>::value && sizeof(Elem) == 2, "f16 or bf16, accumulated in f32");

  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, threads = Config::threads;
  static constexpr int stages = Config::stages;
  static constexpr int dim = padded_dim(Config::head_dim), dim_v = padded_dim(Config::head_dim_v);
  static constexpr int warp_rows = tile_m / (threads / 32); // query rows of a warp
  static constexpr int m_tiles = warp_rows / 16, n_tiles = tile_n / 8, v_tiles = dim_v / 8;
  static constexpr int rows = 2 * m_tiles, cols = tile_n / 4; // of one thread
  static_assert(threads % 32 == 0 && warp_rows * (threads / 32) == tile_m && warp_rows % 16 == 0, "16 rows, or 32, a warp");
  static_assert(tile_n % 16 == 0 && (stages == 1 || stages == 2));

#ifndef Q_REGS
#define Q_REGS 32
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
#ifndef VOTE
#define VOTE 0
#endif
#ifndef OVERLAP
#define OVERLAP 0
#endif
  static constexpr bool q_in_registers = m_tiles * (dim / 16) * 4 <= Q_REGS;
  static constexpr int q_frags = q_in_registers ? dim / 16 : 1;

  using QTile = SharedTile<dim>;
  using VTile = SharedTile<dim_v>;
  static constexpr int q_bytes = QTile::bytes(tile_m), k_bytes = QTile::bytes(tile_n), v_bytes = VTile::bytes(tile_n);

  const LuattnParams &p;
  Site site;
  Head head;
  Row row[rows];
  OnlineRows<Spec, rows, cols, 4> online;
  float o[m_tiles][v_tiles][4];
  u32 q_frag[m_tiles][q_frags][4];
  HeadRows<Elem> k, v;
  int thread, lane, warp_row, q0; // the warp's first row in the tile; the tile's first query
  u32 q_tile, k_tile, v_tile;     // shared memory

  __device__ __forceinline__ ForwardSm80(const LuattnParams &params, u32 shared, int q_index, int h, int b)
      : p(params), site{b, h, params.q_len, params.kv_len} {
    thread = int(threadIdx.x);
    lane = thread % 32;
    warp_row = thread / 32 * warp_rows;
    q0 = q_index * tile_m;
    q_tile = shared;
    k_tile = q_tile + q_bytes;
    v_tile = k_tile + stages * k_bytes;
    k = head_of(p.k, h / p.group);
    v = head_of(p.v, h / p.group);
    head = Spec::head(p, site);
#pragma unroll
    for (int r = 0; r < rows; ++r) row[r] = Spec::row(p, site, head, query(r));
    online.init(p, site, head, row);
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
      for (int n = 0; n < v_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[m][n][i] = 0;
  }

  __device__ __forceinline__ HeadRows<Elem> head_of(const LuattnTensor &t, int h) const {
    return {static_cast<const Elem *>(t.data) + site.b * t.batch + h * t.head, t.seq};
  }
  // Row r of this thread, before and after it is clamped to the tensor.
  __device__ __forceinline__ int position(int r) const { return q0 + warp_row + r / 2 * 16 + r % 2 * 8 + lane / 4; }
  __device__ __forceinline__ int query(int r) const { return min_of(position(r), site.q_len - 1); }

  // ---- load ----
  __device__ __forceinline__ void load_q() {
    copy_tile_async<true, tile_m, Config::head_dim, threads>(q_tile, head_of(p.q, site.h), q0, site.q_len, thread);
  }
  template <bool Ragged> __device__ __forceinline__ void load_k(Tile tile, int slot) {
    copy_tile_async<Ragged, tile_n, Config::head_dim, threads>(k_tile + slot * k_bytes, k, tile.index * tile_n, site.kv_len, thread);
  }
  template <bool Ragged> __device__ __forceinline__ void load_v(Tile tile, int slot) {
    copy_tile_async<Ragged, tile_n, Config::head_dim_v, threads>(v_tile + slot * v_bytes, v, tile.index * tile_n, site.kv_len, thread);
  }
  __device__ __forceinline__ bool ragged(Tile tile) const { return tile.index * tile_n + tile_n > site.kv_len; }
  __device__ __forceinline__ void load_k(Tile tile, int slot) {
    if (ragged(tile)) load_k<true>(tile, slot); else load_k<false>(tile, slot);
  }
  __device__ __forceinline__ void load_v(Tile tile, int slot) {
    if (ragged(tile)) load_v<true>(tile, slot); else load_v<false>(tile, slot);
  }
  __device__ __forceinline__ void load_kv(Tile tile, int slot) {
    if (ragged(tile)) load_k<true>(tile, slot), load_v<true>(tile, slot);
    else load_k<false>(tile, slot), load_v<false>(tile, slot);
  }

  __device__ __forceinline__ void read_q(int step, u32 (&a)[m_tiles][4]) const {
    const LanePointer<dim, false> pointer{u32(lane)};
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) ldmatrix_x4(a[m], pointer.at(q_tile + warp_row * (dim * 2), m * 16, step * 16));
  }
  __device__ __forceinline__ void query_fragment(int step, u32 (&a)[m_tiles][4]) const {
    if constexpr (q_in_registers) {
#pragma unroll
      for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) a[m][i] = q_frag[m][step][i];
    } else {
      read_q(step, a);
    }
  }
  __device__ __forceinline__ void keep_q() {
    if constexpr (q_in_registers) {
#pragma unroll
      for (int step = 0; step < q_frags; ++step) {
        u32 a[m_tiles][4];
        read_q(step, a);
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i) q_frag[m][step][i] = a[m][i];
      }
    }
  }

  // ---- compute ----
  __device__ __forceinline__ void dots(float (&s)[m_tiles][n_tiles][4], int slot) const {
    const LanePointer<dim, true> pointer{u32(lane)};
    const u32 tile = k_tile + slot * k_bytes;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][n][i] = 0;
#pragma unroll
    for (int step = 0; step < dim / 16; ++step) {
      u32 a[m_tiles][4];
      query_fragment(step, a);
#pragma unroll
      for (int n = 0; n < n_tiles; n += 2) {
        u32 b[4];
        ldmatrix_x4(b, pointer.at(tile, n * 8, step * 16));
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
          mma_16x8x16<Elem>(s[m][n], a[m], b[0], b[1]);
          mma_16x8x16<Elem>(s[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  template <bool Masked>
  __device__ __forceinline__ void score(const float (&s)[m_tiles][n_tiles][4], int kv0, float (&x)[rows][cols],
                                        KeepBits<cols> (&keep)[rows]) const {
#pragma unroll
    for (int r = 0; r < rows; ++r) keep[r] = KeepBits<cols>::none();
#pragma unroll
    for (int j = 0; j < cols; ++j) {
      const int at = kv0 + j / 2 * 8 + lane % 4 * 2 + j % 2;
      const int kv = Masked ? min_of(at, site.kv_len - 1) : at;
      const Col col = Spec::col(p, site, head, kv);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        x[r][j] = Spec::score(p, site, head, row[r], col, s[r / 2][j / 2][r % 2 * 2 + j % 2], query(r), kv);
        if constexpr (Masked) {
          bool kept = at < site.kv_len;
          if constexpr (Spec::has_mask) kept = kept && Spec::keep(p, site, head, row[r], col, query(r), kv);
          keep[r].set(j, kept);
          if (Spec::mask_by_inf && !kept) x[r][j] = -infinity<float>();
        }
      }
    }
  }

  __device__ __forceinline__ void rescale(const float (&scale)[rows]) {
    if constexpr (Spec::has_rescale) {
#pragma unroll
      for (int m = 0; m < m_tiles; ++m) {
        if (VOTE && !__any_sync(0xffffffffu, scale[2 * m] != 1.f || scale[2 * m + 1] != 1.f)) continue;
#pragma unroll
        for (int n = 0; n < v_tiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) o[m][n][i] *= scale[2 * m + i / 2];
      }
    }
  }

  __device__ __forceinline__ void add_values(const float (&x)[rows][cols], int slot) {
    const LanePointer<dim_v, false> pointer{u32(lane)};
    const u32 tile = v_tile + slot * v_bytes;
#pragma unroll
    for (int step = 0; step < tile_n / 16; ++step) {
      u32 a[m_tiles][4];
#pragma unroll
      for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = 2 * m + i % 2, j = step * 4 + i / 2 * 2;
          a[m][i] = pack<Elem>(x[r][j], x[r][j + 1]);
        }
#pragma unroll
      for (int n = 0; n < v_tiles; n += 2) {
        u32 b[4];
        ldmatrix_x4_trans(b, pointer.at(tile, step * 16, n * 8));
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
          mma_16x8x16<Elem>(o[m][n], a[m], b[0], b[1]);
          mma_16x8x16<Elem>(o[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  template <bool Masked>
  __device__ __forceinline__ void absorb(const float (&s)[m_tiles][n_tiles][4], Tile tile, int slot) {
    float x[rows][cols], scale[rows];
    KeepBits<cols> keep[rows];
    score<Masked>(s, tile.index * tile_n, x, keep);
    online.template step<Masked>(p, site, head, row, x, keep, scale);
    rescale(scale);
    add_values(x, slot);
  }

  // A masked tile may be empty or full for the rows of this warp alone.
  __device__ __forceinline__ TileClass warp_class(Tile tile) const {
    if (!tile.masked) return TILE_FULL;
    const int first = q0 + warp_row, last = min_of(first + warp_rows, site.q_len) - 1;
    if (last < first) return TILE_EMPTY;
    const int kv0 = tile.index * tile_n, kv1 = min_of(kv0 + tile_n, site.kv_len) - 1;
    const TileClass c = class_of<Spec>(p, site, first, last, kv0, kv1);
    return c == TILE_FULL && kv0 + tile_n > site.kv_len ? TILE_PARTIAL : c;
  }

  __device__ __forceinline__ void run() {
    KvTiles<Spec, tile_m, tile_n> walk(p, site, q0 / tile_m);
    Tile tile = walk.next(p, site);
    load_q();
    cp_async_commit();
    if constexpr (stages == 1) {
      if (tile.valid()) load_k(tile, 0);
      cp_async_commit();
      cp_async_wait<1>();
      __syncthreads();
      keep_q();
      while (tile.valid()) {
        cp_async_wait<0>();
        __syncthreads();
        load_v(tile, 0);
        cp_async_commit();
        const TileClass c = warp_class(tile);
        float s[m_tiles][n_tiles][4];
        if (c != TILE_EMPTY) dots(s, 0);
        cp_async_wait<0>();
        __syncthreads();
        const Tile next = walk.next(p, site);
        if (next.valid()) load_k(next, 0);
        cp_async_commit();
        if (c == TILE_FULL) absorb<false>(s, tile, 0);
        else if (c == TILE_PARTIAL) absorb<true>(s, tile, 0);
        tile = next;
      }
    } else if constexpr (OVERLAP) {
      Tile next = walk.next(p, site);
      if (tile.valid()) load_k(tile, 0);
      cp_async_commit();
      if (tile.valid()) load_v(tile, 0);
      if (next.valid()) load_k(next, 1);
      cp_async_commit();
      cp_async_wait<1>();
      __syncthreads();
      float s[m_tiles][n_tiles][4];
      if (tile.valid()) { keep_q(); dots(s, 0); }
      int slot = 0;
      while (tile.valid()) {
        const Tile after = walk.next(p, site);
        cp_async_wait<0>();
        __syncthreads();
        if (next.valid()) load_v(next, slot ^ 1);
        if (after.valid()) load_k(after, slot);
        cp_async_commit();
        float s_next[m_tiles][n_tiles][4];
        const TileClass c = warp_class(tile);
        if (c == TILE_FULL) {
          dots(s_next, slot ^ 1);
          absorb<false>(s, tile, slot);
        } else {
          dots(s_next, slot ^ 1);
          if (c == TILE_PARTIAL) absorb<true>(s, tile, slot);
        }
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
#pragma unroll
          for (int n = 0; n < n_tiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) s[m][n][i] = s_next[m][n][i];
        tile = next;
        next = after;
        slot ^= 1;
      }
    } else {
      if (tile.valid()) load_kv(tile, 0);
      cp_async_commit();
      cp_async_wait<1>();
      __syncthreads();
      keep_q();
      int slot = 0;
      while (tile.valid()) {
        const Tile next = walk.next(p, site);
        cp_async_wait<0>();
        __syncthreads();
        if (next.valid()) load_kv(next, slot ^ 1);
        cp_async_commit();
        const TileClass c = warp_class(tile);
        if (c == TILE_FULL) {
          float s[m_tiles][n_tiles][4];
          dots(s, slot);
          absorb<false>(s, tile, slot);
        } else if (c == TILE_PARTIAL) {
          float s[m_tiles][n_tiles][4];
          dots(s, slot);
          absorb<true>(s, tile, slot);
        }
        tile = next;
        slot ^= 1;
      }
    }
  }

  // ---- finish ----
  __device__ __forceinline__ void write_rows(float (&out_scale)[rows]) {
    using Real = float;
    const i64 at = (i64(site.b) * p.heads + site.h) * site.q_len, plane = i64(p.batch) * p.heads * site.q_len;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const auto &state = online.state[r];
      const bool kept = online.kept[r];
      out_scale[r] = kept ? Spec::out_scale(p, site, head, row[r], state) : 0.f;
      if (lane % 4 != 0 || position(r) >= site.q_len) continue;
      if constexpr (Spec::has_lse) {
        if (p.lse.data) {
          Real *lse = static_cast<Real *>(p.lse.data) + site.b * p.lse.batch + site.h * p.lse.head + position(r) * p.lse.seq;
          *lse = kept ? Spec::lse(p, site, head, row[r], state) : -infinity<Real>();
        }
      }
      if constexpr (Spec::num_saved > 0) {
        if (p.saved) {
          Real saved[Spec::num_saved] = {};
          if (kept) Spec::save(p, site, head, row[r], state, saved);
#pragma unroll
          for (int i = 0; i < Spec::num_saved; ++i) static_cast<Real *>(p.saved)[i * plane + at + position(r)] = saved[i];
        }
      }
    }
  }

  __device__ __forceinline__ void finish() {
    float out_scale[rows];
    online.finish();
    write_rows(out_scale);
    cp_async_wait<0>();
    __syncthreads(); // the output takes the place of Q, and of K where it is wider
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
      store_fragments<Elem, dim_v>(q_tile, warp_row + m * 16, o[m], out_scale[2 * m], out_scale[2 * m + 1], lane);
    __syncwarp();
    Elem *out = static_cast<Elem *>(p.o.data) + site.b * p.o.batch + site.h * p.o.head + i64(q0 + warp_row) * p.o.seq;
    store_tile<warp_rows, Config::head_dim_v, 32>(out, p.o.seq, q_tile + warp_row * (dim_v * 2), 0,
                                                  site.q_len - q0 - warp_row, lane);
  }
};

template <class Spec, class Config>
__device__ __forceinline__ void forward_sm80(const LuattnParams &p, void *shared) {
  static_assert(ValidSpec<Spec>);
  ForwardSm80<Spec, Config> block(p, shared_address(shared), int(gridDim.x - 1 - blockIdx.x), int(blockIdx.y), int(blockIdx.z));
  block.run();
  block.finish();
}
