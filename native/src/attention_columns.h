// Decode attention in AVX-512 with keys as columns [d, slot] and values as rows [slot, d], in the order of
// `prefill_attention`: scores are summed over the columns of a head one by one, in lanes of sixteen keys, and outputs over
// the keys one by one, in lanes of sixteen columns. So a row has the same bits as a prompt row and as a generated one.
#pragma once
#include "store_avx512.h"

namespace olv {
namespace {

static_assert(kKeysByColumn);

// 32 elements in two vectors: bfloat16 at even places and at odd ones, which needs no shuffles; floats in their order.
template <class T>
struct TwoVectors {
  __m512 a, b;
  OLV_INLINE TwoVectors(const T* p, __mmask32 mask = ~0u) {
    if constexpr (sizeof(T) == 4) {
      a = _mm512_maskz_loadu_ps(__mmask16(mask), p);
      b = _mm512_maskz_loadu_ps(__mmask16(mask >> 16), p + 16);
    } else {
      const __m512i pairs = _mm512_maskz_loadu_epi16(mask, p);
      a = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
      b = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int32_t(0xffff0000))));
    }
  }
};

// Vectors of that order to 32 floats in theirs, and back.
template <class T>
OLV_INLINE void to_order(__m512& a, __m512& b) {
  if constexpr (sizeof(T) == 4) return;
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512 first = _mm512_permutex2var_ps(a, low, b);
  b = _mm512_permutex2var_ps(a, _mm512_add_epi32(low, _mm512_set1_epi32(8)), b);
  a = first;
}
template <class T>
OLV_INLINE void from_order(__m512& a, __m512& b) {
  if constexpr (sizeof(T) == 4) return;
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512 first = _mm512_permutex2var_ps(a, even, b);
  b = _mm512_permutex2var_ps(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
  a = first;
}

OLV_INLINE void prefetch_page(const void* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(static_cast<const char*>(p) + i, _MM_HINT_T1);
}

// `heads` query heads that share a pass over the keys and values of a KV split.
template <class T, int heads>
struct DecodeHeads {
  // Pages of keys, and 32 columns of the output, whose sums are in registers.
  static constexpr int kAtOnce = heads > 4 ? 1 : heads > 2 ? 2 : 4;

  const AttentionTask& t;
  const float* const q;
  const SplitResult result;
  const int64_t d, limit;  // columns of a head, and the end of the KV split
  alignas(64) float score[heads][kKeyBlock];

  DecodeHeads(const AttentionTask& task, int head, int64_t last, const SplitResult& to)
      : t(task), q(task.q + (int64_t(task.kv_head) * task.q_per_kv + head) * task.cache->head_dim), result(to),
        d(task.cache->head_dim), limit(last) {
    for (int h = 0; h < heads; ++h) {
      result.max[h] = kLowest;
      result.sum[h] = 0;
    }
    memset(result.out, 0, size_t(heads * d) * 4);
  }

  // Scores of `count` pages of keys from `start` on, to score[…][at].
  template <int count>
  OLV_INLINE void score_pages(int64_t start, int64_t at) {
    const T* keys[count];
    const T* values[count];  // to prefetch, because pages are not contiguous
#pragma GCC unroll 4
    for (int g = 0; g < count; ++g) {
      keys[g] = keys_of<T>(t, start + g * kPage);
      values[g] = values_of<T>(t, start + g * kPage);
    }
    __m512 sum[heads][count][2];
#pragma GCC unroll 8
    for (int h = 0; h < heads; ++h)
#pragma GCC unroll 4
      for (int g = 0; g < count; ++g) sum[h][g][0] = sum[h][g][1] = _mm512_setzero_ps();
    for (int64_t i = 0; i < d; ++i) {
#pragma GCC unroll 4
      for (int g = 0; g < count; ++g) {
        prefetch_page(values[g] + i * kPage, kPage * int64_t(sizeof(T)));
        const TwoVectors<T> k(keys[g] + i * kPage);
#pragma GCC unroll 8
        for (int h = 0; h < heads; ++h) {
          const __m512 v = _mm512_set1_ps(q[h * d + i]);
          sum[h][g][0] = _mm512_fmadd_ps(k.a, v, sum[h][g][0]);
          sum[h][g][1] = _mm512_fmadd_ps(k.b, v, sum[h][g][1]);
        }
      }
    }
    const __m512 scale = _mm512_set1_ps(t.scale);
#pragma GCC unroll 8
    for (int h = 0; h < heads; ++h)
#pragma GCC unroll 4
      for (int g = 0; g < count; ++g) {
        to_order<T>(sum[h][g][0], sum[h][g][1]);
        _mm512_store_ps(score[h] + at + g * kPage, _mm512_mul_ps(sum[h][g][0], scale));
        _mm512_store_ps(score[h] + at + g * kPage + 16, _mm512_mul_ps(sum[h][g][1], scale));
      }
  }

  // Adds the values of keys [start, end) times their probabilities to `count` times 32 columns of the outputs, from i on.
  template <int count>
  OLV_INLINE void add_values(int64_t start, int64_t end, int64_t i, const float* rescale) {
    const __mmask32 mask = d - i >= 32 ? ~0u : (1u << (d - i)) - 1;  // count is 1 where columns are missing
    const __mmask16 masks[2] = {__mmask16(mask), __mmask16(mask >> 16)};
    __m512 sum[heads][count][2];
#pragma GCC unroll 8
    for (int h = 0; h < heads; ++h)
#pragma GCC unroll 4
      for (int g = 0; g < count; ++g) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half)
          sum[h][g][half] = _mm512_mul_ps(_mm512_maskz_loadu_ps(masks[half], result.out + h * d + i + 32 * g + 16 * half),
                                          _mm512_set1_ps(rescale[h]));
        from_order<T>(sum[h][g][0], sum[h][g][1]);
      }
    for (int64_t page = start; page < end; page += kPage) {
      const T* values = values_of<T>(t, page) + i;
      if (page + kKeyBlock < limit)
        prefetch_page(keys_of<T>(t, page + kKeyBlock) + i * kPage, count * 32 * kPage * int64_t(sizeof(T)));
      const float* p = score[0] + page % kKeyBlock;
      for (int64_t slot = 0; slot < kPage; ++slot, values += d, ++p) {
#pragma GCC unroll 4
        for (int g = 0; g < count; ++g) {
          const TwoVectors<T> v(values + 32 * g, mask);
#pragma GCC unroll 8
          for (int h = 0; h < heads; ++h) {
            const __m512 each = _mm512_set1_ps(p[h * kKeyBlock]);
            sum[h][g][0] = _mm512_fmadd_ps(v.a, each, sum[h][g][0]);
            sum[h][g][1] = _mm512_fmadd_ps(v.b, each, sum[h][g][1]);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int h = 0; h < heads; ++h)
#pragma GCC unroll 4
      for (int g = 0; g < count; ++g) {
        to_order<T>(sum[h][g][0], sum[h][g][1]);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half)
          _mm512_mask_storeu_ps(result.out + h * d + i + 32 * g + 16 * half, masks[half], sum[h][g][half]);
      }
  }

  template <int count = kAtOnce>
  OLV_INLINE void add_all_values(int64_t start, int64_t end, int64_t i, const float* rescale) {
    for (; d - i >= 32 * count || (count == 1 && i < d); i += 32 * count) add_values<count>(start, end, i, rescale);
    if constexpr (count > 1)
      if (i < d) add_all_values<count / 2>(start, end, i, rescale);
  }

  // Keys [first, last) of one block, of which whole pages are read.
  void attend_block(int64_t first, int64_t last) {
    const int64_t base = first / kKeyBlock * kKeyBlock, start = first / kPage * kPage;
    const int64_t end = (last + kPage - 1) / kPage * kPage;
    int64_t at = start;
    for (; end - at >= kAtOnce * kPage; at += kAtOnce * kPage) score_pages<kAtOnce>(at, at - base);
    if constexpr (kAtOnce > 1)
      for (; at < end; at += kPage) score_pages<1>(at, at - base);
    // Scores come back from memory: a fused multiply-subtract would round differently.
    asm volatile("" : : "r"(score) : "memory");
    float rescale[heads];
    for (int h = 0; h < heads; ++h) {
      for (int64_t i = start; i < first; ++i) score[h][i - base] = kLowest;
      for (int64_t i = last; i < end; ++i) score[h][i - base] = kLowest;
      v16 maxima = splat(result.max[h]);
      for (int64_t i = start - base; i < end - base; i += 16) maxima = max16(maxima, loadv(score[h] + i));
      const float max = _mm512_reduce_max_ps(load<__m512>(&maxima));
      float sum = 0;
      for (int64_t i = start - base; i < end - base; i += 16) {
        const v16 e = exp16(loadv(score[h] + i) - max);
        storev(score[h] + i, e);
        sum += sum16(e);
      }
      rescale[h] = exp16(splat(result.max[h]) - max)[0];
      result.sum[h] = __builtin_fmaf(result.sum[h], rescale[h], sum);
      result.max[h] = max;
    }
    add_all_values(start, end, 0, rescale);
  }
};

// Query heads [head, head + heads) of the KV head.
template <class T, int heads>
void attend_heads(const AttentionTask& t, int head, int64_t first, int64_t last, const SplitResult& result) {
  DecodeHeads<T, heads> all(t, head, last, result);
  for (int64_t start = first; start < last; start = (start / kKeyBlock + 1) * kKeyBlock)
    all.attend_block(start, smaller(last, (start / kKeyBlock + 1) * kKeyBlock));
}

inline void decode_attention_columns(const AttentionTask& t, int64_t first, int64_t last, const SplitResult& result) {
  for (int head = 0; head < t.q_per_kv;) {
    const SplitResult part{result.out + int64_t(head) * t.cache->head_dim, result.max + head, result.sum + head};
    const auto run = [&]<int heads>() {
      attend_heads<uint16_t, heads>(t, head, first, last, part);
      head += heads;
    };
    if (t.cache->type == OLV_F32) {  // for comparisons: head by head is fast enough
      attend_heads<float, 1>(t, head++, first, last, part);
      continue;
    }
    with_up_to_8(t.q_per_kv - head, run);
  }
}

}  // namespace
}  // namespace olv
