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
constexpr int64_t kDepthBlock = 32;  // tiles of depth between loads and stores of the accumulators; 16 and 64 were slower

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

// Adds the products of two left tiles, whose rows are `stride` bytes apart, and two right tiles.
OLV_INLINE void multiply_add_tiles(const uint16_t* a0, const uint16_t* a1, int64_t stride, const uint16_t* b0,
                                   const uint16_t* b1) {
  _tile_loadd(4, a0, stride);
  _tile_loadd(6, b0, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, b1, 64);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, a1, stride);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// c: 32 × 32 floats as four tiles [weight half][x half]. `wide`: whether there is a second panel of x. `overlap` is
// called every few tiles: its work is hidden behind the queued tile products.
template <class F>
inline void multiply_blocks(const uint16_t* a, int64_t a_half, const uint16_t* b, int64_t b_half, int64_t depth, float* c,
                            bool zero_init, bool wide, F&& overlap) {
  if (zero_init) zero_accumulators();
  else load_accumulators(c, c + 256, c + 512, c + 768);
  if (wide) {
    for (int64_t t = 0; t < depth; ++t, a += kTile, b += kTile) {
      multiply_add_tiles(a, a + a_half, 64, b, b + b_half);
      if (t % 4 == 3) overlap();
    }
  } else {
    for (int64_t t = 0; t < depth; ++t, a += kTile, b += kTile) {
      _tile_loadd(4, a, 64);
      _tile_loadd(6, b, 64);
      _tile_loadd(5, a + a_half, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
    }
  }
  store_accumulators(c, c + 256, c + 512, c + 768);
}

// The epilogue of a block: stores its accumulators to y, a tile at a time.
struct Epilogue {
  const float* c = nullptr;
  float* y = nullptr;
  int64_t stride = 0, rows = 0, columns = 0;
  int tile = 0;

  OLV_INLINE void store_tile() {
    if (!c || tile == 4) return;
    const int64_t row = 16 * (tile & 1), column = 16 * (tile >> 1);
    if (row < rows && column < columns)
      scatter_tile(c + 256 * tile, y + row * stride + column, stride, smaller<int64_t>(16, rows - row),
                   smaller<int64_t>(16, columns - column));
    ++tile;
  }
  OLV_INLINE void store_rest() {
    while (c && tile < 4) store_tile();
  }
};

inline void gemm_amx(const olv_weight& w, int64_t first, int64_t last, const Activations& x, float* y, int64_t stride,
                     void* scratch) {
  const int64_t depth = tiles_of(w.k), half = depth * kTile;
  // As many weight blocks at a time as fit 1 MB of L2: they share each pass over x.
  const int64_t together = larger<int64_t>(1, smaller<int64_t>(16, (1 << 20) / (4 * half)));
  uint16_t* a = static_cast<uint16_t*>(scratch);
  float* c = reinterpret_cast<float*>(a + together * 2 * half);  // [together][1024]
  const int64_t x_blocks = (x.count + 15) / 16;
  configure_tiles();
  for (int64_t n = first; n < last; n += together * kBlock) {
    const int64_t blocks = smaller(together, (last - n + kBlock - 1) / kBlock);
    for (int64_t i = 0; i < 2 * blocks; ++i) weight_tiles(w, n + 16 * i, last, a + i * half);
    Epilogue epilogue;
    for (int64_t t = 0; t < x_blocks; t += 2) {
      const uint16_t* b = static_cast<const uint16_t*>(panel_of(w, x)) + t * half;
      for (int64_t start = 0; start < depth; start += kDepthBlock)
        for (int64_t i = 0; i < blocks; ++i) {
          if (epilogue.c == c + 1024 * i) epilogue.store_rest();  // c is about to be overwritten
          multiply_blocks(a + 2 * i * half + start * kTile, half, b + start * kTile, half, smaller(kDepthBlock, depth - start),
                          c + 1024 * i, start == 0, t + 1 < x_blocks, [&] { epilogue.store_tile(); });
          epilogue.store_rest();
          if (start + kDepthBlock >= depth)
            epilogue = {c + 1024 * i, y + 16 * t * stride + n + kBlock * i, stride, x.count - 16 * t, last - n - kBlock * i};
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

inline void pack_queries(const AttentionTask& t, int first, Half& h) {
  const int d = t.cache->head_dim;
  for (int j = 0; j < d; j += 32) {
    __m512i pairs[16];
    for (int i = 0; i < 16; ++i) {
      pairs[i] = _mm512_setzero_si512();
      if (i >= h.columns.count) continue;
      const float* q = query_of(t, first + i) + j;
      pairs[i] = two_bf16(_mm512_loadu_ps(q), _mm512_loadu_ps(q + 16));
    }
    transpose(pairs);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(h.q + j / 32 * kTile + 32 * i, pairs[i]);
  }
}

inline void pack_probabilities(Half& h, int64_t pages) {
  for (int64_t j = 0; j < pages * 16; ++j)
    _mm512_store_si512(h.probability + 32 * j,
                       interleave(two_bf16(_mm512_load_ps(h.score + 32 * j), _mm512_load_ps(h.score + 32 * j + 16))));
}

// Scores of a page: one operand is the keys as stored in the cache, the other the packed queries.
inline void score_page(const uint16_t* keys, int d, Half* half, int64_t row) {
  zero_accumulators();
  for (int i = 0; i < d / 32; ++i)
    multiply_add_tiles(keys + 32 * i, keys + 16 * d + 32 * i, 2 * d, half[0].q + i * kTile, half[1].q + i * kTile);
  store_accumulators(half[0].score + 16 * row, half[1].score + 16 * row, half[0].score + 16 * (row + 16),
             half[1].score + 16 * (row + 16));
}

inline void prefill_attention_amx(const AttentionTask& t, void* scratch) {
  const int d = t.cache->head_dim;
  if (d % 32 || t.cache->type == OLV_F32) return prefill_attention(t, scratch);
  uint8_t* memory = static_cast<uint8_t*>(scratch);
  const auto allocate = [&](int64_t bytes) {
    uint8_t* start = memory;
    memory += (bytes + 63) / 64 * 64;
    return start;
  };
  Half half[2];
  for (Half& h : half) {
    h.q = reinterpret_cast<uint16_t*>(allocate(d / 32 * kTile * 2));
    h.score = reinterpret_cast<float*>(allocate(kKeyBlock * 64));
    h.probability = reinterpret_cast<uint16_t*>(allocate(kKeyBlock / 32 * kTile * 2));
    h.out = reinterpret_cast<float*>(allocate(int64_t(d) * 64));
  }
  configure_tiles();
  for (int first = 0; first < t.rows * t.q_per_kv; first += 32) {
    int64_t from = INT64_MAX, to = 0;
    for (int i = 0; i < 2; ++i) {
      Half& h = half[i];
      set_columns(t, first + 16 * i, h.columns);
      pack_queries(t, first + 16 * i, h);
      memset(h.out, 0, size_t(d) * 64);
      for (int c = 0; c < h.columns.count; ++c) {
        from = smaller(from, h.columns.from[c]);
        to = larger(to, h.columns.to[c]);
      }
    }
    for (int64_t start = from / kKeyBlock * kKeyBlock; start < to; start += kKeyBlock) {
      const int64_t pages = (smaller(kKeyBlock, to - start) + kPage - 1) / kPage;
      // Pages before the window may have been freed: their probabilities are zero.
      const int64_t skip = larger<int64_t>(0, (from - start) / kPage);
      for (int64_t p = 0; p < pages; ++p) {
        if (p < skip) {
          for (Half& h : half) memset(h.score + 16 * kPage * p, 0, kPage * 64);
        } else {
          score_page(key_page(t, start + p * kPage), d, half, p * kPage);
        }
      }
      for (Half& h : half) {
        if (h.columns.count <= 0) continue;
        const v16 rescale = online_softmax(h.columns, h.score, start, pages * kPage, t.scale);
        const __m512 factor = load<__m512>(&rescale);
        if (_mm512_cmp_ps_mask(factor, _mm512_set1_ps(1), _CMP_NEQ_UQ))
          for (int i = 0; i < d; ++i) _mm512_store_ps(h.out + 16 * i, _mm512_mul_ps(_mm512_load_ps(h.out + 16 * i), factor));
        pack_probabilities(h, pages);
      }
      for (int i = 0; i < d; i += 32) {
        float *o0 = half[0].out + 16 * i, *o1 = half[1].out + 16 * i;
        load_accumulators(o0, o1, o0 + 256, o1 + 256);
        for (int64_t p = skip; p < pages; ++p) {
          const uint16_t* values = value_page(t, start + p * kPage) + i * kPage;
          multiply_add_tiles(values, values + 16 * kPage, 64, half[0].probability + p * kTile, half[1].probability + p * kTile);
        }
        store_accumulators(o0, o1, o0 + 256, o1 + 256);
      }
    }
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < d && half[i].columns.count > 0; j += 16) {
        const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1), _mm512_loadu_ps(half[i].columns.sum));
        __m512i r[16];
        for (int row = 0; row < 16; ++row)
          r[row] = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(half[i].out + 16 * (j + row)), inverse));
        transpose(r);
        for (int c = 0; c < half[i].columns.count; ++c) _mm512_storeu_si512(output_of(t, first + 16 * i + c) + j, r[c]);
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
    k.store_kv = store_kv_avx512;
    k.peak = tile_peak;
    k.panel_bytes = 2 * kTile;
    return k;
  }();
  return kernels;
}

}  // namespace olv
