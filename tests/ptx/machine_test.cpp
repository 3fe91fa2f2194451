// machine_test.cpp: tests the machine: results of instructions, reconvergence, copies and products.
#include <bit>
#include <cmath>

#include "kernel_test.hpp"

using namespace ptx;

namespace {

// ---- values ----
void instructions(void **) {
  const auto f = [](float x) { return std::bit_cast<u32>(x); };
  const struct {
    const char *text;  // inputs %r1, %r2, %r3 (as floats %f1 ..), result %r4
    u32 a, b, c, want;
  } rows[] = {
      {"add.s32 %r4, %r1, %r2;", 7, u32(-9), 0, u32(-2)},
      {"mul.hi.u32 %r4, %r1, %r2;", 0x80000000, 6, 0, 3},
      {"mul.hi.s32 %r4, %r1, %r2;", 0x80000000, 6, 0, u32(-3)},
      {"mad.lo.s32 %r4, %r1, %r2, %r3;", 3, 5, 100, 115},
      {"add.cc.u32 %r5, %r1, %r2;\naddc.u32 %r4, %r3, 0;", 0xffffffff, 1, 7, 8},
      {"add.cc.u32 %r5, %r1, %r2;\naddc.u32 %r4, %r3, 0;", 0xfffffffe, 1, 7, 7},
      {"add.cc.s32 %r5, %r1, %r2;\naddc.cc.s32 %r5, %r1, %r3;\naddc.s32 %r4, 0, 0;", 0xffffffff, 1, 0, 1},
      {"sub.cc.u32 %r5, %r1, %r2;\nsubc.u32 %r4, %r3, 0;", 3, 4, 7, 6},
      {"sub.cc.u32 %r5, %r1, %r2;\nsubc.cc.u32 %r5, %r3, 0;\nsubc.u32 %r4, 0, 0;", 3, 4, 0, 0xffffffff},
      {"mad.lo.cc.u32 %r5, %r1, %r2, %r3;\nmadc.hi.u32 %r4, %r1, %r2, 0;", 0xffffffff, 0xffffffff, 0xffffffff,
       0xffffffff},
      {"mad.lo.cc.u32 %r5, %r1, %r2, %r3;\nmov.b32 %r4, %r5;", 0x10001, 0x10001, 5, 0x20006},
      {"mad.lo.cc.u32 %r5, %r1, %r2, %r3;\nmadc.lo.cc.u32 %r5, 0, 0, 0;\nmov.b32 %r4, %r5;", 0xffff, 0x10001, 1, 1},
      {"mad.hi.cc.s32 %r5, %r1, %r2, %r3;\naddc.u32 %r4, 0, 0;", u32(-3), 5, 1, 1},
      {"mad.hi.cc.u32 %r5, %r1, %r2, %r3;\naddc.u32 %r4, 0, 0;", u32(-3), 5, 1, 0},
      {"mov.b64 %rd1, {%r1, %r2};\nadd.cc.u64 %rd1, %rd1, %rd1;\naddc.u32 %r4, %r3, 0;", 0, 0x80000000, 2, 3},
      {"div.s32 %r4, %r1, %r2;", u32(-7), 2, 0, u32(-3)},
      {"rem.s32 %r4, %r1, %r2;", u32(-7), 2, 0, u32(-1)},
      {"shr.s32 %r4, %r1, %r2;", u32(-8), 40, 0, u32(-1)},
      {"shr.u32 %r4, %r1, %r2;", u32(-8), 32, 0, 0},
      {"shl.b32 %r4, %r1, %r2;", 3, 31, 0, 0x80000000},
      {"brev.b32 %r4, %r1;", 0x00000013, 0, 0, 0xc8000000},
      {"clz.b32 %r4, %r1;", 0x00010000, 0, 0, 15},
      {"bfind.shiftamt.u32 %r4, %r1;", 0x00010000, 0, 0, 15},
      {"bfind.u32 %r4, %r1;", 0x00010000, 0, 0, 16},
      {"mov.b64 %rd1, {%r1, %r2};\npopc.b64 %r4, %rd1;", 0x00010001, 0x80000000, 0, 3},
      {"mov.b64 %rd1, {%r1, %r2};\nclz.b64 %r4, %rd1;", 1, 0, 0, 63},
      {"mov.b64 %rd1, {%r1, %r2};\nbrev.b64 %rd1, %rd1;\ncvt.u32.u64 %r4, %rd1;", 0, 0x00000013, 0, 0xc8000000},
      {"mov.b64 %rd1, {%r1, %r2};\nbfind.u64 %r4, %rd1;", 1, 4, 0, 34},
      {"bfi.b32 %r4, %r1, %r2, 8, 4;", 0xff, 0x12345678, 0, 0x12345f78},
      {"bfe.s32 %r4, %r1, 4, 8;", 0x00000f80, 0, 0, u32(-8)},
      {"bfe.u32 %r4, %r1, 4, 8;", 0x00000f80, 0, 0, 0xf8},
      {"bmsk.clamp.b32 %r4, %r1, %r2;", 4, 8, 0, 0xff0},
      {"bmsk.clamp.b32 %r4, %r1, %r2;", 30, 8, 0, 0xc0000000},
      {"prmt.b32 %r4, %r1, %r2, 0x7531;", 0x33221100, 0x77665544, 0, 0x77553311},
      {"lop3.b32 %r4, %r1, %r2, %r3, 0x96;", 0xf0f0f0f0, 0xcccccccc, 0xaaaaaaaa, 0x96969696},
      {"shf.l.wrap.b32 %r4, %r1, %r2, %r3;", 0x80000001, 0x00000002, 1, 5},
      {"mul.wide.s32 %rd1, %r1, %r2; cvt.u32.u64 %r4, %rd1;", u32(-3), 5, 0, u32(-15)},
      {"cvt.s64.s32 %rd1, %r1; shr.u64 %rd1, %rd1, 32; cvt.u32.u64 %r4, %rd1;", u32(-3), 0, 0, u32(-1)},
      {"cvt.u16.u32 %rs1, %r1; cvt.s32.s16 %r4, %rs1;", 0x1fff0, 0, 0, u32(-16)},
      {"cvt.rzi.s32.f32 %r4, %f1;", f(-2.7f), 0, 0, u32(-2)},
      {"cvt.rmi.s32.f32 %r4, %f1;", f(-2.2f), 0, 0, u32(-3)},
      {"cvt.rni.s32.f32 %r4, %f1;", f(2.5f), 0, 0, 2},
      {"cvt.rzi.s32.f32 %r4, %f1;", f(3e9f), 0, 0, 0x7fffffff},
      {"cvt.rzi.s32.f32 %r4, %f1;", f(NAN), 0, 0, 0},
      {"cvt.sat.f32.f32 %f4, %f1; mov.b32 %r4, %f4;", f(1.5f), 0, 0, f(1)},
      {"cvt.rn.f16x2.f32 %r4, %f1, %f2;", f(1), f(2.0009765625f), 0, 0x3c004000},  // a tie rounds to even
      {"cvt.rn.f16x2.f32 %r4, %f1, %f2;", f(65520), f(5.9604645e-8f), 0, 0x7c000001},
      {"cvt.rn.bf16x2.f32 %r4, %f1, %f2;", f(1.00390625f), f(1.01171875f), 0, 0x3f803f82},
      {"cvt.f32.f16 %f4, %rs1; mov.b32 %r4, %f4;", 0, 0, 0, 0},
      {"add.rz.f32 %f4, %f1, %f2; mov.b32 %r4, %f4;", f(1), f(1e-9f), 0, f(1)},
      {"add.rz.f32 %f4, %f1, %f2; mov.b32 %r4, %f4;", f(1), f(-1e-9f), 0, f(0.99999994f)},
      {"fma.rz.f32 %f4, %f1, %f2, %f3; mov.b32 %r4, %f4;", f(1e-9f), f(-1), f(1), f(0.99999994f)},
      {"fma.rz.f32 %f4, %f1, %f2, %f3; mov.b32 %r4, %f4;", f(1e-9f), f(1), f(-1), f(-0.99999994f)},
      {"fma.rp.f32 %f4, %f1, %f2, %f3; mov.b32 %r4, %f4;", f(1e-9f), f(1), f(1), f(1.0000001f)},
      {"mul.rz.f32 %f4, %f1, %f2; mov.b32 %r4, %f4;", f(1.0000001f), f(1.9999999f), 0, f(2)},
      {"div.rm.f32 %f4, %f1, %f2; mov.b32 %r4, %f4;", f(-1), f(3), 0, f(-0.33333334f)},
      {"fma.rm.f32 %f4, %f1, %f2, %f3; mov.b32 %r4, %f4;", f(1e-9f), f(-1), f(1), f(0.99999994f)},
      {"fma.rn.f32 %f4, %f1, %f2, %f3; mov.b32 %r4, %f4;", f(1.0000001f), f(1.0000001f), f(-1), f(2.3841859e-7f)},
      {"max.f32 %f4, %f1, %f2; mov.b32 %r4, %f4;", f(NAN), f(-3), 0, f(-3)},
      {"min.f32 %f4, %f1, %f2; mov.b32 %r4, %f4;", f(0), f(-0.0f), 0, f(-0.0f)},
      {"max.NaN.f32 %f4, %f1, %f2; mov.b32 %r4, %f4;", f(NAN), f(-3), 0, f(NAN)},
      {"ex2.approx.ftz.f32 %f4, %f1; mov.b32 %r4, %f4;", f(-130), 0, 0, 0},
      {"ex2.approx.ftz.f32 %f4, %f1; mov.b32 %r4, %f4;", f(-INFINITY), 0, 0, 0},
      {"rcp.approx.ftz.f32 %f4, %f1; mov.b32 %r4, %f4;", f(0), 0, 0, f(INFINITY)},
      {"copysign.f32 %f4, %f1, %f2; mov.b32 %r4, %f4;", f(-1), f(3), 0, f(-3)},
      {"add.bf16x2 %r4, %r1, %r2;", 0x3f804000, 0x3f803f80, 0, 0x40004040},
      {"setp.ltu.f32 %p1, %f1, %f2; selp.u32 %r4, 1, 2, %p1;", f(NAN), f(1), 0, 1},
      {"setp.lt.f32 %p1, %f1, %f2; selp.u32 %r4, 1, 2, %p1;", f(NAN), f(1), 0, 2},
      {"setp.ne.f32 %p1, %f1, %f2; selp.u32 %r4, 1, 2, %p1;", f(NAN), f(1), 0, 2},
      {"setp.gt.s16 %p1, %rs1, -1; selp.u32 %r4, 1, 2, %p1;", 0, 0, 0, 1},
      {"setp.lt.and.s32 %p1, %r1, %r2, !%p2; selp.u32 %r4, 1, 2, %p1;", 1, 2, 0, 1},
      {"mov.b64 %rd1, {%r1, %r2}; shr.u64 %rd1, %rd1, 16; mov.b64 {%r4, %r5}, %rd1;", 0x11112222, 0x33334444, 0,
       0x44441111},
      {"mov.b32 %r4, 128*8+2;", 0, 0, 0, 1026},
      {"mov.b32 %r4, 2+128*8;", 0, 0, 0, 1026},
      {"mov.b32 %r4, 0F3f800000;", 0, 0, 0, 0x3f800000},
  };
  for (const auto &row : rows) {
    std::vector<u32> data(64);
    data[0] = row.a, data[1] = row.b, data[2] = row.c;
    data = run(std::string("mov.u16 %rs1, 0;\nmov.pred %p2, 0;\nld.global.v2.u32 {%r1, %r2}, "
                           "[%rd0];\nld.global.u32 %r3, [%rd0+8];\n"
                           "mov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\nmov.b32 %f3, %r3;\n") +
                   row.text + "\nst.global.u32 [%rd0+128], %r4;",
               data);
    if (data[32] != row.want &&
        !(std::isnan(std::bit_cast<float>(data[32])) && std::isnan(std::bit_cast<float>(row.want))))
      fail_msg("%s gives %#x, not %#x", row.text, data[32], row.want);
  }
}

// Lane l loops l + 1 times, then all lanes converge for a shuffle.
void lanes_meet_again(void **) {
  const auto data =
      run<u32>(std::string("mov.u32 %r1, 0;\nmov.u32 %r2, 0;\nagain:\nadd.u32 %r1, %r1, %r2;\nadd.u32 %r2, %r2, 1;\n"
                           "setp.le.u32 %p1, %r2, %r0;\n@%p1 bra again;\n"
                           "shfl.sync.bfly.b32 %r4|%p2, %r1, 1, 31, -1;\n") +
                   store_r4,
               std::vector<u32>(32));
  for (u32 l = 0; l < 32; ++l) assert_int_equal(data[l], (l ^ 1) * ((l ^ 1) + 1) / 2);
}
// One side of a branch waits for the other at a warp barrier.
void sides_meet_at_a_barrier(void **) {
  const auto data = run<u32>(
      std::string("setp.lt.u32 %p1, %r0, 16;\n@%p1 bra low;\nmov.u32 %r4, 5;\nst.shared.u32 [%r63], %r4;\n"
                  "bar.warp.sync -1;\nbra over;\nlow:\nbar.warp.sync -1;\nld.shared.u32 %r4, [%r63];\nover:\n") +
          store_r4,
      std::vector<u32>(32));
  for (const u32 x : data) assert_int_equal(x, 5);
}
// Each half of a warp has its own barrier. Completing the first must not complete the second.
void halves_have_barriers_of_their_own(void **) {
  const auto data =
      run<u32>(std::string("mov.u32 %r4, 5;\nand.b32 %r1, %r0, 8;\nsetp.ne.u32 %p2, %r1, 0;\nsetp.lt.u32 %p1, %r0, "
                           "16;\n@%p1 bra first;\n"
                           "@%p2 bra writes;\nbar.warp.sync 0xffff0000;\nld.shared.u32 %r4, [%r63];\nbra over;\n"
                           "first:\n@%p2 bra second;\nbar.warp.sync 0xffff;\nbra over;\nsecond:\nbar.warp.sync "
                           "0xffff;\nbra over;\nwrites:\n") +
                   linger + "st.shared.u32 [%r63], %r4;\nbar.warp.sync 0xffff0000;\nover:\n" + store_r4,
               std::vector<u32>(32));
  for (const u32 x : data) assert_int_equal(x, 5);
}
// A block of a cluster arrives and ends. Its end must not count as an arrival of the other block's lanes.
void who_has_ended_arrives_for_nobody(void **) {
  std::string text = kernel(std::string("mov.u32 %r4, 5;\nmov.u32 %r1, %cluster_ctarank;\nsetp.eq.u32 %p1, %r1, "
                                        "1;\nsetp.lt.u32 %p2, %r0, 32;\n"
                                        "@%p1 bra arrives;\n@%p2 bra arrives;\n") +
                            linger +
                            "st.shared.u32 [%r63], %r4;\narrives:\nbarrier.cluster.arrive.release;\n@%p1 bra over;\n"
                            "barrier.cluster.wait.acquire;\nld.shared.u32 %r4, [%r63];\n" +
                            store_r4 + "\nover:\n");
  text.insert(text.find("{\n.reg"), ".reqnctapercluster 2, 1, 1\n");
  u32 *p = static_cast<u32 *>(allocate(256));
  run_with(text, {reinterpret_cast<u8 *>(p), {}}, 64, Async::EARLY, 2);
  for (u32 t = 0; t < 64; ++t) assert_int_equal(p[t], 5);
  release(p);
}
// Lanes may diverge between converging instructions, so a lane that reads another lane's write needs a warp
// barrier in between.
void lanes_may_part(void **) {
  for (const bool joined : {false, true}) {
    bool all_right = true;
    for (u32 shift = 0; shift < 20; ++shift) {  // number of instructions before the exchange
      std::string text = "shl.b32 %r1, %r0, 2;\nadd.u32 %r1, %r1, %r63;\nxor.b32 %r2, %r1, 124;\n";
      for (u32 k = 0; k < shift; ++k) text += "add.u32 %r5, %r0, 1;\n";
      text += std::string("st.shared.u32 [%r1], %r0;\n") + (joined ? "bar.warp.sync -1;\n" : "") +
              "ld.shared.u32 %r4, [%r2];\n" + store_r4;
      u32 *p = static_cast<u32 *>(allocate(128));
      run_with(kernel(text), {reinterpret_cast<u8 *>(p), {}}, 32, Async::EARLY, 1, 3);
      for (u32 l = 0; l < 32; ++l) all_right = all_right && p[l] == 31 - l;
      release(p);
    }
    assert_int_equal(all_right, joined);
  }
}
void lanes_together(void **) {
  const struct {
    const char *text;
    u32 (*want)(u32 lane);
  } rows[] = {
      {"setp.gt.u32 %p1, %r0, 29;\nvote.sync.ballot.b32 %r4, %p1, -1;", [](u32) { return 0xc0000000u; }},
      {"setp.lt.u32 %p1, %r0, 16;\nselp.b32 %r1, 0xffff, 0xffff0000, %p1;\nmov.pred %p2, "
       "1;\nvote.sync.ballot.b32 %r4, %p2, %r1;",
       [](u32 l) { return l < 16 ? 0xffffu : 0xffff0000u; }},  // each half separately
      {"shfl.sync.idx.b32 %r4|%p1, %r0, 3, 31, -1;", [](u32) { return 3u; }},
      {"shfl.sync.idx.b32 %r4|%p1, %r0, 1, 0x1c1f, -1;", [](u32 l) { return l / 4 * 4 + 1; }},  // within four lanes
      {"shfl.sync.up.b32 %r4|%p1, %r0, 1, 0, -1;", [](u32 l) { return l == 0 ? 0 : l - 1; }},
      {"shfl.sync.down.b32 %r4|%p1, %r0, 2, 31, -1;", [](u32 l) { return l > 29 ? l : l + 2; }},
      {"redux.sync.max.s32 %r4, %r0, -1;", [](u32) { return 31u; }},
      {"shr.u32 %r1, %r0, 4;\nmatch.any.sync.b32 %r4, %r1, -1;", [](u32 l) { return l < 16 ? 0xffffu : 0xffff0000u; }},
      {"elect.sync _|%p1, -1;\nselp.u32 %r4, 1, 0, %p1;", [](u32 l) { return u32(l == 0); }},
      {"setp.gt.u32 %p1, %r0, 2;\nmov.u32 %r4, 9;\n@%p1 activemask.b32 %r4;", [](u32 l) { return l > 2 ? ~7u : 9u; }},
  };
  for (const auto &row : rows) {
    const auto data = run<u32>(std::string(row.text) + "\n" + store_r4, std::vector<u32>(32));
    for (u32 l = 0; l < 32; ++l)
      if (data[l] != row.want(l)) fail_msg("%s: lane %u has %#x", row.text, l, data[l]);
  }
}
// Half of the lanes call a function that calls another.
void calls(void **) {
  const std::string twice =
      ".func (.param .b32 out) twice(.param .b32 x)\n{\n.reg .b32 %r<4>;\nld.param.u32 %r1, [x];\nadd.u32 "
      "%r2, %r1, %r1;\n"
      "st.param.b32 [out], %r2;\nret;\n}\n"
      ".func (.param .b32 out) four(.param .b32 x)\n{\n.reg .b32 %r<4>;\nld.param.u32 %r1, [x];\n"
      "{ .param .b32 a; st.param.b32 [a+0], %r1; .param .b32 b; call.uni (b), twice, (a); ld.param.b32 %r2, "
      "[b+0]; }\n"
      "{ .param .b32 a; st.param.b32 [a+0], %r2; .param .b32 b; call.uni (b), twice, (a); ld.param.b32 %r2, "
      "[b+0]; }\n"
      "st.param.b32 [out], %r2;\nret;\n}\n";
  std::string text =
      kernel(std::string("mov.u32 %r4, 7;\nsetp.lt.u32 %p1, %r0, 16;\n@%p1 bra over;\n"
                         "{ .param .b32 a; st.param.b32 [a+0], %r0; .param .b32 b; call.uni (b), four, (a);\n"
                         "ld.param.b32 %r4, [b+0]; }\nover:\n") +
             store_r4);
  text.insert(text.find(".visible"), twice);
  u32 *p = static_cast<u32 *>(allocate(128));
  run_with(text, {reinterpret_cast<u8 *>(p), {}}, 32);
  for (u32 l = 0; l < 32; ++l) assert_int_equal(p[l], l < 16 ? 7 : 4 * l);
  release(p);
}

// ---- copies and products ----
TensorMap map_of(u8 *data, u8 step) {  // 3 positions of 72 channels; boxes of 64 x 8, of every step-th position
  return {MAP_MAGIC, 4, 2, {64, 8, 1, 1}, {1, step, 1, 1}, data, {72, 3, 1, 1}, {144, 432, 432}};
}
// Loads a box that begins at channel 64, position 1, or 0 by steps of 2: 8 channels and 2 positions exist, the rest is 0.
// Then stores the box.
void tensors(void **) {
  for (const Async async : {Async::EARLY, Async::LATE, Async::RANDOM})
    for (u8 step = 1; step <= 2; ++step) {
      u16 *p = static_cast<u16 *>(allocate(8 * 144));
      for (u16 k = 0; k < 4 * 72; ++k) p[k] = k;
      const u16 first = step == 1 ? 1 : 0;
      const std::string coords = first == 1 ? "{64, 1, 0, 0}" : "{64, 0, 0, 0}";
      run_with(kernel(std::string(barrier_at_32768) +
                      "mov.b64 %rd2, k_param_1;\n@!%p7 bra wait;\n"
                      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r62], 1024;\n"
                      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%r63], [%rd2, " +
                      coords + "], [%r62];\n" + wait_for_it +
                      "setp.ge.u32 %p1, %r0, 16;\n@%p1 bra over;\n"  // threads 0 to 15: row r / 2's halves of
                                                                     // channels 0 to 7
                      "shr.u32 %r1, %r0, 1;\nand.b32 %r2, %r0, 1;\nshl.b32 %r3, %r1, 7;\nshl.b32 %r4, %r1, "
                      "4;\nadd.u32 %r3, %r3, %r4;\n"
                      "shl.b32 %r4, %r2, 3;\nadd.u32 %r3, %r3, %r4;\nadd.u32 %r3, %r3, %r63;\nld.shared.v2.u32 "
                      "{%r5, %r6}, [%r3];\n"
                      "mul.wide.u32 %rd3, %r0, 8;\nadd.s64 %rd3, %rd3, %rd0;\nst.global.v2.u32 [%rd3+576], {%r5, "
                      "%r6};\nover:\n"),
               {reinterpret_cast<u8 *>(p), map_of(reinterpret_cast<u8 *>(p), step)}, 128, async);
      for (u16 row = 0; row < 8; ++row)
        for (u16 c = 0; c < 8; ++c)
          assert_int_equal(p[288 + row * 8 + c], row < 2 ? (first + row * step) * 72 + 64 + c : 0);
      release(p);
    }
}
// Sums rows of A with a B of ones, without swizzle.
void sums_of_rows(void **) {
  u8 *p = static_cast<u8 *>(allocate(8192 + 256 + 128 * 16));
  memset(p, 0, 8192);
  for (u32 r = 0; r < 64; ++r)
    for (u32 k = 0; k < 16; ++k) {
      const u32 address = r * 128 + 2 * k;
      const u16 bits = float_to_half(float(r * k % 7));
      memcpy(p + (address ^ (address >> 7 & 7) << 4), &bits, 2);
    }
  for (u32 k = 0; k < 128; ++k) reinterpret_cast<u16 *>(p + 8192)[k] = float_to_half(1);
  run_with(kernel(std::string(barrier_at_32768) +
                  "@!%p7 bra wait;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r62], 8448;\n"
                  "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r63], [%rd0], 8448, "
                  "[%r62];\n" +
                  wait_for_it +
                  "bar.sync 0;\nshr.u32 %r5, %r63, 4;\ncvt.u64.u32 %rd4, %r5;\nadd.s64 %rd5, %rd4, 524800;\n"  // 8 <<
                                                                                                               // 16 |
                                                                                                               // 512
                  "add.s64 %rd4, %rd4, 0x4000004000000000;\nwgmma.fence.sync.aligned;\n"
                  "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd4, %rd5, 0, 1, 1, 0, "
                  "0;\n"
                  "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
                  "mul.wide.u32 %rd1, %r0, 16;\nadd.s64 %rd1, %rd1, %rd0;\nst.global.v4.f32 [%rd1+8448], {%f1, %f2, "
                  "%f3, %f4};"),
           {p, {}}, 128);
  for (u32 t = 0; t < 128; ++t)
    for (u32 i = 0; i < 4; ++i) {
      const u32 row = t / 32 * 16 + t % 32 / 4 + 8 * (i / 2);
      float want = 0, got;
      for (u32 k = 0; k < 16; ++k) want += float(row * k % 7);
      memcpy(&got, p + 8448 + t * 16 + i * 4, 4);
      assert_true(got == want);
    }
  release(p);
}
// D = A B of 64 x 16 x 8, A from shared memory or registers, B K-major or MN-major, in the PTX ISA's layouts.
void products(void **) {
  for (const bool a_in_registers : {false, true})
    for (const bool turned : {false, true}) {
      float a[64][16], b[16][8];
      for (int r = 0; r < 64; ++r)
        for (int k = 0; k < 16; ++k) a[r][k] = float((r * 7 + k * 3) % 11 - 5);
      for (int k = 0; k < 16; ++k)
        for (int n = 0; n < 8; ++n) b[k][n] = float((k * 5 + n * 2) % 13 - 6);
      // Global memory holds a copy of A and B in shared memory's layout (16 KB), each thread's registers of
      // A, and D.
      const size_t at_registers = 16384, at_d = at_registers + 128 * 16;
      u8 *p = static_cast<u8 *>(allocate(at_d + 128 * 16));
      memset(p, 0, at_d);
      const auto put = [&](u32 address, float x) {
        const u16 bits = float_to_bf16(x);
        memcpy(p + (address ^ (address >> 7 & 7) << 4), &bits, 2);
      };
      for (u32 r = 0; r < 64; ++r)
        for (u32 k = 0; k < 16; ++k) put(r * 128 + 2 * k, a[r][k]);
      for (u32 k = 0; k < 16; ++k)
        for (u32 n = 0; n < 8; ++n) put(8192 + (turned ? k * 128 + 2 * n : n * 128 + 2 * k), b[k][n]);
      for (u32 t = 0; t < 128; ++t)
        for (u32 i = 0; i < 8; ++i) {
          const u32 row = t / 32 * 16 + t % 32 / 4 + 8 * (i / 2 % 2), k = 2 * (t % 4) + 8 * (i / 4) + i % 2;
          const u16 bits = float_to_bf16(a[row][k]);
          memcpy(p + at_registers + t * 16 + i * 2, &bits, 2);
        }
      const std::string operand = a_in_registers ? "{%r1, %r2, %r3, %r4}, %rd5, 0, 1, 1, " : "%rd4, %rd5, 0, 1, 1, 0, ";
      run_with(kernel(std::string(barrier_at_32768) +
                      "@!%p7 bra wait;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r62], 16384;\n"
                      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r63], [%rd0], "
                      "16384, [%r62];\n" +
                      wait_for_it +
                      "bar.sync 0;\nmul.wide.u32 %rd1, %r0, 16;\nadd.s64 %rd1, %rd1, %rd0;\n"
                      "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1+16384];\n"
                      "shr.u32 %r5, %r63, 4;\nmov.b64 %rd4, {%r5, %r5};\ncvt.u64.u32 %rd4, %r5;\nadd.s64 "
                      "%rd4, %rd4, 0x4000004000000000;\n"
                      "add.s64 %rd5, %rd4, 512;\n"
                      "wgmma.fence.sync.aligned;\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, "
                      "%f2, %f3, %f4}, " +
                      operand + (turned ? "1" : "0") +
                      ";\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
                      "st.global.v4.f32 [%rd1+18432], {%f1, %f2, %f3, %f4};"),
               {p, {}}, 128);
      for (u32 t = 0; t < 128; ++t)
        for (u32 i = 0; i < 4; ++i) {
          const u32 row = t / 32 * 16 + t % 32 / 4 + 8 * (i / 2), n = 2 * (t % 4) + i % 2;
          float want = 0, got;
          for (int k = 0; k < 16; ++k) want += a[row][k] * b[k][n];
          memcpy(&got, p + at_d + t * 16 + i * 4, 4);
          if (got != want)
            fail_msg("row %u, column %u: %g, not %g (registers %d, turned %d)", row, n, double(got), double(want),
                     a_in_registers, turned);
        }
      release(p);
    }
}

// The result is correct if a copy completes at once, and wrong if it completes late.
void what_is_not_waited_for(void **) {
  const std::string body = "@!%p7 bra over;\ncp.async.ca.shared.global [%r63], [%rd0], 4;\ncp.async.commit_group;\n";
  const std::string load = "ld.shared.u32 %r4, [%r63];\nst.global.u32 [%rd0+128], %r4;\nover:\n";
  for (const bool waits : {false, true}) {
    std::vector<u32> data(64);
    data[0] = 42;
    data = run(std::string(barrier_at_32768) + body + (waits ? "cp.async.wait_group 0;\n" : "") + load, data, 32,
               Async::LATE);
    assert_int_equal(data[32] == 42, waits);
  }
}
// After a wait for its read only, a bulk store may write later.
void what_is_only_read(void **) {
  for (const bool waits : {false, true}) {
    const auto data = run<u32>(
        std::string("setp.ne.u32 %p1, %r0, 0;\n@%p1 bra over;\nmov.u32 %r4, 42;\nst.shared.u32 [%r63], "
                    "%r4;\nfence.proxy.async.shared::cta;\n"
                    "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r63], 16;\ncp.async.bulk.commit_group;\n"
                    "cp.async.bulk.wait_group.read 0;\nmov.u32 %r5, 7;\nst.shared.u32 [%r63], %r5;\n") +
            (waits ? "cp.async.bulk.wait_group 0;\n" : "") +
            "ld.global.u32 %r4, [%rd0];\nst.global.u32 [%rd0+64], %r4;\nover:\n",
        std::vector<u32>(32), 32, Async::LATE);
    assert_int_equal(data[0], 42);
    assert_int_equal(data[16] == 42, waits);
  }
}
// An arrival covers the copies before it, not those after it.
void an_arrival_is_of_what_came_before(void **) {
  std::vector<u32> data(64);
  data[0] = 42, data[1] = 43;
  data =
      run(std::string(barrier_at_32768) +
              "@!%p7 bra over;\nmov.u32 %r4, 0;\nst.shared.u32 [%r63+4], %r4;\ncp.async.ca.shared.global "
              "[%r63], [%rd0], 4;\n"
              "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r62];\ncp.async.ca.shared.global "
              "[%r63+4], [%rd0+4], 4;\n" +
              wait_for_it + "ld.shared.v2.u32 {%r4, %r5}, [%r63];\nst.global.v2.u32 [%rd0+128], {%r4, %r5};\nover:\n",
          data, 32, Async::LATE);
  assert_int_equal(data[32], 42);
  assert_int_equal(data[33], 0);
}
}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(instructions),
                              cmocka_unit_test(lanes_meet_again),
                              cmocka_unit_test(sides_meet_at_a_barrier),
                              cmocka_unit_test(lanes_together),
                              cmocka_unit_test(lanes_may_part),
                              cmocka_unit_test(halves_have_barriers_of_their_own),
                              cmocka_unit_test(who_has_ended_arrives_for_nobody),
                              cmocka_unit_test(what_is_only_read),
                              cmocka_unit_test(an_arrival_is_of_what_came_before),
                              cmocka_unit_test(calls),
                              cmocka_unit_test(tensors),
                              cmocka_unit_test(products),
                              cmocka_unit_test(sums_of_rows),
                              cmocka_unit_test(what_is_not_waited_for)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
