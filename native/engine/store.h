// Where everything lies that loading makes of weights: in memory, or in a file that is mapped.
//
// What is taken from a store comes in a fixed order, which a model's config and instruction set
// decide. So the file needs no table: sizes are those that the config asks for, and a file that has
// another size is refused. It says one thing about sizes: in which of three types a matrix is kept.
//
// The file: a header (see "store.cpp"), and what was taken, each part rounded up to cache lines.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "memory.h"
#include "system.h"

namespace tfn {

// Values that lie in a store.
template <class T>
class View {
public:
    View() = default;
    View(T* data, size_t size) : data_(data), size_(size) {}
    T* data() const { return data_; }
    size_t size() const { return size_; }
    T& operator[](size_t i) const { return data_[i]; }

private:
    T* data_ = nullptr;
    size_t size_ = 0;
};

// What a file has to have been made for.
struct Identity {
    std::string instruction_set, config, weights;  // `weights`: the caller's word for them
};

class Store {
public:
    Store() = default;
    // Maps a file. Raises FileError if it is not whole, or was made for something else.
    Store(const std::string& path, const Identity& identity);
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;

    // Whether values are there already; if not they are 0, to be filled.
    bool filled() const { return mapped_; }
    template <class T>
    View<T> take(size_t size) {
        if (size > MOST_BYTES / sizeof(T)) throw std::bad_alloc();
        return {static_cast<T*>(take_bytes(size * sizeof(T))), size};
    }
    // Raises what is wrong with a file.
    [[noreturn]] void refuse(const std::string& why) const;
    // Raises if a file has more than what was taken.
    void finish() const;
    // Writes a file beside `path` and renames it.
    void save(const std::string& path, const Identity& identity) const;

private:
    void* take_bytes(size_t bytes);

    bool mapped_ = false;
    std::string path_;
    std::vector<system::Bytes> parts_;   // whole cache lines
    std::vector<system::Pages> chunks_;  // of memory; of a file, the one mapping
    size_t used_ = 0;                    // of the last chunk
};

}  // namespace tfn
