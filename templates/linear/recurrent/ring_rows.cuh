// linear/recurrent/ring_rows.cuh: the rows of a ring, which stand for the tokens since a state (the checkpoint), in shared
// memory and in the caller's; and what new rows make of them.
//
// With G the sums of the logarithms of decays since the checkpoint S0, a state is S_t = e^G_t S0 + sum over j <= t of
// e^(G_t - G_j) (k_j u_j' - e_j y_j'), so that new tokens need products of S0 with their q and r, products of pairs of rows, and
// one triangular solve for each value channel. No exponent is positive.
#pragma once
#include "linear/recurrent/recurrent_rows.cuh"
#include "linear/recurrent/recurrent_state.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/mbarrier.cuh"

template <class Spec, class Config>
struct RingFacts {
  using Shape = RecurrentShape<Config>;
  using Layout = TokenLayout<Spec, Config>;
  static constexpr int K = Shape::k_dim, V = Config::v_block;
  static constexpr bool decays = Spec::Decay::given, channels = Layout::decays_channels, reads = Spec::Read::given,
                        erases = Spec::Erase::given;
  static constexpr int width = channels ? K : decays;          // of a row of sums
  static constexpr int products = erases ? 4 : reads ? 2 : 1;  // of a pair of rows: q k, r k, q e, r e
  LUATTN_FN LinearRingPlaces places(const LuattnLinearParams &p) {
    return linear_ring_places(p.tokens, Layout::size, p.ring.count, K, V, width, reads, erases);
  }
  LUATTN_FN int clamped_used(const LuattnLinearParams &p, int entry) {
    return max_of(min_of(__ldg(p.ring.used + entry), p.ring.count), 0);
  }
};

// Sums of N numbers over groups of `Lanes` lanes: of number i to lanes i * Lanes / N on of a group.
template <int Lanes, int N, class Real>
LUATTN_FN Real sum_each(Real (&x)[N]) {
  int m = Lanes / 2;
#pragma unroll
  for (int n = N / 2; n > 0; n /= 2, m /= 2) {
    const bool upper = (threadIdx.x & m) != 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const Real sent = upper ? x[i] : x[i + n];
      x[i] = (upper ? x[i + n] : x[i]) + __shfl_xor_sync(0xffffffffu, sent, m);
    }
  }
#pragma unroll
  for (; m > 0; m /= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], m);
  return x[0];
}

template <class Spec, class Config>
struct RingRows {
  using Shape = RecurrentShape<Config>;
  using Layout = TokenLayout<Spec, Config>;
  using Ring = RingFacts<Spec, Config>;
  using Real = typename Config::Number;
  using Elem = typename Config::Elem;
  static constexpr int K = Ring::K;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static constexpr bool by_bulk = true;  // old rows come by TMA
#else
  static constexpr bool by_bulk = false;
#endif

  const LuattnLinearParams &p;
  const RecurrentPlace<Config> &place;
  const StateOrder<Config> order;
  Real *const shared;
  const LinearRingPlaces in;  // `shared`
  const int used, tokens;     // rows of the ring that count; new ones
  const int before;           // rows before the new ones: `used`, or 0 where these are folded into the state

  // Where new tokens' rows lie in `shared`, so that no pointer but that one is kept. Old rows lie there as in memory, by channels.
  __device__ __forceinline__ Real *row(int i) const { return shared + row_at(i); }
  __device__ __forceinline__ Real *new_u(int i) const { return shared + in.new_u + i * Ring::V; }
  __device__ __forceinline__ Real *new_y(int i) const { return shared + in.new_y + i * Ring::V; }
  // Where value channel v lies in shared rows; which channel of K lies at `at` of them.
  __device__ __forceinline__ int value_place(int v) const { return order.value_place(v); }
  __device__ __forceinline__ int channel_at(int at) const { return order.channel(at / 4 % 8, at / 32 * 4 + at % 4); }
  LUATTN_FN int row_at(int i) { return i * Layout::size; }
  __device__ __forceinline__ int new_sum(int i) const { return in.new_sums + i * Ring::width; }
  // What r of new token i has decayed by, as `new_sum`; negative: by what the ring's last row has, or nothing yet.
  __device__ __forceinline__ int read_sum(int i) const {
    if (!Spec::before) return new_sum(i);
    return i > 0 ? new_sum(i - 1) : -1;
  }
  // The sum itself, of numbers of tokens.
  __device__ __forceinline__ Real read_number(int i) const {
    const int at = read_sum(i);
    return at >= 0 ? shared[at] : before > 0 ? old_sum(before - 1) : Real(0);
  }
  __device__ __forceinline__ Real old_sum(int j) const { return shared[in.sums + j]; }  // not of channels
  // Number d of row j of old rows at `at`, of `width` numbers each.
  __device__ __forceinline__ Real old_number(int at, int j, int width, int d, int type) const {
    const int n = j * width + d;
    if (type == LUATTN_STATE_F32) return shared[at + n];
    const u16 bits = reinterpret_cast<const u16 *>(shared + at)[n];
    return type == LUATTN_STATE_BF16 ? Real(to_real(bf16_t{bits})) : Real(to_real(half_t{bits}));
  }
  template <class T>
  __device__ __forceinline__ Real old_value(int at, int j, int v) const {
    return Real(to_real(reinterpret_cast<const T *>(shared + at)[j * Config::v_dim + v]));
  }
  // Four numbers along K from channel d on, a multiple of four.
  __device__ __forceinline__ void old_channels(Real (&x)[4], int at, int j, int d, int type) const {
    if (Config::k_dim != K && d >= Config::k_dim) {
#pragma unroll
      for (int c = 0; c < 4; ++c) x[c] = 0;
      return;
    }
    const int n = j * Config::k_dim + d;
    if (type == LUATTN_STATE_F32) {
      load_four(x, shared + at + n);
      return;
    }
    const uint2 two = *reinterpret_cast<const uint2 *>(reinterpret_cast<const u16 *>(shared + at) + n);
    const u32 word[2] = {two.x, two.y};
#pragma unroll
    for (int c = 0; c < 4; ++c)
      x[c] = type == LUATTN_STATE_BF16 ? Real(half_of<bf16_t>(word[c / 2], c % 2))
                                       : Real(half_of<half_t>(word[c / 2], c % 2));
  }
  // Four numbers of lane `lane8` from its number n on, as the state's lanes have them.
  __device__ __forceinline__ void old_four(Real (&x)[4], int at, int j, int lane8, int n, int type) const {
    if (!order.along_v()) return old_channels(x, at, j, order.channel(lane8, n), type);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int d = order.channel(lane8, n + c);
      x[c] = d < Config::k_dim ? old_number(at, j, Config::k_dim, d, type) : Real(0);
    }
  }

  // ---- the caller's

  // The block's last warp copies old rows to shared memory; `arrived` waits for them, whose sums of numbers the block's next
  // barrier has.
  __device__ __forceinline__ void ask() const {
    if (threadIdx.x / 32 != blockDim.x / 32 - 1) return;
    const int size = p.ring.type == LUATTN_STATE_F32 ? 4 : 2, lane = int(threadIdx.x % 32);
    constexpr int rows = (1 + Ring::erases) * (Config::k_dim + Config::v_dim);
    expect(used * (rows * size + Ring::channels * Config::k_dim * 4));
    ask_rows(p.ring.k, in.k, Config::k_dim * size, size);
    ask_rows(p.ring.u, in.u, Config::v_dim * size, size);
    if constexpr (Ring::erases) {
      ask_rows(p.ring.e, in.e, Config::k_dim * size, size);
      ask_rows(p.ring.y, in.y, Config::v_dim * size, size);
    }
    if constexpr (Ring::channels) ask_rows(p.ring.sums, in.sums, Config::k_dim * 4, 4);
    if constexpr (Ring::decays && !Ring::channels)
      for (int j = lane; j < used; j += 32) cp_async_4(shared_address(shared + in.sums + j), at<float>(p.ring.sums, j));
    cp_async_commit();
  }
  __device__ __forceinline__ void arrived() const {
    cp_async_wait<0>();
    __syncthreads();
    if constexpr (by_bulk) barrier_wait(barrier(), 0);
  }
  // New rows of keys, behind `before`; by the last threads first.
  __device__ __forceinline__ void store_keys() const {
    if (p.ring.type == LUATTN_STATE_F32)
      store_keys_as<float>();
    else if (p.ring.type == LUATTN_STATE_BF16)
      store_keys_as<bf16_t>();
    else
      store_keys_as<half_t>();
  }
  // Their sums, which are of all threads.
  __device__ __forceinline__ void store_sums() const {
    for (int i = last_thread(); i < tokens * Ring::width; i += int(blockDim.x)) {
      const int t = i / max_of(Ring::width, 1), d = i % max_of(Ring::width, 1);
      if (!Ring::channels || d < Config::k_dim)
        at<float>(p.ring.sums, before + t)[d] = float(shared[new_sum(t) + (Ring::channels ? order.place(d) : 0)]);
    }
  }

  // ---- of new rows

  // Sums of logarithms of channels, from the ring's last one.
  __device__ __forceinline__ void add_up_channels() const {
    for (int at = int(threadIdx.x); at < K; at += int(blockDim.x)) {
      const int d = channel_at(at);
      Real sum = before > 0 && d < Config::k_dim ? old_number(in.sums, before - 1, Config::k_dim, d, LUATTN_STATE_F32)
                                                 : Real(0);
      for (int i = 0; i < tokens; ++i) shared[new_sum(i) + at] = sum += row(i)[Layout::decay + at];
    }
  }
  // Of numbers of tokens: each warp's lane i has that of new token i, and the first warp's go to shared memory.
  __device__ __forceinline__ Real add_up_numbers() const {
    Real own = 0;
    if constexpr (Ring::decays && !Ring::channels) {
      const int lane = int(threadIdx.x % 32);
      Real sum = before > 0 ? old_sum(before - 1) : Real(0);
      for (int i = 0; i < tokens; ++i) {
        sum += row(i)[Layout::factor];
        if (lane == i) own = sum;
      }
      if (int(threadIdx.x) < tokens) shared[new_sum(lane)] = own;
    }
    return own;
  }
  // Pairs of a new row and one before it, or itself: 8 lanes have a column of them. own: of add_up_numbers.
  __device__ __forceinline__ void multiply_pairs(Real own) const {
    const int columns = before + tokens;
    for (int first = 0; first < columns; first += int(blockDim.x / 8)) {  // all lanes shuffle
      const int j = first + int(threadIdx.x / 8);
      multiply_column(min_of(j, columns - 1), j < columns, own);
    }
  }
  // The triangular systems of a warp's value channels, from `first` on: u, y and o of new tokens, to memory too.
  template <int Values>
  __device__ __forceinline__ void solve(int first) const {
    if (first >= Config::v_dim) return;
    if (p.ring.type == LUATTN_STATE_F32)
      solve_as<float, Values>(first);
    else if (p.ring.type == LUATTN_STATE_BF16)
      solve_as<bf16_t, Values>(first);
    else
      solve_as<half_t, Values>(first);
  }

 private:
  __device__ __forceinline__ Real &pair(int of, int i, int j) const { return shared[of + i * p.ring.count + j]; }

  template <class T>
  __device__ __forceinline__ T *at(const LuattnTensor &x, int j) const {
    return static_cast<T *>(x.data) + place.row * x.batch + place.site.hv * x.head + j * x.seq;
  }
  __device__ __forceinline__ int last_thread() const { return int(blockDim.x - 1 - threadIdx.x); }
  __device__ __forceinline__ u32 barrier() const { return shared_address(shared + in.numbers - 4); }
  __device__ __forceinline__ void expect(int bytes) const {
    if constexpr (by_bulk) {
      if (threadIdx.x % 32 == 0) {
        barrier_init(barrier(), 1);
        barrier_init_done();
        barrier_arrive_expect(barrier(), bytes);
      }
      __syncwarp();
    }
  }
  // Rows of `line` bytes, by a warp: all at once where they lie side by side.
  __device__ __forceinline__ void ask_rows(const LuattnTensor &x, int to, int line, int size) const {
    const char *const from = reinterpret_cast<const char *>(static_cast<char *>(x.data) +
                                                            (place.row * x.batch + place.site.hv * x.head) * size);
    const int lane = int(threadIdx.x % 32);
    const i64 step = x.seq * size;
    const u32 at = shared_address(shared + to);
    if constexpr (by_bulk) {
      const bool together = step == line;
      const int count = together ? min_of(used, 1) : used, bytes = together ? used * line : line;
      for (int j = lane; j < count; j += 32) bulk_load(at + j * line, from + j * step, bytes, barrier());
    } else {
      for (int j = 0; j < used; ++j)
        for (int i = lane * 16; i < line; i += 32 * 16) cp_async_16(at + j * line + i, from + j * step + i);
    }
  }
  template <class T>
  __device__ __forceinline__ void store_keys_as() const {
    constexpr int each = Config::k_dim / 4;
    for (int n = last_thread(); n < tokens * each; n += int(blockDim.x)) {
      const int t = n / each, d = n % each * 4;
      store_four(at<T>(p.ring.k, before + t) + d, row(t) + Layout::k, d);
      if constexpr (Ring::erases) store_four(at<T>(p.ring.e, before + t) + d, row(t) + Layout::erase, d);
    }
  }
  template <class T>
  __device__ __forceinline__ void store_four(T *to, const Real *from, int d) const {
    Real x[4];
    if (order.along_v()) {
#pragma unroll
      for (int c = 0; c < 4; ++c) x[c] = from[order.place(d + c)];
    } else {
      load_four(x, from + order.place(d));
    }
    if constexpr (sizeof(T) == 4)
      *reinterpret_cast<float4 *>(to) = {x[0], x[1], x[2], x[3]};
    else
      *reinterpret_cast<uint2 *>(to) = {pack<T>(x[0], x[1]), pack<T>(x[2], x[3])};
  }

  // Column j: k and e of its row, and sums of its channels' logarithms, of one of 8 lanes.
  struct Column {
    static constexpr int each = K / 8;
    Real k[each], e[Ring::erases ? each : 1], sum[Ring::channels ? each : 1];
  };
  __device__ __forceinline__ void load_part(Real *to, int old, int type, const Real *now, int j, int n) const {
    Real x[4];
    if (j < before)
      old_four(x, old, j, int(threadIdx.x % 8), n, type);
    else
      load_four(x, now + n * 8 + threadIdx.x % 8 * 4);
#pragma unroll
    for (int c = 0; c < 4; ++c) to[n + c] = x[c];
  }
  __device__ __forceinline__ void load(Column &c, int j) const {
    const int i = max_of(j - before, 0);
#pragma unroll
    for (int n = 0; n < Column::each; n += 4) {
      load_part(c.k, in.k, p.ring.type, row(i) + Layout::k, j, n);
      if constexpr (Ring::erases) load_part(c.e, in.e, p.ring.type, row(i) + Layout::erase, j, n);
      if constexpr (Ring::channels) load_part(c.sum, in.sums, LUATTN_STATE_F32, shared + new_sum(i), j, n);
    }
  }
  // Products of new row i and column j, which r reads where it is before the row.
  __device__ __forceinline__ void multiply(const Column &column, int i, bool has, bool reads,
                                           Real (&x)[Ring::products]) const {
#pragma unroll
    for (int n = 0; n < Column::each; n += 4) {
      const int from = n * 8 + int(threadIdx.x % 8) * 4;
      Real q[4], r[4] = {};
      load_four(q, row(i) + Layout::q + from);
      if constexpr (Ring::reads) load_four(r, row(i) + Layout::read + from);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if constexpr (Ring::channels) {
          q[c] *= has ? op_exp(shared[new_sum(i) + from + c] - column.sum[n + c]) : Real(0);
          if constexpr (Ring::reads) r[c] *= reads ? op_exp(read_channel(i, from + c) - column.sum[n + c]) : Real(0);
        }
        x[0] = op_fma(q[c], column.k[n + c], x[0]);
        if constexpr (Ring::reads) x[1] = op_fma(r[c], column.k[n + c], x[1]);
        if constexpr (Ring::erases)
          x[2] = op_fma(q[c], column.e[n + c], x[2]), x[3] = op_fma(r[c], column.e[n + c], x[3]);
      }
    }
  }

 public:
  // What r of new token i has decayed by in a channel, at its place.
  __device__ __forceinline__ Real read_channel(int i, int at) const {
    const int sum = read_sum(i);
    if (sum >= 0) return shared[sum + at];
    const int d = channel_at(at);
    return before > 0 && d < Config::k_dim ? old_number(in.sums, before - 1, Config::k_dim, d, LUATTN_STATE_F32)
                                           : Real(0);
  }

 private:
  __device__ __forceinline__ void multiply_column(int j, bool is_there, Real own) const {
    constexpr int each = 8 / Ring::products;
    const int lane8 = int(threadIdx.x % 8), which = lane8 / each, of_r = which % 2;
    const int to = which == 0 ? in.query : which == 1 ? in.read : which == 2 ? in.query_e : in.read_e;
    Column column;
    load(column, j);
    Real sum_j = 0;
    if constexpr (Ring::decays && !Ring::channels) {
      sum_j = __shfl_sync(0xffffffffu, own, max_of(j - before, 0));
      if (j < before) sum_j = old_sum(j);
    }
    for (int i = 0; i < tokens; ++i) {
      const bool has = is_there && j <= before + i, reads = is_there && j < before + i;  // r has not met its own row
      Real x[Ring::products] = {};
      multiply(column, i, has, reads, x);
      Real sum = sum_each<8>(x);
      if constexpr (Ring::decays && !Ring::channels) {
        const Real sum_q = __shfl_sync(0xffffffffu, own, i);
        Real sum_r = sum_q;
        if constexpr (Spec::before) {
          sum_r = __shfl_sync(0xffffffffu, own, max_of(i - 1, 0));
          if (i == 0) sum_r = before > 0 ? old_sum(before - 1) : Real(0);
        }
        sum *= (of_r ? reads : has) ? op_exp((of_r ? sum_r : sum_q) - sum_j) : Real(0);
      }
      if (lane8 % each == 0 && (of_r ? reads : has)) pair(to, i, j) = sum;
    }
  }

  struct Solved {
    Real x = 0, z = 0, o = 0;
  };
  // What u of a row in column j, and y there, are to new row i.
  __device__ __forceinline__ void meet(Solved &s, int i, int j, Real u, Real y) const {
    if constexpr (Ring::erases)
      s.z = op_fma(pair(in.read, i, j), u, op_fma(-pair(in.read_e, i, j), y, s.z));
    else if constexpr (Ring::reads)
      s.x = op_fma(-pair(in.read, i, j), u, s.x);
    s.o = op_fma(pair(in.query, i, j), u, s.o);
    if constexpr (Ring::erases) s.o = op_fma(-pair(in.query_e, i, j), y, s.o);
  }
  // A value channel has `shares` lanes, each with a share of the columns.
  template <class T, int Values>
  __device__ __forceinline__ void solve_as(int first) const {
    constexpr int values = Values, shares = 32 / values;
    const int lane = int(threadIdx.x % 32), share = lane / values, v = first + lane % values,
              read_v = min_of(v, Config::v_dim - 1), from = order.value_place(read_v);
    const bool has = share == 0 && v < Config::v_dim;
    for (int i = 0; i < tokens; ++i) {
      Solved s;
#pragma unroll 4
      for (int j = share; j < before; j += shares)
        meet(s, i, j, old_value<T>(in.u, j, read_v), Ring::erases ? old_value<T>(in.y, j, read_v) : Real(0));
      for (int j = share; j < i; j += shares)
        meet(s, i, before + j, new_u(j)[from], Ring::erases ? new_y(j)[from] : Real(0));
#pragma unroll
      for (int m = values; m < 32; m *= 2) {
        s.o += __shfl_xor_sync(0xffffffffu, s.o, m);
        if constexpr (Ring::reads && !Ring::erases) s.x += __shfl_xor_sync(0xffffffffu, s.x, m);
        if constexpr (Ring::erases) s.z += __shfl_xor_sync(0xffffffffu, s.z, m);
      }
      if (has) finish<T>(s, i, v, from);
      __syncwarp();
    }
  }
  template <class T>
  __device__ __forceinline__ void finish(const Solved &s, int i, int v, int from) const {
    const int n = before + i;
    const Real u = new_u(i)[from] + s.x, z = Ring::erases ? new_y(i)[from] + s.z : Real(0);
    Real o = op_fma(pair(in.query, i, n), u, row(i)[Layout::o + from] + s.o);
    if constexpr (Ring::erases) o = op_fma(-pair(in.query_e, i, n), z, o);
    new_u(i)[from] = u;
    if constexpr (Ring::erases) new_y(i)[from] = z;
    at<T>(p.ring.u, n)[v] = from_real<T>(u);
    if constexpr (Ring::erases) at<T>(p.ring.y, n)[v] = from_real<T>(z);
    o *= Real(p.scale);
    if constexpr (Spec::Skip::given) o += row(i)[Layout::skip + from];
    place.template at<Elem>(p.o, place.site.hv, i)[v] = from_real<Elem>(o);
  }
};
