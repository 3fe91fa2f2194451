// mistakes_test.cpp: tests that the machine finds each kind of mistake and names it.
#include <sys/wait.h>
#include <unistd.h>

#include "kernel_test.hpp"

using namespace ptx;

namespace {

// Runs `body` in a separate process, which must fail with message `what`.
void must_fail(const char *what, const std::string &body, u32 threads = 64, Async async = Async::EARLY) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 2);
    run(body, std::vector<u32>(64), threads, async);
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char part[256];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) said.append(part, size_t(n));
  close(ends[0]);
  int status;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 3 || said.find(what) == std::string::npos)
    fail_msg("no \"%s\" but status %#x and: %s", what, status, said.c_str());
}
// Has a barrier at 32768 before the text, without sums of strings, of which gcc 12 warns.
std::string behind_barrier(const char *text) {
  std::string all(barrier_at_32768);
  all.append(text);
  return all;
}
void mistakes(void **) {
  must_fail("in no allocation", "st.global.u32 [%rd0+256], %r0;");
  must_fail("in no allocation", "ld.global.u32 %r1, [%rd0-4];");
  must_fail("in no allocation", "ld.global.u32 %r1, [%rd0];\nmov.u64 %rd1, -4;\nld.global.u32 %r1, [%rd1];");
  must_fail("no multiple of 16", "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0+4];");
  must_fail("outside of the block's", "st.shared.u32 [%r63+65536], %r0;");
  must_fail("everyone waits", "setp.lt.u32 %p1, %r0, 32;\n@%p1 bra over;\nbar.sync 1, 64;\nover:\n");
  must_fail("everyone waits", behind_barrier(wait_for_it));
  must_fail("as others say", "mov.u32 %r1, 96;\nsetp.ge.u32 %p1, %r0, 64;\n@%p1 mov.u32 %r1, 64;\nbar.arrive 2, %r1;",
            96);
  must_fail("more arrivals than the barrier awaits",
            behind_barrier("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r62], 16;"));
  must_fail("more arrivals than the barrier awaits",
            behind_barrier("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r62], 16;"), 32);
  must_fail("more arrivals than the barrier awaits",
            behind_barrier("@%p7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r62], 16;\n"
                           "@%p7 cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r62];"),
            32);
  must_fail("more than it can count",
            behind_barrier("@%p7 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r62], 1048576;"));
  must_fail("which are no warps", "bar.sync 1, 48;");
  must_fail("lanes 0xffff alone", "setp.lt.u32 %p1, %r0, 16;\n@%p1 bar.sync 0;", 32);
  must_fail("lanes 0xffff have ended",
            "setp.lt.u32 %p1, %r0, 16;\n@%p1 ret;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r63];", 32);
  must_fail("may still read its shared memory",
            "setp.eq.u32 %p7, %r0, 0;\n@%p7 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r63], "
            "128;\n@%p7 cp.async.bulk.commit_group;");
  must_fail(
      "ends with copies on their way",
      behind_barrier("@%p7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r62], 128;\n"
                     "@%p7 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r63], [%rd0], 128, "
                     "[%r62];"),
      64, Async::LATE);
  must_fail("this is no mbarrier", "mbarrier.arrive.shared::cta.b64 _, [%r63];");
  must_fail("lane 0 reads lane 1, which is not there",
            "setp.ne.u32 %p1, %r0, 0;\n@%p1 bra over;\nshfl.sync.idx.b32 %r4|%p2, %r0, 1, 31, 1;\nover:\n", 32);
  must_fail("that the mask 0x1 does not name", "shfl.sync.idx.b32 %r4|%p2, %r0, 0, 31, 1;", 32);
  must_fail("no ';' at '%r3", "add.u32 %r1, %r2 %r3;");
  must_fail("no such predicate", "@%q1 add.u32 %r1, %r2, %r3;");
  must_fail("a variable without type", "{ .param .align 0 x; }");
  for (const char *text :
       {"bra;", "setp %p1, %r1;", "mbarrier;", "shfl.sync.idx.b32 %r4, %r0, 1;", "ld.global.u32 %r1;",
        "elect.sync %r1, -1;", "frobnicate.b32 %r1, %r2;", "mad.cc.u32 %r1, %r2, %r3, %r4;",
        "add.lo.cc.u32 %r1, %r2, %r3;", "fma.rz.ftz.f32 %f1, %f2, %f3, %f4;", "add.sat.f32 %f1, %f2, %f3;",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%rd1, {%r1, %r2}], [%r63];",
        "fma.rn.relu.bf16x2 %r1, %r2, %r3, %r4;", "bmsk.wrap.b32 %r1, %r2, %r3;", "cvt.rna.tf32.f32 %r1, %f1;"})
    must_fail("is not known to this machine", text);
  must_fail("trap", "trap;");
  run("setp.lt.u32 %p1, %r0, 128;\n@%p1 setmaxnreg.dec.sync.aligned.u32 40;\n@!%p1 setmaxnreg.inc.sync.aligned.u32 "
      "232;",
      std::vector<u32>(64), 384);
  must_fail("setmaxnreg would wait for ever",
            "setp.lt.u32 %p1, %r0, 128;\n@%p1 setmaxnreg.dec.sync.aligned.u32 32;\n@!%p1 "
            "setmaxnreg.inc.sync.aligned.u32 240;",
            384);
}
// Races must be found in any order of execution.
void races(void **) {
  const std::string by_warp =
      "setp.lt.u32 %p1, %r0, 32;\nshl.b32 %r1, %r0, 2;\nand.b32 %r1, %r1, 127;\nadd.u32 %r1, %r1, %r63;\n";
  const std::string write = "@%p1 st.shared.u32 [%r1], %r0;\n", read = "@!%p1 ld.shared.u32 %r4, [%r1];\n";
  must_fail("nothing orders the two", by_warp + write + read);
  must_fail("nothing orders the two", by_warp + read + write);
  must_fail("nothing orders the two", by_warp + write + "@!%p1 st.shared.u32 [%r1], %r0;\n");
  run(by_warp + write + "bar.sync 0;\n" + read + "bar.sync 0;\n" + write, std::vector<u32>(64), 64);
  // Accesses to different halves of a word do not conflict.
  const std::string half = "@%p1 st.shared.b16 [%r63], %rs1;\n@!%p1 st.shared.b16 [%r63";
  run(by_warp + half + "+2], %rs1;\n", std::vector<u32>(64), 64);
  must_fail("nothing orders the two", by_warp + half + "], %rs1;\n");
  // An mbarrier orders waiting threads after arriving ones.
  const std::string arrives = "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r62];\n";
  const std::string init =
      "setp.eq.u32 %p7, %r0, 0;\nadd.u32 %r62, %r63, 32768;\n@%p7 mbarrier.init.shared::cta.b64 [%r62], "
      "32;\nbar.sync 0;\n";
  run(init + by_warp + write + arrives + wait_for_it + read, std::vector<u32>(64), 64);
  must_fail("nothing orders the two", init + by_warp + arrives + write + wait_for_it + read);
  // TMA writes memory that was not released, and reads memory without a fence.
  const std::string copy =
      std::string("@%p7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r62], 128;\n") +
      "@%p7 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r63], [%rd0], 128, [%r62];\n";
  run(barrier_at_32768 + by_warp + read + "bar.sync 0;\n" + copy + wait_for_it + read, std::vector<u32>(64), 64);
  must_fail("is written, was read before by warp 1", barrier_at_32768 + by_warp + read + copy);
  must_fail("is read, was written before by the copy engine",
            barrier_at_32768 + by_warp + copy + "bar.sync 0;\n" + read);
  const std::string store =
      "@%p7 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r63], 128;\n@%p7 "
      "cp.async.bulk.commit_group;\n";
  const std::string fence = "fence.proxy.async.shared::cta;\n", drain = "@%p7 cp.async.bulk.wait_group.read 0;\n";
  run(barrier_at_32768 + by_warp + write + fence + "bar.sync 0;\n" + store + drain + "bar.sync 0;\n" + write,
      std::vector<u32>(64), 64);
  must_fail("without fence.proxy.async", barrier_at_32768 + by_warp + write + "bar.sync 0;\n" + store);
  must_fail("without fence.proxy.async",
            barrier_at_32768 + by_warp + write + "fence.proxy.async.global;\nbar.sync 0;\n" + store);
  must_fail("is written asynchronously, was written without",
            barrier_at_32768 + by_warp + write + "bar.sync 0;\n" + copy);
  // The other warp's fence is unordered, even if it runs first.
  must_fail("without fence.proxy.async", barrier_at_32768 + by_warp + "@!%p1 st.shared.u32 [%r1], %r0;\nbar.sync 0;\n" +
                                             fence + "@!%p1 bra over;\n" + linger + store + drain + "over:\n");
  // Nothing orders the barrier's initialisation before the other warp.
  must_fail("nothing orders the two",
            "setp.eq.u32 %p7, %r0, 0;\nadd.u32 %r62, %r63, 32768;\n@%p7 mbarrier.init.shared::cta.b64 "
            "[%r62], 1;\n" +
                by_warp + "@%p1 bra over;\n" + linger +
                "mbarrier.test_wait.parity.shared::cta.b64 %p6, [%r62], 0;\nover:\n");
  must_fail("is written, was read before by warp 0",
            barrier_at_32768 + by_warp + write + fence + "bar.sync 0;\n" + store + write + drain);
}
// A lane's arrival counts for its warp if bar.warp.sync has ordered the lanes; elect.sync does not.
void one_lane_arrives(void **) {
  setenv("LUATTN_PTX_RACES", "2", 1);
  const std::string by_warp = "shl.b32 %r1, %r0, 2;\nadd.u32 %r1, %r1, %r63;\nsetp.lt.u32 %p1, %r0, 32;\n";
  const std::string begins = barrier_at_32768 + by_warp + "@!%p1 bra waits;\n", first = "setp.eq.u32 %p2, %r0, 0;\n",
                    elected = "elect.sync _|%p2, -1;\n", ordered = "bar.warp.sync -1;\n",
                    arrives = "@%p2 mbarrier.arrive.shared::cta.b64 _, [%r62];\nwaits:\n" + std::string(wait_for_it),
                    one = "@%p2 st.shared.u32 [%r63+256], %r0;\n", other = "@!%p1 ld.shared.u32 %r4, [%r1+-128];\n",
                    writes = "st.shared.u32 [%r1], %r0;\n", reads = "ld.shared.u32 %r4, [%r1];\n",
                    overwrites = "@!%p1 st.shared.u32 [%r1+-128], %r0;\n";
  run(begins + writes + ordered + elected + arrives + other, std::vector<u32>(64), 64);
  must_fail("is read, was written before by warp 0", begins + writes + elected + arrives + other);
  must_fail("is read, was written before by warp 0", begins + writes + first + arrives + other);
  run(begins + reads + ordered + elected + arrives + overwrites, std::vector<u32>(64), 64);
  must_fail("is written, was read before by warp 0", begins + reads + elected + arrives + overwrites);
  // What one lane alone has written needs no order among lanes.
  const std::string reads_one = "@!%p1 ld.shared.u32 %r4, [%r63+256];\n";
  run(begins + elected + one + arrives + reads_one, std::vector<u32>(64), 64);
  // Nor if other lanes have accessed something before it, which is in no order then.
  run(begins + reads + elected + one + arrives + reads_one, std::vector<u32>(64), 64);
  must_fail("is written, was read before by warp 0", begins + reads + elected + one + arrives + reads_one + overwrites);
  must_fail("is read, was written before by warp 0",
            begins + first + one + "setp.eq.u32 %p2, %r0, 5;\n" + arrives + reads_one);
  unsetenv("LUATTN_PTX_RACES");
}
// All four warps of a group issue a product with the same operands.
void groups_agree(void **) {
  const std::string
      begins = "shr.u32 %r5, %r63, 4;\ncvt.u64.u32 %rd4, %r5;\nadd.s64 %rd4, %rd4, 0x4000004000000000;\n",
      product =
          "wgmma.fence.sync.aligned;\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, "
          "%f4}, %rd4, %rd4, 0, 1, 1, 0, 0;\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned "
          "0;\n";
  must_fail("not issued the same wgmma", begins + "setp.ge.u32 %p1, %r0, 96;\n@%p1 bra over;\n" + product + "over:\n",
            128);
  must_fail("not issued the same wgmma",
            begins + "shr.u32 %r1, %r0, 5;\nshl.b32 %r1, %r1, 6;\ncvt.u64.u32 %rd5, %r1;\nadd.s64 %rd4, %rd4, %rd5;\n" +
                product,
            128);
  must_fail("lane 1 has another descriptor",
            begins + "shl.b32 %r1, %r0, 6;\ncvt.u64.u32 %rd5, %r1;\nadd.s64 %rd4, %rd4, %rd5;\n" + product, 128);
  must_fail("with such a descriptor", begins + "add.s64 %rd4, %rd4, 0x0002000000000000;\n" + product,
            128);  // a base offset
}
void operands_must_stay(void **) {
  must_fail("is written, was read before by warp 0",
            "shr.u32 %r5, %r63, 4;\ncvt.u64.u32 %rd4, %r5;\nadd.s64 %rd4, %rd4, 0x4000004000000000;\nadd.s64 "
            "%rd5, %rd4, 512;\n"
            "wgmma.fence.sync.aligned;\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, "
            "%f4}, %rd4, %rd5, 0, 1, 1, "
            "0, 0;\nwgmma.commit_group.sync.aligned;\nsetp.eq.u32 %p1, %r0, 0;\n@%p1 st.shared.u32 "
            "[%r63+8192], %r0;\nwgmma.wait_group.sync.aligned 0;",
            128);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(groups_agree), cmocka_unit_test(mistakes), cmocka_unit_test(races),
                              cmocka_unit_test(one_lane_arrives), cmocka_unit_test(operands_must_stay)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
