#include "system.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory.h"

namespace tfn {
namespace system {
namespace {

constexpr size_t HUGE_PAGE = size_t(2) << 20;

[[noreturn]] void fail(const std::string& path, const char* doing) {
    throw FileError("cannot " + std::string(doing) + " '" + path + "': " + std::strerror(errno));
}

// A descriptor that is closed.
struct File {
    int descriptor;
    ~File() {
        if (descriptor >= 0) ::close(descriptor);
    }
};

void write_all(int descriptor, Bytes part, const std::string& path) {
    const char* at = static_cast<const char*>(part.data);
    while (part.size) {
        const ssize_t written = ::write(descriptor, at, std::min(part.size, size_t(1) << 30));
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) fail(path, "write");
        at += written;
        part.size -= (size_t)written;
    }
}

}  // namespace

Pages Pages::of_memory(size_t bytes) {
    // From a large page's first byte on; what lies before it is never touched.
    const size_t size = round_up(bytes, HUGE_PAGE), all = size + HUGE_PAGE;
    void* data = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    char* const start = static_cast<char*>(data);
    const size_t before = round_up((uintptr_t)data, HUGE_PAGE) - (uintptr_t)data;
    if (before) ::munmap(start, before);
    ::munmap(start + before + size, HUGE_PAGE - before);
#ifdef MADV_HUGEPAGE
    // A step reads all weights once: with small pages it waits for their addresses, too.
    ::madvise(start + before, size, MADV_HUGEPAGE);
#endif
    return Pages(start + before, size, false);
}

Pages Pages::of_file(const std::string& path) {
    // A pipe would be waited for; what is no file is refused for its size.
    File file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
    if (file.descriptor < 0) fail(path, "open");
    struct stat status{};
    if (::fstat(file.descriptor, &status)) fail(path, "read");
    if (!S_ISREG(status.st_mode) || !status.st_size) return Pages(nullptr, 0, true);
    const size_t size = (size_t)status.st_size;
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor, 0);
    if (data == MAP_FAILED) fail(path, "map");
    return Pages(data, size, true);
}

Pages::~Pages() {
    if (data_) ::munmap(data_, bytes_);
}

void give_back(const void* data, size_t bytes) {
    constexpr size_t PAGE = 1 << 16;  // of any system that runs here
    const uintptr_t first = round_up((uintptr_t)data, PAGE);
    const uintptr_t last = ((uintptr_t)data + bytes) / PAGE * PAGE;
    if (first < last) ::madvise((void*)first, last - first, MADV_DONTNEED);
}

void write(const std::string& temporary, const std::string& path, const std::vector<Bytes>& parts) {
    File file{::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
    if (file.descriptor < 0) fail(temporary, "make");
    try {
        for (const Bytes& part : parts) write_all(file.descriptor, part, temporary);
        if (::fsync(file.descriptor)) fail(temporary, "write");
        if (::rename(temporary.c_str(), path.c_str())) fail(path, "write");
    } catch (...) {
        ::unlink(temporary.c_str());
        throw;
    }
}

int64_t process() { return ::getpid(); }

}  // namespace system
}  // namespace tfn
