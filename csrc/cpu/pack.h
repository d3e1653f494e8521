// How quantised matrices lie in memory for the kernels: blocks of LANES rows interleaved.
//
// A matrix [rows, cols] (row n of W makes output n) is cut into *groups* of `lanes` rows and, along the columns, into
// blocks of 32. A group is one contiguous stream, read once a pass from front to back; block b of a group holds
//
//     scales   [lanes] (f16, or f32 for K-quants, two for the halves of a block)
//     minima   [lanes] (only in kinds with a minimum, same type)
//     quants   runs of [lanes][4] bytes: run j has columns 4j .. 4j + 3 of every row (of nibbles: the low ones are
//              columns 4j .. 4j + 3, the high ones 16 + 4j .. 16 + 4j + 3)
//
// value = scale * (quant - offset) + minimum. Rows are padded with zeros to a whole group. Nothing is expanded: a packed
// matrix has the bytes of its file blocks, except K-quants, whose 6-bit scales become f32.
#pragma once
#include <cstddef>
#include <cstdint>

namespace proa {

/// Weight types, numbered as GGUF numbers them.
enum WeightType : int32_t {
    WEIGHT_F32 = 0, WEIGHT_F16 = 1, WEIGHT_Q4_0 = 2, WEIGHT_Q4_1 = 3, WEIGHT_Q5_0 = 6, WEIGHT_Q5_1 = 7,
    WEIGHT_Q8_0 = 8, WEIGHT_Q4_K = 12, WEIGHT_Q5_K = 13, WEIGHT_Q6_K = 14, WEIGHT_BF16 = 30,
};

/// Packed forms; each weight type maps to one.
enum class Pack : int32_t {
    NONE,      ///< float weights: rows as in the file, never copied
    U4,        ///< 4-bit quants, f16 scale and minimum a block of 32 (Q4_0, Q4_1)
    S8,        ///< 8-bit quants, f16 scale a block of 32 (Q8_0); stored + 128 for instruction sets that want u8
    U4_F32,    ///< 4-bit quants, f32 scale and minimum a block of 32 (Q4_K)
    U8_F32,    ///< 5-bit quants in bytes, f32 scale and minimum a block of 32 (Q5_0, Q5_1, Q5_K)
    U6_HALVES, ///< 6-bit quants in bytes, offset 32, f32 scale for each half of a block (Q6_K)
};

constexpr int BLOCK = 32;

constexpr Pack pack_of(int32_t type) {
    switch (type) {
        case WEIGHT_Q4_0: case WEIGHT_Q4_1: return Pack::U4;
        case WEIGHT_Q8_0: return Pack::S8;
        case WEIGHT_Q4_K: return Pack::U4_F32;
        case WEIGHT_Q5_0: case WEIGHT_Q5_1: case WEIGHT_Q5_K: return Pack::U8_F32;
        case WEIGHT_Q6_K: return Pack::U6_HALVES;
        default: return Pack::NONE;
    }
}

/// Bytes of one block of one row in the packed form; times `lanes` gives a block of a group.
constexpr size_t packed_row_block_bytes(Pack pack) {
    switch (pack) {
        case Pack::U4: return 2 + 2 + 16;
        case Pack::S8: return 2 + 32;
        case Pack::U4_F32: return 4 + 4 + 16;
        case Pack::U8_F32: return 4 + 4 + 32;
        case Pack::U6_HALVES: return 4 + 4 + 32;
        default: return 0;
    }
}

/// A linear layer's weights as a kernel sees them.
struct Matrix {
    int32_t type;      ///< WeightType of the file
    Pack pack;
    int32_t rows;      ///< output features
    int32_t cols;      ///< input features; a multiple of 32 for packed kinds
    const uint8_t* data;  ///< packed groups, or the file's rows for Pack::NONE
    int32_t groups(int lanes) const { return (rows + lanes - 1) / lanes; }
    size_t group_bytes(int lanes) const { return packed_row_block_bytes(pack) * lanes * (cols / BLOCK); }
};

/// Activations of some tokens, quantised to int8 a block of 32.
struct QuantBlock {
    float scale;        ///< x = scale * q
    float scaled_sum;   ///< scale * (sum of the block's q), for kinds with a minimum
    int32_t sum_low;    ///< sum of the first 16 q
    int32_t sum_high;   ///< sum of the last 16 q
};

/// Where packed groups go.
struct PackTarget {
    uint8_t* data;  ///< groups * group_bytes, 64-byte aligned
    int32_t lanes;  ///< of the instruction set
    bool biased;    ///< Pack::S8 quants stored + 128
};

/// Bytes of one row of `cols` weights in the file; 0 for a type this build does not know.
size_t file_row_bytes(int32_t type, int32_t cols);
/// Weights a block of the file; `cols` must be a multiple.
int32_t file_block(int32_t type);
/// Packs groups [begin, end) from the file's rows; groups are independent, so threads share a matrix by ranges.
void pack_groups(const Matrix& m, const uint8_t* file, const PackTarget& target, int group_begin, int group_end);
/// Dequantises one row of a file's matrix to f32, as the reference does (embeddings).
void expand_row(int32_t type, const uint8_t* row, int32_t cols, float* out);

struct Activations {
    const float* x;          ///< [tokens][cols] f32
    const int8_t* q;         ///< [tokens][cols], or null: compute in f32
    const QuantBlock* blocks;  ///< [tokens][cols / 32]
    int32_t tokens;
    int32_t cols;
};

}  // namespace proa
