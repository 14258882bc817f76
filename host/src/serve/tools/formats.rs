//! How model families write the calls of tools, as data.

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
    /// Whether the template takes ids of nine letters and digits alone.
    pub(super) short_ids: bool,
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
    short_ids: false,
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

/// Every format, the more particular first.
const FORMATS: &[&Format] = &[
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
        name: "mistral, named",
        known_by: &["[TOOL_CALLS]", "[ARGS]"],
        open: "[TOOL_CALLS]",
        body: Body::Named {
            before: "",
            middle: "[ARGS]",
            after: "",
        },
        short_ids: true,
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
        short_ids: true,
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
