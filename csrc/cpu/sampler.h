// The sampling recipe and logprobs of one row of logits (http-surface.md 2.2 and 3.4; wire.md section 4).
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "../include/proa_cpu.h"
#include "kernels.h"

namespace proa {

/// Sampling parameters of a request row, with what it has to remember between steps.
class RowSampler {
  public:
    RowSampler() = default;
    explicit RowSampler(const proa_cpu_row& parameters);

    /// Draws the token at output position `position`; `z` (the first `n` logits) is used up. -1 if everything is masked.
    int32_t draw(const KernelTable& kernels, float* z, int n, int position);
    /// Remembers a drawn token for penalties and bad words.
    void append(int32_t id);
    int32_t num_logprobs() const { return parameters_.num_logprobs; }

  private:
    void mask(float* z, int n, int position) const;
    void penalise(float* z, int n) const;
    int32_t draw_filtered(const KernelTable& kernels, const float* z, int n, float largest, int position);
    int32_t draw_any(const float* z, int n, int first, int position) const;

    proa_cpu_row parameters_{};
    bool remembers_ = false;
    std::vector<int32_t> stop_ids_, bias_ids_, allowed_ids_, history_;
    std::vector<float> bias_values_;
    std::vector<std::vector<int32_t>> bad_words_;
    std::unordered_map<int32_t, int32_t> output_counts_;
    std::unordered_map<int32_t, bool> seen_;  // prompt and output ids
    std::vector<std::pair<float, int32_t>> candidates_;
};

/// Where the logprobs of one row go; `k` entries of `top_ids` are written, the rest up to `capacity` filled with -1.
struct LogprobTarget {
    float* value;
    int32_t* rank;
    int32_t* top_ids;
    float* top_values;
    int32_t k;
    int32_t capacity;
};

/// Logprob, rank and top k of `id` from raw logits. `largest` is the largest of the `n` logits.
void write_logprobs(const KernelTable& kernels, const float* z, int n, float largest, int32_t id, const LogprobTarget& out);

/// Gumbel noise of (stream key, position, token id): speculative-decoding.md section 3, Philox4x32-10 (Salmon et al. 2011).
float gumbel_noise(uint64_t stream_key, uint32_t position, uint32_t id);

}  // namespace proa
