// sync.cpp: branches and calls, warp-wide instructions, barriers of warps, blocks and clusters. PTX ISA,
// 9.7.12, 9.7.13.
#include <cstdio>

#include "decoder.hpp"
#include "races.hpp"

namespace ptx {

bool whole_warp(Warp &w, const Instr &i, u32 lanes) {
  if (w.fragment().lanes != w.alive) return false;
  if (lanes != w.alive) fault(w, i, "lanes %#x alone, of a warp that does this as one", lanes);
  return true;
}

int Block::threads_alive() const {
  int n = 0;
  for (const auto &w : warps) n += w->alive != 0 ? LANES : 0;
  return n;
}

namespace {

Slot none;

// ---- control ----
// Splits `lanes` off the current fragment. Returns the new fragment.
Fragment &part(Warp &w, u32 lanes) {
  w.fragment().lanes &= ~lanes;
  w.fragments.push_back(w.fragment());
  w.fragments.back().lanes = lanes;
  return w.fragments.back();
}
Next branch(Warp &w, const Instr &i, u32 lanes) {
  if (lanes != w.fragment().lanes) {
    part(w, lanes).pc = i.target;
    return Next::GO;
  }
  w.fragment().pc = i.target;
  return Next::JUMP;
}
void copy_frames(Warp &w, const std::vector<Copy> &copies, u32 lanes) {
  for (const Copy &c : copies)
    each(lanes, [&](int l) { memcpy(w.frame_of(l, c.to), w.frame_of(l, c.from), size_t(c.bytes)); });
}
Next call(Warp &w, const Instr &i, u32 lanes) {
  copy_frames(w, i.copies, lanes);
  Fragment &f = lanes == w.fragment().lanes ? w.fragment() : part(w, lanes);
  const bool parted = &f != &w.fragment();
  f.calls.push_back(f.pc);
  f.pc = i.target;
  return parted ? Next::GO : Next::JUMP;
}
Next leave(Warp &w, const Instr &, u32 lanes) {
  Fragment &f = w.fragment();
  if (f.calls.empty()) {
    w.alive &= ~lanes;
    f.lanes &= ~lanes;
    return f.lanes == 0 ? Next::END : Next::GO;
  }
  const bool whole = lanes == f.lanes;
  Fragment &g = whole ? f : part(w, lanes);
  const i32 from = g.calls.back();
  g.calls.pop_back();
  g.pc = from + 1;
  copy_frames(w, w.block->machine->launch.module->code[size_t(from)].copies_back, lanes);
  return whole ? Next::JUMP : Next::GO;
}
Next trap(Warp &w, const Instr &i, u32) { fault(w, i, "trap"); }
Next pass(Warp &, const Instr &, u32) { return Next::GO; }
Next take_registers(Warp &w, const Instr &i, u32 lanes) {
  w.registers = int(w.value(i.slot[0], __builtin_ctz(lanes)));
  return Next::GO;
}
Next sleep(Warp &, const Instr &, u32) { return Next::YIELD; }

// ---- warp-wide instructions ----
// Selects from `lanes` those with the same mask, which act together. Lanes with another mask may be at the
// same instruction and take a turn of their own. Returns false if some lanes of the mask have not arrived
// yet. PTX lets lanes meet at different but equal instructions; here they would wait forever, because
// compilers sometimes separate such lanes unintentionally.
bool together(Warp &w, const Instr &i, u32 &lanes, const Slot &mask) {
  for (u32 rest = lanes; rest != 0;) {
    const u32 named = u32(w.value(mask, first_lane(rest)));
    u32 alike = 0;
    each(rest, [&](int l) { alike |= u32(u32(w.value(mask, l)) == named) << l; });
    if ((named & alike) != alike)
      fault(w, i, "lanes %#x take part that the mask %#x does not name", alike & ~named, named);
    rest &= ~alike;
    if ((named & w.alive & ~alike) != 0) continue;
    if (alike != lanes) part(w, lanes & ~alike);
    lanes = alike;
    return true;
  }
  return false;
}
enum Shuffle : i64 { UP, DOWN, BUTTERFLY, INDEX };
Next shuffle(Warp &w, const Instr &i, u32 lanes) {  // d, p, a, b, c, mask
  if (!together(w, i, lanes, i.slot[5])) return Next::WAIT;
  u32 *d = w.at<u32>(i.slot[0]), valid = 0, from[LANES];
  memcpy(from, w.at<u32>(i.slot[2]), sizeof from);
  const u32 *b = w.at<u32>(i.slot[3]), *c = w.at<u32>(i.slot[4]);
  each(lanes, [&](int l) {
    const int segment = c[l] >> 8 & 31, clamp = c[l] & 31, by = int(b[l] & 31);
    const int most = (l & segment) | (clamp & ~segment), least = l & segment;
    int j = i.imm == UP ? l - by : i.imm == DOWN ? l + by : i.imm == BUTTERFLY ? l ^ by : (least | (by & ~segment));
    const bool ok = i.imm == UP ? j >= most : j <= most;
    if (!ok) j = l;
    if (!(lanes >> j & 1)) fault(w, i, "lane %d reads lane %d, which is not there", l, j);
    d[l] = from[j];
    valid |= u32(ok) << l;
  });
  if (i.slot[1].at != NO_SLOT) w.pred(i.slot[1]) = (w.pred(i.slot[1]) & ~lanes) | valid;
  return Next::GO;
}
enum Vote : i64 { ALL, ANY, UNIFORM, BALLOT };
Next vote(Warp &w, const Instr &i, u32 lanes) {  // d, a, mask
  if (!together(w, i, lanes, i.slot[2])) return Next::WAIT;
  const u32 set = (i.slot[1].negated ? ~w.pred(i.slot[1]) : w.pred(i.slot[1])) & lanes;
  if (i.imm == BALLOT) {
    each(lanes, [&](int l) { w.set(i.slot[0], l, set); });
    return Next::GO;
  }
  const bool yes = i.imm == ALL ? set == lanes : i.imm == ANY ? set != 0 : set == lanes || set == 0;
  u32 &d = w.pred(i.slot[0]);
  d = yes ? d | lanes : d & ~lanes;
  return Next::GO;
}
Next match(Warp &w, const Instr &i, u32 lanes) {  // d, p, a, mask; imm: all
  if (!together(w, i, lanes, i.slot[3])) return Next::WAIT;
  each(lanes, [&](int l) {
    u32 same = 0;
    each(lanes, [&](int k) { same |= u32(w.value(i.slot[2], k) == w.value(i.slot[2], l)) << k; });
    const bool yes = same == lanes;
    if (i.slot[0].at != NO_SLOT) w.set(i.slot[0], l, i.imm && !yes ? 0 : same);
    if (i.slot[1].at == NO_SLOT) return;
    u32 &p = w.pred(i.slot[1]);
    p = yes ? p | 1u << l : p & ~(1u << l);
  });
  return Next::GO;
}
Next reduce(Warp &w, const Instr &i, u32 lanes) {  // redux: d, a, mask
  if (!together(w, i, lanes, i.slot[2])) return Next::WAIT;
  const u32 *a = w.at<u32>(i.slot[1]);
  u32 x = a[first_lane(lanes)];
  each(lanes & (lanes - 1), [&](int l) {
    const u32 y = a[l];
    switch (i.imm) {
      case 0:
        x += y;
        break;
      case 1:
        x = i.type == S32 ? u32(std::min(i32(x), i32(y))) : std::min(x, y);
        break;
      case 2:
        x = i.type == S32 ? u32(std::max(i32(x), i32(y))) : std::max(x, y);
        break;
      case 3:
        x &= y;
        break;
      case 4:
        x |= y;
        break;
      default:
        x ^= y;
        break;
    }
  });
  each(lanes, [&](int l) { w.set(i.slot[0], l, x); });
  return Next::GO;
}
Next elect(Warp &w, const Instr &i, u32 lanes) {  // d, p, mask
  if (!together(w, i, lanes, i.slot[2])) return Next::WAIT;
  const int leader = first_lane(lanes);
  if (i.slot[0].at != NO_SLOT) each(lanes, [&](int l) { w.set(i.slot[0], l, u64(leader)); });
  u32 &p = w.pred(i.slot[1]);
  p = (p & ~lanes) | 1u << leader;
  return Next::GO;
}
Next active(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) { w.set(i.slot[0], l, lanes); });
  return Next::GO;
}
// The lanes of a mask may arrive at different instructions, and other lanes may wait for each other
// meanwhile. A lane that is not in at_warp_barrier any more has been released.
Next warp_barrier(Warp &w, const Instr &i, u32 lanes) {
  Fragment &f = w.fragment();
  const u32 mask = u32(w.value(i.slot[0], first_lane(lanes))), wanted = mask & w.alive;
  if ((mask & lanes) != lanes) fault(w, i, "lanes %#x come, which the mask %#x does not name", lanes, mask);
  if (!f.waiting) {
    w.at_warp_barrier |= lanes;
    f.waiting = true;
  }
  if ((wanted & ~w.at_warp_barrier) == 0) {
    w.at_warp_barrier &= ~wanted;
    if (have_come(w, mask)) in_order(w);
  }
  if ((w.at_warp_barrier & lanes) != 0) return Next::WAIT;
  f.waiting = false;
  return Next::GO;
}

// ---- blocks ----
NamedBarrier &barrier_of(Warp &w, const Instr &i, u32 lanes, int *threads) {
  const u64 name = w.value(i.slot[0], first_lane(lanes));
  if (name >= MAX_BARRIERS) fault(w, i, "barrier %llu: there are %d", (unsigned long long)name, MAX_BARRIERS);
  *threads = i.slot.size() > 1 ? int(w.value(i.slot[1], first_lane(lanes))) : w.block->threads_alive();
  if (*threads <= 0 || *threads % LANES != 0) fault(w, i, "a barrier of %d threads, which are no warps", *threads);
  return w.block->barrier[name];
}
void come(Warp &w, const Instr &i, NamedBarrier &b, int threads) {
  if (b.arrived > 0 && b.threads != threads && i.slot.size() > 1)
    fault(w, i, "a barrier of %d threads, of %d as others say", threads, b.threads);
  b.threads = threads;
  b.arrived += LANES;
  b.clocks.coming.join(w.clock);
  released(w);
}
void complete(Warp &w, NamedBarrier &b, int threads) {
  if (b.arrived < threads) return;
  b.arrived = 0;
  b.clocks.done = b.clocks.coming;
  ++b.phase;
  ++w.block->machine->progress;
}
Next barrier_arrive(Warp &w, const Instr &i, u32 lanes) {
  if (!whole_warp(w, i, lanes)) return Next::WAIT;
  int threads;
  NamedBarrier &b = barrier_of(w, i, lanes, &threads);
  come(w, i, b, threads);
  complete(w, b, threads);
  return Next::GO;
}
Next barrier_sync(Warp &w, const Instr &i, u32 lanes) {
  Fragment &f = w.fragment();
  if (!whole_warp(w, i, lanes)) return Next::WAIT;
  int threads;
  NamedBarrier &b = barrier_of(w, i, lanes, &threads);
  if (!f.waiting) {
    come(w, i, b, threads);
    f.waiting = true;
    f.token = b.phase;
  }
  if (f.token == b.phase) complete(w, b, threads);  // other threads may have ended since
  if (f.token == b.phase) return Next::WAIT;
  w.clock.join(b.clocks.done);
  in_order(w);
  f.waiting = false;
  return Next::GO;
}
// Returns whether all live lanes of the cluster have arrived.
bool cluster_is_there(const Cluster &c) {
  for (const Block *b : c.blocks)
    for (size_t k = 0; b != nullptr && k < b->warps.size(); ++k)
      if ((b->warps[k]->alive & ~b->warps[k]->at_cluster_barrier) != 0) return false;
  return true;
}
Next cluster_arrive(Warp &w, const Instr &i, u32 lanes) {  // imm: relaxed
  Cluster &c = *w.block->cluster;
  if ((w.at_cluster_barrier & lanes) != 0) fault(w, i, "arrives twice in a phase of the cluster's barrier");
  w.cluster_token = c.phase;
  w.at_cluster_barrier |= lanes;
  if (i.imm != 0) return Next::GO;
  c.clocks.coming.join(w.clock);
  released(w);
  return Next::GO;
}
Next cluster_wait(Warp &w, const Instr &, u32) {
  Cluster &c = *w.block->cluster;
  if (w.cluster_token == c.phase && cluster_is_there(c)) {
    for (Block *b : c.blocks)
      for (size_t k = 0; b != nullptr && k < b->warps.size(); ++k) b->warps[k]->at_cluster_barrier = 0;
    c.clocks.done = c.clocks.coming;
    ++c.phase;
    ++w.block->machine->progress;
  }
  if (w.cluster_token == c.phase) return Next::WAIT;
  w.clock.join(c.clocks.done);
  return Next::GO;
}

// ---- mbarriers: 20 bits of pending arrivals, 20 of arrivals per phase, 23 of pending bytes, and the phase's
// parity ----
struct Mbarrier {
  u32 pending, count;
  i32 bytes;
  u32 parity;
  static Mbarrier read(const u8 *p) {
    u64 x;
    memcpy(&x, p, sizeof x);
    return {u32(x & 0xfffff), u32(x >> 20 & 0xfffff), i32(i64(x << 1) >> 41), u32(x >> 63)};
  }
  void write(u8 *p) const {
    const u64 x = pending | u64(count) << 20 | (u64(bytes) & 0x7fffff) << 40 | u64(parity) << 63;
    memcpy(p, &x, sizeof x);
  }
};
void settle(Machine &m, const Place &p, Mbarrier b, const Clock &clock) {
  if (b.bytes <= -(1 << 20) || b.bytes >= 1 << 20)
    fail("mbarrier %u awaits %d bytes, more than it can count", p.at, b.bytes);
  Handover &clocks = p.block->mbarrier[p.at];
  clocks.coming.join(clock);
  if (b.pending == 0 && b.bytes == 0) {
    clocks.done = clocks.coming;
    b.pending = b.count;
    b.parity ^= 1;
    ++m.progress;
  }
  b.write(p.data());
}
void check(const Warp &w, const Instr &i, const Mbarrier &b) {
  if (b.count == 0 || b.count == 0xfffff || b.pending > b.count) fault(w, i, "this is no mbarrier");
}
Next mbarrier_init(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const Place p = shared_at(w, i, w.value(i.slot[0], l) + u64(i.offset[0]), 8, 8);
    const u32 count = u32(w.value(i.slot[1], l));
    if (count == 0 || count >= 0xfffff) fault(w, i, "a barrier of %u arrivals", count);
    race_write(w, i, p, 8);
    Mbarrier{count, count, 0, 0}.write(p.data());
  });
  return Next::GO;
}
Next mbarrier_arrive(Warp &w, const Instr &i, u32 lanes) {  // address, bytes or none
  each(lanes, [&](int l) {
    const Place p = barrier_at(w, i, w.value(i.slot[0], l) + u64(i.offset[0]));
    arrive(*w.block->machine, p, 1, i.slot.size() > 1 ? i32(w.value(i.slot[1], l)) : 0, known_to(w, lanes));
  });
  released(w);
  return Next::GO;
}
Next mbarrier_expect(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const Place p = barrier_at(w, i, w.value(i.slot[0], l) + u64(i.offset[0]));
    arrive(*w.block->machine, p, 0, i32(w.value(i.slot[1], l)), {});
  });
  return Next::GO;
}
Next mbarrier_ask(Warp &w, const Instr &i, u32 lanes) {  // p, address, parity; imm: a wait, which may sleep
  u32 done = 0;
  Place known = {};
  each(lanes, [&](int l) {
    const Place p = barrier_at(w, i, w.value(i.slot[1], l) + u64(i.offset[0]));
    if (Mbarrier::read(p.data()).parity == (w.value(i.slot[2], l) & 1)) return;
    done |= 1u << l;
    if (p.block != known.block || p.at != known.at) w.clock.join(p.block->mbarrier[p.at].done);
    known = p;
  });
  if (done == w.alive) in_order(w, known.block->mbarrier[known.at].done);
  u32 &d = w.pred(i.slot[0]);
  d = (d & ~lanes) | done;
  return i.imm && done != lanes ? Next::YIELD : Next::GO;
}

}  // namespace

Place barrier_at(const Warp &w, const Instr &i, u64 address) {
  const Place p = shared_at(w, i, address, 8, 8);
  race_read(w, i, p, 8);
  check(w, i, Mbarrier::read(p.data()));
  return p;
}

void report_barrier(const Warp &w, const Instr &i, int lane) {
  if (i.run != mbarrier_ask) return;
  const u64 at = w.value(i.slot[1], lane) + u64(i.offset[0]);
  const Mbarrier b = Mbarrier::read(shared_at(w, i, at, 8, 8).data());
  fprintf(stderr, "; mbarrier %llu: of %u arrivals %u are missing, and %d bytes; parity %u, asked for %llu",
          (unsigned long long)at, b.count, b.pending, b.bytes, b.parity, (unsigned long long)w.value(i.slot[2], lane));
}

namespace {

// ---- decoding ----
bool with(Decoder &d, Handler h, std::initializer_list<bool> wide = {}) {
  size_t k = 0;
  if (d.args.size() < wide.size()) return false;
  for (const bool x : wide) d.value(d.arg(k++), x);
  d.instr.run = h;
  return true;
}
// Appends the slots of d|p, either of which may be missing.
void pair(Decoder &d) {
  d.instr.slot.push_back(d.arg(0).kind == Arg::SINK ? none : d.arg(0).slot);
  d.instr.slot.push_back(d.arg(0).second);
}
bool decode_mbarrier(Decoder &d) {
  if (d.part(1) == "init") {
    d.address(d.arg(0));
    d.value(d.arg(1), false);
    d.instr.run = mbarrier_init;
    return true;
  }
  if (d.part(1) == "expect_tx") {
    d.address(d.arg(0));
    d.value(d.arg(1), false);
    d.instr.run = mbarrier_expect;
    return true;
  }
  if (d.part(1) == "arrive" && d.arg(0).kind == Arg::SINK) {
    d.address(d.arg(1));
    if (d.args.size() > 2) d.value(d.arg(2), false);
    d.instr.run = mbarrier_arrive;
    return (d.args.size() > 2) == d.has("expect_tx");
  }
  if ((d.part(1) == "try_wait" || d.part(1) == "test_wait") && d.has("parity")) {
    d.value(d.arg(0), false);
    d.address(d.arg(1));
    d.value(d.arg(2), false);
    d.instr.imm = d.part(1) == "try_wait";
    d.instr.run = mbarrier_ask;
    return true;
  }
  return false;
}
bool decode_barrier(Decoder &d) {
  if (d.has("warp")) return with(d, warp_barrier, {false});
  if (d.has("cluster")) {
    d.instr.imm = d.has("relaxed");
    return with(d, d.has("arrive") ? cluster_arrive : cluster_wait);
  }
  const Handler h = d.has("arrive") ? barrier_arrive : d.has("sync") ? barrier_sync : nullptr;
  if (h == nullptr) return false;
  for (const Arg &a : d.args) d.value(a, false);
  d.instr.run = h;
  return true;
}
bool decode_lanes(Decoder &d) {
  const std::string_view op = d.op();
  if (op == "shfl") {
    d.instr.imm = d.has("up") ? UP : d.has("down") ? DOWN : d.has("bfly") ? BUTTERFLY : INDEX;
    pair(d);
    for (size_t k = 1; k < 5; ++k) d.value(d.arg(k), false);
    d.instr.run = shuffle;
    return true;
  }
  if (op == "vote") {
    d.instr.imm = d.has("all") ? ALL : d.has("any") ? ANY : d.has("uni") ? UNIFORM : BALLOT;
    return with(d, vote, {false, false, false});
  }
  if (op == "match") {
    d.instr.imm = d.has("all");
    pair(d);
    d.value(d.arg(1), d.has("b64"));
    d.value(d.arg(2), false);
    d.instr.run = match;
    return true;
  }
  if (op == "redux") {
    static const char *const ops[] = {"add", "min", "max", "and", "or", "xor"};
    for (int k = 0; k < 6; ++k)
      if (d.has(ops[k])) d.instr.imm = k;
    d.instr.type = d.last_type();
    return with(d, reduce, {false, false, false});
  }
  if (op == "elect") {
    pair(d);
    d.value(d.arg(1), false);
    d.instr.run = elect;
    return d.instr.slot[1].at != NO_SLOT;
  }
  if (op == "activemask") return with(d, active, {false});
  return false;
}

}  // namespace

void arrive(Machine &m, const Place &barrier, u32 count, i32 more_bytes, const Clock &clock) {
  Mbarrier b = Mbarrier::read(barrier.data());
  if (b.pending < count) fail("mbarrier %u: more arrivals than the barrier awaits, which are %u", barrier.at, b.count);
  b.bytes += more_bytes;
  b.pending -= count;
  settle(m, barrier, b, clock);
}
void complete_bytes(Machine &m, const Place &barrier, i32 bytes, const Clock &clock) {
  Mbarrier b = Mbarrier::read(barrier.data());
  b.bytes -= bytes;
  settle(m, barrier, b, clock);
}

bool decode_sync(Decoder &d) {
  const std::string_view op = d.op();
  if (op == "bra") return d.args.size() == 1 && d.arg(0).kind == Arg::NAME && with(d, branch);
  if (op == "call") return with(d, call);
  if (op == "ret" || op == "exit") return with(d, leave);
  if (op == "trap") return with(d, trap);
  if (op == "brkpt" || op == "griddepcontrol") return with(d, pass);
  if (op == "setmaxnreg") return with(d, take_registers, {false});
  if (op == "nanosleep") return with(d, sleep);
  if (op == "bar" || op == "barrier") return decode_barrier(d);
  if (op == "mbarrier") return decode_mbarrier(d);
  return decode_lanes(d);
}

}  // namespace ptx
