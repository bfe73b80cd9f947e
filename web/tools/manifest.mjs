// Writes the hash of the sources beside the build, so that a test without Node can tell whether it is theirs.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, statSync, writeFileSync } from "node:fs";

const FILES = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"];

const below = (folder) =>
  readdirSync(folder).flatMap((name) => {
    const path = `${folder}/${name}`;
    return statSync(path).isDirectory() ? below(path) : [path];
  });

const hash = createHash("sha256");
for (const path of [...FILES, ...below("public"), ...below("src"), ...below("tools")].sort()) {
  hash.update(`${path}\0${createHash("sha256").update(readFileSync(path)).digest("hex")}\n`);
}
const out = process.argv[2] ?? "../src/olivine/server/page/files";
writeFileSync(`${out}/manifest.json`, JSON.stringify({ sources: hash.digest("hex") }) + "\n");
