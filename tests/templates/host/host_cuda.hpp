// host_cuda.hpp: emulates enough of CUDA to run parts of the templates on the host. Every thread of a block
// is a fiber; blocks run one after another.
//
// Detects wrong results, barriers that not all threads reach, a copy that is read before its wait (copies
// complete only at the wait), and writes past the launch's shared memory. Between barriers fibers run in
// ascending or in descending order, so that a missing barrier makes the two orders differ.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <bit>
#include <functional>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define __align__(n) alignas(n)
#define asm(...) (void)0  // in half conversions, which these tests do not use

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
static dim3 threadIdx, blockIdx, gridDim;
struct alignas(16) float4 {
  float x, y, z, w;
};
struct uint4 {
  unsigned x, y, z, w;
};
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline void __nanosleep(unsigned) {}

enum FiberState { READY, AT_BLOCK_BARRIER, AT_WARP_BARRIER, DONE };
struct PendingCopy {
  unsigned char *to;
  const void *from;
  int bytes;
  bool valid;
};
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  FiberState state;
  std::vector<PendingCopy> copies;
  uint64_t shuffled;
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static int running;
static bool descending;
static std::function<void()> block_body;

[[noreturn]] static void host_fail(const char *what) {
  fprintf(stderr, "%s; block (%u, %u, %u), thread %u\n", what, blockIdx.x, blockIdx.y, blockIdx.z,
          threadIdx.x);
  fflush(stdout);
  _Exit(1);  // not exit: this is a fiber
}
[[noreturn]] static void __trap() { host_fail("a hook was called with a position outside the lengths"); }

static void yield_at(FiberState state) {
  fibers[running].state = state;
  swapcontext(&fibers[running].context, &scheduler);
}
static void __syncthreads() { yield_at(AT_BLOCK_BARRIER); }
static void __syncwarp() { yield_at(AT_WARP_BARRIER); }

template <class T>
static T __shfl_xor_sync(unsigned, T x, int mask) {
  fibers[running].shuffled = 0;
  memcpy(&fibers[running].shuffled, &x, sizeof x);
  __syncwarp();
  const uint64_t theirs = fibers[running ^ mask].shuffled;
  __syncwarp();
  memcpy(&x, &theirs, sizeof x);
  return x;
}
template <class T>
static T __ldg(const T *p) {
  return *p;
}
static unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
static int __ffs(int x) { return __builtin_ffs(x); }
static int __clz(int x) { return std::countl_zero(unsigned(x)); }
static int __popc(unsigned x) { return __builtin_popcount(x); }
static unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; ++i) y |= (x >> i & 1) << (31 - i);
  return y;
}

template <class T>
static T __shfl_sync(unsigned, T x, int lane) {
  if (fibers.empty()) return x;  // one thread, without a block
  fibers[running].shuffled = 0;
  memcpy(&fibers[running].shuffled, &x, sizeof x);
  __syncwarp();
  const uint64_t theirs = fibers[running / 32 * 32 + lane].shuffled;
  __syncwarp();
  memcpy(&x, &theirs, sizeof x);
  return x;
}
static int __reduce_add_sync(unsigned, int x) {
  for (int m = 16; m > 0; m /= 2) x += __shfl_xor_sync(~0u, x, m);
  return x;
}
static unsigned __ballot_sync(unsigned, bool x) {
  return unsigned(__reduce_add_sync(~0u, x ? int(1u << running % 32) : 0));
}
static bool __any_sync(unsigned lanes, bool x) {
  return (lanes & (lanes - 1)) == 0 ? x : __ballot_sync(lanes, x) != 0;
}
static bool __all_sync(unsigned lanes, bool x) { return !__any_sync(lanes, !x); }
// On a GPU, which lanes are converged depends on the machine. Here each lane is alone, unless the test sets
// lanes_meet, which requires that all lanes call.
static bool lanes_meet = false;
static unsigned __activemask() { return lanes_meet ? ~0u : 1u << running % 32; }
static unsigned __match_all_sync(unsigned lanes, unsigned long long x, int *same) {
  *same = (lanes & (lanes - 1)) == 0 || __ballot_sync(lanes, x == __shfl_sync(lanes, x, 0)) == ~0u;
  return *same ? lanes : 0;
}
static int __reduce_min_sync(unsigned, int x) {
  for (int m = 16; m > 0; m /= 2) {
    const int y = __shfl_xor_sync(~0u, x, m);
    x = y < x ? y : x;
  }
  return x;
}
static int __reduce_max_sync(unsigned, int x) { return ~__reduce_min_sync(~0u, ~x); }

template <class T>
static T atomicAdd(T *p, T x) {
  const T old = *p;
  *p += x;
  return old;
}
static double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
static int __float_as_int(float x) { return std::bit_cast<int>(x); }
static float __int_as_float(int x) { return std::bit_cast<float>(x); }
static long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
static unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
static float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

// Replaces arch/cp_async.cuh.
#define LUATTN_CP_ASYNC_CUH
alignas(128) static unsigned char dynamic_shared[256 * 1024];
static size_t __cvta_generic_to_shared(const void *p) {
  return size_t(static_cast<const unsigned char *>(p) - dynamic_shared);
}
static size_t __cvta_generic_to_global(const void *p) { return size_t(p); }
template <int Bytes>
static void copy_async(uint32_t dst, const void *src, bool valid) {
  if (dst % Bytes != 0 || (valid && uintptr_t(src) % Bytes != 0)) host_fail("cp.async: misaligned address");
  fibers[running].copies.push_back({dynamic_shared + dst, src, Bytes, valid});
}
static void wait_copies() {
  for (const PendingCopy &c : fibers[running].copies) {
    if (c.valid)
      memcpy(c.to, c.from, size_t(c.bytes));
    else
      memset(c.to, 0, size_t(c.bytes));
  }
  fibers[running].copies.clear();
}

static void fiber_main() {
  block_body();
  yield_at(DONE);
}

// Resumes fibers whose barrier all threads have reached. Returns false if no fiber can proceed.
static bool release_barriers() {
  const int threads = int(fibers.size());
  int at_block = 0;
  bool released = false;
  for (int w = 0; w < threads; w += 32) {
    int at_warp = 0;
    for (int i = w; i < w + 32; ++i) {
      at_warp += fibers[i].state == AT_WARP_BARRIER;
      at_block += fibers[i].state == AT_BLOCK_BARRIER;
    }
    if (at_warp < 32) continue;
    for (int i = w; i < w + 32; ++i) fibers[i].state = READY;
    released = true;
  }
  if (at_block < threads) return released;
  for (Fiber &f : fibers) f.state = READY;
  return true;
}

static void run_block(int threads) {
  fibers.resize(size_t(threads));
  for (Fiber &f : fibers) {
    f.stack.resize(128 * 1024);
    f.state = READY;
    f.copies.clear();
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = &scheduler;
    makecontext(&f.context, fiber_main, 0);
  }
  for (bool more = true; more;) {
    for (int k = 0; k < threads; ++k) {
      running = descending ? threads - 1 - k : k;
      if (fibers[running].state != READY) continue;
      threadIdx = dim3(unsigned(running));
      swapcontext(&scheduler, &fibers[running].context);
    }
    more = release_barriers();
  }
  for (const Fiber &f : fibers)
    if (f.state != DONE) host_fail("a barrier was not reached by all threads");
}

// Returns the same sequence in every run.
[[maybe_unused]] static int random_below(int n) {
  static uint64_t state = 88172645463325252ull;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return int((state >> 32) % unsigned(n));
}

template <class Kernel, class Params>
static void launch(Kernel kernel, dim3 grid, int threads, int shared, const Params &p) {
  gridDim = grid;
  block_body = [&] { kernel(p); };
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = dim3(x, y, z);
        memset(dynamic_shared, 0xff, sizeof dynamic_shared);
        run_block(threads);
        for (size_t i = size_t(shared); i < sizeof dynamic_shared; ++i)
          if (dynamic_shared[i] != 0xff)
            host_fail("shared memory was written past what the launch asked for");
      }
}
