// linear/recurrent/step_tokens.cuh: a few tokens of many states of bf16 along K, by tensor cores, decays not of channels. With
// G the sums of the logarithms of decays, the state behind tokens is e^G_T S0 + sum over j of e^(G_T - G_j) k_j u_j', so that a
// number of it takes as many instructions whatever the tokens are: S0 as it came from memory meets all tokens' q and r, each lane
// solves for u of its value channels, and one product more adds them.
//
// A block has value channels of a head, and comes and goes, in the order of memory. Each warp asks for its parts of the state
// before all else, has the hooks of a token or two, and then takes its parts in turn from shared memory, where TMA brings them,
// and from where it takes them back.
#pragma once
#include "arch/early_launch.cuh"
#include "linear/recurrent/recurrent_rows.cuh"
#include "linear/recurrent/recurrent_state.cuh"
#include "score/fragment.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/mbarrier.cuh"

template <class Spec, class Config>
concept TakesTokens = sizeof(typename Config::Elem) == 2 && !Spec::Erase::given && !Spec::normalizes &&
                      !TokenLayout<Spec, Config>::decays_channels && Config::k_dim <= LINEAR_PART_KEYS;

template <class Config>
struct TokensConfig : Config {
  static constexpr int warps = LINEAR_TOKENS_THREADS / 32, values = 16, turns = LINEAR_TOKENS_TURNS,
                       v_block = LINEAR_TOKENS_VALUES;
};

// Bytes of shared memory, of at most Tokens tokens. A float is kept as two numbers of bf16, its high and its low half.
template <class Spec, class Config, int Tokens>
struct TokensLayout {
  static constexpr LinearTokensPlaces places = linear_tokens_places(Tokens, Config::k_dim, Spec::Skip::given);
  static constexpr int K = RecurrentShape<Config>::k_dim, pitch = places.pitch, key_pitch = places.key_pitch,
                       turned_pitch = places.turned_pitch,
                       columns = Tokens > 4 ? 16 : 8;  // of operands: r of tokens, then q
  static constexpr int operands = 0, keys = places.keys, turned = places.turned, decays = places.decays,
                       written = places.written, skip = places.skip, state = places.state, barriers = places.barriers;
};

// Rows of tokens to shared memory.
template <class Spec, class Config, int Tokens>
struct TokensRows : RecurrentRows<Spec, Config> {
  using Base = RecurrentRows<Spec, Config>;
  using In = TokensLayout<Spec, Config, Tokens>;
  using Real = typename Config::Number;
  using KRow = typename Base::KRow;
  using VRow = typename Base::VRow;
  static constexpr int half = In::columns / 2;
  using Base::p, Base::place, Base::first_value, Base::block_values;
  unsigned char *const base;

  __device__ __forceinline__ TokensRows(const LuattnLinearParams &p, const RecurrentPlace<Config> &place,
                                        const StateOrder<Config> &order, unsigned char *base, int first_value)
      : Base{p, place, order, reinterpret_cast<Real *>(base), first_value, Config::v_block}, base(base) {}

  // A warp has a token, or two.
  __device__ __forceinline__ void fill_all() const {
    const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
#pragma unroll
    for (int t = 0; t < Tokens; t += Config::warps) {
      if (t + warp < place.tokens)
        fill_token(t + warp, lane);
      else if (t + warp < Tokens)
        clear_token(t + warp, lane);
    }
  }

 private:
  template <class Hook>
  using OfK = typename Base::template OfK<Hook>;
  template <class Hook>
  using OfV = typename Base::template OfV<Hook>;

  __device__ __forceinline__ u16 *at(int offset) const { return reinterpret_cast<u16 *>(base + offset); }
  // Number j of a row along K, in memory's order.
  __device__ __forceinline__ void put(int high, int low, int lane, int j, u16 h, u16 l) const {
    at(high)[lane + 32 * j] = h, at(low)[lane + 32 * j] = l;
  }
  LUATTN_FN void split(Real x, u16 &high, u16 &low) {
    const u32 h = pack<bf16_t>(x, 0.f);
    high = u16(h), low = u16(pack<bf16_t>(x - half_of<bf16_t>(h, 0), 0.f));
  }
  __device__ __forceinline__ void keep_operand(int column, int lane, const KRow &x) const {
#pragma unroll
    for (int j = 0; j < In::K / 32; ++j) {
      u16 high, low;
      split(x[j], high, low);
      put(In::operands + column * In::pitch, In::operands + (In::columns + column) * In::pitch, lane, j, high, low);
    }
  }
  __device__ __forceinline__ void keep_keys(int t, int lane, const KRow &x) const {
    // Of the lane's channel, for each 32: columns of a product are 8 lanes' numbers.
    const int in8 = lane % 8, word = (lane / 8 * 2 + in8 % 2) * 4 + in8 / 2;
#pragma unroll
    for (int j = 0; j < In::K / 32; ++j) {
      u16 high, low;
      split(x[j], high, low);
      const int pair =
          In::keys + t * In::key_pitch + (j * 32 + lane - in8) * 4 + in8 / 4 * 16 + in8 / 2 % 2 * 8 + in8 % 2 * 2;
      at(pair)[0] = high, at(pair + 4)[0] = low;
      const int to = In::turned + t / 2 * In::turned_pitch + (j * 32 + word) * 4 + t % 2 * 2;
      at(to)[0] = high, at(to + Tokens / 2 * In::turned_pitch)[0] = low;
    }
  }
  __device__ __forceinline__ void keep_values_at(int offset, int t, int lane, const VRow &x) const {
    float *const to = reinterpret_cast<float *>(base + offset) + t * Config::v_block;
#pragma unroll
    for (int j = 0; j < OfV<NoHook>::count; ++j) {
      const int v = lane + 32 * j - first_value;
      if (v >= 0 && v < block_values) to[v] = x[j];
    }
  }
  __device__ __forceinline__ void fill_token(int t, int lane) const {
    const OfK<typename Spec::Query> of_q{p, place.site, t, lane};
    const OfK<typename Spec::Key> of_k{p, place.site, t, lane};
    const OfV<typename Spec::Value> of_v{p, place.site, t, lane};
    KRow q, k, r;
    VRow v;
    this->load(p.q, place.site.h, t, of_q, q);
    this->load(p.k, place.site.h, t, of_k, k);
    this->load(p.v, place.site.hv, t, of_v, v);
    float g = 0;
    if constexpr (Spec::Decay::given) g = decay_within(OfK<typename Spec::Decay>{p, place.site, t, lane}.number());
    if (lane == 0) reinterpret_cast<float *>(base + In::decays)[t] = g;
    if constexpr (Spec::Skip::given) {
      VRow s;
      OfV<typename Spec::Skip>{p, place.site, t, lane}.run(v, s);
      keep_values_at(In::skip, t, lane, s);
    }
    if constexpr (Spec::Value::given) of_v.run(v, v);
    if constexpr (Spec::Write::given) this->weigh(t, lane, v);
    keep_values_at(In::written, t, lane, v);
    if constexpr (Spec::Query::given) of_q.run(q, q);
    if constexpr (Spec::Key::given) of_k.run(k, k);
    keep_operand(half + t, lane, q);
    keep_keys(t, lane, k);
    if constexpr (Spec::Read::given) {
      OfK<typename Spec::Read>{p, place.site, t, lane}.run(k, r);
      keep_operand(t, lane, r);
    } else {
      clear_operand(t, lane);
    }
  }
  __device__ __forceinline__ void clear_operand(int column, int lane) const {
    const KRow none = {};
    keep_operand(column, lane, none);
  }
  // Of a token that there is not.
  __device__ __forceinline__ void clear_token(int t, int lane) const {
    const KRow none = {};
    const VRow no_values = {};
    if (lane == 0) reinterpret_cast<float *>(base + In::decays)[t] = 0;
    clear_operand(t, lane);
    clear_operand(half + t, lane);
    keep_keys(t, lane, none);
    keep_values_at(In::written, t, lane, no_values);
  }
};

// Which tokens a lane's columns of a product are of, columns 2 t and 2 t + 1 of a kind: r of tokens and then q, in one kind or in
// two.
template <int Tokens>
struct TokensColumns {
  static constexpr int kinds = Tokens > 4 ? 2 : 1;
  const int lane = int(threadIdx.x % 32), g = MmaFragment::row(lane), t = MmaFragment::column(lane) / 2;
  __device__ __forceinline__ bool is_query(int kind) const { return kinds == 2 ? kind == 1 : t >= 2; }
  __device__ __forceinline__ int token(int b) const { return kinds == 2 ? 2 * t + b : 2 * (t % 2) + b; }
};

// What tokens are to one another, of all value channels: the same in each warp.
template <class Spec, class Config, int Tokens>
struct TokensPairs {
  using In = TokensLayout<Spec, Config, Tokens>;
  using Columns = TokensColumns<Tokens>;
  static constexpr int kinds = Columns::kinds, units = In::K / 32;
  static constexpr bool decays = Spec::Decay::given;

  float pair[kinds][2];  // of token g and column b: what u of the token is to it
  float left[kinds][2];  // of S0, in what a column reads
  float to_end[2];       // of what tokens of the columns write
  float of_state;        // of S0, behind all

  __device__ __forceinline__ TokensPairs(u32 base, const Columns &at) {
    float c[kinds][4] = {};
    multiply(base, at, c);
    add_up(base, at.lane);
    const float of_row = sum_of(min_of(at.g, Tokens - 1), true);
#pragma unroll
    for (int n = 0; n < kinds; ++n)
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const bool of_q = at.is_query(n), has = of_q ? at.g <= at.token(b) : at.g < at.token(b);
        const float sum = sum_of(at.token(b), of_q), f = decays ? op_exp(sum - of_row) : 1.f, x = c[n][b] + c[n][b + 2];
        left[n][b] = decays ? op_exp(sum) : 1.f;
        pair[n][b] = !has ? 0.f : of_q ? f * x : -f * x;
      }
    const float end = __shfl_sync(0xffffffffu, own, Tokens - 1);
    of_state = decays ? op_exp(end) : 1.f;
#pragma unroll
    for (int b = 0; b < 2; ++b) to_end[b] = decays ? op_exp(end - sum_of(at.token(b), true)) : 1.f;
  }

 private:
  float own;  // lane i has the sum of logarithms behind token i

  __device__ __forceinline__ void multiply(u32 base, const Columns &at, float (&c)[kinds][4]) const {
    const u32 operand = base + In::operands + at.g * In::pitch + at.t * 16,
              key = base + In::keys + min_of(at.g, Tokens - 1) * In::key_pitch + at.t * 32;
#pragma unroll
    for (int n = 0; n < units; ++n) {
      const uint4 x = load_shared_16(key + n * 128), y = load_shared_16(key + n * 128 + 16);
      const u32 low[4] = {x.x, x.y, x.z, x.w}, high[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 2 * kinds; ++i) {
        const uint4 z = load_shared_16(operand + i * 8 * In::pitch + n * 64);
        mma_16x8x16<bf16_t>(c[i % kinds], low, z.x, z.y);
        mma_16x8x16<bf16_t>(c[i % kinds], high, z.z, z.w);
      }
    }
  }
  __device__ __forceinline__ void add_up(u32 base, int lane) {
    own = decays && lane < Tokens ? __uint_as_float(load_shared(base + In::decays + lane * 4)) : 0.f;
#pragma unroll
    for (int m = 1; m < Tokens; m *= 2) {
      const float x = __shfl_up_sync(0xffffffffu, own, m);
      if (decays && lane >= m) own += x;
    }
  }
  // Behind token i, or before it, where r reads that.
  __device__ __forceinline__ float sum_of(int i, bool behind) const {
    const bool before = Spec::before && !behind;
    const float x = __shfl_sync(0xffffffffu, own, before ? max_of(i - 1, 0) : i);
    return before && i == 0 ? 0.f : x;
  }
};

// A warp's part of a state, 16 value channels. A lane of value channels g and g + 8 has 8 numbers along K from unit t + 4 u on, as
// memory has them: which of them a product takes together is no matter, as long as both operands agree.
template <class Spec, class Config, int Tokens>
struct TokensState : TokensColumns<Tokens> {
  using In = TokensLayout<Spec, Config, Tokens>;
  using Columns = TokensColumns<Tokens>;
  using Pairs = TokensPairs<Spec, Config, Tokens>;
  using Columns::g, Columns::is_query, Columns::kinds, Columns::lane, Columns::t, Columns::token;
  static constexpr int K = In::K, units = K / 32, line = Config::k_dim * 2;
  static constexpr bool reads = Spec::Read::given, decays = Spec::Decay::given;
  static constexpr bool is_whole = Config::v_dim % Config::v_block == 0 && Config::k_dim == K;

  const int offset, first;  // the first value channel in the block, and of the head
  const u32 base, shared;   // the block's memory, the part in it
  u32 word[units][8];       // neighbours along K of value channels g and g + 8 in turn
  float z[kinds][2][2];     // of column 2 t + b, value channel g + 8 h: [b][h]; what r reads, or o
  float u[2][2];            // of the tokens of a lane's columns

  __device__ __forceinline__ TokensState(int first_value, int turn, u32 base)
      : offset((turn * Config::warps + int(threadIdx.x / 32)) * Config::values),
        first(first_value + offset),
        base(base),
        shared(base + In::state + offset * line) {}

  __device__ __forceinline__ void ask(const LuattnStates &m, i64 row, int hv) const {
    const int count = values();
    if (count <= 0) return;
    if (lane == 0) {
      barrier_init(barrier(), 1);
      barrier_init_done();
      barrier_arrive_expect(barrier(), count * line);
    }
    __syncwarp();
    const u16 *const from = place(m, row, hv);
    if (m.value == Config::k_dim) {
      if (lane == 0) bulk_load(shared, from, count * line, barrier());
    } else if (lane < count) {
      bulk_load(shared + lane * line, from + lane * m.value, line, barrier());
    }
  }
  // o and the new state; the warp's barrier has been asked for its part.
  __device__ __forceinline__ void run(const Pairs &pairs, int count) {
    take();
    multiply();
    begin(pairs);
    walk(pairs, count);
    update(pairs);
    give_back();
  }
  __device__ __forceinline__ void put(const LuattnStates &m, i64 row, int hv) const {
    const int count = values();
    fence_async();
    __syncwarp();
    u16 *const to = place(m, row, hv);
    if (m.value == Config::k_dim) {
      if (lane == 0 && count > 0) bulk_store(to, shared, count * line, true);
    } else if (lane < count) {
      bulk_store(to + lane * m.value, shared + lane * line, line, true);
    }
    bulk_commit();
  }
  // o by way of shared memory, where it takes the place of what was written.
  __device__ __forceinline__ void store_o(const LuattnLinearParams &p, const RecurrentPlace<Config> &place,
                                          unsigned char *memory) const {
    using Elem = typename Config::Elem;
    Elem *const rows = reinterpret_cast<Elem *>(memory + In::written);  // every second one
    if (is_query(kinds - 1)) {
#pragma unroll
      for (int b = 0; b < 2; ++b)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int at = token(b) * Config::v_block + offset + g + 8 * h;
          float x = z[kinds - 1][b][h] * p.scale;
          if constexpr (Spec::Skip::given) x += reinterpret_cast<const float *>(memory + In::skip)[at];
          rows[2 * at] = from_real<Elem>(x);
        }
    }
    __syncwarp();
    const int v = lane % Config::values;
    if (first + v < Config::v_dim)
      for (int i = lane / Config::values; i < place.tokens; i += 32 / Config::values)
        place.template at<Elem>(p.o, place.site.hv, i)[first + v] = rows[2 * (i * Config::v_block + offset + v)];
  }

 private:
  __device__ __forceinline__ u32 barrier() const { return base + In::barriers + offset / Config::values * 8; }
  __device__ __forceinline__ int values() const { return min_of(Config::values, Config::v_dim - first); }
  __device__ __forceinline__ u16 *place(const LuattnStates &m, i64 row, int hv) const {
    return static_cast<u16 *>(m.data) + row * m.row + hv * m.head + first * m.value;
  }
  __device__ __forceinline__ bool has(int h, int n) const {
    return is_whole || (first + g + 8 * h < Config::v_dim && (t + 4 * n) * 8 < Config::k_dim);
  }
  __device__ __forceinline__ u32 at(int h, int n) const { return shared + (g + 8 * h) * line + (t + 4 * n) * 16; }

  __device__ __forceinline__ void take() {
    if (is_whole || values() > 0) barrier_wait(barrier(), 0);
#pragma unroll
    for (int n = 0; n < units; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint4 x = {};
        if (has(h, n)) x = load_shared_16(at(h, n));
        word[n][h] = x.x, word[n][2 + h] = x.y, word[n][4 + h] = x.z, word[n][6 + h] = x.w;
      }
#pragma unroll
    for (int n = 0; n < units; ++n)
#pragma unroll
      for (int i = 0; i < 8; ++i) asm volatile("" : "+r"(word[n][i]));  // kept in the order that products take
  }
  __device__ __forceinline__ void give_back() const {
#pragma unroll
    for (int n = 0; n < units; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (has(h, n))
          store_shared_16(at(h, n), __uint_as_float(word[n][h]), __uint_as_float(word[n][2 + h]),
                          __uint_as_float(word[n][4 + h]), __uint_as_float(word[n][6 + h]));
  }
  __device__ __forceinline__ void multiply() {
    float c[kinds][4] = {};
    const u32 operand = base + In::operands + g * In::pitch + t * 16;
#pragma unroll
    for (int n = 0; n < units; ++n) {
      const auto &w = word[n];
      const u32 low[4] = {w[0], w[1], w[2], w[3]}, high[4] = {w[4], w[5], w[6], w[7]};
#pragma unroll
      for (int i = 0; i < 2 * kinds; ++i) {
        const uint4 x = load_shared_16(operand + i * 8 * In::pitch + n * 64);
        mma_16x8x16<bf16_t>(c[i % kinds], low, x.x, x.y);
        mma_16x8x16<bf16_t>(c[i % kinds], high, x.z, x.w);
      }
    }
#pragma unroll
    for (int i = 0; i < kinds; ++i)
#pragma unroll
      for (int b = 0; b < 2; ++b)
#pragma unroll
        for (int h = 0; h < 2; ++h) z[i][b][h] = c[i][2 * h + b];
  }
  // Before any token is solved for: what is written less what r reads of the state; or what q reads of it. What has decayed to
  // nothing is gone, were it infinite.
  __device__ __forceinline__ void begin(const Pairs &pairs) {
#pragma unroll
    for (int n = 0; n < kinds; ++n)
#pragma unroll
      for (int b = 0; b < 2; ++b)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float &x = z[n][b][h];
          x = pairs.left[n][b] == 0 ? 0.f : pairs.left[n][b] * x;
          if (kinds == 2 && n == 1) continue;
          const float w =
              __uint_as_float(load_shared(base + In::written + 4 * (token(b) * Config::v_block + offset + g + 8 * h)));
          if (!is_query(n)) x = reads ? w - x : w;
        }
  }
  // Token after token, whose u goes to all lanes of a value channel.
  __device__ __forceinline__ void walk(const Pairs &pairs, int count) {
    u[0][0] = u[0][1] = u[1][0] = u[1][1] = 0;
#pragma unroll
    for (int i = 0; i < Tokens; ++i) {
      if (i >= count) break;
      float with[kinds][2];
#pragma unroll
      for (int n = 0; n < kinds; ++n)
#pragma unroll
        for (int b = 0; b < 2; ++b) with[n][b] = __shfl_sync(0xffffffffu, pairs.pair[n][b], i * 4 + t);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float x = __shfl_sync(0xffffffffu, z[0][i % 2][h], g * 4 + i / 2);
        if (token(0) / 2 == i / 2) u[i % 2][h] = x * pairs.to_end[i % 2];
#pragma unroll
        for (int n = 0; n < kinds; ++n)
#pragma unroll
          for (int b = 0; b < 2; ++b) {
            const bool meets = is_query(n) ? i <= token(b) : i < token(b);
            if (meets) z[n][b][h] = op_fma(with[n][b], x, z[n][b][h]);
          }
      }
    }
  }
  // What is left of the state, and products of keys and u, of which low halves meet high ones alone.
  __device__ __forceinline__ void update(const Pairs &pairs) {
    if (decays && pairs.of_state == 0) clear();
    u32 high[2], low[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      high[h] = pack<bf16_t>(u[0][h], u[1][h]);
      low[h] = pack<bf16_t>(u[0][h] - half_of<bf16_t>(high[h], 0), u[1][h] - half_of<bf16_t>(high[h], 1));
      if (kinds == 1 && t >= 2) low[h] = 0;
    }
#pragma unroll
    for (int n = 0; n < units; ++n) add(pairs.of_state, n, high, low);
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < units; ++n)
#pragma unroll
      for (int i = 0; i < 8; ++i) word[n][i] = 0;
  }
  __device__ __forceinline__ void add(float of_state, int n, const u32 (&high)[2], const u32 (&low)[2]) {
    const u32 from = base + In::turned + t * In::turned_pitch + (n * 8 + g) * 16;
    const uint4 x = load_shared_16(from), y = kinds == 2 ? load_shared_16(from + 4 * In::turned_pitch) : x;
    const u32 of_high[4] = {x.x, x.y, x.z, x.w}, of_low[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float c[4];
      u32 *const w = &word[n][2 * i];
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int b = 0; b < 2; ++b) c[2 * h + b] = of_state * half_of<bf16_t>(w[h], b);
      mma_16x8x8<bf16_t>(c, high, of_high[i]);
      if constexpr (kinds == 2) mma_16x8x8<bf16_t>(c, high, of_low[i]);
      mma_16x8x8<bf16_t>(c, low, of_high[i]);
      w[0] = pack<bf16_t>(c[0], c[1]), w[1] = pack<bf16_t>(c[2], c[3]);
    }
  }
};

template <class Spec, class Walk, int Tokens>
__device__ __forceinline__ void step_tokens(const LuattnLinearParams &p, unsigned char *memory) {
  using Config = TokensConfig<Walk>;
  using State = TokensState<Spec, Config, Tokens>;
  constexpr int parts = ceil_div(Config::v_dim, Config::v_block);
  let_next_start();
  wait_for_previous();
  const HeadPart<parts> own;
  const RecurrentPlace<Config> place(p, own.head);
  const int first_value = own.part * Config::v_block;
  const TokensRows<Spec, Config, Tokens> rows(p, place, StateOrder<Config>(p.first), memory, first_value);
  if (place.row < 0) return rows.store_zeros();
  const u32 base = shared_address(memory);
#pragma unroll
  for (int i = 0; i < Config::turns; ++i) State(first_value, i, base).ask(p.first, place.row, place.site.hv);
  rows.fill_all();
  __syncthreads();
  const TokensPairs<Spec, Config, Tokens> pairs(base, TokensColumns<Tokens>());
#pragma unroll 1
  for (int i = 0; i < Config::turns && first_value + i * Config::warps * Config::values < Config::v_dim; ++i) {
    State state(first_value, i, base);
    state.run(pairs, place.tokens);
    state.put(p.last, place.row, place.site.hv);
    state.store_o(p, place, memory);
  }
  bulk_wait_read();
}
