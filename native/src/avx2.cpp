// AVX2 and FMA: the plain kernels in wider registers, with strips and the dot products of generated rows by hand.
#include "attention.h"
#include "linear2.h"
#include "measure.h"

namespace olv {

const Kernels& avx2_kernels() {
  static const Kernels kernels = {
      "avx2",      quantize, pack, gemv2, gemm, dequantize, attend_prompt,
      attend_part, rms_norm, gate, softcap, rope,      store_kv,  add,        read_bytes,
      float_peak,  32 * 16 * 4,
  };
  return kernels;
}

}  // namespace olv
