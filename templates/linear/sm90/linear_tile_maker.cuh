// linear/sm90/linear_tile_maker.cuh: luattn_linear_tiles: of each chunk whose decays differ between channels what the chains
// take (LinearTilesLayout), all chunks at once:
//
//     P_ij = scale q_i k_j' e^(G_i - G_j)  for j <= i     q e^G scale     k e^(GC - G)     e^GC
//
// of additive updates times w_j, and of those that erase, which have w by itself, also (I + A)^-1 with A_ij = r_i k_j' e^(..) for
// j < i, and r e^G. All have the factors of tokens, and are rounded.
//
// A block of eight warps takes chunks in turns. All make tiles of one; then four make P and four make A, 16 rows each, and the
// inverse. Those that are done first sum up the next chunk's decays meanwhile: loads of these take as long as an inverse. With G
// the sum of decays from the beginning of a token's block of 16, and E that of all of the block, rows are q e^G and k e^G, and keys
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
  static constexpr int k_dim = ceil_div(Config::k_dim, 64) * 64, bytes = layout.bytes, threads = 256,
                       blocks = LINEAR_MAKER_BLOCKS, groups = 0, tile = layout.qk / 4;
  static_assert(LinearSpec<Spec> && Spec::decay_of == DECAY_CHANNEL && Config::k_dim % 8 == 0 && k_dim <= 128);
  static_assert(blocks * (bytes + 1024) <= LUATTN_SM90_SHARED_BYTES + 1024);
  static_assert(2 * LINEAR_BOX + LINEAR_DIAGONAL <= layout.at_sums - layout.at_keys);

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ u32 queries() const { return start; }
  __device__ __forceinline__ u32 reads() const { return start + layout.at_reads; }
  // Keys of a block for rows of the same or a later one.
  __device__ __forceinline__ u32 keys(int rows, int block) const {
    return start + layout.at_keys + u32(rows * (rows + 1) / 2 + block) * tile;
  }
  __device__ __forceinline__ u32 raw_keys() const { return reads(); }
  __device__ __forceinline__ u32 parts(int which) const { return start + layout.at_keys + which * LINEAR_BOX; }
  __device__ __forceinline__ u32 diagonal(int block) const { return parts(2) + block * (16 * 80); }
  __device__ __forceinline__ u32 pairs() const { return queries(); }
  __device__ __forceinline__ u32 inverse() const { return reads(); }
  // Sums of decays from the beginning of a token's block, to the base of 2.
  __device__ __forceinline__ u32 sums() const { return start + layout.at_sums; }
  // Of chunks in turns: numbers of tokens, and where a chunk lies.
  __device__ __forceinline__ u32 numbers(int turn) const { return start + layout.at_numbers + turn * 1024; }
  __device__ __forceinline__ u32 place(int turn) const { return start + layout.at_places + turn * 32; }
};

template <class Spec, class Config>
struct TileMaker {
  using Shared = SharedMaker<Spec, Config>;
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  using Fragment = MmaFragment;
  using Tiles = BlockTiles<Elem, Shared::layout.row, Shared::k_dim>;
  using Triangles = LinearTriangles<Config, Shared::layout.row>;
  // A lane has 4 channels of `steps` tokens, one after another.
  static constexpr int k_dim = Shared::k_dim, block = 16, lanes = k_dim / 4, steps = LUATTN_CHUNK / 8 * lanes / 32;
  static constexpr bool by_query = Spec::has_query_factor,
                        by_key = Spec::has_key_factor || (Spec::has_write && !Spec::erases);

  const LuattnLinearParams &p;
  const Shared shared;
  const Chain &chain;
  const int chunk, turn, warp, lane;

  __device__ __forceinline__ unsigned char *made() const {
    return static_cast<unsigned char *>(p.kept.tiles) + chain.slot(p, chunk) * Shared::made.bytes;
  }
  __device__ __forceinline__ int channel() const { return lane % lanes * 4; }
  __device__ __forceinline__ int first_row() const { return (warp * (32 / lanes) + lane / lanes) * steps; }
  __device__ __forceinline__ int which() const { return warp / 2; }  // block of tokens
  __device__ __forceinline__ u32 numbers() const { return shared.numbers(turn); }

  // ---- load ----

  __device__ __forceinline__ const Elem *row_of(const LuattnTensor &from, int row, int channel) const {
    return static_cast<const Elem *>(from.data) + (Config::packed ? 0 : chain.entry * from.batch) +
           chain.site.h * from.head + i64(chain.start + chunk * LUATTN_CHUNK + row) * from.seq + channel;
  }
  // The lane's elements of its rows.
  struct Rows {
    u64 q[steps], k[steps];
  };
  __device__ __forceinline__ void load_rows(u64 (&x)[steps], const LuattnTensor &from) const {
    const int count = channel() < Config::k_dim ? chain.tokens - chunk * LUATTN_CHUNK - first_row() : 0;
    const Elem *at = row_of(from, first_row(), channel());
#pragma unroll
    for (int i = 0; i < steps; ++i, at += from.seq)
      x[i] = i < count ? __ldg(reinterpret_cast<const unsigned long long *>(at)) : 0;
  }
  __device__ __forceinline__ Rows load_rows() const {
    Rows x;
    load_rows(x.q, p.q), load_rows(x.k, p.k);
    return x;
  }

  // ---- decays, by four warps, each of a block of tokens ----

  // Brings a warp's 16 rows to L2: a lane has 64 channels of one.
  __device__ __forceinline__ void touch(const LuattnTensor &from, int which) const {
    const int row = which * block + lane % 16, channel = lane / 16 * 64;
    if (chain.has(chunk * LUATTN_CHUNK + row) && channel < Config::k_dim)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(row_of(from, row, channel)));
  }
  __device__ __forceinline__ void write_numbers() const {
    const auto x = TokenNumbers<Spec, Config>{p, chain, lane}.of_tokens(chunk);
    const float read[2] = {x.read[0] * x.column[0], x.read[1] * x.column[1]};
    const u32 at = numbers() + 8 * u32(lane);
    store_pair(at + FACTOR_QUERY, x.row), store_pair(at + FACTOR_KEY, x.column);
    store_pair(at + FACTOR_READ, read), store_pair(at + FACTOR_WRITE, x.write);
  }
  // Adjacent channels are in adjacent lanes: a lane has channels lane, lane + 32, ... Hooks are asked about tokens and channels
  // that exist, without branches, so that loads are under way together. Whole: all exist, which saves most of the instructions.
  template <bool Whole>
  __device__ __forceinline__ void add_up(int which) const {
    constexpr int apart = k_dim / 32, at_once = 8;
    const int first = chunk * LUATTN_CHUNK + which * block;
    const u32 to = shared.sums() + which * block * Shared::layout.row + lane * 4;
    float sum[apart] = {}, left = 0;
#pragma unroll
    for (int half = 0; half < block; half += at_once) {
      float x[at_once][apart], most[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i)
#pragma unroll
        for (int n = 0; n < apart; ++n) {
          const int t = first + half + i, d = lane + 32 * n;
          const float g = Whole ? Spec::decay(p, chain.site, t, d)
                                : Spec::decay(p, chain.site, chain.clamped(t), min_of(d, Config::k_dim - 1));
          const bool has = Whole || (chain.has(t) && d < Config::k_dim);
          const float decay = decay_within(g) * op_log2_e;
          x[i][n] = has ? decay : 0.f;
          most[i] = n == 0 ? decay : greater_of(most[i], decay);
        }
#pragma unroll
      for (int i = 0; i < at_once; ++i)
#pragma unroll
        for (int n = 0; n < apart; ++n) {
          sum[n] += x[i][n];
          store_number(to + (half + i) * Shared::layout.row + n * 128, sum[n]);
        }
      if constexpr (Spec::erases) {
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
          const float of_token = greatest_of_warp(most[i]);
          left += chain.has(first + half + i) ? of_token : 0.f;
        }
      }
    }
    if constexpr (Spec::erases) {
      float *const at = reinterpret_cast<float *>(made() + Shared::made.at_numbers + LINEAR_TILE_LEFT);
      if (lane == 0) at[which] = left;
    }
  }
  // For backward the block's rows of sums go to memory as they are.
  __device__ __forceinline__ void copy_sums(int which) const {
    constexpr int bytes = block * Shared::layout.row;
    fence_async();
    __syncwarp();
    if (elected()) {
      bulk_store(made() + Shared::made.at_factors + LINEAR_TILE_FACTORS + which * bytes, shared.sums() + which * bytes,
                 bytes, true);
      bulk_commit();
    }
  }
  __device__ __forceinline__ void sum_up(int which) const {
    touch(p.q, which), touch(p.k, which);
    if (which == 3) write_numbers();
    if (Config::k_dim % 64 == 0 && chain.has(chunk * LUATTN_CHUNK + LUATTN_CHUNK - 1))
      add_up<true>(which);
    else
      add_up<false>(which);
    if constexpr (Shared::backward) copy_sums(which);
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
  // What the lane's rows are multiplied by: decays of its channels over its own block, or where it is narrow what is left, what is left over the blocks before
  // it and behind it, over the next one and the one after that; and where they go: tiles in memory, and the keys' tiles for rows
  // of their own block, the next one, and so on.
  struct Part {
    float own[4], query[4], before[4], behind[4], over[2][4];
    unsigned char *made;
    u32 keys[4];
  };
  // Where all decays of a block lie.
  __device__ __forceinline__ u32 total_of(int b) const {
    return shared.sums() + (b * block + block - 1) * Shared::layout.row + channel() * 4;
  }
  // narrow: a bit for each block that is; of_chunk: what is left over the chunk.
  __device__ __forceinline__ Part find_part(int &narrow, float (&of_chunk)[4]) const {
    float all[4][4], behind[4], before[4];
    Part x;
    const Tiles tiles{shared.sums(), 0, lane};
    tiles.load_totals(all);
    Tiles::sum(before, behind, all, which());
    load_four(x.own, total_of(which()));
    load_four(x.over[0], total_of(min_of(which() + 1, 3))), load_four(x.over[1], total_of(min_of(which() + 2, 3)));
    narrow = 0;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      bool mine = true;
#pragma unroll
      for (int n = 0; n < 4; ++n) mine = mine && all[b][n] > -block_limit<Elem>;
      narrow |= __all_sync(0xffffffffu, mine) ? 1 << b : 0;
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      of_chunk[n] = fast_exp2(before[n] + x.own[n] + behind[n]);
      x.over[0][n] = fast_exp2(x.over[0][n]), x.over[1][n] = fast_exp2(x.over[1][n]);
      x.before[n] = fast_exp2(before[n]), x.behind[n] = fast_exp2(behind[n]);
      x.query[n] = x.before[n] * (by_query ? 1.f : p.scale);
    }
    x.made = made();
#pragma unroll
    for (int i = 0; i < 4; ++i) x.keys[i] = shared.keys(which() + i, which());
    return x;
  }
  // The lane's rows, which lie in one block. Narrow: the block is.
  template <bool Narrow>
  __device__ __forceinline__ void make_tiles(const Rows &rows, const Part &part) const {
    const u32 at = place(first_row(), channel()), in_tile = place(first_row() % block, channel()),
              box = channel() / 64 * (LINEAR_BOX - block * 128),
              sums = shared.sums() + first_row() * Shared::layout.row + channel() * 4;
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      float sum[4];
      load_four(sum, sums + i * Shared::layout.row);
      const u32 turned = u32(i * 16), further = u32(i * 128);
      make_row<Narrow>(rows.q[i], rows.k[i], i, (at ^ turned) + further, (in_tile ^ turned) - box + further, sum, part);
    }
  }
  // Token number i of the lane's, whose channels lie at `at` of boxes and `in_tile` of a tile of keys.
  template <bool Narrow>
  __device__ __forceinline__ void make_row(u64 q, u64 k, int i, u32 at, u32 in_tile, const float (&sum)[4],
                                           const Part &part) const {
    unsigned char *const to = part.made + at;
    const u32 numbers = this->numbers() + (first_row() + i) * 4;
    float left[4], x[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) left[n] = fast_exp2(sum[n]);
    decayed(x, q, left);
    store_four_halves(shared.queries() + at, packed(x));
    if constexpr (by_query)
      scale(x, part.query, load_number(numbers + FACTOR_QUERY));
    else
      scale(x, part.query);
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
    if constexpr (Narrow) {
#pragma unroll
      for (int n = 0; n < 4; ++n) left[n] = x[n] * part.own[n];
    } else {
#pragma unroll
      for (int n = 0; n < 4; ++n) left[n] = fast_exp2(part.own[n] - sum[n]);
      decayed(left, k, left);
    }
    store_keys(left, in_tile, part);
    if constexpr (by_key)
      scale(left, part.behind, load_number(numbers + FACTOR_KEY));
    else
      scale(left, part.behind);
    *reinterpret_cast<u64 *>(to + Shared::made.at_keys) = packed(left);
  }
  // A key to its block's end, for rows of each block behind.
  __device__ __forceinline__ void store_keys(const float (&key)[4], u32 in_tile, const Part &part) const {
    float x[4];
    if (which() < 3) store_four_halves(part.keys[1] + in_tile, packed(key));
    if (which() < 2) {
#pragma unroll
      for (int n = 0; n < 4; ++n) x[n] = key[n] * part.over[0][n];
      store_four_halves(part.keys[2] + in_tile, packed(x));
    }
    if (which() == 0) {
      scale(x, part.over[1]);
      store_four_halves(part.keys[3] + in_tile, packed(x));
    }
  }
  // What is left over the chunk, w, and for backward factors of tokens.
  __device__ __forceinline__ void store_numbers(const float (&of_chunk)[4]) const {
    float *const to = reinterpret_cast<float *>(made() + Shared::made.at_numbers);
    if (warp == 7 && lane < lanes)
      *reinterpret_cast<float4 *>(to + channel()) = {of_chunk[0], of_chunk[1], of_chunk[2], of_chunk[3]};
    if (Spec::erases && warp == 6) {
      const float2 write = load_pair(numbers() + FACTOR_WRITE + 8 * u32(lane));
      *reinterpret_cast<float2 *>(to + LINEAR_TILE_WRITES / 4 + 2 * lane) = write;
    }
    if constexpr (Shared::backward) {
      const u32 own = u32(warp * 32 + lane) * 4;
      *reinterpret_cast<float *>(made() + Shared::made.at_factors + own) = load_number(numbers() + own);
    }
  }
  // q and k as they came, in the place of the tiles.
  __device__ __forceinline__ void store_raw() const {
    const Rows rows = load_rows();
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      const u32 at = place(first_row() + i, channel());
      store_four_halves(shared.queries() + at, rows.q[i]);
      store_four_halves(shared.raw_keys() + at, rows.k[i]);
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
  // Pairs of a block that decays much, of rows as they came.
  __device__ __forceinline__ void add_own(float (&s)[32], u32 rows, int which) const {
    float own[8] = {};
    Triangles{rows, shared.raw_keys(), shared.sums(), which, lane}.add_block(own);
#pragma unroll
    for (int b = 0; b < 4; ++b)
      if (b == which)
#pragma unroll
        for (int i = 0; i < 8; ++i) s[8 * b + i] = own[i];
  }
  // Factors of rows and columns, and 0 above the diagonal: pairs are selected, never multiplied by 0.
  template <bool Below>
  __device__ __forceinline__ void weigh(float (&s)[32], int which) const {
    const u32 rows = numbers() + (Below ? FACTOR_READ : FACTOR_QUERY) + (which * block + Fragment::row(lane)) * 4,
              columns = numbers() + FACTOR_KEY + Fragment::column(lane) * 4;
    const float factor[2] = {load_number(rows), load_number(rows + 32)};
    const int behind = Fragment::row(lane) - Fragment::column(lane);
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      if (b > which) break;
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        float2 by = {1, 1};
        if constexpr (by_key) by = load_pair(columns + (b * block + Fragment::column_of(j)) * 4);
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            float &e = s[8 * b + Fragment::element(r, j + n)];
            const float x = by_key ? e * (factor[r] * (n == 0 ? by.x : by.y)) : e * factor[r];
            e = b < which || Fragment::column_of(j + n) - 8 * r + Below <= behind ? x : 0.f;
          }
      }
    }
  }
  // Whether r' k of each of the warp's tokens lies in [0, 2]: then I - k r' makes no vector longer (linear_tile_segments.cuh).
  __device__ __forceinline__ void find_shrinks(const float (&s)[32], int which) const {
    const int token = Fragment::row(lane);
    const u32 numbers = this->numbers() + (which * block + token) * 4;
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
      bulk_commit();
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

  // Which warps sum up decays of the next chunk: those that are done first.
  static constexpr int sums_warps = Spec::erases ? 4 : 0;
  __device__ __forceinline__ bool sums_decays() const { return warp / 4 == sums_warps / 4; }
  // What derives from the thread's number is computed anew: there are no registers to keep it.
  __device__ __forceinline__ TileMaker anew() const { return {p, shared, chain, chunk, turn, warp, lane_anew()}; }

  // The block's own pairs where one of the chunk decays much: of rows as they came.
  __device__ __forceinline__ void add_wide(float (&s)[32], bool of_pairs, int narrow, int which) const {
    __syncthreads();
    store_raw();
    __syncthreads();
    if ((narrow >> which & 1) == 0 && (of_pairs || Spec::erases))
      add_own(s, of_pairs ? shared.queries() : shared.raw_keys(), which);
    __syncthreads();  // others may write sums
  }
  // Returns which blocks are narrow.
  __device__ __forceinline__ int make_chunk(const Rows &rows) const {
    float of_chunk[4];
    int narrow;
    Part part = find_part(narrow, of_chunk);
    store_numbers(of_chunk);
    if (narrow >> which() & 1) {
#pragma unroll
      for (int n = 0; n < 4; ++n) part.own[n] = fast_exp2(part.own[n]);
      make_tiles<true>(rows, part);
    } else {
      make_tiles<false>(rows, part);
    }
    return narrow;
  }
  // P, or the inverse.
  __device__ __forceinline__ void finish(float (&s)[32], bool of_pairs, int which) const {
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
  // Of a chunk whose decays are summed up.
  __device__ __forceinline__ void run() const {
    const bool of_pairs = warp >= 4;
    const int which = warp % 4;
    float s[32];
    const Rows rows = load_rows();
    if (elected()) bulk_wait_read();
    __syncthreads();
    const int narrow = make_chunk(rows);
    __syncthreads();
    const TileMaker now = anew();
    if (of_pairs || Spec::erases) now.multiply(s, of_pairs ? shared.queries() : shared.reads(), which);
    if (narrow != 15) now.add_wide(s, of_pairs, narrow, which);
    if (Spec::erases) __syncthreads();  // the inverse is made in the place of tiles
    now.finish(s, of_pairs, which);
  }
};

// Blocks: as many as are at once, or fewer. Those that a chain begins with come last: L2 still has them then.
template <class Spec, class Config>
LUATTN_FN void linear_make_tiles(const LuattnLinearParams &p, void *memory) {
  using Maker = TileMaker<Spec, Config>;
  using Place = ChunkPlace<Config>;
  const SharedMaker<Spec, Config> shared{shared_address(memory)};
  const int warp = int(uniform(threadIdx.x / 32));
  Place at = Place::last(p);
  // Sums up decays of the chunk, and finds the one after it.
  const auto prepare = [&](const Place &next, int turn) {
    const LinearChain<Config> chain = next.chain();
    const Maker maker{p, shared, chain, next.chunk, turn, warp, lane_anew()};
    if (!maker.sums_decays()) return;
    if (next.number >= 0) maker.sum_up(warp % 4);
    if (warp % 4 == 3) next.preceding(p).store(shared.place(turn ^ 1));
  };
#pragma unroll 1
  for (int turn = 0;; turn ^= 1) {
    prepare(at, turn);
    if (at.number < 0) break;
    const LinearChain<Config> chain = at.chain();
    Maker{p, shared, chain, at.chunk, turn, warp, lane_anew()}.run();
    at = Place::load(shared.place(turn ^ 1));
  }
  if (elected()) bulk_wait_read();
}
