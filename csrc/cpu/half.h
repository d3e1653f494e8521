// IEEE half precision and bfloat16 in plain C, for the portable kernels and for packing.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace proa {

inline float f16_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 0) {
        const float subnormal = (float)mantissa * 0x1p-24f;
        return sign ? -subnormal : subnormal;
    }
    const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}
inline uint16_t float_to_f16(float f) {  // round to nearest even
    uint32_t u;
    std::memcpy(&u, &f, 4);
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffff;
    if (u > 0x7f800000) return sign | 0x7e00;
    if (u >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
    if (u < 0x38800000) {                        // below the smallest normal f16
        float magnitude;
        std::memcpy(&magnitude, &u, 4);
        return sign | (uint16_t)std::nearbyintf(magnitude * 0x1p24f);
    }
    const uint32_t odd = u >> 13 & 1;
    return sign | (uint16_t)((u - 0x38000000 + 0xfff + odd) >> 13);
}
inline float bf16_to_float(uint16_t b) {
    const uint32_t bits = (uint32_t)b << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

}  // namespace proa
