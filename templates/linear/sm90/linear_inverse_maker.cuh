// linear/sm90/linear_inverse_maker.cuh: luattn_linear_inverses: of each chunk of updates that erase, where decays do not differ
// between channels, T = (I + A)^-1, with A_ij = r_i k_j' e^(G_i - G_j) for j < i, for the chains of both passes. A chain's chunks
// come one after another, and T takes longer than all else that a chunk needs; here all chunks are made at once, several in a
// multiprocessor, whose loads, substitutions and products are under way together.
//
// Config: as in fwd_linear_sm90.cuh, of a pass that goes forwards. Threads: SharedInverses::threads; a block has one chunk of a
// value head, a warp 16 of its rows.
#pragma once
#include "arch/wgmma.cuh"
#include "linear/sm90/linear_inverse.cuh"
#include "linear/sm90/linear_numbers.cuh"
#include "linear/sm90/linear_pair_weights.cuh"

template <class Spec, class Config>
struct SharedInverses {
  static constexpr int box = LINEAR_BOX, boxes_k = ceil_div(Config::k_dim, 64), k_dim = boxes_k * 64;
  static constexpr int bytes = linear_inverses_bytes(Config::k_dim), threads = 128, blocks = 6, groups = 0;
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
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  static_assert(!Chain::mirrored && LINEAR_DIAGONAL <= LINEAR_BOX);

  const LuattnLinearParams &p;
  const LuattnTensorMaps &maps;
  const Shared shared;
  const Chain &chain;
  const int chunk, warp, lane;

  __device__ __forceinline__ void load_keys() const {
    const auto box = chain.box(chunk);
    barrier_arrive_expect(shared.full(), Shared::boxes_k * Shared::box);
#pragma unroll
    for (int i = 0; i < Shared::boxes_k; ++i)
      tensor_load(shared.k() + i * Shared::box, maps.k, shared.full(), i * 64, box, chain.key_head());
  }
  __device__ __forceinline__ void write_numbers() const {
    const LinearNumbers<Spec, Config> numbers{{p, chain, lane}, {0}, 0};
    numbers.tell(numbers.of_tokens(chunk), shared.numbers());
  }
  // s = k k'
  __device__ __forceinline__ void multiply(float (&s)[32]) const {
    const u64 keys = wgmma_operand(shared.k(), 0);
    wgmma_fence();
    if constexpr (Shared::k_dim == 128)
      Wgmma<Elem, 64>::first128(s, keys, keys);
    else
      Wgmma<Elem, 64>::first64(s, keys, keys);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(s);
  }
  // The warp's rows of T, which it has written.
  __device__ __forceinline__ void store() const {
    constexpr int rows = 16 * 128;
    fence_async();
    __syncwarp();
    if (elected()) {
      bulk_store(static_cast<unsigned char *>(p.inverses) + chain.slot(p, chunk) * Shared::box + warp * rows,
                 shared.inverse() + warp * rows, rows, true);
      bulk_commit(), bulk_wait_read();
    }
  }
  __device__ __forceinline__ void run() const {
    float s[32];
    if (threadIdx.x == 0) barrier_init(shared.full(), 1), barrier_init_done();
    __syncthreads();
    if (warp == 1 && elected()) load_keys();
    if (warp == 0) write_numbers();
    __syncthreads();
    barrier_wait(shared.full(), 0);
    multiply(s);
    PairWeights<Spec, Config>{shared.numbers(), warp, lane}.template apply<true, true>(s);
    __syncthreads();  // all have read k
    ChunkInverse<Spec, Config, Shared>{shared, warp, lane}.run(s, shared.inverse());
    store();
  }
};

template <class Spec, class Config>
LUATTN_FN void linear_make_inverses(const LuattnLinearParams &p, const LuattnTensorMaps &maps, void *memory) {
  RowChunks<Config> at(p);
  const LinearChain<Config> chain = at.chain();
  const int chunk = at.chunk(chain);
  if (chunk >= chain.end || chain.state_row(p) < 0) return;
  InverseMaker<Spec, Config>{
      p, maps, {shared_address(memory)}, chain, chunk, int(uniform(threadIdx.x / 32)), int(threadIdx.x % 32)}
      .run();
}
