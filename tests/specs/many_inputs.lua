-- The maximum number of inputs and scalars of a spec.
return attention {
  inputs = {
    i0 = { axes = {"h"}, grad = true },
    i1 = { axes = {"h"}, grad = true },
    i2 = { axes = {"h"}, grad = true },
    i3 = { axes = {"h"}, grad = true },
    i4 = { axes = {"h"}, grad = true },
    i5 = { axes = {"h"}, grad = true },
    i6 = { axes = {"h"}, grad = true },
    i7 = { axes = {"h"}, grad = true },
    e0 = { axes = {"q", "kv"}, grad = true },
    e1 = { axes = {"q", "kv"}, grad = true },
    i8 = { axes = {"h"}, grad = true },
    i9 = { axes = {"h"}, grad = true },
  },
  scalars = {
    s0 = 0.05, s1 = 0.15, s2 = 0.25, s3 = 0.35, s4 = 0.45, s5 = 0.55, s6 = 0.65, s7 = 0.75,
    s8 = 0.85, s9 = 0.95, s10 = 1.05, s11 = 1.15, s12 = 1.25, s13 = 1.35, s14 = 1.45, s15 = 1.55,
    s16 = 1.65, s17 = 1.75, s18 = 1.85, s19 = 1.95, s20 = 2.05, s21 = 2.15, s22 = 2.25, s23 = 2.35,
    s24 = 2.45, s25 = 2.55, s26 = 2.65, s27 = 2.75, s28 = 2.85, s29 = 2.95, s30 = 3.05, s31 = 3.15,
  },
  score_mod = function(score, b, h, q_idx, kv_idx)
    local of_head = i0[h] + i1[h] * i2[h] + i3[h] + i4[h] + i5[h] + i6[h] * score + i7[h]
    local offset = e0[{q_idx, kv_idx}] * e1[{q_idx, kv_idx}] + i8[h]
    local of_element = offset + i9[h] * score
    local linear = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9 + s10 + s11 + s12 + s13 + s14 + s15
    local of_score = score * (s16 + s17 + s18 + s19 + s20 + s21 + s22 + s23)
    local of_distance = (q_idx - kv_idx) * (s24 + s25 + s26 + s27 + s28 + s29 + s30 + s31)
    return score + of_head + of_element + 0.01 * (linear * score + of_score + of_distance)
  end,
}
