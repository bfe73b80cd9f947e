// Products of float matrices, in registers: what prompt rows and their attention are made of.
#pragma once
#include "vec.h"

namespace olv {
namespace {

// Sums that are kept in registers at once: twelve rows of registers, which leave four of sixteen for the operands and
// are enough for two multiply-adds a cycle. With 32 registers they are twice as wide, to load less often.
#if defined(__AVX512F__)
constexpr int kProductBlocks = 2;
#else
constexpr int kProductBlocks = 1;
#endif
constexpr int kProductRows = 12 / kRegisters;

// Blocks of sixteen columns, `step` floats apart.
template <class T>
struct Panels {
  T* first;
  int64_t step;
  OLV_INLINE T* operator[](int64_t i) const { return first + i * step; }
};

// c[n][r][16] = (fresh ? 0 : c[n][r][16]) + Σ a[r · stride + i] · b[n][i][16], term after term in the order of i:
// every sum has the same bits whatever stands beside it.
template <int rows, int blocks>
inline void add_products(const float* a, int64_t stride, Panels<const float> b, int64_t depth, Panels<float> c,
                         bool fresh) {
  constexpr int wide = blocks * kRegisters, lanes = kRegister / 4;  // registers a row, floats a register
  v16::Part sum[rows][wide];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < wide; ++j) sum[r][j] = v16::Part{};
  if (!fresh)
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int j = 0; j < wide; ++j) sum[r][j] = load<v16::Part>(c[j / kRegisters] + 16 * r + j % kRegisters * lanes);
  for (int64_t i = 0; i < depth; ++i) {
    v16::Part v[wide];
#pragma GCC unroll 4
    for (int j = 0; j < wide; ++j) v[j] = load<v16::Part>(b[j / kRegisters] + 16 * i + j % kRegisters * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const v16::Part x = a[r * stride + i] - v16::Part{};
#pragma GCC unroll 4
      for (int j = 0; j < wide; ++j) sum[r][j] += x * v[j];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < wide; ++j) memcpy(c[j / kRegisters] + 16 * r + j % kRegisters * lanes, &sum[r][j], kRegister);
}

// The same for any number of rows.
template <int blocks, int most = kProductRows>
inline void add_some_products(int64_t rows, const float* a, int64_t stride, Panels<const float> b, int64_t depth,
                              Panels<float> c, bool fresh) {
  for (; rows >= most; rows -= most, a += most * stride, c.first += 16 * most)
    add_products<most, blocks>(a, stride, b, depth, c, fresh);
  if constexpr (most > 1)
    if (rows > 0) add_some_products<blocks, most - 1>(rows, a, stride, b, depth, c, fresh);
}

// And for up to kProductBlocks blocks.
inline void multiply(int64_t rows, int64_t blocks, const float* a, int64_t stride, Panels<const float> b, int64_t depth,
                     Panels<float> c, bool fresh) {
  if (blocks == kProductBlocks) return add_some_products<kProductBlocks>(rows, a, stride, b, depth, c, fresh);
  for (int64_t n = 0; n < blocks; ++n) add_some_products<1>(rows, a, stride, {b[n], 0}, depth, {c[n], 0}, fresh);
}

}  // namespace
}  // namespace olv
