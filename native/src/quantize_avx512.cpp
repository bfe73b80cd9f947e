// The quantizers with AVX-512.
#include "quantize.h"

#include "quantize_loops.h"

namespace olv {

void avx512_quantize_row(int type, const float* x, int64_t k, uint8_t* to) { quantize(type, x, k, to); }

}  // namespace olv
