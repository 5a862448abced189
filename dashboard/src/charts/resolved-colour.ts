/** A CSS colour in the current theme. A canvas resolves neither variables nor light-dark(). */
export function resolvedColour(css: string): string {
  const sample = document.body.appendChild(document.createElement('i'))
  sample.style.color = css
  const colour = getComputedStyle(sample).color
  sample.remove()
  return colour
}
