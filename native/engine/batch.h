// Decoder rows, each with a source and a position of its own, that enter, step, move and leave.
#pragma once
#include <vector>

#include "cache.h"
#include "model.h"

namespace tfn {

// What a step has to give.
struct Wanted {
    float* logits = nullptr;  // (rows, T, V), or (rows, T, count) of `columns`
    const int32_t* columns = nullptr;
    int count = 0;
    int32_t* best = nullptr;     // (rows,): of the last token of each row
    float* attention = nullptr;  // (rows, L, H, T, source_width), zeroed by the caller
    int source_width = 0;
    float* last_attention = nullptr;  // (tokens, H, source_width) of the last layer, zeroed; alone
    Ranked ranked = {};               // of the last token of each row, if its count is not 0
    Barred barred = {};               // of `best`

    // The same of the rows from `row` on; a row has so many logits and values of attention.
    Wanted from(int row, size_t logits_of_row, size_t attention_of_row) const {
        Wanted rest = *this;
        if (logits) rest.logits += row * logits_of_row;
        if (best) rest.best += row;
        rest.barred = barred.from(row);
        if (attention) rest.attention += row * attention_of_row;
        if (last_attention) rest.last_attention += row * attention_of_row;
        if (ranked.count) {
            rest.ranked.values += (size_t)row * ranked.count;
            rest.ranked.ids += (size_t)row * ranked.count;
            rest.ranked.log_sums += row;
        }
        return rest;
    }
};

struct Rows {  // [first, last)
    int first, last;
    int count() const { return last - first; }
};

// The next tokens of rows, row after row: `each` of every row, or `counts` of them.
struct Tokens {
    const int32_t* ids;
    int each;
    const int32_t* counts = nullptr;
    int of(int row) const { return counts ? counts[row] : each; }
};

// What reading given tokens finds for each of them: of a token that may follow it, `targets`, the
// log-probability, and how far its logit is below the greatest; the token of that; and the mean
// over heads of the last layer's attention (tokens, source_width), or null.
struct Reading {
    const int32_t* targets;
    double* log_probs;
    float* gaps;
    int32_t* best;
    float* states;
    float* attention;
    int source_width;
};

// Means over the heads of `count` tokens, (tokens, H, width) to (tokens, width).
void mean_of_heads(const float* weights, int count, int heads, int width, float* means);

class Batch {
public:
    explicit Batch(std::shared_ptr<Model> model, Role role = Role::steps);

    int rows() const { return (int)rows_.size(); }
    int position(int row) const { return rows_[row].cache.length(); }
    int longest_source() const;
    // Encodes sources and puts them behind the other rows.
    void enter(Workspace& w, const Sources& sources);
    // Gives each row its next T tokens, (rows, T).
    void step(Workspace& w, const int32_t* tokens, int each, const Wanted& wanted);
    // Gives each row its next tokens, `counts` of them, row after row.
    void read(Workspace& w, const int32_t* tokens, const int32_t* counts, const Reading& reading);
    // Keeps these rows, in this order; a row may be repeated or dropped.
    void select(const int32_t* rows, int count);
    // Copies of rows, which have their first positions alone; a row may be repeated.
    Batch branch(const int32_t* rows, const int32_t* lengths, int count) const;
    // Rows without a source, each of which `put` then makes a copy of another batch's.
    void make_places(int count) { rows_.resize(count); }
    void put(int place, const Batch& other, int row) { rows_[place] = other.rows_[row]; }

    Model& model() { return *model_; }
    const Model& model() const { return *model_; }

private:
    struct Row {
        Encoded source;
        Cache cache;
        // Of layer 0. Rows of the same source share them.
        std::shared_ptr<const std::vector<const float*>> source_positions;
    };
    struct Step;  // where the tokens of a step stand

    void check(const Tokens& tokens) const;
    // Runs f, which makes rows longer; if it fails they are as they were.
    template <class F>
    void or_shorten(F&& f);
    void advance(Workspace& w, const Tokens& tokens, const Wanted& wanted);
    void advance(Workspace& w, Rows rows, const Tokens& tokens, const Wanted& wanted) const;
    size_t attention_size(int each, const Wanted& wanted) const;  // of a row
    Step prepare(Rows rows, const Tokens& tokens, const Wanted& wanted) const;
    void self_attention(Workspace& w, const Step& step, const DecoderLayer& layer, int i) const;
    void cross_attention(Workspace& w, const Step& step, const DecoderLayer& layer, int i) const;
    void finish(Workspace& w, int rows, int each, const Wanted& wanted) const;
    void compare(Workspace& w, int count, const Reading& reading) const;

    std::shared_ptr<Model> model_;
    Role role_;
    size_t position_size() const;  // of a layer: its keys and values
    Positions positions_;
    std::vector<Row> rows_;
};

}  // namespace tfn
