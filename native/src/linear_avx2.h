// GEMV in AVX2: int8 dot products for quantized weights, floats for the rest.
#pragma once
#include "planes_avx2.h"

namespace olv {
namespace {

// Types with codes up to 255 and min = -128 · scale: as signed codes, which fit 16-bit products, they need no minimum.
constexpr bool has_signed_codes(int type) { return type == OLV_GROUPED || (type == OLV_Q8_0 && !kVnni); }

template <int type>
OLV_INLINE __m256i dot_codes(const uint8_t* weight, const int8_t* x) {
  const __m256i a = _mm256_load_si256(reinterpret_cast<const __m256i*>(weight));
  if constexpr (has_signed_codes(type)) return dot_signed(_mm256_xor_si256(a, _mm256_set1_epi8(char(0x80))), load_x(x));
  else return dot_unsigned(a, load_x(x));
}

// Adds the dot products of a super-block's eight blocks of 32, which `dot` gives, times their scales.
template <class F>
OLV_INLINE __m256 scaled_dots(const float* w_scale, const float* scale, __m256 even, __m256 odd, F&& dot) {
  const __m256 scales[2] = {_mm256_mul_ps(_mm256_loadu_ps(w_scale), _mm256_load_ps(scale)),
                            _mm256_mul_ps(_mm256_loadu_ps(w_scale + 8), _mm256_load_ps(scale + 8))};
  __m256 part[2] = {even, odd};
#pragma GCC unroll 8
  for (int block = 0; block < 8; ++block) {
    const int a = 2 * (block % 4), b = a + 1;  // four partial sums of each group
    const __m256 factor = _mm256_permutevar8x32_ps(scales[block / 4], _mm256_setr_epi32(a, a, a, a, b, b, b, b));
    part[block % 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot(block)), factor, part[block % 2]);
  }
  return _mm256_add_ps(part[0], part[1]);
}

// The dot product of one super-block and one quantized row, in its own accumulator: super-blocks do not depend on each
// other.
template <int type>
OLV_INLINE __m256 dot_super_block_avx2(const SuperBlock& s, const int8_t* code, const float* scale, const float* sum) {
  __m256 part[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  if constexpr (!has_signed_codes(type))
    for (int half = 0; half < 2; ++half)
      part[half] = _mm256_mul_ps(_mm256_load_ps(s.min + 8 * half), _mm256_load_ps(sum + 8 * half));
  return scaled_dots(s.scale, scale, part[0], part[1],
                     [&](int block) { return dot_codes<type>(s.code + 32 * block, code + 32 * block); });
}

// The same of a super-block of signed codes with a scale for every 16, which needs no unpacking.
OLV_INLINE __m256 dot_expanded(const int8_t* w_code, const float* w_scale, const int8_t* code, const float* scale) {
  return scaled_dots(w_scale, scale, _mm256_setzero_ps(), _mm256_setzero_ps(), [&](int block) {
    return dot_signed(avx2::load32(reinterpret_cast<const uint8_t*>(w_code) + 32 * block), load_x(code + 32 * block));
  });
}

// The same of a super-block of a type that is expanded, as it lies: the signs of grids move to x.
template <int type>
OLV_INLINE __m256 dot_stored(const uint8_t* p, const int8_t* code, const float* scale) {
  if constexpr (has_grid(type)) {
    const GridBlock<type> block(p);
    float scales[kGroups];
    storev(scales, grid_scales<type>(p, block));
    return scaled_dots(scales, scale, _mm256_setzero_ps(), _mm256_setzero_ps(), [&](int b) {
      const __m256i codes = block.codes(4 * b), x = load_x(code + 32 * b);
      if constexpr (is_iq1(type)) return dot_signed(_mm256_add_epi8(codes, block.shifts(4 * b)), x);
      else return dot_unsigned(codes, __m256i(negated(Codes(x), block.signs(4 * b))));
    });
  } else {
    alignas(32) int8_t codes[kSuperBlock];
    float scales[kGroups];
    for (int b = 0; b < kSuperBlock / kTypes[type].block; ++b)
      expand_block<type>(p + b * kTypes[type].bytes, codes + b * kTypes[type].block, scales + b * kTypes[type].block / 16);
    return dot_expanded(codes, scales, code, scale);
  }
}

// One generated row with weight rows [first, last) of a type that is expanded.
template <int type>
void gemv_stored(const olv_weight& w, int64_t first, int64_t last, const Activations& x, float* y) {
  constexpr int bytes = super_block_bytes(type);
  for (int64_t n = first; n < last; ++n) {
    const uint8_t* row = w.data + n * row_bytes(w);
    __m256 acc = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i < w.k / kSuperBlock; ++i) {
      prefetch<(bytes + 63) / 64>(row + i * bytes);
      acc = _mm256_add_ps(acc, dot_stored<type>(row + i * bytes, x.code + i * kSuperBlock, x.scale + i * kGroups));
    }
    if (w.k % kSuperBlock) {
      uint8_t padded[bytes] = {};
      memcpy(padded, row + i * bytes, size_t(row_bytes(w) - i * bytes));
      acc = _mm256_add_ps(acc, dot_stored<type>(padded, x.code + i * kSuperBlock, x.scale + i * kGroups));
    }
    y[n] = sum8(acc);
  }
}

// Up to `most` generated rows in one pass over weight rows [first, last). Each row goes through the same operations in
// the same order, whatever their number.
template <int type, int most>
void gemv_codes(const olv_weight& w, int64_t first, int64_t last, const Activations& x, int64_t r0, float* y, int64_t stride) {
  const int64_t super_blocks = super_blocks_of(w.k), bytes = row_bytes(w);
  const int64_t rows = most == 1 ? 1 : smaller<int64_t>(most, x.count - r0);
  for (int64_t n = first; n < last; ++n) {
    __m256 acc[most];
    for (int64_t r = 0; r < rows; ++r) acc[r] = _mm256_setzero_ps();
    for (int64_t i = 0; i < super_blocks; ++i) {
      if (type == OLV_GROUPED && w.group == 16 && (i + 1) * kSuperBlock <= w.k) {
        const int8_t* codes = reinterpret_cast<const int8_t*>(w.data + n * bytes + i * kSuperBlock);
        const float* scales = reinterpret_cast<const float*>(w.scales) + (n * w.k + i * kSuperBlock) / 16;
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t at = (r0 + r) * super_blocks + i;
          acc[r] = _mm256_add_ps(acc[r], dot_expanded(codes, scales, x.code + at * kSuperBlock, x.scale + at * kGroups));
        }
        continue;
      }
      SuperBlock s;
      unpack_codes<type>(w, n, i, s);
      prefetch<(super_block_bytes(type) + 63) / 64>(w.data + n * bytes + i * super_block_bytes(type));
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = (r0 + r) * super_blocks + i;
        const float *scale = x.scale + at * kGroups, *sum = x.sum + at * kGroups;
        acc[r] = _mm256_add_ps(acc[r], dot_super_block_avx2<type>(s, x.code + at * kSuperBlock, scale, sum));
      }
    }
    for (int64_t r = 0; r < rows; ++r) y[(r0 + r) * stride + n] = sum8(acc[r]);
  }
}

// Eight weights as floats.
template <int type>
OLV_INLINE __m256 float_weights(const uint8_t* p) {
  if constexpr (type == OLV_F32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  if constexpr (type == OLV_F16) return _mm256_cvtph_ps(avx2::load128(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(avx2::load128(p)), 16));
}

template <int type, int most>
void gemv_floats(const olv_weight& w, int64_t first, int64_t last, const Activations& x, int64_t r0, float* y,
                 int64_t stride) {
  constexpr int size = kTypes[type].bytes;
  const int64_t rows = most == 1 ? 1 : smaller<int64_t>(most, x.count - r0), whole = w.k / 32 * 32;
  for (int64_t n = first; n < last; ++n) {
    const uint8_t* row = w.data + n * w.k * size;
    __m256 acc[most][4];
    for (int64_t r = 0; r < rows; ++r)
      for (int j = 0; j < 4; ++j) acc[r][j] = _mm256_setzero_ps();
    for (int64_t i = 0; i < whole; i += 32) {
      __m256 v[4];
      for (int j = 0; j < 4; ++j) v[j] = float_weights<type>(row + (i + 8 * j) * size);
      prefetch<size / 2>(row + i * size);
      for (int64_t r = 0; r < rows; ++r)
        for (int j = 0; j < 4; ++j)
          acc[r][j] = _mm256_fmadd_ps(v[j], _mm256_loadu_ps(x.values + (r0 + r) * x.k + i + 8 * j), acc[r][j]);
    }
    float rest[kSuperBlock];
    if (whole < w.k) unpack_floats<type>(w, n, whole / kSuperBlock, rest);
    for (int64_t r = 0; r < rows; ++r) {
      float sum = sum8(_mm256_add_ps(_mm256_add_ps(acc[r][0], acc[r][1]), _mm256_add_ps(acc[r][2], acc[r][3])));
      for (int64_t i = whole; i < w.k; ++i) sum = __builtin_fmaf(rest[i % kSuperBlock], x.values[(r0 + r) * x.k + i], sum);
      y[(r0 + r) * stride + n] = sum;
    }
  }
}

inline void gemv_avx2(const olv_weight& w, int64_t first, int64_t last, const Activations& x, float* y, int64_t stride) {
  if (is_expanded(w.type))
    return with_expanded_type(w.type, [&]<int type>() { gemv_stored<type>(w, first, last, x, y); });
  if (is_quantized(w.type) && !has_super_blocks(w)) return gemv(w, first, last, x, y, stride);
  with_type(w.type, [&]<int type>() {
    for (int64_t r0 = 0; r0 < x.count; r0 += kGemvRows) {
      const auto run = [&]<int most>() {
        if constexpr (has_planes(type)) gemv_planes<type, most>(w, first, last, x, r0, y, stride);
        else if constexpr (is_quantized(type)) gemv_codes<type, most>(w, first, last, x, r0, y, stride);
        else gemv_floats<type, most>(w, first, last, x, r0, y, stride);
      };
      if (x.count - r0 == 1) run.template operator()<1>();
      else run.template operator()<kGemvRows>();
    }
  });
}

}  // namespace
}  // namespace olv
