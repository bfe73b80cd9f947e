// Measures memory bandwidth and arithmetic peak, the limits that benchmarks compare with.
#pragma once
#include "vec.h"

namespace olv {
namespace {

// The result depends on every byte, so that the compiler cannot omit a load.
inline double read_bytes(const uint8_t* p, int64_t bytes) {
  typedef Wide<uint32_t>::Part Part;  // unsigned, because the sums wrap around
  constexpr int sums = 8, step = sums * kRegister;
  Part sum[sums] = {};
  for (int64_t i = 0; i + step <= bytes; i += step)
    for (int j = 0; j < sums; ++j) sum[j] += load<Part>(p + i + j * kRegister);
  Part all{};
  for (int j = 0; j < sums; ++j) all += sum[j];
  double total = 0;
  for (int i = 0; i < kRegister / 4; ++i) total += double(all[i]);
  return total;
}

enum PeakKind : int { kPeakInt8 = 0, kPeakBf16 = 1, kPeakF32 = 2 };

// Float multiply-adds from registers, with as many accumulators as hide the latency and fit in registers. The
// accumulator is the addend, the only form that every instruction set has without a copy; the empty assembly keeps
// the compiler from computing the product once for all accumulators.
inline double float_peak(int kind) {
#if defined(__x86_64__)
#define OLV_OPAQUE(x) asm volatile("" : "+v"(x))
#elif defined(__aarch64__)
#define OLV_OPAQUE(x) asm volatile("" : "+w"(x))
#endif
#if defined(OLV_OPAQUE)
  if (kind != kPeakF32) return 0;
  typedef Wide<float>::Part Part;
  constexpr int64_t rounds = 1 << 20;
  constexpr int sums = 12;
  Part sum[sums] = {}, x = Part{} + 1.0000001f, y = x;
  for (int64_t i = 0; i < rounds; ++i)
    for (int j = 0; j < sums; ++j) {
      OLV_OPAQUE(x);
      sum[j] += x * y;
    }
  Part all{};
  for (int j = 0; j < sums; ++j) all += sum[j];
  OLV_OPAQUE(all);
  return double(rounds) * sums * (kRegister / 4) * 2;
#undef OLV_OPAQUE
#else
  (void)kind;
  return 0;  // not measured
#endif
}

}  // namespace
}  // namespace olv
