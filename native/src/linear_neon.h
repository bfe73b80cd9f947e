// GEMV in NEON: int8 dot products for quantized weights (sdot where there is one), floats for the rest.
#pragma once
#include "linear.h"

namespace olv {
namespace {

// Products of the codes of one group and sixteen int8, summed in fours (sdot), or in twos in 16 bits.
#if defined(__ARM_FEATURE_DOTPROD)
typedef int32x4_t GroupDot;
OLV_INLINE GroupDot dot_group(int8x16_t a, const int8_t* x) { return vdotq_s32(vdupq_n_s32(0), a, vld1q_s8(x)); }
#else
typedef int16x8_t GroupDot;
OLV_INLINE GroupDot dot_group(int8x16_t a, const int8_t* x) {
  const int8x16_t b = vld1q_s8(x);  // 2 · 128 · 127 fits
  return vmlal_high_s8(vmull_s8(vget_low_s8(a), vget_low_s8(b)), a, b);
}
#endif

// Two groups: the sums of one in the lower lanes, of the other in the upper ones.
template <int type>
OLV_INLINE int32x4_t two_dots(GroupDot a, GroupDot b) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vpaddq_s32(a, b);
#else
  if constexpr (has_small_codes(type)) return vpaddlq_s16(vpaddq_s16(a, b));
  else return vpaddq_s32(vpaddlq_s16(a), vpaddlq_s16(b));
#endif
}

// Four groups, every second from the first: a sum in each lane.
template <int type>
OLV_INLINE float32x4_t four_dots(const HalfCodes& w, const int8_t* x, int first) {
  const auto dot = [&](int g) { return dot_group(w.code[first + g], x + 16 * (first + g)); };
  return vcvtq_f32_s32(vpaddq_s32(two_dots<type>(dot(0), dot(2)), two_dots<type>(dot(4), dot(6))));
}

// Adds half a super-block times 128 activations: their codes, scales and sums (scale · Σ code). GEMM has the same operations in
// the same order (gemm_dotprod.h).
template <int type, int h>
OLV_INLINE float32x4_t add_half(float32x4_t acc, const HalfCodes& w, const BlockScales& s, const int8_t* code,
                                const float* scale, const float* sum) {
  const float32x4_t even = four_dots<type>(w, code, 0), odd = four_dots<type>(w, code, 1);
  float32x4_t a = vmulq_f32(even, vld1q_f32(scale)), b{};
  if constexpr (has_group_scales(type)) b = vmulq_f32(odd, vld1q_f32(scale + 4));
  else a = vfmaq_f32(a, odd, vld1q_f32(scale + 4));
  if constexpr (code_offset(type) != 0) {
    const float32x4_t offset = vdupq_n_f32(float(code_offset(type)));
    a = vfmsq_f32(a, vld1q_f32(sum), offset);
    if constexpr (has_group_scales(type)) b = vfmsq_f32(b, vld1q_f32(sum + 4), offset);
    else a = vfmsq_f32(a, vld1q_f32(sum + 4), offset);
  }
  acc = vfmaq_f32(acc, a, s.even[h]);
  if constexpr (has_minima(type)) acc = vfmaq_f32(acc, vld1q_f32(sum), s.even_min[h]);
  if constexpr (has_group_scales(type)) acc = vfmaq_f32(acc, b, s.odd[h]);
  if constexpr (has_minima(type)) acc = vfmaq_f32(acc, vld1q_f32(sum + 4), has_group_scales(type) ? s.odd_min[h] : s.even_min[h]);
  return acc;
}

// Up to `most` generated rows in one pass over weight rows [first, last). Each row goes through the same operations in
// the same order, whatever their number.
template <int type, int most>
void gemv_codes(const olv_weight& w, int64_t first, int64_t last, const Activations& x, int64_t r0, float* y, int64_t stride) {
  const int64_t super_blocks = super_blocks_of(w.k), bytes = row_bytes(w);
  const int64_t rows = most == 1 ? 1 : smaller<int64_t>(most, x.count - r0);
  for (int64_t n = first; n < last; ++n) {
    const uint8_t* row = w.data + n * bytes;
    float32x4_t acc[most];
    for (int64_t r = 0; r < rows; ++r) acc[r] = vdupq_n_f32(0);
    for (int64_t i = 0; i < super_blocks; ++i) {
      const RowBlock<type> block(w, row, n, i);
      prefetch<(super_block_bytes(type) + 63) / 64>(row + i * super_block_bytes(type));
      BlockScales s;
      block.scales(s);
      const auto half = [&]<int h>() {
        HalfCodes codes;
        unpack_half<type, h>(block.p, codes);
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t at = (r0 + r) * super_blocks + i, groups = at * kGroups + 8 * h;
          acc[r] = add_half<type, h>(acc[r], codes, s, x.code + at * kSuperBlock + 128 * h, x.scale + groups, x.sum + groups);
        }
      };
      half.template operator()<0>();
      half.template operator()<1>();
    }
    for (int64_t r = 0; r < rows; ++r) y[(r0 + r) * stride + n] = vaddvq_f32(acc[r]);
  }
}

// `rows` generated rows times `wide` weight rows, [n, n + wide), in four accumulators each.
template <int type, int wide, int rows>
OLV_INLINE void gemv_float_rows(const olv_weight& w, int64_t n, const float* x, float* y, int64_t stride) {
  constexpr int size = kTypes[type].bytes;
  const int64_t whole = w.k / 16 * 16;
  const uint8_t* at = w.data + n * w.k * size;
  v16 acc[wide][rows] = {};
  for (int64_t i = 0; i < whole; i += 16) {
#pragma GCC unroll 2
    for (int j = 0; j < wide; ++j) {
      const uint8_t* p = at + (j * w.k + i) * size;
      v16 v;
      if constexpr (type == OLV_F32) v = load_wide<float>(p);
      else if constexpr (type == OLV_F16) v = load_f16s(p);
      else v = load_bf16(p);
      if (size == 4 || i % 32 == 0) prefetch<1>(p);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int part = 0; part < kRegisters; ++part)
          acc[j][r].p[part] = vfmaq_f32(acc[j][r].p[part], v.p[part], vld1q_f32(x + r * w.k + i + 4 * part));
    }
  }
  // Unrolled, because arrays with variable indices are kept in memory.
#pragma GCC unroll 2
  for (int j = 0; j < wide; ++j)
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) y[r * stride + n + j] = sum16(acc[j][r]);
  for (int j = 0; j < wide && whole < w.k; ++j) {
    float rest[kSuperBlock];
    unpack_floats<type>(w, n + j, whole / kSuperBlock, rest);
    for (int r = 0; r < rows; ++r)
      for (int64_t i = whole; i < w.k; ++i) {
        float& sum = y[r * stride + n + j];
        sum = __builtin_fmaf(rest[i % kSuperBlock], x[r * w.k + i], sum);
      }
  }
}

template <int type, int rows>
void gemv_floats(const olv_weight& w, int64_t first, int64_t last, const float* x, float* y, int64_t stride) {
  constexpr int wide = rows > 2 ? 1 : 2;  // as many accumulators as hide the latency and fit in registers
  int64_t n = first;
  for (; n + wide <= last; n += wide) gemv_float_rows<type, wide, rows>(w, n, x, y, stride);
  if (n < last) gemv_float_rows<type, 1, rows>(w, n, x, y, stride);
}

inline void gemv_neon(const olv_weight& w, int64_t first, int64_t last, const Activations& x, float* y, int64_t stride) {
  if (is_expanded(w.type))  // as they lie, for one row
    return with_expanded_type(w.type, [&]<int type>() { gemv_codes<type, 1>(w, first, last, x, 0, y, stride); });
  if (is_quantized(w.type) && !has_super_blocks(w)) return gemv(w, first, last, x, y, stride);
  with_type(w.type, [&]<int type>() {
    if constexpr (is_quantized(type)) {
      for (int64_t r = 0; r < x.count; r += kGemvRows) {
        if (x.count - r == 1) gemv_codes<type, 1>(w, first, last, x, r, y, stride);
        else gemv_codes<type, int(kGemvRows)>(w, first, last, x, r, y, stride);
      }
    } else {
      for (int64_t r = 0; r < x.count; r += 4) {
        const float* v = x.values + r * x.k;
        float* to = y + r * stride;
        switch (x.count - r) {
          case 1: gemv_floats<type, 1>(w, first, last, v, to, stride); break;
          case 2: gemv_floats<type, 2>(w, first, last, v, to, stride); break;
          case 3: gemv_floats<type, 3>(w, first, last, v, to, stride); break;
          default: gemv_floats<type, 4>(w, first, last, v, to, stride);
        }
      }
    }
  });
}

// Generated rows: int8 in groups of 16, with scales and sums in the order of BlockScales. Four groups at a time.
inline void quantize_neon(const float* x, int64_t k, int8_t* code, float* scale, float* sum) {
  const int64_t padded = super_blocks_of(k) * kSuperBlock;
  for (int64_t first = 0; first < padded; first += 128, scale += 8, sum += 8)
    for (int odd = 0; odd < 2; ++odd) {
      v16 v[4];
      v16::Part size[4];
      for (int i = 0; i < 4; ++i) {
        const int64_t at = first + 32 * i + 16 * odd;
        v[i] = at + 16 <= k ? loadv(x + at) : load_partial(x + at, larger<int64_t>(0, k - at));
        size[i] = vmaxq_f32(vmaxq_f32(vabsq_f32(v[i].p[0]), vabsq_f32(v[i].p[1])),
                            vmaxq_f32(vabsq_f32(v[i].p[2]), vabsq_f32(v[i].p[3])));
      }
      const float32x4_t largest = vpmaxq_f32(vpmaxq_f32(size[0], size[1]), vpmaxq_f32(size[2], size[3]));
      const float32x4_t all = vdupq_n_f32(127), step = vdivq_f32(largest, all);
      const uint32x4_t some = vcgtq_f32(largest, vdupq_n_f32(0));
      const float32x4_t inverse = vreinterpretq_f32_u32(vandq_u32(some, vreinterpretq_u32_f32(vdivq_f32(all, largest))));
      int32x4_t total[4];
      for (int i = 0; i < 4; ++i) {
        int32x4_t q[4];
        for (int j = 0; j < 4; ++j) q[j] = vcvtnq_s32_f32(vmulq_n_f32(v[i].p[j], inverse[i]));
        total[i] = vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3]));
        const int16x8_t low = vcombine_s16(vmovn_s32(q[0]), vmovn_s32(q[1]));
        const int16x8_t high = vcombine_s16(vmovn_s32(q[2]), vmovn_s32(q[3]));
        vst1q_s8(code + first + 32 * i + 16 * odd, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
      }
      const int32x4_t sums = vpaddq_s32(vpaddq_s32(total[0], total[1]), vpaddq_s32(total[2], total[3]));
      vst1q_f32(scale + 4 * odd, step);
      vst1q_f32(sum + 4 * odd, vmulq_f32(step, vcvtq_f32_s32(sums)));
    }
}

}  // namespace
}  // namespace olv
