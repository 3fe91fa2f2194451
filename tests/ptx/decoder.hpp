// decoder.hpp: state of decoding a module's instructions (decode.cpp).
#pragma once
#include "machine.hpp"

namespace ptx {

// decode.cpp calls each decode function until one accepts the mnemonic, whose parts are in `m`.
struct Decoder {
  Module &module;
  Instr &instr;
  std::vector<std::string_view> m;
  const std::vector<Arg> &args;

  std::string_view op() const { return m[0]; }
  std::string_view part(size_t k) const { return k < m.size() ? m[k] : std::string_view(); }
  const Arg &arg(size_t k) const { return k < args.size() ? args[k] : (unknown(), args[0]); }
  bool has(std::string_view part) const;
  Type last_type() const;
  void value(const Arg &a, bool wide);  // appends the slot of a value
  void value_of(const Arg &a, Type t) { value(a, size_of(t) == 8); }
  void address(const Arg &a, int which = 0);  // appends the slot of the base, and records the offset
  [[noreturn]] void unknown() const;
};
bool decode_arithmetic(Decoder &);
bool decode_carry(Decoder &);
bool decode_convert(Decoder &);
bool decode_memory(Decoder &);
bool decode_sync(Decoder &);
bool decode_matrix(Decoder &);
bool decode_copies(Decoder &);

}  // namespace ptx
