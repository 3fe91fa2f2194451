// sm90/bwd/grad_staging.cuh: stages dQ, dK and dV in shared memory and bulk-copies them out (sm90
// backward). Each consumer warp has a part of its own, for 16 rows.
#pragma once
#include "arch/warp.cuh"
#include "score/fragment.cuh"
#include "sm90/bwd/bwd_pipeline.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/mbarrier.cuh"

// A warp's part of dQ of a tile: its first row, and its head. Row WarpPart::no_dq: there is no dQ.
struct DqPlace {
  int row, head;
};

// The message about a dQ to store: the first row of the q tile, and batch * heads + head. Row -1: no more dQ
// follows.
struct StoreMessage {
  int row, head;
  LUATTN_FN StoreMessage end() { return {-1, 0}; }
  __device__ __forceinline__ void store(u32 address) const {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(row), "r"(head) : "memory");
  }
  LUATTN_FN StoreMessage load(u32 address) {
    StoreMessage x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.row), "=r"(x.head) : "r"(address) : "memory");
    return x;
  }
};

template <class Spec, class Config>
struct WarpPart {
  using Shared = SharedBwdSm90<Spec, Config>;
  using Elem = typename Config::Elem;
  using Sequence = SequenceOf<Config>;
  static constexpr bool in_order = Shared::in_order, stores_first = Shared::stores_first;
  static constexpr int D = Config::head_dim, dq_cols = Shared::dq_cols;

  const Shared shared;
  const int group, warp, lane;
  u32 num_handed = 0;  // with dQ order: parts of dQ that the warp has handed over, modulo 2
  // With first stores: the number of q tiles before this one, how many of them this block stores, and whether
  // it stores the last one.
  u32 num_tiles = 0, num_stored = 0;
  bool stored = false;

  __device__ __forceinline__ u32 address() const { return shared.dq(group * 4 + warp); }
  // Waits until TMA has read this part.
  __device__ __forceinline__ void await() {
    if (stores_first && stored) {
      barrier_wait(shared.taken(num_stored), num_stored / 2 & 1);
      ++num_stored;
      stored = false;
    }
    if constexpr (in_order) barrier_wait(shared.dq_empty(), num_handed ^ 1);
    bulk_wait_read();
    __syncwarp();
  }

  // ---- dQ ----

  // Stores dQ in shared memory. TMA adds it to memory later, while products are in flight, because the fence
  // takes a while.
  __device__ __forceinline__ void share_dq(const float (&dq)[dq_cols / 2]) {
    const u32 slab = address() + lane * 16;
    await();
#pragma unroll
    for (int i = 0; i < dq_cols / 2; i += 4) store_shared_16(slab + i * 128, dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
  }
  __device__ __forceinline__ void add_dq(const LuattnParams &p, const Sequence &site, const DqPlace &at) {
    if constexpr (in_order) return hand_dq_over(at);
    if (stores_first && !is_added(p, site, at)) return;
    const int d0 = Shared::splits_rows ? 0 : group * dq_cols, width = min_of(dq_cols, D - d0);
    float *head_acc = site.template q_acc_head<ResultGroups, D, float>(p, p.scratch.dq_acc, site.b, at.head);
    fence_async();
    __syncwarp();
    bulk_add(head_acc + i64(at.row) * D + d0 * 16, address(), width * 64,
             lane == 0 && width > 0 && site.has_q_acc(p, at.row));
    bulk_commit();
  }
  // Returns true if this part is to be added and may be added now. Hands a part to store to the storing warp.
  __device__ __forceinline__ bool is_added(const LuattnParams &p, const Sequence &site, const DqPlace &at) {
    if (at.row < 0) return false;
    const u32 first_store = shared.first_store_known(num_tiles);
    barrier_wait(first_store, num_tiles / 4 & 1);
    ++num_tiles;
    u32 mine;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(mine) : "r"(first_store + 8) : "memory");
    stored = uniform(mine) != 0;
    if (!stored) return true;
    fence_async();
    if (group == 0 && warp == 0 && lane == 0)
      StoreMessage{at.row, site.number(p, site.b, at.head)}.store(shared.taken(num_stored) + 8);
    barrier_arrive(shared.handed(num_stored));
    return false;
  }
  // Tells the storing warps to exit.
  __device__ __forceinline__ void dismiss() {
    if constexpr (stores_first) {
      await();
#pragma unroll 1
      for (int i = 0; i < 2; ++i, ++num_stored) {
        if (group == 0 && warp == 0 && lane == 0) StoreMessage::end().store(shared.taken(num_stored) + 8);
        barrier_arrive(shared.handed(num_stored));
      }
    }
  }
  // Row that says that there is no dQ.
  LUATTN_FN int no_dq(int q_end) { return in_order || stores_first ? -1 : q_end; }
  __device__ __forceinline__ void hand_dq_over(const DqPlace &at) {
    fence_async();
    if (at.row < 0) return;
    barrier_arrive(shared.dq_full(num_handed));
    num_handed ^= 1;
  }

  // ---- dK and dV ----

  // Stores the warp's rows from kv0 on, as floats, from registers.
  template <int Dim>
  __device__ __forceinline__ void store_f32(const LuattnParams &p, const Sequence &site, const LuattnTensor &t,
                                            const KvBlock &at, int kv0, const float (&x)[padded_dim(Dim) / 2],
                                            float factor) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int kv = kv0 + MmaFragment::row(lane, half);
      float *row = site.template kv_row<float>(p, t, at.h, kv) + MmaFragment::column(lane);
      if (!site.reread().has_key(p, kv)) continue;
#pragma unroll
      for (int d = 0; d < Dim; d += 8)
        *reinterpret_cast<float2 *>(row + d) =
            make_float2(x[d / 2 + 2 * half] * factor, x[d / 2 + 2 * half + 1] * factor);
    }
  }
  // Stores the warp's rows from kv0 on, in the gradients' type.
  template <int Dim>
  __device__ __forceinline__ void store(const LuattnParams &p, const Sequence &site, const LuattnTensor &t,
                                        const KvBlock &at, int kv0, const float (&x)[padded_dim(Dim) / 2],
                                        float factor) {
    if constexpr (same_type<GradOf<Config>, float>::value)
      store_f32<Dim>(p, site, t, at, kv0, x, factor);
    else
      store_rounded<Dim>(p, site, t, at, kv0, x, factor);
  }
  template <int Dim>
  __device__ __forceinline__ void store_rounded(const LuattnParams &p, const Sequence &site, const LuattnTensor &t,
                                                const KvBlock &at, int kv0, const float (&x)[padded_dim(Dim) / 2],
                                                float factor) {
    const u32 to = address() + lane % 16 * Shared::row_pitch + lane / 16 * 16;
    await();
#pragma unroll
    for (int n = 0; n < padded_dim(Dim) / 2; n += 8) {
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = pack<Elem>(x[n + 2 * i] * factor, x[n + 2 * i + 1] * factor);
      store_parts(to + n * 4, a);
    }
    fence_async();
    __syncwarp();
    const int kv = kv0 + lane;
    bulk_store(site.template kv_row<Elem>(p, t, at.h, kv), address() + lane * Shared::row_pitch, Dim * 2,
               lane < 16 && site.reread().has_key(p, kv));
    bulk_commit();
  }
  // Stores the rows in f32 and unscaled, to [num_splits][batch][heads_kv] in the layout of ResultGroups, for
  // luattn_finish.
  template <int Dim>
  __device__ __forceinline__ void store_accumulator(const LuattnParams &p, const Sequence &site, void *dst,
                                                    const KvBlock &at, int kv0, const float (&x)[padded_dim(Dim) / 2]) {
    float *out = site.template kv_acc_row<ResultGroups, Dim, float>(p, dst, at.split, at.b, at.h, kv0);
#pragma unroll
    for (int d = 0; d < Dim; d += 32) {
      await();
#pragma unroll
      for (int i = 0; i < 16; i += 4)
        store_shared_16(address() + lane * 16 + i * 128, x[d / 2 + i], x[d / 2 + i + 1], x[d / 2 + i + 2],
                        x[d / 2 + i + 3]);
      fence_async();
      __syncwarp();
      bulk_store(out + d * 16, address(), min_of(32, Dim - d) * 64, lane == 0 && site.has_kv_acc(p, kv0));
      bulk_commit();
    }
  }
};
