// program.hpp: a PTX module, read and decoded for the machine of machine.hpp.
//
// A warp keeps each register as 32 values, a lane's next to another's: 4 bytes each (predicates: one word of
// 32 bits, types of 8 and 16 bits: zero-extended to 32), or 8 bytes each ("wide"). A slot is such a
// register's place, in bytes, in the warp's memory. Constants, special registers and the bases of address
// spaces have slots, too, so that whatever reads a value reads a slot. PTX has no recursion here: all
// functions' registers, parameters and local variables have places of their own.
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

enum { SHARED_FIRST = 1024 };  // shared memory begins there, as on sm_90
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
  DYNAMIC_BASE,    // the address in shared memory at which what the launch asked for begins
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
Type type_named(std::string_view name);  // NO_TYPE: none of them

struct Slot {
  i32 at = NO_SLOT;
  bool wide = false, negated = false;
};

// What follows an instruction: the next one; the same again, later; one that the handler has set; nothing,
// because the lanes ended.
enum class Next : u8 { GO, YIELD, WAIT, JUMP, END };

struct Warp;
struct Instr;
using Handler = Next (*)(Warp &, const Instr &, u32 lanes);

struct Copy {
  i32 from, to, bytes;  // in the frame
};

struct Instr {
  Handler run = nullptr;
  Slot guard;
  std::vector<Slot> slot;  // operands in order, vectors laid out
  std::vector<Copy> copies,
      copies_back;            // of a call: parameters to the callee's, its results to the caller's
  i64 offset[3] = {0, 0, 0};  // of addresses, in their order
  i64 imm = 0;                // meaning depends on the handler
  i32 target = -1;            // of a branch or call
  i32 line = 0;               // in the module's text
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
  i32 first = -1;  // instruction; < 0: declared only
  i32 param_bytes = 0;
  int cluster = 1;
  struct Param {
    i32 at, bytes;  // in the frame, or of an entry in its parameters
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

// Fails with the line that it does not understand.
std::unique_ptr<Module> parse(std::string text);

// decode.cpp: fills run, type and their fields from the mnemonic; `slot` is filled already.
struct Arg;
void decode(Module &, Instr &, std::string_view mnemonic, const std::vector<Arg> &args);

// An operand as written.
struct Arg {
  enum Kind : u8 { VALUE, ADDRESS, VECTOR, SINK, NAME } kind = VALUE;
  Slot slot;            // of a value or an address' base; NAME: none
  i64 offset = 0;       // of an address, or a value's distance from its slot's (frame and shared symbols)
  bool symbol = false;  // the value is base + offset rather than a register
  bool constant = false;
  u64 bits = 0;           // of a constant
  std::string_view name;  // a label or function
  std::vector<Arg> items;
  Slot second;              // of d|p
  std::vector<Arg> coords;  // of a tensor's address
};

i32 constant_slot(Module &, u64 bits, bool wide);

}  // namespace ptx
