// Choice of kernels at run time.
#pragma once
#include "kernels.h"

namespace proa {

/// Kernels of `portable`, `avx2` or `avx512`; null if this machine lacks the instruction set or the name is unknown.
const KernelTable* kernels_for(const char* isa);
/// The widest instruction set that this machine has.
const KernelTable* best_kernels();

}  // namespace proa
