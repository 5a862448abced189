// Form fields with a label and a hint.

import { useId, type ReactNode } from 'react'

interface Named {
  id: string
  'aria-describedby'?: string
}

interface LabelledProps {
  label: string
  hint?: ReactNode
  /** The error of the current value. */
  flaw?: string | undefined
  wide?: boolean | undefined
  children: (named: Named) => ReactNode
}

export function Labelled({ label, hint, flaw, wide, children }: LabelledProps) {
  const id = useId()
  const has_hint = hint !== undefined || flaw !== undefined
  return (
    <div className={wide ? 'field wide' : 'field'}>
      <label htmlFor={id}>{label}</label>
      {children({ id, ...(has_hint && { 'aria-describedby': `${id}-hint` }) })}
      {has_hint && <small id={`${id}-hint`} className={flaw ? 'flaw' : ''}>{flaw ? `✕ ${flaw}` : hint}</small>}
    </div>
  )
}

interface FieldProps {
  name: string
  label: string
  hint?: ReactNode
  value?: string | number | null
  type?: string
  /** Value of the autocomplete attribute. */
  autoComplete?: string
  required?: boolean
}

/** A one-line text field. */
export function Field({ name, label, hint, value, type = 'text', autoComplete = 'off', required = false }: FieldProps) {
  return (
    <Labelled label={label} hint={hint}>
      {(named) => <input {...named} name={name} type={type} defaultValue={value ?? ''} autoComplete={autoComplete} required={required} />}
    </Labelled>
  )
}

interface LinesProps {
  name: string
  label: string
  hint?: ReactNode
  value?: string
}

/** A text field of several lines. */
export function Lines({ name, label, hint, value }: LinesProps) {
  return (
    <Labelled label={label} hint={hint}>
      {(named) => <textarea {...named} name={name} rows={2} spellCheck={false} defaultValue={value ?? ''} autoComplete="off" />}
    </Labelled>
  )
}

interface ChoiceProps {
  name: string
  label: string
  hint?: ReactNode
  value?: string
  options: readonly string[]
}

/** A drop-down list. */
export function Choice({ name, label, hint, value, options }: ChoiceProps) {
  return (
    <Labelled label={label} hint={hint}>
      {(named) => (
        <select {...named} name={name} defaultValue={value}>
          {options.map((option) => <option key={option}>{option}</option>)}
        </select>
      )}
    </Labelled>
  )
}
