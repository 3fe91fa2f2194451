// around/cache/append_modified.cuh: luattn_append with AppendMods: new rows go through a spec's mods on their way to
// the cache (LuattnAppendParams).
//
// Grid (threads for the larger of k and v / append_threads, 2): as in around/cache/append.cuh, but that a thread has
// the vectors of up to append_heads heads of one row, so that what a mod reads of inputs is read once for them. It
// loads them before it looks up where the row goes.
#pragma once
#include "around/cache/append.cuh"
#include "around/row_mods.cuh"

static constexpr int append_heads = 4;

// What a thread has: every `step`-th head, from `head` on, of `row`, which is the row among those of all entries. Heads
// next to one another belong to threads next to one another, as their memory does.
struct AppendShare {
  u32 row;
  int head, step, vector;

  template <u32 Vectors>
  LUATTN_FN bool take(const LuattnAppend &p, AppendShare &share) {
    const u32 index = blockIdx.x * append_threads + threadIdx.x, number = index / Vectors,
              row = quotient(number, p.groups);
    if (row >= u32(p.total)) return false;
    share = {row, int(number - row * p.groups.d), int(p.groups.d), int(index - number * Vectors)};
    return true;
  }
  // Whether there is an h-th.
  __device__ __forceinline__ bool has(const LuattnAppend &p, int h) const {
    return head + h * step < int(p.heads_kv.d);
  }
  template <class Elem>
  __device__ __forceinline__ const Elem *source(const LuattnAppend &p, int which) const {
    const LuattnTensor &from = p.from[which];
    if (p.cu_seqlens != nullptr) return row_of<const Elem>(from, 0, head, int(row));
    const u32 entry = quotient(row, p.rows);
    return row_of<const Elem>(from, int(entry), head, int(row - entry * p.rows.d));
  }
};

// Where row `number` of all entries goes.
LUATTN_FN AppendPlace append_place(const LuattnAppend &p, u32 number) {
  const int entry = p.cu_seqlens != nullptr ? entry_of_row(p.cu_seqlens, p.batch, int(number))
                                            : int(quotient(number, p.rows)),
            first = p.cu_seqlens != nullptr ? p.cu_seqlens[entry] : entry * int(p.rows.d);
  return {p, entry, int(number) - first};
}

template <class Piece, int Width, class Elem>
LUATTN_FN void append_pieces(const LuattnAppend &p, int which) {
  constexpr int each = sizeof(Piece) / sizeof(Elem);
  AppendShare share;
  if (!AppendShare::take<Width / each>(p, share)) return;
  const LuattnTensor &from = p.from[which], &to = p.to[which];
  const Elem *source = share.source<Elem>(p, which) + share.vector * each;
  Piece x[append_heads];
#pragma unroll
  for (int h = 0; h < append_heads; ++h)
    if (share.has(p, h)) x[h] = *reinterpret_cast<const Piece *>(source + h * share.step * from.head);
  const AppendPlace place = append_place(p, share.row);
  if (!place.exists) return;
  Elem *target = row_of<Elem>(to, place.page, share.head, place.row) + share.vector * each;
#pragma unroll
  for (int h = 0; h < append_heads; ++h)
    if (share.has(p, h)) *reinterpret_cast<Piece *>(target + h * share.step * to.head) = x[h];
}

template <int Width, class Elem>
LUATTN_FN void append_unmodified(const LuattnAppend &p, int which) {
  if constexpr (Width * sizeof(Elem) % 16 == 0)
    if (allows_16_bytes<Elem>(p.from[which]) && allows_16_bytes<Elem>(p.to[which]))
      return append_pieces<uint4, Width, Elem>(p, which);
  append_pieces<Elem, Width, Elem>(p, which);
}

// Indices of inputs are clamped to the most rows that an entry may have, so that what a row becomes does not depend on
// those that come with it.
LUATTN_FN Site append_site(const LuattnAppendParams &p, int entry, int head) {
  Site site(entry, head, 0, Site::longest_kv(p));
#ifdef LUATTN_PACKED_INPUTS
  site.first_q = site.first_kv = 0;
#endif
  site.load_offsets(p);
  return site;
}

// The vector `v` of one head's row, and others that a mod of it reads.
template <class Mods, int Which, class Elem>
struct AppendVector {
  static constexpr int n = per_access<Elem>;
  Pack<Elem, n> x;
  __device__ __forceinline__ void load(const Elem *row, int v) { x.load(row + v * n); }
  template <class Real>
  __device__ __forceinline__ Pack<Elem, n> modified(const LuattnParams &p, const Site &site, int i, int v) {
    Pack<Elem, n> y;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const int d = v * n + j;
      if constexpr (Which == WHICH_K)
        y[j] = from_real<Elem>(Mods::key_mod(p, site, Real(to_real(x[j])), i, d));
      else
        y[j] = from_real<Elem>(Mods::value_mod(p, site, Real(to_real(x[j])), i, d));
    }
    return y;
  }
};
template <class Mods, int Which, class Elem>
  requires reads_row<Mods, Which>
struct AppendVector<Mods, Which, Elem> {
  using Row = RowMapOf<Mods, Which>;
  static constexpr int n = Row::width;
  RowVectors<Row, Elem> x;
  __device__ __forceinline__ void load(const Elem *row, int v) {
    x.load(v, [&](Pack<Elem, n> &to, int d) { to.load(row + d); });
  }
  template <class Real>
  __device__ __forceinline__ Pack<Elem, n> modified(const LuattnParams &p, const Site &site, int i, int v) {
    Pack<Elem, n> y;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const auto row = row_values<Row, Real>(x, v, j, [](int) { return Real(0); });
      y[j] = from_real<Elem>(apply_row_mod<Mods, Which>(p, site, to_real(x.own[j]), row, i, v * n + j));
    }
    return y;
  }
};

// The heads of a thread that are loaded at once: as many as fit into registers.
template <class Mods, int Which>
LUATTN_FN constexpr int append_together() {
  if constexpr (reads_row<Mods, Which>) return row_heads<RowMapOf<Mods, Which>> == 1 ? 1 : append_heads;
  return append_heads;
}

template <class Mods, int Which, int Width, class Elem>
LUATTN_FN void append_modified(const LuattnAppendParams &params) {
  using Vector = AppendVector<Mods, Which, Elem>;
  constexpr int together = append_together<Mods, Which>(), which = Which == WHICH_K ? 0 : 1, n = Vector::n;
  constexpr int each = per_access<Elem> / n;  // vectors of a thread: above 1 where a mod takes those of 16 bytes apart
  const LuattnAppend &p = params.append;
  AppendShare share;
  if (!AppendShare::take<Width / per_access<Elem>>(p, share)) return;
  const LuattnTensor &from = p.from[which], &to = p.to[which];
  const Elem *source = share.source<Elem>(p, which);
#pragma unroll 1
  for (int i = 0; i < append_heads * each; i += together) {
    const int first = i % append_heads, v = share.vector * each + i / append_heads;
    if (!share.has(p, first)) continue;
    Vector x[together];
#pragma unroll
    for (int h = 0; h < together; ++h)
      if (share.has(p, first + h)) x[h].load(source + (first + h) * share.step * from.head, v);
    const AppendPlace place = append_place(p, share.row);
    if (!place.exists) return;
    Elem *target = row_of<Elem>(to, place.page, share.head, place.row) + v * n;
#pragma unroll
    for (int h = 0; h < together; ++h) {
      if (!share.has(p, first + h)) break;
      const int head = share.head + (first + h) * share.step;
      const Site site = append_site(params, place.entry, head);
      x[h].template modified<typename Mods::Real>(params, site, place.position, v)
          .store(target + (first + h) * share.step * to.head);
    }
  }
}

template <class Mods, class Config>
LUATTN_FN void append_rows(const LuattnAppendParams &p) {
  using Elem = typename Config::Elem;
  if (blockIdx.y == 0) {
    if constexpr (bool(Mods::has_key_mod))
      append_modified<Mods, WHICH_K, Config::head_dim, Elem>(p);
    else
      append_unmodified<Config::head_dim, Elem>(p.append, 0);
  } else {
    if constexpr (bool(Mods::has_value_mod))
      append_modified<Mods, WHICH_V, Config::head_dim_v, Elem>(p);
    else
      append_unmodified<Config::head_dim_v, Elem>(p.append, 1);
  }
}
