// program.hpp: a PTX module, parsed and decoded for the machine of machine.hpp.
//
// A warp stores each register as 32 values, one per lane: 4 bytes each (a predicate takes one 32-bit word; 8-
// and 16-bit types are zero-extended to 32), or 8 bytes each ("wide"). A slot is the byte offset of a
// register in the warp's memory. Constants, special registers and the bases of address spaces also have
// slots, so every operand is read from a slot. Recursion is not supported: registers, parameters and local
// variables of all functions have fixed slots.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ptx {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i32 = int32_t;
using i64 = int64_t;

[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

enum { SHARED_FIRST = 1024 };  // shared memory begins at this address, as on sm_90
enum { LANES = 32, NARROW_BYTES = 4 * LANES, WIDE_BYTES = 8 * LANES, NO_SLOT = -1 };

// Slots that every warp has. Bases are wide, and differ between lanes only for the frame.
enum Fixed {
  TID_X,
  TID_Y,
  TID_Z,
  NTID_X,
  NTID_Y,
  NTID_Z,
  CTAID_X,
  CTAID_Y,
  CTAID_Z,
  NCTAID_X,
  NCTAID_Y,
  NCTAID_Z,
  LANE,
  CLUSTER_RANK,
  NUM_FIXED_NARROW,
  FRAME_BASE = 0,  // a thread's parameters of calls, and local variables
  PARAM_BASE,      // the kernel's parameters
  DYNAMIC_BASE,    // the start of dynamic shared memory
  NUM_FIXED_WIDE
};
constexpr i32 narrow_slot(int i) { return NARROW_BYTES * i; }
constexpr i32 wide_slot(int i) { return NARROW_BYTES * int(NUM_FIXED_NARROW) + WIDE_BYTES * i; }

enum Type : u8 {
  NO_TYPE,
  PRED,
  B8,
  U8,
  S8,
  B16,
  U16,
  S16,
  B32,
  U32,
  S32,
  B64,
  U64,
  S64,
  F16,
  BF16,
  F16X2,
  BF16X2,
  F32,
  F64
};
constexpr int size_of(Type t) {
  return t <= PRED   ? 0
         : t <= S8   ? 1
         : t <= S16  ? 2
         : t <= S32  ? 4
         : t <= S64  ? 8
         : t <= BF16 ? 2
         : t <= F32  ? 4
                     : 8;
}
Type type_named(std::string_view name);  // NO_TYPE: unknown

struct Slot {
  i32 at = NO_SLOT;
  bool wide = false, negated = false;
};

// What follows an instruction: the next one; the same one again, later; a jump that the handler has set;
// nothing, because the lanes ended.
enum class Next : u8 { GO, YIELD, WAIT, JUMP, END };

struct Warp;
struct Instr;
using Handler = Next (*)(Warp &, const Instr &, u32 lanes);

struct Copy {
  i32 from, to, bytes;  // offsets in the frame
};

struct Instr {
  Handler run = nullptr;
  Slot guard;
  std::vector<Slot> slot;  // operands in order, vectors expanded
  std::vector<Copy> copies,
      copies_back;            // for calls: arguments to the callee, results to the caller
  i64 offset[3] = {0, 0, 0};  // offsets of addresses, in order
  i64 imm = 0;                // meaning depends on the handler
  i32 target = -1;            // target of a branch or call
  i32 line = 0;               // line in the module's text
  Type type = NO_TYPE, from = NO_TYPE;
  u16 count = 0;                                                 // of a vector's elements
  u8 rounding = 0;                                               // of cvt
  bool sat = false, to_whole = false;                            // of cvt
  bool from_shared = false, adds = false, only_read = false;     // of bulk copies, and waits for them
  bool compares = false;                                         // of atom
  bool a_in_shared = false, a_turned = false, b_turned = false;  // of wgmma
};

struct Function {
  std::string name;
  bool is_entry = false;
  i32 first = -1;  // index of the first instruction; < 0: only declared
  i32 param_bytes = 0;
  int cluster = 1;
  struct Param {
    i32 at, bytes;  // offset in the frame, or in a kernel's parameters
  };
  std::vector<Param> params, results;
};

struct Module {
  std::string text;
  std::vector<Instr> code;
  std::vector<Function> functions;
  std::map<std::string, int, std::less<>> function_named;
  std::unordered_map<u64, i32> narrow_constant, wide_constant;
  i32 slot_bytes = wide_slot(NUM_FIXED_WIDE), frame_bytes = 0, shared_bytes = 0;
  struct Constant {
    Slot slot;
    u64 bits;
  };
  std::vector<Constant> initial;
  std::vector<std::pair<std::unique_ptr<u8[]>, size_t>> globals;
};

// Fails with the line that has a syntax error.
std::unique_ptr<Module> parse(std::string text);

// decode.cpp: fills run, type and their fields from the mnemonic; `slot` must be filled.
struct Arg;
void decode(Module &, Instr &, std::string_view mnemonic, const std::vector<Arg> &args);

// An operand in the source text.
struct Arg {
  enum Kind : u8 { VALUE, ADDRESS, VECTOR, SINK, NAME } kind = VALUE;
  Slot slot;            // slot of a value or of an address's base; NAME: none
  i64 offset = 0;       // offset of an address, or of a symbol from its base
  bool symbol = false;  // the value is base + offset rather than a register
  bool constant = false;
  u64 bits = 0;           // of a constant
  std::string_view name;  // a label or function
  std::vector<Arg> items;
  Slot second;              // p of d|p
  std::vector<Arg> coords;  // coordinates of a tensor address
};

i32 constant_slot(Module &, u64 bits, bool wide);

}  // namespace ptx
