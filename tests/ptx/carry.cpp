// carry.cpp: integer instructions that take a carry from the one before or leave one: add.cc, addc, sub.cc, subc,
// mad.lo.cc, madc and their kind. PTX ISA, 9.7.2. CC.CF is a bit for each lane; after a subtraction it is the borrow.
#include "decoder.hpp"

namespace ptx {
namespace {

enum Kind { ADD, SUB, LOW, HIGH };  // a + b, a - b, low or high half of a * b, plus c

template <class T>
using Wide = std::conditional_t<sizeof(T) == 8, unsigned __int128, u64>;

template <class T, Kind K, bool Takes, bool Leaves>
Next carry(Warp &w, const Instr &i, u32 lanes) {
  using U = std::make_unsigned_t<T>;
  U *d = w.at<U>(i.slot[0]);
  const U *a = w.at<U>(i.slot[1]), *b = w.at<U>(i.slot[2]);
  const U *c = K == LOW || K == HIGH ? w.at<U>(i.slot[3]) : nullptr;
  constexpr int bits = 8 * sizeof(T);
  each(lanes, [&](int l) {
    const Wide<T> in = Takes ? w.carry >> l & 1 : 0;
    Wide<T> x;
    if constexpr (K == ADD) {
      x = Wide<T>(a[l]) + b[l] + in;
    } else if constexpr (K == SUB) {
      x = Wide<T>(a[l]) - b[l] - in;  // wraps below 0, where the bit above is the borrow
    } else {
      using Product =
          std::conditional_t<std::is_signed_v<T>, std::conditional_t<sizeof(T) == 8, __int128, i64>, Wide<T>>;
      const Wide<T> product = Wide<T>(Product(T(a[l])) * Product(T(b[l])));
      x = Wide<T>(U(K == LOW ? product : product >> bits)) + c[l] + in;
    }
    d[l] = U(x);
    if constexpr (Leaves) w.carry = (w.carry & ~(1u << l)) | u32(x >> bits & 1) << l;
  });
  return Next::GO;
}

template <class T, Kind K>
Handler by_carry(bool takes, bool leaves) {
  if (takes) return leaves ? &carry<T, K, true, true> : &carry<T, K, true, false>;
  return leaves ? &carry<T, K, false, true> : nullptr;
}
template <class T>
Handler by_kind(std::string_view op, bool high, bool takes, bool leaves) {
  if (op == "add" || op == "addc") return by_carry<T, ADD>(takes, leaves);
  if (op == "sub" || op == "subc") return by_carry<T, SUB>(takes, leaves);
  return high ? by_carry<T, HIGH>(takes, leaves) : by_carry<T, LOW>(takes, leaves);
}
Handler handler_of(std::string_view op, bool high, bool takes, bool leaves, Type t) {
  switch (t) {
    case U32:
      return by_kind<u32>(op, high, takes, leaves);
    case S32:
      return by_kind<i32>(op, high, takes, leaves);
    case U64:
      return by_kind<u64>(op, high, takes, leaves);
    case S64:
      return by_kind<i64>(op, high, takes, leaves);
    default:
      return nullptr;
  }
}

}  // namespace

bool decode_carry(Decoder &d) {
  const std::string_view op = d.op();
  const bool takes = op == "addc" || op == "subc" || op == "madc", leaves = d.part(d.m.size() - 2) == "cc";
  const bool product = op == "mad" || op == "madc", half = d.part(1) == "lo" || d.part(1) == "hi";
  if (!takes && !(leaves && (op == "add" || op == "sub" || op == "mad"))) return false;
  if (d.m.size() != 2u + product + leaves || half != product) return false;
  const Type t = type_named(d.m.back());
  const size_t operands = product ? 4 : 3;
  const Handler h = handler_of(op, d.part(1) == "hi", takes, leaves, t);
  if (h == nullptr || d.args.size() != operands) return false;
  for (size_t k = 0; k < operands; ++k) {
    if (d.arg(k).kind == Arg::SINK) return false;
    d.value_of(d.arg(k), t);
  }
  d.instr.run = h;
  return true;
}

}  // namespace ptx
