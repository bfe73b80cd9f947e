// What the machine can do: bytes read and operations done, for the floors that benchmarks compare with.
#pragma once
#include "vec.h"

namespace olv {
namespace {

inline double read_bytes(const uint8_t* p, int64_t bytes) {
  i16x a{}, b{}, c{}, d{};
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
    a += load_wide<int32_t>(p + i);
    b += load_wide<int32_t>(p + i + 64);
    c += load_wide<int32_t>(p + i + 128);
    d += load_wide<int32_t>(p + i + 192);
  }
  a += b + c + d;
  return double(a[0] + a[7]);
}

// Multiply-adds of floats, from registers.
inline double float_peak(int) {
  constexpr int64_t rounds = 1 << 20;
  v16 c[8] = {};
  const v16 x = splat(1.0000001f);
  for (int64_t i = 0; i < rounds; ++i)
    for (int j = 0; j < 8; ++j) c[j] = c[j] * x + x;
  v16 s{};
  for (int j = 0; j < 8; ++j) s += c[j];
  volatile float sink = sum16(s);
  (void)sink;
  return double(rounds) * 8 * 16 * 2;
}

}  // namespace
}  // namespace olv
