import { defineConfig } from "vite";

// Names without hashes: the server sends ETags, and the committed build changes in place. Paths are relative, so
// that the page also works under a prefix of a reverse proxy.
export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/olivine/server/page/files",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    license: { fileName: "licenses.md" }, // of the packages that are in the build: they ask to be kept with it
    rollupOptions: {
      output: {
        entryFileNames: "assets/[name].js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/[name][extname]",
      },
    },
  },
  server: { proxy: Object.fromEntries(["/v1", "/props", "/models"].map((path) => [path, "http://127.0.0.1:8080"])) },
  test: { include: ["test/**/*.test.{ts,tsx}"], testTimeout: 60_000 }, // on machines that are busy
} as Parameters<typeof defineConfig>[0]);
