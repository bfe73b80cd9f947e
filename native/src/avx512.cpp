// AVX-512 with VNNI and BF16.
#include "attention512.h"
#include "linear512.h"
#include "measure.h"

namespace olv {

const Kernels& avx512_kernels() {
  static const Kernels kernels = {
      "avx512", quantize512, pack512, gemv512,    gemm512,    dequantize, attend_prompt,
      attend_part512, rms_norm, gate, rope, store_kv, add, read_bytes, float_peak, 2 * kTile,
  };
  return kernels;
}

}  // namespace olv
