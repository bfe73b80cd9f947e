// Super-blocks unpacked in plain C++: the definition that the other instruction sets must match.
#pragma once
#include "blocks.h"

namespace olv {
namespace {

// The super-block at p.
template <int type>
inline void unpack(const uint8_t* p, SuperBlock& s) {
  if constexpr (type == OLV_Q4_0 || type == OLV_Q4_1 || type == OLV_Q5_0 || type == OLV_Q5_1 || type == OLV_IQ4_NL ||
                type == OLV_MXFP4) {
    for (int b = 0; b < 8; ++b, p += kTypes[type].bytes) {
      constexpr int codes_at = type == OLV_MXFP4 ? 1 : type == OLV_Q4_1 ? 4 : type == OLV_Q5_0 ? 6 : type == OLV_Q5_1 ? 8 : 2;
      uint8_t* code = s.code + 32 * b;
      for (int i = 0; i < 16; ++i) {
        code[i] = p[codes_at + i] & 15;
        code[i + 16] = p[codes_at + i] >> 4;
      }
      float d, min = 0;
      if constexpr (type == OLV_MXFP4) d = e8m0_half(p[0]);
      else d = load_f16(p);
      if constexpr (type == OLV_Q5_0 || type == OLV_Q5_1) {
        const uint32_t high = load<uint32_t>(p + (type == OLV_Q5_0 ? 2 : 4));
        for (int i = 0; i < 32; ++i) code[i] |= (high >> i & 1) << 4;
      }
      if constexpr (type == OLV_IQ4_NL) {
        for (int i = 0; i < 32; ++i) code[i] = uint8_t(kIq4[code[i]] + 128);
        min = -128 * d;
      }
      if constexpr (type == OLV_MXFP4) {
        for (int i = 0; i < 32; ++i) code[i] = uint8_t(kFp4[code[i]] + 12);
        min = -12 * d;
      }
      if constexpr (type == OLV_Q4_0) min = -8 * d;
      if constexpr (type == OLV_Q5_0) min = -16 * d;
      if constexpr (type == OLV_Q4_1 || type == OLV_Q5_1) min = load_f16(p + 2);
      s.scale[2 * b] = s.scale[2 * b + 1] = d;
      s.min[2 * b] = s.min[2 * b + 1] = min;
    }
  } else if constexpr (type == OLV_Q8_0) {
    for (int b = 0; b < 8; ++b, p += 34) {
      for (int i = 0; i < 32; ++i) s.code[32 * b + i] = p[2 + i] ^ 0x80;
      s.scale[2 * b] = s.scale[2 * b + 1] = load_f16(p);
      s.min[2 * b] = s.min[2 * b + 1] = -128 * load_f16(p);
    }
  } else if constexpr (type == OLV_Q2_K) {
    const float d = load_f16(p + 80), min = load_f16(p + 82);
    for (int e = 0; e < kSuperBlock; ++e) s.code[e] = p[16 + 32 * (e >> 7) + (e & 31)] >> 2 * (e >> 5 & 3) & 3;
    for (int g = 0; g < kGroups; ++g) {
      s.scale[g] = d * float(p[g] & 15);
      s.min[g] = -min * float(p[g] >> 4);
    }
  } else if constexpr (type == OLV_Q3_K) {
    const float d = load_f16(p + 108);
    for (int e = 0; e < kSuperBlock; ++e) {
      const int code = p[32 + 32 * (e >> 7) + (e & 31)] >> 2 * (e >> 5 & 3) & 3;
      s.code[e] = uint8_t(code | (p[e & 31] >> (e >> 5) & 1) << 2);  // a clear mask bit subtracts 4: in the minimum
    }
    for (int g = 0; g < kGroups; ++g) {
      const int low = p[96 + (g & 7)] >> 4 * (g >> 3) & 15, high = p[104 + (g & 3)] >> 2 * (g >> 2) & 3;
      s.scale[g] = d * float((low | high << 4) - 32);
      s.min[g] = -4 * s.scale[g];
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
      for (int e = 0; e < kSuperBlock; ++e) s.code[e] |= (p[16 + (e & 31)] >> (e >> 5) & 1) << 4;
    for (int j = 0; j < 8; ++j) {
      uint8_t scale, min;
      scale_and_min(p + 4, j, scale, min);
      s.scale[2 * j] = s.scale[2 * j + 1] = d * float(scale);
      s.min[2 * j] = s.min[2 * j + 1] = -dmin * float(min);
    }
  } else if constexpr (type == OLV_Q6_K) {
    const float d = load_f16(p + 208);
    for (int e = 0; e < kSuperBlock; ++e) {
      const int h = e >> 7, r = e >> 5 & 3, l = e & 31;
      const int low = p[64 * h + 32 * (r & 1) + l] >> 4 * (r >> 1) & 15, high = p[128 + 32 * h + l] >> 2 * r & 3;
      s.code[e] = uint8_t(low | high << 4);
    }
    for (int g = 0; g < kGroups; ++g) {
      s.scale[g] = d * float(int8_t(p[192 + g]));
      s.min[g] = -32 * s.scale[g];
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
      s.min[2 * j] = s.min[2 * j + 1] = -128 * s.scale[2 * j];
    }
  }
}

}  // namespace
}  // namespace olv
