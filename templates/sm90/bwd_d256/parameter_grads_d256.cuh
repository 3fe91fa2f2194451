// sm90/bwd_d256/parameter_grads_d256.cuh: the warp that sums dS for parameter gradients (contract/grad.cuh),
// in the sm90 backward for head dims above 128.
//
// It is the fourth warp of the loading warpgroup. The scores' warpgroup has no registers for sums. But the
// rounded dS tile is in shared memory for the products that follow, and this warp reads it there, in blocks
// of 8 queries by 8 keys. All sums are products: with ones, with the queries' numbers, or with the identity,
// which adds up the blocks on a diagonal. The warp adds 64 numbers per tile to memory for distances or
// queries, 64 per kv tile for keys, or one per score for pair biases. In a deterministic kernel the additions
// are exact.
#pragma once
#include "arch/mma.cuh"
#include "grads/pair_bias_grad.cuh"
#include "grads/parameter_grads.cuh"
#include "score/fragment.cuh"
#include "sm90/bwd_d256/d256_pipeline.cuh"
#include "tma/cluster.cuh"
#include "tma/mbarrier.cuh"
#include "tma/stages.cuh"

template <class Spec, class Config>
struct ParametersD256 {
  using Shared = SharedD256<Spec, Config>;
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  using Head = typename Spec::Head;
  using Acc = typename Spec::Acc;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, octets = 8;
  static constexpr bool rows = (Shared::sums & SUM_ROW) != 0, cols = (Shared::sums & SUM_COL) != 0,
                        linear = (Shared::sums & SUM_LINEAR) != 0, distances = (Shared::sums & SUM_DISTANCE) != 0,
                        here = (Shared::sums & SUM_ELEMENT) != 0;
  static_assert(tile_m == 64 && tile_n == 64);
  static_assert(SequenceOf<Config>::is_line || !(linear || distances), "distances lie along lines");

  const LuattnParams &p;
  const Shared shared;
  const int rank, lane;
  SequenceOf<Config> site;
  Head head;
  Acc acc;
  int kv0;
  float col[2];  // sums of keys own_row(0) and own_row(1)
  // Sums by distance, 32 distances in each number of the lanes. The first distance is that of the tile's
  // first query and key minus 64 (own_distance). The first half of them includes parts of earlier tiles.
  float far[4];
  int next_q;  // end of the last tile; -1: `far` holds nothing

  __device__ __forceinline__ ParametersD256(const LuattnParams &params, const Shared &s)
      : p(params),
        shared(s),
        rank(cluster_rank()),
        lane(int(threadIdx.x) % 32),
        site(params, 0, 0),
        kv0(0),
        next_q(-1) {}

  // ---- products ----

  // The ldmatrix address of this lane's row in a block.
  __device__ __forceinline__ u32 block(u32 tile, int q_octet, int kv_octet) const {
    return tile + (q_octet * 8 + lane % 8) * 128 + ((kv_octet ^ lane % 8) << 4);
  }
  LUATTN_FN u32 ones() { return pack<Elem>(1.f, 1.f); }

  // Sums each row of 64 rows by 64 columns. With ByColumn, also sums the elements of a row times their
  // column's number. `load` loads 16 by 16 elements, and takes the row and column of a block. Each 16 rows
  // use other columns of B, so that sum[half] belongs to row own_row(half).
  template <bool ByColumn, class Load>
  __device__ __forceinline__ void sum_rows(float (&sum)[2], float (&by_column)[2], const Load &load) const {
    const int column = Fragment::row(lane), first = Fragment::column(lane);  // of B, which is transposed
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float number = float(i * 16 + first);
      const u32 low = ByColumn ? pack<Elem>(number, number + 1.f) : 0,
                high = ByColumn ? pack<Elem>(number + 8.f, number + 9.f) : 0;
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        u32 a[4];
        load(a, part * 2, i * 2);
        const u32 one = column == part * 2 ? ones() : 0;
        const bool numbers = ByColumn && column == part * 2 + 1;
        mma_16x8x16<Elem>(c, a, numbers ? low : one, numbers ? high : one);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      sum[half] = c[Fragment::element(half, 0)], by_column[half] = c[Fragment::element(half, 1)];
  }
  __device__ __forceinline__ int own_row(int half) const {
    return Fragment::lane_in_row(lane) * 16 + Fragment::row(lane, half);
  }

  // Sums the blocks on diagonal N (query block - key block) into c[0] and c[1], and those on -N into c[2] and
  // c[3]. Lane 4g + t has key g and queries 2t and 2t + 1.
  template <int N>
  __device__ __forceinline__ void sum_diagonals(u32 tile, u32 identity, float (&c)[4]) const {
    const int second = lane / 16, turned = lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = 0.f;
#pragma unroll
    for (int i = N; i < octets; i += 2) {
      const int far_octet = i + (i + 1 < octets ? second : 0), near_octet = far_octet - N;
      u32 a[4];
      ldmatrix_x4_turned(a, block(tile, turned ? near_octet : far_octet, turned ? far_octet : near_octet));
      if (i + 1 == octets) a[2] = a[3] = 0;
      mma_16x8x16<Elem>(c, a, identity, identity);
    }
  }
  // Adds 8 distances from 8 N on to `far`. Diagonals N (low) and N + 1 (high) of blocks share these
  // distances.
  LUATTN_FN float pick(bool first, float a, float b) { return first ? a : b; }
  template <int N>
  __device__ __forceinline__ void add_distances(float low0, float low1, float high0, float high1) {
    const int g = Fragment::row(lane), t = Fragment::lane_in_row(lane);
    const float left = pick(2 * t >= g, low0, high0), right = pick(2 * t + 1 >= g, low1, high1);
    float x = left + __shfl_sync(0xffffffffu, right, (lane + 4) & 31);
    x += __shfl_xor_sync(0xffffffffu, x, 18);  // a distance is in four lanes, at g + 2 and t + 1
    x += __shfl_sync(0xffffffffu, x, (lane + 8 & 28) | (t + 1 & 3));
    if (t == (N & 3)) far[(N + octets) / 4] += x;
  }
  template <int N>
  __device__ __forceinline__ void add_diagonals(u32 tile, u32 identity, const float (&before)[4]) {
    if constexpr (N < octets) {
      float c[4];
      sum_diagonals<N>(tile, identity, c);
      add_distances<N - 1>(before[0], before[1], c[0], c[1]);
      add_distances<-N>(c[2], c[3], before[2], before[3]);
      add_diagonals<N + 1>(tile, identity, c);
    } else {
      add_distances<N - 1>(before[0], before[1], 0.f, 0.f);
      add_distances<-N>(0.f, 0.f, before[2], before[3]);
    }
  }
  // The distance that this lane's far[i] belongs to.
  __device__ __forceinline__ int own_distance(int i) const {
    return i * 32 - 64 + DistanceSums<octets>::distance_in_octets(lane);
  }
  __device__ __forceinline__ void sum_distances(u32 tile) {
    const int g = Fragment::row(lane), first = Fragment::column(lane);
    const u32 identity = pack<Elem>(first == g ? 1.f : 0.f, first + 1 == g ? 1.f : 0.f);
    float c[4];
    sum_diagonals<0>(tile, identity, c);
    add_diagonals<1>(tile, identity, c);
  }
  // Sums a whole tile in one bucket (Spec::same_bucket), at the distance of its first query and key.
  __device__ __forceinline__ void sum_same_bucket(u32 tile) {
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      u32 a[4];
      ldmatrix_x4(a, block(tile, i / 4 * 2 + lane / 8 % 2, i % 4 * 2 + lane / 16));
      mma_16x8x16<Elem>(c, a, ones(), ones());
    }
    const float all = lanes_sum<32>(Fragment::first_in_row(lane) ? c[0] + c[2] : 0.f);
    if (lane == 0) far[2] += all;
  }
  // ---- to memory ----

  // Adds far[0] and far[1], after a tile that ends before q.
  __device__ __forceinline__ void add_far(int q) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (__any_sync(0xffffffffu, far[i] != 0.f))
        Spec::add_distance(p, site, head, q + own_distance(i), kv0, far[i], acc);
  }
  __device__ __forceinline__ void flush_far() {
    if (next_q >= 0) add_far(next_q);
    far[0] = far[1] = far[2] = far[3] = 0.f;
    next_q = -1;
    __syncwarp();
  }
  __device__ __forceinline__ void enter_head(int h) {
    site.h = h;
    head = Spec::head(p, site);
    acc = zero_acc<Acc>();
    col[0] = col[1] = 0.f;
    far[0] = far[1] = far[2] = far[3] = 0.f;
  }
  __device__ __forceinline__ void leave_head() {
    if constexpr (distances) flush_far();
    if constexpr (cols)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int kv = kv0 + own_row(half);
        if (site.reread().has_key(p, kv)) Spec::add_col(p, site, head, kv, col[half], acc);
      }
    if constexpr (Spec::num_acc > 0) flush_warp<Spec>(p, site, head, acc);
  }

  // ---- a q tile ----

  __device__ __forceinline__ void add_keys(u32 tile, int q0) {
    float sum[2], by_query[2];
    sum_rows<linear>(sum, by_query, [&](u32(&a)[4], int kv_octet, int q_octet) {
      ldmatrix_x4_turned(a, block(tile, q_octet + lane / 16, kv_octet + lane / 8 % 2));
    });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (cols) col[half] += sum[half];
      if constexpr (linear) Spec::add_linear(p, site, head, q0, kv0 + own_row(half), sum[half], by_query[half], acc);
    }
  }
  __device__ __forceinline__ void add_queries(u32 tile, int q0) {
    float sum[2], none[2];
    sum_rows<false>(sum, none, [&](u32(&a)[4], int q_octet, int kv_octet) {
      ldmatrix_x4(a, block(tile, q_octet + lane / 8 % 2, kv_octet + lane / 16));
    });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int q = q0 + own_row(half);
      if (site.reread().has_query(p, q) && sum[half] != 0.f) Spec::add_row(p, site, head, q, sum[half], acc);
    }
  }
  // Adds the gradients of four keys per lane. Locates each row by itself, and uses one instruction for four
  // gradients that are adjacent in memory.
  __device__ __forceinline__ void add_apart(u32 tile, int q0) {
#pragma unroll 1
    for (int i = lane / 16; i < tile_m; i += 2) {
      const int key = lane % 16 * 4, q = q0 + i, kv = kv0 + key;
      u32 pair[2];
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                   : "=r"(pair[0]), "=r"(pair[1])
                   : "r"(tile + i * 128 + ((key / 8 ^ i % 8) << 4) + key % 8 * 2)
                   : "memory");
      float x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = to_real(Elem{(unsigned short)(pair[j / 2] >> j % 2 * 16)});
      if (x[0] == 0.f && x[1] == 0.f && x[2] == 0.f && x[3] == 0.f) continue;
      if constexpr (Spec::pair_grads_in_rows)
        if (add_line(Spec::pair_grad_row(p, site, head, q, kv), x)) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) Spec::add_per_element(p, site, head, Position{q, 0}, Position{kv, j}, x[j], acc);
    }
  }
  // Returns false if a gradient lies outside its axis, or if they do not begin at a multiple of 16 bytes.
  __device__ __forceinline__ bool add_line(const GradRow<float> &line, const float (&x)[4]) const {
    static_assert(SequenceOf<Config>::is_line, "rows of gradients lie along the keys");
    float *to = line.row + line.index;
    if (line.row == nullptr) return true;
    if (line.index < 0 || line.index + 4 > line.size || reinterpret_cast<u64>(to) % 16 != 0) return false;
    add_global(to, x[0] * line.factor, x[1] * line.factor, x[2] * line.factor, x[3] * line.factor);
    return true;
  }
  // Loads dS of a query of the tile and of four keys from `key` on.
  LUATTN_FN void load_four(float (&x)[4], u32 tile, int query, int key) {
    u32 pair[2];
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(pair[0]), "=r"(pair[1])
                 : "r"(tile + query * 128 + ((key / 8 ^ query % 8) << 4) + key % 8 * 2)
                 : "memory");
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = to_real(Elem{(unsigned short)(pair[j / 2] >> j % 2 * 16)});
  }
  // Adds the gradients of a pair bias whose rows lie a pitch apart (grads/pair_bias_grad.cuh).
  __device__ __forceinline__ void add_pitched(u32 tile, int q0) {
    const int key = lane % 16 * 4;
    if (add_quads(tile, q0, key)) return;
#pragma unroll 1
    for (int i = lane / 16; i < tile_m; i += 2) {
      float x[4];
      load_four(x, tile, i, key);
      if (x[0] == 0.f && x[1] == 0.f && x[2] == 0.f && x[3] == 0.f) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        Spec::add_per_element(p, site, head, Position{q0 + i, 0}, Position{kv0 + key, j}, x[j], acc);
    }
  }
  // Returns false if the gradients of some four keys are not adjacent.
  __device__ __forceinline__ bool add_quads(u32 tile, int q0, int key) const {
    static_assert(SequenceOf<Config>::is_line, "rows of gradients lie along the keys, up to where these end");
    const GradRow<float> line = Spec::pair_grad_row(p, site, head, q0, kv0);
    if (line.row == nullptr) return true;
    if (!lies_in_quads(line, min_of(tile_n, site.kv_end(p) - kv0)) || !keeps_zeros(line)) return false;
    if (kv0 + key >= site.kv_end(p)) return true;  // all four keys of this lane
    if (may_store<Spec>(p, site, q0, tile_m))
      put_quads<true>(line, tile, q0, key);
    else
      put_quads<false>(line, tile, q0, key);
    return true;
  }
  template <bool Store>
  __device__ __forceinline__ void put_quads(const GradRow<float> &line, u32 tile, int q0, int key) const {
    static_assert(SequenceOf<Config>::is_line, "the tile's queries exist up to where queries end");
#pragma unroll 4
    for (int i = lane / 16; i < tile_m; i += 2) {
      const int query = min_of(i, site.q_end(p) - 1 - q0);
      float x[4];
      load_four(x, tile, i, key);
      put_four<Store>(line.row + line.index + key + i64(query) * line.pitch, x, line.factor);
    }
  }
  __device__ __forceinline__ void add_scores(u32 tile, int q0) {
    if constexpr (Spec::pair_grads_pitched)
      add_pitched(tile, q0);
    else
      add_apart(tile, q0);
  }
  __device__ __forceinline__ void add_tile(u32 tile, const D256Message &message) {
    const int q0 = message.index() * tile_m;
    if constexpr (distances) {
      if (q0 != next_q) flush_far();
      if (Spec::may_be_same_bucket && message.same_bucket())
        sum_same_bucket(tile);
      else
        sum_distances(tile);
    }
    if constexpr (cols || linear) add_keys(tile, q0);
    if constexpr (rows) add_queries(tile, q0);
    if constexpr (here) add_scores(tile, q0);
  }
  // Adds the sums that no later tile extends. Called after the tile's shared memory has been released.
  __device__ __forceinline__ void send_far(int q0) {
    add_far(q0);
    far[0] = far[2], far[1] = far[3];
    far[2] = far[3] = 0.f;
    next_q = q0 + tile_m;
  }

  __device__ __forceinline__ void run() {
    PipelineState<Config::stages> q(0);
    PipelineState<2> ds(0);
    int h = -1;
#pragma unroll 1
    for (;;) {
      barrier_wait(shared.q_full(q.stage), q.parity);
      const D256Message message = D256Message::load(shared.q_message(q.stage));
      barrier_arrive(shared.q_empty(q.stage));
      q.advance();
      if (message.is(D256Message::END)) break;
      if (!message.is(D256Message::TILE)) continue;
      if (int(message.head) != h) {
        if (h >= 0) leave_head();
        site.move_to(p, int(message.b), site.h);
        kv0 = (message.kv_tile() * 2 + rank) * tile_n;
        enter_head(h = int(message.head));
      }
      barrier_wait(shared.ds_full(ds.stage), ds.parity);
      add_tile(shared.ds(ds.stage), message);
      __syncwarp();
      if (lane == 0) barrier_arrive(shared.ds_empty(ds.stage));
      ds.advance();
      if constexpr (distances) send_far(message.index() * tile_m);
      if (message.ends_block()) {
        leave_head();
        h = -1;
      }
    }
  }
};
