// Attention over pages of keys and values, with an online softmax. No matrix of scores is ever whole.
#pragma once
#include "kernels.h"
#include "vec.h"

namespace olv {
namespace {

constexpr float kLowest = -1e30f;  // below every score; finite, so that e^(kLowest - kLowest) is no NaN

inline const uint16_t* key_page(const AttentionTask& t, int64_t position) {
  const CacheView& c = *t.cache;
  return c.keys + (int64_t(t.table[position / kPage]) * c.kv_heads + t.kv_head) * kPage * c.head_dim;
}

inline const uint16_t* value_page(const AttentionTask& t, int64_t position) {
  const CacheView& c = *t.cache;
  return c.values + (int64_t(t.table[position / kPage]) * c.kv_heads + t.kv_head) * kPage * c.head_dim;
}

inline int64_t first_key(const AttentionTask& t, int row) {
  return t.window ? larger<int64_t>(0, int64_t(t.position[row]) - t.window + 1) : 0;
}

// One generated row over keys [first, last): unnormalized output, the largest score, and the total, a query head each.
inline void attend_part(const AttentionTask& t, int64_t first, int64_t last, const Partial& partial) {
  const int d = t.cache->head_dim;
  float score[kSplit];
  for (int h = 0; h < t.share; ++h) {
    const float* q = t.q + (int64_t(t.kv_head) * t.share + h) * d;
    float peak = kLowest;
    for (int64_t p = first; p < last; ++p) {
      const uint16_t* k = key_page(t, p) + p % kPage * d;
      v16 acc{};
      int i = 0;
      for (; i + 16 <= d; i += 16) acc += loadv(q + i) * load_bf16(k + i);
      float s = sum16(acc);
      for (; i < d; ++i) s += q[i] * bf16_to_f32(k[i]);
      s *= t.scale;
      score[p - first] = s;
      peak = larger(peak, s);
    }
    v16 sums{};
    for (int64_t i = 0; i < last - first; i += 16) {
      const int64_t n = smaller<int64_t>(16, last - first - i);
      v16 e = exp16(load_some(score + i, n) - peak);
      memcpy(score + i, &e, size_t(n) * 4);
      sums += load_some(score + i, n);
    }
    float* out = partial.out + int64_t(h) * d;
    for (int i = 0; i < d; ++i) {
      v16 acc{};
      for (int64_t p = first; p < last;) {
        const uint16_t* v = value_page(t, p) + i * kPage;
        const int64_t end = smaller(last, (p / kPage + 1) * kPage);
        for (; p < end;) {  // whole or partial sixteens of this page
          const int64_t n = smaller<int64_t>(16 - p % 16, end - p);
          float wide[16] = {}, s[16] = {};
          for (int64_t j = 0; j < n; ++j) {
            wide[j] = bf16_to_f32(v[p % kPage + j]);
            s[j] = score[p - first + j];
          }
          acc += loadv(wide) * loadv(s);
          p += n;
        }
      }
      out[i] = sum16(acc);
    }
    partial.peak[h] = peak;
    partial.total[h] = sum16(sums);
  }
}

// Sixteen columns (a row of the batch with one of its heads) against blocks of keys at fixed places, so that a row
// meets the same blocks in the same order whatever rows stand beside it.
struct Columns {
  float peak[16], total[16];
  int64_t from[16], to[16];  // keys that the column sees: [from, to)
  int count;
};

inline void set_columns(const AttentionTask& t, int first, Columns& c) {
  c.count = smaller(16, t.rows * t.share - first);
  for (int i = 0; i < 16; ++i) {
    c.peak[i] = kLowest;
    c.total[i] = 0;
    c.from[i] = c.to[i] = 0;
    if (i >= c.count) continue;
    const int row = (first + i) / t.share;
    c.from[i] = first_key(t, row);
    c.to[i] = int64_t(t.position[row]) + 1;
  }
}

inline const float* query_of(const AttentionTask& t, int column) {
  return t.q + column / t.share * t.stride + (int64_t(t.kv_head) * t.share + column % t.share) * t.cache->head_dim;
}

inline float* output_of(const AttentionTask& t, int column) {
  return t.out + column / t.share * t.stride + (int64_t(t.kv_head) * t.share + column % t.share) * t.cache->head_dim;
}

// Scores of a block [keys][16] become weights, in place; gives the factor for what was summed before.
inline v16 soften(Columns& c, float* score, int64_t start, int64_t keys, float scale) {
  bool whole = true;  // every column sees every key: the common case, without masks
  for (int i = 0; i < c.count; ++i) whole &= c.from[i] <= start && c.to[i] >= start + keys;
  const v16 old = loadv(c.peak);
  v16 peak = old, total{};
  if (whole) {
    // Scaled scores go through memory here as below: a fused multiply-subtract would give other bits.
    for (int64_t j = 0; j < keys; ++j) {
      const v16 s = loadv(score + 16 * j) * scale;
      storev(score + 16 * j, s);
      peak = max16(peak, s);
    }
    for (int64_t j = 0; j < keys; ++j) {
      const v16 p = exp16(loadv(score + 16 * j) - peak);
      storev(score + 16 * j, p);
      total += p;
    }
    const v16 keep = exp16(old - peak);
    storev(c.peak, peak);
    storev(c.total, loadv(c.total) * keep + total);
    return keep;
  }
  i16x from, to;
  for (int i = 0; i < 16; ++i) {
    // Relative to the block and clipped to it, so that 32 bits are enough.
    from.set(i, int32_t(larger<int64_t>(-1, smaller<int64_t>(keys, c.from[i] - start))));
    to.set(i, int32_t(larger<int64_t>(-1, smaller<int64_t>(keys, c.to[i] - start))));
  }
  for (int32_t j = 0; j < keys; ++j) {
    const i16x at = splat_int(j);
    const v16 s = select((at >= from) & (at < to), loadv(score + 16 * j) * scale, splat(kLowest));
    storev(score + 16 * j, s);
    peak = max16(peak, s);
  }
  for (int32_t j = 0; j < keys; ++j) {
    const i16x at = splat_int(j);
    const v16 e = exp16(loadv(score + 16 * j) - peak);
    const v16 p = select((at >= from) & (at < to), e, v16{});
    storev(score + 16 * j, p);
    total += p;
  }
  const v16 keep = exp16(old - peak);
  storev(c.peak, peak);
  storev(c.total, loadv(c.total) * keep + total);
  return keep;
}

inline void attend_prompt(const AttentionTask& t, void* scratch) {
  const int d = t.cache->head_dim;
  float* q = static_cast<float*>(scratch);  // [d][16]
  float* score = q + int64_t(d) * 16;       // [kKeyBlock][16]
  float* out = score + kKeyBlock * 16;      // [d][16]
  for (int first = 0; first < t.rows * t.share; first += 16) {
    Columns c;
    set_columns(t, first, c);
    int64_t from = c.from[0], to = c.to[0];
    for (int i = 0; i < 16; ++i) {
      const float* source = i < c.count ? query_of(t, first + i) : nullptr;
      for (int j = 0; j < d; ++j) q[16 * j + i] = source ? source[j] : 0;
      if (i < c.count) from = smaller(from, c.from[i]), to = larger(to, c.to[i]);
    }
    memset(out, 0, size_t(d) * 64);
    for (int64_t start = from / kKeyBlock * kKeyBlock; start < to; start += kKeyBlock) {
      const int64_t keys = smaller(kKeyBlock, to - start), skip = larger<int64_t>(0, from - start);
      for (int64_t j = 0; j < keys; j += 4) {  // four keys at a time: they are of one page
        v16 s[4] = {};
        if (j + 4 > skip) {
          const uint16_t* k = key_page(t, start + j) + (start + j) % kPage * d;
          for (int i = 0; i < d; ++i) {
            const v16 v = loadv(q + 16 * i);
            for (int n = 0; n < 4; ++n) s[n] += v * bf16_to_f32(k[n * d + i]);
          }
        }
        for (int n = 0; n < 4; ++n) storev(score + 16 * (j + n), s[n]);
      }
      const v16 keep = soften(c, score, start, keys, t.scale);
      for (int i = 0; i < d; i += 2) {
        v16 a = loadv(out + 16 * i) * keep, b = loadv(out + 16 * i + 16) * keep;
        for (int64_t j = skip; j < keys; ++j) {
          const uint16_t* v = value_page(t, start + j) + i * kPage + (start + j) % kPage;
          const v16 s = loadv(score + 16 * j);
          a += s * bf16_to_f32(v[0]);
          b += s * bf16_to_f32(v[kPage]);
        }
        storev(out + 16 * i, a);
        storev(out + 16 * i + 16, b);
      }
    }
    for (int i = 0; i < c.count; ++i)
      for (int j = 0; j < d; ++j) output_of(t, first + i)[j] = out[16 * j + i] / c.total[i];
  }
}

}  // namespace
}  // namespace olv
