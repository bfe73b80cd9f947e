// The quantizers for the baseline of the architecture, and what they take.
#if defined(__aarch64__)
#define OLV_NEON  // the baseline has it
#endif
#include "quantize.h"

#include "quantize_loops.h"

namespace olv {

void plain_quantize_row(int type, const float* x, int64_t k, uint8_t* to) { quantize(type, x, k, to); }

bool can_quantize(int type) {
  switch (type) {
    case OLV_F32: case OLV_F16: case OLV_BF16: case OLV_Q4_0: case OLV_Q4_1: case OLV_Q5_0: case OLV_Q5_1:
    case OLV_Q8_0: case OLV_Q4_K: case OLV_Q5_K: case OLV_Q6_K:
      return true;
    default:
      return false;
  }
}

float largest_value(int type) {
  // Scales and minima are float16, and a minimum can be as large as a value.
  return type == OLV_F32 ? INFINITY : type == OLV_BF16 ? 3.38e38f : 65504.f;
}

}  // namespace olv
