// Repacks the quantised blocks of a GGUF file into interleaved groups (pack.h). Formats: the GGUF specification.
#include "pack.h"

#include <cstring>

#include "half.h"

namespace proa {
namespace {

/// One block of 32 weights of one row: value = scale[half] * (q - offset of the kind) + minimum.
struct RowBlock {
    uint8_t q[BLOCK];
    float scale[2];
    float minimum;
};

uint16_t read16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
}

float read_half(const uint8_t* p) { return f16_to_float(read16(p)); }

void split_nibbles(const uint8_t* p, uint8_t* q) {
    for (int i = 0; i < 16; i++) {
        q[i] = p[i] & 15;
        q[i + 16] = p[i] >> 4;
    }
}

void add_fifth_bits(const uint8_t* p, uint8_t* q) {
    uint32_t bits;
    std::memcpy(&bits, p, 4);
    for (int i = 0; i < BLOCK; i++) q[i] |= (bits >> i & 1) << 4;
}

/// The 6-bit scale and minimum of sub-block `j` of a Q4_K or Q5_K super-block.
void k_scale(const uint8_t* packed, int j, int* scale, int* minimum) {
    if (j < 4) {
        *scale = packed[j] & 63;
        *minimum = packed[j + 4] & 63;
    } else {
        *scale = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
        *minimum = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    }
}

void decode_k_scales(const uint8_t* super, int sub, RowBlock* out) {
    int scale, minimum;
    k_scale(super + 4, sub, &scale, &minimum);
    out->scale[0] = read_half(super) * (float)scale;
    out->minimum = -(read_half(super + 2) * (float)minimum);
}

void decode_q6_k(const uint8_t* super, int sub, RowBlock* out) {
    const int half = sub / 4, quarter = sub % 4;  // 128 weights a half, 32 a quarter
    const uint8_t* low = super + 64 * half + 32 * (quarter & 1);
    const uint8_t* high = super + 128 + 32 * half;
    const int8_t* scales = (const int8_t*)(super + 192) + 8 * half + 2 * quarter;
    for (int i = 0; i < BLOCK; i++) {
        const int four = quarter < 2 ? low[i] & 15 : low[i] >> 4;
        out->q[i] = (uint8_t)(four | (high[i] >> 2 * quarter & 3) << 4);
    }
    const float d = read_half(super + 208);
    out->scale[0] = d * (float)scales[0];
    out->scale[1] = d * (float)scales[1];
}

/// Decodes block `b` of a row whose file bytes begin at `row`.
void decode(int32_t type, const uint8_t* row, int b, RowBlock* out) {
    *out = {};
    const uint8_t* super;
    switch (type) {
        case WEIGHT_Q4_0:
            row += 18 * (size_t)b;
            out->scale[0] = read_half(row);
            out->minimum = -8 * out->scale[0];
            return split_nibbles(row + 2, out->q);
        case WEIGHT_Q4_1:
            row += 20 * (size_t)b;
            out->scale[0] = read_half(row);
            out->minimum = read_half(row + 2);
            return split_nibbles(row + 4, out->q);
        case WEIGHT_Q5_0:
            row += 22 * (size_t)b;
            out->scale[0] = read_half(row);
            out->minimum = -16 * out->scale[0];
            split_nibbles(row + 6, out->q);
            return add_fifth_bits(row + 2, out->q);
        case WEIGHT_Q5_1:
            row += 24 * (size_t)b;
            out->scale[0] = read_half(row);
            out->minimum = read_half(row + 2);
            split_nibbles(row + 8, out->q);
            return add_fifth_bits(row + 4, out->q);
        case WEIGHT_Q8_0:
            row += 34 * (size_t)b;
            out->scale[0] = read_half(row);
            std::memcpy(out->q, row + 2, BLOCK);
            return;
        case WEIGHT_Q4_K:
            super = row + 144 * (size_t)(b / 8);
            decode_k_scales(super, b % 8, out);
            for (int i = 0; i < BLOCK; i++) out->q[i] = super[16 + 32 * (b % 8 / 2) + i] >> 4 * (b % 2) & 15;
            return;
        case WEIGHT_Q5_K:
            super = row + 176 * (size_t)(b / 8);
            decode_k_scales(super, b % 8, out);
            for (int i = 0; i < BLOCK; i++)
                out->q[i] = (uint8_t)((super[48 + 32 * (b % 8 / 2) + i] >> 4 * (b % 2) & 15) |
                                      (super[16 + i] >> b % 8 & 1) << 4);
            return;
        case WEIGHT_Q6_K:
            super = row + 210 * (size_t)(b / 8);
            return decode_q6_k(super, b % 8, out);
    }
}

void put_scales(Pack pack, const RowBlock& block, int lane, int lanes, uint8_t* p) {
    if (pack == Pack::U4 || pack == Pack::S8) {
        const uint16_t scale = float_to_f16(block.scale[0]), minimum = float_to_f16(block.minimum);
        std::memcpy(p + 2 * lane, &scale, 2);
        if (pack == Pack::U4) std::memcpy(p + 2 * lanes + 2 * lane, &minimum, 2);
        return;
    }
    const float second = pack == Pack::U6_HALVES ? block.scale[1] : block.minimum;
    std::memcpy(p + 4 * lane, &block.scale[0], 4);
    std::memcpy(p + 4 * lanes + 4 * lane, &second, 4);
}

void put_block(Pack pack, const RowBlock& block, int lane, int lanes, bool biased, uint8_t* p) {
    put_scales(pack, block, lane, lanes, p);
    const bool nibbles = pack == Pack::U4 || pack == Pack::U4_F32;
    p += (packed_row_block_bytes(pack) - (nibbles ? 16 : 32)) * (size_t)lanes;
    if (nibbles) {
        for (int c = 0; c < 16; c++)
            p[(size_t)4 * lanes * (c / 4) + 4 * lane + c % 4] = (uint8_t)(block.q[c] | block.q[c + 16] << 4);
        return;
    }
    const uint8_t flip = pack == Pack::S8 && biased ? 0x80 : 0;  // two's complement + 128
    for (int c = 0; c < BLOCK; c++) p[(size_t)4 * lanes * (c / 4) + 4 * lane + c % 4] = block.q[c] ^ flip;
}

}  // namespace

size_t file_row_bytes(int32_t type, int32_t cols) {
    const size_t n = (size_t)cols;
    switch (type) {
        case WEIGHT_F32: return n * 4;
        case WEIGHT_F16: case WEIGHT_BF16: return n * 2;
        case WEIGHT_Q4_0: return n / 32 * 18;
        case WEIGHT_Q4_1: return n / 32 * 20;
        case WEIGHT_Q5_0: return n / 32 * 22;
        case WEIGHT_Q5_1: return n / 32 * 24;
        case WEIGHT_Q8_0: return n / 32 * 34;
        case WEIGHT_Q4_K: return n / 256 * 144;
        case WEIGHT_Q5_K: return n / 256 * 176;
        case WEIGHT_Q6_K: return n / 256 * 210;
        default: return 0;
    }
}

int32_t file_block(int32_t type) {
    switch (type) {
        case WEIGHT_F32: case WEIGHT_F16: case WEIGHT_BF16: return 1;
        case WEIGHT_Q4_K: case WEIGHT_Q5_K: case WEIGHT_Q6_K: return 256;
        default: return BLOCK;
    }
}

void pack_groups(const Matrix& m, const uint8_t* file, const PackTarget& target, int group_begin, int group_end) {
    const size_t row_bytes = file_row_bytes(m.type, m.cols);
    const size_t block_bytes = packed_row_block_bytes(m.pack) * (size_t)target.lanes;
    for (int g = group_begin; g < group_end; g++) {
        uint8_t* p = target.data + m.group_bytes(target.lanes) * (size_t)g;
        for (int b = 0; b < m.cols / BLOCK; b++, p += block_bytes)
            for (int lane = 0; lane < target.lanes; lane++) {
                const int row = g * target.lanes + lane;
                RowBlock block{};
                if (row < m.rows) decode(m.type, file + row_bytes * (size_t)row, b, &block);
                put_block(m.pack, block, lane, target.lanes, target.biased, p);
            }
    }
}

void expand_row(int32_t type, const uint8_t* row, int32_t cols, float* out) {
    for (int c = 0; c < cols && file_block(type) == 1; c++) {
        if (type == WEIGHT_F32) std::memcpy(out + c, row + 4 * (size_t)c, 4);
        else out[c] = type == WEIGHT_F16 ? read_half(row + 2 * (size_t)c) : bf16_to_float(read16(row + 2 * (size_t)c));
    }
    for (int b = 0; file_block(type) > 1 && b < cols / BLOCK; b++) {
        RowBlock block;
        decode(type, row, b, &block);
        for (int i = 0; i < BLOCK; i++) {
            const float scale = block.scale[type == WEIGHT_Q6_K ? i / 16 : 0];
            const float quant = type == WEIGHT_Q8_0 ? (float)(int8_t)block.q[i] : (float)block.q[i];
            out[b * BLOCK + i] = type == WEIGHT_Q6_K ? scale * (quant - 32) : scale * quant + block.minimum;
        }
    }
}

}  // namespace proa
