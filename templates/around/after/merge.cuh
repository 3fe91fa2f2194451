// around/after/merge.cuh: luattn_merge: reduces the partial results of blocks that have shared a row's keys
// (LuattnSplits) to o, lse and saved. From sm_90 on it is launched while these run (arch/early_launch.cuh).
//
// Grid (q_len, heads, batch); merge_threads<Config> threads. With a list of splits (work/split_list.cuh), a row that
// one block has is finished. A block takes a row, each thread a few of its channels. Splits are merged in their order,
// so that no bit depends on which block was done first. Lane i of a warp loads the state of split i of 32, and all
// lanes merge all of them: the loads of O wait for nothing but the flags that say which splits count.
#pragma once
#include "arch/early_launch.cuh"
#include "arch/tensor.cuh"
#include "score/dropout.cuh"
#include "score/merge_rows.cuh"
#include "sink/partial_rows.cuh"
#include "sink/row_numbers.cuh"

template <class Config>
inline constexpr int merge_width = Config::head_dim_v % 4 == 0 ? 4 : 1;  // channels of a thread
template <class Config>
inline constexpr int merge_threads = ceil_div(Config::head_dim_v / merge_width<Config>, 32) * 32;

template <class Spec, class Config>
struct MergeSplits {
  using Real = typename Spec::Real;
  using Out = OutOf<Config>;
  enum : int { dim = Config::head_dim_v, width = merge_width<Config>, lanes = 32, ahead = 8 };
  using Part = RowPart<Spec>;
  using Values = Pack<Real, width>;

  const LuattnParams &p;
  const SequenceOf<Config> &site;
  const PartialRows<Spec> from;
  const typename Spec::Head head;
  const typename Spec::Row row;
  const int channel, lane;
  Part part;
  Values o;

  __device__ __forceinline__ MergeSplits(const LuattnParams &p, const SequenceOf<Config> &site, int at,
                                         const PartialRows<Spec> &from)
      : p(p),
        site(site),
        from(from),
        head(Spec::head(p, site)),
        row(Spec::row(p, site, head, at)),
        channel(int(threadIdx.x) * width),
        lane(int(threadIdx.x) % lanes),
        part{Spec::init(p, site, head, row), false} {
#pragma unroll
    for (int j = 0; j < width; ++j) o[j] = Real(0);
  }

  // The state of this lane's split, `count` from `first` on.
  __device__ __forceinline__ Part load_state(int first, int count) const {
    const int split = first + lane;
    Part theirs = {part.state, false};
    if (lane < count) {
      theirs.kept = *from.number(Spec::num_state, split) != Real(0);
#pragma unroll
      for (int i = 0; i < Spec::num_state; ++i) theirs.state.x[i] = *from.number(i, split);
    }
    return theirs;
  }
  __device__ __forceinline__ void add(const Part &of_lanes, u32 kept, int i, Values &values) {
    Part theirs;
    theirs.kept = kept >> i & 1;
#pragma unroll
    for (int k = 0; k < Spec::num_state; ++k) theirs.state.x[k] = __shfl_sync(0xffffffffu, of_lanes.state.x[k], i);
    const MergeFactors<Real> f = merge_part<Spec>(p, site, head, row, part, theirs);
#pragma unroll
    for (int j = 0; j < width; ++j) o[j] = merged_value(o[j], f.mine, values[j], f.theirs);
  }
  // Merges the splits from `first` on, at most 32.
  __device__ __forceinline__ void add_splits(int first, int count) {
    const Part theirs = load_state(first, count);
    const u32 kept = __ballot_sync(0xffffffffu, theirs.kept);
#pragma unroll 1
    for (int i = 0; i < count; i += ahead) {
      Values values[ahead];
#pragma unroll
      for (int j = 0; j < ahead; ++j) {
        if (channel < dim && i + j < count && (kept >> (i + j) & 1))
          values[j].load(from.template o<dim>(first + i + j) + channel);
        else
          values[j] = Values{};
      }
#pragma unroll
      for (int j = 0; j < ahead; ++j)
        if (i + j < count) add(theirs, kept, i + j, values[j]);
    }
  }
  __device__ __forceinline__ void store(int at) {
    const Real scale =
        part.kept ? Spec::out_scale(p, site, head, row, part.state) * Real(Dropout<Config>::factor) : Real(0);
    if (threadIdx.x == 0) write_row<Spec>(p, site, head, row, part.state, at, part.kept);
    if (channel >= dim) return;
    Pack<Out, width> rounded;
#pragma unroll
    for (int j = 0; j < width; ++j) rounded[j] = from_real<Out>(scale == Real(0) ? Real(0) : scale * o[j]);
    Out *to = site.template q_row<Out>(p, p.tensors.o, at) + channel;
    if constexpr (sizeof(typename Config::Elem) == 2) {  // rows are multiples of 16 bytes: the runtime refuses others
      rounded.store(to);
    } else {
#pragma unroll
      for (int j = 0; j < width; ++j) to[j] = rounded[j];
    }
  }
};

// All blocks wait first, so that this kernel ends last. What they could do before would come at the time when forward's
// blocks wait for their code, and code of this kernel would lie in its way.
template <class Spec, class Config>
LUATTN_FN void merge_splits(const LuattnParams &p, const LuattnSplits &splits) {
  wait_for_previous();
  const SequenceOf<Config> site(p, int(blockIdx.z), int(blockIdx.y));
  const int at = int(blockIdx.x);
  if (!site.reread().has_query(p, at)) return;  // of a packed sequence that is shorter than the longest one
  PartialRows<Spec> from(p, site, splits, at);
  int count = splits.count;
  if constexpr (Config::packed || Config::paged) {
    const SplitList list(p);
    if (list.known()) {
      const int group = site.group(p), h_kv = site.kv_head(p), row = at * group + site.h - h_kv * group;
      const LuattnTileSplits tile = list.tile_of_row(site.b, row);
      // Where entries share rows, which cu_seqlens must not say, a tile may have no block that writes its count.
      if (tile.count < 2 || tile.count > LUATTN_MAX_SPLITS || tile.first + tile.count > list.list.most_parts) return;
      from.move(list.part_row(tile.first, h_kv, row));
      count = int(tile.count);
    }
  }
  MergeSplits<Spec, Config> merge(p, site, at, from);
#pragma unroll 1
  for (int first = 0; first < count; first += 32) merge.add_splits(first, min_of(32, count - first));
  merge.store(at);
}
