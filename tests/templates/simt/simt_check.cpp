// simt_check.cpp: the simt family, forward and backward, against a naive reference in double. Runs on the
// host (see host_cuda.hpp); the spec, the type, the head dims and the tiles are chosen when it is compiled.
//
//     c++ -std=c++20 -O1 -I<spec> -I. -I../../../templates -I../../../templates/example -DEXAMPLE_ELEM=double
//     ..
//
// Hooks of the specs trap when they are called with a position at or past a length.
#include "host_cuda.hpp"

#include "bwd_simt.cu"
#include "fwd_simt.cu"
#include "problem.hpp"

constexpr bool any_mod = Spec::has_query_mod || Spec::has_key_mod || Spec::has_value_mod;

static unsigned tiles(int len, int tile) { return unsigned((len + tile - 1) / tile); }

static int shared_bytes(int weights) {
  const int e = sizeof(Real), m = Config::tile_m, n = Config::tile_n;
  return 2 * 144 * (m + n) + weights * e * m * (n + 16 / e);
}

static void forward(const Problem &x, const LuattnParams &p) {
  const unsigned h = unsigned(x.heads), b = unsigned(x.batch);
  // One block and one row more than there are: the grid of several stats is that of the largest.
  if (Spec::num_stats > 0) launch(luattn_stats, dim3(tiles(x.max_len, 32) + 1, b + 1), stats_threads, 0, p);
  if (any_mod) launch(luattn_mod, dim3(tiles(x.max_len, aux_tile), h, 3 * b), aux_threads, 0, p);
  launch(luattn_fwd, dim3(tiles(x.q_len, Config::tile_m), h, b), Config::threads, shared_bytes(1), p);
}

static void backward(const Problem &x, const LuattnParams &p) {
  const unsigned h = unsigned(x.heads), b = unsigned(x.batch);
  launch(luattn_prepare, dim3(tiles(x.q_len, aux_tile), h, b), aux_threads, 0, p);
  launch(luattn_dkdv, dim3(tiles(x.kv_len, Config::tile_n), unsigned(x.heads_kv), b), Config::threads,
         shared_bytes(2), p);
  launch(luattn_dq, dim3(tiles(x.q_len, Config::tile_m), h, b), Config::threads, shared_bytes(2), p);
  if (any_mod) launch(luattn_finish, dim3(tiles(x.max_len, aux_tile), h, 3 * b), aux_threads, 0, p);
}

static double array_error(const std::vector<Real> &got, const Doubles &want, double floor) {
  double worst = 0, norm = floor;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!isfinite(got[i])) return INFINITY;
    norm = fmax(norm, fabs(want[i]));
    worst = fmax(worst, fabs(got[i] - want[i]));
  }
  return worst / norm;
}

// Everything a case has in memory. Results start as NaN.
struct Case {
  Problem x;
  Tensor q, k, v, dout, dlse, o, lse, dq, dk, dv, mod_q, mod_k, mod_v, acc_q, acc_k, acc_v;
  std::vector<Real> saved, rows, bias, bias_grad, scalar_grad;
  std::vector<int> stats;

  Case(const Problem &x, Layout layout)
      : x(x),
        q(x.batch, x.heads, x.q_len, dim, layout, true),
        k(x.batch, x.heads_kv, x.kv_len, dim, layout, true),
        v(x.batch, x.heads_kv, x.kv_len, dim_v, layout, true),
        dout(x.batch, x.heads, x.q_len, dim_v, layout, true),
        dlse(x.batch, x.heads, x.q_len, 1, layout, true),
        o(x.batch, x.heads, x.q_len, dim_v, layout, false),
        lse(x.batch, x.heads, x.q_len, 1, layout, false),
        dq(x.batch, x.heads, x.q_len, dim, layout, false),
        dk(x.batch, x.heads_kv, x.kv_len, dim, layout, false),
        dv(x.batch, x.heads_kv, x.kv_len, dim_v, layout, false),
        mod_q(x.batch, x.heads, x.q_len, dim, HEADS_FIRST, false),
        mod_k(x.batch, x.heads_kv, x.kv_len, dim, HEADS_FIRST, false),
        mod_v(x.batch, x.heads_kv, x.kv_len, dim_v, HEADS_FIRST, false),
        acc_q(mod_q),
        acc_k(mod_k),
        acc_v(mod_v),
        saved(size_t(x.batch) * x.heads * x.q_len, Real(NAN)),
        rows(saved.size() * 2, Real(NAN)),
        bias(x.bias.begin(), x.bias.end()),
        bias_grad(bias.size()),
        scalar_grad(8),
        stats(size_t(x.batch) * tiles(x.max_len, 32) * 2) {}

  LuattnParams params() {
    LuattnParams p = {};
    p.batch = x.batch;
    p.heads = x.heads;
    p.heads_kv = x.heads_kv;
    p.group = x.heads / x.heads_kv;
    p.q_len = x.q_len;
    p.kv_len = x.kv_len;
    p.scale = x.scale;
    p.src_q = q.params();
    p.src_k = k.params();
    p.src_v = v.params();
    p.q = Spec::has_query_mod ? mod_q.params() : p.src_q;
    p.k = Spec::has_key_mod ? mod_k.params() : p.src_k;
    p.v = Spec::has_value_mod ? mod_v.params() : p.src_v;
    p.o = o.params();
    if (Spec::has_lse) p.lse = lse.params();
    p.saved = saved.data();
    p.dout = dout.params();
    if (x.has_dlse) p.dlse = dlse.params();
    p.dq = dq.params();
    p.dk = dk.params();
    p.dv = dv.params();
    p.bwd_rows = rows.data();
    p.dq_acc = acc_q.memory.data();
    p.dk_acc = acc_k.memory.data();
    p.dv_acc = acc_v.memory.data();
    p.stats[0] = stats.data();
    p.input[0] = {x.doc.data(), nullptr, {x.max_len, 1}, {x.batch, x.max_len}};
    p.input[1] = {bias.data(), bias_grad.data(), {x.max_len, 1}, {x.heads, x.max_len}};
    for (int i = 0; i < Reference::num_scalars; ++i) p.scalar[i] = Reference::scalar[i];
    p.scalar_grad = scalar_grad.data();
    return p;
  }
};

static bool check(const Problem &x, Layout layout) {
  Case c(x, layout);
  const LuattnParams p = c.params();
  descending = false;
  forward(x, p);
  backward(x, p);
  const Gradients want =
      reference(x, {c.q.logical(), c.k.logical(), c.v.logical(), c.dout.logical(), c.dlse.logical()});
  const double tiny = 1e-30, terms = fmax(0.01 * want.terms, tiny);
  Doubles scalars(want.scalar.begin(), want.scalar.begin() + Reference::num_scalars);
  const struct {
    const char *name;
    double error;
  } results[] = {{"o", c.o.error(want.o, tiny)},
                 {"lse", Spec::has_lse ? c.lse.error(want.lse, tiny) : 0},
                 {"dq", c.dq.error(want.dq, 1)},
                 {"dk", c.dk.error(want.dk, 1)},
                 {"dv", c.dv.error(want.dv, 1)},
                 {"bias", array_error(c.bias_grad, want.bias, 1)},
                 {"scalars", array_error(c.scalar_grad, scalars, terms)}};

  // Again, with the threads in the other order.
  const std::vector<Real> o = c.o.memory, dq = c.dq.memory, dk = c.dk.memory, dv = c.dv.memory;
  descending = true;
  forward(x, p);
  backward(x, p);
  const auto same = [](const std::vector<Real> &a, const std::vector<Real> &b) {
    return memcmp(a.data(), b.data(), a.size() * sizeof(Real)) == 0;
  };
  bool ok = same(o, c.o.memory) && same(dq, c.dq.memory) && same(dk, c.dk.memory) && same(dv, c.dv.memory);

  printf("batch %d heads %d/%d len %d, %d dims %d, %d layout %d:", x.batch, x.heads, x.heads_kv, x.q_len,
         x.kv_len, dim, dim_v, layout);
  if (!ok) printf(" FAILED: depends on the order of threads;");
  for (const auto &r : results) {
    const bool good = r.error <= (sizeof(Real) == 8 ? 1e-12 : 1e-5);
    printf(" %s %.1e%s", r.name, r.error, good ? "" : " FAILED");
    ok = ok && good;
  }
  printf("\n");
  return ok;
}

static Problem problem(int batch, int heads, int heads_kv, int q_len, int kv_len, bool has_dlse) {
  Problem x = {
      batch, heads, heads_kv, q_len, kv_len, q_len > kv_len ? q_len : kv_len, has_dlse, 1 / sqrt(double(dim)),
      {},    {}};
  for (int b = 0; b < batch; ++b)
    for (int i = 0; i < x.max_len; ++i) x.doc.push_back(i < kv_len + 40 ? i / 83 + b : 100 + i);
  for (int i = 0; i < heads * x.max_len; ++i) x.bias.push_back(Real(uniform()));
  return x;
}

int main() {
  bool ok = check(problem(2, 2, 2, 64, 64, false), HEADS_FIRST);
  ok &= check(problem(1, 4, 2, 150, 203, true), HEADS_FIRST);
  ok &= check(problem(1, 3, 1, 203, 131, true), HEADS_LAST_ODD);
  ok &= check(problem(2, 2, 1, 1, 77, true), HEADS_LAST_ALIGNED);
  ok &= check(problem(1, 2, 2, 129, 1, false), HEADS_LAST_ALIGNED);
  ok &= check(problem(1, 1, 1, 257, 300, true), HEADS_LAST_ALIGNED);
  ok &= check(problem(1, 2, 1, 33, 0, true), HEADS_FIRST);
  ok &= check(problem(1, 2, 1, 0, 33, true), HEADS_FIRST);
  return ok ? 0 : 1;
}
