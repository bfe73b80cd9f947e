// The code grids of the IQ types, which src/olivine/backends/grids.inc has: byte i of a word is its code i.
#pragma once
#include <stdint.h>

namespace olv {

template <class T, int size>
struct Grid {
  T word[size];
};

extern const Grid<uint64_t, 256> kGridIQ2_XXS;
extern const Grid<uint64_t, 512> kGridIQ2_XS;
extern const Grid<uint64_t, 1024> kGridIQ2_S;
extern const Grid<uint64_t, 2048> kGridIQ1_S;
extern const Grid<uint32_t, 256> kGridIQ3_XXS;
extern const Grid<uint32_t, 512> kGridIQ3_S;

// The words as digits, in 16 bits: digit i is at bit 8 · (i % 2) + bits · (i / 2), so that a byte has every second one. And
// what a digit stands for, 128 more than the value, then 128 less the value.
template <int size>
struct PackedGrid {
  alignas(64) uint16_t word[size];
  alignas(16) uint8_t code[16];
};

extern const PackedGrid<256> kPackedIQ2_XXS, kPackedIQ3_XXS;
extern const PackedGrid<512> kPackedIQ2_XS, kPackedIQ3_S;
extern const PackedGrid<1024> kPackedIQ2_S;

#if defined(__aarch64__)
// Indices 2 · g and 2 · g + 1, eight times each, for table lookups. Loaded, because a constant takes one instruction more.
extern const uint8_t kTwoBytes[8][16];
#endif

}  // namespace olv
