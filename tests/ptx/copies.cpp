// copies.cpp: cp.async, and the copy engine: bulk copies, reductions and tensors by maps. PTX ISA, 9.7.9.25
// to 9.7.9.27.
#include "copies.hpp"

namespace ptx {
namespace {

// ---- cp.async: slots: to, from, and bytes that count or none; imm: bytes ----
void finish(const Warp &w, const LaneCopy &c) {
  u8 *to = w.block->shared.data() + c.to;
  if (c.valid > 0) memcpy(to, c.from, c.valid);
  memset(to + c.valid, 0, size_t(c.bytes - c.valid));
}
void finish(const Warp &w, std::vector<LaneCopy> &copies) {
  for (const LaneCopy &c : copies) finish(w, c);
  copies.clear();
}
void finish_all(Warp &w, int lane) {
  auto &groups = w.copies[lane];
  for (auto &g : groups.closed) finish(w, g);
  groups.closed.clear();
  finish(w, groups.open);
}
Next copy_async(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const u32 to = u32(w.value(i.slot[0], l) + u64(i.offset[0]));
    const u8 *from = reinterpret_cast<const u8 *>(w.value(i.slot[1], l) + u64(i.offset[1]));
    const u64 valid = i.slot.size() > 2 ? w.value(i.slot[2], l) : u64(i.imm);
    if (valid > u64(i.imm)) fault(w, i, "%llu of %lld bytes", (unsigned long long)valid, (long long)i.imm);
    race_write(w, i, shared_at(w, i, to, size_t(i.imm), size_t(i.imm)), size_t(i.imm));
    if (valid > 0) check_global(w, i, from, valid, size_t(i.imm));
    const LaneCopy c = {to, from, u8(i.imm), u8(valid)};
    if (w.block->machine->does_now())
      finish(w, c);
    else
      w.copies[l].open.push_back(c);
  });
  return Next::GO;
}
Next copy_commit(Warp &w, const Instr &, u32 lanes) {
  each(lanes, [&](int l) {
    w.copies[l].closed.push_back(std::move(w.copies[l].open));
    w.copies[l].open.clear();
  });
  return Next::GO;
}
Next copy_wait(Warp &w, const Instr &i, u32 lanes) {  // imm < 0: for all
  each(lanes, [&](int l) {
    if (i.imm < 0) return finish_all(w, l);
    auto &closed = w.copies[l].closed;
    while (i64(closed.size()) > i.imm) {
      finish(w, closed.front());
      closed.pop_front();
    }
  });
  return Next::GO;
}
Next copy_arrive(Warp &w, const Instr &i, u32 lanes) {  // cp.async.mbarrier.arrive.noinc
  each(lanes, [&](int l) {
    const Place barrier = shared_at(w, i, w.value(i.slot[0], l) + u64(i.offset[0]), 8, 8);
    Machine &m = *w.block->machine;
    m.later([&w, &m, l, barrier, clock = w.clock] {
      finish_all(w, l);
      arrive(m, barrier, 1, 0, clock);
    });
  });
  released(w);
  return Next::GO;
}

// ---- bulk ----
void keep(Warp &w, int lane, Bulk work) {
  if (w.block->machine->does_now()) {
    work.run();
    work.run = [] {};
  }
  w.bulk[lane].open.push_back(std::move(work));
}
u32 checked_bytes(const Warp &w, const Instr &i, const Slot &s, int lane) {
  const u32 bytes = u32(w.value(s, lane));
  if (bytes % 16 != 0) fault(w, i, "a bulk copy of %u bytes, which is no multiple of 16", bytes);
  return bytes;
}
// What is read of shared memory until the barrier's phase ends. Nobody tells this warp when, so that it
// counts as read at once.
const u8 *source_at(Warp &w, const Instr &i, u64 address, size_t bytes) {
  const Place p = shared_at(w, i, address, bytes, 16);
  race_read(w, i, p, bytes, Proxy::ASYNC);
  race_read_done(w, p, bytes);
  return p.data();
}
// To shared memory from global or another block's: to, from, bytes, barrier.
Next bulk_load(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const u32 bytes = checked_bytes(w, i, i.slot[2], l);
    const Place to = shared_at(w, i, w.value(i.slot[0], l) + u64(i.offset[0]), bytes, 16);
    const u64 source = w.value(i.slot[1], l) + u64(i.offset[1]);
    const u8 *from = i.from_shared ? source_at(w, i, source, bytes) : reinterpret_cast<const u8 *>(source);
    if (!i.from_shared) check_global(w, i, from, bytes, 16);
    const Place barrier = shared_at(w, i, w.value(i.slot[3], l) + u64(i.offset[2]), 8, 8);
    Machine &m = *w.block->machine;
    m.later([=, &m, clock = race_copy(w, i, to, bytes)] {
      memcpy(to.data(), from, bytes);
      complete_bytes(m, barrier, i32(bytes), clock);
    });
  });
  return Next::GO;
}
// To global memory: to, from, bytes.
Next bulk_store(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const u32 bytes = checked_bytes(w, i, i.slot[2], l);
    u8 *to = reinterpret_cast<u8 *>(w.value(i.slot[0], l) + u64(i.offset[0]));
    const Place place = shared_at(w, i, w.value(i.slot[1], l) + u64(i.offset[1]), bytes, 16);
    race_read(w, i, place, bytes, Proxy::ASYNC);
    check_global(w, i, to, bytes, 16);
    const auto work = [=, add = i.adds] {
      const u8 *from = place.data();
      if (!add) return void(memcpy(to, from, bytes));
      for (u32 k = 0; k < bytes; k += 4) {
        float x, y;
        memcpy(&x, to + k, 4), memcpy(&y, from + k, 4);
        x += y;
        memcpy(to + k, &x, 4);
      }
    };
    keep(w, l, {work, place, bytes});
  });
  return Next::GO;
}
Next bulk_commit(Warp &w, const Instr &, u32 lanes) {
  each(lanes, [&](int l) {
    w.bulk[l].closed.push_back(std::move(w.bulk[l].open));
    w.bulk[l].open.clear();
  });
  return Next::GO;
}
Next bulk_wait(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    auto &closed = w.bulk[l].closed;
    while (i64(closed.size()) > i.imm) {
      for (const Bulk &work : closed.front()) {
        work.run();
        race_read_done(w, work.from, work.bytes);
      }
      closed.pop_front();
    }
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
  return map;
}
// Calls f(global element or NULL, bytes into the box) for each row of the box's innermost axis, 16 bytes at a
// time.
template <class F>
void each_chunk(const TensorMap &map, const i32 *first, F f) {
  const u32 row_bytes = map.box[0] * map.elem;
  u32 rows = 1;
  for (u32 a = 1; a < map.rank; ++a) rows *= map.box[a];
  for (u32 row = 0; row < rows; ++row) {
    u8 *at = map.data;
    bool inside = true;
    u32 rest = row;
    for (u32 a = 1; a < map.rank; ++a) {
      const i64 k = i64(first[a]) + rest % map.box[a];
      rest /= map.box[a];
      inside = inside && k >= 0 && u64(k) < map.size[a];
      at += k * i64(map.stride[a - 1]);
    }
    for (u32 byte = 0; byte < row_bytes; byte += 16) {
      const i64 k = i64(first[0]) + byte / map.elem;
      // Sizes and coordinates are multiples of 8 elements here; the map's maker checks it.
      f(inside && k >= 0 && u64(k) < map.size[0] ? at + k * map.elem : nullptr, row * row_bytes + byte);
    }
  }
}
// The swizzle of 128 bytes: of the address, bits 4 to 6 by bits 7 to 9.
u8 *swizzled(const Place &p, u32 distance) {
  const u32 address = p.at + distance;
  return p.block->shared.data() + (address ^ (address >> 7 & 7) << 4);
}

// Slots: to, map, coordinates, barrier.
Next tensor_load(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const TensorMap map = map_at(w, i, w.value(i.slot[1], l) + u64(i.offset[1]));
    const u32 bytes = map.box_bytes();
    const Place to = shared_at(w, i, w.value(i.slot[0], l) + u64(i.offset[0]), bytes, 128);
    const Place barrier = shared_at(w, i, w.value(i.slot.back(), l) + u64(i.offset[2]), 8, 8);
    std::array<i32, 5> first = {};
    if (i.slot.size() != map.rank + 3u) fault(w, i, "a map of %u axes", map.rank);
    for (u32 a = 0; a < map.rank; ++a) first[a] = i32(w.value(i.slot[2 + a], l));
    each_chunk(map, first.data(), [&](u8 *from, u32) {
      if (from != nullptr) check_global(w, i, from, 16, 16);
    });
    Machine &m = *w.block->machine;
    m.later([=, &m, clock = race_copy(w, i, to, bytes)] {
      each_chunk(map, first.data(), [&](const u8 *from, u32 at) {
        u8 *chunk = swizzled(to, at);
        if (from != nullptr)
          memcpy(chunk, from, 16);
        else
          memset(chunk, 0, 16);
      });
      complete_bytes(m, barrier, i32(bytes), clock);
    });
  });
  return Next::GO;
}
// Slots: map, coordinates, from.
Next tensor_store(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const TensorMap map = map_at(w, i, w.value(i.slot[0], l) + u64(i.offset[0]));
    const Place from = shared_at(w, i, w.value(i.slot.back(), l) + u64(i.offset[1]), map.box_bytes(), 128);
    race_read(w, i, from, map.box_bytes(), Proxy::ASYNC);
    std::array<i32, 5> first = {};
    if (i.slot.size() != map.rank + 2u) fault(w, i, "a map of %u axes", map.rank);
    for (u32 a = 0; a < map.rank; ++a) first[a] = i32(w.value(i.slot[1 + a], l));
    each_chunk(map, first.data(), [&](u8 *to, u32) {
      if (to != nullptr) check_global(w, i, to, 16, 16);
    });
    const auto work = [=] {
      each_chunk(map, first.data(), [&](u8 *to, u32 at) {
        if (to != nullptr) memcpy(to, swizzled(from, at), 16);
      });
    };
    keep(w, l, {work, from, map.box_bytes()});
  });
  return Next::GO;
}

// ---- which ----
bool decode_tensor(Decoder &d) {
  const bool load = d.has("mbarrier::complete_tx::bytes");
  if (load) d.address(d.args[0], 0);
  const Arg &where = d.args[load ? 1 : 0];
  d.address(where, load ? 1 : 0);
  for (const Arg &a : where.coords) d.value(a, false);
  d.address(d.args[load ? 2 : 1], load ? 2 : 1);
  if (d.args.size() != (load ? 3u : 2u)) return false;
  d.instr.run = load ? tensor_load : tensor_store;
  return true;
}
bool decode_bulk(Decoder &d) {
  if (d.has("tensor")) return d.op() == "cp" && decode_tensor(d);
  if (d.has("commit_group")) return d.instr.run = bulk_commit, true;
  if (d.has("wait_group")) return d.instr.imm = i64(d.args[0].bits), d.instr.run = bulk_wait, true;
  const bool load = d.has("mbarrier::complete_tx::bytes");
  d.address(d.args[0], 0);
  d.address(d.args[1], 1);
  d.value(d.args[2], false);
  if (load) d.address(d.args[3], 2);
  d.instr.from_shared = d.has("shared::cta");
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
  if (d.has("wait_group")) return i.imm = i64(d.args[0].bits), i.run = copy_wait, true;
  if (d.has("wait_all")) return i.imm = -1, i.run = copy_wait, true;
  if (d.has("mbarrier")) {
    if (!d.has("noinc")) return false;
    d.address(d.args[0]);
    return i.run = copy_arrive, true;
  }
  if (!d.has("shared") || !d.has("global")) return false;
  d.address(d.args[0], 0);
  d.address(d.args[1], 1);
  i.imm = i64(d.args[2].bits);
  if (d.args.size() > 3) d.value(d.args[3], false);
  i.run = copy_async;
  return true;
}

}  // namespace ptx
