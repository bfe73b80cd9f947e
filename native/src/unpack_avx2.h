// Super-blocks unpacked in AVX2: the same codes, scales and minima as in unpack.h. No load reaches beyond a block.
#pragma once
#include <immintrin.h>

#include "blocks.h"

namespace olv {
namespace {
namespace avx2 {  // AVX-512 includes this file and has helpers of the same names

OLV_INLINE __m128i load128(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
OLV_INLINE __m256i load_codes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
OLV_INLINE void store_codes(uint8_t* p, __m256i x) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), x); }

// Bits of every byte: those of `mask`, moved down by `shift`.
template <int shift>
OLV_INLINE __m256i bits(__m256i x, int mask) {
  return _mm256_and_si256(_mm256_srli_epi16(x, shift), _mm256_set1_epi8(char(mask)));
}

// 16 bytes: low nibbles, then high nibbles.
OLV_INLINE __m256i low_then_high(const uint8_t* p) {
  const __m128i x = load128(p);
  return bits<0>(_mm256_set_m128i(_mm_srli_epi16(x, 4), x), 15);
}

OLV_INLINE __m256i table_of(const int8_t (&values)[16], int offset) {
  alignas(16) int8_t shifted[16];
  for (int i = 0; i < 16; ++i) shifted[i] = int8_t(values[i] + offset);
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(shifted)));
}

// 32 bits to 32 bytes: 16 for a set bit, else 0.
OLV_INLINE __m256i sixteens(uint32_t high) {
  const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit_of = _mm256_set1_epi64x(int64_t(0x8040201008040201));
  const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(int32_t(high)), byte_of);
  return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of), bit_of), _mm256_set1_epi8(16));
}

// Eight f16 at p, `stride` bytes apart, as floats.
template <int stride>
OLV_INLINE __m256 halves(const uint8_t* p) {
  const auto four = [](const uint8_t* at) {
    return int64_t(uint64_t(load<uint16_t>(at)) | uint64_t(load<uint16_t>(at + stride)) << 16 |
                   uint64_t(load<uint16_t>(at + 2 * stride)) << 32 | uint64_t(load<uint16_t>(at + 3 * stride)) << 48);
  };
  return _mm256_cvtph_ps(_mm_set_epi64x(four(p + 4 * stride), four(p)));
}

// A value for each of eight blocks of 32, stored for both of the block's groups of 16.
OLV_INLINE void store_twice(float* to, __m256 x) {
  _mm256_store_ps(to, _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)));
  _mm256_store_ps(to + 8, _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)));
}

OLV_INLINE void store_scales(SuperBlock& s, __m256 scale, __m256 min) {
  store_twice(s.scale, scale);
  store_twice(s.min, min);
}

OLV_INLINE __m256 times(__m256 x, float y) { return _mm256_mul_ps(x, _mm256_set1_ps(y)); }

// Eight bytes as floats.
OLV_INLINE __m256 floats_of(uint64_t bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(bytes))));
}
OLV_INLINE __m256 signed_floats(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)); }

// Sixteen scales, one a group, and minima that are a multiple of them.
OLV_INLINE void store_groups(SuperBlock& s, __m128i scales, float d, float min) {
  const __m256 first = times(signed_floats(scales), d);
  const __m256 second = times(signed_floats(_mm_unpackhi_epi64(scales, scales)), d);
  _mm256_store_ps(s.scale, first);
  _mm256_store_ps(s.scale + 8, second);
  _mm256_store_ps(s.min, times(first, min));
  _mm256_store_ps(s.min + 8, times(second, min));
}

// The eight 6-bit scales and minima of Q4_K and Q5_K.
OLV_INLINE void store_scales_and_mins(const uint8_t* p, SuperBlock& s) {
  const uint32_t a = load<uint32_t>(p + 4), b = load<uint32_t>(p + 8), c = load<uint32_t>(p + 12);
  const uint64_t scales = (a & 0x3f3f3f3f) | uint64_t((c & 0x0f0f0f0f) | (a >> 6 & 0x03030303) << 4) << 32;
  const uint64_t mins = (b & 0x3f3f3f3f) | uint64_t((c >> 4 & 0x0f0f0f0f) | (b >> 6 & 0x03030303) << 4) << 32;
  store_scales(s, times(floats_of(scales), load_f16(p)), times(floats_of(mins), -load_f16(p + 2)));
}

template <int type>
OLV_INLINE void unpack(const uint8_t* p, SuperBlock& s) {
  constexpr int bytes = kTypes[type].bytes;
  if constexpr (type == OLV_Q8_0) {
    for (int b = 0; b < 8; ++b)
      store_codes(s.code + 32 * b, _mm256_xor_si256(load_codes(p + bytes * b + 2), _mm256_set1_epi8(char(0x80))));
    const __m256 scale = halves<bytes>(p);
    store_scales(s, scale, times(scale, -128));
  } else if constexpr (type == OLV_Q4_0 || type == OLV_Q4_1) {
    for (int b = 0; b < 8; ++b) store_codes(s.code + 32 * b, low_then_high(p + bytes * b + (type == OLV_Q4_1 ? 4 : 2)));
    const __m256 scale = halves<bytes>(p);
    if constexpr (type == OLV_Q4_1) store_scales(s, scale, halves<bytes>(p + 2));
    else store_scales(s, scale, times(scale, -8));
  } else if constexpr (type == OLV_Q5_0 || type == OLV_Q5_1) {
    constexpr int bits_at = type == OLV_Q5_0 ? 2 : 4;
    for (int b = 0; b < 8; ++b) {
      const uint8_t* block = p + bytes * b + bits_at;
      store_codes(s.code + 32 * b, _mm256_or_si256(low_then_high(block + 4), sixteens(load<uint32_t>(block))));
    }
    const __m256 scale = halves<bytes>(p);
    if constexpr (type == OLV_Q5_1) store_scales(s, scale, halves<bytes>(p + 2));
    else store_scales(s, scale, times(scale, -16));
  } else if constexpr (type == OLV_IQ4_NL) {
    const __m256i table = table_of(kIq4, 128);
    for (int b = 0; b < 8; ++b)
      store_codes(s.code + 32 * b, _mm256_shuffle_epi8(table, low_then_high(p + bytes * b + 2)));
    const __m256 scale = halves<bytes>(p);
    store_scales(s, scale, times(scale, -128));
  } else if constexpr (type == OLV_MXFP4) {
    const __m256i table = table_of(kFp4, 12);
    alignas(32) float each[8];
    for (int b = 0; b < 8; ++b) {
      store_codes(s.code + 32 * b, _mm256_shuffle_epi8(table, low_then_high(p + bytes * b + 1)));
      each[b] = e8m0_half(p[bytes * b]);
    }
    const __m256 scale = _mm256_load_ps(each);
    store_scales(s, scale, times(scale, -12));
  } else if constexpr (type == OLV_IQ4_XS) {
    const __m256i table = table_of(kIq4, 128);
    const uint16_t high = load<uint16_t>(p + 2);
    uint64_t scales = 0;
    for (int j = 0; j < 8; ++j) {
      store_codes(s.code + 32 * j, _mm256_shuffle_epi8(table, low_then_high(p + 8 + 16 * j)));
      scales |= uint64_t((p[4 + j / 2] >> 4 * (j & 1) & 15) | (high >> 2 * j & 3) << 4) << 8 * j;
    }
    const __m256 scale = times(_mm256_sub_ps(floats_of(scales), _mm256_set1_ps(32)), load_f16(p));
    store_scales(s, scale, times(scale, -128));
  } else if constexpr (type == OLV_Q4_K) {
    for (int c = 0; c < 4; ++c) {
      const __m256i x = load_codes(p + 16 + 32 * c);
      store_codes(s.code + 64 * c, bits<0>(x, 15));
      store_codes(s.code + 64 * c + 32, bits<4>(x, 15));
    }
    store_scales_and_mins(p, s);
  } else if constexpr (type == OLV_Q5_K) {
    const __m256i sixteen = _mm256_set1_epi8(16);
    __m256i high = load_codes(p + 16);
    for (int c = 0; c < 4; ++c) {
      const __m256i x = load_codes(p + 48 + 32 * c);
      const __m256i even = _mm256_and_si256(_mm256_slli_epi16(high, 4), sixteen);
      const __m256i odd = _mm256_and_si256(_mm256_slli_epi16(high, 3), sixteen);
      store_codes(s.code + 64 * c, _mm256_or_si256(bits<0>(x, 15), even));
      store_codes(s.code + 64 * c + 32, _mm256_or_si256(bits<4>(x, 15), odd));
      high = _mm256_srli_epi16(high, 2);
    }
    store_scales_and_mins(p, s);
  } else if constexpr (type == OLV_Q6_K) {
    for (int h = 0; h < 2; ++h) {
      const __m256i a = load_codes(p + 64 * h), b = load_codes(p + 64 * h + 32), high = load_codes(p + 128 + 32 * h);
      const __m256i two = _mm256_set1_epi8(0x30);
      uint8_t* code = s.code + 128 * h;
      store_codes(code, _mm256_or_si256(bits<0>(a, 15), _mm256_and_si256(_mm256_slli_epi16(high, 4), two)));
      store_codes(code + 32, _mm256_or_si256(bits<0>(b, 15), _mm256_and_si256(_mm256_slli_epi16(high, 2), two)));
      store_codes(code + 64, _mm256_or_si256(bits<4>(a, 15), bits<0>(high, 0x30)));
      store_codes(code + 96, _mm256_or_si256(bits<4>(b, 15), bits<2>(high, 0x30)));
    }
    store_groups(s, load128(p + 192), load_f16(p + 208), -32);
  } else if constexpr (type == OLV_Q2_K) {
    for (int h = 0; h < 2; ++h) {
      const __m256i x = load_codes(p + 16 + 32 * h);
      store_codes(s.code + 128 * h, bits<0>(x, 3));
      store_codes(s.code + 128 * h + 32, bits<2>(x, 3));
      store_codes(s.code + 128 * h + 64, bits<4>(x, 3));
      store_codes(s.code + 128 * h + 96, bits<6>(x, 3));
    }
    const float d = load_f16(p + 80), min = -load_f16(p + 82);
    for (int half = 0; half < 2; ++half) {
      const uint64_t both = load<uint64_t>(p + 8 * half), nibble = 0x0f0f0f0f0f0f0f0f;
      _mm256_store_ps(s.scale + 8 * half, times(floats_of(both & nibble), d));
      _mm256_store_ps(s.min + 8 * half, times(floats_of(both >> 4 & nibble), min));
    }
  } else if constexpr (type == OLV_Q3_K) {
    __m256i high = load_codes(p);
    const __m256i four = _mm256_set1_epi8(4);
    for (int h = 0; h < 2; ++h) {
      const __m256i x = load_codes(p + 32 + 32 * h);
      const __m256i code[4] = {bits<0>(x, 3), bits<2>(x, 3), bits<4>(x, 3), bits<6>(x, 3)};
      for (int i = 0; i < 4; ++i) {
        const __m256i top = _mm256_and_si256(_mm256_slli_epi16(high, 2), four);
        store_codes(s.code + 128 * h + 32 * i, _mm256_or_si256(code[i], top));
        high = _mm256_srli_epi16(high, 1);
      }
    }
    const uint64_t low = load<uint64_t>(p + 96), last = load<uint32_t>(p + 104);
    const uint64_t first = (last & 0x03030303) | (last >> 2 & 0x03030303) << 32;
    const uint64_t second = (last >> 4 & 0x03030303) | (last >> 6 & 0x03030303) << 32;
    const __m128i scales = _mm_set_epi64x(int64_t((low >> 4 & 0x0f0f0f0f0f0f0f0f) | second << 4),
                                          int64_t((low & 0x0f0f0f0f0f0f0f0f) | first << 4));
    store_groups(s, _mm_sub_epi8(scales, _mm_set1_epi8(32)), load_f16(p + 108), -4);
  }
}

// A whole super-block of qwen3.c's groups, whose size is a power of two; the first group begins `inside` elements before it.
OLV_INLINE void unpack_grouped(const uint8_t* codes, const uint8_t* scales, int64_t group, int64_t inside, SuperBlock& s) {
  for (int b = 0; b < 8; ++b)
    store_codes(s.code + 32 * b, _mm256_xor_si256(load_codes(codes + 32 * b), _mm256_set1_epi8(char(0x80))));
  const __m128i shift = _mm_cvtsi32_si128(__builtin_ctzll(uint64_t(group)));
  for (int half = 0; half < 2; ++half) {
    if (group == 16) {  // of all expanded types: no gathers, which some CPUs do one by one
      const __m256 scale = _mm256_loadu_ps(reinterpret_cast<const float*>(scales) + 8 * half);
      _mm256_store_ps(s.scale + 8 * half, scale);
      _mm256_store_ps(s.min + 8 * half, times(scale, -128));
      continue;
    }
    const __m256i first = _mm256_set1_epi32(int32_t(inside) + 128 * half);
    const __m256i element = _mm256_add_epi32(first, _mm256_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112));
    const __m256i index = _mm256_srl_epi32(element, shift);
    const __m256 scale = _mm256_i32gather_ps(reinterpret_cast<const float*>(scales), index, 4);
    _mm256_store_ps(s.scale + 8 * half, scale);
    _mm256_store_ps(s.min + 8 * half, times(scale, -128));
  }
}

}  // namespace avx2

using avx2::unpack_grouped;
using avx2::unpack;

}  // namespace
}  // namespace olv
