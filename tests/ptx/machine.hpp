// machine.hpp: executes a kernel's PTX on the host: concurrent blocks and clusters, warps whose lanes may
// diverge, barriers, TMA and the tensor cores.
//
// Finds: wrong results; accesses outside of allocations and shared memory, and misaligned ones; mismatched
// barriers and deadlocks; results that depend on work that was not waited for; races in shared memory
// (races.cpp). Asynchronous copies (cp.async, bulk copies) complete as early or as late as the PTX ISA allows
// (Async). wgmma operands are checked until the wgmma has been waited for. The order of warps depends on a
// seed. Does not find: effects of ptxas, memory orders of global memory weaker than sequential consistency,
// and time.
#pragma once
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <random>

#include "program.hpp"

namespace ptx {

enum { MAX_BARRIERS = 16, RANK_SHIFT = 24 };

// LUATTN_PTX_ASYNC: when asynchronous work completes.
enum class Async : u8 { EARLY, LATE, RANDOM };

struct Machine;
struct Block;

// Lanes of a warp that are at the same instruction.
struct Fragment {
  u32 lanes;
  i32 pc;
  std::vector<i32> calls;  // the call instructions that led here
  bool waiting = false;    // has arrived at a barrier and waits
  u64 token = 0;           // the phase that the fragment waits for
  int held = 0;            // instructions of other fragments to run first
};

struct LaneCopy {  // cp.async
  u64 number;      // index among the warp's copies
  u32 to;
  const u8 *from;
  u8 bytes, valid;
};
// Groups of asynchronous work of one lane. The last group is still open.
template <class Work>
struct Groups {
  std::deque<std::vector<Work>> closed;
  std::vector<Work> open;
  void close() {
    closed.push_back(std::move(open));
    open.clear();
  }
};
// A location in the shared memory of a block of the cluster.
struct Place {
  Block *block;
  u32 at;
  u8 *data() const;
};
struct Product {  // wgmma
  const Instr *instr;
  u64 a, b;
  u64 checksum;
};

struct Bulk {  // a bulk store or reduction, which reads shared memory and writes later
  std::function<void(const u8 *)> write;
  Place from;
  u32 bytes;
  std::vector<u8> data = {};  // the data read
  bool has_read = false, has_written = false;
  bool may_read = true;  // its thread has not waited for the read yet
};

// For each warp, TMA unit and first lane of a warp of a cluster, the number of known releases and of known fences of the
// asynchronous proxy (races.cpp).
enum { MAX_ENTITIES = 72 };
struct Clock {
  u32 count[MAX_ENTITIES] = {}, fences[MAX_ENTITIES] = {};
  u32 &operator[](int i) { return count[i]; }
  u32 operator[](int i) const { return count[i]; }
  void join(const Clock &x) {
    for (int i = 0; i < MAX_ENTITIES; ++i) count[i] = std::max(count[i], x.count[i]);
    for (int i = 0; i < MAX_ENTITIES; ++i) fences[i] = std::max(fences[i], x.fences[i]);
  }
};
// Clocks that a barrier passes from arriving threads to waiting ones.
struct Handover {
  Clock coming, done;
};

struct Warp {
  Block *block;
  int index;
  u8 *memory;             // slots
  std::vector<u8> frame;  // one part per lane
  u32 alive = ~0u;
  u32 carry = 0;  // CC.CF of each lane
  std::vector<Fragment> fragments;
  size_t current = 0;
  Groups<Product> products;
  Groups<LaneCopy> copies[LANES];
  Groups<Bulk> bulk[LANES];
  u64 copies_begun = 0;
  u32 at_warp_barrier = 0;     // lanes waiting at a warp barrier
  u32 at_cluster_barrier = 0;  // lanes that have arrived in this phase
  u64 cluster_token = 0;
  u64 products_seen = 0;  // a hash, the same for the four warps of a group
  int registers = 0;      // of a thread, as setmaxnreg has said last; 0: as many as at the launch
  int entity = 0;         // index in a Clock
  int first_lane = 0;     // likewise of what the first lane alone accesses; `entity` where lanes are not told apart
  Clock clock;
  // Lanes that have accessed shared memory since the lanes were last in order, but for accesses of the first alone, and
  // whether there were such (races.cpp); the warp's own counts then.
  u32 touched = 0;
  bool first_touched = false, is_first = false;  // is_first: the latest access is the first lane's alone
  u32 ordered = 0, first_ordered = 0;

  template <class T>
  T *at(const Slot &s) const {
    return reinterpret_cast<T *>(memory + s.at);
  }
  u32 &pred(const Slot &s) const { return *at<u32>(s); }
  u64 value(const Slot &s, int lane) const { return s.wide ? at<u64>(s)[lane] : at<u32>(s)[lane]; }
  void set(const Slot &s, int lane, u64 x) const {
    if (s.wide)
      at<u64>(s)[lane] = x;
    else
      at<u32>(s)[lane] = u32(x);
  }
  Fragment &fragment() { return fragments[current]; }
  u8 *frame_of(int lane, i32 at) { return frame.data() + size_t(lane) * (frame.size() / LANES) + at; }
};

struct NamedBarrier {
  int arrived = 0, threads = 0;  // arrivals so far, and the thread count of the first arrival
  u64 phase = 0;
  Handover clocks;
};

struct Cluster {
  std::vector<Block *> blocks;  // NULL: the block has ended
  u64 phase = 0;
  Handover clocks;
};

// The last write to each cell of a block's shared memory, and each warp's last read of the cell.
struct Shadow {
  struct Write {
    u32 when;
    u16 who;
    u32 fences;
  };
  struct Free {
    void operator()(void *p) const { free(p); }
  };
  int warps, units, entities;  // of the whole cluster: warps, copy engines too, first lanes of warps too
  int owner(int entity) const { return entity >= units ? entity - units : entity; }
  std::unique_ptr<Write[], Free> write;
  std::unique_ptr<u32[], Free> read;
};

struct Block {
  Machine *machine;
  std::shared_ptr<Cluster> cluster;
  int rank = 0;
  u32 id[3];
  std::vector<u8> shared;
  std::unique_ptr<u8[]> memory;  // memory of the block's warps
  std::vector<std::unique_ptr<Warp>> warps;
  NamedBarrier barrier[MAX_BARRIERS];
  std::unordered_map<u32, Handover> mbarrier;
  std::unique_ptr<Shadow> shadow;  // NULL: the race detector is off
  u32 copies = 0;                  // copies that the block's TMA unit has begun
  int threads_alive() const;
};
inline u8 *Place::data() const { return block->shared.data() + at; }

struct Launch {
  const Module *module;
  const Function *function;
  u32 grid[3], block[3];
  u32 shared_bytes;
  const u8 *params;
};

// Work that no thread has waited for yet.
struct Pending {
  std::function<void()> run;
  std::array<const Block *, 2> blocks;  // blocks whose shared memory the work accesses, or NULL
};

struct Machine {
  Launch launch;
  Async async = Async::EARLY;
  // Inverse frequency of spontaneous divergence, which hardware allows between converging instructions; 0:
  // never.
  u32 parts = 0;
  std::mt19937 random;
  std::vector<std::unique_ptr<Block>> resident;
  std::deque<Pending> pending;
  u64 progress = 0;  // counts events for which other warps may wait

  // Decides whether asynchronous work completes now or later.
  bool does_now() { return async == Async::EARLY || (async == Async::RANDOM && random() % 2); }
  void later(Pending work);
  void run();
};

// Returns the number of resident blocks, LUATTN_PTX_BLOCKS; also cuDeviceGetAttribute's number of
// multiprocessors.
int multiprocessors();

// ---- for handlers ----
[[noreturn]] void fault(const Warp &, const Instr &, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Fails unless [at, at + bytes) lies in one allocation (memory.cpp).
void check_global(const Warp &, const Instr &, const void *at, size_t bytes, size_t align);
// Resolves a shared address, which may be in another block of the cluster.
Place shared_at(const Warp &, const Instr &, u64 address, size_t bytes, size_t align);

// Returns whether all live lanes are converged, as instructions of a whole warp require. If not, `lanes` must
// wait.
bool whole_warp(Warp &, const Instr &, u32 lanes);
// Returns the mbarrier at an address, which the warp must be allowed to use.
Place barrier_at(const Warp &, const Instr &, u64 address);
// If the instruction waits for an mbarrier, prints the barrier's state.
void report_barrier(const Warp &, const Instr &, int lane);
// Operations on an mbarrier.
void arrive(Machine &, const Place &barrier, u32 count, i32 more_bytes, const Clock &);
void complete_bytes(Machine &, const Place &barrier, i32 bytes, const Clock &);

template <class F>
inline void each(u32 lanes, F f) {
  if (lanes == ~0u)
    for (int l = 0; l < LANES; ++l) f(l);
  else
    for (u32 rest = lanes; rest; rest &= rest - 1) f(__builtin_ctz(rest));
}
inline int first_lane(u32 lanes) { return __builtin_ctz(lanes); }

// Conversions of 16-bit floats.
float half_to_float(u16);
u16 float_to_half(float);
inline float bf16_to_float(u16 x) {
  const u32 bits = u32(x) << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}
u16 float_to_bf16(float);
inline float small_to_float(Type t, u16 x) {
  return t == F16 || t == F16X2 ? half_to_float(x) : bf16_to_float(x);
}
inline u16 float_to_small(Type t, float x) {
  return t == F16 || t == F16X2 ? float_to_half(x) : float_to_bf16(x);
}

// Device memory.
void *allocate(size_t bytes);
bool release(void *);
bool allocated(const void *, size_t bytes);  // returns whether [p, p + bytes) lies in one allocation

// Returns a number from the environment, or `otherwise`.
int setting(const char *name, int otherwise);

}  // namespace ptx
