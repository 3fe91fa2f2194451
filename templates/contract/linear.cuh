// contract/linear.cuh: what a Spec of linear attention provides, in four parts:
//
//     struct Spec : Decay, Update, RowMods, Skip {};
//
// A value head has a state S [K, V]. Each token takes it on, and reads it:
//
//     S <- Diag(e^g) S;   S <- S - k (r' S)';   S <- S + k (w v)';   o = scale q' S + skip
//
// All numbers of hooks are float. `p` is the kernel's parameter block, `s` a LinearSite, `t` a token's position in its own
// sequence, less than its length, `d` a channel. What a part lacks is a type as well: NoDecay, PlainUpdate, NoRowMods,
// NoSkip.
#pragma once
#include "abi/linear_params.h"
#include "arch/types.cuh"

// The batch entry, the heads of v and of q and k, and where the entry's tokens lie in inputs with an axis of packed rows.
struct LinearSite {
  int b, hv, h;
  int first;  // 0 unless packed
  __device__ __forceinline__ int row(int t) const { return first + t; }
};

// g, the logarithm of a decay: of nothing, of a head (its t is any), of a token, or of a token's channel of k. What lies
// below least_decay counts as that: its exponential is 0 in float, and sums of a chunk's decays keep their digits.
enum DecayOf { DECAY_NONE, DECAY_HEAD, DECAY_TOKEN, DECAY_CHANNEL };
// A NaN stays one.
inline constexpr float least_decay = -128.f;
LUATTN_FN float decay_within(float g) { return g < least_decay ? least_decay : g; }

// Where a decay lies that is an element of an input of float, of which t and d are indices of their own.
template <class S>
concept DecayHasPlace =
    requires(const LuattnLinearParams &p, const LinearSite &s, int t, int d) { S::decay_place(p, s, t, d); };

template <class S>
concept Decay = requires(const LuattnLinearParams &p, const LinearSite &s, int t, int d) {
  requires S::decay_of >= DECAY_NONE &&S::decay_of <= DECAY_CHANNEL;
  requires(S::decay_of == DECAY_HEAD || S::decay_of == DECAY_TOKEN) == requires { float(S::decay(p, s, t)); };
  requires(S::decay_of == DECAY_CHANNEL) == requires { float(S::decay(p, s, t, d)); };
};

// w, and r / k: numbers of a token.
template <class S>
concept Update = requires(const LuattnLinearParams &p, const LinearSite &s, int t) {
  requires S::has_write == requires { float(S::write(p, s, t)); };
  requires S::erases == requires { float(S::read(p, s, t)); };
};

// What rows are multiplied by, and functions of one element.
template <class S>
concept RowMods = requires(const LuattnLinearParams &p, const LinearSite &s, float x, int t, int d) {
  requires S::has_query_factor == requires { float(S::query_factor(p, s, t)); };
  requires S::has_key_factor == requires { float(S::key_factor(p, s, t)); };
  requires S::has_value_mod == requires { float(S::value_mod(p, s, x, t, d)); };
};

// What is added to o: x is v before its mod.
template <class S>
concept Skip = requires(const LuattnLinearParams &p, const LinearSite &s, float x, int t, int d) {
  requires S::has_skip == requires { float(S::skip(p, s, x, t, d)); };
};

// Spec::Query, Key and Value: hooks of rows that luattn_linear_prepare makes (`made`), x being an element of the caller's
// row, or NoRowHook. In backward also what luattn_linear_finish makes of g, the gradient of an element. Constants: of_v:
// rows and channels are those of v; sums, runs, rows: numbers in red and row, of_run, of_row.
//   sum        adds to red the element's part of sums over the row's channels
//   value      the element that main kernels read
//   weigh      adds to row what the element's gradient gives the sums
//   dx         the gradient of x
//   add        gradients of inputs and scalars: to memory, or where all elements of a row, or of a run of tokens of one
//              head, add to one place, to of_row and of_run, which add_rows and add_runs add to memory
// Spec::Decay and Write have these alone, of g, the gradient of a number of a token; Skip has dx and add. A decay of channels that
// is an element of an input has `place`, too: where the gradient of channel 0 goes, and those of others behind it, or null.
struct NoRowHook {
  static constexpr bool made = false, of_v = false, has_terms = false;
  static constexpr int sums = 0, runs = 0, rows = 0;
};

// The hooks of q, k and v; and of what skips.
template <class Spec, int Which>
struct HookOf {
  using Type = typename Spec::Query;
};
template <class Spec>
struct HookOf<Spec, 1> {
  using Type = typename Spec::Key;
};
template <class Spec>
struct HookOf<Spec, 2> {
  using Type = typename Spec::Value;
};
template <class Spec>
constexpr bool HasSkipped = !same_type<typename Spec::Skipped, NoRowHook>::value;
// Whether a kernel before adds what skips has to the gradient of v, whose rows are the caller's.
template <class Config>
concept AddsSkip = requires { requires Config::adds_skip; };
template <class Spec, class Config>
constexpr bool SkipIsAdded = AddsSkip<Config> && HasSkipped<Spec> && !HookOf<Spec, 2>::Type::made;
template <class Spec, bool Skips>
struct SkipOf {
  using Type = NoRowHook;
};
template <class Spec>
struct SkipOf<Spec, true> {
  using Type = typename Spec::Skipped;
};

// Whether the gradient of each channel's decay goes to memory by itself: then the kernel that makes it does that.
template <class S>
concept DecayEndsHere = S::decay_of == DECAY_CHANNEL &&
                        requires { requires S::OfDecay::has_terms && S::OfDecay::runs == 0 && S::OfDecay::rows == 0; };

// Whether such gradients are those of an input's elements, side by side.
template <class S>
concept DecayIsElement = DecayEndsHere<S> && requires(const LuattnLinearParams &p, const LinearSite &s, int t) {
  S::OfDecay::place(p, s, t);
};

// Whether the gradient of w is wanted of updates that add.
template <class S>
concept WriteHasGradient = !S::erases && (requires { requires S::OfWrite::has_terms; } ||
                                          (S::has_write && !requires { S::OfWrite::has_terms; }));

template <class S>
concept LinearSpec = Decay<S> && Update<S> && RowMods<S> && Skip<S>;

struct NoDecay {
  static constexpr DecayOf decay_of = DECAY_NONE;
};
struct PlainUpdate {
  static constexpr bool has_write = false, erases = false;
};
struct NoRowMods {
  static constexpr bool has_query_factor = false, has_key_factor = false, has_value_mod = false;
};
struct NoSkip {
  static constexpr bool has_skip = false;
};

// What a launch computes. Each gradient of an additive update is a pass of the same kind, with other tensors as its query,
// key, value and o; those of k and v go backwards, over pairs j >= i.
//
//     pass            query  key  value  o
//     LINEAR_FORWARD  q      k    v      o
//     LINEAR_GRAD_Q   do     v    k      dq
//     LINEAR_GRAD_K   v      do   q      dk
//     LINEAR_GRAD_V   k      q    do     dv
//
// Gradients of updates that erase, and of decays of channels, take three launches:
//
//     LINEAR_STATES       forwards, without o: keeps the state before each chunk; of erasing updates also U
//     LINEAR_GRAD_STATES  q k do, backwards: keeps the gradient of the state behind each chunk, and that of R
//     LINEAR_ROWS         all chunks at once: dq, dk, dv and gradients of numbers of tokens
//
// The tensor maps of a launch, its `first` and `last` state and Config name these roles: k_dim is of query and key, v_dim
// of value and o. Backwards, the first state is the gradient of the last one, and the last that of the first. o has
// heads_v heads, also where q has fewer: dq and dk of a value head.
enum LinearPass {
  LINEAR_FORWARD,
  LINEAR_GRAD_Q,
  LINEAR_GRAD_K,
  LINEAR_GRAD_V,
  LINEAR_STATES,
  LINEAR_GRAD_STATES,
  LINEAR_ROWS
};

// Config: named constants.
//   pass                 a LinearPass
//   Elem                 the type of q, k, v and o: half_t or bf16_t
//   k_dim, v_dim         channels of a head
//   v_block              value channels of a block: all, or a part, where heads are few
//   stages               of q, k and v
//   packed               sequences are packed
