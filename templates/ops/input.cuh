// ops/input.cuh: reads the extra inputs of a spec, and adds to their gradients. For generated code.
//
// An index outside its axis is clamped: a spec may compute any index, and no index may read or write foreign
// memory. An input with an axis of size 0 reads as one 0, which the runtime provides. The CPU path does the
// same. The gradient of a clamped gather goes to the element that was read.
#pragma once
#include "ops/hook_types.cuh"
#include "abi/params.h"

LUATTN_FN int clamp_index(int i, int size) { return max_of(min_of(i, size - 1), 0); }

// The start of the last axis, for given indices of the other axes.
template <class Stored, int Last>
LUATTN_FN u64 input_row(const LuattnInput &in, const int *index) {
  u64 at = reinterpret_cast<u64>(in.data);
#pragma unroll
  for (int axis = 0; axis < Last; ++axis)
    at += u64(in.stride[axis]) * sizeof(Stored) * u32(clamp_index(index[axis], in.size[axis]));
  return at;
}

// Elements of a tile differ only in the last index. The rest of the address is one number, kept separate from
// the per-element offset, so that an element costs a multiply-add. An asm statement keeps them separate: the
// compiler would add the two in another order. The runtime ensures that the last stride in bytes fits into 32
// bits.
template <class Stored, class... Index>
LUATTN_FN const Stored *input_at(const LuattnInput &in, Index... index) {
  constexpr int last = int(sizeof...(Index)) - 1;
  const int i[] = {index...};
  u64 at = input_row<Stored, last>(in, i);
  asm("" : "+l"(at));
  at += i64(int(in.stride[last]) * int(sizeof(Stored))) * clamp_index(i[last], in.size[last]);
  return reinterpret_cast<const Stored *>(at);
}

// Flags along the last axis, from its first one: the indices are those of the other axes.
template <class... Index>
LUATTN_FN u64 flags_at(const LuattnInput &in, Index... index) {
  constexpr int last = int(sizeof...(Index));
  if constexpr (last == 0) {
    return reinterpret_cast<u64>(in.data);
  } else {
    const int i[] = {index...};
    return input_row<unsigned char, last>(in, i);
  }
}

// Pitched is the axis whose index is q, or -1 if there is none.
template <class Stored, int Pitched, class... Index>
LUATTN_FN InputRow<Stored> input_row(const LuattnInput &in, Index... index) {
  constexpr int last = int(sizeof...(Index)) - 1;
  const int i[] = {index...};
  const u64 at = input_row<Stored, last>(in, i);
  const i64 pitch = Pitched >= 0 ? i64(in.stride[max_of(Pitched, 0)]) : 0;
  return {reinterpret_cast<const Stored *>(at), i[last], in.size[last], in.stride[last], pitch};
}

// Gradients are contiguous, whatever the strides of the input.
template <class... Index>
LUATTN_FN i64 grad_offset(const LuattnInput &in, Index... index) {
  i64 at = 0;
  int axis = 0;
  ((at = at * in.size[axis] + clamp_index(index, in.size[axis]), ++axis), ...);
  return at;
}

LUATTN_FN double read_input(const double *x) { return __ldg(x); }
LUATTN_FN float read_input(const float *x) { return __ldg(x); }
LUATTN_FN float read_input(const half_t *x) { return to_real(half_t{__ldg(&x->bits)}); }
LUATTN_FN float read_input(const bf16_t *x) { return to_real(bf16_t{__ldg(&x->bits)}); }
LUATTN_FN int read_input(const int *x) { return __ldg(x); }
LUATTN_FN bool read_input(const unsigned char *x) { return __ldg(x) != 0; }
// Integers of other widths become the nearest 32-bit integer.
struct byte_t {
  unsigned char x;
};
LUATTN_FN int read_input(const i64 *x) { return int(min(max(i64(__ldg(x)), i64(-2147483648ll)), i64(2147483647))); }
LUATTN_FN int read_input(const short *x) { return __ldg(x); }
LUATTN_FN int read_input(const byte_t *x) { return __ldg(&x->x); }

// Stored is the input's element type, Value the expression's: Real, int or bool.
template <class Value, class Stored, class... Index>
LUATTN_FN Value load_input(const LuattnInput &in, Index... index) {
  return Value(read_input(input_at<Stored>(in, index...)));
}

// The integer of 64 bits itself.
template <class... Index>
LUATTN_FN i64 load_wide(const LuattnInput &in, Index... index) {
  return __ldg(input_at<i64>(in, index...));
}
LUATTN_FN int narrow(i64 x) { return int(min(max(x, i64(-2147483648ll)), i64(2147483647))); }

#ifndef LUATTN_NO_GRADIENTS
#include "ops/reproducible_sum.cuh"

// Adds to the gradient of an input or a scalar; all such additions come here. A deterministic kernel adds
// into `exact`, which luattn_round converts to numbers.
template <class Real>
LUATTN_FN void add_grad(Real *grad, u64 *exact, i64 count, i64 at, Real x) {
  if constexpr (Config::deterministic)
    exact_add(exact + at, count, grad + at, x);
  else
    atomic_add(grad + at, x);
}

template <class Real, class... Index>
LUATTN_FN void add_input_grad(const LuattnInput &in, Real x, Index... index) {
  if (in.grad != nullptr) add_grad(static_cast<Real *>(in.grad), in.exact, in.count, grad_offset(in, index...), x);
}

// Variants of add_input_grad for gradients that a deterministic kernel adds for each score.
template <class Real, class... Index>
LUATTN_FN void add_input_grad_called(const LuattnInput &in, Real x, Index... index) {
  const i64 at = grad_offset(in, index...);
  if (in.grad != nullptr) exact_add_called(in.exact + at, in.count, static_cast<Real *>(in.grad) + at, x);
}
template <class Real, class... Index>
LUATTN_FN void add_input_grad_together(const LuattnInput &in, Real x, Index... index) {
  const i64 at = grad_offset(in, index...);
  if (in.grad != nullptr) exact_add_together(in.exact + at, in.count, static_cast<Real *>(in.grad) + at, x);
}

// Variant of add_input_grad for sums that may not depend on the order. If the runtime finds that they do not,
// LuattnInput.exact is null, and they are added by plain atomics.
template <class Real, class... Index>
LUATTN_FN void add_input_grad_alone(const LuattnInput &in, Real x, Index... index) {
  const i64 at = grad_offset(in, index...);
  if (in.grad == nullptr) return;
  Real *grad = static_cast<Real *>(in.grad) + at;
  if (in.exact == nullptr)
    atomic_add(grad, x);
  else
    exact_add_called(in.exact + at, in.count, grad, x);
}

// The same where there is nothing else to add: memory need not be 0 before.
template <class Real, class... Index>
LUATTN_FN void add_input_grad_sole(const LuattnInput &in, Real x, Index... index) {
  const i64 at = grad_offset(in, index...);
  if (in.grad == nullptr) return;
  Real *grad = static_cast<Real *>(in.grad) + at;
  if (in.exact == nullptr)
    *grad = x;
  else
    exact_add_called(in.exact + at, in.count, grad, x);
}

// Where such an element lies; null if it is not wanted, or is a sum.
template <class Real, class... Index>
LUATTN_FN Real *input_grad_place(const LuattnInput &in, Index... index) {
  return in.grad == nullptr || in.exact != nullptr ? nullptr : static_cast<Real *>(in.grad) + grad_offset(in, index...);
}

// Variant of add_input_grad for all lanes of a warp at once. If they all add to one element, one lane adds
// their sum.
template <class Real, class... Index>
LUATTN_FN void add_input_grad_by_warp(const LuattnInput &in, Real x, Index... index) {
  if (in.grad == nullptr) return;
  int same;
  __match_all_sync(0xffffffffu, grad_offset(in, index...), &same);
  if (same) {
#pragma unroll
    for (int m = 16; m > 0; m /= 2) x += __shfl_xor_sync(0xffffffffu, x, m);
    if (threadIdx.x % 32 != 0) x = 0;
  }
  if (x != Real(0)) add_input_grad(in, x, index...);
}

// Not used for exact sums. Axis is the only axis that q indexes, or -1.
template <class Real, int Axis = -1, class... Index>
LUATTN_FN GradRow<Real> grad_row(const LuattnInput &in, Real factor, Index... index) {
  constexpr int last = int(sizeof...(Index)) - 1;
  const int i[] = {index...};
  const i64 at = grad_offset(in, index...) - clamp_index(i[last], in.size[last]);
  i64 count = 1, pitch = Axis >= 0;
#pragma unroll
  for (int axis = 0; axis <= last; ++axis) {
    count *= in.size[axis];
    if (axis > Axis) pitch *= in.size[axis];
  }
  Real *grad = static_cast<Real *>(in.grad);
  const bool there = !Config::deterministic || in.exact == nullptr;
  return {grad == nullptr ? nullptr : grad + at, there ? i[last] : -1, in.size[last], at, count - at, factor, pitch};
}

template <class Real>
LUATTN_FN void add_scalar_grad(const LuattnParams &p, int scalar, Real x) {
  if (p.inputs.scalar_grad != nullptr)
    add_grad(static_cast<Real *>(p.inputs.scalar_grad), p.inputs.scalar_exact, p.inputs.num_scalars, scalar, x);
}
#endif
