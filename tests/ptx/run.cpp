// run.cpp: schedules warps, and the diverged fragments of a warp.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "races.hpp"

namespace ptx {
namespace {

enum { TURN = 4096, IDLE_ROUNDS = 20000 };

// Diverged lanes reconverge when the fragment that is behind arrives, so the innermost and earliest fragment
// runs first.
bool choose(Warp &w, u32 blocked) {
  size_t best = w.fragments.size();
  for (size_t k = 0; k < w.fragments.size(); ++k) {
    if (blocked >> k & 1 || w.fragments[k].held > 0) continue;
    const Fragment &f = w.fragments[k];
    if (best == w.fragments.size()) {
      best = k;
      continue;
    }
    const Fragment &b = w.fragments[best];
    if (f.calls.size() > b.calls.size() || (f.calls.size() == b.calls.size() && f.pc < b.pc)) best = k;
  }
  w.current = best;
  return best < w.fragments.size();
}
// Joins fragments that are at the same instruction. Returns whether any were joined.
bool meet(Warp &w) {
  bool any = false;
  for (size_t a = 0; a < w.fragments.size(); ++a)
    for (size_t b = a + 1; b < w.fragments.size();) {
      Fragment &x = w.fragments[a], &y = w.fragments[b];
      if (x.pc != y.pc || x.waiting || y.waiting || x.held > 0 || y.held > 0 || x.calls != y.calls) {
        ++b;
        continue;
      }
      x.lanes |= y.lanes;
      w.fragments.erase(w.fragments.begin() + i64(b));
      any = true;
    }
  return any;
}

// Holds some lanes of a converged warp back for a while.
void hold_back(Warp &w) {
  std::mt19937 &random = w.block->machine->random;
  const u32 lanes = w.fragments[0].lanes & u32(random());
  if (lanes == 0 || lanes == w.fragments[0].lanes || w.fragments[0].waiting) return;
  w.fragments[0].lanes &= ~lanes;
  w.fragments.push_back(w.fragments[0]);
  w.fragments[1].lanes = lanes;
  w.fragments[1].held = 1 + int(random() % 50);
}
void let_go(Warp &w) {
  for (Fragment &f : w.fragments) f.held = 0;
}

// Executes one instruction of the current fragment.
Next step(Warp &w, const std::vector<Instr> &code) {
  Fragment &f = w.fragment();
  const Instr &i = code[size_t(f.pc)];
  u32 lanes = f.lanes;
  if (i.guard.at != NO_SLOT) lanes &= i.guard.negated ? ~w.pred(i.guard) : w.pred(i.guard);
  const size_t current = w.current;
  const Next next = lanes == 0 ? Next::GO : i.run(w, i, lanes);
  if (next == Next::GO || next == Next::YIELD) ++w.fragments[current].pc;
  return next;
}

// Runs a warp until all of its lanes wait.
void turn(Warp &w) {
  const std::vector<Instr> &code = w.block->machine->launch.module->code;
  u32 blocked = 0;
  if (w.fragments.size() > 1 && w.block->machine->random() % 4 == 0)
    blocked = 1u << w.block->machine->random() % w.fragments.size();  // the fragment might wait forever
  for (int n = 0; n < TURN && !w.fragments.empty(); ++n) {
    if (w.fragments.size() > 1 || blocked != 0) {
      for (Fragment &f : w.fragments) f.held -= f.held > 0;
      if (meet(w)) blocked = 0;
      if (!choose(w, blocked)) {
        let_go(w);
        if (!choose(w, blocked)) return;
      }
    } else {
      w.current = 0;
      const u32 seldom = w.block->machine->parts;
      if (seldom != 0 && w.block->machine->random() % seldom == 0) hold_back(w);
    }
    switch (step(w, code)) {
      case Next::GO:
      case Next::JUMP:
        break;
      case Next::YIELD:
      case Next::WAIT:
        blocked |= 1u << w.current;
        break;
      case Next::END:
        w.fragments.erase(w.fragments.begin() + i64(w.current));
        blocked = 0;
        ++w.block->machine->progress;
        break;
    }
  }
}

// Returns the text of a line of the module.
std::string text_of(const Module &m, int line) {
  const char *text = m.text.c_str();
  for (int k = 1; k < line && *text; ++text) k += *text == '\n';
  while (*text == ' ' || *text == '\t') ++text;
  return {text, strcspn(text, "\n")};
}

void report_waiting(const Machine &m) {
  for (const auto &b : m.resident)
    for (const auto &w : b->warps)
      for (const Fragment &f : w->fragments) {
        const Instr &i = m.launch.module->code[size_t(f.pc)];
        fprintf(stderr, "  block (%u, %u, %u), warp %d, lanes %#x: line %d: %s", b->id[0], b->id[1], b->id[2], w->index,
                f.lanes, i.line, text_of(*m.launch.module, i.line).c_str());
        report_barrier(*w, m.launch.module->code[size_t(std::max(0, f.pc - 1))], first_lane(f.lanes));
        fputc('\n', stderr);
      }
}

// ---- blocks ----
void fill(u8 *at, u64 value, bool wide) {
  for (int l = 0; l < LANES; ++l) {
    if (wide)
      memcpy(at + 8 * l, &value, 8);
    else
      memcpy(at + 4 * l, &value, 4);
  }
}
void begin_warp(Warp &w, const Launch &how) {
  const Module &m = *how.module;
  const u32 constant[] = {0,
                          0,
                          0,
                          how.block[0],
                          how.block[1],
                          how.block[2],
                          w.block->id[0],
                          w.block->id[1],
                          w.block->id[2],
                          how.grid[0],
                          how.grid[1],
                          how.grid[2]};
  for (int k = NTID_X; k <= NCTAID_Z; ++k) fill(w.memory + narrow_slot(k), constant[k], false);
  fill(w.memory + narrow_slot(CLUSTER_RANK), u64(w.block->rank), false);
  fill(w.memory + wide_slot(PARAM_BASE), u64(how.params), true);
  const i32 dynamic = SHARED_FIRST + (m.shared_bytes + 1023) / 1024 * 1024;
  fill(w.memory + wide_slot(DYNAMIC_BASE), u64(dynamic), true);
  for (const auto &[slot, bits] : m.initial) fill(w.memory + slot.at, bits, slot.wide);
  w.frame.assign(size_t(LANES) * size_t((m.frame_bytes + 63) / 64 * 64), 0xff);
  for (u32 l = 0; l < LANES; ++l) {
    const u32 thread = u32(w.index) * LANES + l;
    const u32 id[] = {thread % how.block[0], thread / how.block[0] % how.block[1],
                      thread / how.block[0] / how.block[1]};
    for (int k = 0; k < 3; ++k) w.at<u32>({narrow_slot(TID_X + k)})[l] = id[k];
    w.at<u32>({narrow_slot(LANE)})[l] = l;
    w.at<u64>({wide_slot(FRAME_BASE), true})[l] = u64(w.frame_of(int(l), 0));
  }
  w.fragments.push_back({~0u, how.function->first, {}});
}

std::vector<std::unique_ptr<u8[]>> spare;  // recycled memory of warps, because new memory is slow to touch
size_t spare_bytes;

std::unique_ptr<Block> begin_block(Machine &m, const u32 id[3]) {
  const Launch &how = m.launch;
  auto b = std::make_unique<Block>();
  b->machine = &m;
  memcpy(b->id, id, sizeof b->id);
  const size_t fixed = SHARED_FIRST + (size_t(how.module->shared_bytes) + 1023) / 1024 * 1024;
  b->shared.assign(fixed + how.shared_bytes, 0xff);
  const u32 warps = how.block[0] * how.block[1] * how.block[2] / LANES;
  const size_t bytes = size_t(how.module->slot_bytes + 63) / 64 * 64;
  if (spare_bytes != bytes * warps) spare.clear();
  spare_bytes = bytes * warps;
  if (spare.empty()) { spare.push_back(std::make_unique_for_overwrite<u8[]>(spare_bytes + 64)); }
  b->memory = std::move(spare.back());
  spare.pop_back();
  u8 *first = b->memory.get() + (-uintptr_t(b->memory.get()) & 63);
  for (u32 k = 0; k < warps; ++k) {
    auto w = std::make_unique<Warp>();
    w->block = b.get();
    w->index = int(k);
    w->memory = first + bytes * k;
    b->warps.push_back(std::move(w));
  }
  return b;
}
void begin_cluster(Machine &m, u64 number) {
  const Launch &how = m.launch;
  const int size = how.function->cluster;
  auto cluster = std::make_shared<Cluster>();
  for (int rank = 0; rank < size; ++rank) {
    const u64 k = number * u64(size) + u64(rank);
    const u32 id[] = {u32(k % how.grid[0]), u32(k / how.grid[0] % how.grid[1]), u32(k / how.grid[0] / how.grid[1])};
    std::unique_ptr<Block> b = begin_block(m, id);
    b->cluster = cluster;
    b->rank = rank;
    cluster->blocks.push_back(b.get());
    for (auto &w : b->warps) begin_warp(*w, how);
    begin_races(*b);
    m.resident.push_back(std::move(b));
  }
}
[[noreturn]] void fail_at_end(const Block &b, const char *what) {
  fail("%s, block (%u, %u, %u) ends %s", b.machine->launch.function->name.c_str(), b.id[0], b.id[1], b.id[2], what);
}
// Ends a block and releases its shared memory. Data already read from it may be written later.
// setmaxnreg hands on registers that the block has got at its launch: 65536 shared out to its threads, in eights. An increase
// waits until others have given back as many.
void check_registers(const Block &b) {
  const int warps = int(b.warps.size()), most = std::min(65536 / (32 * warps) / 8 * 8, 256);
  int all = 0;
  for (const auto &w : b.warps) all += w->registers > 0 ? w->registers : most;
  if (all > warps * most)
    fail_at_end(b, "with more registers than it was launched with: setmaxnreg would wait for ever");
}
void end_block(Block &b) {
  Machine &m = *b.machine;
  check_registers(b);
  for (size_t k = 0; k < b.warps.size(); ++k) {
    Warp &w = *b.warps[k];
    if (w.products_seen != b.warps[k / 4 * 4]->products_seen)
      fail_at_end(b, "with warps of one group that have not issued the same wgmma");
    for (int l = 0; l < LANES; ++l) {
      if (!w.bulk[l].open.empty()) fail_at_end(b, "with a bulk group that it has not closed");
      for (auto &group : w.bulk[l].closed)
        for (Bulk &work : group) {
          if (work.may_read) fail_at_end(b, "while a bulk copy may still read its shared memory");
          if (work.has_written) continue;
          m.later({[work = std::move(work)] { work.write(work.data.data()); }, {}});
        }
    }
  }
  for (const Pending &work : m.pending)
    if (work.blocks[0] == &b || work.blocks[1] == &b) fail_at_end(b, "with copies on their way");
  b.cluster->blocks[size_t(b.rank)] = nullptr;
  spare.push_back(std::move(b.memory));
}

}  // namespace

int setting(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text != nullptr && *text != 0 ? atoi(text) : otherwise;
}
int multiprocessors() { return setting("LUATTN_PTX_BLOCKS", 8); }

void fault(const Warp &w, const Instr &i, const char *format, ...) {
  char what[512];
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  const Block &b = *w.block;
  const Launch &how = b.machine->launch;
  fail("%s, block (%u, %u, %u), warp %d: %s\n  line %d: %s", how.function->name.c_str(), b.id[0], b.id[1], b.id[2],
       w.index, what, i.line, text_of(*how.module, i.line).c_str());
}

void Machine::later(Pending work) {
  if (does_now()) return work.run();
  pending.push_back(std::move(work));
}

void Machine::run() {
  const int size = launch.function->cluster;
  const u64 clusters = u64(launch.grid[0]) * launch.grid[1] * launch.grid[2] / u64(size);
  u64 next = 0;
  int idle = 0;
  while (next < clusters || !resident.empty()) {
    while (next < clusters && int(resident.size()) + size <= std::max(size, multiprocessors()))
      begin_cluster(*this, next++);
    const u64 before = progress;
    const size_t first = random();
    for (size_t k = 0; k < resident.size(); ++k) {
      Block &b = *resident[(first + k) % resident.size()];
      const size_t first_warp = random();
      for (size_t j = 0; j < b.warps.size(); ++j) turn(*b.warps[(first_warp + j) % b.warps.size()]);
    }
    for (size_t k = 0; k < resident.size();) {
      if (resident[k]->threads_alive() != 0) {
        ++k;
        continue;
      }
      end_block(*resident[k]);
      resident.erase(resident.begin() + i64(k));
    }
    if (progress != before) {
      idle = 0;
    } else if (!pending.empty()) {  // no warp can proceed without the pending work
      const size_t k = async == Async::RANDOM ? random() % pending.size() : 0;
      const Pending work = std::move(pending[k]);
      pending.erase(pending.begin() + i64(k));
      work.run();
      ++progress;
    } else if (++idle == IDLE_ROUNDS) {
      fprintf(stderr, "ptx: %s: everyone waits\n", launch.function->name.c_str());
      report_waiting(*this);
      fail("%s does not end", launch.function->name.c_str());
    }
  }
  for (const Pending &work : pending) work.run();
}

}  // namespace ptx
