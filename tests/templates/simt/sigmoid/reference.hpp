// reference.hpp: sigmoid/spec.cuh on the host.
struct Reference {
  static constexpr bool sigmoid = true, sink = false, lse = false;
  static constexpr int num_scalars = 2;
  static constexpr double scalar[2] = {-0.5, 0};
  static bool keep(const Problem &, int, int h, int q, int kv) { return q >= 5 && (q + kv + h) % 3 != 0; }
  static double score(const Problem &, double t, int, int, int) { return t + scalar[0]; }
  static void element(const Problem &, Gradients &g, double ds, int, int, int) { g.scalar[0] += ds; }
  static double qmod(double x, int) { return x; }
  static double kmod(double x, int) { return x; }
  static double vmod(double x) { return x; }
  static double dqmod(Gradients &, double, double g, int) { return g; }
  static double dkmod(Gradients &, double g, int) { return g; }
  static double dvmod(Gradients &, double, double g) { return g; }
};
