// What the engine asks of the operating system: "system_posix.cpp" and "system_windows.cpp". Paths
// are UTF-8.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tfn {

// A file that cannot be used or written.
class FileError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

namespace system {

// Pages of memory, or of a file; given back with their owner.
class Pages {
public:
    // Zeroed, in large pages where the system has them; `bytes` or some more.
    static Pages of_memory(size_t bytes);
    // A whole file, read-only, shared with whoever else maps it. None of what is no file, or empty.
    static Pages of_file(const std::string& path);
    Pages(Pages&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), file_(other.file_) {}
    ~Pages();

    char* data() const { return data_; }
    size_t bytes() const { return bytes_; }

private:
    Pages(void* data, size_t bytes, bool file)
        : data_(static_cast<char*>(data)), bytes_(bytes), file_(file) {}

    char* data_;
    size_t bytes_;
    bool file_;
};

// Takes a part of somebody's file map out of memory; what is read again is read from the file.
void give_back(const void* data, size_t bytes);

struct Bytes {
    const void* data;
    size_t size;
};
// Writes a new file `temporary`, waits until the disk has it, and renames it to `path`, whatever
// was there. Raises FileError, and leaves nothing, if it cannot.
void write(const std::string& temporary, const std::string& path, const std::vector<Bytes>& parts);

// The process, which a fork is not.
int64_t process();

}  // namespace system
}  // namespace tfn
