"""The identity of a task, by which an output is known."""

import json
import pickle

from tfexport.corpus.row_decoder import Task


def identity(task: Task) -> str:
    return json.dumps(task.identity(), sort_keys=True, allow_nan=False)


def test_an_identity_changes_with_all_that_results_depend_on() -> None:
    tasks = [
        Task(), Task({"beam_size": 2}), Task({"beam_size": 3}), Task({"seed": 1}),
        Task({"sampling": True}), Task({"sampling": False}),
        Task({"suppress_tokens": ("a", 1)}), Task({"suppress_tokens": ("a", 2)}),
        Task({"suppress_tokens": (1, "a")}), Task({"suppress_sequences": [("a", "b"), "c"]}),
        Task({"suppress_sequences": [("a", "c"), "c"]}), Task({"suppress_tokens": range(3)}),
        Task(source_language="de"), Task(target_language="de"), Task(target_prefix="de"),
        Task(target_prefix=""), Task(vocabulary_map=b""), Task(vocabulary_map=b"x"),
        Task(subtitles={"srt": "a"}), Task(subtitles={"srt": "b"}), Task(subtitles={"vtt": "a"}),
        Task({"first_token": "\ud800"}), Task({"first_token": "ü\n"}),
    ]  # fmt: skip
    assert len({identity(task) for task in tasks}) == len(tasks)
    for task in tasks:
        assert pickle.loads(pickle.dumps(task)) == task
        assert identity(pickle.loads(pickle.dumps(task))) == identity(task)


def test_an_identity_does_not_change_with_what_does_not_matter() -> None:
    one = Task({"beam_size": 2, "suppress_tokens": ["a"], "batch_size": 7}, spell=repr)
    other = Task({"suppress_tokens": ("a",), "batch_type": "tokens", "beam_size": 2})
    assert identity(one) == identity(other)
