// reference.hpp: softmax/spec.cuh on the host.
struct Reference {
  static constexpr bool sigmoid = false, sink = true, lse = true;
  static constexpr int num_scalars = 5;
  static constexpr double scalar[5] = {0.7, 0.4, 0.3, 0.05, 1.25};
  static bool keep(const Problem &x, int b, int, int q, int kv) {
    return x.doc[b * x.max_len + q] == x.doc[b * x.max_len + kv] && kv <= q + 7;
  }
  static double score(const Problem &x, double t, int h, int q, int kv) {
    return t + scalar[0] * 0.01 * (kv - q) + x.bias[h * x.max_len + kv];
  }
  static void element(const Problem &x, Gradients &g, double ds, int h, int q, int kv) {
    g.scalar[0] += ds * 0.01 * (kv - q);
    g.bias[h * x.max_len + kv] += ds;
  }
  static double qmod(double x, int d) { return x * (1 + scalar[2] * (d % 3)); }
  static double kmod(double x, int i) { return x + scalar[3] * (i % 5); }
  static double vmod(double x) { return x * scalar[4]; }
  static double dqmod(Gradients &g, double x, double y, int d) {
    g.scalar[2] += y * x * (d % 3);
    return y * (1 + scalar[2] * (d % 3));
  }
  static double dkmod(Gradients &g, double y, int i) {
    g.scalar[3] += y * (i % 5);
    return y;
  }
  static double dvmod(Gradients &g, double x, double y) {
    g.scalar[4] += y * x;
    return y * scalar[4];
  }
};
