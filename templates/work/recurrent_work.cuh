// work/recurrent_work.cuh: which part of a linear attention a block of the recurrent family walks over, and where its tokens lie.
#pragma once
#include "contract/linear_hooks.cuh"

// The parts of states, Parts of each, that a block has one after another: of a value head of an entry. Of whole heads, or of
// any. It divides once, where it begins.
template <int Parts>
struct PartTurn {
  int entry, hv, part;

  __device__ __forceinline__ explicit PartTurn(const LuattnLinearParams &p)
      : whole(p.step.whole != 0), heads_v(p.heads_v) {
    const u32 n = blockIdx.x, head = whole ? n : n / Parts, heads = whole ? gridDim.x : gridDim.x / Parts;
    part = whole ? 0 : int(n % Parts), step_part = whole ? 0 : int(gridDim.x % Parts);
    entry = int(head / u32(heads_v)), hv = int(head % u32(heads_v));
    step_entry = int(heads / u32(heads_v)), step_hv = int(heads % u32(heads_v));
  }
  __device__ __forceinline__ bool is_there(const LuattnLinearParams &p) const { return entry < p.entries; }
  __device__ __forceinline__ void next() {
    if (!whole)
      next_rows();
    else if (++part == Parts)
      part = 0, next_rows();
  }
  // The next one whose rows are others.
  __device__ __forceinline__ void next_rows() {
    part += step_part;
    const int more = part >= Parts;
    part -= more * Parts, hv += step_hv + more;
    const int over = hv >= heads_v;
    hv -= over * heads_v, entry += step_entry + over;
  }

 private:
  bool whole;
  int heads_v, step_entry, step_hv, step_part;
};

// The block's value head, of all entries, and which of Parts of its value channels: neighbours have neighbours.
template <int Parts>
struct HeadPart {
  u32 head;
  int part;
  __device__ __forceinline__ HeadPart() : head(blockIdx.x / u32(Parts)), part(int(blockIdx.x % u32(Parts))) {}
};

// The block's entry and head, and its tokens.
template <class Config>
struct RecurrentPlace {
  LinearSite site;
  int entry, start, tokens;
  i64 row;                  // of states; negative: there is none
  int first_block, blocks;  // of value channels: it has first_block, and each one `blocks` further on

  // Of value head n of all entries.
  __device__ __forceinline__ explicit RecurrentPlace(const LuattnLinearParams &p, u32 n = blockIdx.x) {
    const int hv = int(n % u32(p.heads_v));
    entry = int(n / u32(p.heads_v));
    find_tokens(p);
    site = {entry, hv, hv / p.group, start};
  }
  template <int Parts>
  __device__ __forceinline__ RecurrentPlace(const LuattnLinearParams &p, const PartTurn<Parts> &turn)
      : entry(turn.entry) {
    find_tokens(p);
    site = {entry, turn.hv, p.group == 1 ? turn.hv : turn.hv / p.group, start};
  }
  // Token t's number among those of all entries.
  __device__ __forceinline__ i64 row_of_all(const LuattnLinearParams &p, int t) const {
    return (Config::packed ? i64(start) : i64(entry) * p.tokens) + t;
  }
  // Token t's row of a head.
  template <class Elem>
  __device__ __forceinline__ Elem *at(const LuattnTensor &x, int head, int t) const {
    return static_cast<Elem *>(x.data) + (Config::packed ? 0 : entry) * x.batch + i64(start + t) * x.seq +
           head * x.head;
  }

  // Of the first value head of head h of q, in an entry; or of none, where there is no entry.
  __device__ __forceinline__ RecurrentPlace(const LuattnLinearParams &p, int entry, int h) : entry(entry) {
    if (p.entries > 0)
      find_tokens(p);
    else
      start = tokens = 0, row = -1, first_block = 0, blocks = 1;
    site = {entry, h * p.group, h, start};
  }

 private:
  __device__ __forceinline__ void find_tokens(const LuattnLinearParams &p) {
    start = 0, tokens = p.tokens;
    if constexpr (Config::packed) {
      start = clamped(__ldg(p.cu_seqlens + entry), p.tokens);
      tokens = max_of(clamped(__ldg(p.cu_seqlens + entry + 1), p.tokens) - start, 0);
    }
    first_block = int(blockIdx.y), blocks = int(gridDim.y);
    row = p.state_rows == nullptr ? entry : __ldg(p.state_rows + entry);
  }
  LUATTN_FN int clamped(int row, int total) { return max_of(min_of(row, total), 0); }
};

// Value head n of all entries, which there may not be; row: of its state, negative: there is none.
struct RecurrentAhead {
  int hv;
  i64 row;
  // That which begins about when the block ends.
  __device__ __forceinline__ explicit RecurrentAhead(const LuattnLinearParams &p)
      : RecurrentAhead(p, blockIdx.x + u32(p.ahead)) {}
  template <int Parts>
  __device__ __forceinline__ RecurrentAhead(const LuattnLinearParams &p, const PartTurn<Parts> &turn)
      : hv(turn.hv), row(p.state_rows == nullptr ? i64(turn.entry) : i64(__ldg(p.state_rows + turn.entry))) {}
  __device__ __forceinline__ RecurrentAhead(const LuattnLinearParams &p, u32 n) {
    const u32 entry = n / u32(p.heads_v);
    hv = int(n % u32(p.heads_v));
    row = entry >= u32(p.entries) ? -1 : p.state_rows == nullptr ? i64(entry) : i64(__ldg(p.state_rows + entry));
  }
};

// A block's head of q, and its part of an entry's tokens.
struct QueryBlock {
  int entry, h, part;
  __device__ __forceinline__ explicit QueryBlock(const LuattnLinearParams &p) {
    const u32 n = blockIdx.x / u32(p.reverse.parts);
    part = int(blockIdx.x % u32(p.reverse.parts)), h = int(n % u32(p.heads)), entry = int(n / u32(p.heads));
  }
};
