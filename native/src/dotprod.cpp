// ARMv8.2 with dot products (sdot). GEMM is in int8 for quantized weights, and in float32 for others.
#define OLV_NEON
#include "attention_decode.h"
#include "gemm_dotprod.h"
#include "measure.h"

namespace olv {

const Kernels& dotprod_kernels() {
  static const Kernels kernels = {
      "dotprod", quantize_neon, pack, gemv_neon, gemm_dotprod, dequantize, expand, prefill_attention,
      decode_attention, merge_splits, rms_norm, gate, softcap, rope, store_kv, add,
      read_bytes, peak_dotprod, 32 * 16 * 4, plain_sample_loops, plain_quantize_row,
      has_super_blocks, quantize_prompt_dotprod, false, true,
  };
  return kernels;
}

}  // namespace olv
