// AMX tile products for prompt rows (GEMM and prefill attention), AVX-512 for the rest.
#include "attention_avx512.h"
#include "linear_avx512.h"
#include "measure.h"
#include "tiles.h"

namespace olv {
namespace {

// Blocks of 32 weight rows times 32 rows of x: four accumulator tiles, and each loaded tile is used twice.
constexpr int64_t kBlock = 32;
constexpr int64_t kKeptBytes = 1 << 20;  // of unpacked weights: half of an L2 cache, which two hyperthreads may share
constexpr int64_t kDepthBlock = 36;  // tiles of depth between loads and stores of the accumulators, at most

OLV_INLINE void zero_accumulators() {
  zero_tile<0>();
  zero_tile<1>();
  zero_tile<2>();
  zero_tile<3>();
}

// Accumulators [half of the left rows][half of the right rows], each a tile of 16 × 16 floats.
OLV_INLINE void load_accumulators(const float* c00, const float* c01, const float* c10, const float* c11) {
  load_tile<0>(c00, 64);
  load_tile<1>(c01, 64);
  load_tile<2>(c10, 64);
  load_tile<3>(c11, 64);
}

OLV_INLINE void store_accumulators(float* c00, float* c01, float* c10, float* c11) {
  store_tile<0>(c00);
  store_tile<1>(c01);
  store_tile<2>(c10);
  store_tile<3>(c11);
}

// Sixteen cache lines, `step` elements apart.
OLV_INLINE void prefetch_rows(const uint16_t* p, int64_t step) {
#pragma GCC unroll 16
  for (int row = 0; row < 16; ++row) __builtin_prefetch(p + step * row);
}

// The operands of a block: two panels of weight tiles and two of x tiles, `half` elements apart.
struct Operands {
  const uint16_t *a, *b;
  int64_t half;
  const uint16_t* next;  // the weight tiles of the block after it; after the last one, its own
};

// Adds the products of the two weight tiles and two x tiles at t, of `depth`, from packed panels. Those of two steps later are
// prefetched to L1, of both operands and between the products: where two hyperthreads share the tile unit, loads of tiles that
// follow each other closely slow it down even if they hit L1.
OLV_INLINE void multiply_add_step(const Operands& from, int64_t t, int64_t depth) {
  constexpr int64_t ahead = 2;
  const uint16_t *a = from.a + t * kTile, *b = from.b + t * kTile;
  const uint16_t* next_a = t + ahead < depth ? a + ahead * kTile : from.next + (t + ahead - depth) * kTile;
  const uint16_t* next_b = t + ahead < depth ? b + ahead * kTile : b + (ahead - depth) * kTile;
  load_tile<4>(a, 64);
  load_tile<6>(b, 64);
  prefetch_rows(next_a, 32);
  multiply_bf16<0, 4, 6>();
  load_tile<7>(b + from.half, 64);
  prefetch_rows(next_b, 32);
  multiply_bf16<1, 4, 7>();
  load_tile<5>(a + from.half, 64);
  prefetch_rows(next_a + from.half, 32);
  multiply_bf16<2, 5, 6>();
  prefetch_rows(next_b + from.half, 32);
  multiply_bf16<3, 5, 7>();
}

// c: 32 × 32 floats as four tiles [weight half][x half]. `wide`: whether there is a second panel of x. `overlap` is
// called every few tiles: its work is hidden behind the queued tile products.
template <class F>
inline void multiply_blocks(const Operands& from, int64_t depth, float* c, bool zero_init, bool wide, F&& overlap) {
  if (zero_init) zero_accumulators();
  else load_accumulators(c, c + 256, c + 512, c + 768);
  for (int64_t t = 0; t < depth && wide; ++t) {
    multiply_add_step(from, t, depth);
    if (t % 4 == 3) overlap();
  }
  for (int64_t t = 0; t < depth && !wide; ++t) {
    load_tile<4>(from.a + t * kTile, 64);
    load_tile<6>(from.b + t * kTile, 64);
    load_tile<5>(from.a + from.half + t * kTile, 64);
    multiply_bf16<0, 4, 6>();
    multiply_bf16<2, 5, 6>();
  }
  store_accumulators(c, c + 256, c + 512, c + 768);
}

// The epilogue of a block: stores its accumulators to y, a tile at a time.
struct Epilogue {
  const float *c = nullptr, *bias = nullptr;
  float* y = nullptr;
  int64_t stride = 0, rows = 0, columns = 0;
  int tile = 0;

  OLV_INLINE void store_tile() {
    if (!c || tile == 4) return;
    const int64_t row = 16 * (tile & 1), column = 16 * (tile >> 1);
    if (row < rows && column < columns)
      scatter_tile(c + 256 * tile, bias ? bias + column : nullptr, y + row * stride + column, stride,
                   smaller<int64_t>(16, rows - row), smaller<int64_t>(16, columns - column));
    ++tile;
  }
  OLV_INLINE void store_rest() {
    while (c && tile < 4) store_tile();
  }
};

inline void gemm_amx(const olv_weight& w, int64_t first, int64_t last, const Activations& x, const float* bias, float* y,
                     int64_t stride, void* scratch, bool unpacked) {
  const int64_t depth = tiles_of(w.k), half = depth * kTile;
  const int64_t passes = (depth + kDepthBlock - 1) / kDepthBlock, deep = (depth + passes - 1) / passes;
  // As many weight blocks at a time as fit the cache: they share each pass over x.
  const int64_t together = larger<int64_t>(1, smaller<int64_t>(kKeptRows / kBlock, kKeptBytes / (4 * half)));
  uint16_t* a = static_cast<uint16_t*>(scratch);
  float* c = reinterpret_cast<float*>(a + together * 2 * half);  // [together][1024]
  const int64_t x_blocks = (x.count + 15) / 16;
  configure_tiles();
  for (int64_t n = first; n < last; n += together * kBlock) {
    const int64_t blocks = smaller(together, (last - n + kBlock - 1) / kBlock);
    for (int64_t i = 0; i < 2 * blocks && !unpacked; ++i) weight_tiles(w, n + 16 * i, last, a + i * half);
    Epilogue epilogue;
    for (int64_t t = 0; t < x_blocks; t += 2) {
      const uint16_t* b = static_cast<const uint16_t*>(panel_of(w, x)) + t * half;
      for (int64_t start = 0; start < depth; start += deep)
        for (int64_t i = 0; i < blocks; ++i) {
          if (epilogue.c == c + 1024 * i) epilogue.store_rest();  // c is about to be overwritten
          const uint16_t *block = a + 2 * i * half + start * kTile, *next = i + 1 < blocks ? block + 2 * half : block;
          multiply_blocks({block, b + start * kTile, half, next}, smaller(deep, depth - start), c + 1024 * i, start == 0,
                          t + 1 < x_blocks, [&] { epilogue.store_tile(); });
          epilogue.store_rest();
          if (start + deep >= depth)
            epilogue = {c + 1024 * i, bias ? bias + n + kBlock * i : nullptr, y + 16 * t * stride + n + kBlock * i,
                        stride, x.count - 16 * t, last - n - kBlock * i};
        }
    }
    epilogue.store_rest();
  }
  release_tiles();
}

// Keys per step of the online softmax: many, because the outputs are loaded and stored once a step.
constexpr int64_t kTileKeys = 256;
static_assert(kTileKeys / kPage <= kDequantizedPages);

// Scores are in units of 1 / 256 of a power of two: their differences are the bits of bfloat16, but for the curve of 2^x.
constexpr float kUnits = 256;

// Sixteen query columns, half of a tile: queries, scores, probabilities and outputs.
struct Half {
  Columns columns;           // `max` is what exponentials are relative to: the maximum, or up to 8 powers of two below it
  int64_t at[16];            // where a column begins: floats from the task's q, and from its out
  uint16_t* q;               // [d / 32] tiles [dimension pair][16][2]
  float* score;              // [kTileKeys][16]
  uint16_t* probability;     // [kTileKeys / 32] tiles [key pair][16][2], in place of the scores
  float* out;                // [d][16]
};

// Which of sixteen columns there are, where so many are left.
OLV_INLINE __mmask16 columns_left(int left) { return __mmask16(left >= 16 ? 0xffff : left <= 0 ? 0 : (1u << left) - 1); }

// With the scale of the scores, and their unit.
inline void pack_queries(const AttentionTask& t, Half& h) {
  const __m512 scale = _mm512_set1_ps(t.scale * (1.44269504f * kUnits));
  for (int j = 0; j < t.cache->head_dim; j += 32) {
    __m512i pairs[16];
    for (int i = 0; i < 16; ++i) {
      pairs[i] = _mm512_setzero_si512();
      if (i >= h.columns.count) continue;
      const float* q = t.q + h.at[i] + j;
      pairs[i] = two_bf16(_mm512_mul_ps(_mm512_maskz_loadu_ps(columns_left(t.head_dim - j), q), scale),
                          _mm512_mul_ps(_mm512_maskz_loadu_ps(columns_left(t.head_dim - j - 16), q + 16), scale));
    }
    transpose(pairs);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(h.q + j / 32 * kTile + 32 * i, pairs[i]);
  }
}

// Columns [first, first + 16) of the task.
inline void begin(const AttentionTask& t, int first, Half& h) {
  set_columns(t, first, h.columns);
  for (int i = 0; i < h.columns.count; ++i) h.at[i] = query_of(t, first + i) - t.q;
  pack_queries(t, h);
  memset(h.out, 0, size_t(t.cache->head_dim) * 64);
}

// 2^(a / 256) and 2^(b / 256) in bfloat16, in pairs; 0 for less than 2^-127, and for NaN. a and b are at most 0. In integers of
// 16 bits, 32 at a time: where a / 256 is whole + f, 2^f is 1 + f less a parabola. With what the products and the average cut
// off, which its numbers allow for, the curve is within 0.15 %; with all that is rounded, a too, the error is 0.21 % in the mean
// square, where rounding the result alone has 0.17 %.
OLV_INLINE __m512i exp2_pairs(__m512 a, __m512 b) {
  const __m512i order = _mm512_set4_epi32(0x0f0e0706, 0x0d0c0504, 0x0b0a0302, 0x09080100);
  const __m512i both = _mm512_shuffle_epi8(_mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b)), order);
  const __m512i x = _mm512_min_epi16(both, _mm512_set1_epi16(-1));
  const __m512i f = _mm512_and_si512(x, _mm512_set1_epi16(255));  // the fraction, in 256ths
  const __m512i slope = _mm512_sub_epi16(_mm512_set1_epi16(22900),
                                         _mm512_mulhi_epu16(_mm512_slli_epi16(x, 8), _mm512_set1_epi16(22400)));
  const __m512i bits = _mm512_sub_epi16(x, _mm512_mulhi_epu16(slope, f));
  // To seven bits of mantissa; the exponent of 1 is 127, and x is negative: 65536 too large without a sign.
  return _mm512_subs_epu16(_mm512_avg_epu16(bits, _mm512_setzero_si512()), _mm512_set1_epi16(32768 - 127 * 128));
}

// What is subtracted from scores: more than the largest of them, so that the differences are negative.
OLV_INLINE __m512 top_of(__m512 max) { return _mm512_add_ps(max, _mm512_set1_ps(8 * kUnits + 1)); }

// As `online_softmax`, but exponentials go to h.probability, and their maximum lags behind: it is raised, and the outputs so
// far rescaled, only where a score exceeds it by 8 powers of two. A score that is NaN counts as masked.
inline __m512 online_softmax_tiles(Half& h, int64_t start, int64_t keys) {
  Columns& c = h.columns;
  bool unmasked = true;
  for (int i = 0; i < c.count; ++i) unmasked &= c.from[i] <= start && c.to[i] >= start + keys;
  if (!unmasked) {
    alignas(64) int32_t from[16], to[16];
    for (int i = 0; i < 16; ++i) {
      from[i] = int32_t(larger<int64_t>(-1, smaller<int64_t>(keys, c.from[i] - start)));
      to[i] = int32_t(larger<int64_t>(-1, smaller<int64_t>(keys, c.to[i] - start)));
    }
    for (int32_t j = 0; j < keys; ++j) {
      const __m512i at = _mm512_set1_epi32(j);
      const __mmask16 visible =
          _mm512_cmpge_epi32_mask(at, _mm512_load_si512(from)) & _mm512_cmplt_epi32_mask(at, _mm512_load_si512(to));
      _mm512_store_ps(h.score + 16 * j,
                      _mm512_mask_blend_ps(visible, _mm512_set1_ps(kLowest), _mm512_load_ps(h.score + 16 * j)));
    }
  }
  // A column that has seen no key yet has a maximum above the score of masked keys, so that their exponentials are 0.
  const __m512 least = _mm512_set1_ps(kLowest / 2), old = _mm512_max_ps(_mm512_loadu_ps(c.max), least);
  __m512 max[4] = {least, least, least, least}, sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  // The maximum of NaN and a number is the second operand.
  for (int64_t j = 0; j < keys; j += 4)
    for (int64_t i = 0; i < 4; ++i) max[i] = _mm512_max_ps(_mm512_load_ps(h.score + 16 * (j + i)), max[i]);
  const __m512 largest = _mm512_max_ps(_mm512_max_ps(max[0], max[1]), _mm512_max_ps(max[2], max[3]));
  const __m512 allowed = _mm512_add_ps(old, _mm512_set1_ps(8 * kUnits));
  const __m512 used = _mm512_mask_mov_ps(old, _mm512_cmp_ps_mask(largest, allowed, _CMP_GT_OQ), largest);
  const __m512 top = top_of(used);
  for (int64_t j = 0; j < keys; j += 4)
    for (int64_t i = 0; i < 2; ++i) {
      const float* s = h.score + 16 * (j + 2 * i);
      const __m512i p = exp2_pairs(_mm512_sub_ps(_mm512_load_ps(s), top), _mm512_sub_ps(_mm512_load_ps(s + 16), top));
      sum[i] = add_products(sum[i], p, _mm512_set1_epi16(0x3f80));
      _mm512_store_si512(h.probability + 16 * (j + 2 * i), p);
    }
  const __m512 difference = _mm512_mul_ps(_mm512_sub_ps(top_of(old), top), _mm512_set1_ps(0.693147181f / kUnits));
  const v16 factor = exp16(load<v16>(&difference));
  const __m512 rescale = load<__m512>(&factor);
  _mm512_storeu_ps(c.max, used);
  _mm512_storeu_ps(c.sum, _mm512_fmadd_ps(_mm512_loadu_ps(c.sum), rescale, _mm512_add_ps(sum[0], sum[1])));
  return rescale;
}

// The operands of four products: two tiles of keys or values, of sixteen rows each, and one of each half of the columns.
struct AttentionTiles {
  const uint16_t *rows, *first, *second;
};

// Adds the products. `stride`: elements between the rows. Those of the next step are prefetched to L1.
OLV_INLINE void multiply_add_tiles(const AttentionTiles& from, int64_t stride, const AttentionTiles& next) {
  load_tile<4>(from.rows, 2 * stride);
  load_tile<6>(from.first, 64);
  prefetch_rows(next.rows, stride);
  multiply_bf16<0, 4, 6>();
  load_tile<7>(from.second, 64);
  prefetch_rows(next.first, 32);
  multiply_bf16<1, 4, 7>();
  load_tile<5>(from.rows + 16 * stride, 2 * stride);
  prefetch_rows(next.rows + 16 * stride, stride);
  multiply_bf16<2, 5, 6>();
  prefetch_rows(next.second, 32);
  multiply_bf16<3, 5, 7>();
}

// Two halves of query columns, and the keys that any of them sees: [from, to).
struct QueryTiles {
  Half half[2];
  int64_t from, to;
};

// One block of keys for two halves: scores, their softmax, and the values added to the outputs.
inline void attend_block(const AttentionTask& t, QueryTiles& q, int64_t start) {
  const int d = t.cache->head_dim, deep = d / 32;
  Half* half = q.half;
  const int64_t pages = (smaller(kTileKeys, q.to - start) + kPage - 1) / kPage;
  // Pages before the window may have been freed: their probabilities are zero.
  const int64_t skip = larger<int64_t>(0, (q.from - start) / kPage);
  const uint16_t *keys[kTileKeys / kPage + 1], *values[kTileKeys / kPage];  // and what follows the keys, to prefetch
  for (int64_t p = 0; p < pages; ++p) {
    if (p < skip) {
      for (int i = 0; i < 2; ++i) memset(half[i].score + 16 * kPage * p, 0, kPage * 64);
      continue;
    }
    keys[p] = key_page(t, start + p * kPage);
    values[p] = value_page(t, start + p * kPage);
  }
  keys[pages] = values[skip];
  for (int64_t p = skip; p < pages; ++p) {
    zero_accumulators();
    const auto tiles = [&](int i) {  // of 32 columns; after the last ones, the next page's
      const int at = i < deep ? i : 0;
      return AttentionTiles{keys[p + (i == deep)] + 32 * at, half[0].q + at * kTile, half[1].q + at * kTile};
    };
    for (int i = 0; i < deep; ++i) multiply_add_tiles(tiles(i), d, tiles(i + 1));
    const int64_t row = 16 * kPage * p;
    store_accumulators(half[0].score + row, half[1].score + row, half[0].score + row + 256, half[1].score + row + 256);
  }
  for (int i = 0; i < 2; ++i) {
    Half& h = half[i];
    if (h.columns.count <= 0) continue;
    const __m512 factor = online_softmax_tiles(h, start, pages * kPage);
    if (_mm512_cmp_ps_mask(factor, _mm512_set1_ps(1), _CMP_NEQ_UQ))
      for (int j = 0; j < d; ++j) _mm512_store_ps(h.out + 16 * j, _mm512_mul_ps(_mm512_load_ps(h.out + 16 * j), factor));
  }
  for (int i = 0; i < t.head_dim; i += 32) {
    float *o0 = half[0].out + 16 * i, *o1 = half[1].out + 16 * i;
    const auto tiles = [&](int64_t p) {  // of a page; after the last one, the next 32 dimensions of the first
      const int64_t at = p < pages ? p : skip;
      return AttentionTiles{values[at] + (p < pages ? i : i + 32) * kPage, half[0].probability + at * kTile,
                            half[1].probability + at * kTile};
    };
    if (t.head_dim <= i + 16) {  // the second sixteen dimensions are padding
      load_tile<0>(o0, 64);
      load_tile<1>(o1, 64);
      for (int64_t p = skip; p < pages; ++p) {
        const AttentionTiles from = tiles(p);
        load_tile<4>(from.rows, 2 * kPage);
        load_tile<6>(from.first, 64);
        multiply_bf16<0, 4, 6>();
        load_tile<7>(from.second, 64);
        multiply_bf16<1, 4, 7>();
      }
      store_tile<0>(o0);
      store_tile<1>(o1);
      continue;
    }
    load_accumulators(o0, o1, o0 + 256, o1 + 256);
    for (int64_t p = skip; p < pages; ++p) multiply_add_tiles(tiles(p), kPage, tiles(p + 1));
    store_accumulators(o0, o1, o0 + 256, o1 + 256);
  }
}

// Sixteen columns of outputs, to their rows.
inline void store_outputs(const AttentionTask& t, const Half& h) {
  const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1), _mm512_loadu_ps(h.columns.sum));
  for (int j = 0; j < t.cache->head_dim && h.columns.count > 0; j += 16) {
    __m512i r[16];
    for (int row = 0; row < 16; ++row)
      r[row] = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(h.out + 16 * (j + row)), inverse));
    transpose(r);
    for (int c = 0; c < h.columns.count; ++c)
      _mm512_mask_storeu_epi32(t.out + h.at[c] + j, columns_left(t.head_dim - j), r[c]);
  }
}

// Up to kTaskColumns columns go through the keys together, a block at a time, which they find in the cache.
inline void prefill_attention_amx(const AttentionTask& t, void* scratch) {
  const int d = t.cache->head_dim;
  if (d % 32 || t.cache->type == OLV_F32) return prefill_attention(t, scratch);
  uint8_t* memory = static_cast<uint8_t*>(scratch);
  const auto allocate = [&](int64_t bytes) {
    uint8_t* start = memory;
    memory += (bytes + 63) / 64 * 64;
    return start;
  };
  constexpr int most = kTaskColumns / 32;
  QueryTiles queries[most];
  float* score = reinterpret_cast<float*>(allocate(2 * kTileKeys * 64));
  static_assert(2 * kTileKeys * 64 + most * 2 * kLongestHead * (kTile / 16 + 64) <= kScratch);
  for (QueryTiles& q : queries)
    for (int i = 0; i < 2; ++i) {
      Half& h = q.half[i];
      h.q = reinterpret_cast<uint16_t*>(allocate(d / 32 * kTile * 2));
      h.score = score + i * kTileKeys * 16;
      h.probability = reinterpret_cast<uint16_t*>(h.score);
      h.out = reinterpret_cast<float*>(allocate(int64_t(d) * 64));
    }
  configure_tiles();
  const int columns = t.rows * t.q_per_kv;
  for (int first = 0; first < columns; first += kTaskColumns) {
    const int used = smaller(most, (columns - first + 31) / 32);
    int64_t from = INT64_MAX, to = 0;
    for (int n = 0; n < used; ++n) {
      QueryTiles& q = queries[n];
      q.from = INT64_MAX;
      q.to = 0;
      for (int i = 0; i < 2; ++i) {
        const Columns& c = q.half[i].columns;
        begin(t, first + 32 * n + 16 * i, q.half[i]);
        for (int j = 0; j < c.count; ++j) {
          q.from = smaller(q.from, c.from[j]);
          q.to = larger(q.to, c.to[j]);
        }
      }
      from = smaller(from, q.from);
      to = larger(to, q.to);
    }
    for (int64_t start = from / kTileKeys * kTileKeys; start < to; start += kTileKeys)
      for (int n = 0; n < used; ++n)
        if (start < queries[n].to && start + kTileKeys > queries[n].from) attend_block(t, queries[n], start);
    for (int n = 0; n < used; ++n)
      for (int i = 0; i < 2; ++i) store_outputs(t, queries[n].half[i]);
  }
  release_tiles();
}

// Tile products from registers: the arithmetic peak, without loads.
inline double tile_peak(int kind) {
  if (kind != kPeakInt8 && kind != kPeakBf16) return 0;
  constexpr int64_t rounds = 1 << 16;
  configure_tiles();
  zero_accumulators();
  zero_tile<4>();
  zero_tile<5>();
  for (int64_t i = 0; i < rounds; ++i) {
    if (kind == kPeakInt8) {
      multiply_int8<0, 4, 5>();
      multiply_int8<1, 4, 5>();
      multiply_int8<2, 4, 5>();
      multiply_int8<3, 4, 5>();
    } else {
      multiply_bf16<0, 4, 5>();
      multiply_bf16<1, 4, 5>();
      multiply_bf16<2, 4, 5>();
      multiply_bf16<3, 4, 5>();
    }
  }
  release_tiles();
  return double(rounds) * 4 * 16 * 16 * (kind == kPeakInt8 ? 64 : 32) * 2;
}

}  // namespace

// What has nothing to do with tiles is that of AVX-512, compiled there.
const Kernels& amx_kernels() {
  static const Kernels kernels = [] {
    Kernels k = avx512_kernels();
    k.name = "amx";
    k.pack = pack_avx512;
    k.gemm = gemm_amx;
    k.prefill_attention = prefill_attention_amx;
    k.decode_attention = decode_attention_avx512;
    k.store_kv = store_kv_avx512;
    k.peak = tile_peak;
    k.panel_bytes = 2 * kTile;
    k.kept_bytes = kKeptBytes;
    k.takes_codes = nullptr;  // prompt rows are in bfloat16
    k.quantize_prompt = nullptr;
    k.one_kind = false;
    return k;
  }();
  return kernels;
}

}  // namespace olv
