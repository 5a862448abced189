// A submission as a shell command or curl request. Pure.

/** The body of a submission. */
export interface Submission {
  task: string
  project?: string
  /** Base directory of relative paths in the file. */
  base_dir?: string
  /** Id of the uploaded code. */
  code?: string
  force?: boolean
}

const quoted = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`

export function asCommand({ task, project, base_dir, code, force }: Submission): string {
  // The here-document's delimiter must not occur in the file.
  let end = 'JOB'
  while (task.split('\n').includes(end)) end += '_'
  const words = `${project ? ` --project ${quoted(project)}` : ''}${force ? ' --force' : ''}${code ? ' --upload' : ''}`
  // On the command line, relative paths start from the current directory.
  const submit = base_dir ? `(cd ${quoted(base_dir)} && holdfast submit "$OLDPWD/job.yaml"${words})` : `holdfast submit job.yaml${words}`
  const place = code ? '# in the folder of the code\n' : ''
  return `${place}cat > job.yaml <<'${end}'\n${task.replace(/\n*$/, '\n')}${end}\n${submit}\n`
}

export function asCurl(asked: Submission, origin: string): string {
  return [
    `curl -X POST ${quoted(`${origin}/v1/jobs`)} \\`,
    `  -H "Authorization: Bearer $HOLDFAST_TOKEN" -H 'Content-Type: application/json' \\`,
    `  -H "Idempotency-Key: $(uuidgen)" \\`,
    `  -d ${quoted(JSON.stringify(asked))}\n`,
  ].join('\n')
}
