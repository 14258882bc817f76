// What the page asks of its server. Paths are relative, so that the page works below a prefix as well.

import { keep, kept } from "./elements.js";

const KEY = "backplane-key";

/** What went wrong, in the server's own words where it has said any. */
export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** The key that is sent, for as long as this tab is open. */
export function setKey(key) {
  keep("sessionStorage", KEY, key || null);
}

export function hasKey() {
  return kept("sessionStorage", KEY, null) !== null;
}

async function ask(path, options = {}) {
  const headers = new Headers(options.headers);
  const key = kept("sessionStorage", KEY, null);
  if (key) headers.set("authorization", `Bearer ${key}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer. Does it still run?");
  }
  return response;
}

async function refusal(response) {
  const text = await response.text().catch(() => "");
  let message = text.trim().split("\n")[0];
  try {
    const { error } = JSON.parse(text);
    message = error?.message ?? error ?? message;
  } catch {
    // No JSON: its first line.
  }
  return new Problem(message || `The server answers with ${response.status}.`, response.status);
}

/** A JSON answer. */
export async function get(path) {
  const response = await ask(path);
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** Why the server is not ready; nothing once it is. */
export async function unready() {
  const response = await ask("readyz");
  if (response.ok) return [];
  if (response.status !== 503) return [];
  const { reasons } = await response.json().catch(() => ({}));
  return reasons ?? [];
}

/** The events of a chat, as they come. */
export async function* chat(request, signal) {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Problem(event.error.message ?? "The reply failed.");
    yield event;
  }
  throw new Problem("The reply was cut off.");
}

/** The data of server-sent events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      let step;
      try {
        step = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Problem("The server broke off.");
      }
      if (step.done) return;
      const lines = (rest + step.value).split(/\r\n|\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "" && data.length > 0) {
          yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
