#include <algorithm>
#include <cmath>

#include "search.h"

namespace tfn {
namespace {

struct Candidate {
    int32_t token;
    int parent;
    double score, total;  // log-probability of the token alone, and of all

    // On a tie the better hypothesis is first, then the lower id.
    bool operator<(const Candidate& other) const {
        if (total != other.total) return total > other.total;
        return parent != other.parent ? parent < other.parent : token < other.token;
    }
};

struct Hypothesis {
    double sum = 0;
    std::vector<int32_t> tokens;  // the start token first
    std::vector<double> scores;   // of those behind it

    Hypothesis with(const Candidate& next) const {
        Hypothesis longer = *this;
        longer.sum = next.total;
        longer.tokens.push_back(next.token);
        longer.scores.push_back(next.score);
        return longer;
    }
};

constexpr int SPARE = 8;  // candidates of a row for those that rules ban
constexpr int MANY = 5;   // hypotheses of a row, from which tiles of floats gain on the whole

// Best tokens of a row that are ranked where few logits are needed.
int ranked_count(const BeamRules& rules, int size) {
    return std::min(size, rules.candidates() + (rules.on_log_probs ? SPARE : 0));
}

// The search alone decides, and never how many rows there are.
Role role_of(const Vocabulary& vocabulary, const BeamRules& rules) {
    const bool ranks = rules.need_few_logits(0) &&
                       vocabulary.ranks_by_integers(ranked_count(rules, vocabulary.size()));
    return rules.beams >= MANY && ranks ? Role::beams : Role::steps;
}

// A sentence that is still searched.
struct Sentence {
    int number = 0;
    Ids source;
    std::vector<Hypothesis> followed;
    std::vector<double> found;  // scores of those that ended
};

class Search {
public:
    Search(Batch& batch, const Sources& sources, const BeamRules& rules, const BeamRecord& record)
        : batch_(batch), size_(batch.model().config.target_vocab_size), count_(sources.count),
          rules_(rules), record_(record), running_(count_), tokens_(count_, rules.start) {
        Hypothesis first;
        first.tokens.push_back(rules.start);
        if (rules.first >= 0) {  // forced, and so certain
            first.tokens.push_back(rules.first);
            first.scores.push_back(0);
        }
        const int32_t* ids = sources.ids;
        for (int i = 0; i < count_; i++) {
            running_[i] = {i, {ids, ids ? sources.lengths[i] : 0}, {first}, {}};
            if (ids) ids += sources.lengths[i];
        }
    }

    bool active() const { return !running_.empty(); }

    void enter_first(Workspace& w) {
        batch_.step(w, tokens_.data(), 1, {});
        tokens_.assign(count_, rules_.first);
    }

    void step(Workspace& w, int number) {
        const int rows = batch_.rows(), each = std::min(size_, rules_.candidates());
        Team::Span span(w.team, Phase::decoder, rows, rows);
        std::vector<Candidate> found((size_t)rows * each);
        if (rules_.need_few_logits(length() - 1)) {
            rank_few(w, each, found.data());
        } else {
            Wanted wanted;
            wanted.logits = w.logits.reserve((size_t)rows * size_);
            batch_.step(w, tokens_.data(), 1, wanted);
            rank_all(w, wanted.logits, each, found.data());
        }
        std::vector<Sentence> before = std::move(running_);
        running_.clear();
        rows_.clear();
        tokens_.clear();
        int first_row = 0;
        for (Sentence& sentence : before) {
            const int held = (int)sentence.followed.size();
            Candidate* own = found.data() + (size_t)first_row * each;
            check_allowed(sentence, own, each);
            const int kept = std::min(rules_.candidates(), held * each);
            std::partial_sort(own, own + kept, own + (size_t)held * each);
            write(sentence.number, number, own, kept);
            follow(sentence, own, kept, first_row);
            first_row += held;
        }
        batch_.select(rows_.data(), (int)rows_.size());
    }

private:
    struct Place {  // of a row
        const Sentence* sentence;
        int parent;
        const Hypothesis& hypothesis() const { return sentence->followed[parent]; }
        BeamRules::Row row(float* room) const {
            const auto& tokens = hypothesis().tokens;
            return {{tokens.data(), (int)tokens.size()}, sentence->source, room};
        }
    };

    size_t length() const { return running_[0].followed[0].tokens.size(); }
    std::vector<Place> places() const {
        std::vector<Place> found;
        for (const Sentence& sentence : running_)
            for (size_t i = 0; i < sentence.followed.size(); i++)
                found.push_back({&sentence, (int)i});
        return found;
    }

    // The best `each` tokens of every row, from all logits.
    void rank_all(Workspace& w, float* logits, int each, Candidate* found) const {
        const std::vector<Place> rows = places();
        std::vector<float> room(rows.size() * length());
        float* values = w.bounds.reserve(rows.size() * each);
        int32_t* ids = w.candidates.reserve(rows.size() * each);
        w.team.run((int)rows.size(), 8.0 * rows.size() * size_, [&](int row, int) {
            rank_row(w.kernels, rows[row], room.data() + row * length(),
                     logits + (size_t)row * size_, each, values + (size_t)row * each,
                     ids + (size_t)row * each, found + (size_t)row * each);
        });
    }

    void rank_row(const Kernels& kernels, const Place& place, float* room, float* logits, int each,
                  float* values, int32_t* ids, Candidate* found) const {
        if (rules_.on_log_probs) {
            const float all = (float)kernels.log_sum_exp(logits, size_);
            for (int i = 0; i < size_; i++) logits[i] -= all;
        }
        rules_.apply(place.row(room), logits, size_);
        kernels.top(logits, size_, each, values, ids);
        double all = 0;
        if (!rules_.on_log_probs || rules_.renormalize) all = kernels.log_sum_exp(logits, size_);
        for (int i = 0; i < each; i++) found[i] = candidate(place, ids[i], values[i], all);
    }

    static Candidate candidate(const Place& place, int32_t token, float value, double all) {
        // Not a number is in no order.
        const bool allowed = std::isfinite(value) && std::isfinite(all);
        const double score = allowed ? value - all : -INFINITY;
        return {token, place.parent, score, place.hypothesis().sum + score};
    }

    // The same from the best logits of every row, and the sums of all: takes the step.
    void rank_few(Workspace& w, int each, Candidate* found) {
        const std::vector<Place> rows = places();
        const int count = (int)rows.size();
        const int some = ranked_count(rules_, size_);
        std::vector<float> values((size_t)count * some), room(count * length());
        std::vector<int32_t> ids(values.size());
        std::vector<double> log_sums(count);
        Wanted wanted;
        wanted.ranked = {some, nullptr, values.data(), ids.data(), log_sums.data()};
        if (!rules_.on_log_probs) wanted.ranked.bias = banned();
        batch_.step(w, tokens_.data(), 1, wanted);
        if (!rules_.on_log_probs) {
            for (int i = 0; i < count * each; i++)
                found[i] = candidate(rows[i / each], ids[i], values[i], log_sums[i / each]);
            return;
        }
        float* sparse = w.logits.reserve((size_t)w.team.threads() * size_);
        std::vector<char> enough(count);
        w.team.run(count, 1e3 * count * some, [&](int row, int thread) {
            const size_t at = (size_t)row * some;
            enough[row] = rank_sparse(rows[row], room.data() + row * length(),
                                      {some, nullptr, values.data() + at, ids.data() + at, nullptr},
                                      (float)log_sums[row], sparse + (size_t)thread * size_, each,
                                      found + (size_t)row * each);
        });
        for (int row = 0; row < count; row++) {
            if (enough[row]) continue;
            const float* state = w.x.data() + row * width(batch_.model().config.d_model);
            batch_.model().vocabulary.logits(w, state, 1, sparse, size_);
            rank_row(w.kernels, rows[row], room.data() + row * length(), sparse, each,
                     values.data(), ids.data(), found + (size_t)row * each);
        }
    }

    // From the best logits of a row, which are all that is set of `sparse`: rules write elsewhere
    // too, and what they read there changes nothing. Whether the best `each` are known: rules lower
    // log-probabilities, so that they are if they are above all of which the logit is not given.
    bool rank_sparse(const Place& place, float* room, const Ranked& best, float all, float* sparse,
                     int each, Candidate* found) const {
        int count = 0;
        for (; count < best.count && best.values[count] > -INFINITY; count++)
            sparse[best.ids[count]] = best.values[count] - all;
        const float others =
            count == size_ || count < best.count ? -INFINITY : sparse[best.ids[count - 1]];
        rules_.apply(place.row(room), sparse, size_);
        std::vector<int32_t> ids(best.ids, best.ids + count);
        std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
            return sparse[a] != sparse[b] ? sparse[a] > sparse[b] : a < b;
        });
        for (int i = 0; i < each; i++)
            found[i] = i < count ? candidate(place, ids[i], sparse[ids[i]], 0)
                                 : candidate(place, 0, -INFINITY, 0);
        return count < best.count || count == size_ || sparse[ids[each - 1]] > others;
    }

    // The model's bias, and what rules ban in all rows of this step.
    const float* banned() {
        bias_.resize(size_ + MOST_PANEL);
        std::copy_n(batch_.model().vocabulary.bias(), size_, bias_.data());
        rules_.apply_everywhere((int)length() - 1, bias_.data(), size_);
        return bias_.data();
    }

    // By these rules a hypothesis that has no allowed token would end as it is.
    void check_allowed(const Sentence& sentence, const Candidate* found, int each) const {
        const int held = (int)sentence.followed.size();
        int stuck = 0;
        for (int i = 0; i < held; i++) stuck += !std::isfinite(found[(size_t)i * each].total);
        // By transformers' rules only if there is no other.
        if (rules_.on_log_probs ? stuck == held && sentence.found.empty() : stuck > 0)
            throw WithoutToken();
    }

    void write(int sentence, int number, const Candidate* ranked, int kept) const {
        const size_t at = ((size_t)number * count_ + sentence) * rules_.candidates();
        for (int rank = 0; rank < kept; rank++) {
            record_.tokens[at + rank] = ranked[rank].token;
            record_.parents[at + rank] = ranked[rank].parent;
            record_.log_probs[at + rank] = ranked[rank].score;
        }
        record_.steps[sentence] = number + 1;
    }

    // Count what ends among the best candidates, and go on with what does not.
    void follow(Sentence& sentence, const Candidate* ranked, int kept, int first_row) {
        const int length = (int)sentence.followed[0].tokens.size();
        std::vector<Hypothesis> next;
        std::vector<int32_t> rows;
        for (int rank = 0; rank < kept && ranked[rank].total > -INFINITY; rank++) {
            const Candidate& c = ranked[rank];
            const bool ends = rules_.ends.holds(c.token);
            if (ends && rank < rules_.beams) {
                std::vector<double> scores = sentence.followed[c.parent].scores;
                scores.push_back(c.score);
                sentence.found.push_back(rules_.normalize(exact_sum(scores), length));
            }
            if (ends || (int)next.size() == rules_.beams) continue;
            next.push_back(sentence.followed[c.parent].with(c));
            rows.push_back(first_row + c.parent);
        }
        if (next.empty() || length >= rules_.most || done(sentence.found, next[0].sum, length))
            return;
        for (const Hypothesis& each : next) tokens_.push_back(each.tokens.back());
        rows_.insert(rows_.end(), rows.begin(), rows.end());
        sentence.followed = std::move(next);
        running_.push_back(std::move(sentence));
    }

    // Whether no further step is needed after one with hypotheses of `length` tokens.
    bool done(std::vector<double>& found, double highest, int length) const {
        const size_t enough = rules_.enough;
        if (found.size() < enough) return false;
        if (rules_.stop == Stop::early) return true;
        std::sort(found.begin(), found.end(), std::greater<double>());
        const int at = rules_.stop == Stop::present ? length
                       : rules_.stop == Stop::next  ? length + 1
                                                    : rules_.most;
        return found[enough - 1] >= rules_.normalize(highest, at);
    }

    Batch& batch_;
    const int size_, count_;
    const BeamRules& rules_;
    const BeamRecord record_;
    std::vector<Sentence> running_;
    std::vector<int32_t> rows_, tokens_;  // that the next step goes on with
    std::vector<float> bias_;
};

}  // namespace

int beam(Workspace& w, std::shared_ptr<Model> model, const Sources& sources, const BeamRules& rules,
         const BeamRecord& record) {
    Batch batch(model, role_of(model->vocabulary, rules));
    batch.enter(w, sources);
    const int forced = rules.first >= 0, steps = std::min(record.room, rules.most - forced);
    const size_t of_step = (size_t)sources.count * rules.candidates();
    Search search(batch, sources, rules, record);
    if (forced) search.enter_first(w);
    int step = 0;
    for (; step < steps && search.active(); step++) {
        w.check_cancelled();
        std::fill_n(record.tokens + step * of_step, of_step, 0);
        std::fill_n(record.parents + step * of_step, of_step, 0);
        std::fill_n(record.log_probs + step * of_step, of_step, -INFINITY);
        search.step(w, step);
    }
    return step;
}

}  // namespace tfn
