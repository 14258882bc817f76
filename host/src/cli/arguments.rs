//! Every verb and option, once: help, man pages and completions come from here.

#[cfg(unix)]
pub(crate) mod author;

mod serve;
mod settings;

pub(crate) use serve::{AskedServer, Config, Elsewhere, Ps, Reload, Serve, Stop};

use super::values;
use crate::manifest::Isolation;
use backplane_plugin_api::types::{GenerateOptions, LoadOptions, Sampling};
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;

/// Runs language models on whatever accelerators this machine has.
#[derive(Debug, Parser)]
#[command(
    name = "backplane",
    version,
    after_help = "Exit codes: 0 done, 2 usage, 3 no backend available, 4 model unusable, 5 backend failed, 130 interrupted.\n\
                  MODEL is a path, a name in the model folder (BACKPLANE_MODELS, else the user's data folder), or\n\
                  BACKEND:NAME for a model that is no file, such as remote:some-model.\n\
                  Standard output holds the answer; notices, logs and errors go to standard error."
)]
pub(crate) struct Arguments {
    /// Options of every verb.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Options of every verb.
#[derive(Args, Clone, Debug)]
pub(crate) struct Global {
    /// Manifest to use [default: BACKPLANE_MANIFEST, the user's, the system's, or the one beside the program]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) manifest: Option<PathBuf>,
    /// Log more: -v what is done, -vv every detail
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// No notices; errors still show
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// How logs are written to standard error
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
    /// Colour: auto is on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Color,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Generate one reply
    Run(Run),
    /// Hold a conversation
    Chat(Chat),
    /// The likeliest next tokens: one forward pass a prompt
    Classify(Classify),
    /// Token ids of a text
    Tokenize(Tokenize),
    /// Text of token ids
    Detokenize(Detokenize),
    /// List models on disk
    Models(Models),
    /// What a model is, without reading its weights
    Show(Show),
    /// Write a model as a GGUF file
    Convert(Convert),
    /// How well a model foretells a text
    Perplexity(Perplexity),
    /// How fast a model runs here, and what this machine could do at most
    Bench(Bench),
    /// Texts as vectors
    Embed(Embed),
    /// Write what attention compares, by layer and head
    InspectAttention(InspectAttention),
    /// Serve models over HTTP, as OpenAI's API has them
    Serve(Serve),
    /// Models that a running server has loaded
    Ps(Ps),
    /// Have a running server unload a model
    Stop(Stop),
    /// Every setting, its value, and where that comes from
    Config(Config),
    /// Which engines can run here, and why the others can't
    Plugins(Plugins),
    /// What models could run on here, and which engine would use it
    Devices(Devices),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  backplane completions bash > ~/.local/share/bash-completion/completions/backplane"
    )]
    Completions(Completions),
    /// Write the manual pages
    #[command(
        after_help = "Examples:\n  backplane man | man -l -\n  backplane man ~/.local/share/man/man1"
    )]
    Man(Man),
}

/// Which backend, and how it loads the model.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Loading {
    /// Use this backend and no other [default: the first available in the manifest's order]
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<String>,
    /// Context in tokens [default: the model's, at most the manifest's `context`, which is 4096 unless set]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = values::count)]
    pub(crate) context: Option<u32>,
    /// Threads [default: the backend's choice]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = values::count)]
    pub(crate) threads: Option<u32>,
    /// How keys and values are kept: f32, f16 or q8_0 [default: the backend's choice]
    #[arg(long, value_name = "TYPE")]
    pub(crate) cache_type: Option<String>,
    /// Store matrices in this type while loading, such as q8_0 or q4_k; none keeps them [default: the backend's choice]
    #[arg(long, value_name = "TYPE")]
    pub(crate) quantize: Option<String>,
}

impl Loading {
    /// As [`Loading::options`], of a backend that offers this capability.
    pub(crate) fn options_for(&self, capability: &'static str) -> crate::registry::ModelOptions {
        crate::registry::ModelOptions {
            needs: Some(capability),
            ..self.options()
        }
    }

    /// As the registry takes it.
    pub(crate) fn options(&self) -> crate::registry::ModelOptions {
        let extra = [
            ("cache_type", &self.cache_type),
            ("quantize", &self.quantize),
        ];
        let given = |(name, value): (&str, &Option<String>)| {
            let value = value.as_deref()?;
            Some((name.to_owned(), value.into()))
        };
        crate::registry::ModelOptions {
            backend: self.backend.clone(),
            load: LoadOptions {
                context: self.context,
                threads: self.threads,
                extra: extra.into_iter().filter_map(given).collect(),
                ..LoadOptions::default()
            },
            ..Default::default()
        }
    }
}

/// How tokens are chosen and when to stop.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Generating {
    /// Most tokens to generate [default: up to the end of the context]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = values::whole)]
    pub(crate) max_tokens: Option<u32>,
    /// 0 always takes the likeliest token [default: 0.8]
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = values::temperature)]
    pub(crate) temperature: Option<f32>,
    /// Keep the K likeliest tokens; 0 keeps all [default: 40]
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = values::whole)]
    pub(crate) top_k: Option<u32>,
    /// Keep the likeliest tokens whose probabilities reach P [default: 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = values::probability)]
    pub(crate) top_p: Option<f32>,
    /// Drop tokens less likely than P times the likeliest [default: 0.05]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = values::probability)]
    pub(crate) min_p: Option<f32>,
    /// Make tokens seen lately less likely; 1 is off [default: 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = values::penalty)]
    pub(crate) repeat_penalty: Option<f32>,
    /// Same seed, same text [default: drawn anew; --json tells it]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = values::seed)]
    pub(crate) seed: Option<u64>,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
}

impl Generating {
    /// As a request has it.
    pub(crate) fn options(&self) -> GenerateOptions {
        GenerateOptions {
            sampling: Sampling {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                repeat_penalty: self.repeat_penalty,
                seed: self.seed,
                ..Sampling::default()
            },
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            ..GenerateOptions::default()
        }
    }
}

/// `run`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    backplane run model.gguf \"Why is the sky blue?\"\n  \
    echo \"Summarise this: ...\" | backplane run smollm2\n  \
    backplane run model.gguf --raw --temperature 0 --max-tokens 32 \"Once upon a time\"\n  \
    backplane run model.gguf --json --seed 7 \"Name three colours.\"\n  \
    backplane run smollm2 --server http://127.0.0.1:8080 \"Why is the sky blue?\"")]
pub(crate) struct Run {
    /// A path, or a name in the model folder
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) model: String,
    /// What to say; `-` or nothing reads standard input
    pub(crate) prompt: Option<String>,
    /// Give the model the prompt as it is, without its chat template
    #[arg(long, conflicts_with = "system")]
    pub(crate) raw: bool,
    /// Token ids instead of a prompt, taken as they are
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["prompt", "system"], value_parser = values::token)]
    pub(crate) tokens: Vec<u32>,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Which backend, and how it loads.
    #[command(flatten)]
    pub(crate) loading: Loading,
    /// How tokens are chosen.
    #[command(flatten)]
    pub(crate) generating: Generating,
    /// Log probabilities of each token and of the N likeliest others
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = values::whole)]
    pub(crate) logprobs: Option<u32>,
    #[command(flatten)]
    pub(crate) elsewhere: Elsewhere,
    /// One JSON object: text, tokens, finish_reason, usage, timings, backend, selection
    #[arg(long)]
    pub(crate) json: bool,
}

/// `chat`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  backplane chat model.gguf\n  backplane chat smollm2 --system \"You are terse.\"\n\n\
    In the conversation, /help lists the commands; Ctrl-C stops a reply, Ctrl-D leaves."
)]
pub(crate) struct Chat {
    #[command(flatten)]
    pub(crate) elsewhere: Elsewhere,
    /// A path, or a name in the model folder; without it, /load one
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) model: Option<String>,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Which backend, and how it loads.
    #[command(flatten)]
    pub(crate) loading: Loading,
    /// How tokens are chosen.
    #[command(flatten)]
    pub(crate) generating: Generating,
}

/// `classify`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  backplane classify model.gguf \"The capital of France is\"\n  \
    backplane classify model.gguf --top 3 --json \"Two plus two is\" \"The sky is\"\n  \
    backplane classify model.gguf --tokens 504,3575 --logits --json"
)]
pub(crate) struct Classify {
    /// A path, or a name in the model folder
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) model: String,
    /// One or more prompts; without any, standard input is one
    pub(crate) prompts: Vec<String>,
    /// Token ids as a further prompt; may be given several times
    #[arg(long, value_name = "IDS", value_parser = values::tokens)]
    pub(crate) tokens: Vec<values::Tokens>,
    /// How many of the likeliest next tokens to show
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value = "5", value_parser = values::whole)]
    pub(crate) top: u32,
    /// The logits of the whole vocabulary at the last position (with --json)
    #[arg(long, requires = "json")]
    pub(crate) logits: bool,
    /// Which backend, and how it loads.
    #[command(flatten)]
    pub(crate) loading: Loading,
    /// One JSON object: results
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tokenize`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  backplane tokenize model.gguf \"Hello there\"\n  \
    backplane tokenize model.gguf --special --json \"<|im_start|>user\""
)]
pub(crate) struct Tokenize {
    /// A path, or a name in the model folder
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) model: String,
    /// The text; `-` or nothing reads standard input
    pub(crate) text: Option<String>,
    /// Read special tokens in the text
    #[arg(long)]
    pub(crate) special: bool,
    /// Don't add what the model wants around a text (beginning of sequence ...)
    #[arg(long)]
    pub(crate) no_bos: bool,
    /// Use this backend and no other
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<String>,
    /// One JSON object: tokens, each with its text
    #[arg(long)]
    pub(crate) json: bool,
}

/// `detokenize`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  backplane detokenize model.gguf 504,3575,282")]
pub(crate) struct Detokenize {
    /// A path, or a name in the model folder
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) model: String,
    /// Token ids, separated by commas or spaces
    #[arg(required = true, value_name = "IDS", value_parser = values::tokens)]
    pub(crate) tokens: Vec<values::Tokens>,
    /// Write special tokens out
    #[arg(long)]
    pub(crate) special: bool,
    /// Use this backend and no other
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<String>,
    /// One JSON object: text
    #[arg(long)]
    pub(crate) json: bool,
}

/// `models`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  backplane models\n  backplane models ~/Downloads /data/models --json"
)]
pub(crate) struct Models {
    /// Folders to look in, with all below them [default: the model folder]
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) folders: Vec<PathBuf>,
    /// One JSON object: models
    #[arg(long)]
    pub(crate) json: bool,
}

/// `show`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  backplane show model.gguf\n  backplane show model.gguf --json | jq .metadata\n  \
    backplane show model-folder --check"
)]
pub(crate) struct Show {
    /// A path, or a name in the model folder
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) model: String,
    /// Use this backend and no other
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<String>,
    /// Read all weights instead, and say what is wrong with them
    #[arg(long)]
    pub(crate) check: bool,
    /// One JSON object with everything
    #[arg(long)]
    pub(crate) json: bool,
}

/// `convert`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  backplane convert model-folder model.gguf\n  \
    backplane convert model.gguf small.gguf --quantize q4_k"
)]
pub(crate) struct Convert {
    /// The model: a path, or a name in the model folder
    #[arg(value_name = "SRC", value_hint = ValueHint::AnyPath)]
    pub(crate) source: String,
    /// The GGUF file to write
    #[arg(value_name = "DST", value_hint = ValueHint::FilePath)]
    pub(crate) destination: PathBuf,
    /// Store matrices in this type, such as q8_0, q4_0 or q4_k; none keeps them [default: none]
    #[arg(long, value_name = "TYPE")]
    pub(crate) quantize: Option<String>,
    /// Replace a file that is there
    #[arg(long)]
    pub(crate) force: bool,
    /// Use this backend and no other
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<String>,
    /// One JSON object: destination, tensors, bytes, notes
    #[arg(long)]
    pub(crate) json: bool,
}

/// `perplexity`.
#[derive(Args, Debug)]
#[command(
    after_help = "The text is cut into pieces of --context tokens (512 unless given); the second half of each is scored, as \
    llama-perplexity does.\n\nExamples:\n  backplane perplexity model.gguf text.txt\n  \
    backplane perplexity model.gguf text.txt --context 256 --cache-type q8_0 --json"
)]
pub(crate) struct Perplexity {
    /// A path, or a name in the model folder
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) model: String,
    /// The text, UTF-8; `-` reads standard input
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Which backend, and how it loads.
    #[command(flatten)]
    pub(crate) loading: Loading,
    /// One JSON object: perplexity, standard_error, tokens, chunks, scored
    #[arg(long)]
    pub(crate) json: bool,
}

/// `bench`.
#[derive(Args, Debug)]
#[command(
    after_help = "Prompts are token ids by a fixed rule; generating begins with one token and is greedy. Runs of both isolations \
    take turns.\n\nExamples:\n  backplane bench model.gguf --threads 1,2\n  \
    backplane bench model.gguf --prompt 128 --generate 32 --batch 1,8 --repeat 9 --json\n  \
    backplane bench model.gguf --batch 1 --isolation in-process,process\n  \
    backplane bench model.gguf --batch 1 --speculate"
)]
pub(crate) struct Bench {
    /// A path, or a name in the model folder
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) model: String,
    /// Tokens of the prompt that is read
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, default_value = "512", value_parser = values::count)]
    pub(crate) prompt: u32,
    /// Tokens that a sequence generates, after its first
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, default_value = "128", value_parser = values::count)]
    pub(crate) generate: u32,
    /// Numbers of threads, one after the other [default: the backend's choice]
    #[arg(long, value_name = "N,...", allow_negative_numbers = true, value_delimiter = ',', value_parser = values::count)]
    pub(crate) threads: Vec<u32>,
    /// How many sequences generate together
    #[arg(long, value_name = "N,...", allow_negative_numbers = true, value_delimiter = ',', default_value = "1,2,4,8", value_parser = values::count)]
    pub(crate) batch: Vec<u32>,
    /// Runs of each
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value = "5", value_parser = values::count)]
    pub(crate) repeat: u32,
    /// Where the backend runs, in-process or process; both are compared [default: as the manifest says]
    #[arg(long, value_name = "WHERE,...", value_delimiter = ',', value_parser = values::isolation)]
    pub(crate) isolation: Vec<Isolation>,
    /// Also generate a repetitive and a creative text with and without drafts (speculative decoding)
    #[arg(long)]
    pub(crate) speculate: bool,
    /// Use this backend and no other
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<String>,
    /// One JSON object: runs, each with its rates, shares, limits and memory
    #[arg(long)]
    pub(crate) json: bool,
}

/// `embed`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  backplane embed model.gguf \"The sky is blue\" \"Grass is green\" --json\n  \
    echo \"One text\" | backplane embed model.gguf --pooling last"
)]
pub(crate) struct Embed {
    /// A path, or a name in the model folder
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) model: String,
    /// One or more texts; `-` or nothing reads standard input as one
    #[arg(value_name = "TEXT")]
    pub(crate) texts: Vec<String>,
    /// Which hidden states make the vector: mean, last or cls (the first)
    #[arg(long, value_name = "POOLING", default_value = "mean", value_parser = values::pooling)]
    pub(crate) pooling: values::PoolingName,
    /// Leave the vectors as long as they are, instead of length 1
    #[arg(long)]
    pub(crate) no_normalize: bool,
    /// Which backend, and how it loads.
    #[command(flatten)]
    pub(crate) loading: Loading,
    /// One JSON object: pooling, dimensions, results
    #[arg(long)]
    pub(crate) json: bool,
}

/// `inspect-attention`.
#[derive(Args, Debug)]
#[command(
    after_help = "The file has layers.N.queries [heads, positions, head_dim] and layers.N.keys [kv_heads, positions, head_dim] \
    after rotation, and tokens.\n\nExamples:\n  \
    backplane inspect-attention model.gguf \"The sky is blue\" --out states.safetensors\n  \
    backplane inspect-attention model.gguf --tokens 1,2,3 --layers 0,5 --out states.safetensors --force"
)]
pub(crate) struct InspectAttention {
    /// A path, or a name in the model folder
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) model: String,
    /// The prompt, given as it is; `-` or nothing reads standard input
    pub(crate) prompt: Option<String>,
    /// Token ids instead of a prompt, taken as they are
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "prompt", value_parser = values::token)]
    pub(crate) tokens: Vec<u32>,
    /// Only these layers, from 0 [default: all]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = values::whole)]
    pub(crate) layers: Vec<u32>,
    /// The safetensors file to write
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) out: PathBuf,
    /// Replace a file that is there
    #[arg(long)]
    pub(crate) force: bool,
    /// Which backend, and how it loads.
    #[command(flatten)]
    pub(crate) loading: Loading,
    /// One JSON object: file, tokens, layers
    #[arg(long)]
    pub(crate) json: bool,
}

/// `devices`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  backplane devices\n  backplane devices --json")]
pub(crate) struct Devices {
    /// One JSON object: devices, notice
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plugins`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  backplane plugins\n  backplane plugins explain model.gguf\n  backplane plugins check && echo ready"
)]
pub(crate) struct Plugins {
    /// What about them; nothing lists them.
    #[command(subcommand)]
    pub(crate) verb: Option<PluginsVerb>,
    /// One JSON object: manifest, plugins
    #[arg(long)]
    pub(crate) json: bool,
}

/// Verbs of `plugins`.
#[derive(Debug, Subcommand)]
pub(crate) enum PluginsVerb {
    /// Every candidate, and why it won or lost
    Explain(Explain),
    /// Forget a plugin's crashes, so that it is tried again
    #[command(
        after_help = "A plugin that crashed, hung or took too much memory three times within ten minutes is quarantined: its module is \
        started no more on the same devices with the same driver. `backplane plugins` says when and why.\n\nExample:\n  \
        backplane plugins clear rocm"
    )]
    Clear {
        /// The plugin's name
        name: String,
        /// One JSON object: plugin, cleared
        #[arg(long)]
        json: bool,
    },
    /// Open and probe all; exit code 3 if none is available
    Check {
        /// One JSON object: available, plugins
        #[arg(long)]
        json: bool,
    },
    /// Have a running server look at its manifest and plugins again
    Reload(Reload),
    /// Tools of those who write plugins.
    #[cfg(unix)]
    #[command(flatten)]
    Author(author::Author),
}

/// `plugins explain`.
#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// For this model; without it, by availability alone
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) model: Option<String>,
    /// As if this backend were asked for
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<String>,
    /// The trace as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `completions`.
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// Which shell
    pub(crate) shell: clap_complete::Shell,
}

/// `man`.
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Folder to write all pages into; without it the main page goes to standard output
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) folder: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_verb_has_examples() {
        for verb in Arguments::command().get_subcommands() {
            let help = verb
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                help.contains("Example"),
                "{}: no example in its help",
                verb.get_name()
            );
        }
    }

    #[test]
    fn options_reach_the_request() {
        let line = "backplane run m p --temperature 0 --top-k 7 --top-p 0.5 --min-p 0.1 --repeat-penalty 1.5 --seed 3 \
                    --max-tokens 9 --stop a --stop b --backend cpu --context 64 --threads 2 --cache-type f16 --quantize q4_k";
        let Verb::Run(run) = Arguments::parse_from(line.split_whitespace()).verb else {
            panic!("not run")
        };
        let options = run.generating.options();
        let sampling = &options.sampling;
        assert_eq!(
            (sampling.temperature, sampling.top_k, sampling.top_p),
            (Some(0.0), Some(7), Some(0.5))
        );
        assert_eq!(
            (sampling.min_p, sampling.repeat_penalty, sampling.seed),
            (Some(0.1), Some(1.5), Some(3))
        );
        assert_eq!(
            (options.max_tokens, options.stop.as_slice()),
            (Some(9), &["a".to_owned(), "b".to_owned()][..])
        );
        let loading = run.loading.options();
        assert_eq!(loading.backend.as_deref(), Some("cpu"));
        assert_eq!(
            (loading.load.context, loading.load.threads),
            (Some(64), Some(2))
        );
        let extra = serde_json::json!({ "cache_type": "f16", "quantize": "q4_k" });
        assert_eq!(serde_json::json!(loading.load.extra), extra);
    }
}
