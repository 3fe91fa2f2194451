// linear/recurrent/ring_states.cuh: a warp's part of a checkpoint in registers, as steps behind a ring of rows take it: what new
// tokens read of it, and the ring's rows folded into it.
#pragma once
#include "linear/recurrent/ring_rows.cuh"

// What row `row` of K has decayed by since a sum: e^(to - from), 0 where it is gone.
template <class Spec, class Config>
struct RingDecay {
  using Ring = RingFacts<Spec, Config>;
  using Real = typename Config::Number;
  const RingRows<Spec, Config> &ring;

  // Of all channels, of old rows: since row j, or since the checkpoint (-1).
  __device__ __forceinline__ Real number(int j) const {
    if constexpr (Ring::decays && !Ring::channels)
      return op_exp(ring.old_sum(ring.used - 1) - (j >= 0 ? ring.old_sum(j) : Real(0)));
    return 1;
  }
  // Of channel d.
  __device__ __forceinline__ Real channel(int j, int d) const {
    if constexpr (Ring::channels) {
      const auto sum = [&](int n) {
        return d < Config::k_dim ? ring.old_number(ring.in.sums, n, Config::k_dim, d, LUATTN_STATE_F32) : Real(0);
      };
      return op_exp(sum(ring.used - 1) - (j >= 0 ? sum(j) : Real(0)));
    }
    return 1;
  }
};

// What new token i reads of the checkpoint in the value channel at `at` of shared rows: by q, or by r.
template <class Spec, class Config>
LUATTN_FN void keep_read(const RingRows<Spec, Config> &ring, int i, int at, bool by_r, typename Config::Number x) {
  using Ring = RingFacts<Spec, Config>;
  using Layout = TokenLayout<Spec, Config>;
  auto *const row = ring.row(i);
  if constexpr (Ring::decays && !Ring::channels) {
    const auto left = op_exp(by_r ? ring.read_number(i) : ring.shared[ring.new_sum(i)]);
    x = left == 0 ? 0 : left * x;  // what has decayed to nothing is gone, were it infinite
  }
  if (!by_r) row[Layout::o + at] = x;
  if (by_r == Ring::reads) ring.new_u(i)[at] = row[Layout::written + at] - (Ring::reads && !Ring::erases ? x : 0);
  if constexpr (Ring::erases)
    if (by_r) ring.new_y(i)[at] = x;
}

// States of any type, in any order: in float.
template <class Spec, class Config>
struct WalkedRingState : RecurrentState<Spec, Config> {
  using Base = RecurrentState<Spec, Config>;
  using Ring = RingFacts<Spec, Config>;
  using Layout = TokenLayout<Spec, Config>;
  using Real = typename Config::Number;
  using Rows = RingRows<Spec, Config>;
  static constexpr int K = Base::K, V = Base::V, values = Base::Shape::v_warp;

  __device__ __forceinline__ WalkedRingState(const StateOrder<Config> &order, int offset) : Base(order, 0, offset) {}

  LUATTN_FN void prepare(const Rows &) {}
  __device__ __forceinline__ void fold(const LuattnLinearParams &p, const RecurrentPlace<Config> &place,
                                       const Rows &ring) {
    const RingDecay<Spec, Config> decay{ring};
    const Real left = decay.number(-1);
    each_four([&](int n,
                  int c) { return Ring::channels ? decay.channel(-1, this->order.channel(this->lane8, n + c)) : left; },
              [](Real f, Real &x, int) { x = f == 0 ? Real(0) : f * x; });
    for (int j = 0; j < ring.used; ++j) {
      add(ring, decay, j, ring.in.k, ring.in.u, 1);
      if constexpr (Ring::erases) add(ring, decay, j, ring.in.e, ring.in.y, -1);
    }
    this->store(p, place, true);
  }
  __device__ __forceinline__ void read_checkpoint(const Rows &ring) const {
    for (int i = 0; i < ring.tokens; ++i) {
      constexpr int N = (1 + Ring::reads) * V;
      Real x[N] = {};
#pragma unroll
      for (int n = 0; n < K; n += 4) {
        Real q[4], r[4];
        const int at = n * 8 + this->lane8 * 4;
        load_four(q, ring.row(i) + Layout::q + at);
        if constexpr (Ring::reads) load_four(r, ring.row(i) + Layout::read + at);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if constexpr (Ring::channels) q[c] *= op_exp(ring.shared[ring.new_sum(i) + at + c]);
          if constexpr (Ring::channels && Ring::reads) r[c] *= op_exp(ring.read_channel(i, at + c));
#pragma unroll
          for (int v = 0; v < V; ++v) {
            x[v] = op_fma(q[c], this->s[v][n + c], x[v]);
            if constexpr (Ring::reads) x[V + v] = op_fma(r[c], this->s[v][n + c], x[V + v]);
          }
        }
      }
      constexpr int each = 8 / N;
      const Real sum = sum_each<8>(x);
      const int which = this->lane8 / each;
      if (this->lane8 % each == 0) keep_read(ring, i, this->written + which % V, which >= V, sum);
    }
  }

 private:
  template <class Factor, class Take>
  __device__ __forceinline__ void each_four(const Factor &factor, const Take &take) {
#pragma unroll
    for (int n = 0; n < K; ++n) {
      const Real f = factor(n / 4 * 4, n % 4);
#pragma unroll
      for (int v = 0; v < V; ++v) take(f, this->s[v][n], v);
    }
  }
  __device__ __forceinline__ void add(const Rows &ring, const RingDecay<Spec, Config> &decay, int j, int of_k, int of_v,
                                      int sign) {
    const Real left = sign * decay.number(j);
    Real u[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int at = this->first + this->order.value(this->group, v);
      u[v] = at < Config::v_dim ? left * ring.old_number(of_v, j, Config::v_dim, at, ring.p.ring.type) : Real(0);
    }
#pragma unroll
    for (int n = 0; n < K; n += 4) {
      Real k[4];
      ring.old_four(k, of_k, j, this->lane8, n, ring.p.ring.type);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        k[c] *= decay.channel(j, this->order.channel(this->lane8, n + c));
#pragma unroll
        for (int v = 0; v < V; ++v) this->s[v][n + c] = op_fma(k[c], u[v], this->s[v][n + c]);
      }
    }
  }
};

// States of bf16 along K, by tensor cores: 16 value channels are the rows of A, and new tokens' q and r the columns of B, each as a
// sum of three numbers of bf16, which is all of a float. A lane has 16 bytes of memory where they are: which channels of K a
// product takes together is no matter, as long as both operands agree.
template <class Spec, class Config>
struct PairedRingState {
  using Shape = RecurrentShape<Config>;
  using Ring = RingFacts<Spec, Config>;
  using Layout = TokenLayout<Spec, Config>;
  using Real = typename Config::Number;
  using Rows = RingRows<Spec, Config>;
  static constexpr int K = Shape::k_dim, units = K / 32, terms = 3, split_rows = LINEAR_RING_SPLITS, tiles = 2,
                       values = 16 * tiles;

  const int first, g, t;
  u32 word[2 * tiles][units][4];  // of value channels g, g + 8, ..: eight numbers along K from unit t + 4 u on

  __device__ __forceinline__ PairedRingState(const StateOrder<Config> &, int offset)
      : first(offset + int(threadIdx.x / 32) * values), g(int(threadIdx.x % 32 / 4)), t(int(threadIdx.x % 4)) {}

  __device__ __forceinline__ void load(const LuattnLinearParams &p, const RecurrentPlace<Config> &place) {
    const char *const from = of(p.first, place);
#pragma unroll
    for (int h = 0; h < 2 * tiles; ++h)
#pragma unroll
      for (int u = 0; u < units; ++u) {
        uint4 x = {};
        if (has(h, u)) x = load_wide(from + (h * 8 * p.first.value + u * 32) * 2);
        word[h][u][0] = x.x, word[h][u][1] = x.y, word[h][u][2] = x.z, word[h][u][3] = x.w;
      }
  }
  // Rows of a token for `read_checkpoint`, in memory's order: number s of q, then of r, for each s.
  LUATTN_FN void prepare(const Rows &ring) {
    constexpr int each = (1 + Ring::reads) * (K / 4);
    for (int n = int(threadIdx.x); n < ring.tokens * each; n += int(blockDim.x)) {
      const int i = n / each, of_r = n % each / (K / 4), at = n % (K / 4) * 4;
      Real x[4];
      load_four(x, ring.row(i) + (of_r ? Layout::read : Layout::q) + at);
      if constexpr (Ring::channels) {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          x[c] *= op_exp(of_r ? ring.read_channel(i, at + c) : ring.shared[ring.new_sum(i) + at + c]);
      }
      const int d = ring.channel_at(at);
#pragma unroll
      for (int s = 0; s < terms; ++s) {
        const u32 two[2] = {pack<bf16_t>(x[0], x[1]), pack<bf16_t>(x[2], x[3])};
        store_shared(split(ring, i, 2 * s + of_r) + d * 2, two[0]);
        store_shared(split(ring, i, 2 * s + of_r) + d * 2 + 4, two[1]);
#pragma unroll
        for (int c = 0; c < 4; ++c) x[c] -= half_of<bf16_t>(two[c / 2], c % 2);
      }
    }
  }
  __device__ __forceinline__ void read_checkpoint(const Rows &ring) const {
    const int row = min_of(Ring::reads ? g : g / 2 * 2, split_rows - 2 + Ring::reads);  // columns beyond are no matter
    for (int i = 0; i < ring.tokens; ++i) {
      const u32 from = split(ring, i, row) + t * 16;
      float c[tiles][4] = {};
#pragma unroll
      for (int u = 0; u < units; ++u) {
        const uint4 b = load_shared_16(from + u * 64);
#pragma unroll
        for (int m = 0; m < tiles; ++m) {
          const u32 low[4] = {word[2 * m][u][0], word[2 * m + 1][u][0], word[2 * m][u][1], word[2 * m + 1][u][1]},
                    high[4] = {word[2 * m][u][2], word[2 * m + 1][u][2], word[2 * m][u][3], word[2 * m + 1][u][3]};
          mma_16x8x16<bf16_t>(c[m], low, b.x, b.y);
          mma_16x8x16<bf16_t>(c[m], high, b.z, b.w);
        }
      }
#pragma unroll
      for (int m = 0; m < tiles; ++m) keep(ring, i, m, c[m]);
    }
  }
  // In memory, where each lane has its own part; new tokens read what was rounded.
  __device__ __forceinline__ void fold(const LuattnLinearParams &p, const RecurrentPlace<Config> &place,
                                       const Rows &ring) {
    const RingDecay<Spec, Config> decay{ring};
    char *const from = of(p.last, place);
#pragma unroll 1
    for (int n = 0; n < 4 * tiles * units; ++n) {
      const int half = n % 2, h = n / 2 % (2 * tiles), u = n / (4 * tiles);
      if (has(h, u))
        fold_four(ring, decay, reinterpret_cast<uint2 *>(from + (h * 8 * p.last.value + u * 32 + half * 4) * 2),
                  (t + 4 * u) * 8 + half * 4, first + g + h * 8);
    }
    load(p, place);
  }

 private:
  // Numbers by q and by r of both value channels of a tile, of which three lanes of four have a term each.
  __device__ __forceinline__ void keep(const Rows &ring, int i, int tile, const float (&terms_of)[4]) const {
    float x[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) x[n] = t < terms ? terms_of[n] : 0;
    const float sum = sum_each<4>(x);
    const bool by_r = t % 2 != 0;
    const int v = first + 16 * tile + g + t / 2 * 8;
    if ((Ring::reads || !by_r) && v < Config::v_dim) keep_read(ring, i, ring.value_place(v), by_r, Real(sum));
  }
  // Which lane of memory: of value channel first + g.
  __device__ __forceinline__ char *of(const LuattnStates &m, const RecurrentPlace<Config> &place) const {
    return static_cast<char *>(m.data) +
           (place.row * m.row + place.site.hv * m.head + (first + g) * m.value + t * 8) * 2;
  }
  __device__ __forceinline__ bool has(int h, int u) const {
    return (Config::v_dim % (4 * values) == 0 || first + g + h * 8 < Config::v_dim) &&
           (Config::k_dim == K || (t + 4 * u) * 8 < Config::k_dim);
  }
  LUATTN_FN u32 split(const Rows &ring, int i, int row) {
    return shared_address(ring.shared + ring.in.numbers) + u32(i * split_rows + row) * linear_ring_split_pitch(K);
  }
  // Half a unit at `at`, of channels of K from d on.
  __device__ __forceinline__ void fold_four(const Rows &ring, const RingDecay<Spec, Config> &decay, uint2 *at, int d,
                                            int v) const {
    const uint2 was = *at;
    const u32 two[2] = {was.x, was.y};
    const Real left = decay.number(-1);
    Real x[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const Real f = left * decay.channel(-1, d + c);
      x[c] = f == 0 ? Real(0) : f * half_of<bf16_t>(two[c / 2], c % 2);
    }
    for (int j = 0; j < ring.used; ++j) {
      add(x, ring, decay, j, ring.in.k, ring.in.u, d, v, 1);
      if constexpr (Ring::erases) add(x, ring, decay, j, ring.in.e, ring.in.y, d, v, -1);
    }
    *at = {pack<bf16_t>(x[0], x[1]), pack<bf16_t>(x[2], x[3])};
  }
  LUATTN_FN void add(Real (&x)[4], const Rows &ring, const RingDecay<Spec, Config> &decay, int j, int of_k, int of_v,
                     int d, int v, int sign) {
    Real k[4];
    ring.old_channels(k, of_k, j, d, ring.p.ring.type);
    const Real u = sign * decay.number(j) * ring.old_number(of_v, j, Config::v_dim, v, ring.p.ring.type);
#pragma unroll
    for (int c = 0; c < 4; ++c) x[c] = op_fma(k[c] * decay.channel(j, d + c), u, x[c]);
  }
};
