// sm90/bwd_d256/bwd_d256.cuh: the main backward kernel of the sm90 family for head dims above 128. Like
// sm90/bwd/bwd_sm90.cuh, it computes dk, dv, and dq by atomic adds, in f16 or bf16, by wgmma with f32
// accumulation and TMA. sm_90a only.
//
// Grid: persistent, in clusters of two blocks. There is one block per multiprocessor, or two per kv tile of
// each kv head if that is fewer. A cluster draws kv tiles of 128 positions, or shares of their q tiles
// (KvTileScheduler), and each of its blocks has 64 of the positions. If each block added dQ of its 64
// positions to dq_acc, the additions would be the bottleneck. So each block sends its dS to the other one,
// and computes dQ of half of the channels over all 128 positions.
//
// A block has four warpgroups, because the accumulators of dk of 64 positions fill the registers of one, and
// so do those of dv. README.md shows the timing, the barriers and the registers.
//   load     one warp loads K and V, then dO, row numbers and Q tile by tile; another warp sends dS:
//            sm90/bwd_d256/d256_producer.cuh. A third sums dS for parameter gradients:
//            sm90/bwd_d256/parameter_grads_d256.cuh
//   scores   S^T = K Q^T   dP^T = V dO^T, with V in registers   P^T, dS^T = Spec::grad, element by element,
//            rounded to shared memory, dS also to the other block's   dQ = dS K, added to p.scratch.dq_acc:
//            sm90/bwd_d256/d256_scores.cuh
//   values   dV += P^T dO
//   keys     dK += dS^T Q
//
// Config: head_dim and head_dim_v are multiples of 8 up to LUATTN_MAX_HEAD_DIM, in any combination; TMA pads them with zeros
//   to a multiple of 64. tile_m = tile_n = 64, threads = 512. `stages` is the number of stages of Q and dO, at
//   least 2.
// Dynamic shared memory: BwdD256Layout of abi/shared_memory.h. Static shared memory: 4 * num_acc * 4 bytes.
#pragma once
#include "arch/warp.cuh"
#include "score/fragment.cuh"
#include "sm90/bwd_d256/d256_dq_in_order.cuh"
#include "sm90/bwd_d256/d256_producer.cuh"
#include "sm90/bwd_d256/d256_scores.cuh"
#include "sm90/bwd_d256/parameter_grads_d256.cuh"
#include "tma/cluster.cuh"
#include "tma/mbarrier.cuh"
#include "tma/stages.cuh"
#include "tma/warp_roles.cuh"

// Accumulates dV (Value) or dK of the block's 64 positions.
template <class Spec, class Config, bool Value>
struct SumsD256 {
  using Shared = SharedD256<Spec, Config>;
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  using Sequence = SequenceOf<Config>;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n;
  static constexpr int Dim = Value ? Config::head_dim_v : Config::head_dim;
  static constexpr int boxes = Value ? Shared::boxes_v : Shared::boxes;

  const LuattnParams &p;
  const Shared shared;
  const int rank, lane, warp;
  // Products are 128 channels wide, and one may be 64 wide: in a kernel of 512 threads ptxas accepts no wider
  // ones.
  static constexpr int pairs = boxes / 2;
  static constexpr bool odd = boxes % 2 != 0;
  float sum[pairs + odd][64];
  PipelineState<Config::stages> stage;
  PipelineState<2> ds;
  u32 parity;

  __device__ __forceinline__ SumsD256(const LuattnParams &params, const Shared &s)
      : p(params),
        shared(s),
        rank(cluster_rank()),
        lane(int(threadIdx.x) % 32),
        warp(int(threadIdx.x) / 32 % 4),
        stage(0),
        ds(0),
        parity(0) {}

  __device__ __forceinline__ float &at(int i) { return sum[i / 64][i % 64]; }
  __device__ __forceinline__ float at(int i) const { return sum[i / 64][i % 64]; }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < boxes * 32; ++i) at(i) = 0;
  }

  __device__ __forceinline__ D256Message await() const {
    barrier_wait(Value ? shared.do_full(stage.stage) : shared.q_full(stage.stage), stage.parity);
    return D256Message::load(Value ? shared.do_message(stage.stage) : shared.q_message(stage.stage));
  }
  __device__ __forceinline__ void give_back() {
    barrier_arrive(Value ? shared.do_empty(stage.stage) : shared.q_empty(stage.stage));
    stage.advance();
  }
  __device__ __forceinline__ void add_tile() {
    barrier_wait(Value ? shared.p_full() : shared.ds_full(ds.stage), Value ? parity : ds.parity);
    if constexpr (!Value) barrier_wait(shared.keys_may_start(ds.stage), ds.parity);
    wgmma_fence();
    const u64 a = block_operand(Value ? shared.p() : shared.ds(ds.stage), 0),
              b = block_operand(Value ? shared.dout(stage.stage) : shared.q(stage.stage), Shared::box);
#pragma unroll
    for (int i = 0; i < pairs; ++i) WgmmaOuter<Elem, 128>::sums64(sum[i], a, b + (i * 2 * Shared::box >> 4));
    if constexpr (odd) WgmmaOuter<Elem, 64>::sums64(sum[pairs], a, b + (pairs * 2 * Shared::box >> 4));
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < pairs + odd; ++i) wgmma_arrived(sum[i]);
    if (lane == 0) barrier_arrive(Value ? shared.p_empty() : shared.ds_empty(ds.stage));
    ds.advance();
    parity ^= 1;
  }
  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (;;) {
      D256Message message = await();
      if (message.is(D256Message::END)) break;
      clear();
      if (message.is(D256Message::VALUES)) {
        give_back();
        message = await();
      }
      if (message.is(D256Message::TILE)) {
#pragma unroll 1
        for (;;) {
          add_tile();
          give_back();
          if (message.ends_block()) break;
          message = await();
        }
      } else {
        give_back();
      }
      finish(message);
    }
  }

  // ---- finish ----

  __device__ __forceinline__ int first_row(const D256Message &block) const {
    return (block.kv_tile() * 2 + rank) * tile_n + warp * 16;
  }
  __device__ __forceinline__ Sequence sequence(const D256Message &block) const {
    return {p, int(block.b), int(block.head)};
  }
  // Stores the rows as floats, a thread's two of every 8 channels at once.
  __device__ __forceinline__ void store_f32(const LuattnTensor &t, const D256Message &block, float factor) const {
    if (t.data == nullptr) return;
    __syncwarp();
    const int thread = lane_anew();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Sequence site = sequence(block);
      const int kv = first_row(block) + Fragment::row(thread, half);
      float *out = site.template kv_row<float>(p, t, site.kv_head(p), kv) + Fragment::column(thread);
      if (!site.reread().has_key(p, kv)) continue;
#pragma unroll
      for (int n = 0; n < Dim / 8; ++n) {
        const int e = n * Fragment::element(0, 2) + Fragment::element(half, 0);
        *reinterpret_cast<float2 *>(out + n * 8) = make_float2(at(e) * factor, at(e + 1) * factor);
      }
    }
  }
  __device__ __forceinline__ void store(const LuattnTensor &t, const D256Message &block, float factor) const {
    if constexpr (same_type<GradOf<Config>, float>::value)
      store_f32(t, block, factor);
    else
      store_rounded(t, block, factor);
  }
  __device__ __forceinline__ void store_rounded(const LuattnTensor &t, const D256Message &block, float factor) const {
    if (t.data == nullptr) return;
    __syncwarp();
    const int thread = lane_anew(), part = gathered_column(thread);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Sequence site = sequence(block);
      const int kv = first_row(block) + Fragment::row(thread, half);
      Elem *out = site.template kv_row<Elem>(p, t, site.kv_head(p), kv) + part;
#pragma unroll
      for (int n = 0; n < boxes * 8; n += 4) {
        u32 w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int e = (n + i) * Fragment::element(0, 2) + Fragment::element(half, 0);
          w[i] = pack<Elem>(at(e) * factor, at(e + 1) * factor);
        }
        gather_columns(w, thread);
        if (site.reread().has_key(p, kv) && (Dim % 64 == 0 || n * 8 + part < Dim))
          *reinterpret_cast<uint4 *>(out + n * 8) = make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
  }
  // Stores the rows in f32 and unscaled, to [num_splits][batch][heads_kv] in the layout of ResultGroups, for
  // luattn_finish.
  __device__ __forceinline__ void store_accumulator(void *dst, const D256Message &block) const {
    const int kv0 = first_row(block);
    if (!Sequence::has_kv_acc(p, kv0)) return;
    float *out = acc_row<Dim, float>(dst, Sequence::heads_kv(p), ResultGroups::head_rows(Sequence::kv_end(p)),
                                     block.split() * Sequence::batch(p) + int(block.b),
                                     int(block.head) / Sequence::group(p), kv0) +
                 lane_anew() * 4;
#pragma unroll
    for (int n = 0; n < Dim / 2; n += 4)
      *reinterpret_cast<float4 *>(out + n * 32) = make_float4(at(n), at(n + 1), at(n + 2), at(n + 3));
  }
  __device__ __forceinline__ void store_packed_accumulator(void *dst, const D256Message &block) const {
    const Sequence site(p, int(block.b), 0);
    const int kv0 = first_row(block);
    if (!site.has_kv_acc(p, kv0)) return;
    float *out = site.template kv_acc_row<ResultGroups, Dim, float>(p, dst, 0, site.b,
                                                                    int(block.head) / Sequence::group(p), kv0) +
                 lane_anew() * 4;
#pragma unroll
    for (int n = 0; n < Dim / 2; n += 4)
      *reinterpret_cast<float4 *>(out + n * 32) = make_float4(at(n), at(n + 1), at(n + 2), at(n + 3));
  }
  __device__ __forceinline__ void finish(const D256Message &block) const {
    if constexpr (Sequence::packed && (Value ? Needs<Spec, Config>::finish_v : Needs<Spec, Config>::finish_k))
      store_packed_accumulator(Value ? p.scratch.dv_acc : p.scratch.dk_acc, block);
    else if constexpr (Sequence::packed)  // no shares
      store(Value ? p.tensors.dv : p.tensors.dk, block, Value ? 1.f : float(p.scale));
    else
      finish_dense(block);
  }
  __device__ __forceinline__ void finish_dense(const D256Message &block) const {
    if ((Value ? Spec::has_value_mod : Spec::has_key_mod) || QShare::count(p) > 1)
      store_accumulator(Value ? p.scratch.dv_acc : p.scratch.dk_acc, block);
    else
      store(Value ? p.tensors.dv : p.tensors.dk, block, Value ? 1.f : float(p.scale));
  }
};

template <class Spec, class Config>
LUATTN_FN void bwd_d256(const LuattnParams &p, const LuattnTensorMaps &maps, unsigned char *memory) {
  static_assert(BackwardSpec<Spec>);
  using Need = Needs<Spec, Config>;
  const SharedD256<Spec, Config> shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  cluster_sync();
  const int group = int(uniform(threadIdx.x / 128));
  if (group == 0) {
    registers_down<32>();
    const u32 worker = uniform(threadIdx.x / 32);
    if (worker == 0) {
      ProducerD256<Spec, Config>(p, maps, shared).run();
    } else if (worker == 1) {
      if constexpr (Need::dq) SenderD256<Spec, Config>::run(p, maps, shared);
    } else if (worker == 2) {
      if constexpr (Need::dq_in_order) DqInOrderD256<Spec, Config>(p, shared).run();
    } else {
      if constexpr (SharedD256<Spec, Config>::sums != 0) ParametersD256<Spec, Config>(p, shared).run();
    }
  } else if (group == 1) {
    registers_up<160>();
    ScoresD256<Spec, Config>(p, shared).run();
  } else if (group == 2) {
    registers_up<160>();
    if constexpr (Need::dv) SumsD256<Spec, Config, true>(p, shared).run();
  } else {
    registers_up<160>();
    if constexpr (Need::dk) SumsD256<Spec, Config, false>(p, shared).run();
  }
  cluster_sync();  // the other block may still arrive at this one's barriers
}
