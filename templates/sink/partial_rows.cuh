// sink/partial_rows.cuh: what blocks that share a row's keys leave of it for luattn_merge (LuattnSplits,
// around/after/merge.cuh).
#pragma once
#include "contract/contract.cuh"
#include "work/sequence.cuh"
#include "work/split_list.cuh"

// Where partial results lie. Rows are those of lse.
template <class Spec>
struct PartialRows {
  using Real = typename Spec::Real;
  const LuattnSplits &splits;
  i64 rows, row;

  template <class Sequence>
  __device__ __forceinline__ PartialRows(const LuattnParams &p, const Sequence &site, const LuattnSplits &splits,
                                         int position)
      : splits(splits), rows(site.q_count(p)), row(site.q_index(p, position)) {}

  __device__ __forceinline__ PartialRows(const LuattnSplits &splits, const PartRow &at)
      : splits(splits), rows(at.rows), row(at.row) {}

  __device__ __forceinline__ void move(const PartRow &to) { rows = to.rows, row = to.row; }

  // The row of O of a split, of Width numbers; number i of its state, of which the one after the last is 1 if the
  // split keeps a score of the row, and 0 otherwise.
  template <int Width>
  __device__ __forceinline__ Real *o(int split) const {
    return static_cast<Real *>(splits.o) + (split * rows + row) * Width;
  }
  __device__ __forceinline__ Real *number(int i, int split) const {
    return static_cast<Real *>(splits.state) + (i64(i) * splits.count + split) * rows + row;
  }
};

// Stores what a block of split `split` has of a row, except for its O. Called by one thread per
// row, for every row of the split, also where it has no keys: luattn_merge reads all numbers of a state at once. Part:
// RowPart of score/merge_rows.cuh.
template <class Spec, class Part>
LUATTN_FN void store_part(const PartialRows<Spec> &to, int split, const Part &part) {
  using Real = typename Spec::Real;
  *to.number(Spec::num_state, split) = Real(part.kept);
#pragma unroll
  for (int i = 0; i < Spec::num_state; ++i) *to.number(i, split) = part.state.x[i];
}
template <class Spec, class Sequence, class Part>
LUATTN_FN void store_part(const LuattnParams &p, const Sequence &site, const LuattnSplits &splits, int split, int at,
                          const Part &part) {
  store_part<Spec>(PartialRows<Spec>(p, site, splits, at), split, part);
}
