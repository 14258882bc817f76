// Anthropic's official client for Node against two servers, as in `openai_client.mjs`.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const [url, model, echoUrl, key] = process.argv.slice(2);
const to = (baseURL, apiKey) => new Anthropic({ baseURL, apiKey, maxRetries: 0, timeout: 60_000 });
const client = to(url, "none");
const echo = to(echoUrl, key);
const ECHO = "model.echo";

const asked = { model, temperature: 0, max_tokens: 24, messages: [{ role: "user", content: "What is the capital of France?" }] };
const whole = await client.messages.create(asked);
const text = whole.content[0].text;
assert.match(text, /Paris/);
let deltas = "";
const final = await client.messages.stream(asked).on("text", (delta) => (deltas += delta)).finalMessage();
assert.equal(deltas, text);
assert.deepEqual(final.content[0].text, text);
assert.equal(final.stop_reason, whole.stop_reason);

const call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>';
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "weather", description: "of a city", input_schema: schema }];
const called = await echo.messages.stream({ model: ECHO, temperature: 0, max_tokens: 500, tools, messages: [{ role: "user", content: call }] }).finalMessage();
assert.equal(called.stop_reason, "tool_use");
assert.deepEqual(called.content.at(-1).input, { city: "Paris" });

const refused = (kind, made) => assert.rejects(made, (error) => error instanceof kind && Boolean(error.requestID));
await refused(Anthropic.NotFoundError, client.messages.create({ ...asked, model: "another" }));
await refused(Anthropic.PermissionDeniedError, client.messages.create(asked, { headers: { origin: "http://evil.example" } }));
await refused(Anthropic.BadRequestError, client.messages.create({ ...asked, frobnicate: 1 }));
await refused(Anthropic.AuthenticationError, to(echoUrl, "wrong").messages.create({ ...asked, model: ECHO }));
await refused(Anthropic.InternalServerError, echo.messages.countTokens({ model: ECHO, messages: asked.messages }));
console.log("fine");
