// GEMV of types that have two codes a byte, in AVX2.
//
// A 32-bit lane has four consecutive codes of one group of 16, and a register eight groups, so that dot products need no
// horizontal sums. The words of a super-block's 128 bytes are transposed once: their low nibbles are the codes of eight groups,
// one plane; their high nibbles those of the eight others. Which groups these are depends on the type, and x is brought
// into the same order, once for eight weight rows.
#pragma once
#include "linear.h"

namespace olv {
namespace {

// Adds 32 products of codes, unsigned and signed, in fours.
#if defined(__AVXVNNI__)
constexpr bool kVnni = true;
OLV_INLINE __m256i add_dots(__m256i sum, __m256i a, __m256i b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
#else
constexpr bool kVnni = false;
// Pairs are summed in 16 bits: both 2 · 63 · 127 and 2 · 128 · 127 fit, products of larger codes do not.
OLV_INLINE __m256i add_dots(__m256i sum, __m256i a, __m256i b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
}
#endif
OLV_INLINE __m256i dot_unsigned(__m256i a, __m256i b) { return add_dots(_mm256_setzero_si256(), a, b); }
// Both signed: the sign of a moves to b.
OLV_INLINE __m256i dot_signed(__m256i a, __m256i b) { return dot_unsigned(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a)); }

constexpr bool has_planes(int type) {
  switch (type) {
    case OLV_Q4_0: case OLV_Q4_1: case OLV_Q5_0: case OLV_Q5_1: case OLV_IQ4_NL: case OLV_MXFP4: case OLV_IQ4_XS:
    case OLV_Q4_K: case OLV_Q5_K: case OLV_Q6_K:
      return true;
    default:
      return false;
  }
}
constexpr bool is_iq4(int type) { return type == OLV_IQ4_NL || type == OLV_IQ4_XS; }
constexpr bool unsigned_iq4(int type) { return is_iq4(type) && kVnni; }
constexpr bool is_q45_k(int type) { return type == OLV_Q4_K || type == OLV_Q5_K; }
constexpr bool has_minima(int type) { return type == OLV_Q4_1 || type == OLV_Q5_1 || is_q45_k(type); }

// What is subtracted from the codes of a type without minima.
constexpr int centre(int type) {
  return type == OLV_Q4_0 ? 8 : type == OLV_Q5_0 ? 16 : type == OLV_Q6_K ? 32 : type == OLV_MXFP4 ? 12 : unsigned_iq4(type) ? 128 : 0;
}

// The groups in the order of lanes: those of low nibbles, then those of high nibbles.
struct GroupOrder { int group[kGroups]; };
constexpr GroupOrder kBlockOrder{{0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15}};  // runs of 16 bytes
constexpr GroupOrder kRunOrder{{0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15}};    // of 32 bytes
constexpr GroupOrder kLongOrder{{0, 2, 8, 10, 1, 3, 9, 11, 4, 6, 12, 14, 5, 7, 13, 15}};   // of 64 bytes
constexpr GroupOrder group_order(int type) { return type == OLV_Q6_K ? kLongOrder : is_q45_k(type) ? kRunOrder : kBlockOrder; }

// In each half, word k of four registers becomes register k.
OLV_INLINE void transpose_words(__m256i (&r)[4]) {
  const __m256i a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
  const __m256i c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
  r[0] = _mm256_unpacklo_epi64(a, c);
  r[1] = _mm256_unpackhi_epi64(a, c);
  r[2] = _mm256_unpacklo_epi64(b, d);
  r[3] = _mm256_unpackhi_epi64(b, d);
}

OLV_INLINE __m256i load_x(const int8_t* x) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(x)); }

OLV_INLINE __m256i two_runs(const uint8_t* low, const uint8_t* high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(avx2::load128(low)), avx2::load128(high), 1);
}

// A super-block of x in the order of planes.
struct alignas(32) PlanesOfX {
  int8_t code[kSuperBlock];    // [plane][word][lane]
  float scale[kGroups];
  float sum[kGroups];          // of eight blocks of 32, for minima; or of the groups, times -centre
};

template <int type>
OLV_INLINE void to_planes(const int8_t* code, const float* scale, const float* sum, PlanesOfX& to) {
  constexpr GroupOrder order = group_order(type);
  for (int plane = 0; plane < 2; ++plane) {
    const int* g = order.group + 8 * plane;
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(code);
    __m256i word[4];
    for (int i = 0; i < 4; ++i) word[i] = two_runs(bytes + 16 * g[i], bytes + 16 * g[i + 4]);
    transpose_words(word);
    for (int k = 0; k < 4; ++k) _mm256_store_si256(reinterpret_cast<__m256i*>(to.code + 128 * plane + 32 * k), word[k]);
    const __m256i index = _mm256_setr_epi32(g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7]);
    const auto reordered = [&](const float* x) {
      const __m256 low = _mm256_permutevar8x32_ps(_mm256_load_ps(x), index);
      const __m256 high = _mm256_permutevar8x32_ps(_mm256_load_ps(x + 8), index);
      return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
    };
    _mm256_store_ps(to.scale + 8 * plane, reordered(scale));
    if (centre(type)) _mm256_store_ps(to.sum + 8 * plane, avx2::times(reordered(sum), -centre(type)));
  }
  if (has_minima(type)) {
    const __m256 pairs = _mm256_hadd_ps(_mm256_load_ps(sum), _mm256_load_ps(sum + 8));  // of blocks 0 1 4 5 2 3 6 7
    _mm256_store_ps(to.sum, _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(pairs), 0xd8)));
  }
}

struct Planes {
  __m256i code[8];         // [plane][word]
  __m256 scale[2], min;    // of eight blocks of 32 is the minimum
};

OLV_INLINE __m256i masked(__m256i x, int mask) { return _mm256_and_si256(x, _mm256_set1_epi8(char(mask))); }

// The eight 6-bit scales and minima of Q4_K and Q5_K.
OLV_INLINE void unpack_k_scales(const uint8_t* p, Planes& to) {
  // Two factors; scales 0 to 3; minima 0 to 3; the low bits of the others, whose high bits are in the bytes of the first.
  const __m128i all = avx2::load128(p);
  const __m128i low = _mm_and_si128(_mm_srlv_epi32(_mm_shuffle_epi32(all, 0xf9), _mm_setr_epi32(0, 0, 0, 4)),
                                    _mm_setr_epi32(0x3f3f3f3f, 0x3f3f3f3f, 0x0f0f0f0f, 0x0f0f0f0f));
  const __m128i high =
      _mm_and_si128(_mm_srli_epi32(_mm_shuffle_epi32(all, 0x90), 2), _mm_setr_epi32(0, 0, 0x30303030, 0x30303030));
  const __m128i both = _mm_shuffle_epi32(_mm_or_si128(low, high), 0xd8);
  const __m128 factors = _mm_cvtph_ps(all);
  const auto floats = [](__m128i x) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)); };
  const __m256 scale = _mm256_mul_ps(floats(both), _mm256_broadcastss_ps(factors));
  const __m128 less = _mm_sub_ps(_mm_setzero_ps(), _mm_movehdup_ps(factors));
  to.min = _mm256_mul_ps(floats(_mm_unpackhi_epi64(both, both)), _mm256_broadcastss_ps(less));
  to.scale[0] = _mm256_permutevar8x32_ps(scale, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
  to.scale[1] = _mm256_permutevar8x32_ps(scale, _mm256_setr_epi32(1, 3, 5, 7, 1, 3, 5, 7));
}

// The scales of eight blocks of 32, one for each, are those of both planes.
OLV_INLINE void same_scales(Planes& to, __m256 scale) { to.scale[0] = to.scale[1] = scale; }

template <int type>
OLV_INLINE void unpack_planes(const uint8_t* p, Planes& to) {
  constexpr int bytes = kTypes[type].bytes, step = type == OLV_IQ4_XS ? 16 : bytes;
  __m256i word[4], high[4];
  for (int i = 0; i < 4; ++i) {
    if constexpr (is_q45_k(type) || type == OLV_Q6_K) {
      word[i] = avx2::load_codes(p + (type == OLV_Q6_K ? 0 : bytes - 128) + 32 * i);
    } else {
      const uint8_t* run = p + (type == OLV_IQ4_XS ? 8 : bytes - 16) + step * i;
      word[i] = two_runs(run, run + 4 * step);
    }
  }
  transpose_words(word);
  for (int k = 0; k < 4; ++k) {
    to.code[k] = masked(word[k], 15);
    to.code[4 + k] = masked(_mm256_srli_epi16(word[k], 4), 15);
  }
  if constexpr (type == OLV_Q4_0 || type == OLV_Q4_1) {
    same_scales(to, avx2::halves<bytes>(p));
    if constexpr (type == OLV_Q4_1) to.min = avx2::halves<bytes>(p + 2);
  } else if constexpr (type == OLV_Q5_0 || type == OLV_Q5_1) {
    // Bit e of a block's word is the fifth bit of element e. Each lane of `bits` has a block's word.
    alignas(32) uint32_t bits[8];
    for (int b = 0; b < 8; ++b) bits[b] = load<uint32_t>(p + b * bytes + (type == OLV_Q5_0 ? 2 : 4));
    const __m256i all = _mm256_load_si256(reinterpret_cast<const __m256i*>(bits));
    const __m256i byte_of = _mm256_set1_epi32(0x08040201);
    const auto fifth = [&](__m256i spread, int shift) {  // bits 4k to 4k + 3 of each byte, to one byte each
      const __m256i mask = _mm256_slli_epi32(byte_of, shift);
      return masked(_mm256_cmpeq_epi8(_mm256_and_si256(spread, mask), mask), 16);
    };
    for (int plane = 0; plane < 2; ++plane)
      for (int k = 0; k < 4; ++k) {
        const int byte = 2 * plane + k / 2, four = byte * 0x01010101;
        const __m256i lanes = _mm256_setr_epi32(four, four + 0x04040404, four + 0x08080808, four + 0x0c0c0c0c, four,
                                                four + 0x04040404, four + 0x08080808, four + 0x0c0c0c0c);
        to.code[4 * plane + k] = _mm256_or_si256(to.code[4 * plane + k], fifth(_mm256_shuffle_epi8(all, lanes), 4 * (k % 2)));
      }
    same_scales(to, avx2::halves<bytes>(p));
    if constexpr (type == OLV_Q5_1) to.min = avx2::halves<bytes>(p + 2);
  } else if constexpr (type == OLV_MXFP4) {
    const __m256i table = avx2::table_of(kFp4, 12);
    for (__m256i& code : to.code) code = _mm256_shuffle_epi8(table, code);
    alignas(32) float scale[8];
    for (int b = 0; b < 8; ++b) scale[b] = e8m0_half(p[bytes * b]);
    same_scales(to, _mm256_load_ps(scale));
  } else if constexpr (is_iq4(type)) {
    const __m256i table = avx2::table_of(kIq4, centre(type));
    for (__m256i& code : to.code) code = _mm256_shuffle_epi8(table, code);
    if constexpr (type == OLV_IQ4_NL) {
      same_scales(to, avx2::halves<bytes>(p));
    } else {
      // Four bits of each scale in a nibble, two more in a word.
      const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
      const __m256i low = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(load<int32_t>(p + 4)), shift), _mm256_set1_epi32(15));
      const __m256i top = _mm256_srlv_epi32(_mm256_set1_epi32(load<uint16_t>(p + 2)), _mm256_srli_epi32(shift, 1));
      const __m256i six = _mm256_or_si256(low, _mm256_slli_epi32(_mm256_and_si256(top, _mm256_set1_epi32(3)), 4));
      same_scales(to, avx2::times(_mm256_cvtepi32_ps(_mm256_sub_epi32(six, _mm256_set1_epi32(32))), load_f16(p)));
    }
  } else {
    if constexpr (type != OLV_Q6_K) unpack_k_scales(p, to);
    if constexpr (type == OLV_Q5_K) {
      // Bits 2·i and 2·i + 1 of 32 bytes are the fifth bits of both planes in register i.
      const __m256i x = avx2::load_codes(p + 16);
      high[0] = _mm256_slli_epi16(x, 4);
      high[1] = _mm256_slli_epi16(x, 2);
      high[2] = x;
      high[3] = _mm256_srli_epi16(x, 2);
      transpose_words(high);
      for (int k = 0; k < 4; ++k) {
        to.code[k] = _mm256_or_si256(to.code[k], masked(high[k], 16));
        to.code[4 + k] = _mm256_or_si256(to.code[4 + k], masked(_mm256_srli_epi16(high[k], 1), 16));
      }
    }
    if constexpr (type == OLV_Q6_K) {
      // Of each half, 32 bytes have the upper bits: two of the first 32 elements, then of the second, third and fourth.
      for (int half = 0; half < 2; ++half) {
        high[2 * half] = avx2::load_codes(p + 128 + 32 * half);
        high[2 * half + 1] = _mm256_srli_epi16(high[2 * half], 2);
      }
      transpose_words(high);
      for (int k = 0; k < 4; ++k) {
        to.code[k] = _mm256_or_si256(to.code[k], masked(_mm256_slli_epi16(high[k], 4), 0x30));
        to.code[4 + k] = _mm256_or_si256(to.code[4 + k], masked(high[k], 0x30));
      }
      const __m128i order = _mm_setr_epi8(0, 2, 8, 10, 1, 3, 9, 11, 4, 6, 12, 14, 5, 7, 13, 15);
      const __m128i scales = _mm_shuffle_epi8(avx2::load128(p + 192), order);
      to.scale[0] = avx2::times(avx2::signed_floats(scales), load_f16(p + 208));
      to.scale[1] = avx2::times(avx2::signed_floats(_mm_unpackhi_epi64(scales, scales)), load_f16(p + 208));
    }
  }
}

// The dot products of a plane's groups.
template <int type>
OLV_INLINE __m256i dot_plane(const __m256i* code, const int8_t* x) {
  __m256i dot = _mm256_setzero_si256(), sum;
  // So many words are summed in 16 bits: 8 · 31 · 127 and 4 · 63 · 127 fit.
  constexpr int fit = type == OLV_Q6_K ? 2 : 4;
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const __m256i at = load_x(x + 32 * k);
    if (kVnni) {
      dot = add_dots(dot, code[k], at);
    } else if (is_iq4(type)) {
      dot = _mm256_add_epi32(dot, dot_signed(code[k], at));
    } else {
      const __m256i products = _mm256_maddubs_epi16(code[k], at);
      sum = k % fit ? _mm256_add_epi16(sum, products) : products;
      if (k % fit == fit - 1) dot = _mm256_add_epi32(dot, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
    }
  }
  return dot;
}

template <int type>
OLV_INLINE __m256 add_planes(__m256 acc, const Planes& w, const PlanesOfX& x) {
  if constexpr (has_minima(type)) acc = _mm256_fmadd_ps(w.min, _mm256_load_ps(x.sum), acc);
#pragma GCC unroll 2
  for (int plane = 0; plane < 2; ++plane) {
    const __m256 dot = _mm256_cvtepi32_ps(dot_plane<type>(w.code + 4 * plane, x.code + 128 * plane));
    const __m256 scale = _mm256_load_ps(x.scale + 8 * plane);
    const __m256 value = centre(type) ? _mm256_fmadd_ps(dot, scale, _mm256_load_ps(x.sum + 8 * plane)) : _mm256_mul_ps(dot, scale);
    acc = _mm256_fmadd_ps(value, w.scale[plane], acc);
  }
  return acc;
}

// Up to `most` generated rows, with eight weight rows at a time. Each goes through the same operations in the same order,
// whatever their number.
template <int type, int most>
void gemv_planes(const olv_weight& w, int64_t first, int64_t last, const Activations& x, int64_t r0, float* y, int64_t stride) {
  constexpr int size = super_block_bytes(type);
  const int64_t super_blocks = super_blocks_of(w.k), whole = w.k / kSuperBlock, bytes = row_bytes(w);
  const int64_t rows = most == 1 ? 1 : smaller<int64_t>(most, x.count - r0);
  for (int64_t n = first; n < last; n += 8) {
    const int64_t together = smaller<int64_t>(8, last - n);
    __m256 acc[8][most];
    for (auto& sums : acc)
      for (__m256& sum : sums) sum = _mm256_setzero_ps();
    for (int64_t i = 0; i < super_blocks; ++i) {
      PlanesOfX planes[most];
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = (r0 + r) * super_blocks + i;
        to_planes<type>(x.code + at * kSuperBlock, x.scale + at * kGroups, x.sum + at * kGroups, planes[r]);
      }
      const uint8_t* p = w.data + n * bytes + i * size;
#pragma GCC unroll 1
      for (int64_t j = 0; j < together; ++j, p += bytes) {
        Planes weights;
        if (i < whole) {
          prefetch<(size + 63) / 64>(p);
          unpack_planes<type>(p, weights);
        } else {  // the row ends in it
          uint8_t padded[size] = {};
          memcpy(padded, p, size_t(bytes - whole * size));
          unpack_planes<type>(padded, weights);
        }
        for (int64_t r = 0; r < rows; ++r) acc[j][r] = add_planes<type>(acc[j][r], weights, planes[r]);
      }
    }
    for (int64_t j = 0; j < together; ++j)
      for (int64_t r = 0; r < rows; ++r) y[(r0 + r) * stride + n + j] = sum8(acc[j][r]);
  }
}

}  // namespace
}  // namespace olv
