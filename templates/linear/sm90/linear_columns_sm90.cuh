// linear/sm90/linear_columns_sm90.cuh: backward of additive updates whose decays differ between channels, all chunks at once:
// dq, dk, dv and the gradient of decays, from the states and their gradients that the chains have kept
// (linear_kept_columns.cuh). With D_ij = do_i v_j' and P_ij = sum over d of q_id k_jd e^(G_id - G_jd), for j <= i,
//
//     dq_i = scale [e^G_i do_i S' + sum over j of D_ij k_j e^(G_i - G_j)]
//     dk_j = e^(GC - G_j) v_j dS' + sum over i of scale D_ij q_i e^(G_i - G_j)
//     dv_j = (k_j e^(GC - G_j)) dS + sum over i of scale P_ij do_i
//
// A decay g_t lies on every way that crosses t: of a channel, with q dq and k dk from a state or to one, and from pairs of
// different tokens,
//
//     dg_t = e^GC sum of S dS + sum over i >= t of (q dq + q dq - k dk)_i + sum over j < t of (k dk)_j
//                               from a state, pairs, pairs                   to a state
//
// Config: as in fwd_linear_sm90.cuh, without v_block and stages; v_dim up to 128. Threads: SharedColumns::threads; blocks: as
// many as there are multiprocessors, or fewer; each takes chunks in turns.
//
// A block has sixteen warps, of which each has 16 tokens and a quarter of the channels: rows of dq have blocks before them, rows
// of dk blocks behind them, so that all have as much to do.
#pragma once
#include "linear/sm90/columns_pipeline.cuh"
#include "linear/sm90/decayed_rows.cuh"
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
  static constexpr int block = 16, k_dim = Shared::k_dim, v_dim = Shared::v_dim, barrier = 1;

  using Sums = GateSums<Spec, Config, Shared::row_bytes, 16>;

  const LuattnLinearParams &p;
  const ColumnProducer<Spec, Config> producer;
  const Shared shared;
  const int which, share, lane;  // which block of tokens; of the channels

  // ---- load ----

  __device__ __forceinline__ int row(int r) const { return which * block + Fragment::row(lane, r); }
  __device__ __forceinline__ void load_rows(u32 (&a)[4], int tensor, int of, int step) const {
    ldmatrix_x4(a, shared.at(tensor, of * block + lane % 16, step * 16 + lane / 16 * 8));
  }
  // Two adjacent channels of each of the warp's tokens: of row number r and column number 2 j.
  __device__ __forceinline__ float2 load_two(int tensor, int step, int r, int j) const {
    const int channel = step * 16 + j * 8;
    const u32 two = load_shared(shared.at(tensor, row(r), channel) + Fragment::column(lane) * 2);
    return {to_real(Elem{u16(two)}), to_real(Elem{u16(two >> 16)})};
  }
  __device__ __forceinline__ float2 sums(int row, int step, int j) const {
    return load_pair(shared.gates() + row * Shared::row_bytes + (step * 16 + j * 8 + Fragment::column(lane)) * 4);
  }
  // What is left over a block, or others: of two adjacent channels.
  __device__ __forceinline__ float2 left(int what, int of, int step, int j) const {
    return load_pair(shared.totals() + what + of * 512 + (step * 16 + j * 8 + Fragment::column(lane)) * 4);
  }
  // Rows of a block of a tile, as A, or turned as B.
  __device__ __forceinline__ void load_tile(u32 (&a)[4], bool of_keys, int of, int step) const {
    ldmatrix_x4(a, shared.tile(of_keys, of * block + lane % 16, step * 16 + lane / 16 * 8));
  }
  __device__ __forceinline__ void load_tile_turned(u32 (&b)[4], bool of_keys, int of, int step) const {
    ldmatrix_x4_turned(b, shared.tile(of_keys, of * block + lane % 16, step * 16 + lane / 16 * 8));
  }
  // Multiplies an A operand's columns by what is left.
  __device__ __forceinline__ void scale(u32 (&a)[4], int what, int of, int step) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 by = left(what, of, step, j);
#pragma unroll
      for (int r = 0; r < 2; ++r) a[2 * j + r] = Queries::scaled(a[2 * j + r], by.x, by.y);
    }
  }

  // ---- compute: tiles ----

  // Four tokens of both tiles, a lane for 4 channels; and of a block what is left.
  __device__ __forceinline__ void make_tiles() const {
    constexpr int lanes = k_dim / 4, rows = 32 / lanes, tokens = LUATTN_CHUNK / Shared::warps;
    const int channel = lane % lanes * 4, first = warp() * tokens;
    const u32 sums_at = shared.gates() + channel * 4;
    float end[4];
    load_four(end, sums_at + (first / block * block + block - 1) * Shared::row_bytes);
#pragma unroll
    for (int i = 0; i < tokens; i += rows) {
      const int row = first + i + lane / lanes;
      const u32 at = channel / 64 * Shared::box + box_place(row, channel % 64) + channel % 8 * 2;
      float sum[4], up[4], down[4];
      load_four(sum, sums_at + row * Shared::row_bytes);
#pragma unroll
      for (int n = 0; n < 4; ++n) up[n] = fast_exp2(sum[n]), down[n] = fast_exp2(end[n] - sum[n]);
      store_tile(false, at, up), store_tile(true, at, down);
    }
    if (share == 0) store_left(channel);
  }
  __device__ __forceinline__ void store_tile(bool of_keys, u32 at, const float (&by)[4]) const {
    const u32 from = shared.at(of_keys ? COLUMN_K : COLUMN_Q) + at, to = shared.tile(of_keys, 0, 0) + at;
    const u32 low = load_shared(from), high = load_shared(from + 4);
    store_shared(to, Queries::scaled(low, by[0], by[1])), store_shared(to + 4, Queries::scaled(high, by[2], by[3]));
  }
  __device__ __forceinline__ void store_left(int channel) const {
    float before[4] = {0, 0, 0, 0}, behind[4] = {0, 0, 0, 0}, own[4] = {0, 0, 0, 0};
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      float all[4];
      load_four(all, shared.gates() + (b * block + block - 1) * Shared::row_bytes + channel * 4);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        before[n] += b < which ? all[n] : 0.f, behind[n] += b > which ? all[n] : 0.f;
        own[n] += b == which ? all[n] : 0.f;
      }
    }
    const u32 to = shared.totals() + which * 512 + channel * 4;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (lane >= k_dim / 4) continue;
      store_number(to + LEFT_BEFORE + 4 * n, fast_exp2(before[n]));
      store_number(to + LEFT_BEHIND + 4 * n, fast_exp2(behind[n]));
      store_number(to + LEFT_OVER + 4 * n, fast_exp2(own[n]));
    }
  }

  // ---- compute: pairs ----

  // s = rows of one tensor times those of another, whose blocks lie before the warp's, or behind it, or are it.
  template <bool Later>
  __device__ __forceinline__ void dots(float (&s)[32], int tensor, int others) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = 0;
#pragma unroll 1
    for (int step = 0; step < v_dim / 16; ++step) {
      u32 a[4], b[4];
      load_rows(a, tensor, which, step);
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if (Later ? n >= which : n <= which) {
          load_rows(b, others, n, step);
          Triangles::multiply(s + 8 * n, a, b);
        }
    }
  }
  // Pairs times a number of their columns' tokens, rounded, and of the block on the diagonal by itself. own: of each of the
  // thread's rows the pair with itself.
  __device__ __forceinline__ void round(u32 (&z)[4][4], u32 (&diagonal)[4], float (&own)[2], const float (&s)[32],
                                        u32 columns) const {
    float pair[2] = {0, 0};
    const int odd = Fragment::row(lane) % 2;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 by = load_pair(columns + Fragment::column(lane, 4 * n + i / 2 * 2) * 4);
        const float low = s[8 * n + 2 * i] * by.x, high = s[8 * n + 2 * i + 1] * by.y;
        z[n][i] = pack<Elem>(low, high);
        if (n == which && (i == 0 || i == 3)) pair[i / 3] = odd ? high : low;
        if (n == which) diagonal[i] = z[n][i];
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
      own[r] = __shfl_sync(0xffffffffu, pair[r], lane - Fragment::lane_in_row(lane) + Fragment::row(lane) / 2);
  }
  // A block of P, times its rows' factor, to shared memory: of the warp's rows, and columns of as many blocks as shares.
  __device__ __forceinline__ void store_pairs(u32 numbers) const {
    if (share > which) return;
    float s[8] = {};
    const Triangles triangles{shared.at(COLUMN_Q), shared.at(COLUMN_K), shared.gates(), which, lane};
    if (share == which)
      triangles.add_block(s);
    else
      add_left(s);
    u32 x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = share * block + Fragment::column(lane, i / 2 * 2), r = i % 2;
      const float by = load_number(numbers + COLUMN_QUERY + row(r) * 4);
      x[i] = pack<Elem>(column <= row(r) ? s[2 * i] * by : 0.f, column + 1 <= row(r) ? s[2 * i + 1] * by : 0.f);
    }
    stmatrix_x4(shared.pairs() + box_place(which * block + lane % 16, share * block + lane / 16 * 8), x[0], x[1], x[2],
                x[3]);
  }
  __device__ __forceinline__ void add_left(float (&s)[8]) const {
#pragma unroll 2
    for (int step = 0; step < k_dim / 16; ++step) {
      u32 a[4], b[4];
      load_tile(a, false, which, step), load_tile(b, true, share, step);
#pragma unroll
      for (int n = 1; n < 3; ++n)
        if (n > share && n < which) scale(a, LEFT_OVER, n, step);
      Triangles::multiply(s, a, b);
    }
  }

  // ---- compute: 16 channels of q and k ----

  // x = rows of do or v times a state.
  __device__ __forceinline__ void meet(float (&x)[8], int tensor, int state, int step) const {
#pragma unroll 4
    for (int v = 0; v < v_dim / 16; ++v) {
      u32 a[4], b[4];
      load_rows(a, tensor, which, v);
      ldmatrix_x4_turned(b, shared.at_state(state, v * 16 + lane % 16, step * 16 + lane / 16 * 8));
      Queries::multiply(x, a, b);
    }
  }
  // Over a block's rows of each of the thread's columns: sums of y from the row on, and of z before it; and all of both.
  __device__ __forceinline__ void sum_ways(float (&ways)[8], const float (&y)[8], const float (&z)[8],
                                           u32 totals) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int upper = Fragment::element(0, j), lower = Fragment::element(1, j);
      float from[2] = {y[upper], y[lower]}, to[2] = {z[upper], z[lower]};
#pragma unroll
      for (int step = 4; step < 32; step *= 2)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float down = __shfl_down_sync(0xffffffffu, from[r], step),
                      up = __shfl_up_sync(0xffffffffu, to[r], step);
          if (lane + step < 32) from[r] += down;
          if (lane >= step) to[r] += up;
        }
      const float behind = __shfl_sync(0xffffffffu, from[1], Fragment::lane_in_row(lane)),
                  first = __shfl_sync(0xffffffffu, to[0], 28 + Fragment::lane_in_row(lane));
      float sooner[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float up = __shfl_up_sync(0xffffffffu, to[r], 4);
        sooner[r] = lane >= 4 ? up : 0.f;
      }
      ways[upper] = from[0] + behind + sooner[0], ways[lower] = from[1] + first + sooner[1];
      const u32 at = totals + which * 512 + Fragment::column(lane, j) * 4;
      if (lane < 4) store_number(at + TOTAL_BEHIND, from[0] + behind);
      if (lane >= 28) store_number(at + TOTAL_BEFORE, first + to[1]);
    }
  }
  __device__ __forceinline__ void store_two(const LuattnTensor &to, const Chain &chain, int t, int channel, int dim,
                                            float low, float high) const {
    if (!chain.has(t) || channel >= dim) return;
    Elem *const at = static_cast<Elem *>(to.data) + (Config::packed ? 0 : chain.entry * to.batch) +
                     chain.site.hv * to.head + i64(chain.start + t) * to.seq + channel;
    *reinterpret_cast<u32 *>(at) = pack<Elem>(low, high);
  }
  // What pairs and states make of the warp's rows; and ways of decays.
  struct Pairs {
    u32 z[4][4], diagonal[4];
    float own[2];
  };
  // y = gradients of pairs with other blocks times their rows of a tile, and what is left over blocks between.
  template <bool Later>
  __device__ __forceinline__ void add_beside(float (&y)[8], const u32 (&z)[4][4], int step) const {
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      const int of = Later ? 3 - n : n;
      if (Later ? of <= which : of >= which) continue;
      u32 b[4];
      load_tile_turned(b, !Later, of, step);
#pragma unroll
      for (int j = 0; j < 2 && n > 0; ++j) {
        const float2 by = left(LEFT_OVER, of, step, j);
#pragma unroll
        for (int r = 0; r < 2; ++r) y[Fragment::element(r, 2 * j)] *= by.x, y[Fragment::element(r, 2 * j + 1)] *= by.y;
      }
      Queries::multiply(y, z[of], b);
    }
  }
  // x = (x times what is left over blocks + y) times what is left in the warp's.
  __device__ __forceinline__ void join(float (&x)[8], float (&y)[8], bool behind, int step) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 by = left(behind ? LEFT_BEHIND : LEFT_BEFORE, which, step, j),
                   end = sums(which * block + block - 1, step, j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 sum = sums(row(r), step, j);
        const int e = Fragment::element(r, 2 * j);
        const float low = fast_exp2(behind ? end.x - sum.x : sum.x), high = fast_exp2(behind ? end.y - sum.y : sum.y);
        x[e] *= by.x * low, x[e + 1] *= by.y * high;
        y[e] *= low, y[e + 1] *= high;
      }
    }
  }
  __device__ __forceinline__ void step(float (&ways)[8], const Chain &chain, int chunk, int step, const Pairs &queries,
                                       const Pairs &keys, u32 numbers, int size) const {
    float from[8] = {}, to[8] = {}, pairs[8] = {}, others[8] = {}, y[8], z[8];
    meet(from, COLUMN_DOUT, COLUMN_STATE, step), add_beside<false>(others, queries.z, step);
    join(from, others, false, step);
#pragma unroll
    for (int i = 0; i < 8; ++i) from[i] += others[i];
    Queries{shared.at(COLUMN_K), shared.gates(), which, lane}.add(from, queries.diagonal, step, size);
    meet(to, COLUMN_V, COLUMN_GRAD_STATE, step), add_beside<true>(pairs, keys.z, step);
    join(to, pairs, true, step);
    Keys{shared.at(COLUMN_Q), shared.gates(), which, lane}.add(pairs, keys.diagonal, step, size);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float query = load_number(numbers + COLUMN_QUERY + row(r) * 4),
                  key = load_number(numbers + COLUMN_KEY + row(r) * 4);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 q = load_two(COLUMN_Q, step, r, j), k = load_two(COLUMN_K, step, r, j);
        const int e = Fragment::element(r, 2 * j), t = chunk * LUATTN_CHUNK + row(r),
                  channel = step * 16 + j * 8 + Fragment::column(lane);
        y[e] = q.x * from[e] * query - k.x * pairs[e] * key, z[e] = k.x * to[e] * key;
        y[e + 1] = q.y * from[e + 1] * query - k.y * pairs[e + 1] * key, z[e + 1] = k.y * to[e + 1] * key;
        store_two(p.dq, chain, t, channel, Config::k_dim, query * (from[e] + queries.own[r] * k.x),
                  query * (from[e + 1] + queries.own[r] * k.y));
        store_two(p.dk, chain, t, channel, Config::k_dim, key * (to[e] + pairs[e] + keys.own[r] * q.x),
                  key * (to[e + 1] + pairs[e + 1] + keys.own[r] * q.y));
      }
    }
    sum_ways(ways, y, z, shared.totals() + step * 64);
  }

  // ---- compute: dv ----

  // k e^(GC - G) of the warp's tokens, as A operands.
  __device__ __forceinline__ void load_joining(u32 (&a)[k_dim / 16][4]) const {
#pragma unroll
    for (int step = 0; step < k_dim / 16; ++step)
      load_tile(a[step], true, which, step), scale(a[step], LEFT_BEHIND, which, step);
  }
  __device__ __forceinline__ void make_dv(const Chain &chain, int chunk, u32 numbers) const {
    constexpr int values = v_dim / 16 / Shared::shares;  // of 16 channels
    u32 joining[k_dim / 16][4], pairs[4][4];
    load_joining(joining);
#pragma unroll
    for (int n = 0; n < 4; ++n)
      ldmatrix_x4_turned(
          pairs[n], shared.pairs() + box_place(n * block + lane % 8 + lane / 16 * 8, which * block + lane / 8 % 2 * 8));
#pragma unroll 1
    for (int v = share * values; v < (share + 1) * values; ++v) {
      float x[8] = {};
      u32 b[4];
#pragma unroll
      for (int step = 0; step < k_dim / 16; ++step) {
        ldmatrix_x4(b, shared.at_state(COLUMN_GRAD_STATE, v * 16 + lane % 16, step * 16 + lane / 16 * 8));
        Triangles::multiply(x, joining[step], b);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if (n >= which) {
          ldmatrix_x4_turned(b, shared.at(COLUMN_DOUT, n * block + lane % 16, v * 16 + lane / 16 * 8));
          Queries::multiply(x, pairs[n], b);
        }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float key = load_number(numbers + COLUMN_KEY + row(r) * 4);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int e = Fragment::element(r, 2 * j);
          store_two(p.dv, chain, chunk * LUATTN_CHUNK + row(r), v * 16 + j * 8 + Fragment::column(lane), Config::v_dim,
                    x[e] * key, x[e + 1] * key);
        }
      }
    }
  }

  // ---- finish: the gradient of decays ----

  __device__ __forceinline__ int warp() const { return share * 4 + which; }
  // Sums over the warp's value channels of products of both states.
  __device__ __forceinline__ void sum_across() const {
    constexpr int lanes = k_dim / 4, rows = 32 / lanes, values = v_dim / Shared::warps;  // of a warp
    const int channel = lane % lanes * 4, first = warp() * values + lane / lanes;
    float sum[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (int i = 0; i < values; i += rows) {
      const u32 at = shared.at_state(0, first + i, channel) - shared.at(0) + channel % 8 * 2;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const u32 s = load_shared(shared.at(COLUMN_STATE) + at + n * 4),
                  d = load_shared(shared.at(COLUMN_GRAD_STATE) + at + n * 4);
        sum[2 * n] += to_real(Elem{u16(s)}) * to_real(Elem{u16(d)});
        sum[2 * n + 1] += to_real(Elem{u16(s >> 16)}) * to_real(Elem{u16(d >> 16)});
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (rows > 1) sum[n] += __shfl_xor_sync(0xffffffffu, sum[n], 16);
      if (lane < lanes) store_number(shared.totals() + TOTAL_ACROSS + warp() * 512 + (channel + n) * 4, sum[n]);
    }
  }
  // What all tokens of a block have: of ways that cross other blocks, and all.
  __device__ __forceinline__ float of_block(int b, int channel) const {
    const u32 at = shared.totals() + channel * 4;
    float left = 0, across = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < Shared::warps; ++i) across += load_number(at + TOTAL_ACROSS + i * 512);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      left += load_number(shared.gates() + (i * block + block - 1) * Shared::row_bytes + channel * 4);
      if (i > b) sum += load_number(at + TOTAL_BEHIND + i * 512);
      if (i < b) sum += load_number(at + TOTAL_BEFORE + i * 512);
    }
    return sum + across * fast_exp2(left);
  }
  // Adds to a thread's ways of 16 channels what all tokens of its block have.
  __device__ __forceinline__ void store_decays(const float (&ways)[8], const Chain &chain, int chunk, int step) const {
    float *const to = p.sums.decay;
    if (to == nullptr) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int channel = step * 16 + Fragment::column(lane, j);
      const float all = of_block(which, channel);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int t = chunk * LUATTN_CHUNK + row(r);
        if (chain.has(t) && channel < Config::k_dim)
          to[chain.token(p, t) * Config::k_dim + channel] = ways[Fragment::element(r, j)] + all;
      }
    }
  }

  // ---- a chunk ----

  __device__ __forceinline__ static void sync() { named_sync(barrier, 32 * Shared::warps); }
  // Sums of decays, and numbers of tokens, once all warps have done the chunk before; then its last places are loaded anew.
  __device__ __forceinline__ void write_numbers(const Chain &chain, int chunk) const {
    const auto begin = [&] {
      sync();
      if (warp() == 0 && elected()) producer.load_late(chain, chunk);
      __syncwarp();
    };
    if (warp() < Shared::parts) {
      Sums{p, chain, lane}.write(shared.gates(), chunk, warp(), begin);
    } else {
      begin();
      if (warp() == Shared::warps - 1) {
        const auto x = TokenNumbers<Spec, Config>{p, chain, lane}.of_tokens(chunk);
        const u32 at = shared.numbers() + 8 * u32(lane);
        store_pair(at + COLUMN_QUERY, x.row), store_pair(at + COLUMN_KEY, x.column);
      }
    }
    sync();
  }
  // While states, q and v of the next chunk are loaded, dv.
  __device__ __forceinline__ void make_rest(const Chain &chain, int chunk, const RowChunks<Config> &next) const {
    if (next.more()) {
      const Chain other = next.chain();
      const int at = next.chunk(other);
      if (warp() == 0 && elected()) producer.load_early(other, at);
      __syncwarp();
    }
    make_dv(chain, chunk, shared.numbers());
  }
  __device__ __forceinline__ void run_chunk(const RowChunks<Config> &now, const RowChunks<Config> &next,
                                            int done) const {
    constexpr int steps = k_dim / 16 / Shared::shares;
    const u32 at = shared.numbers();
    const Chain chain = now.chain();
    const int chunk = now.chunk(chain);
    write_numbers(chain, chunk);
#pragma unroll
    for (int i = 0; i < COLUMN_TENSORS; ++i) barrier_wait(shared.full(i), u32(done) & 1);
    make_tiles();
    sync();
    store_pairs(at);
    Pairs queries, keys;
    float s[32];
    dots<false>(s, COLUMN_DOUT, COLUMN_V);
    round(queries.z, queries.diagonal, queries.own, s, at + COLUMN_KEY);
    dots<true>(s, COLUMN_V, COLUMN_DOUT);
    round(keys.z, keys.diagonal, keys.own, s, at + COLUMN_QUERY);
    const int size = Triangles{0, 0, shared.gates(), which, lane}.narrow_size();
    float ways[steps][8];
#pragma unroll
    for (int i = 0; i < steps; ++i) step(ways[i], chain, chunk, share * steps + i, queries, keys, at, size);
    sum_across();
    sync();
#pragma unroll
    for (int i = 0; i < steps; ++i) store_decays(ways[i], chain, chunk, share * steps + i);
    make_rest(chain, chunk, next);
  }
  __device__ __forceinline__ void run() const {
    RowChunks<Config> now(p), next(p);
    now.seek();
    if (now.more() && warp() == 0 && elected()) {
      const Chain chain = now.chain();
      producer.load_early(chain, now.chunk(chain));
    }
    __syncwarp();
#pragma unroll 1
    for (int done = 0; now.more(); ++done) {
      next.number = now.number;
      next.next(), next.seek();
      run_chunk(now, next, done);
      now.number = next.number;
    }
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
