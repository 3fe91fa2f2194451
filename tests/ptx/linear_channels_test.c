/* linear_channels_test.c: as linear_test.c, where decays differ between channels. */
#include "tests/ptx/linear_cases.h"

static const linear_kernel gla = LINEAR_KERNEL(2, "ChannelDecay", "PlainUpdate", "NoRowMods", "NoSkip", 64, 64),
                           all = LINEAR_KERNEL(2, "ChannelDecay", "Writes", "Factors", "Skips", 128, 128),
                           writing = LINEAR_KERNEL(2, "ChannelDecay", "Writes", "NoRowMods", "NoSkip", 64, 64),
                           kda = LINEAR_KERNEL(2, "ChannelDecay", "DeltaRule", "NoRowMods", "NoSkip", 64, 64);

/* Gates of all kinds: chunks whose decays are little, or so great that pairs are of single tokens. */
static void test_gates(void **state) {
  (void)state;
  for (gates g = NONE; g <= RARE; g++)
    for (int k_dim = 64; k_dim <= 128; k_dim += 64) {
      call c = linear_case(&gla, g, k_dim == 64 ? 200 : 64);
      c.kernel.k_dim = k_dim;
      linear_run(&c);
    }
}
static void test_lengths(void **state) {
  (void)state;
  static const int lengths[] = {0, 1, 63, 64, 65, 1000};
  for (int i = 0; i < 6; i++) {
    call c = linear_case_of_two(&gla, i % 2 ? PRODUCTION : WEAK, lengths[i]);
    if (i == 5) c.entries = 1;
    c.has_first = i % 2 == 0, c.in_place = i % 4 == 0;
    linear_run(&c);
  }
}
static void test_packed(void **state) {
  (void)state;
  call c = linear_packed_case(&gla, PRODUCTION, 2, 4);
  linear_run(&c);
  c.gates = WEAK, c.kernel.elem = "half_t", c.kernel.v_dim = c.kernel.v_block = 128;
  c.pool[3] = c.pool[4] = -1;
  linear_run(&c);
}
/* Mods, what is skipped, states of each type, value channels shared by blocks, head dims that fill boxes in part. */
static void test_parts(void **state) {
  (void)state;
  static const int dims[][3] = {{128, 128, 128}, {128, 128, 64}, {72, 200, 128}, {16, 24, 64}};
  for (int i = 0; i < 4; i++) {
    call c = linear_case(&all, i % 2 ? MIXED : WEAK, 140);
    linear_set_dims(&c, dims[i][0], dims[i][1], dims[i][2]);
    c.heads_v = 2, c.state_type = i % 3, c.k_first = i % 2 == 1;
    linear_run(&c);
  }
}

/* Updates that erase: gates, keys that are alike, writes of up to 2, packed sequences. */
static void test_erasing(void **state) {
  (void)state;
  for (gates g = WEAK; g <= RARE; g++) {
    call c = linear_case(&kda, g, 200);
    if (g % 2 == 0) linear_set_dims(&c, 128, 128, 128);
    linear_run(&c);
  }
}
static void test_erasing_alike(void **state) {
  (void)state;
  for (int i = 0; i < LINEAR_ALIKE_CALLS; i++) {
    call c = linear_alike_case(&kda, i);
    c.kernel.k_dim = 128;
    linear_run(&c);
  }
}
static void test_erasing_packed(void **state) {
  (void)state;
  call c = linear_packed_case(&kda, PRODUCTION, 1, 2);
  linear_run(&c);
  linear_set_dims(&c, 120, 72, 128);
  c.kernel.skip = "Skips", c.kernel.elem = "half_t", c.gates = WEAK, c.pool[5] = -1;
  linear_run(&c);
}

/* By quarters of chunks: all gates, whole and in segments, head dims that fill boxes in part, mods, packed sequences. */
static void test_quarters(void **state) {
  (void)state;
  for (gates g = NONE; g <= RARE; g++) {
    call c = linear_case(&kda, g, g % 2 ? 400 : 150);
    linear_set_dims(&c, g % 3 ? 128 : 120, g % 3 == 2 ? 72 : 128, 128);
    c.segments = g % 2 || g == PRODUCTION ? 3 : 1;
    if (g % 3 == 0) c.kernel.skip = "Skips", c.kernel.mods = "Factors";
    linear_run(&c);
  }
}
static void test_quarters_packed(void **state) {
  (void)state;
  call c = linear_packed_case(&kda, PRODUCTION, 1, 2);
  linear_set_dims(&c, 128, 128, 128);
  c.pool[5] = -1;
  linear_run(&c);
  c.segments = 2;
  linear_run(&c);
  c.kernel.mods = "Factors", c.gates = MIXED;
  linear_run(&c);
}

/* States in place, of which no segment begins early: by maps. Of half_t, whose quarters are wide at weaker gates. */
static void test_quarters_in_place(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    call c = linear_case(&kda, i ? PRODUCTION : WEAK, 400);
    linear_set_dims(&c, 104, 128, 128);
    c.segments = 3, c.in_place = true;
    if (i) c.kernel.elem = "half_t";
    linear_run(&c);
  }
}

/* Segments: maps of weak gates, and of others what a segment's last chunks decide alone. */
static void test_segments(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++)
    for (gates g = NONE; g <= RARE; g++) {
      call c = linear_case(i ? &kda : &gla, g, 500);
      c.segments = 3 + g % 2;
      if (g == PRODUCTION) linear_set_dims(&c, 72, 80, 128), linear_pack(&c, 300);
      if (g == MIXED) c.kernel.skip = "Skips", c.kernel.mods = "Factors";
      linear_run(&c);
    }
}
static void test_backward_segments(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++)
    for (gates g = NONE; g <= MIXED; g++) {
      call c = linear_case(i ? &kda : &gla, g, 500);
      c.segments = 3 + g % 2;
      if (g == PRODUCTION) linear_set_dims(&c, 72, 80, 128), linear_pack(&c, 300);
      linear_run_erasing(&c);
    }
}
/* Writes of up to 2, and of more, which make vectors longer: then no chunk is left out. */
static void test_segments_long(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    call c = linear_case(&kda, i ? PRODUCTION : NONE, 500);
    c.segments = 4, c.most_write = i ? 2.5f : 2;
    linear_run(&c);
  }
}
/* Each channel decays, and no state does: no chunk is left out. */
static void test_segments_turns(void **state) {
  (void)state;
  call c = linear_case(&kda, TURNS, 500);
  c.segments = 4, c.keys = ALIKE;
  linear_run(&c);
  linear_run_erasing(&c);
  linear_set_dims(&c, 128, 128, 128);
  linear_run(&c);
}

/* Gradients. */
static void test_backward_gates(void **state) {
  (void)state;
  for (gates g = NONE; g <= RARE; g++) {
    const call c = linear_case(&gla, g, 200);
    linear_run_erasing(&c);
  }
}
static void test_backward_dims(void **state) {
  (void)state;
  static const int dims[][3] = {{128, 128, 128}, {72, 40, 64}, {64, 128, 128}};
  for (int i = 0; i < 3; i++) {
    call c = linear_case_of_two(&gla, i == 1 ? WEAK : PRODUCTION, 100 - 37 * i);
    linear_set_dims(&c, dims[i][0], dims[i][1], dims[i][2]);
    c.heads_v = 2, c.has_first = i != 1;
    linear_run_erasing(&c);
  }
}
static void test_backward_packed(void **state) {
  (void)state;
  call c = linear_packed_case(&gla, PRODUCTION, 2, 4);
  linear_run_erasing(&c);
  c.kernel.elem = "half_t", c.gates = WEAK, c.pool[3] = -1;
  linear_run_erasing(&c);
}

/* Of what is written, too. */
static void test_backward_writes(void **state) {
  (void)state;
  for (gates g = WEAK; g <= RARE; g++) {
    call c = linear_case(&writing, g, 100);
    if (g % 2 == 1) linear_set_dims(&c, 72, 40, 64);
    if (g % 3 == 0) c.kernel.mods = "RowFactors";
    linear_run_erasing(&c);
  }
  call c = linear_case_of_two(&writing, WEAK, 70);
  linear_set_dims(&c, 128, 128, 128);
  c.heads_v = 2;
  linear_run_erasing(&c);
}

/* Of updates that erase. */
static void test_backward_erasing(void **state) {
  (void)state;
  for (gates g = NONE; g <= RARE; g++) {
    call c = linear_case(&kda, g, 200);
    if (g % 2 == 0) linear_set_dims(&c, 128, 128, 128);
    linear_run_erasing(&c);
  }
}
static void test_backward_erasing_alike(void **state) {
  (void)state;
  for (int i = 0; i < LINEAR_ALIKE_CALLS; i++) {
    const call c = linear_alike_case(&kda, i);
    linear_run_erasing(&c);
  }
}
static void test_backward_erasing_dims(void **state) {
  (void)state;
  static const int dims[][3] = {{128, 128, 128}, {72, 40, 64}, {64, 128, 128}};
  for (int i = 0; i < 3; i++) {
    call c = linear_case_of_two(&kda, i == 1 ? WEAK : PRODUCTION, 100 - 37 * i);
    linear_set_dims(&c, dims[i][0], dims[i][1], dims[i][2]);
    c.heads_v = 2, c.has_first = i != 1;
    linear_run_erasing(&c);
  }
}
static void test_backward_erasing_packed(void **state) {
  (void)state;
  call c = linear_packed_case(&kda, PRODUCTION, 1, 2);
  linear_run_erasing(&c);
  c.kernel.elem = "half_t", c.gates = WEAK, c.pool[3] = -1;
  linear_run_erasing(&c);
}

LINEAR_TESTS(cmocka_unit_test(test_gates), cmocka_unit_test(test_lengths), cmocka_unit_test(test_packed),
             cmocka_unit_test(test_parts), cmocka_unit_test(test_erasing), cmocka_unit_test(test_erasing_alike),
             cmocka_unit_test(test_erasing_packed), cmocka_unit_test(test_quarters),
             cmocka_unit_test(test_quarters_packed), cmocka_unit_test(test_quarters_in_place),
             cmocka_unit_test(test_segments), cmocka_unit_test(test_segments_long),
             cmocka_unit_test(test_segments_turns), cmocka_unit_test(test_backward_segments),
             cmocka_unit_test(test_backward_gates), cmocka_unit_test(test_backward_dims),
             cmocka_unit_test(test_backward_packed), cmocka_unit_test(test_backward_writes),
             cmocka_unit_test(test_backward_erasing), cmocka_unit_test(test_backward_erasing_alike),
             cmocka_unit_test(test_backward_erasing_dims), cmocka_unit_test(test_backward_erasing_packed))
