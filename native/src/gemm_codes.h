// GEMM of prompt rows with quantized weights in int8: the loops. Dot products of codes are exact, and the scales of both
// operands multiply them in float32, always in the same order: bits do not depend on tiles, ranges or other rows.
//
// Weight rows are unpacked once for all rows of x, in fours, into a panel that stays in L2; the rows of x that pass over
// four of them stay in L1. Included by an instruction set's file, after its kTileRows, has_int8_gemm,
// `unpack_lanes` and `multiply_codes`.
#pragma once
#include "linear.h"

namespace olv {
namespace {

constexpr int64_t kPanelBytes = 384 << 10, kBlockBytes = 16 << 10;  // of the weights in L2, of x in L1

// Rows [r0, r0 + rows) of x with four weight rows. `count`: how many of the four there are.
template <int type>
OLV_INLINE void multiply_rows(const SuperBlock* panel, const Activations& x, int64_t r0, int64_t rows, const float* bias,
                              int64_t count, float* y, int64_t stride) {
  const auto run = [&]<int most>() { multiply_codes<type, most>(panel, x, r0, bias, count, y + r0 * stride, stride); };
  int64_t left = rows;
  for (; left >= kTileRows; left -= kTileRows, r0 += kTileRows) run.template operator()<kTileRows>();
  if constexpr (kTileRows > 2)
    if (left == 2) return run.template operator()<2>();
  if (left == 1) run.template operator()<1>();
}

inline void gemm_codes(const olv_weight& w, int64_t first, int64_t last, const Activations& x, const float* bias, float* y,
                       int64_t stride, void* scratch) {
  const int64_t super_blocks = super_blocks_of(w.k), row_bytes = super_blocks * int64_t(sizeof(SuperBlock));
  const int64_t together = larger<int64_t>(1, kPanelBytes / (4 * row_bytes));  // fours of weight rows
  const int64_t block = larger<int64_t>(1, kBlockBytes / (kTileRows * row_bytes)) * kTileRows;
  static_assert(4 * ((kLongestRow + 255) / 256) * int64_t(sizeof(SuperBlock)) <= kScratch);
  SuperBlock* panel = static_cast<SuperBlock*>(scratch);  // [together][super_blocks][4]
  with_type(w.type, [&]<int type>() {
    if constexpr (has_int8_gemm(type)) {
      for (int64_t n = first; n < last; n += 4 * together) {
        const int64_t count = smaller(4 * together, last - n);
        for (int64_t i = 0; i < count; ++i) {
          SuperBlock* to = panel + i / 4 * 4 * super_blocks + i % 4;
          for (int64_t s = 0; s < super_blocks; ++s) unpack_lanes<type>(w, n + i, s, to[4 * s]);
        }
        for (int64_t r = 0; r < x.count; r += block)
          for (int64_t i = 0; i < count; i += 4)
            multiply_rows<type>(panel + i * super_blocks, x, r, smaller(block, x.count - r), bias ? bias + n + i : nullptr,
                                smaller<int64_t>(4, count - i), y + n + i, stride);
      }
    }
  });
}

}  // namespace
}  // namespace olv
