// A Chromium that is driven over its pipe, by the DevTools protocol.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Starts the one in `folder`, with one page. What is awaited too long is an error. */
export async function open(folder, limit = 20_000) {
  const home = mkdtempSync(join(tmpdir(), "page-"));
  const fonts = join(home, "fonts.conf");
  const dirs = [join(folder, "fonts"), "/usr/share/fonts"].map((dir) => `<dir>${dir}</dir>`);
  writeFileSync(fonts, `<fontconfig>${dirs.join("")}<cachedir>${home}/fonts</cachedir></fontconfig>`);
  const flags = ["--headless", "--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage"];
  const child = spawn(
    join(folder, "chromium"),
    [...flags, "--disable-background-networking", "--remote-debugging-pipe", `--user-data-dir=${home}`, "about:blank"],
    {
      stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"],
      env: { ...process.env, HOME: home, LD_LIBRARY_PATH: join(folder, "lib"), FONTCONFIG_FILE: fonts },
    },
  );
  const [, , , to, from] = child.stdio;
  const waiting = new Map();
  const heard = [];
  let count = 0;
  const failed = (error) => {
    for (const { no } of waiting.values()) no(error);
    waiting.clear();
  };
  child.on("error", failed);
  child.on("exit", (code, signal) => failed(new Error(`the browser has ended: ${code ?? signal}`)));
  for (const pipe of [to, from]) pipe.on("error", failed);
  let rest = "";
  from.setEncoding("utf8").on("data", (data) => {
    const whole = (rest + data).split("\0");
    rest = whole.pop();
    for (const message of whole.map((text) => JSON.parse(text))) {
      const asked = waiting.get(message.id);
      waiting.delete(message.id);
      if (message.error) asked?.no(new Error(`${asked.method}: ${message.error.message}`));
      else if (asked) asked.yes(message.result);
      else for (const listen of heard) listen(message);
    }
  });
  const call = (method, params, sessionId) =>
    new Promise((yes, no) => {
      count += 1;
      waiting.set(count, { yes, no, method });
      to.write(`${JSON.stringify({ id: count, method, params, sessionId })}\0`);
    });

  const { targetInfos } = await call("Target.getTargets");
  const { targetId } = targetInfos.find(({ type }) => type === "page");
  const { sessionId } = await call("Target.attachToTarget", { targetId, flatten: true });
  const send = (method, params = {}) => call(method, params, sessionId);
  const on = (method, listen) => heard.push((message) => message.method === method && listen(message.params));

  /** The value of an expression in the page. */
  async function value(expression) {
    const asked = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails } = await send("Runtime.evaluate", asked);
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  }

  /** Waits until an expression is true. */
  async function until(expression) {
    const start = Date.now();
    while (!(await value(expression))) {
      if (Date.now() - start > limit) throw new Error(`not so: ${expression}\n${await value("document.body.innerText")}`);
      await new Promise((next) => setTimeout(next, 20));
    }
  }

  /** Presses what a selector finds, with the mouse. */
  async function press(selector) {
    const place = await value(`(() => {
      const { x, y, width, height } = document.querySelector(${JSON.stringify(selector)}).getBoundingClientRect();
      return { x: x + width / 2, y: y + height / 2, width };
    })()`);
    if (place.width === 0) throw new Error(`${selector} can't be seen`);
    for (const type of ["mousePressed", "mouseReleased"]) {
      await send("Input.dispatchMouseEvent", { type, x: place.x, y: place.y, button: "left", clickCount: 1 });
    }
  }

  async function key(name, code) {
    const about = { key: name, code: name, windowsVirtualKeyCode: code, text: name === "Enter" ? "\r" : undefined };
    await send("Input.dispatchKeyEvent", { type: "keyDown", ...about });
    await send("Input.dispatchKeyEvent", { type: "keyUp", ...about });
  }

  async function picture(file) {
    const { data } = await send("Page.captureScreenshot", { format: "png" });
    writeFileSync(file, Buffer.from(data, "base64"));
  }

  async function close() {
    child.kill("SIGKILL");
    await new Promise((ended) => child.once("close", ended));
    rmSync(home, { recursive: true, force: true });
  }
  return { send, on, value, until, press, key, picture, close };
}
