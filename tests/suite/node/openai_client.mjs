// OpenAI's official client for Node against two servers: `node openai_client.mjs URL MODEL ECHO KEY`, as in `openai_client.py`.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [url, model, echoUrl, key] = process.argv.slice(2);
const to = (url, apiKey) => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0, timeout: 60_000 });
const client = to(url, "none");
const echo = to(echoUrl, key);
const ECHO = "model.echo";

// Chat, whole, and by the client's own accumulator.
const messages = [{ role: "user", content: "What is the capital of France?" }];
const asked = { model, messages, temperature: 0, max_completion_tokens: 24 };
const whole = await client.chat.completions.create(asked);
const text = whole.choices[0].message.content;
assert.match(text, /Paris/);
let deltas = "";
const runner = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
runner.on("content", (delta) => (deltas += delta));
const final = await runner.finalChatCompletion();
assert.equal(final.choices[0].message.content, text);
assert.equal(deltas, text);
assert.equal((await runner.totalUsage()).completion_tokens, whole.usage.completion_tokens);

// Embeddings.
const vector = (await client.embeddings.create({ model, input: "The sky is blue" })).data[0].embedding;
const length = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
assert.ok(Math.abs(length - 1) < 1e-3 && vector.length > 100);

// Responses.
const responded = await client.responses.create({ model, input: "What is the capital of France?", temperature: 0, max_output_tokens: 24 });
assert.match(responded.output_text, /Paris/);
const stream = client.responses.stream({ model, input: "What is the capital of France?", temperature: 0, max_output_tokens: 200 });
let streamed = "";
stream.on("response.output_text.delta", (event) => (streamed += event.delta));
const response = await stream.finalResponse();
assert.equal(response.output_text, streamed);
assert.equal(response.status, "completed");

// Structured output, into the caller's own types.
const Place = z.object({ city: z.enum(["London", "Paris", "Rome"]), river: z.boolean() });
const where = [{ role: "user", content: "Where is the Eiffel Tower?" }];
const parsed = await client.chat.completions.parse({
  model, messages: where, temperature: 0, max_completion_tokens: 200, response_format: zodResponseFormat(Place, "place"),
});
const place = Place.parse(parsed.choices[0].message.parsed);
const held = client.chat.completions.stream({
  model, messages: where, temperature: 0, max_completion_tokens: 200, response_format: zodResponseFormat(Place, "place"),
});
assert.deepEqual((await held.finalChatCompletion()).choices[0].message.parsed, place);
const respondedTo = await client.responses.parse({
  model, input: "Where is the Eiffel Tower?", temperature: 0, max_output_tokens: 200, text: { format: zodTextFormat(Place, "place") },
});
Place.parse(respondedTo.output_parsed);

// Tools: what is said calls them, what they give is said again, and the client's own loop takes part.
const call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>';
let asked_of;
const weather = zodFunction({
  name: "weather",
  description: "of a city",
  parameters: z.object({ city: z.string() }),
  function: ({ city }) => {
    asked_of = city;
    return "sunny";
  },
});
for (const stream of [false, true]) {
  asked_of = undefined;
  const runner = echo.chat.completions.runTools({ model: ECHO, temperature: 0, stream, tools: [weather], messages: [{ role: "user", content: call }] });
  assert.match(await runner.finalContent(), /sunny/);
  assert.equal(asked_of, "Paris");
}

// Errors are the client's own exceptions.
const refused = async (kind, made) => {
  let found;
  await assert.rejects(made, (error) => {
    found = error;
    return error instanceof kind;
  });
  return found;
};
const hi = { model, messages: [{ role: "user", content: "Hi" }] };
const missing = await refused(OpenAI.NotFoundError, client.chat.completions.create({ ...hi, model: "another" }));
assert.equal(missing.code, "model_not_found");
const unknown = await refused(OpenAI.BadRequestError, client.chat.completions.create({ ...hi, frobnicate: 1 }));
assert.equal(unknown.param, "frobnicate");
const long = [{ role: "user", content: "word ".repeat(20000) }];
const overflow = await refused(OpenAI.BadRequestError, client.chat.completions.create({ model, messages: long, stream: true }));
assert.equal(overflow.code, "context_length_exceeded");
await refused(OpenAI.PermissionDeniedError, client.models.list({ headers: { origin: "http://evil.example" } }));
await refused(OpenAI.AuthenticationError, to(echoUrl, "wrong").models.list());
await refused(OpenAI.InternalServerError, echo.embeddings.create({ model: ECHO, input: "x" }));
const many = { model: ECHO, prompt: "x".repeat(1000), n: 128, max_tokens: 1000, stream: true };
const busy = [await echo.completions.create(many), await echo.completions.create(many)];
await refused(OpenAI.RateLimitError, echo.chat.completions.create({ ...hi, model: ECHO }));
busy.forEach((stream) => stream.controller.abort());
console.log("fine");
