// AVX2 and FMA: the plain kernels compiled for wider registers; unpacking, GEMV and GEMM of quantized weights with intrinsics.
#include "attention_decode.h"
#include "gemm_avx2.h"
#include "measure.h"

namespace olv {

const Kernels& avx2_kernels() {
  static const Kernels kernels = {
      "avx2", quantize, pack, gemv_avx2, gemm_avx2, dequantize, expand, prefill_attention,
      decode_attention, merge_splits, rms_norm, gate, softcap, rope, store_kv, add,
      read_bytes, peak_avx2, 32 * 16 * 4, avx2_sample_loops, avx2_quantize_row,
      takes_codes_avx2, quantize_prompt_avx2, false, true,
  };
  return kernels;
}

}  // namespace olv
