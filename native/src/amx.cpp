// AMX tiles for prompt rows, AVX-512 for the rest.
#include "attention.h"
#include "linear.h"
#include "measure.h"

namespace olv {

const Kernels& amx_kernels() {
  static const Kernels kernels = {
      "amx", quantize, pack, gemv,       gemm,       dequantize, attend_prompt,
      attend_part, rms_norm, gate, add, read_bytes, float_peak, 32 * 16 * 4,
  };
  return kernels;
}

}  // namespace olv
