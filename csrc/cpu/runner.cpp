#include "runner.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

namespace proa {
namespace {

constexpr int LOGIT_TILE = 16;  // logit rows that share a pass over the head's weights; bounds the logits buffer

/// The share [begin, end) of `count` units that `thread` takes.
std::pair<int, int> share(int count, int thread, int threads) {
    return {(int)((int64_t)count * thread / threads), (int)((int64_t)count * (thread + 1) / threads)};
}

}  // namespace

bool Stack::packed() const {
    return std::any_of(parts.begin(), parts.end(), [](const Matrix& m) { return m.pack != Pack::NONE; });
}

Runner::Runner(const proa_cpu_config& config, const KernelTable& kernels)
    : config_(config),
      kernels_(kernels),
      pool_(config.threads),
      blocks_per_row_((config.max_model_len + config.block_size - 1) / config.block_size),
      block_table_((size_t)config.max_rows * (size_t)blocks_per_row_),
      rows_((size_t)config.max_rows),
      logits_((size_t)LOGIT_TILE * (size_t)config.vocab_size * sizeof(float)),
      scratch_stride_((blocks_per_row_ + 1) * config.block_size) {
    scratch_ = Arena((size_t)pool_.threads() * MAX_QUERIES * (size_t)scratch_stride_ * sizeof(float));
    driver_ = std::thread([this] { drive(); });
}

Runner::~Runner() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    driver_.join();
}

// ---- building the program -------------------------------------------------------------------------------------------

int32_t Runner::add_matrix(const proa_cpu_matrix* parts, int32_t num_parts) {
    Stack stack;
    for (int32_t i = 0; i < num_parts; i++) {
        Matrix m{parts[i].type, pack_of(parts[i].type), parts[i].rows, parts[i].cols, (const uint8_t*)parts[i].data};
        if (m.pack != Pack::NONE) {
            Arena arena(m.group_bytes(kernels_.lanes) * (size_t)m.groups(kernels_.lanes));
            const PackTarget target{arena.as<uint8_t>(), kernels_.lanes, kernels_.s8_biased};
            pool_.run([&](int thread) {
                const auto [begin, end] = share(m.groups(kernels_.lanes), thread, pool_.threads());
                pack_groups(m, m.data, target, begin, end);
            });
            m.data = target.data;
            packed_.push_back(std::move(arena));
        }
        stack.parts.push_back(m);
        stack.rows += m.rows;
        stack.cols = m.cols;
    }
    stacks_.push_back(std::move(stack));
    return (int32_t)stacks_.size() - 1;
}

int32_t Runner::add_table(const proa_cpu_matrix& table) {
    tables_.push_back(table);
    return (int32_t)tables_.size() - 1;
}

int32_t Runner::add_vector(const float* data, int32_t) {
    vectors_.push_back(data);
    return (int32_t)vectors_.size() - 1;
}

int32_t Runner::add_layer(const proa_cpu_layer& facts) {
    const size_t element = config_.cache_type == 0 ? 4 : 2;
    const size_t bytes = (size_t)config_.num_blocks * (size_t)config_.block_size * (size_t)facts.kv_heads * (size_t)facts.head_dim * element;
    auto layer = std::make_unique<Layer>(Layer{facts, {}, Arena(bytes), Arena(bytes)});
    layer->shape = {layer->k.as<void>(), layer->v.as<void>(), (CacheType)config_.cache_type, facts.kv_heads, facts.head_dim,
                    config_.block_size,  facts.window,        facts.scale,                   facts.softcap};
    layers_.push_back(std::move(layer));
    return (int32_t)layers_.size() - 1;
}

int32_t Runner::add_buffer(int32_t width) {
    Buffer buffer;
    buffer.width = width;
    buffer.values = Arena((size_t)config_.max_tokens * (size_t)width * sizeof(float));
    buffers_.push_back(std::move(buffer));
    return (int32_t)buffers_.size() - 1;
}

int32_t Runner::add_instruction(const proa_cpu_instruction& in) {
    const bool multiplies = in.op == PROA_CPU_LINEAR || in.op == PROA_CPU_LOGITS;
    if (multiplies && config_.int8 && stacks_[(size_t)in.matrix].packed()) {
        Buffer& src = buffers_[(size_t)in.src];
        if (!src.quantized) {
            src.quantized = true;
            src.quants = Arena((size_t)config_.max_tokens * (size_t)src.width);
            src.blocks = Arena((size_t)config_.max_tokens * (size_t)(src.width / BLOCK) * sizeof(QuantBlock));
        }
    }
    program_.push_back(in);
    return (int32_t)program_.size() - 1;
}

void Runner::memory(int64_t* packed, int64_t* cache, int64_t* buffers) const {
    *packed = *cache = 0;
    for (const auto& arena : packed_) *packed += (int64_t)arena.bytes();
    for (const auto& layer : layers_) *cache += (int64_t)(layer->k.bytes() + layer->v.bytes());
    *buffers = (int64_t)(logits_.bytes() + scratch_.bytes());
    for (const auto& b : buffers_) *buffers += (int64_t)(b.values.bytes() + b.quants.bytes() + b.blocks.bytes());
}

// ---- the queue of steps ---------------------------------------------------------------------------------------------

void Runner::submit(proa_cpu_step* step, int event_fd) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        queue_.push_back({step, event_fd});
    }
    changed_.notify_all();
}

void Runner::wait(const proa_cpu_step* step) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] {
        return std::none_of(queue_.begin(), queue_.end(), [&](const Job& job) { return job.step == step; });
    });
}

void Runner::drive() {
    for (;;) {
        Job job;
        {
            std::unique_lock<std::mutex> lock(mutex_);
            changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
            if (queue_.empty()) return;
            job = queue_.front();
        }
        const auto start = std::chrono::steady_clock::now();
        begin(*job.step);
        pool_.run([&](int thread) { execute(*job.step, thread); });
        std::swap(last_sampled_, sampled_);
        job.step->elapsed_ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
        {
            std::lock_guard<std::mutex> lock(mutex_);
            queue_.erase(queue_.begin());
        }
        changed_.notify_all();
        const uint64_t one = 1;
        while (job.event_fd >= 0 && write(job.event_fd, &one, sizeof one) < 0 && errno == EINTR) {
        }
    }
}

void Runner::begin(const proa_cpu_step& step) {
    for (int i = 0; i < step.num_table; i++)
        block_table_[(size_t)step.table_row[i] * (size_t)blocks_per_row_ + (size_t)step.table_index[i]] = step.table_block[i];
    for (int i = 0; i < step.num_updates; i++) rows_[(size_t)step.updates[i].row] = RowSampler(step.updates[i]);
    sampled_.assign((size_t)step.num_sampled, 0);
}

// ---- a step ---------------------------------------------------------------------------------------------------------

void Runner::execute(const proa_cpu_step& step, int thread) {
    int length = step.num_tokens;
    for (const auto& in : program_) {
        if (in.op == PROA_CPU_LOGITS) return logits(step, in, thread);
        if (in.op == PROA_CPU_SELECT) length = step.num_sampled + step.num_prompt;
        instruction(step, in, length, thread);
        pool_.barrier(thread);
        if (length == 0) return;
    }
}

void Runner::instruction(const proa_cpu_step& step, const proa_cpu_instruction& in, int length, int thread) {
    const auto [begin, end] = share(length, thread, pool_.threads());
    switch (in.op) {
        case PROA_CPU_EMBED: return embed(step, in, thread);
        case PROA_CPU_ROPE_INSERT: return rope_insert(step, in, thread);
        case PROA_CPU_ATTENTION: return attention(step, in, thread);
        case PROA_CPU_SILU_MUL: return silu_mul(in, length, thread);
        case PROA_CPU_LINEAR: {
            Buffer& dst = buffers_[(size_t)in.dst];
            linear(stacks_[(size_t)in.matrix], buffers_[(size_t)in.src], 0, length, {dst.row(0), (size_t)dst.width, (in.flags & 1) != 0}, thread);
            if (in.vector >= 0) add_bias(in, length, thread);
            return;
        }
        default: break;
    }
    Buffer &dst = buffers_[(size_t)in.dst], &src = buffers_[(size_t)in.src];
    for (int t = begin; t < end; t++) {
        if (in.op == PROA_CPU_RMS_NORM)
            kernels_.rms_norm(src.row(t), vectors_[(size_t)in.vector], src.width, in.f[0], dst.row(t));
        else if (in.op == PROA_CPU_SELECT)
            std::memcpy(dst.row(t), src.row(step.logit_token[t]), (size_t)src.width * sizeof(float));
        else
            for (int i = 0; i < dst.width; i++) dst.row(t)[i] += src.row(t)[i];
        quantize_row(dst, t);
    }
}

void Runner::quantize_row(Buffer& buffer, int t) const {
    if (!buffer.quantized) return;
    const size_t width = (size_t)buffer.width;
    kernels_.quantize(buffer.row(t), buffer.width, buffer.quants.as<int8_t>() + (size_t)t * width,
                      buffer.blocks.as<QuantBlock>() + (size_t)t * (width / BLOCK));
}

void Runner::embed(const proa_cpu_step& step, const proa_cpu_instruction& in, int thread) {
    const proa_cpu_matrix& table = tables_[(size_t)in.matrix];
    const size_t row_bytes = file_row_bytes(table.type, table.cols);
    Buffer& dst = buffers_[(size_t)in.dst];
    const auto [begin, end] = share(step.num_tokens, thread, pool_.threads());
    for (int t = begin; t < end; t++) {
        const int32_t source = step.token_source[t];
        const int32_t id = source < 0 ? step.token_ids[t] : last_sampled_[(size_t)source];
        expand_row(table.type, (const uint8_t*)table.data + row_bytes * (size_t)id, table.cols, dst.row(t));
        for (int i = 0; in.f[0] != 1 && i < dst.width; i++) dst.row(t)[i] *= in.f[0];
        quantize_row(dst, t);
    }
}

void Runner::linear(const Stack& stack, const Buffer& src, int first, int length, const Output& out, int thread) {
    // A thread takes one range of row groups over the whole stack, so that its weights are one stretch of memory.
    int total = 0;
    for (const auto& m : stack.parts) total += m.groups(kernels_.lanes);
    const auto [begin, end] = share(total, thread, pool_.threads());
    const size_t width = (size_t)src.width;
    int group = 0, row = 0;
    for (const auto& m : stack.parts) {
        const int groups = m.groups(kernels_.lanes);
        const int g0 = std::max(begin - group, 0), g1 = std::min(end - group, groups);
        if (g0 < g1) {
            const bool int8 = src.quantized && m.pack != Pack::NONE;
            const Activations a{src.row(first), int8 ? src.quants.as<int8_t>() + (size_t)first * width : nullptr,
                                src.blocks.as<QuantBlock>() + (size_t)first * (width / BLOCK), length, src.width};
            kernels_.linear(m, g0 * kernels_.lanes, std::min(g1 * kernels_.lanes, m.rows), a, {out.y + row, out.stride, out.accumulate});
        }
        group += groups;
        row += m.rows;
    }
}

void Runner::add_bias(const proa_cpu_instruction& in, int length, int thread) {
    pool_.barrier(thread);
    Buffer& dst = buffers_[(size_t)in.dst];
    const float* bias = vectors_[(size_t)in.vector];
    const auto [begin, end] = share(length, thread, pool_.threads());
    for (int t = begin; t < end; t++)
        for (int i = 0; i < dst.width; i++) dst.row(t)[i] += bias[i];
}

void Runner::silu_mul(const proa_cpu_instruction& in, int length, int thread) {
    Buffer &dst = buffers_[(size_t)in.dst], &src = buffers_[(size_t)in.src];
    const auto [begin, end] = share(length, thread, pool_.threads());
    for (int t = begin; t < end; t++) {
        kernels_.silu_mul(src.row(t), src.row(t) + in.i[0], in.i[0], dst.row(t));
        quantize_row(dst, t);
    }
}

void Runner::rope_insert(const proa_cpu_step& step, const proa_cpu_instruction& in, int thread) {
    const Layer& layer = *layers_[(size_t)in.layer];
    const proa_cpu_layer& f = layer.facts;
    Buffer& src = buffers_[(size_t)in.src];
    const auto [begin, end] = share(step.num_tokens, thread, pool_.threads());
    for (int t = begin; t < end; t++) {
        float* q = src.row(t);
        float* k = q + (size_t)f.heads * (size_t)f.head_dim;
        float* v = k + (size_t)f.kv_heads * (size_t)f.head_dim;
        if (f.rope_table >= 0) {
            const float* table = vectors_[(size_t)f.rope_table] + (size_t)step.positions[t] * (size_t)f.rotary_dim;
            kernels_.rope(q, {f.heads, f.head_dim, f.rotary_dim, f.interleaved != 0}, table);
            kernels_.rope(k, {f.kv_heads, f.head_dim, f.rotary_dim, f.interleaved != 0}, table);
        }
        kernels_.insert_kv(layer.shape, k, v, step.slot_mapping[t]);
    }
}

void Runner::attention(const proa_cpu_step& step, const proa_cpu_instruction& in, int thread) {
    const Layer& layer = *layers_[(size_t)in.layer];
    const proa_cpu_layer& f = layer.facts;
    const int group = f.heads / f.kv_heads;
    Buffer &dst = buffers_[(size_t)in.dst], &src = buffers_[(size_t)in.src];
    // Units are tiles of queries; each thread takes those whose middle lies in its share of the total cost.
    int64_t total = 0, cost = 0;
    const auto cost_of = [&](int row, int tile) {
        const int tokens = step.query_start[row + 1] - step.query_start[row];
        const int last = std::min((tile + 1) * MAX_QUERIES - 1, tokens * group - 1) / group;
        return (int64_t)step.positions[step.query_start[row] + last] + 32;
    };
    const auto tiles_of = [&](int row) {
        return ((step.query_start[row + 1] - step.query_start[row]) * group + MAX_QUERIES - 1) / MAX_QUERIES;
    };
    for (int r = 0; r < step.num_rows; r++)
        for (int tile = 0; tile < tiles_of(r); tile++) total += cost_of(r, tile) * f.kv_heads;
    for (int r = 0; r < step.num_rows; r++) {
        const int first = step.query_start[r], queries = (step.query_start[r + 1] - first) * group;
        const int32_t* table = &block_table_[(size_t)step.row[r] * (size_t)blocks_per_row_];
        for (int h = 0; h < f.kv_heads; h++)
            for (int tile = 0; tile < tiles_of(r); tile++) {
                const int64_t unit = cost_of(r, tile), middle = cost + unit / 2;
                cost += unit;
                if (middle * pool_.threads() / total != thread) continue;
                AttentionQueries a{};
                a.kv_head = h;
                a.scratch = scratch_.as<float>() + (size_t)thread * MAX_QUERIES * (size_t)scratch_stride_;
                a.scratch_stride = scratch_stride_;
                for (int i = tile * MAX_QUERIES; i < std::min((tile + 1) * MAX_QUERIES, queries); i++, a.count++) {
                    const int t = first + i / group;
                    const size_t column = (size_t)(h * group + i % group) * (size_t)f.head_dim;
                    a.q[a.count] = src.row(t) + column;
                    a.out[a.count] = dst.row(t) + column;
                    a.position[a.count] = step.positions[t];
                    a.context = step.positions[t] + 1;
                }
                kernels_.attend(layer.shape, a, table);
            }
    }
    if (!dst.quantized) return;
    pool_.barrier(thread);
    const auto [begin, end] = share(step.num_tokens, thread, pool_.threads());
    for (int t = begin; t < end; t++) quantize_row(dst, t);
}

void Runner::logits(const proa_cpu_step& step, const proa_cpu_instruction& in, int thread) {
    const int length = step.num_sampled + step.num_prompt;
    float* z = logits_.as<float>();
    for (int first = 0; first < length; first += LOGIT_TILE) {
        const int count = std::min(LOGIT_TILE, length - first);
        linear(stacks_[(size_t)in.matrix], buffers_[(size_t)in.src], first, count, {z, (size_t)config_.vocab_size, false}, thread);
        pool_.barrier(thread);
        for (int i = thread; i < count; i += pool_.threads())
            sample(step, first + i, z + (size_t)i * (size_t)config_.vocab_size, thread);
        pool_.barrier(thread);
    }
}

void Runner::sample(const proa_cpu_step& step, int l, float* z, int) {
    const int n = config_.reachable_vocab;
    const int largest = kernels_.argmax(z, n);
    step.nonfinite[l] = largest < 0;
    const bool prompt = l >= step.num_sampled;
    const int q = l - step.num_sampled;
    const int capacity = std::max(prompt ? step.prompt_top_k : step.top_k, 0);
    const size_t top = prompt ? (size_t)step.num_sampled * (size_t)std::max(step.top_k, 0) + (size_t)q * (size_t)capacity
                              : (size_t)l * (size_t)capacity;
    RowSampler* row = prompt ? nullptr : &rows_[(size_t)step.sample_row[l]];
    const int asked = prompt ? step.prompt_k[q] : row->num_logprobs();
    const int k = asked == -2 ? n : asked;
    const bool wants = k >= 0 && (prompt ? step.prompt_top_k : step.top_k) >= 0;
    const LogprobTarget target{step.lp_value + l, step.lp_rank + l, step.lp_top_ids + top, step.lp_top_values + top, k, capacity};
    if (wants) {
        *target.value = NAN;
        *target.rank = 0;
        std::fill(target.top_ids, target.top_ids + capacity, -1);
    }
    if (largest < 0) {
        if (!prompt) step.sampled_ids[l] = 0;
        return;
    }
    if (prompt) {
        if (wants) write_logprobs(kernels_, z, n, z[largest], step.prompt_target[q], target);
        return;
    }
    // The recipe uses the logits up; logprobs are of the raw ones, so they keep a copy.
    std::vector<float> raw;
    if (wants) raw.assign(z, z + n);
    const float z_largest = z[largest];
    const int32_t id = row->draw(kernels_, z, n, step.sample_position[l]);
    if (id < 0) {
        step.nonfinite[l] = 1;
        step.sampled_ids[l] = 0;
        return;
    }
    row->append(id);
    step.sampled_ids[l] = sampled_[(size_t)l] = id;
    if (wants) write_logprobs(kernels_, raw.data(), n, z_largest, id, target);
}

}  // namespace proa
