// AVX-512 with VNNI. GEMM is in int8 for quantized weights, and in float32 for others: where measured, vdpbf16ps has half
// the throughput of float FMAs.
#define OLV_KEYS_BY_COLUMN
#include "attention_columns.h"
#include "gemm_avx512.h"
#include "measure.h"

namespace olv {

const Kernels& avx512_kernels() {
  static const Kernels kernels = {
      "avx512", quantize_avx512, pack, gemv_avx512, gemm_avx512, dequantize, expand, prefill_attention,
      decode_attention_columns, merge_splits, rms_norm, gate, softcap, rope, store_columns_avx512, add,
      read_bytes, peak_avx512, 32 * 16 * 4, avx512_sample_loops, avx512_quantize_row,
      has_super_blocks, quantize_avx512, true, true,
  };
  return kernels;
}

}  // namespace olv
