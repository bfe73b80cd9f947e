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

}  // namespace olv
