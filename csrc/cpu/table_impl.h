// The kernel table of the instruction set that this translation unit is compiled for.
#pragma once
#include "attention_impl.h"
#include "elementwise_impl.h"
#include "linear_impl.h"

namespace proa::PROA_ISA_NAMESPACE {

inline const KernelTable* table(const char* name) {
    static const KernelTable kernels{name,      LANES,     S8_BIASED, linear, quantize, rms_norm,      rope,
                                     silu_mul,  insert_kv, attend,    argmax, sum_exp,  count_at_least};
    return &kernels;
}

}  // namespace proa::PROA_ISA_NAMESPACE
