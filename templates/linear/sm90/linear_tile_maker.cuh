// linear/sm90/linear_tile_maker.cuh: luattn_linear_tiles: of each chunk whose decays differ between channels what the chains
// take (LinearTilesLayout), all chunks at once:
//
//     P_ij = scale q_i k_j' e^(G_i - G_j)  for j <= i     q e^G scale     k e^(GC - G)     e^GC
//
// of additive updates times w_j, and of those that erase, which have w by itself, also (I + A)^-1 with A_ij = r_i k_j' e^(..) for
// j < i, and r e^G. All have the factors of tokens, and are rounded.
//
// A block of eight warps makes a chunk: four make P and four make A, 16 rows each, of tiles of blocks (BlockTiles).
#pragma once
#include "linear/sm90/linear_block_tiles.cuh"
#include "linear/sm90/linear_gates.cuh"
#include "linear/sm90/linear_inverse.cuh"

template <class Spec, class Config>
struct SharedMaker {
  static constexpr LinearMakerLayout layout = linear_maker_layout(Config::k_dim, Spec::erases);
  static constexpr bool backward = Config::pass != LINEAR_FORWARD;
  static constexpr LinearTilesLayout made = linear_tiles_layout(Config::k_dim, Spec::erases, backward);
  static constexpr int k_dim = ceil_div(Config::k_dim, 64) * 64, parts_of_gates = k_dim / 16, bytes = layout.bytes,
                       threads = 256, groups = 0;
  static_assert(LinearSpec<Spec> && Spec::decay_of == DECAY_CHANNEL && Config::k_dim % 8 == 0 && k_dim <= 128);
  static_assert(parts_of_gates <= 8 && 2 * bytes <= LUATTN_SM90_SHARED_BYTES);

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ u32 queries() const { return start; }
  __device__ __forceinline__ u32 keys() const { return start + layout.qk; }
  __device__ __forceinline__ u32 reads() const { return start + 2 * layout.qk; }
  __device__ __forceinline__ u32 gates() const { return start + layout.at_gates; }
  __device__ __forceinline__ u32 parts(int which) const { return gates() + which * LINEAR_BOX; }
  __device__ __forceinline__ u32 diagonal(int block) const { return parts(2) + block * (16 * 80); }
  __device__ __forceinline__ u32 pairs() const { return start + layout.at_pairs; }
  __device__ __forceinline__ u32 inverse() const { return pairs() + LINEAR_BOX; }
  __device__ __forceinline__ u32 left() const { return start + layout.at_left; }
  __device__ __forceinline__ u32 numbers() const { return start + layout.at_numbers; }
};

template <class Spec, class Config>
struct TileMaker {
  using Shared = SharedMaker<Spec, Config>;
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  using Fragment = MmaFragment;
  using Tiles = BlockTiles<Elem, Shared::layout.row, Shared::k_dim>;
  using Sums = GateSums<Spec, Config, Shared::layout.row, 16>;
  using Triangles = LinearTriangles<Config, Shared::layout.row>;
  static constexpr int k_dim = Shared::k_dim, block = 16, each = LUATTN_CHUNK / 8, steps = each / Tiles::rows;

  const LuattnLinearParams &p;
  const Shared shared;
  const Chain &chain;
  const int chunk, warp, lane;

  __device__ __forceinline__ Tiles tiles() const { return {shared.gates(), shared.left(), lane}; }
  __device__ __forceinline__ unsigned char *made() const {
    return static_cast<unsigned char *>(p.kept.tiles) + chain.slot(p, chunk) * Shared::made.bytes;
  }

  // ---- load ----

  // A lane's 4 channels of the warp's rows.
  __device__ __forceinline__ int row(int i) const { return warp * each + i * Tiles::rows + lane / Tiles::lanes; }
  __device__ __forceinline__ void load_rows(u64 (&x)[steps], const LuattnTensor &from) const {
    const Elem *const at = static_cast<const Elem *>(from.data) + (Config::packed ? 0 : chain.entry * from.batch) +
                           chain.site.h * from.head + tiles().channel();
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      const int t = chunk * LUATTN_CHUNK + row(i);
      x[i] = 0;
      if (chain.has(t) && tiles().channel() < Config::k_dim)
        x[i] = __ldg(reinterpret_cast<const unsigned long long *>(at + i64(chain.start + t) * from.seq));
    }
  }
  __device__ __forceinline__ void write_numbers() const {
    const auto x = TokenNumbers<Spec, Config>{p, chain, lane}.of_tokens(chunk);
    const float read[2] = {x.read[0] * x.column[0], x.read[1] * x.column[1]};
    const u32 at = shared.numbers() + 8 * u32(lane);
    store_pair(at + FACTOR_QUERY, x.row), store_pair(at + FACTOR_KEY, x.column);
    store_pair(at + FACTOR_READ, read), store_pair(at + FACTOR_WRITE, x.write);
  }

  // ---- tiles ----

  __device__ __forceinline__ static u32 place(int row, int channel) {
    return channel / 64 * LINEAR_BOX + box_place(row, channel % 64) + channel % 8 * 2;
  }
  __device__ __forceinline__ static void multiply(float (&by)[4], const float (&x)[4], const float (&y)[4], float z) {
#pragma unroll
    for (int n = 0; n < 4; ++n) by[n] = x[n] * (y[n] * z);
  }
  // The warp's rows, which lie in one block.
  __device__ __forceinline__ void make_tiles(const u64 (&q)[steps], const u64 (&k)[steps]) const {
    const Tiles of = tiles();
    const int which = warp / 2, channel = of.channel();
    float all[4][4], before[4], behind[4], end[4];
    of.load_totals(all), Tiles::sum(before, behind, all, which);
    load_four(end, shared.gates() + (which * block + block - 1) * Shared::layout.row + channel * 4);
    if (warp % 2 == 0) of.store_left(which);
    if (warp == 7 && lane < Tiles::lanes) store_chunk(before, end);
#pragma unroll
    for (int n = 0; n < 4; ++n) before[n] = fast_exp2(before[n]), behind[n] = fast_exp2(behind[n]);
    unsigned char *const to = made();
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      const int token = row(i);
      const u32 at = place(token, channel), numbers = shared.numbers() + token * 4;
      float sum[4], up[4], down[4], by[4];
      load_four(sum, shared.gates() + token * Shared::layout.row + channel * 4);
#pragma unroll
      for (int n = 0; n < 4; ++n) up[n] = fast_exp2(sum[n]), down[n] = fast_exp2(end[n] - sum[n]);
      store_four_halves(shared.queries() + at, Tiles::scaled(q[i], up));
      store_four_halves(shared.keys() + at, Tiles::scaled(k[i], down));
      multiply(by, up, before, load_number(numbers + FACTOR_QUERY));
      *reinterpret_cast<u64 *>(to + Shared::made.at_queries + at) = Tiles::scaled(q[i], by);
      multiply(by, down, behind, load_number(numbers + FACTOR_KEY));
      *reinterpret_cast<u64 *>(to + Shared::made.at_keys + at) = Tiles::scaled(k[i], by);
      if constexpr (Spec::erases) {
        store_four_halves(shared.reads() + at, Tiles::scaled(k[i], up));
        multiply(by, up, before, load_number(numbers + FACTOR_READ));
        *reinterpret_cast<u64 *>(to + Shared::made.at_reads + at) = Tiles::scaled(k[i], by);
      }
    }
  }
  // For backward: factors of tokens, and sums of decays.
  __device__ __forceinline__ void store_sums() const {
    unsigned char *const to = made() + Shared::made.at_factors;
    bulk_store(to, shared.numbers(), LINEAR_TILE_FACTORS, true);
    bulk_store(to + LINEAR_TILE_FACTORS, shared.gates(), LUATTN_CHUNK * Shared::layout.row, true);
    bulk_commit();
  }
  // What is left over the chunk, of the last block's channels.
  __device__ __forceinline__ void store_chunk(const float (&before)[4], const float (&end)[4]) const {
    float *const to = reinterpret_cast<float *>(made() + Shared::made.at_numbers) + tiles().channel();
#pragma unroll
    for (int n = 0; n < 4; ++n) to[n] = fast_exp2(before[n] + end[n]);
  }
  // q and k as they came, in the place of the tiles.
  __device__ __forceinline__ void store_raw() const {
    u64 q[steps], k[steps];
    load_rows(q, p.q), load_rows(k, p.k);
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      const u32 at = place(row(i), tiles().channel());
      store_four_halves(shared.queries() + at, q[i]), store_four_halves(shared.keys() + at, k[i]);
    }
  }

  // ---- pairs ----

  __device__ __forceinline__ static void load(u32 (&a)[4], u32 tile, int which, int step, int lane) {
    const int channel = step * 16 + lane / 16 * 8;
    ldmatrix_x4(a, tile + channel / 64 * LINEAR_BOX + box_place(which * block + lane % 16, channel % 64));
  }
  // s = rows of a tile times those of k's, of the warp's block and those before it.
  __device__ __forceinline__ void multiply(float (&s)[32], u32 rows, int which) const {
    const Tiles of = tiles();
    const bool narrow = of.is_narrow(which);
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = 0;
#pragma unroll 1
    for (int step = 0; step < k_dim / 16; ++step) {
      u32 a[4], own[4], b[4];
      load(a, rows, which, step, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) own[i] = a[i];
      of.scale(own, LEFT_INVERSE, which, step);
#pragma unroll
      for (int n = 3; n >= 0; --n) {
        if (n > which || (n == which && !narrow)) continue;
        load(b, shared.keys(), n, step, lane);
        if (n == which)
          Triangles::multiply(s + 8 * n, own, b);
        else
          Triangles::multiply(s + 8 * n, a, b);
        if (n > 0 && n < which) of.scale(a, LEFT_OVER, n, step);
      }
    }
  }
  __device__ __forceinline__ bool all_narrow() const {
    float flags[4];
    load_four(flags, shared.left() + LEFT_NARROW);
    return flags[0] + flags[1] + flags[2] + flags[3] == 4.f;
  }
  __device__ __forceinline__ void add_own(float (&s)[32], u32 rows, int which) const {
    if (tiles().is_narrow(which)) return;
    float own[8] = {};
    Triangles{rows, shared.keys(), shared.gates(), which, lane}.add_block(own);
#pragma unroll
    for (int b = 0; b < 4; ++b)
      if (b == which)
#pragma unroll
        for (int i = 0; i < 8; ++i) s[8 * b + i] = own[i];
  }
  // Factors of rows and columns, and 0 above the diagonal: pairs are selected, never multiplied by 0.
  template <bool Below>
  __device__ __forceinline__ void weigh(float (&s)[32], int which) const {
    const u32 rows =
                  shared.numbers() + (Below ? FACTOR_READ : FACTOR_QUERY) + (which * block + Fragment::row(lane)) * 4,
              columns = shared.numbers() + FACTOR_KEY + Fragment::column(lane) * 4;
    const float factor[2] = {load_number(rows), load_number(rows + 32)};
    const int behind = which * block + Fragment::row(lane) - Fragment::column(lane);
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      const float2 by = load_pair(columns + Fragment::column_of(j) * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          float &e = s[Fragment::element(r, j + n)];
          const int column = Fragment::column_of(j + n) - 8 * r;
          e = column + Below <= behind ? e * (factor[r] * (n == 0 ? by.x : by.y)) : 0.f;
        }
    }
  }
  // Whether r' k of each of the warp's tokens lies in [0, 2]: then I - k r' makes no vector longer (linear_tile_segments.cuh).
  __device__ __forceinline__ void find_shrinks(const float (&s)[32], int which) const {
    const u32 numbers = shared.numbers() + which * (4 * block);
    bool good = true;
#pragma unroll
    for (int b = 0; b < 4; ++b)
      if (b == which)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int row = Fragment::row(lane, r);
            const float factor =
                            load_number(numbers + FACTOR_READ + 4 * row) * load_number(numbers + FACTOR_KEY + 4 * row),
                        x = s[8 * b + Fragment::element(r, j)] * factor;
            good = good && (row != Fragment::column(lane, j) || (x >= 0 && x <= 2));
          }
    good = __all_sync(0xffffffffu, good);
    float *const to = reinterpret_cast<float *>(made() + Shared::made.at_numbers + LINEAR_TILE_SHRINKS);
    if (lane == 0) to[which] = good ? 1.f : 0.f;
  }
  // The warp's 16 rows of a box, which it has written.
  __device__ __forceinline__ void copy(int at, u32 box, int which) const {
    fence_async();
    __syncwarp();
    if (elected()) {
      bulk_store(made() + at + which * (block * 128), box + which * (block * 128), block * 128, true);
      bulk_commit(), bulk_wait_read();
    }
  }
  __device__ __forceinline__ void store_pairs(const float (&s)[32], int which) const {
#pragma unroll
    for (int n = 0; n < 4; ++n)
      stmatrix_x4(shared.pairs() + box_place(which * block + lane % 16, 16 * n + lane / 16 * 8),
                  pack<Elem>(s[8 * n], s[8 * n + 1]), pack<Elem>(s[8 * n + 2], s[8 * n + 3]),
                  pack<Elem>(s[8 * n + 4], s[8 * n + 5]), pack<Elem>(s[8 * n + 6], s[8 * n + 7]));
    copy(Shared::made.at_pairs, shared.pairs(), which);
  }

  // ---- a chunk ----

  __device__ __forceinline__ void run() const {
    const bool of_pairs = warp >= 4;
    const int which = warp % 4;
    u64 q[steps], k[steps];
    float s[32];
    load_rows(q, p.q), load_rows(k, p.k);
    if (warp == 7) write_numbers();
    if (warp < Shared::parts_of_gates) Sums{p, chain, lane}.write(shared.gates(), chunk, warp, [] {});
    fence_async();
    __syncthreads();
    const bool copies = Shared::backward && warp == 4 && elected();
    if (copies) store_sums();
    make_tiles(q, k);
    if (copies) bulk_wait_read();
    if (Spec::erases && warp == 0) store_writes();
    __syncthreads();
    const bool narrow = all_narrow();
    if (of_pairs || Spec::erases) multiply(s, of_pairs ? shared.queries() : shared.reads(), which);
    if (!narrow) {
      __syncthreads();
      store_raw();
      __syncthreads();
      if (of_pairs || Spec::erases) add_own(s, of_pairs ? shared.queries() : shared.keys(), which);
    }
    if (Spec::erases) __syncthreads();  // the inverse is made in the place of sums of decays
    if (of_pairs) {
      weigh<false>(s, which);
      store_pairs(s, which);
    } else if constexpr (Spec::erases) {
      find_shrinks(s, which);
      weigh<true>(s, which);
      ChunkInverse<Spec, Config, Shared>{shared, which, lane}.run(s, shared.inverse());
      copy(Shared::made.at_inverse, shared.inverse(), which);
    }
  }
  __device__ __forceinline__ void store_writes() const {
    float *const to = reinterpret_cast<float *>(made() + Shared::made.at_numbers + LINEAR_TILE_WRITES);
    const float2 write = load_pair(shared.numbers() + FACTOR_WRITE + 8 * u32(lane));
    to[2 * lane] = write.x, to[2 * lane + 1] = write.y;
  }
};

// Blocks: one for each chunk of each value head.
template <class Spec, class Config>
LUATTN_FN void linear_make_tiles(const LuattnLinearParams &p, void *memory) {
  RowChunks<Config> at(p);
  const LinearChain<Config> chain = at.chain();
  const int chunk = at.chunk(chain);
  if (chunk >= chain.end || chain.state_row(p) < 0) return;
  TileMaker<Spec, Config>{p,     {shared_address(memory)},       chain,
                          chunk, int(uniform(threadIdx.x / 32)), int(threadIdx.x % 32)}
      .run();
}
