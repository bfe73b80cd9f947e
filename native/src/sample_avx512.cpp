// Sampling's loops with AVX-512.
#include "sample_exact.h"

namespace olv {

const SampleLoops& avx512_sample_loops() {
  static const SampleLoops loops = {scan, weigh, weigh_before, contenders};
  return loops;
}

}  // namespace olv
