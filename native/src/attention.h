// Attention over pages of keys and values, with an online softmax: the score matrix is never materialized.
#pragma once
#include "kernels.h"
#include "microkernel.h"

namespace olv {
namespace {

constexpr float kLowest = -1e30f;  // the score of masked keys; finite, so that e^(kLowest - kLowest) is not NaN

inline const uint8_t* stored_page(const AttentionTask& t, const uint8_t* pages, int64_t position) {
  const CacheView& c = *t.cache;
  return pages + (int64_t(t.table[position / kPage]) * c.kv_heads + t.kv_head) * c.page_bytes;
}

// A page of a Q8_0 cache, dequantized to bfloat16: keys [slot, d], values [d, slot].
inline const uint16_t* dequantized_page(const AttentionTask& t, const uint8_t* page, int64_t position, bool is_value) {
  const int64_t d = t.cache->head_dim, page_index = position / kPage, entry = page_index % kDequantizedPages;
  uint16_t* to = t.dequantized->memory + (is_value * kDequantizedPages + entry) * kPage * d;
  int64_t& held = t.dequantized->page[is_value][entry];
  if (held == page_index) return to;
  held = page_index;
  const int8_t* code = reinterpret_cast<const int8_t*>(page);
  const float* scale = reinterpret_cast<const float*>(page + kPage * d);
  for (int64_t slot = 0; slot < kPage; ++slot)
    for (int64_t b = 0; b < d / 32; ++b, ++scale)
      for (int64_t i = 32 * b; i < 32 * b + 32; ++i)
        to[is_value ? i * kPage + slot : slot * d + i] = f32_to_bf16(*scale * float(code[slot * d + i]));
  return to;
}

inline const uint16_t* key_page(const AttentionTask& t, int64_t position) {
  const uint8_t* page = stored_page(t, t.cache->keys, position);
  if (t.cache->type == OLV_Q8_0) return dequantized_page(t, page, position, false);
  return reinterpret_cast<const uint16_t*>(page);
}

inline const uint16_t* value_page(const AttentionTask& t, int64_t position) {
  const uint8_t* page = stored_page(t, t.cache->values, position);
  if (t.cache->type == OLV_Q8_0) return dequantized_page(t, page, position, true);
  return reinterpret_cast<const uint16_t*>(page);
}

// Pages as elements of type T: float for float32 caches, bfloat16 for all others.
template <class T>
OLV_INLINE const T* keys_of(const AttentionTask& t, int64_t position) {
  if constexpr (sizeof(T) == 4) return reinterpret_cast<const T*>(stored_page(t, t.cache->keys, position));
  else return key_page(t, position);
}
template <class T>
OLV_INLINE const T* values_of(const AttentionTask& t, int64_t position) {
  if constexpr (sizeof(T) == 4) return reinterpret_cast<const T*>(stored_page(t, t.cache->values, position));
  else return value_page(t, position);
}

OLV_INLINE v16 load_wide(const float* p) { return loadv(p); }
OLV_INLINE v16 load_wide(const uint16_t* p) { return load_bf16(p); }
OLV_INLINE float as_float(float x) { return x; }
OLV_INLINE float as_float(uint16_t x) { return bf16_to_f32(x); }

inline int64_t first_key(const AttentionTask& t, int row) {
  return t.window ? larger<int64_t>(0, int64_t(t.position[row]) - t.window + 1) : 0;
}

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

// The online softmax of sixteen query columns (a column is a row of the batch and one of its heads). Blocks of keys begin
// at fixed positions, so that a row sees the same blocks in the same order whatever else is in the batch.
struct Columns {
  float max[16], sum[16];    // running maximum and sum of exponentials
  int64_t from[16], to[16];  // visible keys: [from, to)
  int count;
};

inline void set_columns(const AttentionTask& t, int first, Columns& c) {
  c.count = smaller(16, t.rows * t.q_per_kv - first);
  for (int i = 0; i < 16; ++i) {
    c.max[i] = kLowest;
    c.sum[i] = 0;
    c.from[i] = c.to[i] = 0;
    if (i >= c.count) continue;
    const int row = (first + i) / t.q_per_kv;
    c.from[i] = first_key(t, row);
    c.to[i] = int64_t(t.last[row]) + 1;
  }
}

inline const float* query_of(const AttentionTask& t, int column) {
  return t.q + column / t.q_per_kv * t.stride +
         (int64_t(t.kv_head) * t.q_per_kv + column % t.q_per_kv) * t.head_dim;
}

inline float* output_of(const AttentionTask& t, int column) {
  return t.out + column / t.q_per_kv * t.stride +
         (int64_t(t.kv_head) * t.q_per_kv + column % t.q_per_kv) * t.head_dim;
}

// Turns the scores of a block [keys][16] into unnormalized probabilities, in place. Returns the factor by which the
// output so far is to be rescaled.
inline v16 online_softmax(Columns& c, float* score, int64_t start, int64_t keys, float scale) {
  bool unmasked = true;  // every column sees every key: the common case
  for (int i = 0; i < c.count; ++i) unmasked &= c.from[i] <= start && c.to[i] >= start + keys;
  const v16 old_max = loadv(c.max);
  v16 max = old_max, sum{};
  if (unmasked) {
    // Scaled scores go through memory, as below: a fused multiply-subtract would round differently.
    for (int64_t j = 0; j < keys; ++j) {
      const v16 s = loadv(score + 16 * j) * scale;
      storev(score + 16 * j, s);
      max = max16(max, s);
    }
    for (int64_t j = 0; j < keys; ++j) {
      const v16 p = exp16(loadv(score + 16 * j) - max);
      storev(score + 16 * j, p);
      sum += p;
    }
    const v16 rescale = exp16(old_max - max);
    storev(c.max, max);
    storev(c.sum, loadv(c.sum) * rescale + sum);
    return rescale;
  }
  v16i from, to;
  for (int i = 0; i < 16; ++i) {
    // Relative to the block and clamped to it, so that 32 bits are enough.
    from.set(i, int32_t(larger<int64_t>(-1, smaller<int64_t>(keys, c.from[i] - start))));
    to.set(i, int32_t(larger<int64_t>(-1, smaller<int64_t>(keys, c.to[i] - start))));
  }
  for (int32_t j = 0; j < keys; ++j) {
    const v16i at = splat_int(j);
    const v16 s = select((at >= from) & (at < to), loadv(score + 16 * j) * scale, splat(kLowest));
    storev(score + 16 * j, s);
    max = max16(max, s);
  }
  for (int32_t j = 0; j < keys; ++j) {
    const v16i at = splat_int(j);
    const v16 e = exp16(loadv(score + 16 * j) - max);
    const v16 p = select((at >= from) & (at < to), e, v16{});
    storev(score + 16 * j, p);
    sum += p;
  }
  const v16 rescale = exp16(old_max - max);
  storev(c.max, max);
  storev(c.sum, loadv(c.sum) * rescale + sum);
  return rescale;
}

// Keys [skip, keys) of the block at `start`, as floats: [key][d].
inline void widen_keys(const AttentionTask& t, int64_t start, int64_t skip, int64_t keys, float* to) {
  const int d = t.cache->head_dim;
  for (int64_t j = skip; j < keys; ++j) {
    const int64_t at = start + j;
    if (t.cache->type == OLV_F32) memcpy(to + j * d, keys_of<float>(t, at) + at % kPage * d, size_t(d) * 4);
    else widen(key_page(t, at) + at % kPage * d, d, to + j * d);
  }
}

// Values [skip, keys) of the block at `start`, as floats: [d][kKeyBlock].
inline void widen_values(const AttentionTask& t, int64_t start, int64_t skip, int64_t keys, float* to) {
  for (int64_t page = skip / kPage * kPage; page < keys; page += kPage) {
    const int64_t count = smaller(kPage, keys - page);
    for (int i = 0; i < t.cache->head_dim; ++i) {
      float* row = to + i * kKeyBlock + page;
      if (t.cache->type == OLV_F32) memcpy(row, values_of<float>(t, start + page) + i * kPage, size_t(count) * 4);
      else widen(value_page(t, start + page) + i * kPage, count, row);
    }
  }
}

// Sixteen query columns: their queries, the scores of a block of keys, and their outputs so far.
struct QueryBlock {
  Columns columns;
  float *q, *score, *out;  // [d][16], [kKeyBlock][16], [d][16]
};

// Two blocks of columns, and the keys that any of them sees: [from, to).
struct QueryPair {
  QueryBlock block[2];
  int64_t from, to;
  int used;
};

// Up to kTaskColumns columns go through the keys together, a block at a time, so that keys and values are converted to
// floats once for all.
inline void prefill_attention(const AttentionTask& t, void* scratch) {
  const int d = t.cache->head_dim, columns = t.rows * t.q_per_kv;
  constexpr int most = kTaskColumns / 32;
  float* keys_tile = static_cast<float*>(scratch);          // [kKeyBlock][d]
  float* values_tile = keys_tile + kKeyBlock * int64_t(d);  // [d][kKeyBlock]
  float* score = values_tile + kKeyBlock * int64_t(d);      // [2][kKeyBlock][16]
  float* memory = score + 2 * kKeyBlock * 16;
  const int64_t step = int64_t(d) * 16;  // floats between the blocks of q, and of out
  QueryPair pairs[most];
  for (QueryPair& p : pairs)
    for (int n = 0; n < 2; ++n) {
      p.block[n].score = score + n * kKeyBlock * 16;
      p.block[n].q = memory + (&p - pairs) * 4 * step + n * step;
      p.block[n].out = p.block[n].q + 2 * step;
    }
  for (int first = 0; first < columns; first += kTaskColumns) {
    const int count = smaller(most, (columns - first + 31) / 32);
    int64_t from = INT64_MAX, to = 0;
    for (int m = 0; m < count; ++m) {
      QueryPair& p = pairs[m];
      p.used = columns - first - 32 * m > 16 ? 2 : 1;
      p.from = INT64_MAX;
      p.to = 0;
      for (int n = 0; n < p.used; ++n) {
        QueryBlock& b = p.block[n];
        set_columns(t, first + 32 * m + 16 * n, b.columns);
        memset(b.out, 0, size_t(d) * 64);
        memset(b.q, 0, size_t(d) * 64);
        for (int i = 0; i < b.columns.count; ++i) {
          const float* source = query_of(t, first + 32 * m + 16 * n + i);
          for (int j = 0; j < t.head_dim; ++j) b.q[16 * j + i] = source[j];
          p.from = smaller(p.from, b.columns.from[i]);
          p.to = larger(p.to, b.columns.to[i]);
        }
      }
      from = smaller(from, p.from);
      to = larger(to, p.to);
    }
    for (int64_t start = from / kKeyBlock * kKeyBlock; start < to; start += kKeyBlock) {
      // Pages before the window may have been freed: those keys are skipped, and their probabilities are zero.
      const int64_t skipped = larger<int64_t>(0, from - start), all = smaller(kKeyBlock, to - start);
      widen_keys(t, start, skipped, all, keys_tile);
      widen_values(t, start, skipped, all, values_tile);
      for (int m = 0; m < count; ++m) {
        QueryPair& p = pairs[m];
        if (start >= p.to || start + kKeyBlock <= p.from) continue;
        QueryBlock* blocks = p.block;
        const int64_t keys = smaller(kKeyBlock, p.to - start), skip = larger<int64_t>(0, p.from - start);
        for (int n = 0; n < p.used; n += kMicroPanels)
          gemm_panels(keys - skip, smaller(kMicroPanels, p.used - n), keys_tile + skip * d, d, {blocks[n].q, step}, d,
                      {blocks[n].score + 16 * skip, kKeyBlock * 16}, true);
        for (int n = 0; n < p.used; ++n) {
          QueryBlock& b = blocks[n];
          memset(b.score, 0, size_t(skip) * 64);
          const v16 rescale = online_softmax(b.columns, b.score, start, keys, t.scale);
          for (int i = 0; i < d; ++i) storev(b.out + 16 * i, loadv(b.out + 16 * i) * rescale);
        }
        for (int n = 0; n < p.used; n += kMicroPanels)
          gemm_panels(d, smaller(kMicroPanels, p.used - n), values_tile + skip, kKeyBlock,
                      {blocks[n].score + 16 * skip, kKeyBlock * 16}, keys - skip, {blocks[n].out, step}, false);
      }
    }
    for (int m = 0; m < count; ++m)
      for (int n = 0; n < pairs[m].used; ++n) {
        const QueryBlock& b = pairs[m].block[n];
        const v16 sum = loadv(b.columns.sum);
        for (int j = 0; j < d; ++j) storev(b.out + 16 * j, loadv(b.out + 16 * j) / sum);
        for (int i = 0; i < b.columns.count; ++i) {
          float* out = output_of(t, first + 32 * m + 16 * n + i);
          for (int j = 0; j < t.head_dim; ++j) out[j] = b.out[16 * j + i];
        }
      }
  }
}

}  // namespace
}  // namespace olv
