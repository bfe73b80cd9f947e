// int8 GEMM in AVX-512, with VNNI: the operations of GEMV in the same order, so that linear ops give a row the same bits
// whether it is a prompt row or a generated one.
#pragma once
#include "linear_avx512.h"
#include "measure.h"

namespace olv {
namespace {

constexpr int64_t kTileRows = 3;  // 12 accumulators and 12 dot products, in 32 registers
constexpr bool has_int8_gemm(int type) { return is_quantized(type); }

// A super-block as GEMV has it in registers: the codes in the order of lanes.
template <int type>
OLV_INLINE void unpack_lanes(const olv_weight& w, int64_t n, int64_t i, SuperBlock& to) {
  const uint8_t* row = w.data + n * row_bytes(w);
  const uint8_t* scales = type == OLV_GROUPED ? w.scales + 4 * (n * (w.k / w.group)) : nullptr;
  SuperBlock512 s;
  if (w.k - i * kSuperBlock >= kSuperBlock) unpack_whole<type>(w, row, scales, i, s);
  else unpack_tail<type>(w, row, scales, i, s);
  prefetch<(super_block_bytes(type) + 63) / 64>(row + i * super_block_bytes(type));
  for (int c = 0; c < 4; ++c) _mm512_store_si512(to.code + 64 * c, s.code[c]);
  _mm512_store_ps(to.scale, s.scale);
  _mm512_store_ps(to.min, s.min);
}

template <int type, int rows>
void multiply_codes(const SuperBlock* w, const Activations& x, int64_t r0, const float* bias, int64_t count, float* y,
                    int64_t stride) {
  const int64_t super_blocks = super_blocks_of(x.k);
  __m512 acc[rows][4];
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < 4; ++n) acc[r][n] = _mm512_setzero_ps();
  for (int64_t i = 0; i < super_blocks; ++i, w += 4) {
    const int8_t* code = x.code + (r0 * super_blocks + i) * kSuperBlock;
    const float* scale = x.scale + (r0 * super_blocks + i) * kGroups;
    const float* sum = x.sum + (r0 * super_blocks + i) * kGroups;
    __m512i dot[rows][4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      __m512i v[rows];
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) v[r] = _mm512_load_si512(code + r * super_blocks * kSuperBlock + 64 * c);
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        const __m512i u = _mm512_load_si512(w[n].code + 64 * c);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) dot[r][n] = _mm512_dpbusd_epi32(c ? dot[r][n] : _mm512_setzero_si512(), u, v[r]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const __m512 x_scale = _mm512_load_ps(scale + r * super_blocks * kGroups);
      const __m512 x_sum = _mm512_load_ps(sum + r * super_blocks * kGroups);
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        acc[r][n] = _mm512_fmadd_ps(_mm512_load_ps(w[n].min), x_sum, acc[r][n]);
        acc[r][n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][n]), _mm512_mul_ps(_mm512_load_ps(w[n].scale), x_scale), acc[r][n]);
      }
    }
  }
  const __mmask8 mask = __mmask8((1u << count) - 1);
  const __m128 added = bias ? _mm_maskz_loadu_ps(mask, bias) : _mm_setzero_ps();
  for (int r = 0; r < rows; ++r) {
    const __m128 sums = sums_of_four(acc[r]);
    _mm_mask_storeu_ps(y + r * stride, mask, bias ? _mm_add_ps(sums, added) : sums);
  }
}

}  // namespace
}  // namespace olv

#include "gemm_codes.h"

namespace olv {
namespace {

inline void gemm_avx512(const olv_weight& w, int64_t first, int64_t last, const Activations& x, const float* bias, float* y,
                        int64_t stride, void* scratch, bool) {
  if (!has_super_blocks(w)) return gemm(w, first, last, x, bias, y, stride, scratch, false);
  if (x.count > kGemvRows) return gemm_codes(w, first, last, x, bias, y, stride, scratch);
  gemv_avx512(w, first, last, x, y, stride);  // one pass: no panel needs to be written
  for (int64_t r = 0; bias && r < x.count; ++r) add(y + r * stride + first, bias + first, y + r * stride + first, last - first);
}

// Dot products from registers: the arithmetic peak, without loads.
inline double peak_avx512(int kind) {
  if (kind != kPeakInt8) return float_peak(kind);
  constexpr int64_t rounds = 1 << 18;
  constexpr int sums = 12;
  __m512i sum[sums] = {}, x = _mm512_set1_epi8(1);
  for (int64_t i = 0; i < rounds; ++i)
    for (int j = 0; j < sums; ++j) {
      asm volatile("" : "+v"(x));
      sum[j] = _mm512_dpbusd_epi32(sum[j], x, x);
    }
  for (int j = 0; j < sums; ++j) asm volatile("" : : "v"(sum[j]));
  return double(rounds) * sums * 64 * 2;
}

}  // namespace
}  // namespace olv
