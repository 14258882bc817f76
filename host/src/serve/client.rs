//! A running server, as the command line asks it: operators' questions, and replies as they come.

use crate::error::{Error, Result, plain};
use crate::registry::Reply;
use axum::body::{Body, HttpBody, to_bytes};
use axum::http::{Method, StatusCode, header};
use backplane_plugin_api::sdk::Sink;
use backplane_plugin_api::types::{
    self, ChatRequest, Completion, Control, ErrorCode, Event, FinishReason, GenerateOptions,
    GenerateRequest, Prompt, TokenLogprob,
};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::pin::Pin;
use std::time::Duration;

mod secure;

use secure::Secure;
pub use secure::Trust;

/// Most bytes of an answer that is read whole, and of one event.
const MOST: usize = 64 << 20;
/// How often somebody who waits for a reply is asked whether it is still wanted.
const POLL: Duration = Duration::from_millis(50);

/// A server.
#[derive(Clone, Debug)]
pub struct Client {
    /// Host and port.
    authority: String,
    key: Option<String>,
    /// `None` speaks plain HTTP.
    secure: Option<Secure>,
}

/// Why a server does not answer.
struct Silent {
    why: String,
    /// What would help; empty where it is not there at all.
    action: &'static str,
}

impl From<String> for Silent {
    fn from(why: String) -> Self {
        Self { why, action: "" }
    }
}

type Raw<T> = std::result::Result<T, Silent>;

impl Client {
    /// The server at `http://HOST:PORT` or `https://HOST[:PORT]`, with a key where it asks for one, and by https who is trusted
    /// and how this side proves who it is.
    ///
    /// # Errors
    /// It is no such address, the key can't stand in a header, or the files of `trust` are no use.
    pub fn new(url: &str, key: Option<String>, trust: &Trust) -> Result<Self> {
        let Some((secure, authority)) = authority(url) else {
            let message = format!("{url:?} is no address of a server");
            let action = "write it as http://127.0.0.1:8080, or https://example.com";
            return Err(Error::usage(message, action));
        };
        if let Some(option) = trust.given().filter(|_| !secure) {
            let message = format!("{url} is asked without TLS");
            let action = format!("write it as https://, or leave {option} out");
            return Err(Error::usage(message, action));
        }
        let plain = |key: &String| key.bytes().all(|byte| (0x21..0x7f).contains(&byte));
        if key.as_ref().is_some_and(|key| !plain(key)) {
            let message = "the key of the server has characters that no header takes";
            return Err(Error::usage(
                message,
                "write it without spaces and line ends",
            ));
        }
        let host = authority.rsplit_once(':').map_or("", |(host, _)| host);
        let secure = secure.then(|| Secure::new(host, trust)).transpose()?;
        Ok(Self {
            authority,
            key,
            secure,
        })
    }

    /// The address.
    pub fn url(&self) -> String {
        let scheme = if self.secure.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.authority)
    }

    /// What is at a path, as JSON.
    ///
    /// # Errors
    /// No server answers, or it refuses.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.ask(&Method::GET, path, None)
    }

    /// Has something done, with a body that is JSON; the answer, whole.
    ///
    /// # Errors
    /// No server answers, or it refuses.
    pub fn post(&self, path: &str, body: Option<&Value>) -> Result<Value> {
        self.ask(&Method::POST, path, body)
    }

    fn ask(&self, method: &Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let asked: Raw<(StatusCode, Value)> = runtime()?.block_on(async {
            let response = self.send(method, path, body).await?;
            let status = response.status();
            Ok((status, whole(response.into_body()).await?))
        });
        let (status, answer) = asked.map_err(|silent| self.silent(&silent))?;
        match status.is_success() {
            true => Ok(answer),
            false => Err(self.refusal(status, &answer)),
        }
    }

    /// The next message of a chat by a model of the server.
    ///
    /// # Errors
    /// No server answers, or it refuses.
    pub fn chat(&self, model: &str, request: &ChatRequest, sink: &mut dyn Sink) -> Result<Reply> {
        let mut body = asked(model, &request.options);
        body["messages"] = json!(request.messages);
        // As models give it that are not served.
        body["reasoning_format"] = json!("none");
        if !request.template_options.is_empty() {
            body["chat_template_kwargs"] = json!(request.template_options);
        }
        if let Some(others) = request.options.logprobs {
            body["logprobs"] = json!(true);
            body["top_logprobs"] = json!(asked_for(others));
        }
        self.reply(
            "/v1/chat/completions",
            &body,
            request.options.logprobs,
            sink,
        )
    }

    /// The continuation of a prompt by a model of the server.
    ///
    /// # Errors
    /// No server answers, or it refuses.
    pub fn generate(
        &self,
        model: &str,
        request: &GenerateRequest,
        sink: &mut dyn Sink,
    ) -> Result<Reply> {
        let mut body = asked(model, &request.options);
        body["prompt"] = match &request.prompt {
            Prompt::Text { text, .. } => json!(text),
            Prompt::Tokens(tokens) => json!(tokens),
        };
        if body["max_tokens"].is_null() {
            body["max_tokens"] = json!(-1);
        }
        if let Some(others) = request.options.logprobs {
            body["logprobs"] = json!(asked_for(others));
        }
        self.reply("/v1/completions", &body, request.options.logprobs, sink)
    }

    fn reply(
        &self,
        path: &str,
        body: &Value,
        others: Option<u32>,
        sink: &mut dyn Sink,
    ) -> Result<Reply> {
        let mut taken = Taken {
            others: others.unwrap_or_default() as usize,
            ..Taken::default()
        };
        let result: Raw<Option<(StatusCode, Value)>> = runtime()?.block_on(async {
            let sent = self.send(&Method::POST, path, Some(body));
            let mut sent = std::pin::pin!(sent);
            // The head comes late where the model is loaded first: it may be called off until then.
            let response = loop {
                match tokio::time::timeout(POLL, &mut sent).await {
                    Ok(response) => break response?,
                    Err(_) if sink.should_stop() => return Ok(None),
                    Err(_) => {}
                }
            };
            let status = response.status();
            if !status.is_success() {
                return Ok(Some((status, whole(response.into_body()).await?)));
            }
            taken.read(response.into_body(), sink).await?;
            Ok(None)
        });
        match result {
            Err(silent) => Err(self.silent(&silent)),
            Ok(Some((status, answer))) => Err(self.refusal(status, &answer)),
            Ok(None) => match taken.failed.take() {
                Some(answer) => Err(self.refusal(StatusCode::INTERNAL_SERVER_ERROR, &answer)),
                None => Ok(taken.reply()),
            },
        }
    }

    async fn send(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> Raw<hyper::Response<Incoming>> {
        let stream = tokio::net::TcpStream::connect(&self.authority).await;
        let stream = stream.map_err(|error| plain(&error))?;
        let (mut sender, ended) = match &self.secure {
            None => open(stream).await?,
            Some(secure) => {
                let stream = secure.connector.connect(secure.name.clone(), stream).await;
                open(stream.map_err(|error| secure.said(&error))?).await?
            }
        };
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.authority);
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let body = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Body::from(body.to_string())
            }
            None => Body::empty(),
        };
        let request = request.body(body).map_err(|error| error.to_string())?;
        match sender.send_request(request).await {
            Ok(answer) => Ok(answer),
            // That a server refuses a client comes with what it says first, and may be known to the connection alone.
            Err(error) => {
                let ended = tokio::time::timeout(POLL, ended).await;
                let ended = ended.ok().and_then(std::result::Result::ok);
                let refused = self.secure.as_ref().and_then(|secure| {
                    let by_connection = || secure.refused(&ended?.err()?);
                    secure.refused(&error).or_else(by_connection)
                });
                Err(refused.unwrap_or_else(|| error.to_string().into()))
            }
        }
    }

    fn silent(&self, Silent { why, action }: &Silent) -> Error {
        if !action.is_empty() {
            return Error::usage(format!("{}: {why}", self.url()), *action);
        }
        let message = format!("no server answers at {}: {why}", self.url());
        let action = "start one with `backplane serve`, or name it by --server";
        Error::usage(message, action)
    }

    fn refusal(&self, status: StatusCode, answer: &Value) -> Error {
        let why = answer["error"]["message"].as_str();
        let why = why.unwrap_or("it gives no reason");
        let message = format!("{} refuses with {}: {why}", self.url(), status.as_u16());
        match status.as_u16() {
            404 if answer["error"]["code"] == "model_not_found" => Error::ModelNotFound {
                message,
                action: String::new(),
            },
            401 => Error::usage(message, "set BACKPLANE_API_KEY to a key of the server"),
            400..500 if status != StatusCode::TOO_MANY_REQUESTS => Error::usage(message, ""),
            _ => {
                let error = match status.as_u16() {
                    429 | 503 => types::Error::new(ErrorCode::Busy, message),
                    _ => types::Error::new(ErrorCode::Internal, message)
                        .with_action("see what the server has logged"),
                };
                let backend = "server".to_owned();
                Error::Backend { backend, error }
            }
        }
    }
}

/// What sends requests, and how their connection ended.
type Opened = (
    hyper::client::conn::http1::SendRequest<Body>,
    tokio::task::JoinHandle<hyper::Result<()>>,
);

/// Speaks HTTP by a connection.
async fn open<S>(stream: S) -> Raw<Opened>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = shaken.map_err(|error| error.to_string())?;
    Ok((sender, tokio::spawn(connection)))
}

/// Whether a server is asked by TLS, and its host and port.
fn authority(url: &str) -> Option<(bool, String)> {
    let (secure, rest) = match url.strip_prefix("https://") {
        Some(rest) => (true, rest),
        None => (false, url.strip_prefix("http://").unwrap_or(url)),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let bare = rest.rsplit_once(']').map_or(rest, |(_, port)| port);
    let whole = match bare.contains(':') || !secure {
        true => rest.to_owned(),
        false => format!("{rest}:443"),
    };
    let (host, port) = whole.rsplit_once(':')?;
    let right = !host.is_empty()
        && !host.contains(['/', '@', '?', '#', ' '])
        && port.parse::<u16>().is_ok();
    right.then(|| (secure, whole.clone()))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| Error::usage(plain(&error), ""))
}

async fn whole(body: Incoming) -> Raw<Value> {
    let bytes = to_bytes(Body::new(body), MOST).await;
    let bytes = bytes.map_err(|error| error.to_string())?;
    Ok(serde_json::from_slice(&bytes).unwrap_or_default())
}

/// What all requests have.
fn asked(model: &str, options: &GenerateOptions) -> Value {
    let sampling = &options.sampling;
    let mut body = json!({
        "model": model,
        "stream": true,
        "stream_options": { "include_usage": true },
        "max_tokens": options.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repeat_penalty,
        "repeat_last_n": sampling.repeat_last_n,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": sampling.seed,
    });
    if !options.stop.is_empty() {
        body["stop"] = json!(options.stop);
    }
    // What is not given is not sent.
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    body
}

/// What has come of a stream.
#[derive(Default)]
struct Taken {
    text: String,
    logprobs: Vec<Vec<TokenLogprob>>,
    /// Of how many tokens beside each that came.
    others: usize,
    usage: Value,
    ours: Value,
    cancelled: bool,
    /// An error in mid-stream.
    failed: Option<Value>,
}

impl Taken {
    async fn read(&mut self, mut body: Incoming, sink: &mut dyn Sink) -> Raw<()> {
        let mut pending: Vec<u8> = Vec::new();
        loop {
            let next = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            let frame = match tokio::time::timeout(POLL, next).await {
                Err(_) if sink.should_stop() => {
                    self.cancelled = true;
                    return Ok(());
                }
                Err(_) => continue,
                Ok(None) => return Err("the reply was broken off".to_owned().into()),
                Ok(Some(frame)) => frame.map_err(|error| error.to_string())?,
            };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            pending.extend_from_slice(&data);
            if pending.len() > MOST {
                return Err("an event is too long".to_owned().into());
            }
            while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                let Some(data) = line.trim_end().strip_prefix("data: ") else {
                    continue;
                };
                if data == "[DONE]" {
                    return Ok(());
                }
                let event: Value = serde_json::from_str(data)
                    .map_err(|error| format!("an event is no JSON: {error}"))?;
                if !event["error"].is_null() {
                    self.failed = Some(event);
                    return Ok(());
                }
                if self.take(&event, sink) == Control::Stop {
                    self.cancelled = true;
                    return Ok(());
                }
            }
        }
    }

    fn take(&mut self, event: &Value, sink: &mut dyn Sink) -> Control {
        if event["usage"].is_object() {
            self.usage = event["usage"].clone();
        }
        let choice = &event["choices"][0];
        for ours in [&event["backplane"], &choice["backplane"]] {
            if ours.is_object() {
                self.ours = ours.clone();
            }
        }
        self.logprobs
            .extend(logprobs(&choice["logprobs"], self.others));
        let text = choice["delta"]["content"].as_str();
        let text = text.or(choice["text"].as_str()).unwrap_or_default();
        if text.is_empty() {
            return Control::Continue;
        }
        self.text.push_str(text);
        sink.on_event(Event::Text { text })
    }

    fn reply(self) -> Reply {
        let count = |name: &str| self.usage[name].as_u64().unwrap_or_default();
        let seconds = |name: &str| self.ours["timings"][name].as_f64().unwrap_or_default();
        let reason = serde_json::from_value(self.ours["finish_reason"].clone());
        let told = |name: &str| self.ours[name].as_str().map(str::to_owned);
        Reply {
            completion: Completion {
                finish_reason: match self.cancelled {
                    true => FinishReason::Cancelled,
                    false => reason.unwrap_or(FinishReason::Stop),
                },
                stop_string: told("stop_string"),
                prompt_tokens: count("prompt_tokens"),
                cached_tokens: self.usage["prompt_tokens_details"]["cached_tokens"]
                    .as_u64()
                    .unwrap_or_default(),
                completion_tokens: count("completion_tokens"),
                seed: self.ours["seed"].as_u64().unwrap_or_default(),
                queue_s: seconds("queue_s"),
                prefill_s: seconds("prefill_s"),
                decode_s: seconds("decode_s"),
            },
            tokens: None,
            backend: told("backend").unwrap_or_default(),
            notice: told("notice"),
            text: self.text,
            logprobs: self.logprobs,
        }
    }
}

/// Of how many of the likeliest tokens a server is asked for so many beside the one that came, which is likely to be one of them. Twenty
/// are the most that servers tell.
fn asked_for(others: u32) -> u32 {
    others.saturating_add(1).min(20).max(others)
}

/// Log probabilities of either endpoint: each token, then the likeliest others; ids are not told.
fn logprobs(value: &Value, others: usize) -> Vec<Vec<TokenLogprob>> {
    let one = |text: &Value, logprob: &Value| TokenLogprob {
        token: TokenLogprob::UNKNOWN,
        text: text.as_str().unwrap_or_default().to_owned(),
        logprob: logprob.as_f64().unwrap_or_default() as f32,
    };
    let token = |chosen: TokenLogprob, mut likeliest: Vec<TokenLogprob>| {
        let own = |it: &TokenLogprob| it.text == chosen.text && it.logprob == chosen.logprob;
        if let Some(own) = likeliest.iter().position(own) {
            likeliest.remove(own);
        }
        likeliest.sort_by(|one, other| other.logprob.total_cmp(&one.logprob));
        likeliest.truncate(others);
        std::iter::once(chosen).chain(likeliest).collect()
    };
    if let Some(content) = value["content"].as_array() {
        let of = |it: &Value| {
            let likeliest = it["top_logprobs"].as_array().into_iter().flatten();
            let likeliest = likeliest.map(|other| one(&other["token"], &other["logprob"]));
            token(one(&it["token"], &it["logprob"]), likeliest.collect())
        };
        return content.iter().map(of).collect();
    }
    let tokens = value["tokens"].as_array().into_iter().flatten();
    let of = |(at, text): (usize, &Value)| {
        let likeliest = value["top_logprobs"][at].as_object().into_iter().flatten();
        let likeliest = likeliest.map(|(text, logprob)| one(&json!(text), logprob));
        token(one(text, &value["token_logprobs"][at]), likeliest.collect())
    };
    tokens.enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (url, expected) in [
            ("http://127.0.0.1:8080", Some((false, "127.0.0.1:8080"))),
            ("http://localhost:1/", Some((false, "localhost:1"))),
            ("[::1]:80", Some((false, "[::1]:80"))),
            ("https://127.0.0.1:8080", Some((true, "127.0.0.1:8080"))),
            ("https://example.com/", Some((true, "example.com:443"))),
            ("https://[::1]", Some((true, "[::1]:443"))),
            ("https://example.com/v1", None),
            ("https://", None),
            ("http://127.0.0.1", None),
            ("http://127.0.0.1:80800", None),
            ("http://127.0.0.1:80/v1", None),
            ("http://user@127.0.0.1:80", None),
            (":80", None),
            ("", None),
        ] {
            let expected =
                expected.map(|(secure, address): (bool, &str)| (secure, address.to_owned()));
            assert_eq!(authority(url), expected, "{url}");
        }
        let nobody = Trust::default();
        let wrong = Client::new("nowhere", None, &nobody);
        assert!(wrong.is_err_and(|error| error.exit_code() == 2));
        let key = Some("a b".to_owned());
        assert!(Client::new("http://127.0.0.1:1", key, &nobody).is_err());
        let file = || Some("/nowhere/at-all.pem".into());
        let authority = Trust {
            authority: file(),
            ..Trust::default()
        };
        let certificate = Trust {
            certificate: file(),
            ..Trust::default()
        };
        let said = |url, trust| Client::new(url, None, trust).unwrap_err().line();
        let plain = "http://127.0.0.1:1";
        assert!(said(plain, &authority).contains("leave --server-ca out"));
        assert!(said(plain, &certificate).contains("leave --server-cert out"));
        let secure = "https://127.0.0.1:1";
        assert!(said(secure, &authority).contains("/nowhere/at-all.pem"));
        assert!(said(secure, &certificate).contains("--server-key is missing"));
    }

    #[test]
    fn streams_become_replies() {
        let mut taken = Taken {
            others: 1,
            ..Taken::default()
        };
        let mut said = String::new();
        let mut sink = |event: Event<'_>| {
            if let Event::Text { text } = event {
                said.push_str(text);
            }
            Control::Continue
        };
        for event in [
            json!({ "choices": [{ "delta": { "role": "assistant", "content": "" } }] }),
            json!({ "choices": [{ "delta": { "content": "Hi" }, "logprobs": { "content": [
                { "token": "Hi", "logprob": -0.5, "top_logprobs": [{ "token": "Ho", "logprob": -1.5 }] }] } }] }),
            json!({ "choices": [{ "text": "!", "logprobs": { "tokens": ["!"], "token_logprobs": [-0.25],
                "top_logprobs": [{ "?": -2.0 }] } }] }),
            json!({ "choices": [{ "delta": {} }], "backplane": { "backend": "cpu", "seed": 7,
                "finish_reason": "length", "timings": { "decode_s": 0.5 } } }),
            json!({ "choices": [], "usage": { "prompt_tokens": 3, "completion_tokens": 2 } }),
        ] {
            assert_eq!(taken.take(&event, &mut sink), Control::Continue);
        }
        let reply = taken.reply();
        assert_eq!((said.as_str(), reply.text.as_str()), ("Hi!", "Hi!"));
        assert_eq!(reply.logprobs.len(), 2);
        assert_eq!(
            (
                reply.logprobs[0][1].text.as_str(),
                reply.logprobs[1][1].logprob
            ),
            ("Ho", -2.0)
        );
        let completion = reply.completion;
        assert_eq!(completion.finish_reason, FinishReason::Length);
        assert_eq!((completion.seed, completion.prompt_tokens), (7, 3));
        assert_eq!(reply.backend, "cpu");
    }
}
