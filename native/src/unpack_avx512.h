// Super-blocks in AVX-512 registers: 256 codes in four, the sixteen scales and the sixteen minima in one each.
#pragma once
#include <immintrin.h>

#include "linear.h"

namespace olv {
namespace {

// Calls `run` with a count of rows or heads as a constant: with 8 where there are more.
template <class F>
OLV_INLINE void with_up_to_8(int64_t count, const F& run) {
  switch (count) {
    case 1: run.template operator()<1>(); break;
    case 2: run.template operator()<2>(); break;
    case 3: run.template operator()<3>(); break;
    case 4: run.template operator()<4>(); break;
    case 5: run.template operator()<5>(); break;
    case 6: run.template operator()<6>(); break;
    case 7: run.template operator()<7>(); break;
    default: run.template operator()<8>();
  }
}

// Rounded to bfloat16, ties to even. Of the CPUs with VNNI, the older ones have no instruction for it.
OLV_INLINE __m256i to_bf16(__m512 x) {
#if defined(__AVX512BF16__) && !defined(OLV_EMULATE_TILES)
  const __m256bh half = _mm512_cvtneps_pbh(x);
  return load<__m256i>(&half);
#else
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000)), 16));
#endif
}

// The horizontal sums of four vectors.
OLV_INLINE __m128 sums_of_four(const __m512 (&x)[4]) {
  const __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
  const __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
  const __m512 c = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m256 d = _mm256_add_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));
  return _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));
}

// Sixteen rows of sixteen 32-bit values: rows become columns.
OLV_INLINE void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

// Sixteen lanes, one a group: lane g of code[k] holds elements 16·g + 4·k … 16·g + 4·k + 3. The dot products of all four
// accumulate in one integer register, which one multiplication scales.
struct SuperBlock512 {
  __m512i code[4];
  __m512 scale, min;
};

// Eight values to sixteen lanes, each twice: a block of 32 is two groups of 16.
OLV_INLINE __m512 twice(__m256 x) {
  const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(x));
}

// Eight f16 at p, `stride` bytes apart, as floats. Gathered with scalar instructions, because the vector units are the
// bottleneck of unpacking.
template <int stride>
OLV_INLINE __m256 halves(const uint8_t* p) {
  const auto four = [](const uint8_t* at) {
    return uint64_t(load<uint16_t>(at)) | uint64_t(load<uint16_t>(at + stride)) << 16 |
           uint64_t(load<uint16_t>(at + 2 * stride)) << 32 | uint64_t(load<uint16_t>(at + 3 * stride)) << 48;
  };
  return _mm256_cvtph_ps(_mm_set_epi64x(int64_t(four(p + 4 * stride)), int64_t(four(p))));
}

// The same, each twice. Where four blocks fit a register, a vector permute is faster.
template <int stride>
OLV_INLINE __m512 halves_twice(const uint8_t* p) {
  if constexpr (3 * stride + 2 > 64) {
    return twice(halves<stride>(p));
  } else {
    constexpr int16_t s = stride / 2;  // words; those of the second register begin at 32
    const __m512i index = _mm512_castsi256_si512(_mm256_setr_epi16(0, 0, s, s, 2 * s, 2 * s, 3 * s, 3 * s, 32, 32, 32 + s, 32 + s,
                                                                   32 + 2 * s, 32 + 2 * s, 32 + 3 * s, 32 + 3 * s));
    const __m512i both = _mm512_permutex2var_epi16(_mm512_loadu_si512(p), index, _mm512_loadu_si512(p + 4 * stride));
    return _mm512_cvtph_ps(_mm512_castsi512_si256(both));
  }
}

OLV_INLINE __m256i load256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
OLV_INLINE __m512i join(const uint8_t* low, const uint8_t* high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(load256(low)), load256(high), 1);
}

// 16 bytes at p and three more times, `stride` bytes apart. Broadcast loads, so no shuffles are needed.
template <int stride>
OLV_INLINE __m512i four_blocks(const uint8_t* p) {
  if constexpr (stride == 16) return _mm512_loadu_si512(p);
  const auto at = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * stride)); };
  __m512i r = _mm512_castsi128_si512(at(0));
  r = _mm512_mask_broadcast_i32x4(r, 0x00f0, at(1));
  r = _mm512_mask_broadcast_i32x4(r, 0x0f00, at(2));
  return _mm512_mask_broadcast_i32x4(r, 0xf000, at(3));
}

// Which of 32 words goes to each lane of code[0]; code[k] takes the k-th word after it.
struct Lanes {
  alignas(64) int32_t word[4][16];
  constexpr Lanes(const int32_t (&first)[16]) : word() {
    for (int k = 0; k < 4; ++k)
      for (int g = 0; g < 16; ++g) word[k][g] = first[g] + k;
  }
  OLV_INLINE __m512i operator[](int k) const { return _mm512_load_si512(word[k]); }
};

// Blocks of 16 bytes: low nibbles are one group, high nibbles the next.
constexpr Lanes kBlockLanes({0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28});
// Runs of 32 bytes: low nibbles are two groups, high nibbles the next two (Q4_K, Q5_K).
constexpr Lanes kRunLanes({0, 4, 0, 4, 8, 12, 8, 12, 16, 20, 16, 20, 24, 28, 24, 28});
// Runs of 64 bytes: low nibbles are four groups, high nibbles the next four (Q6_K).
constexpr Lanes kLongLanes({0, 4, 8, 12, 0, 4, 8, 12, 16, 20, 24, 28, 16, 20, 24, 28});
// The words of 32 bytes for all groups (the fifth bits of Q5_K); of 32 bytes for each half (the upper bits of Q6_K).
constexpr Lanes kFifthLanes({0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4});
constexpr Lanes kUpperLanes({0, 4, 0, 4, 0, 4, 0, 4, 8, 12, 8, 12, 8, 12, 8, 12});

// Nibbles of the 128 bytes in a and b: the upper ones in the lanes of `high`.
OLV_INLINE void nibbles(__m512i a, __m512i b, const Lanes& lanes, __mmask16 high, SuperBlock512& s) {
  const __m512i shift = _mm512_maskz_set1_epi32(high, 4);
  for (int k = 0; k < 4; ++k) {
    const __m512i words = _mm512_permutex2var_epi32(a, lanes[k], b);
    s.code[k] = _mm512_and_si512(_mm512_srlv_epi32(words, shift), _mm512_set1_epi8(15));
  }
}

// The same without the shift: the codes of upper nibbles are sixteen times too large, and `sixteenth` divides their scales.
OLV_INLINE void nibbles_in_place(__m512i a, __m512i b, const Lanes& lanes, __mmask16 high, SuperBlock512& s) {
  const __m512i mask = _mm512_mask_set1_epi32(_mm512_set1_epi8(15), high, int32_t(0xf0f0f0f0));
  for (int k = 0; k < 4; ++k) s.code[k] = _mm512_and_si512(_mm512_permutex2var_epi32(a, lanes[k], b), mask);
}
OLV_INLINE __m512 sixteenth(__m512 x, __mmask16 high) { return _mm512_mask_mul_ps(x, high, x, _mm512_set1_ps(1 / 16.f)); }

// Sets in `code` the bits of each byte of `words` that `mask` selects, after rotating `words` left by `rotate`.
OLV_INLINE __m512i with_bits(__m512i code, __m512i words, __m512i rotate, int mask) {
  return _mm512_ternarylogic_epi32(code, _mm512_rolv_epi32(words, rotate), _mm512_set1_epi8(int8_t(mask)), 0xf8);  // a | b & c
}

// 256 codes in memory order to lanes.
OLV_INLINE void to_lanes(__m512i (&code)[4]) {
  static constexpr Lanes lanes({0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29});
  const __m512i a = _mm512_permutex2var_epi32(code[0], lanes[0], code[1]);  // words 0, then words 1, of eight groups
  const __m512i b = _mm512_permutex2var_epi32(code[2], lanes[0], code[3]);
  const __m512i c = _mm512_permutex2var_epi32(code[0], lanes[2], code[1]);  // words 2, then words 3
  const __m512i d = _mm512_permutex2var_epi32(code[2], lanes[2], code[3]);
  code[0] = _mm512_shuffle_i64x2(a, b, 0x44);
  code[1] = _mm512_shuffle_i64x2(a, b, 0xee);
  code[2] = _mm512_shuffle_i64x2(c, d, 0x44);
  code[3] = _mm512_shuffle_i64x2(c, d, 0xee);
}

OLV_INLINE __m512i look_up(const int8_t (&table)[16], int offset, __m512i codes) {
  alignas(16) int8_t shifted[16];
  for (int i = 0; i < 16; ++i) shifted[i] = int8_t(table[i] + offset);
  const __m512i all = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(shifted)));
  return _mm512_shuffle_epi8(all, codes);
}

// The eight 6-bit scales and minima of Q4_K and Q5_K, each twice. They are multiplied in turns, scale and minimum, as the two
// factors before them lie in the file.
OLV_INLINE void scales_and_mins(const uint8_t* p, __m512& scale, __m512& min) {
  // After the factors: scales 0 to 3, minima 0 to 3, and four bits of each of the others, whose upper two are in the first.
  const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i low = _mm_shuffle_epi8(all, _mm_setr_epi8(4, 8, 5, 9, 6, 10, 7, 11, 12, -1, 13, -1, 14, -1, 15, -1));
  const __m128i high = _mm_shuffle_epi8(all, _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 4, 8, 5, 9, 6, 10, 7, 11));
  const __m128i raised = _mm_sllv_epi16(low, _mm_setr_epi16(0, 0, 0, 0, 4, 4, 4, 4));
  const __m128i mask = _mm_setr_epi32(0x3f3f3f3f, 0x3f3f3f3f, 0x0f0f0f0f, 0x0f0f0f0f);
  const __m128i first = _mm_ternarylogic_epi32(low, raised, mask, 0xa8);  // (a | b) & c
  const __m128i both = _mm_ternarylogic_epi32(first, _mm_srli_epi16(high, 2), _mm_set1_epi8(0x30), 0xf8);  // a | b & c
  const __m256i signs = _mm256_set1_epi32(int32_t(0x80000000));  // minima are subtracted
  const __m512 factors = _mm512_cvtph_ps(_mm256_xor_si256(_mm256_set1_epi32(load<int32_t>(p)), signs));
  const __m512 products = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(both)), factors);
  scale = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14), products);
  min = _mm512_permutexvar_ps(_mm512_setr_epi32(1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15), products);
}

// The fifth bits of eight blocks, bit e of a block's word for element e, as a mask over the bytes of code[k].
template <int stride>
OLV_INLINE __mmask64 fifth_bits(const uint8_t* p, int k) {
  uint64_t mask = 0;
  for (int pair = 0; pair < 4; ++pair) {
    const uint64_t bits =
        load<uint32_t>(p + 2 * pair * stride) | uint64_t(load<uint32_t>(p + (2 * pair + 1) * stride)) << 32;
    mask |= _pext_u64(bits, 0x000f000f000f000full << 4 * k) << 16 * pair;
  }
  return mask;
}

OLV_INLINE void load_lanes(const SuperBlock& plain, SuperBlock512& s) {
  for (int c = 0; c < 4; ++c) s.code[c] = _mm512_load_si512(plain.code + 64 * c);
  to_lanes(s.code);
  s.scale = _mm512_load_ps(plain.scale);
  s.min = _mm512_load_ps(plain.min);
}

// As e8m0_half.
OLV_INLINE __m512 e8m0_halves(__m512i e) {
  const __m512i bits = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  const __mmask16 tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
  return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(bits, tiny, _mm512_set1_epi32(0x00200000), e));
}

template <int type>
OLV_INLINE void unpack(const uint8_t* p, SuperBlock512& s) {
  constexpr int bytes = kTypes[type].bytes;
  if constexpr (type == OLV_Q8_0) {
    const __m512i flip = _mm512_set1_epi8(int8_t(0x80));
    for (int c = 0; c < 4; ++c) s.code[c] = _mm512_xor_si512(join(p + 68 * c + 2, p + 68 * c + 36), flip);
    to_lanes(s.code);
    s.scale = twice(halves<bytes>(p));
    s.min = _mm512_mul_ps(s.scale, _mm512_set1_ps(-128));
  } else if constexpr (type == OLV_Q4_0 || type == OLV_Q4_1 || type == OLV_Q5_0 || type == OLV_Q5_1 || type == OLV_IQ4_NL) {
    constexpr int codes_at = bytes - 16;
    const __m512i a = four_blocks<bytes>(p + codes_at), b = four_blocks<bytes>(p + 4 * bytes + codes_at);
    constexpr bool in_place = type == OLV_Q4_0 || type == OLV_Q4_1;
    if constexpr (in_place) nibbles_in_place(a, b, kBlockLanes, 0xaaaa, s);
    else nibbles(a, b, kBlockLanes, 0xaaaa, s);
    if constexpr (type == OLV_Q5_0 || type == OLV_Q5_1)
      for (int k = 0; k < 4; ++k)
        s.code[k] = _mm512_mask_add_epi8(s.code[k], fifth_bits<bytes>(p + codes_at - 4, k), s.code[k], _mm512_set1_epi8(16));
    if constexpr (type == OLV_IQ4_NL)
      for (int k = 0; k < 4; ++k) s.code[k] = look_up(kIq4, 128, s.code[k]);
    s.scale = halves_twice<bytes>(p);
    if constexpr (type == OLV_Q4_1 || type == OLV_Q5_1) s.min = halves_twice<bytes>(p + 2);
    else s.min = _mm512_mul_ps(s.scale, _mm512_set1_ps(type == OLV_Q4_0 ? -8 : type == OLV_Q5_0 ? -16 : -128));
    if constexpr (in_place) s.scale = sixteenth(s.scale, 0xaaaa);
  } else if constexpr (type == OLV_Q4_K || type == OLV_Q5_K) {
    const uint8_t* codes = p + bytes - 128;
    const __m512i a = _mm512_loadu_si512(codes), b = _mm512_loadu_si512(codes + 64);
    scales_and_mins(p, s.scale, s.min);
    if constexpr (type == OLV_Q4_K) {
      nibbles_in_place(a, b, kRunLanes, 0xcccc, s);
      s.scale = sixteenth(s.scale, 0xcccc);
    } else {
      nibbles(a, b, kRunLanes, 0xcccc, s);
      // Bit e / 32 of byte e % 32 becomes the fifth bit.
      const __m512i rotate = _mm512_setr_epi32(4, 4, 3, 3, 2, 2, 1, 1, 0, 0, 31, 31, 30, 30, 29, 29);
      const __m512i high = _mm512_castsi256_si512(load256(p + 16));
      for (int k = 0; k < 4; ++k)
        s.code[k] = with_bits(s.code[k], _mm512_permutexvar_epi32(kFifthLanes[k], high), rotate, 16);
    }
  } else if constexpr (type == OLV_Q6_K) {
    // In each half, 32 bytes hold the low nibbles of elements e and e + 64, 32 more those of e + 32 and e + 96.
    nibbles(_mm512_loadu_si512(p), _mm512_loadu_si512(p + 64), kLongLanes, 0xf0f0, s);
    const __m512i rotate = _mm512_setr_epi32(4, 4, 2, 2, 0, 0, 30, 30, 4, 4, 2, 2, 0, 0, 30, 30);
    const __m512i high = _mm512_loadu_si512(p + 128);
    for (int k = 0; k < 4; ++k)
      s.code[k] = with_bits(s.code[k], _mm512_permutexvar_epi32(kUpperLanes[k], high), rotate, 0x30);
    const __m512 scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(p + 192))));
    s.scale = _mm512_mul_ps(scales, _mm512_set1_ps(load_f16(p + 208)));
    s.min = _mm512_mul_ps(s.scale, _mm512_set1_ps(-32));
  } else if constexpr (type == OLV_Q2_K || type == OLV_Q3_K) {
    // In each half, 32 bytes hold two bits of elements e, e + 32, e + 64 and e + 96. They stay where they are: the codes are
    // 1, 4, 16 or 64 times too large, and scales are divided.
    const __m512i two = _mm512_broadcast_i64x4(_mm256_setr_epi32(0x03030303, 0x03030303, 0x0c0c0c0c, 0x0c0c0c0c, 0x30303030,
                                                                 0x30303030, int(0xc0c0c0c0), int(0xc0c0c0c0)));
    const __m512 part = _mm512_castpd_ps(_mm512_broadcast_f64x4(_mm256_castps_pd(
        _mm256_setr_ps(1, 1, 1 / 4.f, 1 / 4.f, 1 / 16.f, 1 / 16.f, 1 / 64.f, 1 / 64.f))));
    const __m512i words = _mm512_loadu_si512(p + (type == OLV_Q2_K ? 16 : 32));
    if constexpr (type == OLV_Q2_K) {
      for (int k = 0; k < 4; ++k) s.code[k] = _mm512_and_si512(_mm512_permutexvar_epi32(kUpperLanes[k], words), two);
      const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
      const __m512 scales = _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15)));
      s.scale = _mm512_mul_ps(_mm512_mul_ps(scales, _mm512_set1_ps(load_f16(p + 80))), part);
      s.min = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4)), _mm512_set1_ps(-load_f16(p + 82)));
    } else {
      // The third bit is bit e / 32 of byte e % 32. A clear one subtracts 4: in the minimum.
      const __m512i down = _mm512_setr_epi32(0, 0, 2, 2, 4, 4, 6, 6, 0, 0, 2, 2, 4, 4, 6, 6);
      const __m512i rotate = _mm512_setr_epi32(2, 2, 1, 1, 0, 0, 31, 31, 30, 30, 29, 29, 28, 28, 27, 27);
      const __m512i high = _mm512_castsi256_si512(load256(p));
      for (int k = 0; k < 4; ++k) {
        const __m512i low = _mm512_srlv_epi32(_mm512_permutexvar_epi32(kUpperLanes[k], words), down);
        s.code[k] = with_bits(_mm512_and_si512(low, _mm512_set1_epi8(3)), _mm512_permutexvar_epi32(kFifthLanes[k], high), rotate, 4);
      }
      const uint64_t nibbles = load<uint64_t>(p + 96), last = load<uint32_t>(p + 104);
      const uint64_t first = (last & 0x03030303) | (last >> 2 & 0x03030303) << 32;
      const uint64_t second = (last >> 4 & 0x03030303) | (last >> 6 & 0x03030303) << 32;
      const __m128i scales = _mm_set_epi64x(int64_t((nibbles >> 4 & 0x0f0f0f0f0f0f0f0f) | second << 4),
                                            int64_t((nibbles & 0x0f0f0f0f0f0f0f0f) | first << 4));
      const __m512i less = _mm512_sub_epi32(_mm512_cvtepu8_epi32(scales), _mm512_set1_epi32(32));
      s.scale = _mm512_mul_ps(_mm512_cvtepi32_ps(less), _mm512_set1_ps(load_f16(p + 108)));
      s.min = _mm512_mul_ps(s.scale, _mm512_set1_ps(-4));
    }
  } else if constexpr (type == OLV_IQ4_XS) {
    nibbles(_mm512_loadu_si512(p + 8), _mm512_loadu_si512(p + 72), kBlockLanes, 0xaaaa, s);
    for (int k = 0; k < 4; ++k) s.code[k] = look_up(kIq4, 128, s.code[k]);
    const uint64_t six = _pdep_u64(load<uint32_t>(p + 4), 0x0f0f0f0f0f0f0f0f) | _pdep_u64(load<uint16_t>(p + 2), 0x3030303030303030);
    const __m128i scales = _mm_cvtsi64_si128(int64_t(six));
    const __m512i less = _mm512_sub_epi32(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(scales, scales)), _mm512_set1_epi32(32));
    s.scale = _mm512_mul_ps(_mm512_cvtepi32_ps(less), _mm512_set1_ps(load_f16(p)));
    s.min = _mm512_mul_ps(s.scale, _mm512_set1_ps(-128));
  } else {
    static_assert(type == OLV_MXFP4);
    nibbles(four_blocks<bytes>(p + 1), four_blocks<bytes>(p + 4 * bytes + 1), kBlockLanes, 0xaaaa, s);
    for (int k = 0; k < 4; ++k) s.code[k] = look_up(kFp4, 12, s.code[k]);
    uint64_t eight = 0;
    for (int b = 0; b < 8; ++b) eight |= uint64_t(p[bytes * b]) << 8 * b;
    const __m128i exponents = _mm_cvtsi64_si128(int64_t(eight));
    s.scale = e8m0_halves(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(exponents, exponents)));
    s.min = _mm512_mul_ps(s.scale, _mm512_set1_ps(-12));
  }
}

// The scales of a super-block of qwen3.c's int8 from element `first` on: the file has one for every `group` elements.
OLV_INLINE __m512 group_scales(int64_t group, const uint8_t* scales, int64_t first) {
  if ((group & (group - 1)) == 0) {  // a power of two, as in all known files: no divisions
    const int bits = __builtin_ctzll(uint64_t(group));
    const int each = bits < 8 ? 256 >> bits : 1;  // scales per super-block
    const __m512 there = _mm512_maskz_loadu_ps(__mmask16((1u << each) - 1), scales + 4 * (first >> bits));
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(_mm512_srl_epi32(lanes, _mm_cvtsi32_si128(bits - 4)), there);
  }
  alignas(64) float each[16];
  for (int64_t g = 0; g < 16; ++g) each[g] = load<float>(scales + 4 * ((first + 16 * g) / group));
  return _mm512_load_ps(each);
}

template <int type>
OLV_INLINE void unpack_whole(const olv_weight& w, const uint8_t* row, const uint8_t* scales, int64_t index, SuperBlock512& s) {
  if constexpr (type != OLV_GROUPED) {
    unpack<type>(row + index * super_block_bytes(type), s);
  } else {
    const int64_t first = index * kSuperBlock;
    const __m512i flip = _mm512_set1_epi8(int8_t(0x80));
    for (int c = 0; c < 4; ++c) s.code[c] = _mm512_xor_si512(_mm512_loadu_si512(row + first + 64 * c), flip);
    to_lanes(s.code);
    s.scale = group_scales(w.group, scales, first);
    s.min = _mm512_mul_ps(s.scale, _mm512_set1_ps(-128));
  }
}

// The last super-block of a row that is not a multiple of 256: padded with zero scales and minima.
template <int type>
OLV_INLINE void unpack_tail(const olv_weight& w, const uint8_t* row, const uint8_t*, int64_t index, SuperBlock512& s) {
  const int64_t elements = w.k - index * kSuperBlock;
  if constexpr (type == OLV_GROUPED) {
    SuperBlock plain;
    unpack_codes<type>(w, (row - w.data) / row_bytes(w), index, plain);
    load_lanes(plain, s);
  } else {
    const uint8_t* at = row + index * super_block_bytes(type);
    if (at + super_block_bytes(type) <= w.data + w.n * row_bytes(w)) {
      // The load continues into the next row, whose groups get zero scales.
      unpack<type>(at, s);
      const __mmask16 inside = __mmask16((1u << (elements / 16)) - 1);
      s.scale = _mm512_maskz_mov_ps(inside, s.scale);
      s.min = _mm512_maskz_mov_ps(inside, s.min);
      return;
    }
    uint8_t padded[super_block_bytes(type) + 64];  // wide loads may reach beyond the last block
    memset(padded, 0, sizeof padded);
    memcpy(padded, at, size_t(elements / kTypes[type].block * kTypes[type].bytes));
    unpack<type>(padded, s);
  }
}

}  // namespace
}  // namespace olv
