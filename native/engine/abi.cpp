#include "abi.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "run.h"
#include "search.h"

struct tfn_model {
    std::shared_ptr<tfn::Model> model;
    std::string config;
};
struct tfn_batch {
    tfn::Batch batch;
};

namespace {

constexpr int64_t MOST_TOKENS = int64_t(1) << 28;  // of a call
constexpr int32_t MOST_ENDS = 64;  // end tokens: a beam keeps so many times as many candidates

int failed(tfn_error error, int kind, const char* text) {
    if (error.text && error.size) std::snprintf(error.text, error.size, "%s", text);
    return kind;
}

// Runs f; an exception becomes a text of the caller's.
template <class F>
int guarded(tfn_error error, F&& f) {
    try {
        f();
        return TFN_OK;
    } catch (const tfn::FileError& found) {
        return failed(error, TFN_PACKED_FILE, found.what());
    } catch (const tfn::Cancelled& found) {
        return failed(error, TFN_CANCELLED, found.what());
    } catch (const tfn::WithoutToken& found) {
        return failed(error, TFN_WITHOUT_TOKEN, found.what());
    } catch (const std::bad_alloc&) {
        return failed(error, TFN_FAILED, "out of memory");
    } catch (const std::exception& found) {
        return failed(error, TFN_FAILED, found.what());
    } catch (...) {
        return failed(error, TFN_FAILED, "unknown failure");
    }
}

void require(bool holds, const char* text) {
    if (!holds) throw tfn::Error(text);
}

tfn::Model& model_of(const tfn_model* model) {
    require(model, "no model");
    return *model->model;
}

tfn::Batch& batch_of(tfn_batch* batch) {
    require(batch, "no batch");
    return batch->batch;
}

tfn::Sources checked(const tfn_sources& sources) {
    require(sources.count > 0 && (sources.ids || sources.states) && sources.lengths, "no sources");
    require(!sources.ids || !sources.states, "sources of ids and of states");
    require((uintptr_t)sources.states % alignof(float) == 0, "states that are not aligned");
    int64_t all = 0;
    for (int32_t i = 0; i < sources.count; i++) all += std::max(0, sources.lengths[i]);
    require(all <= MOST_TOKENS, "too many tokens at once");
    return {sources.ids, sources.states, sources.lengths, sources.count};
}

tfn::Ids checked(const tfn_ids& given, int least, int below, const char* what) {
    const std::string name = what;
    require(given.count >= 0 && (given.ids || !given.count), (name + ": no ids").c_str());
    require(given.count <= MOST_TOKENS, (name + ": too many").c_str());
    const tfn::Ids ids{given.ids, given.count};
    for (int32_t id : ids)
        if (id < least || id >= below)
            throw tfn::Error(name + ": " + std::to_string(id) + "; expected " +
                             std::to_string(least) + " to " + std::to_string(below - 1));
    return ids;
}

// Rows that may not end yet have to have a token to go on with.
void need_another(const tfn::Config& config, int32_t end) {
    std::set<int32_t> never(config.suppress_tokens.begin(), config.suppress_tokens.end());
    if (end >= 0 && end < config.target_vocab_size) never.insert(end);
    if ((int)never.size() == config.target_vocab_size) throw tfn::WithoutToken();
}

void check_numbers(const tfn_beam_rules& given) {
    require(given.enough >= 1 && given.most >= 1, "no hypothesis, or no token, is enough");
    require(given.stop >= TFN_STOP_EARLY && given.stop <= TFN_STOP_LONGEST, "unknown way to stop");
    require((given.on_log_probs | 1) == 1 && (given.renormalize | 1) == 1, "expected 0 or 1");
    require(given.on_log_probs || !given.renormalize, "logits are not renormalized");
    require(given.min_length >= 0 && given.ngram >= 0 && given.source_ngram >= 0,
            "a length below 0");
    // A length to the power of ten times this is still a number, and not 0.
    require(given.length_penalty >= -10 && given.length_penalty <= 10,
            "length_penalty is no number from -10 to 10");
    require(given.repetition_penalty > 0 && given.repetition_penalty <= 1e6,
            "repetition_penalty is no positive number up to 1e6");
}

tfn::BeamRules checked(const tfn_beam_rules& given, const tfn::Sources& sources,
                       const tfn::Config& config) {
    const int size = config.target_vocab_size, half = size / 2;
    if (given.beams < 1 || given.beams > half)
        throw tfn::Error("beam_size is " + std::to_string(given.beams) +
                         "; expected at least 1 and at most " + std::to_string(half) +
                         ", half of the vocabulary");
    check_numbers(given);
    require(sources.ids || !given.source_ngram, "n-grams of sources that are states");
    const int32_t forced[] = {given.first_token, given.last_token};
    checked({&given.start, 1}, 0, size, "start token");
    checked({forced, 2}, -1, size, "forced tokens");
    tfn::BeamRules rules{};
    rules.ends = checked(given.ends, 0, size, "end tokens");
    require(rules.ends.count >= 1 && rules.ends.count <= MOST_ENDS, "expected 1 to 64 end tokens");
    rules.suppressed = checked(given.suppressed, 0, size, "suppressed tokens");
    rules.suppressed_first = checked(given.suppressed_first, 0, size, "suppressed first tokens");
    rules.sequences = checked(given.sequences, 0, size, "suppressed sequences");
    rules.lengths = checked(given.lengths, 1, INT32_MAX, "lengths of suppressed sequences");
    int64_t all = 0;
    for (int32_t length : rules.lengths) all += length;
    require(all == rules.sequences.count, "suppressed sequences are not as long as their lengths");
    rules.beams = given.beams;
    rules.enough = given.enough;
    rules.most = config.max_positions ? std::min(given.most, config.max_positions) : given.most;
    require(rules.most > (given.first_token >= 0), "no room for a token behind the first");
    rules.stop = (tfn::Stop)given.stop;
    rules.length_penalty = given.length_penalty;
    rules.on_log_probs = given.on_log_probs;
    rules.renormalize = given.renormalize;
    rules.start = given.start;
    rules.first = given.first_token;
    rules.last = given.last_token;
    rules.min_length = given.min_length;
    rules.ngram = given.ngram;
    rules.source_ngram = given.source_ngram;
    rules.repetition_penalty = (float)given.repetition_penalty;
    require(rules.repetition_penalty > 0, "repetition_penalty is too small");
    return rules;
}

// Where the last value of a tensor lies has to be a number that exists.
bool reachable(const tfn_tensor& given) {
    constexpr int64_t MOST = std::min<uint64_t>(uint64_t(1) << 48, SIZE_MAX / 4);
    auto span = [](int64_t count, int64_t stride) {
        return stride > MOST / count ? MOST : (count - 1) * stride;
    };
    if (given.rows < 1 || given.columns < 1 || given.rows > MOST || given.columns > MOST)
        return false;
    if (given.row_stride < 0 || given.column_stride < 0) return false;
    return span(given.rows, given.row_stride) + span(given.columns, given.column_stride) < MOST;
}

void add_tensor(tfn::Tensors& tensors, const tfn_tensor& given) {
    require(given.name && given.data, "a tensor without name or data");
    const std::string name = given.name;
    if (!reachable(given))
        throw tfn::Error("'" + name +
                         "' has a shape or strides that are empty, negative or too large");
    if ((!given.scales && (uintptr_t)given.data % alignof(float)) ||
        (uintptr_t)given.scales % alignof(float))
        throw tfn::Error("'" + name + "' is not aligned to whole values");
    tensors.add(name, {given.data, given.scales, (size_t)given.rows, (size_t)given.columns,
                       (size_t)given.row_stride, (size_t)given.column_stride,
                       given.scales != nullptr, given.mapped != 0});
}

const tfn::Kernels& chosen(const char* name) {
    if (!name) return tfn::kernels();
    const tfn::Kernels* found = tfn::kernels_named(name);
    if (!found)
        throw tfn::Error("instruction set '" + std::string(name) +
                         "' does not run here; these do: " + tfn_instruction_sets());
    return *found;
}

// What a model is made from.
struct Given {
    const char* config;
    const tfn_tensor* tensors;
    int32_t count, threads;
    const tfn::Kernels& kernels;
};

tfn_model* make_model(const Given& given, std::unique_ptr<tfn::Store> store) {
    // One core is left to the caller, who computes the digests of the files meanwhile.
    tfn::Team team(std::max(1, given.threads - 1));
    tfn::Tensors all(*store, team);
    for (int32_t i = 0; i < given.count; i++) add_tensor(all, given.tensors[i]);
    std::shared_ptr<tfn::Model> made;
    {
        tfn::Team::Span loading(team, tfn::Phase::loading, 1);
        made = std::make_shared<tfn::Model>(tfn::Config::parse(given.config), all, given.kernels,
                                            given.threads);
    }
    store->finish();
    made->keep(std::move(store));
    return new tfn_model{std::move(made), given.config};
}

Given checked(const char* config, const tfn_tensor* tensors, int32_t count, int32_t threads,
              const char* instruction_set) {
    require(config && tensors && count > 0, "no config or no tensors");
    require(threads >= 1 && threads <= 1024, "expected 1 to 1024 threads");
    return {config, tensors, count, threads, chosen(instruction_set)};
}

}  // namespace

int32_t tfn_version(void) { return TFN_VERSION; }

const char* tfn_instruction_sets(void) {
    static const std::string names = [] {
        std::string all;
        for (const tfn::Kernels* const* each = tfn::all_kernels(); *each; each++)
            if ((*each)->runs_here()) all += (all.empty() ? "" : ",") + std::string((*each)->name);
        return all;
    }();
    return names.c_str();
}

int tfn_model_new(const char* config, const tfn_tensor* tensors, int32_t count, int32_t threads,
                  const char* instruction_set, tfn_model** model, tfn_error error) {
    return guarded(error, [&] {
        require(model, "no place for a model");
        *model = make_model(checked(config, tensors, count, threads, instruction_set),
                            std::unique_ptr<tfn::Store>(new tfn::Store()));
    });
}

int tfn_model_load(const char* config, const tfn_tensor* tensors, int32_t count, int32_t threads,
                   const char* instruction_set, const char* path, const char* identity,
                   tfn_model** model, tfn_error error) {
    return guarded(error, [&] {
        require(model && path && identity, "no place for a model, no path or no identity");
        const Given given = checked(config, tensors, count, threads, instruction_set);
        std::unique_ptr<tfn::Store> store(
            new tfn::Store(path, {given.kernels.name, config, identity}));
        *model = make_model(given, std::move(store));
    });
}

int tfn_model_save(const tfn_model* model, const char* path, const char* identity,
                   tfn_error error) {
    return guarded(error, [&] {
        const tfn::Model& saved = model_of(model);
        require(path && identity, "no path or no identity");
        saved.store().save(path, {saved.kernels.name, model->config, identity});
    });
}

void tfn_model_free(tfn_model* model) { delete model; }

const char* tfn_model_instruction_set(const tfn_model* model) {
    return model ? model->model->kernels.name : "";
}

int tfn_encode(tfn_model* model, tfn_sources sources, float* states, tfn_error error) {
    return guarded(error, [&] {
        tfn::Model& own = model_of(model);
        tfn::Sources all = checked(sources);
        require(all.ids || own.config.embedded, "states are given, not ids");
        require(states, "no room for states");
        own.check(all);
        all.embeddings = all.states != nullptr;
        tfn::Borrowed workspace(own);
        own.encode(*workspace, all, states);
    });
}

int tfn_generate(tfn_model* model, tfn_sources sources, int32_t most, int32_t least,
                 int32_t* sequences, int32_t* counts, float* scores, int32_t* steps,
                 const tfn_trace* trace, const int32_t* cancelled, tfn_error error) {
    return guarded(error, [&] {
        tfn::Model& own = model_of(model);
        const tfn::Sources all = checked(sources);
        require(most >= 1 && sequences && counts && steps, "no room for sequences");
        require(least >= 0, "a length below 0");
        if (least) need_another(own.config, own.config.eos_id);
        tfn::Borrowed workspace(own, cancelled);
        if (!trace) {
            *steps = tfn::generate(*workspace, model->model, all, most, least, sequences, counts,
                                   scores);
            return;
        }
        require(trace->states && trace->attention && trace->batch, "no room for a trace");
        for (int32_t i = 0; i < all.count; i++)
            require(trace->source_width >= all.lengths[i],
                    "source_width is below the longest source");
        std::unique_ptr<tfn_batch> made(new tfn_batch{tfn::Batch(model->model)});
        const tfn::Trace left{trace->states, trace->attention, trace->source_width, &made->batch};
        *steps = tfn::generate(*workspace, model->model, all, most, least, sequences, counts,
                               scores, &left);
        *trace->batch = made.release();
    });
}

int tfn_beam(tfn_model* model, tfn_sources sources, const tfn_beam_rules* rules,
             tfn_beam_record record, int32_t* steps, const int32_t* cancelled, tfn_error error) {
    return guarded(error, [&] {
        tfn::Model& own = model_of(model);
        const tfn::Sources all = checked(sources);
        require(rules, "no rules");
        const tfn::BeamRules by = checked(*rules, all, own.config);
        require(record.room >= 1 && record.tokens && record.parents && record.log_probs &&
                    record.steps && steps,
                "no room for candidates");
        tfn::Borrowed workspace(own, cancelled);
        *steps =
            tfn::beam(*workspace, model->model, all, by,
                      {record.room, record.tokens, record.parents, record.log_probs, record.steps});
    });
}

int tfn_log_probs(tfn_model* model, const float* states, const int32_t* tokens, int32_t count,
                  double* log_probs, tfn_error error) {
    return guarded(error, [&] {
        tfn::Model& own = model_of(model);
        require(count >= 0 && (!count || (states && tokens && log_probs)), "no states");
        for (int32_t i = 0; i < count; i++)
            require(tokens[i] >= 0 && tokens[i] < own.config.target_vocab_size,
                    "a token that the vocabulary does not have");
        tfn::Borrowed workspace(own);
        tfn::log_probs(*workspace, own, states, count, tokens, log_probs);
    });
}

int tfn_log_sums(tfn_model* model, const float* values, int32_t rows, int32_t columns, double* sums,
                 tfn_error error) {
    return guarded(error, [&] {
        tfn::Model& own = model_of(model);
        require(rows >= 0 && columns >= 1 && (!rows || (values && sums)), "no values");
        tfn::Borrowed workspace(own);
        (*workspace).team.run(rows, 4.0 * rows * columns, [&](int row, int) {
            sums[row] = own.kernels.log_sum_exp(values + (size_t)row * columns, columns);
        });
    });
}

int tfn_batch_new(tfn_model* model, tfn_batch** batch, tfn_error error) {
    return guarded(error, [&] {
        model_of(model);
        require(batch, "no place for a batch");
        *batch = new tfn_batch{tfn::Batch(model->model)};
    });
}

void tfn_batch_free(tfn_batch* batch) { delete batch; }

int32_t tfn_batch_rows(const tfn_batch* batch) { return batch ? batch->batch.rows() : 0; }

int32_t tfn_batch_longest_source(const tfn_batch* batch) {
    return batch ? batch->batch.longest_source() : 0;
}

int tfn_batch_enter(tfn_batch* batch, tfn_sources sources, tfn_error error) {
    return guarded(error, [&] {
        tfn::Batch& own = batch_of(batch);
        const tfn::Sources all = checked(sources);
        tfn::Borrowed workspace(own.model());
        own.enter(*workspace, all);
    });
}

int tfn_batch_step(tfn_batch* batch, const int32_t* tokens, int32_t each, tfn_wanted wanted,
                   tfn_error error) {
    return guarded(error, [&] {
        tfn::Batch& own = batch_of(batch);
        require(tokens || !own.rows(), "no tokens");
        require(each >= 1 && (int64_t)each * own.rows() <= MOST_TOKENS,
                "a step of no tokens, or of too many");
        require(!wanted.columns || wanted.count > 0, "no columns");
        const int size = own.model().config.target_vocab_size;
        for (int32_t i = 0; wanted.columns && i < wanted.count; i++)
            require(wanted.columns[i] >= 0 && wanted.columns[i] < size,
                    "a column that the vocabulary does not have");
        require(!wanted.attention || wanted.source_width >= own.longest_source(),
                "source_width is below the longest source");
        tfn::Borrowed workspace(own.model());
        own.step(*workspace, tokens, each,
                 {wanted.logits, wanted.columns, wanted.count, wanted.best, wanted.attention,
                  wanted.source_width});
    });
}

int tfn_batch_run(tfn_batch* batch, const int32_t* tokens, const tfn_run* run, int32_t* chosen,
                  int32_t* counts, tfn_error error) {
    return guarded(error, [&] {
        tfn::Batch& own = batch_of(batch);
        require(run && run->steps >= 1, "no steps");
        if (!own.rows()) return;
        require(tokens && run->left && chosen && counts, "no tokens, or no room for them");
        require((int64_t)run->steps * own.rows() <= MOST_TOKENS, "too many steps");
        const int size = own.model().config.target_vocab_size;
        bool owes = false;
        for (int row = 0; row < own.rows(); row++) {
            require(run->left[row] >= 1, "a row that may get no token");
            require(!run->owed || run->owed[row] >= 0, "a length below 0");
            owes |= run->owed && run->owed[row];
        }
        if (owes) need_another(own.model().config, run->end);
        require(run->first < size && run->last < size, "a token that the vocabulary does not have");
        tfn::Borrowed workspace(own.model());
        tfn::run(*workspace, own, tokens,
                 {run->left, run->owed, run->end, run->first, run->last, run->steps, run->seconds,
                  run->wake, run->enough, run->states},
                 chosen, counts);
    });
}

int tfn_batch_read(tfn_batch* batch, const int32_t* tokens, const int32_t* counts,
                   const tfn_reading* reading, tfn_error error) {
    return guarded(error, [&] {
        tfn::Batch& own = batch_of(batch);
        if (!own.rows()) return;
        require(tokens && counts && reading, "no tokens");
        const bool found = reading->log_probs && reading->gaps && reading->best;
        require(reading->targets ? found : reading->states || reading->attention,
                "no targets, or no room for what is found");
        int64_t all = 0;
        for (int row = 0; row < own.rows(); row++) all += std::max(0, counts[row]);
        require(all <= MOST_TOKENS, "too many tokens at once");
        const int size = own.model().config.target_vocab_size;
        for (int64_t i = 0; reading->targets && i < all; i++)
            require(reading->targets[i] >= 0 && reading->targets[i] < size,
                    "a target that the vocabulary does not have");
        require(!reading->attention || reading->source_width >= own.longest_source(),
                "source_width is below the longest source");
        tfn::Borrowed workspace(own.model());
        own.read(*workspace, tokens, counts,
                 {reading->targets, reading->log_probs, reading->gaps, reading->best,
                  reading->states, reading->attention, reading->source_width});
    });
}

int tfn_batch_branch(const tfn_batch* batch, const int32_t* rows, const int32_t* lengths,
                     int32_t count, tfn_batch** branch, tfn_error error) {
    return guarded(error, [&] {
        require(batch, "no batch");
        require(branch, "no place for a batch");
        require(count == 0 || (rows && lengths && count > 0), "no rows");
        *branch = new tfn_batch{batch->batch.branch(rows, lengths, count)};
    });
}

int tfn_batch_select(tfn_batch* batch, const int32_t* rows, int32_t count, tfn_error error) {
    return guarded(error, [&] {
        tfn::Batch& own = batch_of(batch);
        require(count == 0 || (rows && count > 0), "no rows");
        own.select(rows, count);
    });
}
