// The page: what is pressed does what.

import { by, element, keep, kept } from "./elements.js";
import * as panel from "./panel.js";
import { Problem, get, hasKey, setKey, unready } from "./server.js";
import { Talk, announce } from "./talk.js";

const SETTINGS = "backplane-settings";
const root = document.documentElement;
const wide = matchMedia("(min-width: 64rem)");

// What is asked of the model.

const fields = { system: by("system"), temperature: by("temperature"), max_tokens: by("max-tokens") };
const model = by("model");
const message = by("message");

function settings() {
  const { system, temperature, max_tokens } = fields;
  const asked = { model: model.value, system: system.value.trim() };
  if (temperature.value !== "") asked.temperature = temperature.valueAsNumber;
  if (max_tokens.value !== "") asked.max_tokens = max_tokens.valueAsNumber;
  return asked;
}

const before = kept("localStorage", SETTINGS, {});
for (const [name, field] of Object.entries(fields)) {
  field.value = before[name] ?? "";
  field.addEventListener("input", () => {
    const all = Object.entries(fields).map(([name, { value }]) => [name, value]);
    keep("localStorage", SETTINGS, Object.fromEntries(all));
  });
}
by("reset").addEventListener("click", () => {
  for (const field of Object.values(fields)) field.value = "";
  keep("localStorage", SETTINGS, null);
});

// The conversation.

const talk = new Talk({
  settings,
  changed({ running, empty }) {
    // A model may have been loaded for it.
    if (document.body.classList.contains("running") && !running) list().catch(() => {});
    document.body.classList.toggle("running", running);
    by("welcome").hidden = !empty;
    by("send").hidden = running;
    by("stop").hidden = !running;
    by("new").disabled = empty;
  },
  refused: askForKey,
});

async function send(text) {
  if (talk.running || text.trim() === "" || !model.value) return;
  message.value = "";
  fit();
  await talk.say(text);
  if (by("panel-backends").hidden === false) refresh();
}

by("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send(message.value);
});
message.addEventListener("keydown", (event) => {
  // Enter while letters are being composed belongs to the input method.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send(message.value);
});
message.addEventListener("input", fit);
addEventListener("resize", fit);
by("stop").addEventListener("click", () => {
  talk.stop();
  message.focus();
});
by("new").addEventListener("click", () => {
  talk.clear();
  announce("A new conversation.");
  message.focus();
});
for (const example of document.querySelectorAll("[data-say]")) {
  example.addEventListener("click", () => send(example.textContent));
}

/** The field is as high as what is in it. */
function fit() {
  message.style.height = "auto";
  message.style.height = `${message.scrollHeight}px`;
}

// Panels at the side.

const panels = ["backends", "settings"];

function open(name) {
  for (const one of panels) {
    by(`panel-${one}`).hidden = one !== name;
    by(`open-${one}`).setAttribute("aria-expanded", String(one === name));
  }
  document.body.classList.toggle("beside", name !== null);
  // Over the conversation, where there is no room beside it: what is behind can't be reached.
  for (const behind of ["main", "composer"]) by(behind).inert = name !== null && !wide.matches;
  if (name === "backends") refresh();
  if (name) by(`panel-${name}`).focus();
}

function close() {
  const name = panels.find((one) => !by(`panel-${one}`).hidden);
  open(null);
  if (name) by(`open-${name}`).focus();
}

for (const name of panels) {
  by(`open-${name}`).addEventListener("click", () => (by(`panel-${name}`).hidden ? open(name) : close()));
}
by("why").addEventListener("click", () => open("backends"));
for (const button of document.querySelectorAll(".close")) button.addEventListener("click", close);
wide.addEventListener("change", () => open(panels.find((one) => !by(`panel-${one}`).hidden) ?? null));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || by("key").open) return;
  if (talk.running) talk.stop();
  else if (document.body.classList.contains("beside")) close();
});

async function refresh() {
  try {
    await panel.show();
  } catch (error) {
    if (error.status === 401) askForKey(error);
  }
}
by("refresh").addEventListener("click", refresh);

// Colours: those of the system, unless others are chosen.

by("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme ?? (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  // What the system has anyway is not kept, so that the page follows it again.
  if ((next === "dark") === dark) delete root.dataset.theme;
  else root.dataset.theme = next;
  try {
    if (root.dataset.theme) localStorage.setItem("backplane-theme", next);
    else localStorage.removeItem("backplane-theme");
  } catch {
    // A browser that keeps nothing.
  }
  announce(`${next} colours`);
});

// The key, where the server asks for one.

function askForKey(problem) {
  by("key-why").textContent = problem.message;
  if (!by("key").open) by("key").showModal();
}
by("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(by("key-field").value.trim());
  by("key").close();
  by("key-field").value = "";
  begin();
});
by("key-cancel").addEventListener("click", () => by("key").close());
by("forget").addEventListener("click", () => {
  setKey(null);
  by("forget").hidden = true;
});

// What there is to talk with.

let models = [];

async function list() {
  ({ data: models } = await get("v1/models"));
  const chosen = model.value || kept("localStorage", "backplane-model", "");
  model.replaceChildren(...models.map((one) => element("option", { value: one.id }, state(one) === "loaded" ? one.id : `${one.id} (${WORDS[state(one)]})`)));
  if (models.some(({ id }) => id === chosen)) model.value = chosen;
  told();
}

const WORDS = { loading: "is being loaded", unloading: "is being unloaded", unloaded: "loads when asked" };

/** Whether a model is loaded: as the server says. */
function state({ backplane, owned_by: owner }) {
  return backplane?.state ?? (owner === "backplane" ? "loading" : "loaded");
}

/** Says which backend runs the model that is chosen. */
function told() {
  const chosen = models.find(({ id }) => id === model.value);
  const loaded = chosen && state(chosen) === "loaded";
  by("why-text").textContent = loaded ? `on ${chosen.owned_by}` : chosen ? WORDS[state(chosen)] : "";
  by("why").classList.toggle("good", Boolean(loaded));
  by("why").hidden = !chosen;
  message.placeholder = chosen ? "Write a message" : "No model is served";
}
model.addEventListener("change", () => {
  keep("localStorage", "backplane-model", model.value);
  told();
});

function notice(text) {
  by("notice").textContent = text;
  by("notice").hidden = text === "";
}

let waiting = null;

/** Lists the models, and waits for those that are being loaded. */
async function begin() {
  clearTimeout(waiting);
  waiting = null;
  by("forget").hidden = !hasKey();
  let reasons = [];
  try {
    await list();
    reasons = await unready();
    notice(reasons.join("; "));
  } catch (error) {
    if (error.status === 401) {
      notice("");
      return askForKey(error);
    }
    notice(error instanceof Problem ? error.message : String(error));
    reasons = [error];
  }
  if (reasons.length > 0) waiting = setTimeout(begin, 1000);
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && waiting === null) begin();
});
begin();
fit();
if (wide.matches) message.focus();
