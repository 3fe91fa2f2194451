// work/positions.cuh: positions along one line, which the sequences of work/sequence.cuh have: the first q_end(p) of
// queries exist, and the first kv_end(p) of keys.
//
// A tile may reach past them. Kernels ask a Sequence which positions exist, where their rows are, and what to ask hooks
// about instead of a position that does not exist. They compare no position with a length: those of a sequence with
// several axes may be missing anywhere in a tile.
#pragma once
#include "ops/hook_types.cuh"

// Positions from one on, which then is 0, that exist.
struct LineRest {
  int count;
  __device__ __forceinline__ bool has(const int &position) const { return position < count; }
};

// Rows of one head of a tensor, `seq` elements apart.
template <class Elem>
struct LineRows {
  enum : bool { is_line = true };  // a copy may step from row to row
  Elem *data;                      // row 0; for addresses that are not read, too
  i64 seq;
  int len;

  __device__ __forceinline__ bool has(const int &position) const { return position < len; }
  // Whether there is a row from `position` on.
  __device__ __forceinline__ bool any_from(const int &position) const { return position < len; }
  __device__ __forceinline__ Elem *row(const int &position) const { return data + position * seq; }
  __device__ __forceinline__ Elem *element(const int &position, int d) const { return data + (position * seq + d); }
  // The same by `stride`, that of the rows' tensor, read again: it then costs no registers.
  __device__ __forceinline__ Elem *element(int position, int d, long long stride) const {
    return data + position * stride + d;
  }
  // The row if it `exists`, else an address in the tensor.
  __device__ __forceinline__ Elem *row_if(bool exists, const int &position) const {
    return data + (exists ? position * seq : 0);
  }
  // The position, or one that exists in its place. Requires any_from(0).
  __device__ __forceinline__ int clamped(const int &position) const { return min_of(position, len - 1); }
  // Counts positions from `first` on: row 0 is row `first` of this. With `exist` false no row exists.
  __device__ __forceinline__ LineRows from(const int &first) const { return {data + first * seq, seq, len - first}; }
  __device__ __forceinline__ LineRows if_all(bool exist) const { return {data, seq, exist ? len : 0}; }
};

// A Site whose positions lie along lines.
struct LineSite : Site {
  enum : bool { is_line = true };
  using Site::Site;

  // A tile of keys of forward's walk, which a Sequence alone takes apart: here its number. A key of such a tile, and the
  // same with an offset that is a constant, for hooks. `key + n` is the key n columns on in the tile of `key`.
  using KeyTile = int;
  using Key = int;
  using KeyPlace = Position;
  template <int Size>
  LUATTN_FN Key first_key(KeyTile tile) {
    return tile * Size;
  }

  // False, which no compiler knows.
  __device__ __forceinline__ bool never() const { return q_len < 0; }
  __device__ __forceinline__ bool has_query(const LuattnParams &, const int &position) const {
    return position < q_len;
  }
  __device__ __forceinline__ bool has_key(const LuattnParams &, const int &position) const { return position < kv_len; }
  // Whether `count` positions from `first` on all exist.
  __device__ __forceinline__ bool has_queries(const LuattnParams &, const int &first, int count) const {
    return first + count <= q_len;
  }
  __device__ __forceinline__ bool has_keys(const LuattnParams &, const int &first, int count) const {
    return first + count <= kv_len;
  }
  // Where positions end, as q_end and kv_end of a sequence, from registers.
  __device__ __forceinline__ int kept_q_end(const LuattnParams &) const { return q_len; }
  __device__ __forceinline__ int kept_kv_end(const LuattnParams &) const { return kv_len; }
  // The last of these positions that exists. Requires that the first does.
  __device__ __forceinline__ int last_query(const LuattnParams &, const int &first, int count) const {
    return min_of(first + count, q_len) - 1;
  }
  __device__ __forceinline__ int last_key(const LuattnParams &, const int &first, int count) const {
    return min_of(first + count, kv_len) - 1;
  }
  // The position, or one that exists in its place: for hooks of scores that are computed and not used.
  __device__ __forceinline__ int clamped_query(const LuattnParams &, const int &position) const {
    return min_of(position, q_len - 1);
  }
  __device__ __forceinline__ int clamped_key(const LuattnParams &, const int &position) const {
    return min_of(position, kv_len - 1);
  }
  // The keys; those for a query, which are none if it does not exist. `position < keys` says whether one is among them:
  // where they end, or of another type than int an operator. Those from a position on.
  using Keys = int;
  __device__ __forceinline__ Keys keys(const LuattnParams &) const { return kv_len; }
  __device__ __forceinline__ Keys queries(const LuattnParams &) const { return q_len; }  // likewise
  __device__ __forceinline__ Keys keys_of(const LuattnParams &p, const int &query) const {
    return has_query(p, query) ? kv_len : 0;
  }
  __device__ __forceinline__ LineRest keys_from(const LuattnParams &, const int &first) const {
    return {kv_len - first};
  }
};

// A sequence along lines of which the same is asked, by ends that are read from the constant bank at each use, so that
// they cost no register.
template <class Sequence>
struct RereadEnds {
  const Sequence site;  // its place; a reference would keep NVVM from taking sites apart

  __device__ __forceinline__ bool has_query(const LuattnParams &p, const int &position) const {
    return position < site.q_end(p);
  }
  __device__ __forceinline__ bool has_key(const LuattnParams &p, const int &position) const {
    return position < site.kv_end(p);
  }
  __device__ __forceinline__ bool has_queries(const LuattnParams &p, const int &first, int count) const {
    return first + count <= site.q_end(p);
  }
  __device__ __forceinline__ bool has_keys(const LuattnParams &p, const int &first, int count) const {
    return first + count <= site.kv_end(p);
  }
  __device__ __forceinline__ int clamped_query(const LuattnParams &p, const int &position) const {
    return min_of(position, site.q_end(p) - 1);
  }
  __device__ __forceinline__ int clamped_key(const LuattnParams &p, const int &position) const {
    return min_of(position, site.kv_end(p) - 1);
  }
  __device__ __forceinline__ int keys(const LuattnParams &p) const { return site.kv_end(p); }
  __device__ __forceinline__ int keys_of(const LuattnParams &p, const int &query) const {
    return query < site.q_end(p) ? site.kv_end(p) : 0;
  }
  __device__ __forceinline__ LineRest keys_from(const LuattnParams &p, const int &first) const {
    return {site.kv_end(p) - first};
  }
  template <class Elem>
  __device__ __forceinline__ LineRows<Elem> q_rows(const LuattnParams &p, const LuattnTensor &t) const {
    return {site.template q_row<Elem>(p, t, 0), t.seq, site.q_end(p)};
  }
  template <class Elem>
  __device__ __forceinline__ LineRows<Elem> kv_rows(const LuattnParams &p, const LuattnTensor &t, int h_kv) const {
    static_assert(!Sequence::paged);
    return {site.template kv_row<Elem>(p, t, h_kv, 0), t.seq, site.kv_end(p)};
  }
};
