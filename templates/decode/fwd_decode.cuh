// decode/fwd_decode.cuh: forward for few queries and many keys: f16 or bf16, mma.sync with f32 accumulation, any GPU
// from sm_80 on. What limits it is how fast K and V come from memory, each of which is read once.
//
// The query heads of a kv head are rows of one tile, row q * group + g, so that a tile has an interval of queries. Grid
// (q tiles * num_splits, heads_kv, batch). The blocks of a tile share its keys, a part each, and so do the warps of a
// block: a warp takes every warps-th tile of `keys` keys, all rows of them, and has a ring of stages in shared memory
// to which it alone copies. Entries that differ in length may have a list instead, by which longer ones have more
// blocks (work/split_list.cuh): the grid is then of one axis, and a block takes items of the list, one for each kv head,
// until none is left. So nothing in the loop waits for another warp:
//   load     K and V of a tile, stages - 1 tiles ahead, by cp.async with an address for each row
//   compute  S = Q K^T; S becomes P in registers, the A operand of O += P V
//   finish   the warps' sums and states are merged in shared memory, in order; then O is stored, or with several
//            blocks the part's sum and state, for luattn_merge (around/after/merge.cuh)
//
// A row has the hooks' numbers of its own head (Site, Head). A tile of keys is empty or whole if it is for every head.
//
// Of 64 rows a warp has 32, as more would take too many registers: two warps share a ring, copy half of each tile, and
// wait for one another once a tile, so that K and V are read once.
//
// Config: head dims are multiples of 8, as in sm80/fwd_sm80.cuh. tile_m is 16, 32 or 64 rows; tile_n = rings * keys,
// keys a multiple of 16; stages from 2 on. Dynamic shared memory: DecodeLayout of abi/shared_memory.h.
#pragma once
#include "arch/early_launch.cuh"
#include "score/dropout.cuh"
#include "score/fragment.cuh"
#include "score/merge_rows.cuh"
#include "score/online_rows.cuh"
#include "sink/padding.cuh"
#include "sink/partial_rows.cuh"
#include "sink/row_numbers.cuh"
#include "source/cp_async_tile.cuh"
#include "work/decode_work.cuh"

// What dropout draws from, of each row of a thread; a base, so that a kernel without it has no such member.
template <class Config, int Rows, bool = Dropout<Config>::any>
struct RowDraws {
  Dropout<Config> drops[Rows];
};
template <class Config, int Rows>
struct RowDraws<Config, Rows, false> {};

template <class Spec, class Config>
struct ForwardDecode : RowDraws<Config, Config::tile_m / decode_row_groups(Config::tile_m) / 8> {
  static_assert(SequenceOf<Config>::is_line, "keys exist up to kv_len");
  static_assert(ForwardSpec<Spec> && ValidMerge<Spec> && Spec::has_merge && !finds_places<Spec>());
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  using Sequence = SequenceOf<Config>;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;
  using Col = typename Spec::Col;
  using State = typename Spec::State;
  static_assert(same_type<typename Spec::Real, float>::value && sizeof(Elem) == 2, "f16 or bf16, accumulated in f32");

  static constexpr int tile_m = Config::tile_m, threads = Config::threads, row_groups = decode_row_groups(tile_m),
                       warps = threads / 32 / row_groups,  // that have keys of their own; each has row_groups - 1 mates
      stages = Config::stages, keys = Config::tile_n / warps;
  static constexpr int dim = padded_dim(Config::head_dim), dim_v = padded_dim(Config::head_dim_v);
  static constexpr int m_tiles = tile_m / row_groups / 16, n_tiles = keys / 8,
                       v_tiles = dim_v / 8;                                                  // fragments of a warp
  static constexpr int rows = Fragment::rows(16 * m_tiles), cols = Fragment::columns(keys);  // scores of a thread
  static_assert((tile_m == 16 || tile_m == 32 || tile_m == 64) && warps * row_groups * 32 == threads &&
                keys * warps == Config::tile_n && keys % 16 == 0 && stages >= 2);

  // Q stays in registers if that leaves enough of them.
  static constexpr bool q_in_registers = m_tiles * (dim + 2 * dim_v) <= (m_tiles == 1 ? 768 : 640);
  static constexpr int q_steps = q_in_registers ? dim / 16 : 1;

  static constexpr DecodeLayout layout = decode_layout(layout_sizes<Config>());
  static constexpr u32 k_bytes = layout.k, stage_bytes = layout.k + layout.v;
  static constexpr int out_pitch = layout.out_pitch;  // floats of a row of the warps' sums

  using Online = OnlineRows<Spec, 1, cols, Fragment::row_lanes, Fragment::adjacent>;
  using Drops = Dropout<Config>;
  using Block = DecodeBlock<Sequence, tile_m>;

  const LuattnSplitsParams &p;
  const Block block;
  const Sequence site;  // of the group's first head
  const int lane, warp;
  const u32 q_shared, ring;  // this warp's ring, or its mate's as well
  unsigned char *const shared;
  Sequence row_site[rows];
  int query[rows];  // clamped to the last one
  Head head[rows];
  Row row[rows][1];
  Online online[rows];
  u32 q_frag[q_steps][m_tiles][4];
  float o[m_tiles][v_tiles][4];

  __device__ __forceinline__ ForwardDecode(const LuattnSplitsParams &params, unsigned char *memory, const Block &block)
      : p(params),
        block(block),
        site(params, block.b, block.h_kv * Sequence::group(params)),
        lane(int(threadIdx.x) % 32),
        warp(row_groups == 1 ? int(threadIdx.x) / 32 : int(threadIdx.x) / 32 % warps),
        q_shared(shared_address(memory)),
        ring(q_shared + layout.at_ring + u32(warp) * (stages * stage_bytes)),
        shared(memory) {}

  // Of the mates that share a ring; the first of this warp's rows.
  __device__ __forceinline__ int mate() const { return row_groups == 1 ? 0 : int(threadIdx.x) / 32 / warps; }
  __device__ __forceinline__ int first_row() const { return mate() * (16 * m_tiles); }
  __device__ __forceinline__ void sync_ring() const {
    if constexpr (row_groups == 1)
      __syncwarp();
    else
      named_barrier(1 + warp, 32 * row_groups);
  }

  __device__ __forceinline__ bool has_rows() const { return block.has_rows(p, site); }

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const RowPlace place = block.place(p, site, first_row() + Fragment::row(lane) + Fragment::row_of(r));
      row_site[r] = site;
      row_site[r].h = place.h;
      query[r] = place.q;
      head[r] = Spec::head(p, row_site[r]);
      row[r][0] = Spec::only_keep_reads_row ? Row{} : Spec::row(p, row_site[r], head[r], place.q);
      online[r].init(p, row_site[r], head[r], row[r]);
      if constexpr (Drops::any) this->drops[r].enter_head(p, row_site[r]);
    }
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
      for (int n = 0; n < v_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[m][n][i] = 0;
  }

  // ---- load ----

  // The block's rows of Q; those past the end are zeros.
  __device__ __forceinline__ void load_q() const {
    using Tile = SharedTile<dim>;
#pragma unroll 1
    for (int i = int(threadIdx.x); i < tile_m * Tile::chunks; i += threads) {
      const int r = i / Tile::chunks, chunk = i % Tile::chunks;
      const RowPlace place = block.place(p, site, r);
      Sequence of_row = site;
      of_row.h = place.h;
      const bool exists = place.exists && chunk * 8 < Config::head_dim;
      const Elem *from = of_row.template q_row<const Elem>(p, p.tensors.q, place.q) + (exists ? chunk * 8 : 0);
      cp_async_16(q_shared + Tile::offset(u32(r), u32(chunk)), from, exists);
    }
  }

  // A tile to be copied, and the page that has its first row, which is looked up a tile ahead: the copies of a tile
  // that had to wait for it would start 0.4 us later, while few bytes are under way. Above head dim 128 there is no
  // register for it.
  struct TileInPage {
    KeyTile tile;
    int page;
  };
  static constexpr bool looks_ahead = Sequence::paged && dim <= 128 && dim_v <= 128;

  template <class Walk>
  __device__ __forceinline__ TileInPage look_up(Walk &walk) const {
    TileInPage found{walk.next(p), 0};
    if constexpr (looks_ahead)
      if (found.tile.valid()) found.page = site.page_of(p, found.tile.index() * keys);
    return found;
  }
  // The next tile.
  template <class Walk>
  __device__ __forceinline__ TileInPage advance(Walk &walk, TileInPage &upcoming) const {
    if constexpr (!looks_ahead) return look_up(walk);
    const TileInPage now = upcoming;
    upcoming = look_up(walk);
    return now;
  }

  // A warp's copy of the tile's rows of K or V. A row past the end is not read, nor is its place asked for.
  template <int Dim>
  __device__ __forceinline__ void copy_rows(u32 to, const LuattnTensor &t, int kv0, int page) const {
    using Tile = SharedTile<padded_dim(Dim)>;
    constexpr int width = power_above(Tile::chunks), pass = 32 / width;  // threads a row, rows a pass
    constexpr int each = keys / row_groups;                              // rows of this warp
    static_assert(each % pass == 0);
    const int first = mate() * each + lane / width, chunk = lane % width;
    if (width > Tile::chunks && chunk >= Tile::chunks) return;
    const bool in_row = Dim % 16 == 0 || chunk * 8 < Dim;
    if constexpr (Sequence::paged) {
      const auto pages = site.template kv_rows<const Elem>(p, t, block.h_kv);
      if (int(pages.page_size.d) % keys == 0) {  // the tile lies in one page, which is looked up once
        const Elem *row = looks_ahead ? pages.row_in(page, kv0) : pages.row(kv0),
                   *from = row + first * pages.seq + (in_row ? chunk * 8 : 0);
#pragma unroll
        for (int i = 0; i < each; i += pass) {
          cp_async_16(to + Tile::offset(u32(first + i), u32(chunk)), from, in_row && kv0 + first + i < site.kv_len);
          from += pass * pages.seq;
        }
        return;
      }
    }
    if (kv0 + keys <= site.kv_len) {
#pragma unroll
      for (int i = 0; i < each; i += pass)
        cp_async_16(to + Tile::offset(u32(first + i), u32(chunk)),
                    site.template kv_row<const Elem>(p, t, block.h_kv, kv0 + first + i) + (in_row ? chunk * 8 : 0),
                    in_row);
    } else {
#pragma unroll 1
      for (int i = 0; i < each; i += pass) {
        const int at = min_of(kv0 + first + i, site.kv_len - 1);
        cp_async_16(to + Tile::offset(u32(first + i), u32(chunk)),
                    site.template kv_row<const Elem>(p, t, block.h_kv, at) + (in_row ? chunk * 8 : 0),
                    in_row && kv0 + first + i < site.kv_len);
      }
    }
  }
  __device__ __forceinline__ void load(const TileInPage &at, int slot) const {
    if (at.tile.valid()) {
      const u32 to = ring + u32(slot) * stage_bytes;
      copy_rows<Config::head_dim>(to, p.tensors.k, at.tile.index() * keys, at.page);
      copy_rows<Config::head_dim_v>(to + k_bytes, p.tensors.v, at.tile.index() * keys, at.page);
    }
    cp_async_commit();
  }

  __device__ __forceinline__ void read_q(int step, u32 (&a)[m_tiles][4]) const {
    const LanePointer<dim, false> pointer{u32(lane)};
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) ldmatrix_x4(a[m], pointer.at(q_shared, first_row() + m * 16, step * 16));
  }

  // ---- compute ----

  __device__ __forceinline__ void dots(float (&s)[m_tiles][n_tiles][4], u32 k_tile) const {
    const LanePointer<dim, true> pointer{u32(lane)};
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][n][i] = 0;
#pragma unroll
    for (int step = 0; step < dim / 16; ++step) {
      u32 a[m_tiles][4], b[4];
      if constexpr (!q_in_registers) read_q(step, a);
#pragma unroll
      for (int j = 0; j < n_tiles / 2; ++j) {
        ldmatrix_x4(b, pointer.at(k_tile, j * 16, step * 16));
        if constexpr (q_in_registers)
          mma_16_columns<Elem>(s, 2 * j, q_frag[step], b);
        else
          mma_16_columns<Elem>(s, 2 * j, a, b);
      }
    }
  }

  __device__ __forceinline__ Position column(int kv0, int j) const {
    return {kv0 + Fragment::column(lane), Fragment::column_of(j)};
  }

  // Turns dot products into scores; a position past the end is scored like the others, and dropped.
  __device__ __forceinline__ void score(const float (&s)[m_tiles][n_tiles][4], int kv0,
                                        float (&x)[rows][1][cols]) const {
#pragma unroll
    for (int j = 0; j < cols; ++j) {
      const Position kv = column(kv0, j);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const Col col = score_col<Spec>(p, row_site[r], head[r], kv);
        x[r][0][j] = score_of<Spec>(p, row_site[r], head[r], row[r][0], col,
                                    s[r / 2][j / 2][Fragment::element(r % 2, j % 2)], Position{query[r], 0}, kv, 0.f);
      }
    }
  }

  // Evaluates the mask in a rolled loop over columns, as few tiles are masked.
  __device__ __forceinline__ void find_kept(int kv0, KeepBits<cols> (&keep)[rows][1]) const {
    Row row_here[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      keep[r][0] = KeepBits<cols>::none();
      row_here[r] = Spec::only_keep_reads_row ? Spec::row(p, row_site[r], head[r], query[r]) : row[r][0];
    }
#pragma unroll 1
    for (int j = 0; j < cols; ++j) {
      const int at = kv0 + Fragment::pair_of(j / 2) + Fragment::column(lane) + j % 2, kv = min_of(at, site.kv_len - 1);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        bool kept = true;
        if constexpr (Spec::has_mask)
          kept = Spec::keep(p, row_site[r], head[r], row_here[r], Spec::col(p, row_site[r], head[r], kv), query[r], kv);
        keep[r][0].word[0] |= u32(kept && at < site.kv_len) << j;
      }
    }
  }
  static_assert(cols <= 32);

  static constexpr bool by_value = Spec::mask_by_inf || Spec::mask_by_zero;  // as in sm80/fwd_sm80.cuh

  __device__ __forceinline__ void absorb(float (&x)[rows][1][cols], KeyTile tile, float (&scale)[rows][1]) {
    if (__any_sync(0xffffffffu, tile.masked())) {  // the vote tells the compiler that the warp stays converged
      KeepBits<cols> keep[rows][1];
      find_kept(tile.index() * keys, keep);
      const float gone = Spec::mask_by_inf ? -infinity<float>() : 0.f;
#pragma unroll
      for (int r = 0; r < rows; ++r) {
#pragma unroll
        for (int j = 0; j < cols; j += 4)
          keep_4(x[r][0][j], x[r][0][j + 1], x[r][0][j + 2], x[r][0][j + 3], keep[r][0].word[0] >> j, gone);
        if constexpr (by_value)
          online[r].kept.bits |= u32(keep[r][0].word[0] != 0);
        else
          online[r].template step<true>(p, row_site[r], head[r], row[r], x[r], keep[r], scale[r]);
      }
    } else {
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        online[r].kept.bits = Online::all;
        if constexpr (!by_value) online[r].step_by_inf(p, row_site[r], head[r], row[r], x[r], scale[r]);
      }
    }
    if constexpr (by_value) {
#pragma unroll
      for (int r = 0; r < rows; ++r) online[r].step_by_inf(p, row_site[r], head[r], row[r], x[r], scale[r]);
    }
  }

  // Clears what dropout drops. Four columns of a thread, of each 16, lie in one patch (abi/philox.h), unless an offset
  // parts them.
  __device__ __forceinline__ void drop(int kv0, float (&x)[rows][1][cols]) const {
    const int kv = kv0 + Drops::first_kv(p, site) + Fragment::column(lane);
    const bool whole = Config::offsets == 0 || (Drops::first_kv(p, site) & 15) == 0;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const int q = query[r] + Drops::first_q(p, site);
#pragma unroll
      for (int j = 0; j < cols; j += 4) {
        const u32 patch =
            whole ? this->drops[r].draw(dropout_q_patch(q), dropout_kv_patch(kv + Fragment::column_of(j))) : 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = kv + Fragment::column_of(j + i);
          const bool kept = whole ? (patch >> dropout_bit(q, at) & 1u) != 0 : this->drops[r].keeps(q, at);
          x[r][0][j + i] = kept ? x[r][0][j + i] : 0.f;
        }
      }
    }
  }

  // Multiplies O by the rows' factors, most of which are 1 after a few tiles.
  __device__ __forceinline__ void rescale(const float (&scale)[rows][1]) {
    if constexpr (Spec::has_rescale) {
      bool changed = false;
#pragma unroll
      for (int r = 0; r < rows; ++r) changed |= scale[r][0] != 1.f;
      if (!__any_sync(0xffffffffu, changed)) return;
#pragma unroll
      for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int n = 0; n < v_tiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) o[m][n][i] *= scale[2 * m + i / 2][0];
    }
  }

  __device__ __forceinline__ void add_values(const float (&x)[rows][1][cols], u32 v_tile) {
    const LanePointer<dim_v, false> pointer{u32(lane)};
#pragma unroll
    for (int step = 0; step < keys / 16; ++step) {
      u32 a[m_tiles][4], b[4];
#pragma unroll
      for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // upper and lower row, left and right 8 columns
          const float *from = x[2 * m + i % 2][0] + step * 4 + i / 2 * 2;
          a[m][i] = pack<Elem>(from[0], from[1]);
        }
#pragma unroll
      for (int n = 0; n < v_tiles; n += 2) {
        ldmatrix_x4_turned(b, pointer.at(v_tile, step * 16, n * 8));
        mma_16_columns<Elem>(o, n, a, b);
      }
    }
  }

  __device__ __forceinline__ void compute(KeyTile tile, int slot) {
    const u32 stage = ring + u32(slot) * stage_bytes;
    float s[m_tiles][n_tiles][4], x[rows][1][cols], scale[rows][1];
    dots(s, stage);
    score(s, tile.index() * keys, x);
    absorb(x, tile, scale);
    if constexpr (Drops::any) drop(tile.index() * keys, x);
    rescale(scale);
    add_values(x, stage + k_bytes);
  }

  // A tile's slot is that of its number; tile i + stages - 1 is copied into the slot of tile i - 1, which all lanes
  // have left.
  __device__ __forceinline__ void run() {
    DecodeWalk<Spec, Sequence, tile_m, keys, warps> walk(p, site, block, lane, warp);
    KeyTile ahead[stages - 1];
    TileInPage upcoming{};
    if constexpr (looks_ahead) upcoming = look_up(walk);
    load_q();
    cp_async_commit();
#pragma unroll
    for (int i = 0; i < stages - 1; ++i) {
      const TileInPage now = advance(walk, upcoming);
      ahead[i] = now.tile;
      load(now, i);
    }
    begin();
    cp_async_wait<stages - 1>();
    __syncthreads();  // Q has been loaded
    if constexpr (q_in_registers) {
#pragma unroll
      for (int step = 0; step < dim / 16; ++step) read_q(step, q_frag[step]);
    }
    int slot = 0, free = stages - 1;
#pragma unroll 1
    while (ahead[0].valid()) {
      const KeyTile tile = ahead[0];
      cp_async_wait<stages - 2>();
      sync_ring();
#pragma unroll
      for (int i = 0; i + 1 < stages - 1; ++i) ahead[i] = ahead[i + 1];
      const TileInPage now = advance(walk, upcoming);
      ahead[stages - 2] = now.tile;
      load(now, free);
      compute(tile, slot);
      free = slot;
      slot = slot + 1 == stages ? 0 : slot + 1;
    }
    cp_async_wait<0>();
    let_next_start();
  }

  // ---- finish ----

  // The sums and states of all warps, in the memory of their rings.
  __device__ __forceinline__ float *sums(int warp, int r) const {
    return reinterpret_cast<float *>(shared + layout.at_out) + (warp * tile_m + r) * out_pitch;
  }
  __device__ __forceinline__ float *state_of(int warp, int r) const {
    return reinterpret_cast<float *>(shared + layout.at_state) + (warp * tile_m + r) * layout.state_pitch;
  }

  __device__ __forceinline__ void share() {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const int at = first_row() + Fragment::row(lane) + Fragment::row_of(r);
      online[r].finish();
#pragma unroll
      for (int n = 0; n < v_tiles; ++n)
        *reinterpret_cast<float2 *>(sums(warp, at) + Fragment::pair_of(n) + Fragment::column(lane)) =
            float2{o[r / 2][n][Fragment::element(r % 2, 0)], o[r / 2][n][Fragment::element(r % 2, 1)]};
      if (Fragment::first_in_row(lane)) {
#pragma unroll
        for (int i = 0; i < Spec::num_state; ++i) state_of(warp, at)[i] = online[r].state[0].x[i];
        state_of(warp, at)[Spec::num_state] = online[r].kept[0] ? 1.f : 0.f;
      }
    }
  }

  // Merges the warps' parts of a row, in order: threads / tile_m threads a row, four channels of each at a time.
  // `saved`: this block, or what it has of a list, which lies in shared memory and takes no registers in the loop.
  template <class Saved>
  __device__ __forceinline__ void finish(const Saved &saved) {
    constexpr int per_row = threads / tile_m;
    __syncthreads();  // no warp reads its ring any more
    share();
    __syncthreads();
    const Block block(saved);
    const int r = int(threadIdx.x) / per_row, mine = int(threadIdx.x) % per_row;
    const RowPlace place = block.place(p, site, r);
    if (!place.exists) return;
    Sequence at = site;
    at.h = place.h;
    const Head of_head = Spec::head(p, at);
    const Row of_row = Spec::row(p, at, of_head, place.q);
    RowPart<Spec> merged{Spec::init(p, at, of_head, of_row), false};
    float factor[warps];
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      RowPart<Spec> part;
#pragma unroll
      for (int i = 0; i < Spec::num_state; ++i) part.state.x[i] = state_of(w, r)[i];
      part.kept = state_of(w, r)[Spec::num_state] != 0.f;
      const MergeFactors<float> f = merge_part<Spec>(p, at, of_head, of_row, merged, part);
#pragma unroll
      for (int before = 0; before < w; ++before) factor[before] *= f.mine;
      factor[w] = f.theirs;
    }
    if (block.splits > 1) {
      float *to;
      if constexpr (Block::may_be_listed) {
        const SplitList list(p);
        const PartialRows<Spec> parts = list.known() ? PartialRows<Spec>(p.splits, block.part_row(list, r))
                                                     : PartialRows<Spec>(p, at, p.splits, place.q);
        if (mine == 0) store_part<Spec>(parts, block.split, merged);
        if (!merged.kept) return;
        to = parts.template o<Config::head_dim_v>(block.split);
      } else {
        if (mine == 0) store_part<Spec>(p, at, p.splits, block.split, place.q, merged);
        if (!merged.kept) return;
        to = PartialRows<Spec>(p, at, p.splits, place.q).template o<Config::head_dim_v>(block.split);
      }
#pragma unroll 1
      for (int d = mine * 4; d < Config::head_dim_v; d += 4 * per_row) merged_4(r, d, factor).store(to + d);
    } else {
      if (mine == 0) write_row<Spec>(p, at, of_head, of_row, merged.state, place.q, merged.kept);
      float scale = merged.kept ? Spec::out_scale(p, at, of_head, of_row, merged.state) : 0.f;
      if constexpr (Drops::any) scale *= float(Drops::factor);  // as luattn_merge does
      OutOf<Config> *to = at.template q_row<OutOf<Config>>(p, p.tensors.o, place.q);
#pragma unroll 1
      for (int d = mine * 4; d < Config::head_dim_v; d += 4 * per_row) {
        Pack<float, 4> x = merged_4(r, d, factor);
        Pack<OutOf<Config>, 4> rounded;
#pragma unroll
        for (int i = 0; i < 4; ++i) rounded[i] = from_real<OutOf<Config>>(scale == 0.f ? 0.f : scale * x[i]);
        rounded.store(to + d);
      }
    }
  }
  // Four channels of a row's sum. A factor of 0 drops its number.
  __device__ __forceinline__ Pack<float, 4> merged_4(int r, int d, const float (&factor)[warps]) const {
    Pack<float, 4> sum;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      Pack<float, 4> part;
      part.load(sums(w, r) + d);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += factor[w] == 0.f ? 0.f : factor[w] * part[i];
    }
    return sum;
  }
};

// What a block has of a list, in shared memory while it computes.
struct ListedBlock {
  SplitList::Block block;
  u32 number;
};
static_assert(sizeof(ListedBlock) <= LUATTN_DECODE_BLOCK);

template <class Kernel>
LUATTN_FN void take_listed(const LuattnSplitsParams &p, unsigned char *shared) {
  using Block = typename Kernel::Block;
  ListedBlock &mine = *reinterpret_cast<ListedBlock *>(shared + Kernel::layout.at_block);
  u32 number = SplitList::first();
#pragma unroll 1
  while (true) {
    const SplitList::Block found = Block::find(p, number);
    if (threadIdx.x == 0) mine = {found, number};
    {
      Kernel kernel(p, shared, Block(found));
      if (kernel.has_rows()) {  // for all threads of the block
        kernel.run();
        kernel.finish(mine.block);
      }
    }
    __syncthreads();  // all have read the sums, or see what thread 0 has written
    number = SplitList::after(mine.number);
    if (number >= mine.block.all) return;
    __syncthreads();
  }
}

template <class Spec, class Config>
LUATTN_FN void fwd_decode(const LuattnSplitsParams &p, unsigned char *shared) {
  using Kernel = ForwardDecode<Spec, Config>;
  if constexpr (Kernel::Block::may_be_listed) {
    take_listed<Kernel>(p, shared);
  } else {
    Kernel kernel(p, shared, typename Kernel::Block(p));
    if (!kernel.has_rows()) return;  // all threads of the block
    kernel.run();
    kernel.finish(kernel.block);
  }
}
