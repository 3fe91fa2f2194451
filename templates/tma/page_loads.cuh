// tma/page_loads.cuh: loads K and V from pages by TMA in forward, a box for each page of a tile, and the warp that does so
// for V.
#pragma once
#include "tma/bulk_copies.cuh"
#include "tma/forward_messages.cuh"
#include "tma/mbarrier.cuh"
#include "tma/stages.cuh"
#include "tma/warp_roles.cuh"
#include "work/sequence.cuh"
#include "work/tile_scheduler.cuh"

template <class Spec, class Config, class Shared>
struct PageLoads {
  static constexpr int tile_n = Config::tile_n;
  using Sequence = SequenceOf<Config>;
  const LuattnParams &p;
  const MapsOf<Config> &maps;

  // Each lane of the warp finds where one of the tile's boxes begins, of which there are at most 32, and looks up its
  // page, ahead of the loads. One lane copies them all: a copy takes uniform registers, and lanes that copy boxes of
  // their own would take turns.
  struct NoPage {};
  using Page = ConditionalOf<Sequence::paged, PageRow, NoPage>;
  __device__ __forceinline__ int box_of_lane(const Sequence &site) const {
    return int(threadIdx.x) % 32 * site.box_rows(p);
  }
  __device__ __forceinline__ Page page_of_lane(const Sequence &site, int tile) const {
    if constexpr (Sequence::paged)
      if (tile >= 0) return site.page_row(p, tile * tile_n + box_of_lane(site));
    return {};
  }
  // Copies a tile's boxes, after one lane has announced the bytes. Kind: Keys or Values, the tensor. A tile that the
  // entry's end cuts takes boxes that it clips, which have five coordinates; others have three, of which only one
  // differs between boxes.
  template <class Kind>
  __device__ __forceinline__ void load(const Sequence &site, u32 dst, u32 barrier, int tile, Page page,
                                       int head) const {
    static_assert(Sequence::is_line, "the last tile ends at kv_len");
    const LuattnPageSteps &steps = Kind::steps(p);
    const int rows = site.box_rows(p);
    if (steps.row != 0 && (tile + 1) * tile_n <= site.kv_len) {
      const int at = page.page * steps.page + page.row * steps.row + head * steps.head;
      const auto copy = [&](int first, int from) {
#pragma unroll
        for (int i = 0; i < Kind::boxes; ++i)
          tensor_load(dst + (i * tile_n + first) * 128, Kind::whole(maps), barrier, i * 64, PageBox{from});
      };
      int lane = 0, first = 0;
#pragma unroll 1
      for (; first + rows < tile_n;
           first += 2 * rows, lane += 2) {  // two at a time, whose shuffles do not wait for copies
        const int from[2] = {__shfl_sync(0xffffffffu, at, lane), __shfl_sync(0xffffffffu, at, lane + 1)};
        if (elected()) copy(first, from[0]), copy(first + rows, from[1]);
      }
      if (first >= tile_n) return;
      const int from = __shfl_sync(0xffffffffu, at, lane);
      if (elected()) copy(first, from);
    } else {
      const PackedRowBox own = site.kv_box(p, tile * tile_n + box_of_lane(site), page, Kind::page_rows(p));
#pragma unroll 1
      for (int lane = 0, first = 0; first < tile_n; first += rows, ++lane) {
        const PackedRowBox box{__shfl_sync(0xffffffffu, own.row, lane), __shfl_sync(0xffffffffu, own.end, lane)};
        if (elected())
#pragma unroll
          for (int i = 0; i < Kind::boxes; ++i)
            tensor_load(dst + (i * tile_n + first) * 128, Kind::cut(maps), barrier, i * 64, box, head);
      }
    }
  }
  struct Keys {
    static constexpr int boxes = Shared::boxes;
    LUATTN_FN const LuattnTensorMap &whole(const LuattnPagedMaps &maps) { return maps.k_whole; }
    LUATTN_FN const LuattnTensorMap &cut(const LuattnPagedMaps &maps) { return maps.usual.k; }
    LUATTN_FN int page_rows(const LuattnParams &p) { return Sequence::page_rows_k(p); }
    LUATTN_FN const LuattnPageSteps &steps(const LuattnParams &p) { return Sequence::steps_k(p); }
  };
  struct Values {
    static constexpr int boxes = Shared::boxes_v;
    LUATTN_FN const LuattnTensorMap &whole(const LuattnPagedMaps &maps) { return maps.v_whole; }
    LUATTN_FN const LuattnTensorMap &cut(const LuattnPagedMaps &maps) { return maps.usual.v; }
    LUATTN_FN int page_rows(const LuattnParams &p) { return Sequence::page_rows_v(p); }
    LUATTN_FN const LuattnPageSteps &steps(const LuattnParams &p) { return Sequence::steps_v(p); }
  };
};

// The value loader, a warp of the producer's warpgroup. The producer alone would not keep up where a tile has many
// boxes: each takes its warp 30 cycles or more (bench/journal/pages.md). So it loads K, and tells this warp which tiles
// follow, by the messages of the bias loaders, ahead of its wait for a free stage.
template <class Spec, class Config, class Shared>
struct ValueLoader {
  using Loads = PageLoads<Spec, Config, Shared>;
  const LuattnParams &p;
  const MapsOf<Config> &maps;
  const Shared shared;
  PipelineState<Config::stages> message, v;

  __device__ __forceinline__ ValueLoader(const LuattnParams &params, const MapsOf<Config> &m, const Shared &s)
      : p(params), maps(m), shared(s), message(0), v(1) {}

  __device__ __forceinline__ LoaderMessage receive() {
    barrier_wait(shared.messages_full(message.stage), message.parity);
    const LoaderMessage tile = LoaderMessage::load(shared.loader_message(message.stage));
    if (threadIdx.x % 32 == 0) barrier_arrive(shared.messages_empty(message.stage));
    message.advance();
    return tile;
  }
  __device__ __forceinline__ void run() {
    SequenceOf<Config> site;
    int head = 0;
    const Loads loads{p, maps};
    for (LoaderMessage tile = receive(); !tile.is_end(); tile = receive()) {
      if (tile.first()) site = SequenceOf<Config>(p, tile.b, tile.h), head = BlockSite::kv_head(p, tile.h);
      const auto page = loads.page_of_lane(site, tile.kv_tile());
      barrier_wait(shared.v_empty(v.stage), v.parity);
      if (elected()) barrier_arrive_expect(shared.v_full(v.stage), Shared::v_bytes);
      loads.template load<typename Loads::Values>(site, shared.v(v.stage), shared.v_full(v.stage), tile.kv_tile(), page,
                                                  head);
      v.advance();
    }
    await_last_v<Spec>(shared, v);
  }
};
