import { expect, it } from 'vitest'
import { asCommand, asCurl } from './commands'

it('writes a file that a shell leaves as it is', () => {
  expect(asCommand("run: echo 'a'", '')).toBe("cat > job.yaml <<'JOB'\nrun: echo 'a'\nJOB\nholdfast submit job.yaml\n")
  expect(asCommand('JOB\n', 'own')).toContain("<<'JOB_'\nJOB\nJOB_\nholdfast submit job.yaml --project 'own'")
})

it('quotes what it sends', () => {
  const text = asCurl("run: echo 'a'", 'own', '', 'http://127.0.0.1:8642')

  expect(text).toContain(`-d '{"task":"run: echo '\\''a'\\''","project":"own"}'`)
  expect(text).toContain("'http://127.0.0.1:8642/v1/jobs'")
})
