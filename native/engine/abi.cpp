#include "abi.h"

#include <algorithm>
#include <cstdio>

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

// Where the last value of a tensor lies has to be a number that exists.
bool reachable(const tfn_tensor& given) {
    constexpr int64_t MOST = int64_t(1) << 48;
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
        throw tfn::Error("'" + name + "' has a shape or strides that are empty, negative or too large");
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
        throw tfn::Error("instruction set '" + std::string(name) + "' does not run here; these do: " +
                         tfn_instruction_sets());
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
    std::unique_ptr<tfn::Workspace> workspace(new tfn::Workspace(given.kernels, given.threads));
    tfn::Tensors all(*store, workspace->team);
    for (int32_t i = 0; i < given.count; i++) add_tensor(all, given.tensors[i]);
    std::shared_ptr<tfn::Model> made;
    {
        tfn::Team::Span loading(workspace->team, tfn::Work::loading, 1);
        made = std::make_shared<tfn::Model>(tfn::Config::parse(given.config), all, given.kernels,
                                            given.threads);
    }
    store->finish();
    made->keep(std::move(store));
    made->workspaces.give_back(std::move(workspace));
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
        const tfn::Sources all = checked(sources);
        require(all.ids, "states are given, not ids");
        require(states, "no room for states");
        own.check(all);
        tfn::Borrowed workspace(own);
        own.encode(*workspace, all, states);
    });
}

int tfn_generate(tfn_model* model, tfn_sources sources, int32_t most, int32_t* sequences,
                 int32_t* counts, float* scores, int32_t* steps, const int32_t* cancelled,
                 tfn_error error) {
    return guarded(error, [&] {
        tfn::Model& own = model_of(model);
        const tfn::Sources all = checked(sources);
        require(most >= 1 && sequences && counts && steps, "no room for sequences");
        tfn::Borrowed workspace(own, cancelled);
        *steps = tfn::generate(*workspace, model->model, all, most, sequences, counts, scores);
    });
}

int tfn_beam(tfn_model* model, tfn_sources sources, int32_t beams, int32_t enough, int32_t most,
             int32_t* tokens, int32_t* parents, float* log_probs, int32_t* steps,
             const int32_t* cancelled, tfn_error error) {
    return guarded(error, [&] {
        tfn::Model& own = model_of(model);
        const tfn::Sources all = checked(sources);
        require(most >= 1 && enough >= 1 && tokens && parents && log_probs && steps,
                "no room for candidates");
        tfn::Borrowed workspace(own, cancelled);
        *steps = tfn::beam(*workspace, model->model, all, beams, enough, most,
                           {tokens, parents, log_probs});
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

int tfn_batch_select(tfn_batch* batch, const int32_t* rows, int32_t count, tfn_error error) {
    return guarded(error, [&] {
        tfn::Batch& own = batch_of(batch);
        require(count == 0 || (rows && count > 0), "no rows");
        own.select(rows, count);
    });
}
