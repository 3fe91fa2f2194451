// score/flag_lines.cuh: bits of the scores that a tile keeps, where the mask reads a flag of each (query, key) from a
// line of bytes: 16 flags come with one load, where `keep` takes a load for each score.
//
// The threads that share a row of a fragment load a part of its flags each, turn them into bits, and hand the others
// theirs.
#pragma once
#include "contract/contract.cuh"
#include "score/fragment.cuh"

// Whether lines can be read by 16 flags up to key `end`. The same for all threads that ask for one tile.
template <class Spec>
LUATTN_FN bool flags_are_wide(const LuattnParams &p, int end) {
  constexpr int last = Spec::flag_axes - 1;
  const LuattnInput &in = p.inputs.input[Spec::flag_input];
  u64 odd = reinterpret_cast<u64>(in.data);
#pragma unroll
  for (int axis = 0; axis < last; ++axis) odd |= u64(in.stride[axis]);
  return (odd & 15) == 0 && in.stride[last] == 1 && end <= in.size[last];
}

LUATTN_FN uint4 read_flags(u64 at) { return __ldg(reinterpret_cast<const uint4 *>(at)); }

// Bit i: byte i is not 0.
LUATTN_FN u32 bits_of_flags(uint4 flags) {
  const u32 four[] = {flags.x, flags.y, flags.z, flags.w};
  u32 bits = 0;
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    // The highest bit of each byte, and then those four side by side at the top.
    const u32 top = (((four[i] & 0x7f7f7f7fu) + 0x7f7f7f7fu) | four[i]) & 0x80808080u;
    bits = __funnelshift_l(top * 0x00204081u, bits, 4);
  }
  return bits;
}

// Bits of a thread's columns in 64 keys: of one line in the lower half, of another in the upper. The words go round
// the threads that share the lines: MmaFragment has four, with two of every eight keys each.
LUATTN_FN u32 share_flags(MmaFragment, uint4 first, uint4 second, int lane) {
  u32 mine = bits_of_flags(first) | bits_of_flags(second) << 16, word = 0;
  // Pairs of keys 0 .. 7 and 8 .. 15 of each line: pair i of both becomes half byte i, which is thread i's.
  u32 moved = (mine >> 4 ^ mine) & 0x00f000f0u;
  mine ^= moved ^ moved << 4;
  moved = (mine >> 2 ^ mine) & 0x0c0c0c0cu;
  mine ^= moved ^ moved << 2;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    word |= (__shfl_sync(0xffffffffu, mine, i, 4) >> MmaFragment::lane_in_row(lane) * 4 & 0x000f000fu) << i * 4;
  return word;
}

// The same for Units * 64 keys, of lines that begin at the tile's first key.
template <class Fragment, int Units>
LUATTN_FN void flags_of_two_rows(u64 first, u64 second, int lane, u32 (&bits)[Units]) {
  uint4 flags[Units][2];
  static_assert(Fragment::row_lanes * 16 == 64);
  const u32 part = u32(Fragment::lane_in_row(lane) * 16);
#pragma unroll
  for (int i = 0; i < Units; ++i) {
    flags[i][0] = read_flags(first + part + i * 64);
    flags[i][1] = read_flags(second + part + i * 64);
  }
#pragma unroll
  for (int i = 0; i < Units; ++i) bits[i] = share_flags(Fragment(), flags[i][0], flags[i][1], lane);
}

// Backward, where fragments have keys as rows. Lane i gives the bits of 16 keys for query i of 32. Returns those of
// the thread's two keys for the query of its column j, as bits 0 and 8.
template <class Fragment>
LUATTN_FN u32 flags_of_column(u32 bits, int j, int lane) {
  static_assert(Fragment::row_of(1) == 8);
  const int query = Fragment::column(lane) + Fragment::column_of(j % Fragment::columns(32));
  return __shfl_sync(0xffffffffu, bits, query) >> Fragment::row(lane) & 0x101u;
}

// Backward: bits of a thread's columns, of its two keys among the 16 from `first` on, for a tile inside the lengths.
template <class Spec, class Fragment, int Size, class Bits, class Consumer>
LUATTN_FN void read_query_flags(const Consumer &of, int q0, int first, Bits (&keep)[2]) {
  u32 bits[Size / 32];
#pragma unroll
  for (int i = 0; i < Size / 32; ++i)
    bits[i] = bits_of_flags(read_flags(Spec::flag_line(of.p, of.site, of.head, q0 + i * 32 + of.lane) + u32(first)));
#pragma unroll
  for (int j = 0; j < Fragment::columns(Size); ++j) {
    const u32 two = flags_of_column<Fragment>(bits[j / Fragment::columns(32)], j, of.lane);
    keep[0].set(j, two & 1u);
    keep[1].set(j, two >> 8);
  }
}
