// Decode attention in AVX-512 with keys as rows: keys and values are read once for all query heads of a KV head.
#pragma once
#include "attention_decode.h"
#include "store_avx512.h"

namespace olv {
namespace {

inline __m512 bf16_lanes(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// Query heads [head, head + heads) of the KV head.
template <int heads>
void attend_heads(const AttentionTask& t, int head, int64_t first, int64_t last, const SplitResult& result) {
  const int d = t.cache->head_dim;
  const int64_t base = first / kPage * kPage, span = (last - base + kPage - 1) / kPage * kPage;
  const float* q = t.q + (int64_t(t.kv_head) * t.q_per_kv + head) * d;
  // Scores of whole pages; those outside [first, last) are masked.
  alignas(64) float score[heads][kSplit + kPage];
  for (int64_t page = 0; page < span; page += kPage) {
    const uint16_t* keys = key_page(t, base + page);
    // Pages are not contiguous, so the hardware cannot prefetch: the next page's keys, and this one's values.
    const uint16_t* next = page + kPage < span ? key_page(t, base + page + kPage) : keys;
    const uint16_t* values = value_page(t, base + page);
    for (int64_t slot = 0; slot < kPage; slot += 4) {
      for (int64_t i = slot * d; i < (slot + 4) * d; i += 32) {
        _mm_prefetch(reinterpret_cast<const char*>(next + i), _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char*>(values + i), _MM_HINT_T1);
      }
      __m512 acc[heads][4];
      for (int h = 0; h < heads; ++h)
        for (int j = 0; j < 4; ++j) acc[h][j] = _mm512_setzero_ps();
      for (int i = 0; i < d; i += 16) {
        __m512 k[4];
        for (int j = 0; j < 4; ++j) k[j] = bf16_lanes(keys + (slot + j) * d + i);
        for (int h = 0; h < heads; ++h) {
          const __m512 v = _mm512_loadu_ps(q + h * d + i);
          for (int j = 0; j < 4; ++j) acc[h][j] = _mm512_fmadd_ps(k[j], v, acc[h][j]);
        }
      }
      for (int h = 0; h < heads; ++h)
        _mm_store_ps(score[h] + page + slot, _mm_mul_ps(sums_of_four(acc[h]), _mm_set1_ps(t.scale)));
    }
  }
  for (int h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < first - base; ++i) score[h][i] = kLowest;
    for (int64_t i = last - base; i < span; ++i) score[h][i] = kLowest;
    v16 maxima = splat(kLowest);
    for (int64_t i = 0; i < span; i += 16) maxima = max16(maxima, loadv(score[h] + i));
    const float max = _mm512_reduce_max_ps(load<__m512>(&maxima));
    v16 sum{};
    for (int64_t i = 0; i < span; i += 16) {
      const v16 e = exp16(loadv(score[h] + i) - max);
      storev(score[h] + i, e);
      sum += e;
    }
    result.max[h] = max;
    result.sum[h] = sum16(sum);
  }
  for (int i = 0; i < d; i += 4) {
    __m512 acc[heads][4];
    for (int h = 0; h < heads; ++h)
      for (int j = 0; j < 4; ++j) acc[h][j] = _mm512_setzero_ps();
    for (int64_t page = 0; page < span; page += kPage) {
      const uint16_t* values = value_page(t, base + page) + i * kPage;
      for (int part = 0; part < 2; ++part) {
        __m512 v[4];
        for (int j = 0; j < 4; ++j) v[j] = bf16_lanes(values + j * kPage + 16 * part);
        for (int h = 0; h < heads; ++h) {
          const __m512 s = _mm512_load_ps(score[h] + page + 16 * part);
          for (int j = 0; j < 4; ++j) acc[h][j] = _mm512_fmadd_ps(v[j], s, acc[h][j]);
        }
      }
    }
    for (int h = 0; h < heads; ++h) _mm_storeu_ps(result.out + h * d + i, sums_of_four(acc[h]));
  }
}

inline void decode_attention_avx512(const AttentionTask& t, int64_t first, int64_t last, const SplitResult& result) {
  if (t.cache->head_dim % 16 || t.cache->type == OLV_F32) return decode_attention(t, first, last, result);
  for (int head = 0; head < t.q_per_kv; head += 8) {
    const SplitResult part{result.out + int64_t(head) * t.cache->head_dim, result.max + head, result.sum + head};
    with_up_to_8(t.q_per_kv - head, [&]<int heads>() { attend_heads<heads>(t, head, first, last, part); });
  }
}

}  // namespace
}  // namespace olv
