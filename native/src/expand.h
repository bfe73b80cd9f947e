// Types that kernels do not read as they lie, but for a single generated row where an instruction set has it
// (Kernels::gemv_expanded): rows are expanded to int8 codes with a float scale for every 16 of them, which is OLV_GROUPED, a
// few rows at a time (Matmul::multiply_rows). Every value is scale · code exactly.
#pragma once
#include "blocks.h"
#include "grids.h"
#include "vec.h"

#if defined(__AVX2__)
#include "expand_avx2.h"
#elif defined(OLV_NEON)
#include "expand_neon.h"
#endif

namespace olv {
namespace {

#if !defined(OLV_NEON)
// As many codes as a register holds, and the same as words of eight.
#if defined(__AVX2__)
constexpr int kCodes = 32;
#else
constexpr int kCodes = 16;
#endif
typedef uint8_t Codes __attribute__((vector_size(kCodes)));
typedef uint64_t CodeWords __attribute__((vector_size(kCodes)));

// The codes, negative where bits are set.
OLV_INLINE Codes negated(Codes x, uint32_t bits) {
#if defined(__AVX512BW__)
  return Codes(_mm256_mask_sub_epi8(__m256i(x), bits, _mm256_setzero_si256(), __m256i(x)));
#else
#if defined(__AVX2__)
  const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit_of = _mm256_set1_epi64x(int64_t(0x8040201008040201));
  const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(int32_t(bits)), byte_of);
  const Codes negative = Codes(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of), bit_of));
#else
  const auto spread = [&](int i) { return uint64_t(bits >> 8 * i & 255) * 0x0101010101010101 & 0x8040201008040201; };
  const Codes negative = Codes(Codes(CodeWords{spread(0), spread(1)}) != 0);
#endif
  return (x ^ negative) - negative;
#endif
}

#if !defined(__AVX2__)
// Four times seven bits in four bytes each; the eighth bit makes the number of set ones even.
OLV_INLINE uint32_t with_parity(uint32_t seven) {
  uint32_t odd = seven ^ seven >> 4;
  odd ^= odd >> 2;
  odd ^= odd >> 1;
  return seven | (odd & 0x01010101) << 7;
}

// Word i of 32 of a super-block: eight codes, without their signs.
template <int type>
OLV_INLINE uint64_t grid_word(const uint8_t* p, int i) {
  if constexpr (type == OLV_IQ2_XXS) {
    return kGridIQ2_XXS.word[p[2 + 8 * (i / 4) + i % 4]];
  } else if constexpr (type == OLV_IQ2_XS) {
    return kGridIQ2_XS.word[load<uint16_t>(p + 2 + 2 * i) & 511];
  } else if constexpr (type == OLV_IQ2_S) {
    return kGridIQ2_S.word[p[2 + i] | (p[66 + i / 4] >> 2 * (i % 4) & 3) << 8];
  } else if constexpr (type == OLV_IQ3_XXS || type == OLV_IQ3_S) {
    const int high = type == OLV_IQ3_S ? p[66 + i / 4] << 8 >> 2 * (i % 4) : 0;
    const uint32_t* grid = type == OLV_IQ3_S ? kGridIQ3_S.word : kGridIQ3_XXS.word;
    const uint32_t pair[2] = {grid[p[2 + 2 * i] | (high & 256)], grid[p[3 + 2 * i] | (high >> 1 & 256)]};
    return load<uint64_t>(pair);
  } else if constexpr (type == OLV_IQ1_S) {
    return kGridIQ1_S.word[p[2 + i] | (load<uint16_t>(p + 34 + 2 * (i / 4)) >> 3 * (i % 4) & 7) << 8];
  } else {
    return kGridIQ1_S.word[p[i] | (p[32 + i / 2] >> 4 * (i % 2) & 7) << 8];
  }
}

// IQ2 and IQ3: the signs of 32 elements, from element 32 · j on.
template <int type>
OLV_INLINE uint32_t grid_signs(const uint8_t* p, int j) {
  if constexpr (type == OLV_IQ2_S || type == OLV_IQ3_S) return load<uint32_t>(p + (type == OLV_IQ2_S ? 34 : 74) + 4 * j);
  if constexpr (type == OLV_IQ2_XS) {
    uint64_t seven = load<uint64_t>(p + 2 + 8 * j) >> 9 & 0x007f007f007f007f;
    seven = (seven | seven >> 8) & 0x0000ffff0000ffff;
    return with_parity(uint32_t(seven | seven >> 16));
  }
  const uint32_t x = load<uint32_t>(p + (type == OLV_IQ2_XXS ? 6 + 8 * j : 66 + 4 * j));
  return with_parity((x & 0x7f) | (x & 0x3f80) << 1 | (x & 0x1fc000) << 2 | (x & 0xfe00000) << 3);
}

// IQ1: what moves the codes of word i by an eighth.
template <int type>
OLV_INLINE uint64_t shift_word(const uint8_t* p, int i) {
  const bool down = type == OLV_IQ1_S ? p[35 + 2 * (i / 4)] & 0x80 : p[32 + i / 2] >> 4 * (i % 2) & 8;
  return down ? 0xffffffffffffffff : 0x0101010101010101;
}

// Each of eight nibbles in a byte of its own; each of four bytes twice.
OLV_INLINE uint64_t spread_bytes(uint32_t x) {
  const uint64_t two = (x | uint64_t(x) << 16) & 0x0000ffff0000ffff;
  return (two | two << 8) & 0x00ff00ff00ff00ff;
}
OLV_INLINE uint64_t nibbles_of(uint32_t x) {
  const uint64_t four = spread_bytes(x);
  return (four | four << 4) & 0x0f0f0f0f0f0f0f0f;
}
OLV_INLINE uint64_t twice_each(uint32_t x) { return spread_bytes(x) * 0x101; }

// The integers of the scales: sixteen bytes.
typedef uint64_t ScaleCodes __attribute__((vector_size(16)));
template <int type>
OLV_INLINE ScaleCodes sixteen_scales(const uint8_t* p) {
  if constexpr (type == OLV_IQ2_XS || type == OLV_IQ2_S) {
    const uint8_t* at = p + (type == OLV_IQ2_XS ? 66 : 74);
    return ScaleCodes{nibbles_of(load<uint32_t>(at)), nibbles_of(load<uint32_t>(at + 4))};
  } else if constexpr (type == OLV_IQ1_S) {
    const auto four = [&](int at) { return (load<uint64_t>(p + at) >> 12 & 0x0007000700070007) * 0x101; };
    return ScaleCodes{four(34), four(42)};
  } else if constexpr (type == OLV_IQ1_M) {
    const auto four = [&](int at) {  // three bits each
      const uint32_t x = load<uint16_t>(p + at);
      return uint64_t((x & 7) | (x & 070) << 5 | (x & 0700) << 10 | (x & 07000) << 15);
    };
    return ScaleCodes{four(48) | four(50) << 32, four(52) | four(54) << 32};
  } else {  // one for two groups
    uint64_t eight = 0;
    if constexpr (type == OLV_IQ3_S) {
      eight = nibbles_of(load<uint32_t>(p + 106));
    } else {
      constexpr int at = type == OLV_IQ2_XXS ? 9 : 69, step = type == OLV_IQ2_XXS ? 8 : 4;
      for (int j = 0; j < 8; ++j) eight |= uint64_t(p[at + step * j] >> 4) << 8 * j;
    }
    return ScaleCodes{twice_each(uint32_t(eight)), twice_each(uint32_t(eight >> 32))};
  }
}

// Two words of eight codes.
OLV_INLINE Codes two_words(uint64_t a, uint64_t b) { return Codes(CodeWords{a, b}); }

// A super-block; in AVX2, expand_avx2.h has it.
template <int type>
struct GridBlock {
  const uint8_t* p;
  OLV_INLINE explicit GridBlock(const uint8_t* block) : p(block) {}
  // The codes of words i and i + 1, without signs; the signs of words from i on; IQ1: what moves codes by an eighth.
  OLV_INLINE Codes codes(int i) const { return two_words(grid_word<type>(p, i), grid_word<type>(p, i + 1)); }
  OLV_INLINE uint32_t signs(int i) const { return grid_signs<type>(p, i / 4) >> 8 * (i % 4); }
  OLV_INLINE Codes shifts(int i) const { return two_words(shift_word<type>(p, i), shift_word<type>(p, i + 1)); }
  // The integers s of which a group's scale is unit · (2 · s + 1).
  OLV_INLINE v16 scale_codes() const {
    const ScaleCodes codes = sixteen_scales<type>(p);
    uint8_t bytes[kGroups];
    memcpy(bytes, &codes, sizeof bytes);
    return load_bytes(bytes);
  }
};
#endif

OLV_INLINE void store_codes_at(int8_t* to, Codes x) { memcpy(to, &x, sizeof x); }

template <int type>
OLV_INLINE v16 grid_scales(const uint8_t* p, const GridBlock<type>& block) {
  constexpr float unit = type == OLV_IQ3_S ? 1 : type == OLV_IQ3_XXS ? 0.25f : 0.125f;
  const float half = unit * (type == OLV_IQ1_M ? iq1_m_half(p + 48) : load_f16(p));
  return block.scale_codes() * (2 * half) + splat(half);
}

template <int type>
OLV_INLINE void expand_grid(const uint8_t* p, int8_t* code, float* scale) {
  const GridBlock<type> block(p);
#pragma GCC unroll 16
  for (int i = 0; i < kSuperBlock / 8; i += kCodes / 8) {
    Codes codes = Codes(block.codes(i));
    if constexpr (is_iq1(type)) codes += Codes(block.shifts(i));
    else codes = negated(codes, block.signs(i));
    store_codes_at(code + 8 * i, codes);
  }
  storev(scale, grid_scales<type>(p, block));
}

// The first digit in base 3 of bytes that hold fractions of 256, less 1.
template <class T>
OLV_INLINE T first_digit(T x) { return 255 - T(x >= 86) - T(x >= 171); }

inline void expand_tq1(const uint8_t* p, int8_t* code, float* scale) {
  typedef uint8_t Sixteen __attribute__((vector_size(16)));
  const auto digits = [](auto x, int8_t* to) {
    for (int digit = 0; digit < 5; ++digit, to += sizeof x, x += x + x) {
      const auto codes = first_digit(x);
      memcpy(to, &codes, sizeof x);
    }
  };
  for (int i = 0; i < 32; i += kCodes) {
    Codes x = load<Codes>(p + i);
    for (int digit = 0; digit < 5; ++digit, x += x + x) store_codes_at(code + 32 * digit + i, first_digit(x));
  }
  // The last 20 bytes: sixteen of five digits, then four of four, which come last of all.
  digits(load<Sixteen>(p + 32), code + 160);
  typedef uint32_t Four __attribute__((vector_size(16)));
  const Sixteen power = {1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27};
  const Sixteen last = first_digit(Sixteen(Four{} + load<uint32_t>(p + 48)) * power);
  memcpy(code + 240, &last, sizeof last);
  storev(scale, splat(load_f16(p + 52)));
}

inline void expand_tq2(const uint8_t* p, int8_t* code, float* scale) {
  for (int h = 0; h < 2; ++h)
    for (int i = 0; i < 32; i += kCodes) {
      const Codes x = load<Codes>(p + 32 * h + i);
      for (int r = 0; r < 4; ++r) store_codes_at(code + 128 * h + 32 * r + i, (x >> 2 * r & 3) - 1);
    }
  storev(scale, splat(load_f16(p + 64)));
}

// Unsigned E4M3, halved because the codes are doubled. 127 is zero.
struct E4M3 {
  float half[128];
  constexpr E4M3() : half() {
    for (int x = 0; x < 127; ++x) {
      half[x] = float(x < 8 ? x : 8 + x % 8) * 0x1p-10f;
      for (int i = 1; i < x / 8; ++i) half[x] *= 2;
    }
  }
};
constexpr E4M3 kE4M3;

// Four bits to kFp4's values.
OLV_INLINE Codes fp4_values(Codes x) {
#if defined(__AVX2__)
  return Codes(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load<__m128i>(kFp4)), __m256i(x)));
#else
  const Codes size = x & 7, negative = Codes(x >= 8);
  const Codes value = size - Codes(size >= 5) - Codes(size >= 6) + (Codes(size >= 7) & 3);
  return (value ^ negative) - negative;
#endif
}

// A block of 64: eight bytes have a group, low nibbles first.
inline void expand_nvfp4(const uint8_t* p, int8_t* code, float* scale) {
  for (int i = 0; i < 32; i += kCodes) {
    const Codes both = load<Codes>(p + 4 + i);
    const CodeWords low = CodeWords(fp4_values(both & 15)), high = CodeWords(fp4_values(both >> 4));
#if defined(__AVX2__)
    const __m256i even = _mm256_unpacklo_epi64(__m256i(low), __m256i(high)), odd = _mm256_unpackhi_epi64(__m256i(low), __m256i(high));
    store_codes_at(code, Codes(_mm256_permute2x128_si256(even, odd, 0x20)));
    store_codes_at(code + 32, Codes(_mm256_permute2x128_si256(even, odd, 0x31)));
#else
    store_codes_at(code + 2 * i, Codes(CodeWords{low[0], high[0]}));
    store_codes_at(code + 2 * i + 16, Codes(CodeWords{low[1], high[1]}));
#endif
  }
  for (int g = 0; g < 4; ++g) scale[g] = kE4M3.half[p[g] & 127];
}

// A block.
template <int type>
OLV_INLINE void expand_block(const uint8_t* p, int8_t* code, float* scale) {
  if constexpr (has_grid(type)) expand_grid<type>(p, code, scale);
  else if constexpr (type == OLV_TQ1_0) expand_tq1(p, code, scale);
  else if constexpr (type == OLV_TQ2_0) expand_tq2(p, code, scale);
  else expand_nvfp4(p, code, scale);
}
#endif

// Calls f with the type as a compile-time constant.
template <class F>
inline void with_expanded_type(int type, F&& f) {
  switch (type) {
#define OLV_CASE(t) case t: return f.template operator()<t>();
    OLV_CASE(OLV_NVFP4) OLV_CASE(OLV_IQ1_S) OLV_CASE(OLV_IQ1_M) OLV_CASE(OLV_IQ2_XXS) OLV_CASE(OLV_IQ2_XS)
    OLV_CASE(OLV_IQ2_S) OLV_CASE(OLV_IQ3_XXS) OLV_CASE(OLV_IQ3_S) OLV_CASE(OLV_TQ1_0) OLV_CASE(OLV_TQ2_0)
#undef OLV_CASE
  }
}

// Consecutive blocks.
inline void expand_blocks(int type, const uint8_t* p, int64_t count, int8_t* code, float* scale) {
  with_expanded_type(type, [&]<int t>() {
    constexpr int size = kTypes[t].block;
    for (int64_t b = 0; b < count; ++b, p += kTypes[t].bytes, code += size, scale += size / 16) {
      __builtin_prefetch(p + 4096);
      expand_block<t>(p, code, scale);
    }
  });
}

// Rows [first, last) of a weight.
inline void expand(const olv_weight& w, int64_t first, int64_t last, int8_t* code, float* scale) {
  expand_blocks(w.type, w.data + first * row_bytes(w), (last - first) * (w.k / kTypes[w.type].block), code, scale);
}

inline void dequantize_expanded(const olv_weight& w, int64_t row, float* y) {
  const int64_t size = kTypes[w.type].block, bytes = kTypes[w.type].bytes;
  const uint8_t* p = w.data + row * row_bytes(w);
  for (int64_t at = 0; at < w.k; at += size, p += bytes) {
    int8_t code[kSuperBlock];
    float scale[kGroups];
    expand_blocks(w.type, p, 1, code, scale);
    for (int64_t e = 0; e < size; ++e) y[at + e] = scale[e / 16] * float(code[e]);
  }
}

}  // namespace
}  // namespace olv
