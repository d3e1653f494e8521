// The runner behind the C ABI. No exception crosses it.
#include <cstdio>
#include <stdexcept>

#include "isa.h"
#include "runner.h"

struct proa_cpu_runner {
    proa::Runner runner;
};

extern "C" {

proa_cpu_runner* proa_cpu_create(const proa_cpu_config* config, char* error, int32_t error_size) {
    const bool named = config->isa && *config->isa;
    const proa::KernelTable* kernels = named ? proa::kernels_for(config->isa) : proa::best_kernels();
    if (!kernels) {
        std::snprintf(error, (size_t)error_size, "this machine has no %s", config->isa);
        return nullptr;
    }
    try {
        return new proa_cpu_runner{{*config, *kernels}};
    } catch (const std::exception& e) {
        std::snprintf(error, (size_t)error_size, "%s", e.what());
        return nullptr;
    }
}

void proa_cpu_destroy(proa_cpu_runner* r) { delete r; }

/* Additions that need memory return -1 when there is none. */
#define PROA_ADD(call)                        \
    try {                                     \
        return r->runner.call;                \
    } catch (const std::exception&) {         \
        return -1;                            \
    }

int32_t proa_cpu_add_matrix(proa_cpu_runner* r, const proa_cpu_matrix* parts, int32_t n) { PROA_ADD(add_matrix(parts, n)) }
int32_t proa_cpu_add_table(proa_cpu_runner* r, const proa_cpu_matrix* table) { PROA_ADD(add_table(*table)) }
int32_t proa_cpu_add_vector(proa_cpu_runner* r, const float* data, int32_t size) { PROA_ADD(add_vector(data, size)) }
int32_t proa_cpu_add_layer(proa_cpu_runner* r, const proa_cpu_layer* layer) { PROA_ADD(add_layer(*layer)) }
int32_t proa_cpu_add_buffer(proa_cpu_runner* r, int32_t width) { PROA_ADD(add_buffer(width)) }
int32_t proa_cpu_add_instruction(proa_cpu_runner* r, const proa_cpu_instruction* in) { PROA_ADD(add_instruction(*in)) }

#undef PROA_ADD

void proa_cpu_submit(proa_cpu_runner* r, proa_cpu_step* step, int32_t event_fd) { r->runner.submit(step, event_fd); }
void proa_cpu_wait(proa_cpu_runner* r, proa_cpu_step* step) { r->runner.wait(step); }
void proa_cpu_memory(const proa_cpu_runner* r, int64_t* packed, int64_t* cache, int64_t* buffers) {
    r->runner.memory(packed, cache, buffers);
}

}
