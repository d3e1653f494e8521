// Kernels for AVX2 with FMA and F16C.
#define PROA_ISA_AVX2 1
#define PROA_ISA_NAMESPACE avx2
#include "table_impl.h"

const proa::KernelTable* proa::kernels_avx2() { return avx2::table("avx2"); }
