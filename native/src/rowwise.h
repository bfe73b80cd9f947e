// Ops on single rows: norms, gated activations, rotary embedding, sums, KV stores, and the quantization of activations.
#pragma once
#include "expand.h"
#include "kernels.h"
#include "vec.h"
#if defined(__AVX2__)
#include "unpack_avx2.h"
#else
#if defined(OLV_NEON)
#include "unpack_neon.h"
#endif
#include "unpack.h"
#endif

namespace olv {
namespace {

inline void rms_norm(const float* x, const float* weight, float* y, int64_t width, int size, float eps) {
  for (int64_t start = 0; start < width; start += size) {
    v16 squares{};
    int at = 0;
    for (; at + 16 <= size; at += 16) squares += loadv(x + start + at) * loadv(x + start + at);
    if (at < size) {
      const v16 v = load_partial(x + start + at, size - at);
      squares += v * v;
    }
    const float scale = 1.f / sqrtf(sum16(squares) / float(size) + eps);
    int i = 0;
    for (; i + 16 <= size; i += 16) storev(y + start + i, loadv(x + start + i) * scale * loadv(weight + i));
    for (; i < size; ++i) y[start + i] = x[start + i] * scale * weight[i];
  }
}

inline void gate(const float* g, const float* up, float* y, int64_t width, int activation) {
  const auto apply = [&](v16 a, v16 b) { return (activation == OLV_SILU ? silu16(a) : gelu_tanh16(a)) * b; };
  int64_t i = 0;
  for (; i + 16 <= width; i += 16) storev(y + i, apply(loadv(g + i), loadv(up + i)));
  if (i < width) {
    const v16 r = apply(load_partial(g + i, width - i), load_partial(up + i, width - i));
    memcpy(y + i, &r, size_t(width - i) * 4);
  }
}

inline void softcap(const float* x, float* y, int64_t width, float cap) {
  const float inverse = 1 / cap;
  // NaN stays NaN: sampling checks for it.
  const auto apply = [&](v16 v) { return select(v >= v, tanh16(v * inverse) * cap, v); };
  int64_t i = 0;
  for (; i + 16 <= width; i += 16) storev(y + i, apply(loadv(x + i)));
  if (i < width) {
    const v16 r = apply(load_partial(x + i, width - i));
    memcpy(y + i, &r, size_t(width - i) * 4);
  }
}

inline void rope(const float* x, const float* cos, const float* sin, float* y, int64_t width, int64_t d, int64_t half,
                 int interleaved) {
  for (int64_t start = 0; start < width; start += d, x += d, y += d) {
    if (interleaved) {
      for (int64_t i = 0; i < half; ++i) {
        const float a = x[2 * i], b = x[2 * i + 1];
        y[2 * i] = a * cos[i] - b * sin[i];
        y[2 * i + 1] = a * sin[i] + b * cos[i];
      }
    } else {
      int64_t i = 0;
      for (; i + 16 <= half; i += 16) {
        const v16 a = loadv(x + i), b = loadv(x + half + i), c = loadv(cos + i), s = loadv(sin + i);
        storev(y + i, a * c - b * s);
        storev(y + half + i, a * s + b * c);
      }
      for (; i < half; ++i) {
        const float a = x[i], b = x[half + i];
        y[i] = a * cos[i] - b * sin[i];
        y[half + i] = a * sin[i] + b * cos[i];
      }
    }
    if (2 * half < d) memcpy(y + 2 * half, x + 2 * half, size_t(d - 2 * half) * 4);
  }
}

// Q8_0 with float scales: int8, and a scale for each 32.
inline void store_q8(const float* x, int64_t d, int8_t* code, float* scale) {
  for (int64_t b = 0; b < d / 32; ++b) {
    float largest = 0;
    for (int64_t i = 32 * b; i < 32 * b + 32; ++i) largest = larger(largest, fabsf(x[i]));
    const float inverse = largest > 0 ? 127 / largest : 0;
    for (int64_t i = 32 * b; i < 32 * b + 32; ++i) code[i] = int8_t(lrintf(x[i] * inverse));
    scale[b] = largest / 127;
  }
}

// One head's key and value into their slot of a page.
inline void store_slot(const CacheView& c, int64_t page, int64_t head, int64_t slot, const float* k, const float* v) {
  const int64_t d = c.head_dim, at = (page * c.kv_heads + head) * c.page_bytes;
  if (c.type == OLV_Q8_0) {
    const auto store = [&](const float* x, uint8_t* to) {
      store_q8(x, d, reinterpret_cast<int8_t*>(to) + slot * d, reinterpret_cast<float*>(to + kPage * d) + slot * (d / 32));
    };
    store(k, c.keys + at);
    store(v, c.values + at);
  } else if (c.type == OLV_F32) {
    memcpy(c.keys + at + slot * d * 4, k, size_t(d) * 4);
    float* value = reinterpret_cast<float*>(c.values + at) + slot;
    for (int64_t i = 0; i < d; ++i) value[i * kPage] = v[i];
  } else {
    uint16_t* key = reinterpret_cast<uint16_t*>(c.keys + at) + slot * d;
    uint16_t* value = reinterpret_cast<uint16_t*>(c.values + at) + slot;
    for (int64_t i = 0; i < d; ++i) key[i] = f32_to_bf16(k[i]);
    for (int64_t i = 0; i < d; ++i) {
      value[i * kPage] = f32_to_bf16(v[i]);
      asm volatile("" : : : "memory");  // keeps these stores scalar: the compiler's scatter is several times slower
    }
  }
}

// `count` rows, `stride` floats apart, into consecutive slots.
inline void store_kv(const CacheView& c, int64_t page, int64_t head, int64_t slot, int64_t count, const float* k,
                     const float* v, int64_t stride) {
  for (int64_t i = 0; i < count; ++i) store_slot(c, page, head, slot + i, k + i * stride, v + i * stride);
}

inline void add(const float* a, const float* b, float* y, int64_t width) {
  for (int64_t i = 0; i < width; ++i) y[i] = a[i] + b[i];
}

inline void quantize(const float* x, int64_t k, int8_t* code, float* scale, float* sum) {
  const int64_t padded = super_blocks_of(k) * kSuperBlock;
  for (int64_t g = 0; g < padded / 16; ++g) {
    const int64_t left = k - 16 * g;
    const v16 v = left >= 16 ? loadv(x + 16 * g) : load_partial(x + 16 * g, larger<int64_t>(0, left));
    const v16 size = max16(v, -v);
    float largest = 0, each[16];
    memcpy(each, &size, sizeof each);
    for (int i = 0; i < 16; ++i) largest = larger(largest, each[i]);
    const float d = largest / 127;
    const float inverse = largest > 0 ? 127 / largest : 0;
    const v16 magic = splat(12582912.f);
    const v16i q = to_ints((v * inverse + magic) - magic);
    int32_t whole[16];
    memcpy(whole, &q, sizeof whole);
    int total = 0;
    for (int i = 0; i < 16; ++i) {
      code[16 * g + i] = int8_t(whole[i]);
      total += whole[i];
    }
    scale[g] = d;
    sum[g] = d * float(total);
  }
}

// Unpacks super-block `index` of a row, padded with zeros at the row's end. For weights that have super-blocks.
template <int type>
OLV_INLINE void unpack_codes(const olv_weight& w, int64_t row, int64_t index, SuperBlock& s) {
  const int64_t first = index * kSuperBlock, elements = smaller<int64_t>(kSuperBlock, w.k - first);
  const uint8_t* p = w.data + row * row_bytes(w);
  if constexpr (type == OLV_GROUPED) {
    const uint8_t* scales = w.scales + 4 * (row * (w.k / w.group) + first / w.group);
#if defined(__AVX2__)
    if (elements == kSuperBlock && (w.group & (w.group - 1)) == 0)
      return unpack_grouped(p + first, scales, w.group, first % w.group, s);
#endif
    memset(&s, 0, sizeof s);
    for (int64_t e = 0; e < elements; ++e) s.code[e] = p[first + e] ^ 0x80;
    int64_t left = w.group - first % w.group;  // elements to the next scale
    for (int64_t g = 0; g < elements / 16; ++g) {
      s.scale[g] = load<float>(scales);
      s.min[g] = -128 * s.scale[g];
      left -= 16;
      if (!left) scales += 4, left = w.group;
    }
  } else if constexpr (type > OLV_BF16) {
    const uint8_t* at = p + index * super_block_bytes(type);
    if (elements == kSuperBlock) return unpack<type>(at, s);
    if (at + super_block_bytes(type) <= w.data + w.n * row_bytes(w)) {
      unpack<type>(at, s);  // the load continues into the next row, whose groups get zero scales
    } else {
      uint8_t padded[super_block_bytes(type)] = {};
      memcpy(padded, at, size_t(elements / kTypes[type].block * kTypes[type].bytes));
      unpack<type>(padded, s);
    }
    for (int64_t g = elements / 16; g < kGroups; ++g) s.scale[g] = s.min[g] = 0;
  }
}

// Dequantizes 256 elements of a row of any type, padded with zeros at the row's end.
template <int type>
inline void unpack_floats(const olv_weight& w, int64_t row, int64_t index, float* v) {
  const int64_t first = index * kSuperBlock, elements = smaller<int64_t>(kSuperBlock, w.k - first);
  const uint8_t* p = w.data + row * row_bytes(w);
  if constexpr (is_quantized(type)) {
    if (has_super_blocks(w)) {
#if defined(OLV_NEON)
      return unpack_values<type>({w, p, row, index}, v);
#else
      SuperBlock s;
      unpack_codes<type>(w, row, index, s);
      for (int g = 0; g < kGroups; ++g) storev(v + 16 * g, load_bytes(s.code + 16 * g) * s.scale[g] + splat(s.min[g]));
      return;
#endif
    }
    const uint8_t* scales = w.scales + 4 * (row * (w.k / w.group));
    for (int64_t i = 0; i < elements; ++i)
      v[i] = float(int8_t(p[first + i])) * load<float>(scales + 4 * ((first + i) / w.group));
  } else if constexpr (type == OLV_F32) {
    memcpy(v, p + 4 * first, size_t(elements) * 4);
  } else if constexpr (type == OLV_F16) {
    int64_t i = 0;
    for (; i + 16 <= elements; i += 16) storev(v + i, load_f16s(p + 2 * (first + i)));
    for (; i < elements; ++i) v[i] = load_f16(p + 2 * (first + i));
  } else if constexpr (type == OLV_BF16) {
    widen(p + 2 * first, elements, v);
  }
  for (int64_t i = elements; i < kSuperBlock; ++i) v[i] = 0;
}

// Prefetches `lines` cache lines of the stream at p: into L2 8 KB ahead, into L1 1 KB ahead. The hardware prefetchers stop
// at every memory page, and one core does not keep enough lines in flight; of the distances tried from 512 bytes to
// 16 KB this pair was fastest. `near` is more where several rows are read at once: the bytes of the next ones.
constexpr int64_t kNearPrefetch = 1024;
template <int lines>
OLV_INLINE void prefetch(const uint8_t* p, int64_t near = kNearPrefetch) {
  for (int line = 0; line < lines; ++line) {
    __builtin_prefetch(p + 8192 + 64 * line, 0, 2);
    __builtin_prefetch(p + near + 64 * line, 0, 3);
  }
}

inline const void* panel_of(const olv_weight& w, const Activations& x) {
  return has_super_blocks(w) ? x.super_block_panel : x.panel;
}

// Calls f with the type as a compile-time constant.
template <class F>
inline void with_type(int type, F&& f) {
  switch (type) {
#define OLV_CASE(t) case t: return f.template operator()<t>();
    OLV_CASE(OLV_F32) OLV_CASE(OLV_F16) OLV_CASE(OLV_BF16) OLV_CASE(OLV_Q4_0) OLV_CASE(OLV_Q4_1) OLV_CASE(OLV_Q5_0)
    OLV_CASE(OLV_Q5_1) OLV_CASE(OLV_Q8_0) OLV_CASE(OLV_Q2_K) OLV_CASE(OLV_Q3_K) OLV_CASE(OLV_Q4_K) OLV_CASE(OLV_Q5_K)
    OLV_CASE(OLV_Q6_K) OLV_CASE(OLV_IQ4_NL) OLV_CASE(OLV_IQ4_XS) OLV_CASE(OLV_MXFP4) OLV_CASE(OLV_GROUPED)
#undef OLV_CASE
  }
}

inline void dequantize(const olv_weight& w, int64_t row, float* y) {
  if (is_expanded(w.type)) return dequantize_expanded(w, row, y);
  with_type(w.type, [&]<int type>() {
    float v[kSuperBlock];
    for (int64_t s = 0; s < super_blocks_of(w.k); ++s) {
      unpack_floats<type>(w, row, s, v);
      memcpy(y + s * kSuperBlock, v, size_t(smaller<int64_t>(kSuperBlock, w.k - s * kSuperBlock)) * 4);
    }
  });
}

}  // namespace
}  // namespace olv
