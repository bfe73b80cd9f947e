// Every kernel in portable C++: for other CPUs, and the reference for the other instruction sets.
#include "attention_decode.h"
#include "linear.h"
#include "measure.h"

namespace olv {

const Kernels& plain_kernels() {
  static const Kernels kernels = {
      "plain", quantize, pack, gemv, gemm, dequantize, expand, prefill_attention,
      decode_attention, merge_splits, rms_norm, gate, softcap, rope, store_kv, add,
      read_bytes, float_peak, 32 * 16 * 4, plain_sample_loops, plain_quantize_row,
  };
  return kernels;
}

}  // namespace olv
