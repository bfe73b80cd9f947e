// AMX tile products for prompt rows (GEMM and prefill attention), AVX-512 for the rest.
#include "attention_avx512.h"
#include "linear_avx512.h"
#include "measure.h"

namespace olv {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t columns[16] = {};  // bytes a row
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Eight tiles of 16 rows of 64 bytes. In assembly with the whole struct as operand: gcc 12's intrinsic declares only
// the first eight bytes as read, so the stores to the rest may be dropped.
inline void configure_tiles() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.columns[i] = 64;
    config.rows[i] = 16;
  }
  asm volatile("ldtilecfg %0" : : "m"(config));
}

inline void release_tiles() { asm volatile("tilerelease"); }

// Blocks of 32 weight rows times 32 rows of x: four accumulator tiles, and each loaded tile is used twice.
constexpr int64_t kBlock = 32;
constexpr int64_t kKeptBytes = 1 << 20;  // of unpacked weights: half of an L2 cache, which two hyperthreads may share
constexpr int64_t kDepthBlock = 36;  // tiles of depth between loads and stores of the accumulators, at most

OLV_INLINE void zero_accumulators() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Accumulators [half of the left rows][half of the right rows], each a tile of 16 × 16 floats.
OLV_INLINE void load_accumulators(const float* c00, const float* c01, const float* c10, const float* c11) {
  _tile_loadd(0, c00, 64);
  _tile_loadd(1, c01, 64);
  _tile_loadd(2, c10, 64);
  _tile_loadd(3, c11, 64);
}

OLV_INLINE void store_accumulators(float* c00, float* c01, float* c10, float* c11) {
  _tile_stored(0, c00, 64);
  _tile_stored(1, c01, 64);
  _tile_stored(2, c10, 64);
  _tile_stored(3, c11, 64);
}

template <int lines>
OLV_INLINE void prefetch_lines(const uint16_t* p) {
#pragma GCC unroll 16
  for (int line = 0; line < lines; ++line) __builtin_prefetch(p + 32 * line);
}

// Adds the products of two left tiles, whose rows are `stride` bytes apart, and two right tiles. The 2 KB at `ahead` are
// prefetched to L1.
OLV_INLINE void multiply_add_tiles(const uint16_t* a0, const uint16_t* a1, int64_t stride, const uint16_t* b0,
                                   const uint16_t* b1, const uint16_t* ahead) {
  _tile_loadd(4, a0, stride);
  _tile_loadd(6, b0, 64);
  prefetch_lines<8>(ahead);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, b1, 64);
  prefetch_lines<8>(ahead + 8 * 32);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, a1, stride);
  prefetch_lines<8>(ahead + 16 * 32);
  _tile_dpbf16ps(2, 5, 6);
  prefetch_lines<8>(ahead + 24 * 32);
  _tile_dpbf16ps(3, 5, 7);
}

// The operands of a block: two panels of weight tiles and two of x tiles, `half` elements apart.
struct Operands {
  const uint16_t *a, *b;
  int64_t half;
  const uint16_t* next;  // the weight tiles of the block after it; after the last one, its own
};

// The same for the tiles at t, of `depth`, from packed panels. Those of two steps later are prefetched to L1, of both operands
// and between the products: where two hyperthreads share the tile unit, loads of tiles that follow each other closely slow it
// down even if they hit L1.
OLV_INLINE void multiply_add_step(const Operands& from, int64_t t, int64_t depth) {
  constexpr int64_t ahead = 2;
  const uint16_t *a = from.a + t * kTile, *b = from.b + t * kTile;
  const uint16_t* next_a = t + ahead < depth ? a + ahead * kTile : from.next + (t + ahead - depth) * kTile;
  const uint16_t* next_b = t + ahead < depth ? b + ahead * kTile : b + (ahead - depth) * kTile;
  _tile_loadd(4, a, 64);
  _tile_loadd(6, b, 64);
  prefetch_lines<16>(next_a);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, b + from.half, 64);
  prefetch_lines<16>(next_b);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, a + from.half, 64);
  prefetch_lines<16>(next_a + from.half);
  _tile_dpbf16ps(2, 5, 6);
  prefetch_lines<16>(next_b + from.half);
  _tile_dpbf16ps(3, 5, 7);
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
    _tile_loadd(4, from.a + t * kTile, 64);
    _tile_loadd(6, from.b + t * kTile, 64);
    _tile_loadd(5, from.a + from.half + t * kTile, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
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

// Sixteen query columns, half of a tile: queries, scores, probabilities and outputs.
struct Half {
  Columns columns;
  uint16_t* q;      // [d / 32] tiles [dimension pair][16][2]
  float* score;     // [kKeyBlock][16]
  uint16_t* probability;  // [kKeyBlock / 32] tiles [key pair][16][2]
  float* out;       // [d][16]
};

// Which of sixteen columns there are, where so many are left.
OLV_INLINE __mmask16 columns_left(int left) { return __mmask16(left >= 16 ? 0xffff : left <= 0 ? 0 : (1u << left) - 1); }

// With the scale of the scores, and log2(e): the softmax is in powers of two.
inline void pack_queries(const AttentionTask& t, int first, Half& h) {
  const int d = t.cache->head_dim;
  const __m512 scale = _mm512_set1_ps(t.scale * 1.44269504f);
  for (int j = 0; j < d; j += 32) {
    __m512i pairs[16];
    for (int i = 0; i < 16; ++i) {
      pairs[i] = _mm512_setzero_si512();
      if (i >= h.columns.count) continue;
      const float* q = query_of(t, first + i) + j;
      pairs[i] = two_bf16(_mm512_mul_ps(_mm512_maskz_loadu_ps(columns_left(t.head_dim - j), q), scale),
                          _mm512_mul_ps(_mm512_maskz_loadu_ps(columns_left(t.head_dim - j - 16), q + 16), scale));
    }
    transpose(pairs);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(h.q + j / 32 * kTile + 32 * i, pairs[i]);
  }
}

// 2^x for x ≤ 0 with an error of up to 5e-5 of it, which is rounded to bfloat16. 0 on underflow.
OLV_INLINE __m512 exp2_to_bf16(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), left = _mm512_sub_ps(x, whole);
  __m512 sum = _mm512_set1_ps(9.6181291e-3f);
  const float rest[] = {5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.f};
  for (const float c : rest) sum = _mm512_fmadd_ps(sum, left, _mm512_set1_ps(c));
  return _mm512_scalef_ps(sum, whole);
}

// As `online_softmax`, for scores with the scale and log2(e) in the queries already. The probabilities go to
// h.probability, in bfloat16, in pairs of keys.
inline __m512 online_softmax_tiles(Half& h, int64_t start, int64_t keys) {
  Columns& c = h.columns;
  bool unmasked = true;
  for (int i = 0; i < c.count; ++i) unmasked &= c.from[i] <= start && c.to[i] >= start + keys;
  // A column that has seen no key yet has a maximum above the score of masked keys, so that their exponentials are 0.
  const __m512 old_max = _mm512_max_ps(_mm512_loadu_ps(c.max), _mm512_set1_ps(kLowest / 2));
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
  __m512 max[4] = {old_max, old_max, old_max, old_max}, sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t j = 0; j < keys; j += 4)
    for (int64_t i = 0; i < 4; ++i) max[i] = _mm512_max_ps(max[i], _mm512_load_ps(h.score + 16 * (j + i)));
  const __m512 most = _mm512_max_ps(_mm512_max_ps(max[0], max[1]), _mm512_max_ps(max[2], max[3]));
  for (int64_t j = 0; j < keys; j += 2) {
    const __m512 p = exp2_to_bf16(_mm512_sub_ps(_mm512_load_ps(h.score + 16 * j), most));
    const __m512 q = exp2_to_bf16(_mm512_sub_ps(_mm512_load_ps(h.score + 16 * j + 16), most));
    sum[0] = _mm512_add_ps(sum[0], p);
    sum[1] = _mm512_add_ps(sum[1], q);
    _mm512_store_si512(h.probability + 16 * j, interleave(two_bf16(p, q)));
  }
  const __m512 rescale = exp2_to_bf16(_mm512_sub_ps(old_max, most));
  _mm512_storeu_ps(c.max, most);
  _mm512_storeu_ps(c.sum, _mm512_fmadd_ps(_mm512_loadu_ps(c.sum), rescale, _mm512_add_ps(sum[0], sum[1])));
  return rescale;
}

// Scores of a page: one operand is the keys as stored in the cache, the other the packed queries. `next` is read after it.
inline void score_page(const uint16_t* keys, int d, Half* half, int64_t row, const uint16_t* next) {
  zero_accumulators();
  for (int i = 0; i < d / 32; ++i)
    multiply_add_tiles(keys + 32 * i, keys + 16 * d + 32 * i, 2 * d, half[0].q + i * kTile, half[1].q + i * kTile,
                       next + 2 * i * kTile);
  store_accumulators(half[0].score + 16 * row, half[1].score + 16 * row, half[0].score + 16 * (row + 16),
             half[1].score + 16 * (row + 16));
}

// Two halves of query columns, and the keys that any of them sees: [from, to).
struct QueryTiles {
  Half half[2];
  int64_t from, to;
};

// One block of keys for two halves: scores, their softmax, and the values added to the outputs.
inline void attend_block(const AttentionTask& t, QueryTiles& q, int64_t start) {
  const int d = t.cache->head_dim;
  Half* half = q.half;
  const int64_t pages = (smaller(kKeyBlock, q.to - start) + kPage - 1) / kPage;
  // Pages before the window may have been freed: their probabilities are zero.
  const int64_t skip = larger<int64_t>(0, (q.from - start) / kPage);
  for (int64_t p = 0; p < pages; ++p) {
    if (p < skip) {
      for (int i = 0; i < 2; ++i) memset(half[i].score + 16 * kPage * p, 0, kPage * 64);
    } else {
      const int64_t next = start + (p + 1) * kPage;
      score_page(key_page(t, start + p * kPage), d, half, p * kPage,
                 p + 1 < pages ? key_page(t, next) : value_page(t, start + skip * kPage));
    }
  }
  for (int i = 0; i < 2; ++i) {
    Half& h = half[i];
    if (h.columns.count <= 0) continue;
    const __m512 factor = online_softmax_tiles(h, start, pages * kPage);
    if (_mm512_cmp_ps_mask(factor, _mm512_set1_ps(1), _CMP_NEQ_UQ))
      for (int j = 0; j < d; ++j) _mm512_store_ps(h.out + 16 * j, _mm512_mul_ps(_mm512_load_ps(h.out + 16 * j), factor));
  }
  for (int i = 0; i < d; i += 32) {
    float *o0 = half[0].out + 16 * i, *o1 = half[1].out + 16 * i;
    if (t.head_dim <= i + 16) {  // the second sixteen dimensions are padding
      _tile_loadd(0, o0, 64);
      _tile_loadd(1, o1, 64);
      for (int64_t p = skip; p < pages; ++p) {
        _tile_loadd(4, value_page(t, start + p * kPage) + i * kPage, 64);
        _tile_loadd(6, half[0].probability + p * kTile, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, half[1].probability + p * kTile, 64);
        _tile_dpbf16ps(1, 4, 7);
      }
      _tile_stored(0, o0, 64);
      _tile_stored(1, o1, 64);
      continue;
    }
    load_accumulators(o0, o1, o0 + 256, o1 + 256);
    for (int64_t p = skip; p < pages; ++p) {
      const uint16_t* values = value_page(t, start + p * kPage) + i * kPage;
      const uint16_t* next = p + 1 < pages ? value_page(t, start + (p + 1) * kPage) + i * kPage
                                           : value_page(t, start + skip * kPage) + (i + 32) * kPage;
      multiply_add_tiles(values, values + 16 * kPage, 64, half[0].probability + p * kTile, half[1].probability + p * kTile, next);
    }
    store_accumulators(o0, o1, o0 + 256, o1 + 256);
  }
}

// Up to kTaskColumns columns go through the keys together, a block at a time: those of the block are in L1 for all.
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
  float* score = reinterpret_cast<float*>(allocate(2 * kKeyBlock * 64));
  uint16_t* probability = reinterpret_cast<uint16_t*>(allocate(2 * kKeyBlock / 32 * kTile * 2));
  static_assert(2 * kKeyBlock * 64 + kKeyBlock / 8 * kTile + most * 2 * kLongestHead * (kTile / 16 + 64) <= kScratch);
  for (QueryTiles& q : queries)
    for (int i = 0; i < 2; ++i) {
      Half& h = q.half[i];
      h.q = reinterpret_cast<uint16_t*>(allocate(d / 32 * kTile * 2));
      h.score = score + i * kKeyBlock * 16;
      h.probability = probability + i * (kKeyBlock / 32) * kTile;
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
        Half& h = q.half[i];
        set_columns(t, first + 32 * n + 16 * i, h.columns);
        pack_queries(t, first + 32 * n + 16 * i, h);
        memset(h.out, 0, size_t(d) * 64);
        for (int c = 0; c < h.columns.count; ++c) {
          q.from = smaller(q.from, h.columns.from[c]);
          q.to = larger(q.to, h.columns.to[c]);
        }
      }
      from = smaller(from, q.from);
      to = larger(to, q.to);
    }
    for (int64_t start = from / kKeyBlock * kKeyBlock; start < to; start += kKeyBlock)
      for (int n = 0; n < used; ++n)
        if (start < queries[n].to && start + kKeyBlock > queries[n].from) attend_block(t, queries[n], start);
    for (int n = 0; n < used; ++n)
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < d && queries[n].half[i].columns.count > 0; j += 16) {
          const Half& h = queries[n].half[i];
          const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1), _mm512_loadu_ps(h.columns.sum));
          __m512i r[16];
          for (int row = 0; row < 16; ++row)
            r[row] = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(h.out + 16 * (j + row)), inverse));
          transpose(r);
          for (int c = 0; c < h.columns.count; ++c)
            _mm512_mask_storeu_epi32(output_of(t, first + 32 * n + 16 * i + c) + j, columns_left(t.head_dim - j), r[c]);
        }
  }
  release_tiles();
}

// Tile products from registers: the arithmetic peak, without loads.
inline double tile_peak(int kind) {
  if (kind != kPeakInt8 && kind != kPeakBf16) return 0;
  constexpr int64_t rounds = 1 << 16;
  configure_tiles();
  zero_accumulators();
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t i = 0; i < rounds; ++i) {
    if (kind == kPeakInt8) {
      _tile_dpbssd(0, 4, 5);
      _tile_dpbssd(1, 4, 5);
      _tile_dpbssd(2, 4, 5);
      _tile_dpbssd(3, 4, 5);
    } else {
      _tile_dpbf16ps(0, 4, 5);
      _tile_dpbf16ps(1, 4, 5);
      _tile_dpbf16ps(2, 4, 5);
      _tile_dpbf16ps(3, 4, 5);
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
