#include "batch.h"

#include <algorithm>

namespace tfn {

Batch::Batch(std::shared_ptr<Model> model, Role role)
    : model_(std::move(model)), role_(role),
      positions_(model_->config.num_decoder_layers * position_size()) {}

size_t Batch::position_size() const { return 2 * (size_t)model_->decoder_heads.width(); }

int Batch::longest_source() const {
    int longest = 0;
    for (const Row& row : rows_) longest = std::max(longest, row.source.length);
    return longest;
}

void Batch::enter(Workspace& w, const Sources& sources) {
    model_->check(sources);
    std::vector<Row> entered;
    for (Encoded& source : model_->encode(w, sources)) {
        std::vector<const float*> positions;
        for (int i = 0; i < source.length; i++)
            positions.push_back(source.block(i / BLOCK) +
                                (size_t)(i % BLOCK) * model_->decoder_heads.padded);
        entered.push_back(
            {std::move(source),
             {},
             std::make_shared<const std::vector<const float*>>(std::move(positions))});
    }
    rows_.reserve(rows_.size() + entered.size());  // from here on nothing fails
    for (Row& row : entered) rows_.push_back(std::move(row));
}

void Batch::select(const int32_t* rows, int count) {
    for (int i = 0; i < count; i++)
        if (rows[i] < 0 || rows[i] >= this->rows())
            throw Error("row " + std::to_string(rows[i]) + " of " + std::to_string(this->rows()));
    // Copies first, which may need more memory than there is; then the last use of each is moved.
    std::vector<int> last(rows_.size(), -1);
    for (int i = 0; i < count; i++) last[rows[i]] = i;
    std::vector<Row> kept(count);
    for (int i = 0; i < count; i++)
        if (last[rows[i]] != i) kept[i] = rows_[rows[i]];
    for (int i = 0; i < count; i++)
        if (last[rows[i]] == i) kept[i] = std::move(rows_[rows[i]]);
    rows_ = std::move(kept);
    if (rows_.empty()) positions_.release();
}

Batch Batch::branch(const int32_t* rows, const int32_t* lengths, int count) const {
    Batch made(model_, role_);
    made.rows_.reserve(count);
    for (int i = 0; i < count; i++) {
        if (rows[i] < 0 || rows[i] >= this->rows())
            throw Error("row " + std::to_string(rows[i]) + " of " + std::to_string(this->rows()));
        if (lengths[i] < 0 || lengths[i] > position(rows[i]))
            throw Error("row " + std::to_string(rows[i]) + " has " +
                        std::to_string(position(rows[i])) + " positions, not " +
                        std::to_string(lengths[i]));
        made.rows_.push_back(rows_[rows[i]]);
        made.rows_.back().cache.shorten(lengths[i]);
    }
    return made;
}

void Batch::check(const Tokens& tokens) const {
    Problems problems;
    const Config& config = model_->config;
    const int32_t* ids = tokens.ids;
    for (int row = 0; row < rows(); row++) {
        const int each = tokens.of(row), end = rows_[row].cache.length() + each;
        if (each < 1) problems.add("a step of no tokens");
        if (config.max_positions && end > config.max_positions)
            problems.add("row " + std::to_string(row) + " would have " + std::to_string(end) +
                         " tokens; the model has positions for " +
                         std::to_string(config.max_positions));
        for (int i = 0; i < each; i++) {
            const int id = *ids++;
            if (id < 0 || id >= config.target_vocab_size)
                problems.add("row " + std::to_string(row) + " has id " + std::to_string(id) +
                             "; the vocabulary has " + std::to_string(config.target_vocab_size));
        }
    }
    problems.raise();
}

}  // namespace tfn
