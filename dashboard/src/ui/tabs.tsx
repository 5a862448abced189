// Tabs after the ARIA authoring practices: arrow keys move, and the address holds the selection.

import { useId, type KeyboardEvent, type ReactNode } from 'react'
import { useSearchParams } from 'react-router'

export interface Tab {
  name: string
  title: string
  body: () => ReactNode
}

export function Tabs({ label, tabs }: { label: string; tabs: Tab[] }) {
  const id = useId()
  const [params, setParams] = useSearchParams()
  const chosen = tabs.find((tab) => tab.name === params.get('tab')) ?? tabs[0]
  const choose = (tab: Tab | undefined) => {
    if (!tab) return
    setParams((now) => (now.set('tab', tab.name), now), { replace: true })
    document.getElementById(`${id}-${tab.name}`)?.focus()
  }
  const move = (event: KeyboardEvent, at: number) => {
    const steps: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }
    const to = steps[event.key]
    if (to === undefined) return
    event.preventDefault()
    choose(tabs.at(to % tabs.length))
  }
  return (
    <section className="panel">
      <div role="tablist" aria-label={label}>
        {tabs.map((tab, at) => (
          <button
            key={tab.name}
            type="button"
            role="tab"
            id={`${id}-${tab.name}`}
            aria-selected={tab === chosen}
            aria-controls={`${id}-body`}
            tabIndex={tab === chosen ? 0 : -1}
            onClick={() => choose(tab)}
            onKeyDown={(event) => move(event, at)}
          >
            {tab.title}
          </button>
        ))}
      </div>
      <div role="tabpanel" id={`${id}-body`} aria-labelledby={`${id}-${chosen?.name}`}>
        {chosen?.body()}
      </div>
    </section>
  )
}
