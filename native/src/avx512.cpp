// AVX-512 with VNNI and BF16. Prompt rows are floats: where measured, vdpbf16ps has half the rate of their products.
#include "attention512.h"
#include "linear512.h"
#include "measure.h"

namespace olv {

const Kernels& avx512_kernels() {
  static const Kernels kernels = {
      "avx512", quantize512, pack,    gemv512,    gemm,       dequantize, attend_prompt,
      attend_part512, rms_norm, gate, softcap, rope, store_kv512, add, read_bytes, float_peak, 32 * 16 * 4,
  };
  return kernels;
}

}  // namespace olv
