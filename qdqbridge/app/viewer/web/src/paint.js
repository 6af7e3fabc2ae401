// Colours of boxes: a paint gives each node a class or a number, and a legend says what they mean.

const CLASSES = 8;
const STEPS = 5;

/**
 * @typedef {{name: string, title: string, classes?: string[], tones?: number[], unit?: string, of: (number | null)[],
 *   words?: string[], higher?: boolean}} Paint
 */

/** Returns the style class of each node, and of groups by what is in them. */
export class Painter {
  /**
   * @param {Paint} paint
   * @param {Paint[]} alike the same of all graphs of the page, which have one scale
   */
  constructor(paint, alike = [paint]) {
    this.paint = paint;
    const known = alike.flatMap((each) => each.of.filter((number) => number !== null));
    // Decibels have no least number that means anything; of times and counts it is none.
    this.low = Math.min(...bounded(known), ...(paint.higher && known.length ? [] : [0]));
    this.high = Math.max(...bounded(known), this.low + 1e-12);
  }

  /** Returns the class of one node. */
  node(index) {
    const value = this.paint.of[index];
    if (value === null || value === undefined) return "paint-none";
    return this.paint.classes ? this.tone(value) : `heat-${this.step(value)}`;
  }

  tone(value) {
    return `paint-${(this.paint.tones?.[value] ?? value) % CLASSES}`;
  }

  /** Returns the class of a group: that of most of its nodes, or the worst of its numbers. */
  group(indices) {
    const counts = new Map();
    let worst = null;
    for (const index of indices) {
      const value = this.paint.of[index];
      if (value === null || value === undefined) continue;
      counts.set(value, (counts.get(value) ?? 0) + 1);
      if (worst === null || (this.paint.higher ? value < worst : value > worst)) worst = value;
    }
    if (worst === null) return "paint-none";
    if (!this.paint.classes) return `heat-${this.step(worst)}`;
    const [most] = [...counts].sort((a, b) => b[1] - a[1])[0];
    return this.tone(most);
  }

  step(value) {
    const share = (value - this.low) / (this.high - this.low);
    const placed = Math.min(STEPS - 1, Math.max(0, Math.floor(share * STEPS)));
    return this.paint.higher ? STEPS - 1 - placed : placed;
  }

  /** Returns what is said of one node. */
  words(index) {
    const value = this.paint.of[index];
    const more = this.paint.words?.[index] ?? "";
    if (value === null || value === undefined) return more;
    const said = this.paint.classes
      ? this.paint.classes[value]
      : `${Number(value.toPrecision(4))} ${this.paint.unit ?? ""}`.trim();
    return more ? `${said}: ${more}` : said;
  }

  /** Returns `[style class, label, count]` for the legend. */
  legend() {
    if (this.paint.classes) {
      const counts = this.paint.classes.map((_, i) => this.paint.of.filter((v) => v === i).length);
      return this.paint.classes.map((label, i) => [this.tone(i), label, counts[i]])
        .filter(([, , count]) => count);
    }
    return Array.from({ length: STEPS }, (_, i) => {
      const step = this.paint.higher ? STEPS - 1 - i : i;
      const [from, to] = [i, i + 1].map((s) => this.low + ((this.high - this.low) * s) / STEPS);
      const label = `${Number(from.toPrecision(3))} to ${Number(to.toPrecision(3))} ${this.paint.unit ?? ""}`;
      const inside = (v) => v !== null && this.step(v) === step;
      return [`heat-${step}`, label.trim(), this.paint.of.filter(inside).length];
    });
  }
}

/** Spread would overflow the stack of very long arrays. */
function bounded(numbers) {
  let low = Infinity;
  let high = -Infinity;
  for (const number of numbers) {
    if (number < low) low = number;
    if (number > high) high = number;
  }
  return numbers.length ? [low, high] : [];
}
