// memory.cpp: loads, stores, atomics, and the allocations that they may access. PTX ISA, 9.7.9 and 9.7.13.
#include <atomic>
#include <cstdlib>
#include <mutex>

#include "decoder.hpp"
#include "races.hpp"

namespace ptx {
namespace {

struct Allocations {
  std::mutex lock;
  std::map<uintptr_t, size_t> sizes;  // key: first byte
  std::atomic<u64> releases = 0;
};
Allocations &allocations() {
  static Allocations *a = new Allocations;  // never destroyed: callers free in destructors
  return *a;
}
struct Range {
  uintptr_t first;
  size_t size;
  bool has(uintptr_t at, size_t bytes) const {
    return at >= first && at - first <= size && bytes <= size - (at - first);
  }
};
struct Latest {  // a thread's latest ranges, valid until a release of memory
  Range ranges[4] = {};
  u64 releases = 0;
  unsigned turn = 0;
};

bool within(uintptr_t at, size_t bytes, const void *first, size_t size) {
  return Range{uintptr_t(first), size}.has(at, bytes);
}

}  // namespace

enum { GUARD = 256 };
bool allocated(const void *p, size_t bytes) {
  static thread_local Latest latest;
  Allocations &a = allocations();
  if (latest.releases != a.releases) latest = {{}, a.releases, 0};
  const uintptr_t at = uintptr_t(p);
  for (const Range &r : latest.ranges)
    if (r.size > 0 && r.has(at, bytes)) return true;
  const std::lock_guard guard(a.lock);
  auto it = a.sizes.upper_bound(at);
  if (it == a.sizes.begin()) return false;
  --it;
  const Range r = {it->first, it->second};
  if (!r.has(at, bytes)) return false;
  latest.ranges[latest.turn++ % 4] = r;
  return true;
}
void *allocate(size_t bytes) {
  u8 *p = static_cast<u8 *>(aligned_alloc(GUARD, (bytes + 3 * GUARD - 1) / GUARD * GUARD));
  if (p == nullptr) return nullptr;
  memset(p, 0xff, bytes + 2 * GUARD - 1);
  Allocations &a = allocations();
  const std::lock_guard guard(a.lock);
  a.sizes[uintptr_t(p) + GUARD] = bytes;
  return p + GUARD;
}
bool release(void *p) {
  Allocations &a = allocations();
  const std::lock_guard guard(a.lock);
  if (a.sizes.erase(uintptr_t(p)) == 0) return false;
  ++a.releases;
  free(static_cast<u8 *>(p) - GUARD);
  return true;
}

void check_global(const Warp &w, const Instr &i, const void *p, size_t bytes, size_t align) {
  const uintptr_t at = uintptr_t(p);
  if (at % align != 0) fault(w, i, "address %p is no multiple of %zu", p, align);
  if (allocated(p, bytes)) return;
  const Machine &m = *w.block->machine;
  if (within(at, bytes, m.launch.params, size_t(m.launch.function->param_bytes))) return;
  if (within(at, bytes, w.frame.data(), w.frame.size())) return;
  for (const auto &[data, size] : m.launch.module->globals)
    if (within(at, bytes, data.get(), size)) return;
  fault(w, i, "%zu bytes at %p are in no allocation", bytes, p);
}

Place shared_at(const Warp &w, const Instr &i, u64 address, size_t bytes, size_t align) {
  Block *block = w.block;
  address = u32(address);  // a register of 32 bits may be negative, where an offset makes up for it
  if (const u64 rank = address >> RANK_SHIFT; rank != 0) {
    if (rank > block->cluster->blocks.size())
      fault(w, i, "shared address %#llx is of no block", (unsigned long long)address);
    block = block->cluster->blocks[rank - 1];
    if (block == nullptr) fault(w, i, "the other block of the cluster has ended");
    address &= (1u << RANK_SHIFT) - 1;
  }
  if (address % align != 0)
    fault(w, i, "shared address %#llx is no multiple of %zu", (unsigned long long)address, align);
  if (address < SHARED_FIRST || address + bytes > block->shared.size())
    fault(w, i, "shared address %#llx, %zu bytes, is outside of the block's %d to %zu", (unsigned long long)address,
          bytes, SHARED_FIRST, block->shared.size());
  return {block, u32(address)};
}

namespace {

enum Space : u8 { GLOBAL, SHARED };  // all spaces except shared use host addresses

enum Access : u8 { READ, WRITE, ATOMIC };
template <Space S, Access A>
u8 *locate(const Warp &w, const Instr &i, u64 address, size_t bytes, size_t align) {
  if (S == SHARED) {
    const Place p = shared_at(w, i, address, bytes, align);
    if (A == READ) race_read(w, i, p, bytes);
    if (A == WRITE) race_write(w, i, p, bytes);
    return p.data();
  }
  u8 *p = reinterpret_cast<u8 *>(address);
  check_global(w, i, p, bytes, align);
  return p;
}

// Slots: destinations, then the address.
template <Space S, class T>
Next load(Warp &w, const Instr &i, u32 lanes) {
  const Slot &base = i.slot[i.count];
  if (S == SHARED) touched(w, lanes);
  each(lanes, [&](int l) {
    const u64 address = w.value(base, l) + u64(i.offset[0]);
    const u8 *p = locate<S, READ>(w, i, address, sizeof(T) * i.count, sizeof(T) * i.count);
    for (int k = 0; k < i.count; ++k) {
      T x;
      memcpy(&x, p + sizeof(T) * size_t(k), sizeof x);
      if (i.slot[size_t(k)].at != NO_SLOT) w.set(i.slot[size_t(k)], l, u64(i64(x)));
    }
  });
  return Next::GO;
}
// Slots: the address, then sources.
template <Space S, class T>
Next store(Warp &w, const Instr &i, u32 lanes) {
  if (S == SHARED) touched(w, lanes);
  each(lanes, [&](int l) {
    const u64 address = w.value(i.slot[0], l) + u64(i.offset[0]);
    u8 *p = locate<S, WRITE>(w, i, address, sizeof(T) * i.count, sizeof(T) * i.count);
    for (int k = 0; k < i.count; ++k) {
      const T x = T(w.value(i.slot[size_t(k) + 1], l));
      memcpy(p + sizeof(T) * size_t(k), &x, sizeof x);
    }
  });
  return Next::GO;
}

// atom and red; slots: optional d, address, operands (elements of a vector in order).
template <Space S, class T, class F>
Next atomic(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const u64 address = w.value(i.slot[1], l) + u64(i.offset[0]);
    u8 *p = locate<S, ATOMIC>(w, i, address, sizeof(T) * i.count, sizeof(T) * i.count);
    for (int k = 0; k < i.count; ++k, p += sizeof(T)) {
      T old, a, b = T();
      const u64 bits = w.value(i.slot[size_t(k) + 2], l);
      memcpy(&old, p, sizeof old);
      memcpy(&a, &bits, sizeof a);
      if (i.compares) {
        const u64 second = w.value(i.slot[3], l);
        memcpy(&b, &second, sizeof b);
      }
      const T next = F()(old, a, b);
      memcpy(p, &next, sizeof next);
      u64 out = 0;
      memcpy(&out, &old, sizeof old);
      if (i.slot[0].at != NO_SLOT) w.set(i.slot[0], l, out);
    }
  });
  return Next::GO;
}

template <Space S>
Handler transfer(bool is_load, Type t) {
  const bool sign = t == S8 || t == S16 || t == S32;
  switch (size_of(t)) {
    case 1:
      return !is_load ? store<S, u8> : sign ? &load<S, int8_t> : &load<S, u8>;
    case 2:
      return !is_load ? store<S, u16> : sign ? &load<S, int16_t> : &load<S, u16>;
    case 4:
      return !is_load ? store<S, u32> : sign ? &load<S, i32> : &load<S, u32>;
    case 8:
      return is_load ? &load<S, u64> : &store<S, u64>;
    default:
      return nullptr;
  }
}
template <Space S, class T>
Handler atomic_named(const Decoder &d) {
#define ATOMIC(...) \
  &atomic<S, T,     \
          decltype([]([[maybe_unused]] T old, [[maybe_unused]] T a, [[maybe_unused]] T b) { return T(__VA_ARGS__); })>
  if (d.has("add")) return ATOMIC(old + a);
  if constexpr (std::is_integral_v<T>) {
    if (d.has("inc")) return ATOMIC(old >= a ? 0 : old + 1);
    if (d.has("cas")) return ATOMIC(old == a ? b : old);
    if (d.has("exch")) return ATOMIC(a);
    if (d.has("min")) return ATOMIC(old < a ? old : a);
    if (d.has("max")) return ATOMIC(old > a ? old : a);
    if (d.has("and")) return ATOMIC(old & a);
    if (d.has("or")) return ATOMIC(old | a);
  }
  return nullptr;
}
template <Space S>
Handler atomic_of(const Decoder &d, Type t) {
  switch (t) {
    case F32:
      return atomic_named<S, float>(d);
    case F64:
      return atomic_named<S, double>(d);
    case S32:
      return atomic_named<S, i32>(d);
    case U32:
    case B32:
      return atomic_named<S, u32>(d);
    case U64:
    case B64:
      return atomic_named<S, u64>(d);
    default:
      return nullptr;
  }
}

Space space_of(const Decoder &d) {
  for (const std::string_view part : d.m) {
    if (part.starts_with("shared")) return SHARED;
  }
  return GLOBAL;
}

Next nothing(Warp &, const Instr &, u32) { return Next::GO; }
Next fence_async(Warp &w, const Instr &, u32) {
  fenced(w);
  return Next::GO;
}
Next copy_address(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) { w.set(i.slot[0], l, w.value(i.slot[1], l)); });
  return Next::GO;
}

Next map_address(Warp &w, const Instr &i,
                 u32 lanes) {  // mapa: the same address in another block of the cluster
  each(lanes, [&](int l) {
    const u64 in_block = w.value(i.slot[1], l) & ((1u << RANK_SHIFT) - 1);
    w.set(i.slot[0], l, (w.value(i.slot[2], l) + 1) << RANK_SHIFT | in_block);
  });
  return Next::GO;
}

void values_of(Decoder &d, const Arg &a, bool wide) {
  if (a.kind != Arg::VECTOR) return d.value(a, wide);
  for (const Arg &x : a.items) d.value(x, wide);
}

bool decode_transfer(Decoder &d, bool is_load) {
  const Type t = d.last_type();
  const Arg &many = d.arg(is_load ? 0 : 1), &where = d.arg(is_load ? 1 : 0);
  const bool wide = size_of(t) == 8;
  d.instr.count = many.kind == Arg::VECTOR ? u16(many.items.size()) : 1;
  if (is_load) values_of(d, many, wide);
  d.address(where);
  if (!is_load) values_of(d, many, wide);
  d.instr.run = space_of(d) == SHARED ? transfer<SHARED>(is_load, t) : transfer<GLOBAL>(is_load, t);
  return d.instr.run != nullptr;
}
bool decode_atomic(Decoder &d) {
  const Type t = d.last_type();
  const bool wide = size_of(t) == 8;
  size_t k = 0;
  if (d.op() == "atom")
    d.value(d.arg(k++), wide);
  else
    d.instr.slot.push_back({});
  d.address(d.arg(k++));
  d.instr.count = d.arg(k).kind == Arg::VECTOR ? u16(d.arg(k).items.size()) : 1;
  d.instr.compares = d.has("cas");
  for (; k < d.args.size(); ++k) values_of(d, d.arg(k), wide);
  d.instr.run = space_of(d) == SHARED ? atomic_of<SHARED>(d, t) : atomic_of<GLOBAL>(d, t);
  return d.instr.run != nullptr;
}

}  // namespace

bool decode_memory(Decoder &d) {
  const std::string_view op = d.op();
  if (op == "ld" || op == "ldu") return decode_transfer(d, true);
  if (op == "st") return decode_transfer(d, false);
  if (op == "atom" || op == "red") return decode_atomic(d);
  if (op == "mapa" && space_of(d) == SHARED && d.last_type() == U32) {
    for (const Arg &a : d.args) d.value(a, false);
    d.instr.run = map_address;
    return true;
  }
  if (op == "cvta") {
    if (space_of(d) == SHARED) return false;
    d.value(d.arg(0), true);
    d.value(d.arg(1), true);
    d.instr.run = copy_address;
    return true;
  }
  if (op == "prefetch" || op == "prefetchu" || op == "membar" || op == "fence" || op == "applypriority" ||
      op == "discard" || op == "createpolicy") {
    d.instr.run = d.has("async") && !d.has("global") ? fence_async : nothing;
    return true;
  }
  return false;
}

}  // namespace ptx
