// Whole searches in one call. Each step looks whether the workspace's call is cancelled.
#pragma once
#include "batch.h"

namespace tfn {

// Sequences (rows, most) padded with pad_id, the end token included, and how many tokens are in
// each. scores, if given: mean natural-log probability of a row's tokens, forced ones counting as 0.
int generate(Workspace& w, std::shared_ptr<Model> model, const Sources& sources, int most,
             int32_t* sequences, int32_t* counts, float* scores);

// The best 2 * beams candidates of every step and sentence, best first: (steps, rows, 2 * beams).
struct BeamRecord {
    int32_t* tokens;
    int32_t* parents;  // which hypothesis of the step each continues
    float* log_probs;  // of the token alone
};
// Ends when `enough` hypotheses of every sentence have ended, at `most` steps. Returns the steps.
int beam(Workspace& w, std::shared_ptr<Model> model, const Sources& sources, int beams, int enough, int most,
         const BeamRecord& record);

}  // namespace tfn
