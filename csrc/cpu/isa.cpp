// Which instruction sets this machine has, and the kernels of each.
#include "isa.h"

#include <cstring>
#include <initializer_list>

namespace proa {
namespace {

bool machine_has(const char* isa) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!std::strcmp(isa, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (!std::strcmp(isa, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
#endif
    return !std::strcmp(isa, "portable");
}

}  // namespace

const KernelTable* kernels_for(const char* isa) {
    if (!machine_has(isa)) return nullptr;
#if defined(__x86_64__)
    if (!std::strcmp(isa, "avx512")) return kernels_avx512();
    if (!std::strcmp(isa, "avx2")) return kernels_avx2();
#endif
    return kernels_portable();
}

const KernelTable* best_kernels() {
    for (const char* isa : {"avx512", "avx2"})
        if (const KernelTable* kernels = kernels_for(isa)) return kernels;
    return kernels_portable();
}

}  // namespace proa
