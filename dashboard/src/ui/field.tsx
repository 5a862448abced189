// Something that is asked for: its name, and what may be said, told apart for those who listen, too.

import { useId, type ReactNode } from 'react'

interface Named {
  id: string
  'aria-describedby'?: string
}

interface LabelledProps {
  label: string
  hint?: ReactNode
  /** What is wrong with what was said. */
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
}

/** A word in a form. */
export function Field({ name, label, hint, value, type = 'text' }: FieldProps) {
  return (
    <Labelled label={label} hint={hint}>
      {(named) => <input {...named} name={name} type={type} defaultValue={value ?? ''} autoComplete="off" />}
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

/** One of some words in a form. */
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
