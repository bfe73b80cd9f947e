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
// What the CPU has, and which registers the system saves for it. Read from the CPU: the compiler's
// __builtin_cpu_supports is a function of a runtime library that Clang does not link everywhere.
struct Cpu {
  uint32_t leaf1_c = 0, leaf7_b = 0, leaf7_c = 0, leaf7_d = 0, leaf7_1_a = 0;
  uint64_t saved = 0;

  Cpu() {
    uint32_t a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d)) leaf1_c = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
      leaf7_b = b, leaf7_c = c, leaf7_d = d;
      if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) leaf7_1_a = a;
    }
    constexpr uint32_t xgetbv_is_here = 1u << 27;
    if (leaf1_c & xgetbv_is_here) {
      uint32_t low, high;
      asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
      saved = uint64_t(high) << 32 | low;
    }
  }
};

bool has_all(uint64_t word, uint64_t bits) { return (word & bits) == bits; }

bool has_avx2() {
  constexpr uint32_t fma = 1u << 12, avx = 1u << 28, f16c = 1u << 29, avx2 = 1u << 5, bmi2 = 1u << 8;
  constexpr uint64_t ymm = 6;
  const Cpu cpu;
  return has_all(cpu.leaf1_c, fma | avx | f16c) && has_all(cpu.leaf7_b, avx2 | bmi2) && has_all(cpu.saved, ymm);
}

bool has_avxvnni() {
  constexpr uint32_t avx_vnni = 1u << 4;
  return has_avx2() && has_all(Cpu().leaf7_1_a, avx_vnni);
}

bool has_avx512() {
  constexpr uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, vnni = 1u << 11;
  constexpr uint64_t zmm = 0xe0;
  const Cpu cpu;
  return has_avx2() && has_all(cpu.leaf7_b, f | dq | bw | vl) && has_all(cpu.leaf7_c, vnni) && has_all(cpu.saved, zmm);
}

bool has_amx() {
#if defined(OLV_EMULATE_TILES)
  return has_avx512();
#elif defined(__linux__)
  constexpr uint32_t avx512_bf16 = 1u << 5, bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25;
  constexpr uint64_t tiles = 3u << 17;
  const Cpu cpu;
  if (!has_avx512() || !has_all(cpu.leaf7_1_a, avx512_bf16)) return false;
  if (!has_all(cpu.leaf7_d, bf16 | tile | int8) || !has_all(cpu.saved, tiles)) return false;
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
bool has_dotprod() { return true; }  // all such Macs; sysctl has a name for it since macOS 12
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
    {"avxvnni", has_avxvnni, avxvnni_kernels},
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
