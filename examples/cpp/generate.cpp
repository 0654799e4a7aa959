// Decode lines of token ids with a TorchScript file: LibTorch alone.
//
//   cmake -S examples/cpp -B build/cpp -D CMAKE_BUILD_TYPE=Release \
//     -D CMAKE_PREFIX_PATH="$(python -c 'import torch; print(torch.utils.cmake_prefix_path)')"
//   cmake --build build/cpp
//   build/cpp/generate model.ts < ids.txt
//
// Ids go in as the encoder sees them, and come out without start and end token. For text, put the
// model's own tokenizer in front, e.g. SentencePiece's C++ library.

#include <torch/script.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kBatchSize = 32;
constexpr std::int64_t kMaxLength = 256;

using Row = std::vector<std::int64_t>;

Row parse(const std::string& line) {
    std::istringstream words(line);
    Row row;
    for (std::int64_t id; words >> id;) row.push_back(id);
    if (!words.eof()) throw std::invalid_argument("not a line of token ids: " + line);
    return row;
}

// Rows of source ids to rows of target ids, in one call.
std::vector<Row> generate(torch::jit::Module& model, const std::vector<Row>& rows) {
    const auto eos = model.attr("eos_id").toInt();
    const auto pad = model.attr("pad_id").toInt();
    std::size_t longest = 0;
    for (const auto& row : rows) longest = std::max(longest, row.size());

    const auto batch = static_cast<std::int64_t>(rows.size());
    const auto length = static_cast<std::int64_t>(longest);
    auto ids = torch::full({batch, length}, pad, torch::kInt64);
    auto mask = torch::zeros({batch, length}, torch::kInt64);  // 1 = keep, from the lengths
    for (std::int64_t i = 0; i < batch; ++i) {
        const auto& row = rows[i];
        for (std::size_t j = 0; j < row.size(); ++j) {
            ids[i][static_cast<std::int64_t>(j)] = row[j];
            mask[i][static_cast<std::int64_t>(j)] = 1;
        }
    }

    const auto sequences =
        model.get_method("generate")({ids, mask, kMaxLength}).toTensor().contiguous();
    std::vector<Row> found;
    for (std::int64_t i = 0; i < batch; ++i) {
        Row tokens;
        for (std::int64_t t = 0; t < sequences.size(1) && !rows[i].empty(); ++t) {
            const auto token = sequences[i][t].item<std::int64_t>();
            if (token == eos) break;
            tokens.push_back(token);
        }
        found.push_back(std::move(tokens));
    }
    return found;
}

void print(const Row& tokens) {
    const char* space = "";
    for (const auto token : tokens) {
        std::cout << space << token;
        space = " ";
    }
    std::cout << '\n';
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::cerr << "usage: generate MODEL.ts < ids.txt\n";
        return 2;
    }
    try {
        torch::InferenceMode guard;
        auto model = torch::jit::load(argv[1]);
        std::vector<Row> rows;
        const auto flush = [&] {
            for (const auto& tokens : generate(model, rows)) print(tokens);
            rows.clear();
        };
        for (std::string line; std::getline(std::cin, line);) {
            rows.push_back(parse(line));
            if (rows.size() == kBatchSize) flush();
        }
        if (!rows.empty()) flush();
    } catch (const std::exception& error) {
        std::cerr << "generate: " << error.what() << '\n';
        return 1;
    }
}
