// Every quantized storage type as super-blocks of 256 elements: the form that all quantized kernels read.
//
// A super-block is 256 consecutive elements of a row: one super-block of a K-quant, or eight blocks of 32. For every
// type, value[e] = scale[e / 16] · code[e] + min[e / 16] with codes in 0..255, so a dot product with int8 activations
// is one unsigned-by-signed multiply-accumulate and a few float operations per super-block.
#pragma once
#include "numbers.h"
#include "olivine.h"

namespace olv {
namespace {

constexpr int kSuperBlock = 256;
constexpr int kGroups = 16;  // of 16 elements per super-block, each with a scale and a minimum

struct TypeInfo {
  int block, bytes;  // elements and bytes of a block
};

constexpr TypeInfo kTypes[OLV_TYPES] = {
    {1, 4},     {1, 2},     {1, 2},     {32, 18},   {32, 20},   {32, 22},   {32, 24},  {32, 34},  {256, 84},
    {256, 110}, {256, 144}, {256, 176}, {256, 210}, {32, 18},   {256, 136}, {32, 17},  {1, 1},    {64, 36},
    {256, 50},  {256, 56},  {256, 66},  {256, 74},  {256, 82},  {256, 98},  {256, 110}, {256, 54}, {256, 66},
};

constexpr bool is_quantized(int type) { return type > OLV_BF16; }
// Whether kernels read the type after `expand`, as OLV_GROUPED with groups of 16.
constexpr bool is_expanded(int type) { return type > OLV_GROUPED; }

// Of those, the ones that have indices into a grid of code words.
constexpr bool is_iq1(int type) { return type == OLV_IQ1_S || type == OLV_IQ1_M; }
constexpr bool has_grid(int type) { return is_iq1(type) || (type >= OLV_IQ2_XXS && type <= OLV_IQ3_S); }

inline int64_t row_bytes(const olv_weight& w) {
  return w.type == OLV_GROUPED ? w.k : w.k / kTypes[w.type].block * kTypes[w.type].bytes;
}

// Whether the weight unpacks to super-blocks, for int8 dot products: all types but floats and qwen3.c's int8 with a
// group size that is not a multiple of 16.
inline bool has_super_blocks(const olv_weight& w) {
  return is_quantized(w.type) && (w.type != OLV_GROUPED || (w.group % 16 == 0 && w.k % 32 == 0));
}

// Bytes of a whole super-block (of the values, for OLV_GROUPED).
constexpr int super_block_bytes(int type) {
  return type == OLV_GROUPED ? kSuperBlock : kSuperBlock / kTypes[type].block * kTypes[type].bytes;
}

// A super-block, unpacked.
struct alignas(64) SuperBlock {
  uint8_t code[kSuperBlock];
  float scale[kGroups];
  float min[kGroups];
};

constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 2^(e - 128), the E8M0 scale halved because kFp4 is doubled.
inline float e8m0_half(uint8_t e) {
  return from_bits(e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23);
}

// The half that IQ1_M has in four parts.
OLV_INLINE float iq1_m_half(const uint8_t* scales) {
  const uint64_t x = load<uint64_t>(scales) >> 12 & 0x000f000f000f000f;
  return f16_to_f32(uint16_t(x | x >> 12 | x >> 24 | x >> 36));
}

// The eight 6-bit scales and minima of Q4_K and Q5_K.
inline void scale_and_min(const uint8_t* s, int j, uint8_t& scale, uint8_t& min) {
  if (j < 4) {
    scale = s[j] & 63;
    min = s[j + 4] & 63;
  } else {
    scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    min = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
  }
}

static_assert(kTypes[OLV_Q8_0].bytes == 34 && kTypes[OLV_Q6_K].bytes == 210 && kTypes[OLV_MXFP4].bytes == 17 &&
              kTypes[OLV_TQ2_0].bytes == 66);

}  // namespace
}  // namespace olv
