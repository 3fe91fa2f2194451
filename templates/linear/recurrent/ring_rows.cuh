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
struct RingFacts {
  using Shape = RecurrentShape<Config>;
  using Layout = TokenLayout<Spec, Config>;
  static constexpr int K = Shape::k_dim, V = Config::v_block;
  static constexpr bool decays = Spec::Decay::given, channels = Layout::decays_channels, reads = Spec::Read::given,
                        erases = Spec::Erase::given;
  static constexpr int width = channels ? K : decays;  // of a row of sums
  LUATTN_FN LinearRingPlaces places(const LuattnLinearParams &p) {
    return linear_ring_places(p.tokens, Layout::size, p.ring.count, K, V, width, reads, erases);
  }
};

template <class Spec, class Config>
struct RingRows {
  using Shape = RecurrentShape<Config>;
  using Layout = TokenLayout<Spec, Config>;
  using Ring = RingFacts<Spec, Config>;
  using Real = typename Config::Number;
  static constexpr int K = Ring::K;
  static constexpr int load_fours = 8;  // of a lane at once: a task of a warp

  const LuattnLinearParams &p;
  const RecurrentPlace<Config> &place;
  const StateOrder<Config> order;
  Real *const shared;
  const LinearRingPlaces in;  // `shared`
  const int used, tokens;     // rows of the ring that count; new ones
  const int before;           // rows before the new ones: `used`, or 0 where these are folded into the state

  // Where rows lie in `shared`, so that no pointer but that one is kept: a new token's, an old row's, and those of column j of
  // the new ones' pairs.
  __device__ __forceinline__ Real *row(int i) const { return shared + row_at(i); }
  __device__ __forceinline__ Real *u(int j) const { return shared + in.u + j * Ring::V; }
  __device__ __forceinline__ Real *y(int j) const { return shared + in.y + j * Ring::V; }
  LUATTN_FN int row_at(int i) { return i * Layout::size; }
  __device__ __forceinline__ int old_k(int j) const { return in.k + j * K; }
  __device__ __forceinline__ int old_e(int j) const { return in.e + j * K; }
  __device__ __forceinline__ int old_sum(int j) const { return in.sums + j * Ring::width; }
  __device__ __forceinline__ int new_sum(int i) const { return in.sums + (p.ring.count + i) * Ring::width; }
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

  // Asks for the rows of a value head to come to L2.
  __device__ __forceinline__ void prefetch(u32 n) const {
    const RecurrentAhead head(p, n);
    if (head.row < 0) return;
    const int size = p.ring.type == LUATTN_STATE_F32 ? 4 : 2, rows = clamped_used(p, int(n / u32(p.heads_v)));
    prefetch_rows(p.ring.k, head, rows, Config::k_dim * size, size),
        prefetch_rows(p.ring.u, head, rows, Config::v_dim * size, size);
    if constexpr (Ring::erases)
      prefetch_rows(p.ring.e, head, rows, Config::k_dim * size, size),
          prefetch_rows(p.ring.y, head, rows, Config::v_dim * size, size);
    if constexpr (Ring::channels) prefetch_rows(p.ring.sums, head, rows, Config::k_dim * 4, 4);
  }
  LUATTN_FN int clamped_used(const LuattnLinearParams &p, int entry) {
    return max_of(min_of(__ldg(p.ring.used + entry), p.ring.count), 0);
  }
  // Old rows, by tasks of warps, behind `first_task` others.
  __device__ __forceinline__ void load(int first_task) const {
    const int warp = int(threadIdx.x / 32), warps = int(blockDim.x / 32);
    const int each_k = tasks_of(K), each_v = tasks_of(Ring::V);
    constexpr int arrays_k = 1 + Ring::erases + Ring::channels, arrays_v = 1 + Ring::erases;
    const int of_k = arrays_k * each_k, all = of_k + arrays_v * each_v;
#pragma unroll 1
    for (int i = (warp + warps - first_task % warps) % warps; i < all; i += warps) {
      if (i < of_k) {
        const int which = i / each_k;
        const bool is_e = Ring::erases && which == 1, is_sum = Ring::channels && which == arrays_k - 1;
        load_task<K, Config::k_dim>(is_sum ? p.ring.sums
                                    : is_e ? p.ring.e
                                           : p.ring.k,
                                    is_sum ? int(LUATTN_STATE_F32) : p.ring.type, i % each_k,
                                    is_sum ? in.sums
                                    : is_e ? in.e
                                           : in.k,
                                    true);
      } else {
        const bool is_y = Ring::erases && (i - of_k) / each_v == 1;
        load_task<Ring::V, Config::v_dim>(is_y ? p.ring.y : p.ring.u, p.ring.type, (i - of_k) % each_v,
                                          is_y ? in.y : in.u, false);
      }
    }
    if constexpr (Ring::decays && !Ring::channels)
      if (warp == warps - 1)
        for (int j = int(threadIdx.x % 32); j < used; j += 32) shared[old_sum(j)] = Real(at<float>(p.ring.sums, j)[0]);
  }
  // New rows, behind `before`.
  __device__ __forceinline__ void store_rows() const {
    store<true>(p.ring.k, Layout::k, Layout::size, Config::k_dim);
    store<false>(p.ring.u, in.u + before * Ring::V, Ring::V, Config::v_dim);
    if constexpr (Ring::erases) {
      store<true>(p.ring.e, Layout::erase, Layout::size, Config::k_dim);
      store<false>(p.ring.y, in.y + before * Ring::V, Ring::V, Config::v_dim);
    }
    for (int i = int(threadIdx.x); i < tokens * Ring::width; i += int(blockDim.x)) {
      const int t = i / max_of(Ring::width, 1), d = i % max_of(Ring::width, 1);
      if (!Ring::channels || d < Config::k_dim)
        at<float>(p.ring.sums, before + t)[d] = float(shared[new_sum(t) + (Ring::channels ? order.place(d) : 0)]);
    }
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
          z = op_fma(pair(in.read, i, j), w, op_fma(-pair(in.read_e, i, j), y(j)[v], z));
        else if constexpr (Ring::reads)
          x = op_fma(-pair(in.read, i, j), w, x);
        o = op_fma(pair(in.query, i, j), w, o);
        if constexpr (Ring::erases) o = op_fma(-pair(in.query_e, i, j), y(j)[v], o);
      }
      u(n)[v] = x;
      o = op_fma(pair(in.query, i, n), x, o);
      if constexpr (Ring::erases) y(n)[v] = z, o = op_fma(-pair(in.query_e, i, n), z, o);
      row(i)[Layout::o + v] = o;
    }
  }

 private:
  __device__ __forceinline__ Real &pair(int of, int i, int j) const { return shared[of + i * p.ring.count + j]; }

  template <class T>
  __device__ __forceinline__ T *at(const LuattnTensor &x, int j) const {
    return static_cast<T *>(x.data) + place.row * x.batch + place.site.hv * x.head + j * x.seq;
  }
  __device__ __forceinline__ void prefetch_rows(const LuattnTensor &x, const RecurrentAhead &head, int rows, int bytes,
                                                int size) const {
    const u64 from = reinterpret_cast<u64>(x.data) + u64(head.row * x.batch + head.hv * x.head) * size;
    const int lines = ceil_div(bytes, 128);
    for (int i = int(threadIdx.x); i < rows * lines; i += int(blockDim.x))
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from + u64(i / lines) * u64(x.seq * size) + u64(i % lines) * 128));
  }
  // How many tasks old rows of `width` numbers are.
  __device__ __forceinline__ int tasks_of(int width) const { return ceil_div(used * width / 4, 32 * load_fours); }
  // Rows of Width numbers, padded to Pitch by 0, go to `to`, one behind the other.
  template <int Pitch, int Width>
  __device__ __forceinline__ void load_task(const LuattnTensor &x, int type, int n, int to, bool of_k) const {
    if (type == LUATTN_STATE_F32)
      load_as<float, Pitch, Width>(x, n, to, of_k);
    else if (type == LUATTN_STATE_BF16)
      load_as<bf16_t, Pitch, Width>(x, n, to, of_k);
    else
      load_as<half_t, Pitch, Width>(x, n, to, of_k);
  }
  // By fours, all of a task on their way at once.
  template <class T, int Pitch, int Width>
  __device__ __forceinline__ void load_as(const LuattnTensor &x, int n, int to, bool of_k) const {
    const int all = used * (Pitch / 4), first = n * load_fours * 32 + int(threadIdx.x % 32);
    Neighbours<T, 4> some[load_fours];
#pragma unroll
    for (int l = 0; l < load_fours; ++l) {
      const int i = min_of(first + l * 32, all - 1), d = min_of(i % (Pitch / 4) * 4, Width - 4);
      load_whole(some[l], at<T>(x, i / (Pitch / 4)) + d);
    }
#pragma unroll
    for (int l = 0; l < load_fours; ++l) {
      const int i = first + l * 32, d = i % (Pitch / 4) * 4;
      if (i >= all) continue;
      Real four[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) four[c] = Pitch == Width || d < Width ? Real(to_real(some[l].x[c])) : Real(0);
      Real *const row = shared + to + i / (Pitch / 4) * Pitch;
      if (of_k)
        put_k(row, d, four);
      else
        put_v(row, d, four);
    }
  }
  __device__ __forceinline__ void put_k(Real *to, int d, const Real (&x)[4]) const {
    if (order.along_v())
#pragma unroll
      for (int c = 0; c < 4; ++c) to[order.place(d + c)] = x[c];
    else
      *reinterpret_cast<float4 *>(to + order.place(d)) = {x[0], x[1], x[2], x[3]};
  }
  __device__ __forceinline__ void put_v(Real *to, int v, const Real (&x)[4]) const {
#pragma unroll
    for (int c = 0; c < 4; ++c) to[order.value_place(v + c)] = x[c];
  }
  // New rows, of `size` numbers one behind the other, the first `width` of which go to memory.
  template <bool OfK>
  __device__ __forceinline__ void store(const LuattnTensor &x, int from, int size, int width) const {
    if (p.ring.type == LUATTN_STATE_F32)
      store_as<OfK, float>(x, from, size, width);
    else if (p.ring.type == LUATTN_STATE_BF16)
      store_as<OfK, bf16_t>(x, from, size, width);
    else
      store_as<OfK, half_t>(x, from, size, width);
  }
  template <bool OfK, class T>
  __device__ __forceinline__ void store_as(const LuattnTensor &x, int from, int size, int width) const {
    for (int t = 0; t < tokens; ++t)
      for (int d = int(threadIdx.x); d < width; d += int(blockDim.x))
        at<T>(x, before + t)[d] = from_real<T>(shared[from + t * size + (OfK ? order.place(d) : order.value_place(d))]);
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
    pair(in.query, i, j) = qk;
    if constexpr (Ring::reads) pair(in.read, i, j) = rk;
    if constexpr (Ring::erases) pair(in.query_e, i, j) = qe, pair(in.read_e, i, j) = re;
  }
};
