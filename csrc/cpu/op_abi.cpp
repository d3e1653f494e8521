// Single ops behind the C ABI: what the tests and the kernel benchmarks call. Serving goes through the runner.
#include <vector>

#include "../include/proa_cpu.h"
#include "isa.h"

using namespace proa;

namespace {

Matrix matrix_of(const proa_cpu_matrix* m) {
    return {m->type, pack_of(m->type), m->rows, m->cols, (const uint8_t*)m->data};
}

}  // namespace

extern "C" {

const void* proa_cpu_kernels(const char* isa) { return isa && *isa ? kernels_for(isa) : best_kernels(); }

const char* proa_cpu_isa_name(const void* kernels) { return ((const KernelTable*)kernels)->name; }

int64_t proa_cpu_packed_bytes(const void* kernels, const proa_cpu_matrix* m) {
    const int lanes = ((const KernelTable*)kernels)->lanes;
    const Matrix matrix = matrix_of(m);
    return (int64_t)(matrix.group_bytes(lanes) * (size_t)matrix.groups(lanes));
}

void proa_cpu_pack(const void* kernels, const proa_cpu_matrix* m, void* out) {
    const auto* k = (const KernelTable*)kernels;
    const Matrix matrix = matrix_of(m);
    pack_groups(matrix, matrix.data, {(uint8_t*)out, k->lanes, k->s8_biased}, 0, matrix.groups(k->lanes));
}

void proa_cpu_linear(const void* kernels, const proa_cpu_matrix* m, const float* x, int32_t tokens, int32_t int8, float* y) {
    const auto* k = (const KernelTable*)kernels;
    const Matrix matrix = matrix_of(m);
    std::vector<int8_t> q;
    std::vector<QuantBlock> blocks;
    if (int8 && matrix.pack != Pack::NONE) {
        q.resize((size_t)tokens * m->cols);
        blocks.resize((size_t)tokens * m->cols / BLOCK);
        for (int t = 0; t < tokens; t++)
            k->quantize(x + (size_t)t * m->cols, m->cols, &q[(size_t)t * m->cols], &blocks[(size_t)t * m->cols / BLOCK]);
    }
    const Activations a{x, q.empty() ? nullptr : q.data(), blocks.data(), tokens, m->cols};
    k->linear(matrix, 0, matrix.rows, a, {y, (size_t)m->rows, false});
}

void proa_cpu_expand(int32_t type, const void* row, int32_t cols, float* out) {
    expand_row(type, (const uint8_t*)row, cols, out);
}

}
