// Resizing of images, bit for bit as Pillow does it: a horizontal pass, rounded to 8 bits, then a vertical one, with
// weights of 22 bits behind the point. The weights come from Python (media/resize.py).
#include <string.h>

#include <new>
#include <vector>

#include "olivine.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define OLV_AVX2 __attribute__((target("avx2")))
#include <immintrin.h>
#endif

namespace olv {
namespace {

constexpr int kPoint = 22;  // bits of a weight behind the point
constexpr int kRound = 1 << (kPoint - 1);

inline uint8_t clamped(int32_t sum) {
  const int32_t value = sum >> kPoint;
  return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

// One row, four bytes a pixel.
void resize_row(const uint8_t* from, const olv_axis* axis, uint8_t* to) {
  for (int64_t x = 0; x < axis->to; ++x) {
    const uint8_t* start = from + axis->first[x] * 4;
    const int32_t* weights = axis->weights + x * axis->taps;
    int32_t sums[4] = {kRound, kRound, kRound, kRound};
    for (int64_t tap = 0; tap < axis->taps; ++tap)
      for (int c = 0; c < 4; ++c) sums[c] += start[tap * 4 + c] * weights[tap];
    for (int c = 0; c < 4; ++c) to[x * 4 + c] = clamped(sums[c]);
  }
}

// One row of a result, from `taps` rows of as many bytes.
void resize_column(const uint8_t* from, int64_t bytes, const int32_t* weights, int64_t taps, int64_t start, uint8_t* to) {
  for (int64_t i = start; i < bytes; ++i) {
    int32_t sum = kRound;
    for (int64_t tap = 0; tap < taps; ++tap) sum += from[tap * bytes + i] * weights[tap];
    to[i] = clamped(sum);
  }
}

#ifdef OLV_AVX2
constexpr int kLow = 11;  // bits of the lower part of a weight: both parts fit into 16 bits

// The weights of two taps in 16 bits each, upper parts and lower parts: w = upper · 2^11 + lower.
struct Pairs {
  std::vector<int32_t> upper, lower;

  explicit Pairs(const olv_axis* axis) : upper(axis->to * axis->taps / 2), lower(upper.size()) {
    for (size_t i = 0; i < upper.size(); ++i) {
      const int32_t first = axis->weights[2 * i], second = axis->weights[2 * i + 1];
      upper[i] = static_cast<int32_t>((first >> kLow & 0xFFFF) | static_cast<uint32_t>(second >> kLow) << 16);
      lower[i] = (first & ((1 << kLow) - 1)) | (second & ((1 << kLow) - 1)) << 16;
    }
  }
};

OLV_AVX2 inline __m256i finished(__m256i upper, __m256i lower) {
  const __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(upper, kLow), lower);
  return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(kRound)), kPoint);
}

// Two rows, one in each half of a register; four pixels a step.
OLV_AVX2 void resize_rows_avx2(const uint8_t* from, int64_t stride, const olv_axis* axis, const Pairs& pairs, uint8_t* to,
                               int64_t to_stride) {
  // r0 r1 g0 g1 b0 b1 x0 x1 as 16 bits, and the same of pixels 2 and 3.
  const __m256i one = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
  const __m256i two = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1));
  const int64_t steps = axis->taps / 2;
  for (int64_t x = 0; x < axis->to; ++x) {
    const uint8_t* start = from + axis->first[x] * 4;
    const int32_t* upper = pairs.upper.data() + x * steps;
    const int32_t* lower = pairs.lower.data() + x * steps;
    __m256i high = _mm256_setzero_si256(), low = _mm256_setzero_si256();
    for (int64_t step = 0; step < steps; step += 2) {
      const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(start + step * 8));
      const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(start + stride + step * 8));
      const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
      const __m256i front = _mm256_shuffle_epi8(both, one), back = _mm256_shuffle_epi8(both, two);
      high = _mm256_add_epi32(high, _mm256_madd_epi16(front, _mm256_set1_epi32(upper[step])));
      low = _mm256_add_epi32(low, _mm256_madd_epi16(front, _mm256_set1_epi32(lower[step])));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(back, _mm256_set1_epi32(upper[step + 1])));
      low = _mm256_add_epi32(low, _mm256_madd_epi16(back, _mm256_set1_epi32(lower[step + 1])));
    }
    const __m256i values = finished(high, low);
    const __m256i words = _mm256_packs_epi32(values, values);
    const __m256i bytes = _mm256_packus_epi16(words, words);
    const int32_t above = _mm256_extract_epi32(bytes, 0), below = _mm256_extract_epi32(bytes, 4);
    memcpy(to + x * 4, &above, 4);
    memcpy(to + to_stride + x * 4, &below, 4);
  }
}

// 16 bytes of a row of the result at once; the bytes of two rows are paired.
OLV_AVX2 int64_t resize_column_avx2(const uint8_t* from, int64_t bytes, const int32_t* upper, const int32_t* lower,
                                    int64_t taps, uint8_t* to) {
  int64_t i = 0;
  for (; i + 16 <= bytes; i += 16) {
    __m256i high[2] = {}, low[2] = {};
    for (int64_t step = 0; step < taps / 2; ++step) {
      const uint8_t* start = from + step * 2 * bytes + i;
      const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(start));
      const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(start + bytes));
      const __m256i pixels[2] = {_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(first, second)),
                                 _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(first, second))};
      const __m256i u = _mm256_set1_epi32(upper[step]), l = _mm256_set1_epi32(lower[step]);
      for (int half = 0; half < 2; ++half) {
        high[half] = _mm256_add_epi32(high[half], _mm256_madd_epi16(pixels[half], u));
        low[half] = _mm256_add_epi32(low[half], _mm256_madd_epi16(pixels[half], l));
      }
    }
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(finished(high[0], low[0]), finished(high[1], low[1])), 0xD8);
    const __m128i packed = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), packed);
  }
  return i;
}

bool has_avx2() { return strcmp(olv_isa(), "plain") != 0; }
#endif

bool is_sound(const olv_axis* axis) {
  if (axis->from < 1 || axis->to < 1 || axis->taps < 4 || axis->taps % 4 || axis->taps > axis->from) return false;
  for (int64_t i = 0; i < axis->to; ++i)
    if (axis->first[i] < (i ? axis->first[i - 1] : 0) || axis->first[i] > axis->from - axis->taps) return false;
  return true;
}

void resize(const uint8_t* pixels, const olv_axis* x, const olv_axis* y, uint8_t* to) {
  // Only the rows that the vertical pass reads.
  const int64_t first = y->first[0], last = y->first[y->to - 1] + y->taps, bytes = x->to * 4, stride = x->from * 4;
  std::vector<uint8_t> middle((last - first) * bytes);
  int64_t row = first;
#ifdef OLV_AVX2
  if (has_avx2()) {
    const Pairs across(x), down(y);
    for (; row + 2 <= last; row += 2)
      resize_rows_avx2(pixels + row * stride, stride, x, across, middle.data() + (row - first) * bytes, bytes);
    if (row < last) resize_row(pixels + row * stride, x, middle.data() + (row - first) * bytes);
    for (int64_t i = 0; i < y->to; ++i) {
      const uint8_t* from = middle.data() + (y->first[i] - first) * bytes;
      const int64_t pairs = i * y->taps / 2;
      const int64_t done = resize_column_avx2(from, bytes, down.upper.data() + pairs, down.lower.data() + pairs, y->taps,
                                              to + i * bytes);
      resize_column(from, bytes, y->weights + i * y->taps, y->taps, done, to + i * bytes);
    }
    return;
  }
#endif
  for (; row < last; ++row) resize_row(pixels + row * stride, x, middle.data() + (row - first) * bytes);
  for (int64_t i = 0; i < y->to; ++i)
    resize_column(middle.data() + (y->first[i] - first) * bytes, bytes, y->weights + i * y->taps, y->taps, 0, to + i * bytes);
}

}  // namespace
}  // namespace olv

extern "C" int olv_resize(const uint8_t* pixels, const olv_axis* x, const olv_axis* y, uint8_t* to) {
  if (!olv::is_sound(x) || !olv::is_sound(y)) return 1;
  try {
    olv::resize(pixels, x, y, to);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}
