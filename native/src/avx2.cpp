// AVX2 and FMA: the plain kernels compiled for wider registers; unpacking and GEMV with intrinsics.
#include "attention.h"
#include "linear_avx2.h"
#include "measure.h"

namespace olv {

const Kernels& avx2_kernels() {
  static const Kernels kernels = {
      "avx2", quantize, pack, gemv_avx2, gemm, dequantize, expand, prefill_attention,
      decode_attention, rms_norm, gate, softcap, rope, store_kv, add,
      read_bytes, float_peak, 32 * 16 * 4, avx2_sample_loops, avx2_quantize_row,
  };
  return kernels;
}

}  // namespace olv
