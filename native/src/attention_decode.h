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

// `heads` query heads over keys [first, last), in whole pages: slots outside are masked. They share the keys and values that are
// loaded and widened; each goes through the same operations as alone.
template <class T, int heads>
inline void attend_heads(const AttentionTask& t, const float* q, int64_t first, int64_t last, const SplitResult& result) {
  // Keys and columns at a time: as many accumulators as hide the latency, and as fit in registers with what is loaded.
  constexpr int together = heads == 1 ? 4 : 4 / kRegisters, wide = 4 / heads;
  const int d = t.cache->head_dim;
  const int64_t base = first / kPage * kPage, span = (last - base + kPage - 1) / kPage * kPage;
  alignas(64) float score[heads][kSplit + kPage];
  for (int64_t at = 0; at < span; at += kPage) {
    const T* page = keys_of<T>(t, base + at);
    // What is left of keys of which the columns are no multiple of sixteen.
    const auto add_rest = [&](int64_t slot, const T* k, int i) {
      for (int j = 0; j < together; ++j)
        for (int h = 0; h < heads; ++h)
          for (int rest = i; rest < d; ++rest) score[h][at + slot + j] += q[h * d + rest] * as_float(k[j * d + rest]);
    };
    for (int64_t slot = 0; slot < kPage; slot += together) {
      const T* k = page + slot * d;
      v16 acc[together][heads] = {};
      int i = 0;
      for (; i + 16 <= d; i += 16) {
        v16 key[together];
        for (int j = 0; j < together; ++j) key[j] = load_wide(k + j * d + i);
        for (int h = 0; h < heads; ++h) {
          const v16 v = loadv(q + h * d + i);
          for (int j = 0; j < together; ++j) acc[j][h] += v * key[j];
        }
        asm("");  // else the compiler takes more keys at a time, with more sums than there are registers
      }
#pragma GCC unroll 4
      for (int j = 0; j < together; ++j)
#pragma GCC unroll 2
        for (int h = 0; h < heads; ++h) score[h][at + slot + j] = sum16(acc[j][h]);
      if (i < d) add_rest(slot, k, i);
    }
    for (int h = 0; h < heads; ++h)
      for (int64_t slot = at; slot < at + kPage; ++slot) score[h][slot] *= t.scale;
  }
  for (int h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < first - base; ++i) score[h][i] = kLowest;
    for (int64_t i = last - base; i < span; ++i) score[h][i] = kLowest;
    v16 largest = loadv(score[h]);
    for (int64_t i = 16; i < span; i += 16) largest = max16(largest, loadv(score[h] + i));
    float max = kLowest;
    for (int i = 0; i < 16; ++i) max = larger(max, largest[i]);
    v16 sums{};
    for (int64_t i = 0; i < span; i += 16) {
      const v16 e = exp16(loadv(score[h] + i) - max);
      storev(score[h] + i, e);
      sums += e;
    }
    result.max[h] = max;
    result.sum[h] = sum16(sums);
  }
  const T* pages[kSplit / kPage + 1];
  for (int64_t at = 0; at < span; at += kPage) pages[at / kPage] = values_of<T>(t, base + at);
  const auto columns = [&]<int count>(int i) {
    v16 acc[count][heads] = {};
    for (int64_t at = 0; at < span; at += kPage) {
      const T* v = pages[at / kPage] + i * kPage;
      for (int64_t part = 0; part < kPage; part += 16)
        for (int j = 0; j < count; ++j) {
          const v16 value = load_wide(v + j * kPage + part);
          for (int h = 0; h < heads; ++h) acc[j][h] += loadv(score[h] + at + part) * value;
        }
    }
    for (int j = 0; j < count; ++j)
      for (int h = 0; h < heads; ++h) result.out[h * d + i + j] = sum16(acc[j][h]);
  };
  int i = 0;
  for (; i + wide <= d; i += wide) columns.template operator()<wide>(i);
  for (; i < d; ++i) columns.template operator()<1>(i);
}

// One KV split of a generated row, keys [first, last): for each query head the unnormalized output, max and sum.
inline void decode_attention(const AttentionTask& t, int64_t first, int64_t last, const SplitResult& result) {
  const int64_t d = t.cache->head_dim;
  for (int h = 0; h < t.q_per_kv; h += 2) {
    const float* q = t.q + (int64_t(t.kv_head) * t.q_per_kv + h) * d;
    const SplitResult part{result.out + h * d, result.max + h, result.sum + h};
    const bool two = h + 1 < t.q_per_kv;
    if (t.cache->type == OLV_F32) (two ? attend_heads<float, 2> : attend_heads<float, 1>)(t, q, first, last, part);
    else (two ? attend_heads<uint16_t, 2> : attend_heads<uint16_t, 1>)(t, q, first, last, part);
  }
}

}  // namespace
}  // namespace olv
