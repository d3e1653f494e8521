// A page-aligned piece of memory that starts as zeros and asks for huge pages.
#pragma once
#include <cstddef>
#include <utility>

namespace proa {

class Arena {
  public:
    Arena() = default;
    /// Throws std::runtime_error naming the size when the system has no room.
    explicit Arena(size_t bytes);
    ~Arena();
    Arena(Arena&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Arena& operator=(Arena&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }

    template <class T> T* as() const { return static_cast<T*>(data_); }
    size_t bytes() const { return bytes_; }

  private:
    void* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace proa
