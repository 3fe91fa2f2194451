// races.cpp: finds races in shared memory with vector clocks, as in Flanagan and Freund, "FastTrack:
// efficient and precise dynamic race detection", PLDI 2009. Each warp counts its own releases, and knows
// those of other warps that it has waited for. An access is ordered after another one if its warp knows the
// release that followed the other one.
//
// A block's TMA unit counts as one more warp. Its writes are ordered before threads that have waited for the
// mbarrier that counts the bytes. Operands of wgmma and bulk stores count as being read until the operation
// has been waited for. Async covers the case that earlier work ends later.
//
// With LUATTN_PTX_RACES=2 a release of some lanes of a warp orders what other lanes accessed only if something has
// ordered the lanes since: bar.warp.sync, a barrier for which all of them waited, or an mbarrier at which they had
// arrived. elect, shuffles, votes and wgmma make lanes meet, and order no accesses. What the first lane accesses alone, which
// elect chooses too, counts as of one more warp, and its releases order that. If other lanes have accessed shared memory since,
// a release counts for nothing else since then. What a warp has waited for (wgmma, bulk stores) is no lane's, and counts as
// read when the lanes were last in order.
#include <cstdlib>

#include "races.hpp"

namespace ptx {
namespace {

enum : u32 { STILL = ~0u };  // a read is in progress
constexpr u32 CELL = 2;      // bytes; smaller accesses are not distinguished

bool wanted() { return setting("LUATTN_PTX_RACES", 1) != 0; }
bool tells_lanes_apart;  // as the environment had it when the latest block began

struct Cells {
  u32 first, end;
};
Cells cells(u32 at, size_t bytes) { return {(at + CELL - 1) / CELL, u32((at + bytes) / CELL)}; }

[[noreturn]] void race(const Warp &w, const Instr &i, const Place &p, u32 cell, const char *what, int entity) {
  const Shadow &s = *p.block->shadow;
  const int warps = int(p.block->warps.size());
  char who[64];
  entity = s.owner(entity);
  if (entity >= s.warps)
    snprintf(who, sizeof who, "the copy engine of block %d of the cluster", entity - s.warps);
  else
    snprintf(who, sizeof who, "warp %d of block %d of the cluster", entity % warps, entity / warps);
  fault(w, i, "shared address %u %s by %s, and nothing orders the two", cell * CELL, what, who);
}

bool knows_write(const Place &p, u32 cell, const Clock &known, int me) {
  const Shadow::Write &x = p.block->shadow->write[cell];
  return x.when == 0 || p.block->shadow->owner(x.who) == me || x.when <= known[x.who];
}
void check_write_before(const Warp &w, const Instr &i, const Place &p, u32 cell, const Clock &known, int me,
                        const char *what) {
  if (!knows_write(p, cell, known, me)) race(w, i, p, cell, what, p.block->shadow->write[cell].who);
}
// Generic writes are visible to the tensor cores and TMA only after a fence of the writing warp.
void check_fence(const Warp &w, const Instr &i, const Place &p, u32 cell, const Clock &known, const char *what) {
  const Shadow &s = *p.block->shadow;
  const Shadow::Write &x = s.write[cell];
  const int owner = s.owner(x.who);
  if (x.when == 0 || owner >= s.warps) return;
  if (x.fences == known.fences[owner]) race(w, i, p, cell, what, owner);
}
// `as`: the entity whose count `when` is.
void note_write(const Warp &w, const Instr &i, const Place &p, size_t bytes, const Clock &known, int as, u32 when) {
  Shadow &s = *p.block->shadow;
  const int me = s.owner(as);
  const Cells c = cells(p.at, bytes);
  for (u32 cell = c.first; cell < c.end; ++cell) {
    check_write_before(w, i, p, cell, known, me, "is written, was written before");
    if (me >= s.warps)
      check_fence(w, i, p, cell, known, "is written asynchronously, was written without fence.proxy.async since");
    u32 *read = &s.read[size_t(cell) * size_t(s.entities)];
    for (int e = 0; e < s.entities; ++e)
      if (read[e] > known[e] && (s.owner(e) != me || read[e] == STILL))
        race(w, i, p, cell, "is written, was read before", e);
    s.write[cell] = {when, u16(as), w.clock.fences[w.entity]};
  }
}

}  // namespace

void begin_races(Block &b) {
  tells_lanes_apart = setting("LUATTN_PTX_RACES", 1) == 2;
  if (!wanted()) return;
  const int blocks = int(b.machine->launch.function->cluster), warps = int(b.warps.size()) * blocks;
  b.shadow = std::make_unique<Shadow>();
  b.shadow->warps = warps;
  b.shadow->units = warps + blocks;
  b.shadow->entities = warps + blocks + (tells_lanes_apart ? warps : 0);
  if (b.shadow->entities > MAX_ENTITIES)
    fail("races are looked for among %d warps and copy engines at most", MAX_ENTITIES);
  const size_t n = b.shared.size() / CELL + 1;
  b.shadow->write.reset(static_cast<Shadow::Write *>(calloc(n, sizeof(Shadow::Write))));
  b.shadow->read.reset(static_cast<u32 *>(calloc(n * size_t(b.shadow->entities), sizeof(u32))));
  for (auto &w : b.warps) {
    w->entity = b.rank * int(b.warps.size()) + w->index;
    w->first_lane = tells_lanes_apart ? b.shadow->units + w->entity : w->entity;
    w->clock[w->entity] = w->clock[w->first_lane] = 1;
  }
}

// Cluster kernels (sm90/bwd_d256/bwd_d256.cuh) compute products of tiles that do not exist, without ordering,
// and drop the results. In such kernels an operand that is not known to have arrived becomes NaN, and so does
// a result whose operand is overwritten too early.
bool multiplies_nothing(const Warp &w) { return w.block->cluster->blocks.size() > 1; }

void released(Warp &w) {
  ++w.clock[w.entity];
  if (tells_lanes_apart) ++w.clock[w.first_lane];
}
void touched(Warp &w, u32 lanes) {
  w.is_first = lanes == 1;
  if (lanes == 1)
    w.first_touched = true;
  else
    w.touched |= lanes;
}
void in_order(Warp &w) {
  w.ordered = w.clock[w.entity], w.first_ordered = w.clock[w.first_lane];
  w.touched = 0, w.first_touched = false;
  released(w);
}
void in_order(Warp &w, const Clock &clock) {
  w.ordered = std::max(w.ordered, clock[w.entity]);
  w.first_ordered = std::max(w.first_ordered, clock[w.first_lane]);
}
bool have_come(const Warp &w, u32 lanes) { return ((w.touched | u32(w.first_touched)) & ~lanes) == 0; }
Clock known_to(const Warp &w, u32 lanes) {
  Clock known = w.clock;
  if (!tells_lanes_apart) return known;
  if ((w.touched & ~lanes) != 0) known[w.entity] = w.ordered;
  if (w.first_touched && (lanes & 1) == 0) known[w.first_lane] = w.first_ordered;
  return known;
}
// Whose access the warp's latest one is.
int accessor(const Warp &w) { return w.is_first ? w.first_lane : w.entity; }
void fenced(Warp &w) { ++w.clock.fences[w.entity]; }

void race_read(const Warp &w, const Instr &i, const Place &p, size_t bytes, Proxy proxy) {
  if (p.block->shadow == nullptr) return;
  Shadow &s = *p.block->shadow;
  const Cells c = cells(p.at, bytes);
  for (u32 cell = c.first; cell < c.end; ++cell) {
    check_write_before(w, i, p, cell, w.clock, w.entity, "is read, was written before");
    if (proxy == Proxy::ASYNC)
      check_fence(w, i, p, cell, w.clock, "is read asynchronously, was written without fence.proxy.async since");
    const int as = proxy == Proxy::ASYNC ? w.entity : accessor(w);
    u32 &read = s.read[size_t(cell) * size_t(s.entities) + size_t(as)];
    if (read != STILL) read = proxy == Proxy::ASYNC ? u32(STILL) : w.clock[as];
  }
}
bool race_operand(const Warp &w, const Instr &i, const Place &p) {
  if (p.block->shadow == nullptr) return true;
  if (!multiplies_nothing(w)) {
    race_read(w, i, p, 16, Proxy::ASYNC);
    return true;
  }
  for (u32 cell = p.at / CELL; cell < (p.at + 16) / CELL; ++cell)
    if (!knows_write(p, cell, w.clock, w.entity)) return false;
  return true;
}
void race_operand_done(const Warp &w, const Place &p) {
  if (!multiplies_nothing(w)) race_read_done(w, p, 16);
}
void race_read_done(const Warp &w, const Place &p, size_t bytes) {
  if (p.block->shadow == nullptr) return;
  Shadow &s = *p.block->shadow;
  const Cells c = cells(p.at, bytes);
  for (u32 cell = c.first; cell < c.end; ++cell)
    s.read[size_t(cell) * size_t(s.entities) + size_t(w.entity)] = tells_lanes_apart ? w.ordered : w.clock[w.entity];
}
void race_write(const Warp &w, const Instr &i, const Place &p, size_t bytes) {
  if (p.block->shadow != nullptr) note_write(w, i, p, bytes, w.clock, accessor(w), w.clock[accessor(w)]);
}
Clock race_copy(Warp &w, const Instr &i, const Place &p, size_t bytes) {
  Clock seen;  // the copy's clock only, because the warp waits only for the copy
  if (p.block->shadow == nullptr) return seen;
  const int engine = p.block->shadow->warps + w.block->rank;
  const u32 when = ++w.block->copies;
  note_write(w, i, p, bytes, w.clock, engine, when);
  seen[engine] = when;
  return seen;
}

}  // namespace ptx
