// The same submission for those who would rather type it. Pure.

/** What is sent to submit a job. */
export interface Asked {
  task: string
  project?: string
  /** The folder that relative paths of the file are in. */
  base_dir?: string
  /** Id of the uploaded folder. */
  code?: string
  force?: boolean
}

const quoted = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`

export function asCommand({ task, project, base_dir, code, force }: Asked): string {
  // A line that ends the text must not be in it.
  let end = 'JOB'
  while (task.split('\n').includes(end)) end += '_'
  const words = `${project ? ` --project ${quoted(project)}` : ''}${force ? ' --force' : ''}${code ? ' --upload' : ''}`
  // On the command line, relative paths are in the folder that one stands in.
  const submit = base_dir ? `(cd ${quoted(base_dir)} && holdfast submit "$OLDPWD/job.yaml"${words})` : `holdfast submit job.yaml${words}`
  const place = code ? '# in the folder of the code\n' : ''
  return `${place}cat > job.yaml <<'${end}'\n${task.replace(/\n*$/, '\n')}${end}\n${submit}\n`
}

export function asCurl(asked: Asked, origin: string): string {
  return [
    `curl -X POST ${quoted(`${origin}/v1/jobs`)} \\`,
    `  -H "Authorization: Bearer $HOLDFAST_TOKEN" -H 'Content-Type: application/json' \\`,
    `  -H "Idempotency-Key: $(uuidgen)" \\`,
    `  -d ${quoted(JSON.stringify(asked))}\n`,
  ].join('\n')
}
