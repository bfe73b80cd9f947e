// GEMM of prompt rows in bfloat16, with bfmmla: two rows of x times two rows of the weight, four columns deep.
//
// Tiles are 1 KB, of 16 rows and 32 columns: [4 columns][row pair][2 rows][4], so that an operand is one load. Sums are
// in float32 and in the order of the columns: the bits of a result do not depend on the size of the micro-tile.
#pragma once
#include "measure.h"
#include "rowwise.h"

namespace olv {
namespace {

constexpr int64_t kTile = 512;                 // bfloat16 a tile
constexpr int64_t kStep = 64;                  // four columns of sixteen rows
constexpr int64_t kDepthBlock = 16;            // tiles of depth between loads and stores of the accumulators: 32 KB of operands
constexpr int64_t kSums = 16 * 16;             // accumulators of a pair of tiles

OLV_INLINE uint16x4_t four_bf16(float32x4_t x) { return vreinterpret_u16_bf16(vcvt_bf16_f32(x)); }

// Where a row's columns begin in its tile; the next four are kStep further.
OLV_INLINE uint16_t* row_of_tile(uint16_t* tile, int64_t row) { return tile + 8 * (row / 2) + 4 * (row % 2); }

// `count` columns of a row, in the tiles from `to` on; padded with zeros to whole tiles.
inline void pack_row(const float* v, int64_t count, uint16_t* to) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4, to += kStep) vst1_u16(to, four_bf16(vld1q_f32(v + i)));
  for (; i < tiles_of(count) * 32; i += 4, to += kStep) {
    float rest[4] = {};
    if (i < count) memcpy(rest, v + i, size_t(count - i) * 4);
    vst1_u16(to, four_bf16(vld1q_f32(rest)));
  }
}

inline void pack_i8mm(const float* x, int64_t stride, int64_t rows, int64_t first, int64_t last, int64_t, bool, void* panel) {
  uint16_t* p = static_cast<uint16_t*>(panel) + first / 32 * kTile;
  if (rows < 16) memset(p, 0, size_t(tiles_of(last - first) * kTile) * 2);
  for (int64_t r = 0; r < rows; ++r) pack_row(x + r * stride, last - first, row_of_tile(p, r));
}

// Sixteen codes less an offset as floats: in the lowest byte of 2^23 they are added to it, and a subtraction leaves them. A
// conversion takes two slots of one vector unit on many CPUs.
OLV_INLINE void code_floats(int8x16_t code, int offset, float32x4_t (&to)[4]) {
  const uint8x16_t bytes = veorq_u8(vreinterpretq_u8_s8(code), vdupq_n_u8(0x80));
  const uint16x8_t words[2] = {vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)}, upper = vdupq_n_u16(0x4b00);
  const float32x4_t start = vdupq_n_f32(float((1 << 23) + 128 + offset));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    to[2 * i] = vsubq_f32(vreinterpretq_f32_u16(vzip1q_u16(words[i], upper)), start);
    to[2 * i + 1] = vsubq_f32(vreinterpretq_f32_u16(vzip2q_u16(words[i], upper)), start);
  }
}

// A super-block, in the tiles from `to` on: the values of unpack_values, from registers.
template <int type>
inline void pack_super_block(const RowBlock<type>& block, uint16_t* to) {
  BlockScales s;
  block.scales(s);
  const auto half = [&]<int h>() {
    HalfCodes codes;
    unpack_half<type, h>(block.p, codes);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      const bool odd = g % 2 && has_group_scales(type);
      const float32x4_t scales = odd ? s.odd[h] : s.even[h];
      float32x4_t v[4];
      code_floats(codes.code[g], code_offset(type), v);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i, to += kStep) {
        if constexpr (has_minima(type)) v[i] = vfmaq_n_f32(vdupq_n_f32((odd ? s.odd_min : s.even_min)[h][g / 2]), v[i], scales[g / 2]);
        else v[i] = vmulq_n_f32(v[i], scales[g / 2]);
        vst1_u16(to, four_bf16(v[i]));
      }
    }
  };
  half.template operator()<0>();
  half.template operator()<1>();
}

// Rows [n, n + 16) of the weight as tiles; rows from `last` on are padding, zeros.
template <int type>
inline void weight_tiles(const olv_weight& w, int64_t n, int64_t last, uint16_t* tiles) {
  if (last - n < 16) memset(tiles, 0, size_t(tiles_of(w.k) * kTile) * 2);
  for (int64_t r = 0; r < smaller<int64_t>(16, last - n); ++r) {
    uint16_t* to = row_of_tile(tiles, r);
    for (int64_t s = 0; s < super_blocks_of(w.k); ++s, to += 8 * kTile) {
      const int64_t count = smaller<int64_t>(kSuperBlock, w.k - s * kSuperBlock);
      if (type == OLV_BF16 && count == kSuperBlock) {
        const uint8_t* from = w.data + 2 * ((n + r) * w.k + s * kSuperBlock);
        for (int i = 0; i < kSuperBlock / 4; ++i) memcpy(to + i * kStep, from + 8 * i, 8);
        continue;
      }
      if constexpr (is_quantized(type)) {
        if (has_super_blocks(w)) {
          uint16_t padded[8 * kTile];  // the end of a row
          uint16_t* whole = count == kSuperBlock ? to : padded;
          pack_super_block<type>({w, w.data + (n + r) * row_bytes(w), n + r, s}, whole);
          for (int64_t i = 0; i < count / 4 && whole != to; ++i) memcpy(to + i * kStep, whole + i * kStep, 8);
          continue;
        }
      }
      if constexpr (!is_quantized(type) || type == OLV_GROUPED) {
        float v[kSuperBlock];
        unpack_floats<type>(w, n + r, s, v);
        pack_row(v, count, to);
      }
    }
  }
}

// Eight rows of x times eight of the weight: a and b at their first row pair of the tiles. c: the sums of 2 × 2 for each
// two pairs, [4][4][4].
inline void multiply_tiles(const uint16_t* a, const uint16_t* b, int64_t steps, float* c, bool zero_init) {
  float32x4_t sum[4][4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[i][j] = zero_init ? vdupq_n_f32(0) : vld1q_f32(c + 16 * i + 4 * j);
  for (; steps; --steps, a += kStep, b += kStep) {
    bfloat16x8_t x[4], w[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      x[i] = vreinterpretq_bf16_u16(vld1q_u16(a + 8 * i));
      w[i] = vreinterpretq_bf16_u16(vld1q_u16(b + 8 * i));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sum[i][j] = vbfmmlaq_f32(sum[i][j], x[i], w[j]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) vst1q_f32(c + 16 * i + 4 * j, sum[i][j]);
}

// Stores the sums of a pair of tiles, [half of x][half of the weight][4][4][4], to rows of y.
inline void store_sums(const float* c, float* y, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < columns; n += 2) {
      const float* two = c + 128 * (r / 8) + 64 * (n / 8) + 16 * (r % 8 / 2) + 4 * (n % 8 / 2) + 2 * (r % 2);
      memcpy(y + r * stride + n, two, n + 1 < columns ? 8 : 4);
    }
}

// As many weight rows at a time as fit 1 MB of L2, as tiles: they share each pass over x.
inline void gemm_i8mm(const olv_weight& w, int64_t first, int64_t last, const Activations& x, const float* bias, float* y,
                      int64_t stride, void* scratch, bool) {
  const int64_t depth = tiles_of(w.k), panel = depth * kTile, blocks = (x.count + 15) / 16;
  const int64_t together = larger<int64_t>(1, smaller<int64_t>(16, (1 << 20) / (2 * panel)));  // of 16 rows
  uint16_t* b = static_cast<uint16_t*>(scratch);                     // [together][depth] tiles
  float* c = reinterpret_cast<float*>(b + together * panel);         // [together][kSums]
  for (int64_t n = first; n < last; n += 16 * together) {
    const int64_t groups = smaller(together, (last - n + 15) / 16);
    with_type(w.type, [&]<int type>() {
      for (int64_t g = 0; g < groups; ++g) weight_tiles<type>(w, n + 16 * g, last, b + g * panel);
    });
    for (int64_t block = 0; block < blocks; ++block) {
      const uint16_t* a = static_cast<const uint16_t*>(panel_of(w, x)) + block * panel;
      for (int64_t tile = 0; tile < depth; tile += kDepthBlock) {
        const int64_t steps = 8 * smaller(kDepthBlock, depth - tile);
        for (int64_t g = 0; g < groups; ++g)
          for (int half = 0; half < 4; ++half)
            multiply_tiles(a + tile * kTile + 32 * (half / 2), b + g * panel + tile * kTile + 32 * (half % 2), steps,
                           c + g * kSums + 64 * half, tile == 0);
      }
      const int64_t rows = smaller<int64_t>(16, x.count - 16 * block), columns = smaller(16 * groups, last - n);
      float* out = y + 16 * block * stride + n;
      for (int64_t g = 0; g < groups; ++g)
        store_sums(c + g * kSums, out + 16 * g, stride, rows, smaller<int64_t>(16, columns - 16 * g));
      for (int64_t r = 0; bias && r < rows; ++r) add(out + r * stride, bias + n, out + r * stride, columns);
    }
  }
}

static_assert(kLongestRow * 32 + kSums * 4 <= kScratch);

// Matrix products from registers: the arithmetic peak, without loads. Each is 2 × 2 × 8 int8, or 2 × 2 × 4 bfloat16.
inline double matrix_peak(int kind) {
  if (kind != kPeakInt8 && kind != kPeakBf16) return 0;
  constexpr int64_t rounds = 1 << 18;
  constexpr int sums = 12;
  if (kind == kPeakInt8) {
    int32x4_t sum[sums] = {};
    int8x16_t x = vdupq_n_s8(1);
    for (int64_t i = 0; i < rounds; ++i)
      for (int j = 0; j < sums; ++j) {
        asm volatile("" : "+w"(x));
        sum[j] = vmmlaq_s32(sum[j], x, x);
      }
    for (int j = 0; j < sums; ++j) asm volatile("" : : "w"(sum[j]));
  } else {
    float32x4_t sum[sums] = {};
    bfloat16x8_t x = vreinterpretq_bf16_u16(vdupq_n_u16(0x3f80));
    for (int64_t i = 0; i < rounds; ++i)
      for (int j = 0; j < sums; ++j) {
        asm volatile("" : "+w"(x));
        sum[j] = vbfmmlaq_f32(sum[j], x, x);
      }
    for (int j = 0; j < sums; ++j) asm volatile("" : : "w"(sum[j]));
  }
  return double(rounds) * sums * (kind == kPeakInt8 ? 32 : 16) * 2;
}

}  // namespace
}  // namespace olv
