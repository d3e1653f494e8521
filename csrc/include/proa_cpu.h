/* The C ABI of the CPU library: raw pointers and plain structs, loaded with ctypes, no GIL inside. */
#ifndef PROA_CPU_H
#define PROA_CPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Weights of a linear layer, y = W x. */
typedef struct {
    int32_t type;     /* GGUF type number */
    int32_t rows;     /* output features */
    int32_t cols;     /* input features, a multiple of the type's block */
    const void* data; /* the file's rows before packing; packed groups after it (float types are never packed) */
} proa_cpu_matrix;

/* Kernels of an instruction set (`portable`, `avx2`, `avx512`), or of the best one for "" ; null if the machine lacks it. */
const void* proa_cpu_kernels(const char* isa);
const char* proa_cpu_isa_name(const void* kernels);

/* Bytes that packing `m` needs; 0 for float types. The target is 64-byte aligned. */
int64_t proa_cpu_packed_bytes(const void* kernels, const proa_cpu_matrix* m);
void proa_cpu_pack(const void* kernels, const proa_cpu_matrix* m, void* out);

/* y[tokens][rows] = W x[tokens][cols]; int8 != 0 quantises the activations of packed kinds. One thread. */
void proa_cpu_linear(const void* kernels, const proa_cpu_matrix* m, const float* x, int32_t tokens, int32_t int8, float* y);

/* Dequantises one row of the file to f32. */
void proa_cpu_expand(int32_t type, const void* row, int32_t cols, float* out);

#ifdef __cplusplus
}
#endif
#endif
