// y = W x for packed and float weights, at one, a few and many tokens. Compiled once an instruction set.
//
// The order of every sum is a function of the matrix alone: packed kinds sum block after block inside a lane; float
// kinds sum columns lane-wise and fold the lanes once at the end. A token's result therefore has the same bits whatever
// shares its pass, and however the rows are split between threads.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace proa::PROA_ISA_NAMESPACE {

constexpr int PREFETCH_BYTES = 2048;  // measured on the study's AVX2 machine: 512 costs 3 %, none 5 to 11 %

inline void prefetch(const uint8_t* p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + PREFETCH_BYTES + i, 0, 3);
}

// ---- int32 lanes: one block of quants against one token ------------------------------------------------------------

#if defined(PROA_ISA_AVX512)

constexpr bool S8_BIASED = true;  // vpdpbusd wants unsigned weights
struct I { __m512i v; };
inline I isplat(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I load_run(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline I low_nibbles(I a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline I high_nibbles(I a) { return {_mm512_and_si512(_mm512_srli_epi32(a.v, 4), _mm512_set1_epi8(15))}; }
inline I byte_of(I a, int i) {
    return {_mm512_and_si512(_mm512_srli_epi32(a.v, 8 * i), _mm512_set1_epi32(255))};
}
/// sum + dot of 4 unsigned weight bytes and 4 signed activation bytes a lane.
inline I dot_unsigned(I sum, I weights, const int8_t* q) {
    int32_t four;
    std::memcpy(&four, q, 4);
    return {_mm512_dpbusd_epi32(sum.v, weights.v, _mm512_set1_epi32(four))};
}
inline I dot_signed(I sum, I weights, const int8_t* q) { return dot_unsigned(sum, weights, q); }
inline I dot_nibbles(const I run[8], const int8_t* q) {
    I sum = isplat(0);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) sum = dot_unsigned(sum, run[j], q + 4 * j);
    return sum;
}

#elif defined(PROA_ISA_AVX2)

constexpr bool S8_BIASED = false;
struct I { __m256i v; };
inline I isplat(int32_t x) { return {_mm256_set1_epi32(x)}; }
inline F to_float(I a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline I load_run(const uint8_t* p) { return {_mm256_loadu_si256((const __m256i*)p)}; }
inline I low_nibbles(I a) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(15))}; }
inline I high_nibbles(I a) { return {_mm256_and_si256(_mm256_srli_epi32(a.v, 4), _mm256_set1_epi8(15))}; }
inline I byte_of(I a, int i) {
    return {_mm256_and_si256(_mm256_srli_epi32(a.v, 8 * i), _mm256_set1_epi32(255))};
}
inline __m256i broadcast4(const int8_t* q) {
    int32_t four;
    std::memcpy(&four, q, 4);
    return _mm256_set1_epi32(four);
}
// Pairs stay within 16 bits: 2 * 63 * 127 = 16,002 for the widest unsigned kind, 2 * 127 * 127 = 32,258 for the signed.
inline I dot_unsigned(I sum, I weights, const int8_t* q) {
    const __m256i pairs = _mm256_maddubs_epi16(weights.v, broadcast4(q));
    return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}
// All sixteen pair sums of a nibble block fit 16 bits together: 8 * 2 * 15 * 127 = 30,480.
inline I dot_nibbles(const I run[8], const int8_t* q) {
    __m256i pairs = _mm256_maddubs_epi16(run[0].v, broadcast4(q));
    for (int j = 1; j < 8; j++) pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(run[j].v, broadcast4(q + 4 * j)));
    return {_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))};
}
inline I dot_signed(I sum, I weights, const int8_t* q) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights.v), _mm256_sign_epi8(broadcast4(q), weights.v));
    return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}

#else

constexpr bool S8_BIASED = false;
struct I { int32_t v[LANES]; };
inline I isplat(int32_t x) { I r; for (auto& e : r.v) e = x; return r; }
inline F to_float(I a) { F r; for (int i = 0; i < LANES; i++) r.v[i] = (float)a.v[i]; return r; }
inline I load_run(const uint8_t* p) { I r; std::memcpy(r.v, p, sizeof r.v); return r; }
inline I low_nibbles(I a) { for (auto& e : a.v) e &= 0x0f0f0f0f; return a; }
inline I high_nibbles(I a) { for (auto& e : a.v) e = (int32_t)((uint32_t)e >> 4 & 0x0f0f0f0f); return a; }
inline I byte_of(I a, int i) { for (auto& e : a.v) e = (int32_t)((uint32_t)e >> 8 * i & 255); return a; }
inline I dot_unsigned(I sum, I weights, const int8_t* q) {
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 4; j++) sum.v[i] += (int32_t)((uint32_t)weights.v[i] >> 8 * j & 255) * q[j];
    return sum;
}
inline I dot_signed(I sum, I weights, const int8_t* q) {
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 4; j++) sum.v[i] += (int8_t)((uint32_t)weights.v[i] >> 8 * j & 255) * q[j];
    return sum;
}
inline I dot_nibbles(const I run[8], const int8_t* q) {
    I sum = isplat(0);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) sum = dot_unsigned(sum, run[j], q + 4 * j);
    return sum;
}

#endif

// ---- a block of a group: scales and quant runs ----------------------------------------------------------------------

/// Scales, minima and the eight runs of bytes of one block, loaded once and used by every token of a tile.
template <Pack P> struct Block {
    F scale, minimum, scale_high;
    I run[8];

    explicit Block(const uint8_t* p) {
        if constexpr (P == Pack::U4) {
            scale = load_f16((const uint16_t*)p);
            minimum = load_f16((const uint16_t*)(p + 2 * LANES));
            unpack_nibbles(p + 4 * LANES);
        } else if constexpr (P == Pack::U4_F32) {
            scale = load((const float*)p);
            minimum = load((const float*)(p + 4 * LANES));
            unpack_nibbles(p + 8 * LANES);
        } else if constexpr (P == Pack::S8) {
            scale = load_f16((const uint16_t*)p);
            load_bytes(p + 2 * LANES);
        } else {
            scale = load((const float*)p);
            (P == Pack::U6_HALVES ? scale_high : minimum) = load((const float*)(p + 4 * LANES));
            load_bytes(p + 8 * LANES);
        }
    }

    void unpack_nibbles(const uint8_t* p) {
        for (int j = 0; j < 4; j++) {
            const I both = load_run(p + 4 * LANES * j);
            run[j] = low_nibbles(both);
            run[j + 4] = high_nibbles(both);
        }
    }

    void load_bytes(const uint8_t* p) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) run[j] = load_run(p + 4 * LANES * j);
    }

    /// acc + this block times one token's int8 block.
    F dot(F acc, const int8_t* q, const QuantBlock& x) const {
        if constexpr (P == Pack::S8) {
            I sum = isplat(S8_BIASED ? -128 * (x.sum_low + x.sum_high) : 0);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) sum = dot_signed(sum, run[j], q + 4 * j);
            return fma(to_float(sum), mul(scale, splat(x.scale)), acc);
        } else if constexpr (P == Pack::U6_HALVES) {
            I low = isplat(-32 * x.sum_low), high = isplat(-32 * x.sum_high);
            for (int j = 0; j < 4; j++) low = dot_unsigned(low, run[j], q + 4 * j);
            for (int j = 4; j < 8; j++) high = dot_unsigned(high, run[j], q + 4 * j);
            acc = fma(to_float(low), mul(scale, splat(x.scale)), acc);
            return fma(to_float(high), mul(scale_high, splat(x.scale)), acc);
        } else {
            I sum = isplat(0);
            if constexpr (P == Pack::U8_F32)
#pragma GCC unroll 8
                for (int j = 0; j < 8; j++) sum = dot_unsigned(sum, run[j], q + 4 * j);
            else
                sum = dot_nibbles(run, q);
            acc = fma(minimum, splat(x.scaled_sum), acc);
            return fma(to_float(sum), mul(scale, splat(x.scale)), acc);
        }
    }

    /// The block's weights in f32, out[column][lane]; the value of the reference dequantisation.
    void expand(float* out) const {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            for (int i = 0; i < 4; i++) {
                F w = to_float(byte_of(run[j], i));
                if constexpr (P == Pack::S8) {
                    // A biased byte is q + 128; an unbiased one is two's complement, so 128 .. 255 stand for q + 256.
                    w = S8_BIASED ? sub(w, splat(128)) : to_float(signed_byte_of(run[j], i));
                    w = mul(scale, w);
                } else if constexpr (P == Pack::U6_HALVES) {
                    w = mul(j < 4 ? scale : scale_high, sub(w, splat(32)));
                } else {
                    w = add(mul(scale, w), minimum);
                }
                store(out + (4 * j + i) * LANES, w);
            }
    }

    static I signed_byte_of(I a, int i) {
        int32_t t[LANES];
        std::memcpy(t, &a, sizeof t);
        for (auto& e : t) e = (int8_t)((uint32_t)e >> 8 * i & 255);
        I r;
        std::memcpy(&r, t, sizeof t);
        return r;
    }
};

// ---- one group of rows against a tile of tokens ---------------------------------------------------------------------

inline void write_group(const Output& out, int token, int row, int rows, F value) {
    float* y = out.y + (size_t)token * out.stride + row;
    if (rows - row >= LANES) return store(y, out.accumulate ? add(load(y), value) : value);
    float t[LANES];
    store(t, value);
    for (int i = 0; i < rows - row; i++) y[i] = out.accumulate ? y[i] + t[i] : t[i];
}

template <Pack P, int N>
void group_int8(const Matrix& m, int group, const Activations& a, int token, const Output& out) {
    const int num_blocks = m.cols / BLOCK;
    const uint8_t* p = m.data + m.group_bytes(LANES) * group;
    const int8_t* q = a.q + (size_t)token * m.cols;
    const QuantBlock* x = a.blocks + (size_t)token * num_blocks;
    F acc[N];
    for (auto& e : acc) e = zero();
    for (int b = 0; b < num_blocks; b++, p += packed_row_block_bytes(P) * LANES) {
        if (N == 1) prefetch(p, packed_row_block_bytes(P) * LANES);
        const Block<P> block(p);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++)
            acc[n] = block.dot(acc[n], q + (size_t)n * m.cols + b * BLOCK, x[(size_t)n * num_blocks + b]);
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) write_group(out, token + n, group * LANES, m.rows, acc[n]);
}

template <Pack P, int N>
void group_f32(const Matrix& m, int group, const Activations& a, int token, const Output& out) {
    const int num_blocks = m.cols / BLOCK;
    const uint8_t* p = m.data + m.group_bytes(LANES) * group;
    const float* x = a.x + (size_t)token * m.cols;
    alignas(64) float weights[BLOCK * LANES];
    F acc[N];
    for (auto& e : acc) e = zero();
    for (int b = 0; b < num_blocks; b++, p += packed_row_block_bytes(P) * LANES) {
        Block<P>(p).expand(weights);
        for (int k = 0; k < BLOCK; k++) {
            const F w = load(weights + k * LANES);
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) acc[n] = fma(w, splat(x[(size_t)n * m.cols + b * BLOCK + k]), acc[n]);
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) write_group(out, token + n, group * LANES, m.rows, acc[n]);
}

template <int N> struct Tokens { static constexpr int value = N; };

/// Calls f(Tokens<N>, token) over `tokens` tokens in tiles of TILE, the rest in tiles of 2 and 1.
template <int TILE, class Function> void for_token_tiles(int begin, int end, Function f) {
    int t = begin;
    for (; t + TILE <= end; t += TILE) f(Tokens<TILE>{}, t);
    if constexpr (TILE > 4) for (; t + 4 <= end; t += 4) f(Tokens<4>{}, t);
    if constexpr (TILE > 2) for (; t + 2 <= end; t += 2) f(Tokens<2>{}, t);
    for (; t < end; t++) f(Tokens<1>{}, t);
}

constexpr int TOKEN_TILE = LANES == 16 ? 8 : 4;  // accumulators and eight weight runs must fit the registers
constexpr int TOKEN_BLOCK = 64;                  // tokens whose quantised activations stay in the nearer caches

template <Pack P>
void linear_packed(const Matrix& m, int group_begin, int group_end, const Activations& a, const Output& out) {
    for (int t0 = 0; t0 < a.tokens; t0 += TOKEN_BLOCK) {
        const int t1 = t0 + TOKEN_BLOCK < a.tokens ? t0 + TOKEN_BLOCK : a.tokens;
        for (int g = group_begin; g < group_end; g++) {
            if (a.q)
                for_token_tiles<TOKEN_TILE>(t0, t1, [&](auto n, int t) { group_int8<P, n.value>(m, g, a, t, out); });
            else
                for_token_tiles<TOKEN_TILE>(t0, t1, [&](auto n, int t) { group_f32<P, n.value>(m, g, a, t, out); });
        }
    }
}

// ---- float weights, as the file has them ----------------------------------------------------------------------------

struct F32Weights {
    static constexpr int bytes = 4;
    static F at(const uint8_t* row, int k) { return load((const float*)row + k); }
    static float one(const uint8_t* row, int k) { return ((const float*)row)[k]; }
};
struct F16Weights {
    static constexpr int bytes = 2;
    static F at(const uint8_t* row, int k) { return load_f16((const uint16_t*)row + k); }
    static float one(const uint8_t* row, int k) { return f16_to_float(((const uint16_t*)row)[k]); }
};

struct Bf16Weights {
    static constexpr int bytes = 2;
    static F at(const uint8_t* row, int k) { return load_bf16((const uint16_t*)row + k); }
    static float one(const uint8_t* row, int k) { return bf16_to_float(((const uint16_t*)row)[k]); }
};

template <class W, int R, int N>
void rows_float(const Matrix& m, int row, const Activations& a, int token, const Output& out) {
    const size_t row_bytes = (size_t)m.cols * W::bytes;
    const uint8_t* w = m.data + row_bytes * row;
    const float* x = a.x + (size_t)token * m.cols;
    F acc[R][N];
    for (auto& r : acc) for (auto& e : r) e = zero();
    int k = 0;
    for (; k + LANES <= m.cols; k += LANES) {
        F v[N];
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) v[n] = load(x + (size_t)n * m.cols + k);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            if (N == 1 && (k * W::bytes & 63) == 0) __builtin_prefetch(w + row_bytes * r + k * W::bytes + 512, 0, 3);
            const F weight = W::at(w + row_bytes * r, k);
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) acc[r][n] = fma(weight, v[n], acc[r][n]);
        }
    }
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            float sum = sum_lanes(acc[r][n]);
            for (int tail = k; tail < m.cols; tail++) sum += W::one(w + row_bytes * r, tail) * x[(size_t)n * m.cols + tail];
            float* y = out.y + (size_t)(token + n) * out.stride + row + r;
            *y = out.accumulate ? *y + sum : sum;
        }
}

template <class W> void linear_float(const Matrix& m, int row_begin, int row_end, const Activations& a, const Output& out) {
    constexpr int R = 4, TILE = LANES == 16 ? 4 : 2;
    for (int t0 = 0; t0 < a.tokens; t0 += TOKEN_BLOCK) {
        const int t1 = t0 + TOKEN_BLOCK < a.tokens ? t0 + TOKEN_BLOCK : a.tokens;
        int r = row_begin;
        for (; r + R <= row_end; r += R)
            for_token_tiles<TILE>(t0, t1, [&](auto n, int t) { rows_float<W, R, n.value>(m, r, a, t, out); });
        for (; r < row_end; r++)
            for_token_tiles<TILE>(t0, t1, [&](auto n, int t) { rows_float<W, 1, n.value>(m, r, a, t, out); });
    }
}

/// Rows [begin, end) of y (+)= W x. `begin` is a multiple of LANES; `end` is one too, or the number of rows.
inline void linear(const Matrix& m, int begin, int end, const Activations& a, const Output& out) {
    const int g0 = begin / LANES, g1 = (end + LANES - 1) / LANES;
    switch (m.pack) {
        case Pack::U4: return linear_packed<Pack::U4>(m, g0, g1, a, out);
        case Pack::S8: return linear_packed<Pack::S8>(m, g0, g1, a, out);
        case Pack::U4_F32: return linear_packed<Pack::U4_F32>(m, g0, g1, a, out);
        case Pack::U8_F32: return linear_packed<Pack::U8_F32>(m, g0, g1, a, out);
        case Pack::U6_HALVES: return linear_packed<Pack::U6_HALVES>(m, g0, g1, a, out);
        case Pack::NONE: break;
    }
    switch (m.type) {
        case WEIGHT_F16: return linear_float<F16Weights>(m, begin, end, a, out);
        case WEIGHT_BF16: return linear_float<Bf16Weights>(m, begin, end, a, out);
        default: return linear_float<F32Weights>(m, begin, end, a, out);
    }
}

/// One token's activations to int8, a block of 32 at a time: scale = largest magnitude / 127.
inline void quantize(const float* x, int cols, int8_t* q, QuantBlock* blocks) {
    constexpr int N = BLOCK / LANES;
    for (int b = 0; b < cols / BLOCK; b++, x += BLOCK, q += BLOCK) {
        F v[N], largest = zero();
#pragma GCC unroll 4
        for (int i = 0; i < N; i++) {
            v[i] = load(x + i * LANES);
            largest = max(largest, abs(v[i]));
        }
        const float m = max_lanes(largest);
        const F inverse = splat(m > 0 ? 127.f / m : 0.f);
#pragma GCC unroll 4
        for (int i = 0; i < N; i++) {
            v[i] = round_even(mul(v[i], inverse));
            store_int8(q + i * LANES, v[i]);
        }
        // Whole numbers below 2^24: these sums are exact in any order.
        F low = v[0], high = v[N / 2];
        for (int i = 1; i < N / 2; i++) {
            low = add(low, v[i]);
            high = add(high, v[N / 2 + i]);
        }
        const int32_t sum_low = (int32_t)sum_lanes(low), sum_high = (int32_t)sum_lanes(high);
        const float scale = m / 127.f;
        blocks[b] = {scale, scale * (float)(sum_low + sum_high), sum_low, sum_high};
    }
}

}  // namespace proa::PROA_ISA_NAMESPACE
