// AMX's tiles: eight registers of 16 rows of 64 bytes, and their instructions. With OLV_EMULATE_TILES they are in C++, for
// `make test-amx` on CPUs that have none.
//
// In assembly, because of gcc 12's intrinsics: `ldtilecfg` declares only the first eight bytes of its operand as read, and
// `tileloadd` none, so stores before them might be dropped or come after them.
#pragma once
#include "vec.h"

namespace olv {
namespace {

#if !defined(OLV_EMULATE_TILES)

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t columns[16] = {};  // bytes a row
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

inline void configure_tiles() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.columns[i] = 64;
    config.rows[i] = 16;
  }
  asm volatile("ldtilecfg %0" : : "m"(config));
}

inline void release_tiles() { asm volatile("tilerelease"); }

template <int tile>
OLV_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}

// Sixteen rows that are `stride` bytes apart.
template <int tile>
OLV_INLINE void load_tile(const void* p, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(tile) : "memory");
}

template <int tile>
OLV_INLINE void store_tile(void* p) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(int64_t(64)), "i"(tile) : "memory");
}

// sum[i][j] += Σ a[i][k] · b[k / 2][j][k % 2] in bfloat16, over 32 k; denormals are zeros.
template <int sum, int a, int b>
OLV_INLINE void multiply_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(a), "i"(b));
}

// The same in int8, in fours, over 64 k.
template <int sum, int a, int b>
OLV_INLINE void multiply_int8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(a), "i"(b));
}

// sum[i] += a[2 i] · b[2 i] + a[2 i + 1] · b[2 i + 1] in bfloat16.
OLV_INLINE __m512 add_products(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, load<__m512bh>(&a), load<__m512bh>(&b));
}

#else

// The order of sums differs from the hardware's, and denormals are not zeros: results have other bits.
struct Tile {
  alignas(64) uint8_t rows[16][64];
};
thread_local Tile emulated[8];

inline void configure_tiles() { memset(emulated, 0, sizeof emulated); }
inline void release_tiles() { memset(emulated, 0xff, sizeof emulated); }  // NaN: what is used after it is seen

template <int tile>
inline void zero_tile() {
  memset(&emulated[tile], 0, sizeof(Tile));
}

template <int tile>
inline void load_tile(const void* p, int64_t stride) {
  for (int64_t i = 0; i < 16; ++i) memcpy(emulated[tile].rows[i], static_cast<const uint8_t*>(p) + i * stride, 64);
}

template <int tile>
inline void store_tile(void* p) {
  memcpy(p, &emulated[tile], sizeof(Tile));
}

// Bfloat16 at even places, or at odd ones.
inline __m512 half_of_pairs(__m512i pairs, bool odd) {
  return _mm512_castsi512_ps(odd ? _mm512_and_si512(pairs, _mm512_set1_epi32(int32_t(0xffff0000))) : _mm512_slli_epi32(pairs, 16));
}

inline __m512 add_products(__m512 sum, __m512i a, __m512i b) {
  sum = _mm512_fmadd_ps(half_of_pairs(a, true), half_of_pairs(b, true), sum);
  return _mm512_fmadd_ps(half_of_pairs(a, false), half_of_pairs(b, false), sum);
}

template <int sum, int a, int b>
inline void multiply_bf16() {
  for (int i = 0; i < 16; ++i) {
    __m512 row = _mm512_load_ps(emulated[sum].rows[i]);
    for (int k = 0; k < 16; ++k)
      row = add_products(row, _mm512_set1_epi32(load<int32_t>(emulated[a].rows[i] + 4 * k)), _mm512_load_si512(emulated[b].rows[k]));
    _mm512_store_ps(emulated[sum].rows[i], row);
  }
}

template <int sum, int a, int b>
inline void multiply_int8() {}  // only measured

#endif

}  // namespace
}  // namespace olv
