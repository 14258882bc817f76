// Unpacks the Chromium of a registry package: node unpack.mjs FROM TO.

import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliDecompressSync } from "node:zlib";

const [from, to] = process.argv.slice(2);
const unpacked = (name) => brotliDecompressSync(readFileSync(join(from, name)));

mkdirSync(to, { recursive: true });
for (const name of ["al2023.tar.br", "fonts.tar.br", "swiftshader.tar.br"]) {
  execFileSync("tar", ["-xf", "-", "-C", to], { input: unpacked(name) });
}
writeFileSync(join(to, "chromium.new"), unpacked("chromium.br"), { mode: 0o755 });
renameSync(join(to, "chromium.new"), join(to, "chromium"));
