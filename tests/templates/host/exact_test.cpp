// exact_test.cpp: compares sums of ops/reproducible_sum.cuh with big-integer sums, for numbers of all
// magnitudes in several orders; tests the results for infinities and NaN.
#include "host_cuda.hpp"
#include "ops/reproducible_sum.cuh"

template <int>
struct same_size;
template <>
struct same_size<4> {
  using type = uint32_t;
};
template <>
struct same_size<8> {
  using type = uint64_t;
};

static uint64_t state = 88172645463325252ull;
static uint64_t random_bits() {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

// A big integer in two's complement. Bit 0 has the value of the smallest positive double.
struct Long {
  static constexpr int words = 70;
  uint32_t w[words] = {};
  void add(double x) {
    int exponent;
    const double m = frexp(fabs(x), &exponent);  // x = m * 2^exponent
    uint64_t bits = uint64_t(ldexp(m, 53));
    int place = exponent - 53 + 1074;
    while (place < 0) bits >>= 1, ++place;  // shifts out zeros
    Long y;
    for (int i = 0; i < 53; ++i)
      if (bits >> i & 1) y.w[(place + i) / 32] |= 1u << (place + i) % 32;
    add(y, x < 0);
  }
  void add(const Long &y, bool negated) {
    uint64_t carry = negated;
    for (int i = 0; i < words; ++i) {
      carry += uint64_t(w[i]) + (negated ? ~y.w[i] : y.w[i]);
      w[i] = uint32_t(carry);
      carry >>= 32;
    }
  }
  long double value() const {
    Long m;
    const bool negative = w[words - 1] >> 31 != 0;
    m.add(*this, negative);
    int top = words - 1;
    while (top > 2 && m.w[top] == 0) --top;
    const long double x = (m.w[top] * 0x1p32L + m.w[top - 1]) * 0x1p32L + m.w[top - 2];
    return ldexpl(negative ? -x : x, (top - 2) * 32 - 1074);
  }
};

template <class Real>
static Real random_real(int spread) {
  using Bits = typename same_size<sizeof(Real)>::type;
  constexpr int mantissa = sizeof(Real) == 4 ? 23 : 52, all = sizeof(Real) == 4 ? 254 : 2046;
  const uint64_t r = random_bits(), exponent = spread > 0 ? all / 2 + random_bits() % spread : random_bits() % all;
  return std::bit_cast<Real>(Bits(Bits(r & 1) << (sizeof(Real) * 8 - 1) | Bits(exponent) << mantissa |
                                  (Bits(r >> 8) & ((Bits(1) << mantissa) - 1))));
}

// Adds with a converged warp, whose lanes have the same element or different ones.
template <class Real>
static void add_by_warp(const std::vector<Real> &x, std::vector<u64> *sum, int count, Real *special) {
  lanes_meet = true;
  launch(
      [&](int) {
        for (size_t k = threadIdx.x; k < (x.size() + 31) / 32 * 32; k += 32) {
          u64 *alone = &sum[1][0];  // the last lane's element, in every second iteration
          const bool elsewhere = threadIdx.x == 31 && k / 32 % 2;
          exact_add_together(elsewhere ? alone : &sum[0][1], count, special, k < x.size() ? x[k] : Real(0));
        }
      },
      dim3(1), 32, 0, 0);
  lanes_meet = false;
  for (size_t k = 0; k < sum[0].size(); ++k) sum[0][k] += k == 0 ? 0 : sum[1][k - 1];
}

template <class Real>
static void check_sums() {
  constexpr int limbs = exact_limbs<Real>, count = 3;
  const double unit = sizeof(Real) == 4 ? 0x1p-24 : 0x1p-52;  // float: rounded once; double: rounded twice
  for (int i = 0; i < 300; ++i) {
    const int n = int(random_bits() % 200), spread = i % 3 == 0 ? 0 : i % 3 * 20;
    std::vector<Real> x;
    for (int k = 0; k < n; ++k)
      x.push_back(k % 5 == 4 && i % 2 ? -x[random_bits() % x.size()] : random_real<Real>(spread));
    Long want;
    for (Real y : x) want.add(double(y));
    Real first = 0;
    for (int order = 0; order < 5; ++order) {
      std::vector<u64> by_warp[2] = {std::vector<u64>(limbs * count), std::vector<u64>(limbs * count)},
                       &sum = by_warp[0];
      Real special = 0;
      for (size_t k = x.size(); k > 1 && order > 0; --k) std::swap(x[k - 1], x[random_bits() % k]);
      if (order == 4)
        add_by_warp(x, by_warp, count, &special);
      else
        for (Real y : x) exact_add(&sum[1], count, &special, y);
      const Real got = exact_value<Real>(&sum[1], count);
      if (order == 0) first = got;
      if (memcmp(&got, &first, sizeof got) != 0) host_fail("the sum depends on the order");
      if (special != 0) host_fail("a finite number was taken for another");
      for (int k = 0; k < limbs; ++k)
        if (sum[k * count] != 0 || sum[k * count + 2] != 0) host_fail("a neighbour was added to");
    }
    const long double exact = want.value(), error = fabsl((long double)first - exact);
    const long double least = sizeof(Real) == 4 ? 0x1p-149L : 0x1p-1074L;
    if (fabsl(exact) < (sizeof(Real) == 4 ? 0x1p127L : 0x1p1022L) && error > unit * fabsl(exact) + least)
      host_fail("a sum is off by more than one rounding");
  }
}

template <class Real>
static void check_specials() {
  constexpr int limbs = exact_limbs<Real>;
  std::vector<u64> sum(limbs);
  Real special = 0;
  exact_add(sum.data(), 1, &special, Real(1));
  exact_add(sum.data(), 1, &special, -infinity<Real>());
  if (special + exact_value<Real>(sum.data(), 1) != -infinity<Real>()) host_fail("an infinity was lost");
  exact_add(sum.data(), 1, &special, infinity<Real>());
  if (!isnan(special)) host_fail("infinities of both signs are no NaN");
  std::vector<u64> zero(limbs);
  if (exact_value<Real>(zero.data(), 1) != 0) host_fail("nothing is not 0");
}

int main() {
  check_sums<float>();
  check_sums<double>();
  check_specials<float>();
  check_specials<double>();
  puts("sums are exact and in no order");
}
