// A fixed set of threads that run one function together, with barriers inside it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace proa {

/// `run(f)` calls f(thread) on every thread, the caller being thread 0, and returns when all have ended.
///
/// Workers spin for a while after a job, since the next step follows within microseconds under load, then park: an idle
/// engine uses no CPU. One caller at a time.
class Pool {
  public:
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return num_threads_; }
    void run(const std::function<void(int)>& job);
    /// Waits until every thread of the running job has come here. Writes before it are seen after it.
    void barrier(int thread);

  private:
    struct alignas(64) Flag {
        std::atomic<uint32_t> phase{0};
    };

    void work(int thread);
    uint32_t wait_for_job(uint32_t seen);

    const int num_threads_;
    std::vector<Flag> arrived_;  // by thread; a barrier is passed when every flag has reached the phase
    std::atomic<uint32_t> job_{0};
    std::atomic<int> running_{0};
    std::atomic<bool> stopping_{false};
    const std::function<void(int)>* function_ = nullptr;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<int> parked_{0};
    std::vector<std::thread> workers_;
};

}  // namespace proa
