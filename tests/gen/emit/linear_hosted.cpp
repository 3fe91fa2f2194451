// linear_hosted.cpp: runs the spec.cuh that is printed of linear_hooks.lua on the host, beside its hooks written again.
#include "host_cuda.hpp"

#include <stdio.h>

struct Config {
  static constexpr bool fast_math = false;
};
#include "spec.cuh"

static_assert(LinearSpec<Spec>);
static_assert(Spec::decay_of == DECAY_TOKEN && Spec::has_write && Spec::erases && Spec::has_skip);
static_assert(Spec::has_query_factor && Spec::has_key_factor && Spec::has_value_mod);

enum { ENTRIES = 2, TOKENS = 5, HEADS = 2, HEADS_V = 4, K = 64, V = 32 };
static float numbers[6][4096];

// The input of this name, in the order of names, with these sizes; with a gap behind each row.
static LuattnInput input(int i, int n, const int *size) {
  LuattnInput in = {};
  long long stride = 1;
  in.data = numbers[i];
  for (int axis = n - 1; axis >= 0; --axis) {
    in.size[axis] = size[axis], in.stride[axis] = stride;
    stride *= size[axis] + (axis == n - 1);
  }
  return in;
}
static float value(const LuattnInput &in, int i, int j = 0, int k = 0) {
  return static_cast<const float *>(in.data)[i * in.stride[0] + j * in.stride[1] + k * in.stride[2]];
}

static int failed = 0;
static void expect(const char *what, float found, double wanted) {
  if (fabs(found - wanted) <= 2e-6 * (1 + fabs(wanted))) return;
  printf("%s is %.9g, expected %.9g\n", what, found, wanted);
  failed = 1;
}

int main() {
  for (int i = 0; i < 6; ++i)
    for (int n = 0; n < 4096; ++n) numbers[i][n] = sinf(12.9898f * float(n) + 78.2f * float(i));
  // D, a, gate, of_k, of_q, w: inputs lie in the order of their names.
  LuattnLinearParams p = {};
  const int batch = PACKED ? 1 : ENTRIES, rows = PACKED ? ENTRIES * TOKENS : TOKENS;
  const int D[] = {HEADS_V}, a[] = {batch, rows, HEADS_V}, gate[] = {HEADS_V, V}, of_k[] = {ENTRIES, HEADS},
            of_q[] = {HEADS}, w[] = {rows, HEADS_V, batch};
  LuattnInput *in = p.inputs.input;
  in[0] = input(0, 1, D), in[1] = input(1, 3, a), in[2] = input(2, 2, gate), in[3] = input(3, 2, of_k);
  in[4] = input(4, 1, of_q), in[5] = input(5, 3, w);
  p.inputs.scalar[0] = 0.75f;
  p.heads = HEADS, p.heads_v = HEADS_V;
  for (int b = 0; b < ENTRIES; ++b)
    for (int hv = 0; hv < HEADS_V; ++hv)
      for (int t = 0; t < TOKENS; ++t) {
        const int h = hv / (HEADS_V / HEADS), first = PACKED ? b * TOKENS : 0, of = PACKED ? 0 : b;
        const LinearSite s = {b, hv, h, first};
        const double strength = 1 / (1 + exp(-value(in[5], first + t, hv, of)));
        expect("decay", Spec::decay(p, s, t),
               -log1p(exp(value(in[1], of, first + t, hv))) * 0.75 - double(hv) / HEADS_V);
        expect("write", Spec::write(p, s, t), strength);
        expect("read", Spec::read(p, s, t), strength);
        expect("query_factor", Spec::query_factor(p, s, t), -value(in[4], h) / 2);
        expect("key_factor", Spec::key_factor(p, s, t), 3 * value(in[3], b, h));
        for (int d = 0; d < V; d += 1 + d / 2) {
          const float x = 0.3f * float(d) - 1;
          expect("value_mod", Spec::value_mod(p, s, x, t, d), d < 2 ? x * value(in[2], hv, d) : tanh(x) + t);
          expect("skip", Spec::skip(p, s, x, t, d), value(in[0], hv) * x + d * (V - K));
        }
      }
  return failed;
}
