// Greedy steps of a batch without its caller: rows leave at their own ends.
#pragma once
#include "batch.h"

namespace tfn {

// What each row gets, and when the caller is needed again; see "abi.h".
struct Run {
    const int32_t* left;  // (rows,): tokens that each row may still get
    const int32_t* owed;  // (rows,): those that each gets before it may choose `end`; or null
    int32_t end, first, last;
    int32_t steps;
    double seconds;
    const int32_t* wake;
    int32_t enough;
    float* states;  // (rows, steps, E), by which tokens were chosen; or null
};

// Tokens (rows, run.steps) and how many of them each row got. Rows that have ended are no more in
// the batch, the others keep their order.
void run(Workspace& w, Batch& batch, const int32_t* tokens, const Run& run, int32_t* chosen,
         int32_t* counts);

}  // namespace tfn
