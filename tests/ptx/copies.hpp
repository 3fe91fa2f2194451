// copies.hpp: a TMA descriptor as this machine stores it in the 128 bytes of a CUtensorMap.
#pragma once
#include <array>

#include "machine.hpp"

namespace ptx {

constexpr u32 MAP_MAGIC = 0x70747831;

struct TensorMap {
  u32 magic, rank, elem;  // bytes of an element
  u32 box[5];  // elements that it brings along each axis, step apart
  u8 step[5];
  u8 *data;
  u64 size[5];
  u64 stride[4];  // strides in bytes, of axes from the second on
  u32 box_bytes() const {
    u32 n = elem;
    for (u32 a = 0; a < rank; ++a) n *= box[a];
    return n;
  }
};
static_assert(sizeof(TensorMap) <= 128);

}  // namespace ptx
