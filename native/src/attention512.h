// Attention of generated rows in AVX-512: keys and values are read once for all query heads that share them.
#pragma once
#include <immintrin.h>

#include "attention.h"

namespace olv {
namespace {

inline __m512 bf16_lanes(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

template <int share>
void attend_shared(const AttentionTask& t, int64_t first, int64_t last, const Partial& partial) {
  const int d = t.cache->head_dim;
  const int64_t base = first / kPage * kPage, span = (last - base + kPage - 1) / kPage * kPage;
  const float* q = t.q + int64_t(t.kv_head) * share * d;
  // Scores of whole pages; those outside [first, last) weigh nothing.
  alignas(64) float score[share][kSplit + kPage];
  for (int64_t page = 0; page < span; page += kPage) {
    const uint16_t* keys = key_page(t, base + page);
    for (int64_t slot = 0; slot < kPage; ++slot) {
      __m512 acc[share];
      for (int h = 0; h < share; ++h) acc[h] = _mm512_setzero_ps();
      for (int i = 0; i < d; i += 16) {
        const __m512 k = bf16_lanes(keys + slot * d + i);
        for (int h = 0; h < share; ++h) acc[h] = _mm512_fmadd_ps(k, _mm512_loadu_ps(q + h * d + i), acc[h]);
      }
      for (int h = 0; h < share; ++h) score[h][page + slot] = _mm512_reduce_add_ps(acc[h]) * t.scale;
    }
  }
  for (int h = 0; h < share; ++h) {
    for (int64_t i = 0; i < first - base; ++i) score[h][i] = kLowest;
    for (int64_t i = last - base; i < span; ++i) score[h][i] = kLowest;
    v16 peak = splat(kLowest);
    for (int64_t i = 0; i < span; i += 16) peak = max16(peak, loadv(score[h] + i));
    const float top = _mm512_reduce_max_ps(load<__m512>(&peak));
    v16 total{};
    for (int64_t i = 0; i < span; i += 16) {
      const v16 e = exp16(loadv(score[h] + i) - top);
      storev(score[h] + i, e);
      total += e;
    }
    partial.peak[h] = top;
    partial.total[h] = sum16(total);
  }
  for (int i = 0; i < d; ++i) {
    __m512 even[share], odd[share];
    for (int h = 0; h < share; ++h) even[h] = odd[h] = _mm512_setzero_ps();
    for (int64_t page = 0; page < span; page += kPage) {
      const uint16_t* values = value_page(t, base + page) + i * kPage;
      const __m512 a = bf16_lanes(values), b = bf16_lanes(values + 16);
      for (int h = 0; h < share; ++h) {
        even[h] = _mm512_fmadd_ps(a, _mm512_load_ps(score[h] + page), even[h]);
        odd[h] = _mm512_fmadd_ps(b, _mm512_load_ps(score[h] + page + 16), odd[h]);
      }
    }
    for (int h = 0; h < share; ++h) partial.out[h * d + i] = _mm512_reduce_add_ps(_mm512_add_ps(even[h], odd[h]));
  }
}

inline void attend_part512(const AttentionTask& t, int64_t first, int64_t last, const Partial& partial) {
  if (t.cache->head_dim % 16) return attend_part(t, first, last, partial);
  switch (t.share) {
    case 1: return attend_shared<1>(t, first, last, partial);
    case 2: return attend_shared<2>(t, first, last, partial);
    case 3: return attend_shared<3>(t, first, last, partial);
    case 4: return attend_shared<4>(t, first, last, partial);
    case 5: return attend_shared<5>(t, first, last, partial);
    case 6: return attend_shared<6>(t, first, last, partial);
    case 7: return attend_shared<7>(t, first, last, partial);
    case 8: return attend_shared<8>(t, first, last, partial);
    default: return attend_part(t, first, last, partial);
  }
}

}  // namespace
}  // namespace olv
