// Whole searches in one call. Each step looks whether the workspace's call is cancelled.
#pragma once
#include "batch.h"
#include "rules.h"

namespace tfn {

// What a greedy search leaves of each row: the states (rows, most, E) and the mean over heads of
// the last layer's attention (rows, most, source_width) by which tokens were chosen, of all that
// were not forced without a step; and the rows with all their positions.
struct Trace {
    float* states;
    float* attention;
    int source_width;
    Batch* batch;
};

// Sequences (rows, most) padded with pad_id, the end token included, and how many tokens are in
// each; `least` of them before the end token, a forced one excepted. scores, if given: mean
// natural-log probability of a row's tokens, forced ones counting as 0.
int generate(Workspace& w, std::shared_ptr<Model> model, const Sources& sources, int most,
             int least, int32_t* sequences, int32_t* counts, float* scores,
             const Trace* trace = nullptr);

// The log-probability of a token by each state: (count, E), (count,), (count,).
void log_probs(Workspace& w, const Model& model, const float* states, int count,
               const int32_t* tokens, double* found);

// The best candidates of every step and sentence, best first: (room, rows, rules.candidates()).
// What is none has a log-probability of -inf.
struct BeamRecord {
    int room;  // for so many steps
    int32_t* tokens;
    int32_t* parents;   // which hypothesis of the step each continues
    double* log_probs;  // of the token alone
    int32_t* steps;     // (rows,), after which each sentence was done
};
// Ends when all sentences are done, or the room is filled. Returns the steps.
int beam(Workspace& w, std::shared_ptr<Model> model, const Sources& sources, const BeamRules& rules,
         const BeamRecord& record);

}  // namespace tfn
