// Runs a program: a flat list of instructions over planned buffers, one call a step.
//
// The program was recorded from a model's forward pass (python/proa/program) and says nothing about the number of tokens:
// every buffer has a width, a step brings the length. Each instruction is one parallel phase: the threads take fixed
// shares, then meet at a barrier. Python is not needed while a step runs.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../include/proa_cpu.h"
#include "arena.h"
#include "kernels.h"
#include "pool.h"
#include "sampler.h"

namespace proa {

/// Matrices with equal columns whose outputs stand one after another.
struct Stack {
    std::vector<Matrix> parts;
    int32_t rows = 0;
    int32_t cols = 0;
    bool packed() const;
};

/// A buffer's contents for the running step: f32, and int8 when a linear layer wants that.
struct Buffer {
    int32_t width = 0;
    bool quantized = false;  ///< some packed linear layer reads it
    Arena values, quants, blocks;
    float* row(int t) const { return values.as<float>() + (size_t)t * (size_t)width; }
};

class Runner {
  public:
    /// Throws std::runtime_error with one line when memory is short.
    Runner(const proa_cpu_config& config, const KernelTable& kernels);
    ~Runner();
    Runner(const Runner&) = delete;
    Runner& operator=(const Runner&) = delete;

    int32_t add_matrix(const proa_cpu_matrix* parts, int32_t num_parts);
    int32_t add_table(const proa_cpu_matrix& table);
    int32_t add_vector(const float* data, int32_t size);
    int32_t add_layer(const proa_cpu_layer& layer);
    int32_t add_buffer(int32_t width);
    int32_t add_instruction(const proa_cpu_instruction& instruction);

    void submit(proa_cpu_step* step, int event_fd);
    void wait(const proa_cpu_step* step);
    void memory(int64_t* packed, int64_t* cache, int64_t* buffers) const;

  private:
    struct Layer {
        proa_cpu_layer facts;
        AttentionShape shape;
        Arena k, v;
    };
    struct Job {
        proa_cpu_step* step;
        int event_fd;
    };

    void drive();
    void begin(const proa_cpu_step& step);
    void execute(const proa_cpu_step& step, int thread);
    void instruction(const proa_cpu_step& step, const proa_cpu_instruction& in, int length, int thread);
    void embed(const proa_cpu_step& step, const proa_cpu_instruction& in, int thread);
    void linear(const Stack& stack, const Buffer& src, int first, int length, const Output& out, int thread);
    void add_bias(const proa_cpu_instruction& in, int length, int thread);
    void rope_insert(const proa_cpu_step& step, const proa_cpu_instruction& in, int thread);
    void attention(const proa_cpu_step& step, const proa_cpu_instruction& in, int thread);
    void silu_mul(const proa_cpu_instruction& in, int length, int thread);
    void logits(const proa_cpu_step& step, const proa_cpu_instruction& in, int thread);
    void sample(const proa_cpu_step& step, int row, float* z, int thread);
    void quantize_row(Buffer& buffer, int t) const;

    const proa_cpu_config config_;
    const KernelTable& kernels_;
    Pool pool_;
    std::vector<Stack> stacks_;
    std::vector<proa_cpu_matrix> tables_;
    std::vector<const float*> vectors_;
    std::vector<std::unique_ptr<Layer>> layers_;
    std::vector<Buffer> buffers_;
    std::vector<proa_cpu_instruction> program_;
    std::vector<Arena> packed_;

    // State of requests, by row; touched by the driver's step only.
    int32_t blocks_per_row_;
    std::vector<int32_t> block_table_;  // [max_rows][blocks_per_row]
    std::vector<RowSampler> rows_;
    std::vector<int32_t> last_sampled_, sampled_;  // [S] of the previous and of the running step
    Arena logits_, scratch_;
    int32_t scratch_stride_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Job> queue_;
    const proa_cpu_step* finished_ = nullptr;
    bool stopping_ = false;
    std::thread driver_;
};

}  // namespace proa
