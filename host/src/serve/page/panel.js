// Backends, devices, and why each was or wasn't chosen.

import { by, bytes, element, icon } from "./elements.js";
import { get } from "./server.js";

/** Shows what there is now. */
export async function show() {
  const place = by("backends-body");
  place.setAttribute("aria-busy", "true");
  try {
    const [backends, devices] = await Promise.all([get("v1/backends"), get("v1/devices")]);
    const before = [...place.querySelectorAll("details")];
    const open = new Set(before.filter((one) => one.open).map((one) => one.dataset.name));
    // A single model's trace is open from the start.
    if (before.length === 0 && backends.models.length === 1) open.add(backends.models[0].id);
    place.replaceChildren(
      part("Devices", devices.devices.map(device), devices.notice),
      part("Models", backends.models.map((model) => chosen(model, open)), backends.models.length ? null : "No model is loaded."),
      plugins(backends.plugins.sort(byUse), open),
    );
    if (backends.manifest?.path) {
      place.append(element("p", { class: "fine" }, "From ", element("code", {}, backends.manifest.path)));
    }
  } catch (error) {
    place.replaceChildren(element("p", { class: "problem", role: "alert" }, error.message));
    throw error;
  } finally {
    place.removeAttribute("aria-busy");
  }
}

function part(name, what, note) {
  const heading = element("h3", {}, name);
  return element("section", {}, heading, what.length ? element("ul", { class: "cards" }, what) : null, note ? element("p", { class: "fine" }, note) : null);
}

/** Those that are named but not there come last, and folded: what is there is what one looks for. */
function plugins(all, open) {
  const there = all.filter(({ kind }) => kind !== "missing");
  const missing = all.filter(({ kind }) => kind === "missing");
  const made = part("Plugins", there.map(plugin), there.length ? null : "No plugin was found.");
  if (missing.length) {
    const summary = element("summary", {}, `Not installed: ${missing.map(({ name }) => name).join(", ")}`);
    made.append(element("details", { class: "more", "data-name": "/missing", open: open.has("/missing") }, summary, element("ul", { class: "cards" }, missing.map(plugin))));
  }
  return made;
}

function device({ id, name, kind, memory_total: total, memory_free: free, memory_used: used, used_by: user, reason, driver }) {
  const card = element(
    "li",
    { class: "card device" },
    element("div", { class: "row" }, element("strong", {}, name), element("span", { class: "tag" }, kind)),
    element("p", { class: "fine" }, [id === kind ? null : id, driver].filter(Boolean).join(" · ")),
  );
  if (total && used !== null) {
    const share = Math.min(1, used / total);
    const fill = element("div", { class: "fill" });
    fill.style.width = `${(share * 100).toFixed(1)}%`;
    if (share > 0.9) fill.classList.add("full");
    const words = `${bytes(used)} of ${bytes(total)} in use`;
    const label = `memory of ${name}`;
    const meter = { class: "bar", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": total, "aria-valuenow": used };
    card.append(
      element("div", { ...meter, "aria-valuetext": words }, fill),
      element("div", { class: "row fine" }, element("span", {}, words), element("span", {}, `${bytes(free)} free`)),
    );
  }
  card.append(
    user
      ? element("p", { class: "verdict good" }, icon("yes"), element("span", {}, "used by ", element("b", {}, user)))
      : element("p", { class: "verdict" }, icon("no"), element("span", {}, reason || "no plugin uses it")),
  );
  return card;
}

const OUTCOMES = { chosen: ["yes", "chosen"], lost: ["no", "not chosen"], not_tried: ["later", "not tried"] };

function chosen({ id, backend, selection }, open) {
  const candidates = selection.candidates.map(({ name, version, outcome, reason, verdict }) => {
    const [sign, word] = OUTCOMES[outcome] ?? ["later", outcome];
    // The reason repeats the verdict, and what would mend it; that is told apart.
    const mend = verdict.action && reason.endsWith(` (${verdict.action})`) ? verdict.action : null;
    const why = mend ? reason.slice(0, -mend.length - 3) : reason;
    return element(
      "li",
      { class: outcome },
      icon(sign),
      element(
        "div",
        {},
        element("div", {}, element("b", {}, name), version ? element("span", { class: "fine" }, ` ${version}`) : null, element("span", { class: "unseen" }, ` ${word}:`)),
        element("p", {}, why),
        mend ? element("p", { class: "mend" }, mend) : null,
      ),
    );
  });
  const { reason } = selection.candidates.find(({ outcome }) => outcome === "chosen") ?? { reason: "" };
  const order = element("p", { class: "fine" }, `Order: ${selection.order.join(", ")}. ${selection.pinned ? `Pinned: ${selection.pinned}.` : `Fallback: ${selection.fallback}.`}`);
  return element(
    "li",
    { class: "card" },
    element("div", { class: "row" }, element("strong", {}, id), element("span", { class: "tag good" }, `on ${backend}`)),
    selection.notice ? element("p", { class: "notice" }, selection.notice) : null,
    element("details", { "data-name": id, open: open.has(id) }, element("summary", {}, `Why ${backend}: ${reason}`), element("ol", { class: "trace" }, candidates), order),
  );
}

const byUse = (a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name);
const rank = ({ verdict }) => (verdict.state === "available" ? 0 : 1);

function plugin({ name, version, kind, verdict, notice, isolation, path }) {
  const fine = verdict.state === "available";
  const quiet = ["absent", "disabled", "no_device"].includes(verdict.state);
  const facts = [version, kind === "embedded" ? "embedded" : null, isolation === "process" ? "in a process of its own" : null];
  return element(
    "li",
    { class: fine ? "card" : "card dim" },
    element(
      "div",
      { class: "row" },
      element("strong", { title: path }, name),
      element("span", { class: `tag ${fine ? "good" : quiet ? "" : "bad"}` }, verdict.state.replaceAll("_", " ")),
    ),
    facts.some(Boolean) ? element("p", { class: "fine" }, facts.filter(Boolean).join(" · ")) : null,
    element("p", {}, verdict.message),
    verdict.action ? element("p", { class: "mend" }, verdict.action) : null,
    notice ? element("p", { class: "notice" }, notice) : null,
  );
}
