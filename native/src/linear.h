// Linear ops without special instructions. The wider instruction sets replace what they do better.
#pragma once
#include "product.h"
#include "rowwise.h"
#include "transpose.h"

namespace olv {
namespace {

inline float dot_strip(const Strip& s, const int8_t* code, const float* scale, const float* sum, float acc) {
  for (int g = 0; g < kGroups; ++g) {
    int total = 0;
    for (int i = 0; i < 16; ++i) total += int(s.code[16 * g + i]) * int(code[16 * g + i]);
    acc += s.scale[g] * scale[g] * float(total) + s.low[g] * sum[g];
  }
  return acc;
}

// At most this many rows share one pass over a weight row.
constexpr int64_t kGemvRows = 8;

inline void gemv(const olv_weight& w, int64_t first, int64_t last, const Rows& x, float* y, int64_t stride) {
  const int64_t strips = strips_of(w.k);
  with_type(w.type, [&]<int type>() {
    for (int64_t n = first; n < last; ++n) {
      for (int64_t r0 = 0; r0 < x.count; r0 += kGemvRows) {
        const int64_t rows = smaller(kGemvRows, x.count - r0);
        float acc[kGemvRows] = {};
        if (has_strips(w)) {
          Strip s;
          for (int64_t i = 0; i < strips; ++i) {
            code_strip<type>(w, n, i, s);
            for (int64_t r = 0; r < rows; ++r) {
              const int64_t at = (r0 + r) * strips + i;
              acc[r] = dot_strip(s, x.code + at * kStrip, x.scale + at * kGroups, x.sum + at * kGroups, acc[r]);
            }
          }
        } else {
          v16 wide[kGemvRows] = {};
          float v[kStrip];
          for (int64_t i = 0; i < strips; ++i) {
            float_strip<type>(w, n, i, v);
            const int64_t elements = smaller<int64_t>(kStrip, w.k - i * kStrip);
            for (int64_t r = 0; r < rows; ++r) {
              const float* at = x.values + (r0 + r) * x.k + i * kStrip;
              for (int64_t j = 0; j < elements; j += 16)
                wide[r] += loadv(v + j) * load_some(at + j, smaller<int64_t>(16, elements - j));
            }
          }
          for (int64_t r = 0; r < rows; ++r) acc[r] = sum16(wide[r]);
        }
        for (int64_t r = 0; r < rows; ++r) y[(r0 + r) * stride + n] = acc[r];
      }
    }
  });
}

// Prompt rows: panels of floats. A tile of x is 32 columns of 16 rows, row after row of [k][16].
inline void pack(const float* x, int64_t rows, int64_t k, bool, void* panel) {
  float* p = static_cast<float*>(panel);
  const int64_t depth = tiles_of(k) * 32;
  if (rows < 16) memset(p, 0, size_t(depth) * 64);
  else memset(p + 16 * k, 0, size_t(depth - k) * 64);
  transpose(x, k, rows, k, p, 16);
}

static_assert(kProductRows * ((kLongestRow + 255) / 256 * 256 + 16 * kProductBlocks) * 4 <= kScratch);

// Strips of weight rows, as floats, meet blocks of sixteen rows of x. A strip of x stays in the first-level cache while
// the weights pass by, and the weights stay in the second while x does.
inline void gemm(const olv_weight& w, int64_t first, int64_t last, const Rows& x, float* y, int64_t stride,
                 void* scratch) {
  const int64_t strips = strips_of(w.k), depth = tiles_of(w.k) * 32, blocks = (x.count + 15) / 16;
  // As many rows at a time as 1 MB has room for, and about as many each time.
  const int64_t fit = larger<int64_t>(1, smaller<int64_t>(192, (1 << 20) / (4 * kStrip * strips)) / kProductRows);
  const int64_t groups = (last - first + kProductRows - 1) / kProductRows, times = (groups + fit - 1) / fit;
  const int64_t together = (groups + times - 1) / times * kProductRows;
  float* a = static_cast<float*>(scratch);                                 // [strips][together][kStrip]
  const Panels<float> c = {a + strips * together * kStrip, together * 16};  // [kProductBlocks][together][16]
  for (int64_t n = first; n < last; n += together) {
    const int64_t count = smaller(together, last - n);
    with_type(w.type, [&]<int type>() {
      for (int64_t i = 0; i < count; ++i)
        for (int64_t s = 0; s < strips; ++s) float_strip<type>(w, n + i, s, a + (s * together + i) * kStrip);
    });
    for (int64_t block = 0; block < blocks; block += kProductBlocks) {
      const int64_t wide = smaller<int64_t>(kProductBlocks, blocks - block);
      const float* panel = static_cast<const float*>(panel_of(w, x)) + block * depth * 16;
      for (int64_t s = 0; s < strips; ++s) {
        const Panels<const float> b = {panel + s * kStrip * 16, depth * 16};
        // The next strip of x is asked for while this one is at work.
        int64_t ahead = kStrip * 16;
        const int64_t lines = (kStrip * kProductRows + count - 1) / count;
        for (int64_t i = 0; i < count; i += kProductRows) {
          for (int64_t line = 0; line < lines; ++line, ahead += 16)
            for (int64_t j = 0; j < wide; ++j) __builtin_prefetch(b[j] + ahead, 0, 2);
          multiply(smaller<int64_t>(kProductRows, count - i), wide, a + (s * together + i) * kStrip, kStrip, b,
                   smaller<int64_t>(kStrip, depth - s * kStrip), {c[0] + 16 * i, c.step}, s == 0);
        }
      }
      for (int64_t j = 0; j < wide; ++j) {
        const int64_t row = 16 * (block + j);
        transpose(c[j], 16, count, smaller<int64_t>(16, x.count - row), y + row * stride + n, stride);
      }
    }
  }
}

}  // namespace
}  // namespace olv
