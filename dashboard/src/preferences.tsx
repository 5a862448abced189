// Display preferences, kept in the browser: theme and time zone.

import { createContext, useContext, useEffect, useState, type ReactNode } from 'react'
import type { Clock } from './format'

export type Theme = 'auto' | 'light' | 'dark'

interface Preferences {
  theme: Theme
  setTheme: (theme: Theme) => void
  clock: Clock
  setClock: (clock: Clock) => void
  /** The colour scheme in force, for charts on a canvas. */
  colours: string
}

const Context = createContext<Preferences | null>(null)

export function usePreferences(): Preferences {
  const found = useContext(Context)
  if (!found) throw new Error('outside of PreferencesProvider')
  return found
}

function useStored<T extends string>(name: string, first: T): [T, (value: T) => void] {
  const [value, setValue] = useState<T>(() => (localStorage.getItem(`holdfast.${name}`) as T | null) ?? first)
  const keep = (next: T) => {
    localStorage.setItem(`holdfast.${name}`, next)
    setValue(next)
  }
  return [value, keep]
}

const DARK = window.matchMedia('(prefers-color-scheme: dark)')

export function PreferencesProvider({ children }: { children: ReactNode }) {
  const [theme, setTheme] = useStored<Theme>('theme', 'auto')
  const [clock, setClock] = useStored<Clock>('clock', 'utc')
  const [isDark, setIsDark] = useState(DARK.matches)
  useEffect(() => {
    const follow = () => setIsDark(DARK.matches)
    DARK.addEventListener('change', follow)
    return () => DARK.removeEventListener('change', follow)
  }, [])
  document.documentElement.dataset.theme = theme
  const colours = theme === 'auto' ? (isDark ? 'dark' : 'light') : theme
  return <Context.Provider value={{ theme, setTheme, clock, setClock, colours }}>{children}</Context.Provider>
}
