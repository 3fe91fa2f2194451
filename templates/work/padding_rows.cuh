// work/padding_rows.cuh: which rows that no sequence has a block writes. Up to padding_blocks of a grid share them; the
// others do not even read where sequences end.
#pragma once
#include "work/sequence.cuh"

static constexpr u32 padding_blocks = 512;

// Calls body(row) for this block's rows of keys, or of queries.
template <class Sequence, bool Keys, class Body>
LUATTN_FN void each_padding_row(const LuattnParams &p, const Body &body) {
  const u32 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z),
            blocks = min_of(gridDim.x * gridDim.y * gridDim.z, padding_blocks), batch = u32(Sequence::batch(p));
  if (block >= blocks) return;
  // A sequence's rows are shared by `each` blocks, those behind the last sequence by all. Both are looked up before the
  // first is waited for.
  const u32 each = blocks > batch && batch > 0 ? blocks / batch : 1;
  const Range last = Sequence::template padding<Keys>(p, int(batch));
  Range own{0, 0};
  u32 entry = block / each;
  if (entry < batch) own = Sequence::template padding<Keys>(p, int(entry));
#pragma unroll 1
  for (int row = last.lo + int(block); row < last.hi; row += int(blocks)) body(row);
#pragma unroll 1
  while (entry < batch) {
#pragma unroll 1
    for (int row = own.lo + int(block % each); row < own.hi; row += int(each)) body(row);
    entry += each > 1 ? batch : blocks;
    if (entry < batch) own = Sequence::template padding<Keys>(p, int(entry));
  }
}
