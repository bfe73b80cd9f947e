// Tells the CPU that this thread spins.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace olv {

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // waits some tens of cycles, as x86's does; `yield` does nothing on most CPUs
#endif
}

}  // namespace olv
