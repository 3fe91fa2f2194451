// races.hpp: reports accesses to shared memory to the race detector of races.cpp.
#pragma once
#include "machine.hpp"

namespace ptx {

enum class Proxy : u8 { GENERIC, ASYNC };
void begin_races(Block &);
void released(Warp &);  // accesses after this are not ordered by the releases so far
void touched(Warp &, u32 lanes);      // these lanes access shared memory
void in_order(Warp &);                // each lane's accesses so far are before all lanes' next ones
void in_order(Warp &, const Clock &); // likewise those that the clock knows
bool have_come(const Warp &, u32 lanes);  // whether all lanes that are not in order are among these
Clock known_to(const Warp &, u32 lanes);  // what a release of these lanes orders
void fenced(Warp &);    // fence of the asynchronous proxy
void race_write(const Warp &, const Instr &, const Place &, size_t bytes);
void race_read(const Warp &, const Instr &, const Place &, size_t bytes, Proxy = Proxy::GENERIC);
// Reports an asynchronous read that has been waited for.
void race_read_done(const Warp &, const Place &, size_t bytes);
// Reports a write of TMA; returns the clock of its completion.
Clock race_copy(Warp &, const Instr &, const Place &, size_t bytes);

bool multiplies_nothing(const Warp &);
// Reports a read of 16 bytes by wgmma. Returns false if the data have not arrived yet.
bool race_operand(const Warp &, const Instr &, const Place &);
void race_operand_done(const Warp &, const Place &);

}  // namespace ptx
