//! The C door: `c/backplane_plugin.h`, as Rust sees it. The header documents every member; the names here are the same, without the
//! prefix.
//!
//! Growth: structures begin with their size. [`prefix`] reads as much of a structure as its writer had, and leaves the rest zero.

use std::ffi::{c_char, c_void};

/// Version of the door.
pub const MAJOR: u32 = 1;
/// Version of the door.
pub const MINOR: u32 = 0;
/// The exported symbol.
pub const SYMBOL: &str = "backplane_plugin_v1";

/// The exported function.
pub type Plugin = unsafe extern "C" fn(major: u32, minor: u32) -> *const Api;

/// A backend of the plugin.
#[repr(C)]
#[derive(Debug)]
pub struct Backend {
    _opaque: [u8; 0],
}

/// A model of the plugin.
#[repr(C)]
#[derive(Debug)]
pub struct Model {
    _opaque: [u8; 0],
}

/// An error of the plugin.
#[repr(C)]
#[derive(Debug)]
pub struct Error {
    _opaque: [u8; 0],
}

/// A structure that begins with its size, and of which all zeros is a value.
///
/// # Safety
/// `#[repr(C)]`, `struct_size: usize` first, and every member is a number, a pointer, an optional function or a structure of
/// those, so that zeros are a value of it.
pub unsafe trait Growing {}

/// As much of the structure at `from` as its `struct_size` covers and this version knows; zeros for the rest.
///
/// # Safety
/// `from` points to a structure of some minor version, whose first `struct_size` bytes can be read.
pub unsafe fn prefix<T: Growing>(from: *const T) -> T {
    // SAFETY: zeros are a value of `T` (trait).
    let mut value: T = unsafe { std::mem::zeroed() };
    // SAFETY: the size is its first member (trait), and can be read (caller).
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    let size = size.min(size_of::<T>());
    // SAFETY: the caller says that so many bytes can be read; `value` has room for them.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast::<u8>(), size)
    };
    value
}

macro_rules! structures {
    ($($(#[$about:meta])* $name:ident { $($member:ident: $kind:ty,)* })*) => {$(
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct $name {
            $(pub $member: $kind,)*
        }
    )*};
}

structures! {
    /// `backplane_text`.
    Text { data: *const c_char, size: usize, }
    /// `backplane_context`.
    Context { struct_size: usize, options_json: Text, module_dir: Text, }
    /// `backplane_pair`.
    Pair { key: Text, value: Text, }
    /// `backplane_device`.
    Device {
        struct_size: usize,
        id: Text,
        name: Text,
        kind: Text,
        memory_total: *const u64,
        memory_free: *const u64,
        details: *const Pair,
        details_count: usize,
    }
    /// `backplane_tensor`.
    Tensor { name: Text, storage: Text, shape: *const u64, shape_count: usize, bytes: u64, }
    /// `backplane_model_info`.
    ModelInfo {
        struct_size: usize,
        name: Text,
        format: Text,
        architecture: Text,
        quantization: Text,
        parameters: u64,
        file_bytes: u64,
        context_length: u64,
        loaded_context: u64,
        vocabulary: u64,
        chat_template: *const Text,
        unsupported: *const Text,
        details: *const Pair,
        details_count: usize,
        metadata: *const Pair,
        metadata_count: usize,
        tensors: *const Tensor,
        tensors_count: usize,
        warnings: *const Text,
        warnings_count: usize,
    }
    /// `backplane_load_options`.
    LoadOptions {
        struct_size: usize,
        context: *const u32,
        threads: *const u32,
        parallel: *const u32,
        device: *const Text,
        extra_json: Text,
    }
    /// `backplane_token_bias`.
    TokenBias { token: u32, bias: f32, }
    /// `backplane_options`.
    Options {
        struct_size: usize,
        temperature: *const f32,
        top_k: *const u32,
        top_p: *const f32,
        min_p: *const f32,
        repeat_penalty: *const f32,
        repeat_last_n: *const u32,
        presence_penalty: *const f32,
        frequency_penalty: *const f32,
        seed: *const u64,
        logit_bias: *const TokenBias,
        logit_bias_count: usize,
        max_tokens: *const u32,
        stop: *const Text,
        stop_count: usize,
        stop_tokens: *const u32,
        stop_tokens_count: usize,
        ignore_end: bool,
        logprobs: *const u32,
        grammar_kind: *const Text,
        grammar_source: *const Text,
        extra_json: Text,
    }
    /// `backplane_prompt`.
    Prompt { struct_size: usize, text: *const Text, special: bool, tokens: *const u32, tokens_count: usize, }
    /// `backplane_message`.
    Message { struct_size: usize, role: Text, content: *const Text, extra_json: Text, }
    /// `backplane_chat`.
    Chat {
        struct_size: usize,
        messages: *const *const Message,
        messages_count: usize,
        tools_json: *const Text,
        template_options_json: Text,
    }
    /// `backplane_logprob`.
    Logprob { token: u32, text: Text, logprob: f32, }
    /// `backplane_event`.
    Event {
        struct_size: usize,
        kind: u32,
        done: u64,
        total: u64,
        token: *const u32,
        text: Text,
        logprobs: *const Logprob,
        logprobs_count: usize,
    }
    /// `backplane_sink`.
    Sink {
        struct_size: usize,
        to: *mut c_void,
        on_event: Option<unsafe extern "C" fn(*mut c_void, *const Event) -> bool>,
        should_stop: Option<unsafe extern "C" fn(*mut c_void) -> bool>,
    }
    /// `backplane_completion`.
    Completion {
        struct_size: usize,
        finish_reason: u32,
        stop_index: usize,
        prompt_tokens: u64,
        cached_tokens: u64,
        completion_tokens: u64,
        seed: u64,
        queue_s: f64,
        prefill_s: f64,
        decode_s: f64,
    }
}

// SAFETY: the macro writes `repr(C)`; the size is the first member of each of these, and zeros are a value.
unsafe impl Growing for Device {}
// SAFETY: as above.
unsafe impl Growing for ModelInfo {}
// SAFETY: as above.
unsafe impl Growing for Event {}
// SAFETY: as above.
unsafe impl Growing for Completion {}
// SAFETY: as above.
unsafe impl Growing for Api {}

/// `backplane_event.kind`: prompt tokens read.
pub const EVENT_PREFILL: u32 = 0;
/// `backplane_event.kind`: a token chosen.
pub const EVENT_TOKEN: u32 = 1;
/// `backplane_event.kind`: text that was held back.
pub const EVENT_TEXT: u32 = 2;

/// `backplane_verdict_fn`.
pub type TellVerdict =
    unsafe extern "C" fn(to: *mut c_void, state: u32, message: Text, action: Text);
/// `backplane_device_fn`.
pub type TellDevice = unsafe extern "C" fn(to: *mut c_void, device: *const Device);
/// `backplane_model_info_fn`.
pub type TellModelInfo = unsafe extern "C" fn(to: *mut c_void, info: *const ModelInfo);
/// `backplane_classification_fn`.
pub type TellClassification = unsafe extern "C" fn(
    to: *mut c_void,
    prompt_tokens: u64,
    top: *const Logprob,
    top_count: usize,
    logits: *const f32,
    logits_count: usize,
);
/// `backplane_text_fn`.
pub type TellText = unsafe extern "C" fn(to: *mut c_void, text: Text);
/// `backplane_tokens_fn`.
pub type TellTokens = unsafe extern "C" fn(to: *mut c_void, tokens: *const u32, count: usize);
/// `backplane_metric_fn`.
pub type TellMetric = unsafe extern "C" fn(to: *mut c_void, name: Text, value: f64);

macro_rules! api {
    ($($function:ident($($kind:ty),*) $(-> $gives:ty)?;)*) => {
        /// `backplane_api_v1`.
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct Api {
            pub struct_size: usize,
            pub major: u32,
            pub minor: u32,
            pub name: Text,
            pub version: Text,
            $(pub $function: Option<unsafe extern "C" fn($($kind),*) $(-> $gives)?>,)*
            pub get_extension: Option<unsafe extern "C" fn(*const c_char) -> *const c_void>,
        }

        impl Api {
            /// The first function of 1.0 that is not there.
            pub fn missing(&self) -> Option<&'static str> {
                $(if self.$function.is_none() {
                    return Some(stringify!($function));
                })*
                None
            }
        }
    };
}

api! {
    backend_new(*const Context, *mut *mut Backend) -> *mut Error;
    backend_free(*mut Backend);
    backend_probe(*mut Backend, TellVerdict, *mut c_void);
    backend_devices(*mut Backend, TellDevice, *mut c_void) -> *mut Error;
    backend_inspect(*mut Backend, Text, TellModelInfo, *mut c_void) -> *mut Error;
    backend_load(*mut Backend, Text, *const LoadOptions, *mut *mut Model) -> *mut Error;
    model_free(*mut Model);
    model_info(*mut Model, TellModelInfo, *mut c_void);
    model_generate(*mut Model, *const Prompt, *const Options, *const Sink, *mut Completion) -> *mut Error;
    model_chat(*mut Model, *const Chat, *const Options, *const Sink, *mut Completion) -> *mut Error;
    model_render_chat(*mut Model, *const Chat, TellText, *mut c_void) -> *mut Error;
    model_classify(*mut Model, *const Prompt, u32, bool, Text, TellClassification, *mut c_void) -> *mut Error;
    model_tokenize(*mut Model, Text, bool, bool, TellTokens, *mut c_void) -> *mut Error;
    model_detokenize(*mut Model, *const u32, usize, bool, TellText, *mut c_void) -> *mut Error;
    model_metrics(*mut Model, TellMetric, *mut c_void);
    model_close(*mut Model) -> *mut Error;
    error_code(*const Error) -> u32;
    error_message(*const Error) -> Text;
    error_field(*const Error) -> Text;
    error_action(*const Error) -> Text;
    error_free(*mut Error);
}

impl Text {
    /// No text.
    pub const EMPTY: Self = Self {
        data: std::ptr::null(),
        size: 0,
    };

    /// Lends bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr().cast(),
            size: bytes.len(),
        }
    }

    /// The bytes.
    ///
    /// # Safety
    /// `data` is valid for `size` bytes as long as `'a`, or `size` is 0.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: promised by the caller.
        unsafe { slice(self.data.cast(), self.size) }
    }
}

/// A slice; empty where the pointer is none.
///
/// # Safety
/// `data` is valid for `count` values as long as `'a`, or is null, or `count` is 0.
pub unsafe fn slice<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if data.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: promised by the caller; neither null nor empty.
    unsafe { std::slice::from_raw_parts(data, count) }
}

// Places on 64-bit machines, as a C compiler lays them out: a change here breaks every module that was built before it.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<Text>() == 16);
    assert!(size_of::<Device>() == 88);
    assert!(size_of::<ModelInfo>() == 192);
    assert!(size_of::<LoadOptions>() == 56);
    assert!(size_of::<Options>() == 184);
    assert!(size_of::<Prompt>() == 40);
    assert!(size_of::<Message>() == 48);
    assert!(size_of::<Chat>() == 48);
    assert!(size_of::<Event>() == 72);
    assert!(size_of::<Completion>() == 80);
    assert!(size_of::<Api>() == 16 + 32 + 22 * 8);
    assert!(std::mem::offset_of!(Options, ignore_end) == 136);
    assert!(std::mem::offset_of!(Event, text) == 40);
};
