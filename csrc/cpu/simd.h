// One vector of floats, as wide as the instruction set of this translation unit allows.
//
// `sum_lanes` folds by halves, so that its order is the same at every call.
//
// Every kernel is written once against these few names and compiled once an instruction set; PROA_ISA_* selects.
// `LANES` floats stand side by side; weights of `LANES` output rows are interleaved accordingly (pack.h), so sums over
// the input run inside a lane and their order never depends on how many tokens share a pass.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "half.h"

#if defined(PROA_ISA_AVX2) || defined(PROA_ISA_AVX512)
#include <immintrin.h>
#endif

namespace proa::PROA_ISA_NAMESPACE {

#if defined(PROA_ISA_AVX512)

constexpr int LANES = 16;
struct F { __m512 v; };
inline F zero() { return {_mm512_setzero_ps()}; }
inline F splat(float x) { return {_mm512_set1_ps(x)}; }
inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
inline F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F round_even(F a) { return {_mm512_roundscale_ps(a.v, 8)}; }
inline F abs(F a) { return {_mm512_abs_ps(a.v)}; }
inline F exp2_scale(F x, F n) {  // x * 2^n, n integral
    return {_mm512_scalef_ps(x.v, n.v)};
}
inline F load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline F load_bf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
inline void store_bf16(uint16_t* p, F a) {  // round to nearest even; NaN stays NaN
    const __m512i u = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    const __m512i q = _mm512_mask_mov_epi32(r, nan, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(q));
}
inline void store_f16(uint16_t* p, F a) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, 8)); }
inline void store_int8(int8_t* p, F a) {  // whole numbers in -128 .. 127
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
inline float sum_lanes(F a) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float max_lanes(F a) { return _mm512_reduce_max_ps(a.v); }

#elif defined(PROA_ISA_AVX2)

constexpr int LANES = 8;
struct F { __m256 v; };
inline F zero() { return {_mm256_setzero_ps()}; }
inline F splat(float x) { return {_mm256_set1_ps(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, F a) { _mm256_storeu_ps(p, a.v); }
inline F add(F a, F b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F sub(F a, F b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F mul(F a, F b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F div(F a, F b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F round_even(F a) { return {_mm256_round_ps(a.v, 8)}; }
inline F abs(F a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.f), a.v)}; }
inline F exp2_scale(F x, F n) {
    const __m256i e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23);
    return {_mm256_mul_ps(x.v, _mm256_castsi256_ps(e))};
}
inline F load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p))}; }
inline F load_bf16(const uint16_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16))};
}
inline void store_bf16(uint16_t* p, F a) {
    const __m256i u = _mm256_castps_si256(a.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc0), nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
    _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(packed));
}
inline void store_f16(uint16_t* p, F a) { _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.v, 8)); }
inline void store_int8(int8_t* p, F a) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.v), _mm256_setzero_si256());
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm_setzero_si128()));
}
inline float sum_lanes(F a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float max_lanes(F a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

#else  // portable: plain C, which every compiler turns into what the target has

constexpr int LANES = 8;
struct F { float v[LANES]; };
#define PROA_EACH(expression) F r; for (int i = 0; i < LANES; i++) r.v[i] = (expression); return r
inline F zero() { PROA_EACH(0.f); }
inline F splat(float x) { PROA_EACH(x); }
inline F load(const float* p) { PROA_EACH(p[i]); }
inline void store(float* p, F a) { for (int i = 0; i < LANES; i++) p[i] = a.v[i]; }
inline F add(F a, F b) { PROA_EACH(a.v[i] + b.v[i]); }
inline F sub(F a, F b) { PROA_EACH(a.v[i] - b.v[i]); }
inline F mul(F a, F b) { PROA_EACH(a.v[i] * b.v[i]); }
inline F div(F a, F b) { PROA_EACH(a.v[i] / b.v[i]); }
inline F fma(F a, F b, F c) { PROA_EACH(a.v[i] * b.v[i] + c.v[i]); }
inline F max(F a, F b) { PROA_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline F min(F a, F b) { PROA_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline F round_even(F a) { PROA_EACH(std::nearbyintf(a.v[i])); }
inline F abs(F a) { PROA_EACH(std::fabs(a.v[i])); }
inline F exp2_scale(F x, F n) { PROA_EACH(std::ldexp(x.v[i], (int)n.v[i])); }
inline F load_f16(const uint16_t* p) { PROA_EACH(f16_to_float(p[i])); }
inline F load_bf16(const uint16_t* p) {
    F r;
    for (int i = 0; i < LANES; i++) {
        const uint32_t bits = (uint32_t)p[i] << 16;
        std::memcpy(&r.v[i], &bits, 4);
    }
    return r;
}
inline void store_bf16(uint16_t* p, F a) {
    for (int i = 0; i < LANES; i++) {
        uint32_t u;
        std::memcpy(&u, &a.v[i], 4);
        p[i] = std::isnan(a.v[i]) ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
}
inline void store_f16(uint16_t* p, F a) { for (int i = 0; i < LANES; i++) p[i] = float_to_f16(a.v[i]); }
inline void store_int8(int8_t* p, F a) { for (int i = 0; i < LANES; i++) p[i] = (int8_t)a.v[i]; }
inline float sum_lanes(F a) {
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) a.v[i] += a.v[i + half];
    return a.v[0];
}
inline float max_lanes(F a) {
    float m = a.v[0];
    for (int i = 1; i < LANES; i++) m = a.v[i] > m ? a.v[i] : m;
    return m;
}
#undef PROA_EACH

#endif

/// e^x, relative error below 2e-7 on [-87, 88]; inputs beyond are clamped there. Cody and Waite reduction, degree 6.
inline F exp(F x) {
    x = max(min(x, splat(88.f)), splat(-87.f));
    const F n = round_even(mul(x, splat(1.44269504f)));
    F r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    F p = splat(1.f / 720);
    for (float c : {1.f / 120, 1.f / 24, 1.f / 6, .5f, 1.f, 1.f}) p = fma(p, r, splat(c));
    return exp2_scale(p, n);
}

/// As `exp`, but 0 below -87, where `exp` would leave a trace of a masked entry.
inline F exp_or_zero(F x) {
#if defined(PROA_ISA_AVX512)
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(-87.f), _CMP_NLE_UQ), exp(x).v)};
#elif defined(PROA_ISA_AVX2)
    return {_mm256_and_ps(_mm256_cmp_ps(x.v, _mm256_set1_ps(-87.f), _CMP_NLE_UQ), exp(x).v)};
#else
    F e = exp(x);
    for (int i = 0; i < LANES; i++)
        if (x.v[i] <= -87.f) e.v[i] = 0;
    return e;
#endif
}

}  // namespace proa::PROA_ISA_NAMESPACE
