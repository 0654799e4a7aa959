// Attention of an encoder, whose queries, keys and values are all there.
#pragma once
#include "layers.h"

namespace tfn {

// Context of every position of `count` sources into w.context. `projected`: queries, keys and
// values of each, rows `ld` apart. A source's values do not depend on the others.
void attend_within(Workspace& w, const Attention& attention, const int32_t* lengths, int count,
                   const float* projected, size_t ld);

}  // namespace tfn
