// int8 GEMM with sdot. A register has four groups of 16, every second of half a super-block, a lane for each: four dot products
// of words add up in the lanes that scales are in (unpack_neon.h), without horizontal sums.
#pragma once
#include "linear_neon.h"
#include "measure.h"

namespace olv {
namespace {

constexpr int64_t kTileRows = 2;  // 8 accumulators and 8 dot products; with three rows, GCC 12 spills some of 24
constexpr bool has_int8_gemm(int type) { return is_quantized(type); }

// Half a super-block in the order of lanes: words 0, 1, 2 and 3 of the even groups, then those of the odd ones.
OLV_INLINE void store_lanes(const HalfCodes& half, int8_t* to) {
  const auto trn1 = [](int32x4_t a, int32x4_t b) { return vreinterpretq_s64_s32(vtrn1q_s32(a, b)); };
  const auto trn2 = [](int32x4_t a, int32x4_t b) { return vreinterpretq_s64_s32(vtrn2q_s32(a, b)); };
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd, to += 64) {
    const auto group = [&](int i) { return vreinterpretq_s32_s8(half.code[2 * i + odd]); };
    const int64x2_t even[2] = {trn1(group(0), group(1)), trn1(group(2), group(3))};
    const int64x2_t rest[2] = {trn2(group(0), group(1)), trn2(group(2), group(3))};
    vst1q_s8(to, vreinterpretq_s8_s64(vtrn1q_s64(even[0], even[1])));
    vst1q_s8(to + 16, vreinterpretq_s8_s64(vtrn1q_s64(rest[0], rest[1])));
    vst1q_s8(to + 32, vreinterpretq_s8_s64(vtrn2q_s64(even[0], even[1])));
    vst1q_s8(to + 48, vreinterpretq_s8_s64(vtrn2q_s64(rest[0], rest[1])));
  }
}

// Prompt rows: as generated ones, but in the order of lanes.
inline void quantize_prompt_dotprod(const float* x, int64_t k, int8_t* code, float* scale, float* sum) {
  quantize_neon(x, k, code, scale, sum);
  for (int64_t at = 0; at < super_blocks_of(k) * kSuperBlock; at += 128) {
    HalfCodes half;
    for (int g = 0; g < 8; ++g) half.code[g] = vld1q_s8(code + at + 16 * g);
    store_lanes(half, code + at);
  }
}

// Signed codes in the order of lanes, scales and minima in that of BlockScales.
template <int type>
OLV_INLINE void unpack_lanes(const olv_weight& w, int64_t n, int64_t i, SuperBlock& to) {
  const uint8_t* row = w.data + n * row_bytes(w);
  const RowBlock<type> block(w, row, n, i);
  prefetch<(super_block_bytes(type) + 63) / 64>(row + i * super_block_bytes(type));
  BlockScales s;
  block.scales(s);
  const auto half = [&]<int h>() {
    HalfCodes codes;
    unpack_half<type, h>(block.p, codes);
    store_lanes(codes, reinterpret_cast<int8_t*>(to.code) + 128 * h);
    vst1q_f32(to.scale + 8 * h, s.even[h]);
    if constexpr (has_group_scales(type)) vst1q_f32(to.scale + 8 * h + 4, s.odd[h]);
    if constexpr (has_minima(type)) {
      vst1q_f32(to.min + 8 * h, s.even_min[h]);
      if constexpr (has_group_scales(type)) vst1q_f32(to.min + 8 * h + 4, s.odd_min[h]);
    }
  };
  half.template operator()<0>();
  half.template operator()<1>();
}

// Where eight dot products of a tile begin: the bits of 1.5 · 2^23. Dot products of 16 are below 2^22, so that as integers added
// to them they are floats, of which a subtraction leaves the product (linear_neon.h).
struct alignas(16) TileStarts {
  int32_t lane[4 * kTileRows * 4];
  constexpr TileStarts() : lane() {
    for (int32_t& each : lane) each = 0x4b400000;
  }
};
constexpr TileStarts kTileStarts;

// What is done with dot products, in the order of operations of GEMV (add_half): bits are those of generated rows. Types that
// do the same share the code.
enum Offset { kNone, kOffset, kMinima };
template <bool group_scales, Offset offset, int rows>
void multiply_lanes(const SuperBlock* w, const Activations& x, int64_t r0, float code_offset, const float* bias, int64_t count,
                    float* y, int64_t stride) {
  float32x4_t magic = vdupq_n_f32(0x1.8p23f);
  asm("" : "+w"(magic));  // else GCC has it in two registers: to subtract it, it adds the negative
  const int64_t super_blocks = super_blocks_of(x.k);
  float32x4_t acc[rows][4];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) acc[r][n] = vdupq_n_f32(0);
  const int64_t next = super_blocks * kSuperBlock, next_scales = super_blocks * kGroups;  // row of x
  for (int64_t i = 0; i < super_blocks; ++i, w += 4) {
    const int8_t* code = x.code + r0 * next + i * kSuperBlock;
    const float* scale = x.scale + r0 * next_scales + i * kGroups;
    const float* sum = x.sum + r0 * next_scales + i * kGroups;
    constexpr int fours = group_scales ? 1 : 2;  // of groups that have the same scales
    for (int four = 0; four < 4; four += fours) {
      float32x4_t part[rows][4];
#pragma GCC unroll 2
      for (int j = 0; j < fours; ++j) {
        const int at = four + j;
        const int32_t* start = kTileStarts.lane;
        asm volatile("" : "+r"(start));  // else the compiler loads it once, and copies a register
        int32x4_t dot[rows][4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
          int8x16_t v[rows];
#pragma GCC unroll 4
          for (int r = 0; r < rows; ++r) v[r] = vld1q_s8(code + r * next + 64 * at + 16 * c);
#pragma GCC unroll 4
          for (int n = 0; n < 4; ++n) {
            const int8x16_t u = vld1q_s8(reinterpret_cast<const int8_t*>(w[n].code) + 64 * at + 16 * c);
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r) dot[r][n] = vdotq_s32(c ? dot[r][n] : vld1q_s32(start + 16 * r + 4 * n), u, v[r]);
          }
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
          const float32x4_t x_scale = vld1q_f32(scale + r * next_scales + 4 * at);
#pragma GCC unroll 4
          for (int n = 0; n < 4; ++n) {
            const float32x4_t product = vsubq_f32(vreinterpretq_f32_s32(dot[r][n]), magic);
            part[r][n] = j ? vfmaq_f32(part[r][n], product, x_scale) : vmulq_f32(product, x_scale);
          }
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        float32x4_t x_sum = vld1q_f32(sum + r * next_scales + 4 * four);
        if (fours == 2) x_sum = vaddq_f32(x_sum, vld1q_f32(sum + r * next_scales + 4 * four + 4));
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) {
          if (offset == kOffset) part[r][n] = vfmsq_n_f32(part[r][n], x_sum, code_offset);
          acc[r][n] = vfmaq_f32(acc[r][n], part[r][n], vld1q_f32(w[n].scale + 4 * four));
          if (offset == kMinima) acc[r][n] = vfmaq_f32(acc[r][n], x_sum, vld1q_f32(w[n].min + 4 * four));
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
    float each[4];
    vst1q_f32(each, vpaddq_f32(vpaddq_f32(acc[r][0], acc[r][1]), vpaddq_f32(acc[r][2], acc[r][3])));
    for (int64_t n = 0; n < count; ++n) y[r * stride + n] = bias ? each[n] + bias[n] : each[n];
  }
}

template <int type, int rows>
OLV_INLINE void multiply_codes(const SuperBlock* w, const Activations& x, int64_t r0, const float* bias, int64_t count, float* y,
                               int64_t stride) {
  constexpr Offset offset = has_minima(type) ? kMinima : code_offset(type) ? kOffset : kNone;
  multiply_lanes<has_group_scales(type), offset, rows>(w, x, r0, float(code_offset(type)), bias, count, y, stride);
}

}  // namespace
}  // namespace olv

#include "gemm_codes.h"

namespace olv {
namespace {

inline void gemm_dotprod(const olv_weight& w, int64_t first, int64_t last, const Activations& x, const float* bias, float* y,
                         int64_t stride, void* scratch, bool) {
  if (!has_super_blocks(w)) return gemm(w, first, last, x, bias, y, stride, scratch, false);
  gemm_codes(w, first, last, x, bias, y, stride, scratch);
}

// Dot products from registers: the arithmetic peak, without loads.
inline double peak_dotprod(int kind) {
  if (kind != kPeakInt8) return float_peak(kind);
  constexpr int64_t rounds = 1 << 18;
  constexpr int sums = 12;
  int32x4_t sum[sums] = {};
  int8x16_t x = vdupq_n_s8(1);
  for (int64_t i = 0; i < rounds; ++i)
    for (int j = 0; j < sums; ++j) {
      asm volatile("" : "+w"(x));
      sum[j] = vdotq_s32(sum[j], x, x);
    }
  for (int j = 0; j < sums; ++j) asm volatile("" : : "w"(sum[j]));
  return double(rounds) * sums * 16 * 2;
}

}  // namespace
}  // namespace olv
