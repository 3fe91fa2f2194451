// linear/sm90/linear_group_pairs.cuh: the warpgroup of luattn_linear_group_rows that has a chunk's pairs, with tokens as rows. q k'
// is made once, for all value heads:
//
//     P_ij = scale q_i k_j' e^(G_i - G_j)     Z_ij += scale do_i v_j' e^(G_i - G_j) w_j     for j <= i
//
// The columns take P of each head, and behind the last one Z, rounded as P is.
#pragma once
#include "arch/mma.cuh"
#include "arch/stmatrix.cuh"
#include "arch/wgmma.cuh"
#include "linear/sm90/group_rows_pipeline.cuh"
#include "ops/math.cuh"

template <class Spec, class Config>
struct GroupPairs {
  using Shared = SharedGroup<Spec, Config>;
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  using Fragment = MmaFragment;
  static constexpr bool decays = Shared::has_gates;

  const LuattnLinearParams &p;
  const Shared shared;
  const int warp, lane;

  __device__ __forceinline__ int row(int r) const { return 16 * warp + Fragment::row(lane, r); }
  __device__ __forceinline__ void stage(u32 to, const float (&x)[32]) const {
    to += box_place(16 * warp + lane % 16, 0);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float *const e = x + 8 * n;
      stmatrix_x4(to ^ u32((2 * n + lane / 16) * 16), pack<Elem>(e[0], e[1]), pack<Elem>(e[2], e[3]),
                  pack<Elem>(e[4], e[5]), pack<Elem>(e[6], e[7]));
    }
  }
  // Number `done` of those that columns take from shared memory.
  __device__ __forceinline__ void tell(const float (&x)[32], int done) const {
    barrier_wait(shared.pairs_empty(done % 2), u32(done / 2 + 1) & 1);
    stage(shared.pairs(done % 2), x);
    fence_async();
    barrier_arrive(shared.pairs_full(done % 2));
  }
  // q k'.
  __device__ __forceinline__ void multiply_rows(float (&s)[32], int done) const {
    barrier_wait(shared.rows_full(), u32(done) & 1);
    wgmma_fence();
    Wgmma<Elem, 64>::first128(s, wgmma_operand(shared.q(), 0), wgmma_operand(shared.k(), 0));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(s);
    if (elected()) barrier_arrive(shared.rows_empty());
  }
  // What pairs are weighed by, scale and decays, where they exist; and P.
  __device__ __forceinline__ void find_weights(float (&by)[32], float (&weighed)[32], const float (&s)[32],
                                               u32 numbers) const {
    const u32 columns = numbers + STEP_SUM + Fragment::column(lane) * 4;
    const float sum[2] = {load_number(numbers + STEP_SUM + row(0) * 4), load_number(numbers + STEP_SUM + row(1) * 4)};
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      const float2 of_key = load_pair(columns + Fragment::column_of(j) * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int e = Fragment::element(r, j), behind = row(r) - Fragment::column(lane) - Fragment::column_of(j);
        by[e] = behind >= 0 ? p.scale * (decays ? fast_exp2(sum[r] - of_key.x) : 1.f) : 0.f;
        by[e + 1] = behind >= 1 ? p.scale * (decays ? fast_exp2(sum[r] - of_key.y) : 1.f) : 0.f;
        weighed[e] = behind >= 0 ? s[e] * by[e] : 0.f;
        weighed[e + 1] = behind >= 1 ? s[e + 1] * by[e + 1] : 0.f;
      }
    }
  }
  // z += gradients of pairs; d becomes ways of these.
  __device__ __forceinline__ void add_gradients(float (&z)[32], float (&d)[32], const float (&by)[32],
                                                const float (&s)[32], u32 numbers) const {
    const u32 columns = numbers + STEP_WRITE + Fragment::column(lane) * 4;
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      const float2 write = load_pair(columns + Fragment::column_of(j) * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int e = Fragment::element(r, j), behind = row(r) - Fragment::column(lane) - Fragment::column_of(j);
        const float x = behind >= 0 ? d[e] * by[e] * write.x : 0.f,
                    y = behind >= 1 ? d[e + 1] * by[e + 1] * write.y : 0.f;
        z[e] += x, z[e + 1] += y;
        d[e] = behind >= 0 ? x * s[e] : 0.f, d[e + 1] = behind >= 1 ? y * s[e + 1] : 0.f;
      }
    }
  }
  __device__ __forceinline__ void step(float (&z)[32], const float (&s)[32], int n, int told) const {
    const int stage = n % Shared::stages, of_numbers = n % Shared::number_stages;
    const u32 numbers = shared.numbers(of_numbers);
    float d[32], by[32], weighed[32];
    barrier_wait(shared.full(stage), u32(n / Shared::stages) & 1);
    wgmma_fence();
    Wgmma<Elem, 64>::first64(d, wgmma_operand(shared.at(stage, GROUP_DOUT), 0),
                             wgmma_operand(shared.at(stage, GROUP_V), 0));
    wgmma_commit();
    barrier_wait(shared.numbers_full(of_numbers), u32(n / Shared::number_stages) & 1);
    find_weights(by, weighed, s, numbers);
    tell(weighed, told);
    wgmma_wait<0>();
    wgmma_arrived(d);
    if (elected()) barrier_arrive(shared.empty(stage));
    add_gradients(z, d, by, s, numbers);
    __syncwarp();
    if (elected()) barrier_arrive(shared.numbers_empty(of_numbers));
    if constexpr (!decays) return;
    const u32 sums = shared.sums(n % 2);
    barrier_wait(shared.sums_empty(n % 2), u32(n / 2 + 1) & 1);
    PairWayParts{warp, lane}.store(d, sums + STEP_OF_WAYS, sums + STEP_OF_DIAGONAL);
    __syncwarp();
    if (elected()) barrier_arrive(shared.sums_full(n % 2));
  }
  __device__ __forceinline__ void run() const {
    float s[32], z[32];
    int told = 0;
    for_each_step<Config>(
        p,
        [&](const Chain &, int, int done) {
          multiply_rows(s, done);
#pragma unroll
          for (int i = 0; i < 32; ++i) z[i] = 0;
        },
        [&](const Chain &, int, int n, int) { step(z, s, n, told++); },
        [&](const Chain &, int, int) { tell(z, told++); });
  }
};
