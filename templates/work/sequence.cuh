// work/sequence.cuh: one head of one batch entry: its lengths, and where its rows are in tensors, in arrays
// with one number per row, and for TMA. Positions are relative to the entry and begin at 0.
//
//   DenseSequence    entries have equal lengths, and tensors a batch axis
//   PackedSequence   entries follow one another along the position axis (LuattnPacked)
//   PagedSequence    queries are those of one of these; keys are in pages (LuattnPaging). Forward alone
//
// Nothing past an entry's end is read or written: the TMA descriptor ends there, and other copies compare
// positions with the entry's lengths. Hooks see only the Site base of a sequence, which does not say where
// rows are, but where they read inputs along them (LUATTN_PACKED_INPUTS).
//
// Backward's arrays in the workspace have the rows of each head in an Order (PlainRows, or one of
// sink/dq_acc.cuh), which also gives their number. Those of packed entries follow one another; where an order has
// groups of rows, each entry begins with a group (workspace_packed_rows). Those of dk and dv have rows of keys
// likewise. Arrays are passed by reference, and numbers are computed in the order in which they are declared, for
// ptxas.
#pragma once
#include "abi/workspace.h"
#include "arch/divisor.cuh"
#include "arch/tensor.cuh"
#include "arch/tensor_box.cuh"
#include "ops/hook_types.cuh"
#include "work/dense_arrays.cuh"

struct DenseSequence : DenseArrays<DenseSequence, LineSite> {
  using Params = LuattnParams;
  enum : bool { packed = false, paged = false };
  enum : int { first_q = 0, first_kv = 0 };  // rows before the entry's: tensors have a batch axis
  DenseSequence() = default;
  // For PagedSequence, which knows the number of keys.
  __device__ __forceinline__ DenseSequence(const LuattnParams &p, int b, int h, int keys)
      : DenseArrays(b, h, p.shape.q_len, keys) {
#ifdef LUATTN_PACKED_INPUTS
    Site::first_q = Site::first_kv = 0;
#endif
    load_offsets(p);
  }
  __device__ __forceinline__ DenseSequence(const LuattnParams &p, int b, int h)
      : DenseArrays(b, h, p.shape.q_len, p.shape.kv_len) {
    load_offsets(p);
  }
  // Goes on to a head of another entry, which has the same lengths.
  __device__ __forceinline__ void move_to(const LuattnParams &p, int entry, int head) {
    b = entry;
    h = head;
    load_offsets(p);
  }

  // Where positions end, and rows of accumulators, read from the constant bank at each use.
  LUATTN_FN int q_end(const LuattnParams &p) { return p.shape.q_len; }
  LUATTN_FN int kv_end(const LuattnParams &p) { return p.shape.kv_len; }
  __device__ __forceinline__ RereadEnds<DenseSequence> reread() const { return {*this}; }
  // Another head of the same entry.
  __device__ __forceinline__ DenseSequence of_head(const LuattnParams &p, int head) const {
#ifdef LUATTN_CHUNKS
    DenseSequence made = *this;  // in the same chunks
    made.h = head;
    return made;
#else
    return {p, b, head};
#endif
  }

  // The row of a position in a tensor of queries, and in a tensor of keys; all rows of this head.
  template <class Elem>
  __device__ __forceinline__ Elem *q_row(const LuattnParams &, const LuattnTensor &t, int position) const {
    return static_cast<Elem *>(t.data) + b * t.batch + h * t.head + position * t.seq;
  }
  template <class Elem>
  __device__ __forceinline__ Elem *kv_row(const LuattnParams &, const LuattnTensor &t, int h_kv, int position) const {
    return static_cast<Elem *>(t.data) + b * t.batch + h_kv * t.head + position * t.seq;
  }
  template <class Elem>
  __device__ __forceinline__ LineRows<Elem> q_rows(const LuattnParams &p, const LuattnTensor &t) const {
    return {q_row<Elem>(p, t, 0), t.seq, q_len};
  }
  template <class Elem>
  __device__ __forceinline__ LineRows<Elem> kv_rows(const LuattnParams &p, const LuattnTensor &t, int h_kv) const {
    return {kv_row<Elem>(p, t, h_kv, 0), t.seq, kv_len};
  }
  // Index of a query in an array [batch][heads][q_len], and the array's size.
  __device__ __forceinline__ i64 q_index(const LuattnParams &p, int position) const {
    return (i64(b) * p.shape.heads + h) * q_len + position;
  }
  __device__ __forceinline__ i64 q_count(const LuattnParams &p) const {
    return i64(p.shape.batch) * p.shape.heads * q_len;
  }

  __device__ __forceinline__ RowBox q_box(const LuattnParams &, int position) const { return {position, b}; }
  __device__ __forceinline__ RowBox kv_box(const LuattnParams &, int position) const { return {position, b}; }
};

struct PackedSequence : LineSite {
  using Params = LuattnPackedParams;
  enum : bool { packed = true, paged = false };
  PackedSequence() = default;
#ifndef LUATTN_PACKED_INPUTS  // else hooks ask where rows of inputs are
  int first_q, first_kv;
#endif
  __device__ __forceinline__ PackedSequence(const LuattnParams &p, int entry, int head) : LineSite(entry, head, 0, 0) {
    take_rows<false>(p, entry, first_q, q_len);
    take_rows<true>(p, entry, first_kv, kv_len);
    load_offsets(p);
  }
  // For PagedSequence, which knows the number of keys.
  __device__ __forceinline__ PackedSequence(const LuattnParams &p, int entry, int head, int keys)
      : LineSite(entry, head, 0, keys) {
    take_rows<false>(p, entry, first_q, q_len);
    first_kv = 0;
    load_offsets(p);
  }
  __device__ __forceinline__ void move_to(const LuattnParams &p, int entry, int head) {
    *this = PackedSequence(p, entry, head);
  }

  // As DenseArrays.
  __device__ __forceinline__ bool has_q_acc(const LuattnParams &, const int &position) const {
    return position < q_len;
  }
  __device__ __forceinline__ bool has_kv_acc(const LuattnParams &, const int &position) const {
    return position < kv_len;
  }
  template <class Order>
  __device__ __forceinline__ int q_acc_count(const LuattnParams &, int first, int count) const {
    return min_of(count, Order::head_rows(q_len) - first);
  }
  // The first row of a head in an accumulator of queries, and the number of its rows.
  template <class Order>
  __device__ __forceinline__ int q_acc_first(const LuattnParams &) const {
    return Order::neighbours == 1 ? first_q : workspace_packed_rows(first_q, b);
  }
  template <class Order>
  __device__ __forceinline__ i64 q_acc_each(const LuattnParams &p) const {
    return Order::neighbours == 1 ? of(p).total_q : workspace_packed_rows(of(p).total_q, p.shape.batch);
  }
  template <class Order, int Width, class Real>
  __device__ __forceinline__ Real *q_acc_row(const LuattnParams &p, void *const &acc, int, int h, int position) const {
    return static_cast<Real *>(acc) + (h * q_acc_each<Order>(p) + q_acc_first<Order>(p) + position) * Width;
  }
  template <class Order, int Width, class Real>
  __device__ __forceinline__ Real *q_acc_head(const LuattnParams &p, void *const &acc, int, int h) const {
    return q_acc_row<Order, Width, Real>(p, acc, b, h, 0);
  }
  // The same for keys, of a kv head. No blocks share a kv tile.
  template <class Order, int Width, class Real>
  __device__ __forceinline__ Real *kv_acc_row(const LuattnParams &p, void *const &acc, int, int, int h_kv,
                                              int position) const {
    constexpr bool in_groups = Order::neighbours != 1;
    const int first = in_groups ? workspace_packed_rows(first_kv, b) : first_kv;
    const i64 each = in_groups ? workspace_packed_rows(of(p).total_k, p.shape.batch) : of(p).total_k;
    return static_cast<Real *>(acc) + (h_kv * each + first + position) * Width;
  }
  template <class Order, int Width>
  LUATTN_FN i64 kv_acc_plane(const LuattnParams &) {
    return 0;
  }
  template <class Order, class Real>
  __device__ __forceinline__ RowNumbers<Real> q_numbers(const LuattnParams &p, void *const &array, int, int h,
                                                        int position) const {
    const i64 each = q_acc_each<Order>(p);
    return {static_cast<Real *>(array) + h * each + q_acc_first<Order>(p) + position, p.shape.heads * each};
  }
  template <class Order>
  __device__ __forceinline__ i64 q_acc_index(const LuattnParams &p, int position) const {
    return h * q_acc_each<Order>(p) + q_acc_first<Order>(p) + position;
  }
  template <class Order>
  __device__ __forceinline__ i64 q_acc_rows(const LuattnParams &p) const {
    return p.shape.heads * q_acc_each<Order>(p);
  }
  template <class Order>
  __device__ __forceinline__ i64 q_acc_index(const LuattnParams &p, int, int position) const {
    return q_acc_index<Order>(p, position);
  }
  template <class Order>
  __device__ __forceinline__ i64 q_acc_rows(const LuattnParams &p, int) const {
    return q_acc_rows<Order>(p);
  }
  LUATTN_FN int number(const LuattnParams &p, int b, int h) { return b * p.shape.heads + h; }
  LUATTN_FN PackedSequence numbered(const LuattnParams &p, int number) {
    return {p, number / p.shape.heads, number % p.shape.heads};
  }
  // In an array [batch][heads][q tiles of the longest entry].
  template <int TileM>
  LUATTN_FN i64 q_tile_index(const LuattnParams &p, int b, int h, int tile) {
    return (i64(b) * p.shape.heads + h) * ceil_div(p.shape.q_len, TileM) + tile;
  }

  __device__ __forceinline__ int q_end(const LuattnParams &) const { return q_len; }
  __device__ __forceinline__ int kv_end(const LuattnParams &) const { return kv_len; }
  __device__ __forceinline__ const PackedSequence &reread() const { return *this; }
  __device__ __forceinline__ PackedSequence of_head(const LuattnParams &, int head) const {
    PackedSequence made = *this;
    made.h = head;
    return made;
  }
  LUATTN_FN int most_queries(const LuattnParams &p) { return p.shape.q_len; }  // of any entry
  LUATTN_FN int batch(const LuattnParams &p) { return p.shape.batch; }
  LUATTN_FN int total_q(const LuattnParams &p) { return of(p).total_q; }
  // Tiles of so many queries or keys that all entries may have.
  LUATTN_FN int most_tiles(const LuattnParams &p, bool keys, int size) {
    return workspace_table_tiles(keys ? of(p).total_k : of(p).total_q, p.shape.batch, size);
  }
  // The rows of queries or keys between the last one of an entry that counts and the next entry; of the number of all
  // entries, those behind the last entry.
  template <bool Keys>
  LUATTN_FN Range padding(const LuattnParams &p, int entry) {
    const int total = Keys ? of(p).total_k : of(p).total_q, *cu = Keys ? of(p).cu_seqlens_k : of(p).cu_seqlens_q;
    if (entry == p.shape.batch) return {row_within(cu[entry], total), total};
    int first, len;
    take_rows<Keys>(p, entry, first, len);
    return {first + len, max_of(row_within(cu[entry + 1], total), first + len)};
  }

  LUATTN_FN int group(const LuattnParams &p) { return p.shape.group; }
  __device__ __forceinline__ int kv_head(const LuattnParams &p) const { return h / p.shape.group; }
  LUATTN_FN int first_head(const LuattnParams &p, int h_kv) { return h_kv * p.shape.group; }

  template <class Elem>
  __device__ __forceinline__ Elem *q_row(const LuattnParams &, const LuattnTensor &t, int position) const {
    return row_of<Elem>(t, 0, h, first_q + position);
  }
  template <class Elem>
  __device__ __forceinline__ Elem *kv_row(const LuattnParams &, const LuattnTensor &t, int h_kv, int position) const {
    return row_of<Elem>(t, 0, h_kv, first_kv + position);
  }
  template <class Elem>
  __device__ __forceinline__ LineRows<Elem> q_rows(const LuattnParams &p, const LuattnTensor &t) const {
    return {q_row<Elem>(p, t, 0), t.seq, q_len};
  }
  template <class Elem>
  __device__ __forceinline__ LineRows<Elem> kv_rows(const LuattnParams &p, const LuattnTensor &t, int h_kv) const {
    return {kv_row<Elem>(p, t, h_kv, 0), t.seq, kv_len};
  }
  // Index in an array [heads][total_q].
  __device__ __forceinline__ i64 q_index(const LuattnParams &p, int position) const {
    return i64(h) * of(p).total_q + first_q + position;
  }
  __device__ __forceinline__ i64 q_count(const LuattnParams &p) const { return i64(p.shape.heads) * of(p).total_q; }

  // The descriptor's row axis ends at row 1 << LUATTN_WRAP_LOG2. A box begins as far before that end as rows remain
  // in the entry, so that TMA clips the box at the entry's end. The coordinate `end` moves the box to its place.
  __device__ __forceinline__ PackedRowBox q_box(const LuattnParams &, int position) const {
    return {(1 << LUATTN_WRAP_LOG2) - q_len + position, first_q + q_len};
  }
  __device__ __forceinline__ PackedRowBox kv_box(const LuattnParams &, int position) const {
    return {(1 << LUATTN_WRAP_LOG2) - kv_len + position, first_kv + kv_len};
  }

 private:
  LUATTN_FN int row_within(int row, int total) { return max_of(min_of(row, total), 0); }
  // The first row of an entry, and how many count: no more than the declared maximum, where the grid and descriptors
  // end, and than the used ones. Whatever cu_seqlens hold, rows lie in the tensor.
  template <bool Keys>
  LUATTN_FN void take_rows(const LuattnParams &p, int entry, int &first, int &len) {
    const int total = Keys ? of(p).total_k : of(p).total_q, *cu = Keys ? of(p).cu_seqlens_k : of(p).cu_seqlens_q;
    const LuattnUsed &all_used = static_cast<const LuattnPackedTileParams &>(p).used;
    const int *used = Keys ? all_used.seqused_k : all_used.seqused_q;
    first = row_within(cu[entry], total);
    len = min_of(max_of(min_of(cu[entry + 1], total), first) - first, Keys ? p.shape.kv_len : p.shape.q_len);
    if (used != nullptr) len = max_of(min_of(used[entry], len), 0);
  }
  LUATTN_FN const LuattnPacked &of(const LuattnParams &p) { return static_cast<const LuattnPackedParams &>(p).packed; }
};

// Rows of keys or values in pages, of one kv head of one entry: row 0 of page 0, and where its pages are.
template <class Elem>
struct PagedRows {
  enum : bool { is_line = false };
  Elem *data;
  i64 page, seq;     // strides
  const int *table;  // of the entry; null: it has page `entry`
  int entry;
  LuattnDivisor page_size;
  u32 last;        // page
  int len, first;  // positions, counted from `first` on

  __device__ __forceinline__ bool has(int position) const { return position < len; }
  // The row of a position of the entry.
  __device__ __forceinline__ Elem *row(int position) const {
    position += first;
    const int n = int(quotient(u32(position), page_size)),
              at = table != nullptr ? int(min_of(u32(__ldg(table + n)), last)) : entry;
    return data + at * page + (position - n * int(page_size.d)) * seq;
  }
  __device__ __forceinline__ Elem *element(int position, int d) const { return row(position) + d; }
  __device__ __forceinline__ Elem *row_if(bool exists, int position) const { return exists ? row(position) : data; }
  // The same for a position in page `at`.
  __device__ __forceinline__ Elem *row_in(int at, int position) const {
    return data + at * page + (position - int(quotient(u32(position), page_size)) * int(page_size.d)) * seq;
  }
  // As LineRows.
  __device__ __forceinline__ PagedRows from(int position) const {
    return {data, page, seq, table, entry, page_size, last, len - position, first + position};
  }
  __device__ __forceinline__ PagedRows if_all(bool exist) const {
    return {data, page, seq, table, entry, page_size, last, exist ? len : 0, first};
  }
};

// A page, and a row there.
struct PageRow {
  int page, row;
};

template <class Queries>
struct PagedSequence : Queries {
  using Params = LuattnPagedParams;
  enum : bool { paged = true };
  using Queries::b, Queries::kv_len;
  PagedSequence() = default;
  __device__ __forceinline__ PagedSequence(const LuattnParams &p, int entry, int head)
      : Queries(
            p, entry, head,
            max_of(min_of(static_cast<const LuattnPackedTileParams &>(p).used.seqused_k[entry], p.shape.kv_len), 0)) {}
  __device__ __forceinline__ void move_to(const LuattnParams &p, int entry, int head) {
    *this = PagedSequence(p, entry, head);
  }
  __device__ __forceinline__ RereadEnds<PagedSequence> reread() const { return {*this}; }
  __device__ __forceinline__ PagedSequence of_head(const LuattnParams &, int head) const {
    PagedSequence made = *this;
    made.h = head;
    return made;
  }
  LUATTN_FN PagedSequence numbered(const LuattnParams &p, int number) {
    return {p, number / p.shape.heads, number % p.shape.heads};
  }

  __device__ __forceinline__ int kv_end(const LuattnParams &) const { return kv_len; }

  template <class Elem>
  __device__ __forceinline__ Elem *kv_row(const LuattnParams &p, const LuattnTensor &t, int h_kv, int position) const {
    return kv_rows<Elem>(p, t, h_kv).row(position);
  }
  template <class Elem>
  __device__ __forceinline__ PagedRows<Elem> kv_rows(const LuattnParams &p, const LuattnTensor &t, int h_kv) const {
    return {static_cast<Elem *>(t.data) + h_kv * t.head,
            t.batch,
            t.seq,
            table(p),
            b,
            of(p).page_size,
            last_page(p),
            kv_len,
            0};
  }

  // Boxes for TMA have box_rows rows of one page, or of all that an entry has; `page_rows` rows of the descriptor lie
  // between pages. As in PackedSequence a box begins as far before the end of the row axis as rows remain, here of the
  // entry in the box's page. A box behind the entry's end is outside.
  LUATTN_FN int box_rows(const LuattnParams &p) { return of(p).box_rows; }
  LUATTN_FN int page_rows_k(const LuattnParams &p) { return of(p).page_rows_k; }
  LUATTN_FN int page_rows_v(const LuattnParams &p) { return of(p).page_rows_v; }
  LUATTN_FN const LuattnPageSteps &steps_k(const LuattnParams &p) { return of(p).steps_k; }
  LUATTN_FN const LuattnPageSteps &steps_v(const LuattnParams &p) { return of(p).steps_v; }
  __device__ __forceinline__ int page_of(const LuattnParams &p, int position) const {
    if (position >= kv_len) return 0;
    const int *pages = table(p);
    return pages != nullptr ? known(p, __ldg(pages + quotient(u32(position), of(p).page_size))) : b;
  }
  // A position's page, and row there; behind the entry's end, which is not at 0, those of its last key. Has no branch
  // that might diverge.
  __device__ __forceinline__ PageRow page_row(const LuattnParams &p, int position) const {
    const int inside = min_of(position, kv_len - 1);
    const u32 n = quotient(u32(inside), of(p).page_size);
    return {of(p).block_table != nullptr ? known(p, __ldg(of(p).block_table + i64(b) * of(p).pages + n)) : b,
            inside - int(n * of(p).page_size.d)};
  }
  __device__ __forceinline__ PackedRowBox kv_box(const LuattnParams &p, int position, PageRow at, int page_rows) const {
    const int rows = max_of(min_of(kv_len - position, int(of(p).page_size.d) - at.row), 0);
    return {(1 << LUATTN_WRAP_LOG2) - rows, rows > 0 ? at.page * page_rows + at.row + rows : 0};
  }

 private:
  LUATTN_FN const LuattnPaging &of(const LuattnParams &p) { return static_cast<const LuattnPagedParams &>(p).paging; }
  // Numbers that are no page count as the last one, so that rows lie in the tensor.
  LUATTN_FN u32 last_page(const LuattnParams &p) { return u32(of(p).num_pages - 1); }
  LUATTN_FN int known(const LuattnParams &p, int page) { return int(min_of(u32(page), last_page(p))); }
  __device__ __forceinline__ const int *table(const LuattnParams &p) const {
    return of(p).block_table != nullptr ? of(p).block_table + i64(b) * of(p).pages : nullptr;
  }
};

// One of two types.
template <bool, class Then, class Else>
struct Conditional {
  using type = Then;
};
template <class Then, class Else>
struct Conditional<false, Then, Else> {
  using type = Else;
};
template <bool If, class Then, class Else>
using ConditionalOf = typename Conditional<If, Then, Else>::type;

struct GridSequence;  // work/grid_sequence.cuh
template <class Config>
concept HasAxes = requires { Config::axes; };
// 0: along a line.
template <class Config>
inline constexpr int axes_of = 0;
template <class Config>
  requires HasAxes<Config>
inline constexpr int axes_of<Config> = Config::axes;
template <class Config>
using QueriesOf =
    ConditionalOf<HasAxes<Config>, GridSequence, ConditionalOf<Config::packed, PackedSequence, DenseSequence>>;
template <class Config>
struct SequenceKind {
  using type = ConditionalOf<Config::paged, PagedSequence<QueriesOf<Config>>, QueriesOf<Config>>;
};
template <class Config>
using SequenceOf = typename SequenceKind<Config>::type;

// The parameters that kernels take: each kind has those of the kinds below it.
template <class Config>
using ParamsOf = ConditionalOf<
    HasAxes<Config>,
#ifdef LUATTN_FAR_PLACES
    LuattnFarParams,
#else
    LuattnGridParams,
#endif
    ConditionalOf<
        Config::paged, LuattnPagedParams,
        ConditionalOf<
            Config::draws, LuattnRandomParams,
            ConditionalOf<Config::packed, LuattnPackedTileParams,
                          ConditionalOf<Config::tile_bits, LuattnTileBitsParams,
                                        ConditionalOf<Config::offsets != 0, LuattnOffsetParams, LuattnParams>>>>>>;
// The TMA descriptors of the sm90 forward.
template <class Config>
using MapsOf = ConditionalOf<Config::paged, LuattnPagedMaps, LuattnTensorMaps>;
LUATTN_FN const LuattnTensorMaps &usual_maps(const LuattnTensorMaps &maps) { return maps; }
LUATTN_FN const LuattnTensorMaps &usual_maps(const LuattnPagedMaps &maps) { return maps.usual; }
template <class Config>
using DecodeParamsOf = ConditionalOf<Config::paged || Config::packed, LuattnSplitListParams, LuattnSplitsParams>;

#ifdef LUATTN_GRID
#include "work/grid_sequence.cuh"
#endif
