import react from '@vitejs/plugin-react'
import { defineConfig } from 'vitest/config'

// The service that `npm run dev` stands before; the address under which `holdfast serve` says that it serves.
const service = process.env.HOLDFAST_URL ?? 'http://127.0.0.1:8642'
// The service takes what a page of another origin sends for a forgery.
const proxied = { target: service, changeOrigin: true, headers: { origin: new URL(service).origin } }

export default defineConfig({
  plugins: [react()],
  build: {
    outDir: '../service/holdfast/web',
    emptyOutDir: true,
    // Inlined files would be data: URLs, which the service's Content-Security-Policy refuses for scripts and fonts.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // What the page is made of has licenses that ask to be named wherever it goes.
    license: { fileName: 'assets/licenses.md' },
    target: ['chrome123', 'firefox120', 'safari17.5'], // The first with light-dark().
  },
  server: { proxy: { '/v1': proxied, '/docs': proxied } },
  test: { include: ['src/**/*.test.ts'] },
})
