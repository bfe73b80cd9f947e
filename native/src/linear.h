// GEMV, packing and GEMM in portable C++. Instruction sets replace what they do better.
#pragma once
#include "microkernel.h"
#include "rowwise.h"
#include "transpose.h"

namespace olv {
namespace {

inline float dot_super_block(const SuperBlock& s, const int8_t* code, const float* scale, const float* sum, float acc) {
  for (int g = 0; g < kGroups; ++g) {
    int total = 0;
    for (int i = 0; i < 16; ++i) total += int(s.code[16 * g + i]) * int(code[16 * g + i]);
    acc += s.scale[g] * scale[g] * float(total) + s.min[g] * sum[g];
  }
  return acc;
}

// Rows that share one pass over a weight row, at most (batched GEMV).
constexpr int64_t kGemvRows = 8;

inline void gemv(const olv_weight& w, int64_t first, int64_t last, const Activations& x, float* y, int64_t stride) {
  const int64_t super_blocks = super_blocks_of(w.k);
  with_type(w.type, [&]<int type>() {
    for (int64_t n = first; n < last; ++n) {
      for (int64_t r0 = 0; r0 < x.count; r0 += kGemvRows) {
        const int64_t rows = smaller(kGemvRows, x.count - r0);
        float acc[kGemvRows] = {};
        if (has_super_blocks(w)) {
          SuperBlock s;
          for (int64_t i = 0; i < super_blocks; ++i) {
            unpack_codes<type>(w, n, i, s);
            for (int64_t r = 0; r < rows; ++r) {
              const int64_t at = (r0 + r) * super_blocks + i;
              acc[r] = dot_super_block(s, x.code + at * kSuperBlock, x.scale + at * kGroups, x.sum + at * kGroups, acc[r]);
            }
          }
        } else {
          v16 wide[kGemvRows] = {};
          float v[kSuperBlock];
          for (int64_t i = 0; i < super_blocks; ++i) {
            unpack_floats<type>(w, n, i, v);
            const int64_t elements = smaller<int64_t>(kSuperBlock, w.k - i * kSuperBlock);
            for (int64_t r = 0; r < rows; ++r) {
              const float* at = x.values + (r0 + r) * x.k + i * kSuperBlock;
              for (int64_t j = 0; j < elements; j += 16)
                wide[r] += loadv(v + j) * load_partial(at + j, smaller<int64_t>(16, elements - j));
            }
          }
          for (int64_t r = 0; r < rows; ++r) acc[r] = sum16(wide[r]);
        }
        for (int64_t r = 0; r < rows; ++r) y[(r0 + r) * stride + n] = acc[r];
      }
    }
  });
}

// Packs columns of prompt rows into a panel of floats [k][16], padded with zeros to 16 rows and a multiple of 32 columns.
inline void pack(const float* x, int64_t stride, int64_t rows, int64_t first, int64_t last, int64_t, bool, void* panel) {
  float* p = static_cast<float*>(panel) + 16 * first;
  const int64_t columns = last - first, depth = tiles_of(columns) * 32;
  if (rows < 16) memset(p, 0, size_t(depth) * 64);
  else memset(p + 16 * columns, 0, size_t(depth - columns) * 64);
  transpose(x, stride, rows, columns, p, 16);
}

// Weight rows and super-blocks of depth that are dequantized at a time, at most: as many as stay in L2 while panels of x
// pass. And blocks of sixteen rows of x that pass.
constexpr int64_t kGemmRows = 192, kGemmDepth = 5, kGemmBlocks = 32;
// Depth of a micro-tile: that of its panels is 16 KB, half of the smallest L1.
constexpr int64_t kMicroDepth = kSuperBlock / kMicroPanels;
static_assert(4 * kGemmRows * (kGemmDepth * kSuperBlock + kGemmBlocks * 16) <= kScratch);

// Blocked by kMicroDepth: so many rows of the panels stay in L1 while the dequantized weights pass. The sums of a result
// are in the order of depth, however it is divided.
inline void gemm(const olv_weight& w, int64_t first, int64_t last, const Activations& x, const float* bias, float* y,
                 int64_t stride, void* scratch, bool) {
  const int64_t super_blocks = super_blocks_of(w.k), depth = tiles_of(w.k) * 32, all_blocks = (x.count + 15) / 16;
  const int64_t passes = (super_blocks + kGemmDepth - 1) / kGemmDepth, deep = (super_blocks + passes - 1) / passes;
  // Blocks of weight rows of about equal size.
  const int64_t fit = kGemmRows / kMicroRows, groups = (last - first + kMicroRows - 1) / kMicroRows;
  const int64_t times = (groups + fit - 1) / fit, together = (groups + times - 1) / times * kMicroRows;
  float* a = static_cast<float*>(scratch);                                        // [deep][together][kSuperBlock]
  const Panels<float> c = {a + deep * together * kSuperBlock, together * 16};  // [kGemmBlocks][together][16]
  for (int64_t n = first; n < last; n += together) {
    const int64_t count = smaller(together, last - n);
    for (int64_t start = 0; start < all_blocks; start += kGemmBlocks) {
      const int64_t blocks = smaller(kGemmBlocks, all_blocks - start);
      for (int64_t s0 = 0; s0 < super_blocks; s0 += deep) {
        const int64_t s1 = smaller(super_blocks, s0 + deep);
        if (start == 0 || passes > 1)
          with_type(w.type, [&]<int type>() {
            for (int64_t i = 0; i < count; ++i)
              for (int64_t s = s0; s < s1; ++s) unpack_floats<type>(w, n + i, s, a + ((s - s0) * together + i) * kSuperBlock);
          });
        for (int64_t block = 0; block < blocks; block += kMicroPanels) {
          const int64_t wide = smaller<int64_t>(kMicroPanels, blocks - block);
          const float* panel = static_cast<const float*>(panel_of(w, x)) + (start + block) * depth * 16;
          const Panels<float> sums = {c[passes > 1 ? block : 0], c.step};  // of one pass only, in L1
          for (int64_t at = s0 * kSuperBlock; at < smaller(depth, s1 * kSuperBlock); at += kMicroDepth) {
            const Panels<const float> b = {panel + at * 16, depth * 16};
            const float* weights = a + (at / kSuperBlock - s0) * together * kSuperBlock + at % kSuperBlock;
            // Prefetches the next rows of the panels while these are multiplied.
            int64_t ahead = kMicroDepth * 16;
            const int64_t lines = (kMicroDepth * kMicroRows + count - 1) / count;
            for (int64_t i = 0; i < count; i += kMicroRows) {
              for (int64_t line = 0; line < lines; ++line, ahead += 16)
                for (int64_t j = 0; j < wide; ++j) __builtin_prefetch(b[j] + ahead, 0, 2);
              gemm_panels(smaller<int64_t>(kMicroRows, count - i), wide, weights + i * kSuperBlock, kSuperBlock, b,
                          smaller(kMicroDepth, depth - at), {sums[0] + 16 * i, c.step}, at == 0);
            }
          }
          for (int64_t j = 0; j < wide && s1 == super_blocks; ++j) {
            const int64_t row = 16 * (start + block + j), rows = smaller<int64_t>(16, x.count - row);
            transpose(sums[j], 16, count, rows, y + row * stride + n, stride);
            for (int64_t r = row; bias && r < row + rows; ++r) add(y + r * stride + n, bias + n, y + r * stride + n, count);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace olv
