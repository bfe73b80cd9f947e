// The loops of sampling over the whole vocabulary: a table for each instruction set.
#pragma once
#include "olivine.h"

namespace olv {

constexpr int64_t kTokens = 128;  // a block

// Step 4: z = (x − peak) / temperature.
struct Temper {
  float peak, temperature;
};

// A token's place in the order of the filters: descending z, then ascending id.
struct Place {
  float z;
  int64_t id;
};

struct SampleLoops {
  // The largest logit of each block. False if one is NaN or +inf.
  bool (*scan)(const float* x, int64_t count, float* peaks);
  // z and e^z · scale, rounded to integers, of at most a block; returns the sum of the latter.
  uint64_t (*weigh)(const float* x, int64_t count, Temper, double scale, float* z, uint64_t* weight);
  // The sum of the weights of the tokens before a place, of at most a block that begins with token `first`.
  uint64_t (*weigh_before)(const float* x, int64_t count, int64_t first, Temper, double scale, Place);
  // Whether any token of at most a block may win a draw, and which: those whose noise may reach `lead` − z. A filter that
  // may pass too many tokens but never drops a winner, so it does not affect the result.
  bool (*contenders)(const float* x, int64_t count, uint32_t first, uint32_t key, Temper, float lead, int32_t* found);
};

const SampleLoops& plain_sample_loops();
#if defined(__x86_64__)
const SampleLoops& avx2_sample_loops();
const SampleLoops& avx512_sample_loops();
#endif

}  // namespace olv
