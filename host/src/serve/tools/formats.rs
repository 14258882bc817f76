//! How model families write the calls of tools, as data.

use super::literal::{ESCAPED, Notation, PYTHON, QUOTED};
use super::tags::Tags;

/// How a family writes calls.
#[derive(Debug)]
pub(in crate::serve) struct Format {
    /// For people.
    pub(super) name: &'static str,
    /// What stands in the chat templates of the family, all of it.
    pub(super) known_by: &'static [&'static str],
    /// The mark before a call, or before all of them.
    pub(super) open: &'static str,
    /// The mark after it; empty where calls end with the reply.
    pub(super) close: &'static str,
    /// What stands between the marks and what they enclose, and between calls, as models write it; readers take any white space.
    pub(super) around: &'static str,
    pub(super) between: &'static str,
    /// What stands between the marks.
    pub(super) body: Body,
    /// Whether the template takes arguments as the text that they are, instead of as objects.
    pub(super) text_arguments: bool,
    /// Whether a reply may begin with a call without the mark.
    pub(super) bare: bool,
    /// Which ids calls have.
    pub(super) ids: Ids,
    /// Marks that models write besides, and that say nothing.
    pub(super) passed_over: &'static [&'static str],
}

/// Which ids calls have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ids {
    /// As OpenAI's.
    Long,
    /// Nine letters and digits: the template takes no others.
    Short,
    /// What the model writes, after `functions.` the name and the number of the call: `functions.f:0`.
    Numbered,
}

/// What stands between the marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// A JSON object, with the name and the arguments by these keys.
    Object {
        name: &'static str,
        arguments: &'static str,
    },
    /// A JSON array of such objects.
    List {
        name: &'static str,
        arguments: &'static str,
    },
    /// The name as it is, and the arguments as a JSON object, for each call with its own marks.
    Named {
        before: &'static str,
        /// Between name and arguments.
        middle: &'static str,
        after: &'static str,
    },
    /// Name and arguments in tags.
    Tagged(&'static Tags),
    /// A call as a programming language writes it.
    Literal(&'static Notation),
    /// A list of such calls, in brackets.
    Literals(&'static Notation),
    /// Messages in channels: thoughts, text and calls.
    Channels,
}

impl Body {
    /// Whether all calls stand in brackets.
    pub(super) fn is_list(self) -> bool {
        matches!(self, Self::List { .. } | Self::Literals(_))
    }
}

/// What most formats are like.
const PLAIN: Format = Format {
    name: "",
    known_by: &[],
    open: "",
    close: "",
    around: "",
    between: "",
    body: Body::Object {
        name: "name",
        arguments: "arguments",
    },
    text_arguments: false,
    bare: false,
    ids: Ids::Long,
    passed_over: &[],
};

/// The format of models that are told of it by a message, and of many that were trained on it.
pub(super) const GENERIC: &Format = &Format {
    name: "hermes",
    known_by: &["<tool_call>"],
    open: "<tool_call>",
    close: "</tool_call>",
    around: "\n",
    between: "\n",
    ..PLAIN
};

/// A call by itself: what engines are held to that take JSON schemas alone.
pub(super) const BARE: &Format = &Format {
    name: "json",
    bare: true,
    ..PLAIN
};

const LFM2: &Format = &Format {
    name: "lfm-2",
    known_by: &["<|tool_call_start|>", "<|tool_call_end|>"],
    open: "<|tool_call_start|>",
    close: "<|tool_call_end|>",
    between: ", ",
    body: Body::Literals(&PYTHON),
    ..PLAIN
};

/// Those of Qwen3-Coder, and of many after it.
const FUNCTION: Tags = Tags {
    name: ["<function=", ">"],
    key: ["<parameter=", ">"],
    value: ["", "</parameter>"],
    attributes: ["", ""],
    end: "</function>",
    around: "\n",
    behind: "\n",
    together: false,
};

/// Those of GLM.
const ARGUMENT: Tags = Tags {
    name: ["", ""],
    key: ["<arg_key>", "</arg_key>"],
    value: ["<arg_value>", "</arg_value>"],
    attributes: ["", ""],
    end: "",
    around: "",
    behind: "\n",
    together: false,
};

/// Those of MiniMax M2.
const INVOKE: Tags = Tags {
    name: ["<invoke name=\"", "\">"],
    key: ["<parameter name=\"", "\">"],
    value: ["", "</parameter>"],
    attributes: ["", ""],
    end: "</invoke>",
    around: "",
    behind: "\n",
    together: true,
};

/// Those of DeepSeek 3.2 and 4.
const DSML: Tags = Tags {
    name: ["<｜DSML｜invoke name=\"", "\">"],
    key: ["<｜DSML｜parameter name=\"", "\""],
    value: [">", "</｜DSML｜parameter>"],
    attributes: [" string=\"true\"", " string=\"false\""],
    end: "</｜DSML｜invoke>",
    around: "",
    behind: "\n",
    together: true,
};

/// That of gpt-oss.
const CHANNELS: &Format = &Format {
    name: "channels",
    known_by: &["<|start|>", "<|channel|>", "<|message|>"],
    body: Body::Channels,
    ..PLAIN
};

/// Every format, the more particular first.
const FORMATS: &[&Format] = &[
    CHANNELS,
    &Format {
        name: "seed",
        known_by: &["<seed:tool_call>", "<function="],
        open: "<seed:tool_call>",
        close: "</seed:tool_call>",
        around: "\n",
        between: "\n",
        body: Body::Tagged(&FUNCTION),
        ..PLAIN
    },
    &Format {
        name: "qwen-3-coder",
        known_by: &["<tool_call>", "<function=", "<parameter="],
        open: "<tool_call>",
        close: "</tool_call>",
        around: "\n",
        between: "\n",
        body: Body::Tagged(&FUNCTION),
        ..PLAIN
    },
    &Format {
        name: "glm, in lines",
        known_by: &["<tool_call>", "}\n<arg_key>"],
        open: "<tool_call>",
        close: "</tool_call>",
        between: "\n",
        body: Body::Tagged(&ARGUMENT),
        ..PLAIN
    },
    &Format {
        name: "glm",
        known_by: &["<tool_call>", "<arg_key>"],
        open: "<tool_call>",
        close: "</tool_call>",
        body: Body::Tagged(&Tags {
            behind: "",
            ..ARGUMENT
        }),
        ..PLAIN
    },
    &Format {
        name: "minimax-m2",
        known_by: &["<minimax:tool_call>", "<invoke name="],
        open: "<minimax:tool_call>",
        close: "</minimax:tool_call>",
        around: "\n",
        between: "\n",
        body: Body::Tagged(&INVOKE),
        ..PLAIN
    },
    &Format {
        name: "deepseek-3.2",
        known_by: &["｜DSML｜", "function_calls>"],
        open: "<｜DSML｜function_calls>",
        close: "</｜DSML｜function_calls>",
        around: "\n",
        between: "\n",
        body: Body::Tagged(&DSML),
        ..PLAIN
    },
    &Format {
        name: "deepseek-4",
        known_by: &["｜DSML｜", "tool_calls>"],
        open: "<｜DSML｜tool_calls>",
        close: "</｜DSML｜tool_calls>",
        around: "\n",
        between: "\n",
        body: Body::Tagged(&DSML),
        ..PLAIN
    },
    &Format {
        name: "kimi-k2",
        known_by: &[
            "<|tool_calls_section_begin|>",
            "<|tool_call_argument_begin|>",
        ],
        open: "<|tool_calls_section_begin|>",
        close: "<|tool_calls_section_end|>",
        body: Body::Named {
            before: "<|tool_call_begin|>functions.",
            middle: "<|tool_call_argument_begin|>",
            after: "<|tool_call_end|>",
        },
        ids: Ids::Numbered,
        ..PLAIN
    },
    &Format {
        name: "functiongemma",
        known_by: &["<start_function_call>", "<escape>"],
        open: "<start_function_call>",
        close: "<end_function_call>",
        body: Body::Literal(&ESCAPED),
        passed_over: &["<start_function_response>"],
        ..PLAIN
    },
    &Format {
        name: "gemma-4",
        known_by: &["<|tool_call>call:", "<|\"|>"],
        open: "<|tool_call>",
        close: "<tool_call|>",
        body: Body::Literal(&QUOTED),
        passed_over: &["<|tool_response>"],
        ..PLAIN
    },
    LFM2,
    &Format {
        known_by: &["<|tool_list_start|>"],
        ..*LFM2
    },
    &Format {
        known_by: &["<|im_start|>", "List of tools: ["],
        ..*LFM2
    },
    &Format {
        name: "python",
        known_by: &["[func_name1("],
        open: "<|python_start|>",
        between: ", ",
        body: Body::Literals(&PYTHON),
        bare: true,
        passed_over: &["<|python_end|>"],
        ..PLAIN
    },
    &Format {
        name: "llama-4",
        known_by: &["<|python_start|>", "\"parameters\": "],
        open: "<|python_start|>",
        body: Body::Object {
            name: "name",
            arguments: "parameters",
        },
        between: "; ",
        bare: true,
        passed_over: &["<|python_end|>"],
        ..PLAIN
    },
    &Format {
        name: "nemotron-2",
        known_by: &["<TOOLCALL>"],
        open: "<TOOLCALL>",
        close: "</TOOLCALL>",
        between: ", ",
        body: Body::List {
            name: "name",
            arguments: "arguments",
        },
        ..PLAIN
    },
    &Format {
        name: "phi-4, each",
        known_by: &["<|tool_call|>{\"name\"", "<|/tool_call|>"],
        open: "<|tool_call|>",
        close: "<|/tool_call|>",
        ..PLAIN
    },
    &Format {
        name: "phi-4",
        known_by: &["<|tool_call|>", "<|/tool_call|>"],
        open: "<|tool_call|>",
        close: "<|/tool_call|>",
        between: ", ",
        body: Body::List {
            name: "name",
            arguments: "arguments",
        },
        ..PLAIN
    },
    &Format {
        name: "granite-3",
        known_by: &["<|tool_call|>"],
        open: "<|tool_call|>",
        between: ", ",
        body: Body::List {
            name: "name",
            arguments: "arguments",
        },
        ..PLAIN
    },
    &Format {
        name: "mistral, named",
        known_by: &["[TOOL_CALLS]", "[ARGS]"],
        open: "[TOOL_CALLS]",
        body: Body::Named {
            before: "",
            middle: "[ARGS]",
            after: "",
        },
        ids: Ids::Short,
        ..PLAIN
    },
    &Format {
        name: "mistral",
        known_by: &["[TOOL_CALLS]"],
        open: "[TOOL_CALLS]",
        between: ", ",
        body: Body::List {
            name: "name",
            arguments: "arguments",
        },
        ids: Ids::Short,
        ..PLAIN
    },
    &Format {
        name: "deepseek",
        between: "\n",
        text_arguments: true,
        known_by: &["<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "```json"],
        open: "<｜tool▁calls▁begin｜>",
        close: "<｜tool▁calls▁end｜>",
        body: Body::Named {
            before: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            middle: "\n```json\n",
            after: "\n```<｜tool▁call▁end｜>",
        },
        ..PLAIN
    },
    &Format {
        name: "deepseek-3.1",
        text_arguments: true,
        known_by: &["<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"],
        open: "<｜tool▁calls▁begin｜>",
        close: "<｜tool▁calls▁end｜>",
        body: Body::Named {
            before: "<｜tool▁call▁begin｜>",
            middle: "<｜tool▁sep｜>",
            after: "<｜tool▁call▁end｜>",
        },
        ..PLAIN
    },
    &Format {
        name: "llama-3",
        known_by: &["<|python_tag|>", "\"parameters\": "],
        open: "<|python_tag|>",
        body: Body::Object {
            name: "name",
            arguments: "parameters",
        },
        between: "; ",
        bare: true,
        ..PLAIN
    },
    &Format {
        name: "command-r7b",
        known_by: &["<|START_ACTION|>", "tool_name"],
        open: "<|START_ACTION|>",
        close: "<|END_ACTION|>",
        between: ", ",
        body: Body::List {
            name: "tool_name",
            arguments: "parameters",
        },
        ..PLAIN
    },
    GENERIC,
];

/// The format of a model with this chat template; `None` where the template knows no tools.
pub(super) fn of_template(template: &str) -> Option<&'static Format> {
    let known = |format: &&Format| format.known_by.iter().all(|part| template.contains(part));
    FORMATS.iter().copied().find(known)
}

#[cfg(test)]
pub(super) fn named(name: &str) -> &'static Format {
    let mut all = FORMATS.iter().copied();
    all.find(|format| format.name == name).unwrap()
}
