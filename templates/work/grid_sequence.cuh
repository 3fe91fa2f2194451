// work/grid_sequence.cuh: a head of an entry over a grid of several axes. Positions are slots (ops/grid_places.cuh), and
// LuattnShape counts slots. Rows of the caller's tensors lie as their strides say, lse and saved numbers in row-major
// order of places; arrays of the workspace have a row for each slot.
#pragma once
#include "arch/tensor_box.cuh"
#include "ops/grid_places.cuh"
#ifdef LUATTN_FREE_BOXES
#include "ops/free_boxes.cuh"
#endif
#include "work/sequence.cuh"

// Rows of one head of a tensor.
template <class Elem, bool Keys>
struct GridRows {
  using Side = GridSideOf<Keys>;
  enum : bool { is_line = false };
  const LuattnParams *p;
  Elem *data;  // of the first place
  const LuattnTensor *t;
  const LuattnGridSteps *steps;
  int start;   // slots are counted from this one on
  bool exist;  // false: none does

  __device__ __forceinline__ bool has(int slot) const { return exist && Side::has(*p, start + slot); }
  __device__ __forceinline__ Elem *row(int slot) const { return data + Side::offset(*p, *t, *steps, start + slot); }
  __device__ __forceinline__ Elem *row_if(bool exists, int slot) const { return exists ? row(slot) : data; }
  __device__ __forceinline__ Elem *element(int slot, int d) const { return row(slot) + d; }
  __device__ __forceinline__ Elem *element(int slot, int d, long long) const { return row(slot) + d; }
  // Also of a slot past the last box.
  __device__ __forceinline__ int clamped(int slot) const {
    return Side::clamped(*p, min_of(start + slot, Side::slots(*p) - 1)) - start;
  }
  __device__ __forceinline__ GridRows from(int slot) const { return {p, data, t, steps, start + slot, exist}; }
  __device__ __forceinline__ bool steps_allow_16_bytes() const {
    u64 all = 0;
#pragma unroll
    for (int axis = Side::first_axis; axis < LUATTN_GRID_AXES - 1; ++axis) all |= u64(steps->outer[axis]);
    return ((all * sizeof(Elem)) & 15) == 0;
  }
  __device__ __forceinline__ GridRows if_all(bool all) const { return {p, data, t, steps, start, exist && all}; }
};

// Queries or keys that exist; of a query that does not, no keys do.
template <bool Keys>
struct GridPlaces {
  const LuattnParams &p;
  bool exist;
  friend __device__ __forceinline__ bool operator<(int slot, const GridPlaces &of) {
    return of.exist && GridSideOf<Keys>::has(of.p, slot);
  }
};

// Keys from a slot on.
struct GridRest {
  const LuattnParams &p;
  int first;
  __device__ __forceinline__ bool has(int slot) const { return GridSideOf<true>::has(p, first + slot); }
};

struct GridSite : Site {
  using Queries = GridSideOf<false>;
  using KeysOf = GridSideOf<true>;
  using Keys = GridPlaces<true>;
  enum : bool { is_line = false };
  using Site::Site;

  __device__ __forceinline__ bool has_query(const LuattnParams &p, int slot) const { return Queries::has(p, slot); }
  __device__ __forceinline__ bool has_key(const LuattnParams &p, int slot) const { return KeysOf::has(p, slot); }
  // Of a box, or of a part of one that is a box.
  __device__ __forceinline__ bool has_queries(const LuattnParams &p, int first, int count) const {
    return Queries::has(p, first) && Queries::has(p, first + count - 1);
  }
  __device__ __forceinline__ bool has_keys(const LuattnParams &p, int first, int count) const {
    return KeysOf::has(p, first) && KeysOf::has(p, first + count - 1);
  }
  __device__ __forceinline__ int last_query(const LuattnParams &, int first, int count) const {
    return first + count - 1;
  }
  __device__ __forceinline__ int last_key(const LuattnParams &, int first, int count) const {
    return first + count - 1;
  }
  __device__ __forceinline__ bool never() const { return q_len < 0; }
  __device__ __forceinline__ int kept_q_end(const LuattnParams &) const { return q_len; }
  __device__ __forceinline__ int kept_kv_end(const LuattnParams &) const { return kv_len; }
  __device__ __forceinline__ int clamped_query(const LuattnParams &p, int slot) const {
    return Queries::clamped(p, slot);
  }
  __device__ __forceinline__ int clamped_key(const LuattnParams &p, int slot) const { return KeysOf::clamped(p, slot); }
  __device__ __forceinline__ GridPlaces<true> keys(const LuattnParams &p) const { return {p, true}; }
  __device__ __forceinline__ GridPlaces<false> queries(const LuattnParams &p) const { return {p, true}; }
  __device__ __forceinline__ GridPlaces<true> keys_of(const LuattnParams &p, int query) const {
    return {p, has_query(p, query)};
  }
  __device__ __forceinline__ GridRest keys_from(const LuattnParams &p, int first) const { return {p, first}; }
#ifdef LUATTN_FREE_BOXES
  using KeyTile = NumberedBox;
  using Key = BoxKey;
  using KeyPlace = BoxKeyPlace;
  template <int>
  LUATTN_FN Key first_key(const KeyTile &tile) {
    return {tile.box, 0};
  }
  __device__ __forceinline__ bool has_key(const LuattnParams &p, const BoxKey &key) const { return key.exists(p); }
  __device__ __forceinline__ BoxKey clamped_key(const LuattnParams &p, const BoxKey &key) const {
    return key.clamped(p);
  }
#endif
};

struct GridSequence : DenseArrays<GridSequence, GridSite> {
  using Params = LuattnGridParams;
  enum : bool { packed = false, paged = false };
  GridSequence() = default;
  __device__ __forceinline__ GridSequence(const LuattnParams &p, int b, int h)
      : DenseArrays(b, h, p.shape.q_len, p.shape.kv_len) {}

  enum : int { first_q = 0, first_kv = 0 };  // as DenseSequence
  __device__ __forceinline__ void move_to(const LuattnParams &, int entry, int head) {
    b = entry;
    h = head;
  }

  LUATTN_FN int q_end(const LuattnParams &p) { return p.shape.q_len; }
  LUATTN_FN int longest_q(const LuattnParams &p) { return p.shape.q_len; }
  LUATTN_FN int kv_end(const LuattnParams &p) { return p.shape.kv_len; }
  __device__ __forceinline__ const GridSequence &reread() const { return *this; }
  __device__ __forceinline__ GridSequence of_head(const LuattnParams &p, int head) const { return {p, b, head}; }

  template <class Elem>
  __device__ __forceinline__ GridRows<Elem, false> q_rows(const LuattnParams &p, const LuattnTensor &t) const {
    return {&p, static_cast<Elem *>(t.data) + b * t.batch + h * t.head, &t, &steps_of(p, t), 0, true};
  }
  template <class Elem>
  __device__ __forceinline__ GridRows<Elem, true> kv_rows(const LuattnParams &p, const LuattnTensor &t,
                                                          int h_kv) const {
    return {&p, static_cast<Elem *>(t.data) + b * t.batch + h_kv * t.head, &t, &steps_of(p, t), 0, true};
  }
  // Of lse and dlse, too.
  template <class Elem>
  __device__ __forceinline__ Elem *q_row(const LuattnParams &p, const LuattnTensor &t, int slot) const {
    if (is_of_rows(p, t))
      return static_cast<Elem *>(t.data) + b * t.batch + h * t.head + Queries::number(p, slot) * t.seq;
    return q_rows<Elem>(p, t).row(slot);
  }
  // Of the nearest query of the slot's box. The two parts of a slot have no bit in common.
  template <class Elem>
  __device__ __forceinline__ Elem *nearest_q_row(const LuattnParams &p, const LuattnTensor &t,
                                                 const Position &slot) const {
    return static_cast<Elem *>(t.data) + b * t.batch + h * t.head + Queries::nearest_offset(p, t, steps_of(p, t), slot);
  }
  template <class Elem>
  __device__ __forceinline__ Elem *kv_row(const LuattnParams &p, const LuattnTensor &t, int h_kv, int slot) const {
    return kv_rows<Elem>(p, t, h_kv).row(slot);
  }
#ifdef LUATTN_FREE_BOXES
  template <class Elem>
  __device__ __forceinline__ Elem *kv_row(const LuattnParams &p, const LuattnTensor &t, int h_kv,
                                          const BoxKey &key) const {
    const LuattnGridSteps &steps = steps_of(p, t);
    i64 at = b * t.batch + h_kv * t.head;
    each_axis([&](auto axis) {
      constexpr int a = axis.value;
      at += key.at<a>() * step_in<a>(t, steps);
    });
    return static_cast<Elem *>(t.data) + at;
  }
#endif
  // Boxes for TMA: of queries those of a warpgroup in forward, all of a tile in backward; of keys all of a tile, which is half
  // of a box where two blocks share it. Those of other tensors than q and k: of_v, of_o, of_dout (arch/tensor_box.cuh).
  __device__ __forceinline__ GridBoxAt q_box(const LuattnParams &p, int slot) const {
#ifdef LUATTN_FREE_BOXES
    constexpr int rows = 64;
#else
    constexpr int rows = Queries::rows;
#endif
    GridBoxAt box = box_of<Queries>(p, rows, static_cast<const LuattnGridParams &>(p).grid.units_q);
    Queries::each_corner(p, slot / Queries::rows,
                         [&](auto axis, int at) { box.at[axis.value] = at + Queries::along<axis.value>(slot); });
    return box;
  }
  __device__ __forceinline__ GridBoxAt kv_box(const LuattnParams &p, int slot) const {
    GridBoxAt box = box_of<KeysOf>(p, Config::tile_n, static_cast<const LuattnGridParams &>(p).grid.units_k);
    KeysOf::each_corner(p, slot / KeysOf::rows,
                        [&](auto axis, int at) { box.at[axis.value] = at + KeysOf::along<axis.value>(slot); });
    return box;
  }
#ifdef LUATTN_FREE_BOXES
  __device__ __forceinline__ GridBoxAt kv_box(const LuattnParams &p, const BoxKey &key) const {
    GridBoxAt box = box_of<KeysOf>(p, Config::tile_n, static_cast<const LuattnGridParams &>(p).grid.units_k);
    each_axis([&](auto axis) {
      constexpr int a = axis.value;
      box.at[a] = key.at<a>();
    });
    return box;
  }
#endif
  // As the caller's arrays are: of places.
  __device__ __forceinline__ i64 q_index(const LuattnParams &p, int slot) const {
    return (i64(b) * p.shape.heads + h) * Queries::count(p) + Queries::number(p, slot);
  }
  __device__ __forceinline__ i64 q_count(const LuattnParams &p) const {
    return i64(p.shape.batch) * p.shape.heads * Queries::count(p);
  }

 private:
  template <class Side>
  __device__ __forceinline__ GridBoxAt box_of(const LuattnParams &p, int rows, const LuattnGridUnits &units) const {
    return {{0, 0, 0, 0},
            b,
            rows,
            Side::step(0),
            Side::extent(p, 0),
            Side::place_step(0),
            &static_cast<const LuattnGridParams &>(p).grid,
            &units};
  }
  // Whether a tensor has a number for each row, in the order of places.
  LUATTN_FN bool is_of_rows(const LuattnParams &p, const LuattnTensor &t) {
    bool is = &t == &p.tensors.lse || &t == &p.tensors.dlse;
#ifdef LUATTN_TANGENTS
    const LuattnTangents &tangents = static_cast<const LuattnGridTangentParams &>(p).tangents;
    is = is || &t == &tangents.lse || &t == &tangents.of_lse;
#endif
    return is;
  }
#ifdef LUATTN_TANGENTS
  // Of a tangent; null: it is another tensor.
  LUATTN_FN const LuattnGridSteps *steps_of_tangent(const LuattnParams &p, const LuattnTensor &t) {
    const LuattnGridTangentParams &all = static_cast<const LuattnGridTangentParams &>(p);
    const LuattnTangentSteps &steps = all.tangent_steps;
    return &t == &all.tangents.q           ? &steps.q
           : &t == &all.tangents.k         ? &steps.k
           : &t == &all.tangents.v         ? &steps.v
           : &t == &all.tangents.o         ? &steps.o
           : &t == &all.tangents.of_o      ? &steps.of_o
           : &t == &all.tangent_mods.src_q ? &steps.src_q
           : &t == &all.tangent_mods.src_k ? &steps.src_k
           : &t == &all.tangent_mods.src_v ? &steps.src_v
                                           : nullptr;
  }
#endif
  LUATTN_FN const LuattnGridSteps &steps_of(const LuattnParams &p, const LuattnTensor &t) {
#ifdef LUATTN_TANGENTS
    if (const LuattnGridSteps *steps = steps_of_tangent(p, t); steps != nullptr) return *steps;
#endif
    const LuattnGrid &grid = static_cast<const LuattnGridParams &>(p).grid;
    const LuattnTensors &all = p.tensors;
    return &t == &all.q       ? grid.q
           : &t == &all.k     ? grid.k
           : &t == &all.v     ? grid.v
           : &t == &all.src_q ? grid.src_q
           : &t == &all.src_k ? grid.src_k
           : &t == &all.src_v ? grid.src_v
           : &t == &all.dout  ? grid.dout
           : &t == &all.dq    ? grid.dq
           : &t == &all.dk    ? grid.dk
           : &t == &all.dv    ? grid.dv
                              : grid.o;
  }
};
