// matrix.cpp: the tensor cores, and the instructions that load their operands from shared memory. PTX ISA,
// 9.7.14 (mma, ldmatrix, stmatrix) and 9.7.15 (wgmma). Products are summed in float, channel by
// channel.
//
// A wgmma is computed when issued, for the warp's own rows. Its operands in shared memory are checked again
// when the warp has waited for the wgmma, to detect writes in the meantime.
#include <bit>
#include <cmath>

#include "decoder.hpp"
#include "races.hpp"

namespace ptx {
namespace {

enum { M = 16, K = 16, MAX_N = 256 };

const float *halves() {
  static const std::vector<float> table = [] {
    std::vector<float> t(65536);
    for (u32 x = 0; x < 65536; ++x) t[x] = half_to_float(u16(x));
    return t;
  }();
  return table.data();
}
float number(Type t, u16 x) { return t == F16 ? halves()[x] : bf16_to_float(x); }

struct Tile {
  float a[M][K], b[K][MAX_N], c[M][MAX_N];
};

// Returns whether all lanes have converged. Fails if one has ended, because the instruction needs all lanes.
bool all_lanes(Warp &w, const Instr &i, u32 lanes) {
  if (!whole_warp(w, i, lanes)) return false;
  if (lanes != ~0u) fault(w, i, "lanes %#x have ended", ~lanes);
  return true;
}

// Computes c += a b over `channels` channels, for n columns.
void multiply(Tile &t, int n, int channels) {
  for (int r = 0; r < M; ++r)
    for (int k = 0; k < channels; ++k) {
      const float x = t.a[r][k];
      for (int j = 0; j < n; ++j) t.c[r][j] += x * t.b[k][j];
    }
}

// Row and column of lane l's accumulator i, or of half h of register i of an A operand.
struct Element {
  int row, col;
};
Element accumulator(int l, int i) { return {l / 4 + 8 * (i / 2 % 2), i / 4 * 8 + 2 * (l % 4) + i % 2}; }
Element of_a(int l, int i, int h) { return {l / 4 + 8 * (i % 2), 2 * (l % 4) + 8 * (i / 2) + h}; }

void take_a(Tile &t, const Warp &w, const Instr &i, size_t first, int registers) {
  for (int r = 0; r < registers; ++r) {
    const u32 *x = w.at<u32>(i.slot[first + size_t(r)]);
    for (int l = 0; l < LANES; ++l)
      for (int h = 0; h < 2; ++h) {
        const Element p = of_a(l, r, h);
        t.a[p.row][p.col] = number(i.from, u16(x[l] >> (16 * h)));
      }
  }
}
void take_c(Tile &t, const Warp &w, const Instr &i, size_t first, int count, bool keep) {
  for (int r = 0; r < count; ++r) {
    const float *x = w.at<float>(i.slot[first + size_t(r)]);
    for (int l = 0; l < LANES; ++l) {
      const Element p = accumulator(l, r);
      t.c[p.row][p.col] = keep ? x[l] : 0;
    }
  }
}
void give_c(const Tile &t, const Warp &w, const Instr &i, int count) {
  for (int r = 0; r < count; ++r) {
    float *x = w.at<float>(i.slot[size_t(r)]);
    for (int l = 0; l < LANES; ++l) {
      const Element p = accumulator(l, r);
      x[l] = t.c[p.row][p.col];
    }
  }
}

// mma.m16n8k16 and k8; slots: d 4, a, b, c 4; imm: channels.
Next mma(Warp &w, const Instr &i, u32 lanes) {
  if (!all_lanes(w, i, lanes)) return Next::WAIT;
  const int a = int(i.imm) / 4, b = a / 2;
  Tile t;
  take_a(t, w, i, 4, a);
  for (int r = 0; r < b; ++r) {
    const u32 *x = w.at<u32>(i.slot[size_t(4 + a + r)]);
    for (int l = 0; l < LANES; ++l)
      for (int h = 0; h < 2; ++h) t.b[8 * r + 2 * (l % 4) + h][l / 4] = number(i.from, u16(x[l] >> (16 * h)));
  }
  take_c(t, w, i, size_t(4 + a + b), 4, true);
  multiply(t, 8, int(i.imm));
  give_c(t, w, i, 4);
  return Next::GO;
}

// mma.m16n8k8 of tf32, of whose registers the last 13 bits do not count.
Next mma_tf32(Warp &w, const Instr &i, u32 lanes) {
  if (!all_lanes(w, i, lanes)) return Next::WAIT;
  const auto of = [&](size_t slot, int l) { return std::bit_cast<float>(w.at<u32>(i.slot[slot])[l] & ~0x1fffu); };
  Tile t;
  for (int l = 0; l < LANES; ++l) {
    for (int r = 0; r < 4; ++r) t.a[l / 4 + 8 * (r % 2)][l % 4 + 4 * (r / 2)] = of(size_t(4 + r), l);
    for (int r = 0; r < 2; ++r) t.b[l % 4 + 4 * r][l / 4] = of(size_t(8 + r), l);
  }
  take_c(t, w, i, 10, 4, true);
  multiply(t, 8, 8);
  give_c(t, w, i, 4);
  return Next::GO;
}

// ---- 8 x 8 matrices: slots are the registers and the address; imm: transposed ----
u16 *row_at(const Warp &w, const Instr &i, u64 address, bool is_load) {
  const Place p = shared_at(w, i, address, 16, 16);
  if (is_load)
    race_read(w, i, p, 16);
  else
    race_write(w, i, p, 16);
  return reinterpret_cast<u16 *>(p.data());
}
template <bool Load>
Next matrices(Warp &w, const Instr &i, u32 lanes) {
  if (!all_lanes(w, i, lanes)) return Next::WAIT;
  touched(w, lanes);
  for (int m = 0; m < i.count; ++m) {
    u32 *x = w.at<u32>(i.slot[size_t(m)]);
    u16 *row[8];
    for (int r = 0; r < 8; ++r) row[r] = row_at(w, i, w.value(i.slot[i.count], 8 * m + r) + u64(i.offset[0]), Load);
    for (int l = 0; l < LANES; ++l) {
      const int r = l / 4, c = 2 * (l % 4);
      u16 &low = i.imm ? row[c][r] : row[r][c], &high = i.imm ? row[c + 1][r] : row[r][c + 1];
      if (Load) {
        x[l] = u32(high) << 16 | low;
      } else {
        low = u16(x[l]);
        high = u16(x[l] >> 16);
      }
    }
  }
  return Next::GO;
}

// ---- wgmma ----
// A matrix descriptor (PTX ISA, "Matrix descriptor format"), which locates groups of 8 elements (16 bytes).
enum Use : u8 { BEGINS, ENDS, LOOKS };  // a product's use of its operands
struct Operand {
  u64 bits;
  const Warp &w;
  const Instr &i;
  Use use;
  u64 start() const { return (bits & 0x3fff) << 4; }
  u64 leading() const { return (bits >> 16 & 0x3fff) << 4; }
  u64 stride() const { return (bits >> 32 & 0x3fff) << 4; }
  enum : u64 { NO_SWIZZLE, SWIZZLE_128 };
  u64 swizzle() const { return bits >> 62; }
  const u16 *at(u64 distance) const {
    const u64 address = start() + distance;
    const Place p = shared_at(w, i, swizzle() == SWIZZLE_128 ? address ^ (address >> 7 & 7) << 4 : address, 16, 16);
    static constexpr u16 not_there[8] = {0x7fff, 0x7fff, 0x7fff, 0x7fff, 0x7fff, 0x7fff, 0x7fff, 0x7fff};
    if (use == BEGINS && !race_operand(w, i, p)) return not_there;
    if (use == ENDS) race_operand_done(w, p);
    return reinterpret_cast<const u16 *>(p.data());
  }
  // K-major: returns row `r`, channels 8 c to 8 c + 7.
  const u16 *along_k(int r, int c) const {
    if (swizzle() == NO_SWIZZLE) return at(u64(r / 8) * stride() + u64(c) * leading() + u64(r % 8) * 16);
    return at(u64(r / 8) * stride() + u64(r % 8) * 128 + u64(c) * 16);
  }
  // MN-major: returns channel k, rows 8 r to 8 r + 7.
  const u16 *along_rows(int k, int r) const {
    return at(u64(r / 8) * leading() + u64(k / 8) * stride() + u64(k % 8) * 128 + u64(r % 8) * 16);
  }
  bool is_known(bool transposed) const {
    if ((bits & 0x3fffc000c000c000) != 0) return false;  // the base offset and reserved bits must be 0
    return swizzle() == SWIZZLE_128 || (swizzle() == NO_SWIZZLE && !transposed);
  }
  // Calls f(row, channel, element) for rows first to first + n - 1.
  template <class F>
  void each_element(bool transposed, int first, int n, F f) const {
    for (int k = 0; transposed && k < K; ++k)
      for (int r = first; r < first + n; r += 8) {
        const u16 *x = along_rows(k, r / 8);
        for (int e = 0; e < 8; ++e) f(r + e - first, k, x[e]);
      }
    for (int r = first; !transposed && r < first + n; ++r)
      for (int c = 0; c < K / 8; ++c) {
        const u16 *x = along_k(r, c);
        for (int e = 0; e < 8; ++e) f(r - first, 8 * c + e, x[e]);
      }
  }
};

// Checks the operands in shared memory and returns their checksum.
u64 checksum(const Warp &w, const Instr &i, u64 a, u64 b, Use use) {
  u64 sum = 0;
  const auto add = [&](int r, int k, u16 x) { sum = sum * 31 + x + u64(r) + u64(k); };
  Operand{b, w, i, use}.each_element(i.b_turned, 0, i.count * 2, add);
  if (i.a_in_shared) Operand{a, w, i, use}.each_element(i.a_turned, w.index % 4 * M, M, add);
  return sum;
}

// Slots: d, a (a descriptor or 4 registers), b, then optionally the predicate that adds d; otherwise imm
// decides. count: accumulators.
Next wgmma(Warp &w, const Instr &i, u32 lanes) {
  if (!all_lanes(w, i, lanes)) return Next::WAIT;
  const size_t first_a = i.count, first_b = first_a + (i.a_in_shared ? 1 : 4);
  const u64 a = i.a_in_shared ? w.value(i.slot[first_a], 0) : 0, b = w.value(i.slot[first_b], 0);
  for (int l = 1; l < LANES; ++l)
    if ((i.a_in_shared && w.value(i.slot[first_a], l) != a) || w.value(i.slot[first_b], l) != b)
      fault(w, i, "lane %d has another descriptor than lane 0", l);
  if (!Operand{b, w, i, LOOKS}.is_known(i.b_turned) || (i.a_in_shared && !Operand{a, w, i, LOOKS}.is_known(i.a_turned)))
    fault(w, i, "this machine knows no operand with such a descriptor");
  const u32 adds = i.slot.size() > first_b + 1 ? w.pred(i.slot[first_b + 1]) : i.imm != 0 ? ~0u : 0;
  if (adds != 0 && adds != ~0u) fault(w, i, "lanes do not agree whether to add");
  const bool keep = adds != 0;
  w.products_seen = ((w.products_seen * 31 + u64(i.line)) * 31 + a) * 31 + b;
  Tile t;
  if (i.a_in_shared)
    Operand{a, w, i, BEGINS}.each_element(i.a_turned, w.index % 4 * M, M,
                                          [&](int r, int k, u16 x) { t.a[r][k] = number(i.from, x); });
  else
    take_a(t, w, i, first_a, 4);
  Operand{b, w, i, BEGINS}.each_element(i.b_turned, 0, i.count * 2,
                                        [&](int n, int k, u16 x) { t.b[k][n] = number(i.from, x); });
  take_c(t, w, i, 0, i.count, keep);
  multiply(t, i.count * 2, K);
  give_c(t, w, i, i.count);
  w.products.open.push_back({&i, a, b, checksum(w, i, a, b, LOOKS)});
  return Next::GO;
}
Next wgmma_commit(Warp &w, const Instr &i, u32 lanes) {
  if (!all_lanes(w, i, lanes)) return Next::WAIT;
  w.products.close();
  return Next::GO;
}
Next wgmma_wait(Warp &w, const Instr &i, u32 lanes) {
  if (!all_lanes(w, i, lanes)) return Next::WAIT;
  while (i64(w.products.closed.size()) > i.imm) {
    for (const Product &p : w.products.closed.front()) {
      if (checksum(w, *p.instr, p.a, p.b, ENDS) == p.checksum) continue;
      if (!multiplies_nothing(w))
        fault(w, *p.instr, "an operand in shared memory was written before the product was waited for");
      for (int r = 0; r < p.instr->count; ++r) std::fill_n(w.at<float>(p.instr->slot[size_t(r)]), int(LANES), NAN);
    }
    w.products.closed.pop_front();
  }
  return Next::GO;
}
Next wgmma_fence(Warp &w, const Instr &i, u32 lanes) { return all_lanes(w, i, lanes) ? Next::GO : Next::WAIT; }

bool decode_wgmma(Decoder &d) {
  Instr &i = d.instr;
  if (d.has("fence")) return i.run = wgmma_fence, true;
  if (d.has("commit_group")) return i.run = wgmma_commit, true;
  if (d.has("wait_group")) return i.imm = i64(d.arg(0).bits), i.run = wgmma_wait, true;
  if (!d.has("mma_async") || !d.has("f32")) return false;
  i.from = d.has("bf16") ? BF16 : d.has("f16") ? F16 : NO_TYPE;
  i.a_in_shared = d.args.size() > 1 && d.arg(1).kind != Arg::VECTOR;
  if (i.from == NO_TYPE || d.args.size() != (i.a_in_shared ? 8 : 7)) return false;
  for (const Arg &a : d.arg(0).items) d.value(a, false);
  i.count = u16(d.arg(0).items.size());
  if (i.a_in_shared) d.value(d.arg(1), true);
  for (const Arg &a : d.arg(1).items) d.value(a, false);
  d.value(d.arg(2), true);
  if (d.arg(3).constant)
    i.imm = i64(d.arg(3).bits);
  else
    d.value(d.arg(3), false);
  if (d.arg(4).bits != 1 || d.arg(5).bits != 1) return false;  // operands are not negated
  i.a_turned = i.a_in_shared && d.arg(6).bits != 0;
  i.b_turned = d.arg(i.a_in_shared ? 7 : 6).bits != 0;
  i.run = wgmma;
  return true;
}

}  // namespace

bool decode_matrix(Decoder &d) {
  const std::string_view op = d.op();
  Instr &i = d.instr;
  if (op == "wgmma") return decode_wgmma(d);
  if (op == "mma") {
    i.imm = d.has("m16n8k16") ? 16 : d.has("m16n8k8") ? 8 : 0;
    const bool tf32 = d.has("tf32") && i.imm == 8;
    i.from = d.has("bf16") ? BF16 : d.has("f16") ? F16 : NO_TYPE;
    if (i.imm == 0 || (i.from == NO_TYPE && !tf32)) return false;
    for (const Arg &many : d.args)
      for (const Arg &a : many.items) d.value(a, false);
    i.run = tf32 ? mma_tf32 : mma;
    if (tf32) return i.slot.size() == 14;
    return i.slot.size() == size_t(8 + i.imm / 4 + i.imm / 8);
  }
  if (op != "ldmatrix" && op != "stmatrix") return false;
  const bool load = op == "ldmatrix";
  const Arg &many = d.arg(load ? 0 : 1);
  for (const Arg &a : many.items) d.value(a, false);
  i.count = u16(many.items.size());
  d.address(d.arg(load ? 1 : 0));
  i.imm = d.has("trans");
  i.run = load ? matrices<true> : matrices<false>;
  return d.has("m8n8") && d.has("b16");
}

}  // namespace ptx
