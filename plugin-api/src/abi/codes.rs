//! Numbers where a later minor version may know more than this one.

use crate::{capability, types};
use abi_stable::StableAbi;

macro_rules! codes {
    ($(#[$about:meta])* $name:ident => $sdk:ty, else $fallback:expr; { $($(#[$doc:meta])* $constant:ident = $number:literal => $value:path,)* }) => {
        $(#[$about])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, StableAbi)]
        pub struct $name(pub u32);

        impl $name {
            $($(#[$doc])* pub const $constant: Self = Self($number);)*

            /// Whether this contract version has a constant for the number.
            pub fn is_known(self) -> bool {
                matches!(self, $(Self::$constant)|*)
            }
        }

        impl From<$sdk> for $name {
            fn from(value: $sdk) -> Self {
                match value { $($value => Self::$constant,)* }
            }
        }

        impl From<$name> for $sdk {
            fn from(code: $name) -> Self {
                match code {
                    $($name::$constant => $value,)*
                    _ => $fallback,
                }
            }
        }
    };
}

codes! {
    /// A [`VerdictState`](types::VerdictState). An unknown number counts as incompatible. Since 1.0.
    VerdictState => types::VerdictState, else types::VerdictState::Incompatible; {
        /// Ready.
        AVAILABLE = 0 => types::VerdictState::Available,
        /// Switched off.
        DISABLED = 1 => types::VerdictState::Disabled,
        /// No such file.
        ABSENT = 2 => types::VerdictState::Absent,
        /// Not a module for this host.
        INCOMPATIBLE = 3 => types::VerdictState::Incompatible,
        /// A library it needs is missing.
        MISSING_LIBRARY = 4 => types::VerdictState::MissingLibrary,
        /// No device.
        NO_DEVICE = 5 => types::VerdictState::NoDevice,
        /// A device of an unsupported kind.
        ARCHITECTURE_UNSUPPORTED = 6 => types::VerdictState::ArchitectureUnsupported,
        /// Not trusted.
        UNTRUSTED = 7 => types::VerdictState::Untrusted,
        /// Wrong options.
        MISCONFIGURED = 8 => types::VerdictState::Misconfigured,
        /// Crashed or panicked.
        CRASHED = 9 => types::VerdictState::Crashed,
        /// Kept out.
        QUARANTINED = 10 => types::VerdictState::Quarantined,
    }
}

codes! {
    /// An [`ErrorCode`](types::ErrorCode). An unknown number counts as internal. Since 1.0.
    ErrorCode => types::ErrorCode, else types::ErrorCode::Internal; {
        /// Something else.
        INTERNAL = 0 => types::ErrorCode::Internal,
        /// The request is wrong.
        INVALID_REQUEST = 1 => types::ErrorCode::InvalidRequest,
        /// A field that can't be honoured.
        UNSUPPORTED_FIELD = 2 => types::ErrorCode::UnsupportedField,
        /// Longer than the context.
        CONTEXT_OVERFLOW = 3 => types::ErrorCode::ContextOverflow,
        /// The model file can't be used.
        MODEL_UNUSABLE = 4 => types::ErrorCode::ModelUnusable,
        /// The template refused the messages.
        TEMPLATE_REFUSED = 5 => types::ErrorCode::TemplateRefused,
        /// The device failed.
        DEVICE = 6 => types::ErrorCode::Device,
        /// Not enough memory.
        OUT_OF_MEMORY = 7 => types::ErrorCode::OutOfMemory,
        /// Try later.
        BUSY = 8 => types::ErrorCode::Busy,
        /// The model was closed.
        CLOSED = 9 => types::ErrorCode::Closed,
        /// The plugin panicked.
        PANICKED = 10 => types::ErrorCode::Panicked,
        /// The backend lacks this function.
        UNSUPPORTED = 11 => types::ErrorCode::Unsupported,
        /// The caller stopped the call. Since 1.1.
        CANCELLED = 12 => types::ErrorCode::Cancelled,
    }
}

codes! {
    /// A [`FinishReason`](types::FinishReason). An unknown number counts as stopped. Since 1.0.
    FinishReason => types::FinishReason, else types::FinishReason::Stop; {
        /// An end or stop token.
        STOP = 0 => types::FinishReason::Stop,
        /// A stop string.
        STOP_STRING = 1 => types::FinishReason::StopString,
        /// As many tokens as were asked for.
        LENGTH = 2 => types::FinishReason::Length,
        /// The context is full.
        CONTEXT_FULL = 3 => types::FinishReason::ContextFull,
        /// The consumer asked to stop.
        CANCELLED = 4 => types::FinishReason::Cancelled,
    }
}

codes! {
    /// A [`Control`](types::Control). An unknown number counts as stop. Since 1.0.
    Control => types::Control, else types::Control::Stop; {
        /// Go on.
        CONTINUE = 0 => types::Control::Continue,
        /// Stop.
        STOP = 1 => types::Control::Stop,
    }
}

codes! {
    /// A [`Pooling`](capability::Pooling). An unknown number is refused. Since 1.1.
    Pooling => capability::Pooling, else capability::Pooling::Mean; {
        /// The mean over all positions.
        MEAN = 0 => capability::Pooling::Mean,
        /// The last position.
        LAST = 1 => capability::Pooling::Last,
        /// The first position.
        CLS = 2 => capability::Pooling::Cls,
    }
}

/// Kind of an [`Event`](super::data::Event). An unknown kind is skipped. Since 1.0.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, StableAbi)]
pub struct EventKind(pub u32);

impl EventKind {
    /// Prompt tokens were read.
    pub const PREFILL: Self = Self(0);
    /// A token was chosen.
    pub const TOKEN: Self = Self(1);
    /// Text that was held back.
    pub const TEXT: Self = Self(2);
}

/// Kind of a [`Prompt`](super::data::Prompt). An unknown kind is refused. Since 1.0.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, StableAbi)]
pub struct PromptKind(pub u32);

impl PromptKind {
    /// Text; what looks like a special token is text.
    pub const TEXT: Self = Self(0);
    /// Text; what looks like a special token is one.
    pub const TEXT_WITH_SPECIAL: Self = Self(1);
    /// Token ids.
    pub const TOKENS: Self = Self(2);
}

/// Severity of a log record. An unknown level counts as trace. Since 1.0.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, StableAbi)]
pub struct LogLevel(pub u32);

impl LogLevel {
    /// Something failed.
    pub const ERROR: Self = Self(0);
    /// Something looks wrong.
    pub const WARN: Self = Self(1);
    /// Worth knowing.
    pub const INFO: Self = Self(2);
    /// For developers.
    pub const DEBUG: Self = Self(3);
    /// Very fine.
    pub const TRACE: Self = Self(4);
}

impl From<tracing::Level> for LogLevel {
    fn from(level: tracing::Level) -> Self {
        match level {
            tracing::Level::ERROR => Self::ERROR,
            tracing::Level::WARN => Self::WARN,
            tracing::Level::INFO => Self::INFO,
            tracing::Level::DEBUG => Self::DEBUG,
            _ => Self::TRACE,
        }
    }
}

impl From<LogLevel> for tracing::Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::ERROR => Self::ERROR,
            LogLevel::WARN => Self::WARN,
            LogLevel::INFO => Self::INFO,
            LogLevel::DEBUG => Self::DEBUG,
            _ => Self::TRACE,
        }
    }
}
