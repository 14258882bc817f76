// A model's text as elements: paragraphs, lists, headings, code. Whatever else is in it stays text.

import { element, icon } from "./elements.js";

/** Shows a text that grows: what has not changed since is left as it is. */
export class Shown {
  constructor(place) {
    this.place = place;
    this.blocks = [];
  }

  show(text) {
    const blocks = split(text);
    blocks.forEach((block, index) => {
      const before = this.blocks[index];
      if (before && before.key === block.key) {
        block.node = before.node;
        return;
      }
      block.node = make(block);
      if (before) before.node.replaceWith(block.node);
      else this.place.append(block.node);
    });
    for (const left of this.blocks.slice(blocks.length)) left.node.remove();
    this.blocks = blocks;
  }
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)/;
const ITEM = /^\s*(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;

/** The blocks of a text: kind, lines, and a key that changes with either. */
function split(text) {
  const blocks = [];
  let open = null;
  const close = () => {
    if (open) blocks.push(open);
    open = null;
  };
  const begin = (kind, more = {}) => {
    close();
    open = { kind, lines: [], ...more };
  };
  for (const line of text.split("\n")) {
    if (open?.kind === "code") {
      const end = line.match(FENCE);
      if (end && end[2] === "" && end[1].startsWith(open.fence)) close();
      else open.lines.push(line);
      continue;
    }
    const fence = line.match(FENCE);
    if (fence) {
      begin("code", { fence: fence[1], language: fence[2] });
      continue;
    }
    if (line.trim() === "") {
      if (open?.kind !== "list") close();
      continue;
    }
    const heading = line.match(HEADING);
    if (heading) {
      begin("heading");
      open.lines.push(heading[2]);
      close();
      continue;
    }
    if (RULE.test(line)) {
      begin("rule");
      close();
      continue;
    }
    const item = line.match(ITEM);
    if (item) {
      const ordered = item[1] !== undefined;
      if (open?.kind !== "list" || open.ordered !== ordered) {
        begin("list", { ordered, start: item[1] });
      }
      open.lines.push(item[2]);
      continue;
    }
    if (open?.kind === "list" && /^\s/.test(line)) {
      open.lines[open.lines.length - 1] += `\n${line.trim()}`;
      continue;
    }
    if (open?.kind !== "text") begin("text");
    open.lines.push(line);
  }
  close();
  for (const block of blocks) block.key = `${block.kind} ${block.language ?? ""} ${block.lines.join("\n")}`;
  return blocks;
}

function make({ kind, lines, language, ordered, start }) {
  switch (kind) {
    case "code":
      return code(lines.join("\n"), language);
    case "heading":
      return element("p", { class: "heading" }, inline(lines[0]));
    case "rule":
      return element("hr");
    case "list": {
      const items = lines.map((line) => element("li", {}, inline(line)));
      return ordered ? element("ol", { start }, items) : element("ul", {}, items);
    }
    default:
      return element("p", {}, inline(lines.join("\n")));
  }
}

const SPANS = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|(?<![\w*])\*(?=[^\s*])([^*\n]*?[^\s*])\*(?![\w*])/g;

/** Code and emphasis within a line. */
function inline(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(SPANS)) {
    if (found.index > at) parts.push(text.slice(at, found.index));
    if (found[2] !== undefined) parts.push(element("code", {}, found[2]));
    else if (found[3] !== undefined) parts.push(element("strong", {}, found[3]));
    else parts.push(element("em", {}, found[4]));
    at = found.index + found[0].length;
  }
  if (at < text.length) parts.push(text.slice(at));
  return parts;
}

function code(text, language) {
  const bar = element("div", { class: "code-bar" }, element("span", {}, language || "code"), copier(() => text));
  return element(
    "div",
    { class: "code" },
    bar,
    element("pre", { tabindex: "0", "aria-label": `code${language ? ` in ${language}` : ""}` }, element("code", {}, text)),
  );
}

/** A button that copies, where the browser lets a page do that. */
export function copier(text) {
  if (!navigator.clipboard) return null;
  const word = element("span", {}, "Copy");
  const button = element("button", { type: "button", class: "quiet" }, icon("copy"), word);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      word.textContent = "Copied";
    } catch {
      word.textContent = "Not allowed";
    }
    setTimeout(() => (word.textContent = "Copy"), 1500);
  });
  return button;
}
