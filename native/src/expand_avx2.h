// The parts of a super-block of the IQ types with grids, in AVX2: indices and signs of all its words at once. No load reaches
// beyond the block.
#pragma once
#include <immintrin.h>

#include "grids.h"
#include "vec.h"

namespace olv {
namespace {
namespace avx2 {

OLV_INLINE __m256i load32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
OLV_INLINE __m128i load16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
OLV_INLINE __m128i load8(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
OLV_INLINE __m256i in_both(__m128i x) { return _mm256_broadcastsi128_si256(x); }
template <class T>
OLV_INLINE void store32(T* p, __m256i x) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), x); }

// Four words of eight codes: broadcast and blended, because inserts wait for the one port that shuffles.
OLV_INLINE __m256i four_words(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  const auto all = [](uint64_t x) { return _mm256_set1_epi64x(int64_t(x)); };
  return _mm256_blend_epi32(_mm256_blend_epi32(all(a), all(b), 0x0c), _mm256_blend_epi32(all(c), all(d), 0xc0), 0xf0);
}

// Eight words of four codes.
template <class F>
OLV_INLINE __m256i eight_words(F&& word) {
  const auto two = [&](int i, int j) { return _mm256_blend_epi32(word(i), word(j), 0xaa); };
  return _mm256_blend_epi32(_mm256_blend_epi32(two(0, 1), two(2, 3), 0xcc), _mm256_blend_epi32(two(4, 5), two(6, 7), 0xcc), 0xf0);
}

// Bytes of seven bits; the eighth makes the number of set ones even.
OLV_INLINE __m256i with_parity(__m256i seven) {
  const __m256i odd = in_both(_mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
  const __m256i folded = _mm256_xor_si256(seven, _mm256_srli_epi16(seven, 4));
  return _mm256_or_si256(seven, _mm256_shuffle_epi8(odd, _mm256_and_si256(folded, _mm256_set1_epi8(15))));
}

// The lowest 28 bits of words, seven in each byte.
OLV_INLINE __m256i four_sevens(__m256i x) {
  const auto bits = [&](int mask) { return _mm256_and_si256(x, _mm256_set1_epi32(mask)); };
  const __m256i low = _mm256_or_si256(bits(0x7f), _mm256_slli_epi32(bits(0x3f80), 1));
  return _mm256_or_si256(low, _mm256_or_si256(_mm256_slli_epi32(bits(0x1fc000), 2), _mm256_slli_epi32(bits(0xfe00000), 3)));
}

// Sixteen bytes as words of 16 bits.
OLV_INLINE __m256i wide(const uint8_t* p) { return _mm256_cvtepu8_epi16(load16(p)); }

// Sixteen words: `from` has bytes for four words each, which `pick` repeats, and `factor` shifts to the left; `mask` selects
// the bits above the eighth that they have.
OLV_INLINE __m256i upper_bits(__m256i from, __m256i pick, __m256i factor, int mask) {
  return _mm256_and_si256(_mm256_mullo_epi16(_mm256_shuffle_epi8(from, pick), factor), _mm256_set1_epi16(short(mask)));
}

// Four words of 16 bits, four times.
OLV_INLINE __m256i four_times(int64_t x) { return _mm256_set1_epi64x(x); }

template <int type>
struct GridBlock {
  static constexpr bool iq3 = type == OLV_IQ3_XXS || type == OLV_IQ3_S;
  const uint8_t* p;
  alignas(32) uint16_t index[iq3 ? 64 : 32];
  alignas(32) uint8_t sign[32];
  __m256i shift[2];  // IQ1_S: of 32 elements in each quarter. IQ1_M: of a word in each byte, twice
  __m256i scale;     // where two groups have one: eight integers

  OLV_INLINE explicit GridBlock(const uint8_t* block) : p(block) {
    if constexpr (type == OLV_IQ2_XXS || type == OLV_IQ3_XXS) {
      __m256i x;
      if constexpr (type == OLV_IQ2_XXS) {  // every second of sixteen
        const __m256 a = _mm256_castsi256_ps(load32(p + 2)), b = _mm256_castsi256_ps(load32(p + 34));
        x = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8);
      } else {
        x = load32(p + 66);
      }
      store32(sign, with_parity(four_sevens(x)));
      scale = _mm256_srli_epi32(x, 28);
    } else if constexpr (type == OLV_IQ2_XS) {
      const __m256i a = load32(p + 2), b = load32(p + 34), nine = _mm256_set1_epi16(511);
      store32(index, _mm256_and_si256(a, nine));
      store32(index + 16, _mm256_and_si256(b, nine));
      const __m256i both = _mm256_packus_epi16(_mm256_srli_epi16(a, 9), _mm256_srli_epi16(b, 9));
      store32(sign, with_parity(_mm256_permute4x64_epi64(both, 0xd8)));
    } else if constexpr (type == OLV_IQ2_S) {
      const __m256i high = in_both(load8(p + 66)), factor = four_times(0x0004001000400100);
      const __m256i pick = _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1, 2, -1, 2, -1, 2, -1, 2, -1,
                                            3, -1, 3, -1, 3, -1, 3, -1);
      const __m256i next = _mm256_add_epi8(pick, _mm256_set1_epi16(4));
      store32(index, _mm256_or_si256(wide(p + 2), upper_bits(high, pick, factor, 0x300)));
      store32(index + 16, _mm256_or_si256(wide(p + 18), upper_bits(high, next, factor, 0x300)));
    } else if constexpr (type == OLV_IQ3_S) {
      const __m256i high = in_both(load8(p + 66)), bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128);
      const __m256i byte_of = _mm256_inserti128_si256(_mm256_set1_epi16(short(0xff00)), _mm_set1_epi16(short(0xff01)), 1);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m256i byte = _mm256_shuffle_epi8(high, _mm256_add_epi8(byte_of, _mm256_set1_epi16(short(2 * i))));
        const __m256i set = _mm256_cmpeq_epi16(_mm256_and_si256(byte, bit), bit);
        store32(index + 16 * i, _mm256_or_si256(wide(p + 2 + 16 * i), _mm256_slli_epi16(_mm256_srli_epi16(set, 15), 8)));
      }
    } else if constexpr (type == OLV_IQ1_S) {
      const __m128i words = load16(p + 34);
      const __m256i high = in_both(words), factor = four_times(0x0080000400200100);  // the fourth from its upper byte
      const __m256i pick = _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 1, -1, 2, 3, 2, 3, 2, 3, 3, -1, 4, 5, 4, 5, 4, 5, 5, -1, 6, 7, 6, 7, 6,
                                            7, 7, -1);
      const __m256i next = _mm256_add_epi8(pick, four_times(0x0008080808080808));
      store32(index, _mm256_or_si256(wide(p + 2), upper_bits(high, pick, factor, 0x700)));
      store32(index + 16, _mm256_or_si256(wide(p + 18), upper_bits(high, next, factor, 0x700)));
      const __m128i down = _mm_srai_epi16(words, 15);
      shift[0] = _mm256_or_si256(_mm256_cvtepi16_epi64(down), _mm256_set1_epi8(1));
      shift[1] = _mm256_or_si256(_mm256_cvtepi16_epi64(_mm_unpackhi_epi64(down, down)), _mm256_set1_epi8(1));
    } else {
      static_assert(type == OLV_IQ1_M);
      const __m128i nibbles = load16(p + 32);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m256i x = _mm256_cvtepu8_epi32(load8(p + 32 + 8 * h));
        const __m256i high = _mm256_or_si256(_mm256_slli_epi32(x, 8), _mm256_slli_epi32(x, 20));
        store32(index + 16 * h, _mm256_or_si256(wide(p + 16 * h), _mm256_and_si256(high, _mm256_set1_epi16(0x700))));
        const __m128i low = _mm_slli_epi16(nibbles, 4);
        const __m128i top = h ? _mm_unpackhi_epi8(low, nibbles) : _mm_unpacklo_epi8(low, nibbles);
        shift[h] = in_both(_mm_or_si128(_mm_cmpgt_epi8(_mm_setzero_si128(), top), _mm_set1_epi8(1)));
      }
    }
  }

  // The codes of words i … i + 3 (of eight), without signs.
  OLV_INLINE __m256i codes(int i) const {
    if constexpr (iq3) {
      const uint32_t* grid = type == OLV_IQ3_S ? kGridIQ3_S.word : kGridIQ3_XXS.word;
      return eight_words([&](int word) {
        const int at = 2 * i + word;
        return _mm256_set1_epi32(int32_t(grid[type == OLV_IQ3_S ? index[at] : p[2 + at]]));
      });
    } else {
      const auto word = [&](int at) {
        if constexpr (type == OLV_IQ2_XXS) return kGridIQ2_XXS.word[p[2 + 8 * (at / 4) + at % 4]];
        else if constexpr (type == OLV_IQ2_XS) return kGridIQ2_XS.word[index[at]];
        else if constexpr (type == OLV_IQ2_S) return kGridIQ2_S.word[index[at]];
        else return kGridIQ1_S.word[index[at]];
      };
      return four_words(word(i), word(i + 1), word(i + 2), word(i + 3));
    }
  }

  // The signs of 32 elements, from word i on.
  OLV_INLINE uint32_t signs(int i) const {
    return load<uint32_t>(type == OLV_IQ2_S ? p + 34 + i : type == OLV_IQ3_S ? p + 74 + i : sign + i);
  }

  // IQ1: what moves the codes of words i … i + 3 by an eighth.
  OLV_INLINE __m256i shifts(int i) const {
    if constexpr (type == OLV_IQ1_S) {
      const __m256i four = shift[i / 16];
      switch (i / 4 % 4) {
        case 0: return _mm256_permute4x64_epi64(four, 0x00);
        case 1: return _mm256_permute4x64_epi64(four, 0x55);
        case 2: return _mm256_permute4x64_epi64(four, 0xaa);
        default: return _mm256_permute4x64_epi64(four, 0xff);
      }
    } else {
      const __m256i word = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
      return _mm256_shuffle_epi8(shift[i / 16], _mm256_add_epi8(word, _mm256_set1_epi8(char(i % 16))));
    }
  }

  // The integers s of which a group's scale is unit · (2 · s + 1).
  OLV_INLINE v16 scale_codes() const {
    alignas(16) uint8_t bytes[16];
    const auto put = [&](__m128i x) { _mm_store_si128(reinterpret_cast<__m128i*>(bytes), x); };
    const auto nibbles = [](__m128i x) {
      const __m128i low = _mm_set1_epi8(15);
      return _mm_unpacklo_epi8(_mm_and_si128(x, low), _mm_and_si128(_mm_srli_epi16(x, 4), low));
    };
    if constexpr (type == OLV_IQ2_XXS || type == OLV_IQ3_XXS) {  // each is the first byte of four
      const __m256i twice = _mm256_shuffle_epi8(scale, in_both(_mm_setr_epi8(0, 0, 4, 4, 8, 8, 12, 12, -1, -1, -1, -1, -1, -1, -1, -1)));
      put(_mm_unpacklo_epi64(_mm256_castsi256_si128(twice), _mm256_extracti128_si256(twice, 1)));
    } else if constexpr (type == OLV_IQ2_XS || type == OLV_IQ2_S) {
      put(nibbles(load8(p + (type == OLV_IQ2_XS ? 66 : 74))));
    } else if constexpr (type == OLV_IQ3_S) {
      const __m128i eight = nibbles(_mm_cvtsi32_si128(load<int32_t>(p + 106)));
      put(_mm_unpacklo_epi8(eight, eight));
    } else if constexpr (type == OLV_IQ1_S) {
      const __m128i three = _mm_and_si128(_mm_srli_epi16(load16(p + 34), 12), _mm_set1_epi16(7));
      put(_mm_or_si128(three, _mm_slli_epi16(three, 8)));
    } else {  // four times three bits
      const __m128i words = load8(p + 48), three = _mm_set1_epi16(7);
      const auto at = [&](int shift) { return _mm_and_si128(_mm_srli_epi16(words, shift), three); };
      const __m128i low = _mm_or_si128(at(0), _mm_slli_epi16(at(3), 8)), high = _mm_or_si128(at(6), _mm_slli_epi16(at(9), 8));
      put(_mm_unpacklo_epi16(low, high));
    }
    return load_bytes(bytes);
  }
};

}  // namespace avx2

using avx2::GridBlock;

}  // namespace
}  // namespace olv
