// Memory that vectors are read from: aligned to cache lines, zeroed, freed with its owner.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace tfn {

// Of anything that is allocated: less than there are addresses.
constexpr size_t MOST_BYTES = (size_t)std::min<uint64_t>(uint64_t(1) << 40, SIZE_MAX / 4);

template <class T>
class Buffer {
public:
    Buffer() = default;
    explicit Buffer(size_t size) { reserve(size); }
    Buffer(Buffer&& other) noexcept : data_(other.data_), size_(other.size_) {
        other.data_ = nullptr;
        other.size_ = 0;
    }
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { release(); }

    // Room for so many values; what was in it is lost if it has to grow.
    T* reserve(size_t size) {
        if (size > size_) {
            release();
            if (size > MOST_BYTES / sizeof(T)) throw std::bad_alloc();
            size_t bytes = (size * sizeof(T) + 127) / 64 * 64;  // kernels may read a vector more
            data_ = static_cast<T*>(::operator new(bytes, LINE));
            std::memset(data_, 0, bytes);
            size_ = size;
        }
        return data_;
    }
    T* data() const { return data_; }
    size_t size() const { return size_; }
    T& operator[](size_t i) const { return data_[i]; }

private:
    static constexpr std::align_val_t LINE{64};

    void release() {
        ::operator delete(data_, LINE);
        data_ = nullptr;
        size_ = 0;
    }

    T* data_ = nullptr;
    size_t size_ = 0;
};

inline size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace tfn
