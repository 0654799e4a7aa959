// fuzz FIRST CASES FOLDER: drawn calls of the C interface, most of them with something wrong.
//
// A call either does what it says or gives an error with a text. What it may never do, faults and
// races, the sanitizers see: every array has exactly the size that it needs.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "drawn.h"

using namespace driver;

namespace {

constexpr size_t HEADER = 4096;  // of a file of packed weights
uint64_t current = 0;
std::atomic<long> done{0}, refused{0};

[[noreturn]] void die(const char* why) {
    std::fprintf(stderr, "case %llu: %s\n", (unsigned long long)current, why);
    std::_Exit(1);
}

// The result of a call, which has a text if it failed.
class Outcome {
public:
    operator tfn_error() { return {text_, sizeof text_}; }
    bool take(int code) {
        if (code != TFN_OK && !text_[0]) die("an error without a text");
        (code == TFN_OK ? done : refused)++;
        return code == TFN_OK;
    }

private:
    char text_[200] = {};
};

// `Sum` of engine/store.cpp, over what follows the header of a file of packed weights.
uint64_t sum_of(const std::string& bytes) {
    constexpr uint64_t ODD = 0x9e3779b97f4a7c15;
    uint64_t lanes[8] = {1, 2, 3, 4, 5, 6, 7, 8}, all = 0;
    for (size_t i = HEADER; i + 64 <= bytes.size(); i += 64)
        for (size_t lane = 0; lane < 8; lane++) {
            uint64_t word;
            std::memcpy(&word, bytes.data() + i + lane * 8, 8);
            lanes[lane] = (lanes[lane] ^ word) * ODD + (word >> 29);
        }
    for (uint64_t lane : lanes) all = (all ^ lane ^ (lane >> 31)) * ODD + 1;
    return all ^ (all >> 32);
}

// Sources, ids or states, sometimes with ids or lengths that no vocabulary has.
struct Sources {
    std::vector<int32_t> ids, lengths;
    std::vector<float> states;
    tfn_sources c;

    Sources(Draw& draw, const Config& config, int most) {
        const int vocabulary = config.whole("source_vocab_size");
        const bool hostile = draw.chance(15), encodes = !config.whole("memory_width");
        const bool given = draw.chance(encodes ? 25 : 95);  // a model without encoder has no ids
        for (int i = draw.between(1, 6); i; i--) {
            const int length = draw.between(1, most);
            for (int j = 0; j < length; j++) ids.push_back(draw.below(vocabulary));
            lengths.push_back(length);
        }
        for (size_t i = ids.size() * (size_t)config.state_size(); given && i; i--)
            states.push_back(draw.real());
        c = {given ? nullptr : ids.data(), given ? states.data() : nullptr, lengths.data(),
             (int32_t)lengths.size()};
        if (!hostile) return;
        if (given)
            states[(size_t)draw.below((int)states.size())] =
                draw.any<float>({NAN, INFINITY, -INFINITY, 3e38f, 1e-45f});
        int32_t& id = ids[(size_t)draw.below((int)ids.size())];
        switch (draw.below(6)) {
            case 0: id = draw.any<int32_t>({-1, vocabulary, INT32_MAX, INT32_MIN}); break;
            case 1: lengths.back() = draw.any<int32_t>({0, -1, INT32_MIN}); break;
            case 2: c.count = draw.any<int32_t>({0, -1, INT32_MIN}); break;
            case 3: c.ids = c.ids ? nullptr : ids.data(); break;  // none, or both
            case 4: c.lengths = nullptr; break;
            case 5: lengths[0] = 0; break;
        }
    }
};

class Case {
public:
    Case(uint64_t seed, const std::string& folder)
        : draw_(seed), config_(draw_), weights_(draw_, config_), path_(folder + "/packed"),
          other_(folder + "/spoilt") {}

    void run() {
        std::string text = config_.text();
        if (draw_.chance(20)) spoil_config(text);
        if (draw_.chance(20)) weights_.spoil(draw_);
        const auto table = weights_.table();
        const int32_t threads =
            draw_.chance(5) ? draw_.any<int32_t>({0, -1, 4000}) : draw_.between(1, 3);
        const char* name = instruction_set();
        tfn_model* model = nullptr;
        Outcome made;
        if (!made.take(tfn_model_new(draw_.chance(2) ? nullptr : text.c_str(),
                                     draw_.chance(2) ? nullptr : table.data(),
                                     draw_.chance(2) ? 0 : (int32_t)table.size(), threads, name,
                                     draw_.chance(2) ? nullptr : &model, made)))
            return;
        calls(model, draw_);
        if (draw_.chance(30)) at_once(model);
        if (draw_.chance(40)) packed(model, text, table, name);
        tfn_model_free(model);
    }

private:
    const char* instruction_set() {
        static const std::vector<std::string> names = [] {
            std::vector<std::string> all;
            std::string text = tfn_instruction_sets(), name;
            for (char c : text + ",") {
                if (c != ',') name += c;
                else all.push_back(name), name.clear();
            }
            return all;
        }();
        if (draw_.chance(3)) return "unheard of";
        return draw_.chance(30) ? nullptr : names[(size_t)draw_.below((int)names.size())].c_str();
    }

    void spoil_config(std::string& text) {
        const int at = draw_.below((int)text.size());
        switch (draw_.below(5)) {
            case 0: text[at] = (char)draw_.between(1, 255); break;
            case 1: text.erase(at); break;
            case 2:
                text.insert(at, draw_.any<std::string>({"\n", "=", "99999999999", "-", "x=1\n"}));
                break;
            case 3: text += text; break;
            case 4: {
                auto each = config_.values.begin();
                std::advance(each, draw_.below((int)config_.values.size()));
                text +=
                    each->first + "=" +
                    draw_.any<std::string>({"", "0", "-1", "16777216", "65536", "nan", "1e99"}) +
                    "\n";
                const size_t first = text.find("\n" + each->first + "=");
                if (first + 1 < text.size())
                    text.erase(first + 1, text.find('\n', first + 1) - first);
                break;
            }
        }
    }

    void calls(tfn_model* model, Draw& draw) {
        const Sources given(draw, config_, draw.chance(10) ? 40 : 9);
        const int64_t count = (int64_t)given.lengths.size();
        const int32_t most = draw.between(1, 9), beams = draw.between(1, 3);
        std::vector<float> states(given.ids.size() * (size_t)config_.state_size());
        Outcome encoded, found;
        encoded.take(tfn_encode(draw.chance(2) ? nullptr : model, given.c,
                                draw.chance(2) ? nullptr : states.data(), encoded));
        std::vector<int32_t> sequences((size_t)(count * most)), counts((size_t)count);
        std::vector<float> scores((size_t)count);
        int32_t steps = 0;
        std::atomic<int32_t> flag{draw.chance(5)};
        const int32_t* cancelled = draw.chance(50) ? nullptr : (const int32_t*)&flag;
        found.take(tfn_generate(model, given.c, draw.chance(3) ? draw.any<int32_t>({0, -1}) : most,
                                draw.chance(50) ? 0 : draw.any<int32_t>({1, 3, INT32_MAX, -1}),
                                draw.chance(2) ? nullptr : sequences.data(), counts.data(),
                                draw.chance(50) ? nullptr : scores.data(), &steps, nullptr,
                                cancelled, found));
        trace(model, draw, given, most, cancelled);
        beam(model, draw, given.c, count, beams, most, cancelled);
        batch(model, draw);
    }

    void trace(tfn_model* model, Draw& draw, const Sources& given, int32_t most,
               const int32_t* cancelled) {
        const size_t count = given.lengths.size(), all = count * (size_t)most;
        const int32_t width = *std::max_element(given.lengths.begin(), given.lengths.end());
        const int32_t wide = std::min(64, std::max(1, width)) + draw.below(3);
        std::vector<int32_t> sequences(all), counts(count);
        const size_t width_of_state = config_.whole("d_model");
        std::vector<float> scores(count), attention(all * (size_t)wide),
            states(all * width_of_state);
        tfn_batch* batch = nullptr;
        tfn_trace left{draw.chance(3) ? nullptr : states.data(), attention.data(),
                       draw.chance(3) ? draw.any<int32_t>({-1, 0, INT32_MIN}) : wide,
                       draw.chance(3) ? nullptr : &batch};
        int32_t steps = 0;
        Outcome found;
        if (!found.take(tfn_generate(model, given.c, most, 0, sequences.data(), counts.data(),
                                     draw.chance(50) ? nullptr : scores.data(), &steps, &left,
                                     cancelled, found)))
            return;
        std::vector<double> log_probs(counts[0]);
        if (draw.chance(5)) sequences[0] = draw.any<int32_t>({-1, INT32_MAX});
        Outcome scored;
        scored.take(tfn_log_probs(draw.chance(2) ? nullptr : model, states.data(),
                                  draw.chance(3) ? nullptr : sequences.data(),
                                  draw.chance(3) ? draw.any<int32_t>({-1, 0}) : counts[0],
                                  log_probs.data(), scored));
        for (int i = draw.below(3); i; i--) branch(batch, draw);
        tfn_batch_free(batch);
    }

    // Rows from positions that they have, mostly, which then read tokens of their own number.
    void branch(const tfn_batch* batch, Draw& draw) {
        const int size = config_.whole("target_vocab_size");
        std::vector<int32_t> rows, lengths, tokens, counts, targets, best;
        for (int i = draw.below(5); i; i--) {
            rows.push_back(draw.below(tfn_batch_rows(batch)));
            lengths.push_back(draw.below(draw.chance(80) ? 2 : 9));
        }
        if (!rows.empty() && draw.chance(5)) rows.back() = draw.any<int32_t>({-1, INT32_MIN});
        if (!rows.empty() && draw.chance(5)) lengths.back() = draw.any<int32_t>({-1, INT32_MAX});
        tfn_batch* made = nullptr;
        Outcome branched;
        if (!branched.take(tfn_batch_branch(draw.chance(2) ? nullptr : batch, rows.data(),
                                            lengths.data(),
                                            draw.chance(3) ? -1 : (int32_t)rows.size(),
                                            draw.chance(2) ? nullptr : &made, branched)))
            return;
        for (int row = tfn_batch_rows(made); row; row--) {
            counts.push_back(draw.between(1, 4));
            for (int i = counts.back(); i; i--) {
                tokens.push_back(draw.below(size));
                targets.push_back(draw.below(size));
            }
        }
        if (!tokens.empty() && draw.chance(5)) tokens.back() = draw.any<int32_t>({-1, size});
        if (!tokens.empty() && draw.chance(5)) targets.back() = draw.any<int32_t>({-1, size});
        if (!counts.empty() && draw.chance(5)) counts.back() = draw.any<int32_t>({0, INT32_MIN});
        const int32_t width = tfn_batch_longest_source(made) + draw.below(3);
        std::vector<float> gaps(tokens.size()), attention(tokens.size() * (size_t)width),
            states(tokens.size() * (size_t)config_.whole("d_model"));
        std::vector<double> log_probs(tokens.size());
        best.resize(tokens.size());
        const tfn_reading reading{draw.chance(50) ? targets.data() : nullptr,
                                  log_probs.data(),
                                  gaps.data(),
                                  best.data(),
                                  draw.chance(50) ? states.data() : nullptr,
                                  draw.chance(50) ? attention.data() : nullptr,
                                  draw.chance(3) ? -1 : width};
        Outcome read;
        read.take(tfn_batch_read(made, draw.chance(2) ? nullptr : tokens.data(), counts.data(),
                                 draw.chance(2) ? nullptr : &reading, read));
        tfn_batch_free(made);
    }

    // Sequences of ids, few of them or none.
    static std::vector<int32_t> some(Draw& draw, int size, int least) {
        std::vector<int32_t> ids;
        for (int i = draw.chance(60) ? least : draw.between(least, 4); i; i--)
            ids.push_back(draw.below(size));
        return ids;
    }

    void beam(tfn_model* model, Draw& draw, tfn_sources sources, int64_t count, int32_t beams,
              int32_t most, const int32_t* cancelled) {
        const int size = config_.whole("target_vocab_size");
        const std::vector<int32_t> ends = some(draw, size, 1), suppressed = some(draw, size, 0),
                                   first = some(draw, size, 0), sequences = some(draw, size, 0);
        std::vector<int32_t> lengths;
        for (int left = (int)sequences.size(); left; left -= lengths.back())
            lengths.push_back(draw.between(1, left));
        auto ids = [](const std::vector<int32_t>& all) {
            return tfn_ids{all.data(), (int32_t)all.size()};
        };
        const bool transformers = draw.chance(50);
        tfn_beam_rules rules{beams,
                             draw.between(1, 3),
                             most,
                             draw.below(4),
                             transformers,
                             transformers && draw.chance(30),
                             draw.below(size),
                             draw.chance(80) ? -1 : draw.below(size),
                             draw.chance(80) ? -1 : draw.below(size),
                             draw.below(4),
                             draw.below(4),
                             draw.chance(80) ? 0 : draw.below(4),
                             draw.real() * 3.0,
                             draw.chance(50) ? 1.0 : 1.5 + draw.real(),
                             ids(ends),
                             ids(suppressed),
                             ids(first),
                             ids(sequences),
                             ids(lengths)};
        const size_t many = (size_t)(count * most * beams) * (1 + ends.size());
        std::vector<int32_t> tokens(many), parents(many), of_sentence((size_t)count);
        std::vector<double> log_probs(many);
        tfn_beam_record record{most, tokens.data(), parents.data(), log_probs.data(),
                               of_sentence.data()};
        if (draw.chance(25)) spoil(draw, size, rules, record);
        int32_t steps = 0;
        Outcome searched;
        const bool given = !draw.chance(2);
        if (!searched.take(tfn_beam(model, sources, given ? &rules : nullptr, record,
                                    draw.chance(2) ? nullptr : &steps, cancelled, searched)))
            return;
        if (steps < 0 || steps > record.room) die("steps for which there is no room");
        for (int32_t each : of_sentence)
            if (each < 1 || each > steps) die("a sentence with other steps than were made");
    }

    // What makes the record larger than it says is not drawn: nothing can see that.
    static void spoil(Draw& draw, int size, tfn_beam_rules& rules, tfn_beam_record& record) {
        const int32_t wrong = draw.any<int32_t>({-1, -2, INT32_MIN});
        const int32_t no_id = draw.any<int32_t>({-2, size, INT32_MIN, INT32_MAX});
        static const int32_t outside[] = {-1, INT32_MAX};
        tfn_ids* lists[] = {&rules.suppressed, &rules.suppressed_first, &rules.sequences,
                            &rules.lengths};
        tfn_ids& list = *lists[draw.below(4)];
        switch (draw.below(18)) {
            case 0: rules.beams = draw.any<int32_t>({0, -1, INT32_MAX, INT32_MIN}); break;
            case 1: rules.enough = draw.any<int32_t>({0, -1, INT32_MAX}); break;
            case 2: rules.most = draw.any<int32_t>({0, -1, INT32_MAX}); break;
            case 3: rules.stop = draw.any<int32_t>({-1, 4, INT32_MAX}); break;
            case 4: rules.on_log_probs = draw.any<int32_t>({-1, 2}); break;
            case 5: rules.renormalize = draw.any<int32_t>({-1, 2}); break;
            case 6: rules.start = no_id; break;
            case 7: rules.first_token = no_id; break;
            case 8: rules.last_token = no_id; break;
            case 9: rules.min_length = draw.any<int32_t>({-1, INT32_MAX}); break;
            case 10: rules.ngram = rules.source_ngram = draw.any<int32_t>({-1, INT32_MAX}); break;
            case 11: rules.length_penalty = draw.any<double>({NAN, INFINITY, -1e308, 1e308}); break;
            case 12:
                rules.repetition_penalty = draw.any<double>({NAN, 0, -1, INFINITY, 1e-300});
                break;
            case 13: rules.ends.count = draw.any<int32_t>({0, wrong}); break;
            case 14: list = {outside, 2}; break;
            case 15: list = {nullptr, 1}; break;
            case 16: list.count = wrong; break;
            case 17: record.room = draw.any<int32_t>({0, wrong}); break;
        }
        if (draw.chance(10)) record.log_probs = nullptr;
    }

    void batch(tfn_model* model, Draw& draw) {
        tfn_batch* batch = nullptr;
        Outcome made;
        if (!made.take(tfn_batch_new(draw.chance(2) ? nullptr : model, &batch, made))) return;
        for (int i = draw.between(1, 8); i; i--) {
            const int act = draw.below(10);
            if (act < 3 || !tfn_batch_rows(batch)) {
                const Sources given(draw, config_, 12);
                Outcome entered;
                entered.take(tfn_batch_enter(batch, given.c, entered));
            } else if (act < 5) {
                std::vector<int32_t> kept;
                for (int left = draw.below(5); left; left--)
                    kept.push_back(draw.below(tfn_batch_rows(batch)));
                if (!kept.empty() && draw.chance(10))
                    kept.back() = draw.any<int32_t>({-1, tfn_batch_rows(batch), INT32_MIN});
                const int32_t count = draw.chance(3) ? -1 : (int32_t)kept.size();
                Outcome selected;
                selected.take(tfn_batch_select(batch, kept.data(), count, selected));
            } else if (draw.chance(30)) {
                run(batch, draw);
            } else {
                step(batch, draw);
            }
        }
        tfn_batch_free(batch);
    }

    void step(tfn_batch* batch, Draw& draw) {
        const int size = config_.whole("target_vocab_size"), each = draw.between(1, 4);
        const size_t rows = (size_t)tfn_batch_rows(batch);
        std::vector<int32_t> tokens, columns, best(rows);
        for (size_t i = 0; i < rows * (size_t)each; i++) tokens.push_back(draw.below(size));
        for (int i = draw.between(1, 4); i; i--) columns.push_back(draw.below(size));
        if (!tokens.empty() && draw.chance(5))
            tokens.back() = draw.any<int32_t>({-1, size, INT32_MIN, INT32_MAX});
        if (draw.chance(5)) columns.back() = draw.any<int32_t>({-1, size, INT32_MIN});
        const bool some = draw.chance(50);
        const int32_t width = tfn_batch_longest_source(batch) + draw.below(3);
        std::vector<float> logits(rows * (size_t)each * (some ? columns.size() : (size_t)size));
        std::vector<float> attention(rows * (size_t)each * (size_t)width *
                                     (size_t)config_.whole("num_decoder_layers") *
                                     (size_t)config_.whole("decoder_num_heads"));
        tfn_wanted wanted{
            draw.chance(80) ? logits.data() : nullptr,    some ? columns.data() : nullptr,
            some ? (int32_t)columns.size() : 0,           draw.chance(50) ? best.data() : nullptr,
            draw.chance(30) ? attention.data() : nullptr, width};
        if (draw.chance(3)) wanted.source_width = draw.any<int32_t>({-1, INT32_MIN});
        if (some && draw.chance(3)) wanted.count = draw.any<int32_t>({0, -1});
        const int32_t wrong = draw.any<int32_t>({0, -1, INT32_MIN, INT32_MAX});
        Outcome stepped;
        stepped.take(tfn_batch_step(draw.chance(2) ? nullptr : batch,
                                    draw.chance(2) ? nullptr : tokens.data(),
                                    draw.chance(3) ? wrong : each, wanted, stepped));
    }

    void run(tfn_batch* batch, Draw& draw) {
        const int size = config_.whole("target_vocab_size"), steps = draw.between(1, 6);
        const size_t rows = (size_t)tfn_batch_rows(batch);
        std::vector<int32_t> tokens, left, owed, counts(rows), chosen(rows * (size_t)steps);
        for (size_t i = 0; i < rows; i++) tokens.push_back(draw.below(size));
        for (size_t i = 0; i < rows; i++) left.push_back(draw.between(1, 8));
        for (size_t i = 0; i < rows; i++) owed.push_back(draw.between(0, 3));
        if (rows && draw.chance(5))
            tokens.back() = draw.any<int32_t>({-1, size, INT32_MIN, INT32_MAX});
        if (rows && draw.chance(5)) left.back() = draw.any<int32_t>({0, -1, INT32_MIN});
        if (rows && draw.chance(5)) owed.back() = draw.any<int32_t>({-1, INT32_MIN, INT32_MAX});
        const int32_t wake = draw.below(2);
        std::vector<float> states(chosen.size() * (size_t)config_.whole("d_model"));
        tfn_run how{left.data(),
                    draw.chance(50) ? nullptr : owed.data(),
                    draw.below(size),
                    draw.below(size + 2) - 1,
                    draw.below(size + 2) - 1,
                    steps,
                    draw.below(4),
                    draw.chance(80) ? 60.0 : 0.0,
                    draw.chance(50) ? &wake : nullptr,
                    draw.chance(50) ? states.data() : nullptr};
        if (draw.chance(3)) how.steps = draw.any<int32_t>({0, -1, INT32_MIN});
        if (draw.chance(3)) how.left = nullptr;
        Outcome ran;
        ran.take(tfn_batch_run(draw.chance(2) ? nullptr : batch,
                               draw.chance(2) ? nullptr : tokens.data(),
                               draw.chance(2) ? nullptr : &how,
                               draw.chance(2) ? nullptr : chosen.data(), counts.data(), ran));
    }

    // Several threads with the same model.
    void at_once(tfn_model* model) {
        std::vector<std::thread> threads;
        for (int i = 0; i < 3; i++) {
            const int seed = draw_.below(1 << 30);
            threads.emplace_back([this, model, seed] {
                Draw own(seed);
                calls(model, own);
            });
        }
        for (std::thread& thread : threads) thread.join();
    }

    void packed(tfn_model* model, const std::string& text, const std::vector<tfn_tensor>& table,
                const char* name) {
        Outcome saved;
        if (!saved.take(tfn_model_save(model, path_.c_str(), "weights", saved))) return;
        std::ifstream file(path_, std::ios::binary);
        std::string bytes{std::istreambuf_iterator<char>(file), {}};
        const bool spoilt = draw_.chance(70);
        if (spoilt) {
            const size_t at = draw_.chance(50) ? (size_t)draw_.below(400)
                                               : (size_t)draw_.below((int)bytes.size());
            switch (draw_.below(6)) {
                case 0: bytes[at] ^= (char)(1 << draw_.below(8)); break;
                case 1: bytes.resize(at); break;
                case 2: bytes.append((size_t)draw_.between(1, 300), '\0'); break;
                case 3: bytes.erase(at, 64); break;
                case 4: forge(bytes, draw_.any<uint32_t>({0, 1, 2, 3, UINT32_MAX})); break;
                case 5: forge(bytes, (uint32_t)draw_.below(INT32_MAX)); break;
            }
            std::ofstream(other_, std::ios::binary) << bytes;
        }
        tfn_model* again = nullptr;
        Outcome loaded;
        if (!loaded.take(tfn_model_load(text.c_str(), table.data(), (int32_t)table.size(),
                                        draw_.between(1, 3), name,
                                        spoilt ? other_.c_str() : path_.c_str(),
                                        draw_.chance(3) ? nullptr : "weights", &again, loaded)))
            return;
        calls(again, draw_);
        tfn_model_free(again);
    }

    // Another word where a line begins, such as the type of a matrix, and the sum that fits it.
    void forge(std::string& bytes, uint32_t word) {
        const int lines = (int)((bytes.size() - HEADER) / 64);
        for (int i = draw_.between(1, 4); i; i--)
            std::memcpy(&bytes[HEADER + 64 * (size_t)draw_.below(lines)], &word, sizeof word);
        const uint64_t sum = sum_of(bytes);
        std::memcpy(&bytes[24], &sum, sizeof sum);
    }

    Draw draw_;
    const Config config_;
    Weights weights_;
    const std::string path_, other_;
};

void on_signal(int) { die("a signal"); }

}  // namespace

int main(int count, char** given) {
    if (count != 4) {
        std::fprintf(stderr, "usage: fuzz FIRST CASES FOLDER\n");
        return 2;
    }
    std::vector<int> faults = {SIGABRT, SIGSEGV, SIGFPE};
#ifdef SIGBUS  // Windows has none
    faults.push_back(SIGBUS);
#endif
    for (int signal : faults)
        if (!std::getenv("TFN_SANITIZED")) std::signal(signal, on_signal);
    const uint64_t first = std::strtoull(given[1], nullptr, 10);
    const uint64_t cases = std::strtoull(given[2], nullptr, 10);
    const bool told = std::getenv("TFN_TELL") != nullptr;
    for (current = first; current < first + cases; current++) {
        if (told) std::fprintf(stderr, "case %llu\n", (unsigned long long)current);
        Case(current, given[3]).run();
    }
    std::printf("%llu cases: %ld calls did what they say, %ld were refused\n",
                (unsigned long long)cases, done.load(), refused.load());
    return 0;
}
