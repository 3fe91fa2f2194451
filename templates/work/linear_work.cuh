// work/linear_work.cuh: which part of a linear attention a block computes: the chunks of one segment of one entry and value
// head, for a block of value channels; and where their tokens lie. Of kernels that compute chunks by themselves: which ones.
#pragma once
#include "arch/mma.cuh"
#include "arch/tensor_box.cuh"
#include "contract/linear.cuh"

template <class Config>
struct BoxKind {
  using Type = RowBox;
};
template <class Config>
  requires(Config::packed)
struct BoxKind<Config> {
  using Type = PackedRowBox;
};

// The first block of its kernel.
LUATTN_FN bool is_first_block() { return blockIdx.x == 0; }

// For overloads.
template <bool Value>
struct Truth {};

// Whether a block has two value heads, one after the other, of a head of q and k; its site is the first one's.
template <class Config>
concept TwoHeads = requires { requires Config::two_heads; };

template <class Config>
struct LinearChain {
  static constexpr int chunk = LUATTN_CHUNK, v_blocks = ceil_div(Config::v_dim, Config::v_block);
  // Over pairs j >= i; chunks from the last one.
  static constexpr bool mirrored = Config::pass == LINEAR_GRAD_K || Config::pass == LINEAR_GRAD_V,
                        backwards = mirrored || Config::pass == LINEAR_GRAD_STATES;
  using Box = typename BoxKind<Config>::Type;

  LinearSite site;
  int entry, segment, first_value;  // the first of the block's value channels
  bool of_map = false;              // these are channels of a segment's map
  bool turned = false;              // its chunks are taken in the other order: sums do not ask for one
  int start, tokens;                // the first row of the entry; its tokens
  int begin, end;                   // chunks of the segment

  static constexpr int map_blocks = ceil_div(Config::k_dim, Config::v_block);

  // The block's segment is one of `segments`, which are the call's, or those of a kernel that leaves out the last one. With
  // Maps there are blocks for channels of maps, too, behind all others: they end at once where maps count as 0.
  template <bool Maps>
  __device__ __forceinline__ LinearChain(const LuattnLinearParams &p, int segments, Truth<Maps>) {
    u32 n = blockIdx.x;
    const u32 of_values = u32(p.entries) * u32(p.heads_v) * u32(segments) * v_blocks;
    of_map = Maps && n >= of_values;
    if (of_map) n -= of_values;
    const u32 blocks = of_map ? map_blocks : v_blocks;
    first_value = int(n % blocks) * Config::v_block, n /= blocks;
    segment = int(n % u32(segments)), n /= u32(segments);
    constexpr u32 of_block = TwoHeads<Config> ? 2 : 1;
    const u32 heads = u32(p.heads_v) / of_block;
    take(p, int(n / heads), int(n % heads * of_block));
    const int chunks = ceil_div(tokens, chunk);
    const int each = int(u32(chunks) / u32(p.segments.count)), more = chunks - each * p.segments.count;
    const int place = backwards ? p.segments.count - 1 - segment : segment;
    begin = place * each + min_of(place, more);
    end = begin + each + (place < more);
    if (of_map && segment == 0) end = begin;
  }
  // A whole entry.
  __device__ __forceinline__ LinearChain(const LuattnLinearParams &p, int entry, int hv)
      : segment(0), first_value(0), begin(0) {
    take(p, entry, hv);
    end = ceil_div(tokens, chunk);
  }
  // The same, of which all is known.
  __device__ __forceinline__ LinearChain(const LinearSite &site, int tokens)
      : site(site),
        entry(site.b),
        segment(0),
        first_value(0),
        start(site.first),
        tokens(tokens),
        begin(0),
        end(ceil_div(tokens, chunk)) {}
  // Leaves out all chunks of the segment but the last `count`, in the order of the pass.
  __device__ __forceinline__ void keep_last(int count) {
    if constexpr (backwards)
      end = begin + count;
    else
      begin = end - count;
  }
  // The chunks of the segment, in the order of the pass, or turned.
  __device__ __forceinline__ int chunks() const { return end - begin; }
  __device__ __forceinline__ int at(int n) const { return backwards != turned ? end - 1 - n : begin + n; }
  // The heads of query and key, and of value; o has site.hv.
  static constexpr bool of_v = Config::pass == LINEAR_GRAD_Q || Config::pass == LINEAR_GRAD_K;
  __device__ __forceinline__ int key_head() const { return of_v ? site.hv : site.h; }
  __device__ __forceinline__ int value_head() const { return of_v ? site.h : site.hv; }
  // How many blocks there are, for the host: entries * heads_v * segments * v_blocks, or (v_blocks + map_blocks).

  // Negative: the entry has no state.
  __device__ __forceinline__ int state_row(const LuattnLinearParams &p) const {
    return p.state_rows == nullptr ? entry : __ldg(p.state_rows + entry);
  }
  // The number of a chunk of the value head among what is kept of all.
  __device__ __forceinline__ i64 slot(const LuattnLinearParams &p, int at) const {
    return i64(linear_first_slot(entry, start, p.tokens, Config::packed) + at) * p.heads_v + site.hv;
  }
  // The place of a token among numbers of all entries.
  __device__ __forceinline__ i64 token(const LuattnLinearParams &p, int t) const {
    return ((Config::packed ? i64(start) : i64(entry) * p.tokens) + t) * p.heads_v + site.hv;
  }
  __device__ __forceinline__ bool has(int t) const { return t < tokens; }
  // For hooks: a token that exists in place of one that does not.
  __device__ __forceinline__ int clamped(int t) const { return min_of(t, tokens - 1); }
  // Of packed rows as in work/sequence.cuh: TMA clips the box at the entry's end.
  __device__ __forceinline__ Box box(int at) const {
    if constexpr (Config::packed)
      return {(1 << LUATTN_WRAP_LOG2) - tokens + at * chunk, start + tokens};
    else
      return {at * chunk, entry};
  }
  // The number of the segment among those of all entries and heads.
  __device__ __forceinline__ i64 number(const LuattnLinearParams &p, int segment) const {
    return (i64(entry) * p.heads_v + site.hv) * p.segments.count + segment;
  }

 private:
  __device__ __forceinline__ void take(const LuattnLinearParams &p, int of_entry, int hv) {
    entry = of_entry, start = 0, tokens = p.tokens;
    if constexpr (Config::packed) {
      start = row_within(__ldg(p.cu_seqlens + entry), p.tokens);
      tokens = max_of(row_within(__ldg(p.cu_seqlens + entry + 1), p.tokens) - start, 0);
    }
    site = {entry, hv, hv / p.group, start};
  }
  LUATTN_FN int row_within(int row, int total) { return max_of(min_of(row, total), 0); }
};

// The chunks of all entries and value heads that a block computes, one after another; OfKeys: of all heads of q and k, by
// the first value head of each. Roles that wait for others skip the same ones: slots without a chunk, and entries that are left
// alone, whose gradients are 0.
template <class Config, bool OfKeys = false>
struct RowChunks {
  const LuattnLinearParams &p;
  int number, count, steps = 0;  // steps: chunks done

  __device__ __forceinline__ explicit RowChunks(const LuattnLinearParams &p)
      : p(p), number(int(blockIdx.x)), count(linear_chunk_slots(p.entries, p.tokens, Config::packed) * heads()) {}
  __device__ __forceinline__ int heads() const { return OfKeys ? p.heads : p.heads_v; }
  __device__ __forceinline__ bool more() const { return number < count; }
  __device__ __forceinline__ int head() const { return int(u32(number) % u32(heads())) * (OfKeys ? p.group : 1); }
  // Of dense entries the first chunks of all come first: the chain before has written theirs last.
  __device__ __forceinline__ int slot() const {
    const int n = int(u32(number) / u32(heads()));
    if constexpr (Config::packed) return n;
    return entry() * ceil_div(p.tokens, LUATTN_CHUNK) + int(u32(n) / u32(p.entries));
  }
  // The last entry whose slots begin at the chunk's, or before it.
  __device__ __forceinline__ int entry() const {
    if constexpr (!Config::packed) return int(u32(number) / u32(heads()) % u32(p.entries));
    int low = 0, high = p.entries - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_slot(middle) <= slot())
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  __device__ __forceinline__ LinearChain<Config> chain() const { return {p, entry(), head()}; }
  // The chunk's number in its entry; one past its end where the slot is empty.
  __device__ __forceinline__ int chunk(const LinearChain<Config> &chain) const {
    return slot() - linear_first_slot(chain.entry, chain.start, p.tokens, Config::packed);
  }
  __device__ __forceinline__ void next() { number += int(gridDim.x); }
  // Goes on to one that has a chunk, of an entry that is not left alone.
  __device__ __forceinline__ void seek() {
#pragma unroll 1
    for (; more(); next()) {
      const LinearChain<Config> of = chain();
      if (chunk(of) < of.end && of.state_row(p) >= 0) break;
    }
  }

 private:
  __device__ __forceinline__ int first_slot(int entry) const {
    const int first = max_of(min_of(__ldg(p.cu_seqlens + entry), p.tokens), 0);
    return linear_first_slot(entry, first, p.tokens, true);
  }
};

// Calls `step` with each chunk of the block: its chain, its number in it, and how many the block has done.
template <class Config, class Step>
__device__ __forceinline__ void for_each_chunk(const LuattnLinearParams &p, const Step &step) {
  int done = 0;
#pragma unroll 1
  for (RowChunks<Config> at(p); at.more(); at.next()) {
    const LinearChain<Config> chain = at.chain();
    const int chunk = at.chunk(chain);
    if (chunk >= chain.end || chain.state_row(p) < 0) continue;
    step(chain, chunk, done++);
  }
}

// One of these, found by a warp, which tells all others in shared memory.
template <class Config>
struct ChunkPlace {
  int number, chunk;  // as of RowChunks; of the entry
  LinearSite site;
  int tokens;

  __device__ __forceinline__ static ChunkPlace first(const LuattnLinearParams &p) { return find(p, int(blockIdx.x)); }
  __device__ __forceinline__ ChunkPlace following(const LuattnLinearParams &p) const {
    return find(p, number + int(gridDim.x));
  }
  // From the last one on; number is negative behind the first.
  __device__ __forceinline__ static ChunkPlace last(const LuattnLinearParams &p) {
    return find_down(p, RowChunks<Config>(p).count - 1 - int(blockIdx.x));
  }
  __device__ __forceinline__ ChunkPlace preceding(const LuattnLinearParams &p) const {
    return find_down(p, number - int(gridDim.x));
  }
  __device__ __forceinline__ static ChunkPlace load(u32 from) {
    const uint4 x = load_shared_16(from), y = load_shared_16(from + 16);
    return {int(x.x), int(x.y), {int(x.z), int(x.w), int(y.x), int(y.y)}, int(y.z)};
  }
  __device__ __forceinline__ void store(u32 to) const {
    const int x[] = {number, chunk, site.b, site.hv, site.h, site.first, tokens};
#pragma unroll
    for (int i = 0; i < 7; ++i) store_shared(to + 4 * i, u32(x[i]));
  }
  __device__ __forceinline__ LinearChain<Config> chain() const { return {site, tokens}; }

 private:
  // The next chunk from `number` on, downwards.
  __device__ __forceinline__ static ChunkPlace find_down(const LuattnLinearParams &p, int number) {
    RowChunks<Config> at(p);
#pragma unroll 1
    for (at.number = number; at.number >= 0; at.number -= int(gridDim.x)) {
      const LinearChain<Config> chain = at.chain();
      const int chunk = at.chunk(chain);
      if (chunk < chain.end && chain.state_row(p) >= 0) return {at.number, chunk, chain.site, chain.tokens};
    }
    return {-1, 0, {0, 0, 0, 0}, 0};
  }
  // The next chunk from `number` on.
  __device__ __forceinline__ static ChunkPlace find(const LuattnLinearParams &p, int number) {
    RowChunks<Config> at(p);
    at.number = number;
    at.seek();
    if (!at.more()) return {at.number, 0, {0, 0, 0, 0}, 0};
    const LinearChain<Config> chain = at.chain();
    return {at.number, at.chunk(chain), chain.site, chain.tokens};
  }
};

// 16 value channels of an entry and value head.
template <class Config>
struct JoinBlock {
  static constexpr int parts = ceil_div(Config::v_dim, LINEAR_JOIN_VALUES);
  LinearChain<Config> chain;
  int first;
  __device__ __forceinline__ explicit JoinBlock(const LuattnLinearParams &p)
      : chain(p, int(blockIdx.x / parts / u32(p.heads_v)), int(blockIdx.x / parts % u32(p.heads_v))),
        first(int(blockIdx.x % parts) * LINEAR_JOIN_VALUES) {}
};

// A segment of an entry and value head that is not its first one.
template <class Config>
struct LaterSegment {
  LinearChain<Config> chain;
  int segment;
  __device__ __forceinline__ explicit LaterSegment(const LuattnLinearParams &p)
      : LaterSegment(p, blockIdx.x / u32(p.segments.count - 1)) {}

 private:
  __device__ __forceinline__ LaterSegment(const LuattnLinearParams &p, u32 head)
      : chain(p, int(head / u32(p.heads_v)), int(head % u32(p.heads_v))),
        segment(1 + int(blockIdx.x % u32(p.segments.count - 1))) {}
};
