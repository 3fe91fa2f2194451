// contract/needs.cuh: which gradients a backward image computes, and in which of its kernels.
#pragma once
#include "contract/contract.cuh"

// The gradients that a backward image computes. luattn_finish computes parameter gradients of an input mod
// from the gradient of the modified tensor, whether or not the caller wants the gradient of the tensor
// itself.
template <class Spec, class Config>
struct Needs {
  static constexpr bool parameters = Config::wants_inputs || Config::wants_scalars;
  static constexpr bool dq = Config::wants_dq || (Spec::has_query_mod && parameters);
  static constexpr bool dk = Config::wants_dk || (Spec::has_key_mod && parameters);
  static constexpr bool dv = Config::wants_dv || (Spec::has_value_mod && parameters);
  static constexpr bool dkdv = dk || dv || parameters || (dq && Config::accumulates_dq);
  static constexpr bool dq_alone = dq && !Config::accumulates_dq;  // luattn_dq
  // work/dq_order.cuh, sm90/bwd/dq_first_store.cuh
  static constexpr bool dq_in_order = dq && Config::accumulates_dq && Config::deterministic;
  static constexpr bool dq_first_store = dq && Config::accumulates_dq && Config::dq_first_store;
  static constexpr bool finish_q = dq && (Spec::has_query_mod || Config::accumulates_dq);
  static constexpr bool finish_k = dk && Spec::has_key_mod, finish_v = dv && Spec::has_value_mod;
};

// The parameter gradients that a kernel computes from the dS tile in shared memory
// (sm80/parameter_grads_sm80.cuh, simt/parameter_grads_simt.cuh).
template <class Spec, class Config>
struct SharedSums {
  static constexpr int wanted = Needs<Spec, Config>::parameters ? Spec::parameter_sums : 0;
  static constexpr bool any = wanted != 0;
  static constexpr bool cols = (wanted & SUM_COL) != 0, rows = (wanted & SUM_ROW) != 0,
                        distances = (wanted & SUM_DISTANCE) != 0;
  static_assert((wanted & (SUM_ELEMENT | SUM_LINEAR)) == 0, "grad adds these");
};

// Backward with tangents: the gradients behind mods that luattn_finish needs themselves (contract/tangent.cuh).
template <class Spec, class Config>
struct NeedsValues {
  static constexpr bool parameters = false;
  static constexpr bool dq = Needs<Spec, Config>::dq && Spec::query_grad_values;
  static constexpr bool dk = Needs<Spec, Config>::dk && Spec::key_grad_values;
  static constexpr bool dv = Needs<Spec, Config>::dv && Spec::value_grad_values;
};
