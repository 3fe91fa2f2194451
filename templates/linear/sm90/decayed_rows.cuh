// linear/sm90/decayed_rows.cuh: gradients of pairs of 16 tokens among themselves with decays between them that differ between
// channels, for rows of queries or of keys:
//
//     x_id = sum over j < i of z_ij k_jd e^(G_id - G_jd)     rows are queries
//     x_jd = sum over i > j of z_ji q_id e^(G_id - G_jd)     rows are keys: Later
//
// and of each row's own number times its sum, what `ways` is for: of numbers that are rounded with their decays, as those of others
// are, so that a pair has the same way whichever of its tokens is the row, and what does not cross a decay cancels to all digits.
//
// The block is cut as in linear_triangles.cuh: triangles have their first token as the reference, and what lies between two of
// them the first one's end. No exponent is above 0 but in triangles, whose decays span less than the limit. Pairs of a token
// with itself are left out.
#pragma once
#include "linear/sm90/linear_triangles.cuh"

// OwnWeight, OtherWeight: whether a token's number has a factor of the token besides.
template <class Config, int RowBytes, bool Later, bool OwnWeight = false, bool OtherWeight = false>
struct DecayedRows {
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  static constexpr int block = 16, block_bytes = block * RowBytes;

  const u32 own, others, gates;  // of rows, k or q; sums of decays
  const int warp, lane;          // warp: which block of the chunk
  const u32 own_weights = 0, other_weights = 0;

  // ---- load ----

  // Sums of decays at a channel of the chunk's token.
  __device__ __forceinline__ u32 sums(int token, int channel) const { return gates + token * RowBytes + channel * 4; }
  // A B operand, tokens by channels: of element i, tokens 2 t and 2 t + 1 (+ i % 2 * 8) at channel g (+ i / 2 * 8).
  __device__ __forceinline__ void load(u32 (&b)[4], int which, int step) const {
    const int row = which * block + lane % 16, channel = step * 16 + lane / 16 * 8;
    ldmatrix_x4_turned(b, others + channel / 64 * LINEAR_BOX + box_place(row, channel % 64));
  }
  __device__ __forceinline__ static u32 scaled(u32 two, float low, float high) {
    return pack<Elem>(to_real(Elem{u16(two)}) * low, to_real(Elem{u16(two >> 16)}) * high);
  }
  __device__ __forceinline__ static void multiply(float (&x)[8], const u32 (&a)[4], const u32 (&b)[4]) {
    mma_16x8x16<Elem>(reinterpret_cast<float(&)[4]>(x[0]), a, b[0], b[1]);
    mma_16x8x16<Elem>(reinterpret_cast<float(&)[4]>(x[4]), a, b[2], b[3]);
  }

  // ---- on the diagonal ----

  // Whether a pair is one of triangles of a size, or lies between two of them.
  template <bool Between>
  __device__ __forceinline__ static bool has(int row, int other, int size) {
    const int later = Later ? other : row, sooner = Later ? row : other;
    return Between ? (later & size) != 0 && later / size == sooner / size + 1
                   : later / size == sooner / size && later > sooner;
  }
  template <bool Between>
  __device__ __forceinline__ static int reference(int token, int size) {
    return Between ? (token & ~(2 * size - 1)) + size - 1 : token & ~(size - 1);
  }
  // The factor of a token on the later side, or the sooner one, whose sum is x more than the reference's. Between triangles
  // tokens of the wrong one meet zeros alone, and exponents stay below 0.
  template <bool Between>
  __device__ __forceinline__ static float factor(float x, bool later) {
    return fast_exp2(Between ? -fabsf(x) : later ? x : -x);
  }
  template <bool Between>
  __device__ __forceinline__ void add_diagonal(float (&x)[8], float (&ways)[8], const u32 (&z)[4], int step,
                                               int size) const {
    float y[8] = {};
    u32 a[4], b[4];
    const int first = warp * block, pair = Fragment::column(lane), channel = step * 16 + Fragment::row(lane);
    load(b, warp, step);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = Fragment::row(lane, i % 2), other = pair + i / 2 * 8, token = pair + i % 2 * 8;
      a[i] = (has<Between>(row, other, size) ? z[i] & 0xffffu : 0u) |
             (has<Between>(row, other + 1, size) ? z[i] & 0xffff0000u : 0u);
      const int at = channel + i / 2 * 8;
      const float low = load_number(sums(first + token, at)) -
                        load_number(sums(first + reference<Between>(token, size), at)),
                  high = load_number(sums(first + token + 1, at)) -
                         load_number(sums(first + reference<Between>(token + 1, size), at));
      float2 weight = {1, 1};
      if constexpr (OtherWeight) weight = load_pair(other_weights + (first + token) * 4);
      b[i] = scaled(b[i], factor<Between>(low, Later) * weight.x, factor<Between>(high, Later) * weight.y);
    }
    multiply(y, a, b);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const int row = Fragment::row(lane, r), at = step * 16 + Fragment::column(lane) + j * 4;
        const float2 sum = load_pair(sums(first + row, at)),
                     from = load_pair(sums(first + reference<Between>(row, size), at));
        const int e = Fragment::element(r, j);
        const float low = factor<Between>(sum.x - from.x, !Later), high = factor<Between>(sum.y - from.y, !Later),
                    weight = OwnWeight ? load_number(own_weights + (first + row) * 4) : 1.f;
        const u32 two = load_shared(own + at / 64 * LINEAR_BOX + box_place(first + row, at % 64 & ~7) + at % 8 * 2);
        const u32 rounded = scaled(two, low * weight, high * weight);
        x[e] += y[e] * low, x[e + 1] += y[e + 1] * high;
        ways[e] = op_fma(half_of<Elem>(rounded, 0), Later ? -y[e] : y[e], ways[e]);
        ways[e + 1] = op_fma(half_of<Elem>(rounded, 1), Later ? -y[e + 1] : y[e + 1], ways[e + 1]);
      }
  }
  // Adds 16 channels. ways: rows of keys are taken off. diagonal: gradients of the block's pairs; size: of triangles.
  __device__ __forceinline__ void add(float (&x)[8], float (&ways)[8], const u32 (&diagonal)[4], int step,
                                      int size) const {
#pragma unroll 1
    for (int n = size; n < block; n *= 2) add_diagonal<true>(x, ways, diagonal, step, n);
    add_diagonal<false>(x, ways, diagonal, step, size);
  }
};
