// AVX2 with the dot products of VNNI, for CPUs that have those without AVX-512 (Intel's client CPUs since 2021): GEMV and GEMM of
// quantized weights. The rest is that of AVX2, compiled there.
#include "gemm_avx2.h"
#include "measure.h"

namespace olv {

const Kernels& avxvnni_kernels() {
  static const Kernels kernels = [] {
    Kernels k = avx2_kernels();
    k.name = "avxvnni";
    k.gemv = gemv_avx2;
    k.gemm = gemm_avx2;
    k.peak = peak_avx2;
    k.takes_codes = takes_codes_avx2;
    return k;
  }();
  return kernels;
}

}  // namespace olv
