// contract/mods.cuh: input mods: one element of q, k or v at position i and channel d, before anything else
// reads it.
#pragma once
#include "contract/absent.cuh"
#include "ops/hook_types.cuh"

// The _grad hooks, of backward, return d loss / d x and add parameter gradients; g = d loss / d x'. dq_acc
// and dk_acc hold that without the factor scale, dv_acc as it is; luattn_finish multiplies.
template <class S, class Real = typename S::Real>
concept ValidMods = requires(const LuattnParams &p, const Site &s, Real x, Real g, int i, int d) {
  requires S::has_query_mod == requires { Real(S::query_mod(p, s, x, i, d)); };
  requires S::has_key_mod == requires { Real(S::key_mod(p, s, x, i, d)); };
  requires S::has_value_mod == requires { Real(S::value_mod(p, s, x, i, d)); };
  requires(S::has_query_mod && S::has_grad) ==
      requires(typename S::Acc &acc) { Real(S::query_mod_grad(p, s, x, g, i, d, acc)); };
  requires(S::has_key_mod && S::has_grad) ==
      requires(typename S::Acc &acc) { Real(S::key_mod_grad(p, s, x, g, i, d, acc)); };
  requires(S::has_value_mod && S::has_grad) ==
      requires(typename S::Acc &acc) { Real(S::value_mod_grad(p, s, x, g, i, d, acc)); };
};
