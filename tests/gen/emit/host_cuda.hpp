// host_cuda.hpp: what generated code and the templates take of CUDA, for one thread of the host.
#pragma once
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <vector>

#define __device__
#define __forceinline__
#define __noinline__
#define asm(...) (void)0  // in half conversions and float approximations, which double does not use

template <class T>
static T __ldg(const T *p) {
  return *p;
}
// Warp functions, for a single thread.
template <class T>
static T __shfl_xor_sync(unsigned, T x, int) {
  return x;
}
static unsigned __match_all_sync(unsigned, long long, int *same) {
  *same = 0;
  return 1;
}
static unsigned __activemask() { return 1; }
static unsigned __ballot_sync(unsigned, bool x) { return x; }
static bool __any_sync(unsigned, bool x) { return x; }
static int __reduce_add_sync(unsigned, int x) { return x; }
template <class T>
static T __shfl_sync(unsigned, T x, int) {
  return x;
}
static int __ffs(int x) { return __builtin_ffs(x); }
static int __popc(unsigned x) { return __builtin_popcount(x); }
static const struct {
  unsigned x;
} threadIdx = {0};
static double __longlong_as_double(long long x) {
  double y;
  memcpy(&y, &x, 8);
  return y;
}
static float __int_as_float(int x) {
  float y;
  memcpy(&y, &x, 4);
  return y;
}
static int __float_as_int(float x) {
  int y;
  memcpy(&y, &x, 4);
  return y;
}
static float __uint_as_float(unsigned x) {
  float y;
  memcpy(&y, &x, 4);
  return y;
}
static float __fdividef(float x, float y) { return x / y; }
static float __fdiv_rn(float x, float y) { return x / y; }
static double __ddiv_rn(double x, double y) { return x / y; }
static float __fadd_rn(float x, float y) { return x + y; }
static double __dadd_rn(double x, double y) { return x + y; }
static float __fsqrt_rn(float x) { return sqrtf(x); }
static float __fsub_rn(float x, float y) { return x - y; }
static double __dsub_rn(double x, double y) { return x - y; }
static float __fmul_rn(float x, float y) { return x * y; }
static double __dmul_rn(double x, double y) { return x * y; }
static float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
static int __float2int_rz(float x) { return int(x); }
static int __float2int_rd(float x) { return int(floorf(x)); }
static int __double2int_rz(double x) { return int(x); }
static int __double2int_rd(double x) { return int(floor(x)); }
static int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
static float rsqrtf(float x) { return 1 / sqrtf(x); }
static double rsqrt(double x) { return 1 / sqrt(x); }
static void atomicAdd(float *p, float x) { *p += x; }
static void atomicAdd(double *p, double x) { *p += x; }
static void atomicAdd(unsigned long long *p, unsigned long long x) { *p += x; }
static unsigned __float_as_uint(float x) {
  unsigned y;
  memcpy(&y, &x, 4);
  return y;
}
static long long __double_as_longlong(double x) {
  long long y;
  memcpy(&y, &x, 8);
  return y;
}
static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a > b ? a : b; }
static long long min(long long a, long long b) { return a < b ? a : b; }
static long long max(long long a, long long b) { return a > b ? a : b; }
