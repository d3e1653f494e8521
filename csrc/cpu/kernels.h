// The table of kernels that one instruction set offers, and the plain structs they take.
#pragma once
#include <cstddef>
#include <cstdint>

#include "pack.h"

namespace proa {

enum class CacheType : int32_t { F32 = 0, F16 = 1, BF16 = 2 };

/// What attention needs to know of a layer.
struct AttentionShape {
    void* k;             ///< [num_blocks][kv_heads][head_dim][block_size] of `cache_type`
    void* v;             ///< [num_blocks][kv_heads][block_size][head_dim]
    CacheType cache_type;
    int32_t kv_heads;
    int32_t head_dim;    ///< a multiple of 16
    int32_t block_size;  ///< a multiple of 16
    int32_t window;      ///< keys a query sees, itself included; 0 = all
    float scale;         ///< factor of the scores
    float softcap;       ///< 0 = off
};

constexpr int MAX_QUERIES = 8;  ///< of one attention tile

/// Queries of one request that share a KV head: heads of one token, or neighbouring tokens.
struct AttentionQueries {
    const float* q[MAX_QUERIES];   ///< [head_dim]
    float* out[MAX_QUERIES];       ///< [head_dim]
    int32_t position[MAX_QUERIES];
    int32_t count;
    int32_t kv_head;
    int32_t context;     ///< largest position + 1
    float* scratch;      ///< [count][scratch_stride]
    int32_t scratch_stride;  ///< at least `context` rounded up to a block, plus one block
};

struct RopeShape {
    int32_t heads;
    int32_t head_dim;
    int32_t rotary_dim;
    bool interleaved;    ///< pairs (2i, 2i + 1) instead of (i, i + half)
};

/// Where results of a linear layer go: y[token * stride + row], replaced or added to.
struct Output {
    float* y;
    size_t stride;
    bool accumulate;
};

struct KernelTable {
    const char* name;
    int32_t lanes;       ///< rows of a packed group
    bool s8_biased;      ///< form of Pack::S8
    void (*linear)(const Matrix&, int row_begin, int row_end, const Activations&, const Output&);
    void (*quantize)(const float* x, int cols, int8_t* q, QuantBlock* blocks);
    void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* y);
    void (*rope)(float* x, const RopeShape&, const float* table);
    void (*silu_mul)(const float* gate, const float* up, int n, float* y);
    void (*insert_kv)(const AttentionShape&, const float* k, const float* v, int64_t slot);
    void (*attend)(const AttentionShape&, const AttentionQueries&, const int32_t* table);
    int (*argmax)(const float* x, int n);
    float (*sum_exp)(const float* x, int n, float largest);
    int (*count_at_least)(const float* x, int n, float value);
};

/// Null where the translation unit was not built for this architecture.
const KernelTable* kernels_portable();
const KernelTable* kernels_avx2();
const KernelTable* kernels_avx512();

}  // namespace proa
