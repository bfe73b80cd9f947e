// bfloat16 and float16 conversions, for where there is no instruction for them.
//
// Everything that kernels include is in an unnamed namespace: each instruction set compiles its own copy, and if the
// linker merged the copies, an older CPU could run instructions it does not have. Files with intrinsics for aarch64
// define OLV_NEON: the compiler's own macro is defined in the portable files too.
#pragma once
#include <stdint.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

// For functions on vectors, which would otherwise be passed through memory.
#define OLV_INLINE inline __attribute__((always_inline))

namespace olv {
namespace {

template <class T>
inline T load(const void* p) {
  T x;
  memcpy(&x, p, sizeof x);
  return x;
}

inline float from_bits(uint32_t bits) { return load<float>(&bits); }
inline uint32_t bits_of(float x) { return load<uint32_t>(&x); }

inline float bf16_to_f32(uint16_t x) { return from_bits(uint32_t(x) << 16); }

inline uint16_t f32_to_bf16(float x) {
  const uint32_t u = bits_of(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t(u >> 16 | 0x40);  // NaN stays NaN
  return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

inline float f16_to_f32(uint16_t h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#elif defined(OLV_NEON)
  return float(load<__fp16>(&h));
#else
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  if (exponent == 31) return from_bits(sign | 0x7f800000u | mantissa << 13);
  if (exponent) return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
  const float tiny = float(mantissa) * 0x1p-24f;  // zero and subnormals
  return sign ? -tiny : tiny;
#endif
}

inline float load_f16(const uint8_t* p) { return f16_to_f32(load<uint16_t>(p)); }

template <class T>
inline T smaller(T a, T b) { return b < a ? b : a; }
template <class T>
inline T larger(T a, T b) { return a < b ? b : a; }

}  // namespace
}  // namespace olv
