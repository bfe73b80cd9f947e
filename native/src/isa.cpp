// The table of instruction sets, and the choice among them at run time.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace olv {
namespace {

bool has_plain() { return true; }

#if defined(__x86_64__)
bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

uint64_t enabled_state() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
}

bool has_amx() {
#if defined(__linux__)
  if (!has_avx512() || !__builtin_cpu_supports("avx512bf16")) return false;
  uint32_t a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr uint32_t bf16 = 1u << 22, tile = 1u << 24;
  if ((d & bf16) == 0 || (d & tile) == 0) return false;
  if ((enabled_state() >> 17 & 3) != 3) return false;
  // Linux allows the 8 KB of tile state only to processes that request it.
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#elif defined(__aarch64__)
#if defined(__linux__)
// As in the kernel's asm/hwcap.h; older headers lack the second word.
bool has_dotprod() {
  constexpr unsigned long half_arithmetic = 1ul << 10, dot_product = 1ul << 20, both = half_arithmetic | dot_product;
  return (getauxval(AT_HWCAP) & both) == both;
}
bool has_i8mm() {
  constexpr unsigned long int8_matrix = 1ul << 13, bf16 = 1ul << 14, both = int8_matrix | bf16;
  return has_dotprod() && (getauxval(AT_HWCAP2) & both) == both;
}
#elif defined(__APPLE__)
bool has_feature(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value == 1;
}
bool has_dotprod() {
  return has_feature("hw.optional.arm.FEAT_DotProd") && has_feature("hw.optional.arm.FEAT_FP16");
}
bool has_i8mm() {
  return has_dotprod() && has_feature("hw.optional.arm.FEAT_I8MM") && has_feature("hw.optional.arm.FEAT_BF16");
}
#else
bool has_dotprod() { return false; }
bool has_i8mm() { return false; }
#endif
#endif

struct Isa {
  const char* name;
  bool (*is_here)();
  const Kernels& (*kernels)();  // code for that instruction set: called only where it is
};

// The best first. The flags of their files are in build.py.
constexpr Isa kIsas[] = {
#if defined(__x86_64__)
    {"amx", has_amx, amx_kernels},
    {"avx512", has_avx512, avx512_kernels},
    {"avx2", has_avx2, avx2_kernels},
#elif defined(__aarch64__)
    {"i8mm", has_i8mm, i8mm_kernels},
    {"dotprod", has_dotprod, dotprod_kernels},
    {"neon", has_plain, neon_kernels},
#endif
    {"plain", has_plain, plain_kernels},
};

const Kernels* by_name(const char* name) {
  for (const Isa& isa : kIsas)
    if (!strcmp(isa.name, name) && isa.is_here()) return &isa.kernels();
  return nullptr;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

bool use_isa(const char* name) {
  const Kernels* k = by_name(name);
  if (k) chosen.store(k);
  return k;
}

const Kernels& kernels() {
  const Kernels* k = chosen.load();
  if (k) return *k;
  if (const char* wanted = std::getenv("OLIVINE_ISA")) k = by_name(wanted);
  for (const Isa& isa : kIsas)
    if (!k) k = by_name(isa.name);
  chosen.store(k);
  return *k;
}

}  // namespace olv
