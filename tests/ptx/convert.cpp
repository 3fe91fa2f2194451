// convert.cpp: cvt, and 16-bit floats. PTX ISA, 9.7.9.21.
#include <bit>
#include <cmath>
#include <limits>

#include "decoder.hpp"

namespace ptx {

float half_to_float(u16 x) {
  const int exponent = x >> 10 & 31, mantissa = x & 1023;
  float f = exponent == 31  ? mantissa ? NAN : INFINITY
            : exponent == 0 ? std::ldexp(float(mantissa), -24)
                            : std::ldexp(float(1024 + mantissa), exponent - 25);
  return x >> 15 ? -f : f;
}

// Rounds to the nearest number with a significand of `bits` bits and an exponent of at least `least`; ties to
// even.
static double nearest(double x, int bits, int least) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent;
  std::frexp(x, &exponent);
  const int unit = (exponent - 1 < least ? least : exponent - 1) - (bits - 1);
  return std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
}

u16 float_to_half(float x) {
  const u16 sign = u16(std::signbit(x) << 15);
  if (std::isnan(x)) return 0x7fff;
  const double y = std::fabs(nearest(x, 11, -14));
  if (y > 65504) return sign | 0x7c00;
  if (y < std::ldexp(1.0, -14)) return u16(sign | u16(std::ldexp(y, 24)));
  int exponent;
  const double m = std::frexp(y, &exponent);
  return u16(sign | (exponent + 14) << 10 | (u16(std::ldexp(m, 11)) & 1023));
}

u16 float_to_bf16(float x) {
  if (std::isnan(x)) return 0x7fff;
  const u32 bits = std::bit_cast<u32>(x);
  return u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

namespace {

enum Rounding : u8 { AS_IS, NEAREST, DOWN, UP, ZERO };

double whole(double x, u8 rounding) {
  return rounding == NEAREST ? std::nearbyint(x)
         : rounding == DOWN  ? std::floor(x)
         : rounding == UP    ? std::ceil(x)
                             : std::trunc(x);
}

bool is_float(Type t) { return t == F16 || t == BF16 || t == F32 || t == F64; }
bool is_signed(Type t) { return t == S8 || t == S16 || t == S32 || t == S64; }

i64 extended(u64 x, Type t) {
  switch (t) {
    case S8:
      return int8_t(x);
    case S16:
      return int16_t(x);
    case S32:
      return i32(x);
    case U8:
    case B8:
      return u8(x);
    case U16:
    case B16:
      return u16(x);
    case U32:
    case B32:
      return u32(x);
    default:
      return i64(x);
  }
}
double float_of(u64 x, Type t) {
  return t == F64 ? std::bit_cast<double>(x) : t == F32 ? std::bit_cast<float>(u32(x)) : small_to_float(t, u16(x));
}
u64 bits_of(double x, Type t) {
  return t == F64 ? std::bit_cast<u64>(x) : t == F32 ? std::bit_cast<u32>(float(x)) : float_to_small(t, float(x));
}

u64 float_to_int(double x, Type t, u8 rounding) {
  if (std::isnan(x)) return 0;
  const int bits = 8 * size_of(t) - is_signed(t);
  const double y = whole(x, rounding), above = std::ldexp(1.0, bits), least = is_signed(t) ? -above : 0;
  if (y >= above) return is_signed(t) ? (1ull << bits) - 1 : bits == 64 ? ~0ull : (1ull << bits) - 1;
  if (y < least) return is_signed(t) ? u64(-1) << bits : 0;
  return is_signed(t) ? u64(i64(y)) : u64(y);
}
u64 int_to_float(i64 x, Type from, Type to) {
  const bool large = from == U64 && x < 0;
  if (to == F32) return std::bit_cast<u32>(large ? float(u64(x)) : float(x));
  return bits_of(large ? double(u64(x)) : double(x), to);
}
u64 float_to_float(double x, const Instr &i) {
  if (i.rounding != AS_IS && i.to_whole) x = whole(x, i.rounding);
  if (i.sat) x = std::isnan(x) || x < 0 ? 0 : x > 1 ? 1 : x;
  if (i.rounding == ZERO && !i.to_whole && i.from == F64) {  // cvt.rz.f32.f64
    float y = float(x);
    if (std::fabs(double(y)) > std::fabs(x)) y = std::nextafter(y, 0.0f);
    return std::bit_cast<u32>(y);
  }
  return bits_of(x, i.type);
}
u64 clamped(i64 x, Type t) {
  const int bits = 8 * size_of(t) - is_signed(t);
  const i64 most = bits >= 63 ? std::numeric_limits<i64>::max() : (1ll << bits) - 1,
            least = is_signed(t) ? -most - 1 : 0;
  return u64(x > most ? most : x < least ? least : x);
}

Next convert(Warp &w, const Instr &i, u32 lanes) {
  each(lanes, [&](int l) {
    const u64 x = w.value(i.slot[1], l);
    u64 y;
    if (is_float(i.from))
      y = is_float(i.type) ? float_to_float(float_of(x, i.from), i)
                           : float_to_int(float_of(x, i.from), i.type, i.rounding);
    else if (is_float(i.type))
      y = int_to_float(extended(x, i.from), i.from, i.type);
    else
      y = i.sat ? clamped(extended(x, i.from), i.type) : u64(extended(x, i.from));
    const int bits = 8 * size_of(i.type);
    // A wider register is sign-extended (PTX ISA, table of relaxed sizes).
    if (bits < 64) y = is_signed(i.type) && i.slot[0].wide ? u64(extended(y, i.type)) : y & ((1ull << bits) - 1);
    if (is_signed(i.type) && bits < 32 && !i.slot[0].wide) y = u32(extended(y, i.type));
    w.set(i.slot[0], l, y);
  });
  return Next::GO;
}

template <Type T>
Next convert_two(Warp &w, const Instr &i, u32 lanes) {  // cvt.rn.f16x2.f32 d, high, low
  u32 *d = w.at<u32>(i.slot[0]);
  const float *high = w.at<float>(i.slot[1]), *low = w.at<float>(i.slot[2]);
  each(lanes, [&](int l) { d[l] = u32(float_to_small(T, high[l])) << 16 | float_to_small(T, low[l]); });
  return Next::GO;
}

}  // namespace

bool decode_convert(Decoder &d) {
  if (d.op() != "cvt") return false;
  Instr &i = d.instr;
  for (const std::string_view part : d.m)
    if (const Type t = type_named(part); t != NO_TYPE) (i.type == NO_TYPE ? i.type : i.from) = t;
  for (const std::string_view part : d.m) {
    if (part.size() < 2 || part[0] != 'r') continue;
    i.rounding = part[1] == 'n' ? NEAREST : part[1] == 'm' ? DOWN : part[1] == 'p' ? UP : ZERO;
    i.to_whole = part.size() == 3;  // rni ..
    if (i.to_whole && part[2] != 'i') return false;
    if (i.rounding != NEAREST && !i.to_whole && !(i.rounding == ZERO && i.type == F32 && i.from == F64)) return false;
  }
  i.sat = d.has("sat");
  if (d.has("relu") || d.has("satfinite")) return false;
  if (i.type == F16X2 || i.type == BF16X2) {
    if (d.args.size() != 3) return false;
    for (const Arg &a : d.args) d.value(a, false);
    i.run = i.type == F16X2 ? &convert_two<F16X2> : &convert_two<BF16X2>;
    return true;
  }
  if (i.from == NO_TYPE || d.args.size() != 2) return false;
  d.value_of(d.arg(0), i.type);
  d.value_of(d.arg(1), i.from);
  i.run = convert;
  return true;
}

}  // namespace ptx
