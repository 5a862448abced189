// A certified OpenID Connect provider on loopback, with accounts that a test changes through /control.
//
//   node provider.mjs NODE_MODULES REDIRECT_URI
//
// It prints its address as the first line.

import { createServer } from 'node:http'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const [modules, redirectUri] = process.argv.slice(2)
const require = createRequire(pathToFileURL(`${modules}/oidc-provider/package.json`))
const { default: Provider } = await import(pathToFileURL(require.resolve('oidc-provider')))

/** Accounts by subject. */
const accounts = {}
/** The account of the person at the browser. */
let present = null

const server = createServer()
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
const issuer = `http://127.0.0.1:${server.address().port}`

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: 'holdfast',
      client_secret: 'a-secret-of-tests',
      redirect_uris: [redirectUri],
      grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'],
    },
  ],
  // Claims of scopes are in the response of the userinfo endpoint alone, as the standard says.
  conformIdTokenClaims: true,
  claims: { openid: ['sub'], profile: ['preferred_username', 'groups'], email: ['email', 'email_verified'] },
  cookies: { keys: ['a key of tests'] },
  features: { devInteractions: { enabled: false }, deviceFlow: { enabled: true } },
  pkce: { required: (_, client) => client.grantTypeAllowed('authorization_code') },
  rotateRefreshToken: true,
  issueRefreshToken: async () => true,
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  findAccount: (_, subject) => {
    const account = accounts[subject]
    if (!account || account.disabled) return undefined
    return { accountId: subject, claims: () => ({ sub: subject, ...account.claims }) }
  },
  // Nobody is asked for consent.
  loadExistingGrant: async (ctx) => {
    const { client, session } = ctx.oidc
    const grant = new provider.Grant({ clientId: client.clientId, accountId: session.accountId })
    grant.addOIDCScope('openid profile email offline_access')
    await grant.save()
    return grant
  },
})

const body = async (request) => {
  const parts = []
  for await (const part of request) parts.push(part)
  return JSON.parse(Buffer.concat(parts).toString())
}

server.on('request', async (request, response) => {
  if (request.url === '/control') {
    const change = await body(request)
    Object.assign(accounts, change.accounts ?? {})
    if ('present' in change) present = change.present
    response.end('{}')
  } else if (request.url.startsWith('/interaction/')) {
    const result = present ? { login: { accountId: present } } : { error: 'access_denied', error_description: 'the person left' }
    await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: false })
  } else {
    provider.callback()(request, response)
  }
})
console.log(issuer)
