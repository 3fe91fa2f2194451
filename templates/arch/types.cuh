// arch/types.cuh: types, storage conversions and small helpers. Self-contained: NVRTC sees no system header.
#pragma once
#include "abi/shared_memory.h"

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

#define LUATTN_FN static __device__ __forceinline__
#define LUATTN_OUTLINED static __device__ __noinline__  // one copy, called: for hooks too large to inline

// The return value of an outlined function: a struct returned by value, because a reference would force its
// target to memory.
template <class Real, int N>
struct Results {
  Real x[N];
};

struct half_t {
  u16 bits;
};  // IEEE binary16
struct bf16_t {
  u16 bits;
};  // bfloat16

template <class A, class B>
struct same_type {
  static constexpr bool value = false;
};
template <class A>
struct same_type<A, A> {
  static constexpr bool value = true;
};

template <class Real>
LUATTN_FN Real infinity() {
  if constexpr (sizeof(Real) == 8)
    return __longlong_as_double(0x7ff0000000000000ll);
  else
    return __int_as_float(0x7f800000);
}

LUATTN_FN float to_real(float x) { return x; }
LUATTN_FN double to_real(double x) { return x; }
LUATTN_FN float to_real(bf16_t x) { return __uint_as_float(u32(x.bits) << 16); }
LUATTN_FN float to_real(half_t x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

template <class T>
LUATTN_FN T from_real(double x) {
  static_assert(same_type<T, double>::value || same_type<T, float>::value, "half types are written from float");
  return T(x);
}
template <class T>
LUATTN_FN T from_real(float x) {
  if constexpr (same_type<T, half_t>::value) {
    half_t y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  } else if constexpr (same_type<T, bf16_t>::value) {
    bf16_t y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  } else {
    return T(x);
  }
}

// The types of O, and of dQ, dK and dV: as q, k and v, unless Config says otherwise.
template <class Config>
struct ResultsOf {
  using Out = typename Config::Elem;
};
template <class Config>
  requires requires { typename Config::Out; }
struct ResultsOf<Config> {
  using Out = typename Config::Out;
};
template <class Config>
struct GradientsOf {
  using Grad = typename Config::Elem;
};
template <class Config>
  requires requires { typename Config::Grad; }
struct GradientsOf<Config> {
  using Grad = typename Config::Grad;
};
template <class Config>
using OutOf = typename ResultsOf<Config>::Out;
template <class Config>
using GradOf = typename GradientsOf<Config>::Grad;

LUATTN_FN constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The plan's part of a shared-memory layout's parameters, added to the spec's part in `s`.
template <class Config>
LUATTN_FN constexpr LayoutSizes layout_sizes(LayoutSizes s = {}) {
  s.head_dim = Config::head_dim;
  s.head_dim_v = Config::head_dim_v;
  s.tile_m = Config::tile_m;
  s.tile_n = Config::tile_n;
  s.threads = Config::threads;
  s.stages = Config::stages;
  s.elem = int(sizeof(typename Config::Elem)) < 4 ? 4 : int(sizeof(typename Config::Elem));
  return s;
}

// A launch gives a kernel the dynamic shared memory that the plan computed: at least its layout, from the
// same source (abi/shared_memory.h). The templates' own tests have a Config that leaves it open.
template <class Config, int Bytes>
LUATTN_FN constexpr bool has_shared() {
  if constexpr (requires { Config::shared_bytes; })
    static_assert(Bytes <= Config::shared_bytes, "the plan gives a kernel less shared memory than its layout takes");
  return true;
}

template <class T>
LUATTN_FN T min_of(T a, T b) {
  return a < b ? a : b;
}
template <class T>
LUATTN_FN T max_of(T a, T b) {
  return a > b ? a : b;
}
#ifdef LUATTN_MIN_MAX_APART
// Compares integers as unsigned ones with their sign bit turned. From max(max(a, -b), c) of signed ones ptxas makes one
// instruction without the minus (gen/nvrtc/lost_sign.h); a compilation in which that is found is repeated with this
// macro.
LUATTN_FN int min_of(int a, int b) {
  u32 least;
  asm("min.u32 %0, %1, %2;" : "=r"(least) : "r"(u32(a) ^ 1u << 31), "r"(u32(b) ^ 1u << 31));
  return int(least ^ 1u << 31);
}
LUATTN_FN int max_of(int a, int b) {
  u32 most;
  asm("max.u32 %0, %1, %2;" : "=r"(most) : "r"(u32(a) ^ 1u << 31), "r"(u32(b) ^ 1u << 31));
  return int(most ^ 1u << 31);
}
#endif
// One FMNMX; the ternary is two instructions.
LUATTN_FN float max_of(float a, float b) { return fmaxf(a, b); }
LUATTN_FN double max_of(double a, double b) { return fmax(a, b); }

LUATTN_FN void atomic_add(float *p, float x) { atomicAdd(p, x); }
LUATTN_FN void atomic_add(double *p, double x) { atomicAdd(p, x); }
