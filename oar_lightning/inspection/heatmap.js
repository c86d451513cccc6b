const classes = {'<': 's-below', '>': 's-above', '?': 's-odd', '.': 's-out'};
const names = ['reasoning', 'conclusion', 'answer', 'tail'];
let shown = 'weight';

const color = mark => '<>?'.includes(mark) ? 'var(--ink)' : mark === '.' ? 'var(--f)' : `var(--${mark})`;

class Completion extends Reader {
  constructor(section, values) {
    super(section, values.lengths);
    this.values = values;
    this.legendBox = section.querySelector('.legend');
    if (this.details.open) this.build();
  }
  get marks() { return this.values.shades[shown]; }
  paint() {
    const marks = this.marks, regions = this.values.regions;
    if (this.tokens) this.tokens.forEach((token, i) => {
      token.className = `t r${regions[i]} ${classes[marks[i]] || 's-' + marks[i]}` + (i === this.at ? ' current' : '');
    });
    const stops = [], answers = [];
    for (const [first, end, from, to] of this.places()) {
      let best = '.', answer = false;
      for (let i = first; i < end; i++) {
        if (strength(marks[i]) > strength(best)) best = marks[i];
        answer = answer || regions[i] === '2';
      }
      const range = `${from.toFixed(2)}% ${to.toFixed(2)}%`;
      stops.push(`${color(best)} ${range}`);
      answers.push(`${answer ? 'var(--ink)' : 'transparent'} ${range}`);
    }
    this.stripBox.style.background = `linear-gradient(90deg, ${answers}) bottom / 100% 3px no-repeat, linear-gradient(90deg, ${stops})`;
    this.legend();
  }
  legend() {
    const legend = this.values.legends[shown], ramp = element('span', 'ramp', '');
    for (const [mark, value] of legend.levels) ramp.append(element('span', 's-' + mark, value));
    const parts = [element('span', '', shown), ramp];
    for (const [mark, sign, words] of [['<', '▼', 'below, lowest'], ['>', '▲', 'above, largest']]) {
      if (!legend[mark]) continue;
      const button = element('button', '', `${sign} ${legend[mark][0]} ${words} ${legend[mark][1]}`);
      button.title = 'go to the next one';
      button.addEventListener('click', () => this.next(1, i => this.marks[i] === mark));
      parts.push(button);
    }
    if (legend['?']) parts.push(element('span', '', `${legend['?']} not finite (struck through)`));
    this.legendBox.replaceChildren(...parts);
  }
  strong() {
    const least = Math.min(5, Math.max(...[...this.marks].map(strength)));
    return i => strength(this.marks[i]) >= least;
  }
  words(i) {
    const lines = [`${i + 1}: "${this.texts[i].replace('\n', '')}" (${names[this.values.regions[i]]})`];
    for (const name in this.values.numbers) lines.push(`${name.padEnd(10)} ${this.values.numbers[name][i]}${name === 'entropy' ? ' nats' : ''}`);
    return lines.join('\n');
  }
}

const all = [...document.querySelectorAll('.completion')].flatMap((section, i) =>
  section.querySelector('.strip') ? [new Completion(section, data[i])] : []);
for (const input of document.querySelectorAll('input[name=shade]'))
  input.addEventListener('change', () => { shown = input.value; all.forEach(completion => completion.paint()); });
start(all);
