// linear/sm90/chunk_loads.cuh: the warp that loads where a block takes chunks in turns: each tensor of a chunk has a place of its
// own, with a barrier that says that it is full, and one that says that it may be loaded again.
#pragma once
#include "tma/bulk_copies.cuh"
#include "tma/mbarrier.cuh"
#include "tma/warp_roles.cuh"
#include "work/linear_work.cuh"

// Shared has of a tensor's number its place `at`, its `size` in bytes, `full` and `empty`. done: how many chunks the block has
// had before.
template <class Config, class Shared, class Maps>
struct ChunkLoads {
  using Chain = LinearChain<Config>;

  const LuattnLinearParams &p;
  const Maps &maps;
  const Shared shared;

  __device__ __forceinline__ void expect(int tensor, int done) const {
    barrier_wait(shared.empty(tensor), u32(done + 1) & 1);
    barrier_arrive_expect(shared.full(tensor), Shared::size(tensor));
  }
  __device__ __forceinline__ void load(int tensor, const LuattnTensorMap &map, const Chain &chain, int chunk, int head,
                                       int boxes, int done) const {
    expect(tensor, done);
    for (int i = 0; i < boxes; ++i)
      tensor_load(shared.at(tensor) + i * Shared::box, map, shared.full(tensor), i * 64, chain.box(chunk), head);
  }
  __device__ __forceinline__ void load_kept(int tensor, const void *kept, i64 slot, int done) const {
    const int bytes = Shared::size(tensor);
    expect(tensor, done);
    bulk_load(shared.at(tensor), static_cast<const unsigned char *>(kept) + slot * bytes, bytes, shared.full(tensor));
  }
  // Calls load_chunk(chain, chunk, done) of one thread for each chunk.
  template <class Load>
  __device__ __forceinline__ void each(const Load &load_chunk) const {
    for_each_chunk<Config>(p, [&](const Chain &chain, int chunk, int done) {
      if (elected()) load_chunk(chain, chunk, done);
      __syncwarp();
    });
  }
};
