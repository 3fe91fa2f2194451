// kernel_test.hpp: runs a few instructions as a kernel, for tests of the machine.
#pragma once
#include <csetjmp>
#include <cstdarg>
#include <cstddef>

#include "copies.hpp"

extern "C" {
#include <cmocka.h>
}

namespace ptx {

// Returns a kernel with one parameter, %rd0 = p, and declared registers.
inline std::string kernel(const std::string &body) {
  return ".version 9.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 shared[];\n"
         ".visible .entry k(.param .u64 k_param_0, .param .align 64 .b8 k_param_1[128])\n{\n"
         ".reg .pred %p<8>;\n.reg .b16 %rs<8>;\n.reg .b32 %r<64>;\n.reg .b64 %rd<16>;\n.reg .f32 "
         "%f<64>;\n.reg .f64 %fd<8>;\n"
         "ld.param.u64 %rd0, [k_param_0];\nmov.u32 %r0, %tid.x;\nmov.u64 %rd15, shared;\ncvt.u32.u64 %r63, "
         "%rd15;\n" +
         body + "\nret;\n}\n";
}
struct Params {
  alignas(64) u8 *data;
  alignas(64) TensorMap map;
};
inline void run_with(const std::string &text, Params params, u32 threads, Async async = Async::EARLY,
                     u32 blocks = 1, u32 parts = 0) {
  const auto module = parse(text);
  alignas(64) u8 bytes[192] = {};
  memcpy(bytes, &params.data, sizeof params.data);
  memcpy(bytes + 64, &params.map, sizeof params.map);
  Machine m;
  m.launch = {module.get(), &module->functions.back(), {blocks, 1, 1}, {threads, 1, 1}, 64 << 10, bytes};
  m.async = async;
  m.parts = parts;
  m.run();
}
template <class T>
std::vector<T> run(const std::string &body, std::vector<T> data, u32 threads = 32,
                   Async async = Async::EARLY) {
  u8 *p = static_cast<u8 *>(allocate(data.size() * sizeof(T)));
  memcpy(p, data.data(), data.size() * sizeof(T));
  run_with(kernel(body), {p, {}}, threads, async);
  memcpy(data.data(), p, data.size() * sizeof(T));
  release(p);
  return data;
}

// ---- pieces of kernels ----
// Loops for longer than a warp's turn.
const char *const linger =
    "mov.u32 %r59, 0;\nlinger:\nadd.u32 %r59, %r59, 1;\nsetp.lt.u32 %p5, %r59, 5000;\n@%p5 bra linger;\n";
const char *const store_r4 =
    "mul.wide.u32 %rd1, %r0, 4;\nadd.s64 %rd1, %rd0, %rd1;\nst.global.u32 [%rd1], %r4;";

const char *const barrier_at_32768 =
    "setp.eq.u32 %p7, %r0, 0;\nadd.u32 %r62, %r63, 32768;\n@%p7 mbarrier.init.shared::cta.b64 [%r62], "
    "1;\nbar.sync 0;\n";
const char *const wait_for_it =
    "wait:\nmbarrier.try_wait.parity.shared::cta.b64 %p6, [%r62], 0;\n@!%p6 bra wait;\n";

}  // namespace ptx
