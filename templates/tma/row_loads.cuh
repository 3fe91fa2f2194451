// tma/row_loads.cuh: what a backward producer loads of the rows of a q tile besides Q and dO.
#pragma once
#include "arch/mma.cuh"
#include "sink/dq_acc.cuh"
#include "tma/bulk_copies.cuh"
#include "work/sequence.cuh"

// Copies the row numbers of `rows` rows, which luattn_prepare wrote, to a stage of `shared`, with `full` as
// the barrier. `row` is the first row of the q tile. Called by one thread of a producer; both producers use
// it.
template <class Spec, class Sequence, class Shared>
LUATTN_FN void load_numbers(const LuattnParams &p, const Sequence &site, const Shared &shared, int stage, u32 full,
                            int row, int rows) {
  const RowNumbers<const float> from =
      site.template q_numbers<ResultGroups, const float>(p, p.scratch.bwd_rows, site.b, site.h, row);
#pragma unroll
  for (int i = 0; i < Spec::num_bwd_rows; ++i)
    bulk_load(shared_address(shared.numbers(stage) + i * Shared::tile_m), from.first + i * from.plane, rows * 4, full);
}
// Writes Row of each row of a q tile, clamped to the last row. Called by a warp of a producer.
template <class Spec, class Sequence, class Shared>
LUATTN_FN void load_rows(const LuattnParams &p, const Sequence &site, const typename Spec::Head &head,
                         const Shared &shared, int stage, int row, int lane) {
#pragma unroll 1
  for (int r = lane; r < Shared::tile_m; r += 32)
    shared.rows(stage)[r].value = Spec::row(p, site, head, site.reread().clamped_query(p, row + r));
}
