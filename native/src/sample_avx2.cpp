// Sampling's loops with AVX2.
#include "sample_exact.h"

namespace olv {

const SampleLoops& avx2_sample_loops() {
  static const SampleLoops loops = {scan, weigh, weigh_before, contenders};
  return loops;
}

}  // namespace olv
