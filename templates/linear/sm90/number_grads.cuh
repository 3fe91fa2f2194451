// linear/sm90/number_grads.cuh: luattn_linear_numbers: gradients of decays and of what is written, of additive updates, a chunk
// of a value head at a time. A decay g_t lies on every way from a key to a query that crosses t: with c_ij = dP_ij P_ij of a
// pair in the chunk, c0_i of what comes from the state S before it, cC_j of what goes to the state behind it, whose gradient is
// dS,
//
//     dg_t = <e^GC S, dS> + sum over i >= t of c0_i + sum over j < t of cC_j + sum over i >= t > j of c_ij
//
// all sums, none a difference. The gradient of w_j is (cC_j + sum over i >= j of c_ij) / w_j, which is summed without w_j.
//
// 128 threads: a warp has 16 tokens. S and dS are those that the passes for dq and dk have kept, fragments of B as they lie.
#pragma once
#include "linear/sm90/linear_numbers.cuh"
#include "score/fragment.cuh"
#include "source/cp_async_tile.cuh"

template <class Spec, class Config>
struct NumberGrads {
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  using Chain = LinearChain<Config>;
  static constexpr int threads = 128, warps = 4, C = LUATTN_CHUNK;
  static constexpr int k_cols = ceil_div(Config::k_dim, 16) * 16, v_cols = ceil_div(Config::v_dim, 16) * 16;
  static constexpr int boxes_k = ceil_div(Config::k_dim, 64), v_steps = ceil_div(Config::v_dim, 64) * 4;
  using TileK = SharedTile<k_cols>;
  using TileV = SharedTile<v_cols>;

  const LuattnLinearParams &p;
  unsigned char *memory;
  const int warp, lane;

  // Arrays of C floats behind the tiles.
  enum {
    SUM,                            // G, to the base of 2
    ROW,                            // scale and q's factor
    COLUMN,                         // k's factor
    WRITE,                          // w
    TO_QUERY,                       // c0
    FROM_KEY,                       // cC without w
    OF_PAIRS,                       // of each warp, the last sum of dg
    OF_WRITTEN = OF_PAIRS + warps,  // of each warp, that of dw
    ACROSS = OF_WRITTEN + warps     // <S, dS> of each warp; GC
  };
  __device__ __forceinline__ u32 tile_q() const { return shared_address(memory); }
  __device__ __forceinline__ u32 tile_k() const { return tile_q() + TileK::bytes(C); }
  __device__ __forceinline__ u32 tile_v() const { return tile_k() + TileK::bytes(C); }
  __device__ __forceinline__ u32 tile_dout() const { return tile_v() + TileV::bytes(C); }
  __device__ __forceinline__ float *numbers(int which) const {
    return reinterpret_cast<float *>(memory + 2 * TileK::bytes(C) + 2 * TileV::bytes(C)) + which * C;
  }

  // ---- load ----

  template <class Tile, int Dim>
  __device__ __forceinline__ void load_tile(u32 tile, const LuattnTensor &x, const Chain &chain, int head,
                                            int first) const {
    const Elem *const rows =
        static_cast<const Elem *>(x.data) + (Config::packed ? 0 : chain.entry * x.batch) + head * x.head;
#pragma unroll 1
    for (int i = int(threadIdx.x); i < C * Tile::chunks; i += threads) {
      const int t = i / Tile::chunks, part = i % Tile::chunks;
      const bool has = chain.has(first + t) && part * 8 < Dim;
      cp_async_16(tile + Tile::offset(t, part), rows + (has ? i64(chain.start + first + t) * x.seq + part * 8 : 0),
                  has);
    }
  }
  __device__ __forceinline__ void make_numbers(const Chain &chain, int chunk) const {
    const auto x = TokenNumbers<Spec, Config>{p, chain, lane}.of_tokens(chunk);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = 2 * lane + i, t = chunk * C + n;
      float key = 1;
      if constexpr (Spec::has_key_factor)
        if (chain.has(t)) key = Spec::key_factor(p, chain.site, t);
      numbers(SUM)[n] = x.sum[i], numbers(ROW)[n] = x.row[i], numbers(COLUMN)[n] = key, numbers(WRITE)[n] = x.write[i];
    }
  }

  // ---- products ----

  // Of the warp's 16 tokens of `a` and all of `b`, over channels.
  template <class Tile>
  __device__ __forceinline__ void multiply(float (&s)[8][4], u32 a, u32 b) const {
    const LanePointer<Tile::Cols, false> of_a(lane);
    const LanePointer<Tile::Cols, true> of_b(lane);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0;
#pragma unroll 2
    for (int d = 0; d < Tile::Cols; d += 16) {
      u32 x[4], y[4];
      ldmatrix_x4(x, of_a.at(a, 16 * warp, d));
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        ldmatrix_x4(y, of_b.at(b, 8 * n, d));
        mma_16x8x16<Elem>(s[n], x, y[0], y[1]);
        mma_16x8x16<Elem>(s[n + 1], x, y[2], y[3]);
      }
    }
  }
  // For each token of the warp, (x S') . y: two rows of a thread, whole in each lane of a row.
  __device__ __forceinline__ void meet_state(float (&dot)[2], const void *kept, i64 slot, u32 x_tile,
                                             u32 y_tile) const {
    const LanePointer<v_cols, false> of_x(lane);
    dot[0] = dot[1] = 0;
#pragma unroll 1
    for (int box = 0; box < boxes_k; ++box) {
      const uint4 *const state = static_cast<const uint4 *>(kept) + (slot * boxes_k + box) * (v_steps * 128) + lane;
#pragma unroll 1
      for (int rows = 0; rows < 4; ++rows) {  // 16 channels of k
        float s[2][4] = {};
#pragma unroll
        for (int step = 0; step < v_cols / 16; ++step) {
          u32 x[4];
          const uint4 of = __ldg(state + step * 128 + rows * 32);
          ldmatrix_x4(x, of_x.at(x_tile, 16 * warp, 16 * step));
          mma_16x8x16<Elem>(s[0], x, of.x, of.z);
          mma_16x8x16<Elem>(s[1], x, of.y, of.w);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int channel = box * 64 + rows * 16 + n * 8 + Fragment::column(lane);
            if (channel >= k_cols) continue;
            const u32 two =
                load_shared(y_tile + TileK::offset(u32(16 * warp + Fragment::row(lane, r)), u32(channel / 8)) +
                            u32(channel % 8 * 2));
            dot[r] += s[n][2 * r] * to_real(Elem{u16(two)}) + s[n][2 * r + 1] * to_real(Elem{u16(two >> 16)});
          }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int m = 1; m < Fragment::row_lanes; m *= 2) dot[r] += __shfl_xor_sync(0xffffffffu, dot[r], m);
  }
  // The warp's part of <S, dS>.
  __device__ __forceinline__ float across(i64 slot) const {
    const i64 at = slot * boxes_k * (v_steps * 128) + threadIdx.x;
    const uint4 *const a = static_cast<const uint4 *>(p.kept.states) + at, *const b = static_cast<const uint4 *>(
                                                                                          p.kept.grad_states) +
                                                                                      at;
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < boxes_k * v_steps; ++i) {
      const uint4 x = __ldg(a + i * 128), y = __ldg(b + i * 128);
      const u32 of_x[] = {x.x, x.y, x.z, x.w}, of_y[] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int n = 0; n < 4; ++n)
        sum += to_real(Elem{u16(of_x[n])}) * to_real(Elem{u16(of_y[n])}) +
               to_real(Elem{u16(of_x[n] >> 16)}) * to_real(Elem{u16(of_y[n] >> 16)});
    }
#pragma unroll
    for (int m = 16; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    return sum;
  }

  // ---- pairs ----

  // Turns the two products into c without w_j, 0 above the diagonal.
  __device__ __forceinline__ void weigh(float (&c)[8][4], const float (&s)[8][4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = 16 * warp + Fragment::row(lane, r);
      const float sum = numbers(SUM)[i], row = numbers(ROW)[i];
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        const int j = Fragment::column(lane, n);
        float &e = c[n / 2][2 * r + n % 2];
        const float weight = row * numbers(COLUMN)[j] * fast_exp2(sum - numbers(SUM)[j]);
        e = j <= i ? e * s[n / 2][2 * r + n % 2] * weight : 0.f;
      }
    }
  }
  // Over the warp's rows; each lane of a column has it.
  __device__ __forceinline__ static float over_rows(float x) {
#pragma unroll
    for (int m = Fragment::row_lanes; m < 32; m *= 2) x += __shfl_xor_sync(0xffffffffu, x, m);
    return x;
  }
  // Sums of columns, of c w up to each column but that one, and of c.
  __device__ __forceinline__ void sum_pairs(const float (&c)[8][4]) const {
    float before[2] = {0, 0};  // a row's sums over the blocks of columns to the left
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int j = 8 * n + Fragment::column(lane);
      const float w[2] = {numbers(WRITE)[j], numbers(WRITE)[j + 1]};
      float crossed[2] = {0, 0}, written[2] = {0, 0};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = 16 * warp + Fragment::row(lane, r);
        const float x = c[n][2 * r] * w[0], y = c[n][2 * r + 1] * w[1];
        float up_to = x + y;  // and over the lanes of the row
#pragma unroll
        for (int m = 1; m < Fragment::row_lanes; m *= 2) {
          const float left = __shfl_up_sync(0xffffffffu, up_to, m, Fragment::row_lanes);
          if (lane % Fragment::row_lanes >= m) up_to += left;
        }
        const float shifted = __shfl_up_sync(0xffffffffu, up_to, 1, Fragment::row_lanes);
        const float left = before[r] + (lane % Fragment::row_lanes > 0 ? shifted : 0.f);
        crossed[0] += j <= i ? left : 0.f, crossed[1] += j + 1 <= i ? left + x : 0.f;
        written[0] += c[n][2 * r], written[1] += c[n][2 * r + 1];
        before[r] += __shfl_sync(0xffffffffu, up_to, Fragment::row_lanes - 1, Fragment::row_lanes);
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const float of_pairs = over_rows(crossed[m]), of_written = over_rows(written[m]);
        if (lane < Fragment::row_lanes) {
          numbers(OF_PAIRS + warp)[j + m] = of_pairs;
          numbers(OF_WRITTEN + warp)[j + m] = of_written;
        }
      }
    }
  }

  // ---- finish ----

  __device__ __forceinline__ void store(const Chain &chain, int first, int n) const {
    if (!chain.has(first + n)) return;
    const i64 at = chain.token(p, first + n);
    float crossed = 0, written = numbers(FROM_KEY)[n], over = 0;
#pragma unroll
    for (int i = 0; i < warps; ++i) {
      crossed += numbers(OF_PAIRS + i)[n], written += numbers(OF_WRITTEN + i)[n];
      over += numbers(ACROSS)[i];
    }
    over *= fast_exp2(numbers(SUM)[C - 1]);
#pragma unroll 4
    for (int i = C - 1; i >= n; --i) crossed += numbers(TO_QUERY)[i];
#pragma unroll 4
    for (int j = 0; j < n; ++j) over += numbers(FROM_KEY)[j] * numbers(WRITE)[j];
    if (p.sums.decay != nullptr) p.sums.decay[at] = crossed + over;
    if (p.sums.write != nullptr) p.sums.write[at] = written;
  }

  __device__ __forceinline__ void step(const Chain &chain, int chunk) const {
    const int first = chunk * C;
    const i64 slot = chain.slot(p, chunk);
    load_tile<TileK, Config::k_dim>(tile_q(), p.q, chain, chain.site.h, first);
    load_tile<TileK, Config::k_dim>(tile_k(), p.k, chain, chain.site.h, first);
    load_tile<TileV, Config::v_dim>(tile_v(), p.v, chain, chain.site.hv, first);
    load_tile<TileV, Config::v_dim>(tile_dout(), p.rows.dout, chain, chain.site.hv, first);
    cp_async_commit();
    if (warp == 0) make_numbers(chain, chunk);
    const float of_states = across(slot);
    cp_async_wait<0>();
    __syncthreads();
    if (lane == 0) numbers(ACROSS)[warp] = of_states;
    {
      float c[8][4], s[8][4];
      multiply<TileK>(c, tile_q(), tile_k());
      multiply<TileV>(s, tile_dout(), tile_v());
      weigh(c, s);
      sum_pairs(c);
    }
    float to_query[2], from_key[2];
    meet_state(to_query, p.kept.states, slot, tile_dout(), tile_q());
    meet_state(from_key, p.kept.grad_states, slot, tile_v(), tile_k());
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = 16 * warp + Fragment::row(lane, r);
      const float sum = numbers(SUM)[i];
      if (lane % Fragment::row_lanes == 0) {
        numbers(TO_QUERY)[i] = to_query[r] * numbers(ROW)[i] * fast_exp2(sum);
        numbers(FROM_KEY)[i] = from_key[r] * numbers(COLUMN)[i] * fast_exp2(numbers(SUM)[C - 1] - sum);
      }
    }
    __syncthreads();
    if (threadIdx.x < C) store(chain, first, int(threadIdx.x));
    __syncthreads();
  }
};

template <class Spec, class Config>
LUATTN_FN void number_grads(const LuattnLinearParams &p, unsigned char *memory) {
  const NumberGrads<Spec, Config> grads{p, memory, int(threadIdx.x / 32), int(threadIdx.x % 32)};
  for_each_chunk<Config>(p, [&](const auto &chain, int chunk, int) { grads.step(chain, chunk); });
}
