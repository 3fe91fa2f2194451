// decode/cluster_merge.cuh: merges what the blocks of a tile have of its rows, where they are a cluster. Each
// block has its sums and states in its shared memory, takes a share of O, four channels of a row a thread,
// and reads those of all blocks, in the order of splits, as luattn_merge does (around/merge.cuh).
#pragma once
#include "arch/cluster_reads.cuh"
#include "arch/tensor.cuh"
#include "score/dropout.cuh"
#include "score/merge_rows.cuh"
#include "sink/row_numbers.cuh"
#include "work/decode_work.cuh"

// Stores four channels of O. A factor of 0 drops its number.
template <class Elem>
LUATTN_FN void store_scaled(Elem *to, Pack<float, 4> sum, float scale) {
  Pack<Elem, 4> rounded;
#pragma unroll
  for (int i = 0; i < 4; ++i) rounded[i] = from_real<Elem>(scale == 0.f ? 0.f : scale * sum[i]);
  rounded.store(to);
}

template <class Spec, class Config>
struct ClusterMerge {
  using Elem = typename Config::Elem;
  using Sequence = SequenceOf<Config>;
  using Block = DecodeBlock<Sequence, Config::tile_m>;
  using Part = RowPart<Spec>;
  enum : int { chunks = Config::head_dim_v / 4, ahead = 8 };

  const LuattnParams &p;
  const Sequence &site;
  const Block &block;
  const u32 sums, states;            // shared addresses of those of the tile's first row
  const int sum_pitch, state_pitch;  // bytes of a row

  __device__ __forceinline__ Part read_part(int r, int rank) const {
    const u32 from = states + u32(r * state_pitch);
    Part part;
#pragma unroll
    for (int i = 0; i < Spec::num_state; ++i) part.state.x[i] = read_of(from + 4 * i, rank);
    part.kept = read_of(from + 4 * Spec::num_state, rank) != 0.f;
    return part;
  }

  // All reads of a step are issued before the first merge. Blocks past the last one are not merged.
  template <class Head, class Row>
  __device__ __forceinline__ void add_blocks(const Sequence &at, const Head &head, const Row &row, int r,
                                             int d, int first, Part &merged, Pack<float, 4> &sum) const {
    float4 values[ahead];
    Part part[ahead];
#pragma unroll
    for (int j = 0; j < ahead; ++j) {
      const int rank = min_of(first + j, block.splits - 1);
      values[j] = read_4_of(sums + u32(r * sum_pitch + 4 * d), rank);
      part[j] = read_part(r, rank);
    }
#pragma unroll
    for (int j = 0; j < ahead; ++j) {
      part[j].kept &= first + j < block.splits;
      const MergeFactors<float> f = merge_part<Spec>(p, at, head, row, merged, part[j]);
      const float theirs[] = {values[j].x, values[j].y, values[j].z, values[j].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] = merged_value(sum[i], f.mine, theirs[i], f.theirs);
    }
  }

  // Four channels of a row, from `d` on.
  __device__ __forceinline__ void merge_chunk(int r, int d) const {
    const RowPlace place = block.place(p, site, r);
    Sequence at = site;
    at.h = place.h;
    const typename Spec::Head head = Spec::head(p, at);
    const typename Spec::Row row = Spec::row(p, at, head, place.q);
    Part merged{Spec::init(p, at, head, row), false};
    Pack<float, 4> sum;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = 0;
#pragma unroll 1
    for (int first = 0; first < block.splits; first += ahead)
      add_blocks(at, head, row, r, d, first, merged, sum);
    if (d == 0) write_row<Spec>(p, at, head, row, merged.state, place.q, merged.kept);
    float scale = merged.kept ? Spec::out_scale(p, at, head, row, merged.state) : 0.f;
    if constexpr (Dropout<Config>::any) scale *= float(Dropout<Config>::factor);
    store_scaled(at.template q_row<Elem>(p.tensors.o, place.q) + d, sum, scale);
  }

  // Called by all threads of all blocks. No block ends while others may read its memory.
  __device__ __forceinline__ void run() const {
    const int all = (block.last_row(p, site) - block.first_row + 1) * chunks,
              each = ceil_div(all, block.splits);
    cluster_meet();
#pragma unroll 1
    for (int i = int(threadIdx.x); i < each; i += Config::threads) {
      const int chunk = block.split * each + i;
      if (chunk < all) merge_chunk(chunk / chunks, chunk % chunks * 4);
    }
    cluster_meet();
  }
};
