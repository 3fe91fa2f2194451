// arithmetic.cpp: instructions that compute a lane's value from values of the same lane. PTX ISA, 9.7.1 to
// 9.7.6. Floats round to nearest. Approximations (ex2.approx ..) are computed exactly and rounded, so their
// errors are smaller than a GPU's.
#include <bit>
#include <cfenv>
#include <cmath>

#include "decoder.hpp"

namespace ptx {
namespace {

// The type in which a slot stores a T.
template <class T>
using In = std::conditional_t<sizeof(T) == 8, T, std::conditional_t<sizeof(T) == 4, T, u32>>;

template <class T>
T flushed(T x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(T(0), x) : x;
}

template <class R, class T, class F>
Next unary(Warp &w, const Instr &i, u32 lanes) {
  auto *d = w.at<In<R>>(i.slot[0]);
  const auto *a = w.at<In<T>>(i.slot[1]);
  each(lanes, [&](int l) { d[l] = In<R>(R(F()(T(a[l])))); });
  return Next::GO;
}
template <class R, class T, class F>
Next binary(Warp &w, const Instr &i, u32 lanes) {
  auto *d = w.at<In<R>>(i.slot[0]);
  const auto *a = w.at<In<T>>(i.slot[1]);
  const auto *b = w.at<In<T>>(i.slot[2]);
  each(lanes, [&](int l) { d[l] = In<R>(R(F()(T(a[l]), T(b[l])))); });
  return Next::GO;
}
template <class T, class F>
Next shift(Warp &w, const Instr &i, u32 lanes) {
  auto *d = w.at<In<T>>(i.slot[0]);
  const auto *a = w.at<In<T>>(i.slot[1]);
  const u32 *b = w.at<u32>(i.slot[2]);
  each(lanes, [&](int l) { d[l] = In<T>(T(F()(T(a[l]), b[l]))); });
  return Next::GO;
}
// d = f(a, b, c). c may be wider than a and b.
template <class R, class T, class F>
Next ternary(Warp &w, const Instr &i, u32 lanes) {
  auto *d = w.at<In<R>>(i.slot[0]);
  const auto *a = w.at<In<T>>(i.slot[1]);
  const auto *b = w.at<In<T>>(i.slot[2]);
  const auto *c = w.at<In<R>>(i.slot[3]);
  each(lanes, [&](int l) { d[l] = In<R>(R(F()(T(a[l]), T(b[l]), R(c[l])))); });
  return Next::GO;
}

// Calls f with a value of the integer type; returns the handler for that type.
template <class F>
Handler by_int(Type t, F f) {
  switch (t) {
    case U16:
    case B16:
      return f(u16());
    case S16:
      return f(int16_t());
    case U32:
    case B32:
      return f(u32());
    case S32:
      return f(i32());
    case U64:
    case B64:
      return f(u64());
    case S64:
      return f(i64());
    default:
      return nullptr;
  }
}
template <class F>
Handler by_float(Type t, F f) {
  return t == F32 ? f(float()) : t == F64 ? f(double()) : nullptr;
}
template <class F>
Handler by_number(Type t, F f) {
  const Handler h = by_float(t, f);
  return h != nullptr ? h : by_int(t, f);
}

#define UNARY(T, ...) &unary<T, T, decltype([](T a) { return __VA_ARGS__; })>
#define BINARY(T, ...) &binary<T, T, decltype([](T a, T b) { return __VA_ARGS__; })>

// ---- floats ----
template <class T>
T max_of(T a, T b) {  // a number wins over NaN, and 0 over -0
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}
template <class T>
T min_of(T a, T b) {
  return -max_of(-a, -b);
}
template <class T>
T max_nan(T a, T b) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : max_of(a, b);
}
// f(a, b, c) in another rounding mode. volatile keeps the compiler from moving f out of the mode.
template <class T, int Mode, class F>
T rounded(F f, T a, T b, T c) {
  std::fesetround(Mode);
  const volatile T x = a, y = b, z = c;
  const volatile T out = f(x, y, z);
  std::fesetround(FE_TONEAREST);
  return out;
}
template <class T, int Mode, class F>
Next directed(Warp &w, const Instr &i, u32 lanes) {
  T *d = w.at<T>(i.slot[0]);
  const T *a = w.at<T>(i.slot[1]), *b = w.at<T>(i.slot[2]), *c = w.at<T>(i.slot[i.slot.size() - 1]);
  each(lanes, [&](int l) { d[l] = rounded<T, Mode>(F(), a[l], b[l], c[l]); });
  return Next::GO;
}
template <class T, int Mode>
Handler directed_named(std::string_view op) {
#define DIRECTED(...) \
  &directed<T, Mode,  \
            decltype([]([[maybe_unused]] T a, [[maybe_unused]] T b, [[maybe_unused]] T c) { return __VA_ARGS__; })>
  if (op == "add") return DIRECTED(a + b);
  if (op == "sub") return DIRECTED(a - b);
  if (op == "mul") return DIRECTED(a * b);
  if (op == "div") return DIRECTED(a / b);
  if (op == "fma") return DIRECTED(std::fma(a, b, c));
  return nullptr;
}
// add, sub, mul, div and fma towards zero, downwards or upwards; NULL: in another mode.
Handler float_directed(const Decoder &d, Type t) {
  return by_float(t, [&](auto x) -> Handler {
    using T = decltype(x);
    return d.has("rz")   ? directed_named<T, FE_TOWARDZERO>(d.op())
           : d.has("rm") ? directed_named<T, FE_DOWNWARD>(d.op())
           : d.has("rp") ? directed_named<T, FE_UPWARD>(d.op())
                         : nullptr;
  });
}

Handler float_unary(const Decoder &d, Type t) {
  const std::string_view op = d.op();
  return by_float(t, [&](auto x) -> Handler {
    using T = decltype(x);
    if (op == "abs") return UNARY(T, std::fabs(a));
    if (op == "neg") return UNARY(T, -a);
    if (op == "rcp") return d.has("approx") ? UNARY(T, flushed(1 / flushed(a))) : UNARY(T, 1 / a);
    if (op == "sqrt") return d.has("approx") ? UNARY(T, std::sqrt(flushed(a))) : UNARY(T, std::sqrt(a));
    if (op == "rsqrt") return d.has("ftz") ? UNARY(T, 1 / std::sqrt(flushed(a))) : UNARY(T, 1 / std::sqrt(a));
    if (op == "ex2") return d.has("ftz") ? UNARY(T, flushed(std::exp2(flushed(a)))) : UNARY(T, std::exp2(a));
    if (op == "lg2") return d.has("ftz") ? UNARY(T, std::log2(flushed(a))) : UNARY(T, std::log2(a));
    if (op == "sin") return UNARY(T, std::sin(a));
    if (op == "cos") return UNARY(T, std::cos(a));
    if (op == "tanh") return UNARY(T, std::tanh(a));
    return nullptr;
  });
}
Handler float_binary(const Decoder &d, Type t) {
  const std::string_view op = d.op();
  return by_float(t, [&](auto x) -> Handler {
    using T = decltype(x);
    const bool nan = d.has("NaN");
    if (op == "add") return d.has("ftz") ? BINARY(T, flushed(flushed(a) + flushed(b))) : BINARY(T, a + b);
    if (op == "sub") return d.has("ftz") ? BINARY(T, flushed(flushed(a) - flushed(b))) : BINARY(T, a - b);
    if (op == "mul") return d.has("ftz") ? BINARY(T, flushed(flushed(a) * flushed(b))) : BINARY(T, a * b);
    if (op == "div") return BINARY(T, a / b);
    if (op == "max") return nan ? BINARY(T, max_nan(a, b)) : BINARY(T, max_of(a, b));
    if (op == "min") return nan ? BINARY(T, -max_nan(-a, -b)) : BINARY(T, min_of(a, b));
    if (op == "copysign") return BINARY(T, std::copysign(b, a));
    return nullptr;
  });
}
Handler float_fma(const Decoder &d, Type t) {
  if (d.has("ftz"))
    return &ternary<float, float, decltype([](float a, float b, float c) {
                      return flushed(std::fma(flushed(a), flushed(b), flushed(c)));
                    })>;
  return by_float(t, [](auto x) -> Handler {
    using T = decltype(x);
    return &ternary<T, T, decltype([](T a, T b, T c) { return std::fma(a, b, c); })>;
  });
}

// Two 16-bit floats in 32 bits, each computed in float and rounded.
template <Type T, class F>
Next packed(Warp &w, const Instr &i, u32 lanes) {
  u32 *d = w.at<u32>(i.slot[0]);
  const u32 *in[3] = {};
  for (size_t k = 1; k < i.slot.size(); ++k) in[k - 1] = w.at<u32>(i.slot[k]);
  each(lanes, [&](int l) {
    u32 out = 0;
    for (int h = 0; h < 32; h += 16) {
      float x[3] = {};
      for (int k = 0; k < 3 && in[k] != nullptr; ++k) x[k] = small_to_float(T, u16(in[k][l] >> h));
      out |= u32(float_to_small(T, F()(x[0], x[1], x[2]))) << h;
    }
    d[l] = out;
  });
  return Next::GO;
}
template <Type T>
Handler packed_named(const Decoder &d) {
  const std::string_view op = d.op();
#define PACKED(...)                                                                                      \
  &packed<T, decltype([]([[maybe_unused]] float a, [[maybe_unused]] float b, [[maybe_unused]] float c) { \
            return __VA_ARGS__;                                                                          \
          })>
  if (op == "add") return PACKED(a + b);
  if (op == "sub") return PACKED(a - b);
  if (op == "mul") return PACKED(a * b);
  if (op == "fma") return PACKED(float(double(a) * b + c));
  if (op == "max") return d.has("NaN") ? PACKED(max_nan(a, b)) : PACKED(max_of(a, b));
  if (op == "min") return d.has("NaN") ? PACKED(-max_nan(-a, -b)) : PACKED(min_of(a, b));
  if (op == "neg") return PACKED(-a);
  if (op == "abs") return PACKED(std::fabs(a));
  return nullptr;
}

// ---- integers ----
template <class T>
T high_product(T a, T b) {
  using Wide = std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
                                  std::conditional_t<std::is_signed_v<T>, i64, u64>>;
  return T(Wide(a) * Wide(b) >> (8 * sizeof(T)));
}
template <class T>
T quotient(T a, T b) {
  if (b == 0) return T(-1);
  return std::is_signed_v<T> && b == T(-1) ? T(0 - a) : T(a / b);
}
template <class T>
T remainder_of(T a, T b) {
  if (b == 0) return a;
  return std::is_signed_v<T> && b == T(-1) ? T(0) : T(a % b);
}

template <class T>
T reversed(T x) {
  T y = 0;
  for (u32 k = 0; k < 8 * sizeof(T); ++k) y = T(y << 1 | (x >> k & 1));
  return y;
}
// clz, popc, bfind: a 32-bit result from a T.
template <class T>
Handler count_of(const Decoder &d) {
  const std::string_view op = d.op();
  if (op == "clz") return &unary<u32, T, decltype([](T a) { return u32(std::countl_zero(a)); })>;
  if (op == "popc") return &unary<u32, T, decltype([](T a) { return u32(std::popcount(a)); })>;
  if (d.has("shiftamt")) return &unary<u32, T, decltype([](T a) { return a == 0 ? ~0u : u32(std::countl_zero(a)); })>;
  return &unary<u32, T, decltype([](T a) { return a == 0 ? ~0u : u32(8 * sizeof(T)) - 1 - u32(std::countl_zero(a)); })>;
}

Handler int_unary(const Decoder &d, Type t) {
  const std::string_view op = d.op();
  return by_int(t, [&](auto x) -> Handler {
    using T = decltype(x);
    if (op == "abs") return UNARY(T, T(a < 0 ? 0 - a : a));
    if (op == "neg") return UNARY(T, T(0 - a));
    if (op == "not") return UNARY(T, T(~a));
    if (op == "brev") return UNARY(T, reversed(a));
    return nullptr;
  });
}
Handler int_binary(const Decoder &d, Type t) {
  const std::string_view op = d.op();
  if (op == "bmsk" && d.has("clamp"))
    return BINARY(u32, u32((b >= 32 ? ~0ull : (1ull << b) - 1) << (a >= 32 ? 32 : a)));
  return by_int(t, [&](auto x) -> Handler {
    using T = decltype(x);
    if (op == "add") return BINARY(T, T(a + b));
    if (op == "sub") return BINARY(T, T(a - b));
    if (op == "mul" && d.has("hi")) return BINARY(T, high_product(a, b));
    if (op == "mul") return BINARY(T, T(a * b));
    if (op == "div") return BINARY(T, quotient(a, b));
    if (op == "rem") return BINARY(T, remainder_of(a, b));
    if (op == "min") return BINARY(T, a < b ? a : b);
    if (op == "max") return BINARY(T, a > b ? a : b);
    if (op == "and") return BINARY(T, T(a & b));
    if (op == "or") return BINARY(T, T(a | b));
    if (op == "xor") return BINARY(T, T(a ^ b));
    return nullptr;
  });
}
Handler int_shift(const Decoder &d, Type t) {
  return by_int(t, [&](auto x) -> Handler {
    using T = decltype(x);
    constexpr u32 bits = 8 * sizeof(T);
    if (d.op() == "shl") return &shift<T, decltype([](T a, u32 b) { return T(b >= bits ? 0 : a << b); })>;
    return &shift<T, decltype([](T a, u32 b) {
                    if (b >= bits) return T(std::is_signed_v<T> && a < 0 ? -1 : 0);
                    return T(a >> b);
                  })>;
  });
}
Handler wide_product(Type t) {
  switch (t) {
    case S16:
      return &binary<i32, int16_t, decltype([](i32 a, i32 b) { return a * b; })>;
    case U16:
      return &binary<u32, u16, decltype([](u32 a, u32 b) { return a * b; })>;
    case S32:
      return &binary<i64, i32, decltype([](i64 a, i64 b) { return a * b; })>;
    case U32:
      return &binary<u64, u32, decltype([](u64 a, u64 b) { return a * b; })>;
    default:
      return nullptr;
  }
}
Handler int_mad(const Decoder &d, Type t) {
  if (d.has("wide")) {
    if (t == S32) return &ternary<i64, i32, decltype([](i64 a, i64 b, i64 c) { return a * b + c; })>;
    if (t == U32) return &ternary<u64, u32, decltype([](u64 a, u64 b, u64 c) { return a * b + c; })>;
    return nullptr;
  }
  return by_int(t, [&](auto x) -> Handler {
    using T = decltype(x);
    if (d.has("hi")) return &ternary<T, T, decltype([](T a, T b, T c) { return T(high_product(a, b) + c); })>;
    return &ternary<T, T, decltype([](T a, T b, T c) { return T(a * b + c); })>;
  });
}

template <class T>
Next insert_bits(Warp &w, const Instr &i, u32 lanes) {  // bfi d, a into b, at c, length e
  T *d = w.at<T>(i.slot[0]);
  const T *a = w.at<T>(i.slot[1]), *b = w.at<T>(i.slot[2]);
  const u32 *first = w.at<u32>(i.slot[3]), *length = w.at<u32>(i.slot[4]);
  each(lanes, [&](int l) {
    const u32 at = first[l] & 255, n = length[l] & 255, bits = 8 * sizeof(T);
    const T mask = at >= bits || n == 0 ? T(0) : T((n >= bits ? T(-1) : (T(1) << n) - 1) << at);
    d[l] = T((b[l] & ~mask) | (at >= bits ? T(0) : T(a[l] << at) & mask));
  });
  return Next::GO;
}
template <class T>
Next extract_bits(Warp &w, const Instr &i, u32 lanes) {  // bfe
  T *d = w.at<T>(i.slot[0]);
  const T *a = w.at<T>(i.slot[1]);
  const u32 *first = w.at<u32>(i.slot[2]), *length = w.at<u32>(i.slot[3]);
  each(lanes, [&](int l) {
    const u32 at = first[l] & 255, n = length[l] & 255, bits = 8 * sizeof(T);
    if (n == 0 || (at >= bits && !std::is_signed_v<T>)) return void(d[l] = 0);
    const u32 used = at + n > bits ? bits - (at < bits ? at : bits - 1) : n, from = at < bits ? at : bits - 1;
    d[l] = T(T(a[l] << (bits - from - used)) >> (bits - used));
  });
  return Next::GO;
}
Next permute_bytes(Warp &w, const Instr &i, u32 lanes) {  // prmt
  u32 *d = w.at<u32>(i.slot[0]);
  const u32 *a = w.at<u32>(i.slot[1]), *b = w.at<u32>(i.slot[2]), *c = w.at<u32>(i.slot[3]);
  each(lanes, [&](int l) {
    const u64 both = u64(b[l]) << 32 | a[l];
    u32 x = 0;
    for (int k = 0; k < 4; ++k) {
      const u32 pick = c[l] >> (4 * k);
      u32 byte = u32(both >> (8 * (pick & 7))) & 255;
      if (pick & 8) byte = byte & 128 ? 255 : 0;
      x |= byte << (8 * k);
    }
    d[l] = x;
  });
  return Next::GO;
}
Next lookup3(Warp &w, const Instr &i, u32 lanes) {  // lop3
  u32 *d = w.at<u32>(i.slot[0]);
  const u32 *a = w.at<u32>(i.slot[1]), *b = w.at<u32>(i.slot[2]), *c = w.at<u32>(i.slot[3]);
  each(lanes, [&](int l) {
    u32 x = 0;
    for (int k = 0; k < 8; ++k)
      if (i.imm >> k & 1) x |= (k & 4 ? a[l] : ~a[l]) & (k & 2 ? b[l] : ~b[l]) & (k & 1 ? c[l] : ~c[l]);
    d[l] = x;
  });
  return Next::GO;
}
template <bool Left, bool Clamp>
Next funnel(Warp &w, const Instr &i, u32 lanes) {  // shf
  u32 *d = w.at<u32>(i.slot[0]);
  const u32 *a = w.at<u32>(i.slot[1]), *b = w.at<u32>(i.slot[2]), *c = w.at<u32>(i.slot[3]);
  each(lanes, [&](int l) {
    const u64 both = u64(b[l]) << 32 | a[l];
    const u32 n = Clamp ? (c[l] > 32 ? 32 : c[l]) : c[l] & 31;
    d[l] = Left ? u32(both << n >> 32) : u32(both >> n);
  });
  return Next::GO;
}

// ---- predicates and choices ----
template <class F>
Next pred_binary(Warp &w, const Instr &i, u32 lanes) {
  auto get = [&](const Slot &s) { return s.negated ? ~w.pred(s) : w.pred(s); };
  u32 &d = w.pred(i.slot[0]);
  d = (d & ~lanes) | (F()(get(i.slot[1]), i.slot.size() > 2 ? get(i.slot[2]) : 0) & lanes);
  return Next::GO;
}
Next move_pred(Warp &w, const Instr &i, u32 lanes) {
  u32 &d = w.pred(i.slot[0]);
  const u32 from = i.imm >= 0 ? (i.imm ? ~0u : 0u) : i.slot[1].negated ? ~w.pred(i.slot[1]) : w.pred(i.slot[1]);
  d = (d & ~lanes) | (from & lanes);
  return Next::GO;
}
template <class T>
Next choose(Warp &w, const Instr &i, u32 lanes) {
  T *d = w.at<T>(i.slot[0]);
  const T *a = w.at<T>(i.slot[1]), *b = w.at<T>(i.slot[2]);
  const u32 p = w.pred(i.slot[3]);
  each(lanes, [&](int l) { d[l] = p >> l & 1 ? a[l] : b[l]; });
  return Next::GO;
}
// setp d, a, b and setp.cmp.bool d, a, b, c.
template <class T, class F>
Next compare(Warp &w, const Instr &i, u32 lanes) {
  const auto *a = w.at<In<T>>(i.slot[1]);
  const auto *b = w.at<In<T>>(i.slot[2]);
  u32 x = 0;
  each(lanes, [&](int l) { x |= u32(F()(T(a[l]), T(b[l]))) << l; });
  if (i.imm != 0) {
    const u32 c = i.slot[3].negated ? ~w.pred(i.slot[3]) : w.pred(i.slot[3]);
    x = i.imm == 1 ? x & c : i.imm == 2 ? x | c : x ^ c;
  }
  u32 &d = w.pred(i.slot[0]);
  d = (d & ~lanes) | (x & lanes);
  return Next::GO;
}
Handler comparison(std::string_view op, Type t) {
#define COMPARE(...) &compare<T, decltype([](T a, T b) { return bool(__VA_ARGS__); })>
  return by_number(t, [&](auto x) -> Handler {
    using T = decltype(x);
    if (op == "eq") return COMPARE(a == b);
    if (op == "ne") return COMPARE(a < b || a > b);
    if (op == "lt" || op == "lo") return COMPARE(a < b);
    if (op == "le" || op == "ls") return COMPARE(a <= b);
    if (op == "gt" || op == "hi") return COMPARE(a > b);
    if (op == "ge" || op == "hs") return COMPARE(a >= b);
    if (op == "equ") return COMPARE(!(a < b || a > b));
    if (op == "neu") return COMPARE(!(a == b));
    if (op == "ltu") return COMPARE(!(a >= b));
    if (op == "leu") return COMPARE(!(a > b));
    if (op == "gtu") return COMPARE(!(a <= b));
    if (op == "geu") return COMPARE(!(a < b));
    if (op == "num") return COMPARE(a == a && b == b);
    if (op == "nan") return COMPARE(a != a || b != b);
    return nullptr;
  });
}

// ---- moves ----
template <class T>
Next move(Warp &w, const Instr &i, u32 lanes) {
  T *d = w.at<T>(i.slot[0]);
  const T *a = w.at<T>(i.slot[1]);
  each(lanes, [&](int l) { d[l] = a[l]; });
  return Next::GO;
}
Next move_address(Warp &w, const Instr &i, u32 lanes) {  // a base plus an offset
  each(lanes, [&](int l) { w.set(i.slot[0], l, w.value(i.slot[1], l) + u64(i.offset[0])); });
  return Next::GO;
}
Next pack(Warp &w, const Instr &i, u32 lanes) {  // packs {a, b, ..} of i.imm bits each into one value
  each(lanes, [&](int l) {
    u64 x = 0;
    for (size_t k = 1; k < i.slot.size(); ++k)
      x |= (w.value(i.slot[k], l) & ((1ull << i.imm) - 1)) << (i.imm * i64(k - 1));
    w.set(i.slot[0], l, x);
  });
  return Next::GO;
}
Next unpack(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const u64 x = w.value(i.slot.back(), l);
    for (size_t k = 0; k + 1 < i.slot.size(); ++k)
      if (i.slot[k].at != NO_SLOT) w.set(i.slot[k], l, x >> (i.imm * i64(k)) & ((1ull << i.imm) - 1));
  });
  return Next::GO;
}

// ---- decoding ----
bool values(Decoder &d, Handler h, std::initializer_list<bool> wide) {
  if (h == nullptr || d.args.size() < wide.size()) return false;
  for (size_t k = 0; k < wide.size(); ++k) {
    if (d.arg(k).kind == Arg::SINK) return false;
    d.value(d.arg(k), wide.begin()[k]);
  }
  d.instr.run = h;
  return true;
}
bool decode_move(Decoder &d, Type t) {
  const Arg &to = d.arg(0), &from = d.arg(1);
  const bool wide = size_of(t) == 8;
  if (from.kind == Arg::VECTOR || to.kind == Arg::VECTOR) {
    const Arg &many = from.kind == Arg::VECTOR ? from : to;
    d.instr.imm = 8 * size_of(t) / i64(many.items.size());
    d.instr.run = &many == &from ? pack : unpack;
    if (&many == &from) d.value(to, wide);
    for (const Arg &a : many.items) d.value(a, d.instr.imm > 32);
    if (&many == &to) d.value(from, wide);
    return true;
  }
  if (from.symbol && !from.constant) {
    d.value(to, wide);
    d.instr.slot.push_back(from.slot);
    d.instr.offset[0] = from.offset;
    d.instr.run = move_address;
    return true;
  }
  return values(d, wide ? &move<u64> : &move<u32>, {wide, wide});
}
bool decode_pred(Decoder &d) {
  const std::string_view op = d.op();
  if (op == "mov") {
    d.instr.imm = d.arg(1).constant ? i64(d.arg(1).bits) : -1;
    return values(d, move_pred, {false, false});
  }
  if (op == "not") return values(d, &pred_binary<decltype([](u32 a, u32) { return ~a; })>, {false, false});
  const Handler h = op == "and"   ? &pred_binary<decltype([](u32 a, u32 b) { return a & b; })>
                    : op == "or"  ? &pred_binary<decltype([](u32 a, u32 b) { return a | b; })>
                    : op == "xor" ? Handler(&pred_binary<decltype([](u32 a, u32 b) { return a ^ b; })>)
                                  : nullptr;
  return values(d, h, {false, false, false});
}
bool decode_setp(Decoder &d, Type t) {
  const bool wide = size_of(t) == 8;
  d.instr.imm = d.has("and") ? 1 : d.has("or") ? 2 : d.has("xor") ? 3 : 0;
  if (d.arg(0).second.at != NO_SLOT) return false;
  if (!values(d, comparison(d.part(1), t), {false, wide, wide})) return false;
  if (d.instr.imm != 0) d.value(d.arg(3), false);
  return true;
}
bool decode_odd(Decoder &d, Type t) {  // instructions with unusual operands
  const std::string_view op = d.op();
  const bool wide = size_of(t) == 8;
  if (op == "bfi") return values(d, wide ? &insert_bits<u64> : &insert_bits<u32>, {wide, wide, wide, false, false});
  if (op == "bfe") {
    const Handler h = t == U32   ? &extract_bits<u32>
                      : t == S32 ? &extract_bits<i32>
                      : t == U64 ? &extract_bits<u64>
                                 : &extract_bits<i64>;
    return values(d, h, {wide, wide, false, false});
  }
  if (op == "prmt") return values(d, d.m.size() == 2 ? &permute_bytes : nullptr, {false, false, false, false});
  if (op == "lop3") {
    d.instr.imm = i64(d.arg(4).bits);
    return values(d, lookup3, {false, false, false, false});
  }
  if (op == "shf") {
    const bool left = d.has("l"), clamp = d.has("clamp");
    const Handler h = left    ? clamp ? &funnel<true, true> : &funnel<true, false>
                         : clamp ? &funnel<false, true>
                              : &funnel<false, false>;
    return values(d, h, {false, false, false, false});
  }
  if (op == "clz" || op == "popc" || (op == "bfind" && (t == U32 || t == U64)))
    return values(d, wide ? count_of<u64>(d) : count_of<u32>(d), {false, wide});
  return false;
}

// Refuses unknown modifiers, because ignoring one would give wrong results.
bool known_modifiers(const Decoder &d, Type t) {
  static const std::string_view known[] = {"rn",   "approx",   "full",  "ftz",  "NaN", "lo", "hi",
                                           "wide", "shiftamt", "clamp", "wrap", "l",   "r"};
  return std::all_of(d.m.begin() + 1, d.m.end(), [&](std::string_view part) {
    if (part == "rz" || part == "rm" || part == "rp") return !d.has("ftz") && float_directed(d, t) != nullptr;
    return type_named(part) != NO_TYPE || std::find(std::begin(known), std::end(known), part) != std::end(known);
  });
}

}  // namespace

bool decode_arithmetic(Decoder &d) {
  const std::string_view op = d.op();
  const Type t = d.last_type();
  if (op != "setp" && !known_modifiers(d, t)) return false;
  const bool wide = size_of(t) == 8;
  if (op == "mov" && t != PRED) return decode_move(d, t);
  if (t == PRED) return decode_pred(d);
  if (op == "setp") return decode_setp(d, t);
  if (op == "selp") return values(d, wide ? &choose<u64> : &choose<u32>, {wide, wide, wide, false});
  if (t == F16X2 || t == BF16X2) {
    const Handler h = t == F16X2 ? packed_named<F16X2>(d) : packed_named<BF16X2>(d);
    if (d.args.size() == 2) return values(d, h, {false, false});
    return d.args.size() == 3 ? values(d, h, {false, false, false}) : values(d, h, {false, false, false, false});
  }
  if (decode_odd(d, t)) return true;
  if (op == "shl" || op == "shr") return values(d, int_shift(d, t), {wide, wide, false});
  const bool is_float = t == F32 || t == F64;
  if (const Handler h = float_directed(d, t); h != nullptr)
    return op == "fma" ? values(d, h, {wide, wide, wide, wide}) : values(d, h, {wide, wide, wide});
  if (op == "mul" && d.has("wide")) return values(d, wide_product(t), {size_of(t) == 4, false, false});
  if (op == "mad" && d.has("wide")) return values(d, int_mad(d, t), {true, false, false, true});
  if (op == "fma" || (op == "mad" && is_float)) return values(d, float_fma(d, t), {wide, wide, wide, wide});
  if (op == "mad") return values(d, int_mad(d, t), {wide, wide, wide, wide});
  if (d.args.size() > 3) return false;
  if (d.args.size() == 2) return values(d, is_float ? float_unary(d, t) : int_unary(d, t), {wide, wide});
  return values(d, is_float ? float_binary(d, t) : int_binary(d, t), {wide, wide, wide});
}

}  // namespace ptx
