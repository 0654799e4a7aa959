#include "store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

namespace tfn {
namespace {

constexpr size_t LINE = 64, PAGE = 4096, LEAST_CHUNK = size_t(32) << 20;
constexpr uint32_t FORMAT = 6;  // of the file, and of everything that is packed into it
constexpr char MAGIC[8] = {'T', 'F', 'N', 'P', 'A', 'C', 'K', '\n'};

struct Header {
    char magic[8];
    uint32_t format, size;  // of the header
    uint64_t bytes, sum;    // of what follows it
    uint64_t config;        // hash of its text
    char engine[32], instruction_set[32], weights[256];
};
static_assert(sizeof(Header) <= PAGE, "the header is a page");

// Against damage, not against malice: what a file holds is never an index, nor a size beyond its
// own.
class Sum {
public:
    void add(const void* data, size_t bytes) {  // whole cache lines
        const char* at = static_cast<const char*>(data);
        for (size_t i = 0; i < bytes; i += LINE)
            for (size_t lane = 0; lane < LANES; lane++) {
                uint64_t word;
                std::memcpy(&word, at + i + lane * 8, 8);
                lanes_[lane] = (lanes_[lane] ^ word) * ODD + (word >> 29);
            }
    }
    uint64_t value() const {
        uint64_t all = 0;
        for (uint64_t lane : lanes_) all = (all ^ lane ^ (lane >> 31)) * ODD + 1;
        return all ^ (all >> 32);
    }

private:
    static constexpr size_t LANES = LINE / 8;
    static constexpr uint64_t ODD = 0x9e3779b97f4a7c15;  // 2^64 / the golden ratio
    uint64_t lanes_[LANES] = {1, 2, 3, 4, 5, 6, 7, 8};
};

uint64_t hash(const std::string& text) {
    std::string padded = text;
    padded.resize(round_up(text.size() + 1, LINE));
    Sum sum;
    sum.add(padded.data(), padded.size());
    return sum.value();
}

void set(char* to, size_t room, const std::string& text, const char* what) {
    if (text.size() >= room || text.find('\0') != std::string::npos)
        throw FileError(std::string(what) + " has " + std::to_string(text.size()) +
                        " characters; expected fewer than " + std::to_string(room));
    std::memcpy(to, text.data(), text.size());
}

Header header_of(const Identity& identity) {
    Header header{};
    std::memcpy(header.magic, MAGIC, sizeof MAGIC);
    header.format = FORMAT;
    header.size = PAGE;
    header.config = hash(identity.config);
    set(header.engine, sizeof header.engine, TFN_ENGINE_VERSION, "the engine's version");
    set(header.instruction_set, sizeof header.instruction_set, identity.instruction_set,
        "the instruction set");
    set(header.weights, sizeof header.weights, identity.weights, "the identity of the weights");
    return header;
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
    throw FileError("'" + path + "' " + why + "; its weights have to be packed again");
}

void check(const Header& found, const Header& expected, const std::string& path) {
    if (std::memcmp(found.magic, MAGIC, sizeof MAGIC)) refuse(path, "is no file of packed weights");
    if (found.format != expected.format || found.size != expected.size)
        refuse(path, "has format " + std::to_string(found.format) + "; expected " +
                         std::to_string(expected.format));
    if (std::memcmp(found.engine, expected.engine, sizeof found.engine))
        refuse(path, std::string("is not of version ") + expected.engine + " of the engine");
    if (std::memcmp(found.instruction_set, expected.instruction_set, sizeof found.instruction_set))
        refuse(path, std::string("is not for instruction set ") + expected.instruction_set);
    if (found.config != expected.config) refuse(path, "is of another config");
    if (std::memcmp(found.weights, expected.weights, sizeof found.weights))
        refuse(path, "is of other weights");
}

}  // namespace

Store::Store(const std::string& path, const Identity& identity) : mapped_(true), path_(path) {
    const Header expected = header_of(identity);
    chunks_.push_back(system::Pages::of_file(path));
    const char* data = chunks_[0].data();
    const size_t size = chunks_[0].bytes();
    if (size < PAGE || size > MOST_BYTES) tfn::refuse(path, "is no file of packed weights");
    used_ = PAGE;
    Header found;
    std::memcpy(&found, data, sizeof found);
    check(found, expected, path);
    if (found.bytes != size - PAGE || found.bytes % LINE)
        tfn::refuse(path, "has " + std::to_string(size - PAGE) + " bytes of weights; expected " +
                              std::to_string(found.bytes));
    Sum sum;
    sum.add(data + PAGE, size - PAGE);
    if (sum.value() != found.sum) tfn::refuse(path, "is damaged");
}

void* Store::take_bytes(size_t bytes) {
    bytes = round_up(bytes, LINE) + LINE;  // kernels may read a vector more
    if (chunks_.empty() || bytes > chunks_.back().bytes() - used_) {
        if (mapped_) refuse("is too short");
        chunks_.push_back(system::Pages::of_memory(std::max(bytes, LEAST_CHUNK)));
        used_ = 0;
    }
    char* data = chunks_.back().data() + used_;
    used_ += bytes;
    parts_.push_back({data, bytes});
    return data;
}

void Store::refuse(const std::string& why) const { tfn::refuse(path_, why); }

void Store::finish() const {
    if (mapped_ && used_ != chunks_[0].bytes()) refuse("is too long");
}

void Store::save(const std::string& path, const Identity& identity) const {
    Header header = header_of(identity);
    Sum sum;
    for (const system::Bytes& part : parts_) {
        sum.add(part.data, part.size);
        header.bytes += part.size;
    }
    header.sum = sum.value();
    char page[PAGE] = {};
    std::memcpy(page, &header, sizeof header);
    std::vector<system::Bytes> all = {{page, PAGE}};
    all.insert(all.end(), parts_.begin(), parts_.end());
    // In a container every process may have the number of one that was killed: the time is another.
    static std::atomic<unsigned> files{0};
    const auto time = std::chrono::system_clock::now().time_since_epoch().count();
    const std::string temporary = path + "." + std::to_string(system::process()) + "." +
                                  std::to_string(time) + "." + std::to_string(files.fetch_add(1)) +
                                  ".tmp";
    system::write(temporary, path, all);
}

}  // namespace tfn
