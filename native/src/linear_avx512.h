// GEMV in AVX-512 (int8 dot products with VNNI), and bfloat16 packing for AMX GEMM.
#pragma once
#include "unpack_grids_avx512.h"

namespace olv {
namespace {

// Stores the results of up to four weight rows, [first, last), for each row of x.
template <int count>
OLV_INLINE void store_sums(const __m512 (&done)[count][4], int64_t first, int64_t last, float* y, int64_t stride) {
  for (int r = 0; r < count; ++r)
    _mm_mask_storeu_ps(y + r * stride + first, __mmask8((1u << (last - first)) - 1), sums_of_four(done[r]));
}

// Adds the dot product of a super-block and one of x, in the lanes of the mask.
OLV_INLINE __m512 add_super_block(__m512 acc, const SuperBlock512& s, const int8_t* code, const float* scale,
                                  const float* sum, __mmask16 lanes = 0xffff) {
  __m512i dot = _mm512_setzero_si512();
  for (int c = 0; c < 4; ++c) dot = _mm512_dpbusd_epi32(dot, s.code[c], _mm512_load_si512(code + 64 * c));
  acc = _mm512_mask3_fmadd_ps(s.min, _mm512_load_ps(sum), acc, lanes);
  return _mm512_mask3_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(s.scale, _mm512_load_ps(scale)), acc, lanes);
}

// Rows that end in half a super-block, of blocks of 32: two rows are whole super-blocks. Those of Gemma 3 1B have 1,152
// elements; in longer ones the end matters less.
constexpr int64_t kPairBlocks = 9;
constexpr bool has_pairs(int type, int64_t k) {
  return kTypes[type].block == 32 && k % kSuperBlock == kSuperBlock / 2 && 2 * k <= kPairBlocks * kSuperBlock;
}

// One generated row with two weight rows at a time from `first` on; returns the row after them, `last` or the one before.
// x is repeated as the rows are: lanes of the second row are rotated by eight, which changes no bit of their sum.
template <int type>
int64_t gemv_pairs(const olv_weight& w, int64_t first, int64_t last, const int8_t* x_code, const float* x_scale,
                   const float* x_sum, float* y) {
  const int64_t middle = w.k / kSuperBlock, bytes = row_bytes(w);  // the super-block that has parts of both rows
  alignas(64) int8_t code[kPairBlocks][kSuperBlock];
  alignas(64) float scale[kPairBlocks][kGroups], sum[kPairBlocks][kGroups];
  const auto repeat = [&](const void* x, int64_t size, int64_t at, void* to) {  // registers `at` of super-blocks of `size`
    const auto from = [&](int64_t i) { return _mm512_load_si512(static_cast<const uint8_t*>(x) + i * size + 64 * at); };
    for (int64_t i = 0; i <= 2 * middle; ++i) {
      __m512i lanes = from(i <= middle ? i : i - middle - 1);
      if (i == middle) lanes = _mm512_shuffle_i64x2(lanes, from(0), 0x44);
      if (i > middle) lanes = _mm512_shuffle_i64x2(lanes, from(i - middle), 0x4e);
      _mm512_store_si512(static_cast<uint8_t*>(to) + i * size + 64 * at, lanes);
    }
  };
  for (int c = 0; c < 4; ++c) repeat(x_code, kSuperBlock, c, code);
  repeat(x_scale, 64, 0, scale);
  repeat(x_sum, 64, 0, sum);
  __m512 done[1][4];
  int64_t n = first;
  for (; n + 2 <= last; n += 2) {
    const uint8_t* row = w.data + n * bytes;
    __m512 acc[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    SuperBlock512 s;
    const auto unpack_next = [&](int64_t i) {
      unpack<type>(row + i * super_block_bytes(type), s);
      prefetch<(super_block_bytes(type) + 63) / 64>(row + i * super_block_bytes(type));
    };
    for (int half = 0; half < 2; ++half) {
      for (int64_t i = half * (middle + 1); i < half * (middle + 1) + middle; ++i) {
        unpack_next(i);
        acc[half] = add_super_block(acc[half], s, code[i], scale[i], sum[i]);
      }
      if (half) continue;
      unpack_next(middle);
      acc[0] = add_super_block(acc[0], s, code[middle], scale[middle], sum[middle], 0x00ff);
      acc[1] = add_super_block(acc[1], s, code[middle], scale[middle], sum[middle], 0xff00);
    }
    const int64_t at = (n - first) % 4;
    done[0][at] = acc[0];
    done[0][at + 1] = acc[1];
    if (at == 2 || n + 4 > last) store_sums(done, n - at, n + 2, y, 0);
  }
  return n;
}

// `count` generated rows with weight rows [first, last). Each row goes through the same operations in the same order,
// whatever their number.
template <int type, int count>
void gemv_codes(const olv_weight& w, int64_t first, int64_t last, const Activations& x, int64_t r0, float* y, int64_t stride) {
  const int64_t super_blocks = super_blocks_of(w.k), whole = w.k / kSuperBlock, bytes = row_bytes(w);
  const int8_t* const codes = x.code + r0 * super_blocks * kSuperBlock;
  const float* const x_scales = x.scale + r0 * super_blocks * kGroups;
  const float* const x_sums = x.sum + r0 * super_blocks * kGroups;
  if constexpr (count == 1 && kTypes[type].block == 32)
    if (has_pairs(type, w.k)) first = gemv_pairs<type>(w, first, last, codes, x_scales, x_sums, y + r0 * stride);
  __m512 done[count][4];  // four weight rows share a horizontal sum
  for (int64_t n = first; n < last; ++n) {
    const uint8_t* row = w.data + n * bytes;
    const uint8_t* scales = type == OLV_GROUPED ? w.scales + 4 * (n * (w.k / w.group)) : nullptr;
    __m512 acc[count];
    for (int r = 0; r < count; ++r) acc[r] = _mm512_setzero_ps();
    const auto add = [&](const SuperBlock512& s, int64_t i) {
      for (int r = 0; r < count; ++r) {
        const int64_t at = r * super_blocks + i;
        acc[r] = add_super_block(acc[r], s, codes + at * kSuperBlock, x_scales + at * kGroups, x_sums + at * kGroups);
      }
    };
    SuperBlock512 s;
    for (int64_t i = 0; i < whole; ++i) {
      unpack_whole<type>(w, row, scales, i, s);
      prefetch<(super_block_bytes(type) + 63) / 64>(row + i * super_block_bytes(type));
      add(s, i);
    }
    if (whole < super_blocks) {
      unpack_tail<type>(w, row, scales, whole, s);
      add(s, whole);
    }
    for (int r = 0; r < count; ++r) done[r][(n - first) % 4] = acc[r];
    if ((n - first) % 4 == 3 || n + 1 == last) store_sums(done, n - (n - first) % 4, n + 1, y + r0 * stride, stride);
  }
}

// Sixteen weights from element i on, as floats; zeros where the mask is 0.
template <int type>
OLV_INLINE __m512 float_weights(const uint8_t* row, int64_t i, __mmask16 mask) {
  if constexpr (type == OLV_F32) return _mm512_maskz_loadu_ps(mask, row + 4 * i);
  const __m256i half = _mm256_maskz_loadu_epi16(mask, row + 2 * i);
  if constexpr (type == OLV_F16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

template <int type, int count>
void gemv_floats(const olv_weight& w, int64_t first, int64_t last, const Activations& x, int64_t r0, float* y, int64_t stride) {
  const int64_t bytes = row_bytes(w);
  __m512 done[count][4];
  for (int64_t n = first; n < last; ++n) {
    const uint8_t* row = w.data + n * bytes;
    // Two accumulators a row, to hide the latency of the additions.
    __m512 even[count], odd[count];
    for (int r = 0; r < count; ++r) even[r] = odd[r] = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + 32 <= w.k; i += 32) {
      const __m512 a = float_weights<type>(row, i, 0xffff), b = float_weights<type>(row, i + 16, 0xffff);
      prefetch<kTypes[type].bytes / 2>(row + i * kTypes[type].bytes);
      for (int r = 0; r < count; ++r) {
        const float* v = x.values + (r0 + r) * x.k + i;
        even[r] = _mm512_fmadd_ps(a, _mm512_loadu_ps(v), even[r]);
        odd[r] = _mm512_fmadd_ps(b, _mm512_loadu_ps(v + 16), odd[r]);
      }
    }
    for (; i < w.k; i += 16) {
      const __mmask16 mask = __mmask16(w.k - i >= 16 ? 0xffff : (1u << (w.k - i)) - 1);
      const __m512 a = float_weights<type>(row, i, mask);
      for (int r = 0; r < count; ++r)
        even[r] = _mm512_fmadd_ps(a, _mm512_maskz_loadu_ps(mask, x.values + (r0 + r) * x.k + i), even[r]);
    }
    for (int r = 0; r < count; ++r) done[r][(n - first) % 4] = _mm512_add_ps(even[r], odd[r]);
    if ((n - first) % 4 == 3 || n + 1 == last) store_sums(done, n - (n - first) % 4, n + 1, y + r0 * stride, stride);
  }
}

inline void gemv_avx512(const olv_weight& w, int64_t first, int64_t last, const Activations& x, float* y, int64_t stride) {
  if (is_expanded(w.type))
    return with_expanded_type(w.type, [&]<int type>() { gemv_codes<type, 1>(w, first, last, x, 0, y, stride); });
  if (is_quantized(w.type) && !has_super_blocks(w)) return gemv(w, first, last, x, y, stride);
  with_type(w.type, [&]<int type>() {
    for (int64_t r0 = 0; r0 < x.count; r0 += 8) {
      const auto run = [&]<int count>() {
        if constexpr (type > OLV_BF16) gemv_codes<type, count>(w, first, last, x, r0, y, stride);
        else gemv_floats<type, count>(w, first, last, x, r0, y, stride);
      };
      with_up_to_8(x.count - r0, run);
    }
  });
}

// ---- Packing for prompt rows -----------------------------------------------------------------------------------
// Tiles are 1 KB. A weight tile is 16 rows of 32 columns; an activation tile is the transpose in pairs (VNNI layout):
// [column pair][16 rows][2]. Both are operands of AMX tile products, and of vdpbf16ps.

constexpr int64_t kTile = 512;  // bfloat16 a tile

OLV_INLINE __m512i two_bf16(__m512 low, __m512 high) {
#if defined(__AVX512BF16__) && !defined(OLV_EMULATE_TILES)
  const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
  return load<__m512i>(&both);
#else
  return _mm512_inserti64x4(_mm512_castsi256_si512(to_bf16(low)), to_bf16(high), 1);
#endif
}

// Interleaves the two halves: 16-bit words 0, 16, 1, 17, …
OLV_INLINE __m512i interleave(__m512i x) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20,
                                         4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, x);
}

// With super-blocks, columns are permuted to the order in which lanes unpack them: in a super-block of G groups, element
// 16·g + i is column i·G + g. Without, they keep their order.
inline void pack_avx512(const float* x, int64_t stride, int64_t rows, int64_t first, int64_t last, int64_t k, bool super_blocks,
                        void* panel) {
  uint16_t* p = static_cast<uint16_t*>(panel);
  for (int64_t tile = first / 32; tile < tiles_of(last); ++tile) {
    __m512i pairs[16];
    for (int64_t t = 0; t < 16; ++t) {
      pairs[t] = _mm512_setzero_si512();
      if (t < rows) {
        const int64_t left = k - 32 * tile;
        const __mmask16 a = __mmask16(left >= 16 ? 0xffff : (1u << left) - 1);
        const __mmask16 b = __mmask16(left >= 32 ? 0xffff : left <= 16 ? 0 : (1u << (left - 16)) - 1);
        const float* v = x + t * stride + 32 * tile - first;
        pairs[t] = two_bf16(_mm512_maskz_loadu_ps(a, v), _mm512_maskz_loadu_ps(b, v + 16));
        if (super_blocks) pairs[t] = interleave(pairs[t]);
      }
    }
    transpose(pairs);
    if (super_blocks) {  // pair i holds element i of groups 2·(tile % 8) and 2·(tile % 8) + 1
      const int64_t step = smaller<int64_t>(8, tiles_of(k) - tile / 8 * 8);
      uint16_t* out = p + tile / 8 * 8 * kTile + tile % 8 * 32;
      for (int i = 0; i < 16; ++i) _mm512_store_si512(out + i * step * 32, pairs[i]);
    } else {
      for (int i = 0; i < 16; ++i) _mm512_store_si512(p + tile * kTile + 32 * i, pairs[i]);
    }
  }
}

// Generated rows: int8 in groups of 16, in the lane order of SuperBlock512.
inline void quantize_avx512(const float* x, int64_t k, int8_t* code, float* scale, float* sum) {
  for (int64_t first = 0; first < k; first += kSuperBlock, code += kSuperBlock, scale += kGroups, sum += kGroups) {
    __m512i v[16];
    for (int64_t g = 0; g < 16; ++g) {
      const int64_t left = k - first - 16 * g;
      const __mmask16 mask = __mmask16(left >= 16 ? 0xffff : left <= 0 ? 0 : (1u << left) - 1);
      v[g] = _mm512_castps_si512(_mm512_maskz_loadu_ps(mask, x + first + 16 * g));
    }
    transpose(v);  // element i of every group
    __m512 largest = _mm512_setzero_ps();
    for (int i = 0; i < 16; ++i) largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_castsi512_ps(v[i])));
    const __mmask16 some = _mm512_cmp_ps_mask(largest, _mm512_setzero_ps(), _CMP_GT_OQ);
    const __m512 inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(127), largest);
    const __m512 step = _mm512_mul_ps(largest, _mm512_set1_ps(1 / 127.f));
    __m512i total = _mm512_setzero_si512();
    for (int c = 0; c < 4; ++c) {
      __m512i word = _mm512_setzero_si512();
      for (int b = 0; b < 4; ++b) {
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(v[4 * c + b]), inverse));
        total = _mm512_add_epi32(total, q);
        word = _mm512_or_si512(word, _mm512_slli_epi32(_mm512_and_si512(q, _mm512_set1_epi32(255)), 8 * b));
      }
      _mm512_store_si512(code + 64 * c, word);
    }
    _mm512_store_ps(scale, step);
    _mm512_store_ps(sum, _mm512_mul_ps(step, _mm512_cvtepi32_ps(total)));
  }
}

// Unpacks rows [n, n + 16) of the weight into tiles, one every 1 KB; rows from `last` on are padding, zeros. Eight tiles, or a
// super-block, of all rows at a time: the tiles are whole before they leave L1.
template <int type>
inline void weight_tiles_of(const olv_weight& w, int64_t n, int64_t last, uint16_t* tiles) {
  const int64_t count = tiles_of(w.k), bytes = row_bytes(w);
  const int64_t rows = last > n ? smaller<int64_t>(16, last - n) : 0;
  constexpr int64_t step = type <= OLV_BF16 ? kSuperBlock * kTypes[type].bytes : super_block_bytes(type);
  for (int64_t i = 0; i < super_blocks_of(w.k); ++i) {
    uint16_t* to = tiles + 8 * i * kTile;
    const int64_t here = smaller<int64_t>(8, count - 8 * i);
    for (int64_t r = 0; r < rows; ++r, to += 32) {
      const uint8_t *row = w.data + (n + r) * bytes, *p = row + i * step;
      // What follows in the row to L1, the same of the next sixteen rows to L2.
      for (int64_t line = 0; line < (step + 63) / 64; ++line) {
        __builtin_prefetch(p + step + 64 * line, 0, 3);
        __builtin_prefetch(p + 16 * bytes + 64 * line, 0, 2);
      }
      if constexpr (type <= OLV_BF16) {
        for (int64_t t = 0; t < here; ++t) {
          const int64_t left = w.k - 32 * (8 * i + t);
          if constexpr (type == OLV_BF16) {
            const __mmask32 mask = left >= 32 ? ~0u : (1u << left) - 1;
            _mm512_store_si512(to + t * kTile, _mm512_maskz_loadu_epi16(mask, p + 64 * t));
          } else {
            const __mmask16 a = __mmask16(left >= 16 ? 0xffff : (1u << left) - 1);
            const __mmask16 b = __mmask16(left >= 32 ? 0xffff : left <= 16 ? 0 : (1u << (left - 16)) - 1);
            _mm512_store_si512(to + t * kTile, two_bf16(float_weights<type>(p, 32 * t, a), float_weights<type>(p, 32 * t + 16, b)));
          }
        }
      } else {
        const uint8_t* scales = type == OLV_GROUPED ? w.scales + 4 * ((n + r) * (w.k / w.group)) : nullptr;
        SuperBlock512 s;
        if (w.k - i * kSuperBlock >= kSuperBlock) unpack_whole<type>(w, row, scales, i, s);
        else unpack_tail<type>(w, row, scales, i, s);
        // Element j of every group: a lane is a group, as in the scales.
        const auto values = [&](int j) {
          const __m512i code = _mm512_and_si512(_mm512_srli_epi32(s.code[j / 4], 8 * (j % 4)), _mm512_set1_epi32(255));
          return _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), s.scale, s.min);
        };
        if (here == 8) {
#pragma GCC unroll 8
          for (int t = 0; t < 8; ++t) _mm512_store_si512(to + t * kTile, two_bf16(values(2 * t), values(2 * t + 1)));
          continue;
        }
        alignas(64) uint16_t tail[kSuperBlock + 16];
#pragma GCC unroll 16
        for (int j = 0; j < 16; ++j)
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(tail + j * 2 * here), to_bf16(values(j)));
        for (int64_t t = 0; t < here; ++t) _mm512_store_si512(to + t * kTile, _mm512_load_si512(tail + 32 * t));
      }
    }
    for (int64_t r = rows; r < 16; ++r, to += 32)
      for (int64_t t = 0; t < here; ++t) _mm512_store_si512(to + t * kTile, _mm512_setzero_si512());
  }
}

// For qwen3.c's int8 with a group size that is not a multiple of 16: through floats.
inline void weight_tiles_generic(const olv_weight& w, int64_t n, int64_t last, uint16_t* tiles) {
  float v[kSuperBlock];
  for (int64_t r = 0; r < 16; ++r)
    for (int64_t i = 0; i < super_blocks_of(w.k); ++i) {
      if (n + r < last) unpack_floats<OLV_GROUPED>(w, n + r, i, v);
      else memset(v, 0, sizeof v);
      for (int64_t t = 0; t < 8 && 8 * i + t < tiles_of(w.k); ++t)
        for (int64_t j = 0; j < 32; ++j) tiles[(8 * i + t) * kTile + 32 * r + j] = f32_to_bf16(v[32 * t + j]);
    }
}

// Stores a tile of accumulators c [16 weight rows][16 rows of x] to y, transposed: rows of y are rows of x. `bias` may be
// null.
OLV_INLINE void scatter_tile(const float* c, const float* bias, float* y, int64_t stride, int64_t rows, int64_t columns) {
  __m512i r[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(c + 16 * i);
  transpose(r);
  const __mmask16 mask = __mmask16((1u << columns) - 1);
  if (bias) {
    const __m512 added = _mm512_maskz_loadu_ps(mask, bias);
    for (int64_t t = 0; t < rows; ++t)
      _mm512_mask_storeu_ps(y + t * stride, mask, _mm512_add_ps(_mm512_castsi512_ps(r[t]), added));
    return;
  }
  for (int64_t t = 0; t < rows; ++t) _mm512_mask_storeu_epi32(y + t * stride, mask, r[t]);
}

inline void weight_tiles(const olv_weight& w, int64_t n, int64_t last, uint16_t* tiles) {
  if (is_quantized(w.type) && !has_super_blocks(w)) return weight_tiles_generic(w, n, last, tiles);
  with_type(w.type, [&]<int type>() { weight_tiles_of<type>(w, n, last, tiles); });
}

}  // namespace
}  // namespace olv
