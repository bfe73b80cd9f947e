// Storage types as strips of 256 elements: what every quantized kernel is written against.
//
// A strip is 256 consecutive elements of a row: one super-block, or eight blocks of 32. Whatever the type,
// value[e] = scale[e / 16] · code[e] + low[e / 16] with codes in 0..255, so a dot product with int8 activations is
// one unsigned-by-signed multiply-accumulate, and the rest is a handful of float operations a strip.
#pragma once
#include "numbers.h"
#include "olivine.h"

namespace olv {
namespace {

constexpr int kStrip = 256;
constexpr int kGroups = 16;  // scales a strip: one for 16 elements

struct TypeInfo {
  int block, bytes;  // elements and bytes of a block
};

constexpr TypeInfo kTypes[OLV_TYPES] = {
    {1, 4},     {1, 2},     {1, 2},     {32, 18},   {32, 20},   {32, 22},   {32, 24},  {32, 34},  {256, 84},
    {256, 110}, {256, 144}, {256, 176}, {256, 210}, {32, 18},   {256, 136}, {32, 17},  {1, 1},
};

constexpr bool is_quantized(int type) { return type > OLV_BF16; }

inline int64_t row_bytes(const olv_weight& w) {
  return w.type == OLV_GROUPED ? w.k : w.k / kTypes[w.type].block * kTypes[w.type].bytes;
}

// Whether the weight's strips can meet int8 activations: all types but floats, and qwen3.c's with an odd group size.
inline bool has_strips(const olv_weight& w) {
  return is_quantized(w.type) && (w.type != OLV_GROUPED || (w.group % 16 == 0 && w.k % 32 == 0));
}

// Bytes of a whole strip (of the values, for OLV_GROUPED).
constexpr int strip_bytes(int type) { return type == OLV_GROUPED ? kStrip : kStrip / kTypes[type].block * kTypes[type].bytes; }

struct alignas(64) Strip {
  uint8_t code[kStrip];
  float scale[kGroups];
  float low[kGroups];
};

constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 2^(e - 128), the E8M0 scale halved because kFp4 is doubled.
inline float e8m0_half(uint8_t e) {
  return from_bits(e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23);
}

// The eight 6-bit scales and minima of Q4_K and Q5_K.
inline void scale_and_min(const uint8_t* s, int j, uint8_t& scale, uint8_t& low) {
  if (j < 4) {
    scale = s[j] & 63;
    low = s[j + 4] & 63;
  } else {
    scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    low = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
  }
}

// The strip at p in plain C++: the definition for the instruction sets that have their own.
template <int type>
inline void load_strip(const uint8_t* __restrict p, Strip& __restrict s) {
  if constexpr (type == OLV_Q4_0 || type == OLV_Q4_1 || type == OLV_Q5_0 || type == OLV_Q5_1 || type == OLV_IQ4_NL ||
                type == OLV_MXFP4) {
    for (int b = 0; b < 8; ++b, p += kTypes[type].bytes) {
      constexpr int codes_at = type == OLV_MXFP4 ? 1 : type == OLV_Q4_1 ? 4 : type == OLV_Q5_0 ? 6 : type == OLV_Q5_1 ? 8 : 2;
      uint8_t* __restrict code = s.code + 32 * b;
      for (int i = 0; i < 16; ++i) {
        code[i] = p[codes_at + i] & 15;
        code[i + 16] = p[codes_at + i] >> 4;
      }
      float d, low = 0;
      if constexpr (type == OLV_MXFP4) d = e8m0_half(p[0]);
      else d = load_f16(p);
      if constexpr (type == OLV_Q5_0 || type == OLV_Q5_1) {
        const uint32_t high = load<uint32_t>(p + (type == OLV_Q5_0 ? 2 : 4));
        for (int i = 0; i < 32; ++i) code[i] |= (high >> i & 1) << 4;
      }
      if constexpr (type == OLV_IQ4_NL) {
        for (int i = 0; i < 32; ++i) code[i] = uint8_t(kIq4[code[i]] + 128);
        low = -128 * d;
      }
      if constexpr (type == OLV_MXFP4) {
        for (int i = 0; i < 32; ++i) code[i] = uint8_t(kFp4[code[i]] + 12);
        low = -12 * d;
      }
      if constexpr (type == OLV_Q4_0) low = -8 * d;
      if constexpr (type == OLV_Q5_0) low = -16 * d;
      if constexpr (type == OLV_Q4_1 || type == OLV_Q5_1) low = load_f16(p + 2);
      s.scale[2 * b] = s.scale[2 * b + 1] = d;
      s.low[2 * b] = s.low[2 * b + 1] = low;
    }
  } else if constexpr (type == OLV_Q8_0) {
    for (int b = 0; b < 8; ++b, p += 34) {
      for (int i = 0; i < 32; ++i) s.code[32 * b + i] = p[2 + i] ^ 0x80;
      s.scale[2 * b] = s.scale[2 * b + 1] = load_f16(p);
      s.low[2 * b] = s.low[2 * b + 1] = -128 * load_f16(p);
    }
  } else if constexpr (type == OLV_Q2_K) {
    const float d = load_f16(p + 80), low = load_f16(p + 82);
    for (int e = 0; e < kStrip; ++e) s.code[e] = p[16 + 32 * (e >> 7) + (e & 31)] >> 2 * (e >> 5 & 3) & 3;
    for (int g = 0; g < kGroups; ++g) {
      s.scale[g] = d * float(p[g] & 15);
      s.low[g] = -low * float(p[g] >> 4);
    }
  } else if constexpr (type == OLV_Q3_K) {
    const float d = load_f16(p + 108);
    for (int e = 0; e < kStrip; ++e) {
      const int code = p[32 + 32 * (e >> 7) + (e & 31)] >> 2 * (e >> 5 & 3) & 3;
      s.code[e] = uint8_t(code | (p[e & 31] >> (e >> 5) & 1) << 2);  // a clear mask bit subtracts 4: the low's part
    }
    for (int g = 0; g < kGroups; ++g) {
      const int low = p[96 + (g & 7)] >> 4 * (g >> 3) & 15, high = p[104 + (g & 3)] >> 2 * (g >> 2) & 3;
      s.scale[g] = d * float((low | high << 4) - 32);
      s.low[g] = -4 * s.scale[g];
    }
  } else if constexpr (type == OLV_Q4_K || type == OLV_Q5_K) {
    const float d = load_f16(p), dmin = load_f16(p + 2);
    const uint8_t* codes = p + (type == OLV_Q4_K ? 16 : 48);
    for (int pair = 0; pair < 4; ++pair)
      for (int i = 0; i < 32; ++i) {
        s.code[64 * pair + i] = codes[32 * pair + i] & 15;
        s.code[64 * pair + 32 + i] = codes[32 * pair + i] >> 4;
      }
    if constexpr (type == OLV_Q5_K)
      for (int e = 0; e < kStrip; ++e) s.code[e] |= (p[16 + (e & 31)] >> (e >> 5) & 1) << 4;
    for (int j = 0; j < 8; ++j) {
      uint8_t scale, low;
      scale_and_min(p + 4, j, scale, low);
      s.scale[2 * j] = s.scale[2 * j + 1] = d * float(scale);
      s.low[2 * j] = s.low[2 * j + 1] = -dmin * float(low);
    }
  } else if constexpr (type == OLV_Q6_K) {
    const float d = load_f16(p + 208);
    for (int e = 0; e < kStrip; ++e) {
      const int h = e >> 7, r = e >> 5 & 3, l = e & 31;
      const int low = p[64 * h + 32 * (r & 1) + l] >> 4 * (r >> 1) & 15, high = p[128 + 32 * h + l] >> 2 * r & 3;
      s.code[e] = uint8_t(low | high << 4);
    }
    for (int g = 0; g < kGroups; ++g) {
      s.scale[g] = d * float(int8_t(p[192 + g]));
      s.low[g] = -32 * s.scale[g];
    }
  } else if constexpr (type == OLV_IQ4_XS) {
    const float d = load_f16(p);
    const uint16_t high = load<uint16_t>(p + 2);
    for (int j = 0; j < 8; ++j) {
      for (int i = 0; i < 16; ++i) {
        s.code[32 * j + i] = uint8_t(kIq4[p[8 + 16 * j + i] & 15] + 128);
        s.code[32 * j + 16 + i] = uint8_t(kIq4[p[8 + 16 * j + i] >> 4] + 128);
      }
      const int scale = (p[4 + (j >> 1)] >> 4 * (j & 1) & 15) | (high >> 2 * j & 3) << 4;
      s.scale[2 * j] = s.scale[2 * j + 1] = d * float(scale - 32);
      s.low[2 * j] = s.low[2 * j + 1] = -128 * s.scale[2 * j];
    }
  }
}

// The strip of a row that starts at element `first`, with zeros behind the row's end. Blocks never straddle rows.
template <int type>
inline void load_tail(const uint8_t* p, int64_t elements, Strip& s) {
  uint8_t padded[strip_bytes(type)];
  memset(padded, 0, sizeof padded);
  memcpy(padded, p, size_t(elements / kTypes[type].block * kTypes[type].bytes));
  load_strip<type>(padded, s);
}

static_assert(kTypes[OLV_Q8_0].bytes == 34 && kTypes[OLV_Q6_K].bytes == 210 && kTypes[OLV_MXFP4].bytes == 17);

}  // namespace
}  // namespace olv
