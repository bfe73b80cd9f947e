// The float GEMM micro-kernel, for prompt rows and their attention where there are no matrix tiles.
#pragma once
#include "vec.h"

namespace olv {
namespace {

// The accumulators in registers: twelve for one panel, which leave four of sixteen registers for the operands and hide
// the latency of two multiply-adds a cycle. With 32 registers the micro-tile is two panels wide, to load less often.
#if defined(__AVX512F__)
constexpr int kMicroPanels = 2;
#else
constexpr int kMicroPanels = 1;
#endif
#if defined(OLV_NEON)
constexpr int kMicroRows = 5;  // 20 accumulators, four registers of b and five of a
#else
constexpr int kMicroRows = 12 / kRegisters;
#endif

// Micro-panels of sixteen columns, `step` floats apart.
template <class T>
struct Panels {
  T* first;
  int64_t step;
  OLV_INLINE T* operator[](int64_t i) const { return first + i * step; }
};

// How the rows of a lie in memory: a[r · stride + i], or a[i · stride + r].
enum Operand { kByRow, kByDepth };

// c[n][r][16] = (zero_init ? 0 : c[n][r][16]) + Σ a(r, i) · b[n][i][16], summed in the order of i: the bits
// of a result do not depend on the size of the micro-tile. Not inlined, and `zero_init` not a variable, because gcc 12 then
// keeps half of the sums in memory where it is false.
template <Operand operand, int rows, int panels, bool zero_init>
[[gnu::noinline]] void microkernel(const float* a, int64_t stride, Panels<const float> b, int64_t depth, Panels<float> c) {
  constexpr int wide = panels * kRegisters, lanes = kRegister / 4;  // registers a row, floats a register
  v16::Part sum[rows][wide];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < wide; ++j) sum[r][j] = v16::Part{};
  if constexpr (!zero_init)
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int j = 0; j < wide; ++j) sum[r][j] = load<v16::Part>(c[j / kRegisters] + 16 * r + j % kRegisters * lanes);
  int64_t i = 0;
#if defined(OLV_NEON)
  static_assert(operand == kByRow);
  // Four of a row of a in a register, multiplied by lane: no broadcasts.
  for (; i + 4 <= depth; i += 4) {
    float32x4_t x[rows];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) x[r] = vld1q_f32(a + r * stride + i);
    const auto step = [&]<int lane>() {
#pragma GCC unroll 4
      for (int j = 0; j < wide; ++j) {
        const float32x4_t v = vld1q_f32(b[j / kRegisters] + 16 * (i + lane) + j % kRegisters * lanes);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) sum[r][j] = vfmaq_laneq_f32(sum[r][j], v, x[r], lane);
      }
    };
    step.template operator()<0>();
    step.template operator()<1>();
    step.template operator()<2>();
    step.template operator()<3>();
  }
#endif
  for (; i < depth; ++i) {
    v16::Part v[wide];
#pragma GCC unroll 4
    for (int j = 0; j < wide; ++j) v[j] = load<v16::Part>(b[j / kRegisters] + 16 * i + j % kRegisters * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const v16::Part x = (operand == kByRow ? a[r * stride + i] : a[i * stride + r]) - v16::Part{};
#pragma GCC unroll 4
      for (int j = 0; j < wide; ++j) sum[r][j] = fma_part(x, v[j], sum[r][j]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < wide; ++j) memcpy(c[j / kRegisters] + 16 * r + j % kRegisters * lanes, &sum[r][j], kRegister);
}

// The same for any number of rows.
template <Operand operand, int panels, int most = kMicroRows>
inline void microkernel_rows(int64_t rows, const float* a, int64_t stride, Panels<const float> b, int64_t depth,
                             Panels<float> c, bool zero_init) {
  for (; rows >= most; rows -= most, a += most * (operand == kByRow ? stride : 1), c.first += 16 * most)
    (zero_init ? microkernel<operand, most, panels, true> : microkernel<operand, most, panels, false>)(a, stride, b, depth, c);
  if constexpr (most > 1)
    if (rows > 0) microkernel_rows<operand, panels, most - 1>(rows, a, stride, b, depth, c, zero_init);
}

// The same for any number of rows and up to kMicroPanels panels.
template <Operand operand = kByRow>
inline void gemm_panels(int64_t rows, int64_t panels, const float* a, int64_t stride, Panels<const float> b, int64_t depth,
                        Panels<float> c, bool zero_init) {
  if (panels == kMicroPanels) return microkernel_rows<operand, kMicroPanels>(rows, a, stride, b, depth, c, zero_init);
  for (int64_t n = 0; n < panels; ++n) microkernel_rows<operand, 1>(rows, a, stride, {b[n], 0}, depth, {c[n], 0}, zero_init);
}

}  // namespace
}  // namespace olv
