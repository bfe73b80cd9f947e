// Float matrix transposition, for packing panels and for storing accumulators.
#pragma once
#include "vec.h"

namespace olv {
namespace {

#if defined(__AVX2__)
OLV_INLINE void transpose_eight(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_stride);
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
      r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
    }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}
#elif defined(OLV_NEON)
OLV_INLINE void transpose_four(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  const float32x4_t a = vld1q_f32(from), b = vld1q_f32(from + from_stride), c = vld1q_f32(from + 2 * from_stride),
                    d = vld1q_f32(from + 3 * from_stride);
  const auto pairs = [](float32x4_t x) { return vreinterpretq_f64_f32(x); };
  const auto store = [&](int row, float64x2_t x) { vst1q_f32(to + row * to_stride, vreinterpretq_f32_f64(x)); };
  const float64x2_t ab = pairs(vtrn1q_f32(a, b)), cd = pairs(vtrn1q_f32(c, d));
  const float64x2_t ab2 = pairs(vtrn2q_f32(a, b)), cd2 = pairs(vtrn2q_f32(c, d));
  store(0, vtrn1q_f64(ab, cd));
  store(1, vtrn1q_f64(ab2, cd2));
  store(2, vtrn2q_f64(ab, cd));
  store(3, vtrn2q_f64(ab2, cd2));
}
OLV_INLINE void transpose_eight(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 8; j += 4)
      transpose_four(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
}
#else
OLV_INLINE void transpose_eight(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 8; ++j) to[i * to_stride + j] = from[j * from_stride + i];
}
#endif

// to[column][row] = from[row][column].
inline void transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                      int64_t to_stride) {
  const int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  for (int64_t r = 0; r < whole_rows; r += 8)
    for (int64_t c = 0; c < whole_columns; c += 8)
      transpose_eight(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
      to[c * to_stride + r] = from[r * from_stride + c];
}

}  // namespace
}  // namespace olv
