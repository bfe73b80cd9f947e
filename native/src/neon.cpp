// ARMv8.0: NEON, the baseline of aarch64. Sampling and quantizers are compiled for it as they are.
#define OLV_NEON
#include "attention_decode.h"
#include "linear_neon.h"
#include "measure.h"

namespace olv {

const Kernels& neon_kernels() {
  static const Kernels kernels = {
      "neon", quantize_neon, pack, gemv_neon, gemm, dequantize, expand, prefill_attention,
      decode_attention, merge_splits, rms_norm, gate, softcap, rope, store_kv, add,
      read_bytes, float_peak, 32 * 16 * 4, plain_sample_loops, plain_quantize_row,
      nullptr, nullptr, false, true,
  };
  return kernels;
}

}  // namespace olv
