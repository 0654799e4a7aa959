#include "system.h"

#include <algorithm>
#include <new>

#define NOMINMAX 1
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

namespace tfn {
namespace system {
namespace {

// Windows' words for its last error, in UTF-8 and without the line's end.
std::string last_error() {
    const DWORD code = ::GetLastError();
    wchar_t wide[300];
    const DWORD flags = FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS;
    const int count = (int)::FormatMessageW(flags, nullptr, code, 0, wide, 300, nullptr);
    char text[900];  // three bytes for each at most
    const int bytes = ::WideCharToMultiByte(CP_UTF8, 0, wide, count, text, 900, nullptr, nullptr);
    std::string found(text, (size_t)std::max(0, bytes));
    while (!found.empty() && (unsigned char)found.back() <= ' ') found.pop_back();
    return found.empty() ? "error " + std::to_string(code) : found;
}

[[noreturn]] void fail(const std::string& path, const char* doing) {
    const std::string why = last_error();
    throw FileError("cannot " + std::string(doing) + " '" + path + "': " + why);
}

std::wstring wide(const std::string& path) {
    const auto convert = [&](wchar_t* to, int room) {
        return ::MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.c_str(), -1, to, room);
    };
    std::wstring found((size_t)convert(nullptr, 0), L'\0');  // with the zero at its end
    if (found.empty()) fail(path, "open");
    convert(&found[0], (int)found.size());
    return found;
}

// A handle that is closed.
struct Handle {
    HANDLE value;
    bool none() const { return !value || value == INVALID_HANDLE_VALUE; }
    void close() {
        if (!none()) ::CloseHandle(value);
        value = nullptr;
    }
    ~Handle() { close(); }
};

void write_all(HANDLE file, Bytes part, const std::string& path) {
    const char* at = static_cast<const char*>(part.data);
    while (part.size) {
        DWORD written = 0;
        const DWORD most = (DWORD)std::min(part.size, size_t(1) << 30);
        if (!::WriteFile(file, at, most, &written, nullptr) || !written) fail(path, "write");
        at += written;
        part.size -= written;
    }
}

}  // namespace

// Large pages would take a right that users do not have.
Pages Pages::of_memory(size_t bytes) {
    void* data = ::VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    if (!data) throw std::bad_alloc();
    return Pages(data, bytes, false);
}

Pages Pages::of_file(const std::string& path) {
    constexpr DWORD SHARED = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    const Handle file{::CreateFileW(wide(path).c_str(), GENERIC_READ, SHARED, nullptr,
                                    OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr)};
    if (file.none()) fail(path, "open");
    if (::GetFileType(file.value) != FILE_TYPE_DISK) return Pages(nullptr, 0, true);
    LARGE_INTEGER size;
    if (!::GetFileSizeEx(file.value, &size)) fail(path, "read");
    if (!size.QuadPart) return Pages(nullptr, 0, true);
    const Handle map{::CreateFileMappingW(file.value, nullptr, PAGE_READONLY, 0, 0, nullptr)};
    if (map.none()) fail(path, "map");
    void* data = ::MapViewOfFile(map.value, FILE_MAP_READ, 0, 0, 0);
    if (!data) fail(path, "map");
    return Pages(data, (size_t)size.QuadPart, true);
}

Pages::~Pages() {
    if (!data_) return;
    if (file_) ::UnmapViewOfFile(data_);
    else ::VirtualFree(data_, 0, MEM_RELEASE);
}

// To unlock pages that are not locked is the way to take them out of the working set.
void give_back(const void* data, size_t bytes) { ::VirtualUnlock(const_cast<void*>(data), bytes); }

// Windows keeps a file that a process has mapped: the new one is then given up.
void write(const std::string& temporary, const std::string& path, const std::vector<Bytes>& parts) {
    const std::wstring from = wide(temporary), to = wide(path);
    Handle file{::CreateFileW(from.c_str(), GENERIC_WRITE, 0, nullptr, CREATE_NEW,
                              FILE_ATTRIBUTE_NORMAL, nullptr)};
    if (file.none()) fail(temporary, "make");
    try {
        for (const Bytes& part : parts) write_all(file.value, part, temporary);
        if (!::FlushFileBuffers(file.value)) fail(temporary, "write");
        file.close();  // what is open has no other name
        if (!::MoveFileExW(from.c_str(), to.c_str(),
                           MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH))
            fail(path, "write");
    } catch (...) {
        file.close();
        ::DeleteFileW(from.c_str());
        throw;
    }
}

int64_t process() { return ::GetCurrentProcessId(); }

}  // namespace system
}  // namespace tfn
