// sm90/fwd/term_loader.cuh: the warps of the producer's warpgroup that fill the tables of terms by displacement
// (score/displacement_terms.cuh) in the sm90 forward. Tables have stages of their own: consumers have K until the scores are
// there, and terms until P is good.
//
// If each score read its term itself, it would wait for memory after QK^T. A table has a tenth as many numbers as a tile has
// scores, and is computed from memory while products of other tiles are under way.
#pragma once
#include "score/displacement_terms.cuh"
#include "sm90/pipeline.cuh"
#include "tma/forward_messages.cuh"
#include "tma/mbarrier.cuh"
#include "tma/stages.cuh"
#include "work/sequence.cuh"

template <class Spec, class Config>
struct TermLoaderSm90 {
  using Shared = SharedSm90<Spec, Config>;
  using Queries = GridSideOf<false>;
  using Pair = TileBoxPair<Config::tile_n>;
  static constexpr int lanes = Shared::term_loaders * 32;

  const LuattnParams &p;
  const Shared shared;
  const int first;  // the lane's first number
  PipelineState<Config::stages> messages;
  PipelineState<Shared::term_stages> terms;

  __device__ __forceinline__ TermLoaderSm90(const LuattnParams &params, const Shared &s, int loader)
      : p(params), shared(s), first(loader * 32 + int(threadIdx.x) % 32), messages(0), terms(1) {}

  __device__ __forceinline__ LoaderMessage next_message() {
    barrier_wait(shared.messages_full(messages.stage), messages.parity);
    const LoaderMessage message = LoaderMessage::load(shared.loader_message(messages.stage));
    if (int(threadIdx.x) % 32 == 0) barrier_arrive(shared.messages_empty(messages.stage));
    messages.advance();
    return message;
  }
  __device__ __forceinline__ void run() {
    SequenceOf<Config> site(p, 0, 0);
    typename Spec::Head head;
    BoxesOfRange boxes;
    Displacement own;  // of the queries' box, from the grid's first place
#pragma unroll 1
    for (LoaderMessage message = next_message(); !message.is_end(); message = next_message()) {
      if (message.first()) {
        site = {p, message.b, message.h};
        head = Spec::head(p, site);
        boxes = BoxesOfRange::of<Spec>(p, site, message.q_tile * Config::tile_m);
        Queries::each_corner(p, message.q_tile,
                             [&](auto axis, int at) { own.at[axis.value - Queries::first_axis] = at; });
      }
      const FreeBox keys = boxes.box(message.kv_tile());
      Displacement from;
      each_axis([&](auto axis) {
        constexpr int a = axis.value - Queries::first_axis;
        from.at[a] = keys.first(axis.value) - own.at[a];
      });
      const DisplacementTable<Spec, Pair, lanes, true> table(p, site, head, from, first);
      barrier_wait(shared.terms_empty(terms.stage), terms.parity);
      table.store(shared.terms(terms.stage), first);
      if constexpr (Shared::begins_at_terms)
        table.store(shared.terms(terms.stage) + (TwiceInTable<Pair>::second + 1) * 4, first);
      barrier_arrive(shared.terms_full(terms.stage));
      terms.advance();
    }
  }
};
