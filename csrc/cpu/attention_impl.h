// Paged attention over a cache that is read back for every key, the ones of the running chunk included, so that a
// token's result does not depend on how its prompt was cut into chunks.
//
// K lies as [block][kv_head][dim][token of the block]: scores of LANES tokens come out side by side, without horizontal
// sums. V lies as [block][kv_head][token of the block][dim]. Sums over dims and over tokens run in rising order.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace proa::PROA_ISA_NAMESPACE {

template <CacheType C> struct CacheElement { using type = uint16_t; };
template <> struct CacheElement<CacheType::F32> { using type = float; };

template <CacheType C> inline F load_cache(const typename CacheElement<C>::type* p) {
    if constexpr (C == CacheType::F32) return load(p);
    else if constexpr (C == CacheType::BF16) return load_bf16(p);
    else return load_f16(p);
}

template <CacheType C> inline void store_cache(typename CacheElement<C>::type* p, F a) {
    if constexpr (C == CacheType::F32) store(p, a);
    else if constexpr (C == CacheType::BF16) store_bf16(p, a);
    else store_f16(p, a);
}

/// Scores of N queries against the tokens [first, end) of a row, first a multiple of the block size; s[n * stride + t - first].
template <CacheType C, int N>
void scores(const AttentionShape& a, const AttentionQueries& queries, const int32_t* table, int first, float* s) {
    using E = typename CacheElement<C>::type;
    const size_t head_size = (size_t)a.head_dim * a.block_size;
    for (int t = first; t < queries.context; t += LANES) {
        const size_t block = (size_t)table[t / a.block_size] * a.kv_heads + queries.kv_head;
        const E* k = (const E*)a.k + block * head_size + t % a.block_size;
        F acc[N];
        for (auto& e : acc) e = zero();
        for (int d = 0; d < a.head_dim; d++) {
            const F key = load_cache<C>(k + (size_t)d * a.block_size);
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) acc[n] = fma(key, splat(queries.q[n][d]), acc[n]);
        }
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) store(s + (size_t)n * queries.scratch_stride + t - first, mul(acc[n], splat(a.scale)));
    }
}

/// Turns one query's scores into probabilities; tokens outside [low, high) get 0. Returns nothing it cannot: high > low.
inline void softmax(const AttentionShape& a, float* s, int low, int high, int padded) {
    for (int t = 0; t < low; t++) s[t] = -INFINITY;
    for (int t = high; t < padded; t++) s[t] = -INFINITY;
    if (a.softcap > 0)
        for (int t = low; t < high; t++) s[t] = a.softcap * std::tanh(s[t] / a.softcap);
    F largest = splat(-INFINITY);
    for (int t = 0; t < padded; t += LANES) largest = max(largest, load(s + t));
    const F m = splat(max_lanes(largest));
    F total = zero();
    for (int t = 0; t < padded; t += LANES) {
        const F e = exp_or_zero(sub(load(s + t), m));
        store(s + t, e);
        total = add(total, e);
    }
    const F inverse = splat(1.f / sum_lanes(total));
    for (int t = 0; t < padded; t += LANES) store(s + t, mul(load(s + t), inverse));
}

/// out[n][d] = sum over tokens of p[n][t] * V[t][d], V vectors in pairs so that N queries share each load.
template <CacheType C, int N>
void weighted_values(const AttentionShape& a, const AttentionQueries& queries, const int32_t* table, int first, const float* p) {
    using E = typename CacheElement<C>::type;
    const size_t head_size = (size_t)a.head_dim * a.block_size;
    for (int d = 0; d < a.head_dim; d += 2 * LANES) {
        const bool pair = d + LANES < a.head_dim;
        F acc[N][2];
        for (auto& e : acc) e[0] = e[1] = zero();
        for (int t = first; t < queries.context; t++) {
            const size_t block = (size_t)table[t / a.block_size] * a.kv_heads + queries.kv_head;
            const E* v = (const E*)a.v + block * head_size + (size_t)(t % a.block_size) * a.head_dim + d;
            const F v0 = load_cache<C>(v), v1 = pair ? load_cache<C>(v + LANES) : zero();
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) {
                const float weight = p[(size_t)n * queries.scratch_stride + t - first];
                if (weight == 0) continue;  // a masked slot may hold anything, NaN included
                acc[n][0] = fma(v0, splat(weight), acc[n][0]);
                acc[n][1] = fma(v1, splat(weight), acc[n][1]);
            }
        }
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            store(queries.out[n] + d, acc[n][0]);
            if (pair) store(queries.out[n] + d + LANES, acc[n][1]);
        }
    }
}

template <CacheType C, int N> void attend_tile(const AttentionShape& a, const AttentionQueries& queries, const int32_t* table) {
    int earliest = queries.position[0];
    for (int n = 1; n < N; n++) earliest = queries.position[n] < earliest ? queries.position[n] : earliest;
    const int window_start = a.window > 0 && earliest + 1 > a.window ? earliest + 1 - a.window : 0;
    const int first = window_start / a.block_size * a.block_size;
    const int padded = (queries.context - first + LANES - 1) / LANES * LANES;
    scores<C, N>(a, queries, table, first, queries.scratch);
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
        const int high = queries.position[n] + 1;
        const int low = a.window > 0 && high > a.window ? high - a.window : 0;
        softmax(a, queries.scratch + (size_t)n * queries.scratch_stride, low > first ? low - first : 0, high - first, padded);
    }
    weighted_values<C, N>(a, queries, table, first, queries.scratch);
}

template <CacheType C> void attend_count(const AttentionShape& a, const AttentionQueries& queries, const int32_t* table) {
    switch (queries.count) {
        case 1: return attend_tile<C, 1>(a, queries, table);
        case 2: return attend_tile<C, 2>(a, queries, table);
        case 3: return attend_tile<C, 3>(a, queries, table);
        case 4: return attend_tile<C, 4>(a, queries, table);
        case 5: return attend_tile<C, 5>(a, queries, table);
        case 6: return attend_tile<C, 6>(a, queries, table);
        case 7: return attend_tile<C, 7>(a, queries, table);
        default: return attend_tile<C, 8>(a, queries, table);
    }
}

inline void attend(const AttentionShape& a, const AttentionQueries& queries, const int32_t* table) {
    switch (a.cache_type) {
        case CacheType::F32: return attend_count<CacheType::F32>(a, queries, table);
        case CacheType::F16: return attend_count<CacheType::F16>(a, queries, table);
        case CacheType::BF16: return attend_count<CacheType::BF16>(a, queries, table);
    }
}

template <CacheType C> void insert_typed(const AttentionShape& a, const float* k, const float* v, int64_t slot) {
    using E = typename CacheElement<C>::type;
    const size_t head_size = (size_t)a.head_dim * a.block_size;
    const size_t block = (size_t)(slot / a.block_size) * a.kv_heads, offset = slot % a.block_size;
    for (int h = 0; h < a.kv_heads; h++) {
        E* keys = (E*)a.k + (block + h) * head_size + offset;
        E* values = (E*)a.v + (block + h) * head_size + offset * a.head_dim;
        for (int d = 0; d < a.head_dim; d += LANES) {
            E converted[LANES];
            store_cache<C>(converted, load(k + (size_t)h * a.head_dim + d));
            for (int i = 0; i < LANES; i++) keys[(size_t)(d + i) * a.block_size] = converted[i];
            store_cache<C>(values + d, load(v + (size_t)h * a.head_dim + d));
        }
    }
}

/// Writes one token's K and V ([kv_heads][head_dim] f32 each) to its slot.
inline void insert_kv(const AttentionShape& a, const float* k, const float* v, int64_t slot) {
    switch (a.cache_type) {
        case CacheType::F32: return insert_typed<CacheType::F32>(a, k, v, slot);
        case CacheType::F16: return insert_typed<CacheType::F16>(a, k, v, slot);
        case CacheType::BF16: return insert_typed<CacheType::BF16>(a, k, v, slot);
    }
}

}  // namespace proa::PROA_ISA_NAMESPACE
