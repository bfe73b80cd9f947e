// The grids, decoded by the compiler: once for all instruction sets, because there is no code in this file.
#include "grids.h"

#include <type_traits>

namespace olv {
namespace {

template <class T, int size, int digits>
constexpr void decode(const char* set, const int8_t (&value)[digits], Grid<T, size>& grid) {
  int found = 0;
  for (int word = 0; set[word / 4]; ++word) {
    const char figure = set[word / 4];
    const int four = figure <= '9' ? figure - '0' : figure - 'a' + 10;
    if (!(four >> word % 4 & 1)) continue;
    T& to = grid.word[found++];
    for (int i = 0, rest = word; i < int(sizeof(T)); ++i, rest /= digits) to |= T(uint8_t(value[rest % digits])) << 8 * i;
  }
  if (found != size) throw "the set has fewer words";  // then this does not compile
}

template <class T, int size, int digits>
constexpr PackedGrid<size> packed(const Grid<T, size>& grid, const int8_t (&value)[digits]) {
  constexpr int bits = digits == 8 ? 3 : 2;
  PackedGrid<size> to = {};
  for (int digit = 0; digit < digits; ++digit) {
    to.code[digit] = uint8_t(128 + value[digit]);
    to.code[digit + (1 << bits)] = uint8_t(128 - value[digit]);
    for (int word = 0; word < size; ++word)
      for (int i = 0; i < int(sizeof(T)); ++i)
        if (int8_t(grid.word[word] >> 8 * i & 255) == value[digit]) to.word[word] |= uint16_t(digit << (8 * (i % 2) + bits * (i / 2)));
  }
  return to;
}

}  // namespace

#define LIST(...) {__VA_ARGS__}
#define GRID(type, length, values, set)                                       \
  static_assert(sizeof(kGrid##type.word[0]) == length);                       \
  constexpr decltype(kGrid##type) kGrid##type = [] {                          \
    constexpr int8_t value[] = LIST values;                                   \
    std::remove_const_t<decltype(kGrid##type)> grid = {};                     \
    decode(set, value, grid);                                                 \
    return grid;                                                              \
  }();
#include "../../src/olivine/backends/grids.inc"
#undef GRID
#define GRID(type, length, values, set) constexpr int8_t kValues##type[] = LIST values;
#include "../../src/olivine/backends/grids.inc"

constexpr PackedGrid<256> kPackedIQ2_XXS = packed(kGridIQ2_XXS, kValuesIQ2_XXS);
constexpr PackedGrid<256> kPackedIQ3_XXS = packed(kGridIQ3_XXS, kValuesIQ3_XXS);
constexpr PackedGrid<512> kPackedIQ2_XS = packed(kGridIQ2_XS, kValuesIQ2_XS);
constexpr PackedGrid<512> kPackedIQ3_S = packed(kGridIQ3_S, kValuesIQ3_S);
constexpr PackedGrid<1024> kPackedIQ2_S = packed(kGridIQ2_S, kValuesIQ2_S);

#if defined(__aarch64__)
#define TWICE(a) {a, a, a, a, a, a, a, a, a + 1, a + 1, a + 1, a + 1, a + 1, a + 1, a + 1, a + 1}
alignas(16) constexpr uint8_t kTwoBytes[8][16] = {TWICE(0), TWICE(2), TWICE(4), TWICE(6), TWICE(8), TWICE(10), TWICE(12), TWICE(14)};
#endif

}  // namespace olv
