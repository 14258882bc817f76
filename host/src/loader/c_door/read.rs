//! What a module tells through callbacks: copied, and checked.

use backplane_plugin_api::abi::codes;
use backplane_plugin_api::c::{self, Text};
use backplane_plugin_api::{
    Classification, DeviceInfo, Error, ErrorCode, Metrics, ModelInfo, TensorSummary, TokenLogprob,
    Verdict,
};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What was told so far, and what was wrong with it.
#[derive(Default)]
pub(super) struct Told<T> {
    value: T,
    wrong: Option<Error>,
}

impl<T> Told<T> {
    pub(super) fn into_result(self) -> Result<T, Error> {
        match self.wrong {
            Some(error) => Err(error),
            None => Ok(self.value),
        }
    }
}

pub(super) fn not_utf8(what: &str) -> Error {
    Error::new(
        ErrorCode::Internal,
        format!("the plugin gave text that is not UTF-8: {what}"),
    )
}

/// # Safety
/// The text is lent.
pub(super) unsafe fn text(text: Text) -> Result<String, Error> {
    // SAFETY: promised by the caller.
    let bytes = unsafe { text.bytes() };
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => {
            let start = String::from_utf8_lossy(&bytes[..bytes.len().min(32)]);
            Err(not_utf8(&format!("{start:?}")))
        }
    }
}

/// Takes what a callback was given; what can't be read, and a panic, become the error of the call.
///
/// # Safety
/// `to` points to a `Told<T>` that nothing else uses meanwhile.
unsafe fn take<T>(to: *mut c_void, read: impl FnOnce(&mut T) -> Result<(), Error>) {
    // SAFETY: promised by the caller.
    let told = unsafe { &mut *to.cast::<Told<T>>() };
    let taken = catch_unwind(AssertUnwindSafe(|| read(&mut told.value)));
    let error = match taken {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error,
        Err(_) => Error::new(
            ErrorCode::Internal,
            "what the plugin told could not be read",
        ),
    };
    told.wrong.get_or_insert(error);
}

pub(super) unsafe extern "C" fn tell_verdict(
    to: *mut c_void,
    state: u32,
    message: Text,
    action: Text,
) {
    // SAFETY: `to` is what the call was given; the texts are lent for this callback.
    unsafe {
        take::<Option<Verdict>>(to, |told| {
            let line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
            *told = Some(Verdict {
                state: codes::VerdictState(state).into(),
                message: line(self::text(message)?),
                action: line(self::text(action)?),
            });
            Ok(())
        });
    }
}

pub(super) unsafe extern "C" fn tell_device(to: *mut c_void, device: *const c::Device) {
    // SAFETY: `to` is what the call was given; the device, and all that it points to, is lent for this callback.
    unsafe {
        take::<Vec<DeviceInfo>>(to, |told| {
            let device = c::prefix(device);
            told.push(DeviceInfo {
                id: text(device.id)?,
                name: text(device.name)?,
                kind: text(device.kind)?,
                memory_total: device.memory_total.as_ref().copied(),
                memory_free: device.memory_free.as_ref().copied(),
                details: pairs(device.details, device.details_count)?
                    .into_iter()
                    .collect(),
            });
            Ok(())
        });
    }
}

/// # Safety
/// The pairs are lent.
unsafe fn pairs(pairs: *const c::Pair, count: usize) -> Result<Vec<(String, String)>, Error> {
    // SAFETY: promised by the caller.
    unsafe {
        let pairs = c::slice(pairs, count).iter();
        pairs
            .map(|pair| Ok((text(pair.key)?, text(pair.value)?)))
            .collect()
    }
}

/// # Safety
/// The text is lent, where there is one.
unsafe fn optional(at: *const Text) -> Result<Option<String>, Error> {
    // SAFETY: promised by the caller.
    unsafe { at.as_ref().map(|it| text(*it)).transpose() }
}

pub(super) fn no_info() -> ModelInfo {
    ModelInfo {
        name: String::new(),
        path: Default::default(),
        format: String::new(),
        architecture: String::new(),
        quantization: String::new(),
        parameters: 0,
        file_bytes: 0,
        context_length: 0,
        loaded_context: 0,
        vocabulary: 0,
        chat_template: None,
        unsupported: None,
        details: Vec::new(),
        metadata: Vec::new(),
        tensors: Vec::new(),
        warnings: Vec::new(),
    }
}

pub(super) unsafe extern "C" fn tell_model_info(to: *mut c_void, info: *const c::ModelInfo) {
    // SAFETY: `to` is what the call was given; the information, and all that it points to, is lent for this callback.
    unsafe {
        take::<Option<ModelInfo>>(to, |told| {
            let info = c::prefix(info);
            let tensors = c::slice(info.tensors, info.tensors_count)
                .iter()
                .map(|tensor| {
                    Ok(TensorSummary {
                        name: text(tensor.name)?,
                        storage: text(tensor.storage)?,
                        shape: c::slice(tensor.shape, tensor.shape_count).to_vec(),
                        bytes: tensor.bytes,
                    })
                });
            let warnings = c::slice(info.warnings, info.warnings_count).iter();
            *told = Some(ModelInfo {
                name: text(info.name)?,
                format: text(info.format)?,
                architecture: text(info.architecture)?,
                quantization: text(info.quantization)?,
                parameters: info.parameters,
                file_bytes: info.file_bytes,
                context_length: info.context_length,
                loaded_context: info.loaded_context,
                vocabulary: info.vocabulary,
                chat_template: optional(info.chat_template)?,
                unsupported: optional(info.unsupported)?,
                details: pairs(info.details, info.details_count)?,
                metadata: pairs(info.metadata, info.metadata_count)?,
                tensors: tensors.collect::<Result<_, Error>>()?,
                warnings: warnings
                    .map(|warning| text(*warning))
                    .collect::<Result<_, Error>>()?,
                ..no_info()
            });
            Ok(())
        });
    }
}

/// # Safety
/// The log probabilities, and their texts, are lent.
pub(super) unsafe fn logprobs(
    list: *const c::Logprob,
    count: usize,
) -> Result<Vec<TokenLogprob>, Error> {
    // SAFETY: promised by the caller.
    unsafe {
        let list = c::slice(list, count).iter();
        list.map(|one| {
            Ok(TokenLogprob {
                token: one.token,
                text: text(one.text)?,
                logprob: one.logprob,
            })
        })
        .collect()
    }
}

pub(super) unsafe extern "C" fn tell_classification(
    to: *mut c_void,
    prompt_tokens: u64,
    top: *const c::Logprob,
    top_count: usize,
    logits: *const f32,
    logits_count: usize,
) {
    // SAFETY: `to` is what the call was given; all else is lent for this callback.
    unsafe {
        take::<Option<Classification>>(to, |told| {
            *told = Some(Classification {
                prompt_tokens,
                top: logprobs(top, top_count)?,
                logits: (!logits.is_null()).then(|| c::slice(logits, logits_count).to_vec()),
            });
            Ok(())
        });
    }
}

pub(super) unsafe extern "C" fn tell_text(to: *mut c_void, text: Text) {
    // SAFETY: `to` is what the call was given; the text is lent for this callback.
    unsafe {
        take::<Vec<u8>>(to, |told| {
            *told = text.bytes().to_vec();
            Ok(())
        });
    }
}

pub(super) unsafe extern "C" fn tell_tokens(to: *mut c_void, tokens: *const u32, count: usize) {
    // SAFETY: `to` is what the call was given; the tokens are lent for this callback.
    unsafe {
        take::<Vec<u32>>(to, |told| {
            *told = c::slice(tokens, count).to_vec();
            Ok(())
        });
    }
}

pub(super) unsafe extern "C" fn tell_metric(to: *mut c_void, name: Text, value: f64) {
    // SAFETY: `to` is what the call was given; the name is lent for this callback.
    unsafe {
        take::<Metrics>(to, |told| {
            told.insert(text(name)?, value);
            Ok(())
        });
    }
}
