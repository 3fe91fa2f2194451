// linear/sm90/linear_column_decays.cuh: the gradient of a chunk's decays of channels (linear_columns_sm90.cuh), by sums over ways.
#pragma once
#include "linear/sm90/columns_pipeline.cuh"
#include "linear/sm90/decayed_rows.cuh"
#include "score/fragment.cuh"

template <class Spec, class Config>
struct ColumnDecays {
  using Shared = SharedColumns<Spec, Config>;
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  using Fragment = MmaFragment;
  static constexpr int block = 16, k_dim = Shared::k_dim, v_dim = Shared::v_dim, channels = k_dim / Shared::shares,
                       steps = channels / 16, blocks = k_dim / 16, parts = Shared::warps / blocks;

  const LuattnLinearParams &p;
  const Shared shared;
  const int which, share, lane;  // which block of tokens; of the channels

  // ---- decays ----

  // What is left of the lane's channel over the chunk.
  __device__ __forceinline__ float find_left() const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += load_number(place_of(i * block + block - 1, channel()));
    return fast_exp2(sum);
  }

  // ---- ways of a block ----

  // A lane has a channel of the warp's, where it has as many.
  __device__ __forceinline__ bool has_channel() const { return lane < channels; }
  __device__ __forceinline__ int channel() const { return share * channels + lane % channels; }
  // Lays 16 channels of the warp's rows in the place of its sums of decays, which it has read.
  __device__ __forceinline__ void lay(const float (&x)[8], int step) const {
#pragma unroll
    for (int j = 0; j < 4; j += 2)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int e = Fragment::element(r, j);
        lay_two(which * block + Fragment::row(lane, r), step * 16 + Fragment::column(lane, j), x[e], x[e + 1]);
      }
  }
  // Of two channels, in the place of the lane's own sums.
  __device__ __forceinline__ void lay_two(int row, int channel, float x, float y) const {
    store_pair(place_of(row, channel), x, y);
  }
  __device__ __forceinline__ u32 place_of(int token, int channel) const {
    return shared.gates() + token * Shared::row_bytes + channel * 4;
  }
  __device__ __forceinline__ static void store_pair(u32 to, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
  }
  // Of the lane's channel over the block's rows: sums of y, which lies there, from the row on, and of z before it; and all of both.
  __device__ __forceinline__ void sum_ways(float (&ways)[block], const float (&z)[steps][8]) const {
    const u32 from = place_of(which * block, channel()), totals = shared.totals() + which * 512 + channel() * 4;
    float behind = 0, before = 0;
    __syncwarp();
#pragma unroll
    for (int i = block - 1; i >= 0; --i) ways[i] = behind += load_number(from + i * Shared::row_bytes);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < steps; ++i) lay(z[i], share * steps + i);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < block; ++i) ways[i] += before, before += load_number(from + i * Shared::row_bytes);
    if (has_channel()) store_number(totals + TOTAL_BEHIND, behind), store_number(totals + TOTAL_BEFORE, before);
  }

  // ---- ways from state to state ----

  __device__ __forceinline__ u32 across(int done) const { return shared.totals() + TOTAL_ACROSS + done % 2 * 1024; }
  // Their sums over a part of the value channels, but for what is left of the chunk: the diagonal of products of 16 channels of
  // both states, a warp for each 16 channels of a part.
  __device__ __forceinline__ void sum_across(int warp, int done) const {
    const int first = warp % blocks * 16, part = warp / blocks;
    float x[8] = {};
#pragma unroll
    for (int i = 0; i < v_dim / 16 / parts; ++i) {
      const int value = (part * (v_dim / 16 / parts) + i) * 16;
      u32 a[4], b[4];
      ldmatrix_x4_turned(a, shared.at_state(COLUMN_STATE, value + lane % 8 + lane / 16 * 8, first + lane / 8 % 2 * 8));
      ldmatrix_x4_turned(b, shared.at_state(COLUMN_GRAD_STATE, value + lane % 16, first + lane / 16 * 8));
      DecayedRows<Config, Shared::row_bytes, false>::multiply(x, a, b);
    }
    const int own = Fragment::row(lane);
    if (Fragment::lane_in_row(lane) != own / 2) return;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      store_number(across(done) + (part * k_dim + first + own + 8 * r) * 4, own % 2 == 0 ? x[6 * r] : x[6 * r + 1]);
  }
  // What all tokens of the block have of the lane's channel: of ways that cross other blocks, and all. left: over the chunk.
  __device__ __forceinline__ float of_block(float left, int done) const {
    const u32 at = shared.totals() + channel() * 4;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < parts; ++i) sum += load_number(across(done) + (i * k_dim + channel()) * 4);
    sum *= left;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i != which) sum += load_number(at + (i > which ? TOTAL_BEHIND : TOTAL_BEFORE) + i * 512);
    return sum;
  }

  // ---- store ----

  __device__ __forceinline__ u32 places(int done) const {
    return shared.totals() + TOTAL_PLACES + done % 2 * 512 + which * 128;
  }
  // Where gradients of a token's channels are stored; null: hooks make something of them first.
  __device__ __forceinline__ float *place(const Chain &chain, int t) const {
    if constexpr (DecayIsElement<Spec>)
      return Spec::OfDecay::place(p, chain.site, t);
    else
      return DecayEndsHere<Spec> ? nullptr : p.sums.decay + chain.token(p, t) * Config::k_dim;
  }
  // By a warp for each block of tokens.
  __device__ __forceinline__ void find_places(const Chain &chain, int chunk, int done) const {
    const int t = chunk * LUATTN_CHUNK + which * block + lane;
    if (share != 3 || lane >= block || !chain.has(t) || p.sums.decay == nullptr) return;
    const auto at = reinterpret_cast<unsigned long long>(place(chain, t));
    asm volatile("st.shared.b64 [%0], %1;" ::"r"(places(done) + lane * 8), "l"(at) : "memory");
  }
  __device__ __forceinline__ void store_at(u64 row, float x) const {
    asm volatile("st.global.f32 [%0], %1;" ::"l"(row + u32(channel()) * 4), "f"(x) : "memory");
  }
  // Adds to ways what all tokens of the block have, and stores the gradient, or what it makes of inputs. left: over the chunk.
  __device__ __forceinline__ void store(const float (&ways)[block], float left, const Chain &chain, int chunk,
                                        int done) const {
    if (p.sums.decay == nullptr || !has_channel() || channel() >= Config::k_dim) return;
    const float all = of_block(left, done);
    const int first = chunk * LUATTN_CHUNK + which * block;
    if (chain.has(first + block - 1) && load_four_halves(places(done)) != 0) {
#pragma unroll
      for (int i = 0; i < block; i += 2) {
        const uint4 two = load_shared_16(places(done) + i * 8);
        store_at(u64(two.x) | u64(two.y) << 32, ways[i] + all),
            store_at(u64(two.z) | u64(two.w) << 32, ways[i + 1] + all);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < block; ++i) {
      if (!chain.has(first + i)) break;
      const u64 row = load_four_halves(places(done) + i * 8);
      if (row != 0)
        store_at(row, ways[i] + all);
      else
        add(chain, first + i, ways[i] + all);
    }
  }
  __device__ __forceinline__ void add(const Chain &chain, int t, float x) const {
    if constexpr (DecayEndsHere<Spec>) {
      float none[1];
      Spec::OfDecay::add(p, chain.site, 1.f, x, t, channel(), nullptr, nullptr, none, none);
    }
  }
};
