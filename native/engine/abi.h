/* The engine's plain C interface. Functions that can fail return TFN_OK, or else what kind of
 * failure it was, with a text in `error`. Null is refused wherever something is needed. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef _WIN32
#define TFN_API __declspec(dllexport)
#else
#define TFN_API __attribute__((visibility("default")))
#endif
#define TFN_VERSION 10

enum {
    TFN_OK = 0,
    TFN_FAILED = 1,
    TFN_PACKED_FILE = 2, /* a file of packed weights cannot be used, or written */
    TFN_CANCELLED = 3,
    TFN_WITHOUT_TOKEN = 4 /* a search allows a row no token, which it has no rule for */
};

typedef struct tfn_model tfn_model;
typedef struct tfn_batch tfn_batch;

/* A matrix (rows, columns) of float32, or of int8 if it has a scale for each row; strides in
 * values. The memory has to live as long as the model. `mapped`: not 0 if it is a map of a file
 * that nobody writes to; pages of it are given back to the system once they are packed. */
typedef struct {
    const char* name;
    const void* data;
    const float* scales;
    int64_t rows, columns, row_stride, column_stride;
    int32_t mapped;
} tfn_tensor;

typedef struct {
    char* text;
    size_t size;
} tfn_error;

/* `count` sources one after another: their ids, or in place of them the states of an encoder, rows
 * of d_model values, or of memory_width if the model has no encoder. The other pointer is null. */
typedef struct {
    const int32_t* ids;
    const float* states;
    const int32_t* lengths;
    int32_t count;
} tfn_sources;

/* What a step gives; null for what is not wanted. logits (rows, T, V), or (rows, T, count) of
 * `columns`; best (rows,) of the last tokens, of those that are not suppressed; attention
 * (rows, L, H, T, source_width), padded with 0. */
typedef struct {
    float* logits;
    const int32_t* columns;
    int32_t count;
    int32_t* best;
    float* attention;
    int32_t source_width;
} tfn_wanted;

typedef struct {
    const int32_t* ids;
    int32_t count;
} tfn_ids;

/* When a sentence that has `enough` hypotheses is done: at once, or when the worst of its `enough`
 * best is at least what the best hypothesis followed is worth at its present length, at the next,
 * or at the greatest. */
enum { TFN_STOP_EARLY = 0, TFN_STOP_PRESENT = 1, TFN_STOP_NEXT = 2, TFN_STOP_LONGEST = 3 };

/* Rules of a beam search. Scores are sums of log-probabilities over length ** length_penalty.
 * `on_log_probs`: penalties and bans act on log-probabilities, and n-grams and repetitions count
 * the start token (the rules of transformers); `renormalize` makes probabilities again of what is
 * left. Else they act on logits. `ngram`, `source_ngram`: no n-gram of that size occurs twice, or
 * is one of the source's, which then has to be ids; 0 for any. `first_token`, `last_token`: forced,
 * -1 for none; `most` counts both. `sequences`: one after another, `lengths` of them; their last
 * tokens are banned behind the others. */
typedef struct {
    int32_t beams, enough, most, stop;
    int32_t on_log_probs, renormalize;
    int32_t start, first_token, last_token;
    int32_t min_length, ngram, source_ngram;
    double length_penalty, repetition_penalty;
    tfn_ids ends, suppressed, suppressed_first, sequences, lengths;
} tfn_beam_rules;

/* tokens, parents, log_probs: (room, count, beams * (1 + ends.count)), of which the steps that were
 * made are written: candidates, best first, -inf for none. steps (count,): made for each sentence.
 */
typedef struct {
    int32_t room;
    int32_t* tokens;
    int32_t* parents;
    double* log_probs;
    int32_t* steps;
} tfn_beam_record;

/* Greedy steps of a batch without its caller. `left` (rows,): tokens that each row may still get, 1
 * at least. `owed` (rows,): tokens that each gets before it may choose `end`; null for none. A row
 * ends with the token `end`, or with its last one. `first`, `last`: forced, -1 for
 * none. At most `steps`; none begins after `seconds`, or once `enough` rows have ended and `wake`,
 * if it is not null, is not 0. Any thread may set it. states (rows, steps, E): as of tfn_trace, or
 * null. */
typedef struct {
    const int32_t* left;
    const int32_t* owed;
    int32_t end, first, last;
    int32_t steps, enough;
    double seconds;
    const int32_t* wake;
    float* states;
} tfn_run;

/* What tfn_generate leaves if it is not null. states (count, most, E): by which each token was
 * chosen, for tfn_log_probs. attention (count, most, source_width): the mean over heads of the last
 * layer's cross-attention then, padded with 0. Both are written for the rows' own tokens; they are
 * 0 for a last one that is forced. batch: a new one of all rows, whose positions are those that
 * were computed. */
typedef struct {
    float* states;
    float* attention;
    int32_t source_width;
    tfn_batch** batch;
} tfn_trace;

/* What tfn_batch_read finds for each token. `targets`: a token that may follow each, or null.
 * log_probs: its log-probability. gaps: how far its logit is below the greatest. best: the token of
 * that; of those that are not suppressed. Without targets these three are not written. states
 * (tokens, E), attention (tokens, source_width): as of tfn_trace, or null. */
typedef struct {
    const int32_t* targets;
    double* log_probs;
    float* gaps;
    int32_t* best;
    float* states;
    float* attention;
    int32_t source_width;
} tfn_reading;

TFN_API int32_t tfn_version(void);
/* Names of instruction sets that run here, fastest first, separated by commas. */
TFN_API const char* tfn_instruction_sets(void);

/* `config`: lines "key=value"; see config.h. `instruction_set`: null for the fastest. Weights are
 * packed. */
TFN_API int tfn_model_new(const char* config, const tfn_tensor* tensors, int32_t count,
                          int32_t threads, const char* instruction_set, tfn_model** model,
                          tfn_error error);
/* Maps weights that tfn_model_save has packed; processes share them. `tensors` are needed all the
 * same: embeddings and the rows of the output projection are read from them, and shapes are
 * checked. `identity` has to be the one that the file was saved with: a digest of the weights. */
TFN_API int tfn_model_load(const char* config, const tfn_tensor* tensors, int32_t count,
                           int32_t threads, const char* instruction_set, const char* path,
                           const char* identity, tfn_model** model, tfn_error error);
/* Written to a name of its own, and renamed. `identity`: fewer than 256 characters. */
TFN_API int tfn_model_save(const tfn_model* model, const char* path, const char* identity,
                           tfn_error error);
TFN_API void tfn_model_free(tfn_model* model);
TFN_API const char* tfn_model_instruction_set(const tfn_model* model);

/* Encoder states of all sources: (sum of lengths, E). Sources are ids; those of a model whose
 * config has keys "encoder.…" are embeddings, rows of as many values as a state has. */
TFN_API int tfn_encode(tfn_model* model, tfn_sources sources, float* states, tfn_error error);

/* Whole searches look at `cancelled`, if it is not null, before every step, and end with
 * TFN_CANCELLED once it is not 0. Any thread may set it. */

/* sequences (count, most), of which the first `steps` of each row are written, counts (count,);
 * scores (count,) or null. steps: the longest row's. No row chooses the end token before it has
 * `least` tokens, which no probability is then left for. */
TFN_API int tfn_generate(tfn_model* model, tfn_sources sources, int32_t most, int32_t least,
                         int32_t* sequences, int32_t* counts, float* scores, int32_t* steps,
                         const tfn_trace* trace, const int32_t* cancelled, tfn_error error);
/* steps: the longest sentence's. */
TFN_API int tfn_beam(tfn_model* model, tfn_sources sources, const tfn_beam_rules* rules,
                     tfn_beam_record record, int32_t* steps, const int32_t* cancelled,
                     tfn_error error);

/* The natural-log probabilities (count,) of tokens (count,) by states (count, E). */
TFN_API int tfn_log_probs(tfn_model* model, const float* states, const int32_t* tokens,
                          int32_t count, double* log_probs, tfn_error error);
/* The natural logs of the sums of exponentials, (rows,), of values (rows, columns), as of a beam.
 */
TFN_API int tfn_log_sums(tfn_model* model, const float* values, int32_t rows, int32_t columns,
                         double* sums, tfn_error error);

/* A batch keeps its model alive. One thread at a time may use it. */
TFN_API int tfn_batch_new(tfn_model* model, tfn_batch** batch, tfn_error error);
TFN_API void tfn_batch_free(tfn_batch* batch);
TFN_API int32_t tfn_batch_rows(const tfn_batch* batch);
TFN_API int32_t tfn_batch_longest_source(const tfn_batch* batch);
TFN_API int tfn_batch_enter(tfn_batch* batch, tfn_sources sources, tfn_error error);
/* tokens (rows, each). */
TFN_API int tfn_batch_step(tfn_batch* batch, const int32_t* tokens, int32_t each, tfn_wanted wanted,
                           tfn_error error);
/* tokens (rows,): the next of each. chosen (rows, run.steps), counts (rows,): what each row got. At
 * least one step is made. Rows that have ended leave the batch, the others keep their order. After
 * a failure some of the steps may have been made. */
TFN_API int tfn_batch_run(tfn_batch* batch, const int32_t* tokens, const tfn_run* run,
                          int32_t* chosen, int32_t* counts, tfn_error error);
/* tokens, row after row: the next `counts` (rows,) of each, at least one. */
TFN_API int tfn_batch_read(tfn_batch* batch, const int32_t* tokens, const int32_t* counts,
                           const tfn_reading* reading, tfn_error error);
/* A new batch of copies of rows, of which each has its first `lengths` positions alone. The memory
 * of positions is shared. */
TFN_API int tfn_batch_branch(const tfn_batch* batch, const int32_t* rows, const int32_t* lengths,
                             int32_t count, tfn_batch** branch, tfn_error error);
TFN_API int tfn_batch_select(tfn_batch* batch, const int32_t* rows, int32_t count, tfn_error error);

#ifdef __cplusplus
}
#endif
