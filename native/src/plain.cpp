// Every kernel in plain C++: runs anywhere, and is what the other instruction sets are compared with.
#include "attention.h"
#include "linear.h"
#include "measure.h"

namespace olv {

const Kernels& plain_kernels() {
  static const Kernels kernels = {
      "plain", quantize, pack, gemv,       gemm,       dequantize, attend_prompt,
      attend_part, rms_norm, gate, softcap, rope, store_kv, add, read_bytes, float_peak, 32 * 16 * 4,
  };
  return kernels;
}

}  // namespace olv
