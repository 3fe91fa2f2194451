// races.hpp: reports accesses to shared memory to the race detector of races.cpp.
#pragma once
#include "machine.hpp"

namespace ptx {

enum class Proxy : u8 { GENERIC, ASYNC };
void begin_races(Block &);
void released(Warp &);  // a release: other warps learn the accesses up to now
void fenced(Warp &);    // of the asynchronous proxy
void race_write(const Warp &, const Instr &, const Place &, size_t bytes);
void race_read(const Warp &, const Instr &, const Place &, size_t bytes, Proxy = Proxy::GENERIC);
// Reports an asynchronous read that has been waited for.
void race_read_done(const Warp &, const Place &, size_t bytes);
// Reports TMA's write; returns the clock when it has completed.
Clock race_copy(Warp &, const Instr &, const Place &, size_t bytes);

bool multiplies_nothing(const Warp &);
// 16 bytes that wgmma reads; false: they have not arrived yet.
bool race_operand(const Warp &, const Instr &, const Place &);
void race_operand_done(const Warp &, const Place &);

}  // namespace ptx
