// Super-blocks of the types that are expanded (expand.h), in AVX-512 registers, where a generated row is alone: the codes,
// scales and minima that unpacking the expanded row gives.
#pragma once
#include "unpack_avx512.h"

namespace olv {
namespace {

// Packed words of a grid at sixteen-bit indices. 64 of them are the two registers of a permutation; of more, the next bit of
// the index chooses a half.
template <int size>
OLV_INLINE __m512i packed_words(const uint16_t* word, __m512i index) {
  if constexpr (size == 64) {
    return _mm512_permutex2var_epi16(_mm512_load_si512(word), index, _mm512_load_si512(word + 32));
  } else {
    const __mmask32 upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(size / 2));
    const __m512i low = packed_words<size / 2>(word, index);
    return _mm512_mask_mov_epi16(low, upper, packed_words<size / 2>(word + size / 2, index));
  }
}
template <int size>
OLV_INLINE __m512i packed_words(const PackedGrid<size>& grid, __m512i index) { return packed_words<size>(grid.word, index); }

// Four bytes for each lane; sixteen for each quarter, as the byte shuffles have them.
OLV_INLINE __m512i all_words(int x) { return _mm512_set1_epi32(x); }
OLV_INLINE __m512i in_quarters(int a, int b, int c, int d) { return _mm512_broadcast_i32x4(_mm_setr_epi32(a, b, c, d)); }

// Bytes of seven bits; the eighth makes the number of set ones even.
OLV_INLINE __m512i with_parity(__m512i seven) {
  const __m512i odd = in_quarters(int(0x00808000), int(0x80000080), int(0x80000080), int(0x00808000));
  const __m512i folded = _mm512_xor_si512(seven, _mm512_srli_epi16(seven, 4));
  return _mm512_or_si512(seven, _mm512_shuffle_epi8(odd, _mm512_and_si512(folded, _mm512_set1_epi8(15))));
}

// The lowest 28 bits of words, seven in each byte.
OLV_INLINE __m512i four_sevens(__m512i x) {
  const auto with = [](__m512i to, __m512i from, int mask) {  // to | from & mask
    return _mm512_ternarylogic_epi32(to, from, all_words(mask), 0xf8);
  };
  __m512i r = _mm512_and_si512(x, all_words(0x7f));
  r = with(r, _mm512_slli_epi32(x, 1), 0x7f00);
  r = with(r, _mm512_slli_epi32(x, 2), 0x7f0000);
  return with(r, _mm512_slli_epi32(x, 3), 0x7f000000);
}

// The signs of code[k]: `bytes` has those of the lane's elements 0 … 7 or 8 … 15, four times.
OLV_INLINE __mmask64 signs_of(__m512i bytes, int k) {
  return _mm512_test_epi8_mask(bytes, all_words(k % 2 ? int(0x80402010) : int(0x08040201)));
}

// code[k] of IQ2 and IQ3 types. `word`: the packed word of each lane, twice; `first`: the bit of the first digit.
template <int digit_bits, int size>
OLV_INLINE __m512i grid_codes(const PackedGrid<size>& grid, __m512i word, int first, __m512i signs, int k) {
  const __m512i shift = all_words(first | (first + digit_bits) << 16), mask = _mm512_set1_epi8((1 << digit_bits) - 1);
  const __m512i digit = _mm512_and_si512(_mm512_srlv_epi16(word, shift), mask);
  const __m512i at = _mm512_mask_add_epi8(digit, signs_of(signs, k), digit, _mm512_set1_epi8(1 << digit_bits));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load<__m128i>(grid.code)), at);
}

// scale = unit · (2 · code + 1) for sixteen integers.
OLV_INLINE void odd_scales(__m512i codes, float half, SuperBlock512& s) {
  s.scale = _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes), _mm512_set1_ps(2 * half), _mm512_set1_ps(half));
}

// Eight bytes: sixteen nibbles, the lower ones first.
OLV_INLINE __m128i nibbles_in_order(__m128i x) {
  const __m128i low = _mm_set1_epi8(15);
  return _mm_unpacklo_epi8(_mm_and_si128(x, low), _mm_and_si128(_mm_srli_epi16(x, 4), low));
}

template <int type>
OLV_INLINE void unpack_iq2(const uint8_t* p, SuperBlock512& s) {
  const auto& grid = [&]() -> auto& {
    if constexpr (type == OLV_IQ2_XXS) return kPackedIQ2_XXS;
    else if constexpr (type == OLV_IQ2_XS) return kPackedIQ2_XS;
    else return kPackedIQ2_S;
  }();
  __m512i index, signs, first, second, scales;  // which bytes of `signs` are of the first and of the second word of a lane
  if constexpr (type == OLV_IQ2_XXS) {  // every eight bytes: four indices, then signs and a scale
    const __m512i x = _mm512_loadu_si512(p + 2);
    index = _mm512_shuffle_epi8(x, in_quarters(int(0x80018000), int(0x80038002), int(0x80098008), int(0x800b800a)));
    signs = with_parity(four_sevens(x));
    first = in_quarters(0x04040404, 0x06060606, 0x0c0c0c0c, 0x0e0e0e0e);
    second = in_quarters(0x05050505, 0x07070707, 0x0d0d0d0d, 0x0f0f0f0f);
    scales = _mm512_shuffle_epi32(_mm512_srli_epi32(x, 28), _MM_PERM_ENUM(0xf5));
  } else {
    if constexpr (type == OLV_IQ2_XS) {
      const __m512i x = _mm512_loadu_si512(p + 2);
      index = _mm512_and_si512(x, _mm512_set1_epi16(511));
      signs = with_parity(_mm512_srli_epi16(x, 9));
      second = in_quarters(0x02020202, 0x06060606, 0x0a0a0a0a, 0x0e0e0e0e);
    } else {
      // Two bits of each byte go to the words of eight: to the left by 8, 6, 4 and 2.
      const __m512i high = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 66)));
      const __m512i each = _mm512_shuffle_epi8(high, in_quarters(int(0x80008000), int(0x80008000), int(0x80088008), int(0x80088008)));
      const __m512i moved = _mm512_sllv_epi16(each, _mm512_set1_epi64(0x0002000400060008));
      index = _mm512_ternarylogic_epi32(_mm512_cvtepu8_epi16(load256(p + 2)), moved, _mm512_set1_epi16(0x300), 0xf8);
      signs = _mm512_cvtepu16_epi32(load256(p + 34));
      second = in_quarters(0x01010101, 0x05050505, 0x09090909, 0x0d0d0d0d);
    }
    first = in_quarters(0x00000000, 0x04040404, 0x08080808, 0x0c0c0c0c);
    scales = _mm512_cvtepu8_epi32(nibbles_in_order(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + (type == OLV_IQ2_XS ? 66 : 74)))));
  }
  const __m512i words = packed_words(grid, index);
  const __m512i even = _mm512_shuffle_epi8(words, in_quarters(0x01000100, 0x05040504, 0x09080908, 0x0d0c0d0c));
  const __m512i odd = _mm512_shuffle_epi8(words, in_quarters(0x03020302, 0x07060706, 0x0b0a0b0a, 0x0f0e0f0e));
  const __m512i a = _mm512_shuffle_epi8(signs, first), b = _mm512_shuffle_epi8(signs, second);
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) s.code[k] = grid_codes<2>(grid, k < 2 ? even : odd, k % 2 * 4, k < 2 ? a : b, k);
  odd_scales(scales, 0.125f * load_f16(p), s);
}

template <int type>
OLV_INLINE void unpack_iq3(const uint8_t* p, SuperBlock512& s) {
  const auto& grid = [&]() -> auto& {
    if constexpr (type == OLV_IQ3_XXS) return kPackedIQ3_XXS;
    else return kPackedIQ3_S;
  }();
  // Four indices a lane: those of code[0] and code[2] are even bytes.
  const __m512i x = _mm512_loadu_si512(p + 2);
  __m512i index[2] = {_mm512_and_si512(x, _mm512_set1_epi16(255)), _mm512_srli_epi16(x, 8)}, signs, first, second, scales;
  float half;
  if constexpr (type == OLV_IQ3_XXS) {
    const __m512i y = _mm512_cvtepu32_epi64(load256(p + 66));
    signs = with_parity(four_sevens(y));
    first = in_quarters(0x00000000, 0x02020202, 0x08080808, 0x0a0a0a0a);
    second = in_quarters(0x01010101, 0x03030303, 0x09090909, 0x0b0b0b0b);
    scales = _mm512_shuffle_epi32(_mm512_srli_epi32(y, 28), _MM_PERM_ENUM(0xa0));
    half = 0.25f * load_f16(p);
  } else {
    const uint64_t ninth = load<uint64_t>(p + 66);
    for (int i = 0; i < 2; ++i)
      index[i] = _mm512_mask_add_epi16(index[i], __mmask32(_pext_u64(ninth, 0x5555555555555555 << i)), index[i], _mm512_set1_epi16(256));
    signs = _mm512_cvtepu16_epi32(load256(p + 74));
    first = in_quarters(0x00000000, 0x04040404, 0x08080808, 0x0c0c0c0c);
    second = in_quarters(0x01010101, 0x05050505, 0x09090909, 0x0d0d0d0d);
    const __m128i eight = nibbles_in_order(_mm_cvtsi32_si128(load<int32_t>(p + 106)));
    scales = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(eight, eight));
    half = load_f16(p);
  }
  const __m512i words[2] = {packed_words(grid, index[0]), packed_words(grid, index[1])};
  const __m512i even = in_quarters(0x01000100, 0x05040504, 0x09080908, 0x0d0c0d0c);
  const __m512i odd = in_quarters(0x03020302, 0x07060706, 0x0b0a0b0a, 0x0f0e0f0e);
  const __m512i a = _mm512_shuffle_epi8(signs, first), b = _mm512_shuffle_epi8(signs, second);
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k)
    s.code[k] = grid_codes<3>(grid, _mm512_shuffle_epi8(words[k % 2], k < 2 ? even : odd), 0, k < 2 ? a : b, k);
  odd_scales(scales, half, s);
}

// IQ1's grid has too many words for permutations.
template <int type>
OLV_INLINE void unpack_iq1(const uint8_t* p, SuperBlock512& s) {
  const GridBlock<type> block(p);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const auto codes = [&](int i) { return _mm256_add_epi8(block.codes(i), block.shifts(i)); };
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(codes(8 * c)), codes(8 * c + 4), 1);
    s.code[c] = _mm512_xor_si512(both, _mm512_set1_epi8(int8_t(0x80)));
  }
  to_lanes(s.code);
  const v16 scales = grid_scales<type>(p, block);
  s.scale = load<__m512>(&scales);
}

// Digits in base 3: 32 bytes of five, sixteen of five, four of four.
OLV_INLINE void unpack_tq1(const uint8_t* p, SuperBlock512& s) {
  const auto thrice = [](__m256i x) { return _mm256_add_epi8(x, _mm256_add_epi8(x, x)); };
  const auto ninefold = [&](__m256i x) { return thrice(thrice(x)); };
  const auto put = [&](int c, __m256i low, __m256i high) {  // the first digits of fractions of 256
    const __m512i x = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), one = _mm512_set1_epi8(1);
    const __m512i digit = _mm512_mask_add_epi8(_mm512_set1_epi8(127), _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(86)),
                                               _mm512_set1_epi8(127), one);
    s.code[c] = _mm512_mask_add_epi8(digit, _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(int8_t(171))), digit, one);
  };
  const __m256i x = load256(p), x2 = ninefold(x), x4 = ninefold(x2);
  const __m128i sixteen = load<__m128i>(p + 32);
  const __m256i y = _mm256_set_m128i(_mm_add_epi8(sixteen, _mm_add_epi8(sixteen, sixteen)), sixteen), y2 = ninefold(y);
  typedef uint8_t Sixteen __attribute__((vector_size(16)));
  const Sixteen last = Sixteen(_mm_set1_epi32(load<int32_t>(p + 48))) * Sixteen{1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27};
  put(0, x, thrice(x));
  put(1, x2, thrice(x2));
  put(2, x4, y);
  put(3, y2, _mm256_inserti128_si256(ninefold(y2), __m128i(last), 1));
  to_lanes(s.code);
  s.scale = _mm512_set1_ps(load_f16(p + 52));
}

// Two bits, as in Q2_K.
OLV_INLINE void unpack_tq2(const uint8_t* p, SuperBlock512& s) {
  const __m512i words = _mm512_loadu_si512(p), down = _mm512_setr_epi32(0, 0, 2, 2, 4, 4, 6, 6, 0, 0, 2, 2, 4, 4, 6, 6);
  for (int k = 0; k < 4; ++k) {
    const __m512i two = _mm512_srlv_epi32(_mm512_permutexvar_epi32(kUpperLanes[k], words), down);
    s.code[k] = _mm512_add_epi8(_mm512_and_si512(two, _mm512_set1_epi8(3)), _mm512_set1_epi8(127));
  }
  s.scale = _mm512_set1_ps(load_f16(p + 64));
}

// Four blocks of 64: eight bytes have a group, low nibbles first.
OLV_INLINE void unpack_nvfp4(const uint8_t* p, SuperBlock512& s) {
  constexpr int bytes = kTypes[OLV_NVFP4].bytes;
  const __m512i a = join(p + 4, p + 4 + bytes), b = join(p + 4 + 2 * bytes, p + 4 + 3 * bytes);
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#pragma GCC unroll 2
  for (int k = 0; k < 2; ++k) {
    const __m512i words = _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, all_words(k)), b), low = _mm512_set1_epi8(15);
    s.code[k] = look_up(kFp4, 128, _mm512_and_si512(words, low));
    s.code[k + 2] = look_up(kFp4, 128, _mm512_and_si512(_mm512_srli_epi16(words, 4), low));
  }
  // Unsigned E4M3, halved, as kE4M3 has it.
  const auto four = [&](int block) { return load<int32_t>(p + block * bytes); };
  const __m512i x = _mm512_and_si512(_mm512_cvtepu8_epi32(_mm_setr_epi32(four(0), four(1), four(2), four(3))), all_words(127));
  const __m512 normal = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(x, all_words(119 * 8)), 20));
  const __mmask16 tiny = _mm512_cmplt_epi32_mask(x, all_words(8)), finite = _mm512_cmpneq_epi32_mask(x, all_words(127));
  s.scale = _mm512_mask_mul_ps(normal, tiny, _mm512_cvtepi32_ps(x), _mm512_set1_ps(0x1p-10f));
  s.scale = _mm512_maskz_mov_ps(finite, s.scale);
}

template <int type>
  requires(is_expanded(type))
OLV_INLINE void unpack(const uint8_t* p, SuperBlock512& s) {
  if constexpr (is_iq1(type)) unpack_iq1<type>(p, s);
  else if constexpr (type == OLV_IQ3_XXS || type == OLV_IQ3_S) unpack_iq3<type>(p, s);
  else if constexpr (has_grid(type)) unpack_iq2<type>(p, s);
  else if constexpr (type == OLV_TQ1_0) unpack_tq1(p, s);
  else if constexpr (type == OLV_TQ2_0) unpack_tq2(p, s);
  else unpack_nvfp4(p, s);
  s.min = _mm512_mul_ps(s.scale, _mm512_set1_ps(-128));
}

}  // namespace
}  // namespace olv
