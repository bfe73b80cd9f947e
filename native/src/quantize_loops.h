// The quantizers. Every search evaluates sixteen candidates at once, one per lane, over the elements of a block in
// order: no sum crosses lanes, so every instruction set computes the same bits.
//
// A block's error is Σ (x - value)². For given codes the best scale (and minimum) is a least-squares fit; the search
// tries the codes of several scales, takes the best fit, and then tries the storable values around it: float16 for
// scales, six or eight bits for sub-block scales.
#pragma once
#include <math.h>

#include <initializer_list>

#include "blocks.h"
#include "vec.h"

namespace olv {
namespace {

constexpr float kTiny = 1e-20f;  // blocks of smaller values are zero in every type with float16 scales

// Rounds to nearest even, for |x| < 2^22: adding 1.5 · 2^23 leaves no bits for a fraction.
OLV_INLINE v16 round_even(v16 x) { return (x + 12582912.f) - 12582912.f; }
OLV_INLINE float round_even(float x) { return (x + 12582912.f) - 12582912.f; }
// With intrinsics: the compiler does not turn the comparison and selection into min and max instructions.
OLV_INLINE v16 clamped(v16 x, float low, float high) {
  for (auto& p : x.p) {
#if defined(__AVX512F__)
    p = _mm512_min_ps(_mm512_max_ps(p, _mm512_set1_ps(low)), _mm512_set1_ps(high));
#elif defined(__AVX2__)
    p = _mm256_min_ps(_mm256_max_ps(p, _mm256_set1_ps(low)), _mm256_set1_ps(high));
#elif defined(OLV_NEON)
    p = vminq_f32(vmaxq_f32(p, vdupq_n_f32(low)), vdupq_n_f32(high));
#else
    p = p < low ? v16::Part{} + low : p;
    p = p > high ? v16::Part{} + high : p;
#endif
  }
  return x;
}
OLV_INLINE float clamped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// start + i · step, for lanes i = 0 … 15.
OLV_INLINE v16 ramp(float start, float step) {
  float each[16];
  for (int i = 0; i < 16; ++i) each[i] = start + step * float(i);
  return loadv(each);
}

inline uint16_t f32_to_f16(float x) {
  const uint32_t u = bits_of(x), sign = u >> 16 & 0x8000;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00);                          // NaN
  if (magnitude >= 0x47800000u) return uint16_t(sign | 0x7c00);                         // 65536 and up
  if (magnitude < 0x38800000u)                                                          // subnormal: units of 2^-24
    return uint16_t(sign | (bits_of(from_bits(magnitude) + 0.5f) - bits_of(0.5f)));
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return uint16_t(sign | ((rounded - 0x38000000u) >> 13));  // may carry into infinity, which is correct
}
inline float as_f16(float x) { return f16_to_f32(f32_to_f16(x)); }
inline void store_f16(uint8_t* to, float x) {
  const uint16_t h = f32_to_f16(x);
  memcpy(to, &h, 2);
}

// The float16 that is `steps` representable values above x in magnitude. x is a float16.
inline float f16_neighbor(float x, int steps) {
  const uint16_t h = f32_to_f16(x);
  const int magnitude = clamped(float((h & 0x7fff) + steps), 0, 0x7bff);
  return f16_to_f32(uint16_t((h & 0x8000) | magnitude));
}

// The first lane with the smallest value.
OLV_INLINE int argmin_lane(v16 x) {
  float each[16], least[16];
  storev(each, x);
  storev(least, x);
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) least[i] = least[i + step] < least[i] ? least[i + step] : least[i];
  int lane = 0;
  for (int i = 15; i >= 0; --i) lane = each[i] == least[0] ? i : lane;
  return lane;
}

inline float largest_magnitude(const float* x, int n) {
  float extreme = 0;
  for (int i = 0; i < n; ++i)
    if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
  return extreme;
}

// ---- symmetric: value = d · code, with codes in low..high

// The errors of sixteen scales, each with its best codes.
template <int N>
OLV_INLINE v16 errors_of_scales(const float* x, v16 d, float low, float high) {
  const v16 inverse = select(d * d > v16{}, 1.f / d, v16{});
  v16 error{};
  for (int i = 0; i < N; ++i) {
    const v16 off = x[i] - d * clamped(round_even(x[i] * inverse), low, high);
    error += off * off;
  }
  return error;
}

// The scale with the best least-squares fit, in float32.
template <int N>
float fitted_scale(const float* x, float low, float high) {
  const float extreme = largest_magnitude(x, N);
  if (fabsf(extreme) < kTiny) return 0;
  float best = 0, scale = 0;
  for (const float end : {low, high}) {  // the code of the largest magnitude, approximately
    const v16 inverse = ramp(end - (end < 0 ? 0.9f : -0.9f), end < 0 ? 0.14f : -0.14f) / extreme;
    v16 xq{}, qq{};
    for (int i = 0; i < N; ++i) {
      const v16 q = clamped(round_even(x[i] * inverse), low, high);
      xq += x[i] * q;
      qq += q * q;
    }
    // The error is Σx² - (Σxq)² / Σq².
    const v16 gain = select(qq > v16{}, xq * xq / qq, v16{});
    const int lane = argmin_lane(-gain);
    if (gain[lane] > best) best = gain[lane], scale = xq[lane] / qq[lane];
  }
  return scale;
}

// The best float16 near a scale, of sixteen from `first` steps away.
template <int N>
float stored_scale(const float* x, float scale, float low, float high, int first) {
  float each[16];
  for (int i = 0; i < 16; ++i) each[i] = f16_neighbor(as_f16(scale), first + i);
  return each[argmin_lane(errors_of_scales<N>(x, loadv(each), low, high))];
}

// Codes of a block minus `low`.
template <int N>
void scale_codes(const float* x, float d, float low, float high, uint8_t* codes) {
  const float inverse = d != 0 ? 1 / d : 0;
  for (int i = 0; i < N; ++i) codes[i] = uint8_t(clamped(round_even(x[i] * inverse), low, high) - low);
}

// ---- affine: value = d · code + m, with codes in 0..max_code

struct Affine {
  float d, m, error;
};

// Updates `best` with the best fit of sixteen sets of codes, those of scale 1 / inverse and minimum `origin`. With
// `nonpositive`, m is at most 0. x has been shifted by -middle.
template <int N>
OLV_INLINE void refine_affine(const float* x, v16 inverse, v16 origin, float max_code, bool nonpositive, float middle,
                              float sx, float sxx, Affine& best) {
  v16 sq{}, sqq{}, sxq{};
  for (int i = 0; i < N; ++i) {
    const v16 q = clamped(round_even((x[i] - origin) * inverse), 0, max_code);
    sq += q;
    sqq += q * q;
    sxq += x[i] * q;
  }
  const v16 det = float(N) * sqq - sq * sq;
  v16 d = select(det > v16{}, (float(N) * sxq - sx * sq) / det, v16{});
  v16 m = (sx - d * sq) / float(N);
  if (nonpositive) {
    const v16i above = m > splat(-middle);
    m = select(above, splat(-middle), m);
    d = select(above & (sqq > v16{}), (sxq - m * sq) / sqq, d);
  }
  v16 error = sxx + d * (d * sqq - 2.f * sxq) + m * (2.f * d * sq + float(N) * m - 2.f * sx);
  error = select(d > v16{}, error, splat(INFINITY));
  const int lane = argmin_lane(error);
  if (error[lane] < best.error) best = {d[lane], m[lane], error[lane]};
}

template <int N>
Affine fitted_affine(const float* values, float max_code, bool nonpositive) {
  float least = values[0], most = values[0];
  for (int i = 1; i < N; ++i) {
    least = smaller(least, values[i]);
    most = larger(most, values[i]);
  }
  if (nonpositive) least = smaller(least, 0.f);
  const float range = most - least, middle = 0.5f * (least + most);
  if (!(range > kTiny)) return {0, nonpositive ? smaller(least, 0.f) : least, 0};
  float x[N], sx = 0, sxx = 0;
  for (int i = 0; i < N; ++i) {
    x[i] = values[i] - middle;
    sx += x[i];
    sxx += x[i] * x[i];
  }
  // Codes for ranges near the real one, aligned to its middle, its minimum or its maximum.
  Affine best{range / max_code, least - middle, INFINITY};
  const v16 inverse = ramp(max_code - 1.2f, 0.18f) / range;
  const v16 width = max_code / inverse;
  refine_affine<N>(x, inverse, -0.5f * width, max_code, nonpositive, middle, sx, sxx, best);
  refine_affine<N>(x, inverse, splat(least - middle), max_code, nonpositive, middle, sx, sxx, best);
  if (!nonpositive) refine_affine<N>(x, inverse, (most - middle) - width, max_code, nonpositive, middle, sx, sxx, best);
  for (int round = 0; round < 2; ++round) {  // around the best so far
    const float before = best.error;
    const v16 near = ramp(0.94f, 0.008f) / best.d;
    refine_affine<N>(x, near, splat(best.m), max_code, nonpositive, middle, sx, sxx, best);
    if (!(best.error < before)) break;
  }
  return {best.d, best.m + middle, best.error};
}

// The errors of sixteen pairs of scale and minimum, each with its best codes.
template <int N>
OLV_INLINE v16 errors_of_affine(const float* x, v16 d, v16 m, float max_code) {
  const v16 inverse = select(d > v16{}, 1.f / d, v16{});
  v16 error{};
  for (int i = 0; i < N; ++i) {
    const v16 y = x[i] - m;
    const v16 off = y - d * clamped(round_even(y * inverse), 0, max_code);
    error += off * off;
  }
  return error;
}

template <int N>
void affine_codes(const float* x, float d, float m, float max_code, uint8_t* codes) {
  const float inverse = d > 0 ? 1 / d : 0;
  for (int i = 0; i < N; ++i) codes[i] = uint8_t(clamped(round_even((x[i] - m) * inverse), 0, max_code));
}

// ---- blocks of 32

// 32 codes as nibbles: byte i holds elements i and i + 16.
inline void pack_nibbles(const uint8_t* codes, uint8_t* to) {
  for (int i = 0; i < 16; ++i) to[i] = uint8_t((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}

inline void pack_fifth_bits(const uint8_t* codes, uint8_t* to) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= uint32_t(codes[i] >> 4 & 1) << i;
  memcpy(to, &bits, 4);
}

inline void quantize_q8_0(const float* x, uint8_t* to) {
  // Code 127 for the largest magnitude is nearly always best; the neighboring float16 scales are tried.
  const float d = stored_scale<32>(x, fabsf(largest_magnitude(x, 32)) / 127, -127, 127, -4);
  uint8_t codes[32];
  scale_codes<32>(x, d, -127, 127, codes);
  store_f16(to, d);
  for (int i = 0; i < 32; ++i) to[2 + i] = uint8_t(codes[i] - 127);
}

template <bool FIVE>
void quantize_signed(const float* x, uint8_t* to) {
  constexpr float low = FIVE ? -16 : -8, high = FIVE ? 15 : 7;
  const float d = stored_scale<32>(x, fitted_scale<32>(x, low, high), low, high, -8);
  uint8_t codes[32];
  scale_codes<32>(x, d, low, high, codes);
  store_f16(to, d);
  if (FIVE) pack_fifth_bits(codes, to + 2);
  pack_nibbles(codes, to + (FIVE ? 6 : 2));
}

template <bool FIVE>
void quantize_affine(const float* x, uint8_t* to) {
  constexpr float max_code = FIVE ? 31 : 15;
  const Affine fit = fitted_affine<32>(x, max_code, false);
  const float d0 = as_f16(fit.d), m0 = as_f16(fit.m);
  float d[16], m[16];
  for (int i = 0; i < 16; ++i) {
    d[i] = f16_neighbor(d0, i / 4 - 2);
    m[i] = f16_neighbor(m0, i % 4 - 2);
  }
  const int lane = argmin_lane(errors_of_affine<32>(x, loadv(d), loadv(m), max_code));
  uint8_t codes[32];
  affine_codes<32>(x, d[lane], m[lane], max_code, codes);
  store_f16(to, d[lane]);
  store_f16(to + 2, m[lane]);
  if (FIVE) pack_fifth_bits(codes, to + 4);
  pack_nibbles(codes, to + (FIVE ? 8 : 4));
}

// ---- super-blocks of 256

// A super-block's scale rounded to float16; subnormals are rounded up: sub-block scales can compensate a scale that is
// too large, but not one that is too small (or zero).
inline float round_super_scale(float d) {
  return fabsf(d) < 0x1p-18f ? copysignf(ceilf(fabsf(d) * 0x1p24f) * 0x1p-24f, d) : as_f16(d);
}

constexpr int kRounds = 3;  // of alternating fits of the super-block's scales and of the codes

// Q4_K and Q5_K: 8 × 32 elements, value = d · scale · code - dmin · min.
struct SubScales {
  float scale[8], min[8];
};

// The best six-bit scale and minimum of every sub-block for given d and dmin; returns the total error.
inline float choose_sub_scales(const float* x, const Affine* fits, float d, float dmin, float max_code, SubScales& s) {
  float total = 0;
  for (int j = 0; j < 8; ++j) {
    const float scale = d > 0 ? round_even(clamped(fits[j].d / d, 0, 63)) : 0;
    const float min = dmin > 0 ? round_even(clamped(-fits[j].m / dmin, 0, 63)) : 0;
    float scales[16], mins[16];
    for (int i = 0; i < 16; ++i) {
      scales[i] = clamped(scale + float(i / 5 - 1), 0, 63);
      mins[i] = clamped(min + float(i % 5 - 2), 0, 63);
    }
    scales[15] = scale;
    mins[15] = min;
    const v16 error = errors_of_affine<32>(x + 32 * j, d * loadv(scales), -(dmin * loadv(mins)), max_code);
    const int lane = argmin_lane(error);
    s.scale[j] = scales[lane];
    s.min[j] = mins[lane];
    total += error[lane];
  }
  return total;
}

// d and dmin by least squares, for the codes of the given sub-block scales.
inline void fit_super(const float* x, const SubScales& s, float max_code, float& d, float& dmin) {
  float aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;  // a = scale · code, b = min
  for (int j = 0; j < 8; ++j) {
    uint8_t codes[32];
    affine_codes<32>(x + 32 * j, d * s.scale[j], -(dmin * s.min[j]), max_code, codes);
    for (int i = 0; i < 32; ++i) {
      const float a = s.scale[j] * float(codes[i]), b = s.min[j];
      aa += a * a;
      ab += a * b;
      bb += b * b;
      xa += x[32 * j + i] * a;
      xb += x[32 * j + i] * b;
    }
  }
  const float det = aa * bb - ab * ab;
  if (bb == 0 && aa > 0) {
    d = xa / aa;
  } else if (det > 1e-6f * aa * bb) {
    d = (xa * bb - xb * ab) / det;
    dmin = (xa * ab - xb * aa) / det;
  }
  d = larger(d, 0.f);
  dmin = larger(dmin, 0.f);
}

template <bool FIVE>
void quantize_affine_super(const float* x, uint8_t* to) {
  constexpr float max_code = FIVE ? 31 : 15;
  Affine fits[8];
  float d = 0, dmin = 0;
  for (int j = 0; j < 8; ++j) {
    fits[j] = fitted_affine<32>(x + 32 * j, max_code, true);
    d = larger(d, fits[j].d / 63);
    dmin = larger(dmin, -fits[j].m / 63);
  }
  SubScales best{};
  float best_d = 0, best_dmin = 0, least = INFINITY;
  for (int round = 0; round < kRounds; ++round) {
    d = round_super_scale(d);
    dmin = round_super_scale(dmin);
    SubScales s;
    const float error = choose_sub_scales(x, fits, d, dmin, max_code, s);
    if (error < least) least = error, best = s, best_d = d, best_dmin = dmin;
    if (round + 1 < kRounds) fit_super(x, s, max_code, d, dmin);
  }

  store_f16(to, best_d);
  store_f16(to + 2, best_dmin);
  uint8_t* packed = to + 4;
  memset(packed, 0, FIVE ? 44 : 12);
  for (int j = 0; j < 8; ++j) {
    const uint8_t scale = uint8_t(best.scale[j]), min = uint8_t(best.min[j]);
    if (j < 4) {
      packed[j] |= scale;
      packed[j + 4] |= min;
    } else {
      packed[j + 4] = uint8_t((scale & 15) | (min & 15) << 4);
      packed[j - 4] |= uint8_t((scale >> 4) << 6);
      packed[j] |= uint8_t((min >> 4) << 6);
    }
  }
  uint8_t* high = to + 16;
  uint8_t* nibbles = to + (FIVE ? 48 : 16);
  for (int j = 0; j < 8; ++j) {
    uint8_t codes[32];
    affine_codes<32>(x + 32 * j, best_d * best.scale[j], -(best_dmin * best.min[j]), max_code, codes);
    for (int l = 0; l < 32; ++l) {
      uint8_t& byte = nibbles[32 * (j / 2) + l];
      byte = j % 2 ? uint8_t(byte | codes[l] << 4) : uint8_t(codes[l] & 15);
      if (FIVE) high[l] |= uint8_t((codes[l] >> 4) << j);
    }
  }
}

// Q6_K: 16 × 16 elements, value = d · scale · code with codes in -32..31.
inline void quantize_q6_k(const float* x, uint8_t* to) {
  float fits[16], extreme = 0;
  for (int g = 0; g < 16; ++g) {
    fits[g] = fitted_scale<16>(x + 16 * g, -32, 31);
    if (fabsf(fits[g]) > fabsf(extreme)) extreme = fits[g];
  }
  float d = extreme / -128, best_d = 0, least = INFINITY, best[16] = {};
  for (int round = 0; round < kRounds; ++round) {
    d = round_super_scale(d);
    const float inverse = d != 0 ? 1 / d : 0;
    float error = 0, scales[16], up = 0, down = 0;
    for (int g = 0; g < 16; ++g) {
      const v16 near = clamped(splat(round_even(clamped(fits[g] * inverse, -128, 127))) + ramp(-7, 1), -128, 127);
      const v16 errors = errors_of_scales<16>(x + 16 * g, d * near, -32, 31);
      const int lane = argmin_lane(errors);
      scales[g] = near[lane];
      error += errors[lane];
      uint8_t codes[16];
      scale_codes<16>(x + 16 * g, d * scales[g], -32, 31, codes);
      for (int i = 0; i < 16; ++i) {
        const float a = scales[g] * (float(codes[i]) - 32);
        up += a * x[16 * g + i];
        down += a * a;
      }
    }
    if (error < least) {
      least = error;
      best_d = d;
      memcpy(best, scales, sizeof best);
    }
    if (down > 0) d = up / down;
  }

  memset(to, 0, 192);
  store_f16(to + 208, best_d);
  for (int g = 0; g < 16; ++g) {
    to[192 + g] = uint8_t(int8_t(best[g]));
    uint8_t codes[16];
    scale_codes<16>(x + 16 * g, best_d * best[g], -32, 31, codes);
    for (int i = 0; i < 16; ++i) {
      const int e = 16 * g + i, h = e / 128, r = e / 32 % 4, l = e % 32;
      to[64 * h + 32 * (r & 1) + l] |= uint8_t((codes[i] & 15) << 4 * (r >> 1));
      to[128 + 32 * h + l] |= uint8_t((codes[i] >> 4) << 2 * r);
    }
  }
}

// ---- rows

template <int N, int BYTES, class F>
void for_each_block(const float* x, int64_t k, uint8_t* to, F&& block) {
  for (int64_t i = 0; i < k / N; ++i) block(x + i * N, to + i * BYTES);
}

inline void quantize(int type, const float* x, int64_t k, uint8_t* to) {
  switch (type) {
    case OLV_F32: memcpy(to, x, size_t(k) * 4); break;
    case OLV_F16: for_each_block<1, 2>(x, k, to, [](const float* v, uint8_t* at) { store_f16(at, *v); }); break;
    case OLV_BF16:
      for_each_block<1, 2>(x, k, to, [](const float* v, uint8_t* at) {
        const uint16_t half = f32_to_bf16(*v);
        memcpy(at, &half, 2);
      });
      break;
    case OLV_Q8_0: for_each_block<32, 34>(x, k, to, quantize_q8_0); break;
    case OLV_Q4_0: for_each_block<32, 18>(x, k, to, quantize_signed<false>); break;
    case OLV_Q5_0: for_each_block<32, 22>(x, k, to, quantize_signed<true>); break;
    case OLV_Q4_1: for_each_block<32, 20>(x, k, to, quantize_affine<false>); break;
    case OLV_Q5_1: for_each_block<32, 24>(x, k, to, quantize_affine<true>); break;
    case OLV_Q4_K: for_each_block<256, 144>(x, k, to, quantize_affine_super<false>); break;
    case OLV_Q5_K: for_each_block<256, 176>(x, k, to, quantize_affine_super<true>); break;
    case OLV_Q6_K: for_each_block<256, 210>(x, k, to, quantize_q6_k); break;
  }
}

}  // namespace
}  // namespace olv
