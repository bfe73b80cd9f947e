// Vectors of sixteen floats, in registers of the instruction set's width (the compiler's vector extension).
#pragma once
#include <math.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(OLV_NEON)
#include <arm_neon.h>
#endif

#include "numbers.h"

namespace olv {
namespace {

// 64 bytes in as many registers as they need. The compiler generates slow code for its own vectors of several registers.
#if defined(__AVX512F__)
constexpr int kRegister = 64;
#elif defined(__AVX2__)
constexpr int kRegister = 32;
#else
constexpr int kRegister = 16;
#endif
constexpr int kRegisters = 64 / kRegister;

template <class T>
struct Wide {
  typedef T Part __attribute__((vector_size(kRegister)));
  Part p[kRegisters];

  OLV_INLINE T operator[](int i) const {
    T all[16];
    memcpy(all, p, sizeof all);
    return all[i];
  }
  OLV_INLINE void set(int i, T x) { memcpy(reinterpret_cast<char*>(p) + i * int(sizeof(T)), &x, sizeof x); }
};

typedef Wide<float> v16;
typedef Wide<int32_t> v16i;

#define OLV_OPERATOR(op)                                            \
  template <class T>                                                \
  OLV_INLINE Wide<T> operator op(Wide<T> a, Wide<T> b) {            \
    Wide<T> r;                                                      \
    for (int i = 0; i < kRegisters; ++i) r.p[i] = a.p[i] op b.p[i]; \
    return r;                                                       \
  }                                                                 \
  OLV_INLINE v16 operator op(v16 a, float b) {                      \
    v16 r;                                                          \
    for (int i = 0; i < kRegisters; ++i) r.p[i] = a.p[i] op b;      \
    return r;                                                       \
  }                                                                 \
  OLV_INLINE v16 operator op(float a, v16 b) {                      \
    v16 r;                                                          \
    for (int i = 0; i < kRegisters; ++i) r.p[i] = a op b.p[i];      \
    return r;                                                       \
  }
OLV_OPERATOR(+)
OLV_OPERATOR(-)
OLV_OPERATOR(*)
OLV_OPERATOR(/)
#undef OLV_OPERATOR

#define OLV_COMPARE(op)                                             \
  template <class T>                                                \
  OLV_INLINE v16i operator op(Wide<T> a, Wide<T> b) {               \
    v16i r;                                                         \
    for (int i = 0; i < kRegisters; ++i) r.p[i] = a.p[i] op b.p[i]; \
    return r;                                                       \
  }
OLV_COMPARE(<)
OLV_COMPARE(>)
OLV_COMPARE(>=)
#undef OLV_COMPARE

template <class T>
OLV_INLINE Wide<T>& operator+=(Wide<T>& a, Wide<T> b) { return a = a + b; }
OLV_INLINE v16 operator-(v16 a) { return 0.f - a; }
OLV_INLINE v16i operator&(v16i a, v16i b) {
  for (int i = 0; i < kRegisters; ++i) a.p[i] &= b.p[i];
  return a;
}
OLV_INLINE v16i operator<<(v16i a, int n) {
  for (int i = 0; i < kRegisters; ++i) a.p[i] <<= n;
  return a;
}
OLV_INLINE v16i to_ints(v16 x) {
  v16i r;
  for (int i = 0; i < kRegisters; ++i) r.p[i] = __builtin_convertvector(x.p[i], v16i::Part);
  return r;
}
OLV_INLINE v16i splat_int(int32_t x) {
  v16i r;
  for (int i = 0; i < kRegisters; ++i) r.p[i] = v16i::Part{} + x;
  return r;
}

OLV_INLINE v16 splat(float x) { return v16{} + x; }
// Register by register: gcc 12 passes one copy of 64 bytes through the stack.
template <class T>
OLV_INLINE Wide<T> load_wide(const void* p) {
  Wide<T> r;
  for (int i = 0; i < kRegisters; ++i)
    r.p[i] = load<typename Wide<T>::Part>(static_cast<const uint8_t*>(p) + i * kRegister);
  return r;
}
OLV_INLINE v16 loadv(const float* p) { return load_wide<float>(p); }
OLV_INLINE void storev(float* p, v16 x) {
  for (int i = 0; i < kRegisters; ++i) memcpy(p + i * kRegister / 4, &x.p[i], kRegister);
}

// The first n floats at p, padded with zeros.
inline v16 load_partial(const float* p, int64_t n) {
  v16 x{};
  memcpy(&x, p, size_t(n) * 4);
  return x;
}

// Sixteen elements of narrower types, at any address.
#if defined(__AVX512F__)
OLV_INLINE v16 load_bf16(const void* p) {
  const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(load<__m256i>(p)), 16);
  return load<v16>(&wide);
}
OLV_INLINE v16 load_f16s(const void* p) {
  const __m512 wide = _mm512_cvtph_ps(load<__m256i>(p));
  return load<v16>(&wide);
}
OLV_INLINE v16 load_bytes(const uint8_t* p) {
  const __m512 wide = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load<__m128i>(p)));
  return load<v16>(&wide);
}
#elif defined(__AVX2__)
OLV_INLINE v16 load_bf16(const void* p) {
  const auto eight = [](const void* at) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load<__m128i>(at)), 16));
  };
  return {{eight(p), eight(static_cast<const uint8_t*>(p) + 16)}};
}
OLV_INLINE v16 load_f16s(const void* p) {
  return {{_mm256_cvtph_ps(load<__m128i>(p)), _mm256_cvtph_ps(load<__m128i>(static_cast<const uint8_t*>(p) + 16))}};
}
OLV_INLINE v16 load_bytes(const uint8_t* p) {
  const auto eight = [](const uint8_t* at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(load<int64_t>(at))));
  };
  return {{eight(p), eight(p + 8)}};
}
#elif defined(OLV_NEON)
OLV_INLINE v16 load_bf16(const void* p) {
  const uint16x8_t a = load<uint16x8_t>(p), b = load<uint16x8_t>(static_cast<const uint8_t*>(p) + 16);
  const auto floats = [](uint32x4_t x) { return vreinterpretq_f32_u32(x); };
  return {{floats(vshll_n_u16(vget_low_u16(a), 16)), floats(vshll_high_n_u16(a, 16)),
           floats(vshll_n_u16(vget_low_u16(b), 16)), floats(vshll_high_n_u16(b, 16))}};
}
OLV_INLINE v16 load_f16s(const void* p) {
  const float16x8_t a = load<float16x8_t>(p), b = load<float16x8_t>(static_cast<const uint8_t*>(p) + 16);
  return {{vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a), vcvt_f32_f16(vget_low_f16(b)), vcvt_high_f32_f16(b)}};
}
OLV_INLINE v16 load_bytes(const uint8_t* p) {
  const uint8x16_t x = vld1q_u8(p);
  const uint16x8_t a = vmovl_u8(vget_low_u8(x)), b = vmovl_high_u8(x);
  return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(a))), vcvtq_f32_u32(vmovl_high_u16(a)),
           vcvtq_f32_u32(vmovl_u16(vget_low_u16(b))), vcvtq_f32_u32(vmovl_high_u16(b))}};
}
#else
template <class T, class F>
OLV_INLINE v16 load_each(const void* p, F&& f) {
  T each[16];
  memcpy(each, p, sizeof each);
  float wide[16];
  for (int i = 0; i < 16; ++i) wide[i] = f(each[i]);
  return load<v16>(wide);
}
OLV_INLINE v16 load_bf16(const void* p) { return load_each<uint16_t>(p, bf16_to_f32); }
OLV_INLINE v16 load_f16s(const void* p) { return load_each<uint16_t>(p, f16_to_f32); }
OLV_INLINE v16 load_bytes(const uint8_t* p) {
  return load_each<uint8_t>(p, [](uint8_t x) { return float(x); });
}
#endif

OLV_INLINE v16 select(v16i mask, v16 yes, v16 no) {
  for (int i = 0; i < kRegisters; ++i) yes.p[i] = mask.p[i] ? yes.p[i] : no.p[i];
  return yes;
}
#if defined(OLV_NEON)
OLV_INLINE v16 max16(v16 a, v16 b) {
  for (int i = 0; i < kRegisters; ++i) a.p[i] = vmaxq_f32(a.p[i], b.p[i]);
  return a;
}
#else
OLV_INLINE v16 max16(v16 a, v16 b) { return select(a < b, b, a); }
#endif

// a · b + c, rounded once if the instruction set has that: what a compiler makes of the operators depends on its flags.
OLV_INLINE v16::Part fma_part(v16::Part a, v16::Part b, v16::Part c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(OLV_NEON)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}
OLV_INLINE v16 fma16(v16 a, v16 b, v16 c) {
  for (int i = 0; i < kRegisters; ++i) c.p[i] = fma_part(a.p[i], b.p[i], c.p[i]);
  return c;
}

// n bfloat16 to floats.
inline void widen(const void* start, int64_t n, float* to) {
  const uint8_t* from = static_cast<const uint8_t*>(start);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) storev(to + i, load_bf16(from + 2 * i));
  for (; i < n; ++i) to[i] = bf16_to_f32(load<uint16_t>(from + 2 * i));
}

#if defined(__AVX2__)
OLV_INLINE float sum8(__m256 x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
#endif

// In a fixed order, the same for every instruction set.
OLV_INLINE float sum16(v16 x) {
#if defined(__AVX512F__)
  const __m512 all = load<__m512>(&x);
  return sum8(_mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1)));
#elif defined(__AVX2__)
  return sum8(_mm256_add_ps(x.p[0], x.p[1]));
#elif defined(OLV_NEON)
  const float32x4_t s = vaddq_f32(vaddq_f32(x.p[0], x.p[2]), vaddq_f32(x.p[1], x.p[3]));
  return vaddv_f32(vadd_f32(vget_low_f32(s), vget_high_f32(s)));
#else
  float s[16];
  memcpy(s, &x, sizeof s);
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) s[i] += s[i + step];
  return s[0];
#endif
}

// e^x to a few ulp; 0 on underflow, at least 2e38 on overflow.
OLV_INLINE v16 exp16(v16 x) {
#if defined(__AVX512F__)
  const __m512 v = _mm512_max_ps(_mm512_set1_ps(-128), _mm512_min_ps(load<__m512>(&x), _mm512_set1_ps(128)));
  const __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(v, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
  __m512 left = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693359375f), v);
  left = _mm512_fnmadd_ps(whole, _mm512_set1_ps(-2.12194440e-4f), left);
  __m512 sum = _mm512_set1_ps(1.3981999507e-3f);
  const float rest[] = {8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f, 1.f, 1.f};
  for (const float c : rest) sum = _mm512_fmadd_ps(sum, left, _mm512_set1_ps(c));
  const __m512 result = _mm512_scalef_ps(sum, whole);  // 0 on underflow, inf on overflow
  return load<v16>(&result);
#else
  x = select(x > splat(88.3f), splat(88.3f), x);
  const v16i tiny = x < splat(-87.3f);
  x = select(tiny, splat(-87.3f), x);
  const v16 magic = splat(12582912.f);  // 1.5 · 2^23: adding it rounds to a whole number
  const v16 shifted = x * 1.44269504f + magic, n = shifted - magic;
  v16 r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  v16 p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  // The lower bits of n + magic are n.
  for (int i = 0; i < kRegisters; ++i) p.p[i] = v16::Part(v16i::Part(p.p[i]) + (v16i::Part(shifted.p[i]) << 23));
  return select(tiny, v16{}, p);
#endif
}

// 1 / x for x from 1 to inf, to one or two ulp.
OLV_INLINE v16 inverse16(v16 x) {
#if defined(__AVX512F__)
  // A division takes as long as the rest of an activation. A Newton step doubles the bits of the estimate.
  const __m512 v = _mm512_min_ps(load<__m512>(&x), _mm512_set1_ps(1e38f)), r = _mm512_rcp14_ps(v);
  const __m512 better = _mm512_mul_ps(r, _mm512_fnmadd_ps(v, r, _mm512_set1_ps(2)));
  return load<v16>(&better);
#else
  return 1.f / x;
#endif
}

OLV_INLINE v16 silu16(v16 x) { return x * inverse16(1.f + exp16(-x)); }

OLV_INLINE v16 tanh16(v16 x) { return 1.f - 2.f * inverse16(exp16(2.f * x) + 1.f); }

OLV_INLINE v16 gelu_tanh16(v16 x) {
  const v16 inner = 0.7978845608f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.f + tanh16(inner));
}

}  // namespace
}  // namespace olv
