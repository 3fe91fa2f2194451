// decode.cpp: finds the handler of a mnemonic.
#include <algorithm>

#include "decoder.hpp"

namespace ptx {

bool Decoder::has(std::string_view part) const { return std::find(m.begin(), m.end(), part) != m.end(); }

Type Decoder::last_type() const {
  for (size_t i = m.size(); i-- > 1;)
    if (const Type t = type_named(m[i]); t != NO_TYPE) return t;
  unknown();
}

void Decoder::value(const Arg &a, bool wide) {
  if (a.kind == Arg::SINK) return instr.slot.push_back({});
  if (a.kind != Arg::VALUE || (a.symbol && !a.constant)) unknown();
  if (a.constant) return instr.slot.push_back({constant_slot(module, a.bits, wide), wide});
  instr.slot.push_back(a.slot);
}

void Decoder::address(const Arg &a, int which) {
  if (a.kind != Arg::ADDRESS) unknown();
  instr.offset[which] = a.offset;
  instr.slot.push_back(a.constant ? Slot{constant_slot(module, a.bits, true), true} : a.slot);
}

void Decoder::unknown() const {
  const char *text = module.text.data();
  for (int line = 1; line < instr.line && *text; ++text) line += *text == '\n';
  fail("line %d of the PTX is not known to this machine: %.*s", instr.line, int(strcspn(text, "\n")), text);
}

void decode(Module &module, Instr &instr, std::string_view mnemonic, const std::vector<Arg> &args) {
  Decoder d = {module, instr, {}, args};
  for (size_t at = 0; at <= mnemonic.size();) {
    size_t dot = mnemonic.find('.', at);
    if (dot == std::string_view::npos) dot = mnemonic.size();
    d.m.push_back(mnemonic.substr(at, dot - at));
    at = dot + 1;
  }
  const bool known = decode_sync(d) || decode_matrix(d) || decode_copies(d) || decode_memory(d) || decode_convert(d) ||
                     decode_carry(d) || decode_arithmetic(d);
  if (!known) d.unknown();
}

}  // namespace ptx
