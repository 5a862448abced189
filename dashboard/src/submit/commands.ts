// The same submission for those who would rather type it. Pure.

const quoted = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`

export function asCommand(file: string, project: string): string {
  // A line that ends the text must not be in it.
  let end = 'JOB'
  while (file.split('\n').includes(end)) end += '_'
  const where = project ? ` --project ${quoted(project)}` : ''
  return `cat > job.yaml <<'${end}'\n${file.replace(/\n*$/, '\n')}${end}\nholdfast submit job.yaml${where}\n`
}

export function asCurl(file: string, project: string, base_dir: string, origin: string): string {
  const body = { task: file, ...(project && { project }), ...(base_dir && { base_dir }) }
  return [
    `curl -X POST ${quoted(`${origin}/v1/jobs`)} \\`,
    `  -H "Authorization: Bearer $HOLDFAST_TOKEN" -H 'Content-Type: application/json' \\`,
    `  -H "Idempotency-Key: $(uuidgen)" \\`,
    `  -d ${quoted(JSON.stringify(body))}\n`,
  ].join('\n')
}
