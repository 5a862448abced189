import react from '@vitejs/plugin-react'
import { defineConfig } from 'vitest/config'

// The service that `npm run dev` proxies; the address that `holdfast serve` prints.
const service = process.env.HOLDFAST_URL ?? 'http://127.0.0.1:8642'
// The service rejects requests from pages of another origin.
const proxied = { target: service, changeOrigin: true, headers: { origin: new URL(service).origin } }

export default defineConfig({
  plugins: [react()],
  build: {
    outDir: '../service/holdfast/web',
    emptyOutDir: true,
    // Inlined files would be data: URLs, which the service's Content-Security-Policy blocks for scripts and fonts.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // The licenses of bundled packages require that they are distributed with the dashboard.
    license: { fileName: 'assets/licenses.md' },
    target: ['chrome123', 'firefox120', 'safari17.5'], // The first with light-dark().
  },
  server: { proxy: { '/v1': proxied, '/docs': proxied } },
  test: { include: ['src/**/*.test.ts'] },
})
