// Norms, rope and activations of one token, in f32.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace proa::PROA_ISA_NAMESPACE {

/// y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019); y may be x. `n` is a multiple of LANES.
inline void rms_norm(const float* x, const float* weight, int n, float eps, float* y) {
    F squares = zero();
    for (int i = 0; i < n; i += LANES) {
        const F v = load(x + i);
        squares = fma(v, v, squares);
    }
    const F factor = splat(1.f / std::sqrt(sum_lanes(squares) / (float)n + eps));
    for (int i = 0; i < n; i += LANES) store(y + i, mul(mul(load(x + i), factor), load(weight + i)));
}

/// Rotates `heads` heads of one token in place. `table` holds cos, then sin, of the token's position: [rotary_dim / 2] each.
inline void rope(float* x, const RopeShape& shape, const float* table) {
    const int half = shape.rotary_dim / 2;
    for (int h = 0; h < shape.heads; h++, x += shape.head_dim) {
        if (shape.interleaved) {
            for (int i = 0; i < half; i++) {
                const float a = x[2 * i], b = x[2 * i + 1];
                x[2 * i] = a * table[i] - b * table[half + i];
                x[2 * i + 1] = b * table[i] + a * table[half + i];
            }
            continue;
        }
        int i = 0;
        for (; i + LANES <= half; i += LANES) {
            const F a = load(x + i), b = load(x + half + i), c = load(table + i), s = load(table + half + i);
            store(x + i, sub(mul(a, c), mul(b, s)));
            store(x + half + i, add(mul(b, c), mul(a, s)));
        }
        for (; i < half; i++) {
            const float a = x[i], b = x[half + i];
            x[i] = a * table[i] - b * table[half + i];
            x[half + i] = b * table[i] + a * table[half + i];
        }
    }
}

/// y = silu(gate) * up; y may be either. `n` is a multiple of LANES.
inline void silu_mul(const float* gate, const float* up, int n, float* y) {
    const F one = splat(1.f);
    for (int i = 0; i < n; i += LANES) {
        const F g = load(gate + i);
        store(y + i, mul(div(g, add(one, exp(sub(zero(), g)))), load(up + i)));
    }
}

// ---- facts about a row of logits ------------------------------------------------------------------------------------

/// Largest entry with the lowest index; -1 when there is none above -inf, or when any entry is NaN.
inline int argmax(const float* x, int n) {
    F largest = splat(-INFINITY), poison = zero();
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        const F v = load(x + i);
        largest = max(largest, v);
        poison = add(poison, sub(v, v));  // NaN for NaN; for infinities too, which the slow path tells apart
    }
    float m = max_lanes(largest), bad = sum_lanes(poison);
    for (; i < n; i++) {
        m = x[i] > m ? x[i] : m;
        bad += x[i] - x[i];
    }
    if (bad != bad) {
        m = -INFINITY;
        for (int j = 0; j < n; j++) {
            if (x[j] != x[j]) return -1;
            if (x[j] > m) m = x[j];
        }
        if (m == -INFINITY) return -1;
    }
    for (int j = 0;; j++)
        if (x[j] == m) return j;
}

/// Sum of e^(x - m); m is the largest entry. Entries 87 below it count as 0.
inline float sum_exp(const float* x, int n, float m) {
    F total = zero();
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        const F d = sub(load(x + i), splat(m));
        total = add(total, exp_or_zero(d));
    }
    float sum = sum_lanes(total);
    for (; i < n; i++) sum += x[i] - m > -87.f ? std::exp(x[i] - m) : 0.f;
    return sum;
}

/// Number of entries >= value.
inline int count_at_least(const float* x, int n, float value) {
    int count = 0;
    for (int i = 0; i < n; i++) count += x[i] >= value;
    return count;
}

}  // namespace proa::PROA_ISA_NAMESPACE
