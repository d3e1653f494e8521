#include "sampler.h"

#include <algorithm>
#include <cmath>

namespace proa {
namespace {

constexpr float MASKED = -INFINITY;
constexpr float LARGEST_NOISE = 16.7f;  // -log(-log(1 - 2^-24)) = 16.64

uint32_t philox_word(uint64_t key, uint32_t c0, uint32_t c1) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32), c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        const uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = n0;
        c2 = n2;
    }
    return c0;
}

/// Larger first, ties to the lower id.
bool before(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
}

/// Keeps the shortest sorted prefix of `c` whose mass reaches `top_p`; at least one.
void keep_mass(std::vector<std::pair<float, int32_t>>& c, float largest, float top_p) {
    double total = 0;
    for (const auto& e : c) total += std::exp(e.first - largest);
    size_t sorted = 0;
    double mass = 0;
    for (size_t want = 256; sorted < c.size(); want *= 8) {
        const size_t end = std::min(want, c.size());
        std::partial_sort(c.begin() + (long)sorted, c.begin() + (long)end, c.end(), before);
        for (; sorted < end; sorted++) {
            mass += std::exp(c[sorted].first - largest);
            if (mass >= (double)top_p * total) return c.resize(sorted + 1);
        }
    }
}

}  // namespace

float gumbel_noise(uint64_t stream_key, uint32_t position, uint32_t id) {
    const float u = ((float)(philox_word(stream_key, id, position) >> 9) + 0.5f) * 0x1p-23f;
    return -std::log(-std::log(u));
}

RowSampler::RowSampler(const proa_cpu_row& p)
    : parameters_(p),
      stop_ids_(p.stop_ids, p.stop_ids + p.num_stop),
      bias_ids_(p.bias_ids, p.bias_ids + p.num_bias),
      allowed_ids_(p.allowed_ids, p.allowed_ids + std::max(p.num_allowed, 0)),
      bias_values_(p.bias_values, p.bias_values + p.num_bias) {
    const int32_t* word = p.bad_word_ids;
    for (int i = 0; i < p.num_bad_words; word += p.bad_word_len[i++])
        bad_words_.emplace_back(word, word + p.bad_word_len[i]);
    remembers_ = p.presence_penalty != 0 || p.frequency_penalty != 0 || p.repetition_penalty != 1 || !bad_words_.empty();
    for (int i = 0; remembers_ && i < p.num_history; i++) {
        if (i < p.history_prompt_len) {
            history_.push_back(p.history[i]);
            seen_[p.history[i]] = true;
        } else {
            append(p.history[i]);
        }
    }
}

void RowSampler::append(int32_t id) {
    if (!remembers_) return;
    history_.push_back(id);
    seen_[id] = true;
    output_counts_[id]++;
}

void RowSampler::mask(float* z, int n, int position) const {
    if (parameters_.num_allowed >= 0) {
        std::vector<std::pair<int32_t, float>> kept;
        for (int32_t id : allowed_ids_)
            if (id < n) kept.emplace_back(id, z[id]);
        std::fill(z, z + n, MASKED);
        for (const auto& [id, value] : kept) z[id] = value;
    }
    for (const auto& word : bad_words_) {
        const size_t prefix = word.size() - 1;
        if (history_.size() >= prefix && std::equal(word.begin(), word.end() - 1, history_.end() - (long)prefix) && word.back() < n)
            z[word.back()] = MASKED;
    }
    if (position < parameters_.min_tokens)
        for (int32_t id : stop_ids_)
            if (id < n) z[id] = MASKED;
}

void RowSampler::penalise(float* z, int n) const {
    for (size_t i = 0; i < bias_ids_.size(); i++)
        if (bias_ids_[i] < n) z[bias_ids_[i]] += bias_values_[i];
    if (parameters_.repetition_penalty != 1)
        for (const auto& [id, unused] : seen_)
            if (id < n) z[id] = z[id] > 0 ? z[id] / parameters_.repetition_penalty : z[id] * parameters_.repetition_penalty;
    for (const auto& [id, count] : output_counts_)
        if (id < n) z[id] -= parameters_.presence_penalty + parameters_.frequency_penalty * (float)count;
}

int32_t RowSampler::draw(const KernelTable& kernels, float* z, int n, int position) {
    mask(z, n, position);
    penalise(z, n);
    const float temperature = parameters_.temperature;
    if (temperature != 0 && temperature != 1)
        for (int i = 0; i < n; i++) z[i] /= temperature;
    const int first = kernels.argmax(z, n);
    if (first < 0 || temperature == 0) return first;
    const bool filtered = parameters_.min_p > 0 || parameters_.top_k > 0 || parameters_.top_p < 1;
    return filtered ? draw_filtered(kernels, z, n, z[first], position) : draw_any(z, n, first, position);
}

int32_t RowSampler::draw_any(const float* z, int n, int first, int position) const {
    float best = z[first] + gumbel_noise(parameters_.stream_key, (uint32_t)position, (uint32_t)first);
    int32_t id = first;
    for (int32_t i = 0; i < n; i++) {
        if (!(z[i] + LARGEST_NOISE >= best)) continue;
        const float value = z[i] + gumbel_noise(parameters_.stream_key, (uint32_t)position, (uint32_t)i);
        if (value > best || (value == best && i < id)) {
            best = value;
            id = i;
        }
    }
    return id;
}

int32_t RowSampler::draw_filtered(const KernelTable&, const float* z, int n, float largest, int position) {
    const float cut = parameters_.min_p > 0 ? largest + std::log(parameters_.min_p) : MASKED;
    candidates_.clear();
    for (int32_t i = 0; i < n; i++)
        if (z[i] >= cut && z[i] > MASKED) candidates_.emplace_back(z[i], i);
    const size_t k = (size_t)parameters_.top_k;
    if (k > 0 && k < candidates_.size()) {
        std::nth_element(candidates_.begin(), candidates_.begin() + (long)k, candidates_.end(), before);
        candidates_.resize(k);
    }
    if (parameters_.top_p < 1) keep_mass(candidates_, largest, parameters_.top_p);
    float best = MASKED;
    int32_t id = -1;
    for (const auto& [value, candidate] : candidates_) {
        const float noisy = value + gumbel_noise(parameters_.stream_key, (uint32_t)position, (uint32_t)candidate);
        if (id < 0 || noisy > best || (noisy == best && candidate < id)) {
            best = noisy;
            id = candidate;
        }
    }
    return id;
}

void write_logprobs(const KernelTable& kernels, const float* z, int n, float largest, int32_t id, const LogprobTarget& out) {
    const float log_total = largest + std::log(kernels.sum_exp(z, n, largest));
    *out.value = z[id] - log_total;
    *out.rank = kernels.count_at_least(z, n, z[id]);
    std::fill(out.top_ids, out.top_ids + out.capacity, -1);
    std::fill(out.top_values, out.top_values + out.capacity, MASKED);
    const size_t k = (size_t)std::min(out.k, n);
    std::vector<std::pair<float, int32_t>> top;  // a heap whose front is the last of the best k
    for (int32_t i = 0; k > 0 && i < n; i++) {
        if (top.size() == k && !(z[i] > top.front().first)) continue;
        if (top.size() == k) {
            std::pop_heap(top.begin(), top.end(), before);
            top.pop_back();
        }
        top.emplace_back(z[i], i);
        std::push_heap(top.begin(), top.end(), before);
    }
    std::sort_heap(top.begin(), top.end(), before);
    for (size_t i = 0; i < top.size(); i++) {
        out.top_ids[i] = top[i].second;
        out.top_values[i] = top[i].first - log_total;
    }
}

}  // namespace proa
