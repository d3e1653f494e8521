#include "pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace proa {
namespace {

constexpr auto SPIN = std::chrono::microseconds(200);  // longer than the gap between two steps under load
constexpr int SPINS_BEFORE_YIELD = 2000;  // some 100 us where a pause takes 50 ns: by then another thread holds this core

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

}  // namespace

Pool::Pool(int threads) : num_threads_(threads < 1 ? 1 : threads), arrived_((size_t)num_threads_) {
    for (int t = 1; t < num_threads_; t++) workers_.emplace_back([this, t] { work(t); });
}

Pool::~Pool() {
    stopping_.store(true);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        job_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void Pool::run(const std::function<void(int)>& job) {
    function_ = &job;
    running_.store(num_threads_ - 1, std::memory_order_relaxed);
    job_.fetch_add(1);  // sequentially consistent, as is `parked_`: one of the two sides sees the other
    if (parked_.load() > 0) {
        std::lock_guard<std::mutex> lock(mutex_);
        wake_.notify_all();
    }
    job(0);
    for (int spins = 0; running_.load(std::memory_order_acquire) > 0;)
        if (++spins < SPINS_BEFORE_YIELD) pause();
        else std::this_thread::yield();
}

void Pool::barrier(int thread) {
    if (num_threads_ == 1) return;
    const uint32_t phase = arrived_[(size_t)thread].phase.load(std::memory_order_relaxed) + 1;
    arrived_[(size_t)thread].phase.store(phase, std::memory_order_release);
    for (const auto& other : arrived_)
        for (int spins = 0; (int32_t)(other.phase.load(std::memory_order_acquire) - phase) < 0;)
            if (++spins < SPINS_BEFORE_YIELD) pause();
            else std::this_thread::yield();
}

uint32_t Pool::wait_for_job(uint32_t seen) {
    const auto begin = std::chrono::steady_clock::now();
    for (int spins = 0; job_.load(std::memory_order_acquire) == seen; spins++) {
        pause();
        if (spins % 256 == 255 && std::chrono::steady_clock::now() - begin > SPIN) {
            std::unique_lock<std::mutex> lock(mutex_);
            parked_.fetch_add(1);
            wake_.wait(lock, [&] { return job_.load() != seen; });
            parked_.fetch_sub(1);
        }
    }
    return job_.load(std::memory_order_acquire);
}

void Pool::work(int thread) {
    for (uint32_t seen = 0;;) {
        seen = wait_for_job(seen);
        if (stopping_.load()) return;
        (*function_)(thread);
        running_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace proa
