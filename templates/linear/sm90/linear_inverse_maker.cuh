// linear/sm90/linear_inverse_maker.cuh: luattn_linear_inverses: of each chunk of updates that erase, where decays do not differ
// between channels, T = (I + A)^-1, with A_ij = r_i k_j' e^(G_i - G_j) for j < i, for the chains of both passes. A chain's chunks
// come one after another, and T takes longer than all else that a chunk needs; here all chunks are made at once, several in a
// multiprocessor, whose loads, substitutions and products are under way together.
//
// Config: as in fwd_linear_sm90.cuh, of a pass that goes forwards. A block of two warps has one chunk of a value head. Of four
// blocks of 16 rows one warp has the first and the last, the other one those between: as many products and substitutions.
#pragma once
#include "arch/early_launch.cuh"
#include "arch/mma.cuh"
#include "linear/sm90/linear_inverse.cuh"
#include "linear/sm90/linear_numbers.cuh"

template <class Spec, class Config>
struct SharedInverses {
  static constexpr int box = LINEAR_BOX, boxes_k = ceil_div(Config::k_dim, 64), k_dim = boxes_k * 64;
  static constexpr int bytes = linear_inverses_bytes(Config::k_dim), threads = LINEAR_INVERSE_THREADS, groups = 0;
  static_assert(LinearSpec<Spec> && Spec::erases && Config::k_dim % 8 == 0 && k_dim <= 128);

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ u32 k() const { return start; }
  // What T is made of takes the place of k.
  __device__ __forceinline__ u32 parts(int which) const { return start + which * box; }
  __device__ __forceinline__ u32 inverse() const { return start + 2 * box; }
  // In the place of T, whose rows come when all blocks on the diagonal have been read.
  __device__ __forceinline__ u32 diagonal(int block) const { return inverse() + block * (16 * 80); }
  __device__ __forceinline__ u32 numbers() const { return start + 3 * box; }
  __device__ __forceinline__ u32 full() const { return numbers() + LINEAR_NUMBERS; }
};

template <class Spec, class Config>
struct InverseMaker {
  using Shared = SharedInverses<Spec, Config>;
  using Inverse = ChunkInverse<Spec, Config, Shared>;
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  using Fragment = MmaFragment;
  static constexpr bool decays = SharedLinear<Spec, Config>::by_token,
                        by_column = SharedLinear<Spec, Config>::has_column_factor;
  static_assert(!Chain::mirrored && LINEAR_DIAGONAL <= LINEAR_BOX);

  const LuattnLinearParams &p;
  const LuattnTensorMaps &maps;
  const Shared shared;
  const Chain &chain;
  const int chunk, warp, lane;

  // Blocks of 16 x 16 of A that the warp has, by row and column: (low, low), (high, high), (high, low), (high, left), (other, far).
  struct Blocks {
    int low, high, left, other, far;
  };
  __device__ __forceinline__ Blocks blocks() const { return {warp, 3 - warp, 1 - warp, 3 - 2 * warp, 2 - 2 * warp}; }

  // ---- load ----

  __device__ __forceinline__ void load_keys() const {
    const auto box = chain.box(chunk);
    barrier_arrive_expect(shared.full(), Shared::boxes_k * Shared::box);
#pragma unroll
    for (int i = 0; i < Shared::boxes_k; ++i)
      tensor_load(shared.k() + i * Shared::box, maps.k, shared.full(), i * 64, box, chain.key_head());
  }
  __device__ __forceinline__ void write_numbers() const {
    const auto x = TokenNumbers<Spec, Config>{p, chain, lane}.of_tokens(chunk);
    const float read_row[2] = {x.read[0] * x.column[0], x.read[1] * x.column[1]};
    const u32 at = shared.numbers() + 8 * u32(lane);
    store_pair(at + OF_SUM, x.sum), store_pair(at + OF_COLUMN, x.column), store_pair(at + OF_READ_ROW, read_row);
  }

  // ---- A ----

  // 16 tokens by 16 channels: an A operand, and with the numbers in the middle exchanged B operands of two groups of 8 tokens.
  __device__ __forceinline__ void load(u32 (&x)[4], u32 at, int step) const {
    ldmatrix_x4(x, (at ^ u32(step % 4 * 32)) + step / 4 * Shared::box);
  }
  __device__ __forceinline__ static void multiply(float (&s)[8], const u32 (&a)[4], const u32 (&b)[4]) {
    mma_16x8x16<Elem>(reinterpret_cast<float(&)[4]>(s[0]), a, b[0], b[2]);
    mma_16x8x16<Elem>(reinterpret_cast<float(&)[4]>(s[4]), a, b[1], b[3]);
  }
  // k k' of the warp's blocks.
  __device__ __forceinline__ void multiply(float (&s)[5][8], const Blocks &of) const {
    const u32 at = shared.k() + box_place(lane % 16, lane / 16 * 8);
#pragma unroll
    for (int i = 0; i < 40; ++i) s[i / 8][i % 8] = 0;
#pragma unroll
    for (int step = 0; step < Shared::k_dim / 16; ++step) {
      u32 low[4], high[4], left[4], other[4], far[4];
      load(low, at + of.low * 2048, step);
      load(high, at + of.high * 2048, step);
      load(left, at + of.left * 2048, step);
      load(other, at + of.other * 2048, step);
      load(far, at + of.far * 2048, step);
      multiply(s[0], low, low);
      multiply(s[1], high, high);
      multiply(s[2], high, low);
      multiply(s[3], high, left);
      multiply(s[4], other, far);
    }
  }
  // Applies decays and factors to a block; on the diagonal pairs are selected, never multiplied by 0.
  template <bool Diagonal>
  __device__ __forceinline__ void weigh(float (&s)[8], int row_block, int column_block) const {
    const u32 rows = shared.numbers() + (16 * row_block + Fragment::row(lane)) * 4,
              columns = shared.numbers() + (16 * column_block + Fragment::column(lane)) * 4;
    const int behind = Fragment::row(lane) - Fragment::column(lane);
    float row_sum[2], row_factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_sum[r] = load_number(rows + OF_SUM + r * 32);
      row_factor[r] = load_number(rows + OF_READ_ROW + r * 32);
    }
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      float2 sum = {0, 0}, factor = {1, 1};
      if constexpr (decays) sum = load_pair(columns + OF_SUM + Fragment::column_of(j) * 4);
      if constexpr (by_column) factor = load_pair(columns + OF_COLUMN + Fragment::column_of(j) * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          float &e = s[Fragment::element(r, j + n)];
          float weight = row_factor[r] * (n == 0 ? factor.x : factor.y);
          if constexpr (decays) weight *= fast_exp2(row_sum[r] - (n == 0 ? sum.x : sum.y));
          e = !Diagonal || Fragment::column_of(j + n) - 8 * r < behind ? e * weight : 0.f;
        }
    }
  }
  // Whether r' k of each token of a block on the diagonal lies in [0, 2]: then I - k r' makes no vector longer
  // (linear_segment_end.cuh).
  __device__ __forceinline__ bool shrinks(const float (&s)[8], int block) const {
    const int token = Fragment::row(lane);
    const u32 at = shared.numbers() + (16 * block + token) * 4;
    bool good = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float even = s[Fragment::element(r, 2 * r)], odd = s[Fragment::element(r, 2 * r + 1)];
      float x = (token % 2 == 0 ? even : odd) * load_number(at + OF_READ_ROW + r * 32);
      if constexpr (by_column) x *= load_number(at + OF_COLUMN + r * 32);
      good = good & (x >= 0) & (x <= 2);
    }
    return good | (token / 2 != Fragment::column(lane) / 2);
  }
  // A warp's word for its blocks; and what both say of the chunk.
  __device__ __forceinline__ void tell_shrinks(const float (&s)[5][8], const Blocks &of) const {
    const bool good = __all_sync(0xffffffffu, shrinks(s[0], of.low) & shrinks(s[1], of.high));
    if (lane == 0) store_number(shared.numbers() + OF_CHUNK + 4 * warp, good ? 1.f : 0.f);
  }
  __device__ __forceinline__ void store_left() const {
    const float2 good = load_pair(shared.numbers() + OF_CHUNK);
    const float left = load_number(shared.numbers() + OF_SUM + 4 * (LUATTN_CHUNK - 1));
    p.chunk_decays[chain.slot(p, chunk)] = good.x + good.y == 2 ? left : 1.f;
  }
  __device__ __forceinline__ void store_part(const float (&s)[8], int row, int column) const {
    const Inverse of{shared, row, lane};
    const Halves h = Inverse::split(s);
    of.store(shared.parts(0) + of.place(row, column), h.upper);
    of.store(shared.parts(1) + of.place(row, column), h.lower);
  }

  // ---- T ----

  // Rows of T that the warp has written.
  __device__ __forceinline__ void store(int row) const {
    constexpr int rows = 16 * 128;
    bulk_store(static_cast<unsigned char *>(p.inverses) + chain.slot(p, chunk) * Shared::box + row * rows,
               shared.inverse() + row * rows, rows, true);
  }
  __device__ __forceinline__ void run() const {
    const Blocks of = blocks();
    float s[5][8];
    if (warp == 1 && elected()) barrier_init(shared.full(), 1), barrier_init_done(), load_keys();
    if (warp == 0) write_numbers();
    __syncthreads();
    barrier_wait(shared.full(), 0);
    multiply(s, of);
    if constexpr (decays) tell_shrinks(s, of);
    weigh<true>(s[0], of.low, of.low), weigh<true>(s[1], of.high, of.high);
    weigh<false>(s[2], of.high, of.low), weigh<false>(s[3], of.high, of.left), weigh<false>(s[4], of.other, of.far);
    __syncthreads();  // both have read k
    if (decays && threadIdx.x == 0) store_left();
    Inverse{shared, of.low, lane}.store_diagonal(s[0]), Inverse{shared, of.high, lane}.store_diagonal(s[1]);
    store_part(s[2], of.high, of.low), store_part(s[3], of.high, of.left), store_part(s[4], of.other, of.far);
    Inverse{shared, warp, lane}.invert_diagonals(of.low, of.high);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < 2; ++i) Inverse{shared, i == 0 ? of.high : of.low, lane}.make_rows(shared.inverse());
    fence_async();
    __syncwarp();
    if (elected()) store(of.low), store(of.high), bulk_commit(), bulk_wait_read();
  }
};

template <class Spec, class Config>
LUATTN_FN void linear_make_inverses(const LuattnLinearParams &p, const LuattnTensorMaps &maps, void *memory) {
  let_next_start();
  RowChunks<Config> at(p);
  const LinearChain<Config> chain = at.chain();
  const int chunk = at.chunk(chain);
  if (chunk >= chain.end || chain.state_row(p) < 0) return;
  InverseMaker<Spec, Config>{
      p, maps, {shared_address(memory)}, chain, chunk, int(uniform(threadIdx.x / 32)), int(threadIdx.x % 32)}
      .run();
}
