// ARMv8.2 with the int8 and bfloat16 matrix products of ARMv8.6: GEMM in bfloat16, the rest as with dot products.
#define OLV_NEON
#include "attention.h"
#include "measure.h"

#include "gemm_i8mm.h"

namespace olv {

const Kernels& i8mm_kernels() {
  static const Kernels kernels = {
      "i8mm", quantize_neon, pack_i8mm, gemv_neon, gemm_i8mm, dequantize, prefill_attention,
      decode_attention, rms_norm, gate, softcap, rope, store_kv, add,
      read_bytes, matrix_peak, 2 * kTile, plain_sample_loops, plain_quantize_row,
  };
  return kernels;
}

}  // namespace olv
