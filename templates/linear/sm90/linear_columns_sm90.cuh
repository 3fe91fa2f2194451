// linear/sm90/linear_columns_sm90.cuh: backward where decays differ between channels, all chunks at once: dq, dk and the gradient
// of decays, of updates that erase also dv and gradients of numbers of tokens, from the states, U and their gradients that the
// chains have kept (linear_tile_chain.cuh). With D_ij = do_i U_j' for j <= i, and where updates erase E_ij = -dR_i U_j' for
// j < i; else U is w v:
//
//     dq_i = scale [e^G_i do_i S' + sum over j of D_ij k_j e^(G_i - G_j)]
//     dr_i = -e^G_i dR_i S' + sum over j of E_ij k_j e^(G_i - G_j)
//     dk_j = e^(GC - G_j) U_j dS' + sum over i of (scale D_ij q_i + E_ij r_i) e^(G_i - G_j)     and of r_j, r / k times dr_j
//
// Of updates that add, k's factor has w in it. Where the gradient of w is wanted, the sum over channels of dk k without that factor,
// pairs have none, and rows of k in their tile do.
//
// A decay g_t lies on every way that crosses t: of a channel, with q dq, r dr and k dk from a state or to one, and from pairs of
// different tokens,
//
//     dg_t = e^GC sum of S dS + sum over i >= t of (q dq + r dr + q dq + r dr - k dk)_i + sum over j < t of (k dk)_j
//                               from a state       pairs                                 to a state
//
// Ways of pairs are products of rows as tiles have them, rounded: those of a pair are the same for its query and for its key, so that
// pairs before or behind t leave nothing in the sum over i >= t, however small dg_t is beside them.
//
// Config: as in fwd_linear_sm90.cuh, without v_block and stages; v_dim up to 128. Threads: SharedColumns::threads; blocks: as
// many as there are multiprocessors, or fewer; each takes chunks in turns.
//
// A block has four warpgroups, of which each has a quarter of the channels, and each warp 16 tokens of these: rows of dq have
// blocks before them, rows of dk blocks behind them, so that all have as much to do. First they meet the states and make pairs,
// in registers; then pairs meet tiles (BlockTiles), which have places of their own where updates add, and else take that of what
// the first part needed. In a narrow chunk, whose decays are less than block_limit in each of the warpgroup's channels, tiles have
// its beginning and its end as references, and pairs meet them at once; in others block by block.
#pragma once
#include "linear/sm90/linear_column_operands.cuh"
#include "linear/sm90/decayed_rows.cuh"
#include "linear/sm90/linear_column_decays.cuh"
#include "linear/sm90/linear_column_values.cuh"
#include "linear/sm90/rows_left_alone.cuh"
#include "arch/stmatrix.cuh"
#include "arch/warp.cuh"
#include "arch/wgmma.cuh"
#include "source/cp_async_tile.cuh"

template <class Spec, class Config>
struct ColumnRows : ColumnOperands<Spec, Config> {
  using Operands = ColumnOperands<Spec, Config>;
  using Operands::block, Operands::channels_of, Operands::factor, Operands::lane, Operands::left, Operands::load_pairs,
      Operands::load_pairs_turned, Operands::load_tile, Operands::load_two, Operands::own_channels, Operands::row,
      Operands::share, Operands::shared, Operands::steps, Operands::sums, Operands::tiles, Operands::warp,
      Operands::which;
  using typename Operands::Elem, typename Operands::Fragment, typename Operands::Shared, typename Operands::Tiles;
  using Chain = LinearChain<Config>;
  template <bool Later, bool OwnWeight = false, bool OtherWeight = false>
  using WideRows = DecayedRows<Config, Shared::row_bytes, Later, OwnWeight, OtherWeight>;
  using Triangles = LinearTriangles<Config, Shared::row_bytes>;
  using Decays = ColumnDecays<Spec, Config>;
  using Place = ChunkPlace<Config>;
  static constexpr int barrier = 1, owned = 8 * steps;  // owned: elements of a thread
  using Products = Wgmma<Elem, 16 * steps>;
  static constexpr bool erases = Spec::erases, writes = WriteHasGradient<Spec>;

  const LuattnLinearParams &p;
  const ColumnProducer<Spec, Config> producer;

  __device__ __forceinline__ static void sync() { named_sync(barrier, 32 * Shared::warps); }

  // ---- compute: states and pairs ----

  // Of the warp's rows and channels: do S', dR S', U dS'.
  struct Met {
    float query[owned], read[erases ? owned : 1], key[owned];
  };
  // A block of D and E: of the warp's rows, and as columns those of block number `share`.
  struct Pairs {
    float query[8], read[erases ? 8 : 1];
  };
  template <int N>
  __device__ __forceinline__ static void clear(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = 0;
    wgmma_arrived(x);  // not after a product has begun
  }
  // Committed.
  __device__ __forceinline__ void meet(Met &x, Pairs &pairs) const {
    clear(x.query), clear(x.read), clear(x.key), clear(pairs.query), clear(pairs.read);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < Shared::boxes_v; ++i) {
      const auto rows = [&](int tensor) { return wgmma_operand(shared.at(tensor) + i * Shared::box, 0); };
      const auto state = [&](int tensor) { return channels_of(shared.at(tensor) + i * Shared::boxes_k * Shared::box); };
      const u64 columns = wgmma_operand(shared.at(COLUMN_VALUES) + i * Shared::box + share * (block * 128), 0);
      Products::turned64(x.query, rows(COLUMN_DOUT), state(COLUMN_STATE), 1);
      Products::turned64(x.key, rows(COLUMN_VALUES), state(COLUMN_GRAD_STATE), 1);
      Wgmma<Elem, block>::dots64(pairs.query, rows(COLUMN_DOUT), columns, 1);
      if constexpr (erases) {
        Products::turned64(x.read, rows(COLUMN_GRAD_VALUES), state(COLUMN_STATE), 1);
        Wgmma<Elem, block>::dots64(pairs.read, rows(COLUMN_GRAD_VALUES), columns, 1);
      }
    }
    wgmma_commit();
  }
  __device__ __forceinline__ static void await_met(Met &x, Pairs &pairs) {
    wgmma_wait<0>();
    wgmma_arrived(x.query), wgmma_arrived(x.key), wgmma_arrived(pairs.query);
    if constexpr (erases) wgmma_arrived(x.read), wgmma_arrived(pairs.read);
  }
  // Pairs with factors of tokens, to shared memory; those of later columns are 0. Pairs of a token with itself stay float.
  __device__ __forceinline__ void store_pairs(Pairs &pairs) const {
    const float query[2] = {factor(FACTOR_QUERY, 0), factor(FACTOR_QUERY, 1)};
    float(&d)[8] = pairs.query;
    u32 x[4], y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = share * block + Fragment::column(lane, i / 2 * 2), r = i % 2;
      float2 key = {1, 1};
      if constexpr (!writes) key = load_pair(shared.factors() + FACTOR_KEY + column * 4);
      const bool low = column < row(r), high = column + 1 < row(r);
      d[2 * i] *= query[r] * key.x, d[2 * i + 1] *= query[r] * key.y;
      x[i] = pack<Elem>(low ? d[2 * i] : 0.f, high ? d[2 * i + 1] : 0.f);
      if constexpr (erases)
        y[i] = pack<Elem>(low ? -pairs.read[2 * i] * key.x : 0.f, high ? -pairs.read[2 * i + 1] * key.y : 0.f);
      if (column == row(r)) store_number(shared.numbers() + COLUMN_OWN + column * 4, d[2 * i]);
      if (column + 1 == row(r)) store_number(shared.numbers() + COLUMN_OWN + column * 4 + 4, d[2 * i + 1]);
    }
    const u32 at = box_place(which * block + lane % 16, share * block + lane / 16 * 8);
    stmatrix_x4(shared.pairs(0) + at, x[0], x[1], x[2], x[3]);
    if constexpr (erases) stmatrix_x4(shared.pairs(1) + at, y[0], y[1], y[2], y[3]);
  }

  // ---- compute: tiles ----

  // How a warp's tokens meet others of its channels: in a narrow chunk all at once; else block by block, and those of its own
  // block at once where that is narrow, or cut into triangles of a size.
  enum { CHUNK_NARROW = 0, BLOCK_NARROW = 2 * block };
  // The warp's tokens and channels of all tiles, a lane for 4 channels; and what is left of decays. Returns how they meet.
  __device__ __forceinline__ int make_tiles() const {
    constexpr int tokens = block / Tiles::rows;
    const Tiles of = tiles();
    const int channel = of.channel(), first = which * block + lane / Tiles::lanes * tokens;
    const u32 sums_at = shared.gates() + channel * 4,
              first_at = channel / 64 * Shared::box + box_place(first, channel % 64) + channel % 8 * 2;
    float begin[4], end[4];
    const bool narrow = of.find_references(begin, end, which);
#pragma unroll
    for (int i = 0; i < tokens; ++i) {
      const int row = first + i;
      const u32 at = (first_at ^ u32(i) * 16) + i * 128;
      float sum[4], up[4], down[4];
      load_four(sum, sums_at + row * Shared::row_bytes);
#pragma unroll
      for (int n = 0; n < 4; ++n) up[n] = fast_exp2(sum[n] + begin[n]), down[n] = fast_exp2(end[n] - sum[n]);
      const u64 q = load_four_halves(shared.at(COLUMN_Q) + at), k = load_four_halves(shared.at(COLUMN_K) + at);
      store_four_halves(shared.tile(TILE_QUERIES) + at, Tiles::scaled(q, up));
      if constexpr (writes) {
        const float key = load_number(shared.factors() + FACTOR_KEY + row * 4);
#pragma unroll
        for (int n = 0; n < 4; ++n) down[n] *= key;
      }
      store_four_halves(shared.tile(TILE_KEYS) + at, Tiles::scaled(k, down));
      if constexpr (erases) {
        const float read = load_number(shared.factors() + FACTOR_READ + row * 4);
#pragma unroll
        for (int n = 0; n < 4; ++n) up[n] *= read;
        store_four_halves(shared.tile(TILE_READS) + at, Tiles::scaled(k, up));
      }
    }
    if (narrow) {
      of.store_sums(which);
      return CHUNK_NARROW;
    }
    return of.store_left(which) ? BLOCK_NARROW : Triangles::narrow_size(sums_at + which * block * Shared::row_bytes);
  }

  // Results of 16 channels, dk from pairs and from a state apart, and ways to the rows, less those of pairs from them.
  struct Rows {
    float query[8], read[8], pairs[8], key[8], ways[8];
  };

  // ---- compute: pairs that meet tiles ----

  __device__ __forceinline__ void scale(float (&y)[8], int what, int of, int step) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 by = left(what, of, step, j);
#pragma unroll
      for (int r = 0; r < 2; ++r) y[Fragment::element(r, 2 * j)] *= by.x, y[Fragment::element(r, 2 * j + 1)] *= by.y;
    }
  }
  // y = what a state gave, with what is left over the blocks between, and pairs with these and, in a narrow block, with its own;
  // all but what is left in the block itself.
  __device__ __forceinline__ void add_before(float (&y)[8], const float (&met)[8], int pairs, int step,
                                             bool narrow) const {
    u32 z[4], b[4];
    if (narrow) {
      load_pairs(z, pairs, which), load_tile(b, TILE_KEYS, which, step);
      WideRows<false>::multiply(y, z, b);
      scale(y, LEFT_INVERSE, which, step);
    }
    float others[8] = {};
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      if (n >= which) continue;
      if (n > 0) scale(others, LEFT_OVER, n, step);
      load_pairs(z, pairs, n), load_tile(b, TILE_KEYS, n, step);
      WideRows<false>::multiply(others, z, b);
    }
    add(y, others, met, LEFT_BEFORE, step);
  }
  __device__ __forceinline__ void add_behind(float (&y)[8], int step, bool narrow) const {
    u32 z[4], b[4];
    const auto add_block = [&](float(&x)[8], int n) {
      load_pairs_turned(z, 0, n), load_tile(b, TILE_QUERIES, n, step);
      WideRows<false>::multiply(x, z, b);
      if constexpr (erases) {
        load_pairs_turned(z, 1, n), load_tile(b, TILE_READS, n, step);
        WideRows<false>::multiply(x, z, b);
      }
    };
    if (narrow) add_block(y, which), scale(y, LEFT_INVERSE, which, step);
    float others[8] = {};
#pragma unroll
    for (int n = 3; n > 0; --n) {
      if (n <= which) continue;
      if (n < 3) scale(others, LEFT_OVER, n, step);
      add_block(others, n);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] += others[i];
  }
  // y += others + x times what is left.
  __device__ __forceinline__ void add(float (&y)[8], const float (&others)[8], const float (&x)[8], int what,
                                      int step) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 by = left(what, which, step, j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int e = Fragment::element(r, 2 * j);
        y[e] += others[e] + x[e] * by.x, y[e + 1] += others[e + 1] + x[e + 1] * by.y;
      }
    }
  }
  // Pairs of a block that is not narrow.
  __device__ __forceinline__ void add_wide(Rows &x, int step, int size) const {
    const u32 q = shared.at(COLUMN_Q), k = shared.at(COLUMN_K), gates = shared.gates(),
              of_key = shared.factors() + FACTOR_KEY, of_read = shared.factors() + FACTOR_READ;
    u32 z[4];
    load_pairs(z, 0, which);
    WideRows<false, false, writes>{q, k, gates, which, lane, 0, of_key}.add(x.query, x.ways, z, step, size);
    load_pairs_turned(z, 0, which);
    WideRows<true, writes>{k, q, gates, which, lane, of_key}.add(x.pairs, x.ways, z, step, size);
    if constexpr (erases) {
      load_pairs(z, 1, which);
      WideRows<false, true>{k, k, gates, which, lane, of_read}.add(x.read, x.ways, z, step, size);
      load_pairs_turned(z, 1, which);
      WideRows<true, false, true>{k, k, gates, which, lane, 0, of_read}.add(x.pairs, x.ways, z, step, size);
    }
  }

  // ---- compute: pairs of a narrow chunk ----

  // With E all of the chunk's decays: met becomes do S' e^E + D (k e^(E - G)), of which dq is e^(G - E) times as much, and the
  // same of r; pairs become D' (q e^G) + E' (r e^G), to be multiplied by e^-G.
  __device__ __forceinline__ void meet_tiles(Met &met, float (&pairs)[owned]) const {
    u32 z[4][4];
    const float query[2] = {factor(FACTOR_QUERY, 0), factor(FACTOR_QUERY, 1)};
#pragma unroll
    for (int n = 0; n < 4; ++n) load_pairs_turned(z[n], 0, n);
#pragma unroll
    for (int i = 0; i < owned; i += 2) {
      const float2 all = left(LEFT_BEHIND, 0, share * steps + i / 8, i / 4 % 2);
      const int r = i / 2 % 2;
      met.query[i] *= query[r] * all.x, met.query[i + 1] *= query[r] * all.y;
      if constexpr (erases) met.read[i] *= -all.x, met.read[i + 1] *= -all.y;
    }
    clear(pairs);
    const u64 keys = channels_of(shared.tile(TILE_KEYS));
    wgmma_fence();
    Products::turned64(met.query, wgmma_operand(shared.pairs(0), 0), keys, 1);
    if constexpr (erases) Products::turned64(met.read, wgmma_operand(shared.pairs(1), 0), keys, 1);
    Products::sums64(pairs, z[0], z[1], z[2], z[3], channels_of(shared.tile(TILE_QUERIES)));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(pairs);
    if constexpr (erases) {
#pragma unroll
      for (int n = 0; n < 4; ++n) load_pairs_turned(z[n], 1, n);
      wgmma_fence();
      Products::sums64(pairs, z[0], z[1], z[2], z[3], channels_of(shared.tile(TILE_READS)));
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_arrived(pairs), wgmma_arrived(met.read);
    }
    wgmma_arrived(met.query);
  }

  // ---- compute: 16 channels of q and k ----

  __device__ __forceinline__ Decays decays() const { return {p, shared, which, share, lane}; }
  // The ways of two channels of sums that are not multiplied yet by the decays of the rows' tiles.
  __device__ __forceinline__ float2 ways_of(const Rows &x, int step, int r, int j) const {
    const int e = Fragment::element(r, 2 * j);
    const u32 at = own_channels(row(0), 0) + Fragment::column(lane) * 2,
              place = (at ^ u32(2 * (step - share * steps) + j) * 16) + r * 1024,
              q = load_shared(shared.tile(TILE_QUERIES) + place), k = load_shared(shared.tile(TILE_KEYS) + place);
    float2 ways = {half_of<Elem>(q, 0) * x.query[e] - half_of<Elem>(k, 0) * x.pairs[e],
                   half_of<Elem>(q, 1) * x.query[e + 1] - half_of<Elem>(k, 1) * x.pairs[e + 1]};
    if constexpr (erases) {
      const u32 r_of = load_shared(shared.tile(TILE_READS) + place);
      ways.x += half_of<Elem>(r_of, 0) * x.read[e], ways.y += half_of<Elem>(r_of, 1) * x.read[e + 1];
    }
    return ways;
  }
  __device__ __forceinline__ void take_narrow(Rows &x, const Met &met, const float (&pairs)[owned], int i) const {
    const int step = share * steps + i;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 begin = left(LEFT_BEFORE, which, step, j), all = left(LEFT_OVER, 0, step, j),
                   across = left(LEFT_BEHIND, 0, step, j), inverse = {fast_exp2(-all.x), fast_exp2(-all.y)};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 sum = sums(row(r), step, j);
        const float by = writes ? 1.f : factor(FACTOR_KEY, r), low = sum.x + begin.x, high = sum.y + begin.y;
        const float up[2] = {fast_exp2(low - all.x), fast_exp2(high - all.y)},
                    down[2] = {fast_exp2(-low), fast_exp2(-high)};
        const float of_key[2] = {by * across.x, by * across.y};
        const int first = Fragment::element(r, 2 * j);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int e = first + n, of = 8 * i + e;
          x.query[e] = met.query[of], x.pairs[e] = pairs[of], x.read[e] = erases ? met.read[erases ? of : 0] : 0.f;
        }
        const float2 ways = ways_of(x, step, r, j);
        decays().lay_two(row(r), step * 16 + 8 * j + Fragment::column(lane), ways.x * inverse.x, ways.y * inverse.y);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int e = first + n;
          x.query[e] *= up[n], x.read[e] *= up[n], x.pairs[e] *= down[n];
          x.key[e] = met.key[8 * i + e] * (of_key[n] * down[n]);
        }
      }
    }
  }
  // Multiplies by what is left in the block, up to a token, or behind it.
  __device__ __forceinline__ void apply(float (&up)[8], float (&down)[8], int step) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 end = sums(which * block + block - 1, step, j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 sum = sums(row(r), step, j);
        const int e = Fragment::element(r, 2 * j);
        up[e] = fast_exp2(sum.x), up[e + 1] = fast_exp2(sum.y);
        down[e] = fast_exp2(end.x - sum.x), down[e + 1] = fast_exp2(end.y - sum.y);
      }
    }
  }
  __device__ __forceinline__ void take_wide(Rows &x, const Met &met, int i, int size) const {
    const int step = share * steps + i;
    const bool narrow = size == BLOCK_NARROW;
    float up[8], down[8];
    clear(x.query), clear(x.read), clear(x.pairs);
    {
      float y[8];
      const float query_factor[2] = {factor(FACTOR_QUERY, 0), factor(FACTOR_QUERY, 1)};
#pragma unroll
      for (int n = 0; n < 8; ++n) y[n] = met.query[8 * i + n] * query_factor[n / 2 % 2];
      add_before(x.query, y, 0, step, narrow);
      if constexpr (erases) {
#pragma unroll
        for (int n = 0; n < 8; ++n) y[n] = -met.read[8 * i + n];
        add_before(x.read, y, 1, step, narrow);
      }
      add_behind(x.pairs, step, narrow);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 ways = ways_of(x, step, r, j);
        x.ways[Fragment::element(r, 2 * j)] = ways.x, x.ways[Fragment::element(r, 2 * j) + 1] = ways.y;
      }
    apply(up, down, step);
#pragma unroll
    for (int n = 0; n < 8; ++n) x.query[n] *= up[n], x.read[n] *= up[n], x.pairs[n] *= down[n];
    if (!narrow) add_wide(x, step, size);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 behind = left(LEFT_BEHIND, which, step, j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float by = writes ? 1.f : factor(FACTOR_KEY, r);
        const int e = Fragment::element(r, 2 * j);
        x.key[e] = met.key[8 * i + e] * (by * behind.x * down[e]);
        x.key[e + 1] = met.key[8 * i + e + 1] * (by * behind.y * down[e + 1]);
      }
    }
    __syncwarp();  // others have read the sums of decays there
    decays().lay(x.ways, step);
  }
  // Rounds results of 16 channels to the place of the warp's rows there, which it has read.
  __device__ __forceinline__ void stage(int tensor, const float (&x)[8], int i) const {
    const u32 own = own_channels(which * block + lane % 16, lane / 16 * 8);
    stmatrix_x4(shared.at(tensor) + (own ^ u32(i) * 32), pack<Elem>(x[0], x[1]), pack<Elem>(x[2], x[3]),
                pack<Elem>(x[4], x[5]), pack<Elem>(x[6], x[7]));
  }
  // The sum of dk k of row number r without the factor of k, by which dk's parts are multiplied. own: the pair of the row's token
  // with itself.
  __device__ __forceinline__ float weigh_keys(Rows &x, float own, float by, int i, int r) const {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 q = load_two(COLUMN_Q, i, r, j), k = load_two(COLUMN_K, i, r, j);
      const int e = Fragment::element(r, 2 * j);
      sum += k.x * (x.key[e] + x.pairs[e] + own * q.x) + k.y * (x.key[e + 1] + x.pairs[e + 1] + own * q.y);
      x.key[e] *= by, x.key[e + 1] *= by, x.pairs[e] *= by, x.pairs[e + 1] *= by;
    }
    return sum;
  }
  // Adds to `of_number` the sums of dr k of the thread's rows, or of dk k without the factors of k. z becomes ways before the rows.
  __device__ __forceinline__ void finish_step(Rows &x, float (&z)[8], float (&of_number)[2], int i) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float own = load_number(shared.numbers() + COLUMN_OWN + row(r) * 4);
      const float of_r = erases ? factor(FACTOR_READ, r) : 0.f, of_key = writes ? factor(FACTOR_KEY, r) : 1.f;
      if constexpr (writes) {
        of_number[r] += weigh_keys(x, own, of_key, i, r);
        own *= of_key;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 q = load_two(COLUMN_Q, i, r, j), k = load_two(COLUMN_K, i, r, j);
        const int e = Fragment::element(r, 2 * j);
        if constexpr (erases) {
          of_number[r] += x.read[e] * k.x + x.read[e + 1] * k.y;
          x.read[e] *= of_r, x.read[e + 1] *= of_r;
        }
        z[e] = k.x * x.key[e], z[e + 1] = k.y * x.key[e + 1];
        x.query[e] += own * k.x, x.query[e + 1] += own * k.y;
        x.key[e] += x.pairs[e] + x.read[e] + own * q.x, x.key[e + 1] += x.pairs[e + 1] + x.read[e + 1] + own * q.y;
      }
    }
    __syncwarp();
    stage(COLUMN_Q, x.query, i), stage(COLUMN_K, x.key, i);
  }
  // dq, dk, ways, and sums for r / k, or w.
  __device__ __forceinline__ void run_steps(float (&z)[steps][8], Met &met, int size) const {
    Rows x;
    float of_number[2] = {0, 0};
    if (size == CHUNK_NARROW) {
      float pairs[owned];
      meet_tiles(met, pairs);
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        take_narrow(x, met, pairs, i);
        finish_step(x, z[i], of_number, i);
      }
    } else {
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        take_wide(x, met, i, size);
        finish_step(x, z[i], of_number, i);
      }
    }
    if constexpr (erases || writes) store_of_number(of_number);
  }

  // ---- finish: numbers of tokens ----

  __device__ __forceinline__ void store_of_number(float (&sum)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
      if (Fragment::first_in_row(lane))
        store_number(shared.numbers() + COLUMN_OF_NUMBER + share * 256 + row(r) * 4,
                     writes ? sum[r] : sum[r] * factor(FACTOR_KEY, r));
    }
  }
  // The gradient of r / k, or of w.
  __device__ __forceinline__ void finish_numbers(const Chain &chain, int chunk) const {
    float *const to = erases ? p.sums.read : p.sums.write;
    const int token = warp() * 32 + lane, t = chunk * LUATTN_CHUNK + token;
    if (warp() > 1 || to == nullptr || !chain.has(t)) return;
    const u32 at = shared.numbers() + token * 4;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Shared::shares; ++i) sum += load_number(at + COLUMN_OF_NUMBER + i * 256);
    if constexpr (writes && Spec::has_key_factor) sum *= Spec::key_factor(p, chain.site, t);
    to[chain.token(p, t)] = sum;
  }

  // ---- a chunk ----

  // By one warp: tells all where a chunk lies.
  __device__ __forceinline__ void tell(const Place &at, int done) const {
    if (elected()) at.store(shared.place(done));
    __syncwarp();
  }
  __device__ __forceinline__ i64 slot(const Place &at) const { return at.chain().slot(p, at.chunk); }
  __device__ __forceinline__ bool has(const Place &at) const { return at.number < RowChunks<Config>(p).count; }
  // Loads of the next chunk: what products with states need, once these are done, and the rest.
  template <class Load>
  __device__ __forceinline__ void load(int done, const Load &load_of) const {
    const Place at = Place::load(shared.place(done));
    if (has(at) && elected()) load_of(at.chain(), at.chunk, slot(at));
    __syncwarp();
  }
  __device__ __forceinline__ void load_first(int done) const {
    load(done, [&](const Chain &chain, int chunk, i64 slot) {
      producer.load_states(slot);
      if constexpr (Shared::apart) producer.load_values(chain, chunk, slot);
    });
  }
  __device__ __forceinline__ void prefetch_rest(int done) const {
    load(done, [&](const Chain &chain, int chunk, i64 slot) { producer.prefetch_rest(chain, chunk, slot); });
  }
  __device__ __forceinline__ void load_rest(int done) const {
    load(done, [&](const Chain &chain, int chunk, i64 slot) {
      if constexpr (!Shared::apart) producer.load_values(chain, chunk, slot);
      producer.load_rows(chain, chunk, slot);
    });
  }
  __device__ __forceinline__ void await(int tensor, int done) const {
    barrier_wait(shared.full(tensor), u32(done) & 1);
  }
  __device__ __forceinline__ void await_first(int done) const {
    await(COLUMN_DOUT, done), await(COLUMN_VALUES, done), await(COLUMN_STATE, done), await(COLUMN_GRAD_STATE, done);
    if constexpr (erases) await(COLUMN_GRAD_VALUES, done);
  }
  // Barriers, of all: what products with states needed has been read, and pairs are there; tiles are, where they are in its place;
  // results.
  __device__ __forceinline__ void run_chunk(const Place &now, int done) const {
    const Chain chain = now.chain();
    Met met;
    Pairs pairs;
    float ways[block], z[steps][8];
    const ColumnValues<Spec, Config> values{p, shared, chain, now.chunk, warp(), lane};
    u64 v[values.loads];
    int size;
    if constexpr (erases) values.load(v);
    await_first(done);
    meet(met, pairs);
    if (warp() == 4) tell(now.following(p), done + 1);
    decays().sum_across(warp(), done);
    decays().find_places(chain, now.chunk, done);
    await(COLUMN_FACTORS, done), await(COLUMN_K, done), await(COLUMN_Q, done);
    const float left_over = decays().find_left();
    if constexpr (erases) values.make_dv(v);
    if constexpr (Shared::apart) size = make_tiles();
    await_met(met, pairs);
    store_pairs(pairs);
    fence_async();
    sync();
    if (warp() == 0) load_first(done + 1);
    if (warp() == 12) prefetch_rest(done + 1);
    if constexpr (!Shared::apart) {
      size = make_tiles();
      fence_async();
      sync();
    }
    run_steps(z, met, int(uniform(u32(size))));
    decays().sum_ways(ways, z);
    fence_async();
    sync();
    if (warp() == 0) {
      if (elected()) producer.store_rows(chain, now.chunk);
      load_rest(done + 1);
    }
    decays().store(ways, left_over, chain, now.chunk, done);
    if constexpr (erases || writes) finish_numbers(chain, now.chunk);
  }
  __device__ __forceinline__ void run() const {
    if (warp() == 0) tell(Place::first(p), 0), load_first(0), load_rest(0);
    sync();
    Place now = Place::load(shared.place(0));
#pragma unroll 1
    for (int done = 0; has(now); ++done) {
      ColumnRows{{shared, which, share, lane_anew() & 31}, p, producer}.run_chunk(now, done);
      now = Place::load(shared.place(done + 1));
    }
    if (warp() == 0 && elected()) bulk_wait_read();
  }
};

template <class Spec, class Config>
LUATTN_FN void linear_columns_sm90(const LuattnLinearParams &p, const LuattnLinearRowMaps &maps, void *memory) {
  using Shared = SharedColumns<Spec, Config>;
  const Shared shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const int warp = int(uniform(threadIdx.x / 32)) & (Shared::warps - 1), lane = int(threadIdx.x % 32);
  ColumnRows<Spec, Config>{{shared, warp % 4, warp / 4, lane}, p, {p, maps, shared}}.run();
  if (warp == 0) RowsLeftAlone<Spec, Config>{p, lane}.run();
}
