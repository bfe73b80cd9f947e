// AVX2 and FMA: the plain kernels in wider registers, and linear ops by hand.
#include <immintrin.h>

#include "attention.h"
#include "linear.h"
#include "measure.h"

namespace olv {
namespace {

// One strip against one quantized row: 16 products become eight sums, scaled and added as floats.
OLV_INLINE __m256 dot_strip_avx2(const Strip& s, const int8_t* code, const float* scale, const float* sum, __m256 acc) {
  for (int g = 0; g < kGroups; ++g) {
    const __m256i a = _mm256_cvtepu8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(s.code + 16 * g)));
    const __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(code + 16 * g)));
    const __m256 dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(a, b));
    acc = _mm256_fmadd_ps(dot, _mm256_set1_ps(s.scale[g] * scale[g]), acc);
  }
  for (int g = 0; g < kGroups; g += 8)
    acc = _mm256_fmadd_ps(_mm256_load_ps(s.low + g), _mm256_loadu_ps(sum + g), acc);
  return acc;
}

OLV_INLINE float sum_avx2(__m256 x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

void gemv_avx2(const olv_weight& w, int64_t first, int64_t last, const Rows& x, float* y, int64_t stride) {
  if (!has_strips(w)) return gemv(w, first, last, x, y, stride);
  const int64_t strips = strips_of(w.k);
  with_type(w.type, [&]<int type>() {
    for (int64_t n = first; n < last; ++n)
      for (int64_t r0 = 0; r0 < x.count; r0 += kGemvRows) {
        const int64_t rows = smaller(kGemvRows, x.count - r0);
        __m256 acc[kGemvRows];
        for (int64_t r = 0; r < rows; ++r) acc[r] = _mm256_setzero_ps();
        Strip s;
        for (int64_t i = 0; i < strips; ++i) {
          code_strip<type>(w, n, i, s);
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t at = (r0 + r) * strips + i;
            acc[r] = dot_strip_avx2(s, x.code + at * kStrip, x.scale + at * kGroups, x.sum + at * kGroups, acc[r]);
          }
        }
        for (int64_t r = 0; r < rows; ++r) y[(r0 + r) * stride + n] = sum_avx2(acc[r]);
      }
  });
}

// Four rows of the weight, as floats, meet sixteen rows of x: eight sums in flight, as many as the units can take.
OLV_INLINE void multiply_four(const float* a, int64_t padded, const float* b, int64_t depth, float (&c)[4][16]) {
  const float *a0 = a, *a1 = a + padded, *a2 = a + 2 * padded, *a3 = a + 3 * padded;
  __m256 c00 = _mm256_setzero_ps(), c01 = c00, c10 = c00, c11 = c00, c20 = c00, c21 = c00, c30 = c00, c31 = c00;
  for (int64_t i = 0; i < depth; ++i) {
    const __m256 b0 = _mm256_loadu_ps(b + 16 * i), b1 = _mm256_loadu_ps(b + 16 * i + 8);
    __m256 v = _mm256_broadcast_ss(a0 + i);
    c00 = _mm256_fmadd_ps(v, b0, c00);
    c01 = _mm256_fmadd_ps(v, b1, c01);
    v = _mm256_broadcast_ss(a1 + i);
    c10 = _mm256_fmadd_ps(v, b0, c10);
    c11 = _mm256_fmadd_ps(v, b1, c11);
    v = _mm256_broadcast_ss(a2 + i);
    c20 = _mm256_fmadd_ps(v, b0, c20);
    c21 = _mm256_fmadd_ps(v, b1, c21);
    v = _mm256_broadcast_ss(a3 + i);
    c30 = _mm256_fmadd_ps(v, b0, c30);
    c31 = _mm256_fmadd_ps(v, b1, c31);
  }
  _mm256_storeu_ps(c[0], c00), _mm256_storeu_ps(c[0] + 8, c01);
  _mm256_storeu_ps(c[1], c10), _mm256_storeu_ps(c[1] + 8, c11);
  _mm256_storeu_ps(c[2], c20), _mm256_storeu_ps(c[2] + 8, c21);
  _mm256_storeu_ps(c[3], c30), _mm256_storeu_ps(c[3] + 8, c31);
}

void gemm_avx2(const olv_weight& w, int64_t first, int64_t last, const Rows& x, float* y, int64_t stride, void* scratch) {
  const int64_t strips = strips_of(w.k), padded = strips * kStrip, depth = tiles_of(w.k) * 32;
  // As many rows as fit 512 KB: each visit of x is shared by all of them.
  const int64_t together = larger<int64_t>(4, smaller<int64_t>(64, (512 << 10) / (4 * padded)) / 4 * 4);
  float* a = static_cast<float*>(scratch);  // [together][padded]
  with_type(w.type, [&]<int type>() {
    for (int64_t n = first; n < last; n += together) {
      const int64_t count = smaller(together, last - n);
      for (int64_t i = 0; i < (count + 3) / 4 * 4; ++i)
        for (int64_t s = 0; s < strips; ++s) {
          float* to = a + i * padded + s * kStrip;
          if (i < count) float_strip<type>(w, n + i, s, to);
          else memset(to, 0, kStrip * 4);
        }
      for (int64_t block = 0; block < (x.count + 15) / 16; ++block) {
        const float* b = static_cast<const float*>(panel_of(w, x)) + block * depth * 16;
        for (int64_t row = 0; row < count; row += 4) {
          float c[4][16];
          multiply_four(a + row * padded, padded, b, depth, c);
          for (int64_t t = 0; t < smaller<int64_t>(16, x.count - 16 * block); ++t)
            for (int64_t i = 0; i < smaller<int64_t>(4, count - row); ++i)
              y[(16 * block + t) * stride + n + row + i] = c[i][t];
        }
      }
    }
  });
}

}  // namespace

const Kernels& avx2_kernels() {
  static const Kernels kernels = {
      "avx2",      quantize, pack, gemv_avx2, gemm_avx2, dequantize, attend_prompt,
      attend_part, rms_norm, gate, rope,      store_kv,  add,        read_bytes,
      float_peak,  32 * 16 * 4,
  };
  return kernels;
}

}  // namespace olv
