// Attention over pages of keys and values, with an online softmax: the score matrix is never materialized.
#pragma once
#include "kernels.h"
#include "microkernel.h"

namespace olv {
namespace {

// Keys are stored [slot, d] and values [d, slot] (CacheView), or the other way round.
#if defined(OLV_KEYS_BY_COLUMN)
constexpr bool kKeysByColumn = true;
#else
constexpr bool kKeysByColumn = false;
#endif

constexpr float kLowest = -1e30f;  // the score of masked keys; finite, so that e^(kLowest - kLowest) is not NaN

inline const uint8_t* stored_page(const AttentionTask& t, const uint8_t* pages, int64_t position) {
  const CacheView& c = *t.cache;
  return pages + (int64_t(t.table[position / kPage]) * c.kv_heads + t.kv_head) * c.page_bytes;
}

// A page of a Q8_0 cache, dequantized to bfloat16.
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
        to[is_value != kKeysByColumn ? i * kPage + slot : slot * d + i] = f32_to_bf16(*scale * float(code[slot * d + i]));
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

inline int64_t first_key(const AttentionTask& t, int row) {
  return t.window ? larger<int64_t>(0, int64_t(t.position[row]) - t.window + 1) : 0;
}

// Merges the softmax over some keys with that over the keys after them: `max` is the new maximum, and the call merges sums
// of exponentials, and outputs.
struct Merge {
  v16 max, before, after;
  Merge(v16 a, v16 b) : max(max16(a, b)), before(exp16(a - max)), after(exp16(b - max)) {}
  OLV_INLINE v16 operator()(v16 a, v16 b) const { return fma16(a, before, b * after); }
};

// The output of one query head from `count` KV splits, in their order: the results are `step` floats apart.
inline void merge_splits(const SplitResult& result, int64_t step, int64_t count, int64_t d, float* y) {
  v16 max = splat(kLowest), sum{};
  memset(y, 0, size_t(d) * 4);
  const auto update = [&](auto&& value) {
    for (int64_t i = 0; i < d; i += 16) {
      const int64_t wide = smaller<int64_t>(16, d - i);
      const v16 x = value(i, wide);
      memcpy(y + i, &x, size_t(wide) * 4);
    }
  };
  for (int64_t s = 0; s < count; ++s) {
    const Merge merge(max, splat(result.max[s * step]));
    max = merge.max;
    sum = merge(sum, splat(result.sum[s * step]));
    update([&](int64_t i, int64_t wide) {
      return merge(load_partial(y + i, wide), load_partial(result.out + s * step + i, wide));
    });
  }
  update([&](int64_t i, int64_t wide) { return load_partial(y + i, wide) / sum; });
}

// The online softmax of sixteen query columns (a column is a row of the batch and one of its heads). Blocks of keys begin
// at fixed positions, so that a row sees the same blocks in the same order whatever else is in the batch.
struct Columns {
  float max[16], sum[16];    // running maximum and sum of exponentials, of one KV split
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

// The sum of f(0) … f(15), in the order of `sum16`.
template <int step = 1, class F>
OLV_INLINE v16 sum_sixteen(F&& f, int64_t i = 0) {
  if constexpr (step == 16) return f(i);
  else return sum_sixteen<2 * step>(f, i) + sum_sixteen<2 * step>(f, i + step);
}

// The sum over the keys of a block of probability(key), which also stores it: sixteen at a time, as `sum16` does where
// keys are lanes.
template <class F>
OLV_INLINE v16 sum_keys(int64_t keys, F&& probability) {
  v16 sum{};
  int64_t j = 0;
  for (; j + 16 <= keys; j += 16) sum += sum_sixteen([&](int64_t i) { return probability(j + i); });
  if (j < keys) {
    v16 rest[16] = {};
    for (int64_t i = 0; j + i < keys; ++i) rest[i] = probability(j + i);
    sum += sum_sixteen([&](int64_t i) { return rest[i]; });
  }
  return sum;
}

// Turns the scores of a block [keys][16] into unnormalized probabilities, in place. Returns the factor by which the
// output so far is to be rescaled.
inline v16 online_softmax(Columns& c, float* score, int64_t start, int64_t keys, float scale) {
  bool unmasked = true;  // every column sees every key: the common case
  for (int i = 0; i < c.count; ++i) unmasked &= c.from[i] <= start && c.to[i] >= start + keys;
  const v16 old_max = loadv(c.max);
  v16 max = old_max;
  const auto finish = [&](v16 sum) {
    const v16 rescale = exp16(old_max - max);
    storev(c.max, max);
    storev(c.sum, fma16(loadv(c.sum), rescale, sum));
    return rescale;
  };
  if (unmasked) {
    // Scaled scores go through memory, as below: a fused multiply-subtract would round differently.
    for (int64_t j = 0; j < keys; ++j) {
      const v16 s = loadv(score + 16 * j) * scale;
      storev(score + 16 * j, s);
      max = max16(max, s);
    }
    return finish(sum_keys(keys, [&](int64_t j) {
      const v16 p = exp16(loadv(score + 16 * j) - max);
      storev(score + 16 * j, p);
      return p;
    }));
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
  return finish(sum_keys(keys, [&](int64_t j) {
    const v16i at = splat_int(int32_t(j));
    const v16 e = exp16(loadv(score + 16 * j) - max);
    const v16 p = select((at >= from) & (at < to), e, v16{});
    storev(score + 16 * j, p);
    return p;
  }));
}

// Keys or values [skip, keys) of the block at `start`, as floats: rows of slots if they are stored so, or of columns.
inline void widen_block(const AttentionTask& t, bool is_value, int64_t start, int64_t skip, int64_t keys, float* to,
                        int64_t stride) {
  const int64_t d = t.cache->head_dim;
  const auto copy = [&](int64_t slot, int64_t at, int64_t count, float* row) {  // of the page of a slot, from `at` on
    if (t.cache->type == OLV_F32)
      memcpy(row, (is_value ? values_of<float>(t, slot) : keys_of<float>(t, slot)) + at, size_t(count) * 4);
    else widen((is_value ? value_page(t, slot) : key_page(t, slot)) + at, count, row);
  };
  if (is_value == kKeysByColumn) {
    for (int64_t j = skip; j < keys; ++j) copy(start + j, (start + j) % kPage * d, d, to + j * stride);
    return;
  }
  for (int64_t page = skip / kPage * kPage; page < keys; page += kPage)
    for (int64_t i = 0; i < d; ++i) copy(start + page, i * kPage, smaller(kPage, keys - page), to + i * stride + page);
}

// Sixteen query columns: their queries, the scores of a block of keys, the outputs of a KV split so far, and those of the
// splits before it.
struct QueryBlock {
  Columns columns;
  float *q, *score, *out;  // [d][16], [kKeyBlock][16], [d][16]
  float *merged, merged_max[16], merged_sum[16];  // [d][16]

  void begin(int d) {
    storev(merged_max, splat(kLowest));
    storev(merged_sum, v16{});
    memset(merged, 0, size_t(d) * 64);
    memset(out, 0, size_t(d) * 64);
  }

  // Ends the KV split: the next one begins at once.
  void merge_split(int d) {
    const Merge merge(loadv(merged_max), loadv(columns.max));
    storev(merged_max, merge.max);
    storev(merged_sum, merge(loadv(merged_sum), loadv(columns.sum)));
    for (int i = 0; i < d; ++i) storev(merged + 16 * i, merge(loadv(merged + 16 * i), loadv(out + 16 * i)));
    storev(columns.max, splat(kLowest));
    storev(columns.sum, v16{});
    memset(out, 0, size_t(d) * 64);
  }
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
  constexpr Operand operand = kKeysByColumn ? kByDepth : kByRow;
  // A cache line more where the products go through the tile by columns, so that those are not all in the same sets of L1.
  const int64_t key_stride = kKeysByColumn ? kKeyBlock + 16 : d, value_stride = kKeysByColumn ? d + 16 : kKeyBlock;
  float* keys_tile = static_cast<float*>(scratch);  // [kKeyBlock][d], and values [d][kKeyBlock]; or the other way round
  float* values_tile = keys_tile + key_stride * (kKeysByColumn ? d : kKeyBlock);
  float* score = values_tile + value_stride * (kKeysByColumn ? kKeyBlock : d);  // [2][kKeyBlock][16]
  float* memory = score + 2 * kKeyBlock * 16;
  static_assert((640 + 16) * kLongestHead + 16 * kKeyBlock + 2 * kKeyBlock * 16 <= kScratch / 4);
  static_assert(2 * kKeyBlock + most * 6 * 16 == 640);
  const int64_t step = int64_t(d) * 16;  // floats between the blocks of q, and of out
  QueryPair pairs[most];
  for (QueryPair& p : pairs)
    for (int n = 0; n < 2; ++n) {
      p.block[n].score = score + n * kKeyBlock * 16;
      p.block[n].q = memory + (&p - pairs) * 6 * step + n * step;
      p.block[n].out = p.block[n].q + 2 * step;
      p.block[n].merged = p.block[n].out + 2 * step;
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
        b.begin(d);
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
    const auto merge_splits = [&] {
      for (int m = 0; m < count; ++m)
        for (int n = 0; n < pairs[m].used; ++n) pairs[m].block[n].merge_split(d);
    };
    for (int64_t start = from / kKeyBlock * kKeyBlock; start < to; start += kKeyBlock) {
      if (start % kSplit == 0 && start > from) merge_splits();
      // Pages before the window may have been freed: those keys are skipped, and their probabilities are zero.
      const int64_t skipped = larger<int64_t>(0, from - start), all = smaller(kKeyBlock, to - start);
      widen_block(t, false, start, skipped, all, keys_tile, key_stride);
      widen_block(t, true, start, skipped, all, values_tile, value_stride);
      for (int m = 0; m < count; ++m) {
        QueryPair& p = pairs[m];
        if (start >= p.to || start + kKeyBlock <= p.from) continue;
        QueryBlock* blocks = p.block;
        const int64_t keys = smaller(kKeyBlock, p.to - start), skip = larger<int64_t>(0, p.from - start);
        for (int n = 0; n < p.used; n += kMicroPanels)
          gemm_panels<operand>(keys - skip, smaller(kMicroPanels, p.used - n),
                               keys_tile + skip * (kKeysByColumn ? 1 : d), key_stride, {blocks[n].q, step}, d,
                               {blocks[n].score + 16 * skip, kKeyBlock * 16}, true);
        for (int n = 0; n < p.used; ++n) {
          QueryBlock& b = blocks[n];
          memset(b.score, 0, size_t(skip) * 64);
          const v16 rescale = online_softmax(b.columns, b.score, start, keys, t.scale);
          for (int i = 0; i < d; ++i) storev(b.out + 16 * i, loadv(b.out + 16 * i) * rescale);
        }
        for (int n = 0; n < p.used; n += kMicroPanels)
          gemm_panels<operand>(d, smaller(kMicroPanels, p.used - n), values_tile + skip * (kKeysByColumn ? value_stride : 1),
                               value_stride, {blocks[n].score + 16 * skip, kKeyBlock * 16}, keys - skip,
                               {blocks[n].out, step}, false);
      }
    }
    merge_splits();
    for (int m = 0; m < count; ++m)
      for (int n = 0; n < pairs[m].used; ++n) {
        const QueryBlock& b = pairs[m].block[n];
        const v16 sum = loadv(b.merged_sum);
        for (int j = 0; j < d; ++j) storev(b.merged + 16 * j, loadv(b.merged + 16 * j) / sum);
        for (int i = 0; i < b.columns.count; ++i) {
          float* out = output_of(t, first + 32 * m + 16 * n + i);
          for (int j = 0; j < t.head_dim; ++j) out[j] = b.merged[16 * j + i];
        }
      }
  }
}

}  // namespace
}  // namespace olv
