// The codes and scales of the types that are expanded, in NEON: half a super-block at a time and into registers, which GEMV
// reads and `expand` stores. Words of grids are looked up in memory, by indices that are computed eight at a time. No load
// reaches beyond a block.
#pragma once
#include <arm_neon.h>

#include "blocks.h"
#include "grids.h"

namespace olv {
namespace {

struct HalfCodes {
  int8x16_t code[8];  // by group
};

OLV_INLINE int8x16_t as_codes(uint8x16_t x) { return vreinterpretq_s8_u8(x); }
OLV_INLINE uint8x16_t bytes_at(const uint8_t* p) { return vld1q_u8(p); }
OLV_INLINE uint16x8_t words_at(const uint8_t* p) { return vreinterpretq_u16_u8(vld1q_u8(p)); }

// Bytes 2 · g and 2 · g + 1, eight times each.
OLV_INLINE uint8x16_t two_bytes(uint8x16_t x, int g) { return vqtbl1q_u8(x, vld1q_u8(kTwoBytes[g])); }

// Bytes of seven bits; the eighth makes the number of set ones even.
OLV_INLINE uint8x16_t with_parity(uint8x16_t seven) { return vsliq_n_u8(seven, vcntq_u8(seven), 7); }

// The lowest 28 bits of words, seven in each byte.
OLV_INLINE uint8x16_t four_sevens(uint32x4_t x) {
  const uint16x8_t two = vreinterpretq_u16_u32(vbslq_u32(vdupq_n_u32(0x3fff), x, vshlq_n_u32(x, 2)));
  const uint16x8_t four = vbslq_u16(vdupq_n_u16(0x7f), two, vshlq_n_u16(two, 1));
  return vandq_u8(vreinterpretq_u8_u16(four), vdupq_n_u8(0x7f));
}

// IQ2_XXS and IQ3_XXS: what half h has beside its indices, four words of a scale (4 bits) and signs (4 · 7).
template <int type>
OLV_INLINE uint32x4_t scales_and_signs(const uint8_t* p, int h) {
  const auto four = [](const uint8_t* at) { return vreinterpretq_u32_u8(bytes_at(at)); };
  if constexpr (type == OLV_IQ2_XXS) return vuzp2q_u32(four(p + 2 + 32 * h), four(p + 18 + 32 * h));
  else return four(p + 66 + 16 * h);
}

// Eight indices: bytes of `low`, and above them the bits of `mask` of `high`, shifted to the left.
OLV_INLINE uint16x8_t eight_indices(uint8x8_t low, uint8x16_t high, int16x8_t shift, int mask) {
  const uint16x8_t shifted = vshlq_u16(vreinterpretq_u16_u8(high), shift);
  return vbslq_u16(vdupq_n_u16(uint16_t(mask)), shifted, vmovl_u8(low));
}

// The indices of half h of a super-block: 16 words of eight codes or, of IQ3, 32 of four.
template <int type, int h>
struct GridIndices {
  static constexpr bool in_bytes = type == OLV_IQ2_XXS || type == OLV_IQ3_XXS;  // as they lie
  const uint8_t* p;
  uint16_t index[in_bytes ? 1 : type == OLV_IQ3_S ? 32 : 16];

  OLV_INLINE explicit GridIndices(const uint8_t* block) : p(block) {
    if constexpr (type == OLV_IQ2_XS) {
      vst1q_u16(index, vandq_u16(words_at(p + 2 + 32 * h), vdupq_n_u16(511)));
      vst1q_u16(index + 8, vandq_u16(words_at(p + 18 + 32 * h), vdupq_n_u16(511)));
    } else if constexpr (type == OLV_IQ3_S) {
      const int16x8_t shift = {8, 7, 6, 5, 4, 3, 2, 1};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const uint8x16_t high = vreinterpretq_u8_u16(vdupq_n_u16(p[66 + 4 * h + i]));
        vst1q_u16(index + 8 * i, eight_indices(vld1_u8(p + 2 + 32 * h + 8 * i), high, shift, 0x100));
      }
    } else if constexpr (!in_bytes) {
      const int16x8_t shift = type == OLV_IQ2_S   ? int16x8_t{8, 6, 4, 2, 8, 6, 4, 2}
                              : type == OLV_IQ1_S ? int16x8_t{8, 5, 2, -1, 8, 5, 2, -1}
                                                  : int16x8_t{8, 4, 8, 4, 8, 4, 8, 4};
      // The bytes that have the upper bits of the first eight indices.
      const uint8x16_t pick = type == OLV_IQ2_S   ? uint8x16_t{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}
                              : type == OLV_IQ1_S ? uint8x16_t{0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3}
                                                  : uint8x16_t{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
      constexpr int step = type == OLV_IQ2_S ? 2 : 4, mask = type == OLV_IQ2_S ? 0x300 : 0x700;
      constexpr int low = type == OLV_IQ1_M ? 0 : 2, high = type == OLV_IQ2_S ? 66 + 4 * h : type == OLV_IQ1_S ? 34 + 8 * h : 32 + 8 * h;
      const uint64_t bytes = type == OLV_IQ2_S ? load<uint32_t>(p + high) : load<uint64_t>(p + high);
      const uint8x16_t upper = vreinterpretq_u8_u64(vdupq_n_u64(bytes));
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i)
        vst1q_u16(index + 8 * i, eight_indices(vld1_u8(p + low + 16 * h + 8 * i),
                                               vqtbl1q_u8(upper, vaddq_u8(pick, vdupq_n_u8(uint8_t(step * i)))), shift, mask));
    }
  }

  // The codes of group g of the half, without signs.
  OLV_INLINE int8x16_t codes(int g) const {
    if constexpr (type == OLV_IQ3_XXS || type == OLV_IQ3_S) {
      const uint32_t* grid = type == OLV_IQ3_S ? kGridIQ3_S.word : kGridIQ3_XXS.word;
      const auto word = [&](int i) { return grid[in_bytes ? p[2 + 32 * h + i] : index[i]]; };
      return vreinterpretq_s8_u32(uint32x4_t{word(4 * g), word(4 * g + 1), word(4 * g + 2), word(4 * g + 3)});
    } else {
      const uint64_t* grid = type == OLV_IQ2_XXS ? kGridIQ2_XXS.word : type == OLV_IQ2_XS ? kGridIQ2_XS.word
                             : type == OLV_IQ2_S ? kGridIQ2_S.word : kGridIQ1_S.word;
      const auto word = [&](int i) { return vcreate_s8(grid[in_bytes ? p[2 + 32 * h + 8 * (i / 4) + i % 4] : index[i]]); };
      return vcombine_s8(word(2 * g), word(2 * g + 1));
    }
  }
};

template <int type, int h>
OLV_INLINE void grid_half(const uint8_t* p, HalfCodes& half) {
  const GridIndices<type, h> indices(p);
  if constexpr (type == OLV_IQ1_S) {  // codes are moved by an eighth: 32 at a time
    const uint64_t words = load<uint64_t>(p + 34 + 8 * h);
    const int16x8_t down = vshrq_n_s16(vreinterpretq_s16_u64(vdupq_n_u64(words)), 15);
    const int16x8_t shift = vorrq_s16(down, vdupq_n_s16(0x0101));
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) half.code[g] = vaddq_s8(indices.codes(g), vreinterpretq_s8_s16(vdupq_n_s16(shift[g / 2])));
  } else if constexpr (type == OLV_IQ1_M) {  // eight at a time: the fourth bit of a nibble
    const int8x8_t nibbles = vreinterpret_s8_u8(vld1_u8(p + 32 + 8 * h));
    const int8x16_t both = vcombine_s8(vzip1_s8(vshl_n_s8(nibbles, 4), nibbles), vzip2_s8(vshl_n_s8(nibbles, 4), nibbles));
    const uint8x16_t shift = vreinterpretq_u8_s8(vorrq_s8(vshrq_n_s8(both, 7), vdupq_n_s8(1)));
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) half.code[g] = vaddq_s8(indices.codes(g), as_codes(two_bytes(shift, g)));
  } else {
    uint8x16_t signs;
    if constexpr (type == OLV_IQ2_S || type == OLV_IQ3_S) {
      signs = bytes_at(p + (type == OLV_IQ2_S ? 34 : 74) + 16 * h);
    } else if constexpr (type == OLV_IQ2_XS) {
      signs = with_parity(vshrq_n_u8(vuzp2q_u8(bytes_at(p + 2 + 32 * h), bytes_at(p + 18 + 32 * h)), 1));
    } else {
      signs = with_parity(four_sevens(scales_and_signs<type>(p, h)));
    }
    const uint8x16_t bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      const int8x16_t negative = as_codes(vtstq_u8(two_bytes(signs, g), bit));
      half.code[g] = vsubq_s8(veorq_s8(indices.codes(g), negative), negative);
    }
  }
}

// The integers s of which a scale is unit · (2 · s + 1): of the even groups, then of the odd ones.
template <int type>
OLV_INLINE void scale_codes(const uint8_t* p, uint8x8_t& even, uint8x8_t& odd) {
  if constexpr (type == OLV_IQ2_XS || type == OLV_IQ2_S) {
    const uint8x8_t both = vld1_u8(p + (type == OLV_IQ2_XS ? 66 : 74));
    even = vand_u8(both, vdup_n_u8(15));
    odd = vshr_n_u8(both, 4);
  } else if constexpr (type == OLV_IQ1_M) {  // four times three bits
    const uint16x4_t words = vreinterpret_u16_u8(vld1_u8(p + 48));
    const uint16x8_t twice = vcombine_u16(vzip1_u16(words, words), vzip2_u16(words, words));
    const uint8x8_t three = vdup_n_u8(7);
    even = vand_u8(vmovn_u16(vshlq_u16(twice, int16x8_t{0, -6, 0, -6, 0, -6, 0, -6})), three);
    odd = vand_u8(vmovn_u16(vshlq_u16(twice, int16x8_t{-3, -9, -3, -9, -3, -9, -3, -9})), three);
  } else {  // one for two groups
    if constexpr (type == OLV_IQ1_S) {
      even = vand_u8(vshr_n_u8(vshrn_n_u16(words_at(p + 34), 8), 4), vdup_n_u8(7));
    } else if constexpr (type == OLV_IQ3_S) {
      const uint8x8_t both = vcreate_u8(load<uint32_t>(p + 106));
      even = vzip1_u8(vand_u8(both, vdup_n_u8(15)), vshr_n_u8(both, 4));
    } else {
      const auto four = [&](int h) { return vshrn_n_u32(scales_and_signs<type>(p, h), 16); };
      even = vshr_n_u8(vshrn_n_u16(vcombine_u16(four(0), four(1)), 8), 4);
    }
    odd = even;
  }
}

// The digits in base 3 of bytes that hold fractions of 256, less 1: the first one.
OLV_INLINE int8x16_t first_digit(uint8x16_t x) {
  return as_codes(vsubq_u8(vcltq_u8(x, vdupq_n_u8(86)), vcgeq_u8(x, vdupq_n_u8(171))));
}
// x times a power of 3: the first digits are gone.
OLV_INLINE uint8x16_t times(uint8x16_t x, int power) { return vmulq_u8(x, vdupq_n_u8(uint8_t(power))); }

template <int h>
OLV_INLINE void tq1_half(const uint8_t* p, HalfCodes& half) {
  uint8x16_t x[2] = {bytes_at(p), bytes_at(p + 16)};
  if constexpr (h == 0) {
#pragma GCC unroll 4
    for (int digit = 0; digit < 4; ++digit)
      for (int i = 0; i < 2; ++i) {
        half.code[2 * digit + i] = first_digit(x[i]);
        x[i] = times(x[i], 3);
      }
  } else {  // the fifth digits; five of the next sixteen bytes; four of the last four
    for (int i = 0; i < 2; ++i) half.code[i] = first_digit(times(x[i], 81));
    uint8x16_t y = bytes_at(p + 32);
#pragma GCC unroll 5
    for (int digit = 0; digit < 5; ++digit, y = times(y, 3)) half.code[2 + digit] = first_digit(y);
    const uint8x16_t power = {1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27};
    half.code[7] = first_digit(vmulq_u8(vreinterpretq_u8_u32(vdupq_n_u32(load<uint32_t>(p + 48))), power));
  }
}

template <int h>
OLV_INLINE void tq2_half(const uint8_t* p, HalfCodes& half) {
  const uint8x16_t three = vdupq_n_u8(3), one = vdupq_n_u8(1);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const uint8x16_t x = bytes_at(p + 32 * h + 16 * i);
    half.code[i] = as_codes(vsubq_u8(vandq_u8(x, three), one));
    half.code[2 + i] = as_codes(vsubq_u8(vandq_u8(vshrq_n_u8(x, 2), three), one));
    half.code[4 + i] = as_codes(vsubq_u8(vandq_u8(vshrq_n_u8(x, 4), three), one));
    half.code[6 + i] = as_codes(vsubq_u8(vshrq_n_u8(x, 6), one));
  }
}

// NVFP4: a block of 64, of which eight bytes have a group, low nibbles first.
OLV_INLINE void nvfp4_block(const uint8_t* p, int8x16_t* code) {
  const int8x16_t table = vld1q_s8(kFp4);
  const auto values = [&](uint8x16_t x) { return vreinterpretq_s64_s8(vqtbl1q_s8(table, x)); };
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const uint8x16_t both = bytes_at(p + 4 + 16 * i);
    const int64x2_t low = values(vandq_u8(both, vdupq_n_u8(15))), high = values(vshrq_n_u8(both, 4));
    code[2 * i] = vreinterpretq_s8_s64(vzip1q_s64(low, high));
    code[2 * i + 1] = vreinterpretq_s8_s64(vzip2q_s64(low, high));
  }
}

// Eight scales in unsigned E4M3, halved because the codes are doubled; 127 is zero. As float16 their exponents are 8 less.
OLV_INLINE void e4m3_halves(uint8x8_t x, float32x4_t& low, float32x4_t& high) {
  x = vand_u8(x, vdup_n_u8(127));
  x = vbic_u8(x, vceq_u8(x, vdup_n_u8(127)));
  const float16x8_t half = vreinterpretq_f16_u16(vshll_n_u8(x, 7));
  low = vmulq_n_f32(vcvt_f32_f16(vget_low_f16(half)), 128);
  high = vmulq_n_f32(vcvt_high_f32_f16(half), 128);
}

// Half h of the super-block at p.
template <int type, int h>
OLV_INLINE void stored_half(const uint8_t* p, HalfCodes& half) {
  if constexpr (has_grid(type)) grid_half<type, h>(p, half);
  else if constexpr (type == OLV_TQ1_0) tq1_half<h>(p, half);
  else if constexpr (type == OLV_TQ2_0) tq2_half<h>(p, half);
  else
    for (int b = 0; b < 2; ++b) nvfp4_block(p + (2 * h + b) * kTypes[type].bytes, half.code + 4 * b);
}

// What a scale of a grid's type is divided by.
template <int type>
OLV_INLINE float grid_unit(const uint8_t* p) {
  constexpr float unit = type == OLV_IQ3_S ? 1 : type == OLV_IQ3_XXS ? 0.25f : 0.125f;
  return unit * (type == OLV_IQ1_M ? iq1_m_half(p + 48) : load_f16(p));
}

// 2 · s + 1 for eight small integers, times a factor: exact.
OLV_INLINE void odd_multiples(uint8x8_t s, float factor, float32x4_t& low, float32x4_t& high) {
  const uint16x8_t wide = vmovl_u8(vsli_n_u8(vdup_n_u8(1), s, 1));
  low = vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), factor);
  high = vmulq_n_f32(vcvtq_f32_u32(vmovl_high_u16(wide)), factor);
}

OLV_INLINE void store_half(int8_t* to, const HalfCodes& half) {
  for (int g = 0; g < 8; ++g) vst1q_s8(to + 16 * g, half.code[g]);
}

// A block: codes, and a scale for every 16.
template <int type>
OLV_INLINE void expand_block(const uint8_t* p, int8_t* code, float* scale) {
  if constexpr (type == OLV_NVFP4) {
    int8x16_t codes[4];
    nvfp4_block(p, codes);
    for (int g = 0; g < 4; ++g) vst1q_s8(code + 16 * g, codes[g]);
    float32x4_t scales, none;
    e4m3_halves(vcreate_u8(load<uint32_t>(p)), scales, none);
    vst1q_f32(scale, scales);
    return;
  }
  HalfCodes half;
  stored_half<type, 0>(p, half);
  store_half(code, half);
  stored_half<type, 1>(p, half);
  store_half(code + 128, half);
  if constexpr (has_grid(type)) {
    uint8x8_t even, odd;
    scale_codes<type>(p, even, odd);
    float32x4_t four[4];
    odd_multiples(vzip1_u8(even, odd), grid_unit<type>(p), four[0], four[1]);
    odd_multiples(vzip2_u8(even, odd), grid_unit<type>(p), four[2], four[3]);
    for (int i = 0; i < 4; ++i) vst1q_f32(scale + 4 * i, four[i]);
  } else {
    for (int g = 0; g < kGroups; ++g) scale[g] = load_f16(p + (type == OLV_TQ1_0 ? 52 : 64));
  }
}

}  // namespace
}  // namespace olv
