"""One step's choice of beam search as a graph in ONNX text: rules, candidates, and who is done.

Rules are inputs of the graph: see ``runtime.model.interface.BeamRules``. What is banned is found
without a look at all words: for every token of a row so far, ``run`` counts how many tokens before
it equal the last ones of the row, which says of n-grams of any size which token completes one.

Axes: B sentences, K beams, R = B * K rows, V vocabulary, L tokens of a row so far, S tokens of a
source whose n-grams are banned, C candidates of a row, N of a sentence, F best finished.
"""

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from tfexport import graph_io
from tfexport.export.graphs.loops import declaration
from tfexport.export.ir_tools.nodes import parse_graph, take_nodes
from tfexport.graph_io import RULES, TensorSpec

_NUMBERS = """
        zero = Constant <value = int64 {0}> ()
        one = Constant <value = int64 {1}> ()
        flat = Constant <value = int64[1] {-1}> ()
        first = Constant <value = int64[1] {0}> ()
        second = Constant <value = int64[1] {1}> ()"""
# The state between two steps, with the token before it and the model's own behind it: sums of
# log-probabilities, -inf for a beam that holds no hypothesis; of each sentence the best scores of
# finished hypotheses, their number, and after which step it was done: 0 for not yet, -1 if its
# beams have no allowed token; and of each row its tokens, and their runs and those of the source.
STATE = (
    TensorSpec("sums", "float64", ("batch", "beams")),
    TensorSpec("found", "float64", ("batch", "best")),
    TensorSpec("count", "int64", ("batch",)),
    TensorSpec("steps", "int64", ("batch",)),
    TensorSpec("history", "int64", ("rows", "length")),
    TensorSpec("run", "int64", ("rows", "length")),
    TensorSpec("source_run", "int64", ("rows", "source_length")),
)
# What is made of the rules before the first step: the numbers of candidates, C and N; 0 to N - 1,
# and -N; whether any rule bans or changes values; the least run that completes an n-gram; sequences
# without their last tokens, and these; and ``_PLACES``.
_MADE = (
    TensorSpec("each", "int64", (1,)),
    TensorSpec("number_each", "int64", ()),
    TensorSpec("kept", "int64", (1,)),
    TensorSpec("ranks", "int64", ("candidates",)),
    TensorSpec("behind", "int64", ()),
    TensorSpec("acts", "bool", ()),
    TensorSpec("longest_run", "int64", ()),
    TensorSpec("longest_source_run", "int64", ()),
    TensorSpec("before", "int64", ("sequences", "tail")),
    TensorSpec("completed", "int64", ("sequences",)),
    TensorSpec("first_place", "int64", ()),
    TensorSpec("last_place", "int64", ()),
    TensorSpec("is_early", "bool", ()),
)
_GIVEN = tuple(
    TensorSpec(tensor.name.removeprefix(RULES), tensor.dtype, tensor.axes)
    for tensor in graph_io.BEAM_RULES
)
# The source of each row, which stays the same.
SOURCE = TensorSpec("source", "int64", ("rows", "source_length"))
# Of the complete batch: the sentences that are not done, and the record so far.
RECORD = (
    TensorSpec("order", "int64", ("left",)),
    TensorSpec("all_steps", "int64", ("sentences",)),
    TensorSpec("all_tokens", "int64", ("sentences", "turns", "candidates")),
    TensorSpec("all_parents", "int64", ("sentences", "turns", "candidates")),
    TensorSpec("all_log_probs", "float32", ("sentences", "turns", "candidates")),
)
# The number of running sentences at which a loop ends, and the first row of each sentence.
TURN = (
    TensorSpec("few", "int64", ()),
    TensorSpec("first_rows", "int64", ("batch", 1)),
)
_ENOUGH = TensorSpec(graph_io.ENOUGH, "int64", ())
_MOST = TensorSpec("most", "int64", ())


class InitialBeams(NamedTuple):
    """The beams before the first step, and what every step reads.

    Attributes:
        token: the first token of each beam, (B, K).
        state: the values of ``STATE``.
        source: see ``SOURCE``.
        record: the values of ``RECORD``.
        fixed: what every step reads.
    """

    token: ir.Value
    state: Sequence[ir.Value]
    source: ir.Value
    record: Sequence[ir.Value]
    fixed: Sequence[ir.Value]


class Chosen(NamedTuple):
    """Values after a step.

    Attributes:
        going: whether there is a next step.
        token: (B, K).
        state: the values of ``STATE``.
        order: the row that each row of the next step continues, (R,).
        record: tokens, parents and log-probabilities of the candidates, (B, N) each.
    """

    going: ir.Value
    token: ir.Value
    state: Sequence[ir.Value]
    order: ir.Value
    record: Sequence[ir.Value]


def append_initial_beams(
    graph: ir.Graph, sums: ir.Value, most: ir.Value, size: int, opset: int
) -> InitialBeams:
    """Append what comes before the first step.

    Args:
        graph: the outer graph, which has the inputs of ``graph_io.beam_graph``.
        sums: of the first beams, (B, K).
        most: the greatest number of tokens of a row.
        size: V.
        opset: the opset version of the standard operators.
    """
    inputs = {value.name: value for value in graph.inputs}
    given = [inputs[tensor.name] for tensor in (_ENOUGH, *graph_io.BEAM_RULES)]
    nodes, made = take_nodes(
        parse_graph(_prepare_text(size), opset), [sums, most, *given], "first/"
    )
    graph.extend(nodes)
    count, end = len(STATE), len(STATE) + 1 + len(RECORD)
    state = [sums, *made[1:count]]
    fixed = [most, *given, *made[end:]]
    return InitialBeams(made[0], state, made[count], made[count + 1 : end], fixed)


def append_choice(
    graph: ir.Graph, values: Sequence[ir.Value], fixed: Sequence[ir.Value], size: int, opset: int
) -> Chosen:
    """Append the choice of one step to its graph.

    Args:
        graph: the graph of the step.
        values: the logits (B, K, V), the number of steps taken, and the values of ``TURN``,
            ``SOURCE`` and ``STATE``.
        fixed: see ``InitialBeams``.
        size: V.
        opset: the opset version of the standard operators.
    """
    part = parse_graph(_choose_text(size), opset)
    nodes, made = take_nodes(part, [*values, *fixed], "choice/")
    graph.extend(nodes)
    going, token, *others = made
    count = len(STATE)
    return Chosen(going, token, others[:count], others[count], others[count + 1 :])


def _typed(tensors: Sequence[TensorSpec], prefix: str = "") -> str:
    return ", ".join(declaration(tensor, prefix) for tensor in tensors)


def _prepare_text(size: int) -> str:
    """The function that makes the state before the first step; V is ``size``."""
    return f"""
    prepare (double[batch, beams] sums, {_typed([_MOST, _ENOUGH, *_GIVEN])})
        => (int64[batch, beams] token, {_typed(STATE[1:])}, {_typed([SOURCE, *RECORD])},
            {_typed(_MADE)})
    {{
        {_NUMBERS}
        area = Shape (sums)
        token = Expand (start, area)
        height = Shape <start = 0, end = 1> (sums)
        width = Shape <start = 1, end = 2> (sums)
        rows = Mul (height, width)
        wanted = Reshape (enough, flat)
        best = Min (wanted, width)
        places = Concat <axis = 0> (height, best)
        found = ConstantOfShape <value = double[1] {{-inf}}> (places)
        count = ConstantOfShape <value = int64[1] {{0}}> (height)
        steps = ConstantOfShape <value = int64[1] {{0}}> (height)
        none = Constant <value = int64 {{{graph_io.NO_TOKEN}}}> ()
        seen = Where (on_log_probs, start, none)
        column = Concat <axis = 0> (rows, second)
        history = Expand (seen, column)
        run = ConstantOfShape <value = int64[1] {{0}}> (column)

        of_sentence = Unsqueeze (source_tokens, second)
        length = Shape <start = 1, end = 2> (source_tokens)
        block = Concat <axis = 0> (height, width, length)
        of_beams = Expand (of_sentence, block)
        lines = Concat <axis = 0> (rows, length)
        source = Reshape <allowzero = 1> (of_beams, lines)
        no_run = ConstantOfShape <value = int64[1] {{0}}> (lines)
        {_longer_run("source", "seen", "no_run")}
        source_run = Slice (longer_no_run, first, flat, second)

        {_LIMITS}
        {_PLACES}
        {_counts_text(size)}

        batch = Squeeze (height, first)
        order = Range (zero, batch, one)
        all_steps = Identity (steps)
        no_turns = Concat <axis = 0> (height, first, kept)
        all_tokens = ConstantOfShape <value = int64[1] {{0}}> (no_turns)
        all_parents = ConstantOfShape <value = int64[1] {{0}}> (no_turns)
        all_log_probs = ConstantOfShape <value = float[1] {{0.0}}> (no_turns)
    }}"""


# What n-grams and sequences are compared with, and whether any rule bans or changes values.
_LIMITS = f"""
        endless = Constant <value = int64 {{{(1 << 63) - 1}}}> ()
        has_ngram = Greater (ngram, zero)
        ngram_less = Sub (ngram, one)
        longest_run = Where (has_ngram, ngram_less, endless)
        has_source_ngram = Greater (source_ngram, zero)
        source_ngram_less = Sub (source_ngram, one)
        longest_source_run = Where (has_source_ngram, source_ngram_less, endless)
        before = Slice (sequences, first, flat, second)
        last_column = Gather <axis = 1> (sequences, flat)
        completed = Squeeze (last_column, second)
        unchanged = Constant <value = float {{1.0}}> ()
        is_unchanged = Equal (repetition_penalty, unchanged)
        penalizes = Not (is_unchanged)
        listed = Concat <axis = 0> (suppressed, suppressed_first, completed)
        number_listed = Size (listed)
        listed_or_length = Add (number_listed, min_length)
        bans = Greater (listed_or_length, zero)
        bans_ngrams = Or (has_ngram, has_source_ngram)
        bans_any = Or (bans, bans_ngrams)
        changes = Or (penalizes, renormalize)
        acts = Or (bans_any, changes)"""


# Where tokens are forced: before the first place, and at the last; and when sentences are done.
_PLACES = """
        has_first = GreaterOrEqual (first_token, zero)
        first_place = Cast <to = 7> (has_first)
        has_last = GreaterOrEqual (last_token, zero)
        end_place = Sub (most, one)
        nowhere = Constant <value = int64 {-1}> ()
        last_place = Where (has_last, end_place, nowhere)
        is_early = Equal (stop, zero)"""


def _counts_text(size: int) -> str:
    """C and N; with more beams than half of the words TopK fails, as C is more than all."""
    return f"""
        beams = Squeeze (width, first)
        number_of_ends = Size (ends)
        ends_and_another = Add (number_of_ends, one)
        words = Constant <value = int64 {{{size}}}> ()
        of_beam = Min (ends_and_another, words)
        of_all = Mul (of_beam, beams)
        kept = Reshape (of_all, flat)
        half = Constant <value = int64 {{{size // 2}}}> ()
        too_many = Greater (beams, half)
        too_long = Constant <value = int64 {{{size + 1}}}> ()
        of_row = Min (of_all, words)
        of_row_or_none = Where (too_many, too_long, of_row)
        each = Reshape (of_row_or_none, flat)
        number_each = Squeeze (each, first)
        ranks = Range (zero, of_all, one)
        behind = Neg (of_all)"""


def _longer_run(tokens: str, newest: str, run: str) -> str:
    """The runs after one more token, with one of that token: ``longer_`` and their name."""
    return f"""
        same_{run} = Equal ({tokens}, {newest})
        more_{run} = Add ({run}, one)
        grown_{run} = Where (same_{run}, more_{run}, zero)
        rows_{run} = Shape <start = 0, end = 1> ({run})
        column_{run} = Concat <axis = 0> (rows_{run}, second)
        zeros_{run} = ConstantOfShape <value = int64[1] {{0}}> (column_{run})
        longer_{run} = Concat <axis = 1> (zeros_{run}, grown_{run})"""


def _choose_text(size: int) -> str:
    """One step; V is ``size``.

    With a name for its axis of rows, onnxruntime scatters into the memory of ``x`` itself.
    """
    return f"""
    choose (float[batch, beams, {size}] logits, int64 position, {_typed([*TURN, SOURCE])},
            {_typed(STATE)}, {_typed([_MOST, _ENOUGH, *_GIVEN])}, {_typed(_MADE)})
        => (bool going, int64[batch, beams] next_token, {_typed(STATE, "next_")},
            int64[rows] order, int64[batch, candidates] tokens,
            int64[batch, candidates] parents, float[batch, candidates] log_probs)
    <float[rows, {size}] x>
    {{
        {_NUMBERS}
        third = Constant <value = int64[1] {{2}}> ()
        end = Constant <value = int64[1] {{{(1 << 63) - 1}}}> ()
        no = Constant <value = int64 {{{graph_io.NO_TOKEN}}}> ()
        infinity = Constant <value = float {{inf}}> ()
        lowest = Constant <value = float {{-inf}}> ()
        lowest_sum = Constant <value = double {{-inf}}> ()
        by_row = Constant <value = int64[2] {{-1, {size}}}> ()
        column = Constant <value = int64[2] {{-1, 1}}> ()
        height = Shape <start = 0, end = 1> (sums)
        width = Shape <start = 1, end = 2> (sums)
        x = Reshape (logits, by_row)
        at_first = Less (position, first_place)
        at_last = Equal (position, last_place)
        {_scores_text(size)}
        {_FORCED}
        {_RANKED}
        {_FOLLOWED}
        {_STEPS}
        {_RUNS}
    }}"""


def _scores_text(size: int) -> str:
    """The best C words of each row with their log-probabilities, by all rules but forced tokens.

    If no rule acts, no values but the logits' log-softmax are computed.
    """
    return f"""
        raw_scores, raw_ids = If (acts) <
            then_branch = by_rules () => (float[rows, each] acted, int64[rows, each] acted_ids)
            {{
                made = Slice (history, second, end, second)
                {_bans_text(size)}
                acted, acted_ids = If (on_log_probs) <
                    then_branch = changed_log_probs ()
                        => (float[rows, each] scores_a, int64[rows, each] ids_a)
                    {{
                        log_probs_a = LogSoftmax <axis = 1> (x)
                        {_acted_text("log_probs_a", "history", "a")}
                        scores_a = If (renormalize) <
                            then_branch = anew () => (float[rows, each] new_scores)
                            {{
                                new_log_probs = LogSoftmax <axis = 1> (banned_a)
                                new_scores = GatherElements <axis = 1> (new_log_probs, ids_a)
                            }},
                            else_branch = as_they_are () => (float[rows, each] old_scores)
                            {{
                                old_scores = Identity (values_a)
                            }}
                        >
                    }},
                    else_branch = changed_logits ()
                        => (float[rows, each] scores_b, int64[rows, each] ids_b)
                    {{
                        {_acted_text("x", "made", "b")}
                        log_probs_b = LogSoftmax <axis = 1> (banned_b)
                        scores_b = GatherElements <axis = 1> (log_probs_b, ids_b)
                    }}
                >
            }},
            else_branch = without_rules () => (float[rows, each] plain, int64[rows, each] plain_ids)
            {{
                plain_log_probs = LogSoftmax <axis = 1> (x)
                plain_values, plain_ids = TopK <axis = 1> (x, each)
                plain = GatherElements <axis = 1> (plain_log_probs, plain_ids)
            }}
        >"""


def _acted_text(values: str, seen: str, name: str) -> str:
    """The repetition penalty, the bans, and the best of what they leave."""
    return f"""
                        seen_{name} = GatherElements <axis = 1> ({values}, {seen})
                        nothing_{name} = Constant <value = float {{0.0}}> ()
                        positive_{name} = Greater (seen_{name}, nothing_{name})
                        less_{name} = Div (seen_{name}, repetition_penalty)
                        more_{name} = Mul (seen_{name}, repetition_penalty)
                        new_{name} = Where (positive_{name}, less_{name}, more_{name})
                        penalized_{name} = ScatterElements <axis = 1> ({values}, {seen}, new_{name})
                        banned_{name} = ScatterElements <axis = 1, reduction = "min">
                            (penalized_{name}, ban_ids, bounds)
                        values_{name}, ids_{name} = TopK <axis = 1> (banned_{name}, each)"""


def _bans_text(size: int) -> str:
    """Tokens of each row and whether they are banned: their values are at most ``bounds``."""
    return f"""
                completes = GreaterOrEqual (run, longest_run)
                is_token = GreaterOrEqual (history, zero)
                bans_history = And (completes, is_token)
                history_ids = Max (history, zero)

                words = Constant <value = int64 {{{size}}}> ()
                completes_source = GreaterOrEqual (source_run, longest_source_run)
                is_source = GreaterOrEqual (source, zero)
                is_known = Less (source, words)
                is_word = And (is_source, is_known)
                bans_source = And (completes_source, is_word)
                source_ids = Where (is_word, source, zero)

                rows = Shape <start = 0, end = 1> (history)
                tail_width = Shape <start = 1, end = 2> (before)
                pad_area = Concat <axis = 0> (rows, tail_width)
                pads = Expand (no, pad_area)
                padded = Concat <axis = 1> (pads, made)
                tail_start = Neg (tail_width)
                tail = Slice (padded, tail_start, end, second)
                tails = Unsqueeze (tail, second)
                same = Equal (tails, before)
                any = Constant <value = int64 {{{graph_io.ANY_TOKEN}}}> ()
                is_any = Equal (before, any)
                fits = Or (same, is_any)
                misses = Not (fits)
                miss_numbers = Cast <to = 7> (misses)
                number_of_misses = ReduceSum <keepdims = 0> (miss_numbers, third)
                bans_sequences = Equal (number_of_misses, zero)
                sequence_area = Shape (bans_sequences)
                sequence_ids = Expand (completed, sequence_area)

                short = Less (position, min_length)
                number_of_ends = Shape (ends)
                bans_ends = Expand (short, number_of_ends)
                number_of_first = Shape (suppressed_first)
                in_first_place = Equal (position, first_place)
                bans_first = Expand (in_first_place, number_of_first)
                yes = Constant <value = bool {{1}}> ()
                number_suppressed = Shape (suppressed)
                bans_suppressed = Expand (yes, number_suppressed)
                bans_of_all = Concat <axis = 0> (bans_ends, bans_first, bans_suppressed)
                ids_of_all = Concat <axis = 0> (ends, suppressed_first, suppressed)
                number_of_all = Shape (ids_of_all)
                area_of_all = Concat <axis = 0> (rows, number_of_all)
                bans_in_rows = Expand (bans_of_all, area_of_all)
                ids_in_rows = Expand (ids_of_all, area_of_all)

                ban_ids = Concat <axis = 1> (history_ids, source_ids, sequence_ids, ids_in_rows)
                bans = Concat <axis = 1>
                    (bans_history, bans_source, bans_sequences, bans_in_rows)
                bounds = Where (bans, lowest, infinity)"""


# A forced token is certain, and the only candidate of its row. Only what no row may have bans it.
_FORCED = """
        forces = Or (at_first, at_last)
        scores, ids = If (forces) <
            then_branch = forced ()
                => (float[rows, each] forced_scores, int64[rows, each] forced_ids)
            {
                token = Where (at_first, first_token, last_token)
                is_first_place = Equal (position, first_place)
                of_first_place = Where (is_first_place, suppressed_first, no)
                none = Reshape (no, flat)
                listed = Concat <axis = 0> (suppressed, of_first_place, none)
                is_listed = Equal (listed, token)
                listed_number = Cast <to = 7> (is_listed)
                most_listed = ReduceMax <keepdims = 0> (listed_number)
                is_free = Equal (most_listed, zero)
                is_allowed = Or (at_first, is_free)
                area = Shape (raw_ids)
                forced_ids = Expand (token, area)
                columns = Range (zero, number_each, one)
                in_front = Equal (columns, zero)
                is_certain = And (in_front, is_allowed)
                certain = Constant <value = float {0.0}> ()
                row = Where (is_certain, certain, lowest)
                forced_scores = Expand (row, area)
            },
            else_branch = free () => (float[rows, each] free_scores, int64[rows, each] free_ids)
            {
                size_of = Abs (raw_scores)
                is_number = Less (size_of, infinity)
                free_scores = Where (is_number, raw_scores, lowest)
                free_ids = Identity (raw_ids)
            }
        >"""
# The best N of each sentence; on a tie the lower beam is first, then the lower id.
_RANKED = """
        sum_column = Reshape (sums, column)
        wide_scores = Cast <to = 11> (scores)
        row_totals = Add (sum_column, wide_scores)
        by_sentence = Concat <axis = 0> (height, flat)
        all_totals = Reshape (row_totals, by_sentence)
        totals, places = TopK <axis = 1> (all_totals, kept)
        parents = Div (places, number_each)
        all_ids = Reshape (ids, by_sentence)
        tokens = GatherElements <axis = 1> (all_ids, places)
        all_scores = Reshape (scores, by_sentence)
        log_probs = GatherElements <axis = 1> (all_scores, places)"""
# The best K that do not end, and the rows that they continue.
_FOLLOWED = """
        token_columns = Unsqueeze (tokens, third)
        is_end = Equal (token_columns, ends)
        end_numbers = Cast <to = 7> (is_end)
        number_of_ends = ReduceSum <keepdims = 0> (end_numbers, third)
        is_an_end = Greater (number_of_ends, zero)
        chosen_freely = Not (at_first)
        ended = And (is_an_end, chosen_freely)
        handicap = Where (ended, behind, zero)
        keys = Sub (handicap, ranks)
        best_keys, followed = TopK <axis = 1> (keys, width)
        next_token = GatherElements <axis = 1> (tokens, followed)
        next_sums = GatherElements <axis = 1> (totals, followed)
        followed_parents = GatherElements <axis = 1> (parents, followed)
        next_rows = Add (first_rows, followed_parents)
        order = Reshape (next_rows, flat)"""
# What ends among the first K is finished. A sentence is done with enough of these, once no followed
# hypothesis can be better; or if none is followed; or at the greatest length. What few searches
# need is in a branch, as many small operators take as long as a step of a small model.
_STEPS = """
        are_hypotheses = Greater (totals, lowest_sum)
        finish = And (ended, are_hypotheses)
        finish_first = Slice (finish, first, width, second)
        finish_numbers = Cast <to = 7> (finish_first)
        finish_count = ReduceSum <keepdims = 0> (finish_numbers, second)
        next_count = Add (count, finish_count)
        is_enough = GreaterOrEqual (next_count, enough)
        length = Add (position, one)
        highest_column = Slice (next_sums, first, second, second)
        highest = Squeeze (highest_column, second)
        next_found, is_done = If (is_early) <
            then_branch = at_once () => (double[batch, best] unread_found, bool[batch] done_early)
            {
                unread_found = Identity (found)
                done_early = Identity (is_enough)
            },
            else_branch = with_the_best ()
                => (double[batch, best] best_found, bool[batch] done_late)
            {
                first_totals = Slice (totals, first, width, second)
                float_length = Cast <to = 11> (length)
                length_divisor = Pow (float_length, length_penalty)
                first_scores = Div (first_totals, length_divisor)
                finished_scores = Where (finish_first, first_scores, lowest_sum)
                all_found = Concat <axis = 1> (found, finished_scores)
                number_found = Shape <start = 1, end = 2> (found)
                best_found, found_places = TopK <axis = 1> (all_found, number_found)
                worst_column = Slice (best_found, flat, end, second)
                worst = Squeeze (worst_column, second)

                two = Constant <value = int64 {2}> ()
                is_next = Equal (stop, two)
                is_longest = Greater (stop, two)
                next_length = Add (length, one)
                length_or_next = Where (is_next, next_length, length)
                best_length = Where (is_longest, most, length_or_next)
                float_best_length = Cast <to = 11> (best_length)
                best_divisor = Pow (float_best_length, length_penalty)
                reachable = Div (highest, best_divisor)
                is_best = GreaterOrEqual (worst, reachable)
                done_late = And (is_enough, is_best)
            }
        >
        is_empty = Equal (highest, lowest_sum)
        is_full = GreaterOrEqual (length, most)
        is_done_or_empty = Or (is_done, is_empty)
        is_over = Or (is_done_or_empty, is_full)
        done_at = Where (is_over, length, zero)
        runs_on = Equal (steps, zero)
        steps_if_allowed = Where (runs_on, done_at, steps)

        top_column = Slice (scores, first, second, second)
        lowest_top = ReduceMin <keepdims = 0> (top_column)
        some_lack = Equal (lowest_top, lowest)
        next_steps, may_go = If (some_lack) <
            then_branch = perhaps_stuck () => (int64[batch] steps_if_stuck, bool none_fails)
            {
                area_of_beams = Shape (sums)
                top = Reshape (top_column, area_of_beams)
                lacks = Equal (top, lowest)
                lives = Greater (sums, lowest_sum)
                stuck = And (lives, lacks)
                stuck_numbers = Cast <to = 7> (stuck)
                live_numbers = Cast <to = 7> (lives)
                number_stuck = ReduceSum <keepdims = 0> (stuck_numbers, second)
                number_live = ReduceSum <keepdims = 0> (live_numbers, second)
                some_stuck = Greater (number_stuck, zero)
                all_stuck = Equal (number_stuck, number_live)
                none_found = Equal (count, zero)
                stuck_without = And (all_stuck, none_found)
                on_logits = Not (on_log_probs)
                any_fails = Or (on_logits, stuck_without)
                can_fail = And (some_stuck, any_fails)
                fails = And (can_fail, runs_on)
                failure = Constant <value = int64 {-1}> ()
                steps_if_stuck = Where (fails, failure, steps_if_allowed)
                fewest_steps = ReduceMin <keepdims = 0> (steps_if_stuck)
                none_fails = GreaterOrEqual (fewest_steps, zero)
            },
            else_branch = all_allowed () => (int64[batch] steps_as_they_are, bool yes_they_may)
            {
                steps_as_they_are = Identity (steps_if_allowed)
                yes_they_may = Constant <value = bool {1}> ()
            }
        >
        still_run = Equal (next_steps, zero)
        run_numbers = Cast <to = 7> (still_run)
        number_running = ReduceSum <keepdims = 0> (run_numbers)
        many_run = Greater (number_running, few)
        going = And (many_run, may_go)"""
_RUNS = f"""
        next_history, next_run, next_source_run = If (acts) <
            then_branch = with_token ()
                => (int64[rows, length] longer_history, int64[rows, length] longer_before,
                    int64[rows, source_length] after_source)
            {{
                newest = Reshape (next_token, column)
                moved = Gather <axis = 0> (history, order)
                longer_history = Concat <axis = 1> (moved, newest)
                before_run = Gather <axis = 0> (run, order)
                {_longer_run("moved", "newest", "before_run")}
                longer_before = Identity (longer_before_run)
                source_before = Gather <axis = 0> (source_run, order)
                {_longer_run("source", "newest", "source_before")}
                after_source = Slice (longer_source_before, first, flat, second)
            }},
            else_branch = unread ()
                => (int64[rows, length] same_history, int64[rows, length] same_run,
                    int64[rows, source_length] same_source_run)
            {{
                same_history = Identity (history)
                same_run = Identity (run)
                same_source_run = Identity (source_run)
            }}
        >"""
