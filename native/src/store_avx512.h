// Storing keys and values in AVX-512.
#pragma once
#include "attention.h"
#include "unpack_avx512.h"

namespace olv {
namespace {

// As `store_kv`, transposing sixteen slots of sixteen dimensions at a time.
inline void store_kv_avx512(const CacheView& c, int64_t page, int64_t head, int64_t slot, int64_t count, const float* k,
                        const float* v, int64_t stride) {
  const int64_t d = c.head_dim, at = (page * c.kv_heads + head) * c.page_bytes;
  if (c.type != OLV_BF16 || d % 16 || count < 4) return store_kv(c, page, head, slot, count, k, v, stride);
  uint16_t* key = reinterpret_cast<uint16_t*>(c.keys + at) + slot * d;
  uint16_t* value = reinterpret_cast<uint16_t*>(c.values + at) + slot;
  for (int64_t r = 0; r < count; ++r)
    for (int64_t i = 0; i < d; i += 16)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(key + r * d + i), to_bf16(_mm512_loadu_ps(k + r * stride + i)));
  for (int64_t r = 0; r < count; r += 16)
    for (int64_t i = 0; i < d; i += 16) {
      const int64_t rows = smaller<int64_t>(16, count - r);
      __m512i block[16];
      for (int64_t j = 0; j < 16; ++j)
        block[j] = j < rows ? _mm512_loadu_si512(v + (r + j) * stride + i) : _mm512_setzero_si512();
      transpose(block);
      const __mmask16 mask = __mmask16((1u << rows) - 1);
      for (int64_t j = 0; j < 16; ++j)
        _mm256_mask_storeu_epi16(value + (i + j) * kPage + r, mask, to_bf16(_mm512_castsi512_ps(block[j])));
    }
}

// The same with keys as columns and values as rows.
inline void store_columns_avx512(const CacheView& c, int64_t page, int64_t head, int64_t slot, int64_t count, const float* k,
                                 const float* v, int64_t stride) {
  CacheView exchanged = c;
  exchanged.keys = c.values;
  exchanged.values = c.keys;
  store_kv_avx512(exchanged, page, head, slot, count, v, k, stride);
}

}  // namespace
}  // namespace olv
