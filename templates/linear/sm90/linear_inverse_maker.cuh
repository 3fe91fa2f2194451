// linear/sm90/linear_inverse_maker.cuh: luattn_linear_inverses: of each chunk of updates that erase, where decays do not differ
// between channels, T = (I + A)^-1, with A_ij = r_i k_j' e^(G_i - G_j) for j < i, for the chains of both passes. A chain's chunks
// come one after another, and T takes longer than all else that a chunk needs; here several chunks are under way in a
// multiprocessor, so that one computes while another waits.
//
// Config: as in fwd_linear_sm90.cuh, of a pass that goes forwards. Threads: SharedInverses::threads; a block takes chunks in
// turns. It has four warps with 16 rows each, and one that finds the next chunk, makes its numbers, and loads k.
#pragma once
#include "arch/wgmma.cuh"
#include "linear/sm90/linear_inverse.cuh"
#include "linear/sm90/linear_numbers.cuh"
#include "linear/sm90/linear_pair_weights.cuh"

// Behind the numbers of a chunk's tokens: where T goes, or 0: there is no chunk.
enum { OF_PLACE = OF_CHUNK + 16 };
static_assert(OF_PLACE + 8 <= LINEAR_NUMBERS);

template <class Spec, class Config>
struct SharedInverses {
  static constexpr int box = LINEAR_BOX, boxes_k = ceil_div(Config::k_dim, 64), k_dim = boxes_k * 64;
  static constexpr LinearInversesLayout layout = linear_inverses_layout(Config::k_dim);
  static constexpr int bytes = layout.bytes, threads = LINEAR_INVERSE_THREADS, blocks = LINEAR_INVERSE_BLOCKS,
                       groups = 0;
  static_assert(LinearSpec<Spec> && Spec::erases && Config::k_dim % 8 == 0 && k_dim <= 128);
  static_assert(blocks * (bytes + 1024) <= LUATTN_SM90_SHARED_BYTES + 1024, "a block has 1024 bytes more of its own");

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ u32 k() const { return start; }
  __device__ __forceinline__ u32 parts(int which) const { return start + layout.at_parts + which * box; }
  __device__ __forceinline__ u32 inverse() const { return start + layout.at_inverse; }
  // In the place of T, whose rows come when all blocks on the diagonal have been read.
  __device__ __forceinline__ u32 diagonal(int block) const { return inverse() + block * (16 * 80); }
  __device__ __forceinline__ u32 numbers(int stage) const { return start + layout.at_numbers + stage * LINEAR_NUMBERS; }
  __device__ __forceinline__ u32 full() const { return start + layout.at_barriers; }
  __device__ __forceinline__ u32 empty() const { return full() + 8; }
  __device__ __forceinline__ u32 numbers_full(int stage) const { return full() + 16 + stage * 16; }
  __device__ __forceinline__ u32 numbers_empty(int stage) const { return numbers_full(stage) + 8; }

  __device__ __forceinline__ void init_barriers() const {
    barrier_init(full(), 1), barrier_init(empty(), 4);
    for (int i = 0; i < 2; ++i) barrier_init(numbers_full(i), 32), barrier_init(numbers_empty(i), 4);
    barrier_init_done();
  }
};

// The warp that is a chunk ahead.
template <class Spec, class Config>
struct InverseProducer {
  using Shared = SharedInverses<Spec, Config>;
  using Chain = LinearChain<Config>;

  const LuattnLinearParams &p;
  const LuattnTensorMaps &maps;
  const Shared shared;
  const int lane;

  __device__ __forceinline__ void load_keys(const Chain &chain, int chunk, int done) const {
    barrier_wait(shared.empty(), u32(done + 1) & 1);
    barrier_arrive_expect(shared.full(), Shared::boxes_k * Shared::box);
#pragma unroll
    for (int i = 0; i < Shared::boxes_k; ++i)
      tensor_load(shared.k() + i * Shared::box, maps.k, shared.full(), i * 64, chain.box(chunk), chain.key_head());
  }
  __device__ __forceinline__ void tell_place(const void *place, int done) const {
    const u64 to = reinterpret_cast<u64>(place);
    if (lane == 0)
      store_shared(shared.numbers(done % 2) + OF_PLACE, u32(to)),
          store_shared(shared.numbers(done % 2) + OF_PLACE + 4, u32(to >> 32));
    barrier_arrive(shared.numbers_full(done % 2));
  }
  __device__ __forceinline__ void await_numbers(int done) const {
    barrier_wait(shared.numbers_empty(done % 2), u32(done / 2 + 1) & 1);
  }
  __device__ __forceinline__ void run() const {
    int chunks = 0;
    for_each_chunk<Config>(p, [&](const Chain &chain, int chunk, int done) {
      const LinearNumbers<Spec, Config> numbers{{p, chain, lane}, {0}, 0};
      const auto x = numbers.of_tokens(chunk);
      await_numbers(done);
      numbers.tell(x, shared.numbers(done % 2));
      tell_place(static_cast<unsigned char *>(p.inverses) + chain.slot(p, chunk) * Shared::box, done);
      if (elected()) load_keys(chain, chunk, done);
      __syncwarp();
      chunks = done + 1;
    });
    await_numbers(chunks);
    tell_place(nullptr, chunks);
  }
};

template <class Spec, class Config>
struct InverseMaker {
  using Shared = SharedInverses<Spec, Config>;
  using Elem = typename Config::Elem;
  using Inverse = ChunkInverse<Spec, Config, Shared>;
  static constexpr int stored_barrier = Inverse::rows_barrier + 1, rows = 16 * 128;
  static_assert(!LinearChain<Config>::mirrored && LINEAR_DIAGONAL <= LINEAR_BOX);

  const Shared shared;
  const int warp, lane;

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
  __device__ __forceinline__ void store(unsigned char *to) const {
    fence_async();
    __syncwarp();
    if (elected()) bulk_store(to + warp * rows, shared.inverse() + warp * rows, rows, true), bulk_commit();
  }
  // All rows of the chunk before have been read.
  __device__ __forceinline__ void await_stores() const {
    if (elected()) bulk_wait_read();
    named_sync(stored_barrier, 128);
  }
  // Whether there was a chunk.
  __device__ __forceinline__ bool step(int done) const {
    const u32 numbers = shared.numbers(done % 2);
    float s[32];
    barrier_wait(shared.numbers_full(done % 2), u32(done / 2) & 1);
    const u64 to = load_shared(numbers + OF_PLACE) | u64(load_shared(numbers + OF_PLACE + 4)) << 32;
    if (to == 0) return false;
    barrier_wait(shared.full(), u32(done) & 1);
    multiply(s);
    if (elected()) barrier_arrive(shared.empty());
    PairWeights<Spec, Config>{numbers, warp, lane}.template apply<true, true>(s);
    __syncwarp();
    if (elected()) barrier_arrive(shared.numbers_empty(done % 2));
    await_stores();
    Inverse{shared, warp, lane}.run(s, shared.inverse());
    store(reinterpret_cast<unsigned char *>(to));
    return true;
  }
};

template <class Spec, class Config>
LUATTN_FN void linear_make_inverses(const LuattnLinearParams &p, const LuattnTensorMaps &maps, void *memory) {
  using Shared = SharedInverses<Spec, Config>;
  const Shared shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const int warp = int(uniform(threadIdx.x / 32)), lane = int(threadIdx.x % 32);
  if (warp == 4) return InverseProducer<Spec, Config>{p, maps, shared, lane}.run();
  int done = 0;
  // What derives from the thread's number is computed anew in each chunk: the loop has no registers to keep it.
#pragma unroll 1
  while (InverseMaker<Spec, Config>{shared, thread_anew() / 32, lane_anew()}.step(done)) ++done;
  if (elected()) bulk_wait_read();
}
