// reference.hpp: templates/example/spec.cuh on the host.
struct Reference {
  static constexpr bool sigmoid = false, sink = false, lse = true;
  static constexpr int num_scalars = 0;
  static constexpr double scalar[2] = {};
  static bool keep(const Problem &, int, int, int q, int kv) { return kv <= q; }
  static double score(const Problem &, double t, int, int, int) { return t; }
  static void element(const Problem &, Gradients &, double, int, int, int) {}
  static double qmod(double x, int) { return x; }
  static double kmod(double x, int) { return x; }
  static double vmod(double x) { return x; }
  static double dqmod(Gradients &, double, double g, int) { return g; }
  static double dkmod(Gradients &, double g, int) { return g; }
  static double dvmod(Gradients &, double, double g) { return g; }
};
