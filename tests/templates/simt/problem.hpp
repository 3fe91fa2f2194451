// problem.hpp: one case of simt_check.cpp: tensors with NaN between and around their rows, and the reference in
// double.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <vector>

using Real = Config::Elem;
using Doubles = std::vector<double>;
constexpr int dim = Config::head_dim, dim_v = Config::head_dim_v;

// In [-1, 1), the same sequence in every run.
static double uniform() {
  static uint64_t state = 88172645463325252ull;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return double(state >> 11) / 9007199254740992.0 * 2 - 1;
}

enum Layout { HEADS_FIRST, HEADS_LAST_ODD, HEADS_LAST_ALIGNED };

// [batch][heads][len][width]: `logical` is contiguous; the kernels see `memory` through strides.
struct Tensor {
  int batch, heads, len, width;
  long long stride_b, stride_h, stride_s, offset;
  std::vector<Real> memory;

  Tensor(int batch, int heads, int len, int width, Layout layout, bool random)
      : batch(batch), heads(heads), len(len), width(width) {
    const int pad = layout == HEADS_LAST_ODD ? 1 : 4;
    offset = layout == HEADS_FIRST ? 0 : layout == HEADS_LAST_ODD ? 7 : 64;
    stride_h = layout == HEADS_FIRST ? (long long)len * width : (width + pad - 1) / pad * pad + pad;
    stride_s = layout == HEADS_FIRST ? width : stride_h * heads + pad;
    stride_b = layout == HEADS_FIRST ? stride_h * heads : stride_s * len + pad;
    memory.resize(size_t(offset + stride_b * batch + 32));
    memset(memory.data(), 0xff, memory.size() * sizeof(Real));
    for (size_t i = 0; random && i < size(); ++i) memory[at(i)] = Real(uniform());
  }
  size_t size() const { return size_t(batch) * heads * len * width; }
  size_t index(int b, int h, int s) const { return ((size_t(b) * heads + h) * len + s) * width; }
  size_t at(size_t i) const {
    const size_t x = i % width, s = i / width % len, h = i / width / len % heads, b = i / width / len / heads;
    return size_t(offset) + b * size_t(stride_b) + h * size_t(stride_h) + s * size_t(stride_s) + x;
  }
  LuattnTensor params() { return {memory.data() + offset, stride_b, stride_h, stride_s}; }
  Doubles logical() const {
    Doubles out(size());
    for (size_t i = 0; i < size(); ++i) out[i] = memory[at(i)];
    return out;
  }
  // Worst error relative to the largest value of the reference, at least `floor`. INFINITY for a NaN, for a
  // wrong infinity, and for a write between the rows.
  double error(const Doubles &want, double floor) const {
    double worst = 0, norm = floor;
    std::vector<char> ours(memory.size());
    for (size_t i = 0; i < size(); ++i) {
      const double got = memory[at(i)];
      ours[at(i)] = 1;
      if (isinf(want[i]) && got == want[i]) continue;
      if (!isfinite(want[i]) || !isfinite(got)) return INFINITY;
      norm = fmax(norm, fabs(want[i]));
      worst = fmax(worst, fabs(got - want[i]));
    }
    for (size_t i = 0; i < memory.size(); ++i)
      if (!ours[i] && !isnan(memory[i])) return INFINITY;
    return worst / norm;
  }
};

struct Problem {
  int batch, heads, heads_kv, q_len, kv_len, max_len;
  bool has_dlse;
  double scale;
  std::vector<int> doc;  // [batch][max_len]: one after the other, then rows alone, which keep nothing
  Doubles bias;          // [heads][max_len]
};

struct Gradients {
  Doubles o, lse, dq, dk, dv, bias, scalar = Doubles(8);
  double terms = 0;  // sum of |ds|: what the sums over all elements are made of
};

#include "reference.hpp"

struct Inputs {
  Doubles q, k, v, dout, dlse;
};

// One row: its part of every result. q, k, v and dout are logical; q, k, v after the mods.
static void reference_row(const Problem &x, const Inputs &in, int b, int h, int row, Gradients &g) {
  const size_t qi = (size_t(b) * x.heads + h) * x.q_len + row;
  const size_t kv0 = (size_t(b) * x.heads_kv + h / (x.heads / x.heads_kv)) * x.kv_len;
  const double *q = &in.q[qi * dim], *dout = &in.dout[qi * dim_v];
  Doubles score(x.kv_len), phi(x.kv_len), dp(x.kv_len);
  std::vector<int> kept;
  double m = Reference::sink ? Reference::scalar[1] : -INFINITY;
  for (int c = 0; c < x.kv_len; ++c) {
    if (!Reference::keep(x, b, h, row, c)) continue;
    kept.push_back(c);
    double t = 0;
    for (int d = 0; d < dim; ++d) t += q[d] * in.k[(kv0 + c) * dim + d];
    score[c] = Reference::score(x, t * x.scale, h, row, c);
    m = fmax(m, score[c]);
  }
  g.lse[qi] = -INFINITY;
  if (kept.empty()) return;

  double sum = Reference::sigmoid ? Reference::scalar[1]
               : Reference::sink  ? exp(Reference::scalar[1] - m)
                                  : 0,
         delta = 0;
  for (int c : kept) {
    phi[c] = Reference::sigmoid ? 1 / (1 + exp(-score[c])) : exp(score[c] - m);
    sum += phi[c];
  }
  g.lse[qi] = m + log(sum);
  for (int c : kept) {
    for (int d = 0; d < dim_v; ++d) {
      const double v = in.v[(kv0 + c) * dim_v + d];
      g.o[qi * dim_v + d] += phi[c] / sum * v;
      g.dv[(kv0 + c) * dim_v + d] += phi[c] / sum * dout[d];
      dp[c] += dout[d] * v;
    }
    delta += phi[c] / sum * dp[c];
  }
  const double dlse = x.has_dlse && Reference::lse ? in.dlse[qi] : 0;
  if (Reference::sigmoid) g.scalar[1] -= delta / sum;
  if (Reference::sink) g.scalar[1] += exp(Reference::scalar[1] - g.lse[qi]) * (dlse - delta);
  for (int c : kept) {
    const double slope = Reference::sigmoid ? 1 - phi[c] : 1;
    const double ds = phi[c] / sum * slope * (dp[c] - delta + dlse);
    Reference::element(x, g, ds, h, row, c);
    g.terms += fabs(phi[c] / sum * dp[c]);
    for (int d = 0; d < dim; ++d) {
      g.dq[qi * dim + d] += x.scale * ds * in.k[(kv0 + c) * dim + d];
      g.dk[(kv0 + c) * dim + d] += x.scale * ds * q[d];
    }
  }
}

static Gradients reference(const Problem &x, const Inputs &plain) {
  Gradients g;
  Inputs in = plain;
  for (size_t i = 0; i < in.q.size(); ++i) in.q[i] = Reference::qmod(in.q[i], int(i % dim));
  for (size_t i = 0; i < in.k.size(); ++i) in.k[i] = Reference::kmod(in.k[i], int(i / dim % x.kv_len));
  for (double &v : in.v) v = Reference::vmod(v);
  g.o.resize(size_t(x.batch) * x.heads * x.q_len * dim_v);
  g.lse.resize(size_t(x.batch) * x.heads * x.q_len);
  g.dq.resize(in.q.size());
  g.dk.resize(in.k.size());
  g.dv.resize(in.v.size());
  g.bias.resize(x.bias.size());
  for (int b = 0; b < x.batch; ++b)
    for (int h = 0; h < x.heads; ++h)
      for (int row = 0; row < x.q_len; ++row) reference_row(x, in, b, h, row, g);
  for (size_t i = 0; i < g.dq.size(); ++i) g.dq[i] = Reference::dqmod(g, plain.q[i], g.dq[i], int(i % dim));
  for (size_t i = 0; i < g.dk.size(); ++i) g.dk[i] = Reference::dkmod(g, g.dk[i], int(i / dim % x.kv_len));
  for (size_t i = 0; i < g.dv.size(); ++i) g.dv[i] = Reference::dvmod(g, plain.v[i], g.dv[i]);
  return g;
}
