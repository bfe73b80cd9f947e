// ARMv8.2 with the int8 and bfloat16 matrix products of ARMv8.6: GEMM in bfloat16.
#define OLV_NEON
#include "gemm_i8mm.h"

namespace olv {

// What has nothing to do with matrix products is that of dotprod.cpp, compiled there.
const Kernels& i8mm_kernels() {
  static const Kernels kernels = [] {
    Kernels k = dotprod_kernels();
    k.name = "i8mm";
    k.pack = pack_i8mm;
    k.gemm = gemm_i8mm;
    k.peak = matrix_peak;
    k.panel_bytes = 2 * kTile;
    k.takes_codes = nullptr;  // prompt rows are in bfloat16
    k.quantize_prompt = nullptr;
    return k;
  }();
  return kernels;
}

}  // namespace olv
