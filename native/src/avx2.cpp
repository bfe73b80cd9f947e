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

}  // namespace

const Kernels& avx2_kernels() {
  static const Kernels kernels = {
      "avx2",      quantize, pack, gemv_avx2, gemm, dequantize, attend_prompt,
      attend_part, rms_norm, gate, rope,      store_kv,  add,        read_bytes,
      float_peak,  32 * 16 * 4,
  };
  return kernels;
}

}  // namespace olv
