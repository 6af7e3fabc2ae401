// Bundles src/ and the libraries it uses into ../assets/page.js, with their licences beside it.
//
// With --check it only says whether ../assets is what the sources make. The first line of the bundle
// is a digest of the sources, so that a machine without Node can tell a stale bundle too.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const assets = join(here, "..", "assets");

function digest() {
  const hash = createHash("sha256");
  const sources = readdirSync(join(here, "src")).sort().map((name) => join(here, "src", name));
  for (const path of [...sources, join(here, "package.json")]) hash.update(readFileSync(path));
  return hash.digest("hex");
}

function licences(inputs) {
  const names = new Set();
  for (const path of Object.keys(inputs)) {
    const found = path.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
    if (found) names.add(found[1]);
  }
  return [...names].sort().map((name) => {
    const folder = join(here, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    const text = file ? readFileSync(join(folder, file), "utf8").trim() : "";
    return `${name} ${version} (${license})\n\n${text}\n`;
  }).join("\n----\n\n");
}

const made = await build({
  absWorkingDir: here, entryPoints: ["src/main.js"], bundle: true, minify: true, write: false,
  format: "iife", target: "es2021", charset: "ascii", legalComments: "none", metafile: true,
});
const files = {
  "page.js": `/* ${digest()} */\n${made.outputFiles[0].text}`,
  "LICENSES.txt": licences(made.metafile.inputs),
};
for (const [name, text] of Object.entries(files)) {
  const path = join(assets, name);
  if (!process.argv.includes("--check")) writeFileSync(path, text);
  else if (readFileSync(path, "utf8") !== text) {
    console.error(`${path} is stale: run npm run build`);
    process.exitCode = 1;
  }
}
