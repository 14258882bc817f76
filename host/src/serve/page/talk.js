// The conversation: what was said, the reply that comes, and what it took.

import { by, element, few, icon, keep, kept } from "./elements.js";
import { Problem, chat } from "./server.js";
import { Shown, copier } from "./text.js";

const KEPT = "backplane-talk";

export class Talk {
  /** `settings` gives model, system message and limits; `changed` is told when a reply begins or ends. */
  constructor({ settings, changed, refused }) {
    this.settings = settings;
    this.changed = changed;
    this.refused = refused;
    this.list = by("messages");
    this.turns = [];
    this.running = null;
    for (const turn of kept("sessionStorage", KEPT, [])) {
      this.add(turn);
      if (turn.role === "assistant") this.finish(turn);
    }
    this.settle();
    toEnd();
  }

  /** Forgets what was said. */
  clear() {
    this.stop();
    this.running = null;
    this.turns = [];
    this.list.replaceChildren();
    this.settle();
  }

  stop() {
    this.running?.abort();
  }

  /** Says something, and has the model answer. */
  async say(text) {
    // A message that was not answered is not part of what the model is told.
    this.turns = this.turns.filter((turn) => !turn.lost);
    this.add({ role: "user", text });
    await this.answer();
  }

  /** Has the last message answered again. */
  async again() {
    const last = this.turns.at(-1);
    if (last?.role === "assistant") {
      last.item.remove();
      this.turns.pop();
    }
    for (const turn of this.turns) this.mark(turn, false);
    await this.answer();
  }

  async answer() {
    const { model, system, ...limits } = this.settings();
    const said = this.turns.map(({ role, text }) => ({ role, content: text }));
    if (system) said.unshift({ role: "system", content: system });
    this.list.querySelectorAll(".problem").forEach((one) => one.remove());
    const reply = this.add({ role: "assistant", text: "", model });
    const running = new AbortController();
    this.running = running;
    this.settle();
    announce(`${model} answers.`);
    const clock = { sent: performance.now(), first: null, pieces: 0 };
    try {
      for await (const event of chat({ model, messages: said, ...limits }, running.signal)) this.take(reply, event, clock);
    } catch (error) {
      if (error.name === "AbortError") reply.stopped = true;
      else reply.problem = error instanceof Problem ? error : new Problem(String(error));
    }
    // Another conversation may have begun meanwhile.
    if (this.running === running) this.running = null;
    if (!this.turns.includes(reply)) return;
    if (reply.stopped) reply.took = byClock(clock);
    this.end(reply);
  }

  take(reply, event, clock) {
    const choice = event.choices?.[0];
    const text = choice?.delta?.content;
    const thought = choice?.delta?.reasoning_content;
    if (thought) {
      clock.first ??= performance.now();
      clock.pieces += 1;
      this.think(reply, thought);
    }
    if (text) {
      clock.first ??= performance.now();
      clock.pieces += 1;
      reply.text += text;
      if (reply.summary) reply.summary.textContent = "Thoughts";
      this.draw(reply, clock);
    }
    if (choice?.finish_reason) reply.ended = choice.finish_reason;
    if (event.backplane) reply.by = event.backplane;
    if (event.usage) reply.usage = event.usage;
  }

  /** What is thought stands folded before what is said. */
  think(reply, thought) {
    if (!reply.thought) {
      reply.thought = element("p", {});
      reply.summary = element("summary", {});
      const folded = element("details", { class: "thought" }, reply.summary, reply.thought);
      reply.item.querySelector(".said").before(folded);
    }
    const follows = isAtEnd();
    reply.summary.textContent = "Thinking…";
    reply.thought.append(thought);
    if (follows) toEnd();
  }

  /** Draws at most once a frame. */
  draw(reply, clock) {
    if (reply.drawing) return;
    reply.drawing = requestAnimationFrame(() => {
      reply.drawing = null;
      if (reply.item.getAttribute("aria-busy") !== "true") return;
      const follows = isAtEnd();
      reply.shown.show(reply.text);
      const took = byClock(clock);
      if (took.speed) reply.meta.replaceChildren(element("span", { class: "live" }, `${few(took.speed)} tokens/s`));
      if (follows) toEnd();
    });
  }

  end(reply) {
    const follows = isAtEnd();
    if (reply.drawing) cancelAnimationFrame(reply.drawing);
    reply.drawing = null;
    if (reply.summary) reply.summary.textContent = "Thoughts";
    const { problem } = reply;
    if (problem || reply.text === "") {
      // What was not answered is not told to the model with the next message.
      for (const turn of [reply, this.turns.at(-2)]) if (turn) this.mark(turn, true);
    }
    this.finish(reply);
    if (reply.text === "" && problem) reply.item.remove();
    if (problem) {
      const retry = element("button", { type: "button", class: "quiet", onclick: () => this.again() }, icon("again"), "Try again");
      this.list.append(element("li", { class: "problem", role: "alert" }, element("p", {}, problem.message), retry));
      if (problem.status === 401) this.refused(problem);
    } else {
      announce(reply.stopped ? "Stopped." : reply.text);
    }
    this.settle();
    if (follows) toEnd();
  }

  mark(turn, lost) {
    turn.lost = lost;
    turn.item.classList.toggle("unanswered", lost);
  }

  add(turn) {
    const place = element("div", { class: "said" });
    const busy = turn.role === "assistant";
    turn.item = element(
      "li",
      { class: turn.role, "aria-busy": busy ? "true" : null },
      element("h2", { class: "unseen" }, turn.role === "user" ? "You" : turn.model),
      place,
    );
    if (turn.role === "user") {
      place.textContent = turn.text;
    } else {
      turn.shown = new Shown(place);
      turn.meta = element("p", { class: "meta" }, element("span", { class: "waits" }, element("i"), element("i"), element("i")));
      turn.item.append(turn.meta);
    }
    this.turns.push(turn);
    this.list.append(turn.item);
    toEnd();
    return turn;
  }

  /** A reply that has ended: its text, what it took, and what can be done with it. */
  finish(reply) {
    reply.item.removeAttribute("aria-busy");
    reply.shown.show(reply.text);
    reply.meta.replaceChildren(
      element("span", {}, facts(reply).join(" · ")),
      element(
        "span",
        { class: "acts" },
        reply.text ? copier(() => reply.text) : null,
        element("button", { type: "button", class: "quiet again", onclick: () => this.again() }, icon("again"), "Again"),
      ),
    );
    if (reply.by?.notice) {
      reply.item.append(element("p", { class: "notice" }, reply.by.notice));
    }
  }

  settle() {
    const facts = ({ role, text, model, stopped, ended, by, usage, took }) => ({ role, text, model, stopped, ended, by, usage, took });
    if (!this.running) keep("sessionStorage", KEPT, this.turns.filter((turn) => !turn.lost).map(facts));
    this.changed({ running: this.running !== null, empty: this.turns.length === 0 });
  }
}

/** What a reply took, by the server's clock; by this page's where it was stopped, for then the server does not say. */
function facts({ by, usage, took, stopped, ended, model }) {
  const all = [by?.backend ? `${model} on ${by.backend}` : model];
  const tokens = usage?.completion_tokens;
  if (tokens !== undefined) all.push(`${tokens} ${tokens === 1 ? "token" : "tokens"}`);
  const { queue_s: queue = 0, prefill_s: prefill, decode_s: decode } = by?.timings ?? {};
  const speed = decode > 0 && tokens > 1 ? (tokens - 1) / decode : took?.speed;
  if (speed) all.push(`${few(speed)} tokens/s`);
  const first = prefill !== undefined ? queue + prefill : took?.first;
  if (first !== undefined) all.push(`first token after ${first < 1 ? `${Math.round(first * 1000)} ms` : `${few(first)} s`}`);
  if (stopped) all.push("stopped");
  else if (ended === "length") all.push("stopped at the most tokens");
  return all;
}

function byClock({ sent, first, pieces }) {
  if (first === null) return {};
  const seconds = (performance.now() - first) / 1000;
  return { first: (first - sent) / 1000, speed: pieces > 1 && seconds > 0 ? (pieces - 1) / seconds : undefined };
}

const place = () => by("talk");

function isAtEnd() {
  const { scrollHeight, scrollTop, clientHeight } = place();
  return scrollHeight - scrollTop - clientHeight < 80;
}

function toEnd() {
  place().scrollTop = place().scrollHeight;
}

/** For those who don't see the page: when a reply begins, and what it said once it has ended. */
export function announce(text) {
  by("announced").textContent = text;
}
