/* The C ABI of the CPU library: raw pointers and plain structs, loaded with ctypes, no GIL inside. */
#ifndef PROA_CPU_H
#define PROA_CPU_H

#include <stdint.h>

#define PROA_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

/* Weights of a linear layer, y = W x. */
typedef struct {
    int32_t type;     /* GGUF type number */
    int32_t rows;     /* output features */
    int32_t cols;     /* input features, a multiple of the type's block */
    const void* data; /* the file's rows before packing; packed groups after it (float types are never packed) */
} proa_cpu_matrix;

/* ---- the runner -------------------------------------------------------------------------------------------------- */

typedef struct proa_cpu_runner proa_cpu_runner;

typedef struct {
    const char* isa;         /* "" = the best; else `portable`, `avx2`, `avx512` */
    int32_t threads;
    int32_t int8;            /* 1: quantised weights meet int8 activations; 0: f32 throughout */
    int32_t max_rows;        /* request rows */
    int32_t max_tokens;      /* tokens a step */
    int32_t max_model_len;
    int32_t num_blocks;
    int32_t block_size;      /* a multiple of 16 */
    int32_t cache_type;      /* 0 f32, 1 f16, 2 bf16 */
    int32_t vocab_size;      /* columns of the logits */
    int32_t reachable_vocab; /* ids below it can be drawn and ranked */
} proa_cpu_config;

/* What an instruction does; operands are buffers, matrices (stacks; tables for EMBED) and vectors by number. */
enum {
    PROA_CPU_EMBED = 0,       /* dst[t] = row token_ids[t] of matrix, times f[0] */
    PROA_CPU_RMS_NORM = 1,    /* dst = rms_norm(src, vector, eps f[0]) */
    PROA_CPU_LINEAR = 2,      /* dst (+)= matrix src (+ vector); flags 1: accumulate */
    PROA_CPU_ROPE_INSERT = 3, /* src = [q | k | v] of layer: rope on q and k in place, then k and v to the cache */
    PROA_CPU_ATTENTION = 4,   /* dst = attention(q part of src, cache of layer) */
    PROA_CPU_SILU_MUL = 5,    /* dst = silu(src[:n]) * src[n:], n = i[0] */
    PROA_CPU_ADD = 6,         /* dst += src */
    PROA_CPU_SELECT = 7,      /* dst[l] = src[logit_token[l]]: from tokens to logit rows; all that follows is per logit row */
    PROA_CPU_LOGITS = 8       /* logits = matrix src, then the sampling recipe; the last instruction */
};

typedef struct {
    int32_t op, dst, src, matrix, vector, layer, flags;
    int32_t i[2];
    float f[2];
} proa_cpu_instruction;

/* Attention facts of a layer. */
typedef struct {
    int32_t heads, kv_heads, head_dim, rotary_dim, interleaved, window, rope_table; /* rope_table: a vector, or -1 */
    float scale, softcap;
} proa_cpu_layer;

/* Sampling parameters of one request row, as RowUpdates in python/proa/sched/plan.py. */
typedef struct {
    int32_t row, top_k, min_tokens, num_logprobs;
    float temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
    uint64_t stream_key;
    int32_t num_history, history_prompt_len, num_stop, num_bias, num_allowed, num_bad_words; /* num_allowed -1: all */
    const int32_t *history, *stop_ids, *bias_ids, *allowed_ids;
    const int32_t *bad_word_len, *bad_word_ids;
    const float* bias_values;
} proa_cpu_row;

/* One step: the columns of StepPlan and the buffers of StepResult. All stay valid until the step is waited for. */
typedef struct {
    int32_t num_rows, num_tokens, num_sampled, num_prompt, num_table, num_updates;
    int32_t top_k, prompt_top_k; /* K and KP; -1 = no logprobs */
    const int32_t *row, *query_start, *token_ids, *token_source, *positions;
    const int64_t* slot_mapping;
    const int32_t *table_row, *table_index, *table_block;
    const int32_t *logit_token, *sample_row, *sample_position, *prompt_target, *prompt_k;
    const proa_cpu_row* updates;
    int32_t* sampled_ids; /* [S] */
    uint8_t* nonfinite;   /* [S + Q] */
    float* lp_value;      /* [S + Q], and so the next three */
    int32_t* lp_rank;
    int32_t* lp_top_ids;  /* S rows of K, then Q rows of KP */
    float* lp_top_values;
    int64_t elapsed_ns;   /* out */
} proa_cpu_step;

/* Null when the machine lacks the instruction set or memory is short; `error` then holds one line. */
PROA_API proa_cpu_runner* proa_cpu_create(const proa_cpu_config* config, char* error, int32_t error_size);
PROA_API void proa_cpu_destroy(proa_cpu_runner* runner);

/* A stack of matrices with equal columns, its rows one after another; returns its number. Packed types are repacked in
   parallel here; float types stay where they are and must outlive the runner. */
PROA_API int32_t proa_cpu_add_matrix(proa_cpu_runner* runner, const proa_cpu_matrix* parts, int32_t num_parts);
/* An embedding table: rows are looked up in the file's form, never repacked; must outlive the runner. */
PROA_API int32_t proa_cpu_add_table(proa_cpu_runner* runner, const proa_cpu_matrix* table);
/* f32 vector that must outlive the runner. */
PROA_API int32_t proa_cpu_add_vector(proa_cpu_runner* runner, const float* data, int32_t size);
PROA_API int32_t proa_cpu_add_layer(proa_cpu_runner* runner, const proa_cpu_layer* layer);
/* A buffer of `width` floats a token (or logit row). */
PROA_API int32_t proa_cpu_add_buffer(proa_cpu_runner* runner, int32_t width);
PROA_API int32_t proa_cpu_add_instruction(proa_cpu_runner* runner, const proa_cpu_instruction* instruction);

/* Starts a step on the runner's own threads and returns; `event_fd` gets an 8-byte 1 when it is done. At most two steps
   are outstanding; they run in order. */
PROA_API void proa_cpu_submit(proa_cpu_runner* runner, proa_cpu_step* step, int32_t event_fd);
/* Returns when `step` is done. */
PROA_API void proa_cpu_wait(proa_cpu_runner* runner, proa_cpu_step* step);

/* Bytes held: packed weights, KV cache (reserved), buffers. */
PROA_API void proa_cpu_memory(const proa_cpu_runner* runner, int64_t* packed, int64_t* cache, int64_t* buffers);

/* ---- single ops, for tests and benchmarks ------------------------------------------------------------------------ */

/* Kernels of an instruction set, or of the best one for "" ; null if the machine lacks it. */
PROA_API const void* proa_cpu_kernels(const char* isa);
PROA_API const char* proa_cpu_isa_name(const void* kernels);

/* Bytes that packing `m` needs; 0 for float types. The target is 64-byte aligned. */
PROA_API int64_t proa_cpu_packed_bytes(const void* kernels, const proa_cpu_matrix* m);
PROA_API void proa_cpu_pack(const void* kernels, const proa_cpu_matrix* m, void* out);

/* y[tokens][rows] = W x[tokens][cols]; int8 != 0 quantises the activations of packed kinds. One thread. */
PROA_API void proa_cpu_linear(const void* kernels, const proa_cpu_matrix* m, const float* x, int32_t tokens, int32_t int8, float* y);

/* Dequantises one row of the file to f32. */
PROA_API void proa_cpu_expand(int32_t type, const void* row, int32_t cols, float* out);

#ifdef __cplusplus
}
#endif
#endif
