// copies.cpp: cp.async and TMA: bulk copies, reductions and tensor copies. PTX ISA, 9.7.9.25 to 9.7.9.27.
#include "copies.hpp"
#include "decoder.hpp"
#include "races.hpp"

namespace ptx {
namespace {

// ---- cp.async: slots: to, from, and optionally the number of bytes to read; imm: bytes to write ----
void finish(const Warp &w, const LaneCopy &c) {
  u8 *to = w.block->shared.data() + c.to;
  if (c.valid > 0) memcpy(to, c.from, c.valid);
  memset(to + c.valid, 0, size_t(c.bytes - c.valid));
}
// Completes the copies issued before copy `end`.
void finish(const Warp &w, std::vector<LaneCopy> &copies, u64 end) {
  size_t n = 0;
  for (; n < copies.size() && copies[n].number < end; ++n) finish(w, copies[n]);
  copies.erase(copies.begin(), copies.begin() + i64(n));
}
void finish_before(Warp &w, int lane, u64 end) {
  for (auto &group : w.copies[lane].closed) finish(w, group, end);
  finish(w, w.copies[lane].open, end);
}
Next copy_async(Warp &w, const Instr &i, u32 lanes) {
  touched(w, lanes);
  each(lanes, [&](int l) {
    const u32 to = u32(w.value(i.slot[0], l) + u64(i.offset[0]));
    const u8 *from = reinterpret_cast<const u8 *>(w.value(i.slot[1], l) + u64(i.offset[1]));
    const u64 valid = i.slot.size() > 2 ? w.value(i.slot[2], l) : u64(i.imm);
    if (valid > u64(i.imm)) fault(w, i, "%llu of %lld bytes", (unsigned long long)valid, (long long)i.imm);
    race_write(w, i, shared_at(w, i, to, size_t(i.imm), size_t(i.imm)), size_t(i.imm));
    if (valid > 0) check_global(w, i, from, valid, size_t(i.imm));
    const LaneCopy c = {w.copies_begun, to, from, u8(i.imm), u8(valid)};
    if (w.block->machine->does_now())
      finish(w, c);
    else
      w.copies[l].open.push_back(c);
  });
  ++w.copies_begun;
  return Next::GO;
}
Next copy_commit(Warp &w, const Instr &, u32 lanes) {
  each(lanes, [&](int l) { w.copies[l].close(); });
  return Next::GO;
}
Next copy_wait(Warp &w, const Instr &i, u32 lanes) {  // imm < 0: waits for all
  each(lanes, [&](int l) {
    if (i.imm < 0) return finish_before(w, l, w.copies_begun);
    auto &closed = w.copies[l].closed;
    while (i64(closed.size()) > i.imm) {
      finish(w, closed.front(), w.copies_begun);
      closed.pop_front();
    }
  });
  return Next::GO;
}
Next copy_arrive(Warp &w, const Instr &i, u32 lanes) {  // cp.async.mbarrier.arrive.noinc
  each(lanes, [&](int l) {
    const Place barrier = barrier_at(w, i, w.value(i.slot[0], l) + u64(i.offset[0]));
    Machine &m = *w.block->machine;
    m.later({[&w, &m, l, barrier, clock = w.clock, end = w.copies_begun] {
               finish_before(w, l, end);
               arrive(m, barrier, 1, 0, clock);
             },
             {w.block, barrier.block}});
  });
  released(w);
  return Next::GO;
}

// ---- bulk ----
// Returns the mbarrier of a copy into shared memory, which is in the same block as the destination.
Place barrier_of(const Warp &w, const Instr &i, u64 address, const Place &to) {
  const Place barrier = barrier_at(w, i, address);
  if (barrier.block != to.block) fault(w, i, "the barrier is in another block than what is written");
  return barrier;
}
void read(Bulk &b) {
  if (!b.has_read) b.data.assign(b.from.data(), b.from.data() + b.bytes);
  b.has_read = true;
}
void write(Bulk &b) {
  if (!b.has_written) b.write(b.data.data());
  b.has_written = true;
}
void keep(Warp &w, int lane, Bulk work) {
  Machine &m = *w.block->machine;
  if (m.does_now()) {
    read(work);
    if (m.does_now()) write(work);
  }
  w.bulk[lane].open.push_back(std::move(work));
}
u32 checked_bytes(const Warp &w, const Instr &i, const Slot &s, int lane) {
  const u32 bytes = u32(w.value(s, lane));
  if (bytes % 16 != 0) fault(w, i, "a bulk copy of %u bytes, which is no multiple of 16", bytes);
  return bytes;
}
// Registers a read of shared memory, which lasts until the barrier's phase ends. No event tells this warp
// when the phase ends, so the read counts as finished immediately.
const u8 *source_at(Warp &w, const Instr &i, u64 address, size_t bytes) {
  const Place p = shared_at(w, i, address, bytes, 16);
  race_read(w, i, p, bytes, Proxy::ASYNC);
  race_read_done(w, p, bytes);
  return p.data();
}
// Copies to shared memory from global memory or another block's. Slots: to, from, bytes, barrier.
Next bulk_load(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const u32 bytes = checked_bytes(w, i, i.slot[2], l);
    const Place to = shared_at(w, i, w.value(i.slot[0], l) + u64(i.offset[0]), bytes, 16);
    const u64 source = w.value(i.slot[1], l) + u64(i.offset[1]);
    const u8 *from = i.from_shared ? source_at(w, i, source, bytes) : reinterpret_cast<const u8 *>(source);
    if (!i.from_shared) check_global(w, i, from, bytes, 16);
    const Place barrier = barrier_of(w, i, w.value(i.slot[3], l) + u64(i.offset[2]), to);
    Machine &m = *w.block->machine;
    m.later({[=, &m, clock = race_copy(w, i, to, bytes)] {
               memcpy(to.data(), from, bytes);
               complete_bytes(m, barrier, i32(bytes), clock);
             },
             {w.block, to.block}});
  });
  return Next::GO;
}
// Copies to global memory. Slots: to, from, bytes.
Next bulk_store(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const u32 bytes = checked_bytes(w, i, i.slot[2], l);
    u8 *to = reinterpret_cast<u8 *>(w.value(i.slot[0], l) + u64(i.offset[0]));
    const Place place = shared_at(w, i, w.value(i.slot[1], l) + u64(i.offset[1]), bytes, 16);
    race_read(w, i, place, bytes, Proxy::ASYNC);
    check_global(w, i, to, bytes, 16);
    const auto write = [=, add = i.adds](const u8 *from) {
      if (!add) return void(memcpy(to, from, bytes));
      for (u32 k = 0; k < bytes; k += 4) {
        float x, y;
        memcpy(&x, to + k, 4), memcpy(&y, from + k, 4);
        x += y;
        memcpy(to + k, &x, 4);
      }
    };
    keep(w, l, {write, place, bytes});
  });
  return Next::GO;
}
Next bulk_commit(Warp &w, const Instr &, u32 lanes) {
  each(lanes, [&](int l) { w.bulk[l].close(); });
  return Next::GO;
}
// Waits for all groups except the last i.imm, until they have been read or, if required, also written.
Next bulk_wait(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    auto &closed = w.bulk[l].closed;
    const i64 n = std::max(i64(0), i64(closed.size()) - i.imm);
    for (i64 k = 0; k < n; ++k)
      for (Bulk &work : closed[size_t(k)]) {
        read(work);
        if (work.may_read) race_read_done(w, work.from, work.bytes);
        work.may_read = false;
        if (!i.only_read || w.block->machine->does_now()) write(work);
      }
    if (!i.only_read) closed.erase(closed.begin(), closed.begin() + n);
  });
  return Next::GO;
}

// ---- tensors ----
TensorMap map_at(const Warp &w, const Instr &i, u64 address) {
  TensorMap map;
  const u8 *p = reinterpret_cast<const u8 *>(address);
  check_global(w, i, p, sizeof map, 64);
  memcpy(&map, p, sizeof map);
  if (map.magic != MAP_MAGIC) fault(w, i, "this is no tensor map");
  check_global(w, i, map.data, 16, 16);  // TMA translates the base address, even if it reads elsewhere
  return map;
}
// Calls f(global element or NULL, byte offset in the box) for each 16 bytes of each row of the box's
// innermost axis.
template <class F>
void each_chunk(const TensorMap &map, const i32 *first, F f) {
  const u32 row_bytes = map.box[0] * map.elem;
  u32 rows = 1;
  for (u32 a = 1; a < map.rank; ++a) rows *= map.box[a];
  for (u32 row = 0; row < rows; ++row) {
    uintptr_t address = uintptr_t(map.data);
    bool inside = true;
    u32 rest = row;
    for (u32 a = 1; a < map.rank; ++a) {
      const i64 k = i64(first[a]) + i64(rest % map.box[a]) * map.step[a];
      rest /= map.box[a];
      inside = inside && k >= 0 && u64(k) < map.size[a];
      address += u64(k) * map.stride[a - 1];  // modulo 2^64, as TMA computes it
    }
    u8 *const at = reinterpret_cast<u8 *>(address);
    for (u32 byte = 0; byte < row_bytes; byte += 16) {
      const i64 k = i64(first[0]) + byte / map.elem;
      // Sizes and coordinates are multiples of 8 elements here; the descriptor's encoder checks this.
      f(inside && k >= 0 && u64(k) < map.size[0] ? at + k * map.elem : nullptr, row * row_bytes + byte);
    }
  }
}
// The 128-byte swizzle: xors bits 4 to 6 of the address with bits 7 to 9. Returns the offset from the tile,
// which is aligned to 128 bytes.
u32 swizzled(u32 tile, u32 distance) {
  const u32 address = tile + distance;
  return (address ^ (address >> 7 & 7) << 4) - tile;
}
// Returns the coordinates of a box, one per axis of the descriptor.
std::array<i32, 5> first_of(const Warp &w, const Instr &i, const TensorMap &map, size_t slot, int lane) {
  std::array<i32, 5> first = {};
  if (i.count != map.rank) fault(w, i, "a map of %u axes", map.rank);
  for (u32 a = 0; a < map.rank; ++a) first[a] = i32(w.value(i.slot[slot + a], lane));
  if (first[0] * i64(map.elem) % 16 != 0)
    fault(w, i, "channel %d: this machine knows boxes that begin at multiples of 16 bytes", first[0]);
  return first;
}

// Slots: to, descriptor, coordinates, barrier.
Next tensor_load(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const TensorMap map = map_at(w, i, w.value(i.slot[1], l) + u64(i.offset[1]));
    const u32 bytes = map.box_bytes();
    const Place to = shared_at(w, i, w.value(i.slot[0], l) + u64(i.offset[0]), bytes, 128);
    const Place barrier = barrier_of(w, i, w.value(i.slot.back(), l) + u64(i.offset[2]), to);
    const std::array<i32, 5> first = first_of(w, i, map, 2, l);
    each_chunk(map, first.data(), [&](u8 *from, u32) {
      if (from != nullptr) check_global(w, i, from, 16, 16);
    });
    Machine &m = *w.block->machine;
    m.later({[=, &m, clock = race_copy(w, i, to, bytes)] {
               each_chunk(map, first.data(), [&](const u8 *from, u32 at) {
                 u8 *chunk = to.data() + swizzled(to.at, at);
                 if (from != nullptr)
                   memcpy(chunk, from, 16);
                 else
                   memset(chunk, 0, 16);
               });
               complete_bytes(m, barrier, i32(bytes), clock);
             },
             {to.block, nullptr}});
  });
  return Next::GO;
}
// Slots: descriptor, coordinates. Does no more than check them: there is no cache.
Next tensor_prefetch(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const TensorMap map = map_at(w, i, w.value(i.slot[0], l) + u64(i.offset[0]));
    each_chunk(map, first_of(w, i, map, 1, l).data(), [&](u8 *from, u32) {
      if (from != nullptr) check_global(w, i, from, 16, 16);
    });
  });
  return Next::GO;
}
// The same of contiguous bytes. Slots: from, bytes.
Next bulk_prefetch(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const u8 *from = reinterpret_cast<const u8 *>(w.value(i.slot[0], l) + u64(i.offset[0]));
    const size_t bytes = u32(w.value(i.slot[1], l));
    check_global(w, i, from, bytes, 16);
  });
  return Next::GO;
}
// Slots: descriptor, coordinates, from.
Next tensor_store(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const TensorMap map = map_at(w, i, w.value(i.slot[0], l) + u64(i.offset[0]));
    const Place from = shared_at(w, i, w.value(i.slot.back(), l) + u64(i.offset[1]), map.box_bytes(), 128);
    race_read(w, i, from, map.box_bytes(), Proxy::ASYNC);
    const std::array<i32, 5> first = first_of(w, i, map, 1, l);
    each_chunk(map, first.data(), [&](u8 *to, u32) {
      if (to != nullptr) check_global(w, i, to, 16, 16);
    });
    const auto write = [=](const u8 *data) {
      each_chunk(map, first.data(), [&](u8 *to, u32 at) {
        if (to != nullptr) memcpy(to, data + swizzled(from.at, at), 16);
      });
    };
    keep(w, l, {write, from, map.box_bytes()});
  });
  return Next::GO;
}

// ---- decoding ----
bool decode_tensor(Decoder &d) {
  const bool load = d.has("mbarrier::complete_tx::bytes");
  if (load) d.address(d.arg(0), 0);
  const Arg &where = d.arg(load ? 1 : 0);
  d.address(where, load ? 1 : 0);
  d.instr.count = u16(where.coords.size());
  for (const Arg &a : where.coords) d.value(a, false);
  if (d.has("prefetch")) return d.instr.run = tensor_prefetch, d.args.size() == 1;
  d.address(d.arg(load ? 2 : 1), load ? 2 : 1);
  if (d.args.size() != (load ? 3u : 2u) + d.has("L2::cache_hint")) return false;
  d.instr.run = load ? tensor_load : tensor_store;
  return true;
}
bool decode_bulk(Decoder &d) {
  if (d.has("tensor")) return !d.has("reduce") && decode_tensor(d);
  if (d.has("commit_group")) return d.instr.run = bulk_commit, true;
  if (d.has("wait_group")) {
    d.instr.imm = i64(d.arg(0).bits);
    d.instr.only_read = d.has("read");
    d.instr.run = bulk_wait;
    return true;
  }
  const bool load = d.has("mbarrier::complete_tx::bytes");
  d.address(d.arg(0), 0);
  if (d.has("prefetch")) return d.value(d.arg(1), false), d.instr.run = bulk_prefetch, d.args.size() == 2;
  d.address(d.arg(1), 1);
  d.value(d.arg(2), false);
  if (load) d.address(d.arg(3), 2);
  d.instr.from_shared = !d.has("global");
  d.instr.adds = d.has("reduce");
  if (d.instr.adds && !(d.has("add") && d.has("f32"))) return false;
  d.instr.run = load ? bulk_load : bulk_store;
  return true;
}

}  // namespace

bool decode_copies(Decoder &d) {
  if (d.op() != "cp" || !d.has("async")) return false;
  if (d.has("bulk")) return decode_bulk(d);
  Instr &i = d.instr;
  if (d.has("commit_group")) return i.run = copy_commit, true;
  if (d.has("wait_group")) return i.imm = i64(d.arg(0).bits), i.run = copy_wait, true;
  if (d.has("wait_all")) return i.imm = -1, i.run = copy_wait, true;
  if (d.has("mbarrier")) {
    if (!d.has("noinc")) return false;
    d.address(d.arg(0));
    return i.run = copy_arrive, true;
  }
  if (!d.has("shared") || !d.has("global")) return false;
  d.address(d.arg(0), 0);
  d.address(d.arg(1), 1);
  i.imm = i64(d.arg(2).bits);
  if (d.args.size() > 3) d.value(d.arg(3), false);
  i.run = copy_async;
  return true;
}

}  // namespace ptx
