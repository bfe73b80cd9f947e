// Super-blocks unpacked in NEON, half a super-block (8 groups of 16) at a time and into registers.
//
// Codes are signed bytes: value = scale · (code − offset), or scale · code + min. Scales come in the order of the lanes
// that dot products end up in: those of the even groups of a half, then those of the odd ones, so that types with
// one scale for 32 elements use the same register for both. No load reaches beyond a block.
#pragma once
#include "expand_neon.h"
#include "vec.h"

namespace olv {
namespace {

// What the codes are too large by; 0 for types with signed codes and for those with minima.
constexpr int code_offset(int type) {
  switch (type) {
    case OLV_Q4_0: return 8;
    case OLV_Q5_0: return 16;
    case OLV_Q3_K: return 4;
    case OLV_Q6_K: return 32;
    default: return 0;
  }
}

constexpr bool has_minima(int type) {
  return type == OLV_Q4_1 || type == OLV_Q5_1 || type == OLV_Q2_K || type == OLV_Q4_K || type == OLV_Q5_K;
}

// Whether every group of 16 has its own scale, or every two. Types that are expanded have the operations of OLV_GROUPED.
constexpr bool has_group_scales(int type) {
  return type == OLV_Q2_K || type == OLV_Q3_K || type == OLV_Q6_K || type >= OLV_GROUPED;
}

// Whether four products of a code and an int8 fit in 16 bits.
constexpr bool has_small_codes(int type) {
  return type != OLV_Q8_0 && type != OLV_IQ4_NL && type != OLV_IQ4_XS && type != OLV_GROUPED;
}

// Of both halves: [half] lanes 0 … 3 are its groups 0, 2, 4, 6 (even) or 1, 3, 5, 7 (odd).
struct BlockScales {
  float32x4_t even[2], odd[2], even_min[2], odd_min[2];
};

OLV_INLINE uint8x16_t low_nibbles(uint8x16_t x) { return vandq_u8(x, vdupq_n_u8(15)); }
// a where the bits of the mask are set, else b.
OLV_INLINE uint8x16_t mixed(int mask, uint8x16_t a, uint8x16_t b) { return vbslq_u8(vdupq_n_u8(uint8_t(mask)), a, b); }

template <int by>  // to the left; to the right if negative
OLV_INLINE uint8x16_t shifted(uint8x16_t x) {
  if constexpr (by > 0) return vshlq_n_u8(x, by);
  else if constexpr (by < 0) return vshrq_n_u8(x, -by);
  else return x;
}

// Sixteen bits from bit `first` on to sixteen bytes: 255 for a set bit, else 0.
template <int first>
OLV_INLINE uint8x16_t bit_mask(uint32_t bits) {
  constexpr uint8_t a = first / 8, b = a + 1;
  const uint8x16_t byte_of = {a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b};
  const uint8x16_t bit_of = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  return vtstq_u8(vqtbl1q_u8(vreinterpretq_u8_u32(vdupq_n_u32(bits)), byte_of), bit_of);
}

// Half `h` of the super-block at p.
template <int type, int h>
OLV_INLINE void unpack_half(const uint8_t* p, HalfCodes& half) {
  int8x16_t* c = half.code;
  constexpr int bytes = kTypes[type].bytes;
  if constexpr (is_expanded(type)) {
    stored_half<type, h>(p, half);
  } else if constexpr (type == OLV_Q8_0) {
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      c[2 * b] = as_codes(bytes_at(p + bytes * (4 * h + b) + 2));
      c[2 * b + 1] = as_codes(bytes_at(p + bytes * (4 * h + b) + 18));
    }
  } else if constexpr (type == OLV_GROUPED) {
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) c[g] = as_codes(bytes_at(p + 128 * h + 16 * g));
  } else if constexpr (kTypes[type].block == 32 || type == OLV_IQ4_XS) {  // nibbles: 16 low, then 16 high
    constexpr int step = type == OLV_IQ4_XS ? 16 : bytes;
    constexpr int at = type == OLV_MXFP4 ? 1 : type == OLV_Q4_1 ? 4 : type == OLV_Q5_0 ? 6
                       : type == OLV_Q5_1 || type == OLV_IQ4_XS ? 8 : 2;
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      const uint8_t* block = p + step * (4 * h + b);
      const uint8x16_t x = bytes_at(block + at);
      uint8x16_t low = low_nibbles(x), high = vshrq_n_u8(x, 4);
      if constexpr (type == OLV_Q5_0 || type == OLV_Q5_1) {
        const uint32_t bits = load<uint32_t>(block + at - 4);
        low = mixed(16, bit_mask<0>(bits), low);
        high = mixed(16, bit_mask<16>(bits), high);
      }
      c[2 * b] = as_codes(low);
      c[2 * b + 1] = as_codes(high);
      if constexpr (type == OLV_IQ4_NL || type == OLV_IQ4_XS || type == OLV_MXFP4) {
        const int8x16_t table = vld1q_s8(type == OLV_MXFP4 ? kFp4 : kIq4);
        c[2 * b] = vqtbl1q_s8(table, low);
        c[2 * b + 1] = vqtbl1q_s8(table, high);
      }
    }
  } else if constexpr (type == OLV_Q4_K || type == OLV_Q5_K) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {  // sixteen of each 32 elements
      const auto pair = [&]<int n>() {
        const uint8x16_t x = bytes_at(p + (type == OLV_Q4_K ? 16 : 48) + 32 * n + 16 * i);
        uint8x16_t low = low_nibbles(x), high = vshrq_n_u8(x, 4);
        if constexpr (type == OLV_Q5_K) {
          const uint8x16_t bits = bytes_at(p + 16 + 16 * i);
          low = mixed(16, shifted<4 - 2 * n>(bits), low);
          high = mixed(16, shifted<3 - 2 * n>(bits), high);
        }
        c[4 * (n % 2) + i] = as_codes(low);
        c[4 * (n % 2) + 2 + i] = as_codes(high);
      };
      pair.template operator()<2 * h>();
      pair.template operator()<2 * h + 1>();
    }
  } else if constexpr (type == OLV_Q6_K) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const uint8x16_t a = bytes_at(p + 64 * h + 16 * i), b = bytes_at(p + 64 * h + 32 + 16 * i);
      // Two bits each of the first and the third, and of the second and the fourth, where insertions need them.
      const uint8x16_t high = bytes_at(p + 128 + 32 * h + 16 * i), fields = vdupq_n_u8(0x33);
      const uint8x16_t first = vandq_u8(high, fields), second = vandq_u8(vshrq_n_u8(high, 2), fields);
      c[i] = as_codes(vsliq_n_u8(low_nibbles(a), first, 4));
      c[2 + i] = as_codes(vsliq_n_u8(low_nibbles(b), second, 4));
      c[4 + i] = as_codes(vsriq_n_u8(first, a, 4));
      c[6 + i] = as_codes(vsriq_n_u8(second, b, 4));
    }
  } else if constexpr (type == OLV_Q2_K || type == OLV_Q3_K) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const uint8x16_t x = bytes_at(p + (type == OLV_Q2_K ? 16 : 32) + 32 * h + 16 * i);
      const auto quarter = [&]<int r>() {
        uint8x16_t code = shifted<-2 * r>(x);
        if constexpr (r < 3) code = vandq_u8(code, vdupq_n_u8(3));
        // A clear bit of the mask subtracts 4: the offset.
        if constexpr (type == OLV_Q3_K) code = mixed(4, shifted<2 - 4 * h - r>(bytes_at(p + 16 * i)), code);
        c[2 * r + i] = as_codes(code);
      };
      quarter.template operator()<0>();
      quarter.template operator()<1>();
      quarter.template operator()<2>();
      quarter.template operator()<3>();
    }
  }
}

// Four f16 at p, `stride` bytes apart, as floats: put together in integer registers, which are idle.
template <int stride>
OLV_INLINE float32x4_t four_halves(const uint8_t* p) {
  const uint64_t all = uint64_t(load<uint16_t>(p)) | uint64_t(load<uint16_t>(p + stride)) << 16 |
                       uint64_t(load<uint16_t>(p + 2 * stride)) << 32 | uint64_t(load<uint16_t>(p + 3 * stride)) << 48;
  return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(all)));
}

// Words of up to sixteen bits less `from`, times a factor: as the lower half of 2^23 they are added to it. A conversion takes two
// slots of one vector unit on many CPUs.
OLV_INLINE void eight_floats(uint16x8_t x, int from, float factor, float32x4_t& low, float32x4_t& high) {
  const uint16x8_t upper = vdupq_n_u16(0x4b00);
  const float32x4_t start = vdupq_n_f32(float((1 << 23) + from));
  low = vmulq_n_f32(vsubq_f32(vreinterpretq_f32_u16(vzip1q_u16(x, upper)), start), factor);
  high = vmulq_n_f32(vsubq_f32(vreinterpretq_f32_u16(vzip2q_u16(x, upper)), start), factor);
}
// Bytes, less `from`.
OLV_INLINE void eight_floats(uint64_t x, int from, float factor, float32x4_t (&to)[2]) {
  eight_floats(vmovl_u8(vcreate_u8(x)), from, factor, to[0], to[1]);
}

// Sixteen bytes less `from`, by group.
OLV_INLINE void sixteen_floats(uint8x16_t x, int from, float factor, float32x4_t (&even)[2], float32x4_t (&odd)[2]) {
  const uint16x8_t pairs = vreinterpretq_u16_u8(x);
  eight_floats(vandq_u16(pairs, vdupq_n_u16(255)), from, factor, even[0], even[1]);
  eight_floats(vshrq_n_u16(pairs, 8), from, factor, odd[0], odd[1]);
}

// The scales and minima of the super-block at p. `odd` is not set where it equals `even`, nor minima where there are none.
template <int type>
OLV_INLINE void unpack_scales(const uint8_t* p, BlockScales& s) {
  constexpr int bytes = kTypes[type].bytes;
  if constexpr (has_grid(type)) {
    uint8x8_t even, odd;
    scale_codes<type>(p, even, odd);
    odd_multiples(even, grid_unit<type>(p), s.even[0], s.even[1]);
    odd_multiples(odd, grid_unit<type>(p), s.odd[0], s.odd[1]);
  } else if constexpr (type == OLV_TQ1_0 || type == OLV_TQ2_0) {
    s.even[0] = s.even[1] = s.odd[0] = s.odd[1] = vdupq_n_f32(load_f16(p + (type == OLV_TQ1_0 ? 52 : 64)));
  } else if constexpr (type == OLV_NVFP4) {
    const auto four = [&](int b) { return load<uint32_t>(p + b * bytes); };
    const uint8x16_t all = vreinterpretq_u8_u32(uint32x4_t{four(0), four(1), four(2), four(3)});
    e4m3_halves(vget_low_u8(vuzp1q_u8(all, all)), s.even[0], s.even[1]);
    e4m3_halves(vget_low_u8(vuzp2q_u8(all, all)), s.odd[0], s.odd[1]);
  } else if constexpr (type == OLV_MXFP4) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const auto exponent = [&](int b) { return uint32_t(p[bytes * (4 * h + b)]); };
      const uint32x4_t e = {exponent(0), exponent(1), exponent(2), exponent(3)};
      const uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
      const uint32x4_t bits = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
      s.even[h] = vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), tiny, bits));
    }
  } else if constexpr (kTypes[type].block == 32) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      s.even[h] = four_halves<bytes>(p + 4 * bytes * h);
      if constexpr (has_minima(type)) s.even_min[h] = four_halves<bytes>(p + 4 * bytes * h + 2);
    }
  } else if constexpr (type == OLV_IQ4_XS) {
    const uint16_t high = load<uint16_t>(p + 2);
    const uint32_t low = load<uint32_t>(p + 4);
    uint64_t scales = 0;
    for (int j = 0; j < 8; ++j) scales |= uint64_t((low >> 4 * j & 15) | (high >> 2 * j & 3) << 4) << 8 * j;
    eight_floats(scales, 32, load_f16(p), s.even);
  } else if constexpr (type == OLV_Q4_K || type == OLV_Q5_K) {
    const uint32_t a = load<uint32_t>(p + 4), b = load<uint32_t>(p + 8), c = load<uint32_t>(p + 12);
    constexpr uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x03030303;
    eight_floats((a & six) | uint64_t((c & four) | (a >> 6 & two) << 4) << 32, 0, load_f16(p), s.even);
    eight_floats((b & six) | uint64_t((c >> 4 & four) | (b >> 6 & two) << 4) << 32, 0, -load_f16(p + 2), s.even_min);
  } else if constexpr (type == OLV_Q6_K) {
    sixteen_floats(veorq_u8(bytes_at(p + 192), vdupq_n_u8(0x80)), 128, load_f16(p + 208), s.even, s.odd);  // signed
  } else if constexpr (type == OLV_Q2_K) {
    const uint8x16_t both = bytes_at(p);
    sixteen_floats(low_nibbles(both), 0, load_f16(p + 80), s.even, s.odd);
    sixteen_floats(vshrq_n_u8(both, 4), 0, -load_f16(p + 82), s.even_min, s.odd_min);
  } else if constexpr (type == OLV_Q3_K) {
    const uint64_t low = load<uint64_t>(p + 96), last = load<uint32_t>(p + 104);
    constexpr uint64_t nibbles = 0x0f0f0f0f0f0f0f0f;
    const uint64_t first = (last & 0x03030303) | (last >> 2 & 0x03030303) << 32;
    const uint64_t second = (last >> 4 & 0x03030303) | (last >> 6 & 0x03030303) << 32;
    const uint8x16_t scales = vcombine_u8(vcreate_u8((low & nibbles) | first << 4), vcreate_u8((low >> 4 & nibbles) | second << 4));
    sixteen_floats(scales, 32, load_f16(p + 108), s.even, s.odd);
  }
}

// A super-block of a weight row: where its codes are, and qwen3.c's scales, which lie elsewhere. The end of a row is
// copied to memory of its own, padded with zeros.
template <int type>
struct RowBlock {
  const uint8_t* p;
  uint8_t padded[super_block_bytes(type)];
  float grouped[type == OLV_GROUPED ? kGroups : 1];

  OLV_INLINE RowBlock(const olv_weight& w, const uint8_t* row, int64_t n, int64_t index) {
    const int64_t first = index * kSuperBlock, elements = smaller<int64_t>(kSuperBlock, w.k - first);
    p = row + index * super_block_bytes(type);
    if (elements < kSuperBlock) {
      memset(padded, 0, sizeof padded);
      memcpy(padded, p, size_t(elements / kTypes[type].block * kTypes[type].bytes));
      p = padded;
    }
    if constexpr (type == OLV_GROUPED) {
      const uint8_t* scales = w.scales + 4 * (n * (w.k / w.group) + first / w.group);
      int64_t left = w.group - first % w.group;  // elements to the next scale
      for (int64_t g = 0; g < kGroups; ++g) {
        grouped[8 * (g / 8) + 4 * (g % 2) + g % 8 / 2] = g < elements / 16 ? load<float>(scales) : 0;
        left -= 16;
        if (!left) scales += 4, left = w.group;
      }
    }
  }

  OLV_INLINE void scales(BlockScales& s) const {
    if constexpr (type == OLV_GROUPED) {
      for (int h = 0; h < 2; ++h) {
        s.even[h] = vld1q_f32(grouped + 8 * h);
        s.odd[h] = vld1q_f32(grouped + 8 * h + 4);
      }
    } else {
      unpack_scales<type>(p, s);
    }
  }
};

// The same of one that is whole and has its scales.
template <int type>
struct WholeBlock {
  const uint8_t* p;
  OLV_INLINE void scales(BlockScales& s) const { unpack_scales<type>(p, s); }
};

// The 256 elements of a super-block, as floats.
template <int type>
inline void unpack_values(const RowBlock<type>& block, float* v) {
  BlockScales s;
  block.scales(s);
  const auto half = [&]<int h>() {
    HalfCodes codes;
    unpack_half<type, h>(block.p, codes);
    float scale[8], min[8];
    vst1q_f32(scale, s.even[h]);
    vst1q_f32(scale + 4, has_group_scales(type) ? s.odd[h] : s.even[h]);
    if constexpr (has_minima(type)) {
      vst1q_f32(min, s.even_min[h]);
      vst1q_f32(min + 4, has_group_scales(type) ? s.odd_min[h] : s.even_min[h]);
    } else {
      for (int i = 0; i < 8; ++i) min[i] = -float(code_offset(type)) * scale[i];
    }
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      const int at = 4 * (g % 2) + g / 2;
      const int16x8_t wide[2] = {vmovl_s8(vget_low_s8(codes.code[g])), vmovl_high_s8(codes.code[g])};
      float* to = v + 128 * h + 16 * g;
      for (int i = 0; i < 4; ++i) {
        const int32x4_t four = i % 2 ? vmovl_high_s16(wide[i / 2]) : vmovl_s16(vget_low_s16(wide[i / 2]));
        vst1q_f32(to + 4 * i, vfmaq_n_f32(vdupq_n_f32(min[at]), vcvtq_f32_s32(four), scale[at]));
      }
    }
  };
  half.template operator()<0>();
  half.template operator()<1>();
}

}  // namespace
}  // namespace olv
