// contract/contract.cuh: what a generated Spec and Config provide, which is all that a kernel may use of
// them.
//
// A kernel is a template over <class Spec, class Config>. gen/emit writes one Spec (spec.cuh) and one Config
// (config.cuh) for each compilation; example/spec.cuh is one written by hand. A Spec is composed of parts:
//
//     struct Spec : Mask, Score, Online, Grad, Mods {};
//
// Each part is a struct of constants and hooks, and a file of this folder has its concept. What a spec lacks
// is a type as well (absent.cuh): a whole part (`EveryKv`, `NoGrad`, `NoMods`) or a base of one (`struct
// Score : NoBiasRow, ..`). So a hook exists exactly where its constant says so, and nothing has a default.
// The first line of every kernel says which Spec it takes (`static_assert(ForwardSpec<Spec>)`).
//
// The same contract serves every kernel family. A hook is inlined. If it is large, it passes its values to a
// function of the same Spec, `<hook>_outlined`, and is inlined itself. It never passes references, which
// would force a kernel's registers to memory. Kernels need not know.
#pragma once
#include "contract/grad.cuh"
#include "contract/keys.cuh"
#include "contract/mask.cuh"
#include "contract/mods.cuh"
#include "contract/online.cuh"
#include "contract/score.cuh"

// Common to all parts: Real, the type in which a kernel accumulates, and the values that the generator
// hoisted. `p` is the kernel's parameter block, `s` a Site.
//   Head head(p, s)      once per (b, h)
//   Row row(p, s, head, q)
//                        once per row, q < q_len
//   Col col(p, s, head, kv)
//                        once per column. Like score, it may be called for kv past the end, and the result is
//                        dropped: loads clamp their indices
template <class S>
concept Hoists = requires(const LuattnParams &p, const Site &s, const typename S::Head &head, int at, HookKey key) {
  typename S::Real;
  { S::head(p, s) };
  { S::row(p, s, head, at) };
  { S::col(p, s, head, key) };
};

template <class S>
concept ValidSpec = Hoists<S> && ValidMask<S> && ValidScore<S> && ValidOnline<S> && ValidGrad<S> && ValidMods<S>;
template <class S>
concept ForwardSpec = ValidSpec<S> && S::has_online && S::has_score;
template <class S>
concept BackwardSpec = ValidSpec<S> && S::has_grad;

// Config: named constants.
//   Elem                 the storage type: float, double, half_t, bf16_t
//   head_dim, head_dim_v, tile_m, tile_n, threads, stages
//                        and constants of only one family, which begin with its name
//   fast_math            approximate functions are allowed
//   wants_dq, wants_dk, wants_dv, wants_inputs, wants_scalars
//                        backward: what is computed
//   accumulates_dq       luattn_dkdv adds into dq_acc, there is no luattn_dq
//   deterministic        the same bits in every run: work/dq_order.cuh, ops/reproducible_sum.cuh
//   dq_first_store       dq_acc is not zeroed: sm90/bwd/dq_first_store.cuh
//   dropout_keep         a weight is kept with probability dropout_keep / 256; 256: none is dropped
//   LUATTN_WGMMA_WIDTHS  a macro: which widths of arch/wgmma.cuh a kernel uses, where the generator knows
//                        them
