// contract/linear_hooks.cuh: what a Spec of linear attention provides to kernels that walk tokens one by one: each hook
// whole, cut at its sums over the row's channels (gen/analysis/linear/channel_sums.h).
//
//     struct Spec {
//       using Query = .., Key, Value, Decay, Write, Read, Erase, Skip;   // NoHook: absent
//       static constexpr bool before, normalizes;
//     };
//
// A hook is y_d = value(x_d, R), R_i = sum over d of terms i of x_d. Its functions take `p`, the kernel's parameter block, `s`,
// a LinearSite, x, which is 0 where the hook reads no element, `t`, a token's position in its own sequence, and `d`, a channel:
// of v in Value, Write and Skip, else of q and k. In backward, with g, the gradient of y_d, and row, those of R, a hook also has
// weights, which adds to row, dx, the gradient of x_d, and add_value and add_sums, which add to gradients of inputs and scalars.
#pragma once
#include "contract/linear.cuh"

struct NoHook {
  static constexpr bool given = false, by_channel = false;
  static constexpr int sums = 0;
};

template <class H, class Real>
concept LinearHook =
    requires(const LuattnLinearParams &p, const LinearSite &s, Real x, int i, Real *to, const Real *from) {
      { H::sums + 0 };
      requires !H::given || requires { Real(H::value(p, s, x, i, i, from)); };  // by_channel false: equal at every d
      requires H::sums == 0 || requires { H::terms(p, s, x, i, i, to); };       // adds to R
    };

// Config of the recurrent family: named constants.
//   Elem                 the type of q, k, v and o: double, float, half_t or bf16_t
//   Number               the type of sums, states in registers and hooks: double where Elem is, else float
//   k_dim, v_dim         channels of a head
//   v_lane               value channels of the state that a lane has
//   v_block              at most so many of a block
//   batch                tokens whose rows are in shared memory at once
//   ring                 0, or the most rows of a ring (linear_ring.cu)
//   run                  0, or tokens between states that are kept, in backward: a multiple of batch
//   packed               sequences are packed
