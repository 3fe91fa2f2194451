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
  // Number `done` of those that columns take from shared memory.
  __device__ __forceinline__ void tell(const u32 (&x)[16], int done) const {
    const u32 to = shared.pairs(done % 2) + box_place(16 * warp + lane % 16, 0);
    barrier_wait(shared.pairs_empty(done % 2), u32(done / 2 + 1) & 1);
#pragma unroll
    for (int n = 0; n < 4; ++n)
      stmatrix_x4(to ^ u32((2 * n + lane / 16) * 16), x[4 * n], x[4 * n + 1], x[4 * n + 2], x[4 * n + 3]);
    fence_async();
    barrier_arrive(shared.pairs_full(done % 2));
  }
  // q k'.
  __device__ __forceinline__ void multiply_rows(float (&s)[32], int done) const {
    barrier_wait(shared.rows_full(), u32(done) & 1);
    const u64 q = wgmma_operand(shared.q(), 0), k = wgmma_operand(shared.k(), 0);
    wgmma_fence();
    Wgmma<Elem, 64>::first128(s, q, k);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(s);
    if (elected()) barrier_arrive(shared.rows_empty());
  }
  // What pairs are weighed by, scale and decays, where they exist; and P. Blocks above the diagonal are left out, so that no product may
  // be under way.
  __device__ __forceinline__ void find_weights(float (&by)[32], u32 (&weighed)[16], const float (&s)[32],
                                               u32 numbers) const {
    const u32 columns = numbers + STEP_SUM + Fragment::column(lane) * 4;
    const float sum[2] = {load_number(numbers + STEP_SUM + row(0) * 4), load_number(numbers + STEP_SUM + row(1) * 4)};
#pragma unroll
    for (int i = 0; i < 16; ++i) weighed[i] = 0;
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      if (j % 4 == 0 && j / 4 > warp) break;  // above the diagonal, where all is 0
      const float2 of_key = load_pair(columns + Fragment::column_of(j) * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int e = Fragment::element(r, j), behind = row(r) - Fragment::column(lane) - Fragment::column_of(j);
        by[e] = behind >= 0 ? p.scale * (decays ? fast_exp2(sum[r] - of_key.x) : 1.f) : 0.f;
        by[e + 1] = behind >= 1 ? p.scale * (decays ? fast_exp2(sum[r] - of_key.y) : 1.f) : 0.f;
        weighed[e / 2] = pack<Elem>(behind >= 0 ? s[e] * by[e] : 0.f, behind >= 1 ? s[e + 1] * by[e + 1] : 0.f);
      }
    }
  }
  // z += gradients of pairs; d becomes ways of these, but for blocks above the diagonal.
  __device__ __forceinline__ void add_gradients(float (&z)[32], float (&d)[32], const float (&by)[32],
                                                const float (&s)[32], u32 numbers) const {
    const u32 columns = numbers + STEP_WRITE + Fragment::column(lane) * 4;
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      if (j % 4 == 0 && j / 4 > warp) break;
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
    float d[32], by[32];
    u32 weighed[16];
    barrier_wait(shared.numbers_full(of_numbers), u32(n / Shared::number_stages) & 1);
    find_weights(by, weighed, s, numbers);
    tell(weighed, told);
    barrier_wait(shared.full(stage), u32(n / Shared::stages) & 1);
    const u64 rows = wgmma_operand(shared.at(stage, GROUP_DOUT), 0),
              values = wgmma_operand(shared.at(stage, GROUP_V), 0);
    wgmma_fence();
    Wgmma<Elem, 64>::first64(d, rows, values);
    wgmma_commit();
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
        [&](const Chain &, int, int) {
          u32 rounded[16];
#pragma unroll
          for (int i = 0; i < 16; ++i) rounded[i] = pack<Elem>(z[2 * i], z[2 * i + 1]);
          tell(rounded, told++);
        });
  }
};
