// AMX tiles for prompt rows, AVX-512 for the rest.
#include "attention.h"
#include "linear512.h"
#include "measure.h"

namespace olv {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t columns[16] = {};  // bytes a row
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Eight tiles of 16 rows of 64 bytes. As assembly with the whole struct as its operand: gcc 12's intrinsic declares
// only the first eight bytes as read, and the stores to the rest may be dropped.
inline void configure_tiles() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.columns[i] = 64;
    config.rows[i] = 16;
  }
  asm volatile("ldtilecfg %0" : : "m"(config));
}

inline void release_tiles() { asm volatile("tilerelease"); }

// Weight rows in blocks of 32 against rows of x in blocks of 32: four accumulators, each tile loaded used twice.
constexpr int64_t kBlock = 32;
constexpr int64_t kDeep = 16;  // tiles of depth between visits: 32 KB of x stay in the first-level cache

// c: 32 × 32 floats as four tiles [weight half][x half]. `wide`: whether there is a second block of x.
inline void multiply_blocks(const uint16_t* a, int64_t a_half, const uint16_t* b, int64_t b_half, int64_t depth, float* c,
                            bool fresh, bool wide) {
  if (fresh) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, c, 64);
    _tile_loadd(1, c + 256, 64);
    _tile_loadd(2, c + 512, 64);
    _tile_loadd(3, c + 768, 64);
  }
  if (wide) {
    for (int64_t t = 0; t < depth; ++t) {
      _tile_loadd(4, a + t * kTile, 64);
      _tile_loadd(6, b + t * kTile, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + b_half + t * kTile, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + a_half + t * kTile, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  } else {
    for (int64_t t = 0; t < depth; ++t) {
      _tile_loadd(4, a + t * kTile, 64);
      _tile_loadd(6, b + t * kTile, 64);
      _tile_loadd(5, a + a_half + t * kTile, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
    }
  }
  _tile_stored(0, c, 64);
  _tile_stored(1, c + 256, 64);
  _tile_stored(2, c + 512, 64);
  _tile_stored(3, c + 768, 64);
}

inline void gemm_amx(const olv_weight& w, int64_t first, int64_t last, const Rows& x, float* y, int64_t stride,
                     void* scratch) {
  const int64_t depth = tiles_of(w.k), half = depth * kTile;
  // As many weight blocks at a time as fit 1 MB of the second-level cache: each visit of x is shared by all of them.
  const int64_t together = larger<int64_t>(1, smaller<int64_t>(16, (1 << 20) / (4 * half)));
  uint16_t* a = static_cast<uint16_t*>(scratch);
  float* c = reinterpret_cast<float*>(a + together * 2 * half);  // [together][1024]
  const int64_t x_blocks = (x.count + 15) / 16;
  configure_tiles();
  for (int64_t n = first; n < last; n += together * kBlock) {
    const int64_t blocks = smaller(together, (last - n + kBlock - 1) / kBlock);
    for (int64_t i = 0; i < 2 * blocks; ++i) any_tile_rows(w, n + 16 * i, last, a + i * half);
    for (int64_t t = 0; t < x_blocks; t += 2) {
      const uint16_t* b = static_cast<const uint16_t*>(x.panel) + t * half;
      const bool wide = t + 1 < x_blocks;
      for (int64_t start = 0; start < depth; start += kDeep)
        for (int64_t i = 0; i < blocks; ++i)
          multiply_blocks(a + 2 * i * half + start * kTile, half, b + start * kTile, half, smaller(kDeep, depth - start),
                          c + 1024 * i, start == 0, wide);
      for (int64_t i = 0; i < blocks; ++i)
        for (int part = 0; part < (wide ? 4 : 4); ++part) {
          const int64_t row = 16 * (t + (part & 1)), column = n + kBlock * i + 16 * (part >> 1);
          if (row < x.count && column < last)
            scatter_tile(c + 1024 * i + 256 * part, y + row * stride + column, stride, smaller<int64_t>(16, x.count - row),
                         smaller<int64_t>(16, last - column));
        }
    }
  }
  release_tiles();
}

// Operations from registers: what a core could do if nothing had to be fetched.
inline double tile_peak(int which) {
  constexpr int64_t rounds = 1 << 16;
  configure_tiles();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t i = 0; i < rounds; ++i) {
    if (which == 0) {
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
  return double(rounds) * 4 * 16 * 16 * (which == 0 ? 64 : 32) * 2;
}

}  // namespace

const Kernels& amx_kernels() {
  static const Kernels kernels = {
      "amx",       quantize, pack512, gemv512, gemm_amx,   dequantize, attend_prompt,
      attend_part, rms_norm, gate,    add,     read_bytes, tile_peak,  2 * kTile,
  };
  return kernels;
}

}  // namespace olv
