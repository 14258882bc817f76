//! The table of cases.

mod backend;
mod capability;
mod control;
mod failure;
mod text;

use crate::Case;

macro_rules! table {
    ($($group:ident :: $name:ident: $about:literal,)*) => {
        pub(crate) fn all() -> Vec<Case> {
            vec![$(Case {
                name: stringify!($name),
                about: $about,
                needs_model: !WITHOUT_MODEL.contains(&stringify!($name)),
                check: $group::$name,
            },)*]
        }
    };
}

/// The cases that are about a backend alone.
const WITHOUT_MODEL: &[&str] = &[
    "probe_answers",
    "names_itself",
    "devices_have_identity",
    "inspect_leaves_others",
    "load_refuses_missing_file",
];

table! {
    backend::probe_answers: "the probe says available within a second or so, in one line",
    backend::names_itself: "the name is lower case, digits and _; the version is semver",
    backend::devices_have_identity: "devices are listed with unique ids that are no ordinals",
    backend::inspect_answers: "a model is described without being loaded",
    backend::inspect_leaves_others: "a file of another format, or none at all, is not claimed",
    backend::load_refuses_missing_file: "loading a file that is not there is an error with its name",
    backend::load_refuses_unknown_option: "an unknown load option is refused by name",
    backend::absent_capability_answered: "a capability that is not there is none, for backend and model",
    backend::loads: "a loaded model tells its context and vocabulary",
    text::generates: "events and completion agree; prefill events rise to the prompt's length",
    text::greedy_repeats: "temperature 0 gives the same text twice",
    text::seed_repeats: "the same seed gives the same text; a seed that was drawn is told and works",
    text::max_tokens_zero: "0 tokens generates none and ends by length",
    text::max_tokens_bounds: "never more tokens than asked for",
    text::stop_string_ends: "text ends before a stop string, none of which leaks; the string is told",
    text::near_stop_loses_nothing: "text that only begins a stop string is given out in the end",
    text::stop_token_ends: "a stop token ends the text and is not given out",
    text::logprobs_given: "log probabilities come with each token, the chosen one first",
    text::chats: "the model's template is applied and the reply generated",
    text::classifies: "the likeliest tokens come in order and agree with the logits",
    text::classify_keeps_errors_apart: "a bad prompt among good ones fails alone",
    text::batch_is_as_alone: "a batch gives each request the text that it gets alone",
    text::tokens_round_trip: "text to tokens and back is the same text",
    text::metrics_are_numbers: "metrics are finite numbers",
    control::concurrent_as_alone: "four threads at once get the text they get alone",
    control::cancelled_before_prefill: "a request whose caller wants to stop at once generates nothing",
    control::cancelled_in_prefill: "stop at the first prefill event ends the request within a batch",
    control::polled_in_prefill: "should_stop is polled between batches of prefill",
    control::cancelled_in_decode: "stop at a token ends the request with that token",
    control::polled_in_decode: "should_stop is polled between tokens",
    control::batch_cancels_one: "stop for one request of a batch leaves the others",
    control::sink_panic_contained: "a panic in the caller's sink leaves the model usable",
    failure::error_per_call: "bad calls among good ones fail alone",
    failure::unknown_field_refused: "a field that is not known is refused by name, in every call",
    failure::bad_values_refused: "values that mean nothing are refused",
    failure::empty_prompt_answered: "an empty prompt has an answer",
    failure::overflow_refused: "a prompt longer than the context is refused with both counts",
    failure::context_bounds: "generation ends when the context is full",
    failure::closed_twice: "close may be called twice; calls after it err as closed",
    failure::close_ends_generations: "close ends a running generation, which errs as closed",
    capability::embeds: "embeddings are finite, of one width, the same twice, and poolings differ",
    capability::embeddings_normalise: "a normalised embedding has length 1 and the plain one's direction",
    capability::embed_keeps_errors_apart: "a bad or empty input among good ones fails alone",
    capability::scores: "log probabilities of given tokens, of what came before alone, as classify has them",
    capability::attends: "queries and keys have the shapes told, and don't depend on what comes later",
    capability::measures: "peaks are above nothing, told in one line, and a token costs the same twice",
    capability::checks: "a check gives the same findings twice and names a missing file",
    capability::converts: "a conversion is as told, can be read, and replaces no file",
    capability::convert_leaves_nothing: "a conversion that is refused or stopped leaves no file",
    capability::capability_fields_refused: "a field that is not known is refused by name, in every capability",
    capability::capabilities_cancelled: "stop at the first progress cancels, in every capability",
    capability::capabilities_closed: "the capabilities of a closed model err as closed",
}
