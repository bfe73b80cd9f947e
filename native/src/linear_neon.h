// GEMV in NEON: int8 dot products for quantized weights (sdot where there is one), floats for the rest.
#pragma once
#include "linear.h"

namespace olv {
namespace {

// Products of the codes of one group and sixteen int8, summed in fours (sdot), or in twos in 16 bits.
#if defined(__ARM_FEATURE_DOTPROD)
typedef int32x4_t GroupDot;
// The first of four sums begins with the bits of 1.5 · 2^23: the sum of the four, below 2^22, is a float then, of which a
// subtraction leaves the product. A conversion takes two slots of one vector unit on many CPUs. The start of every group of a
// super-block is loaded, because the vector units limit these kernels, and copies of a register take their slots too.
struct alignas(16) DotStart {
  int32_t lane[4] = {0x4b400000, 0, 0, 0};
};
constexpr DotStart kDotStarts[16] = {};  // two halves of super-blocks
OLV_INLINE GroupDot dot_group(int8x16_t a, int8x16_t x, const DotStart* start) {
  return vdotq_s32(vld1q_s32(start->lane), a, x);
}
#else
typedef int16x8_t GroupDot;
struct DotStart {};
constexpr DotStart kDotStarts[16] = {};
OLV_INLINE GroupDot dot_group(int8x16_t a, int8x16_t x, const DotStart*) {
  return vmlal_high_s8(vmull_s8(vget_low_s8(a), vget_low_s8(x)), a, x);  // 2 · 128 · 127 fits
}
#endif

// Keeps the compiler from loading them once.
OLV_INLINE const DotStart* dot_starts() {
  const DotStart* start = kDotStarts;
  asm volatile("" : "+r"(start));
  return start;
}

// Two groups: the sums of one in the lower lanes, of the other in the upper ones.
#if defined(__ARM_FEATURE_DOTPROD)
template <int type>
OLV_INLINE int32x4_t two_dots(GroupDot a, GroupDot b) { return vpaddq_s32(a, b); }
OLV_INLINE float32x4_t as_floats(int32x4_t sums) { return vsubq_f32(vreinterpretq_f32_s32(sums), vdupq_n_f32(0x1.8p23f)); }
#else
template <int type>
OLV_INLINE int32x4_t two_dots(GroupDot a, GroupDot b) {
  if constexpr (has_small_codes(type)) return vpaddlq_s16(vpaddq_s16(a, b));
  else return vpaddq_s32(vpaddlq_s16(a), vpaddlq_s16(b));
}
OLV_INLINE float32x4_t as_floats(int32x4_t sums) { return vcvtq_f32_s32(sums); }
#endif

// Four groups, every second from the first, of half a super-block of each of `wide` weight rows: a sum in each lane.
template <int type, int wide>
OLV_INLINE void four_dots(const HalfCodes (&w)[wide], const int8_t* x, const DotStart* start, int first, float32x4_t (&to)[wide]) {
  GroupDot pair[wide];
  int32x4_t sum[wide][2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int g = first + 2 * i;
    const int8x16_t v = vld1q_s8(x + 16 * g);
#pragma GCC unroll 2
    for (int j = 0; j < wide; ++j) {
      const GroupDot dot = dot_group(w[j].code[g], v, start + 8 * j + g);
      if (i % 2 == 0) pair[j] = dot;
      else sum[j][i / 2] = two_dots<type>(pair[j], dot);
    }
  }
#pragma GCC unroll 2
  for (int j = 0; j < wide; ++j) to[j] = as_floats(vpaddq_s32(sum[j][0], sum[j][1]));
}

// Adds half a super-block times 128 activations: their codes, scales and sums (scale · Σ code). GEMM has the same operations in
// the same order (gemm_dotprod.h).
template <int type, int h, int wide>
OLV_INLINE void add_half(float32x4_t (&acc)[wide], const HalfCodes (&w)[wide], const BlockScales (&s)[wide], const int8_t* code,
                         const float* scale, const float* sum, const DotStart* start) {
  constexpr float offset = float(code_offset(type));
  float32x4_t even[wide], odd[wide];
  four_dots<type>(w, code, start, 0, even);
  four_dots<type>(w, code, start, 1, odd);
  const float32x4_t even_scale = vld1q_f32(scale), odd_scale = vld1q_f32(scale + 4);
#pragma GCC unroll 2
  for (int j = 0; j < wide; ++j) {
    float32x4_t a = vmulq_f32(even[j], even_scale);
    if constexpr (has_group_scales(type)) {
      float32x4_t b = vmulq_f32(odd[j], odd_scale);
      if constexpr (offset != 0) {
        a = vfmsq_f32(a, vld1q_f32(sum), vdupq_n_f32(offset));
        b = vfmsq_f32(b, vld1q_f32(sum + 4), vdupq_n_f32(offset));
      }
      acc[j] = vfmaq_f32(acc[j], a, s[j].even[h]);
      if constexpr (has_minima(type)) acc[j] = vfmaq_f32(acc[j], vld1q_f32(sum), s[j].even_min[h]);
      acc[j] = vfmaq_f32(acc[j], b, s[j].odd[h]);
      if constexpr (has_minima(type)) acc[j] = vfmaq_f32(acc[j], vld1q_f32(sum + 4), s[j].odd_min[h]);
    } else {
      a = vfmaq_f32(a, odd[j], odd_scale);
      const float32x4_t both = vaddq_f32(vld1q_f32(sum), vld1q_f32(sum + 4));
      if constexpr (offset != 0) a = vfmsq_f32(a, both, vdupq_n_f32(offset));
      acc[j] = vfmaq_f32(acc[j], a, s[j].even[h]);
      if constexpr (has_minima(type)) acc[j] = vfmaq_f32(acc[j], both, s[j].even_min[h]);
    }
  }
}

// Up to `most` generated rows in one pass over each `wide` weight rows of [first, last); returns the first of the rest. Each row
// goes through the same operations in the same order, whatever their number.
template <int type, int most, int wide>
int64_t gemv_code_rows(const olv_weight& w, int64_t first, int64_t last, const Activations& x, int64_t r0, float* y,
                       int64_t stride) {
  const int64_t super_blocks = super_blocks_of(w.k), bytes = row_bytes(w);
  const int64_t rows = most == 1 ? 1 : smaller<int64_t>(most, x.count - r0);
  const int64_t near = kNearPrefetch + (wide - 1) * bytes;  // beyond the rows that are read now
  for (; first + wide <= last; first += wide) {
    const uint8_t* row = w.data + first * bytes;
    float32x4_t acc[most][wide];
    for (int64_t r = 0; r < rows; ++r)
#pragma GCC unroll 2
      for (int j = 0; j < wide; ++j) acc[r][j] = vdupq_n_f32(0);
    const auto add_super_block = [&](int64_t i, auto&& block_of) {
      BlockScales s[wide];
#pragma GCC unroll 2
      for (int j = 0; j < wide; ++j) {
        prefetch<(super_block_bytes(type) + 63) / 64>(row + j * bytes + i * super_block_bytes(type), near);
        block_of(j).scales(s[j]);
      }
      const auto half = [&]<int h>() {
        HalfCodes codes[wide];
#pragma GCC unroll 2
        for (int j = 0; j < wide; ++j) unpack_half<type, h>(block_of(j).p, codes[j]);
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t at = (r0 + r) * super_blocks + i, groups = at * kGroups + 8 * h;
          add_half<type, h>(acc[r], codes, s, x.code + at * kSuperBlock + 128 * h, x.scale + groups, x.sum + groups, dot_starts());
        }
      };
      half.template operator()<0>();
      half.template operator()<1>();
    };
    const int64_t whole = type == OLV_GROUPED ? 0 : w.k / kSuperBlock;
    int64_t i = 0;
    for (; i < whole; ++i)
      add_super_block(i, [&](int j) { return WholeBlock<type>{row + j * bytes + i * super_block_bytes(type)}; });
    if constexpr (kTypes[type].block == kSuperBlock) {  // nothing is left
    } else if constexpr (wide == 2) {
      if (i < super_blocks) {
        const RowBlock<type> ends[] = {{w, row, first, i}, {w, row + bytes, first + 1, i}};
        add_super_block(i, [&](int j) -> const auto& { return ends[j]; });
      }
    } else {
      for (; i < super_blocks; ++i) {
        const RowBlock<type> block(w, row, first, i);
        add_super_block(i, [&](int) -> const auto& { return block; });
      }
    }
    for (int64_t r = 0; r < rows; ++r)
#pragma GCC unroll 2
      for (int j = 0; j < wide; ++j) y[(r0 + r) * stride + first + j] = vaddvq_f32(acc[r][j]);
  }
  return first;
}

// Types of which two weight rows fit in registers: they share the loads of x.
constexpr bool takes_two_rows(int type) {
#if !defined(__ARM_FEATURE_DOTPROD)
  return false;
#endif
  return type == OLV_Q4_0 || type == OLV_Q4_1 || type == OLV_Q8_0 || type == OLV_Q4_K || type == OLV_IQ4_NL || type == OLV_IQ4_XS ||
         type == OLV_MXFP4;
}

template <int type, int most>
void gemv_codes(const olv_weight& w, int64_t first, int64_t last, const Activations& x, int64_t r0, float* y, int64_t stride) {
  constexpr int wide = most == 1 && takes_two_rows(type) ? 2 : 1;
  first = gemv_code_rows<type, most, wide>(w, first, last, x, r0, y, stride);
  if constexpr (wide > 1) gemv_code_rows<type, most, 1>(w, first, last, x, r0, y, stride);
}

// `rows` generated rows times `wide` weight rows, [n, n + wide), in four accumulators each.
template <int type, int wide, int rows>
OLV_INLINE void gemv_float_rows(const olv_weight& w, int64_t n, const float* x, float* y, int64_t stride) {
  constexpr int size = kTypes[type].bytes;
  const int64_t whole = w.k / 16 * 16;
  const uint8_t* at = w.data + n * w.k * size;
  const int64_t near = kNearPrefetch + (wide - 1) * w.k * size;  // beyond the rows that are read now
  v16 acc[wide][rows] = {};
  for (int64_t i = 0; i < whole; i += 16) {
#pragma GCC unroll 2
    for (int j = 0; j < wide; ++j) {
      const uint8_t* p = at + (j * w.k + i) * size;
      v16 v;
      if constexpr (type == OLV_F32) v = load_wide<float>(p);
      else if constexpr (type == OLV_F16) v = load_f16s(p);
      else v = load_bf16(p);
      if (size == 4 || i % 32 == 0) prefetch<1>(p, near);
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
