// linear/recurrent/ring_rows.cuh: the rows of a ring, which stand for the tokens since a state (the checkpoint), in shared
// memory and in the caller's; and what new rows make of them.
//
// With G the sums of the logarithms of decays since the checkpoint S0, a state is S_t = e^G_t S0 + sum over j <= t of
// e^(G_t - G_j) (k_j u_j' - e_j y_j'), so that new tokens need products of S0 with their q and r, products of pairs of rows, and
// one triangular solve for each value channel. No exponent is positive.
#pragma once
#include "linear/recurrent/recurrent_rows.cuh"
#include "linear/recurrent/recurrent_state.cuh"

template <class Spec, class Config>
struct RingLayout {
  using Shape = RecurrentShape<Config>;
  using Layout = TokenLayout<Spec, Config>;
  static constexpr int most = Config::ring, tokens = Config::batch, K = Shape::k_dim, V = Config::v_block;
  static constexpr bool decays = Spec::Decay::given, channels = Layout::decays_channels, reads = Spec::Read::given,
                        erases = Spec::Erase::given;
  static constexpr int width = channels ? K : decays;  // of a row of sums
  static constexpr int k = tokens * Layout::size, e = k + most * K, sums = e + erases * most * K,
                       read = sums + (most + tokens) * width,  // r and q times k, and times e: [tokens][most]
      query = read + reads * tokens * most, read_e = query + tokens * most, query_e = read_e + erases * tokens * most,
                       u = query_e + erases * tokens * most, y = u + most * V, size = y + erases * most * V;
};

template <class Spec, class Config>
struct RingRows {
  using Shape = RecurrentShape<Config>;
  using Layout = TokenLayout<Spec, Config>;
  using Ring = RingLayout<Spec, Config>;
  using Real = typename Config::Number;
  static constexpr int K = Ring::K;

  const LuattnLinearParams &p;
  const RecurrentPlace<Config> &place;
  const StateOrder<Config> order;
  Real *const shared;
  const int used, tokens;  // rows of the ring that count; new ones
  const int before;        // rows before the new ones: `used`, or 0 where these are folded into the state

  // Where rows lie in `shared`, so that no pointer but that one is kept: a new token's, an old row's, and those of column j of
  // the new ones' pairs.
  __device__ __forceinline__ Real *row(int i) const { return shared + row_at(i); }
  __device__ __forceinline__ Real *u(int j) const { return shared + Ring::u + j * Ring::V; }
  __device__ __forceinline__ Real *y(int j) const { return shared + Ring::y + j * Ring::V; }
  LUATTN_FN int row_at(int i) { return i * Layout::size; }
  LUATTN_FN int old_k(int j) { return Ring::k + j * K; }
  LUATTN_FN int old_e(int j) { return Ring::e + j * K; }
  LUATTN_FN int old_sum(int j) { return Ring::sums + j * Ring::width; }
  LUATTN_FN int new_sum(int i) { return Ring::sums + (Ring::most + i) * Ring::width; }
  __device__ __forceinline__ int column_k(int j) const {
    return j < before ? old_k(j) : row_at(j - before) + Layout::k;
  }
  __device__ __forceinline__ int column_e(int j) const {
    return j < before ? old_e(j) : row_at(j - before) + Layout::erase;
  }
  __device__ __forceinline__ int column_sum(int j) const { return j < before ? old_sum(j) : new_sum(j - before); }
  // What r of new token i has decayed by; negative: by nothing yet.
  __device__ __forceinline__ int read_sum(int i) const {
    if (!Spec::before) return new_sum(i);
    return i > 0 ? new_sum(i - 1) : before > 0 ? old_sum(before - 1) : -1;
  }

  // ---- the caller's

  // Asks for the rows of a value head to come, as many as this one has.
  __device__ __forceinline__ void prefetch() const {
    const RecurrentAhead head(p);
    if (p.ahead <= 0 || head.row < 0) return;
    const int size = p.ring.type == LUATTN_STATE_F32 ? 4 : 2;
    prefetch_rows(p.ring.k, head, Config::k_dim * size, size),
        prefetch_rows(p.ring.u, head, Config::v_dim * size, size);
    if constexpr (Ring::erases)
      prefetch_rows(p.ring.e, head, Config::k_dim * size, size),
          prefetch_rows(p.ring.y, head, Config::v_dim * size, size);
    if constexpr (Ring::channels) prefetch_rows(p.ring.sums, head, Config::k_dim * 4, 4);
  }
  __device__ __forceinline__ void load_rows() const {
    load(p.ring.k, Ring::k);
    if constexpr (Ring::erases) load(p.ring.e, Ring::e);
    for (int i = int(threadIdx.x); i < used * Ring::width; i += int(blockDim.x)) {
      const int j = i / max_of(Ring::width, 1), d = i % max_of(Ring::width, 1);
      if (Ring::channels && d >= Config::k_dim)
        shared[old_sum(j) + order.place(d)] = 0;
      else
        shared[old_sum(j) + (Ring::channels ? order.place(d) : 0)] = Real(at<float>(p.ring.sums, j)[d]);
    }
  }
  __device__ __forceinline__ void load_values(int first_value, int values) const {
    load_values_of(p.ring.u, Ring::u, first_value, values);
    if constexpr (Ring::erases) load_values_of(p.ring.y, Ring::y, first_value, values);
  }
  // New rows, behind `before`.
  __device__ __forceinline__ void store_rows() const {
    store(p.ring.k, Layout::k);
    if constexpr (Ring::erases) store(p.ring.e, Layout::erase);
    for (int i = int(threadIdx.x); i < tokens * Ring::width; i += int(blockDim.x)) {
      const int t = i / max_of(Ring::width, 1), d = i % max_of(Ring::width, 1);
      if (!Ring::channels || d < Config::k_dim)
        at<float>(p.ring.sums, before + t)[d] = float(shared[new_sum(t) + (Ring::channels ? order.place(d) : 0)]);
    }
  }
  __device__ __forceinline__ void store_values(int first_value, int values) const {
    store_some(p.ring.u, Ring::u, first_value, values);
    if constexpr (Ring::erases) store_some(p.ring.y, Ring::y, first_value, values);
  }

  // ---- of new rows

  // Sums of logarithms, from the ring's last one.
  __device__ __forceinline__ void add_up_decays() const {
    if constexpr (Ring::decays) {
      for (int d = int(threadIdx.x); d < Ring::width; d += int(blockDim.x)) {
        Real sum = before > 0 ? shared[old_sum(before - 1) + d] : Real(0);
        for (int i = 0; i < tokens; ++i)
          shared[new_sum(i) + d] = sum += row(i)[(Ring::channels ? Layout::decay : Layout::factor) + d];
      }
    }
  }
  // Pairs of a new row and one before it, or itself: 8 lanes for each.
  __device__ __forceinline__ void multiply_pairs() const {
    const int columns = before + tokens, lane8 = int(threadIdx.x % 8), groups = int(blockDim.x / 8);
    for (int first = 0; first < tokens * columns; first += groups) {
      const int own = first + int(threadIdx.x / 8), pair = min_of(own, tokens * columns - 1);  // all lanes shuffle
      const int i = pair / columns, j = pair % columns;
      multiply(i, j, lane8, pair == own && j <= before + i);
    }
  }
  // The triangular system of one value channel: u, y and o of new tokens.
  __device__ __forceinline__ void solve(int v) const {
    for (int i = 0; i < tokens; ++i) {
      const int n = before + i;
      Real x = u(n)[v], z = Ring::erases ? y(n)[v] : Real(0), o = row(i)[Layout::o + v];
#pragma unroll 4
      for (int j = 0; j < n; ++j) {
        const Real w = u(j)[v];
        if constexpr (Ring::erases)
          z = op_fma(pair(Ring::read, i, j), w, op_fma(-pair(Ring::read_e, i, j), y(j)[v], z));
        else if constexpr (Ring::reads)
          x = op_fma(-pair(Ring::read, i, j), w, x);
        o = op_fma(pair(Ring::query, i, j), w, o);
        if constexpr (Ring::erases) o = op_fma(-pair(Ring::query_e, i, j), y(j)[v], o);
      }
      u(n)[v] = x;
      o = op_fma(pair(Ring::query, i, n), x, o);
      if constexpr (Ring::erases) y(n)[v] = z, o = op_fma(-pair(Ring::query_e, i, n), z, o);
      row(i)[Layout::o + v] = o;
    }
  }

 private:
  __device__ __forceinline__ Real &pair(int of, int i, int j) const { return shared[of + i * Ring::most + j]; }

  template <class T>
  __device__ __forceinline__ T *at(const LuattnTensor &x, int j) const {
    return static_cast<T *>(x.data) + place.row * x.batch + place.site.hv * x.head + j * x.seq;
  }
  __device__ __forceinline__ void prefetch_rows(const LuattnTensor &x, const RecurrentAhead &head, int bytes,
                                                int size) const {
    const u64 from = reinterpret_cast<u64>(x.data) + u64(head.row * x.batch + head.hv * x.head) * size;
    const int lines = ceil_div(bytes, 128);
    for (int i = int(threadIdx.x); i < used * lines; i += int(blockDim.x))
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from + u64(i / lines) * u64(x.seq * size) + u64(i % lines) * 128));
  }
  // Number i of row j, of the ring's type.
  __device__ __forceinline__ void put(const LuattnTensor &x, int j, int i, Real value) const {
    if (p.ring.type == LUATTN_STATE_F32)
      at<float>(x, j)[i] = float(value);
    else if (p.ring.type == LUATTN_STATE_BF16)
      at<bf16_t>(x, j)[i] = from_real<bf16_t>(value);
    else
      at<half_t>(x, j)[i] = from_real<half_t>(value);
  }
  // Old rows of `width` numbers, by fours: each thread takes neighbours, which place(d) puts into shared memory.
  template <class T, class Put>
  __device__ __forceinline__ void load_as(const LuattnTensor &x, int first, int width, int pitch, Put put) const {
    const int fours = pitch / 4;
    for (int i = int(threadIdx.x); i < used * fours; i += int(blockDim.x)) {
      const int j = i / fours, d = i % fours * 4;
      Neighbours<T, 4> some = {};
      if (d < width) some = *reinterpret_cast<const Neighbours<T, 4> *>(at<T>(x, j) + first + d);
      put(j, d, Real(to_real(some.x[0])), Real(to_real(some.x[1])), Real(to_real(some.x[2])), Real(to_real(some.x[3])));
    }
  }
  template <class Put>
  __device__ __forceinline__ void load_some(const LuattnTensor &x, int first, int width, int pitch, Put put) const {
    if (p.ring.type == LUATTN_STATE_F32)
      load_as<float>(x, first, width, pitch, put);
    else if (p.ring.type == LUATTN_STATE_BF16)
      load_as<bf16_t>(x, first, width, pitch, put);
    else
      load_as<half_t>(x, first, width, pitch, put);
  }
  __device__ __forceinline__ void load(const LuattnTensor &x, int to) const {
    load_some(x, 0, Config::k_dim, K, [&](int j, int d, Real a, Real b, Real c, Real e) {
      Real *const row = shared + to + j * K;
      if (order.along_v())
        row[order.place(d)] = a, row[order.place(d + 1)] = b, row[order.place(d + 2)] = c, row[order.place(d + 3)] = e;
      else
        *reinterpret_cast<float4 *>(row + order.place(d)) = {a, b, c, e};
    });
  }
  __device__ __forceinline__ void load_values_of(const LuattnTensor &x, int to, int first, int values) const {
    load_some(x, first, min_of(values, Config::v_dim - first), values,
              [&](int j, int v, Real a, Real b, Real c, Real e) {
                Real *const row = shared + to + j * Ring::V;
                row[order.value_place(v)] = a, row[order.value_place(v + 1)] = b, row[order.value_place(v + 2)] = c,
                row[order.value_place(v + 3)] = e;
              });
  }
  __device__ __forceinline__ void store(const LuattnTensor &x, int from) const {
    for (int i = int(threadIdx.x); i < tokens * Config::k_dim; i += int(blockDim.x)) {
      const int t = i / Config::k_dim, d = i % Config::k_dim;
      put(x, before + t, d, row(t)[from + order.place(d)]);
    }
  }
  __device__ __forceinline__ void store_some(const LuattnTensor &x, int from, int first, int values) const {
    for (int i = int(threadIdx.x); i < tokens * values; i += int(blockDim.x)) {
      const int t = i / values, v = i % values;
      if (first + v < Config::v_dim)
        put(x, before + t, first + v, shared[from + (before + t) * Ring::V + order.value_place(v)]);
    }
  }

  // r and q of new row i times k and e of column j, with what decays between them.
  __device__ __forceinline__ void multiply(int i, int j, int lane8, bool has) const {
    const bool reads = has && j < before + i;  // with `before`, r of a row has not met its own decay
    const int sum_i = new_sum(i), sum_j = column_sum(j), sum_r = reads ? read_sum(i) : sum_j;
    Real rk = 0, qk = 0, re = 0, qe = 0;
    const int at_k = column_k(j), at_e = Ring::erases ? column_e(j) : 0;
#pragma unroll
    for (int n = lane8 * 4; n < K; n += 32) {
      Real q[4], r[4] = {}, k[4], e[4];
      load_four(q, row(i) + Layout::q + n), load_four(k, shared + at_k + n);
      if constexpr (Ring::reads) load_four(r, row(i) + Layout::read + n);
      if constexpr (Ring::erases) load_four(e, shared + at_e + n);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if constexpr (Ring::channels) {
          q[c] *= has ? op_exp(shared[sum_i + n + c] - shared[sum_j + n + c]) : Real(0);
          r[c] *= reads ? op_exp(shared[sum_r + n + c] - shared[sum_j + n + c]) : Real(0);
        }
        qk = op_fma(q[c], k[c], qk), rk = op_fma(r[c], k[c], rk);
        if constexpr (Ring::erases) qe = op_fma(q[c], e[c], qe), re = op_fma(r[c], e[c], re);
      }
    }
#pragma unroll
    for (int m = 1; m < 8; m *= 2) {
      qk += __shfl_xor_sync(0xffffffffu, qk, m), rk += __shfl_xor_sync(0xffffffffu, rk, m);
      if constexpr (Ring::erases) qe += __shfl_xor_sync(0xffffffffu, qe, m), re += __shfl_xor_sync(0xffffffffu, re, m);
    }
    if constexpr (Ring::decays && !Ring::channels) {
      const Real of_q = has ? op_exp(shared[sum_i] - shared[sum_j]) : Real(0),
                 of_r = reads ? op_exp(shared[sum_r] - shared[sum_j]) : Real(0);
      qk *= of_q, qe *= of_q, rk *= of_r, re *= of_r;
    }
    if (lane8 != 0 || !has) return;
    pair(Ring::query, i, j) = qk;
    if constexpr (Ring::reads) pair(Ring::read, i, j) = rk;
    if constexpr (Ring::erases) pair(Ring::query_e, i, j) = qe, pair(Ring::read_e, i, j) = re;
  }
};
