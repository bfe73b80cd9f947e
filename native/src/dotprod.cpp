// ARMv8.2 with dot products (sdot).
#define OLV_NEON
#include "attention_decode.h"
#include "linear_neon.h"
#include "measure.h"

namespace olv {

const Kernels& dotprod_kernels() {
  static const Kernels kernels = {
      "dotprod", quantize_neon, pack, gemv_neon, gemm, dequantize, expand, prefill_attention,
      decode_attention, merge_splits, rms_norm, gate, softcap, rope, store_kv, add,
      read_bytes, float_peak, 32 * 16 * 4, plain_sample_loops, plain_quantize_row,
  };
  return kernels;
}

}  // namespace olv
