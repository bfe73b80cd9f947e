// Products of float matrices, in registers: what prompt rows and their attention are made of.
#pragma once
#include "vec.h"

namespace olv {
namespace {

// Rows of sums that are kept at once: twelve registers, which is what sixteen leave beside the operands, and enough
// for two multiply-adds a cycle.
constexpr int kProductRows = 12 / kRegisters;

// c[r][16] = (fresh ? 0 : c[r][16]) + Σ a[r · stride + i] · b[i][16], term after term in the order of i.
template <int rows>
inline void add_products(const float* a, int64_t stride, const float* b, int64_t depth, float* c, bool fresh) {
  v16::Part sum[rows][kRegisters];
  if (fresh) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int j = 0; j < kRegisters; ++j) sum[r][j] = v16::Part{};
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int j = 0; j < kRegisters; ++j) sum[r][j] = load<v16::Part>(c + 16 * r + j * (kRegister / 4));
  }
  const float* row[rows];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) row[r] = a + r * stride;
  for (int64_t i = 0; i < depth; ++i) {
    const v16 v = loadv(b + 16 * i);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const v16::Part x = row[r][i] - v16::Part{};
#pragma GCC unroll 4
      for (int j = 0; j < kRegisters; ++j) sum[r][j] += x * v.p[j];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < kRegisters; ++j) memcpy(c + 16 * r + j * (kRegister / 4), &sum[r][j], kRegister);
}

// The same for any number of rows.
template <int most = kProductRows>
inline void add_some_products(int64_t rows, const float* a, int64_t stride, const float* b, int64_t depth, float* c,
                              bool fresh) {
  for (; rows >= most; rows -= most, a += most * stride, c += 16 * most) add_products<most>(a, stride, b, depth, c, fresh);
  if constexpr (most > 1)
    if (rows > 0) add_some_products<most - 1>(rows, a, stride, b, depth, c, fresh);
}

}  // namespace
}  // namespace olv
