// Rules of a beam search: how candidates rank, what is banned, and when a sentence is done.
#pragma once
#include <cstdint>
#include <vector>

namespace tfn {

struct Ids {
    const int32_t* ids = nullptr;
    int count = 0;

    const int32_t* begin() const { return ids; }
    const int32_t* end() const { return ids + count; }
    Ids from(int first) const { return {ids + first, count - first}; }
    bool holds(int32_t id) const {
        for (int32_t each : *this)
            if (each == id) return true;
        return false;
    }
};

// What a sentence with `enough` hypotheses is done by: by them, or once the worst of its `enough`
// best is at least what the best followed one is worth at its present length, at the next or at the
// greatest.
enum class Stop { early, present, next, longest };

struct BeamRules {
    int beams, enough, most;     // hypotheses that are followed, and that suffice; tokens of a row
    Stop stop;
    double length_penalty;
    bool on_log_probs;           // what penalises and bans: log-probabilities, start token included
    bool renormalize;            // make log-probabilities again of what is left of them
    int start, first, last;      // tokens; the forced ones are -1 for none
    int min_length;
    int ngram, source_ngram;     // none of this size occurs twice, or is the source's; 0 for any
    float repetition_penalty;
    Ids ends, suppressed, suppressed_first;
    Ids sequences, lengths;      // never completed: one after another, and the length of each

    int candidates() const { return beams * (1 + ends.count); }  // that a step keeps
    // A score: the sum of log-probabilities over length ** length_penalty.
    double normalize(double sum, int length) const;
    // Changes the logits (V,) of a row. Does not throw.
    struct Row {
        Ids tokens;   // so far, the start token first
        Ids source;   // ids, read for n-grams of them alone
        float* room;  // for as many values as there are tokens
    };
    void apply(const Row& row, float* logits, int size) const;
    // The part that is the same in all rows with so many tokens, the start token not counted.
    void apply_everywhere(int made, float* logits, int size) const;
    // Whether the best logits of a row and the sum of all exponentials tell its best candidates: on
    // log-probabilities if rules lower some of them and change nothing else, otherwise if they ban the
    // same in all rows.
    bool need_few_logits(int made) const;

private:
    bool forces_last(int made) const { return last >= 0 && made == most - 1; }
    void penalize(const Ids& seen, float* room, float* logits) const;
    void ban_sequences(const Ids& made, float* logits) const;
};

// The sum of values as if no step of it were rounded (Shewchuk 1997), as Python's math.fsum.
double exact_sum(const std::vector<double>& values);

}  // namespace tfn
