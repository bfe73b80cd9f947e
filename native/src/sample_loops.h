// The loops of sampling that run over a whole vocabulary: a table of them for each instruction set.
#pragma once
#include "olivine.h"

namespace olv {

constexpr int64_t kTokens = 128;  // a block

// Step 4: z = (x − peak) / temperature.
struct Temper {
  float peak, temperature;
};

// A token's place in the order of the filters: z downward, then ids upward.
struct Place {
  float z;
  int64_t id;
};

struct SampleLoops {
  // The largest logit of each block. False where one is NaN or +inf.
  bool (*scan)(const float* x, int64_t count, float* peaks);
  // z and e^z · scale, rounded to integers, of at most a block; gives the sum of the latter.
  uint64_t (*weigh)(const float* x, int64_t count, Temper, double scale, float* z, uint64_t* weight);
  // The sum of the weights of those that come before a place, of at most a block that begins with token `first`.
  uint64_t (*weigh_before)(const float* x, int64_t count, int64_t first, Temper, double scale, Place);
  // Whether any of at most a block may win a draw, and which: those whose noise may reach `lead` − z. `found` has
  // no bit of the definition in it: it errs on the side of letting a token try.
  bool (*contenders)(const float* x, int64_t count, uint32_t first, uint32_t key, Temper, float lead, int32_t* found);
};

const SampleLoops& plain_sample_loops();
#if defined(__x86_64__)
const SampleLoops& avx2_sample_loops();
const SampleLoops& avx512_sample_loops();
#endif

}  // namespace olv
