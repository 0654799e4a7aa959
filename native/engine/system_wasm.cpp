// WebAssembly in a page: no files, and one process.
#include "system.h"

#include <cstring>
#include <new>

#include "memory.h"

namespace tfn {
namespace system {

Pages Pages::of_memory(size_t bytes) {
    constexpr size_t LINE = 64;
    void* data = ::operator new(round_up(bytes, LINE), std::align_val_t(LINE));
    std::memset(data, 0, bytes);
    return Pages(data, bytes, false);
}

Pages Pages::of_file(const std::string& path) {
    throw FileError("cannot open '" + path + "': there are no files here");
}

Pages::~Pages() { ::operator delete(data_, std::align_val_t(64)); }

void give_back(const void*, size_t) {}

void write(const std::string&, const std::string& path, const std::vector<Bytes>&) {
    throw FileError("cannot write '" + path + "': there are no files here");
}

int64_t process() { return 0; }

}  // namespace system
}  // namespace tfn
