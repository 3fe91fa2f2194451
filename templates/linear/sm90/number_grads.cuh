// linear/sm90/number_grads.cuh: luattn_linear_numbers: gradients of decays and of what is written, of additive updates, of all
// chunks of all value heads. A decay g_t lies on every way from a key to a query that crosses t: with c_ij = dP_ij P_ij of a
// pair in the chunk, c0_i of what comes from the state S before it, cC_j of what goes to the state behind it, whose gradient is
// dS,
//
//     dg_t = <e^GC S, dS> + sum over i >= t of c0_i + sum over j < t of cC_j + sum over i >= t > j of c_ij
//
// all sums, none a difference. The gradient of w_j is (cC_j + sum over i >= j of c_ij) / w_j, which is summed without w_j.
//
// A block takes chunks in turns. It has a warp that loads, one that makes numbers of tokens, four that have queries as rows, 16
// each, four that have keys, and one that adds up (NumberSums). Each tensor of a chunk has a place, and is loaded again as soon as
// the chunk before has been read there. S and dS are those that the passes for dq and dk have kept, fragments of B as they lie.
#pragma once
#include "linear/sm90/chunk_loads.cuh"
#include "linear/sm90/linear_numbers.cuh"
#include "linear/sm90/linear_token_sums.cuh"
#include "score/fragment.cuh"
#include "source/cp_async_tile.cuh"

enum NumberTensor { OF_Q, OF_K, OF_V, OF_DOUT, OF_STATE, OF_GRAD_STATE, NUMBER_TENSORS };

// Arrays of LUATTN_CHUNK floats. Numbers of tokens:
enum {
  TOKEN_SUM = 0,       // G, to the base of 2
  TOKEN_ROW = 256,     // scale and q's factor
  TOKEN_COLUMN = 512,  // k's factor
  TOKEN_WRITE = 768    // w
};
// and sums: c0; cC without w; of four warps each, the last sum of dg, and that of dw; <S, dS> of four warps.
enum { SUM_TO_QUERY = 0, SUM_FROM_KEY = 256, SUM_OF_PAIRS = 512, SUM_OF_WRITTEN = 1536, SUM_ACROSS = 2560 };

template <class Spec, class Config>
struct SharedNumbers {
  static constexpr int boxes_k = ceil_div(Config::k_dim, 64), boxes_v = ceil_div(Config::v_dim, 64), box = LINEAR_BOX;
  static constexpr LinearNumbersLayout layout = linear_numbers_layout(Config::k_dim, Config::v_dim);
  static constexpr int threads = 32 * 11;
  static_assert(layout.bytes <= LUATTN_SM90_SHARED_BYTES);

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ static constexpr int size(int tensor) {
    return tensor >= OF_STATE ? layout.state : tensor == OF_V || tensor == OF_DOUT ? boxes_v * box : boxes_k * box;
  }
  __device__ __forceinline__ u32 at(int tensor) const {
    constexpr int places[] = {0, layout.at_k, layout.at_v, layout.at_dout, layout.at_state, layout.at_grad_state};
    return start + places[tensor];
  }
  __device__ __forceinline__ u32 numbers(int stage) const {
    return start + layout.at_numbers + stage * LINEAR_WAY_NUMBERS;
  }
  __device__ __forceinline__ u32 sums() const { return start + layout.at_sums; }
  __device__ __forceinline__ u32 full(int tensor) const { return start + layout.at_barriers + tensor * 16; }
  __device__ __forceinline__ u32 empty(int tensor) const { return full(tensor) + 8; }
  __device__ __forceinline__ u32 numbers_full(int stage) const { return full(NUMBER_TENSORS + stage); }
  __device__ __forceinline__ u32 numbers_empty(int stage) const { return numbers_full(stage) + 8; }
  __device__ __forceinline__ u32 sums_full() const { return full(NUMBER_TENSORS + 2); }
  __device__ __forceinline__ u32 sums_empty() const { return sums_full() + 8; }

  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < NUMBER_TENSORS; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), i == OF_K || i == OF_V || i == OF_STATE ? 8 : 4);  // warps that read it
    }
    for (int i = 0; i < 2; ++i) barrier_init(numbers_full(i), 32), barrier_init(numbers_empty(i), 9);
    barrier_init(sums_full(), 8), barrier_init(sums_empty(), 1);
    barrier_init_done();
  }
};

// The warp that loads.
template <class Spec, class Config>
struct NumberProducer : ChunkLoads<Config, SharedNumbers<Spec, Config>, LuattnTensorMaps> {
  using Shared = SharedNumbers<Spec, Config>;
  using Loads = ChunkLoads<Config, Shared, LuattnTensorMaps>;
  using Chain = typename Loads::Chain;
  using Loads::load, Loads::load_kept, Loads::maps, Loads::p;

  __device__ __forceinline__ void load_chunk(const Chain &chain, int chunk, int done) const {
    const i64 slot = chain.slot(p, chunk);
    load(OF_V, maps.v, chain, chunk, chain.site.hv, Shared::boxes_v, done);
    load_kept(OF_GRAD_STATE, p.kept.grad_states, slot, done);
    load(OF_K, maps.k, chain, chunk, chain.site.h, Shared::boxes_k, done);
    load(OF_Q, maps.q, chain, chunk, chain.site.h, Shared::boxes_k, done);
    load(OF_DOUT, maps.dout, chain, chunk, chain.site.hv, Shared::boxes_v, done);
    load_kept(OF_STATE, p.kept.states, slot, done);
  }
  __device__ __forceinline__ void run() const {
    this->each([&](const Chain &chain, int chunk, int done) { load_chunk(chain, chunk, done); });
  }
};

// The warp that makes numbers of tokens.
template <class Spec, class Config>
struct WayNumbers {
  using Shared = SharedNumbers<Spec, Config>;
  using Chain = LinearChain<Config>;

  const LuattnLinearParams &p;
  const Shared shared;
  const int lane;

  __device__ __forceinline__ void run() const {
    for_each_chunk<Config>(p, [&](const Chain &chain, int chunk, int done) {
      const auto x = TokenNumbers<Spec, Config>{p, chain, lane}.of_tokens(chunk);
      float key[2] = {1, 1};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int t = chunk * LUATTN_CHUNK + 2 * lane + i;
        if constexpr (Spec::has_key_factor)
          if (chain.has(t)) key[i] = Spec::key_factor(p, chain.site, t);
      }
      const u32 at = shared.numbers(done % 2) + 8 * u32(lane);
      barrier_wait(shared.numbers_empty(done % 2), u32(done / 2 + 1) & 1);
      store_pair(at + TOKEN_SUM, x.sum), store_pair(at + TOKEN_ROW, x.row);
      store_pair(at + TOKEN_COLUMN, key), store_pair(at + TOKEN_WRITE, x.write);
      barrier_arrive(shared.numbers_full(done % 2));
    });
  }
};

// The warp that adds up, and stores dg and dw.
template <class Spec, class Config>
struct NumberSums {
  using Shared = SharedNumbers<Spec, Config>;
  using Chain = LinearChain<Config>;
  static constexpr bool decays = TokenNumbers<Spec, Config>::decays;

  const LuattnLinearParams &p;
  const Shared shared;
  const int lane;

  __device__ __forceinline__ static void add(float2 &x, float2 y) { x.x += y.x, x.y += y.y; }
  __device__ __forceinline__ void run() const {
    for_each_chunk<Config>(p, [&](const Chain &chain, int chunk, int done) {
      const u32 numbers = shared.numbers(done % 2), at = shared.sums() + 8 * u32(lane);
      barrier_wait(shared.numbers_full(done % 2), u32(done / 2) & 1);
      const float2 write = load_pair(numbers + TOKEN_WRITE + 8 * u32(lane));
      const float left = decays ? fast_exp2(load_number(numbers + TOKEN_SUM + 63 * 4)) : 1.f;
      __syncwarp();
      if (elected()) barrier_arrive(shared.numbers_empty(done % 2));
      barrier_wait(shared.sums_full(), u32(done) & 1);
      float2 written = load_pair(at + SUM_FROM_KEY);
      const TokenSums tokens{lane};
      float2 crossed = tokens.suffix(load_pair(at + SUM_TO_QUERY));
      add(crossed, tokens.prefix({written.x * write.x, written.y * write.y}));
      float across = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        add(crossed, load_pair(at + SUM_OF_PAIRS + i * 256)), add(written, load_pair(at + SUM_OF_WRITTEN + i * 256));
        across += load_number(shared.sums() + SUM_ACROSS + 4 * i);
      }
      __syncwarp();
      if (elected()) barrier_arrive(shared.sums_empty());
      across *= left;
      const int t = chunk * LUATTN_CHUNK + 2 * lane;
      store(p.sums.decay, chain, t, {crossed.x + across, crossed.y + across});
      store(p.sums.write, chain, t, written);
    });
  }
  __device__ __forceinline__ void store(float *to, const Chain &chain, int t, float2 x) const {
    if (to != nullptr && chain.has(t)) to[chain.token(p, t)] = x.x;
    if (to != nullptr && chain.has(t + 1)) to[chain.token(p, t + 1)] = x.y;
  }
};

// A warp that has 16 tokens as rows.
template <class Spec, class Config>
struct NumberGrads {
  using Shared = SharedNumbers<Spec, Config>;
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  using Chain = LinearChain<Config>;
  static constexpr int boxes_k = Shared::boxes_k, v_steps = Shared::boxes_v * 4;
  static constexpr bool decays = TokenNumbers<Spec, Config>::decays;

  const Shared shared;
  const int warp, lane;  // warp: of four

  __device__ __forceinline__ void await(int tensor, int done) const {
    barrier_wait(shared.full(tensor), u32(done) & 1);
  }
  __device__ __forceinline__ void release(int tensor) const {
    __syncwarp();
    if (elected()) barrier_arrive(shared.empty(tensor));
  }

  // ---- products ----

  // Place of a lane's row for ldmatrix: A operands of the warp's rows, and two B operands of columns from `first` on.
  __device__ __forceinline__ u32 own_rows(u32 tile, int channel) const {
    return tile + channel / 64 * Shared::box + box_place(16 * warp + lane % 16, channel % 64 + lane / 16 * 8);
  }
  __device__ __forceinline__ u32 columns(u32 tile, int first, int channel) const {
    return tile + channel / 64 * Shared::box +
           box_place(first + lane % 8 + lane / 16 * 8, channel % 64 + lane / 8 % 2 * 8);
  }
  // Of the warp's 16 tokens of `a` and all of `b`, over boxes of channels.
  __device__ __forceinline__ void multiply(float (&s)[8][4], int a, int b, int boxes) const {
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0;
#pragma unroll 2
    for (int d = 0; d < 64 * boxes; d += 16) {
      u32 x[4], y[4];
      ldmatrix_x4(x, own_rows(shared.at(a), d));
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        ldmatrix_x4(y, columns(shared.at(b), 8 * n, d));
        mma_16x8x16<Elem>(s[n], x, y[0], y[1]);
        mma_16x8x16<Elem>(s[n + 1], x, y[2], y[3]);
      }
    }
  }
  // For each token of the warp, (x S') . y: two rows of a thread, whole in each lane of a row.
  __device__ __forceinline__ void meet_state(float (&dot)[2], int state, int x, int y) const {
    u32 rows[v_steps][4];
#pragma unroll
    for (int step = 0; step < v_steps; ++step) ldmatrix_x4(rows[step], own_rows(shared.at(x), 16 * step));
    dot[0] = dot[1] = 0;
#pragma unroll 2
    for (int n = 0; n < 4 * boxes_k; ++n) {  // 16 channels of k
      const u32 from = shared.at(state) + n / 4 * (v_steps * 2048) + n % 4 * 512 + lane * 16;
      float s[2][4] = {};
#pragma unroll
      for (int step = 0; step < v_steps; ++step) {
        const uint4 of = load_shared_16(from + step * 2048);
        mma_16x8x16<Elem>(s[0], rows[step], of.x, of.z);
        mma_16x8x16<Elem>(s[1], rows[step], of.y, of.w);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const u32 two = load_shared(shared.at(y) + n / 4 * Shared::box +
                                      box_place(16 * warp + Fragment::row(lane, r), n % 4 * 16 + half * 8) +
                                      u32(Fragment::column(lane) * 2));
          dot[r] += s[half][2 * r] * half_of<Elem>(two, 0) + s[half][2 * r + 1] * half_of<Elem>(two, 1);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int m = 1; m < Fragment::row_lanes; m *= 2) dot[r] += __shfl_xor_sync(0xffffffffu, dot[r], m);
  }
  // The warp's part of <S, dS>.
  __device__ __forceinline__ float across() const {
    const u32 at = (32 * warp + lane) * 16;
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < boxes_k * v_steps; ++i) {
      const uint4 x = load_shared_16(shared.at(OF_STATE) + at + i * 2048),
                  y = load_shared_16(shared.at(OF_GRAD_STATE) + at + i * 2048);
      const u32 of_x[] = {x.x, x.y, x.z, x.w}, of_y[] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int n = 0; n < 4; ++n)
        sum += half_of<Elem>(of_x[n], 0) * half_of<Elem>(of_y[n], 0) +
               half_of<Elem>(of_x[n], 1) * half_of<Elem>(of_y[n], 1);
    }
#pragma unroll
    for (int m = 16; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    return sum;
  }

  // ---- pairs ----

  // Turns the two products into c without w_j, 0 above the diagonal.
  __device__ __forceinline__ void weigh(float (&c)[8][4], const float (&s)[8][4], u32 numbers) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = 16 * warp + Fragment::row(lane, r);
      const float sum = load_number(numbers + TOKEN_SUM + i * 4), row = load_number(numbers + TOKEN_ROW + i * 4);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int j = 8 * n + Fragment::column(lane);
        const float2 sums = load_pair(numbers + TOKEN_SUM + j * 4), column = load_pair(numbers + TOKEN_COLUMN + j * 4);
        float &x = c[n][2 * r], &y = c[n][2 * r + 1];
        x = j <= i ? x * s[n][2 * r] * (row * column.x * decay_between(sum, sums.x)) : 0.f;
        y = j + 1 <= i ? y * s[n][2 * r + 1] * (row * column.y * decay_between(sum, sums.y)) : 0.f;
      }
    }
  }
  __device__ __forceinline__ static float decay_between(float later, float sooner) {
    return decays ? fast_exp2(later - sooner) : 1.f;
  }
  // Over the warp's rows; each lane of a column has it.
  __device__ __forceinline__ static float over_rows(float x) {
#pragma unroll
    for (int m = Fragment::row_lanes; m < 32; m *= 2) x += __shfl_xor_sync(0xffffffffu, x, m);
    return x;
  }
  // Sums of columns, of c w up to each column but that one, and of c.
  __device__ __forceinline__ void sum_pairs(const float (&c)[8][4], u32 numbers) const {
    float before[2] = {0, 0};  // a row's sums over the blocks of columns to the left
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int j = 8 * n + Fragment::column(lane);
      const float2 w = load_pair(numbers + TOKEN_WRITE + j * 4);
      float crossed[2] = {0, 0}, written[2] = {0, 0};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = 16 * warp + Fragment::row(lane, r);
        const float x = c[n][2 * r] * w.x, y = c[n][2 * r + 1] * w.y;
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
          const u32 at = shared.sums() + warp * 256 + (j + m) * 4;
          store_number(at + SUM_OF_PAIRS, of_pairs), store_number(at + SUM_OF_WRITTEN, of_written);
        }
      }
    }
  }

  // ---- chunks ----

  __device__ __forceinline__ void store_rows(const float (&x)[2], u32 to) const {
    if (Fragment::first_in_row(lane))
#pragma unroll
      for (int r = 0; r < 2; ++r) store_number(to + (16 * warp + Fragment::row(lane, r)) * 4, x[r]);
  }
  // Numbers of tokens and sums of the chunk before are there.
  __device__ __forceinline__ void finish(int done) const {
    __syncwarp();
    if (elected()) barrier_arrive(shared.sums_full()), barrier_arrive(shared.numbers_empty(done % 2));
  }
  __device__ __forceinline__ void step_queries(int done) const {
    const u32 numbers = shared.numbers(done % 2);
    {
      float c[8][4], s[8][4];
      await(OF_V, done), await(OF_K, done), await(OF_Q, done);
      multiply(c, OF_Q, OF_K, boxes_k);
      release(OF_K);
      await(OF_DOUT, done);
      multiply(s, OF_DOUT, OF_V, Shared::boxes_v);
      release(OF_V);
      barrier_wait(shared.numbers_full(done % 2), u32(done / 2) & 1);
      weigh(c, s, numbers);
      barrier_wait(shared.sums_empty(), u32(done + 1) & 1);
      sum_pairs(c, numbers);
    }
    float to[2];
    await(OF_STATE, done);
    meet_state(to, OF_STATE, OF_DOUT, OF_Q);
    release(OF_STATE), release(OF_DOUT), release(OF_Q);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const u32 at = numbers + (16 * warp + Fragment::row(lane, r)) * 4;
      to[r] *= load_number(at + TOKEN_ROW) * (decays ? fast_exp2(load_number(at + TOKEN_SUM)) : 1.f);
    }
    store_rows(to, shared.sums() + SUM_TO_QUERY);
    finish(done);
  }
  __device__ __forceinline__ void step_keys(int done) const {
    const u32 numbers = shared.numbers(done % 2);
    float from[2];
    await(OF_V, done), await(OF_GRAD_STATE, done), await(OF_K, done);
    meet_state(from, OF_GRAD_STATE, OF_V, OF_K);
    release(OF_V), release(OF_K);
    await(OF_STATE, done);
    const float of_states = across();
    release(OF_STATE), release(OF_GRAD_STATE);
    barrier_wait(shared.numbers_full(done % 2), u32(done / 2) & 1);
    const float last = load_number(numbers + TOKEN_SUM + 63 * 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const u32 at = numbers + (16 * warp + Fragment::row(lane, r)) * 4;
      from[r] *= load_number(at + TOKEN_COLUMN) * (decays ? fast_exp2(last - load_number(at + TOKEN_SUM)) : 1.f);
    }
    barrier_wait(shared.sums_empty(), u32(done + 1) & 1);
    store_rows(from, shared.sums() + SUM_FROM_KEY);
    if (lane == 0) store_number(shared.sums() + SUM_ACROSS + 4 * warp, of_states);
    finish(done);
  }
};

template <class Spec, class Config>
LUATTN_FN void number_grads(const LuattnLinearParams &p, const LuattnTensorMaps &maps, void *memory) {
  using Shared = SharedNumbers<Spec, Config>;
  using Chain = LinearChain<Config>;
  const Shared shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const int warp = int(uniform(threadIdx.x / 32)), lane = int(threadIdx.x % 32);
  const NumberGrads<Spec, Config> grads{shared, warp % 4, lane};
  if (warp < 4)
    for_each_chunk<Config>(p, [&](const Chain &, int, int done) { grads.step_queries(done); });
  else if (warp < 8)
    for_each_chunk<Config>(p, [&](const Chain &, int, int done) { grads.step_keys(done); });
  else if (warp == 8)
    NumberProducer<Spec, Config>{{p, maps, shared}}.run();
  else if (warp == 9)
    WayNumbers<Spec, Config>{p, shared, lane}.run();
  else
    NumberSums<Spec, Config>{p, shared, lane}.run();
}
