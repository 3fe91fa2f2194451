// parse.cpp: parses PTX text, as NVRTC and the templates' inline assembly write it, into a Module:
// declarations, labels, nested scopes, instructions. PTX ISA, chapters 4 and 5.
#include <cctype>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "program.hpp"

namespace ptx {

void fail(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("ptx: ", stderr);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  fflush(stdout);
  _Exit(3);
}

Type type_named(std::string_view name) {
  static const std::pair<std::string_view, Type> types[] = {
      {"pred", PRED}, {"b8", B8},   {"u8", U8},   {"s8", S8},       {"b16", B16},      {"u16", U16}, {"s16", S16},
      {"b32", B32},   {"u32", U32}, {"s32", S32}, {"b64", B64},     {"u64", U64},      {"s64", S64}, {"f16", F16},
      {"bf16", BF16}, {"f32", F32}, {"f64", F64}, {"f16x2", F16X2}, {"bf16x2", BF16X2}};
  for (const auto &[n, t] : types)
    if (n == name) return t;
  return NO_TYPE;
}

i32 constant_slot(Module &m, u64 bits, bool wide) {
  if (!wide) bits = u32(bits);
  auto [it, is_new] = (wide ? m.wide_constant : m.narrow_constant).try_emplace(bits, m.slot_bytes);
  if (is_new) {
    m.initial.push_back({{it->second, wide}, bits});
    m.slot_bytes += wide ? WIDE_BYTES : NARROW_BYTES;
  }
  return it->second;
}

namespace {

struct Symbol {
  enum Kind : u8 { REGISTER, FRAME, PARAM, SHARED, DYNAMIC, GLOBAL } kind;
  Slot slot;
  i64 at;
};
struct Range {  // %f<100>
  i32 first, count, bytes;
  bool wide;
};
struct Scope {
  std::unordered_map<std::string, Symbol> symbols;
  std::unordered_map<std::string, Range> ranges;
  std::unordered_map<std::string, i32> labels;
  std::vector<std::pair<std::string, i32>> wanted;  // labels that instructions of this scope name
};

struct Parser {
  Module &m;
  const char *p, *end;
  int line = 1;
  std::vector<Scope> scopes = std::vector<Scope>(1);

  explicit Parser(Module &module) : m(module), p(m.text.data()), end(m.text.data() + m.text.size()) {}

  [[noreturn]] void unexpected(const char *what) const {
    const char *stop = p;
    while (stop < end && *stop != '\n' && stop - p < 100) ++stop;
    fail("line %d of the PTX: %s at '%.*s'", line, what, int(stop - p), p);
  }

  // ---- words ----
  void skip() {
    for (; p < end; ++p) {
      if (*p == '\n') ++line;
      if (p + 1 < end && p[0] == '/' && p[1] == '/') {
        while (p < end && *p != '\n') ++p;
        --p;
      } else if (!isspace(u8(*p))) {
        return;
      }
    }
  }
  bool at(char c) { return skip(), p < end && *p == c; }
  bool take(char c) { return at(c) ? (++p, true) : false; }
  void expect(char c) {
    if (!take(c)) unexpected((std::string("no '") + c + "'").c_str());
  }
  static bool in_word(char c) { return isalnum(u8(c)) || c == '_' || c == '$' || c == '%'; }
  std::string_view word() {
    skip();
    const char *first = p;
    while (p < end && in_word(*p)) ++p;
    if (p == first) unexpected("a name is missing");
    return {first, size_t(p - first)};
  }
  // A word with dots and colons: a mnemonic, a directive, a special register.
  std::string_view long_word() {
    skip();
    const char *first = p;
    while (p < end && (in_word(*p) || *p == '.' || *p == ':')) ++p;
    return {first, size_t(p - first)};
  }
  i64 integer() {
    skip();
    char *stop;
    const bool negative = *p == '-';
    const u64 x = strtoull(p + negative, &stop, 0);
    if (stop == p + negative) unexpected("a number is missing");
    p = stop;
    if (p < end && *p == 'U') ++p;
    return negative ? -i64(x) : i64(x);
  }
  void skip_to(char c) {
    while (p < end && *p != c) line += *p++ == '\n';
  }

  // ---- names ----
  std::optional<Symbol> find(std::string_view name) const {
    const std::string key(name);
    size_t digits = name.size();
    while (digits > 0 && isdigit(u8(name[digits - 1]))) --digits;
    const std::string base = key.substr(0, digits);
    for (size_t s = scopes.size(); s-- > 0;) {
      if (auto it = scopes[s].symbols.find(key); it != scopes[s].symbols.end()) return it->second;
      if (digits == name.size()) continue;
      if (auto it = scopes[s].ranges.find(base); it != scopes[s].ranges.end()) {
        const int i = atoi(key.c_str() + digits);
        if (i >= it->second.count) continue;
        return Symbol{Symbol::REGISTER, {it->second.first + i * it->second.bytes, it->second.wide}, 0};
      }
    }
    return std::nullopt;
  }
  void declare(std::string_view name, Symbol s) { scopes.back().symbols[std::string(name)] = s; }

  static Slot special(std::string_view name) {
    static const std::pair<std::string_view, int> known[] = {
        {"%tid.x", TID_X},       {"%tid.y", TID_Y},
        {"%tid.z", TID_Z},       {"%ntid.x", NTID_X},
        {"%ntid.y", NTID_Y},     {"%ntid.z", NTID_Z},
        {"%ctaid.x", CTAID_X},   {"%ctaid.y", CTAID_Y},
        {"%ctaid.z", CTAID_Z},   {"%nctaid.x", NCTAID_X},
        {"%nctaid.y", NCTAID_Y}, {"%nctaid.z", NCTAID_Z},
        {"%laneid", LANE},       {"%cluster_ctarank", CLUSTER_RANK}};
    for (const auto &[n, i] : known)
      if (n == name) return {narrow_slot(i)};
    return {};
  }

  // ---- operands ----
  // Returns whether a float literal follows: 0f3f800000 or 0d3ff0000000000000.
  bool at_float() const { return end - p > 2 && p[0] == '0' && strchr("fFdD", p[1]) != nullptr && isxdigit(u8(p[2])); }
  u64 float_bits() {
    const std::ptrdiff_t digits = p[1] == 'f' || p[1] == 'F' ? 8 : 16;
    if (end - p < 2 + digits) unexpected("digits are missing");
    const std::string hex(p + 2, size_t(digits));
    if (hex.find_first_not_of("0123456789abcdefABCDEF") != hex.npos) unexpected("digits are missing");
    p += 2 + digits;
    return strtoull(hex.c_str(), nullptr, 16);
  }
  // Parses a constant expression of inline assembly, such as 2+128*8.
  Arg number() {
    Arg a;
    a.constant = true;
    if (at_float()) return a.bits = float_bits(), a;
    do {
      u64 product = u64(integer());
      while (take('*')) product *= u64(integer());
      a.bits += product;
    } while (take('+'));
    return a;
  }
  Arg named() {
    Arg a;
    const char *first = p;
    std::string_view name = word();
    if (p < end && *p == '.') {
      p = first;
      name = long_word();
      if (a.slot = special(name); a.slot.at != NO_SLOT) return a;
      unexpected("this special register is not known");
    }
    if (name == "_") return a.kind = Arg::SINK, a;
    if (name == "WARP_SZ") return a.constant = true, a.bits = LANES, a;
    if (a.slot = special(name); a.slot.at != NO_SLOT) return a;
    const std::optional<Symbol> s = find(name);
    if (!s) return a.kind = Arg::NAME, a.name = name, a;
    a.slot = s->slot;
    a.offset = s->at;
    a.symbol = s->kind != Symbol::REGISTER;
    if (s->kind == Symbol::GLOBAL || s->kind == Symbol::SHARED) a.constant = true, a.bits = u64(s->at), a.offset = 0;
    return a;
  }
  Arg address() {
    Arg a;
    expect('[');
    skip();
    a = isdigit(u8(*p)) || *p == '-' ? number() : named();
    if (a.kind == Arg::NAME) unexpected("no such variable");
    while (at('+') || at('-')) {
      const bool minus = *p++ == '-';
      const i64 x = integer();
      a.offset += minus ? -x : x;
    }
    if (take(',')) a.coords = operand().items;
    expect(']');
    a.kind = Arg::ADDRESS;
    return a;
  }
  Arg list(char open, char close) {
    Arg a;
    a.kind = Arg::VECTOR;
    expect(open);
    if (take(close)) return a;
    do a.items.push_back(operand());
    while (take(','));
    expect(close);
    return a;
  }
  Arg operand() {
    skip();
    if (*p == '[') return address();
    if (*p == '{') return list('{', '}');
    if (*p == '(') return list('(', ')');
    if (isdigit(u8(*p)) || *p == '-') return number();
    const bool negated = take('!');
    Arg a = named();
    a.slot.negated = negated;
    if (take('|')) a.second = named().slot;
    return a;
  }

  // ---- declarations ----
  i32 new_slot(bool wide) {
    const i32 slot = m.slot_bytes;
    m.slot_bytes += wide ? WIDE_BYTES : NARROW_BYTES;
    return slot;
  }
  void registers() {
    const Type t = type_named(long_word().substr(1));
    const bool wide = size_of(t) == 8;
    do {
      const std::string name(word());
      if (!take('<')) {
        declare(name, {Symbol::REGISTER, {new_slot(wide), wide}, 0});
        continue;
      }
      const i32 count = i32(integer()), bytes = wide ? WIDE_BYTES : NARROW_BYTES;
      expect('>');
      scopes.back().ranges[name] = {m.slot_bytes, count, bytes, wide};
      m.slot_bytes += count * bytes;
    } while (take(','));
    expect(';');
  }
  // Result of parsing a declaration such as ".align 8 .b8 name[40]".
  struct Variable {
    std::string_view name;
    i32 bytes, align;
    Type type;
  };
  Variable variable() {
    Variable v = {{}, 0, 0, NO_TYPE};
    while (at('.')) {
      const std::string_view w = long_word();
      if (w == ".align")
        v.align = i32(integer());
      else if (w == ".ptr")
        long_word();
      else if (type_named(w.substr(1)) != NO_TYPE)
        v.type = type_named(w.substr(1));
    }
    v.name = word();
    const i32 elem = size_of(v.type);
    v.bytes = elem;
    if (take('[')) {
      v.bytes = at(']') ? 0 : elem * i32(integer());
      expect(']');
    }
    if (v.align == 0) v.align = elem;
    if (v.align <= 0 || v.bytes < 0) unexpected("a variable without type, or of no size");
    return v;
  }
  static i32 place(i32 *used, i32 bytes, i32 align) {
    const i32 at = (*used + align - 1) / align * align;
    *used = at + bytes;
    return at;
  }
  i32 declare_in_frame(const Variable &v) {
    const i32 at = place(&m.frame_bytes, v.bytes, v.align < 16 ? 16 : v.align);
    declare(v.name, {Symbol::FRAME, {wide_slot(FRAME_BASE), true}, at});
    return at;
  }
  void declare_shared(bool is_extern) {
    const Variable v = variable();
    expect(';');
    if (is_extern) return declare(v.name, {Symbol::DYNAMIC, {wide_slot(DYNAMIC_BASE), true}, 0});
    declare(v.name, {Symbol::SHARED, {}, SHARED_FIRST + place(&m.shared_bytes, v.bytes, v.align)});
  }
  void declare_global() {
    const Variable v = variable();
    const size_t bytes = size_t(v.bytes) + 64;
    m.globals.emplace_back(std::make_unique<u8[]>(bytes), bytes);
    u8 *data = m.globals.back().first.get();
    data += -uintptr_t(data) % 64;
    memset(data, 0, size_t(v.bytes));
    if (take('=')) {
      const Arg init = at('{') ? list('{', '}') : operand();
      const i32 elem = size_of(v.type);
      for (size_t i = 0; i < (init.kind == Arg::VECTOR ? init.items.size() : 1); ++i) {
        const u64 x = init.kind == Arg::VECTOR ? init.items[i].bits : init.bits;
        memcpy(data + i * size_t(elem), &x, size_t(elem));
      }
    }
    expect(';');
    declare(v.name, {Symbol::GLOBAL, {}, i64(data)});
  }

  // ---- functions ----
  std::vector<Function::Param> parameters(bool of_entry, Function &f) {
    std::vector<Function::Param> out;
    expect('(');
    while (!take(')')) {
      const Variable v = variable();
      i32 first;
      if (of_entry) {
        first = place(&f.param_bytes, v.bytes, v.align);
        declare(v.name, {Symbol::PARAM, {wide_slot(PARAM_BASE), true}, first});
      } else {
        first = declare_in_frame(v);
      }
      out.push_back({first, v.bytes});
      if (!take(',') && !at(')')) unexpected("no ',' or ')'");
    }
    return out;
  }
  void function_of(bool is_entry) {
    Function f;
    f.is_entry = is_entry;
    scopes.emplace_back();
    if (!is_entry && at('(')) f.results = parameters(false, f);
    f.name = std::string(word());
    if (at('(')) f.params = parameters(is_entry, f);
    while (at('.')) {
      const std::string_view w = long_word();
      if (w == ".reqnctapercluster") f.cluster = int(integer());
      for (int axis = 0; f.cluster > 1 && w == ".reqnctapercluster" && take(','); ++axis)
        if (integer() != 1) unexpected("clusters are rows of blocks here");
      while (p < end && !at('.') && !at('{') && !at(';')) ++p;
    }
    if (!take('{')) {  // a declaration; the definition repeats its parameters
      expect(';');
      scopes.pop_back();
      return;
    }
    f.first = i32(m.code.size());
    m.function_named[f.name] = int(m.functions.size());
    m.functions.push_back(f);
    body();
    Instr &last = m.code.emplace_back();
    last.line = line;
    decode(m, last, "ret", {});
    close_scope();
  }
  void close_scope() {
    Scope s = std::move(scopes.back());
    scopes.pop_back();
    for (auto &[name, instr] : s.wanted) {
      if (auto it = s.labels.find(name); it != s.labels.end())
        m.code[size_t(instr)].target = it->second;
      else
        scopes.back().wanted.push_back({name, instr});
    }
  }
  void body() {
    for (int depth = 1;;) {
      if (take('{')) {
        scopes.emplace_back();
        ++depth;
      } else if (take('}')) {
        if (--depth == 0) return;
        close_scope();
      } else if (at('.')) {
        directive();
      } else if (!take(';')) {
        statement();
      }
    }
  }
  void directive() {
    const std::string_view w = long_word();
    if (w == ".reg") return registers();
    if (w == ".local" || w == ".param") {
      declare_in_frame(variable());
      return expect(';');
    }
    if (w == ".shared") return declare_shared(false);
    if (w == ".global" || w == ".const") return declare_global();
    if (w == ".pragma") {
      skip_to(';');
      return expect(';');
    }
    if (w == ".loc" || w == ".file") return skip_to('\n');
    unexpected("this directive is not known");
  }
  void statement() {
    Instr i;
    if (take('@')) {
      const bool negated = take('!');
      i.guard = named().slot;
      if (i.guard.at == NO_SLOT) unexpected("no such predicate before");
      i.guard.negated = negated;
    }
    const char *first = (skip(), p);
    if (in_word(*p)) {
      const std::string_view name = word();
      if (take(':') && (p >= end || *p != ':')) {
        scopes.back().labels[std::string(name)] = i32(m.code.size());
        return;
      }
      p = first;
    }
    i.line = line;
    const std::string_view mnemonic = long_word();
    std::vector<Arg> args;
    if (!take(';')) {
      do args.push_back(operand());
      while (take(','));
      expect(';');
    }
    m.code.push_back(std::move(i));
    decode(m, m.code.back(), mnemonic, args);
    if (mnemonic.starts_with("bra") && args.size() == 1)
      scopes.back().wanted.push_back({std::string(args[0].name), i32(m.code.size()) - 1});
    if (mnemonic.starts_with("call")) call(args);
  }

  // Copies arguments into the callee's parameters, and its results back. A callee may be defined after its
  // callers, so calls are resolved at the end.
  struct Call {
    i32 instr;
    std::string callee;
    std::vector<i32> results, params;
  };
  std::vector<Call> calls;
  void call(const std::vector<Arg> &args) {
    Call c = {i32(m.code.size()) - 1, {}, {}, {}};
    for (const Arg &a : args) {
      if (a.kind == Arg::NAME) c.callee = std::string(a.name);
      if (a.kind != Arg::VECTOR) continue;
      for (const Arg &x : a.items) {
        if (x.kind != Arg::VALUE || !x.symbol || x.constant) unexpected("parameters are variables here");
        (c.callee.empty() ? c.results : c.params).push_back(i32(x.offset));
      }
    }
    calls.push_back(std::move(c));
  }
  void resolve_calls() {
    for (const Call &c : calls) {
      const auto it = m.function_named.find(c.callee);
      if (it == m.function_named.end())
        fail("line %d of the PTX: no function %s", m.code[size_t(c.instr)].line, c.callee.c_str());
      const Function &f = m.functions[size_t(it->second)];
      Instr &i = m.code[size_t(c.instr)];
      i.target = f.first;
      if (c.params.size() != f.params.size() || c.results.size() != f.results.size())
        fail("line %d of the PTX: %s has other parameters", i.line, c.callee.c_str());
      for (size_t k = 0; k < c.params.size(); ++k) i.copies.push_back({c.params[k], f.params[k].at, f.params[k].bytes});
      for (size_t k = 0; k < c.results.size(); ++k)
        i.copies_back.push_back({f.results[k].at, c.results[k], f.results[k].bytes});
    }
  }

  void module() {
    while (skip(), p < end) {
      const std::string_view w = long_word();
      if (w == ".version" || w == ".target" || w == ".address_size" || w == ".file") {
        skip_to('\n');
      } else if (w == ".visible" || w == ".weak") {
      } else if (w == ".extern") {
        const std::string_view what = long_word();
        if (what == ".shared")
          declare_shared(true);
        else if (what == ".func")
          skip_to(';'), expect(';');
        else
          unexpected("this external thing is not known");
      } else if (w == ".global" || w == ".const") {
        declare_global();
      } else if (w == ".shared") {
        declare_shared(false);
      } else if (w == ".entry" || w == ".func") {
        function_of(w == ".entry");
      } else {
        unexpected("this is not known");
      }
    }
    if (!scopes[0].wanted.empty()) fail("no label %s", scopes[0].wanted[0].first.c_str());
    resolve_calls();
  }
};

}  // namespace

std::unique_ptr<Module> parse(std::string text) {
  auto m = std::make_unique<Module>();
  m->text = std::move(text);
  Parser(*m).module();
  return m;
}

}  // namespace ptx
