// Kernels for AVX-512 with VNNI.
#define PROA_ISA_AVX512 1
#define PROA_ISA_NAMESPACE avx512
#include "table_impl.h"

const proa::KernelTable* proa::kernels_avx512() { return avx512::table("avx512"); }
