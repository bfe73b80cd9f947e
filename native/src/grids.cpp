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

}  // namespace olv
