// races.hpp: what accesses to shared memory tell the race detector of races.cpp.
#pragma once
#include "machine.hpp"

namespace ptx {

enum class Proxy : u8 { GENERIC, ASYNC };
void begin_races(Block &);
void released(Warp &);  // what follows is later than what others learn now
void fenced(Warp &);    // of the asynchronous proxy
void race_write(const Warp &, const Instr &, const Place &, size_t bytes);
void race_read(const Warp &, const Instr &, const Place &, size_t bytes, Proxy = Proxy::GENERIC);
// Of an asynchronous read, which has been waited for.
void race_read_done(const Warp &, const Place &, size_t bytes);
// The copy engine writes; gives what is known when it has.
Clock race_copy(Warp &, const Instr &, const Place &, size_t bytes);

bool multiplies_nothing(const Warp &);
// 16 bytes that wgmma reads; false: they are not there yet.
bool race_operand(const Warp &, const Instr &, const Place &);
void race_operand_done(const Warp &, const Place &);

}  // namespace ptx
