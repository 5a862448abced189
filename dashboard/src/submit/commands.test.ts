import { expect, it } from 'vitest'
import { asCommand, asCurl } from './commands'

it('writes a file that the shell does not expand', () => {
  expect(asCommand({ task: "run: echo 'a'" })).toBe("cat > job.yaml <<'JOB'\nrun: echo 'a'\nJOB\nholdfast submit job.yaml\n")
  expect(asCommand({ task: 'JOB\n', project: 'own' })).toContain("<<'JOB_'\nJOB\nJOB_\nholdfast submit job.yaml --project 'own'")
})

it('submits from the same directory with the same options as the button', () => {
  const asked = { task: 'workdir: .', base_dir: "/home/ada/o'clock", force: true }

  expect(asCommand(asked)).toContain(`\n(cd '/home/ada/o'\\''clock' && holdfast submit "$OLDPWD/job.yaml" --force)\n`)
  expect(asCurl(asked, '')).toContain(`"base_dir":"/home/ada/o'\\''clock","force":true}`)
})

it('uploads the folder where there is code', () => {
  const asked = { task: 'workdir: .', code: '0a' }

  expect(asCommand(asked)).toBe("# in the folder of the code\ncat > job.yaml <<'JOB'\nworkdir: .\nJOB\nholdfast submit job.yaml --upload\n")
  expect(asCurl(asked, '')).toContain('"code":"0a"')
})

it('quotes the request body', () => {
  const text = asCurl({ task: "run: echo 'a'", project: 'own' }, 'http://127.0.0.1:8642')

  expect(text).toContain(`-d '{"task":"run: echo '\\''a'\\''","project":"own"}'`)
  expect(text).toContain("'http://127.0.0.1:8642/v1/jobs'")
})
