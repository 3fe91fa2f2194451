// linear/sm90/linear_grad_chain.cuh: a warpgroup of luattn_linear_grads that owns 64 value channels of dS', which stays in
// registers:
//
//     dU = e^(GC - G) dS' K' + V P      A: dS' rounded, V     B: K, a row for each token; P, transposed
//     dR = dU T                         A: dU rounded         B: T, transposed
//     dS' = a dS' + (scale e^G V) Q - (r e^G dR) K            B: Q and K, transposed
//
// where V is the gradient of o; and, with tokens as rows, 64 channels of dq and dk:
//
//     dq = scale e^G do S' + (dQ e^(G_i - G_j)) k
//     dr = -e^G dR S' + (dA e^(G_i - G_j)) k                   S: before the chunk
//     dk = e^(GC - G) U dS + (dQ e^(..))' q + (dA e^(..))' r   dS: of the state behind it
//
// and of r, which is k times a number, the gradient of that is the sum of dr k, and dr times it is added to dk; dv = w dR, with dw,
// the sum of dR v. Of additive updates U is v, dv is dU with w in k's factor, and dw is that factor's gradient.
#pragma once
#include "linear/sm90/grads_pipeline.cuh"
#include "linear/sm90/linear_row_group.cuh"
#include "linear/sm90/linear_states.cuh"

enum { GRADS_BOTH_CHAINS = 4 };  // named barrier; 1 and 2 are the chains' alone, 3 that of the pairs

template <class Spec, class Config>
struct GradChain {
  using Shared = SharedGrads<Spec, Config>;
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  using Fragment = MmaFragment;
  static constexpr bool decays = Shared::has_gates;

  const LuattnLinearParams &p;
  const LuattnLinearRowMaps &maps;
  const Shared shared;
  const Chain &chain;
  const int group, warp;
  int lane;

  __device__ __forceinline__ StateRows<Config> rows() const {
    const int here = lane_anew();
    return {chain, group * 64 + 16 * warp + Fragment::row(here), here};
  }
  __device__ __forceinline__ void sync() const { named_sync(1 + group, 128); }
  __device__ __forceinline__ bool first() const { return warp == 0 && elected(); }
  __device__ __forceinline__ void await(int tensor, int n) const { barrier_wait(shared.full(tensor), u32(n) & 1); }
  __device__ __forceinline__ void release(int tensor) const {
    __syncwarp();
    if (elected()) barrier_arrive(shared.empty(tensor));
  }

  // The group's channels of a tensor.
  __device__ __forceinline__ void store_box(int tensor, const LuattnTensorMap &map, int n) const {
    tensor_store(shared.at(tensor + group), map, group * 64, chain.box(chain.at(n)), chain.site.hv);
    bulk_commit();
  }

  // ---- with value channels as rows ----

  template <int N>
  __device__ __forceinline__ static void round(u32 (&a)[4], const float (&x)[N], int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pack<Elem>(x[8 * step + 2 * i], x[8 * step + 2 * i + 1]);
  }
  // A box of 64 tokens, whose channels are rows of the warp.
  __device__ __forceinline__ u32 turned(int tensor) const {
    return shared.at(tensor + group) + box_place(lane % 8 + lane / 16 * 8, 16 * warp + lane / 8 % 2 * 8);
  }
  __device__ __forceinline__ void stage_state(const u32 (&state)[8][4]) const {
    const u32 at = box_place(16 * warp + lane % 16, 0);
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      const u32 to = shared.at(GRAD_OF_STATE + 2 * group + s / 4) + (at ^ u32((2 * (s % 4) + lane / 16) * 16));
      stmatrix_x4(to, state[s][0], state[s][1], state[s][2], state[s][3]);
    }
  }
  // x = dS' K'; dS' is staged, and decays; V is loaded. Products take what is staged behind the fence of stage_dr.
  __device__ __forceinline__ void read_keys(float (&x)[32], u32 (&v)[4][4], float (&state)[64], u32 numbers,
                                            int n) const {
    u32 rounded[8][4];
#pragma unroll
    for (int s = 0; s < 8; ++s) round(rounded[s], state, s);
    barrier_wait(shared.full(GRAD_NUMBERS + n % 2), u32(n / 2) & 1);
    if constexpr (decays) {
      const float left = load_number(numbers + GRAD_CHUNK);
#pragma unroll
      for (int i = 0; i < 64; ++i) state[i] *= left;
    }
    barrier_wait(shared.full(GRAD_Q + n % 2 * 2), u32(n / 2) & 1);
    const u32 keys = shared.at(GRAD_K + n % 2 * 2);
    wgmma_fence();
    WgmmaKept<Elem>::template dots64<true>(x, rounded, wgmma_operand(keys, 0));
    WgmmaKept<Elem>::template dots64<false>(x, rounded + 4, wgmma_operand(keys + Shared::box, 0));
    wgmma_commit();
    if constexpr (decays) barrier_wait(shared.empty(GRAD_OF_STATE), u32(n + 1) & 1);
    stage_state(rounded);
    if constexpr (decays) barrier_arrive(shared.full(GRAD_OF_STATE));
    wgmma_wait<0>();
    wgmma_arrived(x);
    await(GRAD_DOUT, n);
    const u32 from = turned(GRAD_DOUT);
#pragma unroll
    for (int s = 0; s < 4; ++s) ldmatrix_x4_turned(v[s], from + s * 16 * 128);
  }
  // V times the factors of its tokens.
  __device__ __forceinline__ void weigh(u32 (&weighed)[4][4], const u32 (&v)[4][4], u32 numbers) const {
    const u32 factors = numbers + GRAD_TO_QUERY + Fragment::column(lane) * 4;
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 by = load_pair(factors + (16 * s + i / 2 * 8) * 4);
        weighed[s][i] = pack<Elem>(half_of<Elem>(v[s][i], 0) * by.x, half_of<Elem>(v[s][i], 1) * by.y);
      }
  }
  __device__ __forceinline__ void scale_by_key(float (&x)[32], u32 numbers) const {
    const u32 from = numbers + GRAD_TO_KEY + Fragment::column(lane) * 4;
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      const float2 by = load_pair(from + Fragment::column_of(j) * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r) x[Fragment::element(r, j)] *= by.x, x[Fragment::element(r, j + 1)] *= by.y;
    }
  }
  __device__ __forceinline__ static void add(float (&state)[64], u32 (&a)[4][4], u32 rows) {
    Wgmma<Elem, 128>::sums64(state, a[0], a[1], a[2], a[3], wgmma_operand(rows, Shared::box));
    wgmma_commit();
  }
  __device__ __forceinline__ static void multiply(float (&x)[32], u32 (&a)[4][4], u32 pairs) {
    wgmma_fence();
    Wgmma<Elem, 64>::sums64(x, a[0], a[1], a[2], a[3], wgmma_operand(pairs, 0));
    wgmma_commit();
  }
  // Stages dR where dk of the chunk before was; of additive updates dv.
  __device__ __forceinline__ void stage_dr(const float (&r)[32], int n) const {
    const u32 to = turned(GRAD_OF_R);
    if (first()) bulk_wait_read();
    sync();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      u32 a[4];
      round(a, r, s);
      stmatrix_x4_turned(to + s * 16 * 128, a[0], a[1], a[2], a[3]);
    }
    fence_async();
    barrier_arrive(shared.full(GRAD_OF_R));
    if constexpr (!Spec::erases) {
      sync();
      if (first()) store_box(GRAD_OF_R, maps.dv, n);
    }
  }
  __device__ __forceinline__ void weigh_negative(u32 (&weighed)[4][4], const float (&r)[32], u32 numbers) const {
    const u32 from = numbers + GRAD_TO_READ + Fragment::column(lane) * 4;
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int e = 8 * s + 2 * i;
        const float2 by = load_pair(from + (16 * s + i / 2 * 8) * 4);
        weighed[s][i] = pack<Elem>(-r[e] * by.x, -r[e + 1] * by.y);
      }
  }
  // The chain of a chunk, but for the last product, which is under way.
  __device__ __forceinline__ void step_back(float (&state)[64], u32 numbers, int n) const {
    const int stage = n % 2 * 2;
    float x[32], r[32];
    u32 v[4][4], weighed[4][4];
    read_keys(x, v, state, numbers, n);
    weigh(weighed, v, numbers);
    wgmma_fence();
    add(state, weighed, shared.at(GRAD_Q + stage));
    scale_by_key(x, numbers);
    await(GRAD_P, n);
    multiply(x, v, shared.at(GRAD_P));
    wgmma_wait<0>();
    wgmma_arrived(x), wgmma_arrived(state);
    if constexpr (!Spec::erases) return stage_dr(x, n);
#pragma unroll
    for (int i = 0; i < 32; ++i) r[i] = 0;
#pragma unroll
    for (int s = 0; s < 4; ++s) round(v[s], x, s);
    await(GRAD_INVERSE, n);
    multiply(r, v, shared.at(GRAD_INVERSE));
    wgmma_wait<0>();
    wgmma_arrived(r);
    stage_dr(r, n);
    weigh_negative(weighed, r, numbers);
    wgmma_fence();
    add(state, weighed, shared.at(GRAD_K + stage));
  }

  // ---- with tokens as rows ----

  __device__ __forceinline__ int row(int r) const { return 16 * warp + Fragment::row(lane, r); }
  __device__ __forceinline__ void load_rows(float (&x)[2], u32 numbers) const {
    x[0] = load_number(numbers + row(0) * 4), x[1] = load_number(numbers + row(1) * 4);
  }
  __device__ __forceinline__ void store_rows(const float (&x)[2], u32 to) const {
    if (Fragment::first_in_row(lane)) store_number(to + row(0) * 4, x[0]), store_number(to + row(1) * 4, x[1]);
  }
  // The sum over the group's channels of each row of x times that of k, or of q.
  __device__ __forceinline__ void along_keys(float (&sum)[2], const float (&x)[32], int n, int tensor = GRAD_K) const {
    const u32 from = shared.at(tensor + n % 2 * 2 + group) + Fragment::column(lane) * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const u32 at = from + box_place(row(r), 0);
      float all = 0;
#pragma unroll
      for (int j = 0; j < 16; j += 2) {
        const u32 two = load_shared(at ^ u32(j / 2 * 16));
        const int e = Fragment::element(r, j);
        all += x[e] * half_of<Elem>(two, 0) + x[e + 1] * half_of<Elem>(two, 1);
      }
      sum[r] = row_total(all);
    }
  }
  // x = rows times a state's channels of the group, over value channels; committed.
  __device__ __forceinline__ void meet(float (&x)[32], int tensor, int state) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) x[i] = 0;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2; ++i)
      Wgmma<Elem, 64>::turned64(x, wgmma_operand(shared.at(tensor + i), 0),
                                wgmma_operand(shared.at(state + 2 * i + group), Shared::box), 1);
    wgmma_commit();
  }
  // What dk has of dS, and of the state before.
  __device__ __forceinline__ void weigh_last(float (&x)[32], u32 numbers, int n) const {
    float part[2], key[2], sum[2];
    if constexpr (!decays) return;
    along_keys(part, x, n);
    load_rows(sum, numbers + ROW_SUM), load_rows(key, numbers + ROW_KEY);
    const float chunk = load_number(numbers + GRAD_CHUNK + 4);
    const float until[2] = {fast_exp2(chunk - sum[0]), fast_exp2(chunk - sum[1])};
    part[0] *= key[0] * until[0], part[1] *= key[1] * until[1];
    store_rows(part, shared.sums() + SUMS_FROM_KEY + 256 * group);
#pragma unroll
    for (int i = 0; i < 32; ++i) x[i] *= until[i / 2 % 2];
  }
  __device__ __forceinline__ void weigh_first(float (&x)[32], const float (&y)[32], u32 numbers, int n) const {
    float part[2], since[2] = {0, 0}, read[2];
    along_keys(part, y, n);
    if constexpr (decays) load_rows(since, numbers + ROW_SUM);
    load_rows(read, numbers + ROW_READ);
#pragma unroll
    for (int r = 0; r < 2; ++r) since[r] = -fast_exp2(since[r]), part[r] *= since[r], since[r] *= read[r];
    store_rows(part, shared.sums() + SUMS_TO_READ + 256 * group);
#pragma unroll
    for (int i = 0; i < 32; ++i) x[i] += y[i] * since[i / 2 % 2];
  }
  // Gradients of pairs of q times factors of their keys, as an A operand.
  __device__ __forceinline__ void load_pairs(u32 (&z)[4][4], u32 numbers) const {
    const u32 from = shared.pairs(0) + box_place(16 * warp + lane % 16, 0),
              keys = numbers + ROW_KEY + Fragment::column(lane) * 4;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      ldmatrix_x4(z[s], from ^ u32((2 * s + lane / 16) * 16));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 key = load_pair(keys + (16 * s + i / 2 * 8) * 4);
        z[s][i] = pack<Elem>(half_of<Elem>(z[s][i], 0) * key.x, half_of<Elem>(z[s][i], 1) * key.y);
      }
    }
  }
  // What dq has of the state before.
  __device__ __forceinline__ void weigh_query(float (&y)[32], u32 numbers, int n) const {
    float part[2], by[2], since[2];
    load_rows(by, numbers + GRAD_TO_QUERY);
    if constexpr (decays || Spec::has_query_factor) {
      along_keys(part, y, n, GRAD_Q);
      load_rows(since, numbers + ROW_SUM);
#pragma unroll
      for (int r = 0; r < 2; ++r) part[r] *= decays ? fast_exp2(since[r]) : 1.f;
      store_rows(part, shared.sums() + SUMS_TO_QUERY + 256 * group);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) y[i] *= by[i / 2 % 2];
  }
  // dq, with gradients of pairs; committed.
  __device__ __forceinline__ void join_pairs(float (&y)[32], u32 numbers, int n) const {
    const u64 keys = wgmma_operand(shared.at(GRAD_K + n % 2 * 2 + group), Shared::box);
    barrier_wait(shared.full(GRAD_PAIRS), u32(n) & 1);
    if constexpr (Shared::has_factor) {
      u32 z[4][4];
      load_pairs(z, numbers);
      wgmma_fence();
      Wgmma<Elem, 64>::sums64(y, z[0], z[1], z[2], z[3], keys);
    } else {
      wgmma_fence();
      Wgmma<Elem, 64>::turned64(y, wgmma_operand(shared.pairs(0), 0), keys, 1);
    }
    wgmma_commit();
  }
  // In the place of do.
  __device__ __forceinline__ void stage_dq(const float (&y)[32]) const {
    const u32 to = shared.at(GRAD_DOUT + group) + box_place(16 * warp + lane % 16, 0);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      u32 a[4];
      round(a, y, s);
      stmatrix_x4(to ^ u32((2 * s + lane / 16) * 16), a[0], a[1], a[2], a[3]);
    }
  }
  // dv in the place of v, and dw, of the group's value channels: half of a row's for each thread.
  __device__ __forceinline__ void make_dv(u32 numbers, int n) const {
    const int token = 16 * warp + lane / 2, half = lane % 2;
    const float write = load_number(numbers + ROW_WRITE + token * 4);
    float sum = 0;
    await(GRAD_V, n);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 at = box_place(token, (i + 4 * half) * 8);
      const uint4 r = load_shared_16(shared.at(GRAD_OF_R + group) + at),
                  v = load_shared_16(shared.at(GRAD_V + group) + at);
      const u32 from[4] = {r.x, r.y, r.z, r.w}, of[4] = {v.x, v.y, v.z, v.w};
      u32 to[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float a = half_of<Elem>(from[m], 0), b = half_of<Elem>(from[m], 1);
        sum += a * half_of<Elem>(of[m], 0) + b * half_of<Elem>(of[m], 1);
        to[m] = pack<Elem>(a * write, b * write);
      }
      store_shared_16(shared.at(GRAD_V + group) + at, __uint_as_float(to[0]), __uint_as_float(to[1]),
                      __uint_as_float(to[2]), __uint_as_float(to[3]));
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    if (half == 0) store_number(shared.sums() + SUMS_OF_WRITE + 256 * group + token * 4, sum);
  }
  // Releases places of dq and dv, which TMA has read meanwhile.
  __device__ __forceinline__ void release_stored() const {
    if (!first()) return;
    bulk_wait_read();
    barrier_arrive(shared.empty(GRAD_DOUT));
    if constexpr (Spec::erases) barrier_arrive(shared.empty(GRAD_V));
  }
  // dk, with gradients of pairs.
  __device__ __forceinline__ void make_dk(float (&all)[64], u32 numbers, int n) const {
    float(&x)[32] = reinterpret_cast<float(&)[32]>(all);
    const int stage = n % 2 * 2;
    const u64 keys = wgmma_operand(shared.at(GRAD_K + stage + group), Shared::box);
    if constexpr (Spec::erases) barrier_wait(shared.pairs_full(), u32(n) & 1);
    wgmma_fence();
    if constexpr (Spec::erases) WgmmaOuter<Elem, 64>::sums64(all, wgmma_operand(shared.pairs(1), 0), keys);
    WgmmaOuter<Elem, 64>::sums64(all, wgmma_operand(shared.pairs(0), 0),
                                 wgmma_operand(shared.at(GRAD_Q + stage + group), Shared::box));
    wgmma_commit();
    if constexpr (Spec::erases) {
      Wgmma<Elem, 64>::turned64(x, wgmma_operand(shared.at(GRAD_INVERSE), 0), keys, 1);
      wgmma_commit();
      wgmma_wait<1>();
      release(GRAD_P);
    }
    wgmma_wait<0>();
    wgmma_arrived(x);
    release(Spec::erases ? GRAD_INVERSE : GRAD_P);
    if constexpr (Shared::has_factor) {
      float of_factor[2];
      along_keys(of_factor, x, n);
      store_rows(of_factor, shared.sums() + SUMS_OF_FACTOR + 256 * group);
    }
    float key[2];
    load_rows(key, numbers + ROW_KEY);
    __syncwarp();
    release(GRAD_Q + stage), release(GRAD_NUMBERS + n % 2);
    if (elected()) barrier_arrive(shared.full(GRAD_SUMS));
    constexpr int place = Spec::erases ? GRAD_OF_R : GRAD_V;
    const u32 to = shared.at(place + group) + box_place(16 * warp + lane % 16, 0);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = pack<Elem>(x[8 * s + 2 * i] * key[i % 2], x[8 * s + 2 * i + 1] * key[i % 2]);
      stmatrix_x4(to ^ u32((2 * s + lane / 16) * 16), a[0], a[1], a[2], a[3]);
    }
    fence_async();
    sync();
    if (first()) store_box(place, maps.dk, n);
  }
  // dq, and of updates that erase dv.
  __device__ __forceinline__ void store_both(int n) const {
    store_box(GRAD_DOUT, maps.dq, n);
    if constexpr (Spec::erases) store_box(GRAD_V, maps.dv, n);
  }
  __device__ __forceinline__ static void finish(float (&x)[32]) {
    wgmma_wait<0>();
    wgmma_arrived(x);
  }
  // dq, dv, and what dk has of states, x. The state is complete behind the first product.
  __device__ __forceinline__ void make_rows(float (&x)[32], float (&state)[64], u32 numbers, int n) const {
    float y[32];
    await(GRAD_STATE, n);
    meet(y, GRAD_DOUT, GRAD_STATE);
    await(GRAD_OF_R, n), await(GRAD_VALUES, n);
    barrier_wait(shared.empty(GRAD_SUMS), u32(n + 1) & 1);
    if constexpr (Spec::erases) make_dv(numbers, n);
    finish(y);
    wgmma_arrived(state);
    if constexpr (!Spec::erases) release(GRAD_STATE);
    meet(x, GRAD_VALUES, GRAD_OF_STATE);
    weigh_query(y, numbers, n);
    finish(x);
    release(GRAD_VALUES);
    join_pairs(y, numbers, n);
    finish(y);
    named_sync(GRADS_BOTH_CHAINS, 256);  // both have read do
    stage_dq(y);
    if constexpr (Spec::erases) meet(y, GRAD_OF_R, GRAD_STATE);
    fence_async();  // of dv, too
    sync();
    if (first()) store_both(n);
    weigh_last(x, numbers, n);
    if constexpr (!Spec::erases) return release_stored();
    finish(y);
    release(GRAD_STATE);
    weigh_first(x, y, numbers, n);
    release_stored();
  }
  // The same one behind another: with factors of keys there are no registers for products beside other work.
  __device__ __forceinline__ void make_rows_in_turn(float (&x)[32], float (&state)[64], u32 numbers, int n) const {
    wgmma_wait<0>();
    wgmma_arrived(state);
    await(GRAD_STATE, n);
    meet(x, GRAD_DOUT, GRAD_STATE);
    finish(x);
    if constexpr (!Spec::erases) release(GRAD_STATE);
    barrier_wait(shared.empty(GRAD_SUMS), u32(n + 1) & 1);
    weigh_query(x, numbers, n);
    join_pairs(x, numbers, n);
    finish(x);
    named_sync(GRADS_BOTH_CHAINS, 256);  // both have read do
    stage_dq(x);
    await(GRAD_OF_R, n), await(GRAD_VALUES, n);
    if constexpr (Spec::erases) make_dv(numbers, n);
    fence_async();
    sync();
    if (first()) store_both(n);
    meet(x, GRAD_VALUES, GRAD_OF_STATE);
    finish(x);
    release(GRAD_VALUES);
    weigh_last(x, numbers, n);
    release_stored();
    if constexpr (!Spec::erases) return;
    float y[32];
    meet(y, GRAD_OF_R, GRAD_STATE);
    finish(y);
    release(GRAD_STATE);
    weigh_first(x, y, numbers, n);
  }
  __device__ __forceinline__ void run() {
    float state[64];
    if (p.segments.count > 1)
      rows().template load_segment<Spec::erases>(state, p);
    else
      rows().load_first(state, p);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
      const u32 numbers = shared.numbers(n % 2);
      float all[64];
      float(&x)[32] = reinterpret_cast<float(&)[32]>(all);
      lane = lane_anew();
      step_back(state, numbers, n);
      if constexpr (Shared::has_factor)
        make_rows_in_turn(x, state, numbers, n);
      else
        make_rows(x, state, numbers, n);
      named_sync(GRADS_BOTH_CHAINS, 256);  // both have read dS and dR
      make_dk(all, numbers, n);
    }
    if (chain.segment == p.segments.count - 1) rows().store_last(state, p);
    if (first()) bulk_wait_read();
  }
};
