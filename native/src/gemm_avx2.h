// int8 GEMM in AVX2, with 16-bit products or VNNI. Prompt rows are quantized in groups of 32, eight a super-block: a register has a
// lane for each, and their dot products need no horizontal sums. (GEMV has groups of 16.)
#pragma once
#include "linear_avx2.h"
#include "measure.h"

namespace olv {
namespace {

constexpr int64_t kTileRows = 2;  // 8 accumulators of 16 registers

// The largest code of a type.
constexpr int largest_code(int type) {
  switch (type) {
    case OLV_Q4_0: case OLV_Q4_1: case OLV_Q2_K: case OLV_Q3_K: case OLV_Q4_K: return 15;
    case OLV_Q5_0: case OLV_Q5_1: case OLV_Q5_K: case OLV_MXFP4: return 31;
    case OLV_Q6_K: return 63;
    default: return 255;
  }
}

// Without VNNI, products of larger codes do not fit in 16 bits, and float32 is as fast.
constexpr bool has_int8_gemm(int type) { return is_quantized(type) && (kVnni || largest_code(type) <= 63); }
inline bool takes_codes_avx2(const olv_weight& w) { return has_super_blocks(w) && has_int8_gemm(w.type); }

// How many of a group's eight words of four codes are summed in 16 bits: 16 · 15 · 127, 8 · 31 · 127 and 4 · 63 · 127 fit.
constexpr int words_in_16_bits(int type) { return largest_code(type) == 63 ? 2 : largest_code(type) == 31 ? 4 : 8; }

// Whether both groups of 16 in each 32 weights have the same scale and the same minimum.
constexpr bool has_blocks_of_32(int type) {
  switch (type) {
    case OLV_Q4_0: case OLV_Q4_1: case OLV_Q5_0: case OLV_Q5_1: case OLV_Q4_K: case OLV_Q5_K: case OLV_MXFP4:
      return true;
    default:
      return false;
  }
}

OLV_INLINE void transpose8(const __m256i (&r)[8], __m256i (&to)[8]) {
  __m256i t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    to[i] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x20);
    to[i + 4] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x31);
  }
}

OLV_INLINE void codes_to_lanes(const uint8_t* from, __m256i (&to)[8]) {
  __m256i r[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(from + 32 * i));
  transpose8(r, to);
}

// Prompt rows: `scale` has the scales of eight groups, then Σ code · scale of each; `sum` that of their halves, first and
// second.
inline void quantize_prompt_avx2(const float* x, int64_t k, int8_t* code, float* scale, float* sum) {
  for (int64_t first = 0; first < k; first += kSuperBlock, code += kSuperBlock, scale += kGroups, sum += kGroups) {
    alignas(32) int8_t natural[kSuperBlock];
    for (int64_t b = 0; b < 8; ++b) {
      alignas(32) float v[32] = {};
      const int64_t left = k - first - 32 * b;
      if (left > 0) memcpy(v, x + first + 32 * b, size_t(smaller<int64_t>(32, left)) * 4);
      const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
      __m256 most = _mm256_setzero_ps();
      for (int i = 0; i < 4; ++i) most = _mm256_max_ps(most, _mm256_and_ps(_mm256_load_ps(v + 8 * i), magnitude));
      __m128 four = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
      four = _mm_max_ps(four, _mm_movehl_ps(four, four));
      const float largest = _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
      const __m256 inverse = _mm256_set1_ps(largest > 0 ? 127 / largest : 0);
      __m256i q[4];
      for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(v + 8 * i), inverse));
      const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
      _mm256_store_si256(reinterpret_cast<__m256i*>(natural + 32 * b),
                         _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
      int half[2] = {0, 0};
      for (int i = 0; i < 32; ++i) half[i / 16] += natural[32 * b + i];
      const float step = largest / 127;
      scale[b] = step;
      scale[8 + b] = step * float(half[0] + half[1]);
      sum[b] = step * float(half[0]);
      sum[8 + b] = step * float(half[1]);
    }
    __m256i lanes[8];
    codes_to_lanes(reinterpret_cast<const uint8_t*>(natural), lanes);
    for (int c = 0; c < 8; ++c) _mm256_store_si256(reinterpret_cast<__m256i*>(code + 32 * c), lanes[c]);
  }
}

// A super-block in the order of lanes: word c of group b is in code[32 · c + 4 · b]; scales and minima of the groups of 16
// are those of the first in each 32, then those of the second.
template <int type>
OLV_INLINE void unpack_lanes(const olv_weight& w, int64_t n, int64_t i, SuperBlock& to) {
  SuperBlock s;
  unpack_codes<type>(w, n, i, s);
  prefetch<(super_block_bytes(type) + 63) / 64>(w.data + n * row_bytes(w) + i * super_block_bytes(type));
  __m256i lanes[8];
  codes_to_lanes(s.code, lanes);
  for (int c = 0; c < 8; ++c) _mm256_store_si256(reinterpret_cast<__m256i*>(to.code + 32 * c), lanes[c]);
  for (int b = 0; b < 8; ++b) {
    to.scale[b] = s.scale[2 * b];
    to.scale[8 + b] = s.scale[2 * b + 1];
    to.min[b] = s.min[2 * b];
    to.min[8 + b] = s.min[2 * b + 1];
  }
}

// The dot products of words [first, last) of each group with `rows` rows of x, which are `step` bytes apart.
template <int type, int rows, int first, int last>
OLV_INLINE void dot_words(const SuperBlock& w, const int8_t* x, int64_t step, __m256i (&dot)[rows]) {
  constexpr int fit = words_in_16_bits(type) < last - first ? words_in_16_bits(type) : last - first;
  __m256i sums[rows];
#pragma GCC unroll 8
  for (int c = first; c < last; ++c) {
    const __m256i a = _mm256_load_si256(reinterpret_cast<const __m256i*>(w.code + 32 * c));
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const __m256i b = _mm256_load_si256(reinterpret_cast<const __m256i*>(x + r * step + 32 * c));
      if (kVnni) {
        dot[r] = add_dots(c == first ? _mm256_setzero_si256() : dot[r], a, b);
        continue;
      }
      const __m256i products = _mm256_maddubs_epi16(a, b);
      sums[r] = (c - first) % fit ? _mm256_add_epi16(sums[r], products) : products;
      if ((c - first) % fit != fit - 1) continue;
      const __m256i wide = _mm256_madd_epi16(sums[r], _mm256_set1_epi16(1));
      dot[r] = c - first < fit ? wide : _mm256_add_epi32(dot[r], wide);
    }
  }
}

template <int type, int rows>
OLV_INLINE void add_products(const SuperBlock& w, const int8_t* code, const float* scale, const float* sum, int64_t step,
                             __m256 (&acc)[rows]) {
  if constexpr (has_blocks_of_32(type)) {
    __m256i dot[rows];
    dot_words<type, rows, 0, 8>(w, code, step * kSuperBlock, dot);
    const __m256 w_scale = _mm256_load_ps(w.scale), min = _mm256_load_ps(w.min);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const float* at = scale + r * step * kGroups;
      acc[r] = _mm256_fmadd_ps(min, _mm256_load_ps(at + 8), acc[r]);
      acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r]), _mm256_mul_ps(w_scale, _mm256_load_ps(at)), acc[r]);
    }
  } else {
    __m256i dot[2][rows];
    dot_words<type, rows, 0, 4>(w, code, step * kSuperBlock, dot[0]);
    dot_words<type, rows, 4, 8>(w, code, step * kSuperBlock, dot[1]);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const float *at = scale + r * step * kGroups, *sums = sum + r * step * kGroups;
      acc[r] = _mm256_fmadd_ps(_mm256_load_ps(w.min), _mm256_load_ps(sums), acc[r]);
      acc[r] = _mm256_fmadd_ps(_mm256_load_ps(w.min + 8), _mm256_load_ps(sums + 8), acc[r]);
      const __m256 first = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[0][r]), _mm256_load_ps(w.scale));
      const __m256 both = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[1][r]), _mm256_load_ps(w.scale + 8), first);
      acc[r] = _mm256_fmadd_ps(both, _mm256_load_ps(at), acc[r]);
    }
  }
}

// The sums of four vectors.
OLV_INLINE __m128 sums_of_four(const __m256 (&x)[4]) {
  const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

template <int type, int rows>
void multiply_codes(const SuperBlock* w, const Activations& x, int64_t r0, const float* bias, int64_t count, float* y,
                    int64_t stride) {
  const int64_t super_blocks = super_blocks_of(x.k);
  __m256 acc[4][rows];
  for (int n = 0; n < 4; ++n)
    for (int r = 0; r < rows; ++r) acc[n][r] = _mm256_setzero_ps();
  for (int64_t i = 0; i < super_blocks; ++i, w += 4) {
    const int64_t at = r0 * super_blocks + i;
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n)
      add_products<type, rows>(w[n], x.code + at * kSuperBlock, x.scale + at * kGroups, x.sum + at * kGroups, super_blocks,
                               acc[n]);
  }
  for (int r = 0; r < rows; ++r) {
    float each[4];
    _mm_storeu_ps(each, sums_of_four({acc[0][r], acc[1][r], acc[2][r], acc[3][r]}));
    for (int64_t n = 0; n < count; ++n) y[r * stride + n] = bias ? each[n] + bias[n] : each[n];
  }
}

}  // namespace
}  // namespace olv

#include "gemm_codes.h"

namespace olv {
namespace {

inline void gemm_avx2(const olv_weight& w, int64_t first, int64_t last, const Activations& x, const float* bias, float* y,
                      int64_t stride, void* scratch, bool) {
  if (!takes_codes_avx2(w)) return gemm(w, first, last, x, bias, y, stride, scratch, false);
  gemm_codes(w, first, last, x, bias, y, stride, scratch);
}

// Dot products from registers, without loads: the arithmetic peak. Without VNNI eight products in 16 bits are summed before they
// are widened.
inline double peak_avx2(int kind) {
  if (kind != kPeakInt8) return float_peak(kind);
  constexpr int64_t rounds = 1 << 17;
  __m256i x = _mm256_set1_epi8(1), sum = _mm256_setzero_si256(), part[2];
  if (kVnni) {
    __m256i sums[8] = {};
    for (int64_t i = 0; i < rounds; ++i)
      for (int j = 0; j < 16; ++j) {
        asm volatile("" : "+x"(x));
        sums[j % 8] = add_dots(sums[j % 8], x, x);
      }
    for (const __m256i& s : sums) asm volatile("" : : "x"(s));
    return double(rounds) * 16 * 32 * 2;
  }
  for (int64_t i = 0; i < rounds; ++i) {
    for (int j = 0; j < 16; ++j) {
      asm volatile("" : "+x"(x));
      const __m256i products = _mm256_maddubs_epi16(x, x);
      part[j % 2] = j < 2 ? products : _mm256_add_epi16(part[j % 2], products);
    }
    for (const __m256i& p : part) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(p, _mm256_set1_epi16(1)));
  }
  asm volatile("" : : "x"(sum));
  return double(rounds) * 16 * 32 * 2;
}

}  // namespace
}  // namespace olv
