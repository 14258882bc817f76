// The page of a server in a real browser: node page.mjs CHROMIUM URL FOLDER; pictures go to FOLDER.

import assert from "node:assert/strict";
import { join } from "node:path";
import { open } from "./browser.mjs";

const [chromium, url, folder] = process.argv.slice(2);
const browser = await open(chromium);
const { send, on, value, until, press, key } = browser;

const asked = [];
const complaints = [];
on("Network.requestWillBeSent", ({ request }) => asked.push(request));
on("Runtime.exceptionThrown", ({ exceptionDetails }) => complaints.push(exceptionDetails.exception?.description ?? exceptionDetails.text));
on("Runtime.consoleAPICalled", ({ type, args }) => complaints.push(`${type}: ${args.map((one) => one.value).join(" ")}`));
on("Log.entryAdded", ({ entry }) => complaints.push(`${entry.text} ${entry.url ?? ""}`));

const picture = (name) => browser.picture(join(folder, `${name}.png`));
const size = (width, height, mobile = false) => send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile });
const scheme = (value) => send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value }] });
const paper = () => value("getComputedStyle(document.body).backgroundColor");
const replies = "document.querySelectorAll('.assistant')";
const settled = "!document.querySelector('#messages [aria-busy]')";
const last = `[...${replies}].at(-1)`;
const sent = () => asked.filter(({ method }) => method === "POST").map(({ postData }) => JSON.parse(postData));

/** Loads the page again, until it is there. */
async function reload() {
  await value("window.before = true");
  await send("Page.reload");
  await until("!window.before && document.readyState === 'complete'");
}

/** Writes a message and sends it, as a user does. */
async function say(text) {
  await value("document.getElementById('message').focus()");
  await send("Input.insertText", { text });
  await key("Enter", 13);
}

/** Answers what is asked of a path until the function given back is called. */
async function instead(path, answer) {
  const paused = ({ requestId, request }) => {
    const { status = 200, type = "application/json", body } = answer(request) ?? {};
    if (body === undefined) return send("Fetch.continueRequest", { requestId });
    const responseHeaders = [{ name: "content-type", value: type }];
    return send("Fetch.fulfillRequest", { requestId, responseCode: status, responseHeaders, body: Buffer.from(body).toString("base64") });
  };
  current = paused;
  await send("Fetch.enable", { patterns: [{ urlPattern: `*${path}` }] });
  return () => send("Fetch.disable");
}
let current;
on("Fetch.requestPaused", (event) => current(event));

try {
  for (const domain of ["Page", "Runtime", "Log", "Network", "Accessibility"]) await send(`${domain}.enable`);
  await size(1280, 800);
  await scheme("light");
  await send("Page.navigate", { url });

  // It loads, and lists the models.
  await until("document.querySelector('#model option') && !document.getElementById('why').hidden");
  assert.equal(await value("document.getElementById('why-text').textContent"), "on cpu");
  const model = await value("document.getElementById('model').value");
  await picture("welcome-light");

  // Everything that can be pressed or written into has a name.
  const { nodes } = await send("Accessibility.getFullAXTree");
  const active = nodes.filter(({ role, ignored }) => !ignored && ["button", "textbox", "combobox", "spinbutton"].includes(role?.value));
  assert.ok(active.length >= 9, `${active.length} elements`);
  for (const { role, name } of active) assert.ok(name?.value, `a ${role.value} without a name`);

  // A reply streams in: its text grows, and what it took is told by the server.
  await value("Object.assign(document.getElementById('temperature'), { value: 0 }).dispatchEvent(new Event('input'))");
  await value("Object.assign(document.getElementById('max-tokens'), { value: 40 }).dispatchEvent(new Event('input'))");
  await say("What is the capital of France? Tell me a little of it.");
  await until(`${replies}.length === 1 && ${last}.querySelector('.said').textContent.length > 3`);
  const early = await value(`${last}.querySelector('.said').textContent`);
  await until(settled);
  const whole = await value(`${last}.querySelector('.said').textContent`);
  assert.ok(whole.length > early.length && whole.startsWith(early.trimEnd()), `${early} … ${whole}`);
  const facts = await value(`${last}.querySelector('.meta').textContent`);
  assert.match(facts, new RegExp(`^${model} on cpu · 40 tokens · [\\d.]+ tokens/s · first token after [\\d.]+ m?s · stopped at the most tokens`));
  // What is said once it has ended, to those who don't see it.
  assert.equal((await value("document.getElementById('announced').textContent")).replaceAll(/\s+/g, " ").trim(), whole.replaceAll(/\s+/g, " ").trim());

  // The next message has the conversation with it; a button stops its reply.
  await value("Object.assign(document.getElementById('max-tokens'), { value: '' }).dispatchEvent(new Event('input'))");
  await value("Object.assign(document.getElementById('system'), { value: 'You write long lists.' }).dispatchEvent(new Event('input'))");
  await say("Write a list of fifty animals, each with a sentence.");
  await until(`${replies}.length === 2 && ${last}.querySelector('.said').textContent.length > 80`);
  await picture("streaming-light");
  await press("#stop");
  await until(settled);
  assert.match(await value(`${last}.querySelector('.meta').textContent`), /stopped/);
  const [first, second] = sent();
  assert.deepEqual(first.messages.map(({ role }) => role), ["user"]);
  assert.deepEqual([first.temperature, first.max_tokens, second.max_tokens], [0, 40, undefined]);
  assert.deepEqual(second.messages.map(({ role }) => role), ["system", "user", "assistant", "user"]);
  assert.equal(second.messages[2].content, await value("JSON.parse(sessionStorage['backplane-talk'])[1].text"));

  // It is still there after a reload.
  await reload();
  await until(`${replies}.length === 2 && document.querySelector('#model option')`);
  assert.equal(await value(`${replies}[0].querySelector('.said').textContent`), whole);

  // Backends: who was chosen and why, who wasn't and what would mend it, and the device's memory.
  await press("#open-backends");
  await until("document.querySelectorAll('#backends-body .trace').length === 1");
  assert.equal(await value("document.querySelector('.trace .chosen b').textContent"), "cpu");
  assert.ok((await value("document.querySelector('.trace .chosen p').textContent")).length > 10);
  assert.ok(await value("document.querySelectorAll('.trace .lost p').length > 0 && document.querySelectorAll('#backends-body .mend').length > 0"));
  const meter = "document.querySelector('.device [role=meter]')";
  assert.match(await value(`${meter}.getAttribute('aria-valuetext')`), /^[\d.]+ [MG]iB of [\d.]+ GiB in use$/);
  const filled = await value(`${meter}.firstElementChild.getBoundingClientRect().width / ${meter}.getBoundingClientRect().width`);
  const told = await value(`${meter}.getAttribute('aria-valuenow') / ${meter}.getAttribute('aria-valuemax')`);
  assert.ok(filled > 0 && filled < 1, `${filled}`);
  assert.ok(told > 0 && told < 1, `${told}`);
  await picture("backends-light");

  // Light and dark: by the system, and by the button, whose choice is kept.
  const light = await paper();
  await scheme("dark");
  const dark = await paper();
  assert.notEqual(light, dark);
  await picture("backends-dark");
  await press("#theme");
  assert.equal(await paper(), light);
  await reload();
  await until("document.querySelector('#model option')");
  assert.equal(await paper(), light);
  await press("#theme");
  assert.equal(await paper(), dark);
  await picture("talk-dark");

  // A phone's width: nothing lies beyond it, a panel covers the rest, Escape closes it.
  await size(390, 844, true);
  const beyond = "document.documentElement.scrollWidth > innerWidth";
  assert.equal(await value(beyond), false);
  await picture("phone-dark");
  await press("#open-settings");
  assert.equal(await value("document.getElementById('main').inert && document.activeElement.id"), "panel-settings");
  assert.equal(await value(beyond), false);
  await picture("phone-settings-dark");
  await key("Escape", 27);
  assert.equal(await value("document.getElementById('panel-settings').hidden && document.activeElement.id"), "open-settings");
  await size(1280, 800);
  await scheme("light");

  // Until here nobody else was asked, and nothing was complained of.
  for (const { url: to } of asked) assert.ok(to.startsWith(url), `${to} is elsewhere`);
  assert.deepEqual(complaints, []);

  // What a model says is text, whatever it looks like.
  await press("#new");
  const hostile = "<img src=x onerror=alert(1)> **<script>alert(2)</script>** `<b>` &amp;\n\n```html\n<iframe src=\"javascript:alert(3)\">\n```\n- one\n- *two*";
  const chunk = (delta, reason = null, more = {}) => `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: reason }], ...more })}\r\n\r\n`;
  const pieces = [...hostile].map((content) => chunk({ content })).join("");
  let restore = await instead("/v1/chat/completions", () => ({ type: "text/event-stream", body: `: still here\n\n${pieces}${chunk({}, "stop")}data: [DONE]\n\n` }));
  await say("Say something unkind.");
  await until(`${replies}.length === 1 && ${settled}`);
  assert.equal(await value(`${last}.querySelectorAll('img, script, iframe, b').length`), 0);
  assert.equal(await value(`${last}.querySelector('.said > p').textContent`), "<img src=x onerror=alert(1)> <script>alert(2)</script> <b> &amp;");
  assert.equal(await value(`${last}.querySelector('pre').textContent`), "<iframe src=\"javascript:alert(3)\">");
  assert.deepEqual(await value(`[...${last}.querySelectorAll('li')].map((one) => one.textContent)`), ["one", "two"]);
  await picture("text-light");

  // What is thought stands folded before the answer, is text as well, opens by a click and by a key, and is not sent again.
  await restore();
  const pondered = "The user asks for <b>two</b>.\n\nLet me see: 1 + 1 is 2, so that is what I am going to say; but first I say it at some length, as models do.";
  const thought = [...pondered].map((text) => chunk({ reasoning_content: text })).join("");
  restore = await instead("/v1/chat/completions", () => ({ type: "text/event-stream", body: `${thought}${chunk({ content: "It is 2." })}${chunk({}, "stop")}data: [DONE]\n\n` }));
  await say("What is 1 + 1?");
  await until(`${replies}.length === 2 && ${settled}`);
  const folded = `${last}.querySelector('details.thought')`;
  const high = () => value(`${folded}.getBoundingClientRect().height`);
  assert.deepEqual(await value(`[${folded}.open, ${folded}.querySelector('summary').textContent, ${last}.querySelector('.said').textContent]`), [false, "Thoughts", "It is 2."]);
  assert.ok(await value(`!!(${folded}.compareDocumentPosition(${last}.querySelector('.said')) & Node.DOCUMENT_POSITION_FOLLOWING)`));
  const low = await high();
  await picture("thoughts-folded-light");
  await press("#messages > li:last-child details.thought > summary");
  assert.ok((await value(`${folded}.open`)) && (await high()) > low + 40, "it unfolds");
  assert.deepEqual(await value(`[${folded}.querySelector('p').innerText, ${folded}.querySelectorAll('b').length]`), [pondered, 0]);
  await picture("thoughts-light");
  await scheme("dark");
  await picture("thoughts-dark");
  await scheme("light");
  await key("Enter", 13);
  assert.equal(await value(`${folded}.open`), false);

  // One that breaks off in the middle says so.
  await restore();
  restore = await instead("/v1/chat/completions", () => ({ type: "text/event-stream", body: `${chunk({ content: "Well" })}data: {"error": {"message": "cpu: the engine has ended"}}\n\n` }));
  await say("Go on.");
  await until("document.querySelector('.problem')");
  assert.equal(await value("document.querySelector('.problem p').textContent"), "cpu: the engine has ended");
  await restore();

  // What the server refuses is told in its words, and is not part of the next request.
  await value("Object.assign(document.getElementById('max-tokens'), { value: -5 })");
  await say("Hello");
  await until("document.querySelector('.problem p')?.textContent.includes('max_tokens')");
  const line = await value("document.querySelector('.problem p').textContent");
  assert.match(line, /found -5/);
  await picture("problem-light");
  await value("Object.assign(document.getElementById('max-tokens'), { value: 4 })");
  await say("And now?");
  await until(`document.querySelectorAll('.user').length === 5 && ${settled}`);
  assert.equal(await value("document.querySelectorAll('.problem').length"), 0);
  assert.deepEqual(sent().at(-1).messages.filter(({ role }) => role !== "system").map(({ content }) => content), ["Say something unkind.", hostile, "What is 1 + 1?", "It is 2.", "And now?"]);

  // A server that wants a key is given one.
  const keyed = [];
  restore = await instead("/v1/models", ({ headers }) => {
    const given = headers.Authorization ?? headers.authorization;
    keyed.push(given);
    return given === "Bearer right" ? undefined : { status: 401, body: JSON.stringify({ error: { message: "no such key" } }) };
  });
  await reload();
  await until("document.getElementById('key').open");
  assert.equal(await value("document.getElementById('key-why').textContent"), "no such key");
  await picture("key-light");
  await send("Input.insertText", { text: "right" });
  await key("Enter", 13);
  await until("!document.getElementById('key').open && document.querySelector('#model option')");
  assert.deepEqual([keyed[0], keyed.at(-1)], [undefined, "Bearer right"]);
  assert.equal(await value("localStorage.getItem('backplane-key') ?? sessionStorage.getItem('backplane-key')"), '"right"');
  await restore();

  // A model that is not loaded says that it will be.
  const unloaded = { id: "another", object: "model", created: 0, owned_by: "backplane", backplane: { state: "unloaded" } };
  restore = await instead("/v1/models", () => ({ body: JSON.stringify({ object: "list", data: [unloaded] }) }));
  await reload();
  await until("!document.getElementById('why').hidden");
  assert.equal(await value("document.getElementById('why-text').textContent"), "loads when asked");
  assert.equal(await value("document.querySelector('#model option').textContent"), "another (loads when asked)");
  await restore();

  // Without scripts it says so.
  await send("Emulation.setScriptExecutionDisabled", { value: true });
  await send("Page.reload");
  const seen = async () => (await send("Accessibility.getFullAXTree")).nodes.some(({ name, ignored }) => !ignored && name?.value?.includes("needs JavaScript"));
  for (let turn = 0; !(await seen()); turn += 1) assert.ok(turn < 500, "nothing says that JavaScript is off");
  for (const { url: to } of asked) assert.ok(to.startsWith(url), `${to} is elsewhere`);
} finally {
  await browser.close();
}
