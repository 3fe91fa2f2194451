// linear/sm90/linear_columns_sm90.cuh: backward where decays differ between channels, all chunks at once: dq, dk and the gradient of
// decays, of updates that erase also dv and gradients of numbers of tokens, from the states, U and their gradients that the
// chains have kept (linear_tile_chain.cuh). With D_ij = do_i U_j' for j <= i, and where updates erase E_ij = -dR_i U_j' for
// j < i; else U is w v:
//
//     dq_i = scale [e^G_i do_i S' + sum over j of D_ij k_j e^(G_i - G_j)]
//     dr_i = -e^G_i dR_i S' + sum over j of E_ij k_j e^(G_i - G_j)
//     dk_j = e^(GC - G_j) U_j dS' + sum over i of (scale D_ij q_i + E_ij r_i) e^(G_i - G_j)     and of r_j, r / k times dr_j
//
// A decay g_t lies on every way that crosses t: of a channel, with q dq, r dr and k dk from a state or to one, and from pairs of
// different tokens,
//
//     dg_t = e^GC sum of S dS + sum over i >= t of (q dq + r dr + q dq + r dr - k dk)_i + sum over j < t of (k dk)_j
//                               from a state       pairs                                 to a state
//
// Config: as in fwd_linear_sm90.cuh, without v_block and stages; v_dim up to 128. Threads: SharedColumns::threads; blocks: as
// many as there are multiprocessors, or fewer; each takes chunks in turns.
//
// A block has sixteen warps, of which each has 16 tokens and a quarter of the channels: rows of dq have blocks before them, rows
// of dk blocks behind them, so that all have as much to do. First they meet the states, in registers, and make pairs; then tiles
// (BlockTiles) take the place of what that needed, and pairs meet these.
#pragma once
#include "linear/sm90/columns_pipeline.cuh"
#include "linear/sm90/decayed_rows.cuh"
#include "linear/sm90/linear_column_decays.cuh"
#include "linear/sm90/rows_left_alone.cuh"
#include "arch/stmatrix.cuh"
#include "arch/warp.cuh"

template <class Spec, class Config>
struct ColumnRows {
  using Shared = SharedColumns<Spec, Config>;
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  using Fragment = MmaFragment;
  using Queries = DecayedRows<Config, Shared::row_bytes, false>;
  using Keys = DecayedRows<Config, Shared::row_bytes, true>;
  using Triangles = LinearTriangles<Config, Shared::row_bytes>;
  using Tiles = BlockTiles<Elem, Shared::row_bytes, Shared::k_dim>;
  using Decays = ColumnDecays<Spec, Config>;
  using Place = ChunkPlace<Config>;
  static constexpr int block = 16, k_dim = Shared::k_dim, v_dim = Shared::v_dim, barrier = 1,
                       steps = k_dim / 16 / Shared::shares;  // of a warp, 16 channels each
  static constexpr bool erases = Spec::erases;

  const LuattnLinearParams &p;
  const ColumnProducer<Spec, Config> producer;
  const Shared shared;
  const int which, share, lane;  // which block of tokens; of the channels

  __device__ __forceinline__ int warp() const { return share * 4 + which; }
  __device__ __forceinline__ Tiles tiles() const { return {shared.gates(), shared.left(), lane}; }
  __device__ __forceinline__ static void sync() { named_sync(barrier, 32 * Shared::warps); }

  // ---- load ----

  __device__ __forceinline__ int row(int r) const { return which * block + Fragment::row(lane, r); }
  __device__ __forceinline__ void load_rows(u32 (&a)[4], int tensor, int of, int step) const {
    ldmatrix_x4(a, shared.at(tensor, of * block + lane % 16, step * 16 + lane / 16 * 8));
  }
  // Two adjacent channels of each of the warp's tokens: of row number r and column number 2 j.
  __device__ __forceinline__ float2 load_two(int tensor, int step, int r, int j) const {
    const u32 two = load_shared(shared.at(tensor, row(r), step * 16 + j * 8) + Fragment::column(lane) * 2);
    return {to_real(Elem{u16(two)}), to_real(Elem{u16(two >> 16)})};
  }
  __device__ __forceinline__ float2 sums(int row, int step, int j) const {
    return load_pair(shared.gates() + row * Shared::row_bytes + (step * 16 + j * 8 + Fragment::column(lane)) * 4);
  }
  __device__ __forceinline__ float2 left(int what, int of, int step, int j) const {
    return tiles().of(what, of, step * 16 + j * 8 + Fragment::column(lane));
  }
  __device__ __forceinline__ float factor(int what, int r) const {
    return load_number(shared.factors() + what + row(r) * 4);
  }
  // A block of 16 tokens of a tile, turned as B.
  __device__ __forceinline__ void load_tile(u32 (&b)[4], int tile, int of, int step) const {
    const int channel = step * 16 + lane / 16 * 8;
    ldmatrix_x4_turned(
        b, shared.tile(tile) + channel / 64 * Shared::box + box_place(of * block + lane % 16, channel % 64));
  }
  // Gradients of pairs as A operands: of the warp's rows as queries with another block, and turned, as keys.
  __device__ __forceinline__ void load_pairs(u32 (&z)[4], int pairs, int of) const {
    ldmatrix_x4(z, shared.pairs(pairs) + box_place(which * block + lane % 16, of * block + lane / 16 * 8));
  }
  __device__ __forceinline__ void load_pairs_turned(u32 (&z)[4], int pairs, int of) const {
    ldmatrix_x4_turned(
        z, shared.pairs(pairs) + box_place(of * block + lane % 8 + lane / 16 * 8, which * block + lane / 8 % 2 * 8));
  }

  // ---- compute: pairs ----

  // A block of D and E, of the warp's rows, and as columns those of block number `share`, with factors of tokens, to shared
  // memory. Pairs of a token with itself stay float.
  __device__ __forceinline__ void make_pairs() const {
    if (share > which) return;
    float d[8] = {}, e[8] = {};
#pragma unroll 2
    for (int v = 0; v < v_dim / 16; ++v) {
      u32 a[4], b[4];
      load_rows(b, COLUMN_VALUES, share, v);
      load_rows(a, COLUMN_DOUT, which, v);
      Triangles::multiply(d, a, b);
      if constexpr (erases) {
        load_rows(a, COLUMN_GRAD_VALUES, which, v);
        Triangles::multiply(e, a, b);
      }
    }
    const float query[2] = {factor(FACTOR_QUERY, 0), factor(FACTOR_QUERY, 1)};
    u32 x[4], y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = share * block + Fragment::column(lane, i / 2 * 2), r = i % 2;
      const float2 key = load_pair(shared.factors() + FACTOR_KEY + column * 4);
      const bool low = column < row(r), high = column + 1 < row(r);
      d[2 * i] *= query[r] * key.x, d[2 * i + 1] *= query[r] * key.y;
      x[i] = pack<Elem>(low ? d[2 * i] : 0.f, high ? d[2 * i + 1] : 0.f);
      y[i] = pack<Elem>(low ? -e[2 * i] * key.x : 0.f, high ? -e[2 * i + 1] * key.y : 0.f);
      if (column == row(r)) store_number(shared.numbers() + COLUMN_OWN + column * 4, d[2 * i]);
      if (column + 1 == row(r)) store_number(shared.numbers() + COLUMN_OWN + column * 4 + 4, d[2 * i + 1]);
    }
    const u32 at = box_place(which * block + lane % 16, share * block + lane / 16 * 8);
    stmatrix_x4(shared.pairs(0) + at, x[0], x[1], x[2], x[3]);
    if constexpr (erases) stmatrix_x4(shared.pairs(1) + at, y[0], y[1], y[2], y[3]);
  }

  // ---- compute: states ----

  // Of the warp's rows and 16 channels: do S', dR S', U dS'.
  struct Met {
    float query[8], read[erases ? 8 : 1], key[8];
  };
  __device__ __forceinline__ void meet(Met (&x)[steps]) const {
#pragma unroll
    for (int i = 0; i < steps; ++i)
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        x[i].query[n] = x[i].key[n] = 0;
        if constexpr (erases) x[i].read[n] = 0;
      }
#pragma unroll 2
    for (int v = 0; v < v_dim / 16; ++v) {
      u32 dout[4], values[4], grads[4], b[4];
      load_rows(dout, COLUMN_DOUT, which, v), load_rows(values, COLUMN_VALUES, which, v);
      if constexpr (erases) load_rows(grads, COLUMN_GRAD_VALUES, which, v);
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        const int channel = (share * steps + i) * 16 + lane / 16 * 8;
        ldmatrix_x4_turned(b, shared.at_state(COLUMN_STATE, v * 16 + lane % 16, channel));
        Queries::multiply(x[i].query, dout, b);
        if constexpr (erases) Queries::multiply(x[i].read, grads, b);
        ldmatrix_x4_turned(b, shared.at_state(COLUMN_GRAD_STATE, v * 16 + lane % 16, channel));
        Queries::multiply(x[i].key, values, b);
      }
    }
  }

  // ---- compute: tiles ----

  // Four tokens of all tiles, a lane for 4 channels; and of a block what is left.
  __device__ __forceinline__ void make_tiles() const {
    constexpr int tokens = LUATTN_CHUNK / Shared::warps;
    const Tiles of = tiles();
    const int channel = of.channel(), first = warp() * tokens;
    const u32 sums_at = shared.gates() + channel * 4;
    float end[4];
    load_four(end, sums_at + (first / block * block + block - 1) * Shared::row_bytes);
#pragma unroll
    for (int i = 0; i < tokens; i += Tiles::rows) {
      const int row = first + i + lane / Tiles::lanes;
      const u32 at = channel / 64 * Shared::box + box_place(row, channel % 64) + channel % 8 * 2;
      float sum[4], up[4], down[4];
      load_four(sum, sums_at + row * Shared::row_bytes);
#pragma unroll
      for (int n = 0; n < 4; ++n) up[n] = fast_exp2(sum[n]), down[n] = fast_exp2(end[n] - sum[n]);
      const u64 q = load_four_halves(shared.at(COLUMN_Q) + at), k = load_four_halves(shared.at(COLUMN_K) + at);
      store_four_halves(shared.tile(TILE_QUERIES) + at, Tiles::scaled(q, up));
      store_four_halves(shared.tile(TILE_KEYS) + at, Tiles::scaled(k, down));
      if constexpr (erases) {
        const float read = load_number(shared.factors() + FACTOR_READ + row * 4);
#pragma unroll
        for (int n = 0; n < 4; ++n) up[n] *= read;
        store_four_halves(shared.tile(TILE_READS) + at, Tiles::scaled(k, up));
      }
    }
    if (share == 0) of.store_left(which);
  }

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
      Queries::multiply(y, z, b);
      scale(y, LEFT_INVERSE, which, step);
    }
    float others[8] = {};
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      if (n >= which) continue;
      if (n > 0) scale(others, LEFT_OVER, n, step);
      load_pairs(z, pairs, n), load_tile(b, TILE_KEYS, n, step);
      Queries::multiply(others, z, b);
    }
    add(y, others, met, LEFT_BEFORE, step);
  }
  __device__ __forceinline__ void add_behind(float (&y)[8], int step, bool narrow) const {
    u32 z[4], b[4];
    const auto add_block = [&](float(&x)[8], int n) {
      load_pairs_turned(z, 0, n), load_tile(b, TILE_QUERIES, n, step);
      Queries::multiply(x, z, b);
      if constexpr (erases) {
        load_pairs_turned(z, 1, n), load_tile(b, TILE_READS, n, step);
        Queries::multiply(x, z, b);
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
  __device__ __forceinline__ void add_wide(float (&query)[8], float (&read)[8], float (&key)[8], int step) const {
    const int size = Triangles{0, 0, shared.gates(), which, lane}.narrow_size();
    const Queries queries{shared.at(COLUMN_K), shared.gates(), which, lane};
    u32 z[4];
    load_pairs(z, 0, which);
    queries.add(query, z, step, size);
    load_pairs_turned(z, 0, which);
    Keys{shared.at(COLUMN_Q), shared.gates(), which, lane}.add(key, z, step, size);
    if constexpr (erases) {
      load_pairs(z, 1, which);
      queries.add(read, z, step, size);
      load_pairs_turned(z, 1, which);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = which * block + Fragment::column(lane) + i / 2 * 8;
        const float2 by = load_pair(shared.factors() + FACTOR_READ + token * 4);
        z[i] = Tiles::scaled(z[i], by.x, by.y);
      }
      Keys{shared.at(COLUMN_K), shared.gates(), which, lane}.add(key, z, step, size);
    }
  }

  // ---- compute: 16 channels of q and k ----

  // Rounds results of 16 channels to the place of the warp's rows there, which it has read.
  __device__ __forceinline__ void stage(int tensor, const float (&x)[8], int step) const {
    stmatrix_x4(shared.at(tensor, which * block + lane % 16, step * 16 + lane / 16 * 8), pack<Elem>(x[0], x[1]),
                pack<Elem>(x[2], x[3]), pack<Elem>(x[4], x[5]), pack<Elem>(x[6], x[7]));
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
  // Adds to `of_read` the sums of dr k of the thread's rows.
  __device__ __forceinline__ void step(float (&ways)[8], float (&of_read)[2], const Met &met, int step,
                                       bool narrow) const {
    float query[8] = {}, read[8] = {}, pairs[8] = {}, key[8], up[8], down[8], y[8], z[8];
    {
      float x[8];
      const float query_factor[2] = {factor(FACTOR_QUERY, 0), factor(FACTOR_QUERY, 1)};
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = met.query[i] * query_factor[i / 2 % 2];
      add_before(query, x, 0, step, narrow);
      if constexpr (erases) {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = -met.read[i];
        add_before(read, x, 1, step, narrow);
      }
      add_behind(pairs, step, narrow);
    }
    apply(up, down, step);
#pragma unroll
    for (int i = 0; i < 8; ++i) query[i] *= up[i], read[i] *= up[i], pairs[i] *= down[i];
    if (!narrow) add_wide(query, read, pairs, step);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 behind = left(LEFT_BEHIND, which, step, j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float by = factor(FACTOR_KEY, r);
        const int e = Fragment::element(r, 2 * j);
        key[e] = met.key[e] * (by * behind.x * down[e]);
        key[e + 1] = met.key[e + 1] * (by * behind.y * down[e + 1]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float own = load_number(shared.numbers() + COLUMN_OWN + row(r) * 4),
                  of_r = erases ? factor(FACTOR_READ, r) : 0.f;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 q = load_two(COLUMN_Q, step, r, j), k = load_two(COLUMN_K, step, r, j);
        const int e = Fragment::element(r, 2 * j);
        of_read[r] += read[e] * k.x + read[e + 1] * k.y;
        read[e] *= of_r, read[e + 1] *= of_r;
        y[e] = q.x * query[e] + k.x * (read[e] - pairs[e]), z[e] = k.x * key[e];
        y[e + 1] = q.y * query[e + 1] + k.y * (read[e + 1] - pairs[e + 1]), z[e + 1] = k.y * key[e + 1];
        query[e] += own * k.x, query[e + 1] += own * k.y;
        key[e] += pairs[e] + read[e] + own * q.x, key[e + 1] += pairs[e + 1] + read[e + 1] + own * q.y;
      }
    }
    __syncwarp();
    stage(COLUMN_Q, query, step), stage(COLUMN_K, key, step);
    Decays{p, shared, which, lane}.sum_ways(ways, y, z, shared.totals() + step * 64);
  }

  // ---- finish: numbers of tokens, where updates erase ----

  __device__ __forceinline__ void store_of_read(float (&sum)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
      if (Fragment::first_in_row(lane))
        store_number(shared.numbers() + COLUMN_OF_READ + share * 256 + row(r) * 4, sum[r] * factor(FACTOR_KEY, r));
    }
  }
  __device__ __forceinline__ void finish_reads(const Chain &chain, int chunk) const {
    const int token = warp() * 32 + lane, t = chunk * LUATTN_CHUNK + token;
    if (warp() > 1 || p.sums.read == nullptr || !chain.has(t)) return;
    const u32 at = shared.numbers() + token * 4;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Shared::shares; ++i) sum += load_number(at + COLUMN_OF_READ + i * 256);
    p.sums.read[chain.token(p, t)] = sum;
  }
  // dv = w dR, and dw: four rows.
  __device__ __forceinline__ void make_dv(const Chain &chain, int chunk) const {
    constexpr int lanes = v_dim / 4, rows = 32 / lanes, tokens = LUATTN_CHUNK / Shared::warps;
    const int channel = lane % lanes * 4;
#pragma unroll
    for (int i = 0; i < tokens; i += rows) {
      const int token = warp() * tokens + i + lane / lanes, t = chunk * LUATTN_CHUNK + token;
      const bool has = chain.has(t) && channel < Config::v_dim;
      const auto place = [&](const LuattnTensor &x) {
        return (Config::packed ? 0 : chain.entry * x.batch) + chain.site.hv * x.head + i64(chain.start + t) * x.seq +
               channel;
      };
      const u64 r = load_four_halves(shared.at(COLUMN_GRAD_VALUES, token, channel) + channel % 8 * 2);
      const float write = load_number(shared.factors() + FACTOR_WRITE + token * 4);
      float sum = 0;
      if (has) {
        const u64 v =
            __ldg(reinterpret_cast<const unsigned long long *>(static_cast<const Elem *>(p.v.data) + place(p.v)));
        const float by[4] = {write, write, write, write};
#pragma unroll
        for (int n = 0; n < 4; ++n) sum += to_real(Elem{u16(r >> 16 * n)}) * to_real(Elem{u16(v >> 16 * n)});
        *reinterpret_cast<u64 *>(static_cast<Elem *>(p.dv.data) + place(p.dv)) = Tiles::scaled(r, by);
      }
#pragma unroll
      for (int n = lanes / 2; n > 0; n /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, n);
      if (p.sums.write != nullptr && channel == 0 && chain.has(t)) p.sums.write[chain.token(p, t)] = sum;
    }
  }

  // ---- a chunk ----

  // By one warp: tells all where a chunk lies; what it lacks is brought nearer.
  __device__ __forceinline__ void tell(const Place &at, int done) const {
    if (elected()) {
      at.store(shared.place(done));
      if (has(at)) producer.prefetch_rows(at.chain(), at.chunk, slot(at));
    }
    __syncwarp();
  }
  __device__ __forceinline__ i64 slot(const Place &at) const { return at.chain().slot(p, at.chunk); }
  __device__ __forceinline__ bool has(const Place &at) const { return at.number < RowChunks<Config>(p).count; }
  __device__ __forceinline__ void load_states(int done) const {
    const Place at = Place::load(shared.place(done));
    if (has(at) && elected()) producer.load_states(slot(at));
    __syncwarp();
  }
  __device__ __forceinline__ void load_rows(int done) const {
    const Place at = Place::load(shared.place(done));
    if (has(at) && elected()) producer.load_rows(at.chain(), at.chunk, slot(at));
    __syncwarp();
  }
  // Three barriers: places of rows, tiles, and results are read or written by all.
  __device__ __forceinline__ void run_chunk(const Place &now, int done) const {
    const Chain chain = now.chain();
    const Decays decays{p, shared, which, lane};
    const u32 across = shared.totals() + TOTAL_ACROSS + done % 2 * 512;
    Met met[steps];
    float ways[steps][8], of_read[2] = {0, 0};
    if (warp() == 0) tell(now.following(p), done + 1);
#pragma unroll
    for (int i = 0; i < COLUMN_TENSORS; ++i)
      if (erases || i != COLUMN_GRAD_VALUES) barrier_wait(shared.full(i), u32(done) & 1);
    make_pairs();
    meet(met);
    if constexpr (erases) make_dv(chain, now.chunk);
    decays.sum_across(warp(), across);
    fence_async();
    sync();
    if (warp() == 0) load_states(done + 1);
    make_tiles();
    sync();
    const bool narrow = tiles().is_narrow(which);
#pragma unroll
    for (int i = 0; i < steps; ++i) step(ways[i], of_read, met[i], share * steps + i, narrow);
    if constexpr (erases) store_of_read(of_read);
    fence_async();
    sync();
    if (warp() == 0) {
      if (elected()) producer.store_rows(chain, now.chunk);
      load_rows(done + 1);
    }
    decays.store_all(ways, chain, now.chunk, share, across);
    if constexpr (erases) finish_reads(chain, now.chunk);
  }
  __device__ __forceinline__ void run() const {
    if (warp() == 0) tell(Place::first(p), 0), load_states(0), load_rows(0);
    sync();
    Place now = Place::load(shared.place(0));
#pragma unroll 1
    for (int done = 0; has(now); ++done) {
      run_chunk(now, done);
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
  const int warp = int(uniform(threadIdx.x / 32)), lane = int(threadIdx.x % 32);
  ColumnRows<Spec, Config>{p, {p, maps, shared}, shared, warp % 4, warp / 4, lane}.run();
  if (warp == 0) RowsLeftAlone<Spec, Config>{p, lane}.run();
}
