// Decode attention in portable C++: keys as rows.
#pragma once
#include "attention.h"

namespace olv {
namespace {

static_assert(!kKeysByColumn);

OLV_INLINE v16 load_wide(const float* p) { return loadv(p); }
OLV_INLINE v16 load_wide(const uint16_t* p) { return load_bf16(p); }
OLV_INLINE float as_float(float x) { return x; }
OLV_INLINE float as_float(uint16_t x) { return bf16_to_f32(x); }

// One query head over keys [first, last), in whole pages: slots outside are masked.
template <class T>
inline void attend_head(const AttentionTask& t, const float* q, int64_t first, int64_t last, float* out, float& max,
                        float& sum) {
  const int d = t.cache->head_dim;
  const int64_t base = first / kPage * kPage, span = (last - base + kPage - 1) / kPage * kPage;
  alignas(64) float score[kSplit + kPage];
  for (int64_t at = 0; at < span; at += 4) {  // four keys at a time, all in one page
    const T* k = keys_of<T>(t, base + at) + at % kPage * d;
    v16 acc[4] = {};
    int i = 0;
    for (; i + 16 <= d; i += 16) {
      const v16 v = loadv(q + i);
      for (int j = 0; j < 4; ++j) acc[j] += v * load_wide(k + j * d + i);
    }
    for (int j = 0; j < 4; ++j) {
      float s = sum16(acc[j]);
      for (int rest = i; rest < d; ++rest) s += q[rest] * as_float(k[j * d + rest]);
      score[at + j] = s * t.scale;
    }
  }
  for (int64_t i = 0; i < first - base; ++i) score[i] = kLowest;
  for (int64_t i = last - base; i < span; ++i) score[i] = kLowest;
  max = kLowest;
  for (int64_t i = 0; i < span; ++i) max = larger(max, score[i]);
  v16 sums{};
  for (int64_t i = 0; i < span; i += 16) {
    const v16 e = exp16(loadv(score + i) - max);
    storev(score + i, e);
    sums += e;
  }
  sum = sum16(sums);
  const auto dimensions = [&]<int count>(int i) {
    v16 acc[count] = {};
    for (int64_t at = 0; at < span; at += kPage) {
      const T* v = values_of<T>(t, base + at) + i * kPage;
      for (int64_t part = 0; part < kPage; part += 16) {
        const v16 s = loadv(score + at + part);
        for (int j = 0; j < count; ++j) acc[j] += s * load_wide(v + j * kPage + part);
      }
    }
    for (int j = 0; j < count; ++j) out[i + j] = sum16(acc[j]);
  };
  int i = 0;
  for (; i + 4 <= d; i += 4) dimensions.template operator()<4>(i);
  for (; i < d; ++i) dimensions.template operator()<1>(i);
}

// One KV split of a generated row, keys [first, last): for each query head the unnormalized output, max and sum.
inline void decode_attention(const AttentionTask& t, int64_t first, int64_t last, const SplitResult& result) {
  const int64_t d = t.cache->head_dim;
  for (int h = 0; h < t.q_per_kv; ++h) {
    const float* q = t.q + (int64_t(t.kv_head) * t.q_per_kv + h) * d;
    const auto attend = t.cache->type == OLV_F32 ? attend_head<float> : attend_head<uint16_t>;
    attend(t, q, first, last, result.out + h * d, result.max[h], result.sum[h]);
  }
}

}  // namespace
}  // namespace olv
