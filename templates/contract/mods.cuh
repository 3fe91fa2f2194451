// contract/mods.cuh: input mods: one element of q, k or v at position i and channel d, before anything else
// reads it.
#pragma once
#include "contract/absent.cuh"
#include "ops/hook_types.cuh"

// A mod that reads x[..], other elements of its row, has a struct QueryRow, KeyRow or ValueRow, which says
// where they are. The mod gets them as RowValues, after x and g. For channel v * width + j, table t gives
// channel vector(t, v) * width + lane(t, j). Each table is a permutation of the row.
template <class Row>
concept RowMap = requires(int table, int v, int j) {
  requires Row::count >= 1 && Row::width >= 1;
  requires !Row::swaps_halves || Row::count == 1;
  int(Row::vector(table, v));
  int(Row::lane(table, j));
};
template <class S>
concept QueryReadsRow = requires { requires RowMap<typename S::QueryRow>; };
template <class S>
concept KeyReadsRow = requires { requires RowMap<typename S::KeyRow>; };
template <class S>
concept ValueReadsRow = requires { requires RowMap<typename S::ValueRow>; };

// The _grad hooks of backward return d loss / d x and add parameter gradients; g = d loss / d x'. dv_acc
// holds g. dq_acc and dk_acc hold it without the factor scale, by which luattn_finish multiplies.
template <class S, class Real = typename S::Real>
concept ValidPlainMods = requires(const LuattnParams &p, const Site &s, Real x, Real g, int i, int d) {
  requires S::has_query_mod == (QueryReadsRow<S> || requires { Real(S::query_mod(p, s, x, i, d)); });
  requires S::has_key_mod == (KeyReadsRow<S> || requires { Real(S::key_mod(p, s, x, i, d)); });
  requires S::has_value_mod == (ValueReadsRow<S> || requires { Real(S::value_mod(p, s, x, i, d)); });
  requires(S::has_query_mod && S::has_grad) ==
      (requires(typename S::Acc &acc) { Real(S::query_mod_grad(p, s, x, g, i, d, acc)); } ||
       requires(typename S::Acc &acc, const RowValues<Real, S::QueryRow::count> &row) {
         Real(S::query_mod(p, s, x, row, i, d));
         Real(S::query_mod_grad(p, s, x, g, row, i, d, acc));
       });
  requires(S::has_key_mod && S::has_grad) ==
      (requires(typename S::Acc &acc) { Real(S::key_mod_grad(p, s, x, g, i, d, acc)); } ||
       requires(typename S::Acc &acc, const RowValues<Real, S::KeyRow::count> &row) {
         Real(S::key_mod(p, s, x, row, i, d));
         Real(S::key_mod_grad(p, s, x, g, row, i, d, acc));
       });
  requires(S::has_value_mod && S::has_grad) ==
      (requires(typename S::Acc &acc) { Real(S::value_mod_grad(p, s, x, g, i, d, acc)); } ||
       requires(typename S::Acc &acc, const RowValues<Real, S::ValueRow::count> &row) {
         Real(S::value_mod(p, s, x, row, i, d));
         Real(S::value_mod_grad(p, s, x, g, row, i, d, acc));
       });
};

// Beside tangents the hooks are others: ValidDualMods of contract/tangent.cuh.
template <class S>
concept HasDualMods = requires { S::has_dual_mods; };
template <class S>
concept ValidMods = HasDualMods<S> || ValidPlainMods<S>;
