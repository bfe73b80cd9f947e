// Strips in AVX-512 registers: 256 codes in four, the sixteen scales and lows in one each.
#pragma once
#include <immintrin.h>

#include "linear.h"

namespace olv {
namespace {

// The sums of four vectors, side by side.
OLV_INLINE __m128 sums_of_four(const __m512 (&x)[4]) {
  const __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
  const __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
  const __m512 c = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m256 d = _mm256_add_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));
  return _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));
}

struct Strip512 {
  __m512i code[4];
  __m512 scale, low;
};

// Eight values to sixteen lanes, each twice: a block of 32 is two groups of 16.
OLV_INLINE __m512 twice(__m256 x) {
  const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(x));
}

// The halves at p, `stride` bytes apart, as floats. Put together by the scalar units, which have nothing else to do: the
// vector units are what a strip waits for.
template <int stride>
OLV_INLINE __m256 halves(const uint8_t* p) {
  const auto four = [](const uint8_t* at) {
    return uint64_t(load<uint16_t>(at)) | uint64_t(load<uint16_t>(at + stride)) << 16 |
           uint64_t(load<uint16_t>(at + 2 * stride)) << 32 | uint64_t(load<uint16_t>(at + 3 * stride)) << 48;
  };
  return _mm256_cvtph_ps(_mm_set_epi64x(int64_t(four(p + 4 * stride)), int64_t(four(p))));
}

OLV_INLINE __m512i join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }
OLV_INLINE __m256i load256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// 32 bytes: low nibbles in the lower half, high nibbles in the upper. The copy is made by the load itself.
OLV_INLINE __m512i nibbles(const uint8_t* p) {
  const __m512i shift = join(_mm256_setzero_si256(), _mm256_set1_epi16(4));
  return _mm512_and_si512(_mm512_srlv_epi16(_mm512_broadcast_i64x4(load256(p)), shift), _mm512_set1_epi8(15));
}

// Two blocks of 16 bytes each: low nibbles then high nibbles, block after block.
OLV_INLINE __m512i nibble_halves(const uint8_t* a, const uint8_t* b) {
  const __m512i shift = _mm512_setr_epi32(0, 0, 0, 0, 0x40004, 0x40004, 0x40004, 0x40004, 0, 0, 0, 0, 0x40004, 0x40004,
                                          0x40004, 0x40004);
  const __m512i first = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)));
  const __m512i both = _mm512_mask_broadcast_i32x4(first, 0xff00, _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)));
  return _mm512_and_si512(_mm512_srlv_epi16(both, shift), _mm512_set1_epi8(15));
}

OLV_INLINE __m512i look_up(const int8_t (&table)[16], int offset, __m512i codes) {
  alignas(16) int8_t shifted[16];
  for (int i = 0; i < 16; ++i) shifted[i] = int8_t(table[i] + offset);
  const __m512i all = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(shifted)));
  return _mm512_shuffle_epi8(all, codes);
}

// The eight 6-bit scales and minima of Q4_K and Q5_K, each twice.
OLV_INLINE void scales_and_mins(const uint8_t* p, __m512& scale, __m512& low) {
  const uint32_t a = load<uint32_t>(p + 4), b = load<uint32_t>(p + 8), c = load<uint32_t>(p + 12);
  const uint64_t scales = (a & 0x3f3f3f3f) | uint64_t((c & 0x0f0f0f0f) | (a >> 6 & 0x03030303) << 4) << 32;
  const uint64_t lows = (b & 0x3f3f3f3f) | uint64_t((c >> 4 & 0x0f0f0f0f) | (b >> 6 & 0x03030303) << 4) << 32;
  const auto widen = [](uint64_t x) {
    const __m128i v = _mm_cvtsi64_si128(int64_t(x));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(v, v)));
  };
  scale = _mm512_mul_ps(widen(scales), _mm512_set1_ps(load_f16(p)));
  low = _mm512_mul_ps(widen(lows), _mm512_set1_ps(-load_f16(p + 2)));
}

OLV_INLINE void in_registers(const Strip& plain, Strip512& s) {
  for (int c = 0; c < 4; ++c) s.code[c] = _mm512_load_si512(plain.code + 64 * c);
  s.scale = _mm512_load_ps(plain.scale);
  s.low = _mm512_load_ps(plain.low);
}

template <int type>
OLV_INLINE void load_strip(const uint8_t* p, Strip512& s) {
  if constexpr (type == OLV_Q8_0) {
    const __m512i flip = _mm512_set1_epi8(int8_t(0x80));
    for (int c = 0; c < 4; ++c) s.code[c] = _mm512_xor_si512(join(load256(p + 68 * c + 2), load256(p + 68 * c + 36)), flip);
    s.scale = twice(halves<34>(p));
    s.low = _mm512_mul_ps(s.scale, _mm512_set1_ps(-128));
  } else if constexpr (type == OLV_Q4_0 || type == OLV_IQ4_NL || type == OLV_Q4_1) {
    constexpr int bytes = kTypes[type].bytes, at = type == OLV_Q4_1 ? 4 : 2;
    for (int c = 0; c < 4; ++c) s.code[c] = nibble_halves(p + 2 * c * bytes + at, p + (2 * c + 1) * bytes + at);
    s.scale = twice(halves<bytes>(p));
    if constexpr (type == OLV_IQ4_NL)
      for (int c = 0; c < 4; ++c) s.code[c] = look_up(kIq4, 128, s.code[c]);
    if constexpr (type == OLV_Q4_1) s.low = twice(halves<bytes>(p + 2));
    else s.low = _mm512_mul_ps(s.scale, _mm512_set1_ps(type == OLV_Q4_0 ? -8 : -128));
  } else if constexpr (type == OLV_Q5_0 || type == OLV_Q5_1) {
    constexpr int bytes = kTypes[type].bytes, bits_at = type == OLV_Q5_0 ? 2 : 4, at = bits_at + 4;
    for (int c = 0; c < 4; ++c) {
      const uint8_t *a = p + 2 * c * bytes, *b = a + bytes;
      const __mmask64 high = load<uint32_t>(a + bits_at) | uint64_t(load<uint32_t>(b + bits_at)) << 32;
      const __m512i codes = nibble_halves(a + at, b + at);
      s.code[c] = _mm512_mask_add_epi8(codes, high, codes, _mm512_set1_epi8(16));
    }
    s.scale = twice(halves<bytes>(p));
    if constexpr (type == OLV_Q5_1) s.low = twice(halves<bytes>(p + 2));
    else s.low = _mm512_mul_ps(s.scale, _mm512_set1_ps(-16));
  } else if constexpr (type == OLV_Q4_K) {
    for (int c = 0; c < 4; ++c) s.code[c] = nibbles(p + 16 + 32 * c);
    scales_and_mins(p, s.scale, s.low);
  } else if constexpr (type == OLV_Q5_K) {
    __m256i high = load256(p + 16);
    const __m256i one = _mm256_set1_epi8(1);
    for (int c = 0; c < 4; ++c) {
      const __m256i even = _mm256_and_si256(high, one), odd = _mm256_and_si256(_mm256_srli_epi16(high, 1), one);
      s.code[c] = _mm512_or_si512(nibbles(p + 48 + 32 * c), _mm512_slli_epi16(join(even, odd), 4));
      high = _mm256_srli_epi16(high, 2);
    }
    scales_and_mins(p, s.scale, s.low);
  } else if constexpr (type == OLV_Q6_K) {
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m256i two = _mm256_set1_epi8(0x30);
    for (int h = 0; h < 2; ++h) {
      const __m512i low = _mm512_loadu_si512(p + 64 * h);
      const __m256i high = load256(p + 128 + 32 * h);
      const __m512i first = join(_mm256_and_si256(_mm256_slli_epi16(high, 4), two), _mm256_and_si256(_mm256_slli_epi16(high, 2), two));
      const __m512i second = join(_mm256_and_si256(high, two), _mm256_and_si256(_mm256_srli_epi16(high, 2), two));
      s.code[2 * h] = _mm512_or_si512(_mm512_and_si512(low, nibble), first);
      s.code[2 * h + 1] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(low, 4), nibble), second);
    }
    const __m512 scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(p + 192))));
    s.scale = _mm512_mul_ps(scales, _mm512_set1_ps(load_f16(p + 208)));
    s.low = _mm512_mul_ps(s.scale, _mm512_set1_ps(-32));
  } else {
    // The rarer types go through memory.
    Strip plain;
    load_strip<type>(p, plain);
    in_registers(plain, s);
  }
}

// Strip `strip` of a row, for the types that have strips.
template <int type>
OLV_INLINE void code_strip(const olv_weight& w, const uint8_t* row, const uint8_t* scales, int64_t strip, Strip512& s) {
  const int64_t first = strip * kStrip, elements = smaller<int64_t>(kStrip, w.k - first);
  if constexpr (type == OLV_GROUPED) {
    if (elements == kStrip && w.group % 64 == 0) {
      const __m512i flip = _mm512_set1_epi8(int8_t(0x80));
      alignas(64) float each[16];
      for (int c = 0; c < 4; ++c) {
        s.code[c] = _mm512_xor_si512(_mm512_loadu_si512(row + first + 64 * c), flip);
        const float scale = load<float>(scales + 4 * ((first + 64 * c) / w.group));
        each[4 * c] = each[4 * c + 1] = each[4 * c + 2] = each[4 * c + 3] = scale;
      }
      s.scale = _mm512_load_ps(each);
      s.low = _mm512_mul_ps(s.scale, _mm512_set1_ps(-128));
      return;
    }
    Strip plain;
    code_strip<type>(w, (row - w.data) / row_bytes(w), strip, plain);
    in_registers(plain, s);
  } else if constexpr (type > OLV_BF16) {
    const uint8_t* at = row + strip * strip_bytes(type);
    if (elements == kStrip) return load_strip<type>(at, s);
    if (at + strip_bytes(type) <= w.data + w.n * row_bytes(w)) {
      // What lies behind the row is the next row: read along, and given no weight.
      load_strip<type>(at, s);
      const __mmask16 mine = __mmask16((1u << (elements / 16)) - 1);
      s.scale = _mm512_maskz_mov_ps(mine, s.scale);
      s.low = _mm512_maskz_mov_ps(mine, s.low);
      return;
    }
    uint8_t padded[strip_bytes(type) + 64];  // wide loads may look beyond the last block
    memset(padded, 0, sizeof padded);
    memcpy(padded, at, size_t(elements / kTypes[type].block * kTypes[type].bytes));
    load_strip<type>(padded, s);
  }
}

}  // namespace
}  // namespace olv
