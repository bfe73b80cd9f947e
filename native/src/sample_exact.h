// The vocabulary loops of sampling, compiled for each instruction set. Their results are defined to the last bit
// (olivine/engine/sampling.py and noise.py), so files that include this are compiled with -ffp-contract=off.
#pragma once
#include "sample_loops.h"
#include "vec.h"

namespace olv {
namespace {

inline uint32_t mix(uint32_t x) {
  const uint32_t state = x * 747796405u + 2891336453u;
  const uint32_t word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737u;
  return word >> 22 ^ word;
}

inline float tempered(float x, Temper t) { return (x - t.peak) / t.temperature; }

constexpr float kWhole = 12582912.f;   // 1.5 · 2^23: adding it rounds to a whole number, which the low bits then hold
constexpr double kWider = 0x1.8p52;    // the same for doubles

// e^z for z ≤ 0, by exponent and polynomial; not below e^-32.
inline float exponential(float z) {
  z = z > -32.f ? z : -32.f;
  const float shifted = z * 1.44269504f + kWhole, n = shifted - kWhole;
  const float r = (z - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.f;
  return from_bits(bits_of(p) + (bits_of(shifted) << 23));
}

// Rounded, for x in [0, 2^51).
inline uint64_t integer_of(double x) {
  const double shifted = x + kWider;
  return load<uint64_t>(&shifted) - load<uint64_t>(&kWider);
}

// Sixteen at a time: with one register of four, each comparison would wait for the one before.
inline bool scan(const float* x, int64_t count, float* peaks) {
  const v16 top = splat(__builtin_inff());
  v16i fine = splat_int(-1);
  for (int64_t first = 0; first < count; first += kTokens, ++peaks) {
    v16 peak = splat(-__builtin_inff());
    const int64_t n = smaller(kTokens, count - first);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
      const v16 v = loadv(x + first + i);
      fine = fine & (v < top);
      peak = select(v > peak, v, peak);
    }
    v16::Part& all = peak.p[0];
    for (int j = 1; j < kRegisters; ++j) all = peak.p[j] > all ? peak.p[j] : all;
    float highest = all[0];
    for (int j = 1; j < kRegister / 4; ++j) highest = larger(highest, all[j]);
    for (; i < n; ++i) {
      if (!(x[first + i] < __builtin_inff())) return false;
      highest = larger(highest, x[first + i]);
    }
    *peaks = highest;
  }
  int32_t all = -1;
  for (int j = 0; j < 16; ++j) all &= fine[j];
  return all != 0;
}

// Three loops, because each vectorizes on its own and one with three element widths does not.
inline uint64_t weigh(const float* x, int64_t count, Temper t, double scale, float* z, uint64_t* weight) {
  float e[kTokens];
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) z[i] = tempered(x[i], t);
  for (int64_t i = 0; i < count; ++i) e[i] = exponential(z[i]);
  for (int64_t i = 0; i < count; ++i) sum += weight[i] = integer_of(double(e[i]) * scale);
  return sum;
}

inline uint64_t weigh_before(const float* x, int64_t count, int64_t first, Temper t, double scale, Place place) {
  float z[kTokens];
  uint64_t weight[kTokens], sum = 0;
  weigh(x, count, t, scale, z, weight);
  const int64_t until = smaller<int64_t>(count, larger<int64_t>(0, place.id - first));
  for (int64_t i = 0; i < until; ++i) sum += z[i] >= place.z ? weight[i] : 0;
  for (int64_t i = until; i < count; ++i) sum += z[i] > place.z ? weight[i] : 0;
  return sum;
}

// The noise is below −ln((h >> 1) / 2^31) (checked for all h), so only h >> 1 ≤ 2^31 · e^(z − lead + 0.001) can win;
// 0.001 covers rounding. The bound is 2^y, interpolated linearly between integers y, which lies above the power.
inline bool contenders(const float* x, int64_t count, uint32_t first, uint32_t key, Temper t, float lead,
                       int32_t* found) {
  constexpr float kLog2e = 1.44269504f;
  const float steep = kLog2e / t.temperature, scale = steep < 1e30f ? steep : 1e30f;  // no 0 · inf
  const float offset = (0.001f - lead) * kLog2e;
  uint32_t hash[kTokens];
  for (int64_t i = 0; i < count; ++i) hash[i] = mix(mix(first + uint32_t(i)) ^ key);
  int32_t any = 0;
  for (int64_t i = 0; i < count; ++i) {
    float y = (x[i] - t.peak) * scale + offset;
    y = y > -60.f ? y : -60.f;
    const float bound = from_bits(uint32_t(int32_t(y * 0x1p23f)) + ((127u + 31u) << 23));
    found[i] = float(int32_t(hash[i] >> 1)) <= bound;
    any |= found[i];
  }
  return any != 0;
}

}  // namespace
}  // namespace olv
