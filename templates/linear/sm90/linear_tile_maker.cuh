// linear/sm90/linear_tile_maker.cuh: luattn_linear_tiles: of each chunk whose decays differ between channels what the chains
// take (LinearTilesLayout), all chunks at once:
//
//     P_ij = scale q_i k_j' e^(G_i - G_j)  for j <= i     q e^G scale     k e^(GC - G)     e^GC
//
// of additive updates times w_j, and of those that erase, which have w by itself, also (I + A)^-1 with A_ij = r_i k_j' e^(..) for
// j < i, and r e^G. All have the factors of tokens, and are rounded.
//
// A block of eight warps makes a chunk: four make P and four make A, 16 rows each. With G the sum of decays from the beginning of
// a token's block of 16, and E that of all of the block, rows are q e^G and k e^G, and keys
//
//     of the rows' own block k e^-G      of the block before k e^(E - G)      of those before that, times e^E of what lies between
//
// so that pairs are products of tiles. No exponent is above 0 but in the first kind, which holds where a block's decays are less
// than block_limit in each channel; others are cut (linear_triangles.cuh).
#pragma once
#include "linear/sm90/linear_block_tiles.cuh"
#include "linear/sm90/linear_inverse.cuh"
#include "linear/sm90/linear_numbers.cuh"

template <class Spec, class Config>
struct SharedMaker {
  static constexpr LinearMakerLayout layout = linear_maker_layout(Config::k_dim);
  static constexpr bool backward = Config::pass != LINEAR_FORWARD;
  static constexpr LinearTilesLayout made = linear_tiles_layout(Config::k_dim, Spec::erases, backward);
  static constexpr int k_dim = ceil_div(Config::k_dim, 64) * 64, bytes = layout.bytes, threads = 256, blocks = 2,
                       groups = 0, tile = layout.qk / 4;
  static_assert(LinearSpec<Spec> && Spec::decay_of == DECAY_CHANNEL && Config::k_dim % 8 == 0 && k_dim <= 128);
  static_assert(blocks * (bytes + 1024) <= LUATTN_SM90_SHARED_BYTES + 1024);
  static_assert(LUATTN_CHUNK * layout.row <= layout.at_numbers - layout.at_keys &&
                2 * LINEAR_BOX + LINEAR_DIAGONAL <= layout.at_numbers - layout.at_keys);

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ u32 queries() const { return start; }
  __device__ __forceinline__ u32 reads() const { return start + layout.at_reads; }
  // Keys of a block for rows of the same or a later one.
  __device__ __forceinline__ u32 keys(int rows, int block) const {
    return start + layout.at_keys + u32(rows * (rows + 1) / 2 + block) * tile;
  }
  __device__ __forceinline__ u32 raw_keys() const { return reads(); }
  __device__ __forceinline__ u32 gates() const { return start + layout.at_keys; }
  __device__ __forceinline__ u32 parts(int which) const { return gates() + which * LINEAR_BOX; }
  __device__ __forceinline__ u32 diagonal(int block) const { return parts(2) + block * (16 * 80); }
  __device__ __forceinline__ u32 pairs() const { return queries(); }
  __device__ __forceinline__ u32 inverse() const { return reads(); }
  __device__ __forceinline__ u32 totals() const { return start + layout.at_parts; }
  // What is left over block 1, or 2.
  __device__ __forceinline__ u32 over(int block) const { return start + layout.at_over + (block - 1) * 512; }
  __device__ __forceinline__ u32 numbers() const { return start + layout.at_numbers; }
  __device__ __forceinline__ u32 narrow() const { return numbers() + 4 * 256; }
};

template <class Spec, class Config>
struct TileMaker {
  using Shared = SharedMaker<Spec, Config>;
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  using Fragment = MmaFragment;
  using Tiles = BlockTiles<Elem, Shared::layout.row, Shared::k_dim>;
  using Triangles = LinearTriangles<Config, Shared::layout.row>;
  // A lane has 4 channels of `steps` tokens, one after another: a part of a chunk.
  static constexpr int k_dim = Shared::k_dim, block = 16, lanes = k_dim / 4, steps = LUATTN_CHUNK / 8 * lanes / 32,
                       parts = LUATTN_CHUNK / steps, parts_of_block = block / steps;
  static constexpr bool by_query = Spec::has_query_factor,
                        by_key = Spec::has_key_factor || (Spec::has_write && !Spec::erases);
  static_assert(parts * k_dim * 4 == LINEAR_MAKER_PARTS);

  const LuattnLinearParams &p;
  const Shared shared;
  const Chain &chain;
  const int chunk, warp, lane;

  __device__ __forceinline__ unsigned char *made() const {
    return static_cast<unsigned char *>(p.kept.tiles) + chain.slot(p, chunk) * Shared::made.bytes;
  }
  __device__ __forceinline__ int channel() const { return lane % lanes * 4; }
  __device__ __forceinline__ int part() const { return warp * (32 / lanes) + lane / lanes; }
  __device__ __forceinline__ int first_row() const { return part() * steps; }
  __device__ __forceinline__ int which() const { return warp / 2; }  // block of tokens

  // ---- load ----

  __device__ __forceinline__ const Elem *row_of(const LuattnTensor &from, int row, int channel) const {
    return static_cast<const Elem *>(from.data) + (Config::packed ? 0 : chain.entry * from.batch) +
           chain.site.h * from.head + i64(chain.start + chunk * LUATTN_CHUNK + row) * from.seq + channel;
  }
  // The rows of the lane's part, one after another.
  struct Rows {
    const Elem *at;
    i64 step;
    int count;  // that exist
    __device__ __forceinline__ u64 next() {
      const u64 x = count-- > 0 ? __ldg(reinterpret_cast<const unsigned long long *>(at)) : 0;
      at += step;
      return x;
    }
  };
  __device__ __forceinline__ Rows rows_of(const LuattnTensor &from) const {
    const int count = channel() < Config::k_dim ? chain.tokens - chunk * LUATTN_CHUNK - first_row() : 0;
    return {row_of(from, first_row(), channel()), from.seq, count};
  }
  // Brings the warp's rows to L2: a lane has 64 channels of a row.
  __device__ __forceinline__ void touch(const LuattnTensor &from) const {
    const int row = warp * 8 + lane % 8, channel = lane / 8 * 64;
    if (chain.has(chunk * LUATTN_CHUNK + row) && channel < Config::k_dim)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(row_of(from, row, channel)));
  }
  __device__ __forceinline__ void write_numbers() const {
    const auto x = TokenNumbers<Spec, Config>{p, chain, lane}.of_tokens(chunk);
    const float read[2] = {x.read[0] * x.column[0], x.read[1] * x.column[1]};
    const u32 at = shared.numbers() + 8 * u32(lane);
    store_pair(at + FACTOR_QUERY, x.row), store_pair(at + FACTOR_KEY, x.column);
    store_pair(at + FACTOR_READ, read), store_pair(at + FACTOR_WRITE, x.write);
  }

  // ---- decays ----

  // Loads are of adjacent channels in adjacent lanes: of the warp's rows a lane has channels lane, lane + 32, ... Hooks are asked
  // about tokens and channels that exist, without branches, so that loads are under way together. Whole: all exist, which
  // saves most of the instructions.
  static constexpr int rows = LUATTN_CHUNK / 8, apart = k_dim / 32;
  template <bool Whole>
  __device__ __forceinline__ void load_decays(float (&x)[rows][apart]) const {
    const int first = chunk * LUATTN_CHUNK + warp * rows;
#pragma unroll
    for (int i = 0; i < rows; ++i)
#pragma unroll
      for (int n = 0; n < apart; ++n) {
        const int t = first + i, d = lane + 32 * n;
        const float g = Whole ? Spec::decay(p, chain.site, t, d)
                              : Spec::decay(p, chain.site, chain.clamped(t), min_of(d, Config::k_dim - 1));
        const bool has = Whole || (chain.has(t) && d < Config::k_dim);
        x[i][n] = has ? decay_within(g) * op_log2_e : 0.f;
      }
  }
  __device__ __forceinline__ u32 total_of(int part, int channel) const {
    return shared.totals() + u32(part * k_dim + channel) * 4;
  }
  // Channels 0 .. of a row of sums, in the place of the warp's rows of tiles.
  __device__ __forceinline__ u32 sums_of(int row) const {
    constexpr int of_box = 1024 / (k_dim * 4);
    const u32 in = u32(warp * 1024 + row % of_box * (k_dim * 4)), box = u32(row / of_box);
    return in +
           (box < k_dim / 64 ? shared.queries() + box * LINEAR_BOX : shared.reads() + (box - k_dim / 64) * LINEAR_BOX);
  }
  // Sums of decays from the part's beginning, to the base of 2; that of all goes to shared memory, too. First: numbers of
  // tokens as well.
  template <bool First>
  __device__ __forceinline__ void load_sums(float (&g)[steps][4]) const {
    float x[rows][apart];
    if (Config::k_dim % 64 == 0 && chain.has(chunk * LUATTN_CHUNK + LUATTN_CHUNK - 1))
      load_decays<true>(x);
    else
      load_decays<false>(x);
    if (First && warp == 7) write_numbers();
#pragma unroll
    for (int i = 0; i < rows; ++i)
#pragma unroll
      for (int n = 0; n < apart; ++n) {
        if (i % steps != 0) x[i][n] += x[i - 1][n];
        store_number(sums_of(i) + (lane + 32 * n) * 4, x[i][n]);
        if (i % steps == steps - 1) store_number(total_of(warp * (rows / steps) + i / steps, lane + 32 * n), x[i][n]);
      }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < steps; ++i) load_four(g[i], sums_of(lane / lanes * steps + i) + channel() * 4);
    __syncwarp();
  }
  // Decays of the lane's channels: of its block, of all blocks before it and behind it.
  struct Blocks {
    float own[4], before[4], behind[4];
  };
  // Makes them sums from the block's beginning.
  __device__ __forceinline__ Blocks join_sums(float (&g)[steps][4]) const {
    Blocks of = {};
    float sooner[4] = {0, 0, 0, 0};
#pragma unroll
    for (int one = 0; one < parts; ++one) {
      const int b = one / parts_of_block;
      float x[4];
      load_four(x, total_of(one, channel()));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        of.before[n] += b < which() ? x[n] : 0.f, of.behind[n] += b > which() ? x[n] : 0.f;
        of.own[n] += b == which() ? x[n] : 0.f, sooner[n] += b == which() && one < part() ? x[n] : 0.f;
      }
    }
#pragma unroll
    for (int i = 0; i < steps; ++i)
#pragma unroll
      for (int n = 0; n < 4; ++n) g[i][n] += sooner[n];
    return of;
  }
  // What is left over the middle blocks, over the chunk, and whether the warp's block is narrow.
  __device__ __forceinline__ void store_blocks(const Blocks &of) const {
    float x[4];
    bool narrow = true;
#pragma unroll
    for (int n = 0; n < 4; ++n) narrow = narrow && of.own[n] > -block_limit<Elem>, x[n] = fast_exp2(of.own[n]);
    narrow = __all_sync(0xffffffffu, narrow);
    if (warp % 2 != 0) return;
    if (lane == 0) store_number(shared.narrow() + 4 * which(), narrow ? 1.f : 0.f);
    if (lane >= lanes) return;
    if (which() == 1 || which() == 2) Tiles::store(shared.over(which()) + channel() * 4, x);
    if (which() != 3) return;
#pragma unroll
    for (int n = 0; n < 4; ++n) x[n] = fast_exp2(of.before[n] + of.own[n]);
    *reinterpret_cast<float4 *>(made() + Shared::made.at_numbers + channel() * 4) = {x[0], x[1], x[2], x[3]};
  }

  // ---- tiles ----

  __device__ __forceinline__ static u32 place(int row, int channel) {
    return channel / 64 * LINEAR_BOX + box_place(row, channel % 64) + channel % 8 * 2;
  }
  __device__ __forceinline__ static void scale(float (&x)[4], const float (&by)[4]) {
#pragma unroll
    for (int n = 0; n < 4; ++n) x[n] *= by[n];
  }
  __device__ __forceinline__ static void scale(float (&x)[4], const float (&by)[4], float z) {
#pragma unroll
    for (int n = 0; n < 4; ++n) x[n] *= by[n] * z;
  }
  __device__ __forceinline__ static u64 packed(const float (&x)[4]) {
    return u64(pack<Elem>(x[0], x[1])) | u64(pack<Elem>(x[2], x[3])) << 32;
  }
  // x times e^g.
  __device__ __forceinline__ static void decayed(float (&y)[4], u64 x, const float (&left)[4]) {
#pragma unroll
    for (int n = 0; n < 4; ++n) y[n] = to_real(Elem{u16(x >> 16 * n)}) * left[n];
  }
  // What rows of a part are multiplied by; and where they go: tiles in memory, and the keys' tiles for rows of their own block,
  // the next one, and so on.
  struct Part {
    float own[4], before[4], behind[4];
    unsigned char *made;
    u32 keys[4];
  };
  __device__ __forceinline__ Part find_part(const Blocks &of) const {
    Part x;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      x.own[n] = of.own[n];
      x.before[n] = fast_exp2(of.before[n]), x.behind[n] = fast_exp2(of.behind[n]);
    }
    x.made = made();
#pragma unroll
    for (int i = 0; i < 4; ++i) x.keys[i] = shared.keys(which() + i, which());
    return x;
  }
  // The lane's part, which lies in one block.
  __device__ __forceinline__ void make_tiles(const float (&g)[steps][4], const Blocks &of) const {
    Rows queries = rows_of(p.q), keys = rows_of(p.k);
    const Part part = find_part(of);
    const u32 at = place(first_row(), channel()), in_tile = place(first_row() % block, channel()),
              box = channel() / 64 * (LINEAR_BOX - block * 128);
    constexpr int at_once = 2;
#pragma unroll
    for (int i = 0; i < steps; i += at_once) {
      u64 q[at_once], k[at_once];
#pragma unroll
      for (int n = 0; n < at_once; ++n) q[n] = queries.next(), k[n] = keys.next();
#pragma unroll
      for (int n = 0; n < at_once; ++n) {
        const u32 turn = u32((i + n) * 16), further = u32((i + n) * 128);
        make_row(q[n], k[n], i + n, (at ^ turn) + further, (in_tile ^ turn) - box + further, g[i + n], part);
      }
    }
  }
  // Token number i of the part, whose channels lie at `at` of boxes and `in_tile` of a tile of keys.
  __device__ __forceinline__ void make_row(u64 q, u64 k, int i, u32 at, u32 in_tile, const float (&sum)[4],
                                           const Part &part) const {
    unsigned char *const to = part.made + at;
    const u32 numbers = shared.numbers() + (first_row() + i) * 4;
    float left[4], x[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) left[n] = fast_exp2(sum[n]);
    decayed(x, q, left);
    store_four_halves(shared.queries() + at, packed(x));
    scale(x, part.before, by_query ? load_number(numbers + FACTOR_QUERY) : p.scale);
    *reinterpret_cast<u64 *>(to + Shared::made.at_queries) = packed(x);
    if constexpr (Spec::erases) {
      decayed(x, k, left);
      store_four_halves(shared.reads() + at, packed(x));
      scale(x, part.before, load_number(numbers + FACTOR_READ));
      *reinterpret_cast<u64 *>(to + Shared::made.at_reads) = packed(x);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) left[n] = fast_exp2(-sum[n]);
    decayed(x, k, left);
    store_four_halves(part.keys[0] + in_tile, packed(x));
#pragma unroll
    for (int n = 0; n < 4; ++n) left[n] = fast_exp2(part.own[n] - sum[n]);
    decayed(left, k, left);
    store_keys(left, in_tile, part);
    if constexpr (by_key)
      scale(left, part.behind, load_number(numbers + FACTOR_KEY));
    else
      scale(left, part.behind);
    *reinterpret_cast<u64 *>(to + Shared::made.at_keys) = packed(left);
  }
  // A key to its block's end, for rows of each block behind.
  __device__ __forceinline__ void store_keys(const float (&key)[4], u32 in_tile, const Part &part) const {
    float x[4], over[4];
    if (which() < 3) store_four_halves(part.keys[1] + in_tile, packed(key));
    if (which() < 2) {
      load_four(over, shared.over(which() + 1) + channel() * 4);
#pragma unroll
      for (int n = 0; n < 4; ++n) x[n] = key[n] * over[n];
      store_four_halves(part.keys[2] + in_tile, packed(x));
    }
    if (which() == 0) {
      load_four(over, shared.over(2) + channel() * 4);
      scale(x, over);
      store_four_halves(part.keys[3] + in_tile, packed(x));
    }
  }
  // For backward: factors of tokens, and sums of decays.
  __device__ __forceinline__ void store_sums(const float (&g)[steps][4]) const {
    unsigned char *const to = made() + Shared::made.at_factors;
    const u32 own = u32(warp * 32 + lane) * 4;
    *reinterpret_cast<float *>(to + own) = load_number(shared.numbers() + own);
#pragma unroll
    for (int i = 0; i < steps; ++i)
      *reinterpret_cast<float4 *>(to + LINEAR_TILE_FACTORS + (first_row() + i) * Shared::layout.row + channel() * 4) = {
          g[i][0], g[i][1], g[i][2], g[i][3]};
  }
  // q and k as they came, in the place of the tiles, and sums of decays.
  __device__ __forceinline__ void store_raw(const float (&g)[steps][4]) const {
    Rows queries = rows_of(p.q), keys = rows_of(p.k);
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      const u32 at = place(first_row() + i, channel());
      store_four_halves(shared.queries() + at, queries.next());
      store_four_halves(shared.raw_keys() + at, keys.next());
      Tiles::store(shared.gates() + (first_row() + i) * Shared::layout.row + channel() * 4, g[i]);
    }
  }

  // ---- pairs ----

  // s = rows of a tile times keys of the warp's block, and of those before it.
  template <int Which>
  __device__ __forceinline__ void multiply_block(float (&s)[32], u32 rows) const {
    const u32 a_place = box_place(lane % 16, lane / 16 * 8),
              b_place = box_place(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8),
              a_at = rows + Which * (block * 128) + a_place, b_at = shared.keys(Which, 0) + b_place;
#pragma unroll
    for (int step = 0; step < k_dim / 16; ++step) {
      const u32 turn = u32(step % 4 * 32);  // of swizzled channels
      u32 a[4], b[4];
      ldmatrix_x4(a, (a_at ^ turn) + step / 4 * LINEAR_BOX);
#pragma unroll
      for (int n = 0; n <= Which; ++n) {
        ldmatrix_x4(b, (b_at ^ turn) + n * Shared::tile + step / 4 * (block * 128));
        mma_16x8x16<Elem>(reinterpret_cast<float(&)[4]>(s[8 * n]), a, b[0], b[1]);
        mma_16x8x16<Elem>(reinterpret_cast<float(&)[4]>(s[8 * n + 4]), a, b[2], b[3]);
      }
    }
  }
  __device__ __forceinline__ void multiply(float (&s)[32], u32 rows, int which) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = 0;
    if (which == 0)
      multiply_block<0>(s, rows);
    else if (which == 1)
      multiply_block<1>(s, rows);
    else if (which == 2)
      multiply_block<2>(s, rows);
    else
      multiply_block<3>(s, rows);
  }
  __device__ __forceinline__ bool all_narrow() const {
    float flags[4];
    load_four(flags, shared.narrow());
    return flags[0] + flags[1] + flags[2] + flags[3] == 4.f;
  }
  // Pairs of a block that decays much, of rows as they came.
  __device__ __forceinline__ void add_own(float (&s)[32], u32 rows, int which) const {
    float own[8] = {};
    Triangles{rows, shared.raw_keys(), shared.gates(), which, lane}.add_block(own);
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
    const int token = Fragment::row(lane);
    const u32 numbers = shared.numbers() + (which * block + token) * 4;
    float own[2] = {0, 0};  // on the diagonal, if the lane has some of it
#pragma unroll
    for (int b = 0; b < 4; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = s[8 * b + Fragment::element(r, 2 * r)], y = s[8 * b + Fragment::element(r, 2 * r + 1)];
        own[r] = b == which ? (token % 2 == 0 ? x : y) : own[r];
      }
    bool good = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float x = own[r] * load_number(numbers + FACTOR_READ + 32 * r) * load_number(numbers + FACTOR_KEY + 32 * r);
      good = good & (x >= 0) & (x <= 2);
    }
    good = __all_sync(0xffffffffu, good | (token / 2 != Fragment::column(lane) / 2));
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

  // The block's own pairs where one of the chunk decays much: of rows as they came, and all sums of decays.
  __device__ __forceinline__ void add_wide(float (&s)[32], bool of_pairs, int which) const {
    const bool narrow = load_number(shared.narrow() + 4 * which) > 0;
    float g[steps][4];
    __syncthreads();
    load_sums<false>(g);
    __syncthreads();
    join_sums(g);
    __syncthreads();
    store_raw(g);
    __syncthreads();
    if (!narrow && (of_pairs || Spec::erases)) add_own(s, of_pairs ? shared.queries() : shared.raw_keys(), which);
  }
  // What derives from the thread's number is computed anew: there are no registers to keep it.
  __device__ __forceinline__ TileMaker anew() const { return {p, shared, chain, chunk, warp, lane_anew()}; }
  __device__ __forceinline__ void make_chunk() const {
    float g[steps][4];
    touch(p.q), touch(p.k);
    load_sums<true>(g);
    __syncthreads();
    const Blocks of = join_sums(g);
    store_blocks(of);
    if constexpr (Shared::backward) store_sums(g);
    __syncthreads();  // a tile takes the place of sums of parts
    anew().make_tiles(g, of);
    if (Spec::erases && warp == 0) store_writes();
    __syncthreads();
  }
  __device__ __forceinline__ void run() const {
    const bool of_pairs = warp >= 4;
    const int which = warp % 4;
    float s[32];
    make_chunk();
    const bool narrow = all_narrow();
    if (of_pairs || Spec::erases) anew().multiply(s, of_pairs ? shared.queries() : shared.reads(), which);
    if (!narrow) anew().add_wide(s, of_pairs, which);
    if (Spec::erases) __syncthreads();  // the inverse is made in the place of tiles
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

// Blocks: one for each chunk of each value head, those that a chain begins with last: L2 still has them then.
template <class Spec, class Config>
LUATTN_FN void linear_make_tiles(const LuattnLinearParams &p, void *memory) {
  RowChunks<Config> at(p);
  at.number = at.count - 1 - at.number;
  const LinearChain<Config> chain = at.chain();
  const int chunk = at.chunk(chain);
  if (chunk >= chain.end || chain.state_row(p) < 0) return;
  TileMaker<Spec, Config>{p,     {shared_address(memory)},       chain,
                          chunk, int(uniform(threadIdx.x / 32)), int(threadIdx.x % 32)}
      .run();
}
